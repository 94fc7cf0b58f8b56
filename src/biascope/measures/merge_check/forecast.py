"""HOW: a difference between two models' accuracies, forecast without labels, with the error of the forecast itself."""

# b resamples

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from biascope.results.estimate import Estimate


@dataclass(frozen=True)
class OwnError:
    """How far forecasts were from what came, as a share of the predictions on which the two models differ.

    Accuracies can differ only where predictions do. So the error of a forecast is measured per prediction that differs:
    ``u = (realised − forecast) / share that differ``.

    Attributes:
        spread: Root mean square of u over the validation merges, each the mean over two tasks; no bias is taken out.
        freedom: Degrees of freedom of ``spread``, from a jackknife that leaves out one task, with all its merges, at a time.
    """

    spread: float
    freedom: float


# By `python benchmarks/merge_forecast.py fit`, from the 56 merges of benchmarks/merge_expected.json; a test fits them again.
WITH_ACCURACIES = OwnError(0.230, 8.2)
WITHOUT = OwnError(0.338, 15.5)

# By `python benchmarks/merge_forecast.py judge benchmarks/merge_forecast.json`: for how many of these merges the forecast gain over the
# base, and over the best single model for all tasks, had the right sign; with the accuracies of all models, and without.
TESTED = 28
SIGNS_RIGHT = {True: {"base": 27, "single": 24}, False: {"base": 25, "single": 21}}


def forecast(value: float, draws: np.ndarray, differing: Estimate, *, known: bool, models: int) -> Estimate:
    """A forecast difference of accuracies, whose interval holds the error of sampling and that of the forecast.

    With s the spread of :class:`OwnError` and d the share of predictions that differ, the standard error is
    ``√(SE² + (s d)²)``, and the interval is Student's. It ends where no labels could lead: at the upper end of d's own interval,
    on both sides. Errors were measured on means over two tasks. For one task, s is larger by √2, as for independent errors. For more
    than two tasks it stays.

    Args:
        value: The forecast.
        draws: ``(b,)`` the same on resampled samples.
        differing: Share of predictions on which the two models differ.
        known: Whether the accuracy of every fine-tuned model behind the forecast was given.
        models: Over how many tasks it is a mean.

    Example:
        >>> forecast(0.10, np.full(9, 0.10), Estimate(0.20, 0.01, 0.18, 0.22), known=True, models=2)
        0.10 ± 0.046 (95 % CI -0.006 to 0.206)
        >>> forecast(0.10, np.full(9, 0.10), Estimate(0.20, 0.01, 0.18, 0.22), known=False, models=1)
        0.10 ± 0.096 (95 % CI -0.103 to 0.220)
    """
    from scipy.special import stdtrit  # scipy.stats takes half a second to import

    most = float(differing.high)
    if differing.value == 0:  # none of few is not none of all
        return Estimate(value, differing.standard_error, -most, most)
    error = WITH_ACCURACIES if known else WITHOUT
    own = error.spread * (2**0.5 if models == 1 else 1.0) * differing.value
    sampling = float(np.std(draws))
    total = float(np.hypot(own, sampling))
    freedom = error.freedom * (total / own) ** 4  # Welch and Satterthwaite, sampling with endless degrees
    reach = float(stdtrit(freedom, 0.975)) * total
    return Estimate(value, total, max(value - reach, -most), min(value + reach, most))
