"""The networks of the atlas: what is measured of each kind of input, and in which families of architectures they belong."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from biascope.families.libraries.packages import imported

SHAPES = {"image": (3, 32, 32), "sequence": (24, 3), "token": None, "table": (14,)}
AXES = {"image": "", "sequence": "time,feature", "token": "", "table": ""}
CLASSES = 10


@dataclass(frozen=True)
class Entry:
    """A network of the atlas.

    Attributes:
        kind: Of its inputs.
        group: Family of architectures: ``"convolutional"``, ``"transformer"``, ``"mixer"``, ``"MLP"``, ``"recurrent"``, ``"other"``.
        name: By which it is scanned; of a builder below, ``"atlas:NAME"``.
        settings: Of its builder.
        build: One of the builders below.
    """

    kind: str
    group: str
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    build: Callable[[], nn.Module] | None = None

    @property
    def library(self) -> str:
        """Where its builder is."""
        before = self.name.partition(":")[0]
        return {"timm": "timm", "torchvision": "torchvision", "hf-config": "transformers", "atlas": "atlas"}.get(
            before, "biascope"
        )

    @property
    def title(self) -> str:
        """Its name in the atlas: as it is scanned, with the settings that make it another network."""
        told = [f"{key}={_plain(value)}" for key, value in self.settings.items() if key not in _USUAL]
        return " ".join([self.name, *told])


_USUAL = (
    "outputs",
    "num_classes",
    "img_size",
    "inputs",
    "drop_path_rate",
)  # what only fits a network to its inputs and classes


def _plain(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


# ---- images ------------------------------------------------------------------------------------------------------------------


def _ours() -> Iterator[Entry]:
    conv, transformer = "convolutional", "transformer"
    for group, name, settings in (
        (conv, "lenet", {}),
        (conv, "lenet", {"activation": "tanh"}),
        (conv, "lenet", {"pooling": "average"}),
        (conv, "lenet", {"law": "flax"}),
        (conv, "vgg11", {}),
        (conv, "vgg11", {"pooling": "average"}),
        (conv, "resnet18", {}),
        (conv, "resnet18", {"batchnorm": False}),
        (conv, "densenet121", {}),
        (transformer, "vit", {}),
        (transformer, "vit", {"depth": 2}),
        (transformer, "vit", {"patch": 4, "depth": 4}),
        ("MLP", "mlp", {}),
        ("MLP", "mlp", {"activation": "tanh"}),
        ("MLP", "mlp", {"hidden": (500,)}),
        ("MLP", "mlp", {"hidden": (200,) * 8}),
        ("other", "logistic_regression", {}),
    ):
        yield Entry("image", group, name, {"outputs": CLASSES, **settings})


_CONVOLUTIONAL = """
resnet10t resnet14t resnet18 resnet26 resnetv2_18 seresnet18 skresnet18 vgg11_bn mobilenetv2_035 mobilenetv3_small_050
mobilenetv4_conv_small_035 efficientnet_lite0 efficientnet_b0 mnasnet_small lcnet_050 tinynet_e ghostnet_050 regnetx_002
regnety_002 convnext_atto convnextv2_atto repvgg_a0 repghostnet_050 starnet_s1 dla46_c ese_vovnet19b_slim_dw rexnet_100
gernet_s mambaout_femto inception_next_atto hgnetv2_b0 semnasnet_050 mixnet_s test_resnet test_nfnet test_convnext
test_efficientnet test_byobnet edgenext_xx_small poolformer_s12 cs3darknet_s
"""
_TRANSFORMER = """
mobilevit_xxs mobilevitv2_050 efficientformer_l1 levit_128s pvt_v2_b0 efficientvit_b0 swin_tiny_patch4_window7_224 test_vit
test_vit3 test_maxvit test_coatnet convit_tiny xcit_nano_12_p8_224 shvit_s1 coat_lite_tiny
"""
_PATCHED = ("vit_tiny_patch16_224", "deit_tiny_patch16_224", "cait_xxs24_224")  # built with patches of 4 × 4
_MIXERS = (  # kind of block, blocks, width, side of a patch
    ("MixerBlock", 4, 64, 4),
    ("MixerBlock", 8, 128, 4),
    ("MixerBlock", 2, 128, 8),
    ("MixerBlock", 4, 128, 8),
    ("ResBlock", 4, 64, 4),
    ("ResBlock", 8, 128, 4),
    ("ResBlock", 4, 128, 8),
    ("SpatialGatingBlock", 4, 64, 4),
    ("SpatialGatingBlock", 8, 128, 4),
    ("SpatialGatingBlock", 4, 128, 8),
)


def _mixer(block: str, blocks: int, width: int, patch: int) -> nn.Module:
    """timm's mixers of patches, with a head of PyTorch's law instead of one of zeros."""
    mlp_mixer = imported("timm", f"timm:{block}", least="1.0").models.mlp_mixer
    own = {  # as in timm's published models
        "ResBlock": {"mlp_ratio": 4, "norm_layer": mlp_mixer.Affine},
        "SpatialGatingBlock": {"mlp_ratio": 6, "mlp_layer": mlp_mixer.GatedMlp},
    }
    body = mlp_mixer.MlpMixer(
        num_classes=0,
        img_size=32,
        patch_size=patch,
        num_blocks=blocks,
        embed_dim=width,
        block_layer=getattr(mlp_mixer, block),
        **own.get(block, {}),
    )
    return nn.Sequential(body, nn.Linear(width, CLASSES))


def _of_libraries() -> Iterator[Entry]:
    for name in _CONVOLUTIONAL.split():
        yield Entry("image", "convolutional", f"timm:{name}", {"num_classes": CLASSES})
    for name in _TRANSFORMER.split():
        yield Entry("image", "transformer", f"timm:{name}", {"num_classes": CLASSES})
    for name in _PATCHED:
        yield Entry("image", "transformer", f"timm:{name}", {"num_classes": CLASSES, "patch_size": 4})
    for block, blocks, width, patch in _MIXERS:
        build = functools.partial(_mixer, block, blocks, width, patch)
        yield Entry("image", "mixer", f"timm:{block} {blocks}×{width}, patches of {patch}", build=build)
    for name in ("squeezenet1_1", "shufflenet_v2_x0_5", "mnasnet0_5"):
        yield Entry("image", "convolutional", f"torchvision:{name}", {"num_classes": CLASSES})
    for name in ("convnext", "vit", "mobilenet_v1", "poolformer", "swin"):
        group = "transformer" if name in ("vit", "swin") else "convolutional"
        yield Entry("image", group, f"hf-config:{name}")


# ---- sequences ---------------------------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """Recurrent layers, of which the last step is read."""

    def __init__(self, cell: type[nn.RNNBase], width: int, layers: int, **settings: Any) -> None:
        super().__init__()
        self.layers = cell(3, width, layers, batch_first=True, **settings)
        self.head = nn.Linear(width * (2 if settings.get("bidirectional") else 1), CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of ``(batch, 24, 3)``."""
        found: Tensor = self.head(self.layers(x)[0][:, -1])
        return found


