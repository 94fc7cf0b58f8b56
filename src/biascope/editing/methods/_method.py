"""What a merging method is: from the task vectors of a tensor, slice by slice, to the change of the base."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from biascope.editing.methods._settings import MethodSetting, Values

SLICE = 2**18


class Slice(NamedTuple):
    """Some numbers of a tensor, flat.

    Attributes:
        begin: Where they begin.
        start: θ₀ there, in the type of the arithmetic.
        deltas: τ of each model there.
    """

    begin: int
    start: Tensor
    deltas: list[Tensor]


Rule = Callable[[Slice], Tensor]  # from the slices of a tensor, in order, to the change there


class Factors(NamedTuple):
    """A LoRA adapter's part of a weight: ``s · B A``.

    Attributes:
        down: A, ``(r, in)``.
        up: B, ``(out, r)``.
        scale: s.
        turned: Whether the weight is stored as ``(in, out)``.
    """

    down: Tensor
    up: Tensor
    scale: float
    turned: bool = False


@dataclass(frozen=True, eq=False)
class MovedTensor:
    """A tensor of the models that are merged; it can be read several times.

    Attributes:
        name: Its name in the base.
        shape: Its shape.
        dtype: Type of the arithmetic.
        read: Its slices, from the first on.
        factors: For each model, the factors of its adapter, ``None`` where the adapter has none here, or an error if it is no
            adapter.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Iterator[Slice]]
    factors: Callable[[], list[Factors | None]]

    @property
    def numbers(self) -> int:
        """How many numbers it has."""
        return torch.Size(self.shape).numel()

    def deltas(self) -> list[Tensor]:
        """τ of each model, whole."""
        parts = [each.deltas for each in self.read()]
        if not parts:
            return []
        return [torch.cat(column).view(self.shape) for column in zip(*parts, strict=True)]

    @staticmethod
    def held(name: str, start: Tensor, deltas: Sequence[Tensor], most: int = SLICE) -> MovedTensor:
        """A tensor in memory.

        Args:
            name: Its name.
            start: θ₀.
            deltas: τ of each model.
            most: Numbers of a slice.
        """

        def read() -> Iterator[Slice]:
            flat, moved = start.flatten(), [delta.flatten() for delta in deltas]
            for begin in range(0, len(flat), most):
                cut = slice(begin, begin + most)
                yield Slice(begin, flat[cut], [delta[cut] for delta in moved])

        return MovedTensor(name, tuple(start.shape), start.dtype, read, _no_adapters)


def _no_adapters() -> list[Factors | None]:
    raise ValueError("The models must be LoRA adapters to merge their factors, but hold whole weights. Pass adapters.")


class Method(abc.ABC):
    """A way to merge.

    Args:
        values: Its settings.
        seed: Random seed; methods that draw nothing ignore it.
        keys: Of each model, what its random numbers depend on besides the seed and the name of the tensor.

    Attributes:
        settings: What it can be told.
        fewest: Models that it needs.
        most: Models that it takes; ``None`` for any number.
        scaled_by: The setting that its change is proportional to; empty if there is none.
        of_factors: Whether it merges the factors of adapters instead of their updates.
        matrices: Whether it holds a whole tensor of all models in memory.
        says: Its definition.
        reference: Where it is defined.
    """

    settings: ClassVar[tuple[MethodSetting, ...]] = ()
    fewest: ClassVar[int] = 1
    most: ClassVar[int | None] = None
    scaled_by: ClassVar[str] = ""
    of_factors: ClassVar[bool] = False
    matrices: ClassVar[bool] = False
    says: ClassVar[str]
    reference: ClassVar[str]

    def __init__(self, values: Values, *, seed: int = 0, keys: Sequence[str] = ()) -> None:
        count, name = len(values.models), values.method
        if count < self.fewest or (self.most is not None and count > self.most):
            wanted = f"at least {self.fewest}" if self.most is None else f"{self.fewest} to {self.most}"
            wanted = str(self.fewest) if self.fewest == self.most else wanted
            raise ValueError(f"{name} merges {wanted} models, got {count}. Pass so many, or another --method.")
        self.values, self.seed, self.keys = values, seed, tuple(keys) or values.models

    def surveys(self, dtype: torch.dtype) -> int:
        """How many looks at the whole model are needed before a tensor is changed, in the widest type of the arithmetic."""
        return 0

    def survey(self, parts: Sequence[MovedTensor]) -> None:  # noqa: B027 - most methods look at no more than a tensor
        """One look at all tensors."""

    @abc.abstractmethod
    def rule(self, part: MovedTensor) -> Rule:
        """How slices of a tensor change; the rule is called with them in order."""

    def doubts(self) -> list[str]:
        """Where the method degenerated, in words; once all tensors are merged."""
        return []


def weighted_sum(deltas: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """``Σ w_i τ_i``."""
    total = torch.zeros_like(deltas[0])
    for delta, weight in zip(deltas, weights, strict=True):
        total.add_(delta, alpha=weight)
    return total


def constant(change: Tensor) -> Rule:
    """The rule of a change that is known whole."""
    flat = change.flatten()
    return lambda each: flat[each.begin : each.begin + len(each.start)]
