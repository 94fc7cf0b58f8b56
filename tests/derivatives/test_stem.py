"""The stem: where a network is split, the impulse way equals plain differences; where that would lie, it is not split."""

import math

import pytest
import torch
from networks_under_test import CPU64, batchnorm_convnet, input_shape, network_of, normal, relu_convnet
from torch import Tensor, nn

from biascope import networks
from biascope.derivatives.gradients import input_difference
from biascope.derivatives.stem import ImpulseDifference, Stem
from biascope.families.family import Family
from biascope.families.network import Network

pytestmark = pytest.mark.usefixtures("one_thread")


def assert_impulses_equal_differences(build, shape, batches=(2, 5, 16, 10_000), steps=(100.0,), members=2) -> None:
    """Split at the template, then measure other members."""
    family, x = Family.initialised(build), normal(1, *shape)
    stem = Stem.split(family.template.to(torch.device("cpu"), torch.float64).read("first"), x)
    assert stem is not None
    stack = family.draw(members, seed=0, run=CPU64).read("first")
    for step in steps:
        wanted = [input_difference(stack.member(index), x, step=step) for index in range(members)]
        for batch in batches:
            difference = ImpulseDifference(stem, x, step, batch)
            for index in range(members):
                found = difference(stack.member(index))
                assert found.shape == (1, math.prod(shape))
                assert torch.allclose(found, wanted[index], rtol=0, atol=1e-11)
                assert found.any()


# ---- where it is split ---------------------------------------------------------------------------------------------


def convolution(*args, **settings):
    return pytest.param(args, settings, id=f"{args} {settings}")


@pytest.mark.parametrize(
    ("args", "settings"),
    [
        convolution(1, 4, 3),
        convolution(1, 4, 3, padding=1),
        convolution(3, 2, 3, stride=2, padding=1),
        convolution(2, 3, 5, stride=3, padding=2, bias=False),
        convolution(1, 3, 3, dilation=2, padding=2),
        convolution(2, 3, (3, 2), stride=(2, 1), padding=(0, 1), dilation=(1, 2)),
        convolution(1, 3, 1),
        convolution(1, 3, 1, stride=2),  # pixels that no tap reaches
        convolution(1, 3, 2, stride=4),
        convolution(1, 5, 3, stride=3),  # patches
        convolution(1, 3, 3, padding="valid"),
        convolution(1, 3, 7, padding=6),  # a kernel larger than the image
    ],
)
def test_convolutional_stems(args, settings):
    shape = (args[0], 6, 5)

    def build() -> nn.Module:
        layer = nn.Conv2d(*args, **settings)
        width = layer(torch.zeros(1, *shape)).numel()
        return nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(width, 3), nn.Tanh(), nn.Linear(3, 2))

    assert_impulses_equal_differences(build, shape, steps=(100.0, -0.3))


def flattened_linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2))


def unbiased_linear_on_vectors() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 5, bias=False), nn.Tanh(), nn.Linear(5, 2))


def in_place_behind_it() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 2))


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Identity(), nn.Sequential(nn.Flatten(), nn.Linear(12, 4)))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.trunk(x.view(x.shape[0], -1).contiguous())
        return self.head(torch.tanh(hidden) + hidden)  # the layer's output may be used as often as it likes


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (flattened_linear, (3, 2, 2)),
        (unbiased_linear_on_vectors, (12,)),
        (lambda: nn.Linear(7, 2), (7,)),
        (lambda: nn.Linear(7, 2, bias=False), (7,)),
        (lambda: nn.Conv2d(1, 2, 3), (1, 4, 4)),
        (in_place_behind_it, (1, 4, 4)),
        (Nested, (3, 4)),
        (batchnorm_convnet, (1, 6, 6)),
        (relu_convnet, (1, 8, 8)),
    ],
)
def test_other_stems(build, shape):
    assert_impulses_equal_differences(build, shape)


