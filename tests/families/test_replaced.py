"""Components of a forward pass, and what stands in their place."""

import math
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from biascope.families.network import Network
from biascope.families.replaced import Component, constants_of, neutral, replaced, structure_at
from biascope.networks import builder


def found(module: nn.Module, *shape: int) -> tuple[Network, Tensor, tuple[Component, ...]]:
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1))
    network = Network.of(module)
    return network, x, structure_at(network, x).components


def one(components: tuple[Component, ...], kind: str) -> Component:
    (each,) = [each for each in components if each.kind == kind]
    return each


def test_every_kind_of_a_resnet_is_seen() -> None:
    _, _, components = found(builder("resnet18")(), 1, 16, 16)
    counts = Counter(each.kind for each in components)
    assert counts == {
        "padding": 17,
        "kernel": 17,
        "activation": 17,
        "skip connection": 8,
        "stride": 6,
        "pooling": 1,
        "last layer": 1,
    }


def test_every_kind_of_a_vit_is_seen() -> None:
    _, _, components = found(builder("vit")(image_size=16, depth=2, width=24, mlp=24, heads=2), 1, 16, 16)
    counts = Counter(each.kind for each in components)
    expected = {"normalisation": 5, "attention": 2, "skip connection": 4, "activation": 2, "positions": 1}
    assert counts == expected | {"token that is read": 1, "last layer": 1, "kernel": 1}


def test_functional_calls_and_shared_layers_are_components_too() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.relu = nn.Linear(8, 8), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return F.max_pool1d(torch.tanh(self.relu(self.inner(self.relu(self.inner(x))))), 2)

    _, _, components = found(Plain(), 2, 8)
    assert [(each.label, each.where) for each in components] == [
        ("ReLU", "relu"),
        ("last layer", "inner"),
        ("ReLU", "relu"),
        ("tanh", ""),
        ("max pooling", ""),
    ]


def changed(module: nn.Module, kind: str, alternative: str, *shape: int) -> tuple[Tensor, Tensor]:
    """Outputs of a network with one component replaced, without a scale, and the inputs."""
    network, x, components = found(module, *shape)
    with replaced(network, {one(components, kind): alternative}, {}):
        return network(x), x


@pytest.mark.parametrize(
    ("layer", "alternative", "expected"),
    [
        (nn.MaxPool2d(2), "average pooling", lambda x: F.avg_pool2d(x, 2)),
        (nn.MaxPool2d(2), "subsampling", lambda x: x[..., ::2, ::2]),
        (nn.MaxPool2d(3, 2, 1), "subsampling", lambda x: x[..., ::2, ::2]),
        (nn.MaxPool2d(3, 2, ceil_mode=True), "subsampling", lambda x: x[..., [1, 3, 5, 7], :][..., [1, 3, 5, 7]]),
        (nn.AvgPool2d(3, 1, 1), "max pooling", lambda x: F.max_pool2d(x, 3, 1, 1)),
        (nn.AdaptiveAvgPool2d(1), "max pooling", lambda x: x.amax((2, 3), keepdim=True)),
        (nn.AdaptiveAvgPool2d(1), "subsampling", lambda x: x[..., 3:4, 3:4]),
    ],
)
def test_pooling(layer: nn.Module, alternative: str, expected: object) -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), layer)
    output, x = changed(module, "pooling", alternative, 1, 8, 8)
    assert callable(expected)
    torch.testing.assert_close(output, expected(module[0](x)))


def test_padding_and_stride() -> None:
    layer = nn.Conv2d(1, 2, 3, padding=1, stride=2)
    circular = nn.Conv2d(1, 2, 3, padding=1, stride=2, padding_mode="circular")
    circular.load_state_dict(layer.state_dict())
    output, x = changed(layer, "padding", "circular padding", 1, 8, 8)
    torch.testing.assert_close(output, circular(x))
    output, x = changed(layer, "stride", "stride 1 and average pooling", 1, 8, 8)
    dense = F.conv2d(x, layer.weight, layer.bias, padding=1)
    torch.testing.assert_close(output, F.avg_pool2d(dense, 2))


