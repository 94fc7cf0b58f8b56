"""What holds for the statements and claims of every paper."""

import dataclasses
from types import SimpleNamespace
from typing import cast

import pytest

from biascope import papers
from biascope.papers import verdicts
from biascope.papers.levels import level
from biascope.papers.verdicts import Conclusion, Standing
from biascope.results.claim import KINDS, Claim, Place, Statement, Trained
from biascope.results.estimate import Estimate
from biascope.results.finding import FigureOfPaper, Finding
from biascope.results.plan import Plan
from biascope.results.record import Record

PAPERS = papers.names()
CLAIM = Claim("It falls.", "lenet_slope", "at most", None, 2.0)


@pytest.fixture(scope="module")
def conclusions() -> list[Conclusion]:
    return verdicts.conclusions(verdicts.standings())


@pytest.mark.parametrize("paper", PAPERS)
def test_every_statement_has_a_claim_of_the_paper_or_a_reason(paper: str, conclusions: list[Conclusion]) -> None:
    found = papers.find(paper)
    claims = [claim for figure in found.figures for claim in figure.claims]
    tested = {claim.of for claim in claims if claim.kind == "paper" and not claim.post_hoc}
    tested |= {
        each.statement.key for each in conclusions if each.paper == paper and each.claims
    }  # by a run from new seeds
    for statement in found.statements:
        assert bool(statement.untested) is (statement.key not in tested), f"{paper}: {statement.text}"


@pytest.mark.parametrize("paper", PAPERS)
def test_every_claim_has_a_kind_and_names_its_statement(paper: str) -> None:
    for figure in papers.find(paper).figures:
        for claim in figure.claims:
            assert claim.kind in KINDS
            assert claim.of or claim.kind != "paper", f"{figure.number}: {claim.statement}"


@pytest.mark.parametrize("paper", PAPERS)
def test_remarks_are_sentences(paper: str, conclusions: list[Conclusion]) -> None:
    for each in conclusions:
        if each.paper == paper and each.remark:
            assert each.remark[0].isupper(), each.statement.key
            assert each.remark.endswith("."), each.statement.key
            assert each.verdict != "reproduced", each.statement.key


def standing(verdict: str) -> Standing:
    return next(each for each in verdicts.standings() if each.verdict == verdict)


def test_not_reproduced_needs_an_experiment_that_rules_our_settings_out() -> None:
    statement = Statement("it_falls", Place("1"), "It falls.")
    without = Conclusion("nads2020", statement, (standing("reproduced"), standing("not reproduced")))
    assert without.verdict == "inconclusive"
    assert "no experiment" in without.remark
    explained = dataclasses.replace(statement, ruled_out="Twice the epochs.")
    known = dataclasses.replace(without, statement=explained)
    assert known.verdict == "not reproduced"
    assert known.remark == "Twice the epochs."
    assert dataclasses.replace(known, claims=(standing("reproduced"),)).remark == ""


# Levels


def shown(
    settings: dict[str, object], published: dict[str, object], claim: Claim = CLAIM, numbers: tuple[str, ...] = ()
) -> tuple[str, tuple[str, ...]]:
    """The level of a run with some settings, of a figure with others."""
    plan = Plan({}, {}, {}, published)
    figure = FigureOfPaper(
        "made2024", "1", "It", (claim,), plan, lambda plan, run, tell: None, lambda finding, dark: None
    )  # type: ignore[arg-type,return-value]
    found = {key: Estimate.exact(1.0).named(key) for key in (claim.statistic, *numbers)}
    how = {"device": "cpu", "precision": "float32", "seconds": 1.0, "date": "2026-01-01", "versions": {}}
    return level(figure, claim, Record.of(figure, Finding(found, {}, settings), "paper", how))


