"""Figures 1 and 3 and section D of the pattern statistics paper: pattern networks trained by SGD, and their constants c*."""

# r runs · P patterns · n patterns of an input · m samples · k half the channels

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from biascope.measures.pattern_statistics import pattern_statistics, published_batch, published_rate
from biascope.measures.pattern_statistics.pictures import constants_against_figure, ratios_figure
from biascope.measures.pattern_statistics.result import LAWS, PatternStatistics
from biascope.papers.selection import old_figure
from biascope.results.estimate import Estimate, Number, bootstrapped, over, spearman
from biascope.results.finding import Finding
from biascope.results.wording import snake
from biascope.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Figure 1a: (n, P) of each law, k, m, runs.
_Grid = tuple[dict[str, tuple[tuple[int, int], ...]], tuple[int, ...], tuple[int, ...], int]
_GRID: dict[str, _Grid] = {
    "smoke": ({"uniform": ((3, 6),), "paired": ((3, 6),)}, (20,), (20, 40), 2),
    "laptop": ({"uniform": ((10, 20), (20, 50)), "paired": ((10, 20),)}, (1000,), (100, 500, 2000), 4),
    "paper": (
        {
            "uniform": ((10, 20), (10, 80), (20, 50), (40, 60)),
            "paired": ((10, 20), (40, 80), (25, 50), (30, 60)),
        },
        (1000, 10_000),
        (100, 500, 1000, 2000, 5000, 20_000, 40_000),
        10,
    ),
}
# Figures 1b and 3 on D_u: (n, P), what is swept, what is fixed, runs.
_WIDTHS: dict[str, tuple[tuple[int, int], tuple[int, ...], int, int]] = {
    "smoke": ((3, 6), (10, 20), 20, 2),
    "laptop": ((20, 50), (50, 100, 400, 1600), 2000, 4),
    "paper": ((20, 50), (50, 100, 1000, 2500, 5000, 7500, 10_000), 2000, 10),
}
_SIZES: dict[str, tuple[tuple[int, int], tuple[int, ...], int, int]] = {
    "smoke": ((3, 6), (20, 40), 20, 2),
    "laptop": ((20, 50), (100, 200, 500, 2000, 8000), 500, 4),
    "paper": ((20, 50), (100, 200, 500, 1000, 2000, 5000, 20_000, 40_000, 80_000, 120_000), 2500, 10),
}
# Figure 1c: n, P, m, k, every which of the published p, runs, epochs at most.
_BIASES: dict[str, tuple[int, int, int, int, int, int, int]] = {
    "smoke": (4, 8, 40, 20, 14, 2, 200),
    "laptop": (40, 60, 1000, 250, 9, 3, 2000),
    "paper": (40, 60, 1000, 2500, 1, 4, 2000),
}
PUBLISHED_BIASES = (
    *(0.0, 0.01, 0.03, 0.05, 0.07, 0.1, 0.12, 0.2, 0.21, 0.28, 0.3, 0.4, 0.44, 0.5),
    *(0.51, 0.59, 0.6, 0.68, 0.7, 0.78, 0.8, 0.9, 0.91, 0.94, 0.95, 0.98, 0.99, 1.0),
)
#: Seed of figures 1b, 1c and 3. Runs from seed 0 had been seen when the claims that go by the paper's own words were written.
SEED = 1
RATE = (
    "The learning rate is max(0.001/k, 1e-7): the printed formula is damaged, and this is its best reading. Batches are of 20 "
    "samples from k = 10,000 on and of 100 below, which the paper says of 10,000 and 1,000 only."
)
STOP = "A training ends with the first epoch whose mean loss, taken batch by batch before the updates, is below 1e-5, or after 50,000."
LIKELY = "c* is the largest of many ratios, so that its distribution is skewed: intervals of means are rough."


def _trained(run: Run, quick: bool, *, seed: int = 0, **settings: Any) -> PatternStatistics:
    """Networks as published; quick ones, with few channels, at a rate that takes seconds."""
    if quick:
        settings |= {"rate": 0.2 / settings["k"], "epochs": min(400, settings.get("epochs", 400)), "batch": 10}
    return pattern_statistics(**settings, seed=seed, run=run.shared)


