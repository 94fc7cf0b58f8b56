"""Figures run, each printed and kept in turn."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from biascope.cli._settings_file import keep_settings
from biascope.cli.options import Work
from biascope.cli.printing import print_json
from biascope.cli.reproduce.findings import any_refused, merge_findings
from biascope.cli.reproduce.standings import print_claim

if TYPE_CHECKING:
    from biascope.papers.reproduce import Reproduction
    from biascope.results.finding import FigureOfPaper


def asked_for(paper: str, number: str, effort: str, networks: Sequence[str]) -> Sequence[FigureOfPaper]:
    """The figures that are asked for: one, or all of a paper.

    Raises:
        ValueError: If there is no such effort, paper or figure, or networks are named without a figure.
    """
    from biascope import papers
    from biascope.results.claim import effort_rank

    effort_rank(effort)
    if networks and not number:
        raise ValueError(
            f"--network needs a figure, got {paper} alone. Type biascope reproduce {paper} NUMBER --network {networks[0]}."
        )
    return (papers.figure(paper, number),) if number else papers.find(paper).figures


def run_figures(
    figures: Sequence[FigureOfPaper],
    effort: str,
    work: Work,
    *,
    results: Path | None,
    networks: Sequence[str],
    keep: bool = False,
) -> None:
    """Run figures and print what was found; where one of several fails, the others are still run."""
    from biascope.papers import reproduce as reproduction
    from biascope.runs.rehearsal import counted

    run = work.run(work.out)
    done: list[Reproduction] = []
    failed: dict[str, str] = {}
    # Of one figure, the stages within it say more.
    several = counted("figures", len(figures)) if len(figures) > 1 else contextlib.nullcontext(lambda count: None)
    with several as advance:
        for each in figures:
            try:
                done.append(reproduction.reproduce(each.paper, each.number, effort=effort, run=run, networks=networks))
            except Exception as error:
                if len(figures) == 1 or os.environ.get("BIASCOPE_TRACEBACK"):
                    raise
                failed[each.number] = _told(error)  # the other figures are still worth having
                typer.echo(f"\nFigure {each.number} failed: {_told(error)}", err=True)
                advance(1)
                continue
            keep_settings(done[-1].folder, figure=each.number)
            if not work.as_json:
                _print_reproduction(done[-1])
            if keep and any_refused(merge_findings(done[-1].folder, results, work.as_json)):
                failed[each.number] = "its finding was refused, see above"
            advance(1)
    if work.as_json:
        print_json(
            rows=[standing.row() for each in done for standing in each.standings()],
            failures=[{"figure": name, "reason": reason} for name, reason in failed.items()],
            report=str(done[-1].page or "") if done else "",
        )
    elif done and done[-1].page is not None:
        typer.echo(f"\nReport: {done[-1].page}")
    if failed:
        typer.echo(f"\n{len(failed)} of {len(figures)} figures of {figures[0].paper} failed:", err=True)
        for name, reason in failed.items():
            typer.echo(f"  figure {name}: {reason}", err=True)
        raise typer.Exit(1)


def _told(error: Exception) -> str:
    words = " ".join(str(error).split())
    return words if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {words}"


def _print_reproduction(done: Reproduction) -> None:
    from biascope.results.wording import duration

    record = done.record
    typer.echo(f"\n{record.paper}, figure {record.figure}: {record.title}")
    for standing in done.standings():
        print_claim(standing)
    for note in record.notes:
        typer.echo(f"  Note: {note}")
    typer.echo(
        f"  {record.effort} effort, {record.device}, {record.precision}, {duration(record.seconds)}: {done.folder}"
    )
