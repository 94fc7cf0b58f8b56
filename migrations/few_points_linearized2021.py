"""Widen committed means of chapter 4 that rest on few eigenfunctions or directions.

Resampling understates the spread of fewer than 15 points: its standard error divides by n instead of n − 1, and its interval is the
normal one. Now the standard error is that of the mean, and the interval covers Student's (``mean_of`` in the chapter's ``shared.py``).
Values stay as they are, and no interval gets narrower. A second run changes nothing. Run once for version 0.2.0, from the root of the
checkout, or with the folder of other results:

    python migrations/few_points_linearized2021.py [FOLDER]
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from biascope.papers.linearized2021.shared import FEW
from biascope.papers.reproduce import RESULTS
from biascope.results.estimate import Estimate, Number
from biascope.results.wording import snake
from biascope.runs.files import write_atomically

MEANS = ("mean_accuracy", "lead_of_the_linearisation", "lead_over_the_linearisation")
OF_A_SIDE = "smaller_lead_of_the_linearisation_before_and_after_500"


def points_of(key: str, value: float, settings: dict[str, Any]) -> int | None:
    """Over how many eigenfunctions or directions of its network a mean was taken; none for other numbers."""
    for setting, places in settings.items():
        kind, _, title = setting.partition(": ")
        if kind not in ("learned", "directions"):
            continue
        if key.removeprefix("linearised_") in [f"{snake(title)}_{mean}" for mean in MEANS]:
            return len(places)
        if key == f"{snake(title)}_{OF_A_SIDE}":
            return _of_a_side(value, places, settings[f"test samples: {title}"])
    return None


def _of_a_side(value: float, places: Sequence[int], test: int) -> int:
    """How many eigenfunctions the side with the smaller lead has: their leads sum to a whole number of test samples.

    If both sides may be meant, the one with fewer eigenfunctions, whose interval is the wider.
    """
    before = sum(place <= 500 for place in places)
    sides = [before, len(places) - before]
    whole = [count for count in sides if abs(value * count * test / 100 - round(value * count * test / 100)) < 1e-6]
    return min(whole or sides)


def corrected(key: str, entry: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """A number with an interval that is wide enough; others as they are."""
    count = points_of(key, entry["value"], settings) if entry["low"] is not None else None
    if count is None or not 2 <= count < FEW:
        return entry
    number = Number.from_dict(entry)
    possible = (0.0, 100.0) if key.endswith("mean_accuracy") else (-math.inf, math.inf)
    if _covers(number, Estimate.from_error(number.value, number.standard_error, count).within(*possible)):
        return entry
    error = number.standard_error * math.sqrt(count / (count - 1))
    wide = Estimate.from_error(number.value, error, count).within(*possible)
    low, high = min(number.low, wide.low), max(number.high, wide.high)
    return dataclasses.replace(number, standard_error=error, low=low, high=high).as_dict()


def _covers(number: Estimate, other: Estimate) -> bool:
    """Whether an interval holds another one, up to rounding."""
    slack = 1e-9 * max(1.0, abs(number.value))
    return number.low <= other.low + slack and number.high >= other.high - slack


def migrated(path: Path) -> bool:
    """Rewrite one file; False if nothing changes."""
    document = json.loads(path.read_text(encoding="utf-8"))
    changed = False
    for record in document["efforts"].values():
        found = {key: corrected(key, entry, record["settings"]) for key, entry in record["statistics"].items()}
        changed = changed or found != record["statistics"]
        record["statistics"] = found
    if changed:
        write_atomically(path, (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return changed


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else RESULTS
    files = sorted((folder / "linearized2021").glob("*.json"))
    print(f"{sum(map(migrated, files))} of {len(files)} files rewritten")