def _gathered(found: Sequence[PatternStatistics]) -> dict[str, Number]:
    """Numbers of all runs of a figure together."""
    constants = np.concatenate([one.constants() for one in found])
    converged = np.concatenate([one.converged for one in found])
    runs = len(constants)
    mean = over(constants[converged]) if converged.sum() > 1 else Estimate(float("nan"))
    # Counts and extremes are facts about these runs, and exact as such.
    return {
        "share_of_runs_that_converged": Estimate.exact(float(converged.mean())).named("share of runs that converged"),
        "largest_c_star": Estimate.exact(float(constants.max())).named("largest c*"),
        "share_of_runs_with_c_star_below_1": Estimate.exact(float((constants < 1).mean())).named(
            "share of runs with c* below 1"
        ),
        "runs": Estimate.exact(float(runs)).named("runs"),
        "runs_that_did_not_converge": Estimate.exact(float((~converged).sum())).named("runs that did not converge"),
        "runs_with_an_error_on_fresh_inputs": Estimate.exact(
            float(sum((one.test_errors > 0).sum() for one in found))
        ).named("runs with an error on fresh inputs"),
        "share_of_runs_certified_to_err_nowhere": Estimate.exact(
            float(np.concatenate([one.certified for one in found]).mean())
        ).named("share of runs certified to err nowhere"),
        "mean_c_star_of_those_that_converged": mean.named("mean c* of those that converged"),
    }


#: Sections E.3 to E.5.
_RECIPE = {"b": 2, "σ_g": 1e-6, "loss tolerance": 1e-5, "test points": 1000}


def _rows(places: Sequence[int], found: Sequence[PatternStatistics]) -> np.ndarray:
    """Places, then c* of each run."""
    return np.vstack([np.array(places, float), np.stack([one.constants() for one in found], 1)])


def _curves(finding: Finding, x: str, dark: bool) -> Figure:
    curves = {name: (array[0], array[1:]) for name, array in finding.arrays_of("c*").items()}
    return constants_against_figure(curves, x=x, dark=dark)


def _stragglers(found: dict[str, PatternStatistics]) -> str:
    late = {name: int((~one.converged).sum()) for name, one in found.items() if not one.converged.all()}
    if not late:
        return "All trainings converged."
    return "Not converged: " + "; ".join(f"{count} of {name}" for name, count in late.items()) + "."


@old_figure(
    "1a",
    title="The constant c* of pattern networks, for all sizes (n/d)",
    show=lambda finding, dark: _curves(finding, "training samples m", dark),
    published=_RECIPE
    | {
        "plan": {law: list(map(list, shapes)) for law, shapes in _GRID["paper"][0].items()},
        "k": [1000, 10_000],
        "m": list(_GRID["paper"][2]),
        "runs": 10,
        "epochs": 50_000,
        "batches": {"1000": 100, "10000": 20},
    },
)
def figure_1a(effort: str, run: Run) -> Finding:
    """c* at b = 2 against the number of samples, two laws, several sizes and widths."""
    laws, widths, samples, runs = _GRID[effort]
    every: dict[str, PatternStatistics] = {}
    arrays: dict[str, np.ndarray] = {}
    for k, (law, shapes) in itertools.product(widths, laws.items()):
        for n, patterns in shapes:
            title = f"{LAWS[law]} {n}/{patterns}, k={k}"
            size: dict[str, Any] = {"law": law, "per_input": n, "patterns": patterns, "k": k, "runs": runs}
            found = [_trained(run, effort == "smoke", samples=m, **size) for m in samples]
            every |= {f"{title}, m = {m}": one for m, one in zip(samples, found, strict=True)}
            arrays[f"c*: {title}"] = _rows(samples, found)
            arrays[f"epochs: {title}"] = np.stack([one.epochs for one in found], 1).astype(float)
    statistics = _gathered(list(every.values()))
    unsure = {name: float((one.constants() >= 1).sum()) for name, one in every.items() if (one.constants() >= 1).any()}
    settings: dict[str, Any] = {
        "plan": {law: list(map(list, shapes)) for law, shapes in laws.items()},
        "k": list(widths),
    }
    settings |= {"m": list(samples), "runs": runs, "seed": 0, "c* of 1 or more": unsure}
    return Finding(statistics, arrays, settings | _how(widths), (RATE, STOP, _stragglers(every)))


def _how(widths: Sequence[int], epochs: int = 50_000) -> dict[str, Any]:
    return {
        **_RECIPE,
        "epochs": epochs,
        "rates": {str(k): published_rate(k) for k in widths},
        "batches": {str(k): published_batch(k) for k in widths},
    }


