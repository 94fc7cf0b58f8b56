"""Streaming sums over gradients: everything that unbiased statistics of a gradient covariance need, mergeable.

A draw t contributes the matrix ``M_t = (1/n) Σ_x g_t(x) g_t(x)ᵀ``, or, for the mean gradient, ``M_t = ½(a bᵀ + b aᵀ)`` of the means
a and b of its gradients over two halves of its inputs, whose expectation is that of ``ḡ ḡᵀ`` whatever their number. Over draws we keep
``S = Σ M_t`` (whole, as rows, or sketched, by its size) and a few scalars and vectors. Sums of disjoint sets of draws add.

Where the mean gradient will be removed, all sums are about a centre near it: from sums about 0, what gradients share would be
subtracted to the fourth power, and a common gradient 10⁴ times the spread leaves no digit. All sums are in a unit, a power of two near
the largest gradient, so that no fourth power overflows or vanishes; dividing by it is exact.
"""

# T draws · n inputs per draw · D input size · k sketch size

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from typing_extensions import override

from biascope.runs.randomness import generator_for

DENSE_LIMIT = 8192  # largest D whose D × D matrix is formed
ROWS_LIMIT = 2**29  # most numbers kept as rows over all groups, 2 GiB
SKETCH_SIZE = 128


Coefficients = Callable[[Tensor], Tensor]  # of rows in an orthonormal basis


