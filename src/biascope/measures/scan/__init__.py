"""Scan: from a network to its directions, its geometry and a report. It runs measurements and is none itself."""

from __future__ import annotations

import copy
import dataclasses
import functools
import html
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from biascope.derivatives.draw_memory import expected_memory
from biascope.derivatives.draw_times import Outline, pass_of
from biascope.derivatives.one_pass import OnePass
from biascope.derivatives.sampling import Amount, Sampling
from biascope.families.family import Family
from biascope.families.held import Holding
from biascope.families.source import checkpoint_files, family_of, of_one_input, parse_input, usual_shape
from biascope.kernels.gram import matrix_bytes
from biascope.measures.scan.card import rows_of, told
from biascope.measures.scan.pilot import piloted
from biascope.results import registry
from biascope.results.axes import Axis, named_axes
from biascope.results.result import Result
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.files import distinct_names, make_writable, name_for_file
from biascope.runs.run import Run
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays, require_classes

_KERNEL_DRAWS = 8  # networks of which the tangent kernel is taken
_KERNEL_BUDGET = {"cpu": 3e11, "cuda": 3e14}  # operations of the passes over the samples
_KERNEL_BYTES = 1e9  # of the kernels on disk


@dataclass(frozen=True)
class Scan:
    """The results of a scan, and where they are saved.

    Attributes:
        results: One per measurement (and checkpoint).
        report: The HTML file, ``None`` if none was asked for.
        folder: Where results were saved.
    """

    results: Sequence[Result]
    report: Path | None
    folder: Path | None

    def __repr__(self) -> str:
        lines = [f"Scan, report {self.report}" if self.report is not None else "Scan without a report"]
        return "\n".join([*lines, *map(repr, self.results)])

    def _repr_html_(self) -> str:
        where = "" if self.report is None else f"<p>Report: {html.escape(str(self.report))}</p>"
        return where + "".join(result._repr_html_() for result in self.results)


@under_torch_defaults
def scan(
    model: str | Family | nn.Module | Callable[[], nn.Module] = "lenet",
    *,
    input: tuple[int, ...] | str | None = None,
    axes: str = "",
    hold: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    estimator: str | None = None,
    step: float = 100.0,
    draws: int | None = None,
    minutes: float | None = None,
    readout: str = "first",
    batchnorm: str = "eval",
    weights: Path | str | None = None,
    checkpoints: Path | str | None = None,
    data: Arrays | None = None,
    seed: int = 0,
    run: Run | None = None,
    report: bool = True,
) -> Scan:
    """Measure what a network finds easy to learn, and write a report.

    At initialisation, it measures the mean gradient and the average geometry. The effective rank of the mean gradient is the one
    number for a network. With an estimator, it also measures the published anisotropy directions. With trained weights or a folder of
    checkpoints, it measures the average geometry of each over fresh inputs. With data, it also measures the tangent kernel on them, and
    says which classes the network learns first. At initialisation, this is for up to 8 draws.

    Args:
        model: A known name, ``file.py:build``, ``package.module:build``, a model of a library (``timm:resnet18``), a builder, a module,
            whose weights are measured as they are, or a Family.
        input: Shape of one input, ``(1, 32, 32)`` (the default) or ``"1x32x32"``; of several inputs, that of the measured one,
            which may be named: ``"x=16x4"``.
        axes: What the axes of an input are, as in ``"time,feature"``; by default, as the data or the network's layers have them.
        hold: What the other inputs are, by name: one sample's tensor without a batch axis, a flag, ``None``.
        settings: Settings of the builder.
        estimator: How to compute the published anisotropy directions, ``"difference"``, ``"exact"``, ``"mixed"`` …; ``None`` leaves
            them out. With trained weights: how to compute the gradients of their geometry, exactly by default.
        step: Half width of the differences.
        draws: Networks to draw; ``None`` for 400, or fewer of a network that takes many operations.
        minutes: Draw as many networks as resolve directions, in at most so many minutes.
        readout: How to reduce several outputs to a scalar.
        batchnorm: The mode of BatchNorm.
        weights: Trained weights, safetensors or torch.
        checkpoints: A folder of checkpoints.
        data: Labelled samples, for the tangent kernel; :func:`biascope.tasks.samples.samples_of` reads a data set.
        seed: Random seed for weights and inputs.
        run: Folder, device, precision; the folder receives results and report.
        report: Whether to write the report.

    Returns:
        Results and report.
    """
    measured, input = parse_input(input) if isinstance(input, str) else ("", input)
    require_samples(data)
    input = input or (None if data is None else data.shape)
    holding = Holding.of(hold or {}, measured) if hold or measured else None
    told = named_axes(axes) or (() if data is None else data.axes)
    families = families_of(model, input, settings, weights, checkpoints, batchnorm, told, holding)
    shape = input or (usual_shape(model, settings) if isinstance(model, str) else (1, 32, 32))
    sampling = Sampling(estimator, step, draws, minutes, readout, seed)
    return scan_of(families, shape, sampling, data=data, run=run or Run(), report=report)


