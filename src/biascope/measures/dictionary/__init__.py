"""Dictionary: the tangent kernel of an implicit representation on a grid, and the energy of signals on its first atoms."""

# n points · N points of the grid · m signals · d coordinates

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from biascope.families.family import Family
from biascope.measures.dictionary.kernels import LOWEST, RIDGES, THRESHOLDS, GridKernels, mean_frequency
from biascope.measures.dictionary.result import Dictionary
from biascope.results.registry import measurement
from biascope.runs.run import Run
from biascope.runs.trials import Outcome
from biascope.tasks.signals import Signal, coordinate_grid


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
    """Energy of signals on the first eigenfunctions of a tangent kernel, and the prediction of regression with it.

    Definition:
        The kernel on the points of a grid is ``K_ij = ∇_θ f(r_i)ᵀ∇_θ f(r_j)``. Its eigenvalues are ``λ_ρ``, and its unit
        eigenvectors ``φ_ρ`` are the atoms. The mean of a signal f is subtracted. The energy of f above a threshold is
        ``E(λ) = Σ_{λ_ρ/λ_1 ≥ λ} ⟨φ_ρ, f⟩²/‖f‖²``. Its concentration is the area under E over L decades,
        ``(1/L)∫_{−L}^0 E(10^u) du = Σ_ρ ⟨φ_ρ, f⟩²/‖f‖² · max(0, 1 + log₁₀(λ_ρ/λ_1)/L)``. It is 1 if all energy lies on the
        largest eigenvalue.

        The prediction is ridge regression with the kernel around the network's first outputs f₀,
        ``f̂ = f₀ + K_ht(K_tt + εs_1)⁻¹(f − f₀)_t``. The training points are t, the held-out points h, and s_1 is the largest
        eigenvalue of ``K_tt``. Training with small steps up to a time of about ``1/εs_1`` gives the same.

    Args:
        family: Networks from coordinates to one number.
        signals: Values ``(m, …)`` on one grid, or signals of one shape; each channel counts as its own signal.
        points: Largest number of points of a kernel.
        choice: How to choose points of a larger grid. ``"window"``: neighbours. Each network has its own window, the most varied of
            four at random. The prediction is then for a training on the whole grid, because neighbours are as close as there.
            ``"random"``: points anywhere. They are far apart, so the prediction is for a training on these points alone.
        atoms: Eigenfunctions to keep, at most.
        decades: Number L of decades.
        ridge: ε, of 0.1, 0.01, … 0.000001, whose prediction is quoted: 0.1 for about three iterations, less for more. By default
            the best for each signal: training that is stopped in time.
        held_out: Share of held-out points, which are predicted from the others.
        low: Where the coordinates begin.
        high: Where the longest axis ends, its endpoint excluded.
        peak: Range of the values, for the PSNR.
        draws: Networks to draw, each with its own part of a large grid; one if neither varies.
        seed: Random seed for weights and for the choice of points.
        run: Folder (each finished network is saved) and device; kernels are always computed in float64.

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
    several = _of_one_shape(signals)
    sizes, flat = several[0].shape, torch.cat([each.flat.T for each in several]).double().cpu()  # (m, N)
    words = several[0].name if len(several) == 1 else f"{len(several)} {several[0].name}"
    if choice not in ("window", "random"):
        raise ValueError(f"choice must be 'window' or 'random', got {choice!r}. Pass choice='window'.")
    total = flat.shape[1]
    draws = 1 if total <= points and family.size == 1 else draws
    atoms = min(atoms, points, total)
    _check_settings(min(points, total), atoms, draws, decades, held_out, ridge)
    grid = coordinate_grid(sizes, low=low, high=high)
    _check_network(family, grid)
    if not bool((flat.std(1) > 1e-9 * flat.abs().amax(1)).all()):
        raise ValueError("signals must vary, got one value everywhere. Pass signals that are not constant.")
    kernels = GridKernels(
        grid=grid,
        sizes=sizes,
        signals=flat,
        points=points,
        choice=choice,
        atoms=atoms,
        decades=decades,
        held_out=held_out,
        peak=peak,
        seed=seed,
    )
    return _gathered(kernels, kernels.outcomes(family, draws, run or Run()), words, ridge)


def _of_one_shape(signals: Signal | Sequence[Signal] | Tensor) -> list[Signal]:
    """What was passed as a list of signals.

    Raises:
        ValueError: If there are none, or their shapes differ.
    """
    if isinstance(signals, Tensor):
        signals = [Signal(each[..., None].double(), "signals") for each in signals]
    several = [signals] if isinstance(signals, Signal) else list(signals)
    shapes = sorted({str(tuple(each.values.shape)) for each in several})
    if len(shapes) != 1:
        raise ValueError(
            f"signals must be one or more of the same shape, got {', '.join(shapes) or 'none'}. Pass signals of the same size."
        )
    return several


def _check_settings(points: int, atoms: int, draws: int, decades: float, held_out: float, ridge: float | None) -> None:
    """A sentence for the first setting out of its range."""
    ranges: dict[str, tuple[float, float, float]] = {
        "points": (points, 4, math.inf),
        "atoms": (atoms, 1, math.inf),
        "draws": (draws, 1, math.inf),
        "decades": (decades, 0.1, -math.log10(LOWEST)),
    }
    for name, (number, least, largest) in ranges.items():
        if not least <= number <= largest:
            span = f"from {least} to {largest:g}" if largest < math.inf else f"at least {least}"
            raise ValueError(f"{name} must be {span}, got {number}. Pass a number in that range.")
    if not 0 < held_out < 1:
        raise ValueError(f"held_out must be a share between 0 and 1, got {held_out}. Pass held_out=0.5.")
    if ridge is not None and not any(math.isclose(ridge, each) for each in RIDGES):
        raise ValueError(f"ridge must be one of {', '.join(map(str, RIDGES))}, got {ridge}. Pass ridge=0.001.")


def _gathered(kernels: GridKernels, found: list[Outcome], signals: str, ridge: float | None) -> Dictionary:
    """What the kernels of all networks said, as one result."""
    parts = [kernels.part(draw) for draw in range(len(found))]
    arrays: Any = {
        name: np.stack([one[name].numpy() for one in found])
        for name in ("eigenvalues", "energy", "concentration", "predicted")
    }
    frequency = [
        mean_frequency(one["atoms"].reshape(-1, *part.cells), max(kernels.sizes) / part.stride).numpy()
        for one, part in zip(found, parts, strict=True)
    ]
    return Dictionary(
        signals,
        kernels.sizes,
        np.stack([part.places.numpy() for part in parts]),
        THRESHOLDS.numpy().copy(),
        np.array(RIDGES),
        ridge,
        atom_shape=parts[0].cells,
        atoms=found[0]["atoms"].numpy(),
        frequency=np.stack(frequency),
        **arrays,
        provenance={"signals": signals, "draws": len(found)},
    )


def _check_network(family: Family, r: Tensor) -> None:
    """A sentence where the network does not take these coordinates or says several numbers."""
    said = family.tried(r[:2], f"take {r.shape[1]} coordinates", f"Build it with coordinates={r.shape[1]}.")
    if said.numel() != 2:
        raise ValueError(
            f"{family.name} must return one number for each point, got {said.numel() // 2}. Build it with outputs=1: each channel of "
            "a signal counts as its own signal."
        )
