"""Tables 6.1 to 6.3 and D.1, figures 6.2, 6.3, 6.7, D.1 and section D.2: tasks added to encoders, and taken away."""

# R seeds · W ways to edit · T tasks

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from biascope.editing.accuracies import SPLITS
from biascope.editing.outputs import METHODS
from biascope.editing.pictures import accuracy_bars, coefficient_panels, radar_figure
from biascope.editing.results import error_of_samples, repeated
from biascope.editing.tuning import TUNINGS, Vectors
from biascope.editing.vectors import TaskVector
from biascope.measures.task_addition import TaskAddition, task_addition
from biascope.measures.task_negation import TaskNegation, task_negation
from biascope.papers.selection import old_figure
from biascope.papers.task_arithmetic2023.tasks import (
    CONTROL,
    ENCODERS,
    IMAGES,
    LOGIT_SCALE,
    NOTES,
    ONE_DRAW,
    PLANS,
    PUBLISHED,
    WAYS,
    Study,
    encoders,
    how,
    kept,
    progress,
    searched,
    share_of,
    study,
)
from biascope.results.estimate import Estimate, Number, agree, over, proportion
from biascope.results.finding import Finding
from biascope.results.wording import snake
from biascope.runs.run import Run
from biascope.tasks.task import Arrays

if TYPE_CHECKING:
    from matplotlib.figure import Figure

START = "pre-trained"
_RANDOM = "random start"  # of table 6.3
_RESAMPLES = 200
# Points. "Higher" has the bound 0, but no difference at all is not an advantage, as where every search ends at the coefficient 0. This
# was added after the first run, and can only count against a claim.
AHEAD = 0.1
# "Less than 1" by a step of the search: it ends at 1, so that no coefficient exceeds 1. This bound replaced the share of searches that
# end below 1 after the first runs. It is stricter, because every method must meet it with its whole interval.
BELOW_ONE = 0.95


def added(
    found: Study,
    effort: str,
    run: Run,
    *,
    only: Sequence[str] | None = None,
    methods: tuple[str, ...] | None = None,
) -> TaskAddition:
    """Task addition with the vectors of every seed.

    Args:
        found: Encoder, tasks, heads and vectors.
        effort: How many coefficients are searched.
        run: Outputs are kept in the folder that figures share.
        only: Tasks whose vectors are added; all by default.
        methods: Ways to edit; all that the vectors allow by default.
    """
    tasks = {task: _judged(each) for task, each in found.tasks.items() if only is None or task in only}
    return repeated(
        [
            kept(
                TaskAddition, task_addition, found.encoder, _of(tasks, found.heads), _parts(vectors, tasks, methods), tasks,
                at=next(iter(tasks.values())), methods=methods, coefficients=PLANS[effort].coefficients,
                resamples=_RESAMPLES, name=found.name, run=run.shared,
            )
            for vectors in found.vectors
        ]
    )  # fmt: skip


def _judged(task: Arrays) -> Arrays:
    """The splits that edits are chosen and judged on."""
    return dataclasses.replace(task, splits={split: task.splits[split] for split in SPLITS})


Item = TypeVar("Item")


def _of(tasks: Iterable[str], items: Mapping[str, Item]) -> dict[str, Item]:
    return {task: items[task] for task in tasks if task in items}


def _parts(vectors: Vectors, tasks: Iterable[str], methods: Sequence[str] | None) -> dict[str, dict[str, TaskVector]]:
    """The task vectors that a measurement needs: work is found again whatever others there are."""
    needed = {METHODS[way][1] for way in methods or METHODS}
    return {tuning: _of(tasks, each) for tuning, each in vectors.items() if tuning in needed}


def _negated(found: Study, effort: str, run: Run) -> TaskNegation:
    targets = [task for task in found.tasks if task != CONTROL][: PLANS[effort].targets]
    tasks = {task: _judged(found.tasks[task]) for task in (*targets, CONTROL)}
    return repeated(
        [
            kept(
                TaskNegation, task_negation, found.encoder, _of(tasks, found.heads), _parts(vectors, targets, None), tasks,
                at=tasks[CONTROL], control=CONTROL, coefficients=PLANS[effort].coefficients,
                resamples=_RESAMPLES, name=found.name, run=run.shared,
            )
            for vectors in found.vectors
        ]
    )  # fmt: skip


def _table(name: str, rows: dict[str, dict[str, Estimate]]) -> dict[str, Number]:
    return {
        f"{snake(name)}_{snake(way)}_{row}_percent": each.in_percent().named(f"{name}: {way}, {row}", "%")
        for way, row_of in rows.items()
        for row, each in row_of.items()
    }


