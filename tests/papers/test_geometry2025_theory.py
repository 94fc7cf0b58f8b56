"""Theory and structure of the 2025 paper's figures: numbers free of bias, and models against what they stand for."""

import dataclasses
import functools
import math
from typing import Any

import closed_forms_geometry as forms
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from biascope import papers
from biascope.derivatives.matrices import correlation, data_covariance
from biascope.families.family import Family
from biascope.papers.geometry2025 import small_models, theory
from biascope.papers.geometry2025.models import (
    halfspace_probability_moments,
    mean_tap_matrix,
    pooled_convolution_alignment,
    pooled_convolution_evolution,
)
from biascope.papers.geometry2025.shared import family_of
from biascope.runs.run import Run
from biascope.tasks.task import Arrays
from biascope.training.velocity import gradient_velocity, weight_velocity

CPU64 = Run(device="cpu", precision="float64", progress=False)
SHAPE = (2, 5, 5)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def estimates(truth: Tensor, noise: float, groups: int = 24) -> Tensor:
    """Independent noisy estimates of a symmetric matrix."""
    drawn = noise * normal(groups, *truth.shape, seed=1)
    return truth + (drawn + drawn.mT) / 2


def test_correlations_do_not_count_the_noise_of_estimates() -> None:
    truth, target = torch.diag(torch.arange(1.0, 9.0, dtype=torch.float64)), torch.eye(8)
    groups, exact = estimates(truth, 6.0), correlation(truth, target)
    found = theory.corr(groups, target)
    assert abs(found.value - exact) < 3 * found.standard_error < 0.25
    assert correlation(groups.mean(0), target) < exact - 0.05  # the plain one is too small


def test_two_estimated_matrices_may_share_their_noise() -> None:
    one, two = (torch.diag(torch.tensor(each, dtype=torch.float64)) for each in ([3.0, 0.0], [0.0, 3.0]))
    groups = estimates(one, 2.0, 100), estimates(two, 2.0, 100)  # the same noise
    found = theory.corr(*groups)
    assert abs(found.value) < 3 * found.standard_error < 0.4
    pairs = [each.flatten(1) for each in groups]
    assert float((pairs[0] * pairs[1]).sum(1).mean()) > 9  # products of the same place would make them alike


def test_shares_of_a_mask_are_those_of_the_truth() -> None:
    truth = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    found = theory.share_within(estimates(truth, 0.3, 200), torch.eye(2))
    assert abs(found.value - 0.8) < 3.5 * found.standard_error < 0.1


def repeating(period: int, side: int) -> Tensor:
    rows = normal(6, 1, period, period).repeat(1, 1, side // period, side // period).flatten(1)
    return rows[:, :, None] * rows[:, None, :]


def test_patterns_that_repeat_are_told_from_noise_and_from_other_periods() -> None:
    assert theory.periodic_share(repeating(2, 12), (1, 12, 12), 2).value == pytest.approx(1.0)
    assert theory.periodic_share(repeating(2, 12), (1, 12, 12), 4).value == pytest.approx(1.0)  # a multiple
    assert theory.periodic_share(repeating(4, 12), (1, 12, 12), 3).value < 0.1
    assert theory.periodic_share(torch.eye(144).repeat(4, 1, 1), (1, 12, 12), 4).value == pytest.approx(0.0, abs=1e-6)


def test_pooling_before_a_linear_convolution_is_pooling_after_it() -> None:
    short = theory.pooled_convolution(SHAPE, 4).double()
    first, last = (each.weight for each in short if isinstance(each, nn.Linear))
    whole = nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1, bias=False)
    ).double()
    whole[0].weight.data, whole[3].weight.data = first.data.reshape(4, 2, 3, 3), last.data
    x = normal(7, *SHAPE)
    torch.testing.assert_close(short(x), whole(x))


def linear_family(width: int = 3) -> Family:
    return Family.initialised(functools.partial(theory.pooled_convolution, SHAPE, width), name="CNN")


def test_all_data_pull_a_linear_network_as_one_image_does() -> None:
    stack, x = linear_family().draw(3, seed=0, run=CPU64), normal(11, *SHAPE)
    found = theory.velocity_of_linear(data_covariance(x), SHAPE)(stack, 0)
    wanted = weight_velocity(stack, x, torch.zeros(11, dtype=torch.float64))
    for name, each in wanted.items():
        torch.testing.assert_close(found[name], each)


def test_evolutions_are_those_of_the_closed_form() -> None:
    covariance, taps = data_covariance(normal(11, *SHAPE)) / 11, mean_tap_matrix(SHAPE[1:], 3, channels=2)
    velocity = theory.velocity_of_linear(covariance, SHAPE)
    groups = theory.evolutions(linear_family(), SHAPE, velocity, 6400, CPU64)
    exact = torch.from_numpy(pooled_convolution_evolution(covariance.numpy(), taps, 3, weight_std=1.0, readout_std=1.0))
    error = groups.std(0) / len(groups) ** 0.5
    assert float(((groups.mean(0) - exact).abs() / error).max()) < 5
    assert theory.corr(groups, exact).contains(1.0)


