"""SHOW: results as text or JSON on standard output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from biascope.results.estimate import Number
    from biascope.results.result import Result


def print_results(results: Sequence[Result], report: Path | None, as_json: bool) -> None:
    """What was found, and where the report is."""
    if as_json:
        typer.echo(
            json.dumps({"results": [_as_json(result) for result in results], "report": str(report or "")}, indent=1)
        )
        return
    for result in results:
        typer.echo(f"\n{result.sentence()}")
        for number in result.headline().values():
            typer.echo(f"  {number.label}: {number!r}")
        for warning in result.warnings:
            typer.echo(f"  Warning: {warning}")
    if report is not None:
        typer.echo(f"\nReport: {report}")


def _as_json(result: Result) -> dict[str, Any]:
    return {
        "subject": result.subject,
        "measurement": result.measurement,
        "numbers": [number_as_json(key, number) for key, number in result.headline().items()],
        "warnings": result.warnings,
        "provenance": result.provenance,
    }


def number_as_json(key: str, number: Number) -> dict[str, Any]:
    """A number as every command prints it: its key, of which thing it is, words, value, error, interval and unit."""
    stem, _, case = key.partition(":")
    known = number.as_dict()
    ends = [known.pop("low"), known.pop("high")]
    label, unit, confidence = known.pop("label"), known.pop("unit"), known.pop("confidence")
    interval = None if None in ends else ends
    return {
        "key": stem,
        "case": case,
        "label": label,
        **known,
        "interval": interval,
        "confidence": confidence,
        "unit": unit,
    }
