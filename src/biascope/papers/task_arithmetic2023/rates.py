"""Section 6.4 of the thesis: what task addition gains, by the learning rate of fine-tuning and by the number of tasks; and why."""

# R seeds · W ways to edit

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from biascope.editing.results import before_any_edit, error_of_samples
from biascope.editing.tuning import TUNINGS
from biascope.editing.vectors import TaskVector
from biascope.families.weights import Params
from biascope.measures.disentanglement import Disentanglement, disentanglement
from biascope.measures.task_addition import TaskAddition
from biascope.papers.selection import old_figure
from biascope.papers.task_arithmetic2023.disentanglement import tested
from biascope.papers.task_arithmetic2023.editing import MERGED, START_PLACE, added
from biascope.papers.task_arithmetic2023.tasks import (
    CNN,
    IMAGES,
    NOTES,
    PLANS,
    PUBLISHED,
    SHOTS,
    Study,
    encoders,
    how,
    kept,
    progress,
    searched,
    study,
)
from biascope.results.draw import blank, legend_below, line_colours, panel
from biascope.results.estimate import Estimate, Number, over
from biascope.results.finding import Finding
from biascope.results.wording import snake
from biascope.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGE = "large rate"  # the largest of the rates, in keys and words


def _lines(axes: Axes, finding: Finding, kind: str, dark: bool) -> None:
    curves = finding.arrays_of(kind)
    for colour, (name, curve) in zip(line_colours(len(curves), dark), curves.items(), strict=True):
        reach = np.maximum(0, np.nan_to_num(np.stack([curve[1] - curve[2], curve[3] - curve[1]])))
        axes.errorbar(curve[0], curve[1], reach, color=colour, marker="o", markersize=4, label=name)
    axes.axhline(0, linewidth=0.8, linestyle=":", color="grey")


def _drawn(finding: Finding, dark: bool) -> Figure:
    picture = blank(
        6.2,
        "Above: what adding all task vectors gains over the pre-trained encoder, mean test accuracy. "
        "Below: the coefficient that is chosen, and ξ of two tasks with both coefficients 1.",
    )
    grid = picture.add_gridspec(2, 2, wspace=0.05, hspace=0.05)
    places = itertools.product(range(2), range(2))
    by_rate, by_count, chosen, apart = (panel(picture, dark, grid[place]) for place in places)
    for axes, kind, label in (
        (by_rate, "rate", "gain, points"),
        (chosen, "coefficient", "coefficient"),
        (apart, "xi", "ξ at (1, 1)"),
    ):
        _lines(axes, finding, kind, dark)
        axes.set(xscale="log", xlabel="learning rate", ylabel=label)
    _lines(by_count, finding, "tasks", dark)
    by_count.set(
        xlabel="number of tasks",
        ylabel="gain, points",
        xticks=sorted({int(at) for each in finding.arrays_of("tasks").values() for at in each[0]}),
    )
    legend_below(picture, by_count, dark)
    return picture


@old_figure(
    "section 6.4",
    networks=IMAGES,
    title="Gain of task addition by learning rate and by number of tasks",
    show=_drawn,
    published=PUBLISHED,
)
def section_64(effort: str, run: Run) -> Finding:
    """Merged accuracy for several learning rates on few tasks, and for the first tasks of the list at the usual rate.

    What may explain a gain, or that there is none, is measured beside it: how long task vectors are, how alike they are, how much they
    point along the pre-trained weights, how far two of them interfere, and what is gained with heads that leave less to be learned.
    """
    plan = PLANS[effort]
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    few, names = plan.tasks[: plan.few], encoders(effort, run, texts=False)
    for name in names:
        by_rate = {}
        curves: dict[str, dict[float, Estimate]] = {kind: {} for kind in ("rate", "coefficient", "xi")}
        for rate in sorted({plan.rate, *plan.rates}):
            found = study(name, effort, run, only=few, rate=rate, tunings=("non-linear",))
            if rate in (plan.rate, max(plan.rates)):
                statistics |= progress(found, run, start="" if rate == plan.rate else LARGE)
            result = by_rate[rate] = added(found, effort, run, methods=("non-linear",))
            numbers = _geometry(found) | {
                "gain": _gain(result, 0),
                "coefficient": searched(result.chosen[:, 0], result.alphas),
                "xi of two tasks": _interference(found, (few[0], few[1]), plan.points, run),
            }
            statistics |= {
                f"{snake(name)}_{snake(f'{words} at the rate {rate:g}')}": each.named(
                    f"{name}: {words} at the rate {rate:g}{', points' if words == 'gain' else ''}"
                )
                for words, each in numbers.items()
            }
            for kind, words in (("rate", "gain"), ("coefficient", "coefficient"), ("xi", "xi of two tasks")):
                curves[kind][rate] = numbers[words]
            arrays[f"search: {name}, {rate:g}"] = np.stack([result.alphas, result.curves[:, 0].mean((0, 2))])
        arrays |= {f"{kind}: {name}, non-linear": _curve(each) for kind, each in curves.items()}
        statistics[f"{snake(name)}_absolute_accuracy_small_minus_large_rate"] = _compared(
            by_rate[plan.rate], by_rate[max(plan.rates)]
        ).named(f"{name}: absolute accuracy, rate {plan.rate:g} minus {max(plan.rates):g}")
        probed = study(name, effort, run, only=few, tunings=("non-linear",), shots=None)
        statistics[f"{snake(name)}_gain_with_heads_of_all_samples"] = _gain(
            added(probed, effort, run, methods=("non-linear",)), 0
        ).named(f"{name}: gain with heads fitted on all samples, points")
        whole = study(name, effort, run)
        counted: dict[str, dict[float, Estimate]] = {way: {} for way in TUNINGS}
        for count in plan.counts:
            result = added(whole, effort, run, only=plan.tasks[:count], methods=TUNINGS)
            for place, way in enumerate(TUNINGS):
                gain = _gain(result, place).named(f"{name}: gain of {count} tasks, {way}, points")
                statistics[f"{snake(name)}_gain_of_{count}_tasks_{snake(way)}"] = gain
                counted[way][count] = gain
        arrays |= {f"tasks: {name}, {way}": _curve(each) for way, each in counted.items()}
    rates = {"tasks": list(plan.tasks), "rates": sorted({plan.rate, *plan.rates}), "tasks of the rates": list(few)}
    return Finding(statistics, arrays, {**how(effort, run, names), **rates}, NOTES)


