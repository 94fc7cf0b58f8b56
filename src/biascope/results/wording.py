"""SHOW: lists, large numbers and the order of names as people read them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence


def listed(words: Sequence[str]) -> str:
    """Words with commas and an "and".

    Example:
        >>> listed(["one"]), listed(["one", "two", "three"])
        ('one', 'one, two and three')
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def short(number: float) -> str:
    """A large number in few letters.

    Example:
        >>> short(60941), short(11_200_000), short(5)
        ('60.9 k', '11.2 M', '5')
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 0.9995 * size:
            return f"{number / size:.{max(0, 2 - int(math.log10(max(number / size, 1))))}f} {unit}"
    return f"{number:g}"


def natural_order(name: str) -> list[tuple[int, str]]:
    """A sort key under which epoch-9 comes before epoch-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
