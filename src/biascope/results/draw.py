"""SHOW: picture primitives on plain arrays. Each returns a matplotlib ``Figure`` with a transparent background.

A figure is hardly wider than a phone, so that its text stays legible there. It carries its caption and one sentence on how to
read it in its label: see :func:`captioned`, :func:`caption_of` and :func:`reading_of`. Nothing here touches pyplot or changes global
settings.
"""

# k pictures · C channels · h × w pixels · D input size

from __future__ import annotations

import io
import itertools
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

    from biascope.results.axes import InputAxes
    from biascope.results.estimate import Estimate

Curves = Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]]  # eigenvalues, standard errors, held-out variances
WIDTH = 4.6  # inches; on a screen 390 pixels wide, where pictures fill it, the smallest text is then 10 pixels high
_DUST = 1e-9  # eigenvalues below this share of the largest are rounding errors of zero
_CELLS = 256  # most rows of a matrix that are drawn one by one
_PIXELS = 64  # most pixels along a side of a small picture
_BARS = 32  # parts that are drawn as bars; along an order, more are a curve
_MARKS = 12  # bars of which each has a mark of its own
_OCTAVES = 4  # of shares around an even one that colours tell apart
_REACH = 8  # largest pixel offset of the local structure


class Palette(NamedTuple):
    """The colours of one theme, distinguishable with any colour vision."""

    ink: str  # text
    muted: str  # axes, reference lines
    lines: tuple[str, ...]  # one per curve
    diverging: tuple[str, ...]  # from negative over zero to positive
    sequential: tuple[str, ...]  # from nothing to much


PALETTE = {
    False: Palette(
        ink="#1d222b",
        muted="#6b7280",
        lines=("#1b66b0", "#d2570b", "#0b8a65", "#a63a86", "#8a6a00", "#5b5f6a"),
        diverging=("#0a3763", "#2b78bd", "#9fcbea", "#faf9f6", "#f6b587", "#d4601c", "#742603"),
        sequential=("#faf9f6", "#c6dcef", "#79aedb", "#2b70b3", "#08305a"),
    ),
    True: Palette(
        ink="#e8eaef",
        muted="#9aa2b1",
        lines=("#6db3f2", "#f29a4a", "#3fcaa0", "#e58cc7", "#d9bb4a", "#b6bcc8"),
        diverging=("#c4e2ff", "#55a6ea", "#1d4e7e", "#14171d", "#84390f", "#ee8b47", "#ffdfc6"),
        sequential=("#14171d", "#1a3c61", "#2c74b6", "#80b9ed", "#eef6ff"),
    ),
}  # by whether the background is dark


def svg(figure: Figure, salt: str = "biascope") -> str:
    """A figure as an SVG element: text as text, heat maps as embedded pixels, the same bytes every time.

    The salt sets its ids apart from those of other pictures on a page; ids that nothing refers to are dropped.
    """
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        text = _saved(figure, format="svg", metadata={"Date": None}).decode()
    text = re.sub(r'<metadata>.*?</metadata>|(?<=<g) id="[^"]*"', "", text[text.index("<svg") :], flags=re.DOTALL)
    return re.sub(r"\s*\n\s*", "\n", text).strip()


def png(figure: Figure, width: int) -> bytes:
    """A figure as a PNG picture of a given width in pixels."""
    return _saved(figure, format="png", dpi=width / figure.get_size_inches()[0])


