"""A published data set: its files, where they may lie, and how damaged files are detected."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from biascope.data.dataset import Dataset, Split
    from biascope.data.sources import Source


@dataclass(frozen=True)
class Layout:
    """One form in which a set is found on disk.

    Attributes:
        folder: Below the root.
        md5: The md5 of every file by name, uncompressed; a file may also lie there as NAME.gz.
        read: The splits that a folder of such files holds.
    """

    folder: str
    md5: Mapping[str, str]
    read: Callable[[Path], dict[str, Split]]

    def is_in(self, folder: Path) -> bool:
        """Whether a folder has any file of this form."""
        return any(file_in(folder, name) for name in self.md5)

    def is_whole_in(self, folder: Path) -> bool:
        """Whether a folder has every file of this form."""
        return all(file_in(folder, name) for name in self.md5)

    def verdicts(self, folder: Path) -> dict[str, str]:
        """For every file ``"ok"``, ``"missing"`` or what is wrong with it, by its md5."""
        found = {name: file_in(folder, name) for name in self.md5}
        return {name: _verdict(path, self.md5[name]) if path else "missing" for name, path in found.items()}


@dataclass(frozen=True)
class OfficialSet:
    """A published data set.

    Attributes:
        name: As the user types it.
        content: What is in it, in a few words.
        site: The page to read about it and to download it by hand.
        classes: The name of each label.
        layouts: The forms in which it is found; `biascope data get` writes the first.
        sources: Where its files come from, the official site first.
    """

    name: str
    content: str
    site: str
    classes: tuple[str, ...]
    layouts: tuple[Layout, ...]
    sources: tuple[Source, ...]

    def located(self, root: Path) -> tuple[Layout, Path] | None:
        """The form and folder in which the set lies under a root: a whole one, else the first with any file of it."""
        places = [(layout, root / layout.folder) for layout in self.layouts]
        whole = [place for place in places if place[0].is_whole_in(place[1])]
        partly = [place for place in places if place[0].is_in(place[1])]
        return next(iter(whole + partly), None)

    def layout_of(self, folder: Path) -> Layout | None:
        """The form of this set that a folder has files of."""
        return next((layout for layout in self.layouts if layout.is_in(folder)), None)

    def load(self, root: Path) -> Dataset:
        """The set as found under a root.

        Raises:
            ValueError: If it is not there, or a file is damaged.
        """
        if (place := self.located(root)) is None:
            raise ValueError(self.missing_from(root))
        return self.read(place[1], place[0])

    def read(self, folder: Path, layout: Layout) -> Dataset:
        """The set in a folder of a given form."""
        from biascope.data.dataset import Dataset

        return Dataset(self.name, layout.read(folder), self.classes)

    def missing_from(self, root: Path) -> str:
        """The error message: what was looked for, where to get it and where to put it."""
        wanted = " or ".join(dict.fromkeys(layout.folder for layout in self.layouts))
        first = self.layouts[0]
        return (
            f"{self.name} must lie under {root} as {wanted}, but is not there. "
            f"Run `biascope data get {self.name} --data-root {root}`, or download it from {self.site} and put "
            f"{', '.join(first.md5)} into {root / first.folder}. "
            "To use another folder, pass --data-root or set the environment variable BIASCOPE_DATA."
        )


def file_in(folder: Path, name: str) -> Path | None:
    """The file called NAME or NAME.gz in a folder."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def files_of_split(folder: Path, names: Sequence[str]) -> list[Path]:
    """The files that one split consists of: all, or none where the split is not there.

    Raises:
        ValueError: If only some are there.
    """
    found = {name: file_in(folder, name) for name in names}
    present = [path for path in found.values() if path]
    if present and len(present) < len(names):
        missing = ", ".join(name for name, path in found.items() if path is None)
        raise ValueError(f"{folder} must hold {missing} beside {present[0].name}, but does not. {_AGAIN}")
    return present


def content_of(path: Path) -> bytearray:
    """The bytes of a file, uncompressed if it ends in .gz; writable, so that arrays on top of them are too.

    Raises:
        ValueError: If a compressed file is damaged.
    """
    with _opened(path) as stream:
        return bytearray(stream.read())


def damaged(path: Path, requirement: str, came: str) -> ValueError:
    """The error for a file that is not what it should be.

    Example:
        >>> print(damaged(Path("batch.bin"), "hold whole records of 3073 bytes", "has 10 bytes"))
        batch.bin must hold whole records of 3073 bytes, but has 10 bytes. Delete it and fetch it again; \
`biascope data get` does so for the published sets.
    """
    return ValueError(f"{path} must {requirement}, but {came}. {_AGAIN.replace('Fetch', 'Delete it and fetch')}")


_AGAIN = "Fetch it again; `biascope data get` does so for the published sets."


def md5_of(path: Path) -> str:
    """The md5 of a file's content, uncompressed if it ends in .gz."""
    digest = hashlib.md5(usedforsecurity=False)
    with _opened(path) as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _verdict(path: Path, expected: str) -> str:
    try:
        found = md5_of(path)
    except ValueError:
        return "a damaged gzip file"
    return "ok" if found == expected else f"md5 {found}, not {expected}"


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BufferedIOBase]:
    try:
        with path.open("rb") as stored:
            yield gzip.GzipFile(fileobj=stored) if path.suffix == ".gz" else stored
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, "be a whole gzip file", "is damaged or cut off") from error
