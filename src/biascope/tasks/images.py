"""Tasks made of images: a class encoded along a direction, images reversed in a basis, two sources together."""

# m members · n samples of a batch · K channels · D pixels of a channel

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from biascope.runs.ambient import under_torch_defaults
from biascope.tasks.task import Arrays, Imprinted, Task


@under_torch_defaults
@dataclass(frozen=True, repr=False)
class SideBySide(Task):
    """Two sources of the same labels, joined as channels; either can be removed at test time.

    Splits: those of the sources, and beside ``test`` also ``test, first only`` and ``test, second only`` with the other
    source set to zero. Which of the two a network then still classifies tells what it has learned from.
    """

    first: Task
    second: Task

    def __post_init__(self) -> None:
        if self.first.sizes != self.second.sizes or self.first.shape[1:] != self.second.shape[1:]:
            raise ValueError(
                f"Two sources side by side must have the same samples and image size, got {self.first.sizes} of "
                f"{self.first.shape} and {self.second.sizes} of {self.second.shape}. Make both from the same labels."
            )

    @property
    def members(self) -> int | None:
        """Number of members, if a source has members."""
        return self.second.members if self.first.members is None else self.first.members

    @property
    def sizes(self) -> dict[str, int]:
        """Number of samples of each split."""
        sizes = self.first.sizes
        test = {f"test, {part} only": sizes["test"] for part in ("first", "second") if "test" in sizes}
        return {**sizes, **test}

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return (self.first.shape[0] + self.second.shape[0], *self.first.shape[1:])

    @override
    def batch(self, split: str, indices: Tensor) -> tuple[Tensor, Tensor]:
        self._checked(split)
        source, _, only = split.partition(", ")
        (one, y), (two, _) = self.first.batch(source, indices), self.second.batch(source, indices)
        if only == "second only":
            one = torch.zeros_like(one)
        elif only == "first only":
            two = torch.zeros_like(two)
        return torch.cat(_with_members(one, two), -3), y

    @override
    def select(self, members: Sequence[int]) -> SideBySide:
        return SideBySide(self.first.select(members), self.second.select(members))


def _with_members(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    """Give a source without members the axis over members of the other."""
    if one.dim() < two.dim():
        return one.expand(two.shape[0], *one.shape), two
    if two.dim() < one.dim():
        return one, two.expand(one.shape[0], *two.shape)
    return one, two


@under_torch_defaults
def poisoned(
    images: Arrays, directions: Tensor, indices: Sequence[int], *, epsilon: float = 0.05, assignment: str = "released"
) -> Imprinted:
    """Images whose training part carries the class along a direction, one member per place in the sequence of directions.

    Member i replaces each training image's content along a carrier ``u ⊗ e_k`` by ±ε; the test images stay clean.

    Args:
        images: Images ``(n, K, h, w)`` with splits ``train`` and ``test``.
        directions: ``(count, h·w)``: the sequence, most preferred first.
        indices: Where the carriers are put.
        epsilon: ε.
        assignment: ``"released"``: class t uses direction ``i + ⌊t/2K⌋``, channel ``t mod K``, sign by parity, as the
            authors' code does; ``"text"``: direction ``i + ⌊⌊t/2⌋/K⌋``, channel ``⌊t/2⌋ mod K``.

    Returns:
        The task, one member per index.

    Raises:
        ValueError: If an index leaves no room for the carriers, or the assignment is unknown.

    Reference:
        Ortiz-Jiménez et al. (2020), Neural anisotropy directions, figure 7 and supplement E.
    """
    channels, size = images.shape[0], math.prod(images.shape[1:])
    classes = int(max(int(y.max()) for _, y in images.splits.values())) + 1
    if assignment not in ("released", "text"):
        raise ValueError(
            f"assignment must be 'released' or 'text', got {assignment!r}. Pass assignment='released' as published."
        )
    places = [
        (t // (2 * channels), t % channels) if assignment == "released" else divmod(t // 2, channels)
        for t in range(classes)
    ]
    reach = max(offset for offset, _ in places)
    if directions.shape[1] != size or not all(0 <= index < len(directions) - reach for index in indices):
        raise ValueError(
            f"indices must lie between 0 and {len(directions) - reach - 1} of directions of {size} numbers, got "
            f"{list(indices)} of {directions.shape[1]} numbers. Pass smaller indices or matching directions."
        )
    first = next(iter(images.splits.values()))[0]
    carriers = torch.zeros(len(indices), classes, channels, size, device=first.device, dtype=images.dtype)
    for t, (offset, channel) in enumerate(places):
        carriers[:, t, channel] = directions[[index + offset for index in indices]].to(carriers)
    signs = torch.tensor([epsilon * (2 * (t % 2) - 1) for t in range(classes)], device=first.device, dtype=images.dtype)
    return Imprinted(images, carriers.flatten(2), signs, marked=("train",))


@under_torch_defaults
def flipped(images: Arrays, directions: Tensor) -> Arrays:
    """Images with their coordinates in an orthonormal basis in reverse order, ``x' = U·flip(Uᵀx)``, channel by channel.

    What was along the first direction is then along the last: a rotation that loses nothing.

    Args:
        images: Images ``(n, K, h, w)``.
        directions: ``(D, D)`` orthonormal rows with D = h·w.

    Returns:
        The rotated data, in floating point.

    Raises:
        ValueError: If the directions are not a basis of one channel.

    Example:
        >>> images = Arrays({"train": (torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([0]))})
        >>> flipped(images, torch.eye(2)).splits["train"][0]
        tensor([[[[2., 1.]]]])
    """
    size = math.prod(images.shape[1:])
    if tuple(directions.shape) != (size, size):
        raise ValueError(
            f"directions must be a whole basis of {size} vectors, got {tuple(directions.shape)}. Keep all directions."
        )
    splits = {}
    for name, (x, y) in images.splits.items():
        basis = directions.to(x.device, images.dtype)
        scaled = x.to(images.dtype) / 255 if x.dtype == torch.uint8 else x.to(images.dtype)
        splits[name] = ((scaled.flatten(2) @ basis.T @ basis.flip(0)).reshape(x.shape), y)
    return Arrays(splits, images.dtype)
