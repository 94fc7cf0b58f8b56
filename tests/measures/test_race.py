"""Races of architectures: the rule, lock-step, who drops out, resuming bit for bit, and the command."""

import csv
import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from networks_under_test import CPU, normal
from torch import Tensor, nn
from typer.testing import CliRunner

from biascope.cli import match as match_commands
from biascope.families.family import Family
from biascope.measures import race as racing
from biascope.measures.race import expected_time, race, with_held_out
from biascope.measures.race.result import Race
from biascope.measures.race.rule import best_with, chances, merits_of, spread_at
from biascope.results import registry
from biascope.runs.run import Run
from biascope.tasks.task import Arrays
from biascope.training.recipe import Recipe

pytestmark = pytest.mark.usefixtures("one_thread", "unrendered_pictures")
RECIPE = Recipe("adam", rate=1e-2, schedule="cosine", epochs=20, batch=16)


def dense(width: int, name: str, outputs: int = 2) -> Family:
    return Family.initialised(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(9, width), nn.ReLU(), nn.Linear(width, outputs)), name=name
    )


class Blind(nn.Module):
    """Sees nothing: its loss stays at that of guessing."""

    def __init__(self, answer: float = 0.0) -> None:
        super().__init__()
        self.answer = answer
        self.bias = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.bias + (self.answer - self.answer * x.flatten(1).sum(1, keepdim=True))


