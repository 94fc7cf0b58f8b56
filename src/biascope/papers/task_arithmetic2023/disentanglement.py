"""Figures 6.4, 6.5, 6.8 to 6.11 and D.2 of the thesis: where task vectors leave one another alone, and where eigenfunctions live."""

# A coefficients along a side · W ways to edit · n points

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from biascope.editing.pictures import local_energy_figure, map_figure
from biascope.measures.disentanglement import Disentanglement, disentanglement
from biascope.measures.eigenfunction_localisation import eigenfunction_localisation
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
    study,
    untrained,
)
from biascope.results.claim import Claim, Finding, figure
from biascope.results.estimate import Estimate, Number
from biascope.results.wording import snake
from biascope.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_THRESHOLD = 0.1  # ξ below which a place of the grid counts as disentangled; keys of numbers say it too
_PLACE = 1 / 400  # of the grid: a region counts as larger from one place on
_PAIRS = {
    "smoke": (("mnist", "gtsrb"),),
    "laptop": (("mnist", "gtsrb"),),
    "paper": (("mnist", "gtsrb"), ("fashion-mnist", "dtd10")),
}
_TEXT_PAIRS = {"smoke": (("sst2", "trec"),), "laptop": (), "paper": (("sst2", "trec"),)}


def _mapped(found: Study, pair: tuple[str, str], effort: str, run: Run) -> Disentanglement:
    """ξ of two tasks with the vectors of the first seed, and what changes on the control task beside it."""
    plan = PLANS[effort]
    control = found.tasks.get(CONTROL) if CONTROL not in pair else None
    return disentanglement(
        found.encoder, found.heads, found.vectors[0], found.tasks, pair=pair, control=control, points=plan.points,
        grid=plan.grid, threshold=_THRESHOLD, resamples=200, name=found.name, seed=0, run=run.shared,
    )  # fmt: skip


def _numbers(title: str, found: Disentanglement) -> dict[str, Number]:
    """Areas and errors by way to edit, and their differences, resampled alike."""
    stem = snake(title)
    numbers = {
        f"{stem}_share_of_the_grid_with_xi_below_0_1_{snake(way)}": each.named(
            f"{title}: share of the grid with ξ < {_THRESHOLD:g}, {way}"
        )
        for way, each in found.areas.items()
    }
    numbers |= {
        f"{stem}_mean_xi_for_coefficients_from_0_to_1_{snake(way)}": each.named(
            f"{title}: mean ξ for coefficients from 0 to 1, {way}"
        )
        for way, each in found.box_errors.items()
    }
    low = (found.xi < _THRESHOLD).mean((1, 2))
    for way in ("post-hoc", "linearised"):
        one, other = found.methods.index(way), found.methods.index("non-linear")
        numbers[f"{stem}_low_xi_share_{snake(way)}_minus_non_linear"] = Estimate.from_draws(
            low[one] - low[other], found.area[one] - found.area[other]
        ).named(f"{title}: low-ξ share, {way} minus non-linear")
    if found.control is not None and found.control_box is not None:
        moved = found.control[:, found.inside].mean(1)
        numbers |= {
            f"{stem}_predictions_changed_on_{snake(CONTROL)}_there_{snake(way)}": Estimate.from_draws(
                moved[place], found.control_box[place]
            ).named(f"{title}: predictions changed on {CONTROL} there, {way}")
            for place, way in enumerate(found.methods)
        }
    return numbers


def _title(name: str, pair: Sequence[str]) -> str:
    return f"{name}, {pair[0]} and {pair[1]}"


def _ahead(name: str, pair: tuple[str, str], way: str, said: str) -> Claim:
    return Claim(
        f"{_title(name, pair)}: the low-ξ region is larger, {way} minus non-linear, share of the grid.",
        f"{snake(_title(name, pair))}_low_xi_share_{snake(way)}_minus_non_linear",
        "at least",
        said,
        _PLACE,
        "paper",
    )


