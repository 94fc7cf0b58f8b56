"""SHOW: what a command found, as text or in the one JSON shape of all commands, on standard output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from biascope.results.estimate import Number
    from biascope.results.result import Result

VERSION = 1  # of the JSON shape; raised when a key is renamed, removed or means something else


def print_json(**content: Any) -> None:
    """A document of any command: ``{"version": 1, ...}``."""
    from biascope.results.store import plain

    typer.echo(json.dumps(plain({"version": VERSION, **content}), indent=1, ensure_ascii=False))


def print_results(results: Sequence[Result], report: Path | None, as_json: bool) -> None:
    """What was found, and where the report is."""
    if as_json:
        print_json(results=[result_as_json(result) for result in results], report=str(report or ""))
        return
    for result in results:
        typer.echo(f"\n{result.sentence()}")
        for number in result.headline().values():
            typer.echo(f"  {number.label}: {number!r}")
        for warning in result.warnings:
            typer.echo(f"  Warning: {warning}")
    if report is not None:
        typer.echo(f"\nReport: {report}")


def result_as_json(result: Result) -> dict[str, Any]:
    """A result as every command prints it."""
    return {
        "measurement": result.measurement,
        "subject": result.subject,
        "sentence": result.sentence(),
        "numbers": numbers_as_json(result.headline()),
        "tables": {name: [_row(row) for row in rows] for name, rows in result.tables().items()},
        "facts": result.facts(),
        "warnings": result.warnings,
        "provenance": result.provenance,
    }


def numbers_as_json(numbers: Mapping[str, Number]) -> list[dict[str, Any]]:
    """Numbers with their keys, each of one thing or, by its case, of one of several."""
    parts = ((key.partition(":"), number) for key, number in numbers.items())
    return [{"key": key, "case": case, **_number(number)} for (key, _, case), number in parts]


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    from biascope.results.estimate import Estimate

    return {name: _number(cell) if isinstance(cell, Estimate) else cell for name, cell in row.items()}


def _number(number: Any) -> dict[str, Any]:
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
