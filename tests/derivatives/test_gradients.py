"""Derivatives of networks: exact ones against differences, stacks against loops, and differences against their formula."""

import itertools
import math

import pytest
import torch
from networks_under_test import (
    CPU64,
    SHAPES,
    TwoInputs,
    batchnorm_convnet,
    every_network,
    network_of,
    normal,
    relu_convnet,
    smooth_mlp,
)
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from biascope.derivatives.gradients import (
    forward_flops,
    input_difference,
    input_gradient,
    weight_jacobian,
    weight_jvp,
    weight_vjp,
)
from biascope.families.family import Family
from biascope.families.network import Network

pytestmark = pytest.mark.usefixtures("one_thread")


def explicit_difference(network: Network, x: Tensor, step: float) -> Tensor:
    """The definition, one forward pass per evaluation."""
    rows = []
    for one in x:
        row = []
        for index in range(one.numel()):
            impulse = torch.zeros_like(one)
            impulse.view(-1)[index] = step
            row.append(float(network((one + impulse)[None])) - float(network((one - impulse)[None])))
        rows.append(torch.tensor(row, dtype=torch.float64) / (2 * step))
    return torch.stack(rows)


# ---- with respect to the input -------------------------------------------------------------------------------------


@every_network
@pytest.mark.parametrize("readout", ["first", "sum", "margin"])
def test_the_gradient_is_the_limit_of_differences(build, readout):
    network, x = network_of(build, readout=readout), normal(3, *SHAPES[build])
    gradient = input_gradient(network, x)
    assert gradient.shape == (3, math.prod(SHAPES[build]))
    assert torch.allclose(gradient, explicit_difference(network, x, 1e-6), atol=1e-8)
    assert float(gradient.abs().max()) > 1e-3


@pytest.mark.parametrize(("build", "batchnorm"), [*((build, "eval") for build in SHAPES), (batchnorm_convnet, "train")])
@pytest.mark.parametrize("paired", [False, True])
def test_a_stack_gives_what_a_loop_gives(build, batchnorm, paired):
    stack = Family.initialised(build, batchnorm=batchnorm).draw(4, seed=0, run=CPU64).read("sum")
    x = normal(*((4, 3) if paired else (3,)), *SHAPES[build])
    gradients = input_gradient(stack, x, paired=paired)
    loop = [input_gradient(stack.member(k), x[k] if paired else x) for k in range(4)]
    assert gradients.shape == (4, 3, math.prod(SHAPES[build]))
    assert torch.allclose(gradients, torch.stack(loop), rtol=0, atol=1e-12)
    assert not torch.allclose(gradients[0], gradients[1], atol=1e-3)
    differences = input_difference(stack, x, step=0.5, paired=paired)
    loop = [input_difference(stack.member(k), x[k] if paired else x, step=0.5) for k in range(4)]
    assert torch.allclose(differences, torch.stack(loop), rtol=0, atol=1e-12)


@pytest.mark.parametrize("build", [smooth_mlp, relu_convnet])
@pytest.mark.parametrize("step", [100.0, 0.3, -2.0])
def test_the_difference_is_its_formula(build, step):
    network, x = network_of(build), normal(2, *SHAPES[build])
    difference = input_difference(network, x, step=step)
    assert torch.allclose(difference, explicit_difference(network, x, step), rtol=0, atol=1e-12)
    assert not torch.allclose(difference, input_gradient(network, x), atol=1e-4)  # a step that is not small tells more


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 127, 128, 10_000])
def test_the_batch_of_a_difference_does_not_matter(batch):
    network, x = network_of(relu_convnet), normal(2, 1, 8, 8)
    assert torch.allclose(
        input_difference(network, x, step=10.0, batch=batch),
        input_difference(network, x, step=10.0),
        rtol=0,
        atol=1e-12,
    )


