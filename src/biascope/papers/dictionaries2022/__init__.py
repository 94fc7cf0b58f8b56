"""The 2022 paper on implicit representations as dictionaries, chapter 5 of the thesis: every figure with its claims."""

from __future__ import annotations

from biascope.papers.dictionaries2022.energy import figure_55, figure_56, figure_57, figure_c2
from biascope.papers.dictionaries2022.failures import (
    equation_57,
    figure_52,
    figure_53,
    figure_54,
    figure_c1,
    theorem_51,
)
from biascope.papers.dictionaries2022.meta import figure_55_meta, figure_58, figure_c3

PAPER = (
    "Yüce, Ortiz-Jiménez, Besbinar, Frossard (2022). A structured dictionary perspective on implicit neural representations. CVPR; "
    "chapter 5 of the thesis."
)

# In the order of the chapter.
FIGURES = (
    theorem_51,
    equation_57,
    figure_52,
    figure_53,
    figure_54,
    figure_55,
    figure_55_meta,
    figure_56,
    figure_57,
    figure_58,
    figure_c1,
    figure_c2,
    figure_c3,
)
