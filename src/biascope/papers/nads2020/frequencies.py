"""Figures 1–4 and S10–S12: learning along frequencies, with and without pooling, and along random directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from biascope.measures.directional_bias import directional_bias
from biascope.measures.directional_bias.result import DirectionalBias
from biascope.measures.pooling_theory import pooling_theory
from biascope.papers.nads2020.shared import (
    SHAPE,
    TITLES,
    against_published,
    family_of,
    published_accuracies,
    training_run,
)
from biascope.results.claim import Claim, Finding, figure
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
from biascope.results.figures import completed, lines_figure, plane_figure
from biascope.results.result import Plane
from biascope.results.wording import snake
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
NO_PUBLISHED = (
    "The authors' accuracies (published/dft_accuracies.csv) are not in the data folder: no comparison with them."
)


def learned(
    name: str, basis: Basis, effort: str, run: Run, *, network: dict[str, Any] | None = None, **settings: Any
) -> DirectionalBias:
    """One network on D(v) for every direction of a basis, by the published protocol."""
    family = family_of(name, outputs=2, **(network or {}))
    chosen = {**PROTOCOL[effort], **settings}
    return directional_bias(family, basis, run=training_run(family, run), **directional_bias.grouped(chosen))


def frequencies(stride: int, part: str = "Re") -> Basis:
    """Cosines or sines of every ``stride``-th frequency; with stride 0 the lowest and the highest."""
    if stride:
        return bases.fourier_half(SHAPE, part, stride)
    coarse = bases.fourier_half(SHAPE, part, 16)
    return coarse.part([0, len(coarse) - 1])


def plane_of(result: DirectionalBias, values: np.ndarray) -> np.ndarray:
    """Values by direction on the frequency plane."""
    return completed(result.labels, values, (32, 32))


def drawn_planes(
    finding: Finding, dark: bool, unit: str = "%", low: float | None = 50.0, high: float | None = 100.0
) -> Figure:
    """Every array ``plane: NAME`` of a finding as a plane."""
    planes = {name: Plane(array, unit, low, high) for name, array in finding.arrays_of("plane").items()}
    return plane_figure(planes, dark=dark)


# Every which frequency each network is trained at; DenseNet-121 at the lowest and the highest alone.
STRIDES: dict[str, dict[str, int]] = {
    "smoke": {"logistic_regression": 16, "lenet": 16},
    "laptop": {"logistic_regression": 2, "lenet": 4},
    "paper": {"logistic_regression": 1, "lenet": 1, "vgg11": 8, "resnet18": 4, "densenet121": 0},
}
_SEEN = "near 100 % on some frequencies, near 50 % on others"
_SPREAD_CLAIMS = [
    claim
    for name in ("lenet", "vgg11", "resnet18", "densenet121")
    for claim in (
        Claim(
            f"{TITLES[name]} is near 100 % on some frequencies.",
            f"{snake(TITLES[name])}_highest_accuracy",
            "at least",
            _SEEN,
            95.0,
            "laptop" if name == "lenet" else "paper",
        ),
        Claim(
            f"{TITLES[name]} is near 50 % on others.",
            f"{snake(TITLES[name])}_lowest_accuracy",
            "at most",
            _SEEN,
            60.0,
            "laptop" if name == "lenet" else "paper",
        ),
    )
]


@figure(
    "1",
    title="Test accuracy along every frequency (σ = 3, ε = 1)",
    claims=[
        Claim(
            "Logistic regression is at 100 % on every frequency.",
            "logistic_regression_mean_accuracy",
            "about",
            100.0,
            1.0,
        ),
        Claim(
            "LeNet's map is the published one: correlation over frequencies.",
            "lenet_correlation_with_published",
            "at least",
            "the authors' accuracies",
            0.93,
            "paper",
        ),
        Claim(
            "LeNet's map is the published one: mean absolute difference in points.",
            "lenet_mean_absolute_difference",
            "at most",
            "the authors' accuracies",
            2.5,
            "paper",
        ),
        Claim(
            "ResNet-18's map is the published one: correlation over frequencies.",
            "resnet_18_correlation_with_published",
            "at least",
            "the authors' accuracies",
            0.9,
            "paper",
        ),
        Claim(
            "ResNet-18's map is the published one: mean absolute difference in points.",
            "resnet_18_mean_absolute_difference",
            "at most",
            "the authors' accuracies",
            5.0,
            "paper",
        ),
        *_SPREAD_CLAIMS,
        *(
            Claim(
                f"{TITLES[name]} reaches nearly 100 % train accuracy.",
                f"{snake(TITLES[name])}_mean_train_accuracy",
                "at least",
                "nearly 100 %",
                98.0,
                "paper",
            )
            for name in ("vgg11", "resnet18", "densenet121")
        ),
    ],
    draw=drawn_planes,
)
def figure_1(effort: str, run: Run) -> Finding:
    """Accuracy maps of the paper's networks, beside the authors' own numbers where they are at hand."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    notes: list[str] = []
    for name, stride in STRIDES[effort].items():
        repeats = 2 if name == "lenet" and effort != "laptop" else 1
        result = learned(name, frequencies(stride), effort, run, repeats=repeats)
        title, key, each = TITLES[name], snake(TITLES[name]), result.accuracy[0, 0]  # (repeat, direction)
        arrays[f"plane: {title}"] = plane_of(result, 100 * each.mean(0))
        test = PROTOCOL[effort]["test"]
        mean, train = (bootstrapped(np.mean, 100 * share) for share in (each.mean(0), result.train_accuracy[0, 0, 0]))
        highest, lowest = (proportion(share, test).in_percent() for share in (each[0].max(), each[0].min()))
        statistics |= {
            f"{key}_mean_accuracy": mean.named(f"{title}: mean accuracy", "%"),
            f"{key}_highest_accuracy": highest.named(f"{title}: highest accuracy", "%"),
            f"{key}_lowest_accuracy": lowest.named(f"{title}: lowest accuracy", "%"),
            f"{key}_mean_train_accuracy": train.named(f"{title}: mean train accuracy", "%"),
        }
        if repeats > 1:
            first, second = 100 * each[0], 100 * each[1]
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
    notes.append("The authors' own LeNet accuracies have a maximum of 81.6 %, not near 100 %.")
    notes.append(
        "Their ResNet-18 lies at 50 to 53 % on a quarter of their frequencies, those with both components 2 more than a "
        "multiple of 4; every fourth frequency misses all of these."
    )
    settings = {
        "every which frequency": STRIDES[effort],
        **PROTOCOL[effort],
        "seed": 0,
        "noise": 3.0,
        "large networks": "bfloat16",
    }
    return Finding(statistics, arrays, settings, tuple(notes))


