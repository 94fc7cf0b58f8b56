from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from pictures_under_test import assert_whole

from biascope.measures.tangent_kernel.pictures import (
    ends,
    ends_figure,
    energy_figure,
    local_energy_figure,
    spectrum_figure,
    thumbnails,
)
from biascope.results import draw

SHARES = np.geomspace(0.6, 1e-4, 30) * np.array([[1.0], [1.1], [0.9]])  # three draws
ENERGY = np.cumsum(np.full((3, 30), 0.02) * np.array([[1.0], [1.2], [0.9]]), 1)
CLASSES = {str(kind): ENERGY * (0.5 + kind / 10) for kind in range(10)}
LOCAL = {"train": np.geomspace(0.2, 9, 200), "control": np.geomspace(0.05, 2, 100)}
FUNCTIONS = np.random.default_rng(0).standard_normal((9, 50))
COLOURED = thumbnails(np.random.default_rng(1).random((50, 3, 8, 8)), FUNCTIONS)
GREY = thumbnails(np.random.default_rng(1).random((50, 1, 28, 28)), FUNCTIONS[:1])

# Each picture with the number of its axes.
PICTURES: dict[str, tuple[Callable[[bool], Figure], int]] = {
    "energy": (lambda dark: energy_figure({"5 against the rest": ENERGY[:1]}, 1000, dark=dark), 1),
    "energy of classes": (lambda dark: energy_figure({"all": ENERGY}, 1000, parts=CLASSES, dark=dark), 1),
    "energy on one function": (lambda dark: energy_figure({"labels": ENERGY[:, :1]}, 4, dark=dark), 1),
    "spectrum": (lambda dark: spectrum_figure(SHARES, SHARES[:, ::-1], 1000, errors=(1e-9, 2e-7), dark=dark), 1),
    "spectrum of low rank": (lambda dark: spectrum_figure(SHARES * (SHARES > 1e-2), 0 * SHARES, 1000, dark=dark), 1),
    "ends": (lambda dark: ends_figure(COLOURED, SHARES[0], SHARES[1], np.ones((6, 8), int), (1,), dark=dark), 6),
    "grey ends": (lambda dark: ends_figure(GREY, SHARES[0], SHARES[1], np.ones((1, 8), int), dark=dark), 1),
    "local energy": (lambda dark: local_energy_figure(LOCAL, dark=dark), 1),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_whole_figures_in_both_themes(name: str) -> None:
    assert_whole(*PICTURES[name])


def test_the_ends_of_a_function_come_in_the_order_of_its_values() -> None:
    found = ends(FUNCTIONS)
    assert found.shape == (9, 8)
    values = np.take_along_axis(FUNCTIONS, found, 1)
    assert (np.diff(values, axis=1) > 0).all()
    assert (values[:, 0] == FUNCTIONS.min(1)).all()
    assert (values[:, -1] == FUNCTIONS.max(1)).all()
    assert ends(FUNCTIONS[:, :5]).shape == (9, 4), "few samples have shorter ends, which do not overlap"


def test_thumbnails_are_averaged_over_blocks_and_undo_a_standardisation() -> None:
    bright = np.arange(8.0)[:, None, None, None] * np.ones((1, 1, 70, 40))
    bright[:, :, 60:, :] = 0  # with 70 rows in blocks of three, the last block is one row
    small = thumbnails(bright, np.arange(8.0)[None])
    assert small.shape == (1, 8, 1, 24, 14)
    np.testing.assert_array_equal(small[0, :, 0, 0, 0], np.rint(np.arange(8) * 255 / 7))
    assert (small[..., 20:, :] == 0).all()
    colours = np.random.default_rng(2).integers(0, 256, (50, 3, 6, 6))
    colours[0], colours[1] = 0, 255
    standard = (colours - np.array([120, 110, 90])[:, None, None]) / np.array([60, 50, 40])[:, None, None]
    np.testing.assert_array_equal(thumbnails(standard, FUNCTIONS), colours[ends(FUNCTIONS[:6])])


@pytest.mark.parametrize("shape", [(50, 7), (50, 7, 7), (50, 2, 7, 7)])
def test_what_is_no_image_has_no_thumbnails_and_no_picture(shape: tuple[int, ...]) -> None:
    none = thumbnails(np.zeros(shape), FUNCTIONS)
    assert none.size == 0
    assert none.ndim == 5
    with pytest.raises(ValueError, match="at least one image to draw, got none"):
        ends_figure(none, SHARES[0], SHARES[0], np.ones((0, 0), int))


def test_images_stand_side_by_side_with_a_gap_between_the_ends_and_classes_in_the_colour_of_their_side() -> None:
    figure = ends_figure(GREY, SHARES[0], np.array([0.0004]), np.array([[3, 3, 5, 5, 5, 3, 12, 3]]), (5, 12))
    axes = figure.axes[0]
    canvas = np.asarray(axes.images[0].get_array())
    blank = np.flatnonzero(canvas[0, :, 3] == 0)
    widths = np.diff(np.flatnonzero(np.diff(blank, prepend=-9, append=10**6) > 1))
    assert widths.tolist() == [1, 1, 1, 9, 1, 1, 1]
    np.testing.assert_array_equal(canvas[:, -28:, 1], GREY[0, -1, 0])
    blue, orange = draw.PALETTE[False].lines[:2]
    sides = [(text.get_text(), to_hex(text.get_color())) for text in axes.texts]
    assert sides == [
        (kind, orange if kind in ("5", "12") else blue) for kind in ["3", "3", "5", "5", "5", "3", "12", "3"]
    ]
    assert axes.get_title(loc="left") == "1: 60 % of the kernel, 0.04 % of the labels"


def test_chance_is_drawn_where_it_is() -> None:
    line = energy_figure({"labels": ENERGY}, 1000).axes[0].get_lines()[-1]
    assert line.get_label() == "a random target"
    np.testing.assert_allclose(line.get_ydata(), 100 * np.arange(1, 31) / 1000)
    level = spectrum_figure(SHARES, SHARES, 1000).axes[0].get_lines()[-1]
    np.testing.assert_allclose(level.get_ydata(), 1 / 1000)


def test_one_draw_has_no_band_and_several_do() -> None:
    for energies, bands in ((ENERGY[:1], 0), (ENERGY, 1)):
        figure = energy_figure({"labels": energies}, 1000)
        assert len(figure.axes[0].collections) == bands
        assert ("standard errors" in figure.get_label()) == bool(bands)


def test_names_at_the_ends_of_curves_do_not_overlap_and_stay_near_them() -> None:
    axes = energy_figure({"all": ENERGY}, 1000, parts=CLASSES).axes[0]
    places = {text.get_text(): text.xy[1] for text in axes.texts}  # type: ignore[attr-defined]
    assert list(places) == list(CLASSES), "from the lowest to the highest"
    top = axes.get_ylim()[1]
    assert np.diff(list(places.values())).min() > 0.05 * top
    assert all(abs(places[name] - 100 * CLASSES[name].mean(0)[-1]) < 0.1 * top for name in places)


def test_local_energy_is_relative_to_the_first_set_and_every_sample_is_counted() -> None:
    axes = local_energy_figure(LOCAL).axes[0]
    assert axes.get_xlabel() == "local energy / mean on train"
    means = [line.get_xdata()[0] for line in axes.get_lines()]
    np.testing.assert_allclose(means, [1, LOCAL["control"].mean() / LOCAL["train"].mean()])
    outlines = [patch for patch in axes.patches if patch.get_label() in LOCAL]
    assert [float(np.sum(patch.get_data().values)) for patch in outlines] == pytest.approx([100, 100])  # type: ignore[attr-defined]
