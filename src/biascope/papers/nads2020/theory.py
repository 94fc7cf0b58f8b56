"""The printed formulas of sections 2.2, 3 and C against Monte Carlo, and what section E says of the poisoned classes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.optimize import linprog

from biascope.families.family import Family
from biascope.measures.anisotropy_directions import anisotropy_directions
from biascope.measures.pooling_theory.models import aliasing_matrix, prefilter_response
from biascope.networks import builder
from biascope.papers.nads2020.directions import DRAWS, directions
from biascope.papers.nads2020.images import cifar
from biascope.papers.nads2020.shared import SHAPE, family_of, signed_root
from biascope.papers.selection import old_figure
from biascope.results.draw import PALETTE, blank, panel
from biascope.results.estimate import Estimate, Number, bootstrapped
from biascope.results.finding import Finding
from biascope.runs.run import Run
from biascope.tasks.images import poisoned
from biascope.tasks.probe import Probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# D input size · S stride · t draws
_SIZE, _STRIDE, _FREQUENCY = 32, 4, 3
_EPSILON, _SIGMA = 1.0, 0.5  # of the data
_THETA, _PHI = 0.7, 1.3  # standard deviations of the two kinds of weights
_DRAWS = {"smoke": 500, "laptop": 40_000, "paper": 400_000}
_FORMULAS = {
    "equation_4": ("linear_model_gradient_covariance", "Equation 4 gives the gradient covariance"),
    "equation_5": ("linear_model_mixed_derivative", "Equation 5 gives the Gram matrix of the mixed derivative"),
    "lemma_1": ("lemma_1", "Lemma 1 gives the average Hessian with respect to the filter"),
    "example_4": ("nonlinear_pooling_covariance", "Example 4 gives the gradient covariance of the non-linear model"),
}


def _drawn(finding: Finding, dark: bool) -> Figure:
    picture = blank(3.1, "At 1, the simulated trace is the printed one.")
    axes = panel(picture, dark)
    ratios = finding.arrays["ratios"]
    axes.axhline(1.0, color=PALETTE[dark].muted, linewidth=1)
    axes.errorbar(np.arange(len(ratios)), ratios[:, 0], yerr=ratios[:, 1], fmt="o", color=PALETTE[dark].lines[0])
    axes.set_xticks(np.arange(len(ratios)), [name.replace("_", " ") for name in _FORMULAS], rotation=20)
    axes.set(ylabel="simulated over printed trace", ylim=(0, None))
    return picture


@old_figure(
    "Equations",
    title="The printed formulas of the models of pooling against Monte Carlo",
    show=_drawn,
)
def equations(effort: str, run: Run) -> Finding:
    """Traces, bounds and accuracies on drawn weights, each with the error of the draws."""
    draws = _DRAWS[effort]
    generator = np.random.default_rng(0)
    m = np.abs(prefilter_response("gaussian", _SIZE, _STRIDE))
    folding = aliasing_matrix(_SIZE, _STRIDE)
    theta = _THETA * generator.standard_normal((draws, _SIZE // _STRIDE)) @ folding  # Aᵀθ, (t, D)
    phi = _PHI * generator.standard_normal((draws, _SIZE))
    label = generator.choice([-1.0, 1.0], draws)
    noise = _SIGMA * generator.standard_normal((draws, _SIZE))
    x = noise + _EPSILON * label[:, None] * np.eye(_SIZE)[_FREQUENCY]
    gradient, power = theta * phi * m, float((m**2).sum())
    half = gradient * (phi * x > 0)  # of the non-linear model, ρ'(φ ⊙ x) being 0 or 1
    simulated = {
        "equation_4": (gradient**2).sum(1),
        "equation_5": ((theta * m) ** 2).sum(1) + ((phi * m) ** 2).sum(1) / _STRIDE,
        "lemma_1": 2 * ((theta * m * x) ** 2).sum(1),
        "example_4": (half**2).sum(1),
    }
    printed = {
        "equation_4": _PHI**2 * _THETA**2 * power,
        "equation_5": (_THETA**2 + _PHI**2 / _STRIDE) * power,
        "lemma_1": 2 * _EPSILON**2 * m[_FREQUENCY] ** 2 * _THETA**2 + 2 * _SIGMA**2 * _THETA**2 * power,
        "example_4": _PHI**2 * _THETA**2 * power / _STRIDE * _PHI**2 / 2 * (1 - 2 / np.pi),
    }
    statistics: dict[str, Number] = {}
    ratios = []
    for name, (_, words) in _FORMULAS.items():
        found = _mean(simulated[name] / printed[name])
        ratios.append((found.value, found.standard_error))
        statistics[f"{name}_simulated_over_printed_trace"] = found.named(f"{words}: simulated over printed trace")
    slope = generator.standard_normal(draws)  # vᵀθ of f(x) = θᵀx with unit v; g(t) = 0.05 t², so that α = 0.1 and β = 0
    excess = _mean(0.1 * np.abs(slope)).map_linear(1.0, -(0.1**2))
    statistics["weight_gradient_minus_the_bound_of_lemma_2"] = excess.named(
        "mean weight gradient minus the printed bound"
    )
    metric = gradient[:, _FREQUENCY] ** 2
    over = [_mean(metric >= level).minus(_mean(metric).map_linear(1 / level)) for level in np.geomspace(0.1, 10, 9)]
    statistics["largest_share_minus_the_bound_of_equation_6"] = max(over, key=lambda each: each.value).named(
        "largest share of weights minus the bound"
    )
    # The best filter passes the frequency alone, so that the sign of x[ℓ] decides.
    right = ((_EPSILON + _SIGMA * generator.standard_normal((draws, _SIZE))) > 0).mean(0)
    beyond = bootstrapped(
        lambda shares: 100 * signed_root(shares.var(ddof=1) - (shares * (1 - shares)).mean() / draws), right
    )
    statistics["deviation_of_the_best_accuracy_beyond_the_simulation"] = beyond.named(
        "deviation of the best accuracy beyond the simulation", "points"
    )
    shallow = {
        "logistic_regression": family_of("logistic_regression"),
        "one_hidden_layer": Family.initialised(
            functools.partial(builder("mlp"), hidden=(500,)), name="one hidden layer"
        ),
    }
    for key, family in shallow.items():
        rank = anisotropy_directions(
            family,
            Probe.gaussian(SHAPE, seed=0),
            estimator="exact",
            draws=64 if effort == "smoke" else 2000,
            keep=1,
            seed=0,
            run=run.shared,
        ).effective_rank
        statistics[f"{key}_effective_rank_over_1024"] = rank.map_linear(1 / 1024).named(
            f"{family.name}: effective rank over 1024"
        )
    settings = {"draws": draws, "size": _SIZE, "stride": _STRIDE, "prefilter": "gaussian", "seed": 0}
    notes = (
        "The printed traces of equations 4 and 5 and of lemma 1 lack a factor 1/S; see docs/errata.md.",
        "The prefilter is Gaussian, because a box has frequencies that no filter can recover.",
    )
    return Finding(statistics, {"ratios": np.array(ratios)}, settings, notes)


def _mean(values: np.ndarray) -> Estimate:
    """A mean over draws with its error."""
    values = np.asarray(values, np.float64)
    return Estimate.from_error(float(values.mean()), float(values.std(ddof=1)) / len(values) ** 0.5, len(values))


def _drawn_e(finding: Finding, dark: bool) -> Figure:
    picture = blank(3.1, "Below 10, the carriers alone do not separate all classes.")
    axes = panel(picture, dark)
    places, counts = finding.arrays["separable"]
    axes.bar([f"{place:.0f}" for place in places], counts, color=PALETTE[dark].lines[0])
    axes.set(xlabel="index of the first carrier", ylabel="classes of 10", ylim=(0, 10))
    return picture


@old_figure(
    "E",
    title="Classes of poisoned CIFAR-10 that the carriers alone separate (ε = 0.05)",
    show=_drawn_e,
    published={"training images": 50_000, "epsilon": 0.05, "draws: LeNet": 10_000},
)
def section_e(effort: str, run: Run) -> Finding:
    """A linear programme for each class: does a hyperplane in the coordinates along the carriers separate it from the rest?"""
    images, places = cifar(effort, run), (0, 100, 1000)
    basis = directions("lenet", effort, run).vectors
    counts = []
    for place in places:
        task = poisoned(images, basis, [place], epsilon=0.05)
        carriers = torch.cat(
            [torch.kron(torch.eye(3), basis[place + step].float()[None]) for step in (0, 1)]
        )  # (6, 3D)
        batches = [task.batch("train", indices) for indices in torch.split(torch.arange(images.sizes["train"]), 1000)]
        coordinates = torch.cat([x[0].flatten(1).float() @ carriers.T for x, _ in batches]).double().numpy()
        labels = torch.cat([y for _, y in batches]).numpy()
        counts.append(sum(_separable(coordinates, labels == label) for label in range(10)))
    # Other directions would give other images: how much the number varies is not known.
    fewest = Estimate(float(min(counts))).named("fewest classes separable by the carriers")
    settings = {
        "training images": images.sizes["train"],
        "epsilon": 0.05,
        "draws: LeNet": DRAWS[effort]["lenet"],
        "places": list(places),
        "seed": 0,
    }
    return Finding(
        {"fewest_classes_separable_by_the_carriers": fewest},
        {"separable": np.array([places, counts], float)},
        settings,
        (
            "Only the carrier of an image's own class is set to ±ε; along the other carriers the image keeps its content.",
        ),
    )


def _separable(points: np.ndarray, chosen: np.ndarray) -> bool:
    """Whether a hyperplane separates the chosen points from the others, by the largest margin of a bounded one."""
    scaled = points / np.abs(points).max(0)
    sign = np.where(chosen, -1.0, 1.0)[:, None]
    # Maximise t subject to sign·(w·x + b) + t ≤ 0 with |w| ≤ 1: separable if t > 0.
    table = np.hstack([sign * scaled, sign, np.ones_like(sign)])
    cost = np.zeros(table.shape[1])
    cost[-1] = -1.0
    bounds = [(-1.0, 1.0)] * points.shape[1] + [(None, None), (None, 1.0)]
    found = linprog(cost, A_ub=table, b_ub=np.zeros(len(table)), bounds=bounds, method="highs")
    return bool(found.status == 0 and -found.fun > 1e-9)
