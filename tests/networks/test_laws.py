"""The laws of initial weights: their moments, where they end, and that a stack is drawn by them."""

import functools
import inspect
import math

import pytest
import torch
from scipy.stats import kstest, truncnorm
from torch import nn

from biascope.families.family import Family
from biascope.families.tape import built
from biascope.networks import builder, names
from biascope.networks._laws import lecun_normal_, with_law
from biascope.runs.run import Run

WITH_A_LAW = tuple(name for name in names() if "law" in inspect.signature(builder(name)).parameters)


def flax(name: str, **settings: object) -> functools.partial[nn.Module]:
    return functools.partial(builder(name), law="flax", **settings)


def test_the_networks_of_chapter_4_have_a_law():
    assert {"lenet", "mlp", "resnet18"} <= set(WITH_A_LAW)


def test_lecun_normal_numbers_have_the_truncated_law_of_variance_one_over_fan_in():
    torch.manual_seed(0)
    weight = lecun_normal_(torch.empty(200, 4, 5, 5))  # fan in 100
    assert kstest(10 * weight.flatten().double(), lecun().cdf).pvalue > 1e-4
    numbers = weight.numel()
    fourth = float(lecun().moment(4))
    assert 100 * weight.double().square().mean().item() == pytest.approx(1, abs=5 * math.sqrt((fourth - 1) / numbers))
    # Flax's own constant: the standard deviation of a standard normal number cut off at ±2.
    assert weight.abs().max().item() == pytest.approx(2 / 0.87962566103423978 / 10, rel=1e-2)
    assert weight.abs().max().item() <= 2 / 0.87962566103423978 / 10 * (1 + 1e-5)


def lecun() -> object:
    """Its exact law for a fan in of 1."""
    return truncnorm(-2, 2, scale=1 / truncnorm(-2, 2).std())


@pytest.mark.parametrize("name", WITH_A_LAW)
def test_every_layer_has_variance_one_over_fan_in_and_no_bias(name):
    torch.manual_seed(0)
    for layer in flax(name)().modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            weight = layer.weight.detach().double()
            spread = math.sqrt((float(lecun().moment(4)) - 1) / weight.numel())
            assert weight[0].numel() * weight.square().mean().item() == pytest.approx(1, abs=5 * spread)
            assert layer.bias is None or not layer.bias.any()
        elif isinstance(layer, nn.BatchNorm2d):
            assert bool((layer.weight == 1).all())
            assert not layer.bias.any()


@pytest.mark.parametrize("name", WITH_A_LAW)
def test_pytorch_is_the_default_and_changes_nothing(name):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        plain = builder(name)().state_dict()
        torch.manual_seed(3)
        named = builder(name)(law="pytorch").state_dict()
        torch.manual_seed(3)
        other = flax(name)().state_dict()
    assert all(torch.equal(plain[key], named[key]) for key in plain)
    assert not torch.equal(plain["head.weight"], other["head.weight"])


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mlp", {"hidden": (100, 100)}),
        ("lenet", {"padding": "same", "pooling": "average"}),
        ("resnet18", {"zero_residual": True}),
        ("logistic_regression", {}),
        ("densenet121", {}),
    ],
)
def test_stacks_are_drawn_by_it(name, settings):
    family = Family.initialised(flax(name, **settings))
    assert family.drawing == "replayed in stacks from recorded initialisers"  # which it proved bit for bit
    stack = family.draw(2, seed=0, run=Run(device="cpu"))
    alone = built(flax(name, **settings), 0, 0, 1)[0]
    for key, weights in stack.params.items():
        if weights.dim() > 2:
            assert not torch.equal(weights[0], weights[1])
            spread = weights[0].numel() ** -0.5
            assert (weights[0].std() / alone[key].std()).item() == pytest.approx(1, abs=6 * spread)
        elif key.endswith("bias"):
            assert not weights.any()


def test_an_unknown_law_names_the_laws():
    with pytest.raises(ValueError, match="law must be one of 'pytorch', 'flax', got 'jax'"):
        builder("lenet")(law="jax")


def test_layers_without_bias_are_filled_too():
    torch.manual_seed(0)
    layer = with_law(nn.Conv1d(64, 64, 5, bias=False), "flax")
    assert 320 * layer.weight.var().item() == pytest.approx(1, abs=0.05)
