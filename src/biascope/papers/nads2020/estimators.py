"""Figures S17–S19 and section D.1: other ways to find directions, by the mixed derivative and by exact gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from biascope.derivatives.mixed import MixedDerivative
from biascope.derivatives.mixed_gram import mixed_gram
from biascope.derivatives.spectrum import eigenpairs, subspace_similarity
from biascope.measures.anisotropy_directions import anisotropy_directions
from biascope.papers.nads2020.directions import DRAWS, INPUTS, directions, gallery
from biascope.papers.nads2020.networks import SHAPE, TITLES, family_of, keyed
from biascope.papers.nads2020.released import against_published, published_accuracies
from biascope.results.estimate import over, spearman
from biascope.results.finding import Tell, figure
from biascope.results.plan import Plan, Row
from biascope.results.shows import curves
from biascope.runs.run import Run
from biascope.tasks.bases import fourier_half
from biascope.tasks.probe import Probe

_OF_MIXED: dict[str, Any] = {"average": "operator", "step": 100.0, "centred": True, "inputs": INPUTS, "image size": 32}
_BOTH = ("operator", "gram")  # averages of the mixed derivative; the published one is that of the operator
MIXED = Plan(
    smoke={
        **_OF_MIXED,
        "inputs": 1,
        "image size": 16,  # a mixed derivative has as many rows as pixels
        "draws of the mixed derivative": {"lenet": 2},
        "draws": DRAWS["smoke"],
        "averages": {"lenet": ("operator",)},
    },
    laptop={
        **_OF_MIXED,
        "draws of the mixed derivative": {"lenet": 32},
        "draws": DRAWS["laptop"],
        "averages": {"lenet": _BOTH},
    },
    # A mixed derivative of a large network has 1024 times as many numbers as the network: few draws, and the published average alone.
    # Twelve draws are the fewest that give the gradient ten directions.
    paper={
        **_OF_MIXED,
        "draws of the mixed derivative": {"lenet": 256, "resnet18": 12, "vgg11": 12},
        "draws": {"lenet": DRAWS["paper"]["lenet"], "resnet18": 500, "vgg11": 500},
        "averages": {"lenet": _BOTH, "resnet18": ("operator",), "vgg11": ("operator",)},
    },
    published={"average": "operator", "step": 100.0},
    titles=TITLES,
    by="draws",
)


@figure("S17-S19", title="Directions of the mixed derivative, averaged as published", plan=MIXED, show=gallery)
def figure_s17(plan: Row, run: Run, tell: Tell) -> None:
    """The mixed derivative's directions beside those of the gradient covariance.

    Algorithm 2 averages the operator over draws and takes its singular vectors. Equation (3) needs the average of its Gram matrix,
    which is measured too. Noise is the disagreement of two sets of as many draws at one input. Three pairs of sets, each at an input of
    its own, give the spread.
    """
    shape = (1, plan["image size"], plan["image size"])
    chance = 10 / math.prod(shape)  # mean similarity of two random ten-dimensional subspaces
    for name in plan.networks:
        of, averages = tell.about(TITLES[name]), plan["averages"][name]
        similar: dict[str, list[float]] = {average: [] for average in averages}
        agreement: dict[str, list[float]] = {average: [] for average in (*averages, "gradient")}
        for place in range(plan["inputs"]):
            known = directions(name, plan["draws"][name], run, seed=place, shape=shape).vectors[:10]
            for average in (*averages, "gradient"):
                draws = plan["draws of the mixed derivative"][name]
                sets = [first_ten(name, average, draws, place, 2 * place + half, run, shape) for half in (0, 1)]
                agreement[average].append(subspace_similarity(*sets))
                if average != "gradient":
                    similar[average].append(float(np.mean([subspace_similarity(ten, known) for ten in sets])))
                if average == "operator" and not place:
                    tell.array(TITLES[name], sets[0].numpy(), kind="first")
        for average in averages:
            words, ending = ("mean", "") if average == "operator" else ("Gram matrix", "_of_the_gram_matrix")
            similarity = over(similar[average], within=(0.0, 1.0))
            label, key = f"similarity of the first ten of the {words}", f"{keyed(name)}_similarity_of_the_first_ten"
            of(label, similarity, key=key + ending)
            of(f"{label} beyond chance", similarity.map_linear(1.0, -chance), key=f"{key}_beyond_chance{ending}")
            gap = over(np.array(agreement[average]) - np.array(agreement["gradient"]))
            label, key = "agreement of two sets of draws", f"{keyed(name)}_agreement_of_two_sets"
            of(f"{label}, {words} minus gradient", gap, key=f"{key}_minus_gradient{ending}")
        of(f"{label}, gradient", over(agreement["gradient"]), key=f"{key}_of_the_gradient")
    both = any("gram" in averages for averages in plan["averages"].values())
    tell.note(
        "The paper averages the operator, which does not converge: its mean is 0 for weights of mean 0."
        + (" Numbers of the Gram matrix, which equation (3) needs, are given beside." if both else ""),
        f"A random pair of ten-dimensional subspaces has similarity {chance:.4f}.",
    )


def first_ten(
    name: str, average: str, draws: int, place: int, seed: int, run: Run, shape: tuple[int, int, int]
) -> torch.Tensor:
    """The first ten directions of a mixed derivative, averaged in a way, or of the gradient, at one of several inputs."""
    family, probe = family_of(name, image_size=shape[1]), Probe.gaussian(shape, seed=place)
    if average != "gradient":  # the matrix alone: halves of the draws and errors would cost as much again
        derivative = MixedDerivative(family, probe, estimator="difference", step=100.0, seed=seed, run=run.shared)
        gram = mixed_gram(derivative, draws=draws, average=average, label=f"{TITLES[name]}: mixed derivative")
        return eigenpairs(gram, 10).vectors.cpu().double()
    measured = anisotropy_directions(family, probe, draws=max(4, draws), centred=True, seed=seed, run=run.shared)
    return torch.as_tensor(measured.directions)[:10].double()


_OF_GRADIENT: dict[str, Any] = {"step": 100.0, "inputs": INPUTS, "centred": True}
FORETELLING = Plan(
    smoke={**_OF_GRADIENT, "draws": {"lenet": 8}},
    laptop={**_OF_GRADIENT, "draws": {"lenet": 400}},
    paper={**_OF_GRADIENT, "draws": {"lenet": 10_000}},
    published={"draws": {"lenet": 10_000}, "step": 100.0},
    titles=TITLES,
)


@figure(
    "D.1",
    title="Differences with a step of 100 and exact gradients: which foretells what LeNet learns",
    plan=FORETELLING,
    show=curves("variance", x="frequency, by the authors' accuracy", y="variance / mean", log_y=True),
)
def figure_d1(plan: Row, run: Run, tell: Tell) -> None:
    """The variance of LeNet's gradient along the authors' frequencies, by two estimators, at three inputs."""
    of, cosines, published = tell.about("LeNet"), fourier_half(SHAPE, "Re", 2), published_accuracies("lenet", run)
    if published is None:
        raise ValueError(
            "Figure D.1 needs the authors' accuracies, and the data folder has no published/dft_accuracies.csv. Put the file there, or "
            "pass --data-root FOLDER."
        )
    _, accuracy = against_published(cosines.labels, np.ones(len(cosines)), published)
    order = np.argsort(accuracy)
    correlations: dict[str, list[float]] = {"difference": [], "exact": []}
    for seed in range(plan["inputs"]):
        for estimator, by_input in correlations.items():
            basis = directions("lenet", plan["draws"]["lenet"], run, estimator=estimator, seed=seed)
            assert basis.values is not None
            along = ((basis.vectors @ cosines.vectors.T) ** 2 * basis.values[:, None]).sum(0).numpy()
            by_input.append(spearman(along, accuracy))
            curve = np.stack([np.arange(len(order), dtype=float), along[order] / along.mean()])
            tell.array(estimator, curve, kind="variance")
    label, key = "rank correlation of variance and accuracy", "lenet_rank_correlation_of"
    for estimator, by_input in correlations.items():
        of(f"{label}, {estimator}", over(by_input, within=(-1.0, 1.0)), key=f"{key}_{estimator}")
    gap = over(np.array(correlations["difference"]) - np.array(correlations["exact"]))
    of(f"{label}, differences minus exact", gap, key=f"{key}_differences_minus_exact")
