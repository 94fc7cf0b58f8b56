"""Spectra of symmetric operators, each eigenpair with its residual, and the similarity of subspaces."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from biascope.derivatives.moments import DENSE_LIMIT
from biascope.derivatives.operators import THIN, LinearOperator
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.randomness import generator_for

_TRIED = 768  # length of the matrix that is decomposed to predict longer ones
_SPARE = 8  # columns of a Lanczos block beyond the pairs asked for
_BASIS_NUMBERS = {"cpu": 2**27, "cuda": 2**30}  # entries of a Lanczos basis before it is restarted from its best part


@under_torch_defaults
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

    def positive(self, rounding: float) -> int:
        """How many leading eigenvalues are known to be positive: they exceed rounding and their own residual.

        Directions of eigenvalue 0 are arbitrary, and negative eigenvalues of an estimate are noise.

        Args:
            rounding: Share of the largest eigenvalue up to which an eigenvalue may be nothing but rounding.
        """
        scale = self.values.abs().max().clamp_min(1e-300) if len(self.values) else 0.0
        return int((self.values > scale * self.residuals.clamp_min(rounding)).long().cumprod(0).sum())

    def __repr__(self) -> str:
        count, size = self.vectors.shape
        span = f", values {float(self.values[0]):.3g} to {float(self.values[-1]):.3g}" if count else ""
        return f"Spectrum({count} eigenpairs in {size} dimensions{span}, {self.method})"


@under_torch_defaults
def eigenpairs(
    operator: LinearOperator,
    num: int | None = None,
    *,
    metric: LinearOperator | None = None,
    tolerance: float = 1e-9,
    products: int = 60,
    each: bool = False,
    iterate: bool = False,
    zeros: bool = True,
    seed: int = 0,
) -> Spectrum:
    """The largest eigenpairs of a symmetric operator, ``A v = λ v`` or, with a metric, ``A v = λ B v``.

    The method depends on the operator. If it has a thin factor, the factor's small Gram matrix is decomposed. Otherwise the whole
    matrix is decomposed if it can be formed (LAPACK). Otherwise block Lanczos multiplies many vectors at once, on the device of the
    operator.

    Args:
        operator: ``A``.
        num: Number of pairs; by default all, or those of a thin factor whose eigenvalue is not 0. Beyond these, any directions of
            eigenvalue 0 make up the number.
        metric: ``B``, positive definite; vectors are then normalised to unit Euclidean length.
        tolerance: Residual, relative to the largest eigenvalue, at which the iteration stops.
        products: Most products with a block of vectors; if they do not suffice, the residuals show it.
        each: Whether the tolerance is relative to each eigenvalue, not to the largest: kernels span many decades.
        iterate: Whether to iterate even if the matrix can be formed. This is faster for few pairs of a large matrix whose
            eigenvalues fall.
        zeros: Whether directions of eigenvalue 0 make up the number of pairs where a thin factor has fewer.
        seed: Random seed for the start block of the iteration.

    Returns:
        The spectrum with residuals.

    Raises:
        ValueError: If a metric is given and the operator or the metric cannot be formed.

    Example:
        >>> from biascope.derivatives.operators import Matrix
        >>> eigenpairs(Matrix(torch.diag(torch.tensor([1.0, 3.0, 2.0])))).values
        tensor([3., 2., 1.], dtype=torch.float64)
    """
    factor = operator.factor() if metric is None else None
    columns = operator.size if factor is None else factor.shape[1]
    thin = columns <= THIN * operator.size
    asked, num = num, operator.size if num is None else min(num, operator.size)
    image = None
    matrix = None if thin or (iterate and metric is None) else operator.dense()
    if matrix is not None:
        values, vectors = _dense_pairs(matrix, metric)
        method = "dense eigen-decomposition"
    elif factor is not None:
        values, vectors = _thin_pairs(factor, operator.signs())
        if zeros and asked is not None and num > len(values):
            values, vectors = _with_zeros(values, vectors, num)
        method = "eigen-decomposition of the Gram matrix of a thin factor"
    elif metric is not None:
        raise ValueError(
            "generalised eigenpairs need an operator that can be formed as a matrix. Reduce the input size."
        )
    else:
        values, vectors, image = _lanczos_pairs(operator, num, tolerance, products, each, seed)
        method = "block Lanczos"
    order = values.argsort(descending=True)[:num]
    values, vectors = values[order], vectors[:, order]
    lengths = vectors.norm(dim=0) * vectors.gather(0, vectors.abs().argmax(0, keepdim=True))[0].sign()
    vectors = vectors / lengths
    # The iteration has the product at hand; for an expensive operator one more would be felt.
    factor = matrix = None  # each has as many numbers as the eigenvectors
    image = operator.matmul(vectors) if image is None else image[:, order] / lengths
    image -= (vectors if metric is None else metric.matmul(vectors)) * values
    residuals = image.norm(dim=0) / values.abs().max().clamp_min(1e-300)
    del image
    return Spectrum(values, vectors.T.contiguous(), residuals, method)


def expected_seconds(size: int, columns: int, device: torch.device) -> float:
    """How long :func:`eigenpairs` takes for an operator known by so many columns, from timing a smaller decomposition."""
    length = columns if columns <= THIN * size else min(size, DENSE_LIMIT)
    tried = min(length, _TRIED)
    return _timed_decomposition(tried, device) * (length / tried) ** 3


@functools.cache
def _timed_decomposition(length: int, device: torch.device) -> float:
    matrix = torch.randn(length, length, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    seconds = []
    for _ in range(2):  # the first call loads libraries
        begin = time.perf_counter()
        torch.linalg.eigh(matrix + matrix.T).eigenvalues.sum().item()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


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


def _with_zeros(values: Tensor, vectors: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Pairs of eigenvalue 0 added to make up a number: any orthonormal directions that the others leave free."""
    generator = generator_for(vectors.device, 0, "directions of eigenvalue 0")
    free = torch.randn(len(vectors), num - len(values), generator=generator, dtype=vectors.dtype, device=vectors.device)
    # Not the complete basis, which has as many numbers as the whole operator.
    rest = torch.linalg.qr(torch.cat([vectors, free], 1)).Q[:, len(values) :]
    return torch.cat([values, values.new_zeros(rest.shape[1])]), torch.cat([vectors, rest], 1)


