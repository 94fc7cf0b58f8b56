"""HOW: the empirical tangent kernel of a network on a data set, exact, by row panels that can be resumed and shared."""

# n samples · r rows of a panel · c columns · q parameters of a block

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from biascope import weights
from biascope.cluster import device_type
from biascope.family import Network
from biascope.kernel_plan import Part, Sizes, explanation, kernel_parts, passes, sample_count, usual_sizes
from biascope.layer_rules import GradientRule, Held, PairRule, product
from biascope.layer_uses import layer_uses, scalars
from biascope.randomness import seed_of
from biascope.run import Run
from biascope.trials import Group, Outcome, Sweep

KERNELS = ("scalar", "trace", "each")
_CHECKED = 24  # samples on which the error of a precision is measured
_PANELS = 8  # by default, where panels are kept on disk or sent to workers
_SMALL = 2048  # rows below which one panel is enough


@dataclass(frozen=True)
class Gram:
    """A tangent kernel on samples.

    Attributes:
        matrix: ``(n, n)``, or ``(n, m)`` between two sets; ``(p, …)`` where there is one for each output.
        error: Largest deviation from the same kernel in float64 on a few samples, relative to ``√(K_ii K_jj)``.
        parts: The parameters and the rule of each.
        explained: See :meth:`explain`.
    """

    matrix: Tensor
    error: float
    parts: tuple[Part, ...]
    explained: str

    def explain(self) -> str:
        """Which rule, how many operations and how much memory each parameter took."""
        return self.explained


def tangent_gram(
    network: Network,
    x: Any,
    other: Any = None,
    *,
    kernel: str = "scalar",
    parameters: Sequence[str] | None = None,
    panels: int | None = None,
    sizes: Sizes | None = None,
    run: Run | None = None,
    label: str = "tangent kernel",
) -> Gram:
    """The empirical tangent kernel ``K_ij = ∇_θ f(x_i)ᵀ ∇_θ f(x_j)``, exact up to rounding.

    One forward and one backward pass with respect to activations give all layers' inputs and output gradients; each parameter
    then contributes by the cheapest of the rules that are proven for it (see :mod:`biascope.layer_rules`). Row panels are
    outermost: the unit that is kept, resumed and sent to workers. Inside, parameters come in their fixed order, so that a
    panel is the same whoever computes it.

    Args:
        network: One network; with a readout, or one output, for ``kernel="scalar"``.
        x: Samples ``(n, …)``, any pytree.
        other: Other samples, for the rectangular kernel between the two sets.
        kernel: ``"scalar"``; or for several outputs ``"trace"``, the sum of their kernels, or ``"each"``, all of them.
        parameters: Names or patterns of the parameters to differentiate by; all by default.
        panels: In how many panels; one by default, more with a folder or on a cluster.
        sizes: How much is done at a time; chosen by the device's memory.
        run: Folder, device, precision (``"bfloat16"``: gradients rounded to it before they are multiplied), cluster.
        label: Of the progress bar.

    Returns:
        The matrix, with its measured error.

    Raises:
        ValueError: If the network or a setting does not allow it, in one sentence.

    Example:
        >>> network = Network.of(torch.nn.Linear(2, 1, bias=False))
        >>> tangent_gram(network, torch.tensor([[3.0, 4.0], [1.0, 0.0]]), run=Run(device="cpu")).matrix  # K = X Xᵀ
        tensor([[25.,  3.],
                [ 3.,  1.]])

    Reference:
        Jacot, Gabriel, Hongler (2018). Neural tangent kernel. NeurIPS. Novak et al. (2022), as for the rules.
    """
    run = run or Run()
    _check(network, kernel, run)
    samples, others = sample_count(x), None if other is None else sample_count(other)
    pairs = samples * (samples + 1) / 2 if others is None else samples * others
    outputs = _outputs(network, x, kernel)
    parts = kernel_parts(
        network,
        x,
        parameters=parameters,
        output=outputs[0],
        pairs=pairs,
        samples=samples + (others or 0),
        device=device_type(run),
    )
    sizes = sizes or usual_sizes(parts, samples, run)
    engine = Engine(network, parts, tuple(outputs), kernel, sizes, samples, others)
    matrix = engine.matrix(x, other, panels, run, label)
    error = _error(engine, x, other, matrix, run)
    explained = explanation(parts, samples, others, sizes, run.dtype.itemsize)
    return Gram(matrix, error, tuple(parts), explained)


