import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from io import BytesIO

import numpy as np
import pytest
from matplotlib.figure import Figure
from pictures_under_test import words_of
from PIL import Image

from biascope.results import draw
from biascope.results.axes import Axis, InputAxes
from biascope.results.estimate import Estimate

RANDOM = np.random.default_rng(0)
CURVE = (np.geomspace(1, 1e-3, 36), np.geomspace(0.1, 1e-4, 36), np.geomspace(0.5, 1e-2, 36))
COVARIANCE = np.cov(RANDOM.standard_normal((36, 200)))

SHARES = [Estimate(share, 0.01, max(0.0, share - 0.02), share + 0.02) for share in RANDOM.dirichlet(np.ones(40))]
STEPS, NAMES = [str(step + 1) for step in range(40)], [f"column {place}" for place in range(40)]

# Each primitive with the number of its axes, colour bars included.
PRIMITIVES: dict[str, tuple[Callable[[bool], Figure], int]] = {
    "spectrum": (lambda dark: draw.spectrum({"net": CURVE}, draws=200, size=36, dark=dark), 1),
    "spectra": (lambda dark: draw.spectrum({"a": CURVE, "b": CURVE}, draws=200, size=36, dark=dark), 1),
    "directions": (lambda dark: draw.directions(RANDOM.standard_normal((7, 1, 6, 6)), list("1234567"), dark=dark), 14),
    "grey images": (lambda dark: draw.directions(RANDOM.standard_normal((2, 6, 6)), ["1", "2"], dark=dark), 4),
    "colour images": (lambda dark: draw.directions(RANDOM.standard_normal((2, 3, 6, 6)), ["1", "2"], dark=dark), 4),
    "channels": (lambda dark: draw.directions(RANDOM.standard_normal((1, 5, 6, 6)), ["1"], dark=dark), 2),
    "signals": (lambda dark: draw.directions(RANDOM.standard_normal((2, 1, 12)), ["1", "2"], dark=dark), 4),
    "similarity": (lambda dark: draw.similarity(np.array([1, 5, 10]), np.array([0.9, 0.5, 0.4]), 36, dark=dark), 1),
    "matrix": (lambda dark: draw.matrix(COVARIANCE, InputAxes.of((), (1, 6, 6)), dark=dark), 6),
    "matrix of channels": (lambda dark: draw.matrix(COVARIANCE, InputAxes.of((), (4, 3, 3)), dark=dark), 6),
    "matrix of signals": (lambda dark: draw.matrix(COVARIANCE, InputAxes.of((Axis("time"),), (36,)), dark=dark), 4),
    "matrix of features": (lambda dark: draw.matrix(COVARIANCE, InputAxes.of((), (36,)), dark=dark), 3),
    "tokens by channels": (lambda dark: draw.planes(RANDOM.standard_normal((2, 4, 9)), ["1", "2"], "", dark=dark), 2),
    "shares of steps": (
        lambda dark: draw.shares(SHARES, np.full(40, 1 / 40), STEPS, along="steps", ordered=True, dark=dark),
        1,
    ),
    "shares of features": (
        lambda dark: draw.shares(SHARES, np.full(40, 1 / 40), NAMES, along="features", ordered=False, dark=dark),
        1,
    ),
    "overlap": (lambda dark: draw.overlap(np.eye(3), ["a", "b", "c"], dark=dark), 2),
    "along": (lambda dark: draw.along(np.arange(3.0), np.ones(3), ["0", "1", "2"], dark=dark), 1),
}


@pytest.mark.parametrize("name", PRIMITIVES)
def test_primitives_are_whole_figures_in_both_themes(name: str) -> None:
    make, panels = PRIMITIVES[name]
    light, dark = make(False), make(True)
    assert isinstance(light, Figure)
    assert len(light.axes) == panels
    assert light.get_label().endswith("."), "a figure carries a sentence on how to read it"
    assert light.patch.get_facecolor()[3] == 0, "the background is transparent"
    one, two = draw.svg(light), draw.svg(dark)
    assert one != two
    assert draw.PALETTE[False].ink in one
    assert draw.PALETTE[True].ink in two
    ElementTree.fromstring(one)


