"""Figures 2, 3, 8, 12 and 13: the average geometry of networks in training, on images and on data made of the geometry itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from biascope.derivatives.matrices import flip
from biascope.families.family import Family
from biascope.measures.geometry_motion import GeometryMotion, geometry_motion
from biascope.papers.geometry2025.shared import (
    PROBES,
    PUBLISHED_LOOP,
    SPREAD,
    TITLES,
    cifar_2,
    error_of_a_difference,
    for_each,
    geometry_of,
    geometry_settings,
    halved,
    loop_of,
    published_geometry,
    released_activations,
    released_family,
    run_of,
    titles,
    without_normalisation,
)
from biascope.papers.selection import chosen, old_figure
from biascope.results.estimate import Estimate, Number, jackknife, over
from biascope.results.figures import lines_figure
from biascope.results.finding import Finding
from biascope.results.wording import snake
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.directions import random_labels
from biascope.tasks.task import Arrays
from biascope.training.fit import DivergedError
from biascope.training.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOSSES = {"cross-entropy": None, "squared loss": "squared"}
EARLY = 10  # epochs
DESCENT = Recipe("gd", rate=0.1, schedule="linear", momentum=0.9, clip=5.0, weight_decay=5e-4)
ADAM = Recipe("adam", rate=1e-3, schedule="constant", clip=5.0, batch=20_000)  # all samples


@dataclass(frozen=True)
class Plan:
    """Images of each class and test images, runs, epochs, networks that G is estimated from, inputs of each network."""

    each: int
    test: int
    runs: int
    epochs: int
    draws: int
    probes: int = 4


# Figure 2 by effort and network. Full batches must fit on a device: large networks have fewer images.
MOVING: dict[str, dict[str, Plan]] = {
    "smoke": {"lenet": Plan(12, 12, 2, 3, 16, 2)},
    "laptop": {"mlp": Plan(1000, 1000, 8, 100, 10_000), "lenet": Plan(1000, 1000, 5, 100, 10_000)},
    "paper": {
        "mlp": Plan(5000, 2000, 25, 100, 10_000, 16),
        "lenet": Plan(5000, 2000, 25, 100, 10_000, 16),
        "resnet18": Plan(1000, 1000, 4, 100, 8000),
        "vit": Plan(1000, 1000, 4, 100, 8000),
    },
}
RANDOM: dict[str, dict[str, Plan]] = {  # figure 8
    "smoke": MOVING["smoke"],
    "laptop": {"mlp": Plan(1000, 1000, 8, 200, 10_000), "lenet": Plan(250, 1000, 5, 300, 10_000)},
    "paper": {
        "mlp": Plan(5000, 2000, 25, 200, 10_000, 16),
        # 500 steps on all of 10,000 images, 25 times, would be a minute of a whole H200: two fifths of the published number.
        "lenet": Plan(2000, 2000, 25, 500, 10_000, 16),
        "vgg11": Plan(1000, 1000, 4, 200, 8000),
        "resnet18": Plan(1000, 1000, 4, 200, 8000),
    },
}


def _rate(name: str, optimiser: str) -> float:
    """The authors' rates."""
    if optimiser == "adam":
        return 1e-4 if name in ("resnet18", "vit") else 1e-3
    return 0.01 if name == "mlp" else 0.1


def _moved(name: str, plan: Plan, data: Arrays, run: Run, recipe: Recipe) -> tuple[GeometryMotion, float]:
    """Training at the rate, or at the first of its tenths at which it stays finite; and that rate."""
    family = released_family(name, data.shape, "relu", plain=True)
    try:
        found = geometry_motion(
            family,
            data,
            runs=plan.runs,
            recipe=recipe,
            checkpoints=10,
            probes=plan.probes,
            scale=1.0,  # as published for this figure
            geometry_draws=plan.draws,
            readout="first",
            seed=0,
            run=run_of(family, run),
        )
    except DivergedError:
        if recipe.rate < 1e-5:
            raise
        return _moved(name, plan, data, run, dataclasses.replace(recipe, rate=recipe.rate / 10))
    return found, recipe.rate


def _early(motion: GeometryMotion) -> int:
    """The checkpoint nearest to the epoch that counts as early, never the first."""
    return max(1, int(np.abs(motion.epochs - EARLY).argmin()))


