"""Expected time and memory of a scan."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biascope.derivatives.covariance import GROUPS
from biascope.derivatives.draw_times import DrawTimes, Sketch, sketched
from biascope.derivatives.moments import DENSE_LIMIT
from biascope.derivatives.sampling import Sampling
from biascope.derivatives.spectrum import expected_seconds
from biascope.families.family import Family
from biascope.families.source import builder_of, family_of, usual_shape
from biascope.families.tape import block_size
from biascope.measures.scan import probes
from biascope.results.report import page_seconds
from biascope.runs.rehearsal import slowdown
from biascope.runs.run import Run


@dataclass(frozen=True)
class Cost:
    """Expected time and memory of a measurement.

    Attributes:
        measurement: Its name.
        estimator: How gradients would be taken.
        method: The fastest way so far.
        draws: Networks that would be drawn.
        seconds: Expected time for all draws, the spectra of all and of both halves, and the page.
        memory: Expected bytes for weights and sums.
    """

    measurement: str
    estimator: str
    method: str
    draws: int
    seconds: float
    memory: int


def expected_cost(
    model: Family | Sketch,
    shape: tuple[int, ...],
    sampling: Sampling,
    run: Run | None = None,
    *,
    sketch: Sketch | None = None,
) -> Iterator[Cost]:
    """Expected time and memory of a scan, measurement by measurement.

    Args:
        model: Who; by a sketch alone, the time is rough.
        shape: Shape of one input.
        sampling: What would be drawn.
        run: Device and precision.
        sketch: The size of the network, where it is known already.
    """
    run = run or Run()
    times, slower, size = DrawTimes(model, shape, run, sketch), slowdown(), math.prod(shape)
    draws = sampling.draws_at(times.operations, run)
    for name, probe in probes(model.law, shape, sampling).items():
        by = sampling.estimator or "exact"
        published = name == "anisotropy_directions" or model.law == "point"
        # A mixed derivative costs some backward passes for each number of an input, about as much as a difference.
        chosen = ("exact" if by == "exact" else "difference") if published else "exact"
        how = {"estimator": chosen, "step": sampling.step, "readout": sampling.readout, "seed": sampling.seed}
        seconds, method = times.expected(probe, draws, **how)
        rows = draws * (2 if name == "mean_gradient" else probe.num)
        seconds += page_seconds(size) * slower
        for part in (rows, rows // 2, rows - rows // 2):
            seconds += expected_seconds(size, max(part, 1), run.torch_device)
        numbers = model.num_parameters * min(draws, block_size(model.num_parameters, run.torch_device))
        sums = min(rows * size * 4, GROUPS * size**2 * 8) + 4 * size * min(size, rows, DENSE_LIMIT) * 8
        estimator = by if published else "mean over inputs" if name == "mean_gradient" else "exact"
        yield Cost(name, estimator, method, draws, seconds, numbers * run.dtype.itemsize + sums)


@dataclass
class PredictedCosts:
    """What a dry run has found of the time of a scan so far: first by the size of the network, then by timing it.

    Attributes:
        model: The network, as :func:`scan` takes it by a name.
        sampling: What would be drawn.
        run: Device and precision.
        shape: Shape of one input, where it is given.
        settings: Settings of the builder.
        weights: Trained weights.
        batchnorm: The mode of BatchNorm.
        name: Of the network, once it is known.
        parameters: Its number of weights, likewise.
        costs: By measurement.
        whole: Whether every measurement has its cost.
    """

    model: str
    sampling: Sampling
    run: Run
    shape: tuple[int, ...] | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    weights: Path | str | None = None
    batchnorm: str = "eval"
    name: str = ""
    parameters: int | None = None
    costs: dict[str, Cost] = dataclasses.field(default_factory=dict)
    whole: bool = False
    _sketch: Sketch | None = None

    def by_size(self) -> None:
        """Find the costs roughly, where the network can be built without weights."""
        name, build = builder_of(self.model, self.shape, self.settings)
        law = "initialised" if self.weights is None else "point"
        self._sketch = sketched(build, self._shape, name, law)
        if self._sketch is not None:
            self._take(self._sketch)

    def by_timing(self) -> None:
        """Find the costs by timing some draws, unless that takes too long."""
        if self._sketch is None or not self._sketch.large:
            how: dict[str, Any] = {"settings": self.settings, "weights_file": self.weights}
            self._take(family_of(self.model, shape=self.shape, batchnorm=self.batchnorm, **how))

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.shape or usual_shape(self.model, self.settings)

    def _take(self, model: Family | Sketch) -> None:
        self.name, self.parameters = model.name, model.num_parameters
        for cost in expected_cost(model, self._shape, self.sampling, self.run, sketch=self._sketch):
            self.costs[cost.measurement] = cost
        self.whole = True
