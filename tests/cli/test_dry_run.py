"""`--dry-run` of every command that may take long: it prints a time, and nothing is there afterwards that was not before."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from command_cases import CASES, FILES, NET, ON_DATA, printed
from command_tree import COMMANDS
from typer.testing import CliRunner

from biascope.cli import app
from biascope.papers import reproduce as reproduction
from biascope.papers.verdicts import committed
from biascope.results.result import KEY

# They print what is there, or wait for others: a download cannot be rehearsed.
QUICK = {"list", "info", "data list", "data check", "data get"}
OWN_SHAPE = {"scan"}
WORDS = {words: [*words.split(), *usual] for words, (usual, *_) in CASES.items() if words not in QUICK}
WORDS["reproduce"] = ["reproduce", "patterns2021", "theorem 5.1", "--effort", "smoke", "--device", "cpu"]
SHAPE = {"version", "seconds", "whole", "device", "slowdown", "stages", "bytes", "memory_limit"}
# Settings with which a command would take minutes or more.
LONG = {
    "kernel": ["kernel", "net.py:build", *ON_DATA, "--draws", "100000"],
    "measure": ["measure", "average_geometry", *NET, "--draws", "100000000"],
    "patterns": [*WORDS["patterns"], "--draws", "1000000"],
    "edit": [*WORDS["edit"], "--steps", "1000000"],
    "inr fit": [*WORDS["inr fit"], "--steps", "1000000"],
    "inr advise": [*WORDS["inr advise"], "--draws", "100000"],
    "merge check": [*WORDS["merge check"], "--grid", "600"],
}


@pytest.fixture
def temporary(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where temporary folders are made: an empty folder."""
    place = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def files(*places: Path) -> set[Path]:
    """Everything in some folders, without caches of Python and torch."""
    found = {path for place in places for path in place.rglob("*")}
    return {path for path in found if not any(word in str(path) for word in ("__pycache__", "torchinductor"))}


def asked(words: list[str]) -> str:
    """What a dry run prints."""
    done = CliRunner().invoke(app, [*words, "--dry-run"])
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    return done.stdout


def test_every_command_that_may_take_long_has_a_dry_run() -> None:
    have = {words for words, command in COMMANDS.items() if "--dry-run" in {o for p in command.params for o in p.opts}}
    assert have == set(COMMANDS) - QUICK == set(WORDS)


@pytest.mark.parametrize("words", WORDS)
def test_a_dry_run_tells_the_time_and_leaves_nothing_behind(words: str, folder: Path, temporary: Path) -> None:
    if words == "report":
        printed("scan", *NET, "--draws", "8", "--out", "saved")
    before = files(folder, temporary)
    told = asked(WORDS[words])
    assert ("about" if words in OWN_SHAPE else "Expected time: ") in told
    document: dict[str, Any] = json.loads(asked([*WORDS[words], "--json"]))
    assert files(folder, temporary) == before
    if words not in OWN_SHAPE:
        assert set(document) - {"unknown"} == SHAPE
        assert document["seconds"] > 0
        assert all(KEY.fullmatch(key) for stage in document["stages"] for key in stage)
    assert words == "reproduce" or 0 < document["bytes"] < document["memory_limit"]


