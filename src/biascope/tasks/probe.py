"""Probe: the inputs at which networks are measured, fixed for all members or sampled afresh for each."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from biascope.families.inputs import placed, sample_count
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.code import code_of
from biascope.runs.identity import content_of
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run

Sampler = Callable[[torch.Generator, int], Tensor]

_BLOCK = 256  # members whose fresh inputs are drawn in one go, where they are small; part of what a seed means
_LARGEST = 2**26  # bytes of a block, which is kept until another one is drawn; part of what a seed means, too
_FILTERED = 64  # inputs that are made smooth in one go


class _LatestBlock:
    """The block of fresh inputs that was drawn last: several checks, and each group of draws, ask for the same one."""

    def __init__(self) -> None:
        self._held: tuple[tuple[str, int], Any] | None = None

    def __reduce__(self) -> tuple[type[_LatestBlock], tuple[()]]:
        return _LatestBlock, ()  # another process draws its own: that is faster than sending it

    def release(self) -> None:
        self._held = None

    def get(self, device: torch.device, block: int, draw: Callable[[], Any]) -> Any:
        key, held = (str(device), block), self._held
        if held is not None and held[0] == key:
            return held[1]
        self._held = None  # never two blocks in memory
        whole = draw()
        self._held = key, whole
        return whole


@under_torch_defaults
@dataclass(frozen=True)
class Probe:
    """Inputs to measure at; any pytree of tensors whose leaves share a leading axis.

    Made by :meth:`fixed`, :meth:`sampled`, :meth:`gaussian` or :meth:`smooth`.

    Attributes:
        num: Inputs per member.
        fresh: Whether each member gets its own inputs.
        description: Description for results.
        independent: Whether the numbers of an input are known to be drawn independently of one another.

    Example:
        >>> probe = Probe.gaussian((1, 4, 4), num=3, seed=0)
        >>> probe.num, probe.fresh, probe.input_shape
        (3, False, (1, 4, 4))
    """

    num: int
    fresh: bool
    description: str
    independent: bool = field(default=False, kw_only=True)
    _points: Any = field(default=None, repr=False)
    _sampler: Sampler | None = field(default=None, repr=False)
    _seed: int = 0
    _latest: _LatestBlock = field(default_factory=_LatestBlock, repr=False, compare=False)

    @staticmethod
    def fixed(x: Any, description: str | None = None) -> Probe:
        """The same given inputs ``(n, …)`` for every member.

        Raises:
            ValueError: If there are none, or leaves disagree in number.
        """
        points = tree_map(lambda leaf: torch.as_tensor(leaf) if isinstance(leaf, Tensor | np.ndarray) else leaf, x)
        num = sample_count(points)
        return Probe(num, False, description or f"{num} given input{'s' if num > 1 else ''}", points)

    @staticmethod
    def sampled(
        sampler: Sampler, num: int, seed: int = 0, description: str = "sampled inputs", *, independent: bool = False
    ) -> Probe:
        """Inputs drawn afresh for every member: ``sampler(generator, count)`` returns ``(count, …)`` on its device.

        Say ``independent=True`` where it draws the numbers of an input independently of one another.
        """
        if num < 1:
            raise ValueError(f"num must be at least 1 input per member, got {num}. Pass num=1.")
        return Probe(num, True, description, None, sampler, seed, independent=independent)

    @staticmethod
    def gaussian(shape: Sequence[int], *, num: int = 1, std: float = 1.0, fresh: bool = False, seed: int = 0) -> Probe:
        """Inputs with independent N(0, std²) entries: the published choice is one fixed input with std 1.

        Args:
            shape: Shape of one input, for example ``(1, 32, 32)``.
            num: Inputs, or inputs per member where fresh.
            std: Standard deviation of each entry.
            fresh: Whether each member gets its own inputs.
            seed: Random seed for the inputs; independent of the seed for the weights.
        """
        shape = tuple(shape)
        if not shape or min(shape) < 1:
            raise ValueError(f"shape must have at least one positive length, got {shape}. Pass (1, 32, 32) for images.")
        if num < 1:
            raise ValueError(f"num must be at least 1 input per member, got {num}. Pass num=1.")
        if not 0 < std < math.inf:
            raise ValueError(f"std must be a positive number, got {std}. Pass std=1.")

        def sampler(generator: torch.Generator, count: int) -> Tensor:
            return torch.randn((count, *shape), generator=generator, device=generator.device).mul_(std)

        words = f"N(0, {std:g}²) inputs of shape {'×'.join(map(str, shape))}"
        if fresh:
            return Probe.sampled(sampler, num, seed, f"{num} fresh {words} per network", independent=True)
        points = sampler(generator_for(torch.device("cpu"), seed, "probe"), num)
        return Probe(num, False, f"{num} fixed {words} (seed {seed})", points, independent=True)

    @staticmethod
    def smooth(
        shape: Sequence[int], *, along: Sequence[int] | None = None, num: int = 16, std: float = 1.0, seed: int = 0
    ) -> Probe:
        """Fresh random fields that are smooth as photographs are: Gaussian, with amplitudes in proportion to 1/frequency.

        Fields are periodic and stationary. Each number has mean 0 and standard deviation ``std``. The mean over a field has the
        amplitude of one cycle. There is nothing at or beyond the Nyquist frequency in any direction, so a field can be shifted and
        turned by any amount. Along all other axes, such as channels and features, numbers are independent.

        Args:
            shape: Shape of one input, for example ``(1, 32, 32)``.
            along: Places of the axes along which it is smooth; by default the last two of three, as of an image (channel, height,
                width), else the first, as of a sequence (time, feature).
            num: Inputs per member.
            std: Standard deviation of each number.
            seed: Random seed for the inputs; independent of the seed for the weights.

        Raises:
            ValueError: If there is no such axis, or a number is out of its range.

        Example:
            >>> x = Probe.smooth((1, 32, 32), num=64).inputs(0, 1, Run(device="cpu"))[0]
            >>> neighbours = (x[..., 1:] - x[..., :-1]).square().mean() / (2 * x.var())  # 1 for independent numbers
            >>> x.shape, bool(neighbours < 0.35)
            (torch.Size([64, 1, 32, 32]), True)
        """
        shape = tuple(shape)
        Probe.gaussian(shape, num=num, std=std, fresh=True)  # refuses numbers out of their range
        along = ((1, 2) if len(shape) == 3 else (0,)) if along is None else tuple(along)
        if not along or len(set(along)) < len(along) or not set(along) <= set(range(len(shape))):
            raise ValueError(
                f"along must be different places of axes of {shape}, counted from 0, got {along}. Pass along=(1, 2) for images."
            )

        def sampler(generator: torch.Generator, count: int) -> Tensor:
            fields = torch.randn((count, *shape), generator=generator, device=generator.device)
            for part in torch.split(fields, _FILTERED):  # the spectrum of all would take twice the memory
                part.copy_(smoothed(part, along, std))
            return fields

        words = f"smooth random inputs of shape {'×'.join(map(str, shape))}"
        words += "" if std == 1 else f" and standard deviation {std:g}"
        return Probe.sampled(sampler, num, seed, f"{num} fresh {words} per network")

    def __repr__(self) -> str:
        return f"Probe({self.description})"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input (of the first leaf, for a pytree)."""
        leaf = self._tensors(Run(device="cpu"))[0]
        return tuple(leaf.shape[2:] if self.fresh else leaf.shape[1:])

    @property
    def identity(self) -> dict[str, object]:
        """The identity of this probe: its inputs, or the distribution that they are drawn from, with the first inputs."""
        first = tree_leaves(self.inputs(0, 1, Run(device="cpu", precision="float64")))
        return {
            "num": self.num,
            "fresh": self.fresh,
            "seed": self._seed,
            "law": None if self._sampler is None else code_of(self._sampler),
            "content": content_of([leaf if isinstance(leaf, Tensor) else repr(leaf) for leaf in first]),
        }

    def _tensors(self, run: Run) -> list[Tensor]:
        """The first member's inputs, without what only accompanies them (a flag in a dict)."""
        return [leaf for leaf in tree_leaves(self.inputs(0, 1, run)) if isinstance(leaf, Tensor)]

    def few(self, run: Run | None = None) -> Any:
        """Two of the inputs, on the device and in the precision of a run; in float32 on the CPU by default."""
        found = self.inputs(0, 1, run or Run(device="cpu"))
        if self.fresh:
            found = tree_map(lambda leaf: leaf[0] if isinstance(leaf, Tensor) else leaf, found)
        return tree_map(lambda leaf: leaf[:2] if isinstance(leaf, Tensor) else leaf, found)

    @functools.cached_property
    def members_at_once(self) -> int:
        """Members whose inputs are made in one go: fewer where they are so large that a block would not fit into memory."""
        if self._sampler is None:  # all members have the same
            return 1
        one = self._sampler(generator_for(torch.device("cpu"), self._seed, "size of an input"), 1)
        size = self.num * sum(leaf.nbytes for leaf in tree_leaves(one) if isinstance(leaf, Tensor))
        members = _BLOCK
        while members > 1 and members * size > _LARGEST:
            members //= 2
        return members

    def release(self) -> None:
        """Give back the memory of the fresh inputs that were drawn last."""
        self._latest.release()

    def inputs(self, start: int, stop: int, run: Run) -> Any:
        """Inputs for members ``start … stop−1``: ``(n, …)`` if fixed, ``(stop − start, n, …)`` if fresh."""
        device = run.torch_device
        if not self.fresh:
            return placed(self._points, device, run.dtype, copy=True)
        assert self._sampler is not None
        sampler, members = self._sampler, self.members_at_once
        parts = []
        while start < stop:
            block, first = divmod(start, members)
            last = min(members, first + stop - start)
            whole = self._latest.get(
                device,
                block,
                lambda: sampler(generator_for(device, self._seed, "probe", block), members * self.num),  # noqa: B023
            )
            parts.append(tree_map(lambda leaf: leaf.reshape(members, self.num, *leaf.shape[1:])[first:last], whole))  # noqa: B023
            start += last - first
        whole = parts[0] if len(parts) == 1 else tree_map(lambda *leaves: torch.cat(leaves), *parts)
        return placed(whole, device, run.dtype, copy=True)


