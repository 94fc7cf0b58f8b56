"""Figures 6 and S20–S22: learning along the anisotropy directions."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from biascope.data import data_root
from biascope.measures.directional_bias.result import DirectionalBias
from biascope.papers.nads2020.directions import CNNS, COMPARED, EXACT, PUBLISHED_DIRECTIONS, directions, found_by
from biascope.papers.nads2020.frequencies import PROTOCOL, PUBLISHED, learned, trained_by
from biascope.papers.nads2020.shared import SHAPE, TITLES, in_percent, keyed, lowest_of, points_between
from biascope.papers.selection import chosen, old_figure
from biascope.results.estimate import (
    Estimate,
    Number,
    bootstrapped,
    mean_absolute_difference,
    over_ratios,
    pearson,
    spearman,
)
from biascope.results.figures import against_index_figure, lines_figure
from biascope.results.finding import Finding
from biascope.runs.run import Run
from biascope.tasks.bases import ordered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LAST = "The authors' sequence ends at index 1022."


def _places(count: int, size: int = 1024) -> list[int]:
    """Indices from first to last, denser at the beginning, where accuracies fall; of 0, the two ends."""
    if not count:
        return [0, size - 1]
    wanted = np.unique(np.round(np.geomspace(1, size, count)).astype(int) - 1)
    return sorted({int(place) for place in wanted} | {0, size - 1})


_ALONG: dict[str, dict[str, int]] = {
    "smoke": {"lenet": 2},
    "laptop": {"lenet": 12},
    "paper": {"mlp": 24, "lenet": 64, "vgg11": 10, "resnet18": 12, "densenet121": 0},
}


def noise_along(name: str) -> float:
    """σ of figure 6. Only figure S20's 3 is printed; LeNet's released accuracies are those of 1 (figure "6 released")."""
    return 1.0 if name == "lenet" else 3.0


def _drawn_6(finding: Finding, dark: bool) -> Figure:
    curves = {name: (*curve, None) for name, curve in finding.curves_of("accuracy", 100).items()}
    return against_index_figure(
        curves, finding.arrays_of("spectrum"), index="index of the anisotropy direction", dark=dark
    )


@old_figure(
    "6",
    networks=_ALONG,
    title="Test accuracy along anisotropy directions, and their eigenvalues (with S20; ε = 1, σ = 3, LeNet σ = 1)",
    show=_drawn_6,
    published={
        **PUBLISHED_DIRECTIONS,
        "draws: MLP": 10_000,
        **PUBLISHED,
        **{f"noise: {TITLES[name]}": noise_along(name) for name in ("mlp", *CNNS)},
        **{f"precision: {TITLES[name]}": "float32" for name in ("vgg11", "resnet18", "densenet121")},
    },
)
def figure_6(effort: str, run: Run) -> Finding:
    """Learning along each network's own directions."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    ranks, drops, test = {}, {}, PROTOCOL[effort]["test"]
    along = chosen(_ALONG[effort])
    for name, count in along.items():
        title, key, basis = TITLES[name], keyed(name), directions(name, effort, run)
        result = learned(name, basis.part(_places(count)), effort, run, noise=(noise_along(name),))
        accuracy = result.accuracy[0, 0, 0]
        assert basis.values is not None
        values = basis.values.numpy()
        arrays[f"accuracy: {title}"] = np.stack([result.places.astype(float), accuracy])
        arrays[f"spectrum: {title}"] = values
        fall = bootstrapped(spearman, accuracy, result.places.astype(float))
        statistics |= {
            f"{key}_lowest_accuracy": lowest_of(accuracy, test).named(f"{title}: lowest accuracy", "%"),
            f"{key}_mean_train_accuracy": bootstrapped(
                np.mean, 100 * result.train_accuracy[0, 0, 0], within=(0.0, 100.0)
            ).named(f"{title}: mean train accuracy", "%"),
            f"{key}_rank_correlation_of_accuracy_and_index": fall.named(
                f"{title}: rank correlation of accuracy and index"
            ),
            # One training on each of two directions: how much another seed would change is not known.
            f"{key}_first_minus_last_accuracy": Estimate(100 * float(accuracy[0] - accuracy[-1])).named(
                f"{title}: first minus last accuracy", "points"
            ),
        }
        if name in CNNS and len(accuracy) > 4:
            ranks[name] = float(values.sum() ** 2 / (values**2).sum())
            drops[name] = _drop(result.places, accuracy)
            statistics |= {
                f"{key}_effective_rank_of_the_spectrum_shown": Estimate(ranks[name]).named(
                    f"{title}: effective rank of the spectrum shown"
                ),
                f"{key}_index_of_the_drop": Estimate(drops[name]).named(f"{title}: index of the drop"),
            }
    if ranks.keys() == set(COMPARED):
        together = spearman(*(np.array([each[name] for name in COMPARED]) for each in (ranks, drops)))
        # A rank correlation over so few networks says little: any order of three is quite likely by chance.
        spread = Estimate(together, math.nan, -1.0, 1.0)
        statistics["rank_correlation_of_effective_rank_and_drop"] = spread.named(
            "rank correlation of effective rank and drop"
        )
    large = [name for name in ("vgg11", "resnet18", "densenet121") if name in along]
    settings = {
        **found_by(effort, *along),
        **{f"directions: {TITLES[name]}": len(_places(count)) for name, count in along.items()},
        **trained_by(effort, run, *large),
        **{f"noise: {TITLES[name]}": noise_along(name) for name in along},
    }
    notes = (
        "The drop is the first index from which accuracy stays below half-way between its first value and 50 %.",
        EXACT,
    )
    return Finding(statistics, arrays, settings, notes)


