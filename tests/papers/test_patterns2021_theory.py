"""Theorems of the 2021 paper on patterns: what decides their claims, against enumeration, and shown to notice what is wrong."""

import dataclasses
import itertools
import math
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from figures_at_smoke import checked

from biascope.papers.patterns2021 import certificates, shattering, two_points
from biascope.papers.patterns2021 import models as pattern_theory
from biascope.results.finding import FigureOfPaper, Finding
from biascope.runs.randomness import seed_of
from biascope.runs.run import Run
from biascope.tasks.pattern_ratios import (
    detection,
    detection_ratios,
    label_statistics,
    network_outputs,
    smallest_constant,
)
from biascope.tasks.patterns import PatternDistribution

matplotlib.use("Agg")
pytestmark = pytest.mark.usefixtures("one_thread")

CPU = Run(device="cpu", progress=False)
FIGURES = (
    shattering.theorem_51,
    shattering.remark_e1,
    certificates.theorem_61,
    certificates.theorem_61_error,
    two_points.theorem_71,
)


def verdicts(figure: FigureOfPaper, finding: Finding) -> dict[str, str]:
    return {
        claim.statistic: claim.verdict(finding.statistics.get(claim.statistic), "laptop") for claim in figure.claims
    }


@pytest.mark.parametrize("figure", FIGURES, ids=lambda each: each.number)
def test_a_figure_runs_draws_and_agrees_with_what_is_known(figure: FigureOfPaper, tmp_path: Path) -> None:
    run = dataclasses.replace(CPU, folder=tmp_path)
    finding = checked(figure, run)
    found = verdicts(figure, finding)
    wrong = {
        "theorem 5.1": set(),
        "remark E.1": {"inputs_of_d_vc_over_shattered_points"},
        "theorem 6.1": {"largest_4b_root_log_d_m_over_1_6cd_at_the_theorem_s_m"},
        "theorem 6.1 error": set(),
        "theorem 7.1": {"f_3_median_count_over_the_printed_one"},
    }[figure.number]
    assert {name for name, verdict in found.items() if verdict == "not reproduced"} == wrong
    assert "reproduced" in found.values()
    again = figure("smoke", run)  # resumed
    for name, array in finding.arrays.items():
        np.testing.assert_array_equal(array, again.arrays[name])


@pytest.mark.parametrize("effort", ["laptop", "paper"])
def test_beyond_smoke_every_claim_has_its_number(effort: str) -> None:
    plan = two_points.SWEEP.row(effort)
    scales = [k * n * rate**2 for k, n, rate in itertools.product(plan["k"], plan["n"], plan["c_η"])]
    assert plan["c_η"] == (0.1, 0.01, 0.001)
    assert min(scales) <= two_points._TOO_FEW
    assert max(scales) >= two_points._ENOUGH
    assert max(shattering.LEARNED.row(effort)["m"]) > shattering._FEW


def test_all_labellings_are_all_and_in_parts_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.cat(list(shattering.labellings(3, True, 0)))
    assert len(torch.unique(whole, dim=0)) == len(whole) == 16
    some = torch.cat(list(shattering.labellings(5, False, 6)))
    assert some.shape == (6, 16)
    assert set(some.flatten().tolist()) == {-1, 1}
    monkeypatch.setattr(shattering, "_VALUES", 100)
    parts = list(shattering.labellings(3, True, 0))
    assert len(parts) > 1
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(torch.cat(list(shattering.labellings(5, False, 6))), some)


def test_networks_that_do_not_shatter_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = pattern_theory.shattering_network

    def leaky(places: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        network = right(places, labels)
        network[..., 0, 0] = 3.0  # one channel sees p_1
        return network

    monkeypatch.setattr(pattern_theory, "shattering_network", leaky)
    found = verdicts(shattering.theorem_51, shattering.theorem_51("smoke", CPU))
    assert found["least_share_of_random_labellings_fitted_percent"] == "not reproduced"
    assert found["largest_m_w_1_or_m_minus_u_2"] == "not reproduced"


@pytest.mark.parametrize(("presence", "bound"), [(0.5, 0.3), (0.5, 0.5), (0.8, 0.0), (1.0, 0.4)])
def test_chances_are_those_of_all_training_sets(presence: float, bound: float) -> None:
    chances, total = {-1: presence / 2, 0: 1 - presence, 1: presence / 2}, 0.0
    for values in itertools.product(chances, repeat=6):
        if abs(sum(values)) > 6 * bound + 1e-9:
            total += math.prod(chances[value] for value in values)
    assert certificates.chance_above(6, presence, bound) == pytest.approx(total)


def test_the_chance_of_few_positive_samples() -> None:
    for samples in (5, 6, 7):
        few = sum(math.comb(samples, count) for count in range(samples + 1) if 3 * count < samples)
        assert certificates.chance_below_third(samples) == pytest.approx(few / 2**samples)


def test_leanings_are_those_of_the_drawn_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "least_samples", lambda patterns: 200)
    monkeypatch.setattr(certificates, "_PARTS", (0.5, 1.0))
    found = certificates.leanings_by_size(6, 3)
    law, seed = PatternDistribution("uniform", 3, 6), seed_of(shattering.SEED, "theorem 6.1", 6, 0)
    statistics = label_statistics(law.draw(100, seed=seed, runs=3))
    for run, s in enumerate(statistics.tolist()):
        assert float(found[0, run]) == pytest.approx(12 * max(map(abs, s[2:])) / min(s[0], -s[1]))
    assert found.shape == (2, 3)
    assert not torch.equal(found[0], found[1])


