"""A figure run for some of its networks, and added to the committed numbers of the others: on a paper that exists only here."""

import dataclasses
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from fake_papers import registered, rewrite
from PIL import Image

from biascope import papers
from biascope.papers import merging, selection, verdicts
from biascope.papers import reproduce as reproduction
from biascope.results.estimate import Estimate
from biascope.results.record import Record
from biascope.runs.run import Run

PAPER = '''
"""A paper that exists only in tests."""
import numpy as np

from biascope.results.estimate import Estimate
from biascope.results.finding import figure
from biascope.results.plan import Plan

STATE = {"share": 50.0, "epochs": 9}


def draw(finding, dark):
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(2, 1))
    drawn.subplots().plot(finding.arrays["curve"])
    return drawn


@figure("2", title="Compared", plan=Plan({}, {}, {}), show=draw)
def figure_2(plan, run, tell):
    tell("one", Estimate.exact(1))
    tell.array("curve", np.arange(3))


NAMES = ("linear", "lenet", "mlp")
SEEDS = Plan(
    {"seeds": {}}, {"seeds": {"linear": 1, "lenet": 2, "mlp": 3}}, {"seeds": {}},
    titles=dict(zip(NAMES, NAMES)), by="seeds", always=("linear",),
)


@figure("3", title="By network", plan=SEEDS, show=draw)
def figure_3(plan, run, tell):
    for name in plan.networks:
        tell(name, Estimate(STATE["share"], 1.0, STATE["share"] - 2, STATE["share"] + 2))
    tell.array("curve", np.arange(3))
    tell.settings["epochs"] = STATE["epochs"]
    tell.note("a note")
'''
SHEET = """
[[figure]]
number = "2"
[[figure.claim]]
says = "One."
number = "one"
ours = { about = 1, within = 0 }

[[figure]]
number = "3"
[[figure.claim]]
says = "LeNet."
number = "lenet"
ours = { about = 50, within = 5 }
gate = ["lenet"]
trained = [0, 100]
[[figure.claim]]
says = "MLP."
number = "mlp"
ours = { about = 50, within = 5 }
"""


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The only registered paper."""
    with registered("fake2023", PAPER, SHEET, tmp_path, monkeypatch) as module:
        yield module


def outcomes(source: str) -> list[str]:
    return [each.outcome for each in merging.merge(source)]


def dated(done: reproduction.Reproduction, date: str) -> None:
    rewrite(done, date=date)


def by_network(*networks: str, folder: str) -> reproduction.Reproduction:
    run = Run(folder=Path(folder), device="cpu")
    return reproduction.reproduce("fake2023", "3", run=run, networks=networks)


def test_a_run_for_one_network_is_added_to_the_numbers_of_the_others(paper: ModuleType, checkout: Path) -> None:
    dated(by_network("mlp", folder="first"), "2026-01-01 00:00:00 UTC")
    assert outcomes("first") == ["new"]
    figure = papers.figure("fake2023", "3")
    (first,) = verdicts.committed(figure).values()
    assert first.settings == {"epochs": 9, "seeds: linear": 1, "seeds: mlp": 3}, "the restriction is not a setting"
    picture = checkout / "docs/gallery/fake2023-3.png"
    height = png_height(picture)
    paper.STATE["share"] = 60.0
    second = by_network("lenet", folder="second")
    dated(second, "2026-01-02 00:00:00 UTC")
    (added,) = merging.merge("second")
    assert added.outcome == "added"
    assert "lenet, to one of 2026-01-01" in added.words
    (both,) = verdicts.committed(figure).values()
    assert {name: number.value for name, number in both.statistics.items()} == {"linear": 60, "mlp": 50, "lenet": 60}
    assert both.settings == {"epochs": 9, "seeds: linear": 1, "seeds: mlp": 3, "seeds: lenet": 2}
    assert both.notes[0] == "a note"
    assert "lenet were added on 2026-01-02 00:00:00 UTC; the others are of 2026-01-01" in both.notes[1]
    assert [(claim.statistic, verdict) for claim, verdict in both.claims] == [
        ("lenet", "not reproduced"),
        ("mlp", "reproduced"),
    ]
    assert both.seconds == round(first.seconds + second.record.seconds, 1)
    assert png_height(picture) > 2 * height, "the picture of the earlier run stays above, and a line between them"
    assert outcomes("second") == ["kept"]


def test_a_run_with_all_numbers_of_the_earlier_one_replaces_it_and_its_picture(
    paper: ModuleType, checkout: Path
) -> None:
    dated(by_network("mlp", folder="first"), "2026-01-01 00:00:00 UTC")
    assert outcomes("first") == ["new"]
    picture = checkout / "docs/gallery/fake2023-3.png"
    height = png_height(picture)
    dated(by_network("mlp", "lenet", folder="second"), "2026-01-02 00:00:00 UTC")
    assert outcomes("second") == ["replaced"]
    assert png_height(picture) == height
    dated(by_network("lenet", folder="third"), "2026-01-03 00:00:00 UTC")
    assert outcomes("third") == ["added"]
    assert png_height(picture) > 2 * height, "the earlier one has a network that was not measured again"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("second", ["2026-01-02 00:00:00 UTC", "2026-01-01 00:00:00 UTC"])
def test_runs_for_one_network_each_are_added_whichever_ended_first(
    paper: ModuleType, checkout: Path, packed: bool, second: str
) -> None:
    dated(by_network("mlp", folder="runs"), "2026-01-01 00:00:00 UTC")  # the last by its name
    dated(by_network("lenet", folder="runs"), second)
    if packed:
        with tarfile.open("runs.tar.gz", "w:gz") as archive:
            archive.add("runs")
    assert sorted(outcomes("runs.tar.gz" if packed else "runs")) == ["added", "new"]
    (both,) = verdicts.committed(papers.figure("fake2023", "3")).values()
    assert set(both.statistics) == {"linear", "lenet", "mlp"}
    assert both.date == second


def test_settings_of_a_network_change_only_with_all_of_its_numbers(paper: ModuleType, checkout: Path) -> None:
    def record(*networks: str, keys: Sequence[str], date: str, **settings: object) -> Record:
        made = by_network("mlp", folder="one").record
        numbers = {key: Estimate.exact(1).named(key) for key in keys}
        return dataclasses.replace(
            made, statistics=numbers, date=date, settings={**settings, selection.KEY: list(networks)}
        )

    figure = papers.figure("fake2023", "3")
    old = record(
        "mlp", keys=("mlp_gap", "mlp_lead"), date="1", **{"runs: MLP": 2, "networks": ["MLP"], "by": {"mlp": 1}}
    )
    two = {"runs: LeNet": 3, "networks": ["LeNet"], "by": {"lenet": 2}}
    both = merging.united(figure, old, record("lenet", keys=("lenet_gap",), date="2", **two))
    assert both.settings["networks"] == ["MLP", "LeNet"]
    assert both.settings["by"] == {"mlp": 1, "lenet": 2}
    again = merging.united(
        figure, old, record("mlp", keys=("mlp_gap", "mlp_lead", "mlp_new"), date="2", **{"runs: MLP": 5})
    )
    assert again.settings["runs: MLP"] == 5
    whole = record(
        "mlp",
        "lenet",
        keys=("mlp_gap", "mlp_lead", "lenet_gap"),
        date="2",
        **{"networks": ["MLP", "LeNet"], "clip": 0.5},
    )
    assert merging.united(figure, dataclasses.replace(old, settings={"clip": 1.0}), whole).settings == {
        "networks": ["MLP", "LeNet"],
        "clip": 0.5,
    }
    for changed in ({"runs: MLP": 5}, {"by": {"mlp": 4}}):
        with pytest.raises(ValueError, match=f"but {next(iter(changed))} is"):
            merging.united(figure, old, record("mlp", keys=("mlp_gap",), date="2", **changed))


@pytest.mark.parametrize("change", ["epochs", "device"])
def test_a_run_for_one_network_is_not_added_to_one_of_other_settings(
    paper: ModuleType, checkout: Path, change: str
) -> None:
    dated(by_network("mlp", folder="first"), "2026-01-01 00:00:00 UTC")
    merging.merge("first")
    paper.STATE["epochs"] = 3 if change == "epochs" else 9
    done = by_network("lenet", folder="second")
    if change == "device":
        rewrite(done, device="cuda (a GPU)")
    (refused,) = merging.merge("second")
    assert refused.outcome == "refused"
    assert f"must have the settings of the committed one, but {change} is" in refused.words
    assert "lenet" not in verdicts.committed(papers.figure("fake2023", "3"))["laptop"].statistics


def test_a_figure_that_compares_its_networks_is_run_as_a_whole(paper: ModuleType) -> None:
    run = Run(folder=Path("runs"), device="cpu")
    with pytest.raises(ValueError, match=r"is run for all of its networks together\. Leave --network out"):
        reproduction.reproduce("fake2023", "2", run=run, networks=("lenet",))
    with pytest.raises(ValueError, match=r"has linear, lenet, mlp at laptop effort, got vgg11\. Pass --network mlp"):
        reproduction.reproduce("fake2023", "3", run=run, networks=("lenet", "vgg11"))
    assert not Path("runs").exists(), "what is refused leaves nothing behind and has done nothing"
    assert by_network("mlp", "mlp", folder="twice").folder.name == "3-laptop-mlp"
    assert set(by_network(folder="runs").record.statistics) == {"linear", "lenet", "mlp"}


def png_height(path: Path) -> int:
    with Image.open(path) as image:
        return image.height