def _drawn(finding: Finding, dark: bool) -> Figure:
    curves = {name: each for name, each in finding.curves_of("curve").items() if "squared" not in name}
    return lines_figure(curves, x="epoch", y="correlation", dark=dark)


def _motion_finding(plans: dict[str, Plan], effort: str, run: Run, losses: tuple[str, ...], *, chance: bool) -> Finding:
    base = ADAM if chance else DESCENT
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    words: dict[str, str] = {}
    reached: dict[str, float] = {}
    for name, plan in plans.items():
        data = cifar_2(plan.each, plan.test, run)
        data = halved(data) if effort == "smoke" else data
        if chance:
            x, y = data.splits["train"]
            random = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))]  # as many of each class
            data = dataclasses.replace(data, splits={**data.splits, "train": (x, random)})
        words[name] = data.name
        for label in losses:
            # The squared loss is that of theory, without decay of weights; at the published rate it diverges.
            terms: dict[str, Any] = {"rate": _rate(name, base.optimiser)}
            terms |= {"rate": 1e-3, "weight_decay": 0.0} if label == "squared loss" else {}
            recipe = dataclasses.replace(base, epochs=plan.epochs, loss=LOSSES[label], **terms)
            motion, taken = _moved(name, plan, data, run, recipe)
            if label == "cross-entropy":
                reached[name] = taken
            title, early = f"{TITLES[name]}, {label}", _early(motion)
            key, growth = snake(title), "growth of the correlation with GSG"
            accuracy = over(100 * motion.train_accuracy[-1], within=(0, 100))
            statistics |= {
                f"{key}_rate": Estimate.exact(taken).named(f"{title}: rate"),
                f"{key}_first_growth_of_the_correlation_with_gsg": motion.change("GSG", 1).named(
                    f"{title}: first {growth}"
                ),
                f"{key}_early_growth_of_the_correlation_with_gsg": motion.change("GSG", early).named(
                    f"{title}: early {growth}"
                ),
                f"{key}_early_correlation_with_gsg": motion.level("GSG", early).named(
                    f"{title}: early correlation with GSG"
                ),
                f"{key}_lead_of_gsg_over_s": motion.lead(early).named(f"{title}: lead of GSG over S"),
                # GSG is known from random draws.
                f"{key}_correlation_of_the_identity_with_gsg": Estimate(float(motion.chance[0])).named(
                    f"{title}: correlation of the identity with GSG"
                ),
                f"{key}_training_accuracy_percent": accuracy.named(f"{title}: training accuracy", "%"),
            }
            for place, reference in ((0, "GSG"), (1, "S")):
                rows = np.stack([motion.epochs.astype(float), motion.plain[:, place]])
                arrays[f"curve: {TITLES[name]} with {reference}{'' if label == 'cross-entropy' else ', ' + label}"] = (
                    rows
                )
    notes = (
        "Correlations as published, of the mean over runs; errors by leaving out one run at a time.",
        "Positive matrices always correlate: the correlation of the identity with GSG is what chance gives, not 0.02.",
        "G is estimated from so many draws. Fewer than the inputs' 3,072 numbers would make GSG differ from S by noise alone.",
        "Squared loss is trained at a rate of 0.001: at the published 0.1 it diverges.",
        "Where training diverges at a rate, a tenth of it is taken, and so on: the rate stands among the numbers.",
        f"About epoch {EARLY} is the checkpoint nearest to it: epoch 7 of 200, epoch 10 of 100 and of 500.",
    )
    settings = _moving_settings(plans, base, reached) | for_each("samples", words)
    return Finding(statistics, arrays, settings, notes)


def _moving_settings(plans: dict[str, Plan], recipe: Recipe, rates: dict[str, float]) -> dict[str, Any]:
    """Settings of figures 2 and 8."""
    shared = {"schedule": recipe.schedule, "clip": recipe.clip, "weight decay": recipe.weight_decay}
    settings: dict[str, Any] = {"networks": titles(plans), "optimiser": recipe.optimiser, **shared}
    settings |= {"batch": "all samples", "outputs": 2, "seed": 0}
    settings |= {"momentum": recipe.momentum} if recipe.optimiser == "gd" else {}
    settings |= for_each("rate", rates)
    for setting, field in (("images of each class", "each"), ("runs", "runs"), ("epochs", "epochs")):
        settings |= for_each(setting, {name: getattr(plan, field) for name, plan in plans.items()})
    settings |= released_activations(plans, "ReLU") | without_normalisation(plans)
    settings |= for_each("draws of G", {name: plan.draws for name, plan in plans.items()})
    settings |= for_each("inputs per draw of G", {name: plan.probes for name, plan in plans.items()})
    settings |= for_each("spread of the inputs for G", dict.fromkeys(plans, 1.0))
    return settings


