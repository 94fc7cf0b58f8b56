"""Estimate: a number with its uncertainty, and methods to compute one. Number: an estimate with a name and a unit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

#: The unit of a number between 0 and 1 that is printed in percent.
SHARE = "share"


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
        40 ± 1.0 (95 % CI 38.0 to 42.0)
        >>> float(Estimate(40.0, 1.0, 38.0, 42.0))
        40.0
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
        from scipy.special import stdtrit  # scipy.stats takes half a second to import

        reach = float(stdtrit(samples - 1, 0.5 + confidence / 2)) * standard_error
        return Estimate(value, standard_error, value - reach, value + reach, confidence)

    @staticmethod
    def of_positive(value: float, standard_error: float, freedom: float, confidence: float = 0.95) -> Estimate:
        """An estimate of a positive number, whose error is in proportion to it rather than the same above and below.

        With the relative error ``r = t·SE/value`` of Student's t, the interval is ``value·(1 − r)`` to ``value/(1 − r)``. The upper
        end is Student's on the scale of ``1/value``: few draws of a law with a long tail miss its largest values, so that the mean
        and its error are both too small. The interval has no upper end from ``r = 1`` on.

        Args:
            value: The estimate.
            standard_error: Its standard error.
            freedom: Degrees of freedom of that error, see :func:`freedom_of`.
            confidence: Level of the interval.

        Example:
            >>> Estimate.of_positive(10.0, 1.0, 31)
            10 ± 1.0 (95 % CI 8.0 to 12.6)
        """
        if not freedom > 0 or not math.isfinite(standard_error):
            return Estimate(value, confidence=confidence)
        from scipy.special import stdtrit

        reach = float(stdtrit(freedom, 0.5 + confidence / 2)) * standard_error
        if value <= 0:
            return Estimate(value, standard_error, min(value, 0.0), max(value + reach, 0.0), confidence)
        high = value**2 / (value - reach) if reach < value else math.inf
        return Estimate(value, standard_error, max(value - reach, 0.0), high, confidence)

    @staticmethod
    def from_draws(value: float, draws: np.ndarray) -> Estimate:
        """A number with the 95 % percentile interval of its values on resampled samples; the interval holds the number itself."""
        low, high = np.quantile(draws, [0.025, 0.975])
        error = float(draws.std())
        return Estimate(float(value), error if error > 1e-12 else 0.0, float(min(low, value)), float(max(high, value)))

    def minus(self, other: Estimate, samples: int | None = None) -> Estimate:
        """A difference, the two taken as independent: its interval is too wide where they share samples.

        Args:
            other: What is taken away.
            samples: How many each was measured on, for Student's interval; without it, the normal one.

        Example:
            >>> Estimate(5.0, 0.3).minus(Estimate(3.0, 0.4))
            2.0 ± 0.50 (95 % CI 1.02 to 2.98)
        """
        value, error = self.value - other.value, math.hypot(self.standard_error, other.standard_error)
        if samples is not None:
            return Estimate.from_error(value, error, samples)
        return Estimate(value, error, value - 1.96 * error, value + 1.96 * error)

    def __float__(self) -> float:
        return float(self.value)

    def contains(self, value: float) -> bool:
        """Whether the interval contains a value."""
        return self.low <= value <= self.high

    def map_linear(self, slope: float, offset: float = 0.0) -> Estimate:
        """The estimate of ``slope·value + offset``."""
        low, high = sorted((slope * self.low + offset, slope * self.high + offset))
        return Estimate(slope * self.value + offset, abs(slope) * self.standard_error, low, high, self.confidence)

    def within(self, low: float, high: float) -> Estimate:
        """The same with its value and the ends of its interval where the number can lie.

        Example:
            >>> Estimate(3080.0, 60.0, 2961.0, 3199.0).within(1.0, 3072.0)
            3072 ± 60 (95 % CI 2961 to 3072)
            >>> Estimate(0.7, 0.2, 0.3, 1.1).within(1.0, 8.0)
            1.0 ± 0.20 (95 % CI 1.00 to 1.10)
        """
        value, start, end = (
            at if math.isnan(at) else min(max(at, low), high) for at in (self.value, self.low, self.high)
        )
        return Estimate(value, self.standard_error, start, end, self.confidence)

    def in_percent(self) -> Estimate:
        """A share in percent."""
        return self.map_linear(100.0)

    def named(self, label: str, unit: str = "") -> Number:
        """The same with a name and a unit, as it is printed and written."""
        return Number(self.value, self.standard_error, self.low, self.high, self.confidence, label=label, unit=unit)

    def as_dict(self) -> dict[str, Any]:
        """The fields under their names, as JSON has them: nan is null."""
        return {entry.name: _as_json(getattr(self, entry.name)) for entry in fields(self)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """What :meth:`as_dict` gave.

        Example:
            >>> Estimate.from_dict(Estimate(40.0).as_dict())
            40 (spread unknown)
        """
        texts = ("label", "unit")  # any other text is an infinite number, which JSON does not know
        return cls(
            **{
                name: value if name in texts else math.nan if value is None else float(value)
                for name, value in content.items()
            }
        )

    def __repr__(self) -> str:
        return self._text("")

    def _text(self, unit: str) -> str:
        if self.confidence == 1.0:
            return f"{self.value:.4g}{unit}"
        if not math.isfinite(self.standard_error):
            return f"{self.value:.4g}{unit} (spread unknown)"
        digits = max(0, 1 - math.floor(math.log10(self.standard_error))) if self.standard_error > 0 else 3
        plain = digits <= 8 and abs(self.value) < 1e9  # squared gradients of deep networks can be tiny or huge
        form = f".{digits}f" if plain else ".3e"
        shown = [f"{number:{form}}" for number in (self.standard_error, self.low, self.high)]
        value = f"{self.value:.{max(digits - 1, 0)}f}" if plain else f"{self.value:{form}}"
        ends = f"{shown[1]} or more" if self.high == math.inf else f"{shown[1]} to {shown[2]}"
        interval = f"({100 * self.confidence:.0f} % CI {ends})"
        return f"{value} ± {shown[0]}{unit} {interval}"


def _as_json(value: float | str) -> float | str | None:
    return None if isinstance(value, float) and math.isnan(value) else value


@dataclass(frozen=True, repr=False)
class Number(Estimate):
    """An estimate as a person and a program read it: with a label and a unit.

    In a result or a finding it stands under a key, which never changes; its label may name settings.

    Attributes:
        label: What it is, in words.
        unit: ``""`` for a pure number, ``"share"`` for one between 0 and 1, which is printed in percent; otherwise as printed.

    Example:
        >>> Estimate(0.9, 0.01, 0.88, 0.92).named("test accuracy", "share")
        90 ± 1.0 % (95 % CI 88.0 to 92.0)
        >>> Estimate.exact(31.5).named("PSNR", "dB")
        31.5 dB
    """

    label: str = ""
    unit: str = ""

    @property
    def printed(self) -> tuple[Estimate, str]:
        """The numbers as they are printed, and their unit."""
        return (self.in_percent(), "%") if self.unit == SHARE else (self, self.unit)

    def __repr__(self) -> str:
        shown, unit = self.printed
        return Estimate._text(shown, f" {unit}" if unit else "")


def freedom_of(values: np.ndarray) -> float:
    """The degrees of freedom of the spread of independent values, by their own kurtosis κ: ``2n/(κ − 1)``, at most n − 1.

    The variance of a sample variance is about ``σ⁴(κ − 1)/n``; that of a χ² with ν degrees of freedom is ``2σ⁴/ν``. Normal values
    have κ = 3 and so about n. A single large value among n has κ near n and leaves two, however many values there are.

    Example:
        >>> freedom_of(np.arange(10.0)), round(freedom_of(np.array([0.0] * 30 + [1.0])), 1)
        (9.0, 2.2)

    Reference:
        Satterthwaite, F. E. (1946). An approximate distribution of estimates of variance components. Biometrics Bulletin 2.
    """
    count, centred = len(values), np.asarray(values, np.float64) - np.mean(values)
    if count < 2:
        return 0.0
    largest = float(np.abs(centred).max())
    if not largest:
        return float(count - 1)
    squares = np.square(centred / largest)
    kurtosis = count * float((squares**2).sum()) / float(squares.sum()) ** 2
    return min(count - 1.0, 2 * count / (kurtosis - 1)) if kurtosis > 1 else count - 1.0


def jackknife(full: float, left_out: Sequence[float], confidence: float = 0.95, *, positive: bool = False) -> Estimate:
    """Bias-corrected value and interval of a statistic, from its values with one group of the sample left out.

    With ``θ̂`` the statistic on all ``g`` groups and ``θ̂₋ⱼ`` without group ``j``, the pseudo-values
    ``pⱼ = g·θ̂ − (g−1)·θ̂₋ⱼ`` have a mean free of the bias of order 1/g and a spread that gives the standard error.

    Args:
        full: The statistic of the whole sample.
        left_out: The statistic without group 1, without group 2, …
        confidence: Level of the Student-t interval.
        positive: Whether the statistic is a positive number, such as a ratio of squares: see :meth:`Estimate.of_positive`.

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
    value, error = float(pseudo.mean()), float(pseudo.std(ddof=1)) / math.sqrt(groups)
    if not positive:
        return Estimate.from_error(value, error, groups, confidence)
    if value <= 0 < full:  # the correction overshoots where draws are few
        value = full
    return Estimate.of_positive(value, error, freedom_of(pseudo), confidence)


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
    at_once = max(1, _NUMBERS_AT_ONCE // count)
    draws = []
    with np.errstate(invalid="ignore", divide="ignore"):
        for start in range(0, resamples, at_once):
            chosen = generator.integers(0, count, (min(at_once, resamples - start), count))
            draws.append(of_rows(statistic, [array[chosen] for array in arrays]))
    found = np.concatenate(draws)
    finite = found[np.isfinite(found)]
    if len(finite) < resamples // 2:
        return Estimate(value)
    found_spread = Estimate.from_draws(value, finite)
    return wide_enough_for_ranks(found_spread, count) if statistic is spearman else found_spread


def wide_enough_for_ranks(found: Estimate, count: int) -> Estimate:
    """A rank correlation of so many pairs whose interval covers Fisher's too.

    Resampling understates the spread of few pairs: pairs in perfect order stay so, however they are resampled. Fisher's interval has
    the standard error √((1 + r²/2) / (n − 3)) of Bonett and Wright. A perfect order counts as half a step less, the step being what an
    exchange of two neighbours costs. The interval excludes 0 from five pairs in perfect order on, as the exact test does
    (p = 2/5! = 0.017). With fewer than four pairs, the spread is unknown.

    Example:
        >>> wide_enough_for_ranks(Estimate(1.0, 0.0, 1.0, 1.0), 6)
        1.00 ± 0.039 (95 % CI 0.632 to 1.000)

    Reference:
        Bonett, D. G. and Wright, T. A. (2000). Sample size requirements for estimating Pearson, Kendall and Spearman correlations.
        Psychometrika 65.
    """
    if count < 4:
        return Estimate(found.value)
    half_step = 6 / (count * (count**2 - 1))
    inside = math.copysign(min(abs(found.value), 1 - half_step), found.value)
    error = math.sqrt((1 + inside**2 / 2) / (count - 3))
    low, high = (math.tanh(math.atanh(inside) + side * 1.96 * error) for side in (-1, 1))
    spread = max(found.standard_error, error * (1 - inside**2))
    return Estimate(found.value, spread, min(found.low, low), max(found.high, high), found.confidence)


_NUMBERS_AT_ONCE = 2**20


def of_rows(statistic: Callable[..., float], arrays: Sequence[np.ndarray]) -> np.ndarray:
    """A statistic of each row: all at once where it is known how, since thousands of short calls take seconds."""
    first = arrays[0]
    if first.ndim == 2 and statistic in (pearson, spearman):
        return _correlations(arrays[0], arrays[1], ranked=statistic is spearman)
    if first.ndim == 2 and statistic in (np.mean, np.min, np.max, np.std):
        return np.asarray(statistic(first, axis=1), np.float64)
    return np.array([statistic(*rows) for rows in zip(*arrays, strict=True)], np.float64)


def _correlations(first: np.ndarray, second: np.ndarray, *, ranked: bool) -> np.ndarray:
    """Of each pair of rows; nan where one of the two does not vary."""
    from scipy.stats import rankdata

    one, two = (rankdata(each, axis=1) if ranked else np.asarray(each, np.float64) for each in (first, second))
    constant = (np.ptp(one, axis=1) == 0) | (np.ptp(two, axis=1) == 0)
    one, two = one - one.mean(1, keepdims=True), two - two.mean(1, keepdims=True)
    product, sizes = (one * two).sum(1), (one**2).sum(1) * (two**2).sum(1)
    return np.where(constant, np.nan, np.clip(product / np.sqrt(np.where(constant, 1.0, sizes)), -1.0, 1.0))


def proportion(share: float, samples: int) -> Estimate:
    """A share of ``samples`` samples with Wilson's interval; as a mean over repeats, it need not be a whole number of them.

    Example:
        >>> proportion(1.0, 100).named("accuracy", "share")
        100.0 ± 0.50 % (95 % CI 96.30 to 100.00)
    """
    z, p = 1.96, min(max(float(share), 0.0), 1.0)
    centre = (p + z * z / (2 * samples)) / (1 + z * z / samples)
    reach = z * math.sqrt(p * (1 - p) / samples + z * z / (4 * samples**2)) / (1 + z * z / samples)
    error = math.sqrt(max(p * (1 - p), 0.25 / samples) / samples)
    return Estimate(p, error, max(min(centre - reach, p), 0.0), min(max(centre + reach, p), 1.0))


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
    """The mean absolute difference of two paired samples."""
    return float(np.abs(first - second).mean())


def paired_error(differences: np.ndarray) -> float:
    """The error of a mean difference by finitely many samples, from its values ``(repeat, block)`` on blocks of them.

    All models answer the same samples, so the error is that of the difference itself, whatever each model's own error is.

    Example:
        >>> paired_error(np.array([[1.0, 3.0], [1.0, 3.0]]))
        1.0
    """
    means = differences.mean(0)
    if len(means) < 2:  # one block does not show a spread
        return math.nan
    return float(means.std(ddof=1) / len(means) ** 0.5)


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
