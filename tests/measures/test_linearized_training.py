"""Linearised training: a network beside its linearisation, against explicit regressions on gradient features."""

import dataclasses
import functools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from networks_under_test import CPU64, normal, normalised_network, tanh_network
from scipy.linalg import hadamard
from torch import Tensor, nn

from biascope.derivatives.gradients import weight_jacobian
from biascope.derivatives.linearize import linearize
from biascope.families.family import Family
from biascope.measures.linearized_training import LinearizedTraining, linearized_training
from biascope.runs.randomness import seed_of
from biascope.runs.run import Run
from biascope.tasks.task import Arrays
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

TRAIN, TEST = 40, 24


def data_of(*shape: int, classes: int = 2) -> Arrays:
    x = normal(TRAIN + TEST, *shape)
    y = (x.flatten(1)[:, 0] > 0).long() if classes == 2 else torch.arange(len(x)) % classes
    return Arrays({"train": (x[:TRAIN], y[:TRAIN]), "test": (x[TRAIN:], y[TRAIN:])}, torch.float64)


FAMILY = Family.initialised(tanh_network, name="tanh")
LINEAR = Family.initialised(functools.partial(nn.Linear, 4, 1), name="linear")
DATA = data_of(4)
SMALL = {"epochs": 4, "batch": 10, "rate": 0.3, "run": CPU64}


def test_a_linear_model_is_its_own_linearisation() -> None:
    result = linearized_training(LINEAR, DATA, **SMALL)
    for name in ("losses", "distance", "cosine_distance"):
        network, line = getattr(result, name)
        np.testing.assert_allclose(network, line, rtol=1e-10)
    assert np.array_equal(result.advantage, np.zeros((1, 1, 1, 1)))
    assert "does not change test accuracy" in result.sentence()


def regression(features: Tensor, offset: Tensor, y: Tensor, recipe: Recipe) -> tuple[list[float], Tensor]:
    """Losses and weights of a logistic regression by gradient descent with momentum, written out."""
    weights, speed, losses = torch.zeros(features.shape[1], dtype=torch.float64), 0.0, []
    signs = 2 * y.double() - 1
    for step in range(recipe.epochs):
        margins = signs * (offset + features @ weights)
        losses.append(float(torch.log1p(torch.exp(-margins)).mean()))
        slope = -(features.T @ (signs * torch.sigmoid(-margins))) / len(y)
        speed = recipe.momentum * speed + slope
        weights = weights - recipe.rate_at(step, recipe.epochs) * speed
    return losses, weights


def test_linearisations_are_regressions_on_gradients_at_the_start_and_at_the_end() -> None:
    settings = {**SMALL, "optimiser": "gd", "epochs": 12}
    result = linearized_training(FAMILY, DATA, at=("start", "trained"), **settings)
    own, recipe = seed_of(0, "repeat", 0), Recipe("gd", 0.3, momentum=0.9, epochs=12)
    start = FAMILY.draw(1, seed=own, run=CPU64).member(0)
    x, y = DATA.splits["train"]
    end = fit(start, DATA, recipe, seed=own, run=CPU64).networks
    origin = torch.cat([tensor.flatten() for tensor in start.params.values()])
    cases = [(start, start(x)[:, 0]), (end, torch.zeros(TRAIN, dtype=torch.float64))]  # unbiased: it starts at 0
    for place, (network, offset) in enumerate(cases, start=1):
        losses, moved = regression(weight_jacobian(network.read("first"), x), offset, y, recipe)
        np.testing.assert_allclose(result.losses[place, 0, 0, 0, :12], losses, rtol=1e-9)
        np.testing.assert_allclose(result.distance[place, 0, 0, 0], moved.norm(), rtol=1e-9)
        cosine = torch.cosine_similarity(origin, origin + moved, dim=0)
        np.testing.assert_allclose(result.cosine_distance[place, 0, 0, 0], 1 - cosine, rtol=1e-7)
    assert result.losses[0, 0, 0, 0, 0] == pytest.approx(result.losses[1, 0, 0, 0, 0], rel=1e-12)
    assert result.losses[2, 0, 0, 0, 0] == pytest.approx(math.log(2), rel=1e-12)
    assert result.losses[2, 0, 0, 0, 11] < result.losses[1, 0, 0, 0, 11]  # the turned kernel fits sooner


