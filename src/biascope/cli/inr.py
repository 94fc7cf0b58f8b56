"""SHOW: `biascope inr`: signals as networks."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from biascope.measures.advise.result import Advice
    from biascope.tasks.signals import Signal

app = typer.Typer(
    no_args_is_help=True, help="Implicit representations: signals as networks from coordinates to values."
)

SIGNAL_HELP = "An image, a .wav sound or an .npy array."
CANDIDATES_HELP = (
    "Networks to rank, with commas: siren, ffn or relu for the usual ones of a kind, siren=30, ffn=5, positional=1 or single=1 for "
    "one. By default siren,ffn,relu."
)
MODEL_HELP = "siren, coordinate_mlp, multiplicative_filters, path/to/file.py:build or package.module:build."


@app.command()
def fit(
    signal: Annotated[Path, typer.Argument(help=SIGNAL_HELP)],
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = "siren",
    settings: Annotated[
        list[str], typer.Option("--set", help="A setting of the network, key=value; may be repeated: omega=60.")
    ] = [],  # noqa: B006 - typer copies it
    steps: Annotated[int, typer.Option(help="Iterations of Adam.")] = 1000,
    rate: Annotated[float, typer.Option(help="Learning rate.")] = 1e-4,
    batch: Annotated[int, typer.Option(help="Points of an iteration, at most.")] = 16_384,
    held_out: Annotated[float, typer.Option(help="Share of the points to leave out of training.")] = 0.0,
    longest: Annotated[
        int | None, typer.Option(help="Pixels of the longer side, to which an image is made smaller.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="How much of a sound to take.")] = None,
    start: Annotated[float, typer.Option(help="Where to begin in a sound, in seconds.")] = 0.0,
    grey: Annotated[bool, typer.Option(help="Make an image grey.")] = False,
    finer: Annotated[int, typer.Option(help="Also read the signal on a grid so many times as fine.")] = 1,
    seed: Annotated[int, typer.Option(help="Of weights, points held out and their order.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[str, typer.Option(help="float64, float32, tf32, float16 or bfloat16.")] = "float32",
    out: Annotated[Path | None, typer.Option(help="Folder; biascope-runs/inr-SIGNAL by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Train a network to say a signal; save its weights and the reconstruction."""
    from biascope.families import weights
    from biascope.families.source import family_of, parse_settings
    from biascope.runs.files import make_writable
    from biascope.runs.run import Run
    from biascope.scanning import path_words
    from biascope.tasks.signal_files import save_signal, signal_of
    from biascope.training.signals import fit_signal, usual_recipe

    given = signal_of(signal, longest=longest, seconds=seconds, start=start, grey=grey)
    if bool((given.flat == given.flat[:1]).all()):  # its PSNR would say nothing of the network
        raise ValueError(
            f"{given.name} must vary, and has one value everywhere. Pass a signal with something to learn."
        )
    chosen = parse_settings(settings)
    usual = {} if ":" in model else {"outputs": given.channels}
    family = family_of(model, shape=(len(given.shape),), settings={**usual, **chosen})
    run = Run(device=device, precision=precision)
    _ = run.torch_device  # a device that is not there is told before any work
    folder = out or Path("biascope-runs") / f"inr-{path_words(signal, '.png')}"
    make_writable(folder)
    if finer < 1:
        raise ValueError(
            f"--finer must be a whole number of at least 1, got {finer}. Pass --finer 2 for twice as fine."
        )
    peak = _peak(given, signal)
    recipe = usual_recipe(given.flat.shape[0], steps=steps, rate=rate, batch=batch)
    found = fit_signal(
        family, given, recipe=recipe, held_out=held_out, peak=peak, seed=seed,
        unfinished=folder / "unfinished.safetensors", run=run,
    )  # fmt: skip
    suffix = ".wav" if given.rate else ".png" if len(given.shape) == 2 and given.channels in (1, 3, 4) else ".npy"
    written = [save_signal(found.reconstruction(run=run), folder / f"reconstruction{suffix}")]
    if finer > 1:
        written.append(save_signal(found.reconstruction(finer, run=run), folder / f"reconstruction-{finer}x{suffix}"))
    weights.save(found.network.params, folder / "weights.safetensors")
    numbers = {
        "signal": given.name,
        "shape": list(given.shape),
        "channels": given.channels,
        "model": family.name,
        "parameters": family.num_parameters,
        "numbers of the signal": given.values.numel(),
        "psnr": found.psnr,
        "offset": found.offset.tolist(),
        "recipe": recipe.settings,
        "seed": seed,
    }
    (folder / "fit.json").write_text(json.dumps(numbers, indent=1))
    if as_json:
        typer.echo(json.dumps(numbers))
        return
    told = ", ".join(f"{value:.2f} dB on {split}" for split, value in found.psnr.items() if split != "all" or held_out)
    typer.echo(
        f"{family.name} ({family.num_parameters:,} parameters for {given.values.numel():,} numbers) says {given.name} with a PSNR of "
        f"{told}."
    )
    typer.echo("\n".join(f"  {path}" for path in (*written, folder / "weights.safetensors", folder / "fit.json")))


