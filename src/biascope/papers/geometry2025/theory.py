"""Figures 7 and 9, and appendices A.4 and A.12: what theory says of the geometry at initialisation, and what it looks like."""

# g groups of draws, or networks · D input size · n width

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from biascope.derivatives.covariance import GradientSampler, gradient_covariance
from biascope.derivatives.gradients import input_gradient
from biascope.derivatives.matrices import DrawnMatrix, data_covariance
from biascope.families.family import Family, Network
from biascope.families.weights import Params
from biascope.measures.geometry_evolution import geometry_evolution
from biascope.papers.geometry2025 import models as geometry_models
from biascope.papers.geometry2025.shared import (
    PROBES,
    TITLES,
    activations,
    cifar_2,
    family_of,
    geometry_settings,
    probe_scale,
    published_geometry,
    released_family,
    run_of,
)
from biascope.papers.selection import old_figure
from biascope.results.draw import PALETTE, blank, heat, legend_below, panel, plain
from biascope.results.estimate import Estimate, Number, jackknife
from biascope.results.figures import lines_figure
from biascope.results.finding import Finding
from biascope.results.wording import snake
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays
from biascope.training.velocity import gradient_velocity, weight_velocity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROUPS = 32  # independent estimates of one matrix
NAMES = {"smoke": ("mlp",), "laptop": ("mlp", "lenet"), "paper": ("mlp", "lenet")}  # of A.4 and conjecture 2
Velocity = Callable[[Network, int], Params]


def small_images(side: int, each: int, run: Run) -> Arrays:
    """CIFAR-2 with so many training samples of each class, averaged down to a side."""
    data = cifar_2(each, 100, run)
    step = data.shape[-1] // side
    splits = {split: (nn.functional.avg_pool2d(x, step), y) for split, (x, y) in data.splits.items()}
    return dataclasses.replace(data, splits=splits, name=f"{data.name}, of {side} × {side} pixels")


def difference(one: Estimate, two: Estimate, samples: int = GROUPS) -> Estimate:
    """The difference, with the error of independent numbers; nan where one of them is within its noise."""
    found = one.minus(two, samples)
    return found if math.isfinite(found.standard_error) else Estimate(math.nan)


# Numbers of a matrix that is known from independent estimates of it


def unbiased(top: Tensor, left: Tensor, right: Tensor) -> Estimate:
    """``⟨top⟩/√(⟨left⟩⟨right⟩)``, each a mean over pairs of distinct groups of ``(g, g)`` products; jackknife over groups.

    A product of two independent estimates has no bias, where the square of one counts its noise. It is nan where some groups
    more or less decide whether there is anything but noise.

    Example:
        >>> pairs = torch.full((4, 4), 2.0) + 5 * torch.eye(4)  # the diagonal is not looked at
        >>> round(unbiased(pairs, pairs, torch.full((4, 4), 8.0)).value, 6)
        0.5
    """
    apart = ~torch.eye(len(top), dtype=torch.bool, device=top.device)

    def value(kept: Tensor) -> float:
        over, one, two = (float(each[kept][:, kept][apart[kept][:, kept]].mean()) for each in (top, left, right))
        return over / math.sqrt(one * two) if min(one, two) > 0 else math.nan

    every = torch.arange(len(top), device=top.device)
    whole, left_out = value(every), [value(every[every != group]) for group in range(len(top))]
    return jackknife(whole, left_out) if all(map(math.isfinite, [whole, *left_out])) else Estimate(math.nan)


def corr(one: Tensor, two: Tensor) -> Estimate:
    """``Corr(E M, B)`` from independent estimates ``(g, D, D)`` of M, B being given ``(D, D)`` or estimated too ``(g, D, D)``.

    Of two that are estimated, only the estimates of the same place may depend on each other.
    """
    first, second = one.flatten(1), two.to(one).reshape(-1, one[0].numel())
    products = first @ first.T
    return unbiased((first @ second.T).expand_as(products), products, (second @ second.T).expand_as(products))


def possible_corr(one: Tensor, two: Tensor) -> Estimate:
    """:func:`corr` as it is reported."""
    return as_possible(corr(one, two))


def as_possible(found: Estimate) -> Estimate:
    """A correlation and its interval between −1 and 1: noise can carry them beyond.

    Example:
        >>> as_possible(Estimate(-1.01, 0.02, -1.05, -0.97))
        -1.00 ± 0.020 (95 % CI -1.000 to -0.970)
    """
    return found.within(-1.0, 1.0)


