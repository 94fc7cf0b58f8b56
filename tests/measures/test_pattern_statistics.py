"""Pattern statistics: what is measured against plain loops, resuming, and trainings that go wrong."""

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from biascope.cli import app
from biascope.measures import pattern_statistics as measure
from biascope.measures.pattern_statistics import drawn_samples, pattern_statistics
from biascope.measures.pattern_statistics.lookup import initial_tables, lookup_outputs, trained_tables
from biascope.measures.pattern_statistics.result import PatternStatistics
from biascope.results.registry import load
from biascope.results.report import write_report
from biascope.runs.randomness import seed_of
from biascope.runs.run import Run
from biascope.tasks.patterns import PatternDistribution

matplotlib.use("Agg")
pytestmark = pytest.mark.usefixtures("one_thread")

CPU64 = Run(device="cpu", precision="float64", progress=False)
SMALL: dict[str, Any] = {
    "per_input": 3,
    "patterns": 6,
    "samples": 12,
    "k": 8,
    "rate": 0.05,
    "batch": 4,
    "test": 30,
    "run": CPU64,
}


def measured(**changes: Any) -> PatternStatistics:
    return pattern_statistics(**{**SMALL, "runs": 2, **changes})


def formula_10(found: PatternStatistics, run: int, slope: float) -> float:
    """Equation (10) with plain numbers, patterns counted from 0."""
    s, best = found.statistics[run], 0.0
    for own, ratio in ((0, found.positive[run]), (1, found.negative[run])):
        for i in (own, *range(2, len(s))):
            best = max(best, ratio[i] - slope * max(-s[i] / s[own], 0))
    return math.sqrt(found.samples) * best


def test_the_constant_is_formula_10_at_any_slope() -> None:
    found = measured(runs=4, samples=7)
    for slope in (0.5, 2.0, 5.0):
        by_hand = [formula_10(found, run, slope) for run in range(4)]
        np.testing.assert_allclose(found.constants(slope), by_hand, rtol=1e-12)
    assert found.constants().tolist() == found.constants(2.0).tolist()
    assert found.constants(0.5).max() > found.constants(5.0).max()  # and the test can tell
    assert measured(slope=0.5, samples=7).constants().tolist() == found.constants(0.5)[:2].tolist()


