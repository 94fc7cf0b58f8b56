"""Section 3.1, proposition A.1, appendices A.5, A.10 and A.11.1: statements about small models, measured from draws of their weights.

Models and random vectors are small, so that every expectation is known within a few per cent in seconds, or exactly. Numbers are from
32 independent groups of draws. Closed forms that put the printed ones right are in `models.py` and in `docs/errata.md`.
"""

# g groups of draws · D input size · d taps of a patch

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import jacrev

from biascope.derivatives.covariance import GradientSampler, gradient_covariance
from biascope.families.family import Family, Network
from biascope.families.weights import Params
from biascope.papers.geometry2025.models import halfspace_second_moment, mean_tap_matrix
from biascope.papers.geometry2025.theory import (
    GROUPS,
    curves_figure,
    dots_figure,
    evolutions,
    pooled_convolution,
    possible_corr,
    share_within,
    slope_of,
    with_gaussian_weights,
)
from biascope.papers.selection import old_figure
from biascope.results.estimate import Estimate, Number, over
from biascope.results.finding import Finding
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run
from biascope.tasks.probe import Probe
from biascope.training.velocity import weight_velocity

DRAWS = {"smoke": 640, "laptop": 64_000, "paper": 640_000}
_CPU = torch.device("cpu")


def _normal(*shape: int, of: str) -> Tensor:
    return torch.randn(*shape, generator=generator_for(_CPU, 0, of), dtype=torch.float64)


def geometry_groups(family: Family, shape: tuple[int, ...], draws: int, run: Run, *, scale: float = 1.0) -> Tensor:
    """Independent estimates ``(g, D, D)`` of the average geometry, at one N(0, σ²I) input for each network."""
    probe = Probe.gaussian(shape, std=scale, fresh=True, seed=0)
    sampler = GradientSampler(family, probe, estimator="exact", step=1.0, readout="first", seed=0, run=run.shared)
    found = gradient_covariance(sampler, draws=draws, seed=0, label=f"{family.name}: geometry")
    identity = torch.eye(found.size, dtype=torch.float64, device=found.device)
    return torch.stack([group.second.matmul(identity) / group.draws for group in found.groups])


def _over_groups(values: Tensor) -> Estimate:
    """Mean over groups of draws."""
    return over(values.double().cpu().numpy())


def _follows(x: Tensor, y: Tensor) -> Callable[[Network, int], Params]:
    """``θ̇`` on samples x with targets y."""
    return lambda networks, start: weight_velocity(networks, x, y)


# Section 3.1 and proposition A.1

_INPUTS, _SAMPLES, _WIDTH = 8, 16, 6


def _data() -> tuple[Tensor, Tensor]:
    """Samples of unequal variances, and random labels −1 and 1."""
    x = _normal(_SAMPLES, _INPUTS, of="samples") * torch.linspace(2.0, 0.2, _INPUTS, dtype=torch.float64)
    return x.float(), torch.sign(_normal(_SAMPLES, of="labels")).float()


@old_figure(
    "3.1",
    title="Linear regression: the average geometry and its evolution at initialisation",
    show=lambda finding, dark: dots_figure(finding, dark, "value"),
)
def section_3_1(effort: str, run: Run) -> Finding:
    """Gaussian weights of variance 1, random labels."""
    (x, y), shape = _data(), (_INPUTS,)
    family = Family.initialised(
        lambda: with_gaussian_weights(nn.Linear(_INPUTS, 1, bias=False)), name="linear regression"
    )
    covariance = (x.double().T @ x.double()).to(run.torch_device)
    geometry = geometry_groups(family, shape, DRAWS[effort], run)
    moved = evolutions(family, shape, _follows(x.to(run.torch_device), y.to(run.torch_device)), DRAWS[effort], run)
    factor = (moved * covariance).sum((1, 2)) / covariance.square().sum()
    statistics = {
        "corr_g_i": possible_corr(geometry, torch.eye(_INPUTS)).named("Corr(G, I)"),
        "corr_delta_s": possible_corr(moved, covariance).named("Corr(Δ, S)"),
        "factor_of_s": _over_groups(factor).named("factor of S in Δ, in units of σ²"),
    }
    notes = ("Definition 2.2 adds the transpose, and so gives Δ = −2σ²S. Section 3.1 leaves the transpose out.",)
    return Finding(statistics, {}, _settings(effort, drawn=list(statistics)), notes)


def _settings(effort: str, **more: Any) -> dict[str, Any]:
    return {"draws": DRAWS[effort], "groups": GROUPS, "seed": 0, **more}


