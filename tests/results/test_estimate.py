"""Estimates: intervals that cover as often as they say, and a jackknife that takes the bias away."""

import itertools
import math

import numpy as np
import pytest

from biascope.results.estimate import (
    Estimate,
    Number,
    bootstrapped,
    freedom_of,
    jackknife,
    over,
    over_ratios,
    paired_error,
    proportion,
    spearman,
    wide_enough_for_ranks,
)


def test_an_exact_number_has_no_spread():
    exact = Estimate.exact(2.0)
    assert (exact.value, exact.standard_error, exact.low, exact.high, exact.confidence) == (2.0, 0.0, 2.0, 2.0, 1.0)
    assert repr(exact) == "2"


def test_the_interval_is_student_t():
    estimate = Estimate.from_error(10.0, 2.0, samples=10)
    reach = 2.0 * 2.2621571627  # the 97.5 % point of Student's t with 9 degrees of freedom
    assert estimate.low == pytest.approx(10.0 - reach, rel=1e-9)
    assert estimate.high == pytest.approx(10.0 + reach, rel=1e-9)
    wider = Estimate.from_error(10.0, 2.0, samples=10, confidence=0.99)
    assert wider.high == pytest.approx(10.0 + 2.0 * 3.2498355416, rel=1e-9)
    assert wider.confidence == 0.99


@pytest.mark.parametrize(("error", "samples"), [(1.0, 1), (math.nan, 10), (math.inf, 10)])
def test_without_a_known_error_the_spread_is_unknown(error, samples):
    estimate = Estimate.from_error(3.0, error, samples)
    assert estimate.value == 3.0
    assert math.isnan(estimate.standard_error)
    assert not estimate.contains(3.0)
    assert repr(estimate) == "3 (spread unknown)"


def test_the_interval_of_a_mean_covers_it_as_often_as_it_says():
    rng = np.random.default_rng(0)
    trials, samples = 2000, 5
    data = rng.normal(1.0, 3.0, (trials, samples))
    covered = [
        Estimate.from_error(row.mean(), row.std(ddof=1) / math.sqrt(samples), samples).contains(1.0) for row in data
    ]
    assert abs(np.mean(covered) - 0.95) < 5 * math.sqrt(0.95 * 0.05 / trials)


def test_contains_includes_the_ends():
    estimate = Estimate(1.0, 0.5, 0.0, 2.0)
    assert estimate.contains(0.0)
    assert estimate.contains(2.0)
    assert not estimate.contains(2.0001)
    assert not estimate.contains(-0.0001)


def test_a_linear_map_moves_value_error_and_interval():
    mapped = Estimate(10.0, 1.0, 8.0, 13.0, 0.9).map_linear(-2.0, 5.0)
    assert mapped == Estimate(-15.0, 2.0, -21.0, -11.0, 0.9)


def test_the_numbers_go_to_a_dictionary_and_back():
    estimate = Estimate(10.0, 1.0, 8.0, 13.0, 0.9)
    assert Estimate(**estimate.as_dict()) == estimate


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (40.0, 1.0, "40 ± 1.0 (95 % CI 38.0 to 42.0)"),
        (0.001234, 0.00002, "0.00123 ± 0.000020 (95 % CI 0.001194 to 0.001274)"),
        (12345.6, 120.0, "12346 ± 120 (95 % CI 12106 to 12586)"),
        (1.25e-10, 2e-12, "1.250e-10 ± 2.000e-12 (95 % CI 1.210e-10 to 1.290e-10)"),
        (1.0, 0.0, "1.00 ± 0.000 (95 % CI 1.000 to 1.000)"),
    ],
)
def test_as_many_digits_are_shown_as_the_error_allows(value, error, shown):
    assert repr(Estimate(value, error, value - 2 * error, value + 2 * error)) == shown


def test_the_jackknife_of_a_mean_is_the_textbook_error():
    data = np.random.default_rng(1).normal(size=12)
    left_out = [np.delete(data, index).mean() for index in range(12)]
    estimate = jackknife(data.mean(), left_out)
    assert estimate.value == pytest.approx(data.mean(), abs=1e-12)
    assert estimate.standard_error == pytest.approx(data.std(ddof=1) / math.sqrt(12), rel=1e-9)
    assert estimate.low == pytest.approx(estimate.value - 2.2009851601 * estimate.standard_error, rel=1e-8)  # t, 11


def test_the_jackknife_takes_the_bias_of_a_squared_mean_away():
    data = np.random.default_rng(2).normal(1.0, 4.0, size=10)
    left_out = [np.delete(data, index).mean() ** 2 for index in range(10)]
    unbiased = data.mean() ** 2 - data.var(ddof=1) / 10  # E x̄² = μ² + σ²/n
    assert jackknife(data.mean() ** 2, left_out).value == pytest.approx(unbiased, rel=1e-9)
    assert abs(unbiased - data.mean() ** 2) > 0.1  # there was a bias to take away