@pytest.mark.parametrize("name", ["spectrum", "spectra", "similarity", "along"])
def test_axes_are_labelled_in_words(name: str) -> None:
    axes = PRIMITIVES[name][0](False).axes[0]
    assert len(axes.get_xlabel()) > 4
    assert len(axes.get_ylabel()) > 4


def test_spectrum_names_its_lines_in_words() -> None:
    (legend,) = PRIMITIVES["spectrum"][0](False).legends
    words = [text.get_text() for text in legend.get_texts()]
    assert len(words) == 3
    assert any("isotropic" in text for text in words)
    assert any("one half" in text for text in words)
    (legend,) = PRIMITIVES["spectra"][0](False).legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]


def test_several_spectra_are_divided_by_their_mean() -> None:
    eigenvalues, errors, held_out = CURVE
    scaled = (1e6 * eigenvalues, 1e6 * errors, 1e6 * held_out)
    axes = draw.spectrum({"a": CURVE, "b": scaled}, draws=200, size=36).axes[0]
    first, second = (line.get_ydata() for line in axes.get_lines() if line.get_label() in "ab")
    np.testing.assert_allclose(first, second)
    assert np.asarray(first)[0] == pytest.approx(eigenvalues[0] / eigenvalues.mean())


def test_spectrum_of_few_directions_needs_the_trace() -> None:
    few = tuple(part[:5] for part in CURVE)
    without = draw.spectrum({"net": few}, draws=200, size=36)  # type: ignore[dict-item]
    given = draw.spectrum({"net": few}, draws=200, size=36, traces={"net": float(CURVE[0].sum())})  # type: ignore[dict-item]
    assert "isotropic" not in words_of(without)
    assert "isotropic" in words_of(given)


def test_spectrum_speaks_of_the_dashed_curve_where_there_is_one() -> None:
    eigenvalues, errors, held_out = CURVE
    without = draw.spectrum({"net": (eigenvalues, errors, np.nan * held_out)}, draws=200, size=36)
    assert "dashed" in str(draw.spectrum({"net": CURVE}, draws=200, size=36).get_label())
    assert "dashed" not in str(without.get_label())


def test_spectrum_says_where_the_draws_end() -> None:
    eigenvalues = np.where(np.arange(36) < 20, 1.0, 1e-18)
    figure = draw.spectrum({"net": (eigenvalues, 0.1 * eigenvalues, np.ones(36))}, draws=20, size=36)
    assert "draws end here" in words_of(figure)
    low, _ = figure.axes[0].get_ylim()
    assert low > 1e-3, "rounding errors of zero are not drawn"


def test_isotropic_reference_is_what_isotropic_draws_give() -> None:
    for draws, size in ((400, 100), (100, 400), (200, 200)):
        sample = np.random.default_rng(0).standard_normal((draws, size))
        measured = np.sort(np.linalg.svd(sample, compute_uv=False) ** 2 / draws)[::-1]
        expected = draw._isotropic_spectrum(draws, size)
        assert len(expected) == min(draws, size)
        np.testing.assert_allclose(expected, measured, rtol=0.08, atol=0.02)
        assert expected.sum() == pytest.approx(size, rel=0.02)


def test_unknown_numbers_are_left_out() -> None:
    unknown = np.full(36, np.nan)
    figure = draw.spectrum({"net": (CURVE[0], unknown, unknown)}, draws=3, size=36)
    assert "one half" not in words_of(figure)
    nothing = draw.similarity(np.array([1, 2]), np.array([np.nan, np.nan]), 36)
    assert "too few draws" in words_of(nothing)
    table = draw.overlap(np.array([[1.0, np.nan], [0.25, 1.0]]), ["a", "b"])
    assert "–" in words_of(table)
    assert "0.25" in words_of(table)
    curve = draw.along(np.array([1.0, 2.0]), np.array([np.nan, 0.1]), ["0", "1"])
    for drawn in (figure, nothing, table, curve):
        draw.svg(drawn)


def test_single_elements_can_be_drawn() -> None:
    one = np.ones(1)
    for figure in (
        draw.spectrum({"net": (one, one, one)}, draws=4, size=1),
        draw.spectrum({"net": (0 * one, 0 * one, 0 * one)}, draws=4, size=1),
        draw.directions(np.ones((1, 1, 1, 1)), ["1"]),
        draw.directions(np.zeros((1, 2, 2)), ["1"]),
        draw.directions(np.ones((1, 4)), ["1"]),
        draw.similarity(one, one, 1),
        draw.matrix(np.ones((1, 1)), InputAxes.of((), (1, 1, 1))),
        draw.matrix(np.eye(4), InputAxes.of((), (1, 2, 2))),
        draw.overlap(np.ones((1, 1)), ["a"]),
        draw.along(one, one, ["start"]),
    ):
        assert draw.svg(figure).startswith("<svg")


