import numpy as np
import pytest
import torch
from closed_forms import marchenko_pastur_edges, plug_in_participation_ratio
from derivatives.test_moments import crossed, crossed_by_hand, gaussian, summed

from biascope.derivatives import moments, operators
from biascope.derivatives.moments import Moments
from biascope.derivatives.operators import GradientCovariance, Matrix
from biascope.derivatives.spectrum import eigenpairs
from biascope.measures.covariance import doubts_of_tail


def covariance_of(
    gradients: torch.Tensor, centred: bool = False, groups: int = 32, form: str = "dense"
) -> GradientCovariance:
    parts = [summed(part, form) for part in gradients.tensor_split(groups)]
    return GradientCovariance(parts, centred, gradients.shape[1])


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("form", ["dense", "rows"])
def test_the_matrix_is_the_sample_covariance(centred: bool, form: str) -> None:
    gradients = gaussian(50, 1, 6, shift=0.4)
    rows = gradients[:, 0].double().numpy()
    wanted = np.cov(rows.T) if centred else rows.T @ rows / 50
    covariance = covariance_of(gradients, centred, form=form)
    np.testing.assert_allclose(covariance.dense(), wanted, rtol=1e-5)
    np.testing.assert_allclose(covariance.matmul(torch.eye(6, dtype=torch.float64)), wanted, rtol=1e-5)
    assert covariance.trace().value == pytest.approx(np.trace(wanted), rel=1e-6)


