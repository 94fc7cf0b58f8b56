"""Neural anisotropy directions (2020) and chapter 3 of the thesis that continues it: every figure with its claims.

Numbers S9–S22 are those of the final supplement; figure 3.13 is the thesis'.
"""

from __future__ import annotations

PAPER = (
    "Ortiz-Jiménez, Modas, Moosavi-Dezfooli, Frossard (2020). Neural anisotropy directions. NeurIPS. "
    "Ortiz-Jiménez (2023). The inductive bias of deep learning: connecting weights and functions, chapter 3. EPFL."
)