_BALANCED = (CNN,)  # encoders whose rates are compared at equal product; the ViT is compared by heads alone
_HEADS = {"four samples a class": SHOTS, "all samples": None}


def _drawn_settings(finding: Finding, dark: bool) -> Figure:
    picture = blank(
        3.2,
        "Over the learning rate: what adding all task vectors gains, with rate times iterations the same for all. Over the "
        "coefficient: mean accuracy on validation samples, by heads.",
    )
    rates = bool(finding.arrays_of("rate"))
    grid = picture.add_gridspec(1, 1 + rates, wspace=0.05)
    if rates:
        by_rate = panel(picture, dark, grid[0, 0])
        _lines(by_rate, finding, "rate", dark)
        by_rate.set(xscale="log", xlabel="learning rate", ylabel="gain, points")
    search = panel(picture, dark, grid[0, -1])
    curves = finding.arrays_of("search")
    for colour, (name, curve) in zip(line_colours(len(curves), dark), curves.items(), strict=True):
        search.plot(curve[0], 100 * curve[1], color=colour, label=name)
    search.set(xlabel="coefficient", ylabel="accuracy, %")
    legend_below(picture, search, dark)
    return picture


@old_figure(
    "section 6.4 settings",
    networks=IMAGES,
    title="Gain of task addition at equal rate times iterations, and by heads",
    show=_drawn_settings,
    published=PUBLISHED,
)
def section_64_settings(effort: str, run: Run) -> Finding:
    """What settings of ours may decide: how long each rate trains, and how much heads leave to be learned.

    In section 6.4 all rates have the same number of iterations, so that small ones train less. Here rate times iterations is the same.
    Heads from all samples are compared with heads from four samples of each class at one rate.
    """
    plan = PLANS[effort]
    few, names = plan.tasks[: plan.few], encoders(effort, run, texts=False)
    lengths = {rate: round(plan.rate * plan.steps / rate) for rate in sorted({plan.rate, *plan.balanced})}
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for name in names:
        if name in _BALANCED:
            numbers, curve = _of_rates(name, lengths, effort, run)
            statistics |= numbers
            arrays[f"rate: {name}"] = curve
        for words, shots in _HEADS.items():
            probed = study(name, effort, run, only=few, tunings=("non-linear",), shots=shots)
            result = added(probed, effort, run, methods=("non-linear",))
            statistics |= _gain_and_coefficient(name, f"with heads from {words}", result)
            start = before_any_edit(result.pretrained.mean(-1), result.draws[:, 0, START_PLACE]).in_percent()
            statistics[f"{snake(name)}_start_with_heads_from_{snake(words)}_percent"] = start.named(
                f"{name}: accuracy before any edit, heads from {words}", "%"
            )
            arrays[f"search: {name}, {words}"] = np.stack([result.alphas, result.curves[:, 0].mean((0, 2))])
    changed: dict[str, object] = {"tasks": list(few)}
    if set(names) & set(_BALANCED):
        changed["iterations by rate"] = {f"{rate:g}": steps for rate, steps in lengths.items()}
    return Finding(statistics, arrays, {**how(effort, run, names), **changed}, NOTES)


