"""HOW: choose by measurement. Several ways give the same gradients; the first members are spent on timing them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from biascope.family import Network

_GIVE_UP = 0.7  # a larger stack slower than this share of the best rate ends the search for larger ones


@dataclass(frozen=True)
class Way:
    """One way to compute gradients of a stack.

    Attributes:
        name: In words, for settings and ``--dry-run``.
        members: How many members one call takes.
        gradients: ``(stack, inputs) -> (m, n, D)``.
    """

    name: str
    members: int
    gradients: Callable[[Network, Any], Tensor]


class Fastest:
    """Maps a stack of any size through the fastest of several ways, found on the first members it is given.

    Ways are tried in their order, each once to warm up and once timed, and what they compute is used. Ways that run out
    of memory are dropped; if the chosen one does later, its call is cut in halves from then on.

    Args:
        ways: Candidates; those taking more members come later.
        device: To wait for before reading the clock.
    """

    def __init__(self, ways: Sequence[Way], device: torch.device) -> None:
        self._untried = list(ways)
        self._device = device
        self.rates: dict[str, float] = {}
        self._best: Way | None = None

    @property
    def chosen(self) -> str:
        """The way in use, in words."""
        return "not timed yet" if self._best is None else self._best.name

    @property
    def rate(self) -> float:
        """Members per second of the way in use."""
        return self.rates.get(self._best.name, 0.0) if self._best else 0.0

    @property
    def settled(self) -> bool:
        """Whether all ways worth trying have been timed."""
        return not self._untried

    def map(self, stack: Network, inputs: Any, paired: bool, advance: Callable[[int], None] | None = None) -> Tensor:
        """Gradients ``(m, n, D)`` of every member of a stack."""
        members = stack.members or 0
        parts: list[Tensor] = []
        start = 0
        while start < members:
            way = self._untried[0] if self._untried else self._best
            assert way is not None
            stop = min(members, start + way.members)
            if self._untried and self._best is not None and stop - start < way.members:
                way = self._best  # too few members are left to time a larger stack fairly
                stop = min(members, start + way.members)
            some = tree_map(lambda leaf: leaf[start:stop], inputs) if paired else inputs  # noqa: B023
            try:
                part = self._timed(way, stack.slice(start, stop), some)
            except torch.OutOfMemoryError:
                self._shrink(way)
                continue
            parts.append(part)
            if advance is not None:
                advance(stop - start)
            start = stop
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _timed(self, way: Way, stack: Network, inputs: Any) -> Tensor:
        if way not in self._untried:
            return way.gradients(stack, inputs)
        self._wait()
        begin = time.perf_counter()
        result = way.gradients(stack, inputs)
        self._wait()
        rate = (stack.members or 1) / (time.perf_counter() - begin)
        if way.name not in self.rates:
            self.rates[way.name] = rate  # the first call warms caches up; only the second is compared
            if self._best is None:
                self._best = way
            return result
        self.rates[way.name] = rate
        assert self._best is not None
        best = self.rates[self._best.name]
        self._untried.remove(way)
        if rate > best:
            self._best = way
        elif rate < _GIVE_UP * best and way.members > 1:
            self._untried.clear()
        return result

    def _shrink(self, way: Way) -> None:
        """Drop a way that does not fit, and all larger ones; halve it if it is the only one."""
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        self._untried = [other for other in self._untried if other.members < way.members]
        if self._best is not None and self._best.members < way.members:
            return
        if way.members == 1:
            raise ValueError(
                "One network must fit into the device's memory, and it does not. Pass a smaller input or device='cpu'."
            )
        half = way.members // 2
        self._best = Way(f"{way.name}, cut to {half} for memory", half, way.gradients)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def ways_by_size(name: str, gradients: Callable[[Network, Any], Tensor], most: int) -> list[Way]:
    """The same stacked function at growing stack sizes."""
    sizes = [size for size in (4, 16, 64, 256, 1024, 4096) if size <= most]
    return [Way(f"{name} of {size}", size, gradients) for size in sizes]
