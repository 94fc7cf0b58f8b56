"""Shattering networks on all labellings, remark E.1 on drawn sets, and the two-point theorem against automatic differentiation."""

import itertools
import math

import pytest
import torch

from biascope.papers.patterns2021 import models as theory
from biascope.runs.run import Run
from biascope.tasks.pattern_ratios import certificate, detection, detection_ratios, network_outputs, smallest_constant
from biascope.tasks.patterns import PatternDistribution, PatternSamples

CPU = Run(device="cpu")

pytestmark = pytest.mark.usefixtures("one_thread")


def signs(seed, *shape):
    return 2 * torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)) - 1


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_labelling_is_fitted_and_violates_psi(size) -> None:
    points = theory.shattered_points(size)
    labels = torch.tensor(list(itertools.product([-1, 1], repeat=len(points))))  # all 2^(2^(n−1)) of them
    networks = theory.shattering_network(points, labels)
    assert torch.allclose(network_outputs(networks, points), labels.double(), atol=1e-12)
    found = detection(networks)
    assert (found.plus_w[:, 0] == 0).all()
    assert (found.minus_u[:, 1] == 0).all()
    statistics = torch.zeros(2 * size)
    statistics[0], statistics[1] = 0.5, -0.5
    for slope in (0.1, 2.0, 1e6):
        assert (smallest_constant(detection_ratios(found), statistics, 2, slope=slope) == math.inf).all()
    assert not certificate(found).holds.any()


@pytest.mark.parametrize("size", [6, 9, 12])
def test_random_labels_are_fitted(size) -> None:
    points = theory.shattered_points(size, mark=1)
    labels = signs(size, len(points))
    assert torch.allclose(
        network_outputs(theory.shattering_network(points, labels), points), labels.double(), atol=1e-9
    )


def test_it_is_the_network_of_the_papers_linear_system() -> None:
    points, labels = theory.shattered_points(5), signs(0, 16).double()
    complement = torch.arange(15, -1, -1)  # of a point's number
    heights = torch.linalg.solve(torch.ones(16, 16).double() - torch.eye(16).double(), labels[complement])
    patterns = torch.zeros(16, 10).double().scatter_(1, points[:, :-1], 1.0)
    groups = [heights.clamp(min=0)[:, None] * patterns, (-heights).clamp(min=0)[:, None] * patterns]
    published = torch.cat([group[complement] for group in groups])
    assert torch.allclose(theory.shattering_network(points, labels), published, atol=1e-12)


def test_few_points_of_a_large_space_need_few_channels() -> None:
    points = PatternDistribution("paired", 40, 80).draw(60, seed=1).places
    labels = signs(2, 60)
    network = theory.shattering_network(points, labels)
    assert network.shape == (120, 80)
    assert torch.allclose(network_outputs(network, points), labels.double(), atol=1e-9)


def test_with_zero_training_error_every_unseen_point_is_wrong() -> None:
    whole = PatternDistribution("paired", 30, 60)
    train, test = whole.draw(200, seed=0), whole.draw(300, seed=1)
    assert theory.overfitting_network(train, test)[1:] == (0.0, 1.0)
    mixed = PatternSamples(
        torch.cat([test.places[:100], train.places]), torch.cat([test.labels[:100], train.labels]), 60
    )
    assert theory.overfitting_network(train, mixed)[1:] == pytest.approx((0.0, 1 / 3))  # what was trained on is right


def test_spurious_parts_with_both_labels_limit_what_overfitting_can_do() -> None:
    spurious = torch.tensor([[2, 4], [3, 4], [2, 5], [3, 5]])

    def samples(*rows):
        places = torch.stack([torch.cat([torch.tensor([int(label < 0)]), spurious[part]]) for label, part in rows])
        return PatternSamples(places, torch.tensor([label for label, _ in rows]), 6)

    train = samples((1, 0), (-1, 1))
    assert theory.overfitting_network(train, samples((-1, 0), (1, 2)))[1:] == (
        0.0,
        1.0,
    )  # the other label of a part is wrong
    assert theory.overfitting_network(train, samples((1, 2), (-1, 2), (1, 3), (1, 0)))[1:] == (0.0, 0.5)
    assert theory.overfitting_network(samples((1, 0), (-1, 0), (1, 1), (1, 2)), samples((1, 3)))[1:] == (0.25, 1.0)


def test_vc_bounds_and_the_corollary_for_few_patterns() -> None:
    for size in (2, 5, 20):
        assert theory.vc_dimension_bounds(size, 2 * size) == (2 ** (size - 1), math.comb(2 * size, size))
    assert theory.vc_dimension_bounds(10, 80)[0] == 512
    assert theory.vc_dimension_bounds(40, 60)[0] == 2**19
    # Five of eight patterns: two pairs beside the labels' own, and two more that are in every point.
    size, patterns = 5, 8
    count = theory.vc_dimension_bounds(size, patterns)[0]
    points = theory.shattered_points(patterns - size)
    assert len(points) == count == 4
    common = torch.arange(2 * points.shape[1], patterns).expand(count, -1)
    whole = torch.cat([points, common], 1)
    assert whole.shape[1] == size
    labels = torch.tensor(list(itertools.product([-1, 1], repeat=count)))
    networks = torch.nn.functional.pad(theory.shattering_network(points, labels), (0, common.shape[1]))
    assert torch.allclose(network_outputs(networks, whole), labels.double())


