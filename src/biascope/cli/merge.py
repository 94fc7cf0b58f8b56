"""SHOW: `biascope merge`: checkpoints edited and compared in weight space."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from biascope.editing.merge_result import Difference, Merge
    from biascope.measures.merge_check.result import MergeCheck

app = typer.Typer(no_args_is_help=True, help="Task arithmetic: check, add, negate and compare fine-tuned models.")

CHECKPOINT = "a .safetensors or torch file, or a folder with shards and index, as Hugging Face writes it"
MODELS_HELP = f"Fine-tuned models or saved task vectors, each with its weight: A=0.4 B=-0.5. Each is {CHECKPOINT}."
NETWORK_HELP = (
    "The network of these weights: a name (biascope list), path/to/file.py:build or package.module:build, whose outputs are class "
    "scores; or an encoder: efficientnet_lite0, minilm, vit. Not needed where BASE is a folder of CLIP, T5 or BERT."
)
SAMPLES_HELP = (
    "Samples of what each model was tuned on, once for each or once for all: a data set (biascope data list), an .npz file or an "
    "image folder; for a text encoder a folder with test.tsv. Labels are not looked at, but for an encoder's linear probes."
)
PIXELS_HELP = (
    "Scale of images: own (mean 0, variance 1 over the set), unit (0 to 1), or MEAN:SPREAD such as 0.1307:0.3081."
)
_SIZES = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@app.command()
def check(
    base: Annotated[Path, typer.Argument(help=f"The pre-trained model: {CHECKPOINT}.")],
    models: Annotated[list[Path], typer.Argument(help="Models tuned from it, or saved task vectors; two or more.")],
    data: Annotated[list[str], typer.Option(help=SAMPLES_HELP)],
    model: Annotated[str | None, typer.Option(help=NETWORK_HELP)] = None,
    settings: Annotated[
        list[str], typer.Option("--set", help="A setting of the network, key=value; may be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    input: Annotated[str, typer.Option("--input", help="Shape of one input, such as 1x32x32; images are padded.")] = "",
    head: Annotated[
        str | None, typer.Option(help="Last linear layer that every model has of its own and that is not merged: head.")
    ] = None,
    features: Annotated[
        bool, typer.Option("--features", help="Outputs are no class scores: compare them by their cosine.")
    ] = False,
    accuracy: Annotated[
        list[float],
        typer.Option(help="Accuracy of a model on its task, 0.93 say, once for each: the loss to expect rests on it."),
    ] = [],  # noqa: B006 - typer copies it
    control: Annotated[str | None, typer.Option(help="Samples outside all tasks: what does the merge change?")] = None,
    pixels: Annotated[str, typer.Option(help=PIXELS_HELP)] = "own",
    split: Annotated[str | None, typer.Option(help="Where samples are taken from; test, if there is one.")] = None,
    points: Annotated[int, typer.Option(help="Samples of each set at most.")] = 1000,
    grid: Annotated[int, typer.Option(help="Coefficients along a side of the maps of ξ; 0 for no maps.")] = 10,
    data_root: Annotated[Path | None, typer.Option(help="Folder of data sets; BIASCOPE_DATA by default.")] = None,
    unrelated: Annotated[
        bool, typer.Option("--unrelated", help="Accept models that do not seem to come from the base.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the choice of samples.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[str, typer.Option(help="float64, float32, tf32 or bfloat16.")] = "float32",
    report: Annotated[
        Path | None, typer.Option(help="Folder of the report; biascope-runs/check-BASE by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Tell before merging whether models may be merged, with which coefficient and at what cost; labels are not needed."""
    from biascope.editing.candidates import Reading, candidates_of
    from biascope.editing.unlabelled import SPLIT
    from biascope.families.source import parse_settings
    from biascope.measures.merge_check import merge_check
    from biascope.runs.files import make_writable
    from biascope.runs.run import Run
    from biascope.scanning import path_words

    run = Run(device=device, precision=precision, data_root=data_root)
    _ = run.torch_device  # a device that is not there is told before any work
    if grid < 0 or grid in (1, 2):
        raise ValueError(f"--grid must be at least 3, or 0 for no maps, got {grid}. Pass --grid 10.")
    if accuracy and len(accuracy) != len(models):
        raise ValueError(
            f"--accuracy must be given for none or for each of {len(models)} models, got {len(accuracy)}. Repeat it in their order."
        )
    if accuracy and features:
        raise ValueError("--accuracy must be left out with --features, which knows no classes. Leave it out.")
    if wrong := [each for each in accuracy if not 0 < each <= 1]:
        raise ValueError(f"--accuracy must lie between 0 and 1, got {wrong[0]:g}. Pass a share, such as 0.93.")
    reading = Reading(model, parse_settings(settings), input, head, features, pixels, split, points, unrelated, seed)
    known = candidates_of(base, models, data, reading, control=control, run=run)
    folder = report or Path("biascope-runs") / f"check-{path_words(base, '.safetensors')}"
    make_writable(folder)
    found = merge_check(
        known.network,
        known.heads,
        known.vectors,
        known.tasks,
        split=SPLIT,
        points=points,
        compared=known.compared,
        accuracies=dict(zip(known.vectors, accuracy, strict=True)) if accuracy else None,
        control=known.control,
        grid=grid or None,
        name=known.base,
        seed=seed,
        run=dataclasses.replace(run, folder=folder),
    )
    found = dataclasses.replace(found, notes=known.notes)
    words = ["biascope", "merge", "apply", str(base), *map(str, models), "--weight", f"{found.alpha.value:g}"]
    words += ["--keep", f"{head}.*"] if head else []
    words += ["--unrelated"] if unrelated else []
    then = shlex.join([*words, "--out", "merged.safetensors"])
    if not found.grade.startswith("merge") or not _fit(base, models, f"{head}." if head else None):
        then = ""
    _show(found, folder, f"May {found.subject} be merged?", as_json, then)


