"""Tables 6.1 to 6.3 and D.1, figures 6.2, 6.3, 6.7, D.1 and D.3 of the thesis: tasks added to encoders, and taken away."""

# R seeds · W ways to edit · T tasks

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from biascope.editing.pictures import accuracy_bars, coefficient_panels, radar_figure
from biascope.editing.results import repeated
from biascope.measures.task_addition import TaskAddition, task_addition
from biascope.measures.task_negation import TaskNegation, task_negation
from biascope.papers.task_arithmetic2023.tasks import (
    CNN,
    CONTROL,
    NOTES,
    PLANS,
    TEXT,
    VIT,
    WAYS,
    Study,
    how,
    over_seeds,
    study,
)
from biascope.results.claim import Claim, Finding, figure
from biascope.results.estimate import Estimate, Number
from biascope.results.wording import snake
from biascope.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

START = "pre-trained"
_RESAMPLES = 200
_AHEAD = 0.1  # points: no difference at all is not an advantage, as where every search ends at the coefficient 0


def added(found: Study, run: Run) -> TaskAddition:
    """Task addition with the vectors of every seed."""
    return repeated(
        [
            task_addition(
                found.encoder, found.heads, vectors, found.tasks, resamples=_RESAMPLES, name=found.name, run=run.shared
            )
            for vectors in found.vectors
        ]
    )