class Convolutional(nn.Module):
    """Convolutions along time, then the mean over time or the last step."""

    def __init__(self, width: int, layers: int, dilated: bool, last: bool) -> None:
        super().__init__()
        self.last = last
        parts: list[nn.Module] = []
        for layer in range(layers):
            step = 2**layer if dilated else 1
            if last:
                parts.append(nn.ConstantPad1d((2 * step, 0), 0.0))
            padding = 0 if last else step
            parts += [nn.Conv1d(width if layer else 3, width, 3, padding=padding, dilation=step), nn.ReLU()]
        self.body = nn.Sequential(*parts)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of ``(batch, 24, 3)``."""
        steps = self.body(x.transpose(1, 2))
        found: Tensor = self.head(steps[..., -1] if self.last else steps.mean(-1))
        return found


class Transformer(nn.Module):
    """A transformer encoder over steps, with learned positions."""

    def __init__(self, width: int, layers: int, *, length: int = 24, features: int = 3, last: bool = False) -> None:
        super().__init__()
        self.last = last
        self.embed = nn.Linear(features, width)
        self.position = nn.Parameter(torch.randn(length, width))
        self.body = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of ``(batch, length, features)``."""
        steps = self.embed(x) + self.position
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]).to(x) if self.last else None
        for layer in self.body:
            steps = layer(steps, src_mask=mask)
        found: Tensor = self.head(steps[:, -1] if self.last else steps.mean(1))
        return found


