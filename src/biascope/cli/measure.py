"""SHOW: `biascope measure`: one measurement with all its settings, on what its function asks for."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from biascope.cli import _completion
from biascope.cli._command import WORDS, Command
from biascope.cli._descriptions import SettingHelp, command_of, data_of, measurement_line, settings_of
from biascope.cli._dry_run import rehearsed
from biascope.cli._settings_file import extra_settings, from_word, keep_settings
from biascope.cli.options import (
    Data,
    DataOptions,
    DataRoot,
    Label,
    Length,
    MaybeInputs,
    MaybeSamples,
    MaybeScale,
    Model,
    NetworkOptions,
    On,
    OptionGroup,
    SeededWork,
    Standardise,
    Tokenizer,
    with_groups,
)
from biascope.cli.printing import print_results

if TYPE_CHECKING:
    from biascope.families.family import Family
    from biascope.results.registry import Measurement
    from biascope.tasks.bases import Basis
    from biascope.tasks.probe import Probe
    from biascope.tasks.signals import Signal

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}  # a measurement's settings are its own

NAME_HELP = (
    "A measurement (biascope list) and a network: its name, path/to/file.py:build or package.module:build. Default: LeNet, on "
    "signals SIREN; a theory takes no network. Settings of the measurement follow as --setting value."
)
BASIS_HELP = (
    "Directions to learn along: fourier (cosines), fourier-im (sines), pixels, random, or a run folder with "
    "anisotropy directions."
)


@dataclass(frozen=True)
class PlaceOptions(OptionGroup):
    """Where a measurement looks: at inputs, or along directions."""

    inputs: MaybeInputs = None
    fresh: Annotated[bool | None, typer.Option(help="Draw new inputs for each network.", show_default=False)] = None
    scale: MaybeScale = None
    basis: Annotated[str, typer.Option(help=BASIS_HELP)] = "fourier"
    every: Annotated[
        int, typer.Option(help="Use every n-th direction of the basis; for frequencies, every n-th down and across.")
    ] = 4

    def check(self) -> None:
        """Refuse numbers that make no sense."""
        if self.inputs is not None and self.inputs < 1:
            raise ValueError(f"--inputs must be at least 1, got {self.inputs}. Pass --inputs 1.")
        if self.scale is not None and not 0 < self.scale < math.inf:
            raise ValueError(f"--scale must be a positive number, got {self.scale}. Pass --scale 1.")

    def given_to(
        self, wanted: Collection[str], family: Family | None, shape: tuple[int, ...], seed: int, usual: dict[str, Any]
    ) -> dict[str, Any]:
        """What a measurement asks for of it; ``usual`` is how its inputs are drawn unless the user says."""
        if "probe" in wanted:
            asked = {"num": self.inputs, "std": self.scale, "fresh": self.fresh}
            how = {**usual, **{name: value for name, value in asked.items() if value is not None}}
            return {"probe": probe_of(family, shape, seed, **how)}
        return {"basis": basis_of(self.basis, shape, self.every, seed)} if "basis" in wanted else {}


class MeasureCommand(Command):
    """A command whose help, completion and settings file know the settings of the measurement that is named."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """List the settings of the measurement besides the shared options."""
        if (name := _named(ctx.meta.get(WORDS, []))) is None:
            super().format_help(ctx, formatter)
            return
        if own := command_of(name):
            raise ValueError(f"biascope measure cannot run {name}. Type {own} --help.")
        help, self.help = self.help, f"{measurement_line(name)}\n\n{_EXAMPLE.format(name=name)}"
        try:
            with self._listing(name):
                super().format_help(ctx, formatter)
        finally:
            self.help = help

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete networks and settings of the measurement, besides options."""
        if (name := _named([str(ctx.params.get("name", ""))])) is None:
            return super().shell_complete(ctx, incomplete)
        if not incomplete.startswith("-"):
            (model,) = _parameters_of(inspect.Parameter("model", inspect.Parameter.KEYWORD_ONLY, annotation=Model))
            return model.shell_complete(ctx, incomplete)
        with self._listing(name):
            return super().shell_complete(ctx, incomplete)

    @contextlib.contextmanager
    def _listing(self, name: str) -> Iterator[None]:
        """List the settings of a measurement as options for a while; they are never parsed as such."""
        before = self.params
        self.params = [*self._used(name), *_as_options(name, self.own_settings(name))]
        try:
            yield
        finally:
            self.params = before

    def _used(self, name: str) -> list[Any]:
        """The shared options that have a use for a measurement."""
        wanted = data_of(name)
        unused = {option for data, options in _ABOUT.items() if not wanted & set(data) for option in options}
        return [each for each in self.params if each.name not in unused]

    def own_settings(self, name: str) -> dict[str, SettingHelp]:
        """The settings of a measurement that are not typed as a shared option."""
        taken = {option for each in self._used(name) for option in each.opts}
        return {key: each for key, each in settings_of(name).items() if f"--{key.replace('_', '-')}" not in taken}

    def invoke(self, ctx: Any) -> Any:
        """Add the network and the settings that a file has and the command line has not."""
        filed, given = (ctx.default_map or {}).get("name"), ctx.params.get("name")
        if (
            filed is not None and _named([str(given)]) is None
        ):  # the file names the measurement, the only word is the network
            ctx.params["name"], ctx.args = filed, [given, *ctx.args]
        ctx.args = _with_file(ctx.args, extra_settings(ctx))
        return super().invoke(ctx)

    def settings_of_words(self, words: list[str]) -> dict[str, Any]:
        """The network and the measurement's own settings, as a settings file has them."""
        model, rest = _model_and_settings(words)
        settings: dict[str, Any] = {} if model is None else {"model": model}
        while rest:
            key, sign, value = rest.pop(0).partition("=")
            settings[key.removeprefix("--").replace("_", "-")] = from_word(
                value if sign else rest.pop(0) if rest else ""
            )
        return settings


