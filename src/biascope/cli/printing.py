"""SHOW: what a command found, as text, in the one JSON shape of all commands, or as CSV files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from biascope.results.estimate import Estimate, Number
    from biascope.results.result import Result

VERSION = 1  # of the JSON shape; raised when a key is renamed, removed or means something else


def print_json(**content: Any) -> None:
    """Print the JSON document of a command: ``{"version": 1, ...}``."""
    typer.echo(as_document(**content))


def as_document(**content: Any) -> str:
    """The same as text."""
    from biascope.results.store import plain

    return json.dumps(plain(_with_numbers({"version": VERSION, **content})), indent=1, ensure_ascii=False)


def print_results(results: Sequence[Result], report: Path | None, as_json: bool, **more: Any) -> None:
    """Print results and the path of the report.

    Args:
        results: In the order to print them.
        report: The page, if there is one.
        as_json: For programs.
        more: What else the JSON document says; a command prints it as text in words of its own.
    """
    if as_json:
        print_json(results=[result_as_json(result) for result in results], report=str(report or ""), **more)
        return
    told: set[str] = set()
    for result in results:
        if result.why_detail(results):
            continue
        told.update(result.warnings)
        typer.echo(f"\n{result.sentence()}")
        for number in result.headline().values():
            typer.echo(f"  {number.label}: {number!r}")
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


def result_as_json(result: Result) -> dict[str, Any]:
    """A result as every command prints it."""
    return entry(
        result.measurement,
        result.subject,
        result.sentence(),
        result.headline(),
        tables=result.tables(),
        facts=result.facts(),
        warnings=result.warnings,
        provenance=result.provenance,
    )


def entry(
    measurement: str,
    subject: str,
    sentence: str,
    numbers: Mapping[str, Number],
    *,
    tables: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    facts: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
    provenance: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One entry of ``"results"``, all its keys there whether or not there is something to say."""
    return {
        "measurement": measurement,
        "subject": subject,
        "sentence": sentence,
        "numbers": numbers_as_json(numbers),
        "tables": tables or {},
        "facts": facts or {},
        "warnings": warnings,
        "provenance": provenance or {},
    }


def numbers_as_json(numbers: Mapping[str, Number]) -> list[dict[str, Any]]:
    """Numbers with their keys, each of one thing or, by its case, of one of several."""
    parts = ((key.partition(":"), number) for key, number in numbers.items())
    return [{"key": key, "case": case, **_number(number)} for (key, _, case), number in parts]


def write_table(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Write a table of a result as CSV, whole or not at all: a number in the columns ``name``, ``name_low`` and ``name_high``.

    Args:
        rows: As :meth:`biascope.results.result.Result.tables` has them, all with the same columns.
        path: The file.
    """
    from biascope.runs.files import write_atomically

    cells = [_cells(row) for row in rows]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in cells for name in row)))
    writer.writeheader()
    writer.writerows(cells)
    write_atomically(path, text.getvalue().encode())
    return path


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    from biascope.results.estimate import Estimate

    found: dict[str, Any] = {}
    for name, cell in row.items():
        if isinstance(cell, Estimate):
            found |= {name: cell.value, f"{name}_low": cell.low, f"{name}_high": cell.high}
        else:
            found[name] = cell
    return found


def _with_numbers(value: Any) -> Any:
    """The same with every estimate in it as JSON has it."""
    from biascope.results.estimate import Estimate

    if isinstance(value, Estimate):
        return _number(value)
    if isinstance(value, Mapping):
        return {name: _with_numbers(item) for name, item in value.items()}
    return [_with_numbers(item) for item in value] if isinstance(value, list | tuple) else value


def _number(number: Estimate) -> dict[str, Any]:
    known = number.as_dict()
    ends = [known["low"], known["high"]]
    return {
        "label": known.get("label", ""),
        "value": known["value"],
        "standard_error": known["standard_error"],
        "interval": None if None in ends else ends,
        "confidence": known["confidence"],
        "unit": known.get("unit", ""),
    }
