"""Figures 6.4, 6.8 to 6.11 and D.2 of the thesis: where task vectors leave one another alone, and where eigenfunctions live."""

# A coefficients along a side · W ways to edit · n points

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import ndimage

from biascope.editing.pictures import local_energy_figure, map_figure
from biascope.editing.results import error_of_samples
from biascope.editing.tuning import TUNINGS
from biascope.measures.disentanglement import Disentanglement, disentanglement
from biascope.measures.eigenfunction_localisation import eigenfunction_localisation
from biascope.papers.selection import old_figure
from biascope.papers.task_arithmetic2023.tasks import (
    CNN,
    CONTROL,
    IMAGES,
    MAPPED,
    NOTES,
    ONE_DRAW,
    PLANS,
    PUBLISHED,
    TEXT,
    VIT,
    WAYS,
    Study,
    encoders,
    how,
    kept,
    plan_of,
    progress,
    study,
    untrained,
)
from biascope.results.estimate import Estimate, Number, bootstrapped, over
from biascope.results.finding import Finding
from biascope.results.wording import snake
from biascope.runs.run import Run
from biascope.tasks.task import Arrays

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THRESHOLD = 0.1  # ξ below which a place of the grid counts as disentangled; keys of numbers say it too
_MAPS = {"points": 2048, "grid": 20}  # of the thesis
_PAIRS = {
    "smoke": (("mnist", "gtsrb"),),
    "laptop": (("mnist", "gtsrb"),),
    "paper": (("mnist", "gtsrb"), ("fashion-mnist", "dtd10")),
}
_TEXT_PAIRS = {"smoke": (("sst2", "trec"),), "laptop": (("sst2", "trec"),), "paper": (("sst2", "trec"),)}


_ALIKE = (
    0.5  # least length of linearised vectors, in units of the others: shorter ones interfere less by their length alone
)


