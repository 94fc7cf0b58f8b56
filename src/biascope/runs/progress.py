"""Progress on standard error: what is being done, and the time left. A bar on a terminal, elsewhere a line every half minute.

Work opens stages, also inside one another. One line shows the outermost stage with a known number of pieces, and the innermost one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TextIO

LINE_EVERY = 30.0  # seconds between two lines where there is no terminal
APPEARS_AFTER = 0.5  # seconds before a bar appears: a bar that vanishes at once only flickers
_FRAME = 0.15  # seconds between two frames on a terminal
_BAR = 24  # characters
_MANY = 10**6  # pieces
_ERASE = "\r\x1b[2K"


@dataclass(eq=False)
class Stage:
    """A part of the work.

    Attributes:
        label: What is done.
        total: Its number of pieces; ``None`` where it is not known.
        first: Pieces that were done before.
        done: Pieces that are done, those before included.
        at_hand: Pieces that are worked on together.
    """

    label: str
    total: int | None = None
    first: int = 0
    done: int = field(init=False)
    at_hand: int = field(init=False, default=1)

    def __post_init__(self) -> None:
        self.done = self.first
        self.begin = time.monotonic()
        self._reached = 0.0

    def advance(self, count: int) -> None:
        """Count pieces that are done."""
        self.done += count

    def count(self, between: str = " of ") -> str:
        """How much of it is done, in words; of operations in percent, since nobody counts millions of them.

        Example:
            >>> Stage("draws", 400, 100).count(), Stage("products", 10**9, 25 * 10**7).count()
            ('100 of 400', '25 %')
        """
        total = self.total or 0
        return f"{100 * self.done // total} %" if total >= _MANY else f"{self.done:,}{between}{total:,}"

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.begin

    def share(self, inner: list[Stage]) -> float | None:
        """The share that is done of what had to be done, with the share of the pieces at hand that the stages within it know."""
        if self.total is None:
            return inner[0].share(inner[1:]) if inner else None
        within = inner[0].share(inner[1:]) if inner else None
        pieces = self.done - self.first + (within or 0.0) * min(self.at_hand, max(self.total - self.done, 0))
        # What a stage within it did counts until its piece is done, also after that stage has ended.
        self._reached = max(self._reached, pieces / max(self.total - self.first, 1))
        return self._reached

    def seconds_left(self, inner: list[Stage]) -> float | None:
        """Expected seconds until its end, at the pace so far; ``None`` where the pace is not known yet."""
        share = self.share(inner)
        return self.elapsed * max(1 / share - 1, 0.0) if share else None


class _Display:
    """Shows the open stages: a thread draws them, so that work which takes long for one piece is shown too."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._told = 0.0
        self._drawn = False
        self._guards: list[_Guard] = []

    def open(self, stage: Stage) -> None:
        with self._lock:
            if not self.stages:
                self._told = time.monotonic()
                self._guard()
            self.stages.append(stage)
            if self._thread is None:
                self._wake = threading.Event()
                self._thread = threading.Thread(target=self._go, args=(self._wake,), daemon=True)
                self._thread.start()

    def close(self, stage: Stage) -> None:
        with self._lock:
            if stage in self.stages:
                self.stages.remove(stage)
            if not self.stages:
                self.hide()
                self._wake.set()
                self._thread = None
                for guard in self._guards:
                    guard.remove()
                self._guards = []

    def hide(self) -> None:
        """Take the bar off the terminal, before something else is printed there."""
        with self._lock:
            if self._drawn:
                self._drawn = False
                _write(_ERASE)

    def tell_if_due(self) -> None:
        """Print a line where there is no terminal and half a minute has passed since the last one."""
        if time.monotonic() - self._told < LINE_EVERY:  # asked at every step of a training
            return
        with self._lock:
            if not self.stages or on_terminal():
                return
            if (words := self._words()) is not None:
                self._told = time.monotonic()
                _write(f"biascope: {words}\n")

    def draw(self) -> None:
        """Draw the bar, where there is a terminal."""
        with self._lock:
            late = self.stages and self.stages[0].elapsed >= APPEARS_AFTER
            if not late or not on_terminal() or any(guard.within_line for guard in self._guards):
                return
            columns = _columns() - 1
            words = self._words(bar=_BAR)
            if words is not None and len(words) > columns:  # the numbers matter more than the bar
                words = self._words(bar=max(_BAR - (len(words) - columns), 1))
            if words is not None:
                self._drawn = True
                _write(f"{_ERASE}{words[:columns]}")

    def _go(self, wake: threading.Event) -> None:
        while not wake.wait(_FRAME):
            self.draw()
            self.tell_if_due()

    def _words(self, bar: int = 0) -> str | None:
        """The stages in words, with a bar of so many characters."""
        counted = next((place for place, each in enumerate(self.stages) if each.total is not None), None)
        last = self.stages[-1]
        if counted is None:
            return f"{last.label}, {in_words(self.stages[0].elapsed)} so far"
        stage, inner = self.stages[counted], self.stages[counted + 1 :]
        if stage.done >= (stage.total or 0) and not inner and not bar:
            return None  # its last line would say that nothing is left
        left = stage.seconds_left(inner)
        words = f"{stage.label}: {stage.count()}"
        if bar:
            filled = round(bar * min(stage.share(inner) or 0.0, 1.0))
            words = f"{stage.label} {'━' * filled}{'─' * (bar - filled)} {stage.count('/')}"
        words += f", about {in_words(left)} left" if left is not None else f", {in_words(stage.elapsed)} so far"
        if last is stage:
            return words
        return f"{words}; {last.label}" + ("" if last.total is None else f": {last.count()}")

    def _guard(self) -> None:
        """Watch what is printed on the terminal, so that it does not run into the bar."""
        if on_terminal():
            self._guards = [_Guard(name, self) for name in ("stdout", "stderr") if _draws(getattr(sys, name))]


