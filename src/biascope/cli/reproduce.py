"""SHOW: ``biascope reproduce``. It parses, calls, prints; torch is imported only when there is work."""

from __future__ import annotations

import json
import os
import textwrap
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from biascope.papers.reproduce import Reproduction, Standing
    from biascope.results.claim import FigureOfPaper


def reproduce(
    paper: Annotated[str, typer.Argument(help="A paper's id; without one, papers and figures are listed.")] = "",
    figure: Annotated[str, typer.Argument(help="A figure's number; without one, all of the paper's.")] = "",
    effort: Annotated[str, typer.Option(help="smoke (does it run), laptop or paper (the published sizes).")] = "laptop",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[str, typer.Option(help="float64, float32, tf32, float16 or bfloat16.")] = "float32",
    out: Annotated[Path | None, typer.Option(help="Folder for findings; biascope-runs/reproduce by default.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Merge what is found into the committed results.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Print where every claim stands, and stop.")] = False,
    merge: Annotated[
        Path | None, typer.Option(help="Merge a folder, or .tar.gz, of findings made elsewhere, and stop.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Committed results; those of the source checkout by default.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the rows of --status, or of this run, as JSON.")
    ] = False,
) -> None:
    """Run a paper's figures and judge its claims: published against measured, with a verdict."""
    if merge is not None:
        if not _merged(merge, results):
            raise typer.Exit(1)
    elif status:
        _print_status(paper, figure, results, as_json)
    elif not paper:
        _print_papers(results)
    else:
        _reproduce(paper, figure, effort, device, precision, out, results, keep, as_json)


def _reproduce(
    paper: str,
    number: str,
    effort: str,
    device: str,
    precision: str,
    out: Path | None,
    results: Path | None,
    keep: bool,
    as_json: bool,
) -> None:
    from biascope import papers
    from biascope.papers import reproduce as reproduction
    from biascope.results.claim import effort_rank
    from biascope.runs.run import Run

    effort_rank(effort)
    figures = (papers.figure(paper, number),) if number else papers.find(paper).figures
    run = Run(folder=out, device=device, precision=precision)
    _ = run.torch_device  # a device or a destination that is not there is told before any work
    if keep:
        reproduction.destination(results)
    done: list[Reproduction] = []
    failed: dict[str, str] = {}
    for each in figures:
        try:
            done.append(reproduction.reproduce(each.paper, each.number, effort=effort, run=run))
        except Exception as error:
            if number or os.environ.get("BIASCOPE_TRACEBACK"):
                raise
            failed[each.number] = _told(error)  # the other figures are still worth having
            typer.echo(f"\nFigure {each.number} failed: {_told(error)}", err=True)
            continue
        if not as_json:
            _print_reproduction(done[-1])
        if keep and not _merged(done[-1].folder, results, quiet=as_json):
            failed[each.number] = "its finding was refused, see above"
    if as_json:
        found = [standing for each in done for standing in each.standings()]
        typer.echo(json.dumps([standing.row() for standing in found], indent=1, ensure_ascii=False))
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
    record = done.record
    typer.echo(f"\n{record.paper}, figure {record.figure}: {record.title}")
    for standing in done.standings():
        _print_claim(standing)
    for note in record.notes:
        typer.echo(f"  Note: {note}")
    typer.echo(
        f"  {record.effort} effort, {record.device}, {record.precision}, {_lasting(record.seconds)}: {done.folder}"
    )


def _print_claim(standing: Standing, *remarks: str) -> None:
    claim, record = standing.claim, standing.record
    terms = f"published {claim.printed}, tolerance {claim.allowed}"
    if record is not None:
        late = "" if claim.counts_at(record.effort) else f"; decided from {claim.minimum_effort} effort on"
        terms = f"measured {standing.measured!r}, {terms}{late}"
    typer.echo(textwrap.fill(f"  {standing.verdict:15} {claim.statement}", 110, subsequent_indent=" " * 18))
    for detail in (terms, *remarks):
        typer.echo(f"{'':18}{detail}")


def _print_status(paper: str, number: str, results: Path | None, as_json: bool) -> None:
    from biascope import papers
    from biascope.papers import reproduce as reproduction

    standings = reproduction.standings(results=results)
    if paper:
        name = papers.find(paper).name
        wanted = papers.figure(paper, number).number if number else ""
        standings = [each for each in standings if each.figure.paper == name and wanted in ("", each.figure.number)]
    if as_json:
        typer.echo(json.dumps([each.row() for each in standings], indent=1, ensure_ascii=False))
        return
    shown: FigureOfPaper | None = None
    for each in standings:
        if each.figure is not shown:
            shown = each.figure
            typer.echo(f"\n{shown.paper}, figure {shown.number}: {shown.title}")
        remarks = [f"{each.record.effort} effort on {each.record.device}"] if each.record else []
        _print_claim(each, *remarks, *(f"Changed: {words}" for words in each.changes()))
    typer.echo(f"\nClaims: {_counts(standings)}.")


def _counts(standings: Iterable[Standing]) -> str:
    from biascope.results.claim import VERDICTS

    counted = Counter(each.verdict for each in standings)
    return ", ".join(f"{counted[verdict]} {verdict}" for verdict in VERDICTS if counted[verdict]) or "none"


def _print_papers(results: Path | None) -> None:
    from biascope import papers
    from biascope.papers import reproduce as reproduction

    standings = reproduction.standings(results=results)
    for paper in map(papers.find, papers.names()):
        typer.echo(f"\n{paper.name}  {paper.title}")
        for figure in paper.figures:
            own = [each for each in standings if each.figure is figure]
            typer.echo(f"  {figure.number:9} {figure.title}")
            typer.echo(f"  {'':9} claims: {_counts(own)}")
            for record in reproduction.committed(figure, results=results).values():
                typer.echo(f"  {'':9} {record.effort} effort took {_lasting(record.seconds)} on {record.device}")
    typer.echo("\nRun one with biascope reproduce PAPER FIGURE [--effort smoke|laptop|paper], or all of a paper's.")


def _merged(source: Path, results: Path | None, quiet: bool = False) -> bool:
    """Whether everything in a folder of findings could be merged; what became of each is printed."""
    from biascope.papers import reproduce as reproduction

    outcomes = reproduction.merge(source, results=results)
    for each in outcomes:
        if each.outcome == "refused":
            typer.echo(f"  refused  {each.source}: {each.words}", err=True)
        elif not quiet:
            typer.echo(f"  {each.outcome:8} {each.words}")
    return all(each.outcome != "refused" for each in outcomes)


def _lasting(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
