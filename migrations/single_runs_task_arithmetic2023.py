"""Correct what the committed results of chapter 6 (task arithmetic) say about their errors, from numbers that they hold.

1. Numbers of one seed that had no spread over test samples were printed without an error. Their spread is now unknown.
2. Differences between editing methods had errors over three seeds alone. The error of the test samples is joined, as if the two methods
   had been tested on different samples: the record does not say on which samples they agree, so that the interval is rather too wide.
3. The evidence that encoders were fine-tuned is the share of errors that fine-tuning removes. It is computed from recorded test
   accuracies. All figures of this run share the fine-tunings of tables 6.1 and 6.3, as their notes say.
4. Learning rates are settings of their own, under the names that the figures use.

A file that has been rewritten is left alone. Run from the root of the checkout, or with the folder of other results:

    python migrations/single_runs_task_arithmetic2023.py [FOLDER]
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from biascope.papers.reproduce import RESULTS
from biascope.papers.task_arithmetic2023.tasks import CNN, CONTROL, TEXT, VIT, rate_key
from biascope.results.estimate import Estimate
from biascope.results.wording import snake
from biascope.runs.files import write_atomically

ONE_SEED = ("6.4", "6.10", "D.2", "table-6.3")
TUNINGS = ("non-linear", "linearised")
METHODS = ("non_linear", "post_hoc", "linearised", "pre_trained")
#: Test samples of the tasks in this run; its notes say which tasks had fewer than 2,000.
IMAGES = {"cifar10": 1500, "mnist": 2000, "fashion-mnist": 2000, "kmnist": 2000, "usps": 2000, "gtsrb": 1500}
IMAGES |= {"cars20": 237, "dtd10": 300}
TEXTS = {"sst2": 1821, "trec": 500, "agnews": 2000}

Numbers = dict[str, dict[str, Any]]


def unknown_spread(numbers: Numbers) -> None:
    """One run without an error bar: its spread is unknown."""
    for number in numbers.values():
        if number["standard_error"] == 0:
            number |= {"standard_error": None, "low": None, "high": None, "confidence": 0.95}


def sample_error(accuracies: tuple[float, float], sizes: dict[str, int]) -> float:
    """Standard error in points of a difference between two mean accuracies in percent, on independent test samples."""
    variance = sum(accuracy / 100 * (1 - accuracy / 100) for accuracy in accuracies)
    return 100 * math.sqrt(variance * sum(1 / size for size in sizes.values())) / len(sizes)


def joined(number: dict[str, Any], error: float) -> dict[str, Any]:
    """The number with another error joined to its own."""
    value, reach = number["value"], math.hypot(number["high"] - number["value"], 1.96 * error)
    own = math.hypot(number["standard_error"], error)
    return number | {"standard_error": own, "low": value - reach, "high": value + reach}


def join_samples(numbers: Numbers, place: str, table: Numbers) -> None:
    """Join the error of test samples to differences of accuracies."""
    row = {"6.2": "single", "table-6.1": "absolute", "table-6.2": "target"}[place]
    for name in (CNN, VIT, TEXT):
        sizes = TEXTS if name == TEXT else IMAGES
        if place == "table-6.2":  # the control task is no target
            sizes = {task: size for task, size in sizes.items() if task != CONTROL}
        for key in [key for key in numbers if key.startswith(f"{snake(name)}_") and "_minus_" in key]:
            one, other = (next(way for way in METHODS if way in part) for part in key.split("_minus_"))
            # Without an edit the two are the same predictions, and there is no difference to have an error.
            edits = [way for way in (one, other) if way != "pre_trained"]
            if place == "table-6.1" and not any(table[f"{snake(name)}_coefficient_{way}"]["value"] for way in edits):
                continue
            accuracies = tuple(numbers[f"{snake(name)}_{way}_{row}_percent"]["value"] for way in (one, other))
            share = table[f"{snake(name)}_{one}_single_percent"]["value"] / 100 if "normalised" in key else 1.0
            numbers[key] = joined(numbers[key], sample_error((accuracies[0], accuracies[1]), sizes) / share)


def progress(table: Numbers, start: str) -> Numbers:
    """Share of the errors of the start that fine-tuning removes, on the test samples of single tasks."""
    found = {}
    for name in (CNN, VIT, TEXT):
        if f"{snake(name)}_pre_trained_absolute_percent" not in table:
            continue
        before = table[f"{snake(name)}_pre_trained_absolute_percent"]["value"]
        for tuning in TUNINGS:
            single = Estimate.from_dict(
                {
                    part: table[f"{snake(name)}_{snake(tuning)}_single_percent"][part]
                    for part in ("value", "standard_error", "low", "high", "confidence")
                }
            )
            share = single.map_linear(100 / (100 - before), -100 * before / (100 - before))
            words = f"{name}: share of the test errors that {tuning} fine-tuning removes"
            key = snake(" ".join(filter(None, (name, start, tuning, "progress"))))
            found[key] = share.named(f"{words}, from {start} weights" if start else words, "%").as_dict()
    return found


def encoders_of(numbers: Numbers, evidence: Numbers) -> Numbers:
    """The evidence about encoders that a record has numbers of."""
    there = [snake(name) for name in (CNN, VIT, TEXT) if any(key.startswith(f"{snake(name)}_") for key in numbers)]
    return {key: each for key, each in evidence.items() if any(key.startswith(f"{name}_") for name in there)}


def migrated(folder: Path) -> int:
    """Rewrite the files of one folder; how many were."""
    documents = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    records = {place: each["efforts"]["paper"] for place, each in documents.items() if "paper" in each["efforts"]}
    if any(key.endswith("_progress") for record in records.values() for key in record["statistics"]):
        return 0
    table, random = (records[place]["statistics"] for place in ("table-6.1", "table-6.3"))
    evidence, from_random = progress(table, ""), progress(random, "random")
    for place, record in records.items():
        numbers = record["statistics"]
        if place in ONE_SEED:
            unknown_spread(numbers)
        if place in ("6.2", "table-6.1", "table-6.2"):
            join_samples(numbers, place, table)
        if place in ("table-6.3", "6.10"):
            numbers |= encoders_of(numbers, from_random)
        if place not in ("6.9", "table-6.3"):
            numbers |= encoders_of(numbers, evidence)
        rates = record["settings"].pop("rates")
        record["settings"] |= {rate_key(name, way): rate for name, of in rates.items() for way, rate in of.items()}
        if place in (*ONE_SEED, "6.9"):
            record["settings"]["seeds"] = 1
        content = json.dumps(documents[place], indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        write_atomically(folder / f"{place}.json", content.encode())
    return len(records)


if __name__ == "__main__":
    results = Path(sys.argv[1]) if sys.argv[1:] else RESULTS
    print(f"{migrated(results / 'task_arithmetic2023')} files rewritten")
