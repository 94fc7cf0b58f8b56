"""Matrices on input space: correlations from draws against dense ones, and without the bias of few draws."""

import math

import pytest
import torch
from networks_under_test import normal

from biascope.derivatives import matrices
from biascope.derivatives.matrices import DrawnMatrix, GramOfRows, correlation, data_covariance, flip, seen_through
from biascope.derivatives.operators import Matrix


def test_the_covariance_of_data_is_summed_in_parts() -> None:
    x = normal(50, 2, 3).float()
    flat = x.flatten(1).double()
    torch.testing.assert_close(data_covariance(x, at_once=40), flat.T @ flat)


def test_flipping_twice_gives_the_matrix_and_once_the_reverse_spectrum() -> None:
    matrix = data_covariance(normal(30, 8))
    torch.testing.assert_close(flip(flip(matrix)), matrix)
    torch.testing.assert_close(torch.linalg.eigvalsh(flip(matrix)), torch.linalg.eigvalsh(matrix))
    leading = torch.linalg.eigh(matrix).eigenvectors[:, -1]
    torch.testing.assert_close(flip(matrix) @ leading, torch.linalg.eigvalsh(matrix)[0] * leading)


def test_independent_wishart_matrices_are_far_from_zero() -> None:
    one, two = (data_covariance(normal(200, 200, seed=seed)) for seed in (1, 2))
    assert correlation(one, two) == pytest.approx(0.5, abs=0.02)  # tr² / (D ‖·‖²) = 1/(1 + D/T)


@pytest.mark.parametrize("mixed", [False, True], ids=["outer products", "mixed products"])
def test_rows_give_what_the_dense_matrix_gives(mixed: bool) -> None:
    left, right = normal(5, 3, 7), normal(5, 3, 7, seed=1)
    drawn = DrawnMatrix(left, right if mixed else None)
    right = right if mixed else left
    each = torch.einsum("tad,tae->tde", left, right) / 3
    each = (each + each.mT) / 2
    torch.testing.assert_close(drawn.dense(), each.mean(0))
    reference = data_covariance(normal(9, 7, seed=2))
    torch.testing.assert_close(drawn.against(reference), (each * reference).sum((1, 2)))
    torch.testing.assert_close(drawn.pairs(), torch.einsum("tde,ude->tu", each, each))
    other = DrawnMatrix(normal(4, 2, 7, seed=3))
    dense = torch.einsum("tad,tae->tde", other.left, other.left) / 2
    torch.testing.assert_close(drawn.pairs(other), torch.einsum("tde,ude->tu", each, dense))
    assert drawn.correlation(other) == pytest.approx(correlation(drawn.dense(), other.dense()))
    assert drawn.correlations({"B": reference})["B"][1] == pytest.approx(correlation(drawn.dense(), reference))
    without = DrawnMatrix(left[1:], right[1:] if mixed else None)
    assert float(drawn.left_out({"B": reference})["B"][0]) == pytest.approx(correlation(without.dense(), reference))
    same_draws = DrawnMatrix(normal(5, 2, 7, seed=4))
    found, expected = drawn.correlation_left_out(same_draws), DrawnMatrix(same_draws.left[1:])
    assert float(found[0]) == pytest.approx(correlation(without.dense(), expected.dense()))


def test_few_draws_shrink_the_plain_correlation_and_not_the_one_from_pairs() -> None:
    size = 60
    truth = torch.diag(torch.linspace(1, 4, size, dtype=torch.float64))
    found = []
    for seed in range(30):
        drawn = DrawnMatrix(normal(25, 1, size, seed=seed) * truth.diagonal().sqrt())
        found.append(drawn.correlations({"truth": truth})["truth"])
    plain = sum(each[1] for each in found) / len(found)
    estimates = [each[0].value for each in found]
    mean = sum(estimates) / len(estimates)
    error = float(torch.tensor(estimates).std()) / math.sqrt(len(estimates))
    assert plain < 0.6
    assert abs(mean - 1) < max(3 * error, 0.03)


def test_too_few_draws_are_told_as_nan() -> None:
    opposite = torch.zeros(2, 1, 4, dtype=torch.float64)
    opposite[0, 0, 0] = opposite[1, 0, 1] = 1.0  # their product is zero: nothing is known of the norm
    estimate, plain = DrawnMatrix(opposite).correlations({"I": torch.eye(4)})["I"]
    assert math.isnan(estimate.value)
    assert plain == pytest.approx(1 / math.sqrt(2))


def test_data_seen_through_a_blind_direction_vanish_there() -> None:
    covariance = data_covariance(normal(20, 5))
    blind = torch.diag(torch.tensor([1.0, 1.0, 0.0, 2.0, 1.0]))
    seen = seen_through(blind, covariance)
    assert float(seen[2].abs().max()) == 0
    assert float(seen[3, 3]) == pytest.approx(4 * float(covariance[3, 3]))


def test_what_is_kept_as_rows_is_the_matrix_and_blocks_do_not_change_products(monkeypatch: pytest.MonkeyPatch) -> None:
    geometry, x = Matrix(data_covariance(normal(9, 7, seed=2))), normal(12, 7, seed=5)
    left, right = normal(5, 3, 7), normal(5, 3, 7, seed=1)
    formed = matrices.references(geometry, x)
    whole = DrawnMatrix(left, right)
    expected = whole.correlations(formed), whole.leading(3, seed=0), whole.pairs(), whole.left_out(formed)
    monkeypatch.setattr(matrices, "FORMED", 3)
    monkeypatch.setattr(matrices, "_AT_ONCE", 40)
    monkeypatch.setattr(GramOfRows, "dense", lambda self: pytest.fail("a matrix was formed"))
    kept = matrices.references(geometry, x)
    assert isinstance(kept["S"], GramOfRows)
    assert isinstance(kept["GSG"], GramOfRows)
    for name, (estimate, plain) in whole.correlations(kept).items():
        assert estimate.value == pytest.approx(expected[0][name][0].value, nan_ok=True)
        assert plain == pytest.approx(expected[0][name][1])
        torch.testing.assert_close(whole.left_out(kept)[name], expected[3][name])
    values, vectors = whole.leading(3, seed=0)
    torch.testing.assert_close(values, expected[1][0])
    torch.testing.assert_close((vectors.T @ expected[1][1]).abs(), torch.eye(3, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(whole.pairs(), expected[2])
    for name in ("S", "GSG"):
        matrix = formed[name]
        assert isinstance(matrix, torch.Tensor)
        assert matrices.correlation_with_identity(kept[name]) == pytest.approx(correlation(torch.eye(7), matrix))
