"""Section 6.4 of the thesis: what task addition gains, by the learning rate of fine-tuning and by the number of tasks; and why."""

# R seeds · W ways to edit

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from biascope.editing.results import before_any_edit
from biascope.editing.tuning import TUNINGS
from biascope.editing.vectors import TaskVector
from biascope.families.weights import Params
from biascope.measures.task_addition import TaskAddition
from biascope.papers.task_arithmetic2023 import editing
from biascope.papers.task_arithmetic2023.disentanglement import maps_of
from biascope.papers.task_arithmetic2023.editing import MERGED, START, added, in_points, searched
from biascope.papers.task_arithmetic2023.plans import CNN, FEW, SHOTS, ByEffort, planned
from biascope.papers.task_arithmetic2023.tasks import Study, encoders, study, tell_progress
from biascope.results.draw import blank, legend_below, line_colours, panel
from biascope.results.estimate import Estimate, over
from biascope.results.finding import Finding, Show, Tell, figure
from biascope.results.plan import Row
from biascope.results.wording import snake
from biascope.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PLAIN = ("non-linear",)


_AXES = {  # x and y of the arrays of each kind
    "rate": ("learning rate", "gain, points"),
    "tasks": ("number of tasks", "gain, points"),
    "coefficient": ("learning rate", "coefficient"),
    "xi": ("learning rate", "ξ at (1, 1)"),
    "search": ("coefficient", "accuracy, %"),
}


def _panels(kinds: Sequence[str], legend: str, height: float, reading: str) -> Show:
    """A panel for each kind of arrays that a finding has; the legend is that of one of them."""

    def show(finding: Finding, dark: bool) -> Figure:
        picture, there = blank(height, reading), [kind for kind in kinds if finding.arrays_of(kind)]
        grid = picture.add_gridspec(math.ceil(len(there) / 2), min(2, len(there)), wspace=0.05, hspace=0.05)
        panels = {kind: panel(picture, dark, grid[divmod(place, 2)]) for place, kind in enumerate(there)}
        for kind, axes in panels.items():
            curves = finding.arrays_of(kind)
            for colour, (name, curve) in zip(line_colours(len(curves), dark), curves.items(), strict=True):
                if kind == "search":
                    axes.plot(curve[0], 100 * curve[1], color=colour, label=name)
                    continue
                reach = np.maximum(0, np.nan_to_num(np.stack([curve[1] - curve[2], curve[3] - curve[1]])))
                axes.errorbar(curve[0], curve[1], reach, color=colour, marker="o", markersize=4, label=name)
            if kind != "search":
                axes.axhline(0, linewidth=0.8, linestyle=":", color="grey")
            x, y = _AXES[kind]
            axes.set(xlabel=x, ylabel=y, xscale="log" if x == "learning rate" else "linear")
            if kind == "tasks":
                axes.set(xticks=sorted({int(at) for curve in curves.values() for at in curve[0]}))
        legend_below(picture, panels[legend], dark)
        return picture

    return show


_BY_RATE: ByEffort = {
    "smoke": {
        "rates": (1e-2, 1e-1),
        "tasks of the rates": FEW["smoke"]["tasks"],
        "numbers of tasks": (2, 3),
        "points": 12,
    },
    "laptop": {
        "rates": (3e-5, 1e-4, 1e-3),
        "tasks of the rates": FEW["laptop"]["tasks"],
        "numbers of tasks": (2, 4, 8),
        "points": 150,
    },
    "paper": {
        "rates": (1e-5, 3e-5, 1e-4, 3e-4, 1e-3),
        "tasks of the rates": FEW["paper"]["tasks"],
        "numbers of tasks": (2, 3, 4, 5, 6, 7, 8),
        "points": 256,
    },
}


