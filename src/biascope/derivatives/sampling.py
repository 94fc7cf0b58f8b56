"""What is drawn, and how gradients are computed: settings that travel together from the command line to every measurement."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # command lines are read without torch
    from biascope.runs.run import Run

DRAWS, FEW_DRAWS = 400, 100  # networks to draw, and of those that are dear; expectations are the same, intervals wider
DEAR = {"cpu": 1e8, "cuda": 1e11}  # operations of a forward pass from which on a network is dear on that kind of device
ESTIMATORS = ("difference", "exact", "mixed", "mixed_difference")  # of the directions at initialisation


@dataclass(frozen=True)
class Sampling:
    """What is drawn and how gradients are computed, the same for every measurement of a scan.

    Attributes:
        estimator: How to compute the published anisotropy directions, ``"difference"``, ``"exact"``, ``"mixed"`` …; ``None`` leaves
            them out. With trained weights: how to compute the gradients of their geometry, exactly by default.
        step: Half width of the differences.
        draws: Networks to draw; ``None`` for 400, or 100 if a forward pass is slow.
        readout: How to reduce several outputs to a scalar.
        seed: Random seed for weights and inputs.
        fixed_seed: Random seed for fixed inputs; by default ``seed``. Compared networks share only these inputs.
    """

    estimator: str | None = None
    step: float = 100.0
    draws: int | None = None
    readout: str = "first"
    seed: int = 0
    fixed_seed: int | None = None

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

    def draws_at(self, operations: float | None, run: Run) -> int:
        """Number of networks to draw: as asked for; else fewer if a forward pass takes many operations."""
        if self.draws is not None:
            return self.draws
        dear = DEAR["cpu" if run.torch_device.type == "cpu" else "cuda"]
        return FEW_DRAWS if (operations or 0.0) >= dear else DRAWS