def test_the_layout_of_images_does_not_matter():
    network, x = network_of(relu_convnet), normal(1, 1, 8, 8)
    laid_out = input_difference(network, x, channels_last=True)
    assert torch.allclose(laid_out, input_difference(network, x), rtol=0, atol=1e-12)


def test_the_error_of_central_differences_falls_with_the_square_of_the_step():
    network, x = network_of(smooth_mlp), normal(2, 6)
    exact = input_gradient(network, x)
    steps = [0.2, 0.1, 0.05, 0.025, 0.0125]
    errors = [float((input_difference(network, x, step=step) - exact).norm()) for step in steps]
    slopes = [math.log(first / second, 2) for first, second in itertools.pairwise(errors)]
    assert slopes[-1] == pytest.approx(2.0, abs=0.02)
    assert all(slope == pytest.approx(2.0, abs=0.3) for slope in slopes)


def test_a_linear_network_is_its_own_difference_at_any_step():
    network = network_of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 2)))
    weight = network.params["1.weight"][0]
    for step in (1e-3, 1.0, 1e6):
        assert torch.allclose(input_difference(network, normal(2, 2, 3), step=step), weight.expand(2, 6), rtol=1e-8)


def test_half_precision_values_are_subtracted_in_single():
    network = network_of(relu_convnet).to(torch.device("cpu"), torch.bfloat16)
    difference = input_difference(network, normal(1, 1, 8, 8).bfloat16(), step=100.0)
    assert difference.dtype is torch.float32


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("by_name", [False, True])
def test_trees_of_inputs_and_integers_held_constant(stacked, by_name):
    values, tokens = normal(3, 5), torch.tensor([1, 6, 0])
    x = {"tokens": tokens, "values": values} if by_name else (values, tokens)
    stack = Family.initialised(TwoInputs).draw(2, seed=0, run=CPU64).read("sum")
    found = input_gradient(stack, x) if stacked else torch.stack([input_gradient(stack.member(k), x) for k in range(2)])
    for index in range(2):
        leaf = values.clone().requires_grad_()
        stack.member(index).as_module().double()(leaf, tokens).sum().backward()
        assert torch.allclose(found[index], leaf.grad, rtol=0, atol=1e-12)


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.einsum("ni,ij,nj->n", left, self.weight, right)[:, None]


def test_several_floating_point_leaves_are_joined_in_order():
    network = network_of(Bilinear)
    left, right = normal(4, 2), normal(4, 3, seed=1)
    weight = network.params["weight"]
    by_hand = torch.cat([right @ weight.T, left @ weight], dim=1)  # f = lᵀ W r
    assert torch.allclose(input_gradient(network, (left, right)), by_hand, atol=1e-12)


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.bias.expand(x.shape[0], 1)


def test_a_constant_network_is_a_sentence():
    expected = r"^The network's output must depend on its input, but it is constant\. Check that forward uses its arg"
    with pytest.raises(ValueError, match=expected):
        input_gradient(network_of(Constant), normal(2, 3))


def test_part_of_the_input_may_be_unused():
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 1)

        def forward(self, used: Tensor, unused: Tensor) -> Tensor:
            return self.linear(used)

    gradient = input_gradient(network_of(First), (normal(3, 2), normal(3, 4)))
    assert gradient.shape == (3, 6)
    assert not gradient[:, 2:].any()
    assert gradient[:, :2].all()


def test_the_gradient_does_not_touch_its_arguments():
    network, x = network_of(smooth_mlp), normal(2, 6)
    before = x.clone()
    input_gradient(network, x)
    input_difference(network, x)
    assert torch.equal(x, before)
    assert not x.requires_grad
    assert x.grad is None


@pytest.mark.parametrize("step", [0.0, math.nan, math.inf])
def test_a_step_of_nothing_is_a_sentence(step):
    with pytest.raises(
        ValueError, match=r"^The step h of the difference must be a number other than 0, got .*\. Pass step=100"
    ):
        input_difference(network_of(smooth_mlp), normal(1, 6), step=step)


