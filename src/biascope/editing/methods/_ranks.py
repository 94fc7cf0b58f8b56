"""Exact ranks of magnitudes in tensors that are read slice by slice: a radix selection, sixteen bits at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

_DIGIT = 16  # bits
_WORDS = {torch.float32: torch.int32, torch.float64: torch.int64}


class Cut:
    """The numbers with the largest magnitudes, told slice by slice.

    Args:
        threshold: Magnitude of the last that is kept.
        ties: How many of this magnitude are kept, the first in order; ``None`` for all of them.
        none: Whether nothing is kept.
    """

    def __init__(self, threshold: float, ties: int | None, none: bool = False) -> None:
        self.threshold, self._left, self._none = threshold, ties, none

    def kept(self, values: Tensor) -> Tensor:
        """Which of the next values are kept."""
        size = values.abs()
        if self._none:
            return torch.zeros_like(size, dtype=torch.bool)
        if self._left is None:
            return size >= self.threshold
        kept, equal = size > self.threshold, size == self.threshold
        count = int(equal.sum())
        if count > self._left:  # among equals, the first in order
            equal &= equal.cumsum(0) <= self._left
        self._left -= min(count, self._left)
        return kept | equal


class Ranks:
    """The magnitudes at given ranks in some columns of numbers, found by reading them a few times.

    The bits of a non-negative floating-point number are ordered as the number is. Each reading counts the next sixteen of them, for
    the numbers that agree with what is known: two readings for float32, four for float64, whatever the size.

    Args:
        wanted: For each column, ranks from the largest magnitude (1) on; 0 for nothing.
        dtype: Type of the numbers.

    Example:
        >>> ranks = Ranks([[2, 4]], torch.float32)
        >>> for _ in range(ranks.readings):
        ...     for values in torch.tensor([0.5, -3.0, 2.0, 0.5, -0.25]).split(2):
        ...         ranks.see([values])
        ...     ranks.turn()
        >>> ranks.threshold(0, 0), ranks.threshold(0, 1), ranks.cut(0, 1, exact=True).kept(torch.tensor([0.5, 3.0, 0.1])).tolist()
        (2.0, 0.5, [True, True, False])
    """

    def __init__(self, wanted: Sequence[Sequence[int]], dtype: torch.dtype) -> None:
        self._dtype, self._word = dtype, _WORDS[dtype]
        self._shift = 8 * dtype.itemsize - _DIGIT
        self.readings = 8 * dtype.itemsize // _DIGIT
        self._wanted = [list(column) for column in wanted]
        self._left = [list(column) for column in wanted]  # rank among the numbers that agree so far
        self._known = [[0] * len(column) for column in wanted]
        self._counts = self._zeros()

    def _zeros(self) -> list[list[Tensor]]:
        return [[torch.zeros(2**_DIGIT, dtype=torch.int64) for _ in column] for column in self._wanted]

    def see(self, columns: Sequence[Tensor]) -> None:
        """The next numbers of each column."""
        for place, values in enumerate(columns):
            bits = values.abs().to(self._dtype).view(self._word)
            first = self._shift == 8 * self._dtype.itemsize - _DIGIT
            shared = torch.bincount(bits >> self._shift, minlength=2**_DIGIT) if first else None
            for k, rank in enumerate(self._wanted[place]):
                if not rank:
                    continue
                if shared is None:
                    agree = bits[(bits >> (self._shift + _DIGIT)) == self._known[place][k]]
                    digits = (agree >> self._shift) & (2**_DIGIT - 1)
                    self._counts[place][k] += torch.bincount(digits, minlength=2**_DIGIT)
                else:
                    self._counts[place][k] += shared

    def turn(self) -> None:
        """All numbers were seen once more."""
        for place, column in enumerate(self._wanted):
            for k, rank in enumerate(column):
                if not rank:
                    continue
                above = self._counts[place][k].flip(0).cumsum(0)  # at least each digit, from the largest on
                if self._left[place][k] > int(above[-1]):
                    raise ValueError(f"A rank must be at most {int(above[-1])}, got {rank}. Pass a smaller density.")
                steps = int(torch.searchsorted(above, self._left[place][k]))
                self._left[place][k] -= int(above[steps - 1]) if steps else 0
                self._known[place][k] = (self._known[place][k] << _DIGIT) | (2**_DIGIT - 1 - steps)
        self._shift -= _DIGIT
        self._counts = self._zeros()

    def threshold(self, column: int, place: int) -> float:
        """The magnitude at a rank."""
        return float(torch.tensor([self._known[column][place]], dtype=self._word).view(self._dtype))

    def cut(self, column: int, place: int, *, exact: bool) -> Cut:
        """What ranks so far up.

        Args:
            column: The column.
            place: Which of its ranks.
            exact: Whether exactly so many are kept, of equals the first in order; otherwise all of the last magnitude.
        """
        if not self._wanted[column][place]:
            return Cut(0.0, 0, none=True)
        return Cut(self.threshold(column, place), self._left[column][place] if exact else None)


def ranked(
    read: Callable[[], Iterable[Sequence[Tensor]]], wanted: Sequence[Sequence[int]], dtype: torch.dtype
) -> Ranks:
    """Ranks in the columns that a function reads."""
    ranks = Ranks(wanted, dtype)
    for _ in range(ranks.readings):
        for columns in read():
            ranks.see(columns)
        ranks.turn()
    return ranks
