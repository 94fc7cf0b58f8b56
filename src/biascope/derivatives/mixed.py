"""The mixed derivative ``M_θ = ∇²_{x,θ} f_θ(x)`` of a family's members: a p × D matrix, known by its products.

A row of it is the input gradient of ``∂f/∂θ_j``: it tells how the function that a step in the weights adds varies along the
input. All is done by products with ``M_θ`` and its adjoint, for many columns and, where they are small, many members at once.
"""

# m members · n inputs per member · D input size · p parameters · k columns · T draws

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from biascope.derivatives.covariance import ROUNDED, largest_input, rounded_up
from biascope.derivatives.fast_layers import ConvolutionAsProduct
from biascope.derivatives.gradients import mixed_jvp, mixed_vjp, plain_attention
from biascope.derivatives.moments import unit_of
from biascope.families.acceptance import differentiated
from biascope.families.family import Family
from biascope.families.inputs import on_tensors, taken
from biascope.families.network import Network
from biascope.families.weights import Params
from biascope.runs.failures import reason_of
from biascope.runs.memory import give_back, is_of_the_device, is_out_of_memory
from biascope.runs.run import Run
from biascope.runs.trials import Trials
from biascope.tasks.probe import Probe

_COLUMN_NUMBERS = {"cuda": 2**30}  # numbers that the columns of one go may take …
_COLUMN_BYTES = 2**27  # … and bytes on a CPU
_ACTIVATIONS = 200  # numbers per input entry that a column needs besides those of the weights, roughly

Span = tuple[int, int]
RowsOfMembers = Callable[[Network, Any, Tensor, bool], Tensor]


