"""What is drawn, and how gradients are computed: settings that travel together from the command line to every measurement."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # command lines are read without torch
    from biascope.derivatives.one_pass import OnePass
    from biascope.runs.run import Run

DRAWS = 400  # networks to draw
MEAN_INPUTS = 64  # fresh inputs of each for the mean gradient …
GEOMETRY_INPUTS = 4  # … for the average geometry …
POINT_INPUTS = 16  # … and of each draw where there is one network and only inputs are drawn
#: Smaller amounts for dear networks, as in :class:`Amount`: expectations are the same, intervals are wider.
_FEWER = ((200, 1), (100, 1), (64, 1), (64, 2), (64, 4), (64, 8), (32, 8), (32, 16), (16, 16), (16, 32))
#: Operations that the gradients of a scan take by default on that kind of device, about ten seconds.
_BUDGET = {"cpu": 3e11, "cuda": 8e14}
_BACKWARD = 2  # a gradient takes as many forward passes
_DRAWN = 300  # operations in whose time a weight is drawn
ESTIMATORS = ("difference", "exact", "mixed", "mixed_difference")  # of the directions at initialisation


@dataclass(frozen=True)
class Sampling:
    """What is drawn and how gradients are computed, the same for every measurement of a scan.

    Attributes:
        estimator: How to compute the published anisotropy directions, ``"difference"``, ``"exact"``, ``"mixed"`` …; ``None`` leaves
            them out. With trained weights: how to compute the gradients of their geometry, exactly by default.
        step: Half width of the differences.
        draws: Networks to draw; ``None`` for 400, or fewer of a network that takes many operations.
        minutes: Draw as many as resolve directions, if they fit into this time; ``None`` for the number above.
        readout: How to reduce several outputs to a scalar.
        seed: Random seed for weights and inputs.
        fixed_seed: Random seed for fixed inputs; by default ``seed``. Compared networks share only these inputs.
        least_work: Operations of a pass on which the settings of the card's rows depend at least: those of the largest of compared
            networks, so that all are measured in one way.
    """

    estimator: str | None = None
    step: float = 100.0
    draws: int | None = None
    minutes: float | None = None
    readout: str = "first"
    seed: int = 0
    fixed_seed: int | None = None
    least_work: float = 0.0

    def __post_init__(self) -> None:
        if self.estimator not in (None, *ESTIMATORS):
            known = ", ".join(map(repr, ESTIMATORS))
            raise ValueError(
                f"estimator must be one of {known}, got {self.estimator!r}. Pass estimator='difference', or leave it out."
            )
        if self.step == 0 or not math.isfinite(self.step):
            raise ValueError(
                f"The step h of the difference must be a number other than 0, got {self.step}. Pass step=100."
            )
        if self.draws is not None and self.draws < 2:
            raise ValueError(
                f"draws must be at least 2 to estimate a spread, got {self.draws}. Pass draws=100 or more."
            )

        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ValueError(f"minutes must be a positive number, got {self.minutes:g}. Pass --minutes 5.")
        if self.minutes is not None and self.draws is not None:
            raise ValueError(
                f"Only one of draws and minutes may be given, got {self.draws} and {self.minutes:g}. Leave one of them out."
            )

    def amount(self, one: OnePass | None, weights: int, size: int | None, run: Run) -> Amount:
        """What to draw: as asked for; else as much of the usual amount as fits into a number of operations.

        Nothing is timed, so a repeated command draws the same.

        Args:
            one: What a pass of one input takes; ``None`` where that is not known.
            weights: Of one network.
            size: 1 if inputs alone are drawn.
            run: Device.
        """
        usual = Amount(DRAWS)
        if self.draws is not None:
            return Amount(self.draws)
        budget = _BUDGET["cpu" if run.torch_device.type == "cpu" else "cuda"]
        fewer = (usual, *(Amount(draws, parts) for draws, parts in _FEWER))
        each = 0.0 if one is None else one.work
        fitting = (amount for amount in fewer if amount.operations(each, weights, size) <= budget)
        return next(fitting, fewer[-1])


@dataclass(frozen=True)
class Amount:
    """How much a scan draws.

    Attributes:
        draws: Networks, or sets of inputs of one network.
        parts: Into how many parts the usual number of inputs of each is cut, of which one is taken.
    """

    draws: int
    parts: int = 1

    @property
    def mean_inputs(self) -> int:
        """Inputs of each draw for the mean gradient, of which two halves are compared."""
        return max(2, MEAN_INPUTS // self.parts)

    @property
    def geometry_inputs(self) -> int:
        """Inputs of each draw for the average geometry."""
        return min(GEOMETRY_INPUTS, self.mean_inputs)

    @property
    def point_inputs(self) -> int:
        """Inputs of each draw of one network."""
        return max(1, POINT_INPUTS // self.parts)

    def operations(self, each: float, weights: int, size: int | None) -> float:
        """Operations of the gradients and of drawing, from those of a forward pass of one input."""
        if size == 1:
            return self.draws * self.point_inputs * _BACKWARD * each
        shared = self.mean_inputs == self.geometry_inputs  # the same gradients at the same inputs
        inputs, times = (self.mean_inputs, 1) if shared else (self.mean_inputs + self.geometry_inputs, 2)
        return self.draws * (inputs * _BACKWARD * each + times * weights * _DRAWN)

    def told(self, one: OnePass | None, size: int | None) -> str:
        """A sentence for who expects the usual amount; empty where it is that."""
        if (self.draws, self.parts) == (DRAWS, 1) or one is None:
            return ""
        inputs, usual = (self.point_inputs, POINT_INPUTS) if size == 1 else (self.mean_inputs, MEAN_INPUTS)
        drawn = "sets of inputs" if size == 1 else "networks"
        at = f", each {'of' if size == 1 else 'at'} {inputs} of the usual {usual} inputs" if inputs < usual else ""
        return (
            f"This scan draws {self.draws} of the usual {DRAWS} {drawn}{at}, since one usual draw of this network takes about "
            f"{one.operations * _BACKWARD * usual / 1e9:,.0f} GFLOP. Intervals are wider than usual. --draws {DRAWS} asks for all."
        )
