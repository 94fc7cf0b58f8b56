"""Figures 4.4 and 4.5: anisotropy directions by the tangent kernel of one network, and learning along them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from biascope.families.family import Family
from biascope.measures.anisotropy_directions import anisotropy_directions
from biascope.measures.directional_bias import Problem, directional_bias
from biascope.papers.linearized2021.shared import (
    ALONG_DIRECTIONS,
    LAW,
    TITLES,
    linearised,
    mean_of,
    planned,
    recipe_of,
    start_of,
    tell_accuracies,
    training_run,
)
from biascope.results.draw import directions as drawn_directions
from biascope.results.estimate import Estimate, over
from biascope.results.figures import lines_figure
from biascope.results.finding import Finding, Tell, figure
from biascope.results.plan import Plan, Row
from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.tasks.bases import Basis
from biascope.tasks.probe import Probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHAPE = (1, 32, 32)
_CONVOLUTIONAL = ("lenet", "resnet18")


def _start(name: str, seed: int = 0) -> Family:
    """The chapter's network with GELU, as its released code has it for these directions."""
    return start_of(name, SHAPE, seed, activation=ALONG_DIRECTIONS[name])


def _directions(plan: Row, name: str, run: Run, seed: int = 0) -> Basis:
    """Right singular vectors of the mixed derivative at x = 0; values are alignments of linear targets."""
    probe, keep = Probe.fixed(torch.zeros(1, *SHAPE)), plan["directions computed"]
    result = anisotropy_directions(_start(name, seed), probe, estimator="tangent", keep=keep, seed=0, run=run.shared)
    vectors, values = torch.as_tensor(result.directions), torch.as_tensor(result.eigenvalues)
    return bases.ordered(vectors, SHAPE, values, name=f"tangent ({TITLES[name]})")


@figure(
    "4.4",
    title="Learning linear targets along the directions of the tangent kernel (σ = 1)",
    plan=planned(
        ("directions", "training samples", "test samples", "epochs"),
        smoke={"lenet": ((0, 7), 128, 128, 1)},
        laptop={"lenet": ((0, 10, 100, 300, 1000), 5000, 3000, 40)},
        paper={
            "lenet": ((0, 1, 3, 6, 10, 20, 30, 60, 100, 200, 300, 450, 600, 800, 1000), 10_000, 10_000, 100),
            "resnet18": ((0, 3, 10, 30, 100, 200, 300, 1000), 10_000, 10_000, 10),
        },
        published=dict.fromkeys(_CONVOLUTIONAL, (None, 10_000, 10_000, 100)),
        ours={"seed": 0},
        also={
            "noise": (1.0, 1.0, 1.0, 1.0),
            "distance of the classes": (1.0, 1.0, 1.0, 1.0),
            "directions computed": (8, 1024, 1024, None),
        },
        alone=True,
        activation=ALONG_DIRECTIONS,
    ),
    show=lambda finding, dark: lines_figure(
        {name: (places + 1, accuracy) for name, (places, accuracy) in finding.curves_of("accuracy", 100).items()},
        x="index of the direction",
        y="test accuracy, %",
        dark=dark,
    ),
)
def figure_44(plan: Row, run: Run, tell: Tell) -> None:
    """Accuracy of a network and its linearisation on D(v) along the network's own directions."""
    for name in plan.networks:
        network, basis, accuracies = _start(name), _directions(plan, name, run), []
        problem = Problem(
            noise=(plan["noise"],),
            samples=(plan["training samples"][name],),
            test=plan["test samples"][name],
            epsilon=plan["distance of the classes"],
            margin="released",
        )
        for title, family in ((TITLES[name], network), (f"linearised {TITLES[name]}", linearised(network))):
            result = directional_bias(
                family,
                basis.part(plan["directions"][name]),
                problem=problem,
                recipe=recipe_of(plan, plan["epochs"][name]),
                seed=0,
                run=training_run(family, run),
            )
            accuracy, fitted = result.accuracy[0, 0, 0], result.train_accuracy[0, 0, 0]
            tell_accuracies(tell, title, result.places.astype(float), accuracy, fitted)
            tell.about(title)("accuracy along the first direction", Estimate(100 * float(accuracy[0])), "%")
            accuracies.append(accuracy)
        lead = mean_of(100 * (accuracies[0] - accuracies[1]))
        tell.about(TITLES[name])("lead over the linearisation", lead, "points")
        assert basis.values is not None
        tell.array(TITLES[name], basis.values.numpy(), kind="alignment")
    tell.note("GELU networks, directions at x = 0, means ±(ε/2)·v with ε = 1: as the released code has them.")


def _gallery(finding: Finding, dark: bool) -> Figure:
    images, labels = [], []
    for name, vectors in finding.arrays_of("first").items():
        images += [vector.reshape(SHAPE) for vector in vectors[:5]]
        labels += [f"{name} {index + 1}" for index in range(min(5, len(vectors)))]
    return drawn_directions(np.stack(images), labels, dark=dark)


def _computed(seeds: dict[str, int], directions: int) -> dict[str, Any]:
    """How many initialisations of each network have their directions computed."""
    return {
        "input": "x = 0",
        "initial weights": LAW,
        "activation": {name: ALONG_DIRECTIONS[name] for name in seeds},
        "seeds": seeds,
        "directions computed": directions,
    }


@figure(
    "4.5",
    title="First anisotropy directions by the tangent kernel",
    plan=Plan(
        smoke=_computed({"lenet": 2}, 8),
        laptop=_computed({"lenet": 3}, 1024),
        paper=_computed({"lenet": 5, "resnet18": 3}, 1024),
        published={"input": "x = 0", "initial weights": "flax", "activation": dict.fromkeys(_CONVOLUTIONAL, "gelu")},
        titles=TITLES,
        by="seeds",
    ),
    show=_gallery,
)
def figure_45(plan: Row, run: Run, tell: Tell) -> None:
    """The first directions, and how alignment is spread over all."""
    for name in plan.networks:
        shares = []
        for seed in range(plan["seeds"][name]):
            basis = _directions(plan, name, run, seed)
            assert basis.values is not None
            values = basis.values.numpy()
            shares.append(float(values[: max(1, len(values) // 10)].sum() / values.sum()))
            if seed == 0:
                tell.array(TITLES[name], basis.vectors[:10].numpy(), kind="first")
        tell.about(TITLES[name])("share of alignment on the first tenth", over(shares))
