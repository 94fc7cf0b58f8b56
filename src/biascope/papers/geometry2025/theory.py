"""Figures 7 and 9, and appendices A.4, A.12 and A.12.1: what theory says of the geometry at initialisation, and what it looks like."""

# g groups of draws, or networks · D input size · n width

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from biascope.derivatives.covariance import GradientSampler, gradient_covariance
from biascope.derivatives.gradients import input_gradient
from biascope.derivatives.matrices import DrawnMatrix, data_covariance
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.families.weights import Params
from biascope.measures.geometry_evolution import geometry_evolution
from biascope.papers.geometry2025.models import (
    mean_tap_matrix,
    mlp_alignment,
    mlp_evolution,
    pooled_convolution_alignment,
    pooled_convolution_evolution,
)
from biascope.papers.geometry2025.shared import (
    PROBES,
    SPREAD,
    TITLES,
    cifar_2,
    family_of,
    grey,
    probe_scale,
    released_family,
    run_of,
)
from biascope.results.draw import PALETTE, blank, heat, legend_below, panel, plain
from biascope.results.estimate import Estimate, jackknife
from biascope.results.figures import lines_figure
from biascope.results.finding import Finding, Tell, figure
from biascope.results.plan import Plan, Row
from biascope.results.wording import snake
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays
from biascope.training.velocity import gradient_velocity, weight_velocity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROUPS = 32  # independent estimates of one matrix
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
    return dense(math.prod(shape), width, 1)


