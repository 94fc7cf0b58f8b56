"""SHOW: dictionaries of signals: atoms as images, energy above a threshold, spectra, and how well signals are reconstructed."""

# k atoms · h × w pixels · m signals · D draws

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from biascope.results.draw import PALETTE, blank, heat, legend_below, line_colours, panel, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROUNDING = 1e-13  # share of the largest eigenvalue below which those of a float64 kernel are rounding errors
_ACROSS = 6  # atoms in a row


def atoms_figure(atoms: Mapping[str, np.ndarray], *, dark: bool = False) -> Figure:
    """The first atoms of networks, a row of six for each network (two rows where there is one alone).

    Args:
        atoms: ``(k, h, w)`` by the network's name, ``(k, w)`` for signals in time; of more axes the middle is shown.
        dark: Whether the background is.

    Returns:
        The figure.

    Raises:
        ValueError: If there are no atoms.
    """
    if not atoms or not min(len(each) for each in atoms.values()):
        raise ValueError("atoms must hold at least one of each network to draw, got none. Measure a dictionary first.")
    shown = range(1, (2 if len(atoms) == 1 else 1) * _ACROSS + 1)
    rows = [
        (name, [number for number in shown[start : start + _ACROSS] if number <= len(each)], each)
        for name, each in atoms.items()
        for start in range(0, min(len(shown), len(each)), _ACROSS)
    ]
    reading = "Atoms by number, from the largest eigenvalue. Orange is positive, blue negative; the overall sign is arbitrary."
    figure = blank(0.2 + (0.86 if len(atoms) == 1 else 0.68) * len(rows), reading)
    grid = figure.add_gridspec(len(rows), _ACROSS)
    for row, (name, places, each) in enumerate(rows):
        for column, number in enumerate(places):
            axes = panel(figure, dark, grid[row, column])
            _draw_atom(axes, each[number - 1], dark)
            if row == 0 or len(atoms) == 1:
                axes.set_title(str(number), fontsize=9, color=PALETTE[dark].ink, pad=2)
            if column == 0 and len(atoms) > 1:
                axes.set_ylabel(plain(name, 12), fontsize=9, color=PALETTE[dark].ink)
    return figure


def energy_figure(
    thresholds: np.ndarray,
    energies: Mapping[str, np.ndarray],
    *,
    apart: Sequence[str] = (),
    dark: bool = False,
) -> Figure:
    """Energy of signals on eigenvalues above a threshold, for several networks.

    Args:
        thresholds: As shares of the largest eigenvalue, ``(T,)``.
        energies: Shares from 0 to 1, ``(D, m, T)``, by the network's name.
        apart: Names that are no stages of the others: dashed, in colours of their own.
        dark: Whether the background is.

    Returns:
        The figure: means with 95 % bands over signals and networks, from large eigenvalues on the left to small ones.
    """
    several = any(max(each.shape[:2]) > 1 for each in energies.values())
    words = "The closer a curve is to the upper left, the more energy lies on atoms that are learned first."
    curves = {name: (thresholds, 100 * each.mean((0, 1))) for name, each in energies.items()}
    bands = {name: 196 * _errors(each) for name, each in energies.items()}
    figure, axes = _curves(curves, bands, apart, words + " Bands are 95 % intervals." * several, dark)
    axes.set(xscale="log", ylim=(-2, 102), xlim=(1.5, float(thresholds.min())))
    axes.set(xlabel="threshold λ / largest eigenvalue", ylabel="energy above λ, %")
    return figure


def spectra_figure(eigenvalues: Mapping[str, np.ndarray], *, dark: bool = False) -> Figure:
    """Eigenvalues over the largest, both axes logarithmic.

    Args:
        eigenvalues: Falling, ``(D, n)``, by the network's name.
        dark: Whether the background is.

    Returns:
        The figure: geometric means over networks; what is lost in rounding errors is left out.
    """
    curves = {}
    for name, each in eigenvalues.items():
        level = np.exp(np.log(np.maximum(each, _ROUNDING)).mean(0))
        kept = np.unique(np.geomspace(1, len(level), 200).astype(int)) - 1  # evenly spread on a logarithmic axis
        kept = kept[level[kept] > 2 * _ROUNDING]
        curves[name] = (kept + 1, level[kept])
    reading = "A steep curve means that few atoms are learned quickly, a flat curve many."
    figure, axes = _curves(curves, {}, (), reading, dark)
    axes.set(xscale="log", yscale="log", xlabel="atom, by falling eigenvalue", ylabel="eigenvalue / largest")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    return figure


