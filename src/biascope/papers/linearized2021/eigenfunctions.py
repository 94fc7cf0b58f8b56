"""Figures 4.2, 4.3, B.1–B.4 and the text of B.2: learning the eigenfunctions of a network's own tangent kernel."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from biascope.families.family import Family
from biascope.networks import builder
from biascope.papers.linearized2021.shared import (
    BINARY,
    COMMON,
    NETWORKS,
    ON_IMAGES,
    PUBLISHED_ON_EIGENFUNCTIONS,
    RECIPE,
    TITLES,
    Learned,
    best_and_median,
    eigenfunctions,
    fall_and_mean,
    images,
    learned,
    learned_by_kernel,
    linearised,
    mean_of,
    settings_of,
    start_of,
)
from biascope.papers.selection import chosen, old_figure
from biascope.results.estimate import Estimate, Number, bootstrapped, spearman
from biascope.results.figures import lines_figure
from biascope.results.finding import Finding
from biascope.results.wording import snake
from biascope.runs.randomness import forked_rng, generator_for, seed_of
from biascope.runs.run import Run
from biascope.tasks.task import Arrays
from biascope.training.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Plan:
    """Training and test samples, epochs, and the indices of the eigenfunctions that are learned."""

    sizes: tuple[int, int]
    epochs: int
    indices: tuple[int, ...]


_NEAR = (1, 2, 5, 10, 20, 50, 100, 200, 300)
_WIDE = (1, 5, 20, 50, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000)
PLANS: dict[str, dict[str, Plan]] = {  # by effort and network
    "smoke": {name: Plan((96, 48), 2, (1, 4, 16)) for name in ("mlp", "lenet")},
    "laptop": {name: Plan((3000, 1000), 25, _NEAR) for name in ("mlp", "lenet")},
    "paper": {
        **{name: Plan((50_000, 10_000), 100, _WIDE) for name in ("mlp", "lenet")},
        "resnet18": Plan((8000, 4000), 30, (1, 2, 5, 10, 20, 50, 100, 200, 300, 500, 700, 1000)),
    },
}


# LeNet with Adam learns fewer of them, in fewer epochs: its linearisation has no kernel to be trained by.
ADAM_PLANS: dict[str, dict[str, Plan]] = {
    **PLANS,
    "paper": {**PLANS["paper"], "lenet": Plan((50_000, 10_000), 40, (1, 20, 100, 300, 600, 1000))},
}


def published(names: tuple[str, ...], train: int = 50_000) -> dict[str, Any]:
    """The authors' settings of a figure about some networks."""
    per_network = {
        "training samples": train,
        "test samples": 10_000,
        "epochs": 100,
        "eigenfunctions": 1000,
    }
    each = {f"{what}: {TITLES[name]}": number for name in names for what, number in per_network.items()}
    activations = {f"activation: {TITLES[name]}": PUBLISHED_ON_EIGENFUNCTIONS[name] for name in names}
    return {**COMMON, "momentum": 0.9, **each, **activations}


def settings_for(plans: dict[str, Plan], recipe: Recipe, samples: dict[str, Arrays]) -> dict[str, Any]:
    """The settings of a run, under the keys of :func:`published`."""
    found = settings_of(recipe, list(plans)) | {"seed": 0}
    for name, plan in plans.items():
        found |= {
            f"samples: {TITLES[name]}": samples[name].name,
            f"training samples: {TITLES[name]}": samples[name].sizes["train"],
            f"test samples: {TITLES[name]}": samples[name].sizes["test"],
            f"epochs: {TITLES[name]}": plan.epochs,
            f"eigenfunctions: {TITLES[name]}": max(plan.indices),
            f"learned: {TITLES[name]}": list(plan.indices),
        }
    return found


def targets_of(name: str, plan: Plan, run: Run, data: str = "cifar10") -> tuple[Family, Arrays, dict[str, Tensor]]:
    """A network at initialisation, samples, and the binarised eigenfunctions of its kernel on them."""
    samples = images(data, _whole(plan.sizes) if data == "mnist" else plan.sizes, run)
    family = start_of(name, samples.shape)
    return family, samples, eigenfunctions(family, samples, max(plan.indices), run).labels(plan.indices)


