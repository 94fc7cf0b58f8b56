"""Correct the committed results of chapter 4: numbers in which all seeds agree lose their interval of no width.

Three seeds that all have 100 % do not show that a fourth has 100 %: the spread is unknown. Values stay as they are. The claims on the
share of alignments that grew are withdrawn, because no interval around a share of 1 can lie above 1. A second run changes nothing.
Run once for version 0.2.0, from the root of the checkout, or with the folder of other results:

    python migrations/agreeing_seeds_linearized2021.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from biascope.papers.reproduce import RESULTS
from biascope.runs.files import write_atomically

WITHDRAWN = "share_of_the_others_that_grew"


def corrected(entry: dict[str, Any]) -> dict[str, Any]:
    """A number without the interval of no width; exact numbers have a confidence of 1 and keep theirs."""
    if entry["standard_error"] == 0 and entry["confidence"] < 1:
        return {**entry, "standard_error": None, "low": None, "high": None}
    return entry


def migrated(path: Path) -> bool:
    """Rewrite one file; False if nothing changes."""
    document = json.loads(path.read_text(encoding="utf-8"))
    changed = False
    for record in document["efforts"].values():
        statistics = {key: corrected(entry) for key, entry in record["statistics"].items()}
        claims = [claim for claim in record["claims"] if not claim["statistic"].endswith(WITHDRAWN)]
        changed = changed or statistics != record["statistics"] or claims != record["claims"]
        record |= {"statistics": statistics, "claims": claims}
    if changed:
        write_atomically(path, (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return changed


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else RESULTS
    files = sorted((folder / "linearized2021").glob("*.json"))
    print(f"{sum(map(migrated, files))} of {len(files)} files rewritten")
