import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from networks_under_test import CPU64, in_three_splits, network_of, normal
from torch import Tensor, nn

from biascope.derivatives.linearize import linearize
from biascope.editing.heads import Head, fitted_head
from biascope.editing.pictures import radar_figure
from biascope.editing.results import repeated
from biascope.editing.tuning import tuned_vectors, tuning_recipe
from biascope.editing.vectors import TaskVector
from biascope.families.network import Network
from biascope.measures.task_addition import TaskAddition, task_addition
from biascope.tasks.task import Arrays

ENCODER = network_of(lambda: nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 6)), readout=None)


def task_of(shift: float, seed: int) -> Arrays:
    x = normal(160, 4, seed=seed)
    return in_three_splits(x + shift, (x[:, 0] * x[:, 1] > 0).long())


TASKS = {"up": task_of(2.0, 1), "down": task_of(-2.0, 2), "here": task_of(0.0, 3)}


@functools.cache
def heads() -> dict[str, Head]:
    return {name: fitted_head(ENCODER, task, run=CPU64) for name, task in TASKS.items()}


@functools.cache
def vectors(seed: int = 0) -> dict[str, dict[str, TaskVector]]:
    return tuned_vectors(ENCODER, heads(), TASKS, tuning_recipe(steps=60, rate=0.03, batch=40), seed=seed, run=CPU64)


@functools.cache
def measured(seed: int = 0) -> TaskAddition:
    return task_addition(ENCODER, heads(), vectors(seed), TASKS, resamples=100, run=CPU64)


def accuracy(method: str, weights: dict[str, float], task: str, split: str) -> float:
    """By the definition: one network at one set of weights."""
    own = vectors()["linearised" if method == "linearised" else "non-linear"]
    total = sum((alpha * own[name] for name, alpha in weights.items()), start=0.0 * own["up"])
    network: Network = ENCODER if method == "non-linear" else linearize(ENCODER)
    x, y = TASKS[task].splits[split]
    return float((heads()[task](network(x, total.applied(ENCODER.params))).argmax(1) == y).double().mean())


def test_it_is_the_definition() -> None:
    result = measured()
    for row, method in enumerate(result.methods):
        alpha = float(result.chosen[0, row])
        for column, task in enumerate(TASKS):
            every = dict.fromkeys(TASKS, alpha)
            assert result.merged[0, row, column] == pytest.approx(accuracy(method, every, task, "test"))
            assert result.single[0, row, column] == pytest.approx(accuracy(method, {task: 1.0}, task, "test"))
            assert result.pretrained[0, column] == pytest.approx(accuracy(method, {}, task, "test"))
            for place in (0, 3, 11, 24):
                every = dict.fromkeys(TASKS, float(result.alphas[place]))
                assert result.curves[0, row, place, column] == pytest.approx(
                    accuracy(method, every, task, "validation")
                )
    np.testing.assert_allclose(result.absolute[0], result.merged[0].mean(1))
    np.testing.assert_allclose(result.normalised[0], (result.merged[0] / result.single[0]).mean(1))


def test_the_coefficient_is_the_best_of_normalised_validation_accuracy() -> None:
    result = measured()
    finer = np.arange(1, 5) / 100  # near 0, where sums of long vectors have their best
    np.testing.assert_allclose(result.alphas, np.sort([*np.arange(21) / 20, *finer]))
    for row, method in enumerate(result.methods):
        single = np.array([accuracy(method, {task: 1.0}, task, "validation") for task in TASKS])
        score = (result.curves[0, row] / single).mean(1)
        assert result.chosen[0, row] == result.alphas[score.argmax()]


def test_tuning_helps_single_tasks() -> None:
    result = measured()
    assert result.single[0, 0].mean() > result.pretrained[0].mean() + 0.1
    assert (result.absolute >= result.pretrained.mean() - 0.1).all()


def test_tasks_on_separate_weights_add_up_without_loss() -> None:
    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = (nn.Linear(2, 2, bias=False) for _ in "ab")

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.left(x[:, :2])) + torch.tanh(self.right(x[:, 2:]))

    encoder = network_of(Apart, readout=None)
    x, y = normal(60, 4, seed=8), torch.arange(60) % 2
    tasks = {
        name: Arrays(dict.fromkeys(("train", "validation", "test"), (x * half, y)), torch.float64)
        for name, half in (("l", torch.tensor([1, 1, 0, 0])), ("r", torch.tensor([0, 0, 1, 1])))
    }
    heads = {name: fitted_head(encoder, task, run=CPU64) for name, task in tasks.items()}
    recipe = dataclasses.replace(tuning_recipe(steps=30, rate=0.05), weight_decay=0.0)
    own = tuned_vectors(encoder, heads, tasks, recipe, run=CPU64)
    result = task_addition(encoder, heads, own, tasks, coefficients=2, run=CPU64)
    at_one = result.curves[0, :, -1]
    np.testing.assert_array_equal(at_one, result.single[0])  # validation and test are the same samples here


