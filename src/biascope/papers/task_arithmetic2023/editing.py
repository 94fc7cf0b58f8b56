"""Tables 6.1 to 6.3 and D.1, figures 6.2, 6.3, 6.7, D.1 and section D.2: tasks added to encoders, and taken away."""

# R seeds · W ways to edit · T tasks

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from biascope.editing.accuracies import SPLITS
from biascope.editing.outputs import METHODS
from biascope.editing.pictures import accuracy_bars, coefficient_panels, radar_figure
from biascope.editing.results import PRETRAINED, error_of_samples, repeated
from biascope.editing.tuning import TUNINGS
from biascope.measures.task_addition import TaskAddition, task_addition
from biascope.measures.task_negation import TaskNegation, task_negation
from biascope.papers.task_arithmetic2023.plans import (
    CONTROL,
    FEW,
    FEWEST,
    NEAR_START,
    ONE_DRAW,
    WAYS,
    WITH_TEXTS,
    at_each_effort,
    planned,
)
from biascope.papers.task_arithmetic2023.tasks import (
    LOGIT_SCALE,
    Study,
    encoders,
    kept,
    study,
    tell_progress,
    with_splits,
)
from biascope.papers.units import with_unit
from biascope.results.estimate import Estimate, agree, over, proportion
from biascope.results.finding import Finding, Show, Tell, figure
from biascope.results.plan import Row
from biascope.results.registry import Measurement
from biascope.results.wording import snake
from biascope.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RANDOM = "random start"  # of table 6.3
_RESAMPLES = 200
# Points. "Higher" has the bound 0, but no difference at all is not an advantage, as where every search ends at the coefficient 0. This
# was added after the first run, and can only count against a claim.
AHEAD = 0.1
START, SINGLE, MERGED, SHARE = range(4)  # places of the numbers in the draws of a TaskAddition


def added(
    tuned: Study,
    plan: Row,
    run: Run,
    *,
    only: Sequence[str] | None = None,
    methods: tuple[str, ...] | None = None,
) -> TaskAddition:
    """Task addition with the vectors of every seed: of all tasks and by all ways that vectors allow, unless some are named."""
    tasks = [task for task in tuned.tasks if only is None or task in only]
    return _of_seeds(task_addition, tuned, tasks, tasks, plan, run, at=tasks[0], methods=methods)


def _negated(tuned: Study, plan: Row, run: Run) -> TaskNegation:
    targets = [task for task in tuned.tasks if task != CONTROL][: plan["targets"]]
    return _of_seeds(task_negation, tuned, targets, (*targets, CONTROL), plan, run, at=CONTROL, control=CONTROL)


Edited = TypeVar("Edited", TaskAddition, TaskNegation)


def _of_seeds(
    measure: Measurement[..., Edited],
    tuned: Study,
    edited: Sequence[str],
    judged: Sequence[str],
    plan: Row,
    run: Run,
    *,
    at: str,
    **settings: Any,
) -> Edited:
    """What a measurement finds with the vectors of every seed; it is given what it needs alone, so that work is found again."""
    needed = {METHODS[way][1] for way in settings.get("methods") or METHODS}
    heads = {task: tuned.heads[task] for task in judged}
    tasks = {task: with_splits(tuned.tasks[task], *SPLITS) for task in judged}
    return repeated(
        [
            kept(
                measure, tuned.encoder, heads,
                {tuning: {task: of[task] for task in edited} for tuning, of in vectors.items() if tuning in needed},
                tasks, at=tasks[at], coefficients=plan["coefficients"] - NEAR_START, resamples=_RESAMPLES,
                name=tuned.name, run=run.shared, **settings,
            )
            for vectors in tuned.vectors
        ]
    )  # fmt: skip


def in_points(values: np.ndarray, draws: np.ndarray, **how: Any) -> Estimate:
    """A mean over seeds of accuracies or their differences ``(seed,)``, from the same on resampled test samples, in points."""
    return over(100 * values, shared=error_of_samples(100 * draws), **how)


