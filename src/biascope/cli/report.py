"""SHOW: `biascope report`: saved results, shown again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biascope.cli._dry_run import rehearsed
from biascope.cli.options import Lasting, with_groups
from biascope.cli.printing import print_results

if TYPE_CHECKING:
    from biascope.results.result import Result


@with_groups
@rehearsed()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[
        Path | None, typer.Option(help="HTML file to write; report.html in the first folder by default.")
    ] = None,
    *,
    output: Lasting,
) -> None:
    """Rebuild the report of one or more runs; with --json, also print their results."""
    from biascope.results.registry import saved
    from biascope.results.report import write_report_of_saved
    from biascope.runs.files import make_writable
    from biascope.runs.rehearsal import placed

    shown: dict[str, Result] = {}
    problems: list[str] = []
    for run in runs:
        if not run.is_dir():
            raise ValueError(f"The run folder {run} does not exist. Check the path, or scan a network first.")
        results, told = saved(run)
        if not results and not told:
            raise ValueError(f"{run} must hold saved results, but has none. Pass a folder that biascope scan wrote.")
        shown |= {str(run / place): result for place, result in results.items()}
        problems += told
    path = out or runs[0] / "report.html"
    make_writable(path.parent)
    page = write_report_of_saved(shown, problems, placed(path))
    print_results(list(shown.values()) if output.as_json else [], page, output.as_json)
