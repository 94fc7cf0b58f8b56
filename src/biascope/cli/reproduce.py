"""SHOW: ``biascope reproduce``. It parses, calls, prints; torch is imported only when there is work."""

from __future__ import annotations

import contextlib
import functools
import os
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biascope.cli import _completion
from biascope.cli._dry_run import check_place, print_expectation, rehearse
from biascope.cli._settings_file import keep_settings
from biascope.cli.options import Work, with_groups
from biascope.cli.printing import print_json

if TYPE_CHECKING:
    from biascope.papers.merging import Merged
    from biascope.papers.reproduce import Reproduction
    from biascope.papers.verdicts import Standing
    from biascope.results.finding import FigureOfPaper


@with_groups
def reproduce(
    paper: Annotated[
        str,
        typer.Argument(
            help="Paper to reproduce, by its id. Without one, papers and figures are listed.",
            autocompletion=_completion.papers,
        ),
    ] = "",
    figure: Annotated[
        str, typer.Argument(help="Number of a figure. Without one, all figures of the paper are run.")
    ] = "",
    *,
    effort: Annotated[
        str,
        typer.Option(
            help="Effort: smoke (only checks that it runs), laptop, or paper (the published sizes).",
            autocompletion=_completion.words("smoke", "laptop", "paper"),
        ),
    ] = "laptop",
    networks: Annotated[
        list[str],
        typer.Option(
            "--network",
            help="Run the figure for this network alone; may be repeated. Merging keeps the numbers of the others.",
            autocompletion=_completion.networks,
        ),
    ] = [],  # noqa: B006 - typer copies it
    keep: Annotated[bool, typer.Option("--keep", help="Merge the findings into the committed results.")] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Print where the statements of each paper stand, and stop.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="With --status, also print the verdict on every claim.")] = False,
    merge: Annotated[
        Path | None, typer.Option(help="Merge findings from elsewhere, a folder or .tar.gz, and stop.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Committed results; those of the source checkout by default.")
    ] = None,
    work: Work,
) -> None:
    """Run a paper's figures and compare its claims with measured numbers."""
    if results is not None and merge is None and not keep and not results.is_dir():
        raise ValueError(
            f"--results must be a folder of committed results, but {results} is not a folder. Check the path."
        )
    if merge is not None:
        outcomes = _merged(merge, results, work.as_json)
        if work.as_json:
            print_json(
                findings=[{"source": each.source, "outcome": each.outcome, "sentence": each.words} for each in outcomes]
            )
        if _refused(outcomes):
            raise typer.Exit(1)
    elif status:
        _print_status(paper, figure, results, every, work.as_json)
    elif not paper:
        _print_papers(results, work.as_json)
    else:
        _reproduce(paper, figure, effort, results, keep, work, networks)


