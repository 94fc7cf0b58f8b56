"""How much networks can change along the data: closed forms of the gain, its invariances, its warnings, and the command."""

import csv
import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from closed_forms_geometry import mean_tap_matrix, pooled_convolution_geometry
from networks_under_test import CPU, CPU64, normal
from torch import Tensor, nn
from typer.testing import CliRunner

from biascope.cli import match as match_commands
from biascope.families.family import Family
from biascope.measures.match import FLOOR, data_directions, match
from biascope.measures.match.result import CLOSED, Match
from biascope.results import registry, store
from biascope.results.wording import short
from biascope.runs.run import Run
from biascope.tasks.samples import samples_of
from biascope.tasks.task import Arrays

pytestmark = pytest.mark.usefixtures("one_thread", "unrendered_pictures")


class Seen(nn.Module):
    """A linear network that sees its input through a matrix: its geometry is ``scale²·AᵀA`` times a number."""

    def __init__(self, through: Tensor, scale: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("through", through.clone())
        self.head = nn.Linear(len(through), 1, bias=False)
        nn.init.normal_(self.head.weight, std=scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1) @ self.through.to(x).T)


def seen(through: Tensor, name: str, scale: float = 1.0) -> Family:
    return Family.initialised(lambda: Seen(through, scale), name=name)


def gaussian_data(spread: Tensor, samples: int = 400, classes: int = 2) -> Arrays:
    """Samples with given standard deviations; the class shifts the first coordinate."""
    x = normal(samples, len(spread), seed=3) * spread
    y = torch.arange(samples) % classes
    x[:, 0] += 2.0 * spread[0] * y
    return Arrays({"train": (x, y)}, torch.float64, "made up")


def expected(geometry: Tensor, data: Arrays, kind: str) -> float:
    """The binary logarithm of the overlap with a known geometry, from its definition."""
    x, y = data.splits["train"]
    directions = data_directions(x, None if kind == "data" else y)[kind]
    freedom = (directions.vectors @ geometry.double() * directions.vectors).sum(1) * len(geometry) / geometry.trace()
    return float(directions.weights @ ((1 - FLOOR) * freedom + FLOOR).log2())


SPREAD = torch.linspace(2.0, 0.5, 8, dtype=torch.float64)
ALONG, ACROSS = torch.eye(8, dtype=torch.float64)[:1], torch.eye(8, dtype=torch.float64)[7:]


def test_a_network_without_preference_has_overlap_one_with_any_data():
    found = match([seen(torch.eye(8), "even")], gaussian_data(SPREAD), draws=4000, inputs=1, run=CPU64)
    assert found.kinds == ("data", "class means", "Fisher")
    assert all(abs(found.overlap[row, 0]) < 4 * found.errors[row, 0] < 0.2 for row in range(3))
    assert found.effective_ranks[0] == pytest.approx(8, rel=0.05)


@pytest.mark.parametrize("kind", ["data", "class means", "Fisher"])
def test_overlap_of_a_known_geometry(kind):
    data, through = gaussian_data(SPREAD), normal(5, 8, seed=1)
    found = match([seen(through, "known")], data, draws=4000, inputs=1, run=CPU64)
    row = found.kinds.index(kind)
    assert abs(found.overlap[row, 0] - expected(through.T @ through, data, kind)) < 4 * found.errors[row, 0] < 0.2


def test_overlap_of_a_linear_cnn_with_global_pooling():
    pooled = Family.initialised(
        lambda: nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 4, 3, bias=False), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        nn.Linear(4, 2, bias=False)), name="pooled",
    )  # fmt: skip
    data = gaussian_data(torch.ones(8, dtype=torch.float64))
    found = match([pooled], data, draws=4000, inputs=1, run=CPU64)
    geometry = torch.as_tensor(pooled_convolution_geometry(mean_tap_matrix((8,), 3), weight_std=1.0))
    for row, kind in enumerate(found.kinds):
        assert abs(found.overlap[row, 0] - expected(geometry, data, kind)) < 4 * found.errors[row, 0]
    assert found.parameters[0] == 20
    assert found.flops[0] > 0


