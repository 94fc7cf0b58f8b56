"""Figures 4.2, 4.3, B.1–B.4 and the text of B.2: learning the eigenfunctions of a network's own tangent kernel."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from biascope.families.family import Family
from biascope.papers.linearized2021.shared import (
    PUBLISHED_ON_EIGENFUNCTIONS,
    RECIPE,
    SMALL,
    TITLES,
    Learned,
    eigenfunctions,
    learned,
    learned_by_kernel,
    linearised,
    mean_of,
    planned,
    planned_images,
    recipe_of,
    start_of,
    tell_accuracies,
    tell_training,
)
from biascope.results.claim import Trained
from biascope.results.estimate import Estimate, bootstrapped, spearman
from biascope.results.figures import lines_figure
from biascope.results.finding import FigureOfPaper, Finding, Tell, figure
from biascope.results.plan import Plan, Row
from biascope.results.shows import curves
from biascope.results.wording import snake
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run
from biascope.tasks.task import Arrays

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_INDICES = (1, 5, 20, 50, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000)
_planned = functools.partial(
    planned,
    ("training samples", "test samples", "epochs", "eigenfunctions", "learned"),
    smoke=dict.fromkeys(SMALL, (96, 48, 2, 16, (1, 4, 16))),
    laptop=dict.fromkeys(SMALL, (3000, 1000, 25, 300, (1, 2, 5, 10, 20, 50, 100, 200, 300))),
    paper={
        **dict.fromkeys(SMALL, (50_000, 10_000, 100, 1000, _INDICES)),
        "resnet18": (8000, 4000, 30, 1000, (1, 2, 5, 10, 20, 50, 100, 200, 300, 500, 700, 1000)),
    },
    published=dict.fromkeys(TITLES, (50_000, 10_000, 100, 1000, None)),
    theirs=PUBLISHED_ON_EIGENFUNCTIONS,
    ours={"seed": 0},
)


def _targets(
    plan: Row, name: str, run: Run, tell: Tell, data: str = "cifar10"
) -> tuple[Family, Arrays, dict[str, Tensor]]:
    """A network at initialisation, samples, and the binarised eigenfunctions of its kernel on them."""
    samples = planned_images(plan, name, run, tell, data)
    family = start_of(name, samples.shape)
    functions = eigenfunctions(family, samples, plan["eigenfunctions"][name], run)
    return family, samples, functions.labels(plan["learned"][name])


def accuracies(plan: Row, run: Run, tell: Tell, data: str = "cifar10") -> None:
    """Accuracy on sign(φ_ρ) against the index ρ, for networks and linearisations."""
    for name in plan.networks:
        title, places = TITLES[name], np.array(plan["learned"][name], float)
        family, samples, labels = _targets(plan, name, run, tell, data)
        recipe = recipe_of(plan, plan["epochs"][name])
        network = learned(family, samples, labels, recipe, run)
        if name == "resnet18":  # by its kernel matrix it takes seconds instead of minutes; the outputs are the same
            line = learned_by_kernel(family, samples, labels, recipe, run)
        else:
            line = learned(linearised(family), samples, labels, recipe, run)
        for subject, model in ((title, network), (f"linearised {title}", line)):
            tell_accuracies(tell, subject, places, model.accuracy, model.train_accuracy)
        of = tell.about(title)
        alike = bootstrapped(spearman, network.accuracy, line.accuracy)
        of("rank correlation of its accuracy and that of the linearisation", alike)
        lead = 100 * (line.accuracy - network.accuracy)
        of("lead of the linearisation", mean_of(lead), "points")
        sides = [lead[places <= 500], lead[places > 500]]
        if all(map(len, sides)):
            of(
                "smaller lead of the linearisation, before and after φ_500",
                mean_of(min(sides, key=np.mean)),
                "points",
                key=f"{snake(title)}_smaller_lead_of_the_linearisation_before_and_after_500",
            )
        turns = np.flatnonzero(np.sign(lead[1:]) * np.sign(lead[:-1]) < 0)
        if len(turns):  # the last of them, between two indices in proportion
            i = int(turns[-1])
            crossing = places[i] + (places[i + 1] - places[i]) * lead[i] / (lead[i] - lead[i + 1])
            of("index where the curves cross", Estimate(float(crossing)))


_drawn_accuracies = curves("accuracy", x="index ρ of the eigenfunction", y="test accuracy, %", scale=100)
figure_42 = figure(
    "4.2",
    title="Networks and their linearisations on the binarised eigenfunctions of the tangent kernel (CIFAR-10)",
    plan=_planned(alone=True),
    show=_drawn_accuracies,
)(accuracies)


@figure(
    "B.1",
    title="The same with Adam",
    plan=_planned(
        paper={
            "mlp": (50_000, 10_000, 100, 1000, _INDICES),
            # Fewer of them, in fewer epochs: with Adam the linearisation has no kernel to be trained by.
            "lenet": (50_000, 10_000, 40, 1000, (1, 20, 100, 300, 600, 1000)),
        },
        also={
            "optimiser": ("adam", "adam", "adam", "adam"),
            "rate": (1e-3, 1e-3, 1e-3, None),
            "momentum": (0.0, 0.0, 0.0, None),
        },
        alone=True,
    ),
    show=_drawn_accuracies,
)
def figure_b1(plan: Row, run: Run, tell: Tell) -> None:
    """Accuracy on sign(φ_ρ), trained with Adam."""
    accuracies(plan, run, tell)
    tell.note("The thesis does not give Adam's rate; 0.001 was chosen.")


@figure(
    "B.2",
    title="The same on MNIST",
    plan=_planned(
        paper=dict.fromkeys(SMALL, (60_000, 10_000, 100, 1000, _INDICES)),
        published=dict.fromkeys(SMALL, (60_000, 10_000, 100, 1000, None)),
        alone=True,
    ),
    show=_drawn_accuracies,
)
def figure_b2(plan: Row, run: Run, tell: Tell) -> None:
    """Accuracy on sign(φ_ρ) of MNIST."""
    accuracies(plan, run, tell, data="mnist")


#: What LeNet and its inputs are changed to; nothing for figure B.2's own. Eigenfunctions are those of the changed network's kernel.
VARIANTS: dict[str, dict[str, Any]] = {
    "as in figure B.2": {},
    "GELU": {"activation": "gelu"},
    "max-pooling": {"pooling": "max"},
    "convolutions without padding": {"padding": "valid"},
    "pixels from 0 to 1": {"pixels": True},
    "four times the rate": {"rate": 0.2},
}
_TRIED = (100, 300, 450, 600, 800, 1000)


def tried(changes: Mapping[str, Any], samples: Arrays, plan: Row, run: Run) -> tuple[Learned, Learned]:
    """LeNet and its linearisation on MNIST's eigenfunctions with some settings changed."""
    network = dict(changes)
    if network.pop("pixels", False):
        x = samples.whole("train")[0]
        low, high = float(x.min()), float(x.max())
        scaled = {split: ((x - low) / (high - low), y) for split, (x, y) in samples.splits.items()}
        samples = dataclasses.replace(samples, splits=scaled)
    recipe = recipe_of({**plan, "rate": network.pop("rate", plan["rate"])}, plan["epochs"]["lenet"])
    family = start_of("lenet", samples.shape, **network)
    labels = eigenfunctions(family, samples, plan["eigenfunctions"]["lenet"], run).labels(plan["learned"]["lenet"])
    return learned(family, samples, labels, recipe, run), learned_by_kernel(family, samples, labels, recipe, run)


