"""Figures of edited models: maps of the disentanglement error, accuracy by coefficient, tasks on a circle, local energy."""

# A coefficients along a side · T tasks · c classes · n points

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from biascope.results.draw import PALETTE, blank, colour_bar, heat, legend_below, line_colours, panel, plain
from biascope.results.estimate import Estimate
from biascope.results.figures import lines_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BOX = "#d0021b"  # the search box: red, as in the paper
_TOP = 1.0  # ξ from where on colours do not change; what matters lies far below


def map_figure(
    maps: Mapping[str, np.ndarray],
    alphas: np.ndarray,
    names: tuple[str, str],
    *,
    threshold: float | None = None,
    box: tuple[float, float] = (0.0, 1.0),
    unit: str = "disentanglement error ξ",
    dark: bool = False,
) -> Figure:
    """The disentanglement error over the coefficients of two task vectors, a panel for each editing method.

    Args:
        maps: ``(A, A)`` by the method's name; rows are the first task's coefficient.
        alphas: The coefficients along a side, equidistant.
        names: Names of the two tasks.
        threshold: Error that a line is drawn at, if any.
        box: Coefficients among which merging tools search: the red square.
        unit: What the maps show.
        dark: Whether the background is dark.

    Returns:
        The figure.
    """
    across = 2 if len(maps) == 4 else min(3, len(maps))
    down = math.ceil(len(maps) / across)
    line = "" if threshold is None else f" The line is at {threshold:g}."
    reading = (
        f"Colours near the background mean small values.{line} Merging tools search coefficients in the red square."
    )
    figure = blank(0.9 + down * (0.5 + 3.1 / across), reading)
    grid = figure.add_gridspec(down, across)
    step = float(alphas[1] - alphas[0]) if len(alphas) > 1 else 1.0
    first, last = float(alphas[0]) - step / 2, float(alphas[-1]) + step / 2
    panels: list[Axes] = []
    for place, (name, values) in enumerate(maps.items()):
        axes = panel(figure, dark, grid[divmod(place, across)])
        shown = heat(axes, values.T, dark, (0.0, _TOP), origin="lower", extent=(first, last, first, last))
        if threshold is not None and min(values.shape) > 1 and values.min() < threshold < values.max():
            style: dict[str, Any] = {"colors": PALETTE[dark].ink, "linewidths": 0.8}
            axes.contour(alphas, alphas, values.T, levels=[threshold], **style)
        low, high = box
        axes.plot([low, high, high, low, low], [low, low, high, high, low], color=_BOX, linewidth=1.2)
        axes.set_title(plain(name), fontsize=10, color=PALETTE[dark].ink, pad=4)
        axes.set(xlim=(first, last), ylim=(first, last), xlabel=f"α, {plain(names[0], 14)}")
        whole = math.floor(alphas[-1] * 2 / 3) or alphas[-1]
        axes.set(xticks=[-whole, 0, whole], yticks=[-whole, 0, whole])
        if place % across:
            axes.tick_params(labelleft=False)
        else:
            axes.set(ylabel=f"α, {plain(names[1], 14)}")
        panels.append(axes)
    above = any(float(values.max()) > _TOP for values in maps.values())
    bar = colour_bar(
        shown, panels, dark, 5, location="bottom", extend="max" if above else "neither", aspect=30, shrink=0.7
    )
    bar.spines["outline"].set(visible=True, color=PALETTE[dark].muted, linewidth=0.5)  # the lowest is as paper
    bar.set_xlabel(plain(unit, 60), fontsize=9, color=PALETTE[dark].ink)
    return figure


