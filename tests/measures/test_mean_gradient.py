"""The mean gradient against closed forms, whatever the number of inputs; what it says, and what it refuses."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from biascope.derivatives import covariance as sampling
from biascope.derivatives import moments
from biascope.families.family import Family
from biascope.measures.average_geometry import average_geometry
from biascope.measures.covariance import resolved_directions
from biascope.measures.mean_gradient import MeanGradient, mean_gradient
from biascope.measures.scan import scan
from biascope.results.estimate import Estimate
from biascope.results.registry import load
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

CPU = Run(device="cpu", progress=False)
SIZE = 8


def fresh(*shape: int, num: int, seed: int = 0) -> Probe:
    return Probe.gaussian(shape, num=num, fresh=True, seed=seed)


def matrix_of(result: MeanGradient) -> np.ndarray:
    """The matrix, where all of its eigenpairs were kept and are positive."""
    return np.asarray(result.directions.T @ np.diag(result.eigenvalues) @ result.directions)


def linear() -> nn.Module:
    return nn.Linear(16, 1, bias=False)


def test_the_mean_gradient_of_a_linear_network_spreads_over_all_directions() -> None:
    result = mean_gradient(Family.initialised(linear, name="linear"), fresh(16, num=2), draws=2000, run=CPU)
    assert result.effective_rank.contains(16)
    assert result.trace.contains(1 / 3)  # nn.Linear draws uniformly on ±1/√16: 16 variances of 1/(3 · 16)
    assert result.trace.standard_error < 0.01
    np.testing.assert_allclose(matrix_of(result), np.eye(16) / 48, atol=5 / 48 / np.sqrt(2000))
    assert "spreads evenly over all 16 directions: no direction is preferred" in result.sentence()


def test_the_matrix_of_a_linear_network_is_that_of_its_weights() -> None:
    family = Family.initialised(linear, name="linear")
    stack = family.draw(200, seed=0, run=CPU)
    x = torch.eye(16).expand(200, 16, 16)
    weights = np.stack([stack.member(index)(x[index]).detach()[:, 0].double().numpy() for index in range(200)])
    result = mean_gradient(family, fresh(16, num=2), draws=200, run=CPU)
    np.testing.assert_allclose(matrix_of(result), weights.T @ weights / 200, rtol=1e-4, atol=1e-7)
    assert result.trace.value == pytest.approx(np.square(weights).sum(1).mean(), rel=1e-5)


class Bent(nn.Module):
    """``f(x) = a·x + ½ Σ b_i x_i²`` with the gradient ``a + b ∘ x``: its mean over inputs is a, whatever b."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mixing", torch.tensor(MIXING, dtype=torch.float32))
        self.a = nn.Parameter(torch.randn(SIZE))
        self.b = nn.Parameter(BEND * torch.randn(SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ (self.mixing @ self.a) + x.square() @ self.b / 2)[:, None]


BEND = 2.0
MIXING = np.diag(np.linspace(0.3, 1.5, SIZE)) + 0.2 * np.tri(SIZE)
TRUTH = MIXING @ MIXING.T
RANK = np.trace(TRUTH) ** 2 / np.square(TRUTH).sum()


@pytest.mark.parametrize("num", [2, 4, 16])
def test_slopes_that_turn_with_the_input_cancel_however_few_inputs_there_are(num: int) -> None:
    family, probe = Family.initialised(Bent, name="bent"), fresh(SIZE, num=num)
    result = mean_gradient(family, probe, draws=4000, run=CPU)
    assert result.trace.contains(np.trace(TRUTH))
    assert result.effective_rank.contains(RANK)
    # Most of a gradient is its turning part: a mean over inputs that were not halved would count 1/num of it.
    counted = np.trace(TRUTH) + BEND**2 * SIZE / num
    assert not result.trace.contains(counted) or num > 8
    assert result.effective_rank.standard_error < 0.25
    np.testing.assert_allclose(matrix_of(result), TRUTH, atol=6 * (1 + BEND**2 / num) * 2 / np.sqrt(4000))

    geometry = average_geometry(family, probe, draws=1000, run=CPU)
    assert geometry.trace.contains(np.trace(TRUTH) + BEND**2 * SIZE)
    assert geometry.effective_rank.low > result.effective_rank.high


def test_intervals_cover_the_closed_form_at_two_inputs() -> None:
    family = Family.initialised(Bent, name="bent")
    found = [
        mean_gradient(family, fresh(SIZE, num=2, seed=seed), draws=400, seed=seed, keep=1, run=CPU)
        for seed in range(20)
    ]
    assert sum(result.trace.contains(np.trace(TRUTH)) for result in found) >= 16
    assert sum(result.effective_rank.contains(RANK) for result in found) >= 16
    traces = np.array([result.trace.value for result in found])
    assert abs(traces.mean() - np.trace(TRUTH)) < 4 * traces.std() / np.sqrt(len(traces))


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 2)
    )


def test_two_seeds_give_one_answer() -> None:
    family = Family.initialised(small_cnn, name="small CNN")
    one, two = (
        mean_gradient(family, fresh(1, 8, 8, num=16, seed=seed), draws=400, seed=seed, run=CPU) for seed in (0, 1)
    )
    assert one.effective_rank.value != two.effective_rank.value
    assert one.effective_rank.low < two.effective_rank.high
    assert two.effective_rank.low < one.effective_rank.high
    assert one.effective_rank.high < 64


def test_it_is_saved_with_the_number_of_resolved_directions(tmp_path: Path) -> None:
    result = mean_gradient(Family.initialised(Bent, name="bent"), fresh(SIZE, num=4), draws=200, run=CPU)
    result.save(tmp_path)
    again = load(tmp_path)
    assert isinstance(again, MeanGradient)
    assert again.resolved == result.resolved
    assert again.headline()["resolved"].value == result.resolved
    assert again.sentence() == result.sentence()
    assert again.estimator == "mean gradient over inputs"