def psnr_figure(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    *,
    errors: Mapping[str, np.ndarray] | None = None,
    apart: Sequence[str] = (),
    y: str = "test PSNR, dB",
    log_x: bool = False,
    reading: str = "Means over signals.",
    dark: bool = False,
) -> Figure:
    """How well networks reconstruct signals, against the iterations of their training.

    Args:
        curves: Iterations and decibels by the network's name.
        errors: Standard errors, of which 95 % bands are drawn.
        apart: As in :func:`energy_figure`.
        y: What is drawn.
        log_x: Whether iterations are on a logarithmic scale.
        reading: A sentence on how to read the figure.
        dark: Whether the background is.

    Returns:
        The figure.
    """
    bands = {name: 1.96 * np.nan_to_num(each) for name, each in (errors or {}).items()}
    reading += " Bands are 95 % intervals." * bool(bands)
    figure, axes = _curves(curves, bands, apart, reading, dark, marker="o", markersize=2.5)
    axes.set(xlabel="iterations", ylabel=plain(y, 60), xscale="log" if log_x else "linear")
    return figure


def _draw_atom(axes: Axes, atom: np.ndarray, dark: bool) -> None:
    while atom.ndim > 2:  # of a volume, its middle
        atom = atom[len(atom) // 2]
    reach = float(np.abs(atom).max()) or 1.0
    if min(atom.shape) == 1 or atom.ndim == 1:
        axes.axhline(0, color=PALETTE[dark].muted, linewidth=0.6)
        axes.plot(atom.ravel() / reach, color=PALETTE[dark].lines[0], linewidth=1)
        axes.set(ylim=(-1.1, 1.1))
    else:
        heat(axes, atom, dark, (-reach, reach))
    axes.set(xticks=[], yticks=[])


def _errors(energy: np.ndarray) -> np.ndarray:
    """Standard errors over networks and over signals together, ``(T,)``; an axis with one entry adds nothing."""
    parts = [energy.mean(1 - axis) for axis in (0, 1)]
    squares = [part.var(0, ddof=1) / len(part) for part in parts if len(part) > 1]
    return np.sqrt(sum(squares)) if squares else np.zeros(energy.shape[-1])


def _curves(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    bands: Mapping[str, np.ndarray],
    apart: Sequence[str],
    reading: str,
    dark: bool,
    **style: Any,
) -> tuple[Figure, Axes]:
    """Lines with their bands; stages of one thing share a scale of colours where there are many."""
    stages = [name for name in curves if name not in apart]
    others = [name for name in curves if name in apart]
    colour = dict(zip(stages, line_colours(len(stages), dark), strict=True))
    own = PALETTE[dark].lines[1:] if len(stages) > len(PALETTE[dark].lines) else PALETTE[dark].lines[len(stages) :]
    colour |= {name: own[place % len(own)] if own else PALETTE[dark].muted for place, name in enumerate(others)}
    across = max(1, 54 // (6 + max(len(plain(name)) for name in curves)))  # names side by side below
    figure = blank(2.9 + 0.19 * math.ceil(len(curves) / across) * (len(curves) > 1), reading)
    axes = panel(figure, dark)
    for name, (at, values) in curves.items():
        if name in bands:
            low, high = values - bands[name], values + bands[name]
            axes.fill_between(at, low, high, color=colour[name], alpha=0.2, linewidth=0)
        dashes = (0, (4, 2)) if name in apart else "-"
        axes.plot(at, values, color=colour[name], linestyle=dashes, linewidth=1.6, label=plain(name), **style)
    if len(curves) > 1:
        legend_below(figure, axes, dark)
    return figure, axes


def order_figure(
    names: Sequence[str],
    predicted: Mapping[str, np.ndarray],
    trained: Mapping[str, np.ndarray] | None = None,
    *,
    places: Sequence[str] | None = None,
    dark: bool = False,
) -> Figure:
    """Networks in their predicted order, the best on top, a dot for each number of points.

    Args:
        names: The networks, in this order.
        predicted: Decibels ``(a, D)`` by what they were predicted from; the first is filled.
        trained: Decibels ``(a,)`` by the training that gave them.
        places: Ranks in words, with ties; by default they count.
        dark: Whether the background is.

    Returns:
        The figure: means, with bars from the lowest to the highest draw.
    """
    ranks = places or [f"{place}" for place in range(1, len(names) + 1)]
    reading = "Dots are predictions of kernels. Bars range from the worst to the best of the drawn initial weights."
    reading += " Squares are results of training." * bool(trained)
    reading += " Networks marked = may rank first with other initial weights." * any("=" in each for each in ranks)
    figure = blank(1.3 + 0.24 * len(names), reading)
    axes, colours = panel(figure, dark), PALETTE[dark]
    for row, (label, each) in enumerate(predicted.items()):
        at = np.arange(len(names)) + 0.22 * (row - (len(predicted) - 1) / 2)
        level = each.mean(1)
        bars = [level - each.min(1), each.max(1) - level]
        style: dict[str, Any] = {
            "markersize": 4,
            "linewidth": 1.1,
            "markerfacecolor": "none" if row else colours.lines[0],
        }
        axes.errorbar(level, at, xerr=bars, fmt="o", color=colours.lines[row], label=plain(label, 40), **style)
    for label, each in (trained or {}).items():
        axes.plot(each, np.arange(len(names)), "s", markersize=4, color=colours.lines[2], label=plain(label, 40))
    axes.set_yticks(
        range(len(names)), [f"{plain(name, 24)}  {place}" for place, name in zip(ranks, names, strict=True)]
    )
    axes.invert_yaxis()
    axes.set(xlabel="PSNR on held-out points, dB")
    legend_below(figure, axes, dark)
    return figure


def setting_figure(curves: Mapping[str, tuple[np.ndarray, np.ndarray]], *, dark: bool = False) -> Figure:
    """Predicted PSNR against the one number that networks of a kind differ in, a panel for each kind.

    Args:
        curves: That number ``(a,)`` and decibels ``(a, D)``, by the name of its axis.
        dark: Whether the background is.

    Returns:
        The figure, with bands from the lowest to the highest draw.
    """
    figure = blank(
        2.4, "The best number lies where the curve is highest. Bands range from the worst to the best initial weights."
    )
    grid = figure.add_gridspec(1, len(curves))
    first = None
    for place, (label, (at, values)) in enumerate(curves.items()):
        axes = panel(figure, dark, grid[place], sharey=first)
        first = first or axes
        colour, level = PALETTE[dark].lines[place % len(PALETTE[dark].lines)], values.mean(1)
        axes.fill_between(at, values.min(1), values.max(1), color=colour, alpha=0.2, linewidth=0)
        axes.plot(at, level, color=colour, marker="o", markersize=3, linewidth=1.6)
        axes.set(xscale="log", xlabel=plain(label), ylabel="" if place else "predicted PSNR, dB")
        axes.set_xticks(at[[0, len(at) // 2, -1]], [f"{at[each]:g}" for each in (0, len(at) // 2, -1)])
        axes.set_xticks([], minor=True)
        axes.tick_params(labelleft=not place)
    return figure


def agreement_figure(
    predicted: np.ndarray, trained: np.ndarray, iterations: Sequence[int], *, dark: bool = False
) -> Figure:
    """Predicted PSNR of each network against its PSNR after training, ``(K, a)`` each, for several iterations."""
    figure = blank(
        3.0, "One dot for each network. If the dots of a colour rise, the predicted order matches that of training."
    )
    axes = panel(figure, dark)
    for step, said, row, colour in zip(
        iterations, predicted, trained, line_colours(len(iterations), dark), strict=True
    ):
        axes.plot(said, row, "o", markersize=4, color=colour, label=f"{step} iterations")
    axes.set(xlabel="predicted PSNR, dB", ylabel="trained PSNR, dB")
    legend_below(figure, axes, dark)
    return figure


def between_figure(
    spectra: Mapping[str, tuple[np.ndarray, np.ndarray]], nyquist: float, *, dark: bool = False
) -> Figure:
    """Energy of the kernels' interpolation between samples, against frequency in cycles over the longest side."""
    reading = "The dotted line is the Nyquist frequency of the samples. Energy to its right is invented."
    floor = {name: (at[1:], np.maximum(energy[1:], 1e-8)) for name, (at, energy) in spectra.items()}
    figure, axes = _curves(floor, {}, (), reading, dark)
    axes.axvline(nyquist, color=PALETTE[dark].muted, linestyle=":", linewidth=1.2)
    axes.set(yscale="log", xlabel="frequency, cycles over the longest side", ylabel="share of the energy")
    return figure
