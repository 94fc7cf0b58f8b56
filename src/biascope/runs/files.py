"""Files and folders: names that no other thing has, and files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from biascope.networks import names as networks


def make_writable(folder: Path) -> None:
    """Create a folder and make sure that files can be written there.

    Raises:
        ValueError: If it cannot be created or written, in one sentence.
    """
    try:
        _held_ours(folder.absolute())  # looked at before anything is written there
        _made.extend(each for each in (folder, *folder.parents) if not each.exists())
        folder.mkdir(parents=True, exist_ok=True)
        clear_leftovers(folder)
        probe = partial_name(folder / "writable")
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"The output folder must be writable, but {folder} is not ({reason}). Pass another folder."
        raise ValueError(message) from error


def name_for_file(words: str) -> str:
    """Words as a name that every file system and shell takes as it is.

    Example:
        >>> name_for_file("small ViT, 2/3")
        'small-ViT--2-3'
    """
    return "".join(letter if letter.isalnum() or letter in "-_.=" else "-" for letter in words)


def comparison_folder(subjects: Sequence[str]) -> str:
    """A readable name for the folder of a comparison, and for no other.

    Example:
        >>> comparison_folder(["lenet", "vgg11"])
        'compare-lenet-vgg11'
    """
    words = [path_words(each) if Path(each).is_dir() else folder_name(each, {}, None) for each in subjects]
    whole = "-".join(["compare", *words])
    return f"{whole[:120]}-{_digest(words)}" if len(whole) > 120 or any("-" in word for word in words) else whole


def folder_name(model: str, settings: Mapping[str, Any], weights: Path | None) -> str:
    """A readable folder name for a model, its settings and weights, and for no other: results are saved there.

    A network's name, or a plain file of the working folder, is named as it is; another file by its path. Where two models could still
    have one name, a digest of the whole follows.

    Example:
        >>> folder_name("lenet", {"pooling": "average"}, None), folder_name("a/net.py:wide", {}, Path("b/last.pt"))
        ('lenet-pooling=average', 'a__net-wide@b__last.pt')
    """
    location, _, attribute = model.rpartition(":")
    clear = True
    if location.endswith(".py"):
        parts = [path_words(location, ".py")]
        clear = re.fullmatch(r"\w+", parts[0]) is not None and parts[0] not in networks()
    else:
        parts = [location or model]
    parts += [attribute] if location and attribute != "build" else []
    parts += [f"{key}={value}" for key, value in settings.items()]
    clear &= not any("-" in str(value) and "=" in str(value) for value in settings.values())
    exact = "-".join(parts)
    name = name_for_file(exact)
    if not clear or name != exact:
        name = f"{name}-{_digest((os.path.abspath(location) if location.endswith('.py') else location, parts[1:]))}"
    return name if weights is None else f"{name}@{path_words(weights, '.safetensors')}"


def path_words(path: Path | str, usual: str = "") -> str:
    """A readable name for a file or folder that no other has: its path below the working folder; else two names and a digest.

    Args:
        path: The file, or a name that is none.
        usual: The ending that is left out.

    Example:
        >>> path_words("runs/a/last.safetensors", ".safetensors"), path_words("last.pt", ".safetensors")
        ('runs__a__last', 'last.pt')
    """
    whole, here = Path(os.path.abspath(Path(path).expanduser())), Path.cwd()
    inside = whole.is_relative_to(here) and whole != here
    parts = (whole.relative_to(here) if inside else Path(*whole.parts[1:][-2:])).parts
    exact = "__".join(parts).removesuffix(usual)
    if inside and exact == name_for_file(exact) and not any("__" in part for part in parts):
        return exact
    return f"{name_for_file(exact)}-{_digest(str(whole))}"


def distinct_names(names: Sequence[str], sources: Sequence[str]) -> list[str]:
    """Names of networks, those that repeat followed by as much of the end of their source as tells them apart.

    Example:
        >>> distinct_names(["net", "net", "lenet"], ["a/net.py:build", "b/net.py:build", "lenet"])
        ['net (a/net.py:build)', 'net (b/net.py:build)', 'lenet']
    """
    found = list(names)
    for name in {each for each in names if list(names).count(each) > 1}:
        places = [place for place, each in enumerate(names) if each == name]
        ends = [Path(os.path.abspath(sources[place])).parts for place in places]
        count = next(k for k in range(1, 1 + max(map(len, ends))) if len({end[-k:] for end in ends}) == len(set(ends)))
        for place, end in zip(places, ends, strict=True):
            found[place] = f"{name} ({'/'.join(end[-count:])})"
    return found


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:6]


def as_text(name: str) -> str:
    r"""The name of a file as text that a report can show: bytes that are not UTF-8 by their numbers.

    Example:
        >>> as_text("caf\udce9"), as_text("café")
        ('caf\\xe9', 'café')
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")


# In small letters: written as a constant, it would be part of the digest of code, and cached work be lost to other processes.
_made: list[Path] = []  # folders that this process made, those inside others first