def _tell_table(tell: Tell, rows: Mapping[str, Mapping[str, Estimate]]) -> None:
    for way, row_of in rows.items():
        for row, share in row_of.items():
            with_unit(tell, f"{way}, {row}", share.in_percent(), "%")


def tell_differences(
    tell: Tell,
    words: str,
    values: np.ndarray,
    draws: np.ndarray,
    edited: np.ndarray | None = None,
    *,
    both: bool = False,
) -> None:
    """Tell the differences between ways to edit, paired by seed and by test sample, in points.

    Values are (seed, way); draws (seed, way, resample) are the same on resampled test samples. Where an edit is asked for (``edited``,
    like values) and every search of both ways ended at the coefficient 0, there is nothing to compare. Shares of single-task accuracy
    need an edit of each way (``both``): the share of an encoder that is not edited is the higher, the poorer its single tasks.
    """
    enough = all if both else any
    for one, other in (("linearised", "non-linear"), ("post-hoc", "non-linear"), ("linearised", "post-hoc")):
        places = WAYS.index(one), WAYS.index(other)
        none = edited is not None and not enough(edited[:, place].any() for place in places)
        tell(f"{words}, {one} minus {other}", Estimate(np.nan) if none else _difference(values, draws, *places))


def _difference(values: np.ndarray, draws: np.ndarray, one: int, other: int) -> Estimate:
    return in_points(values[:, one] - values[:, other], draws[:, one] - draws[:, other])


def gain(result: TaskAddition, place: int, edited: int = MERGED) -> Estimate:
    """Accuracy after an edit in the way at a place minus that of the start, in points."""
    after = {SINGLE: result.single, MERGED: result.merged}[edited][:, place].mean(-1)
    drawn = result.draws[:, place, edited] - result.draws[:, place, START]
    return in_points(after - result.pretrained.mean(-1), drawn)


def _gained(result: TaskAddition, place: int) -> Estimate:
    """What a merge gains; nothing where nothing was merged, so that a failure elsewhere is not compared with another failure."""
    return gain(result, place) if (result.chosen[:, place] > 0).any() else Estimate(np.nan)


def searched(chosen: np.ndarray, alphas: np.ndarray) -> Estimate:
    """The coefficient that searches of all seeds choose. A search tells nothing finer than a step of its grid, even if seeds agree.

    The interval ends where the search does.

    Args:
        chosen: The coefficient of each seed.
        alphas: The coefficients that are searched, in rising order.
    """
    steps = np.diff(alphas)
    beside = np.concatenate([steps[:1], steps, steps[-1:]])  # (before each coefficient, and after the last)
    places = np.abs(alphas[:, None] - chosen).argmin(0)
    step = float(np.maximum(beside[places], beside[places + 1]).max())
    return over(chosen, shared=step / 1.96, within=(float(alphas[0]), float(alphas[-1])))


def _bars(y: str, reading: str, ways: Sequence[str] = (PRETRAINED, *WAYS)) -> Show:
    """Accuracies as bars, a group for each encoder."""

    def show(finding: Finding, dark: bool) -> Figure:
        bars: dict[str, dict[str, Estimate]] = {}
        for name in finding.settings["encoders"]:
            for way in ways:
                if (number := finding.statistics.get(snake(f"{name} {way} {y} percent"))) is not None:
                    bars.setdefault(name, {})[way] = number
        return accuracy_bars(bars, y=f"{y} accuracy, %", reading=reading, dark=dark)

    return show


def _drawn_61(finding: Finding, dark: bool) -> Figure:
    names = [key.removesuffix(": curves") for key in finding.arrays if key.endswith(": curves")]
    curves = {name: 100 * finding.arrays[f"{name}: curves"].mean((0, 3)) for name in names}  # (way, coefficient)
    groups = {name: dict(zip(WAYS, of_ways, strict=True)) for name, of_ways in curves.items()}
    chosen = {
        name: {way: finding.statistics[snake(f"{name} coefficient {way}")].value for way in WAYS} for name in names
    }
    alphas = finding.arrays["coefficients"]
    reading = "Mean accuracy over tasks on validation samples, with α times the sum of all vectors; rings: chosen."
    return coefficient_panels(groups, alphas, chosen, y="accuracy of all tasks, %", reading=reading, dark=dark)


