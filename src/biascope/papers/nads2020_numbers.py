"""What the figures of the 2020 paper share: its networks, its published accuracies, and intervals for its numbers."""

from __future__ import annotations

import csv
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from biascope import bases
from biascope.bases import Basis
from biascope.data import data_root
from biascope.estimate import Estimate
from biascope.evaluation import STACK_LIMIT
from biascope.family import Family
from biascope.measures.anisotropy_directions import anisotropy_directions
from biascope.networks import builder
from biascope.probe import Probe
from biascope.run import Run

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


def family_of(name: str, **settings: Any) -> Family:
    """One of the paper's networks at initialisation."""
    return Family.initialised(functools.partial(builder(name), **settings), name=TITLES[name])


def shared(run: Run) -> Run:
    """The same run with a folder that all figures share, so that none repeats another's trainings or draws."""
    return run if run.folder is None else dataclasses.replace(run, folder=run.folder.parent / "shared")


def training_run(family: Family, run: Run) -> Run:
    """On a GPU, large networks are trained with products in bfloat16; small ones as the run says."""
    large = family.num_parameters > STACK_LIMIT
    half = large and run.torch_device.type == "cuda" and run.precision in ("float32", "tf32")
    return dataclasses.replace(shared(run), precision="bfloat16" if half else run.precision)


def directions_of(name: str, draws: int, run: Run, *, estimator: str = "difference", seed: int = 0) -> Basis:
    """The anisotropy directions of a network as published: one N(0, 1) input, differences of half width 100, centred.

    Large networks are drawn in half precision on a GPU, where 10,000 draws would otherwise take minutes.
    """
    family = family_of(name)
    large = family.num_parameters > STACK_LIMIT and run.torch_device.type == "cuda" and estimator == "difference"
    chosen = dataclasses.replace(shared(run), precision="float16") if large else shared(run)
    found = anisotropy_directions(
        family,
        Probe.gaussian(SHAPE, seed=seed),
        estimator=estimator,
        step=100.0,
        draws=draws,
        centred=True,
        keep=1024,
        seed=seed,
        run=chosen,
    )
    return bases.ordered(
        torch.as_tensor(found.directions),
        SHAPE,
        torch.as_tensor(found.eigenvalues),
        name=f"anisotropy ({TITLES[name]})",
    )


def published_accuracies(name: str, run: Run) -> dict[tuple[int, int], float] | None:
    """The authors' accuracies of figure 1 in percent by frequency, from ``published/dft_accuracies.csv`` in the data folder.

    Row (x, y) of the file is frequency (2(y − 8), 2(x − 8)).
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
    """Ours and theirs, in percent, at the frequencies that both have."""
    pairs = []
    for label, value in zip(labels, accuracy, strict=True):
        k, l = (int(part) for part in label[-2:])  # noqa: E741 - the frequency's name
        for place in ((k, l), (-k, -l)):
            wrapped = tuple((part + 16) % 32 - 16 for part in place)
            if wrapped in published:
                pairs.append((100 * value, published[wrapped]))
                break
    ours, theirs = np.array(pairs).T if pairs else (np.zeros(0), np.zeros(0))
    return ours, theirs


def bootstrapped(statistic: Callable[..., float], *arrays: np.ndarray, resamples: int = 2000) -> Estimate:
    """A statistic of paired samples with its percentile interval over resampled pairs.

    What is resampled are the directions (the samples' first axis): the interval says how much the number depends on which
    of them were looked at and on the luck of each training, not on a change of the data's seed as a whole.
    """
    value = float(statistic(*arrays))
    count = len(arrays[0])
    if count < 3:
        return Estimate(value)
    generator = np.random.default_rng(0)
    draws = []
    for _ in range(resamples):
        chosen = generator.integers(0, count, count)
        with np.errstate(invalid="ignore", divide="ignore"):
            draws.append(statistic(*(array[chosen] for array in arrays)))
    finite = np.array(draws)[np.isfinite(draws)]
    if len(finite) < resamples // 2:
        return Estimate(value)
    low, high = np.quantile(finite, [0.025, 0.975])
    return Estimate(value, float(finite.std()), float(min(low, value)), float(max(high, value)))


def proportion(accuracy: float, samples: int) -> Estimate:
    """An accuracy in percent with Wilson's interval for so many test samples."""
    z, p = 1.96, min(max(float(accuracy), 0.0), 1.0)
    centre = (p + z * z / (2 * samples)) / (1 + z * z / samples)
    reach = z * math.sqrt(p * (1 - p) / samples + z * z / (4 * samples**2)) / (1 + z * z / samples)
    error = math.sqrt(max(p * (1 - p), 0.25 / samples) / samples)
    return Estimate(100 * p, 100 * error, 100 * min(centre - reach, p), 100 * max(centre + reach, p))


def pearson(first: np.ndarray, second: np.ndarray) -> float:
    """Correlation; nan where one does not vary."""
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(np.corrcoef(first, second)[0, 1])


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Correlation of ranks; nan where one does not vary."""
    from scipy.stats import rankdata

    return pearson(rankdata(first), rankdata(second))


def mean_absolute_difference(first: np.ndarray, second: np.ndarray) -> float:
    """Of two paired samples."""
    return float(np.abs(first - second).mean())


def over_repeats(values: Sequence[float]) -> Estimate:
    """Mean of independent repetitions with Student's interval."""
    each = np.asarray(values, np.float64)
    error = float(each.std(ddof=1)) / math.sqrt(len(each)) if len(each) > 1 else math.nan
    return Estimate.from_error(float(each.mean()), error, len(each))