# The options that say on what to measure, by what of it a measurement takes.
_ABOUT = {
    ("family",): ("input", "axes", "hold", "settings", "weights", "batchnorm"),
    ("data", "signals", "signal"): ("data", "samples", "data_root"),
    ("data",): ("standardise", "label", "tokenizer", "length"),
    ("probe",): ("inputs", "fresh", "scale"),
    ("basis",): ("basis", "every"),
}
_EXAMPLE = "For example: biascope measure {name} lenet. Numbers in a list are separated by commas."


def _named(words: Sequence[str]) -> str | None:
    """The measurement among words of a command line."""
    from biascope.results.registry import names

    known = names()
    return next((name for word in words if (name := word.replace("-", "_")) in known), None)


def _as_options(name: str, settings: Mapping[str, SettingHelp]) -> Sequence[Any]:
    """The settings of a measurement as options."""
    parameters = []
    for key, each in settings.items():
        option = typer.Option(
            f"--{key.replace('_', '-')}",
            help=each.help,
            metavar=each.kind,
            rich_help_panel=f"Settings of {name}",
        )
        kind = Annotated[str, option]
        parameters.append(inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=kind))
    return _parameters_of(*parameters)


def _parameters_of(*wanted: inspect.Parameter) -> Sequence[Any]:
    """Parameters as Typer makes them for a command."""

    def command(**given: Any) -> None: ...

    command.__signature__ = inspect.Signature(wanted)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in wanted}
    app = typer.Typer(add_completion=False)
    app.command()(command)
    parameters: Sequence[Any] = typer.main.get_command(app).params
    return parameters


def _with_file(words: list[str], file: dict[str, str]) -> list[str]:
    """The words of a command line and those of a settings file; the command line overrides it.

    Example:
        >>> _with_file(["--noise", "3"], {"model": "mlp", "noise": "0", "test": "64"})
        ['mlp', '--test', '64', '--noise', '3']
    """
    model, own = _model_and_settings(words)
    given = {word.partition("=")[0].removeprefix("--").replace("_", "-") for word in own if word.startswith("--")}
    named = model or file.get("model")
    rest = {key.replace("_", "-"): value for key, value in file.items() if key != "model"}
    more = [word for key, value in rest.items() if key not in given for word in (f"--{key}", value)]
    return [*([named] if named else []), *more, *own]


