"""Figures 4.4 and 4.5: anisotropy directions by the tangent kernel of one network, and learning along them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from biascope.families.family import Family
from biascope.measures.anisotropy_directions import anisotropy_directions
from biascope.measures.directional_bias import Problem, directional_bias
from biascope.papers.linearized2021.shared import (
    ALONG_DIRECTIONS,
    COMMON,
    RECIPE,
    TITLES,
    accuracies_of,
    fall_and_mean,
    linearised,
    mean_of,
    settings_of,
    start_of,
    training_run,
)
from biascope.papers.selection import chosen, old_figure
from biascope.results.draw import directions as drawn_directions
from biascope.results.estimate import Estimate, Number, over
from biascope.results.figures import lines_figure
from biascope.results.finding import Finding
from biascope.results.wording import snake
from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.tasks.bases import Basis
from biascope.tasks.probe import Probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHAPE = (1, 32, 32)
# Places among 1024 directions, training samples, test samples, epochs.
_ALONG: dict[str, dict[str, tuple[tuple[int, ...], int, int, int]]] = {
    "smoke": {"lenet": ((0, 7), 128, 128, 1)},
    "laptop": {"lenet": ((0, 10, 100, 300, 1000), 5000, 3000, 40)},
    "paper": {
        "lenet": ((0, 1, 3, 6, 10, 20, 30, 60, 100, 200, 300, 450, 600, 800, 1000), 10_000, 10_000, 100),
        "resnet18": ((0, 3, 10, 30, 100, 200, 300, 1000), 10_000, 10_000, 10),
    },
}
_STARTS = {"smoke": 2, "laptop": 3, "paper": 5}  # initialisations whose directions are computed


def _start(name: str, seed: int = 0) -> Family:
    """The chapter's network with GELU, as its released code has it for these directions."""
    return start_of(name, SHAPE, seed, ALONG_DIRECTIONS)


def _directions(name: str, effort: str, run: Run, seed: int = 0) -> Basis:
    """Right singular vectors of the mixed derivative at x = 0; values are alignments of linear targets."""
    keep = 8 if effort == "smoke" else 1024
    probe = Probe.fixed(torch.zeros(1, *SHAPE))
    found = anisotropy_directions(_start(name, seed), probe, estimator="tangent", keep=keep, seed=0, run=run.shared)
    vectors, values = torch.as_tensor(found.directions), torch.as_tensor(found.eigenvalues)
    return bases.ordered(vectors, SHAPE, values, name=f"tangent ({TITLES[name]})")


@old_figure(
    "4.4",
    networks=_ALONG,
    title="Learning linear targets along the directions of the tangent kernel (σ = 1)",
    published={
        **COMMON,
        "momentum": 0.9,
        **{f"activation: {TITLES[name]}": "gelu" for name in ("lenet", "resnet18")},
        "noise": 1.0,
        "distance of the classes": 1.0,
        **{
            f"{what}: {TITLES[name]}": number
            for name in ("lenet", "resnet18")
            for what, number in (("training samples", 10_000), ("test samples", 10_000), ("epochs", 100))
        },
    },
    show=lambda finding, dark: lines_figure(
        {name: (places + 1, accuracy) for name, (places, accuracy) in finding.curves_of("accuracy", 100).items()},
        x="index of the direction",
        y="test accuracy, %",
        dark=dark,
    ),
)
def figure_44(effort: str, run: Run) -> Finding:
    """Accuracy of a network and its linearisation on D(v) along the network's own directions."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    plans = chosen(_ALONG[effort])
    for name, (places, train, test, epochs) in plans.items():
        family, basis = _start(name), _directions(name, effort, run)
        accuracy = {}
        for title, each in ((TITLES[name], family), (f"linearised {TITLES[name]}", linearised(family))):
            result = directional_bias(
                each,
                basis.part(places),
                problem=Problem(noise=(1.0,), samples=(train,), test=test, margin="released"),
                recipe=dataclasses.replace(RECIPE, epochs=epochs),
                seed=0,
                run=training_run(each, run),
            )
            accuracy[title], fitted = accuracies_of(result)
            index = result.places.astype(float)
            arrays[f"accuracy: {title}"] = np.stack([index, accuracy[title]])
            arrays[f"training accuracy: {title}"] = np.stack([index, fitted])
            statistics |= fall_and_mean(title, result, index)
            statistics[f"{snake(title)}_accuracy_along_the_first_direction"] = Estimate(
                100 * float(accuracy[title][0])
            ).named(f"{title}: accuracy along the first direction", "%")
        lead = mean_of(100 * (accuracy[TITLES[name]] - accuracy[f"linearised {TITLES[name]}"]))
        statistics[f"{snake(TITLES[name])}_lead_over_the_linearisation"] = lead.named(
            f"{TITLES[name]}: lead over the linearisation", "points"
        )
        assert basis.values is not None
        arrays[f"alignment: {TITLES[name]}"] = basis.values.numpy()
    settings: dict[str, Any] = settings_of(RECIPE, list(plans), ALONG_DIRECTIONS)
    settings |= {"noise": 1.0, "distance of the classes": 1.0, "seed": 0}
    for name, (places, train, test, epochs) in plans.items():
        settings |= {
            f"directions: {TITLES[name]}": list(places),
            f"training samples: {TITLES[name]}": train,
            f"test samples: {TITLES[name]}": test,
            f"epochs: {TITLES[name]}": epochs,
        }
    notes = ("GELU networks, directions at x = 0, means ±(ε/2)·v with ε = 1: as the released code has them.",)
    return Finding(statistics, arrays, settings, notes)


def _gallery(finding: Finding, dark: bool) -> Figure:
    images, labels = [], []
    for name, vectors in finding.arrays_of("first").items():
        images += [vector.reshape(SHAPE) for vector in vectors[:5]]
        labels += [f"{name} {index + 1}" for index in range(min(5, len(vectors)))]
    return drawn_directions(np.stack(images), labels, dark=dark)


@old_figure(
    "4.5",
    networks=_ALONG,
    title="First anisotropy directions by the tangent kernel",
    show=_gallery,
    published={
        "input": "x = 0",
        "initial weights": "flax",
        "activation: LeNet": "gelu",
        "activation: ResNet-18": "gelu",
    },
)
def figure_45(effort: str, run: Run) -> Finding:
    """The first directions, and how alignment is spread over all."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    plans = chosen(_ALONG[effort])
    starts = {name: 3 if name == "resnet18" else _STARTS[effort] for name in plans}
    for name, count in starts.items():
        title = TITLES[name]
        shares = []
        for seed in range(count):
            basis = _directions(name, effort, run, seed)
            assert basis.values is not None
            values = basis.values.numpy()
            shares.append(float(values[: max(1, len(values) // 10)].sum() / values.sum()))
            if seed == 0:
                arrays[f"first: {title}"] = basis.vectors[:10].numpy()
        statistics[f"{snake(title)}_share_of_alignment_on_the_first_tenth"] = over(shares).named(
            f"{title}: share of alignment on the first tenth"
        )
    laws = settings_of(RECIPE, list(plans), ALONG_DIRECTIONS)
    settings = {key: value for key, value in laws.items() if key.startswith(("initial", "activation"))}
    settings |= {f"seeds: {TITLES[name]}": count for name, count in starts.items()}
    return Finding(statistics, arrays, {"input": "x = 0", **settings})
