"""Rehearsal: the first seconds of some work, to predict how long all of it would take.

Work that knows how many pieces it has counts them (:func:`counted`, which :meth:`biascope.runs.run.Run.tracked` does too). Outside a
rehearsal this only shows progress. In one, the pace of the pieces is measured, and the work is stopped as soon as the pace is known.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from biascope.runs import progress
from biascope.runs.memory import LIBRARIES, most_used

# A dry run answers within ten seconds, of which Python needs two to begin.
BUDGET = 5.0  # seconds after which a rehearsal is stopped if the pace is known, or when it becomes known
LIMIT = 6.5  # seconds after which it is stopped in any case
_NEAR = 2 / 3  # of that limit: a stage that ends before is waited for
_GRACE = 0.5  # seconds to heed that
_SPIN = 0.2  # seconds in which the share of a core is measured


class Stopped(BaseException):
    """Stops a rehearsal that knows enough. It is not an Exception, so that no error handler catches it."""


@dataclass(frozen=True)
class StageTime:
    """How long a part of the work takes.

    Attributes:
        name: Of what it does.
        pieces: How many there are, without those that were done before.
        done: How many were done in the rehearsal.
        spent: Seconds that it was rehearsed.
        seconds: All pieces would take; ``None`` where none of them ended.
    """

    name: str
    pieces: int
    done: int
    spent: float
    seconds: float | None


@dataclass(frozen=True)
class Expectation:
    """How long some work takes, and how much memory.

    Attributes:
        seconds: All of it, or as much of it as is known.
        stages: In order; of stages within others, the outermost.
        whole: Whether nothing may follow that is not counted.
        memory: Bytes of main memory that the process takes at its peak, as far as is known.
    """

    seconds: float
    stages: tuple[StageTime, ...]
    whole: bool
    memory: int


class Rehearsal:
    """A context in which work is stopped when its pace is known.

    Args:
        folder: Where the work may write, in place of where it would.
        budget: Seconds after which it is stopped, if the pace is known by then.
        limit: Seconds after which it is stopped in any case.
        too_long: Called from another thread where the work can be stopped in no other way, with what is known.

    Example:
        >>> with Rehearsal(budget=0.05, limit=1) as rehearsal:
        ...     with counted("sleeping", 1000) as advance:
        ...         for _ in range(1000):
        ...             time.sleep(0.01)
        ...             advance(1)
        >>> rehearsal.expectation.whole, 5 < rehearsal.expectation.seconds < 50
        (False, True)
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        budget: float | None = None,
        limit: float | None = None,
        too_long: Callable[[Expectation], None] = lambda expectation: None,
    ) -> None:
        self.folder = folder
        self._budget = BUDGET if budget is None else budget
        self._limit = LIMIT if limit is None else limit
        self._too_long = too_long
        self._open: list[_RehearsedStage] = []
        self._ended: list[StageTime] = []
        self._known: Expectation | None = None
        self.memory = 0  # bytes that work has said it takes
        self._over = threading.Event()
        self._lock = threading.Lock()

    @property
    def expectation(self) -> Expectation:
        """What is known when it is over."""
        assert self._known is not None, "the expectation of a rehearsal is known only after its end"
        return self._known

    def __enter__(self) -> Self:
        self._begin = time.monotonic()
        self._before = _CURRENT.set(self)
        # A script's background job ignores interrupts, and the one that ends the rehearsal would not come.
        main = threading.current_thread() is threading.main_thread()
        self._ignored = main and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        if self._ignored:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        _CURRENT.reset(self._before)
        self._over.set()
        if self._ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        with self._lock:
            stopped = self._known is not None
            if not stopped:
                self._known = self._of(time.monotonic() - self._begin, self._ended, whole=True)
        return stopped  # whatever the work made of being stopped

    @contextlib.contextmanager
    def counting(self, name: str, total: int, done: int) -> Iterator[Callable[[int], None]]:
        """A stage within those that are open: yields ``advance(count)``."""
        stage = _RehearsedStage(self, name, total, done)
        self._open.append(stage)
        try:
            yield stage.advance
        finally:
            if stage in self._open:
                self._open.remove(stage)
            if not self._open and self._known is None:
                self._ended.append(stage.time(stage.elapsed))

    def at_hand(self, count: int) -> None:
        """How many pieces of the innermost stage are begun together."""
        if self._open:
            self._open[-1].at_hand = count

    def stop_if_known(self, stage: _RehearsedStage) -> None:
        """Stop the work if it has gone on for long enough.

        Raises:
            Stopped: If so.
        """
        if self._known is None and not self._pace_is_known(stage):
            return
        self._stop()
        raise Stopped

    def _pace_is_known(self, innermost: _RehearsedStage) -> bool:
        now = time.monotonic()
        spent, whole = now - self._begin, self._open[0].expected(self._open[1:]) if self._open else None
        if spent < self._budget or whole is None:
            return False
        if self._open[0].begin + whole - self._begin < _NEAR * self._limit:
            return False  # the end of this stage is near, and another may be the longer one
        # The pieces within a piece may differ from one another: a whole piece is worth waiting for.
        within_the_first = len(self._open) > 1 and not any(each.advanced for each in self._open[:-1])
        return spent >= 2 * self._budget or not (within_the_first or now - innermost.begin < self._budget / 5)

    def _stop(self) -> bool:
        """Write down what is known; false if the rehearsal is over."""
        with self._lock:
            if self._known is not None or self._over.is_set():
                return False
            now = time.monotonic()
            stages, seconds = list(self._ended), now - self._begin
            if self._open:
                outermost = self._open[0]
                expected = outermost.expected(self._open[1:])
                stages.append(outermost.time(expected))
                seconds = max(seconds, outermost.begin - self._begin + (expected or 0.0))
            self._known = self._of(seconds, stages, whole=False)
            return True

    def _of(self, seconds: float, stages: list[StageTime], whole: bool) -> Expectation:
        return Expectation(seconds, tuple(stages), whole, max(self.memory, most_used(), LIBRARIES))

    def _watch(self) -> None:
        """End what does not count its pieces, or whose first piece takes too long."""
        if not self._over.wait(self._limit) and self._stop():
            _thread.interrupt_main()
        # One long operation of a library does not see the interrupt.
        if self._known is not None and not self._over.wait(_GRACE):
            self._too_long(self._known)


