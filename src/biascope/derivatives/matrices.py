"""Symmetric matrices on input space: the covariance of data, geometries, and how similar they are."""

# n samples or inputs · D input size · T draws

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from biascope.results.estimate import Estimate, jackknife


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

    def against(self, matrix: Tensor) -> Tensor:
        """``⟨M_t, B⟩`` of each draw with a symmetric matrix, ``(T,)``."""
        moved = self.right.double() @ matrix.to(self.right.device, torch.float64)
        return (self.left.double() * moved).sum(2).mean(1)

    def pairs(self, other: DrawnMatrix | None = None) -> Tensor:
        """``⟨M_t, M'_u⟩`` of every pair of draws, ``(T, U)``."""
        other = other or self
        inputs = self.left.shape[1] * other.left.shape[1]

        def products(one: Tensor, two: Tensor) -> Tensor:
            return torch.einsum("tad,ubd->taub", one.double(), two.double())

        straight = products(self.left, other.left)
        straight = straight * (straight if self._plain(other) else products(self.right, other.right))
        if self._plain(other):
            return straight.sum((1, 3)) / inputs
        crossed = products(self.left, other.right) * products(self.right, other.left)
        return (straight + crossed).sum((1, 3)) / (2 * inputs)

    def _plain(self, other: DrawnMatrix) -> bool:
        return self.left is self.right and other.left is other.right

    def correlations(self, matrices: Mapping[str, Tensor], *, groups: int = 32) -> dict[str, tuple[Estimate, float]]:
        """The correlation with each of several matrices: without the bias of few draws, and as usually defined.

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
            each, norm = self.against(matrix), float(matrix.double().norm())
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

    def left_out(self, matrix: Tensor) -> Tensor:
        """The plain ``Corr(M̂, B)`` without each of the draws in turn, ``(T,)``."""
        pairs, each = self.pairs(), self.against(matrix)
        squares = (pairs.sum() - 2 * pairs.sum(1) + pairs.diagonal()).clamp_min(1e-300)
        found: Tensor = (each.sum() - each) / (squares.sqrt() * matrix.to(each).norm())
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


def _blocks(draws: int, groups: int) -> list[Tensor]:
    """Draws in as many groups as there can be, of nearly equal size."""
    return list(torch.arange(draws).tensor_split(min(groups, draws)))
