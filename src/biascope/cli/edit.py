"""SHOW: `biascope edit`: fine-tune an encoder on tasks and measure task arithmetic on it."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from biascope.cli._dry_run import rehearsed
from biascope.cli._edit_options import MEASURES, Choice, EncoderOptions, Question, TuningOptions
from biascope.cli._settings_file import keep_settings
from biascope.cli.options import DataRoot, Samples, SeededWork, whole_numbers, with_groups
from biascope.cli.printing import print_results, print_warnings, report_line, write_table

if TYPE_CHECKING:
    from biascope.editing.study import Study
    from biascope.families.network import Network
    from biascope.results.estimate import Estimate
    from biascope.results.result import Result
    from biascope.runs.run import Run

ENCODER_HELP = "Encoder: efficientnet_lite0, efficientnet_lite2, minilm, minilm_l3, vit, or the folder of a CLIP, T5 or BERT model."
TASKS_HELP = "Tasks to fine-tune on, separated by commas: data sets (biascope data list), .npz files, image folders, text data sets."
SAVE_HELP = "Also save base, task vectors, heads and coefficients, for biascope merge apply."


@with_groups
@rehearsed()
def edit(
    encoder: Annotated[str, typer.Argument(help=ENCODER_HELP)],
    *,
    tasks: Annotated[str, typer.Option(help=TASKS_HELP)],
    question: Question,
    tuning: TuningOptions,
    samples: Samples = "5000,1000,2000",
    data_root: DataRoot = None,
    begin: EncoderOptions,
    save_vectors: Annotated[bool, typer.Option("--save-vectors", help=SAVE_HELP)] = False,
    work: SeededWork,
) -> None:
    """Fine-tune an encoder on tasks, then add and subtract the task vectors: how accurate is the result, do tasks interfere?

    --samples are the training, validation and test samples of a task. --steps are iterations of 128 samples each; without --rate and
    --linearised-rate the encoder's own learning rates are used.
    """
    from biascope.editing.study import require_own_vectors, study_of
    from biascope.editing.study import save_vectors as saved
    from biascope.editing.tasks import task_of
    from biascope.results.report import write_folder_report
    from biascope.runs.files import make_writable, require_ours

    chosen = question.about(tasks)
    recipes = tuning.recipes(encoder)
    three = _three(samples)
    begin.check(chosen)
    if save_vectors and not chosen.tuned:
        raise ValueError(
            "--save-vectors needs task vectors, but localisation alone computes none. Add addition to --what."
        )
    folder = work.out or Path("biascope-runs") / begin.folder_name(encoder)
    run = work.run(folder, data_root=data_root)
    require_ours(*(folder / f"{word}.csv" for word in chosen.what))
    if save_vectors:
        require_own_vectors(folder / "vectors", chosen.tuned, tunings=recipes, seeds=tuning.seeds)
    start = begin.encoder(encoder, data_root)
    loaded = {label: task_of(each, start, sizes=three, root=data_root) for label, each in chosen.tasks.items()}
    make_writable(folder)
    seeds = range(work.seed, work.seed + tuning.seeds)
    study = study_of(
        start.network,
        loaded,
        recipes=recipes,
        seeds=seeds,
        tuned=chosen.tuned,
        normalise=tuning.normalise,
        name=start.name,
        run=run,
    )
    how = {
        "tunings": list(recipes) if chosen.tuned else [],
        "steps": tuning.steps,
        "rates": {name: recipe.rate for name, recipe in recipes.items()},
        "seeds": tuning.seeds,
        "features_normalised": tuning.normalise,
        "samples": list(three),
    }
    results: dict[str, Result] = {}
    files: list[Path] = []
    for word in chosen.what:
        untrained = begin.untrained(encoder, data_root, start.network) if word == "localisation" else None
        result = _measured(word, study, chosen, work.seed, run, untrained)
        results[word] = dataclasses.replace(result, provenance={**result.provenance, "fine_tuning": how})
        results[word].save(folder / MEASURES[word])
        if rows := results[word].tables().get("accuracies"):
            files.append(write_table(rows, folder / f"{word}.csv"))
    keep_settings(folder)
    at_hand = {folder / MEASURES[word]: result for word, result in results.items()}
    page = write_folder_report(folder, title=f"Editing {start.name}", at_hand=at_hand)
    vectors: list[Path] = []
    if save_vectors:
        metadata = begin.metadata(encoder, data_root)
        vectors = saved(study, folder / "vectors", coefficients=_coefficients(results), metadata=metadata)
    if work.as_json:
        print_results(list(results.values()), page, True, files=files, vectors=vectors)
        return
    for result in results.values():
        typer.echo(f"\n{result.sentence()}\n\n{as_table(result)}")
        print_warnings(result)
    typer.echo(f"\n{report_line(page)}")
    if save_vectors:
        typer.echo(about_vectors(folder / "vectors", vectors, _coefficients(results)))


def _three(samples: str) -> tuple[int, int, int]:
    sizes = whole_numbers(samples, "--samples")
    if len(sizes) != 3 or min(sizes) < 1:
        raise ValueError(
            f"--samples must be positive numbers of training, validation and test samples, got {samples!r}. "
            "Pass --samples 5000,1000,2000."
        )
    return sizes


def _measured(word: str, study: Study, chosen: Choice, seed: int, run: Run, untrained: Network | None) -> Result:
    """One measurement; of addition and negation, with the vectors of every seed."""
    from biascope.editing.results import repeated
    from biascope.results.registry import find

    measure = find(MEASURES[word])
    how: dict[str, Any] = {"name": study.name, "seed": seed, "run": run}
    points = {} if chosen.points is None else {"points": chosen.points}
    result: Result
    if word == "localisation":
        one, other = chosen.pair
        result = measure(
            study.encoder,
            study.heads[one],
            study.tasks[one],
            study.tasks[other],
            random=untrained,
            **points,
            **how,
        )
    elif word == "disentanglement":
        control = study.tasks[chosen.control] if chosen.control not in ("", *chosen.pair) else None
        few = {} if chosen.points is None else {"control_points": min(chosen.points, 512)}
        result = measure(
            study.encoder,
            study.heads,
            study.vectors[0],
            study.tasks,
            pair=chosen.pair,
            control=control,
            grid=chosen.grid,
            **points,
            **few,
            **how,
        )
    else:
        own = {"control": chosen.control} if word == "negation" else {}
        wanted = chosen.tuned if word == "addition" else dict.fromkeys((*chosen.tuned, chosen.control))
        tasks = {task: study.tasks[task] for task in wanted}
        result = repeated([measure(study.encoder, study.heads, each, tasks, **own, **how) for each in study.vectors])
    return result


def as_table(result: Result) -> str:
    """A result as lines of text: accuracies with intervals for each method, or its main numbers."""
    from biascope.measures.task_addition import TaskAddition
    from biascope.measures.task_negation import TaskNegation

    if not isinstance(result, TaskAddition | TaskNegation):
        return "\n".join(f"  {number.label}: {number!r}" for number in result.headline().values())
    rows: Mapping[str, Mapping[str, Estimate]] = result.table()
    columns = list(rows[result.methods[0]])
    lines = [f"  {'':12}" + "".join(f"{column + ', %':>24}" for column in columns) + f"{'coefficient':>14}"]
    for way, cells in rows.items():
        shown = [_in_percent(cells[column]) if column in cells else "" for column in columns]
        at = result.methods.index(way) if way in result.methods else None
        coefficient = "" if at is None else f"{result.chosen[:, at].mean():.2f}"
        lines.append(f"  {way:12}" + "".join(f"{cell:>24}" for cell in shown) + f"{coefficient:>14}")
    return "\n".join(line.rstrip() for line in lines)


def _in_percent(share: Estimate) -> str:
    shown = share.in_percent()
    return f"{shown.value:.1f} ({shown.low:.1f} to {shown.high:.1f})"


def _coefficients(results: Mapping[str, Result]) -> dict[str, list[float]] | None:
    """For each method, the coefficient of the sum of all vectors for each seed."""
    added: Any = results.get("addition")
    return None if added is None else {way: added.chosen[:, i].tolist() for i, way in enumerate(added.methods)}


def about_vectors(folder: Path, files: Sequence[Path], coefficients: Mapping[str, Sequence[float]] | None) -> str:
    """Where the vectors are, and how to merge them."""
    where = f"Task vectors: {folder}"
    if not files:
        return where
    if coefficients is None:
        return f"{where} (to get a coefficient for merging, also measure addition)"
    if not coefficients["non-linear"][0]:
        return f"{where} (the best coefficient is 0: adding all of them improves nothing)"
    words = [folder / "base.safetensors", *files, "--weight", f"{coefficients['non-linear'][0]:g}"]
    words += ["--out", folder / "merged.safetensors"]
    return f"{where}\nTo merge: biascope merge apply {shlex.join(map(str, words))}"