def share_within(groups: Tensor, mask: Tensor) -> Estimate:
    """Share of ``‖E M‖²`` in the entries of a mask."""
    flat = groups.flatten(1)
    whole = flat @ flat.T
    return unbiased((flat * mask.to(flat).flatten()) @ flat.T, whole, whole).within(0.0, 1.0)


def periodic_share(groups: Tensor, shape: Sequence[int], period: int) -> Estimate:
    """How far the patterns in a geometry repeat: 1 if every p pixels, 0 for white noise; the constant image is left out.

    With Π the projector on images that repeat, of rank p², and P the one on images of mean 0, it is ``tr(PΠG)/tr(PG)``, moved
    and stretched so that a multiple of the identity has 0.
    """
    place = torch.arange(math.prod(shape), device=groups.device)
    row, column = place // shape[-1] % shape[-2], place % shape[-1]
    classes = nn.functional.one_hot(row % period * period + column % period).to(groups)  # (D, p²)
    classes = classes / classes.sum(0).sqrt()
    constant = groups.mean((1, 2)) * len(place)  # along the unit vector of the constant image
    repeats = torch.einsum("gde,dk,ek->g", groups, classes, classes) - constant
    whole = groups.diagonal(dim1=1, dim2=2).sum(1) - constant
    pairs = (each[:, None].expand(-1, len(groups)) for each in (repeats, whole, whole))
    chance = (period**2 - 1) / (len(place) - 1)
    return unbiased(*pairs).map_linear(1 / (1 - chance), -chance / (1 - chance))


# Figure 7


def perceptron(shape: Sequence[int], width: int) -> nn.Module:
    """One hidden ReLU layer without biases, all weights from N(0, 1), as in theorem 3.1."""
    first = nn.Linear(math.prod(shape), width, bias=False)
    return with_gaussian_weights(nn.Flatten(), first, nn.ReLU(), nn.Linear(width, 1, bias=False))


def pooled_convolution(shape: Sequence[int], width: int, kernel: int = 3) -> nn.Module:
    """A linear convolution with global average pooling, all weights from N(0, 1), as in theorem 3.2.

    Pooling comes first, which is the same for a linear layer and many times cheaper: over all positions, a tap of the kernel
    sees a window of the image.
    """
    pool, first = nn.AvgPool2d(shape[-1] - kernel + 1, stride=1), nn.Linear(shape[0] * kernel**2, width, bias=False)
    return with_gaussian_weights(pool, nn.Flatten(), first, nn.Linear(width, 1, bias=False))


def with_gaussian_weights(*layers: nn.Module) -> nn.Module:
    """Layers in a row, all their weights from N(0, 1)."""
    module = nn.Sequential(*layers)
    for weight in module.parameters():
        nn.init.normal_(weight)
    return module


def velocity_on_some(data: Arrays, samples: int, run: Run) -> Velocity:
    """``θ̇`` for targets 0 and one sample on average, on samples chosen anew for every stack."""
    x, _ = data.to(run).whole("train")

    def velocity(networks: Network, start: int) -> Params:
        few = torch.randperm(len(x), generator=generator_for(torch.device("cpu"), 0, "samples", start))[:samples]
        found = weight_velocity(networks, x[few.to(x.device)], x.new_zeros(len(few)))
        return {name: each / len(few) for name, each in found.items()}

    return velocity


def velocity_of_linear(covariance: Tensor, shape: Sequence[int]) -> Velocity:
    """``θ̇`` for targets 0 and data of a covariance S, for networks that are linear in their input.

    There ``f(x) = gᵀx`` and ∇_θf is linear in x, so that ``θ̇ = −Σ f(x_μ)∇_θf(x_μ) = −∇_θf(Sg)``: all data in one backward pass.
    """

    def velocity(networks: Network, start: int) -> Params:
        some = next(iter(networks.params.values()))
        gradient = input_gradient(networks.read("first"), some.new_zeros(1, *shape))
        pulled = (gradient.double() @ covariance.to(some.device)).to(some).reshape(-1, 1, *shape)

        def minus(params: Params, buffers: Params, x: Tensor) -> Tensor:
            return -networks.apply(params, buffers, x).sum()

        found: Params = vmap(grad(minus))(networks.params, networks.buffers, pulled)
        return found

    return velocity


