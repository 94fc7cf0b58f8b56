"""Spectra of symmetric operators, each eigenpair with its residual, and the similarity of subspaces."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from biascope.operators import LinearOperator
from biascope.randomness import seed_of


@dataclass(frozen=True)
class Spectrum:
    """Eigenpairs, largest first.

    Attributes:
        values: ``(k,)`` float64.
        vectors: ``(k, D)`` rows of unit length, float64; the entry of largest size is positive.
        residuals: ``‖A v − λ B v‖`` over the largest eigenvalue, ``(k,)``.
        method: How they were found.
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    method: str


def eigenpairs(
    operator: LinearOperator, num: int | None = None, *, metric: LinearOperator | None = None, seed: int = 0
) -> Spectrum:
    """The largest eigenpairs of a symmetric operator, ``A v = λ v`` or, with a metric, ``A v = λ B v``.

    The whole matrix where it can be formed (LAPACK); the small Gram matrix of a thin factor otherwise; else implicitly
    restarted Lanczos on the operator.

    Args:
        operator: ``A``.
        num: How many; all that there are by default.
        metric: ``B``, positive definite; vectors are then normalised to unit Euclidean length.
        seed: Of the start vector of the iteration.

    Returns:
        The spectrum with residuals.

    Example:
        >>> from biascope.operators import Matrix
        >>> eigenpairs(Matrix(torch.diag(torch.tensor([1.0, 3.0, 2.0])))).values
        tensor([3., 2., 1.], dtype=torch.float64)
    """
    num = operator.size if num is None else min(num, operator.size)
    matrix = operator.dense()
    if matrix is not None:
        values, vectors = _dense_pairs(matrix, metric)
        method = "dense eigen-decomposition"
    elif (factor := operator.factor()) is not None and metric is None:
        gram = torch.linalg.eigh(factor.T @ factor)
        kept = gram.eigenvalues > gram.eigenvalues[-1] * 1e-12
        values = gram.eigenvalues[kept]
        vectors = factor @ gram.eigenvectors[:, kept] / values.sqrt()
        method = "eigen-decomposition of the Gram matrix of a thin factor"
    else:
        values, vectors = _iterated_pairs(operator, num, metric, seed)
        method = "implicitly restarted Lanczos"
    order = values.argsort(descending=True)[:num]
    values, vectors = values[order], vectors[:, order] / vectors[:, order].norm(dim=0)
    vectors = vectors * vectors.gather(0, vectors.abs().argmax(0, keepdim=True)).sign()
    image = vectors if metric is None else metric.matmul(vectors)
    residuals = (operator.matmul(vectors) - image * values).norm(dim=0) / values.abs().max().clamp_min(1e-300)
    return Spectrum(values, vectors.T.contiguous(), residuals, method)


def _dense_pairs(matrix: Tensor, metric: LinearOperator | None) -> tuple[Tensor, Tensor]:
    if metric is None:
        pairs = torch.linalg.eigh((matrix + matrix.T) / 2)
        return pairs.eigenvalues, pairs.eigenvectors
    scale = metric.dense()
    if scale is None:
        raise ValueError("metric must be small enough to form as a matrix, like the operator. Reduce the input size.")
    lower = torch.linalg.cholesky((scale + scale.T) / 2)
    half = torch.linalg.solve_triangular(lower, matrix, upper=False)
    reduced = torch.linalg.solve_triangular(lower, half.T, upper=False)
    pairs = torch.linalg.eigh((reduced + reduced.T) / 2)
    return pairs.eigenvalues, torch.linalg.solve_triangular(lower.T, pairs.eigenvectors, upper=True)


def _iterated_pairs(
    operator: LinearOperator, num: int, metric: LinearOperator | None, seed: int
) -> tuple[Tensor, Tensor]:
    import numpy as np
    from scipy.sparse.linalg import LinearOperator as SciPyOperator
    from scipy.sparse.linalg import eigsh

    if metric is not None:
        raise ValueError(
            "generalised eigenpairs need an operator that can be formed as a matrix. Reduce the input size."
        )

    def apply(vector: np.ndarray) -> np.ndarray:
        column = torch.from_numpy(np.ascontiguousarray(vector)).reshape(-1, 1).to(operator.device)
        return operator.matmul(column).cpu().numpy().ravel()

    start = np.random.default_rng(seed_of(seed, "eigenpairs")).standard_normal(operator.size)
    shape = (operator.size, operator.size)
    values, vectors = eigsh(
        SciPyOperator(shape, matvec=apply, dtype=np.float64), k=min(num, operator.size - 1), v0=start
    )
    return torch.from_numpy(values).to(operator.device), torch.from_numpy(vectors).to(operator.device)


def subspace_similarity(first: Tensor, second: Tensor) -> float:
    """Mean squared cosine of the principal angles between two subspaces of equal dimension.

    ``‖U Vᵀ‖²_F / k`` for orthonormal rows: 1 for equal subspaces, ``k/D`` on average for random ones.

    Args:
        first: ``(k, D)`` orthonormal rows.
        second: ``(k, D)`` orthonormal rows.

    Example:
        >>> axes = torch.eye(4, dtype=torch.float64)
        >>> subspace_similarity(axes[:2], axes[1:3])
        0.5
    """
    if first.shape != second.shape:
        raise ValueError(
            f"The two subspaces must have the same number of directions and input size, got {tuple(first.shape)} and "
            f"{tuple(second.shape)}. Compare as many directions of each."
        )
    return float((first.double() @ second.double().T).square().sum()) / first.shape[0]
