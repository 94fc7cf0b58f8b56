"""The frequencies that an implicit representation can represent: harmonics of its mapping, on a grid.

A grid of ``N₁ × … × N_d`` samples spans an extent ``E`` that excludes its last point. Frequencies here are in *bins*: whole
cycles over the extent are the frequencies of the DFT, ``k = ΩE/2π``; ``sin(2πf₀r)`` on ``[−1, 1)`` has ``k = 2f₀``.
"""

# T mapping frequencies · d coordinates · c channels

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from biascope.families.network import Network
from biascope.runs.ambient import under_torch_defaults

LARGEST = 2**23  # cells of an array that sets of frequencies are grown on
_DENOMINATORS = 64


@under_torch_defaults
def bins_of(omega: Tensor, extent: float | Sequence[float]) -> Tensor:
    """Frequencies ``Ω`` ``(T, d)``, in radians per unit of the coordinates, as cycles over the extent of a grid.

    Example:
        >>> bins_of(2 * torch.pi * torch.eye(2, dtype=torch.float64), 2.0).tolist()  # f₀ = 1 on [−1, 1)
        [[2.0, 0.0], [0.0, 2.0]]
    """
    return omega.double() * torch.as_tensor(extent, dtype=torch.float64, device=omega.device) / (2 * math.pi)


def mapping_frequencies(network: Network, coordinates: int) -> Tensor | None:
    """The fixed frequencies ``Ω`` ``(T, d)`` of a network's mapping, in radians per unit: 2π times its buffer ``frequencies``.

    Returns:
        ``None`` where it has no such buffer: a mapping that is learned can move to any frequency.

    Example:
        >>> layer = torch.nn.Linear(1, 1)
        >>> layer.register_buffer("frequencies", torch.tensor([[0.5]]))
        >>> mapping_frequencies(Network.of(layer), 1)
        tensor([[3.1416]])
    """
    for name, buffer in network.buffers.items():
        if name.rpartition(".")[2] == "frequencies" and buffer.dim() == 2 and buffer.shape[1] == coordinates:
            return 2 * torch.pi * buffer
    return None


def harmonic_order(degree: int, layers: int) -> int:
    """``K^{L−1}``: the most that ``Σ|s_t|`` can be after L layers with activations of degree K."""
    return int(degree ** (layers - 1))


def harmonic_count(mapping: int, order: int) -> int:
    """How many combinations ``s ∈ Z^T`` have ``Σ|s_t| ≤ N``: ``Σ_j 2^j C(T, j) C(N, j)``.

    Each is a frequency of its own where those of the mapping are incommensurate; s and −s are one sinusoid.

    Example:
        >>> harmonic_count(10, harmonic_order(2, 3))  # printed as O(TK^L), which would be 80
        8361
    """
    return sum(2**j * math.comb(mapping, j) * math.comb(order, j) for j in range(min(mapping, order) + 1))


@dataclass(frozen=True)
class Harmonics:
    """Which frequencies of a grid H(Ω) reaches, in the order of the DFT.

    Attributes:
        reached: ``(N₁, …, N_d)`` whether samples on the grid can have energy there, from a harmonic of that frequency or
            from one beyond Nyquist that looks like it.
        direct: Whether a harmonic of that very frequency does.
        order: The largest ``Σ|s_t|``; None for any.
        refine: Cells of a bin that frequencies were rounded to.
        rounding: The largest error of a harmonic by that rounding, in bins; 0 where frequencies are fractions.
        complete: Whether ``direct`` is all; else frequencies far beyond Nyquist left it a lower bound.
    """

    reached: Tensor
    direct: Tensor
    order: int | None
    refine: int
    rounding: float
    complete: bool

    @property
    def aliased(self) -> Tensor:
        """Frequencies of the grid that only aliased harmonics beyond Nyquist reach."""
        return self.reached & ~self.direct


