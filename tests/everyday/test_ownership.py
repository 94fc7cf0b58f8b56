"""A command replaces what Biascope wrote, and nothing else."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from asking import Asking
from safetensors.torch import save_file

from biascope.results import store
from biascope.results.registry import require_own
from biascope.runs import files
from biascope.runs.files import require_ours

SCAN = ["scan", "odd.py:flat", "--input", "1x4x4", "--draws", "4", "--device", "cpu", "--out", "run"]
FIT = ["inr", "fit", "signal.npy", "--set", "width=8", "--steps", "2", "--device", "cpu", "--out", "run"]
KERNEL = ["kernel", "odd.py:flat", "--data", "images.npz", "--samples", "12", "--device", "cpu", "--out", "run"]
DIFF = ["merge", "diff", "base.safetensors", "a.safetensors", "--out", "run"]
APPLY = [
    *("merge", "apply", "base.safetensors", "a.safetensors=1", "--out", "merged.safetensors", "--report-out", "run"),
]


@pytest.fixture(autouse=True)
def checkpoints(ask: Asking) -> None:
    for name in ("base", "a"):
        save_file({"first.weight": torch.ones(3, 2) + (name == "a")}, ask.folder / f"{name}.safetensors")


@pytest.mark.parametrize(
    ("words", "name", "content"),
    [
        (SCAN, "report.html", "<title>Quarterly report</title>"),
        ([*SCAN, "--dry-run"], "report.html", "<title>Quarterly report</title>"),
        (SCAN, "mean_gradient/result.json", '{"accuracy": 0.9}'),
        (SCAN, "average_geometry/result.json", "[]"),
        (KERNEL, "tangent_kernel/result.json", ""),
        (KERNEL, "report.html", ""),
        (DIFF, "layers.csv", "layer,price\n"),
        (DIFF, "result/result.json", '{"format": "mine", "measurement": 3}'),
        (APPLY, "report.html", "mine"),
        (APPLY, "layers.csv", "layer,price\n"),
        (FIT, "weights.safetensors", "mine"),
        (FIT, "reconstruction.png", "mine"),
        (FIT, "unfinished.safetensors", "mine"),
        (FIT, "fit.json", '{"version": 1, "name": "fit"}'),
    ],
)
def test_a_file_of_someone_else_is_left_as_it_is(ask: Asking, words: list[str], name: str, content: str) -> None:
    path = ask.folder / "run" / name
    path.parent.mkdir(parents=True)
    path.write_text(content)
    ask.refused(*words, naming=f"run/{name} would be replaced, but was not written by Biascope. Move it away")
    assert path.read_text() == content


@pytest.mark.parametrize("words", [SCAN, KERNEL, DIFF, FIT], ids=lambda words: words[0])
def test_a_command_replaces_its_own_files_in_another_process_too(
    ask: Asking, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    ask.answered(*words)
    monkeypatch.setattr(files, "_written", set())
    files._held_ours.cache_clear()
    ask.answered(*words)


@pytest.mark.parametrize("array", [np.arange(5.0), np.eye(12)], ids=["vector", "square"])
def test_an_array_that_is_no_kernel_matrix_is_left_as_it_is(ask: Asking, array: np.ndarray) -> None:
    ask.answered(*KERNEL, "--matrix", "kernel.npy")
    ask.answered(*KERNEL, "--matrix", "kernel.npy")
    np.save(ask.folder / "mine.npy", array)
    ask.refused(*KERNEL, "--matrix", "mine.npy", naming="--matrix would replace mine.npy, which holds no kernel matrix")


def test_a_result_is_never_saved_over_a_file_of_someone_else(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(ValueError, match="was not written by Biascope"):
        store.write(tmp_path, {"measurement": "x"}, {})
    assert not list(tmp_path.glob("arrays-*"))


def test_results_of_the_first_format_and_reports_of_all_versions_are_ours(tmp_path: Path) -> None:
    old = {"format": 1, "measurement": "mean_gradient", "values": {}}
    for name, text in (("one.json", json.dumps(old)), ("two.json", json.dumps(old, indent=1))):
        (tmp_path / name).write_text(text)
        require_ours(tmp_path / name)
    (tmp_path / "report.html").mkdir()
    with pytest.raises(ValueError, match="was not written by Biascope"):
        require_own(tmp_path)
