import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from biascope import weights
from biascope.comparison import compared
from biascope.family import Family
from biascope.run import Run
from biascope.scanning import Sampling, expected_cost, folder_name, saved_results, scan

MODEL = """
from torch import nn
def build():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 2))
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "tiny.py").write_text(MODEL)
    return f"{tmp_path / 'tiny.py'}:build"


def built(model: str) -> nn.Module:
    scope: dict = {}
    exec(Path(model.removesuffix(":build")).read_text(), scope)
    return scope["build"]()


def test_a_scan_of_ones_own_network_gives_results_and_a_report(model: str, tmp_path: Path) -> None:
    done = scan(model, input=(1, 8, 8), draws=40, run=Run(device="cpu", folder=tmp_path / "run"))
    assert [result.measurement for result in done.results] == ["anisotropy_directions", "average_geometry"]
    assert done.results[0].subject == "tiny"
    assert done.results[0].provenance["settings"]["outputs"] == 2
    assert done.results[0].provenance["settings"]["readout"] == "first"
    assert done.report is not None
    assert done.report.stat().st_size < 5e6
    again = saved_results(tmp_path / "run")
    np.testing.assert_array_equal(again[0].eigenvalues, done.results[0].eigenvalues)


def test_the_same_command_again_does_no_work_twice(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(device="cpu", folder=tmp_path / "run")
    first = scan(model, input=(1, 8, 8), draws=40, run=run, report=False)
    monkeypatch.setattr("biascope.sampling.GradientSampler.gradients", lambda *_: pytest.fail("computed again"))
    second = scan(model, input=(1, 8, 8), draws=40, run=run, report=False)
    np.testing.assert_allclose(second.results[0].eigenvalues, first.results[0].eigenvalues, rtol=1e-10)


def test_edited_code_is_measured_anew(model: str, tmp_path: Path) -> None:
    run = Run(device="cpu", folder=tmp_path / "run")
    scan(model, input=(1, 8, 8), draws=8, run=run, report=False)
    path = Path(model.removesuffix(":build"))
    path.write_text(MODEL.replace("nn.ReLU()", "nn.Tanh()"))
    scan(model, input=(1, 8, 8), draws=8, run=run, report=False)
    assert len(list((tmp_path / "run" / "trials").iterdir())) == 4


def test_trained_weights_and_checkpoints_are_scanned_as_points(model: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for epoch in (1, 2, 10):
        torch.manual_seed(epoch)
        weights.save(built(model).state_dict(), folder / f"epoch-{epoch}.safetensors")
    one = scan(
        model, input=(1, 8, 8), draws=20, weights=folder / "epoch-2.safetensors", run=Run(device="cpu"), report=False
    )
    assert [result.measurement for result in one.results] == ["average_geometry"]
    assert one.results[0].provenance["family"]["law"] == "point"
    many = scan(model, input=(1, 8, 8), draws=20, checkpoints=folder, run=Run(device="cpu", folder=tmp_path / "run"))
    assert [result.subject for result in many.results] == ["tiny at epoch-1", "tiny at epoch-2", "tiny at epoch-10"]
    assert [result.subject for result in saved_results(tmp_path / "run")] == [result.subject for result in many.results]
    np.testing.assert_allclose(many.results[1].matrix, one.results[0].matrix, rtol=1e-4, atol=1e-8)
    with pytest.raises(ValueError, match="Only one of weights and checkpoints"):
        scan(model, input=(1, 8, 8), weights=folder / "epoch-2.safetensors", checkpoints=folder)


def test_comparison_puts_spectra_side_by_side_and_refuses_to_mix_estimators(model: str) -> None:
    exact, difference = (
        scan(model, input=(1, 8, 8), draws=20, estimator=estimator, run=Run(device="cpu"), report=False).results
        for estimator in ("exact", "difference")
    )
    other = dataclasses.replace(exact[0], provenance={**exact[0].provenance, "family": {"name": "other"}})
    (table,) = compared([exact[0], other], leading=5)
    assert table.overlap[0, 1] == table.overlap[1, 0] == pytest.approx(1.0)
    halves = dict(zip(exact[0].similarity_sizes.tolist(), exact[0].similarity, strict=True))
    assert table.overlap[0, 0] == pytest.approx(halves[5])
    assert table.chance == pytest.approx(5 / 64)
    assert "other" in repr(table)
    assert table.as_dict()["subjects"] == ["tiny", "other"]
    with pytest.raises(ValueError, match="must share one estimator"):
        compared([exact[0], difference[0]])


def test_expected_cost_names_each_measurement(model: str) -> None:
    family = Family.initialised(lambda: built(model), name="tiny")
    costs = expected_cost(family, (1, 8, 8), Sampling(draws=1000), Run(device="cpu"))
    assert [cost.measurement for cost in costs] == ["anisotropy_directions", "average_geometry"]
    assert all(0 < cost.seconds < 100 and 0 < cost.memory < 2**30 for cost in costs)


def test_folder_names_are_readable_and_safe() -> None:
    assert folder_name("lenet", {"pooling": "average"}, None) == "lenet-pooling=average"
    assert folder_name("a/b/model.py:build", {}, Path("x/epoch-3.pt")) == "model-epoch-3"
    assert folder_name("a/model.py:wide", {}, None) == "model-wide"
    assert folder_name("package.module:build", {}, None) == "package.module"
    assert "/" not in folder_name("../../x:y", {}, None)


def test_a_run_folder_without_results_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must hold saved results"):
        saved_results(tmp_path)
    with pytest.raises(ValueError, match="must exist"):
        saved_results(tmp_path / "none")


def test_a_builder_and_a_written_shape_are_taken_as_they_are(model: str) -> None:
    done = scan(lambda: built(model), input="1x8x8", draws=8, run=Run(device="cpu"), report=False)
    assert "too few times to tell" in done.results[0].sentence()
    with pytest.raises(ValueError, match="one network"):
        scan(built(model), input="1x8x8")
    with pytest.raises(ValueError, match="for a builder"):
        Family.point(lambda: built(model))
