"""``--dry-run``: rehearse a command in a temporary folder and print the time and the memory that it would take."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from biascope.cli.options import Lasting
from biascope.cli.printing import as_document
from biascope.runs.byte_size import in_words

if TYPE_CHECKING:
    from biascope.runs.rehearsal import Expectation, StageTime
    from biascope.runs.run import Run


def rehearsed(beside: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with a group of :class:`Lasting` options that is rehearsed where ``--dry-run`` is given.

    Where it would write, it finds an empty folder instead, in ``out`` of the group and by
    :func:`biascope.runs.rehearsal.placed`. That folder is removed, and what the command prints is not shown.

    Args:
        beside: The parameter that names a large file to write: the rehearsal writes to the same disk.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(**given: Any) -> None:
            name, group = next((name, each) for name, each in given.items() if isinstance(each, Lasting))
            if not group.dry_run:
                command(**given)
                return
            check_place(group, given.get("on"))
            rehearse(command, given, name, lambda known: print_expectation(known, group), given.get(beside))

        return called

    return decorated


def check_place(group: Lasting, on: str | None = None) -> None:
    """Refuse a folder that the command would refuse, which a dry run keeps from it, and a cluster."""
    from biascope.results.registry import require_own
    from biascope.runs.files import make_writable, remove_empty_folders

    if on is not None:
        raise ValueError(f"--dry-run works only on this machine, got --on {on}. Leave one of them out.")
    if (out := getattr(group, "out", None)) is not None:
        require_own(out)
        make_writable(out)
        remove_empty_folders()


def rehearse(
    command: Callable[..., None],
    given: dict[str, Any],
    name: str,
    answer: Callable[[Expectation], None],
    near: Path | None = None,
) -> None:
    """Tell how long a command would take, and how much memory.

    Args:
        command: The command.
        given: Its parameters.
        name: Of the one that is a group of :class:`Lasting` options.
        answer: Prints what is known.
        near: A file on the disk to write to; a temporary folder by default.
    """
    group = given[name]

    def work(folder: Path) -> None:
        own = {"quiet": True, "dry_run": False} | ({"out": folder / "run"} if hasattr(group, "out") else {})
        with contextlib.suppress(typer.Exit):  # the status of a gate is not that of its rehearsal
            command(**{**given, name: dataclasses.replace(group, **own)})

    in_time(work, answer, near=near)


def in_time(
    work: Callable[[Path], None],
    answer: Callable[[Expectation], None],
    *,
    budget: float | None = None,
    near: Path | None = None,
) -> None:
    """Rehearse some work, and answer in time with what is known of it; what the work prints is not shown.

    Args:
        work: Takes an empty folder, where it may write, and which is removed.
        answer: Prints what is known.
        budget: As :class:`biascope.runs.rehearsal.Rehearsal` has it.
        near: A file on the disk to write to; a temporary folder by default.
    """
    from biascope.runs.files import remove_empty_folders
    from biascope.runs.rehearsal import Rehearsal

    shown = sys.stdout
    disk = None if near is None else next(each for each in near.absolute().parents if each.is_dir())
    folder = Path(tempfile.mkdtemp(prefix=".biascope-dry-run-", dir=disk))

    def remove() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        remove_empty_folders()

    def give_up(known: Expectation) -> None:
        """The last resort, in another thread: a process whose one operation goes on cannot be stopped otherwise."""
        sys.stdout = shown
        answer(known)
        shown.flush()
        remove()
        os._exit(0)

    try:
        with (
            Rehearsal(folder, budget=budget, too_long=give_up) as rehearsal,
            contextlib.redirect_stdout(io.StringIO()),
        ):
            work(folder)
    finally:
        remove()
    answer(rehearsal.expectation)


def print_expectation(known: Expectation, group: Lasting, **more: Any) -> None:
    """How long a command would take, stage by stage, and how much memory.

    Args:
        known: Time and memory.
        group: How to print it, and the device.
        more: What else the JSON document says; a command prints it as text in words of its own.
    """
    from biascope.runs.rehearsal import slowdown
    from biascope.runs.run import Run

    how = {name: getattr(group, name) for name in ("device", "precision") if hasattr(group, name)}
    run = Run(**{"device": "cpu", **how}, memory=group.memory)
    device = run.in_words
    if group.as_json:
        stages = [dataclasses.asdict(stage) for stage in known.stages]
        content = {"seconds": known.seconds, "whole": known.whole, "device": device, "slowdown": slowdown()}
        content |= {"bytes": known.memory, "memory_limit": run.limit}
        typer.echo(as_document(**content, stages=stages, **more))
    else:
        lines = [*(f"  {_stage_in_words(stage)}" for stage in known.stages), _in_words(known, device)]
        lines += [memory_in_words(known.memory, run)] if known.memory else []
        typer.echo("\n".join([*lines, load_in_words(slowdown())]))


def memory_in_words(expected: int, run: Run) -> str:
    """The memory that a command is expected to take at its peak, and what it may take.

    Args:
        expected: Bytes of main memory.
        run: Says what the process may take.
    """
    from biascope.runs.memory import NO_LIMIT

    limit = run.limit
    if limit == NO_LIMIT:
        return f"Expected memory: about {in_words(expected)} at the peak."
    if expected > limit:
        return (
            f"Expected memory: about {in_words(expected)} at the peak. The command would refuse, because the limit (--memory) is "
            f"{in_words(limit)}."
        )
    return f"Expected memory: about {in_words(expected)} at the peak; the limit (--memory) is {in_words(limit)}."


def load_in_words(slower: float) -> str:
    """What an expected time assumes about other programs on this machine.

    Args:
        slower: As :func:`biascope.runs.rehearsal.slowdown` measures it.
    """
    if slower < 1.2:
        return "This assumes that the machine stays idle."
    return (
        f"Other programs are using this machine, and work takes about {slower:.1f} times as long as on an idle one. "
        "The expected time assumes that this does not change."
    )


def _stage_in_words(stage: StageTime) -> str:
    from biascope.results.wording import duration

    if stage.seconds is None:
        done = "it has not finished yet" if stage.pieces == 1 else f"none of {stage.pieces:,} pieces has finished yet"
        return f"{stage.name}: more than {duration(stage.spent)}; {done}"
    so_far = f" ({stage.done:,} of {stage.pieces:,} in {duration(stage.spent)})" if stage.done else ""
    if stage.seconds > stage.spent:
        return f"{stage.name}: about {duration(stage.seconds)}{so_far}"
    return f"{stage.name}: {duration(stage.seconds)}"


def _in_words(known: Expectation, device: str) -> str:
    from biascope.results.wording import duration

    if known.whole:
        return f"Expected time: about {duration(known.seconds)} on {device}."
    if not known.stages or known.stages[-1].seconds is None:
        return f"Expected time: more than {duration(known.seconds)} on {device}. The pace is not known yet."
    return f"Expected time: about {duration(known.seconds)} on {device} for the stages above. More stages may follow."
