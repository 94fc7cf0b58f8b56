"""Figures 1–3, S10 and S11: learning along frequencies, at several levels of noise, with and without pooling."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from biascope.measures.directional_bias.result import DirectionalBias
from biascope.papers.nads2020.accuracies import deviation_beyond, highest_of, lowest_of, mean_over, ratio_of_deviations
from biascope.papers.nads2020.networks import CNNS, LARGE, SHAPE, TITLES, in_float32, keyed, precisions
from biascope.papers.nads2020.released import COLUMNS, against_published, published_accuracies
from biascope.papers.nads2020.training import PUBLISHED, learned, planned
from biascope.results.estimate import (
    Estimate,
    bootstrapped,
    mean_absolute_difference,
    over,
    pearson,
    proportion,
    spearman,
)
from biascope.results.figures import completed
from biascope.results.finding import Tell, figure
from biascope.results.plan import Row
from biascope.results.shows import planes
from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.tasks.bases import Basis

ALL, EVEN = 514, 130  # frequencies of a 32 × 32 image, and those of even coordinates
EVERYWHERE = dict.fromkeys(COLUMNS, ALL)
SAMPLED = (
    "Frequencies are a random sample, stratified by the powers of 2 that divide both coordinates. "
    "Samples of large networks are even frequencies, those of the authors' file."
)

ByFrequency = Mapping[tuple[int, ...], float]


def frequencies(count: int) -> Basis:
    """The cosines of so many frequencies: all, the even ones, or a sample of the even ones."""
    if count in (ALL, EVEN):
        return bases.fourier_half(SHAPE, "Re", 1 if count == ALL else 2)
    return bases.fourier_sample(SHAPE, count=count, stride=2, seed=0)


def plane_of(result: DirectionalBias, values: np.ndarray) -> np.ndarray:
    """Values by direction on the frequency plane."""
    return completed(result.labels, values, (32, 32))


def at_frequencies(result: DirectionalBias, values: np.ndarray) -> dict[tuple[int, ...], float]:
    """Values by frequency."""
    places = (tuple(int(part) for part in label[-2:]) for label in result.labels)
    return dict(zip(places, map(float, values), strict=True))


def at_shared(*maps: ByFrequency) -> np.ndarray:
    """The values of several networks at the frequencies that all of them have, a row for each network."""
    shared = sorted(set.intersection(*(set(values) for values in maps)))
    return np.array([[values[place] for place in shared] for values in maps])


MAPS = planned(
    smoke={"frequencies": {"logistic_regression": 4, "lenet": 4}, "repeats": {"lenet": 2}},
    laptop={"frequencies": {"logistic_regression": EVEN, "lenet": 34}, "repeats": {"lenet": 1}},
    paper={
        "frequencies": {"logistic_regression": ALL, "lenet": ALL, "vgg11": 36, "resnet18": 72, "densenet121": 8},
        "repeats": {"lenet": 2},
    },
    published={"frequencies": EVERYWHERE, **PUBLISHED, "noise": 3.0, **in_float32(*LARGE)},
)


@figure("1", title="Test accuracy along every frequency (σ = 3, ε = 1)", plan=MAPS, show=planes())
def figure_1(plan: Row, run: Run, tell: Tell) -> None:
    """Accuracy maps of the paper's networks, beside the authors' own numbers where they are at hand."""
    maps: dict[str, ByFrequency] = {}
    between_seeds: Estimate | None = None
    for name, count in plan["frequencies"].items():
        of, test, everything = tell.about(TITLES[name]), plan["test"], count == ALL
        result = learned(name, frequencies(count), plan, run)
        seeds = result.accuracy[0, 0]  # (repeat, direction)
        accuracy = seeds[0]
        maps[name] = at_frequencies(result, 100 * accuracy)
        tell.array(TITLES[name], plane_of(result, 100 * seeds.mean(0)), kind="plane")
        of("mean accuracy", mean_over(seeds.mean(0)), "%")
        of("highest accuracy", highest_of(accuracy, test, everything), "%")
        of("lowest accuracy", lowest_of(accuracy, test, everything), "%")
        of("mean train accuracy", mean_over(result.train_accuracy[0, 0, 0]), "%")
        deviation = bootstrapped(lambda shares: deviation_beyond(shares, plan["test"]), accuracy)
        label, key = "standard deviation over frequencies beyond that of the test sample", keyed(name)
        of(label, deviation, "points", key=f"{key}_deviation_beyond_the_test_sample")
        for multiples, which in enumerate(("neither coordinate", "one coordinate", "both coordinates")):
            shares = np.array([value for at, value in maps[name].items() if sum(k % 4 == 0 for k in at) == multiples])
            if len(shares):
                mean = bootstrapped(np.mean, shares, within=(0.0, 100.0))
                of(f"mean accuracy, {which} a multiple of 4", mean, "%")
        if len(seeds) > 1:
            between_seeds = bootstrapped(pearson, *(100 * seeds))
            of("correlation between two seeds", between_seeds)
            apart = bootstrapped(mean_absolute_difference, *(100 * seeds))
            of("mean absolute difference of two seeds", apart, "points")
        published = published_accuracies(name, run)
        if published is None:
            missing = "The authors' accuracies (published/dft_accuracies.csv) are not in the data folder"
            tell.note(f"{missing}: no comparison with them.")
            continue
        ours, theirs = against_published(result.labels, accuracy, published)
        tell.array(TITLES[name], np.stack([ours, theirs]), kind="published")
        of("correlation with published", bootstrapped(pearson, ours, theirs))
        of("mean absolute difference", bootstrapped(mean_absolute_difference, ours, theirs), "points")
    alike = _greatest_correlation([values for name, values in maps.items() if name != "logistic_regression"])
    if alike is not None and between_seeds is not None:
        label = "greatest correlation of two networks' maps minus that of two seeds of LeNet"
        tell(label, alike.minus(between_seeds), key="correlation_of_two_networks_minus_two_seeds")
    tell.settings.update(precisions(maps, run))
    tell.note(
        "The authors' own LeNet accuracies have a maximum of 81.6 %, not near 100 %.",
        "One half of the authors' file is the other mirrored along one axis; the half that was trained is compared.",
        SAMPLED,
    )


def _greatest_correlation(maps: list[ByFrequency]) -> Estimate | None:
    """Of two maps over the frequencies that both have; None if no two can be compared."""
    pairs = [at_shared(one, two) for one, two in itertools.combinations(maps, 2)]
    correlations = [bootstrapped(pearson, *pair) for pair in pairs if pair.shape[1] > 3]
    return max(correlations, key=float) if correlations else None


SPEED = planned(
    smoke={"frequencies": {"logistic_regression": 4, "lenet": 4}},
    laptop={"frequencies": {"logistic_regression": 34, "lenet": 34}},
    paper={"frequencies": {"logistic_regression": EVEN, "lenet": EVEN, "resnet18": 8}},
    published={**PUBLISHED, **in_float32("resnet18"), "frequencies": EVERYWHERE, "noise": 0.5},
    ours={"threshold": 0.01},
    by="frequencies",
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
    of_linear: ByFrequency = {}
    for name in plan.networks:
        basis, of = frequencies(plan["frequencies"][name]), tell.about(TITLES[name])
        speed = learned(name, basis, plan, run, stop=True)
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
        against = bootstrapped(_times_as_uneven, iterations, linear).open_above()
        key = f"{keyed(name)}_slowest_over_fastest_against_logistic_regression"
        of("slowest over fastest, divided by that of logistic regression", against, key=key)
        accuracy = learned(name, basis, plan, run, noise=3.0).accuracy[0, 0, 0]
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


def _times_as_uneven(one: np.ndarray, two: np.ndarray) -> float:
    return _slowest_over_fastest(one) / _slowest_over_fastest(two)


UNPOOLED = planned(
    smoke={"frequencies": {"lenet": 4}},
    laptop={"frequencies": {"lenet": 12}},
    paper={"frequencies": {"lenet": EVEN, "resnet18": 8}},
    published={**PUBLISHED, **in_float32("resnet18"), "frequencies": dict.fromkeys(CNNS, ALL), "noise": 3.0},
    by="frequencies",
)


@figure("3", title="Test accuracy along every frequency without pooling", plan=UNPOOLED, show=planes())
def figure_3(plan: Row, run: Run, tell: Tell) -> None:
    """Accuracy maps with the pooling layers removed and the linear layers resized."""
    for name in plan.networks:
        basis, of = frequencies(plan["frequencies"][name]), tell.about(TITLES[name])
        without, with_pooling = (learned(name, basis, plan, run, network=how) for how in ({"pooling": "none"}, {}))
        accuracy, pooled = (100 * result.accuracy[0, 0, 0] for result in (without, with_pooling))
        tell.array(f"{TITLES[name]} without pooling", plane_of(without, accuracy), kind="plane")
        everything = len(accuracy) == ALL
        of("range without pooling", over(accuracy, of="range", within=(0.0, 100.0), everything=everything), "points")
        of("mean accuracy without pooling", mean_over(without.accuracy[0, 0, 0]), "%")
        train = mean_over(with_pooling.train_accuracy[0, 0, 0])
        of("mean train accuracy with pooling", train, "%", key=f"{keyed(name)}_train_accuracy_with_pooling")
        of("deviation without over with pooling", ratio_of_deviations(accuracy, pooled))
        of("gain without pooling", bootstrapped(np.mean, accuracy - pooled, within=(-100.0, 100.0)), "points")
    tell.settings.update(precisions(plan.networks, run))
    tell.note(
        "ResNet-18 without pooling drops its global average; the strides of its convolutions stay.",
        "A sample of frequencies bounds the range of all from below alone, so its interval is open above.",
        SAMPLED,
    )


SINES = planned(
    smoke={"frequencies": {"lenet": 6}},
    laptop={"frequencies": {"lenet": 34}},
    paper={"frequencies": {"lenet": EVEN}},
    published={"frequencies": EVERYWHERE, **PUBLISHED, "noise": 3.0},
)


@figure("S10", title="Test accuracy along the sines", plan=SINES, show=planes())
def figure_s10(plan: Row, run: Run, tell: Tell) -> None:
    """LeNet along the sines, beside the cosines of the same frequencies."""
    of, cosines, whole = tell.about("LeNet"), frequencies(plan["frequencies"]["lenet"]), bases.fourier_half(SHAPE, "Im")
    wanted = {label[-2:] for label in cosines.labels}
    sines = whole.part([index for index, label in enumerate(whole.labels) if label[-2:] in wanted])
    imaginary, real = results = [learned("lenet", basis, plan, run) for basis in (sines, cosines)]
    maps = [at_frequencies(result, result.accuracy[0, 0, 0]) for result in results]
    of("correlation of Im and Re", bootstrapped(pearson, *at_shared(*maps)))
    of("mean train accuracy", mean_over(np.concatenate([result.train_accuracy[0, 0, 0] for result in results])), "%")
    tell("gaps", Estimate.exact(float(ALL - len(whole))))
    tell.array("LeNet, Im", plane_of(imaginary, 100 * imaginary.accuracy[0, 0, 0]), kind="plane")
    tell.array("LeNet, Re", plane_of(real, 100 * real.accuracy[0, 0, 0]), kind="plane")
    tell.note(SAMPLED)


NOISY = planned(
    smoke={"frequencies": {"logistic_regression": 4, "lenet": 4}},
    laptop={"frequencies": {"logistic_regression": 12, "lenet": 12}},
    paper={"frequencies": {"logistic_regression": EVEN, "lenet": EVEN, "vgg11": 8, "resnet18": 8}},
    published={"frequencies": EVERYWHERE, **PUBLISHED, "noise": (0.0, 1.0, 3.0), **in_float32(*LARGE)},
    by="frequencies",
)


@figure("S11", title="Test accuracy along frequencies at σ = 0, 1, 3", plan=NOISY, show=planes())
def figure_s11(plan: Row, run: Run, tell: Tell) -> None:
    """Accuracy at three levels of noise."""
    test = plan["test"]
    maps: dict[float, dict[str, ByFrequency]] = {noise: {} for noise in plan["noise"]}
    for name in plan.networks:
        of, count = tell.about(TITLES[name]), plan["frequencies"][name]
        result = learned(name, frequencies(count), plan, run)
        table, everything = result.accuracy[:, 0, 0], count == ALL  # (noise, frequency)
        for noise, accuracy in zip(plan["noise"], table, strict=True):
            maps[noise][name] = at_frequencies(result, accuracy)
            tell.array(f"{TITLES[name]}, σ = {noise:g}", plane_of(result, 100 * accuracy), kind="plane")
            of(f"mean accuracy at σ = {noise:g}", mean_over(accuracy), "%")
            of(f"lowest accuracy at σ = {noise:g}", lowest_of(accuracy, test, everything), "%")
        of("lowest accuracy", lowest_of(table.min(0), test, everything), "%")
        of_one, of_three = (table[plan["noise"].index(noise)] for noise in (1.0, 3.0))
        lost, key = bootstrapped(np.mean, 100 * (of_one - of_three), within=(-100.0, 100.0)), keyed(name)
        of("mean accuracy lost from σ = 1 to σ = 3", lost, "points", key=f"{key}_accuracy_lost_from_sigma_1_to_3")
    at_zero, at_one = maps[0.0], maps[1.0]
    if {"lenet", "logistic_regression"} <= at_zero.keys():
        gap = _least_difference(at_zero["lenet"], at_zero["logistic_regression"], test)
        label, key = "lowest accuracy at σ = 0, LeNet minus logistic regression", "lenet_minus_logistic_regression"
        tell(label, gap, "points", key=f"{key}_lowest_accuracy_at_sigma_0")
    if {"resnet18", "vgg11"} <= at_one.keys():
        if "lenet" not in at_one:  # run for the large networks alone: LeNet at the frequencies of the smallest sample
            compared = learned("lenet", frequencies(min(plan["frequencies"].values())), plan, run, noise=1.0)
            at_one["lenet"] = at_frequencies(compared, compared.accuracy[0, 0, 0])
        others = [values for name, values in at_one.items() if name not in ("resnet18", "logistic_regression")]
        resnet, *rest = 100 * at_shared(at_one["resnet18"], *others)
        lead = bootstrapped(np.mean, resnet - max(rest, key=np.mean), within=(-100.0, 100.0))
        tell("ResNet-18: lead at σ = 1", lead, "points")
    tell.settings.update(precisions(plan.networks, run))
    tell.note(SAMPLED)


def _least_difference(one: ByFrequency, two: ByFrequency, test: int) -> Estimate:
    """The least difference of two accuracies over the frequencies of both, in points; open below, as a sample's."""
    accuracies = at_shared(one, two)
    gaps = accuracies[0] - accuracies[1]
    sampled = [proportion(share, test).in_percent() for share in accuracies[:, gaps.argmin()]]
    return over(100 * gaps, of="least", shared=sampled[0].minus(sampled[1]), within=(-100.0, 100.0))
