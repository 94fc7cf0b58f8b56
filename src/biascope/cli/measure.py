"""SHOW: `biascope measure`: one measurement with all its settings, on what its function asks for."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from biascope.results.registry import Measurement
    from biascope.tasks.bases import Basis
    from biascope.tasks.signals import Signal

MODEL_HELP = "A network's name (biascope list), path/to/file.py:build or package.module:build."
BASIS_HELP = (
    "Directions to learn along: fourier (cosines), fourier-im (sines), pixels, random, or a run folder with "
    "anisotropy directions."
)
NAME_HELP = (
    "A measurement (biascope list) and, but for a theory, a network: its name, path/to/file.py:build or "
    "package.module:build; LeNet by default, SIREN on signals. The measurement's own settings follow as --setting value."
)
DATA_HELP = (
    "Samples to measure on: a data set (biascope data list), an .npz file or an image folder; for a measurement on signals also "
    "an image, a .wav sound or an .npy array."
)
SIZES_HELP = "Training and test samples to take of it; of signals, how many."
ON_HELP = "Where trainings run: here by default; ray, or ray://HOST:PORT, for a Ray cluster."


def measure(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME [MODEL]", help=NAME_HELP)],
    input: Annotated[str, typer.Option("--input", help="Shape of one input, such as 1x32x32 or 3x224x224.")] = "",
    inputs: Annotated[int, typer.Option(help="Inputs per network.")] = 1,
    fresh: Annotated[bool, typer.Option(help="Draw inputs afresh for each network.")] = False,
    std: Annotated[float, typer.Option(help="Standard deviation of the Gaussian inputs.")] = 1.0,
    basis: Annotated[str, typer.Option(help=BASIS_HELP)] = "fourier",
    every: Annotated[int, typer.Option(help="Every which direction (frequency, down and across) of the basis.")] = 4,
    data: Annotated[str, typer.Option(help=DATA_HELP)] = "cifar10",
    data_sizes: Annotated[str, typer.Option(help=SIZES_HELP)] = "2000,1000",
    data_root: Annotated[Path | None, typer.Option(help="Folder of data sets; BIASCOPE_DATA by default.")] = None,
    settings: Annotated[
        list[str], typer.Option("--set", help="A setting of the network, key=value; may be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    weights: Annotated[Path | None, typer.Option(help="Trained weights, safetensors or torch.")] = None,
    batchnorm: Annotated[
        str, typer.Option(help="eval: initial or stored statistics; train: those of each input.")
    ] = "eval",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[str, typer.Option(help="float64, float32, tf32, float16 or bfloat16.")] = "float32",
    on: Annotated[str | None, typer.Option(help=ON_HELP)] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results and report; biascope-runs/MODEL by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Run one measurement with all its settings, for example: measure directional_bias lenet --noise 0,3 --every 4."""
    from biascope import scanning
    from biascope.cli.printing import print_results
    from biascope.families import source as model_source
    from biascope.results.registry import find, settings_from
    from biascope.runs.run import Run

    if inputs < 1:
        raise ValueError(f"--inputs must be at least 1, got {inputs}. Pass --inputs 1.")
    if not 0 < std < math.inf:
        raise ValueError(f"--std must be a positive number, got {std}. Pass --std 1.")
    found = find(name)
    wanted = inspect.signature(found.function).parameters
    if "encoder" in wanted:
        raise ValueError(
            f"{found.name} needs an encoder and its task vectors, and measure makes none. "
            f"Run: biascope edit ENCODER --tasks … --what {found.name.rpartition('_')[2]}."
        )
    model, words = _model_and_settings(context.args)
    own = settings_from(found, words)
    shape = model_source.parse_shape(input) if input else None
    chosen = model_source.parse_settings(settings)
    if model is not None and "family" not in wanted:
        raise ValueError(f"{found.name} is a theory and takes no network, got {model!r}. Leave the network out.")
    on_signals = "signals" in wanted or "signal" in wanted
    model = model or ("siren" if on_signals else "lenet")
    samples = signals = None
    if "data" in wanted:
        from biascope.tasks.samples import samples_of

        samples = samples_of(data, sizes=whole_numbers(data_sizes, "--data-sizes"), root=data_root, seed=0)
        shape = shape or samples.shape
    elif on_signals:
        signals = _signals(data, whole_numbers(data_sizes, "--data-sizes")[0], data_root)
        shape = shape or (len(signals[0].shape),)
    family = None
    if "family" in wanted:
        # A measurement may need networks of a kind (two outputs for two classes); what the user sets goes before.
        usual = {} if ":" in model else found.network
        family = model_source.family_of(
            model, shape=shape, settings={**usual, **chosen}, weights_file=weights, batchnorm=batchnorm
        )
        if weights is None:
            family = dataclasses.replace(family, name=model_source.label_of(family.name.split(" ")[0], chosen))
    folder = out or Path("biascope-runs") / (scanning.folder_name(model, chosen, weights) if family else found.name)
    run = Run(folder=folder, device=device, precision=precision, on=on, data_root=data_root)
    if on is None:
        _ = run.torch_device  # a device that is not there is told before any work
    given = {
        "family": family,
        "data": samples,
        "signals": signals,
        "signal": signals and signals[0],
        **_where(found, shape or model_source.usual_shape(model, chosen), inputs, fresh, std, basis, every, own),
    }
    result = found(*(given[key] for key in wanted if key in given and given[key] is not None), run=run, **own)
    result.save(folder / found.name)
    from biascope.results.report import write_report

    print_results([result], write_report([result], folder / "report.html"), as_json)


def _where(
    found: Measurement[..., Any],
    shape: tuple[int, ...],
    inputs: int,
    fresh: bool,
    std: float,
    basis: str,
    every: int,
    own: dict[str, Any],
) -> dict[str, Any]:
    """The place that a measurement looks at: inputs, or directions."""
    wanted = inspect.signature(found.function).parameters
    seed = int(own.get("seed", 0))
    if "probe" in wanted:
        from biascope.tasks.probe import Probe

        return {"probe": Probe.gaussian(shape, num=inputs, std=std, fresh=fresh, seed=seed)}
    return {"basis": basis_of(basis, shape, every, seed)} if "basis" in wanted else {}


def _signals(name_or_path: str, num: int, root: Path | None) -> Sequence[Signal]:
    """A signal of a file, or the images of a data set, in grey."""
    from biascope.tasks.samples import grey_signals
    from biascope.tasks.signal_files import signal_of

    path = Path(name_or_path)
    if path.is_file() and path.suffix != ".npz":
        return [signal_of(path, grey=True)]
    return grey_signals(name_or_path, num=num, root=root)


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """Numbers written as ``2000,1000``.

    Example:
        >>> whole_numbers("2000,1000", "--data-sizes")
        (2000, 1000)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"{option} must be whole numbers joined by commas, got {text!r}. Pass 2000,1000.") from error


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
    from biascope.scanning import saved_results
    from biascope.tasks import bases

    found = [result for result in saved_results(folder) if isinstance(result, CovarianceResult)]
    if not found:
        raise ValueError(
            f"{folder} must hold measured directions, and has none. Pass a folder that biascope scan wrote."
        )
    result = next((each for each in found if each.measurement == "anisotropy_directions"), found[0])
    vectors, values = torch.as_tensor(result.directions), torch.as_tensor(result.eigenvalues)
    return bases.ordered(vectors, shape, values, name=f"anisotropy ({result.subject})")
