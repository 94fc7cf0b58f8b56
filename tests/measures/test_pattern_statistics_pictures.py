"""Pictures of ratios, constants and filters."""

import numpy as np
import pytest

from biascope.measures.pattern_statistics.pictures import (
    constants_against_figure,
    constants_figure,
    ratios_figure,
)
from biascope.results import draw

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("dark", [False, True])
def test_all_dots_are_under_the_lowest_line_and_one_is_on_it(dark) -> None:
    dots = {"few": RANDOM.random((2, 30)), "many": RANDOM.random((2, 400))}
    figure = ratios_figure({name: tuple(pair) for name, pair in dots.items()}, slope=1.5, dark=dark)
    (ends, levels), every = figure.axes[0].lines[0].get_data(), np.concatenate(list(dots.values()), 1)
    below = np.interp(every[0], ends, levels) - every[1]
    assert below.min() == pytest.approx(0, abs=1e-12)
    assert [len(each.get_offsets()) for each in figure.axes[0].collections] == [30, 400]
    assert draw.png(figure, 400).startswith(b"\x89PNG")


def test_ratios_that_are_not_finite_are_counted() -> None:
    figure = ratios_figure({"a": (np.array([0.0, 0.1, 0.2]), np.array([0.5, np.inf, np.nan]))})
    assert "2 ratios that are not finite" in figure.get_label()
    assert len(figure.axes[0].collections[0].get_offsets()) == 1


def test_a_line_through_the_origin_is_the_lowest() -> None:
    figure = ratios_figure({"a": (np.array([0.5]), np.array([0.2]))})
    assert figure.axes[0].lines[0].get_ydata()[0] == 0


@pytest.mark.parametrize("dark", [False, True])
def test_every_run_is_in_the_histogram_zero_and_infinite_ones_too(dark) -> None:
    groups = {"a": np.array([0.0, 0.01, 0.2]), "b": np.array([1.5, np.inf, 0.1, 0.1])}
    figure = constants_figure(groups, dark=dark)
    counts = [patch.get_data().values for patch in figure.axes[0].patches[::2]]
    assert [each.sum() for each in counts] == [3, 4]
    assert counts[0][0] == 1  # zero, at the left edge
    assert counts[1][-1] == 1  # infinite, at the right
    assert "2 of 7 runs are at 1 or above" in figure.get_label()
    assert figure.axes[0].lines[0].get_xdata() == [1.0, 1.0]
    assert draw.png(figure, 400).startswith(b"\x89PNG")


def test_constants_that_are_all_zero_can_be_drawn() -> None:
    figure = constants_figure({"a": np.zeros(4)})
    assert figure.axes[0].patches[0].get_data().values[0] == 4
    assert "0 of 4" in figure.get_label()


@pytest.mark.parametrize("dark", [False, True])
def test_bands_are_a_standard_deviation_down_to_the_lowest_run(dark) -> None:
    values = np.array([[0.1, 0.001], [0.2, 0.001], [0.3, 1.0]])
    figure = constants_against_figure({"a": (np.array([10, 100]), values)}, x="width, k", dark=dark)
    low, high = (edge(figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]) for edge in (np.min, np.max))
    assert low == pytest.approx(0.001)
    assert high == pytest.approx(values[:, 1].mean() + values[:, 1].std(ddof=1))
    assert figure.axes[0].get_xlabel() == "width, k"
    assert draw.png(figure, 400).startswith(b"\x89PNG")


def test_an_infinite_constant_leaves_a_gap() -> None:
    figure = constants_against_figure({"a": (np.array([10, 100]), np.array([[0.1, np.inf], [0.2, 0.3]]))})
    assert np.isnan(figure.axes[0].lines[0].get_ydata()).tolist() == [False, True]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ratios_figure({}), "at least one finite ratio"),
        (lambda: ratios_figure({"a": (np.zeros(1), np.array([np.inf]))}), "at least one finite ratio"),
        (lambda: constants_figure({"a": np.array([])}), "at least one constant, and none below 0"),
        (lambda: constants_figure({"a": np.array([np.nan])}), "at least one constant, and none below 0"),
    ],
)
def test_errors_name_what_to_do(call, words) -> None:
    with pytest.raises(ValueError, match=words):
        call()
