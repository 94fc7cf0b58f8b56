"""WHAT: the patterns that channels of trained pattern networks detect, against label statistics."""

# r runs · P patterns · m samples · k half the channels

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from typing_extensions import override

from biascope.measures.pattern_statistics import pictures as pictures
from biascope.results.draw import captioned
from biascope.results.estimate import SHARE, Number, over, proportion
from biascope.results.result import Result
from biascope.results.story import Step, Story, model_word
from biascope.results.wording import significant
from biascope.tasks.pattern_ratios import Sides, leanings, sample_size_bound, smallest_constant
from biascope.tasks.patterns import PatternDistribution

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAWS = {"uniform": "D_u", "paired": "D_vc", "biased": "D_p"}


@dataclass(frozen=True, repr=False)
class PatternStatistics(Result):
    """Results of several independent trainings on patterns; pattern 0 marks the label +1, pattern 1 the label −1.

    Attributes:
        statistics: s_i, the mean over training samples of y·1{pattern i in x}.
        positive: Detection ratios ``M⁺_u(i)/M⁺_w(1)`` in positive inputs; nan at pattern 1.
        negative: ``M⁻_w(i)/M⁻_u(2)`` in negative inputs; nan at pattern 0.
        detectors: Channels that detect a pattern: those that are added in positive inputs, those subtracted there, then the
            same in negative inputs.
        masses: Sums of their responses.
        margins: Lower bounds on y·N(x) over all inputs of the label +1, and of −1: above 0 they certify zero test error.
        small: Whether all ratios are below 1/P, the paper's condition.
        epochs: Passes over the samples.
        losses: Hinge loss of the last.
        converged: Whether it was below the tolerance.
        train_errors: Share of training samples on the wrong side.
        test_errors: Share of fresh samples on the wrong side.
        law: Distribution of the samples.
        per_input: n, patterns of an input.
        samples: m.
        k: Half the number of channels.
        slope: b.
        bias: p, of the biased law.
    """

    statistics: np.ndarray
    positive: np.ndarray
    negative: np.ndarray
    detectors: np.ndarray
    masses: np.ndarray
    margins: np.ndarray
    small: np.ndarray
    epochs: np.ndarray
    losses: np.ndarray
    converged: np.ndarray
    train_errors: np.ndarray
    test_errors: np.ndarray
    law: str
    per_input: int
    samples: int
    k: int
    slope: float
    bias: float = 0.5

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("statistics", "positive", "negative"), ("run", "pattern")),
        **dict.fromkeys(("detectors", "masses"), ("run", "group", "pattern")),
        "margins": ("run", "label"),
        **dict.fromkeys(("small", "epochs", "losses", "converged", "train_errors", "test_errors"), ("run",)),
    }

    @property
    @override
    def subject(self) -> str:
        patterns = self.statistics.shape[1]
        return f"{2 * self.k:,} channels on {self.samples:,} inputs of {self.per_input} of {patterns} patterns ({LAWS[self.law]})"

    @property
    def ratios(self) -> Sides:
        """Both kinds of ratios as tensors."""
        return Sides(torch.from_numpy(self.positive), torch.from_numpy(self.negative))

    def constants(self, slope: float | None = None) -> np.ndarray:
        """c* of each run at a slope b, by default that of the measurement."""
        chosen = self.slope if slope is None else slope
        statistics = torch.from_numpy(self.statistics)
        return np.asarray(smallest_constant(self.ratios, statistics, self.samples, slope=chosen))

    @property
    def certified(self) -> np.ndarray:
        """Which runs are right on every input for certain (equation 3)."""
        return np.asarray((self.margins > 0).all(1))

    @override
    def headline(self) -> dict[str, Number]:
        constants, known = self.constants(), {}
        if np.isfinite(constants).all():
            known = {"psi_constant": over(constants, within=(0, math.inf)).named("c*")}
        return {
            **known,
            "runs_below_one": _share_of_runs(constants < 1, "runs with c* below 1"),
            "runs_certified": _share_of_runs(self.certified, "runs certified to have no errors"),
            "runs_with_small_ratios": _share_of_runs(self.small, "runs with all ratios below 1/P"),
            "test_error": over(self.test_errors, within=(0, 1)).named("test error", SHARE),
            "runs_converged": _share_of_runs(self.converged, "runs that converged"),
        }

    @override
    def sentence(self) -> str:
        constants, runs, patterns = self.constants(), len(self.epochs), self.statistics.shape[1]
        held, worst, lost = int((constants < 1).sum()), float(constants.max()), int((~np.isfinite(constants)).sum())
        words = f"Pattern statistics govern {held} of {runs} trainings of {self.subject}: c* is below 1 at slope b = {self.slope:g}"
        words += f" ({f'in {lost}, a label has no detector of its own pattern' if lost else f'largest {significant(worst)}'})"
        words += f". {int(self.certified.sum())} of {runs} trainings are certified to have no errors on any input"
        if not self.converged.all():
            words += f". {int((~self.converged).sum())} did not converge"
        unbiased = PatternDistribution(self.law, self.per_input, patterns, self.bias).unbiased
        if unbiased and not lost:
            needed = sample_size_bound(patterns, slope=max(1, self.slope), constant=max(1, worst)).samples
            words += f". Theorem 6.1 guarantees zero error from {needed:,} samples; these runs have {self.samples:,}"
        return words + "."

    @override
    def story(self) -> Story:
        return Story(
            meaning=(
                "A constant c* below 1 means that the network relies on a pattern only as much as the pattern goes with the "
                "label, so that errors stay rare on new inputs. The theory holds for distributions of orthogonal patterns, "
                "not for natural images."
            ),
            next_steps=[
                Step(
                    "Look at the patterns that a network of your own detects.",
                    f"biascope patterns {model_word(self.subject)} --patches DATASET",
                )
            ],
        )

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        lean = leanings(torch.from_numpy(self.statistics))
        shown: dict[str, Figure] = {}
        for side, own, ratio in (("positive", 0, self.positive), ("negative", 1, self.negative)):
            kinds = {"the label's own": np.array([own]), "spurious": np.arange(2, ratio.shape[1])}
            leans = getattr(lean, side).numpy()
            dots = {name: (leans[:, places], ratio[:, places]) for name, places in kinds.items()}
            if np.isfinite(leans + ratio).any():
                shown[f"ratios_{side}"] = captioned(
                    f"Ratios of patterns in {side} inputs against their association with the other label",
                    pictures.ratios_figure(dots, slope=self.slope, ratio=f"{side} detection ratio", dark=dark),
                )
        constants = self.constants()
        if (known := ~np.isnan(constants)).any():
            shown["constants"] = captioned(
                "The smallest constant c* of each run", pictures.constants_figure({"c*": constants[known]}, dark=dark)
            )
        return shown


def _share_of_runs(held: np.ndarray, label: str) -> Number:
    return proportion(float(held.mean()), len(held)).named(label, SHARE)
