"""Figures 4 to 7: inputs made of orthogonal patches, and the filters that learned coloured digits."""

# r runs · K = 2k filters · m inputs · n patches of an input · P patterns

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from biascope.families.network import Network
from biascope.networks import builder
from biascope.papers.patterns2021.digits import LAPTOP, PAPER, PUBLISHED_SETUP, SIZES, SMOKE, DigitRuns, learned, mnist
from biascope.results.draw import PALETTE, blank, heat, legend_below, panel
from biascope.results.estimate import Estimate, over, proportion
from biascope.results.finding import Finding, Tell, figure
from biascope.results.plan import Plan, Row
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run
from biascope.tasks.patterns import BLUE, GREEN, RED, PatternDistribution
from biascope.training.recipe import correct

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PURE = 0.9  # share of a filter's energy from which it is of one colour
DARK = 0.01  # brightness below which a filter is black: it has no positive weights to speak of, and detects nothing

# Figures 5 to 7

# The filters of figure 2's networks, from seed 0, had been seen when claims went by the paper's own words.
_FRESH = {"seed": 1}

_NAMES = {BLUE: "blue", RED: "red", GREEN: "green"}  # in the order in which filters are drawn


def brightness_of(networks: DigitRuns, coloured: bool) -> np.ndarray:
    """``(r,)`` mean brightness of a run's blue and red filters, or of its green ones; nan where there are none."""
    chosen = ((networks.colours != GREEN) == coloured) & (networks.brightness > DARK)
    with np.errstate(invalid="ignore"):
        return np.asarray((networks.brightness * chosen).sum(1) / chosen.sum(1))


def response_of(networks: DigitRuns, coloured: bool) -> np.ndarray:
    """``(r,)`` mean dot product of detectors with what they detect, blue and red digits or green ones, likewise."""
    chosen = ((networks.seen != GREEN) == coloured) & (networks.brightness > DARK)
    with np.errstate(invalid="ignore"):
        return np.asarray((networks.responses * chosen).sum(1) / chosen.sum(1))


def green_over_others(networks: DigitRuns) -> np.ndarray:
    """``(r,)`` mean dot product of green detectors over that of blue and red ones."""
    return np.asarray(response_of(networks, False) / response_of(networks, True))


def swatches(energies: np.ndarray) -> np.ndarray:
    """Filters ``(K, 3)`` as two rows of colours ``(2, k, 3)``, added and subtracted ones, by colour, the brightest first.

    A filter's colour is the length of its positive part in each channel, relative to the longest filter of the network.
    """
    colours = np.sqrt(energies / energies.sum(1).max())  # (K, 3)
    order, rank = energies.argmax(1), {colour: place for place, colour in enumerate(_NAMES)}
    half = len(energies) // 2
    rows = []
    for places in (range(half), range(half, 2 * half)):
        key = {place: (rank[int(order[place])], -float(energies[place].sum())) for place in places}
        rows.append(colours[sorted(places, key=key.__getitem__)])
    return np.asarray(np.clip(np.stack(rows), 0, 1))


def ratio(above: np.ndarray, below: np.ndarray) -> Estimate:
    """A mean over another of independent runs, with the errors of both; values that are no numbers are left out."""
    each = [values[np.isfinite(values)] for values in (above, below)]
    if min(map(len, each)) == 0:
        return Estimate(math.nan)
    means = [float(values.mean()) for values in each]
    if min(map(len, each)) < 2:
        return Estimate(means[0] / means[1])
    relative = [
        values.std(ddof=1) / math.sqrt(len(values)) / abs(mean) for values, mean in zip(each, means, strict=True)
    ]
    value = means[0] / means[1]
    return Estimate.from_error(value, abs(value) * math.hypot(*relative), min(map(len, each)))


