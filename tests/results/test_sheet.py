"""Sheets of claims: what a block stands for, and what is refused. Plans: the rows of one table."""

from pathlib import Path

import pytest

from biascope.results.claim import Trained
from biascope.results.plan import Plan
from biascope.results.sheet import FILE, parsed, sheet

STATEMENT = """
[statement.it_falls]
says = "Accuracy falls."
where = "4.1: 'decreases with the index'"
untested = "No number is given."
"""
FIGURE = """
[[figure]]
number = "6"
of = "it_falls"
effort = "paper"
gate = ["{net}_train_accuracy"]
for = [{ net = "LeNet", effort = "laptop" }, { net = "ResNet-18", paper = { at_most = -0.5 }, post_hoc = true }]
[[figure.claim]]
says = "{net}'s accuracy falls."
number = "{net}_rank_correlation"
paper = { at_most = 0.0 }
"""


def test_a_row_fills_words_and_replaces_columns() -> None:
    found = parsed(STATEMENT + FIGURE)
    (statement,) = found.statements
    assert (statement.key, statement.untested) == ("it_falls", "No number is given.")
    assert (statement.place.section, statement.place.words) == ("4.1", "decreases with the index")
    lenet, resnet = found.claims["6"]
    assert (lenet.statement, lenet.statistic) == ("LeNet's accuracy falls.", "lenet_rank_correlation")
    assert lenet.trained == (Trained("lenet_train_accuracy", 50.0, 100.0),)
    assert resnet.trained == (Trained("resnet_18_train_accuracy", 50.0, 100.0),)
    assert [(each.minimum_effort, each.tolerance, each.post_hoc) for each in (lenet, resnet)] == [
        ("laptop", 0.0, False),
        ("paper", -0.5, True),
    ]
    assert lenet.place == resnet.place == statement.place, "of the statement"


def test_columns_of_a_claim_replace_those_of_its_figure() -> None:
    own = """
[[figure.claim]]
of = ""
says = "It takes 3 s."
number = "seconds"
ours = { about = 3, within = 1 }
gate = ["least_share", ["responds", 0, 100]]
trained = [0, 1]
effort = "smoke"
shown_in = "figure 6"
"""
    claim = parsed(STATEMENT + FIGURE + own).claims["6"][-1]
    assert (claim.of, claim.kind, claim.published, claim.tolerance) == ("", "ours", 3.0, 1.0)
    assert claim.trained == (Trained("least_share", 0.0, 1.0), Trained("responds", 0.0, 100.0))
    assert (claim.minimum_effort, claim.place.shown_in) == ("smoke", "figure 6")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("[[figure]]", "[[drawing]]", r"unknown column \['drawing'\]"),
        ("says = \"{net}'s", "said = 1\nsays = \"{net}'s", r"unknown column \['said'\]"),
        ('of = "it_falls"', 'of = "it_rises"', "must name a statement, got 'it_rises'"),
        ("paper = { at_most = 0.0 }", "", "must have one bound"),
        ("paper = { at_most = 0.0 }", "paper = { at_most = 0.0, at_least = 1.0 }", "must have one bound"),
        ("paper = { at_most = 0.0 }", "paper = { about = 0.0 }", "must have one bound"),
        ("paper = { at_most = 0.0 }", "paper = { at_most = 0.0 }\nours = { at_most = 1.0 }", "must have one bound"),
        ("{net}_rank", "{network}_rank", r"has no word for \['network'\] in a row of 'for'"),
        ("{net}'s accuracy falls.", "It falls{net}{which}.", r"has no word for \['which'\]"),
        ('net = "ResNet-18"', 'net = "LeNet"', "claims of a figure must be different"),
        ("decreases with the index", "decreases with the index of the direction in all networks", "at most 8"),
        ('effort = "laptop"', 'effort = "all"', "effort must be one of"),
    ],
)
def test_what_is_no_sheet_is_named(old: str, new: str, reason: str, tmp_path: Path) -> None:
    assert old in STATEMENT + FIGURE
    (tmp_path / FILE).write_text((STATEMENT + FIGURE).replace(old, new))
    with pytest.raises(ValueError, match=reason) as told:
        sheet(tmp_path)
    assert str(tmp_path / FILE) in str(told.value)


def test_a_folder_without_a_sheet_has_an_empty_one(tmp_path: Path) -> None:
    assert sheet(tmp_path).claims == {}


def test_the_rows_of_a_plan() -> None:
    titles = {"lenet": "LeNet", "vgg11": "VGG11", "mlp": "MLP"}
    row = {"epochs": {"mlp": 1, "lenet": 2, "vgg11": 3}, "rate": {"lenet": 0.1}, "batches": {"10": 20}, "test": 9}
    plan = Plan(row, row, row, {"epochs": {"lenet": 50}}, titles, by="epochs", always=("mlp",))
    assert plan.networks("paper") == ("mlp", "lenet", "vgg11")
    whole = {
        "epochs: MLP": 1,
        "epochs: LeNet": 2,
        "epochs: VGG11": 3,
        "rate: LeNet": 0.1,
        "batches": {"10": 20},
        "test": 9,
    }
    assert plan.row("paper").settings == whole
    alone = plan.row("paper", ["vgg11"])
    assert (alone.networks, alone["rate"], alone["test"]) == (("mlp", "vgg11"), {}, 9)
    assert alone.settings == {"epochs: MLP": 1, "epochs: VGG11": 3, "batches": {"10": 20}, "test": 9}
    assert plan.row("smoke", ["vgg11"]).effort == "smoke"
    with pytest.raises(ValueError, match="effort must be one of"):
        plan.row("published")