def evolutions(family: Family, shape: Sequence[int], velocity: Velocity, draws: int, run: Run) -> Tensor:
    """Independent estimates ``(g, D, D)`` of Δ at N(0, I) inputs, one for each network."""
    size, device = math.prod(shape), run.torch_device
    most = (2**23 if device.type == "cpu" else 2**29) // (family.num_parameters + 8 * size)
    most = max(1, min(most, 8192))
    stream = family.draws(seed=0, run=run)
    found = torch.zeros(GROUPS, size, size, dtype=torch.float64, device=device)
    each = draws // GROUPS
    with run.tracked(f"{family.name}: evolution", draws) as advance, run.products():
        for start in (first for group in range(GROUPS) for first in range(group * each, (group + 1) * each, most)):
            stop = min(start + most, (start // each + 1) * each)
            networks, generator = stream[start:stop], generator_for(device, 0, "probe", start)
            x = torch.randn(stop - start, 1, *shape, generator=generator, device=device, dtype=run.dtype)
            slope, moved = gradient_velocity(networks.read("first"), x, velocity(networks, start), paired=True)
            half = moved.flatten(0, 1).double().T @ slope.flatten(0, 1).double()
            found[start // each] += (half + half.T) / each
            advance(stop - start)
    return found


@dataclasses.dataclass(frozen=True)
class Theorem:
    """A model of figure 7: its networks by width, how they move, and its Δ and abs Corr(Δ, target) by closed forms.

    What is said of it is in words, and as the part of a key.
    """

    title: str
    said: str
    key: str
    build: Callable[[Sequence[int], int], nn.Module]
    velocity: Velocity
    target: np.ndarray
    evolution: Callable[..., np.ndarray]
    alignment: Callable[..., float]
    fan_in: int

    def gap(self, width: float) -> float:
        """``1 − |Corr|`` for weights of variance 1."""
        return 1 - self.alignment(int(width), weight_std=1.0, readout_std=1.0)

    def measured(self, shape: Sequence[int], width: int, draws: int, run: Run) -> tuple[Estimate, float]:
        """``|Corr|``, and how far it, ``⟨Δ, target⟩`` and ``tr Δ`` are from their exact values, in standard errors at most."""
        family = Family.initialised(functools.partial(self.build, shape, width), name=f"{self.title} of width {width}")
        groups = evolutions(family, shape, self.velocity, draws, run)
        found = corr(groups, torch.from_numpy(self.target)).map_linear(-1.0)
        apart = [abs(found.value - 1 + self.gap(width)) / found.standard_error]
        exact = torch.from_numpy(self.evolution(width, weight_std=1.0, readout_std=1.0)).to(groups)
        for against in (torch.from_numpy(self.target).to(groups), torch.eye(len(exact)).to(groups)):
            along = ((groups - exact) * against).sum((1, 2))
            apart.append(float(along.mean().abs() / along.std()) * GROUPS**0.5)
        return found, max(apart)


def slope_of(widths: Sequence[float], values: Sequence[float], errors: Sequence[float] | None = None) -> Estimate:
    """Of log value against log width; with standard errors of the values, with its own."""
    x, y = np.log(np.asarray(widths, float)), np.log(np.asarray(values, float))
    weights = (x - x.mean()) / np.square(x - x.mean()).sum()
    if errors is None:
        return Estimate.exact(float(weights @ y))
    relative = np.asarray(errors, float) / np.asarray(values, float)
    return Estimate.from_error(float(weights @ y), float(np.linalg.norm(weights * relative)), GROUPS)


_NARROW, _CHANNELS = (4, 16, 64, 256), (1, 2, 4, 8, 16, 32)
# Side of the images, samples of each class, samples of an instant, draws by width of the MLP and of the CNN.
_EVOLVED: dict[str, tuple[int, int, int, dict[int, int], dict[int, int]]] = {
    "smoke": (8, 100, 8, {2: 320, 8: 320}, {1: 640, 4: 640}),
    "laptop": (8, 2000, 32, {**dict.fromkeys(_NARROW, 16_000), 1024: 6400}, dict.fromkeys(_CHANNELS, 192_000)),
    "paper": (32, 5000, 32, {**dict.fromkeys(_NARROW, 64_000), 1024: 32_000}, dict.fromkeys((*_CHANNELS, 64), 960_000)),
}
_FAR, _HUGE = (256, 1024, 4096), (2**14, 2**17, 2**20)  # widths at which only the closed form is looked at


def curves_figure(finding: Finding, dark: bool, x: str, y: str, log_y: bool = False) -> Figure:
    """Places, values and, where known, intervals."""
    curves = {name: (array[0], array[1]) for name, array in finding.arrays.items()}
    bands = {name: (array[2], array[3]) for name, array in finding.arrays.items() if len(array) > 2}
    return lines_figure(curves, x=x, y=y, log_x=True, log_y=log_y, bands=bands, dark=dark)


@old_figure(
    "7",
    title="Correlation of Δ with S and with GSG against width: an MLP and a linear CNN with global average pooling, on CIFAR-2",
    show=lambda finding, dark: curves_figure(finding, dark, "width", "1 − abs Corr", log_y=True),
    published={"training samples": 10_000, "side of the images": 32},
)
def figure_7(effort: str, run: Run) -> Finding:
    """Measured from draws beside the closed forms."""
    side, each, samples, wide, deep = _EVOLVED[effort]
    data = small_images(side, each, run)
    covariance = data_covariance(data.to(run).whole("train")[0]) / data.sizes["train"]
    s, size = covariance.cpu().numpy(), math.prod(data.shape)
    taps = geometry_models.mean_tap_matrix(data.shape[1:], 3, channels=data.shape[0])
    q = taps @ taps.T
    forms = functools.partial(geometry_models.mlp_evolution, s), functools.partial(geometry_models.mlp_alignment, s)
    moved = velocity_on_some(data, samples, run)
    mlp = Theorem("MLP", "abs Corr(Δ, S)", "abs_corr_delta_s", perceptron, moved, s, *forms, size)
    forms = (
        functools.partial(geometry_models.pooled_convolution_evolution, s, taps),
        functools.partial(geometry_models.pooled_convolution_alignment, s, taps),
    )
    moved = velocity_of_linear(covariance, data.shape)
    cnn = Theorem(
        "CNN", "abs Corr(Δ, GSG)", "abs_corr_delta_gsg", pooled_convolution, moved, q @ s @ q, *forms, taps.shape[1]
    )
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for model, plan in ((mlp, wide), (cnn, deep)):
        found, apart, title, key = [], [], model.title, snake(model.title)
        for width, draws in plan.items():
            one, off = model.measured(data.shape, width, draws, run)
            found.append(one)
            apart.append(off)
            words, stem = f"{title}: {model.said} at width {width}", f"{key}_{model.key}_at_width_{width}"
            scaled = model.alignment(width, weight_std=model.fan_in**-0.5, readout_std=width**-0.5)
            statistics |= {
                stem: one.named(words),
                f"{stem}_exact": Estimate.exact(1 - model.gap(width)).named(f"{words}, exact"),
                f"{stem}_exact_for_variances_1_fan_in": Estimate.exact(scaled).named(
                    f"{words}, exact for variances 1/fan-in"
                ),
            }
        statistics |= {
            f"{key}_{model.key}_at_the_largest_width": found[-1].named(f"{title}: {model.said} at the largest width"),
            f"{key}_rise_of_{model.key}": difference(found[-1], found[0]).named(f"{title}: rise of {model.said}"),
            # A test statistic: its bound allows for the draws.
            f"{key}_standard_errors_from_the_exact_expression_at_most": Estimate.exact(max(apart)).named(
                f"{title}: standard errors from the exact expression at most"
            ),
        }
        told = [(n, 1 - a.value, a.standard_error) for n, a in zip(plan, found, strict=True)]
        if len(told := [row for row in told if row[1] > 4 * row[2]][-3:]) == 3:  # where noise does not bend it
            there = [row[0] for row in told]
            statistics |= {
                f"{key}_slope_of_1_minus_abs_corr_measured": slope_of(*zip(*told, strict=True)).named(
                    f"{title}: slope of 1 − abs Corr, measured"
                ),
                f"{key}_slope_of_1_minus_abs_corr_exact_there": slope_of(there, [model.gap(n) for n in there]).named(
                    f"{title}: slope of 1 − abs Corr, exact, there"
                ),
            }
        lines = 2.0 ** np.arange(13)
        arrays[f"{title}, exact"] = np.stack([lines, [model.gap(n) for n in lines]])
        rows = [[n, 1 - a.value, 1 - a.high, 1 - a.low] for n, a in zip(plan, found, strict=True)]
        arrays[f"{title}, measured"] = np.array(rows, float).T
    gaps = [cnn.gap(n) for n in _FAR]
    statistics |= {
        "mlp_exact_abs_corr_delta_s_at_width_220": Estimate.exact(1 - mlp.gap(_HUGE[-1])).named(
            "MLP: exact abs Corr(Δ, S) at width 2²⁰"
        ),
        "mlp_slope_of_1_minus_abs_corr_exact_widths_214_to_220": slope_of(_HUGE, [mlp.gap(n) for n in _HUGE]).named(
            "MLP: slope of 1 − abs Corr, exact, widths 2¹⁴ to 2²⁰"
        ),
        "cnn_slope_of_1_minus_abs_corr_exact_to_width_4096": slope_of(_FAR, gaps).named(
            "CNN: slope of 1 − abs Corr, exact, to width 4096"
        ),
        "cnn_slope_of_the_angle_exact_to_width_4096": slope_of(_FAR, [math.acos(1 - gap) for gap in gaps]).named(
            "CNN: slope of the angle, exact, to width 4096"
        ),
    }
    settings: dict[str, Any] = {"samples": data.name, "kernel": 3, "samples of an instant": samples, "seed": 0}
    settings |= {"training samples": data.sizes["train"], "side of the images": side}
    settings |= {"draws of the MLP by width": wide, "draws of the CNN by width": deep, "variances": 1.0}
    notes = (
        "Corr itself is negative: under squared loss the geometry shrinks along S and GSG.",
        "The initial variances decide the figure, and the paper does not print them: here they are 1. What variances 1/fan-in give "
        "stands beside, by the closed form.",
        "The printed rate 1/n of theorem 3.2 is that of the angle between Δ and GSG; 1 − abs Corr is half its square and falls like "
        "n⁻². As an upper bound the printed rate holds for both. At finite width the exact slope is about −2·2n/(2n+3).",
        "For the MLP a multiple of the identity stays at fixed D however large n is: the rate is O(1/√D) + O(1/n).",
        "Targets are 0, since the labels drop out on average (proposition A.1); G of the CNN is the exact one.",
    )
    return Finding(statistics, arrays, settings, notes)


# Figure 9 and A.12

_DRAWS: dict[str, dict[str, int]] = {
    "smoke": {"mlp": 8, "lenet": 8},
    "laptop": {"mlp": 4000, "lenet": 4000},
    "paper": {"mlp": 10_000, "lenet": 10_000, "resnet18": 2000, "vit": 2000},
}
BAND, PERIOD, OTHER = 5, 8, 7  # pixels: side of LeNet's kernels; of a patch, and product of ResNet's strides; a control
_PUBLISHED_GEOMETRIES = published_geometry(list(_DRAWS["paper"]), 1e-3)


def _grey(effort: str) -> tuple[int, int, int]:
    """The images of figures 9 and A.12; at smoke a quarter of the pixels."""
    return (1, 16, 16) if effort == "smoke" else (1, 32, 32)


def geometries(name: str, probe: Probe, draws: int, run: Run, *, shape: tuple[int, int, int], seed: int = 0) -> Tensor:
    """Independent estimates ``(g, D, D)`` of the average geometry of one of the paper's networks, for grey images."""
    return geometries_of(family_of(name, shape), probe, draws, run, seed=seed)


def geometries_of(family: Family, probe: Probe, draws: int, run: Run, *, seed: int = 0) -> Tensor:
    """The same of any network."""
    how: dict[str, Any] = {"estimator": "exact", "step": 1.0, "readout": "mean", "seed": seed}
    sampler = GradientSampler(family, probe, **how, run=run_of(family, run))
    found = gradient_covariance(sampler, draws=draws, seed=seed, label=f"{family.name}: geometry")
    identity = torch.eye(found.size, dtype=torch.float64, device=found.device)
    return torch.stack([group.second.matmul(identity) / group.draws for group in found.groups])


def _gaussian_probe(scale: float, shape: tuple[int, int, int]) -> Probe:
    return Probe.gaussian(shape, num=PROBES, std=scale, fresh=True, seed=0)


def settings_of_geometries(effort: str) -> dict[str, Any]:
    """Settings of figures 9 and A.12 at an effort."""
    draws = _DRAWS[effort]
    spreads = {name: probe_scale(name) for name in draws}
    return {**activations(draws), **geometry_settings(draws, PROBES, spreads), "seed": 0}


def _drawn_geometries(finding: Finding, dark: bool) -> Figure:
    names = list(finding.arrays_of("matrix"))
    rows, ink = math.ceil(len(names) / 2), PALETTE[dark].ink
    reading = "G between the pixels of four rows in the middle of the image, relative to its mean diagonal; below, eigenvalues."
    picture = blank(2.1 * rows + 2.2, reading)
    grid = picture.add_gridspec(rows + 1, 2, height_ratios=[2.1] * rows + [1.7])
    below = panel(picture, dark, grid[rows, :], xscale="log", yscale="log", xlabel="eigenvalue number", ylim=(1e-6, 2))
    for position, (name, colour) in enumerate(zip(names, PALETTE[dark].lines, strict=False)):
        view = panel(picture, dark, grid[position // 2, position % 2], xticks=[], yticks=[])
        image, values = finding.arrays[f"matrix: {name}"], finding.arrays[f"eigenvalues: {name}"]
        reach = max(0.1, float(np.quantile(np.abs(image), 0.98)))
        heat(view, image, dark, (-reach, reach), bar=3)
        view.set_title(plain(name), fontsize=10, color=ink)
        below.plot(np.arange(1, len(values) + 1), values, color=colour, linewidth=1.5, label=plain(name))
    legend_below(picture, below, dark)
    return picture


@old_figure(
    "9",
    title="The structure of the average geometry at initialisation: MLP, LeNet, ResNet-18 and ViT",
    show=_drawn_geometries,
    published=_PUBLISHED_GEOMETRIES,
)
def figure_9(effort: str, run: Run) -> Finding:
    """Identity, band and period, each as a number free of the bias of few draws."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    shape = _grey(effort)
    side = shape[-1]
    middle = slice((side // 2 - 2) * side, (side // 2 + 2) * side)  # four rows of pixels
    place = torch.arange(math.prod(shape))
    steps = [(axis[:, None] - axis).abs() for axis in (place // side, place % side)]
    near = torch.maximum(*steps) <= BAND
    for name, draws in _DRAWS[effort].items():
        title, key = TITLES[name], snake(TITLES[name])
        groups = geometries(name, _gaussian_probe(probe_scale(name), shape), draws, run, shape=shape)
        identity = torch.eye(len(place))
        one, two = (periodic_share(groups, shape, period) for period in (PERIOD, OTHER))
        statistics |= {
            f"{key}_corr_g_i": possible_corr(groups, identity).named(f"{title}: Corr(G, I)"),
            f"{key}_share_of_norm_g_norm_2_up_to_{BAND}_pixels_apart": share_within(groups, near).named(
                f"{title}: share of ‖G‖² up to {BAND} pixels apart"
            ),
            f"{key}_share_of_norm_g_norm_2_off_the_diagonal": share_within(groups, 1 - identity).named(
                f"{title}: share of ‖G‖² off the diagonal"
            ),
            f"{key}_repeats_every_{PERIOD}_pixels": one.named(f"{title}: repeats every {PERIOD} pixels"),
            f"{key}_repeats_every_{OTHER}_pixels": two.named(f"{title}: repeats every {OTHER} pixels"),
            f"{key}_repeats_every_{PERIOD}_minus_every_{OTHER}_pixels": difference(one, two).named(
                f"{title}: repeats every {PERIOD} minus every {OTHER} pixels"
            ),
        }
        if name != "mlp" and "mlp_corr_g_i" in statistics:
            below = difference(statistics["mlp_corr_g_i"], statistics[f"{key}_corr_g_i"])
            statistics[f"{key}_corr_g_i_below_that_of_the_mlp"] = below.named(
                f"{title}: Corr(G, I) of the MLP minus its own"
            )
        mean = groups.mean(0)
        values = torch.linalg.eigvalsh(mean).flip(0).clamp_min(1e-12)
        arrays[f"eigenvalues: {title}"] = (values / values[0]).cpu().numpy()
        arrays[f"matrix: {title}"] = (mean / mean.diagonal().mean())[middle, middle].float().cpu().numpy()
    control = Estimate.exact(float(near.double().mean()))
    statistics[f"a_constant_matrix_share_of_norm_g_norm_2_up_to_{BAND}_pixels_apart"] = control.named(
        f"a constant matrix: share of ‖G‖² up to {BAND} pixels apart"
    )
    settings = settings_of_geometries(effort)
    notes = (
        "Shares and correlations are from products of independent groups of draws, without the noise of so many draws. The drawn "
        "eigenvalues have it: those of the MLP would be equal.",
        "Periodicity leaves out the constant image. The control is a period that fits neither stride nor patch.",
    )
    return Finding(statistics, arrays, settings, notes)


_BLOCK_DRAWS = {"smoke": 16, "laptop": 400, "paper": 2000}  # of figure "9 blocks"


@old_figure(
    "9 blocks",
    title="The geometry of ResNet-18 with the ReLU of the released blocks, and with GELU in all layers",
    show=lambda finding, dark: dots_figure(finding, dark, "share of the geometry that repeats"),
    published=published_geometry(("resnet18",), 1e-3),
)
def figure_9_blocks(effort: str, run: Run) -> Finding:
    """The scripts ask for GELU, but their ResNet-18 does not pass it on to its blocks. Figure 9 follows the text, with GELU."""
    draws, shape = _BLOCK_DRAWS[effort], _grey(effort)
    statistics: dict[str, Number] = {}
    for blocks, words in (("relu", "ReLU in the blocks"), ("gelu", "GELU in all layers")):
        family = released_family("resnet18", shape, "gelu", blocks=blocks)
        groups = geometries_of(family, _gaussian_probe(1e-3, shape), draws, run)
        for period in (PERIOD, OTHER):
            statistics[f"{blocks}_repeats_every_{period}_pixels"] = periodic_share(groups, shape, period).named(
                f"{words}: repeats every {period} pixels"
            )
    settings = {
        **geometry_settings({"resnet18": draws}, PROBES, {"resnet18": 1e-3}),
        "seed": 0,
        "drawn": list(statistics),
    }
    return Finding(statistics, {}, settings, ("Periodicity leaves out the constant image.",))


def dots_figure(finding: Finding, dark: bool, x: str = "correlation") -> Figure:
    """The numbers themselves, with their intervals."""
    shown = [finding.statistics[snake(key)] for key in finding.settings["drawn"]]  # words, in findings before 0.2
    picture, colours = blank(0.9 + 0.36 * len(shown), "Dots with 95 % intervals."), PALETTE[dark]
    view = panel(picture, dark, xlabel=x, yticks=[], ylim=(len(shown) - 0.4, -0.8))
    for row, one in enumerate(shown):
        ends = (one.low, one.high) if math.isfinite(one.low + one.high) else (one.value, one.value)
        view.plot(ends, (row, row), color=colours.lines[0], linewidth=2)
        view.plot(one.value, row, "o", color=colours.lines[0], markersize=5)
        where = view.get_yaxis_transform()
        view.text(0.01, row - 0.22, plain(one.label, 70), transform=where, fontsize=8, color=colours.ink)
    view.axvline(0, color=colours.muted, linewidth=0.8)
    return picture


@old_figure(
    "A.12",
    title="The average geometry at x = 0 against that at random inputs",
    show=dots_figure,
    published=_PUBLISHED_GEOMETRIES,
)
def figure_a12(effort: str, run: Run) -> Finding:
    """With σ_P as elsewhere, and for comparison with σ_P = 1."""
    statistics: dict[str, Number] = {}
    for name, draws in _DRAWS[effort].items():
        title, key, scale = TITLES[name], snake(TITLES[name]), probe_scale(name)
        shape = _grey(effort)
        still = geometries(name, Probe.fixed(torch.zeros(1, *shape)), draws, run, shape=shape, seed=1)  # other networks
        moving = geometries(name, _gaussian_probe(scale, shape), draws, run, shape=shape)
        statistics |= {
            f"{key}_corr_g_0_g": possible_corr(still, moving).named(f"{title}: Corr(G(0), G)"),
            f"{key}_corr_i_g": possible_corr(moving, torch.eye(moving.shape[1])).named(f"{title}: Corr(I, G)"),
        }
        if scale < 1:
            wide = geometries(name, _gaussian_probe(1.0, shape), draws, run, shape=shape)
            statistics[f"{key}_corr_g_0_g_with_sigma_p_1"] = possible_corr(still, wide).named(
                f"{title}: Corr(G(0), G) with σ_P = 1"
            )
    settings = {**settings_of_geometries(effort), "drawn": list(statistics)}
    return Finding(statistics, {}, settings, ("G(0) and G are of different networks, so that they share no noise.",))


# A.4: proposition A.1

# Side of the images, samples of each class, samples of an instant, draws, draws of G.
_LABELLED: dict[str, tuple[int, int, int, int, int]] = {
    "smoke": (8, 32, 16, 12, 32),
    "laptop": (16, 1000, 256, 2000, 2000),
    "paper": (32, 5000, 512, 12_000, 10_000),
}


@old_figure(
    "A.4",
    title="Δ at initialisation with true and with random labels, on CIFAR-2",
    show=dots_figure,
)
def figure_a4(effort: str, run: Run) -> Finding:
    """The same networks on the same samples, with either labels, and with targets 0."""
    side, each, samples, draws, geometry_draws = _LABELLED[effort]
    data = small_images(side, each, run)
    x, y = data.splits["train"]
    mixed = torch.randint(0, 2, (len(y),), generator=torch.Generator().manual_seed(1))
    other = dataclasses.replace(data, splits={"train": (x, mixed)})
    statistics: dict[str, Number] = {}
    for name in NAMES[effort]:
        title, key = TITLES[name], snake(TITLES[name])
        family = family_of(name, data.shape, outputs=1, images=True)
        how: dict[str, Any] = {"draws": draws, "batch": samples, "probes": 1, "scale": probe_scale(name), "seed": 0}
        how |= {"geometry_draws": geometry_draws, "run": run.shared}
        free = geometry_evolution(family, data, labels=False, **how)
        one, two = (geometry_evolution(family, part, **how).with_reference("GSG") for part in (data, other))
        apart = difference(one, two)
        statistics |= {
            f"{key}_corr_delta_gsg_true_labels": one.named(f"{title}: Corr(Δ, GSG), true labels"),
            f"{key}_corr_delta_gsg_random_labels": two.named(f"{title}: Corr(Δ, GSG), random labels"),
            f"{key}_corr_delta_gsg_targets_0": free.with_reference("GSG").named(f"{title}: Corr(Δ, GSG), targets 0"),
            f"{key}_corr_i_gsg": Estimate(float(free.chance[1])).named(f"{title}: Corr(I, GSG)"),  # G is drawn
            f"{key}_corr_delta_gsg_with_true_minus_with_random_labels": apart.named(
                f"{title}: Corr(Δ, GSG) with true minus with random labels"
            ),
        }
        left = Estimate.exact(_left_of_mirrored(family, data, probe_scale(name), run))  # rounding: an identity
        statistics[f"{key}_what_labels_add_left_of_a_network_and_its_mirror_image"] = left.named(
            f"{title}: what labels add, left of a network and its mirror image"
        )
    settings = {"samples": data.name, "samples of an instant": samples, "draws": draws, "draws of G": geometry_draws}
    settings |= {"outputs": 1, "loss": "squared", "seed": 0, "drawn": [key for key in statistics if "_gsg" in key]}
    notes = (
        "Both labels use the same networks; errors are added as if they did not, which makes them too large. Labels are most of the "
        "noise: so few draws may not tell Δ from it, and then there is no difference to judge.",
        "The labels' part of Δ changes its sign with the last layer, and a network is as likely as its mirror image (last layer times "
        "−1): the proposition holds exactly for any network whose last layer is symmetric about 0.",
    )
    return Finding(statistics, {}, settings, notes)


def _left_of_mirrored(family: Family, data: Arrays, scale: float, run: Run) -> float:
    """The labels' part of Δ of one network plus that of its mirror image, relative to the former."""
    x, y = (part[:64] for part in data.to(run).whole("train"))
    network, probe = family.draw(1, seed=0, run=run).member(0), Probe.gaussian(data.shape, std=scale).inputs(0, 1, run)
    parts = []
    for sign in (1, -1):
        params = {key: sign * each if key.startswith("head") else each for key, each in network.params.items()}
        turned, targets = network.with_params(params), (2 * y - 1).to(x)
        pulled, free = weight_velocity(turned, x, targets), weight_velocity(turned, x, 0 * targets)
        slope, moved = gradient_velocity(turned.read("mean"), probe, {key: pulled[key] - free[key] for key in pulled})
        parts.append(DrawnMatrix(2 * moved[None], slope[None]).dense())
    return float((parts[0] + parts[1]).norm() / parts[0].norm())