#: The authors' accuracies of LeNet in percent along their own directions, by index: docs/data/nads.csv of their repository
#: (LTS4/neural-anisotropy-directions).
RELEASED = {
    **{2: 99.99, 6: 99.99, 14: 99.97, 30: 99.57, 46: 92.96, 74: 91.66, 118: 81.39, 174: 72.48},
    **{250: 62.75, 350: 57.37, 418: 56.21, 598: 51.67, 698: 51.68, 798: 51.21, 898: 50.44, 998: 49.67},
}
_RELEASED_NOISE = {"smoke": (1.0, 3.0), "laptop": (1.0, 2.0, 3.0), "paper": (1.0, 2.0, 3.0)}
_RELEASED_FILE = "nads_lenet.npz"


@old_figure(
    "6 released",
    title="LeNet along the authors' own directions, against their accuracies",
    show=lambda finding, dark: lines_figure(
        finding.curves_of("accuracy"), x="index of the authors' direction", y="test accuracy, %", log_x=True, dark=dark
    ),
    published={**PUBLISHED, "draws: LeNet": 10_000},
)
def figure_6_released(effort: str, run: Run) -> Finding:
    """Which σ gives the released accuracies."""
    path = data_root(run.data_root) / "published" / _RELEASED_FILE
    if not path.exists():
        raise ValueError(
            f"Figure 6 released needs the authors' directions, and the data folder has no published/{_RELEASED_FILE}. Put the file "
            "there, or set BIASCOPE_DATA."
        )
    places = list(RELEASED)[:: 8 if effort == "smoke" else 1]
    with np.load(path, allow_pickle=False) as stored:
        vectors, values = torch.as_tensor(stored["directions"]).float(), torch.as_tensor(stored["singular_values"])
    basis = ordered(vectors, SHAPE, values, name="anisotropy (LeNet, released)").part(places)
    theirs, indices = np.array([RELEASED[place] for place in places]), np.array(places, float)
    statistics: dict[str, Number] = {}
    arrays = {"accuracy: released": np.stack([indices, theirs])}
    for noise in _RELEASED_NOISE[effort]:
        result = learned("lenet", basis, effort, run, noise=(noise,))
        ours, fitted = (100 * table[0, 0, 0] for table in (result.accuracy, result.train_accuracy))
        arrays[f"accuracy: σ = {noise:g}"] = np.stack([indices, ours])
        alike = bootstrapped(pearson, ours, theirs) if effort != "smoke" else Estimate(pearson(ours, theirs))
        apart = bootstrapped(mean_absolute_difference, ours, theirs)
        statistics |= {
            f"correlation_with_the_released_accuracies_noise_{noise:g}": alike.named(
                f"correlation with the released accuracies, σ = {noise:g}"
            ),
            f"mean_distance_from_the_released_accuracies_noise_{noise:g}": apart.named(
                f"mean distance from the released accuracies, σ = {noise:g}", "points"
            ),
            f"mean_train_accuracy_noise_{noise:g}": bootstrapped(np.mean, fitted, within=(0.0, 100.0)).named(
                f"mean training accuracy, σ = {noise:g}", "%"
            ),
        }
    settings = {**trained_by(effort, run), "draws: LeNet": 10_000, "directions: LeNet": places}
    notes = (
        "Intervals are over directions. Each point is one training; the released ones are interpolated between every fourth index.",
    )
    return Finding(statistics, arrays, settings | {"noise": list(_RELEASED_NOISE[effort])}, notes)