def test_the_spread_of_one_seed_is_unknown_and_that_of_several_is_over_samples_and_seeds() -> None:
    one = measured()
    table = one.table()
    assert set(table) == {"pre-trained", "non-linear", "post-hoc", "linearised"}
    assert np.isnan(table["non-linear"]["absolute"].standard_error)
    spread = np.sqrt((one.pretrained[0] * (1 - one.pretrained[0]) / 40).sum()) / 3
    assert table["pre-trained"]["absolute"].standard_error == pytest.approx(spread, rel=0.35)
    both = repeated([one, measured(1), measured(2)])
    assert both.merged.shape == (3, 3, 3)
    expected = np.array([measured(seed).absolute[0, 0] for seed in range(3)])
    assert both.table()["non-linear"]["absolute"].value == pytest.approx(expected.mean())
    seeds, samples = expected.std(ddof=1) / 3**0.5, both.draws[:, 0, 2].mean(0).std()
    joined = both.table()["non-linear"]["absolute"].standard_error
    assert joined == pytest.approx(np.hypot(seeds, samples))
    assert joined > max(seeds, samples)
    assert both.check() is both
    assert both.plots()
    with pytest.raises(ValueError, match="results must be at least one"):
        repeated([])
    with pytest.raises(ValueError, match="of the same tasks"):
        repeated([one, dataclasses.replace(one, tasks=("a", "b", "c"))])


def test_the_test_samples_are_seen_at_three_edits_alone(tmp_path: Path) -> None:
    run = dataclasses.replace(CPU64, folder=tmp_path)
    task_addition(ENCODER, heads(), vectors(), TASKS, methods=("non-linear",), run=run)
    from safetensors.torch import load_file

    sizes = sorted(load_file(path)["outputs"].shape[0] for path in tmp_path.rglob("outputs.safetensors"))
    assert sizes == [3, 3, 3, 26, 26, 26]


def test_accuracies_are_shares_under_keys_and_in_a_table() -> None:
    both = repeated([measured(), measured(1)])
    assert both.headline()["absolute_accuracy:pre-trained"].unit == "share"
    assert both.headline()["normalised_accuracy:post-hoc"].value == pytest.approx(both.normalised[:, 1].mean())
    rows = both.tables()["accuracies"]
    assert len(rows) == both.merged.size
    found = {(row["seed"], row["way"], row["task"]): row for row in rows}[1, "post-hoc", "down"]
    assert found["coefficient"] == both.chosen[1, 1]
    assert found["pretrained"] == both.pretrained[1, 1]
    assert (found["single"], found["merged"]) == (both.single[1, 1, 1], both.merged[1, 1, 1])


def test_the_sentence() -> None:
    words = measured().sentence()
    assert words.startswith("Adding the vectors of 3 tasks to encoder")
    assert "% (post-hoc, " in words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"coefficients": 1}, "coefficients must be at least 1 and 2"),
        ({"methods": ("x",)}, "methods must be among"),
        ({"points": 0}, "points must be at least 1"),
    ],
)
def test_wrong_settings_are_told_in_one_sentence(change, words) -> None:
    with pytest.raises(ValueError, match=words):
        task_addition(ENCODER, heads(), vectors(), TASKS, run=CPU64, **change)


def test_what_is_missing_is_told_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="'down' has none"):
        task_addition(ENCODER, {"up": heads()["up"]}, vectors(), TASKS, run=CPU64)
    with pytest.raises(ValueError, match="'down' has none"):
        task_addition(ENCODER, heads(), {"non-linear": {"up": vectors()["non-linear"]["up"]}}, TASKS, run=CPU64)
    unsplit = {name: dataclasses.replace(task, splits={"test": task.splits["test"]}) for name, task in TASKS.items()}
    with pytest.raises(ValueError, match="Task 'up' must have the splits 'validation', 'test', but lacks 'validation'"):
        task_addition(ENCODER, heads(), vectors(), unsplit, run=CPU64)


@pytest.mark.parametrize(("tasks", "polar"), [(2, False), (3, True)])
def test_few_tasks_are_drawn_as_bars_since_two_rays_enclose_nothing(tasks: int, polar: bool) -> None:
    figure = radar_figure({"start": np.full(tasks, 50.0), "merged": np.full(tasks, 70.0)}, ["a", "b", "c"][:tasks])
    assert (figure.axes[0].name == "polar") == polar
