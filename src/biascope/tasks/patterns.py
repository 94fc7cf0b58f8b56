"""Inputs made of orthogonal patterns, one of which determines the class, and images of coloured digits.

Patterns are numbered from 0: pattern 0 marks the label +1, pattern 1 the label −1, and all others are spurious.

Reference: On the inductive bias of a CNN for distributions with orthogonal patterns (2021), sections 3, E.2, E.5 and G.
"""

# m samples · n patterns of an input · P patterns · d size of a pattern · … runs, or nothing in their place

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from biascope.runs.ambient import under_torch_defaults
from biascope.runs.randomness import generator_for
from biascope.tasks.task import Arrays

KINDS = ("uniform", "paired", "biased")
RED, GREEN, BLUE = 0, 1, 2  # channels of a colour image
_CPU = torch.device("cpu")


@under_torch_defaults
@dataclass(frozen=True)
class PatternSamples:
    """Inputs as lists of patterns, with labels; one set of samples or one for each of several runs.

    Attributes:
        places: ``(…, m, n)`` integers: the numbers of each input's patterns.
        labels: ``(…, m)`` integers: +1 or −1.
        patterns: P, how many patterns there are.

    Example:
        >>> samples = PatternSamples(torch.tensor([[0, 2], [1, 3]]), torch.tensor([1, -1]), 4)
        >>> samples.contains.int().tolist()
        [[1, 0, 1, 0], [0, 1, 0, 1]]
    """

    places: Tensor
    labels: Tensor
    patterns: int

    def __post_init__(self) -> None:
        if self.places.shape[:-1] != self.labels.shape or not self.labels.numel():
            raise ValueError(
                "places must be (…, samples, patterns of an input) and labels (…, samples), got shapes "
                f"{tuple(self.places.shape)} and {tuple(self.labels.shape)}. Pass a label for every input."
            )
        if self.places.device.type == "cpu":  # elsewhere looking would wait for the device
            least, largest = (int(value) for value in torch.aminmax(self.places))
            if least < 0 or largest >= self.patterns:
                raise ValueError(
                    f"places must be from 0 to {self.patterns - 1} for {self.patterns} patterns, got {least} to {largest}. "
                    f"Pass patterns={largest + 1}, and number patterns from 0."
                )

    @property
    def contains(self) -> Tensor:
        """``(…, m, P)``: which patterns are in which input."""
        found = torch.zeros(*self.labels.shape, self.patterns, dtype=torch.bool, device=self.places.device)
        return found.scatter_(-1, self.places, True)

    def to(self, device: torch.device) -> PatternSamples:
        """The same samples on a device."""
        return dataclasses.replace(self, places=self.places.to(device), labels=self.labels.to(device))

    def shuffled(self, *, seed: int) -> PatternSamples:
        """The same inputs with their patterns in random order; this changes the images but no output of the network."""
        keys = torch.rand(self.places.shape, generator=generator_for(_CPU, seed, "pattern order"))
        order = keys.argsort(-1).to(self.places.device)
        return dataclasses.replace(self, places=self.places.gather(-1, order))

    def images(self, vectors: Tensor, *, grid: tuple[int, int] | None = None) -> Tensor:
        """The inputs as images.

        Args:
            vectors: ``(P, d)`` vectors, or ``(P, C, h, w)`` patches.
            grid: Rows and columns of patches of an image; by default as square as n allows.

        Returns:
            ``(…, m, 1, n, d)`` for vectors, one below the other; ``(…, m, C, rows·h, columns·w)`` for patches.

        Raises:
            ValueError: If the vectors or the grid do not fit.

        Example:
            >>> samples = PatternSamples(torch.tensor([[2, 0]]), torch.tensor([1]), 3)
            >>> samples.images(torch.eye(3)).tolist()
            [[[[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]]]
        """
        if len(vectors) != self.patterns or vectors.dim() not in (2, 4):
            raise ValueError(
                f"vectors must be ({self.patterns}, d) or ({self.patterns}, channels, height, width), got "
                f"{tuple(vectors.shape)}. Pass one vector or patch for each pattern."
            )
        taken = vectors[self.places.to(vectors.device)]  # (…, m, n, d) or (…, m, n, C, h, w)
        if vectors.dim() == 2:
            return taken.unsqueeze(-3)
        count = self.places.shape[-1]
        rows, columns = grid or _squarest(count)
        if rows * columns != count:
            raise ValueError(f"grid must have {count} places, got {rows} × {columns}. Pass grid={_squarest(count)}.")
        channels, height, width = vectors.shape[1:]
        laid = taken.reshape(*self.labels.shape, rows, columns, channels, height, width).movedim(-3, -5)
        return laid.movedim(-3, -2).reshape(*self.labels.shape, channels, rows * height, columns * width)


