"""Every option that commands share, once: its name, its help, its type. Groups of them are parameters of commands."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from biascope.cli import _completion
from biascope.cli._settings_file import apply_file
from biascope.derivatives.sampling import Sampling
from biascope.editing.reading import Reading
from biascope.results.axes import Axis, named_axes
from biascope.runs.byte_size import byte_size

if TYPE_CHECKING:
    from biascope.families.family import Family
    from biascope.families.held import Holding
    from biascope.families.named_model import Pixels
    from biascope.runs.run import Run
    from biascope.tasks.signals import Signal
    from biascope.tasks.task import Arrays

MODEL_HELP = (
    "A network's name (biascope list), path/to/file.py:build, package.module:build, or a model of a library: timm:NAME, "
    "torchvision:NAME, open_clip:NAME, hf:FOLDER, hf-config:TYPE, peft:FOLDER, FILE.pt2."
)

Model = Annotated[str, typer.Argument(help=MODEL_HELP, autocompletion=_completion.networks)]
SignalPath = Annotated[Path, typer.Argument(help="An image, a .wav sound or an .npy array.")]
DatasetName = Annotated[
    str,
    typer.Argument(help="A published data set, or your own by name or path.", autocompletion=_completion.data_sets),
]

_MODEL = typer.Option("--model", help=MODEL_HELP, autocompletion=_completion.networks)
ModelOption = Annotated[str, _MODEL]
MaybeModel = Annotated[str | None, _MODEL]
Input = Annotated[
    str, typer.Option("--input", help="Shape of one input, such as 1x32x32 or 3x224x224; beside --hold, x=16x4.")
]
Hold = Annotated[
    list[str],
    typer.Option(
        "--hold",
        help="Another input and its value, NAME=FILE, NAME=none or NAME=3; may be repeated. A file is one sample's.",
    ),
]
Axes = Annotated[
    str,
    typer.Option(
        "--axes",
        help="What the axes of an input are, such as token,channel or time,feature. Default: as the network's layers have them.",
    ),
]
Settings = Annotated[list[str], typer.Option("--set", help="A setting of the network, key=value; may be repeated.")]
Download = Annotated[
    bool, typer.Option("--download", help="Fetch weights and configurations of a library's model from its hub.")
]
Full = Annotated[
    bool, typer.Option("--full", help="Build hf-config:TYPE at the library's own size instead of two layers.")
]
Weights = Annotated[Path | None, typer.Option("--weights", help="File of trained weights, safetensors or torch.")]
Batchnorm = Annotated[
    str,
    typer.Option(
        "--batchnorm",
        help="BatchNorm uses initial or stored statistics (eval) or each input's (train).",
        autocompletion=_completion.words("eval", "train"),
    ),
]
Readout = Annotated[
    str,
    typer.Option(
        "--readout",
        help="How to reduce several outputs to a scalar: first, sum, mean, margin, random, or features (before the head).",
        autocompletion=_completion.words("first", "sum", "mean", "margin", "random", "features"),
    ),
]
_DRAWS = "Number of random initialisations of each network."
Draws = Annotated[int, typer.Option("--draws", help=_DRAWS)]
MaybeDraws = Annotated[
    int | None, typer.Option("--draws", help=_DRAWS, show_default="400, or fewer where a network takes many operations")
]
Minutes = Annotated[
    float | None,
    typer.Option(
        "--minutes", help="Draw as many networks as resolve directions, in at most so many minutes of drawing."
    ),
]
Estimator = Annotated[
    str | None,
    typer.Option(
        "--estimator",
        help="Also measure the published anisotropy directions with this estimator: difference, exact, mixed or mixed_difference. "
        "With trained weights: how to compute their gradients, exact or difference.",
        autocompletion=_completion.words("difference", "exact", "mixed", "mixed_difference"),
    ),
]
Step = Annotated[float, typer.Option("--step", help="Half width h of the finite differences.")]
_INPUTS = typer.Option("--inputs", help="Number of inputs to measure each network on.")
Inputs = Annotated[int, _INPUTS]
MaybeInputs = Annotated[int | None, _INPUTS]
MaybeScale = Annotated[float | None, typer.Option("--scale", help="Standard deviation of the Gaussian inputs.")]
Positive = Annotated[
    str,
    typer.Option(
        "--positive", help="Classes with the positive label, such as 0,1,8,9. Default: classes are not grouped."
    ),
]
_DATA = typer.Option(
    "--data",
    help="Samples to measure on: a data set (biascope data list), an .npz file, a table (.csv, .tsv, .parquet, .arrow), a folder "
    "of .npy files or tables, or an image folder; for signals also an image, a .wav sound or an .npy array.",
    autocompletion=_completion.data_sets,
)
Data = Annotated[str, _DATA]
SeveralData = Annotated[list[str], _DATA]
_SAMPLES = typer.Option(
    "--samples", help="Maximum number of samples, or one number for each split, separated by commas: 2000,1000."
)
Samples = Annotated[str, _SAMPLES]
MaybeSamples = Annotated[str | None, _SAMPLES]
Standardise = Annotated[
    str | None,
    typer.Option(
        "--standardise",
        help="Standardise each channel or feature over the training samples (own), scale pixels as the library of the model states "
        "(model), or leave numbers as they are (none). Token ids always stay as they are.",
        show_default="model where the library states it, else own",
        autocompletion=_completion.words("own", "model", "none"),
    ),
]
Label = Annotated[
    str | None,
    typer.Option("--label", help='Column of the labels in a table. Default: one called "label", else the last.'),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option("--tokenizer", help="Read the data as texts, by this tokenizer.json or a folder that has one."),
]
Length = Annotated[int | None, typer.Option("--length", help="Number of token ids of each text.", show_default="64")]
MaybeSplit = Annotated[str | None, typer.Option("--split", help="Split of the data set to take samples from.")]
DataRoot = Annotated[
    Path | None,
    typer.Option("--data-root", help="Folder of data sets. Default: BIASCOPE_DATA, or else ~/.cache/biascope."),
]
Steps = Annotated[int, typer.Option("--steps", help="Number of training iterations.")]
_RATE = typer.Option("--rate", help="Learning rate; with a schedule, the highest.")
Rate = Annotated[float, _RATE]
MaybeRate = Annotated[float | None, _RATE]
Batch = Annotated[int, typer.Option("--batch", help="Batch size: samples or points in a training iteration, at most.")]
Grid = Annotated[int, typer.Option("--grid", help="Number of coefficients along each side of a disentanglement map.")]
Seed = Annotated[int, typer.Option("--seed", help="Random seed for weights, inputs and other draws.")]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        help="Device to compute on: auto, cpu, cuda or cuda:N.",
        autocompletion=_completion.words("auto", "cpu", "cuda"),
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        help="Floating-point precision: float64, float32, tf32, float16 or bfloat16.",
        autocompletion=_completion.words("float64", "float32", "tf32", "float16", "bfloat16"),
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on", help="Where to run trainings: on this machine by default; ray, or ray://HOST:PORT, for a Ray cluster."
    ),
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for results and report; in biascope-runs by default.")]
Yes = Annotated[bool, typer.Option("--yes", help="Run the work even if it would take more than a day.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the expected time and memory, and stop.")]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        help="Main memory that the command may take, such as 2GB. Work is cut to fit, and what cannot be is refused.",
        show_default="half of what is free",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Read options from this TOML file; options on the command line override it. Every run writes one beside its results.",
        is_eager=True,
        callback=apply_file,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print results as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only the result, without progress.")]
_HEAD = (
    "Name of the last linear layer, such as head. Every model keeps its own; it is not merged. For an encoder, the usual name is "
    "known: _fc, head or classifier."
)
_PIXELS = "Scale of images: own (mean 0, variance 1 over the set), unit (0 to 1), or MEAN:SPREAD such as 0.1307:0.3081."
Unrelated = Annotated[
    bool, typer.Option("--unrelated", help="Accept models that do not seem to be fine-tuned from the base.")
]
#: Settings of the package that a command takes as a group, with the option of each field that has one.
SETTINGS: dict[type[Any], dict[str, Any]] = {
    Sampling: {"estimator": Estimator, "step": Step, "draws": MaybeDraws, "minutes": Minutes, "readout": Readout},
    Reading: {
        "model": MaybeModel,
        "input": Input,
        "head": Annotated[str | None, typer.Option(help=_HEAD)],
        "features": Annotated[
            bool, typer.Option("--features", help="Compare outputs by cosine: they are features, not class scores.")
        ],
        "pixels": Annotated[str, typer.Option(help=_PIXELS)],
        "split": MaybeSplit,
        "unrelated": Unrelated,
    },
}


_A_DAY = 86_400.0  # seconds


class OptionGroup:
    """Options that go together: a frozen dataclass whose fields are options, all with defaults.

    Give a parameter of a command this type.
    """


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters of a :class:`OptionGroup` type, or of one in :data:`SETTINGS`, are replaced by the options in it.

    A default instance of the group sets other defaults for this command. Python calls it with the options as keywords.

    Example:
        >>> def told(name: str, output: Output) -> None:
        ...     print(name, output.quiet)
        >>> with_groups(told)("lenet", quiet=True)
        lenet True
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        hint = hints[name]
        if isinstance(hint, type) and (hint in SETTINGS or issubclass(hint, OptionGroup)):
            groups[name] = hint
            parameters += _options_of(hint, parameter.default)
        else:
            parameters.append(parameter.replace(annotation=hint))
    signature = inspect.Signature(parameters)

    @functools.wraps(command)
    def called(*args: Any, **options: Any) -> None:
        bound = signature.bind(*args, **options)
        bound.apply_defaults()
        given = dict(bound.arguments)
        for name, group in groups.items():
            given[name] = group(**{option: given.pop(option) for option in _names_of(group)})
        command(**given)

    called.__signature__ = signature  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def _options_of(group: type[Any], default: Any) -> list[inspect.Parameter]:
    hints = SETTINGS.get(group) or get_type_hints(group, include_extras=True)
    usual = group() if default is inspect.Parameter.empty else default
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=getattr(usual, name), annotation=hints[name])
        for name in _names_of(group)
    ]


def _names_of(group: type[Any]) -> list[str]:
    """The options of a group, those of what it extends last."""
    return (
        [*SETTINGS[group]]
        if group in SETTINGS
        else [name for kind in group.__mro__ for name in inspect.get_annotations(kind)]
    )


@dataclass(frozen=True)
class Output(OptionGroup):
    """How a command prints."""

    as_json: Json = False
    quiet: Quiet = False


@dataclass(frozen=True)
class Lasting(Output):
    """How a command prints that may take long."""

    dry_run: DryRun = False
    memory: Memory = None
    config: Config = None

    def __post_init__(self) -> None:
        if self.memory is not None:
            byte_size(self.memory, "--memory", "2GB")


@dataclass(frozen=True)
class Work(Lasting):
    """How a command computes, and where it writes."""

    device: Device = "auto"
    precision: Precision = "float32"
    out: Out = None
    yes: Yes = False

    def run(self, folder: Path | None, *, on: str | None = None, data_root: Path | None = None) -> Run:
        """How the work is run. A missing device raises an error before any work."""
        from biascope.results.registry import require_own
        from biascope.runs.run import Run

        if folder is not None:
            require_own(folder)
        run = Run(
            folder=folder,
            device=self.device,
            precision=self.precision,
            progress=not self.quiet,
            on=on,
            data_root=data_root,
            patience=None if self.yes else _A_DAY,
            memory=self.memory,
        )
        if on is None:
            _ = run.torch_device
        return run


@dataclass(frozen=True)
class SeededWork(Work):
    """Work with random draws."""

    seed: Seed = 0


@dataclass(frozen=True)
class InputOptions(OptionGroup):
    """What networks are given: the measured input, what its axes are, and what the other inputs are."""

    input: Input = ""
    axes: Axes = ""
    hold: Hold = dataclasses.field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of one input, where it is given."""
        return self._measured[1]

    def shape_on(self, samples: Arrays) -> tuple[int, ...]:
        """Of one input, which is one of the samples; ids are looked up, so their inputs have another shape.

        Raises:
            ValueError: If another shape is given.
        """
        if self.shape in (None, samples.shape) or samples.holds_ids:
            return self.shape or samples.shape
        given, own = ("x".join(map(str, shape)) for shape in (self.shape or (), samples.shape))
        raise ValueError(
            f"--input must be the shape of the samples, {own}, got {given}. Leave --input out, or pass other samples."
        )

    @property
    def _measured(self) -> tuple[str, tuple[int, ...] | None]:
        from biascope.families.source import parse_input

        return parse_input(self.input) if self.input else ("", None)

    @property
    def holding(self) -> Holding | None:
        """Which of several inputs are held, and the name of the measured one."""
        measured = self._measured[0]
        if not self.hold and not measured:
            return None
        from biascope.families.held import Holding

        pairs = [each.partition("=") for each in self.hold]
        if bad := next((name + equals + value for name, equals, value in pairs if not (name and equals and value)), ""):
            raise ValueError(f"What is held must be written NAME=VALUE, got {bad!r}. Pass such as --hold mask=none.")
        if (twice := len(names := [name for name, _, _ in pairs]) > len(set(names))) or measured in names:
            word = "held twice" if twice else "measured"
            raise ValueError(
                f"Each input must be named once, but one of {', '.join(names)} is also {word}. Leave one out."
            )
        return Holding.of({name: value for name, _, value in pairs}, measured)

    @property
    def named_axes(self) -> tuple[Axis, ...]:
        """What the axes of an input are, where it is said."""
        return named_axes(self.axes)


