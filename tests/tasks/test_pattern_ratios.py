"""Detection ratios, PSI constants and certificates, against their definitions written as loops over channels and inputs."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from networks_under_test import normal

from biascope.tasks.pattern_ratios import (
    Detection,
    Sides,
    certificate,
    detection,
    detection_ratios,
    label_statistics,
    leanings,
    network_outputs,
    sample_size_bound,
    smallest_constant,
)

INF, NAN = math.inf, math.nan


def defined_masses(responses, own):
    """M_w and M_u of one network, (2k, P), among the spurious patterns and the own label's, channel by channel."""
    channels, patterns = responses.shape
    seen = [place for place in range(patterns) if place != 1 - own]
    masses = torch.zeros(2, patterns, dtype=torch.float64)
    for channel, row in enumerate(responses.tolist()):
        best = max(seen, key=lambda place: row[place])
        if row[best] > 0:
            masses[int(channel >= channels // 2), best] += row[best]
    return masses


def defined_output(responses, places):
    """Equation (1) for one network and one input."""
    answers = [max(max(row[place], 0.0) for place in places) for row in responses.tolist()]
    half = len(answers) // 2
    return sum(answers[:half]) - sum(answers[half:])


def every_input(patterns, size):
    """All positive and all negative inputs of so many patterns, up to order."""
    spurious = itertools.combinations(range(2, patterns), size - 1)
    parts = torch.tensor(list(spurious))
    marks = torch.zeros(len(parts), 1, dtype=torch.int64)
    return torch.cat([marks, parts], 1), torch.cat([marks + 1, parts], 1)


def test_statistics_are_defined_sums_and_count_a_repeated_pattern_once() -> None:
    places = torch.tensor([[[0, 2, 2], [1, 3, 2], [0, 3, 4]], [[1, 2, 3], [1, 4, 4], [1, 2, 4]]])
    labels = torch.tensor([[1, -1, 1], [-1, -1, -1]])
    contains = torch.zeros(2, 3, 5, dtype=torch.bool).scatter_(-1, places, True)
    found = label_statistics(SimpleNamespace(contains=contains, labels=labels))
    assert torch.equal(3 * found, torch.tensor([[2.0, -1, 0, 0, 1], [0, -3, -2, -1, -2]]).double())


@pytest.mark.parametrize("seed", range(5))
def test_masses_are_those_of_the_definition(seed) -> None:
    responses = normal(3, 8, 5, seed=seed)
    found = detection(responses)
    for run in range(3):
        plus, minus = (defined_masses(responses[run], own) for own in (0, 1))
        for mass, expected in zip(
            (found.plus_w, found.plus_u, found.minus_w, found.minus_u), (*plus, *minus), strict=True
        ):
            assert torch.allclose(mass[run], expected)
    table = responses.mT.contiguous()  # (r, P, 2k), as look-up training keeps it
    assert torch.equal(detection(table.mT).plus_w, found.plus_w)
    assert torch.equal(detection(responses[1]).minus_u, found.minus_u[1])


def test_the_first_of_equal_patterns_is_detected_and_silence_is_nobody() -> None:
    rows = [[2.0, 2, 2, 2], [0, 0, 0, 0], [-1, 3, 1, 1], [-1, -2, -3, -4]]
    found = detection(torch.tensor(rows))
    assert found.positive.tolist() == [0, -1, 2, -1]
    assert found.negative.tolist() == [1, -1, 1, -1]
    assert found.plus_w.tolist() == [2.0, 0, 0, 0]


def test_other_output_weights_are_scales_of_the_responses() -> None:
    responses, output = normal(5, 6, seed=0), torch.tensor([2.0, -0.5, 0.0, 3.0, -1.0])
    places = torch.cat(every_input(6, 3))
    scaled = torch.cat(
        [responses[[0, 3]] * torch.tensor([[2.0], [3.0]]), responses[[1, 4]] * torch.tensor([[0.5], [1.0]])]
    )
    assert torch.allclose(network_outputs(responses, places, output=output), network_outputs(scaled, places))
    one, two = detection(responses, output=output), detection(scaled)
    assert torch.allclose(one.plus_w, two.plus_w)
    assert torch.allclose(one.minus_u, two.minus_u)


def test_outputs_are_those_of_the_definition() -> None:
    responses, places = normal(2, 6, 5, seed=1), torch.cat(every_input(5, 3))
    found = network_outputs(responses, places)
    expected = [[defined_output(each, row) for row in places.tolist()] for each in responses]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(3))
def test_equation_3_bounds_every_input_and_certified_networks_err_nowhere(seed) -> None:
    patterns, size = 6, 3
    responses = normal(400, 6, patterns, seed=seed)
    # Half of the networks lean to the ideal one, so that some of them can be certified.
    responses[::2, :3, 0] += 4
    responses[::2, 3:, 1] += 4
    found = certificate(detection(responses))
    positive, negative = every_input(patterns, size)
    lowest = network_outputs(responses, positive).amin(-1)
    highest = network_outputs(responses, negative).amax(-1)
    assert (lowest >= found.positive - 1e-12).all()
    assert (-highest >= found.negative - 1e-12).all()
    right = (lowest > 0) & (highest < 0)
    assert right[found.holds].all()
    assert found.holds[found.small].all()
    assert 0 < found.small.sum() < found.holds.sum() < right.sum() < len(responses)


def test_small_ratios_certify_and_a_sum_of_one_does_not() -> None:
    ratios = torch.tensor([0.0, NAN, 0.5, 0.5])
    zero = torch.zeros(4)
    found = Detection(
        zero, zero, torch.tensor([2.0, 0, 0, 0]), 2 * ratios.nan_to_num(0.0), zero, torch.tensor([0.0, 2, 0, 0])
    )
    assert torch.equal(detection_ratios(found).positive.isnan(), ratios.isnan())
    judged = certificate(found)
    assert (float(judged.positive), float(judged.negative), bool(judged.holds), bool(judged.small)) == (
        0,
        2,
        False,
        False,
    )


def test_a_side_whose_own_pattern_nobody_detects_is_infinite_even_without_undesired_mass() -> None:
    silent = detection(torch.zeros(2, 4))
    ratios = detection_ratios(silent)
    assert ratios.positive[[0, 2, 3]].tolist() == ratios.negative[1:].tolist() == [INF, INF, INF]
    assert not certificate(silent).holds
    assert not certificate(silent).small
    assert float(smallest_constant(ratios, torch.tensor([0.5, -0.5, 0.0, 0.0]), 10)) == INF


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_network_that_is_not_a_number_stays_so(place) -> None:
    responses = torch.tensor([[3.0, 0, 1, 0], [1.0, 1, 2, 0], [0, 3, 1, 0], [1, 2, 0, 1]]).repeat(2, 1, 1)
    responses[0, 1, place] = NAN
    found = detection(responses)
    constants = smallest_constant(detection_ratios(found), torch.tensor([0.5, -0.5, 0.0, 0.0]), 10)
    assert constants.isnan().tolist() == [True, False]
    assert not certificate(found).holds[0]


def test_leanings_without_a_class() -> None:
    sides = leanings(torch.tensor([[0.0, -1.0, -0.5, 0.0], [1.0, 0.0, 0.5, 0.0]]))
    assert sides.positive[:, [0, 2, 3]].tolist() == [[0, INF, 0], [0, 0, 0]]
    assert sides.negative[:, 1:].tolist() == [[0, 0, 0], [0, INF, 0]]
    infinite = Sides(torch.tensor([0.25, NAN, INF, 0.5]), torch.tensor([NAN, 0.0, 0.0, 0.0]))
    assert (
        float(smallest_constant(infinite, torch.tensor([0.0, -1.0, -0.5, 0.0]), 4)) == 1.0
    )  # 2 · 0.5: p_3 may be anything


@pytest.mark.parametrize("slope", [1.0, 2.0, 3.5])
def test_the_constant_is_the_smallest_with_which_psi_holds(slope) -> None:
    responses, statistics, samples = normal(20, 100, 6, seed=3), 0.3 * normal(20, 6, seed=4), 50
    statistics[:, 0], statistics[:, 1] = 0.4, -0.6
    ratios = detection_ratios(detection(responses))
    found = smallest_constant(ratios, statistics, samples, slope=slope)
    for run in range(20):
        excess = [0.0]
        for i in (0, 2, 3, 4, 5):
            excess.append(float(ratios.positive[run, i]) - slope * max(-float(statistics[run, i]) / 0.4, 0))
        for i in (1, 2, 3, 4, 5):
            excess.append(float(ratios.negative[run, i]) - slope * max(float(statistics[run, i]) / 0.6, 0))
        assert float(found[run]) == pytest.approx(math.sqrt(samples) * max(excess))
    assert (found > 0).any()
    assert found.isfinite().all()


def test_the_constant_is_zero_below_the_lines() -> None:
    ratios = Sides(torch.tensor([0.0, NAN, 0.1]), torch.tensor([NAN, 0.0, 0.0]))
    assert float(smallest_constant(ratios, torch.tensor([0.5, -0.5, -0.1]), 100)) == 0.0


def test_enough_samples_make_the_ratios_small_as_often_as_the_theorem_says() -> None:
    # P = 3 and n = 2: every input has the one spurious pattern, whose statistic is the mean label.
    needed = sample_size_bound(3, slope=1, constant=1)
    assert needed.samples == 2967
    labels = torch.rand(400, needed.samples, generator=torch.Generator().manual_seed(0)) < 0.5
    own, spurious = labels.double().mean(1), 2 * labels.double().mean(1) - 1
    allowed = spurious.abs() / own + 1 / math.sqrt(needed.samples)
    assert (allowed < 1 / 3).double().mean() >= needed.probability == 1 - 4 / 27


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: detection(torch.zeros(4, 2)), "at least 3 patterns"),
        (lambda: detection(torch.zeros(3, 4)), "even number of channels"),
        (lambda: detection(torch.zeros(3, 4), output=torch.ones(2)), "one weight for each of 3 channels"),
        (lambda: leanings(torch.tensor([-0.1, -0.5, 0.0])), "places 0 and 1 mark the labels"),
        (lambda: leanings(torch.tensor([0.1, 0.5, 0.0])), "places 0 and 1 mark the labels"),
        (
            lambda: smallest_constant(Sides(torch.ones(3), torch.ones(3)), torch.ones(3), 0),
            "samples must be at least 1",
        ),
        (lambda: sample_size_bound(20, slope=0.5, constant=1), "at least 1, got 0.5"),
        (lambda: sample_size_bound(2, slope=1, constant=1), "patterns must be at least 3"),
    ],
)
def test_errors_name_what_to_do(call, words) -> None:
    with pytest.raises(ValueError, match=words):
        call()
