"""Figures 5, 6, S13–S22 and section D.3: the anisotropy directions themselves, and learning along them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from biascope.data import data_root
from biascope.derivatives.mixed import MixedDerivative
from biascope.derivatives.mixed_gram import mixed_gram
from biascope.derivatives.spectrum import eigenpairs, subspace_similarity
from biascope.measures.anisotropy_directions import anisotropy_directions
from biascope.measures.directional_bias.result import DirectionalBias
from biascope.papers.nads2020.frequencies import PROTOCOL, PUBLISHED, learned, trained_by
from biascope.papers.nads2020.shared import (
    SHAPE,
    TITLES,
    accuracy_gate,
    against_published,
    directions_of,
    family_of,
    joined,
    keyed,
    lowest_of,
    published_accuracies,
)
from biascope.papers.selection import chosen
from biascope.results.claim import Claim, Finding, Trained, figure
from biascope.results.draw import directions as drawn_directions
from biascope.results.estimate import (
    Estimate,
    Number,
    bootstrapped,
    mean_absolute_difference,
    over_repeats,
    pearson,
    proportion,
    spearman,
)
from biascope.results.figures import against_index_figure, lines_figure
from biascope.runs.run import Run
from biascope.tasks.bases import Basis, fourier_half, ordered
from biascope.tasks.probe import Probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CNNS = ("lenet", "vgg11", "resnet18", "densenet121")
# Draws of each network's weights; DenseNet-121 with the exact gradient, since its differences take hours.
DRAWS: dict[str, dict[str, int]] = {
    "smoke": {"lenet": 8},
    "laptop": {"lenet": 2000},
    "paper": {"mlp": 2000, "lenet": 10_000, "vgg11": 2000, "resnet18": 2000, "densenet121": 1100},
}
# Figures 5 and 6 have numbers over all networks only if they run for these together.
_COMPARED = ("lenet", "vgg11", "resnet18")
_SEEDS = 3  # sets of draws, each at an input of its own, where directions are compared
_LAST = "The authors' sequence ends at index 1022."
EXACT = "The directions of DenseNet-121 are those of the exact gradient, not of differences of half width 100."


#: How the authors found directions, under the keys of our settings.
PUBLISHED_DIRECTIONS: dict[str, Any] = {
    "step": 100.0,
    "centred": True,
    **{f"draws: {TITLES[name]}": 10_000 for name in CNNS},
}


def directions(name: str, effort: str, run: Run) -> Basis:
    """A network's anisotropy directions at an effort."""
    estimator = "exact" if name == "densenet121" else "difference"
    return directions_of(name, DRAWS[effort][name], run, estimator=estimator)


def found_by(effort: str, *names: str) -> dict[str, Any]:
    """The settings of directions, under the keys of :data:`PUBLISHED_DIRECTIONS`."""
    draws = {f"draws: {TITLES[name]}": DRAWS[effort][name] for name in names if name in DRAWS[effort]}
    return {"step": 100.0, "centred": True, **draws}


def _places(count: int, size: int = 1024) -> list[int]:
    """Indices from first to last, denser at the beginning, where accuracies fall; of 0, the two ends."""
    if not count:
        return [0, size - 1]
    wanted = np.unique(np.round(np.geomspace(1, size, count)).astype(int) - 1)
    return sorted({int(place) for place in wanted} | {0, size - 1})


def comb_share(vector: np.ndarray, spacing: int = 4) -> float:
    """Largest share of an image's energy on frequencies ±(a, b) + multiples of ``spacing``: 1 for a comb, and for a single wave.

    White noise has about 2/spacing². :func:`frequencies_with_energy` tells a comb from a wave.
    """
    energy = np.abs(np.fft.fft2(vector.reshape(32, 32))) ** 2
    shares = []
    for a in range(spacing):
        for b in range(spacing):
            chosen = np.zeros_like(energy, dtype=bool)
            for row, column in ((a, b), (-a % spacing, -b % spacing)):
                chosen[row::spacing, column::spacing] = True
            shares.append(float(energy[chosen].sum() / energy.sum()))
    return max(shares)


def frequencies_with_energy(vector: np.ndarray) -> float:
    """How many frequencies hold an image's energy: the participation ratio ``(Σe)² / Σe²``, with k and −k as one frequency.

    A single wave has 1, a comb of n equal waves has n.

    Example:
        >>> wave = np.cos(2 * np.pi * 2 * np.arange(32) / 32)[:, None] * np.ones(32)
        >>> round(frequencies_with_energy(wave), 6)
        1.0
    """
    energy = np.abs(np.fft.fft2(vector.reshape(32, 32))) ** 2
    at = np.array([[int(str(part)) for part in label[-2:]] for label in fourier_half(SHAPE, "Re").labels])
    alone = (2 * at % 32 == 0).all(1)  # k = −k
    half = np.where(alone, 1.0, 2.0) * energy[at[:, 0], at[:, 1]]
    return float(half.sum() ** 2 / (half**2).sum())