def test_a_model_that_is_not_its_closed_form_is_seen() -> None:
    covariance, taps = data_covariance(normal(11, *SHAPE)).numpy() / 11, mean_tap_matrix(SHAPE[1:], 3, channels=2)
    q = taps @ taps.T
    velocity = theory.velocity_of_linear(torch.from_numpy(covariance), SHAPE)

    def printed(width: int, **stds: float) -> Any:
        return pooled_convolution_evolution(covariance, taps, width, **stds) * 1.5

    right = theory.Theorem(
        "CNN",
        "",
        theory.pooled_convolution,
        velocity,
        q @ covariance @ q,
        functools.partial(pooled_convolution_evolution, covariance, taps),
        functools.partial(pooled_convolution_alignment, covariance, taps),
        18,
    )
    wrong = dataclasses.replace(right, evolution=printed)
    assert right.measured(SHAPE, 2, 3200, CPU64)[1] < 4 < wrong.measured(SHAPE, 2, 3200, CPU64)[1]


def test_samples_chosen_anew_pull_as_all_do_on_average() -> None:
    stack, x = linear_family().draw(2, seed=0, run=CPU64), normal(6, *SHAPE)
    data = Arrays({"train": (x, torch.zeros(6, dtype=torch.long))}, torch.float64)
    some = theory.velocity_on_some(data, 3, CPU64)
    found = torch.stack([some(stack, start)["2.weight"] for start in range(400)])
    wanted = weight_velocity(stack, x, torch.zeros(6, dtype=torch.float64))["2.weight"] / 6
    error = found.std(0) / len(found) ** 0.5
    assert float(((found.mean(0) - wanted).abs() / error).max()) < 4.5


def test_slopes_are_those_of_powers_with_their_error() -> None:
    widths = [2.0, 4.0, 8.0]
    assert theory.slope_of(widths, [3 * n**-2 for n in widths]).value == pytest.approx(-2.0)
    found = theory.slope_of(widths, [3 * n**-2 for n in widths], [0.3 * n**-2 for n in widths])
    assert found.standard_error == pytest.approx(0.1 / math.log(4) * math.sqrt(2))


@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_what_labels_add_cancels_between_a_network_and_its_mirror_image(name: str) -> None:
    x, y = normal(8, 1, 16, 16), torch.tensor([0, 1] * 4)
    family = family_of(name, (1, 16, 16), outputs=1)
    assert theory._left_of_mirrored(family, Arrays({"train": (x, y)}, torch.float64), 1.0, CPU64) < 1e-10
    network = family.draw(1, seed=0, run=CPU64).member(0)
    velocity = weight_velocity(network, x, y)
    moved = gradient_velocity(network.read("mean"), x[:1], velocity)[1]
    assert float(moved.abs().max()) > 0  # there is something to cancel


def smoke(number: str) -> dict[str, Any]:
    return papers.figure("geometry2025", number)("smoke", Run(device="cpu", progress=False)).statistics


def test_the_example_of_three_inputs_has_the_printed_eigenvalues_and_half_the_printed_factor() -> None:
    found = {key: number.value for key, number in smoke("15").items()}
    assert found["first_over_second_eigenvalue"] == pytest.approx(3.0)
    assert found["third_over_first_eigenvalue"] == pytest.approx(0.0, abs=1e-12)
    assert found["first_entry"] == pytest.approx(0.25)
    assert found["largest_slope_along_the_third_eigenvector"] < 1e-12


@pytest.mark.parametrize(
    ("number", "key", "exact"),
    [
        ("3.1", "factor_of_s", -2.0),
        ("A.11", "mean_overlap", 0.25),
        ("A.11", "mean_squared_overlap", halfspace_probability_moments(16)[1]),
        ("A.11", "normalised_moment_first_entry_times_d", 1.0),
        ("A.5", "pooled_corr_diagonal_coverage", 1.0),
        ("proposition A.1", "factor_of_delta_in_what_labels_add", 0.0),
    ],
)
def test_small_models_have_their_closed_forms(number: str, key: str, exact: float) -> None:
    found = smoke(number)[key]
    assert abs(found.value - exact) < 4.5 * found.standard_error
    assert found.standard_error < 0.6


def test_normalised_kernels_lie_between_the_bounds_only_with_the_factor_of_the_sphere() -> None:
    found = smoke("A.5")
    exact = forms.normalised_second_moment(np.diag(small_models._PATCH)).diagonal() * small_models._PATCH
    for key, value in (
        ("least_moment_over_the_printed_lower", exact[0]),
        ("largest_moment_over_the_printed_upper", exact[-1]),
    ):
        number = found[f"{key}_bound"]
        assert abs(number.value - value) < 4.5 * number.standard_error
    assert exact[0] < 1 < 4 * exact[0]


def test_the_noise_of_groups_is_the_variance_of_their_mean() -> None:
    truth = 3 * torch.eye(4, dtype=torch.float64)
    groups = truth + normal(400, 4, 4)
    assert theory.noise_of(groups, torch.arange(400)) == pytest.approx(16 / 36, rel=0.1)


def test_shares_and_reported_correlations_end_where_they_can_lie() -> None:
    generator = torch.Generator().manual_seed(0)
    groups = torch.eye(4) + 0.05 * torch.randn(8, 4, 4, generator=generator)
    share, rest = (theory.share_within(groups, mask) for mask in (torch.eye(4), 1 - torch.eye(4)))
    assert share.high == 1.0
    assert rest.low == 0.0
    plain = theory.corr(groups, torch.eye(4))
    assert plain.high > 1.0, "noise carries it there"
    assert theory.possible_corr(groups, torch.eye(4)).high == 1.0
    assert theory.possible_corr(groups, torch.eye(4)).low == plain.low
