"""Correct chapter 6's committed numbers of searches that end at their border.

A search may keep the start in every repeat. Then the gain is 0 by construction. It was written with an interval of no width, as if it
had been measured. It loses its interval, and its label says that no edit was chosen. The interval of a coefficient reached beyond the
coefficients that were searched, from 0 to 1; it is cut there. No value changes. What claims rest on is left alone. A second run
changes nothing. Run once for version 0.2.0, from the root of the checkout, or with the folder of other results:

    python migrations/unedited_gains_task_arithmetic2023.py [RESULTS]
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from biascope.papers.reproduce import RESULTS
from biascope.results.claim import Record
from biascope.results.estimate import Estimate
from biascope.runs.files import write_atomically

PAPER = "task_arithmetic2023"
SEARCHED = (0.0, 1.0)  # coefficients of every committed search


def corrected(record: Record) -> Record:
    """A run with honest intervals; what claims rest on is left alone."""
    numbers = dict(record.statistics)
    used = {claim.statistic for claim, _ in record.claims}
    for key, number in record.statistics.items():
        if key in used:
            continue
        if "_gain_" in key and number.value == number.low == number.high == 0:
            numbers[key] = Estimate(0.0).named(f"{number.label}; no edit was chosen", number.unit)
        elif "_coefficient_" in key:
            numbers[key] = number.within(*SEARCHED).named(number.label, number.unit)
    return dataclasses.replace(record, statistics=numbers)


def main(results: Path) -> int:
    """Rewrite the files of a folder of committed results, and return how many changed."""
    changed = 0
    for path in sorted((results / PAPER).glob("*.json")):
        document: dict[str, Any] = json.loads(path.read_bytes())
        efforts = {name: corrected(Record.from_json(entry)).as_json() for name, entry in document["efforts"].items()}
        if efforts == document["efforts"]:
            continue
        changed += 1
        left = {**document, "efforts": efforts}
        write_atomically(path, (json.dumps(left, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return changed


if __name__ == "__main__":
    print(f"{main(Path(sys.argv[1]) if sys.argv[1:] else RESULTS)} files changed")
