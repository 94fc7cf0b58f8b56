"""Tables with named columns: CSV, Parquet and Arrow files. Columns are features by name, one of them is the label."""

# n rows

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from biascope.data.dataset import Dataset, Labels, Split
from biascope.data.root import TABLES
from biascope.results.axes import Axis
from biascope.results.wording import listed

SPLITS = {"train": "train", "test": "test", "val": "validation", "validation": "validation"}
_MOST_VALUES = 32  # of a column of words, which gets a feature for each
_FEW_CLASSES = 20  # more of them must be rarer than every fourth row
_OWN_NUMBERS = 1000  # labels from 0 below it keep their numbers

Column = np.ndarray[Any, np.dtype[Any]] | tuple[str, ...]  # numbers, or words


@dataclass(frozen=True, eq=False)
class Table:
    """A file's columns.

    Attributes:
        where: The file, for errors.
        columns: Numbers float64 (n,), or words, by name.
        lines: The line or row of the file that each row is from.
        unit: What these are called.
        classes: Names of labels, of columns that the file says it of.
    """

    where: str
    columns: Mapping[str, Column]
    lines: Sequence[int]
    unit: str
    classes: Mapping[str, tuple[str, ...]]


def tables_in(folder: Path) -> dict[str, list[Path]]:
    """The tables of each split in a folder.

    They are train.csv and test.csv, parts such as train-00000-of-00002.parquet, or what the library datasets saved.
    """
    if (folder / "dataset_dict.json").is_file():
        saved = {SPLITS[place.name]: _saved_parts(place) for place in sorted(folder.iterdir()) if place.name in SPLITS}
        return {split: saved[split] for split in SPLITS.values() if saved.get(split)}
    if parts := _saved_parts(folder):
        return {"train": parts}
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        split = SPLITS.get(path.stem.partition("-")[0])
        if split and path.is_file() and path.suffix in TABLES:
            found.setdefault(split, []).append(path)
    return {split: found[split] for split in SPLITS.values() if split in found} if "train" in found else {}


def _saved_parts(folder: Path) -> list[Path]:
    """The files of a data set that the library datasets saved, in their order."""
    if not (folder / "dataset_info.json").is_file():
        return []
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        return [folder / each["filename"] for each in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder / 'state.json'} must list the files of the data set, but does not. Save it again with save_to_disk."
        ) from error


def read_tables(name: str, files: Mapping[str, Sequence[Path]], label: str | None = None) -> Dataset:
    r"""The data set in tables.

    Columns of numbers are features. A column of words with few values becomes a feature for each value, "city=Paris". The label is a
    column of whole numbers or words.

    Args:
        name: What the set is called.
        files: Of each split, parts in their order.
        label: Column of the labels; by default, one called "label", else the last.

    Raises:
        ValueError: If a file is damaged, a value is missing, or a column is neither a feature nor a label.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "people.csv"
        >>> _ = path.write_text("age,city,bought\n31,Rome,no\n42,Paris,yes\n")
        >>> found = read_tables("people", {"train": [path]})
        >>> found.axes[0].labels, found.classes
        (('age', 'city=Paris', 'city=Rome'), ('no', 'yes'))
        >>> found.told
        "label 'bought', the last column; a feature for each of the 2 values of city"
    """
    tables = {split: [read_table(path) for path in paths] for split, paths in files.items()}
    every = [table for parts in tables.values() for table in parts]
    columns = list(every[0].columns)
    for table in every[1:]:
        if list(table.columns) != columns:
            raise ValueError(
                f"{table.where} must have the columns of {every[0].where} in their order, got {', '.join(table.columns)}. "
                "Save both alike."
            )
    chosen, why = label_column(every[0], label)
    classes, numbers = classes_in(every, chosen)
    features, words = _features(every, [column for column in columns if column != chosen])
    if not features:
        raise ValueError(
            f"{every[0].where} must have a column beside the label {chosen!r}, but has none. Add features."
        )
    splits: dict[str, Split] = {}
    for split, parts in tables.items():
        inputs = np.concatenate([_numbers(table, features) for table in parts])
        splits[split] = inputs, np.concatenate([numbers[table.where] for table in parts])
    told = "; ".join([f"label {chosen!r}{why}", *words])
    return Dataset(name, splits, classes, (Axis("feature", tuple(features)),), told)


def label_column(table: Table, label: str | None) -> tuple[str, str]:
    """The column of the labels, and why it is that one."""
    names = list(table.columns)
    if label is not None and label not in names:
        raise ValueError(f"--label must be a column of {table.where}, got {label!r}. It has {listed(names)}.")
    if label is not None or "label" in names:
        return label or "label", ""
    return names[-1], ", the last column"


