"""The main job: from a network to its directions, its geometry and a report."""

from __future__ import annotations

import dataclasses
import hashlib
import html
import itertools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from biascope import networks
from biascope.derivatives.covariance import GROUPS
from biascope.derivatives.draw_times import DrawTimes, Sketch, operations_of, sketched
from biascope.derivatives.moments import DENSE_LIMIT
from biascope.derivatives.spectrum import expected_seconds
from biascope.families.family import Family
from biascope.families.source import builder_of, checkpoint_files, family_of, parse_shape, usual_shape
from biascope.families.tape import block_size
from biascope.measures.mean_gradient import INPUTS as MEAN_INPUTS
from biascope.results import registry as measurement
from biascope.results.result import Result
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.files import make_writable, name_for_file
from biascope.runs.rehearsal import slowdown
from biascope.runs.run import Run
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays

DRAWS, FEW_DRAWS = 400, 100  # networks to draw, and of those that are dear; expectations are the same, intervals wider
DEAR = {"cpu": 1e8, "cuda": 1e11}  # operations of a forward pass from which on a network is dear on that kind of device
ESTIMATORS = ("difference", "exact", "mixed", "mixed_difference")  # of the directions at initialisation
GEOMETRY_INPUTS = 4  # fresh inputs per network for the average geometry
POINT_INPUTS = 16  # … and per draw where there is one network and only inputs are drawn


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
    model: str | Family | Callable[[], nn.Module] = "lenet",
    *,
    input: tuple[int, ...] | str | None = None,
    settings: Mapping[str, Any] | None = None,
    estimator: str | None = None,
    step: float = 100.0,
    draws: int | None = None,
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
    checkpoints, it measures the average geometry of each over fresh inputs. With data, it also measures the tangent kernel on them.

    Args:
        model: A known name, ``file.py:build``, ``package.module:build``, a builder, or a Family.
        input: Shape of one input, ``(1, 32, 32)`` (the default) or ``"1x32x32"``.
        settings: Settings of the builder.
        estimator: How to compute the published anisotropy directions, ``"difference"``, ``"exact"``, ``"mixed"`` …; ``None`` leaves
            them out. With trained weights: how to compute the gradients of their geometry, exactly by default.
        step: Half width of the differences.
        draws: Networks to draw; ``None`` for 400, or 100 if a forward pass is slow.
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
    run = run or Run()
    input = parse_shape(input) if isinstance(input, str) else input
    input = input or (None if data is None else data.shape)
    shape = input or (usual_shape(model, settings) if isinstance(model, str) else (1, 32, 32))
    sampling = Sampling(estimator, step, draws, readout, seed)
    if run.folder is not None:
        measurement.require_own(run.folder)
        make_writable(run.folder)
    families = _families(model, shape if input else None, settings, weights, checkpoints, batchnorm)
    results: list[Result] = []
    for family in families:
        folder = run.folder if len(families) == 1 or run.folder is None else run.folder / name_for_file(family.name)
        results += _saved(family, shape, sampling, data, run, folder)
    page = None
    if report and run.folder is not None:
        from biascope.results.report import write_folder_report

        page = write_folder_report(run.folder)
    return Scan(results, page, run.folder)


def _families(
    model: str | Family | Callable[[], nn.Module],
    shape: tuple[int, ...] | None,
    settings: Mapping[str, Any] | None,
    weights: Path | str | None,
    checkpoints: Path | str | None,
    batchnorm: str,
) -> list[Family]:
    if isinstance(model, Family):
        return [model]
    if not isinstance(model, str):
        return [Family.initialised(model, batchnorm=batchnorm)]
    if weights is not None and checkpoints is not None:
        raise ValueError("Only one of weights and checkpoints may be given, got both. Leave one out.")
    files = (
        [Path(weights)]
        if weights is not None
        else checkpoint_files(Path(checkpoints))
        if checkpoints is not None
        else [None]
    )
    found = [family_of(model, shape=shape, settings=settings, weights_file=file, batchnorm=batchnorm) for file in files]
    names = distinct_names([family.name for family in found], [str(file) for file in files])
    return [dataclasses.replace(family, name=name) for family, name in zip(found, names, strict=True)]


def _saved(
    family: Family, shape: tuple[int, ...], sampling: Sampling, data: Arrays | None, run: Run, folder: Path | None
) -> list[Result]:
    """Results of one family, each saved as soon as it is computed."""
    results = []
    for result in _measure(family, shape, sampling, data, run):
        results.append(result)
        if folder is not None:
            result.save(folder / result.measurement)
    return results


