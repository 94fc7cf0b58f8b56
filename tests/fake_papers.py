"""Papers that exist only in tests: registered alone, with records that tests may rewrite."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from biascope import papers
from biascope.papers import reproduce as reproduction
from biascope.papers import verdicts
from biascope.results import store
from biascope.results.record import DOCUMENT


@contextlib.contextmanager
def registered(
    name: str, paper: str, sheet: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """The only registered paper, in an empty folder and with no committed results."""
    register = folder / "register"
    register.mkdir()
    (register / f"{name}.py").write_text(paper)
    (register / "claims.toml").write_text(sheet)
    (register / "support.py").write_text("raise RuntimeError('a file without a year is not a paper')")
    monkeypatch.setattr(papers, "__path__", [str(register)])
    monkeypatch.setattr(verdicts, "RESULTS", folder / "committed")
    monkeypatch.chdir(folder)
    yield importlib.import_module(f"biascope.papers.{name}")
    del sys.modules[f"biascope.papers.{name}"]
    delattr(papers, name)


def record_in(folder: Path | str) -> dict[str, Any]:
    """The record of a finding on disk."""
    record: dict[str, Any] = store.read(Path(folder), DOCUMENT)["record"]
    return record


def rewrite(done: reproduction.Reproduction, **changes: Any) -> None:
    """Change the record of a finding on disk, as if it had been written so."""
    store.write(done.folder, {"record": record_in(done.folder) | changes}, done.finding.arrays, name=DOCUMENT)
