"""`biascope patterns`: patches from a file or a data set, the channels of a user's network, and what it writes and refuses."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner

from biascope import load
from biascope.cli.patterns import patterns
from biascope.families.source import family_of
from biascope.measures.channel_patterns import channel_patterns
from biascope.runs.run import Run
from biascope.tasks.patch_files import patches_of

pytestmark = pytest.mark.usefixtures("one_thread", "unrendered_pictures")
MODEL = """
from torch import nn
def build(outputs=1):
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(6, outputs))
def flat():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set of 60 small images in three classes, patches in two files, and a network."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 255, (60, 1, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "small.npz", x_train=images, y_train=np.arange(60) % 3)
    patches = generator.standard_normal((5, 1, 3, 3))
    np.save(tmp_path / "own.npy", patches)
    np.savez(tmp_path / "known.npz", patches=patches, names=list("abcde"), statistics=np.linspace(-0.4, 0.4, 5))
    (tmp_path / "own.py").write_text(MODEL)
    monkeypatch.setenv("BIASCOPE_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*words: str):
    app = typer.Typer()
    app.command()(patterns)
    return CliRunner().invoke(app, [*words, "--device", "cpu"], catch_exceptions=True)


def test_a_data_set_gives_tables_a_report_and_a_result(folder):
    words = ["own.py:build", "--patches", "small", "--positive", "0", "--clusters", "6", "--draws", "3", "--out", "run"]
    done = invoke(*words)
    assert done.exit_code == 0, done.output
    assert "channels of own detect" in done.output
    assert "correlation of votes with label statistics" in done.output
    rows = list(csv.DictReader((folder / "run/patterns.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["pattern"] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert {"channels", "strength", "mass_for", "mass_against", "vote", "presence", "statistic"} <= set(rows[0])
    channels = list(csv.DictReader((folder / "run/channels.csv").read_text(encoding="utf-8").splitlines()))
    assert len(channels) == 3 * 6  # of every network
    assert (folder / "run/report.html").stat().st_size > 10_000
    result = load(folder / "run/channel_patterns")
    assert result.responses.shape == (3, 6, 6)
    assert float(rows[2]["vote"]) == pytest.approx(result.votes[:, 2].mean())
    assert result.provenance["settings"]["positive"] == [0]
    again = invoke(*words, "--json")
    assert again.exit_code == 0, again.output
    (found,) = json.loads(again.stdout)["results"]
    assert found["sentence"] == result.sentence()
    assert len(found["tables"]["patterns"]) == 6


def test_trained_weights_are_compared_with_initialised_networks_or_shuffled_filters(folder):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(6, 1))
    torch.save(module.state_dict(), "trained.pt")
    words = ["own.py:build", "--patches", "own.npy", "--data", "small", "--positive", "1,2", "--weights", "trained.pt"]
    done = invoke(*words, "--draws", "4", "--within", "2", "--out", "run")
    assert done.exit_code == 0, done.output
    assert "networks at initialisation" in done.output
    result = load(folder / "run/channel_patterns")
    assert result.control_weights.shape == (4, 6)
    assert result.subject == "own at trained"
    patches = np.load("own.npy").reshape(5, 9)
    expected = (
        module[0].weight.detach().double().flatten(1).numpy() @ patches.T + module[0].bias.detach().numpy()[:, None]
    )
    np.testing.assert_allclose(result.responses[0], expected, atol=1e-5)
    shuffled = invoke(*words, "--draws", "4", "--control", "shuffled", "--out", "other")
    assert "networks with shuffled filters" in shuffled.output


def test_patches_with_known_statistics_need_no_data(folder):
    done = invoke(
        "own.py:build", "--patches", "known.npz", "--input", "1x8x8", "--draws", "3", "--markers", "e,a", "--out", "run"
    )
    assert done.exit_code == 0, done.output
    result = load(folder / "run/channel_patterns")
    assert result.names == tuple("abcde")
    assert result.markers == ("e", "a")
    assert result.labelled
    family = family_of("own.py:build", shape=(1, 8, 8))
    same = channel_patterns(
        family, None, patches_of("known.npz"), shape=(1, 8, 8), draws=3, markers=("e", "a"), run=Run(device="cpu")
    )
    np.testing.assert_allclose(result.votes, same.votes, rtol=1e-6)


def test_patches_of_pixels_are_standardised_as_the_images_are(folder):
    images = np.load("small.npz")["x_train"]
    np.save("pixels.npy", images[:4, :, 2:5, 3:6])  # cut from images of the set
    done = invoke(
        "own.py:build", "--patches", "pixels.npy", "--data", "small", "--positive", "0", "--draws", "1", "--out", "run"
    )
    assert done.exit_code == 0, done.output
    result = load(folder / "run/channel_patterns")
    scaled = images / 255
    np.testing.assert_allclose(result.pixels, (scaled[:4, :, 2:5, 3:6] - scaled.mean()) / scaled.std(), atol=1e-5)
    assert result.presence.min() >= 1 / 60
    plain = patches_of("pixels.npy")
    np.testing.assert_allclose(plain.pixels, images[:4, :, 2:5, 3:6] / 255)
    np.save("colours.npy", np.zeros((4, 3, 3, 3), np.uint8))
    wrong = invoke("own.py:build", "--patches", "colours.npy", "--data", "small")
    assert "must have the 1 channels of the data, got 3" in str(wrong.exception)


def test_json_has_no_infinite_numbers(folder):
    done = invoke(
        "own.py:build", "--patches", "known.npz", "--input", "1x8x8", "--draws", "2", "--json", "--out", "run"
    )
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout, parse_constant=lambda text: pytest.fail(text))
    rows = document["results"][0]["tables"]["patterns"]
    numbers = [value for row in rows for value in row.values() if isinstance(value, float)]
    assert all(map(math.isfinite, numbers))


def test_patches_without_statistics_and_data_show_detectors_alone(folder):
    done = invoke("own.py:build", "--patches", "own.npy", "--set", "outputs=3", "--draws", "2", "--out", "run")
    assert done.exit_code == 0, done.output
    assert "correlation" not in done.output
    assert "The strongest is pattern" in done.output


def test_a_network_of_ours_is_made_for_the_patches(folder):
    np.save("colours.npy", np.random.default_rng(1).standard_normal((4, 3, 5, 5)))
    done = invoke("lenet", "--patches", "colours.npy", "--draws", "2", "--out", "run")
    assert done.exit_code == 0, done.output
    assert load(folder / "run/channel_patterns").responses.shape == (2, 6, 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["own.py:flat", "--patches", "small"], "flat must have a convolution of images (Conv2d)"),
        (
            ["lenet", "--patches", "own.npy"],
            "Patches must have the shape 1×5×5 that a channel of the first convolution of lenet",
        ),
        (
            ["own.py:build", "--patches", "small", "--control", "none"],
            "--control must be initialised or shuffled, got 'none'",
        ),
        (["own.py:build", "--patches", "small", "--positive", "cat"], "--positive must be whole numbers"),
        (["own.py:build", "--patches", "small", "--positive", "7"], "Labels must be of two classes, got 1"),
        (["own.py:build", "--patches", "gone.npy"], "The patches gone.npy must be an existing file"),
        (["own.py:build", "--patches", "gone"], "data set must be one of"),
        (["own.py:build", "--patches", "small", "--clusters", "1"], "clusters must be from 2"),
        (["own.py:build", "--patches", "own.npy", "--within", "0"], "within must be a positive number"),
        (
            ["own.py:build", "--patches", "known.npz", "--input", "1x8x8", "--markers", "a,z"],
            "markers must be two of the",
        ),
        (
            ["own.py:build", "--patches", "known.npz", "--input", "3x8x8"],
            "own must accept inputs of shape 3×8×8, and its forward pass failed with",
        ),
    ],
)
def test_what_cannot_be_done_is_a_sentence(folder, words, message):
    done = invoke(*words)
    assert done.exit_code != 0
    assert isinstance(done.exception, ValueError)
    assert message in str(done.exception)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"patches": np.array([["a"]])}, "The patches of .* must be numbers"),
        ({"filters": np.zeros(3)}, "must hold patches, and perhaps names and statistics, but holds filters"),
        ({"patches": np.zeros((2, 3, 3)), "statistics": np.array([0.1, np.nan])}, "must be finite numbers"),
        ({"patches": np.zeros((2, 3, 3)), "statistics": np.zeros(3)}, "must be one for each of 2 patches"),
        ({"patches": np.zeros((9, 9))}, "Patches must be an array"),
    ],
)
def test_files_that_hold_no_patches_are_told(tmp_path, arrays, message):
    np.savez(tmp_path / "p.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        patches_of(tmp_path / "p.npz")


def test_a_damaged_file_is_told_and_a_data_set_is_left_alone(folder):
    Path("broken.npz").write_bytes(b"PK no")
    with pytest.raises(ValueError, match=r"must be a whole \.npz file of numbers, but is not"):
        patches_of("broken.npz")
    np.save("objects.npy", np.array([{"code": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"must be a whole \.npy file of numbers, but is not"):
        patches_of("objects.npy")
    assert patches_of("small.npz") is None
    assert patches_of("cifar10") is None


def test_on_real_images_trained_or_not(data_root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [
        "lenet",
        "--patches",
        "cifar10",
        "--data-root",
        str(data_root),
        "--samples",
        "200",
        "--positive",
        "0,1,8,9",
    ]
    done = invoke(*words, "--clusters", "8", "--draws", "2", "--inputs", "32", "--out", "run")
    assert done.exit_code == 0, done.output
    result = load("run/channel_patterns")
    assert result.pixels.shape == (8, 3, 5, 5)
    assert np.ptp(result.statistics) > 0.05
