"""The contribution of each parameter to the tangent kernel: one rule per kind of layer, chosen by operations and memory.

With inputs ``A_i``, patches ``U_i`` (S positions × f) and output gradients ``B_i`` (S × C) of sample ``i``, a weight
contributes ``⟨B_iᵀU_i, B_jᵀU_j⟩`` to entry (i, j). Rules compute it in different orders:

==============  ===============================================  ==============================
per sample      the gradient ``B_iᵀU_i``, then products of rows  C·f per pair
by position     ``Σ_st (U_i U_jᵀ)_st (B_i B_jᵀ)_st``             S²(f + C) per pair
by shift        the same, ``U_i U_jᵀ`` as shifted sums of the    S_in²C_in + S²(k + C) per pair
                Gram matrix of channels
by id           the same, for embeddings: equal ids              S²(1 + C) per pair
==============  ===============================================  ==============================

A linear layer without positions is the rule by position with S = 1: ``(A Aᵀ) ∘ (B Bᵀ)``.

Reference:
    Novak, Sohl-Dickstein, Schoenholz (2022). Fast finite width neural tangent kernel. ICML.
"""

# n samples · r, c samples of a tile · S positions · f inputs of a unit · C outputs · q columns

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from biascope.kernels.layer_gradients import (
    both_ways,
    image_padding,
    kept_ids,
    output_gradients,
    patches,
    sample_gradients,
    weighs,
)
from biascope.kernels.uses import Call, Uses

Held = list[Tensor]  # what a rule keeps of a batch; each with a leading axis over samples

# Reading or writing a number outside of a matrix product, in units of one multiply-add inside: products are that much
# faster than memory.
TOUCH = {"cpu": 16.0, "cuda": 125.0}


class Cost(NamedTuple):
    """The cost of a rule.

    Attributes:
        per_sample: Multiply-adds for each sample.
        per_pair: Multiply-adds for each pair of samples.
        touched: Numbers read and written for each pair, outside of products.
        kept: Numbers kept for each sample.
    """

    per_sample: float
    per_pair: float
    touched: float
    kept: int

    def total(self, samples: float, pairs: float, device: str) -> float:
        """All work, in multiply-adds."""
        return samples * self.per_sample + pairs * (self.per_pair + TOUCH.get(device, TOUCH["cpu"]) * self.touched)


class Rule(ABC):
    """How one parameter contributes."""

    name: str
    cost: Cost

    @abstractmethod
    def held(self, uses: list[tuple[Call, str]], samples: int) -> Held:
        """What to keep of a batch."""


class GradientRule(Rule):
    """Per-sample gradients by blocks of columns: a block ``Φ`` (n, q) contributes ``ΦΦᵀ``."""

    rows: int  # first axis of the parameter, along which it is cut into blocks
    row_size: int
    scratch: int  # numbers per sample needed while a block is formed

    @abstractmethod
    def columns(self, held: Held, first: int, last: int) -> Tensor:
        """Gradients by rows ``first … last−1`` of the parameter, ``(n, q)``."""


class PairRule(Rule):
    """Contributions of pairs of samples directly, by tiles."""

    pair_size: int  # numbers per pair needed while a tile is formed

    @abstractmethod
    def tile(self, rows: Held, columns: Held) -> Tensor:
        """Contributions of pairs, ``(r, c)``."""


class PerSample(GradientRule):
    """Gradients of a parameter, summed over its uses before any product.

    Formed at once where they are smaller than what they are formed from; otherwise block by block.
    """

    name = "per sample"

    def __init__(self, uses: list[tuple[Call, str]], samples: int, shape: torch.Size) -> None:
        self.rows, self.row_size = (shape[0], shape[1:].numel()) if shape else (1, 1)
        if uses[0][0].kind == "differentiation":
            self.name = "by differentiation"
        self._like = [(call.kind, role, call.settings) for call, role in uses]
        kept = sum(call.inputs.numel() + call.gradient.numel() for call, _ in uses) // samples
        read = [patches(call, samples) for call, role in uses if weighs(call, role)]
        self.scratch = max((each[0].numel() for each in read), default=0)
        self.formed = shape.numel() <= kept or not read
        work = sum(each.shape[1] for each in read) * shape.numel()
        self.cost = Cost(work or kept, shape.numel(), 0, shape.numel() if self.formed else kept)

    @override
    def held(self, uses: list[tuple[Call, str]], samples: int) -> Held:
        if self.formed:
            parts = [sample_gradients(call, role, samples, 0, self.rows).flatten(1) for call, role in uses]
            return [parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)]
        return [_led(part, samples) for call, _ in uses for part in (call.inputs, call.gradient)]

    @override
    def columns(self, held: Held, first: int, last: int) -> Tensor:
        if self.formed:
            return held[0][:, first * self.row_size : last * self.row_size]
        parts = []
        for index, (kind, role, settings) in enumerate(self._like):
            inputs, back = (part.flatten(0, 1) for part in held[2 * index : 2 * index + 2])
            call = Call(kind, None, None, inputs, settings, back)
            parts.append(sample_gradients(call, role, len(held[0]), first, last).flatten(1))
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


