"""Figure 4 and the printed formulas of sections 2.2, 3 and C: the theory of pooling against simulation."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from biascope.families.family import Family
from biascope.measures.anisotropy_directions import anisotropy_directions
from biascope.measures.pooling_theory import PoolingTheory, pooling_theory
from biascope.measures.pooling_theory.models import aliasing_matrix, prefilter_response
from biascope.networks import builder
from biascope.papers.nads2020.accuracies import deviation_beyond, signed_root
from biascope.papers.nads2020.networks import SHAPE, family_of
from biascope.results.draw import PALETTE, blank, panel
from biascope.results.estimate import Estimate, bootstrapped, over, spearman
from biascope.results.figures import lines_figure
from biascope.results.finding import Finding, Tell, figure
from biascope.results.plan import Plan, Row
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MODEL = {"size": 128, "stride": 4}
POOLING = Plan(
    smoke={**_MODEL, "seeds": 3, "samples": 500, "iterations": 100, "repeats": 2, "train": 100},
    laptop={**_MODEL, "seeds": 3},
    paper={**_MODEL, "seeds": 3, "samples": 100_000},
    published=_MODEL,
)


def _best_accuracy(finding: Finding, dark: bool) -> Figure:
    arrays = finding.arrays
    rows = {"closed form": "accuracy", "simulated": "simulated", "as printed": "as printed"}
    return lines_figure(
        {name: (arrays["frequencies"], 100 * arrays[row]) for name, row in rows.items()},
        x="frequency ℓ",
        y="best accuracy after pooling, %",
        bands={"simulated": 100 * arrays["errors"]},
        dark=dark,
    )


@figure(
    "4",
    title="What pooling does: best accuracy after it, and the training of a linear model behind it (S = 4, D = 128)",
    plan=POOLING,
    show=_best_accuracy,
)
def figure_4(plan: Row, run: Run, tell: Tell) -> None:
    """The pooling theory against simulation, for real signals."""
    settings = {name: value for name, value in plan.items() if name != "seeds"}
    results = [pooling_theory(seed=seed, run=run.shared, **settings) for seed in range(plan["seeds"])]
    first = results[0]
    tell("largest deviation in standard errors", over([np.abs(each.deviations()[0]).max() for each in results]))
    printed = over([np.abs(_printed_deviations(each)).max() for each in results])
    tell("largest deviation of the printed formula", printed)
    beyond = [100 * signed_root(each.simulated[0].var(ddof=1) - (each.errors[0] ** 2).mean()) for each in results]
    label, key = "standard deviation over frequencies beyond that of the simulation", "deviation_beyond_the_simulation"
    tell(label, over(beyond), "points", key=key)
    ranked = bootstrapped(spearman, *_ratios_and_iterations(results))
    tell("rank correlation of curvature ratio and iterations", ranked)
    if (slow := first.slowdown()) is not None:
        tell("iterations of late over early frequencies", slow[2])
    tell.array("frequencies", first.frequencies)
    tell.array("accuracy", first.accuracy[0])
    tell.array("simulated", first.simulated[0])
    tell.array("errors", first.errors[0])
    tell.array("as printed", np.asarray(first.accuracy_as_printed))
    tell.note(
        "The printed formula of theorem 1 is right for the real data only at S = 2, and for the complex model of its proof only at "
        "S = 4; see docs/errata.md."
    )


def _printed_deviations(result: PoolingTheory) -> np.ndarray:
    """Of the simulation from the printed formula, in standard errors."""
    doubtful = result.errors[0] > 0  # where the best rule is never wrong there is nothing to compare
    return np.asarray((result.simulated[0] - result.accuracy_as_printed)[doubtful] / result.errors[0][doubtful])


def _ratios_and_iterations(results: Sequence[PoolingTheory]) -> tuple[np.ndarray, np.ndarray]:
    """By trained frequency; a frequency that was never learned counts as the whole length."""
    ratio = results[0].curvature_ratio[results[0].trained]
    needed = [np.nan_to_num(each.iterations_needed, nan=float(len(each.losses))).mean(1) for each in results]
    return ratio, np.mean(needed, axis=0)


# D input size · S stride · t draws
_SIZE, _STRIDE, _FREQUENCY = 32, 4, 3
_EPSILON, _SIGMA = 1.0, 0.5  # of the data
_THETA, _PHI = 0.7, 1.3  # standard deviations of the two kinds of weights
_PLAN = {"size": _SIZE, "stride": _STRIDE, "prefilter": "gaussian", "seed": 0}
FORMULAS = Plan(
    smoke={**_PLAN, "draws": 500, "draws of shallow networks": 64},
    laptop={**_PLAN, "draws": 40_000, "draws of shallow networks": 2000},
    paper={**_PLAN, "draws": 400_000, "draws of shallow networks": 2000},
)
_FORMULAS = {
    "equation_4": "Equation 4 gives the gradient covariance",
    "equation_5": "Equation 5 gives the Gram matrix of the mixed derivative",
    "lemma_1": "Lemma 1 gives the average Hessian with respect to the filter",
    "example_4": "Example 4 gives the gradient covariance of the non-linear model",
}


def _ratios(finding: Finding, dark: bool) -> Figure:
    picture = blank(3.1, "At 1, the simulated trace is the printed one.")
    axes = panel(picture, dark)
    ratios = finding.arrays["ratios"]
    axes.axhline(1.0, color=PALETTE[dark].muted, linewidth=1)
    axes.errorbar(np.arange(len(ratios)), ratios[:, 0], yerr=ratios[:, 1], fmt="o", color=PALETTE[dark].lines[0])
    axes.set_xticks(np.arange(len(ratios)), [name.replace("_", " ") for name in _FORMULAS], rotation=20)
    axes.set(ylabel="simulated over printed trace", ylim=(0, None))
    return picture


@figure(
    "Equations", title="The printed formulas of the models of pooling against Monte Carlo", plan=FORMULAS, show=_ratios
)
def equations(plan: Row, run: Run, tell: Tell) -> None:
    """Traces, bounds and accuracies on drawn weights, each with the error of the draws."""
    draws, generator = plan["draws"], np.random.default_rng(plan["seed"])
    m = np.abs(prefilter_response(plan["prefilter"], _SIZE, _STRIDE))
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
    ratios = {name: _mean(simulated[name] / printed[name]) for name in _FORMULAS}
    tell.array("ratios", np.array([(ratio.value, ratio.standard_error) for ratio in ratios.values()]))
    for name, words in _FORMULAS.items():
        tell(f"{words}: simulated over printed trace", ratios[name], key=f"{name}_simulated_over_printed_trace")
    slope = generator.standard_normal(draws)  # vᵀθ of f(x) = θᵀx with unit v; g(t) = 0.05 t², so that α = 0.1 and β = 0
    excess = _mean(0.1 * np.abs(slope)).map_linear(1.0, -(0.1**2))
    tell("mean weight gradient minus the printed bound", excess, key="weight_gradient_minus_the_bound_of_lemma_2")
    metric = gradient[:, _FREQUENCY] ** 2
    beyond = [_mean(metric >= level).minus(_mean(metric).map_linear(1 / level)) for level in np.geomspace(0.1, 10, 9)]
    largest = max(beyond, key=float)
    tell("largest share of weights minus the bound", largest, key="largest_share_minus_the_bound_of_equation_6")
    # The best filter passes the frequency alone, so that the sign of x[ℓ] decides.
    right = ((_EPSILON + _SIGMA * generator.standard_normal((draws, _SIZE))) > 0).mean(0)
    deviation = bootstrapped(lambda shares: deviation_beyond(shares, draws), right)
    tell("deviation of the best accuracy beyond the simulation", deviation, "points")
    one_layer = Family.initialised(functools.partial(builder("mlp"), hidden=(500,)), name="one hidden layer")
    how = {"estimator": "exact", "draws": plan["draws of shallow networks"], "keep": 1, "run": run.shared}
    for family in (family_of("logistic_regression"), one_layer):
        rank = anisotropy_directions(family, Probe.gaussian(SHAPE, seed=0), **how).effective_rank
        tell.about(family.name)("effective rank over 1024", rank.map_linear(1 / 1024))
    tell.note(
        "The printed traces of equations 4 and 5 and of lemma 1 lack a factor 1/S; see docs/errata.md.",
        "The prefilter is Gaussian, because a box has frequencies that no filter can recover.",
    )


def _mean(values: np.ndarray) -> Estimate:
    """A mean over draws with its error."""
    values = np.asarray(values, np.float64)
    return Estimate.from_error(float(values.mean()), float(values.std(ddof=1)) / len(values) ** 0.5, len(values))
