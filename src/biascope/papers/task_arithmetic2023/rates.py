"""Section 6.4 of the thesis: what task addition gains, by the learning rate of fine-tuning and by the number of tasks."""

# R seeds · W ways to edit

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from biascope.editing.tuning import TUNINGS
from biascope.papers.task_arithmetic2023.editing import AHEAD, MERGED, START_PLACE, added
from biascope.papers.task_arithmetic2023.tasks import (
    CNN,
    NOTES,
    PLANS,
    PUBLISHED,
    TEXT,
    VIT,
    fine_tuned,
    how,
    over_seeds,
    progress,
    study,
)
from biascope.results.claim import Claim, Finding, figure
from biascope.results.draw import blank, legend_below, line_colours, panel
from biascope.results.estimate import Estimate, Number
from biascope.results.wording import snake
from biascope.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGE = "large rate"  # the largest of the rates, in keys and words


def _lines(axes: Axes, finding: Finding, kind: str, dark: bool) -> None:
    curves = finding.arrays_of(kind)
    for colour, (name, curve) in zip(line_colours(len(curves), dark), curves.items(), strict=True):
        reach = np.stack([curve[1] - curve[2], curve[3] - curve[1]])
        axes.errorbar(curve[0], curve[1], np.nan_to_num(reach), color=colour, marker="o", markersize=4, label=name)
    axes.axhline(0, linewidth=0.8, linestyle=":", color="grey")


def _drawn(finding: Finding, dark: bool) -> Figure:
    picture = blank(
        3.2, "What adding all task vectors gains over the pre-trained encoder: mean test accuracy, in points."
    )
    grid = picture.add_gridspec(1, 2, wspace=0.25)
    left, right = panel(picture, dark, grid[0, 0]), panel(picture, dark, grid[0, 1])
    _lines(left, finding, "rate", dark)
    left.set(xscale="log", xlabel="learning rate", ylabel="gain, points")
    _lines(right, finding, "tasks", dark)
    right.set(
        xlabel="number of tasks",
        xticks=sorted({int(at) for each in finding.arrays_of("tasks").values() for at in each[0]}),
    )
    legend_below(picture, right, dark)
    return picture


@figure(
    "section 6.4",
    title="Gain of task addition by learning rate and by number of tasks",
    claims=[
        Claim(
            f"{name}: small learning rates help: accuracy after adding non-linear vectors, minus that at the largest rate, points.",
            f"{snake(name)}_absolute_accuracy_small_minus_large_rate",
            "at least",
            "more effective when fine-tuning with small learning rates",
            AHEAD,
            of="small_rates_help_task_arithmetic",
            kind="paper",
            trained=(*fine_tuned(name, "non-linear"), *fine_tuned(name, "non-linear", start=LARGE)),
        )
        for name in (VIT, CNN)
    ],
    draw=_drawn,
    published=PUBLISHED,
)
def section_64(effort: str, run: Run) -> Finding:
    """Merged accuracy for several learning rates on few tasks, and for the first tasks of the list at the usual rate."""
    plan = PLANS[effort]
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    few = plan.tasks[: plan.few]
    for name in (each for each in plan.encoders if each != TEXT):
        by_rate = {}
        for rate in sorted({plan.rate, *plan.rates}):
            found = study(name, effort, run, only=few, rate=rate, tunings=("non-linear",))
            if rate in (plan.rate, max(plan.rates)):
                statistics |= progress(found, run, start="" if rate == plan.rate else LARGE)
            by_rate[rate] = added(found, effort, run, methods=("non-linear",))
        small, large = (by_rate[rate] for rate in (plan.rate, max(plan.rates)))
        statistics[f"{snake(name)}_absolute_accuracy_small_minus_large_rate"] = over_seeds(
            100 * (small.absolute[:, 0] - large.absolute[:, 0]),
            100 * (small.draws[:, 0, MERGED] - large.draws[:, 0, MERGED]),
        ).named(f"{name}: absolute accuracy, rate {plan.rate:g} minus {max(plan.rates):g}")
        gains = {}
        for rate, result in by_rate.items():
            gains[rate] = over_seeds(
                100 * (result.absolute[:, 0] - result.pretrained.mean(-1)),
                100 * (result.draws[:, 0, MERGED] - result.draws[:, 0, START_PLACE]),
            )
            words = f"at the rate {rate:g}"
            statistics[f"{snake(name)}_gain_{snake(words)}"] = gains[rate].named(f"{name}: gain {words}, points")
        arrays[f"rate: {name}, non-linear"] = _curve(gains)
        whole = study(name, effort, run)
        counted: dict[str, dict[float, Estimate]] = {way: {} for way in TUNINGS}
        for count in plan.counts:
            result = added(whole, effort, run, only=plan.tasks[:count], methods=TUNINGS)
            for place, way in enumerate(TUNINGS):
                gain = over_seeds(
                    100 * (result.absolute[:, place] - result.pretrained.mean(-1)),
                    100 * (result.draws[:, place, MERGED] - result.draws[:, place, START_PLACE]),
                ).named(f"{name}: gain of {count} tasks, {way}, points")
                statistics[f"{snake(name)}_gain_of_{count}_tasks_{snake(way)}"] = gain
                counted[way][count] = gain
        arrays |= {f"tasks: {name}, {way}": _curve(each) for way, each in counted.items()}
    rates = {"tasks": list(plan.tasks), "rates": sorted({plan.rate, *plan.rates}), "tasks of the rates": list(few)}
    return Finding(statistics, arrays, {**how(effort), **rates}, NOTES)


def _curve(numbers: Mapping[float, Estimate]) -> np.ndarray:
    """Places, values, and both ends of the intervals."""
    return np.array([(at, each.value, each.low, each.high) for at, each in numbers.items()]).T
