"""SHOW: `biascope edit`: an encoder fine-tuned on tasks, and what task arithmetic makes of it."""

from __future__ import annotations

import csv
import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from biascope.cli.measure import whole_numbers
from biascope.cli.printing import print_results

if TYPE_CHECKING:
    from biascope.editing.study import Study
    from biascope.families.family import Network
    from biascope.results.estimate import Estimate
    from biascope.results.result import Result
    from biascope.runs.run import Run
    from biascope.training.recipe import Recipe

ENCODER_HELP = "efficientnet_lite0, minilm, vit, or the folder of a CLIP, T5 or BERT."
TASKS_HELP = (
    "Tasks to fine-tune on, joined by commas: data sets (biascope data list), .npz files, image folders, sets of texts."
)
WHAT_HELP = "What to measure: addition, negation, disentanglement, localisation, joined by commas."
CONTROL_HELP = "Task to keep while others are negated; in maps of disentanglement, samples outside both tasks."
PAIR_HELP = "Two tasks for disentanglement; for localisation, a task and another. The first two by default."
POINTS_HELP = "Samples of each task: 2048 for disentanglement and 200 for localisation by default."
SAVE_HELP = "Also write base, task vectors, heads and coefficients, for biascope merge apply."
MEASURES = {
    "addition": "task_addition",
    "negation": "task_negation",
    "disentanglement": "disentanglement",
    "localisation": "eigenfunction_localisation",
}