def coefficient_figure(
    curves: Mapping[str, np.ndarray],
    alphas: np.ndarray,
    chosen: Mapping[str, float],
    *,
    dashed: Mapping[str, np.ndarray] | None = None,
    y: str = "accuracy, %",
    reading: str = "",
    dark: bool = False,
) -> Figure:
    """Accuracy by coefficient, with the chosen coefficient marked.

    Args:
        curves: Percentages ``(A,)`` by name.
        alphas: The coefficients.
        chosen: The coefficient chosen, by the curve's name.
        dashed: Other percentages, by the name of the curve that they belong to.
        y: What the percentages are.
        reading: A sentence on how to read it.
        dark: Whether the background is dark.

    Returns:
        The figure.
    """
    words = reading or "Accuracy on validation samples, averaged over tasks; a ring marks the chosen coefficient."
    figure = lines_figure(
        {name: (alphas, curve) for name, curve in curves.items()},
        x="coefficient α of the task vectors",
        y=y,
        reading=words,
        dark=dark,
    )
    for (name, curve), colour in zip(curves.items(), line_colours(len(curves), dark), strict=True):
        if dashed and name in dashed:
            figure.axes[0].plot(alphas, dashed[name], color=colour, linewidth=1.4, linestyle=(0, (4, 2)))
        if name in chosen:
            height = float(np.interp(chosen[name], alphas, curve))
            figure.axes[0].plot([chosen[name]], [height], "o", markersize=9, markerfacecolor="none", color=colour)
    return figure


def coefficient_panels(
    groups: Mapping[str, Mapping[str, np.ndarray]],
    alphas: np.ndarray,
    chosen: Mapping[str, Mapping[str, float]],
    *,
    y: str = "accuracy, %",
    reading: str = "",
    dark: bool = False,
) -> Figure:
    """Accuracy by coefficient, a panel for each encoder and a line for each editing method.

    Args:
        groups: Percentages ``(A,)`` by the name of the encoder, then of the method.
        alphas: The coefficients.
        chosen: The coefficient chosen, likewise.
        y: What the percentages are.
        reading: A sentence on how to read it.
        dark: Whether the background is dark.

    Returns:
        The figure.
    """
    figure = blank(3.4, reading or "A ring marks the chosen coefficient.")
    grid = figure.add_gridspec(1, len(groups))
    ways = list(dict.fromkeys(way for group in groups.values() for way in group))
    colours = dict(zip(ways, line_colours(len(ways), dark), strict=True))
    for place, (name, group) in enumerate(groups.items()):
        axes = panel(figure, dark, grid[0, place])
        for way, curve in group.items():
            axes.plot(alphas, curve, color=colours[way], linewidth=1.6, label=plain(way))
            at = chosen[name][way]
            ring = [float(np.interp(at, alphas, curve))]
            axes.plot([at], ring, "o", markersize=9, markerfacecolor="none", color=colours[way])
        axes.set_title(plain(name, 20), fontsize=10, color=PALETTE[dark].ink, pad=4)
        axes.set(ylim=(0, 100), xticks=[0, 0.5, 1], xlabel="coefficient α")
        if place:
            axes.tick_params(labelleft=False)
        else:
            axes.set(ylabel=plain(y, 60))
    legend_below(figure, figure.axes[0], dark)
    return figure


def radar_figure(values: Mapping[str, np.ndarray], tasks: Sequence[str], *, dark: bool = False) -> Figure:
    """Accuracies of several networks on tasks, each task a ray; fewer than three tasks as bars.

    Args:
        values: Percentages ``(T,)`` by the network's name.
        tasks: Their names.
        dark: Whether the background is dark.

    Returns:
        The figure.
    """
    if len(tasks) < 3:
        bars = {
            task: {name: Estimate(float(each[place])) for name, each in values.items()}
            for place, task in enumerate(tasks)
        }
        return accuracy_bars(bars, reading="Each group of bars is a task.", dark=dark)
    figure = blank(
        4.0 + 0.15 * max(0, len(values) - 3),
        "Each ray is a task, from 0 % in the centre to 100 % at the edge. Higher is better.",
    )
    colours = PALETTE[dark]
    axes: Any = figure.add_subplot(projection="polar", facecolor="none")
    angles = 2 * math.pi * np.arange(len(tasks) + 1) / len(tasks)
    for (name, each), colour in zip(values.items(), line_colours(len(values), dark), strict=True):
        closed = np.append(each, each[0])
        axes.plot(angles, closed, "o-", color=colour, markersize=3, linewidth=1.6, label=plain(name))
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    axes.set_xticks(angles[:-1], [plain(task, 14) for task in tasks])
    for label, angle in zip(axes.get_xticklabels(), angles, strict=False):
        side = math.sin(angle)  # names on the left end at the circle, those on the right begin there
        label.set_horizontalalignment("center" if abs(side) < 0.1 else "left" if side > 0 else "right")
    axes.set_rlabel_position(180 / len(tasks))
    axes.set_yticks([25, 50, 75, 100], ["25", "50", "75", "100 %"])
    axes.set(ylim=(0, 100))
    axes.tick_params(labelcolor=colours.ink, labelsize=9)
    axes.tick_params(axis="y", labelcolor=colours.muted, labelsize=8)
    axes.grid(color=colours.muted, alpha=0.3, linewidth=0.6)
    axes.spines["polar"].set(color=colours.muted, linewidth=0.8)
    legend_below(figure, axes, dark)
    return figure


