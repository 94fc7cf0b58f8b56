"""SHOW: `biascope merge`: merge and compare checkpoints in weight space."""

from __future__ import annotations

import typer

from biascope.cli.merge.apply import apply
from biascope.cli.merge.check import check
from biascope.cli.merge.diff import diff
from biascope.cli.merge.doctor import doctor
from biascope.cli.merge.extract import extract

app = typer.Typer(help="Task arithmetic: check, add, negate, compare and examine fine-tuned models.")
for command in (check, apply, diff, extract, doctor):
    app.command()(command)
