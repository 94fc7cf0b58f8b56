"""The time that figures would take."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from biascope.cli._dry_run import check_place, print_expectation, rehearse
from biascope.cli.options import Work
from biascope.cli.reproduce.figures import run_figures

if TYPE_CHECKING:
    from biascope.results.finding import FigureOfPaper


def print_expected(
    figures: Sequence[FigureOfPaper], effort: str, work: Work, *, results: Path | None, networks: Sequence[str]
) -> None:
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
    one = None if networks else known[figures[0].number]  # a committed run is of all networks
    if len(figures) == 1 and (one is None or one.device != here):
        if one is not None and not work.as_json:
            typer.echo(f"  {effort} effort took {duration(one.seconds)} on {one.device}. Here:")
        command = functools.partial(run_figures, figures, effort, results=results, networks=networks)
        rehearse(command, {"work": work}, "work", lambda expected: print_expectation(expected, work, unknown=[]))
        return
    if unknown and not work.as_json:
        typer.echo(
            f"  not counted, because they have no committed run at {effort} effort: figures {', '.join(unknown)}"
        )
    expected = Expectation(sum(stage.seconds or 0.0 for stage in stages), tuple(stages), whole=not unknown, memory=0)
    print_expectation(expected, work, unknown=unknown)