class _RehearsedStage(progress.Stage):
    """A stage that remembers when its pieces were done, and stops the work when that is known well enough."""

    def __init__(self, rehearsal: Rehearsal, label: str, total: int, first: int) -> None:
        super().__init__(label, total, first)
        self._rehearsal, self._pieces = rehearsal, total
        self._marks = [(self.begin, first)]

    def advance(self, count: int) -> None:
        """Count pieces that are done."""
        super().advance(count)
        self._marks.append((time.monotonic(), self.done))
        self._rehearsal.stop_if_known(self)

    @property
    def advanced(self) -> bool:
        """Whether any piece has ended."""
        return self.done > self.first

    def expected(self, inner: list[_RehearsedStage]) -> float | None:
        """Seconds of all pieces, where one has ended or the stages within it know how long it takes."""
        last, done = self._marks[-1]
        left = max(self._pieces - done, 0)
        if self.advanced:
            # The first pieces may have tried several ways, so that the pace is that of the second half.
            half = (self.begin + last) / 2
            since, before = next(mark for mark in reversed(self._marks) if mark[0] <= half and mark[1] < done)
            return last - self.begin + left * (last - since) / (done - before)
        within = inner[0].expected(inner[1:]) if inner else None
        if within is None:
            return None
        return last - self.begin + (inner[0].begin - last + within) * max(left / self.at_hand, 1)

    def time(self, expected: float | None) -> StageTime:
        """As it stands, with the seconds that all of it takes."""
        return StageTime(self.label, self._pieces - self.first, self.done - self.first, self.elapsed, expected)


_CURRENT: ContextVar[Rehearsal | None] = ContextVar("rehearsal", default=None)


def rehearsing() -> bool:
    """Whether the work at hand is only rehearsed."""
    return _CURRENT.get() is not None


def placed(path: Path) -> Path:
    """Where to write what belongs there: elsewhere in a rehearsal."""
    rehearsal = _CURRENT.get()
    if rehearsal is None or rehearsal.folder is None:
        return path
    whole = path.absolute()
    if whole.is_relative_to(rehearsal.folder):
        return path
    elsewhere = rehearsal.folder / whole.relative_to(whole.anchor)  # no two paths become one
    elsewhere.parent.mkdir(parents=True, exist_ok=True)
    return elsewhere


@contextlib.contextmanager
def counted(
    name: str,
    total: int,
    done: int = 0,
    *,
    shown: bool | None = None,
    watched: Callable[[progress.Stage], None] = lambda stage: None,
) -> Iterator[Callable[[int], None]]:
    """Work in pieces: yields ``advance(count)``, to be called when pieces are done. A rehearsal measures them, a command shows them.

    Args:
        name: What is done.
        total: Pieces in all.
        done: Those that need not be done again.
        shown: Whether to show them; by default, where a command shows its progress.
        watched: Called when pieces are done, and may refuse the rest; not in a rehearsal.
    """
    if (rehearsal := _CURRENT.get()) is not None:
        with rehearsal.counting(name, total, done) as advance:
            yield advance
        return
    stage = progress.Stage(name, total, done)
    visible = progress.is_shown() if shown is None else shown

    def advance_and_tell(count: int) -> None:
        stage.advance(count)
        watched(stage)
        if visible:
            progress.tell_if_due()

    with progress.shown_stage(stage) if visible else contextlib.nullcontext():
        yield advance_and_tell


def at_hand(count: int) -> None:
    """How many pieces are begun together now; one, unless this is called."""
    rehearsal = _CURRENT.get()
    if rehearsal is not None:
        rehearsal.at_hand(count)
    else:
        progress.at_hand(count)


def expect_memory(size: int) -> None:
    """How many bytes of main memory the process will take with the work at hand."""
    rehearsal = _CURRENT.get()
    if rehearsal is not None:
        rehearsal.memory = max(rehearsal.memory, size)


def slowdown() -> float:
    """How many times longer work takes now than on an idle machine: the wall time of a busy loop over its own CPU time.

    It is 1 where the loop has a core to itself, and about 2 where it shares one with another program.

    Example:
        >>> slowdown() >= 1.0
        True
    """
    begin, own = time.perf_counter(), time.thread_time()
    while (wall := time.perf_counter() - begin) < _SPIN:
        pass
    return max(1.0, wall / max(time.thread_time() - own, 1e-3))
