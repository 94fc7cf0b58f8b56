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
        standard_error: Its standard error; ``nan`` where too few draws were made to know it, or all of them agree.
        low: Lower end of the interval; ``-inf`` for the least of a sample, see :meth:`open_below`.
        high: Upper end of the interval; ``inf`` for the largest.
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

    def open_below(self) -> Estimate:
        """The same as the least of a sample: what is outside the sample may be less, so the interval has no lower end.

        Example:
            >>> Estimate(51.0, 0.5, 50.0, 52.0).open_below()
            51.0 ± 0.51 (95 % CI 52.00 or less)
        """
        if math.isnan(self.high):
            return self
        error = (self.high - self.value) / _normal_reach(self.confidence)
        known = error > 0 and not math.isnan(self.standard_error)
        return Estimate(self.value, error if known else math.nan, -math.inf, self.high, self.confidence)

    def open_above(self) -> Estimate:
        """The same as the largest of a sample, or a range or ratio of its extremes: with no upper end.

        Simulated with 8 frequencies, the lower end of a bootstrap is too high in fewer than 1 % of samples, and its upper end too
        low in 70 %.

        Example:
            >>> Estimate(7.0, 1.9, 2.1, 8.6).open_above()
            7 ± 2.5 (95 % CI 2.1 or more)
        """
        return self.map_linear(-1.0).open_below().map_linear(-1.0)

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
        if math.isnan(self.standard_error) and not math.isnan(self.low):  # repeats that agree
            ends = interval_in_words(f"{self.low:.4g}", f"{self.high:.4g}")
            return f"{self.value:.4g}{unit} ({100 * self.confidence:.0f} % CI {ends})"
        if not math.isfinite(self.standard_error):
            return f"{self.value:.4g}{unit} (spread unknown)"
        digits = max(0, 1 - math.floor(math.log10(self.standard_error))) if self.standard_error > 0 else 3
        plain = digits <= 8 and abs(self.value) < 1e9  # squared gradients of deep networks can be tiny or huge
        form = f".{digits}f" if plain else ".3e"
        shown = [f"{number:{form}}" for number in (self.standard_error, self.low, self.high)]
        value = f"{self.value:.{max(digits - 1, 0)}f}" if plain else f"{self.value:{form}}"
        return f"{value} ± {shown[0]}{unit} ({100 * self.confidence:.0f} % CI {interval_in_words(*shown[1:])})"


def interval_in_words(low: str, high: str) -> str:
    """The two ends of an interval, which are written already; one without an end is *or less* or *or more*."""
    return f"{high} or less" if low in ("-inf", "−inf") else f"{low} or more" if high == "inf" else f"{low} to {high}"


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


def bootstrapped(
    statistic: Callable[..., float],
    *arrays: np.ndarray,
    within: tuple[float, float] = (-math.inf, math.inf),
    resamples: int = 2000,
) -> Estimate:
    """A statistic of paired samples with its percentile interval over resampled pairs.

    What is resampled is the samples' first axis: the interval says how much the number depends on which of them were looked
    at, not on what all of them share (the seed of one data set, say). Resamples that all agree say nothing: the spread is then
    unknown, but for a mean of numbers between two ends, of which :func:`over` tells.

    Args:
        statistic: Of the arrays.
        arrays: Of one length.
        within: Where the number can lie.
        resamples: How often.

    Example:
        >>> bootstrapped(np.mean, np.ones(72), within=(0.0, 1.0)), bootstrapped(np.std, np.ones(72))
        (1 (95 % CI 0.9501 to 1), 0 (spread unknown))
    """
    value = float(statistic(*arrays))
    count = len(arrays[0])
    if count < 3:
        return Estimate(value)
    if statistic is np.mean and agree(arrays[0]):
        return over(arrays[0], within=within)
    found = _resampled(statistic, arrays, resamples)
    finite = found[np.isfinite(found)]
    if len(finite) < resamples // 2:
        return Estimate(value)
    spread = Estimate.from_draws(value, finite)
    if statistic is spearman:
        return wide_enough_for_ranks(spread, count)
    return Estimate(value) if agree(finite) else spread.within(*within)


