"""Take back spreads of the 2025 paper's committed numbers that were never measured, and add what claims on many cells need.

- A number of one training, or of one set of random draws, is not exact: its standard error and its interval become unknown. So do those
  of numbers whose interval was that of test samples alone.
- Claims on tables 1 and 2, on figure 9 and on conjecture 2 are decided by a number over several committed ones. It is computed from
  these by the functions of the figures. In figure 3, runs whose training accuracy is the same to the last sample, at chance, have one
  answer for all samples.
- Settings get the names under which they are compared with the published ones. The plans of these runs are still those of the code,
  which is checked.

Values stay as they are. A second run changes nothing. Run once for version 0.2.0, from the root of the checkout, or with the folder of
other results:

    python migrations/single_runs_geometry2025.py [FOLDER]
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from biascope.papers.geometry2025 import circles, learning, motion, samples, theory
from biascope.papers.geometry2025.samples import over_cells
from biascope.papers.geometry2025.theory import difference
from biascope.papers.reproduce import RESULTS
from biascope.results.estimate import Estimate, Number
from biascope.results.store import plain
from biascope.runs.files import write_atomically

Record = dict[str, Any]

# By file and effort, which numbers have no known spread: patterns of their keys.
SINGLE: dict[tuple[str, str], str] = {
    ("2", "laptop"): r".*_correlation_of_the_identity_with_gsg",
    ("3", "laptop"): r".*_velocity_on_g_over_flip_g",
    ("3", "paper"): r".*_velocity_on_g_over_flip_g",
    ("4", "laptop"): r".*",
    ("5", "laptop"): r".*",
    ("8", "paper"): r".*_correlation_of_the_identity_with_gsg",
    ("10", "laptop"): r".*",
    ("10", "paper"): r"(resnet_18|vit)_.*|.*_share_kept_linear_minus_.*",
    ("11", "laptop"): r"(?!parameters$).*",
    ("12", "laptop"): r".*_velocity_on_g_over_flip_g",
    ("13", "laptop"): r".*_velocity_on_g_over_flip_g",
    ("14", "laptop"): r".*",
    ("14", "paper"): r".*",
    ("A.4", "laptop"): r".*_corr_i_gsg",
    ("A.4", "paper"): r".*_corr_i_gsg",
    ("table-1", "laptop"): r".*_(kept_by_score|that_stayed_below_15_percent)",
    ("table-1", "paper"): r".*_(kept_by_score|that_stayed_below_15_percent)",
    ("table-2", "paper"): r".*_(kept_by_score|that_stayed_below_15_percent)",
}


def without_spread(number: dict[str, Any]) -> dict[str, Any]:
    """The same number, its spread unknown."""
    return {**number, "standard_error": None, "low": None, "high": None, "confidence": 0.95}


def of_tables(record: Record, numbers: dict[str, Number]) -> dict[str, Number]:
    """The numbers over all cells of clipped trainings."""
    images = int(re.search(r"([\d,]+) test images", record["settings"]["data"])[1].replace(",", ""))  # type: ignore[index]
    found: dict[str, Number] = {}
    for name, title in (("lenet", "LeNet, clipped"), ("vit", "ViT, clipped")):
        _, runs, epochs = record["settings"]["percent, runs, epochs"].get(name, [[], 0, 0])
        found |= over_cells(name, f"{name}_clipped", title, numbers, runs=runs, test=images, epochs=epochs)
    return found


def of_figure_9(record: Record, numbers: dict[str, Number]) -> dict[str, Number]:
    """How far Corr(G, I) of the other networks is below that of the MLP."""
    found: dict[str, Number] = {}
    for key, title in (("lenet", "LeNet"), ("resnet_18", "ResNet-18"), ("vit", "ViT")):
        if f"{key}_corr_g_i" in numbers:
            below = difference(numbers["mlp_corr_g_i"], numbers[f"{key}_corr_g_i"])
            words = f"{title}: Corr(G, I) of the MLP minus its own"
            found[f"{key}_corr_g_i_below_that_of_the_mlp"] = below.named(words)
    return found


def of_conjecture_2(record: Record, numbers: dict[str, Number]) -> dict[str, Number]:
    """How much more of Δ lies within GSG than within S."""
    stem, found, networks = "_share_of_norm_deltat_norm_2_within_50_directions", {}, record["settings"]["plan"][2]
    for key in [key.removesuffix(stem) for key in numbers if key.endswith(stem) and not key.startswith("by_chance")]:
        lead = difference(numbers[f"{key}{stem}"], numbers[f"{key}{stem}_of_s"], networks)
        words = f"{numbers[f'{key}{stem}'].label} of GSG minus those of S"
        found[f"{key}{stem}_of_gsg_minus_s"] = lead.named(words)
    return found


def of_figure_3(record: Record, numbers: dict[str, Number]) -> dict[str, Number]:
    """Networks that have one answer for all samples on flip(G), where all runs agree to the last sample."""
    found = {}
    for key, title in (("lenet", "LeNet"), ("resnet_18", "ResNet-18")):
        accuracy = numbers.get(f"{key}_training_accuracy_on_flip_g_percent")
        if accuracy is not None and accuracy.standard_error == 0 and abs(accuracy.value - 50) < 5:
            words = f"{title}: runs on flip(G) with more than one answer"
            found[f"{key}_runs_on_flip_g_with_more_than_one_answer_percent"] = Estimate(0.0).named(words, "%")
    return found


ADDED: dict[str, Callable[[Record, dict[str, Number]], dict[str, Number]]] = {
    "3": of_figure_3,
    "9": of_figure_9,
    "conjecture-2": of_conjecture_2,
    "table-1": of_tables,
    "table-2": of_tables,
}


def _moving(effort: str, settings: Record, plans: dict[str, dict[str, motion.Plan]]) -> Record:
    rates = dict.fromkeys(plans[effort], settings["rate"])
    return motion.moving_settings(plans[effort], settings["optimiser"], rates)


def _of_images(words: str) -> Record:
    """Of words such as "CIFAR-2, 10,000 train and 100 test samples, of 32 × 32 pixels"."""
    train, side = re.search(r", ([\d,]+) train .* of (\d+) ×", words).groups()  # type: ignore[union-attr]
    return {"training samples": int(train.replace(",", "")), "side of the images": int(side)}


# By file: the settings of a run at an effort, given those that it recorded.
SETTINGS: dict[str, Callable[[str, Record], Record]] = {
    "1": lambda effort, _: circles.settings_1(effort),
    "2": lambda effort, settings: _moving(effort, settings, motion.MOVING),
    "3": lambda effort, _: motion.settings_3(effort),
    "4": lambda effort, _: learning.settings_4(effort),
    "5": lambda effort, _: circles.settings_5(effort),
    "6": lambda effort, _: samples.settings_6(effort),
    "7": lambda _, settings: _of_images(settings["samples"]),
    "8": lambda effort, settings: _moving(effort, settings, motion.RANDOM),
    "9": lambda effort, _: theory.settings_of_geometries(effort),
    "10": lambda effort, _: learning.settings_10(effort),
    "11": lambda effort, _: learning.settings_11(effort),
    "12": lambda effort, _: motion.settings_by_size(effort, growing_batch=False),
    "13": lambda effort, _: motion.settings_by_size(effort, growing_batch=True),
    "14": lambda effort, _: learning.settings_14(effort),
    "A.12": lambda effort, _: theory.settings_of_geometries(effort),
    # At laptop effort no training was clipped yet.
    "table-1": lambda effort, _: (
        samples.settings_of_table("1", effort) | ({"clip": "none"} if effort == "laptop" else {})
    ),
    "table-2": lambda effort, _: samples.settings_of_table("2", effort),
}


def with_names(stem: str, effort: str, settings: Record) -> Record:
    """The settings of a run, with the names under which they are compared."""
    if stem not in SETTINGS:
        return settings
    named: Record = plain(SETTINGS[stem](effort, settings))
    recorded = settings.get("draws")
    for name, count in recorded.items() if isinstance(recorded, dict) else ():
        drawn = named.get(f"draws of G: {learning.TITLES[name]}", count)
        if drawn != count:
            raise ValueError(f"{stem}, {effort}: the code draws {drawn} {name} for G, and the run drew {count}.")
    return settings | named


def migrated(path: Path) -> bool:
    """Rewrite one file; False if there is nothing to change."""
    before = path.read_bytes()
    document = json.loads(before)
    for effort, record in document["efforts"].items():
        record["settings"] = with_names(path.stem, effort, record["settings"])
        statistics = record["statistics"]
        pattern = SINGLE.get((path.stem, effort))
        for key in statistics if pattern else ():
            if re.fullmatch(pattern or "", key):
                statistics[key] = without_spread(statistics[key])
        numbers = {key: Number.from_dict(each) for key, each in statistics.items()}
        if path.stem in ADDED:
            added = ADDED[path.stem](record, numbers)
            statistics |= {key: each.as_dict() for key, each in added.items() if key not in statistics}
    after = (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    if after == before:
        return False
    write_atomically(path, after)
    return True


if __name__ == "__main__":
    folder = (Path(sys.argv[1]) if sys.argv[1:] else RESULTS) / "geometry2025"
    files = sorted(folder.glob("*.json"))
    print(f"{sum(map(migrated, files))} of {len(files)} files rewritten")