COMMAND = MeasureCommand


@with_groups
@rehearsed()
def measure(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME [MODEL]", help=NAME_HELP, autocompletion=_completion.measurements)
    ],
    *,
    network: NetworkOptions,
    data: Data = "cifar10",
    samples: MaybeSamples = None,
    standardise: Standardise = None,
    label: Label = None,
    tokenizer: Tokenizer = None,
    length: Length = None,
    data_root: DataRoot = None,
    place: PlaceOptions,
    on: On = None,
    work: SeededWork,
) -> None:
    """Run one measurement with all its settings, for example: measure directional_bias lenet --noise 0,3 --every 3.

    By default, 2,000 training and 1,000 test samples of a data set are used, or one input with standard deviation 1; for the mean
    gradient, 64 fresh inputs per network; for equivariance, 8 smooth ones. If a measurement uses no data set or no such inputs, then
    --samples, --inputs and --scale are settings of its own.
    """
    from biascope.families import source as model_source
    from biascope.results.registry import find, settings_from
    from biascope.results.report import write_folder_report
    from biascope.runs.files import folder_name

    place.check()
    measurement = find(name)
    if measurement.command:
        raise ValueError(f"biascope measure cannot run {measurement.name}. Use {measurement.command}.")
    wanted = inspect.signature(measurement.function).parameters
    model, words = _model_and_settings(context.args)
    own = settings_from(measurement, [*words, *_not_shared(wanted, samples, place)])
    if "seed" in wanted:
        own["seed"] = work.seed
    if model is not None and "family" not in wanted:
        raise ValueError(f"{measurement.name} is a theory and takes no network, got {model!r}. Leave the network out.")
    on_signals = "signals" in wanted or "signal" in wanted
    model = model or ("siren" if on_signals else "lenet")
    source = DataOptions(data, samples or "2000,1000", standardise, label, tokenizer, length, data_root)
    shape, arrays, signals = network.shape, None, None
    if "data" in wanted:
        # Whatever the seed: networks that are compared see the same samples.
        arrays = source.arrays(0, model, network.chosen)
        shape = network.shape_on(arrays)
    elif on_signals:
        signals = _signals(data, source.sizes[0], data_root)
        shape = shape or (len(signals[0].shape),)
    family = measured_family(measurement, model, network, shape) if "family" in wanted else None
    named = folder_name(model, network.chosen, network.weights) if family else measurement.name
    folder = work.out or Path("biascope-runs") / named
    run = work.run(folder, on=on, data_root=data_root)
    given = {
        "family": family,
        "data": arrays,
        "signals": signals,
        "signal": signals and signals[0],
        **place.given_to(
            wanted, family, shape or model_source.usual_shape(model, network.chosen), work.seed, measurement.probe
        ),
    }
    result = measurement(*(given[key] for key in wanted if key in given and given[key] is not None), run=run, **own)
    kept = result.save(folder / measurement.name)
    keep_settings(folder, measurement.name)
    print_results([result], write_folder_report(folder, at_hand={kept: result}), work.as_json)


def _not_shared(wanted: Collection[str], samples: str | None, place: PlaceOptions) -> list[str]:
    """Options of this command that have no use of their own for a measurement: they are words for its settings."""
    given = {
        "--samples": None if {"data", "signals", "signal"} & set(wanted) else samples,
        "--inputs": None if "probe" in wanted else place.inputs,
        "--scale": None if "probe" in wanted else place.scale,
    }
    return [word for option, value in given.items() if value is not None for word in (option, str(value))]


def measured_family(
    measurement: Measurement[..., Any], model: str, network: NetworkOptions, shape: tuple[int, ...] | None
) -> Family:
    """The networks to measure, under a name with the user's settings."""
    from biascope.families.libraries import kind_of
    from biascope.families.named_model import label_of

    # A measurement may need networks of a kind (two outputs for two classes); what the user sets goes before.
    usual = {} if ":" in model else measurement.network
    family = network.family(model, shape, usual)
    if network.weights is None and not kind_of(model):
        family = dataclasses.replace(family, name=label_of(family.name.split(" ")[0], network.chosen))
    return family


