"""Findings merged into the committed results."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from biascope.cli.printing import print_json

if TYPE_CHECKING:
    from biascope.papers.merging import Merged


def merge_from(source: Path, results: Path | None, as_json: bool) -> None:
    """Merge findings from elsewhere; exits with status 1 if one is refused."""
    outcomes = merge_findings(source, results, as_json)
    if as_json:
        print_json(findings=[{"source": one.source, "outcome": one.outcome, "sentence": one.words} for one in outcomes])
    if any_refused(outcomes):
        raise typer.Exit(1)


def merge_findings(source: Path, results: Path | None, as_json: bool) -> list[Merged]:
    """Merge the findings of a folder and print the outcomes; refusals are always printed."""
    from biascope.papers import merging

    outcomes = merging.merge(source, results=results)
    for each in outcomes:
        if each.outcome == "refused":
            typer.echo(f"  refused  {each.source}: {each.words}", err=True)
        elif not as_json:
            typer.echo(f"  {each.outcome:8} {each.words}")
    return outcomes


def any_refused(outcomes: Iterable[Merged]) -> bool:
    """Whether a finding was refused."""
    return any(each.outcome == "refused" for each in outcomes)