@under_torch_defaults
@dataclass(frozen=True)
class PatternDistribution:
    """A distribution of labelled inputs: a random label ±1, the pattern that marks it, and n − 1 spurious ones.

    Definition:
        ``"uniform"`` (D_u): the spurious patterns are drawn uniformly without replacement.
        ``"paired"`` (D_vc): one of patterns 2j and 2j + 1, with equal chance, for each j = 1 … n − 1; P = 2n.
        ``"biased"`` (D_p): given y = +1, pattern 2 with probability p and else pattern 3; given y = −1 the other way round;
        the remaining n − 2 from the other spurious ones, uniformly without replacement.

    Attributes:
        kind: One of these.
        per_input: n.
        patterns: P.
        bias: p, of ``"biased"``.

    Example:
        >>> law = PatternDistribution("paired", per_input=3, patterns=6)
        >>> law.support, law.unbiased, sorted(law.draw(1, seed=0).places[0, 1:] // 2)
        (8, True, [tensor(1), tensor(2)])
    """

    kind: str
    per_input: int
    patterns: int
    bias: float = 0.5

    def __post_init__(self) -> None:
        n, total = self.per_input, self.patterns
        if self.kind not in KINDS:
            known = ", ".join(map(repr, KINDS))
            raise ValueError(f"kind must be one of {known}, got {self.kind!r}. Pass kind='uniform'.")
        if self.kind == "paired" and (n < 2 or total != 2 * n):
            raise ValueError(
                f"Paired patterns need per_input of at least 2 and twice as many patterns, got per_input={n} and patterns={total}. "
                f"Pass patterns={2 * max(n, 2)}, per_input={max(n, 2)}."
            )
        least = 2 if self.kind == "biased" else 1
        if self.kind != "paired" and not least <= n <= total - (2 if self.kind == "biased" else 1):
            raise ValueError(
                f"An input must have at least {least} of {total} patterns and leave out the other label's"
                f"{' and the rarer of two' if least == 2 else ''}, got {n}. Pass per_input=10, patterns=20."
            )
        if not 0 <= self.bias <= 1:
            raise ValueError(f"bias must be a probability, got {self.bias}. Pass a number from 0 to 1.")

    @property
    def expected_statistics(self) -> Tensor:
        """``(P,)``: E[y·1{pattern i in x}], which the pattern statistics s_i of a training set estimate."""
        expected = torch.zeros(self.patterns, dtype=torch.float64)
        expected[0], expected[1] = 0.5, -0.5
        if self.kind == "biased":
            expected[2], expected[3] = self.bias - 0.5, 0.5 - self.bias
        return expected

    @property
    def unbiased(self) -> bool:
        """Whether no spurious pattern carries information about the label, as theorem 6.1 requires."""
        return not bool(self.expected_statistics[2:].any())

    @property
    def support(self) -> int:
        """Number of different inputs; the order of patterns does not matter."""
        n, total = self.per_input, self.patterns
        if self.kind == "uniform":
            return 2 * math.comb(total - 2, n - 1)
        if self.kind == "paired":
            return 1 << n
        return 2 * (2 if 0 < self.bias < 1 else 1) * math.comb(total - 4, n - 2)

    def draw(self, num: int, *, seed: int, runs: int | Sequence[int] | None = None) -> PatternSamples:
        """Independent samples, the same on every machine; the pattern that marks the label comes first in each input.

        Args:
            num: m.
            seed: Random seed for the samples. Each run has a stream of its own: its samples do not depend on how many runs are drawn.
            runs: For several runs at once, with an axis over runs in front: how many, or which, by their numbers.

        Returns:
            The samples, on the CPU.

        Raises:
            ValueError: If there is nothing to draw.
        """
        numbers = range(1 if runs is None else runs) if runs is None or isinstance(runs, int) else runs
        if num < 1 or not numbers:
            raise ValueError(f"num and runs must be at least 1, got {num} and {runs}. Pass num=100.")
        chances = torch.empty(len(numbers), num, self.per_input, dtype=torch.float64)
        for number, chance in zip(numbers, chances, strict=True):
            chance.uniform_(generator=generator_for(_CPU, seed, "patterns", number))
        positive = chances[..., 0] < 0.5
        places = torch.cat([(~positive).long()[..., None], self._spurious(positive, chances[..., 1:])], -1)
        samples = PatternSamples(places, 2 * positive.long() - 1, self.patterns)
        if runs is not None:
            return samples
        return dataclasses.replace(samples, places=places[0], labels=samples.labels[0])

    def _spurious(self, positive: Tensor, chances: Tensor) -> Tensor:
        """``(…, n − 1)`` patterns from as many numbers that are uniform between 0 and 1."""
        if self.kind == "paired":
            return torch.arange(2, self.patterns, 2) + (chances >= 0.5).long()
        if self.kind == "uniform":
            return 2 + _without_replacement(chances, self.patterns - 2)
        third = (chances[..., :1] < self.bias) == positive[..., None]  # with p given +1, with 1 − p given −1
        return torch.cat([3 - third.long(), 4 + _without_replacement(chances[..., 1:], self.patterns - 4)], -1)


