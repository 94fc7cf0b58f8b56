"""What the authors released: accuracies by frequency and along LeNet's directions, and these directions."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from biascope.data import data_root
from biascope.papers.nads2020.networks import SHAPE
from biascope.runs.run import Run
from biascope.tasks.bases import Basis, ordered

#: The column of the file of accuracies that each network has.
COLUMNS = {
    "logistic_regression": "acc_lr",
    "lenet": "acc_ln",
    "resnet18": "acc_rn",
    "densenet121": "acc_dn",
    "vgg11": "acc_vgg",
}
#: The authors' accuracies of LeNet in percent along their own directions, by index: docs/data/nads.csv of their repository
#: (LTS4/neural-anisotropy-directions).
ALONG_DIRECTIONS = {
    **{2: 99.99, 6: 99.99, 14: 99.97, 30: 99.57, 46: 92.96, 74: 91.66, 118: 81.39, 174: 72.48},
    **{250: 62.75, 350: 57.37, 418: 56.21, 598: 51.67, 698: 51.68, 798: 51.21, 898: 50.44, 998: 49.67},
}


def _released_file(name: str, run: Run) -> Path:
    return data_root(run.data_root) / "published" / name


def published_accuracies(name: str, run: Run) -> dict[tuple[int, int], float] | None:
    """The authors' accuracies of figure 1 in percent by frequency, from ``published/dft_accuracies.csv`` in the data folder.

    Row (x, y) of the file is frequency (2(y − 8), 2(x − 8)). One half of the file is the other mirrored along x: it has at (k, −l) the
    number of (k, l), which belongs to (−k, −l). The half that was trained has l ≥ 0 or l = −16, as a real Fourier transform does.
    """
    path = _released_file("dft_accuracies.csv", run)
    if not path.exists():
        return None
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {(2 * (int(row["y"]) - 8), 2 * (int(row["x"]) - 8)): float(row[COLUMNS[name]]) for row in rows}


def against_published(
    labels: Sequence[tuple[Any, ...]], accuracy: np.ndarray, published: dict[tuple[int, int], float]
) -> tuple[np.ndarray, np.ndarray]:
    """Ours and theirs, in percent, at the frequencies that both have; theirs from the half of their file that was trained."""
    pairs = []
    for label, value in zip(labels, accuracy, strict=True):
        k, l = (int(part) for part in label[-2:])  # noqa: E741 - the frequency's name
        wrapped = [tuple((sign * part + 16) % 32 - 16 for part in (k, l)) for sign in (1, -1)]
        place = next(each for each in wrapped if each[1] >= 0 or each[1] == -16)
        if place in published:
            pairs.append((100 * value, published[place]))
    ours, theirs = np.array(pairs).T if pairs else (np.zeros(0), np.zeros(0))
    return ours, theirs


def accuracies_along_own(name: str, run: Run) -> np.ndarray | None:
    """The authors' accuracies in percent along their own directions, by index, from ``published/nads.csv`` in the data folder."""
    path = _released_file("nads.csv", run)
    if not path.exists() or name not in COLUMNS:
        return None
    with path.open() as file:
        rows = list(csv.DictReader(file))
    column = COLUMNS[name]
    return np.array([float(row[column]) for row in rows if row[column]]) if column in rows[0] else None


def lenet_directions(run: Run) -> Basis:
    """The authors' directions of LeNet, from ``published/nads_lenet.npz`` in the data folder.

    Raises:
        ValueError: If the data folder does not have them.
    """
    path = _released_file("nads_lenet.npz", run)
    if not path.exists():
        raise ValueError(
            f"Figure 6 released needs the authors' directions, and the data folder has no published/{path.name}. Put the file "
            "there, or set BIASCOPE_DATA."
        )
    with np.load(path, allow_pickle=False) as stored:
        vectors, values = torch.as_tensor(stored["directions"]).float(), torch.as_tensor(stored["singular_values"])
    return ordered(vectors, SHAPE, values, name="anisotropy (LeNet, released)")