def _resampled(statistic: Callable[..., float], arrays: Sequence[np.ndarray], resamples: int = 2000) -> np.ndarray:
    """The statistic of resampled pairs."""
    count, generator = len(arrays[0]), np.random.default_rng(0)
    at_once = max(1, _NUMBERS_AT_ONCE // count)
    draws = []
    with np.errstate(invalid="ignore", divide="ignore"):
        for start in range(0, resamples, at_once):
            chosen = generator.integers(0, count, (min(at_once, resamples - start), count))
            draws.append(of_rows(statistic, [array[chosen] for array in arrays]))
    return np.concatenate(draws)


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


def agree(values: np.ndarray) -> bool:
    """Whether all are the same but for rounding."""
    return float(np.ptp(values)) <= 1e-12 * float(np.abs(values).max())


#: What :func:`over` tells of repeats.
OF: dict[str, Callable[[np.ndarray], float]] = {"mean": np.mean, "least": np.min, "largest": np.max, "range": np.ptp}


def over(
    repeats: Sequence[float] | np.ndarray,
    *,
    of: str = "mean",
    samples: float = 0.0,
    shared: float | Estimate = 0.0,
    within: tuple[float, float] = (-math.inf, math.inf),
    everything: bool = False,
    confidence: float = 0.95,
) -> Estimate:
    """What independent repeats say of all that could have been run: the one rule for trainings, seeds, draws and directions.

    - **One** repeat has an unknown spread.
    - **Repeats that agree** do not show that all others would. ``k`` that agree are ``k`` of ``k``: by Clopper and Pearson, at least a
      share ``q = (α/2)^(1/k)`` of all others agrees too, and the rest lies in ``within``. That gives an interval where the number
      has two ends, as a share has; otherwise the spread is unknown. The standard error is unknown in either case.
    - **Other repeats** have Student's interval of their mean.
    - **The least** of a sample is open below, **the largest** and **the range** are open above; the other end is that of a bootstrap.
    - **Everything** that a claim names is no sample: its mean, least and largest are exact but for the error of test samples.

    Args:
        repeats: The number of each.
        of: ``"mean"``, ``"least"``, ``"largest"`` or ``"range"``.
        samples: Standard error of one repeat's number by test samples of its own. The error of the mean is not less.
        shared: Standard error by test samples that all repeats share, or an estimate whose interval tells it. It is joined.
        within: Where the number can lie: ``(0, 1)`` for a share.
        everything: Whether the repeats are all that the claim names.
        confidence: Level of the interval.

    Raises:
        ValueError: If there is no such number to tell.

    Example:
        >>> over([70.0, 72.0, 74.0], shared=1.0)
        72 ± 1.5 (95 % CI 66.7 to 77.3)
        >>> over([70.0], shared=1.0)
        70 (spread unknown)
        >>> over([1.0, 1.0, 1.0, 1.0]), over([1.0, 1.0, 1.0, 1.0], within=(0.0, 1.0))
        (1 (spread unknown), 1 (95 % CI 0.3976 to 1))
        >>> over([60.0, 80.0, 75.0], of="least")
        60 ± 10 (95 % CI 80 or less)
        >>> over([60.0, 80.0, 75.0], of="least", everything=True)
        60

    Reference:
        Clopper, C. J. and Pearson, E. S. (1934). The use of confidence or fiducial limits illustrated in the case of the binomial.
        Biometrika 26.
    """
    if of not in OF:
        raise ValueError(f"of must be one of {', '.join(OF)}, got {of!r}. Pass of='mean'.")
    each = np.asarray(repeats, np.float64).ravel()
    if everything:
        value = float(OF[of](each))
        return (
            _joined(Estimate(value, 0.0, value, value, confidence), shared).within(*within)
            if shared
            else Estimate.exact(value)
        )
    if of != "mean":
        return _extreme(each, of, shared, within)
    if len(each) < 2:
        return Estimate(float(each.mean()), confidence=confidence)
    if agree(each):
        found = _k_of_k(float(each[0]), len(each), within, confidence)
    else:
        found = Estimate.from_error(
            float(each.mean()), float(each.std(ddof=1)) / math.sqrt(len(each)), len(each), confidence
        )
        own = samples / math.sqrt(len(each))
        reach = max(found.high - found.value, _normal_reach(confidence) * own)
        found = Estimate(
            found.value, max(found.standard_error, own), found.value - reach, found.value + reach, confidence
        )
    return _joined(found, shared).within(*within)


def over_ratios(ratios: Sequence[float] | np.ndarray) -> Estimate:
    """The geometric mean of ratios of independent repeats, by :func:`over` on their logarithms.

    Example:
        >>> over_ratios([2.0, 8.0, 4.0])
        4 ± 1.6 (95 % CI 0.7 to 22.4)
        >>> over_ratios([3.0, 3.0])
        3 (spread unknown)
    """
    found = over(np.log(np.maximum(ratios, 1e-12)))
    low, high, middle = (math.exp(min(each, 700.0)) for each in (found.low, found.high, found.value))
    return Estimate(middle, middle * found.standard_error, low, high)


def _normal_reach(confidence: float) -> float:
    """Standard errors from a mean to the ends of its interval; 1.96 of one of 95 %."""
    from scipy.special import ndtri

    return float(ndtri(0.5 + confidence / 2))


def _joined(found: Estimate, shared: float | Estimate) -> Estimate:
    """The estimate with another error of the same number, which is independent of its own."""
    if isinstance(shared, Estimate):
        error, below, above = shared.standard_error, shared.value - shared.low, shared.high - shared.value
    else:
        error, below, above = shared, *(2 * (_normal_reach(found.confidence) * shared,))
    low = found.value - math.hypot(found.value - found.low, below)
    high = found.value + math.hypot(found.high - found.value, above)
    return Estimate(found.value, math.hypot(found.standard_error, error), low, high, found.confidence)


def _k_of_k(value: float, count: int, within: tuple[float, float], confidence: float) -> Estimate:
    """The mean of all, if so many repeats of a number between two ends agree: see :func:`over`."""
    if not all(map(math.isfinite, within)):
        return Estimate(value, confidence=confidence)
    agreeing = ((1 - confidence) / 2) ** (1 / count)
    low, high = (agreeing * value + (1 - agreeing) * end for end in within)
    return Estimate(value, math.nan, low, high, confidence)


def _extreme(each: np.ndarray, of: str, shared: float | Estimate, within: tuple[float, float]) -> Estimate:
    """The least, the largest or the range of a sample, with the interval's end that the sample can see."""
    value = float(OF[of](each))
    if len(each) < 3:  # as in bootstrapped
        return Estimate(value)
    found = _joined(Estimate.from_draws(value, _resampled(OF[of], (each,))), shared).within(*within)
    return found.open_below() if of == "least" else found.open_above()
