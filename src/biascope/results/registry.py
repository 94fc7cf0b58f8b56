"""WHAT: the register of measurements. A file in ``measures/`` is a measurement; its name is known without importing it."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import inspect
import math
import numbers
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from biascope.results import store
from biascope.results.result import Result, recorded
from biascope.results.wording import natural_order
from biascope.runs.files import require_ours
from biascope.runs.progress import phase

PAPERS = {
    "nads2020": "Ortiz-Jiménez, Modas, Moosavi-Dezfooli, Frossard (2020). Neural anisotropy directions. NeurIPS.",
    "linearized2021": "Ortiz-Jiménez (2023). The inductive bias of deep learning: connecting weights and functions, chapter 4. EPFL.",
    "geometry2025": "Movahedi, Orvieto, Moosavi-Dezfooli (2025). Geometric inductive biases of deep networks: the role of data "
    "and architecture. ICLR.",
    "dictionaries2022": "Yüce, Ortiz-Jiménez, Besbinar, Frossard (2022). A structured dictionary perspective on implicit neural "
    "representations. CVPR; chapter 5 of the thesis.",
    "task_arithmetic2023": "Ortiz-Jiménez, Favero, Frossard (2023). Task arithmetic in the tangent space: improved editing of "
    "pre-trained models. NeurIPS; chapter 6 of the thesis.",
    "patterns2021": "On the inductive bias of a CNN for distributions with orthogonal patterns (2021). Submitted to ICLR.",
}
#: What measurements come from: the papers that are reproduced, and others.
SOURCES = {
    **PAPERS,
    "redshift2024": "Teney, Nicolicioiu, Hartmann, Abbasnejad (2024). Neural redshift: random networks are not random functions. CVPR.",
    "sensitivity2024": "Vasudeva, Fu, Zhou, Kau, Huang, Sharan (2025). Transformers learn low sensitivity functions: investigations "
    "and implications. ICLR.",
    "lie2022": "Gruver, Finzi, Goldblum, Wilson (2023). The Lie derivative for measuring learned equivariance. ICLR.",
    "guessing2024": "Francazi, Lucchi, Baity-Jesi (2024). Initial guessing bias: how untrained networks favor some classes. ICML.",
    "response2025": "Chen, Chen (2025). Aligning inductive bias for data-efficient generalization in state space models. "
    "arXiv 2509.20789.",
}


class Checks(Protocol):
    """What looks for reasons to distrust a measurement; ``inputs`` gives a few of its inputs in the precision of a run."""

    def before(
        self, family: Any, inputs: Callable[[Any], Any], settings: Mapping[str, Any], run: Any
    ) -> tuple[str, list[str]]:
        """The precision to measure in, and sentences for the reader of the result."""
        ...

    def after(self, family: Any, inputs: Callable[[Any], Any], settings: Mapping[str, Any], run: Any) -> list[str]:
        """Sentences for the reader of the result."""
        ...


P = ParamSpec("P")
R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class Setting:
    """One setting of a measurement, as a user names it.

    Attributes:
        annotation: Its type, as it is written.
        default: What it is unless given.
        group: The parameter it is a field of; empty where it is a parameter itself.
    """

    annotation: str
    default: Any
    group: str = ""


@dataclass(eq=False)
class Measurement(Generic[P, R]):
    """A registered measurement: callable like its function, with what the command line, report and tests need.

    Attributes:
        function: The plain function.
        result: The class of what it returns.
        title: For the report.
        paper: Id of the paper it comes from.
        example: Gives the positional arguments and settings of a small case, run by the contract test.
        network: Settings that the command line passes to one of our networks where the user does not.
        probe: How the command line draws inputs where the user does not say, ``{"num": 64, "fresh": True}``.
        checks: Looks for reasons to distrust it on the family at hand, such as derivatives that do not fit the forward pass; the
            result carries its sentences as warnings.
        command: The command that runs it, ``"biascope merge check"``, where ``biascope measure`` cannot make what it needs.
    """

    function: Callable[P, R]
    result: type[R]
    title: str
    paper: str
    example: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
    network: dict[str, Any] = dataclasses.field(default_factory=dict)
    checks: Checks | None = None
    command: str = ""
    probe: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The function's name: that of its file and its command."""
        return str(self.function.__name__)

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.function)

    def __repr__(self) -> str:
        given = inspect.signature(self.function).parameters.values()
        plain = [
            parameter.replace(annotation=parameter.empty)
            for parameter in given
            if parameter.kind is not parameter.KEYWORD_ONLY
        ]
        words = [*map(str, plain), "*", *(f"{name}=…" for name in self.settings)]
        return f"<measurement {self.name}({', '.join(words)}) -> {self.result.__name__}>"

    @property
    def settings(self) -> dict[str, Setting]:
        """Its settings by name: the keyword parameters of the function, except ``run``.

        A parameter whose default is a dataclass, ``recipe: Recipe = Recipe(rate=0.5)``, stands for its fields: users name ``rate``
        and ``epochs``, provenance records them under these names, and fields that are not named keep the default's values.
        """
        found = {}
        for name, parameter in inspect.signature(self.function).parameters.items():
            if parameter.kind is not parameter.KEYWORD_ONLY or name == "run":
                continue
            default = parameter.default
            if dataclasses.is_dataclass(default):
                for field in dataclasses.fields(default):
                    found[field.name] = Setting(str(field.type), getattr(default, field.name), name)
            else:
                found[name] = Setting(str(parameter.annotation), default)
        return found

    def grouped(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings by name as the function takes them: fields of a dataclass are put into it, all else stays."""
        known, given, fields = self.settings, dict(settings), dict[str, dict[str, Any]]()
        for name, setting in known.items():
            if setting.group and name in given:
                fields.setdefault(setting.group, {})[name] = given.pop(name)
        parameters = inspect.signature(self.function).parameters
        for group, named in fields.items():
            given[group] = dataclasses.replace(given.get(group, parameters[group].default), **named)
        return given

    def _by_name(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by the names of their settings; the opposite of :meth:`grouped`."""
        groups = {setting.group for setting in self.settings.values()}
        found: dict[str, Any] = {}
        for name, value in arguments.items():
            if name in groups:
                found |= {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            else:
                found[name] = value
        return found

    def __call__(self, *args: P.args, **settings: P.kwargs) -> R:
        """Run the measurement; the result carries its provenance."""
        from biascope.runs.ambient import under_torch_defaults  # which imports torch: names are known without it

        return under_torch_defaults(self._measured)(*args, **settings)

    def _measured(self, *args: P.args, **settings: P.kwargs) -> R:
        from biascope.runs.memory import trim

        bound = inspect.signature(self.function).bind(*args, **settings)
        bound.apply_defaults()
        label = self.name.replace("_", " ")
        with phase(f"{label}: checking the network"):
            self._check_arguments(bound.arguments)
        with phase(f"{label}: comparing samples alone and in a batch"):
            told = self._gated(bound.arguments)
        begin = time.perf_counter()
        with phase(label):
            result = self.function(*bound.args, **bound.kwargs)
        trim()
        return dataclasses.replace(
            result, provenance=self._provenance(bound, result, told, time.perf_counter() - begin)
        ).check()

    def _gated(self, arguments: dict[str, Any]) -> list[str]:
        """Put the precision of the run to one in which the network can be measured; what to tell of that."""
        family, probe, data, run = (arguments.get(name) for name in ("family", "probe", "data", "run"))
        if self.checks is None or family is None or (probe is None and data is None):
            return []
        settings = self._by_name(arguments)
        split = settings.get("split")
        if data is not None and split is not None and split not in data.sizes:
            return []  # which the function refuses
        inputs = functools.partial(_few_inputs, probe, data, split)
        precision, told = self.checks.before(family, inputs, settings, run)
        if run is not None:
            arguments["run"] = dataclasses.replace(run, precision=precision)
        return told

    def _provenance(
        self, bound: inspect.BoundArguments, result: Result, told: list[str], seconds: float
    ) -> dict[str, Any]:
        arguments = self._by_name(bound.arguments)
        run = arguments.pop("run", None)
        family, probe, basis, data = (arguments.pop(name, None) for name in ("family", "probe", "basis", "data"))
        families, signal = (arguments.pop(name, None) for name in ("families", "signal"))
        # What the function settled itself (a default estimator, draws made) overrides what it was asked for.
        settled = {key: value for key, value in result.provenance.items() if key != "warnings"}
        settings = {key: value for key, value in arguments.items() if _plain(value)} | settled
        record = recorded(self.name, self.paper, settings=settings, seconds=seconds, run=run)
        if family is not None:
            record["family"] = _identity(family)
            axes = () if probe is None else family.axes_at(probe.few(run), run)
            record["family"] |= {"axes": [axis.as_dict() for axis in axes]} if axes else {}
            record["family"] |= {"held": list(family.held)} if family.held else {}
        if families is not None:
            record["families"] = [_identity(each) for each in families]
        if probe is not None:
            record["probe"] = probe.description
            record["input_shape"] = list(probe.input_shape)
        if basis is not None:
            record["basis"] = {"name": basis.name, "directions": len(basis), "shape": list(basis.shape)}
        if data is not None:
            record["data"] = {"name": data.name, "samples": data.sizes, "shape": list(data.shape)}
            record["data"] |= {"preparation": prepared} if (prepared := getattr(data, "prepared", "")) else {}
            classes = getattr(data, "classes", ())
            if 0 < len(classes) <= _NAMED and not all(name.isdecimal() for name in classes):
                record["data"]["classes"] = list(classes)
        if signal is not None:
            record["data"] = {"name": signal.name, "shape": [*signal.shape, signal.channels]}
        # Not result.warnings: a result may add sentences of its own to those that are recorded.
        warnings = [*told, *result.provenance.get("warnings", ()), *self._doubts(family, probe, data, settings, run)]
        return record | ({"warnings": warnings} if warnings else {})

    def _check_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Refuse before any work what cannot be measured: wrong types, nan, infinity, a network that does not accept the inputs."""
        for key, (attribute, what) in _ROLES.items():
            given = arguments.get(key)
            if given is not None and not hasattr(given, attribute):
                raise ValueError(f"{key} of {self.name} must be {what}, got {type(given).__name__}. Pass one.")
        named = self._by_name(arguments)
        for key, setting in self.settings.items():
            if not _fits(named[key], setting.annotation):
                raise ValueError(
                    f"{key} of {self.name} must be of type {setting.annotation}, got {named[key]!r}. Pass {key}={setting.default!r}."
                )
            for number in named[key] if isinstance(named[key], tuple | list) else (named[key],):
                if isinstance(number, float) and not math.isfinite(number):
                    raise ValueError(
                        f"{key} of {self.name} must be a finite number, got {number}. Pass {key}={setting.default}."
                    )
        family, run = arguments.get("family"), arguments.get("run")
        check_samples(family, arguments.get("data"))
        if family is None:
            return
        if (probe := arguments.get("probe")) is not None:
            few = probe.few(run)
            family.first_outputs(few, run)
            family.check_forward(few, run)
            family.axes_at(few, run)

    def _doubts(self, family: Any, probe: Any, data: Any, settings: Mapping[str, Any], run: Any) -> list[str]:
        """Warnings from cheap checks of this measurement."""
        if self.checks is None or family is None or (probe is None and data is None):
            return []
        inputs = functools.partial(_few_inputs, probe, data, settings.get("split"))
        with phase(f"{self.name.replace('_', ' ')}: checking derivatives"):
            return self.checks.after(family, inputs, settings, run)


_NAMED = 100  # classes whose names a result keeps
#: What arguments of a measurement are known by, and how one is made.
_ROLES = {
    "family": ("template", "a Family, such as Family.initialised(build)"),
    "probe": ("inputs", "a Probe, such as Probe.gaussian((1, 32, 32))"),
    "basis": ("shape", "a Basis, such as biascope.tasks.bases.fourier_half((1, 32, 32))"),
    "data": ("sizes", "Arrays, such as biascope.tasks.samples.samples_of('cifar10')"),
    "run": ("torch_device", "a Run, such as Run(device='cpu')"),
}
_TYPES = {"int": numbers.Integral, "float": numbers.Real, "str": str, "bool": bool, "None": type(None)}


def _fits(value: Any, annotation: str) -> bool:
    """Whether a value is of an annotated type; one that is not plain is left to the function."""
    kinds = [kind.strip() for kind in annotation.split("|")]
    return not set(kinds) <= set(_TYPES) or isinstance(value, tuple(_TYPES[kind] for kind in kinds))


def _identity(family: Any) -> dict[str, Any]:
    told = {"attention": family.attention, "weights_came_in": family.came_in}
    own = {key: words for key, words in told.items() if words}
    return {**family.identity, "parameters": family.num_parameters, "drawing": family.drawing, **own}


def _few_inputs(probe: Any, data: Any, split: str | None, run: Any) -> Any:
    """Two of the inputs that were measured at, on the device and in the precision of a run."""
    if probe is not None:
        return probe.few(run)
    import torch

    split = split or next(iter(data.sizes))
    x = data.batch(split, torch.tensor([0, data.sizes[split] - 1]))[0].to(run.torch_device)
    return x.to(run.dtype) if x.is_floating_point() else x


def check_samples(family: Any, data: Any) -> None:
    """Raise if a network does not accept the samples, before any work."""
    if family is None or data is None:
        return
    import torch

    for split in data.sizes if getattr(data, "holds_ids", False) else ():
        ids = data.splits[split][0].flatten(1).amax(1)
        x = data.batch(split, ids.argmax()[None])[0]
        must = f"accept the token ids of the {split} samples, the largest of which is {int(ids.max()):,}"
        family.tried(x.cpu(), must, "Pass ids below the size of its vocabulary, in the shape it was made for.")
    x = data.batch(next(iter(data.sizes)), torch.zeros(1, dtype=torch.long))[0]
    must = f"accept samples of shape {'×'.join(map(str, data.shape))}"
    family.tried(x.cpu(), must, "Pass samples of the shape it was made for.")


def measurement(
    *,
    title: str,
    paper: str,
    result: type[R],
    example: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]],
    network: dict[str, Any] | None = None,
    checks: Checks | None = None,
    command: str = "",
    probe: dict[str, Any] | None = None,
) -> Callable[[Callable[P, R]], Measurement[P, R]]:
    """Register a function as a measurement.

    Args:
        title: For the report.
        paper: Id of its paper.
        result: The class of what it returns.
        example: Gives a small case, ``((family, probe), {"draws": 8})``, for the contract test.
        network: What the command line should set of a network, ``{"outputs": 2}``, unless the user does.
        checks: Looks for reasons to distrust it; :func:`biascope.kernels.selftest.derivative_checks` for one that differentiates.
        command: The command that runs it, ``"biascope merge check"``, if ``biascope measure`` cannot.
        probe: How the command line should draw inputs, ``{"num": 64, "fresh": True}``, unless the user says; ``{"smooth": True}``
            for :meth:`~biascope.tasks.probe.Probe.smooth`.
    """
    return lambda function: Measurement(
        function, result, title, paper, example, network or {}, checks, command, probe or {}
    )


def require_own(folder: Path, *more: str) -> None:
    """Refuse a folder for results in which a file of the same name is not ours: before the work, not after it.

    Args:
        folder: Where results and ``report.html`` will lie.
        more: Other files that will be written there.

    Raises:
        ValueError: If there is such a file.
    """
    documents = [f"{name}/{store.DOCUMENT}" for name in (*names(), "result", "advice")]
    require_ours(*(folder / name for name in ("report.html", *documents, *more)))


def names() -> tuple[str, ...]:
    """All measurements, from the names of their files.

    Example:
        >>> "anisotropy_directions" in names()
        True
    """
    folder = Path(__file__).parents[1] / "measures"
    files = [*folder.glob("[!_]*.py"), *folder.glob("*/__init__.py")]
    found = (path.parent.name if path.name == "__init__.py" else path.stem for path in files if _registers(path))
    return tuple(sorted(found))


def _registers(path: Path) -> bool:
    """Whether a file registers a measurement; read, not imported."""
    return "\n@measurement(" in path.read_text(encoding="utf-8")


def find(name: str) -> Measurement[..., Any]:
    """A measurement by its name.

    Raises:
        ValueError: If there is none, with the nearest names.
    """
    wanted = name.replace("-", "_")
    if wanted not in names():
        near = difflib.get_close_matches(wanted, names(), n=3, cutoff=0.3) or list(names())
        raise ValueError(f"measurement must be one of the known ones, got {name!r}. Did you mean {' or '.join(near)}?")
    found: Measurement[..., Any] = getattr(importlib.import_module(f"biascope.measures.{wanted}"), wanted)
    return found


def title_of(result: Result) -> str:
    """The title of the measurement that gave a result."""
    name = result.measurement
    return find(name).title if name in names() else name.replace("_", " ").capitalize()


def load(folder: Path | str) -> Result:
    """A saved result, as its own class."""
    folder = Path(folder)
    document = store.read(folder)
    name, kind = str(document.get("measurement")), _kind_of(str(document.get("class", "")))
    if kind is None and name not in names():
        raise ValueError(
            f"{folder} must hold a result that this version can read, but this version has no measurement {name!r}. "
            "Open it with the version that wrote it."
        )
    try:
        result: Result = (kind or find(name).result).load(folder)
        result.check()
        _ = result.sentence(), result.subject, result.tables(), result.facts()
    except Exception as error:  # values of the wrong type make a result fail anywhere
        if isinstance(error, ValueError) and str(folder) in str(error):
            raise
        kind_of = type(error).__name__
        raise ValueError(
            f"{folder / store.DOCUMENT} must hold a complete result of this version, but does not ({kind_of}: {error}). "
            "Run the measurement again."
        ) from error
    return result


def saved(folder: Path, at_hand: Mapping[Path, Result] | None = None) -> tuple[dict[str, Result], list[str]]:
    """Every result saved below a folder by its place there, in an order that stays, and a sentence for each that cannot be read.

    Results of checkpoints come in the order of the numbers in their names.

    Args:
        folder: At any depth of which they lie.
        at_hand: By their folders, results that were just saved there and need not be read.
    """
    places = [document.parent.relative_to(folder) for document in folder.rglob(store.DOCUMENT)]
    found: dict[str, Result] = {}
    problems: list[str] = []
    for place in sorted(map(str, places), key=natural_order):
        try:
            found[place] = (at_hand or {}).get(folder / place) or load(folder / place)
        except ValueError as error:
            problems.append(str(error))
    return found, problems


def saved_results(folder: Path) -> list[Result]:
    """Every result saved in a run folder, those of checkpoints in the order of training.

    Raises:
        ValueError: If it holds none.
    """
    if not folder.is_dir():
        raise ValueError(f"The run folder {folder} does not exist. Check the path, or scan a network first.")
    found, problems = saved(folder)
    if problems:
        raise ValueError(problems[0])
    if not found:
        raise ValueError(f"{folder} must hold saved results, but has none. Pass a folder that biascope scan wrote.")
    return list(found.values())


def _kind_of(place: str) -> type[Result] | None:
    """The class of a result as its file says it, ``package.module:Name``; nothing but results of this package is looked up."""
    module, _, name = place.partition(":")
    if not module.startswith("biascope."):
        return None
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, Result) else None


def settings_from(found: Measurement[..., Any], words: list[str]) -> dict[str, Any]:
    """The keyword arguments of a measurement from command-line words ``--draws 100 --centred false``.

    The words are those of :attr:`Measurement.settings`: ``--epochs 5`` of a measurement with a recipe gives a recipe of 5 epochs.

    Raises:
        ValueError: If there is no such setting, or its value has the wrong type or is out of range.
    """
    known = found.settings
    settings: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word, _, attached = rest.pop(0).partition("=")
        name = word.removeprefix("--").replace("-", "_")
        if not word.startswith("--") or name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f" Did you mean --{near[0]}?" if near else ""
            raise ValueError(
                f"{found.name} has no setting {word!r}.{meant} It takes: {', '.join('--' + key for key in known)}."
            )
        if not attached and not rest:
            raise ValueError(f"{word} of {found.name} needs a value. Pass {word} VALUE.")
        settings[name] = _converted(attached or rest.pop(0), known[name].annotation, word)
    return found.grouped(settings)


def _converted(text: str, annotation: str, word: str) -> Any:
    kinds = [kind.strip() for kind in annotation.split("|")]
    if text.lower() == "none" and "None" in kinds:
        return None
    if kinds[0].startswith("tuple["):
        return tuple(_converted(part, kinds[0][len("tuple[") :].split(",")[0], word) for part in text.split(","))
    try:
        if "bool" in kinds:
            return {"true": True, "false": False}[text.lower()]
        return int(text) if "int" in kinds else float(text) if "float" in kinds else text
    except (ValueError, KeyError) as error:
        raise ValueError(f"{word} must be of type {annotation}, got {text!r}. Pass such a value.") from error


def _plain(value: Any) -> bool:
    return (
        value is None
        or isinstance(value, bool | int | float | str)
        or (isinstance(value, tuple | list) and all(map(_plain, value)))
    )
