"""Figures 4.2, 4.3, B.1–B.4 and the text of B.2: learning the eigenfunctions of a network's own tangent kernel."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from biascope.families.family import Family
from biascope.papers.linearized2021.shared import (
    RECIPE,
    TITLES,
    eigenfunctions,
    fall_and_mean,
    images,
    learned,
    linearised,
    start_of,
)
from biascope.results.claim import Claim, Finding, figure
from biascope.results.estimate import Estimate, Number, bootstrapped, spearman
from biascope.results.figures import lines_figure
from biascope.results.wording import snake
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
        "resnet18": Plan((12_000, 3000), 20, (1, 5, 50, 200, 500, 1000)),
    },
}


def order_claims(names: tuple[str, ...], *, gap: bool = True) -> list[Claim]:
    """Accuracy falls with the index, for networks and their linearisations, and which of the two does better."""
    claims = []
    for name in names:
        title, effort = TITLES[name], "paper" if name == "resnet18" else "laptop"
        for words, key in ((title, snake(title)), (f"Linearised {title}", f"linearised_{snake(title)}")):
            claims.append(
                Claim(
                    f"{words}'s accuracy on sign(φ_ρ) falls with ρ: rank correlation.",
                    f"{key}_rank_correlation_of_accuracy_and_index",
                    "at most",
                    "progressively drops with decreasing eigenvalues",
                    -0.6,
                    effort,
                )
            )
        if gap:
            claims.append(
                Claim(
                    f"Linearised {title} does better than {title} on its own eigenfunctions: mean lead in points.",
                    f"{snake(title)}_lead_of_the_linearisation",
                    "at least",
                    "the kernels perform comparatively much better",
                    0.0,
                    effort,
                )
            )
    return claims


def speed_claims(name: str) -> list[Claim]:
    """Iterations and distances grow with the index."""
    effort = "paper" if name == "resnet18" else "laptop"
    words = {
        "iterations": "takes more iterations to a loss of 0.01",
        "distance": "travels further in weight space (ℓ2)",
        "turn": "turns its weights further (cosine distance)",
    }
    return [
        Claim(
            f"{TITLES[name]} {what} for later eigenfunctions: rank correlation.",
            f"{snake(TITLES[name])}_rank_correlation_of_{key}_and_index",
            "at least",
            "grow with the index",
            0.6,
            effort,
        )
        for key, what in words.items()
    ]


def targets_of(name: str, plan: Plan, run: Run, data: str = "cifar10") -> tuple[Family, Arrays, dict[str, Tensor]]:
    """A network at initialisation, samples, and the binarised eigenfunctions of its kernel on them."""
    samples = images(data, plan.sizes, run)
    family = start_of(name, samples.shape)
    return family, samples, eigenfunctions(family, samples, max(plan.indices), run).labels(plan.indices)


def accuracies(
    effort: str, run: Run, *, data: str = "cifar10", recipe: Recipe = RECIPE, names: tuple[str, ...]
) -> Finding:
    """Accuracy against the index for networks and linearisations."""
    plans = {name: plan for name, plan in PLANS[effort].items() if name in names}
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    settings: dict[str, Any] = {"recipe": recipe.settings, "seed": 0}
    for name, plan in plans.items():
        title, places = TITLES[name], np.array(plan.indices, float)
        family, samples, labels = targets_of(name, plan, run, data)
        how = dataclasses.replace(recipe, epochs=plan.epochs)
        settings[name] = {"samples": samples.name, "epochs": plan.epochs, "indices": list(plan.indices)}
        network, line = (learned(each, samples, labels, how, run) for each in (family, linearised(family)))
        for subject, found in ((title, network), (f"linearised {title}", line)):
            arrays[f"accuracy: {subject}"] = np.stack([places, found.accuracy])
            statistics |= fall_and_mean(subject, found.accuracy, places)
        lead = 100 * (line.accuracy - network.accuracy)
        statistics[f"{snake(title)}_lead_of_the_linearisation"] = bootstrapped(np.mean, lead).named(
            f"{title}: lead of the linearisation", "points"
        )
        crossing = _crossing(places, lead)
        if crossing is not None:
            statistics[f"{snake(title)}_index_where_the_curves_cross"] = Estimate.exact(crossing).named(
                f"{title}: index where the curves cross"
            )
    return Finding(statistics, arrays, settings)


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


@figure(
    "4.2",
    title="Networks and their linearisations on the binarised eigenfunctions of the tangent kernel (CIFAR-10)",
    claims=order_claims(("mlp", "lenet", "resnet18")),
    draw=drawn_accuracies,
)
def figure_42(effort: str, run: Run) -> Finding:
    """Accuracy on sign(φ_ρ)."""
    return accuracies(effort, run, names=("mlp", "lenet", "resnet18"))


@figure(
    "B.1",
    title="The same with Adam",
    claims=order_claims(("lenet",), gap=False),
    draw=drawn_accuracies,
)
def figure_b1(effort: str, run: Run) -> Finding:
    """Accuracy on sign(φ_ρ), trained with Adam."""
    recipe = dataclasses.replace(RECIPE, optimiser="adam", rate=1e-3, momentum=0.0)
    found = accuracies(effort, run, recipe=recipe, names=("lenet",))
    return dataclasses.replace(found, notes=("The thesis does not give Adam's rate; 0.001 was chosen.",))


@figure(
    "B.2",
    title="The same on MNIST",
    claims=[
        *order_claims(("mlp", "lenet"), gap=False),
        Claim(
            "LeNet and its linearisation cross near φ_500 on MNIST: index of the crossing.",
            "lenet_index_where_the_curves_cross",
            "about",
            500.0,
            250.0,
            "paper",
        ),
    ],
    draw=drawn_accuracies,
)
def figure_b2(effort: str, run: Run) -> Finding:
    """Accuracy on sign(φ_ρ) of MNIST."""
    return accuracies(effort, run, data="mnist", names=("mlp", "lenet"))


def _speeds(name: str, effort: str, run: Run) -> Finding:
    if name not in PLANS[effort]:
        return Finding({}, {}, {}, (f"{TITLES[name]} is trained at paper effort alone.",))
    plan = PLANS[effort][name]
    places, title = np.array(plan.indices, float), TITLES[name]
    family, samples, labels = targets_of(name, plan, run)
    network = learned(family, samples, labels, dataclasses.replace(RECIPE, epochs=plan.epochs), run)
    numbers = {"iterations": network.iterations, "distance": network.distance, "turn": network.turn}
    statistics = {
        f"{snake(title)}_rank_correlation_of_{key}_and_index": bootstrapped(spearman, values, places).named(
            f"{title}: rank correlation of {key} and index"
        )
        for key, values in numbers.items()
    }
    for key, values in numbers.items():
        ratio = Estimate.exact(float(values[-1] / max(values[0], 1e-12)))
        statistics[f"{snake(title)}_{key}_last_over_first"] = ratio.named(f"{title}: {key}, last over first")
    arrays = {key: np.stack([places, values]) for key, values in numbers.items()}
    return Finding(statistics, arrays, {"samples": samples.name, "epochs": plan.epochs, "threshold": 0.01, "seed": 0})


def _drawn_speeds(finding: Finding, dark: bool) -> Figure:
    curves = {
        f"{key}, relative to the largest": (array[0], array[1] / array[1].max())
        for key, array in finding.arrays.items()
    }
    return lines_figure(curves, x="index ρ of the eigenfunction", y="relative to the largest", dark=dark)


@figure("4.3", title="Speed and way in weight space, ResNet-18", claims=speed_claims("resnet18"), draw=_drawn_speeds)
def figure_43(effort: str, run: Run) -> Finding:
    """Iterations and distances of ResNet-18."""
    return _speeds("resnet18", effort, run)


@figure("B.3", title="Speed and way in weight space, MLP", claims=speed_claims("mlp"), draw=_drawn_speeds)
def figure_b3(effort: str, run: Run) -> Finding:
    """Iterations and distances of the MLP."""
    return _speeds("mlp", effort, run)


@figure("B.4", title="Speed and way in weight space, LeNet", claims=speed_claims("lenet"), draw=_drawn_speeds)
def figure_b4(effort: str, run: Run) -> Finding:
    """Iterations and distances of LeNet."""
    return _speeds("lenet", effort, run)


@figure(
    "B.2 text",
    title="Binarised eigenfunctions are nearly the eigenfunctions",
    claims=[
        Claim(
            "Binarised and plain eigenvectors have an inner product of about 0.78: mean over eigenfunctions.",
            "inner_product_of_binarised_and_plain_eigenvectors",
            "about",
            0.78,
            0.05,
        )
    ],
    draw=lambda finding, dark: lines_figure(
        {name: (array[0], array[1]) for name, array in finding.arrays.items()},
        x="index ρ of the eigenfunction",
        y="inner product of sign(φ_ρ) and φ_ρ",
        dark=dark,
    ),
)
def figure_b2_text(effort: str, run: Run) -> Finding:
    """Cosine between sign(φ_ρ) and φ_ρ."""
    arrays, means, settings = {}, [], {}
    for name, plan in PLANS[effort].items():
        samples = images("cifar10", plan.sizes, run)
        settings[TITLES[name]] = samples.name
        family = start_of(name, samples.shape)
        functions = eigenfunctions(family, samples, max(plan.indices), run).functions
        products = (functions.abs().mean(1) / functions.square().mean(1).sqrt()).numpy()
        arrays[TITLES[name]] = np.stack([np.arange(1, len(products) + 1, dtype=float), products])
        means.append(torch.from_numpy(products))
    mean = bootstrapped(np.mean, torch.cat(means).double().numpy())
    statistics = {
        "inner_product_of_binarised_and_plain_eigenvectors": mean.named(
            "inner product of binarised and plain eigenvectors"
        )
    }
    return Finding(statistics, arrays, {"samples": settings, "seed": 0})
