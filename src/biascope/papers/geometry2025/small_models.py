"""Section 3.1, proposition A.1, appendices A.5, A.10 and A.11.1: statements about small models, measured from draws of their weights.

Models and random vectors are small, so that every expectation is known within a few per cent in seconds, or exactly. Numbers are from
32 independent groups of draws. Closed forms that put the printed ones right are in `models.py` and in `docs/errata.md`.
"""

# g groups of draws · D input size · d taps of a patch

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import jacrev

from biascope.families.family import Family
from biascope.families.network import Network
from biascope.papers.geometry2025.models import halfspace_second_moment, mean_tap_matrix
from biascope.papers.geometry2025.theory import (
    GROUPS,
    Velocity,
    curves_figure,
    dense,
    dots_figure,
    errors_apart,
    evolutions,
    gaussian_probe,
    geometries,
    pooled_convolution,
    possible_corr,
    share_within,
    slope_of,
    with_gaussian_weights,
)
from biascope.results.estimate import Estimate, over
from biascope.results.finding import Tell, figure
from biascope.results.plan import Plan, Row
from biascope.results.wording import snake
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run
from biascope.training.velocity import weight_velocity

_CPU = torch.device("cpu")
_VALUES = functools.partial(dots_figure, x="value")


def _planned(small: Mapping[str, Any] | None = None, **settings: Any) -> Plan:
    """The plan of a figure: draws at each effort, what is the same at each, and what is not at smoke."""
    smoke, laptop, paper = (
        {"draws": draws, "groups": GROUPS, "seed": 0, **settings} for draws in (640, 64_000, 640_000)
    )
    return Plan({**smoke, **(small or {})}, laptop, paper)


def _normal(*shape: int, of: str) -> Tensor:
    return torch.randn(*shape, generator=generator_for(_CPU, 0, of), dtype=torch.float64)


def _geometries(family: Family, shape: tuple[int, ...], draws: int, run: Run) -> Tensor:
    """Independent estimates ``(g, D, D)`` of the average geometry, at one N(0, I) input for each network."""
    return geometries(family, gaussian_probe(shape, num=1), draws, run, readout="first")


def _over_groups(values: Tensor) -> Estimate:
    """Mean over groups of draws."""
    return over(values.double().cpu().numpy())


def _follows(x: Tensor, y: Tensor) -> Velocity:
    """``θ̇`` on samples x with targets y."""
    return lambda networks, start: weight_velocity(networks, x, y)


# Section 3.1 and proposition A.1

_INPUTS, _SAMPLES, _WIDTH = 8, 16, 6


def _data(run: Run) -> tuple[Tensor, Tensor]:
    """Samples of unequal variances, and random labels −1 and 1."""
    x = _normal(_SAMPLES, _INPUTS, of="samples") * torch.linspace(2.0, 0.2, _INPUTS, dtype=torch.float64)
    y = torch.sign(_normal(_SAMPLES, of="labels"))
    return x.float().to(run.torch_device), y.float().to(run.torch_device)


@figure(
    "3.1",
    title="Linear regression: the average geometry and its evolution at initialisation",
    plan=_planned(),
    show=_VALUES,
)
def section_3_1(plan: Row, run: Run, tell: Tell) -> None:
    """Gaussian weights of variance 1, random labels."""
    (x, y), shape = _data(run), (_INPUTS,)
    family = Family.initialised(lambda: dense(_INPUTS, 1), name="linear regression")
    covariance = x.double().T @ x.double()
    geometry = _geometries(family, shape, plan["draws"], run)
    moved = evolutions(family, shape, _follows(x, y), plan["draws"], run)
    factor = (moved * covariance).sum((1, 2)) / covariance.square().sum()
    tell("Corr(G, I)", possible_corr(geometry, torch.eye(_INPUTS)))
    tell("Corr(Δ, S)", possible_corr(moved, covariance))
    tell("factor of S in Δ, in units of σ²", _over_groups(factor), key="factor_of_s")
    tell.settings["drawn"] = list(tell.numbers)
    tell.note("Definition 2.2 adds the transpose, and so gives Δ = −2σ²S. Section 3.1 leaves the transpose out.")


@figure(
    "proposition A.1",
    title="What labels add to Δ at initialisation: an MLP of one hidden layer",
    plan=_planned(width=_WIDTH),
    show=_VALUES,
)
def proposition_a1(plan: Row, run: Run, tell: Tell) -> None:
    """The same networks on the same samples, with labels and with targets 0."""
    (x, y), shape = _data(run), (_INPUTS,)
    family = Family.initialised(lambda: dense(_INPUTS, _WIDTH, 1, activation=nn.GELU), name="MLP")
    pulled, free = (evolutions(family, shape, _follows(x, each), plan["draws"], run) for each in (y, 0 * y))
    mean, added = free.mean(0), pulled - free
    along = _over_groups((added * mean).sum((1, 2)) / mean.square().sum())
    tell("what labels add to Δ, in units of Δ", along, key="factor_of_delta_in_what_labels_add")
    tell("Corr of Δ with and without labels", possible_corr(pulled, free))
    tell.settings["drawn"] = list(tell.numbers)
    noise = Estimate(float(added.flatten(1).norm(dim=1).mean() / mean.norm()))
    tell("what labels add in one group of draws, in units of Δ", noise, key="noise_of_a_group")