def _differences(
    name: str,
    values: np.ndarray,
    draws: np.ndarray,
    stem: str,
    words: str,
    edited: np.ndarray | None = None,
    both: bool = False,
) -> dict[str, Number]:
    """Differences between ways to edit, paired by seed and by test sample, in points.

    Values are (seed, way); draws (seed, way, resample) are the same on resampled test samples. Where an edit is asked for (``edited``,
    like values) and every search of both ways ended at the coefficient 0, there is nothing to compare. Shares of single-task accuracy
    need an edit of each way (``both``): the share of an encoder that is not edited is the higher, the poorer its single tasks.
    """
    pairs = (("linearised", "non-linear"), ("post-hoc", "non-linear"), ("linearised", "post-hoc"))
    found = {}
    for pair in pairs:
        one, other = (WAYS.index(way) for way in pair)
        enough = all if both else any
        none = edited is not None and not enough(edited[:, way].any() for way in (one, other))
        points, drawn = (100 * (each[:, one] - each[:, other]) for each in (values, draws))
        difference = Estimate(np.nan) if none else over(points, shared=error_of_samples(drawn))
        found[f"{snake(name)}_{stem}_{snake(pair[0])}_minus_{snake(pair[1])}"] = difference.named(
            f"{name}: {words}, {pair[0]} minus {pair[1]}"
        )
    return found


START_PLACE, SINGLE, MERGED, SHARE = range(4)  # places of the numbers in the draws of a TaskAddition


def _gain(result: TaskAddition, way: str, edited: int = MERGED) -> Estimate:
    """Accuracy after an edit minus that of the start, in points."""
    place = result.methods.index(way)
    after = {SINGLE: result.single, MERGED: result.merged}[edited][:, place].mean(-1)
    drawn = result.draws[:, place, edited] - result.draws[:, place, START_PLACE]
    return over(100 * (after - result.pretrained.mean(-1)), shared=error_of_samples(100 * drawn))


def _gained(result: TaskAddition, way: str) -> Estimate:
    """What a merge gains; nothing where nothing was merged, so that a failure elsewhere is not compared with another failure."""
    return _gain(result, way) if (result.chosen[:, result.methods.index(way)] > 0).any() else Estimate(np.nan)


def _compared(name: str, result: TaskAddition) -> dict[str, Number]:
    """Merged encoders against one another and against the start."""
    merged, draws = result.chosen > 0, result.draws
    found = _differences(name, result.absolute, draws[:, :, MERGED], "absolute_accuracy", "absolute accuracy", merged)
    found |= _differences(
        name, result.normalised, draws[:, :, SHARE], "normalised_accuracy", "normalised accuracy", merged, both=True
    )
    return found | {
        f"{snake(name)}_absolute_accuracy_{snake(way)}_minus_pre_trained": _gain(result, way).named(
            f"{name}: absolute accuracy, {way} minus pre-trained"
        )
        for way in WAYS
    }


_PLAIN = "plain features"
_FEATURES = tuple(f"{tuning}, {kind}" for tuning in TUNINGS for kind in ("normalised", "plain"))


def _drawn_bars(finding: Finding, dark: bool, y: str, reading: str, ways: tuple[str, ...] = (START, *WAYS)) -> Figure:
    bars: dict[str, dict[str, Estimate]] = {}
    for name, way in itertools.product(finding.settings["encoders"], ways):
        if (each := finding.statistics.get(f"{snake(name)}_{snake(way)}_{y}_percent")) is not None:
            bars.setdefault(name, {})[way] = each
    return accuracy_bars(bars, y=f"{y} accuracy, %", reading=reading, dark=dark)


def _drawn_61(finding: Finding, dark: bool) -> Figure:
    names = [key.removesuffix(": curves") for key in finding.arrays if key.endswith(": curves")]
    curves = {name: 100 * finding.arrays[f"{name}: curves"].mean((0, 3)) for name in names}  # (way, coefficient)
    groups = {name: dict(zip(WAYS, each, strict=True)) for name, each in curves.items()}
    chosen = {
        name: {way: finding.statistics[f"{snake(name)}_coefficient_{snake(way)}"].value for way in WAYS}
        for name in names
    }
    alphas = finding.arrays["coefficients"]
    reading = "Mean accuracy over tasks on validation samples, with α times the sum of all vectors; rings: chosen."
    return coefficient_panels(groups, alphas, chosen, y="accuracy of all tasks, %", reading=reading, dark=dark)


