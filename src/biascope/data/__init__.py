"""Real data sets: one file per published set, and readers for a user's own arrays and image folders.

A file of this folder that defines ``SET`` is a data set, called by the file's name with hyphens. `names` finds these files without
importing them, so that importing this package imports neither torch nor NumPy.

>>> "cifar10" in names(), "idx" in names()
(True, False)
"""

from __future__ import annotations

import difflib
import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biascope.data.root import TABLES, data_root

if TYPE_CHECKING:
    from biascope.data.dataset import Dataset
    from biascope.data.official import OfficialSet

__all__ = ["Dataset", "data_root", "is_published", "load", "names", "own_sets", "published_set"]


def names() -> tuple[str, ...]:
    """The published sets that are known, in alphabetical order, from the names of their files."""
    files = (path for path in Path(__file__).parent.glob("[!_]*.py") if _defines_a_set(path))
    return tuple(sorted(path.stem.replace("_", "-") for path in files))


def _defines_a_set(path: Path) -> bool:
    """Whether a file defines a published set; read, not imported."""
    return "\nSET = " in path.read_text(encoding="utf-8")


def is_published(text: str) -> bool:
    """Whether a user's word names a published set, rather than a path that ends like one.

    Example:
        >>> is_published("CIFAR-10"), is_published("./cifar10"), is_published("cifar")
        (True, False, False)
    """
    return not _is_path(text) and _letters(text) in map(_letters, names())


def published_set(name: str) -> OfficialSet:
    """A published set by name: its files, where they may lie and where they come from.

    Case, hyphens, underscores and spaces do not matter: "CIFAR-10" and "cifar10" are one set.

    Raises:
        ValueError: If no set has this name; the message gives the nearest ones.

    Example:
        >>> published_set("Fashion MNIST").name
        'fashion-mnist'
    """
    known = {_letters(each): each for each in names()}
    if (found := known.get(_letters(name))) is None:
        expected = f"data set must be one of {', '.join(map(repr, names()))}, got {name!r}."
        raise ValueError(f"{expected} {_nearest(name, names()) or 'Pass one of these names.'}")
    published: OfficialSet = importlib.import_module(f"{__name__}.{found.replace('-', '_')}").SET
    return published


def load(
    name_or_path: str | Path,
    *,
    root: Path | str | None = None,
    size: int | tuple[int, int] | None = None,
    label: str | None = None,
    tokenizer: Path | str | None = None,
    length: int | None = None,
) -> Dataset:
    """A data set by name or by path, read from disk.

    Args:
        name_or_path: One of `names()`; NAME for ``NAME.npz`` or the image folder ``NAME`` in the root; or the path of
            an ``.npz`` file, of a table (``.csv``, ``.tsv``, ``.parquet``, ``.arrow``), of a folder of ``.npy`` files or of tables
            ``train.*`` and ``test.*``, of an image folder, or of a folder of files in the format of a published
            set.
        root: The folder of data sets; see `data_root`.
        size: Side, or height and width, that the images of an image folder are resized to. Needed only where they
            differ in size, and allowed only for image folders.
        label: Column of the labels in a table, and allowed only there; by default, one called "label", else the last.
        tokenizer: A ``tokenizer.json`` or a folder that has one: the data are texts, as :func:`biascope.data.text.texts_of` takes them.
        length: Token ids of each text, 64 by default.

    Returns:
        The data set: images as uint8 (n, C, h, w), other numbers as float32 or float64 (n, …), token ids as int64 (n, …).

    Raises:
        ValueError: If there is no such set, it is not on disk, or a file of it is damaged; the message says what to do.
    """
    folder = data_root(root)
    text = str(name_or_path)
    if tokenizer is not None:
        from biascope.data.text import texts_of
        from biascope.data.token_ids import tokenised

        _refuse(text, size)
        texts, told = texts_of(name_or_path, root=root, label=label)
        return tokenised(texts, tokenizer, length, told)
    if length is not None:
        raise ValueError(
            f"length must be left out where there is no tokenizer, got {length}. Pass --tokenizer FOLDER for texts."
        )
    if is_published(text):
        _refuse(text, size, label)
        return published_set(text).load(folder)
    # A name means the root first, so that a folder that happens to lie in the working directory changes nothing.
    in_root = [] if _is_path(text) else [folder / f"{text}.npz", folder / text]
    for path in [*in_root, Path(text).expanduser()]:
        if path.is_file() and path.suffix == ".npz":
            _refuse(str(path), size, label)
            from biascope.data.npz import read_npz

            return read_npz(path)
        if path.is_file() and path.suffix in TABLES:
            _refuse(str(path), size)
            from biascope.data.table import read_tables

            return read_tables(path.stem, {"train": [path]}, label)
        if path.is_file() and path.suffix == ".txt":
            raise ValueError(
                f"{path} holds texts, which need a tokenizer. Pass --tokenizer FOLDER, with a tokenizer.json in it."
            )
        if path.is_dir():
            return _from_folder(path, size, label)
    raise ValueError(_unknown(text, folder))