@figure(
    "B.2 settings",
    title="LeNet and its linearisation on MNIST with other settings than those of figure B.2",
    plan=_planned(
        smoke={"lenet": (96, 48, 2, 16, (1, 16))},
        laptop={"lenet": (4000, 1000, 25, 1000, _TRIED)},
        paper={"lenet": (10_000, 5000, 100, 1000, _TRIED)},
        published={"lenet": (60_000, 10_000, 100, 1000, None)},
        ours={"seed": 0, "settings": list(VARIANTS)},
        also={"low indices up to": (8, 500, 500, None)},
    ),
    show=curves("lead", x="index ρ of the eigenfunction", y="lead of the linearisation, points"),
)
def figure_b2_settings(plan: Row, run: Run, tell: Tell) -> None:
    """The lead of the linearisation before and after φ_500 for each setting; the smallest decides."""
    places = np.array(plan["learned"]["lenet"], float)
    early = places <= plan["low indices up to"]
    titles, gate = ("LeNet", "linearised LeNet"), Trained("training_accuracy", chance=50.0, best=100.0)
    samples = planned_images(plan, "lenet", run, tell, "mnist")
    leads: list[Estimate] = []
    best: list[list[float]] = []  # training accuracies of the two, of settings with which both trained
    for words, changes in VARIANTS.items():
        models = network, line = tried(changes, samples, plan, run)
        lead, key = 100 * (line.accuracy - network.accuracy), snake(words)
        tell.array(words, np.stack([places, lead]), kind="lead")
        sides = {"before": mean_of(lead[early]), "after": mean_of(lead[~early])}
        for when, mean in sides.items():
            label = f"lead of the linearisation {when} φ_500, {words}"
            tell(label, mean, "points", key=f"lead_of_the_linearisation_{when}_500_{key}")
        least = min(sides.values(), key=lambda mean: mean.value)
        label = f"smaller lead of the linearisation before and after φ_500, {words}"
        tell(label, least, "points", key=f"lead_of_the_linearisation_{key}")
        for title, model in zip(titles, models, strict=True):
            tell.array(f"{title}, {words}", np.stack([places, model.train_accuracy]), kind="training accuracy")
            tell_training(tell.about(title), model.train_accuracy, f", {words}")
        reached = [100 * float(np.nanmax(model.train_accuracy)) for model in models]
        if all(gate.passes(Estimate(percent)) for percent in reached):
            leads.append(least)
            best.append(reached)
        else:
            tell.note(f"Left out, because one of the two did not train: {words}.")
    if leads:
        smallest = min(leads, key=lambda mean: mean.value)
        tell("smallest lead of the linearisation over settings", smallest, "points")
    for title, percents in zip(titles, zip(*best, strict=True), strict=False):
        tell.about(title)(
            "best training accuracy, of the setting that trained least",
            Estimate(min(percents)),
            "%",
            key=f"{snake(title)}_best_training_accuracy",
        )