@old_figure(
    "table 6.1",
    networks=ENCODERS,
    title="Task addition (with table D.1 for a CNN)",
    show=_drawn_61,
    published=PUBLISHED,
)
def table_61(effort: str, run: Run) -> Finding:
    """Absolute and normalised accuracy of encoders with the vectors of all tasks added."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    names = encoders(effort, run)
    for name in names:
        found = study(name, effort, run)
        result = added(found, effort, run)
        statistics |= _table(name, result.table()) | _compared(name, result) | progress(found, run)
        statistics |= {
            f"{snake(name)}_coefficient_{snake(way)}": searched(result.chosen[:, place], result.alphas).named(
                f"{name}: coefficient, {way}"
            )
            for place, way in enumerate(result.methods)
        }
        for kind in ("pretrained", "single", "merged", "curves"):
            arrays[f"{name}: {kind}"] = getattr(result, kind)
        arrays["coefficients"] = result.alphas
    return Finding(statistics, arrays, how(effort, run, names), NOTES)


def _ahead(merged: np.ndarray, chosen: np.ndarray, one: str, other: str) -> Estimate:
    """Percentage of tasks on which one way merges better than another, mean over seeds; nothing where nothing was merged."""
    places = [WAYS.index(one), WAYS.index(other)]
    if not (chosen[:, places] > 0).any():
        return Estimate(np.nan)
    ahead = merged[:, places[0]] > merged[:, places[1]]
    return share_of(float(ahead.mean()), ahead.shape[1], len(ahead))


def _accuracy(values: np.ndarray, samples: int, everything: bool = False) -> Estimate:
    """Accuracy on one task in percent, of each seed on the same test samples, whose error is joined with that of seeds."""
    errors = np.array([proportion(value, samples).standard_error for value in values])
    return over(100 * values, shared=float(100 * errors.mean()), within=(0.0, 100.0), everything=everything)


def _drawn_63(finding: Finding, dark: bool) -> Figure:
    name = next(key.partition(": ")[0] for key in finding.arrays)
    rays = {START: 100 * finding.arrays[f"{name}: pretrained"].mean(0)}
    rays |= {way: 100 * finding.arrays[f"{name}: merged"].mean(0)[place] for place, way in enumerate(WAYS)}
    return radar_figure(rays, list(finding.settings["tasks"]), dark=dark)


@old_figure(
    "6.3",
    networks=IMAGES,
    title="Task addition, task by task",
    show=_drawn_63,
    published=PUBLISHED,
)
def figure_63(effort: str, run: Run) -> Finding:
    """Accuracy of each task after addition."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    names = encoders(effort, run, texts=False)
    for name in names:
        found = study(name, effort, run)
        result = added(found, effort, run)
        statistics |= progress(found, run)
        for one, other in (("linearised", "non-linear"), ("non-linear", "post-hoc")):
            statistics[f"{snake(name)}_tasks_on_which_{snake(one)}_is_ahead_of_{snake(other)}_percent"] = _ahead(
                result.merged, result.chosen, one, other
            ).named(f"{name}: tasks on which {one} is ahead of {other}", "%")
        for place, task in enumerate(result.tasks):
            samples = len(found.tasks[task].splits["test"][1])
            statistics[f"{snake(name)}_{snake(task)}_pre_trained_percent"] = _accuracy(
                result.pretrained[:, place], samples, everything=agree(result.pretrained[:, place])
            ).named(f"{name}: {task}, pre-trained", "%")
            statistics |= {
                f"{snake(name)}_{snake(task)}_{snake(way)}_percent": _accuracy(
                    result.merged[:, number, place], samples
                ).named(f"{name}: {task}, {way}", "%")
                for number, way in enumerate(result.methods)
            }
        arrays |= {f"{name}: pretrained": result.pretrained, f"{name}: merged": result.merged}
    return Finding(statistics, arrays, how(effort, run, names), NOTES)


