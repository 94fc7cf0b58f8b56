"""SHOW: the spectrum of a kernel on samples, a target on it, and the samples at the ends of its eigenfunctions."""

# m draws · k eigenfunctions · n samples · e samples at the two ends of an eigenfunction · C channels · h × w pixels

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from biascope.measures.tangent_kernel.classes import ClassShare
from biascope.results import draw
from biascope.results.draw import PALETTE, WIDTH, blank, legend_below, line_colours, panel, plain
from biascope.results.estimate import Estimate
from biascope.results.wording import percent, significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_END, _SHOWN = 4, 6  # samples at each end of an eigenfunction, and eigenfunctions whose samples are shown
_PIXELS = 32  # most pixels along a side of a thumbnail
_BINS = 40  # of a histogram
_CLASSES = 32  # most classes that are drawn


def ends(functions: np.ndarray) -> np.ndarray:
    """Positions of the samples at the two ends of each function, ``(k, n)`` to ``(k, e)``, by increasing value.

    Example:
        >>> ends(np.array([[0.3, -1.0, 2.0, 0.0]])).tolist()
        [[1, 3, 0, 2]]
    """
    order, count = np.argsort(functions, axis=1, kind="stable"), min(_END, functions.shape[1] // 2)
    return np.concatenate([order[:, :count], order[:, order.shape[1] - count :]], axis=1)


def thumbnails(inputs: np.ndarray, functions: np.ndarray) -> np.ndarray:
    """Small images of the samples at the two ends of the first few functions.

    A channel runs from its least to its largest value over all samples, so that standardised images look as before.

    Args:
        inputs: ``(n, C, h, w)``.
        functions: ``(k, n)``.

    Returns:
        Bytes ``(k, e, C, h, w)``, averaged over blocks to at most 32 pixels along a side; empty where inputs are no images
        of one or three channels.

    Example:
        >>> images = np.arange(4.0).reshape(4, 1, 1, 1) * np.ones((1, 1, 2, 2))
        >>> thumbnails(images, np.array([[0.3, -1.0, 2.0, 0.0]]))[0, :, 0, 0, 0].tolist()
        [85, 255, 0, 170]
    """
    if inputs.ndim != 4 or inputs.shape[1] not in (1, 3) or not functions.size:
        return np.zeros((0, 0, 0, 0, 0), np.uint8)
    low, high = (edge(inputs, (0, 2, 3))[:, None, None] for edge in (np.min, np.max))
    shown = inputs[ends(functions[:_SHOWN])].astype(np.float64)
    scaled = 255 * (shown - low) / np.where(high > low, high - low, 1)
    block = math.ceil(max(inputs.shape[2:]) / _PIXELS)
    for axis in (3, 4):
        edges = np.arange(0, scaled.shape[axis], block)
        counts = np.diff(edges, append=scaled.shape[axis]).reshape([-1 if place == axis else 1 for place in range(5)])
        scaled = np.add.reduceat(scaled, edges, axis) / counts
    return np.asarray(np.rint(scaled), np.uint8)


def energy_figure(
    energies: Mapping[str, np.ndarray],
    samples: int,
    *,
    parts: Mapping[str, np.ndarray] | None = None,
    dark: bool = False,
) -> Figure:
    """How much of each target the first K eigenfunctions hold, against K, beside a random target's K/n.

    Args:
        energies: Cumulative shares from 0 to 1, ``(m, k)``, by the target's name.
        samples: n.
        parts: The same of targets that those are made of, as thin lines, named where they end.
        dark: Whether the background is.

    Returns:
        The figure: means over the draws, with bands of two standard errors where there are several.
    """
    reading = "Further above the dotted line, more of the target lies on functions that the kernel learns first."
    several = any(len(values) > 1 for values in energies.values())
    figure = blank(3.1, reading + " Bands are two standard errors to each side." * several)
    axes, colours, length = panel(figure, dark), PALETTE[dark], next(iter(energies.values())).shape[1]
    means = {name: 100 * values.mean(0) for name, values in (parts or {}).items()}
    for values in means.values():
        axes.plot(np.arange(1, length + 1), values, color=colours.muted, linewidth=0.8)
    for (name, values), colour in zip(energies.items(), line_colours(len(energies), dark), strict=True):
        _draw_means(axes, 100 * values, colour, plain(name, 40))
    at = np.arange(1, length + 1)
    style: dict[str, Any] = {"color": colours.muted, "linestyle": ":", "marker": "." if length == 1 else None}
    axes.plot(at, 100 * at / samples, linewidth=1.4, label="a random target", **style)
    highest = [100 * length / samples, *(100 * values.mean(0)[-1] for values in energies.values())]
    top = min(103.0, 1.15 * max(highest + [values[-1] for values in means.values()]))
    axes.set(ylim=(0, top), ylabel="share of the target, %")
    _count(axes, length, "number of leading eigenfunctions")
    _name_ends(axes, {name: float(values[-1]) for name, values in means.items()}, length, top, colours.ink)
    legend_below(figure, axes, dark)
    return figure


def classes_figure(classes: Sequence[ClassShare], chance: float, leading: int, *, dark: bool = False) -> Figure:
    """How much of each class's labels, against the rest, lies on the leading eigenfunctions, beside chance.

    Args:
        classes: From first to last; of many, both ends are drawn.
        chance: k/n.
        leading: k.
        dark: Whether the background is.

    Returns:
        The figure: a bar for each class, with its interval over draws where several networks were drawn.
    """
    reading = "Classes with long bars are learned first."
    if len(classes) > _CLASSES:
        half = _CLASSES // 2
        reading += f" Of {len(classes)} classes, the first {half} and the last {half} are shown."
        classes = [*classes[:half], *classes[-half:]]
    shares = [one.share for one in classes]
    if any(share.low < share.high for share in shares):
        reading += " Thin lines are 95 % intervals over draws of the weights."
    else:
        shares = [Estimate.exact(share.value) for share in shares]
    return draw.shares(
        shares,
        np.full(len(shares), chance),
        [one.name.removeprefix("class ") for one in classes],
        along="class",
        ordered=False,
        quantity=f"share of its labels on {leading} functions, %",
        reading=reading,
        beside="chance",
        dark=dark,
    )


def spectrum_figure(
    kernel: np.ndarray,
    target: np.ndarray,
    samples: int,
    *,
    errors: tuple[float, float] | None = None,
    dark: bool = False,
) -> Figure:
    """Each eigenfunction's share of a kernel and of a target, both logarithmic, beside a random target's 1/n.

    Args:
        kernel: Eigenvalues over the trace, largest first, ``(m, k)``.
        target: Share of the target on each eigenfunction, ``(m, k)``.
        samples: n.
        errors: Largest residual of an eigenpair relative to its eigenvalue, and largest error of the kernel's entries.
        dark: Whether the background is.

    Returns:
        The figure: a line for the kernel, dots for the target, means over the draws.
    """
    reading = "Dots above the dotted line hold more of the labels than chance. The smallest ones lie below the frame."
    if errors is not None:
        residual, error = (significant(each, 1) for each in errors)
        reading += f" Residuals are at most {residual} of an eigenvalue, errors of the kernel at most {error}."
    figure, colours = blank(3.4, reading), PALETTE[dark]
    axes, length, shares = panel(figure, dark), kernel.shape[1], target.mean(0)
    level = kernel.mean(0)
    _draw_means(axes, np.where(level > 0, kernel, np.nan), colours.lines[0], "share of the kernel")
    dots: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 3.5 if length <= 100 else 2}
    at = np.arange(1, length + 1)
    axes.plot(at, np.where(shares > 0, shares, np.nan), color=colours.lines[1], label="share of the labels", **dots)
    axes.axhline(1 / samples, color=colours.muted, linestyle=":", linewidth=1.4, label="a random target")
    # Dots fall to zero by chance: the axis ends where the kernel does, or a decade below chance.
    low = max(min(float(level[level > 0].min(initial=1.0)) / 2, 0.1 / samples), 1e-12)
    axes.set(yscale="log", ylim=(low, 1.5), ylabel="share of the kernel or labels")
    _count(axes, length, "eigenfunction, by decreasing eigenvalue")
    legend_below(figure, axes, dark)
    return figure


