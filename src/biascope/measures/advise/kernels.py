"""HOW: what tangent kernels predict for one signal: on held-out points, for its energy, and between its samples."""

# N points of the signal · n of a window · c channels · s sizes · t times · k frequencies

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.fft
import torch
from torch import Tensor

from biascope.derivatives.gradients import weight_vjp
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.kernels.gram import tangent_gram
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.signals import Signal, outputs_at

CPU = torch.device("cpu")
WINDOWS = 4  # of which the most varied is taken: a piece of empty sky says nothing
GRADIENT_POINTS = 4096  # of the whole signal, on which the first gradient is taken
TIMES = torch.logspace(-3, 9, 49, dtype=torch.float64)  # of gradient flow


@dataclass(frozen=True, eq=False)
class SignalKernels:
    """A signal without its mean, seen through the kernels of networks.

    Attributes:
        signal: Every channel varies.
        sizes: Points of the two kernels, the larger one last.
        most: Points of the kernel between the samples, at most.
        seed: Random seed for weights, windows and points held out.
    """

    signal: Signal
    sizes: tuple[int, int]
    most: int
    seed: int

    def outcomes(self, family: Family, draws: int, run: Run, advance: Callable[[int], None]) -> list[Outcome]:
        """What the kernels of networks say: see :meth:`_measured`."""
        exact = replace(run, precision="float64", folder=None, on=None)
        networks = functools.cache(lambda: family.draw(draws, seed=self.seed, run=exact))
        # Kernels are taken in float64 whatever the precision of trainings.
        kept = replace(run, precision="float64")
        trials = Trials(
            "advice", kept, code=type(self), at=self.signal.coordinates()[:2].float(), family=family, seen_through=self
        )
        found = []
        for one in trials.outcomes(
            [f"network {draw}" for draw in range(draws)],
            lambda key: self._measured(networks().member(int(key.split()[-1])), int(key.split()[-1]), exact),
        ):
            found.append(one)
            advance(1)
        return found

    def _measured(self, network: Network, draw: int, run: Run) -> Outcome:
        """Of one network: ``errors`` (s, t) of regression on points held out, the share of energy ``learned`` (t,), ``pace``.

        The first also says what lies between the samples: see :meth:`_between`.
        """
        errors: list[Tensor] = []
        ridges = self.signal.flat.shape[0] / TIMES
        for size in self.sizes:
            corner, sides = self.window(size, draw)
            r = self._coordinates(corner, sides)
            kernel = tangent_gram(network, r, run=run).matrix
            start = outputs_at(network, r, run=run).to(kernel)
            missing = self.signal.values[_block(corner, sides)].flatten(0, -2).to(kernel) - start  # (n, c)
            order = torch.randperm(len(r), generator=generator_for(CPU, self.seed, "held out"))
            left, kept = order[: len(r) // 2], order[len(r) // 2 :]
            values, vectors = torch.linalg.eigh(kernel[kept][:, kept])
            known, carried = vectors.T @ missing[kept], kernel[left][:, kept] @ vectors
            said = [carried @ (known / (values.clamp_min(0) + float(ridge))[:, None]) for ridge in ridges]
            errors.append(torch.stack([(each - missing[left]).square().mean() for each in said]))
        values, vectors = torch.linalg.eigh(kernel)
        energy = (vectors.T @ (missing + start - (missing + start).mean(0))).square().sum(1)
        above = (values[:, None] >= ridges.to(values)).to(energy)  # (n, t)
        outcome = {
            "errors": torch.stack(errors),
            "learned": energy @ above / energy.sum().clamp_min(1e-300),
            "pace": torch.tensor(self._pace(network, run), dtype=torch.float64),
        }
        if draw == 0:
            best = float(ridges[int(errors[-1].argmin())])
            outcome |= self._between(network, corner, sides, best, run)
        return {name: tensor.cpu().contiguous() for name, tensor in outcome.items()}

    def window(self, points: int, draw: int) -> tuple[list[int], list[int]]:
        """Corner and sides of a window of so many points and of the signal's proportions, the most varied of four."""
        shape, total = self.signal.shape, self.signal.flat.shape[0]
        share = min(1.0, (points / total) ** (1 / len(shape)))
        sides = [max(1, math.floor(size * share + 1e-9)) for size in shape]
        generator = generator_for(CPU, self.seed, "part", draw)
        corners = [
            [
                int(torch.randint(size - side + 1, (1,), generator=generator))
                for size, side in zip(shape, sides, strict=True)
            ]
            for _ in range(WINDOWS)
        ]
        values = self.signal.values
        return max(corners, key=lambda corner: float(values[_block(corner, sides)].flatten(0, -2).var(0).mean())), sides

    def _pace(self, network: Network, run: Run) -> float:
        """``√P/‖g₀‖``: the time of gradient flow that one iteration of Adam at rate 1 stands for, at the start."""
        total, shape = self.signal.flat.shape[0], self.signal.shape
        some = torch.arange(total)
        if total > GRADIENT_POINTS:
            some = torch.randint(total, (GRADIENT_POINTS,), generator=generator_for(CPU, self.seed, "gradient"))
        r = torch.stack(torch.unravel_index(some, shape), 1).to(run.torch_device, torch.float64) / max(shape)
        missing = outputs_at(network, r, run=run) - self.signal.flat[some]  # (n, c)
        square = 0.0
        for channel in missing.T.to(r):
            gradient = weight_vjp(network, r, channel[:, None] / len(some))
            square += sum(float(part.square().sum()) for part in gradient.values())
        count = sum(part.numel() for part in network.params.values())
        return math.sqrt(count / max(square, 1e-300))

    def _coordinates(self, corner: Sequence[int], sides: Sequence[int], finer: int = 1) -> Tensor:
        """Those of a window, on a grid so many times as fine ``(n, d)``."""
        steps = [
            at + torch.arange(finer * side, dtype=torch.float64) / finer for at, side in zip(corner, sides, strict=True)
        ]
        return torch.cartesian_prod(*[step / max(self.signal.shape) for step in steps]).reshape(-1, len(sides))

    def _between(
        self, network: Network, corner: Sequence[int], sides: Sequence[int], ridge: float, run: Run
    ) -> Outcome:
        """What regression from all points of a window says on a grid twice as fine: its energy by frequency.

        Returns:
            ``frequencies`` and ``spectrum`` (k,), and ``beyond``, the share that lies beyond Nyquist along any axis.
        """
        axes = len(sides)
        share = min(1.0, (self.most / (2**axes * math.prod(sides))) ** (1 / axes))
        sides = [max(min(2, side), int(share * side)) for side in sides]
        r = self._coordinates(corner, sides, finer=2)
        kernel = tangent_gram(network, r, run=run).matrix
        fine = [2 * side for side in sides]
        known = torch.arange(len(r)).reshape(fine)[(slice(None, None, 2),) * axes].flatten()
        start = outputs_at(network, r, run=run).to(kernel)  # (n, 1)
        values = self.signal.values[_block(corner, sides)].flatten(0, -2).to(kernel)
        square = kernel[known][:, known] + ridge * torch.eye(len(known)).to(kernel)
        said = start + kernel[:, known] @ torch.linalg.solve(square, values - start[known])
        return _spectrum(said.cpu().reshape(*fine, -1), sides, max(self.signal.shape))


def _block(corner: Sequence[int], sides: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(at, at + side) for at, side in zip(corner, sides, strict=True))


def _spectrum(said: Tensor, sides: Sequence[int], longest: int) -> Outcome:
    """Energy of values on a grid twice as fine as that of so many points a side, by frequency."""
    axes = tuple(range(len(sides)))
    waves = scipy.fft.dctn((said - said.mean(axes, keepdim=True)).numpy(), axes=axes, norm="ortho")
    energy = np.square(waves).sum(-1)
    energy = energy / max(energy.sum(), 1e-300)
    # Wave k of a window of s points has k/2 cycles over it.
    cycles = np.meshgrid(*[np.arange(2 * side) * longest / (2 * side) for side in sides], indexing="ij")
    radius, width = np.sqrt(sum(np.square(each) for each in cycles)), longest / (2 * max(sides))
    count = 2 * max(sides)
    level = np.bincount((radius / width + 0.5).astype(int).ravel(), energy.ravel(), count)[:count]
    beyond = np.any([each >= longest / 2 for each, side in zip(cycles, sides, strict=True) if side > 1], axis=0)
    found = {"frequencies": np.arange(count) * width, "spectrum": level, "beyond": energy[beyond].sum()}
    return {name: torch.as_tensor(array, dtype=torch.float64) for name, array in found.items()}