@dataclass(frozen=True)
class NetworkOptions(InputOptions):
    """Options of a network besides its name."""

    settings: Settings = dataclasses.field(default_factory=list)
    weights: Weights = None
    batchnorm: Batchnorm = "eval"
    download: Download = False
    full: Full = False

    @property
    def chosen(self) -> dict[str, Any]:
        """The settings."""
        from biascope.families.source import parse_settings

        flags = {name: True for name in ("download", "full") if getattr(self, name)}
        return parse_settings(self.settings) | flags

    def family(self, model: str, shape: tuple[int, ...] | None, usual: Mapping[str, Any] | None = None) -> Family:
        """The networks of that name; usual settings hold where the user sets none."""
        from biascope.families.source import family_of

        settings = {**(usual or {}), **self.chosen}
        return family_of(
            model,
            shape=shape,
            settings=settings,
            weights_file=self.weights,
            batchnorm=self.batchnorm,
            asked_axes=self.named_axes,
            holding=self.holding,
        )


@dataclass(frozen=True)
class DataOptions(OptionGroup):
    """Which samples are measured on."""

    data: Data = "cifar10"
    samples: Samples = "2000,1000"
    standardise: Standardise = None
    label: Label = None
    tokenizer: Tokenizer = None
    length: Length = None
    data_root: DataRoot = None

    def __post_init__(self) -> None:
        if self.length is not None and self.length < 1:
            raise ValueError(f"--length must be at least 1, got {self.length}. Pass --length 64.")
        if self.standardise not in (None, "own", "model", "none"):
            raise ValueError(
                f"--standardise must be own, model or none, got {self.standardise!r}. Pass --standardise own."
            )
        given = [name for name in ("label", "tokenizer", "length") if getattr(self, name) is not None]
        if given and not self.data:
            raise ValueError(f"--{given[0]} says how --data is read, but there is no --data. Pass both, or neither.")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples to take of each split."""
        return whole_numbers(self.samples, "--samples")

    def scale(self, model: str, settings: Mapping[str, Any] | None = None) -> str | Pixels:
        """How the samples are standardised for a model."""
        from biascope.families.source import pixels_of

        if self.standardise not in (None, "model"):
            return str(self.standardise)
        if (stated := pixels_of(model, settings)) is not None:
            return dataclasses.replace(stated, usual=self.standardise is None)
        if self.standardise == "model":
            raise ValueError(
                f"--standardise model needs a model whose library states how pixels are scaled, got {model}. Pass --standardise own."
            )
        return "own"

    def arrays(self, seed: int, model: str, settings: Mapping[str, Any] | None = None) -> Arrays:
        """The samples, on the scale of a model."""
        from biascope.tasks.samples import samples_of

        how = {name: getattr(self, name) for name in ("label", "tokenizer", "length")}
        how["standardise"] = self.scale(model, settings)
        return samples_of(self.data, sizes=self.sizes, root=self.data_root, seed=seed, **how)


@dataclass(frozen=True)
class SignalOptions(OptionGroup):
    """How a signal is read from its file."""

    longest: Annotated[
        int | None, typer.Option("--longest", help="Shrink an image until its longer side has this many pixels.")
    ] = None
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="Length of the part of a sound to use, in seconds.")
    ] = None
    start: Annotated[float, typer.Option("--start", help="Start of the part of a sound to use, in seconds.")] = 0.0
    grey: Annotated[bool, typer.Option("--grey/--no-grey", help="Convert an image to greyscale.")] = False

    def read(self, path: Path) -> Signal:
        """The signal."""
        from biascope.tasks.signal_files import signal_of

        return signal_of(path, longest=self.longest, seconds=self.seconds, start=self.start, grey=self.grey)

    def words(self, signal: Signal) -> list[str]:
        """The options that read the same signal again: of a sound its part, of an image its size and colours."""
        if signal.rate:
            part = [] if self.seconds is None else [f"--seconds {self.seconds:g}"]
            return [*part, *([f"--start {self.start:g}"] if self.start else [])]
        size = [] if self.longest is None else [f"--longest {self.longest}"]
        return [*size, *(["--grey"] if self.grey else [])]


def positive_classes(text: str) -> tuple[int, ...] | None:
    """What :data:`Positive` names; ``None`` for every class."""
    return whole_numbers(text, "--positive") if text else None


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """Numbers written as ``2000,1000``.

    Example:
        >>> whole_numbers("2000,1000", "--samples")
        (2000, 1000)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(
            f"{option} must be whole numbers separated by commas, got {text!r}. Pass 2000,1000."
        ) from error
