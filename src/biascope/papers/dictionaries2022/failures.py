"""Section 5.2, figures 5.2–5.4 and C.1: what frequencies implicit representations hold, and two ways in which they fail."""

# T mapping frequencies · F hidden units · N samples

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from biascope.data import data_root
from biascope.families.family import Family
from biascope.measures.aliasing import aliasing
from biascope.measures.recovery import Recovery, recovery
from biascope.networks import builder
from biascope.papers.dictionaries2022.sine_expansion import bessel_expansion, sine_network_spectrum
from biascope.papers.selection import old_figure
from biascope.results.draw import PALETTE, blank, legend_below, panel
from biascope.results.estimate import Estimate, Number, bootstrapped, over
from biascope.results.figures import lines_figure, plane_figure
from biascope.results.finding import Finding
from biascope.results.result import Plane
from biascope.results.wording import snake
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run
from biascope.tasks.harmonics import (
    bandwidth,
    coverage,
    energy_spectrum,
    harmonic_count,
    harmonic_growth,
    harmonic_order,
    harmonics,
)
from biascope.tasks.signals import Signal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CPU = torch.device("cpu")
NEVER = (0.0, math.inf)


def _curves(finding: Finding, dark: bool, x: str, y: str, **style: Any) -> Figure:
    return lines_figure(finding.curves_of("curve"), x=x, y=y, dark=dark, **style)


def _normal(*shape: int, key: str) -> Tensor:
    return torch.randn(*shape, generator=generator_for(CPU, 0, key, shape), dtype=torch.float64)


@old_figure(
    "5.2",
    title="Bessel functions of the first kind",
    show=lambda finding, dark: _curves(finding, dark, "β", "Jₙ(β)"),
)
def figure_52(effort: str, run: Run) -> Finding:
    """The functions themselves, and what their decay means for a modulation."""
    from scipy.special import jv

    beta, orders = np.linspace(0, 60, 6001), np.arange(4)
    values = jv(orders[:, None], beta)
    ratios = []
    for row in np.abs(values):
        inner = row[1:-1]
        tops = inner[(inner >= row[:-2]) & (inner >= row[2:])]
        tops = np.concatenate([row[:1], tops]) if row[0] > 0 else tops  # J₀ has its first maximum at 0
        ratios.append((tops[1:] / tops[:-1]).max())
    shares = []
    for each in np.linspace(0.1, 30, 300):
        shares.append(float((jv(np.arange(-80, 81), each) ** 2)[np.abs(np.arange(-80, 81)) <= each + 2].sum()))
    angle = 2 * torch.pi * torch.arange(256, dtype=torch.float64) / 256
    widths = [bandwidth(energy_spectrum(torch.sin(each * torch.sin(angle))[:, None])) for each in (2.0, 20.0)]
    statistics = {
        "largest_ratio_of_successive_maxima": Estimate.exact(float(max(ratios))).named(
            "largest ratio of successive maxima"
        ),
        "least_share_of_energy_up_to_order_beta_2": Estimate.exact(min(shares)).named(
            "least share of energy up to order β + 2"
        ),
        "bandwidth_at_beta_20_over_beta_2": Estimate.exact(widths[1] / widths[0]).named(
            "bandwidth at β = 20 over β = 2"
        ),
    }
    shown = beta <= 15
    arrays = {f"curve: n = {n}": np.stack([beta[shown], values[n, shown]]) for n in orders}
    return Finding(statistics, arrays, {"β": "0 to 60", "orders": orders.tolist()})


# Networks of each kind, hidden width, layers of random sine networks that are compared.
_THEORY = {"smoke": (2, 16, 3), "laptop": (16, 256, 6), "paper": (64, 256, 6)}


def _polynomial(degree: int, layers: int, seed: int) -> tuple[Tensor, Tensor]:
    """A random network with polynomial activations on a 48 × 48 grid, and its mapping in cycles over the grid."""
    side, width, mapping = 48, 8, 3
    bins = torch.randint(-3, 4, (mapping, 2), generator=generator_for(CPU, seed, "bins")).double()
    axis = torch.arange(side, dtype=torch.float64) / side
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1)
    draw = functools.partial(torch.randn, generator=generator_for(CPU, seed, degree, layers), dtype=torch.float64)
    z = torch.sin(2 * torch.pi * grid @ bins.T + draw(mapping))
    for _ in range(layers - 1):
        inner = z @ draw(z.shape[-1], width) / z.shape[-1] ** 0.5 + draw(width)
        z = torch.stack([draw(width) * inner**power for power in range(degree + 1)]).sum(0)
    return bins, z @ draw(z.shape[-1], 1)


