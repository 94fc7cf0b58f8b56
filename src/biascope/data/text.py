"""Sets of short texts with labels: tab-separated files, perhaps compressed, with a header line ``label	text``."""

# n texts

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from biascope.data import data_root
from biascope.data.dataset import Labels
from biascope.data.official import content_of, damaged, file_in

SPLITS = ("train", "validation", "test")
_HEADER = "label\ttext"


@dataclass(frozen=True, eq=False, repr=False)
class TextSet:
    """Texts and labels in named splits.

    Attributes:
        name: What the set is called.
        splits: Texts and labels, int64 (n,) counting from 0, of each split that there is.
        classes: The name of each label.

    Example:
        >>> TextSet("two", {"train": (("good", "bad"), np.array([1, 0]))}, ("no", "yes"))
        two: 2 train texts, 2 classes
    """

    name: str
    splits: dict[str, tuple[tuple[str, ...], Labels]]
    classes: tuple[str, ...]

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(texts):,} {split}" for split, (texts, _) in self.splits.items())
        return f"{self.name}: {counts} texts, {len(self.classes)} classes"


def text_set(name_or_folder: str | Path, *, root: Path | str | None = None) -> TextSet:
    r"""A set of texts, read from disk.

    A name means ``text/NAME_train.tsv.gz`` and ``text/NAME_test.tsv.gz`` in the folder of data sets; a folder holds
    ``train.tsv.gz`` and ``test.tsv.gz``. Files may also be uncompressed, and there may be a ``validation``. The first line of each is
    the header, the others a label, a tab and the text. Labels are numbered in the order of their names, whole numbers in theirs.

    Args:
        name_or_folder: ``"sst2"``, ``"trec"``, ``"agnews"``, any other name, or a folder.
        root: Folder of data sets; see :func:`biascope.data.data_root`.

    Raises:
        ValueError: If there is no such set, or a file of it is damaged.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp()) / "moods"
        >>> folder.mkdir()
        >>> _ = (folder / "train.tsv").write_text("label\ttext\nsad\ta dull film\nglad\ta fine film\n")
        >>> moods = text_set(folder)
        >>> moods.classes, moods.splits["train"][1].tolist()
        (('glad', 'sad'), [1, 0])
    """
    text = str(name_or_folder)
    path = Path(text).expanduser()
    if is_folder := (os.sep in text or path.is_dir()):
        place, stems = path, {split: split for split in SPLITS}
    else:
        place, stems = data_root(root) / "text", {split: f"{text}_{split}" for split in SPLITS}
    files = {split: file for split, stem in stems.items() if (file := file_in(place, f"{stem}.tsv"))}
    if "train" not in files:
        there = sorted({each.name.split("_train.tsv")[0] for each in place.glob("*_train.tsv*")})
        listed = f" There are: {', '.join(there)}." if there and not is_folder else ""
        raise ValueError(f"{place / stems['train']}.tsv.gz must hold texts, but is not there.{listed} Check the name.")
    rows = {split: _rows(file) for split, file in files.items()}
    labels = {label for pairs in rows.values() for label, _ in pairs}
    whole = all(label.removeprefix("-").isdecimal() for label in labels)
    classes = tuple(sorted(labels, key=int) if whole else sorted(labels))
    number = {label: place for place, label in enumerate(classes)}
    splits = {
        split: (tuple(text for _, text in pairs), np.array([number[label] for label, _ in pairs], np.int64))
        for split, pairs in rows.items()
    }
    return TextSet(path.name, splits, classes)


def _rows(path: Path) -> list[tuple[str, str]]:
    """Labels and texts of one file."""
    try:
        lines = (
            content_of(path).decode("utf-8").removesuffix("\n").split("\n")
        )  # not splitlines: texts may hold its separators
    except UnicodeDecodeError as error:
        raise damaged(path, "be text in UTF-8", f"is not ({error.reason})") from error
    if lines[0].rstrip("\r") != _HEADER or len(lines) < 2:
        raise damaged(path, "have the header label, tab, text and lines below it", f"begins with {lines[0][:40]!r}")
    rows = [tuple(line.rstrip("\r").split("\t", 1)) for line in lines[1:]]
    if wrong := next((place for place, row in enumerate(rows, 2) if len(row) != 2 or not row[0]), None):
        raise damaged(
            path, "have a label, a tab and a text in each line", f"has {lines[wrong - 1][:40]!r} in line {wrong}"
        )
    return [(row[0], row[1]) for row in rows]
