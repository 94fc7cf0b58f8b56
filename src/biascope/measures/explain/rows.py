"""Rows: the quantities of a bias card that one backward pass and a few forward passes of each draw give."""

# T draws · n inputs · D input size · g parts of a division

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from biascope.derivatives.draw_statistics import Drawn
from biascope.derivatives.one_pass import in_passes
from biascope.derivatives.waves import line_power, slope_along
from biascope.families.network import Network
from biascope.measures.covariance.shares import LOW_BANDS
from biascope.results.axes import InputAxes
from biascope.results.estimate import SHARE
from biascope.tasks.divisions import Division, divisions_of
from biascope.tasks.probe import smoothed

POINTS = 32  # on a line
SMOOTH = 8  # smooth inputs of each draw
_SHORTEST = 8  # pixels or steps along which a shift by one is a small one
_LOW_ALONG_TIME = 0.25  # of all frequencies

Readings = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class CardNumber:
    """A quantity of the card.

    Attributes:
        key: In tables and programs.
        label: In words, with its article: "the share of low frequencies".
        unit: As of a :class:`~biascope.results.estimate.Number`.
        of: The quantity, from readings of all draws and which of them to take.
    """

    key: str
    label: str
    unit: str
    of: Callable[[Readings, np.ndarray], float]


@dataclass(frozen=True, eq=False)
class Reader:
    """What is read of each draw, and the rows that come of it.

    Attributes:
        axes: What one input is.
        white: Whether the numbers of an input are independent, so that smooth inputs can be made of them.
        classes: Outputs that are classes; 0 if they are none.
        divisions: Of the gradient's energy.
    """

    axes: InputAxes
    white: bool
    classes: int
    divisions: tuple[Division, ...]

    @staticmethod
    def of(axes: InputAxes, outputs: tuple[int, ...], white: bool) -> Reader:
        """The reader of a network with such inputs and outputs."""
        long = [length for length in outputs if length > 1]
        wanted = ("spatial frequency", "orientation", "frequency", "time", "token")
        divisions = tuple(each for each in divisions_of(axes) if each.name in wanted)
        return Reader(axes, white, long[0] if len(long) == 1 else 0, divisions)

    @property
    def shifted(self) -> tuple[int, ...]:
        """Axes along which inputs are shifted; none where that is not measured."""
        long = all(self.axes.shape[place] >= _SHORTEST for place in self.axes.shifted)
        return self.axes.shifted if long and self.white else ()

    @property
    def numbers(self) -> int:
        """How many numbers are read beside the mean gradients."""
        return sum(len(each.labels) for each in self.divisions) + 5

    def read(self, drawn: Drawn, x: Tensor) -> Tensor:
        """Of one draw: energies of parts, shift, line, favourite class; then the mean gradients of both halves of the inputs."""
        gradients = drawn.gradients(x, lambda found: found).flatten(1)
        one, two = gradients[0::2].mean(0), gradients[1::2].mean(0)
        energies = [_energies(division, one, two) for division in self.divisions]
        others = torch.tensor(
            [*self._shift(drawn, x), *_line(drawn, x), self._favourite(drawn, x)], dtype=torch.float64
        )
        return torch.cat([*(each.cpu() for each in energies), others, one.cpu(), two.cpu()])

    def _shift(self, drawn: Drawn, x: Tensor) -> tuple[float, float]:
        """Mean squared change of the output under a shift by one, and its variance over inputs."""
        if not self.shifted:
            return 0.0, 0.0
        smooth = smoothed(x[:SMOOTH].double(), self.shifted)
        gradients = drawn.gradients(smooth.to(x), lambda found: found).reshape(smooth.shape)
        changes = [(gradients * slope_along(smooth, place + 1)).flatten(1).sum(1) for place in self.shifted]
        return float(torch.stack(changes).square().mean()), float(outputs(drawn, smooth.to(x)).var(0).sum())

    def _favourite(self, drawn: Drawn, x: Tensor) -> float:
        """The share of the inputs for which a draw's favourite class has the largest output."""
        if self.classes < 2:
            return 0.0
        found = outputs(drawn.at(dataclasses.replace(drawn.network, readout=None)), x)
        return float(found.argmax(1).bincount().max()) / len(x)

    def readings(self, found: Tensor) -> dict[str, Tensor]:
        """What is kept of all draws: ``parts`` (T, g), ``numbers`` (T, 5), ``traces`` (T,) and ``pairs`` (T, T)."""
        parts, others, gradients = torch.tensor_split(found, (self.numbers - 5, self.numbers), dim=1)
        one, two = gradients.chunk(2, dim=1)
        cross = one @ two.T
        # tr CᵢCⱼ of Cᵢ = ½(aᵢbᵢᵀ + bᵢaᵢᵀ)
        pairs = ((one @ one.T) * (two @ two.T) + cross * cross.T) / 2
        return {"parts": parts.clone(), "numbers": others.clone(), "traces": cross.diagonal().clone(), "pairs": pairs}

    def rows(self) -> list[CardNumber]:
        """The rows that suit these inputs and outputs."""
        found, start = [], 0
        for division in self.divisions:
            at = start + np.arange(len(division.labels))
            start += len(division.labels)
            if division.name == "spatial frequency":
                found.append(
                    CardNumber("low_frequencies", "the share of low frequencies", SHARE, _share(at, LOW_BANDS))
                )
            elif division.name == "orientation":
                found.append(
                    CardNumber("stripes_along_axes", "the share of stripes along the axes", SHARE, _share(at, (0, 2)))
                )
            elif division.name == "frequency":
                low = range(math.ceil(_LOW_ALONG_TIME * len(at)))
                found.append(CardNumber("slow_changes", "the share of slow changes in time", SHARE, _share(at, low)))
            else:
                label = f"the effective share of {division.name} positions"
                found.append(CardNumber("positions", label, SHARE, _spread_over(at)))
        found.append(CardNumber("effective_rank", "the effective rank per input size", SHARE, self._rank))
        if self.shifted:
            found.append(CardNumber("shift_error", "the shift error", "", _root_ratio(0, 1)))
        found.append(CardNumber("complexity", "the complexity", "", _ratio(2, 3)))
        if self.classes > 1:
            found.append(CardNumber("favourite_class", "the share of the favourite class", SHARE, _mean(4)))
        return found

    def _rank(self, readings: Readings, taken: np.ndarray) -> float:
        """(tr C)² / tr C² by pairs of different draws, divided by the size of an input."""
        traces, pairs = readings["traces"][taken], readings["pairs"][np.ix_(taken, taken)]
        square = traces.sum() ** 2 - np.square(traces).sum()
        return _divided(square, (pairs.sum() - np.trace(pairs)) * math.prod(self.axes.shape))