def _probes(law: str, shape: tuple[int, ...], sampling: Sampling) -> dict[str, Probe]:
    """Which measurements a scan makes of a family, and where: first the one that gives the headline."""
    seed = sampling.seed
    fixed = seed if sampling.fixed_seed is None else sampling.fixed_seed
    if law == "point":
        return {"average_geometry": Probe.gaussian(shape, num=POINT_INPUTS, fresh=True, seed=seed)}
    found = {"mean_gradient": Probe.gaussian(shape, num=MEAN_INPUTS, fresh=True, seed=seed)}
    if sampling.estimator is not None:
        found["anisotropy_directions"] = Probe.gaussian(shape, seed=fixed)
    return {**found, "average_geometry": Probe.gaussian(shape, num=GEOMETRY_INPUTS, fresh=True, seed=seed)}


def _measure(
    family: Family, shape: tuple[int, ...], sampling: Sampling, data: Arrays | None, run: Run
) -> Iterator[Result]:
    draws = sampling.draws_at(operations_of(family, shape, run) if sampling.draws is None else None, run)
    common = {"draws": draws, "readout": sampling.readout, "seed": sampling.seed, "run": run}
    for name, probe in _probes(family.law, shape, sampling).items():
        own: dict[str, Any] = {}
        # Beside the mean gradient, the average geometry is taken with the exact gradient, as it is defined; alone, as asked.
        asked = name == "anisotropy_directions" or (name == "average_geometry" and family.law == "point")
        if asked and sampling.estimator is not None:
            own = {"step": sampling.step, "estimator": sampling.estimator}
        yield measurement.find(name)(family, probe, **common, **own)
    if data is not None:
        yield measurement.find("tangent_kernel")(family, data, readout=sampling.readout, seed=sampling.seed, run=run)


_PAGE_SECONDS = 2.2  # to check, save, draw and show one result, on two idle CPU cores (benchmarks/dry_run.py) …
_PAGE_SECONDS_PER_NUMBER = 1.2e-3  # … and for each number of an input, up to those with few directions


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
    for name, probe in _probes(model.law, shape, sampling).items():
        by = sampling.estimator or "exact"
        published = name == "anisotropy_directions" or model.law == "point"
        # A mixed derivative costs some backward passes for each number of an input, about as much as a difference.
        chosen = ("exact" if by == "exact" else "difference") if published else "exact"
        how = {"estimator": chosen, "step": sampling.step, "readout": sampling.readout, "seed": sampling.seed}
        seconds, method = times.expected(probe, draws, **how)
        rows = draws * (2 if name == "mean_gradient" else probe.num)
        seconds += (_PAGE_SECONDS + _PAGE_SECONDS_PER_NUMBER * min(size, 4096)) * slower
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


def saved_results(folder: Path) -> list[Result]:
    """Every result saved in a run folder, those of checkpoints in the order of training.

    Raises:
        ValueError: If it holds none.
    """
    if not folder.is_dir():
        raise ValueError(f"The run folder {folder} does not exist. Check the path, or scan a network first.")
    found, problems = measurement.saved(folder)
    if problems:
        raise ValueError(problems[0])
    if not found:
        raise ValueError(f"{folder} must hold saved results, but has none. Pass a folder that biascope scan wrote.")
    return list(found.values())


def results_of(
    subjects: Sequence[str],
    folder: Path,
    *,
    input: tuple[int, ...] | None,
    sampling: Sampling,
    batchnorm: str,
    run: Run,
) -> list[Result]:
    """Results of run folders and networks, in any combination, under distinct names.

    Args:
        subjects: Run folders, whose results are read; networks, which are scanned at the same inputs, each with a seed of its own.
        folder: Where scans are kept, each in a folder of its own.
        input: Shape of one input.
        sampling: What a scan draws.
        batchnorm: The mode of BatchNorm.
        run: Device and precision.
    """
    found: dict[str, list[Result] | Family] = {
        subject: saved_results(Path(subject))
        if Path(subject).is_dir()
        else family_of(subject, shape=input, batchnorm=batchnorm)
        for subject in subjects
    }
    # One subject may have results of several checkpoints: a name belongs to a subject.
    named = [
        (subject, name)
        for subject, each in found.items()
        for name in ([each.name] if isinstance(each, Family) else dict.fromkeys(result.subject for result in each))
    ]
    names = dict(zip(named, distinct_names([name for _, name in named], [source for source, _ in named]), strict=True))
    results: list[Result] = []
    read = [result for each in found.values() if not isinstance(each, Family) for result in each]
    taken = {getattr(result, "seed", None) for result in read}
    seeds = (seed for seed in itertools.count(sampling.seed) if seed not in taken)
    for subject, each in found.items():
        if isinstance(each, Family):
            family = dataclasses.replace(each, name=names[subject, each.name])
            own = dataclasses.replace(run, folder=folder / folder_name(subject, {}, None))
            make_writable(folder)
            # Draws of one seed would have noise in common, which looks like common directions.
            apart = dataclasses.replace(sampling, seed=next(seeds), fixed_seed=sampling.seed)
            results += _saved(family, input or usual_shape(subject), apart, None, own, own.folder)
        else:
            results += [_renamed(result, names[subject, result.subject]) for result in each]
    return results


