"""What holds for the statements and claims of every paper."""

import dataclasses

import pytest

from biascope import papers
from biascope.papers import verdicts
from biascope.papers.verdicts import Outcome, Standing
from biascope.results.claim import KINDS, Place, Statement

PAPERS = papers.names()


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return verdicts.outcomes(verdicts.standings())


@pytest.mark.parametrize("paper", ["geometry2025", "linearized2021", "nads2020"])
def test_every_statement_has_a_claim_of_the_paper_or_a_reason(paper: str) -> None:
    found = papers.find(paper)
    claims = [claim for figure in found.figures for claim in figure.claims]
    tested = {claim.of for claim in claims if claim.kind == "paper" and not claim.post_hoc}
    for statement in found.statements:
        assert bool(statement.untested) is (statement.key not in tested), f"{paper}: {statement.text}"


@pytest.mark.parametrize("paper", PAPERS)
def test_every_claim_has_a_kind_and_names_its_statement(paper: str) -> None:
    for figure in papers.find(paper).figures:
        for claim in figure.claims:
            assert claim.kind in KINDS
            assert claim.of or claim.kind != "paper", f"{figure.number}: {claim.statement}"


@pytest.mark.parametrize("paper", PAPERS)
def test_remarks_are_sentences(paper: str, outcomes: list[Outcome]) -> None:
    for each in outcomes:
        if each.paper == paper and each.remark:
            assert each.remark[0].isupper(), each.statement.key
            assert each.remark.endswith("."), each.statement.key
            assert each.verdict != "reproduced", each.statement.key


def standing(verdict: str) -> Standing:
    return next(each for each in verdicts.standings() if each.verdict == verdict)


def test_not_reproduced_needs_an_experiment_that_rules_our_settings_out() -> None:
    statement = Statement("it_falls", Place("1"), "It falls.")
    without = Outcome("nads2020", statement, (standing("reproduced"), standing("not reproduced")))
    assert without.verdict == "inconclusive"
    assert "no experiment" in without.remark
    explained = dataclasses.replace(statement, ruled_out="Twice the epochs.")
    known = dataclasses.replace(without, statement=explained)
    assert known.verdict == "not reproduced"
    assert known.remark == "Twice the epochs."
    assert dataclasses.replace(known, claims=(standing("reproduced"),)).remark == ""
