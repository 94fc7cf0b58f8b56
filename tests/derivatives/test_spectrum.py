import numpy as np
import pytest
import scipy.linalg
import torch

from biascope.derivatives import spectrum as spectrum_module
from biascope.derivatives.operators import LinearOperator, Matrix
from biascope.derivatives.spectrum import eigenpairs, subspace_similarity


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


def spectra(size: int) -> dict[str, torch.Tensor]:
    index = torch.arange(size, dtype=torch.float64)
    uneven = torch.rand(size, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return {
        "geometric": 0.9**index,
        "power law": 1 / (1 + index),
        "slow power law": (1 + index) ** -0.5,
        "flat": torch.ones(size, dtype=torch.float64),
        "nearly flat": (1 + 1e-3 * uneven).sort(descending=True).values,
        "two clusters": torch.where(index < 30, 1.0, torch.where(index < 60, 0.999, 0.1)),
        "one large cluster": torch.where(index < 90, 1.0, 0.1),
        "low rank": torch.where(index < 3, 1.0, 0.0),
        "tiny": 1e-30 * 0.9**index,
        "zero": torch.zeros(size, dtype=torch.float64),
    }


@pytest.mark.parametrize("num", [1, 10, 50])
@pytest.mark.parametrize("name", spectra(4))
def test_block_lanczos_finds_the_leading_pairs_of_any_spectrum(name: str, num: int) -> None:
    wanted = spectra(200)[name]
    basis = torch.linalg.qr(positive(200, 4)).Q
    spectrum = eigenpairs(OnlyProducts((basis * wanted) @ basis.T), num, tolerance=1e-9)
    scale = max(float(wanted[0]), 1e-300)
    assert float(spectrum.residuals.max()) <= 1e-9
    np.testing.assert_allclose(spectrum.values / scale, wanted[:num] / scale, atol=1e-8)
    torch.testing.assert_close(spectrum.vectors @ spectrum.vectors.T, torch.eye(num, dtype=torch.float64))


def test_what_is_not_converged_has_a_large_residual_that_bounds_the_error() -> None:
    matrix = positive(300, 6)
    wanted = torch.from_numpy(scipy.linalg.eigvalsh(matrix)[::-1].copy())
    for products in range(1, 12):
        spectrum = eigenpairs(OnlyProducts(matrix), 10, tolerance=1e-12, products=products)
        nearest = (wanted[None] - spectrum.values[:, None]).abs().min(1).values
        assert bool((nearest <= spectrum.residuals * wanted[0] * (1 + 1e-9) + 1e-12).all())
        image = spectrum.vectors @ matrix - spectrum.values[:, None] * spectrum.vectors
        torch.testing.assert_close(image.norm(dim=1) / spectrum.values[0], spectrum.residuals, rtol=1e-6, atol=1e-13)
        if float((spectrum.values - wanted[:10]).abs().max()) > 1e-3 * float(wanted[0]):
            assert float(spectrum.residuals.max()) > 1e-3
    assert float(spectrum.residuals.max()) < 1e-2


def test_restarts_keep_memory_bounded_and_still_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = []

    class Counted(OnlyProducts):
        def matmul(self, vectors: torch.Tensor) -> torch.Tensor:
            widths.append(vectors.shape[1])
            return super().matmul(vectors)

    matrix = positive(300, 7)
    monkeypatch.setattr(spectrum_module, "_BASIS_NUMBERS", {"cpu": 1})
    found = eigenpairs(Counted(matrix), 4, tolerance=1e-8, products=200)
    assert float(found.residuals.max()) < 1e-8
    assert sum(widths) > 3 * 12  # more columns than a basis holds
    np.testing.assert_allclose(found.values, scipy.linalg.eigvalsh(matrix)[::-1][:4], rtol=1e-9)


def test_the_start_of_the_iteration_is_a_function_of_the_seed() -> None:
    operator = OnlyProducts(positive(80, 8))
    one, two, other = (eigenpairs(operator, 3, products=2, seed=seed).values for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_generalised_pairs_need_a_matrix() -> None:
    with pytest.raises(ValueError, match="generalised eigenpairs need"):
        eigenpairs(OnlyProducts(positive(8, 0)), 2, metric=Matrix(positive(8, 1)))


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


def test_pairs_of_a_kernel_are_each_as_exact_as_asked_for():
    """Eigenvalues over six decades in float32: the last of those asked for is as good as the first."""
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(300, 300, generator=generator, dtype=torch.float64)).Q
    values = torch.arange(1, 301, dtype=torch.float64) ** -2.5
    matrix = ((turn * values) @ turn.T).float()
    found = eigenpairs(Matrix(matrix), 40, tolerance=1e-4, each=True, iterate=True, seed=1)
    expected = torch.linalg.eigvalsh(matrix.double()).flip(0)[:40]
    assert found.method == "block Lanczos"
    assert float((found.residuals * found.values[0] / found.values).max()) <= 1e-4
    torch.testing.assert_close(found.values, expected, rtol=1e-6, atol=0)
