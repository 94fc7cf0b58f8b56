"""WHAT lies on the leading eigenfunctions of each class: which classes a network learns first, and which last."""

# m draws · T classes, each against the rest

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from biascope.results.estimate import SHARE, Estimate, over
from biascope.results.wording import listed, percent

#: Classes up to which a result has a number of each; beyond, its table has them.
FEW = 20
_NAMED = 5  # classes at either end that a sentence names
_ROUNDING = 1e-6  # of a share: eigenpairs are no better
_BY = "The order is by the share of their labels on these functions."


@dataclass(frozen=True)
class ClassShare:
    """What of a class's labels, against the rest, lies on the leading eigenfunctions.

    Attributes:
        label: Its number.
        name: Its name, where that is known.
        samples: How many there are of it.
        share: Of its labels, with a 95 % interval over draws.
        above_average: The share minus the mean share of all classes in the same draw. The intervals of all classes hold together
            with 95 % (Bonferroni).
    """

    label: int
    name: str
    samples: int
    share: Estimate
    above_average: Estimate

    @property
    def learned(self) -> str:
        """``"first"`` or ``"last"`` if the interval of its difference to the average class says so; else empty."""
        return "first" if self.above_average.low > 0 else "last" if self.above_average.high < 0 else ""

    @property
    def in_words(self) -> str:
        """The name and the share."""
        return f"{self.name} ({percent(self.share.value)})"


def class_shares(
    energy: np.ndarray, labels: Sequence[int], names: Sequence[str], samples: Sequence[int], *, exact: bool
) -> tuple[ClassShare, ...]:
    """Classes from the one that is learned first to the one that is learned last.

    Args:
        energy: Share of each class's labels on the leading eigenfunctions, ``(m, T)``.
        labels: Number of each class.
        names: Name of each.
        samples: How many there are of each.
        exact: Whether one network was given, so that nothing was drawn.

    Example:
        >>> first, *_, last = class_shares(np.array([[0.2, 0.9, 0.4]]), [0, 1, 2], ["cat", "sea", "dog"], [5, 5, 5], exact=True)
        >>> first.in_words, last.in_words, last.above_average
        ('sea (90 %)', 'cat (20 %)', -0.3)
    """
    apart = energy - energy.mean(1, keepdims=True)
    apart = np.where(np.abs(apart) < _ROUNDING, 0.0, apart)
    each = 1 - 0.05 / energy.shape[1]
    found = [
        ClassShare(
            label,
            name,
            count,
            Estimate.exact(float(energy[0, at])) if exact else over(energy[:, at], within=(0.0, 1.0)),
            Estimate.exact(float(apart[0, at])) if exact else over(apart[:, at], within=(-1.0, 1.0), confidence=each),
        )
        for at, (label, name, count) in enumerate(zip(labels, names, samples, strict=True))
    ]
    return tuple(sorted(found, key=lambda one: -one.share.value))


def order_in_words(classes: Sequence[ClassShare], draws: int, *, exact: bool) -> str:
    """Which classes are learned first and last, as far as the draws tell.

    Args:
        classes: From first to last.
        draws: Number of networks.
        exact: Whether one network was given.

    Example:
        >>> energy = np.array([[0.2, 0.9, 0.41], [0.21, 0.88, 0.4], [0.19, 0.9, 0.42], [0.2, 0.9, 0.43]])
        >>> found = class_shares(energy, [0, 1, 2], ["cat", "sea", "dog"], [5, 5, 5], exact=False)
        >>> order_in_words(found, 4, exact=False)  # doctest: +ELLIPSIS
        'The class learned first is sea (89.5 %). The classes learned last are dog (41.5 %) and cat (20 %). The shares...'
    """
    words = _order(classes, draws, exact)
    counts = [one.samples for one in classes]
    if max(counts) > 2 * min(counts):
        words += (
            f" The classes have {min(counts):,} to {max(counts):,} samples here. A rare class has a smaller share for that reason "
            "alone."
        )
    return words


def _order(classes: Sequence[ClassShare], draws: int, exact: bool) -> str:
    values = [one.share.value for one in classes]
    if values[0] - values[-1] < _ROUNDING:
        return f"All {len(classes)} classes have the same share of their labels on these functions."
    if draws == 1:
        count = _NAMED if len(classes) > FEW else 1
        # Classes that tie with the last one that is named are named too.
        first = [one for one in classes if one.share.value > values[count - 1] - _ROUNDING]
        last = [one for one in classes if one.share.value < values[-count] + _ROUNDING]
        ends = f"{_ends(first, last)} {_BY}"
        if exact:
            return f"{ends} This is one network at given weights, so there is no interval over draws."
        return (
            f"{ends} One network was drawn, which does not tell whether others agree: biascope kernel --draws 8 does."
        )
    first = [one for one in classes if one.learned == "first"]
    last = [one for one in classes if one.learned == "last"]
    if not first and not last:
        return (
            f"{draws} networks do not tell which of the {len(classes)} classes is learned first: no share differs from that of the "
            "average class (simultaneous 95 % CI over draws)."
        )
    return (
        f"{_ends(first, last)} The shares of their labels on these functions differ from that of the average class (simultaneous 95 % "
        f"CI over {draws} networks)."
    )


def _ends(first: Sequence[ClassShare], last: Sequence[ClassShare]) -> str:
    """The classes at both ends, each in a sentence; one of the ends may be empty."""
    return " ".join(_end(those, word) for those, word in ((first, "first"), (last[::-1], "last")) if those)


def _end(classes: Sequence[ClassShare], word: str) -> str:
    """The classes at an end, the outermost first where they are too many to be named."""
    named = [one.in_words for one in classes[:_NAMED]]
    more = len(classes) - len(named)
    told = listed([*named, f"{more} others"] if more else named[::-1] if word == "last" else named)
    return f"The class learned {word} is {told}." if len(classes) == 1 else f"The classes learned {word} are {told}."


def as_rows(classes: Sequence[ClassShare], chance: float) -> list[dict[str, object]]:
    """The classes as a table, from first to last."""
    return [
        {
            "class": one.name,
            "label": one.label,
            "samples": one.samples,
            "share": one.share.named(f"share of the labels {one.name}", SHARE),
            "chance": chance,
            "above_average": one.above_average.map_linear(100.0).named("minus the average class", "points"),
            "learned": one.learned,
        }
        for one in classes
    ]