def test_all_inputs_are_the_support() -> None:
    law = PatternDistribution("uniform", 3, 7)
    inputs = certificates.all_inputs(law)
    assert len({(*sorted(row),) for row in inputs.places.tolist()}) == len(inputs.labels) == law.support
    assert ((inputs.places[:, 0] == 0) == (inputs.labels == 1)).all()


def test_margins_are_the_worst_of_all_inputs() -> None:
    law = PatternDistribution("uniform", 3, 6)
    network = torch.zeros(2, 2, 6)
    network[:, 0, 0], network[:, 1, 1] = 4.0, 4.0
    network[1, 1, 2] = 6.0  # u answers p_3, and positive inputs with p_3 are wrong
    bound, margin = certificates.bounds_and_margins(network, law)
    assert bound.tolist() == [1.0, -0.5]
    assert margin.tolist() == [1.0, -0.5]


def test_worst_networks_satisfy_psi_with_nothing_to_spare_and_err_where_the_sum_of_ratios_says() -> None:
    law, samples = PatternDistribution("uniform", 3, 6), 100
    drawn = law.draw(samples, seed=0, runs=5)
    statistics = label_statistics(drawn)
    networks = certificates.worst_networks(statistics, samples)
    for side in (0, 1):
        ratios = detection_ratios(detection(networks[:, side]))
        constant = smallest_constant(ratios, statistics, samples, slope=1.0)
        np.testing.assert_allclose(constant, 1.0, rtol=1e-9)
    inputs = certificates.all_inputs(law)
    margins = (network_outputs(networks, inputs.places) * inputs.labels).flatten(1).amin(1)
    for row, margin in zip(statistics.tolist(), margins.tolist(), strict=True):
        worst = []
        for own, sign in ((row[0], 1), (-row[1], -1)):
            ratios = sorted((max(-sign * each / own, 0) + 0.1 for each in row[2:]), reverse=True)
            worst.append(1 - 0.1 - sum(ratios[:2]))
        assert margin == pytest.approx(min(worst))


def test_the_exact_chance_of_an_error_is_that_of_drawn_training_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "least_samples", lambda patterns: 60)
    law = PatternDistribution("uniform", 4, 5)
    drawn = label_statistics(law.draw(60, seed=0, runs=4000))
    inputs = certificates.all_inputs(law)
    outputs = network_outputs(certificates.worst_networks(drawn, 60), inputs.places) * inputs.labels
    share = float((outputs <= 0).flatten(1).any(1).double().mean())
    exact = certificates.exact_chance_of_error(5)
    assert 0.1 < exact < 0.9
    assert share == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 4000) ** 0.5)


def test_certificates_are_below_the_truth_and_networks_are_of_all_kinds() -> None:
    found = certificates.judged_networks(12, CPU)
    for bound, margin in found.values():
        assert (margin >= bound - 1e-6).all()
        assert (bound > 0).any()
        assert (bound < 0).any()


def test_settings_of_the_sweep_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = dataclasses.replace(CPU, folder=tmp_path)
    plan = two_points.SWEEP.row("smoke")
    first = two_points.two_point_runs(plan, run)
    monkeypatch.setattr(pattern_theory, "two_points", None)
    for one, two in zip(first, two_points.two_point_runs(plan, run), strict=True):
        assert torch.equal(one.largest, two.largest)
        assert torch.equal(one.limit, two.limit)
        assert (one.width, one.per_input, one.rate) == (two.width, two.per_input, two.rate)


def test_counts_of_the_lemmas_and_those_printed_are_told_apart() -> None:
    found = pattern_theory.two_points(width=2000, per_input=5, rate=0.1, runs=10, seed=8, run=CPU)
    assert max(two_points.errors_away(found).values()) < 5
    each = found.expected_crossed[1]
    exact = dataclasses.replace(found, crossed=torch.full_like(found.crossed, each))
    assert two_points.printed_crossings(exact) == pytest.approx((1 - 7 / 64) / (0.5 - 1 / 64))
    printed = dataclasses.replace(found, crossed=found.crossed / two_points.printed_crossings(found))
    assert two_points.errors_away(printed)["F.3"] > 20
    fewer = dataclasses.replace(found, alive=found.alive * 0.97, detectors=found.detectors * 0.9)
    assert min(two_points.errors_away(fewer)[lemma] for lemma in ("F.1", "F.2")) > 5