def scan_of(
    families: Sequence[Family],
    shape: tuple[int, ...],
    sampling: Sampling,
    *,
    data: Arrays | None = None,
    run: Run,
    report: bool = True,
) -> Scan:
    """The same of families at hand, several being checkpoints of a network, with all that is drawn in one object."""
    if run.folder is not None:
        registry.require_own(run.folder)
        make_writable(run.folder)
    results: list[Result] = []
    at_hand: dict[Path, Result] = {}
    for family in families:
        folder = run.folder if len(families) == 1 or run.folder is None else run.folder / name_for_file(family.name)
        for result in saved_scan(family, shape, sampling, data, run, folder):
            results.append(result)
            at_hand |= {} if folder is None else {folder / result.measurement: result}
    page = None
    if report and run.folder is not None:
        from biascope.results.report import write_folder_report

        page = write_folder_report(run.folder, at_hand=at_hand)
    return Scan(results, page, run.folder)


def require_samples(data: Arrays | None) -> None:
    """Refuse samples that have no gradient, or whose labels are no classes, before any work.

    Raises:
        ValueError: If they are token ids, or if their labels are numbers or all of one class.
    """
    if data is not None and data.holds_ids:
        raise ValueError(
            "A scan takes gradients by inputs, which token ids do not have. Leave the data out, and pass them to biascope kernel."
        )
    if data is not None and "train" in data.splits:
        require_classes(data.splits["train"][1])


def families_of(
    model: str | Family | nn.Module | Callable[[], nn.Module],
    shape: tuple[int, ...] | None,
    settings: Mapping[str, Any] | None,
    weights: Path | str | None,
    checkpoints: Path | str | None,
    batchnorm: str,
    axes: tuple[Axis, ...] = (),
    holding: Holding | None = None,
) -> list[Family]:
    """What a scan is asked for, as families: several of a folder of checkpoints, under distinct names."""
    if isinstance(model, Family):
        if holding is not None:
            raise ValueError(
                f"A family takes its one input, but inputs are named beside {model.name}. Pass its builder or module with hold=."
            )
        return [dataclasses.replace(model, axes=axes or model.axes)]
    if not isinstance(model, str):
        return [_own_family(model, shape, batchnorm, axes, holding)]
    if weights is not None and checkpoints is not None:
        raise ValueError("Only one of weights and checkpoints may be given, got both. Leave one out.")
    files: list[Path | None] = [None if weights is None else Path(weights)]
    if checkpoints is not None:
        files = [*checkpoint_files(Path(checkpoints))]
    found = [
        family_of(
            model,
            shape=shape,
            settings=settings,
            weights_file=file,
            batchnorm=batchnorm,
            asked_axes=axes,
            holding=holding,
        )
        for file in files
    ]
    names = distinct_names([family.name for family in found], [str(file) for file in files])
    return [dataclasses.replace(family, name=name) for family, name in zip(found, names, strict=True)]


def _own_family(
    model: nn.Module | Callable[[], nn.Module],
    shape: tuple[int, ...] | None,
    batchnorm: str,
    axes: tuple[Axis, ...],
    holding: Holding | None,
) -> Family:
    """The family of a module in memory, with its weights, or of a builder."""
    if holding is not None and shape is None:
        raise ValueError("input must be the shape of the measured input where others are held. Pass input=(16, 4).")
    given = model if isinstance(model, nn.Module) else None
    name = type(model).__name__ if given is not None else str(getattr(model, "__name__", type(model).__name__))
    build = functools.partial(copy.deepcopy, given) if given is not None else model
    finished = None if shape is None else of_one_input(build, shape, name, axes=axes, holding=holding)
    if finished is None:
        family = Family.initialised(model, None, batchnorm) if given is None else Family.point(given, None, batchnorm)
    elif given is None:
        family = Family.initialised(lambda: finished(model()), name, batchnorm)
    else:
        family = Family.point(finished(build()), name, batchnorm)
    holding = holding or Holding()
    return dataclasses.replace(family, axes=axes or holding.axes, held=tuple(holding.held))


def saved_scan(
    family: Family, shape: tuple[int, ...], sampling: Sampling, data: Arrays | None, run: Run, folder: Path | None
) -> list[Result]:
    """Results of one family, each saved as soon as it is computed."""
    results = []
    for result in _measure(family, shape, sampling, data, run):
        results.append(result)
        if folder is not None:
            result.save(folder / result.measurement)
    return results