def test_one_direction_along_and_across_the_data():
    x = torch.zeros(6, 8, dtype=torch.float64)
    x[:, 0] = torch.tensor([3.0, -3.0, 2.0, -2.0, 1.0, -1.0])
    line = Arrays({"train": (x, torch.zeros(6))}, torch.float64)
    families = [seen(ACROSS, "across"), seen(torch.eye(8), "even"), seen(ALONG, "along")]
    found = match(families, line, labels=False, draws=200, run=CPU64)
    assert found.names == ("across", "even", "along")  # as given, whatever the gain
    assert found.overlap[0, 2] == pytest.approx(math.log2((1 - FLOOR) * 8 + FLOOR))
    assert found.overlap[0, 0] == pytest.approx(math.log2(FLOOR))
    assert found.closed == [0]
    assert found.sentence().startswith(
        "Before training, 1 of 3 networks can hardly change along the directions of given data: across."
    )
    (warning,) = found.warnings
    assert warning.startswith("Before training, across can hardly change along the directions of given data.")
    assert [line.split()[0] for line in found.table().splitlines()] == ["network", "across", "even", "along"]
    assert [" closed " in line for line in found.table().splitlines()] == [False, True, False, False]


def test_the_overlap_with_the_data_is_largest_where_the_geometry_has_the_shape_of_their_covariance():
    data = gaussian_data(SPREAD, classes=1)
    covariance = torch.cov(data.splits["train"][0].T)
    own = expected(covariance, data, "data")
    for power in (0.0, 0.5, 1.5, 3.0):
        values, vectors = torch.linalg.eigh(covariance)
        assert expected((vectors * values**power) @ vectors.T, data, "data") < own
    first = torch.linalg.eigh(covariance).eigenvectors[:, -1]
    assert expected(torch.outer(first, first), data, "data") < own  # all on the first component is not a fit


def test_neither_the_scale_of_the_data_nor_that_of_the_weights_counts():
    data, through = gaussian_data(SPREAD), normal(5, 8, seed=1)
    x, y = data.splits["train"]
    plain = match([seen(through, "known")], data, draws=64, run=CPU64)
    larger = match([seen(through, "known", scale=100.0)], data, draws=64, run=CPU64)
    scaled = match([seen(through, "known")], Arrays({"train": (7 * x + 3, y)}, torch.float64), draws=64, run=CPU64)
    np.testing.assert_allclose(larger.overlap, plain.overlap, rtol=1e-6)
    np.testing.assert_allclose(scaled.overlap, plain.overlap, rtol=1e-6)
    np.testing.assert_allclose(scaled.errors, plain.errors, rtol=1e-6)


def test_errors_fall_with_the_root_of_the_draws_and_are_those_of_repetitions():
    data, families = gaussian_data(SPREAD), [seen(normal(5, 8, seed=1), "known")]
    few = [match(families, data, draws=64, inputs=1, seed=seed, run=CPU64) for seed in range(40)]
    many = match(families, data, draws=6400, inputs=1, run=CPU64)
    spread = np.std([found.overlap[0, 0] for found in few], ddof=1)
    told = float(np.mean([found.errors[0, 0] for found in few]))
    assert told == pytest.approx(spread, rel=0.35)
    assert told / many.errors[0, 0] == pytest.approx(10, rel=0.3)


def test_no_network_is_called_better_and_none_is_warned_of_without_need():
    families = [seen(torch.eye(8), "one"), seen(ALONG, "two")]
    found = match(families, gaussian_data(SPREAD), draws=64, run=CPU64)
    assert found.gain(1).low > 2 > found.gain(0).high
    assert found.closed == []
    assert found.warnings == []
    assert found.sentence().startswith("None of the 2 networks has a gain clearly below the limit of 0.25 on made up.")
    everything = f"{found.sentence()} {found.table()} {found.tables()} {found.headline()}"
    assert not any(word in everything for word in ("best", "place", "rank by", "first is", "fits"))