def _renamed(result: Result, name: str) -> Result:
    if name == result.subject:
        return result
    family = {**result.provenance.get("family", {}), "name": name}
    return dataclasses.replace(result, provenance={**result.provenance, "family": family})


def comparison_folder(subjects: Sequence[str]) -> str:
    """A readable name for the folder of a comparison, and for no other.

    Example:
        >>> comparison_folder(["lenet", "vgg11"])
        'compare-lenet-vgg11'
    """
    words = [path_words(each) if Path(each).is_dir() else folder_name(each, {}, None) for each in subjects]
    whole = "-".join(["compare", *words])
    return f"{whole[:120]}-{_digest(words)}" if len(whole) > 120 or any("-" in word for word in words) else whole


def folder_name(model: str, settings: Mapping[str, Any], weights: Path | None) -> str:
    """A readable folder name for a model, its settings and weights, and for no other: results are saved there.

    A network's name, or a plain file of the working folder, is named as it is; another file by its path. Where two models could still
    have one name, a digest of the whole follows.

    Example:
        >>> folder_name("lenet", {"pooling": "average"}, None), folder_name("a/net.py:wide", {}, Path("b/last.pt"))
        ('lenet-pooling=average', 'a__net-wide@b__last.pt')
    """
    location, _, attribute = model.rpartition(":")
    clear = True
    if location.endswith(".py"):
        parts = [path_words(location, ".py")]
        clear = re.fullmatch(r"\w+", parts[0]) is not None and parts[0] not in networks.names()
    else:
        parts = [location or model]
    parts += [attribute] if location and attribute != "build" else []
    parts += [f"{key}={value}" for key, value in settings.items()]
    clear &= not any("-" in str(value) and "=" in str(value) for value in settings.values())
    exact = "-".join(parts)
    name = name_for_file(exact)
    if not clear or name != exact:
        name = f"{name}-{_digest((os.path.abspath(location) if location.endswith('.py') else location, parts[1:]))}"
    return name if weights is None else f"{name}@{path_words(weights, '.safetensors')}"


def path_words(path: Path | str, usual: str = "") -> str:
    """A readable name for a file or folder that no other has: its path below the working folder; else two names and a digest.

    Args:
        path: The file, or a name that is none.
        usual: The ending that is left out.

    Example:
        >>> path_words("runs/a/last.safetensors", ".safetensors"), path_words("last.pt", ".safetensors")
        ('runs__a__last', 'last.pt')
    """
    whole, here = Path(os.path.abspath(Path(path).expanduser())), Path.cwd()
    inside = whole.is_relative_to(here) and whole != here
    parts = (whole.relative_to(here) if inside else Path(*whole.parts[1:][-2:])).parts
    exact = "__".join(parts).removesuffix(usual)
    if inside and exact == name_for_file(exact) and not any("__" in part for part in parts):
        return exact
    return f"{name_for_file(exact)}-{_digest(str(whole))}"


def distinct_names(names: Sequence[str], sources: Sequence[str]) -> list[str]:
    """Names of networks, those that repeat followed by as much of the end of their source as tells them apart.

    Example:
        >>> distinct_names(["net", "net", "lenet"], ["a/net.py:build", "b/net.py:build", "lenet"])
        ['net (a/net.py:build)', 'net (b/net.py:build)', 'lenet']
    """
    found = list(names)
    for name in {each for each in names if list(names).count(each) > 1}:
        places = [place for place, each in enumerate(names) if each == name]
        ends = [Path(os.path.abspath(sources[place])).parts for place in places]
        count = next(k for k in range(1, 1 + max(map(len, ends))) if len({end[-k:] for end in ends}) == len(set(ends)))
        for place, end in zip(places, ends, strict=True):
            found[place] = f"{name} ({'/'.join(end[-count:])})"
    return found


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:6]


def describe_device(run: Run) -> str:
    """The device in words."""
    return f"{run.describe()['device']}, {run.precision}, torch {torch.__version__}"