def _sine_bandwidth(layers: int, width: int, seed: int) -> float:
    """Radius that holds 99 % of the energy of a random sine network whose mapping is periodic on its grid."""
    draw = functools.partial(torch.rand, generator=generator_for(CPU, seed, "sine", layers), dtype=torch.float64)
    at = torch.arange(4096, dtype=torch.float64)[:, None] / 4096
    # Whole cycles up to ω₀/2π with ω₀ = 30, so that the spectrum has no edges of a window in it.
    bins = ((2 * draw(width) - 1) * 30 / (2 * torch.pi)).round()
    z = torch.sin(2 * torch.pi * at * bins + 2 * torch.pi * draw(width))
    for _ in range(layers - 1):
        z = torch.sin(z @ ((2 * draw(width, width) - 1) * (6 / width) ** 0.5))
    return bandwidth(energy_spectrum(z @ (2 * draw(width, 1) - 1)))


@old_figure(
    "Theorem 5.1",
    title="Frequencies that networks hold: harmonics of their mapping",
    show=lambda finding, dark: _curves(finding, dark, "layers", "over that of one layer", log_y=True),
)
def theorem_51(effort: str, run: Run) -> Finding:
    """Random polynomial networks against H(Ω), its size, and the bandwidth of random sine networks."""
    networks, width, deepest = _THEORY[effort]
    outside, tight = [], []
    for seed in range(networks):
        for degree, layers in ((2, 2), (3, 2), (2, 3)):
            bins, values = _polynomial(degree, layers, seed)
            energy, order = energy_spectrum(values), harmonic_order(degree, layers)
            lacking = [
                1 - coverage(energy, harmonics(bins, (48, 48), order=each).reached) for each in (order, order - 1)
            ]
            outside.append(lacking[0])
            tight.append(lacking[1])
    support = harmonic_growth(torch.tensor([[1.0]]), (256,), degree=2, layers=6)
    depths = np.arange(1, deepest + 1)
    widths = np.array(
        [[_sine_bandwidth(int(depth), width, seed) for depth in depths] for seed in range(max(networks // 2, 2))]
    )
    counts = [harmonic_count(mapping, harmonic_order(2, 3)) for mapping in (10, 20)]
    statistics = {
        "largest_share_of_energy_outside_h_omega": Estimate.exact(max(outside)).named(
            "largest share of energy outside H(Ω)"
        ),
        "median_share_of_energy_outside_h_omega_of_one_order_less": bootstrapped(
            lambda shares: float(np.median(shares)), np.array(tight)
        ).named("median share of energy outside H(Ω) of one order less"),
        "coefficients_for_t_10_k_2_l_3": Estimate.exact(counts[0]).named("coefficients for T = 10, K = 2, L = 3"),
        "coefficients_for_t_20_over_t_10": Estimate.exact(counts[1] / counts[0]).named(
            "coefficients for T = 20 over T = 10"
        ),
        "growth_of_the_support_with_the_last_layer": Estimate.exact(support[-1] / support[-2]).named(
            "growth of the support with the last layer"
        ),
        "bandwidth_of_the_deepest_random_siren_over_one_layer": over(widths[:, -1] / widths[:, 0]).named(
            "bandwidth of the deepest random SIREN over one layer"
        ),
        **{
            f"bandwidth_of_random_sirens_of_{depth}_layers": over(column).named(
                f"bandwidth of random SIRENs of {depth} layers"
            )
            for depth, column in zip(depths, widths.T, strict=True)
        },
    }
    arrays = {
        "curve: support, degree 2": np.stack([np.arange(1, 7), np.array(support) / support[0]]),
        "curve: random SIRENs": np.stack([depths, (widths / widths[:, :1]).mean(0)]),
    }
    notes = (
        "K^(L−1) is the right order and is reached. The number of coefficients is Σ_j 2^j C(T, j) C(N, j) with N = K^(L−1), a "
        "polynomial of degree N in T, not linear in T.",
        "The mapping of the random SIRENs has whole cycles up to 30/2π on a grid of 4,096 points. Their support grows exponentially, "
        "their energy does not: its bandwidth grows by about two cycles a layer.",
    )
    return Finding(statistics, arrays, {"networks": networks, "width": width, "seed": 0}, notes)


# Networks of each depth, and the greatest depth.
_FILTERS = {"smoke": (2, 2), "laptop": (8, 4), "paper": (32, 4)}
_PERIOD = 512  # samples of the line on which filter networks are looked at
_FILTER_WIDTH, _SHOWN_DEPTH = 3, 2  # the depth of the network that is drawn


def filter_sums(bins: Sequence[Tensor]) -> set[int]:
    """Sums and differences of one frequency from each of the last layers, for any number of these, mirrored.

    A bias of a layer forgets the filters before it, so that a sum may begin at any layer.

    Args:
        bins: Frequencies of the filters of each layer, ``(width,)`` whole numbers.

    Example:
        >>> sorted(filter_sums([torch.tensor([1]), torch.tensor([10])]))  # sin r, sin 10r and their product
        [-11, -10, -9, 9, 10, 11]
    """
    reached: set[int] = set()
    for place, layer in enumerate(bins):
        carried = reached | {0} if place else {0}
        reached = {old + sign * int(each) for old in carried for each in layer for sign in (-1, 1)}
    return reached


def _filter_network(depth: int, seed: int) -> tuple[list[Tensor], Tensor]:
    """A random multiplicative filter network whose filters have whole cycles on the line: these, and its values (N, 1)."""
    family = Family.initialised(
        functools.partial(builder("multiplicative_filters"), coordinates=1, width=_FILTER_WIDTH, depth=depth),
        name="multiplicative filters",
    )
    network = family.draw(1, seed=seed, run=Run(device="cpu", precision="float64")).member(0)
    generator = generator_for(CPU, seed, "filters", depth)
    bins = [torch.randint(1, 50, (_FILTER_WIDTH,), generator=generator) for _ in range(depth + 1)]
    whole = {f"filters.{place}.weight": 2 * torch.pi * each.double()[:, None] for place, each in enumerate(bins)}
    at = torch.arange(_PERIOD, dtype=torch.float64)[:, None] / _PERIOD
    return bins, network.with_params(dict(network.params) | whole)(at)


def _drawn_filters(finding: Finding, dark: bool) -> Figure:
    reading = (
        "A dot is a frequency of one random network with two multiplications. Off the sums and differences of its filters' frequencies "
        "there are rounding errors alone."
    )
    picture, colours = blank(3.2, reading), PALETTE[dark]
    axes = panel(picture, dark, yscale="log", xlabel="cycles over the line", ylabel="share of the energy")
    frequency, energy, reached = finding.arrays["spectrum"]
    for chosen, words, colour in (
        (reached > 0, "sums and differences of the filters", colours.lines[1]),
        (reached == 0, "all other frequencies", colours.lines[0]),
    ):
        axes.scatter(
            frequency[chosen], np.maximum(energy[chosen], 1e-36), s=10, color=colour, linewidths=0, label=words
        )
    legend_below(picture, axes, dark)
    return picture


@old_figure(
    "Section 5.2",
    title="Frequencies that multiplicative filter networks hold: sums and differences of those of their filters",
    show=_drawn_filters,
)
def section_52(effort: str, run: Run) -> Finding:
    """Spectra of random networks against the set of sums."""
    networks, deepest = _FILTERS[effort]
    outside, shallow, shares = [], [], []
    half = slice(1, _PERIOD // 2 + 1)
    arrays: dict[str, np.ndarray] = {}
    for depth in range(1, deepest + 1):
        for seed in range(networks):
            bins, values = _filter_network(depth, seed)
            energy = energy_spectrum(values)
            masks = []
            for each in (bins, bins[1:]):
                mask = torch.zeros(_PERIOD, dtype=torch.bool)
                mask[[place % _PERIOD for place in filter_sums(each)]] = True
                masks.append(mask)
            outside.append(coverage(energy, ~masks[0]))
            shallow.append(coverage(energy, ~masks[1]))
            shares.append(float(masks[0][half].double().mean()))
            if (depth, seed) == (_SHOWN_DEPTH, 0):
                rows = [torch.arange(_PERIOD)[half], energy[half], masks[0][half]]
                arrays["spectrum"] = torch.stack([each.double() for each in rows]).numpy()
    table = np.array(shares).reshape(deepest, networks)
    statistics = {
        "largest_share_of_energy_outside_the_sums": Estimate.exact(max(outside)).named(
            "largest share of energy outside the sums"
        ),
        "median_share_of_energy_outside_the_sums_of_one_layer_less": bootstrapped(
            lambda shares: float(np.median(shares)), np.array(shallow)
        ).named("median share of energy outside the sums of one layer less"),
        **{
            f"share_of_frequencies_reached_by_{depth}_multiplications": over(row, within=(0.0, 1.0)).named(
                f"share of frequencies reached by {depth} multiplications"
            )
            for depth, row in enumerate(table, 1)
        },
    }
    settings = {"networks of a depth": networks, "width": _FILTER_WIDTH, "samples": _PERIOD, "seed": 0}
    notes = (
        "Filters have whole cycles from 1 to 49 on the line, so that the discrete Fourier transform has no edges in it. All other "
        "weights are random: an output is linear in the products of filters, so that generic weights show every frequency.",
    )
    return Finding(statistics, arrays, settings, notes)


@old_figure(
    "Equation 5.7",
    title="The three-layer SIREN as a sum of sinusoids with Bessel coefficients",
    show=lambda finding, dark: _curves(
        finding, dark, "order Σ|s|", "energy of the terms", log_y=True, reading="Terms of high order matter little."
    ),
)
def equation_57(effort: str, run: Run) -> Finding:
    """Expansion against network at random points, and convolution against the DFT."""
    units, wide, side = {"smoke": (8, 16, 16), "laptop": (64, 256, 32), "paper": (256, 256, 64)}[effort]
    errors, arrays = [], {}
    r = 2 * torch.rand(64, 2, generator=generator_for(CPU, 0, "points"), dtype=torch.float64) - 1
    for mapping in range(1, 5):
        omega, inner = 30 * _normal(mapping, 2, key="Ω"), _normal(units, mapping, key="W") / mapping**0.5
        outer = _normal(1, units, key="w") / units**0.5
        found = bessel_expansion(omega, inner, outer, tolerance=1e-6)
        errors.append(float((found(r) - torch.sin(torch.sin(r @ omega.T) @ inner.T) @ outer.T).abs().max()))
        order, energy = found.orders.abs().sum(1).numpy(), found.coefficients.abs().square().sum(1).numpy()
        held = np.bincount(order, energy)[1:16:2]
        arrays[f"curve: T = {mapping}"] = np.stack([np.arange(1, 1 + 2 * len(held), 2), np.maximum(held, 1e-30)])
    bins = torch.randint(-6, 7, (wide, 2), generator=generator_for(CPU, 0, "bins"))
    inner, outer = _normal(units, wide, key="wide W") / wide**0.5, _normal(1, units, key="w") / units**0.5
    axis = torch.arange(side, dtype=torch.float64) / side
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1)
    said = torch.sin(torch.sin(2 * torch.pi * grid @ bins.double().T) @ inner.T) @ outer.T
    expected = torch.fft.fft2(said[..., 0]) / side**2
    convolved = sine_network_spectrum(bins, inner, outer, (side, side), tolerance=1e-7)[0]
    statistics = {
        "largest_difference_of_expansion_and_network": Estimate.exact(max(errors)).named(
            "largest difference of expansion and network"
        ),
        "largest_difference_of_the_spectra_of_a_wide_network": Estimate.exact(
            float((convolved - expected).abs().max())
        ).named("largest difference of the spectra of a wide network"),
    }
    settings = {"hidden units": units, "wide mapping": wide, "grid": [side, side], "seed": 0}
    return Finding(statistics, arrays, settings, ("Orders that are even cancel: the network without biases is odd.",))


# Side of the image, iterations, samples of an iteration (None: all), networks.
_IMAGE: dict[str, tuple[int, int, int | None, int]] = {
    "smoke": (16, 20, None, 2),
    "laptop": (128, 500, 1024, 3),
    "paper": (512, 2000, None, 3),
}


def photograph(effort: str, run: Run) -> Signal:
    """The middle of a Kodak photograph; at smoke, noise with the spectrum of one.

    Raises:
        ValueError: If there is none in the data folder.
    """
    side = _IMAGE[effort][0]
    if effort == "smoke":
        white = torch.fft.fft2(torch.rand(side, side, 3, generator=generator_for(CPU, 0, "image")), dim=(0, 1))
        radius = torch.fft.fftfreq(side, 1 / side).square()
        slope = 1 / (1 + radius[:, None] + radius).sqrt()[..., None]
        pink = torch.fft.ifft2(white * slope, dim=(0, 1)).real
        return Signal((pink - pink.min()) / (pink.max() - pink.min()), "noise")
    folder = data_root(run.data_root) / "kodak"
    found = sorted(folder.glob("kodim*.png"))
    if not found:
        raise ValueError(
            f"{folder} must hold a photograph of the Kodak set, kodim03.png say, and has none. Put one there."
        )
    from PIL import Image

    with Image.open(found[0]) as image:
        width, height = image.size
        half = min(width, height) // 2
        box = (width // 2 - half, height // 2 - half, width // 2 + half, height // 2 + half)
        pixels = np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BOX, box=box))
    return Signal(torch.as_tensor(pixels.copy()).float() / 255, f"{found[0].stem}, {side} × {side} pixels")


def _recovered(family: Family, frequency: float | None, effort: str, run: Run) -> Recovery:
    _, steps, batch, repeats = _IMAGE[effort]
    signal = photograph(effort, run)
    return recovery(
        family, signal, frequency=frequency, steps=steps, batch=batch, repeats=repeats, seed=0, run=run.shared
    )


def detail(found: Recovery) -> np.ndarray:
    """Power beyond a quarter of the Nyquist frequency, over that of the signal (repeat)."""
    axes = np.meshgrid(*[np.fft.fftfreq(size) for size in found.target.shape], indexing="ij")
    far = np.hypot(axes[0], axes[1]) > 0.125
    return np.asarray(found.power[:, far].sum(1) / found.target[far].sum())


def _plane(power: np.ndarray) -> np.ndarray:
    """The middle of a spectrum, as the logarithm of the share of energy."""
    shifted = np.fft.fftshift(power / power.sum())
    cut = [slice(max(0, size // 2 - 16), size // 2 + 16) for size in power.shape]
    return np.asarray(np.log10(shifted[cut[0], cut[1]] + 1e-12))


def _planes(finding: Finding, dark: bool) -> Figure:
    unit = "log₁₀ of the share of energy"
    planes = {name: Plane(array, unit, -8.0, -2.0) for name, array in finding.arrays_of("plane").items()}
    return plane_figure(planes, dark=dark)


def _spectra(found: dict[str, Recovery], effort: str) -> Finding:
    """What is quoted of every network: odd frequencies, PSNR, energy, detail."""
    statistics: dict[str, Number] = {}
    for name, each in found.items():
        statistics[f"{snake(name)}_share_of_energy_on_odd_frequencies"] = over(each.odd, within=(0.0, 1.0)).named(
            f"{name}: share of energy on odd frequencies"
        )
        statistics[f"{snake(name)}_psnr_db"] = over(each.psnr).named(f"{name}: PSNR", "dB")
        statistics[f"{snake(name)}_share_of_energy_recovered"] = over(each.recovered).named(
            f"{name}: share of energy recovered"
        )
        statistics[f"{snake(name)}_detail_over_that_of_the_image"] = over(detail(each), within=NEVER).named(
            f"{name}: detail over that of the image"
        )
        statistics[f"{snake(name)}_share_of_reachable_energy_recovered"] = over(
            each.recovered / (1 - each.unreachable)
        ).named(f"{name}: share of the energy recovered that its frequencies reach")
    first = next(iter(found.values()))
    odd = (np.indices(first.target.shape) % 2).any(0)
    statistics["the_image_share_of_energy_on_odd_frequencies"] = Estimate.exact(
        float(first.target[odd].sum() / first.target.sum())
    ).named("the image: share of energy on odd frequencies")
    arrays = {"plane: the image": _plane(first.target)}
    arrays |= {f"plane: {name}": _plane(each.power[0]) for name, each in found.items()}
    side, steps, batch, repeats = _IMAGE[effort]
    settings = {
        "image": first.signal,
        "side": side,
        "width": 16 if effort == "smoke" else 256,
        "hidden layers": 3,
        "optimiser": "Adam 1e-4",
        "iterations": steps,
        "batch": batch or _ALL,
        "networks": repeats,
        "seed": 0,
    }
    notes = (
        "The grid is [−1, 1)² without its endpoint. Energies leave the mean out, which only raises the shares. "
        "Intervals are over initial weights; there is one photograph.",
    )
    return Finding(statistics, arrays, settings, notes)


_ALL = "all pixels"
#: Section 5.3.1.
_PUBLISHED = {
    "side": 512,
    "width": 256,
    "hidden layers": 3,
    "optimiser": "Adam 1e-4",
    "iterations": 2000,
    "batch": _ALL,
}


@old_figure(
    "5.3",
    title="Imperfect recovery with single frequencies in the mapping",
    show=_planes,
    published=_PUBLISHED,
)
def figure_53(effort: str, run: Run) -> Finding:
    """Spectra of reconstructions with f₀ = 1, f₀ = 0.5 and random Fourier features."""
    build = functools.partial(builder("coordinate_mlp"), outputs=3, width=16 if effort == "smoke" else 256)
    families = {
        f"f₀ = {f:g}": Family.initialised(functools.partial(build, encoding="single", frequency=f), name=f"f₀ = {f:g}")
        for f in (1.0, 0.5)
    }
    sigma = 1.0 if effort == "smoke" else 10.0
    families["FFN"] = Family.initialised(functools.partial(build, encoding="gaussian", sigma=sigma), name="FFN")
    found = {name: _recovered(family, None, effort, run) for name, family in families.items()}
    finding = _spectra(found, effort)
    for name in ("f₀ = 1", "f₀ = 0.5"):
        finding.statistics[f"ffn_minus_{snake(name)}_db"] = over(found["FFN"].psnr - found[name].psnr).named(
            f"FFN minus {name}", "dB"
        )
    finding.statistics.update(
        {
            "f0_0_5_minus_f0_1_db": over(found["f₀ = 0.5"].psnr - found["f₀ = 1"].psnr).named(
                "f₀ = 0.5 minus f₀ = 1", "dB"
            ),
            "detail_f0_0_5_minus_ffn": over(detail(found["f₀ = 0.5"]) - detail(found["FFN"])).named(
                "detail over that of the image, f₀ = 0.5 minus FFN"
            ),
        }
    )
    finding.statistics["share_of_the_image_that_f0_1_cannot_reach"] = Estimate.exact(
        float(found["f₀ = 1"].unreachable[0])
    ).named("share of the image that f₀ = 1 cannot reach")
    return finding


def _frozen_siren(scale: float, omega: float, width: int) -> nn.Module:
    """A SIREN behind the fixed mapping sin(ω₀·scale·r), with as many layers as the FFN."""
    module: nn.Module = builder("siren")(
        outputs=3, width=width, mapping=2, omega=omega, bias="uniform", trainable_first=False
    )
    first = module.get_submodule("linear1")
    first.get_buffer("weight").copy_(scale * torch.eye(2))
    first.get_buffer("bias").zero_()
    return module


@old_figure(
    "C.1",
    title="Imperfect recovery of SIRENs with a fixed first layer",
    show=_planes,
    published=_PUBLISHED,
)
def figure_c1(effort: str, run: Run) -> Finding:
    """The same with sines in place of ReLUs, the first layer at fixed weights."""
    width = 16 if effort == "smoke" else 256
    cases = {
        "W = I, ω₀ = 2π": (1.0, 2 * math.pi),
        "W = 0.5·I, ω₀ = 2π": (0.5, 2 * math.pi),
        "W = I, ω₀ = 1": (1.0, 1.0),
    }
    found = {}
    for name, (scale, omega) in cases.items():
        family = Family.initialised(functools.partial(_frozen_siren, scale, omega, width), name=name)
        found[name] = _recovered(family, scale * omega / (2 * math.pi), effort, run)
    rich = functools.partial(builder("siren"), outputs=3, width=width, bias="uniform", trainable_first=False)
    found["rich mapping"] = _recovered(Family.initialised(rich, name="rich mapping"), None, effort, run)
    finding = _spectra(found, effort)
    difference = found["rich mapping"].psnr - found["W = I, ω₀ = 2π"].psnr
    finding.statistics["rich_mapping_minus_w_i_omega0_2pi_db"] = over(difference).named(
        "rich mapping minus W = I, ω₀ = 2π", "dB"
    )
    notes = (
        *finding.notes,
        "sin(ω₀Wr) with W = I has f₀ = 1 where ω₀ = 2π; with ω₀ = 1 it has one radian per unit, 0.32 cycles over [−1, 1), and "
        "no frequency of the grid is out of reach. A single sine along each axis cannot tell r from its mirror image, so that also "
        "W = 0.5·I recovers an image poorly.",
    )
    return Finding(finding.statistics, finding.arrays, finding.settings, notes)


# Sine layers, width, networks; by name of the network.
_TONES: dict[str, dict[str, tuple[int, int, int]]] = {
    "smoke": {"SIREN": (2, 16, 2)},
    "laptop": {"SIREN": (2, 128, 8), "4 × 256": (4, 256, 3)},
    "paper": {"SIREN": (2, 128, 20), "4 × 256": (4, 256, 10)},
}


@old_figure(
    "5.4",
    title="Aliasing: a tone of 23 Hz sampled at 128 Hz, reconstructed at 256 Hz",
    published={"sine layers": 2, "width": 128, "samples": 128},
    show=lambda finding, dark: _curves(
        finding, dark, "frequency, Hz", "amplitude", log_y=True, reading="Means over networks. 105 = 128 − 23 Hz."
    ),
)
def figure_54(effort: str, run: Run) -> Finding:
    """SIRENs with two first frequencies on one tone."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    steps = 20 if effort == "smoke" else 2000
    for kind, (depth, width, repeats) in _TONES[effort].items():
        before = "" if kind == "SIREN" else f"{kind}, "
        for omega in (300.0, 30.0):
            settings = {"coordinates": 1, "depth": depth, "width": width, "omega": omega}
            build = functools.partial(builder("siren"), bias="uniform", shift=0.0, **settings)
            name = f"{before}ω₀ = {omega:g}"
            found = aliasing(Family.initialised(build, name=name), steps=steps, repeats=repeats, seed=0, run=run.shared)
            for stem, words, each in (
                ("amplitude_at_105_hz_over_23_hz", "amplitude at 105 Hz over 23 Hz", found.ratio),
                (
                    "amplitude_at_105_hz_over_the_median_beyond_64_hz",
                    "amplitude at 105 Hz over the median beyond 64 Hz",
                    found.prominence,
                ),
                ("relative_error_on_the_samples", "relative error on the samples", found.error[:, 0]),
                ("relative_error_between_the_samples", "relative error between the samples", found.error[:, 1]),
            ):
                statistics[f"{snake(name)}_{stem}"] = over(each, within=NEVER).named(f"{name}: {words}")
            arrays[f"curve: {name}"] = np.stack([found.frequencies, found.spectrum.mean(0)])
    notes = (
        "128 samples on [0, 1) without the endpoint: with it the rate would be 127 Hz. The authors' released code has two sine layers "
        "of 128; the text does not say. The size was looked up, and the bounds of the first four claims set, after networks of "
        "4 × 256 and a few of 2 × 128 had been tried.",
    )
    plan = {kind: list(each) for kind, each in _TONES[effort].items()}
    depth, width, _ = _TONES[effort]["SIREN"]
    sizes = {"sine layers": depth, "width": width, "samples": 128}
    return Finding(statistics, arrays, {"networks": plan, **sizes, "iterations": steps, "rate": 1e-4, "seed": 0}, notes)