@figure("table 6.1", title="Task addition (with table D.1 for a CNN)", plan=planned(WITH_TEXTS), show=_drawn_61)
def table_61(plan: Row, run: Run, tell: Tell) -> None:
    """Absolute and normalised accuracy of encoders with the vectors of all tasks added."""
    for name in encoders(plan, run, tell):
        tuned, of = study(name, plan, run), tell.about(name)
        result = added(tuned, plan, run)
        merged, draws = result.chosen > 0, result.draws
        _tell_table(of, result.table())
        tell_differences(of, "absolute accuracy", result.absolute, draws[:, :, MERGED], merged)
        tell_differences(of, "normalised accuracy", result.normalised, draws[:, :, SHARE], merged, both=True)
        for place, way in enumerate(WAYS):
            of(f"absolute accuracy, {way} minus pre-trained", gain(result, place))
            of(f"coefficient, {way}", searched(result.chosen[:, place], result.alphas))
        tell_progress(tuned, run, tell)
        for kind in ("pretrained", "single", "merged", "curves"):
            tell.array(f"{name}: {kind}", getattr(result, kind))
        tell.array("coefficients", result.alphas)


def _ahead(merged: np.ndarray, chosen: np.ndarray, one: str, other: str) -> Estimate:
    """Percentage of tasks on which one way merges better than another, mean over seeds; nothing where nothing was merged.

    Its interval is by the number of tasks: seeds may well agree. One seed tells no spread.
    """
    places = [WAYS.index(one), WAYS.index(other)]
    if not (chosen[:, places] > 0).any():
        return Estimate(np.nan)
    ahead = merged[:, places[0]] > merged[:, places[1]]
    share = float(ahead.mean())
    return proportion(share, ahead.shape[1]).in_percent() if len(ahead) > 1 else Estimate(100 * share)


def _accuracy(values: np.ndarray, samples: int, everything: bool = False) -> Estimate:
    """Accuracy on one task in percent, of each seed on the same test samples, whose error is joined with that of seeds."""
    errors = np.array([proportion(value, samples).standard_error for value in values])
    return over(100 * values, shared=float(100 * errors.mean()), within=(0.0, 100.0), everything=everything)


def _drawn_63(finding: Finding, dark: bool) -> Figure:
    name = next(key.partition(": ")[0] for key in finding.arrays)
    rays = {PRETRAINED: 100 * finding.arrays[f"{name}: pretrained"].mean(0)}
    rays |= {way: 100 * finding.arrays[f"{name}: merged"].mean(0)[place] for place, way in enumerate(WAYS)}
    return radar_figure(rays, list(finding.settings["tasks"]), dark=dark)


@figure("6.3", title="Task addition, task by task", plan=planned(), show=_drawn_63)
def figure_63(plan: Row, run: Run, tell: Tell) -> None:
    """Accuracy of each task after addition."""
    for name in encoders(plan, run, tell):
        tuned, of = study(name, plan, run), tell.about(name)
        result = added(tuned, plan, run)
        tell_progress(tuned, run, tell)
        for one, other in (("linearised", "non-linear"), ("non-linear", "post-hoc")):
            ahead = _ahead(result.merged, result.chosen, one, other)
            with_unit(of, f"tasks on which {one} is ahead of {other}", ahead, "%")
        for place, (task, samples) in enumerate(zip(result.tasks, result.samples, strict=True)):
            start = result.pretrained[:, place]
            with_unit(of, f"{task}, pre-trained", _accuracy(start, samples, everything=agree(start)), "%")
            for number, way in enumerate(result.methods):
                with_unit(of, f"{task}, {way}", _accuracy(result.merged[:, number, place], samples), "%")
        tell.array(f"{name}: pretrained", result.pretrained)
        tell.array(f"{name}: merged", result.merged)


