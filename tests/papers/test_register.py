"""The register of papers: a paper is a folder, and its figures are found in any of its files, in the order of their numbers."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from biascope import papers

FILE = """
from biascope.results.claim import Claim, Finding, figure


def measured(effort, run):
    return Finding({}, {}, {})


def numbered(number):
    claims = [Claim("True.", "one", "about", 1, 0)]
    return figure(number, title="It", claims=claims, draw=lambda finding, dark: None)(measured)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the only paper."""
    made = tmp_path / "made2024"
    made.mkdir()
    (made / "__init__.py").write_text('PAPER = "Nobody (2024). Made up."\n')
    monkeypatch.setattr(papers, "__path__", [str(tmp_path)])
    yield made
    for name in [name for name in sys.modules if name.startswith("biascope.papers.made2024")]:
        del sys.modules[name]
    if hasattr(papers, "made2024"):
        del papers.made2024


def test_figures_are_found_in_every_file_and_sorted_by_number(folder: Path) -> None:
    (folder / "shared.py").write_text(FILE)
    first = "from biascope.papers.made2024.shared import numbered\n"
    (folder / "late.py").write_text(f"{first}a, b, c, d = map(numbered, ('10', 'table 1', 'A.3', '2'))")
    (folder / "again.py").write_text(f"{first}from biascope.papers.made2024.late import a\ne = numbered('2b')")
    found = papers.find("made2024")
    assert found.title == "Nobody (2024). Made up."
    assert [each.number for each in found.figures] == ["2", "2b", "10", "A.3", "table 1"]
    assert {each.paper for each in found.figures} == {"made2024"}


def test_two_figures_of_one_number_are_refused(folder: Path) -> None:
    (folder / "one.py").write_text(FILE + "\n\none = numbered('1')\n")
    (folder / "two.py").write_text(FILE + "\n\ntwo = numbered('1')\n")
    with pytest.raises(ValueError, match="The figures of made2024 must have different numbers"):
        papers.find("made2024")
