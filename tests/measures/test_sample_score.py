"""Sample scores, against the geometry itself."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from networks_under_test import CPU64, normal
from torch import nn

from biascope.families.family import Family
from biascope.measures import sample_score as module
from biascope.measures.average_geometry import average_geometry
from biascope.measures.sample_score import kept_samples, sample_score
from biascope.papers.geometry2025.samples import COLUMNS, PUBLISHED, Pruned, Subsets, table_1, table_2
from biascope.results.estimate import spearman
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays
from biascope.training.recipe import Recipe

pytestmark = pytest.mark.usefixtures("one_thread", "unrendered_pictures")
SHAPE = (2, 4, 4)


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.GELU(), nn.Flatten(), nn.Linear(12, 4))


FAMILY = Family.initialised(network, name="small")
LINEAR = Family.initialised(lambda: nn.Linear(6, 1, bias=False), name="linear")


def data_of(count: int = 30, test: int = 12) -> Arrays:
    x = normal(count + test, *SHAPE)
    y = torch.arange(count + test) % 3
    return Arrays({"train": (x[:count], y[:count]), "test": (x[count:], y[count:])}, torch.float64)


@pytest.mark.parametrize("draws", [40, 2400])  # kept as rows of gradients, and as sums
def test_scores_are_forms_of_the_average_geometry_over_its_mean_diagonal(draws: int) -> None:
    data = data_of()
    result = sample_score(FAMILY, data, draws=draws, seed=5, run=CPU64)
    probe = Probe.gaussian(SHAPE, std=1e-3, fresh=True, seed=5)
    geometry = average_geometry(FAMILY, probe, draws=draws, readout="mean", seed=5, run=CPU64).matrix.astype(float)
    x = torch.cat([part for part, _ in data.splits.values()]).flatten(1).numpy()
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    expected = np.einsum("nd,de,ne->n", x, geometry, x) * len(geometry) / np.trace(geometry)
    np.testing.assert_allclose(result.scores, expected, rtol=2e-6)
    assert result.splits == ("train", "test")
    np.testing.assert_array_equal(result.scores[result.of("test")], result.scores[30:])


def test_permuting_the_data_permutes_the_scores_and_what_is_kept() -> None:
    data = data_of()
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    x, y = data.splits["train"]
    turned = dataclasses.replace(data, splits={**data.splits, "train": (x[order], y[order])})
    before, after = (sample_score(FAMILY, each, draws=40, run=CPU64) for each in (data, turned))
    np.testing.assert_allclose(after.scores[:30], before.scores[:30][order], rtol=1e-12)
    np.testing.assert_allclose(after.errors[:30], before.errors[:30][order], rtol=1e-9)
    np.testing.assert_array_equal(after.labels[:30], before.labels[:30][order])
    kept = {tuple(image.flatten().tolist()) for image in x[before.kept(0.4)]}
    assert kept == {tuple(image.flatten().tolist()) for image in x[order][after.kept(0.4)]}


def test_the_length_of_a_sample_and_the_scale_of_the_network_do_not_matter() -> None:
    data = data_of()
    longer = dataclasses.replace(data, splits={split: (7 * x, y) for split, (x, y) in data.splits.items()})
    result = sample_score(FAMILY, data, draws=40, run=CPU64)
    np.testing.assert_allclose(sample_score(FAMILY, longer, draws=40, run=CPU64).scores, result.scores, rtol=1e-12)
    louder = FAMILY.mapped(
        lambda one: one.with_params({**one.params, "3.weight": 9 * one.params["3.weight"]}), "louder"
    )
    np.testing.assert_allclose(sample_score(louder, data, draws=40, run=CPU64).scores, result.scores, rtol=1e-6)


def test_an_isotropic_network_gives_everybody_one_within_the_errors() -> None:
    data = Arrays({"train": (normal(200, 6), torch.arange(200) % 2)}, torch.float64)
    few, many = (sample_score(LINEAR, data, draws=draws, run=CPU64) for draws in (640, 10_240))
    for result in (few, many):
        off = (result.scores - 1) / result.errors
        assert 0.4 < np.sqrt((off**2).mean()) < 1.6
    assert few.errors.mean() / many.errors.mean() == pytest.approx(4.0, rel=0.15)  # n^(−1/2)
    assert many.mean.contains(1.0)


def test_a_sample_of_zeros_scores_zero() -> None:
    x = normal(3, 6)
    x[1] = 0
    result = sample_score(LINEAR, Arrays({"train": (x, torch.zeros(3).long())}, torch.float64), draws=20, run=CPU64)
    assert result.scores[1] == 0
    assert (result.scores[[0, 2]] > 0).all()


def test_what_is_said_of_the_scores() -> None:
    data = data_of()
    result = sample_score(FAMILY, data, draws=400, run=CPU64)
    scores, labels = result.scores[:30], result.labels[:30]
    means = np.array([scores[labels == label].mean() for label in range(3)])
    assert list(result.by_class()) == np.argsort(-means).tolist()
    assert result.class_share.value == pytest.approx(means.var() / scores.var(), abs=0.02)
    assert result.agreement.low < result.agreement.value <= 1
    assert scores[result.shown[0]] == scores.max()
    assert scores[result.shown[-1]] == scores.min()
    np.testing.assert_allclose(result.images[0], data.splits["train"][0][result.shown[0]].flatten(), rtol=1e-6)
    words = result.sentence()
    assert f"Class {means.argmax()} has the highest mean score" in words
    assert f"class {means.argmin()} the lowest" in words


def test_more_draws_agree_better() -> None:
    values = [sample_score(FAMILY, data_of(), draws=draws, run=CPU64).agreement.value for draws in (32, 4096)]
    assert values[1] > values[0] + 0.5


def test_samples_that_are_alike_have_no_ranks_and_no_classes() -> None:
    x = normal(1, 6).expand(8, 6)
    result = sample_score(LINEAR, Arrays({"train": (x, torch.zeros(8).long())}, torch.float64), draws=20, run=CPU64)
    assert set(result.headline()) == {"mean_score", "spread"}
    assert "halves" not in result.sentence()
    assert set(result.plots()) == {"scores"}


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sample_score(FAMILY, data_of(), draws=40, run=CPU64)
    monkeypatch.setattr(module, "AT_ONCE", 7 * 32)
    np.testing.assert_allclose(sample_score(FAMILY, data_of(), draws=40, run=CPU64).scores, whole.scores, rtol=1e-12)


def test_draws_are_kept_in_the_run_folder(tmp_path: Path) -> None:
    run = dataclasses.replace(CPU64, folder=tmp_path)
    first = sample_score(FAMILY, data_of(), draws=64, run=run)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("draws-*.safetensors")}
    assert len(files) == 32
    next(iter(files)).unlink()  # as if it had been killed before this one
    again = sample_score(FAMILY, data_of(), draws=64, run=run)
    np.testing.assert_allclose(again.scores, first.scores, rtol=1e-12)
    assert sum(path.stat().st_mtime_ns == stamp for path, stamp in files.items()) == 31


@pytest.mark.parametrize(("channels", "pictures"), [(1, 3), (3, 3), (2, 3)])
def test_images_of_any_channels_are_drawn(channels: int, pictures: int) -> None:
    family = Family.initialised(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16 * channels, 1)), name="flat")
    data = Arrays({"train": (normal(9, channels, 4, 4), torch.arange(9) % 2)}, torch.float64)
    found = sample_score(family, data, draws=20, run=CPU64).plots()
    assert len(found) == pictures
    assert len(next(iter(found.values())).axes) == 12


def test_kept_samples_are_the_highest_in_the_order_of_the_data_set() -> None:
    scores = np.random.default_rng(0).random(100)
    kept = kept_samples(scores, 0.3)
    assert len(kept) == 30
    assert (np.diff(kept) > 0).all()
    assert scores[kept].min() > np.delete(scores, kept).max()
    np.testing.assert_array_equal(kept_samples(scores, 1.0), np.arange(100))
    assert len(kept_samples(scores, 1e-9)) == 1
    np.testing.assert_array_equal(kept_samples(np.ones(10), 0.5), np.arange(5))  # ties: the first


def test_a_random_choice_has_as_many_and_depends_on_the_seed_alone() -> None:
    scores = np.random.default_rng(0).random(1000)
    chosen = [kept_samples(scores, 0.3, by="random", seed=seed) for seed in (0, 0, 1)]
    assert len(chosen[0]) == 300
    np.testing.assert_array_equal(chosen[0], chosen[1])
    assert len(np.intersect1d(chosen[0], chosen[2])) < 150
    np.testing.assert_array_equal(kept_samples(-scores, 0.3, by="random", seed=0), chosen[0])
    assert abs(spearman(np.isin(np.arange(1000), chosen[0]).astype(float), scores)) < 0.1


def test_per_class_every_class_keeps_its_share() -> None:
    labels = np.repeat([0, 1, 2], [10, 20, 30])
    kept = kept_samples(np.arange(60.0), 0.5, labels=labels)
    np.testing.assert_array_equal(np.bincount(labels[kept]), [5, 10, 15])
    np.testing.assert_array_equal(kept, [*range(5, 10), *range(20, 30), *range(45, 60)])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"keep": 0.0}, "keep must be a share above 0 and at most 1, got 0.0"),
        ({"keep": 1.5}, "keep must be a share above 0 and at most 1, got 1.5"),
        ({"keep": 0.5, "by": "age"}, "by must be 'score' or 'random', got 'age'"),
    ],
)
def test_what_cannot_be_kept_is_a_sentence(settings, words) -> None:
    with pytest.raises(ValueError, match=words):
        kept_samples(np.ones(4), **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"draws": 1}, "draws must be at least 2"),
        ({"inputs": 0}, "num must be at least 1"),
        ({"readout": "x"}, "readout must be one of"),
    ],
)
def test_wrong_settings_are_told_in_one_sentence(settings, words) -> None:
    with pytest.raises(ValueError, match=words):
        sample_score(FAMILY, data_of(), **{"draws": 8, "run": CPU64, **settings})


def test_a_split_that_was_not_scored_is_a_sentence() -> None:
    with pytest.raises(ValueError, match="split must be one of train, test, got 'val'"):
        sample_score(FAMILY, data_of(), draws=8, run=CPU64).kept(0.5, split="val")


def test_members_of_a_stack_train_on_samples_of_their_own_and_share_the_test_samples() -> None:
    base = data_of()
    task = Subsets(base, torch.tensor([[3, 5, 7], [0, 1, 29]]))
    assert task.sizes == {"train": 3, "test": 12}
    x, y = task.batch("train", torch.tensor([2, 0]))
    assert torch.equal(x, base.splits["train"][0][torch.tensor([[7, 3], [29, 0]])])
    assert torch.equal(y, base.splits["train"][1][torch.tensor([[7, 3], [29, 0]])])
    alone = task.of_member(1).batch("train", torch.arange(3))
    assert torch.equal(alone[0], base.splits["train"][0][[0, 1, 29]])
    assert task.batch("test", torch.arange(12))[0].shape == (12, *SHAPE)
    assert torch.equal(task.select([1]).places, torch.tensor([[0, 1, 29]]))


def test_tables_prune_the_lowest_scores_and_as_many_at_random() -> None:
    base, scores = data_of(), np.random.default_rng(0).random(30)
    course = Pruned(base, scores, Recipe(), ())
    by_score = course.task("score 70", [0, 1], 0, CPU64)
    labels = base.splits["train"][1].numpy()
    best = np.sort(kept_samples(scores, 0.3, labels=labels))  # within each class
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        left = np.intersect1d(best, places)
        assert scores[left].min() > np.delete(scores[places], np.searchsorted(places, left)).max()
    assert torch.equal(by_score.batch("train", torch.arange(9))[0], base.splits["train"][0][best])
    at_random = course.task("random 70", [0, 1], 0, CPU64)
    assert at_random.sizes == by_score.sizes == {"train": 9, "test": 12}
    assert not torch.equal(at_random.places[0], at_random.places[1])
    again = course.task("random 70", [1], 0, CPU64)
    assert torch.equal(again.places[0], at_random.places[1])


def test_every_number_of_the_published_tables_is_in_a_claim() -> None:
    for table, columns in ((table_1, COLUMNS["1"]), (table_2, COLUMNS["2"])):
        printed = " ".join(claim.reads for claim in table.claims if claim.comparator == "at most")
        for row in PUBLISHED.values():
            assert "; ".join(f"{row[column][0]:g} and {row[column][1]:g}" for column in columns) in printed
        assert sum(claim.comparator == "at least" for claim in table.claims) == len(PUBLISHED)
    assert all(set(row) == set(range(10, 100, 10)) for row in PUBLISHED.values())