_SPEED: dict[str, dict[str, int]] = {
    "smoke": {"logistic_regression": 16, "lenet": 16},
    "laptop": {"logistic_regression": 4, "lenet": 4},
    "paper": {"logistic_regression": 2, "lenet": 2, "resnet18": 8},
}


@figure(
    "2",
    title="Iterations to a small training loss along every frequency (σ = 0.5)",
    claims=[
        Claim(
            "LeNet's speed map has the structure of its accuracy map: rank correlation of speed and accuracy.",
            "lenet_rank_correlation_of_speed_and_accuracy",
            "at least",
            "the same kind of structure",
            0.5,
        ),
        Claim(
            "ResNet-18's speed map has the structure of its accuracy map: rank correlation of speed and accuracy.",
            "resnet_18_rank_correlation_of_speed_and_accuracy",
            "at least",
            "the same kind of structure",
            0.5,
            "paper",
        ),
        Claim(
            "It takes LeNet much longer on some frequencies than on others: ratio of slowest to fastest.",
            "lenet_slowest_over_fastest",
            "at least",
            "much longer",
            3.0,
        ),
        Claim(
            "It takes ResNet-18 much longer on some frequencies than on others: ratio of slowest to fastest.",
            "resnet_18_slowest_over_fastest",
            "at least",
            "much longer",
            3.0,
            "paper",
        ),
    ],
    draw=lambda finding, dark: drawn_planes(finding, dark, "iterations", None, None),
)
def figure_2(effort: str, run: Run) -> Finding:
    """Speed maps, set against the accuracy maps of figure 1 on the same frequencies."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, stride in _SPEED[effort].items():
        basis, title, key = frequencies(stride), TITLES[name], snake(TITLES[name])
        speed = learned(name, basis, effort, run, noise=(0.5,), stop=True)
        total = float(speed.steps[0, -1])
        iterations = np.nan_to_num(speed.iterations[0, 0, 0], nan=total)  # never in time: as long as was waited
        arrays[f"plane: {title}"] = plane_of(speed, iterations)
        slowest = bootstrapped(lambda values: float(np.quantile(values, 0.95) / np.quantile(values, 0.05)), iterations)
        statistics[f"{key}_slowest_over_fastest"] = slowest.named(f"{title}: slowest over fastest")
        if name != "logistic_regression":
            accuracy = learned(name, basis, effort, run).accuracy[0, 0, 0]
            statistics[f"{key}_rank_correlation_of_speed_and_accuracy"] = bootstrapped(
                spearman, -iterations, accuracy
            ).named(f"{title}: rank correlation of speed and accuracy")
    settings = {"every which frequency": _SPEED[effort], **PROTOCOL[effort], "noise": 0.5, "threshold": 0.01, "seed": 0}
    notes = (
        "Slowest over fastest is the ratio of the 95th to the 5th percentile over frequencies.",
        "The loss is that of a batch; the paper does not say how small a small loss is, 0.01 was chosen here.",
    )
    return Finding(statistics, arrays, settings, notes)


_UNPOOLED: dict[str, dict[str, int]] = {
    "smoke": {"lenet": 16},
    "laptop": {"lenet": 8},
    "paper": {"lenet": 2, "resnet18": 16},
}


@figure(
    "3",
    title="Test accuracy along every frequency without pooling",
    claims=[
        Claim(
            f"Without pooling {TITLES[name]}'s accuracy is nearly equal over frequencies: highest minus lowest, in points.",
            f"{snake(TITLES[name])}_range_without_pooling",
            "at most",
            "equalised",
            10.0,
            "laptop" if name == "lenet" else "paper",
        )
        for name in ("lenet", "resnet18")
    ]
    + [
        Claim(
            "Without pooling LeNet's accuracy varies less over frequencies than with it: ratio of standard deviations.",
            "lenet_deviation_without_over_with_pooling",
            "at most",
            "equalised",
            0.5,
        ),
        Claim(
            "Without pooling LeNet's test accuracy improves, in points.",
            "lenet_gain_without_pooling",
            "at least",
            "test accuracy improves",
            5.0,
        ),
    ],
    draw=drawn_planes,
)
def figure_3(effort: str, run: Run) -> Finding:
    """Accuracy maps with the pooling layers removed and the linear layers resized."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, stride in _UNPOOLED[effort].items():
        basis, title, key = frequencies(stride), TITLES[name], snake(TITLES[name])
        without = learned(name, basis, effort, run, network={"pooling": "none"})
        accuracy = 100 * without.accuracy[0, 0, 0]
        arrays[f"plane: {title} without pooling"] = plane_of(without, accuracy)
        reach = bootstrapped(lambda values: float(np.ptp(values)), accuracy)
        mean = bootstrapped(np.mean, accuracy)
        statistics |= {
            f"{key}_range_without_pooling": reach.named(f"{title}: range without pooling", "points"),
            f"{key}_mean_accuracy_without_pooling": mean.named(f"{title}: mean accuracy without pooling", "%"),
        }
        if name == "lenet":
            pooled = 100 * learned(name, basis, effort, run).accuracy[0, 0, 0]
            deviation = bootstrapped(lambda one, two: float(one.std() / two.std()), accuracy, pooled)
            gain = bootstrapped(np.mean, accuracy - pooled)
            statistics |= {
                f"{key}_deviation_without_over_with_pooling": deviation.named(
                    f"{title}: deviation without over with pooling"
                ),
                f"{key}_gain_without_pooling": gain.named(f"{title}: gain without pooling", "points"),
            }
    settings = {"every which frequency": _UNPOOLED[effort], **PROTOCOL[effort], "noise": 3.0, "seed": 0}
    notes = ("ResNet-18 without pooling drops its global average; the strides of its convolutions stay.",)
    return Finding(statistics, arrays, settings, notes)


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