def probes(size: int | None, shape: tuple[int, ...], sampling: Sampling, amount: Amount) -> dict[str, Probe]:
    """Which measurements a scan makes of a family, and where: first the one that gives the headline."""
    seed = sampling.seed
    fixed = seed if sampling.fixed_seed is None else sampling.fixed_seed
    if size == 1:
        return {"average_geometry": Probe.gaussian(shape, num=amount.point_inputs, fresh=True, seed=seed)}
    found = {"mean_gradient": Probe.gaussian(shape, num=amount.mean_inputs, fresh=True, seed=seed)}
    if sampling.estimator is not None:
        found["anisotropy_directions"] = Probe.gaussian(shape, seed=fixed)
    if (
        amount.geometry_inputs == amount.mean_inputs
    ):  # the same probe, so that gradients of a dear network are taken once
        return {**found, "average_geometry": found["mean_gradient"]}
    return {**found, "average_geometry": Probe.gaussian(shape, num=amount.geometry_inputs, fresh=True, seed=seed)}


def memory_of(
    name: str,
    model: Family | Outline,
    one: OnePass | None,
    probe: Probe,
    shape: tuple[int, ...],
    amount: Amount,
    run: Run,
) -> int:
    """Bytes of main memory that a measurement of a scan takes, beside libraries and the network."""
    rows = 2 if name == "mean_gradient" else probe.num
    return expected_memory(one, model.num_parameters, model.size, probe, math.prod(shape), amount.draws, rows, run)


def _measure(
    family: Family, shape: tuple[int, ...], sampling: Sampling, data: Arrays | None, run: Run
) -> Iterator[Result]:
    one = pass_of(family, shape, run)
    amount = sampling.amount(one, family.num_parameters, family.size, run)
    fewer = "" if sampling.draws is not None else amount.told(one, family.size)
    wanted = probes(family.size, shape, sampling, amount)
    draws = amount.draws
    if sampling.minutes is not None:
        if family.size == 1:
            raise ValueError(
                f"minutes must be left out for one network, and {family.name} is one: it has no directions to resolve by drawing "
                "others. Pass --draws."
            )
        found = piloted(
            family,
            wanted["mean_gradient"],
            draws,
            minutes=sampling.minutes,
            readout=sampling.readout,
            seed=sampling.seed,
            run=run,
        )
        draws, fewer = found.draws, found.told()
    if fewer:
        warnings.warn(fewer, stacklevel=2)
    most = dataclasses.replace(amount, draws=max(draws, amount.draws))
    needed = max(memory_of(name, family, one, probe, shape, most, run) for name, probe in wanted.items())
    less = "Pass a smaller input (--input) or fewer draws (--draws)"
    run.expects(f"A scan of {family.name} with {draws} draws", needed, less)
    common = {"readout": sampling.readout, "seed": sampling.seed, "run": run}
    for name, probe in wanted.items():
        own: dict[str, Any] = {"draws": draws if name == "mean_gradient" else amount.draws}
        # Beside the mean gradient, the average geometry is taken with the exact gradient, as it is defined; alone, as asked.
        asked = name == "anisotropy_directions" or (name == "average_geometry" and family.size == 1)
        if asked and sampling.estimator is not None:
            own |= {"step": sampling.step, "estimator": sampling.estimator}
        result = registry.find(name)(family, probe, **common, **own)
        yield result.warned(fewer) if fewer else result
    yield from _card(family, shape, sampling, run)
    if data is not None:
        yield registry.find("tangent_kernel")(
            family,
            data,
            draws=_kernel_draws(family, data, one, sampling.draws, run),
            readout=sampling.readout,
            seed=sampling.seed,
            run=run,
        )


def _kernel_draws(family: Family, data: Arrays, one: OnePass | None, asked: int | None, run: Run) -> int:
    """Networks of which a scan takes the tangent kernel: as many as its intervals over draws need, fewer where that takes long.

    Nothing is timed, so a repeated command draws the same.
    """
    samples = max(1, data.sizes.get("train", 0))  # the measurement refuses none
    budget = _KERNEL_BUDGET["cpu" if run.torch_device.type == "cpu" else "cuda"]
    work = math.inf if one is None else 3.0 * samples * max(one.work, family.num_parameters)
    affordable = int(min(budget / work, _KERNEL_BYTES / matrix_bytes(samples, None, run)))
    return max(1, min(_KERNEL_DRAWS, affordable, asked or _KERNEL_DRAWS, family.size or _KERNEL_DRAWS))


def _card(family: Family, shape: tuple[int, ...], sampling: Sampling, run: Run) -> Iterator[Result]:
    """The other rows of the card; what a network does not let be measured is a warning and not the end of the scan."""
    left_out = []
    for row in rows_of(family, shape, pass_of(family, shape, run), sampling, run):
        if not row.draws:
            left_out.append(row.name)
            continue
        read = {"readout": sampling.readout} if "readout" in registry.find(row.name).settings else {}
        try:
            yield registry.find(row.name)(
                family, row.probe, draws=row.draws, seed=sampling.seed, run=run, **read, **row.settings
            )
        except ValueError as error:
            warnings.warn(f"The card has no row {row.name}: {error}", stacklevel=2)
    if left_out:
        warnings.warn(told(left_out), stacklevel=2)
