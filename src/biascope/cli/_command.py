"""What every command does besides its work: it shows progress, and results record the command line."""

from __future__ import annotations

import shlex
from typing import Any

from typer.core import TyperCommand

from biascope.cli import _settings_file


class Command(TyperCommand):
    """A command of the command line."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command with its progress shown, unless it is unwanted."""
        import contextlib

        from biascope.runs.command_line import run_as
        from biascope.runs.progress import phase, shown

        before = _settings_file.CONTEXT.set(ctx)
        words = _settings_file.command_words(ctx)
        try:
            with (
                run_as(shlex.join(_settings_file.words_of(ctx))),
                contextlib.nullcontext() if ctx.params.get("quiet") else shown(words),
            ):
                if _computes(ctx, words):
                    with phase("loading PyTorch"):
                        import torch  # noqa: F401
                return super().invoke(ctx)
        finally:
            _settings_file.CONTEXT.reset(before)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words, which sentences about mistakes quote."""
        ctx.meta[WORDS] = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:  # some mistakes come without the command they were made in
                error.ctx = ctx  # type: ignore[attr-defined]
            raise


def _computes(ctx: Any, words: str) -> bool:
    """Whether a command surely needs PyTorch, which takes seconds to load; a list of figures does not."""
    return "config" in ctx.params and (words != "reproduce" or (bool(ctx.params["paper"]) and not ctx.params["status"]))


WORDS = "biascope.words"  # of the command line, in the meta data of a context
