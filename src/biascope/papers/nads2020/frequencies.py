"""Figures 1–4 and S10–S12: learning along frequencies, with and without pooling, and along random directions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from biascope.measures.directional_bias import PROBLEM, RECIPE, directional_bias
from biascope.measures.directional_bias.result import DirectionalBias
from biascope.measures.pooling_theory import PoolingTheory, pooling_theory
from biascope.papers.nads2020.shared import (
    COLUMNS,
    SHAPE,
    TITLES,
    against_published,
    deviation_beyond,
    family_of,
    highest_of,
    keyed,
    lowest_of,
    published_accuracies,
    ratio_of_deviations,
    signed_root,
    training_run,
)
from biascope.papers.selection import chosen, old_figure
from biascope.results.estimate import (
    Estimate,
    Number,
    bootstrapped,
    mean_absolute_difference,
    over,
    pearson,
    proportion,
    spearman,
)
from biascope.results.figures import completed, lines_figure
from biascope.results.finding import Finding, Tell, figure
from biascope.results.plan import Plan, Row
from biascope.results.shows import planes
from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.tasks.bases import Basis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The published protocol, and a much smaller one that only shows that the code runs.
PROTOCOL: dict[str, dict[str, Any]] = {
    "smoke": {"samples": (256,), "test": 256, "epochs": 1},
    "laptop": {"samples": (10_000,), "test": 10_000, "epochs": 20},
    "paper": {"samples": (10_000,), "test": 10_000, "epochs": 20},
}
#: The authors' training along a direction, under the keys of our settings; clipping and momentum are those of the released code.
PUBLISHED: dict[str, Any] = {
    "samples": [10_000],
    "test": 10_000,
    "epochs": 20,
    "batch": 128,
    "optimiser": "sgd",
    "rate": 0.5,
    "schedule": "linear",
    "momentum": 0.0,
    "weight decay": 0.0,
    "clip": 0.5,
    "epsilon": 1.0,
    "initial weights": "PyTorch",
}
#: Our training along a direction, under the same keys.
TRAINING: dict[str, Any] = {
    "batch": RECIPE.batch,
    "optimiser": RECIPE.optimiser,
    "rate": RECIPE.rate,
    "schedule": RECIPE.schedule,
    "momentum": RECIPE.momentum,
    "weight decay": RECIPE.weight_decay,
    "clip": RECIPE.clip,
    "epsilon": PROBLEM.epsilon,
    "initial weights": "PyTorch",
    "seed": 0,
}
ALL_FREQUENCIES = 514  # cosines of a 32 × 32 image
EVEN_FREQUENCIES = 130  # those of even coordinates
_LARGE = ("vgg11", "resnet18", "densenet121")
NO_PUBLISHED = (
    "The authors' accuracies (published/dft_accuracies.csv) are not in the data folder: no comparison with them."
)
SAMPLED = (
    "Frequencies are a random sample, stratified by the powers of 2 that divide both coordinates. "
    "Samples of large networks are even frequencies, those of the authors' file."
)

#: How many frequencies of each network, out of every which; 0 takes all of these.
Samples = Mapping[str, tuple[int, int]]


def planned(
    *,
    smoke: Mapping[str, Any],
    laptop: Mapping[str, Any],
    paper: Mapping[str, Any],
    published: Mapping[str, Any],
    ours: Mapping[str, Any] = {},
    always: Sequence[str] = (),
) -> Plan:
    """The plan of a figure whose networks are trained along frequencies.

    Args:
        smoke: How many frequencies of which network, and what else differs between efforts.
        laptop: Likewise.
        paper: Likewise.
        published: Likewise, of the authors; what a row leaves out is as published.
        ours: What the paper does not say, the same at each effort.
        always: Networks with which the others are compared.
    """
    rows = {"smoke": smoke, "laptop": laptop, "paper": paper}
    whole = {name: {**TRAINING, **published, **PROTOCOL[name], **ours, **row} for name, row in rows.items()}
    large = {"precision": dict.fromkeys((name for name in paper["frequencies"] if name in _LARGE), "float32")}
    return Plan(
        **whole, published={**PUBLISHED, **large, **published}, titles=TITLES, by="frequencies", always=tuple(always)
    )


def learned(
    name: str,
    basis: Basis,
    plan: Mapping[str, Any] | str,
    run: Run,
    *,
    network: dict[str, Any] | None = None,
    plain: bool = False,
    **settings: Any,
) -> DirectionalBias:
    """One network on D(v) for every direction of a basis, by the published protocol; ``plain`` in the precision of the run."""
    family = family_of(name, outputs=2, **(network or {}))
    how = run.shared if plain else training_run(family, run)
    protocol = PROTOCOL[plan] if isinstance(plan, str) else {key: plan[key] for key in ("samples", "test", "epochs")}
    return directional_bias(family, basis, run=how, **directional_bias.grouped({**protocol, **settings}))


def precisions(networks: Iterable[str], run: Run) -> dict[str, str]:
    """The settings that say in which precision large networks are trained."""
    large = (name for name in networks if name in _LARGE)
    return {f"precision: {TITLES[name]}": training_run(family_of(name, outputs=2), run).precision for name in large}


def trained_by(effort: str, run: Run, *networks: str) -> dict[str, Any]:
    """The settings of trainings along a direction, under the keys of :data:`PUBLISHED`; precision is that of large networks."""
    return {**PROTOCOL[effort], **TRAINING, **precisions(networks, run)}


def frequencies(sample: int | tuple[int, int], part: str = "Re") -> Basis:
    """Cosines or sines of some frequencies: all, the even ones, or a sample of the even ones."""
    count, stride = sample if isinstance(sample, tuple) else (sample, 2)
    if count in (ALL_FREQUENCIES, EVEN_FREQUENCIES):
        count, stride = 0, 1 if count == ALL_FREQUENCIES else 2
    if not count:
        return bases.fourier_half(SHAPE, part, stride)
    return bases.fourier_sample(SHAPE, part, count=count, stride=stride, seed=0)


def counted(samples: Samples) -> dict[str, int]:
    """The settings that say how many frequencies each network was trained at."""
    return {f"frequencies: {TITLES[name]}": len(frequencies(sample)) for name, sample in samples.items()}


def all_frequencies(*names: str) -> dict[str, int]:
    """The published counterpart of :func:`counted`."""
    return {f"frequencies: {TITLES[name]}": ALL_FREQUENCIES for name in names}


def plane_of(result: DirectionalBias, values: np.ndarray) -> np.ndarray:
    """Values by direction on the frequency plane."""
    return completed(result.labels, values, (32, 32))


def at_frequencies(result: DirectionalBias, values: np.ndarray) -> dict[tuple[int, ...], float]:
    """Values by frequency."""
    return {
        tuple(int(part) for part in label[-2:]): float(value)
        for label, value in zip(result.labels, values, strict=True)
    }


MAPS: dict[str, Samples] = {
    "smoke": {"logistic_regression": (4, 2), "lenet": (4, 2)},
    "laptop": {"logistic_regression": (0, 2), "lenet": (34, 2)},
    "paper": {
        "logistic_regression": (0, 1),
        "lenet": (0, 1),
        "vgg11": (36, 2),
        "resnet18": (72, 2),
        "densenet121": (8, 2),
    },
}
_MULTIPLES = ("neither_coordinate", "one_coordinate", "both_coordinates")


@old_figure(
    "1",
    title="Test accuracy along every frequency (σ = 3, ε = 1)",
    show=planes(),
    published={
        **all_frequencies(*COLUMNS),
        **PUBLISHED,
        "noise": 3.0,
        **{f"precision: {TITLES[name]}": "float32" for name in _LARGE},
    },
)
def figure_1(effort: str, run: Run) -> Finding:
    """Accuracy maps of the paper's networks, beside the authors' own numbers where they are at hand."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    notes: list[str] = []
    maps: dict[str, dict[tuple[int, ...], float]] = {}
    test = PROTOCOL[effort]["test"]
    between_seeds: tuple[np.ndarray, np.ndarray] | None = None
    for name, sample in MAPS[effort].items():
        repeats = 2 if name == "lenet" and effort != "laptop" else 1
        result = learned(name, frequencies(sample), effort, run, repeats=repeats)
        title, key, each = TITLES[name], keyed(name), result.accuracy[0, 0]  # (repeat, direction)
        arrays[f"plane: {title}"] = plane_of(result, 100 * each.mean(0))
        mean, train = (
            bootstrapped(np.mean, 100 * share, within=(0.0, 100.0))
            for share in (each.mean(0), result.train_accuracy[0, 0, 0])
        )
        whole = each.shape[1] == ALL_FREQUENCIES
        maps[name] = at_frequencies(result, 100 * each[0])
        statistics |= {
            f"{key}_mean_accuracy": mean.named(f"{title}: mean accuracy", "%"),
            f"{key}_highest_accuracy": highest_of(each[0], test, whole).named(f"{title}: highest accuracy", "%"),
            f"{key}_lowest_accuracy": lowest_of(each[0], test, whole).named(f"{title}: lowest accuracy", "%"),
            f"{key}_mean_train_accuracy": train.named(f"{title}: mean train accuracy", "%"),
            f"{key}_deviation_beyond_the_test_sample": bootstrapped(
                lambda shares: deviation_beyond(shares, test), each[0]
            ).named(f"{title}: standard deviation over frequencies beyond that of the test sample", "points"),
        }
        for multiples, which in enumerate(_MULTIPLES):
            shares = np.array([value for at, value in maps[name].items() if sum(k % 4 == 0 for k in at) == multiples])
            if len(shares):
                words = f"{title}: mean accuracy, {which.replace('_', ' ')} a multiple of 4"
                statistics[f"{key}_mean_accuracy_{which}_a_multiple_of_4"] = bootstrapped(
                    np.mean, shares, within=(0.0, 100.0)
                ).named(words, "%")
        if repeats > 1:
            first, second = between_seeds = 100 * each[0], 100 * each[1]
            statistics |= {
                f"{key}_correlation_between_two_seeds": bootstrapped(pearson, first, second).named(
                    f"{title}: correlation between two seeds"
                ),
                f"{key}_mean_absolute_difference_of_two_seeds": bootstrapped(
                    mean_absolute_difference, first, second
                ).named(f"{title}: mean absolute difference of two seeds", "points"),
            }
        published = published_accuracies(name, run)
        if published is None:
            notes = [NO_PUBLISHED]
            continue
        ours, theirs = against_published(result.labels, each[0], published)
        arrays[f"published: {title}"] = np.stack([ours, theirs])
        statistics |= {
            f"{key}_correlation_with_published": bootstrapped(pearson, ours, theirs).named(
                f"{title}: correlation with published"
            ),
            f"{key}_mean_absolute_difference": bootstrapped(mean_absolute_difference, ours, theirs).named(
                f"{title}: mean absolute difference", "points"
            ),
        }
    alike = _greatest_correlation(maps)
    if alike is not None and between_seeds is not None:
        gap = alike.minus(bootstrapped(pearson, *between_seeds))
        statistics["correlation_of_two_networks_minus_two_seeds"] = gap.named(
            "greatest correlation of two networks' maps minus that of two seeds of LeNet"
        )
    notes += [
        "The authors' own LeNet accuracies have a maximum of 81.6 %, not near 100 %.",
        "One half of the authors' file is the other mirrored along one axis; the half that was trained is compared.",
        SAMPLED,
    ]
    settings = {
        **counted(MAPS[effort]),
        **trained_by(effort, run, *(name for name in _LARGE if name in MAPS[effort])),
        "noise": 3.0,
    }
    return Finding(statistics, arrays, settings, tuple(notes))