def _published_motion(names: Sequence[str], settings: dict[str, Any]) -> dict[str, Any]:
    """The authors' settings for figures 2 and 8; the text has no weight decay."""
    return {
        "networks": titles(names),
        "clip": 5.0,
        "batch": "all samples",
        "outputs": 2,
        **for_each("images of each class", dict.fromkeys(names, 5000)),
        **for_each("runs", dict.fromkeys(names, 25)),
        **released_activations(names, "ReLU"),
        **without_normalisation(names),
        **for_each("draws of G", dict.fromkeys(names, 100_000)),
        **for_each("inputs per draw of G", dict.fromkeys(names, 128)),
        **for_each("spread of the inputs for G", dict.fromkeys(names, 1.0)),
        **settings,
    }


_MOVED, _MOVED_AT_RANDOM = ("mlp", "lenet", "resnet18", "vit"), ("mlp", "lenet", "vgg11", "resnet18")


@old_figure(
    "2",
    networks=MOVING,
    title="Correlation of the geometry in training with GSG and with S (CIFAR-2)",
    show=_drawn,
    published=_published_motion(
        _MOVED,
        {
            "optimiser": "gd",
            "schedule": "linear",
            "weight decay": 5e-4,
            "momentum": 0.9,
            **for_each("rate", {name: _rate(name, "gd") for name in _MOVED}),
            **for_each("epochs", dict.fromkeys(_MOVED, 100)),
        },
    ),
)
def figure_2(effort: str, run: Run) -> Finding:
    """Full-batch gradient descent on true labels, by cross-entropy as published and by squared loss as in theory."""
    losses = ("cross-entropy",) if effort == "smoke" else tuple(LOSSES)
    return _motion_finding(chosen(MOVING[effort]), effort, run, losses, chance=False)


@old_figure(
    "8",
    networks=RANDOM,
    title="The same with random labels",
    show=_drawn,
    published=_published_motion(
        _MOVED_AT_RANDOM,
        {
            "optimiser": "adam",
            "schedule": "constant",
            "weight decay": 0.0,
            **for_each("rate", {name: _rate(name, "adam") for name in _MOVED_AT_RANDOM}),
            **for_each("epochs", {name: 500 if name == "lenet" else 200 for name in _MOVED_AT_RANDOM}),
        },
    ),
)
def figure_8(effort: str, run: Run) -> Finding:
    """Adam on random labels."""
    return _motion_finding(chosen(RANDOM[effort]), effort, run, ("cross-entropy",), chance=True)


@dataclass(frozen=True)
class OnCovariance:
    """Training samples, runs, epochs, networks that G is estimated from, checkpoints after the start, side of the images."""

    samples: int
    runs: int
    epochs: int
    draws: int
    checkpoints: int
    side: int = 32
    batch: int = 128


_COVARIANCES: dict[str, dict[str, OnCovariance]] = {
    "smoke": {"lenet": OnCovariance(64, 2, 2, 16, 2, side=16)},
    "laptop": {"mlp": OnCovariance(10_000, 3, 50, 4000, 5), "lenet": OnCovariance(10_000, 3, 50, 4000, 5)},
    "paper": {
        "mlp": OnCovariance(10_000, 5, 50, 10_000, 50),
        "lenet": OnCovariance(10_000, 25, 100, 10_000, 100),
        "resnet18": OnCovariance(10_000, 2, 50, 4000, 10),
        "vit": OnCovariance(10_000, 2, 50, 4000, 10),
    },
}
ALIVE = 1e-3  # size of the geometry after training, relative to the start, below which units have died
PROBED = 16  # inputs from N(0, I) of each network for G^t; the authors' code has 128
COMMON = Recipe("sgd", rate=0.1, schedule="linear", momentum=0.9, clip=0.5, batch=128)


