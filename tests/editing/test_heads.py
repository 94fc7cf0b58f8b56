import functools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks_under_test import CPU, CPU64, batchnorm_convnet, global_states, network_of, normal
from scipy.optimize import brentq, minimize
from torch import Tensor, nn

from biascope.derivatives.linearize import linearize
from biascope.editing.heads import Head, features_of, fitted_head, headed, in_passes, linear_probe, unit_length
from biascope.families.network import Network
from biascope.runs.run import Run
from biascope.tasks.task import Arrays


def clusters(count: int, seed: int, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Three overlapping classes in five dimensions."""
    labels = torch.arange(count) % 3
    centres = normal(3, 5, seed=99)
    return centres[labels] + spread * normal(count, 5, seed=seed), labels


def test_one_symmetric_feature_has_its_closed_form() -> None:
    # z = ±1, W = (−w, w), b = 0: the derivative of log(1 + e^(−2w)) + λ w² is zero where λ w = 1/(1 + e^(2w)).
    z, y = torch.tensor([[-1.0], [1.0], [-1.0], [1.0]], dtype=torch.float64), torch.tensor([0, 1, 0, 1])
    for penalty in (1.0, 0.1, 0.001):
        head = linear_probe(z, y, z, y, penalties=(penalty,))
        w = brentq(lambda w: penalty * w - 1 / (1 + math.exp(2 * w)), 0, 100)  # noqa: B023
        np.testing.assert_allclose(head.weight.ravel(), [-w, w], rtol=1e-5)
        np.testing.assert_allclose(head.bias, 0, atol=1e-6)
        assert head.penalty == penalty


def test_it_is_the_minimum_that_another_solver_finds() -> None:
    z, y = clusters(60, 0)
    unit = (z - z.mean(0)).square().mean().sqrt()
    standard = ((z - z.mean(0)) / unit).numpy()

    def loss(flat: np.ndarray) -> float:
        weight, bias = flat[:15].reshape(3, 5), flat[15:]
        logits = torch.from_numpy(standard @ weight.T + bias)
        return float(F.cross_entropy(logits, y)) + 0.05 * float((weight**2).sum())

    found = minimize(loss, np.zeros(18), method="BFGS", options={"gtol": 1e-8}).x
    head = linear_probe(z, y, z, y, penalties=(0.1,))
    expected = standard @ found[:15].reshape(3, 5).T + found[15:]
    np.testing.assert_allclose(
        head(z).log_softmax(1), torch.from_numpy(expected).log_softmax(1), atol=2e-5
    )  # up to a constant that softmax does not see
    assert head.gradient < 1e-6


def test_the_penalty_is_chosen_on_validation_samples() -> None:
    z, y = clusters(12, 1, spread=3.0)  # few and noisy: a strong penalty serves others best
    others, labels = clusters(600, 2, spread=3.0)
    chosen = linear_probe(z, y, others, labels)
    losses = {
        penalty: float(F.cross_entropy(linear_probe(z, y, others, labels, penalties=(penalty,))(others), labels))
        for penalty in (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6)
    }
    assert chosen.penalty == min(losses, key=lambda penalty: losses[penalty])
    assert chosen.penalty > 1e-3
    assert linear_probe(z, y, z, y).penalty == 1e-6  # judged on what it was fitted to, none is too weak
    assert chosen.accuracy == float((chosen(others).argmax(1) == labels).double().mean())


def test_the_fit_repeats_itself_and_leaves_global_states_alone() -> None:
    z, y = clusters(40, 0)
    before = global_states()
    one, two = (linear_probe(z, y, z, y) for _ in range(2))
    assert torch.equal(one.weight, two.weight)
    assert global_states() == before
    assert one.identity == two.identity != one.first(2).identity


def test_scale_and_shift_of_features_change_nothing() -> None:
    z, y = clusters(40, 0)
    plain, moved = linear_probe(z, y, z, y), linear_probe(1000 * z + 7, y, 1000 * z + 7, y)
    assert plain.penalty == moved.penalty
    np.testing.assert_allclose(plain(z), moved(1000 * z + 7), atol=1e-4)


def test_normalised_features_have_no_length() -> None:
    z, y = clusters(40, 0)
    head = linear_probe(z, y, z, y, normalise=True)
    np.testing.assert_allclose(head(z), head(17 * z), rtol=1e-12)
    assert head(z).argmax(1).eq(y).double().mean() > 0.7


def test_a_head_of_float32_features_is_float32() -> None:
    z, y = clusters(40, 0)
    small = linear_probe(z.float(), y, z.float(), y)
    assert small.weight.dtype == torch.float32
    np.testing.assert_allclose(small.weight, linear_probe(z, y, z, y).weight, atol=1e-4)


def encoder() -> Network:
    return network_of(batchnorm_convnet, readout=None)


HEAD = Head(normal(4, 2, seed=5), normal(4, seed=6))


@pytest.mark.parametrize("scale", [2.0**-100, 2.0**73])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalised_features_of_any_scale_have_unit_length(scale: float, dtype: torch.dtype) -> None:
    z = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    head = Head(HEAD.weight[:, :1].repeat(1, 4), HEAD.bias, normalised=True)
    assert torch.equal(head(scale * z), head(z))
    torch.testing.assert_close(unit_length(scale * z).norm(dim=1), torch.ones(6, dtype=dtype))
    assert torch.equal(unit_length(torch.zeros(1, 4)), torch.zeros(1, 4))


@pytest.mark.parametrize("normalised", [False, True])
def test_a_headed_network_is_head_after_encoder(normalised: bool) -> None:
    network, x = encoder(), normal(5, 1, 6, 6)
    head = Head(HEAD.weight, HEAD.bias, normalised)
    z = network(x)
    both = headed(network, head)
    expected = (z / z.norm(dim=1, keepdim=True) if normalised else z) @ HEAD.weight.T + HEAD.bias
    np.testing.assert_allclose(both(x), expected, rtol=1e-10)
    assert list(both.params) == [f"encoder.{name}" for name in network.params]
    assert {"head_weight", "head_bias"} <= both.buffers.keys()


def test_the_head_comes_after_the_linearisation() -> None:
    network, x = encoder(), normal(5, 1, 6, 6)
    moved = {name: tensor + 0.3 * normal(*tensor.shape, seed=3) for name, tensor in network.params.items()}
    head = Head(HEAD.weight, HEAD.bias, True)
    both = headed(linearize(network).with_params(moved), head)
    np.testing.assert_allclose(both(x), head(linearize(network)(x, moved)), rtol=1e-10)
    whole = linearize(headed(network, head))(x, {f"encoder.{name}": tensor for name, tensor in moved.items()})
    assert (whole - both(x)).abs().max() > 1e-3  # and not the other way round


def test_a_headed_module_never_leaves_evaluation_mode() -> None:
    module = headed(encoder(), HEAD).as_module().train()
    assert not any(layer.training for layer in module.modules())
    x = normal(8, 1, 6, 6)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    assert torch.equal(module(x), module(x))  # no dropout
    assert all(torch.equal(buffer, before[name]) for name, buffer in module.named_buffers())


def test_features_come_in_passes_and_bytes_are_scaled() -> None:
    network = encoder()
    x = (255 * torch.rand(300, 1, 6, 6, generator=torch.Generator().manual_seed(0))).to(torch.uint8)
    task = Arrays({"train": (x, torch.zeros(300, dtype=torch.long))})
    np.testing.assert_allclose(features_of(network, task, "train", run=CPU64), network(x.double() / 255), rtol=1e-9)
    half = features_of(network, task, "train", run=Run(device="cpu", precision="bfloat16"))
    assert half.dtype == torch.float32
    np.testing.assert_allclose(half, network(x.double() / 255), atol=0.05)


def test_a_fitted_head_is_the_probe_of_both_splits() -> None:
    network = network_of(functools.partial(nn.Linear, 5, 4), readout=None)
    parts = {"train": clusters(60, 0), "validation": clusters(30, 1)}
    found = fitted_head(network, Arrays(parts, torch.float64), run=CPU64)
    expected = linear_probe(*(part for z, y in parts.values() for part in (network(z), y)), tolerance=1e-5)
    np.testing.assert_allclose(found.weight, expected.weight, rtol=1e-9)
    with pytest.raises(ValueError, match="lacks 'validation'"):
        fitted_head(network, Arrays({"train": clusters(9, 0)}), run=CPU)


def test_passes_become_smaller_where_memory_ends() -> None:
    asked = []

    def work(span: slice) -> Tensor:
        asked.append(span.stop - span.start)
        if span.stop - span.start > 100:
            raise torch.OutOfMemoryError
        return torch.arange(span.start, span.stop)

    found = torch.cat(list(in_passes(work, 300, (4,), CPU)))
    assert torch.equal(found, torch.arange(300))
    assert asked == [256, 128, 64, 64, 64, 64, 44]

    def never(span: slice) -> Tensor:
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        list(in_passes(never, 3, (4,), CPU))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": torch.zeros(3)}, "one label each, got"),
        ({"features": torch.zeros(4, 2, 2)}, "must be \\(samples, features\\)"),
        ({"features": torch.full((4, 2), math.nan)}, "must be finite"),
        ({"labels": torch.tensor([0.0, 1.0, 0.0, 1.0])}, "classes from 0"),
        ({"labels": torch.tensor([0, 1, -1, 1])}, "classes from 0"),
        ({"penalties": (0.0,)}, "penalties must be positive"),
    ],
)
def test_wrong_samples_are_told_in_one_sentence(change, words) -> None:
    z, y = normal(4, 2), torch.tensor([0, 1, 0, 1])
    penalties = change.pop("penalties", (1.0,))
    with pytest.raises(ValueError, match=words):
        linear_probe(change.get("features", z), change.get("labels", y), z, y, penalties=penalties)


def test_wrong_encoders_are_told_in_one_sentence() -> None:
    network = encoder()
    with pytest.raises(ValueError, match="without a readout, got one with the readout 'first'"):
        headed(network.read("first"), HEAD)
    with pytest.raises(ValueError, match="one row of features per input"):
        headed(network_of(functools.partial(nn.Conv2d, 1, 2, 3), readout=None), HEAD)(normal(2, 1, 6, 6))
