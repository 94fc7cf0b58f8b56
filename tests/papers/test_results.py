"""The committed results: keys that programs can rely on, claims that find their numbers, and the migration that wrote the keys."""

import json
import math
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from biascope import papers
from biascope.papers import verdicts
from biascope.papers.verdicts import RESULTS
from biascope.results.estimate import Number
from biascope.results.result import KEY

MIGRATION = Path(__file__).resolve().parents[2] / "migrations" / "statistic_keys.py"
FILES = sorted(RESULTS.rglob("*.json"))


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


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_committed_interval_has_no_width_but_that_of_an_exact_number(path: Path) -> None:
    for effort in json.loads(path.read_text(encoding="utf-8"))["efforts"].values():
        for key, entry in effort["statistics"].items():
            number = Number.from_dict(entry)
            if number.confidence < 1.0:
                assert math.isnan(number.low) == math.isnan(number.high), key
                assert not number.high <= number.low, f"{key}: {number}"
                assert number.standard_error != 0.0, f"{key}: {number}"
            else:
                assert (number.low, number.high, number.standard_error) == (number.value, number.value, 0.0), key


def test_repeats_that_agree_are_k_of_k_in_the_committed_results() -> None:
    def number(paper: str, figure: str, key: str) -> Number:
        return verdicts.committed(papers.figure(paper, figure))["paper"].statistics[key]

    digits = number("patterns2021", "2", "m_1000_test_accuracy")
    assert (digits.low, digits.high) == (pytest.approx(100 * 0.025 ** (1 / 40)), 100.0)
    accuracy = number("geometry2025", "1", "resnet_18_wide_accuracy_u2_early")
    assert accuracy.low == pytest.approx(100 * 0.025 ** (1 / 3), abs=0.01)
    assert number("nads2020", "S11", "vgg11_lowest_accuracy_at_sigma_0").low == -math.inf
    assert number("nads2020", "1", "lenet_lowest_accuracy").low > 47, "of all frequencies"


def test_the_rule_for_repeats_is_applied_and_changes_nothing_more(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(RESULTS, tmp_path / "results"))
    assert runpy.run_path(str(MIGRATION.with_name("agreeing_repeats.py")))["main"](copy) == []
    assert contents(copy) == contents(RESULTS)


@pytest.mark.parametrize("paper", papers.names())
def test_every_claim_finds_the_number_that_once_decided_it(paper: str) -> None:
    for figure in papers.find(paper).figures:
        records = verdicts.committed(figure).values()
        decided = {claim.statement for record in records for claim, verdict in record.claims if verdict != "not run"}
        for standing in verdicts.judged(figure, records):
            if standing.claim.statement in decided:
                assert standing.record is not None, f"{paper} {figure.number}: {standing.claim.statistic}"


def migrate(folder: Path) -> str:
    done = subprocess.run([sys.executable, MIGRATION, folder], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.json")}


def test_the_migration_leaves_what_is_migrated_alone(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(RESULTS, tmp_path / "results"))
    assert migrate(copy) == f"0 of {len(FILES)} files rewritten"
    assert contents(copy) == contents(RESULTS)


def test_the_migration_gives_keys_labels_and_units_and_changes_no_number(tmp_path: Path) -> None:
    number = {"value": 51.2, "standard_error": None, "low": None, "high": None, "confidence": 0.95}
    claim = {
        "statement": "LeNet is at chance.",
        "statistic": "LeNet: lowest accuracy, %",
        "comparator": "at most",
        "published": "chance",
        "tolerance": 55.0,
        "minimum_effort": "laptop",
    }
    record: dict[str, Any] = {"format": 1, "paper": "nads2020", "figure": "1", "title": "One", "effort": "laptop"}
    record |= {"device": "cpu", "precision": "float32", "seconds": 1.0, "date": "2026-01-01", "versions": {}}
    record |= {"statistics": {claim["statistic"]: number}, "settings": {"seed": 0}, "notes": ["a note"]}
    record |= {"claims": [{**claim, "measured": number, "verdict": "inconclusive"}]}
    path = tmp_path / "nads2020" / "1.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"format": 1, "paper": "nads2020", "figure": "1", "efforts": {"laptop": record}}))
    assert migrate(tmp_path) == "1 of 1 files rewritten"
    key, once = "lenet_lowest_accuracy_percent", path.read_bytes()
    later = {"of": "", "kind": "ours", "post_hoc": False, "trained": []}
    assert json.loads(once)["efforts"]["laptop"] == record | {
        "format": 2,
        "statistics": {key: {**number, "label": "LeNet: lowest accuracy", "unit": "%"}},
        "claims": [{**claim, "statistic": key, **later, "verdict": "inconclusive"}],
    }
    assert migrate(tmp_path) == "0 of 1 files rewritten"
    assert path.read_bytes() == once
