"""Signals on grids of coordinates: images, sounds and volumes as functions that a coordinate network learns."""

# m signals · n coordinates of a split · N of the grid · d dimensions · c channels

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from typing_extensions import override

from biascope.families.network import Network
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.identity import DERIVED
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run
from biascope.tasks.task import Task, master_dtype

MOST_DIMENSIONS = 6
AT_ONCE = 2**17  # outputs of one forward pass: with 256 units a layer, 128 MiB


@under_torch_defaults
def coordinate_grid(
    sizes: Sequence[int], *, low: float = 0.0, high: float = 1.0, endpoint: bool = False, isotropic: bool = True
) -> Tensor:
    """The coordinates of a grid, one row per point, the last axis running fastest; the first column is the first axis.

    Definition:
        Point k of an axis lies at ``low + k·h``. All axes begin at ``low`` and have the same spacing h: that with which the longest
        spans ``[low, high)``, or ``[low, high]`` with its endpoint. So pixels are square whatever the aspect ratio, and a shorter
        side ends earlier. Not isotropic, each axis has a spacing of its own and spans it all.

    Args:
        sizes: Points along each axis, height first for an image; 1 to 6 axes.
        low: Where every axis begins.
        high: Where the longest axis ends.
        endpoint: Whether the last point lies at ``high``; without, the grid is one period of a discrete Fourier transform.
        isotropic: Whether all axes have the same spacing.

    Returns:
        ``(N, d)`` in float64.

    Raises:
        ValueError: If there are no sizes or too many, one is below 1, or the interval is empty.

    Example:
        >>> coordinate_grid((2, 4))[:5].tolist()
        [[0.0, 0.0], [0.0, 0.25], [0.0, 0.5], [0.0, 0.75], [0.25, 0.0]]
        >>> coordinate_grid((2, 4), isotropic=False)[4].tolist()
        [0.5, 0.0]
    """
    sizes = tuple(sizes)
    if not 1 <= len(sizes) <= MOST_DIMENSIONS or min(sizes) < 1:
        raise ValueError(
            f"sizes must list 1 to {MOST_DIMENSIONS} axes of at least 1 point, got {sizes}. Pass (64, 64) for an image."
        )
    if not -math.inf < low < high < math.inf:
        raise ValueError(f"low must be below high, got {low} and {high}. Pass low=0.0, high=1.0.")

    def axis(size: int) -> Tensor:
        steps = (max(sizes) if isotropic else size) - endpoint
        # k·(high − low)/steps rather than k·h: exact where the quotient is.
        return low + torch.arange(size, dtype=torch.float64) * (high - low) / max(1, steps)

    return torch.cartesian_prod(*map(axis, sizes)).reshape(-1, len(sizes))


@under_torch_defaults
@dataclass(frozen=True, eq=False)
class Signal:
    """Values on a grid: an image, a sound, a volume.

    Attributes:
        values: ``(size₁, …, size_d, c)``, real numbers.
        name: Name of the signal.
        rate: Samples per unit (44,100 Hz), ``None`` if not known.

    Example:
        >>> sound = Signal(torch.tensor([[0.0], [1.0], [0.0], [-1.0]]), "tone", rate=4.0)
        >>> sound.shape, sound.channels, sound.coordinates().flatten().tolist()
        ((4,), 1, [0.0, 0.25, 0.5, 0.75])
    """

    values: Tensor
    name: str = field(default="signal", metadata=DERIVED)
    rate: float | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.values.dim() <= MOST_DIMENSIONS + 1 or not self.values.numel():
            raise ValueError(
                f"A signal must have 1 to {MOST_DIMENSIONS} axes and one of channels behind them, none of them empty, got shape "
                f"{tuple(self.values.shape)}. Pass values[..., None] for a signal of one channel."
            )
        if not self.values.is_floating_point() or not bool(torch.isfinite(self.values).all()):
            raise ValueError(
                f"The values of {self.name} must be finite real numbers, got {self.values.dtype}"
                f"{' with NaN or infinite values' if self.values.is_floating_point() else ''}. Pass values.float() / 255 for bytes."
            )

    def __repr__(self) -> str:
        rate = "" if self.rate is None else f", rate {self.rate:g}"
        channels = f"{self.channels} channel{'s' if self.channels > 1 else ''}"
        return f"Signal({self.name!r}, {'×'.join(map(str, self.shape))} points, {channels}{rate})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Points along each axis."""
        return tuple(self.values.shape[:-1])

    @property
    def channels(self) -> int:
        """Numbers at each point."""
        return self.values.shape[-1]

    @property
    def flat(self) -> Tensor:
        """``(N, c)``, in the order of the grid."""
        return self.values.reshape(-1, self.channels)

    def coordinates(
        self, *, low: float = 0.0, high: float = 1.0, endpoint: bool = False, isotropic: bool = True
    ) -> Tensor:
        """Where the values lie, ``(N, d)``; see :func:`coordinate_grid`."""
        return coordinate_grid(self.shape, low=low, high=high, endpoint=endpoint, isotropic=isotropic)