def _drawn_speeds(finding: Finding, dark: bool) -> Figure:
    relative = {
        f"{key}, relative to the largest": (places, values / values.max())
        for key, (places, values) in finding.arrays.items()
    }
    return lines_figure(relative, x="index ρ of the eigenfunction", y="relative to the largest", dark=dark)


def speeds(plan: Row, run: Run, tell: Tell) -> None:
    """Iterations to a small training loss, and how far the weights move, against the index of the eigenfunction."""
    if not plan:
        tell.note("ResNet-18 is trained at paper effort alone.")
        return
    (name,) = plan["learned"]
    places, of = np.array(plan["learned"][name], float), tell.about(TITLES[name])
    family, samples, labels = _targets(plan, name, run, tell)
    network = learned(family, samples, labels, recipe_of(plan, plan["epochs"][name]), run)
    tell_training(of, network.train_accuracy)
    numbers = {"iterations": network.iterations, "distance": network.distance, "turn": network.turn}
    for what, values in numbers.items():
        tell.array(what, np.stack([places, values]))
        of(f"rank correlation of {what} and index", bootstrapped(spearman, values, places))
        of(f"{what}, last over first", Estimate(float(values[-1] / max(values[0], 1e-12))))
    tell.note(
        f"The first window of iterations, a hundredth of all, whose mean loss is below {RECIPE.threshold} decides; until 18 November "
        "2026 the loss of a single batch decided."
    )


def _figure_on_speeds(number: str, name: str) -> FigureOfPaper:
    """The figure on one network."""
    title = f"Speed and way in weight space, {TITLES[name]}"
    plan = _planned(only=name, also={"threshold": (*[RECIPE.threshold] * 3, 0.01)})
    return figure(number, title=title, plan=plan, show=_drawn_speeds)(speeds)


figure_43 = _figure_on_speeds("4.3", "resnet18")
figure_b3 = _figure_on_speeds("B.3", "mlp")
figure_b4 = _figure_on_speeds("B.4", "lenet")


def _untrained(row: Row) -> dict[str, Any]:
    """What a row says of eigenfunctions, but for their training."""
    kept = ("seed", "initial weights", "training samples", "test samples", "eigenfunctions")
    return {what: row[what] for what in kept}


@figure(
    "B.2 text",
    title="Binarised eigenfunctions are nearly the eigenfunctions",
    plan=Plan(
        _untrained(figure_42.plan.row("smoke")),
        _untrained(figure_42.plan.row("laptop")),
        _untrained(figure_42.plan.row("paper")),
        published={
            "initial weights": "flax",
            **{  # network by network, the order in which differences are told
                f"{what}: {title}": number
                for title in TITLES.values()
                for what, number in (("samples", 60_000), ("eigenfunctions", 1000))
            },
        },
        titles=TITLES,
    ),
    show=lambda finding, dark: lines_figure(
        {name: (places, products) for name, (places, products) in finding.arrays.items()},
        x="index ρ of the eigenfunction",
        y="inner product of sign(φ_ρ) and φ_ρ",
        dark=dark,
    ),
)
def figure_b2_text(plan: Row, run: Run, tell: Tell) -> None:
    """Cosine between sign(φ_ρ) and φ_ρ."""
    every = []
    for name, count in plan["eigenfunctions"].items():
        samples = planned_images(plan, name, run, tell)
        tell.settings[f"samples: {TITLES[name]}"] = sum(samples.sizes.values())
        functions = eigenfunctions(start_of(name, samples.shape), samples, count, run).functions
        products = (functions.abs().mean(1) / functions.square().mean(1).sqrt()).numpy()
        tell.array(TITLES[name], np.stack([np.arange(1, len(products) + 1, dtype=float), products]))
        every.append(products.astype(float))
    tell("inner product of binarised and plain eigenvectors", bootstrapped(np.mean, np.concatenate(every)))
    tell(
        "decimal logarithm of the mean absolute inner product of random vectors",
        _of_random_vectors(),
        key="logarithm_of_the_inner_product_of_random_vectors",
    )


def _of_random_vectors(dimension: int = 60_000, vectors: int = 40) -> Estimate:
    """The decimal logarithm of the mean absolute cosine between independent random vectors."""
    generator = generator_for(torch.device("cpu"), 0, "random vectors")
    rows = torch.nn.functional.normalize(torch.randn(2 * vectors, dimension, generator=generator))
    cosines = (rows[:vectors] * rows[vectors:]).sum(1).abs().double().numpy()
    return bootstrapped(lambda values: float(np.log10(values.mean())), cosines)