def test_what_is_reported_is_what_a_plain_loop_finds() -> None:
    found, law = measured(seed=5), PatternDistribution("uniform", 3, 6)
    given, fresh = drawn_samples(law, range(2), samples=12, test=30, seed=5)
    start = initial_tables(2, 6, 8, seed=seed_of(5, "weights"), run=CPU64)
    done = trained_tables(start, given, rate=0.05, batch=4, seed=seed_of(5, "order"), run=CPU64)
    for run, table in enumerate(done.tables):
        for i in range(6):
            present = (given.places[run] == i).any(1)
            assert found.statistics[run, i] == pytest.approx(float((present * given.labels[run]).sum()) / 12)
        masses, counts = np.zeros((2, 2, 6)), np.zeros((2, 2, 6))
        for channel in range(16):
            for side in (0, 1):
                places = [side, 2, 3, 4, 5]
                best = max(places, key=lambda i: float(table[i, channel]))
                if table[best, channel] > 0:
                    masses[side, channel // 8, best] += float(table[best, channel])
                    counts[side, channel // 8, best] += 1
        np.testing.assert_allclose(found.masses[run], masses.reshape(4, 6), rtol=1e-12)
        assert found.detectors[run].tolist() == counts.reshape(4, 6).tolist()
        spurious = slice(2, None)
        np.testing.assert_allclose(found.positive[run, spurious], masses[0, 1, spurious] / masses[0, 0, 0])
        np.testing.assert_allclose(found.negative[run, spurious], masses[1, 0, spurious] / masses[1, 1, 1])
        assert math.isnan(found.positive[run, 1])
        assert math.isnan(found.negative[run, 0])
        np.testing.assert_allclose(
            found.margins[run], [masses[0, 0, 0] - masses[0, 1].sum(), masses[1, 1, 1] - masses[1, 0].sum()]
        )
    for samples, errors in ((given, found.train_errors), (fresh, found.test_errors)):
        wrong = lookup_outputs(done.tables, samples.places) * samples.labels <= 0
        assert errors.tolist() == wrong.double().mean(1).tolist()
    assert found.epochs.tolist() == done.epochs.tolist()
    np.testing.assert_array_equal(found.losses, done.losses.numpy())


def test_a_run_is_the_same_however_many_there_are() -> None:
    few, many = measured(runs=2), measured(runs=5)
    for name in PatternStatistics.axes:
        np.testing.assert_array_equal(getattr(few, name), getattr(many, name)[:2])
    assert len({tuple(row) for row in many.statistics.tolist()}) > 1
    other = measured(runs=2, seed=1)
    assert not np.array_equal(few.masses, other.masses)


def test_finished_runs_are_kept_and_more_of_them_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[list[int]] = []

    def counted(*args: Any, **settings: Any) -> Any:
        trained.append(list(settings["numbers"]))
        return trained_tables(*args, **settings)

    monkeypatch.setattr(measure, "trained_tables", counted)
    run = dataclasses.replace(CPU64, folder=tmp_path)
    first = measured(runs=3, run=run)
    assert sorted(itertools.chain(*trained)) == [0, 1, 2]
    again = measured(runs=3, run=run)
    assert len(list(itertools.chain(*trained))) == 3
    more = measured(runs=5, run=run)
    assert sorted(itertools.chain(*trained)) == [0, 1, 2, 3, 4]
    for name in PatternStatistics.axes:
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
        np.testing.assert_array_equal(getattr(first, name), getattr(more, name)[:3])
        np.testing.assert_array_equal(getattr(more, name), getattr(measured(runs=5), name))
    trained.clear()
    measured(runs=3, run=run, slope=1.0)  # another reading of the same networks
    assert not trained
    measured(runs=3, run=run, samples=13)
    assert sorted(itertools.chain(*trained)) == [0, 1, 2]


def test_a_killed_sweep_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    run = dataclasses.replace(CPU64, folder=tmp_path)
    whole = measured(runs=5, run=run)
    files = sorted(tmp_path.rglob("group-*.safetensors"))
    assert len(files) > 1
    files[0].unlink()
    again = measured(runs=5, run=run)
    for name in PatternStatistics.axes:
        np.testing.assert_array_equal(getattr(whole, name), getattr(again, name))


def assert_it_shows_itself(found: PatternStatistics, folder: Path, pictures: int) -> str:
    """It is finite, drawn, saved and reported; returns the sentence."""
    for number in found.check().headline().values():
        assert math.isfinite(number.value)
    for dark in (False, True):
        assert len(found.plots(dark)) == pictures
    again = load(found.save(folder / "pattern_statistics"))
    assert isinstance(again, PatternStatistics)
    np.testing.assert_array_equal(again.positive, found.positive)
    assert again.sentence() == found.sentence()
    assert "Pattern statistics" in write_report([again], folder / "report.html").read_text()
    return found.sentence()


def test_runs_that_do_not_converge_are_counted(tmp_path: Path) -> None:
    found = measured(samples=60, k=50, epochs=2, rate=2e-3, runs=3)
    assert not found.converged.any()
    assert found.epochs.tolist() == [2, 2, 2]
    sentence = assert_it_shows_itself(found, tmp_path, 3)
    assert "3 did not converge" in sentence
    assert found.headline()["runs_converged"].value == 0


def test_a_label_without_a_detector_makes_its_ratios_infinite(tmp_path: Path) -> None:
    found = measured(k=1, runs=8, epochs=100)
    lost = np.isinf(found.constants())
    assert 0 < lost.sum() < 8
    assert (np.isinf(found.positive[lost, 2:]).all(1) | np.isinf(found.negative[lost, 2:]).all(1)).all()
    assert not found.certified[lost].any()
    sentence = assert_it_shows_itself(found, tmp_path, 3)
    assert f"in {lost.sum()}, a label has no detector of its own pattern" in sentence
    assert "theorem 6.1" not in sentence
    assert "psi_constant" not in found.headline()
    share = found.headline()["runs_below_one"]
    assert share.value == pytest.approx((found.constants() < 1).mean())
    assert share.unit == "share"


def test_nothing_but_infinite_ratios_is_drawn_too(tmp_path: Path) -> None:
    found = measured(k=20)
    nothing = np.where(np.isnan(found.positive), np.nan, np.inf), np.where(np.isnan(found.negative), np.nan, np.inf)
    blind = dataclasses.replace(found, positive=nothing[0], negative=nothing[1], margins=-np.ones_like(found.margins))
    sentence = assert_it_shows_itself(blind, tmp_path, 1)
    assert "govern 0 of 2 trainings" in sentence
    assert "0 of 2 trainings are certified" in sentence


def test_training_sets_of_one_label_and_networks_that_are_no_numbers(tmp_path: Path) -> None:
    single = measured(samples=1, k=20)
    assert (np.abs(single.statistics).max(1) == 1).all()
    assert_it_shows_itself(single, tmp_path / "single", 3)
    found = measured(k=20)
    broken = dataclasses.replace(
        found, positive=np.full_like(found.positive, np.nan), negative=np.full_like(found.negative, np.nan)
    )
    assert_it_shows_itself(broken, tmp_path / "broken", 0)


def test_biased_patterns_have_no_promise_of_theorem_6(tmp_path: Path) -> None:
    found = measured(law="biased", bias=0.9, samples=60, k=50, patterns=8)
    assert (found.statistics[:, 2] > 0.2).all()
    assert (found.statistics[:, 3] < -0.2).all()
    sentence = assert_it_shows_itself(found, tmp_path, 3)
    assert "(D_p)" in sentence
    assert "theorem 6.1" not in sentence
    fair = measured(law="paired", samples=60, k=50)
    assert "Theorem 6.1 guarantees zero error from" in fair.sentence()


def test_the_published_rate_and_batch_are_taken_and_recorded() -> None:
    assert [measure.published_rate(k) for k in (50, 1000, 10_000, 100_000)] == [2e-5, 1e-6, 1e-7, 1e-7]
    assert [measure.published_batch(k) for k in (1000, 2500, 10_000)] == [100, 100, 20]
    settings = measured(rate=None, batch=None, epochs=1, runs=1).provenance["settings"]
    assert (settings["rate"], settings["batch"]) == (1e-3 / 8, 100)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"runs": 0}, "samples, runs, k and test must be at least 1, got 12, 0, 8 and 30"),
        ({"samples": 0}, "samples, runs, k and test must be at least 1"),
        ({"slope": 0.0}, "slope and scale must be above 0, got 0"),
        ({"scale": -1.0}, "slope and scale must be above 0"),
        ({"law": "gauss"}, "kind must be one of 'uniform'"),
        ({"law": "paired", "patterns": 7}, "twice as many"),
        ({"per_input": 6}, "An input must have at least 1 of 6 patterns"),
        ({"bias": 1.5}, "bias must be a probability"),
        ({"rate": -1.0}, "rate must be above 0"),
        ({"epochs": 0}, "rate must be above 0, batch and epochs at least 1"),
    ],
)
def test_wrong_settings_are_told_in_one_sentence(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        measured(**change)


def test_from_the_command_line(tmp_path: Path) -> None:
    words = [
        "measure",
        "pattern_statistics",
        "--k",
        "20",
        "--per-input",
        "3",
        "--patterns",
        "6",
        "--samples",
        "40",
        "--runs",
        "3",
    ]
    words += ["--rate", "0.01", "--law", "paired", "--device", "cpu", "--out", str(tmp_path), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["results"][0]
    assert found["measurement"] == "pattern_statistics"
    assert found["provenance"]["settings"]["rate"] == 0.01
    numbers = {number["key"]: number for number in found["numbers"]}
    assert numbers["runs_converged"]["value"] == 1
    kept = load(tmp_path / "pattern_statistics")
    assert isinstance(kept, PatternStatistics)
    assert kept.statistics.shape == (3, 6)
    assert "D_vc" in (tmp_path / "report.html").read_text()
    wrong = CliRunner().invoke(app, ["measure", "pattern_statistics", "lenet", "--out", str(tmp_path)])
    assert wrong.exit_code != 0
    assert "takes no network" in str(wrong.output) + str(wrong.exception)


def test_it_is_the_same_in_a_stack() -> None:
    """On a GPU runs go in lock-step: the same batches, so the same networks up to rounding."""
    found, law = measured(), PatternDistribution("uniform", 3, 6)
    given, _ = drawn_samples(law, range(2), samples=12, test=30, seed=0)
    start = initial_tables(2, 6, 8, seed=seed_of(0, "weights"), run=CPU64)
    how: dict[str, Any] = {"rate": 0.05, "batch": 4, "seed": seed_of(0, "order"), "run": CPU64}
    done = trained_tables(start, given, way="stack", **how)
    assert done.epochs.tolist() == found.epochs.tolist()
    kept = torch.relu(done.tables[:, [0]]).sum()
    assert float(kept) > 0
    np.testing.assert_allclose(done.losses, found.losses, atol=1e-9)
