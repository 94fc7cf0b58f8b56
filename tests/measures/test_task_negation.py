import functools

import numpy as np
import pytest
import torch
from networks_under_test import CPU64, in_three_splits, network_of, normal
from torch import nn

from biascope.derivatives.linearize import linearize
from biascope.editing.heads import Head, fitted_head
from biascope.editing.results import repeated
from biascope.editing.tuning import tuned_vectors, tuning_recipe
from biascope.editing.vectors import TaskVector
from biascope.families.network import Network
from biascope.measures.task_negation import TaskNegation, task_negation
from biascope.tasks.task import Arrays

ENCODER = network_of(lambda: nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 8)), readout=None)


def task_of(shift: float, seed: int) -> Arrays:
    x = normal(160, 4, seed=seed)
    return in_three_splits(x + shift, (x[:, 0] + x[:, 1] > 0).long())


TASKS = {"up": task_of(2.0, 1), "down": task_of(-2.0, 2), "control": task_of(0.0, 3)}


@functools.cache
def heads() -> dict[str, Head]:
    return {name: fitted_head(ENCODER, task, run=CPU64) for name, task in TASKS.items()}


@functools.cache
def vectors() -> dict[str, dict[str, TaskVector]]:
    targets = {name: TASKS[name] for name in ("up", "down")}
    return tuned_vectors(ENCODER, heads(), targets, tuning_recipe(steps=60, rate=0.1, batch=40), run=CPU64)


@functools.cache
def measured(kept: float = 0.95) -> TaskNegation:
    return task_negation(ENCODER, heads(), vectors(), TASKS, control="control", kept=kept, resamples=100, run=CPU64)


def accuracy(method: str, target: str, alpha: float, task: str, split: str) -> float:
    """By the definition: one network at one set of weights."""
    vector = vectors()["linearised" if method == "linearised" else "non-linear"][target]
    network: Network = ENCODER if method == "non-linear" else linearize(ENCODER)
    x, y = TASKS[task].splits[split]
    edited = (-alpha * vector).applied(ENCODER.params)
    return float((heads()[task](network(x, edited)).argmax(1) == y).double().mean())


@pytest.mark.parametrize("kept", [0.95, 0.5])
def test_it_is_the_definition(kept: float) -> None:
    result = measured(kept)
    assert result.tasks == ("up", "down")
    for row, method in enumerate(result.methods):
        for column, target in enumerate(result.tasks):
            alpha = float(result.chosen[0, row, column])
            assert result.target[0, row, column] == pytest.approx(accuracy(method, target, alpha, target, "test"))
            assert result.control[0, row, column] == pytest.approx(accuracy(method, target, alpha, "control", "test"))
            for place in (0, 9, 20):
                at = float(result.alphas[place])
                found = result.target_curves[0, row, place, column], result.control_curves[0, row, place, column]
                expected = [accuracy(method, target, at, task, "validation") for task in (target, "control")]
                np.testing.assert_allclose(found, expected)
    start = [accuracy("non-linear", "up", 0.0, task, "test") for task in ("up", "down", "control")]
    np.testing.assert_allclose([*result.pretrained[0], result.pretrained_control[0]], start)


@pytest.mark.parametrize("kept", [0.95, 0.7])
def test_it_forgets_most_of_what_keeps_the_control_task(kept: float) -> None:
    result = measured(kept)
    for row in range(3):
        for column in range(2):
            target, control = result.target_curves[0, row, :, column], result.control_curves[0, row, :, column]
            allowed = control >= kept * control[0] - 1e-12
            place = int(np.flatnonzero(np.isclose(result.alphas, result.chosen[0, row, column]))[0])
            assert allowed[place]
            assert target[place] == target[allowed].min()
            assert not allowed[:place][target[:place] == target[place]].any()  # the smallest such coefficient


def test_less_to_keep_lets_more_be_forgotten() -> None:
    strict, loose = measured(0.95), measured(0.7)
    lowest = [
        np.array(
            [[r.target_curves[0, m, list(r.alphas).index(r.chosen[0, m, t]), t] for t in range(2)] for m in range(3)]
        )
        for r in (strict, loose)
    ]
    assert (lowest[1] <= lowest[0]).all()
    assert lowest[1].mean() < strict.target_curves[0, :, 0].mean() - 0.1  # something is forgotten


def test_a_control_task_that_no_edit_keeps_forbids_all() -> None:
    encoder = network_of(functools.partial(nn.Linear, 1, 1, bias=False), readout=None)
    encoder = encoder.with_params({"weight": torch.full((1, 1), 0.01, dtype=torch.float64)})
    vector = TaskVector.between(encoder.params, {"weight": torch.ones(1, 1, dtype=torch.float64)})
    pair = (torch.ones(4, 1, dtype=torch.float64), torch.ones(4, dtype=torch.long))
    tasks = {name: Arrays(dict.fromkeys(("validation", "test"), pair), torch.float64) for name in ("target", "control")}
    heads = dict.fromkeys(tasks, Head(torch.tensor([[-1.0], [1.0]]), torch.zeros(2)))
    result = task_negation(encoder, heads, {"non-linear": {"target": vector}}, tasks, control="control", run=CPU64)
    assert (result.chosen == 0).all()
    assert (result.target == 1).all()
    assert (result.target_curves[0, :, 1:] == 0).all()


def test_the_table_and_repeats() -> None:
    result = measured()
    table = result.table()
    assert table["pre-trained"]["control"].value == pytest.approx(result.pretrained_control[0])
    assert table["linearised"]["target"].value == pytest.approx(result.target[0, 2].mean())
    assert all(
        np.isnan(each.standard_error) == (way != "pre-trained") for way, row in table.items() for each in row.values()
    )
    assert result.headline()["target_accuracy:linearised"].value == table["linearised"]["target"].value
    found = {(row["way"], row["task"]): row for row in result.tables()["accuracies"]}["post-hoc", "down"]
    assert found["coefficient"] == result.chosen[0, 1, 1]
    assert (found["target"], found["control"]) == (result.target[0, 1, 1], result.control[0, 1, 1])
    both = repeated([result, result])
    assert both.target.shape == (2, 3, 2)
    alike = both.table()["linearised"]["target"]  # two equal seeds: others may be anywhere
    assert np.isnan(alike.standard_error)
    assert alike.low < 0.2 * alike.value
    start = both.table()["pre-trained"]["control"]  # no seed changes it: the error of the test samples remains
    assert start.standard_error == pytest.approx(table["pre-trained"]["control"].standard_error)
    assert both.check() is both
    assert result.sentence().startswith("Subtracting task vectors from encoder lowers the mean accuracy on 2 tasks")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"control": "x"}, "control must be one of the tasks"),
        ({"kept": 0.0}, "kept must be from 0 to 1"),
        ({"coefficients": 1}, "coefficients must be at least 2"),
        ({"methods": ("x",)}, "methods must be among"),
    ],
)
def test_wrong_settings_are_told_in_one_sentence(change, words) -> None:
    with pytest.raises(ValueError, match=words):
        task_negation(ENCODER, heads(), vectors(), TASKS, **{"control": "control", "run": CPU64, **change})


def test_what_is_missing_is_told_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="'control' has none"):
        task_negation(ENCODER, {n: heads()[n] for n in ("up", "down")}, vectors(), TASKS, control="control", run=CPU64)
    with pytest.raises(ValueError, match="Every target must have a task vector for non-linear, but 'control' has none"):
        task_negation(ENCODER, heads(), vectors(), TASKS, control="up", run=CPU64)
