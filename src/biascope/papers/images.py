"""Data sets of the figures, which a machine may hold in part."""

from __future__ import annotations

from pathlib import Path

from biascope.data import data_root
from biascope.runs.run import Run


def held(name: str, run: Run) -> tuple[str, Path]:
    """A data set, or the part of it that the data folder has as ``NAME-part.npz``, and the folder."""
    root = data_root(run.data_root)
    return (f"{name}-part" if (root / f"{name}-part.npz").exists() else name), root