def _whole(sizes: tuple[int, int]) -> tuple[int, int]:
    """All of MNIST where all of CIFAR-10 is meant."""
    return (60_000, 10_000) if sizes == (50_000, 10_000) else sizes


def accuracies(
    effort: str,
    run: Run,
    *,
    data: str = "cifar10",
    recipe: Recipe = RECIPE,
    names: tuple[str, ...],
    plans: dict[str, Plan] | None = None,
) -> Finding:
    """Accuracy against the index for networks and linearisations."""
    plans = chosen({name: plan for name, plan in (plans or PLANS[effort]).items() if name in names})
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    taken: dict[str, Arrays] = {}
    for name, plan in plans.items():
        title, places = TITLES[name], np.array(plan.indices, float)
        family, samples, labels = targets_of(name, plan, run, data)
        how = dataclasses.replace(recipe, epochs=plan.epochs)
        taken[name] = samples
        network = learned(family, samples, labels, how, run)
        # By its kernel matrix a large linear model takes seconds instead of minutes; the outputs are the same.
        large = name == "resnet18"
        line = (
            learned_by_kernel(family, samples, labels, how, run)
            if large
            else learned(linearised(family), samples, labels, how, run)
        )
        for subject, found in ((title, network), (f"linearised {title}", line)):
            arrays[f"accuracy: {subject}"] = np.stack([places, found.accuracy])
            arrays[f"training accuracy: {subject}"] = np.stack([places, found.train_accuracy])
            statistics |= fall_and_mean(subject, found, places)
        statistics[f"{snake(title)}_rank_correlation_of_its_accuracy_and_that_of_the_linearisation"] = bootstrapped(
            spearman, network.accuracy, line.accuracy
        ).named(f"{title}: rank correlation of its accuracy and that of the linearisation")
        lead = 100 * (line.accuracy - network.accuracy)
        statistics[f"{snake(title)}_lead_of_the_linearisation"] = mean_of(lead).named(
            f"{title}: lead of the linearisation", "points"
        )
        sides = [lead[places <= 500], lead[places > 500]]
        if all(len(side) for side in sides):
            statistics[f"{snake(title)}_smaller_lead_of_the_linearisation_before_and_after_500"] = mean_of(
                min(sides, key=np.mean)
            ).named(f"{title}: smaller lead of the linearisation, before and after φ_500", "points")
        crossing = _crossing(places, lead)
        if crossing is not None:
            statistics[f"{snake(title)}_index_where_the_curves_cross"] = Estimate(crossing).named(
                f"{title}: index where the curves cross"
            )
    return Finding(statistics, arrays, settings_for(plans, recipe, taken))


def _crossing(places: np.ndarray, lead: np.ndarray) -> float | None:
    """Where the lead changes its sign for the last time, between two indices in proportion."""
    turns = np.flatnonzero(np.sign(lead[1:]) * np.sign(lead[:-1]) < 0)
    if not len(turns):
        return None
    i = int(turns[-1])
    return float(places[i] + (places[i + 1] - places[i]) * lead[i] / (lead[i] - lead[i + 1]))


def drawn_accuracies(finding: Finding, dark: bool) -> Figure:
    """Curves of accuracy against the index."""
    return lines_figure(
        finding.curves_of("accuracy", 100), x="index ρ of the eigenfunction", y="test accuracy, %", dark=dark
    )


@old_figure(
    "4.2",
    networks=PLANS,
    title="Networks and their linearisations on the binarised eigenfunctions of the tangent kernel (CIFAR-10)",
    show=drawn_accuracies,
    published=published(("mlp", "lenet", "resnet18")),
)
def figure_42(effort: str, run: Run) -> Finding:
    """Accuracy on sign(φ_ρ)."""
    return accuracies(effort, run, names=("mlp", "lenet", "resnet18"))


