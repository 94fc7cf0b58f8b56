"""Expected time and memory of a scan: first by the size of the network, then by timing it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biascope.derivatives.draw_times import DrawTimes, Outline, outlined
from biascope.derivatives.sampling import Sampling
from biascope.derivatives.spectrum import expected_seconds
from biascope.families.family import Family
from biascope.families.held import Holding
from biascope.families.source import builder_of, family_of, usual_shape
from biascope.measures.scan import memory_of, probes
from biascope.measures.scan.card import rows_of
from biascope.results.axes import Axis
from biascope.results.report import page_seconds
from biascope.runs.memory import LIBRARIES
from biascope.runs.rehearsal import Expectation, StageTime, slowdown
from biascope.runs.run import Run


@dataclass(frozen=True)
class MeasurementTime(StageTime):
    """How long a measurement takes: its draws, the spectra of all and of both halves, and the page.

    Attributes:
        estimator: How gradients would be taken.
        method: The fastest way so far.
        memory: Bytes that the process is expected to hold at most.
        told: Why less is drawn than usual; empty if it is not.
    """

    estimator: str
    method: str
    memory: int
    told: str = ""

    def of(self, subject: str) -> StageTime:
        """As a stage of the work on several networks."""
        return StageTime(f"{subject}: {self.name}", self.pieces, self.done, self.spent, self.seconds)


@dataclass(frozen=True)
class ScanTime(Expectation):
    """How long a scan takes.

    Attributes:
        stages: Its measurements.
        subject: The name of the network, or the words for it where it is not built yet.
        parameters: Its number of weights; ``None`` where it is not built yet.
    """

    stages: tuple[MeasurementTime, ...]
    subject: str
    parameters: int | None


def expected_times(
    model: Family | Outline, shape: tuple[int, ...], sampling: Sampling, run: Run, outline: Outline | None = None
) -> Iterator[MeasurementTime]:
    """Expected time and memory of a scan, measurement by measurement.

    Args:
        model: Who; by an outline alone, the time is rough.
        shape: Shape of one input.
        sampling: What would be drawn.
        run: Device and precision.
        outline: The size of the network, where it is known already.
    """
    times, slower, size = DrawTimes(model, shape, run, outline), slowdown(), math.prod(shape)
    amount = sampling.amount(times.one, model.num_parameters, model.size, run)
    draws, known = amount.draws, set[int]()
    before, told = times.before(), "" if sampling.draws is not None else amount.told(times.one, model.size)
    for name, probe in probes(model.size, shape, sampling, amount).items():
        by = sampling.estimator or "exact"
        published = name == "anisotropy_directions" or model.size == 1
        # A mixed derivative costs some backward passes for each number of an input, about as much as a difference.
        chosen = ("exact" if by == "exact" else "difference") if published else "exact"
        how = {"estimator": chosen, "step": sampling.step, "readout": sampling.readout, "seed": sampling.seed}
        seconds, method = (
            times.expected(probe, draws, **how) if id(probe) not in known else (0.0, "those of the mean gradient")
        )
        known.add(id(probe))
        seconds, before = seconds + before, 0.0
        rows = draws * (2 if name == "mean_gradient" else probe.num)
        seconds += page_seconds(size) * slower
        for part in (rows, rows // 2, rows - rows // 2):
            seconds += expected_seconds(size, max(part, 1), run.torch_device)
        estimator = by if published else "mean over inputs" if name == "mean_gradient" else "exact"
        weights = model.num_parameters
        memory = LIBRARIES + 4 * run.dtype.itemsize * weights  # libraries, the user's module and its copies
        memory += memory_of(name, model, times.one, probe, shape, amount, run)
        yield MeasurementTime(name, draws, 0, 0.0, seconds, estimator, method, memory, told)
    if isinstance(model, Family):  # what suits a network is known when it is built
        for row in rows_of(model, shape, times.one, sampling, run):
            if row.draws:
                seconds = times.of_passes(row.passes, row.draws) + page_seconds(1) * slower
                memory = LIBRARIES + 4 * run.dtype.itemsize * model.num_parameters
                memory += memory_of(
                    row.name, model, times.one, row.probe, shape, dataclasses.replace(amount, draws=row.draws), run
                )
                yield MeasurementTime(row.name, row.draws, 0, 0.0, seconds, "row of the card", times.pace_known, memory)


def predicted(
    model: str,
    sampling: Sampling,
    run: Run,
    shape: tuple[int, ...] | None = None,
    settings: Mapping[str, Any] | None = None,
    weights: Path | str | None = None,
    batchnorm: str = "eval",
    axes: tuple[Axis, ...] = (),
    holding: Holding | None = None,
) -> Iterator[ScanTime]:
    """How long a scan takes, better known each time: by the size of the network, where it can be built without weights, then timed.

    Args:
        model: The network by a name, as :func:`biascope.scan` takes it.
        sampling: What would be drawn.
        run: Device and precision.
        shape: Shape of one input, where it is given.
        settings: Settings of the builder.
        weights: Trained weights.
        batchnorm: The mode of BatchNorm.
        axes: What the axes of an input are, where the user says so.
        holding: Which of several inputs are held.
    """
    known = ScanTime(0.0, (), False, 0, model, None)
    yield known
    settings = settings or {}
    name, build = builder_of(model, shape, settings)
    inputs = shape or usual_shape(model, settings)
    # A network of several inputs is known only when it is built.
    outline = None if holding is not None else outlined(build, inputs, name, None if weights is None else 1)
    if outline is not None:
        *_, known = _refined(known, outline, expected_times(outline, inputs, sampling, run))
    yield known
    if outline is None or not outline.large:  # else timing it would take too long
        family = family_of(
            model,
            shape=shape,
            settings=settings,
            weights_file=weights,
            batchnorm=batchnorm,
            asked_axes=axes,
            holding=holding,
        )
        yield from _refined(known, family, expected_times(family, inputs, sampling, run, outline))


def _refined(known: ScanTime, model: Family | Outline, times: Iterable[MeasurementTime]) -> Iterator[ScanTime]:
    """What is known with ever more of these times in place of what was known before."""
    stages = {stage.name: stage for stage in known.stages}
    for stage in times:
        stages[stage.name] = stage
        seconds = sum(each.seconds or 0.0 for each in stages.values())
        memory = max(each.memory for each in stages.values())
        known = ScanTime(seconds, tuple(stages.values()), known.whole, memory, model.name, model.num_parameters)
        yield known
    yield dataclasses.replace(known, whole=True)


def in_turns(predictions: Sequence[Iterator[ScanTime]]) -> Iterator[tuple[int, ScanTime]]:
    """What becomes known of several scans, and of which: all of them roughly before any is known well."""
    left = dict(enumerate(predictions))
    while left:
        for place in list(left):
            if (found := next(left[place], None)) is None:
                del left[place]
            else:
                yield place, found
