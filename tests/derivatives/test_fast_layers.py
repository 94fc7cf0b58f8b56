"""Rewritten layers: convolutions as products and pooling by slices give the numbers of torch's own layers.

For products that holds alone and stacked, with derivatives, and without a warning.
"""

import warnings

import pytest
import torch
import torch.nn.functional as F
from networks_under_test import CPU64, normal, relu_convnet
from torch import nn
from torch.func import grad, vmap

from biascope.derivatives.fast_layers import ConvolutionAsProduct, PoolingBySlices
from biascope.derivatives.gradients import input_difference, input_gradient
from biascope.families.family import Family

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = {
    "plain": ({}, (4, 3, 3, 3)),
    "stride": ({"stride": 2}, (4, 3, 3, 3)),
    "padding": ({"padding": 1}, (4, 3, 3, 3)),
    "dilation": ({"dilation": 2, "padding": 2}, (4, 3, 3, 3)),
    "of each axis": ({"stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)}, (4, 3, 2, 3)),
    "lists of one": ({"stride": [2], "padding": [1]}, (4, 3, 3, 3)),
    "one pixel": ({}, (4, 3, 1, 1)),
    "one pixel with stride": ({"stride": (2, 3)}, (4, 3, 1, 1)),
    "one pixel with padding": ({"padding": 1, "stride": 2}, (4, 3, 1, 1)),
    "the whole image": ({}, (4, 3, 7, 8)),
    "a row": ({"padding": (0, 1)}, (4, 3, 1, 3)),
}
of_every_kind = pytest.mark.parametrize(("settings", "kernel"), SETTINGS.values(), ids=SETTINGS)


@pytest.fixture
def products(monkeypatch) -> list[int]:
    """Counts the convolutions that became products."""
    counted: list[int] = []
    original = ConvolutionAsProduct._conv2d

    def counting(self, func, *args, **kwargs):
        calls: list[int] = []
        result = original(self, lambda *given: calls.append(1) or func(*given), *args, **kwargs)
        counted.append(0 if calls else 1)
        return result

    monkeypatch.setattr(ConvolutionAsProduct, "_conv2d", counting)
    return counted


@of_every_kind
@pytest.mark.parametrize("bias", [None, normal(4, seed=2)], ids=["no bias", "bias"])
def test_a_product_is_the_convolution(settings, kernel, bias, products):
    x, weight = normal(2, 3, 7, 8), normal(*kernel, seed=1)
    wanted = F.conv2d(x, weight, bias, **settings)
    with ConvolutionAsProduct():
        found = F.conv2d(x, weight, bias, **settings)
        by_name = F.conv2d(input=x, weight=weight, bias=bias, **settings)
    assert found.shape == wanted.shape
    assert torch.allclose(found, wanted, rtol=0, atol=1e-12)
    assert torch.equal(found, by_name)
    assert products == [1, 1]


@of_every_kind
def test_a_stack_of_products_is_a_loop_of_convolutions_with_its_derivatives(settings, kernel):
    x, weights = normal(2, 3, 7, 8), normal(5, *kernel, seed=1)

    def loss(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(F.conv2d(x, weight, **settings)).square().sum()

    loops = [torch.stack([grad(loss, argnums=which)(weight, x) for weight in weights]) for which in (0, 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ConvolutionAsProduct():
            stacks = vmap(grad(loss, argnums=(0, 1)), in_dims=(0, None))(weights, x)
    for stack, loop in zip(stacks, loops, strict=True):
        assert torch.allclose(stack, loop, rtol=0, atol=1e-11)


def left_alone():
    return [
        pytest.param((2, 4, 7, 7), (4, 1, 3, 3), {"groups": 4}, id="groups"),
        pytest.param((2, 4, 7, 7), (6, 2, 3, 3), {"groups": 2, "padding": 1}, id="two groups"),
        pytest.param((2, 3, 7, 7), (4, 3, 3, 3), {"padding": "same"}, id="same"),
        pytest.param((2, 3, 7, 7), (4, 3, 3, 3), {"padding": "valid"}, id="valid"),
        pytest.param((3, 7, 7), (4, 3, 3, 3), {"padding": 1}, id="one image without a batch"),
    ]


@pytest.mark.parametrize(("shape", "kernel", "settings"), left_alone())
def test_what_is_not_plain_is_left_alone(shape, kernel, settings, products):
    x, weight = normal(*shape), normal(*kernel, seed=1)
    with ConvolutionAsProduct():
        found = F.conv2d(x, weight, **settings)
    assert torch.equal(found, F.conv2d(x, weight, **settings))
    assert products == [0]


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect"])
def test_layers_and_their_padding(mode, products):
    layer = nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode).double()
    x = normal(2, 2, 5, 5)
    with ConvolutionAsProduct():
        found = layer(x)
    assert torch.allclose(found, layer(x), rtol=0, atol=1e-12)
    assert products == [1]


def test_other_operators_pass_and_the_mode_ends():
    x = normal(2, 3)
    with ConvolutionAsProduct():
        assert torch.equal(F.linear(x, x), x @ x.T)
        assert F.conv1d(x[None], normal(4, 2, 3)).shape == (1, 4, 1)
    assert torch.overrides._get_current_function_mode_stack() == []


def test_a_kernel_that_does_not_fit_is_torch_s_error():
    with pytest.raises(RuntimeError), ConvolutionAsProduct():
        F.conv2d(normal(1, 3, 2, 2), normal(4, 3, 3, 3))


@pytest.mark.parametrize("paired", [False, True])
def test_gradients_of_a_stack_of_networks(paired, products):
    stack = Family.initialised(relu_convnet).draw(4, seed=0, run=CPU64).read("first")
    x = normal(4, 2, 1, 8, 8) if paired else normal(2, 1, 8, 8)
    with ConvolutionAsProduct():
        found = input_gradient(stack, x, paired=paired)
    loop = [input_gradient(stack.member(k), x[k] if paired else x) for k in range(4)]
    assert torch.allclose(found, torch.stack(loop), rtol=0, atol=1e-12)
    assert products == [1, 1]


# ---- pooling -------------------------------------------------------------------------------------------------------

X = normal(2, 3, 8, 8)
WITH_GAPS = normal(2, 3, 9, 8)
WITH_GAPS[0, 0, 0, 0], WITH_GAPS[0, 1, 3, 3], WITH_GAPS[1, 2, 4, 4] = float("nan"), float("inf"), -float("inf")


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel_size": 2},
        {"kernel_size": 3},
        {"kernel_size": 1},
        {"kernel_size": (2, 3)},
        {"kernel_size": (4, 1), "stride": (4, 1)},
        {"kernel_size": 2, "stride": 2},
        {"kernel_size": [2], "stride": [2]},
        {"kernel_size": 5},
        {"kernel_size": 3, "stride": 2},
        {"kernel_size": 2, "stride": 1},
        {"kernel_size": 2, "stride": 3},
        {"kernel_size": 2, "padding": 1},
        {"kernel_size": 3, "padding": (1, 0)},
        {"kernel_size": 2, "dilation": 2},
        {"kernel_size": 2, "ceil_mode": True},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "x", [WITH_GAPS, WITH_GAPS[0], WITH_GAPS.float(), WITH_GAPS.to(memory_format=torch.channels_last)]
)
def test_pooling_by_slices_is_pooling_bit_for_bit(settings, x):
    wanted = F.max_pool2d(x, **settings)
    with PoolingBySlices():
        found = F.max_pool2d(x, **settings)
        by_name = F.max_pool2d(input=x, **settings)
    for outputs in (found, by_name):
        assert outputs.shape == wanted.shape
        assert torch.allclose(outputs, wanted, rtol=0, atol=0, equal_nan=True)


def test_pooling_layers_and_their_indices():
    with PoolingBySlices():
        assert torch.equal(nn.MaxPool2d(2)(X), F.max_pool2d(X, 2))
        values, indices = nn.MaxPool2d(2, return_indices=True)(X)
    wanted = F.max_pool2d(X, 2, return_indices=True)
    assert torch.equal(values, wanted[0])
    assert torch.equal(indices, wanted[1])


@pytest.mark.parametrize("kernel", [3, (1, 3), (3, 1)])
def test_a_window_larger_than_the_image_is_torch_s_error(kernel):
    with pytest.raises(RuntimeError):
        F.max_pool2d(normal(1, 1, 2, 2), kernel)
    with pytest.raises(RuntimeError), PoolingBySlices():
        F.max_pool2d(normal(1, 1, 2, 2), kernel)


def test_pooling_by_slices_of_a_stack():
    stack = Family.initialised(relu_convnet).draw(3, seed=0, run=CPU64).read("first")
    x = normal(2, 1, 8, 8)
    wanted = stack(x)
    with PoolingBySlices():
        assert torch.allclose(stack(x), wanted, rtol=0, atol=1e-14)
    assert input_difference(stack, x).shape == (3, 2, 64)
