"""Sets of short texts with labels: tab-separated files, perhaps compressed, with a header line ``label	text``."""

# n texts

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from biascope.data.dataset import Labels
from biascope.data.official import content_of, damaged, file_in
from biascope.data.root import TABLES, data_root
from biascope.data.table import classes_in, label_column, read_table, tables_in

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
    return _set_of(path.name, {split: _rows(file) for split, file in files.items()})


def _set_of(name: str, rows: Mapping[str, Sequence[tuple[str, str]]]) -> TextSet:
    """The set of labels and texts."""
    labels = {label for pairs in rows.values() for label, _ in pairs}
    whole = all(label.removeprefix("-").isdecimal() for label in labels)
    classes = tuple(sorted(labels, key=int) if whole else sorted(labels))
    number = {label: place for place, label in enumerate(classes)}
    splits = {
        split: (tuple(text for _, text in pairs), np.array([number[label] for label, _ in pairs], np.int64))
        for split, pairs in rows.items()
    }
    return TextSet(name, splits, classes)


def texts_of(
    name_or_path: str | Path, *, root: Path | str | None = None, label: str | None = None
) -> tuple[TextSet, str]:
    r"""Texts as a user has them, and how they were read, in words.

    They are a set that :func:`text_set` reads; a file of lines, each a label, a tab and a text; a folder of files ``CLASS.txt``, or
    ``train/CLASS.txt`` and ``test/CLASS.txt``, with a text in each line; or a table with a column of texts.

    Args:
        name_or_path: Name, file or folder.
        root: Folder of data sets.
        label: Column of the labels in a table.

    Raises:
        ValueError: If there are no such texts, or a file of them is damaged.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "moods.txt"
        >>> _ = path.write_text("sad\ta dull film\nglad\ta fine film\n")
        >>> texts_of(path)[0].splits["train"]
        (('a dull film', 'a fine film'), array([1, 0]))
    """
    path = Path(name_or_path).expanduser()
    lines = {"train": [path]} if path.is_file() and path.suffix not in TABLES - {".tsv"} else {}
    tables = {"train": [path]} if path.is_file() and not lines else {}
    if path.is_dir() and not file_in(path, "train.tsv"):
        tables = tables_in(path)
        if files := {} if tables else _files_of_classes(path):
            _refuse_label(path, label)
            return _set_of(path.resolve().name, {split: _rows_of_classes(each) for split, each in files.items()}), ""
    if tables:
        return _texts_of_tables(path.stem if path.is_file() else path.resolve().name, tables, label)
    _refuse_label(path, label)
    if lines:
        return _set_of(path.name.partition(".")[0], {"train": _rows(path, header=False)}), ""
    return text_set(name_or_path, root=root), ""


def plain_texts(name_or_path: str | Path, *, root: Path | str | None = None) -> tuple[str, dict[str, tuple[str, ...]]]:
    r"""Texts by split, whatever their labels, and the name of the set.

    A ``.txt`` file has a text in each line, or a label, a tab and a text in each. Each line of a ``.jsonl`` file is a text, or an
    object with an entry ``"text"``. A table needs a column of texts alone. All else is as for :func:`texts_of`.

    Raises:
        ValueError: If there are no such texts, or a file of them is damaged.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "songs.txt"
        >>> _ = path.write_text("la la\n\ntra la\n")
        >>> plain_texts(path)
        ('songs', {'train': ('la la', 'tra la')})
    """
    path = Path(name_or_path).expanduser()
    if path.is_file() and path.suffix in TABLES - {".tsv"}:
        table = read_table(path)
        words = [column for column, each in table.columns.items() if isinstance(each, tuple)]
        column = "text" if "text" in words else words[0] if len(words) == 1 else ""
        if not column:
            raise ValueError(
                f'{table.where} must have one column of texts, or one called "text", but has {", ".join(words) or "none"}. Rename one '
                "to text."
            )
        return path.stem, {"train": tuple(map(str, table.columns[column]))}
    if path.is_file() and path.suffix == ".jsonl":
        return path.stem, {"train": tuple(_texts_of_objects(path))}
    if path.is_file() and path.suffix == ".txt":
        lines = [line for line in _lines(path) if line.strip()]
        if not all("\t" in line for line in lines):
            return path.stem, {"train": tuple(lines)}
    found, _ = texts_of(name_or_path, root=root)
    return found.name, {split: texts for split, (texts, _) in found.splits.items()}


