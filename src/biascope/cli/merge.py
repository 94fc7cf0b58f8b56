"""SHOW: `biascope merge`: merge and compare checkpoints in weight space."""

from __future__ import annotations

import dataclasses
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biascope.cli._dry_run import rehearsed
from biascope.cli._settings_file import keep_settings
from biascope.cli.options import (
    DataRoot,
    Grid,
    Input,
    Lasting,
    MaybeModel,
    MaybeSplit,
    OptionGroup,
    Out,
    Output,
    Samples,
    SeededWork,
    Settings,
    SeveralData,
    whole_numbers,
    with_groups,
)
from biascope.cli.printing import print_results, report_line, write_table

if TYPE_CHECKING:
    from biascope.editing.candidates import Reading
    from biascope.editing.merge_result import Difference, Merge
    from biascope.measures.merge_check.result import MergeCheck
    from biascope.results.result import Result

app = typer.Typer(help="Task arithmetic: check, add, negate and compare fine-tuned models.")

FAIL_ON_HELP = (
    "Exit with status 1 if this is the verdict, for use as a gate; may be repeated. Verdicts are 'merge', 'merge with a loss', "
    "'do not merge' and 'undecided'."
)
CHECKPOINT = "a .safetensors or torch file, or a folder with shards and index, as Hugging Face writes it"
MODELS_HELP = (
    f"Fine-tuned models, saved task vectors or LoRA adapters, each with its weight: A=0.4 B=-0.5. Each is {CHECKPOINT}, or a folder "
    "with adapter_config.json."
)
HEAD_HELP = (
    "Name of the last linear layer, such as head. Every model keeps its own; it is not merged. For an encoder, the usual name is "
    "known: _fc, head or classifier."
)
ACCURACY_HELP = (
    "Accuracy of each model on its task, such as 0.93, in their order. The expected loss is computed from it."
)
PIXELS_HELP = (
    "Scale of images: own (mean 0, variance 1 over the set), unit (0 to 1), or MEAN:SPREAD such as 0.1307:0.3081."
)
KEEP_HELP = "Parameters to take from the base, which models need not have: 'classifier.*'; may be repeated."
TABLES = tuple(
    f"{name}.csv" for name in ("layers", "layers_by_model", "layers_by_pair", "models", "coefficients", "outputs")
)
_SIZES = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}

Base = Annotated[Path, typer.Argument(help=f"The pre-trained model: {CHECKPOINT}.")]
Unrelated = Annotated[
    bool, typer.Option("--unrelated", help="Accept models that do not seem to be fine-tuned from the base.")
]


@dataclass(frozen=True)
class ReadingOptions(OptionGroup):
    """How models and samples are read."""

    model: MaybeModel = None
    settings: Settings = dataclasses.field(default_factory=list)
    input: Input = ""
    head: Annotated[str | None, typer.Option(help=HEAD_HELP)] = None
    features: Annotated[
        bool, typer.Option("--features", help="Compare outputs by cosine: they are features, not class scores.")
    ] = False
    pixels: Annotated[str, typer.Option(help=PIXELS_HELP)] = "own"
    split: MaybeSplit = None
    samples: Samples = "1000"
    unrelated: Unrelated = False

    def reading(self, seed: int) -> Reading:
        """The same with texts read."""
        from biascope.editing.candidates import Reading
        from biascope.families.source import parse_settings

        samples, *more = whole_numbers(self.samples, "--samples")
        if more:
            raise ValueError(
                f"--samples must be one number, the samples of each data set, got {self.samples!r}. Pass --samples 1000."
            )
        chosen = {"settings": parse_settings(self.settings), "samples": samples, "seed": seed}
        return Reading(**{**vars(self), **chosen})


