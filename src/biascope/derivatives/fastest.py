"""The fastest of several methods that give the same gradients, found by timing them on the first members."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from biascope.families.network import Network
from biascope.runs.autotune import Timings

_CALLS, _QUICK = 4, 0.3  # a way is timed up to so many times while a call takes less than so many seconds …
_MANY = 256  # … and fewer than so many members
_GROWTH = 8  # a winning stack is tried again this many times larger, as long as that pays


@dataclass(frozen=True)
class Way:
    """One method to compute the gradients of a stack.

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
        """The same method for another number of members."""
        return dataclasses.replace(self, members=members)


class Fastest:
    """Computes gradients of stacks by the fastest of several methods, found on the first members.

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
        self._timings = Timings[str](device)  # by names: a way may be made anew at the same size
        self._timed_ways: dict[str, Way] = {}
        self._best: Way | None = None

    @property
    def chosen(self) -> str:
        """The method in use, in words."""
        return "not timed yet" if self._best is None else str(self._best)

    @property
    def rate(self) -> float:
        """Members per second of the method in use."""
        return 1 / self._timings.seconds[str(self._best)] if self._best else 0.0

    @property
    def settled(self) -> bool:
        """Whether all methods worth trying have been timed."""
        return not self._untried

    @property
    def wanted(self) -> int:
        """Number of members that the next method to be timed needs."""
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
            work = functools.partial(self._gradients, way, stack.slice(start, stop), some)
            part = self._timings.attempted(str(way), work, required=self._best is None or self._best == way)
            if part is None:
                self._give_up(way)
                continue
            parts.append(part)
            if advance is not None:
                advance(stop - start)
            start = stop
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _gradients(self, way: Way, stack: Network, inputs: Any) -> Tensor:
        """Gradients by a way, timed as long as it is on trial."""
        if way not in self._untried:
            return way.gradients(stack, inputs)
        members = stack.members or 1
        result = self._timings.timed(str(way), lambda: way.gradients(stack, inputs), members)
        if self._best is None:
            self._best = way
        calls, seconds = self._timings.calls[str(way)], members * self._timings.seconds[str(way)]
        short = calls < _CALLS and way.members < _MANY and seconds < _QUICK
        if calls > 1 and not short:  # a short call can be disturbed: the best of several counts
            self._conclude(way)
        return result

    def _conclude(self, way: Way) -> None:
        """Compare a way that has been timed with the best, and decide what else is worth timing."""
        self._untried.remove(way)
        self._timed_ways[str(way)] = way
        assert self._best is not None
        if self._timings.fastest([str(way), str(self._best)]) == str(way):
            self._best = way
        if not self._untried and self._best.members < self._best.most:
            larger = self._best.resized(min(self._best.most, _GROWTH * self._best.members))
            self._untried += [larger] if str(larger) not in self._timings.seconds else []

    def _give_up(self, way: Way) -> None:
        """Drop a way that does not fit or cannot run this network, or halve it if it is the one in use."""
        if way in self._untried:
            self._untried.remove(way)
        if self._best is not None and self._best != way:
            return
        self._timed_ways.pop(str(way), None)
        others = [name for name, other in self._timed_ways.items() if other.members <= way.members]
        if way.members == 1 and others:
            self._best = self._timed_ways[self._timings.fastest(others)]  # fewer inputs a pass may still fit
            return
        if way.members == 1:
            raise ValueError(
                "One network must fit into the device's memory, but it does not. Pass a smaller input or device='cpu'."
            )
        smaller = dataclasses.replace(way, members=way.members // 2, most=way.members // 2 if way.members > 3 else 2)
        if self._best is None:
            self._untried.insert(0, smaller)  # nothing has run yet: it is the first to be timed
            return
        seconds = self._timings.seconds
        if math.isinf(seconds.get(str(smaller), math.inf)):
            seconds[str(smaller)] = seconds[str(way)]  # about as fast, until it is known better
        self._best = smaller
