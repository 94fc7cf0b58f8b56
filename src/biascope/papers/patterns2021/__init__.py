"""The 2021 paper on the pattern statistics inductive bias (PSI): every figure and theorem with its claims. It published no code."""

from __future__ import annotations

from biascope.papers.patterns2021.digits import figure_2
from biascope.papers.patterns2021.filters import figure_4, figure_5_to_7
from biascope.papers.patterns2021.networks import figure_1a, figure_1b, figure_1c, figure_3, figure_d
from biascope.papers.patterns2021.theory import remark_e1, theorem_51, theorem_61
from biascope.papers.patterns2021.two_points import theorem_71

PAPER = "On the inductive bias of a CNN for distributions with orthogonal patterns (2021). Submitted to ICLR."

# In the order of the paper.
FIGURES = (
    theorem_51,
    theorem_61,
    figure_1a,
    figure_1b,
    figure_1c,
    theorem_71,
    figure_2,
    figure_3,
    figure_d,
    figure_4,
    remark_e1,
    figure_5_to_7,
)
