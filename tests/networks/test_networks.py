"""The shipped networks: exact parameter counts, shapes, torch.func transforms, initial laws, and error messages."""

import functools
import inspect
import math
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, stack_module_state, vmap

from biascope.families.family import Family
from biascope.networks import builder, names
from biascope.networks._activations import ACTIVATIONS
from biascope.runs.run import Run

# Networks on images; those on coordinates have a file of their own.
IMAGES = tuple(name for name in names() if "image_size" in inspect.signature(builder(name)).parameters)
# The smallest image that a network takes as published (32 for one not listed): enough for all but the counts.
SMALLEST = {
    "densenet121": 8,
    "lenet": 16,
    "logistic_regression": 1,
    "mlp": 1,
    "resnet18": 1,
    "vgg11": 32,
    "vit": 8,
}
# What makes a network cheap without changing what it is made of.
SMALL = {"mlp": {"hidden": (20, 10)}, "vit": {"depth": 2, "width": 24, "heads": 3, "mlp": 48}}
PUBLISHED_COUNT = {
    "logistic_regression": 1_025,
    "lenet": 60_941,
    "vgg11": 9_750_657,
    "resnet18": 11_168_193,
    "densenet121": 6_945_921,
}


def settings_of(name: str, **settings: object) -> dict[str, object]:
    """Settings of a small member of the network's kind, on images of at least 4 pixels a side."""
    return {"image_size": max(4, SMALLEST.get(name, 32)), **SMALL.get(name, {}), **settings}