@app.command()
def advise(
    signal: Annotated[Path, typer.Argument(help=SIGNAL_HELP)],
    candidates: Annotated[str, typer.Option(help=CANDIDATES_HELP)] = "siren,ffn,relu",
    check: Annotated[bool, typer.Option("--check", help="Train the candidates and compare the orders.")] = False,
    steps: Annotated[int, typer.Option(help="Iterations of Adam that the order is for.")] = 100,
    rate: Annotated[float, typer.Option(help="Its learning rate.")] = 1e-4,
    batch: Annotated[int, typer.Option(help="Points of an iteration of --check, at most.")] = 16_384,
    points: Annotated[int, typer.Option(help="Points of a kernel, at most 4,096.")] = 1024,
    draws: Annotated[int, typer.Option(help="Networks of each candidate, each with a window of its own.")] = 3,
    width: Annotated[int, typer.Option(help="Units of each layer.")] = 256,
    longest: Annotated[
        int | None, typer.Option(help="Pixels of the longer side, to which an image is made smaller.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How much of a sound to take.")] = 2.0,
    start: Annotated[float, typer.Option(help="Where to begin in a sound, in seconds.")] = 0.0,
    grey: Annotated[bool, typer.Option(help="Make an image grey.")] = False,
    seed: Annotated[int, typer.Option(help="Of weights, windows and points held out.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[str, typer.Option(help="Of --check: float64, float32, tf32 or bfloat16.")] = "float32",
    out: Annotated[Path | None, typer.Option(help="Folder; biascope-runs/advise-SIGNAL by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Rank networks for a signal before any training, with warnings, and write a report."""
    from biascope.measures.advise import advise as advised
    from biascope.measures.advise.candidates import parse_candidates
    from biascope.results.report import write_report
    from biascope.runs.files import make_writable
    from biascope.runs.run import Run
    from biascope.scanning import path_words
    from biascope.tasks.signal_files import signal_of

    given = signal_of(signal, longest=longest, seconds=seconds, start=start, grey=grey)
    chosen = parse_candidates(candidates, given.shape)
    folder = out or Path("biascope-runs") / f"advise-{path_words(signal, '.png')}"
    run = Run(folder=folder, device=device, precision=precision)
    _ = run.torch_device  # a device that is not there is told before any work
    make_writable(folder)
    how: dict[str, Any] = {
        "steps": steps,
        "rate": rate,
        "batch": batch,
        "points": points,
        "draws": draws,
        "width": width,
    }
    try:
        found = advised(given, chosen, check=check, peak=_peak(given, signal), seed=seed, run=run, **how)
    except ValueError:  # nothing was done: no empty folder is left
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise
    found.save(folder / "advice")
    report = write_report([found], folder / "report.html", title=f"Which network for {given.name}")
    if as_json:
        typer.echo(json.dumps(_as_document(found, report), indent=1))
        return
    warned = "".join(f"\n- {words}" for words in found.warnings)
    command = f"biascope inr fit {signal} {found.models[0]}"
    typer.echo(f"\n{found.summary()}\n\n{found.table()}\n{warned}\n\nTo train the first: {command}\nReport: {report}")


def _peak(signal: Signal, path: Path) -> float:
    """The range of the values that the PSNR is taken of: that of an array, of images 1, of sounds 2."""
    if path.suffix.lower() == ".npy":
        return float(signal.values.max() - signal.values.min()) or 1.0
    return 2.0 if signal.rate else 1.0


def _as_document(found: Advice, report: Path) -> dict[str, Any]:
    """The ranking as plain JSON."""
    rows = [{key: _finite(value) for key, value in row.items()} for row in found.rows()]
    return {
        "summary": found.summary(),
        "warnings": found.warnings,
        "networks": rows,
        "stability": _finite(found.stability),
        "agreement": _finite(found.agreement()),
        "provenance": found.provenance,
        "report": str(report),
    }


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