def _negated(found: Study, run: Run) -> TaskNegation:
    return repeated(
        [
            task_negation(
                found.encoder, found.heads, vectors, found.tasks, control=CONTROL, resamples=_RESAMPLES, name=found.name,
                run=run.shared,
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
    name: str, values: np.ndarray, stem: str, words: str, merged: np.ndarray | None = None
) -> dict[str, Number]:
    """Differences between ways to edit, paired by seed, in points; values are (seed, way).

    Where a merge is asked for (``merged``, likewise) and every search of both ways ended at the coefficient 0, there is nothing to
    compare: the normalised accuracy of an encoder that is not edited is the higher, the poorer its single tasks.
    """
    pairs = (("linearised", "non-linear"), ("post-hoc", "non-linear"), ("linearised", "post-hoc"))
    found = {}
    for pair in pairs:
        one, other = (WAYS.index(way) for way in pair)
        none = merged is not None and not merged[:, [one, other]].any()
        points = 100 * (values[:, one] - values[:, other])
        difference = Estimate(np.nan) if none else over_seeds(points)
        found[f"{snake(name)}_{stem}_{snake(pair[0])}_minus_{snake(pair[1])}"] = difference.named(
            f"{name}: {words}, {pair[0]} minus {pair[1]}"
        )
    return found


def _claims_61(name: str) -> list[Claim]:
    vit, said = "for CLIP ViT-B/32", "71.4, 57.1 and 76.5 % for CLIP ViT-B/32"
    absolute, normalised = f"{snake(name)}_absolute_accuracy", f"{snake(name)}_normalised_accuracy"
    return [
        Claim(
            f"{name}: adding {way} vectors helps: merged accuracy minus that of the pre-trained encoder, points.",
            f"{absolute}_{snake(way)}_minus_pre_trained",
            "at least",
            f"48.4 to {merged} % {vit}",
            _AHEAD,
            "paper",
        )
        for way, merged in (("non-linear", "71.4"), ("linearised", "76.5"))
    ] + [
        Claim(
            f"{name}: linearised fine-tuning merges best: absolute accuracy minus that of non-linear fine-tuning, points.",
            f"{absolute}_linearised_minus_non_linear",
            "at least",
            said if name != CNN else "79.1 and 81.1 % for CLIP ConvNeXt",
            _AHEAD,
            "paper",
        ),
        Claim(
            f"{name}: so it does by normalised accuracy, points.",
            f"{normalised}_linearised_minus_non_linear",
            "at least",
            f"76.5 and 85.4 % {vit}" if name != CNN else "83.6 and 85.7 % for CLIP ConvNeXt",
            _AHEAD,
            "paper",
        ),
        Claim(
            f"{name}: post-hoc linearisation keeps a larger share of single-task accuracy than the non-linear network, points.",
            f"{normalised}_post_hoc_minus_non_linear",
            "at least",
            f"76.5 and 81.9 % {vit}",
            _AHEAD,
            "paper",
        ),
        Claim(
            f"{name}: and is worse in absolute terms, points.",
            f"{absolute}_post_hoc_minus_non_linear",
            "at most",
            f"71.4 and 57.1 % {vit}",
            -_AHEAD,
            "paper",
        ),
    ]


def _compared(
    name: str, pretrained: np.ndarray, single: np.ndarray, merged: np.ndarray, chosen: np.ndarray
) -> dict[str, Number]:
    """Merged encoders against one another and against the start; by seed, way and task."""
    absolute, normalised = merged.mean(-1), (merged / np.maximum(single, 1e-12)).mean(-1)
    found = _differences(name, absolute, "absolute_accuracy", "absolute accuracy", chosen > 0)
    found |= _differences(name, normalised, "normalised_accuracy", "normalised accuracy", chosen > 0)
    for way in ("non-linear", "linearised"):
        gain = 100 * (absolute[:, WAYS.index(way)] - pretrained.mean(-1))
        found[f"{snake(name)}_absolute_accuracy_{snake(way)}_minus_pre_trained"] = over_seeds(gain).named(
            f"{name}: absolute accuracy, {way} minus pre-trained"
        )
    return found


def _drawn_bars(finding: Finding, dark: bool, y: str, reading: str) -> Figure:
    bars: dict[str, dict[str, Estimate]] = {}
    for name, way in itertools.product(finding.settings["encoders"], (START, *WAYS)):
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
    alphas = np.linspace(0, 1, next(iter(curves.values())).shape[1])
    reading = "Mean accuracy over tasks on validation samples, with α times the sum of all vectors; rings: chosen."
    return coefficient_panels(groups, alphas, chosen, y="accuracy of all tasks, %", reading=reading, dark=dark)


@figure(
    "table 6.1",
    title="Task addition (with table D.1 for a CNN)",
    claims=[claim for name in (VIT, CNN, TEXT) for claim in _claims_61(name)],
    draw=_drawn_61,
)
def table_61(effort: str, run: Run) -> Finding:
    """Absolute and normalised accuracy of encoders with the vectors of all tasks added."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for name in PLANS[effort].encoders:
        result = added(study(name, effort, run), run)
        statistics |= _table(name, result.table())
        statistics |= _compared(name, result.pretrained, result.single, result.merged, result.chosen)
        statistics |= {
            f"{snake(name)}_coefficient_{snake(way)}": over_seeds(result.chosen[:, place]).named(
                f"{name}: coefficient, {way}"
            )
            for place, way in enumerate(result.methods)
        }
        for kind in ("pretrained", "single", "merged", "curves"):
            arrays[f"{name}: {kind}"] = getattr(result, kind)
    return Finding(statistics, arrays, how(effort), NOTES)


def _ahead(merged: np.ndarray, chosen: np.ndarray) -> Estimate:
    """Percentage of tasks on which linearised vectors merge better; nothing where nothing was merged."""
    one, other = WAYS.index("linearised"), WAYS.index("non-linear")
    if not (chosen[:, [one, other]] > 0).any():
        return Estimate(np.nan)
    return over_seeds(100 * (merged[:, one] > merged[:, other]).mean(-1))


def _drawn_63(finding: Finding, dark: bool) -> Figure:
    name = next(key.partition(": ")[0] for key in finding.arrays)
    rays = {START: 100 * finding.arrays[f"{name}: pretrained"].mean(0)}
    rays |= {way: 100 * finding.arrays[f"{name}: merged"].mean(0)[place] for place, way in enumerate(WAYS)}
    return radar_figure(rays, list(finding.settings["tasks"]), dark=dark)


@figure(
    "6.3",
    title="Task addition, task by task",
    claims=[
        Claim(
            f"{name}: linearised fine-tuning merges better on most tasks: share of those on which it is ahead, %.",
            f"{snake(name)}_tasks_on_which_linearised_is_ahead_of_non_linear_percent",
            "at least",
            "the linearised polygon lies outside on seven of eight tasks",
            50.0,
            "paper",
        )
        for name in (VIT, CNN)
    ],
    draw=_drawn_63,
)
def figure_63(effort: str, run: Run) -> Finding:
    """Accuracy of each task after addition."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for name in (each for each in PLANS[effort].encoders if each != TEXT):
        result = added(study(name, effort, run), run)
        statistics[f"{snake(name)}_tasks_on_which_linearised_is_ahead_of_non_linear_percent"] = _ahead(
            result.merged, result.chosen
        ).named(f"{name}: tasks on which linearised is ahead of non-linear", "%")
        for place, task in enumerate(result.tasks):
            statistics[f"{snake(name)}_{snake(task)}_pre_trained_percent"] = over_seeds(
                100 * result.pretrained[:, place]
            ).named(f"{name}: {task}, pre-trained", "%")
            statistics |= {
                f"{snake(name)}_{snake(task)}_{snake(way)}_percent": over_seeds(
                    100 * result.merged[:, number, place]
                ).named(f"{name}: {task}, {way}", "%")
                for number, way in enumerate(result.methods)
            }
        arrays |= {f"{name}: pretrained": result.pretrained, f"{name}: merged": result.merged}
    return Finding(statistics, arrays, how(effort), NOTES)


@figure(
    "6.2",
    title="Accuracy of single tasks: non-linear, post-hoc and linearised (with figures 6.7 and D.1)",
    claims=[
        claim
        for name in (VIT, CNN, TEXT)
        for claim in (
            Claim(
                f"{name}: there is a non-linear advantage: single-task accuracy, non-linear minus post-hoc, points.",
                f"{snake(name)}_single_task_accuracy_non_linear_minus_post_hoc",
                "at least",
                "significantly lower",
                _AHEAD,
                "paper",
            ),
            Claim(
                f"{name}: linearised fine-tuning reduces the gap: single-task accuracy, linearised minus post-hoc, points.",
                f"{snake(name)}_single_task_accuracy_linearised_minus_post_hoc",
                "at least",
                "significantly reduces the single-task performance gap",
                _AHEAD,
                "paper",
            ),
        )
    ],
    draw=lambda finding, dark: _drawn_bars(
        finding, dark, "single", "Mean accuracy over tasks, each with its own vector alone; intervals over seeds."
    ),
)
def figure_62(effort: str, run: Run) -> Finding:
    """Accuracy of each task with its own vector alone."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for name in PLANS[effort].encoders:
        result = added(study(name, effort, run), run)
        single = result.single.mean(-1)
        statistics |= _table(
            name, {way: {"single": each["single"]} for way, each in result.table().items() if way != START}
        )
        statistics |= _differences(name, single, "single_task_accuracy", "single-task accuracy")
        statistics[f"{snake(name)}_single_task_accuracy_non_linear_minus_post_hoc"] = over_seeds(
            100 * (single[:, 0] - single[:, 1])
        ).named(f"{name}: single-task accuracy, non-linear minus post-hoc")
        arrays[f"{name}: single"] = result.single
    return Finding(statistics, arrays, how(effort), NOTES)


@figure(
    "table 6.2",
    title="Task negation",
    claims=[
        claim
        for name in (VIT, CNN)
        for claim in (
            Claim(
                f"{name}: linearised vectors forget more: target accuracy minus that of non-linear ones, points.",
                f"{snake(name)}_target_accuracy_linearised_minus_non_linear",
                "at most",
                "24.0 and 10.9 % for CLIP ViT-B/32",
                -_AHEAD,
                "paper",
            ),
            Claim(
                f"{name}: so do non-linear vectors in the linearised network: target accuracy minus the non-linear one, points.",
                f"{snake(name)}_target_accuracy_post_hoc_minus_non_linear",
                "at most",
                "24.0 and 14.8 % for CLIP ViT-B/32",
                -_AHEAD,
                "paper",
            ),
            Claim(
                f"{name}: subtracting non-linear vectors forgets: target accuracy minus that of the pre-trained encoder, points.",
                f"{snake(name)}_target_accuracy_non_linear_minus_pre_trained",
                "at most",
                "48.4 to 24.0 % for CLIP ViT-B/32",
                -_AHEAD,
                "paper",
            ),
        )
    ],
    draw=lambda finding, dark: _drawn_bars(
        finding, dark, "target", "Mean accuracy of targets whose vectors were subtracted, the control task being kept."
    ),
)
def table_62(effort: str, run: Run) -> Finding:
    """Target and control accuracy after a task vector is subtracted, CIFAR-10 being the control task."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for name in (each for each in PLANS[effort].encoders if each != TEXT):
        result = _negated(study(name, effort, run), run)
        statistics |= _table(name, result.table())
        target = result.target.mean(-1)
        statistics |= _differences(name, target, "target_accuracy", "target accuracy")
        fall = 100 * (target[:, 0] - result.pretrained.mean(-1))
        statistics[f"{snake(name)}_target_accuracy_non_linear_minus_pre_trained"] = over_seeds(fall).named(
            f"{name}: target accuracy, non-linear minus pre-trained"
        )
        for kind in ("pretrained", "pretrained_control", "target", "control"):
            arrays[f"{name}: {kind}"] = getattr(result, kind)
    settings: dict[str, Any] = how(effort)
    return Finding(statistics, arrays, settings | {"control task": CONTROL, "control accuracy kept": 0.95}, NOTES)


@figure(
    "table 6.3",
    title="Task addition from random weights (with figure D.3)",
    claims=[
        Claim(
            f"{name}: from random weights nothing is gained by adding: merged accuracy minus that of the start, non-linear, points.",
            f"{snake(name)}_absolute_accuracy_non_linear_minus_the_start",
            "at most",
            "5.5 and 5.3 % for ViT-B/32",
            3.0,
            "paper",
        )
        for name in (VIT, CNN)
    ]
    + [
        Claim(
            f"{name}: nor with linearised vectors, points.",
            f"{snake(name)}_absolute_accuracy_linearised_minus_the_start",
            "at most",
            "3.8 and 5.3 % for ViT-B/32",
            3.0,
            "paper",
        )
        for name in (VIT, CNN)
    ]
    + [
        Claim(
            f"{name}: though each task is learned alone: single-task accuracy minus that of the start, {way}, points.",
            f"{snake(name)}_single_task_accuracy_{snake(way)}_minus_the_start",
            "at least",
            "single tasks are learned from random weights (figure D.3)",
            _AHEAD,
            "paper",
        )
        for name in (VIT, CNN)
        for way in ("non-linear", "linearised")
    ],
    draw=lambda finding, dark: _drawn_bars(
        finding, dark, "absolute", "Mean accuracy over three tasks with all vectors added, from random weights."
    ),
)
def table_63(effort: str, run: Run) -> Finding:
    """The same from random weights, on three tasks, one seed."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for name in (each for each in PLANS[effort].encoders if each != TEXT):
        result = added(study(name, effort, run, random=True), run)
        table = result.table()
        statistics |= _table(name, table)
        for way in ("non-linear", "linearised"):
            statistics[f"{snake(name)}_single_task_accuracy_{snake(way)}_minus_the_start"] = (
                table[way]["single"]
                .minus(table[START]["absolute"])
                .in_percent()
                .named(f"{name}: single-task accuracy, {way} minus the start")
            )
            # One seed: the interval is over test samples, resampled alike with and without the edit.
            place = result.methods.index(way)
            gain = result.absolute[0, place] - result.pretrained.mean()
            draws = result.draws[0, place, 2] - result.draws[0, place, 0]
            statistics[f"{snake(name)}_absolute_accuracy_{snake(way)}_minus_the_start"] = (
                Estimate.from_draws(gain, draws).in_percent().named(f"{name}: absolute accuracy, {way} minus the start")
            )
        for kind in ("pretrained", "single", "merged"):
            arrays[f"{name}: {kind}"] = getattr(result, kind)
    settings: dict[str, Any] = how(effort)
    return Finding(statistics, arrays, settings | {"tasks": list(PLANS[effort].random), "seeds": 1}, (*NOTES, _PROBES))


_PROBES = (
    "Published networks start at chance, with the zero-shot heads of a text encoder. Probes on random features do not: what matters is "
    "whether adding vectors gains anything over the start."
)
