"""`biascope measure`: which measurements it runs, and which of its options are settings of a measurement."""

import inspect
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from biascope.cli import app
from biascope.results.registry import find, names

pytestmark = pytest.mark.usefixtures("unrendered_pictures")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set in the working folder."""
    monkeypatch.chdir(tmp_path)
    images = np.random.default_rng(0).integers(0, 256, (40, 1, 6, 6)).astype(np.uint8)
    labels = np.arange(40) % 2
    np.savez("small.npz", x_train=images[:30], y_train=labels[:30], x_test=images[30:], y_test=labels[30:])
    return tmp_path


@pytest.mark.parametrize("name", [name for name in names() if find(name).command])
def test_what_has_a_command_of_its_own_is_sent_there(name: str) -> None:
    for words in ([name], [name, "lenet", "--draws", "8"]):
        refused = CliRunner().invoke(app, ["measure", *words])
        assert isinstance(refused.exception, ValueError)
        assert str(refused.exception) == f"biascope measure cannot run {name}. Use {find(name).command}."


def test_what_measure_cannot_give_has_a_command_of_its_own() -> None:
    given = {"family", "data", "signals", "signal", "probe", "basis"}
    for name in names():
        parameters = inspect.signature(find(name).function).parameters.values()
        data = {each.name for each in parameters if each.kind is not each.KEYWORD_ONLY and each.default is each.empty}
        assert data <= given or find(name).command, name


def test_options_without_a_use_of_their_own_are_settings_of_the_measurement(folder: Path) -> None:
    """sample_score draws its own inputs, so --inputs and --scale are its; --samples is how many of the data set are taken."""
    words = ["sample_score", "logistic_regression", "--data", "small.npz", "--samples", "20,4", "--draws", "8"]
    done = CliRunner().invoke(app, ["measure", *words, "--inputs", "3", "--scale", "0.5", "--seed", "2", "--json"])
    assert done.exit_code == 0, f"{done.output}{done.exception}"
    provenance = json.loads(done.stdout)["results"][0]["provenance"]
    assert {key: provenance["settings"][key] for key in ("inputs", "scale", "seed")} == {
        "inputs": 3,
        "scale": 0.5,
        "seed": 2,
    }
    assert provenance["data"]["samples"] == {"train": 20, "test": 4}
    refused = CliRunner().invoke(app, ["measure", "directional_bias", "logistic_regression", "--inputs", "3"])
    assert "directional_bias has no setting '--inputs'" in str(refused.exception)