@pytest.mark.parametrize("words", LONG)
def test_a_long_command_is_stopped(words: str, folder: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("biascope.runs.rehearsal.BUDGET", 0.3)
    before = files(folder, temporary)
    document = json.loads(asked([*LONG[words], "--json"]))
    assert not document["whole"]
    assert document["seconds"] > 10
    assert document["stages"][-1]["seconds"] > 10
    assert files(folder, temporary) == before
    assert "for the stages above. More stages may follow." in asked(LONG[words])


ENDLESS = """
import time
from torch import nn

def slow_to_build():
    while True:
        time.sleep(0.01)

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.Linear(64, 2)

    def forward(self, x):
        if x.device.type != "meta":
            slow_to_build()
        return self.read(x.flatten(1))

def billions():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10**9), nn.ReLU(), nn.Linear(10**9, 2))
"""


@pytest.mark.parametrize(
    "words",
    [
        ["scan", "endless.py:{}", "--input", "1x8x8"],
        ["compare", "endless.py:{}", "net.py:build", "--input", "1x8x8"],
        ["kernel", "endless.py:{}", "--data", "s.npz", "--samples", "30,10"],
        ["measure", "average_geometry", "endless.py:{}", "--input", "1x8x8"],
        ["selftest", "endless.py:{}", "--input", "1x8x8"],
    ],
    ids=lambda words: " ".join(word for word in words[:1] + words[-3:-2]),
)
@pytest.mark.parametrize("model", ["slow_to_build", "Slow"])
def test_an_answer_comes_in_time_for_any_model(
    words: list[str], model: str, folder: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("biascope.runs.rehearsal.LIMIT", 0.3)
    (folder / "endless.py").write_text(ENDLESS)
    before = files(folder, temporary)
    begin = time.monotonic()
    told = asked([word.format(model) for word in words])
    assert time.monotonic() - begin < 4  # a second for a busy machine, and the imports of the first command
    rough = model == "Slow" and words[0] in ("scan", "compare")
    assert ("roughly, from its operations" in told or "Expected time: " in told) if rough else "more than" in told
    assert files(folder, temporary) == before


def test_the_time_of_a_network_that_no_memory_holds_is_told(folder: Path) -> None:
    (folder / "endless.py").write_text(ENDLESS)
    told = asked(["scan", "endless.py:billions", "--input", "1x8x8"])
    assert "billions: 67,000,000,002 parameters" in told
    assert told.count("roughly, from its operations") == 1
    assert told.count("those of the mean gradient") == 1  # at the same inputs, which are few
    assert "draws 16 of the usual 400 networks, each at 2 of the usual 64 inputs" in told


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["measure", "average_geometry", *NET, "--out", "net.py"], "The output folder must be writable"),
        (["compare", "net.py:build", "lenet", "--out", "net.py"], "The output folder must be writable"),
        (["kernel", "net.py:build", *ON_DATA, "--matrix", "nosuch/k.npy"], "--matrix must lie in an existing folder"),
        (["kernel", "net.py:build", *ON_DATA, "--leading", "0"], "leading must be from 1 to"),
        (["kernel", "net.py:build", *ON_DATA, "--on", "ray"], "--dry-run works only on this machine"),
        (["merge", "apply", *FILES, "--weight", "0.4", "--out", "a.safetensors"], "The output must not exist yet"),
        (["reproduce", "nads2020", "1", "--effort", "none"], "effort"),
        (["reproduce", "patterns2021", "theorem 5.1", "--network", "lenet"], "is run for all of its networks together"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_as_ever(words: list[str], sentence: str, folder: Path, temporary: Path) -> None:
    before = files(folder, temporary)
    done = CliRunner().invoke(app, [*words, "--dry-run"])
    assert isinstance(done.exception, ValueError)
    assert sentence in str(done.exception)
    assert not done.stdout
    assert files(folder, temporary) == before


def test_a_kernel_matrix_and_a_failing_gate_are_rehearsed(folder: Path, temporary: Path) -> None:
    before = files(folder, temporary)
    assert "Expected time: about" in asked(["kernel", "net.py:build", *ON_DATA, "--matrix", "k.npy"])
    gate = [
        word for grade in ("merge", "merge with a loss", "do not merge", "undecided") for word in ("--fail-on", grade)
    ]
    assert "Expected time: about" in asked([*WORDS["merge check"], *gate])
    assert files(folder, temporary) == before


def test_figures_are_told_by_what_committed_runs_took(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from biascope import papers

    monkeypatch.setattr(reproduction, "reproduce", None)  # nothing is run
    figures = papers.find("nads2020").figures
    known = [found["laptop"] for figure in figures if "laptop" in (found := committed(figure))]
    document = json.loads(asked(["reproduce", "nads2020", "--json"]))
    assert document["seconds"] == pytest.approx(sum(record.seconds for record in known))
    assert len(document["stages"]) == len(known)
    assert set(document["unknown"]) == {figure.number for figure in figures} - {record.figure for record in known}
    assert document["whole"] == (not document["unknown"])