def _led(tensor: Tensor, samples: int) -> Tensor:
    """``(n, r, …)`` of ``(n·r, …)``."""
    return tensor.reshape(samples, -1, *tensor.shape[1:])


class ByPosition(PairRule):
    """``Σ_st (U_i U_jᵀ)_st (B_i B_jᵀ)_st``; for a linear layer without positions ``(A Aᵀ) ∘ (B Bᵀ)``."""

    name = "by position"

    def __init__(self, uses: list[tuple[Call, str]], samples: int, shape: torch.Size) -> None:
        read = patches(uses[0][0], samples)
        self.positions, width = read.shape[1:]
        if self.positions == 1:
            self.name = "Hadamard"
        pairs = self.positions**2
        self.pair_size = 2 * pairs
        self.cost = Cost(0, pairs * (width + shape[0]), 5 * pairs, self.positions * (width + shape[0]))

    @override
    def held(self, uses: list[tuple[Call, str]], samples: int) -> Held:
        call = uses[0][0]
        return [patches(call, samples), output_gradients(call, samples)]

    @override
    def tile(self, rows: Held, columns: Held) -> Tensor:
        return _hadamard(_grams(rows[0], columns[0]), _grams(rows[1], columns[1]), len(rows[0]), self.positions)


def _grams(rows: Tensor, columns: Tensor) -> Tensor:
    """All products of positions, ``(r·S, c·S)``."""
    return product(rows.flatten(0, 1), columns.flatten(0, 1))


def product(rows: Tensor, columns: Tensor) -> Tensor:
    """``R Cᵀ``; of bfloat16 numbers summed, and given, in float32."""
    if rows.dtype != torch.bfloat16:
        return rows @ columns.T
    if rows.device.type == "cuda":
        return torch.mm(rows, columns.T, out_dtype=torch.float32)
    return rows.float() @ columns.float().T


def _hadamard(first: Tensor, second: Tensor, rows: int, positions: int) -> Tensor:
    """Sum over positions of the product of two Gram matrices, ``(r, c)``."""
    both = first.mul_(second)
    if positions == 1:
        return both
    return both.reshape(rows, positions, -1, positions).sum((1, 3))