@under_torch_defaults
def harmonics(
    frequencies: Tensor,
    sizes: Sequence[int],
    *,
    order: int | None = None,
    tolerance: float = 0.5,
    refine: int | None = None,
) -> Harmonics:
    """The frequencies of a grid that ``H(Ω) = {Σ s_t Ω_t : s_t ∈ Z, Σ|s_t| ≤ N}`` reaches.

    With ``S_N`` the set for order N, ``S_{a+b} = S_a + S_b`` (all sums of two): sets are convolved on the grid by halves of
    the order, so that 256 frequencies are as quick as one. Frequencies need not be whole bins: fractions are taken on a
    finer grid, others rounded to it.

    Args:
        frequencies: ``(T, d)`` in bins, see :func:`bins_of`.
        sizes: Samples along each axis.
        order: ``K^{L−1}``, see :func:`harmonic_order`; None for activations that are not polynomials.
        tolerance: How far from a bin, in bins along each axis, a harmonic still counts for it: on the finite extent of a
            signal it can hardly separate closer frequencies. It matters only for frequencies that are not whole bins.
        refine: Cells of a bin; by default the least that make all frequencies whole, else up to 8.

    Returns:
        What is reached.

    Raises:
        ValueError: If frequencies and sizes do not fit.

    Example:
        >>> found = harmonics(torch.tensor([[3.0]]), (8,), order=2)  # 0, ±3, ±6, and 6 looks like −2
        >>> found.direct.nonzero()[:, 0].tolist(), found.reached.nonzero()[:, 0].tolist()
        ([0, 3, 5], [0, 2, 3, 5, 6])
    """
    if frequencies.dim() != 2 or frequencies.shape[1] != len(sizes) or not len(frequencies):
        raise ValueError(
            f"frequencies must have a row of {len(sizes)} numbers for each of the mapping, got {tuple(frequencies.shape)}. "
            "Pass shape (frequencies, axes of the grid)."
        )
    if order is not None and order < 0:
        raise ValueError(f"order must be 0 or more, got {order}. Pass order=None for any.")
    known, axes = frequencies.double(), len(sizes)
    # Any sum inside a box of (4d + 1)·max‖Ω‖ splits into halves inside the box (lemma of Steinitz), so no set outgrows it.
    scale, terms = torch.tensor(sizes, dtype=torch.float64, device=known.device) / 2, 4 * axes + 1
    reach = max(1.0, min(terms, terms if order is None else order) * float((known / scale).abs().max()))
    cells = math.prod(3 * reach * float(half) + 2 for half in scale)
    cell = refine or _refinement(known, LARGEST / max(cells, math.prod(sizes)))
    steps = (known * cell).round().long()
    exact = bool((known * cell - steps).abs().max() < 1e-4)
    whole = [cell * size for size in sizes]
    torus = _grown(steps, whole, order)
    share = min(1.0, (LARGEST / (cells * cell**axes)) ** (1 / axes))
    half = [max(length // 2, int(share * reach * length / 2)) for length in whole]
    box = _grown(steps, [3 * each + 1 for each in half], order, half, [length // 2 for length in whole])
    inside = torch.zeros_like(torus)
    found, length = box.nonzero(), torch.tensor(box.shape, device=known.device)
    signed, bound = (found + length // 2) % length - length // 2, torch.tensor(whole, device=known.device)
    inside[tuple((signed[(2 * signed.abs() <= bound).all(1)] % bound).T)] = True
    spread = math.floor(tolerance * cell + 1e-9)
    return Harmonics(
        _near(torus, spread, cell),
        _near(inside, spread, cell),
        order,
        cell,
        0.0 if exact else math.inf if order is None else order / (2 * cell),
        share == 1.0,
    )


def harmonic_growth(frequencies: Tensor, sizes: Sequence[int], *, degree: int, layers: int) -> list[int]:
    """How many frequencies of a grid networks of 1, 2, …, L layers reach, with activations of degree K.

    Example:
        >>> harmonic_growth(torch.tensor([[1.0]]), (64,), degree=2, layers=5)  # ±1, ±2, ±4, ±8, ±16 and what is between
        [3, 5, 9, 17, 33]
    """
    orders = [harmonic_order(degree, layer) for layer in range(1, layers + 1)]
    return [int(harmonics(frequencies, sizes, order=order).reached.sum()) for order in orders]


@under_torch_defaults
def energy_spectrum(values: Tensor, *, mean: bool = False) -> Tensor:
    """The share of a signal's energy on each frequency of its grid, summed over channels.

    Args:
        values: ``(N₁, …, N_d, c)``.
        mean: Whether the mean counts; in a photograph it outweighs everything else.

    Returns:
        ``(N₁, …, N_d)`` in the order of the DFT, of sum 1; all 0 for a constant.

    Example:
        >>> r = torch.arange(8) / 8
        >>> energy_spectrum(5 + torch.sin(2 * torch.pi * 3 * r)[:, None]).round(decimals=9).tolist()
        [0.0, 0.0, 0.0, 0.5, 0.0, 0.5, 0.0, 0.0]
    """
    axes = tuple(range(values.dim() - 1))
    values = values.double() if mean else values.double() - values.double().mean(axes, keepdim=True)
    energy = torch.fft.fftn(values, dim=axes).abs().square().sum(-1)
    total = energy.sum()
    # A constant less its mean is rounding errors, not a signal.
    return energy / total if float(total) > 1e-24 * values.numel() else torch.zeros_like(energy)


@under_torch_defaults
def coverage(energy: Tensor, reached: Tensor) -> float:
    """The share of an energy spectrum on the frequencies that are reached.

    Example:
        >>> coverage(torch.tensor([0.0, 3.0, 1.0]), torch.tensor([True, True, False]))
        0.75
    """
    return float(energy[reached].sum() / energy.sum())


@under_torch_defaults
def uncovered(energy: Tensor, reached: Tensor, *, least: float = 1e-4) -> tuple[Tensor, Tensor]:
    """Frequencies that carry at least a share of the energy and are not reached, most energy first.

    Returns:
        ``(m, d)`` in signed bins, and their shares ``(m,)``. An empty pair is good news.

    Example:
        >>> found = uncovered(torch.tensor([0.0, 0.2, 0.6, 0.2]), torch.tensor([True, True, False, False]))
        >>> found[0].tolist(), found[1].tolist()
        ([[-2], [-1]], [0.6000000238418579, 0.20000000298023224])
    """
    share = torch.where(reached, 0.0, energy / energy.sum())
    places = (share >= least).nonzero()
    places = places[share[tuple(places.T)].argsort(descending=True, stable=True)]
    signed = [_signed(size).to(places.device)[places[:, axis]] for axis, size in enumerate(energy.shape)]
    return torch.stack(signed, 1), share[tuple(places.T)]


@under_torch_defaults
def bandwidth(energy: Tensor, *, share: float = 0.99) -> float:
    """The least radius, in bins, of a ball of frequencies around 0 that holds a share of the energy.

    Example:
        >>> bandwidth(torch.tensor([0.5, 0.2, 0.05, 0.05, 0.2]), share=0.85)
        1.0
    """
    axes = [_signed(size).to(energy.device).double() for size in energy.shape]
    radius = torch.stack(torch.meshgrid(*axes, indexing="ij")).square().sum(0).sqrt().flatten()
    order = radius.argsort()
    held = energy.flatten()[order].double().cumsum(0)
    return float(radius[order][int((held < share * held[-1] * (1 - 1e-12)).sum())])


def alias_frequencies(frequencies: Sequence[float], rate: float, *, factor: float = 2.0) -> list[list[float]]:
    """Frequencies of the aliases of sinusoids sampled at a given rate, up to ``factor`` times Nyquist.

    Samples at rate ``f_s`` of frequencies ``f`` and ``|m·f_s ± f|`` are the same. A network trained on them may hold any of
    these; sampled ``factor`` times as finely, it shows those up to ``factor·f_s/2``.

    Example:
        >>> alias_frequencies([23.0], 128.0)
        [[105.0]]
        >>> alias_frequencies([10.0, 70.0], 128.0, factor=4)  # 70 Hz at 128 Hz are seen as 58, and 70 is a copy of that
        [[118.0, 138.0, 246.0], [70.0, 186.0, 198.0]]
    """
    found = []
    for frequency in frequencies:
        folded = abs(frequency - rate * round(frequency / rate))
        most = math.ceil(factor) + 1
        copies = {abs(m * rate + sign * folded) for m in range(1, most) for sign in (-1, 1)}
        found.append(sorted(each for each in copies if rate / 2 < each <= factor * rate / 2))
    return found


def _signed(size: int) -> Tensor:
    """The frequencies of a DFT of that size, in its order."""
    whole: Tensor = torch.fft.fftfreq(size, 1 / size).round().long()
    return whole


def _refinement(frequencies: Tensor, room: float) -> int:
    """The least number of cells of a bin that makes all frequencies whole, else as many as there is room for, up to 8."""
    most = max(1, int(room ** (1 / frequencies.shape[1])))
    for cell in range(1, min(most, _DENOMINATORS) + 1):
        if float((frequencies * cell - (frequencies * cell).round()).abs().max()) < 1e-4:
            return cell
    return max(1, min(8, int((room / 16) ** (1 / frequencies.shape[1]))))  # what is rounded is not worth the wait


def _grown(
    steps: Tensor,
    shape: Sequence[int],
    order: int | None,
    half: Sequence[int] | None = None,
    band: Sequence[int] | None = None,
) -> Tensor:
    """The set of sums of at most ``order`` steps ``(T, d)`` on a periodic array, or within ± half; right within ± band."""
    device = steps.device

    def within(reach: Sequence[int] | None) -> Tensor | None:
        if reach is None:
            return None
        axes = [_signed(size).to(device).abs() <= most for size, most in zip(shape, reach, strict=True)]
        return torch.stack(torch.meshgrid(*axes, indexing="ij")).all(0)

    inside, asked = within(half), within(band)
    if half is not None:
        steps = steps[(steps.abs() <= torch.tensor(half, device=device)).all(1)]
    single = torch.zeros(*shape, dtype=torch.bool, device=device)
    single[(0,) * len(shape)] = True
    if order == 0:
        return single
    single[tuple((torch.cat([steps, -steps]) % torch.tensor(shape, device=device)).T)] = True

    def together(one: Tensor, two: Tensor) -> Tensor:
        parts = [torch.fft.rfftn(each.double()) for each in (one, two)]
        # Whole numbers of ways, far below 2^53: a half tells none from one.
        sums: Tensor = torch.fft.irfftn(parts[0] * parts[1], s=tuple(shape)) > 0.5
        return sums if inside is None else sums & inside

    def full(one: Tensor) -> bool:
        return bool(one.all() if asked is None else one[asked].all())

    if order is None:
        while not full(single):
            twice = together(single, single)
            if torch.equal(twice, single):
                break
            single = twice
        return single

    @functools.cache
    def of_order(number: int) -> Tensor:
        if number == 1 or full(one := of_order(number // 2)):  # sets only grow with the order
            return single if number == 1 else one
        return together(one, of_order(number - number // 2))

    return of_order(order)


def _near(cells: Tensor, spread: int, cell: int) -> Tensor:
    """Bins that have a cell that is set within so many cells, along every axis."""
    for axis in range(cells.dim()):
        cells = torch.stack([torch.roll(cells, move, axis) for move in range(-spread, spread + 1)]).any(0)
    return cells[(slice(None, None, cell),) * cells.dim()]
