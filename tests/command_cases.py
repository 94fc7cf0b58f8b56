"""A small case of every command, for tests of what all commands have in common; tests/cli/conftest.py makes its files."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from biascope.cli import app

NET = ["net.py:build", "--input", "1x8x8", "--device", "cpu"]
ON_DATA = ["--data", "s.npz", "--samples", "30,10", "--device", "cpu"]
FILES = ["base.safetensors", "a.safetensors", "b.safetensors"]
EDIT = ["vit", "--tasks", "s,t", "--weights", "vit.safetensors", "--data-root", ".", "--device", "cpu", "--steps", "2"]
# Words of a command, other settings for the same command, and the keys of its document.
CASES: dict[str, tuple[list[str], list[str], set[str]]] = {
    "scan": ([*NET, "--draws", "8"], ["--draws", "12", "--readout", "mean"], {"results", "report"}),
    "explain": (
        [*NET, "--draws", "8", "--inputs", "4"],
        ["--draws", "12", "--readout", "mean", "--parts", "2"],
        {"results", "report"},
    ),
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
        {"card", "comparisons", "warnings", "report"},
    ),
    "list": (
        [],
        ["--quiet"],
        {"networks", "measurements", "network_descriptions", "measurement_descriptions"},
    ),
    "info": (["--data-root", "."], ["--quiet"], {"versions", "devices", "data", "extras"}),
    "selftest": (
        ["net.py:build", "--input", "1x8x8"],
        ["--readout", "sum", "--seed", "1"],
        {"subject", "parameters", "passed", "checks", "precision", "attention"},
    ),
    "report": (["saved"], ["--out", "other.html"], {"results", "report"}),
    "reproduce": (["--status", "nads2020"], ["--quiet"], {"summary", "statements", "rows"}),
    "data list": (["--data-root", "."], ["--quiet"], {"root", "sets"}),
    "data check": (["s.npz"], ["--quiet"], {"name", "identity", "files"}),
    "data get": (["cifar10", "--data-root", "."], ["--quiet"], {"root", "sets", "failures"}),
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
    "merge extract": (
        [*FILES[:2], "--rank", "1", "--out", "lora", "--overwrite"],
        ["--energy", "0.5", "--report-out", "page"],
        {"results", "report", "files"},
    ),
    "merge diff": (FILES, ["--out", "page"], {"results", "report", "files"}),
    "merge doctor": (
        [*FILES[1:], "--base", FILES[0]],
        ["--fail-on", "never"],
        {"folders", "cases", "findings", "facts", "failed"},
    ),
}


def printed(*words: str) -> dict[str, Any]:
    """The document on standard output, which holds nothing else."""
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"

    def refused(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    document: dict[str, Any] = json.loads(done.stdout, parse_constant=refused)
    return document
