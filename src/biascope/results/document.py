"""WHAT: results as documents: the one JSON shape of commands and reports, and tables as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from biascope.results.estimate import Estimate, Number
from biascope.results.result import Result
from biascope.results.store import plain

VERSION = 1  # of the JSON shape; raised when a key is renamed, removed or means something else


def as_document(**content: Any) -> str:
    """A JSON document: ``{"version": 1, ...}``."""
    return json.dumps(plain(_with_numbers({"version": VERSION, **content})), indent=1, ensure_ascii=False)


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


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV: a number in the columns ``name``, ``name_low`` and ``name_high``.

    Example:
        >>> csv_text([{"network": "lenet", "rank": Estimate(74.0, 3.5, 66.0, 81.0)}]).split()
        ['network,rank,rank_low,rank_high', 'lenet,74.0,66.0,81.0']
    """
    cells = [_cells(row) for row in rows]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in cells for name in row)))
    writer.writeheader()
    writer.writerows(cells)
    return text.getvalue()


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, cell in row.items():
        if isinstance(cell, Estimate):
            found |= {name: cell.value, f"{name}_low": cell.low, f"{name}_high": cell.high}
        else:
            found[name] = cell
    return found


def _with_numbers(value: Any) -> Any:
    """The same with every estimate in it as JSON has it."""
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
