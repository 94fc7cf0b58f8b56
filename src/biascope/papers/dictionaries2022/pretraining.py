"""Figure 5.8: what pre-training on one image does to the dictionary of a SIREN."""

# R networks

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from biascope.families.family import Family
from biascope.families.network import Network
from biascope.papers.dictionaries2022 import faces
from biascope.papers.dictionaries2022.atoms import seen
from biascope.papers.dictionaries2022.faces import FEW, FROM_META, FROM_RANDOM, LAPTOP, NEW_SEED, PAPER, SETUP, SMOKE
from biascope.papers.dictionaries2022.meta import ENERGIES
from biascope.results.estimate import Estimate, over, spearman
from biascope.results.finding import Tell, figure
from biascope.results.plan import Plan, Row
from biascope.results.shows import curves
from biascope.results.wording import snake
from biascope.runs.run import Run
from biascope.training.fit import Trajectory
from biascope.training.meta import PRE_TRAINING, pretrained
from biascope.training.recipe import Recipe

_PUBLISHED = {"data": SETUP["data"], "side": 64, "pretrained_width": 256, "validation": 100}
#: How networks may have been pre-trained; the thesis does not say it. The last is its way to fine-tune meta-learned weights.
PRE_TRAININGS = {
    "Adam at 1e-5": dataclasses.replace(PRE_TRAINING, rate=1e-5),
    "Adam at 1e-4": PRE_TRAINING,
    "Adam at 1e-3": dataclasses.replace(PRE_TRAINING, rate=1e-3),
    "gradient descent at 1e-2": FROM_META,
}
_OPTIMISERS = {"optimisers": list(PRE_TRAININGS)}


def _pretrained(train: Tensor, recipe: Recipe, plan: Row, run: Run) -> tuple[Trajectory, dict[int, list[Network]]]:
    """SIRENs that learn a face each, and how they were at each mark."""
    count, marks = plan["pretrained_networks"], plan["marks"]
    family = Family.initialised(faces.siren(plan["pretrained_width"]), name="SIREN")
    recipe = dataclasses.replace(recipe, steps=marks[-1])
    task = faces.task(train[:count], run)
    walk = pretrained(family, task, recipe=recipe, keep_at=marks, seed=plan["seed"], run=run).require_finite()
    return walk, {mark: faces.members(walk.at(mark)) for mark in marks}


def _order(table: Mapping[int, np.ndarray]) -> Estimate:
    """Rank correlation of the marks with the concentrations of networks at each."""
    columns = np.array(list(table.values())).T
    return over([spearman(np.array(list(table), float), column) for column in columns], within=(-1.0, 1.0))


@figure(
    "5.8",
    title="Pre-training on a single image",
    plan=Plan({**SMOKE, **NEW_SEED}, {**LAPTOP, **NEW_SEED}, {**PAPER, **NEW_SEED}, _PUBLISHED),
    show=ENERGIES,
)
def figure_58(plan: Row, run: Run, tell: Tell) -> None:
    """SIRENs that learn a face each, looked at along the way with other faces."""
    (train, validation), run = faces.images(plan, run), run.shared
    walk, at_marks = _pretrained(train, PRE_TRAINING, plan, run)
    concentration: dict[int, np.ndarray] = {}
    psnr: dict[int, np.ndarray] = {}  # after few iterations and after all (2, R)
    lengths = (FEW, FROM_RANDOM.steps)
    for mark, networks in at_marks.items():
        through = seen(networks, validation, run)
        concentration[mark] = through.concentration.mean(-1)
        psnr[mark] = faces.finetuned(networks, validation, FROM_RANDOM, run)[0].mean(-1).T
        tell.array(f"{mark} iterations", through.curve, kind="curve")
        tell(f"concentration after {mark} iterations", over(concentration[mark], within=(0.0, 1.0)))
        for count, levels in zip(lengths, psnr[mark], strict=True):
            tell(f"PSNR after {count} iterations, {mark} of pre-training", over(levels))
    none, *later = plan["marks"]
    for mark in later:
        label = f"concentration after {mark} iterations of pre-training, minus none"
        gain = over(concentration[mark] - concentration[none])
        tell(label, gain, key=f"concentration_after_{mark}_iterations_minus_none")
    tell("rank correlation of iterations and concentration", _order(concentration))
    for place, count in enumerate(lengths):
        changes = [psnr[mark][place] - psnr[none][place] for mark in later]
        largest = over(max(changes, key=lambda change: float(change.mean())))
        label = f"largest change of PSNR after {count} iterations, over lengths of pre-training"
        tell(label, largest, "dB", key=f"largest_change_of_psnr_after_{count}_iterations")
    start, fitted = faces.fitted_levels(walk)
    tell("training PSNR of the pre-training image", over(fitted))
    gone = over(faces.removed(start, fitted))
    tell("share of the error on its image that pre-training removes", gone, "%", key="error_removed_by_pre_training")
    tell.note(
        "Each network learns another face, all pixels, with Adam at 1e-4; others are then learned with Adam at 1e-4 from half of their "
        "pixels. The text gives neither. Intervals are over networks.",
        "Networks 64 and 256 wide had been tried on 32 × 32 pixels when the claims were written. With three networks laptop effort "
        "left all three claims open, so it has six since then.",
    )


@figure(
    "5.8 settings",
    title="Pre-training on a single image with other optimisers",
    plan=Plan({**SMOKE, **_OPTIMISERS}, {**LAPTOP, **_OPTIMISERS}, {**PAPER, **_OPTIMISERS}, _PUBLISHED),
    show=curves("concentration", x="iterations of pre-training", y="concentration, change"),
)
def figure_58_settings(plan: Row, run: Run, tell: Tell) -> None:
    """The concentration of figure 5.8 for each optimiser, from the same initial weights."""
    (train, validation), run = faces.images(plan, run), run.shared
    orders: dict[str, Estimate] = {}
    gone: dict[str, Estimate] = {}
    for optimiser in plan["optimisers"]:
        walk, at_marks = _pretrained(train, PRE_TRAININGS[optimiser], plan, run)
        table = {mark: seen(each, validation, run).concentration.mean(-1) for mark, each in at_marks.items()}
        means = np.array([values.mean() for values in table.values()])
        tell.array(optimiser, np.stack([np.array(list(table), float), means - means[0]]), kind="concentration")
        orders[optimiser], gone[optimiser] = _order(table), over(faces.removed(*faces.fitted_levels(walk)))
        none, *_, longest = table.values()
        of, which, change = tell.about(optimiser), snake(optimiser), over(longest - none)
        of("rank correlation of iterations and concentration", orders[optimiser], key=f"rank_correlation_{which}")
        of("change of concentration by the longest pre-training", change, key=f"change_of_concentration_{which}")
        label = "share of the error on its image that pre-training removes"
        of(label, gone[optimiser], "%", key=f"error_removed_{which}")
    lowest, least = (min(each, key=lambda name: each[name].value) for each in (orders, gone))
    label = f"lowest rank correlation of iterations and concentration, {lowest}"
    tell(label, orders[lowest], key="lowest_rank_correlation_over_optimisers")
    label = f"least share of the error that pre-training removes, {least}"
    tell(label, gone[least], "%", key="least_error_removed_by_pre_training")
    tell.note(
        "The optimisers were chosen before the run. Intervals are over networks, each of which learns another face."
    )
