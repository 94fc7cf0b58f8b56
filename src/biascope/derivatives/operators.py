"""Linear operators on input space. GradientCovariance: the covariance of a family's input gradients.

Those estimated from draws know their own uncertainty, all in the same words: :class:`EstimatedOperator`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from biascope.derivatives.moments import DENSE_LIMIT, SKETCH_SIZE, Dense, Moments, PowerSums, Rows, Sketch, unit_of
from biascope.results.estimate import Estimate, freedom_of, jackknife
from biascope.runs.ambient import under_torch_defaults
from biascope.tasks.divisions import Division


@under_torch_defaults
class LinearOperator(ABC):
    """A symmetric operator on R^D, positive up to noise, known by its products with vectors."""

    size: int
    device: torch.device

    def __init_subclass__(cls) -> None:
        under_torch_defaults(cls)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size}×{self.size})"

    @abstractmethod
    def matmul(self, vectors: Tensor) -> Tensor:
        """The operator applied to columns ``(D, k)`` in float64."""

    def columns(self, vectors: Tensor) -> Tensor:
        """Vectors ``(D,)`` or ``(D, k)`` of any device and precision as columns for this operator.

        Raises:
            ValueError: If they have another length.
        """
        found = vectors[:, None] if vectors.ndim == 1 else vectors
        if found.ndim != 2 or len(found) != self.size:
            raise ValueError(
                f"Vectors must be ({self.size},) or ({self.size}, k), got {tuple(vectors.shape)}. Pass one per column."
            )
        return found.to(self.device, torch.float64)

    def dense(self) -> Tensor | None:
        """The matrix, if it is small enough to form."""
        if self.size > DENSE_LIMIT:
            return None
        return self.matmul(torch.eye(self.size, dtype=torch.float64, device=self.device))

    def factor(self) -> Tensor | None:
        """A thin ``F`` with operator ``F Fᵀ``, or ``F diag(s) Fᵀ`` with :meth:`signs` s; ``None`` if there is none."""
        return None

    def signs(self) -> Tensor | None:
        """+1 or −1 for each column of the factor if something is subtracted; else ``None``."""
        return None


class Matrix(LinearOperator):
    """A symmetric matrix as an operator: stored in its own precision, multiplied in float64."""

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix
        self.size, self.device = matrix.shape[0], matrix.device

    @override
    def matmul(self, vectors: Tensor) -> Tensor:
        # A float32 kernel of 60,000 samples takes 14 GB; twice that beside it would not fit.
        rows = max(1, 2**27 // self.size)
        return torch.cat([part.double() @ vectors for part in torch.split(self._matrix, rows)])

    @override
    def dense(self) -> Tensor | None:
        return self._matrix.double() if self.size <= DENSE_LIMIT else None


class EstimatedOperator(LinearOperator):
    """A positive operator estimated from draws of a family, with the uncertainty that comes from their number.

    Attributes:
        draws: Networks drawn.
        inputs: Inputs per network.
        groups: Disjoint groups of draws; their spread gives the errors.
        rounding: Share of the largest eigenvalue that another may have by rounding alone.
    """

    draws: int
    inputs: int
    groups: list[Any]
    rounding: float

    def __repr__(self) -> str:
        each = "" if self.inputs == 1 else f" of {self.inputs} inputs"
        return f"{type(self).__name__}({self.size}×{self.size}, {self.draws:,} draws{each})"

    @abstractmethod
    def trace(self) -> Estimate:
        """Its trace."""

    @abstractmethod
    def participation(self) -> Estimate:
        """The participation ratio ``(tr C)²/tr C²`` as it is estimated, which noise may carry beyond 1 and D."""

    def effective_rank(self) -> Estimate:
        """The participation ratio ``(tr C)²/tr C²``, with its interval between 1 and D: all of it where nothing is known."""
        found, size = self.participation(), float(self.size)
        if size == 1 and math.isfinite(found.value):
            return Estimate.exact(1.0)
        if (
            not math.isfinite(found.value) and self.trace().standard_error != 0
        ):  # the noise is larger than what it hides
            return Estimate(math.sqrt(size), (size - 1) / 4, 1.0, size)
        return found.within(1.0, size)

    def anisotropy(self, rank: Estimate | None = None) -> Estimate:
        """``1 − rank/D``: 0 for an isotropic network, near 1 for a gradient that is concentrated on few directions.

        Args:
            rank: The effective rank, if it is known already.
        """
        return (rank or self.effective_rank()).map_linear(-1.0 / self.size, 1.0)

    @abstractmethod
    def along(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """``vᵀĈv`` for each column, and its standard error from the spread over groups."""

    def energies(self, divisions: Sequence[Division]) -> Tensor | None:
        """The trace in each part of each division, one after another, for each group of draws: ``(groups, parts)``.

        Groups add: the mean over them is that of all draws. ``None`` if the estimate does not determine them.
        """
        return None

    @abstractmethod
    def halves(self) -> tuple[Self, Self]:
        """The estimates from the even and from the odd groups, which are independent."""


ROUNDING = 1e-12  # of the largest eigenvalue: sums and decompositions in float64 leave less
THIN = 0.6  # of the size: up to so many columns, the Gram matrix of a factor is quicker than the whole matrix


def _form_of_total(groups: Sequence[Moments], size: int) -> str:
    """How all draws together are kept: as rows while they are few, which have a thin factor; else as a matrix where D allows it."""
    second = [group.second for group in groups]
    rows = [len(each) for each in second if isinstance(each, Rows)]
    if len(rows) == len(second) and (size > DENSE_LIMIT or sum(rows) <= THIN * size):
        return "rows"
    return "dense" if size <= DENSE_LIMIT else "sketch"


class GradientCovariance(EstimatedOperator):
    """``C = E[∇_x f ∇_x fᵀ]`` over a family (and a probe), estimated from independent groups of draws.

    Each draw contributes one matrix. There are three kinds:

    - the mean of ``g gᵀ`` over its inputs;
    - the Gram matrix ``MᵀM`` of its mixed derivative, whose rows are the input gradients of ``∂f/∂θ_j``;
    - for the mean gradient ``ḡ``, an unbiased estimate of ``ḡ ḡᵀ``, which need not be positive
      (:meth:`~biascope.derivatives.moments.Moments.add_crossed`).

    Uncentred, ``Ĉ = S/T``; centred, ``Ĉ = (S − s sᵀ/T)/(T−1)``, which is the same about any centre. Scalars of the spectrum are
    U-statistics with jackknife intervals over the groups. Plug-in values would be badly biased unless T is much larger than D.

    Args:
        groups: Sums over disjoint sets of draws.
        centred: Whether the mean gradient is removed.
        inputs: Inputs per draw.
        rounding: As an attribute.
    """

    def __init__(self, groups: Sequence[Moments], centred: bool, inputs: int, rounding: float = 0.0) -> None:
        first = groups[0]
        self.groups = [group.about(first.centre).in_unit(first.unit) for group in groups]
        self.centred, self.inputs, self.unit = centred, inputs, first.unit
        self.size, self.device = first.total.shape[0], first.total.device
        self.total = Moments.empty(self.size, _form_of_total(groups, self.size), self.device, first.centre, first.unit)
        for group in self.groups:
            self.total.merge(group)
        self.draws = self.total.draws
        # A sketch is kept in float32, and shifted by its rounding.
        sketched = isinstance(self.total.second, Sketch)
        self.rounding = max(rounding, SKETCH_SIZE * torch.finfo(torch.float32).eps if sketched else ROUNDING)
        self._sums: PowerSums | None = None

    @override
    def matmul(self, vectors: Tensor) -> Tensor:
        image = self.total.second.matmul(vectors) * self.unit**2
        if not self.centred:
            return image / self.draws
        mean = self.total.total[:, None] * self.unit
        return (image - mean @ (mean.T @ vectors) / self.draws) / (self.draws - 1)

    def dense(self) -> Tensor | None:
        """The estimated matrix, ``None`` beyond the size that is formed."""
        if isinstance(self.total.second, Rows) and self.size <= DENSE_LIMIT:
            rows, signs = self.total.second.whole()
            matrix = rows.T @ (rows if signs is None else signs[:, None] * rows)
        elif isinstance(self.total.second, Dense):
            matrix = self.total.second.matrix
        else:
            return None
        if not self.centred:
            return matrix * (self.unit**2 / self.draws)
        mean = torch.outer(self.total.total, self.total.total) / self.draws
        return (matrix - mean) * (self.unit**2 / (self.draws - 1))

    def factor(self) -> Tensor | None:
        """``F`` with ``Ĉ = F diag(s) Fᵀ``, if the draws are stored as rows or as a sketch."""
        if isinstance(self.total.second, Sketch):
            return self.total.second.factor() * (self.unit / math.sqrt(self.draws))
        if not isinstance(self.total.second, Rows):
            return None
        rows, _ = self.total.second.whole()
        if not self.centred:
            return rows.T * (self.unit / math.sqrt(self.draws))
        return (rows - self.total.total / self.draws).T * (self.unit / math.sqrt(self.draws - 1))

    @override
    def signs(self) -> Tensor | None:
        return self.total.second.whole()[1] if isinstance(self.total.second, Rows) else None

    def trace(self) -> Estimate:
        """``tr C``, the mean squared length of a gradient."""
        values, whole = np.array([self._plain_trace([group]) for group in self.groups]), self._plain_trace(self.groups)
        if len(values) < 3:
            return Estimate(whole * self.unit**2).within(0.0, math.inf)
        error = float(values.std(ddof=1)) / math.sqrt(len(values))
        found = Estimate.of_positive(whole, error, freedom_of(values)).within(0.0, math.inf)
        return found.map_linear(self.unit**2)

    def draws_that_count(self) -> float:
        """How many draws of equal length would know the trace as well: ``(Σ τ)²/Σ τ²`` of squared lengths τ about the mean."""
        total = self.total
        if self.centred and total.centre is not None:
            total = total.about(total.centre + total.total * (self.unit / self.draws))
        return total.trace**2 / total.trace_square if total.trace_square else float(self.draws)

    def _plain_trace(self, groups: Sequence[Moments]) -> float:
        draws = sum(group.draws for group in groups)
        trace = sum(group.trace for group in groups)
        if not self.centred:
            return trace / draws
        mean = self.total.total / self.draws  # the mean of all draws: one of few would take away too much
        shift = sum(float(2 * group.total @ mean - group.draws * (mean @ mean)) for group in groups)
        return (trace - shift) / draws * self.draws / (self.draws - 1)

    def participation(self) -> Estimate:
        """The participation ratio ``(tr C)²/tr C²``, from U-statistics; nan where noise leaves nothing of a square."""
        left_out = [self._left_out(group) for group in self.groups]
        smallest = 4 if self.centred else 2
        ratios = [_ratio(sums, self.centred) for sums in left_out if sums.draws >= smallest]
        known = ratios if len(ratios) == len(left_out) and all(map(math.isfinite, ratios)) else []
        return jackknife(_ratio(self._power_sums(), self.centred), known, positive=True)

    def mean_length(self) -> float:
        """The length of the mean gradient."""
        mean = self.total.total * (self.unit / self.draws)
        return float((mean if self.total.centre is None else mean + self.total.centre).norm())

    def along(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Variance of the gradient along each column ``vᵀĈv``, and its standard error from the spread over groups."""
        vectors = self.columns(vectors)
        mean = (self.total.total / self.draws) @ vectors if self.centred else torch.zeros_like(vectors[0])
        each = []
        for group in self.groups:
            form = group.second.quadratic(vectors) - 2 * mean * (group.total @ vectors) + group.draws * mean.square()
            each.append(form / group.draws)
        scale = self.unit**2 * (self.draws / (self.draws - 1) if self.centred else 1.0)
        values = torch.stack(each)  # (groups, k)
        share = torch.tensor(
            [group.draws / self.draws for group in self.groups], dtype=values.dtype, device=values.device
        )
        error = values.std(0) / math.sqrt(len(each)) if len(each) > 2 else torch.full_like(values[0], math.nan)
        return scale * (share @ values), scale * error

    @override
    def energies(self, divisions: Sequence[Division]) -> Tensor | None:
        mean = self.total.total / self.draws if self.centred else torch.zeros_like(self.total.total)
        scale = len(self.groups) * self.unit**2 / (self.draws - 1 if self.centred else self.draws)
        found = []
        for group in self.groups:
            parts = []
            for division in divisions:
                energies = group.second.energies(division.coefficients)
                if energies is None:
                    return None
                turned = division.coefficients or (lambda rows: rows)
                centre, total = turned(torch.stack([mean, group.total]))
                energies += group.draws * centre.abs().square() - 2 * (centre.conj() * total).real
                parts.append(division.summed(energies))
            found.append(torch.cat(parts) * scale)
        return torch.stack(found) if divisions else None

    def halves(self) -> tuple[GradientCovariance, GradientCovariance]:
        """The covariance of the even and of the odd groups: two independent estimates."""
        even, odd = self.groups[0::2], self.groups[1::2]
        first, second = (GradientCovariance(half, self.centred, self.inputs, self.rounding) for half in (even, odd))
        return first, second

    def _power_sums(self) -> PowerSums:
        if self._sums is None:
            t = self.total
            self._sums = PowerSums(
                t.draws,
                t.trace,
                t.trace_square,
                t.norm_square,
                t.second.inner(t.second),
                *self._mean_sums(t.total, t.weighted),
            )
        return self._sums

    def _mean_sums(self, total: Tensor, weighted: Tensor, without: Moments | None = None) -> tuple[float, float, float]:
        if not self.centred:
            return 0.0, 0.0, 0.0
        column = total[:, None]
        form = float(self.total.second.quadratic(column))
        if without is not None:
            form -= float(without.second.quadratic(column))
        return float(total @ total), form, float(total @ weighted)

    def _left_out(self, group: Moments) -> PowerSums:
        """The power sums of all draws but one group's."""
        full = self._power_sums()
        norm = full.norm - 2 * self.total.second.inner(group.second) + group.second.inner(group.second)
        return PowerSums(
            full.draws - group.draws,
            full.trace - group.trace,
            full.trace_square - group.trace_square,
            full.norm_square - group.norm_square,
            norm,
            *self._mean_sums(self.total.total - group.total, self.total.weighted - group.weighted, without=group),
        )