def _drawn_filters(finding: Finding, dark: bool) -> Figure:
    reading = (
        "A square is a filter of one network, in the colour and brightness of its positive weights, those that are added above those "
        "that are subtracted. Below, the mean brightness of filters by colour, with 95 % intervals over runs."
    )
    sizes = [size for size in SIZES if f"filters: m = {size}" in finding.arrays]
    picture, colours = blank(0.85 * len(sizes) + 2.6, reading), PALETTE[dark]
    grid = picture.add_gridspec(len(sizes) + 1, 1, height_ratios=[0.85] * len(sizes) + [2.6])
    for row, size in enumerate(sizes):
        axes = panel(picture, dark, grid[row])
        _paint(axes, swatches(finding.arrays[f"filters: m = {size}"]), dark)
        axes.set_title(f"m = {size:,}", fontsize=10, color=colours.ink, loc="left", pad=3)
    below = panel(picture, dark, grid[len(sizes)], xlabel="training images, m", ylabel="brightness", ylim=(0, 1.02))
    for name, colour in (("red and blue filters", colours.lines[0]), ("green filters", colours.lines[2])):
        means, errors = finding.arrays[f"brightness: {name}"]
        style: dict[str, Any] = {"fmt": "o-", "color": colour, "capsize": 3, "label": name}
        below.errorbar(range(len(sizes)), means, errors, **style)
    below.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes])
    below.set_xlim(-0.3, len(sizes) - 0.7)
    legend_below(picture, below, dark)
    return picture


def _paint(axes: Axes, rows: np.ndarray, dark: bool) -> None:
    """Rows of colours ``(rows, columns, 3)`` as squares with open gaps; an edge lets dark ones be seen on a dark page."""
    from matplotlib.patches import Rectangle

    for (row, column), _ in np.ndenumerate(rows[..., 0]):
        style: dict[str, Any] = {
            "facecolor": tuple(rows[row, column]),
            "edgecolor": PALETTE[dark].muted,
            "linewidth": 0.5,
        }
        axes.add_patch(Rectangle((column + 0.06, row + 0.06), 0.88, 0.88, **style))
    axes.set(xlim=(0, rows.shape[1]), ylim=(len(rows), 0), xticks=[], yticks=[0.5, 1.5], aspect="equal")
    axes.set_yticklabels(["+", "−"])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


@figure(
    "5-7",
    title="All filters that learned the coloured digits, by colour and brightness",
    plan=Plan(SMOKE | _FRESH, LAPTOP | _FRESH, PAPER | _FRESH, PUBLISHED_SETUP),
    show=_drawn_filters,
)
def figure_5_to_7(plan: Row, run: Run, tell: Tell) -> None:
    """Colours, brightness and responses of filters of networks trained as in figure 2, from another seed."""
    digits = mnist(run)
    how: dict[str, Any] = {"test": plan["test images"], "epochs": plan["epochs"], "seed": plan["seed"]}
    networks = {size: learned(digits, size, runs, **how, run=run.shared) for size, runs in plan["runs by m"].items()}
    tell_filters(networks, tell)
    tell.settings["digits"] = digits.name
    tell.note(
        "Brightness is the length of a filter's positive part relative to the longest of its network. Means over filters of a colour "
        "are over runs that have any: with 1,000 images a few green ones are left, or none. Shares are of filters that are not black.",
        "The lengths of all green over all red and blue filters, which count runs without green ones as 0, were added after the first "
        "run, and decide no claim.",
        "Figures 5 to 7 show all filters of one network for each m. So claims ask for all filters of a network, in most networks.",
        "Filters are drawn as plain colours: their pixels would show digits of the data set.",
    )


_GROUPS = {"red and blue filters": True, "green filters": False}  # whether they have a colour that tells a class


