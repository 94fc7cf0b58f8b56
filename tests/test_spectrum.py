import numpy as np
import pytest
import scipy.linalg
import torch

from biascope.operators import LinearOperator, Matrix
from biascope.spectrum import eigenpairs, subspace_similarity


def positive(size: int, seed: int) -> torch.Tensor:
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.T / size + 0.1 * torch.eye(size, dtype=torch.float64)


class OnlyProducts(LinearOperator):
    """An operator that cannot be formed, so that the iteration is used."""

    def __init__(self, matrix: torch.Tensor) -> None:
        self.matrix, self.size, self.device = matrix, len(matrix), matrix.device

    def matmul(self, vectors: torch.Tensor) -> torch.Tensor:
        return self.matrix @ vectors

    def dense(self) -> None:
        return None


def test_dense_pairs_equal_scipys_and_come_largest_first_with_small_residuals() -> None:
    matrix = positive(30, 0)
    spectrum = eigenpairs(Matrix(matrix))
    np.testing.assert_allclose(spectrum.values, scipy.linalg.eigvalsh(matrix)[::-1], rtol=1e-10)
    torch.testing.assert_close(spectrum.vectors @ spectrum.vectors.T, torch.eye(30, dtype=torch.float64))
    assert float(spectrum.residuals.max()) < 1e-12
    assert bool((spectrum.vectors.gather(1, spectrum.vectors.abs().argmax(1, keepdim=True)) > 0).all())


def test_the_iteration_finds_the_same_leading_pairs() -> None:
    matrix = positive(60, 1)
    whole, leading = eigenpairs(Matrix(matrix), 5), eigenpairs(OnlyProducts(matrix), 5, seed=3)
    torch.testing.assert_close(leading.values, whole.values)
    assert subspace_similarity(leading.vectors, whole.vectors) == pytest.approx(1.0, abs=1e-8)
    assert float(leading.residuals.max()) < 1e-8
    assert "Lanczos" in leading.method


def test_generalised_pairs_equal_scipys() -> None:
    matrix, metric = positive(20, 2), positive(20, 3)
    spectrum = eigenpairs(Matrix(matrix), 6, metric=Matrix(metric))
    np.testing.assert_allclose(spectrum.values, scipy.linalg.eigvalsh(matrix, metric)[::-1][:6], rtol=1e-9)
    assert float(spectrum.residuals.max()) < 1e-10
    torch.testing.assert_close(spectrum.vectors.norm(dim=1), torch.ones(6, dtype=torch.float64))


def test_similarity_of_subspaces_does_not_depend_on_the_basis_and_is_k_over_d_by_chance() -> None:
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(40, 40, generator=generator, dtype=torch.float64)).Q
    turned = torch.linalg.qr(torch.randn(8, 8, generator=generator, dtype=torch.float64)).Q @ basis[:8]
    assert subspace_similarity(basis[:8], turned) == pytest.approx(1.0)
    assert subspace_similarity(basis[:8], basis[8:16]) == pytest.approx(0.0, abs=1e-12)
    random = [
        subspace_similarity(
            basis[:8], torch.linalg.qr(torch.randn(40, 8, generator=generator, dtype=torch.float64)).Q.T
        )
        for _ in range(200)
    ]
    assert np.mean(random) == pytest.approx(8 / 40, abs=0.01)


def test_subspaces_of_different_size_are_refused() -> None:
    with pytest.raises(ValueError, match="same number of directions"):
        subspace_similarity(torch.eye(4)[:2], torch.eye(4)[:3])
