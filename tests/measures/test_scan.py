import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from networks_under_test import TINY_FILE
from torch import nn
from typer.testing import CliRunner

from biascope.cli import app
from biascope.derivatives.draw_times import pass_of
from biascope.derivatives.one_pass import OnePass
from biascope.derivatives.sampling import _BUDGET, DRAWS, Amount, Sampling
from biascope.families import weights
from biascope.families.family import Family
from biascope.families.source import family_of
from biascope.measures.covariance.compare import compared, noise_floor
from biascope.measures.scan import scan
from biascope.measures.scan.compared import results_of
from biascope.measures.scan.cost import expected_times
from biascope.results.registry import saved_results
from biascope.results.result import Result
from biascope.runs.run import Run

pytestmark = pytest.mark.usefixtures("unrendered_pictures")

CPU = Run(device="cpu", progress=False)


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "tiny.py").write_text(TINY_FILE)
    return f"{tmp_path / 'tiny.py'}:build"


ROWS = ["complexity", "sensitivity", "equivariance", "guessing"]  # of the card of an image network


def built(model: str) -> nn.Module:
    scope: dict = {}
    exec(Path(model.removesuffix(":build")).read_text(), scope)
    return scope["build"]()


def test_a_scan_of_ones_own_network_gives_results_and_a_report(model: str, tmp_path: Path) -> None:
    done = scan(model, input=(1, 8, 8), draws=40, run=Run(device="cpu", folder=tmp_path / "run"))
    assert [result.measurement for result in done.results] == ["mean_gradient", "average_geometry", *ROWS]
    details = [result.measurement for result in done.results if result.why_detail(done.results)]
    assert details == ["average_geometry"]  # one headline
    assert done.results[0].subject == "tiny"
    assert done.results[0].provenance["settings"]["outputs"] == 2
    assert done.results[0].provenance["settings"]["readout"] == "first"
    assert done.report is not None
    assert done.report.stat().st_size < 5e6
    again = {result.measurement: result for result in saved_results(tmp_path / "run")}
    assert len(again) == 6
    for result in done.results:
        assert repr(again[result.measurement].headline()) == repr(result.headline())