# A.5: theorem A.2, theorem A.3 and corollary A.4

_SIDE, _CHANNELS, _TAPS = 6, 4, 3


def _unpooled(circular: bool) -> nn.Module:
    """Two ReLU convolutions, read out by one weight per unit; with circular padding as many positions as pixels."""
    how: dict[str, Any] = {"bias": False} | ({"padding": 1, "padding_mode": "circular"} if circular else {})
    left = _SIDE if circular else _SIDE - 4
    return with_gaussian_weights(
        nn.Conv2d(1, _CHANNELS, _TAPS, **how),
        nn.ReLU(),
        nn.Conv2d(_CHANNELS, _CHANNELS, _TAPS, **how),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(_CHANNELS * left**2, 1, bias=False),
    )


_UNPOOLED: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "mlp": ("MLP", functools.partial(dense, _SIDE**2, 16, 16, 1)),
    "cnn": ("CNN without padding", functools.partial(_unpooled, circular=False)),
    "circular_cnn": ("CNN with circular padding", functools.partial(_unpooled, circular=True)),
}
_PATCH = np.geomspace(4.0, 0.25, 4)  # eigenvalues of the covariance of a patch


@figure(
    "A.5",
    title="The structure of G at initialisation: theorem A.2, theorem A.3 and corollary A.4",
    plan=_planned(side=_SIDE, channels=_CHANNELS, kernel=_TAPS, patch=_PATCH.tolist()),
    show=_VALUES,
)
def appendix_a5(plan: Row, run: Run, tell: Tell) -> None:
    """Networks without and with pooling, and a kernel that is divided by the deviation of what it gives."""
    shape, draws = (1, _SIDE, _SIDE), plan["draws"]
    for key, (title, build) in _UNPOOLED.items():
        groups = _geometries(Family.initialised(build, name=title), shape, draws // 4, run)
        tell(f"{title}: Corr(G, I)", possible_corr(groups, torch.eye(_SIDE**2)), key=f"{key}_corr_g_i")
    family = Family.initialised(lambda: pooled_convolution(shape, 1, _TAPS), name="pooled convolution")
    groups = _geometries(family, shape, draws, run)
    of = tell.about("pooled convolution")
    share = share_within(groups, 1 - torch.eye(_SIDE**2))
    of("share of ‖G‖² off the diagonal", share, key="pooled_share_off_the_diagonal")
    coverage = torch.from_numpy(mean_tap_matrix(shape[1:], _TAPS).sum(1))
    counted = possible_corr(groups.diagonal(dim1=1, dim2=2), coverage)
    of("Corr(diagonal of G, coverage)", counted, key="pooled_corr_diagonal_coverage")
    values = torch.from_numpy(_PATCH)
    kernels = _normal(GROUPS, draws // GROUPS, len(values), of="kernels").square()
    moments = (kernels / (kernels @ values)[..., None]).mean(1)  # (g, d): E[θθᵀ/θᵀCθ] along the eigenvectors of C
    least, largest = moments[:, 0] * _PATCH[0], moments[:, -1] * _PATCH[-1]
    of = tell.about("normalised kernel")
    for words, moment in (
        ("largest {} over the printed upper bound", largest),
        ("least {} over the printed lower bound", least),
        ("least {} over the lower bound divided by d", len(values) * least),
    ):
        of(words.format("eigenvalue"), _over_groups(moment), key=snake(words.format("moment")))
    tell.settings["drawn"] = list(tell.numbers)
    tell.note(
        "Without padding, G of a CNN is diagonal, and an entry counts the paths that lead to its pixel: the border has fewer.",
        "M_i M_jᵀ of two patches is a shifted identity, not a diagonal matrix; only the diagonal of G counts coverage.",
        "The corollary is read with a standard deviation for σ_j, for the terms with j₁ = j₂; its bounds leave out the factor 1/d of "
        "lemma A.7, without which the lower one fails.",
    )


# A.10


@figure(
    "15",
    title="The example of three inputs, two weights and average pooling: eigenvalues of G",
    plan=Plan({"seed": 0}, {"seed": 0}, {"seed": 0}),
    show=_VALUES,
)
def figure_15(plan: Row, run: Run, tell: Tell) -> None:
    """Exact: the gradient is linear in the weights, and its derivative is taken by automatic differentiation."""
    layers = nn.Sequential(nn.Conv1d(1, 1, 2, bias=False), nn.AvgPool1d(2), nn.Flatten()).double()
    network = Network.of(layers)
    (name,) = network.params
    point = torch.zeros(1, 1, 3, dtype=torch.float64)

    def gradient(weight: Tensor) -> Tensor:
        found: Tensor = jacrev(lambda x: network(x, {name: weight.reshape(1, 1, 2)}).sum())(point)
        return found.flatten()

    turned = jacrev(gradient)(torch.zeros(2, dtype=torch.float64))  # (3, 2): how the gradient follows the weights
    geometry = turned @ turned.T  # E θθᵀ = σ²I, with σ = 1
    values = torch.linalg.eigvalsh(geometry).flip(0)
    third = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64) / math.sqrt(3)
    slopes = torch.stack([gradient(weight) for weight in _normal(64, 2, of="weights of the example")])
    along = float(((slopes @ third).abs() / slopes.norm(dim=1)).max())
    tell("first over second eigenvalue", Estimate.exact(float(values[0] / values[1])))
    tell("third over first eigenvalue", Estimate.exact(float(values[2] / values[0])))
    tell("first entry of G, in units of σ²", Estimate.exact(float(geometry[0, 0])), key="first_entry")
    words = "largest slope along the third eigenvector"
    tell(f"{words} over weights, relative to the gradient", Estimate.exact(along), key=snake(words))
    tell.settings["drawn"] = list(tell.numbers)
    tell.note("Pooling over two positions halves the gradient, and so quarters G: the factor is σ²/4, not σ²/2.")


# A.11.1

_PLANE = 16  # inputs of the Monte Carlo


@figure(
    "A.11",
    title="Lemmas A.5, A.6 and A.7: second moments of Gaussian vectors in half-spaces and on the sphere",
    plan=_planned({"dimensions": (8, 32)}, dimensions=(16, 64, 256, 1024), dimension=_PLANE),
    show=functools.partial(curves_figure, x="dimension D", y="relative distance", log_y=True),
)
def appendix_a11(plan: Row, run: Run, tell: Tell) -> None:
    """The first lemma by its exact form, checked from draws; the others from draws."""
    distances = []
    for size in plan["dimensions"]:
        a, b = _normal(2, size, of=f"normals {size}").numpy()
        moment = halfspace_second_moment(a, b)
        multiple = np.trace(moment) / size * np.eye(size)
        distances.append(float(np.linalg.norm(moment - multiple) / np.linalg.norm(multiple)))
    tell.array("distance", np.array([plan["dimensions"], distances]))
    words, slope = "slope of the distance from a multiple of the identity", slope_of(plan["dimensions"], distances)
    tell(f"{words}, against D", slope, key=snake(words))
    each = plan["draws"] // GROUPS
    drawn, first = _normal(GROUPS, each, _PLANE, of="vectors"), _normal(_PLANE, of="first normal")
    second = _normal(_PLANE, of="second normal")
    # Overlap: of half-spaces of two random normals, by as many vectors for each pair.
    normals = _normal(GROUPS, each, _PLANE, of="random normals")
    both = ((drawn @ first > 0) & ((drawn * normals).sum(2) > 0)).double()
    tell("mean overlap of two half-spaces", _over_groups(both.mean(1)), key="mean_overlap")
    angle = torch.arccos((normals @ first) / (normals.norm(dim=2) * first.norm()))
    squared = ((math.pi - angle) / (2 * math.pi)).square()
    tell("mean squared overlap of two half-spaces", _over_groups(squared.mean(1)), key="mean_squared_overlap")
    scaled = drawn / drawn.norm(dim=2, keepdim=True)
    spheres = torch.einsum("gnd,gne->gde", scaled, scaled) / each
    alike, of = possible_corr(spheres, torch.eye(_PLANE)), tell.about("normalised vector")
    of("Corr(second moment, I)", alike, key="normalised_moment_corr_i")
    entry = _over_groups(_PLANE * spheres[:, 0, 0])
    of("first entry of the second moment, times D", entry, key="normalised_moment_first_entry_times_d")
    inside = ((drawn @ first > 0) & (drawn @ second > 0)).double()
    moments = torch.einsum("gn,gnd,gne->gde", inside, drawn, drawn) / each
    exact = torch.from_numpy(halfspace_second_moment(first.numpy(), second.numpy()))
    directions = (torch.eye(_PLANE, dtype=torch.float64), torch.outer(first, second))
    tell(
        "largest distance of drawn from exact moments along I and abᵀ, in standard errors",
        Estimate.exact(errors_apart(moments, exact, *directions)),
        key="standard_errors_from_the_exact_moment",
    )
    tell.note(
        "Two half-spaces overlap in at most half of space: the overlap (π − t)/2π lies between 0 and 1/2, with mean 1/4.",
        "The distance of lemma A.5 is that of all entries. As an operator, the remainder stays as large as the rest for every D.",
    )
