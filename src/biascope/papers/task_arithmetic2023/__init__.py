"""The 2023 paper on task arithmetic in the tangent space, chapter 6 of the thesis: tables and figures with their claims."""

from __future__ import annotations

PAPER = (
    "Ortiz-Jiménez, Favero, Frossard (2023). Task arithmetic in the tangent space: improved editing of pre-trained models. NeurIPS; "
    "chapter 6 of the thesis."
)
