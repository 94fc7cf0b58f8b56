"""WHAT: which of several independent estimates differ, at one level for all comparisons together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from biascope.results.estimate import Estimate

_NORMAL = 1.96  # standard errors that Student's interval spans at least
_ROUNDING = 1e-9  # of the larger number: exact numbers that differ by less are the same


def separations(estimates: Sequence[Estimate], comparisons: int = 1) -> np.ndarray:
    """How far each estimate lies above each other one, in half widths of the interval of their difference: ``(above, below)``.

    Definition:
        Of two numbers ``a > b``, the difference has a lower end at ``a − b`` less the root of ``(a − low a)² + (high b − b)²``, by the
        ends of their own intervals. So numbers differ whose printed intervals lie apart, and none whose interval contains the other. A
        separation above 1 is a significant difference. With several comparisons, each has 5 % divided by their number (Bonferroni), so
        that all together have at most 5 %; the intervals are widened by the law that gave them.

    Args:
        estimates: With 95 % intervals, of independent samples.
        comparisons: How many have 5 % together.

    Example:
        >>> separations([Estimate(5.0, 0.3, 4.4, 5.6), Estimate(3.0, 0.4, 2.2, 3.8)]).round(6).tolist()
        [[0.0, 2.0], [-2.0, 0.0]]

    Reference:
        Zou, G. Y. and Donner, A. (2008). Construction of confidence limits about effect measures: a general approach.
        Statistics in Medicine 27.
    """
    values = np.array([each.value for each in estimates])
    low, high = np.array([_ends(each, comparisons) for each in estimates]).T
    reach = np.hypot((values - low)[:, None], (high - values)[None, :])
    apart = values[:, None] - values[None, :]
    apart[np.abs(apart) <= _ROUNDING * np.maximum(np.abs(values)[:, None], np.abs(values)[None, :])] = 0.0
    above = np.divide(apart, reach, out=np.where(apart > 0, np.inf, 0.0), where=reach != 0)
    above = np.where(apart > 0, np.nan_to_num(above, nan=0.0, posinf=np.inf), 0.0)
    return np.asarray(above - above.T)


def _ends(estimate: Estimate, comparisons: int) -> tuple[float, float]:
    """The interval at 5 % over so many comparisons: the printed one for one comparison."""
    value, error = estimate.value, estimate.standard_error
    if comparisons == 1 or error == 0 or math.isnan(estimate.low) or math.isnan(estimate.high):
        return estimate.low, estimate.high
    below, above = value - estimate.low, estimate.high - value
    # Of a positive number, the upper end may be in proportion to it: see Estimate.of_positive.
    upward = value > 0 and above > below * (1 + 1e-6)
    sides = [below, value - value**2 / estimate.high if upward and math.isfinite(above) else above]
    reach = max((side for side in sides if math.isfinite(side)), default=0.0)
    reach *= _wider(reach / error, comparisons)
    high = (value**2 / (value - reach) if reach < value else math.inf) if upward else value + reach
    low = -math.inf if math.isinf(below) else min(estimate.low, value - reach)
    return low, math.inf if math.isinf(above) else max(estimate.high, high)


def _wider(spans: float, comparisons: int) -> float:
    """How much wider an interval becomes, if it spans so many standard errors to a side.

    Of an interval that ends where numbers can lie, one side tells how many it spans, or none does.
    """
    level = 0.025 / comparisons
    if math.isnan(spans):  # repeats that agree: the chance that others do not falls exponentially
        return math.log(level) / math.log(0.025)
    from scipy.special import stdtridf, stdtrit

    freedom = min(float(stdtridf(0.975, spans)) if spans > _NORMAL else math.inf, 1e10)
    return float(stdtrit(freedom, 1 - level) / stdtrit(freedom, 0.975))
