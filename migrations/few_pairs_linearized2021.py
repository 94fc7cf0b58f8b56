"""Widen committed rank correlations of chapter 4 that rest on few pairs.

Five or six directions in perfect order stay so however they are resampled, so their intervals had no width. Now the interval covers
Fisher's too (:func:`biascope.results.estimate.wide_enough_for_ranks`). Values stay as they are, and no interval gets narrower. A second
run changes nothing. Run once for version 0.2.0, from the root of the checkout, or with the folder of other results:

    python migrations/few_pairs_linearized2021.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from biascope.papers.reproduce import RESULTS
from biascope.results.estimate import Number, wide_enough_for_ranks
from biascope.results.wording import snake
from biascope.runs.files import write_atomically


def pairs_of(key: str, settings: dict[str, Any]) -> int | None:
    """Over how many eigenfunctions or directions of its network a rank correlation was taken."""
    for setting, places in settings.items():
        kind, _, title = setting.partition(": ")
        if kind in ("learned", "directions") and key.removeprefix("linearised_").startswith(
            f"{snake(title)}_rank_corr"
        ):
            return len(places)
    return None


def corrected(key: str, entry: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """A number with an interval that is wide enough; others as they are."""
    count = pairs_of(key, settings)
    if count is None or entry["low"] is None:
        return entry
    number = Number.from_dict(entry)
    return wide_enough_for_ranks(number, count).named(number.label, number.unit).as_dict()


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