class SecondMoment(ABC):
    """A growing sum of outer products ``S = Σ w·r rᵀ``."""

    @abstractmethod
    def add(self, rows: Tensor, weight: float) -> None:
        """Add ``weight · rowsᵀ rows`` for rows ``(r, D)``."""

    @abstractmethod
    def merge(self, other: SecondMoment) -> None:
        """Add another sum of the same kind."""

    @abstractmethod
    def times(self, factor: float) -> SecondMoment:
        """The sum multiplied by a positive number."""

    @abstractmethod
    def inner(self, other: SecondMoment) -> float:
        """The Frobenius product ``⟨S, S'⟩``; for a sketch, an unbiased estimate of it."""

    @abstractmethod
    def matmul(self, vectors: Tensor) -> Tensor:
        """``S V`` for columns ``(D, k)``."""

    @abstractmethod
    def quadratic(self, vectors: Tensor) -> Tensor:
        """``vᵀ S v`` for each column."""

    @abstractmethod
    def energies(self, coefficients: Coefficients | None) -> Tensor | None:
        """``Σ w |⟨b, r⟩|²`` for each vector b of an orthonormal basis, ``(D,)``; ``None`` if the sum does not determine it.

        Args:
            coefficients: ``⟨b, r⟩`` of rows ``(r, D)``; ``None`` for the rows themselves.
        """

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What to write to disk."""


@dataclass
class Dense(SecondMoment):
    """The matrix itself, in float64."""

    matrix: Tensor

    @override
    def add(self, rows: Tensor, weight: float) -> None:
        wide = rows.double()
        self.matrix.addmm_(wide.T, wide, alpha=weight)

    @override
    def merge(self, other: SecondMoment) -> None:
        if isinstance(other, Rows):
            for part, sign in other.on(self.matrix.device):
                self.add(part, sign)
        else:
            assert isinstance(other, Dense)
            self.matrix += other.matrix.to(self.matrix.device)

    @override
    def times(self, factor: float) -> Dense:
        return Dense(self.matrix * factor)

    def moved(self, shift: Tensor, total: Tensor, draws: int) -> Dense:
        """The sum of ``(r + shift)(r + shift)ᵀ`` over as many rows, given ``Σ r``."""
        crossed = torch.outer(total + draws / 2 * shift, shift)
        return Dense(self.matrix + crossed + crossed.T)

    @override
    def inner(self, other: SecondMoment) -> float:
        if isinstance(other, Rows):
            return sum(
                sign * float((part.double() @ self.matrix * part.double()).sum())
                for part, sign in other.on(self.matrix.device)
            )
        assert isinstance(other, Dense)
        return float((self.matrix * other.matrix.to(self.matrix.device)).sum())

    @override
    def matmul(self, vectors: Tensor) -> Tensor:
        return self.matrix @ vectors

    @override
    def quadratic(self, vectors: Tensor) -> Tensor:
        return (vectors * (self.matrix @ vectors)).sum(0)

    @override
    def energies(self, coefficients: Coefficients | None) -> Tensor | None:
        if coefficients is None:
            return self.matrix.diagonal().clone()
        turned = coefficients(self.matrix).T  # the matrix is symmetric: its columns in the basis
        parts = torch.split(torch.arange(len(turned), device=turned.device), 256)
        return torch.cat(
            [coefficients(turned[part].conj()).conj()[torch.arange(len(part)), part].real for part in parts]
        )

    @override
    def tensors(self) -> dict[str, Tensor]:
        return {"matrix": self.matrix.cpu()}


@dataclass
class Rows(SecondMoment):
    """The weighted gradients themselves, in float32: smaller than the matrix while there are few.

    Attributes:
        parts: Rows of one sign each.
        signs: +1 or −1 for each part: of what is subtracted, −1.
    """

    parts: list[Tensor] = field(default_factory=list)
    signs: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def on(self, device: torch.device) -> list[tuple[Tensor, float]]:
        """The rows on a device, with their signs."""
        return [(part.to(device), sign) for part, sign in zip(self.parts, self.signs, strict=True)]

    def whole(self) -> tuple[Tensor, Tensor | None]:
        """All rows in float64, and the sign of each; no signs where all are positive."""
        rows = torch.cat(self.parts).double()
        if min(self.signs, default=1.0) > 0:
            return rows, None
        each = [
            torch.full((len(part),), sign, dtype=rows.dtype, device=rows.device) for part, sign in self.on(rows.device)
        ]
        return rows, torch.cat(each)

    @override
    def add(self, rows: Tensor, weight: float) -> None:
        self.parts.append(rows.float() * math.sqrt(abs(weight)))
        self.signs.append(math.copysign(1.0, weight))

    @override
    def merge(self, other: SecondMoment) -> None:
        assert isinstance(other, Rows)
        self.parts.extend(other.parts)
        self.signs.extend(other.signs)

    @override
    def times(self, factor: float) -> Rows:
        return Rows([part * math.sqrt(factor) for part in self.parts], list(self.signs))

    def moved(self, shift: Tensor, total: Tensor, draws: int) -> Rows:
        """The sum of ``(r + shift)(r + shift)ᵀ``."""
        return Rows([(part.double() + shift.to(part.device)).float() for part in self.parts], list(self.signs))

    @override
    def inner(self, other: SecondMoment) -> float:
        if isinstance(other, Dense):
            return other.inner(self)
        assert isinstance(other, Rows)
        rows, signs = self.whole()  # one product: those of many small parts take longer
        theirs, their_signs = other.whole()
        squares = (rows @ theirs.to(rows.device).T).square()
        if signs is not None:
            squares = signs[:, None] * squares
        if their_signs is not None:
            squares = squares * their_signs.to(rows.device)
        return float(squares.sum())

    @override
    def matmul(self, vectors: Tensor) -> Tensor:
        result = torch.zeros_like(vectors)
        for part, sign in self.on(vectors.device):
            result += sign * (part.T.to(vectors.dtype) @ (part.to(vectors.dtype) @ vectors))
        return result

    @override
    def quadratic(self, vectors: Tensor) -> Tensor:
        total = torch.zeros(vectors.shape[1], dtype=vectors.dtype, device=vectors.device)
        for part, sign in self.on(vectors.device):
            total += sign * (part.to(vectors.dtype) @ vectors).square().sum(0)
        return total

    @override
    def energies(self, coefficients: Coefficients | None) -> Tensor | None:
        found: list[Tensor] = []
        for part, sign in zip(self.parts, self.signs, strict=True):
            rows = part.double()
            found.append(sign * (rows if coefficients is None else coefficients(rows)).abs().square().sum(0))
        return torch.stack(found).sum(0)

    @override
    def tensors(self) -> dict[str, Tensor]:
        found = {}
        for name, wanted in (("rows", 1.0), ("subtracted", -1.0)):
            if parts := [part for part, sign in zip(self.parts, self.signs, strict=True) if sign == wanted]:
                found[name] = torch.cat(parts).cpu()
        return found


@dataclass
class Sketch(SecondMoment):
    """``S Ω`` for a fixed Gaussian ``Ω``: enough for leading eigenpairs (Nyström) and unbiased norms at any size."""

    image: Tensor  # (D, k)
    seed: int = 0

    def test_matrix(self) -> Tensor:
        """``Ω``, the same for every group, so that sketches add."""
        generator = generator_for(self.image.device, self.seed, "sketch")
        return torch.randn(self.image.shape, generator=generator, device=self.image.device, dtype=torch.float32)

    @override
    def add(self, rows: Tensor, weight: float) -> None:
        self.image.add_(rows.float().T @ (rows.float() @ self.test_matrix()), alpha=weight)

    @override
    def merge(self, other: SecondMoment) -> None:
        assert isinstance(other, Sketch)
        self.image += other.image.to(self.image.device)

    @override
    def times(self, factor: float) -> Sketch:
        return Sketch(self.image * factor, self.seed)

    @override
    def inner(self, other: SecondMoment) -> float:
        assert isinstance(other, Sketch)
        return float((self.image.double() * other.image.to(self.image.device).double()).sum()) / self.image.shape[1]

    def factor(self) -> Tensor:
        """The Nyström factor ``F`` with ``S ≈ F Fᵀ``, ``(D, k)`` in float64.

        Reference:
            Tropp, Yurtsever, Udell, Cevher (2017). Fixed-rank approximation of a positive-semidefinite matrix from
            streaming data. NeurIPS.
        """
        test = torch.linalg.qr(self.test_matrix().double())
        image = torch.linalg.solve_triangular(test.R, self.image.double(), upper=True, left=False)
        shift = torch.finfo(torch.float32).eps * float(torch.linalg.matrix_norm(image))
        shifted = image + shift * test.Q
        core = test.Q.T @ shifted
        cholesky = torch.linalg.cholesky((core + core.T) / 2)
        factor: Tensor = torch.linalg.solve_triangular(cholesky, shifted.T, upper=False)
        return factor.T

    @override
    def matmul(self, vectors: Tensor) -> Tensor:
        factor = self.factor().to(vectors.dtype)
        return factor @ (factor.T @ vectors)

    @override
    def quadratic(self, vectors: Tensor) -> Tensor:
        return (self.factor().T.to(vectors.dtype) @ vectors).square().sum(0)

    @override
    def energies(self, coefficients: Coefficients | None) -> Tensor | None:
        return None

    @override
    def tensors(self) -> dict[str, Tensor]:
        return {"sketch": self.image.cpu()}


def unit_of(numbers: Tensor) -> Tensor:
    """The power of two next above the largest number: dividing by it is exact, and leaves numbers of which squares can be taken.

    Example:
        >>> unit_of(torch.tensor([3e-30, -5e-30])).log2().item(), unit_of(torch.zeros(3)).item()
        (-97.0, 1.0)
    """
    largest = numbers.detach().abs().amax()
    ends = torch.finfo(largest.dtype)
    exponent = torch.frexp(largest).exponent.clamp(math.frexp(ends.tiny)[1], math.frexp(ends.max)[1] - 1)
    return torch.ldexp(torch.ones_like(largest), exponent)


def representation(size: int, draws: int, inputs: int, groups: int) -> str:
    """Which form the second moment of one group takes, by its size alone: ``"rows"``, ``"dense"`` or ``"sketch"``.

    Rows while they are the smaller (they take 4 bytes a number, the matrix 8), the matrix while D allows it, else the
    sketch; so memory has a bound that does not grow with the number of draws.

    Example:
        >>> representation(1024, 400, 1, 32), representation(1024, 10**6, 1, 32), representation(150528, 10**5, 1, 32)
        ('rows', 'dense', 'sketch')
    """
    rows = -(-draws // groups) * inputs
    if size <= DENSE_LIMIT:
        return "rows" if rows < 2 * size else "dense"
    return "rows" if draws * inputs * size <= ROWS_LIMIT and draws * inputs <= DENSE_LIMIT else "sketch"


@dataclass
class Moments:
    """Sums over the draws of one group, with g read as ``(g − centre)/unit``.

    Attributes:
        second: ``S = Σ M_t``.
        total: ``s = Σ_t mean_x g``, ``(D,)``.
        weighted: ``q = Σ ‖g‖² g``, ``(D,)``: used by the centred statistics, which need one input per draw.
        draws: Number of draws T.
        trace: ``Σ tr M_t``.
        trace_square: ``Σ (tr M_t)²``.
        norm_square: ``Σ ‖M_t‖²_F``.
        centre: What is subtracted from every gradient, ``(D,)``; ``None`` for nothing. It needs one input per draw.
        unit: A power of two by which every gradient is divided.
    """

    second: SecondMoment
    total: Tensor
    weighted: Tensor
    draws: int = 0
    trace: float = 0.0
    trace_square: float = 0.0
    norm_square: float = 0.0
    centre: Tensor | None = None
    unit: float = 1.0

    @staticmethod
    def empty(size: int, form: str, device: torch.device, centre: Tensor | None = None, unit: float = 1.0) -> Moments:
        """Sums over no draws."""
        second: SecondMoment
        if form == "dense":
            second = Dense(torch.zeros(size, size, dtype=torch.float64, device=device))
        elif form == "rows":
            second = Rows()
        else:
            second = Sketch(torch.zeros(size, SKETCH_SIZE, dtype=torch.float32, device=device))
        zeros = torch.zeros(size, dtype=torch.float64, device=device)
        return Moments(second, zeros, zeros.clone(), centre=centre, unit=unit)

    def add(self, gradients: Tensor) -> None:
        """Add draws: ``(T, n, D)``."""
        _, inputs, size = gradients.shape
        if self.centre is not None:
            gradients = gradients.double() - self.centre
        if self.unit != 1:
            gradients = gradients / self.unit
        self.second.add(gradients.reshape(-1, size), 1.0 / inputs)
        means = gradients.mean(1, dtype=torch.float64)  # (T, D)
        self.total += means.sum(0)
        if inputs == 1:
            traces = means.square().sum(1)
            norms = traces.square()
            self.weighted += traces @ means
        else:
            wide = gradients.double()
            grams = torch.bmm(wide, wide.mT) / inputs  # (T, n, n)
            traces = grams.diagonal(dim1=1, dim2=2).sum(1)
            norms = grams.square().sum((1, 2))
        self._count(traces, norms)

    def add_crossed(self, halves: Tensor) -> None:
        """Add draws by the means of their gradients over two halves of their inputs: ``(T, 2, D)``.

        ``½(a bᵀ + b aᵀ) = m mᵀ − d dᵀ`` of the half sum m and the half difference d.
        """
        first, second = halves[:, 0].double() / self.unit, halves[:, 1].double() / self.unit
        middle = (first + second) / 2
        self.second.add(middle, 1.0)
        self.second.add((first - second) / 2, -1.0)
        self.total += middle.sum(0)
        traces = (first * second).sum(1)
        norms = (traces.square() + first.square().sum(1) * second.square().sum(1)) / 2
        self._count(traces, norms)

    def _count(self, traces: Tensor, norms: Tensor) -> None:
        sums = torch.stack([traces.sum(), traces.square().sum(), norms.sum()]).tolist()
        self.trace, self.trace_square, self.norm_square = (
            old + new for old, new in zip((self.trace, self.trace_square, self.norm_square), sums, strict=True)
        )
        self.draws += len(traces)

    def merge(self, other: Moments) -> None:
        """Add the sums of other draws, brought to the centre and the unit of these."""
        other = other.about(self.centre).in_unit(self.unit)
        self.second.merge(other.second)
        self.total = self.total + other.total.to(self.total.device)
        self.weighted = self.weighted + other.weighted.to(self.total.device)
        for name in ("draws", "trace", "trace_square", "norm_square"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def about(self, centre: Tensor | None) -> Moments:
        """The same sums about another centre, by Chan's update: every term is of the size of the result or smaller.

        Reference:
            Chan, Golub, LeVeque (1983). Algorithms for computing the sample variance. The American Statistician 37.
        """
        if centre is self.centre:
            return self
        zeros = torch.zeros_like(self.total)
        here, there = (zeros if each is None else each.to(zeros.device) for each in (self.centre, centre))
        shift = (here - there) / self.unit
        if not bool(shift.any()):
            return self
        assert isinstance(self.second, Dense | Rows)  # a sketch has no mean to remove
        length, along = float(shift @ shift), float(self.total @ shift)
        image = self.second.matmul(shift[:, None])[:, 0]
        norms = self.norm_square + 4 * float(shift @ image) + self.draws * length**2
        norms += 4 * float(self.weighted @ shift) + 2 * length * self.trace + 4 * length * along
        return Moments(
            self.second.moved(shift, self.total, self.draws),
            self.total + self.draws * shift,
            self.weighted + 2 * image + length * self.total + (self.trace + 2 * along + self.draws * length) * shift,
            self.draws,
            self.trace + 2 * along + self.draws * length,
            norms,  # of one input per draw: ‖M_t‖²_F = (tr M_t)²
            norms,
            centre,
            self.unit,
        )

    def in_unit(self, unit: float) -> Moments:
        """The same sums in another unit."""
        if unit == self.unit:
            return self
        by = self.unit / unit
        return Moments(
            self.second.times(by**2),
            self.total * by,
            self.weighted * by**3,
            self.draws,
            self.trace * by**2,
            self.trace_square * by**4,
            self.norm_square * by**4,
            self.centre,
            unit,
        )

    def tensors(self) -> dict[str, Tensor]:
        """What to write to disk."""
        scalars = torch.tensor(
            [self.draws, self.trace, self.trace_square, self.norm_square, self.unit], dtype=torch.float64
        )
        vectors = {"total": self.total.cpu(), "weighted": self.weighted.cpu(), "scalars": scalars}
        centre = {} if self.centre is None else {"centre": self.centre.cpu()}
        return {**self.second.tensors(), **vectors, **centre}

    @staticmethod
    def from_tensors(tensors: dict[str, Tensor], device: torch.device) -> Moments:
        """Read back what :meth:`tensors` gave."""
        second: SecondMoment
        if "matrix" in tensors:
            second = Dense(tensors["matrix"].to(device))
        elif "rows" in tensors:
            second = Rows()
            for name, sign in (("rows", 1.0), ("subtracted", -1.0)):
                if name in tensors:
                    second.add(tensors[name].to(device), sign)
        else:
            second = Sketch(tensors["sketch"].to(device))
        draws, trace, trace_square, norm_square, unit = tensors["scalars"].tolist()
        centre = tensors["centre"].to(device) if "centre" in tensors else None
        total, weighted = tensors["total"].to(device), tensors["weighted"].to(device)
        return Moments(second, total, weighted, int(draws), trace, trace_square, norm_square, centre, unit)


@dataclass(frozen=True)
class PowerSums:
    """The scalars from which the U-statistics follow; those of a sample with a group left out are differences.

    With ``K_tu = g_t·g_u`` (for n = 1): ``norm = ‖S‖²_F``, ``mean_norm = s·s``, ``mean_form = sᵀS s``, ``mean_weighted = s·q``.
    """

    draws: int
    trace: float
    trace_square: float
    norm_square: float
    norm: float
    mean_norm: float
    mean_form: float
    mean_weighted: float

    def trace_and_norm(self, centred: bool) -> tuple[float, float]:
        """Unbiased estimates of ``(tr C)²`` and ``tr C²``.

        Uncentred, over pairs of distinct draws: ``(tr C)² ≈ ((Σ τ)² − Σ τ²)/(T(T−1))`` with ``τ_t = tr M_t``, and
        ``tr C² ≈ (‖S‖² − Σ‖M_t‖²)/(T(T−1))``. Centred, over quadruples of distinct draws: ``C = E ½(g−g')(g−g')ᵀ`` gives
        ``tr C² = E[K₁₂² − 2K₁₂K₂₃ + K₁₂K₃₄]`` and ``(tr C)² = E[(K₁₁ − K₁₂)(K₃₃ − K₃₄)]``; sums over distinct indices
        follow from the power sums by inclusion and exclusion.

        Reference:
            Chen, Zhang, Zhong (2010). Tests for high-dimensional covariance matrices. JASA 105, for the centred form.
        """
        T = self.draws
        pairs = T * (T - 1)
        if not centred:
            return (self.trace**2 - self.trace_square) / pairs, (self.norm - self.norm_square) / pairs
        triples, quadruples = pairs * (T - 2), pairs * (T - 2) * (T - 3)
        k12k12 = self.norm - self.norm_square
        k11k22 = self.trace**2 - self.trace_square
        k12 = self.mean_norm - self.trace
        k11k12 = self.mean_weighted - self.trace_square
        k11k23 = self.trace * k12 - 2 * k11k12
        k12k23 = self.mean_form - 2 * self.mean_weighted - self.norm + 2 * self.trace_square
        k12k34 = k12**2 - 4 * k12k23 - 2 * k12k12
        trace_squared = k11k22 / pairs - 2 * k11k23 / triples + k12k34 / quadruples
        norm_squared = k12k12 / pairs - 2 * k12k23 / triples + k12k34 / quadruples
        return trace_squared, norm_squared
