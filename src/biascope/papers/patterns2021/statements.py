"""What the paper on pattern statistics says that can be tested: the denominator of what was reproduced.

The list was written from the printed text alone. PSI is the bound of detection ratios by pattern statistics, with the constants b and
c; c* is the smallest c of a trained network at b = 2.
"""

from __future__ import annotations

from biascope.results.claim import Dropped, Statement

STATEMENTS = (
    Statement(
        "one_channel_pair_is_enough",
        "3",
        "A network with one channel for each class (k = 1) classifies every point of the distribution.",
    ),
    Statement(
        "small_ratios_imply_correct_points",
        "3, equation 3",
        "If the detection ratios of a class sum to less than 1, every point of the class is classified correctly.",
    ),
    Statement(
        "upper_bound_of_vc_dimension",
        "5, appendix A",
        "The VC dimension of the network on these inputs is at most d choose n.",
    ),
    Statement(
        "lower_bound_of_vc_dimension",
        "5, theorem 5.1",
        "With d = 2n, a set of 2^(n-1) points can be shattered: for every labelling a network fits all points.",
    ),
    Statement(
        "shattering_networks_violate_psi",
        "5",
        "The networks that shatter this set do not satisfy PSI: they ignore both patterns that define the classes.",
    ),
    Statement(
        "overfitting_networks_exist",
        "E.2, remark E.1",
        "On the second distribution there are networks with zero training error and arbitrarily high test error.",
    ),
    Statement(
        "support_is_the_shattered_set",
        "E.2, remark E.1",
        "The support of the second distribution is the set of points that theorem 5.1 shatters.",
        ruled_out="Both sets are counted exactly (remark E.1).",
    ),
    Statement(
        "sgd_avoids_overfitting_networks",
        "E.2, remark E.1",
        "SGD does not converge to these networks on the second distribution: it satisfies PSI and generalises.",
    ),
    Statement(
        "psi_implies_zero_test_error",
        "6, theorem 6.1",
        "If spurious patterns are unbiased, PSI holds and m > 300 b²c²|P|² log|P|, then the test error is zero with high "
        "probability.",
    ),
    Statement(
        "hoeffding_step",
        "C, equation 8",
        "With that many samples, 4b√(log d/m) is at most 1/(6cd). So the statistics of all spurious patterns are small with high "
        "probability, and that of the class pattern is large.",
        ruled_out="Equation (8) is arithmetic at the printed number of samples (theorem 6.1).",
    ),
    Statement(
        "c_star_below_one",
        "7, figure 1a",
        "In every one of more than 1,000 experiments c* is below 1, so that b²c² is below 10.",
    ),
    Statement(
        "c_star_hardly_depends_on_width",
        "7, figure 1b",
        "c* correlates at most slightly with the number of channels.",
        untested="The paper does not say how slight a correlation counts. Our bounds are kept apart.",
    ),
    Statement(
        "c_star_is_low_for_wide_networks",
        "7, figure 1b",
        "c* is low for wide networks.",
    ),
    Statement(
        "c_star_hardly_depends_on_samples",
        "D, figure 3",
        "c* correlates at most slightly with the number of training samples.",
        untested="The paper does not say how slight a correlation counts. Our bounds are kept apart.",
    ),
    Statement(
        "c_star_is_low_for_many_samples",
        "D, figure 3",
        "c* is low for large training sets.",
    ),
    Statement(
        "ratios_follow_statistics",
        "7, figure 1c",
        "Detection ratios and pattern statistics correlate positively when one spurious pattern is biased.",
    ),
    Statement(
        "ratio_near_one_for_opposite_pattern",
        "4",
        "The detection ratio of a spurious pattern is about 1 if it appears in the other class alone.",
    ),
    Statement(
        "balanced_patterns_have_low_ratios",
        "4",
        "The detection ratio of a spurious pattern is low if it appears equally often in both classes.",
    ),
    Statement(
        "largest_setting_has_zero_test_error",
        "D",
        "At k = 10,000 and m = 40,000, for all (n, d), SGD reaches zero test error.",
    ),
    Statement(
        "largest_setting_has_small_ratios",
        "D, equation 9",
        "At k = 10,000 and m = 40,000, for all (n, d), all detection ratios are below 1/d.",
    ),
    Statement(
        "two_points_psi",
        "7, theorem 7.1",
        "For two training points with the same spurious patterns, gradient descent satisfies PSI with b = 1 and c = √18 c_η.",
        undecided="The theorem asks for a width of poly(log d, 1/ε), with ε small enough for c_η, and prints no width. Runs that miss "
        "the bound have c_η = 0.001 and k up to 100,000, half of them below k n c_η² = 1. Above it, 99.9 % of runs meet the bound.",
    ),
    Statement(
        "two_points_converge",
        "7, theorem 7.1, lemma F.6",
        "For two training points, gradient descent reaches a global minimum after a number of steps of order 1/c_η.",
    ),
    Statement(
        "detector_counts",
        "F.2, lemmas F.1 to F.3",
        "At initialisation, a share 1 - 2^-n of channels detects some pattern, and each pattern is detected by 1/n of these. Of "
        "(1/2 - 2^(-n-1))k channels that switch, each spurious pattern has the share 1/(n(n+1)).",
        ruled_out="The counts have a closed form, and simulated counts agree with it (theorem 7.1).",
    ),
    Statement(
        "detector_trajectories",
        "F.2, lemma F.5",
        "Until the loss is zero, detectors of the class pattern grow by η/2 per step, and detectors of spurious patterns "
        "stay within one step of their start.",
    ),
    Statement(
        "digits_need_one_channel_pair",
        "8, figure 2b",
        "A network with k = 1 classifies the coloured digits perfectly.",
    ),
    Statement(
        "filters_have_three_colours",
        "8, figures 2c and 5 to 7",
        "Learned filters are blue, red or green: each detects one type of pattern.",
    ),
    Statement(
        "green_filters_darken",
        "8, figures 2c and 5 to 7",
        "Filters of the spurious colour become darker as the training set grows.",
    ),
    Statement(
        "class_filters_stay_bright",
        "8, figures 2c and 5 to 7",
        "Filters of the two class colours stay bright as the training set grows, so that the difference to the spurious "
        "colour grows.",
    ),
    Statement(
        "digits_train_accuracy",
        "G",
        "On coloured digits, SGD fits the training set in every run.",
    ),
    Statement(
        "digits_test_accuracy",
        "8 and G",
        "Test accuracy on coloured digits is 88.09 ± 12.7 % for 6 samples, 99.84 ± 0.35 % for 20 and 100 ± 0 % for 1,000.",
    ),
)

DROPPED = (
    Dropped(
        "1b, 3",
        "c* is at most slightly correlated with k and with m: at most half of the variance of its ranks.",
        "2 reproduced",
        "The bound is ours, and the paper prints none. The claims stay, as ours.",
    ),
    Dropped(
        "1c",
        "c* of each training is below 1: the largest.",
        "not reproduced",
        "The paper says it of the experiments of figure 1a, where spurious patterns are unbiased. Figure 1c biases two of "
        "them, and half of its trainings do not converge.",
    ),
)
