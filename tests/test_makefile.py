"""What the Makefile prints by itself."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_lines_of_python_and_toml_are_counted_in_src_and_papers(tmp_path: Path) -> None:
    papers = tmp_path / "src" / "biascope" / "papers"
    papers.mkdir(parents=True)
    (tmp_path / "src" / "biascope" / "family.py").write_text("a\n\n# b\n")
    (papers / "figure.py").write_text("c\n" * 40)
    (papers / "claims.toml").write_text("d\n" * 500)
    (papers / "record.json").write_text("e\n" * 9000)
    done = subprocess.run(
        ["make", "-s", "-f", ROOT / "Makefile", "lines"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("src: 543 lines (0.1.0: ")
    assert ", of them papers: 540 (" in done.stdout
