"""The 2025 paper on average geometry and the geometric invariance hypothesis: every figure and table with its claims."""

from __future__ import annotations

from biascope.papers.geometry2025.circles import figure_1, figure_5
from biascope.papers.geometry2025.learning import figure_4, figure_10, figure_11, figure_14
from biascope.papers.geometry2025.motion import figure_2, figure_3, figure_8, figure_12, figure_13
from biascope.papers.geometry2025.samples import figure_6, table_1, table_2
from biascope.papers.geometry2025.theory import figure_7, figure_9, figure_a4, figure_a12
from biascope.papers.geometry2025.trained import conjecture_2, figure_a3

PAPER = (
    "Movahedi, Orvieto, Moosavi-Dezfooli (2025). Geometric inductive biases of deep networks: the role of data and architecture. "
    "ICLR."
)

# In the order of the paper.
FIGURES = (
    figure_1,
    figure_2,
    conjecture_2,
    figure_3,
    figure_4,
    figure_5,
    figure_6,
    table_1,
    table_2,
    figure_7,
    figure_a3,
    figure_a4,
    figure_8,
    figure_9,
    figure_10,
    figure_11,
    figure_12,
    figure_13,
    figure_14,
    figure_a12,
)