def test_models_are_named_by_where_they_were_made() -> None:
    result = linearized_training(FAMILY, DATA, at=("start", "1", "trained"), **SMALL)
    assert result.models == (
        "network",
        "linearisation at the start",
        "linearisation after epoch 1",
        "linearisation at the end",
    )
    alone = linearized_training(FAMILY, DATA, at="trained", **SMALL)
    assert alone.models == ("network", "linearisation at the end")
    np.testing.assert_array_equal(alone.losses[1], result.losses[3])
    np.testing.assert_array_equal(linearized_training(FAMILY, DATA, at=("4",), **SMALL).losses, alone.losses)


def test_eigenfunctions_of_a_linear_model_are_its_directions() -> None:
    """Corners of a cube stretched along its axes: the signs of the eigenfunctions are those of the coordinates."""
    corners = torch.from_numpy(hadamard(16)[:, 1:5]) * torch.tensor([1.0, 8.0, 4.0, 2.0], dtype=torch.float64)
    data = Arrays(dict.fromkeys(("train", "test"), (corners, torch.zeros(16))), torch.float64)
    family = Family.initialised(functools.partial(nn.Linear, 4, 1, bias=False), name="linear")
    result = linearized_training(family, data, targets=(1, 2, 4), **{**SMALL, "optimiser": "gd", "epochs": 60})
    assert result.targets == (1, 2, 4)
    assert result.accuracy.min() == result.train_accuracy.min() == 1.0
    assert "eigenfunction 1, 2, 4" in result.sentence()
    iterations = result.iterations[:, :, 0, 0]
    assert (np.diff(iterations[:, :2]) > 0).all()  # the longer an axis, the sooner it is learned
    assert "accuracy" in result.plots()


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_direction_of_eigenvalue_zero_is_no_target(precision: str) -> None:
    run = Run(device="cpu", precision=precision)
    with pytest.raises(ValueError, match=r"has 5 and number 6 was asked for. Pass targets up to 5"):
        linearized_training(LINEAR, DATA, **{**SMALL, "targets": (1, 6), "run": run})
    assert linearized_training(LINEAR, DATA, **{**SMALL, "targets": (5,), "run": run}).targets == (5,)


def test_training_sizes_are_an_axis_and_smaller_sets_are_parts_of_larger_ones() -> None:
    result = linearized_training(FAMILY, DATA, sizes=(10, 40), repeats=3, **SMALL)
    assert result.accuracy.shape == (2, 1, 2, 3)
    assert result.steps[:, :4].tolist() == [[1, 2, 3, 4], [1, 2, 3, 4]]
    assert np.isnan(result.losses[:, :, 0, :, 4:]).all()
    assert np.isfinite(result.losses[:, :, 1, :, :16]).all()
    assert result.headline()["advantage:linearisation at the start, 40 samples"].standard_error >= 0
    figure = result.plots()["accuracy"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["10", "40"]
    whole = linearized_training(FAMILY, DATA, repeats=3, **SMALL)
    np.testing.assert_array_equal(whole.accuracy[:, :, 0], result.accuracy[:, :, 1])


def test_batchnorm_is_frozen_where_it_was_linearised() -> None:
    data = data_of(1, 4, 4)
    family = Family.initialised(normalised_network, name="normalised")
    settings = {**SMALL, "epochs": 3, "optimiser": "gd"}
    result = linearized_training(family, data, at=("start", "trained"), **settings)
    own, recipe = seed_of(0, "repeat", 0), Recipe("gd", 0.3, momentum=0.9, epochs=3)
    start = family.draw(1, seed=own, run=CPU64).member(0)
    end = fit(start, data, recipe, seed=own, run=CPU64).networks
    assert not torch.equal(end.buffers["1.running_mean"], start.buffers["1.running_mean"])
    line = linearize(start.with_params(start.params, end.buffers), end.params, biased=False)
    for place, network in ((1, linearize(start)), (2, line)):
        losses = fit(network, data, recipe, seed=own, run=CPU64).losses[:, 0]
        np.testing.assert_allclose(result.losses[place, 0, 0, 0, :3], losses.numpy(), rtol=1e-9)


def test_two_outputs_and_classes_set_apart() -> None:
    family = Family.initialised(functools.partial(tanh_network, 2), name="two outputs")
    result = linearized_training(family, data_of(4, classes=4), positive=(0, 1), **{**SMALL, "epochs": 30})
    assert result.train_accuracy[0].min() > 0.6
    assert np.isfinite(result.losses[:, 0, 0, 0, :100]).all()


def test_targets_do_not_depend_on_who_is_beside_them() -> None:
    both = linearized_training(FAMILY, DATA, targets=(2, 5), **SMALL)
    alone = linearized_training(FAMILY, DATA, targets=(5,), **SMALL)
    np.testing.assert_allclose(alone.losses[:, 0], both.losses[:, 1], rtol=1e-6)


def test_what_was_trained_is_kept_and_more_targets_continue_it(tmp_path: Path) -> None:
    own = {**SMALL, "run": dataclasses.replace(CPU64, folder=tmp_path)}
    first = linearized_training(FAMILY, DATA, targets=(2, 3), repeats=2, **own)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("group-*.safetensors")}
    more = linearized_training(FAMILY, DATA, targets=(2, 3, 6), repeats=2, **own)
    assert files
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in files.items())
    np.testing.assert_array_equal(more.losses[:, :2], first.losses)
    next(iter(files)).unlink()  # as if it had been killed there
    again = linearized_training(FAMILY, DATA, targets=(2, 3), repeats=2, **own)
    np.testing.assert_array_equal(again.losses, first.losses)
    np.testing.assert_array_equal(again.accuracy, first.accuracy)