def accuracy_where_energy_is(vectors: np.ndarray, accuracies: Mapping[tuple[int, int], float]) -> np.ndarray:
    """Mean published accuracy at even frequencies, weighted by each image's Fourier energy there, minus the plain mean, in points.

    Example:
        >>> plane = {(k, l): 100.0 if (k, l) == (2, 0) else 50.0 for k in range(-16, 16, 2) for l in range(0, 16, 2)}
        >>> wave = np.cos(2 * np.pi * 2 * np.arange(32) / 32)[:, None] * np.ones(32)
        >>> accuracy_where_energy_is(wave.reshape(1, -1), plane) > 45
        array([ True])
    """
    energy = np.abs(np.fft.fft2(vectors.reshape(-1, 32, 32))) ** 2
    cosines = fourier_half(SHAPE, "Re", 2)
    known = [label for label in cosines.labels if len(against_published([label], np.ones(1), dict(accuracies))[1])]
    _, accuracy = against_published(known, np.ones(len(known)), dict(accuracies))
    at = np.array([[int(str(part)) for part in label[-2:]] for label in known])
    weights = energy[:, at[:, 0], at[:, 1]]
    return np.asarray((weights * accuracy).sum(1) / weights.sum(1) - accuracy.mean())


def _gallery(finding: Finding, dark: bool) -> Figure:
    images, labels = [], []
    for name, vectors in finding.arrays_of("first").items():
        for index, vector in enumerate(vectors[:4]):
            images.append(vector.reshape(1, math.isqrt(vector.size), -1))
            labels.append(f"{name} {index + 1}")
    return drawn_directions(np.stack(images), labels, columns=4, dark=dark)  # a network in each row


