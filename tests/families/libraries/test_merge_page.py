"""The page on merging models of transformers: its scripts and commands run as they stand, and say what it shows."""

import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from biascope.cli import app
from biascope.families.libraries.packages import define_operators_of_torchvision

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    define_operators_of_torchvision()
pytest.importorskip("transformers")
pytest.importorskip("peft")
PAGE = Path(__file__).parents[3] / "docs" / "merge_transformers.md"
RUN = "from biascope.families.libraries.packages import define_operators_of_torchvision as d; d(); exec(open({!r}).read())"


def plain(text: str) -> str:
    """Text without numbers, which may differ in their last digits on another machine, and without line breaks."""
    return re.sub(r"[\d.,]+", "#", " ".join(text.split()))


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(python|bash|text)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    output = ""
    for kind, text in blocks:
        if kind == "text":
            for part in re.split("…|\n", text):
                assert plain(part) in output
        elif kind == "python":
            Path("script.py").write_text(text)
            words = [sys.executable, "-W", "ignore", "-c", RUN.format("script.py")]
            output = plain(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        else:
            done = CliRunner().invoke(app, [*shlex.split(text)[1:], "--quiet"])
            assert done.exit_code == 0, done.output
            output = plain(done.stdout)
            if "merge check" in text:  # a verdict may turn with the last digits of a training
                output += plain(PAGE.read_text(encoding="utf-8"))
