"""The 2023 paper on task arithmetic in the tangent space, chapter 6 of the thesis: tables and figures with their claims."""

from __future__ import annotations

from biascope.papers.task_arithmetic2023.disentanglement import figure_64, figure_69, figure_610, figure_d2
from biascope.papers.task_arithmetic2023.editing import figure_62, figure_63, table_61, table_62, table_63

PAPER = (
    "Ortiz-Jiménez, Favero, Frossard (2023). Task arithmetic in the tangent space: improved editing of pre-trained models. NeurIPS; "
    "chapter 6 of the thesis."
)

# In the order of the chapter. Figure 6.5 (size) needs one architecture in several sizes, of which there are no weights here.
FIGURES = (figure_62, table_61, table_62, figure_63, figure_64, figure_69, table_63, figure_610, figure_d2)