def _greatest_correlation(maps: Mapping[str, Mapping[tuple[int, ...], float]]) -> Estimate | None:
    """Of the maps of two CNNs over the frequencies that both have; None if no two can be compared."""
    names = [name for name in maps if name != "logistic_regression"]
    found = []
    for i, one in enumerate(names):
        for two in names[i + 1 :]:
            shared = sorted(maps[one].keys() & maps[two].keys())
            if len(shared) > 3:
                values = [np.array([maps[name][at] for at in shared]) for name in (one, two)]
                found.append(bootstrapped(pearson, *values))
    return max(found, key=lambda each: each.value) if found else None


SPEED = planned(
    smoke={"frequencies": {"logistic_regression": 4, "lenet": 4}},
    laptop={"frequencies": {"logistic_regression": 34, "lenet": 34}},
    paper={"frequencies": {"logistic_regression": EVEN_FREQUENCIES, "lenet": EVEN_FREQUENCIES, "resnet18": 8}},
    published={"frequencies": dict.fromkeys(COLUMNS, ALL_FREQUENCIES), "noise": 0.5},
    ours={"threshold": 0.01},
    always=("logistic_regression",),
)


@figure(
    "2",
    title="Iterations to a small training loss along every frequency (σ = 0.5)",
    plan=SPEED,
    show=planes("iterations", None, None),
)
def figure_2(plan: Row, run: Run, tell: Tell) -> None:
    """Speed maps, set against the accuracy maps of figure 1 on the same frequencies."""
    of_linear: dict[tuple[int, ...], float] = {}
    for name in plan.networks:
        basis, of = frequencies(plan["frequencies"][name]), tell.about(TITLES[name])
        speed = learned(name, basis, plan, run, noise=(plan["noise"],), threshold=plan["threshold"], stop=True)
        total = float(speed.steps[0, -1])
        iterations = np.nan_to_num(speed.iterations[0, 0, 0], nan=total)  # never in time: as long as was waited
        tell.array(TITLES[name], plane_of(speed, iterations), kind="plane")
        of("slowest over fastest", bootstrapped(_slowest_over_fastest, iterations).open_above())
        of("highest train accuracy", highest_of(speed.train_accuracy[0, 0, 0], plan["samples"][0]), "%")
        at = at_frequencies(speed, iterations)
        if name == "logistic_regression":
            of_linear = at
            continue
        linear = np.array([of_linear[place] for place in at])
        against = bootstrapped(
            lambda one, two: _slowest_over_fastest(one) / _slowest_over_fastest(two), iterations, linear
        )
        of(
            "slowest over fastest, divided by that of logistic regression",
            against.open_above(),
            key=f"{keyed(name)}_slowest_over_fastest_against_logistic_regression",
        )
        accuracy = learned(name, basis, plan, run).accuracy[0, 0, 0]
        of("rank correlation of speed and accuracy", bootstrapped(spearman, -iterations, accuracy))
    tell.settings.update(precisions(plan.networks, run))
    tell.note(
        "Slowest over fastest is the ratio of the 95th to the 5th percentile over frequencies. A sample of frequencies bounds it from "
        "below alone, so its interval is open above.",
        "The loss is that of a batch; the paper does not say how small a small loss is, 0.01 was chosen here.",
        SAMPLED,
    )