def test_direction_pictures_are_symmetric_about_zero_with_the_frequencies_centred() -> None:
    across = np.cos(2 * np.pi * np.arange(8) / 8)[None].repeat(8, 0)
    pixels, frequencies = (axes.get_images()[0] for axes in draw.directions(across[None], ["1"]).axes)
    assert pixels.get_clim() == (-1, 1)
    shown = np.asarray(frequencies.get_array())
    assert {tuple(place) for place in np.argwhere(shown > 0.5 * shown.max())} == {(4, 3), (4, 5)}


def test_large_matrices_are_averaged_over_blocks_and_say_so() -> None:
    small, large = (
        draw.matrix(np.eye(256), InputAxes.of((), (1, 16, 16))),
        draw.matrix(np.eye(400), InputAxes.of((), (1, 20, 20))),
    )
    assert "blocks" not in small.get_label()
    assert "blocks of 2 × 2" in large.get_label()
    assert np.asarray(large.axes[0].get_images()[0].get_array()).shape == (200, 200)


def test_block_averages_take_uneven_edges_as_they_are() -> None:
    image, block = draw._smaller(np.arange(15.0).reshape(3, 5), 3)
    assert block == 2
    np.testing.assert_allclose(image, [[3, 5, 6.5], [10.5, 12.5, 14]])


def test_mean_by_offset_finds_a_known_correlation() -> None:
    row, column = np.divmod(np.arange(30), 6)
    down, right = row[None] - row[:, None], column[None] - column[:, None]
    expected = {(0, 0): 1.0, (0, 1): 0.5, (1, 0): -0.25, (1, 1): 0.125}
    matrix = sum(value * ((abs(down) == a) & (abs(right) == b)) for (a, b), value in expected.items())
    found = draw._by_offset(np.asarray(matrix), 5, 6)
    assert found.shape == (9, 11)
    for (a, b), value in expected.items():
        assert found[4 + a, 5 + b] == found[4 - a, 5 - b] == value
    assert found[0, 0] == 0


def test_names_are_shown_as_they_stand() -> None:
    names = ["$x_1$ costs $", "<b>&</b>", "网络", "a name that is much too long for a picture"]
    figure = draw.overlap(np.eye(4), names)
    text = draw.svg(figure)
    assert "<b>" not in text
    assert "$x_1$ costs $" in text
    assert "网络" in text
    assert "…" in text
    draw.png(figure, 100)


def test_svg_is_reproducible_and_its_ids_are_its_own() -> None:
    make = PRIMITIVES["matrix"][0]
    assert draw.svg(make(False), "one") == draw.svg(make(False), "one")
    one, two = (
        {element.get("id") for element in ElementTree.fromstring(draw.svg(make(False), salt)).iter()} - {None}
        for salt in ("one", "two")
    )
    assert one
    assert not one & two


def test_png_has_the_width_asked_for() -> None:
    picture = Image.open(BytesIO(draw.png(PRIMITIVES["along"][0](False), 420)))
    assert picture.width == 420
    assert picture.getpixel((0, 0))[3] == 0  # type: ignore[index]


def test_drawing_leaves_no_trace_in_the_process() -> None:
    program = """
import json, sys
import biascope.results.draw as draw
from biascope.results.axes import InputAxes
early = "matplotlib" in sys.modules
import matplotlib, numpy as np
before = matplotlib.rcParams.copy()
one = np.ones(4)
draw.svg(draw.spectrum({"net": (one, one, one)}, draws=9, size=4, dark=True))
draw.svg(draw.directions(np.ones((2, 2, 2)), ["1", "2"]))
draw.png(draw.matrix(np.eye(4), InputAxes.of((), (2, 2))), 100)
late = "matplotlib.pyplot" in sys.modules
print(json.dumps({"early": early, "late": late, "same": before == matplotlib.rcParams.copy()}))
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout) == {"early": False, "late": False, "same": True}
