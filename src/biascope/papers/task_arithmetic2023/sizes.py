"""Figures 6.5 and D.3 of the thesis, and what it says of size elsewhere: one architecture in two sizes, on the same tasks."""

# R seeds · W ways to edit · B resamples

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from biascope.editing.pictures import accuracy_bars, map_figure
from biascope.editing.results import error_of_samples
from biascope.measures.disentanglement import Disentanglement
from biascope.measures.task_addition import TaskAddition
from biascope.papers.selection import chosen as selected
from biascope.papers.selection import old_figure
from biascope.papers.task_arithmetic2023.disentanglement import THRESHOLD, grid_share, mapped
from biascope.papers.task_arithmetic2023.editing import MERGED, SHARE, SINGLE, added
from biascope.papers.task_arithmetic2023.tasks import (
    CNN,
    LARGER,
    NOTES,
    ONE_DRAW,
    PLANS,
    PUBLISHED,
    TEXTS,
    WAYS,
    how,
    progress,
    study,
    with_weights,
)
from biascope.results.estimate import Estimate, Number, over
from biascope.results.finding import Finding
from biascope.results.wording import snake
from biascope.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PAIR = ("mnist", "gtsrb")
_TEXT_PAIR = ("sst2", "trec")
_BOTH = (CNN, LARGER[CNN])
_SIZES = {
    "smoke": _BOTH,
    "laptop": _BOTH,
    "paper": (*_BOTH, *TEXTS),
}  # an encoder is run beside the other one of its kind


def _drawn(finding: Finding, dark: bool) -> Figure:
    names, pair = (_BOTH, _PAIR) if f"{CNN}: non-linear" in finding.arrays else (TEXTS, _TEXT_PAIR)
    maps = {
        f"{name.partition('-')[2]}, {way}": finding.arrays[f"{name}: {way}"]  # short titles: "Lite0, post-hoc"
        for name in names
        for way in ("non-linear", "post-hoc")
    }
    return map_figure(maps, finding.arrays["coefficients"], pair, threshold=THRESHOLD, dark=dark)


@old_figure(
    "6.5",
    networks=_SIZES,
    title="Disentanglement error and task addition by size",
    show=_drawn,
    published=PUBLISHED | {"tasks": ["DTD", "SUN397"], "points": 2048, "grid": 20},
)
def figure_65(effort: str, run: Run) -> Finding:
    """ξ of a pair of tasks, and accuracies after addition, for two sizes; differences are paired by seed and test sample.

    Texts are left out where their encoders are not asked for, or have no weights here.
    """
    asked = selected(dict.fromkeys(_SIZES[effort]))
    images = not set(_BOTH).isdisjoint(asked)
    texts = with_weights(TEXTS, effort, run) == TEXTS and not set(TEXTS).isdisjoint(asked)
    if not images and not texts:
        raise ValueError(f"{' and '.join(TEXTS)} must have their weights, and have none here. See docs/encoders.md.")
    few = PLANS[effort].tasks[: PLANS[effort].few]
    statistics, arrays = _of_images(effort, run, few) if images else ({}, {})
    if texts:
        numbers, maps = _of_texts(effort, run)
        statistics, arrays = statistics | numbers, arrays | maps
    names = (*(_BOTH if images else ()), *(TEXTS if texts else ()))
    plan = {"tasks": list(few), "points": PLANS[effort].points, "grid": PLANS[effort].grid}
    return Finding(statistics, arrays, {**how(effort, run, names), **plan}, NOTES)


def _of_images(effort: str, run: Run, few: Sequence[str]) -> tuple[dict[str, Number], dict[str, np.ndarray]]:
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    sums: list[TaskAddition] = []
    maps: list[list[Disentanglement]] = []
    for name in _BOTH:
        found = study(name, effort, run, only=few)
        statistics |= progress(found, run)
        sums.append(added(found, effort, run))
        maps.append(mapped(found, _PAIR, effort, run))
        arrays |= _mean_maps(name, maps[-1])
    return statistics | _of_maps(_BOTH, maps) | _of_sums(*sums), arrays


def _of_texts(effort: str, run: Run) -> tuple[dict[str, Number], dict[str, np.ndarray]]:
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    maps: list[list[Disentanglement]] = []
    for name in TEXTS:
        found = study(name, effort, run, only=_TEXT_PAIR, tunings=("non-linear",))
        statistics |= progress(found, run)
        maps.append(mapped(found, _TEXT_PAIR, effort, run))
        arrays |= _mean_maps(name, maps[-1])
    return statistics | _of_maps(TEXTS, maps, prefix="texts_"), arrays


def _mean_maps(name: str, maps: Sequence[Disentanglement]) -> dict[str, np.ndarray]:
    """ξ over coefficients by way to edit, mean over seeds."""
    mean = np.mean([each.xi for each in maps], axis=0)
    ways = {f"{name}: {way}": mean[place] for place, way in enumerate(maps[0].methods)}
    return {**ways, "coefficients": maps[0].alphas}


