"""A model of transformers as a function of one tensor of real numbers: pixels, sounds, or the embeddings of tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from biascope.runs.failures import FOREIGN

#: Beside the name that a model gives its main input: what it takes in its place, if that has no gradient.
_REAL = {"input_ids": "inputs_embeds"}
KNOWN = ("inputs_embeds", "pixel_values", "input_features", "input_values")


class OneTensor(nn.Module):
    """A model that takes its main input alone, and gives one row of numbers for each.

    Tokens have no gradient, so a model of texts takes their embeddings, in units of the standard deviation of its table of tokens: a
    Gaussian input is as long as a token. Its table is left out where nothing else uses it.

    Attention is computed step by step ("eager"): fused attention has no forward mode.

    Args:
        model: A model of transformers, or an adapter on one.
        scale: What inputs are multiplied by.
        causal: Whether a position sees those before it alone.

    Attributes:
        takes: Name of the input.
    """

    def __init__(self, model: Any, *, scale: float = 1.0, causal: bool = False) -> None:
        super().__init__()
        self.takes = taken_by(model)
        self.scale, self.causal = scale, causal
        if self.takes == "inputs_embeds" and not _is_tied(model):
            model.set_input_embeddings(nn.Identity())
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """The outputs that :func:`read` chooses."""
        return read(self.model(**{self.takes: self.scale * x}), self.causal)


def taken_by(model: Any) -> str:
    """The name of the real input of a model."""
    named = getattr(model, "main_input_name", "input_ids")
    return _REAL.get(named, named)


def read(outputs: Any, causal: bool) -> Tensor:
    """One row for each input: logits, else what the model itself pools, else its last layer.

    Where there is a row for each position, it is the last one of a causal model, which has seen all others, and else their mean.
    """
    found: Tensor | None = next(
        (
            value
            for name in ("logits", "image_embeds", "pooler_output", "last_hidden_state")
            if isinstance(value := getattr(outputs, name, None), Tensor)
        ),
        None,
    )
    if found is None:
        known = ", ".join(outputs) if isinstance(outputs, dict) else type(outputs).__name__
        raise ValueError(f"The model must give logits or a last layer, got {known}. Wrap it to return one tensor.")
    if found.dim() == 3:  # (n, positions, width)
        return found[:, -1] if causal else found.mean(1)
    return found.flatten(1)


def readout_in_words(outputs: Any, causal: bool) -> str:
    """What :func:`read` reads of outputs, where it is not what a classifier gives; else empty."""
    logits = getattr(outputs, "logits", None)
    if isinstance(logits, Tensor) and logits.dim() == 2:
        return ""
    if isinstance(getattr(outputs, "pooler_output", None), Tensor) and logits is None:
        return "pooled by the model"
    return "at the last position" if causal else "mean over positions"


def table_scale(model: Any) -> float:
    """The standard deviation of the table of tokens, to two digits; 1 without one."""
    if taken_by(model) != "inputs_embeds":
        return 1.0
    table = getattr(model.get_input_embeddings(), "weight", None)
    return 1.0 if table is None or not table.numel() else float(f"{float(table.detach().float().std()):.2g}") or 1.0


def _is_tied(model: Any) -> bool:
    """Whether a model reads its outputs with the table of tokens."""
    table = getattr(model.get_input_embeddings(), "weight", None)
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return table is not None and head is not None and getattr(head, "weight", None) is table


def is_causal(config: Any, model: Any) -> bool:
    """Whether a position of a model sees those before it alone, as one masked position after it tells."""
    if taken_by(model) != "inputs_embeds" or getattr(config, "is_encoder_decoder", False):
        return False
    width = getattr(config, "hidden_size", None)
    if width is None:
        return False
    was_training = model.training
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 4, width, generator=generator)
    other = x.clone()
    other[:, -1] += 1
    try:
        with torch.no_grad():
            one, two = (_by_position(model.eval()(inputs_embeds=each)) for each in (x, other))
    finally:
        model.train(was_training)
    return one is not None and two is not None and bool((one[:, 0] == two[:, 0]).all())


def position_read(model: Any, x: Tensor, causal: bool) -> int | None:
    """The one position that :func:`read` looks at in the last layer, counted from the end if it is the last; ``None`` for several."""
    was_training = model.training
    try:
        with torch.enable_grad():
            outputs = model.eval()(**{taken_by(model): x.requires_grad_()}, output_hidden_states=True)
            last = (getattr(outputs, "hidden_states", None) or (None,))[-1]
            if last is None:
                return None
            (slope,) = torch.autograd.grad(read(outputs, causal).sum(), last, allow_unused=True)
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