def _slowest_over_fastest(iterations: np.ndarray) -> float:
    return float(np.quantile(iterations, 0.95) / np.quantile(iterations, 0.05))


UNPOOLED = planned(
    smoke={"frequencies": {"lenet": 4}},
    laptop={"frequencies": {"lenet": 12}},
    paper={"frequencies": {"lenet": EVEN_FREQUENCIES, "resnet18": 8}},
    published={
        "frequencies": dict.fromkeys(("lenet", "vgg11", "resnet18", "densenet121"), ALL_FREQUENCIES),
        "noise": 3.0,
    },
)


@figure("3", title="Test accuracy along every frequency without pooling", plan=UNPOOLED, show=planes())
def figure_3(plan: Row, run: Run, tell: Tell) -> None:
    """Accuracy maps with the pooling layers removed and the linear layers resized."""
    for name in plan.networks:
        basis, of = frequencies(plan["frequencies"][name]), tell.about(TITLES[name])
        without, with_pooling = (learned(name, basis, plan, run, network=how) for how in ({"pooling": "none"}, {}))
        accuracy, pooled = (100 * each.accuracy[0, 0, 0] for each in (without, with_pooling))
        tell.array(f"{TITLES[name]} without pooling", plane_of(without, accuracy), kind="plane")
        everything = len(accuracy) == ALL_FREQUENCIES
        of("range without pooling", over(accuracy, of="range", within=(0.0, 100.0), everything=everything), "points")
        of("mean accuracy without pooling", bootstrapped(np.mean, accuracy, within=(0.0, 100.0)), "%")
        train = bootstrapped(np.mean, 100 * with_pooling.train_accuracy[0, 0, 0], within=(0.0, 100.0))
        of("mean train accuracy with pooling", train, "%", key=f"{keyed(name)}_train_accuracy_with_pooling")
        of("deviation without over with pooling", ratio_of_deviations(accuracy, pooled))
        of("gain without pooling", bootstrapped(np.mean, accuracy - pooled, within=(-100.0, 100.0)), "points")
    tell.settings.update(precisions(plan.networks, run))
    tell.note(
        "ResNet-18 without pooling drops its global average; the strides of its convolutions stay.",
        "A sample of frequencies bounds the range of all from below alone, so its interval is open above.",
        SAMPLED,
    )


