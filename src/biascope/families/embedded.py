"""A network on token ids as a function of their embeddings, since ids have no gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from biascope.families.readout import single_output
from biascope.runs.failures import FOREIGN, reason_of
from biascope.runs.randomness import forked_rng


class _Given(nn.Module):
    """In place of a table of tokens: gives what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: Tensor | None = None

    def forward(self, ids: Tensor) -> Tensor:
        """The rows that stand for the ids."""
        assert self.rows is not None
        return self.rows


class OnEmbeddings(nn.Module):
    """A module on token ids as a function of their embeddings, positions × width, in units of the table's standard deviation.

    Args:
        module: Takes ids ``(n, positions)``.
        place: Of its table of tokens among its layers.
        positions: Length of a text.
        scale: What inputs are multiplied by.
    """

    def __init__(self, module: nn.Module, place: str, positions: int, scale: float) -> None:
        super().__init__()
        self.given, self.positions, self.scale = _Given(), positions, scale
        parent, _, name = place.rpartition(".")
        setattr(module.get_submodule(parent), name, self.given)
        self.module = module

    def forward(self, x: Tensor) -> Any:
        """Outputs where each text has these embeddings."""
        self.given.rows = self.scale * x
        try:
            return self.module(torch.ones(len(x), self.positions, dtype=torch.long, device=x.device))
        finally:
            self.given.rows = None


def on_embeddings(
    build: Callable[[], nn.Module], shape: tuple[int, int], name: str
) -> Callable[[nn.Module], nn.Module] | None:
    """What makes a module of embeddings of each that the builder returns; ``None`` if it does not take token ids.

    Args:
        build: The builder.
        shape: Positions × width.
        name: Of the network, for errors.

    Raises:
        ValueError: If it takes ids, but has no table of this width, or uses the ids elsewhere too.
    """
    with forked_rng(0):
        module = build().eval()
    positions, width = shape
    if (place := _table_of(module, positions, name)) is None:
        return None
    table = module.get_submodule(place)
    assert isinstance(table, nn.Embedding)
    if table.embedding_dim != width:
        raise ValueError(
            f"{name} has embeddings of {table.embedding_dim} channels, got {positions}×{width}. Pass --input "
            f"{positions}x{table.embedding_dim}."
        )
    if _outputs_elsewhere(module, table, positions):
        raise ValueError(
            f"{name} must use token ids in its table alone, but they also change its outputs where the embeddings stay, as a mask "
            "does. Wrap it to take embeddings."
        )
    scale = float(f"{float(table.weight.detach().std()):.2g}") or 1.0  # one for all draws of the table
    return functools.partial(OnEmbeddings, place=place, positions=positions, scale=scale)


def _table_of(module: nn.Module, positions: int, name: str) -> str | None:
    """The place of the table that takes the ids themselves; ``None`` if the network does not take ids."""
    ids = torch.ones(2, positions, dtype=torch.long)
    found: list[str] = []
    handles = [
        layer.register_forward_pre_hook(
            lambda _, given, place=place: (
                found.append(place) if given and given[0].data_ptr() == ids.data_ptr() else None
            )
        )
        for place, layer in module.named_modules()
        if isinstance(layer, nn.Embedding)
    ]
    if not handles:
        return None
    try:
        with torch.no_grad():
            module(ids)
    except FOREIGN as error:
        if found:
            raise ValueError(
                f"{name} must accept texts of {positions} tokens, and its forward pass failed with: {reason_of(error)}. Pass --input "
                "with another number of positions."
            ) from error
        return None
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def _outputs_elsewhere(module: nn.Module, table: nn.Embedding, positions: int) -> bool:
    """Whether ids change outputs where the rows that the table gives for them do not."""
    rows = torch.randn(2, positions, table.embedding_dim, generator=torch.Generator().manual_seed(0))
    handle = table.register_forward_hook(lambda *_: rows)
    last = table.num_embeddings - 1
    try:
        with torch.no_grad(), forked_rng(0):
            texts = (0, min(1, last), last)
            one, *others = (single_output(module(torch.full((2, positions), each))) for each in texts)
    finally:
        handle.remove()
    return any(not torch.equal(one, other) for other in others)