@pytest.mark.parametrize("groups", [0, 1, 2])
def test_two_groups_are_too_few_for_a_jackknife(groups):
    estimate = jackknife(5.0, [4.0] * groups)
    assert estimate.value == 5.0
    assert math.isnan(estimate.standard_error)


def test_the_error_falls_with_the_root_of_the_sample():
    rng = np.random.default_rng(3)

    def error(groups: int) -> float:
        errors = []
        for _ in range(200):
            data = rng.normal(size=groups)
            errors.append(jackknife(data.mean(), (data.sum() - data) / (groups - 1)).standard_error)
        return float(np.mean(errors))

    sizes = [8, 32, 128]
    slope = np.polyfit(np.log(sizes), np.log([error(size) for size in sizes]), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.03)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_proportion_is_a_share_inside_its_interval(share):
    found = proportion(share, 100)
    assert 0 <= found.low <= share == found.value <= found.high <= 1
    assert 0.03 < found.high - found.low < 0.2


def test_wilsons_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(5)
    hits = sum(proportion(rng.binomial(60, 0.07) / 60, 60).contains(0.07) for _ in range(1000))
    assert 930 <= hits <= 990


def test_an_interval_of_draws_is_theirs_and_holds_the_number():
    found = Estimate.from_draws(0.5, np.linspace(0, 1, 1001))
    assert (found.low, found.high) == pytest.approx((0.025, 0.975))
    assert Estimate.from_draws(2.0, np.linspace(0, 1, 1001)).high == 2.0
    assert Estimate.from_draws(1.0, np.ones(8)) == Estimate(1.0, 0.0, 1.0, 1.0)


def test_the_difference_of_independent_numbers_covers_as_often_as_it_says():
    rng = np.random.default_rng(6)
    errors = 0.3, 0.4
    pairs = rng.normal((5.0, 3.0), errors, size=(1000, 2))
    hits = sum(Estimate(one, errors[0]).minus(Estimate(two, errors[1])).contains(2.0) for one, two in pairs)
    assert 930 <= hits <= 970


def test_a_share_is_printed_in_percent_and_stays_a_share():
    number = Estimate(0.25, 0.01, 0.23, 0.27).named("accuracy", "share")
    assert repr(number) == "25 ± 1.0 % (95 % CI 23.0 to 27.0)"
    assert number.value == 0.25
    assert number.printed[0].high == pytest.approx(27.0)


@pytest.mark.parametrize("number", [Estimate(math.inf, 0.1).named("ratio"), Estimate(1.0).named("PSNR", "dB")])
def test_a_number_comes_back_from_json(number):
    import json

    from biascope.results.store import plain

    again = Number.from_dict(json.loads(json.dumps(plain(number.as_dict()))))
    assert repr(again) == repr(number)
    assert (again.label, again.unit) == (number.label, number.unit)


@pytest.mark.parametrize("count", [4, 5, 6, 7])
def test_few_ranks_without_relation_seldom_seem_related(count):
    order = np.arange(float(count))
    values = [spearman(order, np.array(each, float)) for each in itertools.permutations(range(count))]
    intervals = [wide_enough_for_ranks(Estimate(value, 0.0, value, value), count) for value in values]
    assert sum(not each.contains(0.0) for each in intervals) <= 0.05 * len(values)
    perfect = next(each for each in intervals if each.value > 1 - 1e-12)
    assert perfect.contains(0.0) == (count == 4)  # 2/4! is more than 5 %, 2/5! less


def test_pairs_in_perfect_order_have_an_interval():
    falling = bootstrapped(spearman, np.arange(10.0)[::-1], np.arange(10.0))
    assert falling.value == pytest.approx(-1)
    assert -1 < falling.high < -0.9
    assert falling.standard_error > 0
    assert math.isnan(bootstrapped(spearman, np.arange(3.0), np.arange(3.0)).low)


def test_many_pairs_keep_the_resampled_interval():
    first = np.random.default_rng(0).normal(size=400)
    second = first + np.random.default_rng(1).normal(size=400)
    found = bootstrapped(spearman, first, second)
    assert 0.08 < found.high - found.low < 0.16


def test_the_paired_error_is_that_of_the_difference_alone() -> None:
    generator = np.random.default_rng(0)
    common = generator.normal(60, 20, (1, 50))  # blocks that are easy or hard for all models
    network, line = (common + shift + generator.normal(0, 1, (400, 50)) for shift in (3.0, 0.0))
    assert paired_error(network - line) == pytest.approx((2 / 400 / 50) ** 0.5, rel=0.3)


