"""No claim holds for a network that has nothing to show: its bound rejects the number of a null model.

A null model is one without the effect: shuffled accuracies or scores, permuted labels, the identity matrix, a choice at random. The key
of a number says which kind it is, and so what a null model gives (:data:`USUAL`). Other nulls are listed, with their reason. Where a
committed run has measured the null model, the list names its number, and the test reads it: a null that is measured goes before one
that is typed. Closed forms and exact counts have none: the claim is the number itself.
"""

import functools
import re
from typing import Any

import pytest

from biascope import papers
from biascope.papers import verdicts
from biascope.papers.verdicts import Standing
from biascope.results.claim import Claim, effort_rank
from biascope.results.estimate import Estimate

#: Words in the key of a number, and what a model without the effect gives for it.
USUAL = (
    (
        r"_minus_|(^|_)(lead|gain|advantage|rise|fall|loss_by|loss_with|lost|drop|beyond|nearer)(_|$)"
        r"|growth_of_the_(correlation|advantage|energy)|logarithm_of",
        0.0,  # a difference
    ),
    (r"correlation|corr_|similarity", 0.0),
    (r"_over_|_against_|smallest_growth|likeness", 1.0),  # a ratio
    (r"low_xi|share_of_the_grid|largest_change|gap_at_the_largest", 0.0),
    (r"_ahead_of_", 50.0),  # one of two, in percent
)

#: Closed forms, theorems and exact counts, by paper and figure, and some of their numbers.
EXACT = (
    (
        "nads2020",
        "4|Equations|D.3",
        r".*(deviation_of_the_printed|printed_trace|effective_rank_over|_edge|best_accuracy_beyond).*",
    ),
    (
        "linearized2021",
        "theorem .*|B.2 text",
        r"smallest_norm_times.*|deviation_of.*|.*_over_the_theorem|inner_product_of_binarised.*",
    ),
    ("dictionaries2022", "5.2|Section 5.2|Theorem 5.1|Equation 5.7", ".*"),
    ("geometry2025", "3.1|15|A.5|A.11|proposition A.1", ".*"),
    (
        "geometry2025",
        "2|9|A.12",
        r"mlp_(corr_g_i|corr_g_0_g|cross_entropy_lead_of_gsg_over_s)",
    ),  # G of an MLP is the identity
    (
        "patterns2021",
        "2|4|theorem .*|remark E.1",
        r"k_1_made_by_hand.*|accuracy_of_w_p1.*|constructed.*|inputs_of_d_vc.*",
    ),
    ("patterns2021", "theorem 5.1|theorem 6.1|theorem 6.1 error", "(?!sgd_).*"),
    ("patterns2021", "theorem 7.1", "f_[123]_.*|least_share_of_channels.*|ratio_over_its_closed_form.*"),
    ("task_arithmetic2023", "propositions 6.1 and 6.2", ".*"),
)

