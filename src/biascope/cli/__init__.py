"""SHOW: the command line. It parses, calls, prints; there is no science here.

A file or folder here is a command: a function with the name of the file (less an underscore at its end, where Python or a module
has that name), or a Typer called ``app``, which is a group of commands with that name. What begins with an underscore, ``options`` and
``printing`` are what commands share.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from biascope import __version__
from biascope.cli._command import Command
from biascope.cli._usage import usage_sentence

_SHARED = ("options", "printing")


class _Alphabetical(TyperGroup):
    """Commands and groups of commands in one order."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx))


app = typer.Typer(
    name="biascope",
    cls=_Alphabetical,
    help="A microscope for inductive bias: what a neural network finds easy to learn, before and during training. "
    "Start with: biascope scan lenet",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

# The six commands to begin with: the words, what they do, an example.
FIRST = (
    ("scan", "what a network finds easy to learn, with a report", "biascope scan lenet"),
    ("compare", "how the preferences of networks differ", "biascope compare lenet mlp"),
    ("kernel", "what of your data and labels a network learns first", "biascope kernel lenet --data cifar10"),
    ("merge check", "whether fine-tuned models can be merged", "biascope merge check base.pt a.pt b.pt --data a.npz"),
    ("inr advise", "which network reconstructs your image or sound best", "biascope inr advise photo.png"),
    ("reproduce", "a figure of a paper, with a verdict on its claims", "biascope reproduce nads2020 1"),
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"biascope {__version__}")
        raise typer.Exit


def _cite(wanted: bool) -> None:
    if wanted:
        from biascope.results.registry import SOURCES

        typer.echo(f"The Biascope developers (2026). Biascope {__version__}: a microscope for inductive bias.\n")
        typer.echo("Please also cite the paper whose measurement you use:")
        for key, reference in SOURCES.items():
            typer.echo(f"  {key:19} {reference}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    cite: Annotated[
        bool, typer.Option("--cite", callback=_cite, is_eager=True, help="Print the references to cite.")
    ] = False,
) -> None:
    """Options of every command."""
    if context.invoked_subcommand is None:
        typer.echo("Biascope shows what a neural network finds easy to learn, before and during training.\n")
        for words, what, example in FIRST:
            typer.echo(f"  {words:12} {what}\n  {'':12} {example}")
        typer.echo("\nType biascope --help for all commands, biascope COMMAND --help for the options of one.")


def _add_commands() -> None:
    """Add every command in this folder."""
    for found in pkgutil.iter_modules(__path__):
        if found.name.startswith("_") or found.name in _SHARED:
            continue
        module, name = importlib.import_module(f"{__name__}.{found.name}"), found.name.removesuffix("_")
        if hasattr(module, "app"):
            for each in module.app.registered_commands:
                each.cls = Command
            app.add_typer(module.app, name=name)
        else:
            kind = getattr(module, "COMMAND", Command)
            app.command(name, cls=kind, context_settings=getattr(module, "CONTEXT", None))(getattr(module, name))


def _told(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: str | None = None,
) -> None:
    """Print a warning as a sentence; a warning of another library keeps the name of its class."""
    kind = "" if category is UserWarning else f"{category.__name__}: "
    typer.echo(f"biascope: {kind}{' '.join(str(message).split())}", err=True)


def main(program: str = "biascope") -> None:
    """Run the command line: a user's mistake is one sentence and a non-zero exit, never a traceback.

    Args:
        program: What the user typed to run it, for help and sentences.
    """
    _open_streams()
    warnings.showwarning = _told
    try:
        _require_text(sys.argv[1:])
        with _stopped_in_order() as signals:
            status = app(standalone_mode=False, prog_name=program)
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None or os.environ.get("BIASCOPE_TRACEBACK"):
            raise
        from biascope.runs.files import remove_empty_folders

        remove_empty_folders()
        typer.echo(f"biascope: {' '.join(sentence.split())}", err=True)
        sys.exit(2)
    if status == 130:  # Typer's answer to Ctrl-C
        typer.echo("\nStopped. Finished work is saved. The same command resumes from there.", err=True)
        status = 128 + signals[0] if signals else status
    sys.exit(status if isinstance(status, int) else 0)


def _require_text(words: list[str]) -> None:
    """Refuse names of files that are not UTF-8 before the work: neither a report nor a JSON document can hold them."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            from biascope.runs.files import as_text

            raise ValueError(f"Names must be UTF-8, but {as_text(word)} is not. Rename the file or folder.") from None


def _open_streams() -> None:
    """Open what a shell closed (``2>&-``), before a file takes its number: libraries would write their messages into that file."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the smallest number that is free
            if getattr(sys, name) is None:
                setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


@contextlib.contextmanager
def _stopped_in_order() -> Iterator[list[int]]:
    """Make SIGTERM stop the work as Ctrl-C does, so that files and clusters are left in order; yields what came.

    A second signal ends the process at once.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
        yield came
        return

    def stop(number: int, frame: FrameType | None) -> None:
        came.append(number)
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield came
    finally:
        if not came:
            signal.signal(signal.SIGTERM, before)


def _sentence(error: Exception) -> str | None:
    """The sentence for an error that a user can fix; None for an error of Biascope itself."""
    if hasattr(error, "format_message"):  # a word of the command line that Typer does not take
        return usage_sentence(error)
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename} could not be read or written" if error.filename else "A file could not be written"
        return f"{place}: {error.strerror}. Check the path, its permissions and the free disk space."
    if isinstance(error, ValueError | OSError):
        return str(error)
    if isinstance(error, MemoryError | RuntimeError):
        from biascope.runs.memory import is_of_the_device, is_out_of_memory  # a run that failed so has imported torch

        if is_out_of_memory(error):
            return "The memory is too small for this work. Pass fewer samples, a smaller input or fewer draws."
        if is_of_the_device(error):
            reason = str(error).splitlines()[0].rstrip(".")
            return f"The device failed and not the network ({reason}). Finished work is saved; try again, or pass --device cpu."
    return None


_add_commands()
