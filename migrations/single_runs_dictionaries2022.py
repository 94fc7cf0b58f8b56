"""Correct what the committed results of chapter 5 (implicit representations) say about their errors, from numbers that they hold.

1. The published weights are one network. Numbers about them were printed without an error; their spread is now unknown.
2. Rank correlations over networks, and the best ω₀, had intervals over images alone. They are drawn again from the recorded means and
   errors of each network, over initial weights and images, as if images were not shared: the interval is rather too wide.
3. Differences that claims now ask for are taken from two recorded numbers. Whether the two are correlated is not recorded. So their
   errors are added, which no correlation exceeds.
4. The evidence that networks learned is the share of the error of the untrained network that is gone. Untrained networks say a
   constant, 1/2 (SIRENs) or 0 (others); its PSNR on these faces stands for the one at iteration 0, which was not recorded.

A file that has been rewritten is left alone. Run from the root of the checkout, or with the folder of other results:

    python migrations/single_runs_dictionaries2022.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from biascope.papers.dictionaries2022.energy import META, OMEGAS, PUBLISHED, SIRENS
from biascope.papers.dictionaries2022.meta import removed
from biascope.papers.reproduce import RESULTS
from biascope.results.estimate import Estimate, spearman
from biascope.results.wording import snake
from biascope.runs.files import write_atomically

HALF, ZERO = 11.28, 6.73  # PSNR in dB of the constants 1/2 and 0 on the 100 faces of figure 5.5
MARKS = (10, 50, 100, 500, 1000)

Numbers = dict[str, dict[str, Any]]


def difference(one: dict[str, Any], other: dict[str, Any], label: str, unit: str = "") -> dict[str, Any]:
    """One number minus another, their errors added."""
    value = one["value"] - other["value"]
    reach = sum(max(each["high"] - each["value"], each["value"] - each["low"]) for each in (one, other))
    error = one["standard_error"] + other["standard_error"]
    return Estimate(value, error, value - reach, value + reach).named(label, unit).as_dict()


def mapped(number: dict[str, Any], change: Callable[[float], float], label: str, unit: str) -> dict[str, Any]:
    """A growing function of a number and of the ends of its interval."""
    low, value, high = (change(number[part]) for part in ("low", "value", "high"))
    return Estimate(value, (high - low) / 3.92, low, high).named(label, unit).as_dict()


def drawn(statistic: Callable[..., float], *rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A statistic of the numbers of several networks, its interval by drawing each from its error."""
    generator = np.random.default_rng(0)
    means = [np.array([each["value"] for each in row]) for row in rows]
    errors = [np.array([each["standard_error"] for each in row]) for row in rows]
    draws = [
        statistic(
            *(mean + error * generator.standard_normal(len(mean)) for mean, error in zip(means, errors, strict=True))
        )
        for _ in range(2000)
    ]
    return Estimate.from_draws(statistic(*means), np.array(draws)).as_dict()


def _network(label: str) -> str:
    """The name of the network in "SIREN-5: test PSNR …", "SIREN: PSNR …, MAML" and "PSNR …, Reptile"."""
    kind, colon, rest = label.rpartition(": ")
    start = (rest if colon else label).partition(", ")[2]
    return " ".join(filter(None, (kind, start)))


def error_removed(numbers: Numbers, place: str) -> Numbers:
    """The evidence that networks learned, from recorded PSNR."""
    found = {}
    for key, number in numbers.items():
        if "psnr_after_" not in key or "rank" in key or "minus" in key or key.startswith("published"):
            continue
        if place == "5.7" and "training_psnr" not in key:  # where both are recorded, training pixels count
            continue
        if place in ("5.5", "5.7", "C.2"):
            name, _, step = key.replace("_training_psnr", "_test_psnr").partition("_test_psnr_after_")
            step = step.removesuffix("_iterations_db")
        elif "after_3_iterations" in key and place in ("5.5-meta-learned", "C.3"):
            name, step = key.replace("psnr_after_3_iterations_", ""), "3"
        else:
            continue
        start = HALF if "siren" in key or place == "C.3" else ZERO
        split = "training" if "training_psnr" in key else "test"
        found[f"{name}_error_removed_after_{step}_iterations"] = mapped(
            number,
            lambda psnr, start=start: float(removed(np.array(start), np.array(psnr))),  # type: ignore[misc]
            f"{_network(number['label'])}: share of the {split} error removed after {step} iterations",
            "%",
        )
    return found


def rank_correlations(numbers: Numbers) -> None:
    """Intervals over initial weights and images, of networks that start at random."""
    tail = "_concentration_of_the_energy"
    names = [key.removesuffix(tail) for key in numbers if key.endswith(tail) and snake(META) not in key]
    scores = {"concentration": tail, "predicted_psnr": "_predicted_psnr_db"}
    for key in [key for key in numbers if key.startswith("rank_correlation_of_") and "_and_t" in key]:
        by, _, psnr = key.removeprefix("rank_correlation_of_").partition("_and_")
        rows = [[numbers[name + scores[by]] for name in names], [numbers[f"{name}_{psnr}_db"] for name in names]]
        numbers[key] |= drawn(spearman, *rows)
    for key, row in (
        ("omega0_of_the_best_test_psnr", "_test_psnr_after_10_iterations_db"),
        ("omega0_of_the_largest_concentration", tail),
    ):
        if key in numbers:
            several = [numbers[snake(name) + row] for name in SIRENS]
            numbers[key] |= drawn(lambda x: OMEGAS[int(x.argmax())], several)
    if (key := "rank_correlation_of_measured_and_published_psnr") in numbers:
        several = [numbers[f"{snake(name)}_test_psnr_after_3_iterations_db"] for name in PUBLISHED]
        published = np.array(list(PUBLISHED.values()))
        numbers[key] |= drawn(lambda x: spearman(x, published), several)