def _drawn_4(finding: Finding, dark: bool) -> Figure:
    arrays = finding.arrays
    return lines_figure(
        {
            "closed form": (arrays["frequencies"], 100 * arrays["accuracy"]),
            "simulated": (arrays["frequencies"], 100 * arrays["simulated"]),
            "as printed": (arrays["frequencies"], 100 * arrays["as printed"]),
        },
        x="frequency ℓ",
        y="best accuracy after pooling, %",
        bands={"simulated": 100 * arrays["errors"]},
        dark=dark,
    )


@old_figure(
    "4",
    title="What pooling does: best accuracy after it, and the training of a linear model behind it (S = 4, D = 128)",
    show=_drawn_4,
    published={"size": 128, "stride": 4},
)
def figure_4(effort: str, run: Run) -> Finding:
    """The pooling theory against simulation, for real signals."""
    sizes: dict[str, dict[str, Any]] = {
        "smoke": {"samples": 500, "iterations": 100, "repeats": 2, "train": 100},
        "laptop": {},
        "paper": {"samples": 100_000},
    }
    results = [pooling_theory(seed=seed, run=run.shared, **sizes[effort]) for seed in range(3)]
    result = results[0]
    slow = result.slowdown()
    ours = [float(np.abs(each.deviations()[0]).max()) for each in results]
    theirs = [float(np.abs(_printed_deviations(each)).max()) for each in results]
    beyond = [100 * signed_root(each.simulated[0].var(ddof=1) - (each.errors[0] ** 2).mean()) for each in results]
    statistics = {
        "largest_deviation_in_standard_errors": over(ours).named("largest deviation in standard errors"),
        "largest_deviation_of_the_printed_formula": over(theirs).named("largest deviation of the printed formula"),
        "deviation_beyond_the_simulation": over(beyond).named(
            "standard deviation over frequencies beyond that of the simulation", "points"
        ),
        "rank_correlation_of_curvature_ratio_and_iterations": bootstrapped(
            spearman, *_ratios_and_iterations(results)
        ).named("rank correlation of curvature ratio and iterations"),
    }
    if slow is not None:
        statistics["iterations_of_late_over_early_frequencies"] = slow[2].named(
            "iterations of late over early frequencies"
        )
    arrays = {
        "frequencies": result.frequencies,
        "accuracy": result.accuracy[0],
        "simulated": result.simulated[0],
        "errors": result.errors[0],
        "as printed": np.asarray(result.accuracy_as_printed),
    }
    notes = (
        "The printed formula of theorem 1 is right for the real data only at S = 2, and for the complex model of its proof only at "
        "S = 4; see docs/errata.md.",
    )
    return Finding(statistics, arrays, {"size": 128, "stride": 4, "seeds": 3, **sizes[effort]}, notes)