class GramOfMean(EstimatedOperator):
    """``M̄ᵀM̄`` of the mean ``M̄`` over draws of an operator ``M_θ``, from its sums over groups of draws.

    Rank and trace are those of the sample mean, with jackknife errors; the mean may be nothing but its own noise, which
    :meth:`coherence` tells.

    Args:
        groups: For each group its number of draws and ``Σ M_θᵀ``, ``(D, p)``.
        inputs: Inputs per draw.
        rounding: As an attribute.

    Example:
        >>> rows = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> gram = GramOfMean([(1, rows), (3, 3 * rows)], inputs=1)
        >>> gram.dense(), gram.coherence()
        (tensor([[1., 0.],
                [0., 4.]], dtype=torch.float64), 1.0)
    """

    def __init__(self, groups: Sequence[tuple[int, Tensor]], inputs: int, rounding: float = 0.0) -> None:
        self.groups, self.inputs, self.rounding = list(groups), inputs, max(rounding, ROUNDING)
        self.draws = sum(draws for draws, _ in groups)
        self._total = torch.zeros_like(groups[0][1])
        for _, part in groups:
            self._total += part
        self.size, self.device = self._total.shape[0], self._total.device
        self._gram: Tensor | None = None

    @override
    def dense(self) -> Tensor:
        if self._gram is None:
            self._gram = _product(self._total, self._total) / self.draws**2
        return self._gram

    @override
    def matmul(self, vectors: Tensor) -> Tensor:
        return self.dense() @ vectors

    def trace(self) -> Estimate:
        """``‖M̄‖²_F``."""
        value = float(self.dense().trace())
        left_out = [_squares(self._total - part) / (self.draws - draws) ** 2 for draws, part in self._leavable()]
        return Estimate.of_positive(value, jackknife(value, left_out).standard_error, len(left_out) - 1)

    def participation(self) -> Estimate:
        """The participation ratio of ``M̄ᵀM̄``."""
        left_out = []
        whole = self.dense() * self.draws**2
        for _, part in self._leavable():
            crossed = _product(self._total, part)
            left_out.append(_participation(whole - crossed - crossed.T + _product(part, part)))
        return jackknife(_participation(whole), left_out, positive=True)

    def along(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """``‖M̄ v‖²`` for each column, and its jackknife error."""
        vectors = self.columns(vectors)
        values = (vectors * self.matmul(vectors)).sum(0)
        columns = vectors.to(self._total.dtype)
        image, left_out = columns.T @ self._total, []
        for draws, part in self._leavable():
            left_out.append((image - columns.T @ part).double().square().sum(1) / (self.draws - draws) ** 2)
        count = len(left_out)
        if count < 3:
            return values, torch.full_like(values, math.nan)
        return values, torch.stack(left_out).std(0) * (count - 1) / math.sqrt(count)

    def halves(self) -> tuple[GramOfMean, GramOfMean]:
        """The Gram matrices of the means of the even and of the odd groups."""
        first, second = (GramOfMean(self.groups[part::2], self.inputs, self.rounding) for part in (0, 1))
        return first, second

    def coherence(self) -> float:
        """Cosine between the means of the two halves of the draws: 1 if they agree, about 0 if both are noise."""
        first, second = (half._total for half in self.halves())
        return cosine(first, second)

    def _leavable(self) -> list[tuple[int, Tensor]]:
        return self.groups if len(self.groups) > 2 else []


def cosine(first: Tensor, second: Tensor) -> float:
    """The cosine of the angle between two arrays of numbers; nan where one is zero."""
    lengths = math.sqrt(_squares(first) * _squares(second))
    return (
        sum(float((a.double() * b).sum()) for a, b in zip(first, second, strict=True)) / lengths
        if lengths
        else math.nan
    )


def _squares(matrix: Tensor) -> float:
    return sum(float(row.double().square().sum()) for row in matrix)


def _product(first: Tensor, second: Tensor, chunk: int = 8192) -> Tensor:
    """``A Bᵀ`` of long rows: products in the rows' own precision, summed in float64."""
    total = torch.zeros(first.shape[0], second.shape[0], dtype=torch.float64, device=first.device)
    unit = unit_of(first)
    for start in range(0, first.shape[1], chunk):
        total += (first[:, start : start + chunk] / unit) @ second[:, start : start + chunk].T
    return total * unit.double()


def _participation(matrix: Tensor) -> float:
    norm = float(matrix.square().sum())
    return float(matrix.trace()) ** 2 / norm if norm else math.nan


def _ratio(sums: PowerSums, centred: bool) -> float:
    trace_squared, norm_squared = sums.trace_and_norm(centred)
    return trace_squared / norm_squared if trace_squared > 0 < norm_squared else math.nan
