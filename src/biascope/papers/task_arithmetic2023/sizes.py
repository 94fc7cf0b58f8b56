"""Figures 6.5 and D.3 of the thesis, and what it says of size elsewhere: one architecture in two sizes, on the same tasks."""

# R seeds · W ways to edit · B resamples

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from biascope.editing.pictures import accuracy_bars, map_figure
from biascope.editing.tasks import TEXT_TASKS
from biascope.editing.tuning import TUNINGS
from biascope.measures.disentanglement import Disentanglement
from biascope.measures.task_addition import TaskAddition
from biascope.papers.task_arithmetic2023.disentanglement import THRESHOLD, grid_share, mapped
from biascope.papers.task_arithmetic2023.editing import MERGED, SHARE, SINGLE, added, in_points
from biascope.papers.task_arithmetic2023.plans import (
    CNN,
    FEW,
    FEWEST,
    MAPS,
    ONE_DRAW,
    PAIR,
    SIZES,
    TEXT_PAIR,
    TEXTS,
    WAYS,
    ByEffort,
    at_each_effort,
    planned,
)
from biascope.papers.task_arithmetic2023.tasks import study, tell_encoders, tell_progress, with_weights
from biascope.results.estimate import Estimate
from biascope.results.finding import Finding, Tell, figure
from biascope.results.plan import Row
from biascope.results.wording import snake
from biascope.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BOTH = at_each_effort({"encoders": SIZES})
_TEXTS_TOO: ByEffort = {
    "paper": {"encoders": (*SIZES, *TEXTS), "text tasks": TEXT_TASKS},
    "published": {"tasks": ("DTD", "SUN397")},
}


def _drawn(finding: Finding, dark: bool) -> Figure:
    names, pair = (SIZES, PAIR) if f"{CNN}: non-linear" in finding.arrays else (TEXTS, TEXT_PAIR)
    maps = {
        f"{name.partition('-')[2]}, {way}": finding.arrays[f"{name}: {way}"]  # short titles: "Lite0, post-hoc"
        for name in names
        for way in ("non-linear", "post-hoc")
    }
    return map_figure(maps, finding.arrays["coefficients"], pair, threshold=THRESHOLD, dark=dark)


@figure(
    "6.5",
    title="Disentanglement error and task addition by size",
    plan=planned(FEW, MAPS, _BOTH, _TEXTS_TOO),
    show=_drawn,
)
def figure_65(plan: Row, run: Run, tell: Tell) -> None:
    """ξ of a pair of tasks, and accuracies after addition, for two sizes; differences are paired by seed and test sample.

    An encoder is run beside the other one of its kind. Texts are left out where their encoders are not asked for, or have no weights
    here.
    """
    kinds = {SIZES: (PAIR, plan["tasks"], TUNINGS), TEXTS: (TEXT_PAIR, TEXT_PAIR, TUNINGS[:1])}
    asked = [names for names in kinds if {*names} & {*plan.networks}]
    if TEXTS in asked and with_weights(TEXTS, plan, run) != TEXTS:
        asked.remove(TEXTS)
    if not asked:
        raise ValueError(f"{' and '.join(TEXTS)} must have their weights, and have none here. See docs/encoders.md.")
    tell_encoders([name for names in asked for name in names], plan, run, tell)
    for names in asked:
        pair, only, tunings = kinds[names]
        studies = [study(name, plan, run, only=only, tunings=tunings) for name in names]
        for tuned in studies:
            tell_progress(tuned, run, tell)
        maps = [mapped(tuned, pair, plan, run) for tuned in studies]
        _tell_maps(tell, names, maps, prefix="" if names == SIZES else "texts")
        if names == SIZES:
            _tell_sums(tell, *(added(tuned, plan, run) for tuned in studies))