def mapped(found: Study, pair: tuple[str, str], effort: str, run: Run) -> list[Disentanglement]:
    """ξ of two tasks with the vectors of every seed, and what changes on the control task beside it."""
    plan = plan_of(found.name, effort)
    only = {} if plan.ways == WAYS else {"methods": plan.ways}
    tasks = {task: tested(found.tasks[task]) for task in pair}
    control = found.tasks.get(CONTROL) if CONTROL not in pair else None
    heads = {task: found.heads[task] for task in pair}
    return [
        kept(
            Disentanglement, disentanglement, found.encoder, heads,
            {tuning: {task: each[task] for task in pair} for tuning, each in vectors.items()}, tasks,
            at=tasks[pair[0]], pair=pair, control=None if control is None else tested(control), points=plan.points,
            control_points=max(8, plan.points // 2), grid=plan.grid, threshold=THRESHOLD, resamples=200, name=found.name,
            seed=0, run=run.shared, **only,
        )
        for vectors in found.vectors
    ]  # fmt: skip


def tested(task: Arrays) -> Arrays:
    """The split that maps are made on."""
    return dataclasses.replace(task, splits={"test": task.splits["test"]})


def relative_lengths(found: Study, pair: Sequence[str]) -> np.ndarray:
    """The length of linearised task vectors in units of that of non-linear ones, mean over a pair of tasks, by seed.

    There are none without linearised fine-tuning.
    """
    return np.array(
        [
            np.mean([vectors["linearised"][task].norm / vectors["non-linear"][task].norm for task in pair])
            for vectors in found.vectors
            if "linearised" in vectors
        ]
    )


def map_numbers(title: str, seeds: Sequence[Disentanglement], lengths: np.ndarray) -> dict[str, Number]:
    """Areas and errors by way to edit, and their differences, resampled alike; over seeds and samples.

    Linearised vectors are compared with non-linear ones only where they are not much shorter.
    """
    stem, methods = snake(title), seeds[0].methods
    xi, area, box = (np.stack([getattr(each, name) for each in seeds]) for name in ("xi", "area", "box_error"))
    inside = seeds[0].inside
    low, mean = (xi < THRESHOLD).mean((2, 3)), xi[:, :, inside].mean(2)  # (seed, method)
    numbers: dict[str, Number] = {}
    for place, way in enumerate(methods):
        numbers |= {
            f"{stem}_share_of_the_grid_with_xi_below_0_1_{snake(way)}": grid_share(
                low[:, place], area[:, place], xi[0, 0].size
            ).named(f"{title}: share of the grid with ξ < {THRESHOLD:g}, {way}"),
            f"{stem}_mean_xi_for_coefficients_from_0_to_1_{snake(way)}": over(
                mean[:, place], shared=error_of_samples(box[:, place])
            ).named(f"{title}: mean ξ for coefficients from 0 to 1, {way}"),
        }
    other, near = methods.index("non-linear"), around(xi, seeds[0].alphas)  # (seed, method)
    for way in (each for each in ("post-hoc", "linearised") if each in methods):
        one, short = methods.index(way), way == "linearised" and lengths.min() < _ALIKE
        # Resamples are known for the whole share: its error stands for that of the part around the pre-trained weights too.
        for key, words, share in (
            ("low_xi_share", "low-ξ share", low),
            ("low_xi_region", "low-ξ region around θ₀", near),
        ):
            ahead = grid_share(
                share[:, one] - share[:, other], area[:, one] - area[:, other], xi[0, 0].size, least=-1.0
            )
            numbers[f"{stem}_{key}_{snake(way)}_minus_non_linear"] = (Estimate(np.nan) if short else ahead).named(
                f"{title}: {words}, {way} minus non-linear"
            )
    for place, way in enumerate(methods):
        numbers[f"{stem}_low_xi_region_{snake(way)}"] = grid_share(near[:, place], area[:, place], xi[0, 0].size).named(
            f"{title}: share of the grid in the low-ξ region around θ₀, {way}"
        )
    if len(lengths):
        numbers[f"{stem}_length_of_linearised_vectors"] = over(lengths).named(
            f"{title}: length of linearised vectors, in units of the others"
        )
    # Resamples are known for the search box alone: its error stands for that of the whole difference.
    plain, far = xi[:, other], seeds[0].alphas > 1
    whole, beyond = plain.mean((1, 2)), plain[:, far][:, :, far].mean((1, 2))
    numbers |= {
        f"{stem}_mean_xi_non_linear_search_box_minus_grid": over(
            mean[:, other] - whole, shared=error_of_samples(box[:, other])
        ).named(f"{title}: mean ξ, non-linear, for coefficients from 0 to 1 minus the whole grid"),
        f"{stem}_mean_xi_non_linear_beyond_1_minus_search_box": over(
            beyond - mean[:, other], shared=error_of_samples(box[:, other])
        ).named(f"{title}: mean ξ, non-linear, for coefficients beyond 1 minus from 0 to 1"),
    }
    if all(each.control is not None and each.control_box is not None for each in seeds):
        moved = np.stack([np.asarray(each.control)[:, inside].mean(1) for each in seeds])
        drawn = np.stack([np.asarray(each.control_box) for each in seeds])
        numbers |= {
            f"{stem}_predictions_changed_on_{snake(CONTROL)}_there_{snake(way)}": over(
                moved[:, place], shared=error_of_samples(drawn[:, place])
            ).named(f"{title}: predictions changed on {CONTROL} there, {way}")
            for place, way in enumerate(methods)
        }
        # As for ξ, the error of the box stands for that of the difference.
        everywhere = np.stack([np.asarray(each.control)[other].mean() for each in seeds])
        numbers[f"{stem}_predictions_changed_on_{snake(CONTROL)}_search_box_minus_grid"] = over(
            moved[:, other] - everywhere, shared=error_of_samples(drawn[:, other])
        ).named(f"{title}: predictions changed on {CONTROL}, non-linear, for coefficients from 0 to 1 minus the grid")
    return numbers


def grid_share(shares: np.ndarray, draws: np.ndarray, places: int, least: float = 0.0) -> Estimate:
    """A share of the grid, by seed and on resampled points, or a difference of two (least −1).

    The interval of several seeds reaches one place of the grid at least: nothing finer is seen. This was added
    after the first run of figure 6.5. It can only take certainty from a verdict.
    """
    found, place = over(shares, shared=error_of_samples(draws), within=(least, 1.0)), 1 / places
    if math.isfinite(found.low):
        low, high = min(found.low, found.value - place), max(found.high, found.value + place)
        found = Estimate(found.value, np.maximum(found.standard_error, place / 2).item(), low, high)
    return found.within(least, 1.0)


def around(xi: np.ndarray, alphas: np.ndarray) -> np.ndarray:
    """Share of the grid with low ξ that is connected with the pre-trained weights, for each map ``(…, A, A)``.

    Far away a network may answer with one class whatever is added; there ξ is low too, and nothing is disentangled.
    """
    nearest = np.flatnonzero(np.abs(alphas) <= np.abs(alphas).min() + 1e-9)
    shares = []
    for each in xi.reshape(-1, *xi.shape[-2:]):
        regions = ndimage.label(each < THRESHOLD)[0]
        own = np.setdiff1d(regions[np.ix_(nearest, nearest)], [0])
        shares.append(np.isin(regions, own).mean())
    return np.reshape(shares, xi.shape[:-2])


def _title(name: str, pair: Sequence[str]) -> str:
    return f"{name}, {pair[0]} and {pair[1]}"


def _drawn_maps(finding: Finding, dark: bool) -> Figure:
    keys = [key for key in finding.arrays if key != "coefficients"]
    first = keys[0]
    ways = list(finding.settings["ways"])
    maps = dict(zip(ways, finding.arrays[first], strict=True))
    pair = first.partition(", ")[2].split(" and ")
    return map_figure(maps, finding.arrays["coefficients"], (pair[0], pair[1]), threshold=THRESHOLD, dark=dark)


def _maps(
    effort: str,
    run: Run,
    wanted: Mapping[str, tuple[tuple[str, str], ...]],
    *,
    random: bool = False,
    also: Sequence[str] = (),
) -> Finding:
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    names = [name for name in wanted if name in encoders(effort, run, also=also)]
    for name in names:
        pairs = wanted[name]
        only = sorted({task for pair in pairs for task in pair} | {CONTROL})
        tunings = [tuning for tuning in TUNINGS if tuning in plan_of(name, effort).ways]
        found = study(name, effort, run, random=random, only=only, tunings=tunings)
        statistics |= progress(found, run, start="random" if random else "")
        for pair in pairs:
            results = mapped(found, pair, effort, run)
            statistics |= map_numbers(_title(name, pair), results, relative_lengths(found, pair))
            arrays |= {_title(name, pair): results[0].xi, "coefficients": results[0].alphas}
    settings: dict[str, Any] = how(effort, run, names)
    plans = {name: plan_of(name, effort) for name in names}
    first = plans[names[0]]  # the one that is drawn
    maps: dict[str, Any] = {"ways": list(first.ways), "points": first.points, "grid": first.grid}
    if len({plan.points for plan in plans.values()}) > 1:
        maps["points"] = {name: plan.points for name, plan in plans.items()}
    return Finding(statistics, arrays, settings | maps, NOTES)


@old_figure(
    "6.4",
    networks=IMAGES,
    title="Disentanglement error of two task vectors, non-linear, post-hoc and linearised (with figure 6.8)",
    show=_drawn_maps,
    published=PUBLISHED | _MAPS,
)
def figure_64(effort: str, run: Run) -> Finding:
    """ξ over coefficients from −3 to 3, for two pairs of tasks."""
    return _maps(effort, run, dict.fromkeys((VIT, CNN), _PAIRS[effort]))


@old_figure(
    "D.2",
    networks=MAPPED,
    title="Disentanglement error of a CNN and of a text encoder",
    show=_drawn_maps,
    published=PUBLISHED | _MAPS | {"encoders": ["CLIP ConvNeXt", "T5-Base"]},
)
def figure_d2(effort: str, run: Run) -> Finding:
    """The same for sentiment and questions, and for a convolutional network. At laptop effort texts have the non-linear map alone."""
    return _maps(effort, run, {TEXT: _TEXT_PAIRS[effort], CNN: _PAIRS[effort][:1]}, also=MAPPED[effort])


@old_figure(
    "6.10",
    networks=IMAGES,
    title="Disentanglement error from random weights",
    show=_drawn_maps,
    published=PUBLISHED | _MAPS,
)
def figure_610(effort: str, run: Run) -> Finding:
    """ξ of the same pair at random and at pre-trained weights."""
    pair = _PAIRS[effort][0]
    wanted = dict.fromkeys((VIT, CNN), (pair,))
    finding, trained = _maps(effort, run, wanted, random=True), _maps(effort, run, wanted)
    statistics = dict(finding.statistics)
    statistics |= {key: each for key, each in trained.statistics.items() if key.endswith("_progress")}
    for name in finding.settings["encoders"]:
        for way in WAYS:
            mean = f"mean_xi_for_coefficients_from_0_to_1_{snake(way)}"
            here, there = (each.statistics[f"{snake(_title(name, pair))}_{mean}"] for each in (finding, trained))
            statistics[f"{snake(name)}_{mean}_random_minus_pre_trained"] = here.minus(there, PLANS[effort].seeds).named(
                f"{name}: mean ξ for coefficients from 0 to 1, {way}, random minus pre-trained"
            )
    return Finding(statistics, finding.arrays, finding.settings, (*finding.notes, ONE_DRAW))


_NULL = (
    "A share of 0.5 is not the value without localisation. The kernel between samples of the task contains its diagonal, each sample "
    "with itself, and the kernel between the task and the control samples has none. So the share may exceed 0.5 without localisation. "
    "The value without localisation was not measured. The difference between pre-trained and random weights may contain this effect "
    "too."
)
_LOCAL, _LOCAL_KEY = "share of the local energy on the task", "share_of_the_local_energy_on_the_task"


def _localised(name: str, effort: str, run: Run) -> tuple[dict[str, Number], dict[str, np.ndarray], int]:
    pair = _PAIRS[effort][0]
    found = study(name, effort, run, only=pair, tunings=())
    task, control = (found.tasks[each] for each in pair)
    points = 12 if effort == "smoke" else 60 if effort == "laptop" else 200
    results = [
        eigenfunction_localisation(
            found.encoder, found.heads[pair[0]], task, control, random=untrained(name, effort, run, seed),
            points=points, classes=3 if effort == "smoke" else 10, name=name, seed=0, run=run.shared,
        )
        for seed in range(PLANS[effort].seeds)
    ]  # fmt: skip
    local, weighted = (
        _of_states([each.shares(getattr(each, kind)) for each in results]) for kind in ("energy", "weighted")
    )
    numbers = {
        f"{snake(name)}_{_LOCAL_KEY}_{snake(state)}": each.named(f"{name}: {_LOCAL}, {state}")
        for state, each in local.items()
    }
    numbers |= {
        f"{snake(name)}_the_same_by_singular_values_{snake(state)}": each.named(
            f"{name}: the same, by singular values, {state}"
        )
        for state, each in weighted.items()
    }
    for key, words, (trained, random) in (
        (_LOCAL_KEY, _LOCAL, local.values()),
        ("the_same_by_singular_values", f"{_LOCAL}, by singular values", weighted.values()),
    ):
        numbers[f"{snake(name)}_{key}_pre_trained_minus_random"] = trained.minus(random, len(results)).named(
            f"{name}: {words}, pre-trained minus random"
        )
    numbers[f"{snake(name)}_{_LOGITS_KEY}"] = _between_logits(results[0].energy[0]).named(
        f"{name}: share of the variance of the local energy that is between logits"
    )
    return numbers, dict(zip(results[0].states, results[0].energy, strict=True)), results[0].points


_LOGITS_KEY = "share_of_the_variance_of_the_local_energy_between_logits"


def _between_logits(energy: np.ndarray) -> Estimate:
    """The variance between logits at a point, mean over points, in units of that over all logits and points; over points."""
    within = energy.var(0)
    return bootstrapped(lambda points: float(points[:, 0].mean() / points[:, 1].mean()), np.stack([
        within, ((energy - energy.mean()) ** 2).mean(0)], 1), resamples=400)  # fmt: skip


def _of_states(results: Sequence[Mapping[str, Estimate]]) -> dict[str, Estimate]:
    """Pre-trained weights are the same in all results; random ones differ, so that their spread is joined with that of samples."""
    values, errors = (
        np.array([getattr(each["random"], part) for each in results]) for part in ("value", "standard_error")
    )
    return {**results[0], "random": over(values, shared=float(errors.mean()))}


def _drawn_energy(finding: Finding, dark: bool) -> Figure:
    name = next(iter(finding.arrays)).partition(": ")[0]
    pair = finding.settings["pair"]
    return local_energy_figure(finding.arrays_of(name), int(finding.settings["points"]), (pair[0], pair[1]), dark=dark)


@old_figure(
    "6.9",
    networks=IMAGES,
    title="Localisation of eigenfunctions, pre-trained and random (with figure 6.11)",
    show=_drawn_energy,
    published={"encoders": ["CLIP ViT-B/32"], "points": 200},
)
def figure_69(effort: str, run: Run) -> Finding:
    """Local energy of the eigenfunctions of a task at its points and at those of another one."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    count = 0
    names = encoders(effort, run, texts=False)
    for name in names:
        numbers, energies, count = _localised(name, effort, run)
        statistics |= numbers
        arrays |= {f"{name}: {state}": each for state, each in energies.items()}
    settings: dict[str, Any] = how(effort, run, names)
    settings |= {"pair": list(_PAIRS[effort][0]), "points": count}
    return Finding(statistics, arrays, settings, (*NOTES, _NULL))
