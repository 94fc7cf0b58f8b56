"""SHOW: ``biascope reproduce``. It parses, calls, prints; torch is imported only when there is work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biascope.cli import _completion
from biascope.cli.options import Work, with_groups
from biascope.cli.reproduce.expected_time import print_expected
from biascope.cli.reproduce.figures import asked_for, run_figures
from biascope.cli.reproduce.findings import merge_from
from biascope.cli.reproduce.standings import print_papers, print_standings


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
        merge_from(merge, results, work.as_json)
    elif status:
        print_standings(paper, figure, results, every, work.as_json)
    elif not paper:
        print_papers(results, work.as_json)
    else:
        figures = asked_for(paper, figure, effort, networks)
        if keep:  # a destination that is not there is told before any work
            from biascope.papers.merging import destination

            destination(results)
        if work.dry_run:
            print_expected(figures, effort, work, results=results, networks=networks)
        else:
            run_figures(figures, effort, work, results=results, networks=networks, keep=keep)
