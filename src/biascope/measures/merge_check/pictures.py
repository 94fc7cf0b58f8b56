"""SHOW: agreement of the merged model with each fine-tuned one, and the effect of task vectors on other models' samples."""

# t models · a coefficients · b resamples

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from biascope.results.draw import PALETTE, overlap
from biascope.results.figures import lines_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def agreement_figure(
    apart: np.ndarray,
    resampled: np.ndarray,
    alphas: np.ndarray,
    models: Sequence[str],
    *,
    chosen: float,
    as_good: tuple[float, float],
    unit: str,
    dark: bool = False,
) -> Figure:
    """Agreement of merged models with each fine-tuned one against the coefficient.

    Args:
        apart: Distances ``(t, a)``.
        resampled: On resampled samples ``(t, a, b)``.
        alphas: The coefficients.
        models: Names.
        chosen: The coefficient suggested.
        as_good: First and last coefficient that does as well.
        unit: What the percentages are.
        dark: Whether the background is.

    Returns:
        The figure.
    """
    kept = {name: (alphas, 100 * (1 - each)) for name, each in zip(models, apart, strict=True)}
    ends = [100 * (1 - np.quantile(each, [0.975, 0.025], axis=1)) for each in resampled]
    figure = lines_figure(
        {**kept, "mean": (alphas, 100 * (1 - apart.mean(0)))},
        x="coefficient α of the sum of task vectors",
        y=unit,
        bands={name: (low, high) for name, (low, high) in zip(models, ends, strict=True)},
        reading="Agreement of the merged model with each fine-tuned model on that model's own samples, with 95 % bands. α = 0 is the "
        "base. The dashed line marks the suggested coefficient. Coefficients in the shaded range are as good.",
        dark=dark,
    )
    axes, muted = figure.axes[0], PALETTE[dark].muted
    axes.axvspan(*as_good, color=muted, alpha=0.15, linewidth=0)
    axes.axvline(chosen, color=muted, linestyle="--", linewidth=1.2)
    return figure


def effects_figure(effects: np.ndarray, models: Sequence[str], *, dark: bool = False) -> Figure:
    """How much each task vector changes outputs on each model's samples.

    Args:
        effects: ``(t, t)``, a row for the samples of each model, 1 on the diagonal.
        models: Names.
        dark: Whether the background is.

    Returns:
        The figure.
    """
    figure = overlap(effects, [name[:16] for name in models], dark=dark)
    figure.axes[0].set(ylabel="samples of", xlabel="task vector of")
    figure.set_label(
        "Size of the change in outputs that a task vector (column) causes on a model's samples (row), relative to the change by "
        "the model's own vector. Near 0 it hardly changes them; at 1 or above it changes them as much as the own vector or more."
    )
    return figure