def own_sets(root: Path) -> tuple[str, ...]:
    """The names of the ``.npz`` files in a root, which `load` takes as names."""
    return tuple(sorted(path.stem for path in root.glob("*.npz")))


def _from_folder(path: Path, size: int | tuple[int, int] | None, label: str | None) -> Dataset:
    """A folder by what lies in it: tables, .npy files, idx files, the files of a published set, or images."""
    from biascope.data.idx import holds_idx, read_idx_set
    from biascope.data.image_folder import read_image_folder
    from biascope.data.npz import holds_npy, read_npy_folder
    from biascope.data.table import read_tables, tables_in

    if splits := tables_in(path):
        _refuse(str(path), size)
        return read_tables(path.resolve().name, splits, label)
    _refuse(str(path), None, label)
    if holds_npy(path):
        _refuse(str(path), size)
        return read_npy_folder(path)
    if holds_idx(path):
        _refuse(str(path), size)
        return read_idx_set(path)  # MNIST and its relatives share their file names, so this tells no set
    for published in map(published_set, names()):
        if (layout := published.layout_of(path)) is not None:
            _refuse(str(path), size)
            return published.read(path, layout)
    return read_image_folder(path, size=size)


def _is_path(text: str) -> bool:
    return text.endswith((".npz", ".txt", *TABLES)) or text.startswith(("~", ".")) or os.sep in text or "/" in text


def _refuse(what: str, size: object, label: str | None = None) -> None:
    """Refuse settings that say nothing about such data."""
    if label is not None:
        raise ValueError(f"label must be left out for {what}, which is no table with named columns. Leave --label out.")
    if size is not None:
        raise ValueError(
            f"size must be left out for {what}, whose images have one size. Use padded(side) to enlarge them."
        )


def _unknown(text: str, root: Path) -> str:
    if _is_path(text):
        return f"The data set {text} must be an existing .npz file, table or folder, but is none. Check the path."
    known = (*names(), *own_sets(root))
    expected = f"data set must be one of {', '.join(map(repr, known))}, or the path of an .npz file, table or folder"
    remedy = _nearest(text, known) or f"Pass one of these, or put {text}.npz into {root}."
    return f"{expected}, got {text!r}. {remedy}"


def _nearest(name: str, known: tuple[str, ...]) -> str:
    letters = {_letters(each): each for each in known}
    near = [letters[each] for each in difflib.get_close_matches(_letters(name), letters, n=3, cutoff=0.5)]
    return f"Did you mean {' or '.join(map(repr, near))}?" if near else ""


def _letters(name: str) -> str:
    """The letters and digits of `name` in lower case: what two spellings of one set share."""
    return "".join(filter(str.isalnum, name)).lower()


def __getattr__(name: str) -> Any:
    if name == "Dataset":
        return importlib.import_module(f"{__name__}.dataset").Dataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