def tell_filters(networks: Mapping[int, DigitRuns], tell: Tell) -> None:
    """What the filters of trained networks say, by training size."""
    tell("least train accuracy", Estimate.exact(min(float(one.train.min()) for one in networks.values())))
    brightness: dict[str, list[Estimate]] = {name: [] for name in _GROUPS}
    for size, one in networks.items():
        of = tell.about(f"m = {size}")
        alive = one.brightness > DARK
        added = np.arange(alive.shape[1]) < alive.shape[1] // 2
        detects = one.colours == one.seen
        for label, chosen in (
            ("of one colour", one.purity > PURE),
            ("that are green", one.colours == GREEN),
            (
                "that are red though added, or blue though subtracted",
                np.where(added, one.colours == RED, one.colours == BLUE),
            ),
            ("of the colour that they answer most to", detects),
        ):
            of(f"share of filters {label}", over((chosen & alive).sum(1) / alive.sum(1), within=(0.0, 1.0)))
        for label, chosen in (("all have a colour", one.purity > 0.5), ("all detect their colour", detects)):
            whole = np.asarray((chosen | ~alive).all(1))
            of(f"share of networks whose filters {label}", proportion(float(whole.mean()), len(whole)))
        of("share of filters that are black", over(1 - alive.mean(1), within=(0.0, 1.0)))
        for name, coloured in _GROUPS.items():
            brightness[name].append(_mean(brightness_of(one, coloured), (0.0, 1.0)))
            of(f"brightness of {name}", brightness[name][-1])
        of("dot product of green over red and blue detectors", _mean(green_over_others(one), (0.0, math.inf)))
        lengths = np.sqrt(one.energies.sum(-1))
        masses = (lengths * (one.colours == GREEN)).sum(1) / (lengths * (one.colours != GREEN)).sum(1)
        of("length of all green over all red and blue filters", _mean(masses, (0.0, math.inf)))
        tell.array(f"m = {size}", one.energies[0], kind="filters")
        tell.array(f"m = {size}", one.energies, kind="all filters")
        tell.array(f"m = {size}", one.responses, kind="dot products")
        tell.array(f"m = {size}", one.seen, kind="colours answered to")
    for first, then in itertools.combinations(SIZES, 2):
        if first not in networks or then not in networks:
            continue
        words = f"m = {then} over m = {first}"
        pair = networks[then], networks[first]
        for name, coloured in _GROUPS.items():
            tell.about(name)(f"brightness at {words}", ratio(*(brightness_of(one, coloured) for one in pair)))
        tell.about("dot product of green over red and blue")(words, ratio(*map(green_over_others, pair)))
    for name, means in brightness.items():
        rows = [[one.value, np.nan_to_num(one.high - one.value)] for one in means]
        tell.array(name, np.array(rows).T, kind="brightness")


def _mean(values: np.ndarray, within: tuple[float, float]) -> Estimate:
    """Over runs whose value is a number."""
    known = values[np.isfinite(values)]
    return over(known, within=within) if len(known) else Estimate(math.nan)


# Figure 4

PATTERNS, SIDE, PER_INPUT, GRID = 25, 10, 16, (4, 4)
_PATTERNS = {"patterns": PATTERNS, "patterns of an input": PER_INPUT, "pixels": SIDE}
_MANY = _PATTERNS | {"inputs": 2000, "seed": 0}


def cosine_patches(per_axis: int, side: int, *, seed: int) -> Tensor:
    """``(per_axis², 1, side, side)`` orthonormal patches, the lowest cosine waves along both axes, in random order.

    Example:
        >>> patches = cosine_patches(2, 3, seed=0).flatten(1)
        >>> torch.allclose(patches @ patches.T, torch.eye(4, dtype=torch.float64))
        True
    """
    pixels, waves = (torch.arange(count, dtype=torch.float64) for count in (side, per_axis))
    lines = torch.cos(math.pi * waves[:, None] * (pixels + 0.5) / side)
    lines = lines / lines.norm(dim=1, keepdim=True)
    patches: Tensor = torch.einsum("ax,by->abxy", lines, lines).reshape(-1, 1, side, side)
    return patches[torch.randperm(len(patches), generator=generator_for(torch.device("cpu"), seed, "patches"))]