def smoothed(fields: Tensor, along: Sequence[int], std: float = 1.0) -> Tensor:
    """White noise ``(n, …)`` of variance 1 as the fields of :meth:`Probe.smooth`.

    Args:
        fields: Of independent N(0, 1) numbers.
        along: Places of the axes of one field along which it is smooth.
        std: Standard deviation of each number afterwards.
    """
    shape = tuple(fields.shape[1:])
    dims, amplitudes = tuple(place - len(shape) for place in along), std * _amplitudes(shape, along).to(fields)
    found: Tensor = torch.fft.ifftn(torch.fft.fftn(fields, dim=dims) * amplitudes, dim=dims).real
    return found


def _amplitudes(shape: Sequence[int], along: Sequence[int]) -> Tensor:
    """What the Fourier modes of white noise are multiplied by for a field of variance 1 with amplitudes 1/frequency."""
    squares = torch.zeros((), dtype=torch.float64)
    for place in along:
        frequencies = torch.fft.fftfreq(shape[place], dtype=torch.float64)  # cycles per pixel
        squares = squares + frequencies.square().reshape([-1 if axis == place else 1 for axis in range(len(shape))])
    lowest = 1 / max(shape[place] for place in along)
    found = torch.where(squares < 0.25, squares.sqrt().clamp(min=lowest).reciprocal(), 0.0)
    return found / found.square().mean().sqrt()