def pre_training(numbers: Numbers) -> None:
    """Figure 5.8: the change at each mark, and the largest."""
    longest = numbers.pop("concentration_longest_pre_training_minus_none")
    before = numbers["concentration_after_0_iterations"]
    for mark in MARKS:
        label = f"concentration after {mark} iterations of pre-training, minus none"
        after = numbers[f"concentration_after_{mark}_iterations"]
        found = difference(after, before, label) if mark != MARKS[-1] else longest | {"label": label}
        numbers[f"concentration_after_{mark}_iterations_minus_none"] = found
    for count in (3, 10):
        stem = f"psnr_after_{count}_iterations"
        paired = numbers.pop(f"{stem}_longest_pre_training_minus_none")
        label = f"largest change of PSNR after {count} iterations, over lengths of pre-training"
        changes = [
            difference(numbers[f"{stem}_{mark}_of_pre_training"], numbers[f"{stem}_0_of_pre_training"], label, "dB")
            for mark in MARKS[:-1]
        ]
        changes.append(paired | {"label": label, "unit": "dB"})
        numbers[f"largest_change_of_{stem}"] = max(changes, key=lambda each: float(each["value"]))
    numbers["error_removed_by_pre_training"] = mapped(
        numbers["training_psnr_of_the_pre_training_image"],
        lambda psnr: float(removed(np.array(HALF), np.array(psnr))),
        "share of the error on its image that pre-training removes",
        "%",
    )


def recovery(numbers: Numbers) -> None:
    """Figures 5.3 and C.1: energy recovered of what is reachable, and differences."""
    odd = numbers["the_image_share_of_energy_on_odd_frequencies"]["value"]
    tail = "_share_of_energy_recovered"
    for name in [key.removesuffix(tail) for key in numbers if key.endswith(tail)]:
        reachable = 1 - odd if name in ("f0_1", "w_i_omega0_2pi") else 1.0
        label = numbers[name + tail]["label"].split(":")[0]
        numbers[f"{name}_share_of_reachable_energy_recovered"] = mapped(
            numbers[name + tail],
            lambda share, reachable=reachable: share / reachable,  # type: ignore[misc]
            f"{label}: share of the energy recovered that its frequencies reach",
            "",
        )
    if "ffn_minus_f0_1_db" in numbers:
        numbers["f0_0_5_minus_f0_1_db"] = difference(
            numbers["f0_0_5_psnr_db"], numbers["f0_1_psnr_db"], "f₀ = 0.5 minus f₀ = 1", "dB"
        )
        numbers["detail_f0_0_5_minus_ffn"] = difference(
            numbers["f0_0_5_detail_over_that_of_the_image"],
            numbers["ffn_detail_over_that_of_the_image"],
            "detail over that of the image, f₀ = 0.5 minus FFN",
        )


def rewrite(place: str, record: dict[str, Any]) -> bool:
    """Rewrite one record; whether anything was to be done."""
    numbers = record["statistics"]
    if any("error_removed" in key or "reachable" in key or "meta_minus_random" in key for key in numbers):
        return False
    if place in ("5.5", "5.7", "C.2"):
        rank_correlations(numbers)
    if place == "5.5":
        for other in ("siren_5", "siren_100"):
            numbers[f"concentration_siren_40_minus_{other}"] = difference(
                numbers["siren_40_concentration_of_the_energy"],
                numbers[f"{other}_concentration_of_the_energy"],
                f"concentration, SIREN-40 minus {other.upper().replace('_', '-')}",
            )
    if place == "5.6":
        tail = "_energy_of_faces_on_the_first_10_atoms"
        numbers["energy_of_faces_on_the_first_10_atoms_meta_minus_random"] = difference(
            numbers[f"siren_30_meta{tail}"],
            numbers[f"siren_30{tail}"],
            "energy of faces on the first 10 atoms, meta-learned minus random",
        )
    if place == "5.8":
        pre_training(numbers)
        # A claim leaves the record together with the number that decided it.
        record["claims"] = [claim for claim in record["claims"] if claim["statistic"] in numbers]
    if place in ("5.3", "C.1"):
        recovery(numbers)
        record["settings"]["batch"] = record["settings"]["batch"] or "all pixels"
    for key, number in numbers.items():
        if key.startswith("published_weights_"):
            number |= {"standard_error": None, "low": None, "high": None, "confidence": 0.95}
    numbers |= error_removed(numbers, place)
    return place in ("5.3", "5.5", "5.5-meta-learned", "5.6", "5.7", "5.8", "C.1", "C.2", "C.3")


def migrated(folder: Path) -> int:
    """Rewrite the files of one folder; how many were."""
    count = 0
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        done = [rewrite(path.stem, record) for record in document["efforts"].values()]
        if any(done):
            write_atomically(
                path, (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
            )
            count += 1
    return count


if __name__ == "__main__":
    results = Path(sys.argv[1]) if sys.argv[1:] else RESULTS
    print(f"{migrated(results / 'dictionaries2022')} files rewritten")
