"""Meta-learning against hand-written double backward passes, its formulas, and its use of the one training loop."""

import dataclasses
import functools
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from biascope.families.family import Family
from biascope.families.network import Network
from biascope.networks import builder
from biascope.runs.run import Run
from biascope.tasks.signals import Signal, SignalTask
from biascope.training.fit import Trajectory, fit
from biascope.training.meta import Adapted, Travelled, _ToAdapt, meta_learned, pretrained
from biascope.training.recipe import Recipe

EXACT = Run(device="cpu", precision="float64")
RATE = 0.05


def small_siren(outputs: int = 1) -> nn.Module:
    return builder("siren")(width=6, depth=2, omega=4.0, hidden_omega=3.0, bias="uniform", shift=0.5, outputs=outputs)


def network(seed: int = 0, outputs: int = 1) -> Network:
    family = Family.initialised(functools.partial(small_siren, outputs), name="small SIREN")
    return family.draw(1, seed=seed, run=EXACT).member(0)


def bumps(count: int = 4, side: int = 5, channels: int = 1) -> SignalTask:
    """Images of a bump each, at places along the diagonal."""
    axis = torch.arange(side, dtype=torch.float64) / side
    signals = []
    for k in range(count):
        centre = (k + 0.5) / count
        image = torch.exp(-((axis[:, None] - centre) ** 2 + (axis - centre) ** 2) / 0.1)
        signals.append(Signal(torch.stack([image / (c + 1) for c in range(channels)], -1)))
    return SignalTask.of(signals, held_out=0.0, seed=0, run=EXACT)


def by_hand(weights: list[Tensor], layers: nn.Module, grid: Tensor) -> Tensor:
    """The small SIREN written out: weights and biases of its two sine layers and its head."""
    first = torch.sin(4.0 * (grid @ weights[0].T + weights[1]))
    second = torch.sin(3.0 * (first @ weights[2].T + weights[3]))
    return (second @ weights[4].T + weights[5] + 0.5).flatten()


def adapted_by_hand(module: nn.Module, grid: Tensor, signal: Tensor, steps: int, second: bool) -> list[Tensor]:
    weights: list[Tensor] = list(module.parameters())
    for _ in range(steps):
        error = (by_hand(weights, module, grid) - signal).square().mean()
        slopes = torch.autograd.grad(error, weights, create_graph=second)
        weights = [tensor - RATE * slope for tensor, slope in zip(weights, slopes, strict=True)]
    return weights


@pytest.mark.parametrize("order", ["second", "first"])
@pytest.mark.parametrize("steps", [1, 3])
def test_the_outer_gradient_of_maml_is_that_of_a_hand_written_double_backward(order: str, steps: int) -> None:
    task, module = bumps(), network().as_module()
    signals = task.values.flatten(1)
    loss = (Adapted(module, task.grid, steps=steps, rate=RATE, order=order)(signals) - signals).square().mean()
    found = torch.autograd.grad(loss, list(module.parameters()))
    errors = []
    for signal in signals:
        end = adapted_by_hand(module, task.grid, signal, steps, second=order == "second")
        errors.append((by_hand(end, module, task.grid) - signal).square().mean())
    expected = torch.autograd.grad(torch.stack(errors).mean(), list(module.parameters()))
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= 1e-10 * max(1.0, float(other.abs().max()))


def test_the_orders_differ_and_their_difference_vanishes_with_the_inner_rate() -> None:
    task, module = bumps(), network().as_module()
    signals, gaps = task.values.flatten(1), []
    for rate in (2e-4, 1e-4):
        gradients = []
        for order in ("second", "first"):
            loss = (Adapted(module, task.grid, steps=1, rate=rate, order=order)(signals) - signals).square().mean()
            gradients.append(torch.cat([part.flatten() for part in torch.autograd.grad(loss, [*module.parameters()])]))
        gaps.append(float((gradients[0] - gradients[1]).norm()))
    assert gaps[0] > 0
    assert math.log2(gaps[0] / gaps[1]) == pytest.approx(1.0, abs=0.15)  # the Hessian's term has a factor of the rate