def spectrum(
    curves: Curves, *, draws: int, size: int, traces: Mapping[str, float] | None = None, dark: bool = False
) -> Figure:
    """Eigenvalues against their rank, both logarithmic, from ``draws`` independent draws on inputs of size D.

    One network is shown with what an isotropic one would give (the law of Marchenko and Pastur); several are divided by
    their mean eigenvalue, trace/D. Give the traces where not all eigenvalues are given. Held-out variances may be nan.
    """
    several, reading = len(curves) > 1, "A steep curve means few preferred directions, a flat curve none"
    figure, colours = blank(3.5 + 0.15 * max(0, len(curves) - 3)), PALETTE[dark]
    axes = panel(figure, dark)
    shown: list[float] = []
    dashed = ""
    for (name, parts), colour in zip(curves.items(), line_colours(len(curves), dark), strict=True):
        eigenvalues, errors, held_out = (np.asarray(part, np.float64) for part in parts)
        mean = (traces[name] if traces is not None else float(eigenvalues.sum())) / size
        unit = mean if several and mean > 0 else 1.0
        rank = int((eigenvalues > _DUST * eigenvalues.max(initial=0.0)).sum())
        # A lower rank means that draws depend on one another, or that the network ignores some directions.
        ended = rank >= min(draws - 1, len(eigenvalues))
        if not several and ended and (traces is not None or len(eigenvalues) == size):
            reading = "Variance above the grey curve is beyond chance"
            reference = _isotropic_spectrum(draws, size)[: len(eigenvalues)] * mean
            at = _evenly(len(reference))
            style: dict[str, Any] = {"color": colours.muted, "alpha": 0.28, "linewidth": 7, "solid_capstyle": "butt"}
            axes.plot(at + 1, reference[at], label="an isotropic network with as many draws", **style)
        at = _evenly(rank)
        values, error = eigenvalues[at] / unit, np.nan_to_num(errors[at]) / unit
        low = np.maximum(values - 1.96 * error, values / 1e3)
        axes.fill_between(at + 1, low, values + 1.96 * error, color=colour, alpha=0.22, linewidth=0)
        label = plain(name) if several else "measured on the draws they were found on, 95 % band"
        style = {"color": colour, "marker": "o" if rank == 1 else None}
        axes.plot(at + 1, values, linewidth=1.8, label=label, **style)
        at, fresh = _averaged(held_out / unit, draws // 2)
        label = "_" if several or not len(fresh) else "found on one half of the draws, measured on the other"
        axes.plot(at, fresh, linestyle=(0, (3, 2)), linewidth=1.1, label=label, **style)
        shown += [*values, *fresh]
        if len(fresh):
            dashed = " The dashed curve is the variance on other draws, without the decay due to chance."
        if 0 < rank < len(eigenvalues) and not several:
            axes.axvline(rank, color=colours.muted, linewidth=0.8, linestyle=":")
            words = "draws end here " if ended else "no sample variance beyond "
            axes.annotate(words, (rank, 0.03), xycoords=("data", "axes fraction"), ha="right", color=colours.muted)
    figure.set_label(f"{reading}.{dashed}")
    top = max(shown, default=1.0)
    axes.set(yscale="log", ylim=(max(min(shown, default=1.0) / 2, top / 1e6), top * 2))
    axes.set(xlabel="direction, from most to least variance")
    axes.set(ylabel="variance / mean variance" if several else "variance of the gradient")
    _counted(figure, axes, size, dark)
    return figure


def directions(images: np.ndarray, labels: Sequence[str], *, columns: int = 5, dark: bool = False) -> Figure:
    """Input directions in pairs of rows: as pixels, and the magnitude of their Fourier transform below.

    Images are ``(k, C, h, w)``, ``(k, h, w)`` or signals ``(k, w)``; three channels are shown as colours.
    """
    images = np.asarray(images, np.float64)
    height, width = images.shape[-2:] if images.ndim > 2 else (1, images.shape[-1])
    signals = min(height, width) == 1
    sign = "colours around grey" if images.ndim == 4 and images.shape[1] == 3 else "orange is positive, blue negative"
    reading = f"Top: directions by number, as inputs ({sign}; the overall sign is arbitrary). Bottom: their "
    reading += f"frequencies, low ones {'on the left' if signals else 'in the middle'}."
    if max(height, width) > _PIXELS and not signals:
        reading += f" Pictures are averaged over blocks, to at most {_PIXELS} pixels along a side."
    columns = min(columns, len(images))
    blocks = math.ceil(len(images) / columns)
    figure, colours = blank(0.1 + 1.8 * blocks, reading), PALETTE[dark]
    grid = figure.add_gridspec(2 * blocks, columns)
    for position, (image, label) in enumerate(zip(images, labels, strict=True)):
        block, column = divmod(position, columns)
        above, below = (panel(figure, dark, grid[2 * block + row, column]) for row in range(2))
        stack = image.reshape(-1, height, width)  # (C, h, w)
        magnitude = np.sqrt((np.abs(np.fft.fft2(stack, norm="ortho")) ** 2).sum(0))  # (h, w)
        if signals:
            above.plot(stack.reshape(len(stack), -1).T, color=colours.lines[0], linewidth=1)
            below.plot(magnitude.ravel()[: magnitude.size // 2 + 1], color=colours.lines[0], linewidth=1)
        else:
            _signed(above, np.stack([_smaller(channel, _PIXELS)[0] for channel in stack]), dark)
            heat(below, _smaller(np.fft.fftshift(magnitude), _PIXELS)[0], dark)
        above.set_title(plain(label), fontsize=10, color=colours.ink, pad=3)
        above.set(xticks=[], yticks=[], ylabel="" if column else "signal" if signals else "pixels")
        below.set(xticks=[], yticks=[], ylabel="" if column else "frequency")
    return figure


def planes(images: np.ndarray, labels: Sequence[str], layout: str, *, dark: bool = False) -> Figure:
    """Directions ``(k, down, across)`` that are no images: each as a heat map in a row of its own, laid out as the words say."""
    reading = f"Directions by number, {layout}. Orange is positive, blue negative; the overall sign is arbitrary."
    images = np.asarray(images, np.float64)
    figure, colours = blank(0.4 + 1.1 * len(images), reading), PALETTE[dark]
    grid = figure.add_gridspec(len(images), 1)
    for row, (image, label) in enumerate(zip(images, labels, strict=True)):
        axes = panel(figure, dark, grid[row, 0])
        heat(axes, image / (image.flat[np.abs(image).argmax()] or 1.0), dark, (-1, 1), aspect="auto")
        axes.set_ylabel(plain(label), rotation=0, ha="right", va="center", color=colours.ink)
        axes.set(xticks=[], yticks=[])
    return figure


def shares(
    shares: Sequence[Estimate],
    isotropic: np.ndarray,
    labels: Sequence[str],
    *,
    along: str,
    ordered: bool,
    quantity: str = "share in %",
    reading: str = "Each is a share of the gradient's energy, with its 95 % interval.",
    beside: str = "an even spread",
    dark: bool = False,
) -> Figure:
    """The share of each part in per cent with its 95 % interval, beside that of an isotropic network.

    Parts in an order are shown in it; others by size, if they are too many for all to be named.
    """
    joined = ordered and len(labels) > _MARKS
    mark = "The dotted line is" if joined else "Short dark lines are"
    reading = f"{reading} {mark} {beside}."
    values = 100 * np.array([[share.value, share.low, share.high] for share in shares])
    even = 100 * np.asarray(isotropic)
    place = np.arange(len(values))
    if not ordered and len(values) > _BARS:
        place = np.argsort(-values[:, 0])[:_BARS]
        reading += f" The {_BARS} largest of {len(values)} {along} are shown."
    values, even, labels = values[place], even[place], [labels[at] for at in place.tolist()]
    named = not ordered and any(not label.isdecimal() for label in labels)
    figure, colours = blank(0.9 + 0.22 * len(labels) if named else 2.7, reading), PALETTE[dark]
    axes, at = panel(figure, dark), np.arange(len(labels))
    apart = np.abs(np.nan_to_num(values[:, 1:], nan=0.0, posinf=100.0) - values[:, :1]).T
    style: dict[str, Any] = {"color": colours.lines[0]}
    if named:
        axes.barh(at, values[:, 0], xerr=apart, ecolor=colours.muted, **style)
        axes.plot(even, at, "|", markersize=16, markeredgewidth=2, color=colours.ink)
        axes.set_yticks(at, [plain(label) for label in labels])
        axes.invert_yaxis()
        axes.set(xlabel=quantity, xlim=(0, None))
        return figure
    if len(labels) > _BARS:
        axes.fill_between(at, *np.clip(values[:, 1:], 0, 100).T, alpha=0.25, linewidth=0, **style)
        axes.plot(at, values[:, 0], linewidth=1.6, **style)
    else:
        axes.bar(at, values[:, 0], yerr=apart, ecolor=colours.muted, **style)
    if joined:
        axes.plot(at, even, linestyle=":", color=colours.ink)
    else:
        axes.plot(at, even, "_", markersize=16, markeredgewidth=2, color=colours.ink)
    every = math.ceil(len(labels) / 12)
    axes.set_xticks(at[::every], labels[::every])
    axes.set(xlabel=along, ylabel=quantity, ylim=(0, None))
    return figure


def frequency_map(ratio: np.ndarray, *, dark: bool = False) -> Figure:
    """How many times an even share each spatial frequency has, ``(h, w)`` in the order of ``fft2``."""
    reading = (
        "Each cell is a wave, with the lowest frequency in the middle. Orange waves have more than an even share of the gradient's "
        "energy, blue ones less."
    )
    figure = blank(3.1, reading)
    axes = panel(figure, dark)
    floor = 2.0**-_OCTAVES
    octaves = np.log2(np.clip(np.asarray(ratio, np.float64), floor, 1 / floor))
    heat(axes, np.fft.fftshift(octaves), dark, (-_OCTAVES, _OCTAVES), bar=3, extent=_cycles(octaves.shape))
    axes.set(xlabel="cycles across", ylabel="cycles down")
    bar = figure.axes[-1]
    bar.set_yticks([-_OCTAVES, 0, _OCTAVES], [f"1/{2**_OCTAVES}", "1", f"{2**_OCTAVES}"])
    bar.set_ylabel("times an even share", color=PALETTE[dark].muted)
    return figure


def _cycles(shape: tuple[int, ...]) -> tuple[float, float, float, float]:
    height, width = shape
    return -(width // 2) - 0.5, (width - 1) // 2 + 0.5, (height - 1) // 2 + 0.5, -(height // 2) - 0.5


def shares_beside(
    curves: Mapping[str, Sequence[Estimate]],
    isotropic: np.ndarray,
    labels: Sequence[str],
    *,
    along: str,
    ordered: bool,
    dark: bool = False,
) -> Figure:
    """The shares of the same parts in several networks, in per cent with their 95 % intervals; parts in an order are joined."""
    reading = (
        "Each is a share of a network's gradient energy, with its 95 % interval. The dotted line is an even spread."
    )
    figure, colours = blank(3.1, reading), PALETTE[dark]
    axes, at = panel(figure, dark), np.arange(len(labels))
    beside = np.linspace(-0.2, 0.2, len(curves))
    for shift, colour, (name, shares) in zip(beside, line_colours(len(curves), dark), curves.items(), strict=True):
        values = 100 * np.array([[share.value, share.low, share.high] for share in shares])
        ends = np.clip(np.nan_to_num(values[:, 1:], nan=0.0), 0, 100).T
        if ordered:
            axes.fill_between(at, *ends, alpha=0.25, linewidth=0, color=colour)
            axes.plot(at, values[:, 0], ".-", linewidth=1.4, color=colour, label=plain(name))
        else:
            apart = np.abs(ends - values[:, 0])
            axes.errorbar(at + shift, values[:, 0], apart, fmt="o", markersize=4, color=colour, label=plain(name))
    axes.plot(at, 100 * np.asarray(isotropic), ":", color=colours.muted)
    every = math.ceil(len(labels) / 12)
    named = any(not label.isdecimal() for label in labels)
    turned: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if named else {}
    axes.set_xticks(at[::every], [plain(label) for label in labels[::every]], **turned)
    axes.set(xlabel=along, ylabel="share in %", ylim=(0, None))
    legend_below(figure, axes, dark)
    return figure


def similarity(sizes: np.ndarray, similarity: np.ndarray, size: int, *, dark: bool = False) -> Figure:
    """Similarity of two subspaces against their dimension k, with the level k/D of chance; nan is left out."""
    reading = (
        "A similarity of 1 means that the two halves of the draws agree on these directions. The dotted line is chance."
    )
    figure, colours = blank(3.1, reading), PALETTE[dark]
    axes = panel(figure, dark)
    line = np.geomspace(1, max(size, 2), 60)
    axes.plot(line, np.minimum(line / size, 1), color=colours.muted, linestyle=":", linewidth=1.4, label="by chance")
    axes.plot(sizes, similarity, "o-", color=colours.lines[0], markersize=4.5, label="measured")
    if not np.isfinite(similarity).any():
        axes.text(
            0.5, 0.6, "too few draws to split in half", transform=axes.transAxes, ha="center", color=colours.muted
        )
    axes.set(ylim=(0, 1.03), xlabel="number of leading directions", ylabel="similarity of the two halves")
    _counted(figure, axes, size, dark)
    return figure


def matrix(matrix: np.ndarray, axes: InputAxes, *, dark: bool = False) -> Figure:
    """A covariance ``(D, D)`` relative to its mean diagonal: as a heat map, its diagonal, and the mean by offset.

    Offsets are those between the pixels of a picture or the places of one ordered axis; other inputs have none.
    """
    relative = np.asarray(matrix, np.float64) / (float(np.diag(matrix).mean()) or 1.0)
    height, width = axes.shape[-2:] if axes.image else (1, axes.shape[-1])
    picture = axes.image and min(height, width) > 1
    shifted = axes.image or (len(axes.shape) == 1 and axes.axes[0].ordered)
    shown, block = _smaller(relative, _CELLS)
    many = "pixels" if picture else axes.axes[-1].noun(2) if len(axes.shape) == 1 else "entries"
    reading = f"Colour off the diagonal shows which {many} act together. The diagonal shows which {many} matter."
    if shifted:
        reading += " The mean by offset shows what acts together, averaged over the input (1 at its centre)."
    if block > 1:
        reading += f" The large picture is averaged over blocks of {block} × {block} entries."
    figure, colours = blank(5.2, reading), PALETTE[dark]
    grid = figure.add_gridspec(2, 2, height_ratios=(1.75, 1))
    whole = panel(figure, dark, grid[0, :])
    diagonal = panel(figure, dark, grid[1, 1] if shifted else grid[1, :])
    # A floor to the scale, here and below, keeps noise around zero from filling it.
    reach = max(float(np.abs(shown[~np.eye(len(shown), dtype=bool)]).max(initial=0.0)), 0.1)
    end = len(relative) + 0.5
    heat(whole, shown, dark, (-reach, reach), bar=4, extent=(0.5, end, end, 0.5))
    of = "input pixel, counted row by row" if picture else axes.numbers
    whole.set(xlabel=of)
    diagonal.set_title("diagonal", fontsize=10, color=colours.ink)
    variances = np.diag(relative).reshape(-1, height, width).mean(0) if axes.image else np.diag(relative)
    if picture:
        heat(diagonal, variances, dark, bar=3)
        diagonal.set(xticks=[], yticks=[])
    else:
        diagonal.plot(np.arange(1, variances.size + 1), variances.ravel(), "o", markersize=3, color=colours.lines[0])
        diagonal.set(xlabel=of, ylim=(0, None))
    if not shifted:
        return figure
    near = panel(figure, dark, grid[1, 0])
    near.set_title("mean by offset", fontsize=10, color=colours.ink)
    offsets = _by_offset(relative, height, width)
    down, right = (length // 2 for length in offsets.shape)
    if picture:
        reach = max(float(np.delete(np.abs(offsets).ravel(), offsets.size // 2).max(initial=0.0)), 0.05)
        edges = (-right - 0.5, right + 0.5, down + 0.5, -down - 0.5)
        heat(near, offsets, dark, (-reach, reach), bar=2, extent=edges)
        near.set(xlabel="pixels to the right", ylabel="pixels down")
    else:
        reach = max(down, right)
        near.plot(np.arange(-reach, reach + 1), offsets.ravel(), "o-", markersize=3, color=colours.lines[0])
        near.set(xlabel=f"{many} apart")
    return figure


def overlap(
    matrix: np.ndarray, labels: Sequence[str], *, resolved: np.ndarray | None = None, dark: bool = False
) -> Figure:
    """Similarities between 0 and 1 as a table of colours with the numbers in it; nan is left open, noise is in brackets."""
    matrix, words = np.asarray(matrix, np.float64), [plain(label) for label in labels]
    reading = "1 means that two networks share their leading directions, 0 that they have none in common."
    figure = blank(1.2 + 0.5 * min(max(len(matrix), 2), 6), reading)
    axes = panel(figure, dark)
    image, size = heat(axes, matrix, dark, (0.0, 1.0), bar=4), min(10, 70 / len(matrix))
    axes.set_xticks(range(len(words)), words, rotation=30 if len(words) < 7 else 90, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(words)), words)
    axes.tick_params(length=0)
    for row, column in np.ndindex(*matrix.shape):
        value = matrix[row, column]
        light = np.dot(image.to_rgba(value)[:3], (0.3, 0.59, 0.11)) > 0.5 if np.isfinite(value) else not dark
        text = f"{value:.2f}" if np.isfinite(value) else "–"
        text = text if resolved is None or resolved[row, column] else f"({text})"
        axes.text(column, row, text, ha="center", va="center", size=size, color=PALETTE[not light].ink)
    return figure


def along(
    values: np.ndarray, errors: np.ndarray, labels: Sequence[str], *, quantity: str = "value", dark: bool = False
) -> Figure:
    """One number, called ``quantity``, along training, with 95 % intervals from its standard errors (nan: unknown)."""
    figure = blank(3.1, "Each dot is one checkpoint. Bars are 95 % intervals.")
    axes = panel(figure, dark)
    at = np.arange(len(values))
    axes.errorbar(at, values, 1.96 * np.nan_to_num(errors), fmt="o-", capsize=3, color=PALETTE[dark].lines[0])
    every = math.ceil(len(at) * (2 + max(map(len, labels), default=0)) / 44) or 1  # as many labels as fit side by side
    axes.set_xticks(at[::every], [plain(label) for label in labels[::every]])
    axes.set(xlabel="checkpoint, in the order of training", ylabel=plain(quantity))
    return figure


def blank(height: float, reading: str = "") -> Figure:
    """A figure without content, with the sentence on how to read it."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained", facecolor="none", label=reading)


def captioned(caption: str, figure: Figure) -> Figure:
    """The same figure with a caption; a result's pictures are found by keys, which stay when a caption is reworded.

    Example:
        >>> picture = captioned("Spectrum", blank(3.0, "A steep curve means few preferred directions."))
        >>> caption_of(picture), reading_of(picture)
        ('Spectrum', 'A steep curve means few preferred directions.')
    """
    figure.set_label(f"{caption}\n{reading_of(figure)}")
    return figure


def caption_of(figure: Figure, key: str = "") -> str:
    """The caption of a figure; of one without, its key in words."""
    caption, line, _ = str(figure.get_label()).partition("\n")
    return caption if line else key.replace("_", " ").capitalize()


def reading_of(figure: Figure) -> str:
    """The sentence on how to read a figure."""
    return str(figure.get_label()).rpartition("\n")[2]


def panel(figure: Figure, dark: bool, cell: Any = 111, **style: Any) -> Axes:
    """Axes in the theme's colours; set one by one, since ticks made later would take the global ones."""
    colours = PALETTE[dark]
    axes: Axes = figure.add_subplot(cell, facecolor="none", **style)
    axes.tick_params(which="both", color=colours.muted, labelcolor=colours.ink, labelsize=9)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=colours.ink, fontsize=10)
    axes.spines[:].set(color=colours.muted, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def line_colours(count: int, dark: bool) -> Sequence[Any]:
    """A colour for each of so many curves; where there are many, they are stages of one thing."""
    colours = PALETTE[dark]
    if count <= len(colours.lines):
        return colours.lines[:count]
    return list(_colour_map(colours.sequential)(np.linspace(0.4, 1, count)))


def legend_below(figure: Figure, axes: Axes, dark: bool) -> None:
    """A legend under the panels in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    columns = len(labels) if sum(map(len, labels)) + 6 * len(labels) < 54 else 54 // (6 + max(map(len, labels)))
    style: dict[str, Any] = {"frameon": False, "fontsize": 9, "labelcolor": PALETTE[dark].ink, "ncols": max(1, columns)}
    figure.legend(handles, labels, loc="outside lower left", **style)


def _counted(figure: Figure, axes: Axes, size: int, dark: bool) -> None:
    """A logarithmic axis that counts from 1 to D in plain numbers, and a legend below."""
    axes.set(xscale="log", xlim=(0.9, max(size, 2) * 1.1))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    legend_below(figure, axes, dark)


def _colour_map(anchors: Sequence[str]) -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("biascope", list(anchors), N=127)  # odd: zero has a colour of its own


def heat(
    axes: Axes, image: np.ndarray, dark: bool, limits: tuple[float, float] | None = None, bar: int = 0, **style: Any
) -> AxesImage:
    """A heat map, diverging where its limits are; by default from zero up. ``bar`` ticks are set on a colour bar."""
    colours, top = PALETTE[dark], float(np.nanmax(image, initial=0.0))
    low, high = limits or (0.0, top or 1.0)
    colour = _colour_map(colours.diverging if low < 0 < high else colours.sequential)
    shown = axes.imshow(image, cmap=colour, vmin=low, vmax=high, interpolation="none", **style)
    axes.spines[:].set_visible(True)
    if bar:
        colour_bar(shown, [axes], dark, bar, extend="max" if top > high else "neither")
    return shown


def colour_bar(shown: AxesImage, panels: Sequence[Axes], dark: bool, ticks: int = 4, **style: Any) -> Axes:
    """The scale of a heat map, beside the panels that share it."""
    from matplotlib.ticker import MaxNLocator

    key = panels[0].figure.colorbar(shown, ax=panels, fraction=0.05, pad=0.03, ticks=MaxNLocator(ticks), **style)
    key.outline.set_visible(False)
    key.ax.tick_params(color=PALETTE[dark].muted, labelcolor=PALETTE[dark].ink, labelsize=9)
    assert key.solids is not None
    key.solids.set_rasterized(True)  # one picture in place of a path for every shade
    return key.ax


def _signed(axes: Axes, stack: np.ndarray, dark: bool) -> None:
    """A direction as a picture: three channels as colours around grey, otherwise tiled in one diverging map."""
    stack = stack / (stack.flat[np.abs(stack).argmax()] or 1.0)
    if len(stack) == 3:
        axes.imshow(np.moveaxis(0.5 + stack / 2, 0, -1), interpolation="none")
        return
    columns, gap = math.ceil(math.sqrt(len(stack))), min(len(stack) - 1, 1)
    stack = np.pad(stack, ((0, -len(stack) % columns), (0, gap), (0, gap)), constant_values=np.nan)
    heat(axes, np.block([list(row) for row in stack.reshape(-1, columns, *stack.shape[1:])]), dark, (-1, 1))


def plain(text: str, most: int = 28) -> str:
    """Text as it stands, since a dollar sign would start a formula; long names are cut."""
    return (text if len(text) <= most else text[: most - 1] + "…").replace("$", r"\$")


def _evenly(count: int, most: int = 160) -> np.ndarray:
    """Indices below ``count``, at most so many, evenly spread on a logarithmic axis, ends included."""
    return np.unique(np.round(np.geomspace(1, max(count, 1), most)).astype(int))[:count] - 1


def _averaged(values: np.ndarray, resolved: int, bins: int = 48) -> np.ndarray:
    """Places and means of neighbours, evenly wide on a logarithmic axis; beyond the resolved ones, one level stretch."""
    resolved = min(max(resolved, 1), len(values))
    points = []
    for start, stop in itertools.pairwise([*_evenly(resolved + 1, bins), len(values)]):
        finite = values[start:stop][np.isfinite(values[start:stop])]
        if finite.sum() > 0:
            ends = [math.sqrt((start + 1) * stop)] if start < resolved else [start + 1, stop]
            points += [(place, finite.mean()) for place in ends]
    return np.array(points).reshape(-1, 2).T


def _isotropic_spectrum(draws: int, size: int) -> np.ndarray:
    """Ordered non-zero eigenvalues expected of ``draws`` isotropic gradients, for a mean eigenvalue of 1."""
    # Quantiles of the law of Marchenko and Pastur with ratio γ = D/n and edges (1 ± √γ)².
    count, ratio = min(draws, size), size / max(draws, 1)
    # λ = 1 + γ − 2√γ cos φ turns the density √((λ₊−λ)(λ−λ₋))/λ dλ into sin²φ/λ dφ, regular also at γ = 1.
    angle = (np.arange(4096) + 0.5) * math.pi / 4096
    value = 1 + ratio - 2 * math.sqrt(ratio) * np.cos(angle)
    mass = np.cumsum(np.sin(angle) ** 2 / value)
    return np.interp(1 - (np.arange(count) + 0.5) / count, mass / mass[-1], value)


def _smaller(image: np.ndarray, most: int) -> tuple[np.ndarray, int]:
    """A picture averaged over square blocks until no side is longer than ``most``, and the side of a block."""
    block = math.ceil(max(image.shape) / most)
    rows, columns = (np.arange(0, length, block) for length in image.shape)
    sums = np.add.reduceat(np.add.reduceat(image, rows, 0), columns, 1)
    heights, widths = (np.diff([*starts, length]) for starts, length in zip((rows, columns), image.shape, strict=True))
    return sums / np.outer(heights, widths), block


def _by_offset(matrix: np.ndarray, height: int, width: int) -> np.ndarray:
    """Mean of ``matrix[p, p + offset]`` over pixels p and channels, for offsets up to 8 pixels either way."""
    down, right = min(_REACH, height - 1), min(_REACH, width - 1)
    place = np.arange(len(matrix)).reshape(-1, height, width)
    result = np.empty((2 * down + 1, 2 * right + 1))
    for row, column in itertools.product(range(-down, down + 1), range(-right, right + 1)):
        start = place[:, max(0, -row) : height - max(0, row), max(0, -column) : width - max(0, column)]
        result[row + down, column + right] = matrix[start, start + row * width + column].mean()
    return result


def _saved(figure: Figure, **how: Any) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # A name may hold signs that our font lacks; in SVG the reader's fonts draw them.
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure.savefig(buffer, transparent=True, **how)
    return buffer.getvalue()
