"""Signals fitted by networks, from Python and from the command line."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from biascope import Family, Run, network
from biascope.cli import app
from biascope.families import weights
from biascope.tasks.signal_files import signal_of
from biascope.tasks.signals import Signal, coordinate_grid
from biascope.training.fit import DivergedError
from biascope.training.recipe import Recipe
from biascope.training.signals import fit_signal, usual_recipe

HERE = Run(device="cpu", progress=False)


def siren(**settings: object) -> Family:
    chosen = {"width": 32, "depth": 2, "omega": 10.0, **settings}
    return Family.initialised(functools.partial(network("siren"), **chosen), name="siren")


def test_the_mean_of_every_channel_is_taken_off_and_added_again() -> None:
    values = torch.stack([torch.full((6, 8), 0.25), torch.full((6, 8), -3.0)], -1)
    silent = Family.initialised(functools.partial(nn.Linear, 2, 2), name="linear")
    how = Recipe("adam", 0.05, schedule="constant", steps=800, batch=48, loss="squared")
    found = fit_signal(silent, Signal(values), recipe=how, run=HERE)
    assert found.offset.tolist() == [0.25, -3.0]
    assert torch.allclose(found.reconstruction(run=HERE).values, values, atol=1e-3)


def test_a_siren_learns_a_smooth_image_and_is_read_between_its_pixels() -> None:
    r = coordinate_grid((12, 16))
    values = (0.5 + 0.4 * torch.sin(5 * r[:, 0]) * torch.cos(4 * r[:, 1])).reshape(12, 16, 1)
    found = fit_signal(siren(), Signal(values), recipe=usual_recipe(192, steps=300, rate=1e-3), held_out=0.3, run=HERE)
    assert found.psnr["train"] > 35
    assert found.psnr["test"] > 30
    finer = found.reconstruction(2, run=HERE)
    assert finer.shape == (24, 32)
    assert torch.allclose(finer.values[::2, ::2].double(), found.reconstruction(run=HERE).values.double(), atol=1e-5)


def test_points_held_out_and_batches() -> None:
    assert usual_recipe(100).batch == 100
    assert usual_recipe(10**6).batch == 16_384
    found = fit_signal(siren(coordinates=1), Signal(torch.rand(20, 1)), recipe=usual_recipe(20, steps=1), run=HERE)
    assert set(found.psnr) == {"train", "all"}


@pytest.mark.parametrize(
    ("family", "message"),
    [
        (siren(coordinates=3), "must take the 2 coordinates of signal"),
        (siren(outputs=2), "must output 1 values per point"),
    ],
)
def test_networks_that_do_not_fit_are_a_sentence(family: Family, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_signal(family, Signal(torch.zeros(4, 4, 1)), run=HERE)


def test_a_training_that_diverges_is_told() -> None:
    family = Family.initialised(functools.partial(nn.Linear, 2, 1), name="linear")
    how = Recipe("gd", 1e6, schedule="constant", steps=60, loss="squared")
    with pytest.raises(DivergedError, match="Pass a smaller learning rate"):
        fit_signal(family, Signal(coordinate_grid((4, 4))[:, :1].reshape(4, 4, 1).float()), recipe=how, run=HERE)


def test_the_command_writes_weights_numbers_and_a_reconstruction(tmp_path: Path) -> None:
    pixels = (255 * np.linspace(0, 1, 60).reshape(6, 10)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "ramp.png")
    words = [
        "inr",
        "fit",
        str(tmp_path / "ramp.png"),
        "--set",
        "width=16",
        "--set",
        "depth=2",
        "--steps",
        "200",
        "--rate",
        "0.001",
    ]
    done = CliRunner().invoke(app, [*words, "--finer", "2", "--device", "cpu", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "dB on train" in done.output
    (found,) = json.loads((tmp_path / "out" / "fit.json").read_text())["results"]
    psnr = {number["case"]: number["value"] for number in found["numbers"] if number["key"] == "psnr"}
    assert psnr["train"] > 20
    assert signal_of(tmp_path / "out" / "reconstruction-2x.png").shape == (12, 20)
    again = network("siren")(width=16, depth=2)
    again.load_state_dict(weights.load(tmp_path / "out" / "weights.safetensors"))
    said = again(coordinate_grid((6, 10)).float()).detach().reshape(6, 10) + found["facts"]["offset"][0]
    shown = signal_of(tmp_path / "out" / "reconstruction.png").values[..., 0]
    assert (said.clamp(0, 1) - shown).abs().max() < 1 / 255


def test_a_sound_and_an_array_are_written_in_their_own_form(tmp_path: Path) -> None:
    np.save(tmp_path / "line.npy", np.linspace(-2, 2, 30))
    words = ["inr", "fit", str(tmp_path / "line.npy"), "--set", "width=8", "--steps", "5", "--device", "cpu", "--json"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["results"][0]["facts"]["shape"] == [30]
    assert str(tmp_path / "out" / "reconstruction.npy") in document["files"]
    assert np.load(tmp_path / "out" / "reconstruction.npy").shape == (30,)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.png"], "must be an existing file"),
        (["line.npy", "--model", "lenet"], "lenet takes square images"),
        (["line.npy", "--finer", "0"], "--finer must be a whole number of at least 1"),
        (["line.npy", "--held-out", "1"], "held_out must be a share"),
        (["line.npy", "--device", "nowhere"], "device must be"),
    ],
)
def test_what_cannot_be_fitted_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("line.npy", np.linspace(0, 1, 8))
    done = CliRunner().invoke(app, ["inr", "fit", *words])
    assert done.exit_code != 0
    assert message in f"{done.output}{done.exception}"