def _drop(places: np.ndarray, accuracy: np.ndarray) -> float:
    """The first index from which accuracy stays below the middle between its best and chance; the last if it never does."""
    middle = (accuracy[: max(1, len(accuracy) // 4)].max() + 0.5) / 2
    above = np.flatnonzero(accuracy >= middle)
    return float(places[min(above[-1] + 1, len(places) - 1)]) if len(above) else float(places[0])


_SPEED_PLACES: dict[str, dict[str, tuple[list[int], float]]] = {
    "smoke": {"lenet": ([0, 1023], 0.5)},
    "laptop": {"lenet": ([0, 10, 100, 300, 1000], 0.5)},
    "paper": {
        "lenet": ([0, 3, 10, 30, 100, 200, 300, 500, 700, 1000], 0.5),
        "resnet18": ([0, 30, 300, 1023], 1.0),
    },
}


def _drawn_curves(finding: Finding, dark: bool) -> Figure:
    steps = finding.arrays["steps"]
    curves = {name: (steps, array) for name, array in finding.arrays_of("loss").items()}
    return lines_figure(curves, x="iteration", y="training loss", log_y=True, dark=dark)


@old_figure(
    "S21",
    title="Training loss along early and late directions",
    show=_drawn_curves,
    published={
        **{f"draws: {TITLES[name]}": 10_000 for name in ("lenet", "resnet18")},
        **PUBLISHED,
        "noise: ResNet-18": 1.0,
        "precision: ResNet-18": "float32",
    },
)
def figure_s21(effort: str, run: Run) -> Finding:
    """Loss curves along directions of rising index."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    plans, test = _SPEED_PLACES[effort], PROTOCOL[effort]["test"]
    for name, (places, noise) in plans.items():
        title, key, basis = TITLES[name], keyed(name), directions(name, effort, run)
        result = learned(name, basis.part(places), effort, run, noise=(noise,), threshold=0.05, repeats=3)
        total = float(result.steps[0, -1])
        iterations = np.nan_to_num(result.iterations[0, 0], nan=total)  # (repeat, direction)
        each = result.accuracy[0, 0]  # (repeat, direction)
        low, high = int(each.mean(0).argmin()), int(each.mean(0).argmax())
        statistics |= {
            f"{key}_iterations_of_last_over_first": _ratio(iterations).named(f"{title}: iterations of last over first"),
            f"{key}_lowest_accuracy": in_percent(each[:, low], test)
            .open_below()
            .named(f"{title}: lowest accuracy", "%"),
            f"{key}_highest_accuracy": in_percent(each[:, high], test)
            .open_above()
            .named(f"{title}: highest accuracy", "%"),
        }
        arrays["steps"] = result.steps[0].astype(float)
        for row, place in enumerate(places):
            if row % max(1, len(places) // 4) == 0:
                arrays[f"loss: {title} {place}"] = result.losses[0, 0, :, row].mean(0)
    settings = {
        **found_by(effort, *plans),
        **{f"directions: {TITLES[name]}": places for name, (places, _) in plans.items()},
        **{f"noise: {TITLES[name]}": noise for name, (_, noise) in plans.items()},
        **trained_by(effort, run, *(name for name in plans if name == "resnet18")),
        "repeats": 3,
    }
    notes = (
        "The noise for LeNet is not given in the text; 0.5 was chosen. Trainings that never get there count as the whole length.",
        _LAST,
    )
    return Finding(statistics, arrays, settings, notes)


def _ratio(iterations: np.ndarray) -> Estimate:
    """Last over first direction, geometric mean over repeats."""
    return over_ratios(iterations[:, -1] / iterations[:, 0])


@dataclass(frozen=True)
class Growth:
    """Sizes of the training set along directions.

    Attributes:
        places: Indices of directions.
        sizes: Training samples.
        at_largest: Indices at the largest size, if not all.
    """

    places: list[int]
    sizes: tuple[int, ...]
    at_largest: list[int] = field(default_factory=list)

    def places_at(self, size: int) -> list[int]:
        """Indices of the directions that are learned from so many samples."""
        return self.at_largest if self.at_largest and size == self.sizes[-1] else self.places


_SIZES: dict[str, dict[str, Growth]] = {
    "smoke": {"lenet": Growth([0, 1023], (128, 256))},
    "laptop": {"lenet": Growth([0, 30, 1000], (1000, 3000, 10_000))},
    "paper": {
        "lenet": Growth([0, 10, 100, 300, 1023], (1000, 3000, 10_000, 30_000)),
        # Most of the time goes into the largest size, where the hardest direction decides.
        "resnet18": Growth([0, 1023], (1000, 10_000, 60_000), at_largest=[1023]),
    },
}


@old_figure(
    "S22",
    networks=_SIZES,
    title="Test accuracy against the number of training samples, along early and late directions (σ = 3)",
    show=lambda finding, dark: lines_figure(
        finding.curves_of("accuracy", 100),
        x="training samples",
        y="test accuracy, %",
        log_x=True,
        dark=dark,
    ),
    published={
        **{f"draws: {TITLES[name]}": 10_000 for name in ("lenet", "resnet18")},
        **{key: value for key, value in PUBLISHED.items() if key != "samples"},
        "noise": 3.0,
        "precision: ResNet-18": "float32",
    },
)
def figure_s22(effort: str, run: Run) -> Finding:
    """Accuracy for several sizes of the training set."""
    plans = chosen(_SIZES[effort])
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    test, repeats = PROTOCOL[effort]["test"], 1 if effort == "smoke" else 2
    for name, plan in plans.items():
        title, key, basis = TITLES[name], keyed(name), directions(name, effort, run)
        results: dict[int, DirectionalBias] = {
            size: learned(name, basis.part(plan.places_at(size)), effort, run, samples=(size,), repeats=repeats)
            for size in plan.sizes
        }
        tables = [result.accuracy[0, 0] for result in results.values()]  # (repeat, direction) by size
        middle, largest = tables[len(tables) // 2], tables[-1]
        lead = points_between(middle[:, 0], middle[:, -1], test)
        hardest = int(largest.mean(0).argmin())
        lowest = in_percent(largest[:, hardest], test).open_below()
        fitted = in_percent(results[plan.sizes[-1]].train_accuracy[0, 0, :, hardest], plan.sizes[-1])
        statistics |= {
            f"{key}_lead_of_the_first_direction": lead.named(f"{title}: lead of the first direction", "points"),
            f"{key}_lowest_accuracy_at_the_largest_size": lowest.named(
                f"{title}: lowest accuracy at the largest size", "%"
            ),
            f"{key}_training_accuracy_at_the_largest_size": fitted.named(
                f"{title}: training accuracy at the largest size, on the direction with the lowest accuracy", "%"
            ),
        }
        for place in plan.places:
            curve = [
                (size, table[:, plan.places_at(size).index(place)].mean())
                for size, table in zip(plan.sizes, tables, strict=True)
                if place in plan.places_at(size)
            ]
            arrays[f"accuracy: {title} {place}"] = np.array(curve, float).T
    settings = {
        **found_by(effort, *plans),
        **trained_by(effort, run, *(name for name in plans if name == "resnet18")),
        **{f"directions: {TITLES[name]}": plan.places for name, plan in plans.items()},
        **{
            f"directions at the largest size: {TITLES[name]}": plan.at_largest
            for name, plan in plans.items()
            if plan.at_largest
        },
        **{f"sizes: {TITLES[name]}": list(plan.sizes) for name, plan in plans.items()},
        "noise": 3.0,
        "repeats": repeats,
    }
    del settings["samples"]
    notes = ["Intervals are those of seeds and of the test sample."]
    notes += [
        f"From {plan.sizes[-1]:,} samples {TITLES[name]} learned the directions {plan.at_largest} alone, counted from 0."
        for name, plan in plans.items()
        if plan.at_largest
    ]
    return Finding(statistics, arrays, settings, (*notes, _LAST))


# By setting: epochs and precision; repeats of each.
_S21_SETTINGS: dict[str, tuple[str, list[int], dict[str, tuple[int, str]], int]] = {
    "smoke": ("lenet", [1023], {"as in figure S21": (1, ""), "twice the epochs": (2, "")}, 2),
    "laptop": ("lenet", [1000], {"as in figure S21": (20, ""), "twice the epochs": (40, "")}, 3),
    "paper": (
        "resnet18",
        [1022],
        {"as in figure S21": (20, ""), "twice the epochs": (40, ""), "float32 sums and tf32 products": (20, "tf32")},
        3,
    ),
}


@old_figure(
    "S21 settings",
    title="The last direction of figure S21 with other settings",
    show=lambda finding, dark: lines_figure(
        {name: (np.arange(1, len(values) + 1), 100 * values) for name, values in finding.arrays_of("accuracy").items()},
        x="repeat",
        y="test accuracy, %",
        dark=dark,
    ),
    published={"noise": 1.0, "samples": [10_000], "test": 10_000, "batch": 128, "rate": 0.5, "clip": 0.5},
)
def figure_s21_settings(effort: str, run: Run) -> Finding:
    """Test accuracy along the last direction for several settings, each with the same seeds."""
    name, places, variants, repeats = _S21_SETTINGS[effort]
    title, test = TITLES[name], PROTOCOL[effort]["test"]
    noise = 1.0 if name == "resnet18" else 0.5
    basis = directions(name, effort, run).part(places)
    arrays, found = {}, {}
    for words, (epochs, precision) in variants.items():
        how = dataclasses.replace(run, precision=precision) if precision else run
        result = learned(
            name,
            basis,
            effort,
            how,
            noise=(noise,),
            threshold=0.05,
            repeats=repeats,
            epochs=epochs,
            plain=bool(precision),
        )
        arrays[f"accuracy: {words}"] = result.accuracy[0, 0, :, 0]
        found[words] = in_percent(result.accuracy[0, 0, :, 0], test)
    best = max(found, key=lambda words: found[words].value)
    statistics: dict[str, Number] = {
        "highest_accuracy_over_settings": found[best].named(f"{title}: highest accuracy, {best}", "%")
    }
    settings = {
        **found_by(effort, name),
        **trained_by(effort, run, *([name] if name == "resnet18" else [])),
        "noise": noise,
        f"directions: {title}": places,
        "settings": {words: list(each) for words, each in variants.items()},
        "repeats": repeats,
    }
    return Finding(statistics, arrays, settings, ("Intervals are those of seeds and of the test sample.", _LAST))
