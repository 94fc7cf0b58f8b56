"""Feature elimination: the order of directions, equal variance at random, and trainings on what is left."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from networks_under_test import CPU64, normal
from torch import Tensor, nn

from biascope.derivatives.matrices import data_covariance
from biascope.families.family import Family
from biascope.measures.feature_elimination import (
    FeatureElimination,
    elimination_order,
    feature_elimination,
    without,
)
from biascope.results.estimate import over
from biascope.runs.randomness import seed_of
from biascope.tasks import bases
from biascope.tasks.task import Arrays
from biascope.training.evaluation import evaluation
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE = 8


def positive(seed: int, rank: int = SIZE) -> Tensor:
    factor = normal(SIZE, rank, seed=seed)
    return factor @ factor.T


def data_of(train: int = 60, test: int = 40) -> Arrays:
    x = normal(train + test, SIZE) * torch.linspace(0.3, 3.0, SIZE)
    y = (x[:, :2].sum(1) > 0).long()
    return Arrays({"train": (x[:train], y[:train]), "test": (x[train:], y[train:])}, torch.float64)


FAMILY = Family.initialised(lambda: nn.Sequential(nn.Linear(SIZE, 6), nn.Tanh(), nn.Linear(6, 2)), name="small")
DATA = data_of()


def epochs(count: int, rate: float = 0.1) -> Recipe:
    return Recipe("sgd", rate, momentum=0.9, epochs=count, batch=128)


QUICK = {"shares": (0.0, 0.25, 0.5), "draws": 64, "recipe": epochs(3), "repeats": 2, "run": CPU64}


def test_the_order_spans_the_generalised_eigenvectors_with_least_geometry_per_variance_first() -> None:
    geometry, covariance = positive(1), positive(2)
    columns = elimination_order(geometry, covariance, ridge=0.0)
    torch.testing.assert_close(columns.T @ columns, torch.eye(SIZE, dtype=torch.float64))
    values, vectors = torch.linalg.eig(torch.linalg.solve(covariance, geometry))
    order = values.real.argsort()
    for count in range(1, SIZE):
        exact = torch.linalg.qr(vectors.real[:, order[:count]]).Q
        torch.testing.assert_close(columns[:, :count] @ columns[:, :count].T, exact @ exact.T, atol=1e-8, rtol=0)


def test_directions_without_geometry_go_by_their_variance_and_those_without_variance_go_last() -> None:
    geometry = torch.diag(torch.tensor([0.0, 0.0, 0.0, 5.0, 1.0, 2.0, 3.0, 4.0]))
    covariance = torch.diag(torch.tensor([1.0, 3.0, 2.0, 0.0, 1.0, 1.0, 1.0, 1.0]))
    assert elimination_order(geometry, covariance).abs().argmax(0).tolist() == [1, 2, 0, 4, 5, 6, 7, 3]


def test_singular_matrices_still_give_a_whole_orthonormal_basis() -> None:
    columns = elimination_order(positive(1, rank=3), positive(2, rank=4))
    torch.testing.assert_close(columns.T @ columns, torch.eye(SIZE, dtype=torch.float64))
    assert torch.linalg.norm(positive(1, rank=3) @ columns[:, 0]) < 1e-4 * torch.linalg.norm(positive(1, rank=3))


def test_what_is_removed_is_gone_and_the_rest_is_as_it_was() -> None:
    columns = torch.linalg.qr(normal(SIZE, SIZE)).Q
    left = without(DATA, columns[:, :3])
    for split, (x, y) in DATA.splits.items():
        torch.testing.assert_close(left.splits[split][0] @ columns[:, :3], torch.zeros(len(x), 3, dtype=torch.float64))
        torch.testing.assert_close(left.splits[split][0] @ columns[:, 3:], x @ columns[:, 3:])
        assert torch.equal(left.splits[split][1], y)
    images = Arrays({"train": (normal(5, 2, 2, 2), torch.zeros(5))}, torch.float64)
    assert without(images, columns[:, :3]).shape == (2, 2, 2)
    assert torch.equal(without(DATA, columns[:, :0]).splits["train"][0], DATA.splits["train"][0])


def test_random_directions_take_as_much_variance_as_nearly_as_whole_directions_can() -> None:
    x = normal(400, 60) * torch.linspace(0.5, 1.5, 60)
    data = Arrays({split: (x, torch.arange(400) % 2) for split in ("train", "test")}, torch.float64)
    family = Family.initialised(lambda: nn.Linear(60, 2), name="linear")
    result = feature_elimination(
        family, data, **{**QUICK, "shares": (0.0, 0.3, 0.6), "draws": 600, "recipe": epochs(1)}
    )
    assert result.removed.tolist() == [0, 18, 36]
    assert not result.removed_at_random[:, 0].any()
    assert result.variance[0] == 0
    # A random direction holds 1/60 on average, within some tenths of it.
    for of_run in result.removed_at_random:
        np.testing.assert_allclose(of_run / 60, result.variance, atol=0.06)
    assert result.lead_by_block.shape == (2, 3, 50)
    np.testing.assert_allclose(result.lead_by_block.mean(-1), result.lead, atol=1e-12)  # blocks of equal size
    assert result.variance[1] > 0.3  # directions of little geometry per variance have more variance than others


def test_accuracies_are_those_of_networks_trained_on_the_projected_data() -> None:
    result = feature_elimination(FAMILY, DATA, **{**QUICK, "recipe": epochs(20, 0.2)})
    geometry = torch.from_numpy(_geometry())
    columns = elimination_order(geometry, data_covariance(DATA.splits["train"][0]))
    seed = seed_of(0, "repeat", 0)
    for repeat in range(2):
        start = FAMILY.draws(seed=seed, run=CPU64).pick([repeat]).member(0)
        for place, count in enumerate(result.removed):
            task = without(DATA, columns[:, : int(count)])
            recipe = epochs(20, 0.2)
            trained = fit(start, task, recipe, seed=seed, run=CPU64).networks
            assert result.accuracy[repeat, place] == float(evaluation(trained, task, "test", run=CPU64).accuracy[0])
    np.testing.assert_array_equal(result.accuracy[:, 0], result.accuracy_at_random[:, 0])


def _geometry() -> np.ndarray:
    from biascope.measures.average_geometry import average_geometry
    from biascope.tasks.probe import Probe

    probe = Probe.gaussian((SIZE,), std=1e-3, fresh=True, seed=0)
    found = average_geometry(FAMILY, probe, draws=64, readout="mean", seed=0, run=CPU64)
    return found.matrix.astype(np.float64)


def test_a_direction_that_the_network_cannot_see_is_not_missed() -> None:
    """The network adds its two halves: differences of them, here most of the variance, are invisible to it."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x[:, :4] + x[:, 4:])

    common, apart = normal(300, 4), 5 * normal(300, 4, seed=1)
    x, y = torch.cat([common + apart, common - apart], 1), (common[:, 0] > 0).long()
    data = Arrays({"train": (x[:200], y[:200]), "test": (x[200:], y[200:])}, torch.float64)
    family = Family.initialised(Sum, name="sum")
    result = feature_elimination(family, data, **{**QUICK, "shares": (0.0, 0.5), "recipe": epochs(30), "repeats": 3})
    assert result.variance[1] == pytest.approx(25 / 26, abs=0.02)
    assert result.removed_at_random[:, 1].min() >= 6
    assert result.accuracy[:, 1].min() > 0.95
    assert result.lead[:, 1].min() > 0.1
    assert "removing features of little geometry costs less than removing random ones" in result.sentence()