def build(name: str, *, seed: int = 0, **settings: object) -> nn.Module:
    """The network in double precision and eval mode, its weights a function of the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return builder(name)(**settings).double().eval()


def images(num: int, channels: int, side: int, *, seed: int = 1) -> Tensor:
    return torch.randn(num, channels, side, side, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def meta_count(name: str, **settings: object) -> int:
    """The number of parameters, without the memory for them."""
    with torch.device("meta"):
        return count(builder(name)(**settings))


def has_activation(name: str) -> bool:
    return "activation" in inspect.signature(builder(name)).parameters


def variants() -> Iterator[tuple[str, dict[str, object]]]:
    """Every kind of head, pooling and normalisation of every network."""
    for name in IMAGES:
        side = max(4, SMALLEST.get(name, 32))
        yield name, {}
        yield name, {"channels": 3, "outputs": 10}
        yield name, {"image_size": 2 * side}
        if has_activation(name):
            yield name, {"activation": "gelu"}
        if "law" in inspect.signature(builder(name)).parameters:
            yield name, {"law": "flax"}
    yield "lenet", {"image_size": 19}
    yield "lenet", {"pooling": "average", "hidden": (30,)}
    yield "lenet", {"pooling": "none", "image_size": 9}
    yield "lenet", {"padding": "same", "image_size": 19}
    yield "lenet", {"padding": "same", "image_size": 4, "pooling": "average", "activation": "gelu"}
    yield "lenet", {"padding": "same", "image_size": 1, "pooling": "none"}
    yield "vgg11", {"pooling": "average", "image_size": 33}
    yield "vgg11", {"pooling": "none", "image_size": 3}
    yield "vgg11", {"batchnorm": False}
    yield "resnet18", {"image_size": 9}
    yield "resnet18", {"pooling": "none", "image_size": 9}
    yield "resnet18", {"pooling": "none", "image_size": 16, "batchnorm": False}
    yield "resnet18", {"zero_residual": True}
    yield "densenet121", {"image_size": 9}
    yield "densenet121", {"pooling": "none", "image_size": 3}
    yield "vit", {"layernorm": False}
    yield "vit", {"released": True}
    yield "vit", {"patch": 2, "image_size": 6}


def test_every_network_is_listed_and_builds_without_arguments() -> None:
    assert set(names()) >= set(SMALLEST)
    with torch.device("meta"):
        for name in names():
            assert isinstance(builder(name)(), nn.Module)


@pytest.mark.parametrize(("name", "published"), PUBLISHED_COUNT.items())
def test_parameter_count_is_the_published_one(name: str, published: int) -> None:
    assert count(builder(name)()) == published


def test_parameter_counts_that_follow_by_arithmetic() -> None:
    assert meta_count("mlp") == 1024 * 500 + 500 + 2 * (500 * 500 + 500) + 501
    assert meta_count("mlp", channels=3, hidden=(100, 100)) == 3072 * 100 + 100 + 100 * 100 + 100 + 101
    block = 2 * 2 * 192 + (192 + 1) * 3 * 192 + (192 + 1) * 192 + (192 + 1) * 768 + (768 + 1) * 192
    assert meta_count("vit") == (64 + 1) * 192 + (1 + 17) * 192 + 9 * block + 2 * 192 + 193
    # Removing normalisation removes its two parameters per channel and nothing else.
    assert meta_count("vgg11") - meta_count("vgg11", batchnorm=False) == 2 * (64 + 128 + 2 * 256 + 4 * 512)
    norms = 64 + 4 * (64 + 128 + 256 + 512) + (128 + 256 + 512)
    assert meta_count("resnet18") - meta_count("resnet18", batchnorm=False) == 2 * norms
    assert meta_count("vit") - meta_count("vit", layernorm=False) == 2 * 192 * 19
    # Removing pooling widens the first linear layer, and nothing else.
    assert meta_count("lenet", pooling="none") - meta_count("lenet") == 16 * (24**2 - 5**2) * 120
    assert meta_count("lenet", padding="same") - meta_count("lenet") == 16 * (8**2 - 5**2) * 120
    assert meta_count("lenet", padding="same", pooling="none") - meta_count("lenet") == 16 * (32**2 - 5**2) * 120
    assert meta_count("vgg11", pooling="none") - meta_count("vgg11") == 512 * (32**2 - 1) * 512
    assert meta_count("resnet18", pooling="none") - meta_count("resnet18") == 512 * (4**2 - 1)
    assert meta_count("densenet121", pooling="none") - meta_count("densenet121") == 1024 * (32**2 - 1)


@pytest.mark.parametrize(("name", "settings"), list(variants()))
def test_output_has_one_row_per_image_and_one_column_per_output(name: str, settings: dict[str, object]) -> None:
    settings = settings_of(name, **settings)
    x = images(2, int(settings.get("channels", 1)), int(settings["image_size"]))
    with torch.no_grad():
        y = build(name, **settings)(x)
    assert y.shape == (2, settings.get("outputs", 1))
    assert y.isfinite().all()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in IMAGES),
        ("lenet", {"pooling": "average"}),
        ("lenet", {"pooling": "none"}),
        ("lenet", {"padding": "same"}),
        ("resnet18", {"pooling": "none", "batchnorm": False}),
        ("resnet18", {"zero_residual": True}),
        ("vit", {"layernorm": False, "activation": "gelu"}),
    ],
)
def test_stack_under_vmap_equals_the_loop(name: str, settings: dict[str, object]) -> None:
    settings = settings_of(name, channels=2, outputs=3, **settings)
    members = [build(name, seed=seed, **settings) for seed in (0, 1)]
    x = images(2, 2, int(settings["image_size"]))
    params, buffers = stack_module_state(members)
    with torch.no_grad():
        stacked = vmap(lambda p, b: functional_call(members[0], (p, b), (x,)))(params, buffers)
        looped = torch.stack([member(x) for member in members])
    torch.testing.assert_close(stacked, looped, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(looped[0], looped[1])


# torch loads its forward-mode rules through its own deprecated torch.jit.script, at the first jvp of the process.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", IMAGES)
def test_input_gradient_is_finite_nonzero_and_agrees_with_jvp(name: str) -> None:
    settings = settings_of(name)
    network = build(name, **settings)
    x = images(2, 1, int(settings["image_size"]))
    gradients = vmap(grad(lambda one: network(one[None])[0, 0]))(x)
    assert gradients.isfinite().all()
    assert (gradients.flatten(1).norm(dim=1) > 0).all()
    tangent = images(2, 1, int(settings["image_size"]), seed=2)
    _, along = jvp(network, (x,), (tangent,))
    torch.testing.assert_close(along[:, 0], (gradients * tangent).flatten(1).sum(1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", IMAGES)
def test_first_layer_can_be_taken_off(name: str) -> None:
    """The first convolution or linear layer reads the input itself: the rest of the network maps its output."""
    settings = settings_of(name)
    network = build(name, **settings)
    assert isinstance(network, nn.Sequential)
    first = next(i for i, layer in enumerate(network) if not isinstance(layer, nn.Flatten))
    layer = network[first]
    assert isinstance(layer, nn.Conv2d | nn.Linear)
    x = images(3, 1, int(settings["image_size"]))
    with torch.no_grad():
        expected = network(x)
        activations = layer(x.flatten(1) if isinstance(layer, nn.Linear) else x)
        network[first] = nn.Identity()
        torch.testing.assert_close(network(activations), expected)
        torch.testing.assert_close(network(activations[:1]), expected[:1])


def test_no_layer_works_in_place() -> None:
    with torch.device("meta"):
        for name in names():
            assert not any(getattr(module, "inplace", False) for module in builder(name)().modules())


def test_relu_resnet18_without_batchnorm_is_homogeneous_but_for_the_bias_of_the_head() -> None:
    network = build("resnet18", batchnorm=False, image_size=8)
    x, bias = images(2, 1, 8), network.get_parameter("head.bias")
    with torch.no_grad():
        torch.testing.assert_close(network(3 * x) - bias, 3 * (network(x) - bias))


def test_padded_lenet_keeps_the_side_at_both_convolutions() -> None:
    network = build("lenet", padding="same", pooling="average", image_size=16)
    x = images(2, 1, 16)
    with torch.no_grad():
        first = network.get_submodule("conv1")(x)
        second = network.get_submodule("conv2")(images(2, 6, 8))
    assert first.shape == (2, 6, 16, 16)
    assert second.shape == (2, 16, 8, 8)
    kernel = network.get_parameter("conv1.weight")
    torch.testing.assert_close(
        first[:, :, 0, 0],
        (x[:, None, 0, :3, :3] * kernel[:, 0, 2:, 2:]).sum((2, 3)) + network.get_parameter("conv1.bias"),
    )


def test_a_residual_branch_that_starts_at_zero_leaves_its_shortcut() -> None:
    x = images(2, 1, 8)
    for start in (False, True):
        network = build("resnet18", zero_residual=start, image_size=8)
        with torch.no_grad():
            inward = network.get_submodule("activation")(
                network.get_submodule("norm")(network.get_submodule("stem")(x))
            )
            block = network.get_submodule("stage2.0")
            shortcut = torch.relu(block.get_submodule("shortcut")(inward))
            assert torch.equal(block(inward), shortcut) is start


@pytest.mark.parametrize(("name", "settings"), [("lenet", {"padding": "same"}), ("resnet18", {"zero_residual": True})])
def test_settings_of_the_linearised_networks_are_drawn_in_stacks(name: str, settings: dict[str, object]) -> None:
    family = Family.initialised(functools.partial(builder(name), **settings))
    assert family.drawing == "replayed in stacks from recorded initialisers"
    stack = family.draw(2, seed=0, run=Run(device="cpu"))
    scales = [part for each, part in stack.params.items() if each.endswith("residual.norm2.weight")]
    assert len(scales) == (8 if name == "resnet18" else 0)
    assert not any(bool(part.any()) for part in scales)
    others = [
        part for each, part in stack.params.items() if each.endswith(("residual.norm1.weight", "shortcut.norm.weight"))
    ]
    assert all(bool((part == 1).all()) for part in others)
    first = next(iter(stack.params.values()))
    assert not torch.equal(first[0], first[1])


def test_published_pooling_is_max_for_lenet_and_vgg11() -> None:
    for name, pools in {"lenet": 2, "vgg11": 5}.items():
        with torch.device("meta"):
            network = builder(name)()
        assert sum(isinstance(module, nn.MaxPool2d) for module in network.modules()) == pools


def test_vgg11_convolutions_have_the_published_law() -> None:
    network = build("vgg11")
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 8
    for convolution in convolutions:
        weight, bias = convolution.weight, convolution.bias
        std = math.sqrt(2 / (9 * convolution.out_channels))
        # The relative standard error of a normal sample's spread is 1/√(2n), that of its mean 1/√n.
        assert weight.std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * weight.numel()))
        assert abs(weight.mean().item()) < 5 * std / math.sqrt(weight.numel())
        assert bias is not None
        assert not bias.any()


def test_vgg11_drops_out_after_the_hidden_activations_as_released() -> None:
    with torch.device("meta"):
        layers = list(builder("vgg11")().named_children())
    head = [name for name, _ in layers[[name for name, _ in layers].index("flatten") + 1 :]]
    assert head == ["linear9", "activation9", "dropout9", "linear10", "activation10", "dropout10", "head"]
    assert all(layer.p == 0.5 for _, layer in layers if isinstance(layer, nn.Dropout))


def test_vit_token_and_position_embedding_start_as_small_normals() -> None:
    network = build("vit")
    for name in ("tokens.class_token", "tokens.position"):
        start = network.get_parameter(name)
        assert start.std().item() == pytest.approx(0.02, rel=5 / math.sqrt(2 * start.numel()))


def test_vit_attention_is_that_of_torch() -> None:
    attention = build("vit", **settings_of("vit")).get_submodule("block1.attention.branch")
    x = images(2, 1, 24)[:, 0, :5]  # (n, t, w)
    reference = nn.MultiheadAttention(24, 3, batch_first=True, dtype=torch.float64)
    reference.load_state_dict(
        {
            "in_proj_weight": attention.get_parameter("query_key_value.weight"),
            "in_proj_bias": attention.get_parameter("query_key_value.bias"),
            "out_proj.weight": attention.get_parameter("out.weight"),
            "out_proj.bias": attention.get_parameter("out.bias"),
        }
    )
    torch.testing.assert_close(attention(x), reference(x, x, x, need_weights=False)[0])


def test_a_released_vit_starts_as_torchs_attention_does_from_a_class_token_of_zero() -> None:
    """torch.nn.MultiheadAttention draws one matrix for q, k and v by Xavier's uniform law, and its biases are 0."""
    torch.manual_seed(0)
    network = builder("vit")(released=True, depth=2)
    assert not network.get_parameter("tokens.class_token").any()
    attention = network.get_submodule("block2.attention.branch")
    reference = nn.MultiheadAttention(192, 12, batch_first=True)
    drawn, expected = attention.get_parameter("query_key_value.weight"), reference.in_proj_weight
    assert drawn.abs().max().item() == pytest.approx(math.sqrt(6 / (192 + 3 * 192)), rel=1e-3)
    assert drawn.var().item() == pytest.approx(expected.var().item(), rel=0.02)
    out, expected = attention.get_parameter("out.weight"), reference.out_proj.weight
    assert out.var().item() == pytest.approx(expected.var().item(), rel=0.05)
    for name in ("query_key_value.bias", "out.bias"):
        assert not attention.get_parameter(name).any()
    assert not reference.in_proj_bias.any()
    assert not reference.out_proj.bias.any()
    assert {layer.eps for layer in network.modules() if isinstance(layer, nn.LayerNorm)} == {1e-6}
    assert {layer.eps for layer in builder("vit")(depth=1).modules() if isinstance(layer, nn.LayerNorm)} == {1e-5}