def _without_replacement(chances: Tensor, total: int) -> Tensor:
    """Different whole numbers below ``total``, as many as there are uniform numbers: a shuffle that stops early."""
    count = chances.shape[-1]
    deck = torch.arange(total)[:, None].repeat(1, math.prod(chances.shape[:-1]))  # (total, samples)
    for place, chance in enumerate(chances.flatten(0, -2).unbind(-1)):
        chosen = place + (chance * (total - place)).long()
        here, there = deck[place].clone(), deck.gather(0, chosen[None])
        deck[place] = there[0]
        deck.scatter_(0, chosen[None], here[None])
    return deck[:count].T.reshape(chances.shape).contiguous()


def _squarest(count: int) -> tuple[int, int]:
    rows = max(side for side in range(1, math.isqrt(count) + 1) if count % side == 0)
    return rows, count // rows


@under_torch_defaults
def coloured_digits(digits: Arrays, samples: Mapping[str, int], *, seed: int) -> Arrays:
    """Nine digits to an image, eight of them green; the ninth is blue for label 1 and red for label 0 (section G).

    Digits are drawn uniformly with replacement from the split of the same name, the place of the coloured one uniformly,
    and labels with equal chance. A colour is one channel: its digit is there, and the other channels are 0.

    Args:
        digits: Grey images ``(n, 1, h, w)``, 28 × 28 for MNIST.
        samples: How many images to make, by split.
        seed: Random seed for all choices.

    Returns:
        Images ``(m, 3, 3h, 3w)`` of three rows of three tiles, with labels.

    Raises:
        ValueError: If the digits are not grey images or there is no such split.

    Example:
        >>> digits = Arrays({"train": (torch.full((1, 1, 1, 1), 7.0), torch.tensor([4]))})
        >>> image, label = coloured_digits(digits, {"train": 1}, seed=0).whole("train")
        >>> label.tolist(), image.sum((0, 2, 3)).tolist()  # seven times a red, eight green, no blue
        ([0], [7.0, 56.0, 0.0])
    """
    if len(digits.shape) != 3 or digits.shape[0] != 1 or not set(samples) <= set(digits.splits):
        raise ValueError(
            f"digits must be grey images (n, 1, height, width) with splits {list(samples)}, got images of shape "
            f"{digits.shape} with {list(digits.splits)}. Pass MNIST and samples={{'train': 1000, 'test': 1000}}."
        )
    splits, (height, width) = {}, digits.shape[1:]
    for split, count in samples.items():
        source = digits.splits[split][0][:, 0]
        generator = generator_for(_CPU, seed, "coloured digits", split)
        labels = torch.randint(2, (count,), generator=generator)
        which = torch.randint(len(source), (count, 9), generator=generator)
        odd = torch.randint(9, (count,), generator=generator)
        colours = torch.full((count, 9), GREEN)
        colours[torch.arange(count), odd] = torch.where(labels == 1, BLUE, RED)
        laid = torch.zeros(count, 3, 3, height, 3, width, dtype=source.dtype, device=source.device)
        for place in range(9):
            row, column = divmod(place, 3)
            # An index on the channel alone, so that only the tile in its colour is written.
            laid[torch.arange(count), colours[:, place], row, :, column] = source[which[:, place]]
        splits[split] = laid.reshape(count, 3, 3 * height, 3 * width), labels.to(source.device)
    return Arrays(splits, digits.dtype, f"coloured digits of {digits.name}")
