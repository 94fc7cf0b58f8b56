"""One network fitted to one signal from its coordinates, and evaluated on any grid."""

# N points · c channels · d dimensions

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from biascope.families.family import Family
from biascope.families.network import Network
from biascope.runs.run import Run
from biascope.tasks.signals import Signal, SignalTask, coordinate_grid, outputs_at, psnr_of
from biascope.training.fit import fit
from biascope.training.recipe import Recipe


@dataclass(frozen=True, eq=False)
class Representation:
    """A network that represents a signal.

    Attributes:
        network: From coordinates to values without their mean.
        signal: What it was fitted to.
        offset: ``(c,)`` the mean of each channel, added to the network's outputs.
        low: Where the coordinates begin.
        high: Where the longest axis ends.
        psnr: In decibels, by split.
        recipe: How it was trained.
    """

    network: Network
    signal: Signal
    offset: Tensor
    low: float
    high: float
    psnr: dict[str, float]
    recipe: Recipe

    def values_at(self, coordinates: Tensor, *, run: Run | None = None) -> Tensor:
        """Its values at coordinates ``(n, d)``: ``(n, c)`` on the CPU."""
        return outputs_at(self.network, coordinates, run=run) + self.offset

    def reconstruction(self, factor: int = 1, *, run: Run | None = None) -> Signal:
        """The reconstructed signal, on a grid that is ``factor`` times as fine along each axis.

        Raises:
            ValueError: If the factor is below 1.
        """
        if factor < 1:
            raise ValueError(
                f"factor must be a whole number of at least 1, got {factor}. Pass factor=2 for twice as fine."
            )
        sizes = tuple(factor * size for size in self.signal.shape)
        values = self.values_at(coordinate_grid(sizes, low=self.low, high=self.high), run=run)
        rate = None if self.signal.rate is None else factor * self.signal.rate
        return Signal(values.reshape(*sizes, -1), f"{self.signal.name}, reconstructed", rate)


def usual_recipe(points: int, *, steps: int = 1000, rate: float = 1e-4, batch: int = 16_384) -> Recipe:
    """Adam at a constant rate on squared errors, in batches of all points or of so many."""
    return Recipe("adam", rate, schedule="constant", steps=steps, batch=min(points, batch), loss="squared")


def fit_signal(
    family: Family,
    signal: Signal,
    *,
    recipe: Recipe | None = None,
    held_out: float = 0.0,
    low: float = 0.0,
    high: float = 1.0,
    peak: float = 1.0,
    seed: int = 0,
    unfinished: Path | None = None,
    run: Run | None = None,
) -> Representation:
    """Train one network of a family to reconstruct a signal.

    Args:
        family: Networks from as many coordinates as the signal has axes to as many numbers as it has channels.
        signal: What to learn; the mean over the training points of each channel is taken off before and added after.
        recipe: How it is trained; by default :func:`usual_recipe`.
        held_out: Share of the points that are not trained on.
        low: Where the coordinates begin.
        high: Where the longest axis ends, its endpoint excluded.
        peak: Range of the values, for the PSNR.
        seed: Random seed for the weights, the points held out and the order of points.
        unfinished: As of :func:`biascope.training.fit.fit`: a file from which an interrupted training resumes.
        run: Device, precision, progress.

    Returns:
        The network, with what is needed to reconstruct the signal.

    Raises:
        ValueError: If network and signal do not fit, or a setting is out of its range.
        DivergedError: If training diverges.

    Example:
        >>> import functools
        >>> ramp = Signal(torch.arange(8.0)[:, None] / 8)
        >>> line = Family.initialised(functools.partial(torch.nn.Linear, 1, 1), name="line")
        >>> how = Recipe("adam", 0.05, schedule="constant", steps=400, batch=8, loss="squared")
        >>> found = fit_signal(line, ramp, recipe=how, run=Run(device="cpu", progress=False))
        >>> found.psnr["train"] > 60, found.reconstruction(2).shape
        (True, (16,))
    """
    run = run or Run()
    _check(family, signal)
    whole = SignalTask.of(signal, held_out=held_out, low=low, high=high, seed=seed, run=run)
    offset = whole.values[0, whole.points["train"]].mean(0)
    task = replace(whole, values=whole.values - offset)
    recipe = recipe or usual_recipe(task.sizes["train"])
    start = family.draw(1, seed=seed, run=run).member(0)
    network = fit(start, task, recipe, seed=seed, run=run, unfinished=unfinished).require_finite().networks
    found = {split: float(psnr_of(network, task, split, peak=peak, run=run)[0]) for split in task.sizes}
    return Representation(network, signal, offset.cpu(), low, high, found, recipe)


def _check(family: Family, signal: Signal) -> None:
    """A sentence where a network does not take these coordinates, or says another number of values."""
    axes = len(signal.shape)
    must = f"take the {axes} coordinates of {signal.name}"
    said = family.tried(torch.zeros(2, axes), must, f"Build it with coordinates={axes}.")
    if said.reshape(2, -1).shape[1] != signal.channels:
        raise ValueError(
            f"{family.name} must output {signal.channels} values per point, as many as {signal.name} has channels, got "
            f"{said.reshape(2, -1).shape[1]}. Build it with outputs={signal.channels}."
        )