def test_each_run_has_its_own_random_directions_and_the_lead_knows_the_error_of_the_test_samples() -> None:
    result = feature_elimination(FAMILY, DATA, **{**QUICK, "shares": (0.0, 0.5), "repeats": 4})
    seeds = [seed_of(0, "removed", run) for run in range(4)]
    drawn = [bases.random((SIZE,), seed=seed).vectors for seed in seeds]
    assert not any(torch.allclose(drawn[0], each) for each in drawn[1:])
    lead, alone = result.headline()["lead"], over(100 * result.lead[:, 1], confidence=0.68)  # in points
    assert lead.value == pytest.approx(alone.value)
    assert lead.standard_error > alone.standard_error
    assert lead.high - lead.value > alone.high - alone.value


def test_intervals_over_runs_are_68_percent() -> None:
    result = feature_elimination(FAMILY, DATA, **QUICK)
    assert {number.confidence for number in result.headline().values()} == {0.68}


@pytest.mark.parametrize(
    ("lead", "words"), [(0.1, "costs less than"), (-0.1, "costs more than"), (0.0, "costs about as much as")]
)
def test_the_sentence_says_which_is_missed_more(lead: float, words: str) -> None:
    steady = np.array([[0.9, 0.8], [0.9, 0.7], [0.9, 0.75]])
    other = (
        np.array([[0.9, 0.8 - 0.9 * lead], [0.9, 0.7 - lead], [0.9, 0.75 - 1.1 * lead]])  # leads that agree say little
        + (lead == 0) * np.diag([0.1, -0.1, 0])[:, :2]
    )
    counts = np.array([0, 5])
    alike, blocks = np.tile(counts, (3, 1)), np.repeat((steady - other)[..., None], 4, -1)
    result = FeatureElimination(counts, alike, np.array([0.0, 0.4]), steady, other, blocks)
    assert words in result.sentence()
    assert "40 % of the variance" in result.sentence()