def classes_in(tables: Sequence[Table], column: str) -> tuple[tuple[str, ...], dict[str, Labels]]:
    """Names of the classes, and the labels of each file."""
    first, values = tables[0], [table.columns[column] for table in tables]
    if known := first.classes.get(column):
        return known, {t.where: np.asarray(t.columns[column], np.int64) for t in tables}
    if len({isinstance(each, tuple) for each in values}) > 1:
        raise ValueError(
            f"The label {column!r} of {first.where} must be numbers in all files or in none. Save them alike."
        )
    if isinstance(values[0], tuple):
        kinds = sorted({str(value) for each in values for value in each})
        _require_classes(first, column, len(kinds), sum(map(len, values)))
        number = {kind: place for place, kind in enumerate(kinds)}
        return tuple(kinds), {
            t.where: np.array([number[str(value)] for value in t.columns[column]], np.int64) for t in tables
        }
    joined = np.concatenate(values)
    if not np.array_equal(joined, np.rint(joined)):
        raise ValueError(
            f"The label {column!r} of {first.where} must be a class, a whole number or a word, but {joined[joined % 1 != 0][0]:g} is a "
            "fraction. Pass --label with another column, or divide its values into classes."
        )
    found = np.unique(joined)
    _require_classes(first, column, len(found), len(joined))
    if found[0] >= 0 and found[-1] < _OWN_NUMBERS:
        names = tuple(str(place) for place in range(int(found[-1]) + 1))
        return names, {t.where: np.asarray(t.columns[column], np.int64) for t in tables}
    names = tuple(f"{column} {value:.0f}" for value in found)
    return names, {t.where: np.searchsorted(found, t.columns[column]).astype(np.int64) for t in tables}


def _require_classes(table: Table, column: str, count: int, rows: int) -> None:
    if count > _FEW_CLASSES and count > rows / 4:
        raise ValueError(
            f"The label {column!r} of {table.where} must be a class, but has {count:,} values in {rows:,} rows. Pass --label with "
            "another column, or divide its values into classes."
        )


def _features(tables: Sequence[Table], columns: Sequence[str]) -> tuple[dict[str, tuple[str, str | None]], list[str]]:
    """Each feature's column and the value that it stands for, and words on columns that are not taken as they are."""
    features: dict[str, tuple[str, str | None]] = {}
    words = []
    for column in columns:
        kinds = {isinstance(table.columns[column], tuple) for table in tables}
        if kinds == {False}:
            features[column] = column, None
            continue
        if len(kinds) > 1:
            raise ValueError(
                f"Column {column!r} of {tables[0].where} must be numbers in all files or in none. Save them alike."
            )
        values = sorted({str(value) for table in tables for value in table.columns[column]})
        if len(values) > _MOST_VALUES:
            raise ValueError(
                f"Column {column!r} of {tables[0].where} must be numbers, or words with at most {_MOST_VALUES} values, but has "
                f"{len(values):,}. Remove it, or turn it into numbers."
            )
        if unclear := next((value for value in values if not any(map(str.isalpha, value))), None):
            raise ValueError(
                f"Column {column!r} of {tables[0].where} must be numbers with a point, or words, but has {unclear!r}. Correct it."
            )
        features |= {f"{column}={value}": (column, value) for value in values}
        words.append(f"a feature for each of the {len(values)} values of {column}")
    return features, words