def _check(network: Network, kernel: str, run: Run) -> None:
    if network.members is not None:
        raise ValueError(
            f"A tangent kernel needs one network, and got a stack of {network.members}. Pass network.member(0)."
        )
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be 'scalar', 'trace' or 'each', got {kernel!r}. Pass kernel='scalar'.")
    if run.precision == "float16":
        raise ValueError("A tangent kernel in float16 overflows. Pass precision='bfloat16', 'tf32' or 'float32'.")
    if network.couples_inputs:
        raise ValueError(
            "A tangent kernel needs samples that do not see one another, and BatchNorm is in train mode. "
            "Pass batchnorm='eval'."
        )


def _outputs(network: Network, x: Any, kernel: str) -> list[int | None]:
    """The outputs to differentiate, one after another."""
    one = tree_map(lambda leaf: leaf[:1] if isinstance(leaf, Tensor) else leaf, x)
    like = next(iter(network.params.values()))
    with torch.no_grad():
        found = network(tree_map(lambda leaf: _placed(leaf, like.device, like.dtype).clone(), one))
    if kernel == "scalar":
        scalars(found, None)  # says what to do where there are several
        return [None]
    return list(range(found.reshape(1, -1).shape[1]))


@dataclass(frozen=True)
class Engine:
    """Computes panels of one kernel; what a worker is given."""

    network: Network
    parts: list[Part]
    outputs: tuple[int | None, ...]
    kernel: str
    sizes: Sizes
    samples: int
    others: int | None

    def matrix(self, x: Any, other: Any, panels: int | None, run: Run, label: str) -> Tensor:
        """The whole matrix: on the device where nothing is kept or sent away, else on the CPU."""
        bounds = self._bounds(panels, run)
        if run.folder is None and run.on is None:
            found = [self.panel(x, other, first, last, run) for first, last in bounds]
            return self._assembled(dict(zip(bounds, found, strict=True)))
        keys = {f"rows {first:07d}-{last:07d}": (first, last) for first, last in bounds}
        method = dataclasses.asdict(self.sizes)
        sweep = Sweep(self._identity(x, other, run), run)
        work = _Panels(self, x, other)
        done = sweep.outcomes(list(keys), work, plan=lambda new: [Group((key,), method) for key in new], label=label)
        return self._assembled({keys[key]: outcome["kernel"] for key, outcome in done.items()})

    def _bounds(self, panels: int | None, run: Run) -> list[tuple[int, int]]:
        """Panels of about equal work: rows of a lower triangle grow longer."""
        columns = self.samples if self.others is None else self.others
        alone = run.folder is None and run.on is None
        count = panels or (1 if alone or self.samples < _SMALL else _PANELS)
        if not 1 <= count <= self.samples:
            raise ValueError(f"panels must be between 1 and the {self.samples} samples, got {count}. Pass panels=8.")
        power = 0.5 if self.others is None else 1.0
        edges = sorted({round(self.samples * (index / count) ** power) for index in range(count + 1)})
        assert columns
        return list(itertools.pairwise(edges))

    def _identity(self, x: Any, other: Any, run: Run) -> dict[str, object]:
        state = weights.fingerprint({**self.network.params, **self.network.buffers})
        return {
            "work": "tangent kernel",
            "network": hashlib.sha256(f"{self.network.module!r}{self.network.readout}{state}".encode()).hexdigest()[
                :16
            ],
            "parameters": [part.name for part in self.parts],
            "samples": _content(x),
            "other samples": _content(other),
            "kernel": self.kernel,
            "device type": device_type(run),
            "precision": run.precision,
        }

    def _assembled(self, panels: Mapping[tuple[int, int], Tensor]) -> Tensor:
        """Panels below one another; of a symmetric kernel the upper triangle mirrored."""
        ordered = sorted(panels)
        if self.others is not None:
            return torch.cat([panels[bounds] for bounds in ordered], dim=-2)
        if len(ordered) == 1:
            matrix = panels[ordered[0]]
        else:
            first = panels[ordered[0]]
            matrix = first.new_empty(*first.shape[:-2], self.samples, self.samples)
            for start, stop in ordered:
                matrix[..., start:stop, :stop] = panels[start, stop]
        return _mirrored(matrix)

    def panel(self, x: Any, other: Any, first: int, last: int, run: Run) -> Tensor:
        """Rows ``first … last−1`` of the kernel: ``(r, last)`` of the lower triangle, or ``(r, m)``; ``(p, r, …)`` for each."""
        device = run.torch_device
        dtype = torch.float64 if run.precision == "float64" else torch.float32
        placed = dataclasses.replace(self, network=self.network.to(device, dtype))
        with run.products(), torch.no_grad():
            found = [_Panel(placed, x, other, first, last, output, run, dtype).rows() for output in self.outputs]
        if self.kernel == "each":
            return torch.stack(found)
        total = found[0]
        for part in found[1:]:
            total += part
        return total


