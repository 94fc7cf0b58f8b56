"""SHOW: `biascope merge check`: whether models can be merged."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from biascope.cli._dry_run import rehearsed
from biascope.cli.merge.checkpoints import Base
from biascope.cli.merge.results import TABLES, save_and_print
from biascope.cli.options import (
    DataRoot,
    Grid,
    Samples,
    SeededWork,
    Settings,
    SeveralData,
    whole_numbers,
    with_groups,
)
from biascope.editing.reading import Reading

if TYPE_CHECKING:
    from biascope.measures.merge_check.result import MergeCheck

FAIL_ON_HELP = (
    "Exit with status 1 if this is the verdict, for use as a gate; may be repeated. Verdicts are 'merge', 'merge with a loss', "
    "'do not merge' and 'undecided'."
)
METHOD_HELP = (
    "Also compare this merging method, with settings after it: 'ties density=0.4'; may be repeated. 'biascope merge apply --method "
    "list' prints all."
)
ACCURACY_HELP = (
    "Accuracy of each model on its task, such as 0.93, in their order. The expected loss is computed from it."
)


@with_groups
@rehearsed()
def check(
    base: Base,
    models: Annotated[
        list[Path],
        typer.Argument(help="Models fine-tuned from the base, LoRA adapters, or saved task vectors; two or more."),
    ],
    *,
    data: SeveralData,
    how: Reading,
    settings: Settings = [],  # noqa: B006 - typer copies it
    samples: Samples = "1000",
    accuracy: Annotated[list[float], typer.Option(help=ACCURACY_HELP)] = [],  # noqa: B006 - typer copies it
    control: Annotated[
        str | None, typer.Option(help="Samples outside all tasks, to measure what the merge changes there.")
    ] = None,
    methods: Annotated[list[str], typer.Option("--method", help=METHOD_HELP)] = [],  # noqa: B006 - typer copies it
    grid: Grid = 10,
    fail_on: Annotated[list[str], typer.Option(help=FAIL_ON_HELP)] = [],  # noqa: B006 - typer copies it
    data_root: DataRoot = None,
    work: SeededWork,
) -> None:
    """Predict whether models can be merged, with which coefficient and at what loss; no labels are needed.

    Pass --data once for each model, with samples of the data it was fine-tuned on, or once for all; for a text encoder, a folder
    with test.tsv. Labels, if any, check the inputs. Images are padded to --input. Samples are taken from the split test, if there
    is one.

    --model may also name an encoder: efficientnet_lite0, minilm, vit. It is not needed if BASE is a folder of transformers or CLIP.
    Each classifier is read through its own head. Encoders without one get a linear probe, fitted to labelled training samples.
    The outputs of a network are class scores, unless --features is given. --grid 0 leaves the maps out.

    Language models in folders of transformers are compared by the next words that they predict, by divergence and by perplexity. For
    them, --data is a .txt or .jsonl file with a text in each line, a table with a column of texts, or a set of texts.
    """
    from biascope.editing.candidates import candidates_of, kept_by_apply
    from biascope.editing.unlabelled import SPLIT
    from biascope.families.network import Network
    from biascope.families.source import parse_settings
    from biascope.measures.merge_check import merge_check
    from biascope.measures.merge_check.next_words import merge_check_texts
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
    points, *more = whole_numbers(samples, "--samples")
    if more:
        raise ValueError(
            f"--samples must be one number, the samples of each data set, got {samples!r}. Pass --samples 1000."
        )
    reading = dataclasses.replace(how, settings=parse_settings(settings), samples=points, seed=work.seed)
    known = candidates_of(base, models, data, reading, control=control, run=run)
    if known.compared == "words" and (accuracy or methods):
        raise ValueError("--accuracy and --method are for classifiers, but these are language models. Leave them out.")
    folder = work.out or Path("biascope-runs") / f"check-{path_words(base, '.safetensors')}"
    require_own(folder, *TABLES)
    make_writable(folder)
    here = dataclasses.replace(run, folder=folder)
    same: dict[str, Any] = {
        "split": SPLIT,
        "points": reading.samples,
        "name": known.base,
        "seed": work.seed,
        "run": here,
    }
    if known.compared == "words":
        assert isinstance(known.network, Network)
        checked = merge_check_texts(known.network, known.vectors, known.tasks, **same)
    else:
        checked = merge_check(
            known.network,
            known.heads,
            known.vectors,
            known.tasks,
            compared=known.compared,
            accuracies=dict(zip(known.vectors, accuracy, strict=True)) if accuracy else None,
            control=known.control,
            methods=methods,
            grid=grid or None,
            **same,
        )
    checked = dataclasses.replace(checked, notes=known.notes)
    then = ""
    if checked.grade.startswith("merge") and (keep := kept_by_apply(base, models, known.head)) is not None:
        words = ["biascope", "merge", "apply", str(base), *map(str, models), *_how_to_merge(checked)]
        words += [*(("--keep", keep) if keep else ()), *(("--unrelated",) if how.unrelated else ())]
        out = "merged" if (base / "config.json").is_file() else "merged.safetensors"  # a folder as the base is one
        then = shlex.join([*words, "--out", out])
    save_and_print(checked, folder, f"Can {checked.subject} be merged?", work, command=then)
    if checked.grade in fail_on:
        raise typer.Exit(1)


def _how_to_merge(checked: MergeCheck) -> list[str]:
    """Options of `merge apply` for the suggested coefficient, or for a method that does better significantly."""
    from biascope.measures.merge_check.methods import is_better, recommended

    best = recommended(checked)
    suggested = f"task_arithmetic weight={checked.alpha.value:g}"
    if best is None or best[0] == suggested or not is_better(checked):
        return ["--weight", f"{checked.alpha.value:g}"]
    name, *settings = best[0].split()
    return ["--method", name, *(word for each in settings for word in ("--set", each))]
