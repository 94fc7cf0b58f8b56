from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_cases import FILES
from PIL import Image
from safetensors.torch import save_file

from biascope.data.fetching import Fetched
from biascope.editing.encoder_source import VIT, headless_vit
from biascope.families import weights
from biascope.runs.randomness import forked_rng

NETWORKS = """
from torch import nn

def build(outputs=2):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, outputs))

other = build

def convolution(outputs=2):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, outputs))
"""
TINY = VIT | {"depth": 1, "width": 32, "heads": 2, "mlp": 64, "image_size": 16, "patch": 8}


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
        path.write_text(f'<meta name="generator" content="biascope 0">{title}')
        return path

    monkeypatch.setattr("biascope.results.report.write_report", written)
    monkeypatch.setattr(
        "biascope.data.fetching.fetch", lambda published, root, **_: Fetched(Path(root) / published.name, ("a mirror",))
    )
    return tmp_path


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a command may take longer than half a minute, after which it prints a line."""
    monkeypatch.setattr("biascope.runs.progress.LINE_EVERY", float("inf"))


@pytest.fixture(autouse=True)
def short_look_at_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run measures for 0.2 s how busy the machine is, which tests/runs/test_progress.py tests."""
    monkeypatch.setattr("biascope.runs.rehearsal._SPIN", 0.002)