@app.command()
@with_groups
@rehearsed()
def check(
    base: Base,
    models: Annotated[
        list[Path], typer.Argument(help="Models fine-tuned from the base, or saved task vectors; two or more.")
    ],
    *,
    data: SeveralData,
    how: ReadingOptions,
    accuracy: Annotated[list[float], typer.Option(help=ACCURACY_HELP)] = [],  # noqa: B006 - typer copies it
    control: Annotated[
        str | None, typer.Option(help="Samples outside all tasks, to measure what the merge changes there.")
    ] = None,
    grid: Grid = 10,
    fail_on: Annotated[list[str], typer.Option(help=FAIL_ON_HELP)] = [],  # noqa: B006 - typer copies it
    data_root: DataRoot = None,
    work: SeededWork,
) -> None:
    """Predict whether models can be merged, with which coefficient and at what loss; no labels are needed.

    Pass --data once for each model, with samples of the data it was fine-tuned on, or once for all; for a text encoder, a folder
    with test.tsv. Labels, if any, check the inputs. Images are padded to --input. Samples are taken from the split test, if there
    is one.

    --model may also name an encoder: efficientnet_lite0, minilm, vit. It is not needed if BASE is a folder of CLIP, T5 or BERT.
    On an encoder, a model is read through its own last layer. If it has none, a linear probe is fitted to labelled training samples.
    The outputs of a network are class scores, unless --features is given. --grid 0 leaves the maps out.
    """
    from biascope.editing.candidates import candidates_of, kept_by_apply
    from biascope.editing.unlabelled import SPLIT
    from biascope.measures.merge_check import merge_check
    from biascope.measures.merge_check.verdict import GRADES
    from biascope.results.registry import require_own
    from biascope.runs.files import make_writable, path_words

    run = work.run(None, data_root=data_root)
    if unknown := [verdict for verdict in fail_on if verdict not in GRADES]:
        raise ValueError(
            f"--fail-on must be one of {', '.join(map(repr, GRADES))}, got {unknown[0]!r}. Pass one of them."
        )
    if grid < 0 or grid in (1, 2):
        raise ValueError(f"--grid must be at least 3, or 0 for no maps, got {grid}. Pass --grid 10.")
    if accuracy and len(accuracy) != len(models):
        raise ValueError(
            f"--accuracy must be given for none or for each of {len(models)} models, got {len(accuracy)}. Repeat it in their order."
        )
    if accuracy and how.features:
        raise ValueError("--accuracy does not apply with --features, where there are no classes. Leave it out.")
    if wrong := [each for each in accuracy if not 0 < each <= 1]:
        raise ValueError(f"--accuracy must lie between 0 and 1, got {wrong[0]:g}. Pass a share, such as 0.93.")
    reading = how.reading(work.seed)
    known = candidates_of(base, models, data, reading, control=control, run=run)
    folder = work.out or Path("biascope-runs") / f"check-{path_words(base, '.safetensors')}"
    require_own(folder, *TABLES)
    make_writable(folder)
    found = merge_check(
        known.network,
        known.heads,
        known.vectors,
        known.tasks,
        split=SPLIT,
        points=reading.samples,
        compared=known.compared,
        accuracies=dict(zip(known.vectors, accuracy, strict=True)) if accuracy else None,
        control=known.control,
        grid=grid or None,
        name=known.base,
        seed=work.seed,
        run=dataclasses.replace(run, folder=folder),
    )
    found = dataclasses.replace(found, notes=known.notes)
    then = ""
    if found.grade.startswith("merge") and (keep := kept_by_apply(base, models, known.head)) is not None:
        words = ["biascope", "merge", "apply", str(base), *map(str, models), "--weight", f"{found.alpha.value:g}"]
        words += [*(("--keep", keep) if keep else ()), *(("--unrelated",) if how.unrelated else ())]
        out = "merged" if (base / "config.json").is_file() else "merged.safetensors"  # a folder as the base is one
        then = shlex.join([*words, "--out", out])
    _show(found, folder, f"Can {found.subject} be merged?", work, command=then)
    if found.grade in fail_on:
        raise typer.Exit(1)