@figure(
    "5",
    networks={effort: [name for name in draws if name in CNNS] for effort, draws in DRAWS.items()},
    title="First anisotropy directions (figures S13–S16 show more of them)",
    claims=[
        Claim(
            "The first directions of ResNet-18 are more like combs than those of every other network compared: share of energy on a "
            "lattice of spacing 4, minus the largest of the others.",
            "resnet_18_energy_on_a_comb_minus_others",
            "at least",
            "combs of spikes",
            0.0,
            "paper",
            of="resnet_combs",
            kind="paper",
        ),
        Claim(
            "The first directions of ResNet-18 are combs in the Fourier domain: share of energy on a lattice of spacing 4.",
            "resnet_18_energy_on_a_comb",
            "at least",
            "combs of spikes",
            0.8,
            "paper",
            of="resnet_combs",
        ),
        # A single frequency has all its energy on such a lattice, too.
        Claim(
            "The first directions of ResNet-18 are combs of spikes and not single frequencies: number of frequencies that hold the "
            "energy.",
            "resnet_18_number_of_frequencies_that_hold_the_energy",
            "at least",
            "combs of spikes",
            8.0,
            "paper",
            of="resnet_combs",
        ),
        Claim(
            "Two networks share fewer directions than two sets of draws of one network: greatest similarity of two networks' first ten "
            "minus the smallest of one network's.",
            "similarity_of_networks_minus_that_of_draws",
            "at most",
            "a unique signature of an architecture",
            0.0,
            "paper",
            of="directions_differ_by_network",
            kind="paper",
        ),
        Claim(
            "Directions differ by architecture: greatest similarity of two networks' first ten.",
            "greatest_similarity_of_two_networks",
            "at most",
            "a unique signature of an architecture",
            0.5,
            "paper",
            of="directions_differ_by_network",
        ),
        *(
            Claim(
                f"The Fourier energy of {TITLES[name]}'s first directions lies at frequencies of high accuracy: the authors' accuracy "
                "weighted by it, minus the mean, in points.",
                f"{keyed(name)}_accuracy_where_the_energy_is_minus_the_mean",
                "at least",
                "included in the high accuracy regions",
                0.0,
                "laptop" if name == "lenet" else "paper",
                of="directions_in_accurate_region",
                kind="paper",
            )
            for name in CNNS
        ),
    ],
    draw=_gallery,
    published=PUBLISHED_DIRECTIONS,
)
def figure_5(effort: str, run: Run) -> Finding:
    """The first directions of each network, and how alike those of two networks and of two sets of draws are."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    tens: dict[str, list[torch.Tensor]] = {}
    draws = chosen({name: max(4, count // 4) for name, count in DRAWS[effort].items() if name in CNNS})  # of each set
    names = list(draws)
    for name in names:
        title = TITLES[name]
        first = directions(name, effort, run).vectors[:20].numpy()
        arrays[f"first: {title}"] = first
        comb = bootstrapped(np.mean, np.array([comb_share(vector) for vector in first[:10]]))
        statistics[f"{keyed(name)}_energy_on_a_comb"] = comb.named(f"{title}: energy on a comb")
        spikes = bootstrapped(np.mean, np.array([frequencies_with_energy(vector) for vector in first[:10]]))
        statistics[f"{keyed(name)}_number_of_frequencies_that_hold_the_energy"] = spikes.named(
            f"{title}: number of frequencies that hold the energy"
        )
        theirs = published_accuracies(name, run)
        if theirs is not None:
            inside = bootstrapped(np.mean, accuracy_where_energy_is(first[:10], theirs))
            statistics[f"{keyed(name)}_accuracy_where_the_energy_is_minus_the_mean"] = inside.named(
                f"{title}: the authors' accuracy weighted by the energy of the first ten directions, minus the mean",
                "points",
            )
        estimator = "exact" if name == "densenet121" else "difference"
        tens[name] = [
            directions_of(name, draws[name], run, estimator=estimator, seed=1 + seed).vectors[:10]
            for seed in range(_SEEDS)
        ]
        alike = over_repeats(
            [subspace_similarity(tens[name][i], tens[name][j]) for i in range(_SEEDS) for j in range(i)],
            within=(0.0, 1.0),
        )
        statistics[f"similarity_of_two_sets_of_draws_of_{keyed(name)}"] = alike.named(
            f"similarity of two sets of draws of {title}"
        )
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            each = [subspace_similarity(one, two) for one, two in zip(tens[a], tens[b], strict=True)]
            statistics[f"similarity_of_{keyed(a)}_and_{keyed(b)}"] = over_repeats(each, within=(0.0, 1.0)).named(
                f"similarity of {TITLES[a]} and {TITLES[b]}"
            )
    if set(_COMPARED) <= set(names):
        statistics |= _extremes(statistics, names)
    settings = {
        **found_by(effort, *names),
        **{f"draws of one set: {TITLES[name]}": count for name, count in draws.items()},
        "seeds": _SEEDS,
    }
    notes = (
        "Means over the first ten directions. Similarity is the mean squared cosine of principal angles, over three sets of draws, "
        "each at its own input.",
        EXACT,
    )
    return Finding(statistics, arrays, settings, notes)


def _extremes(found: Mapping[str, Number], names: Sequence[str]) -> dict[str, Number]:
    """How alike the two most similar networks are, and how much more like combs ResNet-18's directions are than the next network's."""

    def value(number: Number) -> float:
        return number.value

    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    greatest = max((found[f"similarity_of_{keyed(a)}_and_{keyed(b)}"] for a, b in pairs), key=value)
    own = min((found[f"similarity_of_two_sets_of_draws_of_{keyed(name)}"] for name in names), key=value)
    others = max((found[f"{keyed(name)}_energy_on_a_comb"] for name in names if name != "resnet18"), key=value)
    return {
        "greatest_similarity_of_two_networks": greatest.named("greatest similarity of two networks"),
        "similarity_of_networks_minus_that_of_draws": greatest.minus(own).named(
            "greatest similarity of two networks minus the smallest of two sets of draws"
        ),
        "resnet_18_energy_on_a_comb_minus_others": found["resnet_18_energy_on_a_comb"]
        .minus(others)
        .named("energy on a comb, ResNet-18 minus the next network"),
    }


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


def _trained_along(*names: str) -> tuple[Trained, ...]:
    return accuracy_gate(*(f"{keyed(name)}_mean_train_accuracy" for name in names))


@figure(
    "6",
    networks=_ALONG,
    title="Test accuracy along anisotropy directions, and their eigenvalues (with S20; σ = 3, ε = 1)",
    claims=[
        *(
            Claim(
                f"{TITLES[name]}'s accuracy decreases with the index: rank correlation.",
                f"{keyed(name)}_rank_correlation_of_accuracy_and_index",
                "at most",
                "monotonically decreases",
                0.0,
                "laptop" if name == "lenet" else "paper",
                of="accuracy_falls_with_index",
                kind="paper",
                trained=_trained_along(name),
            )
            for name in CNNS
        ),
        *(
            Claim(
                f"Accuracy falls with the index for {TITLES[name]}: rank correlation.",
                f"{keyed(name)}_rank_correlation_of_accuracy_and_index",
                "at most",
                "monotonically decreases",
                -0.6,
                "laptop" if name == "lenet" else "paper",
                of="accuracy_falls_with_index",
                trained=_trained_along(name),
            )
            for name in ("lenet", "vgg11", "resnet18")
        ),
        Claim(
            "Accuracy falls from the first to the last direction of DenseNet-121: points lost.",
            "densenet_121_first_minus_last_accuracy",
            "at least",
            "monotonically decreases",
            20.0,
            "paper",
            of="accuracy_falls_with_index",
            trained=_trained_along("densenet121"),
        ),
        Claim(
            "The MLP (3 × 500) is flat at 100 %: its lowest accuracy.",
            "mlp_lowest_accuracy",
            "at least",
            "always perfectly generalises",
            97.0,
            "paper",
            of="mlp_everywhere",
            kind="paper",
            trained=accuracy_gate("mlp_lowest_accuracy"),
        ),
        Claim(
            "Networks whose eigenvalues decay faster drop earlier: rank correlation of effective rank and index of the drop.",
            "rank_correlation_of_effective_rank_and_drop",
            "at least",
            "earlier indices",
            0.0,
            "paper",
            of="lower_rank_earlier_drop",
            kind="paper",
            trained=_trained_along(*_COMPARED),
        ),
        Claim(
            "The faster the eigenvalues decay, the earlier the drop: rank correlation of effective rank and index of the drop.",
            "rank_correlation_of_effective_rank_and_drop",
            "at least",
            "earlier indices",
            0.8,
            "paper",
            of="lower_rank_earlier_drop",
            trained=_trained_along(*_COMPARED),
        ),
    ],
    draw=_drawn_6,
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
            f"{key}_mean_train_accuracy": bootstrapped(np.mean, 100 * result.train_accuracy[0, 0, 0]).named(
                f"{title}: mean train accuracy", "%"
            ),
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
    if ranks.keys() == set(_COMPARED):
        together = spearman(*(np.array([each[name] for name in _COMPARED]) for each in (ranks, drops)))
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


@figure(
    "6 released",
    title="LeNet along the authors' own directions, against their accuracies",
    claims=[
        # Bounds were fixed before these indices were run. At ten others, σ = 1 had been seen to agree.
        Claim(
            "With σ = 1, accuracies along the authors' directions are theirs: correlation over 16 directions.",
            "correlation_with_the_released_accuracies_noise_1",
            "at least",
            "docs/data/nads.csv of the authors' repository",
            0.98,
            of="accuracy_falls_with_index",
            trained=accuracy_gate("mean_train_accuracy_noise_1"),
        ),
        Claim(
            "With σ = 1, accuracies along the authors' directions are theirs: mean distance over 16 directions, in points.",
            "mean_distance_from_the_released_accuracies_noise_1",
            "at most",
            "docs/data/nads.csv of the authors' repository",
            3.0,
            of="accuracy_falls_with_index",
            trained=accuracy_gate("mean_train_accuracy_noise_1"),
        ),
        Claim(
            "With σ = 3 they are not: mean distance over 16 directions, in points.",
            "mean_distance_from_the_released_accuracies_noise_3",
            "at least",
            "docs/data/nads.csv of the authors' repository",
            3.0,
            of="accuracy_falls_with_index",
            trained=accuracy_gate("mean_train_accuracy_noise_3"),
        ),
    ],
    draw=lambda finding, dark: lines_figure(
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
            f"mean_train_accuracy_noise_{noise:g}": bootstrapped(np.mean, fitted).named(
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


_SMALL = (1, 16, 16)  # images at smoke effort: a mixed derivative has as many rows as pixels


@dataclass(frozen=True)
class Sets:
    """How the mixed derivative of a network is compared with its gradient.

    Attributes:
        draws: Networks in each of two sets.
        known: Networks that give the directions of the gradient covariance.
        averages: Averages of the mixed derivative. The published one is that of the operator.
    """

    draws: int
    known: int
    averages: tuple[str, ...] = ("operator", "gram")


# A mixed derivative of a large network has 1024 times as many numbers as the network: few draws, and the published average alone.
# Twelve draws are the fewest that give the gradient ten directions.
_LARGE_SETS = Sets(12, 500, ("operator",))
_MIXED: dict[str, dict[str, Sets]] = {
    "smoke": {"lenet": Sets(2, DRAWS["smoke"]["lenet"], ("operator",))},
    "laptop": {"lenet": Sets(32, DRAWS["laptop"]["lenet"])},
    "paper": {"lenet": Sets(256, DRAWS["paper"]["lenet"]), "resnet18": _LARGE_SETS, "vgg11": _LARGE_SETS},
}


@figure(
    "S17-S19",
    networks=_MIXED,
    title="Directions of the mixed derivative, averaged as published",
    claims=[
        *(
            Claim(
                f"{TITLES[name]}'s mixed derivative shares its first directions with the gradient covariance: similarity of the first "
                "ten minus that of random ones.",
                f"{keyed(name)}_similarity_of_the_first_ten_beyond_chance",
                "at least",
                "very aligned",
                0.0,
                "laptop" if name == "lenet" else "paper",
                of="estimators_agree",
                kind="paper",
            )
            for name in ("lenet", "vgg11", "resnet18")
        ),
        *(
            Claim(
                f"The first directions of {TITLES[name]}'s mixed derivative align with those of its gradient covariance: "
                "similarity of the first ten.",
                f"{keyed(name)}_similarity_of_the_first_ten",
                "at least",
                "very similar",
                0.3,
                "laptop" if name == "lenet" else "paper",
                of="estimators_agree",
            )
            for name in ("lenet", "vgg11", "resnet18")
        ),
        *(
            Claim(
                f"{TITLES[name]}'s mixed derivative gives noisier directions: agreement of two sets of draws, mean mixed derivative "
                "minus gradient covariance.",
                f"{keyed(name)}_agreement_of_two_sets_minus_gradient",
                "at most",
                "much noisier",
                0.0,
                "laptop" if name == "lenet" else "paper",
                of="mixed_is_noisier",
                kind="paper",
            )
            for name in ("lenet", "vgg11", "resnet18")
        ),
    ],
    draw=_gallery,
    published={"average": "operator", "step": 100.0},
)
def figure_s17(effort: str, run: Run) -> Finding:
    """The mixed derivative's directions beside those of the gradient covariance.

    Algorithm 2 averages the operator over draws and takes its singular vectors. Equation (3) needs the average of its Gram matrix,
    which is measured too. Noise is the disagreement of two sets of as many draws at one input. Three pairs of sets, each at an input of
    its own, give the spread.
    """
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    shape = _SMALL if effort == "smoke" else SHAPE
    chance = 10 / math.prod(shape)  # mean similarity of two random ten-dimensional subspaces
    pairs = 1 if effort == "smoke" else _SEEDS
    plans = chosen(_MIXED[effort])
    for name, plan in plans.items():
        title, key, averages = TITLES[name], keyed(name), plan.averages
        similar: dict[str, list[float]] = {average: [] for average in averages}
        agreement: dict[str, list[float]] = {each: [] for each in (*averages, "gradient")}
        for place in range(pairs):
            known = directions_of(name, plan.known, run, seed=place, shape=shape).vectors[:10]
            for average in (*averages, "gradient"):
                sets = [_first_ten(name, average, plan.draws, place, 2 * place + half, run, shape) for half in (0, 1)]
                agreement[average].append(subspace_similarity(*sets))
                if average != "gradient":
                    similar[average].append(float(np.mean([subspace_similarity(each, known) for each in sets])))
                if average == "operator" and not place:
                    arrays[f"first: {title}"] = sets[0].numpy()
        for average in averages:
            words, ending = ("mean", "") if average == "operator" else ("Gram matrix", "_of_the_gram_matrix")
            found = over_repeats(similar[average], within=(0.0, 1.0))
            gap = over_repeats(np.array(agreement[average]) - np.array(agreement["gradient"]))
            statistics |= {
                f"{key}_similarity_of_the_first_ten{ending}": found.named(
                    f"{title}: similarity of the first ten of the {words}"
                ),
                f"{key}_similarity_of_the_first_ten_beyond_chance{ending}": found.map_linear(1.0, -chance).named(
                    f"{title}: similarity of the first ten of the {words} beyond chance"
                ),
                f"{key}_agreement_of_two_sets_minus_gradient{ending}": gap.named(
                    f"{title}: agreement of two sets of draws, {words} minus gradient"
                ),
            }
        statistics[f"{key}_agreement_of_two_sets_of_the_gradient"] = over_repeats(agreement["gradient"]).named(
            f"{title}: agreement of two sets of draws, gradient"
        )
    settings = {
        **{f"draws of the mixed derivative: {TITLES[name]}": plan.draws for name, plan in plans.items()},
        **found_by(effort, *plans),
        **{f"draws: {TITLES[name]}": plan.known for name, plan in plans.items()},
        "average": "operator",
        "inputs": pairs,
    }
    published = "The paper averages the operator, which does not converge: its mean is 0 for weights of mean 0."
    beside = " Numbers of the Gram matrix, which equation (3) needs, are given beside."
    both = any("gram" in plan.averages for plan in plans.values())
    notes = (
        published + (beside if both else ""),
        f"A random pair of ten-dimensional subspaces has similarity {chance:.4f}.",
    )
    return Finding(statistics, arrays, settings, notes)


def _first_ten(
    name: str, average: str, draws: int, place: int, seed: int, run: Run, shape: tuple[int, int, int]
) -> torch.Tensor:
    """The first ten directions of a mixed derivative, averaged in a way, or of the gradient, at one of several inputs."""
    family, probe = family_of(name, image_size=shape[1]), Probe.gaussian(shape, seed=place)
    if average != "gradient":  # the matrix alone: halves of the draws and errors would cost as much again
        derivative = MixedDerivative(family, probe, estimator="difference", step=100.0, seed=seed, run=run.shared)
        gram = mixed_gram(derivative, draws=draws, average=average, label=f"{TITLES[name]}: mixed derivative")
        return eigenpairs(gram, 10).vectors.cpu().double()
    found = anisotropy_directions(
        family, probe, estimator="difference", centred=True, step=100.0, draws=max(4, draws), seed=seed, run=run.shared
    )
    return torch.as_tensor(found.directions)[:10].double()


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


def _at_low_noise(name: str) -> tuple[Trained, ...]:
    """LeNet cannot learn every direction, so that its best shows whether it trained; of ResNet-18, the worst must have trained too."""
    return accuracy_gate(f"{keyed(name)}_{'highest' if name == 'lenet' else 'lowest'}_accuracy")


@figure(
    "S21",
    title="Training loss along early and late directions",
    claims=[
        *(
            Claim(
                f"{TITLES[name]} takes longer on late directions: iterations to a loss of 0.05, last over first.",
                f"{keyed(name)}_iterations_of_last_over_first",
                "at least",
                "much longer",
                1.0,
                "laptop" if name == "lenet" else "paper",
                of="late_directions_train_slowly",
                kind="paper",
                trained=_at_low_noise(name),
            )
            for name in ("lenet", "resnet18")
        ),
        *(
            Claim(
                f"{TITLES[name]} trains slower on late directions: iterations to a loss of 0.05, last over first.",
                f"{keyed(name)}_iterations_of_last_over_first",
                "at least",
                "much longer",
                2.0,
                "laptop" if name == "lenet" else "paper",
                of="late_directions_train_slowly",
                trained=_at_low_noise(name),
            )
            for name in ("lenet", "resnet18")
        ),
        Claim(
            "ResNet-18's test accuracy is about 100 % throughout (σ = 1): its lowest.",
            "resnet_18_lowest_accuracy",
            "at least",
            "almost 100 %",
            97.0,
            "paper",
            of="all_generalise_at_low_noise",
            kind="paper",
            trained=accuracy_gate("resnet_18_lowest_accuracy"),
        ),
    ],
    draw=_drawn_curves,
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
            f"{key}_lowest_accuracy": over_seeds(each[:, low], test).named(f"{title}: lowest accuracy", "%"),
            f"{key}_highest_accuracy": over_seeds(each[:, high], test).named(f"{title}: highest accuracy", "%"),
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


def over_seeds(shares: np.ndarray, test: int) -> Estimate:
    """A mean accuracy in percent with the errors of seeds and of the test sample; of one seed, the spread is unknown."""
    found = joined(over_repeats(100 * shares), proportion(float(shares.mean()), test).in_percent())
    return found.within(0.0, 100.0)


def _ratio(iterations: np.ndarray) -> Estimate:
    """Last over first direction, geometric mean over repeats."""
    logs = np.log(iterations[:, -1] / iterations[:, 0])
    centre = float(logs.mean())
    if len(logs) < 2:
        return Estimate(math.exp(centre))
    error = float(logs.std(ddof=1)) / math.sqrt(len(logs))
    spread = Estimate.from_error(centre, error, len(logs))
    return Estimate(math.exp(centre), math.exp(centre) * error, math.exp(spread.low), math.exp(spread.high))


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


def _lead_gate(name: str) -> tuple[Trained, ...]:
    return (Trained(f"{keyed(name)}_lead_of_the_first_direction", 0.0, 50.0),)


@figure(
    "S22",
    networks=_SIZES,
    title="Test accuracy against the number of training samples, along early and late directions (σ = 3)",
    claims=[
        *(
            Claim(
                f"{TITLES[name]} is more accurate on the first than on the last direction at the middle size, in points.",
                f"{keyed(name)}_lead_of_the_first_direction",
                "at least",
                "less training data on the lower directions",
                0.0,
                "laptop" if name == "lenet" else "paper",
                of="late_directions_need_samples",
                kind="paper",
                trained=_lead_gate(name),
            )
            for name in ("lenet", "resnet18")
        ),
        *(
            Claim(
                f"{TITLES[name]} needs more samples on late directions: accuracy at the middle size, first minus last, in points.",
                f"{keyed(name)}_lead_of_the_first_direction",
                "at least",
                "less training data on the lower directions",
                10.0,
                "laptop" if name == "lenet" else "paper",
                of="late_directions_need_samples",
                trained=_lead_gate(name),
            )
            for name in ("lenet", "resnet18")
        ),
        Claim(
            "ResNet-18 generalises everywhere with enough samples: its lowest accuracy at the largest size.",
            "resnet_18_lowest_accuracy_at_the_largest_size",
            "at least",
            "perfectly, regardless of the direction",
            95.0,
            "paper",
            of="resnet_generalises_with_samples",
            kind="paper",
            trained=_lead_gate("resnet18"),
        ),
    ],
    draw=lambda finding, dark: lines_figure(
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
        one, two = (proportion(float(middle[:, i].mean()), test).in_percent() for i in (0, -1))
        lead = joined(over_repeats(100 * (middle[:, 0] - middle[:, -1])), one.minus(two, test))
        hardest = int(largest.mean(0).argmin())
        lowest = over_seeds(largest[:, hardest], test)
        fitted = over_seeds(results[plan.sizes[-1]].train_accuracy[0, 0, :, hardest], plan.sizes[-1])
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


@figure(
    "D.1",
    title="Differences with a step of 100 and exact gradients: which foretells what LeNet learns",
    claims=[
        Claim(
            "Differences find what LeNet learns better than exact gradients: rank correlation of the gradient's variance along "
            "frequencies with the authors' accuracies, difference of the two.",
            "lenet_rank_correlation_of_differences_minus_exact",
            "at least",
            "necessary to obtain meaningful results",
            0.0,
            of="differences_needed",
            kind="paper",
        )
    ],
    draw=lambda finding, dark: lines_figure(
        finding.curves_of("variance"),
        x="frequency, by the authors' accuracy",
        y="variance / mean",
        log_y=True,
        dark=dark,
    ),
    published={"draws: LeNet": 10_000, "step": 100.0},
)
def figure_d1(effort: str, run: Run) -> Finding:
    """The variance of LeNet's gradient along the authors' frequencies, by two estimators, at three inputs."""
    theirs = published_accuracies("lenet", run)
    cosines = fourier_half(SHAPE, "Re", 2)
    draws = {"smoke": 8, "laptop": 400, "paper": 10_000}[effort]
    settings = {"draws: LeNet": draws, "step": 100.0, "inputs": _SEEDS, "centred": True}
    if theirs is None:
        raise ValueError(
            "Figure D.1 needs the authors' accuracies, and the data folder has no published/dft_accuracies.csv. Put the file there, or "
            "pass --data-root FOLDER."
        )
    _, accuracy = against_published(cosines.labels, np.ones(len(cosines)), theirs)
    order = np.argsort(accuracy)
    found: dict[str, list[float]] = {"difference": [], "exact": []}
    arrays: dict[str, np.ndarray] = {}
    for seed in range(_SEEDS):
        for estimator, each in found.items():
            basis = directions_of("lenet", draws, run, estimator=estimator, seed=seed)
            assert basis.values is not None
            along = ((basis.vectors @ cosines.vectors.T) ** 2 * basis.values[:, None]).sum(0).numpy()
            each.append(spearman(along, accuracy))
            arrays[f"variance: {estimator}"] = np.stack(
                [np.arange(len(order), dtype=float), along[order] / along.mean()]
            )
    gap = over_repeats(np.array(found["difference"]) - np.array(found["exact"]))
    statistics = {
        f"lenet_rank_correlation_of_{estimator}": over_repeats(each, within=(-1.0, 1.0)).named(
            f"LeNet: rank correlation of variance and accuracy, {estimator}"
        )
        for estimator, each in found.items()
    }
    statistics["lenet_rank_correlation_of_differences_minus_exact"] = gap.named(
        "LeNet: rank correlation of variance and accuracy, differences minus exact"
    )
    return Finding(statistics, arrays, settings)


@figure(
    "D.3",
    title="The MLP's spectrum is flat in the limit",
    claims=[
        Claim(
            "The MLP's effective rank is the whole input dimension, 1024.",
            "effective_rank_over_1024",
            "about",
            1.0,
            0.02,
            of="mlp_flat_in_the_limit",
            kind="paper",
        ),
        Claim(
            "The MLP's eigenvalues decay more slowly than LeNet's: difference of effective ranks.",
            "effective_rank_minus_that_of_lenet",
            "at least",
            "much less pronounced",
            0.0,
            of="mlp_slow_decay",
            kind="paper",
        ),
        Claim(
            "The decay seen with finitely many draws is that of Marchenko and Pastur: largest eigenvalue over their edge.",
            "largest_eigenvalue_over_the_marchenkopastur_edge",
            "about",
            1.0,
            0.1,
            of="mlp_flat_in_the_limit",
        ),
    ],
    draw=lambda finding, dark: lines_figure(
        {
            "MLP, measured": (np.arange(1, 1025), finding.arrays["eigenvalues"] / finding.arrays["eigenvalues"].mean()),
            "Marchenko–Pastur": (np.arange(1, 1025), finding.arrays["expected"]),
        },
        x="index",
        y="eigenvalue over their mean",
        log_y=True,
        dark=dark,
    ),
    published={"draws": 10_000, "estimator": "difference"},
)
def figure_d3(effort: str, run: Run) -> Finding:
    """The spectrum of the MLP's gradient covariance against that of white noise with as many draws."""
    draws = {"smoke": 64, "laptop": 2000, "paper": 10_000}[effort]
    found = anisotropy_directions(
        family_of("mlp"),
        Probe.gaussian(SHAPE, seed=0),
        estimator="exact",
        draws=draws,
        keep=1024,
        seed=0,
        run=run.shared,
    )
    of_lenet = anisotropy_directions(
        family_of("lenet"),
        Probe.gaussian(SHAPE, seed=0),
        estimator="difference",
        step=100.0,
        draws=DRAWS[effort]["lenet"],
        centred=True,
        keep=1024,
        seed=0,
        run=run.shared,
    )
    ratio = 1024 / draws
    edge = (1 + math.sqrt(ratio)) ** 2
    # The spectrum of white noise with as many draws, from the quantiles of one large sample of it.
    generator = np.random.default_rng(0)
    white = generator.standard_normal((draws, 1024))
    expected = np.sort(np.linalg.eigvalsh(white.T @ white / draws))[::-1]
    values = np.asarray(found.eigenvalues, np.float64)
    top = float(values[0] * 1024 / values.sum() / edge)
    rank = found.effective_rank.map_linear(1 / 1024)
    # The largest eigenvalue of white noise fluctuates by about n^(−2/3) around its edge (Tracy and Widom).
    spread = draws ** (-2 / 3) * (1 + math.sqrt(1 / ratio)) * (1 + math.sqrt(ratio)) ** (1 / 3) / edge
    largest = Estimate(top, spread, top - 2 * spread, top + 2 * spread)
    statistics = {
        "effective_rank_over_1024": rank.named("effective rank over 1024"),
        "largest_eigenvalue_over_the_marchenkopastur_edge": largest.named(
            "largest eigenvalue over the Marchenko–Pastur edge"
        ),
    }
    statistics["effective_rank_minus_that_of_lenet"] = found.effective_rank.minus(of_lenet.effective_rank).named(
        "effective rank, MLP minus LeNet"
    )
    arrays = {"eigenvalues": values, "expected": expected}
    return Finding(statistics, arrays, {"draws": draws, "estimator": "exact", "seed": 0})