def _drawn_maps(finding: Finding, dark: bool) -> Figure:
    keys = [key for key in finding.arrays if key != "coefficients"]
    first = keys[0]
    ways = list(finding.settings["ways"])
    maps = dict(zip(ways, finding.arrays[first], strict=True))
    pair = first.partition(", ")[2].split(" and ")
    return map_figure(maps, finding.arrays["coefficients"], (pair[0], pair[1]), threshold=_THRESHOLD, dark=dark)


def _maps(effort: str, run: Run, wanted: Mapping[str, tuple[tuple[str, str], ...]], *, random: bool = False) -> Finding:
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, pairs in wanted.items():
        if name not in PLANS[effort].encoders:
            continue
        found = study(
            name, effort, run, random=random, only=sorted({task for pair in pairs for task in pair} | {CONTROL})
        )
        for pair in pairs:
            result = _mapped(found, pair, effort, run)
            statistics |= _numbers(_title(name, pair), result)
            arrays |= {_title(name, pair): result.xi, "coefficients": result.alphas}
    settings: dict[str, Any] = how(effort)
    return Finding(statistics, arrays, settings | {"ways": list(WAYS), "points": PLANS[effort].points}, NOTES)


@figure(
    "6.4",
    title="Disentanglement error of two task vectors, non-linear, post-hoc and linearised (with figure 6.8)",
    claims=[
        _ahead(name, pair, way, said)
        for name in (VIT, CNN)
        for pair in _PAIRS["paper"]
        for way, said in (
            ("post-hoc", "linearized models exhibit greater disentanglement"),
            ("linearised", "more weight disentangled than their non-linear counterparts"),
        )
    ],
    draw=_drawn_maps,
)
def figure_64(effort: str, run: Run) -> Finding:
    """ξ over coefficients from −3 to 3, for two pairs of tasks."""
    return _maps(effort, run, dict.fromkeys((VIT, CNN), _PAIRS[effort]))


@figure(
    "D.2",
    title="Disentanglement error of a CNN and of a text encoder",
    claims=[
        Claim(
            f"{_title(TEXT, _TEXT_PAIRS['paper'][0])}: a disentangled region lies about the pre-trained weights: non-linear share.",
            f"{snake(_title(TEXT, _TEXT_PAIRS['paper'][0]))}_share_of_the_grid_with_xi_below_0_1_non_linear",
            "at least",
            "a notable region around the pre-trained checkpoint",
            0.05,
            "paper",
        ),
        _ahead(TEXT, _TEXT_PAIRS["paper"][0], "linearised", "not shown for text; as for images"),
        Claim(
            f"{_title(CNN, _PAIRS['paper'][0])}: so it does for a CNN: non-linear share of the grid.",
            f"{snake(_title(CNN, _PAIRS['paper'][0]))}_share_of_the_grid_with_xi_below_0_1_non_linear",
            "at least",
            "a notable region around the pre-trained checkpoint",
            0.05,
            "paper",
        ),
    ],
    draw=_drawn_maps,
)
def figure_d2(effort: str, run: Run) -> Finding:
    """The same for sentiment and questions, and for a convolutional network."""
    return _maps(effort, run, {TEXT: _TEXT_PAIRS[effort], CNN: _PAIRS[effort][:1]})


@figure(
    "6.10",
    title="Disentanglement error from random weights",
    claims=[
        Claim(
            f"{name}: random weights are less disentangled: mean ξ for coefficients from 0 to 1, {way}, random minus pre-trained.",
            f"{snake(name)}_mean_xi_for_coefficients_from_0_to_1_{snake(way)}_random_minus_pre_trained",
            "at least",
            "the disentanglement error is much larger",
            0.0,
            "paper",
        )
        for name in (VIT, CNN)
        for way in ("non-linear", "linearised")
    ],
    draw=_drawn_maps,
)
def figure_610(effort: str, run: Run) -> Finding:
    """ξ of the same pair at random and at pre-trained weights."""
    pair = _PAIRS[effort][0]
    wanted = dict.fromkeys((VIT, CNN), (pair,))
    finding, trained = _maps(effort, run, wanted, random=True), _maps(effort, run, wanted)
    statistics = dict(finding.statistics)
    for name in (each for each in (VIT, CNN) if each in PLANS[effort].encoders):
        for way in WAYS:
            mean = f"mean_xi_for_coefficients_from_0_to_1_{snake(way)}"
            here, there = (each.statistics[f"{snake(_title(name, pair))}_{mean}"] for each in (finding, trained))
            statistics[f"{snake(name)}_{mean}_random_minus_pre_trained"] = here.minus(there).named(
                f"{name}: mean ξ for coefficients from 0 to 1, {way}, random minus pre-trained"
            )
    return Finding(statistics, finding.arrays, finding.settings, finding.notes)