def _numbers(table: Table, features: Mapping[str, tuple[str, str | None]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The features of a file, ``(n, features)``."""
    found = [
        np.asarray(table.columns[column], np.float64)
        if value is None
        else np.array([word == value for word in table.columns[column]], np.float64)
        for column, value in features.values()
    ]
    return np.stack(found, 1)


def read_table(path: Path) -> Table:
    """One file."""
    table = _read_csv(path) if path.suffix in (".csv", ".tsv") else _read_arrow(path)
    if not table.columns or not len(table.lines):
        raise ValueError(f"{path} must have columns and rows, but has none. Save it again.")
    for name, column in table.columns.items():
        if isinstance(column, tuple):
            wrong = next((place for place, word in enumerate(column) if not word), None)
        else:
            wrong = next(iter(np.flatnonzero(~np.isfinite(column)).tolist()), None)
        if wrong is not None:
            raise ValueError(
                f"{path} must have a finite value in each row, but column {name!r} has none in {table.unit} {table.lines[wrong]}. "
                "Fill it, or remove the row."
            )
    return table


def _read_csv(path: Path) -> Table:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            start = file.readline()
            file.seek(0)
            mark = "\t" if path.suffix == ".tsv" else ";" if ";" in start and "," not in start else ","
            reader = csv.reader(file, delimiter=mark, skipinitialspace=True, strict=True)
            header = [name.strip() for name in next(reader, [])]
            lines, rows = [], []
            for row in reader:
                if row:
                    lines.append(reader.line_num)
                    rows.append([field.strip() for field in row])
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} must be text in UTF-8, but is not ({error.reason}). Save it again as UTF-8."
        ) from error
    except (OSError, csv.Error) as error:
        raise ValueError(f"{path} must be a whole table, but cannot be read ({error}). Save it again.") from error
    _require_header(path, header)
    if (uneven := next((place for place, row in enumerate(rows) if len(row) != len(header)), None)) is not None:
        raise ValueError(
            f"{path} must have {len(header)} values in each row, but has {len(rows[uneven])} in line {lines[uneven]}. Correct the line."
        )
    columns = {
        name: _column(path, name, words, lines) for name, words in zip(header, zip(*rows, strict=True), strict=False)
    }
    _require_names(path, columns)
    return Table(str(path), columns, lines, "line", {})


def _require_names(path: Path, columns: Mapping[str, Column]) -> None:
    """Refuse a first line that is a sample: its names are values of their columns, or one is a number that is no year."""
    among = [name in column if isinstance(column, tuple) else _is_number(name) for name, column in columns.items()]
    number = next((name for name in columns if _is_number(name) and not name.isdecimal()), None)
    if number is not None or (among and all(among)):
        raise ValueError(
            f"{path} must begin with the names of its columns, but begins with values, such as {number or next(iter(columns))!r}. "
            "Add a first line of names."
        )


def _require_header(path: Path, header: Sequence[str]) -> None:
    if header and all(_is_number(name) for name in header):
        raise ValueError(
            f"{path} must begin with the names of its columns, but begins with numbers. Add a first line of names."
        )
    if "" in header:
        raise ValueError(
            f"{path} must name each column, but column {header.index('') + 1} has no name. Name or remove it; pandas leaves its index "
            "out with to_csv(index=False)."
        )
    if twice := next((name for place, name in enumerate(header) if name in header[:place]), None):
        raise ValueError(f"{path} must have different names of columns, but has {twice!r} twice. Rename one.")


def _column(path: Path, name: str, words: tuple[str, ...], lines: Sequence[int]) -> Column:
    """Words as numbers, where they are; an empty one stays for the caller to tell."""
    known = [_is_number(word) for word in words if word]
    if not any(known):
        return words
    if not all(known):
        place = next(place for place, word in enumerate(words) if word and not _is_number(word))
        raise ValueError(
            f"{path} must have numbers in the whole column {name!r} or in none of it, but has {words[place]!r} in line {lines[place]}. "
            "Correct it, or remove the row."
        )
    return np.array([float(word) if word else np.nan for word in words])


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return "_" not in word


def arrow() -> Any:
    """The package that reads Parquet and Arrow files.

    Raises:
        ValueError: If it is not installed.
    """
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ValueError(
            "Parquet and Arrow files need pyarrow, which is not installed. Run pip install 'biascope[tables]', or save a CSV file."
        ) from error


def _read_arrow(path: Path) -> Table:
    pyarrow = arrow()
    try:
        if path.suffix == ".parquet":
            found = importlib.import_module("pyarrow.parquet").read_table(path)
        else:
            found = _read_ipc(path)
    except (pyarrow.ArrowException, OSError) as error:
        words = str(error).splitlines()[0].partition(". ")[0]
        raise ValueError(
            f"{path} must be a whole {path.suffix} file, but cannot be read ({words}). Save it again."
        ) from error
    _require_header(path, found.column_names)
    columns = {name: _arrow_column(path, name, found[name]) for name in found.column_names}
    return Table(str(path), columns, range(1, found.num_rows + 1), "row", class_names(found.schema))


def _read_ipc(path: Path) -> Any:
    """An Arrow file, or an Arrow stream, which has the same ending."""
    ipc = importlib.import_module("pyarrow.ipc")
    pyarrow = arrow()
    with pyarrow.OSFile(str(path), "rb") as file:
        try:
            return ipc.open_file(file).read_all()
        except pyarrow.ArrowInvalid:
            file.seek(0)
            return ipc.open_stream(file).read_all()


def _arrow_column(path: Path, name: str, column: Any) -> Column:
    types = arrow().types
    column = column.combine_chunks().dictionary_decode() if types.is_dictionary(column.type) else column
    kind = column.type
    if types.is_integer(kind) or types.is_floating(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
    if types.is_boolean(kind) or types.is_string(kind) or types.is_large_string(kind):
        return tuple("" if value is None else str(value) for value in column.to_pylist())
    raise ValueError(
        f"Column {name!r} of {path} must hold numbers, words or truth values, but holds {column.type}. Convert or remove it."
    )


def class_names(schema: Any) -> dict[str, tuple[str, ...]]:
    """Names of labels that the library datasets keeps in a schema, by column."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: tuple(map(str, each["names"])) for name, each in features.items() if each.get("names")}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}
