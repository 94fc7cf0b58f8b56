"""The image tower of CLIP, a vision transformer: images to embeddings."""

# n images · t tokens · w width · p width of the embedding

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from biascope.editing.encoders.attention import attended


@dataclass(frozen=True)
class TowerShape:
    """The sizes of a tower, by the names that open_clip's ``vision_cfg`` has for them. The defaults are ViT-B/16's, and open_clip's.

    Attributes:
        image_size: Side of the image in pixels.
        patch_size: Side of a patch.
        width: Width of a token.
        layers: Number of blocks.
        head_width: Width of one attention head.
        mlp_ratio: Hidden width of a block's perceptron, in widths of a token.
        embed_dim: Width of the embedding.
        quick_gelu: Whether the activation is ``x·sigmoid(1.702 x)``, as in the first published weights, and not GELU.
    """

    image_size: int = 224
    patch_size: int = 16
    width: int = 768
    layers: int = 12
    head_width: int = 64
    mlp_ratio: float = 4.0
    embed_dim: int = 512
    quick_gelu: bool = False

    @property
    def heads(self) -> int:
        """Attention heads of a block."""
        return self.width // self.head_width


def clip_vision(shape: TowerShape | None = None) -> nn.Module:
    """The image tower of CLIP: images ``(n, 3, s, s)`` to embeddings ``(n, p)``, not normalised.

    Names are those of open_clip's ``visual``. Random weights: tokens, positions and projection N(0, 1/w), queries, keys and values
    Xavier's uniform law, all else PyTorch's default.

    Args:
        shape: Sizes; ViT-B/16's by default.

    Example:
        >>> with torch.device("meta"):
        ...     sum(p.numel() for p in clip_vision().parameters())
        86192640

    Reference:
        Radford et al., Learning transferable visual models from natural language supervision, ICML 2021.
    """
    return _Tower(shape or TowerShape())


class _Tower(nn.Module):
    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        width, scale = shape.width, shape.width**-0.5
        self.conv1 = nn.Conv2d(3, width, shape.patch_size, stride=shape.patch_size, bias=False)
        self.class_embedding = nn.Parameter(torch.empty(width).normal_(std=scale))
        places = (shape.image_size // shape.patch_size) ** 2 + 1
        self.positional_embedding = nn.Parameter(torch.empty(places, width).normal_(std=scale))
        self.ln_pre = nn.LayerNorm(width)
        blocks = nn.Sequential(*[_Block(shape) for _ in range(shape.layers)])
        self.transformer = nn.Sequential(OrderedDict(resblocks=blocks))
        self.ln_post = nn.LayerNorm(width)
        self.proj = nn.Parameter(torch.empty(width, shape.embed_dim).normal_(std=scale))

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings ``(n, p)``."""
        patches = self.conv1(x).flatten(2).transpose(1, 2)  # (n, t - 1, w)
        first = self.class_embedding.expand(len(patches), 1, -1)
        x = self.transformer(self.ln_pre(torch.cat((first, patches), 1) + self.positional_embedding))
        out: Tensor = self.ln_post(x[:, 0]) @ self.proj
        return out


class _Block(nn.Module):
    """Attention, then a perceptron, each of the normalised input and added to it."""

    def __init__(self, shape: TowerShape) -> None:
        super().__init__()
        inside = int(shape.width * shape.mlp_ratio)
        self._quick = shape.quick_gelu
        self.ln_1 = nn.LayerNorm(shape.width)
        self.attn = _Attention(shape.width, shape.heads)
        self.ln_2 = nn.LayerNorm(shape.width)
        layers = OrderedDict(c_fc=nn.Linear(shape.width, inside), c_proj=nn.Linear(inside, shape.width))
        self.mlp = nn.ModuleDict(layers)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        inside = self.mlp["c_fc"](self.ln_2(x))
        inside = inside * torch.sigmoid(1.702 * inside) if self._quick else F.gelu(inside)
        out: Tensor = x + self.mlp["c_proj"](inside)
        return out


class _Attention(nn.Module):
    """The parameters of ``nn.MultiheadAttention``, used by the plain formula."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * width).zero_())
        self.out_proj = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        scale = (query.shape[-1] // self._heads) ** -0.5
        out: Tensor = self.out_proj(attended(query * scale, key, value, self._heads))
        return out