def _signals(name_or_path: str, num: int, root: Path | None) -> Sequence[Signal]:
    """A signal of a file, or the images of a data set, in grey."""
    from biascope.tasks.samples import grey_signals
    from biascope.tasks.signal_files import signal_of

    path = Path(name_or_path)
    if path.is_file() and path.suffix != ".npz":
        return [signal_of(path, grey=True)]
    return grey_signals(name_or_path, num=num, root=root)


def _model_and_settings(words: list[str]) -> tuple[str | None, list[str]]:
    """The network, if one was named, and the words of the measurement's own settings, in any order.

    Example:
        >>> _model_and_settings(["--draws", "8", "lenet", "--seed=1"])
        ('lenet', ['--draws', '8', '--seed=1'])
    """
    model: str | None = None
    settings: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--") or model is not None:
            settings.append(word)
            if word.startswith("--") and "=" not in word and rest:
                settings.append(rest.pop(0))
        else:
            model = word
    return model, settings


def probe_of(family: Family | None, shape: tuple[int, ...], seed: int, *, smooth: bool = False, **how: Any) -> Probe:
    """Inputs of independent numbers; where a measurement asks for smooth ones, and content can be shifted in them, smooth.

    Raises:
        ValueError: If smooth inputs were to be fixed.
    """
    from biascope.results.axes import InputAxes
    from biascope.tasks.probe import Probe

    if smooth and family is not None:
        axes = InputAxes.of(family.axes_at(Probe.gaussian(shape).few()), shape)
        if axes.shifted:  # else the measurement says what it needs
            if not how.pop("fresh", True):
                raise ValueError("Smooth inputs must be fresh for each network. Leave --no-fresh out.")
            return Probe.smooth(shape, along=axes.shifted, seed=seed, **how)
    return Probe.gaussian(shape, seed=seed, **how)


def basis_of(text: str, shape: tuple[int, ...], every: int, seed: int) -> Basis:
    """Directions as a user names them.

    Raises:
        ValueError: If there is no such basis, or the folder holds no directions of that input shape.
    """
    from biascope.tasks import bases

    if every < 1:
        raise ValueError(f"--every must be at least 1, got {every}. Pass --every 4 for every fourth.")
    if text in ("fourier", "fourier-im"):
        if len(shape) < 2:
            raise ValueError(f"--basis {text} needs images, got inputs of shape {shape}. Pass --basis pixels.")
        return bases.fourier_half(shape, "Im" if text == "fourier-im" else "Re", every)
    if text == "pixels":
        whole = bases.canonical(shape)
    elif text == "random":
        whole = bases.random(shape, seed=seed)
    elif Path(text).is_dir():
        whole = _saved_directions(Path(text), shape)
    else:
        raise ValueError(
            f"--basis must be fourier, fourier-im, pixels, random or a run folder with directions, got {text!r}. "
            "Scan the network first and pass its run folder."
        )
    return whole.part(range(0, len(whole), every))


def _saved_directions(folder: Path, shape: tuple[int, ...]) -> Basis:
    import torch

    from biascope.measures.covariance import CovarianceResult
    from biascope.results.registry import saved_results
    from biascope.tasks import bases

    measured = [result for result in saved_results(folder) if isinstance(result, CovarianceResult)]
    if not measured:
        raise ValueError(
            f"{folder} must hold measured directions, but has none. Pass a folder that biascope scan wrote."
        )
    order = ["anisotropy_directions", "mean_gradient"]
    measured.sort(key=lambda each: order.index(each.measurement) if each.measurement in order else len(order))
    result = measured[0]
    vectors, values = torch.as_tensor(result.directions), torch.as_tensor(result.eigenvalues)
    return bases.ordered(vectors, shape, values, name=f"anisotropy ({result.subject})")