@old_figure(
    "6.2",
    networks=ENCODERS,
    title="Accuracy of single tasks: non-linear, post-hoc and linearised (with figures 6.7 and D.1)",
    show=lambda finding, dark: _drawn_bars(
        finding,
        dark,
        "single",
        "Mean accuracy over tasks, each with its own vector alone; intervals over seeds and samples.",
    ),
    published=PUBLISHED,
)
def figure_62(effort: str, run: Run) -> Finding:
    """Accuracy of each task with its own vector alone."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    names = encoders(effort, run)
    for name in names:
        found = study(name, effort, run)
        result = added(found, effort, run)
        statistics |= progress(found, run)
        statistics |= _table(
            name, {way: {"single": each["single"]} for way, each in result.table().items() if way != START}
        )
        differences = _differences(
            name, result.single.mean(-1), result.draws[:, :, SINGLE], "single_task_accuracy", "single-task accuracy"
        )
        lost = differences[f"{snake(name)}_single_task_accuracy_post_hoc_minus_non_linear"].map_linear(-1.0)
        statistics |= differences
        statistics[f"{snake(name)}_single_task_accuracy_non_linear_minus_post_hoc"] = lost.named(
            f"{name}: single-task accuracy, non-linear minus post-hoc"
        )
        statistics[f"{snake(name)}_share_of_the_non_linear_advantage_that_linearised_fine_tuning_closes"] = _closed(
            result
        ).named(f"{name}: share of the non-linear advantage that linearised fine-tuning closes")
        arrays[f"{name}: single"] = result.single
    return Finding(statistics, arrays, how(effort, run, names), NOTES)


def _closed(result: TaskAddition) -> Estimate:
    """Share of the gap between non-linear and post-hoc single-task accuracy that linearised fine-tuning closes, if there is a gap.

    Linearised fine-tuning is better than post-hoc linearisation by construction, so that only how much better says anything.
    """
    places = [result.methods.index(way) for way in ("non-linear", "post-hoc", "linearised")]
    best, worst, between = result.single.mean(-1)[:, places].T  # (seed,) each
    if (100 * (best - worst) < AHEAD).any():
        return Estimate(np.nan)
    drawn = result.draws[:, places, SINGLE]  # (seed, way, resample)
    gap = np.maximum(drawn[:, 0] - drawn[:, 1], AHEAD / 100)
    return over((between - worst) / (best - worst), shared=error_of_samples((drawn[:, 2] - drawn[:, 1]) / gap))


@old_figure(
    "table 6.2",
    networks=IMAGES,
    title="Task negation",
    show=lambda finding, dark: _drawn_bars(
        finding, dark, "target", "Mean accuracy of targets whose vectors were subtracted, the control task being kept."
    ),
    published=PUBLISHED | {"control task": "ImageNet", "control accuracy kept": 0.95},
)
def table_62(effort: str, run: Run) -> Finding:
    """Target and control accuracy after a task vector is subtracted, CIFAR-10 being the control task."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    names = encoders(effort, run, texts=False)
    for name in names:
        found = study(name, effort, run)
        result = _negated(found, effort, run)
        retained = result.control.mean(-1), result.draws[:, :, 3]
        edited = np.asarray((result.chosen > 0).any(-1))
        statistics |= _differences(name, *retained, "control_accuracy", "control accuracy", edited, both=True)
        statistics |= _table(name, result.table()) | progress(found, run)
        target, draws = result.target.mean(-1), result.draws[:, :, 1]
        statistics |= _differences(name, target, draws, "target_accuracy", "target accuracy", edited)
        fall, drawn = target[:, 0] - result.pretrained.mean(-1), draws[:, 0] - result.draws[:, 0, 0]
        statistics[f"{snake(name)}_target_accuracy_non_linear_minus_pre_trained"] = over(
            100 * fall, shared=error_of_samples(100 * drawn)
        ).named(f"{name}: target accuracy, non-linear minus pre-trained")
        for kind in ("pretrained", "pretrained_control", "target", "control"):
            arrays[f"{name}: {kind}"] = getattr(result, kind)
    settings: dict[str, Any] = how(effort, run, names)
    return Finding(
        statistics,
        arrays,
        settings | {"control task": CONTROL, "control accuracy kept": 0.95},
        (*NOTES, _NEGATION),
    )


_NEGATION = (
    "The search ends at the coefficient 1, so that a search may end there before the control task has lost 5 % of its accuracy. "
    "So control accuracies of the methods are not matched, while the published networks keep 95 to 96 % each."
)


@old_figure(
    "table 6.3",
    networks=IMAGES,
    title="Task addition from random weights",
    show=lambda finding, dark: _drawn_bars(
        finding,
        dark,
        "absolute",
        "Mean accuracy over three tasks with all vectors added, from random weights.",
        (_RANDOM, *WAYS),
    ),
    published=PUBLISHED,
)
def table_63(effort: str, run: Run) -> Finding:
    """The same from random weights, on three tasks, beside what the same tasks gain from pre-trained weights."""
    return _from_random(effort, run, chance=False)


