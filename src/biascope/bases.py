"""Orthonormal bases of input space: rows are vectors, flattened in row-major order."""

# D input size · h × w pixels

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from biascope.randomness import generator_for


@dataclass(frozen=True)
class Basis:
    """An orthonormal basis.

    Attributes:
        vectors: ``(count, D)``, float64.
        shape: Of one input.
        labels: What each vector is: ``("Re", row, column)`` for Fourier, ``(index,)`` otherwise.
    """

    vectors: Tensor
    shape: tuple[int, ...]
    labels: tuple[tuple[object, ...], ...]


def canonical(shape: Sequence[int]) -> Basis:
    """One vector per input entry.

    Example:
        >>> canonical((2, 2)).vectors.shape
        torch.Size([4, 4])
    """
    size = math.prod(shape)
    return Basis(torch.eye(size, dtype=torch.float64), tuple(shape), tuple((i,) for i in range(size)))


def fourier(shape: Sequence[int]) -> Basis:
    """The real two-dimensional Fourier basis, of the last two axes; channels are kept apart.

    For each pair ±(k, l) of conjugate frequencies the vectors √(2/hw)·cos and √(2/hw)·sin of 2π(ki/h + lj/w); a
    frequency that is its own conjugate has a cosine of norm one and no sine. On 32 × 32 there are 514 cosines (``Re``)
    and 510 sines (``Im``), orthonormal together.

    Args:
        shape: ``(h, w)`` or ``(channels, h, w)``.

    Returns:
        A basis with labels ``("Re" or "Im", k, l)``, or with the channel in front.

    Example:
        >>> labels = fourier((32, 32)).labels
        >>> sum(label[0] == "Re" for label in labels), sum(label[0] == "Im" for label in labels)
        (514, 510)

    Reference:
        Ortiz-Jiménez et al. (2020), Neural anisotropy directions, supplement A.2.1; see docs/errata.md on norms.
    """
    *channels, height, width = shape
    labels, scales = [], []
    for row in range(height):
        for column in range(width):
            conjugate = ((-row) % height, (-column) % width)
            if (row, column) > conjugate:
                continue
            alone = (row, column) == conjugate
            for part in ("Re",) if alone else ("Re", "Im"):
                labels.append((part, row, column))
                scales.append(math.sqrt((1 if alone else 2) / (height * width)))
    down, across = (torch.tensor([label[axis] for label in labels], dtype=torch.float64) for axis in (1, 2))
    rows = torch.arange(height, dtype=torch.float64) / height
    columns = torch.arange(width, dtype=torch.float64) / width
    angle = 2 * math.pi * (torch.outer(down, rows)[:, :, None] + torch.outer(across, columns)[:, None, :]).flatten(1)
    sine = torch.tensor([label[0] == "Im" for label in labels])[:, None]
    plane = torch.tensor(scales, dtype=torch.float64)[:, None] * torch.where(sine, angle.sin(), angle.cos())
    if not channels:
        return Basis(plane, tuple(shape), tuple(labels))
    count = math.prod(channels)
    lifted = torch.kron(torch.eye(count, dtype=torch.float64), plane)
    return Basis(lifted, tuple(shape), tuple((c, *label) for c in range(count) for label in labels))


def random(shape: Sequence[int], *, seed: int) -> Basis:
    """A uniformly random orthonormal basis (QR of a Gaussian, with the signs that make it uniform).

    Example:
        >>> vectors = random((3, 3), seed=0).vectors
        >>> bool(torch.allclose(vectors @ vectors.T, torch.eye(9, dtype=torch.float64)))
        True
    """
    size = math.prod(shape)
    gaussian = torch.randn(size, size, generator=generator_for(torch.device("cpu"), seed, "basis"), dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    return Basis((q * r.diagonal().sign()).T.contiguous(), tuple(shape), tuple((i,) for i in range(size)))


def spatial_frequency(shape: Sequence[int]) -> Tensor:
    """Distance of each bin of the two-dimensional DFT from frequency zero, in cycles per pixel: ``(h, w)``."""
    height, width = shape[-2:]
    return torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.fftfreq(width)[None, :])
