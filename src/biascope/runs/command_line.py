"""The command line that runs the work at hand. Results record it; it is never part of an identity."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_CURRENT: ContextVar[str] = ContextVar("command line", default="")


def command_line() -> str:
    """The command line, quoted for a shell; empty where work is called from Python."""
    return _CURRENT.get()


@contextlib.contextmanager
def run_as(words: str) -> Iterator[None]:
    """Work that a command line runs.

    Example:
        >>> with run_as("biascope scan lenet"):
        ...     command_line()
        'biascope scan lenet'
        >>> command_line()
        ''
    """
    before = _CURRENT.set(words)
    try:
        yield
    finally:
        _CURRENT.reset(before)
