"""Figures 1 and 3 and section D of the pattern statistics paper: pattern networks trained by SGD, and their constants c*."""

# r runs · P patterns · n patterns of an input · m samples · k half the channels

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from biascope.measures.pattern_statistics import pattern_statistics, published_batch, published_rate
from biascope.measures.pattern_statistics.pictures import constants_against_figure, ratios_figure
from biascope.measures.pattern_statistics.result import LAWS, PatternStatistics
from biascope.results.estimate import Estimate, bootstrapped, over, spearman
from biascope.results.finding import Finding, Show, Tell, figure
from biascope.results.plan import Plan, Row
from biascope.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def _row(*, epochs: int = 50_000, **sizes: Any) -> dict[str, Any]:
    """Settings of trainings as in sections E.3 to E.5."""
    widths = sizes["k"] if isinstance(sizes["k"], list) else [sizes["k"]]
    return {
        **{"b": 2, "σ_g": 1e-6, "loss tolerance": 1e-5, "test points": 1000, **sizes, "epochs": epochs},
        "rates": {str(width): published_rate(width) for width in widths},
        "batches": {str(width): published_batch(width) for width in widths},
    }


def _planned(smoke: Mapping[str, Any], laptop: Mapping[str, Any], paper: Mapping[str, Any], *ours: str) -> Plan:
    """The plan of a figure whose paper row is as published but for the settings that are ours."""
    published = {name: value for name, value in paper.items() if name not in ours}
    # Quick trainings have few channels and a rate that takes seconds.
    return Plan({**smoke, "quick": True}, laptop, paper, published)


def _trained(plan: Row, run: Run, **size: Any) -> PatternStatistics:
    """Networks as published, or quick ones."""
    how: dict[str, Any] = {"runs": plan["runs"], "seed": plan["seed"], **size}
    if plan.get("quick"):
        how |= {"rate": 0.2 / how["k"], "epochs": min(400, how.get("epochs", 400)), "batch": 10}
    return pattern_statistics(**how, run=run.shared)


def _tell_all(trained: Mapping[str, PatternStatistics], tell: Tell) -> None:
    """Numbers of all runs of a figure together, and how many did not converge."""
    constants, converged, certified, errors = (
        np.concatenate(values)
        for values in zip(
            *((one.constants(), one.converged, one.certified, one.test_errors) for one in trained.values()), strict=True
        )
    )
    # Counts and extremes are facts about these runs, and exact as such.
    for label, fact in (
        ("share of runs that converged", converged.mean()),
        ("largest c*", constants.max()),
        ("share of runs with c* below 1", (constants < 1).mean()),
        ("runs", len(constants)),
        ("runs that did not converge", (~converged).sum()),
        ("runs with an error on fresh inputs", (errors > 0).sum()),
        ("share of runs certified to err nowhere", certified.mean()),
    ):
        tell(label, Estimate.exact(float(fact)))
    mean = over(constants[converged]) if converged.sum() > 1 else Estimate(float("nan"))
    tell("mean c* of those that converged", mean)
    late = [f"{(~one.converged).sum()} of {name}" for name, one in trained.items() if not one.converged.all()]
    tell.note(f"Not converged: {'; '.join(late)}." if late else "All trainings converged.")


def _tell_curve(name: str, places: Sequence[int], trained: Sequence[PatternStatistics], tell: Tell) -> np.ndarray:
    """Places and c* of each run there, for the picture; and epochs."""
    constants = np.stack([one.constants() for one in trained], 1)  # (r, place)
    tell.array(name, np.vstack([np.array(places, float), constants]), kind="c*")
    tell.array(name, np.stack([one.epochs for one in trained], 1).astype(float), kind="epochs")
    return constants


def _curves(x: str) -> Show:
    def show(finding: Finding, dark: bool) -> Figure:
        curves = {name: (array[0], array[1:]) for name, array in finding.arrays_of("c*").items()}
        return constants_against_figure(curves, x=x, dark=dark)

    return show


# By law, n and d.
_SMALLEST = {"uniform": [[3, 6]], "paired": [[3, 6]]}
_SOME = {"uniform": [[10, 20], [20, 50]], "paired": [[10, 20]]}
_ALL = {"uniform": [[10, 20], [10, 80], [20, 50], [40, 60]], "paired": [[10, 20], [40, 80], [25, 50], [30, 60]]}


