"""Rendered characters: the letters and symbols of matplotlib's bundled fonts, without digits."""

# G characters · F fonts · s side

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import numpy.typing as npt

FONTS = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSerif.ttf", "DejaVuSerif-Bold.ttf", "DejaVuSansMono.ttf")
_KINDS = ("L", "S")  # letters and symbols


def glyph_characters(num: int, *, seed: int) -> str:
    """Characters that all of :data:`FONTS` have: first the letters A–Z and a–z, then others in a random order.

    Left out are digits and all that is made of them (fractions, circled numbers), accents, and signs that look like nothing or
    like another: those that fall apart into several characters.

    Args:
        num: How many; where there are fewer, all of them.
        seed: Random seed for the order.

    Example:
        >>> glyph_characters(5, seed=0), len(glyph_characters(1000, seed=0))
        ('ABCDE', 1000)
    """
    from matplotlib.ft2font import FT2Font

    shared = set.intersection(*(set(FT2Font(str(_font(name))).get_charmap()) for name in FONTS))
    wanted = [chr(code) for code in sorted(shared) if _is_plain(chr(code))]
    first = [letter for letter in wanted if letter.isascii() and letter.isalpha()]
    rest = [letter for letter in wanted if letter not in set(first)]
    order = np.random.default_rng(seed).permutation(len(rest))
    return "".join((first + [rest[place] for place in order])[:num])


def rendered_glyphs(characters: str, *, side: int = 48) -> npt.NDArray[np.uint8]:
    """Each character in each font, white on black, in the middle of a square with a margin of a sixth.

    Args:
        characters: Which.
        side: Of the square in pixels.

    Returns:
        Bytes ``(G, F, s, s)``.

    Example:
        >>> bool((rendered_glyphs("I", side=24)[0, 0].max(0) > 0).mean() < 0.5)
        True
    """
    from PIL import Image, ImageDraw, ImageFont

    images = np.zeros((len(characters), len(FONTS), side, side), np.uint8)
    for place, name in enumerate(FONTS):
        font = ImageFont.truetype(str(_font(name)), 2 * side)  # larger, so that shrinking smooths it
        for number, character in enumerate(characters):
            left, top, right, bottom = font.getbbox(character)
            longest = int(max(right - left, bottom - top, 1) * 1.5)
            canvas = Image.new("L", (longest, longest))
            corner = ((longest - left - right) / 2, (longest - top - bottom) / 2)
            ImageDraw.Draw(canvas).text(corner, character, fill=255, font=font)
            images[number, place] = np.asarray(canvas.resize((side, side), Image.Resampling.BOX))
    return images


def _font(name: str) -> Path:
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name


def _is_plain(character: str) -> bool:
    return unicodedata.category(character)[0] in _KINDS and unicodedata.normalize("NFKD", character) == character