PUBLISHED = {
    "coordinate_mlp": {"coordinates": 3, "width": 9},
    "densenet121": {"image_size": 3, "pooling": "none"},
    "lenet": {"image_size": 16, "channels": 2},
    "mlp": {"image_size": 5, "hidden": (9, 7)},
    "resnet18": {"image_size": 3},
    "siren": {"coordinates": 3, "width": 9, "depth": 2},
    "vit": {"image_size": 8, "patch": 4, "depth": 1, "width": 12, "heads": 3, "mlp": 8},
    "logistic_regression": {"image_size": 6},
    "pattern_cnn": {"image_size": 6, "patch": 3, "channels": 2, "k": 3},
    "vgg11": {"image_size": 3, "pooling": "none"},
}


STEMLESS = ("multiplicative_filters",)  # every layer sees the input


@pytest.mark.parametrize("name", sorted({*networks.names()} - {*STEMLESS}))
def test_every_published_network_has_a_stem(name):
    settings = PUBLISHED.get(name, {})
    shape = input_shape(name, settings)
    assert_impulses_equal_differences(lambda: networks.builder(name)(**settings), shape, batches=(200,), members=1)


@pytest.mark.parametrize("name", STEMLESS)
def test_a_published_network_whose_layers_all_see_the_input_has_none(name):
    assert Stem.split(network_of(networks.builder(name)), normal(1, 2)) is None


def test_an_encoded_coordinate_has_none():
    build = networks.builder("coordinate_mlp")
    assert Stem.split(network_of(lambda: build(encoding="gaussian", width=9)), normal(1, 2)) is None


def test_members_keep_their_own_buffers():
    modules = [batchnorm_convnet().double() for _ in range(2)]
    for index, module in enumerate(modules):
        module[1].running_mean.fill_(index - 0.5)
    x = normal(1, 1, 6, 6)
    members = [Network.of(module).read("first") for module in modules]
    difference = ImpulseDifference(Stem.split(members[0], x), x, 3.0, 16)
    for member in members:
        assert torch.allclose(difference(member), input_difference(member, x, step=3.0), rtol=0, atol=1e-11)


def test_half_precision_values_are_subtracted_in_single():
    network = network_of(relu_convnet).to(torch.device("cpu"), torch.bfloat16)
    x = normal(1, 1, 8, 8).bfloat16()
    difference = ImpulseDifference(Stem.split(network, x), x, 100.0, 32)(network)
    exact = input_difference(network_of(relu_convnet), x.double(), step=100.0)
    assert difference.dtype is torch.float32
    assert float((difference - exact).norm() / exact.norm()) < 0.05