def test_reptile_moves_the_weights_to_the_mean_of_the_adapted_ones() -> None:
    task, start = bumps(), network()
    recipe = Recipe("gd", rate=0.3, schedule="constant", steps=1, loss="squared")
    found = meta_learned(
        start, task, algorithm="reptile", inner_steps=3, inner_rate=RATE, recipe=recipe, seed=0, run=EXACT
    )
    module = start.as_module()
    ends = [adapted_by_hand(module, task.grid, signal, 3, second=False) for signal in task.values.flatten(1)]
    for place, (name, before) in enumerate(start.params.items()):
        mean = torch.stack([end[place] for end in ends]).mean(0)
        assert torch.allclose(found.networks.params[name], before + 0.3 * (mean - before), rtol=0, atol=1e-12)


def test_reptile_has_no_gradient_where_nothing_is_left_to_learn() -> None:
    linear = nn.Linear(1, 1, bias=False)
    nn.init.ones_(linear.weight)
    Travelled(linear, torch.ones(2, 1), steps=2, rate=0.1)(torch.ones(3, 2)).square().mean().backward()
    assert linear.weight.grad is not None
    assert linear.weight.grad.item() == 0.0


def test_without_inner_steps_maml_is_training_on_the_mean_signal() -> None:
    task, start = bumps(), network()
    recipe = Recipe("adam", rate=1e-3, schedule="constant", steps=20, batch=10**6, loss="squared")
    found = meta_learned(start, task, inner_steps=0, recipe=recipe, seed=0, run=EXACT)
    mean = Signal(task.values.mean(0).reshape(5, 5, 1))
    expected = fit(start, SignalTask.of(mean, held_out=0.0, seed=0, run=EXACT), recipe, seed=0, run=EXACT)
    for name, tensor in expected.networks.params.items():
        assert torch.allclose(found.networks.params[name], tensor, rtol=0, atol=1e-9)
    # The losses differ by the variance of the signals, which no network can explain.
    variance = (task.values - task.values.mean(0)).square().mean()
    assert torch.allclose(found.losses - variance, expected.losses, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("algorithm", "order"), [("maml", "second"), ("maml", "first"), ("reptile", "first")])
def test_the_error_after_adaptation_falls(algorithm: str, order: str) -> None:
    task, start = bumps(8), network()
    recipe = Recipe("adam", rate=5e-3, schedule="constant", steps=150, batch=3, loss="squared")
    settings = {"algorithm": algorithm, "order": order, "inner_rate": RATE, "recipe": recipe}
    found = meta_learned(start, task, seed=0, run=EXACT, **settings)

    def error(trained: Network) -> float:
        signals = task.values.flatten(1)
        said = Adapted(trained.as_module(), task.grid, steps=2, rate=RATE)(signals)
        return float((said - signals).square().mean().detach())

    assert error(found.networks) < 0.5 * error(start)
    assert found.losses.shape == (150, 1)


def test_a_stack_in_lock_step_equals_networks_one_by_one() -> None:
    task, starts = bumps(), [network(0), network(1)]
    signals = task.values.flatten(1)
    recipe = Recipe("adam", rate=1e-3, schedule="constant", steps=10, batch=3, loss="squared")
    for kind, order in ((Adapted, "second"), (Adapted, "first"), (Travelled, "first")):
        loops = [kind(start.as_module(), task.grid, steps=2, rate=RATE, order=order) for start in starts]
        stack = Family.empirical(loops).draw(2, seed=0, run=EXACT)
        targets = signals if kind is Adapted else signals.new_zeros(len(signals))
        data = _ToAdapt({"train": (signals, targets)}, torch.float64)
        together = fit(stack, data, recipe, seed=0, run=EXACT, way="stack").networks
        alone = fit(stack, data, recipe, seed=0, run=EXACT, way="loop").networks
        for name, tensor in alone.params.items():
            assert torch.allclose(together.params[name], tensor, rtol=0, atol=1e-12)


