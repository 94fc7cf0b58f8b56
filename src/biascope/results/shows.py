"""SHOW: the usual pictures of findings, for ``@figure(show=)``: planes of frequencies, and curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from biascope.results.figures import lines_figure, plane_figure
from biascope.results.result import Plane

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from biascope.results.finding import Finding, Show


def planes(unit: str = "%", low: float | None = 50.0, high: float | None = 100.0) -> Show:
    """Every array of the kind "plane", in colours from low to high; without them, as far as the values go."""

    def show(finding: Finding, dark: bool) -> Figure:
        found = {name: Plane(array, unit, low, high) for name, array in finding.arrays_of("plane").items()}
        return plane_figure(found, dark=dark)

    return show


def curves(kind: str, *, x: str, y: str, scale: float = 1.0, **how: Any) -> Show:
    """Every array of a kind as a curve: its first row against its second, times the scale.

    Args:
        kind: Of the arrays.
        x: What the first row is.
        y: What the second row is.
        scale: Factor of the values.
        how: What :func:`biascope.results.figures.lines_figure` takes: ``log_x``, ``log_y``, ``reading``.
    """
    return lambda finding, dark: lines_figure(finding.curves_of(kind, scale), x=x, y=y, dark=dark, **how)