class ByShift(PairRule):
    """By position, with the Gram matrix of patches as sums of shifted Gram matrices of channels (stride 1, one group)."""

    name = "by shift"

    def __init__(self, uses: list[tuple[Call, str]], samples: int, shape: torch.Size) -> None:
        call = uses[0][0]
        images = call.inputs.unsqueeze(2) if call.inputs.dim() == 3 else call.inputs
        self._kernel, self._dilation, self._padding = (
            both_ways(call, "kernel"),
            both_ways(call, "dilation"),
            image_padding(call),
        )
        self._size, channels = tuple(images.shape[2:]), images.shape[1]
        self._out = call.gradient.shape[2:] if call.gradient.dim() == 4 else (1, call.gradient.shape[2])
        inward, outward = math.prod(self._size) ** 2, math.prod(self._out) ** 2
        padded = math.prod(s + a + b for s, (a, b) in zip(self._size, self._amounts, strict=True)) ** 2
        self.pair_size = inward + 2 * padded + 2 * outward
        # Framed by zeros, summed along rows and along columns of the kernel, multiplied and summed over positions.
        between = math.prod((self._out[0], self._size[1] + sum(self._amounts[1]))) ** 2
        framing = padded + 2 * inward if padded > inward else 0
        touched = framing + 3 * (between * self._kernel[0] + outward * self._kernel[1]) + 5 * outward
        kept = call.inputs[0].numel() + call.gradient[0].numel()
        self.cost = Cost(0, inward * channels + outward * shape[0], touched, kept)

    @property
    def _amounts(self) -> list[tuple[int, int]]:
        left, right, top, bottom = self._padding
        return [(top, bottom), (left, right)]

    @override
    def held(self, uses: list[tuple[Call, str]], samples: int) -> Held:
        call = uses[0][0]
        return [call.inputs.flatten(2).transpose(1, 2).contiguous(), output_gradients(call, samples)]

    @override
    def tile(self, rows: Held, columns: Held) -> Tensor:
        r, c, (height, width) = len(rows[0]), len(columns[0]), self._size
        gram = _grams(rows[0], columns[0]).reshape(r, height, width, c, height, width)
        if any(self._padding):
            left, right, top, bottom = self._padding
            tall, wide = height + top + bottom, width + left + right
            framed = gram.new_zeros(r, tall, wide, c, tall, wide)
            framed[:, top : top + height, left : left + width, :, top : top + height, left : left + width] = gram
            gram = framed
        # Rows of the kernel first, then its columns: k₁ + k₂ shifts instead of k₁·k₂.
        gram = _diagonal_sums(gram, 1, self._kernel[0], self._dilation[0], self._out[0])
        gram = _diagonal_sums(gram, 2, self._kernel[1], self._dilation[1], self._out[1])
        positions = math.prod(self._out)
        return _hadamard(gram.reshape(r * positions, c * positions), _grams(rows[1], columns[1]), r, positions)


def _diagonal_sums(gram: Tensor, axis: int, size: int, dilation: int, out: int) -> Tensor:
    """``Σ_δ G[…, s + δ, …, t + δ, …]`` over both samples' positions along one axis of the image."""
    total: Tensor | None = None
    for step in range(0, size * dilation, dilation):
        part = gram.narrow(axis, step, out).narrow(axis + 3, step, out)
        total = part.clone() if total is None else total.add_(part)
    assert total is not None
    return total


class ById(PairRule):
    """An embedding: positions with equal ids, ``Σ_st [id_is = id_jt] (B_i B_jᵀ)_st``."""

    name = "by id"

    def __init__(self, uses: list[tuple[Call, str]], samples: int, shape: torch.Size) -> None:
        call = uses[0][0]
        self.positions = call.inputs.reshape(samples, -1).shape[1]
        self.pair_size = 2 * self.positions**2
        width = shape[1]
        self.cost = Cost(0, self.positions**2 * width, 6 * self.positions**2, self.positions * (width + 1))

    @override
    def held(self, uses: list[tuple[Call, str]], samples: int) -> Held:
        call = uses[0][0]
        ids = call.inputs.reshape(samples, -1)
        back = output_gradients(call, samples)
        return [ids, back * kept_ids(call, ids)[:, :, None]]

    @override
    def tile(self, rows: Held, columns: Held) -> Tensor:
        equal = rows[0].reshape(-1, 1) == columns[0].reshape(1, -1)
        return _hadamard(_grams(rows[1], columns[1]), equal, len(rows[0]), self.positions)


def possible_rules(uses: Uses, name: str, samples: int, shape: torch.Size) -> list[Rule]:
    """The rules that hold for a parameter by how it was used; none if it was used differently."""
    own = uses.of(name)
    if name in uses.raw or not own or any(len(call.inputs) % samples for call, _ in own):
        return []
    rules: list[Rule] = [PerSample(own, samples, shape)]
    call, role = own[0]
    if len(own) > 1 or role == "bias" or call.kind in ("normalisation", "differentiation"):
        return rules
    if call.kind == "embedding":
        return [*rules, ById(own, samples, shape)]
    if (call.settings.get("groups") or 1) > 1:
        return rules
    rules.append(ByPosition(own, samples, shape))
    images = call.kind == "convolution" and len(call.inputs) == samples
    if images and both_ways(call, "stride") == (1, 1) and both_ways(call, "kernel") != (1, 1):
        rules.append(ByShift(own, samples, shape))
    return rules
