"""Memory: how far back the steps lie that move a network's output, and which frequencies along time it responds to."""

# T draws · n inputs of each · D input size

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from biascope.derivatives.draw_statistics import Drawn, draw_statistics
from biascope.families.family import Family
from biascope.families.readout import read_out
from biascope.kernels.selftest import derivative_checks
from biascope.measures.covariance.shares import PlaceShares, Shares, shares_of
from biascope.results.atlas import Placement
from biascope.results.axes import Axis, InputAxes
from biascope.results.draw import captioned
from biascope.results.estimate import SHARE, Estimate, Number, agree, jackknife
from biascope.results.registry import measurement
from biascope.results.result import Result
from biascope.results.story import Compared, Sentence, Step, Story, model_word
from biascope.runs.run import Run
from biascope.tasks.divisions import Division, divisions_of
from biascope.tasks.probe import Probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Memory(Result):
    """How the squared gradient of an output is shared among steps and among frequencies.

    Attributes:
        parts: Steps (or tokens), then frequencies along time, such as ``"time: 3"``.
        energies: Mean squared gradient of each draw in each part.
        isotropic: The share of each part if no direction were preferred.
        input_shape: Shape of one input.
        position: Of how many rows of outputs the last one is read; 0 where the network gives one for each input.
    """

    parts: tuple[str, ...]
    energies: np.ndarray
    isotropic: np.ndarray
    input_shape: tuple[int, ...]
    position: int = 0

    row_of_card: ClassVar[bool] = True
    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {"energies": ("draw", "part"), "isotropic": ("part",)}

    @property
    def input_axes(self) -> InputAxes:
        """What the axes of an input are."""
        told = self.provenance.get("family", {}).get("axes", [])
        return InputAxes.of([Axis.from_dict(each) for each in told], tuple(self.input_shape))

    @functools.cached_property
    def by_step(self) -> PlaceShares:
        """The share of each step, or token."""
        found = shares_of(self.parts, self.energies, self.isotropic, self.input_axes)
        return next(shares for shares in found if isinstance(shares, PlaceShares))

    @functools.cached_property
    def by_frequency(self) -> Shares | None:
        """The share of each frequency along time; ``None`` of tokens, and where there are too few steps."""
        found = shares_of(self.parts, self.energies, self.isotropic, self.input_axes)
        return found[1] if len(found) > 1 else None

    @property
    def read(self) -> int:
        """The step from which lags are counted: the one that the readout looks at where it is known, else the last one."""
        length, read = len(self.by_step.labels), self.by_step.axis.read
        return length - 1 if read is None else read % length

    @property
    def lags(self) -> np.ndarray:
        """How far each step lies from that one."""
        return np.abs(np.arange(len(self.by_step.labels)) - self.read)

    def within(self, lag: int) -> Estimate:
        """The share of the sensitivity on steps at most so far back."""
        return self.by_step.share(np.flatnonzero(self.lags <= lag).tolist())

    def reach(self, share: float) -> Estimate:
        """The least lag within which such a share of the sensitivity lies.

        Its interval has the lags at which the interval of the share there contains it.
        """
        found = [self.within(lag) for lag in range(int(self.lags.max()) + 1)]
        enough = share - 1e-9
        value, low, high = (
            next((lag for lag, end in enumerate(ends) if end >= enough), len(ends) - 1)
            for ends in (
                [each.value for each in found],
                [each.high for each in found],
                [each.low for each in found],
            )
        )
        if len(self.energies) < 3:
            return Estimate(float(value))
        return Estimate(float(value), float("nan"), float(min(low, value)), float(max(high, value)))

    @property
    def mean_lag(self) -> Estimate:
        """The mean lag of the sensitivity: how far back it lies on average."""
        return _mean(self.lags, self.by_step.energies).within(0.0, float(self.lags.max()))

    @property
    def even_lag(self) -> Estimate:
        """The mean lag if all steps counted alike."""
        return Estimate.exact(float(self.lags.mean()))

    @property
    def lag_of_half(self) -> Estimate:
        """The lag within which half of the sensitivity lies."""
        return self.reach(0.5)

    @property
    def lag_of_most(self) -> Estimate:
        """The lag within which 90 % of the sensitivity lies."""
        return self.reach(0.9)

    @property
    def cycles(self) -> np.ndarray:
        """Each frequency, as a share of the highest that steps can show."""
        assert self.by_frequency is not None
        return 2 * np.arange(len(self.by_frequency.labels)) / len(self.by_step.labels)

    @property
    def mean_frequency(self) -> Estimate:
        """The mean frequency of the response, as a share of the highest; 1/2 if all are alike."""
        assert self.by_frequency is not None
        return _mean(self.cycles, self.by_frequency.energies).within(0.0, 1.0)

    @property
    def response(self) -> np.ndarray:
        """Mean squared response to a small sinusoid of each frequency, relative to its mean over all directions."""
        assert self.by_frequency is not None
        values = np.array([each.value for each in self.by_frequency.each()])
        return np.asarray(values / self.by_frequency.isotropic)

    @override
    def headline(self) -> dict[str, Number]:
        noun = self.by_step.axis.noun(2)
        numbers = {
            "mean_lag": self.mean_lag.named("how far back the sensitivity lies on average", noun),
            "even_lag": self.even_lag.named(f"the same if all {noun} counted alike", noun),
            "lag_of_half": self.lag_of_half.named("lag within which half of the sensitivity lies", noun),
            "lag_of_most": self.lag_of_most.named("lag within which 90 % of the sensitivity lies", noun),
        }
        if self.by_frequency is not None:
            label = "mean frequency of the response, of the highest"
            numbers["mean_frequency"] = self.mean_frequency.named(label, SHARE)
        return numbers

    @override
    def placements(self) -> list[Placement]:
        if self.read != len(self.by_step.labels) - 1:  # lags of the atlas are counted from the last step
            return []
        found = [Placement("mean_lag", self.mean_lag, self.input_axes)]
        if self.by_frequency is not None:
            found.append(Placement("mean_frequency", self.mean_frequency, self.input_axes))
        return found

    @override
    def sentence(self) -> str:
        return " ".join(text for text, _ in (self._reached(), self._compared(), *self._of_frequency()))

    def _sentences(self) -> list[Sentence]:
        most, axis = self.lag_of_most.value, self.by_step.axis
        least = Sentence(f"90 % of it is at most {most:.0f} {axis.noun(int(most))} away.", self.by_step.key)
        return [self._reached(), least, self._compared(), *self._of_frequency()]

    def _reached(self) -> Sentence:
        mean, axis, count = self.mean_lag, self.by_step.axis, len(self.by_step.labels)
        known = {count - 1: "before the last", 0: "after the first"}
        place = known.get(self.read, f"from {axis.noun(1)} {self.read + 1}, which is read,")
        digits = 2 if mean.value < 2 else 1
        value, low, high = (f"{number:.{digits}f}" for number in (mean.value, mean.low, mean.high))
        ends = "" if math.isnan(mean.low) else f" (95 % CI {low} to {high})"
        words = f"On average, the sensitivity of {self.subject} lies {value} {axis.noun(2)}{ends} {place} of {count}."
        return Sentence(words, self.by_step.key)

    def _compared(self) -> Sentence:
        mean, even, noun = self.mean_lag, self.even_lag.value, self.by_step.axis.noun(2)
        far = mean.low > even
        if math.isnan(mean.low) or mean.contains(even):
            words = f"An even spread would lie as far, at {even:.1f}."
        elif self.read == len(self.lags) - 1:
            words = f"An even spread would lie at {even:.1f}, so the {'first' if far else 'last'} {noun} count most."
        else:
            words = f"An even spread would lie at {even:.1f}, so {noun} {'far from' if far else 'near'} it count most."
        return Sentence(words, self.by_step.key)

    def _of_frequency(self) -> list[Sentence]:
        if self.by_frequency is None:
            return []
        mean = self.mean_frequency
        if math.isnan(mean.low) or mean.contains(0.5):
            return []
        which = "slow" if mean.high < 0.5 else "fast"
        told = f"{100 * mean.value:.0f} % of the highest (95 % CI {100 * mean.low:.0f} to {100 * mean.high:.0f} %)"
        words = f"It responds more to {which} changes: the mean frequency is {told}, an even response has 50 %."
        return [Sentence(words, self.by_frequency.key)]

    @override
    def story(self) -> Story:
        where = self.provenance.get("probe", "the inputs")
        read = f" Of {self.position} rows of outputs, the last one is read." if self.position else ""
        noun = self.by_step.axis.noun(1)
        trained = "" if self.at_given_weights else " Training can change it."
        model = model_word(self.subject, self.provenance.get("command", ""))
        other = Step("Compare with trained weights.", f"biascope measure memory {model} --weights FILE")
        return Story(
            sentences=self._sentences(),
            meaning=(
                f"Measured at {where}.{read} Sensitivity is the mean squared slope of the output by each {noun}, whatever its sign. A "
                f"small lag means that labels which depend on {noun}s further away hardly show in the output.{trained} It does not say "
                f"that a {noun} with a large share is useful."
            ),
            next_steps=() if self.at_given_weights else (other,),
            compared=Compared.first_number(
                self,
                "the mean lag",
                f"outputs depend on {noun}s further back",
                unit=f"{noun}s",
                alike=f"read at {noun} {self.read + 1} of {len(self.by_step.labels)}",
            ),
        )

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        from biascope.results import draw

        found = {}
        for shares in filter(None, (self.by_step, self.by_frequency)):
            style: dict[str, Any] = {"along": shares.along, "ordered": True, "dark": dark}
            figure = draw.shares(shares.each(), shares.isotropic, shares.labels, **style)
            found[shares.key] = captioned(shares.caption, figure)
        return found