@old_figure(
    "proposition A.1",
    title="What labels add to Δ at initialisation: an MLP of one hidden layer",
    show=lambda finding, dark: dots_figure(finding, dark, "value"),
)
def proposition_a1(effort: str, run: Run) -> Finding:
    """The same networks on the same samples, with labels and with targets 0."""
    (x, y), shape = _data(), (_INPUTS,)
    family = Family.initialised(
        lambda: with_gaussian_weights(
            nn.Linear(_INPUTS, _WIDTH, bias=False), nn.GELU(), nn.Linear(_WIDTH, 1, bias=False)
        ),
        name="MLP",
    )
    x, y = x.to(run.torch_device), y.to(run.torch_device)
    pulled, free = (evolutions(family, shape, _follows(x, each), DRAWS[effort], run) for each in (y, 0 * y))
    mean, added = free.mean(0), pulled - free
    along = (added * mean).sum((1, 2)) / mean.square().sum()
    noise = added.flatten(1).norm(dim=1).mean() / mean.norm()
    statistics: dict[str, Number] = {
        "factor_of_delta_in_what_labels_add": _over_groups(along).named("what labels add to Δ, in units of Δ"),
        "corr_of_delta_with_and_without_labels": possible_corr(pulled, free).named("Corr of Δ with and without labels"),
        "noise_of_a_group": Estimate(float(noise)).named("what labels add in one group of draws, in units of Δ"),
    }
    drawn = ["factor_of_delta_in_what_labels_add", "corr_of_delta_with_and_without_labels"]
    return Finding(statistics, {}, _settings(effort, drawn=drawn, width=_WIDTH))


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


def _dense_relu() -> nn.Module:
    return with_gaussian_weights(
        nn.Flatten(),
        nn.Linear(_SIDE**2, 16, bias=False),
        nn.ReLU(),
        nn.Linear(16, 16, bias=False),
        nn.ReLU(),
        nn.Linear(16, 1, bias=False),
    )


_UNPOOLED: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "mlp": ("MLP", _dense_relu),
    "cnn": ("CNN without padding", lambda: _unpooled(circular=False)),
    "circular_cnn": ("CNN with circular padding", lambda: _unpooled(circular=True)),
}
_PATCH = np.geomspace(4.0, 0.25, 4)  # eigenvalues of the covariance of a patch