#: By paper, figure and number, some of them twice: what a null model gives, and which it is. What it gives is a number, or the
#: "figure: key" of a committed one.
LISTED = (
    ("nads2020", "1", "lenet_mean_absolute_difference", 8.7, "the authors' accuracies, shuffled over frequencies"),
    ("nads2020", "1", "resnet_18_mean_absolute_difference", 18.7, "likewise"),
    ("nads2020", "1", "vgg11_mean_absolute_difference", 8.9, "likewise"),
    ("nads2020", "3", "lenet_range_without_pooling", 34.1, "the range with pooling (figure 1)"),
    ("nads2020", "3", "resnet_18_range_without_pooling", 50.1, "likewise"),
    ("nads2020", "5", "resnet_18_energy_on_a_comb", 1 / 16, "energy spread over all frequencies"),
    ("nads2020", "5", "resnet_18_number_of_frequencies.*", 1.0, "a single frequency"),
    (
        "nads2020",
        "5",
        "greatest_similarity_of_two_networks",
        "5: similarity_of_two_sets_of_draws_of_vgg11",
        "two sets of draws of one network",
    ),
    ("nads2020", "6 released", "mean_distance_.*_noise_1", 13.0, "the authors' accuracies, shuffled over directions"),
    ("nads2020", "6 released", "mean_distance_.*_noise_3", 0.0, "the authors' noise is 3"),
    (
        "nads2020",
        "7",
        ".*_loss_with_the_carrier_on_the_last_direction",
        "7: lenet_loss_with_the_carrier_on_the_first_direction",
        "as much as on the first, the less of two networks",
    ),
    ("nads2020", "E", "fewest_classes_separable.*", 0.0, "random carriers"),
    ("nads2020", "S21 settings", "highest_accuracy_over_settings", 100.0, "a network that misses no sample"),
    ("nads2020", "S12", "lenet_deviation_over_directions", 8.9, "as much as over frequencies"),
    ("nads2020", "S12", "resnet_18_deviation_over_directions", 20.0, "likewise"),
    (
        "linearized2021",
        "4.4.1 text",
        "mlp_logarithm_of_the_ratio_of_peaks",
        "4.4.1 text: mlp_logarithm_of_the_ratio_of_losses",
        "as much as losses differ",
    ),
    (
        "linearized2021",
        "4.4.1 text",
        "lenet_logarithm_of_the_ratio_of_peaks",
        "4.4.1 text: lenet_logarithm_of_the_ratio_of_losses",
        "likewise",
    ),
    ("linearized2021", "4.5", ".*_share_of_alignment_on_the_first_tenth", 0.1, "equal alignment along all directions"),
    (
        "linearized2021",
        "4.11",
        "test_accuracy_kernel_of_the_trained_.*_of_the_network",
        6.6,
        "the kernel of initialisation",
    ),
    ("linearized2021", "4.12", "share_of_the_loss_of_accuracy_reached_early", 0.03, "a fall that is even over epochs"),
    ("linearized2021", "table 4.1", ".*_norm_at_the_.*", 6.5, "random labels on 50 of 12,000 eigenvectors"),
    ("linearized2021", "table 4.1", ".*_energy_at_the_.*", 0.42, "likewise"),
    (
        "dictionaries2022",
        "5.3|C.1",
        "(f0_1|w_i_.*)_share_of_energy_on_odd.*",
        "C.1: the_image_share_of_energy_on_odd_frequencies",
        "the image itself",
    ),
    (
        "dictionaries2022",
        "5.3|C.1",
        "(f0_0_5|w_0_5i_.*)_share_of_energy_on_odd.*",
        0.0,
        "a network with even frequencies alone",
    ),
    (
        "dictionaries2022",
        "5.4",
        "omega0_30_amplitude_at_105_hz_over_the_median.*",
        "5.4: omega0_300_amplitude_at_105_hz_over_the_median_beyond_64_hz",
        "as with ω0 = 300",
    ),
    ("dictionaries2022", "5.4", "omega0_300_amplitude_at_105_hz_over_23_hz", 0.005, "no peak"),
    ("dictionaries2022", "5.4", "omega0_300_relative_error_on_the_samples", 1.0, "an empty signal"),
    ("dictionaries2022", "5.5", "siren_5_concentration_of_the_energy", 0.5, "energy alike on all eigenvalues"),
    (
        "dictionaries2022",
        "5.5 meta-learned",
        "siren_energy_below_lamda1_1_000_maml",
        "5.5 meta-learned: siren_energy_below_lamda1_1_000_random",
        "random weights",
    ),
    ("dictionaries2022", "5.5 meta-learned", "published_weights_contour_alignment", 0.5, "random weights"),
    ("dictionaries2022", "5.5 meta-learned", "ffn_psnr_after_3_iterations_maml", 10.9, "random weights"),
    ("geometry2025", "1", ".*_share_that_.*", 100.0, "networks that see both axes"),
    ("geometry2025", "2", "mlp_cross_entropy_early_correlation_with_gsg", 0.0554, "the identity matrix"),
    ("geometry2025", "2", "lenet_cross_entropy_early_correlation_with_gsg", 0.0436, "likewise"),
    ("geometry2025", "2", "resnet_18_cross_entropy_early_correlation_with_gsg", 0.0262, "likewise"),
    ("geometry2025", "3", "mlp_training_accuracy_on_g_minus_flip_g", 48.0, "as much as LeNet"),
    ("geometry2025", "5", ".*_linear_alone_first_u1", 50.0, "chance"),
    ("geometry2025", "5", ".*_circles_alone_first_u1", 100.0, "a network that uses the circles"),
    ("geometry2025", "7", "mlp_.*abs_corr_delta_s_at.*", "7: mlp_abs_corr_delta_s_at_width_4", "the smallest width"),
    ("geometry2025", "7", "cnn_abs_corr_delta_gsg_at.*", "7: cnn_abs_corr_delta_gsg_at_width_1", "the smallest width"),
    (
        "geometry2025",
        "9",
        "lenet_share_.*_1_to_5_pixels_apart",
        "9: mlp_share_of_norm_g_norm_2_1_to_5_pixels_apart",
        "the identity",
    ),
    (
        "geometry2025",
        "9",
        "lenet_share_.*_1_to_5_pixels_apart",
        "9: a_constant_matrix_share_of_norm_g_norm_2_1_to_5_pixels_apart",
        "a constant matrix",
    ),
    ("geometry2025", "9|9 blocks", ".*_repeats_every_8_pixels", 0.0, "the identity matrix"),
    ("geometry2025", "10", "mlp_.*_highest_minus_lowest_accuracy", 47.2, "as much as LeNet"),
    ("geometry2025", "13", ".*_minus_gap_at_the_smallest", -29.0, "as much as with more iterations (figure 12)"),
    ("geometry2025", "A.12", "lenet_corr_g_0_g", "A.12: lenet_corr_i_g", "the identity matrix"),
    ("geometry2025", "A.12", "resnet_18_corr_g_0_g", "A.12: resnet_18_corr_i_g", "likewise"),
    ("geometry2025", "A.12", "vit_corr_g_0_g", "A.12: vit_corr_i_g", "likewise"),
    (
        "geometry2025",
        "A.3",
        "squared_trained_corr_curvature_gt.*",
        "A.3: squared_trained_corr_curvature_i",
        "the identity matrix",
    ),
    (
        "geometry2025",
        "A.3",
        "logistic_trained_corr_curvature_gt.*",
        "A.3: logistic_trained_corr_curvature_i",
        "likewise",
    ),
    (
        "geometry2025",
        "A.3, change",
        "trained_corr_change_of_curvature_delta",
        "A.3: logistic_trained_corr_curvature_i",
        "the identity matrix beside the curvature",
    ),
    ("geometry2025", "A.4", ".*_corr_delta_gsg_targets_0", -0.055, "the negative of the identity"),
    (
        "geometry2025",
        "A.4",
        ".*_corr_delta_gsg_with_true_minus_with_random_labels",
        0.68,
        "a Δ of which the labels decide all",
    ),
    (
        "geometry2025",
        "conjecture 2",
        ".*_within_50_directions",
        "conjecture 2: by_chance_share_of_norm_deltat_norm_2_within_50_directions",
        "random directions",
    ),
    (
        "geometry2025",
        "table [12]",
        ".*_largest_distance_from_the_published_accuracies",
        25.6,
        "chance, from the lowest printed",
    ),
    ("patterns2021", "1a", "runs_that_did_not_converge", "1a: runs", "no training"),
    ("patterns2021", "1a|1b|3", "(largest|mean)_c_star.*", 10.0, "detection ratios of 1, and 100 samples"),
    (
        "patterns2021",
        "1b|3",
        "share_of_the_variance_of_c_star.*|rank_correlation_of_c_star",
        1.0,
        "c* that k or m decides",
    ),
    ("patterns2021", "1c", "mean_ratio_where.*", 0.0008, "balanced patterns"),
    ("patterns2021", "2", "m_.*_standard_deviation.*", 0.0, "one network for all runs"),
    ("patterns2021", "5-7", ".*_share_of_(networks|filters).*", 1 / 3, "colours at random"),
    ("patterns2021", "5-7", "red_and_blue_filters_brightness.*", 0.43, "as much as green filters darken"),
    (
        "patterns2021",
        "theorem 7.1",
        "runs_below_3c_eta.*",
        "theorem 7.1: runs_below_3c_eta_at_c_eta_0_001_at_k_100_percent",
        "the smallest width at the smallest rate",
    ),
    ("patterns2021", "theorem 7.1", "runs_(that_converge|with_t_within).*", 0.0, "no training"),
    ("patterns2021", "D", "largest_ratio_times_d", 20.0, "detection ratios of 1"),
    ("patterns2021", "D", "largest_test_error", 0.5, "chance"),
    ("patterns2021", "D", "share_of_runs_certified.*", 0.0, "no training"),
    ("patterns2021", "remark E.1", "sgd_.*_error.*", 50.0, "chance"),
    ("patterns2021", "remark E.1|theorem 6.1", "sgd_(?!.*_error_).*_percent", 0.0, "no training"),
    (
        "task_arithmetic2023",
        "6.9",
        ".*_share_of_the_variance_of_the_local_energy_between_logits",
        1.0,
        "logits decide all",
    ),
    *(
        (
            "task_arithmetic2023",
            "6.4|D.2",
            f".*_{key}",
            f"6.10: efficientnet_lite0_mnist_and_gtsrb_{key}",
            "random weights",
        )
        for key in (
            "share_of_the_grid_with_xi_below_0_1_non_linear",
            "low_xi_region_non_linear",
            "low_xi_share_post_hoc_minus_non_linear",
            "low_xi_share_linearised_minus_non_linear",
            "low_xi_region_post_hoc_minus_non_linear",
            "low_xi_region_linearised_minus_non_linear",
        )
    ),
    (
        "task_arithmetic2023",
        "table 6.2",
        ".*_control_accuracy_linearised_minus_non_linear",
        "table 6.2: small_vit_target_accuracy_linearised_minus_non_linear",
        "as much as on targets",
    ),
)


