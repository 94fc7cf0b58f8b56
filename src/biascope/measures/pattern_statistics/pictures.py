"""SHOW: detection ratios against pattern statistics, the constants of PSI, and the filters of a network in colour."""

# r runs · 2k filters · C channels · h × w pixels

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from biascope.results.draw import PALETTE, blank, legend_below, line_colours, panel, plain
from biascope.results.figures import lines_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BINS = 30  # of a histogram
_CURVES_WITH_BANDS = 6
_LEAST = 1e-4  # below this a constant is as good as zero, and drawn at the edge


def ratios_figure(
    dots: Mapping[str, tuple[np.ndarray, np.ndarray]],
    *,
    slope: float = 2.0,
    ratio: str = "detection ratio",
    dark: bool = False,
) -> Figure:
    """Detection ratios against the association of patterns with the other label, under the lowest PSI line of slope b.

    Args:
        dots: By the kind of pattern, ``max(−s_i/s, 0)`` and the ratios, ``(n,)`` each, of any number of runs.
        slope: b.
        ratio: What the ratios are.
        dark: Whether the background is.

    Returns:
        The figure. The line is ``b·x + c*/√m``, as low as all dots allow; dots that are not finite are counted, not drawn.

    Raises:
        ValueError: If no dot is finite.

    Example:
        >>> figure = ratios_figure({"spurious": (np.array([0.0, 0.5]), np.array([0.1, 1.3]))})
        >>> figure.axes[0].lines[0].get_ydata()[0].round(3)  # 1.3 − 2·0.5
        np.float64(0.3)
    """
    pairs = {name: np.stack([np.ravel(part) for part in parts]).astype(np.float64) for name, parts in dots.items()}
    finite = {name: pair[:, np.isfinite(pair).all(0)] for name, pair in pairs.items()}
    every = np.concatenate(list(finite.values()), 1) if finite else np.zeros((2, 0))
    if not every.size:
        raise ValueError(
            "dots must hold at least one finite ratio to draw, got none. Train until the labels' patterns are detected."
        )
    offset = max(float((every[1] - slope * every[0]).max()), 0.0)
    lost = sum(pair.shape[1] for pair in pairs.values()) - every.shape[1]
    reading = f"Each dot is a pattern in a run. PSI says that ratios stay below a line. The lowest one of slope {slope:g} is drawn."
    figure = blank(3.4, reading + f" {lost} ratios that are not finite are left out." * bool(lost))
    axes, colours = panel(figure, dark), PALETTE[dark]
    reach = max(1.05 * float(every[0].max()), 0.05)
    ends = np.array([0.0, reach])
    label = f"lowest line, {slope:g}x + {offset:.2g}"
    axes.plot(ends, slope * ends + offset, color=colours.muted, linestyle="--", linewidth=1.4, label=label)
    for (name, pair), colour in zip(finite.items(), line_colours(len(finite), dark), strict=True):
        # Small groups are drawn large and over the large ones, which would hide them.
        few = pair.shape[1] <= 300
        style: dict[str, Any] = {
            "s": 16 if few else 6,
            "alpha": 0.75 if few else 0.5,
            "linewidths": 0,
            "clip_on": False,
        }
        axes.scatter(*pair, color=colour, label=plain(name), zorder=3 + 1 / (1 + pair.shape[1]), **style)
    top = max(1.08 * float(every[1].max()), min(slope * reach + offset, 2 * float(every[1].max())), 1e-9)
    axes.set(
        xlim=(0, reach),
        ylim=(0, top),
        xlabel="max(−sᵢ/s, 0), association with the other label",
        ylabel=plain(ratio, 40),
    )
    legend_below(figure, axes, dark)
    return figure