def _thin_pairs(factor: Tensor, signs: Tensor | None) -> tuple[Tensor, Tensor]:
    """Eigenpairs of ``F Fᵀ``, or of ``F diag(s) Fᵀ``, in the span of the columns of F."""
    gram = torch.linalg.eigh(factor.T @ factor)
    kept = gram.eigenvalues > gram.eigenvalues[-1] * 1e-12
    values, turn = gram.eigenvalues[kept], gram.eigenvectors[:, kept]
    axes = factor @ turn / values.sqrt()  # orthonormal
    if signs is None:
        return values, axes
    small = turn * values.sqrt()  # Fᵀ times the axes
    pairs = torch.linalg.eigh(small.T @ (signs[:, None] * small))
    return pairs.eigenvalues, axes @ pairs.eigenvectors


def _lanczos_pairs(
    operator: LinearOperator, num: int, tolerance: float, products: int, each: bool, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Leading eigenpairs and their images by block Lanczos, fully re-orthogonalised and thickly restarted.

    Rayleigh–Ritz on the span of ``Q, AQ, A²Q …`` of a random block ``Q``. The block is wider than the number of pairs
    asked for, so that equal eigenvalues are all found, whatever their multiplicity.

    Reference:
        Musco, Musco (2015). Randomized block Krylov methods for stronger and faster approximate singular value
        decomposition. NeurIPS.
    """
    size, device = operator.size, operator.device
    width = min(size, num + max(_SPARE, num // 8))
    most = max(3 * width, min(12 * width, _BASIS_NUMBERS.get(device.type, 2**27) // size))
    generator = generator_for(device, seed, "eigenpairs")
    block = torch.linalg.qr(torch.randn(size, width, generator=generator, device=device, dtype=torch.float64)).Q
    basis = images = block[:, :0]
    for _ in range(max(1, products)):
        image = operator.matmul(block)
        basis, images = torch.cat([basis, block], 1), torch.cat([images, image], 1)
        small = basis.T @ images
        pairs = torch.linalg.eigh((small + small.T) / 2)
        order = pairs.eigenvalues.argsort(descending=True)
        values, turn = pairs.eigenvalues[order], pairs.eigenvectors[:, order]
        vectors, their_images = basis @ turn[:, :num], images @ turn[:, :num]
        scale = float(values.abs().max())
        errors = (their_images - vectors * values[:num]).norm(dim=0)
        small_enough = tolerance * (values[:num].abs() if each else scale)
        if bool((errors <= small_enough).all()) or basis.shape[1] >= size:
            break
        remainder = image - basis @ (basis.T @ image)
        block = _directions_of(remainder, basis, floor=1e-13 * scale)[:, : size - basis.shape[1]]
        if not block.shape[1]:
            break  # the span is invariant: nothing is left to find in it
        if basis.shape[1] + block.shape[1] > most:
            basis, images = basis @ turn[:, : 2 * width], images @ turn[:, : 2 * width]
    return values[:num], vectors, their_images


def _directions_of(block: Tensor, basis: Tensor, floor: float) -> Tensor:
    """An orthonormal basis of the columns' span, orthogonal to a basis; what is only rounding is dropped."""
    tall = torch.linalg.qr(block)  # the singular values of a tall matrix are those of its small factor
    parts = torch.linalg.svd(tall.R, full_matrices=False)
    kept: Tensor = tall.Q @ parts.U[:, floor < parts.S]
    # Rounding is large beside a small remainder: twice is enough, once is not.
    once: Tensor = torch.linalg.qr(kept - basis @ (basis.T @ kept)).Q
    twice: Tensor = torch.linalg.qr(once - basis @ (basis.T @ once)).Q
    return twice


@under_torch_defaults
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
            f"{tuple(second.shape)}. Compare the same number of directions."
        )
    return float((first.double() @ second.double().T).square().sum()) / first.shape[0]