def mean_of_positive(values: np.ndarray) -> Estimate:
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return Estimate.of_positive(float(values.mean()), error, freedom_of(values))


@pytest.mark.parametrize(("spread", "least"), [(0.1, 0.93), (0.5, 0.93), (1.0, 0.92)])
def test_the_mean_of_a_law_with_a_long_tail_is_covered_where_students_interval_misses(
    spread: float, least: float
) -> None:
    rng = np.random.default_rng(7)
    data = np.exp(spread * rng.normal(size=(1500, 32)) - spread**2 / 2)  # of mean 1
    found = [mean_of_positive(row) for row in data]
    students = [over(row) for row in data]
    covered = np.mean([each.contains(1.0) for each in found])
    assert least <= covered <= 0.98
    assert covered >= np.mean([each.contains(1.0) for each in students])
    if spread == 1.0:
        assert np.mean([each.contains(1.0) for each in students]) < 0.89
    assert all(0 <= each.low <= each.value <= each.high for each in found)


@pytest.mark.parametrize("scale", [1e-60, 1e-3, 1.0, 1e40])
def test_the_interval_of_a_positive_number_has_its_scale(scale: float) -> None:
    values = np.array([1.0, 2.0, 3.5, 2.5, 1.5, 4.0])
    one, two = mean_of_positive(values), mean_of_positive(scale * values)
    assert (two.low, two.value, two.high) == pytest.approx((scale * one.low, scale * one.value, scale * one.high))
    assert freedom_of(scale * values) == pytest.approx(freedom_of(values))


def test_the_interval_of_a_positive_number_is_students_where_the_error_is_small_and_open_where_it_is_large() -> None:
    small, student = Estimate.of_positive(100.0, 0.1, 31), Estimate.from_error(100.0, 0.1, 32)
    assert (small.low, small.high) == pytest.approx((student.low, student.high), rel=1e-5)
    large = Estimate.of_positive(1.0, 0.6, 31)
    assert (large.low, large.high) == (0.0, math.inf)
    assert "or more" in repr(large)
    assert Estimate.of_positive(-0.1, 0.2, 31).contains(0.2)  # noise alone: as an unbiased estimate may be
    assert math.isnan(Estimate.of_positive(1.0, math.nan, 31).low)


def test_a_single_large_value_leaves_few_degrees_of_freedom_and_a_normal_sample_nearly_all() -> None:
    rng = np.random.default_rng(8)
    normal = np.median([freedom_of(rng.normal(size=32)) for _ in range(200)])
    assert 25 < normal <= 31
    assert freedom_of(np.array([0.0] * 31 + [1.0])) < 3
    assert freedom_of(np.ones(5)) == 4
    assert freedom_of(np.ones(1)) == 0


def test_a_positive_jackknife_covers_a_ratio_and_never_leaves_what_is_possible() -> None:
    rng = np.random.default_rng(9)
    hits = 0
    for _ in range(600):
        pairs = np.exp(0.7 * rng.normal(size=(16, 2)))
        total = pairs.sum(0)
        left_out = [(total - row)[0] / (total - row)[1] for row in pairs]
        found = jackknife(total[0] / total[1], left_out, positive=True)
        assert 0 <= found.low <= found.value <= found.high
        hits += found.contains(1.0)
    assert 0.93 <= hits / 600 <= 0.99
    overshot = jackknife(1.0, [1.5, 1.4, 1.6], positive=True)  # the correction would give 0 and less
    assert (overshot.value, overshot.contains(1.0)) == (1.0, True)


def test_one_repeat_has_an_unknown_spread_whatever_its_samples_say():
    for found in (over([60.0]), over([60.0], samples=1.0, shared=1.0, within=(0.0, 100.0))):
        assert found.value == 60.0
        assert all(map(math.isnan, (found.low, found.high, found.standard_error)))


@pytest.mark.parametrize("count", [2, 3, 10, 72])
def test_shares_that_agree_are_k_of_k_by_clopper_and_pearson(count):
    from scipy.stats import beta

    found, none = (over([share] * count, within=(0.0, 1.0)) for share in (1.0, 0.0))
    assert (found.low, found.high) == pytest.approx((beta.ppf(0.025, count, 1), 1.0))
    assert (none.low, none.high) == pytest.approx((0.0, beta.ppf(0.975, 1, count)))
    percent = over([100.0] * count, within=(0.0, 100.0))
    assert percent.low == pytest.approx(100 * found.low)
    assert math.isnan(found.standard_error)


