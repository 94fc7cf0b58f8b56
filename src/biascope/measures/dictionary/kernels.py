"""HOW: signals on a grid and tangent kernels of networks: energy on atoms, the atoms, and predictions of regression."""

# n points · N points of the grid · m signals · d coordinates · T thresholds · R ridges · k atoms · c cells that they are shown on

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import scipy.linalg
import torch
from torch import Tensor

from biascope.families.family import Family
from biascope.families.network import Network
from biascope.kernels.gram import tangent_gram
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.signals import outputs_at, psnr

CPU = torch.device("cpu")
LOWEST = 1e-10  # of the thresholds: below it a float64 kernel is known to too few digits
THRESHOLDS = torch.logspace(0, math.log10(LOWEST), 101, dtype=torch.float64)
CANDIDATES = 4  # windows of which the most varied is taken: a piece of empty sky says nothing
RIDGES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


@dataclass(frozen=True)
class GridPoints:
    """The points of a grid that a kernel is taken on, and those that its atoms are shown on.

    Attributes:
        places: Places of the points, ``(n,)``.
        cells: Shape of the grid that atoms are shown on.
        stride: Points of the signals' grid from one of its cells to the next.
        shown: Places of its cells where they are not those of the points.
    """

    places: Tensor
    cells: tuple[int, ...]
    stride: int = 1
    shown: Tensor | None = None