@figure(
    "section 6.4",
    title="Gain of task addition by learning rate and by number of tasks",
    plan=planned(_BY_RATE),
    show=_panels(
        ("rate", "tasks", "coefficient", "xi"),
        "tasks",
        6.2,
        "Above: what adding all task vectors gains over the pre-trained encoder, mean test accuracy. "
        "Below: the coefficient that is chosen, and ξ of two tasks with both coefficients 1.",
    ),
)
def section_64(plan: Row, run: Run, tell: Tell) -> None:
    """Merged accuracy for several learning rates on few tasks, and for the first tasks of the list at the usual rate.

    What may explain a gain, or that there is none, is measured beside it: how long task vectors are, how alike they are, how much they
    point along the pre-trained weights, how far two of them interfere, and what is gained with heads that leave less to be learned.
    """
    usual, largest, few = plan["learning rate"], max(plan["rates"]), plan["tasks of the rates"]
    for name in encoders(plan, run, tell):
        of = tell.about(name)
        by_rate: dict[float, TaskAddition] = {}
        curves: dict[str, dict[float, Estimate]] = {"gain": {}, "coefficient": {}, "xi of two tasks": {}}
        for rate in plan["rates"]:
            tuned = study(name, plan, run, only=few, rate=rate, tunings=_PLAIN)
            if rate in (usual, largest):
                tell_progress(tuned, run, tell, start="" if rate == usual else "large rate")
            result = by_rate[rate] = added(tuned, plan, run, methods=_PLAIN)
            numbers = _geometry(tuned) | {
                "gain": _gain(result, 0),
                "coefficient": searched(result.chosen[:, 0], result.alphas),
                "xi of two tasks": _interference(tuned, few[:2], plan["points"], run),
            }
            for words, number in numbers.items():
                label = f"{words} at the rate {rate:g}"
                of(label + ", points" * (words == "gain"), number, key=snake(f"{name} {label}"))
            for words, curve in curves.items():
                curve[rate] = numbers[words]
            tell.array(f"{name}, {rate:g}", np.stack([result.alphas, result.curves[:, 0].mean((0, 2))]), kind="search")
        for kind, curve in zip(("rate", "coefficient", "xi"), curves.values(), strict=True):
            tell.array(f"{name}, non-linear", _curve(curve), kind=kind)
        of(
            f"absolute accuracy, rate {usual:g} minus {largest:g}",
            _compared(by_rate[usual], by_rate[largest]),
            key=snake(f"{name} absolute accuracy small minus large rate"),
        )
        probed = study(name, plan, run, only=few, tunings=_PLAIN, shots=None)
        of(
            "gain with heads fitted on all samples, points",
            _gain(added(probed, plan, run, methods=_PLAIN), 0),
            key=snake(f"{name} gain with heads of all samples"),
        )
        whole = study(name, plan, run)
        sums = {
            count: added(whole, plan, run, only=plan["tasks"][:count], methods=TUNINGS)
            for count in plan["numbers of tasks"]
        }
        for place, way in enumerate(TUNINGS):
            gains = {count: _gain(result, place) for count, result in sums.items()}
            for count, number in gains.items():
                words = f"gain of {count} tasks, {way}"
                of(f"{words}, points", number, key=snake(f"{name} {words}"))
            tell.array(f"{name}, {way}", _curve(gains), kind="tasks")


# The ViT is compared by heads alone.
_AT_EQUAL_PRODUCT: ByEffort = {
    "smoke": {"rates": {CNN: (5e-3, 1e-2)}},
    "laptop": {"rates": {CNN: (3e-5, 1e-4, 1e-3)}},
    "paper": {"rates": {CNN: (3e-5, 1e-4, 1e-3)}},
}


@figure(
    "section 6.4 settings",
    title="Gain of task addition at equal rate times iterations, and by heads",
    plan=planned(FEW, _AT_EQUAL_PRODUCT),
    show=_panels(
        ("rate", "search"),
        "search",
        3.2,
        "Over the learning rate: what adding all task vectors gains, with rate times iterations the same for all. Over the "
        "coefficient: mean accuracy on validation samples, by heads.",
    ),
)
def section_64_settings(plan: Row, run: Run, tell: Tell) -> None:
    """What settings of ours may decide: how long each rate trains, and how much heads leave to be learned.

    In section 6.4 all rates have the same number of iterations, so that small ones train less. Here rate times iterations is the same.
    Heads from all samples are compared with heads from four samples of each class at one rate.
    """
    for name in encoders(plan, run, tell):
        of = tell.about(name)
        if name in plan["rates"]:
            _tell_rates(name, plan, run, tell)
        for words, shots in (("four samples a class", SHOTS), ("all samples", None)):
            probed = study(name, plan, run, tunings=_PLAIN, shots=shots)
            result = added(probed, plan, run, methods=_PLAIN)
            tell_gain_and_coefficient(of, f"with heads from {words}", result)
            start = before_any_edit(result.pretrained.mean(-1), result.draws[:, 0, START]).in_percent()
            key = snake(f"{name} start with heads from {words} percent")
            of(f"accuracy before any edit, heads from {words}", start, "%", key=key)
            curve = np.stack([result.alphas, result.curves[:, 0].mean((0, 2))])
            tell.array(f"{name}, {words}", curve, kind="search")