def _printed_deviations(result: PoolingTheory) -> np.ndarray:
    """Of the simulation from the printed formula, in standard errors."""
    doubtful = result.errors[0] > 0  # where the best rule is never wrong there is nothing to compare
    return np.asarray((result.simulated[0] - result.accuracy_as_printed)[doubtful] / result.errors[0][doubtful])


def _ratios_and_iterations(results: Sequence[PoolingTheory]) -> tuple[np.ndarray, np.ndarray]:
    """By trained frequency; a frequency that was never learned counts as the whole length."""
    ratio = results[0].curvature_ratio[results[0].trained]
    needed = [np.nan_to_num(each.iterations_needed, nan=float(len(each.losses))).mean(1) for each in results]
    return ratio, np.mean(needed, axis=0)


@old_figure(
    "S10",
    title="Test accuracy along the sines",
    show=planes(),
    published={
        **all_frequencies(*COLUMNS),
        **PUBLISHED,
        "noise": 3.0,
    },
)
def figure_s10(effort: str, run: Run) -> Finding:
    """LeNet along the sines, beside the cosines of the same frequencies."""
    samples: Samples = {"lenet": {"smoke": (6, 2), "laptop": (34, 2), "paper": (0, 2)}[effort]}
    cosines, whole = frequencies(samples["lenet"]), bases.fourier_half(SHAPE, "Im")
    wanted = {label[-2:] for label in cosines.labels}
    sines = whole.part([index for index, label in enumerate(whole.labels) if label[-2:] in wanted])
    imaginary, real = learned("lenet", sines, effort, run), learned("lenet", cosines, effort, run)
    at = at_frequencies(real, real.accuracy[0, 0, 0])
    pairs = [(value, at[place]) for place, value in at_frequencies(imaginary, imaginary.accuracy[0, 0, 0]).items()]
    ours = np.array(pairs)
    train = np.concatenate([each.train_accuracy[0, 0, 0] for each in (imaginary, real)])
    statistics = {
        "lenet_correlation_of_im_and_re": bootstrapped(pearson, ours[:, 0], ours[:, 1]).named(
            "LeNet: correlation of Im and Re"
        ),
        "lenet_mean_train_accuracy": bootstrapped(np.mean, 100 * train, within=(0.0, 100.0)).named(
            "LeNet: mean train accuracy", "%"
        ),
        "gaps": Estimate.exact(float(ALL_FREQUENCIES - len(whole))).named("gaps"),
    }
    arrays = {
        "plane: LeNet, Im": plane_of(imaginary, 100 * imaginary.accuracy[0, 0, 0]),
        "plane: LeNet, Re": plane_of(real, 100 * real.accuracy[0, 0, 0]),
    }
    settings = {**counted(samples), **trained_by(effort, run), "noise": 3.0}
    return Finding(statistics, arrays, settings, (SAMPLED,))


