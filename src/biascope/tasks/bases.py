"""Orthonormal bases of input space: rows are vectors, flattened in row-major order."""

# D input size · h × w pixels

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from biascope.runs.ambient import under_torch_defaults
from biascope.runs.randomness import generator_for


@under_torch_defaults
@dataclass(frozen=True)
class Basis:
    """An orthonormal basis.

    Attributes:
        vectors: ``(count, D)``, float64.
        shape: Shape of one input.
        labels: Label of each vector: ``("Re", row, column)`` for Fourier, ``(index,)`` otherwise; a channel may come first.
        name: Name of the basis.
        places: Index of each vector in the complete basis.
        values: ``(count,)`` values that order the vectors (eigenvalues), or ``None``.
    """

    vectors: Tensor
    shape: tuple[int, ...]
    labels: tuple[tuple[object, ...], ...]
    name: str = "basis"
    places: tuple[int, ...] = ()
    values: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.places:
            object.__setattr__(self, "places", tuple(range(len(self.vectors))))

    def __len__(self) -> int:
        return len(self.vectors)

    def __repr__(self) -> str:
        return f"Basis({self.name!r}, {len(self)} vectors, inputs of {'×'.join(map(str, self.shape))})"

    def part(self, indices: Sequence[int]) -> Basis:
        """Some of the vectors, which keep their places.

        Raises:
            ValueError: If an index is out of range or none is given.

        Example:
            >>> canonical((4,)).part([3, 1]).places
            (3, 1)
        """
        chosen = list(indices)
        if not chosen or not all(0 <= index < len(self) for index in chosen):
            raise ValueError(
                f"Choose at least one of the {len(self)} directions of the basis, got {chosen}. "
                f"Pass indices from 0 to {len(self) - 1}."
            )
        labels, places = tuple(self.labels[i] for i in chosen), tuple(self.places[i] for i in chosen)
        values = None if self.values is None else self.values[chosen]
        return Basis(self.vectors[chosen], self.shape, labels, self.name, places, values)

    def lifted(self, channels: int) -> Basis:
        """The basis ``u_i ⊗ e_k`` of images with several channels: each vector in each channel, channel by channel.

        Example:
            >>> canonical((2, 2)).lifted(3).vectors.shape
            torch.Size([12, 12])
        """
        count = len(self)
        vectors = torch.kron(torch.eye(channels, dtype=self.vectors.dtype), self.vectors)
        labels = tuple((c, *label) for c in range(channels) for label in self.labels)
        values = None if self.values is None else self.values.repeat(channels)
        places = tuple(c * count + place for c in range(channels) for place in self.places)
        return Basis(vectors, (channels, *self.shape[-2:]), labels, self.name, places, values)


@under_torch_defaults
def canonical(shape: Sequence[int]) -> Basis:
    """One vector per input entry.

    Example:
        >>> canonical((2, 2)).vectors.shape
        torch.Size([4, 4])
    """
    size = math.prod(shape)
    return Basis(torch.eye(size, dtype=torch.float64), tuple(shape), tuple((i,) for i in range(size)), "pixels")


