"""Correct the committed results of the 2020 paper: numbers of single runs lose their error bars, and unfair samples are withdrawn.

A number from one training has no known spread: the interval of its test sample is not that of another seed. Numbers of large
networks at every 4th, 8th or 16th frequency are removed, because ResNet-18's map is a lattice of spacing 4. The numbers of figure 7 are
named after LeNet, which was trained, and those of figure S17 after the Gram matrix, which was averaged. Values stay as they are. Two
differences of committed numbers are added, because claims are about them now. A second run changes nothing. Run once for version
0.2.0, from the root of the checkout, or with the folder of other results:

    python migrations/single_runs_nads2020.py [FOLDER]
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from biascope.papers.reproduce import RESULTS
from biascope.results.estimate import Number
from biascope.results.store import plain
from biascope.runs.files import write_atomically

CORRECTED = "2026-11-16"  # runs from then on are right
#: By figure, the keys of numbers from a single run.
SINGLE = {
    "1": r".*_(highest|lowest)_accuracy",
    "4": r"largest_deviation_.*",
    "5": r"(similarity_of|greatest_similarity_of)_.*",
    "6": r".*_(lowest_accuracy|first_minus_last_accuracy|effective_rank_of_the_spectrum_shown|index_of_the_drop)",
    "7": r".*",
    "8": r".*",
    "S11": r"lenet_lowest_accuracy(_at_sigma_\d)?",  # logistic regression has 100 % in each of its 102 trainings
    "S17-S19": r".*",
    "S21": r".*_lowest_accuracy",
    "S22": r".*",
}
#: By figure, the keys of numbers from every 4th, 8th or 16th frequency.
UNFAIR = dict.fromkeys(("1", "2", "3", "S11"), r"(vgg11|resnet_18)_.*")
RENAMED = {
    ("S17-S19", "lenet_similarity_of_the_first_ten"): "lenet_similarity_of_the_first_ten_of_the_gram_matrix",
    (
        "S17-S19",
        "lenet_agreement_of_halves_mixed_minus_gradient",
    ): "lenet_agreement_of_halves_of_the_gram_matrix_minus_gradient",
}
#: A rank correlation over three networks may have any value by chance.
OVER_THREE = ("6", "rank_correlation_of_effective_rank_and_drop")


def derived(number: str, statistics: dict[str, Any]) -> dict[str, Any]:
    """Differences of two committed numbers that claims are about now, the two taken as independent."""
    names = {
        "5": ("resnet_18_energy_on_a_comb_minus_others", "resnet_18_energy_on_a_comb", "vgg11_energy_on_a_comb"),
        "S11": (
            "lenet_accuracy_lost_from_sigma_1_to_3",
            "lenet_mean_accuracy_at_sigma_1",
            "lenet_mean_accuracy_at_sigma_3",
        ),
    }
    if number not in names or names[number][1] not in statistics:
        return {}
    key, *parts = names[number]
    one, two = (Number.from_dict(statistics[part]) for part in parts)
    label = f"{one.label}, minus {two.label}"
    return {key: plain(one.minus(two).named(label, one.unit).as_dict())}


def corrected(number: str, statistics: dict[str, Any]) -> dict[str, Any]:
    """The statistics of one record."""
    found = {}
    for key, entry in statistics.items():
        if re.fullmatch(UNFAIR.get(number, "$^"), key):
            continue
        if re.fullmatch(SINGLE.get(number, "$^"), key):
            entry = {**entry, "standard_error": None, "low": None, "high": None, "confidence": 0.95}
        if (number, key) == OVER_THREE:
            entry = {**entry, "standard_error": None, "low": -1.0, "high": 1.0, "confidence": 0.95}
        if number == "7" and not key.startswith("lenet_"):
            key, entry = f"lenet_{key}", {**entry, "label": f"LeNet: {entry['label']}"}
        found[RENAMED.get((number, key), key)] = entry
    return derived(number, found) | found


def migrated(path: Path) -> bool:
    """Rewrite one file; False if nothing changes. Claims leave a record together with the number that decided them."""
    document = json.loads(path.read_text(encoding="utf-8"))
    changed = False
    for record in document["efforts"].values():
        if record["date"] >= CORRECTED:
            continue
        statistics = corrected(document["figure"], record["statistics"])
        gone = record["statistics"].keys() - statistics.keys()
        claims = [claim for claim in record["claims"] if claim["statistic"] not in gone]
        changed = changed or statistics != record["statistics"] or claims != record["claims"]
        record |= {"statistics": statistics, "claims": claims}
    if changed:
        write_atomically(path, (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return changed


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else RESULTS
    files = sorted((folder / "nads2020").glob("*.json"))
    print(f"{sum(map(migrated, files))} of {len(files)} files rewritten")
