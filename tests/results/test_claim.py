"""Verdicts, what a figure tells, and the record that is kept of it."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from biascope.results import store
from biascope.results.claim import EFFORTS, VERDICTS, Claim, Place, Statement, Trained
from biascope.results.estimate import Estimate, Number, over
from biascope.results.finding import FigureOfPaper, Finding, Tell, figure
from biascope.results.plan import Plan, Row
from biascope.results.record import DOCUMENT, Record
from biascope.runs.run import Run

ABOUT = Claim("About fifty.", "share", "about", 50.0, 5.0)
AT_LEAST = Claim("Nearly all.", "share", "at least", None, 90.0, reads="near 100 %")
AT_MOST = Claim("Hardly any.", "share", "at most", 8, 10.0)


def between(low: float, high: float) -> Estimate:
    return Estimate((low + high) / 2, (high - low) / 4, low, high)


@pytest.mark.parametrize(
    ("claim", "measured", "verdict"),
    [
        (ABOUT, between(46, 54), "reproduced"),
        (ABOUT, between(45, 55), "reproduced"),
        (ABOUT, between(44, 54), "inconclusive"),
        (ABOUT, between(54, 56), "inconclusive"),
        (ABOUT, between(40, 60), "inconclusive"),  # wider than the tolerance on both sides
        (ABOUT, between(56, 58), "not reproduced"),
        (ABOUT, between(30, 44.9), "not reproduced"),
        (AT_LEAST, between(90, 92), "reproduced"),
        (AT_LEAST, between(89, 99), "inconclusive"),
        (AT_LEAST, between(80, 89), "not reproduced"),
        (AT_MOST, between(2, 10), "reproduced"),
        (AT_MOST, between(9, 11), "inconclusive"),
        (AT_MOST, between(11, 12), "not reproduced"),
        (AT_LEAST, Estimate.exact(90), "reproduced"),
        (AT_LEAST, Estimate.exact(math.nextafter(90, 0)), "reproduced"),  # 0.3 + 0.1 is not 0.4 in binary
        (AT_LEAST, Estimate.exact(90 - 1e-9), "not reproduced"),
        (AT_LEAST, Estimate.exact(math.inf), "reproduced"),
        (ABOUT, Estimate.exact(math.inf), "not reproduced"),
        (ABOUT, Estimate.exact(55), "reproduced"),
        (ABOUT, Estimate(55.0, 0.0, 55.0, 55.0), "reproduced"),  # all repetitions agree
        # An interval without a standard error (of quantiles, say) is an interval.
        (ABOUT, Estimate(50.0, math.nan, 46.0, 54.0), "reproduced"),
        # A number without an interval may speak against a claim, never for it.
        (ABOUT, Estimate(50.0), "inconclusive"),
        (ABOUT, Estimate(56.0), "not reproduced"),
        (AT_LEAST, Estimate(99.0), "inconclusive"),
        (AT_LEAST, Estimate(80.0), "not reproduced"),
        (AT_MOST, Estimate(50.0, 1.0), "not reproduced"),
        (ABOUT, Estimate(math.nan), "inconclusive"),
        (ABOUT, Estimate.exact(math.nan), "inconclusive"),
        (ABOUT, None, "not run"),
    ],
)
def test_verdicts(claim: Claim, measured: Estimate | None, verdict: str) -> None:
    assert claim.verdict(measured, "laptop") == verdict
    assert claim.verdict(measured, "paper") == verdict
    # Below the minimum effort no number decides.
    assert claim.verdict(measured, "smoke") == ("not run" if measured is None else "inconclusive")


def test_a_wider_interval_never_turns_one_verdict_into_the_other() -> None:
    for claim in (ABOUT, AT_LEAST, AT_MOST):
        for centre in np.linspace(-20, 120, 71):
            seen = [claim.verdict(between(centre - reach, centre + reach), "paper") for reach in (0, 1, 4, 20, 300)]
            decided = seen[: seen.index("inconclusive")]
            assert len(set(decided)) <= 1
            assert set(seen[len(decided) :]) == {"inconclusive"}


def test_leaving_out_the_error_bar_never_improves_a_verdict() -> None:
    goodness = {"not reproduced": 0, "inconclusive": 1, "reproduced": 2}
    for claim in (ABOUT, AT_LEAST, AT_MOST):
        for centre in np.linspace(-20, 120, 71):
            known = claim.verdict(between(centre - 3, centre + 3), "paper")
            assert goodness[claim.verdict(Estimate(float(centre)), "paper")] <= goodness[known]


def test_each_effort_counts_from_the_claims_minimum_on() -> None:
    for least in EFFORTS:
        claim = dataclasses.replace(ABOUT, minimum_effort=least)
        seen = [claim.verdict(Estimate.exact(50), effort) for effort in EFFORTS]
        assert seen == ["inconclusive"] * EFFORTS.index(least) + ["reproduced"] * (3 - EFFORTS.index(least))
    with pytest.raises(ValueError, match="effort must be one of smoke, laptop, paper, got 'huge'"):
        ABOUT.verdict(Estimate.exact(50), "huge")


def test_the_ends_of_about_are_inside_in_spite_of_rounding() -> None:
    claim = Claim("Decimal.", "share", "about", 0.3, 0.1)
    assert claim.bounds[1] >= 0.3 + 0.1
    assert claim.verdict(Estimate.exact(0.4), "laptop") == "reproduced"
    assert claim.verdict(Estimate.exact(0.4001), "laptop") == "not reproduced"


def test_terms_in_words() -> None:
    assert [claim.printed for claim in (ABOUT, AT_LEAST, AT_MOST)] == ["50", "near 100 %", "8"]
    assert dataclasses.replace(ABOUT, published=11_168_193.0).printed == "11168193"
    assert [claim.allowed for claim in (ABOUT, AT_LEAST, AT_MOST)] == ["± 5", "at least 90", "at most 10"]


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"comparator": "near"}, "comparator must be one of 'about', 'at least', 'at most', got 'near'"),
        ({"published": None}, "published must be a number for the comparator 'about', got none"),
        ({"tolerance": -1.0}, "tolerance must be a distance of 0 or more"),
        ({"tolerance": math.nan}, "tolerance must be a finite number"),
        ({"minimum_effort": "none"}, "effort must be one of"),
        (
            {"statistic": "LeNet: lowest accuracy, %"},
            r"statistic must be a key in snake_case, got 'LeNet: lowest accuracy, %'\. "
            r"Pass statistic='lenet_lowest_accuracy_percent'\.",
        ),
        ({"statistic": "linear: lowest accuracy"}, "statistic must be a key in snake_case"),
        ({"statistic": ""}, "statistic must be a key in snake_case"),
    ],
)
def test_a_claim_that_cannot_be_judged_is_refused(terms: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(ABOUT, **terms)


def test_a_finding_holds_numbers_under_keys_and_plain_arrays() -> None:
    with pytest.raises(ValueError, match="statistic 'a' must be a Number with a label, got float"):
        Finding({"a": 1.0}, {}, {})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="statistic 'a' must be a Number with a label, got Estimate"):
        Finding({"a": Estimate.exact(1.0)}, {}, {})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="statistic 'a' must be a Number with a label, got Number"):
        Finding({"a": Estimate.exact(1.0).named("")}, {}, {})
    with pytest.raises(ValueError, match=r"'Mean ξ' must have a key in snake_case\. Pass 'mean_xi'\."):
        Finding({"Mean ξ": Estimate.exact(1.0).named("mean ξ")}, {}, {})
    with pytest.raises(ValueError, match="array 'a' must be a NumPy array"):
        Finding({}, {"a": [1.0]}, {})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="array 'a' must be a NumPy array"):
        Finding({}, {"a": np.array([{}])}, {})
    with pytest.raises(ValueError, match="notes must be a tuple"):
        Finding({}, {}, {}, "one")  # type: ignore[arg-type]


def no_picture(finding: Finding, dark: bool) -> Any:
    raise AssertionError("not drawn in these tests")


def test_a_decorated_function_is_a_figure() -> None:
    @figure("S21, S22", title="Both", plan=Plan({"size": 1}, {"size": 2}, {"size": 5}, {"size": 9}), show=no_picture)
    def both(plan: Row, run: Run, tell: Tell) -> None:
        tell("a share", Estimate.exact(plan["size"]), key="share")
        tell.settings["device"] = run.device
        tell.note("Once.", "Once.")

    assert both.file_name == "S21-S22"
    found = both("paper", Run(device="cpu"))
    assert (found.statistics["share"].value, found.notes) == (5, ("Once.",))
    assert found.settings == {"size": 5, "device": "cpu"}
    assert both.published == {"size": 9}
    with pytest.raises(ValueError, match="effort must be"):
        both("little", Run())


def test_a_number_is_told_once() -> None:
    tell = Tell()
    tell.about("LeNet")("mean accuracy", Estimate(1.0), "%")
    with pytest.raises(ValueError, match="must have different keys, got 'lenet_mean_accuracy' twice"):
        tell("LeNet: mean accuracy", Estimate(1.0))


def example() -> Record:
    claims = (ABOUT, dataclasses.replace(AT_LEAST, statistic="absent", place=Place("2", "nearly all")))
    both = FigureOfPaper("made2024", "6", "Six", claims, Plan({}, {}, {}), lambda plan, run, tell: None, no_picture)
    statistics = {
        "share": between(46, 54).named("LeNet: share", "%"),
        "unknown": Estimate(1 / 3).named("unknown"),
        "count": Estimate.exact(7).named("count"),
        "never": Estimate(math.inf, math.nan, -math.inf, math.inf).named("never"),
    }
    settings = {"seeds": (1, 2), "rate": np.float32(0.5), "sizes": np.arange(2), "nan": math.nan, "at": Path("a/b")}
    finding = Finding(statistics, {"curve": np.arange(3.0)}, settings, ("a note",))
    circumstances = {
        "device": "cpu (2 CPU cores)",
        "precision": "float32",
        "seconds": 1.5,
        "date": "2026-01-02 03:04:05 UTC",
        "versions": {"biascope": "0"},
    }
    return Record.of(both, finding, "laptop", circumstances)


def written(record: dict[str, Any], folder: Path) -> bytes:
    """A record as it lies on disk, sealed."""
    return (store.write(folder, {"record": record}, {}, name=DOCUMENT) / DOCUMENT).read_bytes()


def test_a_record_survives_json(tmp_path: Path) -> None:
    record = example()
    document, again = Record.parsed(written(record.as_json(), tmp_path), "here")
    assert document["record"] == again.as_json() == record.as_json()
    assert again.statistics["never"].value == math.inf
    assert again.statistics["never"].low == -math.inf
    assert math.isnan(again.statistics["unknown"].low)
    assert again.statistics["share"] == record.statistics["share"]
    assert repr(again.statistics["share"]) == "50 ± 2.0 % (95 % CI 46.0 to 54.0)"
    assert again.settings == {"seeds": [1, 2], "rate": 0.5, "sizes": [0, 1], "nan": None, "at": "a/b"}
    assert [verdict for _, verdict in again.claims] == ["reproduced", "not run"]
    assert again.claims[0][0] == ABOUT


def before_0_2() -> dict[str, Any]:
    """The same record as format 1 had it: numbers known by their words, and again beside each claim."""
    document = example().as_json()
    numbers = {"LeNet: share, %": document["statistics"]["share"], "mean ξ": document["statistics"]["count"]}
    for number in numbers.values():
        del number["label"], number["unit"]
    for claim, words in zip(document["claims"], ("LeNet: share, %", "ResNet-18: absent"), strict=True):
        claim |= {"statistic": words, "measured": numbers.get(words)}
    return document | {"format": 1, "statistics": numbers}


def test_a_record_of_format_1_is_read_with_keys_labels_and_units() -> None:
    document = before_0_2()
    again = Record.parsed(json.dumps(document).encode(), "here")[1]
    share = Number(50.0, 2.0, 46.0, 54.0, label="LeNet: share", unit="%")
    assert again.statistics == {"lenet_share_percent": share, "mean_xi": Estimate.exact(7).named("mean ξ")}
    assert [claim.statistic for claim, _ in again.claims] == ["lenet_share_percent", "resnet_18_absent"]
    assert [verdict for _, verdict in again.claims] == ["reproduced", "not run"]
    assert Record.from_json(again.as_json()) == again  # and is of format 2 from then on


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "could not be read"),
        (b"{", "could not be read"),
        (b"\xff\xfe", "could not be read"),
        (b"[]", "must be of format 2 or older"),
        (b"{}", "must be of format 2 or older"),
        (b'{"format": 99}', "Install a newer biascope"),
        (b'{"format": 1}', "it has no 'paper'"),
        (b'{"format": 2, "record": {}}', "must match its digest"),
    ],
)
def test_a_damaged_or_foreign_file_is_named_once(text: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=r"^some/finding\.json must ") as told:
        Record.parsed(text, "some/finding.json")
    assert reason in str(told.value)
    assert str(told.value).count("some/finding.json") == 1
    assert ".." not in str(told.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": 99}, "its format 99 needs a newer biascope"),
        ({"format": "1"}, ""),
        ({"effort": "huge"}, "effort must be one of"),
        ({"paper": 3}, "its paper is not text"),
        ({"statistics": [1]}, ""),
        ({"statistics": {"share": {"value": "much"}}}, "could not convert"),
        ({"statistics": {"share": {"worth": 1}}}, "worth"),
        ({"claims": [{"statement": "only"}]}, "it has no 'statistic'"),
    ],
)
def test_a_record_that_is_none_is_named(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    data = written(example().as_json() | changes, tmp_path)
    with pytest.raises(ValueError, match=r"some/finding\.json must be a finding of biascope, but is not") as told:
        Record.parsed(data, "some/finding.json")
    assert reason in str(told.value)


def test_all_verdicts_are_known() -> None:
    assert set(VERDICTS) == {"reproduced", "not reproduced", "inconclusive", "not run"}


GATE = Trained("training_accuracy", chance=50.0, best=100.0)
GATED = dataclasses.replace(AT_LEAST, trained=(GATE,))


@pytest.mark.parametrize(
    ("accuracy", "verdict", "counts"),
    [
        (between(60, 62), "reproduced", True),
        (between(59, 62), "inconclusive", False),  # the end nearer to chance decides
        (Estimate(61.0), "reproduced", True),  # one run without a spread
        (Estimate.exact(50.0), "inconclusive", False),
        (None, "inconclusive", False),  # nothing tells whether they trained
    ],
)
def test_a_claim_is_judged_only_if_its_networks_trained(accuracy: Estimate | None, verdict: str, counts: bool) -> None:
    numbers = {"share": between(92, 94).named("share")}
    if accuracy is not None:
        numbers["training_accuracy"] = accuracy.named("training accuracy", "%")
    judged = GATED.judge(numbers, "laptop")
    assert (judged.verdict, judged.counts) == (verdict, counts)
    assert bool(judged.reason) == (verdict == "inconclusive")


def test_networks_that_all_trained_are_no_less_trained_than_one_of_them() -> None:
    accuracy = Trained("accuracy", chance=50.0, best=100.0)
    agreeing = over([100.0] * 3, within=(0.0, 100.0))
    assert agreeing.low < accuracy.needed, "others may fail"
    assert accuracy.passes(agreeing)
    assert not accuracy.passes(over([50.0] * 3, within=(0.0, 100.0)))
    assert accuracy.passes(between(90.0, 92.0).open_below())
    assert not accuracy.passes(between(55.0, 59.0).open_below())


@pytest.mark.parametrize("count", [2, 3, 10, 40])
def test_few_repeats_that_agree_do_not_reproduce_what_one_of_them_could_not(count: int) -> None:
    agreeing = over([100.0] * count, within=(0.0, 100.0))
    assert AT_LEAST.verdict(agreeing, "paper") == ("reproduced" if count == 40 else "inconclusive")
    assert AT_LEAST.verdict(over([100.0] * count), "paper") == "inconclusive"
    assert AT_MOST.verdict(over([100.0] * count), "paper") == "not reproduced"


def test_the_least_of_a_sample_can_only_speak_against_a_claim_on_all() -> None:
    assert AT_LEAST.verdict(between(95.0, 97.0).open_below(), "paper") == "inconclusive"
    assert AT_LEAST.verdict(between(80.0, 85.0).open_below(), "paper") == "not reproduced"
    assert AT_MOST.verdict(between(5.0, 6.0).open_below(), "paper") == "reproduced"


def test_a_loss_falls_where_an_accuracy_rises() -> None:
    loss = Trained("loss", chance=0.7, best=0.0)
    assert loss.needed == pytest.approx(0.56)
    assert loss.passes(between(0.4, 0.5))
    assert not loss.passes(between(0.4, 0.6))


def test_what_is_inconclusive_says_why_and_whether_it_was_judged() -> None:
    def reason(measured: Estimate, effort: str = "laptop") -> tuple[str, bool]:
        found = ABOUT.judge({"share": measured.named("share")}, effort)
        assert found.verdict == "inconclusive"
        return found.reason, found.counts

    assert reason(between(54, 56)) == ("the interval straddles the tolerance", True)
    assert reason(Estimate(50.0)) == ("the spread is unknown, because there are too few repetitions", True)
    assert reason(between(46, 54), "smoke") == ("a verdict needs at least laptop effort", False)
    assert reason(Estimate(math.nan)) == ("the number could not be computed", False)
    assert ABOUT.judge({}, "laptop").verdict == "not run"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: dataclasses.replace(ABOUT, kind="theirs"), "kind must be one of"),
        (lambda: dataclasses.replace(ABOUT, kind="paper"), "must name the paper's statement"),
        (lambda: Statement("Two words", Place("1"), "Text."), "snake_case"),
        (lambda: Trained("accuracy", 50.0, 50.0), "two different numbers"),
        (lambda: Trained("An accuracy", 50.0, 100.0), "snake_case"),
    ],
)
def test_claims_of_unknown_kind_or_source_are_refused(wrong: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        wrong()
