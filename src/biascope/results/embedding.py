"""SHOW: figures as markup within a page, each for a light and for a dark one."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from biascope.results import draw
from biascope.results.figures import MARK

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

_HEAVY = 400_000  # bytes beyond which a picture is embedded as pixels


@dataclass(frozen=True)
class Picture:
    """A picture for both themes.

    Attributes:
        key: By which a result knows it.
        caption: Its title.
        reading: How to read it, in a sentence; empty if it says itself.
        of_planes: Whether it shows planes of frequencies, which a page also shows live.
        light: Its markup on a light page.
        dark: The same on a dark one.
    """

    key: str
    caption: str
    reading: str
    of_planes: bool
    light: Markup
    dark: Markup

    @property
    def size(self) -> int:
        """Letters of its markup."""
        return len(self.light) + len(self.dark)


def pictures_of(plots: Callable[[bool], dict[str, Figure]], salt: str) -> tuple[Picture, ...]:
    """Each picture under its caption and with the sentence that the figure carries."""
    light, dark = plots(False), plots(True)
    return tuple(
        Picture(
            key,
            draw.caption_of(figure, key),
            draw.reading_of(figure),
            figure.get_gid() == MARK,
            embedded(figure, f"{salt}-{index}-light"),
            embedded(dark[key], f"{salt}-{index}-dark"),
        )
        for index, (key, figure) in enumerate(light.items())
    )


def total_size(pictures: Sequence[Picture]) -> int:
    """Letters of the markup of all."""
    return sum(picture.size for picture in pictures)


def embedded(figure: Figure, salt: str) -> Markup:
    """A figure as markup that is safe by construction: matplotlib escapes the text that it writes."""
    from markupsafe import Markup

    drawn = re.sub(r'(?<=data:image/png;base64,)[^"]+', _with_colour_table, draw.svg(figure, salt))
    if len(drawn) > _HEAVY:
        drawn = f'<img alt="" src="data:image/png;base64,{base64.b64encode(draw.png(figure, 1000)).decode()}">'
    return Markup(drawn)


def _with_colour_table(match: re.Match[str]) -> str:
    """The same embedded picture at a third of the size, where it has few colours."""
    from PIL import Image

    pixels = np.array(Image.open(io.BytesIO(base64.b64decode(match[0]))).convert("RGBA")).view(np.uint32)[..., 0]
    colours, places = np.unique(pixels, return_inverse=True)
    if len(colours) > 256:
        return match[0]
    picture = Image.fromarray(places.reshape(pixels.shape).astype(np.uint8))  # grey, until it has a palette
    picture.putpalette(colours.tobytes(), "RGBA")
    buffer = io.BytesIO()
    picture.save(buffer, "png", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()