# Draws of each set, inputs.
_CHANNELS: dict[str, tuple[int, int]] = {"smoke": (4, 2), "laptop": (200, 3), "paper": (4000, 3)}
_COLOURS = 3
CHANNEL_SETS = ((1, 0), (_COLOURS, 1), (_COLOURS, 2))  # channels and number of each set of draws at an input


@figure(
    "E channels",
    title="Directions of LeNet for images with three channels",
    claims=[
        # A second set of draws says how near the truth can come.
        Claim(
            "The first directions for three channels are those for one channel, in each channel on its own: their similarity minus "
            "that of two sets of draws for three channels.",
            "lenet_similarity_with_one_channel_minus_that_of_two_sets",
            "at least",
            "the NADs of the same architecture with K input channels are u_i ⊗ e_k",
            0.0,
            of="channels_share_directions",
            kind="paper",
        ),
        Claim(
            "The similarity of the first thirty directions for three channels with the first ten for one channel, in each channel.",
            "lenet_similarity_with_one_channel",
            "at least",
            "the NADs of the same architecture with K input channels are u_i ⊗ e_k",
            0.3,
            "paper",
            of="channels_share_directions",
        ),
    ],
    draw=lambda finding, dark: lines_figure(
        {name: (np.arange(1, len(values) + 1), values) for name, values in finding.arrays_of("share").items()},
        x="direction for three channels",
        y="share in the one-channel span",
        dark=dark,
    ),
    published={"draws: LeNet": 10_000, "step": 100.0, "centred": True},
)
def figure_e_channels(effort: str, run: Run) -> Finding:
    """The span of u_i ⊗ e_k for the first ten i and all k, against the first thirty directions for three channels."""
    draws, inputs = _CHANNELS[effort]
    side = _SMALL[1] if effort == "smoke" else SHAPE[1]
    predicted, again, shares = [], [], []
    for place in range(inputs):
        single, one, two = (first_directions(colours, side, draws, place, half, run) for colours, half in CHANNEL_SETS)
        spanned = torch.cat([torch.kron(torch.eye(_COLOURS, dtype=single.dtype)[k], single) for k in range(_COLOURS)])
        predicted.append(float(np.mean([subspace_similarity(spanned, each) for each in (one, two)])))
        again.append(subspace_similarity(one, two))
        shares.append((one @ spanned.T).square().sum(1).numpy())
    similarity, gap = over_repeats(predicted, within=(0.0, 1.0)), over_repeats(np.array(predicted) - np.array(again))
    statistics = {
        "lenet_similarity_with_one_channel": similarity.named("LeNet: similarity with the directions for one channel"),
        "lenet_similarity_of_two_sets": over_repeats(again, within=(0.0, 1.0)).named(
            "LeNet: similarity of two sets of draws for three channels"
        ),
        "lenet_similarity_with_one_channel_minus_that_of_two_sets": gap.named(
            "LeNet: similarity with the directions for one channel minus that of two sets of draws"
        ),
    }
    chance = 30 / (_COLOURS * side * side)
    notes = (
        f"A random pair of thirty-dimensional subspaces has similarity {chance:.4f}. Inputs differ, and so do the draws.",
    )
    settings = {"draws: LeNet": draws, "step": 100.0, "centred": True, "inputs": inputs, "image size": side}
    return Finding(statistics, {"share: LeNet": np.mean(shares, 0)}, settings, notes)


