"""Figures 5, S13–S19, sections D.1, D.3 and E: the anisotropy directions themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from biascope.derivatives.mixed import MixedDerivative
from biascope.derivatives.mixed_gram import mixed_gram
from biascope.derivatives.spectrum import eigenpairs, subspace_similarity
from biascope.measures.anisotropy_directions import anisotropy_directions
from biascope.papers.nads2020.shared import (
    SHAPE,
    TITLES,
    against_published,
    directions_of,
    family_of,
    keyed,
    published_accuracies,
)
from biascope.papers.selection import chosen, old_figure
from biascope.results.draw import directions as drawn_directions
from biascope.results.estimate import (
    Estimate,
    Number,
    bootstrapped,
    over,
    spearman,
)
from biascope.results.figures import lines_figure
from biascope.results.finding import Finding
from biascope.runs.run import Run
from biascope.tasks.bases import Basis, fourier_half
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
COMPARED = ("lenet", "vgg11", "resnet18")
_SEEDS = 3  # sets of draws, each at an input of its own, where directions are compared
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


@old_figure(
    "5",
    networks={effort: [name for name in draws if name in CNNS] for effort, draws in DRAWS.items()},
    title="First anisotropy directions (figures S13–S16 show more of them)",
    show=_gallery,
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
        alike = over(
            [subspace_similarity(tens[name][i], tens[name][j]) for i in range(_SEEDS) for j in range(i)],
            within=(0.0, 1.0),
        )
        statistics[f"similarity_of_two_sets_of_draws_of_{keyed(name)}"] = alike.named(
            f"similarity of two sets of draws of {title}"
        )
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            each = [subspace_similarity(one, two) for one, two in zip(tens[a], tens[b], strict=True)]
            statistics[f"similarity_of_{keyed(a)}_and_{keyed(b)}"] = over(each, within=(0.0, 1.0)).named(
                f"similarity of {TITLES[a]} and {TITLES[b]}"
            )
    if set(COMPARED) <= set(names):
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


@old_figure(
    "S17-S19",
    networks=_MIXED,
    title="Directions of the mixed derivative, averaged as published",
    show=_gallery,
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
            found = over(similar[average], within=(0.0, 1.0))
            gap = over(np.array(agreement[average]) - np.array(agreement["gradient"]))
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
        statistics[f"{key}_agreement_of_two_sets_of_the_gradient"] = over(agreement["gradient"]).named(
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


@old_figure(
    "D.1",
    title="Differences with a step of 100 and exact gradients: which foretells what LeNet learns",
    show=lambda finding, dark: lines_figure(
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
    gap = over(np.array(found["difference"]) - np.array(found["exact"]))
    statistics = {
        f"lenet_rank_correlation_of_{estimator}": over(each, within=(-1.0, 1.0)).named(
            f"LeNet: rank correlation of variance and accuracy, {estimator}"
        )
        for estimator, each in found.items()
    }
    statistics["lenet_rank_correlation_of_differences_minus_exact"] = gap.named(
        "LeNet: rank correlation of variance and accuracy, differences minus exact"
    )
    return Finding(statistics, arrays, settings)


@old_figure(
    "D.3",
    title="The MLP's spectrum is flat in the limit",
    show=lambda finding, dark: lines_figure(
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


@old_figure(
    "E channels",
    title="Directions of LeNet for images with three channels",
    show=lambda finding, dark: lines_figure(
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
    similarity, gap = over(predicted, within=(0.0, 1.0)), over(np.array(predicted) - np.array(again))
    statistics = {
        "lenet_similarity_with_one_channel": similarity.named("LeNet: similarity with the directions for one channel"),
        "lenet_similarity_of_two_sets": over(again, within=(0.0, 1.0)).named(
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
