"""What is committed: where the claims and statements of each paper stand, and the list of papers."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from biascope.cli.printing import print_json

if TYPE_CHECKING:
    from biascope.papers.verdicts import Standing
    from biascope.results.finding import FigureOfPaper


def print_standings(paper: str, number: str, results: Path | None, every: bool, as_json: bool) -> None:
    """Print where statements stand, of all papers or of one, and with ``every`` or for a figure also each claim."""
    from biascope import papers
    from biascope.papers import verdicts

    standings = verdicts.standings(results=results)
    if paper:
        name = papers.find(paper).name
        standings = [each for each in standings if each.figure.paper == name]
    conclusions = verdicts.conclusions(standings)
    if number:
        wanted = papers.figure(paper, number).number
        standings = [each for each in standings if each.figure.number == wanted]
        tested = {each.claim.of for each in standings}
        conclusions = [each for each in conclusions if each.statement.key in tested]
    if as_json:
        print_json(
            summary=[each.row() for each in verdicts.summary(standings, conclusions)],
            statements=[each.row() for each in conclusions],
            rows=[each.row() for each in standings],
        )
        return
    for line in verdicts.summary_lines(standings, conclusions):
        typer.echo(line)
    if not (every or number):
        typer.echo("\nAdd --all for every claim, or name a paper and a figure.")
        return
    shown: FigureOfPaper | None = None
    for each in standings:
        if each.figure is not shown:
            shown = each.figure
            typer.echo(f"\n{shown.paper}, figure {shown.number}: {shown.title}")
        remarks = [f"{each.record.effort} effort on {each.record.device}"] if each.record else []
        remarks += [each.earlier] if each.earlier else []
        print_claim(each, *remarks, *(f"Changed: {words}" for words in each.changes()))
    typer.echo(f"\nClaims: {_counts(standings)}.")


def print_papers(results: Path | None, as_json: bool) -> None:
    """Print the papers with their figures, verdicts and committed runs."""
    from biascope import papers
    from biascope.papers import verdicts
    from biascope.results.wording import duration

    known = list(map(papers.find, papers.names()))
    if as_json:
        rows = [
            {"paper": paper.name, "title": paper.title, "figure": figure.number, "figure_title": figure.title}
            for paper in known
            for figure in paper.figures
        ]
        print_json(figures=rows)
        return
    standings = verdicts.standings(results=results)
    for paper in known:
        typer.echo(f"\n{paper.name}  {paper.title}")
        for figure in paper.figures:
            own = [each for each in standings if each.figure is figure]
            typer.echo(f"  {figure.number:9} {figure.title}")
            typer.echo(f"  {'':9} claims: {_counts(own)}")
            for record in verdicts.committed(figure, results=results).values():
                typer.echo(f"  {'':9} {record.effort} effort took {duration(record.seconds)} on {record.device}")
    typer.echo(
        "\nTo run a figure: biascope reproduce PAPER FIGURE [--effort smoke|laptop|paper]. Without FIGURE, all figures are run."
    )


def print_claim(standing: Standing, *remarks: str) -> None:
    """Print the verdict on a claim, the terms of it, and remarks."""
    claim, record = standing.claim, standing.record
    terms = f"published {claim.printed}, tolerance {claim.allowed}"
    if record is not None:
        why = f"; {standing.judgement.reason}" if standing.judgement.reason else ""
        terms = f"measured {standing.measured!r}, {terms}{why}"
    whose = {"paper": "", "ours": " (bound of ours)", "check": " (check of our own code)"}[claim.kind]
    whose += " (written after the number was seen)" if standing.fitted else ""
    typer.echo(textwrap.fill(f"  {standing.verdict:15} {claim.statement}{whose}", 110, subsequent_indent=" " * 18))
    for detail in (terms, *remarks):
        typer.echo(f"{'':18}{detail}")


def _counts(standings: Iterable[Standing]) -> str:
    from biascope.results.claim import VERDICTS

    counted = Counter(each.verdict for each in standings)
    return ", ".join(f"{counted[verdict]} {verdict}" for verdict in VERDICTS if counted[verdict]) or "none"
