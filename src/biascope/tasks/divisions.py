"""Division: the space of inputs as a sum of orthogonal parts that have names, such as the steps of a sequence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from biascope.results.axes import InputAxes

_MOST = 4096  # parts along one axis: more are no division that a reader can look at
_OCTAVES = (0.125, 0.25, 0.5, 1.0)  # of the highest frequency along an axis: where bands of an image end
_RINGS = 4
_LEAST = 8  # rows and columns of an image that has bands and rings


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
    """Of images, by frequency, orientation, position, colour and channel; of others, by each axis, and by the frequency along time."""
    if axes.image:
        return _of_images(axes)
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


def _of_images(axes: InputAxes) -> list[Division]:
    channels, (height, width) = math.prod(axes.shape[:-2]), axes.shape[-2:]
    found = []
    if min(height, width) >= _LEAST:
        found += [_by_band(channels, height, width), _by_orientation(channels, height, width)]
        found.append(_by_ring(channels, height, width))
    if min(height, width) >= _LEAST and height * width <= _MOST:
        found.append(_by_wave(channels, height, width))
    if channels == 3:
        found.append(_by_colour(height * width))
    if channels > 1:
        found.append(_by_place(axes, 0))
    return found


def _by_band(channels: int, height: int, width: int) -> Division:
    """By the number of cycles in a pattern, in octaves; the last band holds diagonal patterns that are finer than any along an axis."""
    down, across = torch.fft.fftfreq(height).abs(), torch.fft.fftfreq(width).abs()
    radius = torch.hypot(down[:, None], across[None, :]) * 2  # 1 is the highest frequency along an axis
    ends = torch.tensor((*_OCTAVES[:-1], 1.0 + 1e-6))
    part_of = torch.bucketize(radius, ends, right=True)
    cycles = [0.0, *(end * max(height, width) / 2 for end in _OCTAVES)]
    labels = [f"{low:g}–{high:g}" for low, high in itertools.pairwise(cycles)] + [f"over {cycles[-1]:g}"]
    return _of_waves("spatial frequency", labels, part_of, channels, height, width)


def _by_orientation(channels: int, height: int, width: int) -> Division:
    """By the direction in which a pattern changes: each within 22.5° of an axis or a diagonal."""
    down, across = torch.fft.fftfreq(height)[:, None], torch.fft.fftfreq(width)[None, :]
    angle = torch.rad2deg(torch.atan2(down.expand(height, width).abs(), across.expand(height, width).abs()))
    part_of = torch.bucketize(angle, torch.tensor([22.5, 67.5]))
    part_of[0, 0] = 3
    labels = ("vertical stripes", "diagonal stripes", "horizontal stripes", "no stripes")
    return _of_waves("orientation", labels, part_of, channels, height, width)


def _by_wave(channels: int, height: int, width: int) -> Division:
    """By single frequencies, of which one and its negative are the same."""
    down, across = torch.arange(height)[:, None], torch.arange(width)[None, :]
    number, negative = down * width + across, (-down % height) * width + (-across % width)
    places, part_of = torch.unique(torch.minimum(number, negative), return_inverse=True)
    labels = [f"{place // width} {place % width}" for place in places.tolist()]
    return _of_waves("single frequency", labels, part_of, channels, height, width)


def _of_waves(name: str, labels: Sequence[str], part_of: Tensor, channels: int, height: int, width: int) -> Division:
    def coefficients(rows: Tensor) -> Tensor:
        waves: Tensor = torch.fft.fft2(rows.reshape(len(rows), channels, height, width), norm="ortho")
        return waves.flatten(1)

    return Division(name, tuple(labels), part_of.expand(channels, height, width).reshape(-1), coefficients)


def _by_ring(channels: int, height: int, width: int) -> Division:
    """By the distance from the border, in rings of equal width."""
    down, across = (_from_border(length) for length in (height, width))
    part_of = torch.minimum(down[:, None], across[None, :])
    labels = ("border", *(f"ring {ring}" for ring in range(2, _RINGS)), "centre")
    return Division("position", labels, part_of.expand(channels, height, width).reshape(-1))


def _from_border(length: int) -> Tensor:
    place = torch.arange(length)
    return torch.minimum(place, length - 1 - place) * 2 * _RINGS // length


def _by_colour(pixels: int) -> Division:
    """By what all three channels have in common, and what they have not."""
    turn = torch.tensor([[1.0, 1.0, 1.0], [1.0, -1.0, 0.0], [1.0, 1.0, -2.0]], dtype=torch.float64)
    turn /= turn.norm(dim=1, keepdim=True)
    part_of = torch.tensor([0, 1, 1])[:, None].expand(3, pixels).reshape(-1)

    def coefficients(rows: Tensor) -> Tensor:
        found: Tensor = torch.einsum("kc,rcp->rkp", turn.to(rows), rows.reshape(len(rows), 3, pixels))
        return found.flatten(1)

    return Division("colour", ("brightness", "colour"), part_of, coefficients)


def _by_frequency(axes: InputAxes, place: int) -> Division:
    before, length, after = axes.along(place)
    cycles = torch.arange(length)
    cycles = torch.minimum(cycles, length - cycles)
    part_of = cycles[None, :, None].expand(before, length, after).reshape(-1)

    def coefficients(rows: Tensor) -> Tensor:
        waves: Tensor = torch.fft.fft(rows.reshape(len(rows), before, length, after), dim=2, norm="ortho")
        return waves.flatten(1)

    return Division("frequency", tuple(map(str, range(length // 2 + 1))), part_of, coefficients)
