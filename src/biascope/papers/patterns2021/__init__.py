"""The 2021 paper on the pattern statistics inductive bias (PSI): every figure and theorem with its claims. It published no code."""

from __future__ import annotations

PAPER = "On the inductive bias of a CNN for distributions with orthogonal patterns (2021). Submitted to ICLR."
