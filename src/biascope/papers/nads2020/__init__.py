"""Neural anisotropy directions (2020) and chapter 3 of the thesis that continues it: every figure with its claims.

Numbers S9–S22 are those of the final supplement; figure 3.13 is the thesis'.
"""

from __future__ import annotations

from biascope.papers.nads2020.directions import figure_5, figure_6, figure_d3, figure_s17, figure_s21, figure_s22
from biascope.papers.nads2020.frequencies import (
    figure_1,
    figure_2,
    figure_3,
    figure_4,
    figure_s10,
    figure_s11,
    figure_s12,
)
from biascope.papers.nads2020.images import figure_7, figure_8, figure_313

PAPER = (
    "Ortiz-Jiménez, Modas, Moosavi-Dezfooli, Frossard (2020). Neural anisotropy directions. NeurIPS. "
    "Ortiz-Jiménez (2023). The inductive bias of deep learning: connecting weights and functions, chapter 3. EPFL."
)

# In the order of the paper.
FIGURES = (
    figure_1,
    figure_2,
    figure_3,
    figure_4,
    figure_5,
    figure_6,
    figure_7,
    figure_8,
    figure_313,
    figure_s10,
    figure_s11,
    figure_s12,
    figure_s17,
    figure_s21,
    figure_s22,
    figure_d3,
)