def edit(
    encoder: Annotated[str, typer.Argument(help=ENCODER_HELP)],
    tasks: Annotated[str, typer.Option(help=TASKS_HELP)],
    what: Annotated[str, typer.Option(help=WHAT_HELP)] = "addition",
    control: Annotated[str, typer.Option(help=CONTROL_HELP)] = "",
    pair: Annotated[str, typer.Option(help=PAIR_HELP)] = "",
    steps: Annotated[int, typer.Option(help="Iterations of a fine-tuning, of 128 samples each.")] = 500,
    rate: Annotated[
        float | None, typer.Option(help="Highest learning rate, non-linear; by default the encoder's own.")
    ] = None,
    linearised_rate: Annotated[float | None, typer.Option(help="The same in the tangent space.")] = None,
    tunings: Annotated[
        str, typer.Option(help="How to fine-tune: non-linear, linearised, or both.")
    ] = "non-linear,linearised",
    seeds: Annotated[int, typer.Option(help="Fine-tunings of each task, with intervals over them.")] = 1,
    sizes: Annotated[str, typer.Option(help="Training, validation and test samples of a task at most.")] = (
        "5000,1000,2000"
    ),
    points: Annotated[int | None, typer.Option(help=POINTS_HELP)] = None,
    grid: Annotated[int, typer.Option(help="Coefficients along a side of a map of disentanglement.")] = 20,
    image_size: Annotated[
        int | None, typer.Option(help="Side of the images for efficientnet_lite0; 96 by default.")
    ] = None,
    random: Annotated[bool, typer.Option("--random", help="Start from random weights.")] = False,
    weights: Annotated[Path | None, typer.Option(help="Other weights of a named encoder.")] = None,
    save_vectors: Annotated[bool, typer.Option("--save-vectors", help=SAVE_HELP)] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[str, typer.Option(help="float64, float32, tf32 or bfloat16.")] = "float32",
    data_root: Annotated[Path | None, typer.Option(help="Folder of data sets; BIASCOPE_DATA by default.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results and report; biascope-runs/edit-ENCODER by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Fine-tune an encoder on tasks, then add and subtract what it learned: are the tasks there, do they interfere?"""
    from biascope.editing.encoder_source import encoder_of
    from biascope.editing.study import save_vectors as saved
    from biascope.editing.study import study_of
    from biascope.editing.tasks import task_of
    from biascope.results.report import write_report
    from biascope.runs.files import make_writable
    from biascope.runs.run import Run
    from biascope.scanning import path_words

    chosen = _checked_choice(what, tasks, control, pair, points, grid)
    recipes = _recipes(encoder, tunings, steps, rate, linearised_rate)
    three = _three(sizes)
    if seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {seeds}. Pass --seeds 3 for intervals over fine-tunings.")
    if random and weights is not None:
        raise ValueError(f"Only one of --random and --weights may be given, got both ({weights}). Leave one out.")
    if random and "localisation" in chosen.what:
        raise ValueError("--what localisation compares with random weights itself, got --random too. Leave that out.")
    if save_vectors and not chosen.tuned:
        raise ValueError(
            "--save-vectors needs task vectors, and localisation alone makes none. Add addition to --what."
        )
    of_weights = "" if weights is None else f"@{path_words(weights, '.safetensors')}"
    named = f"edit-{path_words(encoder)}{'-random' if random else ''}{of_weights}"
    folder = out or Path("biascope-runs") / named
    run = Run(folder=folder, device=device, precision=precision, data_root=data_root)
    _ = run.torch_device  # a device that is not there is told before any work
    found = encoder_of(encoder, weights_file=weights, image_size=image_size, random=random, root=data_root)
    loaded = {label: task_of(each, found, sizes=three, root=data_root) for label, each in chosen.tasks.items()}
    make_writable(folder)
    study = study_of(
        found.network, loaded, recipes=recipes, seeds=range(seeds), tuned=chosen.tuned, name=found.name, run=run
    )

    def untrained() -> Network | None:
        from biascope.families.weights import misfits

        fresh = encoder_of(encoder, image_size=image_size, random=True, root=data_root).network
        return None if misfits(fresh.params, found.network.params) else fresh  # weights may be of another size

    how = {
        "fine-tuned": list(recipes) if chosen.tuned else [],
        "iterations": steps,
        "rates": {tuning: recipe.rate for tuning, recipe in recipes.items()},
        "seeds": seeds,
        "training, validation and test samples": list(three),
    }
    results: dict[str, Result] = {}
    for word in chosen.what:
        result = _measured(word, study, chosen, run, untrained() if word == "localisation" else None)
        results[word] = dataclasses.replace(result, provenance={**result.provenance, "fine-tuning": how})
        results[word].save(folder / MEASURES[word])
        if word in ("addition", "negation"):
            _write_table(results[word], folder / f"{word}.csv")
    page = write_report(list(results.values()), folder / "report.html", title=f"Editing {found.name}")
    files: list[Path] = []
    if save_vectors:
        metadata = _metadata(encoder, weights, data_root, random)
        files = saved(study, folder / "vectors", coefficients=_coefficients(results), metadata=metadata)
    if as_json:
        print_results(list(results.values()), page, as_json)
        return
    for result in results.values():
        typer.echo(f"\n{result.sentence()}\n\n{as_table(result)}")
    typer.echo(f"\nReport: {page}")
    if save_vectors:
        typer.echo(about_vectors(folder / "vectors", files, _coefficients(results)))


@dataclass(frozen=True)
class _Choice:
    """What is measured, of which tasks.

    Attributes:
        what: Words for measurements.
        tasks: All that are needed, from what results call them to what the user does.
        tuned: Those to fine-tune on.
        control: The control task, perhaps empty.
        pair: Of disentanglement and localisation; empty where neither is asked for.
        points: Samples of each task, where given.
        grid: Coefficients along a side.
    """

    what: tuple[str, ...]
    tasks: dict[str, str]
    tuned: tuple[str, ...]
    control: str
    pair: tuple[str, ...]
    points: int | None
    grid: int


def _checked_choice(what: str, tasks: str, control: str, pair: str, points: int | None, grid: int) -> _Choice:
    """What was asked for, where it can be done."""
    words = tuple(dict.fromkeys(_words(what)))
    if unknown := [word for word in words if word not in MEASURES]:
        raise ValueError(f"--what must be among {', '.join(MEASURES)}, got {unknown[0]!r}. Pass --what addition.")
    names = {_label(name): name for name in _words(tasks)}
    if not words or not names or len(names) < len(_words(tasks)):
        problem = "one twice" if names else "none"
        raise ValueError(
            f"--tasks and --what must name different tasks and measurements, got {problem}. Pass --tasks mnist,gtsrb."
        )
    two = tuple(map(_label, _words(pair))) or tuple(names)[:2]
    of_pair = [word for word in words if word in ("disentanglement", "localisation")]
    if of_pair and len(names) < 2:
        raise ValueError(
            f"--what {of_pair[0]} needs two tasks, got {next(iter(names))} alone. Pass --tasks {next(iter(names))},gtsrb."
        )
    if pair and (not of_pair or len(set(two)) != 2 or len(two) != 2 or not set(two) <= set(names)):
        needs = "is for disentanglement and localisation, and must name two of the tasks"
        raise ValueError(
            f"--pair {needs} {', '.join(names)}, got {pair!r} for {', '.join(words)}. Pass such a pair, or leave it out."
        )
    kept = _label(control) if control else ""
    if "negation" in words and not set(names) - {kept}:
        raise ValueError(
            f"--what negation needs a task besides the control task {kept}, got none. Pass another in --tasks."
        )
    if "negation" in words and not kept:
        raise ValueError("--what negation needs a control task that must be kept, got none. Pass --control cifar10.")
    if kept and not {"negation", "disentanglement"} & set(words):
        raise ValueError(
            f"--control is for negation and disentanglement, got {control} for {', '.join(words)}. Add one to --what, or leave it out."
        )
    if grid < 2 or (points is not None and points < 2):
        raise ValueError(
            f"--grid and --points must be at least 2, got {grid} and {points}. Pass --grid 20 --points 2048."
        )
    needed = names | ({kept: control} if kept else {})
    tuned = tuple(names)
    if words == ("localisation",):  # it is about kernels at θ₀
        needed, tuned = {name: names[name] for name in two}, ()
    return _Choice(words, needed, tuned, kept, two if of_pair else (), points, grid)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _label(name: str) -> str:
    """What to call a task in tables: of a path, its last part.

    Example:
        >>> _label("mnist"), _label("sets/digits.npz")
        ('mnist', 'digits')
    """
    return Path(name).name.removesuffix(".npz")


def _three(sizes: str) -> tuple[int, int, int]:
    found = whole_numbers(sizes, "--sizes")
    if len(found) != 3 or min(found) < 1:
        raise ValueError(
            f"--sizes must be positive numbers of training, validation and test samples, got {sizes!r}. Pass --sizes 5000,1000,2000."
        )
    return found


def _recipes(
    encoder: str, tunings: str, steps: int, rate: float | None, linearised_rate: float | None
) -> dict[str, Recipe]:
    """How to fine-tune, with the encoder's own rates where none are given."""
    from biascope.editing.study import usual_rates
    from biascope.editing.tuning import TUNINGS, tuning_recipe

    wanted = _words(tunings)
    if not wanted or not set(wanted) <= set(TUNINGS):
        raise ValueError(
            f"--tunings must be among {' and '.join(TUNINGS)}, got {tunings!r}. Pass --tunings non-linear."
        )
    given = dict(zip(TUNINGS, (rate, linearised_rate), strict=True))
    rates = usual_rates(encoder) | {tuning: each for tuning, each in given.items() if each is not None}
    for tuning, option in zip(TUNINGS, ("--rate", "--linearised-rate"), strict=True):
        if given[tuning] is not None and (tuning not in wanted or not 0 < rates[tuning] < 1e3):
            raise ValueError(
                f"{option} must be positive, for a tuning that is made, got {given[tuning]:g} with --tunings {tunings}. Leave it out."
            )
    if steps < 1:
        raise ValueError(f"--steps must be at least 1, got {steps}. Pass --steps 500.")
    return {tuning: tuning_recipe(steps=steps, rate=rates[tuning]) for tuning in TUNINGS if tuning in wanted}


def _measured(word: str, study: Study, chosen: _Choice, run: Run, untrained: Network | None) -> Result:
    """One measurement; of addition and negation, with the vectors of every seed."""
    from biascope.editing.results import repeated
    from biascope.results.registry import find

    measure, name = find(MEASURES[word]), study.name
    points: dict[str, Any] = {} if chosen.points is None else {"points": chosen.points}
    found: Result
    if word == "localisation":
        one, other = chosen.pair
        found = measure(
            study.encoder,
            study.heads[one],
            study.tasks[one],
            study.tasks[other],
            random=untrained,
            name=name,
            run=run,
            **points,
        )
    elif word == "disentanglement":
        control = study.tasks[chosen.control] if chosen.control not in ("", *chosen.pair) else None
        few = {} if chosen.points is None else {"control_points": min(chosen.points, 512)}
        found = measure(
            study.encoder, study.heads, study.vectors[0], study.tasks,
            pair=chosen.pair, control=control, grid=chosen.grid, name=name, run=run, **points, **few,
        )  # fmt: skip
    else:
        own = {"control": chosen.control} if word == "negation" else {}
        wanted = chosen.tuned if word == "addition" else dict.fromkeys((*chosen.tuned, chosen.control))
        tasks = {task: study.tasks[task] for task in wanted}
        found = repeated(
            [
                measure(study.encoder, study.heads, vectors, tasks, name=name, run=run, **own)
                for vectors in study.vectors
            ]
        )
    return found


def as_table(result: Result) -> str:
    """A result as lines of text: accuracies with intervals by way to edit, or its main numbers."""
    from biascope.measures.task_addition import TaskAddition
    from biascope.measures.task_negation import TaskNegation

    if not isinstance(result, TaskAddition | TaskNegation):
        return "\n".join(f"  {name}: {estimate!r}" for name, estimate in result.headline().items())
    rows: Mapping[str, Mapping[str, Estimate]] = result.table()
    columns = list(rows[result.methods[0]])
    lines = [f"  {'':12}" + "".join(f"{column + ', %':>24}" for column in columns) + f"{'coefficient':>14}"]
    for way, cells in rows.items():
        shown = [
            f"{cells[c].value:.1f} ({cells[c].low:.1f} to {cells[c].high:.1f})" if c in cells else "" for c in columns
        ]
        at = result.methods.index(way) if way in result.methods else None
        coefficient = "" if at is None else f"{result.chosen[:, at].mean():.2f}"
        lines.append(f"  {way:12}" + "".join(f"{cell:>24}" for cell in shown) + f"{coefficient:>14}")
    return "\n".join(line.rstrip() for line in lines)


def _write_table(result: Any, path: Path) -> None:
    """Accuracies of every seed, way to edit and task, between 0 and 1."""
    added = result.measurement == "task_addition"
    kinds = ("single", "merged") if added else ("target", "control")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["seed", "way", "task", "coefficient", "pre-trained", *kinds])
        for seed in range(len(result.pretrained)):
            for place, way in enumerate(result.methods):
                for number, task in enumerate(result.tasks):
                    chosen = result.chosen[seed, place] if added else result.chosen[seed, place, number]
                    values = [getattr(result, kind)[seed, place, number] for kind in kinds]
                    writer.writerow(
                        [
                            seed,
                            way,
                            task,
                            *(f"{each:.4f}" for each in (chosen, result.pretrained[seed, number], *values)),
                        ]
                    )


def _coefficients(results: Mapping[str, Result]) -> dict[str, list[float]] | None:
    """By way to edit, the coefficient of the sum of all vectors for each seed."""
    added: Any = results.get("addition")
    return None if added is None else {way: added.chosen[:, i].tolist() for i, way in enumerate(added.methods)}


def _metadata(encoder: str, weights: Path | None, root: Path | None, random: bool) -> dict[str, str]:
    """What stands beside the weights of a small ViT, its sizes, without which merged ones could not be read."""
    from biascope.data import data_root
    from biascope.families.checkpoint import Checkpoint

    path = weights or data_root(root) / "encoders" / "vit.safetensors"
    return {} if random or encoder.lower() != "vit" else dict(Checkpoint.open(path).metadata)


def about_vectors(folder: Path, files: Sequence[Path], coefficients: Mapping[str, Sequence[float]] | None) -> str:
    """Where the vectors are, and how to merge them."""
    where = f"Task vectors: {folder}"
    if not files:
        return where
    if coefficients is None:
        return f"{where} (for a coefficient to merge them with, measure addition too)"
    if not coefficients["non-linear"][0]:
        return f"{where} (the best coefficient is 0: adding all of them gains nothing)"
    words = [folder / "base.safetensors", *files, "--weight", f"{coefficients['non-linear'][0]:g}"]
    words += ["--out", folder / "merged.safetensors"]
    return f"{where}\nTo merge: biascope merge apply {shlex.join(map(str, words))}"
