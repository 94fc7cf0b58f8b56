"""SHOW: `biascope merge`: merge and compare checkpoints in weight space."""

from __future__ import annotations

import typer

from biascope.cli.merge.apply import apply
from biascope.cli.merge.check import check
from biascope.cli.merge.diff import diff

app = typer.Typer(help="Task arithmetic: check, add, negate and compare fine-tuned models.")
for command in (check, apply, diff):
    app.command()(command)
