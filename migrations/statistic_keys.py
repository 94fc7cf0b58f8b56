"""Rewrite the committed results of papers from format 1, where numbers were known by their words, to format 2 with keys.

Values, intervals, settings, dates, claims and verdicts stay as they are. A file of format 2 is left alone, so that a second run changes
nothing. Run once for version 0.2.0, from the root of the checkout, or with the folder of other results:

    python migrations/statistic_keys.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from biascope.papers.reproduce import RESULTS
from biascope.results.claim import FORMAT, Record
from biascope.results.store import plain
from biascope.runs.files import write_atomically


def migrated(path: Path) -> bool:
    """Rewrite one file; False if it has the new format already."""
    document = json.loads(path.read_text(encoding="utf-8"))
    if document["format"] == FORMAT:
        return False
    records = {effort: Record.from_json(entry) for effort, entry in document["efforts"].items()}
    for effort, entry in document["efforts"].items():
        before, after = list(entry["statistics"].values()), list(records[effort].statistics.values())
        kept = [
            plain({name: number.as_dict()[name] for name in old}) for old, number in zip(before, after, strict=True)
        ]
        if kept != before:
            raise ValueError(f"{path} must keep its numbers, and does not at {effort} effort.")
    document |= {"format": FORMAT, "efforts": {effort: record.as_json() for effort, record in records.items()}}
    write_atomically(path, (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return True


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else RESULTS
    files = sorted(folder.rglob("*.json"))
    print(f"{sum(map(migrated, files))} of {len(files)} files rewritten")