@functools.cache
def standings() -> tuple[Standing, ...]:
    return tuple(each for each in verdicts.standings() if each.claim.kind != "check")


def named(row: tuple[Any, ...], standing: Standing) -> bool:
    """Whether a row of a table is about a claim."""
    parts = (standing.figure.paper, standing.figure.number, standing.claim.statistic)
    return all(re.fullmatch(pattern, part) for pattern, part in zip(row, parts, strict=False))


def usual(claim: Claim) -> float | None:
    """What a null model gives, by the key of the number: networks at chance, or perfect ones if the claim says that they fail."""
    for words, value in USUAL:
        if re.search(words, claim.statistic):
            return value
    if "accuracy" in claim.statistic:
        return 100.0 if claim.comparator == "at most" else claim.trained[0].chance if claim.trained else 50.0
    return None


def nulls(standing: Standing) -> list[float]:
    """The numbers of its null models: all rows of :data:`LISTED` about it, or else what the key says. Empty: unknown."""
    listed = [row for row in LISTED if named(row, standing)]
    found = [measured(row[0], row[3]) if isinstance(row[3], str) else float(row[3]) for row in listed]
    known = usual(standing.claim)
    return found or ([] if known is None else [known])


@functools.cache
def measured(paper: str, where: str) -> float:
    """A committed number of a null model, of the run of the greatest effort that has it; where is "figure: key"."""
    number, key = where.split(": ")
    (figure,) = [each for each in papers.find(paper).figures if each.number == number]
    runs = sorted(verdicts.committed(figure).values(), key=lambda run: effort_rank(run.effort))
    return float([run.statistics[key].value for run in runs if key in run.statistics][-1])