def gaussian_data(family: Family, shape: tuple[int, int, int], kind: str, draws: int, samples: int, run: Run) -> Arrays:
    """Data of covariance G or flip(G) with random labels; kept, since the rounding of eigenvectors is not the same in all processes.

    Trainings are stored under the content of their data, so that data computed afresh might not find them again.
    """

    def work(key: str) -> Outcome:
        geometry = geometry_of(family, shape, draws, run, scale=SPREAD)
        covariance = geometry if key == "G" else flip(geometry)
        data = random_labels(covariance, shape, train=samples, test=16, seed=0, run=run)
        return dict(zip(("x", "y"), (part.cpu() for part in data.splits["train"]), strict=True))

    trials = Trials(
        "Gaussian data",
        run.shared,
        code=(work, geometry_of),
        at=shape,
        family=family,
        draws=draws,
        samples=samples,
        scale=SPREAD,
    )
    found = next(trials.outcomes([kind], work))
    return Arrays({"train": (found["x"], found["y"])})


def _on_covariances(name: str, plan: OnCovariance, run: Run) -> dict[str, GeometryMotion]:
    """A network trained on random labels of data made of its own geometry, and of the same turned over."""
    shape = (1, plan.side, plan.side)
    family = released_family(name, shape, "relu", plain=True)
    found = {}
    for kind in ("G", "flip(G)"):
        found[kind] = geometry_motion(
            family,
            gaussian_data(family, shape, kind, plan.draws, plan.samples, run),
            runs=plan.runs,
            recipe=dataclasses.replace(COMMON, epochs=plan.epochs, batch=plan.batch),
            checkpoints=plan.checkpoints + 1,
            even=True,
            probes=PROBED,
            scale=1.0,
            geometry_draws=2,  # G^t is compared with itself alone
            readout="first",
            seed=0,
            run=run_of(family, run),
        )
    return found


def _velocity(epochs: int) -> str:
    """Between which checkpoints it is taken, in words."""
    return "between consecutive epochs" if epochs == 1 else f"over about {epochs} epochs"


def _published_covariances(names: Sequence[str], settings: dict[str, Any]) -> dict[str, Any]:
    """The authors' settings for random labels on Gaussian data."""
    return {
        "networks": titles(names),
        **for_each("epochs", {name: 100 if name == "lenet" else 50 for name in names}),
        **for_each("runs", dict.fromkeys(names, 25)),
        **{name: value for name, value in PUBLISHED_LOOP.items() if name != "batch"},
        "weight decay": 0.0,
        "outputs": 2,
        "labels": "half 0, half 1",
        **for_each("velocity", dict.fromkeys(names, _velocity(1))),
        **released_activations(names, "ReLU"),
        **without_normalisation(names),
        **published_geometry(names, SPREAD),
        **settings,
    }


