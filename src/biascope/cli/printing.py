"""SHOW: what a command found, as text, in the one JSON shape of all commands, or as CSV files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from biascope.results.result import Result


def print_json(**content: Any) -> None:
    """Print the JSON document of a command: ``{"version": 1, ...}``."""
    typer.echo(as_document(**content))


def as_document(**content: Any) -> str:
    """The same as text."""
    from biascope.results import document

    return document.as_document(**content)


def print_results(results: Sequence[Result], report: Path | None, as_json: bool, **more: Any) -> None:
    """Print results and the path of the report.

    Args:
        results: In the order to print them.
        report: The page, if there is one.
        as_json: For programs.
        more: What else the JSON document says; a command prints it as text in words of its own.
    """
    if as_json:
        from biascope.results.document import result_as_json

        print_json(results=[result_as_json(result) for result in results], report=str(report or ""), **more)
        return
    from biascope.results.registry import title_of

    told: set[str] = set()
    for result in results:
        if result.why_detail(results):
            continue
        if result.row_of_card and len(results) > 1:
            typer.echo(" ".join([f"\n{title_of(result)}: {result.story().sentences[0].text}", *result.standing()[:1]]))
            print_warnings(result, without=told)
            told.update(result.warnings)
            continue
        told.update(result.warnings)
        words = " ".join(filter(None, [result.story().lead, result.sentence(), *result.standing()]))
        typer.echo(f"\n{words}")
        for number in result.headline().values():
            typer.echo(f"  {number.label}: {number!r}")
        if prepared := result.provenance.get("data", {}).get("preparation"):
            typer.echo(f"  preparation of the samples: {prepared}")
        print_warnings(result)
    for result in results:
        if why := result.why_detail(results):
            typer.echo(
                f"\nDetail, {result.measurement.replace('_', ' ')}: {result.sentence()}\n  Why it differs: {why}"
            )
            print_warnings(result, without=told)
    if report is not None:
        typer.echo(f"\n{report_line(report)}")


def report_line(page: Path) -> str:
    """Where the report is; if several commands wrote into its folder, which results it shows."""
    from biascope.cli._settings_file import commands_in

    if len(commands := commands_in(page.parent)) < 2:
        return f"Report: {page}"
    return f"Report: {page} (results of {', '.join(commands[:-1])} and {commands[-1]})"


def print_warnings(result: Result, without: Collection[str] = ()) -> None:
    """Print the warnings of a result that were not printed before."""
    for warning in result.warnings:
        if warning not in without:
            typer.echo(f"  Warning: {warning}")


def write_table(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Write a table of a result as CSV, whole or not at all: a number in the columns ``name``, ``name_low`` and ``name_high``.

    Args:
        rows: As :meth:`biascope.results.result.Result.tables` has them, all with the same columns.
        path: The file.
    """
    from biascope.results.document import csv_text
    from biascope.runs.files import require_ours, write_atomically

    require_ours(path)
    write_atomically(path, csv_text(rows).encode(errors="backslashreplace"))
    return path