def by_autograd(start, half, most):
    """Gradient descent on the two points by automatic differentiation of equation (1), for one run (n + 1, 2, k)."""
    weights = start.clone()
    weights[:2, 1] = weights[:2, 1].flip(0)  # back from own and other to p_1 and p_2
    weights.requires_grad_()
    spurious = list(range(2, len(start)))
    reached = [-1, -1]
    for time in range(most):
        answers = [torch.relu(weights[[mark, *spurious]]).amax(0).sum(1) for mark in (0, 1)]
        margins = torch.stack([answers[0][0] - answers[0][1], answers[1][1] - answers[1][0]])
        reached = [
            time if old < 0 and margin >= 1 else old for old, margin in zip(reached, margins.tolist(), strict=True)
        ]
        if bool((margins >= 1).all()):
            break
        (gradient,) = torch.autograd.grad(torch.relu(1 - margins).sum() / 2, weights)
        weights = (weights - 2 * half * gradient).detach().requires_grad_()
    last = weights.detach().clone()
    last[:2, 1] = last[:2, 1].flip(0)
    return last, reached, time


@pytest.mark.parametrize(("size", "width", "rate"), [(2, 5, 0.3), (4, 12, 0.1), (3, 40, 0.02)])
def test_descent_with_leaps_is_descent_by_automatic_differentiation(size, width, rate) -> None:
    half = rate / width / 2
    start = (
        1e-6
        * half
        * torch.randn(size + 1, 3, 2, width, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    )
    last, reached, steps, _ = theory._descended(start, half, 5000)
    for run in range(3):
        expected, times, final = by_autograd(start[:, run], half, 5000)
        assert (reached[run].tolist(), int(steps[run])) == (times, final)
        assert torch.allclose(last[:, run], expected, rtol=0, atol=1e-9 * half)


def test_counts_are_those_of_lemmas_1_to_3_as_corrected() -> None:
    size, width, runs = 4, 2000, 20
    found = theory.two_points(width=width, per_input=size, rate=0.1, runs=runs, seed=3, run=CPU)
    both, each = found.expected_crossed

    def errors_away(counts, expected):
        return abs(float(counts.mean()) - expected) / math.sqrt(expected * (1 - expected) / width / counts.numel())

    assert errors_away(found.alive, 1 - 2.0**-size) < 4
    assert errors_away(found.facing, 0.5) < 4
    assert errors_away(found.crossed.sum(-1), both) < 4
    assert errors_away(found.crossed.sum(-1), 0.5 - 2.0 ** (-size - 1)) > 50  # as printed
    for place in range(size):
        assert errors_away(found.detectors[..., place], found.gamma) < 4
    for place in range(1, size):
        assert errors_away(found.crossed[..., place], each) < 4


@pytest.mark.parametrize("rate", [0.1, 0.01])
def test_wide_networks_follow_the_theorem_but_not_in_the_same_step(rate) -> None:
    found = theory.two_points(width=10_000, per_input=5, rate=rate, patterns=20, runs=5, seed=0, run=CPU)
    low, high = found.step_bounds
    assert found.converged.all()
    assert ((found.steps >= low) & (found.steps <= high)).all()
    assert (found.followed == 1).all()  # lemma F.5, every channel
    assert (found.start < 1e-5).all()  # lemma F.4
    assert found.holds.all()
    assert not found.together.all()


def test_a_small_rate_at_a_fixed_width_breaks_the_bound_and_the_limit_says_by_how_much() -> None:
    found = theory.two_points(width=1000, per_input=5, rate=2e-4, runs=6, seed=1, run=CPU)
    assert found.converged.all()
    assert (found.followed == 1).all()
    assert not found.holds.any()
    assert torch.allclose(found.largest, found.limit, rtol=0.02, atol=found.rate / 10)


def test_descent_that_is_cut_short_says_so() -> None:
    found = theory.two_points(width=50, per_input=3, rate=0.01, runs=3, most_steps=20, seed=0, run=CPU)
    assert found.steps.tolist() == [-1, -1, -1]
    assert not found.converged.any()
    assert not found.together.any()
    assert found.followed.isnan().all()


def test_a_seed_is_a_run() -> None:
    one, two, other = (
        theory.two_points(width=50, per_input=3, rate=0.1, runs=4, seed=seed, run=CPU) for seed in (0, 0, 1)
    )
    assert torch.equal(one.largest, two.largest)
    assert not torch.equal(one.largest, other.largest)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: theory.vc_dimension_bounds(1, 4), "per_input must be at least 2"),
        (lambda: theory.shattering_network(torch.tensor([[0, 2]]), torch.ones(1)), "at least 2 points"),
        (
            lambda: theory.shattering_network(torch.tensor([[0, 2], [1, 2]]), torch.ones(2)),
            "2 points of which 1 differ",
        ),
        (lambda: theory.shattering_network(torch.tensor([[0, 1], [0, 2]]), torch.ones(2)), "one of each of 1 pairs"),
        (lambda: theory.two_points(width=0, per_input=3, rate=0.1, seed=0), "width and runs must be at least 1"),
        (lambda: theory.two_points(width=9, per_input=3, rate=0.1, patterns=3, seed=0), "per_input from 2 to below"),
    ],
)
def test_errors_name_what_to_do(call, words) -> None:
    with pytest.raises(ValueError, match=words):
        call()