@figure(
    "1a",
    title="The constant c* of pattern networks, for all sizes (n/d)",
    plan=_planned(
        _row(plan=_SMALLEST, k=[20], m=[20, 40], runs=2, seed=0),
        _row(plan=_SOME, k=[1000], m=[100, 500, 2000], runs=4, seed=0),
        _row(plan=_ALL, k=[1000, 10_000], m=[100, 500, 1000, 2000, 5000, 20_000, 40_000], runs=10, seed=0),
        *("rates", "seed"),
    ),
    show=_curves("training samples m"),
)
def figure_1a(plan: Row, run: Run, tell: Tell) -> None:
    """c* at b = 2 against the number of samples, two laws, several sizes and widths."""
    every: dict[str, PatternStatistics] = {}
    for k, (law, shapes) in itertools.product(plan["k"], plan["plan"].items()):
        for n, patterns in shapes:
            title = f"{LAWS[law]} {n}/{patterns}, k={k}"
            size: dict[str, Any] = {"law": law, "per_input": n, "patterns": patterns, "k": k}
            trained = [_trained(plan, run, samples=m, **size) for m in plan["m"]]
            every |= {f"{title}, m = {m}": one for m, one in zip(plan["m"], trained, strict=True)}
            _tell_curve(title, plan["m"], trained, tell)
    tell.note(RATE, STOP)
    _tell_all(every, tell)
    unsure = {name: float((one.constants() >= 1).sum()) for name, one in every.items()}
    tell.settings["c* of 1 or more"] = {name: count for name, count in unsure.items() if count}


def _c_star_swept(plan: Row, run: Run, tell: Tell) -> None:
    """c* on D_u against k or the number of samples, whichever has several."""
    swept, letter = ("k", "k") if isinstance(plan["k"], list) else ("samples", "m")
    size = {"law": "uniform", "per_input": plan["n"], "patterns": plan["d"], "k": plan["k"], "samples": plan["samples"]}
    trained = {f"{swept} = {place}": _trained(plan, run, **{**size, swept: place}) for place in plan[swept]}
    constants, runs = _tell_curve("D_u", plan[swept], list(trained.values()), tell), np.arange(plan["runs"])
    places = np.broadcast_to(np.array(plan[swept], float), constants.shape)

    def together(picked: np.ndarray) -> float:
        return spearman(places[picked].ravel(), constants[picked].ravel())

    tell.note(RATE, STOP, LIKELY)
    _tell_all(trained, tell)
    tell("rank correlation of c*", bootstrapped(together, runs))
    explained = bootstrapped(lambda picked: together(picked) ** 2, runs)
    label = f"share of the variance of the ranks of c* that {letter} explains"
    tell(label, explained, key="share_of_the_variance_of_c_star_ranks_explained")
    tell("mean c* at the largest", over(constants[:, -1]))
    tell("mean c* at the smallest", over(constants[:, 0]))


_PUBLISHED_SIZES = [100, 200, 500, 1000, 2000, 5000, 20_000, 40_000, 80_000, 120_000]
figure_1b = figure(
    "1b",
    title="c* against the number of channels",
    plan=_planned(
        _row(n=3, d=6, k=[10, 20], runs=2, samples=20, seed=SEED),
        _row(n=20, d=50, k=[50, 100, 400, 1600], runs=4, samples=2000, seed=SEED),
        _row(n=20, d=50, k=[50, 100, 1000, 2500, 5000, 7500, 10_000], runs=10, samples=2000, seed=SEED),
        *("rates", "batches", "seed"),
    ),
    show=_curves("k, half the channels"),
)(_c_star_swept)
figure_3 = figure(
    "3",
    title="c* against the number of samples",
    plan=_planned(
        _row(n=3, d=6, samples=[20, 40], runs=2, k=20, seed=SEED),
        _row(n=20, d=50, samples=[100, 200, 500, 2000, 8000], runs=4, k=500, seed=SEED),
        _row(n=20, d=50, samples=_PUBLISHED_SIZES, runs=10, k=2500, seed=SEED),
        *("rates", "batches", "seed"),
    ),
    show=_curves("training samples m"),
)(_c_star_swept)


def _drawn_ratios(finding: Finding, dark: bool) -> Figure:
    dots = {name: (finding.arrays[name][0], finding.arrays[name][1]) for name in ("p₁", "p₃ and p₄", "other spurious")}
    return ratios_figure(dots, ratio="positive detection ratio", dark=dark)


def _leaning(trained: PatternStatistics) -> np.ndarray:
    """``max(−s_i/s_1, 0)``, ``(r, P)``."""
    return np.asarray(np.maximum(-trained.statistics / trained.statistics[:, :1], 0))


def _correlation(lean: np.ndarray, ratio: np.ndarray) -> Estimate:
    """Rank correlation, resampled by trainings, which are the rows."""
    return bootstrapped(lambda picked: spearman(lean[picked].ravel(), ratio[picked].ravel()), np.arange(len(lean)))