@dataclass(frozen=True)
class _Panels:
    """Computes panels by their keys: what a sweep, and a worker elsewhere, calls."""

    engine: Engine
    x: Any
    other: Any

    def __call__(self, keys: Sequence[str], run: Run, method: Mapping[str, Any]) -> dict[str, Outcome]:
        engine = dataclasses.replace(self.engine, sizes=Sizes(**method))
        found: dict[str, Outcome] = {}
        for key in keys:
            first, last = (int(edge) for edge in key.removeprefix("rows ").split("-"))
            found[key] = {"kernel": engine.panel(self.x, self.other, first, last, run)}
        return found


class _Panel:
    """One row panel for one output."""

    def __init__(
        self,
        engine: Engine,
        x: Any,
        other: Any,
        first: int,
        last: int,
        output: int | None,
        run: Run,
        dtype: torch.dtype,
    ) -> None:
        self.engine, self.x, self.other, self.first, self.last = engine, x, other, first, last
        self.output, self.dtype, self.device = output, dtype, run.torch_device
        # What is multiplied may be rounded further than what is differentiated.
        self.kept_as = torch.bfloat16 if run.precision == "bfloat16" else dtype

    def rows(self) -> Tensor:
        engine = self.engine
        symmetric = engine.others is None
        width = self.last if symmetric else engine.others
        assert width is not None
        out = torch.zeros(self.last - self.first, width, dtype=self.dtype, device=self.device)
        count = width + (0 if symmetric else self.last - self.first)
        for group in passes(engine.parts, count, engine.sizes):
            if symmetric:
                columns = self._held(self.x, 0, self.last, group)
                rows = {name: [part[self.first :] for part in held] for name, held in columns.items()}
            else:
                columns = self._held(self.other, 0, width, group)
                rows = self._held(self.x, self.first, self.last, group)
            for part in group:
                self._add(out, part, rows.pop(part.name), columns.pop(part.name), symmetric)
        return out

    def _held(self, x: Any, start: int, stop: int, group: list[Part]) -> dict[str, Held]:
        """What the rules of a group keep of some samples, by chunks."""
        by_itself = [part.name for part in group if part.rule.name == "by differentiation"]
        whole: dict[str, Held] = {}
        for begin in range(start, stop, self.engine.sizes.chunk):
            end = min(stop, begin + self.engine.sizes.chunk)
            chunk = tree_map(lambda leaf: _cut(leaf, begin, end, self.device, self.dtype), x)  # noqa: B023
            uses = layer_uses(self.engine.network, chunk, self.output, by_itself)
            for part in group:
                pieces = part.rule.held(uses.of(part.name), end - begin)
                if part.name not in whole:
                    whole[part.name] = [
                        piece.new_empty(stop - start, *piece.shape[1:], dtype=self._type(piece)) for piece in pieces
                    ]
                for kept, piece in zip(whole[part.name], pieces, strict=True):
                    kept[begin - start : end - start] = piece
        return whole

    def _type(self, piece: Tensor) -> torch.dtype:
        return self.kept_as if piece.is_floating_point() else piece.dtype

    def _add(self, out: Tensor, part: Part, rows: Held, columns: Held, symmetric: bool) -> None:
        """Add one parameter's share to a panel."""
        rule = part.rule
        if isinstance(rule, PairRule):
            self._add_pairs(out, rule, rows, columns, symmetric)
        elif isinstance(rule, GradientRule):
            each = max(1, self.engine.sizes.block // (max(1, rule.row_size) * out.shape[1]))
            for start in range(0, rule.rows, each):
                right = self._columns(rule, columns, start, min(rule.rows, start + each))
                if symmetric:
                    left = right[self.first :]
                else:
                    left = self._columns(rule, rows, start, min(rule.rows, start + each))
                for top, bottom, end in self._row_tiles(out, symmetric):
                    _add_product(out[top:bottom, :end], left[top:bottom], right[:end])

    def _columns(self, rule: GradientRule, held: Held, start: int, stop: int) -> Tensor:
        """A block of gradients of all samples, formed by as many at a time as what they read allows."""
        step = max(1, self.engine.sizes.block // max(1, rule.scratch))
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

    def _add_pairs(self, out: Tensor, rule: PairRule, rows: Held, columns: Held, symmetric: bool) -> None:
        side = max(1, math.isqrt(self.engine.sizes.block // rule.pair_size))
        height = min(len(out), side)
        width = max(side, self.engine.sizes.block // (rule.pair_size * height))
        for top in range(0, len(out), height):
            bottom = min(len(out), top + height)
            end = self.first + bottom if symmetric else out.shape[1]
            some = [part[top:bottom] for part in rows]
            for begin in range(0, end, width):
                until = min(end, begin + width)
                out[top:bottom, begin:until] += rule.tile(some, [part[begin:until] for part in columns])


def _add_product(out: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype == out.dtype:
        out.addmm_(left, right.T)
    else:
        out += product(left, right)


def _cut(leaf: Any, start: int, stop: int, device: torch.device, dtype: torch.dtype) -> Any:
    """Some samples on the device."""
    return _placed(leaf[start:stop], device, dtype) if isinstance(leaf, Tensor) else leaf


def _placed(leaf: Any, device: torch.device, dtype: torch.dtype) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.to(device, dtype if leaf.is_floating_point() else leaf.dtype)


def _mirrored(matrix: Tensor, side: int = 4096) -> Tensor:
    """The upper triangle filled from the lower one, in place and by tiles."""
    size = matrix.shape[-1]
    for start in range(0, size, side):
        stop = min(size, start + side)
        for begin in range(0, start, side):
            matrix[..., begin : begin + side, start:stop] = matrix[..., start:stop, begin : begin + side].mT
        corner = matrix[..., start:stop, start:stop]
        corner.copy_(corner.tril() + corner.tril(-1).mT)
    return matrix


def _content(x: Any) -> str:
    digest = hashlib.sha256()
    for leaf in tree_leaves(x):
        if isinstance(leaf, Tensor):
            digest.update(
                f"{tuple(leaf.shape)}{leaf.dtype}".encode() + leaf.detach().cpu().contiguous().numpy().tobytes()
            )
        else:
            digest.update(repr(leaf).encode())
    return digest.hexdigest()[:16]


def _error(engine: Engine, x: Any, other: Any, matrix: Tensor, run: Run) -> float:
    """How far a few entries are from the same kernel in float64."""
    generator = torch.Generator().manual_seed(seed_of(0, "kernel error"))
    exact = dataclasses.replace(run, folder=None, on=None, precision="float64", progress=False)
    if run.on is not None:
        exact = dataclasses.replace(exact, device="cpu")
    rows = torch.randperm(engine.samples, generator=generator)[:_CHECKED].sort().values
    few = tree_map(lambda leaf: leaf[rows.to(leaf.device)] if isinstance(leaf, Tensor) else leaf, x)
    small = dataclasses.replace(engine, samples=len(rows))
    truth = small.matrix(few, None, 1, exact, "") if other is None else None
    columns = rows
    if truth is None:
        assert engine.others is not None
        columns = torch.randperm(engine.others, generator=generator)[:_CHECKED].sort().values
        some = tree_map(lambda leaf: leaf[columns.to(leaf.device)] if isinstance(leaf, Tensor) else leaf, other)
        truth = dataclasses.replace(small, others=len(columns)).matrix(few, some, 1, exact, "")
    found = matrix[..., rows.to(matrix.device), :][..., columns.to(matrix.device)].double().to(truth.device)
    if other is None:
        lengths = truth.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
        scale = lengths[..., :, None] * lengths[..., None, :]
    else:
        scale = truth.abs().amax((-2, -1), keepdim=True).expand_as(truth)
    return float(((found - truth).abs() / scale.clamp_min(1e-300)).max())
