import itertools

import numpy as np
import pytest
import torch

from biascope.derivatives import moments
from biascope.derivatives.moments import Dense, Moments, Rows, Sketch, representation
from biascope.derivatives.operators import GradientCovariance


def gaussian(draws: int, inputs: int, size: int, seed: int = 0, shift: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.linspace(0.3, 2.0, size)
    return torch.randn(draws, inputs, size, generator=generator) * scales + shift


def summed(gradients: torch.Tensor, form: str = "dense") -> Moments:
    sums = Moments.empty(gradients.shape[2], form, torch.device("cpu"))
    sums.add(gradients)
    return sums


def test_uncentred_statistics_are_means_over_pairs_of_distinct_draws() -> None:
    gradients = gaussian(6, 3, 4)
    outer = torch.einsum("tnd,tne->tde", gradients, gradients).double() / 3
    pairs = list(itertools.permutations(range(6), 2))
    trace = np.mean([float(outer[i].trace() * outer[j].trace()) for i, j in pairs])
    norm = np.mean([float((outer[i] * outer[j]).sum()) for i, j in pairs])
    covariance = GradientCovariance([summed(gradients)], centred=False, inputs=3)
    assert covariance._power_sums().trace_and_norm(False) == pytest.approx((trace, norm), rel=1e-6)


def test_centred_statistics_are_means_over_quadruples_of_distinct_draws() -> None:
    gradients = gaussian(6, 1, 3, shift=0.7)
    kernel = (gradients[:, 0].double() @ gradients[:, 0].double().T).numpy()
    trace, norm = np.mean(
        [
            (
                (kernel[i, i] - kernel[i, j]) * (kernel[k, k] - kernel[k, m]),
                kernel[i, j] ** 2 - 2 * kernel[i, j] * kernel[j, k] + kernel[i, j] * kernel[k, m],
            )
            for i, j, k, m in itertools.permutations(range(6), 4)
        ],
        axis=0,
    )
    covariance = GradientCovariance([summed(gradients)], centred=True, inputs=1)
    assert covariance._power_sums().trace_and_norm(True) == pytest.approx((trace, norm), rel=1e-6)


@pytest.mark.parametrize("centred", [False, True])
def test_statistics_are_unbiased_where_plug_in_values_are_not(centred: bool) -> None:
    size, draws = 12, 8
    truth = torch.linspace(0.3, 2.0, size).square()
    shift = 0.5 if centred else 0.0
    values = np.array(
        [
            GradientCovariance([summed(gaussian(draws, 1, size, seed, shift))], centred, 1)
            ._power_sums()
            .trace_and_norm(centred)
            for seed in range(3000)
        ]
    )
    error = values.std(0) / np.sqrt(len(values))
    wanted = np.array([float(truth.sum() ** 2), float(truth.square().sum())])
    assert (abs(values.mean(0) - wanted) < 4 * error).all()
    plug_in = float(truth.square().sum() + (truth.sum() ** 2 + truth.square().sum()) / draws)  # E‖Ĉ‖² of Gaussian draws
    assert abs(plug_in - wanted[1]) > 20 * error[1]


def test_their_error_falls_with_the_root_of_the_number_of_draws() -> None:
    def spread(draws: int) -> float:
        ranks = [
            GradientCovariance([summed(gaussian(draws, 1, 10, seed))], False, 1)._power_sums().trace_and_norm(False)
            for seed in range(400)
        ]
        return float(np.std([trace / norm for trace, norm in ranks]))

    slope = np.log(spread(400) / spread(50)) / np.log(8)
    assert slope == pytest.approx(-0.5, abs=0.12)


@pytest.mark.parametrize("form", ["dense", "rows"])
def test_sums_of_parts_merge_to_the_sum_of_all(form: str) -> None:
    gradients = gaussian(20, 2, 5)
    whole = summed(gradients, form)
    parts = summed(gradients[:7], form)
    parts.merge(summed(gradients[7:], form))
    vectors = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(parts.second.matmul(vectors), whole.second.matmul(vectors), rtol=1e-5, atol=1e-6)
    assert (parts.draws, parts.trace, parts.trace_square, parts.norm_square) == pytest.approx(
        (whole.draws, whole.trace, whole.trace_square, whole.norm_square)
    )
    again = Moments.from_tensors(parts.tensors(), torch.device("cpu"))
    assert again.tensors().keys() == parts.tensors().keys()
    torch.testing.assert_close(again.second.quadratic(vectors), parts.second.quadratic(vectors))


def test_every_form_of_the_second_moment_says_the_same() -> None:
    gradients = gaussian(30, 1, 40)[:, 0]
    dense, rows = Dense(torch.zeros(40, 40, dtype=torch.float64)), Rows()
    for form in (dense, rows):
        form.add(gradients, 0.5)
    vectors = torch.randn(40, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(dense.matmul(vectors), rows.matmul(vectors), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dense.quadratic(vectors), rows.quadratic(vectors), rtol=1e-5, atol=1e-5)
    assert dense.inner(rows) == pytest.approx(rows.inner(rows), rel=1e-5)
    assert dense.inner(dense) == pytest.approx(rows.inner(rows), rel=1e-5)
    assert float((0.5 * gradients.double().T @ gradients.double()).square().sum()) == pytest.approx(
        dense.inner(dense), rel=1e-5
    )


def test_a_sketch_keeps_what_has_low_rank_and_its_norm_on_average() -> None:
    generator = torch.Generator().manual_seed(0)
    factors = torch.randn(200, 6, generator=generator)
    rows = torch.randn(500, 6, generator=generator) @ factors.T
    wanted = rows.double().T @ rows.double()
    norms = []
    for seed in range(40):
        sketch = Sketch(torch.zeros(200, 64), seed)
        sketch.add(rows[:300], 1.0)
        other = Sketch(torch.zeros(200, 64), seed)
        other.add(rows[300:], 1.0)
        sketch.merge(other)
        norms.append(sketch.inner(sketch))
    factor = sketch.factor()
    assert float((factor @ factor.T - wanted).norm() / wanted.norm()) < 1e-4
    error = np.std(norms) / np.sqrt(len(norms))
    assert abs(np.mean(norms) - float(wanted.square().sum())) < 4 * error


def test_the_form_is_chosen_by_size_and_memory_is_bounded() -> None:
    assert representation(1024, 400, 1, 32) == "rows"
    assert representation(1024, 10**6, 1, 32) == "dense"
    assert representation(150_528, 400, 1, 32) == "rows"
    assert representation(150_528, 100_000, 1, 32) == "sketch"
    for draws in (10**3, 10**5, 10**7):
        kept = {"rows": draws * 1024 * 4, "dense": 32 * 1024**2 * 8}[representation(1024, draws, 1, 32)]
        assert kept <= 32 * 1024**2 * 8


def test_limits_are_what_the_documentation_says() -> None:
    assert (moments.DENSE_LIMIT, moments.ROWS_LIMIT) == (8192, 2**29)


@pytest.mark.parametrize("form", ["dense", "rows"])
@pytest.mark.parametrize("factor", [1.0, 1e3, 1e5, 1e8])
def test_what_all_gradients_have_in_common_costs_no_digit_of_a_centred_statistic(form: str, factor: float) -> None:
    gradients = gaussian(48, 1, 5).double()
    common = factor * torch.linspace(-1.0, 2.0, 5, dtype=torch.float64)
    wanted = GradientCovariance([summed(part, "dense") for part in gradients.split(6)], True, 1)
    groups = []
    for part in (gradients + common).split(6):  # each group about a centre of its own, as after an interruption
        groups.append(Moments.empty(5, form, torch.device("cpu"), part[:2].mean((0, 1))))
        groups[-1].add(part)
    groups[1::2] = [Moments.from_tensors(group.tensors(), torch.device("cpu")) for group in groups[1::2]]
    found = GradientCovariance(groups, True, 1)
    error = max(1e-6, 1e-14 * factor)  # rows are kept in float32, and float64 gradients themselves are rounded
    axes = torch.eye(5, dtype=torch.float64)
    torch.testing.assert_close(found.matmul(axes), wanted.matmul(axes), rtol=error, atol=error)
    torch.testing.assert_close(found.along(axes), wanted.along(axes), rtol=error, atol=error)
    assert found.mean_length() == pytest.approx(float((gradients.mean((0, 1)) + common).norm()), rel=1e-7)
    for one, two in ((found.trace(), wanted.trace()), (found.effective_rank(), wanted.effective_rank())):
        assert (one.value, one.low, one.high) == pytest.approx((two.value, two.low, two.high), rel=10 * error)


def crossed(halves: torch.Tensor, form: str) -> Moments:
    sums = Moments.empty(halves.shape[2], form, torch.device("cpu"))
    sums.add_crossed(halves)
    return sums


def crossed_by_hand(halves: torch.Tensor) -> torch.Tensor:
    """``½(a bᵀ + b aᵀ)`` of each draw, ``(T, D, D)``."""
    product = torch.einsum("td,te->tde", halves[:, 0].double(), halves[:, 1].double())
    return (product + product.mT) / 2


@pytest.mark.parametrize("form", ["dense", "rows"])
def test_crossed_sums_are_those_of_symmetric_products_of_the_two_halves(form: str) -> None:
    halves = gaussian(12, 2, 7)
    each, sums = crossed_by_hand(halves), crossed(halves, form)
    eye = torch.eye(7, dtype=torch.float64)
    torch.testing.assert_close(sums.second.matmul(eye), each.sum(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sums.second.quadratic(eye), each.sum(0).diagonal(), rtol=1e-5, atol=1e-5)
    traces = each.diagonal(dim1=1, dim2=2).sum(1)
    assert sums.draws == 12
    assert sums.trace == pytest.approx(float(traces.sum()))
    assert sums.trace_square == pytest.approx(float(traces.square().sum()))
    assert sums.norm_square == pytest.approx(float(each.square().sum()))
    torch.testing.assert_close(sums.total, halves.double().mean(1).sum(0))
    assert float(torch.linalg.eigvalsh(each.sum(0)).min()) < 0, "a sum that is not positive, as few draws may give"


def test_crossed_sums_say_the_same_in_every_form_and_come_back_from_disk() -> None:
    first, second = gaussian(9, 2, 6, seed=1), gaussian(5, 2, 6, seed=2)
    wanted = crossed_by_hand(torch.cat([first, second])).sum(0)
    eye = torch.eye(6, dtype=torch.float64)
    rows = crossed(first, "rows")
    rows.merge(crossed(second, "rows"))
    dense = crossed(first, "dense")
    dense.merge(crossed(second, "rows"))  # the matrix, less what rows subtract
    again = Moments.from_tensors(rows.tensors(), torch.device("cpu"))
    for sums in (rows, dense, again):
        torch.testing.assert_close(sums.second.matmul(eye), wanted, rtol=1e-5, atol=1e-5)
        assert sums.draws == 14
        for other in (rows, dense, again):
            assert sums.second.inner(other.second) == pytest.approx(float(wanted.square().sum()), rel=1e-5)
    assert {"rows", "subtracted"} < again.tensors().keys()
    assert isinstance(again.second, Rows)
    assert len(again.second) == 28
    whole, signs = again.second.whole()
    assert signs is not None
    torch.testing.assert_close(whole.T @ (signs[:, None] * whole), wanted, rtol=1e-5, atol=1e-5)
    assert summed(first, "rows").second.whole()[1] is None  # nothing is subtracted
    assert "subtracted" not in summed(first, "rows").tensors()


def test_crossed_statistics_are_unbiased_however_noisy_the_halves_are() -> None:
    size, draws = 6, 12
    truth = torch.linspace(0.3, 2.0, size).square().double()
    values = []
    for seed in range(2000):
        signal, noise = gaussian(draws, 1, size, seed), 1.5 * gaussian(draws, 2, size, 10_000 + seed)
        covariance = GradientCovariance([crossed(signal + noise, "rows")], centred=False, inputs=2)
        values.append([covariance.trace().value, *covariance._power_sums().trace_and_norm(False)])
    found = np.array(values)
    wanted = np.array([truth.sum(), truth.sum() ** 2, truth.square().sum()])
    assert (abs(found.mean(0) - wanted) < 4 * found.std(0) / np.sqrt(len(found))).all()