@old_figure(
    "B.1",
    networks=ADAM_PLANS,
    title="The same with Adam",
    show=drawn_accuracies,
    published={
        key: value
        for key, value in (published(("mlp", "lenet", "resnet18")) | {"optimiser": "adam"}).items()
        if key not in ("rate", "momentum")  # the thesis does not give Adam's rate
    },
)
def figure_b1(effort: str, run: Run) -> Finding:
    """Accuracy on sign(φ_ρ), trained with Adam."""
    recipe = dataclasses.replace(RECIPE, optimiser="adam", rate=1e-3, momentum=0.0)
    found = accuracies(effort, run, recipe=recipe, names=("mlp", "lenet"), plans=ADAM_PLANS[effort])
    return dataclasses.replace(found, notes=("The thesis does not give Adam's rate; 0.001 was chosen.",))


_SMALL_NETWORKS = {effort: [name for name in plans if name != "resnet18"] for effort, plans in PLANS.items()}


@old_figure(
    "B.2",
    networks=_SMALL_NETWORKS,
    title="The same on MNIST",
    show=drawn_accuracies,
    published=published(("mlp", "lenet"), 60_000),
)
def figure_b2(effort: str, run: Run) -> Finding:
    """Accuracy on sign(φ_ρ) of MNIST."""
    return accuracies(effort, run, data="mnist", names=("mlp", "lenet"))


# Samples, epochs and eigenfunctions of the trials with other settings.
_TRIED: dict[str, Plan] = {
    "smoke": Plan((96, 48), 2, (1, 16)),
    "laptop": Plan((4000, 1000), 25, (100, 300, 450, 600, 800, 1000)),
    "paper": Plan((10_000, 5000), 100, (100, 300, 450, 600, 800, 1000)),
}
#: What LeNet and its inputs are changed to; nothing for figure B.2's own. Eigenfunctions are those of the changed network's kernel.
VARIANTS: dict[str, dict[str, Any]] = {
    "as in figure B.2": {},
    "GELU": {"activation": "gelu"},
    "max-pooling": {"pooling": "max"},
    "convolutions without padding": {"padding": "valid"},
    "pixels from 0 to 1": {"pixels": True},
    "four times the rate": {"rate": 0.2},
}


def tried(words: str, effort: str, run: Run) -> tuple[Learned, Learned]:
    """LeNet and its linearisation on MNIST's eigenfunctions with one setting changed."""
    plan, changes = _TRIED[effort], dict(VARIANTS[words])
    samples = images("mnist", plan.sizes, run)
    if changes.pop("pixels", False):
        low, high = (float(getattr(samples.whole("train")[0], end)()) for end in ("min", "max"))
        scaled = {split: ((x - low) / (high - low), y) for split, (x, y) in samples.splits.items()}
        samples = dataclasses.replace(samples, splits=scaled)
    rate = changes.pop("rate", RECIPE.rate)
    settings = {**NETWORKS["lenet"], "activation": ON_IMAGES, **changes}
    build = functools.partial(
        builder("lenet"), channels=samples.shape[0], image_size=samples.shape[1], outputs=1, **settings
    )
    with forked_rng(seed_of(0, "initialisation of chapter 4", "lenet")):
        family = Family.point(build(), name=f"LeNet, {words}")
    labels = eigenfunctions(family, samples, max(plan.indices), run).labels(plan.indices)
    recipe = dataclasses.replace(RECIPE, epochs=plan.epochs, rate=rate)
    return learned(family, samples, labels, recipe, run), learned_by_kernel(family, samples, labels, recipe, run)


