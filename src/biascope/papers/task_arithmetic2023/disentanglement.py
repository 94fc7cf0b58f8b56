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
from biascope.editing.tasks import TEXT_TASKS
from biascope.editing.tuning import TUNINGS
from biascope.measures.disentanglement import Disentanglement, disentanglement
from biascope.measures.eigenfunction_localisation import eigenfunction_localisation
from biascope.papers.task_arithmetic2023.plans import (
    CNN,
    CONTROL,
    MAPS,
    ONE_DRAW,
    PAIR,
    TEXT,
    TEXT_PAIR,
    VIT,
    WAYS,
    WITH_TEXTS,
    ByEffort,
    at_each_effort,
    planned,
)
from biascope.papers.task_arithmetic2023.tasks import (
    Study,
    encoders,
    kept,
    study,
    tell_progress,
    untrained,
    with_splits,
)
from biascope.results.estimate import Estimate, bootstrapped, over
from biascope.results.finding import Finding, Tell, figure
from biascope.results.plan import Row
from biascope.results.wording import snake
from biascope.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THRESHOLD = 0.1  # ξ below which a place of the grid counts as disentangled; keys of numbers say it too
# Least length of linearised vectors, in units of the others: shorter ones interfere less by their length alone.
_ALIKE = 0.5


def mapped(
    tuned: Study, pair: tuple[str, str], plan: Row, run: Run, *, ways: Sequence[str] = WAYS, points: int | None = None
) -> list[Disentanglement]:
    """ξ of two tasks with the vectors of every seed, and what changes on the control task beside it.

    All ways to edit that the vectors allow are mapped, unless others are named; on the plan's samples of each task, unless given.
    """
    only = {} if tuple(ways) == WAYS else {"methods": tuple(ways)}
    points = points or plan["points"]
    control = tuned.tasks.get(CONTROL) if CONTROL not in pair else None
    return maps_of(
        tuned,
        pair,
        run,
        control=None if control is None else with_splits(control, "test"),
        points=points,
        control_points=max(8, points // 2),
        grid=plan["grid"],
        threshold=THRESHOLD,
        resamples=200,
        name=tuned.name,
        **only,
    )


def maps_of(tuned: Study, pair: tuple[str, str], run: Run, **settings: Any) -> list[Disentanglement]:
    """ξ of two tasks on test samples, with the vectors of every seed, by the settings of the measurement."""
    tasks = {task: with_splits(tuned.tasks[task], "test") for task in pair}
    heads = {task: tuned.heads[task] for task in pair}
    return [
        kept(
            disentanglement, tuned.encoder, heads,
            {tuning: {task: of[task] for task in pair} for tuning, of in vectors.items()}, tasks,
            at=tasks[pair[0]], pair=pair, seed=0, run=run.shared, **settings,
        )
        for vectors in tuned.vectors
    ]  # fmt: skip


def relative_lengths(tuned: Study, pair: Sequence[str]) -> np.ndarray:
    """The length of linearised task vectors in units of that of non-linear ones, mean over a pair of tasks, by seed.

    There are none without linearised fine-tuning.
    """
    return np.array(
        [
            np.mean([vectors["linearised"][task].norm / vectors["non-linear"][task].norm for task in pair])
            for vectors in tuned.vectors
            if "linearised" in vectors
        ]
    )


def tell_maps(tell: Tell, seeds: Sequence[Disentanglement], lengths: np.ndarray) -> None:
    """Tell areas and errors by way to edit, and their differences, resampled alike; over seeds and samples.

    Linearised vectors are compared with non-linear ones only where they are not much shorter.
    """
    methods, alphas, inside = seeds[0].methods, seeds[0].alphas, seeds[0].inside
    xi, area, box = (np.stack([getattr(result, name) for result in seeds]) for name in ("xi", "area", "box_error"))
    low, near, mean = (xi < THRESHOLD).mean((2, 3)), around(xi, alphas), xi[:, :, inside].mean(2)  # (seed, method)
    places, plain = xi[0, 0].size, methods.index("non-linear")

    def told(label: str, number: Estimate, key: str) -> None:
        tell(label, number, key=snake(f"{tell.subject} {key}"))

    for place, way in enumerate(methods):
        share = grid_share(low[:, place], area[:, place], places)
        tell(f"share of the grid with ξ < {THRESHOLD:g}, {way}", share)
        # Resamples are known for the whole share: its error stands for that of the part around the pre-trained weights too.
        region = grid_share(near[:, place], area[:, place], places)
        told(f"share of the grid in the low-ξ region around θ₀, {way}", region, f"low-ξ region {way}")
        in_box = over(mean[:, place], shared=error_of_samples(box[:, place]))
        tell(f"mean ξ for coefficients from 0 to 1, {way}", in_box)
        if place == plain:
            continue
        short = way == "linearised" and lengths.min() < _ALIKE
        for part, where, shares in (("low-ξ share", "", low), ("low-ξ region", " around θ₀", near)):
            gaps, drawn = shares[:, place] - shares[:, plain], area[:, place] - area[:, plain]
            ahead = Estimate(np.nan) if short else grid_share(gaps, drawn, places, least=-1.0)
            told(f"{part}{where}, {way} minus non-linear", ahead, f"{part} {way} minus non-linear")
    if len(lengths):
        words = "length of linearised vectors"
        told(f"{words}, in units of the others", over(lengths), words)
    # Resamples are known for the search box alone: its error stands for that of the whole difference.
    error, far = error_of_samples(box[:, plain]), alphas > 1
    whole, beyond = xi[:, plain].mean((1, 2)), xi[:, plain][:, far][:, :, far].mean((1, 2))
    told(
        "mean ξ, non-linear, for coefficients from 0 to 1 minus the whole grid",
        over(mean[:, plain] - whole, shared=error),
        "mean ξ non-linear search box minus grid",
    )
    told(
        "mean ξ, non-linear, for coefficients beyond 1 minus from 0 to 1",
        over(beyond - mean[:, plain], shared=error),
        "mean ξ non-linear beyond 1 minus search box",
    )
    if any(result.control is None or result.control_box is None for result in seeds):
        return
    control, drawn = (np.stack([getattr(result, name) for result in seeds]) for name in ("control", "control_box"))
    moved, words = control[:, :, inside].mean(2), f"predictions changed on {CONTROL}"
    for place, way in enumerate(methods):
        tell(f"{words} there, {way}", over(moved[:, place], shared=error_of_samples(drawn[:, place])))
    everywhere = control[:, plain].mean((1, 2))
    told(
        f"{words}, non-linear, for coefficients from 0 to 1 minus the grid",
        over(moved[:, plain] - everywhere, shared=error_of_samples(drawn[:, plain])),  # as for ξ, the error of the box
        f"{words} search box minus grid",
    )


def grid_share(shares: np.ndarray, draws: np.ndarray, places: int, least: float = 0.0) -> Estimate:
    """A share of the grid, by seed and on resampled points, or a difference of two (least −1).

    The interval of several seeds reaches one place of the grid at least: nothing finer is seen. This was added
    after the first run of figure 6.5. It can only take certainty from a verdict.
    """
    share, place = over(shares, shared=error_of_samples(draws), within=(least, 1.0)), 1 / places
    if math.isfinite(share.low):
        low, high = min(share.low, share.value - place), max(share.high, share.value + place)
        share = Estimate(share.value, np.maximum(share.standard_error, place / 2).item(), low, high)
    return share.within(least, 1.0)


def around(xi: np.ndarray, alphas: np.ndarray) -> np.ndarray:
    """Share of the grid with low ξ that is connected with the pre-trained weights, for each map ``(…, A, A)``.

    Far away a network may answer with one class whatever is added; there ξ is low too, and nothing is disentangled.
    """
    nearest = np.flatnonzero(np.abs(alphas) <= np.abs(alphas).min() + 1e-9)
    shares = []
    for values in xi.reshape(-1, *xi.shape[-2:]):
        regions = ndimage.label(values < THRESHOLD)[0]
        own = np.setdiff1d(regions[np.ix_(nearest, nearest)], [0])
        shares.append(np.isin(regions, own).mean())
    return np.reshape(shares, xi.shape[:-2])


def _title(name: str, pair: Sequence[str]) -> str:
    return f"{name}, {pair[0]} and {pair[1]}"


def _drawn_maps(finding: Finding, dark: bool) -> Figure:
    first = next(key for key in finding.arrays if key != "coefficients")
    maps = dict(zip(finding.settings["ways"], finding.arrays[first], strict=True))
    one, other = first.partition(", ")[2].split(" and ")
    return map_figure(maps, finding.arrays["coefficients"], (one, other), threshold=THRESHOLD, dark=dark)


def _tell_all_maps(plan: Row, run: Run, tell: Tell, *, random: bool = False) -> None:
    """Maps of every encoder and pair of the plan; the first one is drawn."""
    names = encoders(plan, run, tell, [name for name in (VIT, TEXT, CNN) if name in plan["pairs"]])
    ways, points = (_by_encoder(plan[setting], names) for setting in ("ways", "points"))
    control = () if random else (CONTROL,)  # random weights are not asked what changes on another task
    for name in names:
        only = {*control}.union(*plan["pairs"][name])
        tunings = [tuning for tuning in TUNINGS if tuning in ways[name]]
        tuned = study(name, plan, run, random=random, only=only, tunings=tunings)
        tell_progress(tuned, run, tell, start="random" if random else "")
        for pair in plan["pairs"][name]:
            results = mapped(tuned, pair, plan, run, ways=ways[name], points=points[name])
            tell_maps(tell.about(_title(name, pair)), results, relative_lengths(tuned, pair))
            tell.array(_title(name, pair), results[0].xi)
            tell.array("coefficients", results[0].alphas)
    tell.settings["ways"] = list(ways[names[0]])
    tell.settings["points"] = points if len({*points.values()}) > 1 else points[names[0]]


def _by_encoder(setting: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: setting[name] if isinstance(setting, Mapping) else setting for name in names}


def _pairs(*pairs: tuple[str, str]) -> ByEffort:
    """The first pair for a CNN; at paper effort all, for a ViT too."""
    first = {"pairs": {CNN: pairs[:1]}, "ways": WAYS}
    return {"smoke": first, "laptop": first, "paper": {"pairs": dict.fromkeys((CNN, VIT), pairs), "ways": WAYS}}


@figure(
    "6.4",
    title="Disentanglement error of two task vectors, non-linear, post-hoc and linearised (with figure 6.8)",
    plan=planned(MAPS, _pairs(PAIR, ("fashion-mnist", "dtd10"))),
    show=_drawn_maps,
)
def figure_64(plan: Row, run: Run, tell: Tell) -> None:
    """ξ over coefficients from −3 to 3, for two pairs of tasks."""
    _tell_all_maps(plan, run, tell)


_ON_TEXTS: ByEffort = {
    "smoke": {"pairs": {CNN: [PAIR]}, "ways": WAYS},
    "laptop": {
        "encoders": (CNN, TEXT),
        "text tasks": TEXT_TASKS[:2],
        "pairs": {CNN: [PAIR], TEXT: [TEXT_PAIR]},
        "ways": {CNN: WAYS, TEXT: WAYS[:1]},
        "points": {CNN: 150, TEXT: 32},
    },
    "paper": {"encoders": (CNN, TEXT), "pairs": {CNN: [PAIR], TEXT: [TEXT_PAIR]}, "ways": WAYS},
    "published": {"encoders": ("CLIP ConvNeXt", "T5-Base")},
}


@figure(
    "D.2",
    title="Disentanglement error of a CNN and of a text encoder",
    plan=planned(WITH_TEXTS, MAPS, _ON_TEXTS),
    show=_drawn_maps,
)
def figure_d2(plan: Row, run: Run, tell: Tell) -> None:
    """The same for sentiment and questions, and for a convolutional network. At laptop effort texts have the non-linear map alone."""
    _tell_all_maps(plan, run, tell)


@figure(
    "6.10",
    title="Disentanglement error from random weights",
    plan=planned(MAPS, _pairs(PAIR)),
    show=_drawn_maps,
)
def figure_610(plan: Row, run: Run, tell: Tell) -> None:
    """ξ of the same pair at random and at pre-trained weights."""
    trained = Tell()
    _tell_all_maps(plan, run, tell, random=True)
    _tell_all_maps(plan, run, trained)
    tell.numbers.update({key: number for key, number in trained.numbers.items() if key.endswith("_progress")})
    for name in tell.settings["encoders"]:
        for way in WAYS:
            words = f"mean ξ for coefficients from 0 to 1, {way}"
            key = snake(f"{_title(name, PAIR)} {words}")
            here, there = tell.numbers[key], trained.numbers[key]
            tell.about(name)(f"{words}, random minus pre-trained", here.minus(there, plan["seeds"]))
    tell.note(ONE_DRAW)


def _between_logits(energy: np.ndarray) -> Estimate:
    """The variance between logits at a point, mean over points, in units of that over all logits and points; over points."""
    variances = np.stack([energy.var(0), ((energy - energy.mean()) ** 2).mean(0)], 1)  # (n, 2)
    return bootstrapped(lambda points: float(points[:, 0].mean() / points[:, 1].mean()), variances, resamples=400)


def _of_states(results: Sequence[Mapping[str, Estimate]]) -> dict[str, Estimate]:
    """Pre-trained weights are the same in all results; random ones differ, so that their spread is joined with that of samples."""
    values, errors = (
        np.array([getattr(shares["random"], part) for shares in results]) for part in ("value", "standard_error")
    )
    return {**results[0], "random": over(values, shared=float(errors.mean()))}


def _drawn_energy(finding: Finding, dark: bool) -> Figure:
    name = next(iter(finding.arrays)).partition(": ")[0]
    one, other = finding.settings["pair"]
    return local_energy_figure(finding.arrays_of(name), int(finding.settings["points"]), (one, other), dark=dark)


_LOCALISED = planned(
    at_each_effort({"pair": PAIR}),
    {
        "smoke": {"points": 12, "classes": 3},
        "laptop": {"points": 60, "classes": 10},
        "paper": {"points": 200, "classes": 10},
    },
)


@figure(
    "6.9",
    title="Localisation of eigenfunctions, pre-trained and random (with figure 6.11)",
    plan=dataclasses.replace(_LOCALISED, published={"encoders": ("CLIP ViT-B/32",), "points": 200}),
    show=_drawn_energy,
)
def figure_69(plan: Row, run: Run, tell: Tell) -> None:
    """Local energy of the eigenfunctions of a task at its points and at those of another one."""
    for name in encoders(plan, run, tell):
        tuned, of = study(name, plan, run, only=plan["pair"], tunings=()), tell.about(name)
        task, control = (tuned.tasks[each] for each in plan["pair"])
        results = [
            eigenfunction_localisation(
                tuned.encoder, tuned.heads[plan["pair"][0]], task, control, random=untrained(name, plan, run, seed),
                points=plan["points"], classes=plan["classes"], name=name, seed=0, run=run.shared,
            )
            for seed in range(plan["seeds"])
        ]  # fmt: skip
        local = "share of the local energy on the task"
        for kind, words, label in (
            ("energy", local, local),
            ("weighted", "the same, by singular values", f"{local}, by singular values"),
        ):
            states = _of_states([result.shares(getattr(result, kind)) for result in results])
            for state, share in states.items():
                of(f"{words}, {state}", share)
            difference = states["pre-trained"].minus(states["random"], len(results))
            key = snake(f"{name} {words} pre-trained minus random")
            of(f"{label}, pre-trained minus random", difference, key=key)
        variance = "share of the variance of the local energy"
        between = _between_logits(results[0].energy[0])
        of(f"{variance} that is between logits", between, key=snake(f"{name} {variance} between logits"))
        for state, energy in zip(results[0].states, results[0].energy, strict=True):
            tell.array(f"{name}: {state}", energy)
        tell.settings["points"] = results[0].points
    tell.note(
        "A share of 0.5 is not the value without localisation. The kernel between samples of the task contains its diagonal, each "
        "sample with itself, and the kernel between the task and the control samples has none. So the share may exceed 0.5 without "
        "localisation. The value without localisation was not measured. The difference between pre-trained and random weights may "
        "contain this effect too."
    )
