"""Pictures of decision boundaries and of curves in panels."""

import numpy as np
import pytest

from biascope.papers.geometry2025.pictures import Boundary, boundaries_figure, panels_figure
from biascope.results import draw

GRID = np.linspace(-2, 2, 31)


def rings(*radii):
    squares = GRID[:, None] ** 2 + GRID[None, :] ** 2
    return np.stack([squares - radius**2 for radius in radii])


def boundary(values, note=""):
    angles = np.linspace(0, 6, 50)
    samples = np.stack([np.cos(angles), np.sin(angles)], 1) * np.where(np.arange(50) % 2, 1.5, 0.25)[:, None]
    return Boundary(values, GRID, samples, np.arange(50) % 2, note)


@pytest.mark.parametrize("dark", [False, True])
def test_every_network_has_its_line_and_every_class_its_dots(dark) -> None:
    figure = boundaries_figure({"aligned": boundary(rings(0.5, 1.0, 1.4)), "other": boundary(rings(1.2))}, dark=dark)
    lines, dots = (
        [[each for each in view.collections if type(each).__name__ == kind] for view in figure.axes]
        for kind in ("QuadContourSet", "PathCollection")
    )
    assert [len(each) for each in lines] == [3, 1]
    assert [sum(len(part.get_offsets()) for part in each) for each in dots] == [50, 50]
    assert [view.get_xlim() for view in figure.axes] == [(-2, 2), (-2, 2)]
    assert "decision boundaries" in figure.get_label()
    assert draw.png(figure, 400).startswith(b"\x89PNG")


def test_the_first_direction_runs_to_the_right() -> None:
    line = (GRID[None, None, :] - 1.0) * np.ones((1, 31, 1))  # f = a − 1
    view = boundaries_figure({"a": boundary(line)}).axes[0]
    assert np.allclose(view.collections[0].get_paths()[0].vertices[:, 0], 1.0)


def test_a_network_that_sees_one_class_only_has_no_line_and_no_warning() -> None:
    figure = boundaries_figure({"blind": boundary(1 + rings(0.0), note="test accuracy 50 %")})
    assert [type(each).__name__ for each in figure.axes[0].collections] == ["PathCollection", "PathCollection"]
    assert figure.axes[0].get_title() == "blind\ntest accuracy 50 %"


def test_curves_of_one_name_share_their_colour_in_all_panels() -> None:
    line = (np.array([1.0, 10.0]), np.array([90.0, 50.0]))
    figure = panels_figure({"one": {"b": line}, "two": {"a": line, "b": line}}, x="index", y="accuracy", dark=True)
    colours = [{each.get_label(): each.get_color() for each in view.lines} for view in figure.axes]
    assert colours[0]["b"] == colours[1]["b"] != colours[1]["a"]
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"a", "b"}