_NOISES = (0.0, 1.0, 3.0)
_NOISY: dict[str, Samples] = {
    "smoke": {"logistic_regression": (4, 2), "lenet": (4, 2)},
    "laptop": {"logistic_regression": (12, 2), "lenet": (12, 2)},
    "paper": {"logistic_regression": (0, 2), "lenet": (0, 2), "vgg11": (8, 2), "resnet18": (8, 2)},
}


def _least_difference(
    one: Mapping[tuple[int, ...], float], two: Mapping[tuple[int, ...], float], test: int
) -> Estimate:
    """The least difference of two accuracies over the frequencies of both, in points; open below, as a sample's."""
    places = sorted(one.keys() & two.keys())
    gaps = np.array([one[place] - two[place] for place in places])
    lowest = places[int(gaps.argmin())]
    sampled = [proportion(each[lowest], test).in_percent() for each in (one, two)]
    return over(100 * gaps, of="least", shared=sampled[0].minus(sampled[1]), within=(-100.0, 100.0))


@old_figure(
    "S11",
    networks=_NOISY,
    title="Test accuracy along frequencies at σ = 0, 1, 3",
    show=planes(),
    published={
        **all_frequencies(*COLUMNS),
        **PUBLISHED,
        "noise": list(_NOISES),
        **{f"precision: {TITLES[name]}": "float32" for name in _LARGE},
    },
)
def figure_s11(effort: str, run: Run) -> Finding:
    """Accuracy at three levels of noise."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    at_zero: dict[str, dict[tuple[int, ...], float]] = {}
    at_one: dict[str, dict[tuple[int, ...], float]] = {}
    test = PROTOCOL[effort]["test"]
    plans = chosen(_NOISY[effort])
    for name, sample in plans.items():
        title, key = TITLES[name], keyed(name)
        result = learned(name, frequencies(sample), effort, run, noise=_NOISES)
        every = result.accuracy[:, 0, 0]  # (noise, frequency)
        for noise, accuracy in zip(_NOISES, every, strict=True):
            arrays[f"plane: {title}, σ = {noise:g}"] = plane_of(result, 100 * accuracy)
            statistics |= {
                f"{key}_mean_accuracy_at_sigma_{noise:g}": bootstrapped(
                    np.mean, 100 * accuracy, within=(0.0, 100.0)
                ).named(f"{title}: mean accuracy at σ = {noise:g}", "%"),
                f"{key}_lowest_accuracy_at_sigma_{noise:g}": lowest_of(
                    accuracy, test, len(accuracy) == ALL_FREQUENCIES
                ).named(f"{title}: lowest accuracy at σ = {noise:g}", "%"),
            }
        lost = bootstrapped(
            np.mean, 100 * (every[_NOISES.index(1.0)] - every[_NOISES.index(3.0)]), within=(-100.0, 100.0)
        )
        statistics |= {
            f"{key}_lowest_accuracy": lowest_of(every.min(0), test, every.shape[1] == ALL_FREQUENCIES).named(
                f"{title}: lowest accuracy", "%"
            ),
            f"{key}_accuracy_lost_from_sigma_1_to_3": lost.named(
                f"{title}: mean accuracy lost from σ = 1 to σ = 3", "points"
            ),
        }
        at_zero[name] = at_frequencies(result, every[_NOISES.index(0.0)])
        if name != "logistic_regression":
            at_one[name] = at_frequencies(result, 100 * every[_NOISES.index(1.0)])
    if {"lenet", "logistic_regression"} <= at_zero.keys():
        gap = _least_difference(at_zero["lenet"], at_zero["logistic_regression"], test)
        statistics["lenet_minus_logistic_regression_lowest_accuracy_at_sigma_0"] = gap.named(
            "lowest accuracy at σ = 0, LeNet minus logistic regression", "points"
        )
    if {"resnet18", "vgg11"} <= at_one.keys():
        if "lenet" not in at_one:  # run for the large networks alone: LeNet at the frequencies of the smallest sample
            compared = learned("lenet", frequencies(min(plans.values())), effort, run, noise=(1.0,))
            at_one["lenet"] = at_frequencies(compared, 100 * compared.accuracy[0, 0, 0])
        shared = sorted(set.intersection(*(set(each) for each in at_one.values())))
        common = {name: np.array([each[place] for place in shared]) for name, each in at_one.items()}
        best = max((name for name in common if name != "resnet18"), key=lambda name: common[name].mean())
        lead = bootstrapped(np.mean, common["resnet18"] - common[best], within=(-100.0, 100.0))
        statistics["resnet_18_lead_at_sigma_1"] = lead.named("ResNet-18: lead at σ = 1", "points")
    settings = {
        **counted(plans),
        **trained_by(effort, run, *(name for name in _LARGE if name in plans)),
        "noise": _NOISES,
    }
    return Finding(statistics, arrays, settings, (SAMPLED,))


_RANDOM: dict[str, dict[str, int]] = {
    "smoke": {"lenet": 3},
    "laptop": {"lenet": 12},
    "paper": {"lenet": 128, "resnet18": 12},
}


@old_figure(
    "S12",
    title="Test accuracy along random directions",
    show=lambda finding, dark: lines_figure(
        {name: (np.arange(len(array)), 100 * np.sort(array)[::-1]) for name, array in finding.arrays.items()},
        x="direction, best first",
        y="test accuracy, %",
        dark=dark,
    ),
    published={
        "directions: LeNet": 1024,
        "directions: ResNet-18": 1024,
        **PUBLISHED,
        "noise": 3.0,
        "precision: ResNet-18": "float32",
    },
)
def figure_s12(effort: str, run: Run) -> Finding:
    """Accuracy along elements of a random orthonormal basis, beside that along frequencies."""
    counts = _RANDOM[effort]
    # Twelve frequencies say too little of LeNet's deviation, so at paper effort there are all of them, as in figure 1.
    compared: Samples = {
        "lenet": {"smoke": (3, 2), "laptop": (12, 2), "paper": (0, 1)}[effort],
        "resnet18": (24, 2),
    }
    basis = bases.random(SHAPE, seed=0)
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, count in counts.items():
        title, key = TITLES[name], keyed(name)
        result = learned(name, basis.part(range(count)), effort, run)
        accuracy = arrays[title] = result.accuracy[0, 0, 0]
        along = learned(name, frequencies(compared[name]), effort, run).accuracy[0, 0, 0]
        deviation, of_frequencies = (bootstrapped(np.std, 100 * each) for each in (accuracy, along))
        statistics |= {
            f"{key}_deviation_over_directions": deviation.named(f"{title}: deviation over directions", "points"),
            f"{key}_deviation_over_directions_against_frequencies": _ratio(deviation, of_frequencies).named(
                f"{title}: deviation over random directions, divided by that over frequencies"
            ),
            f"{key}_mean_accuracy": over(100 * accuracy, within=(0.0, 100.0)).named(f"{title}: mean accuracy", "%"),
            f"{key}_mean_train_accuracy": over(100 * result.train_accuracy[0, 0, 0], within=(0.0, 100.0)).named(
                f"{title}: mean train accuracy", "%"
            ),
        }
    settings = {
        **{f"directions: {TITLES[name]}": count for name, count in counts.items()},
        **counted({name: compared[name] for name in counts}),
        **trained_by(effort, run, *(name for name in _LARGE if name in counts)),
        "noise": 3.0,
    }
    return Finding(statistics, arrays, settings, (SAMPLED,))


def _ratio(one: Estimate, two: Estimate) -> Estimate:
    """Of two positive numbers, with the interval between the extremes of theirs, which is too wide rather than too narrow."""
    value = one.value / two.value if two.value else float("nan")
    error = (
        value * float(np.hypot(one.standard_error / one.value, two.standard_error / two.value)) if one.value else 0.0
    )
    return Estimate(value, error, one.low / two.high, one.high / two.low if two.low > 0 else float("inf"))