def test_signals_of_several_channels_and_points_of_one_split() -> None:
    task = bumps(channels=2)
    recipe = Recipe("adam", rate=1e-3, schedule="constant", steps=2, batch=3, loss="squared")
    found = meta_learned(network(outputs=2), task, recipe=recipe, seed=0, run=EXACT)
    assert torch.isfinite(found.losses).all()
    held = SignalTask(task.grid, task.values, {**task.points, "train": torch.arange(9)})
    on_some = meta_learned(network(outputs=2), held, recipe=recipe, split="train", seed=0, run=EXACT)
    assert not torch.equal(on_some.losses, found.losses)


def finished(trajectory: Trajectory) -> list[Tensor]:
    places = [trajectory.networks, *trajectory.checkpoints.values()]
    return [trajectory.losses, trajectory.distance, *(t for place in places for t in place.params.values())]


def test_a_finished_training_is_read_and_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, task = dataclasses.replace(EXACT, folder=tmp_path), bumps()
    recipe = Recipe("adam", rate=1e-3, schedule="constant", steps=4, batch=3, loss="squared")
    work = [
        functools.partial(meta_learned, network(), task, recipe=recipe, keep_at=(0, 2), seed=0, run=run),
        functools.partial(pretrained, network(), task.of_member(1), recipe=recipe, keep_at=(0, 2), seed=0, run=run),
    ]
    first = [finished(each()) for each in work]
    with monkeypatch.context() as patch:
        patch.setattr("biascope.training.meta.fit", None)
        second = [finished(each()) for each in work]
        for before, after in zip(first, second, strict=True):
            assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
        with pytest.raises(TypeError):  # another rate is another work
            meta_learned(network(), task, inner_rate=0.02, recipe=recipe, seed=0, run=run)
    again = meta_learned(network(), task, recipe=recipe, keep_at=(0, 2), seed=0, run=EXACT)
    assert torch.equal(again.at(0).params["linear1.weight"], network().params["linear1.weight"])
    assert torch.equal(again.losses, first[0][0])


def test_pre_training_serves_a_stack_with_a_signal_for_each() -> None:
    task = bumps(3)
    family = Family.initialised(small_siren, name="small SIREN")
    recipe = Recipe("adam", rate=1e-2, schedule="constant", steps=100, batch=10**6, loss="squared")
    found = pretrained(family, task, recipe=recipe, seed=0, run=EXACT)
    assert found.networks.members == 3
    assert (found.losses[-1] < 0.2 * found.losses[0]).all()
    one = pretrained(family.draw(3, seed=0, run=EXACT).member(2), task.of_member(2), recipe=recipe, seed=0, run=EXACT)
    assert torch.allclose(one.networks.params["head.weight"], found.networks.params["head.weight"][2], atol=1e-9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "mama"}, "algorithm must be 'maml' or 'reptile', got 'mama'"),
        ({"order": "third"}, "order must be 'second' or 'first', got 'third'"),
        ({"inner_steps": -1}, "inner steps and their rate must not be negative, got -1 and 0.01"),
        ({"recipe": Recipe(steps=1)}, "must have the squared loss, got None"),
        ({"split": "test"}, "split must be one of"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        meta_learned(network(), bumps(), **{"seed": 0, "run": EXACT, **settings})


def test_networks_that_do_not_fit_the_signals_are_named() -> None:
    with pytest.raises(ValueError, match="as many values as the signals have channels, got 2 and 1"):
        meta_learned(network(outputs=2), bumps(), seed=0, run=EXACT)
    stack = Family.initialised(small_siren, name="small SIREN").draw(2, seed=0, run=EXACT)
    with pytest.raises(ValueError, match="must start from one network, got a stack of 2"):
        meta_learned(stack, bumps(), seed=0, run=EXACT)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("algorithm", ["maml", "reptile"])
def test_a_captured_step_equals_plain_autograd_on_a_gpu(algorithm: str) -> None:
    run, task = Run(device="cuda", precision="float64"), bumps(6)
    recipe = Recipe("adam", rate=1e-3, schedule="constant", steps=8, batch=3, loss="squared")
    there = meta_learned(network(), task, algorithm=algorithm, recipe=recipe, seed=0, run=run)
    here = meta_learned(network(), task, algorithm=algorithm, recipe=recipe, seed=0, run=EXACT)
    assert torch.allclose(there.losses, here.losses, rtol=1e-9)
