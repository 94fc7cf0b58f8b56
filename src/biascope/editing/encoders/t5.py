"""The encoder of T5: token ids to the mean of the last layer's tokens."""

# n texts · t tokens · w width · h heads

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from biascope.editing.encoders.attention import attended, hiding, mean_over


@dataclass(frozen=True)
class T5Shape:
    """The sizes of a T5, by the names that Hugging Face's config.json has for them. The defaults are T5-small's.

    Attributes:
        vocab_size: Number of tokens.
        d_model: Width of a token.
        d_kv: Width of one attention head.
        d_ff: Hidden width of a block's perceptron.
        num_layers: Number of blocks.
        num_heads: Attention heads of a block.
        relative_attention_num_buckets: Kinds of distance between tokens.
        relative_attention_max_distance: Distance from which on all distances are one kind.
        layer_norm_epsilon: Added to the mean square.
        feed_forward_proj: ``"relu"``, or ``"gated-gelu"`` as in version 1.1.
        pad_token_id: The token that fills up.
    """

    vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 2048
    num_layers: int = 6
    num_heads: int = 8
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = "relu"
    pad_token_id: int = 0

    def __post_init__(self) -> None:
        if self.feed_forward_proj not in ("relu", "gated-gelu"):
            raise ValueError(
                f"feed_forward_proj must be 'relu' or 'gated-gelu', got {self.feed_forward_proj!r}. Pass a T5 with one of these."
            )


def t5(shape: T5Shape | None = None) -> nn.Module:
    """The encoder of T5: token ids ``(n, t)`` to features ``(n, w)``, the mean over all tokens but padding.

    Ids may come as floating-point numbers, as a task serves its inputs; they are whole. Names are those of Hugging Face's
    ``T5EncoderModel``. Random weights follow that model's law.

    Args:
        shape: Sizes; T5-small's by default.

    Example:
        >>> with torch.device("meta"):
        ...     sum(p.numel() for p in t5().parameters())
        35330816

    Reference:
        Raffel et al., Exploring the limits of transfer learning with a unified text-to-text transformer, JMLR 2020.
    """
    return _T5(shape or T5Shape())


class _T5(nn.Module):
    def __init__(self, shape: T5Shape) -> None:
        super().__init__()
        self._pad = shape.pad_token_id
        self.shared = nn.Embedding(shape.vocab_size, shape.d_model)
        self.encoder = _Blocks(shape)

    def forward(self, tokens: Tensor) -> Tensor:
        """Features ``(n, w)``."""
        ids = tokens.long()
        shown = ids != self._pad
        x = self.shared(ids)
        return mean_over(self.encoder(x, hiding(shown, x)), shown)


class _Blocks(nn.Module):
    def __init__(self, shape: T5Shape) -> None:
        super().__init__()
        self.block = nn.ModuleList(_Block(shape, first=number == 0) for number in range(shape.num_layers))
        self.final_layer_norm = _RootMeanSquare(shape)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        bias = None  # by distance: made by the first block, shared by all
        for block in self.block:
            x, bias = block(x, hidden, bias)
        out: Tensor = self.final_layer_norm(x)
        return out


class _Block(nn.Module):
    """Attention, then a perceptron, each of the normalised input and added to it."""

    def __init__(self, shape: T5Shape, *, first: bool) -> None:
        super().__init__()
        self.layer = nn.ModuleList((_AttentionLayer(shape, first), _PerceptronLayer(shape)))

    def forward(self, x: Tensor, hidden: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        attention, perceptron = self.layer
        x, bias = attention(x, hidden, bias)
        return perceptron(x), bias


class _AttentionLayer(nn.Module):
    def __init__(self, shape: T5Shape, first: bool) -> None:
        super().__init__()
        self.SelfAttention = _Attention(shape, first)
        self.layer_norm = _RootMeanSquare(shape)

    def forward(self, x: Tensor, hidden: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        bias = self.SelfAttention.by_distance(x.shape[-2]) if bias is None else bias
        return x + self.SelfAttention(self.layer_norm(x), bias + hidden), bias


class _PerceptronLayer(nn.Module):
    def __init__(self, shape: T5Shape) -> None:
        super().__init__()
        self.DenseReluDense = (_Gated if shape.feed_forward_proj == "gated-gelu" else _Perceptron)(shape)
        self.layer_norm = _RootMeanSquare(shape)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.DenseReluDense(self.layer_norm(x))
        return out


class _Attention(nn.Module):
    """Attention without a scale, whose scores get a bias that depends on the distance of two tokens."""

    def __init__(self, shape: T5Shape, first: bool) -> None:
        super().__init__()
        self._shape = shape
        width, inside = shape.d_model, shape.num_heads * shape.d_kv
        self.q = _linear(width, inside, (width * shape.d_kv) ** -0.5)
        self.k, self.v = (_linear(width, inside) for _ in range(2))
        self.o = _linear(inside, width)
        if first:
            self.relative_attention_bias = nn.Embedding(shape.relative_attention_num_buckets, shape.num_heads)
            nn.init.normal_(self.relative_attention_bias.weight, std=width**-0.5)

    def by_distance(self, length: int) -> Tensor:
        """The bias ``(1, h, t, t)`` of tokens that far apart."""
        here = torch.arange(length, device=self.relative_attention_bias.weight.device)
        kinds, largest = self._shape.relative_attention_num_buckets, self._shape.relative_attention_max_distance
        bias: Tensor = self.relative_attention_bias(distance_kind(here[None] - here[:, None], kinds, largest))
        return bias.movedim(-1, 0)[None]

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        out: Tensor = self.o(attended(self.q(x), self.k(x), self.v(x), self._shape.num_heads, bias))
        return out


class _Perceptron(nn.Module):
    """ReLU between two linear maps."""

    def __init__(self, shape: T5Shape) -> None:
        super().__init__()
        self.wi, self.wo = _linear(shape.d_model, shape.d_ff), _linear(shape.d_ff, shape.d_model)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.wo(F.relu(self.wi(x)))
        return out


class _Gated(nn.Module):
    """GELU times a linear map, between two linear maps."""

    def __init__(self, shape: T5Shape) -> None:
        super().__init__()
        self.wi_0, self.wi_1 = (_linear(shape.d_model, shape.d_ff) for _ in range(2))
        self.wo = _linear(shape.d_ff, shape.d_model)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.wo(F.gelu(self.wi_0(x), approximate="tanh") * self.wi_1(x))
        return out


def _linear(inputs: int, outputs: int, spread: float | None = None) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=inputs**-0.5 if spread is None else spread)
    return layer


class _RootMeanSquare(nn.Module):
    """x/√(mean x² + ε), scaled: LayerNorm without mean and bias."""

    def __init__(self, shape: T5Shape) -> None:
        super().__init__()
        self._eps = shape.layer_norm_epsilon
        self.weight = nn.Parameter(torch.ones(shape.d_model))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * (x.square().mean(-1, keepdim=True) + self._eps).rsqrt()


def distance_kind(distance: Tensor, kinds: int, largest: int) -> Tensor:
    """The kind 0 … kinds − 1 of a distance between tokens: one for each small one, by its logarithm up to the largest, by sign.

    Example:
        >>> distance_kind(torch.tensor([-3, 0, 3, 100, 1000]), 32, 128).tolist()
        [3, 0, 19, 31, 31]
    """
    half = kinds // 2
    size, exact = distance.abs(), half // 2
    grown = exact + (torch.log(size.clamp_min(1) / exact) / math.log(largest / exact) * (half - exact)).long()
    return half * (distance > 0).long() + torch.where(size < exact, size, grown.clamp_max(half - 1))
