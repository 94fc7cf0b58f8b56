"""Quantities of the tangent kernel ``K = J Jᵀ`` of a network on a data set that need no Gram matrix.

Row i of the Jacobian ``J`` is ``∇_θ f(x_i)``. Products with ``J`` and its transpose, in passes over the data, give ``K v``,
leading eigenpairs, the trace, the Frobenius norm, the effective rank, and the alignment of many targets with the kernel.
"""

# n inputs · b inputs of a batch · p parameters · k vectors · T targets

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._pytree import tree_map

from biascope.derivatives.gradients import forward_flops, plain_attention, weight_jvp, weight_vjp
from biascope.derivatives.operators import LinearOperator
from biascope.derivatives.separateness import check_separateness
from biascope.families import weights
from biascope.families.inputs import on_tensors
from biascope.families.network import Network
from biascope.families.weights import Params
from biascope.results.estimate import Estimate, jackknife
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.memory import fitting, halved, is_of_the_device, is_out_of_memory
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

_NUMBERS = {"cuda": 2**30}  # numbers that the rows of a batch, or k vectors in weight space, may take
_ON_CPU = 2**27  # … in bytes, on a CPU
_BATCH = {"cpu": 128, "cuda": 1024}  # inputs of one pass; halved where they do not fit
_FORMED = 1024  # largest n or p whose square matrix is formed for eigenpairs
_CHECKED = 4  # inputs, spread over the data, whose outputs must not depend on the batch
_PROBES = 48  # columns that a sketch of the kernel multiplies

# Multiply-adds that a row of the Jacobian costs: so many forward passes, and so many per parameter to write it to memory.
_ROW_PASSES, _ROW_WRITING = 5, 50

BatchProduct = Callable[[Any, slice], list[Tensor]]
# Of tr K and of tr K²: what is known, and what each random column sees of the rest.
TraceSketch = list[tuple[float, Tensor]]


