"""Figures 5, 6, S13–S22 and section D.3: the anisotropy directions themselves, and learning along them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from biascope.derivatives.spectrum import subspace_similarity
from biascope.measures.anisotropy_directions import anisotropy_directions
from biascope.measures.directional_bias.result import DirectionalBias
from biascope.papers.nads2020.frequencies import PROTOCOL, learned
from biascope.papers.nads2020.shared import SHAPE, TITLES, directions_of, family_of
from biascope.results.claim import Claim, Finding, figure
from biascope.results.draw import directions as drawn_directions
from biascope.results.estimate import Estimate, Number, bootstrapped, proportion, spearman
from biascope.results.figures import against_index_figure, lines_figure
from biascope.results.wording import snake
from biascope.runs.run import Run
from biascope.tasks.bases import Basis
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
EXACT = "The directions of DenseNet-121 are those of the exact gradient, not of differences of half width 100."


def directions(name: str, effort: str, run: Run) -> Basis:
    """A network's anisotropy directions at an effort."""
    estimator = "exact" if name == "densenet121" else "difference"
    return directions_of(name, DRAWS[effort][name], run, estimator=estimator)


def _places(count: int, size: int = 1024) -> list[int]:
    """Indices from first to last, denser at the beginning, where accuracies fall; of 0, the two ends."""
    if not count:
        return [0, size - 1]
    wanted = np.unique(np.round(np.geomspace(1, size, count)).astype(int) - 1)
    return sorted({int(place) for place in wanted} | {0, size - 1})


def comb_share(vector: np.ndarray, spacing: int = 4) -> float:
    """Largest share of an image's energy on frequencies ±(a, b) + multiples of ``spacing``: 1 for a comb of spikes.

    White noise has about 2/spacing².
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


def _gallery(finding: Finding, dark: bool) -> Figure:
    images, labels = [], []
    for name, vectors in finding.arrays_of("first").items():
        for index, vector in enumerate(vectors[:4]):
            images.append(vector.reshape(1, 32, 32))
            labels.append(f"{name} {index + 1}")
    return drawn_directions(np.stack(images), labels, columns=4, dark=dark)  # a network in each row


@figure(
    "5",
    title="First anisotropy directions (figures S13–S16 show more of them)",
    claims=[
        Claim(
            "The first directions of ResNet-18 are combs in the Fourier domain: share of energy on a lattice of spacing 4.",
            "resnet_18_energy_on_a_comb",
            "at least",
            "combs of spikes",
            0.8,
            "paper",
        ),
        Claim(
            "Directions differ by architecture: greatest similarity of two networks' first ten.",
            "greatest_similarity_of_two_networks",
            "at most",
            "a unique signature of an architecture",
            0.5,
            "paper",
        ),
    ],
    draw=_gallery,
)
def figure_5(effort: str, run: Run) -> Finding:
    """The first directions of each network."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    found: dict[str, torch.Tensor] = {}
    for name in (name for name in DRAWS[effort] if name in CNNS):
        title = TITLES[name]
        found[name] = directions(name, effort, run).vectors
        first = found[name][:20].numpy()
        arrays[f"first: {title}"] = first
        shares = np.array([comb_share(vector) for vector in first[:10]])
        comb = bootstrapped(np.mean, shares).named(f"{title}: energy on a comb")
        statistics[f"{snake(title)}_energy_on_a_comb"] = comb
    names = list(found)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    if pairs:
        similar = {pair: subspace_similarity(found[pair[0]][:10], found[pair[1]][:10]) for pair in pairs}
        for (a, b), value in similar.items():
            alike = Estimate.exact(value).named(f"similarity of {TITLES[a]} and {TITLES[b]}")
            statistics[f"similarity_of_{snake(TITLES[a])}_and_{snake(TITLES[b])}"] = alike
        greatest = Estimate.exact(max(similar.values())).named("greatest similarity of two networks")
        statistics["greatest_similarity_of_two_networks"] = greatest
    notes = ("Means over the first ten directions. Similarity is the mean squared cosine of principal angles.", EXACT)
    return Finding(statistics, arrays, {"draws": DRAWS[effort], "seed": 0}, notes)


