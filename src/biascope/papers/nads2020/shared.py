"""What the figures of the 2020 paper share: its networks, its published accuracies, and intervals for its numbers."""

from __future__ import annotations

import csv
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from biascope.data import data_root
from biascope.families.family import Family
from biascope.measures.anisotropy_directions import anisotropy_directions
from biascope.networks import builder
from biascope.results.estimate import Estimate, bootstrapped, over, proportion
from biascope.results.wording import snake
from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.tasks.bases import Basis
from biascope.tasks.probe import Probe
from biascope.training.evaluation import STACK_LIMIT

SHAPE = (1, 32, 32)
TITLES = {
    "logistic_regression": "logistic regression",
    "mlp": "MLP",
    "lenet": "LeNet",
    "vgg11": "VGG11",
    "resnet18": "ResNet-18",
    "densenet121": "DenseNet-121",
}
COLUMNS = {
    "logistic_regression": "acc_lr",
    "lenet": "acc_ln",
    "resnet18": "acc_rn",
    "densenet121": "acc_dn",
    "vgg11": "acc_vgg",
}


def keyed(name: str) -> str:
    """A network as the beginning of a key."""
    return snake(TITLES[name])


def family_of(name: str, **settings: Any) -> Family:
    """One of the paper's networks at initialisation."""
    return Family.initialised(functools.partial(builder(name), **settings), name=TITLES[name])


def training_run(family: Family, run: Run) -> Run:
    """On a GPU, large networks are trained with products in bfloat16; small ones as the run says."""
    large = family.num_parameters > STACK_LIMIT
    half = large and run.torch_device.type == "cuda" and run.precision in ("float32", "tf32")
    return dataclasses.replace(run.shared, precision="bfloat16" if half else run.precision)


def directions_of(
    name: str,
    draws: int,
    run: Run,
    *,
    estimator: str = "difference",
    shape: tuple[int, int, int] = SHAPE,
    seed: int = 0,
) -> Basis:
    """The anisotropy directions of a network as published: one N(0, 1) input, differences of half width 100, centred.

    Large networks are drawn in half precision on a GPU, where 10,000 draws would otherwise take minutes.
    """
    family = family_of(name, image_size=shape[1])
    large = family.num_parameters > STACK_LIMIT and run.torch_device.type == "cuda" and estimator == "difference"
    chosen = dataclasses.replace(run.shared, precision="float16") if large else run.shared
    found = anisotropy_directions(
        family,
        Probe.gaussian(shape, seed=seed),
        estimator=estimator,
        step=100.0,
        draws=draws,
        centred=True,
        keep=math.prod(shape),
        seed=seed,
        run=chosen,
    )
    return bases.ordered(
        torch.as_tensor(found.directions),
        shape,
        torch.as_tensor(found.eigenvalues),
        name=f"anisotropy ({TITLES[name]})",
    )


def published_accuracies(name: str, run: Run) -> dict[tuple[int, int], float] | None:
    """The authors' accuracies of figure 1 in percent by frequency, from ``published/dft_accuracies.csv`` in the data folder.

    Row (x, y) of the file is frequency (2(y − 8), 2(x − 8)). One half of the file is the other mirrored along x: it has at (k, −l) the
    number of (k, l), which belongs to (−k, −l). The half that was trained has l ≥ 0 or l = −16, as a real Fourier transform does.
    """
    path = data_root(run.data_root) / "published" / "dft_accuracies.csv"
    if not path.exists():
        return None
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {(2 * (int(row["y"]) - 8), 2 * (int(row["x"]) - 8)): float(row[COLUMNS[name]]) for row in rows}


def against_published(
    labels: Sequence[tuple[Any, ...]], accuracy: np.ndarray, published: dict[tuple[int, int], float]
) -> tuple[np.ndarray, np.ndarray]:
    """Ours and theirs, in percent, at the frequencies that both have; theirs from the half of their file that was trained."""
    pairs = []
    for label, value in zip(labels, accuracy, strict=True):
        k, l = (int(part) for part in label[-2:])  # noqa: E741 - the frequency's name
        wrapped = [tuple((sign * part + 16) % 32 - 16 for part in (k, l)) for sign in (1, -1)]
        place = next(each for each in wrapped if each[1] >= 0 or each[1] == -16)
        if place in published:
            pairs.append((100 * value, published[place]))
    ours, theirs = np.array(pairs).T if pairs else (np.zeros(0), np.zeros(0))
    return ours, theirs


def ratio_of_deviations(one: np.ndarray, two: np.ndarray) -> Estimate:
    """Of two networks' accuracies at the same frequencies; its standard error is taken from the interval, on a logarithmic scale.

    The spread of the resampled ratios themselves comes from the few resamples whose denominator is almost 0.

    Example:
        >>> ratio_of_deviations(np.array([99.0, 99.4, 98.8, 99.2]), np.array([50.0, 97.0, 51.0, 99.0]))
        0.009 ± 0.0093 (95 % CI 0.0041 to 0.2000)
    """
    found = bootstrapped(lambda first, second: float(first.std() / second.std()), one, two)
    if not 0 < found.low <= found.high < math.inf:
        return found
    error = found.value * math.log(found.high / found.low) / (2 * 1.96)
    return Estimate(found.value, error, found.low, found.high, found.confidence)


def in_percent(shares: np.ndarray, samples: int) -> Estimate:
    """A mean accuracy over seeds with the errors of seeds and of the test sample; of one seed, the spread is unknown."""
    return over(100 * shares, shared=proportion(float(shares.mean()), samples).in_percent(), within=(0.0, 100.0))


def points_between(first: np.ndarray, second: np.ndarray, samples: int) -> Estimate:
    """The difference of two accuracies by seed, in points, likewise."""
    one, two = (proportion(float(each.mean()), samples).in_percent() for each in (first, second))
    return over(100 * (first - second), shared=one.minus(two, samples), within=(-100.0, 100.0))


def lowest_of(accuracy: np.ndarray, test: int, everything: bool = False) -> Estimate:
    """The lowest of several networks' accuracies in percent, with the errors of which directions were taken and of the test sample.

    Directions outside the sample may have less, so the interval is open below unless the sample is ``everything``.
    """
    sampled = proportion(float(accuracy.min()), test).in_percent()
    return over(100 * accuracy, of="least", shared=sampled, within=(0.0, 100.0), everything=everything)


def highest_of(accuracy: np.ndarray, test: int, everything: bool = False) -> Estimate:
    """The highest, likewise."""
    sampled = proportion(float(accuracy.max()), test).in_percent()
    return over(100 * accuracy, of="largest", shared=sampled, within=(0.0, 100.0), everything=everything)


def deviation_beyond(accuracy: np.ndarray, test: int) -> float:
    """Standard deviation of accuracies in points beyond that of a test sample; negative if the sample alone varies more.

    Example:
        >>> round(deviation_beyond(np.array([0.5, 1.0]), 10_000), 2), round(deviation_beyond(np.array([0.5, 0.5]), 10_000), 2)
        (35.35, -0.5)
    """
    return 100 * signed_root(float(accuracy.var(ddof=1) - (accuracy * (1 - accuracy)).mean() / test))


def signed_root(excess: float) -> float:
    """The square root of a difference of variances, with its sign."""
    return math.copysign(math.sqrt(abs(excess)), excess)