@pytest.mark.parametrize("centred", [False, True])
def test_beyond_the_dense_limit_a_factor_gives_the_same_spectrum(
    centred: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients = gaussian(20, 1, 60, shift=0.3)
    reference = covariance_of(gradients, centred, 8)
    whole, rank = eigenpairs(reference, 10), reference.effective_rank().value
    monkeypatch.setattr(operators, "DENSE_LIMIT", 10)
    monkeypatch.setattr(moments, "DENSE_LIMIT", 10)
    covariance = covariance_of(gradients, centred, 8, form="rows")
    assert covariance.dense() is None
    thin = eigenpairs(covariance, 10)
    torch.testing.assert_close(thin.values, whole.values, rtol=1e-5, atol=1e-8)
    assert float(thin.residuals.max()) < 1e-6
    assert covariance.effective_rank().value == pytest.approx(rank, rel=1e-4)


@pytest.mark.parametrize("centred", [False, True])
def test_the_interval_of_the_effective_rank_covers_the_truth(centred: bool) -> None:
    truth = torch.linspace(0.3, 2.0, 30).square()
    rank = float(truth.sum() ** 2 / truth.square().sum())
    covered = [covariance_of(gaussian(96, 1, 30, seed), centred).effective_rank().contains(rank) for seed in range(200)]
    assert 0.90 <= np.mean(covered) <= 0.99


def heavy(law: str, draws: int, size: int, seed: int) -> torch.Tensor:
    """Gradients ``(T, 1, D)`` of uncorrelated numbers of variances that fall as 1/i², by a law with a long tail."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(draws, size, generator=generator, dtype=torch.float64)
    if law == "two layers":
        factors = torch.randn(draws, 3, 1, generator=generator, dtype=torch.float64)
        rows = (factors * torch.randn(draws, 3, size, generator=generator, dtype=torch.float64)).sum(1) / 3**0.5
    else:
        spread = {"log-normal ½": 0.5, "log-normal 1": 1.0}[law]
        scale = torch.randn(draws, 1, generator=generator, dtype=torch.float64)
        rows = normal * torch.exp(spread * scale - spread**2)
    return (rows / torch.arange(1.0, size + 1))[:, None]


@pytest.mark.parametrize("law", ["two layers", "log-normal ½", "log-normal 1"])
def test_intervals_of_laws_with_long_tails_cover_or_the_tail_is_told(law: str) -> None:
    variances = 1 / torch.arange(1.0, 13.0, dtype=torch.float64) ** 2
    rank, trace = float(variances.sum() ** 2 / variances.square().sum()), float(variances.sum())
    ranks, traces, told = [], [], []
    for seed in range(240):
        covariance = covariance_of(heavy(law, 64, 12, seed))
        told.append(bool(doubts_of_tail(covariance)))
        ranks.append(covariance.effective_rank().contains(rank))
        traces.append(covariance.trace().contains(trace) or told[-1])
    assert np.mean(ranks) >= 0.92  # 0.95 less two standard errors of 240 repetitions
    assert np.mean(traces) >= 0.92
    assert {"two layers": 0.0, "log-normal ½": 0.1, "log-normal 1": 0.9}[law] <= np.mean(told)


def test_even_gradients_have_no_tail_and_one_long_draw_is_told_in_any_unit_and_about_any_centre() -> None:
    even = gaussian(64, 1, 12).double()
    assert covariance_of(even).draws_that_count() > 40
    assert doubts_of_tail(covariance_of(even)) == []
    long = even.clone()
    long[5] *= 30
    for rows, centred in ((long, False), (long * 2.0**-90, False), (long + 1e4, True)):
        sums = []
        for part in rows.tensor_split(32):
            unit = float(moments.unit_of(rows - rows[5]))
            sums.append(Moments.empty(12, "rows", torch.device("cpu"), rows[5, 0] if centred else None, unit))
            sums[-1].add(part)
        covariance = GradientCovariance(sums, centred, 1)
        assert covariance.draws_that_count() == pytest.approx(1, abs=0.4)
        assert "rests on about 1 of 64 draws" in doubts_of_tail(covariance)[0]


def test_isotropic_gradients_have_full_rank_at_any_number_of_draws_while_the_plug_in_has_not() -> None:
    size, draws = 256, 100
    gradients = torch.randn(draws, 1, size, generator=torch.Generator().manual_seed(0))
    covariance = covariance_of(gradients)
    assert covariance.effective_rank().contains(size)
    assert covariance.anisotropy().contains(0.0)
    values = eigenpairs(covariance).values[:draws]
    plug_in = float(values.sum() ** 2 / values.square().sum())
    assert plug_in == pytest.approx(plug_in_participation_ratio(size, draws), rel=0.02)
    assert plug_in < 80
    low, high = marchenko_pastur_edges(size, draws, variance=1.0)
    assert 0.85 * low < float(values.min()) < float(values.max()) < 1.1 * high


def test_variance_along_given_directions_and_its_error() -> None:
    gradients = gaussian(4000, 1, 5)
    covariance = covariance_of(gradients, centred=True)
    values, errors = covariance.along(torch.eye(5, dtype=torch.float64))
    truth = torch.linspace(0.3, 2.0, 5, dtype=torch.float64).square()
    assert bool((abs(values - truth) < 4 * errors).all())
    theory = truth * (2 / 4000) ** 0.5
    assert bool((abs(errors / theory - 1) < 0.5).all())


def test_halves_are_independent_parts_of_all_draws() -> None:
    covariance = covariance_of(gaussian(64, 1, 5))
    first, second = covariance.halves()
    assert first.draws + second.draws == covariance.draws == 64
    torch.testing.assert_close((first.dense() + second.dense()) / 2, covariance.dense())


def test_too_few_groups_leave_the_spread_unknown() -> None:
    rank = covariance_of(gaussian(2, 1, 4), groups=2).effective_rank()
    assert np.isfinite(rank.value)
    assert np.isnan(rank.standard_error)
    assert "unknown" in repr(rank)


def test_a_square_of_which_noise_leaves_nothing_has_any_rank() -> None:
    # Two halves with nothing in common: the estimate of a square is negative as often as positive.
    found = [crossed_covariance(gaussian(6, 2, 400, seed), "rows", 3) for seed in range(12)]
    unknown = [each.effective_rank() for each in found if np.isnan(each.participation().value)]
    assert unknown
    assert all((rank.low, rank.high) == (1, 400) for rank in unknown)
    assert all(1 <= each.effective_rank().value <= 400 for each in found)


def test_a_given_matrix_is_an_operator() -> None:
    matrix = torch.diag(torch.tensor([2.0, 1.0]))
    torch.testing.assert_close(Matrix(matrix).matmul(torch.eye(2, dtype=torch.float64)), matrix.double())


def test_directions_of_any_precision_and_shape_are_taken() -> None:
    covariance = covariance_of(gaussian(40, 1, 6), centred=False)
    vector = torch.ones(6, dtype=torch.float32)
    (alone,), _ = covariance.along(vector)
    assert alone == pytest.approx(float(covariance.along(torch.ones(6, 1, dtype=torch.float64))[0]))
    with pytest.raises(ValueError, match=r"^Vectors must be \(6,\) or \(6, k\), got \(5,\)"):
        covariance.along(torch.ones(5))


@pytest.mark.parametrize("centred", [False, True])
def test_few_draws_have_the_spectrum_of_their_small_gram_matrix(centred: bool) -> None:
    covariance = covariance_of(gaussian(12, 1, 40), centred=centred, groups=4, form="rows")
    found = eigenpairs(covariance)
    assert "Gram matrix" in found.method
    matrix = covariance.dense()
    assert matrix is not None
    values = torch.linalg.eigvalsh(matrix).flip(0)
    rank = 11 if centred else 12
    assert len(found.values) == rank  # directions that no draw moves in are not told
    torch.testing.assert_close(found.values, values[:rank])
    assert float(found.residuals.max()) < 1e-9
    whole = eigenpairs(covariance, 40)  # asked for, they are completed
    torch.testing.assert_close(whole.vectors @ whole.vectors.T, torch.eye(40, dtype=torch.float64))
    torch.testing.assert_close(whole.values[:rank], found.values)
    assert float(whole.values[rank:].abs().max()) < 1e-9


def crossed_covariance(halves: torch.Tensor, form: str, groups: int = 8) -> GradientCovariance:
    return GradientCovariance([crossed(part, form) for part in halves.tensor_split(groups)], False, 2)


def test_the_spectrum_of_a_signed_thin_factor_is_that_of_the_matrix() -> None:
    halves = gaussian(10, 2, 80)
    wanted = crossed_by_hand(halves).mean(0)
    thin, whole = (crossed_covariance(halves, form) for form in ("rows", "dense"))
    for covariance in (thin, whole):
        torch.testing.assert_close(covariance.dense(), wanted, rtol=1e-4, atol=1e-5)
    factor, signs = thin.factor(), thin.signs()
    assert factor is not None
    assert signs is not None
    assert factor.shape == (80, 20)
    assert sorted(signs.tolist()) == 10 * [-1.0] + 10 * [1.0]
    torch.testing.assert_close(factor @ (signs[:, None] * factor.T), wanted, rtol=1e-4, atol=1e-5)
    values, vectors = torch.linalg.eigh(wanted)
    found = eigenpairs(thin)
    assert "thin factor" in found.method
    assert float(found.residuals.max()) < 1e-6
    positive = found.values > 0
    count = int(positive.sum())
    assert count == 10 == len(found.values) - count  # of each draw one eigenvalue is positive and one is negative
    torch.testing.assert_close(found.values[:count], values.flip(0)[:count], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.values[count:], values[:count].flip(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.vectors @ found.vectors.T, torch.eye(20, dtype=torch.float64), rtol=0, atol=1e-8)
    cosines = (found.vectors[:count] * vectors.T.flip(0)[:count]).sum(1).abs()
    torch.testing.assert_close(cosines, torch.ones_like(cosines), rtol=0, atol=1e-5)


def test_crossed_statistics_are_the_same_as_rows_and_as_a_matrix() -> None:
    halves = gaussian(64, 2, 12, shift=0.7)
    rows, dense = (crossed_covariance(halves, form, 32) for form in ("rows", "dense"))
    wanted = crossed_by_hand(halves).mean(0)
    for covariance in (rows, dense):
        assert covariance.trace().value == pytest.approx(float(wanted.trace()), rel=1e-6)
        torch.testing.assert_close(covariance.along(torch.eye(12))[0], wanted.diagonal(), rtol=1e-4, atol=1e-6)
    one, two = rows.effective_rank(), dense.effective_rank()
    assert (one.value, one.low, one.high) == pytest.approx((two.value, two.low, two.high), rel=1e-4)
