"""The 2025 paper on average geometry and the geometric invariance hypothesis: every figure and table with its claims."""

from __future__ import annotations

PAPER = (
    "Movahedi, Orvieto, Moosavi-Dezfooli (2025). Geometric inductive biases of deep networks: the role of data and architecture. "
    "ICLR."
)
