"""Vision transformer (ViT) for small images: patches as tokens, self-attention between them, a class token read out."""

# n images · t tokens (and s, those attended to) · w width · h heads · e width of one head

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from ._activations import activation_layer
from ._settings import require_at_least, require_image_and_outputs


def vit(
    *,
    channels: int = 1,
    outputs: int = 1,
    image_size: int = 32,
    activation: str = "gelu",
    patch: int = 8,
    depth: int = 9,
    heads: int = 12,
    width: int = 192,
    mlp: int = 768,
    layernorm: bool = True,
    released: bool = False,
) -> nn.Module:
    """Vision transformer of the 2025 paper (whose activation is "gelu").

    | layers | output for a 32×32 image |
    |---|---|
    | convolution patch×patch, stride patch | width × 4 × 4 |
    | class token in front, plus position embedding | 17 × width |
    | depth transformer blocks | 17 × width |
    | LayerNorm | 17 × width |
    | class token | width |
    | linear | outputs |

    A block is z = x + attention(norm(x)), then z + W₂ φ(W₁ norm(z) + b₁) + b₂. Attention is softmax(q kᵀ / √e) v in
    each head of width e = width/heads, followed by a linear map of the joined heads; the maps to q, k, v have a bias.
    There is no dropout. The class token and the position embedding are learned and start as N(0, 0.02²); all else has
    PyTorch's default law. As in the code of the 2025 paper (``released``), attention starts by the law of
    ``torch.nn.MultiheadAttention``, the class token as 0, and LayerNorm has ε = 10⁻⁶ instead of 10⁻⁵.

    Args:
        channels: Channels of the input image.
        outputs: Number of outputs.
        image_size: Side of the square input image in pixels; a multiple of `patch`.
        activation: φ: "relu", "gelu", "tanh" or "identity".
        patch: Side of a patch in pixels.
        depth: Number of transformer blocks.
        heads: Attention heads per block; they divide `width`.
        width: Width of a token.
        mlp: Hidden width of each block's perceptron.
        layernorm: Whether the blocks and the readout have LayerNorm; without it each is replaced by the identity.
        released: Whether it starts as in the code of the 2025 paper.

    Raises:
        ValueError: If a setting is out of its range, `patch` does not divide `image_size`, or `heads` not `width`.

    >>> sum(p.numel() for p in vit().parameters())
    4020289

    Reference:
        Dosovitskiy et al., An image is worth 16x16 words, ICLR 2021.
        Geometric inductive biases of deep networks, 2025, appendix A.12.1.
    """
    require_image_and_outputs(channels, outputs, image_size)
    for setting, value, published in (
        ("patch", patch, 8),
        ("depth", depth, 9),
        ("heads", heads, 12),
        ("width", width, 192),
        ("mlp", mlp, 768),
    ):
        require_at_least(setting, value, 1, f"Pass {setting}={published} for the published ViT.")
    if image_size % patch:
        raise ValueError(
            f"image_size must be a multiple of patch={patch}, got {image_size}. "
            f"Pass image_size={max(1, image_size // patch) * patch}, or a patch that divides {image_size}."
        )
    if width % heads:
        raise ValueError(
            f"width must be a multiple of heads={heads}, got {width}. "
            f"Pass width={max(1, width // heads) * heads}, or a number of heads that divides {width}."
        )

    layers: OrderedDict[str, nn.Module] = OrderedDict(
        stem=nn.Conv2d(channels, width, patch, stride=patch),
        tokens=_Tokens((image_size // patch) ** 2, width),
    )
    epsilon = 1e-6 if released else 1e-5
    for number in range(1, depth + 1):
        layers[f"block{number}"] = nn.Sequential(
            OrderedDict(
                attention=_Residual(_norm(width, layernorm, epsilon), _Attention(width, heads)),
                mlp=_Residual(
                    _norm(width, layernorm, epsilon),
                    nn.Sequential(
                        OrderedDict(
                            linear1=nn.Linear(width, mlp),
                            activation=activation_layer(activation),
                            linear2=nn.Linear(mlp, width),
                        )
                    ),
                ),
            )
        )
    layers["norm"] = _norm(width, layernorm, epsilon)
    layers["class_token"] = _FirstToken()
    layers["head"] = nn.Linear(width, outputs)
    network = nn.Sequential(layers)
    if released:
        _start_as_released(network)
    return network


def _start_as_released(network: nn.Module) -> None:
    for layer in network.modules():
        if isinstance(layer, _Tokens):
            nn.init.zeros_(layer.class_token)
        elif isinstance(layer, _Attention):  # q, k and v are one matrix, whose fans Xavier's law takes
            nn.init.xavier_uniform_(layer.query_key_value.weight)
            nn.init.zeros_(layer.query_key_value.bias)
            nn.init.zeros_(layer.out.bias)


class _Tokens(nn.Module):
    """A grid of patch features as a sequence: class token in front, position embedding added."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.position = nn.Parameter(torch.empty(1, 1 + patches, width))
        nn.init.normal_(self.class_token, std=0.02)
        nn.init.normal_(self.position, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Turn (n, w, rows, columns) into (n, t, w)."""
        patches = x.flatten(2).transpose(1, 2)  # (n, t - 1, w)
        return torch.cat((self.class_token.expand(x.shape[0], -1, -1), patches), dim=1) + self.position


class _Attention(nn.Module):
    """Multi-head self-attention, softmax(q kᵀ / √e) v, from plain operations that every torch.func transform knows."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the tokens of each sequence."""
        query, key, value = self.query_key_value(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)  # each (n, t, h, e)
        scores = torch.einsum("nthe,nshe->nhts", query, key) / query.shape[-1] ** 0.5
        mixed = torch.einsum("nhts,nshe->nthe", scores.softmax(dim=-1), value)
        out: Tensor = self.out(mixed.flatten(-2))  # (n, t, w)
        return out


class _Residual(nn.Module):
    """x ↦ x + branch(norm(x))."""

    def __init__(self, norm: nn.Module, branch: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to its input."""
        out: Tensor = x + self.branch(self.norm(x))
        return out


class _FirstToken(nn.Module):
    """The first token of each sequence, which is the class token."""

    def forward(self, x: Tensor) -> Tensor:
        """Turn (n, t, w) into (n, w)."""
        return x[:, 0]


def _norm(width: int, layernorm: bool, epsilon: float) -> nn.Module:
    """LayerNorm, or the identity in its place, so that weights have the same names with and without it."""
    return nn.LayerNorm(width, epsilon) if layernorm else nn.Identity()
