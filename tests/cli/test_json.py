"""What every command prints as JSON: one version, one shape, keys that neither sentences nor settings are part of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_tree import COMMANDS
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from biascope.cli import app
from biascope.cli.printing import numbers_as_json, write_table
from biascope.data.fetching import Fetched
from biascope.editing.encoder_source import VIT, headless_vit
from biascope.families import weights
from biascope.results.estimate import Estimate
from biascope.results.result import KEY
from biascope.runs.randomness import forked_rng

NETWORKS = """
from torch import nn

def build(outputs=2):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, outputs))

other = build

def convolution(outputs=2):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, outputs))
"""
NUMBER = {"label", "value", "standard_error", "interval", "confidence", "unit"}
RESULT = {"measurement", "subject", "sentence", "numbers", "tables", "facts", "warnings", "provenance"}
TINY = VIT | {"depth": 1, "width": 32, "heads": 2, "mlp": 64, "image_size": 16, "patch": 8}

NET = ["net.py:build", "--input", "1x8x8", "--device", "cpu"]
ON_DATA = ["--data", "s.npz", "--samples", "30,10", "--device", "cpu"]
FILES = ["base.safetensors", "a.safetensors", "b.safetensors"]
EDIT = ["vit", "--tasks", "s,t", "--weights", "vit.safetensors", "--data-root", ".", "--device", "cpu", "--steps", "2"]
# Words of a command, other settings for the same command, and the keys of its document.
CASES: dict[str, tuple[list[str], list[str], set[str]]] = {
    "scan": ([*NET, "--draws", "8"], ["--draws", "12", "--readout", "mean"], {"results", "report"}),
    "measure": (
        ["average_geometry", *NET, "--draws", "8"],
        ["--readout", "sum", "--scale", "0.1", "--inputs", "2"],
        {"results", "report"},
    ),
    "kernel": (
        ["net.py:build", *ON_DATA, "--leading", "3"],
        ["--leading", "5", "--kernel", "trace", "--draws", "2"],
        {"results", "report", "files"},
    ),
    "match": (
        ["net.py:build", "net.py:other", *ON_DATA, "--draws", "64"],
        ["--scale", "1", "--draws", "70", "--readout", "sum"],
        {"results", "report", "files"},
    ),
    "patterns": (
        ["net.py:convolution", "--patches", "s.npz", "--clusters", "3", "--draws", "2", "--device", "cpu"],
        ["--clusters", "4", "--draws", "3", "--inputs", "16"],
        {"results", "report", "files"},
    ),
    "edit": (
        [*EDIT, "--samples", "20,8,12", "--what", "addition,negation", "--control", "t", "--tunings", "non-linear"],
        ["--samples", "24,8,10", "--rate", "0.002"],
        {"results", "report", "files", "vectors"},
    ),
    "compare": (
        ["net.py:build", "net.py:other", "--input", "1x8x8", "--draws", "8", "--device", "cpu"],
        ["--draws", "12", "--leading", "3"],
        {"comparisons", "warnings", "report"},
    ),
    "list": ([], ["--quiet"], {"networks", "measurements"}),
    "selftest": (
        ["net.py:build", "--input", "1x8x8"],
        ["--readout", "sum", "--seed", "1"],
        {"subject", "parameters", "passed", "checks"},
    ),
    "report": (["saved"], ["--out", "other.html"], {"results", "report"}),
    "reproduce": (["--status", "nads2020"], ["--quiet"], {"rows"}),
    "data list": (["--data-root", "."], ["--quiet"], {"root", "sets"}),
    "data check": (["s.npz"], ["--quiet"], {"name", "identity", "files"}),
    "data get": (["cifar10", "--data-root", "."], ["--quiet"], {"root", "sets", "failures"}),
    "data score": (
        ["s.npz", "--model", "net.py:build", "--draws", "8", "--device", "cpu"],
        ["--draws", "12", "--scale", "1", "--split", "test"],
        {"results", "report", "files"},
    ),
    "inr fit": (
        ["a.png", "--set", "width=8", "--steps", "2", "--device", "cpu"],
        ["--steps", "3", "--held-out", "0.2", "--finer", "2"],
        {"results", "report", "files"},
    ),
    "inr advise": (
        [
            "a.png",
            "--candidates",
            "siren=5,siren=30",
            "--points",
            "64",
            "--draws",
            "2",
            "--width",
            "8",
            "--device",
            "cpu",
        ],
        ["--steps", "5", "--rate", "0.001"],
        {"results", "report", "command"},
    ),
    "merge check": (
        [*FILES, "--model", "net.py:build", "--data", "s.npz", "--grid", "4", "--device", "cpu"],
        ["--samples", "12", "--grid", "5", "--pixels", "unit"],
        {"results", "report", "files", "command"},
    ),
    "merge apply": (
        [*FILES, "--weight", "0.4", "--out", "merged.safetensors", "--overwrite"],
        ["--weight", "0.5", "--report-out", "page"],
        {"results", "report", "files"},
    ),
    "merge diff": (FILES, ["--out", "page"], {"results", "report", "files"}),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Networks, data sets, an image, checkpoints and a small encoder in the working folder; no pictures, which take seconds."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NETWORKS)
    noise = np.random.default_rng(0)
    for name in ("s", "t"):
        images = noise.integers(0, 256, (60, 8, 8)).astype(np.uint8)
        split = {
            "x_train": images[:40],
            "y_train": np.arange(40) % 2,
            "x_test": images[40:],
            "y_test": np.arange(20) % 2,
        }
        np.savez(f"{name}.npz", **split)
    Image.fromarray(noise.integers(0, 256, (12, 12), np.uint8)).save("a.png")
    with forked_rng(0):
        start = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        for file in FILES:
            moved = {key: part + 0.01 * torch.randn_like(part) for key, part in start.state_dict().items()}
            save_file(moved, file)
        vit = headless_vit(**TINY).state_dict()
    weights.save(vit, "vit.safetensors", {"settings": json.dumps(TINY)})

    def written(results: Any, path: Path, *, title: str = "") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(title or "")
        return path

    monkeypatch.setattr("biascope.results.report.write_report", written)
    monkeypatch.setattr(
        "biascope.data.fetching.fetch", lambda published, root, **_: Fetched(Path(root) / published.name, ("a mirror",))
    )
    return tmp_path


def printed(*words: str) -> dict[str, Any]:
    """The document on standard output, which holds nothing else."""
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"

    def refused(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    document: dict[str, Any] = json.loads(done.stdout, parse_constant=refused)
    return document


def keys(value: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Paths of all keys, the items of a list as one; what is below provenance and facts is not ours to name."""
    if isinstance(value, list):
        return set().union(*(keys(item, path) for item in value))
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
        (["scan", *NET, "--draws", "8", "--dry-run"], {"subject", "parameters", "device", "costs"}),
        (["kernel", "net.py:build", *ON_DATA, "--explain"], {"subject", "explanation"}),
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
    assert "effective rank" in quiet.stdout


def _recording(shown: list[bool]) -> Any:
    from biascope.cli.options import Work

    plain = Work.run

    def run(self: Work, *args: Any, **settings: Any) -> Any:
        found = plain(self, *args, **settings)
        shown.append(found.progress)
        return found

    return run