_ALONG: dict[str, dict[str, int]] = {
    "smoke": {"lenet": 2},
    "laptop": {"lenet": 12},
    "paper": {"mlp": 24, "lenet": 64, "vgg11": 10, "resnet18": 12, "densenet121": 0},
}


def _drawn_6(finding: Finding, dark: bool) -> Figure:
    curves = {name: (*curve, None) for name, curve in finding.curves_of("accuracy", 100).items()}
    return against_index_figure(
        curves, finding.arrays_of("spectrum"), index="index of the anisotropy direction", dark=dark
    )


@figure(
    "6",
    title="Test accuracy along anisotropy directions, and their eigenvalues (with S20; σ = 3, ε = 1)",
    claims=[
        *(
            Claim(
                f"Accuracy falls with the index for {TITLES[name]}: rank correlation.",
                f"{snake(TITLES[name])}_rank_correlation_of_accuracy_and_index",
                "at most",
                "monotonically decreases",
                -0.6,
                "laptop" if name == "lenet" else "paper",
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
        ),
        Claim(
            "The MLP (3 × 500) is flat at 100 %: its lowest accuracy.",
            "mlp_lowest_accuracy",
            "at least",
            "always perfectly generalises",
            97.0,
            "paper",
        ),
        Claim(
            "The faster the eigenvalues decay, the earlier the drop: rank correlation of effective rank and index of the drop.",
            "rank_correlation_of_effective_rank_and_drop",
            "at least",
            "earlier indices",
            0.8,
            "paper",
        ),
    ],
    draw=_drawn_6,
)
def figure_6(effort: str, run: Run) -> Finding:
    """Learning along each network's own directions."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    ranks, drops, test = [], [], PROTOCOL[effort]["test"]
    for name, count in _ALONG[effort].items():
        title, key, basis = TITLES[name], snake(TITLES[name]), directions(name, effort, run)
        result = learned(name, basis.part(_places(count)), effort, run)
        accuracy = result.accuracy[0, 0, 0]
        assert basis.values is not None
        values = basis.values.numpy()
        arrays[f"accuracy: {title}"] = np.stack([result.places.astype(float), accuracy])
        arrays[f"spectrum: {title}"] = values
        first, last, lowest = (
            proportion(share, test).in_percent() for share in (accuracy[0], accuracy[-1], accuracy.min())
        )
        fall = bootstrapped(spearman, accuracy, result.places.astype(float))
        statistics |= {
            f"{key}_lowest_accuracy": lowest.named(f"{title}: lowest accuracy", "%"),
            f"{key}_rank_correlation_of_accuracy_and_index": fall.named(
                f"{title}: rank correlation of accuracy and index"
            ),
            f"{key}_first_minus_last_accuracy": first.minus(last, test).named(
                f"{title}: first minus last accuracy", "points"
            ),
        }
        if name in CNNS and len(accuracy) > 4:
            ranks.append(float(values.sum() ** 2 / (values**2).sum()))
            drops.append(_drop(result.places, accuracy))
            rank, drop = Estimate.exact(ranks[-1]), Estimate.exact(drops[-1])
            statistics |= {
                f"{key}_effective_rank_of_the_spectrum_shown": rank.named(
                    f"{title}: effective rank of the spectrum shown"
                ),
                f"{key}_index_of_the_drop": drop.named(f"{title}: index of the drop"),
            }
    if len(ranks) > 2:
        together = Estimate.exact(spearman(np.array(ranks), np.array(drops)))
        statistics["rank_correlation_of_effective_rank_and_drop"] = together.named(
            "rank correlation of effective rank and drop"
        )
    settings = {"draws": DRAWS[effort], "directions": _ALONG[effort], **PROTOCOL[effort], "noise": 3.0, "seed": 0}
    notes = (
        "The drop is the first index from which accuracy stays below half-way between its first value and 50 %.",
        EXACT,
    )
    return Finding(statistics, arrays, settings, notes)


def _drop(places: np.ndarray, accuracy: np.ndarray) -> float:
    """The first index from which accuracy stays below the middle between its best and chance; the last if it never does."""
    middle = (accuracy[: max(1, len(accuracy) // 4)].max() + 0.5) / 2
    above = np.flatnonzero(accuracy >= middle)
    return float(places[min(above[-1] + 1, len(places) - 1)]) if len(above) else float(places[0])


@figure(
    "S17-S19",
    title="Directions of the mixed derivative",
    claims=[
        Claim(
            f"The first directions of {TITLES[name]}'s mixed derivative align with those of its gradient covariance: "
            "similarity of the first ten.",
            f"{snake(TITLES[name])}_similarity_of_the_first_ten",
            "at least",
            "very similar",
            0.3,
            "laptop" if name == "lenet" else "paper",
        )
        for name in ("lenet", "vgg11", "resnet18")
    ]
    + [
        Claim(
            "They are noisier: agreement of two halves of the draws, mixed derivative minus gradient covariance.",
            "lenet_agreement_of_halves_mixed_minus_gradient",
            "at most",
            "noisier",
            0.0,
        )
    ],
    draw=_gallery,
)
def figure_s17(effort: str, run: Run) -> Finding:
    """The mixed derivative's directions (average of its Gram matrix) beside those of the gradient covariance."""
    draws = {"smoke": {"lenet": 2}, "laptop": {"lenet": 32}, "paper": {"lenet": 256, "vgg11": 8, "resnet18": 8}}[effort]
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, count in draws.items():
        title, key = TITLES[name], snake(TITLES[name])
        mixed = anisotropy_directions(
            family_of(name),
            Probe.gaussian(SHAPE, seed=0),
            estimator="mixed_difference",
            step=100.0,
            draws=count,
            keep=64,  # so many that the whole matrix is formed, which is quicker than products with it
            seed=0,
            run=run.shared,
        )
        gradient = directions(name, effort, run)
        vectors = torch.as_tensor(mixed.directions)
        similar = Estimate.exact(subspace_similarity(vectors[:10].double(), gradient.vectors[:10]))
        statistics[f"{key}_similarity_of_the_first_ten"] = similar.named(f"{title}: similarity of the first ten")
        arrays[f"first: {title}"] = vectors[:20].numpy()
        if name == "lenet":
            same = anisotropy_directions(
                family_of(name),
                Probe.gaussian(SHAPE, seed=0),
                estimator="difference",
                draws=max(4, count),
                seed=0,
                run=run.shared,
            )
            halves = [_agreement(result) for result in (mixed, same)]
            statistics[f"{key}_agreement_of_halves_mixed_minus_gradient"] = Estimate.exact(halves[0] - halves[1]).named(
                f"{title}: agreement of halves, mixed minus gradient"
            )
    settings = {"draws": draws, "draws of the gradient covariance": DRAWS[effort], "step": 100.0, "seed": 0}
    notes = (
        "The Gram matrix is averaged, as equation (3) needs; the paper averages the operator, which does not converge.",
        "A random pair of ten-dimensional subspaces has similarity 0.0098.",
    )
    return Finding(statistics, arrays, settings, notes)


def _agreement(result: Any, leading: int = 10) -> float:
    """How similar the leading directions of two halves of the draws are, at the listed size nearest to ``leading``."""
    return float(result.similarity[np.abs(result.similarity_sizes - leading).argmin()])


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


@figure(
    "S21",
    title="Training loss along early and late directions",
    claims=[
        *(
            Claim(
                f"{TITLES[name]} trains slower on late directions: iterations to a loss of 0.05, last over first.",
                f"{snake(TITLES[name])}_iterations_of_last_over_first",
                "at least",
                "much longer",
                2.0,
                "laptop" if name == "lenet" else "paper",
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
        ),
    ],
    draw=_drawn_curves,
)
def figure_s21(effort: str, run: Run) -> Finding:
    """Loss curves along directions of rising index."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, (places, noise) in _SPEED_PLACES[effort].items():
        title, key, basis = TITLES[name], snake(TITLES[name]), directions(name, effort, run)
        result = learned(
            name, basis.part(places), effort, run, noise=(noise,), threshold=0.05, repeats=3 if name == "lenet" else 2
        )
        total = float(result.steps[0, -1])
        iterations = np.nan_to_num(result.iterations[0, 0], nan=total)  # (repeat, direction)
        lowest = proportion(result.accuracy.min(), PROTOCOL[effort]["test"]).in_percent()
        statistics |= {
            f"{key}_iterations_of_last_over_first": _ratio(iterations).named(f"{title}: iterations of last over first"),
            f"{key}_lowest_accuracy": lowest.named(f"{title}: lowest accuracy", "%"),
        }
        arrays["steps"] = result.steps[0].astype(float)
        for row, place in enumerate(places):
            if row % max(1, len(places) // 4) == 0:
                arrays[f"loss: {title} {place}"] = result.losses[0, 0, :, row].mean(0)
    settings = {"directions": _as_plain(_SPEED_PLACES[effort]), "draws": DRAWS[effort], **PROTOCOL[effort], "seed": 0}
    notes = (
        "The noise for LeNet is not given in the text; 0.5 was chosen. Trainings that never get there count as the whole length.",
    )
    return Finding(statistics, arrays, settings, notes)


def _ratio(iterations: np.ndarray) -> Estimate:
    """Last over first direction, geometric mean over repeats."""
    logs = np.log(iterations[:, -1] / iterations[:, 0])
    centre = float(logs.mean())
    if len(logs) < 2:
        return Estimate(math.exp(centre))
    error = float(logs.std(ddof=1)) / math.sqrt(len(logs))
    spread = Estimate.from_error(centre, error, len(logs))
    return Estimate(math.exp(centre), math.exp(centre) * error, math.exp(spread.low), math.exp(spread.high))


def _as_plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) for key, value in settings.items()}


@figure(
    "S22",
    title="Test accuracy against the number of training samples, along early and late directions (σ = 3)",
    claims=[
        *(
            Claim(
                f"{TITLES[name]} needs more samples on late directions: accuracy at the middle size, first minus last, in points.",
                f"{snake(TITLES[name])}_lead_of_the_first_direction",
                "at least",
                "less training data on the lower directions",
                10.0,
                "laptop" if name == "lenet" else "paper",
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
        ),
    ],
    draw=lambda finding, dark: lines_figure(
        finding.curves_of("accuracy", 100),
        x="training samples",
        y="test accuracy, %",
        log_x=True,
        dark=dark,
    ),
)
def figure_s22(effort: str, run: Run) -> Finding:
    """Accuracy for several sizes of the training set."""
    plan: dict[str, dict[str, tuple[list[int], tuple[int, ...]]]] = {
        "smoke": {"lenet": ([0, 1023], (128, 256))},
        "laptop": {"lenet": ([0, 30, 1000], (1000, 3000, 10_000))},
        "paper": {
            "lenet": ([0, 10, 100, 300, 1023], (1000, 3000, 10_000, 30_000)),
            "resnet18": ([0, 289, 1023], (1000, 10_000, 30_000)),
        },
    }
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, (places, sizes) in plan[effort].items():
        title, key, basis = TITLES[name], snake(TITLES[name]), directions(name, effort, run)
        results: list[DirectionalBias] = [
            learned(name, basis.part(places), effort, run, samples=(size,)) for size in sizes
        ]
        table = np.array([result.accuracy[0, 0, 0] for result in results])  # (size, direction)
        test = PROTOCOL[effort]["test"]
        middle = table[len(sizes) // 2]
        first, last, lowest = (
            proportion(share, test).in_percent() for share in (middle[0], middle[-1], table[-1].min())
        )
        statistics |= {
            f"{key}_lead_of_the_first_direction": first.minus(last, test).named(
                f"{title}: lead of the first direction", "points"
            ),
            f"{key}_lowest_accuracy_at_the_largest_size": lowest.named(
                f"{title}: lowest accuracy at the largest size", "%"
            ),
        }
        for column, place in enumerate(places):
            arrays[f"accuracy: {title} {place}"] = np.stack([np.array(sizes, float), table[:, column]])
    settings = {"plan": _as_plain(plan[effort]), "draws": DRAWS[effort], **PROTOCOL[effort], "noise": 3.0, "seed": 0}
    return Finding(
        statistics, arrays, settings, ("Intervals are those of the test sample; each point is one training.",)
    )


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
        ),
        Claim(
            "The decay seen with finitely many draws is that of Marchenko and Pastur: largest eigenvalue over their edge.",
            "largest_eigenvalue_over_the_marchenkopastur_edge",
            "about",
            1.0,
            0.1,
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
    arrays = {"eigenvalues": values, "expected": expected}
    return Finding(statistics, arrays, {"draws": draws, "estimator": "exact", "seed": 0})
