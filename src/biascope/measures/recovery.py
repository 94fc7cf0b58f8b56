"""Recovery: which frequencies of a signal an implicit representation recovers, and which its mapping can never reach."""

# h × w frequencies of an image, 1 × w of a signal in time · c channels · T mapping frequencies · d coordinates

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from biascope.families.family import Family
from biascope.results.draw import captioned
from biascope.results.estimate import SHARE, Number, over
from biascope.results.figures import lines_figure, plane_figure
from biascope.results.registry import measurement
from biascope.results.result import Plane, Result
from biascope.results.story import Step, Story
from biascope.results.wording import significant
from biascope.runs.randomness import seed_of
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.harmonics import bandwidth, bins_of, harmonics, mapping_frequencies
from biascope.tasks.signals import Signal, SignalTask, coordinate_grid, outputs_at, psnr
from biascope.tasks.task import master_dtype
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 64  # frequencies along a side that a picture shows, around zero


@dataclass(frozen=True, repr=False)
class Recovery(Result):
    """Power spectra of a signal and of its reconstructions, in the order of the DFT and without the mean.

    Attributes:
        signal: Its name.
        target: Power of the signal on each frequency.
        power: Power of each reconstruction.
        missed: Power of the error.
        reached: Which frequencies the harmonics of the mapping reach.
        mapped: Whether the mapping is known; else every frequency counts as reached.
        psnr: PSNR of the reconstructions, in decibels.
    """

    signal: str
    target: np.ndarray
    power: np.ndarray
    missed: np.ndarray
    reached: np.ndarray
    mapped: bool
    psnr: np.ndarray

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "target": ("row", "column"),
        **dict.fromkeys(("power", "missed", "reached"), ("repeat", "row", "column")),
        "psnr": ("repeat",),
    }

    @property
    def unreachable(self) -> np.ndarray:
        """Share of the signal's energy on frequencies that no harmonic reaches (repeat)."""
        return np.asarray((self.target * ~self.reached).sum((1, 2)) / self.target.sum())

    @property
    def outside(self) -> np.ndarray:
        """Share of the reconstruction's energy there: 0 but for rounding, where theory holds (repeat)."""
        return np.asarray((self.power * ~self.reached).sum((1, 2)) / self.power.sum((1, 2)))

    @property
    def odd(self) -> np.ndarray:
        """Share of the reconstruction's energy on frequencies with an odd index in either direction (repeat)."""
        return np.asarray((self.power * odd_frequencies(self.target.shape)).sum((1, 2)) / self.power.sum((1, 2)))

    @property
    def recovered(self) -> np.ndarray:
        """``1 − ‖error‖²/‖signal‖²``, means left out (repeat)."""
        return np.asarray(1 - self.missed.sum((1, 2)) / self.target.sum())

    @property
    def bandwidths(self) -> np.ndarray:
        """Radius in cycles that holds 99 % of the energy: of each reconstruction, and last of the signal."""
        return np.array([bandwidth(torch.as_tensor(each)) for each in (*self.power, self.target)])

    @override
    def headline(self) -> dict[str, Number]:
        widths = self.bandwidths
        bandwidth = over(widths[:-1] / max(widths[-1], 1.0))
        numbers = {
            "psnr": over(self.psnr).named("PSNR", "dB"),
            "energy_recovered": over(self.recovered).named("share of the signal's energy recovered", SHARE),
            "bandwidth_ratio": bandwidth.named("bandwidth of the reconstruction relative to the signal"),
        }
        if self.mapped:
            unreachable, outside = (over(each, within=(0.0, 1.0)) for each in (self.unreachable, self.outside))
            numbers |= {
                "energy_unreachable": unreachable.named("share of the signal's energy that no harmonic reaches", SHARE),
                "energy_outside": outside.named("share of the reconstruction's energy that no harmonic reaches", SHARE),
            }
        return numbers

    @override
    def sentence(self) -> str:
        psnr, recovered = self.psnr.mean(), 100 * self.recovered.mean()
        words = f"{self.subject} reconstructs {self.signal} with {psnr:.1f} dB and recovers {recovered:.0f} % of its energy."
        if not self.mapped:
            return words
        if self.unreachable.mean() < 1e-6:
            return f"{words} Harmonics of its mapping reach every frequency of the signal."
        return (
            f"{words} {100 * self.unreachable.mean():.0f} % of the signal's energy lies on frequencies that no harmonic of its mapping "
            f"reaches. The reconstruction has a share of {significant(float(self.outside.mean()), 1)} of its own energy there."
        )

    @override
    def story(self) -> Story:
        return Story(
            meaning=(
                "Energy that is recovered is where the reconstruction has the frequencies of the signal. Energy that no "
                "harmonic reaches cannot be learned, however long the training. A high PSNR on the samples does not mean "
                "that the signal is right between them."
            ),
            next_steps=[Step("Rank networks for your own signal.", "biascope inr advise SIGNAL")],
        )

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        shares = {
            "the signal": self.target / self.target.sum(),
            "its reconstruction": self.power[0] / self.power[0].sum(),
        }
        found = {"energy_by_cycles": captioned("Energy by number of cycles", _shells(shares, dark))}
        if min(self.target.shape) == 1:
            return found
        cut = [slice(max(0, size // 2 - SHOWN // 2), size // 2 + SHOWN // 2) for size in self.target.shape]
        planes = {
            name: Plane(
                np.log10(np.fft.fftshift(share)[cut[0], cut[1]] + 1e-12), "log₁₀ of the share of energy", -8.0, -2.0
            )
            for name, share in shares.items()
        }
        return {"energy_by_frequency": captioned("Energy on each frequency", plane_figure(planes, dark=dark)), **found}


def odd_frequencies(shape: tuple[int, ...]) -> np.ndarray:
    """Where an index of the DFT is odd along one axis or more.

    Example:
        >>> odd_frequencies((2, 3)).astype(int)
        array([[0, 1, 0],
               [1, 1, 1]])
    """
    return np.asarray((np.indices(shape) % 2).any(0))


def _shells(shares: Mapping[str, np.ndarray], dark: bool) -> Figure:
    """Energy summed over rings of equal radius."""
    curves = {}
    for name, share in shares.items():
        axes = np.meshgrid(*[np.fft.fftfreq(size, 1 / size) for size in share.shape], indexing="ij")
        radius = np.sqrt(axes[0] ** 2 + axes[1] ** 2).round().astype(int)
        rings = np.bincount(radius.ravel(), share.ravel())[1 : max(share.shape) // 2 + 1]
        curves[name] = (np.arange(1, len(rings) + 1), np.where(rings > 1e-16, rings, np.nan))
    reading = (
        "Where the reconstruction lies below the signal, detail is lost. A gap is a frequency that it cannot represent."
    )
    style: Any = {"x": "cycles over the signal", "y": "share of energy", "log_y": True, "reading": reading}
    return lines_figure(curves, log_x=True, dark=dark, **style)


class _OneFrequency(nn.Module):
    """Two cycles over [0, 1) along every axis, and a small network on them."""

    def __init__(self, coordinates: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", 2 * torch.eye(coordinates))
        self.layers = nn.Sequential(nn.Linear(2 * coordinates, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, r: Tensor) -> Tensor:
        angles = 2 * torch.pi * r @ self.get_buffer("frequencies")
        said: Tensor = self.layers(torch.cat([angles.sin(), angles.cos()], -1))
        return said


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    family = Family.initialised(functools.partial(_OneFrequency, 2), name="small")
    signal = Signal(torch.rand(8, 8, 1, generator=torch.Generator().manual_seed(0)), "noise")
    return (family, signal), {"steps": 20, "repeats": 2, "low": 0.0}


@measurement(title="Recovery", paper="dictionaries2022", result=Recovery, example=_example)
def recovery(
    family: Family,
    signal: Signal,
    *,
    frequency: float | None = None,
    low: float = -1.0,
    high: float = 1.0,
    peak: float = 1.0,
    rate: float = 1e-4,
    steps: int = 2000,
    batch: int | None = None,
    repeats: int = 1,
    seed: int = 0,
    run: Run | None = None,
) -> Recovery:
    """Which frequencies of a signal networks recover, and which the harmonics of their mapping can never reach.

    Definition:
        A network on ``γ(r) = sin(Ωr + φ)`` contains only frequencies ``Σ_t s_t Ω_t`` with whole ``s_t`` (theorem 5.1). On a grid of
        N samples over an extent E, without its endpoint, ``Ω = 2πf₀`` is frequency ``f₀E`` of the DFT. For example, with ``f₀ = 1`` on
        ``[−1, 1)``, every odd frequency is out of reach. The network is trained on all samples. The power ``|DFT|²/N²`` of signal,
        reconstruction and error is then compared for each frequency.

    Args:
        family: Networks from coordinates ``(n, d)`` to values ``(n, c)``.
        signal: An image ``(h, w, c)`` or a time series ``(w, c)``.
        frequency: f₀ of a mapping that has it along every axis, in cycles per unit of the coordinates. By default it is read from
            the network's buffer ``frequencies``. A trained mapping reaches every frequency.
        low: Where the coordinates begin.
        high: Where the longest axis ends, its endpoint excluded.
        peak: Range of the values, for the PSNR.
        rate: Learning rate of Adam, constant; this and the next two defaults are the published recipe.
        steps: Iterations.
        batch: Samples in an iteration; by default all.
        repeats: Networks to train.
        seed: Random seed for weights and order of samples.
        run: Folder (trainings are saved), device, precision; spectra are always taken in float64.

    Returns:
        Spectra, the unreachable energy, and the PSNR.

    Raises:
        ValueError: If signal, network and settings do not fit, or training diverges.

    Example:
        >>> from biascope.tasks.signals import coordinate_grid
        >>> wave = torch.sin(2 * torch.pi * 3 * coordinate_grid((16,))).float()  # 3 cycles, and a mapping with 2
        >>> family = Family.initialised(functools.partial(_OneFrequency, 1), name="small")
        >>> result = recovery(family, Signal(wave, "a wave"), low=0.0, steps=2)
        >>> round(float(result.unreachable[0]), 6), bool(result.outside[0] < 1e-20)
        (1.0, True)

    Reference:
        Yüce, Ortiz-Jiménez, Besbinar, Frossard (2022). A structured dictionary perspective on implicit neural
        representations. CVPR. Thesis, section 5.3.1 and appendix C.2: figures 5.3 and C.1.
    """
    run, sizes = run or Run(), signal.shape
    if len(sizes) > 2 or max(sizes) < 2:
        raise ValueError(
            f"signal must be an image or a time series, got {len(sizes)} axes of sizes {sizes}. Pass a slice of it."
        )
    if float(signal.values.std(tuple(range(len(sizes)))).max()) == 0:
        raise ValueError("signal must vary, got one value everywhere. Pass a signal that is not constant.")
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}. Pass repeats=1.")
    extent = [(high - low) * size / max(sizes) for size in sizes]
    if frequency is not None and not frequency > 0:
        raise ValueError(f"frequency must be a positive number, got {frequency}. Pass frequency=1.0.")
    batch = math.prod(sizes) if batch is None else batch
    recipe = Recipe("adam", rate, "constant", steps=steps, batch=batch, loss="squared")
    task = SignalTask.of(signal, held_out=0.0, low=low, high=high, seed=seed, run=run)
    grid, flat = coordinate_grid(sizes, low=low, high=high), signal.flat.double().cpu()
    _check(family, grid, signal.channels)
    omega = None if frequency is None else 2 * torch.pi * frequency * torch.eye(len(sizes), dtype=torch.float64)

    def powers(values: Tensor) -> Tensor:
        centred = (values - values.mean(0)).reshape(*sizes, -1)
        found = torch.fft.fftn(centred, dim=tuple(range(len(sizes)))).abs().square().sum(-1) / math.prod(sizes) ** 2
        plane: Tensor = found.reshape(-1, sizes[-1])
        return plane

    def trained(key: str) -> Outcome:
        own = seed_of(seed, key)
        start = family.draw(1, seed=own, run=run).member(0).to(run.torch_device, master_dtype(run))
        network = fit(start, task, recipe, seed=own, run=run).require_finite().networks
        said = outputs_at(network, grid, run=replace(run, precision="float64"))
        outcome = {"psnr": psnr(said, flat, peak=peak), "power": powers(said), "missed": powers(said - flat)}
        mapping = mapping_frequencies(network, len(sizes)) if omega is None else omega
        return outcome if mapping is None else {**outcome, "omega": mapping.cpu()}

    trials = Trials(
        "recovery", run, code=trained, at=grid.float(), family=family, task=task, recipe=recipe, seed=seed, peak=peak
    )
    found = list(trials.outcomes([f"repeat {i}" for i in range(repeats)], trained))
    if omega is not None:  # not part of a training's identity
        found = [{**one, "omega": omega} for one in found]
    everything = torch.ones(sizes, dtype=torch.bool)
    reached = [
        harmonics(bins_of(one["omega"], extent), sizes).reached if "omega" in one else everything for one in found
    ]
    arrays: Any = {name: np.stack([one[name].numpy() for one in found]) for name in ("psnr", "power", "missed")}
    planes = np.stack([each.reshape(-1, sizes[-1]).numpy() for each in reached])
    mapped = "omega" in found[0]
    return Recovery(signal.name, powers(flat).numpy(), reached=planes, mapped=mapped, **arrays)


def _check(family: Family, grid: Tensor, channels: int) -> None:
    """A sentence where the network does not take these coordinates or say these values."""
    said = family.tried(grid[:1], f"take {grid.shape[1]} coordinates", f"Build it with coordinates={grid.shape[1]}.")
    if tuple(said.shape) != (1, channels):
        raise ValueError(
            f"{family.name} must return {channels} numbers for each point, got {tuple(said.shape)[1:]}. Build it with "
            f"outputs={channels}."
        )