_LOCAL, _LOCAL_KEY = "share of the local energy on the task", "share_of_the_local_energy_on_the_task"


def _localised(name: str, effort: str, run: Run) -> tuple[dict[str, Number], dict[str, np.ndarray], int]:
    pair = _PAIRS[effort][0]
    found = study(name, effort, run, only=pair)
    task, control = (found.tasks[each] for each in pair)
    points = 12 if effort == "smoke" else 60 if effort == "laptop" else 200
    result = eigenfunction_localisation(
        found.encoder, found.heads[pair[0]], task, control, random=untrained(name, effort, run), points=points,
        classes=3 if effort == "smoke" else 10, name=name, seed=0, run=run.shared,
    )  # fmt: skip
    local = result.shares(result.energy)
    numbers = {
        f"{snake(name)}_{_LOCAL_KEY}_{snake(state)}": each.named(f"{name}: {_LOCAL}, {state}")
        for state, each in local.items()
    }
    numbers |= {
        f"{snake(name)}_the_same_by_singular_values_{snake(state)}": each.named(
            f"{name}: the same, by singular values, {state}"
        )
        for state, each in result.shares(result.weighted).items()
    }
    trained, random = local.values()
    numbers[f"{snake(name)}_{_LOCAL_KEY}_pre_trained_minus_random"] = trained.minus(random).named(
        f"{name}: {_LOCAL}, pre-trained minus random"
    )
    return numbers, dict(zip(result.states, result.energy, strict=True)), result.points


def _drawn_energy(finding: Finding, dark: bool) -> Figure:
    name = next(iter(finding.arrays)).partition(": ")[0]
    pair = finding.settings["pair"]
    return local_energy_figure(finding.arrays_of(name), int(finding.settings["points"]), (pair[0], pair[1]), dark=dark)


@figure(
    "6.9",
    title="Localisation of eigenfunctions, pre-trained and random (with figure 6.11)",
    claims=[
        claim
        for name in (VIT, CNN)
        for claim in (
            Claim(
                f"{name}: the eigenfunctions of a task are localised on it: {_LOCAL}.",
                f"{snake(name)}_{_LOCAL_KEY}_pre_trained",
                "at least",
                "concentrated in the points of the task",
                0.75,
            ),
            Claim(
                f"{name}: at random weights they are less so: {_LOCAL}, pre-trained minus random.",
                f"{snake(name)}_{_LOCAL_KEY}_pre_trained_minus_random",
                "at least",
                "poorer localisation",
                0.0,
            ),
            Claim(
                f"{name}: but not absent: {_LOCAL}, at random weights.",
                f"{snake(name)}_{_LOCAL_KEY}_random",
                "at least",
                "some localisation",
                0.5,
            ),
        )
    ],
    draw=_drawn_energy,
)
def figure_69(effort: str, run: Run) -> Finding:
    """Local energy of the eigenfunctions of a task at its points and at those of another one."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    count = 0
    for name in (each for each in PLANS[effort].encoders if each != TEXT):
        numbers, energies, count = _localised(name, effort, run)
        statistics |= numbers
        arrays |= {f"{name}: {state}": each for state, each in energies.items()}
    settings: dict[str, Any] = how(effort)
    return Finding(statistics, arrays, settings | {"pair": list(_PAIRS[effort][0]), "points": count}, NOTES)