def test_what_cannot_be_measured_is_told_in_one_sentence() -> None:
    family = Family.initialised(linear, name="linear")
    for who, probe, draws, sentence in (
        (
            Family.point(linear(), name="one"),
            fresh(16, num=2),
            8,
            "needs a distribution of weights, but one is one network",
        ),
        (family, Probe.gaussian((16,), num=2), 8, "needs fresh inputs for each network, got .* or --fresh"),
        (family, fresh(16, num=3), 8, "needs an even number of inputs per draw .*got 3"),
        (family, fresh(16, num=1), 8, "needs an even number of inputs per draw .*got 1"),
        (family, fresh(16, num=2), 1, "draws must be at least 2"),
    ):
        with pytest.raises(ValueError, match=sentence) as raised:
            mean_gradient(who, probe, draws=draws, run=CPU)
        assert "\n" not in str(raised.value)


def test_draws_that_memory_cannot_hold_are_refused_with_a_number_that_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    family = Family.initialised(linear, name="linear")
    for most_rows, most_numbers in ((10, 10_000), (10, 6 * 16)):
        for module in (sampling, moments):
            monkeypatch.setattr(module, "DENSE_LIMIT", most_rows)
            monkeypatch.setattr(module, "ROWS_LIMIT", most_numbers)
        most = min(most_rows, most_numbers // 16) // 2
        told = rf"of {most + 1} draws of 16 numbers do not fit into memory\. Pass draws={most}\.$"
        with pytest.raises(ValueError, match=told):
            mean_gradient(family, fresh(16, num=2), draws=most + 1, keep=2, run=CPU)
        assert mean_gradient(family, fresh(16, num=2), draws=most, keep=2, run=CPU).draws == most


def noisy_halves(values: np.ndarray, draws: int, seed: int) -> list[torch.Tensor]:
    """The eigenvectors of two sample covariances with these true variances."""
    random = np.random.default_rng(seed)
    samples = random.normal(size=(2, draws, len(values))) * np.sqrt(values)
    found = [np.linalg.eigh(half.T @ half)[1].T[::-1].copy() for half in samples]
    return [torch.tensor(vectors) for vectors in found]


@pytest.mark.parametrize("size", [8, 16, 64])
def test_no_direction_of_an_isotropic_covariance_is_resolved(size: int) -> None:
    assert [resolved_directions(*noisy_halves(np.ones(size), 200, seed)) for seed in range(20)] == 20 * [0]


@pytest.mark.parametrize("rank", [1, 3, 10])
def test_directions_that_stand_out_are_resolved_and_no_others(rank: int) -> None:
    values = np.where(np.arange(64) < rank, 100.0, 1.0)
    found = [resolved_directions(*noisy_halves(values, 400, seed)) for seed in range(10)]
    assert min(found) >= rank
    # What is shared beyond them is little, but a quarter of all; it runs out soon.
    assert max(found) <= 4 * rank + 1


def test_two_equal_estimates_resolve_all_that_they_hold() -> None:
    axes = torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    assert resolved_directions(axes[:5], axes[:5]) == 5
    assert resolved_directions(axes[:5], axes[:5].flip(0)) == 5  # one subspace, in another order
    assert resolved_directions(axes[:5], axes[5:10]) == 0


def test_the_sentence_says_how_many_with_an_interval_and_where_that_stands() -> None:
    result = mean_gradient(Family.initialised(small_cnn, name="small CNN"), fresh(1, 8, 8, num=8), draws=200, run=CPU)
    result = dataclasses.replace(result, effective_rank=Estimate(6.3, 0.2, 5.9, 6.7))
    words = result.sentence()
    start = (
        "Before training, the mean gradient of small CNN spreads over about 6.3 of 64 directions (95 % CI 5.9 to 6.7). "
    )
    assert words.startswith(start)
    assert "needs more draws" in dataclasses.replace(result, effective_rank=Estimate(9.0, 9.0, 0.0, 27.0)).sentence()


def strided() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 2, 4, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10))


def on_one_number() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))


def on_a_signal() -> nn.Module:
    return nn.Sequential(nn.Linear(24, 8), nn.Tanh(), nn.Linear(8, 1))


@pytest.mark.parametrize(
    ("build", "shape"),
    [(strided, (3, 32, 32)), (on_one_number, (1,)), (on_a_signal, (24,))],
    ids=["3072 numbers", "one number", "a signal"],
)
def test_a_scan_has_one_headline_for_inputs_of_any_size(build: type, shape: tuple[int, ...], tmp_path: Path) -> None:
    family = Family.initialised(build, name="net")
    done = scan(family, input=shape, draws=16, run=dataclasses.replace(CPU, folder=tmp_path), report=False)
    headlines = [result for result in done.results if not result.why_detail(done.results) and not result.row_of_card]
    assert [result.measurement for result in headlines] == ["mean_gradient"]
    assert isinstance(headlines[0], MeanGradient)
    assert headlines[0].size == np.prod(shape)
    assert headlines[0].sentence().startswith(("Before training, the mean gradient of net ", "net needs more draws"))
    assert np.isfinite(headlines[0].effective_rank.value)


def test_a_large_effective_rank_is_written_in_full() -> None:
    args, settings = mean_gradient.example()
    result = mean_gradient(*args, **settings, run=Run(device="cpu"))
    large = dataclasses.replace(result, effective_rank=Estimate(24_345.6, 20.0, 24_300.2, 24_391.0))
    assert "about 24,346 of 36 directions (95 % CI 24,300 to 24,391)." in large.sentence()
