"""The 2022 paper on implicit representations as dictionaries, chapter 5 of the thesis: every figure with its claims."""

from __future__ import annotations

PAPER = (
    "Yüce, Ortiz-Jiménez, Besbinar, Frossard (2022). A structured dictionary perspective on implicit neural representations. CVPR; "
    "chapter 5 of the thesis."
)