@old_figure(
    "B.2 settings",
    title="LeNet and its linearisation on MNIST with other settings than those of figure B.2",
    show=lambda finding, dark: lines_figure(
        finding.curves_of("lead"), x="index ρ of the eigenfunction", y="lead of the linearisation, points", dark=dark
    ),
    published=published(("lenet",), 60_000),
)
def figure_b2_settings(effort: str, run: Run) -> Finding:
    """The lead of the linearisation before and after φ_500 for each setting; the smallest decides."""
    plan = _TRIED[effort]
    places = np.array(plan.indices, float)
    middle = 500 if effort != "smoke" else 8
    arrays: dict[str, np.ndarray] = {}
    statistics: dict[str, Number] = {}
    leads: list[Estimate] = []
    fitted: dict[str, list[float]] = {"LeNet": [], "linearised LeNet": []}
    notes: list[str] = []
    for words in VARIANTS:
        network, line = tried(words, effort, run)
        lead = 100 * (line.accuracy - network.accuracy)
        arrays[f"lead: {words}"] = np.stack([places, lead])
        best = [100 * float(np.nanmax(found.train_accuracy)) for found in (network, line)]
        sides = [mean_of(lead[side]) for side in (places <= middle, places > middle)]
        least = min(sides, key=lambda each: each.value)
        statistics[f"lead_of_the_linearisation_{snake(words)}"] = least.named(
            f"smaller lead of the linearisation before and after φ_500, {words}", "points"
        )
        for when, side in zip(("before", "after"), sides, strict=True):
            statistics[f"lead_of_the_linearisation_{when}_500_{snake(words)}"] = side.named(
                f"lead of the linearisation {when} φ_500, {words}", "points"
            )
        for title, found, most in zip(fitted, (network, line), best, strict=True):
            arrays[f"training accuracy: {title}, {words}"] = np.stack([places, found.train_accuracy])
            middling = Estimate(100 * float(np.nanmedian(found.train_accuracy)))
            statistics |= {
                f"{snake(title)}_best_training_accuracy_{snake(words)}": Estimate(most).named(
                    f"{title}: best training accuracy, {words}", "%"
                ),
                f"{snake(title)}_median_training_accuracy_{snake(words)}": middling.named(
                    f"{title}: median training accuracy, {words}", "%"
                ),
            }
        if not all(BINARY.passes(Estimate(value)) for value in best):
            notes.append(f"Left out, because one of the two did not train: {words}.")
            continue
        leads.append(least)
        for values, value in zip(fitted.values(), best, strict=True):
            values.append(value)
    if leads:
        smallest = min(leads, key=lambda each: each.value)
        statistics["smallest_lead_of_the_linearisation_over_settings"] = smallest.named(
            "smallest lead of the linearisation over settings", "points"
        )
        for title, values in fitted.items():
            statistics[f"{snake(title)}_best_training_accuracy"] = Estimate(min(values)).named(
                f"{title}: best training accuracy, of the setting that trained least", "%"
            )
    samples = images("mnist", plan.sizes, run)
    settings = settings_for({"lenet": plan}, RECIPE, {"lenet": samples}) | {"settings": list(VARIANTS)}
    return Finding(statistics, arrays, settings, tuple(notes))


def _speeds(name: str, effort: str, run: Run) -> Finding:
    if name not in PLANS[effort]:
        return Finding({}, {}, {}, (f"{TITLES[name]} is trained at paper effort alone.",))
    plan = PLANS[effort][name]
    places, title = np.array(plan.indices, float), TITLES[name]
    family, samples, labels = targets_of(name, plan, run)
    network = learned(family, samples, labels, dataclasses.replace(RECIPE, epochs=plan.epochs), run)
    numbers = {"iterations": network.iterations, "distance": network.distance, "turn": network.turn}
    statistics: dict[str, Number] = {
        f"{snake(title)}_rank_correlation_of_{key}_and_index": bootstrapped(spearman, values, places).named(
            f"{title}: rank correlation of {key} and index"
        )
        for key, values in numbers.items()
    }
    statistics |= best_and_median(title, network.train_accuracy)
    for key, values in numbers.items():
        ratio = Estimate(float(values[-1] / max(values[0], 1e-12)))
        statistics[f"{snake(title)}_{key}_last_over_first"] = ratio.named(f"{title}: {key}, last over first")
    arrays = {key: np.stack([places, values]) for key, values in numbers.items()}
    settings = settings_for({name: plan}, RECIPE, {name: samples}) | {"threshold": RECIPE.threshold}
    notes = (
        f"The first window of iterations, a hundredth of all, whose mean loss is below {RECIPE.threshold} decides; until 18 November "
        "2026 the loss of a single batch decided.",
    )
    return Finding(statistics, arrays, settings, notes)