def test_the_same_command_again_does_no_work_twice(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(device="cpu", folder=tmp_path / "run")
    first = scan(model, input=(1, 8, 8), draws=40, run=run, report=False)
    monkeypatch.setattr(
        "biascope.derivatives.covariance.GradientSampler.gradients", lambda *_: pytest.fail("computed again")
    )
    second = scan(model, input=(1, 8, 8), draws=40, run=run, report=False)
    np.testing.assert_allclose(second.results[0].eigenvalues, first.results[0].eigenvalues, rtol=1e-10)


def test_edited_code_is_measured_anew(model: str, tmp_path: Path) -> None:
    run = Run(device="cpu", folder=tmp_path / "run")
    scan(model, input=(1, 8, 8), draws=8, run=run, report=False)
    path = Path(model.removesuffix(":build"))
    path.write_text(TINY_FILE.replace("nn.ReLU()", "nn.Tanh()"))
    scan(model, input=(1, 8, 8), draws=8, run=run, report=False)
    assert len(list((tmp_path / "run" / "trials").iterdir())) == 2 * 6


@pytest.mark.usefixtures("without_pictures")
def test_trained_weights_and_checkpoints_are_scanned_as_points(model: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for epoch in (1, 2, 10):
        torch.manual_seed(epoch)
        weights.save(built(model).state_dict(), folder / f"epoch-{epoch}.safetensors")
    one = scan(
        model, input=(1, 8, 8), draws=20, weights=folder / "epoch-2.safetensors", run=Run(device="cpu"), report=False
    )
    assert [result.measurement for result in one.results] == ["average_geometry", *ROWS]
    assert one.results[0].provenance["family"]["law"] == "point"
    many = scan(model, input=(1, 8, 8), draws=20, checkpoints=folder, run=Run(device="cpu", folder=tmp_path / "run"))
    geometries = [result for result in many.results if result.measurement == "average_geometry"]
    assert [result.subject for result in geometries] == ["tiny at epoch-1", "tiny at epoch-2", "tiny at epoch-10"]
    subjects = [result.subject for result in saved_results(tmp_path / "run")]
    assert list(dict.fromkeys(subjects)) == [result.subject for result in geometries]
    assert len(subjects) == len(many.results) == 3 * (1 + len(ROWS))
    np.testing.assert_allclose(geometries[1].matrix, one.results[0].matrix, rtol=1e-4, atol=1e-8)
    with pytest.raises(ValueError, match="Only one of weights and checkpoints"):
        scan(model, input=(1, 8, 8), weights=folder / "epoch-2.safetensors", checkpoints=folder)


def test_comparison_puts_spectra_side_by_side_and_refuses_to_mix_estimators(model: str) -> None:
    exact, difference = (
        scan(model, input=(1, 8, 8), draws=20, estimator=estimator, run=Run(device="cpu"), report=False).results
        for estimator in ("exact", "difference")
    )
    assert [result.measurement for result in exact] == [
        "mean_gradient",
        "anisotropy_directions",
        "average_geometry",
        *ROWS,
    ]
    np.testing.assert_array_equal(exact[0].eigenvalues, difference[0].eigenvalues)  # the headline has one estimator
    (table,) = compared([exact[0], dataclasses.replace(difference[0])])
    assert table.measurement == "mean_gradient"
    exact, difference = exact[1:], difference[1:]
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


ISOTROPIC = """
from torch import nn

def relu():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

def tanh():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

class Filtered(nn.Sequential):
    def forward(self, x):
        x = x.flatten(1)
        return super().forward(x * (1 + 9 * (torch.arange(64) < 10)))

def filtered_relu():
    return Filtered(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

def filtered_tanh():
    return Filtered(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

import torch
"""


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without pictures, which take seconds."""

    def written(results: Sequence[Result], path: Path, title: str | None = None) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        mark = '<meta name="generator" content="biascope 0">'
        path.write_text("\n".join([mark, *(result.subject for result in results)]))
        return path

    monkeypatch.setattr("biascope.results.report.write_report", written)


def tables_of(words: Sequence[str]) -> list[dict[str, Any]]:
    how = ["--input", "1x8x8", "--estimator", "exact", "--draws", "400", "--device", "cpu", "--json"]
    done = CliRunner().invoke(app, ["compare", *words, *how])
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)["comparisons"]
    return found


@pytest.mark.usefixtures("undrawn", "whole_blocks")
def test_overlaps_of_networks_without_directions_are_not_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first layer is isotropic, and so is the gradient: what two such networks have in common is chance."""
    monkeypatch.chdir(tmp_path)
    Path("flat.py").write_text(ISOTROPIC)
    for table in tables_of(["flat.py:relu", "flat.py:tanh"]):
        assert table["noise_floor"] == pytest.approx(0.218, abs=0.001)
        assert table["overlap"][0][1] == pytest.approx(10 / 64, abs=0.05)  # 0.41 and 0.65 where both had one seed
        assert table["resolved"] == [[False, False], [False, False]]
        assert "The overlap of relu and tanh is not resolved" in table["warnings"][0]
    for name in ("relu", "tanh"):
        words = ["scan", f"flat.py:{name}", "--input", "1x8x8", "--estimator", "exact", "--device", "cpu"]
        assert CliRunner().invoke(app, words).exit_code == 0
    for table in tables_of(["biascope-runs/flat-relu", "biascope-runs/flat-tanh"]):
        assert table["overlap"][0][1] > 0.35  # common noise of one seed, far above the noise floor
        assert not np.any(table["resolved"])
    done = CliRunner().invoke(app, ["compare", "biascope-runs/flat-relu", "biascope-runs/flat-tanh"])
    assert "in brackets: not resolved" in done.output
    assert re.search(r"\(0\.\d\d\) \(0\.\d\d\)", done.output)


@pytest.mark.usefixtures("undrawn")
def test_overlaps_of_networks_with_common_directions_are_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flat.py").write_text(ISOTROPIC)
    for table in tables_of(["flat.py:filtered_relu", "flat.py:filtered_tanh"]):
        assert table["overlap"][0][1] > 0.9  # ten inputs are amplified in both
        assert np.all(table["resolved"])
        assert table["warnings"] == []
    tables = tables_of(["flat.py:filtered_relu", "flat.py:tanh"])
    assert not any(table["resolved"][0][1] or table["resolved"][1][0] for table in tables)
    assert all(table["resolved"][0][0] for table in tables)


@pytest.mark.parametrize(("leading", "size"), [(1, 64), (10, 64), (5, 16), (15, 16), (6, 8)])
def test_the_noise_floor_is_that_of_random_subspaces(leading: int, size: int) -> None:
    random = np.random.default_rng(0)
    first, second = np.linalg.qr(random.normal(size=(2, 20_000, size, leading)))[0]
    overlaps = np.square(np.einsum("nij,nik->njk", first, second)).sum((1, 2)) / leading
    assert 0.0003 < np.mean(overlaps > noise_floor(leading, size)) < 0.002  # 0.001 of 20,000 pairs, with four errors


def test_expected_times_name_each_measurement(model: str) -> None:
    family = Family.initialised(lambda: built(model), name="tiny")
    costs = list(expected_times(family, (1, 8, 8), Sampling(draws=1000), Run(device="cpu")))
    assert [cost.name for cost in costs] == ["mean_gradient", "average_geometry", *ROWS]
    assert all(0 < cost.seconds < 100 and 0 < cost.memory < 2**32 for cost in costs)
    assert [cost.pieces for cost in costs] == [1000, 1000, 40, 40, 40, 40]
    for estimator in ("difference", "exact", "mixed"):
        costs = list(expected_times(family, (1, 8, 8), Sampling(estimator, draws=100), Run(device="cpu")))
        names = [cost.name for cost in costs]
        assert names == ["mean_gradient", "anisotropy_directions", "average_geometry", *ROWS]
        assert [cost.estimator for cost in costs][:3] == ["mean over inputs", estimator, "exact"]


def test_the_expected_time_counts_the_spectra(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    family, asked = Family.initialised(lambda: built(model), name="tiny"), []

    def seconds(size: int, columns: int, device: torch.device) -> float:
        asked.append((size, columns))
        return 1000.0

    monkeypatch.setattr("biascope.measures.scan.cost.expected_seconds", seconds)
    costs = expected_times(family, (1, 8, 8), Sampling(draws=21), Run(device="cpu"))
    assert all((3000 < cost.seconds < 3100) == (cost.name not in ROWS) for cost in costs)
    assert asked == [
        (64, 42),
        (64, 21),
        (64, 21),
        (64, 84),
        (64, 42),
        (64, 42),
    ]  # all draws and both halves: means over 2 halves of the inputs, and 4 inputs


def test_fewer_networks_are_drawn_where_the_network_is_dear(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    family = Family.initialised(lambda: built(model), name="tiny")
    one, weights = pass_of(family, (1, 8, 8), CPU), family.num_parameters
    assert one is not None
    assert Sampling().amount(one, weights, None, CPU) == Amount(DRAWS)
    assert Amount(DRAWS).told(one, None) == ""
    monkeypatch.setitem(_BUDGET, "cpu", 33 * (4 * 2 * one.work + weights * 300))  # 4 inputs of 33 networks
    amount = Sampling().amount(one, weights, None, CPU)
    assert amount == Amount(32, 16)
    assert Sampling(draws=17).amount(one, weights, None, CPU) == Amount(17)  # as asked for, with all inputs
    assert pass_of(family, (3, 9, 9), CPU) is None  # it does not take such inputs, which the sampler tells
    assert Sampling().amount(None, 0, None, CPU) == Amount(DRAWS)
    costs = list(expected_times(family, (1, 8, 8), Sampling(), CPU))
    gradients = [cost for cost in costs if cost.name not in ROWS]
    assert {(cost.pieces, cost.told) for cost in gradients} == {(32, amount.told(one, None))}
    assert costs[1].method == "those of the mean gradient"  # at the same inputs, of the same networks
    with pytest.warns(
        UserWarning, match=r"^This scan draws 32 of the usual 400 networks, each at 4 of the usual 64 inputs"
    ):
        done = scan(lambda: built(model), input=(1, 8, 8), run=CPU, report=False)
    assert {result.draws for result in done.results if result.measurement not in ROWS} == {32}
    assert [result.inputs for result in done.results if result.measurement not in ROWS] == [4, 4]
    assert all(
        "--draws 400 asks for all" in result.warnings[-1] for result in done.results if result.measurement not in ROWS
    )  # so the report says it too


def test_no_network_is_so_dear_that_nothing_is_drawn() -> None:
    amount = Sampling().amount(OnePass(1e15, 0), 10**9, None, CPU)
    assert (amount.draws, amount.mean_inputs, amount.geometry_inputs) == (16, 2, 2)
    assert Sampling().amount(OnePass(1e15, 0), 10**9, 1, CPU).point_inputs == 1
    assert "sets of inputs, each of 1 of the usual 16 inputs" in amount.told(OnePass(1e15, 0), 1)


TWO_NETWORKS = """
from torch import nn

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
"""


@pytest.fixture
def namesakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files of one name in two folders, with different networks."""
    monkeypatch.chdir(tmp_path)
    for folder, width in (("a", 2), ("b", 30)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.py").write_text(TWO_NETWORKS.replace("WIDTH", str(width)))
    return tmp_path


def parameters_of(result: Result) -> int:
    return int(result.provenance["family"]["parameters"])


@pytest.mark.usefixtures("namesakes", "undrawn")
def test_compared_namesakes_keep_names_and_folders_of_their_own() -> None:
    words = ["compare", "a/net.py:build", "b/net.py:build", "--input", "1x4x4", "--draws", "16", "--device", "cpu"]
    done = CliRunner().invoke(app, [*words, "--estimator", "exact", "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    names = ["net (a/net.py:build)", "net (b/net.py:build)"]
    measured = ["mean_gradient", "anisotropy_directions", "average_geometry"]
    assert [table["measurement"] for table in document["comparisons"]] == measured
    assert [table["subjects"] for table in document["comparisons"]] == [names] * 3
    saved = {(each.subject, parameters_of(each)) for each in saved_results(Path(document["report"]).parent)}
    assert saved == {(names[0], 16 * 2 + 2 + 2 + 1), (names[1], 16 * 30 + 30 + 30 + 1)}


@pytest.mark.usefixtures("namesakes", "undrawn")
def test_a_scan_of_a_namesake_leaves_the_first_results_alone() -> None:
    for subject in ("a/net.py:build", "b/net.py:build"):
        words = ["scan", subject, "--input", "1x4x4", "--draws", "16", "--device", "cpu"]
        assert CliRunner().invoke(app, words).exit_code == 0
    counts = [{parameters_of(each) for each in saved_results(Path(f"biascope-runs/{x}__net"))} for x in "ab"]
    assert counts == [{37}, {541}]
    both = results_of(
        ["biascope-runs/a__net", "biascope-runs/b__net"],
        Path("unused"),
        input=None,
        sampling=Sampling(),
        batchnorm="eval",
        run=CPU,
    )
    assert {each.subject for each in both} == {"net (a__net)", "net (b__net)"}


def test_the_same_subject_twice_is_refused() -> None:
    done = CliRunner().invoke(app, ["compare", "lenet", "lenet"])
    assert str(done.exception).startswith("compare needs different subjects, got lenet, lenet.")


def test_checkpoints_of_one_stem_keep_names_of_their_own(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(1024, 10), nn.ReLU(), nn.Linear(10, 10))
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\ndef build():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(1024, 10), nn.ReLU(), nn.Linear(10, 10))\n"
    )
    (tmp_path / "states").mkdir()
    for suffix in ("pt", "pth"):
        torch.save(module.state_dict(), tmp_path / "states" / f"last.{suffix}")
    run = dataclasses.replace(CPU, folder=tmp_path / "out")
    done = scan(f"{tmp_path}/net.py:build", checkpoints=tmp_path / "states", draws=4, run=run, report=False)
    assert len({each.subject for each in done.results}) == 2
    assert len(saved_results(tmp_path / "out")) == 2 * (1 + len(ROWS))


def test_namesakes_of_neighbours_are_refused(namesakes: Path) -> None:
    for folder in "ab":
        (namesakes / folder / "width_of_layers.py").write_text(f"WIDTH = {ord(folder)}\n")
        code = (namesakes / folder / "net.py").read_text().split("return")[0]
        (namesakes / folder / "net.py").write_text(
            "from width_of_layers import WIDTH\n" + code + "return nn.Linear(WIDTH, 1)\n"
        )
    assert family_of("a/net.py:build").num_parameters == ord("a") + 1
    assert family_of("a/net.py:build").num_parameters == ord("a") + 1
    with pytest.raises(
        ValueError, match=r"b/net.py must import its own width_of_layers.py, but .*a/width_of_layers.py is"
    ):
        family_of("b/net.py:build")
    del sys.modules["width_of_layers"]


def test_a_run_folder_without_results_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must hold saved results"):
        saved_results(tmp_path)
    with pytest.raises(ValueError, match="does not exist"):
        saved_results(tmp_path / "none")


def test_a_builder_and_a_written_shape_are_taken_as_they_are(model: str) -> None:
    done = scan(lambda: built(model), input="1x8x8", draws=8, run=Run(device="cpu"), report=False)
    assert "needs more draws" in done.results[0].sentence()
    alone = scan(built(model), input="1x8x8", draws=8, run=Run(device="cpu"), report=False)
    assert [result.measurement for result in alone.results] == ["average_geometry", *ROWS]
    assert alone.results[0].at_given_weights
    with pytest.raises(ValueError, match="for a builder"):
        Family.point(lambda: built(model))
