"""Chapter 4 of the thesis (linearised networks, 2021): every figure and table with its claims."""

from __future__ import annotations

PAPER = (
    "Ortiz-Jiménez, Moosavi-Dezfooli, Frossard (2021). What can linearized neural networks actually say about "
    "generalization? NeurIPS. Ortiz-Jiménez (2023). The inductive bias of deep learning: connecting weights and functions, "
    "chapter 4. EPFL."
)
