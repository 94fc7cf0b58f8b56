"""The sheets of claims: each statement and claim says where in the paper it comes from, and a reader finds it there."""

import functools
import os
import re
import unicodedata
from pathlib import Path

import pytest

from biascope import papers
from biascope.results.claim import Place

TEXTS = {  # the start of the names of a paper's texts
    "nads2020": ("neural_anisotropy_directions_2020", "thesis"),
    "linearized2021": ("thesis",),
    "dictionaries2022": ("thesis",),
    "task_arithmetic2023": ("thesis",),
    "geometry2025": ("geometric_invariance_hypothesis_2025",),
    "patterns2021": ("pattern_statistics_inductive_bias_2021",),
}

RUN = 10  # so many words in a row are a copy


def folded(text: str) -> str:
    """Letters and digits as a reader sees them: without ligatures, hyphens at line ends, kinds of quotes, spaces and case."""
    text = unicodedata.normalize("NFKC", text).casefold()
    text = re.sub(r"[-\u00ad\u2010\u2011]\s*\n\s*", "", text)
    text = re.sub(r"[\u2018\u2019\u201c\u201d'\"`]", "", text)
    return re.sub(r"[\s\-\u2010\u2011\u2012\u2013\u2014\u2212]+", "", text)


def places(paper: str) -> dict[str, Place]:
    """Where each statement and each claim of a paper says that it comes from."""
    found = papers.find(paper)
    own = {f"statement {each.key}": each.place for each in found.statements}
    claims = (claim for figure in found.figures for claim in figure.claims if claim.kind != "check")
    return own | {claim.statement: claim.place for claim in claims}


@pytest.mark.parametrize("paper", papers.names())
def test_everything_says_where_it_comes_from(paper: str) -> None:
    lacking = [name for name, place in places(paper).items() if not (place.section and (place.words or place.shown_in))]
    assert not lacking


@functools.cache
def text_of(paper: str) -> str:
    """The folded text of a paper; skips where it is not at hand."""
    if not (folder := os.environ.get("BIASCOPE_PAPERS")):
        pytest.skip("the papers' texts are not in the repository: set BIASCOPE_PAPERS to a folder that has them")
    texts = [each for start in TEXTS[paper] for each in sorted(Path(folder).glob(f"{start}*.txt"))]
    assert texts, "the folder has the texts"
    return folded("\n".join(each.read_text(encoding="utf-8") for each in texts))


@pytest.mark.parametrize("paper", papers.names())
def test_the_words_are_in_the_paper(paper: str) -> None:
    absent = {name: place.words for name, place in places(paper).items() if folded(place.words) not in text_of(paper)}
    assert not absent


@pytest.mark.parametrize("paper", papers.names())
def test_no_sentence_of_the_paper_is_copied(paper: str) -> None:
    found = papers.find(paper)
    claims = [claim for figure in found.figures for claim in figure.claims]
    texts = [each for claim in claims for each in (claim.statement, claim.reads)] + [
        each.text for each in found.statements
    ]
    runs = {" ".join(words[at : at + RUN]) for words in map(str.split, texts) for at in range(len(words) - RUN + 1)}
    assert not [run for run in sorted(runs) if folded(run) in text_of(paper)]


def test_folding() -> None:
    assert folded("The ﬁrst eigen-\nvector’s  norm") == folded("the first eigenvector's norm")