def _swept(effort: str, run: Run, name: str, plan: tuple[tuple[int, int], tuple[int, ...], int, int]) -> Finding:
    (n, patterns), places, fixed, runs = plan
    other = "samples" if name == "k" else "k"
    size: dict[str, Any] = {"law": "uniform", "per_input": n, "patterns": patterns, "runs": runs, other: fixed}
    found = [_trained(run, effort == "smoke", seed=SEED, **size, **{name: place}) for place in places]
    rows = _rows(places, found)
    at, constants = np.repeat(rows[0][None], runs, 0), rows[1:]
    statistics = _gathered(found)

    def together(picked: np.ndarray) -> float:
        return spearman(at[picked].ravel(), constants[picked].ravel())

    statistics["rank_correlation_of_c_star"] = bootstrapped(together, np.arange(runs)).named("rank correlation of c*")
    statistics["share_of_the_variance_of_c_star_ranks_explained"] = bootstrapped(
        lambda picked: together(picked) ** 2, np.arange(runs)
    ).named(f"share of the variance of the ranks of c* that {'k' if name == 'k' else 'm'} explains")
    statistics["mean_c_star_at_the_largest"] = over(constants[:, -1]).named("mean c* at the largest")
    statistics["mean_c_star_at_the_smallest"] = over(constants[:, 0]).named("mean c* at the smallest")
    arrays = {"c*: D_u": rows, "epochs: D_u": np.stack([one.epochs for one in found], 1).astype(float)}
    settings = {"n": n, "d": patterns, name: list(places), other: fixed, "runs": runs, "seed": SEED}
    settings |= _how(places if name == "k" else [fixed])
    late = _stragglers({f"{name} = {place}": one for place, one in zip(places, found, strict=True)})
    return Finding(statistics, arrays, settings, (RATE, STOP, LIKELY, late))


def _swept_published(name: str, places: Sequence[int], **fixed: int) -> dict[str, Any]:
    return _RECIPE | {"n": 20, "d": 50, name: list(places), "runs": 10, "epochs": 50_000, **fixed}


@old_figure(
    "1b",
    title="c* against the number of channels",
    show=lambda finding, dark: _curves(finding, "k, half the channels", dark),
    published=_swept_published("k", _WIDTHS["paper"][1], samples=2000),
)
def figure_1b(effort: str, run: Run) -> Finding:
    """D_u with n = 20, d = 50 and 2,000 samples."""
    return _swept(effort, run, "k", _WIDTHS[effort])


@old_figure(
    "3",
    title="c* against the number of samples",
    show=lambda finding, dark: _curves(finding, "training samples m", dark),
    published=_swept_published("samples", _SIZES["paper"][1], k=2500),
)
def figure_3(effort: str, run: Run) -> Finding:
    """D_u with n = 20, d = 50 and k = 2,500."""
    return _swept(effort, run, "samples", _SIZES[effort])


def _drawn_ratios(finding: Finding, dark: bool) -> Figure:
    dots = {name: (finding.arrays[name][0], finding.arrays[name][1]) for name in ("p₁", "p₃ and p₄", "other spurious")}
    return ratios_figure(dots, ratio="positive detection ratio", dark=dark)