def _tell_maps(
    tell: Tell, names: Sequence[str], maps: Sequence[Sequence[Disentanglement]], *, prefix: str = ""
) -> None:
    """Tell maps and low-ξ shares by size, and the differences of shares; the prefix is one of keys."""
    low = [np.stack([(result.xi < THRESHOLD).mean((1, 2)) for result in seeds]) for seeds in maps]
    area = [np.stack([result.area for result in seeds]) for seeds in maps]  # (R, W, B)
    places = maps[0][0].xi[0].size
    for place, way in enumerate(maps[0][0].methods):
        for name, seeds, share, drawn in zip(names, maps, low, area, strict=True):
            tell.about(name)(
                f"share of the grid with ξ < {THRESHOLD:g}, {way}",
                grid_share(share[:, place], drawn[:, place], places),
                key=snake(f"{name} low-ξ share {way}"),
            )
            tell.array(f"{name}: {way}", np.mean([result.xi[place] for result in seeds], axis=0))
        (smaller, larger), (drawn_smaller, drawn_larger) = ([of[:, place] for of in each] for each in (low, area))
        tell(
            f"low-ξ share, {way}, {names[1]} minus {names[0]}",
            grid_share(larger - smaller, drawn_larger - drawn_smaller, places, least=-1.0),
            key=snake(f"{prefix} low-ξ share {way} larger minus smaller"),
        )
    tell.array("coefficients", maps[0][0].alphas)


def _tell_sums(tell: Tell, smaller: TaskAddition, larger: TaskAddition) -> None:
    """Tell differences of accuracies in points; of merges, where both sizes merge something."""
    both = (smaller, larger)
    plain, linear = WAYS.index("non-linear"), WAYS.index("linearised")

    def merged(*places: int) -> bool:
        return all((result.chosen[:, places] > 0).any() for result in both)

    for place, way in enumerate(WAYS):
        shares = [result.normalised[:, place] for result in both]
        drawn = [result.draws[:, place, SHARE] for result in both]
        number = _difference(shares, drawn) if merged(place) else Estimate(np.nan)
        tell(f"normalised accuracy, {way}, larger minus smaller", number)
        if place != plain:
            gaps = [result.single[:, plain].mean(-1) - result.single[:, place].mean(-1) for result in both]
            drawn = [result.draws[:, plain, SINGLE] - result.draws[:, place, SINGLE] for result in both]
            label = f"single-task gap, non-linear minus {way}, larger minus smaller"
            tell(label, _difference(gaps, drawn), key=snake(f"single-task gap {way} larger minus smaller"))
    leads = [result.absolute[:, linear] - result.absolute[:, plain] for result in both]
    drawn = [result.draws[:, linear, MERGED] - result.draws[:, plain, MERGED] for result in both]
    lead = _difference(leads, drawn) if merged(plain, linear) else Estimate(np.nan)
    tell("lead of linearised fine-tuning, larger minus smaller", lead)


def _difference(values: Sequence[np.ndarray], draws: Sequence[np.ndarray]) -> Estimate:
    """Of the larger minus the smaller, in points."""
    return in_points(values[1] - values[0], draws[1] - draws[0])


def _drawn_random(finding: Finding, dark: bool) -> Figure:
    bars = {name: {"non-linear": finding.statistics[f"{snake(name)}_single_percent"]} for name in SIZES}
    reading = "Mean accuracy over tasks after non-linear fine-tuning from random weights."
    return accuracy_bars(bars, y="single accuracy, %", reading=reading, dark=dark)


@figure(
    "D.3", title="Single tasks from random weights, by size", plan=planned(FEWEST, _BOTH, by=""), show=_drawn_random
)
def figure_d3(plan: Row, run: Run, tell: Tell) -> None:
    """Single-task accuracy after non-linear fine-tuning from random weights, for two sizes."""
    tell_encoders(SIZES, plan, run, tell)
    values, draws = [], []
    for name in SIZES:
        tuned = study(name, plan, run, random=True, tunings=TUNINGS[:1])
        tell_progress(tuned, run, tell, start="random")
        result = added(tuned, plan, run, methods=TUNINGS[:1])
        values.append(result.single[:, 0].mean(-1))
        draws.append(result.draws[:, 0, SINGLE])
        tell.about(name)(
            "single-task accuracy from random weights",
            in_points(values[-1], draws[-1], within=(0.0, 100.0)),
            "%",
            key=snake(f"{name} single percent"),
        )
        tell.array(name, result.single)
    tell("single-task accuracy from random weights, larger minus smaller", _difference(values, draws))
    tell.note(ONE_DRAW)
