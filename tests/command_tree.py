"""Every command of the command line, found by walking it."""

from collections.abc import Iterator
from typing import Any

import typer

from biascope.cli import app


def _walked(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, each in group.commands.items():
        if hasattr(each, "commands"):
            yield from _walked(each, (*words, name))
        else:
            yield " ".join((*words, name)), each


COMMANDS: dict[str, Any] = dict(_walked(typer.main.get_command(app)))
