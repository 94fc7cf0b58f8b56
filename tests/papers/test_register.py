"""The register of papers: a paper is a folder, and its figures are found in any of its files, in the order of their numbers."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from biascope import papers
from biascope.results import sheet as sheets

FILE = """
from biascope.results.finding import figure
from biascope.results.plan import Plan


def measured(plan, run, tell):
    pass


def numbered(number):
    return figure(number, title="It", plan=Plan({}, {}, {}), show=lambda finding, dark: None)(measured)
"""


def sheet(*numbers: str) -> str:
    """The sheet of a paper with one claim per figure."""
    claim = '[[figure.claim]]\nsays = "True."\nnumber = "one"\nours = { about = 1, within = 0 }\n'
    return "".join(f'[[figure]]\nnumber = "{number}"\n{claim}' for number in numbers)


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
    (folder / "claims.toml").write_text(sheet("2", "2b", "10", "A.3", "table 1"))
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


def test_sheet_and_figures_must_agree(folder: Path) -> None:
    (folder / "one.py").write_text(FILE + "\n\none = numbered('1')\n")
    with pytest.raises(ValueError, match=r"Figure 1 of made2024 must have a claim, and claims\.toml has none"):
        papers.find("made2024")
    for name in [name for name in sys.modules if name.startswith("biascope.papers.made2024")]:
        del sys.modules[name]
    (folder / "one.py").rename(folder / "other.py")
    (folder / "claims.toml").write_text(sheet("1", "3"))
    sheets.sheet.cache_clear()
    with pytest.raises(ValueError, match=r"has claims on figures that are not there: \['3'\]"):
        papers.find("made2024")
