"""WHAT: several results of one measurement, compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from biascope.derivatives.spectrum import subspace_similarity
from biascope.results.differences import separations
from biascope.results.result import Result
from biascope.results.story import Sentence
from biascope.results.wording import listed, percent, significant
from biascope.runs.ambient import under_torch_defaults

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from biascope.measures.covariance import CovarianceResult


@dataclass(frozen=True, repr=False)
class ComparedResults:
    """Results of one measurement that may be compared: same estimator, same input size.

    Attributes:
        measurement: Its name.
        estimator: How gradients were taken, the same for all.
        results: In the order given.
        leading: Directions in the compared subspaces.
        overlap: Mean squared cosine between the leading subspaces of each pair, ``(result, result)``; on the diagonal
            what the two halves of a result's own draws share, which is the most that its row can be expected to reach.
        chance: What two random subspaces have in common on average, k/D.
        floor: The noise floor: what 999 of 1,000 pairs of random subspaces stay below; see :func:`noise_floor`.
    """

    measurement: str
    estimator: str
    results: tuple[CovarianceResult, ...]
    leading: int
    overlap: np.ndarray
    chance: float
    floor: float

    @property
    def resolved(self) -> np.ndarray:
        """Which overlaps are resolved, ``(result, result)``.

        An overlap must lie above the noise floor, and so must the agreement of the two halves of both networks' draws: directions
        that a network's own draws do not agree on are noise, and networks that are drawn alike have noise in common.
        """
        exact = [not result.eigenvalue_errors.any() for result in self.results]
        settled = np.array([own > self.floor for own in np.diag(self.overlap)])
        settled |= np.array(exact) & np.isnan(np.diag(self.overlap))
        return np.asarray((self.overlap > self.floor) & settled[:, None] & settled[None, :])

    def warnings(self) -> list[str]:
        """What a reader must know of the overlaps, in sentences."""
        found = []
        names = [result.subject for result in self.results]
        pairs = [(i, j) for i in range(len(names)) for j in range(i)]
        lost = [f"{names[j]} and {names[i]}" for i, j in pairs if not self.resolved[i, j]]
        if lost:
            more = " and others" if len(lost) > 6 else ""
            found.append(
                f"The overlap of {'; '.join(lost[:6])}{more} is not resolved. The overlap, or the agreement of the two halves of a "
                f"network's own draws, is below the noise floor of {significant(self.floor, 2)}. Draw more networks to resolve it."
            )
        seeds = [result.seed for result in self.results]
        if any(self.resolved[i, j] and seeds[i] is not None and seeds[i] == seeds[j] for i, j in pairs):
            found.append(
                "These networks were drawn with the same seed and share random numbers. Part of their overlap may be common noise. "
                "Pass the networks themselves to compare: each is then drawn with its own seed."
            )
        return found

    def differences(self) -> np.ndarray:
        """Which pairs of results differ significantly in effective rank, ``(result, result)``.

        The level is 5 % for all pairs together: see :func:`biascope.results.differences.separations`.
        """
        ranks, count = [result.effective_rank for result in self.results], len(self.results)
        return np.asarray(np.abs(separations(ranks, max(1, count * (count - 1) // 2))) > 1)

    def conclusion(self, labels: Sequence[str] | None = None) -> str:
        """Which networks differ significantly in effective rank, in a sentence.

        Args:
            labels: A distinct name for each result; by default their subjects.
        """
        names = list(labels or (result.subject for result in self.results))
        values = np.array([result.effective_rank.value for result in self.results])
        order = np.argsort(values, kind="stable")
        said = listed([f"{names[k]} ({in_full(values[k])})" for k in order])
        differ = self.differences()
        above = np.triu_indices(len(names), 1)
        size = self.results[0].size
        if not differ[above].any():
            return f"The effective ranks do not differ significantly: {said} of {size:,} directions."
        if differ[above].all():
            return (
                f"All effective ranks differ significantly. From the strongest preference to the weakest: {said} of {size} "
                "directions."
            )
        alike = [f"{names[i]} and {names[j]}" for i, j in zip(*above, strict=True) if not differ[i, j]]
        return (
            f"The effective ranks differ significantly, except between {listed(alike)}. From the strongest preference to the weakest: "
            f"{said} of "
            f"{size:,} directions."
        )

    def overlaps_in_words(self, labels: Sequence[str]) -> list[str]:
        """The largest resolved overlap, or that there is none, in a sentence each."""
        pairs = [(i, j) for i in range(len(labels)) for j in range(i) if self.resolved[i, j]]
        if not pairs:
            words = f"No pair of networks shares more of its {self.leading} leading directions than noise would."
            return [f"{words} Chance is {percent(self.chance)}."]
        i, j = max(pairs, key=lambda pair: self.overlap[pair])
        share = "share" if len(labels) == 2 else "share most:"
        return [
            f"{labels[j]} and {labels[i]} {share} {percent(self.overlap[i, j])} of their {self.leading} leading directions. "
            f"Chance is {percent(self.chance)}."
        ]

    def located(self, labels: Sequence[str] | None = None) -> list[Sentence]:
        """On which places of its inputs most of each network's sensitivity lies, in a sentence for each that has such places.

        Args:
            labels: A distinct name for each result; by default their subjects.
        """
        names = labels or [result.subject for result in self.results]
        return [
            Sentence(f"{name}: {each.text}", each.shown_by)
            for name, result in zip(names, self.results, strict=True)
            for each in result.located()
        ]

    def along_training(self, labels: Sequence[str]) -> list[Sentence]:
        """How the results change from the first to the last, as checkpoints of one training."""
        ranks = [result.effective_rank for result in self.results]
        first, last, size = ranks[0], ranks[-1], self.results[0].size
        way = "does not change significantly"
        if self.differences()[0, -1]:
            way = "falls" if last.value < first.value else "rises"
        shown_by = "effective_rank_along_training"
        found = [
            Sentence(
                f"From {labels[0]} to {labels[-1]}, the effective rank {way}: from {in_full(first.value)} (95 % CI "
                f"{in_full(first.low)} to "
                f"{in_full(first.high)}) to {in_full(last.value)} (95 % CI {in_full(last.low)} to {in_full(last.high)}) of "
                f"{size:,} directions.",
                shown_by,
            )
        ]
        if len(ranks) > 2:
            values = np.array([rank.value for rank in ranks])
            step = int(np.abs(np.diff(values)).argmax())
            found.append(
                Sentence(
                    f"The largest change lies between {labels[step]} and {labels[step + 1]}: from {in_full(values[step])} to "
                    f"{in_full(values[step + 1])} directions.",
                    shown_by,
                )
            )
        kept = float(self.overlap[0, -1])
        words = f"The last checkpoint shares {percent(kept)} of its {self.leading} leading directions with the first"
        words += f" (chance {percent(self.chance)})"
        words += "." if self.resolved[0, -1] else ", which is not distinguishable from noise."
        found.append(Sentence(words, "overlap"))
        trace = [result.trace.value for result in self.results]
        by = trace[-1] / trace[0] if trace[0] > 0 else math.nan
        if math.isfinite(by):
            found.append(
                Sentence(
                    f"The mean squared gradient is multiplied by {significant(by)} from the first to the last checkpoint."
                )
            )
        return found

    def as_dict(self) -> dict[str, Any]:
        """The numbers, for JSON; rows and columns of the overlap are in the order of the subjects."""
        return {
            "measurement": self.measurement,
            "estimator": self.estimator,
            "subjects": [result.subject for result in self.results],
            "effective_rank": [result.effective_rank.named("effective rank") for result in self.results],
            "leading": self.leading,
            "overlap": self.overlap,
            "chance": self.chance,
            "noise_floor": self.floor,
            "resolved": self.resolved,
            "conclusion": self.conclusion(),
            "located": [each.text for each in self.located()],
            "differ": self.differences(),
            "warnings": self.warnings(),
        }

    def __repr__(self) -> str:
        width = max(len(result.subject) for result in self.results) + 2
        head = (
            f"{self.measurement} ({self.estimator}); overlap of the leading {self.leading} directions "
            f"(chance {self.chance:.3f}, noise floor {self.floor:.3f}; in brackets: not resolved; "
            "diagonal: two halves of a network's draws, – where they are too few)"
        )
        lines = [head]
        for result, row, known in zip(self.results, self.overlap, self.resolved, strict=True):
            cells = " ".join(
                "  –   " if math.isnan(value) else f"{value:5.2f} " if clear else f"({value:.2f})"
                for value, clear in zip(row, known, strict=True)
            )
            lines.append(f"  {result.subject:{width}} effective rank {result.effective_rank!r:40}  {cells.rstrip()}")
        return "\n".join([*lines, *(f"  {words}" for words in self.warnings())])


def in_full(number: float) -> str:
    """Three digits, whole numbers in full.

    Example:
        >>> in_full(81.37), in_full(2434.3)
        ('81.4', '2,434')
    """
    return significant(number) if abs(number) < 999.5 else f"{number:,.0f}"


def noise_floor(leading: int, size: int, exceeded: float = 0.001) -> float:
    """The overlap that 999 of 1,000 pairs of independent, uniformly random subspaces stay below, or all but another share.

    Definition:
        The overlap ``‖UVᵀ‖²/k`` of two random subspaces of dimension k in D dimensions has the mean k/D and the variance
        ``2(D − k)²/(D²(D − 1)(D + 2))``. It is taken as Beta distributed with these moments, which it is for k = 1. So do leading
        directions overlap that are noise: those of networks without preferred directions, from independent draws. More than D/2
        directions overlap as what they leave over does, ``tr PQ = 2k − D + tr P⊥Q⊥``, which holds exactly where the Beta law does not.

    Example:
        >>> round(noise_floor(10, 1024), 4), round(noise_floor(1, 2), 4)
        (0.0145, 1.0)
    """
    if leading >= size:
        return 1.0
    if 2 * leading > size:
        left = size - leading
        return (leading - left + left * noise_floor(left, size, exceeded)) / leading
    mean = leading / size
    variance = 2 * (size - leading) ** 2 / (size**2 * (size - 1) * (size + 2))
    total = mean * (1 - mean) / variance - 1
    from scipy.special import betainccinv

    return float(betainccinv(mean * total, (1 - mean) * total, exceeded))


def side_by_side(results: Sequence[CovarianceResult], leading: int = 10) -> ComparedResults:
    """Compare results of one measurement.

    Raises:
        ValueError: If they were taken with different estimators or on different inputs, or ``leading`` is below 1.
    """
    if leading < 1:
        raise ValueError(f"leading must be at least 1 direction, got {leading}. Pass leading=10.")
    estimators = {result.estimator for result in results}
    if len(estimators) > 1:
        listed = "; ".join(f"{result.subject}: {result.estimator}" for result in results)
        raise ValueError(
            f"Compared results must share one estimator, got {listed}. Scan them with the same --estimator."
        )
    first = results[0]
    if other := next((each for each in results if not each.input_axes.laid_out_as(first.input_axes)), None):
        one, two = (f"{each.input_axes.in_words} ({each.subject})" for each in (first, other))
        raise ValueError(
            f"Results must have the same inputs to be compared, got {one} and {two}. Measure them on the same --input, with "
            "the same axes."
        )
    sizes = [
        int(k)
        for k in results[0].similarity_sizes
        if k <= leading
        and all(k <= np.count_nonzero(r.eigenvalues) for r in results)  # directions of eigenvalue 0 are arbitrary
    ]
    count = max(sizes, default=1)
    overlap = np.array([[common_directions(one, two, count) for two in results] for one in results])
    halves = [dict(zip(result.similarity_sizes.tolist(), result.similarity, strict=True)) for result in results]
    np.fill_diagonal(overlap, [half.get(count, math.nan) for half in halves])
    size = results[0].size
    floor = noise_floor(count, size)
    return ComparedResults(
        results[0].measurement, estimators.pop(), tuple(results), count, overlap, count / size, floor
    )


def compared(results: Sequence[Result], leading: int = 10) -> list[ComparedResults]:
    """Group results by measurement and compare each group of two or more.

    Raises:
        ValueError: If results of one measurement were taken with different estimators or on different input sizes.
    """
    groups: dict[str, list[Any]] = {}
    for result in results:
        if (beside := result.story().compared) is not None and beside.overlaid is not None:
            groups.setdefault(result.measurement, []).append(result)
    return [side_by_side(group, leading) for group in groups.values() if len(group) > 1]


def overlaid(group: Sequence[CovarianceResult], labels: Sequence[str], trained: bool, dark: bool) -> dict[str, Figure]:
    """Spectra and overlaps of results that may be compared; along a training, the effective rank first."""
    from biascope.results import draw

    curves = {
        label: (result.eigenvalues, result.eigenvalue_errors, result.held_out)
        for label, result in zip(labels, group, strict=True)
    }
    traces = {label: result.trace.value for label, result in zip(labels, group, strict=True)}
    draws = min(result.draws * result.inputs for result in group)
    spectra = draw.spectrum(curves, draws=draws, size=group[0].size, traces=traces, dark=dark)
    table = side_by_side(group)
    overlap = draw.overlap(table.overlap, labels, resolved=table.resolved, dark=dark)
    overlap.set_label(
        " ".join(
            [
                f"1 means that two networks share their {table.leading} leading directions.",
                f"Chance is {significant(table.chance, 2)}, the noise floor is {significant(table.floor, 2)}.",
                "The diagonal compares the two halves of a network's own draws. Numbers in brackets do not exceed the noise.",
                *table.warnings(),
            ]
        )
    )
    pictures = {
        "spectra": draw.captioned("Spectra on one scale", spectra),
        "overlap": draw.captioned(f"Overlap of the {table.leading} leading directions", overlap),
    }
    pictures |= _shares_beside(group, labels, dark)
    if trained:  # the first thing to see
        ranks = [(result.effective_rank.value, result.effective_rank.standard_error) for result in group]
        values, errors = np.array(ranks).T
        along = draw.along(values, errors, labels, quantity="effective rank", dark=dark)
        pictures = {
            "effective_rank_along_training": draw.captioned("Effective rank during training", along),
            **pictures,
        }
    return pictures


def _shares_beside(group: Sequence[CovarianceResult], labels: Sequence[str], dark: bool) -> dict[str, Figure]:
    """Shares of the places of each axis that all results have, one curve for each."""
    from biascope.results import draw

    divided = [{(shares.name, shares.labels): shares for shares in result.shares() if shares.bars} for result in group]
    found = {}
    for key, first in divided[0].items():
        if all(key in each for each in divided):
            curves = {label: each[key].each() for label, each in zip(labels, divided, strict=True)}
            ordered = first.ordered
            figure = draw.shares_beside(
                curves, first.isotropic, first.labels, along=first.along, ordered=ordered, dark=dark
            )
            found[first.key] = draw.captioned(first.caption, figure)
    return found


def concluded(group: Sequence[CovarianceResult], labels: Sequence[str], trained: bool) -> list[Sentence]:
    """What a comparison concludes beside the numbers, each sentence with the picture that shows it."""
    table = side_by_side(group)
    if trained:
        return table.along_training(labels)
    return table.located(labels) + [Sentence(words, "overlap") for words in table.overlaps_in_words(labels)]


@under_torch_defaults
def common_directions(first: CovarianceResult, second: CovarianceResult, leading: int) -> float:
    """Subspace similarity of the leading directions of any two results on the same input space.

    Raises:
        ValueError: If their inputs differ in size, or one has fewer directions.
    """
    if first.size != second.size:
        raise ValueError(
            f"Results must have the same input size to be compared, got {first.size} ({first.subject}) and "
            f"{second.size} ({second.subject}). Measure them on the same --input."
        )
    one, two = (torch.from_numpy(result.directions[:leading]) for result in (first, second))
    return subspace_similarity(one, two)