@under_torch_defaults
def fourier(shape: Sequence[int]) -> Basis:
    """The real two-dimensional Fourier basis, over the last two axes; channels stay separate.

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
    basis = Basis(plane, (height, width), tuple(labels), "Fourier")
    if not channels:
        return basis
    return dataclasses.replace(basis.lifted(math.prod(channels)), shape=tuple(shape))


@under_torch_defaults
def fourier_half(shape: Sequence[int], part: str = "Re", stride: int = 1) -> Basis:
    """The cosines (``"Re"``) or the sines (``"Im"``) of the Fourier basis, at every ``stride``-th frequency down and across.

    Example:
        >>> len(fourier_half((32, 32))), len(fourier_half((32, 32), "Im")), len(fourier_half((32, 32), stride=2))
        (514, 510, 130)
    """
    whole = fourier(shape)
    if part not in ("Re", "Im"):
        raise ValueError(f"part must be 'Re' (cosines) or 'Im' (sines), got {part!r}. Pass part='Re'.")
    if stride < 1:
        raise ValueError(f"stride must be at least 1, got {stride}. Pass stride=1 for all frequencies.")
    kept = []
    for index, label in enumerate(whole.labels):
        kind, row, column = label[-3:]
        if kind == part and int(str(row)) % stride == 0 and int(str(column)) % stride == 0:
            kept.append(index)
    return dataclasses.replace(whole.part(kept), name=f"Fourier ({part})")


def two_adic_class(number: int) -> int:
    """The exponent of 2 in a whole number, at most 2: 0 for odd numbers, 1 for twice an odd number, 2 for multiples of 4.

    Example:
        >>> [two_adic_class(number) for number in (7, 6, 12, 0)]
        [0, 1, 2, 2]
    """
    return 0 if number % 2 else 1 if number % 4 else 2


@under_torch_defaults
def fourier_sample(shape: Sequence[int], part: str = "Re", *, count: int, stride: int = 1, seed: int) -> Basis:
    """A random sample of frequencies, stratified by the powers of 2 that divide both coordinates.

    A layer of stride 2 maps frequencies that differ by half of the sampling rate onto each other. What a network learns can therefore
    depend on these powers, and every 4th frequency shows one kind alone. Strata are the pairs of :func:`two_adic_class` of (k, l). Each
    stratum contributes in proportion to its size, in random order. (k, l) and (−k, −l) are one frequency. A smaller sample of the same
    seed and stride is part of a larger one.

    Args:
        shape: ``(h, w)``, or ``(channels, h, w)`` for a sample from all channels.
        part: ``"Re"`` for cosines, ``"Im"`` for sines.
        count: Number of frequencies.
        stride: Sample from every n-th frequency down and across.
        seed: Random seed of the sample.

    Raises:
        ValueError: If there are fewer frequencies than asked for.

    Example:
        >>> labels = fourier_sample((32, 32), count=72, stride=2, seed=0).labels
        >>> [sum(sum(k % 4 == 0 for k in label[1:]) == multiples for label in labels) for multiples in (0, 1, 2)]
        [18, 35, 19]
    """
    whole = fourier_half(shape, part, stride)
    if not 1 <= count <= len(whole):
        raise ValueError(
            f"count must be from 1 to {len(whole)}, the frequencies there are, got {count}. Pass count=12."
        )
    strata: dict[tuple[int, int], list[int]] = {}
    for index, label in enumerate(whole.labels):
        row, column = (two_adic_class(int(str(coordinate))) for coordinate in label[-2:])
        strata.setdefault((row, column), []).append(index)
    generator = generator_for(torch.device("cpu"), seed, "frequencies")
    ranked = []
    for kind in sorted(strata):
        members = strata[kind]
        order = torch.randperm(len(members), generator=generator).tolist()
        ranked += [((place + 0.5) / len(members), kind, members[index]) for place, index in enumerate(order)]
    return whole.part(sorted(index for _, _, index in sorted(ranked)[:count]))


@under_torch_defaults
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
    return Basis((q * r.diagonal().sign()).T.contiguous(), tuple(shape), tuple((i,) for i in range(size)), "random")


@under_torch_defaults
def ordered(vectors: Tensor, shape: Sequence[int], values: Tensor | None = None, *, name: str = "directions") -> Basis:
    """Given orthonormal directions as a basis, in their order: anisotropy directions, for example.

    Args:
        vectors: ``(count, D)`` orthonormal rows.
        shape: Shape of one input.
        values: Values that order them.
        name: Name of the basis.

    Raises:
        ValueError: If the vectors do not fit the shape or are not orthonormal.
    """
    vectors = torch.as_tensor(vectors, dtype=torch.float64)
    if vectors.dim() != 2 or vectors.shape[1] != math.prod(shape):
        raise ValueError(
            f"Directions must have {math.prod(shape)} numbers each for inputs of shape {tuple(shape)}, got "
            f"{tuple(vectors.shape)}. Pass directions measured at that input shape."
        )
    error = float((vectors @ vectors.T - torch.eye(len(vectors), dtype=torch.float64)).abs().max())
    if error > 1e-3:
        raise ValueError(f"Directions must be orthonormal, got an error of {error:.2g}. Pass eigenvectors.")
    values = None if values is None else torch.as_tensor(values, dtype=torch.float64)
    return Basis(vectors, tuple(shape), tuple((i,) for i in range(len(vectors))), name, values=values)


@under_torch_defaults
def spatial_frequency(shape: Sequence[int]) -> Tensor:
    """Distance of each bin of the two-dimensional DFT from frequency zero, in cycles per pixel: ``(h, w)``."""
    height, width = shape[-2:]
    return torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.fftfreq(width)[None, :])