@dataclass(frozen=True, eq=False)
class GridKernels:
    """Signals on a grid, to be seen through the kernels of networks.

    Attributes:
        grid: Coordinates of its points, ``(N, d)``.
        sizes: Points along each axis.
        signals: Their values, ``(m, N)``.
        points: Most points that a kernel is taken on.
        choice: How points of a larger grid are chosen: ``"window"`` or ``"random"``.
        atoms: Eigenfunctions that are kept.
        decades: Number of decades of the concentration.
        held_out: Share of the points that are predicted from the others.
        peak: Range of the values, for the PSNR.
        seed: Random seed for weights, and of the choice of points.
    """

    grid: Tensor
    sizes: tuple[int, ...]
    signals: Tensor
    points: int
    choice: str
    atoms: int
    decades: float
    held_out: float
    peak: float
    seed: int

    @property
    def whole(self) -> bool:
        """Whether a kernel is taken on all points."""
        return self.signals.shape[1] <= self.points

    def outcomes(self, family: Family, draws: int, run: Run) -> list[Outcome]:
        """What the kernel of each network says, kept as it is done: see :meth:`_measured`."""
        exact = replace(run, precision="float64", folder=None, on=None)
        networks = functools.cache(lambda: family.draw(draws, seed=self.seed, run=exact))
        trials = Trials(
            "dictionary",
            replace(run, precision="float64"),
            code=type(self),
            at=self.grid.float(),
            family=family,
            grid=self.grid,
            signals=self.signals,
            sizes=self.sizes,
            seed=self.seed,
            kernel=(self.points, self.atoms, self.decades, self.held_out, self.peak),
            choice=None if self.whole else self.choice,
        )

        def measured(key: str) -> Outcome:
            draw = int(key.split()[-1])
            return self._measured(networks().member(draw), draw, exact)

        return list(trials.outcomes([f"network {draw}" for draw in range(draws)], measured))

    def part(self, draw: int) -> GridPoints:
        """The points for the kernel of a network: all, or a choice of its own."""
        total, sizes = self.signals.shape[1], self.sizes
        if self.whole:
            return GridPoints(torch.arange(total), sizes)
        indices, generator = torch.arange(total).reshape(sizes), generator_for(CPU, self.seed, "part", draw)
        if self.choice == "random":
            places = torch.randperm(total, generator=generator)[: self.points].sort().values
            strides = range(1, max(sizes) + 1)
            stride = next(s for s in strides if math.prod(-(-size // s) for size in sizes) <= self.points)
            coarse = indices[tuple(slice(None, None, stride) for _ in sizes)]
            return GridPoints(places, tuple(coarse.shape), stride, coarse.flatten())
        # Of the signals' own proportions.
        sides = tuple(max(1, math.floor(size * (self.points / total) ** (1 / len(sizes)))) for size in sizes)
        windows = []
        for _ in range(CANDIDATES):
            corners = [
                int(torch.randint(n - s + 1, (1,), generator=generator)) for n, s in zip(sizes, sides, strict=True)
            ]
            windows.append(indices[tuple(slice(c, c + s) for c, s in zip(corners, sides, strict=True))].flatten())
        return GridPoints(max(windows, key=lambda places: float(self.signals[:, places].var(1).mean())), sides)

    def _measured(self, network: Network, draw: int, run: Run) -> Outcome:
        """Of one network: ``eigenvalues`` (n,), ``energy`` (m, T), ``concentration`` (m,), ``predicted`` (m, R), ``atoms`` (k, c)."""
        part = self.part(draw)
        r, here = self.grid[part.places], self.signals[:, part.places]
        kernel = tangent_gram(network, r, run=run, label=f"network {draw}").matrix
        values, vectors = (each.flip(-1) for each in all_eigenpairs(kernel))
        values = values.clamp_min(0)
        energy, concentration = energy_above_thresholds(values, vectors, here, self.decades)
        start = outputs_at(network, r, run=run).flatten().to(kernel)
        order = torch.randperm(len(r), generator=generator_for(CPU, self.seed, "held out"))  # as SignalTask does
        left, kept = order[: round(self.held_out * len(r))], order[round(self.held_out * len(r)) :]
        outcome = {
            "eigenvalues": values / len(values),
            "energy": energy,
            "concentration": concentration,
            "predicted": predicted_psnr(kernel, here.to(kernel), start, kept, left, self.peak),
            "atoms": self._atoms(network, part, values, vectors, run),
        }
        return {name: tensor.cpu() for name, tensor in outcome.items()}

    def _atoms(self, network: Network, part: GridPoints, values: Tensor, vectors: Tensor, run: Run) -> Tensor:
        """The first eigenfunctions on the grid that they are shown on, of unit length ``(k, c)``."""
        first = vectors[:, : self.atoms]
        if part.shown is not None:  # carried to a grid by φ(r) = Σ_i k(r, r_i)φ_i/λ
            carrying = tangent_gram(network, self.grid[part.shown], self.grid[part.places], run=run).matrix
            first = carrying @ (first / values[: self.atoms].clamp_min(1e-300))
        unit: Tensor = first / first.norm(dim=0).clamp_min(1e-300)
        return unit.T


def all_eigenpairs(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """All eigenvalues of a symmetric float64 matrix, smallest first, and its eigenvectors as columns."""
    if matrix.device.type == "cpu":  # the same LAPACK routine, but SciPy's takes two thirds of the time of PyTorch's
        values, vectors = scipy.linalg.eigh(matrix.numpy(), driver="evd", check_finite=False)
        return torch.from_numpy(values), torch.from_numpy(vectors)
    pairs = torch.linalg.eigh(matrix)
    return pairs.eigenvalues, pairs.eigenvectors


def energy_above_thresholds(values: Tensor, vectors: Tensor, signals: Tensor, decades: float) -> tuple[Tensor, Tensor]:
    """How much of signals lies on the first eigenvectors.

    Args:
        values: Eigenvalues, falling, ``(n,)``.
        vectors: Eigenvectors as columns, ``(n, n)``.
        signals: ``(m, n)``; their means are taken off.
        decades: Over which the area under the energy is taken.

    Returns:
        Share of the energy above each of :data:`THRESHOLDS` ``(m, T)``, and the area under it, the concentration ``(m,)``.
    """
    relative = values / values[0].clamp_min(1e-300)
    centred = (signals - signals.mean(1, keepdim=True)).to(vectors)
    energy = (centred @ vectors).square() / centred.square().sum(1, keepdim=True).clamp_min(1e-300)  # (m, n)
    # E at a threshold: what lies on the eigenvalues before the first that is below it.
    before = torch.searchsorted(-relative, -THRESHOLDS.to(vectors) * (1 - 1e-12), right=True)
    summed = torch.cat([torch.zeros_like(energy[:, :1]), energy.cumsum(1)], 1)
    height = (1 + relative.clamp_min(1e-300).log10() / decades).clamp_min(0)
    return summed[:, before], energy @ height


def predicted_psnr(kernel: Tensor, values: Tensor, start: Tensor, kept: Tensor, left: Tensor, peak: float) -> Tensor:
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