def test_a_warning_needs_the_whole_interval_below_the_threshold():
    found = match([seen(torch.eye(8), "one")], gaussian_data(SPREAD), draws=64, run=CPU64)

    def moved(value: float, half: float) -> Match:
        ends = {"overlap": value, "low": value - half, "high": value + half}
        return dataclasses.replace(found, **{name: np.full_like(found.overlap, end) for name, end in ends.items()})

    assert moved(CLOSED - 0.5, 0.4).closed == [0]
    assert moved(CLOSED - 0.5, 0.6).closed == []
    assert "The gain of one is not clearly below the limit" in moved(CLOSED - 0.5, 0.6).sentence()


def test_a_ranking_of_an_earlier_version_loads_in_the_order_that_was_given(tmp_path):
    families, data = [seen(ACROSS, "across"), seen(ALONG, "along")], gaussian_data(SPREAD)
    found = match(families, data, draws=64, run=CPU64)
    folder = found.save(tmp_path / "match")
    earlier = {**{name: getattr(found, name) for name in ("kinds", "draws", "data", "provenance")}}
    earlier |= {"names": ("along", "across"), "ranked_by": "class means"}
    arrays = {name: getattr(found, name)[..., ::-1].copy() for name in found.axes if name != "layers"}
    arrays["ahead"] = np.array([[0.5, 1.0], [0.0, 0.5]])
    document = {"measurement": "match", "class": "biascope.measures.match.result:Match", "values": earlier}
    store.write(folder, document, arrays)
    loaded = registry.load(folder)
    assert isinstance(loaded, Match)
    assert loaded.names == ("across", "along")
    np.testing.assert_array_equal(loaded.overlap, found.overlap)
    np.testing.assert_array_equal(loaded.parameters, found.parameters)
    assert loaded.sentence() == found.sentence()
    assert [row["layers"] for row in loaded.tables()["architectures"]] == [None, None]  # not counted then
    assert loaded.table().endswith("–")


def test_principal_directions_are_the_same_from_few_and_from_many_samples():
    x = normal(6, 9, seed=5) * torch.linspace(1, 3, 9)
    few, many = data_directions(x)["data"], data_directions(x.repeat(4, 1))["data"]
    assert few.vectors.shape == many.vectors.shape == (5, 9)
    torch.testing.assert_close(few.weights, many.weights)
    torch.testing.assert_close(
        (few.vectors @ many.vectors.T).abs(), torch.eye(5, dtype=torch.float64), atol=1e-6, rtol=0
    )
    centred = x - x.mean(0)
    torch.testing.assert_close(
        (few.vectors.T * few.weights) @ few.vectors, centred.T @ centred / centred.square().sum(), atol=1e-12, rtol=0
    )


def test_fisher_directions_whiten_the_difference_of_two_class_means():
    spread = torch.tensor([1.0, 3.0, 0.3], dtype=torch.float64)
    x = normal(20_000, 3, seed=2) * spread
    y = torch.arange(20_000) % 2
    x[y == 1] += torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)
    found = data_directions(x, y)
    mean, fisher = found["class means"].vectors[0], found["Fisher"].vectors[0]
    target = spread**-2
    assert abs(float(fisher @ target / target.norm())) > 0.9995
    assert abs(float(mean.sum()) / math.sqrt(3)) > 0.998
    assert found["Fisher"].weights.tolist() == [1.0]
    assert float(fisher.norm()) == pytest.approx(1)


def test_within_class_noise_of_few_samples_is_shrunk():
    """With fewer samples than dimensions the unshrunk directions would be arbitrary, and their strength infinite."""
    x, y = normal(12, 30, seed=4), torch.arange(12) % 2
    x[y == 1, 0] += 5.0
    assert abs(float(data_directions(x, y)["Fisher"].vectors[0, 0])) > 0.7


def test_float32_and_images_and_several_inputs_agree_with_float64():
    x = normal(60, 2, 4, 4, seed=6)
    data = Arrays({"train": (x.float(), torch.arange(60) % 3)})
    family = Family.initialised(
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(16, 3)), name="conv"
    )
    single, double = (match([family], data, draws=32, run=run) for run in (CPU, CPU64))
    np.testing.assert_allclose(single.overlap, double.overlap, atol=1e-4)


