"""Figures 6, S12 and S20–S22: learning along the anisotropy directions, and along random ones."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from biascope.papers.nads2020.accuracies import in_percent, lowest_of, mean_over, points_between, ratio_of_estimates
from biascope.papers.nads2020.directions import COMPARED, EXACT, directions, found_by, numbered
from biascope.papers.nads2020.frequencies import ALL, SAMPLED, frequencies
from biascope.papers.nads2020.networks import CNNS, LARGE, SHAPE, TITLES, in_float32, keyed, precisions
from biascope.papers.nads2020.released import ALONG_DIRECTIONS, accuracies_along_own, lenet_directions
from biascope.papers.nads2020.training import PUBLISHED, learned, planned
from biascope.results.estimate import (
    Estimate,
    bootstrapped,
    mean_absolute_difference,
    over,
    over_ratios,
    pearson,
    spearman,
)
from biascope.results.figures import against_index_figure, lines_figure
from biascope.results.finding import Finding, Tell, figure
from biascope.results.plan import Row
from biascope.results.shows import curves
from biascope.runs.run import Run
from biascope.tasks import bases

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ENDS_EARLY = "The authors' sequence ends at index 1022."


def spread_places(number: int, size: int = 1024) -> list[int]:
    """So many indices from first to last, denser at the beginning, where accuracies fall."""
    # The first points of a geometric sequence round to the same indices, so it has more points than indices.
    sequences = (
        np.unique(np.geomspace(1, size, points).round().astype(int) - 1) for points in range(2 * number, 1, -1)
    )
    return next(places.tolist() for places in sequences if len(places) == number)


def along(effort: str, **directions: Any) -> dict[str, Any]:
    """The settings of networks that are trained along their own directions: how many, or which."""
    return {**found_by(effort, *directions), "directions": directions}


def noise_along(*names: str) -> dict[str, dict[str, float]]:
    """σ of figure 6. Only figure S20's 3 is printed; LeNet's released accuracies are those of 1 (figure "6 released")."""
    return {"noise": {name: 1.0 if name == "lenet" else 3.0 for name in names}}


OWN = planned(
    smoke={**along("smoke", lenet=2), **noise_along("lenet")},
    laptop={**along("laptop", lenet=12), **noise_along("lenet")},
    paper={**along("paper", mlp=22, lenet=52, vgg11=10, resnet18=12, densenet121=2), **noise_along("mlp", *CNNS)},
    published={**found_by("published", *CNNS, "mlp"), **PUBLISHED, **noise_along("mlp", *CNNS), **in_float32(*LARGE)},
    by="directions",
)


def _accuracies_and_spectra(finding: Finding, dark: bool) -> Figure:
    accuracies = {name: (*curve, None) for name, curve in finding.curves_of("accuracy", 100).items()}
    return against_index_figure(
        accuracies, finding.arrays_of("spectrum"), index="index of the anisotropy direction", dark=dark
    )


@figure(
    "6",
    title="Test accuracy along anisotropy directions, and their eigenvalues (with S20; ε = 1, σ = 3, LeNet σ = 1)",
    plan=OWN,
    show=_accuracies_and_spectra,
)
def figure_6(plan: Row, run: Run, tell: Tell) -> None:
    """Learning along each network's own directions."""
    ranks: dict[str, float] = {}
    drops: dict[str, float] = {}
    for name in plan.networks:
        of, basis = tell.about(TITLES[name]), directions(name, plan["draws"][name], run)
        assert basis.values is not None
        part, eigenvalues = basis.part(spread_places(plan["directions"][name])), basis.values.numpy()
        result = learned(name, part, plan, run)
        accuracy, places = result.accuracy[0, 0, 0], result.places.astype(float)
        tell.array(TITLES[name], np.stack([places, accuracy]), kind="accuracy")
        tell.array(TITLES[name], eigenvalues, kind="spectrum")
        of("lowest accuracy", lowest_of(accuracy, plan["test"]), "%")
        of("mean train accuracy", mean_over(result.train_accuracy[0, 0, 0]), "%")
        of("rank correlation of accuracy and index", bootstrapped(spearman, accuracy, places))
        theirs = accuracies_along_own(name, run)
        if theirs is not None:
            both = places < len(theirs)
            pair = 100 * accuracy[both], theirs[places[both].astype(int)]
            of("correlation with the released accuracies", bootstrapped(pearson, *pair))
            of("mean distance from the released accuracies", bootstrapped(mean_absolute_difference, *pair), "points")
        # One training on each of two directions: how much another seed would change is not known.
        of("first minus last accuracy", Estimate(100 * float(accuracy[0] - accuracy[-1])), "points")
        if name in CNNS and len(accuracy) > 4:
            ranks[name] = float(eigenvalues.sum() ** 2 / (eigenvalues**2).sum())
            drops[name] = _drop(places, accuracy)
            of("effective rank of the spectrum shown", Estimate(ranks[name]))
            of("index of the drop", Estimate(drops[name]))
    if ranks.keys() == set(COMPARED):
        together = spearman(*(np.array([values[name] for name in COMPARED]) for values in (ranks, drops)))
        # A rank correlation over so few networks says little: any order of three is quite likely by chance.
        tell("rank correlation of effective rank and drop", Estimate(together, math.nan, -1.0, 1.0))
    tell.settings.update(precisions(plan.networks, run))
    tell.note(
        "The drop is the first index from which accuracy stays below half-way between its first value and 50 %.", EXACT
    )


