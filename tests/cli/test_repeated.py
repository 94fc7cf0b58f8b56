"""The same command prints the same: byte for byte in one folder, and in a fresh one up to rounding."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_cases import CASES, NET
from typer.testing import CliRunner

from biascope.cli import app
from biascope.runs.autotune import Timings

LISTS = {"list", "info", "data list", "data get", "reproduce"}  # of what there is
WORDS = {words: [*words.split(), *usual] for words, (usual, *_) in CASES.items() if words not in LISTS}
# Enough draws for several ways to be tried, each on a part of them.
WORDS["scan"] = ["scan", *NET, "--draws", "80", "--estimator", "exact"]
WORDS["measure"] = ["measure", "average_geometry", *NET, "--draws", "80"]
for name in ("Half", "Recurrent"):
    WORDS[name] = ["scan", f"odd.py:{name}", *NET[1:], "--draws", "80"]
ODD = """
from torch import nn

class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.Linear(32, 1)

    def forward(self, x):
        return self.read(x.flatten(1)[:, :32])

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.read = nn.LSTM(8, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x):
        return self.read(self.layer(x.squeeze(1))[0][:, -1])
"""
TIME = re.compile(r'^ *"(seconds|date)": .*$', re.MULTILINE)


def told(words: list[str], *more: str) -> str:
    """All that a command prints, warnings too, but for the date and how long it took."""
    done = CliRunner().invoke(app, [*words, *more])
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    return TIME.sub("", done.output)


def numbers(document: Any) -> Iterator[tuple[str, float, float]]:
    """Every estimate of a document: its label, its value and how wide its interval is."""
    if isinstance(document, dict):
        if {"label", "value", "interval"} <= document.keys() and document["value"] is not None:
            low, high = document["interval"] or (0.0, 0.0)
            yield document["label"], document["value"], (high or 0.0) - (low or 0.0)
        for part in document.values():
            yield from numbers(part)
    elif isinstance(document, list):
        for part in document:
            yield from numbers(part)


def slowest(timings: Timings[Any], ways: Iterable[Any]) -> Any:
    """Of the ways that can do the work, the one that is never chosen."""
    return max((way for way in ways if math.isfinite(timings.seconds[way])), key=timings.seconds.__getitem__)


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_repeated_command_prints_the_same(
    words: str, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (folder / "odd.py").write_text(ODD)
    if words == "report":
        told(["scan", *NET, "--draws", "8", "--out", "saved"])
    fresh = tmp_path_factory.mktemp("fresh")
    shutil.copytree(folder, fresh, dirs_exist_ok=True)
    first = told(WORDS[words], "--json")
    assert "mixes results" not in first
    assert told(WORDS[words], "--json") == first
    assert told(WORDS[words]) == told(WORDS[words])

    # Elsewhere another way may be the fastest.
    monkeypatch.chdir(fresh)
    monkeypatch.setattr(Timings, "fastest", slowest)
    one, two = (list(numbers(json.loads(text))) for text in (first, told(WORDS[words], "--json")))
    assert one or CASES.get(words, ("", "", {"results"}))[2].isdisjoint({"results", "comparisons"})
    assert [label for label, _, _ in one] == [label for label, _, _ in two]
    for (label, value, width), (_, other, _) in zip(one, two, strict=True):
        assert abs(value - other) <= 0.01 * width or value == pytest.approx(other, rel=1e-4), label