@figure(
    "4",
    title="What pooling does: best accuracy after it, and the training of a linear model behind it (S = 4, D = 128)",
    claims=[
        Claim(
            "The closed form matches simulation: largest deviation in standard errors over all frequencies.",
            "largest_deviation_in_standard_errors",
            "at most",
            "matches",
            4.0,
        ),
        Claim(
            "The formula as printed matches simulation: largest deviation in standard errors over all frequencies.",
            "largest_deviation_of_the_printed_formula",
            "at most",
            "matches",
            4.0,
        ),
        Claim(
            "Late frequencies train slower: iterations of the highest over the lowest trained frequency.",
            "iterations_of_late_over_early_frequencies",
            "at least",
            "slower",
            1.5,
        ),
    ],
    draw=_drawn_4,
)
def figure_4(effort: str, run: Run) -> Finding:
    """The pooling theory against simulation, for real signals."""
    sizes: dict[str, dict[str, Any]] = {
        "smoke": {"samples": 500, "iterations": 100, "repeats": 2, "train": 100},
        "laptop": {},
        "paper": {"samples": 100_000},
    }
    result = pooling_theory(seed=0, run=run.shared, **sizes[effort])
    slow = result.slowdown()
    doubtful = result.errors[0] > 0  # where the best rule is never wrong there is nothing to compare
    printed = (result.simulated[0] - result.accuracy_as_printed)[doubtful] / result.errors[0][doubtful]
    ours, theirs = (Estimate.exact(float(np.abs(each).max())) for each in (result.deviations()[0], printed))
    statistics = {
        "largest_deviation_in_standard_errors": ours.named("largest deviation in standard errors"),
        "largest_deviation_of_the_printed_formula": theirs.named("largest deviation of the printed formula"),
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
    notes = ("The printed constant of theorem 1 is right for S = 2 only; see docs/errata.md.",)
    return Finding(statistics, arrays, {"size": 128, "stride": 4, "seed": 0, **sizes[effort]}, notes)


@figure(
    "S10",
    title="Test accuracy along the sines",
    claims=[
        Claim(
            "The Im half looks like the Re half: correlation of LeNet's accuracies at the same frequencies.",
            "lenet_correlation_of_im_and_re",
            "at least",
            "the results do not change in nature",
            0.8,
        ),
        Claim("There are four gaps at the self-conjugate frequencies.", "gaps", "about", 4.0, 0.0, "smoke"),
    ],
    draw=drawn_planes,
)
def figure_s10(effort: str, run: Run) -> Finding:
    """LeNet along the sines, beside the cosines of the same frequencies."""
    stride = {"smoke": 8, "laptop": 4, "paper": 2}[effort]
    sines, cosines = frequencies(stride, "Im"), frequencies(stride)
    imaginary, real = learned("lenet", sines, effort, run), learned("lenet", cosines, effort, run)
    at = {label[-2:]: value for label, value in zip(real.labels, real.accuracy[0, 0, 0], strict=True)}
    pairs = [
        (value, at[label[-2:]]) for label, value in zip(imaginary.labels, imaginary.accuracy[0, 0, 0], strict=True)
    ]
    ours = np.array(pairs)
    statistics = {
        "lenet_correlation_of_im_and_re": bootstrapped(pearson, ours[:, 0], ours[:, 1]).named(
            "LeNet: correlation of Im and Re"
        ),
        "gaps": Estimate.exact(float(len(cosines) - len(sines))).named("gaps"),
    }
    arrays = {
        "plane: LeNet, Im": plane_of(imaginary, 100 * imaginary.accuracy[0, 0, 0]),
        "plane: LeNet, Re": plane_of(real, 100 * real.accuracy[0, 0, 0]),
    }
    return Finding(statistics, arrays, {"every which frequency": stride, **PROTOCOL[effort], "noise": 3.0, "seed": 0})


_NOISY: dict[str, dict[str, int]] = {
    "smoke": {"logistic_regression": 16, "lenet": 16},
    "laptop": {"logistic_regression": 8, "lenet": 8},
    "paper": {"logistic_regression": 4, "lenet": 4, "vgg11": 16, "resnet18": 16},
}


@figure(
    "S11",
    title="Test accuracy along frequencies at σ = 0, 1, 3",
    claims=[
        Claim(
            "LeNet fails on some frequencies even without noise.",
            "lenet_lowest_accuracy_at_sigma_0",
            "at most",
            "fails to generalise to a few distributions",
            90.0,
        ),
        *(
            Claim(
                f"{TITLES[name]} generalises everywhere without noise.",
                f"{snake(TITLES[name])}_lowest_accuracy_at_sigma_0",
                "at least",
                "properly generalise when there is no noise",
                95.0,
                "paper",
            )
            for name in ("vgg11", "resnet18")
        ),
        Claim(
            "ResNet-18 is the most robust at σ = 1: its mean accuracy minus that of the next best CNN, in points.",
            "resnet_18_lead_at_sigma_1",
            "at least",
            "slightly more robust",
            0.0,
            "paper",
        ),
        Claim(
            "Logistic regression generalises at every noise level.",
            "logistic_regression_lowest_accuracy",
            "at least",
            "always perfectly",
            98.0,
        ),
    ],
    draw=drawn_planes,
)
def figure_s11(effort: str, run: Run) -> Finding:
    """Accuracy at three levels of noise."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    at_one: dict[str, np.ndarray] = {}
    test = PROTOCOL[effort]["test"]
    for name, stride in _NOISY[effort].items():
        title, key = TITLES[name], snake(TITLES[name])
        results = {noise: learned(name, frequencies(stride), effort, run, noise=(noise,)) for noise in (0.0, 1.0, 3.0)}
        for noise, result in results.items():
            accuracy = result.accuracy[0, 0, 0]
            arrays[f"plane: {title}, σ = {noise:g}"] = plane_of(result, 100 * accuracy)
            mean, lowest = bootstrapped(np.mean, 100 * accuracy), proportion(accuracy.min(), test).in_percent()
            statistics |= {
                f"{key}_mean_accuracy_at_sigma_{noise:g}": mean.named(f"{title}: mean accuracy at σ = {noise:g}", "%"),
                f"{key}_lowest_accuracy_at_sigma_{noise:g}": lowest.named(
                    f"{title}: lowest accuracy at σ = {noise:g}", "%"
                ),
            }
        of_all = min(float(result.accuracy.min()) for result in results.values())
        statistics[f"{key}_lowest_accuracy"] = (
            proportion(of_all, test).in_percent().named(f"{title}: lowest accuracy", "%")
        )
        if name != "logistic_regression":
            labels = [label[-2:] for label in results[1.0].labels]
            coarse = [
                all(part % 16 == 0 for part in label) for label in labels
            ]  # the frequencies that all networks have
            at_one[name] = 100 * results[1.0].accuracy[0, 0, 0][coarse]
    if "resnet18" in at_one:
        best = max((name for name in at_one if name != "resnet18"), key=lambda name: at_one[name].mean())
        lead = bootstrapped(np.mean, at_one["resnet18"] - at_one[best])
        statistics["resnet_18_lead_at_sigma_1"] = lead.named("ResNet-18: lead at σ = 1", "points")
    return Finding(statistics, arrays, {"every which frequency": _NOISY[effort], **PROTOCOL[effort], "seed": 0})


@figure(
    "S12",
    title="Test accuracy along random directions",
    claims=[
        Claim(
            f"{TITLES[name]}'s accuracy is nearly equal along random directions: standard deviation in points.",
            f"{snake(TITLES[name])}_deviation_over_directions",
            "at most",
            "the same performance for most of the data sets",
            3.0,
            "laptop" if name == "lenet" else "paper",
        )
        for name in ("lenet", "resnet18")
    ],
    draw=lambda finding, dark: lines_figure(
        {name: (np.arange(len(array)), 100 * np.sort(array)[::-1]) for name, array in finding.arrays.items()},
        x="direction, best first",
        y="test accuracy, %",
        dark=dark,
    ),
)
def figure_s12(effort: str, run: Run) -> Finding:
    """Accuracy along elements of a random orthonormal basis."""
    counts = {"smoke": {"lenet": 3}, "laptop": {"lenet": 12}, "paper": {"lenet": 128, "resnet18": 6}}[effort]
    basis = bases.random(SHAPE, seed=0)
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, count in counts.items():
        title, key = TITLES[name], snake(TITLES[name])
        accuracy = learned(name, basis.part(range(count)), effort, run).accuracy[0, 0, 0]
        arrays[title] = accuracy
        deviation, mean = bootstrapped(np.std, 100 * accuracy), over_repeats(list(100 * accuracy))
        statistics |= {
            f"{key}_deviation_over_directions": deviation.named(f"{title}: deviation over directions", "points"),
            f"{key}_mean_accuracy": mean.named(f"{title}: mean accuracy", "%"),
        }
    return Finding(statistics, arrays, {"directions": counts, **PROTOCOL[effort], "noise": 3.0, "seed": 0})