class StateSpace(nn.Module):
    """A diagonal linear state space layer with real decays, then an MLP; the last step is read."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Linear(3, width)
        self.decay = nn.ParameterList([nn.Parameter(torch.rand(width) * 4) for _ in range(layers)])
        self.mixed = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(layers)
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of ``(batch, 24, 3)``."""
        steps = self.embed(x)
        lag = torch.arange(x.shape[1], device=x.device)
        back = (lag[:, None] - lag[None, :]).to(x)
        for decay, mixed in zip(self.decay, self.mixed, strict=True):
            rate = torch.sigmoid(decay)
            kernel = torch.where(back[..., None] >= 0, rate ** back.clamp(min=0)[..., None], torch.zeros_like(rate))
            steps = steps + mixed(torch.einsum("tsw,bsw->btw", kernel, steps))
        found: Tensor = self.head(steps[:, -1])
        return found


class Flat(nn.Module):
    """An MLP over all numbers of an input at once."""

    def __init__(self, numbers: int, hidden: tuple[int, ...], activation: type[nn.Module]) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Flatten()]
        for width in hidden:
            parts += [nn.Linear(numbers, width), activation()]
            numbers = width
        self.body = nn.Sequential(*parts, nn.Linear(numbers, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        found: Tensor = self.body(x)
        return found


def _sequences() -> Iterator[Entry]:
    def entry(group: str, name: str, build: Callable[..., nn.Module], *given: Any, **settings: Any) -> Entry:
        return Entry("sequence", group, f"atlas:{name}", build=functools.partial(build, *given, **settings))

    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        word = kind.__name__.lower()
        yield entry("recurrent", f"{word} 1×64", Recurrent, kind, 64, 1)
        yield entry("recurrent", f"{word} 2×64", Recurrent, kind, 64, 2)
        yield entry("recurrent", f"{word} 1×64 both ways", Recurrent, kind, 64, 1, bidirectional=True)
    yield entry("recurrent", "rnn 1×64 relu", Recurrent, nn.RNN, 64, 1, nonlinearity="relu")
    yield entry("convolutional", "conv 3×64", Convolutional, 64, 3, False, False)
    yield entry("convolutional", "conv 6×64", Convolutional, 64, 6, False, False)
    yield entry("convolutional", "causal conv 3×64", Convolutional, 64, 3, False, True)
    yield entry("convolutional", "dilated causal conv 4×64", Convolutional, 64, 4, True, True)
    yield entry("transformer", "transformer 1×64", Transformer, 64, 1)
    yield entry("transformer", "transformer 2×64", Transformer, 64, 2)
    yield entry("transformer", "transformer 4×64", Transformer, 64, 4)
    yield entry("transformer", "causal transformer 2×64", Transformer, 64, 2, last=True)
    yield entry("other", "state space 1×64", StateSpace, 64, 1)
    yield entry("other", "state space 3×64", StateSpace, 64, 3)
    yield entry("MLP", "mlp of all steps 2×128", Flat, 72, (128, 128), nn.ReLU)


# ---- tables ------------------------------------------------------------------------------------------------------------------


class SoftTree(nn.Module):
    """A forest of soft oblivious trees: each level splits along one soft threshold, and leaves hold logits."""

    def __init__(self, trees: int, depth: int, sharpness: float) -> None:
        super().__init__()
        self.sharpness = sharpness
        self.split = nn.Parameter(torch.randn(trees, depth, 14))
        self.threshold = nn.Parameter(torch.randn(trees, depth))
        self.leaves = nn.Parameter(torch.randn(trees, 2**depth, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of ``(batch, 14)``."""
        chosen = torch.softmax(5 * self.split, dim=-1)  # nearly one feature for each level
        right = torch.sigmoid(self.sharpness * (torch.einsum("bf,tdf->btd", x, chosen) - self.threshold))
        paths = torch.ones(*right.shape[:2], 1, dtype=x.dtype, device=x.device)
        for level in range(right.shape[-1]):
            side = right[..., level, None]
            paths = torch.cat([paths * (1 - side), paths * side], dim=-1)
        return torch.einsum("btl,tlc->bc", paths, self.leaves)


class Features(nn.Module):
    """A transformer over features, each with an embedding of its own."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(14, width) / width**0.5)
        self.body = Transformer(width, layers, length=14, features=width)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of ``(batch, 14)``."""
        found: Tensor = self.body(x[..., None] * self.weight)
        return found


class Residual(nn.Module):
    """Residual blocks with layer normalisation over a table."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.embed = nn.Linear(14, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of ``(batch, 14)``."""
        found = self.embed(x)
        for block in self.blocks:
            found = found + block(found)
        logits: Tensor = self.head(found)
        return logits


def _tables() -> Iterator[Entry]:
    def entry(group: str, name: str, build: Callable[..., nn.Module], *given: Any) -> Entry:
        return Entry("table", group, f"atlas:{name}", build=functools.partial(build, *given))

    yield entry("other", "linear", Flat, 14, (), nn.ReLU)
    for depth in (1, 2, 4, 8):
        yield entry("MLP", f"relu mlp {depth}×128", Flat, 14, (128,) * depth, nn.ReLU)
    for activation in (nn.Tanh, nn.GELU, nn.SiLU, nn.Sigmoid):
        yield entry("MLP", f"{activation.__name__.lower()} mlp 2×128", Flat, 14, (128, 128), activation)
    yield entry("MLP", "residual mlp 2×128", Residual, 128, 2)
    yield entry("MLP", "residual mlp 6×128", Residual, 128, 6)
    yield entry("transformer", "feature transformer 1×32", Features, 32, 1)
    yield entry("transformer", "feature transformer 3×32", Features, 32, 3)
    yield entry("other", "soft trees 32×depth 4", SoftTree, 32, 4, 2.0)
    yield entry("other", "sharp soft trees 32×depth 4", SoftTree, 32, 4, 10.0)


# ---- tokens ------------------------------------------------------------------------------------------------------------------

_TOKENS = {
    "transformer": """
bert roberta distilbert albert electra deberta-v2 mpnet modernbert gpt2 gpt_neox opt llama qwen2 gemma t5 bloom phi mistral
""",
    "other": "mamba mamba2 falcon_mamba rwkv xlnet fnet",
}


def _tokens() -> Iterator[Entry]:
    for group, names in _TOKENS.items():
        for name in names.split():
            yield Entry("token", group, f"hf-config:{name}")


def networks() -> list[Entry]:
    """All of them, in an order in which every kind and group comes early."""
    found = [*_ours(), *_sequences(), *_tables(), *_tokens(), *_of_libraries()]
    groups = [
        [each for each in found if (each.kind, each.group) == of]
        for of in dict.fromkeys((e.kind, e.group) for e in found)
    ]
    places = {id(each): (place + 0.5) / len(group) for group in groups for place, each in enumerate(group)}
    return sorted(found, key=lambda each: places[id(each)])