class First(nn.Module):
    """Sees the first number of its input alone."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x[:, :1])


def blind(name: str = "blind", answer: float = 0.0) -> Family:
    return Family.initialised(lambda: Blind(answer), name=name)


def samples(count: int = 320) -> Arrays:
    y = torch.arange(count) % 2
    return Arrays({"train": (normal(count, 9, seed=2).float() + 1.5 * y[:, None], y)}, name="two clouds")


# The rule.


def test_the_chance_of_two_candidates_is_the_normal_distribution_of_their_difference():
    for gap, spread in ((0.0, 1.0), (0.3, 0.2), (2.0, 0.5)):
        ahead = 0.5 * (1 + math.erf(gap / spread / 2))
        np.testing.assert_allclose(chances(np.array([gap, 0.0]), spread), [ahead, 1 - ahead], atol=1e-4)


def test_chances_are_those_of_simulation():
    merits, spread = np.array([0.2, 0.0, -0.1, 0.15, -1.0]), 0.25
    noisy = merits + spread * np.random.default_rng(0).standard_normal((200_000, 5))
    share = np.bincount(noisy.argmax(1), minlength=5) / len(noisy)
    np.testing.assert_allclose(chances(merits, spread), share, atol=5e-3)


def test_chances_do_not_depend_on_the_scale_of_the_loss():
    losses = np.array([0.5, 0.6, 0.55])
    plain, scaled = (chances(merits_of(factor * losses), 0.1) for factor in (1.0, 7.0))
    np.testing.assert_allclose(scaled, plain, rtol=1e-9)
    assert plain.sum() == pytest.approx(1)


def test_the_merit_falls_with_the_loss_and_is_finite_for_none():
    found = merits_of(np.array([0.0, 0.5, 1.0]))
    assert found[1:].tolist() == pytest.approx([math.log(2), 0.0])
    assert found[1] < found[0] < math.inf


def test_a_race_is_surer_the_longer_it_is():
    spreads = [spread_at(share, 1.0, 1000) for share in racing.LOOKS]
    assert all(a >= b > 0 for a, b in pairwise(spreads))
    assert spreads[0] > spreads[3]
    assert spread_at(0.5, 1.0, 1000) == spread_at(1.0, 1.0, 1000)  # no surer beyond what was looked at


def test_nobody_is_ahead_while_nobody_is_better_than_guessing():
    np.testing.assert_allclose(best_with(np.array([2.4, 2.9, 3.5]), guessing=2.3, share=0.1, held_out=1000), 1 / 3)
    early, late = (best_with(np.array([1.0, 1.1, 2.2]), 2.3, share, 1000) for share in (0.02, 0.2))
    assert late[0] > early[0] > 1 / 3
    assert late[2] < early[2]
    assert best_with(np.array([1.0, 1.1, 2.2]), 2.3, 0.2, 10)[0] < late[0]  # few samples say little


# The race.


def test_an_eighth_is_held_out_and_is_never_trained_on():
    data = Arrays({"train": (torch.arange(80.0)[:, None], torch.arange(80) % 2)}, name="numbered")
    parts = with_held_out(data, 0)
    held, kept = (set(parts.splits[split][0].flatten().tolist()) for split in ("held_out", "train"))
    assert (len(held), len(kept)) == (10, 70)
    assert held | kept == set(range(80))
    assert all(bool((x.flatten() % 2 == y).all()) for x, y in parts.splits.values())
    other = with_held_out(data, 1)
    assert set(other.splits["held_out"][0].flatten().tolist()) != held


def test_a_network_that_memorises_loses_to_one_that_does_not():
    """Labels without any sense: the wide network learns the samples by heart, and is worse than guessing on others."""
    data = Arrays({"train": (normal(320, 400, seed=4).float(), torch.arange(320) % 2)}, name="noise")

    wide = Family.initialised(lambda: nn.Sequential(nn.Linear(400, 256), nn.ReLU(), nn.Linear(256, 2)), name="wide")
    found = race([wide, Family.initialised(First, name="first")], data, recipe=RECIPE, share=0.5, run=CPU)
    assert found.names[found.order[0]] == "first"
    last = np.isfinite(found.curves).all(0).nonzero()[0][-1]
    assert found.curves[0, last] < found.curves[1, last]  # its training loss is lower all the same


def test_a_network_that_learns_beats_one_that_sees_nothing():
    found = race([blind(), dense(32, "wide")], samples(), recipe=RECIPE, share=0.5, run=CPU)
    assert found.decided
    assert found.names == ("blind", "wide")
    assert found.order == [1, 0]
    assert found.probability[1] >= 0.95
    assert found.looks[-1] < 0.5 * found.total  # sure before the share was spent
    assert found.sentence().startswith("wide is the best of 2 candidates on two clouds with probability ")
    assert found.facts() == {"decided": True, "winner": "wide", "may_be_best": ["wide"]}
    assert found.parameters.tolist() == [2, 32 * 10 + 33 * 2]
    assert found.layers.tolist() == [0, 2]
    assert found.flops[1] > 0


def test_equal_candidates_see_the_same_batches_and_stay_undecided():
    found = race([dense(8, "one"), dense(8, "two")], samples(), recipe=RECIPE, share=0.1, run=CPU)
    np.testing.assert_array_equal(found.curves[0], found.curves[1])
    np.testing.assert_allclose(found.probability, 0.5)
    assert not found.decided
    assert found.sentence().startswith(
        "The race is not decided. After 10 % of the training (36 of 360 iterations), 2 of 2 candidates may be best"
    )
    assert "one (50 %) and two (50 %)" in found.sentence()
    assert found.facts()["winner"] is None
    assert found.looks.tolist() == [25, 36]


def test_candidates_that_are_surely_not_best_drop_out_and_cost_no_more():
    families = [dense(64, "one"), dense(64, "two"), blind()]
    found = race(families, samples(), recipe=RECIPE, share=0.5, run=CPU)
    assert found.out_at[0] == found.out_at[1] == -1
    assert 0 < found.out_at[2] < found.looks[-1]
    assert found.chances[2, -1] == 0
    assert np.isnan(found.curves[2, -1])
    assert found.work < 0.5
    assert found.headline()["share_spent"].value == found.work
    assert found.tables()["candidates"][-1]["out_after_iterations"] == found.out_at[2]
    assert "iterations  |" in found.table().splitlines()[-1]


def test_a_candidate_that_diverges_drops_out_and_is_named():
    found = race(
        [blind("broken", math.inf), dense(16, "sound"), dense(16, "other")],
        samples(),
        recipe=RECIPE,
        share=0.1,
        run=CPU,
    )
    assert found.diverged.tolist() == [True, False, False]
    assert found.order[-1] == 0
    assert found.probability[0] == 0
    assert "broken diverged and dropped out." in found.sentence()
    assert "diverged" in found.table().splitlines()[-1]
    with pytest.raises(ValueError, match=r"^At least one candidate must keep a finite loss, but all diverged"):
        race([blind("a", math.inf), blind("b", math.inf)], samples(), recipe=RECIPE, run=CPU)


def test_a_candidate_with_batchnorm_comes_with_a_warning():
    normed = Family.initialised(
        lambda: nn.Sequential(nn.Linear(9, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)), name="normed"
    )
    found = race([dense(8, "plain"), normed], samples(), recipe=RECIPE, share=0.1, run=CPU)
    short, warning = found.warnings
    assert short.startswith("The rule was tested on trainings of 1,100 iterations, but this race ended after")
    assert warning.startswith("normed has BatchNorm, whose running statistics lag early in training")


def arrays(found: Race) -> dict[str, np.ndarray]:
    return {name: getattr(found, name) for name in Race.axes}


def test_a_race_that_was_stopped_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    families = [dense(6, "one"), dense(6, "two"), blind()]  # equal ones stay to the end
    whole = race(families, samples(), recipe=RECIPE, share=0.4, run=CPU)
    assert len(whole.looks) > 2
    run, real, calls = Run(folder=tmp_path, device="cpu", progress=False), racing.fit, []

    def stopping(*args, **settings):
        calls.append(settings["until"])
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(*args, **settings)

    monkeypatch.setattr(racing, "fit", stopping)
    with pytest.raises(KeyboardInterrupt):
        race(families, samples(), recipe=RECIPE, share=0.4, run=run)
    before = len(calls)
    resumed = race(families, samples(), recipe=RECIPE, share=0.4, run=run)
    assert calls[before] == calls[4]  # from the part that was lost
    for name, array in arrays(whole).items():
        np.testing.assert_array_equal(getattr(resumed, name), array, err_msg=name)
    done = len(calls)
    race(families, samples(), recipe=RECIPE, share=0.4, run=run)
    assert len(calls) == done  # nothing is trained again


def test_a_larger_share_goes_on_where_the_race_ended(tmp_path, monkeypatch):
    families, run = [dense(8, "one"), dense(8, "two")], Run(folder=tmp_path, device="cpu", progress=False)
    short = race(families, samples(), recipe=RECIPE, share=0.1, run=run)
    assert len(list(tmp_path.rglob("unfinished.safetensors"))) == 2
    longer = race(families, samples(), recipe=RECIPE, share=0.3, run=run)
    np.testing.assert_array_equal(longer.merits[:, : len(short.looks)], short.merits)
    fresh = race(families, samples(), recipe=RECIPE, share=0.3, run=CPU)
    np.testing.assert_array_equal(longer.curves, fresh.curves)
    shorter = race(families, samples(), recipe=RECIPE, share=0.08, run=run)  # behind what is kept
    assert shorter.looks[-1] == 29
    assert not race([blind(), dense(32, "wide")], samples(), recipe=RECIPE, share=0.5, run=run).out_at[1] >= 0


def test_a_race_comes_back_from_disk_with_its_pictures(tmp_path):
    found = race([dense(8, "one"), blind()], samples(), recipe=RECIPE, share=0.2, run=CPU)
    loaded = registry.load(found.save(tmp_path / "race"))
    assert isinstance(loaded, Race)
    assert loaded.sentence() == found.sentence()
    assert loaded.table() == found.table()
    for dark in (False, True):
        assert list(loaded.plots(dark)) == ["losses", "probability_of_being_best"]
    lines = loaded.plots()["losses"].axes[0].lines
    assert sum(line.get_marker() == "x" for line in lines) == int((found.out_at >= 0).sum())
    assert max(line.get_linewidth() for line in lines) > 2  # the leader
    assert found.provenance["measurement"] == "race"


def test_the_expected_time_names_every_candidate():
    expected = expected_time([dense(8, "one"), blind()], samples(), recipe=RECIPE, share=0.1, run=CPU)
    assert [stage.name for stage in expected.stages] == ["one: training", "blind: training"]
    assert [stage.pieces for stage in expected.stages] == [36, 36]
    assert expected.seconds > 0


@pytest.mark.parametrize(
    ("families", "labels", "settings", "message"),
    [
        (["one"], None, {}, r"^Candidates must be two or more with different names, got \['one'\]"),
        (["one", "one"], None, {}, r"^Candidates must be two or more with different names, got \['one', 'one'\]"),
        (
            ["one", "two"],
            torch.linspace(0, 1, 320),
            {},
            r"^A race needs samples of two or more classes, got labels that are numbers",
        ),
        (
            ["one", "two"],
            torch.zeros(320).long(),
            {},
            r"^A race needs samples of two or more classes, got labels that are one class",
        ),
        (
            ["one", "two"],
            torch.arange(320) % 3,
            {},
            r"^one must have an output for each of the 3 classes, got outputs of shape \(2,\)",
        ),
        (
            ["one", "two"],
            torch.arange(9) % 2,
            {},
            r"^A race needs at least 32 training samples to hold some out, got 9",
        ),
        (["one", "two"], None, {"share": 0.0}, r"^share must be above 0 and at most 1, got 0"),
        (["one", "two"], None, {"sure": 1.0}, r"^sure must be a probability above 0.5 and below 1, got 1"),
    ],
)
def test_what_cannot_be_raced_is_a_sentence(families, labels, settings, message):
    data = samples()
    if labels is not None:
        data = Arrays({"train": (data.splits["train"][0][: len(labels)], labels)})
    with pytest.raises(ValueError, match=message):
        race([dense(4, name) for name in families], data, recipe=RECIPE, run=CPU, **settings)


def test_a_candidate_that_does_not_take_the_samples_is_a_sentence():
    narrow = Family.initialised(lambda: nn.Linear(8, 2), name="narrow")
    with pytest.raises(ValueError, match=r"^narrow must accept samples of shape 9"):
        race([dense(4, "one"), narrow], samples(), recipe=RECIPE, run=CPU)


# The command.

app = typer.Typer()
app.command()(match_commands.match)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set of 96 small images in three classes."""
    images = np.random.default_rng(1).integers(0, 90, (96, 3, 4, 4))
    images[..., 0] += (np.arange(96) % 3 * 50)[:, None, None]
    np.savez(tmp_path / "small.npz", x_train=images.astype(np.uint8), y_train=np.arange(96) % 3)
    monkeypatch.setenv("BIASCOPE_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


WORDS = ("logistic_regression", "mlp hidden=20,20", "--data", "small", "--batch", "16", "--device", "cpu", "--quiet")


def invoke(*words: str):
    return CliRunner().invoke(app, [*words], catch_exceptions=True)


def test_a_race_prints_a_table_and_writes_report_csv_and_result(folder):
    done = invoke("--race", *WORDS, "--share", "0.2", "--rate", "0.01", "--epochs", "10", "--out", "run")
    assert done.exit_code == 0, done.output
    assert "mlp hidden=(20, 20)" in done.output
    assert "P(best)" in done.output
    assert (folder / "run/report.html").stat().st_size > 10_000
    rows = list(csv.DictReader((folder / "run/race.csv").read_text().splitlines()))
    assert {row["candidate"] for row in rows} == {"logistic_regression", "mlp hidden=(20, 20)"}
    found = registry.load(folder / "run/race")
    assert isinstance(found, Race)
    assert found.total == 60  # 84 samples, 12 held out
    again = invoke("--race", *WORDS, "--share", "0.2", "--rate", "0.01", "--epochs", "10", "--out", "run", "--json")
    document = json.loads(again.stdout)["results"][0]
    assert document["measurement"] == "race"
    assert set(document["facts"]) == {"decided", "winner", "may_be_best"}
    assert [row["candidate"] for row in document["tables"]["candidates"]] == [row["candidate"] for row in rows]


def test_a_dry_run_of_a_race_tells_the_time_and_writes_nothing(folder):
    done = invoke("--race", *WORDS, "--dry-run")
    assert done.exit_code == 0, done.output
    assert "mlp hidden=(20, 20): training" in done.output
    assert sorted(path.name for path in folder.iterdir()) == ["small.npz"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--share", "0.1"], "--share applies only to a race, got it without --race. Add --race"),
        (["--epochs", "3"], "--epochs applies only to a race"),
        (["--race", "--draws", "8"], "apply only before training, got one of them with --race"),
        (["--race", "--no-labels"], "apply only before training"),
        (["--race", "--share", "2"], "share must be above 0 and at most 1"),
        (["--race", "--rate", "-1"], "rate must be a positive number"),
    ],
)
def test_what_a_race_cannot_do_is_a_sentence(folder, words, message):
    done = invoke(*words, *(word for word in WORDS if word not in ("--batch", "16")))
    assert done.exit_code != 0
    assert isinstance(done.exception, ValueError)
    assert message in str(done.exception)