def _mean(values: np.ndarray, energies: np.ndarray) -> Estimate:
    """The mean of a number of each part, weighted with its energy, with a jackknife interval over draws."""
    part, whole = energies @ values, energies.sum(1)
    rest = whole.sum() - whole
    found = float(part.sum() / whole.sum())
    if len(whole) < 3 or not bool((rest > 0).all()):
        return Estimate(found)
    left_out = (part.sum() - part) / rest
    if agree(left_out):  # all energy on one part: what is left of a spread is rounding
        return Estimate(round(found, 12), 0.0, round(found, 12), round(found, 12))
    return jackknife(found, left_out.tolist())


def suits(axes: InputAxes) -> bool:
    """Whether inputs have steps in time or tokens, more than one."""
    return axes.sequence is not None and axes.shape[axes.sequence] > 1


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    def build() -> nn.Module:
        return nn.Sequential(nn.Conv1d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 1))

    family = Family.initialised(build, name="small CNN")
    return (family, Probe.gaussian((2, 10), num=3, fresh=True)), {"draws": 24}


@measurement(
    title="Memory and frequency response",
    paper="response2025",
    result=Memory,
    example=_example,
    probe={"num": 8, "fresh": True},
    checks=derivative_checks(lambda settings: ("input",), half=True),
)
def memory(
    family: Family,
    probe: Probe,
    *,
    draws: int = 200,
    readout: str = "first",
    seed: int = 0,
    run: Run | None = None,
) -> Memory:
    """How far back the steps lie that move a network's output, and which frequencies along time it responds to.

    Definition:
        With ``s_t = E ‖∂f/∂x_t‖²`` over inputs and weights, and d_t the distance of step t from the one that is read, the mean lag is
        ``Σ d_t s_t / Σ s_t``. The response to frequency k is ``E ‖Σ_t e^{−2πikt/T} ∂f/∂x_t‖² / T``, the mean squared slope along a
        small sinusoid over its phases.

    Squares come before means: slopes of both signs count. The step that is read is the last one unless the model says which. Of a
    row of outputs for each step, the last one is read.

    Estimated from exact gradients, with jackknife intervals over draws; over sets of inputs for one network. The lag within which
    half lies has an interval of all lags at which the interval of the share contains one half.

    Args:
        family: Networks and the law of their weights.
        probe: Inputs of each draw, best sampled afresh.
        draws: Number of networks (of input sets, for one network), at least 2.
        readout: Which scalar of several outputs.
        seed: Random seed for the weights.
        run: Folder, device, precision.

    Returns:
        The shares of steps and of frequencies.

    Raises:
        ValueError: If inputs have no steps or tokens of real numbers, or no output changes with them.

    Example:
        >>> family = Family.initialised(lambda: nn.Sequential(nn.Conv1d(1, 1, 3), nn.Flatten(), nn.Linear(8, 1)), name="even")
        >>> result = memory(family, Probe.gaussian((1, 10), num=2, fresh=True), draws=50)
        >>> result.even_lag.value, len(result.by_frequency.labels), result.mean_lag.contains(4.5)
        (4.5, 6, True)

    Reference:
        Chen, Chen (2025). Aligning inductive bias for data-efficient generalization in state space models. arXiv 2509.20789.
    """
    run = run or Run()
    few = probe.few(run)
    if not isinstance(few, Tensor) or not few.is_floating_point():
        raise ValueError(
            f"Inputs of {family.name} must be one tensor of real numbers, got {probe.description}. Pass embeddings of tokens."
        )
    axes = InputAxes.of(family.axes_at(few, run), probe.input_shape)
    divisions = _divisions(family, axes)
    rows = axes.rows_in(tuple(family.first_outputs(few, run).shape[1:]))
    statistic = functools.partial(_energies, divisions=divisions, last=readout if rows else None)
    energies = draw_statistics(
        family,
        probe,
        statistic,
        draws=draws,
        readout=None if rows else readout,
        seed=seed,
        run=run,
        label=f"{family.name}: memory",
        divisions=[division.labels for division in divisions],
    ).numpy()
    if not energies.sum() > 0:
        raise ValueError(
            f"The output of {family.name} must change with its input, but all gradients are zero. Check its initialisation."
        )
    parts = tuple(f"{division.name}: {label}" for division in divisions for label in division.labels)
    even = np.concatenate([division.isotropic.numpy() for division in divisions])
    result = Memory(parts, energies, even, axes.shape, rows)
    if dead := int((energies.sum(1) == 0).sum()):
        result = result.warned(
            f"{dead} of {len(energies)} draws have no gradient at any input. They count with weight zero."
        )
    return result


