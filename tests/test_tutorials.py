"""The tutorials: what a reader finds in each, and that each runs without warnings and leaves nothing behind."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
SCRIPTS = sorted(FOLDER.glob("plot_*.py"))


def test_there_are_eight_and_a_header():
    assert [script.name[5] for script in SCRIPTS] == list("12345678")
    assert (FOLDER / "GALLERY_HEADER.rst").read_text(encoding="utf-8").startswith("Tutorials\n=========\n")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_reader_finds_title_question_answer_and_limits(script):
    text = script.read_text(encoding="utf-8")
    title, line, *rest = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    assert line == "=" * len(title)
    assert "**Question.**" in "\n".join(rest)
    assert "**Answer.**" in "\n".join(rest)
    end = text[text.rindex("# %%") :]
    parts = re.split(r"# \*\*(What to conclude|What not to conclude)\*\*", end)
    assert parts[1::2] == ["What to conclude", "What not to conclude"]
    assert all("# - " in part for part in parts[2::2])
    assert ":doc:`" in parts[-1]
    assert "biascope " in parts[-1].split("code-block:: bash")[1]
    pages = re.findall(r":doc:`(?:[^`<]*<)?/([^`>]+)>?`", text)
    assert all((FOLDER.parent / f"{page}.md").is_file() for page in pages)
    for cell in text.split("\n# %%")[1:]:  # a value at the end of a cell would be printed under it
        last = ast.parse(cell).body[-1:]
        assert not last or not isinstance(last[0], ast.Expr) or re.match(r"(print|show)\(", ast.unparse(last[0]))
    assert not re.search(r"(?<![\w.`])/(work|home|tmp|root|Users)/", text)  # no path of a machine


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_it_runs_and_leaves_nothing_behind(script, tmp_path):
    found = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(script)],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(Path(__file__).parents[1] / "src")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert found.returncode == 0, found.stderr
    assert "Warning:" not in found.stderr
    assert not list(tmp_path.iterdir())
