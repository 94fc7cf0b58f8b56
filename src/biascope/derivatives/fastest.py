"""HOW: choose by measurement. Several ways give the same gradients; the first members are spent on timing them."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from biascope.families.family import Network

_CALLS, _QUICK = 4, 0.3  # a way is timed up to so many times while a call takes less than so many seconds …
_MANY = 256  # … and fewer than so many members
_GROWTH = 8  # a winning stack is tried again this many times larger, as long as that pays


@dataclass(frozen=True)
class Way:
    """One way to compute gradients of a stack.

    Attributes:
        name: In words, for settings and ``--dry-run``.
        members: How many members one call takes.
        gradients: ``(stack, inputs) -> (m, n, D)``.
        most: The largest number of members worth trying; one at a time by default.
    """

    name: str
    members: int
    gradients: Callable[[Network, Any], Tensor]
    most: int = 1

    def __str__(self) -> str:
        return self.name if self.most == 1 else f"{self.name} of {self.members}"

    def resized(self, members: int) -> Way:
        """The same way for another number of members."""
        return dataclasses.replace(self, members=members)


class Fastest:
    """Maps a stack of any size through the fastest of several ways, found on the first members it is given.

    The ways are tried in turn, each once to warm up and then timed (short calls several times, of which the fastest
    counts), then the winner at growing stack sizes; all that is computed meanwhile is used. A way that runs out of
    memory, or cannot run this network at all while another can (one that does not batch over weights), is dropped; if
    the chosen one runs out of memory later, it is halved.

    Args:
        ways: Candidates, at the smallest size that tells their speed.
        device: To wait for before reading the clock.
    """

    def __init__(self, ways: Sequence[Way], device: torch.device) -> None:
        self._untried = list(ways)
        self._device = device
        self.rates: dict[str, float] = {}
        self._calls: dict[str, int] = {}
        self._timed_ways: dict[str, Way] = {}
        self._best: Way | None = None

    @property
    def chosen(self) -> str:
        """The way in use, in words."""
        return "not timed yet" if self._best is None else str(self._best)

    @property
    def rate(self) -> float:
        """Members per second of the way in use."""
        return self.rates.get(str(self._best), 0.0) if self._best else 0.0

    @property
    def settled(self) -> bool:
        """Whether all ways worth trying have been timed."""
        return not self._untried

    @property
    def wanted(self) -> int:
        """Members that the next way to be timed asks for."""
        return self._untried[0].members if self._untried else 1

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
            except (RuntimeError, ValueError, TypeError):
                if self._best is None or self._best == way:
                    raise
                self._untried.remove(way)
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
        if self._best is None:
            self._best, self.rates[str(way)] = way, rate
        calls = self._calls[str(way)] = self._calls.get(str(way), 0) + 1
        if calls == 1:
            return result  # it filled caches; only later calls are compared
        self.rates[str(way)] = rate = max(rate, self.rates.get(str(way), 0.0) if calls > 2 else 0.0)
        if calls < _CALLS and way.members < _MANY and (stack.members or 1) / rate < _QUICK:
            return result  # a short call can be disturbed: the best of several counts
        self._untried.remove(way)
        self._timed_ways[str(way)] = way
        if rate >= self.rates[str(self._best)]:
            self._best = way
        if not self._untried and self._best == way and way.members < way.most:
            self._untried.append(way.resized(min(way.most, _GROWTH * way.members)))
        elif not self._untried and self._best.members < self._best.most and self._best != way:
            larger = self._best.resized(min(self._best.most, _GROWTH * self._best.members))
            self._untried += [larger] if str(larger) not in self.rates else []
        return result

    def _shrink(self, way: Way) -> None:
        """Drop a way that does not fit, or halve it if it is the one in use."""
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        if way in self._untried:
            self._untried.remove(way)
        if self._best is not None and self._best != way:
            return
        self._timed_ways.pop(str(way), None)
        others = [other for other in self._timed_ways.values() if other.members <= way.members]
        if way.members == 1 and others:
            self._best = max(others, key=lambda other: self.rates[str(other)])  # fewer inputs a pass may still fit
            return
        if way.members == 1:
            raise ValueError(
                "One network must fit into the device's memory, and it does not. Pass a smaller input or device='cpu'."
            )
        smaller = dataclasses.replace(way, members=way.members // 2, most=way.members // 2 if way.members > 3 else 2)
        if self._best is None:
            self._untried.insert(0, smaller)  # nothing has run yet: it is the first to be timed
            return
        self.rates.setdefault(str(smaller), self.rates[str(way)])
        self._best = smaller

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
