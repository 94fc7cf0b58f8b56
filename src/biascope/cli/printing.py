"""SHOW: results as text or JSON on standard output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
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
        for name, estimate in result.headline().items():
            typer.echo(f"  {name}: {estimate!r}")
        for warning in result.warnings:
            typer.echo(f"  Warning: {warning}")
    if report is not None:
        typer.echo(f"\nReport: {report}")


def _as_json(result: Result) -> dict[str, Any]:
    numbers = {
        name: {key: None if value != value else value for key, value in estimate.as_dict().items()}
        for name, estimate in result.headline().items()
    }
    return {
        "subject": result.subject,
        "measurement": result.measurement,
        "headline": numbers,
        "warnings": result.warnings,
        "provenance": result.provenance,
    }