def test_gains_resume_and_comes_back_from_disk(tmp_path):
    run = Run(folder=tmp_path, device="cpu", precision="float64")
    families, data = [seen(ALONG, "along"), seen(torch.eye(8), "even")], gaussian_data(SPREAD)
    found = match(families, data, draws=64, run=run)
    assert list(tmp_path.rglob("draws-*.safetensors"))
    again = match(families, data, draws=64, run=run)
    np.testing.assert_array_equal(again.overlap, found.overlap)
    loaded = Match.load(found.save(tmp_path / "match"))
    assert loaded.names == found.names
    assert loaded.sentence() == found.sentence()
    assert list(loaded.headline()) == ["gain:along", "gain:even"]
    assert "parameters, " in loaded.headline()["gain:along"].label
    row = loaded.tables()["architectures"][0]
    assert row["overlap_class_means"].value == loaded.headline()["gain:along"].value == loaded.gain(0).value
    assert {"overlap_data", "overlap_fisher", "effective_rank", "flops"} < set(row)
    assert row["layers"] == 1
    assert loaded.facts() == {"along": "class means", "closed": []}
    pictures = [loaded.plots(dark) for dark in (False, True)]
    assert (
        list(pictures[0])
        == list(pictures[1])
        == [
            "gains",
            "gain_by_size",
        ]
    )
    assert [len(figure.axes[0].lines) > 1 for figure in pictures[0].values()] == [True, True]
    assert found.table().count("\n") == 2
    assert found.provenance["measurement"] == "match"


def test_counts_are_short():
    assert [short(number) for number in (999_600, 1_000_000, 5.5e9, 12, 1024)] == [
        "1.00 M",
        "1.00 M",
        "5.50 G",
        "12",
        "1.02 k",
    ]


@pytest.mark.parametrize(
    ("families", "labels", "settings", "message"),
    [
        ([], None, {}, r"^Networks must be one or more with different names, got \[\]"),
        (["one", "one"], None, {}, r"^Networks must be one or more with different names, got \['one', 'one'\]"),
        (["one"], None, {"draws": 7}, r"^draws must be at least 8 for an interval, got 7"),
        (
            ["one"],
            torch.zeros(10).long(),
            {},
            r"^Labels must have at least two classes .* got 1 classes for 10 samples",
        ),
        (["one"], torch.arange(10), {}, r"^Labels must have at least two classes .* got 10 classes for 10 samples"),
        (["one"], torch.arange(10) % 2, {"scale": 0.0}, r"^std must be a positive number, got 0"),
        (["one"], torch.arange(10) % 2, {"readout": "margin"}, r"^readout 'margin' needs at least two outputs"),
    ],
)
def test_what_cannot_be_matched_is_a_sentence(families, labels, settings, message):
    y = torch.arange(10) % 2 if labels is None else labels
    data = Arrays({"train": (normal(10, 8), y)}, torch.float64)
    with pytest.raises(ValueError, match=message):
        match([seen(torch.eye(8), name) for name in families], data, run=CPU64, **({"draws": 16} | settings))


def test_data_without_what_is_asked_for_is_a_sentence():
    with pytest.raises(ValueError, match=r"^Samples must differ from one another, got 4 without variance"):
        data_directions(torch.ones(4, 3))
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    with pytest.raises(ValueError, match=r"^Class means must differ, but all are equal"):
        data_directions(x, torch.tensor([0, 0, 1, 1]))
    with pytest.raises(ValueError, match=r"^Samples within a class must differ, but do not"):
        data_directions(x, torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ValueError, match=r"^split must be one of 'test', got 'train'"):
        match([seen(torch.eye(3), "one")], Arrays({"test": (normal(4, 3), torch.zeros(4))}), draws=8, run=CPU64)


# The command.