@under_torch_defaults
@dataclass(frozen=True, eq=False, repr=False)
class SignalTask(Task):
    """Signals to be learned on one set of coordinates: each member of a stack learns its own.

    Splits: ``train``; ``test``, the points held out, where there are any; ``all``, the whole grid in its order. A batch's values are
    ``(m, n, c)``, or ``(m, n)`` for signals of one channel; without the first axis where one signal is learned by every network.
    For many networks on one signal as members of their own, ``task.select([0] * 10)``.

    Attributes:
        grid: ``(N, d)`` coordinates.
        values: ``(m, N, c)``.
        points: Which points belong to each split.
        stacked: Whether members have a signal each; else there is one, for all.

    Example:
        >>> ramp = Signal(torch.tensor([[0.0], [1.0], [2.0], [3.0]]))
        >>> task = SignalTask.of([ramp, Signal(-ramp.values, "fall")], held_out=0.5, seed=0, run=Run(device="cpu"))
        >>> task.members, task.sizes, task.shape
        (2, {'train': 2, 'test': 2, 'all': 4}, (1,))
        >>> task.batch("all", torch.tensor([3]))
        (tensor([[0.7500]]), tensor([[ 3.],
                [-3.]]))
    """

    grid: Tensor
    values: Tensor
    points: dict[str, Tensor]
    stacked: bool = True

    @staticmethod
    def of(
        signals: Signal | Sequence[Signal],
        *,
        held_out: float = 0.5,
        low: float = 0.0,
        high: float = 1.0,
        endpoint: bool = False,
        isotropic: bool = True,
        seed: int,
        run: Run | None = None,
    ) -> SignalTask:
        """The task of learning one signal, or a signal for each member.

        Args:
            signals: One, for every network; or a list, one for each member, all of one shape.
            held_out: Share of the points that are held out, the same points of every signal.
            low: Where every axis begins.
            high: Where the longest axis ends.
            endpoint: Whether the last point lies at ``high``.
            isotropic: Whether all axes have the same spacing.
            seed: Random seed for the points held out.
            run: Device and precision.

        Raises:
            ValueError: If shapes differ, or no point is left to train on.
        """
        run = run or Run()
        several = [signals] if isinstance(signals, Signal) else list(signals)
        if len({signal.values.shape for signal in several}) != 1:
            listed = ", ".join(sorted({str(tuple(signal.values.shape)) for signal in several})) or "none"
            raise ValueError(f"signals must be at least one and of one shape, got {listed}. Pass signals of one size.")
        grid = several[0].coordinates(low=low, high=high, endpoint=endpoint, isotropic=isotropic)
        device, dtype = run.torch_device, master_dtype(run)
        values = torch.stack([signal.flat for signal in several])
        points = {split: indices.to(device) for split, indices in _split(len(grid), held_out, seed).items()}
        return SignalTask(
            grid.to(device, dtype), values.to(device, dtype), points, stacked=not isinstance(signals, Signal)
        )

    @property
    def members(self) -> int | None:
        """Number of signals, if each has its own network."""
        return len(self.values) if self.stacked else None

    @property
    def sizes(self) -> dict[str, int]:
        """Number of points of each split."""
        return {split: len(indices) for split, indices in self.points.items()}

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input: the dimension of the coordinates."""
        return (self.grid.shape[1],)

    @override
    def batch(self, split: str, indices: Tensor) -> tuple[Tensor, Tensor]:
        chosen = self.points[self._checked(split)][indices]
        values = self.values[:, chosen]  # (m, n, c)
        if values.shape[-1] == 1:
            values = values[..., 0]  # one number per point, as networks with one output are judged
        return self.grid[chosen], values if self.stacked else values[0]

    def member_axes(self, x: Tensor, y: Tensor) -> tuple[int | None, int | None]:
        """Coordinates are shared; values run over members along their first axis where each has its own."""
        return None, 0 if self.stacked else None

    @override
    def select(self, members: Sequence[int]) -> SignalTask:
        return dataclasses.replace(self, values=self.values[list(members)]) if self.stacked else self

    def of_member(self, index: int) -> SignalTask:
        """One member's signal, for one network."""
        return dataclasses.replace(self.select([index]), stacked=False) if self.stacked else self


