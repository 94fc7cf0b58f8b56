"""SHOW: decision boundaries in the plane of two input directions, and curves in several panels that share their axes."""

# m networks · g points of the grid along each direction · n samples

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from biascope.results.draw import PALETTE, blank, legend_below, line_colours, panel, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DOTS = 300  # samples of one panel that are shown
_COLUMNS = 2  # panels side by side


class Boundary(NamedTuple):
    """What networks make of a plane ``x = a·u₁ + b·u₂``.

    Attributes:
        values: ``(m, g, g)``: f of every network, positive for class 1; b runs along the rows, a along the columns.
        places: ``(g,)``: a and b, rising.
        samples: ``(n, 2)``: coordinates of samples in the plane.
        labels: ``(n,)``: their classes, 0 or 1.
        note: A few words below the name, the accuracy, say.
    """

    values: np.ndarray
    places: np.ndarray
    samples: np.ndarray
    labels: np.ndarray
    note: str = ""


def boundaries_figure(boundaries: Mapping[str, Boundary], *, dark: bool = False) -> Figure:
    """The lines f = 0 of several networks in a plane, over samples of both classes; one panel by name.

    A network that gives all of the plane to one class has no line.

    Example:
        >>> grid = np.linspace(-2, 2, 41)
        >>> circle = grid[None, :, None] ** 2 + grid[None, None, :] ** 2 - 1
        >>> figure = boundaries_figure({"a": Boundary(circle, grid, np.array([[0.0, 0.5]]), np.array([0]))})
        >>> path = figure.axes[0].collections[0].get_paths()[0]
        >>> bool(np.allclose(np.hypot(*path.vertices.T), 1, atol=0.01))
        True
    """
    reading = (
        "Green lines are decision boundaries in the plane, one for each network; dots are samples, blue of class 0 and "
        "orange of class 1. A network without a line gives the whole plane to one class."
    )
    columns = min(_COLUMNS, len(boundaries))
    rows = math.ceil(len(boundaries) / columns)
    figure, colours = blank(0.35 + rows * (0.55 + 3.7 / columns), reading), PALETTE[dark]
    grid = figure.add_gridspec(rows, columns)
    for position, (name, boundary) in enumerate(boundaries.items()):
        row, column = divmod(position, columns)
        view, places = panel(figure, dark, grid[row, column], aspect="equal"), boundary.places
        for network in boundary.values:
            # Without a change of sign there is no line, and matplotlib would warn.
            if network.min() < 0 < network.max():
                style: dict[str, Any] = {"colors": [colours.lines[2]], "linewidths": 1.5, "zorder": 3}
                view.contour(places, places, network, levels=[0.0], **style)
        for label in (0, 1):
            dots = boundary.samples[:_DOTS][boundary.labels[:_DOTS] == label]
            view.scatter(dots[:, 0], dots[:, 1], s=5, color=colours.lines[label], alpha=0.55, linewidths=0)
        title = plain(name, 40) + (f"\n{plain(boundary.note, 40)}" if boundary.note else "")
        view.set_title(title, fontsize=9.5, color=colours.ink, pad=4)
        edges = (float(places[0]), float(places[-1]))
        view.set(xlim=edges, ylim=edges)
        view.set(xlabel="u₁" if row == rows - 1 else "", ylabel="" if column else "u₂")
    return figure


def panels_figure(
    panels: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]], *, x: str, y: str, dark: bool = False
) -> Figure:
    """Curves by name in a panel for each network, say; panels share both axes, and curves of one name their colour.

    Args:
        panels: Places and values, ``(n,)`` each, by the names of panel and curve.
        x: What the places are; on a logarithmic scale.
        y: What the values are.
        dark: Whether the background is.

    Example:
        >>> line = (np.array([1.0, 10.0]), np.array([90.0, 50.0]))
        >>> figure = panels_figure({"one": {"a": line}, "two": {"a": line, "b": line}}, x="index", y="accuracy, %")
        >>> [len(axes.lines) for axes in figure.axes], len(figure.legends[0].get_texts())
        ([2, 2], 2)
    """
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    colour = dict(zip(names, line_colours(len(names), dark), strict=True))
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = blank(0.7 + 2.1 * rows, "Panels share their axes; lines join what was measured.")
    grid = figure.add_gridspec(rows, columns)
    first, nothing = None, (np.empty(0), np.empty(0))
    for position, (name, curves) in enumerate(panels.items()):
        row, column = divmod(position, columns)
        view = panel(figure, dark, grid[row, column], sharex=first, sharey=first)
        missing = () if first else [name for name in names if name not in curves]
        first = first or view  # its legend names the curves of all panels
        for label, (places, values) in {**dict.fromkeys(missing, nothing), **curves}.items():
            view.plot(places, values, "o-", color=colour[label], markersize=3, linewidth=1.5, label=plain(label))
        view.set_title(plain(name), fontsize=10, color=PALETTE[dark].ink, pad=3)
        below = position + columns >= len(panels)
        view.set(xscale="log", xlabel=plain(x, 40) if below else "")
        view.set(ylabel="" if column else plain(y, 40))
        view.tick_params(labelbottom=below, labelleft=not column)
    if len(names) > 1:
        legend_below(figure, figure.axes[0], dark)
    return figure
