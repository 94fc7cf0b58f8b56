"""Dictionary: the tangent kernel of an implicit representation on a grid, and how much of signals lies on its first atoms."""

# n points · m signals · d coordinates · T thresholds · R ridges · k atoms

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg
import torch
from torch import Tensor, nn

from biascope.families.family import Family
from biascope.kernels.gram import tangent_gram
from biascope.measures.dictionary.result import Dictionary
from biascope.results.registry import measurement
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.signals import Signal, coordinate_grid, outputs_at, psnr

CPU = torch.device("cpu")
LOWEST = 1e-10  # of the thresholds: below it a float64 kernel is known to too few digits
CANDIDATES = 4  # windows of which the most varied is taken: a piece of empty sky says nothing
RIDGES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


class _Small(nn.Module):
    """Two layers on sines of the coordinates."""

    def __init__(self, coordinates: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(coordinates, 24), nn.Linear(24, 1)

    def forward(self, r: Tensor) -> Tensor:
        said: Tensor = self.second(torch.sin(8 * self.first(r)))
        return said


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    family = Family.initialised(functools.partial(_Small, 2), name="small")
    return (family, torch.rand(3, 6, 6, generator=torch.Generator().manual_seed(0))), {"draws": 2, "atoms": 6}


@measurement(title="Dictionary", paper="dictionaries2022", result=Dictionary, example=_example)
def dictionary(
    family: Family,
    signals: Signal | Sequence[Signal] | Tensor,
    *,
    points: int = 4096,
    choice: str = "window",
    atoms: int = 16,
    decades: float = 5.0,
    ridge: float | None = None,
    held_out: float = 0.5,
    low: float = 0.0,
    high: float = 1.0,
    peak: float = 1.0,
    draws: int = 3,
    seed: int = 0,
    run: Run | None = None,
) -> Dictionary:
    """How much of signals lies on the first eigenfunctions of a tangent kernel, and what regression with it predicts.

    Definition:
        With ``λ_ρ, φ_ρ`` the eigenvalues and unit eigenvectors of the kernel ``K_ij = ∇_θ f(r_i)ᵀ∇_θ f(r_j)`` on the points of a grid
        (the atoms), the energy of a signal f, its mean taken off, above a threshold is
        ``E(λ) = Σ_{λ_ρ/λ_1 ≥ λ} ⟨φ_ρ, f⟩²/‖f‖²``. Its concentration is the area under E over L decades,
        ``(1/L)∫_{−L}^0 E(10^u) du = Σ_ρ ⟨φ_ρ, f⟩²/‖f‖² · max(0, 1 + log₁₀(λ_ρ/λ_1)/L)``: 1 where all energy has the largest
        eigenvalue. The prediction is that of ridge regression with the kernel around the network's first outputs f₀,
        ``f̂ = f₀ + K_ht(K_tt + εs_1)⁻¹(f − f₀)_t``, from the points t that are kept to those held out h, s_1 being the largest
        eigenvalue of ``K_tt``: what training with small steps gives, up to a time of about ``1/εs_1``.

    Args:
        family: Networks from coordinates to one number.
        signals: Values ``(m, …)`` on one grid, or signals of one shape; each channel counts as a signal of its own.
        points: Most points that a kernel is taken on.
        choice: Of a larger grid, ``"window"``: neighbours, in a window of its own for each network, the most varied of four at random;
            or ``"random"``: so many points anywhere. Neighbours are as close as in the whole grid, so that the prediction is for a
            training on the whole; random points are far apart, and it is for a training on them alone.
        atoms: Eigenfunctions that are kept, at most.
        decades: L.
        ridge: ε, of 0.1, 0.01, … 0.000001, whose prediction is quoted: 0.1 for about three iterations, less for more. By default
            the best for each signal: training that is stopped in time.
        held_out: Share of the points that are predicted from the others.
        low: Where the coordinates begin.
        high: Where the longest axis ends, its endpoint excluded.
        peak: Range of the values, of which the PSNR is taken.
        draws: Networks, each with its part of a large grid; one where neither varies.
        seed: Of weights, and of the choice of points.
        run: Folder (every network is kept as it is done) and device; kernels are always computed in float64.

    Returns:
        The dictionary.

    Raises:
        ValueError: If signals, network and settings do not fit.

    Example:
        >>> wave = torch.cos(2 * torch.pi * coordinate_grid((8,)))  # f(r) = w·r: one atom, r itself
        >>> family = Family.initialised(functools.partial(nn.Linear, 1, 1, bias=False), name="linear")
        >>> found = dictionary(family, wave.T, atoms=1, run=Run(device="cpu"))
        >>> r = coordinate_grid((8,))
        >>> bool(np.allclose(found.energy[..., 0], float((r * wave).sum() ** 2 / (r * r).sum() / (wave * wave).sum())))
        True

    Reference:
        Yüce, Ortiz-Jiménez, Besbinar, Frossard (2022). A structured dictionary perspective on implicit neural
        representations. CVPR. Thesis, section 5.4 and appendix C.4: figures 5.5–5.8 and C.2, equation (5.14) with ⟨f, f⟩ below.
    """
    run = run or Run()
    exact = replace(run, precision="float64", folder=None, on=None)
    if isinstance(signals, Tensor):
        signals = [Signal(each[..., None].double(), "signals") for each in signals]
    several = [signals] if isinstance(signals, Signal) else list(signals)
    if len({each.values.shape for each in several}) != 1:
        listed = ", ".join(sorted({str(tuple(each.values.shape)) for each in several})) or "none"
        raise ValueError(f"signals must be at least one and of one shape, got {listed}. Pass signals of one size.")
    sizes, flat = several[0].shape, torch.cat([each.flat.T for each in several]).double().cpu()  # (m, N)
    words = several[0].name if len(several) == 1 else f"{len(several)} {several[0].name}"
    if choice not in ("window", "random"):
        raise ValueError(f"choice must be 'window' or 'random', got {choice!r}. Pass choice='window'.")
    whole = flat.shape[1] <= points
    draws = 1 if whole and family.law == "point" else draws
    atoms = min(atoms, points, flat.shape[1])
    checks: dict[str, tuple[float, float, float]] = {
        "points": (min(points, flat.shape[1]), 4, math.inf),
        "atoms": (atoms, 1, math.inf),
    }
    checks |= {"draws": (draws, 1, math.inf), "decades": (decades, 0.1, -math.log10(LOWEST))}
    for name, (number, least, largest) in checks.items():
        if not least <= number <= largest:
            span = f"from {least} to {largest:g}" if largest < math.inf else f"at least {least}"
            raise ValueError(f"{name} must be {span}, got {number}. Pass such a number.")
    if not 0 < held_out < 1:
        raise ValueError(f"held_out must be a share between 0 and 1, got {held_out}. Pass held_out=0.5.")
    if ridge is not None and not any(math.isclose(ridge, each) for each in RIDGES):
        raise ValueError(f"ridge must be one of {', '.join(map(str, RIDGES))}, got {ridge}. Pass ridge=0.001.")
    grid = coordinate_grid(sizes, low=low, high=high)
    _check(family, grid)
    if not bool((flat.std(1) > 1e-9 * flat.abs().amax(1)).all()):
        raise ValueError("signals must vary, got one value everywhere. Pass signals with something to reconstruct.")
    thresholds = torch.logspace(0, math.log10(LOWEST), 101, dtype=torch.float64)
    networks = functools.cache(lambda: family.draw(draws, seed=seed, run=exact))

    def measured(key: str) -> Outcome:
        draw = int(key.split()[-1])
        network, part = networks().member(draw), _part(flat, sizes, points, choice, seed, draw)
        r, here = grid[part.places], flat[:, part.places]
        kernel = tangent_gram(network, r, run=exact, label=key).matrix
        values, vectors = (each.flip(-1) for each in all_eigenpairs(kernel))
        values = values.clamp_min(0)
        relative = values / values[0].clamp_min(1e-300)
        centred = (here - here.mean(1, keepdim=True)).to(kernel)
        energy = (centred @ vectors).square() / centred.square().sum(1, keepdim=True).clamp_min(1e-300)  # (m, n)
        # E at a threshold: what lies on the eigenvalues before the first that is below it.
        before = torch.searchsorted(-relative, -thresholds.to(kernel) * (1 - 1e-12), right=True)
        summed = torch.cat([torch.zeros_like(energy[:, :1]), energy.cumsum(1)], 1)
        height = (1 + relative.clamp_min(1e-300).log10() / decades).clamp_min(0)
        first = vectors[:, :atoms]
        if part.shown is not None:  # carried to a grid by φ(r) = Σ_i k(r, r_i)φ_i/λ
            first = tangent_gram(network, grid[part.shown], r, run=exact).matrix @ (
                first / values[:atoms].clamp_min(1e-300)
            )
        start = outputs_at(network, r, run=exact).flatten().to(kernel)
        order = torch.randperm(len(r), generator=generator_for(CPU, seed, "held out"))  # as SignalTask does
        left, kept = order[: round(held_out * len(r))], order[round(held_out * len(r)) :]
        outcome = {
            "eigenvalues": values / len(values),
            "energy": summed[:, before],
            "concentration": energy @ height,
            "predicted": _predicted(kernel, here.to(kernel), start, kept, left, peak),
            "atoms": (first / first.norm(dim=0).clamp_min(1e-300)).T,
        }
        return {name: tensor.cpu() for name, tensor in outcome.items()}

    trials = Trials(
        "dictionary",
        replace(run, precision="float64"),
        code=measured,
        at=grid.float(),
        family=family,
        signals=flat,
        sizes=sizes,
        seed=seed,
        kernel=(points, atoms, decades, held_out, low, high, peak),
        choice=None if whole else choice,
    )
    found = list(trials.outcomes([f"network {i}" for i in range(draws)], measured))
    arrays: Any = {
        name: np.stack([one[name].numpy() for one in found])
        for name in ("eigenvalues", "energy", "concentration", "predicted")
    }
    parts = [_part(flat, sizes, points, choice, seed, draw) for draw in range(draws)]
    return Dictionary(
        words,
        sizes,
        np.stack([part.places.numpy() for part in parts]),
        thresholds.numpy(),
        np.array(RIDGES),
        ridge,
        atom_shape=parts[0].cells,
        atoms=found[0]["atoms"].numpy(),
        frequency=np.stack(
            [
                mean_frequency(one["atoms"].reshape(-1, *part.cells), max(sizes) / part.stride).numpy()
                for one, part in zip(found, parts, strict=True)
            ]
        ),
        **arrays,
        provenance={"signals": words, "draws": draws},
    )


@dataclass(frozen=True)
class _Part:
    """The points of a grid that a kernel is taken on, and those that its atoms are shown on."""

    places: Tensor  # (n,)
    cells: tuple[int, ...]
    stride: int = 1
    shown: Tensor | None = None  # where the two differ


def _part(flat: Tensor, sizes: tuple[int, ...], points: int, choice: str, seed: int, draw: int) -> _Part:
    total, indices = flat.shape[1], torch.arange(flat.shape[1]).reshape(sizes)
    if total <= points:
        return _Part(torch.arange(total), sizes)
    generator = generator_for(CPU, seed, "part", draw)
    if choice == "random":
        places = torch.randperm(total, generator=generator)[:points].sort().values
        stride = next(s for s in range(1, max(sizes) + 1) if math.prod(-(-size // s) for size in sizes) <= points)
        coarse = indices[tuple(slice(None, None, stride) for _ in sizes)]
        return _Part(places, tuple(coarse.shape), stride, coarse.flatten())
    # Of the signals' own proportions.
    sides = tuple(max(1, math.floor(size * (points / total) ** (1 / len(sizes)))) for size in sizes)
    windows = []
    for _ in range(CANDIDATES):
        corners = [int(torch.randint(n - s + 1, (1,), generator=generator)) for n, s in zip(sizes, sides, strict=True)]
        windows.append(indices[tuple(slice(c, c + s) for c, s in zip(corners, sides, strict=True))].flatten())
    return _Part(max(windows, key=lambda places: float(flat[:, places].var(1).mean())), sides)


def all_eigenpairs(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """All eigenvalues of a symmetric float64 matrix, smallest first, and its eigenvectors as columns."""
    if matrix.device.type == "cpu":  # the same LAPACK routine, but SciPy's takes two thirds of the time of PyTorch's
        values, vectors = scipy.linalg.eigh(matrix.numpy(), driver="evd", check_finite=False)
        return torch.from_numpy(values), torch.from_numpy(vectors)
    pairs = torch.linalg.eigh(matrix)
    return pairs.eigenvalues, pairs.eigenvectors


def _predicted(kernel: Tensor, values: Tensor, start: Tensor, kept: Tensor, left: Tensor, peak: float) -> Tensor:
    """PSNR of kernel ridge regression on the points left out, for each signal and ridge ``(m, R)``."""
    kept, left = kept.to(kernel.device), left.to(kernel.device)
    s, u = all_eigenpairs(kernel[kept][:, kept])
    missing = values - start
    known, carried = missing[:, kept] @ u, kernel[left][:, kept] @ u
    said = [(known / (s.clamp_min(0) + ridge * s[-1])) @ carried.T for ridge in RIDGES]
    return torch.stack([psnr(each, missing[:, left], peak=peak, dim=1) for each in said], 1)


def mean_frequency(atoms: Tensor, per_side: float) -> Tensor:
    """Mean radius of the spectrum of atoms ``(k, …)``, in cycles over a side of so many points.

    Atoms are mirrored at their edges: left and right edges of a smooth one need not meet, and their jump has all frequencies.

    Example:
        >>> wave = torch.cos(2 * torch.pi * 3 * (torch.arange(12) + 0.5) / 12)[None]
        >>> round(float(mean_frequency(wave, 12)), 6)
        3.0
    """
    for axis in range(1, atoms.dim()):
        atoms = torch.cat([atoms, atoms.flip(axis)], axis)
    energy = torch.fft.fftn(atoms.double(), dim=tuple(range(1, atoms.dim()))).abs().square().flatten(1)
    axes = [torch.fft.fftfreq(cells, dtype=torch.float64) for cells in atoms.shape[1:]]
    radius = per_side * torch.cartesian_prod(*axes).reshape(-1, len(axes)).norm(dim=1)
    mean: Tensor = (energy @ radius) / energy.sum(1).clamp_min(1e-300)
    return mean


def _check(family: Family, r: Tensor) -> None:
    """A sentence where the network does not take these coordinates or says several numbers."""
    try:
        said = family.template.to(CPU, torch.float32)(r[:2].float())
    except Exception as error:  # a user's forward pass may raise anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ValueError(
            f"{family.name} must take {r.shape[1]} coordinates, and its forward pass failed with: {reason}. "
            f"Build it with coordinates={r.shape[1]}."
        ) from error
    family.check_forward(r[:2].float())
    if said.numel() != 2:
        raise ValueError(
            f"{family.name} must say one number for a point, got {said.numel() // 2}. Build it with outputs=1: each channel of a "
            "signal counts as a signal of its own."
        )