def test_the_interval_of_shares_that_agree_covers_the_mean_of_all():
    # All but a few of all networks reach 0.5; the rest fails, or does not. k that agree are no news of the rest.
    rng = np.random.default_rng(0)
    for rare, other in ((0.02, 0.0), (0.2, 1.0), (0.3, 0.0)):
        draws = np.where(rng.random((2000, 5)) < rare, other, 0.5)
        agreeing = [row for row in draws if np.ptp(row) == 0]
        mean = 0.5 + rare * (other - 0.5)
        missed = sum(not over(row, within=(0.0, 1.0)).contains(mean) for row in agreeing)
        assert missed <= 0.05 * len(draws)


def test_repeats_that_agree_have_an_unknown_spread_if_nothing_bounds_the_others():
    for found in (over([0.1, 0.1, 0.1]), over([3.0, 3.0], shared=0.5), over([3.0, 3.0], within=(0.0, math.inf))):
        assert math.isnan(found.low)  # the mean of three 0.1 is not 0.1 to the last digit
        assert math.isnan(found.standard_error)
    assert math.isnan(over_ratios([3.0, 3.0]).low)
    assert math.isnan(over_ratios([3.0]).high)


def test_the_error_of_samples_is_joined_and_that_of_own_samples_is_the_least():
    values = [1.0, 2.0, 3.0]
    alone, joined = over(values), over(values, shared=1.0)
    assert alone.standard_error == pytest.approx(1 / math.sqrt(3))
    assert joined.standard_error == pytest.approx(math.hypot(1 / math.sqrt(3), 1.0))
    assert joined.high - joined.value == pytest.approx(math.hypot(alone.high - alone.value, 1.959964), rel=1e-6)
    skewed = over(values, shared=Estimate(5.0, 1.0, 2.0, 5.5))
    assert skewed.value - skewed.low == pytest.approx(math.hypot(alone.value - alone.low, 3.0))
    assert skewed.high - skewed.value == pytest.approx(math.hypot(alone.high - alone.value, 0.5))
    assert over([60.0, 60.001], samples=1.0).standard_error == pytest.approx(1 / math.sqrt(2))
    assert over([99.9, 100.0, 100.0], shared=0.5, within=(0.0, 100.0)).high == 100.0


def test_the_least_of_a_sample_is_open_below_and_the_largest_above():
    generator = np.random.default_rng(0)
    everyone = generator.uniform(0, 100, 500)
    for _ in range(20):
        sample = generator.choice(everyone, 8, replace=False)
        least, largest, reach = (over(sample, of=of, within=(0.0, 100.0)) for of in ("least", "largest", "range"))
        assert (least.value, largest.value) == (sample.min(), sample.max())
        assert least.contains(everyone.min())
        assert largest.contains(everyone.max())
        assert reach.contains(np.ptp(everyone))
        assert (least.low, largest.high, reach.high) == (-math.inf, math.inf, math.inf)
    agreeing = over([100.0] * 8, of="least", shared=Estimate(100.0, 0.005, 99.96, 100.0), within=(0.0, 100.0))
    assert (agreeing.low, agreeing.high) == (-math.inf, 100.0), "what was not run may fail"
    with pytest.raises(ValueError, match="of must be one of mean, least, largest, range, got 'median'"):
        over([1.0, 2.0], of="median")


def test_the_least_of_everything_is_exact_but_for_the_error_of_samples():
    assert over([3.0, 1.0, 2.0], of="least", everything=True) == Estimate.exact(1.0)
    found = over([60.0, 50.0], of="least", shared=0.5, within=(0.0, 100.0), everything=True)
    assert (found.low, found.high) == pytest.approx((50 - 0.98, 50 + 0.98), abs=1e-3)


def test_resamples_that_agree_say_nothing_of_other_samples():
    ones = np.ones(36)
    assert math.isnan(bootstrapped(np.mean, ones).low)
    assert bootstrapped(np.mean, 100 * ones, within=(0.0, 100.0)).low == pytest.approx(100 * 0.025 ** (1 / 36))
    assert math.isnan(bootstrapped(np.std, ones).standard_error)


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (over([1.0] * 3, within=(0.0, 1.0)), "1 (95 % CI 0.2924 to 1)"),
        (over([100.0] * 3, within=(0.0, 100.0)).named("accuracy", "%"), "100 % (95 % CI 29.24 to 100)"),
        (Estimate(51.0, 0.5, 50.0, 52.0).open_below(), "51.0 ± 0.51 (95 % CI 52.00 or less)"),
        (Estimate(51.0, 0.5, 50.0, 52.0).open_above(), "51.0 ± 0.51 (95 % CI 50.00 or more)"),
        (Estimate(51.0).open_above(), "51 (spread unknown)"),
    ],
)
def test_an_interval_without_a_standard_error_or_an_end_is_read_as_that(found, shown):
    assert repr(found) == shown
    assert repr(type(found).from_dict(found.as_dict())) == shown
