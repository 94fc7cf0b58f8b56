"""Chapter 4 of the thesis (linearised networks, 2021): every figure and table with its claims."""

from __future__ import annotations

from biascope.papers.linearized2021.directions import figure_44, figure_45
from biascope.papers.linearized2021.dynamics import (
    figure_46,
    figure_47,
    figure_48,
    figure_49,
    figure_410,
    figure_411,
    figure_412,
    table_41,
)
from biascope.papers.linearized2021.eigenfunctions import (
    figure_42,
    figure_43,
    figure_b1,
    figure_b2,
    figure_b2_text,
    figure_b3,
    figure_b4,
)

PAPER = (
    "Ortiz-Jiménez, Moosavi-Dezfooli, Frossard (2021). What can linearized neural networks actually say about "
    "generalization? NeurIPS. Ortiz-Jiménez (2023). The inductive bias of deep learning: connecting weights and functions, "
    "chapter 4. EPFL."
)

# In the order of the chapter.
FIGURES = (
    figure_42,
    figure_43,
    figure_44,
    figure_45,
    figure_46,
    figure_47,
    table_41,
    figure_48,
    figure_49,
    figure_410,
    figure_411,
    figure_412,
    figure_b1,
    figure_b2,
    figure_b2_text,
    figure_b3,
    figure_b4,
)