def _settings_on_covariances(plans: dict[str, OnCovariance], settings: dict[str, Any]) -> dict[str, Any]:
    """The same of a run."""
    return {
        "networks": titles(plans),
        **for_each("epochs", {name: plan.epochs for name, plan in plans.items()}),
        **for_each("runs", {name: plan.runs for name, plan in plans.items()}),
        **{name: value for name, value in loop_of(COMMON).items() if name != "batch"},
        "outputs": 2,
        "labels": "half 0, half 1",
        **for_each("velocity", {name: _velocity(plan.epochs // plan.checkpoints) for name, plan in plans.items()}),
        "data": "the same for all runs",
        **released_activations(plans, "ReLU"),
        **without_normalisation(plans),
        **geometry_settings({name: plan.draws for name, plan in plans.items()}, PROBES, dict.fromkeys(plans, SPREAD)),
        **settings,
        "seed": 0,
    }


def _drawn_velocity(finding: Finding, dark: bool) -> Figure:
    return lines_figure(finding.curves_of("accuracy", 100), x="epoch", y="training accuracy, %", dark=dark)


def settings_3(effort: str) -> dict[str, Any]:
    """Settings of figure 3 at an effort."""
    plans = chosen(_COVARIANCES[effort])
    samples = for_each("samples", {name: plan.samples for name, plan in plans.items()})
    return _settings_on_covariances(plans, {**samples, "batch": 128})


@old_figure(
    "3",
    networks=_COVARIANCES,
    title="Velocity of the geometry and training accuracy on data of covariance G and of flip(G), random labels",
    show=_drawn_velocity,
    published=_published_covariances(_MOVED, {**for_each("samples", dict.fromkeys(_MOVED, 10_000)), "batch": 128}),
)
def figure_3(effort: str, run: Run) -> Finding:
    """Random labels on Gaussian data of two covariances."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, plan in chosen(_COVARIANCES[effort]).items():
        found, title = _on_covariances(name, plan, run), TITLES[name]
        statistics |= _compared(title, found, plan.samples)
        for kind, motion in found.items():
            arrays[f"accuracy: {title}, {kind}"] = np.stack(
                [motion.epochs.astype(float), motion.train_accuracy.mean(1)]
            )
            arrays[f"velocity: {title}, {kind}"] = np.stack([motion.epochs[1:].astype(float), motion.velocity])
    notes = (
        "Gᵗ is averaged over runs before velocities are taken, at fixed inputs from N(0, I). The authors' code has new inputs in "
        "every epoch, whose noise adds to the velocity.",
    )
    return Finding(statistics, arrays, settings_3(effort), notes)


def _velocity_ratio(found: dict[str, GeometryMotion]) -> Estimate:
    """The mean velocity on G over that on flip(G), with the jackknife's error over runs, which start from the same weights."""

    def ratio(one: np.ndarray, two: np.ndarray) -> np.ndarray:
        return np.asarray(one.mean(0) / np.maximum(two.mean(0), 1e-12))

    one, two = found["G"], found["flip(G)"]
    value = float(ratio(one.velocity, two.velocity))
    error = jackknife(value, ratio(one.velocity_left_out, two.velocity_left_out).tolist()).standard_error
    return Estimate.from_error(value, error, one.runs)


def _compared(title: str, found: dict[str, GeometryMotion], samples: int) -> dict[str, Number]:
    """The two kinds of data side by side, each of so many samples."""
    key, last = snake(title), {kind: 100 * motion.train_accuracy[-1] for kind, motion in found.items()}
    gap = 100 * (found["G"].train_accuracy[-1] - found["flip(G)"].train_accuracy[-1])
    own = error_of_a_difference(float(last["G"].mean()), float(last["flip(G)"].mean()), samples)
    # With one answer for all samples, accuracy is the share of a class: a half.
    answers = 100.0 * ~np.isclose(last["flip(G)"], 50.0, rtol=0, atol=1e-4)
    responds = 100.0 * (found["flip(G)"].size[-1] > ALIVE)
    return {
        f"{key}_velocity_on_g_over_flip_g": _velocity_ratio(found).named(f"{title}: velocity on G over flip(G)"),
        f"{key}_runs_on_flip_g_with_more_than_one_answer_percent": Estimate(float(answers.mean())).named(
            f"{title}: runs on flip(G) with more than one answer", "%"
        ),
        f"{key}_networks_on_flip_g_respond_to_inputs_percent": Estimate(float(responds)).named(
            f"{title}: networks on flip(G) respond to inputs", "%"
        ),
        **{
            f"{key}_training_accuracy_on_{snake(kind)}_percent": over(accuracy, within=(0, 100)).named(
                f"{title}: training accuracy on {kind}", "%"
            )
            for kind, accuracy in last.items()
        },
        f"{key}_training_accuracy_on_g_minus_flip_g": over(gap, samples=own, within=(-100.0, 100.0)).named(
            f"{title}: training accuracy on G minus flip(G)", "points"
        ),
    }


_Growing = tuple[tuple[int, ...], OnCovariance]  # training sizes, and the plan of the smallest
# Figures 12 and 13. Those of 10,000 samples are the trainings of figure 3, LeNet's with fewer runs.
_GROWING: dict[str, dict[str, _Growing]] = {
    "smoke": {"lenet": ((32, 64), OnCovariance(32, 2, 1, 16, 1, side=16))},
    "laptop": {"lenet": ((2500, 10_000), OnCovariance(2500, 3, 50, 10_000, 1))},
    "paper": {
        "lenet": ((10_000, 20_000), OnCovariance(10_000, 5, 100, 10_000, 1)),
        "resnet18": ((10_000, 20_000), OnCovariance(10_000, 2, 50, 4000, 1)),
    },
}


def _plan_of(size: int, growing: _Growing, growing_batch: bool) -> OnCovariance:
    sizes, plan = growing
    batch = plan.batch * size // sizes[0] if growing_batch else plan.batch
    return dataclasses.replace(plan, samples=size, batch=batch)


def _gap_by_size(plans: dict[str, _Growing], run: Run, *, growing_batch: bool) -> Finding:
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, growing in plans.items():
        title, key = TITLES[name], snake(TITLES[name])
        gaps, accuracies, reached = [], [], []
        for size in growing[0]:
            found = _on_covariances(name, _plan_of(size, growing, growing_batch), run)
            statistics |= _compared(f"{title}, {size:,} samples", found, size)
            gaps.append(100 * (found["G"].train_accuracy[-1] - found["flip(G)"].train_accuracy[-1]))
            accuracies.append([found[kind].train_accuracy[-1].mean() for kind in ("G", "flip(G)")])
            reached.append(over(100 * found["G"].train_accuracy[-1], within=(0, 100)))
        statistics |= {
            f"{key}_gap_at_the_largest_size_minus_gap_at_the_smallest": over(
                gaps[-1] - gaps[0], within=(-200.0, 200.0)
            ).named(f"{title}: gap at the largest size minus gap at the smallest", "points"),
            f"{key}_gap_at_the_largest_size": over(gaps[-1], within=(-100.0, 100.0)).named(
                f"{title}: gap at the largest size", "points"
            ),
            f"{key}_training_accuracy_on_g_at_the_smallest_size": reached[0].named(
                f"{title}: training accuracy on G at the smallest size", "%"
            ),
            f"{key}_training_accuracy_on_g_at_the_largest_size": reached[-1].named(
                f"{title}: training accuracy on G at the largest size", "%"
            ),
        }
        for column, kind in enumerate(("G", "flip(G)")):
            arrays[f"accuracy: {title}, {kind}"] = np.stack(
                [np.array(growing[0], float), np.array(accuracies)[:, column]]
            )
    notes = (
        "The paper shows ResNet-18. LeNet is ours: it has 60,000 weights, so that more samples are harder to fit on G too.",
    )
    return Finding(statistics, arrays, settings_by_size(plans, growing_batch), notes)


def settings_by_size(plans: dict[str, _Growing], growing_batch: bool) -> dict[str, Any]:
    """Settings of figures 12 and 13."""
    batches = {
        name: [_plan_of(size, growing, growing_batch).batch for size in growing[0]] for name, growing in plans.items()
    }
    sizes = {name: list(growing[0]) for name, growing in plans.items()}
    return _settings_on_covariances(
        {name: growing[1] for name, growing in plans.items()}, for_each("samples", sizes) | for_each("batch", batches)
    )


_SIZES = [10_000, 20_000, 40_000, 60_000, 80_000, 100_000]


def _drawn_sizes(finding: Finding, dark: bool) -> Figure:
    return lines_figure(
        finding.curves_of("accuracy", 100), x="training samples", y="training accuracy, %", log_x=True, dark=dark
    )


@old_figure(
    "12",
    networks=_GROWING,
    title="Training accuracy on covariances G and flip(G) for more and more samples, fixed batches",
    show=_drawn_sizes,
    published=_published_covariances(
        ("resnet18",), {"samples: ResNet-18": _SIZES, "batch: ResNet-18": [128] * len(_SIZES)}
    ),
)
def figure_12(effort: str, run: Run) -> Finding:
    """More samples, hence more iterations."""
    return _gap_by_size(chosen(_GROWING[effort]), run, growing_batch=False)


@old_figure(
    "13",
    networks=_GROWING,
    title="The same with batches that grow with the data",
    show=_drawn_sizes,
    published=_published_covariances(
        ("resnet18",),
        {"samples: ResNet-18": _SIZES, "batch: ResNet-18": [128 * size // 10_000 for size in _SIZES]},
    ),
)
def figure_13(effort: str, run: Run) -> Finding:
    """As many iterations for every size."""
    return _gap_by_size(chosen(_GROWING[effort]), run, growing_batch=True)