@figure(
    "6.2",
    title="Accuracy of single tasks: non-linear, post-hoc and linearised (with figures 6.7 and D.1)",
    plan=planned(WITH_TEXTS),
    show=_bars("single", "Mean accuracy over tasks, each with its own vector alone; intervals over seeds and samples."),
)
def figure_62(plan: Row, run: Run, tell: Tell) -> None:
    """Accuracy of each task with its own vector alone."""
    for name in encoders(plan, run, tell):
        tuned, of = study(name, plan, run), tell.about(name)
        result = added(tuned, plan, run)
        tell_progress(tuned, run, tell)
        _tell_table(of, {way: {"single": row["single"]} for way, row in result.table().items() if way != PRETRAINED})
        values, draws = result.single.mean(-1), result.draws[:, :, SINGLE]
        tell_differences(of, "single-task accuracy", values, draws)
        lost = _difference(values, draws, WAYS.index("non-linear"), WAYS.index("post-hoc"))
        of("single-task accuracy, non-linear minus post-hoc", lost)
        of("share of the non-linear advantage that linearised fine-tuning closes", _closed(result))
        tell.array(f"{name}: single", result.single)


def _closed(result: TaskAddition) -> Estimate:
    """Share of the gap between non-linear and post-hoc single-task accuracy that linearised fine-tuning closes, if there is a gap.

    Linearised fine-tuning is better than post-hoc linearisation by construction, so that only how much better says anything.
    """
    best, worst, between = result.single.mean(-1).T  # (seed,) each
    if (100 * (best - worst) < AHEAD).any():
        return Estimate(np.nan)
    drawn = result.draws[:, :, SINGLE]  # (seed, way, resample)
    gap = np.maximum(drawn[:, 0] - drawn[:, 1], AHEAD / 100)
    return over((between - worst) / (best - worst), shared=error_of_samples((drawn[:, 2] - drawn[:, 1]) / gap))


_KEPT = {"control accuracy kept": 0.95}
_NEGATED = {  # and how many tasks are targets
    "smoke": {"control task": CONTROL, **_KEPT, "targets": 2},
    "laptop": {"control task": CONTROL, **_KEPT, "targets": 3},
    "paper": {"control task": CONTROL, **_KEPT, "targets": 7},
    "published": {"control task": "ImageNet", **_KEPT},
}


@figure(
    "table 6.2",
    title="Task negation",
    plan=planned(_NEGATED),
    show=_bars("target", "Mean accuracy of targets whose vectors were subtracted, the control task being kept."),
)
def table_62(plan: Row, run: Run, tell: Tell) -> None:
    """Target and control accuracy after a task vector is subtracted, CIFAR-10 being the control task."""
    for name in encoders(plan, run, tell):
        tuned, of = study(name, plan, run), tell.about(name)
        result = _negated(tuned, plan, run)
        edited, start = np.asarray((result.chosen > 0).any(-1)), result.pretrained.mean(-1)
        target, draws = result.target.mean(-1), result.draws
        tell_differences(of, "control accuracy", result.control.mean(-1), draws[:, :, 3], edited, both=True)
        _tell_table(of, result.table())
        tell_progress(tuned, run, tell)
        tell_differences(of, "target accuracy", target, draws[:, :, 1], edited)
        fall = in_points(target[:, 0] - start, draws[:, 0, 1] - draws[:, 0, 0])
        of("target accuracy, non-linear minus pre-trained", fall)
        for kind in ("pretrained", "pretrained_control", "target", "control"):
            tell.array(f"{name}: {kind}", getattr(result, kind))
    tell.note(
        "The search ends at the coefficient 1, so that a search may end there before the control task has lost 5 % of its accuracy. "
        "So control accuracies of the methods are not matched, while the published networks keep 95 to 96 % each."
    )


_PROBES = (
    "Published networks start at chance, with the zero-shot heads of a text encoder. Probes on random features do not: what matters is "
    "whether adding vectors gains less than from pre-trained weights."
)
_ANEW = (
    "Published networks start at chance: the zero-shot heads of a text encoder know nothing of random weights. So heads have random "
    "directions here, of the length of CLIP's heads. From pre-trained weights, heads are the usual probes."
)


