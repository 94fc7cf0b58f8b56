"""A command or a script in a process of its own that sends itself a signal, as ``kill`` would, in the middle of a write.

Processes are forked from one that has imported the package, so that a start costs a fraction of a second.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path

import pytest

_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["preloaded"])


def _start_forking() -> None:
    """Start the process that others are forked from; what it imports it looks for where this process does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()


@dataclass(frozen=True)
class Started:
    """What became of a command.

    Attributes:
        status: Exit status, negative for a signal.
        told: Standard output and standard error.
        writes: Files that were written whole, in order, relative to the working folder.
    """

    status: int | None
    told: str
    writes: list[str]


def started(
    words: list[str], folder: Path, *, kill_at: int | str | None = None, by: signal.Signals = signal.SIGKILL
) -> Started:
    """A command that was started in a folder, and waited for.

    Args:
        words: The command line.
        folder: The working folder.
        kill_at: The write to die in, once the file is there under its temporary name: its number, from 1 on, or the file's name.
        by: The signal it gets then.
    """
    told, log = folder / "told.txt", folder / "writes.jsonl"
    for path in (told, log):
        path.unlink(missing_ok=True)
    _start_forking()
    process = _FORKING.Process(target=_command, args=(words, folder, kill_at, by))
    process.start()
    process.join(120)
    assert process.exitcode is not None, f"{words} does not end"
    writes = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return Started(process.exitcode, told.read_text(), writes)


class Script:
    """Python code that runs in a process of its own, with arguments as a script has them."""

    def __init__(self, code: str, *arguments: str) -> None:
        _start_forking()
        self._process = _FORKING.Process(target=_script, args=(code, arguments))
        self._process.start()

    def status(self) -> int | None:
        """The exit status once it has ended, negative for a signal; ``None`` if it does not end."""
        self._process.join(60)
        return self._process.exitcode


def _script(code: str, arguments: tuple[str, ...]) -> None:
    sys.argv = ["-c", *arguments]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


def _command(words: list[str], folder: Path, kill_at: int | str | None, by: signal.Signals) -> None:
    os.chdir(folder)
    output = os.open("told.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    import torch

    torch.set_num_threads(1)
    from biascope import cli
    from biascope.results import embedding
    from biascope.training import pause

    embedding.pictures_of = lambda *args, **kwargs: ()  # type: ignore[assignment]  # they take seconds
    pause.SECONDS = 0.0  # a state of every iteration
    _count_writes(Path("writes.jsonl"), kill_at, by)
    sys.argv = ["biascope", *words]
    cli.main()


def _count_writes(log: Path, kill_at: int | str | None, by: signal.Signals) -> None:
    """Log what gets its name, and die just before the file does at which to die."""
    here, count = Path.cwd(), 0

    def counted(place: str) -> None:
        whole = getattr(os, place)

        def named(source: Path, target: Path) -> None:
            nonlocal count
            count += 1
            if kill_at in (count, Path(target).name):
                os.kill(os.getpid(), by)
            whole(source, target)
            with log.open("a") as file:
                file.write(json.dumps(os.path.relpath(target, here)) + "\n")

        setattr(os, place, named)

    for place in ("replace", "link"):
        counted(place)