def _of_rates(name: str, lengths: Mapping[float, int], effort: str, run: Run) -> tuple[dict[str, Number], np.ndarray]:
    """Gains by rate, each with its number of iterations, and their curve."""
    plan = PLANS[effort]
    statistics: dict[str, Number] = {}
    least, most = min(lengths), max(lengths)
    by_rate = {}
    for rate, steps in lengths.items():
        few = plan.tasks[: plan.few]
        found = study(name, effort, run, only=few, rate=rate, steps=steps, tunings=("non-linear",))
        if rate in (least, most):
            statistics |= progress(found, run, start="smallest rate" if rate == least else "largest rate")
        by_rate[rate] = added(found, effort, run, methods=("non-linear",))
        statistics |= _gain_and_coefficient(name, f"at the rate {rate:g} with {steps} iterations", by_rate[rate])
    statistics[f"{snake(name)}_absolute_accuracy_small_minus_large_rate_at_equal_product"] = _compared(
        by_rate[least], by_rate[most]
    ).named(f"{name}: absolute accuracy, rate {least:g} minus {most:g}, at equal rate times iterations")
    return statistics, _curve({rate: _gain(each, 0) for rate, each in by_rate.items()})


def _gain_and_coefficient(name: str, words: str, result: TaskAddition) -> dict[str, Number]:
    unedited = "" if (result.chosen[:, 0] > 0).any() else "; no edit was chosen"
    return {
        f"{snake(name)}_{snake(f'gain {words}')}": _gain(result, 0).named(f"{name}: gain {words}, points{unedited}"),
        f"{snake(name)}_{snake(f'coefficient {words}')}": searched(result.chosen[:, 0], result.alphas).named(
            f"{name}: coefficient {words}"
        ),
    }


def _gain(result: TaskAddition, place: int) -> Estimate:
    """What the sum of task vectors gains. Where every search keeps the start, it is 0 by construction, without an interval."""
    if not (result.chosen[:, place] > 0).any():
        return Estimate(0.0)
    return over(
        100 * (result.absolute[:, place] - result.pretrained.mean(-1)),
        shared=error_of_samples(100 * (result.draws[:, place, MERGED] - result.draws[:, place, START_PLACE])),
    )


def _compared(small: TaskAddition, large: TaskAddition) -> Estimate:
    """Merged accuracy at a small minus that at a large rate; nothing where neither merged anything."""
    if not (small.chosen > 0).any() and not (large.chosen > 0).any():
        return Estimate(np.nan)
    return over(
        100 * (small.absolute[:, 0] - large.absolute[:, 0]),
        shared=error_of_samples(100 * (small.draws[:, 0, MERGED] - large.draws[:, 0, MERGED])),
    )


def _geometry(found: Study) -> dict[str, Estimate]:
    """Length of the task vectors in units of θ₀, cosines of pairs of them and with θ₀: means over tasks, by seed."""
    rows = []
    for vectors in found.vectors:
        of = list(vectors["non-linear"].values())
        pairs = [one.cosine(other) for one, other in itertools.combinations(of, 2)]
        along = [_along(each, found.encoder.params) for each in of]
        rows.append(
            (np.mean([length for length, _ in along]), np.mean(pairs), np.mean([cosine for _, cosine in along]))
        )
    words = ("length of task vectors in units of the weights", "cosine of two task vectors", "cosine with the weights")
    return dict(zip(words, map(over, np.array(rows).T), strict=True))


def _along(vector: TaskVector, start: Params) -> tuple[float, float]:
    """Length of a task vector in units of the weights that it changes, and its cosine with them."""
    wide = [(delta.double(), start[name].cpu().double()) for name, delta in vector.deltas.items()]
    length = sum(float(weights.square().sum()) for _, weights in wide) ** 0.5
    product = sum(float(torch.sum(delta * weights)) for delta, weights in wide)
    return vector.norm / length, product / max(vector.norm * length, 1e-300)


def _interference(found: Study, pair: tuple[str, str], points: int, run: Run) -> Estimate:
    """ξ of two tasks with both coefficients 1, over seeds and samples.

    ξ is the sum of a share of changed predictions for each task. Its variance over samples is greatest where both shares are ξ / 2.
    """
    tasks = {task: tested(found.tasks[task]) for task in pair}
    maps = [
        kept(
            Disentanglement, disentanglement, found.encoder, {task: found.heads[task] for task in pair},
            {"non-linear": {task: vectors["non-linear"][task] for task in pair}}, tasks, at=tasks[pair[0]],
            pair=pair, methods=("non-linear",), points=points, grid=3, reach=1.0, resamples=2, seed=0, run=run.shared,
        )
        for vectors in found.vectors
    ]  # fmt: skip
    xi = np.array([each.xi[0, -1, -1] for each in maps])
    return over(xi, shared=float(np.sqrt(2 * (xi / 2) * (1 - xi / 2) / points).mean()))


def _curve(numbers: Mapping[float, Estimate]) -> np.ndarray:
    """Places, values, and both ends of the intervals."""
    return np.array([(at, each.value, each.low, each.high) for at, each in numbers.items()]).T
