"""What every picture must be, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from xml.etree import ElementTree

from matplotlib.figure import Figure
from matplotlib.text import Text

from biascope.results import draw


def assert_whole(make: Callable[[bool], Figure], panels: int) -> None:
    """A picture has its panels, the width of a page and a sentence, and is whole in a light and a dark theme."""
    light, dark = make(False), make(True)
    assert len(light.axes) == panels
    assert light.get_size_inches()[0] == draw.WIDTH, "as wide as a phone"
    assert light.get_label().endswith("."), "a figure carries a sentence on how to read it"
    one, two = draw.svg(light), draw.svg(dark)
    assert draw.PALETTE[False].ink in one
    assert draw.PALETTE[True].ink in two
    ElementTree.fromstring(one)


def words_of(figure: Figure) -> str:
    """All text of a figure."""
    return " ".join(part.get_text() for part in figure.findobj(Text) if isinstance(part, Text))