def _of_maps(names: Sequence[str], maps: Sequence[list[Disentanglement]], prefix: str = "") -> dict[str, Number]:
    """Low-ξ shares by size, and their differences; the prefix is one of keys."""
    numbers = {}
    low = [np.stack([(each.xi < THRESHOLD).mean((1, 2)) for each in seeds]) for seeds in maps]
    area = [np.stack([each.area for each in seeds]) for seeds in maps]  # (R, W, B)
    places = maps[0][0].xi[0].size
    for place, way in enumerate(maps[0][0].methods):
        for name, share, drawn in zip(names, low, area, strict=True):
            numbers[f"{snake(name)}_low_xi_share_{snake(way)}"] = grid_share(
                share[:, place], drawn[:, place], places
            ).named(f"{name}: share of the grid with ξ < {THRESHOLD:g}, {way}")
        numbers[f"{prefix}low_xi_share_{snake(way)}_larger_minus_smaller"] = grid_share(
            low[1][:, place] - low[0][:, place], area[1][:, place] - area[0][:, place], places, least=-1.0
        ).named(f"low-ξ share, {way}, {names[1]} minus {names[0]}")
    return numbers


def _of_sums(smaller: TaskAddition, larger: TaskAddition) -> dict[str, Number]:
    """Differences of accuracies in points; of merges, where both sizes merge something."""
    both = (smaller, larger)
    plain, linear = WAYS.index("non-linear"), WAYS.index("linearised")
    numbers = {}
    for place, way in enumerate(WAYS):
        kept = _difference([each.normalised[:, place] for each in both], [each.draws[:, place, SHARE] for each in both])
        merged = all((each.chosen[:, place] > 0).any() for each in both)
        numbers[f"normalised_accuracy_{snake(way)}_larger_minus_smaller"] = (
            kept if merged else Estimate(np.nan)
        ).named(f"normalised accuracy, {way}, larger minus smaller")
        if place != plain:
            gaps = [each.single[:, plain].mean(-1) - each.single[:, place].mean(-1) for each in both]
            drawn = [each.draws[:, plain, SINGLE] - each.draws[:, place, SINGLE] for each in both]
            numbers[f"single_task_gap_{snake(way)}_larger_minus_smaller"] = _difference(gaps, drawn).named(
                f"single-task gap, non-linear minus {way}, larger minus smaller"
            )
    leads = [each.absolute[:, linear] - each.absolute[:, plain] for each in both]
    drawn = [each.draws[:, linear, MERGED] - each.draws[:, plain, MERGED] for each in both]
    merged = all((each.chosen[:, [plain, linear]] > 0).any() for each in both)
    numbers["lead_of_linearised_fine_tuning_larger_minus_smaller"] = (
        _difference(leads, drawn) if merged else Estimate(np.nan)
    ).named("lead of linearised fine-tuning, larger minus smaller")
    return numbers


def _difference(values: list[np.ndarray], draws: list[np.ndarray]) -> Estimate:
    return over(100 * (values[1] - values[0]), shared=error_of_samples(100 * (draws[1] - draws[0])))


def _drawn_random(finding: Finding, dark: bool) -> Figure:
    bars = {name: {"non-linear": finding.statistics[f"{snake(name)}_single_percent"]} for name in _BOTH}
    reading = "Mean accuracy over tasks after non-linear fine-tuning from random weights."
    return accuracy_bars(bars, y="single accuracy, %", reading=reading, dark=dark)


@old_figure(
    "D.3",
    title="Single tasks from random weights, by size",
    show=_drawn_random,
    published=PUBLISHED,
)
def figure_d3(effort: str, run: Run) -> Finding:
    """Single-task accuracy after non-linear fine-tuning from random weights, for two sizes."""
    statistics: dict[str, Number] = {}
    singles = []
    for name in _BOTH:
        found = study(name, effort, run, random=True, tunings=("non-linear",))
        statistics |= progress(found, run, start="random")
        singles.append(added(found, effort, run, methods=("non-linear",)))
        statistics[f"{snake(name)}_single_percent"] = over(
            100 * singles[-1].single[:, 0].mean(-1),
            shared=error_of_samples(100 * singles[-1].draws[:, 0, SINGLE]),
            within=(0.0, 100.0),
        ).named(f"{name}: single-task accuracy from random weights", "%")
    statistics["single_task_accuracy_from_random_weights_larger_minus_smaller"] = _difference(
        [each.single[:, 0].mean(-1) for each in singles], [each.draws[:, 0, SINGLE] for each in singles]
    ).named("single-task accuracy from random weights, larger minus smaller")
    arrays = {name: each.single for name, each in zip(_BOTH, singles, strict=True)}
    settings = {**how(effort, run, _BOTH), "tasks": list(PLANS[effort].random)}
    return Finding(statistics, arrays, settings, (*NOTES, ONE_DRAW))
