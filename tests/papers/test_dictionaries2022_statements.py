"""Chapter 5: statements of the thesis against our claims, and the evidence of training."""

import numpy as np
import pytest

from biascope import papers
from biascope.papers.dictionaries2022 import energy
from biascope.results.estimate import spearman
from biascope.runs.run import Run

PAPER = papers.find("dictionaries2022")
WITHOUT_TRAINING = {"5.2", "5.6", "Section 5.2", "Theorem 5.1", "Equation 5.7"}


def test_bounds_of_the_thesis_are_printed_numbers_or_those_of_a_comparison() -> None:
    for figure in PAPER.figures:
        for claim in figure.claims:
            if claim.kind == "paper" and claim.comparator != "about":
                assert claim.tolerance in (0.0, 0.5, 1.0, 1e-6, 1e-12), claim.statement
                assert not claim.post_hoc


def test_claims_about_trained_networks_ask_whether_they_trained() -> None:
    about_the_start = ("concentration", "published_weights")
    about_fitting = "omega0_300_relative_error_on_the_samples"
    for figure in PAPER.figures:
        for claim in figure.claims:
            untrained = figure.number in WITHOUT_TRAINING or claim.statistic == about_fitting
            untrained |= figure.number == "5.5" and any(
                words in claim.statistic for words in about_the_start if "rank" not in claim.statistic
            )
            untrained |= claim.statistic.startswith("published_weights")
            assert bool(claim.trained) != untrained, claim.statement


@pytest.fixture(scope="module")
def found() -> energy.DictionaryStudy:
    return energy.studied((energy.RELU, "SIREN-20"), energy.FACES.row("smoke"), Run(device="cpu", progress=False))


def test_training_removes_error_and_no_iteration_removes_none(found: energy.DictionaryStudy) -> None:
    assert found.removed("SIREN-20", 0).value == 0
    assert found.removed("SIREN-20", 10).value > found.removed("SIREN-20", 3).value > 0
    for step in (3, 10):
        start, end = (10 ** (-found.psnr["SIREN-20"][each][:, 1] / 10) for each in (0, step))
        assert found.removed("SIREN-20", step).value == pytest.approx(100 * (1 - end / start).mean())


def test_intervals_of_rank_correlations_hold_other_initial_weights() -> None:
    generator = np.random.default_rng(0)
    # Two networks that images order the same way every time, and draws do not.
    level = np.array([[0.0], [3.0]])
    tables = [
        level + 0.1 * generator.standard_normal((2, 50)),
        0.5 + level[::-1] + 0.1 * generator.standard_normal((2, 50)),
    ]
    steady = [np.full((2, 50), 0.1), np.full((2, 50), 0.2)]
    spread = energy.resampled_draws_and_images(spearman, steady, tables)
    assert (spread.low, spread.high) == pytest.approx((-1, 1))
    alone = energy.resampled_draws_and_images(spearman, [each[:1] for each in steady], [each[:1] for each in tables])
    assert np.isnan(alone.standard_error)
