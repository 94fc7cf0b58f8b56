"""One row panel of a tangent kernel: passes over the samples, then every parameter's share in order."""

# n samples · r rows of the panel · c columns · q parameters of a block

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from biascope.families.inputs import placed, sample_count, taken
from biascope.families.network import Network
from biascope.kernels.plan import Part, Sizes, passes
from biascope.kernels.rules import GradientRule, Held, PairRule, product
from biascope.kernels.uses import Uses, layer_uses
from biascope.runs.autotune import Timings
from biascope.runs.rehearsal import counted, rehearsing
from biascope.runs.run import Run

_SIDE = 1024  # of the matrices that a multiply-add is timed on
_FEW = 8  # samples that a pass is timed on first …
_SOON = 1.0  # … and seconds that one over more samples may take


class Panel:
    """One row panel of a kernel, for one output.

    Args:
        network: On the device, in the precision that it is differentiated in.
        parts: Its parameters and their rules.
        sizes: How much is done at a time.
        x: Samples of the rows, and of the columns where there are no others.
        other: Samples of the columns of a rectangular kernel.
        first: The first row.
        last: Behind the last row; in a symmetric kernel also behind the last column.
        output: Which of several outputs.
        run: Device and precision.
    """

    def __init__(
        self,
        network: Network,
        parts: Sequence[Part],
        sizes: Sizes,
        x: Any,
        other: Any,
        first: int,
        last: int,
        output: int | None,
        run: Run,
    ) -> None:
        self.network, self.parts, self.sizes, self.output = network, parts, sizes, output
        self.x, self.other, self.first, self.last = x, other, first, last
        self._like = next(iter(network.params.values()))
        # What is multiplied may be rounded further than what is differentiated: a unit that rounding puts on the other side of
        # a kink changes its sample's gradients by percents (one sample in 65 of a small ReLU network in tf32).
        self._differentiating = dataclasses.replace(run, precision="float32")
        self.kept_as = torch.bfloat16 if run.precision == "bfloat16" else self._like.dtype

    def rows(self) -> Tensor:
        """``(r, last)`` of the lower triangle, or ``(r, m)``."""
        symmetric = self.other is None
        width = self.last if symmetric else sample_count(self.other)
        out = torch.zeros(self.last - self.first, width, dtype=self._like.dtype, device=self._like.device)
        count = width + (0 if symmetric else self.last - self.first)
        pairs = (self.last**2 - self.first**2) // 2 if symmetric else out.numel()
        work = {part.name: part.rule.cost.total(count, pairs, out.device.type) for part in self.parts}
        groups, each = passes(self.parts, count, self.sizes), self._differentiation()
        with counted("multiply-adds", int(sum(work.values())) + len(groups) * count * each) as advance:

            def held(x: Any, start: int, stop: int, group: list[Part]) -> dict[str, Held]:
                return self._held(x, start, stop, group, lambda samples: advance(samples * each))

            for group in groups:
                if symmetric:
                    columns = held(self.x, 0, self.last, group)
                    rows = {name: [part[self.first :] for part in kept] for name, kept in columns.items()}
                else:
                    columns = held(self.other, 0, width, group)
                    rows = held(self.x, self.first, self.last, group)
                for part in group:
                    for share in self._add(out, part, rows.pop(part.name), columns.pop(part.name), symmetric):
                        advance(int(share * work[part.name]))
        return out

    def _differentiation(self) -> int:
        """What the pass over one sample is worth in multiply-adds, by the clock; 0 where nobody asks how long it takes."""
        if not rehearsing():
            return 0
        square = self._like.new_ones(_SIDE, _SIDE)
        timings = Timings[str](self._like.device)
        for samples in (min(_FEW, self.last), min(self.sizes.chunk, self.last)):
            if timings.seconds.get("sample", 0.0) * samples > _SOON:
                break  # many are not much faster than few
            some = self._placed(self.x, slice(samples))
            timings.timed("multiply-add", lambda: square @ square, units=_SIDE**3)
            differentiated = functools.partial(layer_uses, self.network, some, self.output, [])
            with self._differentiating.products():
                timings.timed("sample", differentiated, units=samples)
        return round(timings.seconds["sample"] / timings.seconds["multiply-add"])

    def _placed(self, x: Any, span: slice) -> Any:
        return placed(taken(x, span), self._like.device, self._like.dtype)

    def _held(
        self, x: Any, start: int, stop: int, group: list[Part], advance: Callable[[int], None]
    ) -> dict[str, Held]:
        """What the rules of a group keep of some samples, by chunks, each of which is counted."""
        by_itself = [part.name for part in group if part.rule.name == "by differentiation"]
        whole: dict[str, Held] = {}
        for begin in range(start, stop, self.sizes.chunk):
            end = min(stop, begin + self.sizes.chunk)
            chunk = self._placed(x, slice(begin, end))
            with self._differentiating.products():
                uses = layer_uses(self.network, chunk, self.output, by_itself)
            for part in group:
                _check_use(part, uses, end - begin)
                pieces = part.rule.held(uses.of(part.name), end - begin)
                if part.name not in whole:
                    whole[part.name] = [
                        piece.new_empty(stop - start, *piece.shape[1:], dtype=self._type(piece)) for piece in pieces
                    ]
                for kept, piece in zip(whole[part.name], pieces, strict=True):
                    kept[begin - start : end - start] = piece
            advance(end - begin)
        return whole

    def _type(self, piece: Tensor) -> torch.dtype:
        return self.kept_as if piece.is_floating_point() else piece.dtype

    def _add(self, out: Tensor, part: Part, rows: Held, columns: Held, symmetric: bool) -> Iterator[float]:
        """Add one parameter's share to a panel; yields how much of the work was done, block by block."""
        rule = part.rule
        if isinstance(rule, PairRule):
            yield from self._add_pairs(out, rule, rows, columns, symmetric)
        elif isinstance(rule, GradientRule):
            each = max(1, self.sizes.block // (max(1, rule.row_size) * out.shape[1]))
            for start in range(0, rule.rows, each):
                right = self._columns(rule, columns, start, min(rule.rows, start + each))
                if symmetric:
                    left = right[self.first :]
                else:
                    left = self._columns(rule, rows, start, min(rule.rows, start + each))
                for top, bottom, end in self._row_tiles(out, symmetric):
                    _add_product(out[top:bottom, :end], left[top:bottom], right[:end])
                yield min(each, rule.rows - start) / rule.rows

    def _columns(self, rule: GradientRule, held: Held, start: int, stop: int) -> Tensor:
        """A block of gradients of all samples, formed by as many at a time as what they read allows."""
        step = max(1, self.sizes.block // max(1, rule.scratch))
        count = len(held[0])
        if step >= count or not rule.scratch:
            return rule.columns(held, start, stop)
        found = torch.empty(count, (stop - start) * rule.row_size, dtype=held[0].dtype, device=held[0].device)
        for begin in range(0, count, step):
            found[begin : begin + step] = rule.columns([part[begin : begin + step] for part in held], start, stop)
        return found

    def _row_tiles(self, out: Tensor, symmetric: bool) -> list[tuple[int, int, int]]:
        """Rows in tiles, with the column at which the lower triangle of each ends."""
        height = max(256, math.ceil(len(out) / 16)) if symmetric else len(out)
        tiles = []
        for top in range(0, len(out), height):
            bottom = min(len(out), top + height)
            tiles.append((top, bottom, self.first + bottom if symmetric else out.shape[1]))
        return tiles

    def _add_pairs(self, out: Tensor, rule: PairRule, rows: Held, columns: Held, symmetric: bool) -> Iterator[float]:
        side = max(1, math.isqrt(self.sizes.block // rule.pair_size))
        height = min(len(out), side)
        width = max(side, self.sizes.block // (rule.pair_size * height))
        for top in range(0, len(out), height):
            bottom = min(len(out), top + height)
            end = self.first + bottom if symmetric else out.shape[1]
            some = [part[top:bottom] for part in rows]
            for begin in range(0, end, width):
                until = min(end, begin + width)
                out[top:bottom, begin:until] += rule.tile(some, [part[begin:until] for part in columns])
            yield (bottom - top) / len(out)


def _check_use(part: Part, uses: Uses, samples: int) -> None:
    if not part.fits(uses, samples):
        raise ValueError(
            f"The rule of {part.name!r} needs the same layer calls in every batch, but a batch of {samples} samples gave "
            "other calls than its proof. Exclude it with parameters=[…]."
        )


def _add_product(out: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype == out.dtype:
        out.addmm_(left, right.T)
    else:
        out += product(left, right)