def _from_random(effort: str, run: Run, *, chance: bool) -> Finding:
    """Task addition from random weights, with probes as heads or with heads at chance."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    names, seeds = encoders(effort, run, texts=False), PLANS[effort].seeds
    kind, words = (
        ("random_at_chance", "random weights with heads at chance") if chance else ("random", "random weights")
    )
    for name in names:
        found = study(name, effort, run, random=True, chance=chance)
        trained = study(name, effort, run, only=PLANS[effort].random)
        result, pretrained = added(found, effort, run), added(trained, effort, run)
        rows = result.table()
        statistics |= _table(name, {_RANDOM if way == START else way: each for way, each in rows.items()})
        statistics |= progress(found, run, start=_CHANCE if chance else "random") | progress(trained, run)
        for way in ("non-linear", "linearised"):
            here, there, of = _gain(result, way), _gained(pretrained, way), f"{name}: gain by {way} vectors"
            gain = f"{snake(name)}_gain_{snake(way)}"
            statistics |= {
                f"{snake(name)}_single_task_accuracy_{snake(way)}_minus_the_start": _gain(result, way, SINGLE).named(
                    f"{name}: single-task accuracy, {way} minus the start"
                ),
                f"{snake(name)}_absolute_accuracy_{snake(way)}_minus_the_start": here.named(
                    f"{name}: absolute accuracy, {way} minus the start"
                ),
                f"{gain}_pre_trained_minus_{kind}": there.minus(here, seeds).named(
                    f"{of}, from pre-trained minus from {words}"
                ),
                f"{gain}_{kind}_minus_half_of_pre_trained": here.minus(there.map_linear(0.5), seeds).named(
                    f"{of}, from {words} minus half of that from pre-trained weights"
                ),
            }
        for each in ("pretrained", "single", "merged"):
            arrays[f"{name}: {each}"] = getattr(result, each)
    settings: dict[str, Any] = {**how(effort, run, names), "tasks": list(PLANS[effort].random)}
    if chance:
        settings["heads at random weights"] = f"random directions of length {LOGIT_SCALE:g}, without biases"
    return Finding(statistics, arrays, settings, (*NOTES, ONE_DRAW, _ANEW if chance else _PROBES))


_PROBES = (
    "Published networks start at chance, with the zero-shot heads of a text encoder. Probes on random features do not: what matters is "
    "whether adding vectors gains less than from pre-trained weights."
)


_CHANCE = "random, heads at chance"  # a start


@old_figure(
    "table 6.3 settings",
    networks=IMAGES,
    title="Task addition from random weights, with heads that start at chance",
    show=lambda finding, dark: _drawn_bars(
        finding,
        dark,
        "absolute",
        "Mean accuracy over three tasks with all vectors added, from random weights and heads at chance.",
        (_RANDOM, *WAYS),
    ),
    published=PUBLISHED,
)
def table_63_settings(effort: str, run: Run) -> Finding:
    """Table 6.3 with heads that know nothing of the random network, beside what the same tasks gain from pre-trained weights."""
    return _from_random(effort, run, chance=True)


_ANEW = (
    "Published networks start at chance: the zero-shot heads of a text encoder know nothing of random weights. So heads have random "
    "directions here, of the length of CLIP's heads. From pre-trained weights, heads are the usual probes."
)


@old_figure(
    "section D.2",
    networks=IMAGES,
    title="Normalised features",
    show=lambda finding, dark: _drawn_bars(
        finding, dark, "single", "Mean accuracy over tasks, each with its own vector alone.", _FEATURES
    ),
    published=PUBLISHED,
)
def section_d2(effort: str, run: Run) -> Finding:
    """Single-task accuracy with and without features of unit length, by the same learning rate."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    few = PLANS[effort].tasks[: PLANS[effort].few]
    names = encoders(effort, run, texts=False)
    for name in names:
        results = []
        for normalise in (True, False):
            found = study(name, effort, run, only=few, normalise=normalise)
            statistics |= progress(found, run, start="" if normalise else _PLAIN)
            results.append(added(found, effort, run, methods=TUNINGS))
        for place, tuning in enumerate(TUNINGS):
            values = [each.single[:, place].mean(-1) for each in results]
            draws = [each.draws[:, place, SINGLE] for each in results]
            statistics[f"{snake(name)}_single_task_accuracy_{snake(tuning)}_normalised_minus_plain"] = over(
                100 * (values[0] - values[1]), shared=error_of_samples(100 * (draws[0] - draws[1]))
            ).named(f"{name}: single-task accuracy, {tuning}, normalised minus plain features")
            rows = zip(("normalised", "plain"), values, draws, strict=True)
            statistics |= {
                f"{snake(name)}_{snake(f'{tuning}, {kind}')}_single_percent": over(
                    100 * value, shared=error_of_samples(100 * drawn), within=(0.0, 100.0)
                ).named(f"{name}: {tuning}, {kind} features, single", "%")
                for kind, value, drawn in rows
            }
        arrays[f"{name}: single"] = np.stack([each.single for each in results])
    return Finding(statistics, arrays, {**how(effort, run, names), "tasks": list(few)}, NOTES)
