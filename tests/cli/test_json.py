"""What every command prints as JSON: one version, one shape, keys that neither sentences nor settings are part of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_cases import CASES, NET, ON_DATA, printed
from command_tree import COMMANDS
from typer.testing import CliRunner

from biascope.cli import app
from biascope.cli.printing import write_table
from biascope.results.document import numbers_as_json
from biascope.results.estimate import Estimate
from biascope.results.result import KEY

NUMBER = {"label", "value", "standard_error", "interval", "confidence", "unit"}
RESULT = {"measurement", "subject", "sentence", "numbers", "tables", "facts", "warnings", "provenance"}


def keys(value: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Paths of all keys, the items of a list as one; what is below provenance and facts is not ours to name."""
    if isinstance(value, list):
        return {path}.union(*(keys(item, path) for item in value))
    if not isinstance(value, dict) or (path and path[-1] in ("provenance", "facts")):
        return {path}
    return set().union({path}, *(keys(item, (*path, name)) for name, item in value.items()))


def numbers(value: Any) -> list[dict[str, Any]]:
    """Every object that is a number with its error."""
    if isinstance(value, list):
        return [found for item in value for found in numbers(item)]
    if not isinstance(value, dict):
        return []
    own = [value] if "confidence" in value else []
    return own + [found for name, item in value.items() if name != "provenance" for found in numbers(item)]


@pytest.mark.parametrize("words", CASES)
def test_the_document_of_a_command(words: str, folder: Path) -> None:
    usual, others, expected = CASES[words]
    if words == "report":
        printed("scan", *NET, "--draws", "8", "--out", "saved")
    command = words.split()
    first = printed(*command, *usual)
    assert set(first) == {"version", *expected}
    assert first["version"] == 1
    for path in keys(first):
        for place, name in enumerate(path):
            # A column of a table may be of one of several things, which its name says after a colon.
            assert KEY.fullmatch(name), path
            assert ":" not in name or path[place - 2] == "tables", path
    for number in numbers(first):
        assert set(number) in (NUMBER, NUMBER | {"key", "case"})
        assert number["label"]
        assert number["interval"] is None or len(number["interval"]) == 2
    for result in first.get("results", ()):
        assert set(result) == RESULT
        assert result["sentence"]
        assert result["numbers"]
        assert all(KEY.fullmatch(key) for key in result["facts"])
    other = keys(printed(*command, *usual, *others))
    assert other == keys(first), other ^ keys(first)


def test_every_command_is_tried() -> None:
    assert set(CASES) == set(COMMANDS)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["scan", *NET, "--draws", "8", "--dry-run"],
            {"subject", "parameters", "device", "slowdown", "whole", "costs", "bytes", "memory_limit"},
        ),
        (["kernel", "net.py:build", *ON_DATA, "--plan"], {"subject", "plan"}),
        (["reproduce"], {"figures"}),
    ],
)
def test_what_a_command_prints_besides(words: list[str], expected: set[str], folder: Path) -> None:
    document = printed(*words)
    assert set(document) == {"version", *expected}
    assert all(KEY.fullmatch(name) for path in keys(document) for name in path)


def test_a_failed_selftest_is_printed_and_told(folder: Path) -> None:
    Path("noisy.py").write_text(
        "import torch\nfrom torch import nn\n\nclass Noisy(nn.Linear):\n    def forward(self, x):\n"
        "        return super().forward(x.flatten(1)) + torch.randn(len(x), 1)\n\ndef build(): return Noisy(64, 1)\n"
    )
    done = CliRunner().invoke(app, ["selftest", "noisy.py:build", "--input", "1x8x8", "--json"])
    assert done.exit_code == 1
    document = json.loads(done.stdout)
    assert not document["passed"]
    assert not all(check["passed"] for check in document["checks"])


def test_a_number_has_a_key_and_perhaps_a_case() -> None:
    found = {
        "gap": Estimate.exact(2.0).named("gap"),
        "accuracy:the net: 1": Estimate(0.5).named("accuracy of the net", "share"),
    }
    gap, accuracy = numbers_as_json(found)
    assert gap == {
        "key": "gap",
        "case": "",
        "label": "gap",
        "value": 2.0,
        "standard_error": 0.0,
        "interval": [2.0, 2.0],
        "confidence": 1.0,
        "unit": "",
    }
    assert (accuracy["key"], accuracy["case"], accuracy["unit"]) == ("accuracy", "the net: 1", "share")
    assert (accuracy["standard_error"], accuracy["interval"]) == (None, None)


def test_a_table_as_csv_has_three_columns_for_a_number(tmp_path: Path) -> None:
    rows = [{"name": "a, b", "loss": Estimate(0.5, 0.1, 0.25, 0.75)}, {"name": "c", "loss": None}]
    path = write_table(rows, tmp_path / "table.csv")
    assert path.read_bytes() == b'name,loss,loss_low,loss_high\r\n"a, b",0.5,0.25,0.75\r\nc,,,\r\n'


def test_quiet_leaves_the_numbers_and_shows_no_progress(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr("biascope.cli.options.Work.run", _recording(shown))
    words = ["scan", *NET, "--draws", "8"]
    plain, quiet = (CliRunner().invoke(app, [*words, *more]) for more in ([], ["--quiet"]))
    assert shown == [True, False]
    assert plain.stdout == quiet.stdout
    assert "directions over which the mean gradient spreads, of 64" in quiet.stdout


def _recording(shown: list[bool]) -> Any:
    from biascope.cli.options import Work

    plain = Work.run

    def run(self: Work, *args: Any, **settings: Any) -> Any:
        found = plain(self, *args, **settings)
        shown.append(found.progress)
        return found

    return run