def remove_empty_folders() -> None:
    """Remove the folders that this process made and put nothing into: what is refused leaves nothing behind."""
    for folder in sorted(set(_made), key=lambda path: len(path.parts), reverse=True):
        with contextlib.suppress(OSError):  # it is not empty, or gone
            folder.rmdir()
    _made.clear()


# What stands in the first bytes of our files of a kind.
_MARKS = {
    ".html": re.compile(rb'<meta name="generator" content="biascope '),
    ".json": re.compile(
        rb'\A\s*\{\s*("format": \d+,.*"(measurement|record)": |"version": 1,\s*"results": \[|"biascope": ")', re.DOTALL
    ),
    # A text in it may hold braces of its own, as settings in JSON do.
    ".safetensors": re.compile(rb'"__metadata__":\{(?:[^"}]|"(?:[^"\\]|\\.)*")*?"(biascope|encoder|seal)":'),
    ".toml": re.compile(rb'\A(# biascope |command = ")'),
}
_HEAD = 2**16  # of so many bytes
_written: set[Path] = set()  # by this process


def require_ours(*paths: Path) -> None:
    """Refuse to replace a file that Biascope did not write.

    Reports, documents, settings and weights say so themselves. A table or a picture counts as ours in a folder that held one of these
    when this process first came to it.

    Raises:
        ValueError: If there is such a file.

    Example:
        >>> import tempfile
        >>> page = Path(tempfile.mkdtemp()) / "report.html"
        >>> require_ours(page)
        >>> _ = page.write_text("<title>Quarterly report</title>")
        >>> try:
        ...     require_ours(page)
        ... except ValueError as error:
        ...     print(str(error).removeprefix(str(page)))
         would be replaced, but was not written by Biascope. Move it away, or pass another --out.
    """
    for path in paths:
        if not _is_ours(path) and os.path.lexists(path):
            raise ValueError(
                f"{path} would be replaced, but was not written by Biascope. Move it away, or pass another --out."
            )


def _is_ours(path: Path) -> bool:
    mark = _MARKS.get(path.suffix)
    if mark is None:
        return path.absolute() in _written or _held_ours(path.parent.absolute())
    try:
        with path.open("rb") as file:
            return mark.search(file.read(_HEAD)) is not None
    except OSError:
        return False


@functools.cache
def _held_ours(folder: Path) -> bool:
    """Whether a folder held a file that says that it is ours, when it was first looked at."""
    marked = (folder / "report.html", *folder.glob("*.toml"), *folder.glob("*.json"), *folder.glob("*/result.json"))
    return any(_is_ours(path) for path in marked)


_ABANDONED = 24 * 3600  # seconds after which no process still writes a file of ours
_machine = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
_PARTIAL = re.compile(r"\..+\.biascope-(?P<process>\d+)-(?P<machine>[0-9a-f]{8})-[0-9a-f]{8}\.partial")


def clear_leftovers(folder: Path) -> None:
    """Remove what processes that were killed left half-written in a folder; what may still be written stays."""
    with contextlib.suppress(OSError):
        for path in folder.glob(".*.partial"):
            with contextlib.suppress(OSError):
                if (ours := _PARTIAL.fullmatch(path.name)) and _abandoned(path, ours):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


_clear_once = functools.cache(clear_leftovers)


def _abandoned(path: Path, name: re.Match[str]) -> bool:
    """Whether the process that wrote a temporary file, whose number is in its name, has ended."""
    if time.time() - path.stat().st_mtime > _ABANDONED:
        return True
    if name["machine"] != _machine:  # of a machine that shares the disk: its processes cannot be asked here
        return False
    try:
        os.kill(int(name["process"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def partial_name(path: Path) -> Path:
    """A new hidden name beside a file or folder, for what is not whole yet."""
    return path.with_name(f".{path.name}.biascope-{os.getpid()}-{_machine}-{secrets.token_hex(4)}.partial")


def put_in_place(whole: Path, path: Path) -> None:
    """Give a file its name once all of it is on the disk, replacing what has that name; both names must be on one disk."""
    _to_disk(whole)
    os.replace(whole, path)


@contextlib.contextmanager
def written(path: Path) -> Iterator[Path]:
    """A temporary path to write a file to: it becomes the file where the block ends, and is removed where the block fails.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "words.txt"
        >>> with written(path) as temporary:
        ...     _ = temporary.write_text("whole")
        ...     path.exists()
        False
        >>> path.read_text()
        'whole'
    """
    with _temporary(path) as temporary:
        yield temporary
        put_in_place(temporary, path)
        _written.add(path.absolute())


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is either absent or whole, also when the machine goes down."""
    with written(path) as temporary:
        temporary.write_bytes(data)


def write_first(path: Path, data: bytes) -> None:
    """Write a file whole where there is none: of several processes at once, one does."""
    with _temporary(path) as temporary:
        temporary.write_bytes(data)
        _to_disk(temporary)
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError:  # a disk without such links: the later of two at once stays
            os.replace(temporary, path)


def _to_disk(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """A temporary path for what will be a file, gone at the end; an error of the disk names the file."""
    _clear_once(path.parent.absolute())
    temporary = partial_name(path)
    try:
        yield temporary
    except OSError as error:  # a full disk does not say of which file
        if error.filename not in (None, str(temporary)):
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