def test_two_kinds_at_one_call() -> None:
    layer = nn.Conv2d(1, 2, 3, padding=1, stride=2)
    network, x, components = found(layer, 1, 8, 8)
    both = {one(components, "padding"): "circular padding", one(components, "stride"): "stride 1 and average pooling"}
    with replaced(network, both, {}):
        output = network(x)
    dense = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), layer.weight, layer.bias)
    torch.testing.assert_close(output, F.avg_pool2d(dense, 2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.project = nn.Linear(6, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        y += self.project(x)
        return y


def test_a_projected_skip_connection_is_left_out() -> None:
    block = Block()
    output, x = changed(block, "skip connection", "no skip connection", 6)
    torch.testing.assert_close(output, block.body(x))


def test_uniform_attention_is_the_same_however_it_is_computed() -> None:
    class Attention(nn.Module):
        def __init__(self, how: str) -> None:
            super().__init__()
            self.how, self.key = how, nn.Linear(4, 4)
            self.whole = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            k = self.key(x)
            if self.how == "softmax":
                return ((x @ k.transpose(1, 2)).softmax(-1)) @ x
            if self.how == "fused":
                return F.scaled_dot_product_attention(x, k, x)
            out: Tensor = self.whole(x, x, x, need_weights=False)[0]
            return out

    for how in ("softmax", "fused"):
        output, x = changed(Attention(how), "attention", "uniform attention", 5, 4)
        torch.testing.assert_close(output, x.mean(1, keepdim=True).expand(-1, 5, -1))
    output, _ = changed(Attention("whole"), "attention", "uniform attention", 5, 4)
    torch.testing.assert_close(output, output[:, :1].expand(-1, 5, -1))


def test_uniform_attention_keeps_the_masks_that_models_add() -> None:
    class Causal(nn.Module):
        def __init__(self, mask: float) -> None:
            super().__init__()
            self.key = nn.Linear(4, 4)
            self.register_buffer("mask", torch.full((5, 5), mask).triu(1))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.key(x).transpose(1, 2) + self.mask).softmax(-1) @ x

    for mask in (-100.0, -1e4, -math.inf):
        output, x = changed(Causal(mask), "attention", "uniform attention", 5, 4)
        torch.testing.assert_close(output, x.cumsum(1) / torch.arange(1.0, 6.0)[:, None])


def test_the_second_moment_is_kept() -> None:
    network, x, _ = found(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2)), 1, 8, 8)
    bare = {each: name for each, name in neutral(structure_at(network, x)).items() if each.kind == "pooling"}
    constants = constants_of(network, bare, [lambda: network(x)])
    with replaced(network, bare, constants):
        other = network(x)
    torch.testing.assert_close(other.square().sum(), network(x).square().sum())
    assert not torch.allclose(other, network(x))


def test_a_normalisation_becomes_an_affine_map() -> None:
    layer = nn.LayerNorm(6)
    network, x, components = found(nn.Sequential(nn.Linear(6, 6), layer), 6)
    fixed = {one(components, "normalisation"): "fixed affine map"}
    constants = constants_of(network, fixed, [lambda: network(x)])
    with replaced(network, fixed, constants):
        ends = network(x[:1]) + network(x[1:2]), 2 * network((x[:1] + x[1:2]) / 2)
    torch.testing.assert_close(*ends)


def test_a_module_is_left_as_it_was() -> None:
    network, x, components = found(nn.Sequential(nn.Linear(6, 6), nn.ReLU()), 6)
    before = network(x)
    with pytest.raises(RuntimeError), replaced(network, {one(components, "activation"): "linear"}, {}):
        network(torch.zeros(2, 5))
    torch.testing.assert_close(network(x), before, rtol=0, atol=0)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in network.module.modules())


def test_a_pass_that_goes_another_way_is_refused() -> None:
    class Fickle(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(super().forward(x)) if torch.is_grad_enabled() else super().forward(x).clamp(min=0)

    network, x, components = found(Fickle(6, 6), 6)
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match="did not come again"),
        replaced(network, {one(components, "activation"): "linear"}, {}),
    ):
        network(x)


def test_what_cannot_be_replaced_is_told() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Softsign(), nn.Flatten(), nn.Linear(72, 1))
    network = Network.of(module)
    kept = structure_at(network, torch.randn(2, 1, 8, 8)).kept
    assert kept == (
        "BatchNorm2d (1): a fixed map in evaluation mode",
        "Softsign (2): no replacement is known",
    )