@figure(
    "1c",
    title="Detection ratios against pattern statistics",
    plan=_planned(
        _row(n=4, d=8, m=40, k=20, p=PUBLISHED_BIASES[::14], runs=2, epochs=200, seed=SEED),
        _row(n=40, d=60, m=1000, k=250, p=PUBLISHED_BIASES[::9], runs=3, epochs=2000, seed=SEED),
        _row(n=40, d=60, m=1000, k=2500, p=PUBLISHED_BIASES, runs=4, epochs=2000, seed=SEED),
        *("rates", "batches", "runs", "seed"),
    ),
    show=_drawn_ratios,
)
def figure_1c(plan: Row, run: Run, tell: Tell) -> None:
    """D_p, in which two spurious patterns go with the labels as far as p says."""
    patterns, epochs = plan["d"], plan["epochs"]
    size = {"law": "biased", "per_input": plan["n"], "patterns": patterns, "samples": plan["m"], "k": plan["k"]}
    trained = {f"p = {p:g}": _trained(plan, run, **size, bias=p, epochs=epochs) for p in plan["p"]}
    lean = np.concatenate([_leaning(one) for one in trained.values()])
    ratio = np.concatenate([one.positive for one in trained.values()])
    tell.note(RATE, STOP.replace("50,000", f"{epochs:,}"))
    _tell_all(trained, tell)
    for name, places in (("p₁", [0]), ("p₃ and p₄", [2, 3]), ("other spurious", list(range(4, patterns)))):
        tell.array(name, np.stack([lean[:, places].ravel(), ratio[:, places].ravel()]))
    tell.array("epochs", np.stack([one.epochs for one in trained.values()]).astype(float))
    tell("rank correlation for p₃ and p₄", _correlation(lean[:, 2:4], ratio[:, 2:4]))
    places = [0, *range(2, patterns)]
    tell("rank correlation for all", _correlation(lean[:, places], ratio[:, places]))
    chosen = ratio[:, 2:4][lean[:, 2:4] > 0.9]
    mean = over(chosen) if len(chosen) else Estimate(float("nan"))
    # Other spurious patterns; patterns of one training are not independent.
    balanced = over(np.nanmean(ratio[:, 4:], 1))
    tell("mean ratio where −s_i/s_1 is above 0.9", mean)
    tell("mean ratio of balanced spurious patterns", balanced, key="mean_ratio_of_balanced_patterns")
    label = "mean ratio where −s_i/s_1 is above 0.9, minus that of balanced spurious patterns"
    tell(label, mean.minus(balanced), key="mean_ratio_above_0_9_minus_that_of_balanced_patterns")


def _drawn_largest(finding: Finding, dark: bool) -> Figure:
    return ratios_figure(finding.curves_of("ratios"), ratio="positive detection ratio", dark=dark)


@figure(
    "D",
    title="The conditions of the proof, at the largest k and m",
    plan=_planned(
        _row(plan=_SMALLEST, k=20, m=40, runs=2, seed=0),
        _row(plan=_SOME, k=1000, m=2000, runs=4, seed=0),
        _row(plan=_ALL, k=10_000, m=40_000, runs=10, seed=0),
        *("plan", "rates", "runs", "seed"),
    ),
    show=_drawn_largest,
)
def figure_d(plan: Row, run: Run, tell: Tell) -> None:
    """Section D: ratios below 1/d and zero test error."""
    trained: dict[str, PatternStatistics] = {}
    for law, shapes in plan["plan"].items():
        for n, patterns in shapes:
            size: dict[str, Any] = {"law": law, "per_input": n, "patterns": patterns}
            trained[f"{LAWS[law]} {n}/{patterns}"] = _trained(plan, run, k=plan["k"], samples=plan["m"], **size)
    tell.note(RATE, STOP)
    _tell_all(trained, tell)
    largest = []
    for title, one in trained.items():
        tell.array(title, np.stack([_leaning(one)[:, 2:].ravel(), one.positive[:, 2:].ravel()]), kind="ratios")
        ratio = float(max(np.nanmax(one.positive), np.nanmax(one.negative)))
        largest.append(one.statistics.shape[1] * ratio)
        tell.about(title)("largest ratio times d", Estimate.exact(largest[-1]))
    tell("largest ratio times d", Estimate.exact(max(largest)))
    errors = max(float(one.test_errors.max()) for one in trained.values())
    tell("largest test error", Estimate.exact(errors))
    tell.settings["laws"] = list(trained)