app = typer.Typer()
app.command()(match_commands.match)
MODEL = """
from torch import nn
def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 5), nn.Tanh(), nn.Linear(5, 3))
def narrow():
    return nn.Sequential(nn.Flatten(), nn.Linear(47, 3))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set of 60 small smooth images in three classes, and a network."""
    images = np.random.default_rng(0).integers(0, 120, (60, 3, 1, 1)) + np.zeros((60, 3, 4, 4), int)
    images[..., 0] += (np.arange(60) % 3 * 40)[:, None, None]
    images += np.random.default_rng(1).integers(0, 30, images.shape)
    np.savez(tmp_path / "small.npz", x_train=images.astype(np.uint8), y_train=np.arange(60) % 3)
    (tmp_path / "own.py").write_text(MODEL)
    monkeypatch.setenv("BIASCOPE_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*words: str):
    return CliRunner().invoke(app, [*words, "--device", "cpu"], catch_exceptions=True)


def test_match_prints_a_table_and_writes_report_csv_and_result(folder):
    models = ["own.py:build", "logistic_regression", "mlp hidden=20,20 activation=tanh"]
    done = invoke(*models, "--data", "small", "--draws", "64", "--out", "run")
    assert done.exit_code == 0, done.output
    assert "None of the 3 networks has a gain clearly below the limit of 0.25 on small, 60 train samples" in done.output
    assert "mlp hidden=(20, 20) activation=tanh" in done.output
    assert "class means" in done.output
    assert (folder / "run/report.html").stat().st_size > 10_000
    rows = list(csv.DictReader((folder / "run/match.csv").read_text().splitlines()))
    assert (folder / "run/report.html").read_text().count("Match of networks and small, 60 train samples") >= 1
    assert {row["architecture"]: row["parameters"] for row in rows} == {
        "own": "263",
        "logistic_regression": str(49 * 3),  # an output for every class
        "mlp hidden=(20, 20) activation=tanh": str(49 * 20 + 21 * 20 + 21 * 3),
    }
    again = invoke(*models, "--data", "small", "--draws", "64", "--out", "run", "--json")
    document = json.loads(again.stdout)["results"][0]
    assert document["facts"] == {"along": "class means", "closed": []}
    listed = [row["architecture"] for row in document["tables"]["architectures"]]
    assert listed == [row["architecture"] for row in rows]
    assert [family["name"] for family in document["provenance"]["families"]] == [
        "own",
        "logistic_regression",
        "mlp hidden=(20, 20) activation=tanh",
    ]
    assert Match.load("run/match").draws == 64


def test_match_without_labels_looks_where_the_data_vary_alone(folder):
    done = invoke("logistic_regression", "--data", "small", "--draws", "16", "--no-labels", "--set", "outputs=2")
    assert done.exit_code == 0, done.output
    assert "class means" not in done.output
    assert (folder / "biascope-runs/match-small/report.html").exists()
    assert Match.load("biascope-runs/match-small/match").parameters.tolist() == [98]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "network must be one of"),
        (["own.py:narrow"], "narrow must accept samples of shape 3×4×4"),
        (["mlp depth=3"], "mlp must be callable with the settings"),
        (["mlp", "mlp"], "Networks must be one or more with different names"),
        (["mlp", "--draws", "2"], "draws must be at least 8"),
        (["mlp", "--data", "absent"], "data set must be one of"),
        (["mlp", "--samples", "many"], "--samples must be whole numbers"),
        (["mlp", "--samples", "3"], "Labels must have at least two classes"),
        (["mlp", "--precision", "float8"], "precision must be one of"),
    ],
)
def test_what_match_cannot_do_is_a_sentence(folder, words, message):
    done = invoke(*words, *(() if "--data" in words else ("--data", "small")))
    assert done.exit_code != 0
    assert isinstance(done.exception, ValueError)
    assert message in str(done.exception)


def test_average_pooling_lies_where_digits_lie(data_root):
    data = samples_of("mnist", sizes=(1000,), root=data_root)
    families = [match_commands.family_of_words(words, data, [], True) for words in ("mlp", "lenet pooling=average")]
    found = match(families, data, draws=32, inputs=1, run=CPU)
    assert found.names == ("mlp", "lenet pooling=average")
    assert found.gain(1).low > 2 > found.gain(0).high
