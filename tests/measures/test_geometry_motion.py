"""Geometry in motion: correlations along a training, against gradients taken by hand."""

import dataclasses

import numpy as np
import pytest
import torch
from networks_under_test import CPU64
from torch import nn

from biascope.derivatives.matrices import correlation, data_covariance
from biascope.families.family import Family
from biascope.measures.geometry_motion import REFERENCES, geometry_motion
from biascope.runs.randomness import seed_of
from biascope.runs.run import Run
from biascope.tasks.task import Arrays
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

LINEAR = Family.initialised(lambda: nn.Linear(5, 1, bias=False), name="linear")


def data_of(classes: int = 2) -> Arrays:
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = x * torch.tensor([3.0, 1.0, 1.0, 0.5, 0.1])
    y = (x[:, 0] > 0).long() if classes == 2 else torch.arange(40) % classes
    return Arrays({"train": (x[:30], y[:30]), "test": (x[30:], y[30:])}, torch.float64)


SIX = Recipe("gd", 0.1, schedule="constant", momentum=0.9, epochs=6)
SMALL = {"recipe": SIX, "runs": 5, "checkpoints": 3, "probes": 2, "geometry_draws": 64, "run": CPU64}


def test_the_geometry_of_linear_models_is_that_of_their_weights() -> None:
    data = data_of()
    result = geometry_motion(LINEAR, data, **SMALL)
    own = seed_of(0, "trained")
    start = LINEAR.draw(5, seed=own, run=CPU64)
    walk = fit(start, data, SIX, seed=own, run=CPU64, keep_at=result.epochs.tolist())
    covariance = data_covariance(data.splits["train"][0])
    before = None
    for place, epoch in enumerate(result.epochs.tolist()):
        rows = walk.at(epoch).params["weight"][:, 0]
        geometry = rows.T @ rows / 5
        assert result.plain[place, REFERENCES.index("S")] == pytest.approx(correlation(geometry, covariance))
        assert result.plain[place, REFERENCES.index("I")] == pytest.approx(correlation(geometry, torch.eye(5)))
        if before is not None:
            assert result.velocity[place - 1] == pytest.approx(1 - correlation(geometry, before))
        before = geometry
    assert result.size[0] == 1
    first, last = (walk.at(epoch).params["weight"][:4, 0] for epoch in result.epochs[[0, 1]].tolist())
    without_the_last_run = 1 - correlation(first.T @ first, last.T @ last)
    assert result.velocity_left_out[0, 4] == pytest.approx(without_the_last_run)
    assert result.headline()["mean_velocity"].standard_error > 0, "a velocity of few runs is not exact"


def test_squared_loss_at_first_shrinks_what_the_data_show() -> None:
    data = data_of()
    labels = torch.randint(2, (30,), generator=torch.Generator().manual_seed(1))
    data = Arrays({"train": (data.splits["train"][0], labels)}, torch.float64)  # labels that cannot be learned
    result = geometry_motion(
        LINEAR,
        data,
        recipe=dataclasses.replace(SIX, rate=1e-3, epochs=1, loss="squared"),
        runs=60,
        checkpoints=2,
        probes=1,
        geometry_draws=400,
        run=CPU64,
    )
    assert result.change("S", 1).value < 0
    assert result.change("GSG", 1).value < 0
    assert "away from" in result.sentence()


def test_several_outputs_keep_their_classes() -> None:
    family = Family.initialised(lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4)), name="four")
    result = geometry_motion(family, data_of(4), **SMALL)
    assert result.train_accuracy.shape == (3, 5)
    assert np.isfinite(result.plain).all()


def test_a_run_folder_keeps_every_checkpoint(tmp_path) -> None:
    settings = {**SMALL, "run": Run(folder=tmp_path, device="cpu", precision="float64")}
    first = geometry_motion(LINEAR, data_of(), **settings)
    kept = sorted(tmp_path.rglob("epoch *.safetensors"))
    assert len(kept) == 3
    kept[1].unlink()
    again = geometry_motion(LINEAR, data_of(), **settings)
    np.testing.assert_array_equal(first.plain, again.plain)
    np.testing.assert_array_equal(first.accuracy, again.accuracy)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"runs": 1}, "at least 2"),
        ({"checkpoints": 1}, "at least 2"),
        ({"recipe": dataclasses.replace(SIX, rate=1e30, loss="squared")}, "diverged"),
    ],
)
def test_wrong_settings_get_a_sentence(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        geometry_motion(LINEAR, data_of(), **{**SMALL, **settings})


def test_a_result_saved_without_the_velocity_of_single_runs_opens_with_an_unknown_spread() -> None:
    result = geometry_motion(LINEAR, data_of(), **SMALL)
    fields = {name: value for name, value in vars(result).items() if name != "velocity_left_out"}
    opened = type(result)(**type(result).from_earlier(fields))
    assert opened.headline()["mean_velocity"].value == result.headline()["mean_velocity"].value
    assert np.isnan(opened.headline()["mean_velocity"].standard_error)


def test_more_classes_than_outputs_get_a_sentence() -> None:
    with pytest.raises(ValueError, match="two classes"):
        geometry_motion(LINEAR, data_of(3), **SMALL)


def test_inputs_too_large_for_a_matrix_are_compared_by_their_rows() -> None:
    """Beyond 4,096 numbers S, G and GSG are never formed; what the network does not see changes no correlation with GSG."""
    x = torch.zeros(30, 5000, dtype=torch.float64)
    x[:, :5] = data_of().splits["train"][0]
    family = Family.initialised(lambda: nn.Linear(5000, 1, bias=False), name="wide")
    result = geometry_motion(family, Arrays({"train": (x, (x[:, 0] > 0).long())}, torch.float64), **SMALL)
    assert result.chance[REFERENCES.index("S")] == pytest.approx(
        correlation(torch.eye(5), data_covariance(x[:, :5])) * (5 / 5000) ** 0.5
    )
    assert result.change("S").value > 0


def test_any_recipe_is_followed() -> None:
    recipe = Recipe("sgd", 0.3, schedule="linear", momentum=0.9, clip=0.5, weight_decay=5e-4, epochs=4, batch=8)
    settings = {**SMALL, "recipe": recipe, "checkpoints": 5}
    result = geometry_motion(LINEAR, data_of(), **settings, even=True)
    assert result.epochs.tolist() == [0, 1, 2, 3, 4]
    own = seed_of(0, "trained")
    ends = fit(LINEAR.draw(5, seed=own, run=CPU64), data_of(), recipe, seed=own, run=CPU64).networks.params["weight"]
    geometry = ends[:, 0].T @ ends[:, 0]
    assert result.plain[-1, REFERENCES.index("I")] == pytest.approx(correlation(geometry, torch.eye(5)))
    with pytest.raises(ValueError, match="in epochs"):
        geometry_motion(LINEAR, data_of(), **{**settings, "recipe": Recipe("sgd", 0.3, steps=4)})
