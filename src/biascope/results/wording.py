"""SHOW: lists in plain words."""

from __future__ import annotations

from collections.abc import Sequence


def listed(words: Sequence[str]) -> str:
    """Words with commas and an "and".

    Example:
        >>> listed(["one"]), listed(["one", "two", "three"])
        ('one', 'one, two and three')
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
