"""Figures 4 to 7: inputs made of orthogonal patches, and the filters that learned coloured digits."""

# r runs · K = 2k filters · m inputs · n patches of an input · P patterns

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from biascope.families.family import Network
from biascope.networks import builder
from biascope.papers.patterns2021.digits import (
    BATCH,
    EPOCHS,
    PART,
    PLANS,
    RATE,
    RECIPE,
    SIZES,
    SMALL,
    K,
    Learned,
    learned,
    mnist,
)
from biascope.papers.selection import old_figure
from biascope.results.draw import PALETTE, blank, heat, legend_below, panel
from biascope.results.estimate import Estimate, Number, over, proportion
from biascope.results.finding import Finding
from biascope.results.wording import snake
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

FRESH = (
    1  # seed: the filters of figure 2's networks, from seed 0, had been seen when claims went by the paper's own words
)

_NAMES = {BLUE: "blue", RED: "red", GREEN: "green"}  # in the order in which filters are drawn


def brightness_of(found: Learned, coloured: bool) -> np.ndarray:
    """``(r,)`` mean brightness of a run's blue and red filters, or of its green ones; nan where there are none."""
    chosen = ((found.colours != GREEN) == coloured) & (found.brightness > DARK)
    with np.errstate(invalid="ignore"):
        return np.asarray((found.brightness * chosen).sum(1) / chosen.sum(1))


def response_of(found: Learned, coloured: bool) -> np.ndarray:
    """``(r,)`` mean dot product of detectors with what they detect, blue and red digits or green ones, likewise."""
    chosen = ((found.seen != GREEN) == coloured) & (found.brightness > DARK)
    with np.errstate(invalid="ignore"):
        return np.asarray((found.responses * chosen).sum(1) / chosen.sum(1))


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


@old_figure(
    "5-7",
    title="All filters that learned the coloured digits, by colour and brightness",
    show=_drawn_filters,
    published=RECIPE,
)
def figure_5_to_7(effort: str, run: Run) -> Finding:
    """Colours, brightness and responses of filters of networks trained as in figure 2, from another seed."""
    test, plan, _, _ = PLANS[effort]
    digits, epochs = mnist(run), 2 * PART if effort == "smoke" else EPOCHS
    how: dict[str, Any] = {"test": test, "epochs": epochs, "seed": FRESH, "run": run.shared}
    found = {size: learned(digits, size, runs, **how) for size, runs in plan.items()}
    settings = {"digits": digits.name, "runs by m": plan, "k": K, "rate": RATE, "batch": f"min({BATCH}, m)"}
    return filters_finding(found, settings | {"epochs": epochs, "σ_g": SMALL, "seed": FRESH})