class TangentKernel(LinearOperator):
    """The empirical tangent kernel ``K_ij = ∇_θ f(x_i)ᵀ∇_θ f(x_j)`` of a scalar network, known by its products.

    ``K V = J (Jᵀ V)`` takes two passes over the data in the run's precision, with sums over batches in float64. Few vectors are
    multiplied by reverse and forward mode, many by the rows of ``J``. A count of operations decides which is cheaper. Vectors in
    weight space take k·p numbers. If these exceed the device's budget, columns are processed in parts, and the passes are repeated.
    :func:`biascope.derivatives.spectrum.eigenpairs` gives leading eigenpairs with residuals. In float32, these stay above about 1e-6.

    Args:
        network: One network with a readout, or with one output.
        x: Inputs ``(n, …)``, any pytree; moved to the device batch by batch.
        batch: Most inputs of one pass; chosen by the device.
        run: Device and precision.

    Attributes:
        size: Number of inputs n.
        parameters: Number of weights p.

    Raises:
        ValueError: If it is a stack, has several outputs, or mixes the inputs of a batch.

    Example:
        >>> network = Network.of(torch.nn.Linear(2, 1, bias=False))
        >>> kernel = TangentKernel(network, torch.tensor([[3.0, 4.0], [1.0, 0.0]]), run=Run(device="cpu"))
        >>> kernel.matmul(torch.eye(2)), kernel.trace()  # f = wᵀx: K = X Xᵀ
        (tensor([[25.,  3.],
                [ 3.,  1.]], dtype=torch.float64), 26)

    Reference:
        Jacot, Gabriel, Hongler (2018). Neural tangent kernel. NeurIPS.
    """

    def __init__(self, network: Network, x: Any, *, batch: int | None = None, run: Run | None = None) -> None:
        if network.members is not None:
            raise ValueError(
                f"A tangent kernel needs one network, got a stack of {network.members}. Pass network.member(0)."
            )
        if batch is not None and batch < 1:
            raise ValueError(f"batch must be at least 1 input, got {batch}. Pass batch=128.")
        self.run = run or Run()
        self.device, self._x = self.run.torch_device, x
        self.batch = batch or _BATCH.get(self.device.type, 256)
        self.size = Probe.fixed(x).num
        self.network = self._scalar(network.to(self.device, self.run.dtype))
        self._check_inputs(network.to(self.device, next(iter(network.params.values())).dtype))
        self.parameters = weights.count(network.params)
        self._lengths = [tensor.numel() for tensor in network.params.values()]
        small = self.run.room(_ON_CPU) // self.run.dtype.itemsize
        self._budget = small if self.device.type == "cpu" else _NUMBERS.get(self.device.type, 2**28)
        self._batches = self._multiplies = True  # until the network turns out not to be mapped over inputs or vectors
        self._held: Tensor | None = None
        self._sketches: dict[tuple[int, int], TraceSketch] = {}
        self._squares = torch.full((self.size,), math.nan, dtype=torch.float64, device=self.device)

    def __repr__(self) -> str:
        return f"TangentKernel({self.size:,} inputs, {self.parameters:,} parameters, {self.run.precision} on {self.device})"

    def _scalar(self, network: Network) -> Network:
        with torch.no_grad(), plain_attention():
            count = network(self._inputs(slice(0, 1))).numel()
        if network.readout is None and count != 1:
            raise ValueError(
                f"A tangent kernel needs one output per input, but the network has {count}. Pass network.read('first')."
            )
        return network.read(network.readout or "first")

    def _check_inputs(self, network: Network) -> None:
        """Products run over batches, and a row of the Jacobian belongs to one input alone."""
        few = sorted({round(index * (self.size - 1) / (_CHECKED - 1)) for index in range(_CHECKED)})
        parts = [self._inputs(slice(index, index + 1)) for index in few]
        together = tree_map(lambda *leaves: torch.cat(leaves) if isinstance(leaves[0], Tensor) else leaves[0], *parts)
        check_separateness(network.read(self.network.readout or "first"), together, "A tangent kernel's network")
        network.require_proven(together)

    def matmul(self, vectors: Tensor) -> Tensor:
        """``K V`` of columns ``(n, k)``."""
        if self._held is not None:
            return self._held @ (self._held.T @ vectors.to(self._held))
        return self.cross(self, vectors)

    def cross(self, other: TangentKernel, vectors: Tensor) -> Tensor:
        """``K(x, x') V``: the rectangular kernel between these inputs and another's, ``(n', k)`` to ``(n, k)``."""
        parts = torch.split(vectors, self.fitting, dim=1)
        return torch.cat([self.pushforward(other.pullback(part)) for part in parts], dim=1)

    def pullback(self, vectors: Tensor, *, with_diagonal: bool = False) -> Tensor:
        """``Jᵀ V`` of columns ``(n, k)`` as rows ``(k, p)``; on request :meth:`diagonal` is known from the same pass."""
        vectors = vectors.to(self.device, self.run.dtype)
        total = torch.zeros(vectors.shape[1], self.parameters, dtype=torch.float64, device=self.device)
        pieces = torch.split(total, self._lengths, dim=1)

        def in_reverse(x: Any, span: slice) -> list[Tensor]:
            pulled: Params = vmap(lambda column: weight_vjp(self.network, x, column))(vectors[span].T)
            return [part.reshape(len(total), -1) for part in pulled.values()]

        def of_rows(x: Any, span: slice) -> list[Tensor]:
            return [vectors[span].T @ row for row in self._rows(x, span)]

        by_rows = with_diagonal and bool(self._squares.isnan().any())
        for parts in self._over_data(None if by_rows else in_reverse, of_rows, len(total)):
            for piece, part in zip(pieces, parts, strict=True):
                piece += part
        return _finite(total)

    def pushforward(self, directions: Tensor) -> Tensor:
        """``J U`` of rows ``(k, p)`` as columns ``(n, k)``: how the outputs change along directions in weight space."""
        directions = directions.to(self.device, self.run.dtype)
        pieces = torch.split(directions, self._lengths, dim=1)
        like = zip(self.network.params.items(), pieces, strict=True)
        named = {name: piece.reshape(-1, *tensor.shape) for (name, tensor), piece in like}

        def forward(x: Any, span: slice) -> list[Tensor]:
            return [vmap(lambda direction: weight_jvp(self.network, x, direction)[1])(named).T]

        def of_rows(x: Any, span: slice) -> list[Tensor]:
            products = [row @ piece.T for row, piece in zip(self._rows(x, span), pieces, strict=True)]
            return [torch.stack(products).sum(0, dtype=torch.float64)]

        parts = [part for (part,) in self._over_data(forward, of_rows, len(directions))]
        return _finite(torch.cat(parts).double())

    def diagonal(self) -> Tensor:
        """``K_ii = ‖∇_θ f(x_i)‖²``, ``(n,)``."""
        if bool(self._squares.isnan().any()):
            list(self._over_data(None, lambda x, span: self._rows(x, span)[:0], 0))
        return _finite(self._squares)

    def dense(self) -> Tensor | None:
        """The matrix, if the inputs are few and their whole Jacobian fits into memory; else ``None``."""
        rows = self._jacobian() if self.size <= _FORMED else None
        return None if rows is None else rows @ rows.T

    def factor(self) -> Tensor | None:
        """The Jacobian ``(n, p)``, if the parameters are few and it fits into memory; else ``None``."""
        return self._jacobian() if self.parameters <= _FORMED else None

    def trace(self, probes: int | None = None, *, seed: int = 0) -> Estimate:
        """``tr K = Σ‖∇_θ f(x_i)‖²``, exactly, or from products with a number of random columns (see :meth:`frobenius`)."""
        if probes is None:
            return Estimate.exact(float(self.diagonal().sum()))
        seen, rest = self._sketch(probes, seed)[0]
        return Estimate.from_error(seen + float(rest.mean()), float(rest.std()) / math.sqrt(len(rest)), len(rest))

    def frobenius(self, probes: int = _PROBES, *, seed: int = 0) -> Estimate:
        """The Frobenius norm ``‖K‖_F``: exact if the matrix is formed, else estimated from products with random columns.

        A third of the probes find a leading subspace. A third multiply its basis ``Q``, for which ``‖KQ‖²`` is exact. A third are
        Gaussian columns ``g`` orthogonal to it. The mean of ``‖Kg‖²`` is unbiased for the rest, and its spread gives the error.
        Reference: Meyer, Musco, Musco, Woodruff (2021), Hutch++: optimal stochastic trace estimation.
        """
        return self._of_squares(math.sqrt, probes, seed)

    def effective_rank(self, probes: int = _PROBES, *, seed: int = 0) -> Estimate:
        """The participation ratio ``(tr K)²/‖K‖²_F``: the trace is exact, the norm as for :meth:`frobenius`."""
        trace = self.trace().value
        return self._of_squares(lambda squares: trace**2 / squares if squares else math.nan, probes, seed)

    def _of_squares(self, statistic: Callable[[float], float], probes: int, seed: int) -> Estimate:
        """A function of ``‖K‖²_F``."""
        if (matrix := self.dense()) is not None:
            return Estimate.exact(statistic(float(matrix.square().sum())))
        seen, rest = self._sketch(probes, seed)[1]
        left_out = (rest.sum() - rest) / (len(rest) - 1)
        return jackknife(statistic(seen + float(rest.mean())), [statistic(seen + one) for one in left_out.tolist()])

    def _sketch(self, probes: int, seed: int) -> TraceSketch:
        if probes < 9:
            raise ValueError(f"probes must be at least 9 columns to estimate a spread, got {probes}. Pass probes=48.")
        if (probes, seed) not in self._sketches:
            generator = generator_for(self.device, seed, "tangent kernel")
            shape = (self.size, 2 * (probes // 3))
            columns = torch.randn(shape, generator=generator, device=self.device, dtype=torch.float64)
            first, second = columns.chunk(2, dim=1)
            leading = torch.linalg.qr(self.matmul(first)).Q
            both = torch.cat([leading, second - leading @ (leading.T @ second)], dim=1)
            image, known = self.matmul(both), leading.shape[1]
            seen = (both * image).sum(0), image.square().sum(0)
            self._sketches[probes, seed] = [(float(each[:known].sum()), each[known:]) for each in seen]
        return self._sketches[probes, seed]

    @property
    def fitting(self) -> int:
        """How many vectors in weight space the budget of the device allows at a time."""
        return max(1, self._budget // self.parameters)

    @functools.cached_property
    def _operations(self) -> float:
        """Multiply-adds of the forward pass of one input."""
        with plain_attention():
            return max(self.parameters, forward_flops(self.network, self._inputs(slice(0, 1))) / 2)

    def _few(self, count: int) -> bool:
        """Whether derivatives along so many vectors cost less than the rows of the Jacobian and a product with them."""
        once, p = self._operations, self.parameters
        return self._multiplies and count * (2 * once - p) <= _ROW_PASSES * once + _ROW_WRITING * p

    def _jacobian(self) -> Tensor | None:
        """The whole Jacobian, kept, where it fits."""
        if self._held is None and self.size * self.parameters <= self._budget:
            parts = self._over_data(None, lambda x, span: [torch.cat(self._rows(x, span), dim=1)], 0)
            self._held = _finite(torch.cat([part for (part,) in parts]).double())
        return self._held

    def _inputs(self, span: slice) -> Any:
        def place(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor | np.ndarray):
                return leaf
            part = torch.as_tensor(leaf[span])
            # A copy even where nothing changes: a network may work in place on its input.
            return part.to(self.device, self.run.dtype if part.is_floating_point() else part.dtype, copy=True)

        return tree_map(place, self._x)

    def _rows(self, x: Any, span: slice) -> list[Tensor]:
        """``∇_θ f`` of each input of a batch, ``(b, ·)`` for each parameter; their squared lengths are kept."""

        def scalar(params: Params, one: Any) -> Tensor:
            return self.network.apply(params, self.network.buffers, one).squeeze(0)

        gradient = grad(scalar)
        if self._batches:
            axes = tree_map(lambda leaf: 0 if isinstance(leaf, Tensor) else None, x)
            alone = on_tensors(lambda tensor: tensor[:, None], x)
            try:
                gradients: Params = vmap(gradient, in_dims=(None, axes))(self.network.params, alone)
            except RuntimeError as error:
                if is_of_the_device(error):
                    raise
                self._batches = False  # a network that does not batch over inputs
        if not self._batches:
            each = (self._inputs(slice(index, index + 1)) for index in range(span.start, span.stop))
            gradients = weights.stacked([gradient(self.network.params, one) for one in each])
        rows = [part.reshape(len(part), -1) for part in gradients.values()]
        lengths = [torch.linalg.vector_norm(row, dim=1, dtype=torch.float64) for row in rows]
        self._squares[span] = torch.stack(lengths).square().sum(0)
        return rows

    def _over_data(self, product: BatchProduct | None, of_rows: BatchProduct, count: int) -> Iterator[list[Tensor]]:
        """Work on all inputs, batch by batch: a product with so many vectors, or of the rows where that is cheaper."""
        start = 0
        with self.run.tracked("tangent kernel", self.size) as advance:
            while start < self.size:
                chosen = product if product is not None and self._few(count) else of_rows
                most = self.batch if chosen is product else min(self.batch, self.fitting)
                try:
                    parts, fits = fitting(functools.partial(self._part, chosen, start), most, halved)
                except RuntimeError as error:
                    if chosen is of_rows or is_out_of_memory(error):
                        raise
                    self._multiplies = False  # a network without forward mode, or that does not batch over vectors
                    continue
                if fits < most:
                    self.batch = fits
                yield parts
                stop = min(self.size, start + fits)
                advance(stop - start)
                start = stop

    def _part(self, work: BatchProduct, start: int, count: int) -> list[Tensor]:
        """Work on so many inputs, or on those that are left."""
        span = slice(start, min(self.size, start + count))
        with self.run.products(), plain_attention():
            return work(self._inputs(span), span)


@under_torch_defaults
@dataclass(frozen=True)
class Alignment:
    """How well targets are aligned with a tangent kernel; one entry per target, in float64.

    Attributes:
        values: ``α = ‖(1/n) Σ y_i ∇_θ f(x_i)‖² = yᵀKy/n²``, the definition on the given inputs.
        unbiased: The same over pairs of distinct inputs alone, ``Σ_{i≠j} y_i K_ij y_j / n(n−1)``, unbiased for the distribution
            of the inputs; ``values`` is too large by about ``E[y²‖∇f‖²]/n``.
        standard_errors: Standard errors of ``unbiased`` for that distribution, by the jackknife over inputs; ``nan`` if not requested.
        squared_norms: ``‖f*‖² = (1/n) Σ y_i²``.
        inputs: Number of inputs n.
        normalised: Whether the first three are divided by ``‖f*‖²``.
    """

    values: Tensor
    unbiased: Tensor
    standard_errors: Tensor
    squared_norms: Tensor
    inputs: int
    normalised: bool

    def __repr__(self) -> str:
        targets = f"{self.values.numel()} target{'s' if self.values.numel() > 1 else ''}"
        words = ", normalised" if self.normalised else ""
        low, high = float(self.values.min()), float(self.values.max())
        return f"Alignment({targets}, {low:.3g} to {high:.3g}, {self.inputs:,} inputs{words})"

    def population(self, target: int = 0) -> Estimate:
        """The alignment of a target for the distribution of the inputs."""
        return Estimate.from_error(float(self.unbiased[target]), float(self.standard_errors[target]), self.inputs)


@under_torch_defaults
def alignment(
    network: Network,
    x: Any,
    targets: Tensor,
    *,
    normalised: bool = False,
    errors: bool = True,
    batch: int | None = None,
    run: Run | None = None,
) -> Alignment:
    """The alignment ``α(f*) = ‖E_x[f*(x) ∇_θ f(x)]‖²`` of targets with the tangent kernel of a network.

    One pass over the data gives the alignments of all targets, and a second pass the errors. ``Σ y_i ∇f_i`` of all targets takes T·p
    numbers. If these exceed the device's budget, targets are processed in parts, and the passes are repeated for each part.

    An eigenfunction with ``E φ² = 1`` has ``α(φ) = λ``. Here ``φ = √n v`` and ``λ = μ/n`` for an eigenpair of the Gram matrix.

    Args:
        network: One network with a readout, or with one output.
        x: Inputs ``(n, …)``, any pytree.
        targets: ``(n,)`` or ``(T, n)``: the values of each target at the inputs.
        normalised: Whether to divide by the target's mean square: the Rayleigh quotient ``yᵀKy/(n‖y‖²)``.
        errors: Whether to estimate the standard error from the finite number of inputs.
        batch: Most inputs of one pass; chosen by the device.
        run: Device and precision.

    Raises:
        ValueError: If the targets do not fit the inputs, or as for :class:`TangentKernel`.

    Example:
        >>> network = Network.of(torch.nn.Linear(1, 1, bias=False))
        >>> x = torch.tensor([[1.0], [-1.0], [2.0], [-2.0]])
        >>> alignment(network, x, x[:, 0], run=Run(device="cpu")).values  # f = wx: α(x ↦ x) = (E x²)²
        tensor([6.2500], dtype=torch.float64)

    Reference:
        Ortiz-Jiménez, Moosavi-Dezfooli, Frossard (2021). What can linearized neural networks actually say about
        generalization? NeurIPS.
    """
    kernel = TangentKernel(network, x, batch=batch, run=run)
    y, n = torch.as_tensor(targets).to(kernel.device, torch.float64), kernel.size
    y = y[None] if y.dim() == 1 else y  # (T, n)
    if y.dim() != 2 or y.shape[1] != n or not y.any(1).all():
        raise ValueError(
            f"targets must hold {n} values each, not all 0, got shape {tuple(y.shape)}. Pass targets of shape (T, n)."
        )
    found = [_alignment_of(kernel, some, normalised, errors) for some in torch.split(y, kernel.fitting)]
    values, unbiased, spread, norms = (torch.cat(parts) for parts in zip(*found, strict=True))
    return Alignment(values, unbiased, spread, norms, n, normalised)


def _alignment_of(kernel: TangentKernel, y: Tensor, normalised: bool, errors: bool) -> tuple[Tensor, ...]:
    n, norms = y.shape[1], y.square().mean(1)
    scale = norms if normalised else torch.ones_like(norms)
    summed = kernel.pullback(y.T, with_diagonal=errors)  # S = Σ z_i of z_i = y_i ∇f_i
    squares = torch.linalg.vector_norm(summed, dim=1).square()
    unbiased = spread = torch.full_like(norms, math.nan)
    if errors and n > 2:
        own = y.square() * kernel.diagonal()  # ‖z_i‖², (T, n)
        shares = y * kernel.pushforward(summed).T  # z_iᵀS
        pairs = squares - own.sum(1)
        unbiased = pairs / (n * (n - 1)) / scale
        left_out = (pairs[:, None] - 2 * (shares - own)) / ((n - 1) * (n - 2))  # without input i
        left_out /= (norms[:, None] * n - y.square()) / (n - 1) if normalised else 1
        spread = (n - 1) * left_out.std(1) / math.sqrt(n)
    return squares / n**2 / scale, unbiased, spread, norms


def _finite(numbers: Tensor) -> Tensor:
    if not bool(torch.isfinite(numbers).all()):
        raise ValueError("The network must give finite weight gradients, but some are not. Pass precision='float64'.")
    return numbers