def ends_figure(
    thumbnails: np.ndarray,
    kernel: np.ndarray,
    target: np.ndarray,
    classes: np.ndarray,
    positive: Sequence[int] = (),
    *,
    names: Mapping[int, str] | None = None,
    dark: bool = False,
) -> Figure:
    """The samples at the two ends of some eigenfunctions, a row each: the lowest values on the left, the highest on the right.

    Args:
        thumbnails: As made by :func:`thumbnails`.
        kernel: Each eigenfunction's share of the kernel, ``(k,)`` or longer.
        target: Each one's share of the labels.
        classes: Class of each sample, ``(k, e)``.
        positive: Classes that are one side of the target, in a colour of their own.
        names: Of classes, where they are known; else their numbers are shown.
        dark: Whether the background is.

    Returns:
        The figure.

    Raises:
        ValueError: If there is nothing to show.
    """
    if not thumbnails.size:
        raise ValueError("thumbnails must hold at least one image to draw, got none. Measure on images first.")
    functions, count, _, height, width = thumbnails.shape
    gap, split = max(1, width // 16), max(2, width // 3)  # between neighbours, and between the two ends
    across = count * width + (count - 2) * gap + split
    reading = "Each row is an eigenfunction, with the samples of its lowest values (left) and highest values (right) and their classes"
    reading += " in the colour of their side of the labels" * bool(positive) + ". Left and right may be swapped."
    row = 0.97 * WIDTH * height / across + 0.42  # inches: images, a title above, classes below
    figure, colours = blank(row * functions + 0.1, reading), PALETTE[dark]
    grid = figure.add_gridspec(functions, 1)
    for place, images in enumerate(thumbnails):
        axes = panel(figure, dark, grid[place])
        canvas = np.zeros((height, across, 4), np.uint8)  # clear between images
        for index, (image, kind) in enumerate(zip(images, classes[place], strict=True)):
            left = index * (width + gap) + (split - gap) * (2 * index >= count)
            canvas[:, left : left + width, :3] = np.moveaxis(image, 0, -1)  # one channel is grey
            canvas[:, left : left + width, 3] = 255
            ink = colours.lines[int(kind in positive)] if positive else colours.ink
            style: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 8 if names else 9, "color": ink}
            axes.text(left + width / 2, height * 1.05, plain((names or {}).get(int(kind), str(kind)), 8), **style)
        axes.imshow(canvas, interpolation="none")
        title = f"{place + 1}: {percent(kernel[place])} of the kernel, {percent(target[place])} of the labels"
        axes.set_title(title, fontsize=10, color=colours.ink, loc="left", pad=3)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    return figure


