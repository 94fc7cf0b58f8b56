"""Pattern statistics: statements of the paper against our claims, and the evidence of training."""

import math

import pytest

from biascope import papers
from biascope.papers.patterns2021 import two_points
from biascope.results.claim import EFFORTS

PAPER = papers.find("patterns2021")
ABOUT_TRAINING = {  # claims whose own number tells whether networks trained
    "runs_that_did_not_converge",
    "least_train_accuracy",
    "sgd_largest_training_error_percent",
    "runs_that_converge_percent",
    "runs_with_t_within_its_bounds_percent",
    "least_share_of_channels_that_follow_f_5_percent",
}


def test_claims_about_trained_networks_ask_whether_they_trained() -> None:
    constructed = {"4", "theorem 5.1"}  # no training at all
    made = ("constructed", "inputs_of_d_vc", "k_1_made_by_hand", "f_1", "f_2", "f_3", "largest_4b", "largest_2_root")
    made += (
        "exact_chance",
        "training_sets_as",
        "certified_networks",
        "least_margin",
        "largest_exact_chance",
        "least_share_that_errs",
    )
    for figure in PAPER.figures:
        for claim in figure.claims:
            without = figure.number in constructed or claim.statistic.startswith(made)
            without |= claim.statistic in ABOUT_TRAINING
            assert bool(claim.trained) != without, claim.statement


def test_the_printed_probability_is_that_of_the_smallest_inputs() -> None:
    rows = (two_points.SWEEP.row(effort) for effort in EFFORTS)
    smallest = 2 * min(size for row in rows for size in row["n"])
    figure = papers.figure("patterns2021", "theorem 7.1")
    printed = next(claim for claim in figure.claims if claim.statistic == "runs_that_converge_percent")
    assert printed.tolerance == pytest.approx(100 * (1 - 9 / smallest**7 - 8 * math.exp(-8)))
