"""SHOW: `biascope report`: saved results, shown again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biascope.cli.options import Output, with_groups
from biascope.cli.printing import print_results


@with_groups
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Path | None, typer.Option(help="The HTML file; report.html in the first folder by default.")] = None,
    *,
    output: Output,
) -> None:
    """Make the report of one or several runs again; with --json, print their results too."""
    from biascope.results.report import write_report
    from biascope.runs.files import make_writable
    from biascope.scanning import saved_results

    results = [result for run in runs for result in saved_results(run)]
    path = out or runs[0] / "report.html"
    make_writable(path.parent)
    page = write_report(results, path)
    print_results(results if output.as_json else [], page, output.as_json)