def _drawn_speeds(finding: Finding, dark: bool) -> Figure:
    curves = {
        f"{key}, relative to the largest": (array[0], array[1] / array[1].max())
        for key, array in finding.arrays.items()
    }
    return lines_figure(curves, x="index ρ of the eigenfunction", y="relative to the largest", dark=dark)


@old_figure(
    "4.3",
    title="Speed and way in weight space, ResNet-18",
    show=_drawn_speeds,
    published=published(("resnet18",)) | {"threshold": 0.01},
)
def figure_43(effort: str, run: Run) -> Finding:
    """Iterations and distances of ResNet-18."""
    return _speeds("resnet18", effort, run)


@old_figure(
    "B.3",
    title="Speed and way in weight space, MLP",
    show=_drawn_speeds,
    published=published(("mlp",)) | {"threshold": 0.01},
)
def figure_b3(effort: str, run: Run) -> Finding:
    """Iterations and distances of the MLP."""
    return _speeds("mlp", effort, run)


@old_figure(
    "B.4",
    title="Speed and way in weight space, LeNet",
    show=_drawn_speeds,
    published=published(("lenet",)) | {"threshold": 0.01},
)
def figure_b4(effort: str, run: Run) -> Finding:
    """Iterations and distances of LeNet."""
    return _speeds("lenet", effort, run)


@old_figure(
    "B.2 text",
    title="Binarised eigenfunctions are nearly the eigenfunctions",
    show=lambda finding, dark: lines_figure(
        {name: (array[0], array[1]) for name, array in finding.arrays.items()},
        x="index ρ of the eigenfunction",
        y="inner product of sign(φ_ρ) and φ_ρ",
        dark=dark,
    ),
    published={
        "initial weights": "flax",
        **{
            f"{what}: {TITLES[name]}": number
            for name in ("mlp", "lenet", "resnet18")
            for what, number in (("samples", 60_000), ("eigenfunctions", 1000))
        },
    },
)
def figure_b2_text(effort: str, run: Run) -> Finding:
    """Cosine between sign(φ_ρ) and φ_ρ."""
    arrays, means = {}, []
    settings: dict[str, Any] = {"seed": 0, "initial weights": COMMON["initial weights"]}
    for name, plan in PLANS[effort].items():
        samples = images("cifar10", plan.sizes, run)
        settings[f"samples: {TITLES[name]}"] = sum(samples.sizes.values())
        settings[f"eigenfunctions: {TITLES[name]}"] = max(plan.indices)
        family = start_of(name, samples.shape)
        functions = eigenfunctions(family, samples, max(plan.indices), run).functions
        products = (functions.abs().mean(1) / functions.square().mean(1).sqrt()).numpy()
        arrays[TITLES[name]] = np.stack([np.arange(1, len(products) + 1, dtype=float), products])
        means.append(torch.from_numpy(products))
    mean = bootstrapped(np.mean, torch.cat(means).double().numpy())
    statistics = {
        "inner_product_of_binarised_and_plain_eigenvectors": mean.named(
            "inner product of binarised and plain eigenvectors"
        ),
        "logarithm_of_the_inner_product_of_random_vectors": _of_random_vectors().named(
            "decimal logarithm of the mean absolute inner product of random vectors"
        ),
    }
    return Finding(statistics, arrays, settings)


def _of_random_vectors(dimension: int = 60_000, vectors: int = 40) -> Estimate:
    """The decimal logarithm of the mean absolute cosine between independent random vectors."""
    generator = generator_for(torch.device("cpu"), 0, "random vectors")
    rows = torch.nn.functional.normalize(torch.randn(2 * vectors, dimension, generator=generator))
    cosines = (rows[:vectors] * rows[vectors:]).sum(1).abs().double().numpy()
    return bootstrapped(lambda values: float(np.log10(values.mean())), cosines)