@old_figure(
    "A.5",
    title="The structure of G at initialisation: theorem A.2, theorem A.3 and corollary A.4",
    show=lambda finding, dark: dots_figure(finding, dark, "value"),
)
def appendix_a5(effort: str, run: Run) -> Finding:
    """Networks without and with pooling, and a kernel that is divided by the deviation of what it gives."""
    shape, statistics = (1, _SIDE, _SIDE), {}
    draws = DRAWS[effort] // 4
    for key, (title, build) in _UNPOOLED.items():
        groups = geometry_groups(Family.initialised(build, name=title), shape, draws, run)
        statistics[f"{key}_corr_g_i"] = possible_corr(groups, torch.eye(_SIDE**2)).named(f"{title}: Corr(G, I)")
    family = Family.initialised(lambda: pooled_convolution(shape, 1, _TAPS), name="pooled convolution")
    groups = geometry_groups(family, shape, DRAWS[effort], run)
    coverage = torch.from_numpy(mean_tap_matrix(shape[1:], _TAPS).sum(1))
    statistics |= {
        "pooled_share_off_the_diagonal": share_within(groups, 1 - torch.eye(_SIDE**2)).named(
            "pooled convolution: share of ‖G‖² off the diagonal"
        ),
        "pooled_corr_diagonal_coverage": possible_corr(groups.diagonal(dim1=1, dim2=2), coverage).named(
            "pooled convolution: Corr(diagonal of G, coverage)"
        ),
    }
    values = torch.from_numpy(_PATCH)
    kernels = _normal(GROUPS, DRAWS[effort] // GROUPS, len(values), of="kernels").square()
    moments = (kernels / (kernels @ values)[..., None]).mean(1)  # (g, d): E[θθᵀ/θᵀCθ] along the eigenvectors of C
    least, largest = moments[:, 0] * _PATCH[0], moments[:, -1] * _PATCH[-1]
    statistics |= {
        "largest_moment_over_the_printed_upper_bound": _over_groups(largest).named(
            "normalised kernel: largest eigenvalue over the printed upper bound"
        ),
        "least_moment_over_the_printed_lower_bound": _over_groups(least).named(
            "normalised kernel: least eigenvalue over the printed lower bound"
        ),
        "least_moment_over_the_lower_bound_divided_by_d": _over_groups(len(values) * least).named(
            "normalised kernel: least eigenvalue over the lower bound divided by d"
        ),
    }
    notes = (
        "Without padding, G of a CNN is diagonal, and an entry counts the paths that lead to its pixel: the border has fewer.",
        "M_i M_jᵀ of two patches is a shifted identity, not a diagonal matrix; only the diagonal of G counts coverage.",
        "The corollary is read with a standard deviation for σ_j, for the terms with j₁ = j₂; its bounds leave out the factor 1/d of "
        "lemma A.7, without which the lower one fails.",
    )
    settings = _settings(effort, side=_SIDE, channels=_CHANNELS, kernel=_TAPS, patch=_PATCH.tolist())
    return Finding(statistics, {}, settings | {"drawn": list(statistics)}, notes)


# A.10


@old_figure(
    "15",
    title="The example of three inputs, two weights and average pooling: eigenvalues of G",
    show=lambda finding, dark: dots_figure(finding, dark, "value"),
)
def figure_15(effort: str, run: Run) -> Finding:
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
    exact = {
        "first_over_second_eigenvalue": (float(values[0] / values[1]), "first over second eigenvalue"),
        "third_over_first_eigenvalue": (float(values[2] / values[0]), "third over first eigenvalue"),
        "first_entry": (float(geometry[0, 0]), "first entry of G, in units of σ²"),
        "largest_slope_along_the_third_eigenvector": (
            along,
            "largest slope along the third eigenvector over weights, relative to the gradient",
        ),
    }
    statistics: dict[str, Number] = {key: Estimate.exact(value).named(words) for key, (value, words) in exact.items()}
    notes = ("Pooling over two positions halves the gradient, and so quarters G: the factor is σ²/4, not σ²/2.",)
    return Finding(statistics, {}, {"seed": 0, "drawn": list(statistics)}, notes)


# A.11.1

_SIZES = {"smoke": (8, 32), "laptop": (16, 64, 256, 1024), "paper": (16, 64, 256, 1024)}
_PLANE = 16  # inputs of the Monte Carlo


@old_figure(
    "A.11",
    title="Lemmas A.5, A.6 and A.7: second moments of Gaussian vectors in half-spaces and on the sphere",
    show=lambda finding, dark: curves_figure(finding, dark, "dimension D", "relative distance", log_y=True),
)
def appendix_a11(effort: str, run: Run) -> Finding:
    """The first lemma by its exact form, checked from draws; the others from draws."""
    distances = []
    for size in _SIZES[effort]:
        a, b = _normal(2, size, of=f"normals {size}").numpy()
        moment = halfspace_second_moment(a, b)
        multiple = np.trace(moment) / size * np.eye(size)
        distances.append(float(np.linalg.norm(moment - multiple) / np.linalg.norm(multiple)))
    each = DRAWS[effort] // GROUPS
    drawn, first = _normal(GROUPS, each, _PLANE, of="vectors"), _normal(_PLANE, of="first normal")
    second = _normal(_PLANE, of="second normal")
    inside = ((drawn @ first > 0) & (drawn @ second > 0)).double()
    moments = torch.einsum("gn,gnd,gne->gde", inside, drawn, drawn) / each
    exact = torch.from_numpy(halfspace_second_moment(first.numpy(), second.numpy()))
    apart = 0.0
    for against in (torch.eye(_PLANE, dtype=torch.float64), torch.outer(first, second)):
        along = ((moments - exact) * against).sum((1, 2))
        apart = max(apart, float(along.mean().abs() / along.std()) * GROUPS**0.5)
    # Overlap: of half-spaces of two random normals, by as many vectors for each pair.
    normals = _normal(GROUPS, each, _PLANE, of="random normals")
    angle = torch.arccos((normals @ first) / (normals.norm(dim=2) * first.norm()))
    overlap = (math.pi - angle) / (2 * math.pi)
    both = ((drawn @ first > 0) & ((drawn * normals).sum(2) > 0)).double()
    scaled = drawn / drawn.norm(dim=2, keepdim=True)
    spheres = torch.einsum("gnd,gne->gde", scaled, scaled) / each
    statistics: dict[str, Number] = {
        "slope_of_the_distance_from_a_multiple_of_the_identity": slope_of(_SIZES[effort], distances).named(
            "slope of the distance from a multiple of the identity, against D"
        ),
        "mean_overlap": _over_groups(both.mean(1)).named("mean overlap of two half-spaces"),
        "mean_squared_overlap": _over_groups(overlap.square().mean(1)).named("mean squared overlap of two half-spaces"),
        "normalised_moment_corr_i": possible_corr(spheres, torch.eye(_PLANE)).named(
            "normalised vector: Corr(second moment, I)"
        ),
        "normalised_moment_first_entry_times_d": _over_groups(_PLANE * spheres[:, 0, 0]).named(
            "normalised vector: first entry of the second moment, times D"
        ),
        "standard_errors_from_the_exact_moment": Estimate.exact(apart).named(
            "largest distance of drawn from exact moments along I and abᵀ, in standard errors"
        ),
    }
    arrays = {"distance": np.stack([np.array(_SIZES[effort], float), np.array(distances)])}
    notes = (
        "Two half-spaces overlap in at most half of space: the overlap (π − t)/2π lies between 0 and 1/2, with mean 1/4.",
        "The distance of lemma A.5 is that of all entries. As an operator, the remainder stays as large as the rest for every D.",
    )
    return Finding(statistics, arrays, _settings(effort, dimension=_PLANE), notes)
