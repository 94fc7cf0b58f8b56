"""The committed results: keys that programs can rely on, intervals that can be true, and runs that stay withdrawn."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from biascope import papers
from biascope.papers import verdicts
from biascope.papers.verdicts import RESULTS
from biascope.results.estimate import Estimate, Number, wide_enough_for_ranks
from biascope.results.result import KEY
from biascope.results.wording import snake

FILES = sorted(RESULTS.rglob("*.json"))
FEW = 15  # points: resampling understates the spread of fewer

DIFFERENCES = "minus|lead|gain|lost|loss|difference|change|slope|over_"
#: Where numbers can lie: a part of their keys, and the ends in their own unit.
POSSIBLE = {
    "corr": (-1.0, 1.0),
    "share": (0.0, 1.0),
    "coefficient_": (0.0, 1.0),
    "mean_accuracy": (0.0, 100.0),
}

UNKNOWN, OPEN_BELOW, OPEN_ABOVE, ALWAYS = "unknown", "open below", "open above", "9999"
#: What numbers of single runs and extremes of a sample cannot tell: paper, figures (as files name them), keys, the end of the
#: interval, and before which day the run was made. Later runs have repeats.
ENDS = [
    ("dictionaries2022", ".*", "published_weights_.*", UNKNOWN, ALWAYS),
    ("geometry2025", "5", ".*_lowest_accuracy_on_.*", OPEN_BELOW, ALWAYS),
    ("geometry2025", "10", ".*_highest_minus_lowest_accuracy", OPEN_ABOVE, ALWAYS),
    ("nads2020", "1", "(vgg11|resnet_18)_lowest_accuracy", OPEN_BELOW, ALWAYS),  # other networks have all frequencies
    ("nads2020", "1", "(vgg11|resnet_18)_highest_accuracy", OPEN_ABOVE, ALWAYS),
    ("nads2020", "2", ".*_highest_train_accuracy", OPEN_ABOVE, ALWAYS),
    ("nads2020", "3.13", ".*_(lowest_accuracy_on_.*|smallest_linear_channel_minus_images)", OPEN_BELOW, ALWAYS),
    ("nads2020", "3.13", ".*_largest_accuracy_on_the_lesser_source", OPEN_ABOVE, ALWAYS),
    ("nads2020", "6|S11|S21|S22", ".*_lowest_accuracy(_at_.*)?", OPEN_BELOW, ALWAYS),
    ("nads2020", "S21", ".*_highest_accuracy", OPEN_ABOVE, ALWAYS),
    ("nads2020", "S11|S21", "lenet_lowest_accuracy.*", UNKNOWN, "2026-11-16"),
    ("nads2020", "S17-S19|S22", ".*", UNKNOWN, "2026-11-16"),
    ("patterns2021", ".*", ".*f_3_median_count_over_the_printed_one", UNKNOWN, "2026-11-18"),
    ("patterns2021", ".*", ".*_as_far_off_as_the_published_one", UNKNOWN, "2026-11-18"),
    ("patterns2021", ".*", ".*share_of_errors_on_the_label_that_was_rarer_in_training", UNKNOWN, "2026-11-18"),
]

#: The authors' recipes: paper, figures, settings, and what each of their runs has there. Runs by other recipes were withdrawn: other
#: initial weights (2021), a rate for each encoder and weight decay towards zero (2023), another activation, no clipping, a constant
#: rate, labels without the margin ε or another protocol of pruning (2025).
RECIPES: list[tuple[str, str, str, object]] = [
    ("dictionaries2022", r"5\.3|C\.1", "batch", "all pixels"),
    ("linearized2021", "(?!theorem|equation).*", "initial weights", "flax"),
    ("task_arithmetic2023", r"(?!6\.9|propositions|section-6\.5).*", "weight decay pulls to", "pre-trained weights"),
    ("geometry2025", "[238]", "activation: .*", "ReLU"),
    ("geometry2025", "[1456]|1[01]|table-.", "activation: (MLP|LeNet)", "GELU"),
    ("geometry2025", "[1-6]|1[0234]|table-.", "activation: ResNet-18", "ReLU"),
    ("geometry2025", "[28]", "clip", 5.0),
    ("geometry2025", "[13456]|1[0-4]|table-.", "clip", 0.5),
    ("geometry2025", "11", "hidden", [96, 67]),
    ("geometry2025", "3|1[23]", "labels", "half 0, half 1"),
    ("geometry2025", "table-.", "length", "391 iterations an epoch, whatever is left"),
    ("geometry2025", "table-.", "removed", "lowest scores of each class"),
    ("geometry2025", "[1-6]|1[0-4]|table-.", "momentum", 0.9),
    ("geometry2025", "[1-6]|1[0-4]|table-.", "schedule", "linear"),
    ("geometry2025", "8", "schedule", "constant"),
    ("geometry2025", "[13456]|1[0-4]|table-.", "optimiser", "sgd"),
    ("geometry2025", "2", "optimiser", "gd"),
    ("geometry2025", "8", "optimiser", "adam"),
    ("geometry2025", "[238]|1[23]", "outputs", 2),
    ("geometry2025", "4", "sinusoidal labels", "sin(π z), z = xᵀu standardised"),
    ("geometry2025", "1[014]", "sinusoidal labels", "sin(π xᵀu/ε)"),
    ("geometry2025", "[26]|table-.", "weight decay", 5e-4),
    ("geometry2025", "[348]|1[0-4]", "weight decay", 0.0),
]


def records(paper: str = "*", figures: str = ".*") -> Iterator[tuple[str, dict[str, Any]]]:
    """The committed runs of figures, each with its name."""
    for path in sorted(RESULTS.glob(f"{paper}/*.json")):
        if re.fullmatch(figures, path.stem):
            for effort, record in json.loads(path.read_text(encoding="utf-8"))["efforts"].items():
                yield f"{path.parent.name} {path.stem} ({effort})", record


def numbers(record: dict[str, Any]) -> dict[str, Number]:
    return {key: Number.from_dict(entry) for key, entry in record["statistics"].items()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_committed_number_has_a_key_and_a_label(path: Path) -> None:
    for effort in json.loads(path.read_text(encoding="utf-8"))["efforts"].values():
        assert effort["statistics"]
        for key, number in effort["statistics"].items():
            assert KEY.fullmatch(key)
            assert number["label"]
        for claim in effort["claims"]:
            assert KEY.fullmatch(claim["statistic"])
            assert (claim["verdict"] == "not run") == (claim["statistic"] not in effort["statistics"])


def test_no_committed_interval_has_no_width_but_that_of_an_exact_number() -> None:
    for name, record in records():
        for key, number in numbers(record).items():
            if number.confidence < 1.0:
                assert math.isnan(number.low) == math.isnan(number.high), (name, key)
                assert not number.high <= number.low, (name, key, number)
                assert number.standard_error != 0.0, (name, key, number)
            else:
                assert (number.low, number.high, number.standard_error) == (number.value, number.value, 0.0), (
                    name,
                    key,
                )


def test_committed_numbers_and_the_ends_of_their_intervals_are_possible() -> None:
    seen = set()
    for name, record in records():
        for key, number in numbers(record).items():
            for part, ends in POSSIBLE.items():
                if part in key and not re.search(DIFFERENCES, key):
                    seen.add(part)
                    low, high = (100 * end if number.unit == "%" and part == "share" else end for end in ends)
                    for at in (number.value, number.low, number.high):
                        assert math.isnan(at) or low <= at <= high, (name, key, number)
    assert seen == set(POSSIBLE)


@pytest.mark.parametrize(("paper", "figures", "keys", "kind", "before"), ENDS)
def test_single_runs_and_extremes_do_not_tell_what_they_cannot_know(
    paper: str, figures: str, keys: str, kind: str, before: str
) -> None:
    found = [
        (name, key, number)
        for name, record in records(paper, figures)
        if record["date"] < before
        for key, number in numbers(record).items()
        if re.fullmatch(keys, key)
    ]
    assert found
    for name, key, number in found:
        as_known = {UNKNOWN: False, OPEN_BELOW: number.low == -math.inf, OPEN_ABOVE: number.high == math.inf}[kind]
        assert math.isnan(number.low) or as_known, (name, key, number)


def test_repeats_that_agree_are_k_of_k_in_the_committed_results() -> None:
    def number(paper: str, figure: str, key: str) -> Number:
        return verdicts.committed(papers.figure(paper, figure))["paper"].statistics[key]

    digits = number("patterns2021", "2", "m_1000_test_accuracy")
    assert (digits.low, digits.high) == (pytest.approx(100 * 0.025 ** (1 / 40)), 100.0)
    accuracy = number("geometry2025", "1", "resnet_18_wide_accuracy_u2_early")
    assert accuracy.low == pytest.approx(100 * 0.025 ** (1 / 3), abs=0.01)
    assert number("nads2020", "S11", "vgg11_lowest_accuracy_at_sigma_0").low == -math.inf
    assert number("nads2020", "1", "lenet_lowest_accuracy").low > 47, "of all frequencies"


def test_few_eigenfunctions_and_directions_have_wide_intervals() -> None:
    """Rank correlations cover Fisher's interval, and means Student's: resampling understates the spread of few points."""
    means = "mean_accuracy|(smaller_)?lead_(of|over)_the_linearisation.*"
    ranks = few = 0
    for name, record in records("linearized2021"):
        places = {
            snake(title): len(each)
            for kind, _, title in (setting.partition(": ") for setting in record["settings"])
            if kind in ("learned", "directions")
            for each in [record["settings"][f"{kind}: {title}"]]
        }
        for key, number in numbers(record).items():
            for title, count in places.items():
                own = key.removeprefix("linearised_").removeprefix(f"{title}_")
                if not key.removeprefix("linearised_").startswith(f"{title}_") or math.isnan(number.low):
                    continue
                if own.startswith("rank_corr"):
                    ranks += 1
                    wide: Estimate = wide_enough_for_ranks(number, count)
                elif re.fullmatch(means, own) and count < FEW:
                    few += 1
                    possible = (0.0, 100.0) if own == "mean_accuracy" else (-math.inf, math.inf)
                    wide = Estimate.from_error(number.value, number.standard_error, count).within(*possible)
                else:
                    continue
                assert number.low <= wide.low + 1e-6, (name, key, number)
                assert number.high >= wide.high - 1e-6, (name, key, number)
    assert ranks
    assert few


@pytest.mark.parametrize(("paper", "figures", "setting", "value"), RECIPES)
def test_every_committed_run_has_the_recipe_of_the_authors(
    paper: str, figures: str, setting: str, value: object
) -> None:
    seen = False
    for name, record in records(paper, figures):
        found = {key: value for key, value in record["settings"].items() if re.fullmatch(setting, key)}
        assert found or ": " in setting, f"{name} must record {setting}"  # a figure need not have each network
        assert all(each == value for each in found.values()), (name, found)
        seen |= bool(found)
    assert seen


def test_committed_labellings_are_those_of_the_authors() -> None:
    for name, record in records("geometry2025"):
        for key, labels in record["settings"].items():
            assert not key.startswith("labels: ") or set(labels) <= {"linear", "quadratic", "sinusoidal"}, name


def test_networks_on_images_record_clipping_and_pixels_one_by_one() -> None:
    """Their runs at laptop effort are withdrawn: LeNet had another rate."""
    for name, record in records("nads2020", r"7|8|3\.13"):
        titles = [key.removeprefix("epochs: ") for key in record["settings"] if key.startswith("epochs: ")]
        assert record["effort"] == "paper", name
        assert {f"{key}: {title}" for title in titles for key in ("clip", "pixels")} <= record["settings"].keys(), name
        assert not {"clip", "pixels"} & record["settings"].keys(), name
        assert all(key.startswith(tuple(f"{snake(title)}_" for title in titles)) for key in record["statistics"]), name
        assert not any("rate of 0.02" in note for note in record["notes"]), name


def test_early_runs_have_no_large_networks_on_every_fourth_frequency() -> None:
    """ResNet-18's map is a lattice of spacing 4, of which every 4th, 8th or 16th frequency is no fair sample."""
    for name, record in records("nads2020", "[123]|S11"):
        if record["date"] < "2026-11-16":
            assert not any(key.startswith(("vgg11_", "resnet_18_")) for key in record["statistics"]), name


def test_the_share_of_runs_that_converged_is_that_of_the_recorded_counts() -> None:
    digits, shown = ({each["effort"]: each for _, each in records("patterns2021", figure)} for figure in ("2", "5-7"))
    for effort, record in shown.items():
        assert record["settings"]["runs by m"] == digits[effort]["settings"]["runs by m"], "the same networks"
        assert record["statistics"]["least_train_accuracy"] == digits[effort]["statistics"]["least_train_accuracy"]
    for name, record in records("patterns2021"):
        found = numbers(record)
        if failed := found.get("runs_that_did_not_converge"):
            share = 1 - failed.value / found["runs"].value
            assert found["share_of_runs_that_converged"].value == pytest.approx(share), name


@pytest.mark.parametrize("paper", papers.names())
def test_every_claim_finds_the_number_that_once_decided_it(paper: str) -> None:
    for figure in papers.find(paper).figures:
        committed = verdicts.committed(figure).values()
        decided = {claim.statement for record in committed for claim, verdict in record.claims if verdict != "not run"}
        for standing in verdicts.judged(figure, committed):
            if standing.claim.statement in decided:
                assert standing.record is not None, f"{paper} {figure.number}: {standing.claim.statistic}"
