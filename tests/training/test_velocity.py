"""Geometry evolution: velocities against dense derivatives, Δ against closed forms, and the measurement on a data set."""

import functools
import math

import numpy as np
import pytest
import torch
from networks_under_test import CPU64, normal
from torch import nn

from biascope.derivatives.matrices import DrawnMatrix, data_covariance
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.measures.geometry_evolution import GeometryEvolution, geometry_evolution
from biascope.papers.geometry2025.models import mlp_evolution
from biascope.runs.run import Run
from biascope.tasks.task import Arrays
from biascope.training.velocity import gradient_velocity, weight_velocity


def small_network(outputs: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, outputs))


SMALL = Family.initialised(small_network, name="small")
X, Y = normal(7, 1, 4, 4), torch.tensor([0, 1, 1, 0, 1, 0, 0])


def test_the_velocity_of_weights_is_minus_the_gradient_of_the_summed_loss() -> None:
    network = SMALL.draw(1, seed=0, run=CPU64).member(0)
    module = network.as_module()
    loss = 0.5 * (module(X)[:, 0] - (2 * Y - 1)).square().sum()
    wanted = torch.autograd.grad(loss, list(module.parameters()))
    found = weight_velocity(network, X, Y, batch=3)  # in three parts
    for (name, _), gradient in zip(module.named_parameters(), wanted, strict=True):
        torch.testing.assert_close(found[name], -gradient)


def test_a_loss_of_the_recipe_is_summed_too() -> None:
    network = Family.initialised(functools.partial(small_network, 3), name="three").draw(1, seed=0, run=CPU64).member(0)
    module, y = network.as_module(), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    wanted = torch.autograd.grad(nn.functional.cross_entropy(module(X), y, reduction="sum"), list(module.parameters()))
    found = weight_velocity(network, X, y, loss=None, batch=4)
    for (name, _), gradient in zip(module.named_parameters(), wanted, strict=True):
        torch.testing.assert_close(found[name], -gradient)


def test_gradients_move_as_a_step_of_the_weights_says() -> None:
    network = SMALL.draw(1, seed=0, run=CPU64).member(0).read("first")
    velocity = weight_velocity(SMALL.draw(1, seed=0, run=CPU64).member(0), X, Y)
    gradients, moved = gradient_velocity(network, X[:2], velocity)
    h = 1e-5

    def at(step: float) -> torch.Tensor:
        there = network.with_params({name: tensor + step * velocity[name] for name, tensor in network.params.items()})
        return gradient_velocity(there, X[:2], velocity)[0]

    torch.testing.assert_close(gradients, at(0.0))
    torch.testing.assert_close(moved, (at(h) - at(-h)) / (2 * h), rtol=1e-6, atol=1e-8)


def test_a_stack_is_its_members() -> None:
    stack = SMALL.draw(3, seed=0, run=CPU64)
    velocity = weight_velocity(stack, X, Y)
    inputs = normal(3, 2, 1, 4, 4, seed=1)
    gradients, moved = gradient_velocity(stack.read("first"), inputs, velocity, paired=True)
    for member in range(3):
        own = weight_velocity(stack.member(member), X, Y)
        one = gradient_velocity(stack.member(member).read("first"), inputs[member], own)
        torch.testing.assert_close(gradients[member], one[0])
        torch.testing.assert_close(moved[member], one[1])