def constants_figure(groups: Mapping[str, np.ndarray], *, dark: bool = False) -> Figure:
    """Histograms of c*, the smallest constant of PSI, by group on one logarithmic axis, beside the line at 1.

    Args:
        groups: One value for each run, by name; a zero is drawn at the left edge, an infinite one at the right.
        dark: Whether the background is.

    Returns:
        The figure.

    Raises:
        ValueError: If there are no values, or one is negative or not a number.

    Example:
        >>> figure = constants_figure({"uniform": np.array([0.02, 0.1, 0.3]), "paired": np.array([0.5])})
        >>> [float(patch.get_data().values.sum()) for patch in figure.axes[0].patches[::2]]
        [3.0, 1.0]
    """
    values = {name: np.asarray(group, np.float64).ravel() for name, group in groups.items()}
    every = np.concatenate(list(values.values())) if values else np.zeros(0)
    if not every.size or not (every >= 0).all():
        raise ValueError(
            "groups must hold at least one constant, and none below 0 or NaN, got others. Leave out failed runs."
        )
    known = every[(every > _LEAST) & np.isfinite(every)]
    low, high = min(known.min(initial=0.5), 0.5) / 1.3, max(known.max(initial=1.0), 1.0) * 1.5
    edges = np.geomspace(low, high, _BINS + 1)
    above = int((every >= 1).sum())
    reading = f"PSI is stronger further left. {above} of {every.size} runs are at 1 or above."
    if every.size > known.size:
        reading += " Runs at zero are drawn at the left edge, runs without a finite constant at the right edge."
    figure, colours = blank(3.1, reading), PALETTE[dark]
    axes = panel(figure, dark)
    for (name, group), colour in zip(values.items(), line_colours(len(values), dark), strict=True):
        counts = np.histogram(np.clip(group, edges[0], edges[-1]), edges)[0]
        axes.stairs(counts, edges, fill=True, color=colour, alpha=0.25)
        axes.stairs(counts, edges, color=colour, linewidth=1.4, label=plain(name))
    axes.axvline(1.0, color=colours.muted, linestyle="--", linewidth=1.2)
    axes.set(xscale="log", xlim=(low, high), xlabel="c*, smallest constant of PSI", ylabel="runs")
    _plain_decades(axes, low, high)
    if len(values) > 1:
        legend_below(figure, axes, dark)
    return figure


def constants_against_figure(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]], *, x: str = "training samples, m", dark: bool = False
) -> Figure:
    """c* against the size of the training set or of the network: means over runs with bands of one standard deviation.

    Args:
        curves: Places ``(n,)`` and constants ``(r, n)``, by name.
        x: What the places are.
        dark: Whether the background is.

    Returns:
        The figure, both axes logarithmic, with the line at 1; there is a gap where a constant is infinite. Of more than six curves
        the largest of all runs is drawn in place of bands.

    Example:
        >>> figure = constants_against_figure({"uniform": (np.array([100, 1000]), np.array([[0.1, 0.2], [0.3, 0.2]]))})
        >>> figure.axes[0].lines[0].get_ydata().tolist()
        [0.2, 0.2]
    """
    known = {
        name: (at, np.where(np.isfinite(values), np.maximum(values, _LEAST), np.nan))
        for name, (at, values) in curves.items()
    }
    means = {name: (at, values.mean(0)) for name, (at, values) in known.items()}
    bands = {}
    crowded = len(curves) > _CURVES_WITH_BANDS  # bands of many curves hide one another: the largest of all says more
    for name, (_, values) in known.items():
        if len(values) > 1 and not crowded:
            mean, spread = values.mean(0), values.std(0, ddof=1)
            bands[name] = np.maximum(mean - spread, values.min(0)), mean + spread  # on a logarithmic axis zero is far
    reading = (
        "Below the dashed line, the constant of PSI is less than 1."
        + " Bands are a standard deviation wide, down to the lowest run." * bool(bands)
        + " Lines are means over runs. The dotted line is the largest of all runs." * crowded
    )
    figure = lines_figure(
        means, x=x, y="c*, smallest constant of PSI", log_x=True, log_y=True, bands=bands, reading=reading, dark=dark
    )
    axes = figure.axes[0]
    axes.axhline(1.0, color=PALETTE[dark].muted, linestyle="--", linewidth=1.2)
    if crowded:
        places = sorted({float(place) for at, _ in known.values() for place in at})
        largest = [max(values[:, at == place].max(initial=_LEAST) for at, values in known.values()) for place in places]
        axes.plot(places, largest, color=PALETTE[dark].ink, linestyle=":", linewidth=1.4)
    return figure


def _plain_decades(axes: Axes, low: float, high: float) -> None:
    """Plain numbers along a logarithmic axis: whole decades, and more where there is room."""
    steps = (1, 2, 5) if high / low < 200 else (1,)
    ticks = [step * 10.0**power for power in range(-12, 13) for step in steps]
    axes.set_xticks([tick for tick in ticks if low <= tick <= high])
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
