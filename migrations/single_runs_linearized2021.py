"""Take back spreads of chapter 4's committed numbers that were never measured.

A number of one training, or of one initialisation, is not exact: its standard error and its interval become unknown. So do those of
numbers whose interval was that of test samples alone. Values stay as they are. A second run changes nothing. Run once for version
0.2.0, from the root of the checkout, or with the folder of other results:

    python migrations/single_runs_linearized2021.py [FOLDER]
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from biascope.papers.reproduce import RESULTS
from biascope.runs.files import write_atomically

# By file, which numbers of runs with one seed have no known spread: patterns of their keys.
SINGLE: dict[str, str] = {
    **dict.fromkeys(("4.2", "B.1", "B.2"), r".*_index_where_the_curves_cross"),
    **dict.fromkeys(("4.3", "B.3", "B.4"), r".*_last_over_first"),
    **dict.fromkeys(("4.5", "4.7", "4.8", "4.9", "4.10", "4.11", "4.12", "table-4.1"), r".*"),
}


def without_spread(number: dict[str, Any]) -> dict[str, Any]:
    """The same number, its spread unknown."""
    return {**number, "standard_error": None, "low": None, "high": None, "confidence": 0.95}


def migrated(document: dict[str, Any], pattern: str) -> dict[str, Any]:
    """A committed file, in which the numbers of runs that name no seeds beyond the first have no spread."""
    for record in document["efforts"].values():
        if record["settings"].get("seed") == 0 and not any(key.startswith("seeds") for key in record["settings"]):
            numbers = record["statistics"]
            record["statistics"] = {
                key: without_spread(number) if re.fullmatch(pattern, key) else number for key, number in numbers.items()
            }
    return document


def main(folder: Path) -> None:
    """Rewrite the files of a folder of committed results."""
    for name, pattern in SINGLE.items():
        path = folder / "linearized2021" / f"{name}.json"
        if path.exists():
            document = migrated(json.loads(path.read_bytes()), pattern)
            write_atomically(path, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)
