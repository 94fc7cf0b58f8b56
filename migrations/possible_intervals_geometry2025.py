"""Correct the committed results of the 2025 paper: intervals of shares and correlations end where these numbers can lie.

Estimates from products of different networks have no bias, but their intervals can pass 0 or 1. The measurement now ends them
there, and a value above 1 is 1. Standard errors stay as they are. No verdict changes. A second run
changes nothing. Run once for version 0.2.0, from the root of the checkout, or with the folder of other results:

    python migrations/possible_intervals_geometry2025.py [FOLDER]
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from biascope.papers.geometry2025.theory import as_possible
from biascope.papers.reproduce import RESULTS
from biascope.results.estimate import Estimate, Number
from biascope.results.store import plain
from biascope.runs.files import write_atomically

#: By figure, the keys of shares. Differences are not among them.
SHARES = {
    "conjecture 2": r".*_within_50_directions(_of_s)?",
    "9": r".*_share_of_norm_g_norm_2_.*",
    "A.5": r"pooled_share_off_the_diagonal",
}
#: The keys of correlations, and the figures that have them from products of different networks.
CORRELATIONS = r"(?!.*(slope|minus|change)).*corr_.*"
OF_CORRELATIONS = ("3.1", "9", "A.3", "A.5", "A.11", "A.12", "proposition A.1")


def possible(number: str, key: str, found: Number) -> Estimate:
    """A number as it is measured now."""
    if re.fullmatch(SHARES.get(number, "$^"), key):
        return found.within(0.0, 1.0)
    if number in OF_CORRELATIONS and re.fullmatch(CORRELATIONS, key):
        return as_possible(found)
    return found


def corrected(number: str, statistics: dict[str, Any]) -> dict[str, Any]:
    """The statistics of one record."""
    known = {key: Number.from_dict(entry) for key, entry in statistics.items()}
    return {
        key: plain(possible(number, key, each).named(each.label, each.unit).as_dict()) for key, each in known.items()
    }


def migrated(path: Path) -> bool:
    """Rewrite one file; False if nothing changes."""
    document = json.loads(path.read_text(encoding="utf-8"))
    changed = False
    for record in document["efforts"].values():
        statistics = corrected(document["figure"], record["statistics"])
        changed = changed or statistics != record["statistics"]
        record["statistics"] = statistics
    if changed:
        write_atomically(path, (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return changed


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else RESULTS
    files = sorted((folder / "geometry2025").glob("*.json"))
    print(f"{sum(map(migrated, files))} of {len(files)} files rewritten")
