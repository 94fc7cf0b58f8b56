"""Division: the space of inputs as a sum of orthogonal parts that have names, such as the steps of a sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from biascope.results.axes import InputAxes

_MOST = 4096  # parts along one axis: more are no division that a reader can look at


@dataclass(frozen=True, eq=False)
class Division:
    """An orthonormal basis of the inputs, each vector of which belongs to one part.

    Attributes:
        name: What it divides by: the name of an axis, or ``"frequency"``.
        labels: Of the parts.
        part_of: To which part each coefficient belongs, ``(D,)``.
        coefficients: Those of rows ``(r, D)`` in the basis; ``None`` for the rows themselves.
    """

    name: str
    labels: tuple[str, ...]
    part_of: Tensor
    coefficients: Callable[[Tensor], Tensor] | None = None

    @property
    def isotropic(self) -> Tensor:
        """The share of each part in a gradient that prefers no direction."""
        return self.summed(torch.ones(len(self.part_of), dtype=torch.float64)) / len(self.part_of)

    def summed(self, energies: Tensor) -> Tensor:
        """Energies of coefficients ``(D,)`` as energies of parts."""
        found = torch.zeros(len(self.labels), dtype=energies.dtype, device=energies.device)
        return found.index_add_(0, self.part_of.to(energies.device), energies)


def divisions_of(axes: InputAxes) -> list[Division]:
    """By each axis with names or order, and by the frequency along time; images have maps of their own."""
    if axes.image:
        return []
    found = [_by_place(axes, place) for place in axes.varied() if axes.shape[place] <= _MOST]
    if axes.time is not None and axes.shape[axes.time] > 3:
        found.append(_by_frequency(axes, axes.time))
    return found


def _by_place(axes: InputAxes, place: int) -> Division:
    before, length, after = axes.along(place)
    axis = axes.axes[place]
    part_of = torch.arange(length)[None, :, None].expand(before, length, after).reshape(-1)
    name = axis.name or f"axis {place + 1}"
    return Division(name, tuple(axis.label(each) for each in range(length)), part_of)


def _by_frequency(axes: InputAxes, place: int) -> Division:
    before, length, after = axes.along(place)
    cycles = torch.arange(length)
    cycles = torch.minimum(cycles, length - cycles)
    part_of = cycles[None, :, None].expand(before, length, after).reshape(-1)

    def coefficients(rows: Tensor) -> Tensor:
        waves: Tensor = torch.fft.fft(rows.reshape(len(rows), before, length, after), dim=2, norm="ortho")
        return waves.flatten(1)

    return Division("frequency", tuple(map(str, range(length // 2 + 1))), part_of, coefficients)