def holds(claim: Claim, value: float) -> bool:
    """Whether a claim holds for a number with an interval, however narrow."""
    width = 1e-6 * max(1.0, abs(value))
    return claim.verdict(Estimate(value, width / 2, value - width, value + width), "paper") == "reproduced"


@pytest.mark.parametrize("paper", sorted({each.figure.paper for each in standings()}))
def test_every_bound_rejects_a_null_model(paper: str) -> None:
    about = [each for each in standings() if each.figure.paper == paper and not any(named(row, each) for row in EXACT)]
    unknown = {f"{each.figure.number}: {each.claim.statistic}" for each in about if not nulls(each)}
    assert not unknown, "list their nulls"
    met = {
        f"{each.figure.number}: {each.claim.statement}"
        for each in about
        if any(holds(each.claim, number) for number in nulls(each))
    }
    assert not met, "withdraw these claims: a null model passes"


def test_tables_have_no_row_too_many() -> None:
    assert not [row for row in (*EXACT, *LISTED) if not any(named(row, each) for each in standings())]


def test_claims_that_a_network_fails_ask_whether_it_trained() -> None:
    failing = [
        each.claim
        for each in standings()
        if "accuracy" in each.claim.statistic and usual(each.claim) == 100.0 and nulls(each) == [100.0]
    ]
    assert failing
    assert not [claim.statement for claim in failing if not claim.trained]


def test_a_bound_at_the_null_rejects_it_and_one_beyond_does_not() -> None:
    for bound, held in ((0.0, False), (-1.0, True), (0.5, False)):
        claim = Claim("It leads.", "lenet_lead", "at least", None, bound)
        assert holds(claim, usual(claim) or 0.0) is held
    fails = Claim("It fails.", "lenet_lowest_accuracy", "at most", None, 60.0)
    assert usual(fails) == 100.0
    assert not holds(fails, 100.0)