def _fit(base: Path, models: list[Path], head: str | None) -> bool:
    """Whether ``merge apply`` takes the models as they lie on disk: names that an encoder's reader bridges, it does not."""
    from biascope.editing.stream import TaskStream
    from biascope.families.checkpoint import Checkpoint

    start, ends = Checkpoint.open(base), [Checkpoint.open(model) for model in models]
    every = {name for each in (start, *ends) for name in each.tensors}
    try:
        for end in ends:
            TaskStream(start, end, {name for name in every if head and name.startswith(head)})
    except ValueError:
        return False
    return True


@app.command()
def apply(
    base: Annotated[Path, typer.Argument(help=f"The pre-trained model: {CHECKPOINT}.")],
    models: Annotated[list[str], typer.Argument(help=MODELS_HELP)],
    out: Annotated[Path, typer.Option(help="What to write: a .safetensors file, or a folder for shards.")],
    weight: Annotated[float | None, typer.Option(help="Of every model without one of its own.")] = None,
    keep: Annotated[
        list[str],
        typer.Option(help="Names to take from the base and not to ask for elsewhere: 'classifier.*'; may be repeated."),
    ] = [],  # noqa: B006 - typer copies it
    shard_size: Annotated[str, typer.Option(help="Most bytes of a shard, such as 500MB.")] = "5GB",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    unrelated: Annotated[
        bool, typer.Option("--unrelated", help="Accept models that do not seem to come from the base.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="Folder of the report; biascope-runs/merge-OUT by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Write the base plus weighted differences of other models to it, without loading any of them whole."""
    from biascope.editing.merge import merge
    from biascope.families.checkpoint import Checkpoint
    from biascope.scanning import path_words

    chosen = [weighted(words, weight) for words in models]
    size = bytes_in(shard_size)
    folder = report or Path("biascope-runs") / f"merge-{path_words(out, '.safetensors')}"
    near = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not near.is_dir():  # told before the merge, not after it
        raise ValueError(f"--report must name a folder, and {near} is a file. Pass another.")
    opened = [(Checkpoint.open(path), number) for path, number in chosen]
    try:
        found = merge(
            Checkpoint.open(base), opened, out, keep=keep, unrelated=unrelated, shard_bytes=size, overwrite=overwrite
        )
    except KeyboardInterrupt:
        typer.echo("Stopped, and nothing was written: the same command begins again.", err=True)
        raise typer.Exit(1) from None  # 130 would be told that it goes on
    _show(found, folder, f"{out.name}: {found.subject}", as_json)


@app.command()
def diff(
    base: Annotated[Path, typer.Argument(help=f"The pre-trained model, or the first of two: {CHECKPOINT}.")],
    models: Annotated[list[Path], typer.Argument(help="What to compare with it: models or saved task vectors.")],
    report: Annotated[
        Path | None, typer.Option(help="Folder of the report; biascope-runs/diff-BASE by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """What differs between checkpoints: names, types, distances by layer, and whether differences agree."""
    from biascope.editing.merge import differences
    from biascope.families.checkpoint import Checkpoint
    from biascope.scanning import path_words

    first, others = Checkpoint.open(base), [Checkpoint.open(model) for model in models]
    found = differences(first, others)
    folder = report or Path("biascope-runs") / f"diff-{path_words(base, '.safetensors')}"
    _show(found, folder, f"How {found.subject} differ", as_json)


def weighted(words: str, usual: float | None) -> tuple[Path, float]:
    """A model and its weight from ``"path=0.4"``; a path may itself contain an equals sign.

    Example:
        >>> weighted("model.safetensors=-0.5", None), weighted("model.safetensors", 0.3)
        ((PosixPath('model.safetensors'), -0.5), (PosixPath('model.safetensors'), 0.3))
    """
    path, sign, number = words.rpartition("=")
    if sign and not Path(words).exists():
        try:
            return Path(path), float(number)
        except ValueError:
            raise ValueError(f"The weight of a model must be a number, got {words!r}. Pass {path}=0.4.") from None
    if usual is None:
        raise ValueError(
            f"Every model needs a weight, and {words} has none. Pass {words}=0.4, or --weight 0.4 for all."
        )
    return Path(words), usual


def bytes_in(text: str) -> int:
    """A size in bytes from words.

    Example:
        >>> bytes_in("5GB"), bytes_in("1.5 MiB"), bytes_in("300")
        (5000000000, 1572864, 300)
    """
    found = re.fullmatch(r"([\d.]+)\s*([A-Za-z]*)", text.strip())
    try:
        assert found is not None
        return int(float(found[1]) * _SIZES[found[2].upper()])
    except (AssertionError, ValueError, KeyError) as error:
        raise ValueError(f"--shard-size must be a size such as 5GB, 500MB or 1GiB, got {text!r}. Pass 5GB.") from error


def _show(found: Merge | Difference | MergeCheck, folder: Path, title: str, as_json: bool, then: str = "") -> None:
    """Save a result with its table and report, and print it, with the command that comes next."""
    from biascope.measures.merge_check.result import MergeCheck
    from biascope.results.report import write_report
    from biascope.runs.files import make_writable

    make_writable(folder)
    found.save(folder / "result")
    rows = found.rows()
    with (folder / "layers.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    page = write_report([found], folder / "report.html", title=title)
    if as_json:
        document: dict[str, Any] = {
            "sentence": found.sentence(),
            **(found.document() | {"command": then} if isinstance(found, MergeCheck) else {}),
            "headline": {name: estimate.value for name, estimate in found.headline().items()},
            "layers": rows,
            "provenance": found.provenance,
            "report": str(page),
        }
        typer.echo(json.dumps(document, indent=1))
        return
    typer.echo(f"\n{found.sentence()}\n")
    for name, estimate in found.headline().items():
        typer.echo(f"  {name}: {estimate!r}")
    if then:
        typer.echo(f"\nTo merge: {then}")
    typer.echo(f"\nReport: {page}, layers: {folder / 'layers.csv'}")