class _Guard:
    """A stream of the terminal: takes the bar away before anything is printed."""

    def __init__(self, name: str, display: _Display) -> None:
        self._name, self._stream, self._display = name, getattr(sys, name), display
        self.within_line = False
        setattr(sys, name, self)

    def write(self, text: str) -> int:
        self._display.hide()
        if text:
            self.within_line = not text.endswith("\n")
        return int(self._stream.write(text))

    def remove(self) -> None:
        if getattr(sys, self._name) is self:
            setattr(sys, self._name, self._stream)

    @property
    def plain(self) -> TextIO:
        """The stream itself."""
        stream: TextIO = self._stream
        return stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_DISPLAY = _Display()
_SHOWN: ContextVar[bool] = ContextVar("progress is shown", default=False)


def on_terminal() -> bool:
    """Whether standard error is a terminal that can draw a bar."""
    return _draws(sys.stderr) and os.environ.get("TERM") != "dumb"


def _draws(stream: Any) -> bool:
    """Whether a stream is a terminal: a program without a console has none at all, another one may have put an object there."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # ValueError: it is closed
        return False


def _write(text: str) -> None:
    stream = sys.stderr.plain if isinstance(sys.stderr, _Guard) else sys.stderr
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no terminal, or a closed one, is no reason to stop
        stream.write(text)
        stream.flush()


def _columns() -> int:
    try:
        return int(os.environ.get("COLUMNS", "0")) or os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError, AttributeError):
        return 80


@contextlib.contextmanager
def shown_stage(stage: Stage) -> Iterator[Stage]:
    """Show a stage while the block runs."""
    _DISPLAY.open(stage)
    try:
        yield stage
    finally:
        _DISPLAY.close(stage)


def tell_if_due() -> None:
    """Print a line where there is no terminal and half a minute has passed since the last one."""
    _DISPLAY.tell_if_due()


@contextlib.contextmanager
def shown(label: str) -> Iterator[None]:
    """Show all stages of the work within the block, those without a :class:`biascope.runs.run.Run` included."""
    before = _SHOWN.set(True)
    try:
        with shown_stage(Stage(label)):
            yield
    finally:
        _SHOWN.reset(before)


@contextlib.contextmanager
def phase(label: str) -> Iterator[None]:
    """Work whose pieces nobody counts: its name is shown with the time so far, where progress is shown.

    Example:
        >>> with phase("reading"):
        ...     pass
    """
    if not _SHOWN.get():
        yield
        return
    with shown_stage(Stage(label)):
        yield


def is_shown() -> bool:
    """Whether the command at hand shows its progress."""
    return _SHOWN.get()


def at_hand(count: int) -> None:
    """How many pieces of the innermost stage are worked on together."""
    if _DISPLAY.stages:
        _DISPLAY.stages[-1].at_hand = count


def in_words(seconds: float) -> str:
    """A time in the unit that suits it.

    Example:
        >>> in_words(12.3), in_words(600), in_words(2e5)
        ('12 s', '10 min', '2 days')
    """
    for unit, length in (("years", 365 * 86400), ("days", 86400), ("hours", 3600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.0f} s"
