"""`biascope measure` on what each measurement asks for."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from biascope.cli import app
from biascope.cli.measure import basis_of
from biascope.families.family import Family
from biascope.measures.anisotropy_directions import anisotropy_directions
from biascope.measures.directional_bias import RECIPE, Problem
from biascope.results.registry import find, settings_from
from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.tasks.probe import Probe

pytestmark = pytest.mark.usefixtures("unrendered_pictures")

SHAPE = (1, 6, 6)


def test_bases_by_name() -> None:
    assert len(basis_of("fourier", (1, 32, 32), 4, 0)) == 34
    assert {label[-3] for label in basis_of("fourier-im", SHAPE, 1, 0).labels} == {"Im"}
    assert basis_of("pixels", SHAPE, 7, 0).places == (0, 7, 14, 21, 28, 35)
    assert not torch.equal(basis_of("random", SHAPE, 1, 0).vectors, basis_of("random", SHAPE, 1, 1).vectors)


def test_a_run_folder_gives_its_directions_in_order(tmp_path: Path) -> None:
    family = Family.initialised(lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 1)), name="linear")
    result = anisotropy_directions(family, Probe.gaussian(SHAPE), estimator="exact", draws=50, run=Run(device="cpu"))
    result.save(tmp_path / "run" / "anisotropy_directions")
    basis = basis_of(str(tmp_path / "run"), SHAPE, 5, 0)
    assert basis.places == (0, 5, 10, 15, 20, 25, 30, 35)
    assert torch.allclose(basis.vectors, torch.as_tensor(result.directions)[::5].double(), atol=1e-6)
    assert basis.values is not None
    assert torch.equal(basis.values.argsort(descending=True), torch.arange(8))
    with pytest.raises(ValueError, match="64 numbers each"):
        basis_of(str(tmp_path / "run"), (1, 8, 8), 1, 0)


@pytest.mark.parametrize(("text", "shape", "stride"), [("nope", SHAPE, 1), ("fourier", (36,), 1), ("pixels", SHAPE, 0)])
def test_what_is_no_basis_is_told(text: str, shape: tuple[int, ...], stride: int) -> None:
    with pytest.raises(ValueError, match="--"):
        basis_of(text, shape, stride, 0)


def test_several_values_of_a_setting_are_separated_by_commas() -> None:
    own = settings_from(
        find("directional_bias"), ["--noise", "0,1.5", "--samples=100", "--clip", "none", "--seed", "2"]
    )
    assert own == {"problem": Problem((0.0, 1.5), (100,)), "recipe": dataclasses.replace(RECIPE, clip=None), "seed": 2}


def test_directional_bias_from_the_command_line(tmp_path: Path) -> None:
    words = [
        "measure",
        "directional_bias",
        "logistic_regression",
        "--every",
        "16",
        "--noise",
        "0.1",
        "--samples",
        "256",
    ]
    words += ["--test", "256", "--epochs", "5", "--device", "cpu", "--out", str(tmp_path), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["results"][0]
    assert found["measurement"] == "directional_bias"
    first = found["numbers"][0]
    assert (first["key"], first["case"], first["unit"]) == ("mean_test_accuracy", "noise 0.1, 256 samples", "share")
    assert first["value"] > 0.95
    assert found["provenance"]["basis"]["directions"] == 4
    page = (tmp_path / "report.html").read_text()
    assert 'class="plane' in page
    assert "Directional bias" in page
    assert len(bases.fourier_half((1, 32, 32), stride=16)) == 4


def test_a_theory_takes_no_network(tmp_path: Path) -> None:
    few = ["--size", "16", "--samples", "50", "--iterations", "5", "--repeats", "2", "--curves", "2", "--train", "20"]
    done = CliRunner().invoke(app, ["measure", "pooling_theory", "--out", str(tmp_path), *few])
    assert done.exit_code == 0, done.output
    assert "pooling" in done.stdout
    refused = CliRunner().invoke(app, ["measure", "pooling_theory", "lenet"])
    assert isinstance(refused.exception, ValueError)
    assert "takes no network" in str(refused.exception)