@app.command()
@with_groups
@rehearsed(beside="out")
def apply(
    base: Base,
    models: Annotated[list[str], typer.Argument(help=MODELS_HELP)],
    *,
    out: Annotated[Path, typer.Option("--out", help="Merged model: a .safetensors file, or a folder for shards.")],
    weight: Annotated[float | None, typer.Option(help="Weight of every model that is given without one.")] = None,
    keep: Annotated[list[str], typer.Option(help=KEEP_HELP)] = [],  # noqa: B006 - typer copies it
    shard_size: Annotated[str, typer.Option(help="Maximum size of a shard, such as 500MB.")] = "5GB",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite an existing model.")] = False,
    unrelated: Unrelated = False,
    report_out: Annotated[
        Path | None, typer.Option("--report-out", help="Folder for results and report; in biascope-runs by default.")
    ] = None,
    output: Lasting,
) -> None:
    """Add weighted differences of models to a base and write the result, without loading any model whole."""
    from biascope.editing.merge import merge
    from biascope.families.checkpoint import Checkpoint
    from biascope.families.checkpoint_writer import CheckpointWriter
    from biascope.results.registry import require_own
    from biascope.runs.files import path_words
    from biascope.runs.rehearsal import placed, rehearsing
    from biascope.runs.run import Run

    chosen = [weighted(words, weight) for words in models]
    size = bytes_in(shard_size)
    folder = report_out or Path("biascope-runs") / f"merge-{path_words(out, '.safetensors')}"
    near = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not near.is_dir():  # told before the merge, not after it
        raise ValueError(f"--report-out must name a folder, but {near} is a file. Pass another.")
    require_own(folder, *TABLES)
    opened, start = [(Checkpoint.open(path), number) for path, number in chosen], Checkpoint.open(base)
    if rehearsing():
        CheckpointWriter(out, start.tensors, shard_bytes=size, overwrite=overwrite)  # refuses what it cannot write
    try:
        found = merge(
            start,
            opened,
            placed(out),
            keep=keep,
            unrelated=unrelated,
            shard_bytes=size,
            overwrite=overwrite,
            run=Run(progress=not output.quiet),
        )
    except KeyboardInterrupt:
        typer.echo("Stopped. Nothing was written. The same command starts again.", err=True)
        raise typer.Exit(1) from None  # 130 would be told that it goes on
    try:
        _show(found, folder, f"{out.name}: {found.subject}", output)
    except (ValueError, OSError) as error:  # the model is written, which is what was asked for
        typer.echo(f"biascope: {out} is written, but its report in {folder} is not: {error}", err=True)


@app.command()
@with_groups
@rehearsed()
def diff(
    base: Annotated[Path, typer.Argument(help=f"The pre-trained model, or the first of two: {CHECKPOINT}.")],
    models: Annotated[
        list[Path], typer.Argument(help="Models, saved task vectors or LoRA adapters to compare with it.")
    ],
    *,
    out: Out = None,
    output: Lasting,
) -> None:
    """Show how checkpoints differ: names, types, distances by layer, and whether the differences agree.

    Of LoRA adapters, the updates s·B·A are compared, not the factors. Pass their base first for the cosine of two updates.
    """
    from biascope.editing.merge import differences
    from biascope.families.checkpoint import Checkpoint
    from biascope.results.registry import require_own
    from biascope.runs.files import path_words
    from biascope.runs.run import Run

    first, others = Checkpoint.open(base), [Checkpoint.open(model) for model in models]
    folder = out or Path("biascope-runs") / f"diff-{path_words(base, '.safetensors')}"
    require_own(folder, *TABLES)
    found = differences(first, others, run=Run(progress=not output.quiet))
    _show(found, folder, f"How {found.subject} differ", output)


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
            f"Every model needs a weight, but {words} has none. Pass {words}=0.4, or --weight 0.4 for all."
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


def _earlier(folder: Path, found: Result) -> str:
    """What else a folder already holds, in words; empty if nothing, or the same as was found now."""
    from biascope.results.registry import load

    if not folder.is_dir():
        return ""
    try:
        result = load(folder)
    except ValueError:
        return "a result that cannot be read"
    if (result.subject, result.headline()) == (found.subject, found.headline()):
        return ""
    return f"{result.measurement.replace('_', ' ')} of {result.subject}, {result.provenance.get('date', 'no date')}"


def _show(
    found: Merge | Difference | MergeCheck, folder: Path, title: str, output: Output, command: str | None = None
) -> None:
    """Save a result with its tables and report, and print it; a check also has the command that comes next, or none."""
    from biascope.results.report import write_folder_report
    from biascope.runs.files import make_writable
    from biascope.runs.rehearsal import placed

    make_writable(folder)
    folder = placed(folder)
    if replaced := _earlier(folder / "result", found):
        typer.echo(
            f"The earlier result in {folder} is replaced: {replaced}. Pass another --out to keep both.", err=True
        )
    place = found.save(folder / "result")
    keep_settings(folder)
    files = [write_table(rows, folder / f"{name}.csv") for name, rows in found.tables().items() if rows]
    page = write_folder_report(folder, title=title, at_hand={place: found})
    if output.as_json:
        print_results([found], page, True, files=files, **({} if command is None else {"command": command}))
        return
    print_results([found], None, False)
    if command:
        typer.echo(f"\nTo merge: {command}")
    typer.echo(f"\n{report_line(page)}, layers: {folder / 'layers.csv'}")
