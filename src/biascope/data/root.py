"""Where data sets lie, and how files of tables are told."""

from __future__ import annotations

import os
from pathlib import Path

TABLES = frozenset({".csv", ".tsv", ".parquet", ".arrow", ".feather"})  # how the names of tables end


def data_root(root: Path | str | None = None) -> Path:
    """The folder of data sets: the one given, else the environment's ``BIASCOPE_DATA``, else ``~/.cache/biascope``.

    Example:
        >>> str(data_root("sets"))
        'sets'
    """
    found = Path(root or os.environ.get("BIASCOPE_DATA") or "~/.cache/biascope").expanduser()
    if found.is_file():
        raise ValueError(f"The folder of data sets must be a folder, but {found} is a file. Pass --data-root FOLDER.")
    return found