def accuracy_bars(
    bars: Mapping[str, Mapping[str, Estimate]], *, y: str = "accuracy, %", reading: str = "", dark: bool = False
) -> Figure:
    """Percentages with 95 % intervals as bars: a group for each encoder, a colour for each editing method.

    Args:
        bars: By the name of the encoder, then of the editing method.
        y: What the percentages are.
        reading: A sentence on how to read it.
        dark: Whether the background is dark.

    Returns:
        The figure.
    """
    ways = list(dict.fromkeys(way for group in bars.values() for way in group))
    figure = blank(
        3.3 + 0.15 * max(0, len(ways) - 3),
        reading or "One bar for each editing method; the lines are 95 % confidence intervals.",
    )
    axes, width = panel(figure, dark), 0.8 / max(1, len(ways))
    for place, (way, colour) in enumerate(zip(ways, line_colours(len(ways), dark), strict=True)):
        there = [(at, group[way]) for at, group in enumerate(bars.values()) if way in group]
        at = np.array([position for position, _ in there]) + (place - (len(ways) - 1) / 2) * width
        axes.bar(at, [each.value for _, each in there], 0.9 * width, color=colour, label=plain(way))
        for position, (_, each) in zip(at, there, strict=True):
            if math.isfinite(each.low):
                axes.plot([position, position], [each.low, each.high], color=PALETTE[dark].ink, linewidth=1.2)
    axes.set_xticks(range(len(bars)), [plain(name, 18) for name in bars])
    axes.set(ylim=(0, None), ylabel=plain(y, 60))
    legend_below(figure, axes, dark)
    return figure


def local_energy_figure(
    energies: Mapping[str, np.ndarray], inside: int, names: tuple[str, str], *, dark: bool = False
) -> Figure:
    """Local energy of eigenfunctions at the points of a task, then at those of a control task.

    Args:
        energies: ``(c, n)``, a row for every class, by the name of the weights.
        inside: How many of the points, the first ones, belong to the task.
        names: Names of the task and of the control task.
        dark: Whether the background is dark.

    Returns:
        The figure, a panel for each set of weights.
    """
    reading = "Each point is a sample, averaged over classes; the lines are means. Localised eigenfunctions are high on the left."
    figure, colours = blank(0.5 + 1.9 * len(energies), reading), PALETTE[dark]
    grid = figure.add_gridspec(len(energies), 1)
    top = max(float(each.mean(0).max()) for each in energies.values())
    for place, (name, each) in enumerate(energies.items()):
        axes, mean = panel(figure, dark, grid[place]), each.mean(0)
        at = np.arange(1, len(mean) + 1)
        for part, colour, word in (
            (slice(0, inside), colours.lines[0], names[0]),
            (slice(inside, None), colours.lines[1], names[1]),
        ):
            axes.plot(at[part], mean[part], ".", color=colour, markersize=3, alpha=0.7)
            axes.hlines(mean[part].mean(), at[part][0], at[part][-1], color=colour, linewidth=1.8, label=plain(word))
        axes.axvline(inside + 0.5, color=colours.muted, linewidth=0.8, linestyle=":")
        axes.set_title(plain(name), fontsize=10, color=colours.ink, pad=4)
        axes.set(ylim=(0, 1.05 * top or 1.0), ylabel="local energy")
        axes.set(xlabel="sample" if place + 1 == len(energies) else "")
    legend_below(figure, figure.axes[0], dark)
    return figure