def _reproduce(
    paper: str,
    number: str,
    effort: str,
    results: Path | None,
    keep: bool,
    work: Work,
    networks: Sequence[str] = (),
) -> None:
    from biascope import papers
    from biascope.papers import merging
    from biascope.papers import reproduce as reproduction
    from biascope.results.claim import effort_rank
    from biascope.runs.rehearsal import counted

    effort_rank(effort)
    if networks and not number:
        raise ValueError(
            f"--network needs a figure, got {paper} alone. Type biascope reproduce {paper} NUMBER --network {networks[0]}."
        )
    figures = (papers.figure(paper, number),) if number else papers.find(paper).figures
    run = work.run(work.out)
    if keep:  # a destination that is not there is told before any work
        merging.destination(results)
    if work.dry_run:
        _print_expected(figures, effort, results, work)
        return
    done: list[Reproduction] = []
    failed: dict[str, str] = {}
    # Of one figure, the stages within it say more.
    several = counted("figures", len(figures)) if len(figures) > 1 else contextlib.nullcontext(lambda count: None)
    with several as advance:
        for each in figures:
            try:
                done.append(reproduction.reproduce(each.paper, each.number, effort=effort, run=run, networks=networks))
            except Exception as error:
                if number or os.environ.get("BIASCOPE_TRACEBACK"):
                    raise
                failed[each.number] = _told(error)  # the other figures are still worth having
                typer.echo(f"\nFigure {each.number} failed: {_told(error)}", err=True)
                advance(1)
                continue
            keep_settings(done[-1].folder, figure=each.number)
            if not work.as_json:
                _print_reproduction(done[-1])
            if keep and _refused(_merged(done[-1].folder, results, work.as_json)):
                failed[each.number] = "its finding was refused, see above"
            advance(1)
    if work.as_json:
        found = [standing for each in done for standing in each.standings()]
        print_json(
            rows=[standing.row() for standing in found],
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


def _print_expected(figures: Sequence[FigureOfPaper], effort: str, results: Path | None, work: Work) -> None:
    """Print the times of committed runs of the same effort; a single figure without a run on this device is rehearsed."""
    from biascope.papers.verdicts import committed
    from biascope.results.wording import duration
    from biascope.runs.rehearsal import Expectation, StageTime

    check_place(work)
    here = work.run(None).describe()["device"]
    known = {each.number: committed(each, results=results).get(effort) for each in figures}
    stages = [
        StageTime(f"figure {number}, committed run on {record.device}", 1, 0, 0.0, record.seconds)
        for number, record in known.items()
        if record is not None
    ]
    unknown = [number for number, record in known.items() if record is None]
    one = known[figures[0].number]
    if len(figures) == 1 and (one is None or one.device != here):
        if one is not None and not work.as_json:
            typer.echo(f"  {effort} effort took {duration(one.seconds)} on {one.device}. Here:")
        command = functools.partial(_reproduce, figures[0].paper, figures[0].number, effort, results, False)
        rehearse(command, {"work": work}, "work", lambda expected: print_expectation(expected, work, unknown=[]))
        return
    if unknown and not work.as_json:
        typer.echo(
            f"  not counted, because they have no committed run at {effort} effort: figures {', '.join(unknown)}"
        )
    expected = Expectation(sum(stage.seconds or 0.0 for stage in stages), tuple(stages), whole=not unknown)
    print_expectation(expected, work, unknown=unknown)


def _told(error: Exception) -> str:
    words = " ".join(str(error).split())
    return words if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {words}"


def _print_reproduction(done: Reproduction) -> None:
    from biascope.results.wording import duration

    record = done.record
    typer.echo(f"\n{record.paper}, figure {record.figure}: {record.title}")
    for standing in done.standings():
        _print_claim(standing)
    for note in record.notes:
        typer.echo(f"  Note: {note}")
    typer.echo(
        f"  {record.effort} effort, {record.device}, {record.precision}, {duration(record.seconds)}: {done.folder}"
    )


def _print_claim(standing: Standing, *remarks: str) -> None:
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


def _print_status(paper: str, number: str, results: Path | None, every: bool, as_json: bool) -> None:
    from biascope import papers
    from biascope.papers import verdicts

    standings = verdicts.standings(results=results)
    if paper:
        name = papers.find(paper).name
        standings = [each for each in standings if each.figure.paper == name]
    outcomes = verdicts.outcomes(standings)
    if number:
        wanted = papers.figure(paper, number).number
        standings = [each for each in standings if each.figure.number == wanted]
        tested = {each.claim.of for each in standings}
        outcomes = [each for each in outcomes if each.statement.key in tested]
    if as_json:
        print_json(
            summary=[each.row() for each in verdicts.summary(standings, outcomes)],
            statements=[each.row() for each in outcomes],
            rows=[each.row() for each in standings],
        )
        return
    for line in verdicts.summary_lines(standings, outcomes):
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
        _print_claim(each, *remarks, *(f"Changed: {words}" for words in each.changes()))
    typer.echo(f"\nClaims: {_counts(standings)}.")


def _counts(standings: Iterable[Standing]) -> str:
    from biascope.results.claim import VERDICTS

    counted = Counter(each.verdict for each in standings)
    return ", ".join(f"{counted[verdict]} {verdict}" for verdict in VERDICTS if counted[verdict]) or "none"


def _print_papers(results: Path | None, as_json: bool) -> None:
    from biascope import papers
    from biascope.papers import verdicts
    from biascope.results.wording import duration

    found = list(map(papers.find, papers.names()))
    if as_json:
        rows = [
            {"paper": paper.name, "title": paper.title, "figure": figure.number, "figure_title": figure.title}
            for paper in found
            for figure in paper.figures
        ]
        print_json(figures=rows)
        return
    standings = verdicts.standings(results=results)
    for paper in found:
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


def _merged(source: Path, results: Path | None, as_json: bool) -> list[Merged]:
    """Merge the findings of a folder and print the outcomes; refusals are always printed."""
    from biascope.papers import merging

    outcomes = merging.merge(source, results=results)
    for each in outcomes:
        if each.outcome == "refused":
            typer.echo(f"  refused  {each.source}: {each.words}", err=True)
        elif not as_json:
            typer.echo(f"  {each.outcome:8} {each.words}")
    return outcomes


def _refused(outcomes: Iterable[Merged]) -> bool:
    return any(each.outcome == "refused" for each in outcomes)