@old_figure(
    "1c",
    title="Detection ratios against pattern statistics",
    show=_drawn_ratios,
    published=_RECIPE | {"n": 40, "d": 60, "m": 1000, "k": 2500, "p": list(PUBLISHED_BIASES), "epochs": 2000},
)
def figure_1c(effort: str, run: Run) -> Finding:
    """D_p, in which two spurious patterns go with the labels as far as p says."""
    n, patterns, samples, k, every, runs, epochs = _BIASES[effort]
    biases = PUBLISHED_BIASES[::every]
    size: dict[str, Any] = {
        "law": "biased",
        "per_input": n,
        "patterns": patterns,
        "samples": samples,
        "k": k,
        "runs": runs,
    }
    found = [_trained(run, effort == "smoke", seed=SEED, bias=p, epochs=epochs, **size) for p in biases]
    lean = np.concatenate([_leaning(one) for one in found])
    ratio = np.concatenate([one.positive for one in found])
    groups = {"p₁": [0], "p₃ and p₄": [2, 3], "other spurious": list(range(4, patterns))}
    arrays = {name: np.stack([lean[:, places].ravel(), ratio[:, places].ravel()]) for name, places in groups.items()}
    statistics = _gathered(found)
    statistics["rank_correlation_for_p3_and_p4"] = _correlation(lean[:, 2:4], ratio[:, 2:4]).named(
        "rank correlation for p₃ and p₄"
    )
    statistics["rank_correlation_for_all"] = _correlation(
        lean[:, [0, *range(2, patterns)]], ratio[:, [0, *range(2, patterns)]]
    ).named("rank correlation for all")
    high = np.nanmean(np.where(lean[:, 2:4] > 0.9, ratio[:, 2:4], np.nan)) if (lean[:, 2:4] > 0.9).any() else np.nan
    chosen = ratio[:, 2:4][lean[:, 2:4] > 0.9]
    mean = over(chosen) if len(chosen) > 1 else Estimate(float(high))
    statistics["mean_ratio_where_minus_s_i_s_1_is_above_0_9"] = mean.named("mean ratio where −s_i/s_1 is above 0.9")
    balanced = over(
        np.nanmean(ratio[:, 4:], 1)
    )  # other spurious patterns; patterns of one training are not independent
    statistics["mean_ratio_of_balanced_patterns"] = balanced.named("mean ratio of balanced spurious patterns")
    statistics["mean_ratio_above_0_9_minus_that_of_balanced_patterns"] = mean.minus(balanced).named(
        "mean ratio where −s_i/s_1 is above 0.9, minus that of balanced spurious patterns"
    )
    arrays["epochs"] = np.stack([one.epochs for one in found]).astype(float)
    settings = {
        "n": n,
        "d": patterns,
        "m": samples,
        "k": k,
        "p": list(biases),
        "runs": runs,
        "seed": SEED,
    }
    late = _stragglers({f"p = {p:g}": one for p, one in zip(biases, found, strict=True)})
    notes = (RATE, STOP.replace("50,000", f"{epochs:,}"), late)
    return Finding(statistics, arrays, settings | _how([k], epochs), notes)


def _leaning(found: PatternStatistics) -> np.ndarray:
    """``max(−s_i/s_1, 0)``, ``(r, P)``."""
    return np.asarray(np.maximum(-found.statistics / found.statistics[:, :1], 0))


def _correlation(lean: np.ndarray, ratio: np.ndarray) -> Estimate:
    """Rank correlation, resampled by trainings, which are the rows."""
    return bootstrapped(lambda picked: spearman(lean[picked].ravel(), ratio[picked].ravel()), np.arange(len(lean)))


def _drawn_largest(finding: Finding, dark: bool) -> Figure:
    return ratios_figure(finding.curves_of("ratios"), ratio="positive detection ratio", dark=dark)


@old_figure(
    "D",
    title="The conditions of the proof, at the largest k and m",
    show=_drawn_largest,
    published=_RECIPE | {"k": 10_000, "m": 40_000, "epochs": 50_000, "batches": {"10000": 20}},
)
def figure_d(effort: str, run: Run) -> Finding:
    """Section D: ratios below 1/d and zero test error."""
    laws, widths, samples, runs = _GRID[effort]
    found: dict[str, PatternStatistics] = {}
    for law, shapes in laws.items():
        for n, patterns in shapes:
            size: dict[str, Any] = {
                "law": law,
                "per_input": n,
                "patterns": patterns,
                "k": widths[-1],
                "samples": samples[-1],
                "runs": runs,
            }
            found[f"{LAWS[law]} {n}/{patterns}"] = _trained(run, effort == "smoke", **size)
    statistics = _gathered(list(found.values()))
    arrays: dict[str, np.ndarray] = {}
    largest = 0.0
    for title, one in found.items():
        size_of = one.statistics.shape[1]
        arrays[f"ratios: {title}"] = np.stack([_leaning(one)[:, 2:].ravel(), one.positive[:, 2:].ravel()])
        both = size_of * float(max(np.nanmax(one.positive), np.nanmax(one.negative)))
        statistics[f"{snake(title)}_largest_ratio_times_d"] = Estimate.exact(both).named(
            f"{title}: largest ratio times d"
        )
        largest = max(largest, both)
    statistics["largest_ratio_times_d"] = Estimate.exact(largest).named("largest ratio times d")
    statistics["largest_test_error"] = Estimate.exact(
        float(max(one.test_errors.max() for one in found.values()))
    ).named("largest test error")
    settings = {"k": widths[-1], "m": samples[-1], "runs": runs, "seed": 0, "laws": list(found)}
    return Finding(statistics, arrays, settings | _how(widths[-1:]), (RATE, STOP, _stragglers(found)))
