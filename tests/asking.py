"""The command line asked within this process, and what a user may expect of any answer."""

from __future__ import annotations

import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from biascope import cli


def said(app: typer.Typer, *words: str) -> str:
    """What a command prints that succeeds."""
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def refused(app: typer.Typer, folder: Path, message: str, *words: str) -> None:
    """A command raises one sentence, and writes nothing."""

    def files() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if "__pycache__" not in path.parts}

    before = files()
    done = CliRunner().invoke(app, list(words))
    assert isinstance(done.exception, ValueError), done.output
    assert re.search(message, str(done.exception)), done.exception
    assert "\n" not in str(done.exception)
    assert files() == before


@dataclass(frozen=True)
class Answer:
    """What a command gave: its exit status and what it printed."""

    status: int
    out: str
    err: str


class Asking:
    """Asks commands in an empty folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self._patch, self._capture, self.folder = monkeypatch, capsys, folder
        monkeypatch.chdir(folder)
        monkeypatch.setenv("COLUMNS", "400")

    def __call__(self, *words: object) -> Answer:
        """The answer to a command; an exception that reaches here would have been a traceback."""
        self._patch.setattr(sys, "argv", ["biascope", *map(str, words)])
        status: object = 0
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("default")  # the tests make errors of them
                cli.main()
        except SystemExit as stop:
            status = stop.code
        told = self._capture.readouterr()
        assert status is None or isinstance(status, int), f"exit with {status!r}"
        return Answer(status or 0, told.out, told.err)

    def refused(self, *words: object, naming: str = "") -> Answer:
        """A mistake: exit status 2, one sentence, no traceback, nothing printed and nothing left behind."""
        before = self.files()
        answer = self(*words)
        told = [line for line in answer.err.splitlines() if line.strip()]
        assert answer.status == 2, f"status {answer.status}: {answer.out[-500:]} {answer.err[-500:]}"
        sentences = [line for line in told if not line.startswith(_BY_THE_WAY)]
        assert len(sentences) == 1, answer.err
        assert "Traceback" not in answer.err
        assert re.search(r"[.!?)]$", sentences[0]), answer.err
        assert naming in answer.err
        assert not answer.out.strip(), answer.out
        assert self.files() == before, sorted(self.files() - before)
        return answer

    def answered(self, *words: object, warning: str = "") -> Answer:
        """A number with exit status 0."""
        answer = self(*words)
        assert answer.status == 0, answer.err[-800:]
        assert answer.out.strip()
        assert warning in answer.out + answer.err
        return answer

    def files(self) -> set[str]:
        """All files and folders."""
        return {
            str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if "__pycache__" not in path.parts
        }


_BY_THE_WAY = ("biascope: FutureWarning", "biascope: DeprecationWarning")  # of other people's code