class MixedDerivative:
    """Products with the mixed derivatives of the members of a family, at the inputs of a probe.

    Exact: ``M v = ∇_θ(vᵀ∇_x f)`` and ``Mᵀu = ∇_x(uᵀ∇_θ f)``. By differences: column i of ``M`` is the published
    ``(∇_θ f(x + h e_i) − ∇_θ f(x − h e_i))/2h``. Along a general direction such a difference is not linear in it where
    the network has kinks, so it is taken along the axes, as for the gradient, and a Gram matrix is symmetric.

    Args:
        family: The networks.
        probe: The inputs; several inputs of one draw are averaged.
        estimator: ``"exact"`` or ``"difference"``.
        step: Half width h of the difference.
        readout: How several outputs become one.
        seed: Random seed for the weights.
        run: Device, precision, folder.

    Attributes:
        size: Input size D.
        parameters: Number of weights p.
        numbers: Most numbers that the columns of one pass may take.

    Raises:
        ValueError: If a setting is wrong.

    Example:
        >>> family = Family.initialised(lambda: torch.nn.Linear(2, 1), name="linear")
        >>> derivative = MixedDerivative(family, Probe.gaussian((2,)), run=Run(device="cpu"))
        >>> derivative.sum_along([(0, 10)], torch.eye(2))  # f = wᵀx + b: ten identities and nothing for b
        tensor([[10.,  0.,  0.],
                [ 0., 10.,  0.]], dtype=torch.float64)
    """

    def __init__(
        self,
        family: Family,
        probe: Probe,
        *,
        estimator: str = "exact",
        step: float = 100.0,
        readout: str = "first",
        seed: int = 0,
        run: Run | None = None,
    ) -> None:
        if estimator not in ("exact", "difference"):
            raise ValueError(f"estimator must be 'exact' or 'difference', got {estimator!r}. Pass estimator='exact'.")
        if estimator == "difference" and (step == 0 or not math.isfinite(step)):
            raise ValueError(f"The step h of the difference must be a number other than 0, got {step}. Pass step=100.")
        self.family, self.probe, self.run = family, probe, run or Run()
        self.readout, self.seed = readout, seed
        self.step = step if estimator == "difference" else None
        family.template.read(readout)
        self._draws = family.draws(seed=seed, run=self.run)
        self.device = self.run.torch_device
        inputs = probe.inputs(0, 1, self.run)
        leaves = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
        lead = 2 if probe.fresh else 1
        family.check_forward(tree_map(lambda leaf: leaf[0], inputs) if probe.fresh else inputs, self.run)
        self.size = sum(math.prod(leaf.shape[lead:]) for leaf in leaves if leaf.is_floating_point())
        self.parameters = family.num_parameters
        small = self.run.room(_COLUMN_BYTES) // self.run.dtype.itemsize
        self.numbers = small if self.device.type == "cpu" else _COLUMN_NUMBERS.get(self.device.type, 2**28)
        self._alone = False
        if self.step is not None:
            self._check_step(self.step)

    def _check_step(self, step: float) -> None:
        """Refuse differences of so small a step that they are rounding of the inputs, or of the gradients by weights."""
        directions = torch.randn(4, self.size, generator=torch.Generator().manual_seed(0))
        directions = (directions / directions.norm(dim=1, keepdim=True)).to(self.device, self.run.dtype)
        lengths, changes, entry = [], [], 0.0
        with self.run.products(), plain_attention(), ConvolutionAsProduct(), differentiated(self.family.name):
            for network, inputs in self._one_by_one([(0, 2)]):  # one draw may be dead

                def output(params: Params, network: Network = network, x: Any = inputs[0]) -> Tensor:
                    return network.apply(params, network.buffers, x).sum()

                gradient = tree_leaves(torch.func.grad(output)(network.params))
                lengths.append(float(torch.cat([part.double().flatten() for part in gradient]).norm()))
                changes.append(
                    float(abs(step) * mixed_jvp(network, inputs[0], directions, step=step).double().norm() / 2)
                )
                entry = max(entry, largest_input(inputs[0]))
        length, change = math.hypot(*lengths), math.hypot(*changes)
        rounding, precision = self.run.rounding, self.run.precision
        enough = rounding * entry / ROUNDED
        if change > 0:
            enough = max(enough, abs(step) * rounding * length * math.sqrt(0.5) / (ROUNDED * change))
        if enough > abs(step):
            raise ValueError(
                f"The step h of the difference must change the gradients by weights by more than rounding in {precision}, got {step:g} "
                f"for inputs up to {entry:.2g} and gradients of length {length:.2g}. Pass step={rounded_up(enough)} or more, or "
                "precision='float64'."
            )

    def kept(self, **parts: Any) -> Trials:
        """The store of its finished products."""
        first = self.probe.inputs(0, 1, self.run)
        return Trials(
            "mixed derivative",
            self.run,
            code=MixedDerivative,
            at=tree_map(lambda leaf: leaf[0], first) if self.probe.fresh else first,
            family=self.family,
            probe=self.probe,
            step=self.step,
            readout=self.readout,
            seed=self.seed,
            **parts,
        )

    def grams(
        self, start: int, stop: int, vectors: Tensor | None = None, advance: Callable[[int], None] | None = None
    ) -> Iterator[Tensor]:
        """``M_θᵀM_θ V`` of draws ``start … stop−1``, some ``(m, D, k)`` at a time; without vectors the Gram matrices."""
        rows = torch.eye(self.size, device=self.device) if vectors is None else vectors.T
        work: RowsOfMembers = self._gram if self.step is None else self._gram_of_columns
        results: list[Tensor] = []
        for first, part in self._mapped(work, rows, start, stop):
            results.append(part.double())
            if first + part.shape[1] == len(rows):
                yield torch.cat(results, dim=1).mT
                results = []
                if advance is not None:
                    advance(len(part))

    def sum_along(self, spans: Sequence[Span], vectors: Tensor) -> Tensor:
        """``Σ_θ M_θ V`` over draws as rows ``(k, p)``."""
        return self._summed(self._along, spans, vectors.T, self.parameters)

    def sum_against(self, spans: Sequence[Span], cotangents: Tensor) -> Tensor:
        """``Σ_θ M_θᵀ U`` over draws as columns ``(D, k)``, for rows ``(k, p)``."""
        unit = unit_of(cotangents)
        return self._summed(self._against, spans, cotangents / unit, self.size).T * unit

    def holds(self, draws: int) -> bool:
        """Whether :meth:`gram_of_sum` takes that many draws: it keeps their weights, and takes differences."""
        return self.step is not None and draws * self.parameters <= self.numbers

    def gram_of_sum(self, spans: Sequence[Span], advance: Callable[[int], None] | None = None) -> Tensor:
        """By differences, ``(Σ_θ M_θ)ᵀ(Σ_θ M_θ)`` over draws ``(D, D)``.

        Each column is summed over all draws before its products are taken, in blocks on and above the diagonal. So no column is
        computed again for every other one, as in products with single vectors.
        """
        drawn = list(self._one_by_one(spans))
        while True:
            try:
                with self.run.products(), plain_attention(), ConvolutionAsProduct():
                    gram = self._gram_of_sum(drawn, advance)
            except (RuntimeError, NotImplementedError) as error:
                self._give_way(error, 1)
                continue
            self._check_finite(gram)
            return gram

    def _one_by_one(self, spans: Sequence[Span]) -> Iterator[tuple[Network, list[Any]]]:
        """Every network of some draws with its inputs."""
        for start, stop in spans:
            stack, inputs = self._draws[start:stop].read(self.readout), self.probe.inputs(start, stop, self.run)
            for index in range(stop - start):
                own = tree_map(lambda leaf: leaf[index], inputs) if self.probe.fresh else inputs  # noqa: B023
                yield stack.member(index), [_input(own, place, False) for place in range(self.probe.num)]

    def _gram_of_sum(self, drawn: Sequence[tuple[Network, list[Any]]], advance: Callable[[int], None] | None) -> Tensor:
        size, like = self.size, torch.zeros((), device=self.device, dtype=self.run.dtype)
        block = max(1, 4 * self.numbers // self.parameters)
        gram = torch.zeros(size, size, dtype=torch.float64, device=self.device)
        for begin in range(0, size, block):
            end = min(size, begin + block)
            held = like.new_empty(end - begin, self.parameters)
            for first, columns in self._summed_columns(drawn, like, begin, end):
                last = first + len(columns)
                held[first - begin : last - begin] = columns
                gram[begin:last, first:last] = _products(held[: last - begin], columns)
                if advance is not None:
                    advance(len(columns))
            for first, columns in self._summed_columns(drawn, like, end, size):
                gram[begin:end, first : first + len(columns)] = _products(held, columns)
        return gram.triu() + gram.triu(1).T

    def _summed_columns(
        self, drawn: Sequence[tuple[Network, list[Any]]], like: Tensor, begin: int, end: int
    ) -> Iterator[tuple[int, Tensor]]:
        """Columns ``begin … end−1`` of ``Σ_θ M_θ``, some ``(k, p)`` at a time."""
        chunk = max(1, self._fitting // 2)  # their sum lies beside them
        for first in range(begin, end, chunk):
            axes = self._axes(like, first, min(end, first + chunk))
            total = like.new_zeros(len(axes), self.parameters)
            for network, inputs in drawn:
                for x in inputs:
                    total += mixed_jvp(network, x, axes, step=self.step)
            yield first, total / self.probe.num

    def _axes(self, like: Tensor, begin: int, end: int) -> Tensor:
        axes = like.new_zeros(end - begin, self.size)
        axes[:, begin:end].fill_diagonal_(1)
        return axes

    def _summed(self, work: RowsOfMembers, spans: Sequence[Span], rows: Tensor, length: int) -> Tensor:
        total = torch.zeros(len(rows), length, dtype=torch.float64, device=self.device)
        for start, stop in spans:
            for first, part in self._mapped(work, rows, start, stop):
                total[first : first + part.shape[1]] += part[0] if len(part) == 1 else part.sum(0, dtype=torch.float64)
        return total

    def _gram(self, stack: Network, x: Any, rows: Tensor, paired: bool) -> Tensor:
        columns = mixed_jvp(stack, x, rows, paired=paired)
        unit = unit_of(columns)
        return mixed_vjp(stack, x, columns / unit, paired=paired).double() * unit

    def _along(self, stack: Network, x: Any, rows: Tensor, paired: bool) -> Tensor:
        if self.step is None:
            return mixed_jvp(stack, x, rows, paired=paired)
        parts = self._columns(stack, x, rows, paired)
        if self.are_axes(rows):
            return torch.cat([columns for _, columns in parts], dim=-2)
        first, columns = next(parts)
        total = rows[:, : columns.shape[-2]] @ columns
        for first, columns in parts:
            total += rows[:, first : first + columns.shape[-2]] @ columns
        return total

    def _against(self, stack: Network, x: Any, rows: Tensor, paired: bool) -> Tensor:
        if self.step is None:
            return mixed_vjp(stack, x, rows, paired=paired)
        return torch.cat([rows @ columns.mT for _, columns in self._columns(stack, x, rows, paired)], dim=-1)

    def _gram_of_columns(self, stack: Network, x: Any, rows: Tensor, paired: bool) -> Tensor:
        """By differences: products of all columns with one another, in blocks on and above the diagonal."""
        if not self.are_axes(rows):
            columns = self._along(stack, x, rows, paired)
            unit = unit_of(columns)
            return self._against(stack, x, columns / unit, paired).double() * unit
        lead, size = (stack.members,) if stack.members else (), self.size
        block = max(1, 4 * self.numbers // (self.parameters * (stack.members or 1)))
        gram = torch.zeros(*lead, size, size, dtype=torch.float64, device=rows.device)
        for begin in range(0, size, block):
            end = min(size, begin + block)
            held = rows.new_empty(*lead, end - begin, self.parameters)
            for first, columns in self._columns(stack, x, rows, paired, begin, end):
                last = first + columns.shape[-2]
                held[..., first - begin : last - begin, :] = columns
                gram[..., begin:last, first:last] = _products(held[..., : last - begin, :], columns)
            for first, columns in self._columns(stack, x, rows, paired, end, size):
                gram[..., begin:end, first : first + columns.shape[-2]] = _products(held, columns)
        return gram.triu() + gram.triu(1).mT

    def are_axes(self, rows: Tensor) -> bool:
        """Whether rows are all unit vectors of the input space in their order."""
        return len(rows) == self.size and torch.equal(rows, torch.eye(self.size, dtype=rows.dtype, device=rows.device))

    def _columns(
        self, stack: Network, x: Any, like: Tensor, paired: bool, begin: int = 0, end: int | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """The differences along axes ``begin … end−1``, some ``(…, k, p)`` at a time."""
        end = self.size if end is None else end
        chunk = max(1, self._fitting // (stack.members or 1))
        for first in range(begin, end, chunk):
            axes = self._axes(like, first, min(end, first + chunk))
            yield first, mixed_jvp(stack, x, axes, step=self.step, paired=paired)

    def _mapped(self, work: RowsOfMembers, rows: Tensor, start: int, stop: int) -> Iterator[tuple[int, Tensor]]:
        """Work on rows for each draw: some members and some rows at a time, ``(first row, (m, k, ·))``.

        Several members come with all rows at once. What does not fit into memory is halved and done again.
        """
        rows, first = rows.to(self.device, self.run.dtype), 0
        while start < stop:
            members, columns = self._sizes(len(rows))
            last = min(stop, start + members)
            try:
                part = self._averaged(work, rows[first : first + columns], start, last)
            except (RuntimeError, NotImplementedError) as error:
                self._give_way(error, last - start)
                continue
            self._check_finite(part)
            yield first, part
            first += columns
            if first >= len(rows):
                start, first = last, 0

    def _averaged(self, work: RowsOfMembers, rows: Tensor, start: int, stop: int) -> Tensor:
        """Work on some rows of some members, averaged over their inputs."""
        stack, inputs = self._draws[start:stop].read(self.readout), self.probe.inputs(start, stop, self.run)
        fresh, alone = self.probe.fresh, stop - start == 1
        if alone:
            stack = stack.member(0)
            inputs = tree_map(lambda leaf: leaf[0], inputs) if fresh else inputs
        paired = fresh and not alone
        with self.run.products(), plain_attention(), ConvolutionAsProduct():
            total = work(stack, _input(inputs, 0, paired), rows, paired)
            for index in range(1, self.probe.num):
                total += work(stack, _input(inputs, index, paired), rows, paired)
        mean = total / self.probe.num if self.probe.num > 1 else total
        return mean[None] if alone else mean

    def _check_finite(self, part: Tensor) -> None:
        if not bool(torch.isfinite(part).all()):
            raise ValueError(
                f"{self.family.name} must have finite second derivatives, but some are infinite or NaN. "
                "Check its initialisation, or try a smaller input or precision='float64'."
            )

    @property
    def _fitting(self) -> int:
        """Columns that fit into memory: each needs the weights' numbers and some activations."""
        return self.numbers // (self.parameters + _ACTIVATIONS * self.size)

    def _sizes(self, rows: int) -> tuple[int, int]:
        """Members and rows that go together; differences cut their columns themselves."""
        if self._fitting < 2 * rows or self._alone:
            return 1, rows if self.step is not None else max(1, min(rows, self._fitting))
        return min(self._fitting // rows, self._draws.block_size), rows

    def _give_way(self, error: Exception, members: int) -> None:
        """Take less at once after an error, or say what is wrong."""
        scarce = is_out_of_memory(error)
        if is_of_the_device(error) and not scarce:
            raise error
        if scarce and self._fitting > 1:
            give_back()
            self.numbers //= 2
        elif scarce:
            raise ValueError(
                "One network must fit into the device's memory, but it does not. Pass a smaller input or device='cpu'."
            ) from error
        elif members > 1:
            self._alone = True  # a network that does not batch over weights
        else:
            raise ValueError(
                f"{self.family.name} must be twice differentiable for a mixed derivative, but it failed with: {reason_of(error)}. "
                "Pass estimator='exact' or 'difference', which need first derivatives at most."
            ) from error


def _products(rows: Tensor, others: Tensor) -> Tensor:
    """``R Cᵀ`` in the rows' own precision, whatever their size."""
    unit = unit_of(rows)
    return ((rows / unit) @ others.mT).double() * unit


def _input(inputs: Any, index: int, paired: bool) -> Any:
    """One of the inputs ``(n, …)``, or one of each member's ``(m, n, …)``, still with an axis of one."""
    one = slice(index, index + 1)
    return on_tensors(lambda tensor: tensor[:, one], inputs) if paired else taken(inputs, one)