def outputs(drawn: Drawn, x: Tensor) -> Tensor:
    """Outputs ``(n, p)`` in float64, by the very calls that a backward pass makes: :meth:`Drawn.__call__` pools by other ones."""

    def found(network: Network, inputs: Tensor) -> Tensor:
        return network(inputs).reshape(len(inputs), -1)

    with torch.no_grad():
        return in_passes(found, drawn.at_once)(drawn.network, x).double()


def _energies(division: Division, one: Tensor, two: Tensor) -> Tensor:
    """The energy of the mean gradient in each part, without the noise of finitely many inputs."""
    rows = torch.stack([one, two])
    waves = rows if division.coefficients is None else division.coefficients(rows)
    product = waves[0] * waves[1].conj()
    return division.summed(product.real if product.is_complex() else product)


def _line(drawn: Drawn, x: Tensor) -> tuple[float, float]:
    """Of the output along the line between the first two inputs: Σ (k/2)·c_k² and Σ c_k² on k half cycles."""
    t = ((torch.arange(POINTS, dtype=torch.float64) + 0.5) / POINTS).to(x).reshape(-1, *[1] * (x.dim() - 1))
    values = outputs(drawn, x[:1] * (1 - t) + x[1:2] * t)[:, 0].cpu().numpy()
    power = line_power(values - values.mean())
    return float(power @ (np.arange(1, POINTS) / 2)), float(power.sum())


def _divided(above: float, below: float) -> float:
    return float(above / below) if below > 0 else math.nan


def _share(at: np.ndarray, chosen: Sequence[int]) -> Callable[[Readings, np.ndarray], float]:
    def share(readings: Readings, taken: np.ndarray) -> float:
        energies = readings["parts"][taken][:, at].sum(0)
        return _divided(energies[list(chosen)].sum(), energies.sum())

    return share


def _spread_over(at: np.ndarray) -> Callable[[Readings, np.ndarray], float]:
    def spread(readings: Readings, taken: np.ndarray) -> float:
        energies = np.maximum(readings["parts"][taken][:, at].sum(0), 0.0)
        return _divided(energies.sum() ** 2, np.square(energies).sum() * len(at))

    return spread


def _ratio(above: int, below: int) -> Callable[[Readings, np.ndarray], float]:
    def ratio(readings: Readings, taken: np.ndarray) -> float:
        sums = readings["numbers"][taken].sum(0)
        return _divided(sums[above], sums[below])

    return ratio


def _root_ratio(above: int, below: int) -> Callable[[Readings, np.ndarray], float]:
    ratio = _ratio(above, below)
    return lambda readings, taken: math.sqrt(max(ratio(readings, taken), 0.0))


def _mean(place: int) -> Callable[[Readings, np.ndarray], float]:
    return lambda readings, taken: float(readings["numbers"][taken, place].mean())
