"""Re-decide all committed results by one rule for repeats (:func:`biascope.results.estimate.over`).

Repeats that all agree had an interval of no width, or that of their test samples alone, as if all others would agree too. Now ``k``
that agree are ``k`` of ``k``: by Clopper and Pearson, a share of at least 0.025^(1/k) of all others agrees. Where the record does not
tell ``k``, or the number has no two ends, the spread is unknown. The least and the largest of a sample of frequencies or directions
lose the end of their interval that the sample cannot see; of all 514 frequencies, they have the error of test samples alone. Values
stay as they are, and so do the claims with the verdicts that they had. Every number and every verdict that changes is printed. A
second run changes nothing. Run once for version 0.2.0, from the root of the checkout, or with the folder of other results:

    python migrations/agreeing_repeats.py [FOLDER]
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

from biascope import papers
from biascope.papers import reproduce as reproduction
from biascope.papers.geometry2025.shared import least
from biascope.papers.nads2020.frequencies import ALL_FREQUENCIES
from biascope.papers.reproduce import RESULTS
from biascope.results.estimate import Estimate, Number, over, proportion, wide_enough_for_ranks
from biascope.results.store import plain
from biascope.results.wording import snake
from biascope.runs.files import write_atomically

#: Keys of means over seeds that were joined with the error of test samples, by paper and figure. Where such a mean is an end of a
#: share, or the interval is that of the samples alone, all seeds agree.
JOINED = {
    ("geometry2025", "1"): r".*_accuracy_u2_(early|late|early_minus_late)",
    ("geometry2025", "3"): r"mlp_training_accuracy_on_g_minus_flip_g",
    ("geometry2025", "5"): r".*_alone_(first|last)_u1",
    ("nads2020", "3.13"): r".*_accuracy_.*",
    ("nads2020", "S21"): r".*_(lowest|highest)_accuracy",
    ("task_arithmetic2023", "6.3"): r".*_(non_linear|post_hoc|linearised)_percent",
    ("task_arithmetic2023", "section 6.4"): r".*_coefficient_.*|.*_progress",
    **{
        ("task_arithmetic2023", figure): r".*_coefficient_.*|.*(low_xi_|share_of_the_grid_).*"
        for figure in ("6.4", "6.5", "6.10", "table 6.1", "section 6.4 settings")
    },
}
#: Keys of the least of a sample, and of the largest.
LEAST = {
    ("nads2020", "1"): r".*_lowest_accuracy",
    ("nads2020", "3.13"): r".*_(lowest_accuracy_on_.*|smallest_linear_channel_minus_images)",
    ("nads2020", "6"): r".*_lowest_accuracy",
    ("nads2020", "S11"): r".*_lowest_accuracy(_at_sigma_\d)?",
    ("nads2020", "S21"): r".*_lowest_accuracy",
    ("nads2020", "S22"): r".*_lowest_accuracy_at_the_largest_size",
    ("geometry2025", "5"): r".*_lowest_accuracy_on_.*",
}
LARGEST = {
    ("nads2020", "1"): r".*_highest_accuracy",
    ("nads2020", "2"): r".*_highest_train_accuracy",
    ("nads2020", "3.13"): r".*_largest_accuracy_on_the_lesser_source",
    ("nads2020", "S21"): r".*_highest_accuracy",
    ("geometry2025", "10"): r".*_highest_minus_lowest_accuracy",
}
#: A rank correlation whose interval was made before those of few pairs had Fisher's width, and its number of pairs: the trained
#: frequencies of the pooling theory.
PAIRS = {("nads2020", "4", "rank_correlation_of_curvature_ratio_and_iterations"): 6}
#: The lower of two numbers of a record.
LOWER = "_lower_accuracy_of_the_two_planes"
#: Zero-width numbers that are no means of repeats: deviations, quotients, and means over a part of the frequencies.
NO_MEANS = r".*(deviation|difference|share_of_errors|_a_multiple_of_4).*"


def repeats(paper: str, figure: str, key: str, settings: dict[str, Any]) -> int | None:
    """How many repeats a mean has, as far as the record tells."""
    if re.fullmatch(NO_MEANS, key) or (paper, figure) == ("geometry2025", "conjecture 2"):
        return None
    if paper == "task_arithmetic2023":
        return int(settings["seeds"]) if "seeds" in settings else None
    if (paper, figure) == ("patterns2021", "remark E.1"):
        return int(settings["runs"]) * (sum(size >= 100 for size in settings["m"]) if "_from_m_100_on" in key else 1)
    if paper == "patterns2021":
        suffix = ", usual scale" if "_sigma_g_" in key else ", k = 1" if key.startswith("k_1_") else ""
        size = re.search(r"(?:m|trained_on)_(\d+)", key)
        return int(settings[f"runs by m{suffix}"][size[1]]) if size else None
    kinds = (
        ("runs", "seeds", "repeats") if paper == "geometry2025" or figure == "3.13" else ("frequencies", "directions")
    )
    if figure == "S12":
        kinds = ("directions",)
    if figure == "S21":
        return int(settings["repeats"]) if "repeats" in settings else None
    found = {
        snake(setting.partition(": ")[2]): count
        for setting, count in settings.items()
        if setting.partition(": ")[0] in kinds and isinstance(count, int)
    }
    names = [name for name in found if name and key.startswith(f"{name}_")]
    return found[max(names, key=len)] if names else None


def ends_of(paper: str, key: str, number: Number) -> tuple[float, float]:
    """Where a number can lie."""
    if "_progress" in key:
        return (-math.inf, 100.0)
    if number.unit == "points":
        return (-100.0, 100.0)
    if paper == "task_arithmetic2023" and "low_xi" in key and "_minus_" in key:
        return (-1.0, 1.0)
    return (0.0, 100.0) if number.unit == "%" or number.value > 1 else (0.0, 1.0)


def alone(number: Number) -> bool:
    """Whether an interval is the normal one of its standard error, so that repeats add nothing to that of samples."""
    sides = (number.high - number.value, number.value - number.low)
    return any(abs(side - 1.96 * number.standard_error) < 1e-9 for side in sides)


def agreeing(paper: str, figure: str, key: str, number: Number, settings: dict[str, Any]) -> Estimate:
    """A number of repeats that agree by the rule; others as they are."""
    if number.confidence == 1 or math.isnan(number.low) or math.isnan(number.standard_error):
        return number
    within, count = ends_of(paper, key, number), repeats(paper, figure, key, settings)
    if number.standard_error == 0 and math.inf in (number.high, -number.low):
        return Estimate(number.value, math.nan, number.low, number.high)
    if (paper, figure, key) in PAIRS:
        return number if number.standard_error else wide_enough_for_ranks(number, PAIRS[paper, figure, key])
    if number.high - number.low <= 1e-9 * abs(number.value):
        return Estimate(number.value) if count is None else over([number.value] * count, within=within)
    joined = re.fullmatch(JOINED.get((paper, figure), "$^"), key)
    if not joined or count is None or math.isinf(number.low) or math.isinf(number.high):
        return number
    at_an_end = number.value in (0.0, 100.0) if number.unit != "" else number.value == 0.0
    if not at_an_end and not (paper == "task_arithmetic2023" and alone(number)):
        return number
    own = (paper, figure) in (("geometry2025", "3"), ("geometry2025", "5"))  # each training has test samples of its own
    return over([number.value] * count, shared=0.0 if own else number, within=within)


def extreme(paper: str, figure: str, key: str, number: Estimate, settings: dict[str, Any]) -> Estimate:
    """The least or the largest of a sample by the rule; others as they are."""
    lowest, largest = (bool(re.fullmatch(keys.get((paper, figure), "$^"), key)) for keys in (LEAST, LARGEST))
    if not (lowest or largest):
        return number
    counts = {
        snake(name.removeprefix("frequencies: ")): count for name, count in settings.items() if "frequencies" in name
    }
    whole = [name for name, count in counts.items() if count == ALL_FREQUENCIES and key.startswith(f"{name}_")]
    if whole and figure == "1":
        sampled = proportion(number.value / 100, settings["test"]).in_percent()
        return over([number.value], shared=sampled, within=(0.0, 100.0), everything=True)
    opened = number.low == -math.inf or number.high == math.inf
    return number if opened else number.open_below() if lowest else number.open_above()


def corrected(paper: str, figure: str, record: dict[str, Any]) -> dict[str, Any]:
    """The statistics of a record by the rule."""
    known = {key: Number.from_dict(entry) for key, entry in record["statistics"].items()}
    settings, found = record["settings"], {}
    for key, number in known.items():
        rule = agreeing(paper, figure, key, number, settings)
        found[key] = extreme(paper, figure, key, rule, settings).named(number.label, number.unit)
    for key, number in known.items():
        if (paper, figure) == ("geometry2025", "1") and key.endswith(LOWER):
            planes = [f"{key.removesuffix(LOWER)}_accuracy_u2_{at}" for at in ("early", "late")]
            if not all(same(found[plane], known[plane]) for plane in planes):
                found[key] = least(found[plane] for plane in planes).named(number.label, number.unit)
    return {
        key: entry if same(found[key], known[key]) else plain(found[key].as_dict())
        for key, entry in record["statistics"].items()
    }


def same(one: Estimate, two: Estimate) -> bool:
    """Whether two numbers are the same but for rounding."""
    pairs = (
        (getattr(one, name), getattr(two, name)) for name in ("value", "standard_error", "low", "high", "confidence")
    )
    return all(a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) < 1e-9 * max(1, abs(a)) for a, b in pairs)


def verdicts(folder: Path) -> dict[tuple[str, ...], str]:
    """Where every claim and every statement stands."""
    claims = reproduction.standings(results=folder)
    found = {("claim", each.figure.paper, each.figure.number, each.claim.statement): each.verdict for each in claims}
    for each in reproduction.outcomes(claims):
        found["statement", each.paper, each.statement.section, each.statement.text] = each.verdict
    return found


def main(folder: Path) -> list[str]:
    """Rewrite the files of a folder of committed results; return what changed, in words."""
    before, told = verdicts(folder), []
    for figure in (figure for name in papers.names() for figure in papers.find(name).figures):
        path = folder / figure.paper / f"{figure.file_name}.json"
        if not path.exists():
            continue
        document = json.loads(path.read_text(encoding="utf-8"))
        changed = False
        for effort, record in document["efforts"].items():
            statistics = corrected(figure.paper, figure.number, record)
            for key, entry in record["statistics"].items():
                if statistics[key] != entry:
                    numbers = (Number.from_dict(each) for each in (entry, statistics[key]))
                    told.append(f"{figure.paper} {figure.number} ({effort}) {key}: {' -> '.join(map(repr, numbers))}")
                    changed = True
            record["statistics"] = statistics
        if changed:
            text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
            write_atomically(path, text.encode())
    after = verdicts(folder)
    return told + [
        f"{' | '.join(what)}: {before[what]} -> {after[what]}" for what in before if before[what] != after[what]
    ]


if __name__ == "__main__":
    changes = main(Path(sys.argv[1]) if sys.argv[1:] else RESULTS)
    print("\n".join([*changes, f"{len(changes)} changes"]))
