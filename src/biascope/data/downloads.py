"""Downloads that resume after an interruption and show their progress."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from biascope.runs.progress import Stage, shown_stage, tell_if_due

# Of connecting and of any silence after it; short, because other sources are waiting.
TIMEOUT_S = 5.0
_CHUNK = 1 << 18


class Downloads:
    """Downloads into one folder.

    Args:
        folder: Where files lie while they are incomplete; created when the first byte arrives.
        progress: Whether to show progress with the time left on standard error.
    """

    def __init__(self, folder: Path, progress: bool = True) -> None:
        self.folder, self._progress = folder, progress

    def file(self, url: str) -> Path:
        """Download the file at an address; an interrupted download resumes.

        Raises:
            OSError: If the address cannot be reached, or the connection breaks before anything new has arrived.
        """
        part = self.folder / f"{url.rsplit('/', 1)[-1]}.part"
        while True:
            before = _size(part)
            try:
                self._go_on(url, part)
            except (OSError, http.client.HTTPException) as error:
                if _size(part) > before:  # a connection that brings something is worth another try
                    continue
                raise OSError(_reason(error)) from error
            return part

    def clear(self) -> None:
        """Delete what has been downloaded so far."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def progress(self, label: str, total: int | None, done: int = 0) -> Iterator[Callable[[int], None]]:
        """Progress in bytes: yields ``advance(count)``; silent where it is not wanted."""
        stage = Stage(label, total, done)
        if not self._progress:
            yield stage.advance
            return
        with shown_stage(stage):

            def advance(count: int) -> None:
                stage.advance(count)
                tell_if_due()

            yield advance

    def _go_on(self, url: str, part: Path) -> None:
        done = _size(part)
        request = urllib.request.Request(url, headers={"User-Agent": "biascope"})
        if done:
            request.add_header("Range", f"bytes={done}-")
        try:
            response = urllib.request.urlopen(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and done:  # nothing is left to send: the file was whole already
                return
            raise
        with response:
            if response.status != 206:  # this server starts again from the beginning
                done = 0
            length = response.headers.get("Content-Length")
            total = done + int(length) if length else None
            part.parent.mkdir(parents=True, exist_ok=True)
            with part.open("ab" if done else "wb") as out, self.progress(part.stem, total, done) as advance:
                while chunk := response.read(_CHUNK):
                    out.write(chunk)
                    advance(len(chunk))
        if total is not None and _size(part) < total:
            raise OSError(f"the connection broke after {_size(part):,} of {total:,} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        inner = error.reason
        return f"cannot be reached ({getattr(inner, 'strerror', None) or inner})"
    return str(error) or type(error).__name__