def _divisions(family: Family, axes: InputAxes) -> list[Division]:
    """By step, and by frequency along time.

    Raises:
        ValueError: If there are no steps, or too many.
    """
    place = axes.sequence
    if place is None or not suits(axes):
        raise ValueError(
            f"Inputs of {family.name} must have several steps or tokens, got {axes.in_words}. Name the axes, such as --axes "
            "time,feature."
        )
    name = axes.names[place]
    found = [division for division in divisions_of(axes) if division.name in (name, "frequency")]
    if not found or found[0].name != name:
        raise ValueError(
            f"Inputs of {family.name} must have at most 4,096 {axes.axes[place].noun(2)}, got {axes.shape[place]:,}. Pass shorter "
            "ones with --input."
        )
    return found


def _energies(drawn: Drawn, x: Tensor, *, divisions: Sequence[Division], last: str | None) -> Tensor:
    """Mean squared gradient of a draw in each part of each division."""

    def scalar(outputs: Tensor) -> Tensor:
        return outputs if last is None else read_out(outputs[:, -1], last)

    rows = drawn.gradients(x, scalar).flatten(1)
    found = []
    for division in divisions:
        turned = rows if division.coefficients is None else division.coefficients(rows)
        found.append(division.summed(turned.abs().square().mean(0)))
    return torch.cat(found)