def _tell_rates(name: str, plan: Row, run: Run, tell: Tell) -> None:
    """Gains by rate, each with its number of iterations."""
    of, product = tell.about(name), plan["learning rate"] * plan["steps"]
    lengths = {rate: round(product / rate) for rate in plan["rates"][name]}
    least, most = min(lengths), max(lengths)
    by_rate = {}
    for rate, steps in lengths.items():
        tuned = study(name, plan, run, rate=rate, steps=steps, tunings=_PLAIN)
        if rate in (least, most):
            tell_progress(tuned, run, tell, start="smallest rate" if rate == least else "largest rate")
        by_rate[rate] = added(tuned, plan, run, methods=_PLAIN)
        tell_gain_and_coefficient(of, f"at the rate {rate:g} with {steps} iterations", by_rate[rate])
    of(
        f"absolute accuracy, rate {least:g} minus {most:g}, at equal rate times iterations",
        _compared(by_rate[least], by_rate[most]),
        key=snake(f"{name} absolute accuracy small minus large rate at equal product"),
    )
    tell.array(name, _curve({rate: _gain(result, 0) for rate, result in by_rate.items()}), kind="rate")
    tell.settings["iterations by rate"] = {f"{rate:g}": steps for rate, steps in lengths.items()}


def tell_gain_and_coefficient(tell: Tell, words: str, result: TaskAddition) -> None:
    """Tell what a search gains and which coefficient it chooses, and whether it edits at all."""
    unedited = "" if (result.chosen[:, 0] > 0).any() else "; no edit was chosen"
    tell(f"gain {words}, points{unedited}", _gain(result, 0), key=snake(f"{tell.subject} gain {words}"))
    tell(f"coefficient {words}", searched(result.chosen[:, 0], result.alphas))


def _gain(result: TaskAddition, place: int) -> Estimate:
    """What the sum of task vectors gains. Where every search keeps the start, it is 0 by construction, without an interval."""
    return editing.gain(result, place) if (result.chosen[:, place] > 0).any() else Estimate(0.0)


def _compared(small: TaskAddition, large: TaskAddition) -> Estimate:
    """Merged accuracy at a small minus that at a large rate; nothing where neither merged anything."""
    if not (small.chosen > 0).any() and not (large.chosen > 0).any():
        return Estimate(np.nan)
    return in_points(small.absolute[:, 0] - large.absolute[:, 0], small.draws[:, 0, MERGED] - large.draws[:, 0, MERGED])


def _geometry(tuned: Study) -> dict[str, Estimate]:
    """Length of the task vectors in units of θ₀, cosines of pairs of them and with θ₀: means over tasks, by seed."""
    rows = []
    for vectors in tuned.vectors:
        of = list(vectors["non-linear"].values())
        pairs = [one.cosine(other) for one, other in itertools.combinations(of, 2)]
        lengths, cosines = zip(*(_along(vector, tuned.encoder.params) for vector in of), strict=True)
        rows.append((np.mean(lengths), np.mean(pairs), np.mean(cosines)))
    words = ("length of task vectors in units of the weights", "cosine of two task vectors", "cosine with the weights")
    return dict(zip(words, map(over, np.array(rows).T), strict=True))


def _along(vector: TaskVector, start: Params) -> tuple[float, float]:
    """Length of a task vector in units of the weights that it changes, and its cosine with them."""
    wide = [(delta.double(), start[name].cpu().double()) for name, delta in vector.deltas.items()]
    length = sum(float(weights.square().sum()) for _, weights in wide) ** 0.5
    product = sum(float(torch.sum(delta * weights)) for delta, weights in wide)
    return vector.norm / length, product / max(vector.norm * length, 1e-300)


def _interference(tuned: Study, pair: tuple[str, str], points: int, run: Run) -> Estimate:
    """ξ of two tasks with both coefficients 1, over seeds and samples.

    ξ is the sum of a share of changed predictions for each task. Its variance over samples is greatest where both shares are ξ / 2.
    """
    maps = maps_of(tuned, pair, run, methods=_PLAIN, points=points, grid=3, reach=1.0, resamples=2)
    xi = np.array([result.xi[0, -1, -1] for result in maps])
    return over(xi, shared=float(np.sqrt(2 * (xi / 2) * (1 - xi / 2) / points).mean()))


def _curve(numbers: Mapping[float, Estimate]) -> np.ndarray:
    """Places, values, and both ends of the intervals."""
    return np.array([(at, number.value, number.low, number.high) for at, number in numbers.items()]).T
