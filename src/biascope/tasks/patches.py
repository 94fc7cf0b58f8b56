"""Image patches as patterns: given or found by clustering, where they occur, and with which labels."""

# n images · P patterns · L places of a patch in an image · C×h×w numbers of a patch

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from biascope.runs.ambient import under_torch_defaults
from biascope.runs.randomness import generator_for
from biascope.runs.rehearsal import counted

_SWEEPS = 100  # most steps of Lloyd's iteration
_NUMBERS = 2**24  # numbers of cut patches held at once


@dataclass(frozen=True)
class Patches:
    """A set of patterns as small images.

    Attributes:
        pixels: ``(P, C, h, w)``.
        names: What to call each; their numbers from 1 by default.
        statistics: ``(P,)`` label statistics where they are known beforehand.
        within: An image contains a pattern ``p`` where one of its patches ``x`` is nearer to it than to the others and
            ``‖x − p‖ ≤ within·‖p‖``; ``None`` leaves out the second condition: the patterns stand for all patches.
        name: Name of the set, in words.

    Example:
        >>> Patches(torch.eye(4).reshape(4, 1, 2, 2)).names
        ('1', '2', '3', '4')
    """

    pixels: Tensor
    names: tuple[str, ...] = ()
    statistics: Tensor | None = None
    within: float | None = 0.5
    name: str = "given patches"

    def __post_init__(self) -> None:
        shape = tuple(self.pixels.shape)
        if len(shape) != 4 or shape[0] < 2 or 0 in shape:
            raise ValueError(
                f"Patches must be an array (patterns, channels, height, width) of at least two patterns, got shape {shape}. "
                "Reshape the array, or add another pattern."
            )
        if not self.pixels.isfinite().all():
            raise ValueError("Patches must be finite numbers, but some are not. Replace these values.")
        if self.within is not None and not self.within > 0:
            raise ValueError(f"within must be a positive number of pattern norms, got {self.within}. Pass 0.5.")
        object.__setattr__(self, "names", tuple(map(str, self.names or range(1, shape[0] + 1))))
        if len(self.names) != shape[0] or (self.statistics is not None and self.statistics.shape != (shape[0],)):
            came = "" if self.statistics is None else f" and statistics of shape {tuple(self.statistics.shape)}"
            raise ValueError(
                f"Names and statistics must be one for each of {shape[0]} patches, got {len(self.names)} names{came}. "
                "Pass as many as there are patches."
            )

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def content(self) -> str:
        """A digest of pixels and statistics, for the identity of work that uses them."""
        digest = hashlib.sha256(f"{tuple(self.pixels.shape)}{self.within}".encode())
        for tensor in (self.pixels, self.statistics):
            if tensor is not None:
                digest.update(tensor.double().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


@under_torch_defaults
def cut_patches(images: Tensor, size: tuple[int, int], *, stride: tuple[int, int] = (1, 1)) -> Tensor:
    """Every patch of every image as a row of numbers, without any padding.

    Args:
        images: ``(n, C, H, W)``.
        size: Height and width of a patch.
        stride: Steps down and across.

    Returns:
        ``(n, L, C·h·w)``, places row by row.

    Raises:
        ValueError: If a patch is larger than the images.

    Example:
        >>> cut_patches(torch.arange(6.0).reshape(1, 1, 2, 3), (2, 2))
        tensor([[[0., 1., 3., 4.],
                 [1., 2., 4., 5.]]])
    """
    if images.dim() != 4 or images.shape[2] < size[0] or images.shape[3] < size[1]:
        raise ValueError(
            f"Images must be (n, channels, height, width) and at least {size[0]}×{size[1]}, as large as a patch, got shape "
            f"{tuple(images.shape)}. Pass larger images, or smaller patches."
        )
    return F.unfold(images, size, stride=stride).transpose(1, 2)


@under_torch_defaults
def clustered_patches(
    images: Tensor,
    size: tuple[int, int],
    num: int,
    *,
    stride: tuple[int, int] = (1, 1),
    from_each: int = 10,
    seed: int,
) -> Patches:
    """The centres of clusters of an image set's patches, as patterns that stand for all of them.

    ``from_each`` random patches of every image are clustered by k-means, started by k-means++, in float64 on the CPU. A linear
    filter answers to a centre as it does, on average, to the patches of that cluster.

    Args:
        images: ``(n, C, H, W)``.
        size: Height and width of a patch.
        num: Clusters P.
        stride: Steps between patches.
        from_each: Patches of each image that are clustered.
        seed: Random seed for the choice of patches and for the start.

    Returns:
        The centres, that of the largest cluster first.

    Raises:
        ValueError: If there are fewer different patches than clusters.

    Example:
        >>> two = torch.tensor([0.0, 0.0, 1.0]).reshape(3, 1, 1, 1)
        >>> clustered_patches(two, (1, 1), 2, seed=0).pixels.flatten()
        tensor([0., 1.], dtype=torch.float64)
    """
    generator = generator_for(torch.device("cpu"), seed, "patches")
    sample = []
    for part in torch.split(images.cpu(), _images_at_once(images, size)):
        cut = cut_patches(part, size, stride=stride).double()  # (n, L, C·h·w)
        places = torch.rand(cut.shape[:2], generator=generator).topk(min(from_each, cut.shape[1])).indices
        sample.append(cut.gather(1, places[:, :, None].expand(-1, -1, cut.shape[2])).flatten(0, 1))
    rows = torch.cat(sample)
    different = len(torch.unique(rows, dim=0))
    if not 2 <= num <= different:
        raise ValueError(
            f"clusters must be from 2 to the {different} different patches that were cut, got {num}. Pass a number in that range."
        )
    centres = rows[torch.randint(len(rows), (1,), generator=generator)]
    distance = (rows - centres).square().sum(1)
    while len(centres) < num:
        centres = torch.cat([centres, rows[torch.multinomial(distance, 1, generator=generator)]])
        distance = torch.minimum(distance, (rows - centres[-1]).square().sum(1))
    with counted("clustering of patches, at most", _SWEEPS) as advance:
        for _ in range(_SWEEPS):
            nearest = _nearest(rows, centres)
            counts = torch.bincount(nearest, minlength=num)
            sums = torch.zeros_like(centres).index_add_(0, nearest, rows)
            moved = torch.where(counts[:, None] > 0, sums / counts[:, None].clamp(min=1), centres)
            settled = torch.equal(moved, centres)
            centres = moved
            if settled:
                break
            advance(1)
    order = counts.argsort(descending=True, stable=True)
    pixels = centres[order].reshape(num, images.shape[1], *size)
    return Patches(pixels, within=None, name=f"{num} cluster centres of {len(rows):,} patches of {size[0]}×{size[1]}")


@under_torch_defaults
def patch_presence(images: Tensor, patches: Patches, *, stride: tuple[int, int] = (1, 1)) -> Tensor:
    """Which image contains which pattern, ``(n, P)``; of two patterns that are equally near, the first.

    Example:
        >>> patches = Patches(torch.tensor([[1.0, 0.0], [0.0, 1.0]]).reshape(2, 1, 1, 2))
        >>> patch_presence(torch.tensor([[1.0, 0.0, 0.9], [0.2, 0.2, 0.2]]).reshape(2, 1, 1, 3), patches)
        tensor([[ True,  True],
                [False, False]])
    """
    shape = tuple(patches.pixels.shape[1:])
    if images.shape[1] != shape[0]:
        raise ValueError(
            f"Images must have the {shape[0]} channels of the patches, got {images.shape[1]}. Pass images with as many channels."
        )
    centres, found = patches.pixels.flatten(1).to(images), []
    reach = None if patches.within is None else (patches.within * centres.norm(dim=1)).square()
    for part in torch.split(images, _images_at_once(images, shape[1:])):
        rows = cut_patches(part, (shape[1], shape[2]), stride=stride)  # (n, L, C·h·w)
        nearest = _nearest(rows, centres)  # (n, L)
        close = torch.ones_like(nearest, dtype=torch.bool)
        if reach is not None:
            close = (rows - centres[nearest]).square().sum(-1) <= reach[nearest]
        image = torch.arange(len(rows), device=rows.device)[:, None].expand_as(nearest)
        each = torch.zeros(len(rows), len(patches), dtype=torch.bool, device=rows.device)
        each[image[close], nearest[close]] = True
        found.append(each)
    return torch.cat(found)


@under_torch_defaults
def presence_statistics(presence: Tensor, labels: Tensor, *, balanced: bool = True) -> Tensor:
    """The statistic of each pattern, ``s_i = Σ_j ω_j y_j 1{p_i ∈ x_j}`` with labels ``y = ±1``.

    Args:
        presence: ``(n, P)``: which image contains which pattern.
        labels: ``(n,)``, 1 for the positive class and 0 for the other.
        balanced: Whether each class weighs half, ``ω_j = 1/(2 n_{y_j})``, so that ``s_i`` is half the difference of how often the
            classes contain the pattern; else ``ω_j = 1/n`` as published. Where classes are equal in number both are the same.

    Returns:
        ``(P,)`` in float64, from −1/2 to 1/2 where balanced.

    Raises:
        ValueError: If one of the classes has no image.

    Example:
        >>> presence, labels = torch.tensor([[True, True], [True, False], [False, True]]), torch.tensor([1, 1, 0])
        >>> [presence_statistics(presence, labels, balanced=each).tolist() for each in (True, False)]
        [[0.5, -0.25], [0.6666666666666666, 0.0]]
    """
    counts = torch.bincount(labels.long(), minlength=2)
    if not counts[:2].all():
        raise ValueError(
            f"Images must be of both classes for label statistics, got {counts[1]} positive and {counts[0]} others. Take more images."
        )
    signs = 2 * labels.double() - 1
    weight = 1 / (2 * counts.double()[labels.long()]) if balanced else torch.full_like(signs, 1 / len(signs))
    return (weight * signs) @ presence.double()


def _nearest(rows: Tensor, centres: Tensor) -> Tensor:
    """The centre nearest to each row: the first of several; ``‖x‖²`` is the same for all centres and left out."""
    return (centres.square().sum(1) - 2 * rows @ centres.T).argmin(-1)


def _images_at_once(images: Tensor, size: Sequence[int]) -> int:
    height, width = images.shape[2:]
    return max(1, _NUMBERS // (images.shape[1] * height * width * size[0] * size[1]))