def test_differences_of_trees_are_a_sentence():
    with pytest.raises(
        ValueError, match=r"^The difference estimator needs inputs that are one tensor\. Pass estimator="
    ):
        input_difference(network_of(TwoInputs), (normal(2, 5), torch.tensor([0, 1])))


# ---- with respect to the weights -----------------------------------------------------------------------------------


@every_network
def test_jvp_and_vjp_are_adjoint(build):
    network, x = network_of(build, readout="sum"), normal(4, *SHAPES[build])
    direction = {name: normal(*part.shape, seed=k) for k, (name, part) in enumerate(network.params.items())}
    cotangent = normal(4, seed=9)
    outputs, tangent = weight_jvp(network, x, direction)
    gradient = weight_vjp(network, x, cotangent)
    pairing = sum(float((gradient[name] * direction[name]).sum()) for name in direction)
    assert torch.allclose(outputs, network(x), atol=1e-12)
    assert float(tangent @ cotangent) == pytest.approx(pairing, rel=1e-10)
    assert abs(pairing) > 1e-3


@every_network
def test_the_jvp_is_the_limit_of_differences(build):
    network, x = network_of(build), normal(2, *SHAPES[build])
    direction = {name: normal(*part.shape, seed=k) for k, (name, part) in enumerate(network.params.items())}
    step = 1e-6
    plus, minus = (
        network(x, {name: part + sign * step * direction[name] for name, part in network.params.items()})
        for sign in (1, -1)
    )
    assert torch.allclose(weight_jvp(network, x, direction)[1], (plus - minus) / (2 * step), rtol=1e-6, atol=1e-7)


@every_network
def test_the_weight_jacobian_is_that_of_torch(build):
    network, x = network_of(build), normal(3, *SHAPES[build])

    def outputs(params: dict[str, Tensor]) -> Tensor:
        return functional_call(network.module, (params, network.buffers), (x,))[:, 0]

    wanted = torch.cat([part.flatten(1) for part in jacrev(outputs)(network.params).values()], dim=1)
    assert torch.allclose(weight_jacobian(network, x), wanted, rtol=0, atol=1e-12)


def test_operations_of_one_forward_pass_are_counted():
    network = Network.of(nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
    assert forward_flops(network, torch.zeros(1, 2, 3)) == 2 * (6 * 8 + 8 * 3)
    stack = Family.initialised(smooth_mlp).draw(3, seed=0, run=CPU64)
    assert forward_flops(stack, normal(2, 6)) == 2 * 2 * (6 * 8 + 8 * 5 + 5 * 3)


def test_operations_on_inputs_by_name_are_counted():
    network = network_of(TwoInputs, readout=None)
    assert forward_flops(network, {"values": normal(1, 5), "tokens": torch.tensor([0])}) == 2 * (5 * 3 + 3 * 2)


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(6), nn.InstanceNorm2d(6, affine=True)])
def test_a_sample_alone_has_the_gradient_that_it_has_in_a_batch(layer):
    """The gradient that reaches the layer has its channels last, as that of tokens has."""

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.read = nn.Conv2d(1, 6, 3, padding=1), layer, nn.Linear(6, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tokens = self.norm(self.conv(x)).flatten(2).transpose(1, 2)
            return torch.tanh(self.read(tokens)).mean(1)

    torch.manual_seed(0)
    nn.init.normal_(layer.weight)
    network = Network.of(Tokens().double()).read("first")
    x = torch.randn(3, 1, 4, 4, dtype=torch.float64)
    alone = torch.cat([input_gradient(network, one) for one in torch.split(x, 1)])
    assert torch.allclose(alone, input_gradient(network, x), atol=1e-12)
    step = 1e-6 * torch.randn(1, 1, 4, 4, dtype=torch.float64)
    slope = (network(x[:1] + step) - network(x[:1] - step)) / 2
    assert torch.allclose((alone[:1] * step.flatten(1)).sum(), slope, rtol=1e-5)
