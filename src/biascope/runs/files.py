"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def make_writable(folder: Path) -> None:
    """Create a folder and make sure that files can be written there.

    Raises:
        ValueError: If it cannot be created or written, in one sentence.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable-{secrets.token_hex(4)}.partial"
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"The output folder must be writable, and {folder} is not ({reason}). Pass another folder."
        raise ValueError(message) from error


def write_first(path: Path, data: bytes) -> None:
    """Write a file whole where there is none: of several processes at once, one does."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    write_atomically(temporary, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError:  # a disk without such links: the later of two at once stays
        os.replace(temporary, path)
    temporary.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is either absent or whole, also when the machine goes down."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
