"""A model of transformers as a function of one tensor of real numbers: pixels, sounds, or the embeddings of tokens."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from biascope.families.named_model import PLAIN, TextReadout
from biascope.runs.failures import FOREIGN

#: Beside the name that a model gives its main input: what it takes in its place, if that has no gradient.
_REAL = {"input_ids": "inputs_embeds"}


class OneTensor(nn.Module):
    """A model that takes its main input alone, and gives one row of numbers for each.

    Tokens have no gradient, so a model of texts takes their embeddings, in units of the standard deviation of its table of tokens: a
    Gaussian input is as long as a token. Its table is left out where nothing else uses it.

    Attention is computed step by step ("eager"): fused attention has no forward mode.

    Args:
        model: A model of transformers, or an adapter on one.
        scale: What inputs are multiplied by.
        causal: Whether a position sees those before it alone.
        readout: How texts go in, and what is read.
        whole: Whether the table of tokens stays: some models ask it for their padding.

    Attributes:
        takes: Name of the input.
    """

    def __init__(
        self, model: Any, *, scale: float = 1.0, causal: bool = False, readout: TextReadout = PLAIN, whole: bool = False
    ) -> None:
        super().__init__()
        without_cache(model)
        self.takes = "input_ids" if readout.ids else taken_by(model)
        self.scale, self.causal, self.readout = scale, causal, readout
        self.left_out: Tensor | None
        chosen = _directions(model.get_input_embeddings().weight, readout.without) if readout.without else None
        self.register_buffer("left_out", chosen)
        if self.takes == "inputs_embeds" and not whole and not _is_tied(model):
            model.set_input_embeddings(nn.Identity())
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """The outputs that :func:`read` chooses."""
        return read(self.model(**{self.takes: self.put_in(x)}), self.causal, readout=self.readout)

    def put_in(self, x: Tensor) -> Tensor:
        """What the model is given for an input."""
        if self.readout.ids:
            return x
        if self.left_out is not None:
            x = x - x @ self.left_out @ self.left_out.mT
        return self.scale * x


class MaskedText(OneTensor):
    """The same for texts of several lengths: a mask, 1 for each position of the text and 0 behind it, may stand beside them."""

    @override
    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if attention_mask is None:
            return super().forward(x)
        outputs = self.model(**{self.takes: self.put_in(x)}, attention_mask=attention_mask)
        return read(outputs, self.causal, attention_mask, self.readout)


def one_tensor(
    model: Any, *, scale: float, causal: bool, readout: TextReadout = PLAIN, whole: bool = False
) -> OneTensor:
    """A model of one tensor, with a mask beside it where the model takes one."""
    masked = taken_by(model) == "inputs_embeds" and "attention_mask" in inspect.signature(model.forward).parameters
    return (MaskedText if masked else OneTensor)(model, scale=scale, causal=causal, readout=readout, whole=whole)


def _directions(table: Tensor, chosen: Sequence[str | int]) -> Tensor:
    """Orthonormal columns that span the chosen rows of a table, or the mean of all."""
    rows = [table.detach().mean(0) if each == "mean" else table.detach()[int(each)] for each in chosen]
    found: Tensor = torch.linalg.qr(torch.stack(rows, dim=1)).Q
    return found


def taken_by(model: Any) -> str:
    """The name of the real input of a model."""
    named = getattr(model, "main_input_name", "input_ids")
    return _REAL.get(named, named)


def read(outputs: Any, causal: bool, mask: Tensor | None = None, readout: TextReadout = PLAIN) -> Tensor:
    """One row for each input: logits, else what the model itself pools, else its last layer.

    Where there is a row for each position, it is the one that the readout asks for. By default, it is the last one of a causal model,
    which has seen all others, and else their mean; of the positions that a mask leaves, where there is one.
    """
    by_position = ("logits", "last_hidden_state")
    known = by_position if readout.position else ("logits", "image_embeds", "pooler_output", "last_hidden_state")
    values = [value for name in known if isinstance(value := getattr(outputs, name, None), Tensor)]
    if readout.position:
        values = [value for value in values if value.dim() == 3]
    if not values:
        wanted = "a row for each position" if readout.position else "logits or a last layer"
        got = ", ".join(outputs) if isinstance(outputs, dict) else type(outputs).__name__
        raise ValueError(f"The model must give {wanted}, got {got}. Wrap it to return one tensor.")
    found = _at_position(values[0], causal, mask, readout.position) if values[0].dim() == 3 else values[0].flatten(1)
    return found[:, list(readout.words)] if readout.words else found


def _at_position(rows: Tensor, causal: bool, mask: Tensor | None, position: str) -> Tensor:
    """One row of those of each position, ``(n, positions, width)``; of the positions that a mask leaves."""
    position = position or ("last" if causal else "mean")
    if position.isdecimal():
        return rows[:, int(position) - 1]
    if mask is None:
        return rows.mean(1) if position == "mean" else rows[:, 0 if position == "first" else -1]
    kept = mask.to(rows)
    if position == "first":
        kept = kept * (kept.cumsum(1) == 1)
    if position == "last":
        kept = kept * (kept.flip(1).cumsum(1).flip(1) == 1)
    return (kept.unsqueeze(-1) * rows).sum(1) / kept.sum(1, keepdim=True)


def readout_in_words(outputs: Any, causal: bool) -> str:
    """What :func:`read` reads of outputs, where it is not what a classifier gives; else empty."""
    logits = getattr(outputs, "logits", None)
    if isinstance(logits, Tensor) and logits.dim() == 2:
        return ""
    if isinstance(getattr(outputs, "pooler_output", None), Tensor) and logits is None:
        return "pooled by the model"
    last = logits if isinstance(logits, Tensor) else getattr(outputs, "last_hidden_state", None)
    if isinstance(last, Tensor) and last.dim() != 3:
        return f"all {last[0].numel():,} numbers of its last layer"
    return "at the last position" if causal else "mean over positions"


def table_scale(model: Any) -> float:
    """The standard deviation of the table of tokens, to two digits; 1 without one."""
    if taken_by(model) != "inputs_embeds":
        return 1.0
    table = getattr(model.get_input_embeddings(), "weight", None)
    return 1.0 if table is None or not table.numel() else float(f"{float(table.detach().float().std()):.2g}") or 1.0


def without_cache(model: Any) -> None:
    """Let a model keep nothing for the next token, which no measurement asks for and some architectures cannot do."""
    for config in (model.config, model.config.get_text_config()):
        if getattr(config, "use_cache", False):
            config.use_cache = False


def width_of_table(model: Any) -> int:
    """Numbers of the embedding of a token, which need not be the width of the layers."""
    table = getattr(model.get_input_embeddings(), "weight", None)
    return int(table.shape[1] if table is not None and table.dim() == 2 else model.config.get_text_config().hidden_size)


def _is_tied(model: Any) -> bool:
    """Whether a model reads its outputs with the table of tokens."""
    table = getattr(model.get_input_embeddings(), "weight", None)
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return table is not None and head is not None and getattr(head, "weight", None) is table


def is_causal(config: Any, model: Any) -> bool:
    """Whether a position of a model sees those before it alone, as one masked position after it tells."""
    if taken_by(model) != "inputs_embeds" or getattr(config, "is_encoder_decoder", False):
        return False
    width = width_of_table(model)
    was_training = model.training
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 4, width, generator=generator)
    other = x.clone()
    other[:, -1] += 1
    try:
        with torch.no_grad():
            one, two = (_by_position(model.eval()(inputs_embeds=each)) for each in (x, other))
    except FOREIGN:  # which is told where its shape is tried
        return False
    finally:
        model.train(was_training)
    return one is not None and two is not None and bool((one[:, 0] == two[:, 0]).all())


def position_read(model: Any, x: Tensor, causal: bool, readout: TextReadout = PLAIN) -> int | None:
    """The one position that :func:`read` looks at in the last layer, counted from the end if it is the last; ``None`` for several."""
    was_training = model.training
    try:
        with torch.enable_grad():
            outputs = model.eval()(**{taken_by(model): x.requires_grad_()}, output_hidden_states=True)
            last = (getattr(outputs, "hidden_states", None) or (None,))[-1]
            if last is None:
                return None
            (slope,) = torch.autograd.grad(read(outputs, causal, readout=readout).sum(), last, allow_unused=True)
    except FOREIGN:  # what it reads is told only where it can be found
        return None
    finally:
        model.train(was_training)
    if slope is None or slope.dim() != 3:
        return None
    places = slope.abs().sum((0, 2)).nonzero().flatten().tolist()
    return None if len(places) != 1 else -1 if places[0] == slope.shape[1] - 1 else int(places[0])


def _by_position(outputs: Any) -> Tensor | None:
    for name in ("last_hidden_state", "logits"):
        value = getattr(outputs, name, None)
        if isinstance(value, Tensor) and value.dim() == 3:
            return value
    return None