def filters_finding(found: dict[int, Learned], settings: dict[str, Any]) -> Finding:
    """What the filters of trained networks say, by training size."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    groups = {"red and blue filters": True, "green filters": False}
    least = min(float(one.train.min()) for one in found.values())
    statistics["least_train_accuracy"] = Estimate.exact(least).named("least train accuracy")
    for size, one in found.items():
        title = f"m = {size}"
        alive = one.brightness > DARK
        added = np.arange(alive.shape[1]) < alive.shape[1] // 2
        wrong = np.where(added, one.colours == RED, one.colours == BLUE)
        for stem, words, chosen in (
            ("of_one_colour", "of one colour", one.purity > PURE),
            ("that_are_green", "that are green", one.colours == GREEN),
            (
                "that_are_red_though_added_or_blue_though_subtracted",
                "that are red though added, or blue though subtracted",
                wrong,
            ),
            (
                "of_the_colour_that_they_answer_most_to",
                "of the colour that they answer most to",
                one.colours == one.seen,
            ),
        ):
            shares = (chosen & alive).sum(1) / alive.sum(1)
            statistics[f"{snake(title)}_share_of_filters_{stem}"] = over(shares, within=(0.0, 1.0)).named(
                f"{title}: share of filters {words}"
            )
        for stem, words, chosen in (
            ("all_have_a_colour", "all have a colour", one.purity > 0.5),
            ("all_detect_their_colour", "all detect their colour", one.colours == one.seen),
        ):
            whole = np.asarray((chosen | ~alive).all(1))
            statistics[f"{snake(title)}_share_of_networks_whose_filters_{stem}"] = proportion(
                float(whole.mean()), len(whole)
            ).named(f"{title}: share of networks whose filters {words}")
        statistics[f"{snake(title)}_share_of_filters_that_are_black"] = over(
            1 - alive.mean(1), within=(0.0, 1.0)
        ).named(f"{title}: share of filters that are black")
        for name, coloured in groups.items():
            bright = brightness_of(one, coloured)
            statistics[f"{snake(title)}_brightness_of_{snake(name)}"] = _mean(bright, (0.0, 1.0)).named(
                f"{title}: brightness of {name}"
            )
        quotient = response_of(one, False) / response_of(one, True)
        statistics[f"{snake(title)}_dot_product_of_green_over_red_and_blue_detectors"] = _mean(
            quotient, (0.0, math.inf)
        ).named(f"{title}: dot product of green over red and blue detectors")
        lengths = np.sqrt(one.energies.sum(-1))
        masses = (lengths * (one.colours == GREEN)).sum(1) / (lengths * (one.colours != GREEN)).sum(1)
        statistics[f"{snake(title)}_length_of_all_green_over_all_red_and_blue_filters"] = _mean(
            masses, (0.0, math.inf)
        ).named(f"{title}: length of all green over all red and blue filters")
        arrays[f"filters: {title}"] = one.energies[0]
        arrays[f"all filters: {title}"] = one.energies
        arrays[f"dot products: {title}"] = one.responses
        arrays[f"colours answered to: {title}"] = one.seen
    for first, then in ((6, 20), (20, 1000), (6, 1000)):
        if first not in found or then not in found:
            continue
        for name, coloured in groups.items():
            statistics[f"{snake(name)}_brightness_at_m_{then}_over_m_{first}"] = ratio(
                *(brightness_of(found[size], coloured) for size in (then, first))
            ).named(f"{name}: brightness at m = {then} over m = {first}")
        quotients = [response_of(found[size], False) / response_of(found[size], True) for size in (then, first)]
        statistics[f"dot_product_of_green_over_red_and_blue_m_{then}_over_m_{first}"] = ratio(*quotients).named(
            f"dot product of green over red and blue: m = {then} over m = {first}"
        )
    for name in groups:
        each = [statistics[f"m_{size}_brightness_of_{snake(name)}"] for size in found]
        arrays[f"brightness: {name}"] = np.array([[one.value, np.nan_to_num(one.high - one.value)] for one in each]).T
    notes = (
        "Brightness is the length of a filter's positive part relative to the longest of its network. Means over filters of a colour "
        "are over runs that have any: with 1,000 images a few green ones are left, or none. Shares are of filters that are not black.",
        "The lengths of all green over all red and blue filters, which count runs without green ones as 0, were added after the first "
        "run, and decide no claim.",
        "Figures 5 to 7 show all filters of one network for each m. So claims ask for all filters of a network, in most networks.",
        "Filters are drawn as plain colours: their pixels would show digits of the data set.",
    )
    return Finding(statistics, arrays, settings, notes)


def _mean(values: np.ndarray, within: tuple[float, float]) -> Estimate:
    """Over runs whose value is a number."""
    known = values[np.isfinite(values)]
    return over(known, within=within) if len(known) else Estimate(math.nan)


# Figure 4

PATTERNS, SIDE, PER_INPUT, GRID = 25, 10, 16, (4, 4)
_INPUTS = {"smoke": 40, "laptop": 2000, "paper": 2000}


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


@old_figure(
    "4",
    title="Examples of an orthogonal patterns distribution: 16 of 25 patches of 10 × 10 pixels",
    show=_drawn_patterns,
    published={"patterns": PATTERNS, "patterns of an input": PER_INPUT, "pixels": SIDE},
)
def figure_4(effort: str, run: Run) -> Finding:
    """The patches are found again in the pixels, by their products with all patterns."""
    patches = cosine_patches(math.isqrt(PATTERNS), SIDE, seed=0)
    samples = PatternDistribution("uniform", PER_INPUT, PATTERNS).draw(_INPUTS[effort], seed=0).shuffled(seed=0)
    images = samples.images(patches, grid=GRID)  # (m, 1, 40, 40)
    products = F.conv2d(images, patches, stride=SIDE).flatten(2).mT  # (m, n, P)
    gram = patches.flatten(1) @ patches.flatten(1).T
    found = products > 0.5  # which pattern stands where
    marked = samples.labels[:, None] == torch.tensor([1, -1])
    own = (found.sum(1)[:, :2] == marked.long()).all(1)
    spurious = (found.sum(1)[:, 2:].amax(1) <= 1) & (found[..., 2:].sum((1, 2)) == PER_INPUT - 1)
    settings = {"image_size": GRID[0] * SIDE, "patch": SIDE, "k": 1}
    network = Network.of(builder("pattern_cnn")(**settings)).with_params({"conv.weight": patches[:2]})
    right = correct(network.to(torch.device("cpu"), torch.float64)(images), (samples.labels == 1).long())
    places, size = found[..., :2].any(-1).double(), len(images)
    statistics = {
        "largest_absolute_product_of_two_patterns": Estimate.exact(
            float((gram - gram.diag().diag()).abs().max())
        ).named("largest absolute product of two patterns"),
        "largest_distance_of_a_norm_from_1": Estimate.exact(float((gram.diag().sqrt() - 1).abs().max())).named(
            "largest distance of a norm from 1"
        ),
        "share_of_inputs_with_the_pattern_of_their_class_alone": Estimate.exact(float(own.double().mean())).named(
            "share of inputs with the pattern of their class alone"
        ),
        "share_of_inputs_with_15_different_spurious_patterns": Estimate.exact(float(spurious.double().mean())).named(
            "share of inputs with 15 different spurious patterns"
        ),
        "accuracy_of_w_p1_u_p2": Estimate.exact(100 * float(right.double().mean())).named("accuracy of w = p₁, u = p₂"),
        "share_of_positive_inputs": over((samples.labels == 1).double().numpy(), within=(0, 1)).named(
            "share of positive inputs"
        ),
        "largest_minus_least_share_of_a_place_of_the_marking_pattern": Estimate.exact(
            float(np.ptp(places.mean(0).numpy()))
        ).named("largest minus least share of a place of the marking pattern"),
    }
    few = torch.cat([(samples.labels == label).nonzero()[:4, 0] for label in (1, -1)])
    arrays = {"images": images[few, 0].float().numpy(), "labels": samples.labels[few].numpy()}
    arrays |= {"marks": places[few].argmax(1).numpy(), "patches": patches[:, 0].float().numpy()}
    settings = {"inputs": size, "patterns": PATTERNS, "patterns of an input": PER_INPUT, "pixels": SIDE, "seed": 0}
    notes = ("The paper does not say what its patches are: here they are cosine waves, which are orthogonal.",)
    return Finding(statistics, arrays, settings, notes)
