"""`--memory` of every command that computes: what does not fit is refused before the work, in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_cases import CASES, NET
from command_tree import COMMANDS
from typer.testing import CliRunner

from biascope.cli import app

COMPUTING = {"scan", "explain", "compare", "selftest", "kernel", "measure", "patterns", "edit", "reproduce"}
COMPUTING |= {"inr fit", "inr advise", "merge check", "merge apply"}
REFUSED = {words: [*words.split(), *CASES[words][0]] for words in ("scan", "compare", "kernel", "merge check")}
REFUSED["measure"] = ["measure", "average_geometry", *NET, "--draws", "8"]


def test_every_command_that_computes_has_a_limit_of_memory() -> None:
    have = {words for words, command in COMMANDS.items() if "--memory" in {o for p in command.params for o in p.opts}}
    assert have >= COMPUTING


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_fit_is_refused_before_the_work(words: str, folder: Path) -> None:
    before = set(folder.rglob("*.safetensors"))
    done = CliRunner().invoke(app, [*REFUSED[words], "--memory", "100MB"])
    assert done.exit_code != 0
    told = str(done.exception)
    assert "of memory, but --memory allows 100 MB. Pass " in told
    assert ", or --memory 0." in told or ", or --memory 1" in told
    assert set(folder.rglob("*.safetensors")) == before


def test_a_size_that_is_none_is_refused(folder: Path) -> None:
    done = CliRunner().invoke(app, [*REFUSED["scan"], "--memory", "much"])
    assert str(done.exception) == "--memory must be a size such as 2GB, got 'much'. Pass 2GB."
