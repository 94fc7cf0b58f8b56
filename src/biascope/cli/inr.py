"""SHOW: `biascope inr`: implicit neural representations of signals."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from biascope.cli._dry_run import rehearsed
from biascope.cli._settings_file import keep_settings
from biascope.cli.options import (
    Batch,
    Draws,
    ModelOption,
    Rate,
    SeededWork,
    Settings,
    SignalOptions,
    SignalPath,
    Steps,
    with_groups,
)
from biascope.cli.printing import as_document, print_json, print_results, report_line

if TYPE_CHECKING:
    from biascope.tasks.signals import Signal

app = typer.Typer(help="Implicit neural representations: networks that map coordinates to the values of a signal.")

CANDIDATES_HELP = (
    "Networks to rank, separated by commas. siren, ffn and relu are the usual networks of a kind; siren=30, ffn=5, positional=1 "
    "and single=1 are one network each."
)
_TWO_SECONDS = SignalOptions(seconds=2.0)


_MOST_NUMBERS = 10**8  # of a reconstruction: 800 MB


@app.command()
@with_groups
@rehearsed()
def fit(
    signal: SignalPath,
    *,
    model: ModelOption = "siren",
    settings: Settings = [],  # noqa: B006 - typer copies it
    steps: Steps = 1000,
    rate: Rate = 1e-4,
    batch: Batch = 16_384,
    held_out: Annotated[float, typer.Option(help="Share of the points to hold out from training.")] = 0.0,
    finer: Annotated[int, typer.Option(help="Also reconstruct the signal on a grid this many times finer.")] = 1,
    reading: SignalOptions,
    work: SeededWork,
) -> None:
    """Train a network on a signal; save its weights and the reconstruction."""
    from biascope.families import weights
    from biascope.families.source import family_of, parse_settings
    from biascope.results.document import entry
    from biascope.results.estimate import Estimate
    from biascope.results.result import recorded
    from biascope.runs.files import make_writable, path_words, require_ours, write_atomically
    from biascope.tasks.signal_files import save_signal
    from biascope.training.signals import fit_signal, usual_recipe

    given = reading.read(signal)
    if bool((given.flat == given.flat[:1]).all()):  # its PSNR would say nothing of the network
        raise ValueError(f"{given.name} must vary, but has the same value everywhere. Pass a signal that varies.")
    chosen = parse_settings(settings)
    usual = {} if ":" in model else {"outputs": given.channels}
    family = family_of(model, shape=(len(given.shape),), settings={**usual, **chosen})
    run = work.run(None)
    folder = work.out or Path("biascope-runs") / f"inr-{path_words(signal, '.png')}"
    suffix = ".wav" if given.rate else ".png" if len(given.shape) == 2 and given.channels in (1, 3, 4) else ".npy"
    names = [f"reconstruction{suffix}", f"reconstruction-{finer}x{suffix}", "weights.safetensors", "fit.json"]
    names.append("unfinished.safetensors")
    require_ours(*(folder / name for name in names))
    make_writable(folder)
    if finer < 1:
        raise ValueError(
            f"--finer must be a whole number of at least 1, got {finer}. Pass --finer 2 for twice as fine."
        )
    if (numbers := given.values.numel() * finer ** len(given.shape)) > _MOST_NUMBERS:
        raise ValueError(
            f"--finer must give a reconstruction of at most {_MOST_NUMBERS:,} numbers, got {numbers:,}. Pass a smaller one."
        )
    unfinished = folder / "unfinished.safetensors"
    recipe, begin = usual_recipe(given.flat.shape[0], steps=steps, rate=rate, batch=batch), time.perf_counter()
    fitted = fit_signal(
        family,
        given,
        recipe=recipe,
        held_out=held_out,
        peak=_peak(given, signal),
        seed=work.seed,
        unfinished=unfinished,
        run=run,
    )
    files = [save_signal(fitted.reconstruction(run=run), folder / f"reconstruction{suffix}")]
    if finer > 1:
        files.append(save_signal(fitted.reconstruction(finer, run=run), folder / f"reconstruction-{finer}x{suffix}"))
    weights.save(fitted.network.params, folder / "weights.safetensors")
    files += [folder / "weights.safetensors", folder / "fit.json"]
    told = ", ".join(f"{value:.2f} dB on {split}" for split, value in fitted.psnr.items() if split != "all" or held_out)
    sentence = (
        f"{family.name} ({family.num_parameters:,} parameters for {given.values.numel():,} numbers) reconstructs {given.name} "
        f"with a PSNR of {told}."
    )
    result = entry(
        "signal_fit",
        family.name,
        sentence,
        {
            f"psnr:{split}": Estimate.exact(value).named(f"PSNR on {split}", "dB")
            for split, value in fitted.psnr.items()
        },
        facts={
            "signal": given.name,
            "shape": given.shape,
            "channels": given.channels,
            "parameters": family.num_parameters,
            "signal_numbers": given.values.numel(),
            "offset": fitted.offset.tolist(),
        },
        provenance=recorded(
            "signal_fit",
            "dictionaries2022",
            settings={**recipe.settings, "held_out": held_out, "finer": finer, "seed": work.seed},
            seconds=time.perf_counter() - begin,
            run=run,
        ),
    )
    content: dict[str, Any] = {"results": [result], "report": "", "files": files}
    keep_settings(folder)
    write_atomically(folder / "fit.json", as_document(**content).encode())
    unfinished.unlink(missing_ok=True)
    if work.as_json:
        print_json(**content)
    else:
        typer.echo("\n".join([sentence, *(f"  {path}" for path in files)]))


@app.command()
@with_groups
@rehearsed()
def advise(
    signal: SignalPath,
    *,
    candidates: Annotated[str, typer.Option(help=CANDIDATES_HELP)] = "siren,ffn,relu",
    check: Annotated[
        bool,
        typer.Option("--check", help="Also train the candidates and compare the predicted order with the trained one."),
    ] = False,
    steps: Steps = 100,
    rate: Rate = 1e-4,
    batch: Batch = 16_384,
    points: Annotated[int, typer.Option(help="Number of points in a kernel, at most 4,096.")] = 1024,
    draws: Draws = 3,
    width: Annotated[int, typer.Option(help="Number of units in each layer.")] = 256,
    reading: SignalOptions = _TWO_SECONDS,
    work: SeededWork,
) -> None:
    """Rank networks for a signal before training, with warnings, and write a report.

    The order is for --steps iterations of Adam at the learning rate --rate. --batch and --precision apply only to --check.
    """
    from biascope.measures.advise import advise as advised
    from biascope.measures.advise.candidates import parse_candidates
    from biascope.results.report import write_folder_report
    from biascope.runs.files import make_writable, path_words

    given = reading.read(signal)
    chosen = parse_candidates(candidates, given.shape)
    folder = work.out or Path("biascope-runs") / f"advise-{path_words(signal, '.png')}"
    run = work.run(folder)
    make_writable(folder)
    advice = advised(
        given,
        chosen,
        steps=steps,
        rate=rate,
        batch=batch,
        points=points,
        draws=draws,
        width=width,
        check=check,
        peak=_peak(given, signal),
        seed=work.seed,
        run=run,
    )
    place = advice.save(folder / "advice")
    keep_settings(folder)
    page = write_folder_report(folder, title=f"Which network for {given.name}", at_hand={place: advice})
    words = [f"--steps {steps}", f"--rate {rate:g}", f"--batch {batch}", f"--set width={width}", *reading.words(given)]
    seed = [f"--seed {work.seed}"] if work.seed else []
    command = " ".join([f"biascope inr fit {shlex.quote(str(signal))} {advice.models[0]}", *words, *seed])
    if work.as_json:
        print_results([advice], page, True, command=command)
        return
    warned = "".join(f"\n- {words}" for words in advice.warnings)
    typer.echo(
        f"\n{advice.summary()}\n\n{advice.table()}\n{warned}\n\nTo train the first: {command}\n{report_line(page)}"
    )


def _peak(signal: Signal, path: Path) -> float:
    """The range of the values that the PSNR is taken of: that of an array, of images 1, of sounds 2."""
    if path.suffix.lower() == ".npy":
        return float(signal.values.max() - signal.values.min()) or 1.0
    return 2.0 if signal.rate else 1.0