def test_iterations_are_counted_to_the_threshold_and_never_is_no_number() -> None:
    result = linearized_training(FAMILY, DATA, threshold=0.3, **{**SMALL, "epochs": 40, "optimiser": "gd"})
    losses = result.losses[0, 0, 0, 0, :40]
    assert result.iterations[0, 0, 0, 0] == 1 + int(np.argmax(losses < 0.3))
    assert np.isnan(linearized_training(FAMILY, DATA, threshold=1e-9, **SMALL).iterations).all()


def test_a_training_that_diverges_is_recorded() -> None:
    with pytest.raises(ValueError, match=r"but all diverged\. Pass a smaller rate"):
        linearized_training(FAMILY, DATA, **{**SMALL, "rate": 1e308})
    result = linearized_training(FAMILY, DATA, **SMALL, repeats=3)
    one = np.zeros((2, 1, 1, 3), bool)
    one[0, 0, 0, 1] = True
    result = dataclasses.replace(result, accuracy=np.where(one, np.nan, result.accuracy), diverged=one)
    assert result.headline()["test_accuracy:network, 40 samples"].value == pytest.approx(np.nanmean(result.accuracy[0]))
    assert "1 of 6 trainings diverged and are left out." in result.sentence()
    assert result.check() is result


def test_the_sentence_tells_gain_and_cost() -> None:
    result = linearized_training(FAMILY, DATA, **SMALL)
    assert isinstance(result, LinearizedTraining)
    for accuracies, words in (
        ((0.8, 0.7), "raises test accuracy by 10.0 points"),
        ((0.6, 0.8), "lowers test accuracy by 20.0 points"),
    ):
        changed = dataclasses.replace(result, accuracy=np.array(accuracies).reshape(2, 1, 1, 1))
        assert words in changed.sentence()
        assert "on the labels with 40 samples" in changed.sentence()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"targets": (0,)}, "targets must be from 1 to 64, got"),
        ({"targets": (65,)}, "targets must be from 1 to 64, got"),
        ({"sizes": (41,)}, "sizes must be from 1 to 40, got"),
        ({"repeats": 0}, "repeats must be from 1"),
        ({"at": "middle"}, "at must be 'start', 'trained' or an epoch up to 4, got 'middle'"),
        ({"at": ("5",)}, "at must be 'start', 'trained' or an epoch up to 4"),
        ({"at": ()}, "at must be"),
        ({"positive": (0, 1)}, "Labels must be of two classes, got 1"),
        ({"rate": -1.0}, "rate must be a positive"),
    ],
)
def test_wrong_settings_are_told_in_one_sentence(change, words) -> None:
    with pytest.raises(ValueError, match=words):
        linearized_training(FAMILY, DATA, **{**SMALL, **change})


def test_wrong_data_are_told_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="Labels must be of two classes, got 4"):
        linearized_training(FAMILY, data_of(4, classes=4), **SMALL)
    with pytest.raises(ValueError, match="data must have the splits 'train' and 'test', got test"):
        linearized_training(FAMILY, Arrays({"test": DATA.splits["test"]}), **SMALL)