class Perceptron(nn.Module):
    """One hidden layer of Gaussian weights, as theorem 3.1 has it."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.hidden = nn.Parameter(torch.randn(width, size))
        self.readout = nn.Parameter(torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.relu(x @ self.hidden.T) @ self.readout)[:, None]


def test_delta_of_a_perceptron_is_the_closed_form() -> None:
    size, width, draws = 5, 3, 20_000
    x = normal(4, size, seed=3)
    stack = Family.initialised(functools.partial(Perceptron, size, width), name="perceptron").draw(
        draws, seed=0, run=CPU64
    )
    velocity = weight_velocity(stack, x, torch.zeros(4, dtype=torch.float64))
    gradients, moved = gradient_velocity(stack.read("first"), normal(draws, 1, size, seed=4), velocity, paired=True)
    drawn = DrawnMatrix(2 * moved, gradients)
    each = torch.einsum("tad,tae->tde", drawn.left, drawn.right)
    each = (each + each.mT) / 2
    error = each.std(0) / math.sqrt(draws)
    wanted = torch.from_numpy(mlp_evolution(data_covariance(x).numpy(), width, weight_std=1.0, readout_std=1.0))
    assert float(((drawn.dense() - wanted).abs() / error).max()) < 4.5
    assert float((wanted.abs() / error).max()) > 20  # the sample could tell


def test_no_correlation_lies_beyond_its_bounds() -> None:
    zeros = np.zeros(4)
    result = GeometryEvolution(
        np.array([-1.2, 1.2, 0.5, -0.9]), np.full(4, 0.1), zeros, zeros, zeros, zeros, zeros, 100, 4
    )
    values = [result.with_reference(name) for name in ("S", "GSG", "G", "I")]
    assert [each.value for each in values] == [-1.0, 1.0, 0.5, -0.9]
    assert all(each.low <= each.value <= each.high for each in values)


def test_linear_regression_moves_against_the_data() -> None:
    family = Family.initialised(lambda: nn.Linear(6, 1, bias=False), name="linear")
    x = normal(12, 6, seed=5) * torch.tensor([3.0, 2.0, 1.0, 1.0, 0.5, 0.5])
    data = Arrays({"train": (x, torch.arange(12) % 2)}, torch.float64)
    result = geometry_evolution(family, data, draws=600, probes=1, geometry_draws=400, labels=False, run=CPU64)
    assert result.with_reference("S").high < -0.9  # an interval from −1 to 0 would not do
    assert abs(result.with_reference("S").value) > abs(result.with_reference("I").value)
    assert "shrinks" in result.sentence()
    assert result.chance[3] == pytest.approx(1.0)
    assert result.overlap[-1] > 0.8


def test_labels_change_the_noise_and_not_the_mean() -> None:
    family = Family.initialised(functools.partial(Perceptron, 5, 4), name="perceptron")
    data = Arrays({"train": (normal(6, 5, seed=6), torch.tensor([0, 1, 1, 0, 1, 1]))}, torch.float64)
    settings = {"draws": 4000, "probes": 1, "scale": 1.0, "geometry_draws": 400, "run": CPU64}
    pulled, free = (geometry_evolution(family, data, labels=labels, **settings) for labels in (True, False))
    for name in ("S", "GSG", "I"):
        one, two = pulled.with_reference(name), free.with_reference(name)
        assert abs(one.value - two.value) < 4 * math.hypot(one.standard_error, two.standard_error)
    assert free.with_reference("S").standard_error < pulled.with_reference("S").standard_error


def test_samples_chosen_anew_give_the_same_on_average() -> None:
    family = Family.initialised(lambda: nn.Linear(4, 1, bias=False), name="linear")
    x = normal(30, 4, seed=7) * torch.tensor([2.0, 1.0, 1.0, 0.5])
    data = Arrays({"train": (x, torch.arange(30) % 2)}, torch.float64)
    result = geometry_evolution(
        family, data, draws=2000, batch=3, probes=1, labels=False, geometry_draws=200, run=CPU64
    )
    assert result.with_reference("S").high < -0.9  # an interval from −1 to 0 would not do


def test_a_run_folder_keeps_the_draws(tmp_path) -> None:
    data = Arrays({"train": (X, Y)}, torch.float64)
    run = Run(folder=tmp_path, device="cpu", precision="float64")
    settings = {"draws": 40, "probes": 2, "geometry_draws": 32}
    first = geometry_evolution(SMALL, data, **settings, run=run)
    kept = sorted(tmp_path.rglob("draws *.safetensors"))
    assert kept
    kept[0].unlink()
    again = geometry_evolution(SMALL, data, **settings, run=run)
    np.testing.assert_array_equal(first.correlation, again.correlation)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"draws": 2}, "draws must be at least 3"),
        ({"probes": 0}, "probes must be at least 1"),
        ({"labels": False, "loss": None}, "needs loss='squared'"),
    ],
)
def test_wrong_settings_get_a_sentence(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        geometry_evolution(SMALL, Arrays({"train": (X, Y)}, torch.float64), run=CPU64, **settings)


def test_more_classes_than_outputs_get_a_sentence() -> None:
    data = Arrays({"train": (X, torch.tensor([0, 1, 2, 0, 1, 2, 0]))}, torch.float64)
    with pytest.raises(ValueError, match="two classes"):
        geometry_evolution(SMALL, data, run=CPU64)


def test_networks_with_attention_have_a_velocity() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    network = Network.of(nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 1)).double())
    x = normal(4, 3, 8)
    velocity = weight_velocity(network, x, torch.tensor([0, 1, 0, 1]))
    gradients, moved = gradient_velocity(network.read("first"), x[:2], velocity)
    assert gradients.shape == moved.shape == (2, 24)
    assert bool(torch.isfinite(moved).all())
    assert float(moved.abs().max()) > 0


def test_the_evolution_of_inputs_too_large_for_a_matrix() -> None:
    """Beyond 4,096 numbers nothing of the size of a matrix is formed: Δ of linear models is still −2σ²S."""
    x = torch.zeros(6, 4200, dtype=torch.float64)
    x[:, :3] = normal(6, 3, seed=7) * torch.tensor([3.0, 2.0, 1.0])
    family = Family.initialised(lambda: nn.Linear(4200, 1, bias=False), name="linear")
    data = Arrays({"train": (x, torch.arange(6) % 2)}, torch.float64)
    result = geometry_evolution(family, data, draws=200, probes=1, labels=False, geometry_draws=64, run=CPU64)
    assert result.with_reference("S").value == pytest.approx(-1.0, abs=0.35)
    assert len(result.eigenvalues) == 100
    assert result.inputs == 4200
    assert result.plots()["overlap_with_gsg"].axes[0].lines[1].get_ydata()[-1] == pytest.approx(
        2 / 4200
    )  # of a rank of 3