def _split(total: int, held_out: float, seed: int) -> dict[str, Tensor]:
    """Points of each split, in the order of the grid."""
    count = round(held_out * total) if 0 <= held_out < 1 else total
    if count == total:
        raise ValueError(
            f"held_out must be a share from 0 to below 1 that leaves a point to train on, got {held_out} of {total} points. "
            "Pass held_out=0.5."
        )
    # Drawn on the CPU: the same points wherever the training runs.
    order = torch.randperm(total, generator=generator_for(torch.device("cpu"), seed, "held out"))
    splits = {"train": order[count:].sort().values, "test": order[:count].sort().values, "all": torch.arange(total)}
    return splits if count else {split: splits[split] for split in ("train", "all")}


@under_torch_defaults
def psnr(outputs: Tensor, values: Tensor, *, peak: float = 1.0, dim: int | tuple[int, ...] | None = None) -> Tensor:
    """Peak signal-to-noise ratio ``10 log₁₀(peak² / mean (outputs − values)²)`` in decibels, in float64.

    Args:
        outputs: The reconstruction.
        values: The signal, of the same shape.
        peak: The range of the values: 1 for images from 0 to 1, 2 for sounds from −1 to 1.
        dim: The axes that the mean is taken over; all by default.

    Returns:
        Infinite where there is no error.

    Raises:
        ValueError: If shapes differ, or the peak is not positive.

    Example:
        >>> float(psnr(torch.full((8, 8), 0.6, dtype=torch.float64), torch.full((8, 8), 0.5, dtype=torch.float64)))
        20.0
    """
    if outputs.shape != values.shape:
        raise ValueError(
            f"outputs and values must have one shape, got {tuple(outputs.shape)} and {tuple(values.shape)}. "
            "Reshape one of them."
        )
    if not peak > 0:
        raise ValueError(f"peak must be a positive number, got {peak}. Pass peak=1.0 for images from 0 to 1.")
    errors = (outputs.double() - values.double()).square()
    return 20 * math.log10(peak) - 10 * (errors.mean() if dim is None else errors.mean(dim)).log10()


@under_torch_defaults
def outputs_at(networks: Network, coordinates: Tensor, *, run: Run | None = None) -> Tensor:
    """Outputs of networks at coordinates ``(N, d)``, pass by pass: ``(N, c)``, or ``(m, N, c)`` for a stack, on the CPU.

    Args:
        networks: One, or a stack.
        coordinates: The points.
        run: Device and precision.

    Example:
        >>> network = Network.of(torch.nn.Linear(2, 1, bias=False)).with_params({"weight": torch.tensor([[1.0, 2.0]])})
        >>> outputs_at(network, coordinate_grid((2, 2)), run=Run(device="cpu")).flatten()
        tensor([0.0000, 1.0000, 0.5000, 1.5000])
    """
    run = run or Run()
    device, dtype = run.torch_device, master_dtype(run)
    here, size = networks.to(device, dtype), max(1, AT_ONCE // (networks.members or 1))
    starts = range(0, len(coordinates), size)
    with torch.no_grad(), run.products():
        parts = [here(coordinates[start : start + size].to(device, dtype)).cpu() for start in starts]
    return torch.cat(parts, -2)


@under_torch_defaults
def psnr_of(networks: Network, task: SignalTask, split: str, *, peak: float = 1.0, run: Run | None = None) -> Tensor:
    """How well networks reconstruct the signals of a task: the PSNR of each on a split, in decibels.

    Args:
        networks: One, or a stack.
        task: One signal for all of them, or one for each.
        split: ``"train"``, ``"test"`` or ``"all"``.
        peak: The range of the values.
        run: Device and precision.

    Returns:
        ``(m,)`` in float64 on the CPU, ``(1,)`` for one network.

    Raises:
        ValueError: If the numbers of signals and networks differ, or their channels do.

    Example:
        >>> task = SignalTask.of(Signal(torch.full((4, 1), 0.1)), seed=0, run=Run(device="cpu"))
        >>> silent = Network.of(torch.nn.Linear(1, 1))
        >>> silent = silent.with_params({name: torch.zeros_like(part) for name, part in silent.params.items()})
        >>> psnr_of(silent, task, "test", run=Run(device="cpu")).round(decimals=4)
        tensor([20.], dtype=torch.float64)
    """
    if task.members is not None and task.members != networks.members:
        raise ValueError(
            f"The task must be for as many members as there are networks, got {task.members} and {networks.members}. "
            "Select members of the task, or draw as many networks."
        )
    points = task.points[task._checked(split)]
    values = task.values[:, points].cpu()  # (m, n, c), or (1, n, c) for all
    outputs = outputs_at(networks, task.grid[points], run=run).reshape(networks.members or 1, len(points), -1)
    if outputs.shape[-1] != values.shape[-1]:
        raise ValueError(
            f"The networks must output as many values as the signal has channels, got {outputs.shape[-1]} and "
            f"{values.shape[-1]}. Build them with outputs={values.shape[-1]}."
        )
    return psnr(outputs, values.expand_as(outputs), peak=peak, dim=(-2, -1))
