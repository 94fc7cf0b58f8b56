"""Tasks that networks learn. Task: a distribution served in batches, to one network or to every member of a stack."""

# m members · n samples of a batch · c classes · D input size

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from typing_extensions import override

from biascope.results.axes import Axis
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.identity import DERIVED
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run

MARGINS = {"text": 1.0, "released": 0.5}  # D(v) has means ±ε·v in the paper's text, ±(ε/2)·v in its released code


class Task(ABC):
    """A distribution to learn, in batches and named splits.

    If ``members is None``, every network sees the same task. Otherwise each member of a stack has its own inputs, its own labels, or
    both. Members share the rest.
    """

    @property
    @abstractmethod
    def members(self) -> int | None:
        """Number of members with their own inputs or labels; ``None`` if all networks see the same."""

    @property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Number of samples of each split."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""

    @abstractmethod
    def batch(self, split: str, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs ``(n, …)`` and labels ``(n,)``; with a leading axis over members if these have their own."""

    @abstractmethod
    def select(self, members: Sequence[int]) -> Task:
        """The task of some members, in the order given; a task for all is returned as it is."""

    def __repr__(self) -> str:
        name = f"{named!r}, " if (named := getattr(self, "name", "")) else ""
        members = f"{self.members} members, " if self.members is not None else ""
        splits = ", ".join(f"{count:,} {split}" for split, count in self.sizes.items())
        return f"{type(self).__name__}({name}{members}{splits}, inputs of {'×'.join(map(str, self.shape)) or '1'})"

    def member_axes(self, x: Tensor, y: Tensor) -> tuple[int | None, int | None]:
        """The member axis of a batch's inputs and of its labels; ``None`` if members share them."""
        return 0 if x.dim() == len(self.shape) + 2 else None, 0 if y.dim() == 2 else None

    def of_member(self, index: int) -> Task:
        """One member's task, for one network."""
        return self if self.members is None else _One(self.select([index]))

    def _checked(self, split: str) -> str:
        if split not in self.sizes:
            known = ", ".join(repr(name) for name in self.sizes)
            raise ValueError(f"split must be one of {known}, got {split!r}. Pass split={next(iter(self.sizes))!r}.")
        return split


@dataclass(frozen=True, repr=False)
class _One(Task):
    """A stack of one, without the axis over members."""

    _stacked: Task

    @property
    def members(self) -> None:
        return None

    @property
    def sizes(self) -> dict[str, int]:
        return self._stacked.sizes

    @property
    def shape(self) -> tuple[int, ...]:
        return self._stacked.shape

    def batch(self, split: str, indices: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self._stacked.batch(split, indices)
        own = self._stacked.member_axes(x, y)
        return x if own[0] is None else x[0], y if own[1] is None else y[0]

    def select(self, members: Sequence[int]) -> Task:
        return self


@under_torch_defaults
@dataclass(frozen=True, repr=False)
class Arrays(Task):
    """A data set in memory, the same for every network.

    Attributes:
        splits: Inputs ``(n, …)`` and labels ``(n,)`` by name; byte images are served as numbers from 0 to 1.
        dtype: Type of the inputs served.
        name: Name for results.
        classes: The name of each label, where they are known.
        axes: What the axes of an input are, where they are known.
        prepared: What was done to the samples, in words.

    Example:
        >>> task = Arrays({"train": (torch.eye(3), torch.tensor([0, 1, 0]))})
        >>> task.batch("train", torch.tensor([1]))
        (tensor([[0., 1., 0.]]), tensor([1]))
    """

    splits: Mapping[str, tuple[Tensor, Tensor]]
    dtype: torch.dtype = torch.float32
    name: str = field(default="given data", metadata=DERIVED)
    classes: tuple[str, ...] = field(default=(), metadata=DERIVED)
    axes: tuple[Axis, ...] = field(default=(), metadata=DERIVED)
    prepared: str = field(default="", metadata=DERIVED)

    def __post_init__(self) -> None:
        for name, (x, y) in self.splits.items():
            if len(x) != len(y) or not len(x):
                raise ValueError(
                    f"Split {name!r} must have as many inputs as labels and at least one, got {len(x)} and {len(y)}. "
                    "Pass arrays of equal length."
                )

    @property
    def members(self) -> None:
        """``None``: all networks see the same data."""
        return None

    @property
    def sizes(self) -> dict[str, int]:
        """Number of samples of each split."""
        return {name: len(y) for name, (_, y) in self.splits.items()}

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(next(iter(self.splits.values()))[0].shape[1:])

    @property
    def holds_ids(self) -> bool:
        """Whether inputs are ids, such as tokens: whole numbers that are no bytes of images. They too are served as ``dtype``."""
        kind = next(iter(self.splits.values()))[0].dtype
        return not kind.is_floating_point and not kind.is_complex and kind != torch.uint8

    @override
    def batch(self, split: str, indices: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.splits[self._checked(split)]
        taken = x[indices]
        return taken.to(self.dtype) / 255 if taken.dtype == torch.uint8 else taken.to(self.dtype), y[indices]

    @override
    def select(self, members: Sequence[int]) -> Task:
        return self

    def to(self, run: Run) -> Arrays:
        """The same data on the device of a run, served in its precision."""
        device = run.torch_device
        splits = {name: (x.to(device), y.to(device)) for name, (x, y) in self.splits.items()}
        dtype = master_dtype(run) if self.dtype.is_floating_point else self.dtype
        return Arrays(splits, dtype, self.name, self.classes, self.axes, self.prepared)

    def two_classes(self, positive: Sequence[int] | None = None) -> Arrays:
        """The same samples with labels 1 for the positive classes and 0 for the rest; of two classes, 1 for the larger.

        Raises:
            ValueError: If that does not make two classes.
        """
        chosen = None if positive is None else torch.tensor(list(positive))
        labels = {
            s: y if chosen is None else torch.isin(y.long(), chosen.to(y.device)).long()
            for s, (_, y) in self.splits.items()
        }
        classes = sorted(set(torch.cat(list(labels.values())).tolist()))
        if len(classes) != 2:
            given = sorted(set(torch.cat([y for _, y in self.splits.values()]).tolist()))
            raise ValueError(
                f"Labels must be of two classes, got {len(classes)}. The samples have the labels {given[:20]}: pass some of them, not "
                "all, as positive=(5, 6)."
            )
        splits = {split: (x, (labels[split] == classes[1]).long()) for split, (x, _) in self.splits.items()}
        return Arrays(splits, self.dtype, self.name, (), self.axes, self.prepared)

    def whole(self, split: str) -> tuple[Tensor, Tensor]:
        """All samples of a split at once."""
        return self.batch(split, torch.arange(self.sizes[self._checked(split)], device=self.splits[split][1].device))


def require_classes(labels: Tensor) -> None:
    """Refuse labels that are no class numbers, or all of one class.

    Raises:
        ValueError: If they are.
    """
    kinds = sorted(set(labels.flatten().tolist()))
    if labels.dim() != 1 or labels.is_floating_point() or len(kinds) < 2:
        came = f"only {kinds[0]}" if len(kinds) < 2 else f"{labels.dtype} of shape {tuple(labels.shape)}"
        raise ValueError(
            f"Labels must be class numbers of at least two classes, got {came}. Pass a class number for each sample."
        )


@under_torch_defaults
@dataclass(frozen=True, repr=False)
class Relabelled(Task):
    """One set of inputs with other labels for every member: several targets learned on the same samples.

    Attributes:
        base: The inputs.
        labels: ``(m, n)`` by split.

    Example:
        >>> base = Arrays({"train": (torch.tensor([[5.0], [7.0]]), torch.zeros(2))})
        >>> task = Relabelled(base, {"train": torch.tensor([[0, 1], [1, 1], [1, 0]])})
        >>> task.members, task.of_member(2).batch("train", torch.tensor([0]))
        (3, (tensor([[5.]]), tensor([1])))
    """

    base: Arrays
    labels: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        for split, labels in self.labels.items():
            if labels.dim() != 2 or labels.shape[1] != self.base.sizes.get(split):
                raise ValueError(
                    f"Labels of split {split!r} must have a row of {self.base.sizes.get(split)} for every member, got shape "
                    f"{tuple(labels.shape)}. Pass labels of shape (members, samples)."
                )

    @property
    def members(self) -> int:
        """Number of members."""
        return len(next(iter(self.labels.values())))

    @property
    def sizes(self) -> dict[str, int]:
        """Number of samples of each split that has labels."""
        return {split: labels.shape[1] for split, labels in self.labels.items()}

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.base.shape

    @override
    def batch(self, split: str, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.base.batch(self._checked(split), indices)[0], self.labels[split][:, indices]

    @override
    def select(self, members: Sequence[int]) -> Relabelled:
        return Relabelled(self.base, {split: labels[list(members)] for split, labels in self.labels.items()})


@under_torch_defaults
@dataclass(frozen=True, repr=False)
class Imprinted(Task):
    """A data set whose content along a direction is replaced by a number that encodes the class.

    Member i sees ``x − v(vᵀx) + a_y·v`` with its own carrier ``v = v_{i,y}``. With Gaussian noise as data and one carrier for
    both classes this is D(v) of the papers; with images and a carrier per class it is their poisoning. The data are kept
    once, whatever the number of members.

    Attributes:
        base: The data that all members share.
        carriers: ``(m, c, D)`` unit vectors, or ``(m, 1, D)`` for the same in every class.
        amplitudes: ``(c,)``.
        marked: The splits that carry it; the others are served as they are.

    Example:
        >>> base = Arrays({"train": (torch.tensor([[5.0, 7.0]]), torch.tensor([1]))})
        >>> task = Imprinted(base, torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]), torch.tensor([-1.0, 1.0]))
        >>> task.batch("train", torch.tensor([0]))[0]
        tensor([[[1., 7.]],
        <BLANKLINE>
                [[5., 1.]]])
    """

    base: Arrays
    carriers: Tensor
    amplitudes: Tensor
    marked: tuple[str, ...] = ("train", "test")

    @property
    def members(self) -> int:
        """Number of members."""
        return len(self.carriers)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of samples of each split."""
        return self.base.sizes

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.base.shape

    @override
    def batch(self, split: str, indices: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.base.batch(split, indices)
        flat = x.flatten(1)  # (n, D)
        if split not in self.marked:
            return x.expand(self.members, *x.shape), y
        if self.carriers.shape[1] == 1:
            carrier = self.carriers[:, 0]  # (m, D)
            change = self.amplitudes[y] - carrier @ flat.T  # (m, n)
            moved = flat + change[:, :, None] * carrier[:, None, :]
        else:
            carrier = self.carriers[:, y]  # (m, n, D)
            change = self.amplitudes[y] - (carrier * flat).sum(-1)
            moved = flat + change[:, :, None] * carrier
        return moved.reshape(self.members, *x.shape), y

    @override
    def select(self, members: Sequence[int]) -> Imprinted:
        return Imprinted(self.base, self.carriers[list(members)], self.amplitudes, self.marked)


@under_torch_defaults
def along_directions(
    vectors: Tensor,
    shape: Sequence[int],
    *,
    noise: float = 3.0,
    epsilon: float = 1.0,
    margin: str = "text",
    train: int = 10_000,
    test: int = 10_000,
    labels: Mapping[str, Tensor] | None = None,
    seed: int,
    run: Run | None = None,
) -> Imprinted:
    """The directional task D(v) for every direction of a set, with one shared draw of noise and labels.

    Definition:
        ``x = ε·s·v + w``, ``w ~ N(0, σ²(I − v vᵀ))``, ``s = ±1`` with equal probability; the label is 1 where s = +1. All
        directions use the same w and s, so that their results differ by the direction alone.

    Args:
        vectors: ``(m, D)`` unit vectors.
        shape: Shape of one input.
        noise: σ.
        epsilon: ε, half the distance between the class means.
        margin: ``"text"`` for ε as defined; ``"released"`` for ε/2, as the authors' code draws it.
        train: Training samples.
        test: Test samples.
        labels: Labels to use instead of random ones, by split: their number overrides ``train`` and ``test``.
        seed: Random seed for noise and labels.
        run: Device and precision.

    Returns:
        The task, one member per direction.

    Raises:
        ValueError: If a setting is out of its range.

    Example:
        >>> v = torch.tensor([[0.0, 1.0]])
        >>> task = along_directions(v, (2,), noise=3.0, train=4, test=4, seed=0, run=Run(device="cpu"))
        >>> x, y = task.batch("train", torch.arange(4))
        >>> bool((x[0] @ v[0] == 2 * y - 1).all())
        True

    Reference:
        Ortiz-Jiménez et al. (2020), Neural anisotropy directions, section 2.
    """
    run, size = run or Run(), math.prod(shape)
    if margin not in MARGINS:
        raise ValueError(f"margin must be 'text' (ε) or 'released' (ε/2), got {margin!r}. Pass margin='text'.")
    if vectors.dim() != 2 or vectors.shape[1] != size:
        raise ValueError(
            f"vectors must have one row of {size} numbers per direction for inputs of shape {tuple(shape)}, "
            f"got {tuple(vectors.shape)}. Pass a basis of that input shape."
        )
    if not 0 <= noise < math.inf or train < 1 or test < 1:
        raise ValueError(
            f"noise must be finite and at least 0, train and test at least 1, got {noise}, {train} and {test}. "
            "Pass noise=3.0, train=10000, test=10000."
        )
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be a positive number, got {epsilon}. Pass epsilon=1.0.")
    device, dtype = run.torch_device, master_dtype(run)
    key = (tuple(shape), noise, train, test, seed, device, dtype)
    base = _noise(*key) if labels is None else _noise.__wrapped__(*key, labels)
    reach = epsilon * MARGINS[margin]
    amplitudes = torch.tensor([-reach, reach], device=device, dtype=dtype)
    return Imprinted(base, vectors[:, None].to(device, dtype), amplitudes)


@functools.lru_cache(maxsize=1)
def _noise(
    shape: tuple[int, ...],
    noise: float,
    train: int,
    test: int,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
    labels: Mapping[str, Tensor] | None = None,
) -> Arrays:
    """Labels, random or given, and noise; the last is kept for the next stack of a sweep, which shares it."""
    splits = {}
    for split, count in (("train", train), ("test", test)):
        generator = generator_for(device, seed, "directions", split)
        y = torch.randint(2, (count,), generator=generator, device=device)
        if labels is not None:
            y = labels[split].to(device)
        w = torch.randn(len(y), *shape, generator=generator, device=device)
        splits[split] = ((noise * w).to(dtype), y)
    return Arrays(splits, dtype)


def master_dtype(run: Run) -> torch.dtype:
    """Data and weights of a training are kept in float32 where its products are taken in half precision."""
    return run.dtype if run.dtype in (torch.float32, torch.float64) else torch.float32
