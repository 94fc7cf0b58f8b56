"""BERT as an encoder of texts: token ids to the mean of the last layer's tokens. MiniLM-L6 is one of these."""

# n texts · t tokens · w width

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from biascope.editing.encoders.attention import attended, hiding, mean_over


@dataclass(frozen=True)
class BertShape:
    """The sizes of a BERT, by the names that Hugging Face's config.json has for them. The defaults are MiniLM-L6's."""

    vocab_size: int = 30522
    hidden_size: int = 384
    num_hidden_layers: int = 6
    num_attention_heads: int = 12
    intermediate_size: int = 1536
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0


def bert(shape: BertShape | None = None, *, pooled: bool = False) -> nn.Module:
    """BERT without its classifier: token ids ``(n, t)`` to features ``(n, w)``, the mean over all tokens but padding.

    Ids may come as floating-point numbers, as a task serves its inputs; they are whole. Attention does not see padding. Names
    are those of Hugging Face's ``BertModel``. Random weights are N(0, 0.02²), biases 0.

    Args:
        shape: Sizes; MiniLM-L6's by default.
        pooled: Whether features are those that a classifier of Hugging Face sees, the first token after BERT's pooler.

    Example:
        >>> sum(p.numel() for p in bert().parameters())
        22565376

    Reference:
        Devlin et al., BERT: pre-training of deep bidirectional transformers, NAACL 2019. Wang et al., MiniLM, NeurIPS 2020.
    """
    return _Bert(shape or BertShape(), pooled)


class _Bert(nn.Module):
    def __init__(self, shape: BertShape, pooled: bool) -> None:
        super().__init__()
        self._pad = shape.pad_token_id
        self.embeddings = _Embeddings(shape)
        self.encoder = _Layers(shape)
        width = shape.hidden_size
        self.pooler = nn.ModuleDict({"dense": nn.Linear(width, width)}) if pooled else None
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Embedding):
                nn.init.normal_(layer.weight, std=0.02)
            if isinstance(layer, nn.Linear):
                nn.init.zeros_(layer.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Features ``(n, w)``."""
        ids = tokens.long()
        shown = ids != self._pad
        x = self.embeddings(ids)
        x = self.encoder(x, hiding(shown, x))
        return mean_over(x, shown) if self.pooler is None else self.pooler["dense"](x[:, 0]).tanh()


class _Embeddings(nn.Module):
    """What a token is, where it is, and that all are of the first segment; normalised."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        width = shape.hidden_size
        self.word_embeddings = nn.Embedding(shape.vocab_size, width)
        self.position_embeddings = nn.Embedding(shape.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(shape.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, eps=shape.layer_norm_eps)

    def forward(self, ids: Tensor) -> Tensor:
        place = self.position_embeddings(torch.arange(ids.shape[-1], device=ids.device))
        segment = self.token_type_embeddings(torch.zeros_like(ids))
        out: Tensor = self.LayerNorm(self.word_embeddings(ids) + segment + place)
        return out


class _Layers(nn.Module):
    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.layer = nn.ModuleList(_Layer(shape) for _ in range(shape.num_hidden_layers))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        for layer in self.layer:
            x = layer(x, bias)
        return x


class _Layer(nn.Module):
    """Attention, then a perceptron, each added to its input and normalised after."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        width, eps = shape.hidden_size, shape.layer_norm_eps
        self.attention = nn.ModuleDict(
            {"self": _Attention(width, shape.num_attention_heads), "output": _Added(width, width, eps)}
        )
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, shape.intermediate_size)})
        self.output = _Added(shape.intermediate_size, width, eps)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = self.attention["output"](x, self.attention["self"](x, bias))
        out: Tensor = self.output(x, F.gelu(self.intermediate["dense"](x)))
        return out


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads, self._scale = heads, (width // heads) ** -0.5
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        return attended(self.query(x) * self._scale, self.key(x), self.value(x), self._heads, bias)


class _Added(nn.Module):
    """A branch, mapped linearly, added to the input and normalised."""

    def __init__(self, inputs: int, width: int, eps: float) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, width)
        self.LayerNorm = nn.LayerNorm(width, eps=eps)

    def forward(self, x: Tensor, branch: Tensor) -> Tensor:
        out: Tensor = self.LayerNorm(x + self.dense(branch))
        return out
