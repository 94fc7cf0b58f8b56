from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.figure import Figure
from pictures_under_test import assert_whole, words_of

from biascope.results import draw
from biascope.results.figures import (
    MARK,
    against_index_figure,
    completed,
    lattice,
    lines_figure,
    plane_figure,
    shared_limits,
)
from biascope.results.result import Plane
from biascope.tasks.bases import fourier

RADIUS = np.hypot(*np.meshgrid(np.arange(8) - 4, np.arange(8) - 4, indexing="ij"))
WHOLE = Plane(100 - 6 * RADIUS, "%", 50.0, 100.0)
GAPS = Plane(np.where(RADIUS > 4.5, np.nan, 10 * RADIUS), "iterations")
SPARSE = Plane(np.where((np.arange(8) % 2 == 0) & (np.arange(8)[:, None] % 2 == 0), RADIUS, np.nan), "%")
INDEX = np.arange(0, 64, 8)
CURVE = (INDEX, np.linspace(99, 51, 8), np.full(8, 2.0))
SPECTRUM = np.geomspace(5, 1e-3, 64)
PAIRS = {"a": (INDEX, np.linspace(1, 2, 8)), "b": (INDEX, np.linspace(2, 1, 8))}

# Each picture with the number of its axes, colour bars included.
PICTURES: dict[str, tuple[Callable[[bool], Figure], int]] = {
    "plane": (lambda dark: plane_figure({"accuracy": WHOLE}, dark=dark), 2),
    "two units": (lambda dark: plane_figure({"accuracy": WHOLE, "speed": GAPS}, dark=dark), 4),
    "five networks": (lambda dark: plane_figure(dict.fromkeys("abcde", WHOLE), dark=dark), 6),
    "signals": (lambda dark: plane_figure({"accuracy": Plane(np.ones((1, 9)), "%")}, dark=dark), 2),
    "index": (lambda dark: against_index_figure({"net": CURVE}, dark=dark), 1),
    "index and spectrum": (lambda dark: against_index_figure({"net": CURVE}, {"net": SPECTRUM}, dark=dark), 2),
    "lines": (lambda dark: lines_figure(PAIRS, x="samples", y="loss", log_x=True, log_y=True, dark=dark), 1),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_whole_figures_in_both_themes(name: str) -> None:
    assert_whole(*PICTURES[name])


def test_a_value_belongs_to_a_frequency_and_to_its_conjugate() -> None:
    labels = [("Re", 1, 2), ("Re", 0, 0), ("Im", 3, 0), ("Re", 4, 0)]
    plane = completed(labels, np.array([1.0, 2.0, 3.0, 4.0]), (8, 6))
    known = {(int(row) - 4, int(column) - 3): plane[row, column] for row, column in np.argwhere(np.isfinite(plane))}
    assert known == {(1, 2): 1, (-1, -2): 1, (0, 0): 2, (3, 0): 3, (-3, 0): 3, (-4, 0): 4}


@pytest.mark.parametrize("shape", [(8, 6), (5, 7), (1, 4)])
def test_each_half_of_the_fourier_basis_fills_the_plane(shape: tuple[int, int]) -> None:
    labels = [label for label in fourier(shape).labels if label[0] == "Re"]
    power = np.fft.fftshift(np.abs(np.fft.fft2(np.random.default_rng(0).standard_normal(shape))))  # symmetric
    values = [power[(label[1] + shape[0] // 2) % shape[0], (label[2] + shape[1] // 2) % shape[1]] for label in labels]  # type: ignore[operator]
    np.testing.assert_allclose(completed(labels, np.array(values), shape), power)
    sines = [label for label in fourier(shape).labels if label[0] == "Im"]
    gaps = np.isnan(completed(sines, np.ones(len(sines)), shape)).sum()
    assert gaps == np.prod([2 - length % 2 for length in shape]), "the self-conjugate frequencies have no sine"


def test_cosine_and_sine_are_averaged_and_the_unknown_is_left_out() -> None:
    labels = [("Re", 0, 1), ("Im", 0, 1), ("Re", 0, 2), ("Im", 0, 2)]
    plane = completed(labels, np.array([1.0, 3.0, 5.0, np.nan]), (1, 5))
    np.testing.assert_array_equal(plane, [[5, 2, np.nan, 2, 5]])
    channels = [(0, "Re", 0, 1), (1, "Re", 0, 1)]
    assert completed(channels, np.array([1.0, 2.0]), (1, 5))[0, 1] == 1.5
    with pytest.raises(ValueError, match="as many as labels"):
        completed(labels, np.ones(3), (1, 5))


def test_a_lattice_is_found_through_gaps_and_a_few_points_are_none() -> None:
    known = np.zeros((12, 12), bool)
    known[::3, ::3] = True
    known[0, 3] = known[9, 9] = False
    rows, columns = lattice(known)
    assert rows.tolist() == columns.tolist() == [-6, -3, 0, 3]
    few = np.zeros((32, 32), bool)
    few[20, 20] = few[12, 12] = True
    assert [len(part) for part in lattice(few)] == [32, 32]
    assert [len(part) for part in lattice(np.zeros((4, 6), bool))] == [4, 6]


def test_planes_have_zero_in_the_centre_and_measure_in_cycles() -> None:
    axes = plane_figure({"accuracy": Plane(np.eye(8, 6), "%")}).axes[0]
    (image,) = axes.get_images()
    assert tuple(image.get_extent()) == (-3.5, 2.5, 3.5, -4.5)
    assert 0 in axes.get_xticks()
    assert "cycles across" in axes.get_xlabel()
    assert "cycles down" in axes.get_ylabel()
    np.testing.assert_array_equal(np.asarray(image.get_array()), np.eye(8, 6))


def test_cells_of_a_lattice_are_centred_on_their_frequency_and_leave_no_hole() -> None:
    figure = plane_figure({"accuracy": SPARSE})
    shown = np.asarray(figure.axes[0].get_images()[0].get_array())
    assert shown.shape == (16, 16), "two by two to a pixel"
    assert np.isfinite(shown).all()
    centre = 2 * 4 + 1  # the corner of four half pixels in the middle of frequency (0, 0)
    np.testing.assert_array_equal(shown[centre - 2 : centre + 2, centre - 2 : centre + 2], 0)
    assert (shown == 0).sum() == 16
    assert "Only every 2nd frequency" in figure.get_label()
    assert "Hatched" not in figure.get_label()
    mixed = plane_figure({"a": SPARSE, "b": WHOLE})
    assert "In some planes, only every 2nd" in mixed.get_label()


def test_gaps_are_hatched_and_named() -> None:
    figure = plane_figure({"speed": GAPS})
    assert "Hatched" in figure.get_label()
    (patch,) = figure.axes[0].patches
    assert patch.get_hatch()
    assert not plane_figure({"accuracy": WHOLE}).axes[0].patches
    nothing = plane_figure({"speed": Plane(np.full((4, 4), np.nan), "iterations")})
    assert "Hatched" in nothing.get_label()
    draw.svg(nothing)


def test_planes_of_one_unit_share_their_colours() -> None:
    figure = plane_figure({"a": WHOLE, "b": Plane(40 + RADIUS, "%"), "c": GAPS})
    limits = [axes.get_images()[0].get_clim() for axes in figure.axes if axes.get_images()]
    assert limits == [(40, 100), (40, 100), (0, float(np.nanmax(GAPS.values)))]
    assert shared_limits([Plane(np.array([[-1.0, 3.0]]), ""), Plane(np.array([[-5.0, -4.0]]), "")]) == {"": (-5, 5)}


def test_the_colour_bar_carries_the_unit_and_points_where_values_lie_beyond() -> None:
    beyond = Plane(np.array([[40.0, 90.0], [60.0, 70.0]]), "%", 50.0, 100.0)
    assert "%" in words_of(plane_figure({"accuracy": beyond}))
    assert "iterations" in words_of(plane_figure({"speed": GAPS}))
    bar = plane_figure({"accuracy": beyond}).axes[0].get_images()[0].colorbar
    assert bar is not None
    assert bar.extend == "min"


def test_pictures_of_planes_are_told_from_others() -> None:
    assert plane_figure({"accuracy": WHOLE}).get_gid() == MARK
    assert against_index_figure({"net": CURVE}).get_gid() != MARK
    with pytest.raises(ValueError, match="at least one plane"):
        plane_figure({})


def test_values_against_the_index_stand_over_the_normalised_spectrum() -> None:
    curves = {"net": CURVE, "other": (INDEX, np.ones(8), None)}
    figure = against_index_figure(curves, {"net": SPECTRUM, "third": SPECTRUM}, unit="iterations")
    above, below = figure.axes
    assert above.get_ylabel() == "iterations"
    assert above.get_shared_x_axes().joined(above, below)
    assert below.get_yscale() == "log"
    measured, spectrum = above.get_lines()[0], below.get_lines()[0]
    assert measured.get_color() == spectrum.get_color()
    np.testing.assert_allclose(np.asarray(spectrum.get_ydata()), SPECTRUM / SPECTRUM[0])
    np.testing.assert_array_equal(np.asarray(spectrum.get_xdata()), np.arange(64))
    assert len(above.collections) == 1, "one band: the other spread is unknown"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["net", "other", "third"]
    assert "95 %" in figure.get_label()
    assert not against_index_figure({"net": CURVE}, {"net": SPECTRUM}).legends


@pytest.mark.parametrize("count", [3, 9])
def test_every_curve_has_a_colour_of_its_own(count: int) -> None:
    figure = lines_figure({str(place): (INDEX, INDEX + place) for place in range(count)}, x="samples", y="loss")
    assert len({tuple(np.ravel(line.get_color()).tolist()) for line in figure.axes[0].get_lines()}) == count


def test_bands_are_intervals_or_standard_errors() -> None:
    ends = (np.zeros(8), np.full(8, 3.0))
    figure = lines_figure(PAIRS, x="samples", y="loss", bands={"a": np.full(8, 0.5), "b": ends})
    errors, given = (band.get_datalim(band.axes.transData) for band in figure.axes[0].collections)  # type: ignore[union-attr]
    assert (errors.y0, errors.y1) == pytest.approx((1 - 0.98, 2 + 0.98))
    assert (given.y0, given.y1) == (0, 3)
    wide = lines_figure(PAIRS, x="samples", y="loss", log_y=True, bands={"a": np.full(8, 9.0)})
    assert wide.axes[0].collections[0].get_datalim(wide.axes[0].transData).y0 > 0, "a logarithm has no zero"
    assert "95 %" not in lines_figure(PAIRS, x="samples", y="loss").get_label()


def test_names_and_units_are_shown_as_they_stand() -> None:
    plane = Plane(np.eye(4), "$ <b>")
    for figure in (
        plane_figure({"$x$ & <i>": plane}),
        plane_figure({"$x$ & <i>": plane, "y": plane}),
        against_index_figure({"$x$ & <i>": CURVE, "y": CURVE}, {"y": SPECTRUM}, unit="$ <b>"),
        lines_figure({"$x$ & <i>": PAIRS["a"], "y": PAIRS["b"]}, x="$ <b>", y="$ <b>"),
    ):
        text = draw.svg(figure)
        assert "<b>" not in text
        assert "<i>" not in text
        assert "$x$ &amp; &lt;i&gt;" in text
        assert "$ &lt;b&gt;" in text
