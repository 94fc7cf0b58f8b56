"""Figures 4.4 and 4.5: anisotropy directions by the tangent kernel of one network, and learning along them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from biascope.families.family import Family
from biascope.measures.anisotropy_directions import anisotropy_directions
from biascope.measures.directional_bias import Problem, directional_bias
from biascope.networks import builder
from biascope.papers.linearized2021.shared import NETWORKS, TITLES, fall_and_mean, linearised, training_run
from biascope.results.claim import Claim, Finding, figure
from biascope.results.draw import directions as drawn_directions
from biascope.results.estimate import Estimate, Number, bootstrapped
from biascope.results.figures import lines_figure
from biascope.results.wording import snake
from biascope.runs.randomness import forked_rng, seed_of
from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.tasks.bases import Basis
from biascope.tasks.probe import Probe
from biascope.training.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHAPE = (1, 32, 32)
# Places among 1024 directions, training samples, test samples, epochs.
_ALONG: dict[str, dict[str, tuple[tuple[int, ...], int, int, int]]] = {
    "smoke": {"lenet": ((0, 7), 128, 128, 1)},
    "laptop": {"lenet": ((0, 10, 100, 300, 1000), 6000, 3000, 20)},  # in 280 iterations nothing was learned
    "paper": {
        "lenet": ((0, 1, 3, 6, 10, 20, 30, 60, 100, 200, 300, 450, 600, 800, 1000), 10_000, 10_000, 20),
        "resnet18": ((0, 10, 100, 300, 1000), 10_000, 10_000, 10),
    },
}


def _start(name: str) -> Family:
    """The chapter's network with GELU, as its released code has it for these directions."""
    with forked_rng(seed_of(0, "initialisation of chapter 4", name)):
        module = functools.partial(builder(name), activation="gelu", outputs=1, **NETWORKS[name])()
    return Family.point(module, name=TITLES[name])


def _directions(name: str, effort: str, run: Run) -> Basis:
    """Right singular vectors of the mixed derivative at x = 0; values are alignments of linear targets."""
    keep = 8 if effort == "smoke" else 1024
    found = anisotropy_directions(
        _start(name), Probe.fixed(torch.zeros(1, *SHAPE)), estimator="tangent", keep=keep, seed=0, run=run.shared
    )
    vectors, values = torch.as_tensor(found.directions), torch.as_tensor(found.eigenvalues)
    return bases.ordered(vectors, SHAPE, values, name=f"tangent ({TITLES[name]})")


@figure(
    "4.4",
    title="Learning linear targets along the directions of the tangent kernel (σ = 1)",
    claims=[
        claim
        for name in ("lenet", "resnet18")
        for claim in (
            *(
                Claim(
                    f"{words}'s accuracy falls with the index of the direction: rank correlation.",
                    f"{snake(title)}_rank_correlation_of_accuracy_and_index",
                    "at most",
                    "perform better on those predictors with a higher kernel alignment",
                    -0.6,
                    "paper" if name == "resnet18" else "laptop",
                )
                for words, title in (
                    (TITLES[name], TITLES[name]),
                    (f"Linearised {TITLES[name]}", f"linearised {TITLES[name]}"),
                )
            ),
            Claim(
                f"{TITLES[name]} beats its linearisation on linear targets: mean lead in points.",
                f"{snake(TITLES[name])}_lead_over_the_linearisation",
                "at least",
                "a strong non-linear advantage on these tasks",
                2.0,
                "paper" if name == "resnet18" else "laptop",
            ),
        )
    ],
    draw=lambda finding, dark: lines_figure(
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
    for name, (places, train, test, epochs) in _ALONG[effort].items():
        family, basis = _start(name), _directions(name, effort, run)
        accuracy = {}
        for title, each in ((TITLES[name], family), (f"linearised {TITLES[name]}", linearised(family))):
            result = directional_bias(
                each,
                basis.part(places),
                problem=Problem(noise=(1.0,), samples=(train,), test=test, margin="released"),
                recipe=Recipe("sgd", 0.05, momentum=0.9, epochs=epochs, threshold=0.01),
                seed=0,
                run=training_run(each, run),
            )
            accuracy[title] = result.accuracy[0, 0, 0]
            index = result.places.astype(float)
            arrays[f"accuracy: {title}"] = np.stack([index, accuracy[title]])
            statistics |= fall_and_mean(title, accuracy[title], index)
        lead = bootstrapped(np.mean, 100 * (accuracy[TITLES[name]] - accuracy[f"linearised {TITLES[name]}"]))
        statistics[f"{snake(TITLES[name])}_lead_over_the_linearisation"] = lead.named(
            f"{TITLES[name]}: lead over the linearisation", "points"
        )
        assert basis.values is not None
        arrays[f"alignment: {TITLES[name]}"] = basis.values.numpy()
    plan: dict[str, Any] = {name: [list(row[0]), *row[1:]] for name, row in _ALONG[effort].items()}
    notes = ("GELU networks, directions at x = 0, means ±(ε/2)·v with ε = 1: as the released code has them.",)
    return Finding(statistics, arrays, {"plan": plan, "noise": 1.0, "seed": 0}, notes)


def _gallery(finding: Finding, dark: bool) -> Figure:
    images, labels = [], []
    for name, vectors in finding.arrays_of("first").items():
        images += [vector.reshape(SHAPE) for vector in vectors[:5]]
        labels += [f"{name} {index + 1}" for index in range(min(5, len(vectors)))]
    return drawn_directions(np.stack(images), labels, dark=dark)


@figure(
    "4.5",
    title="First anisotropy directions by the tangent kernel",
    claims=[
        Claim(
            f"The tangent kernel of {TITLES[name]} has a strong directional bias: share of all alignment on the first tenth of "
            "the directions.",
            f"{snake(TITLES[name])}_share_of_alignment_on_the_first_tenth",
            "at least",
            "a strong rotational variance",
            0.5,
            "paper" if name == "resnet18" else "laptop",
        )
        for name in ("lenet", "resnet18")
    ],
    draw=_gallery,
)
def figure_45(effort: str, run: Run) -> Finding:
    """The first directions, and how alignment is spread over all."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for name in _ALONG[effort]:
        title = TITLES[name]
        basis = _directions(name, effort, run)
        assert basis.values is not None
        values = basis.values.numpy()
        arrays[f"first: {title}"] = basis.vectors[:10].numpy()
        share = Estimate.exact(float(values[: len(values) // 10].sum() / values.sum()))
        statistics[f"{snake(title)}_share_of_alignment_on_the_first_tenth"] = share.named(
            f"{title}: share of alignment on the first tenth"
        )
    return Finding(statistics, arrays, {"input": "x = 0", "activation": "gelu", "seed": 0})