def dense(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    """Layers without biases from each width to the next, all weights from N(0, 1)."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inward, outward in itertools.pairwise(widths):
        layers += [nn.Linear(inward, outward, bias=False), activation()]
    return with_gaussian_weights(*layers[:-1])


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


def velocity_on_some(data: Arrays, samples: int, run: Run, *, seed: int = 0) -> Velocity:
    """``θ̇`` for targets 0 and one sample on average, on samples chosen anew for every stack."""
    x, _ = data.to(run).whole("train")

    def velocity(networks: Network, start: int) -> Params:
        few = torch.randperm(len(x), generator=generator_for(torch.device("cpu"), seed, "samples", start))[:samples]
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


def evolutions(
    family: Family, shape: Sequence[int], velocity: Velocity, draws: int, run: Run, *, seed: int = 0
) -> Tensor:
    """Independent estimates ``(g, D, D)`` of Δ at N(0, I) inputs, one for each network."""
    size, device = math.prod(shape), run.torch_device
    most = (2**23 if device.type == "cpu" else 2**29) // (family.num_parameters + 8 * size)
    most = max(1, min(most, 8192))
    stream = family.draws(seed=seed, run=run)
    found = torch.zeros(GROUPS, size, size, dtype=torch.float64, device=device)
    each = draws // GROUPS
    with run.tracked(f"{family.name}: evolution", draws) as advance, run.products():
        for start in (first for group in range(GROUPS) for first in range(group * each, (group + 1) * each, most)):
            stop = min(start + most, (start // each + 1) * each)
            networks, generator = stream[start:stop], generator_for(device, seed, "probe", start)
            x = torch.randn(stop - start, 1, *shape, generator=generator, device=device, dtype=run.dtype)
            slope, moved = gradient_velocity(networks.read("first"), x, velocity(networks, start), paired=True)
            half = moved.flatten(0, 1).double().T @ slope.flatten(0, 1).double()
            found[start // each] += (half + half.T) / each
            advance(stop - start)
    return found


@dataclasses.dataclass(frozen=True)
class Theorem:
    """A model of figure 7: what is said of it, networks by width, how they move, and Δ and abs Corr(Δ, target) by closed forms."""

    title: str
    said: str
    build: Callable[[Sequence[int], int], nn.Module]
    velocity: Velocity
    target: np.ndarray
    evolution: Callable[..., np.ndarray]
    alignment: Callable[..., float]
    fan_in: int

    def gap(self, width: float) -> float:
        """``1 − |Corr|`` for weights of variance 1."""
        return 1 - self.alignment(int(width), weight_std=1.0, readout_std=1.0)

    def measured(
        self, shape: Sequence[int], width: int, draws: int, run: Run, *, seed: int = 0
    ) -> tuple[Estimate, float]:
        """``|Corr|``, and how far it, ``⟨Δ, target⟩`` and ``tr Δ`` are from their exact values, in standard errors at most."""
        family = Family.initialised(functools.partial(self.build, shape, width), name=f"{self.title} of width {width}")
        groups = evolutions(family, shape, self.velocity, draws, run, seed=seed)
        found = corr(groups, torch.from_numpy(self.target)).map_linear(-1.0)
        exact = torch.from_numpy(self.evolution(width, weight_std=1.0, readout_std=1.0)).to(groups)
        target = torch.from_numpy(self.target).to(groups)
        apart = errors_apart(groups, exact, target, torch.eye(len(exact)).to(groups))
        return found, max(apart, abs(found.value - 1 + self.gap(width)) / found.standard_error)


def errors_apart(groups: Tensor, exact: Tensor, *directions: Tensor) -> float:
    """How far independent estimates of a matrix are from it along matrices, in standard errors at most."""
    along = torch.stack([((groups - exact) * against).sum((1, 2)) for against in directions])  # (directions, g)
    return float((along.mean(1).abs() / along.std(1)).max() * len(groups) ** 0.5)


def slope_of(widths: Sequence[float], values: Sequence[float], errors: Sequence[float] | None = None) -> Estimate:
    """Of log value against log width; with standard errors of the values, with its own."""
    x, y = np.log(np.asarray(widths, float)), np.log(np.asarray(values, float))
    weights = (x - x.mean()) / np.square(x - x.mean()).sum()
    if errors is None:
        return Estimate.exact(float(weights @ y))
    relative = np.asarray(errors, float) / np.asarray(values, float)
    return Estimate.from_error(float(weights @ y), float(np.linalg.norm(weights * relative)), GROUPS)


_MLP, _CNN = "draws of the MLP by width", "draws of the CNN by width"
_NARROW, _CHANNELS = (4, 16, 64, 256), (1, 2, 4, 8, 16, 32)


# Draws from seed 0 had been seen when bounds of figure 7 got their values.
def _evolved(side: int, train: int, samples: int, mlp: Mapping[int, int], cnn: Mapping[int, int]) -> dict[str, Any]:
    """A row of figure 7."""
    sizes = {"side of the images": side, "training samples": train, "samples of an instant": samples}
    return {**sizes, _MLP: mlp, _CNN: cnn, "kernel": 3, "variances": 1.0, "seed": 20261120}


EVOLVED = Plan(
    smoke=_evolved(8, 200, 8, {2: 320, 8: 320}, {1: 640, 4: 640}),
    laptop=_evolved(8, 4000, 32, {**dict.fromkeys(_NARROW, 16_000), 1024: 6400}, dict.fromkeys(_CHANNELS, 192_000)),
    paper=_evolved(
        32, 10_000, 32, {**dict.fromkeys(_NARROW, 64_000), 1024: 32_000}, dict.fromkeys((*_CHANNELS, 64), 960_000)
    ),
    published={"side of the images": 32, "training samples": 10_000},
)
_FAR, _HUGE = (256, 1024, 4096), (2**14, 2**17, 2**20)  # widths at which only the closed form is looked at


def curves_figure(finding: Finding, dark: bool, x: str, y: str, log_y: bool = False) -> Figure:
    """Places, values and, where known, intervals."""
    curves = {name: (array[0], array[1]) for name, array in finding.arrays.items()}
    bands = {name: (array[2], array[3]) for name, array in finding.arrays.items() if len(array) > 2}
    return lines_figure(curves, x=x, y=y, log_x=True, log_y=log_y, bands=bands, dark=dark)


def theorems(data: Arrays, samples: int, run: Run, *, seed: int) -> tuple[Theorem, Theorem]:
    """The MLP of theorem 3.1 and the linear CNN of theorem 3.2 on data; the MLP moves by so many samples at an instant."""
    covariance = data_covariance(data.to(run).whole("train")[0]) / data.sizes["train"]
    s, taps = covariance.cpu().numpy(), mean_tap_matrix(data.shape[1:], 3, channels=data.shape[0])
    q = taps @ taps.T
    forms = functools.partial(mlp_evolution, s), functools.partial(mlp_alignment, s)
    velocity = velocity_on_some(data, samples, run, seed=seed)
    mlp = Theorem("MLP", "abs Corr(Δ, S)", perceptron, velocity, s, *forms, math.prod(data.shape))
    forms = (
        functools.partial(pooled_convolution_evolution, s, taps),
        functools.partial(pooled_convolution_alignment, s, taps),
    )
    velocity = velocity_of_linear(covariance, data.shape)
    cnn = Theorem("CNN", "abs Corr(Δ, GSG)", pooled_convolution, velocity, q @ s @ q, *forms, taps.shape[1])
    return mlp, cnn


def _tell_widths(
    of: Tell, model: Theorem, shape: Sequence[int], draws: Mapping[int, int], run: Run, *, seed: int
) -> None:
    """How a model approaches its limit as it grows, measured from draws by width beside the closed form."""
    measured, apart, slope = [], [], "slope of 1 − abs Corr"
    for width, number in draws.items():
        alignment, away = model.measured(shape, width, number, run, seed=seed)
        measured.append(alignment)
        apart.append(away)
        words = f"{model.said} at width {width}"
        of(words, alignment)
        of(f"{words}, exact", Estimate.exact(1 - model.gap(width)))
        scaled = model.alignment(width, weight_std=model.fan_in**-0.5, readout_std=width**-0.5)
        of(f"{words}, exact for variances 1/fan-in", Estimate.exact(scaled))
    of(f"{model.said} at the largest width", measured[-1])
    of(f"rise of {model.said}", difference(measured[-1], measured[0]))
    # A test statistic: its bound allows for the draws.
    of("standard errors from the exact expression at most", Estimate.exact(max(apart)))
    gaps = [(width, 1 - each.value, each.standard_error) for width, each in zip(draws, measured, strict=True)]
    clear = [row for row in gaps if row[1] > 4 * row[2]][-3:]  # where noise does not bend it
    if len(clear) == 3:
        of(f"{slope}, measured", slope_of(*zip(*clear, strict=True)))
        of(f"{slope}, exact, there", slope_of([row[0] for row in clear], [model.gap(row[0]) for row in clear]))
    widths = 2.0 ** np.arange(13)
    of.array(f"{model.title}, exact", np.stack([widths, [model.gap(width) for width in widths]]))
    rows = [[width, 1 - each.value, 1 - each.high, 1 - each.low] for width, each in zip(draws, measured, strict=True)]
    of.array(f"{model.title}, measured", np.array(rows, float).T)


@figure(
    "7",
    title="Correlation of Δ with S and with GSG against width: an MLP and a linear CNN with global average pooling, on CIFAR-2",
    plan=EVOLVED,
    show=functools.partial(curves_figure, x="width", y="1 − abs Corr", log_y=True),
)
def figure_7(plan: Row, run: Run, tell: Tell) -> None:
    """Measured from draws beside the closed forms."""
    data = small_images(plan["side of the images"], plan["training samples"] // 2, run)
    tell.settings.update({"samples": data.name, "training samples": data.sizes["train"]})
    mlp, cnn = theorems(data, plan["samples of an instant"], run, seed=plan["seed"])
    of_mlp, of_cnn = tell.about("MLP"), tell.about("CNN")
    _tell_widths(of_mlp, mlp, data.shape, plan[_MLP], run, seed=plan["seed"])
    _tell_widths(of_cnn, cnn, data.shape, plan[_CNN], run, seed=plan["seed"])
    of_mlp("exact abs Corr(Δ, S) at width 2²⁰", Estimate.exact(1 - mlp.gap(_HUGE[-1])))
    slope = slope_of(_HUGE, [mlp.gap(width) for width in _HUGE])
    of_mlp("slope of 1 − abs Corr, exact, widths 2¹⁴ to 2²⁰", slope)
    gaps = [cnn.gap(width) for width in _FAR]
    of_cnn("slope of 1 − abs Corr, exact, to width 4096", slope_of(_FAR, gaps))
    of_cnn("slope of the angle, exact, to width 4096", slope_of(_FAR, [math.acos(1 - gap) for gap in gaps]))
    tell.note(
        "Corr itself is negative: under squared loss the geometry shrinks along S and GSG.",
        "The initial variances decide the figure, and the paper does not print them: here they are 1. What variances 1/fan-in give "
        "stands beside, by the closed form.",
        "The printed rate 1/n of theorem 3.2 is that of the angle between Δ and GSG; 1 − abs Corr is half its square and falls like "
        "n⁻². As an upper bound the printed rate holds for both. At finite width the exact slope is about −2·2n/(2n+3).",
        "For the MLP a multiple of the identity stays at fixed D however large n is: the rate is O(1/√D) + O(1/n).",
        "Targets are 0, since the labels drop out on average (proposition A.1); G of the CNN is the exact one.",
    )


# Figure 9 and A.12

BAND, PERIOD, OTHER = 5, 8, 7  # pixels: side of LeNet's kernels; of a patch, and product of ResNet's strides; a control
_ACTIVATIONS = {"mlp": "ReLU", "lenet": "GELU", "resnet18": "GELU", "vit": "GELU"}  # of the text


def _at_start(
    *,
    smoke: Mapping[str, int],
    laptop: Mapping[str, int],
    paper: Mapping[str, int],
    activations: Mapping[str, str],
    seed: int = 0,
) -> Plan:
    """The plan of a figure of grey images: draws of G by network at each effort."""

    def row(draws: Mapping[str, int], side: int = 32) -> dict[str, Any]:
        return {
            "activation": {name: activations[name] for name in draws if name in activations},
            "draws of G": draws,
            "inputs per draw of G": PROBES,
            "spread of the inputs for G": {name: probe_scale(name) for name in draws},
            "side of the images": side,
            "seed": seed,
        }

    published = {
        "draws of G": dict.fromkeys(paper, 100_000),
        "inputs per draw of G": 128,
        "spread of the inputs for G": dict.fromkeys(paper, 1e-3),
    }
    return Plan(row(smoke, side=16), row(laptop), row(paper), published, titles=TITLES)


_GEOMETRIES: dict[str, Any] = {
    "smoke": {"mlp": 8, "lenet": 8},
    "laptop": {"mlp": 4000, "lenet": 4000},
    "paper": {"mlp": 10_000, "lenet": 10_000, "resnet18": 2000, "vit": 2000},
    "activations": _ACTIVATIONS,
}


def geometries(family: Family, probe: Probe, draws: int, run: Run, *, readout: str = "mean", seed: int = 0) -> Tensor:
    """Independent estimates ``(g, D, D)`` of the average geometry of a network."""
    sampler = GradientSampler(
        family, probe, estimator="exact", step=1.0, readout=readout, seed=seed, run=run_of(family, run)
    )
    covariance = gradient_covariance(sampler, draws=draws, seed=seed, label=f"{family.name}: geometry")
    identity = torch.eye(covariance.size, dtype=torch.float64, device=covariance.device)
    return torch.stack([group.second.matmul(identity) / group.draws for group in covariance.groups])


def gaussian_probe(shape: tuple[int, ...], scale: float = 1.0, *, num: int = PROBES, seed: int = 0) -> Probe:
    """Inputs from N(0, σ²I) for each network."""
    return Probe.gaussian(shape, num=num, std=scale, fresh=True, seed=seed)


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


@figure(
    "9",
    title="The structure of the average geometry at initialisation: MLP, LeNet, ResNet-18 and ViT",
    # Draws from seed 0 had been seen when the share of near pixels got its bound.
    plan=_at_start(**_GEOMETRIES, seed=20261120),
    show=_drawn_geometries,
)
def figure_9(plan: Row, run: Run, tell: Tell) -> None:
    """Identity, band and period, each as a number free of the bias of few draws."""
    shape, side = grey(plan), plan["side of the images"]
    middle = slice((side // 2 - 2) * side, (side // 2 + 2) * side)  # four rows of pixels
    place = torch.arange(math.prod(shape))
    near = torch.maximum(*((axis[:, None] - axis).abs() for axis in (place // side, place % side))) <= BAND
    identity, likeness, seed = torch.eye(len(place)), {}, plan["seed"]
    beside = near & (place[:, None] != place)
    for name, draws in plan["draws of G"].items():
        title, of = TITLES[name], tell.about(TITLES[name])
        probe = gaussian_probe(shape, probe_scale(name), seed=seed)
        groups = geometries(family_of(name, shape), probe, draws, run, seed=seed)
        likeness[name] = possible_corr(groups, identity)
        of("Corr(G, I)", likeness[name])
        of(f"share of ‖G‖² up to {BAND} pixels apart", share_within(groups, near))
        of("share of ‖G‖² off the diagonal", share_within(groups, 1 - identity))
        of(f"share of ‖G‖² 1 to {BAND} pixels apart", share_within(groups, beside))
        one, two = (periodic_share(groups, shape, period) for period in (PERIOD, OTHER))
        of(f"repeats every {PERIOD} pixels", one)
        of(f"repeats every {OTHER} pixels", two)
        of(f"repeats every {PERIOD} minus every {OTHER} pixels", difference(one, two))
        if name != "mlp" and "mlp" in likeness:
            key = f"{snake(title)}_corr_g_i_below_that_of_the_mlp"
            of("Corr(G, I) of the MLP minus its own", difference(likeness["mlp"], likeness[name]), key=key)
        mean = groups.mean(0)
        values = torch.linalg.eigvalsh(mean).flip(0).clamp_min(1e-12)
        tell.array(title, (values / values[0]).cpu().numpy(), kind="eigenvalues")
        tell.array(title, (mean / mean.diagonal().mean())[middle, middle].float().cpu().numpy(), kind="matrix")
    for words, mask in (("up to", near), ("1 to", beside)):
        control = Estimate.exact(float(mask.double().mean()))
        tell(f"a constant matrix: share of ‖G‖² {words} {BAND} pixels apart", control)
    tell.note(
        "Shares and correlations are from products of independent groups of draws, without the noise of so many draws. The drawn "
        "eigenvalues have it: those of the MLP would be equal.",
        "Periodicity leaves out the constant image. The control is a period that fits neither stride nor patch.",
    )


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


@figure(
    "9 blocks",
    title="The geometry of ResNet-18 with the ReLU of the released blocks, and with GELU in all layers",
    plan=_at_start(smoke={"resnet18": 16}, laptop={"resnet18": 400}, paper={"resnet18": 2000}, activations={}),
    show=functools.partial(dots_figure, x="share of the geometry that repeats"),
)
def figure_9_blocks(plan: Row, run: Run, tell: Tell) -> None:
    """The scripts ask for GELU, but their ResNet-18 does not pass it on to its blocks. Figure 9 follows the text, with GELU."""
    shape, ((name, draws),) = grey(plan), plan["draws of G"].items()
    for blocks, words in (("relu", "ReLU in the blocks"), ("gelu", "GELU in all layers")):
        family = released_family(name, shape, "gelu", blocks=blocks)
        groups = geometries(family, gaussian_probe(shape, probe_scale(name)), draws, run)
        for period in (PERIOD, OTHER):
            label = f"repeats every {period} pixels"
            tell(f"{words}: {label}", periodic_share(groups, shape, period), key=snake(f"{blocks} {label}"))
    tell.settings["drawn"] = list(tell.numbers)
    tell.note("Periodicity leaves out the constant image.")


@figure(
    "A.12",
    title="The average geometry at x = 0 against that at random inputs",
    plan=_at_start(**_GEOMETRIES),
    show=dots_figure,
)
def figure_a12(plan: Row, run: Run, tell: Tell) -> None:
    """With σ_P as elsewhere, and for comparison with σ_P = 1."""
    shape = grey(plan)
    for name, draws in plan["draws of G"].items():
        family, scale, of = family_of(name, shape), probe_scale(name), tell.about(TITLES[name])
        still = geometries(family, Probe.fixed(torch.zeros(1, *shape)), draws, run, seed=1)  # other networks
        moving = geometries(family, gaussian_probe(shape, scale), draws, run)
        of("Corr(G(0), G)", possible_corr(still, moving))
        of("Corr(I, G)", possible_corr(moving, torch.eye(moving.shape[1])))
        if scale < 1:
            wide = geometries(family, gaussian_probe(shape, 1.0), draws, run)
            of("Corr(G(0), G) with σ_P = 1", possible_corr(still, wide))
    tell.settings["drawn"] = list(tell.numbers)
    tell.note("G(0) and G are of different networks, so that they share no noise.")


# A.12.1


def noise_of(groups: Tensor, kept: Tensor) -> float:
    """``E‖Ĝ − G‖²/‖G‖²`` of one group, from groups of equal size: what a square has beyond products of different groups.

    Example:
        >>> round(noise_of(torch.tensor([[[3.0]], [[1.0]]]), torch.arange(2)), 6)  # squares 9 and 1, product 3
        0.666667
    """
    flat = groups[kept].flatten(1)
    products = flat @ flat.T
    count = len(kept)
    across = (products.sum() - products.trace()) / (count * (count - 1))
    return float(products.trace() / count / across - 1)


def _noise_ratio(one: Tensor, two: Tensor) -> Estimate:
    """The noise of one estimate over that of another from the same networks; jackknife over groups."""
    every = torch.arange(len(one), device=one.device)

    def ratio(kept: Tensor) -> float:
        return noise_of(one, kept) / noise_of(two, kept)

    return jackknife(ratio(every), [ratio(every[every != group]) for group in every.tolist()])


def _noisy(draws: Mapping[str, int], spreads: Sequence[float], side: int = 32) -> dict[str, Any]:
    """A row of A.12.1."""
    settings = {"draws": draws, "spreads": spreads, "inputs per draw": 1, "side of the images": side, "seed": 0}
    return settings | {f"activation: {TITLES[name]}": "GELU" for name in draws}


@figure(
    "A.12.1",
    title="Noise of the average geometry of networks with GELU against the spread of the inputs",
    plan=Plan(
        smoke=_noisy({"lenet": 64}, (SPREAD, 1.0), side=16),
        laptop=_noisy({"mlp": 4000, "lenet": 4000}, (1e-5, SPREAD, 1.0)),
        paper=_noisy({"mlp": 20_000, "lenet": 20_000, "vit": 4000}, (1e-5, 1e-4, SPREAD, 1e-2, 0.1, 1.0)),
    ),
    show=functools.partial(curves_figure, x="spread of the inputs", y="relative variance of one draw", log_y=True),
)
def figure_a12_1(plan: Row, run: Run, tell: Tell) -> None:
    """The same networks at one input each, of several spreads."""
    shape = grey(plan)
    for name, draws in plan["draws"].items():
        title, family = TITLES[name], released_family(name, shape, "gelu")
        groups = {
            spread: geometries(family, gaussian_probe(shape, spread, num=1), draws, run, readout="first")
            for spread in plan["spreads"]
        }
        ratio, key = _noise_ratio(groups[1.0], groups[SPREAD]), f"{snake(title)}_noise_at_1_over_noise_at_0_001"
        tell(f"{title}: variance of G at a spread of 1 over that at 0.001", ratio, key=key)
        each = draws / len(groups[SPREAD])
        noises = [each * noise_of(part, torch.arange(len(part))) for part in groups.values()]
        tell.array(title, np.array([plan["spreads"], noises]))
    tell.note(
        "The variance is that of all entries of G together, relative to the squared norm of G, for one network at one input.",
        "Whether small spreads predict generalisation best, which the paper also says, is not tested.",
    )


# A.4: proposition A.1


# Draws from seed 0 had been seen when bounds on Corr(Δ, GSG) got their values.
def _labelled(side: int, images: int, samples: int, draws: int, draws_of_g: int, *names: str) -> dict[str, Any]:
    """A row of A.4."""
    return {
        "side of the images": side,
        "images of each class": images,
        "samples of an instant": samples,
        "draws": draws,
        "draws of G": draws_of_g,
        "spread of the inputs": {name: probe_scale(name) for name in names},
        "outputs": 1,
        "loss": "squared",
        "seed": 20261120,
    }


@figure(
    "A.4",
    title="Δ at initialisation with true and with random labels, on CIFAR-2",
    plan=Plan(
        smoke=_labelled(8, 32, 16, 12, 32, "mlp"),
        laptop=_labelled(16, 1000, 256, 2000, 2000, "mlp", "lenet"),
        paper=_labelled(32, 5000, 512, 12_000, 10_000, "mlp", "lenet"),
        titles=TITLES,
    ),
    show=dots_figure,
)
def figure_a4(plan: Row, run: Run, tell: Tell) -> None:
    """The same networks on the same samples, with either labels, and with targets 0."""
    data = small_images(plan["side of the images"], plan["images of each class"], run)
    x, y = data.splits["train"]
    mixed = torch.randint(0, 2, (len(y),), generator=generator_for(torch.device("cpu"), plan["seed"], "labels"))
    other = dataclasses.replace(data, splits={"train": (x, mixed)})
    for name, scale in plan["spread of the inputs"].items():
        of, family = tell.about(TITLES[name]), family_of(name, data.shape, outputs=1, images=True)
        how: dict[str, Any] = {"draws": plan["draws"], "batch": plan["samples of an instant"], "probes": 1}
        how |= {"scale": scale, "geometry_draws": plan["draws of G"], "seed": plan["seed"], "run": run.shared}
        free = geometry_evolution(family, data, labels=False, **how)
        one, two = (geometry_evolution(family, part, **how).with_reference("GSG") for part in (data, other))
        of("Corr(Δ, GSG), true labels", one)
        of("Corr(Δ, GSG), random labels", two)
        of("Corr(Δ, GSG), targets 0", free.with_reference("GSG"))
        of("Corr(I, GSG)", Estimate(float(free.chance[1])))  # G is drawn
        of("Corr(Δ, GSG) with true minus with random labels", difference(one, two))
        left = Estimate.exact(_left_of_mirrored(family, data, scale, run))  # rounding: an identity
        of("what labels add, left of a network and its mirror image", left)
    tell.settings.update({"samples": data.name, "drawn": [key for key in tell.numbers if "_gsg" in key]})
    tell.note(
        "Both labels use the same networks; errors are added as if they did not, which makes them too large. Labels are most of the "
        "noise: so few draws may not tell Δ from it, and then there is no difference to judge.",
        "The labels' part of Δ changes its sign with the last layer, and a network is as likely as its mirror image (last layer times "
        "−1): the proposition holds exactly for any network whose last layer is symmetric about 0.",
    )


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