def local_energy_figure(energies: Mapping[str, np.ndarray], *, dark: bool = False) -> Figure:
    """Histograms of the local energy of samples, by set and relative to the mean of the first, with the means dashed.

    Args:
        energies: Local energy of each sample, positive, ``(n,)``, by the name of the set.
        dark: Whether the background is.

    Returns:
        The figure, on a logarithmic axis.
    """
    first = next(iter(energies))
    relative = {name: np.asarray(values) / energies[first].mean() for name, values in energies.items()}
    known = np.concatenate(list(relative.values()))
    low, high = (float(edge) for edge in np.quantile(known[known > 0], (0.002, 1.0)))
    bins = np.geomspace(low, max(high, low * 1.01), _BINS + 1)
    figure = blank(
        3.1, "Further right, the leading eigenfunctions have more energy on a sample. Dashed lines are means."
    )
    axes = panel(figure, dark)
    for (name, values), colour in zip(relative.items(), line_colours(len(relative), dark), strict=True):
        shares = 100 * np.histogram(np.clip(values, low, bins[-1]), bins)[0] / len(values)
        axes.stairs(shares, bins, fill=True, color=colour, alpha=0.25)
        axes.stairs(shares, bins, color=colour, linewidth=1.4, label=plain(name))
        axes.axvline(float(values.mean()), color=colour, linestyle="--", linewidth=1.2)
    axes.set(xscale="log", xlabel=f"local energy / mean on {plain(first)}", ylabel="share of the samples, %")
    steps = [step * 10.0**power for power in range(-12, 13) for step in (1, 2, 5)]
    inside = [step for step in steps if low <= step <= high]
    axes.set_xticks(inside if len(inside) < 7 else [step for step in inside if f"{step:e}".startswith("1.")])
    _plain_ticks(axes)
    legend_below(figure, axes, dark)
    return figure


def _draw_means(axes: Axes, values: np.ndarray, colour: Any, label: str) -> None:
    """The mean over draws by the eigenfunction's number, from 1, with a band of two standard errors where there are several."""
    mean, draws = values.mean(0), len(values)
    at = np.arange(1, len(mean) + 1)
    if draws > 1:
        reach = 2 * values.std(0, ddof=1) / math.sqrt(draws)
        low = np.maximum(mean - reach, mean / 1e3)
        axes.fill_between(at, low, mean + reach, color=colour, alpha=0.22, linewidth=0)
    style: dict[str, Any] = {"marker": "o" if len(mean) == 1 else None, "markersize": 4}
    axes.plot(at, mean, color=colour, linewidth=1.7, label=label, **style)


def _name_ends(axes: Axes, values: Mapping[str, float], at: int, top: float, colour: str) -> None:
    """The names of curves beside their last values, moved apart where they would overlap."""
    names = sorted(values, key=lambda name: values[name])
    room = 0.055 * top * np.arange(len(names))
    last = np.array([values[name] for name in names])
    up, down = np.maximum.accumulate(last - room), np.minimum.accumulate((last - room)[::-1])[::-1]
    for name, place in zip(names, (up + down) / 2 + room, strict=True):
        style: dict[str, Any] = {"va": "center", "fontsize": 9, "color": colour, "annotation_clip": False}
        axes.annotate(plain(name, 8), (at, place), (6, 0), textcoords="offset points", **style)


def _count(axes: Axes, length: int, what: str) -> None:
    """A logarithmic axis that counts in plain numbers and names the last one."""
    axes.set(xscale="log", xlim=(0.93, max(length, 2) * 1.07), xlabel=what)
    steps = (1, 2, 5) if length < 20 else (1,)
    inner = [step * 10**power for power in range(7) for step in steps if step * 10**power < 0.6 * length]
    axes.set_xticks([*inner, length])
    _plain_ticks(axes)


def _plain_ticks(axes: Axes) -> None:
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
