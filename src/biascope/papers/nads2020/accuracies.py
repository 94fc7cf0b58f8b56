"""Accuracies over directions, seeds and test samples, as estimates: means, extremes, differences and deviations."""

from __future__ import annotations

import math

import numpy as np

from biascope.results.estimate import Estimate, bootstrapped, over, proportion


def mean_over(shares: np.ndarray) -> Estimate:
    """The mean accuracy over directions, in percent."""
    return bootstrapped(np.mean, 100 * shares, within=(0.0, 100.0))


def in_percent(shares: np.ndarray, samples: int) -> Estimate:
    """A mean accuracy over seeds with the errors of seeds and of the test sample; of one seed, the spread is unknown."""
    return over(100 * shares, shared=proportion(float(shares.mean()), samples).in_percent(), within=(0.0, 100.0))


def points_between(first: np.ndarray, second: np.ndarray, samples: int) -> Estimate:
    """The difference of two accuracies by seed, in points, likewise."""
    one, two = (proportion(float(shares.mean()), samples).in_percent() for shares in (first, second))
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


def ratio_of_deviations(one: np.ndarray, two: np.ndarray) -> Estimate:
    """Of two networks' accuracies at the same frequencies; its standard error is taken from the interval, on a logarithmic scale.

    The spread of the resampled ratios themselves comes from the few resamples whose denominator is almost 0.

    Example:
        >>> ratio_of_deviations(np.array([99.0, 99.4, 98.8, 99.2]), np.array([50.0, 97.0, 51.0, 99.0]))
        0.009 ± 0.0093 (95 % CI 0.0041 to 0.2000)
    """
    ratio = bootstrapped(lambda first, second: float(first.std() / second.std()), one, two)
    if not 0 < ratio.low <= ratio.high < math.inf:
        return ratio
    error = ratio.value * math.log(ratio.high / ratio.low) / (2 * 1.96)
    return Estimate(ratio.value, error, ratio.low, ratio.high, ratio.confidence)


def ratio_of_estimates(one: Estimate, two: Estimate) -> Estimate:
    """Of two positive numbers, with the interval between the extremes of theirs, which is too wide rather than too narrow."""
    value = one.value / two.value if two.value else math.nan
    error = 0.0
    if one.value:
        error = value * math.hypot(one.standard_error / one.value, two.standard_error / two.value)
    return Estimate(value, error, one.low / two.high, one.high / two.low if two.low > 0 else math.inf)