def first_directions(channels: int, side: int, draws: int, place: int, half: int, run: Run) -> torch.Tensor:
    """LeNet's first directions for images with some channels, ten for each, by a set of draws of its own at one of several inputs."""
    shape = (channels, side, side)
    found = anisotropy_directions(
        family_of("lenet", image_size=side, channels=channels),
        Probe.gaussian(shape, seed=place),
        estimator="difference",
        step=100.0,
        draws=draws,
        centred=True,
        keep=10 * channels,
        seed=len(CHANNEL_SETS) * place
        + half,  # with differences so wide, inputs alone would hardly change the directions
        run=run.shared,
    )
    return torch.as_tensor(found.directions).reshape(-1, math.prod(shape)).double()


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


@figure(
    "S21 settings",
    title="The last direction of figure S21 with other settings",
    claims=[
        Claim(
            "ResNet-18 misses some test samples along its last direction whatever the settings (σ = 1): its highest mean accuracy.",
            "highest_accuracy_over_settings",
            "at most",
            "almost 100 %",
            97.0,
            "paper",
            of="all_generalise_at_low_noise",
            trained=accuracy_gate("highest_accuracy_over_settings"),
        )
    ],
    draw=lambda finding, dark: lines_figure(
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
        found[words] = over_seeds(result.accuracy[0, 0, :, 0], test)
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