def _drop(places: np.ndarray, accuracy: np.ndarray) -> float:
    """The first index from which accuracy stays below the middle between its best and chance; the last if it never does."""
    middle = (accuracy[: max(1, len(accuracy) // 4)].max() + 0.5) / 2
    above = np.flatnonzero(accuracy >= middle)
    return float(places[min(above[-1] + 1, len(places) - 1)]) if len(above) else float(places[0])


RELEASED = planned(
    smoke={"directions": {"lenet": list(ALONG_DIRECTIONS)[::8]}, "noise": (1.0, 3.0)},
    laptop={"directions": {"lenet": list(ALONG_DIRECTIONS)}, "noise": (1.0, 2.0, 3.0)},
    paper={"directions": {"lenet": list(ALONG_DIRECTIONS)}, "noise": (1.0, 2.0, 3.0)},
    published={**PUBLISHED, "draws": {"lenet": 10_000}},
)


@figure(
    "6 released",
    title="LeNet along the authors' own directions, against their accuracies",
    plan=RELEASED,
    show=curves("accuracy", x="index of the authors' direction", y="test accuracy, %", log_x=True),
)
def figure_6_released(plan: Row, run: Run, tell: Tell) -> None:
    """Which σ gives the released accuracies."""
    places = plan["directions"]["lenet"]
    basis, indices = lenet_directions(run).part(places), np.array(places, float)
    theirs = np.array([ALONG_DIRECTIONS[place] for place in places])
    tell.array("released", np.stack([indices, theirs]), kind="accuracy")
    for noise in plan["noise"]:
        result = learned("lenet", basis, plan, run, noise=noise)
        ours = 100 * result.accuracy[0, 0, 0]
        tell.array(f"σ = {noise:g}", np.stack([indices, ours]), kind="accuracy")
        # Two points alone always have a correlation of 1 or −1.
        alike = bootstrapped(pearson, ours, theirs) if len(places) > 2 else Estimate(pearson(ours, theirs))
        apart = bootstrapped(mean_absolute_difference, ours, theirs)
        train = mean_over(result.train_accuracy[0, 0, 0])
        label, key = f"released accuracies, σ = {noise:g}", f"released_accuracies_noise_{noise:g}"
        tell(f"correlation with the {label}", alike, key=f"correlation_with_the_{key}")
        tell(f"mean distance from the {label}", apart, "points", key=f"mean_distance_from_the_{key}")
        tell(f"mean training accuracy, σ = {noise:g}", train, "%", key=f"mean_train_accuracy_noise_{noise:g}")
    tell.note(
        "Intervals are over directions. Each point is one training; the released ones are interpolated between every fourth index."
    )


# Twelve frequencies say too little of LeNet's deviation, so at paper effort there are all of them, as in figure 1.
RANDOM = planned(
    smoke={"directions": {"lenet": 3}, "frequencies": {"lenet": 3}},
    laptop={"directions": {"lenet": 12}, "frequencies": {"lenet": 12}},
    paper={"directions": {"lenet": 128, "resnet18": 12}, "frequencies": {"lenet": ALL, "resnet18": 24}},
    published={"directions": {"lenet": 1024, "resnet18": 1024}, **PUBLISHED, "noise": 3.0, **in_float32("resnet18")},
)


def _best_first(finding: Finding, dark: bool) -> Figure:
    ordered = {name: (np.arange(len(array)), 100 * np.sort(array)[::-1]) for name, array in finding.arrays.items()}
    return lines_figure(ordered, x="direction, best first", y="test accuracy, %", dark=dark)


@figure("S12", title="Test accuracy along random directions", plan=RANDOM, show=_best_first)
def figure_s12(plan: Row, run: Run, tell: Tell) -> None:
    """Accuracy along elements of a random orthonormal basis, beside that along frequencies."""
    basis = bases.random(SHAPE, seed=0)
    for name, count in plan["directions"].items():
        of, result = tell.about(TITLES[name]), learned(name, basis.part(range(count)), plan, run)
        accuracy = result.accuracy[0, 0, 0]
        tell.array(TITLES[name], accuracy)
        along = learned(name, frequencies(plan["frequencies"][name]), plan, run).accuracy[0, 0, 0]
        deviation, of_frequencies = (bootstrapped(np.std, 100 * shares) for shares in (accuracy, along))
        of("deviation over directions", deviation, "points")
        ratio = ratio_of_estimates(deviation, of_frequencies)
        key = f"{keyed(name)}_deviation_over_directions_against_frequencies"
        of("deviation over random directions, divided by that over frequencies", ratio, key=key)
        of("mean accuracy", over(100 * accuracy, within=(0.0, 100.0)), "%")
        of("mean train accuracy", over(100 * result.train_accuracy[0, 0, 0], within=(0.0, 100.0)), "%")
    tell.settings.update(precisions(plan["directions"], run))
    tell.note(SAMPLED)


SPEED = planned(
    smoke={**along("smoke", lenet=[0, 1023]), "noise": {"lenet": 0.5}},
    laptop={**along("laptop", lenet=[0, 10, 100, 300, 1000]), "noise": {"lenet": 0.5}},
    paper={
        **along("paper", lenet=[0, 3, 10, 30, 100, 200, 300, 500, 700, 1000], resnet18=[0, 30, 300, 1023]),
        "noise": {"lenet": 0.5, "resnet18": 1.0},
    },
    published={
        "draws": {"lenet": 10_000, "resnet18": 10_000},
        **PUBLISHED,
        "noise": {"resnet18": 1.0},
        **in_float32("resnet18"),
    },
    ours={"repeats": 3, "threshold": 0.05},
)


def _losses(finding: Finding, dark: bool) -> Figure:
    losses = {name: (finding.arrays["steps"], array) for name, array in finding.arrays_of("loss").items()}
    return lines_figure(losses, x="iteration", y="training loss", log_y=True, dark=dark)


@figure("S21", title="Training loss along early and late directions", plan=SPEED, show=_losses)
def figure_s21(plan: Row, run: Run, tell: Tell) -> None:
    """Loss curves along directions of rising index."""
    for name, places in plan["directions"].items():
        of, basis = tell.about(TITLES[name]), directions(name, plan["draws"][name], run)
        result = learned(name, basis.part(places), plan, run)
        iterations = np.nan_to_num(result.iterations[0, 0], nan=float(result.steps[0, -1]))  # (repeat, direction)
        of("iterations of last over first", over_ratios(iterations[:, -1] / iterations[:, 0]))
        accuracy = result.accuracy[0, 0]  # (repeat, direction)
        lowest, highest = accuracy.mean(0).argmin(), accuracy.mean(0).argmax()
        of("lowest accuracy", in_percent(accuracy[:, lowest], plan["test"]).open_below(), "%")
        of("highest accuracy", in_percent(accuracy[:, highest], plan["test"]).open_above(), "%")
        tell.array("steps", result.steps[0].astype(float))
        for row in range(0, len(places), max(1, len(places) // 4)):
            tell.array(f"{TITLES[name]} {places[row]}", result.losses[0, 0, :, row].mean(0), kind="loss")
    tell.settings.update(precisions(plan["directions"], run))
    tell.note(
        "The noise for LeNet is not given in the text; 0.5 was chosen. Trainings that never get there count as the whole length.",
        _ENDS_EARLY,
    )


_TWO = {"as in figure S21": (20, ""), "twice the epochs": (40, "")}  # epochs and precision, by setting
LAST = planned(
    smoke={
        **along("smoke", lenet=[1023]),
        "settings": {"as in figure S21": (1, ""), "twice the epochs": (2, "")},
        "repeats": 2,
    },
    laptop={**along("laptop", lenet=[1000]), "settings": _TWO},
    paper={
        **along("paper", resnet18=[1022]),
        "settings": {**_TWO, "float32 sums and tf32 products": (20, "tf32")},
        "noise": 1.0,
    },
    published=PUBLISHED,
    ours={"noise": 0.5, "repeats": 3, "threshold": 0.05},
)
LAST = dataclasses.replace(
    LAST, published={"noise": 1.0, "samples": [10_000], "test": 10_000, "batch": 128, "rate": 0.5, "clip": 0.5}
)


@figure(
    "S21 settings",
    title="The last direction of figure S21 with other settings",
    plan=LAST,
    show=numbered("accuracy", x="repeat", y="test accuracy, %", scale=100),
)
def figure_s21_settings(plan: Row, run: Run, tell: Tell) -> None:
    """Test accuracy along the last direction for several settings, each with the same seeds."""
    ((name, places),) = plan["directions"].items()
    part = directions(name, plan["draws"][name], run).part(places)
    by_setting: dict[str, Estimate] = {}
    for words, (epochs, precision) in plan["settings"].items():
        accuracy = learned(name, part, plan, run, epochs=epochs, precision=precision).accuracy[0, 0, :, 0]
        tell.array(words, accuracy, kind="accuracy")
        by_setting[words] = in_percent(accuracy, plan["test"])
    best = max(by_setting, key=lambda words: float(by_setting[words]))
    of = tell.about(TITLES[name])
    of(f"highest accuracy, {best}", by_setting[best], "%", key="highest_accuracy_over_settings")
    tell.settings.update(precisions([name], run))
    tell.note("Intervals are those of seeds and of the test sample.", _ENDS_EARLY)


SIZES = planned(
    smoke={**along("smoke", lenet=[0, 1023]), "sizes": {"lenet": [128, 256]}, "repeats": 1},
    laptop={**along("laptop", lenet=[0, 30, 1000]), "sizes": {"lenet": [1000, 3000, 10_000]}},
    paper={
        **along("paper", lenet=[0, 10, 100, 300, 1023], resnet18=[0, 1023]),
        # Most of the time goes into the largest size, where the hardest direction decides.
        "directions at the largest size": {"resnet18": [1023]},
        "sizes": {"lenet": [1000, 3000, 10_000, 30_000], "resnet18": [1000, 10_000, 60_000]},
    },
    published={
        "draws": {"lenet": 10_000, "resnet18": 10_000},
        **{setting: value for setting, value in PUBLISHED.items() if setting != "samples"},
        "noise": 3.0,
        **in_float32("resnet18"),
    },
    ours={"repeats": 2},
    by="sizes",
)


@figure(
    "S22",
    title="Test accuracy against the number of training samples, along early and late directions (σ = 3)",
    plan=SIZES,
    show=curves("accuracy", x="training samples", y="test accuracy, %", scale=100, log_x=True),
)
def figure_s22(plan: Row, run: Run, tell: Tell) -> None:
    """Accuracy for several sizes of the training set."""
    tell.note("Intervals are those of seeds and of the test sample.")
    for name, sizes in plan["sizes"].items():
        title, of, basis = TITLES[name], tell.about(TITLES[name]), directions(name, plan["draws"][name], run)
        places_at = dict.fromkeys(sizes, plan["directions"][name])
        if at_largest := plan.get("directions at the largest size", {}).get(name):
            places_at[sizes[-1]] = at_largest
            tell.note(f"From {sizes[-1]:,} samples {title} learned the directions {at_largest} alone, counted from 0.")
        results = [learned(name, basis.part(places), plan, run, samples=size) for size, places in places_at.items()]
        tables = [result.accuracy[0, 0] for result in results]  # (repeat, direction) by size
        middle, largest = tables[len(tables) // 2], tables[-1]
        of("lead of the first direction", points_between(middle[:, 0], middle[:, -1], plan["test"]), "points")
        hardest = int(largest.mean(0).argmin())
        lowest = in_percent(largest[:, hardest], plan["test"]).open_below()
        of("lowest accuracy at the largest size", lowest, "%")
        train = in_percent(results[-1].train_accuracy[0, 0, :, hardest], sizes[-1])
        label, key = "training accuracy at the largest size", f"{keyed(name)}_training_accuracy_at_the_largest_size"
        of(f"{label}, on the direction with the lowest accuracy", train, "%", key=key)
        for place in plan["directions"][name]:
            curve = [
                (size, table[:, places.index(place)].mean())
                for (size, places), table in zip(places_at.items(), tables, strict=True)
                if place in places
            ]
            tell.array(f"{title} {place}", np.array(curve, float).T, kind="accuracy")
    tell.settings.update(precisions(plan.networks, run))
    tell.note(_ENDS_EARLY)