def _drawn_patterns(finding: Finding, dark: bool) -> Figure:
    reading = (
        "Each picture is an input of 16 of 25 orthogonal patches; frames mark the patch that tells its class, of the first two of "
        "each class. All other patches may be in either class."
    )
    images, labels, marks = (finding.arrays[key] for key in ("images", "labels", "marks"))
    picture, colours, reach = blank(2.3, reading), PALETTE[dark], float(np.abs(images).max())
    grid = picture.add_gridspec(2, 4)
    for row, (label, words) in enumerate(((1, "positive"), (-1, "negative"))):
        for column, place in enumerate(np.flatnonzero(labels == label)[:4]):
            axes = panel(picture, dark, grid[row, column], xticks=[], yticks=[])
            heat(axes, images[place], dark, (-reach, reach))
            axes.set_ylabel("" if column else words, color=colours.ink)
            if column < 2:
                _framed(axes, int(marks[place]), colours.ink)
    return picture


def _framed(axes: Axes, place: int, colour: str) -> None:
    from matplotlib.patches import Rectangle

    down, right = divmod(place, GRID[1])
    corner = right * SIDE - 0.5, down * SIDE - 0.5
    axes.add_patch(Rectangle(corner, SIDE, SIDE, fill=False, edgecolor=colour, linewidth=2.2, clip_on=False))


@figure(
    "4",
    title="Examples of an orthogonal patterns distribution: 16 of 25 patches of 10 × 10 pixels",
    plan=Plan(_MANY | {"inputs": 40}, _MANY, _MANY, _PATTERNS),
    show=_drawn_patterns,
)
def figure_4(plan: Row, run: Run, tell: Tell) -> None:
    """The patches are found again in the pixels, by their products with all patterns."""
    seed = plan["seed"]
    patches = cosine_patches(math.isqrt(PATTERNS), SIDE, seed=seed)
    law = PatternDistribution("uniform", PER_INPUT, PATTERNS)
    samples = law.draw(plan["inputs"], seed=seed).shuffled(seed=seed)
    images = samples.images(patches, grid=GRID)  # (m, 1, 40, 40)
    there = F.conv2d(images, patches, stride=SIDE).flatten(2).mT > 0.5  # which pattern stands where (m, n, P)
    gram = patches.flatten(1) @ patches.flatten(1).T
    marked = samples.labels[:, None] == torch.tensor([1, -1])
    own = (there.sum(1)[:, :2] == marked.long()).all(1)
    spurious = (there.sum(1)[:, 2:].amax(1) <= 1) & (there[..., 2:].sum((1, 2)) == PER_INPUT - 1)
    module = builder("pattern_cnn")(image_size=GRID[0] * SIDE, patch=SIDE, k=1)
    network = Network.of(module).with_params({"conv.weight": patches[:2]}).to(torch.device("cpu"), torch.float64)
    right = correct(network(images), (samples.labels == 1).long())
    places = there[..., :2].any(-1).double()
    for label, number in (
        ("largest absolute product of two patterns", (gram - gram.diag().diag()).abs().max()),
        ("largest distance of a norm from 1", (gram.diag().sqrt() - 1).abs().max()),
        ("share of inputs with the pattern of their class alone", own.double().mean()),
        ("share of inputs with 15 different spurious patterns", spurious.double().mean()),
        ("accuracy of w = p₁, u = p₂", 100 * right.double().mean()),
        ("largest minus least share of a place of the marking pattern", np.ptp(places.mean(0).numpy())),
    ):
        tell(label, Estimate.exact(float(number)))
    tell("share of positive inputs", over((samples.labels == 1).double().numpy(), within=(0, 1)))
    few = torch.cat([(samples.labels == label).nonzero()[:4, 0] for label in (1, -1)])
    tell.array("images", images[few, 0].float().numpy())
    tell.array("labels", samples.labels[few].numpy())
    tell.array("marks", places[few].argmax(1).numpy())
    tell.array("patches", patches[:, 0].float().numpy())
    tell.note("The paper does not say what its patches are: here they are cosine waves, which are orthogonal.")