def _from_random(plan: Row, run: Run, tell: Tell) -> None:
    """Task addition from random weights, with probes as heads or with heads at chance, beside that from pre-trained weights."""
    chance = "heads at random weights" in plan
    kind, words = (
        ("random at chance", "random weights with heads at chance") if chance else ("random", "random weights")
    )
    for name in encoders(plan, run, tell):
        untrained, trained = study(name, plan, run, random=True, chance=chance), study(name, plan, run)
        result, pretrained = added(untrained, plan, run), added(trained, plan, run)
        of = tell.about(name)
        _tell_table(of, {_RANDOM if way == PRETRAINED else way: row for way, row in result.table().items()})
        tell_progress(untrained, run, tell, start="random, heads at chance" if chance else "random")
        tell_progress(trained, run, tell)
        for way in ("non-linear", "linearised"):
            place = WAYS.index(way)
            here, there = gain(result, place), _gained(pretrained, place)
            of(f"single-task accuracy, {way} minus the start", gain(result, place, SINGLE))
            of(f"absolute accuracy, {way} minus the start", here)
            of(
                f"gain by {way} vectors, from pre-trained minus from {words}",
                there.minus(here, plan["seeds"]),
                key=snake(f"{name} gain {way} pre-trained minus {kind}"),
            )
            of(
                f"gain by {way} vectors, from {words} minus half of that from pre-trained weights",
                here.minus(there.map_linear(0.5), plan["seeds"]),
                key=snake(f"{name} gain {way} {kind} minus half of pre-trained"),
            )
        for array in ("pretrained", "single", "merged"):
            tell.array(f"{name}: {array}", getattr(result, array))
    tell.note(ONE_DRAW, _ANEW if chance else _PROBES)


_ADDED = "Mean accuracy over three tasks with all vectors added, from random weights"
_AT_CHANCE = f"random directions of length {LOGIT_SCALE:g}, without biases"
table_63 = figure(
    "table 6.3",
    title="Task addition from random weights",
    plan=planned(FEWEST),
    show=_bars("absolute", f"{_ADDED}.", (_RANDOM, *WAYS)),
)(_from_random)
table_63_settings = figure(
    "table 6.3 settings",
    title="Task addition from random weights, with heads that start at chance",
    plan=planned(FEWEST, at_each_effort({"heads at random weights": _AT_CHANCE})),
    show=_bars("absolute", f"{_ADDED} and heads at chance.", (_RANDOM, *WAYS)),
)(_from_random)


@figure(
    "section D.2",
    title="Normalised features",
    plan=planned(FEW),
    show=_bars(
        "single",
        "Mean accuracy over tasks, each with its own vector alone.",
        [f"{tuning}, {kind}" for tuning in TUNINGS for kind in ("normalised", "plain")],
    ),
)
def section_d2(plan: Row, run: Run, tell: Tell) -> None:
    """Single-task accuracy with and without features of unit length, by the same learning rate."""
    for name in encoders(plan, run, tell):
        of = tell.about(name)
        results: list[TaskAddition] = []
        for start in ("", "plain features"):
            tuned = study(name, plan, run, normalise=not start)
            tell_progress(tuned, run, tell, start=start)
            results.append(added(tuned, plan, run, methods=TUNINGS))
        for place, tuning in enumerate(TUNINGS):
            values = [result.single[:, place].mean(-1) for result in results]
            draws = [result.draws[:, place, SINGLE] for result in results]
            of(
                f"single-task accuracy, {tuning}, normalised minus plain features",
                in_points(values[0] - values[1], draws[0] - draws[1]),
                key=snake(f"{name} single-task accuracy {tuning} normalised minus plain"),
            )
            for kind, value, drawn in zip(("normalised", "plain"), values, draws, strict=True):
                of(
                    f"{tuning}, {kind} features, single",
                    in_points(value, drawn, within=(0.0, 100.0)),
                    "%",
                    key=snake(f"{name} {tuning} {kind} single percent"),
                )
        tell.array(f"{name}: single", np.stack([result.single for result in results]))