def _texts_of_objects(path: Path) -> list[str]:
    """The texts in a file of one JSON value in each line."""
    found = []
    for place, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} must have JSON in each line, but line {place} is not. Correct it.") from error
        text = value.get("text") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise ValueError(
                f'{path} must have a text, or an object with "text", in each line, but line {place} is {line[:40]!r}. Rename the entry '
                "to text."
            )
        found.append(text)
    return found


def _refuse_label(path: Path, label: str | None) -> None:
    if label is not None:
        raise ValueError(f"label must be left out for {path}, which is no table with named columns. Leave --label out.")


def _files_of_classes(folder: Path) -> dict[str, list[Path]]:
    """The files CLASS.txt of each split."""
    places = {split: folder / split for split in SPLITS if (folder / split).is_dir()} or {"train": folder}
    found = {split: sorted(place.glob("*.txt")) for split, place in places.items()}
    return {split: paths for split, paths in found.items() if paths}


def _rows_of_classes(files: Sequence[Path]) -> list[tuple[str, str]]:
    return [(path.stem, line) for path in files for line in _lines(path) if line.strip()]


def _texts_of_tables(name: str, files: Mapping[str, Sequence[Path]], label: str | None) -> tuple[TextSet, str]:
    """The texts of a column of tables."""
    tables = {split: [read_table(path) for path in paths] for split, paths in files.items()}
    every = [table for parts in tables.values() for table in parts]
    chosen, why = label_column(every[0], label)
    classes, numbers = classes_in(every, chosen)
    words = [column for column, each in every[0].columns.items() if isinstance(each, tuple) and column != chosen]
    text = "text" if "text" in words else words[0] if len(words) == 1 else ""
    if not all(isinstance(table.columns.get(text), tuple) for table in every):
        there = f"has {', '.join(words)}" if words else "has none"
        raise ValueError(
            f'{every[0].where} must have one column of texts, or one called "text", but {there}. Rename one to text.'
        )
    splits = {}
    for split, parts in tables.items():
        own = tuple(str(each) for table in parts for each in table.columns[text])
        splits[split] = own, np.concatenate([numbers[table.where] for table in parts])
    others = [column for column in every[0].columns if column not in (text, chosen)]
    left = f"; without {', '.join(others)}" if others else ""
    return TextSet(name, splits, classes), f"label {chosen!r}{why}; texts of {text!r}{left}"


def _rows(path: Path, header: bool = True) -> list[tuple[str, str]]:
    """Labels and texts of one file; its header may be left out where that is allowed."""
    lines = _lines(path)
    first = 1 if header or lines[0] == _HEADER else 0
    if first and (lines[0] != _HEADER or len(lines) < 2):
        raise damaged(path, "have the header label, tab, text and lines below it", f"begins with {lines[0][:40]!r}")
    rows = [tuple(line.split("\t", 1)) for line in lines[first:]]
    if wrong := next((place for place, row in enumerate(rows, first + 1) if len(row) != 2 or not row[0]), None):
        told = "have a label, a tab and a text in each line", f"has {lines[wrong - 1][:40]!r} in line {wrong}"
        raise damaged(path, *told) if header else ValueError(f"{path} must {told[0]}, but {told[1]}. Correct the line.")
    return [(row[0], row[1]) for row in rows]


def _lines(path: Path) -> list[str]:
    """The lines of a file; not by splitlines, whose other separators may stand in a text."""
    try:
        return [line.rstrip("\r") for line in content_of(path).decode("utf-8-sig").removesuffix("\n").split("\n")]
    except UnicodeDecodeError as error:
        raise damaged(path, "be text in UTF-8", f"is not ({error.reason})") from error
