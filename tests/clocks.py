"""Clocks for tests of what is chosen by time."""

from __future__ import annotations


class Clock:
    """A clock that only the work moves forward, in place of the module ``time``."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def work(self, seconds: float) -> str:
        self.now += seconds
        return "done"