def test_one_slice_of_responses_is_held_and_a_failure_leaves_nothing_in_it():
    network, x = network_of(relu_convnet), normal(1, 1, 8, 8)
    difference = ImpulseDifference(Stem.split(network, x), x, 100.0, 24)
    assert difference._buffer.shape == (12, 4, 8, 8)
    wanted, slope = difference(network), difference._slope
    calls = []

    def out_of_memory(rest: Network, base: Tensor, shift: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise torch.OutOfMemoryError
        return slope(rest, base, shift)

    difference._slope = out_of_memory
    with pytest.raises(torch.OutOfMemoryError):
        difference(network)
    difference._slope = slope
    assert torch.equal(difference(network), wanted)


def test_splitting_leaves_network_and_input_alone():
    network, x = network_of(relu_convnet), normal(1, 1, 8, 8)
    before, outputs = x.clone(), network(x)
    Stem.split(network, x)
    assert torch.equal(x, before)
    assert not x.requires_grad
    assert torch.equal(network(x), outputs)
    for layer in network.module.modules():
        assert not layer._forward_hooks
        assert not layer._forward_pre_hooks


# ---- where it is not -----------------------------------------------------------------------------------------------


class Wired(nn.Module):
    """Square layers, so that a wrong wire fits: ``forward`` is given by a function of the module and the input."""

    def __init__(self, wiring, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6) if layer is None else layer
        self.other = nn.Linear(6, 6)
        self.gate = nn.Parameter(torch.zeros(1))
        self.head = nn.Linear(6, 2)
        self.wiring = wiring

    def forward(self, x: Tensor) -> Tensor:
        return self.wiring(self, x)


def clamped_in_place(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.clamp_(-1000, 1000)


def wired(wiring):
    return lambda: Wired(wiring)


VECTORS = {
    "a skip from the input": wired(lambda m, x: m.head(torch.tanh(m.layer(x)) + x)),
    "a skip that is shut at first": wired(lambda m, x: m.head(torch.tanh(m.layer(x)) + m.gate * x)),
    "a small skip": wired(lambda m, x: m.head(torch.tanh(m.layer(x))) + 1e-9 * x.mean(1, keepdim=True)),
    "a detached skip": wired(lambda m, x: m.head(torch.tanh(m.layer(x)) + x.detach())),
    "a gate by the input": wired(lambda m, x: m.head(torch.tanh(m.layer(x)) * x.sigmoid())),
    "a mask by the input": wired(lambda m, x: m.head(torch.tanh(m.layer(x)) * (x > 0))),
    "a switch by the input": wired(lambda m, x: m.head(torch.tanh(m.layer(x))) * (1 + (x.amax(1, keepdim=True) > 0))),
    "two layers side by side": wired(lambda m, x: m.head(torch.tanh(m.layer(x) + m.other(x)))),
    "the other layer first, then both": wired(lambda m, x: m.head(torch.tanh(m.layer(m.other(x).tanh() + x)))),
    "the layer twice": wired(lambda m, x: m.head(m.layer(torch.tanh(m.layer(x))))),
    "the layer's weights again": wired(
        lambda m, x: m.head(nn.functional.linear(torch.tanh(m.layer(x)), m.layer.weight.T))
    ),
    "tanh first": wired(lambda m, x: m.head(m.layer(torch.tanh(x)))),
    "sine first": wired(lambda m, x: m.head(m.layer(torch.sin(x)))),
    "ReLU first": wired(lambda m, x: m.head(m.layer(torch.relu(x)))),
    "absolute value first": wired(lambda m, x: m.head(m.layer(x.abs()))),
    "clamp far out": wired(lambda m, x: m.head(m.layer(x.clamp(-20, 20)))),
    "rounding first": wired(lambda m, x: m.head(m.layer((x * 1e6).round() / 1e6))),
    "normalised first": wired(lambda m, x: m.head(m.layer(x / x.norm(dim=1, keepdim=True)))),
    "shifted first": wired(lambda m, x: m.head(m.layer(x - 0.5))),
    "turned round first": wired(lambda m, x: m.head(m.layer(x.flip(1)))),
    "changed in place first": wired(lambda m, x: m.head(m.layer(x.mul_(0.5)))),
    "clamped in place very far out": wired(lambda m, x: m.head(torch.tanh(m.layer(clamped_in_place(x))))),
    "called by keyword": wired(lambda m, x: m.head(torch.tanh(m.layer(input=x)))),
    "no layer sees it": wired(lambda m, x: x * m.gate),
}
INPUTS = {
    "random": normal(1, 6),
    "positive": normal(1, 6).abs() + 0.1,
    "zero": torch.zeros(1, 6, dtype=torch.float64),
    "constant": torch.ones(1, 6, dtype=torch.float64),
}


@pytest.mark.parametrize("wires", VECTORS)
@pytest.mark.parametrize("x", INPUTS)
def test_a_network_whose_input_goes_elsewhere_is_not_split(wires, x):
    network = network_of(VECTORS[wires])
    assert Stem.split(network, INPUTS[x].clone()) is None
    # Nor with a first layer that changes nothing, so that a wrong wire carries the right numbers at these weights.
    unit = {"layer.weight": torch.eye(6, dtype=torch.float64), "layer.bias": torch.zeros(6, dtype=torch.float64)}
    assert Stem.split(network.with_params({**network.params, **unit}), INPUTS[x].clone()) is None


def test_these_networks_are_split_once_the_wire_is_cut():
    for x in INPUTS.values():
        for wiring in (lambda m, x: m.head(torch.tanh(m.layer(x))), lambda m, x: m.head(m.other(m.layer(x)))):
            assert Stem.split(network_of(wired(wiring)), x) is not None


class OwnConvolution(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 2)


def images(front: nn.Module, rest_of: int = 36) -> nn.Module:
    return nn.Sequential(front, nn.Tanh(), nn.Flatten(), nn.Linear(rest_of, 2))


def with_hook(kind: str) -> nn.Module:
    layer = nn.Conv2d(1, 1, 3, padding=1)
    if kind == "before":
        layer.register_forward_pre_hook(lambda _, given: (2 * given[0],))
    else:
        layer.register_forward_hook(lambda _, __, output: 2 * output)
    return images(layer)


class Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(2, 3)


class Reshaped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(-1, 1, 4, 9)


class Concatenated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(72, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([x, self.conv(x)], dim=1).flatten(1))


class TiedLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 1, 3, padding=1)
        self.second.weight = self.first.weight
        self.head = nn.Linear(36, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(torch.tanh(self.first(x))).flatten(1))


IMAGES = {
    "circular padding": lambda: images(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")),
    "padding by name": lambda: images(nn.Conv2d(1, 1, 3, padding="same")),
    "a transposed convolution": lambda: images(nn.ConvTranspose2d(1, 1, 3, padding=1)),
    "a subclass with a forward of its own": lambda: images(OwnConvolution(1, 1, 3, padding=1)),
    "weight norm": lambda: images(nn.utils.parametrizations.weight_norm(nn.Conv2d(1, 1, 3, padding=1))),
    "a hook before": lambda: with_hook("before"),
    "a hook behind": lambda: with_hook("behind"),
    "BatchNorm first": lambda: images(nn.Sequential(nn.BatchNorm2d(1), nn.Conv2d(1, 1, 3, padding=1))),
    "pooling first": lambda: images(nn.Sequential(nn.AvgPool2d(3, 1, 1), nn.Conv2d(1, 1, 3, padding=1))),
    "an unnoticed transpose": lambda: images(nn.Sequential(Transposed(), nn.Conv2d(1, 1, 3, padding=1))),
    "a transpose that leaves no trace": lambda: images(nn.Sequential(Transposed(), nn.Conv2d(1, 4, 6)), 4),
    "another shape": lambda: images(nn.Sequential(Reshaped(), nn.Conv2d(1, 1, 3, padding=1))),
    "a linear layer on rows": lambda: images(nn.Linear(6, 6)),
    "joined with the input": Concatenated,
    "tied layers": TiedLayers,
    "convolution in one dimension": lambda: images(nn.Sequential(nn.Flatten(1, 2), nn.Conv1d(6, 6, 3, padding=1))),
}


@pytest.mark.parametrize("kind", IMAGES)
@pytest.mark.parametrize("x", [normal(1, 1, 6, 6), torch.ones(1, 1, 6, 6, dtype=torch.float64)], ids=["random", "ones"])
def test_an_image_network_that_the_split_does_not_know_is_not_split(kind, x):
    assert Stem.split(network_of(IMAGES[kind]), x) is None
    assert Stem.split(network_of(lambda: images(nn.Conv2d(1, 1, 3, padding=1))), x) is not None


def test_grouped_convolutions_are_not_split():
    network = network_of(lambda: images(nn.Conv2d(2, 2, 3, padding=1, groups=2), 72))
    assert Stem.split(network, normal(1, 2, 6, 6)) is None


def test_a_network_that_normalises_by_the_batch_is_not_split():
    network = Network.of(batchnorm_convnet().double(), batchnorm="train").read("first")
    assert Stem.split(network, normal(1, 1, 6, 6)) is None


def test_a_tied_weight_would_have_stayed_that_of_the_template():
    # What the split must not do: other members would run with the template's second layer.
    family, x = Family.initialised(TiedLayers), normal(1, 1, 6, 6)
    template = family.template.to(torch.device("cpu"), torch.float64).read("first")
    assert Stem.split(template, x) is None
    assert set(template.params) == {"first.weight", "first.bias", "second.bias", "head.weight", "head.bias"}
