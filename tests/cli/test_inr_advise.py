"""`biascope inr advise`: from a file to a ranking, warnings and a report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from biascope.cli import app
from biascope.measures.advise.result import Advice
from biascope.tasks.signal_files import save_signal
from biascope.tasks.signals import Signal

pytestmark = pytest.mark.usefixtures("unrendered_pictures")

QUICK = ["--points", "64", "--draws", "2", "--width", "16", "--device", "cpu"]


def advised(*words: str) -> str:
    done = CliRunner().invoke(app, ["inr", "advise", *words])
    assert done.exit_code == 0, f"{done.output}{done.exception}"
    return done.output


def test_an_image_is_ranked_in_words_and_reported(tmp_path: Path) -> None:
    y, x = np.mgrid[:16, :24] / 24
    pixels = np.stack([255 * (0.5 + 0.5 * np.sin(12 * x + 7 * y)), 200 * x, 0 * x], -1).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "waves.png")
    out = str(tmp_path / "out")
    chosen = ["--candidates", "siren=5,siren=15,siren=300,relu", "--check", "--steps", "3"]
    told = advised(str(tmp_path / "waves.png"), *chosen, *QUICK, "--out", out)
    assert told.strip().startswith("For waves and 3 iterations, use SIREN")
    assert "rank correlation" in told
    assert "The 4 candidates" in told
    found = Advice.load(tmp_path / "out" / "advice")
    assert (found.sizes, found.channels, found.iterations) == ((16, 24), 3, (1, 3))
    assert f"biascope inr fit {tmp_path / 'waves.png'} {found.models[0]} --steps 3" in told
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Which network for waves" in page
    assert "Aliasing" in page  # the warnings are in the report too


def test_numbers_as_json_and_a_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    at = torch.arange(3000) / 1000
    save_signal(Signal(0.5 * torch.sin(2 * torch.pi * 40 * at)[:, None], "hum", 1000.0), tmp_path / "hum.wav")
    told = json.loads(advised("hum.wav", "--candidates", "siren=100,siren=3000", *QUICK, "--json"))
    (found,) = told["results"]
    assert found["provenance"]["data"]["shape"] == [2000, 1]  # two seconds by default
    assert {row["network"] for row in found["tables"]["networks"]} == {"SIREN ω₀=100", "SIREN ω₀=3000"}
    assert told["command"].startswith("biascope inr fit hum.wav --model siren --set omega=")
    assert told["command"].endswith(" --steps 100 --rate 0.0001 --batch 16384 --set width=16 --seconds 2")
    assert told["report"] == "biascope-runs/advise-hum.wav/report.html"
    assert Path(told["report"]).exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.png"], "must be an existing file"),
        (["tiny.npy"], "tiny must have at least 64 samples"),
        (["flat.npy"], "flat must vary, got one value everywhere"),
        (["holes.npy"], "The values of holes must be finite real numbers"),
        (["line.npy", "--candidates", "resnet"], "A candidate must be one of siren, ffn, relu"),
        (["line.npy", "--points", "10"], "points must be from 64 to 4,096, got 10"),
        (["line.npy", "--steps", "0"], "steps must be at least 1, got 0"),
        (["line.npy", "--device", "nowhere"], "device must be"),
        (["line.npy", "--width", "0"], "width must be a whole number of at least 1"),
    ],
)
def test_what_cannot_be_ranked_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    line = np.sin(np.arange(100) / 7)
    np.save("line.npy", line)
    np.save("tiny.npy", line[:8])
    np.save("flat.npy", np.ones((20, 20)))
    np.save("holes.npy", np.where(np.arange(100) == 3, np.nan, line))
    done = CliRunner().invoke(app, ["inr", "advise", *words])
    assert done.exit_code != 0
    assert message in f"{done.output}{done.exception}"
