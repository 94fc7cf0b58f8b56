"""SHOW: patches with bars above them, numbers against label statistics, and responses of channels to patches."""

# P patches · C×h×w numbers of a patch · K channels

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from biascope.results.draw import PALETTE, blank, heat, legend_below, panel, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACROSS, _SHOWN = 16, 64  # patches in a row, and in one picture


def patches_figure(
    pixels: np.ndarray,
    bars: Mapping[str, np.ndarray],
    dots: Mapping[str, np.ndarray] | None = None,
    *,
    order: Sequence[int],
    along: str,
    value: str,
    reading: str,
    names: Sequence[str] | None = None,
    dark: bool = False,
) -> Figure:
    """Patches side by side, in rows of 16, with bars and dots over them on one scale.

    Args:
        pixels: ``(P, C, h, w)``; three channels are shown as colours, from the smallest number of all to the largest.
        bars: ``(P,)`` by name, each in its own colour; negative ones point down.
        dots: ``(P,)`` by name.
        order: The patches from left to right; of more than 64, the 64 with the tallest bars keep their order.
        along: What the order is.
        value: What the numbers are.
        reading: A sentence on how to read the figure.
        names: Of the patches, written below them where they are short.
        dark: Whether the background is.

    Returns:
        The figure.

    Example:
        >>> words = {"along": "place", "value": "number", "reading": "A bar is a number."}
        >>> figure = patches_figure(np.eye(4).reshape(4, 1, 2, 2), {"number": np.arange(4)}, order=range(4), **words)
        >>> [int(bar.get_height()) for bar in figure.axes[0].patches]
        [0, 1, 2, 3]
    """
    dots = dots or {}
    tall = np.sum([np.abs(each) for each in bars.values()], 0)
    kept = set(np.argsort(-tall, kind="stable")[:_SHOWN].tolist())
    shown = [place for place in order if place in kept]
    across = min(_ACROSS, len(shown))
    rows = [shown[start : start + across] for start in range(0, len(shown), across)]
    strip = min(max(3.4 / across * pixels.shape[2] / pixels.shape[3], 0.12), 0.9)  # inches: patches keep their shape
    figure, colours = blank(0.9 + len(rows) * (1.15 + strip), reading), PALETTE[dark]
    grid = figure.add_gridspec(2 * len(rows), 1, height_ratios=[1.0, strip] * len(rows))
    first: Axes | None = None
    for row, places in enumerate(rows):
        above, below = panel(figure, dark, grid[2 * row], sharey=first), panel(figure, dark, grid[2 * row + 1])
        first = first or above
        for (name, values), colour in zip(bars.items(), colours.lines, strict=False):
            above.bar(range(len(places)), values[places], 0.8, color=colour, label=plain(name))
        for name, values in dots.items():
            above.plot(range(len(places)), values[places], "D", color=colours.ink, markersize=3.5, label=plain(name))
        above.axhline(0, color=colours.muted, linewidth=0.8)
        above.set(xlim=(-0.5, across - 0.5), xticks=[])
        _strip(below, pixels[places], (float(pixels[shown].min()), float(pixels[shown].max())), dark)
        below.set(xlim=(-0.5, across - 0.5), ylim=(0.0, 1.0), xticks=[], yticks=[])
        if names is not None and max(len(names[place]) for place in shown) <= 48 // across:
            below.set_xticks(range(len(places)), [plain(names[place]) for place in places])
            below.tick_params(length=0, labelsize=8)
        below.spines[:].set_visible(False)
    assert first is not None
    below.set(xlabel=plain(along, 60))
    figure.supylabel(plain(value, 40), fontsize=10, color=colours.ink)
    if len(bars) + len(dots) > 1:
        legend_below(figure, first, dark)
    return figure


def statistics_figure(
    statistics: np.ndarray,
    panels: Mapping[str, tuple[np.ndarray, np.ndarray | None, str]],
    *,
    reading: str,
    dark: bool = False,
) -> Figure:
    """Response of a network to each pattern, against the pattern's label statistic.

    Args:
        statistics: ``(P,)``.
        panels: ``(P,)`` values, their standard errors or ``None``, and a note, by name.
        reading: A sentence on how to read the figure.
        dark: Whether the background is.

    Returns:
        The figure, one panel below the other.
    """
    figure, colours = blank(0.5 + 2.2 * len(panels), reading), PALETTE[dark]
    grid = figure.add_gridspec(len(panels), 1)
    first: Axes | None = None
    for row, (name, (values, errors, note)) in enumerate(panels.items()):
        axes = panel(figure, dark, grid[row], sharex=first)
        first = first or axes
        for line in (axes.axhline, axes.axvline):
            line(0, color=colours.muted, linewidth=0.8, linestyle=":")
        style: dict[str, Any] = {"fmt": "o", "markersize": 4, "color": colours.lines[row], "elinewidth": 0.8}
        axes.errorbar(statistics, values, None if errors is None else 1.96 * np.nan_to_num(errors), **style)
        axes.set_title(plain(note, 60), fontsize=9, color=colours.ink, loc="left")
        axes.set(ylabel=plain(name, 40))
        last = row + 1 == len(panels)
        axes.tick_params(labelbottom=last)
        axes.set(xlabel="label statistic of the pattern" if last else "")
    return figure


def responses_figure(responses: np.ndarray, order: Sequence[int], *, dark: bool = False) -> Figure:
    """The response ``(K, P)`` of every channel to every pattern, each channel divided by its largest magnitude.

    Channels that answer most to the same pattern stand together.
    """
    relative = responses / np.maximum(np.abs(responses).max(1, keepdims=True), 1e-300)
    relative = relative[:, list(order)]
    relative = relative[np.argsort(relative.argmax(1), kind="stable")]
    reading = "Each row is a channel, each column a pattern in the order of the first picture. Orange is positive, blue negative."
    figure = blank(1.2 + min(3.5, max(1.0, 0.12 * len(relative))), reading)
    axes = panel(figure, dark)
    heat(axes, relative, dark, (-1.0, 1.0), bar=3, aspect="auto")
    axes.set(xlabel="pattern", ylabel="channel, sorted", xticks=[], yticks=[])
    return figure


def _strip(axes: Axes, pixels: np.ndarray, limits: tuple[float, float], dark: bool) -> None:
    """Patches side by side, each one unit wide, with a tenth of it left open."""
    (low, high), reach = limits, max(map(abs, limits)) or 1.0
    for place, patch in enumerate(pixels):
        style: dict[str, Any] = {"extent": (place - 0.45, place + 0.45, 0.0, 1.0), "aspect": "auto"}
        if len(patch) == 3:
            colours = np.moveaxis((patch - low) / ((high - low) or 1.0), 0, -1)
            axes.imshow(colours, interpolation="none", **style)
        else:
            heat(axes, patch.mean(0), dark, (-reach, reach), **style)