def test_vit_without_position_embedding_forgets_the_order_of_patches() -> None:
    network = build("vit", **settings_of("vit", image_size=16))
    x = images(1, 1, 16)
    with torch.no_grad():
        assert not torch.allclose(network(x), network(x.roll(8, dims=-1)))
        network.get_parameter("tokens.position").zero_()
        torch.testing.assert_close(network(x), network(x.roll(8, dims=-1)))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activation_is_the_one_asked_for(activation: str) -> None:
    kind = ACTIVATIONS[activation]
    for name in names():
        if has_activation(name):
            with torch.device("meta"):
                kinds = {type(module) for module in builder(name)(activation=activation).modules()}
            assert kind in kinds
            assert not kinds & {nn.ReLU, nn.GELU, nn.Tanh} - {kind}


def test_identity_activation_makes_an_mlp_affine() -> None:
    network = build("mlp", image_size=4, activation="identity")
    x, y, zero = images(1, 1, 4), images(1, 1, 4, seed=2), torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(network(x + y) + network(zero), network(x) + network(y))


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("resnet-18", "resnet18"),
        ("ResNet18", "resnet18"),
        ("LeNet", "lenet"),
        ("DenseNet-121", "densenet121"),
        ("Logistic Regression", "logistic_regression"),
        ("logistic-regression", "logistic_regression"),
        ("VGG_11", "vgg11"),
        ("ViT", "vit"),
    ],
)
def test_spelling_of_a_name_does_not_matter(spelling: str, name: str) -> None:
    assert builder(spelling).__name__ == name


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, biascope.networks as n; n.names(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"]).returncode == 0


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "lenet",
            {"pooling": "min"},
            "pooling must be one of 'max', 'average', 'none', got 'min'. Pass pooling='max' for the published LeNet.",
        ),
        (
            "resnet18",
            {"pooling": "max"},
            "pooling must be one of 'average', 'none', got 'max'. Pass pooling='average' for the published ResNet-18.",
        ),
        (
            "mlp",
            {"activation": "swish"},
            "activation must be one of 'relu', 'gelu', 'tanh', 'identity', got 'swish'. "
            "Pass activation='relu' or 'gelu', as in the papers.",
        ),
        (
            "logistic_regression",
            {"channels": 0},
            "channels must be a whole number of at least 1, got 0. "
            "Pass channels=1 for grey images or channels=3 for colour.",
        ),
        (
            "vit",
            {"outputs": 2.5},
            "outputs must be a whole number of at least 1, got 2.5. "
            "Pass outputs=1 for a single logit, or one output per class.",
        ),
        (
            "lenet",
            {"image_size": 15},
            "image_size must be a whole number of at least 16 for LeNet with pooling='max', got 15. "
            "Pass image_size=32, as in the papers.",
        ),
        (
            "lenet",
            {"image_size": 8, "pooling": "none"},
            "image_size must be a whole number of at least 9 for LeNet with pooling='none', got 8. "
            "Pass image_size=32, as in the papers.",
        ),
        (
            "lenet",
            {"image_size": 3, "padding": "same"},
            "image_size must be a whole number of at least 4 for LeNet with pooling='max' and padding='same', got 3. "
            "Pass image_size=32, as in the papers.",
        ),
        (
            "lenet",
            {"padding": 2},
            "padding must be one of 'valid', 'same', got 2. Pass padding='valid' for the published LeNet.",
        ),
        (
            "resnet18",
            {"zero_residual": True, "batchnorm": False},
            "zero_residual must be False without BatchNorm, whose scale it sets to 0, got True. "
            "Pass batchnorm=True or zero_residual=False.",
        ),
        (
            "vgg11",
            {"image_size": 31, "pooling": "average"},
            "image_size must be a whole number of at least 32 for VGG11 with pooling='average', got 31. "
            "Pass image_size=32, as in the papers.",
        ),
        (
            "densenet121",
            {"image_size": 7},
            "image_size must be a whole number of at least 8 for DenseNet-121 with pooling='average', got 7. "
            "Pass image_size=32, as in the papers.",
        ),
        (
            "vit",
            {"image_size": 30},
            "image_size must be a multiple of patch=8, got 30. Pass image_size=24, or a patch that divides 30.",
        ),
        (
            "vit",
            {"heads": 5},
            "width must be a multiple of heads=5, got 192. Pass width=190, or a number of heads that divides 192.",
        ),
        ("vit", {"depth": 0}, "depth must be a whole number of at least 1, got 0. Pass depth=9 for the published ViT."),
        (
            "mlp",
            {"hidden": ()},
            "hidden must list one or more widths of at least 1, got (). "
            "Pass hidden=(500, 500, 500), or build logistic_regression for no hidden layer.",
        ),
        (
            "lenet",
            {"hidden": 120},
            "hidden must list one or more widths of at least 1, got 120. "
            "Pass hidden=(120, 84) for the published LeNet.",
        ),
    ],
)
def test_a_bad_setting_is_answered_with_what_to_do(name: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        builder(name)(**settings)
    assert str(caught.value) == message


def test_an_unknown_network_is_answered_with_the_nearest_names() -> None:
    listed = "network must be one of " + ", ".join(map(repr, names()))
    with pytest.raises(ValueError) as caught:
        builder("LeNt")
    assert str(caught.value).startswith(f"{listed}, got 'LeNt'. Did you mean 'lenet'")
    with pytest.raises(ValueError, match="Did you mean 'logistic_regression'"):
        builder("LogReg")
    with pytest.raises(ValueError, match="Pass one of these names"):
        builder("%")


def test_settings_are_keyword_only() -> None:
    for name in names():
        with pytest.raises(TypeError):
            builder(name)(1)
