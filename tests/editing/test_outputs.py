import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from networks_under_test import CPU, CPU64, batchnorm_convnet, global_states, network_of, normal
from torch import Tensor, nn

from biascope.derivatives.linearize import linearize
from biascope.editing import outputs as task_inference
from biascope.editing.heads import Head
from biascope.editing.outputs import edited_outputs, methods_of, sampled
from biascope.editing.vectors import TaskVector
from biascope.families.network import Network
from biascope.networks import builder
from biascope.results.registry import find
from biascope.runs.run import Run
from biascope.tasks.task import Arrays

GRID = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.3, -0.7], [-3.0, 3.0], [1.0, 0.0]], dtype=torch.float64)


class FusedAttention(nn.Module):
    """Torch's own attention layer, whose fast kernels have no forward-mode derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        mixed = nn.functional.scaled_dot_product_attention(x, x, x) + self.attention(x, x, x, need_weights=False)[0]
        return self.last(mixed.mean(1))


ENCODERS = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), (4,)),
    "batchnorm": (batchnorm_convnet, (1, 6, 6)),
    "transformer": (
        functools.partial(builder("vit"), image_size=8, patch=4, depth=2, heads=2, width=8, mlp=16, outputs=3),
        (1, 8, 8),
    ),
    "fused attention": (FusedAttention, (5, 4)),
}


def edited(name: str, scale: float = 0.4) -> tuple[Network, list[TaskVector], Arrays]:
    build, shape = ENCODERS[name]
    encoder = network_of(build, readout=None)
    ends = [
        {key: tensor + scale * normal(*tensor.shape, seed=7 * place + i) for i, (key, tensor) in enumerate(encoder.params.items())}
        for place in (1, 2)
    ]  # fmt: skip
    x = normal(9, *shape, seed=3)
    samples = Arrays({"test": (x, torch.zeros(9, dtype=torch.long))}, torch.float64)
    return encoder, [TaskVector.between(encoder.params, end) for end in ends], samples


def head_for(features: int, normalised: bool = False) -> Head:
    return Head(normal(4, features, seed=11), normal(4, seed=12), normalised)


def at(encoder: Network, vectors: list[TaskVector], row: Tensor) -> dict[str, Tensor]:
    total = float(row[0]) * vectors[0] + float(row[1]) * vectors[1]
    return total.applied(encoder.params)


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("linearised", [False, True])
def test_the_grid_is_what_one_network_after_another_gives(name: str, normalised: bool, linearised: bool) -> None:
    encoder, vectors, samples = edited(name)
    x = samples.splits["test"][0]
    head = head_for(encoder(x).shape[1], normalised)
    found = edited_outputs(encoder, head, vectors, GRID, samples, linearised=linearised, reading="logits", run=CPU64)
    network = linearize(encoder) if linearised else encoder
    direct = torch.stack([head(network(x, at(encoder, vectors, row))) for row in GRID])
    np.testing.assert_allclose(found, direct, rtol=0, atol=1e-9 * float(direct.abs().max()))
    assert found.shape == (5, 9, 4)


def test_readings_are_of_the_same_logits() -> None:
    encoder, vectors, samples = edited("perceptron")
    ask = functools.partial(edited_outputs, encoder, head_for(3), vectors, GRID, samples, run=CPU64)
    logits = ask(reading="logits")
    assert torch.equal(ask().long(), logits.argmax(-1))
    np.testing.assert_allclose(ask(reading="probabilities"), logits.softmax(-1))


def test_a_network_that_is_linear_in_its_weights_is_its_linearisation() -> None:
    encoder = network_of(functools.partial(nn.Linear, 4, 3), readout=None)
    ends = [{name: normal(*tensor.shape, seed=seed) for name, tensor in encoder.params.items()} for seed in (1, 2)]
    vectors = [TaskVector.between(encoder.params, end) for end in ends]
    samples = Arrays({"test": (normal(9, 4), torch.zeros(9))}, torch.float64)
    one, two = (
        edited_outputs(encoder, head_for(3, True), vectors, GRID, samples, linearised=way, reading="logits", run=CPU64)
        for way in (False, True)
    )
    np.testing.assert_allclose(one, two, atol=1e-12)


class Counted(nn.Module):
    """Counts its forward passes, outside of what is copied with it."""

    calls: list[int] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        Counted.calls.append(len(x))
        return torch.tanh(self.linear(x))


def test_a_linearised_grid_takes_one_pass_for_each_vector() -> None:
    encoder = network_of(Counted, readout=None)
    vectors = [TaskVector.between(encoder.params, {n: t + 0.1 for n, t in encoder.params.items()}) for _ in range(2)]
    samples = Arrays({"test": (normal(9, 4), torch.zeros(9))}, torch.float64)
    for linearised, passes in ((True, 2), (False, 4)):  # of five rows, two are the same
        Counted.calls.clear()
        edited_outputs(encoder, head_for(3), vectors, GRID, samples, linearised=linearised, run=CPU64)
        assert Counted.calls == [9] * passes


def test_small_vectors_lose_nothing_to_large_weights() -> None:
    # In float32, (θ₀ + τ) − θ₀ would keep two digits of this τ.
    encoder = Network.of(nn.Linear(1, 1, bias=False)).with_params({"weight": torch.full((1, 1), 1000.0)})
    vector = TaskVector(
        {"weight": torch.full((1, 1), 1.2345e-3)}, TaskVector.between(encoder.params, encoder.params).base
    )
    samples = Arrays({"test": (torch.zeros(1, 1) + 1, torch.zeros(1))})
    head = Head(torch.ones(1, 1), torch.tensor([-1000.0]))
    grid = torch.tensor([[0.0], [1000.0]])
    found = edited_outputs(encoder, head, [vector], grid, samples, linearised=True, reading="logits", run=CPU)
    assert float(found[1, 0, 0] - found[0, 0, 0]) == pytest.approx(1.2345, rel=1e-4)


def test_statistics_and_weights_of_the_encoder_are_left_alone() -> None:
    encoder, vectors, samples = edited("batchnorm")
    state = {name: tensor.clone() for name, tensor in {**encoder.params, **encoder.buffers}.items()}
    before = global_states()
    for linearised in (False, True):
        edited_outputs(encoder, head_for(2), vectors, GRID, samples, linearised=linearised, run=CPU64)
    assert all(torch.equal(tensor, state[name]) for name, tensor in {**encoder.params, **encoder.buffers}.items())
    assert global_states() == before


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_lower_precisions_stay_close(precision: str) -> None:
    encoder, vectors, samples = edited("batchnorm")
    ask = functools.partial(edited_outputs, encoder, head_for(2), vectors, GRID, samples, reading="logits")
    for linearised in (False, True):
        exact = ask(linearised=linearised, run=CPU64)
        found = ask(linearised=linearised, run=Run(device="cpu", precision=precision))
        assert (found - exact).abs().max() < (1e-4 if precision == "float32" else 0.1) * exact.abs().max()


def test_what_was_computed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = dataclasses.replace(CPU64, folder=tmp_path)
    encoder, vectors, samples = edited("perceptron")
    ask = functools.partial(edited_outputs, encoder, head_for(3), vectors, run=run)
    found = ask(GRID, samples)
    assert torch.equal(found, edited_outputs(encoder, head_for(3), vectors, GRID, samples, run=CPU64))

    def computed(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(task_inference._Edited, "outputs", computed)
    assert torch.equal(ask(GRID, samples), found)
    moved = dataclasses.replace(samples, splits={"test": (samples.splits["test"][0] + 1, samples.splits["test"][1])})
    for change in (
        lambda: ask(GRID + 1, samples),
        lambda: ask(GRID, moved),
        lambda: ask(GRID, samples, linearised=True),
        lambda: ask(GRID, samples, reading="logits"),
        lambda: edited_outputs(encoder, head_for(3, True), vectors, GRID, samples, run=run),
        lambda: edited_outputs(encoder, head_for(3), vectors[::-1], GRID, samples, run=run),
    ):
        with pytest.raises(AssertionError, match="computed again"):
            change()


def test_bytes_are_scaled_as_tasks_serve_them() -> None:
    encoder, vectors, _ = edited("batchnorm")
    x = (255 * torch.rand(9, 1, 6, 6, generator=torch.Generator().manual_seed(0))).to(torch.uint8)
    ask = functools.partial(edited_outputs, encoder, head_for(2), vectors, GRID, reading="logits", run=CPU64)
    images, numbers = Arrays({"test": (x, torch.zeros(9))}), Arrays({"test": (x.double() / 255, torch.zeros(9))})
    assert torch.equal(ask(images), ask(numbers))


def test_samples_are_drawn_once_and_by_their_seed() -> None:
    task = Arrays(
        {"test": (torch.arange(50.0)[:, None], torch.arange(50)), "train": (torch.zeros(2, 1), torch.zeros(2))}
    )
    some = sampled(task, "test", 20, seed=0).splits["test"]
    assert len(set(some[1].tolist())) == 20
    assert torch.equal(some[0][:, 0].long(), some[1])
    assert torch.equal(some[1], sampled(task, "test", 20, seed=0).splits["test"][1])
    assert not torch.equal(some[1], sampled(task, "test", 20, seed=1).splits["test"][1])
    assert sampled(task, "test", None, seed=0).sizes == sampled(task, "test", 99, seed=0).sizes == {"test": 50}


def test_methods_follow_from_the_vectors() -> None:
    both = {"non-linear": {}, "linearised": {}}
    assert methods_of(both) == ("non-linear", "post-hoc", "linearised")
    assert methods_of(both, ("linearised",)) == ("linearised",)
    assert methods_of({"linearised": {}}) == ("linearised",)
    with pytest.raises(
        ValueError, match="methods must be among 'linearised' for vectors tuned linearised, got 'post-hoc'"
    ):
        methods_of({"linearised": {}}, ("post-hoc",))
    with pytest.raises(ValueError, match="got neither"):
        methods_of({})


def test_what_does_not_fit_is_told_in_one_sentence() -> None:
    encoder, vectors, samples = edited("perceptron")
    head = head_for(3)
    other = encoder.with_params({name: tensor + 1 for name, tensor in encoder.params.items()})
    with pytest.raises(ValueError, match="must start from the weights of the encoder"):
        edited_outputs(other, head, vectors, GRID, samples, run=CPU64)
    with pytest.raises(ValueError, match="must fit the encoder, but the task vector does not: 4 missing"):
        edited_outputs(edited("batchnorm")[0], head, vectors, GRID, samples, run=CPU64)
    with pytest.raises(ValueError, match="one column for each of 1 task vectors"):
        edited_outputs(encoder, head, vectors[:1], GRID, samples, run=CPU64)
    with pytest.raises(ValueError, match="reading must be one of"):
        edited_outputs(encoder, head, vectors, GRID, samples, reading="words", run=CPU64)
    two = dataclasses.replace(samples, splits={**samples.splits, "train": samples.splits["test"]})
    with pytest.raises(ValueError, match="samples must have one split, got test, train"):
        edited_outputs(encoder, head, vectors, GRID, two, run=CPU64)
    with pytest.raises(ValueError, match="points must be at least 1"):
        sampled(samples, "test", 0, seed=0)
    with pytest.raises(ValueError, match="split must be one of 'test', got 'x'"):
        sampled(samples, "x", 1, seed=0)


@pytest.mark.parametrize("name", ["task_addition", "task_negation", "disentanglement"])
def test_measurements_of_edits_refuse_a_random_encoder(name: str) -> None:
    class Noisy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1e-4 * torch.randn(len(x), 2, dtype=x.dtype)

    encoder = network_of(lambda: Noisy(4, 2), readout=None)
    end = {key: tensor + 1 for key, tensor in encoder.params.items()}
    samples = (normal(20, 4), torch.zeros(20, dtype=torch.int64))
    tasks = {each: Arrays(dict.fromkeys(("validation", "test"), samples), torch.float64) for each in "ab"}
    vectors = {"non-linear": dict.fromkeys(tasks, TaskVector.between(encoder.params, end))}
    heads = dict.fromkeys(tasks, Head(torch.eye(2), torch.zeros(2)))
    more = {"control": "b"} if name == "task_negation" else {}
    with pytest.raises(ValueError, match="The encoder must give the same outputs for the same samples"):
        find(name)(encoder, heads, vectors, tasks, run=CPU64, **more)
