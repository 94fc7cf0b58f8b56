"""Symmetric matrices on input space: the covariance of data, geometries, and how similar they are."""

# n samples or inputs · D input size · T draws

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import torch
from torch import Tensor
from typing_extensions import override

from biascope.derivatives.operators import LinearOperator
from biascope.results.estimate import Estimate, jackknife

FORMED = 4096  # largest input whose matrices are formed
_AT_ONCE = 2**24  # numbers in a block of products, 128 MB in float64


def data_covariance(x: Tensor, *, at_once: int = 2**26) -> Tensor:
    """``S = Σ_μ x_μ x_μᵀ`` of samples ``(n, …)``, neither centred nor divided by n: ``(D, D)`` in float64.

    Example:
        >>> data_covariance(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
        tensor([[1., 2.],
                [2., 5.]], dtype=torch.float64)
    """
    flat = x.flatten(1)
    size = flat.shape[1]
    total = torch.zeros(size, size, dtype=torch.float64, device=x.device)
    for rows in torch.split(flat, max(1, at_once // size)):
        total.addmm_(rows.double().T, rows.double())
    return total


def correlation(one: Tensor, two: Tensor) -> float:
    """The cosine ``tr(AᵀB)/(‖A‖‖B‖)`` of two matrices, from −1 to 1; nan where one is zero.

    Two matrices with positive eigenvalues are never at 0, and random ones are far from it: two independent Wishart matrices of
    as many draws as dimensions are at about 0.5. What chance gives is best seen from the correlation of each with the identity.

    Example:
        >>> correlation(torch.eye(4), torch.diag(torch.tensor([4.0, 0.0, 0.0, 0.0])))
        0.5
    """
    a, b = one.double().flatten(), two.double().flatten()
    return float(a @ b / (a.norm() * b.norm()))


def flip(matrix: Tensor) -> Tensor:
    """The symmetric matrix with the same eigenvectors and its eigenvalues in reverse order.

    Example:
        >>> flip(torch.diag(torch.tensor([1.0, 2.0, 3.0]))).diagonal()
        tensor([3., 2., 1.])
    """
    values, vectors = torch.linalg.eigh(matrix.double())
    turned: Tensor = (vectors * values.flip(0)) @ vectors.T
    return turned.to(matrix.dtype)


def seen_through(geometry: Tensor, covariance: Tensor) -> Tensor:
    """``G S G``: the covariance of data as a network of geometry ``G`` sees it, in float64.

    Example:
        >>> seen_through(torch.diag(torch.tensor([2.0, 0.0])), torch.ones(2, 2)).tolist()
        [[4.0, 0.0], [0.0, 0.0]]
    """
    wide = geometry.double()
    return wide @ covariance.to(wide) @ wide


class GramOfRows(LinearOperator):
    """A positive matrix ``RᵀR`` known by its rows ``(r, D)``, never formed: for inputs too large for a matrix.

    Example:
        >>> seen = GramOfRows(torch.tensor([[1.0, 0.0], [2.0, 0.0]]))
        >>> seen.norm(), seen.trace(), seen.matmul(torch.eye(2, dtype=torch.float64)).tolist()
        (5.0, 5.0, [[5.0, 0.0], [0.0, 0.0]])
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows.flatten(1)
        self.size, self.device = self.rows.shape[1], rows.device

    @override
    def matmul(self, vectors: Tensor) -> Tensor:
        image = torch.zeros(self.size, vectors.shape[1], dtype=torch.float64, device=self.device)
        for part in torch.split(self.rows, max(1, _AT_ONCE // self.size)):
            wide = part.double()
            image.addmm_(wide.T, wide @ vectors)
        return image

    @override
    def factor(self) -> Tensor | None:
        return self.rows.T.double()

    @functools.cached_property
    def _norm(self) -> float:
        parts = torch.split(self.rows, max(1, min(2048, _AT_ONCE // self.size)))
        total = 0.0
        for place, one in enumerate(parts):
            wide = one.double()
            for other in parts[place:]:
                square = float((wide @ other.double().T).square().sum())
                total += square if other is one else 2 * square
        return math.sqrt(total)

    def norm(self) -> float:
        """The Frobenius norm, from the products of pairs of rows."""
        return self._norm

    def trace(self) -> float:
        """The trace, which is the sum of squares of the rows."""
        return sum(float(part.double().square().sum()) for part in torch.split(self.rows, 1024))

    def seen_through(self, geometry: LinearOperator) -> GramOfRows:
        """``G RᵀR G``, by the rows ``RG``: their number does not change."""
        parts = torch.split(self.rows, max(1, _AT_ONCE // self.size))
        return GramOfRows(torch.cat([geometry.matmul(part.double().T).T.to(self.rows.dtype) for part in parts]))


def norm_of(matrix: Tensor | GramOfRows) -> float:
    """The Frobenius norm."""
    return matrix.norm() if isinstance(matrix, GramOfRows) else float(matrix.double().norm())


def correlation_with_identity(matrix: Tensor | GramOfRows) -> float:
    """``Corr(I, B) = tr B/(√D ‖B‖)``: what a matrix without structure has in common with B.

    Example:
        >>> correlation_with_identity(torch.diag(torch.tensor([4.0, 0.0, 0.0, 0.0])))
        0.5
    """
    if isinstance(matrix, GramOfRows):
        return matrix.trace() / (math.sqrt(matrix.size) * matrix.norm())
    return correlation(torch.eye(len(matrix), dtype=torch.float64, device=matrix.device), matrix)


def references(geometry: LinearOperator, x: Tensor) -> dict[str, Tensor | GramOfRows | None]:
    """What theory compares a geometry with: GSG, S of samples x, G, and the identity, which is ``None``.

    Up to :data:`FORMED` numbers in an input they are matrices. Beyond, S and GSG are kept as one row for each sample.
    """
    factor = geometry.factor()
    if geometry.size <= FORMED or factor is None:
        matrix = geometry.dense()
        assert matrix is not None  # either small, or kept as a matrix
        if geometry.size <= FORMED:
            covariance = data_covariance(x).to(matrix.device)
            return {"GSG": seen_through(matrix, covariance), "S": covariance, "G": matrix, "I": None}
    data = GramOfRows(x.to(geometry.device))
    return {
        "GSG": data.seen_through(geometry),
        "S": data,
        "G": matrix if factor is None else GramOfRows(factor.T),
        "I": None,
    }


class DrawnMatrix:
    """A symmetric matrix known as a mean over draws, ``M = E_t mean_a ½(l_ta r_taᵀ + r_ta l_taᵀ)``, kept as its rows.

    With ``l = r = ∇_x f`` it is the average geometry of T networks at n inputs each. Whatever it is compared with, only inner
    products of rows are needed, never a matrix of the input's size; and from those of pairs of draws its squared norm can be
    estimated without the bias that few draws have: ``‖M̂‖²`` counts every draw's own square.

    Args:
        left: ``(T, n, D)``.
        right: The same shape; ``left`` itself by default.
    """

    def __init__(self, left: Tensor, right: Tensor | None = None) -> None:
        self.left, self.right = left, left if right is None else right
        self.draws = len(left)

    def dense(self) -> Tensor:
        """The matrix of means, ``(D, D)`` in float64."""
        count = self.left.shape[0] * self.left.shape[1]
        half = self.left.flatten(0, 1).double().T @ self.right.flatten(0, 1).double() / count
        return (half + half.T) / 2

    def against(self, matrix: Tensor | GramOfRows) -> Tensor:
        """``⟨M_t, B⟩`` of each draw with a symmetric matrix, ``(T,)``."""
        some = max(1, _AT_ONCE // self.left[0].numel())
        found = []
        for left, right in _blocks_of(self, some):
            if isinstance(matrix, GramOfRows):
                moved = matrix.matmul(right.flatten(0, 1).double().T).T.reshape(right.shape)
            else:
                moved = right.double() @ matrix.to(right.device, torch.float64)
            found.append((left.double() * moved).sum(2).mean(1))
        return torch.cat(found)

    def matmul(self, vectors: Tensor) -> Tensor:
        """The mean applied to columns ``(D, k)``, in float64; nothing of the size of a matrix is formed."""
        image = torch.zeros(len(vectors), vectors.shape[1], dtype=torch.float64, device=vectors.device)
        count = self.left.shape[0] * self.left.shape[1]
        for left, right in _blocks_of(self, max(1, _AT_ONCE // self.left[0].numel())):
            one, two = left.flatten(0, 1).double(), right.flatten(0, 1).double()
            image += one.T @ (two @ vectors) + two.T @ (one @ vectors)
        return image / (2 * count)

    def leading(self, num: int, *, seed: int, rounds: int = 4) -> tuple[Tensor, Tensor]:
        """Eigenvalues and eigenvectors (columns) of largest size, whatever the sign, from largest to smallest.

        Up to :data:`FORMED` the matrix is decomposed. Beyond, a block of random vectors is multiplied several times.
        """
        size = self.left.shape[2]
        if size <= FORMED:
            values, vectors = torch.linalg.eigh(self.dense())
        else:
            generator = torch.Generator().manual_seed(seed)
            block = torch.randn(size, num + 32, generator=generator, dtype=torch.float64).to(self.left.device)
            for _ in range(rounds):
                block = torch.linalg.qr(self.matmul(block)).Q
            inside = block.T @ self.matmul(block)
            values, turned = torch.linalg.eigh((inside + inside.T) / 2)
            vectors = block @ turned
        order = values.abs().argsort(descending=True)[:num]
        return values[order], vectors[:, order]

    def along_identity(self) -> Tensor:
        """``tr M_t`` of each draw, ``(T,)``."""
        some = max(1, _AT_ONCE // self.left[0].numel())
        return torch.cat([(left.double() * right.double()).sum(2).mean(1) for left, right in _blocks_of(self, some)])

    def pairs(self, other: DrawnMatrix | None = None) -> Tensor:
        """``⟨M_t, M'_u⟩`` of every pair of draws, ``(T, U)``; a block of draws at a time, since inputs multiply the products."""
        other = other or self
        each, plain = self.left.shape[1] * other.left.shape[1], self._plain(other)
        some = max(1, math.isqrt(_AT_ONCE // each))
        found = torch.empty(self.draws, other.draws, dtype=torch.float64, device=self.left.device)
        for i, one in enumerate(_blocks_of(self, some)):
            for j, two in enumerate(_blocks_of(other, some)):
                if other is self and j < i:  # known from the other side of the diagonal
                    continue
                part = _products(one, two, plain)
                found[i * some : (i + 1) * some, j * some : (j + 1) * some] = part
                if other is self:
                    found[j * some : (j + 1) * some, i * some : (i + 1) * some] = part.T
        return found / (each if plain else 2 * each)

    def _plain(self, other: DrawnMatrix) -> bool:
        return self.left is self.right and other.left is other.right

    def correlations(
        self, matrices: Mapping[str, Tensor | GramOfRows | None], *, groups: int = 32
    ) -> dict[str, tuple[Estimate, float]]:
        """The correlation with each of several matrices: without the bias of few draws, and as usually defined.

        Args:
            matrices: By name; ``None`` stands for the identity.
            groups: Groups of draws over which the error is taken.

        Returns:
            For each name the estimate from pairs of distinct draws with its jackknife error over groups of draws, and the plain
            ``Corr(M̂, B)``; the first is nan where draws are too few to tell the norm from noise.
        """
        pairs, blocks = self.pairs(), _blocks(self.draws, groups)
        spread = torch.stack([pairs[rows].sum(0) for rows in blocks])  # (blocks, T)
        sums = torch.stack([spread[:, rows].sum(1) for rows in blocks], 1)  # (blocks, blocks)
        own = torch.stack([pairs.diagonal()[rows].sum() for rows in blocks])
        sizes = torch.tensor([len(rows) for rows in blocks], dtype=torch.float64, device=pairs.device)
        plain = float(pairs.mean().clamp_min(0).sqrt())
        found = {}
        for name, matrix in matrices.items():
            each, norm = self._along(matrix), self._size_of(matrix)
            totals = torch.stack([each[rows].sum() for rows in blocks])

            def value(kept: Tensor, totals: Tensor = totals, norm: float = norm) -> float:
                count = float(sizes[kept].sum())
                square = (
                    (sums[kept][:, kept].sum() - own[kept].sum()) / (count * (count - 1)) if count > 1 else torch.nan
                )
                return float(totals[kept].sum() / count) / (float(square) ** 0.5 * norm) if square > 0 else float("nan")

            every = torch.arange(len(blocks))
            left_out = [value(every[every != block]) for block in range(len(blocks))]
            whole = value(every)
            estimate = jackknife(whole, left_out) if all(map(math.isfinite, [whole, *left_out])) else Estimate(whole)
            found[name] = estimate, float(each.mean()) / (plain * norm) if plain > 0 else float("nan")
        return found

    def _along(self, matrix: Tensor | GramOfRows | None) -> Tensor:
        return self.along_identity() if matrix is None else self.against(matrix)

    def _size_of(self, matrix: Tensor | GramOfRows | None) -> float:
        return math.sqrt(self.left.shape[2]) if matrix is None else norm_of(matrix)

    def left_out(self, matrices: Mapping[str, Tensor | GramOfRows | None]) -> dict[str, Tensor]:
        """The plain ``Corr(M̂, B)`` with each of several matrices, without each of the draws in turn, ``(T,)``."""
        pairs = self.pairs()
        squares = (pairs.sum() - 2 * pairs.sum(1) + pairs.diagonal()).clamp_min(1e-300)
        found = {}
        for name, matrix in matrices.items():
            each = self._along(matrix)
            found[name] = (each.sum() - each) / (squares.sqrt() * self._size_of(matrix))
        return found

    def correlation(self, other: DrawnMatrix) -> float:
        """The plain ``Corr(M̂, M̂')`` with another that was drawn."""
        norms = self.pairs().mean() * other.pairs().mean()
        return float(self.pairs(other).mean() / norms.clamp_min(1e-300).sqrt())

    def correlation_left_out(self, other: DrawnMatrix) -> Tensor:
        """The plain ``Corr(M̂, M̂')`` without each of the draws in turn, ``(T,)``; draws of the same place belong together."""

        def sums(pairs: Tensor) -> Tensor:
            return pairs.sum() - pairs.sum(0) - pairs.sum(1) + pairs.diagonal()

        norms = sums(self.pairs()) * sums(other.pairs())
        return sums(self.pairs(other)) / norms.clamp_min(1e-300).sqrt()


def _blocks_of(drawn: DrawnMatrix, some: int) -> list[tuple[Tensor, Tensor]]:
    """Left and right rows of some draws at a time."""
    return list(zip(torch.split(drawn.left, some), torch.split(drawn.right, some), strict=True))


def _products(one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor], plain: bool) -> Tensor:
    """Sums over inputs of the products of every pair of draws of two blocks."""

    def products(first: Tensor, second: Tensor) -> Tensor:
        return torch.einsum("tad,ubd->taub", first.double(), second.double())

    straight = products(one[0], two[0])
    straight = straight * (straight if plain else products(one[1], two[1]))
    if plain:
        return straight.sum((1, 3))
    return (straight + products(one[0], two[1]) * products(one[1], two[0])).sum((1, 3))


def _blocks(draws: int, groups: int) -> list[Tensor]:
    """Draws in as many groups as there can be, of nearly equal size."""
    return list(torch.arange(draws).tensor_split(min(groups, draws)))
