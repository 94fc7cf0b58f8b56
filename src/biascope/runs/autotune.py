"""Choosing by measurement: several methods do the same work, each is timed, and the times are remembered."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

import torch

from biascope.runs.memory import give_back, is_out_of_memory

Way = TypeVar("Way", bound=Hashable)
Found = TypeVar("Found")


class Timings(Generic[Way]):
    """How long each method takes for one unit of the same work.

    Args:
        device: To wait for before reading the clock.

    Attributes:
        seconds: Of one unit of work, for every way that was tried; infinite for one that cannot do it.
        calls: How often each way was timed.

    Example:
        >>> timings = Timings[str](torch.device("cpu"))
        >>> timings.attempted("plain", lambda: timings.timed("plain", lambda: sum(range(1000)), units=1000), required=True)
        499500
        >>> timings.attempted("broken", lambda: 1 // 0, required=False)
        >>> timings.fastest(["plain", "broken"]), timings.seconds["broken"]
        ('plain', inf)
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds: dict[Way, float] = {}
        self.calls: dict[Way, int] = {}

    def timed(self, way: Way, work: Callable[[], Found], units: int) -> Found:
        """What a way finds for so many units of work, which are timed.

        From the second call on, the first no longer counts, since it filled caches; of later ones the fastest does, since a
        call can be disturbed.
        """
        self._wait()
        begin = time.perf_counter()
        found = work()
        self._wait()
        spent = (time.perf_counter() - begin) / units
        calls = self.calls[way] = self.calls.get(way, 0) + 1
        self.seconds[way] = spent if calls <= 2 else min(spent, self.seconds[way])
        return found

    def attempted(self, way: Way, work: Callable[[], Found], *, required: bool) -> Found | None:
        """What a way finds, or None where it cannot do this work.

        Args:
            way: In question.
            work: What it does.
            required: Whether only a lack of memory is no error: where no other way is left.
        """
        try:
            return work()
        except Exception as error:  # a compiler or vmap that cannot handle a network says so in many ways
            if required and not is_out_of_memory(error):
                raise
        give_back()
        self.seconds.setdefault(way, math.inf)
        return None

    def fastest(self, ways: Iterable[Way]) -> Way:
        """The fastest of some ways that were tried; of equal ones the first."""
        return min(ways, key=self.seconds.__getitem__)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
