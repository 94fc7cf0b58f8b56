"""A result saved with its tables and report, and printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from biascope.cli._settings_file import keep_settings
from biascope.cli.options import Output
from biascope.cli.printing import print_results, report_line, write_table

if TYPE_CHECKING:
    from biascope.editing.extraction_result import Extraction
    from biascope.editing.merge_result import Difference, Merge
    from biascope.measures.merge_check.result import MergeCheck
    from biascope.results.result import Result

TABLES = tuple(
    f"{name}.csv"
    for name in (
        "layers",
        "left_out",
        "layers_by_model",
        "layers_by_pair",
        "models",
        "methods",
        "coefficients",
        "outputs",
    )
)


def save_and_print(
    found: Merge | Difference | MergeCheck | Extraction,
    folder: Path,
    title: str,
    output: Output,
    command: str | None = None,
) -> None:
    """Save a result with its tables and report, and print it; a check also has the command that comes next, or none."""
    from biascope.results.report import write_folder_report
    from biascope.runs.files import make_writable
    from biascope.runs.rehearsal import placed

    make_writable(folder)
    folder = placed(folder)
    if replaced := _earlier(folder / "result", found):
        typer.echo(
            f"The earlier result in {folder} is replaced: {replaced}. Pass another --out to keep both.", err=True
        )
    place = found.save(folder / "result")
    keep_settings(folder)
    files = [write_table(rows, folder / f"{name}.csv") for name, rows in found.tables().items() if rows]
    page = write_folder_report(folder, title=title, at_hand={place: found})
    if output.as_json:
        print_results([found], page, True, files=files, **({} if command is None else {"command": command}))
        return
    print_results([found], None, False)
    if command:
        typer.echo(f"\nTo merge: {command}")
    typer.echo(f"\n{report_line(page)}, layers: {folder / 'layers.csv'}")


def _earlier(folder: Path, found: Result) -> str:
    """What else a folder already holds, in words; empty if nothing, or the same as was found now."""
    from biascope.results.registry import load

    if not folder.is_dir():
        return ""
    try:
        result = load(folder)
    except ValueError:
        return "a result that cannot be read"
    if (result.subject, result.headline()) == (found.subject, found.headline()):
        return ""
    return f"{result.measurement.replace('_', ' ')} of {result.subject}, {result.provenance.get('date', 'no date')}"