def test_one_run_compares_nothing() -> None:
    counts, reached = np.array([0, 5]), np.array([[0.9, 0.8]])
    result = FeatureElimination(counts, counts[None], np.array([0.0, 0.4]), reached, reached, np.zeros((1, 2, 4)))
    assert "it is unknown whether features of little geometry or random ones are missed more" in result.sentence()
    assert "costs" not in result.sentence()


def test_classes_can_be_set_against_the_rest() -> None:
    x, y = normal(60, SIZE), torch.arange(60) % 5
    data = Arrays(dict.fromkeys(("train", "test"), (x, y)), torch.float64)
    single = Family.initialised(lambda: nn.Linear(SIZE, 1), name="one output")
    result = feature_elimination(single, data, positive=(1, 3), **QUICK)
    assert result.accuracy.shape == (2, 3)


def test_trainings_are_kept_and_more_shares_continue_them(tmp_path: Path) -> None:
    run = dataclasses.replace(CPU64, folder=tmp_path)
    first = feature_elimination(FAMILY, DATA, **{**QUICK, "run": run})
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    more = feature_elimination(FAMILY, DATA, **{**QUICK, "shares": (0.0, 0.25, 0.5, 0.75), "run": run})
    assert files
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in files.items())
    np.testing.assert_array_equal(more.accuracy[:, :3], first.accuracy)
    np.testing.assert_array_equal(more.accuracy_at_random[:, :3], first.accuracy_at_random)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"draws": 1}, "draws must be at least 2, got 1"),
        ({"draws": 7, "ridge": 0.0}, "ridge must be positive with fewer draws than directions, got 0"),
        ({"repeats": 0}, "repeats must be at least 1, got 0"),
        ({"shares": (0.5, 0.2)}, r"shares must rise from 0 or more to less than 1, got \(0.5, 0.2\)"),
        ({"shares": (0.0, 1.0)}, "shares must rise"),
        ({"shares": (0.0,)}, "shares must rise"),
        ({"shares": ()}, "shares must rise"),
        ({"readout": "x"}, "readout must be one of"),
    ],
)
def test_wrong_settings_are_told_in_one_sentence(change, words) -> None:
    with pytest.raises(ValueError, match=words):
        feature_elimination(FAMILY, DATA, **{**QUICK, **change})


def test_wrong_data_are_told_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="data must have the splits 'train' and 'test', got train"):
        feature_elimination(FAMILY, Arrays({"train": DATA.splits["train"]}, torch.float64), **QUICK)
    x = DATA.splits["train"][0]
    five = Arrays({split: (x, torch.arange(len(x)) % 5) for split in ("train", "test")}, torch.float64)
    with pytest.raises(ValueError, match="small must have an output for each of 5 classes, got 2"):
        feature_elimination(FAMILY, five, **QUICK)


def test_fewer_draws_than_directions_leave_directions_without_geometry_which_go_first() -> None:
    result = feature_elimination(FAMILY, DATA, **{**QUICK, "draws": 4, "recipe": epochs(1)})
    assert result.removed.tolist() == [0, 2, 4]
    assert np.isfinite(result.accuracy).all()
