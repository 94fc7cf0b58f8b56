"""Correct what the committed results of the paper on pattern statistics say about errors and training, from numbers that they hold.

1. A median over random settings and two quotients over runs were printed without an error. Their spread is now unknown.
2. The evidence that networks trained is the share of runs that converged, from the two recorded counts. Figures 5 to 7 show the
   networks of figure 2, whose least training accuracy is copied.

A file that has been rewritten is left alone, and so are later runs, whose code knows these spreads. Run from the root of the
checkout, or with the folder of other results:

    python migrations/single_runs_patterns2021.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from biascope.papers.reproduce import RESULTS
from biascope.results.estimate import Estimate
from biascope.runs.files import write_atomically

LATER = "2026-11-18"  # from this day on the code has spreads
WITHOUT_SPREAD = (
    "f_3_median_count_over_the_printed_one",
    "chance_that_ten_of_our_runs_have_a_mean_as_far_off_as_the_published_one",
    "share_of_errors_on_the_label_that_was_rarer_in_training",
)


def rewrite(record: dict[str, Any], digits: dict[str, Any]) -> bool:
    """Rewrite one record, given that of figure 2 at the same effort; whether anything was to be done."""
    numbers, before = record["statistics"], json.dumps(record["statistics"])
    for key, number in numbers.items():
        if key.endswith(WITHOUT_SPREAD) and record["date"] < LATER:
            number |= {"standard_error": None, "low": None, "high": None, "confidence": 0.95}
    if "runs_that_did_not_converge" in numbers:
        share = 1 - numbers["runs_that_did_not_converge"]["value"] / numbers["runs"]["value"]
        named = Estimate.exact(share).named("share of runs that converged")
        numbers["share_of_runs_that_converged"] = named.as_dict()
    if record["figure"] == "5-7":
        if record["settings"]["runs by m"] != digits["settings"]["runs by m"]:
            raise ValueError("figures 2 and 5-7 must show the same networks, and do not.")
        numbers["least_train_accuracy"] = digits["statistics"]["least_train_accuracy"]
    return json.dumps(numbers) != before


def migrated(folder: Path) -> int:
    """Rewrite the files of one folder; how many were."""
    count = 0
    digits = json.loads((folder / "2.json").read_text(encoding="utf-8"))["efforts"]
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        done = [rewrite(record, digits.get(effort, {})) for effort, record in document["efforts"].items()]
        if any(done):
            write_atomically(
                path, (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
            )
            count += 1
    return count


if __name__ == "__main__":
    results = Path(sys.argv[1]) if sys.argv[1:] else RESULTS
    print(f"{migrated(results / 'patterns2021')} files rewritten")