@pytest.mark.parametrize(
    ("settings", "published", "told"),
    [
        ({"epochs: LeNet": 9}, {"epochs: LeNet": 9}, ("reproduced", ())),
        ({"epochs: LeNet": 3}, {"epochs: LeNet": 9}, ("reduced", ("3 of 9 epochs",))),
        ({"epochs: LeNet": 9, "epochs: VGG11": 3}, {"epochs: LeNet": 9, "epochs: VGG11": 9}, ("reproduced", ())),
        ({"runs": 25}, {"runs": 10}, ("reproduced", ())),  # more is no difference
        ({"runs by m": {"6": 40, "20": 5}}, {"runs by m": {"6": 10}}, ("reproduced", ())),
        ({"epochs": 20}, {"epochs": 10}, ("reduced", ("epochs 20 instead of 10",))),
        ({"rate": 0.1}, {"rate": 0.5}, ("reduced", ("rate 0.1 instead of 0.5",))),
        ({}, {"data": "CelebA"}, ("reduced", ("data not recorded",))),
        ({"data": "faces"}, {"data": "CelebA"}, ("transferred", ("data faces instead of CelebA",))),
        ({"networks": ["LeNet"]}, {"networks": ["LeNet", "ViT"]}, ("reproduced", ())),
        ({"networks": ["LeNet"]}, {"networks": ["ViT"]}, ("transferred", ("networks LeNet instead of ViT",))),
        ({}, {}, ("derived", ())),
    ],
)
def test_the_level_is_computed_from_plan_and_run(
    settings: dict[str, object], published: dict[str, object], told: tuple[str, tuple[str, ...]]
) -> None:
    assert shown(settings, published) == told


def test_a_training_without_published_settings_is_not_derived() -> None:
    gated = dataclasses.replace(CLAIM, trained=(Trained("lenet_train_accuracy", 50.0, 100.0),))
    assert shown({}, {}, gated) == ("reduced", ("the published settings are not listed",))


def test_a_claim_that_names_no_network_is_about_all_that_ran() -> None:
    both = dataclasses.replace(CLAIM, statistic="least_accuracy")
    settings = {"epochs: LeNet": 9, "epochs: VGG11": 3}
    published = {"epochs: LeNet": 9, "epochs: VGG11": 9, "epochs: ViT": 9}
    assert shown(settings, published, both) == ("reduced", ("3 of 9 epochs",))


def held(verdict: str = "reproduced", level: str = "reproduced", fitted: bool = False) -> Standing:
    """A claim with a verdict on a run of some level."""
    return cast(Standing, SimpleNamespace(verdict=verdict, level=(level, (f"less, {level}",)), fitted=fitted))


@pytest.mark.parametrize(
    ("claims", "seen", "verdict", "remark"),
    [
        ([held(), held()], [], "reproduced", ""),
        ([held(), held(level="derived")], [], "derived", ""),
        ([held(level="transferred"), held(level="reduced")], [], "transferred", "With less, transferred."),
        ([held(), held("not run", "")], [], "in part", "Of 2 claims 1 hold; the others were not run."),
        ([held(), held("inconclusive")], [], "inconclusive", ""),
        ([], [held(fitted=True)], "fitted after the fact", ""),
        ([], [held(fitted=True), held("inconclusive")], "not run", ""),
        ([held("not run", "")], [held(fitted=True)], "not run", ""),
        ([], [], "not run", ""),
    ],
)
def test_a_statement_stands_no_better_than_its_claims(
    claims: list[Standing], seen: list[Standing], verdict: str, remark: str
) -> None:
    outcome = Conclusion("nads2020", Statement("it_falls", Place("1"), "It falls."), tuple(claims), tuple(seen))
    assert (outcome.verdict, outcome.remark) == (verdict, remark)


def test_claims_written_after_their_numbers_do_not_decide() -> None:
    late = [each for each in verdicts.standings() if each.fitted and each.claim.kind == "paper"]
    assert any(not each.claim.post_hoc for each in late)  # the records tell it of claims that are not marked by hand
    assert not any(each.decides for each in late)
