"""Estimate: a number with its uncertainty, and the grouped jackknife that gives it one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Estimate:
    """A value with its standard error and a confidence interval.

    Attributes:
        value: The estimate.
        standard_error: Its standard error; ``nan`` where too few draws were made to know it.
        low: Lower end of the interval.
        high: Upper end of the interval.
        confidence: The level of the interval.

    Example:
        >>> Estimate(40.0, 1.0, 38.0, 42.0)
        40 ± 1.0 (95 %: 38.0 to 42.0)
    """

    value: float
    standard_error: float = math.nan
    low: float = math.nan
    high: float = math.nan
    confidence: float = 0.95

    @staticmethod
    def exact(value: float) -> Estimate:
        """A number known without error."""
        return Estimate(value, 0.0, value, value, 1.0)

    @staticmethod
    def from_error(value: float, standard_error: float, samples: int, confidence: float = 0.95) -> Estimate:
        """An estimate whose error was measured on a number of independent samples (Student's t interval)."""
        if samples < 2 or not math.isfinite(standard_error):
            return Estimate(value, confidence=confidence)
        from scipy.stats import t

        reach = float(t.ppf(0.5 + confidence / 2, samples - 1)) * standard_error
        return Estimate(value, standard_error, value - reach, value + reach, confidence)

    def contains(self, value: float) -> bool:
        """Whether the interval contains a value."""
        return self.low <= value <= self.high

    def map_linear(self, slope: float, offset: float = 0.0) -> Estimate:
        """The estimate of ``slope·value + offset``."""
        low, high = sorted((slope * self.low + offset, slope * self.high + offset))
        return Estimate(slope * self.value + offset, abs(slope) * self.standard_error, low, high, self.confidence)

    def as_dict(self) -> dict[str, float]:
        """The numbers under their names, for JSON."""
        return {name: float(getattr(self, name)) for name in self.__dataclass_fields__}

    def __repr__(self) -> str:
        if self.confidence == 1.0:
            return f"{self.value:.4g}"
        if not math.isfinite(self.standard_error):
            return f"{self.value:.4g} (spread unknown)"
        digits = max(0, 1 - math.floor(math.log10(self.standard_error))) if self.standard_error > 0 else 3
        form = f".{digits}f" if digits <= 8 else ".3e"  # the squared gradients of deep networks can be tiny
        shown = [f"{number:{form}}" for number in (self.standard_error, self.low, self.high)]
        value = f"{self.value:.{max(digits - 1, 0)}f}" if digits <= 8 else f"{self.value:{form}}"
        return f"{value} ± {shown[0]} ({self.confidence:.0%}: {shown[1]} to {shown[2]})".replace("%", " %")


def jackknife(full: float, left_out: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Bias-corrected value and interval of a statistic, from its values with one group of the sample left out.

    With ``θ̂`` the statistic on all ``g`` groups and ``θ̂₋ⱼ`` without group ``j``, the pseudo-values
    ``pⱼ = g·θ̂ − (g−1)·θ̂₋ⱼ`` have a mean free of the bias of order 1/g and a spread that gives the standard error.

    Args:
        full: The statistic of the whole sample.
        left_out: The statistic without group 1, without group 2, …
        confidence: Level of the Student-t interval.

    Returns:
        The estimate; with fewer than three groups the plain value, its spread unknown.

    Example:
        >>> estimate = jackknife(2.5, [3.0, 8 / 3, 7 / 3, 2.0])  # the mean of 1, 2, 3, 4
        >>> round(estimate.value, 6), round(estimate.standard_error, 4)
        (2.5, 0.6455)

    Reference:
        Miller, R. G. (1974). The jackknife: a review. Biometrika 61.
    """
    groups = len(left_out)
    if groups < 3:
        return Estimate(full, confidence=confidence)
    pseudo = groups * full - (groups - 1) * np.asarray(left_out, dtype=np.float64)
    error = float(pseudo.std(ddof=1)) / math.sqrt(groups)
    return Estimate.from_error(float(pseudo.mean()), error, groups, confidence)


def bootstrapped(statistic: Callable[..., float], *arrays: np.ndarray, resamples: int = 2000) -> Estimate:
    """A statistic of paired samples with its percentile interval over resampled pairs.

    What is resampled is the samples' first axis: the interval says how much the number depends on which of them were looked
    at, not on what all of them share (the seed of one data set, say).
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


def over_repeats(
    values: Sequence[float] | np.ndarray, *, within: tuple[float, float] = (-math.inf, math.inf)
) -> Estimate:
    """Mean of independent repetitions with Student's interval, cut to where the number can lie; of one, spread unknown.

    Example:
        >>> over_repeats([0.9, 1.0, 1.0], within=(0.0, 1.0)).high
        1.0
    """
    each = np.asarray(values, np.float64)
    error = float(each.std(ddof=1)) / math.sqrt(len(each)) if len(each) > 1 else math.nan
    found = Estimate.from_error(float(each.mean()), error, len(each))
    if len(each) < 2:
        return found
    return Estimate(found.value, found.standard_error, max(within[0], found.low), min(within[1], found.high))
