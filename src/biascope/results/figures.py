"""SHOW: a number for every frequency of an image, numbers along ordered directions, and lines with their bands.

Frequencies (k, l) are whole cycles per image, down and across, on the fft-shifted plane: (0, 0) lies at (h//2, w//2).
"""

# n measured directions · h × w pixels · D input size

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from biascope.results.draw import PALETTE, blank, colour_bar, heat, legend_below, line_colours, panel, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

    from biascope.results.result import Plane

Bands = Mapping[str, np.ndarray | tuple[np.ndarray, np.ndarray]]  # standard errors, or lower and upper ends
MARK = "frequency plane"  # marks a picture of planes: a report shows its live plane instead
_ORDINAL = {2: "nd", 3: "rd"}


def completed(labels: Sequence[tuple[Any, ...]], values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Values on a real Fourier basis, completed to the full symmetric plane of frequencies.

    The cosine (``Re``) and the sine (``Im``) of (k, l) and of (−k, −l) span the same two directions, so a value belongs
    to both places; where several are known, there is their mean.

    Args:
        labels: ``("Re" or "Im", k, l)`` of each value, as in :func:`biascope.tasks.bases.fourier`; a channel may stand in front.
        values: ``(n,)``; nan if unknown.
        shape: Height and width of the image.

    Returns:
        ``(h, w)``, fft-shifted; nan where nothing is known.

    Raises:
        ValueError: If there are not as many values as labels.

    Example:
        >>> completed([("Re", 0, 0), ("Re", 0, 1), ("Im", 0, 1)], np.array([9.0, 1.0, 3.0]), (1, 4))
        array([[nan,  2.,  9.,  2.]])
    """
    values = np.asarray(values, np.float64)
    if len(labels) != len(values):
        raise ValueError(
            f"values must be as many as labels, got {len(values)} for {len(labels)} labels. Pass one value per direction."
        )
    sums, counts = np.zeros(shape), np.zeros(shape)
    places = np.array([label[-2:] for label in labels], int).reshape(-1, 2)[np.isfinite(values)]
    for sign in (1, -1):
        at = tuple(((sign * places + np.array(shape) // 2) % shape).T)
        np.add.at(sums, at, values[np.isfinite(values)])
        np.add.at(counts, at, 1)
    counts[counts == 0] = np.nan
    return sums / counts


def lattice(known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows and columns of frequencies on which a plane ``(h, w)`` is known: all, or every s-th if the rest is empty.

    Example:
        >>> known = np.zeros((4, 6), bool)
        >>> known[::2, 1::2] = True
        >>> [part.tolist() for part in lattice(known)]
        [[-2, 0], [-2, 0, 2]]
    """
    every = [np.arange(length) - length // 2 for length in known.shape]
    strides = [int(np.gcd.reduce(axis[known.any(1 - place)])) or 1 for place, axis in enumerate(every)]
    rows, columns = (axis[axis % stride == 0] for axis, stride in zip(every, strides, strict=True))
    # A few scattered frequencies are no lattice, though they may have a common divisor.
    return (rows, columns) if 8 * known.sum() >= len(rows) * len(columns) else (every[0], every[1])


def shared_limits(planes: Iterable[Plane]) -> dict[str, tuple[float, float]]:
    """One scale for all planes of a unit.

    Example:
        >>> from biascope.results.result import Plane
        >>> shared_limits([Plane(np.array([[50.0, 90.0]]), "%"), Plane(np.array([[40.0, 60.0]]), "%")])
        {'%': (40.0, 90.0)}
    """
    result: dict[str, tuple[float, float]] = {}
    for plane in planes:
        low, high = plane.limits
        if plane.unit in result:
            low, high = min(low, result[plane.unit][0]), max(high, result[plane.unit][1])
        result[plane.unit] = (-max(-low, high), max(-low, high)) if low < 0 < high else (low, high)
    return result


def ticks(length: int) -> list[int]:
    """A few frequencies to name along an axis, zero among them.

    Example:
        >>> ticks(32), ticks(5)
        ([-16, -8, 0, 8], [-2, -1, 0, 1, 2])
    """
    step = max(1, length // 4)
    return [place for place in range(-(length // 2), length - length // 2) if place % step == 0]


def plane_figure(planes: Mapping[str, Plane], *, dark: bool = False) -> Figure:
    """Planes of frequencies by name, of one network or of several, each a panel; those of one unit share their colours.

    Where every s-th frequency is known, its cell is s × s wide; where nothing is known, the plane is hatched.

    Args:
        planes: At least one, all of one shape.
        dark: Whether the background is.

    Returns:
        The figure, as wide as a phone.

    Raises:
        ValueError: If there are no planes.
    """
    if not planes:
        raise ValueError("planes must hold at least one plane to draw, got none. Measure one first.")
    height, width = next(iter(planes.values())).values.shape
    scales = shared_limits(planes.values())
    alone, one_scale = len(planes) == 1, len(scales) == 1
    across = 1 if alone else 2
    down = math.ceil(len(planes) / across)
    side = 3.0 if alone else 1.55  # inches
    tall = min(max(side * height / width, 0.6), 1.2 * side)
    bars = 0 if alone else 1 if one_scale else down
    figure = blank((0.5 if alone else 0.7) + down * (tall + 0.35) + 0.5 * bars, _reading(planes.values()))
    figure.set_gid(MARK)
    grid = figure.add_gridspec(down, across)
    panels = [panel(figure, dark, grid[divmod(place, across)]) for place in range(len(planes))]
    whole = " the image" if alone else ""
    for place, (axes, (name, plane)) in enumerate(zip(panels, planes.items(), strict=True)):
        shown = _draw_plane(axes, plane.values, scales[plane.unit], dark)
        small = not alone and len(name) > 20
        axes.set_title(plain(name), fontsize=8 if small else 10, color=PALETTE[dark].ink, pad=4)
        axes.set(ylabel="" if place % across else f"cycles down{whole}")
        axes.set(xlabel=f"cycles across{whole}" if place + across >= len(planes) else "")
        if not one_scale or place + 1 == len(planes):
            alike = [other.values for other in planes.values() if other.unit == plane.unit]
            ends = _pointed_ends(alike, scales[plane.unit])
            style: dict[str, Any] = {} if alone else {"location": "bottom"}  # beside them, it would take their room
            bar = colour_bar(shown, panels if one_scale else [axes], dark, 5 if one_scale else 3, extend=ends, **style)
            bar.spines["outline"].set(visible=True, color=PALETTE[dark].muted, linewidth=0.5)  # the lowest is as paper
            write: Any = bar.set_xlabel if not alone else bar.set_title if len(plane.unit) < 4 else bar.set_ylabel
            write(plain(plane.unit), fontsize=9, color=PALETTE[dark].ink)
    return figure


def against_index_figure(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray | None]],
    spectra: Mapping[str, np.ndarray] | None = None,
    *,
    unit: str = "test accuracy, %",
    index: str = "index of the direction",
    dark: bool = False,
) -> Figure:
    """Values along ordered directions, above their eigenvalues divided by the largest.

    Args:
        curves: Indices from 0, values and standard errors (None: unknown), each ``(n,)``, by the network's name.
        spectra: All eigenvalues ``(D,)``, the largest first, by the network's name.
        unit: What the values are.
        index: What the indices are.
        dark: Whether the background is.

    Returns:
        The figure: one panel, or two that share the axis of indices.
    """
    lines = {name: (at, values) for name, (at, values, _) in curves.items()}
    bands = {name: errors for name, (_, _, errors) in curves.items() if errors is not None}
    below = " The lower panel shows the eigenvalues that order them." if spectra else ""
    reading = f"One point for each measured direction.{below}{_on_bands(bands)}"
    if not spectra:
        return lines_figure(lines, x=index, y=unit, bands=bands, reading=reading, dark=dark)
    names = list(dict.fromkeys([*curves, *spectra]))
    colour = dict(zip(names, line_colours(len(names), dark), strict=True))
    figure = blank(4.4 + 0.15 * max(0, len(names) - 3), reading)
    grid = figure.add_gridspec(2, 1, height_ratios=(1.6, 1))
    above = panel(figure, dark, grid[0])
    under = panel(figure, dark, grid[1], sharex=above)
    _draw_lines(above, lines, bands, colour, log_y=False)
    for name, spectrum in spectra.items():
        share = np.asarray(spectrum, np.float64) / (float(np.max(spectrum)) or 1.0)
        share[share < 1e-9] = np.nan  # rounding errors of zero
        under.plot(np.arange(len(share)), share, color=colour[name], linewidth=1.6)
        if name not in curves:
            above.plot([], [], color=colour[name], label=plain(name))
    above.tick_params(labelbottom=False)
    above.set(ylabel=plain(unit, 60))
    under.set(yscale="log", xlabel=plain(index, 60), ylabel="eigenvalue / largest")
    figure.align_ylabels([above, under])
    if len(names) > 1:
        legend_below(figure, above, dark)
    return figure


def lines_figure(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    *,
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool = False,
    bands: Bands | None = None,
    reading: str = "",
    dark: bool = False,
) -> Figure:
    """Curves by name, with 95 % bands.

    Args:
        curves: Places and values, by name; a value that is nan leaves a gap.
        x: What the places are.
        y: What the values are.
        log_x: Whether the places are on a logarithmic scale.
        log_y: Whether the values are.
        bands: By the name of a curve, its standard errors, or a pair: the lower and the upper ends of its intervals.
        reading: A sentence on how to read the figure, in place of the usual one.
        dark: Whether the background is.

    Returns:
        The figure, with a legend if there are several curves.
    """
    bands = bands or {}
    figure = blank(3.1 + 0.15 * max(0, len(curves) - 3), reading or f"Lines connect measured values.{_on_bands(bands)}")
    axes = panel(figure, dark)
    _draw_lines(axes, curves, bands, dict(zip(curves, line_colours(len(curves), dark), strict=True)), log_y)
    axes.set(xlabel=plain(x, 60), ylabel=plain(y, 60), xscale="log" if log_x else "linear")
    if len(curves) > 1:
        legend_below(figure, axes, dark)
    return figure


def _draw_plane(axes: Axes, values: np.ndarray, limits: tuple[float, float], dark: bool) -> AxesImage:
    """A plane in cycles per image, hatched where it is not known."""
    from matplotlib.patches import Rectangle

    (height, width), image = values.shape, _cells(values)
    left, top = -(width // 2) - 0.5, -(height // 2) - 0.5
    style: dict[str, Any] = {"extent": (left, left + width, top + height, top)}
    shown = heat(axes, image, dark, limits, aspect="equal" if min(height, width) > 1 else "auto", **style)
    axes.set(xticks=ticks(width), yticks=ticks(height))
    if not np.isfinite(image).all():
        style = {"fill": False, "hatch": "////", "linewidth": 0, "edgecolor": (PALETTE[dark].muted, 0.5), "zorder": -1}
        axes.add_patch(Rectangle((left, top), width, height, **style))
    return shown


def _cells(values: np.ndarray) -> np.ndarray:
    """A plane whose every half pixel takes the value of the nearest known row and column.

    Half pixels, since one pixel may lie between two rows at equal distance.
    """
    inside = [known + length // 2 for known, length in zip(lattice(np.isfinite(values)), values.shape, strict=True)]
    if all(len(known) == length for known, length in zip(inside, values.shape, strict=True)):
        return values
    halves = [(np.arange(2 * length) - 0.5) / 2 for length in values.shape]
    nearest = [known[abs(at[:, None] - known).argmin(1)] for at, known in zip(halves, inside, strict=True)]
    return values[np.ix_(*nearest)]


def _reading(planes: Iterable[Plane]) -> str:
    words = "Each cell is a wave, with the lowest frequency in the middle. Opposite cells are the same wave."
    strides: set[int] = set()
    gaps = False
    for plane in planes:
        strides |= {int(np.diff(known).max(initial=1)) for known in lattice(np.isfinite(plane.values))}
        gaps |= not np.isfinite(_cells(plane.values)).all()
    if strides - {1}:
        nth = " or ".join(f"{stride}{_ORDINAL.get(stride, 'th')}" for stride in sorted(strides - {1}))
        words += " In some planes, only every" if 1 in strides else " Only every"
        words += f" {nth} frequency was measured; its colour fills the cells around it."
    return words + " Hatched cells were not measured." * gaps


def _pointed_ends(planes: Sequence[np.ndarray], limits: tuple[float, float]) -> str:
    """Which ends of a colour bar have values beyond them."""
    beyond = (
        any((values < limits[0]).any() for values in planes),
        any((values > limits[1]).any() for values in planes),
    )
    return {(True, True): "both", (True, False): "min", (False, True): "max"}.get(beyond, "neither")


def _draw_lines(
    axes: Axes,
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    bands: Bands,
    colour: Mapping[str, Any],
    log_y: bool,
) -> None:
    for name, parts in curves.items():
        at, values = (np.asarray(part, np.float64) for part in parts)
        if name in bands:
            band = bands[name]
            error = 1.96 * np.nan_to_num(np.asarray(band, np.float64)) if not isinstance(band, tuple) else 0.0
            low, high = band if isinstance(band, tuple) else (values - error, values + error)
            low = np.maximum(low, values / 1e3) if log_y else low
            axes.fill_between(at, low, high, color=colour[name], alpha=0.22, linewidth=0)
        style: dict[str, Any] = {"marker": "o", "markersize": 3} if len(at) <= 60 else {}
        axes.plot(at, values, color=colour[name], linewidth=1.6, label=plain(name), **style)
    if log_y:
        axes.set(yscale="log")


def _on_bands(bands: Bands) -> str:
    return " Bands are 95 % intervals." if bands else ""
