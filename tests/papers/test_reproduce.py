"""Figures run and judged, the committed results, and the command: on a paper of two figures that exists only here."""

import dataclasses
import importlib.util
import json
import math
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer
from fake_papers import record_in, registered, rewrite
from typer.testing import CliRunner

from biascope import papers
from biascope.cli import reproduce as reproduce_commands
from biascope.papers import merging, verdicts
from biascope.papers import reproduce as reproduction
from biascope.results import paper_page as reproduction_page
from biascope.results import store
from biascope.results.claim import Claim
from biascope.results.estimate import Estimate
from biascope.results.record import DOCUMENT
from biascope.runs.run import Run

ROOT = Path(__file__).resolve().parents[2]
EVIL = '</td><script>window.broken=1</script><img src=x onerror="y">|_*'
PAPER = '''
"""A paper that exists only in tests."""
import numpy as np
import torch
from pathlib import Path

from biascope.results.estimate import Estimate
from biascope.results.finding import figure
from biascope.results.plan import Plan
from biascope.runs.trials import Trials

PAPER = "Nobody (2024). Two figures."
STATE = {"share": 50.0, "fail_at": None, "fail": False, "draw": True, "parts": True}
CALLS = []
EVIL = THE_EVIL


def draw_two(finding, dark):
    if not STATE["draw"]:
        raise RuntimeError("no ink")
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(2, 1))
    drawn.subplots().plot(finding.arrays["curve"], color="white" if dark else "black")
    return drawn


SEEDS = {"seeds": (0, 1, 2)}


@figure("2", title="Shares", plan=Plan(SEEDS, SEEDS, SEEDS, published={**SEEDS, "epochs": 9}), show=draw_two)
def figure_2(plan, run, tell):
    trials = Trials("work", run, code=(), figure="2", effort=plan.effort)

    def work(key):
        if key == STATE["fail_at"]:
            raise RuntimeError("the machine stops")
        CALLS.append((plan.effort, key))
        return {"share": torch.tensor(STATE["share"])}

    shares = [float(outcome["share"]) for outcome in trials.outcomes(["a", "b", "c"], work)]
    share = Estimate(shares[0], 1.0, shares[0] - 2, shares[0] + 2)
    tell("share of " + EVIL, share, "%", key="share")
    tell("seeds", Estimate.exact(3))
    if plan.effort != "smoke" and STATE["parts"]:
        tell("parts", Estimate(1.0))
    tell.array("curve", np.array(shares))
    tell.note("a note " + EVIL)


@figure("S21-S22", title="Fails at times", plan=Plan({}, {}, {}), show=draw_two)
def figure_s21(plan, run, tell):
    if STATE["fail"]:
        raise RuntimeError("no luck")
    tell("one", Estimate.exact(1))
    tell.array("curve", np.arange(3))
    tell.settings["run"] = run.folder
'''.replace("THE_EVIL", repr(EVIL))
SHEET = """
[statement.half]
says = "Half of them."
where = "1: 'one half'"
[statement.parts]
says = "Few parts."
where = "2"
[statement.silence]
says = "Nothing tests this."
where = "3"

[[figure]]
number = "2"
[[figure.claim]]
of = "half"
says = "About fifty."
number = "share"
paper = { about = 50, within = 5 }
gate = ["share"]
trained = [0, 100]
[[figure.claim]]
says = "Many seeds."
reads = THE_EVIL
number = "seeds"
ours = { at_least = 3 }
effort = "smoke"
[[figure.claim]]
of = "parts"
says = "Parts."
number = "parts"
paper = { at_most = 2 }
printed = 1

[[figure]]
number = "S21-S22"
[[figure.claim]]
says = "One."
number = "one"
ours = { about = 1, within = 0 }

[[withdrawn]]
figure = "2"
says = "A claim of the past."
verdict = "reproduced"
reason = "The paper does not say it."
""".replace("THE_EVIL", json.dumps(EVIL))


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The only registered paper."""
    with registered("fake2024", PAPER, SHEET, tmp_path, monkeypatch) as module:
        yield module


def run_figure(number: str = "2", effort: str = "laptop", folder: str = "runs") -> reproduction.Reproduction:
    return reproduction.reproduce("fake2024", number, effort=effort, run=Run(folder=Path(folder), device="cpu"))


def rewrite_claim(done: reproduction.Reproduction, place: int, **changes: Any) -> None:
    """Change the terms of a claim in a finding on disk."""
    claims = record_in(done.folder)["claims"]
    claims[place] |= changes
    rewrite(done, claims=claims)


def dated(done: reproduction.Reproduction, date: str) -> None:
    """Change the date of a finding on disk."""
    rewrite(done, date=date)


def outcomes(source: Path | str) -> list[str]:
    return [each.outcome for each in merging.merge(source)]


# The register


def test_the_register_reads_file_names(paper: ModuleType) -> None:
    assert papers.names() == ("fake2024",)
    found = papers.find("Fake-2024")
    assert found.title == "Nobody (2024). Two figures."
    assert [figure.number for figure in found.figures] == ["2", "S21-S22"]
    assert papers.figure("fake2024", "s21 s22") is papers.figure("fake2024", "Fig. S21-S22") is found.figures[1]


def test_names_that_are_not_there_bring_the_nearest(paper: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"paper must be one of 'fake2024', got 'fak24'\. Did you mean 'fake2024'"):
        papers.find("fak24")
    with pytest.raises(
        ValueError, match=r"figure of fake2024 must be one of '2', 'S21-S22', got 'S21'\. Did you mean 'S21-S22'"
    ):
        papers.figure("fake2024", "S21")


def test_the_register_and_the_command_do_not_import_torch() -> None:
    code = "import sys, biascope.papers as p, biascope.cli.reproduce, biascope.results.claim; p.names(); "
    code += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_shipped_paper_has_figures_with_claims() -> None:
    for name in papers.names():
        figures = papers.find(name).figures
        assert figures
        assert {figure.paper for figure in figures} == {name}


# One figure


def test_a_figure_is_run_judged_and_written(paper: ModuleType) -> None:
    done = run_figure()
    assert done.folder == Path("runs/fake2024/2-laptop")
    document = json.loads((done.folder / "finding.json").read_text())
    assert list(document) == ["format", "record", "arrays", "digest"]
    record = document["record"]
    expected = {"format": 2, "paper": "fake2024", "figure": "2", "effort": "laptop", "precision": "float32"}
    assert {key: record[key] for key in expected} == expected
    assert record["device"].startswith("cpu (")
    assert set(record["versions"]) == {"biascope", "torch", "numpy", "python"}
    assert record["settings"] == {"seeds": [0, 1, 2]}
    assert (record["statistics"]["share"]["high"], record["statistics"]["share"]["unit"]) == (52, "%")
    assert [claim["verdict"] for claim in record["claims"]] == ["reproduced", "reproduced", "inconclusive"]
    assert record["seconds"] >= 0
    with np.load(done.folder / document["arrays"], allow_pickle=False) as arrays:
        assert arrays["curve"].tolist() == [50, 50, 50]
    assert (done.folder / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert done.page == Path("runs/report.html")
    assert not list(done.folder.glob(".*"))  # nothing temporary is left


def test_a_smoke_run_is_inconclusive_and_a_part_left_out_is_not_run(paper: ModuleType) -> None:
    verdicts = [verdict for _, verdict in run_figure(effort="smoke").record.claims]
    assert verdicts == ["inconclusive", "reproduced", "not run"]


def test_an_interrupted_figure_goes_on_where_it_was(paper: ModuleType) -> None:
    paper.STATE["fail_at"] = "c"
    with pytest.raises(RuntimeError, match="the machine stops"):
        run_figure()
    assert not Path("runs/fake2024/2-laptop/finding.json").exists()
    before = sum(json.loads(Path("runs/fake2024/2-laptop/seconds.json").read_text()).values())
    paper.STATE["fail_at"] = None
    done = run_figure()
    assert paper.CALLS == [("laptop", "a"), ("laptop", "b"), ("laptop", "c")]
    after = sum(json.loads(Path("runs/fake2024/2-laptop/seconds.json").read_text()).values())
    assert after > before > 0  # the cost includes the attempt that failed
    assert done.record.seconds == round(after, 1)


def test_numbers_do_not_need_pictures(paper: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduction, "_installed", lambda package: False)
    done = run_figure()
    assert done.page is None
    assert sorted(path.name for path in done.folder.iterdir()) == [
        store.read(done.folder, DOCUMENT)["arrays"],
        "finding.json",
        "seconds.json",
        "trials",
    ]


def test_a_picture_that_fails_costs_no_number_and_leaves_no_old_picture(paper: ModuleType) -> None:
    done = run_figure()
    paper.STATE["draw"] = False
    with pytest.raises(RuntimeError, match="no ink"):
        run_figure()
    assert (done.folder / "finding.json").exists()
    assert not (done.folder / "picture.png").exists()


def test_an_effort_that_is_not_there_writes_nothing(paper: ModuleType) -> None:
    with pytest.raises(ValueError, match="effort must be one of smoke, laptop, paper, got 'all'"):
        run_figure(effort="all")
    assert not Path("runs").exists()


def test_the_page_shows_every_finding_and_escapes_every_string(paper: ModuleType) -> None:
    run_figure("S21-S22")
    run_figure("2", "smoke")
    Path("runs/fake2024/9-paper").mkdir()
    Path("runs/fake2024/9-paper/finding.json").write_text("{")
    page = reproduction_page.write_page(Path("runs")).read_text(encoding="utf-8")
    assert page.index("fake2024, figure 2 (smoke)") < page.index("fake2024, figure S21-S22 (laptop)")
    assert page.count("data:image/png;base64,") == 4
    assert "fake2024/9-paper/finding.json must be a saved result, but could not be read" in page
    assert "&lt;script&gt;window.broken" in page
    assert page.count("<script") == 2, "its colours and its own script"
    assert "<script>window.broken" not in page
    assert "onerror=&#34;" in page
    assert 'onerror="' not in page
    for words in ("About fifty.", "50 ± 1.0", "± 5", "inconclusive", "not run", "cpu (", "a note"):
        assert words in page


# Status


def status(results: Path | None = None) -> list[dict[str, Any]]:
    return [standing.row() for standing in verdicts.standings(results=results)]


def test_status_has_one_row_per_claim_with_exactly_its_keys(paper: ModuleType) -> None:
    rows = status()
    keys = (
        "paper figure claim statistic effort device published where measured tolerance verdict reason kind post_hoc level "
        "differences statement"
    )
    assert [" ".join(row) for row in rows] == [keys] * 4
    assert {row["verdict"] for row in rows} == {"not run"}
    assert (
        {row["effort"] for row in rows}
        == {row["device"] for row in rows}
        == {row["measured"] for row in rows}
        == {None}
    )
    assert [row["figure"] for row in rows] == ["2", "2", "2", "S21-S22"]


def test_status_takes_the_greatest_effort_that_measured_a_claim(paper: ModuleType, checkout: Path) -> None:
    run_figure(effort="laptop")
    paper.STATE["share"] = 60.0
    paper.STATE["parts"] = False
    run_figure(effort="paper")
    run_figure("S21-S22")
    assert outcomes("runs") == ["new", "new", "new"]
    share, seeds, parts, one = status()
    assert (share["effort"], share["verdict"]) == ("paper", "not reproduced")
    assert (seeds["effort"], seeds["verdict"], seeds["measured"]) == ("paper", "reproduced", "3")
    assert (parts["effort"], parts["verdict"]) == ("laptop", "inconclusive")
    assert parts["measured"] == "1 (spread unknown)"
    assert one["verdict"] == "reproduced"
    assert (one["published"], one["tolerance"]) == (1, "± 0")
    assert json.loads(json.dumps(status())) == status()


def test_the_verdict_is_never_taken_from_the_file(paper: ModuleType, checkout: Path) -> None:
    done = run_figure()
    rewrite_claim(done, 0, tolerance=1.0, verdict="inconclusive")  # as a stricter claim would have said
    claims = record_in(done.folder)["claims"]
    rewrite(done, claims=[claims[0], claims[2]])
    merging.merge("runs")
    share, seeds, parts, _ = verdicts.standings()
    assert share.verdict == "reproduced"
    assert share.changes() == [
        "tolerance was 1.0 when it was measured",
        "verdict was 'inconclusive' when it was measured",
    ]
    assert seeds.changes() == ["the claim was written after its number was measured"]
    assert parts.changes() == []


def test_a_reworded_claim_is_joined_to_its_number_and_told(paper: ModuleType, checkout: Path) -> None:
    rewrite_claim(run_figure(), 0, statement="Nearly fifty.")
    merging.merge("runs")
    share, seeds, _, _ = verdicts.standings()
    assert share.changes() == ["statement was 'Nearly fifty.' when it was measured"]
    assert seeds.changes() == []


def test_another_comparison_of_the_same_number_is_a_new_claim(paper: ModuleType, checkout: Path) -> None:
    rewrite_claim(run_figure(), 0, comparator="at least")
    merging.merge("runs")
    assert verdicts.standings()[0].changes() == ["the claim was written after its number was measured"]


def test_of_two_claims_on_one_number_each_is_compared_with_its_own(paper: ModuleType) -> None:
    done = run_figure()
    figure, record = papers.figure("fake2024", "2"), done.record
    strict = dataclasses.replace(figure.claims[0], statement="Nearly fifty.", tolerance=3.0)
    both = dataclasses.replace(record, claims=((strict, "reproduced"), *record.claims))
    for claim in (figure.claims[0], strict):
        assert verdicts.Standing(figure, claim, both).changes() == []


def test_a_damaged_committed_file_is_named(paper: ModuleType) -> None:
    path = verdicts.RESULTS / "fake2024" / "2.json"
    path.parent.mkdir(parents=True)
    for text in ("{", "[]", '{"efforts": {"smoke": {}}}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"fake2024/2\.json must hold committed results and is damaged"):
            status()


# Merge


def test_merge_writes_numbers_and_pictures_but_no_arrays(paper: ModuleType, checkout: Path, tmp_path: Path) -> None:
    run_figure()
    run_figure("S21-S22")
    assert outcomes("runs") == ["new", "new"]
    written = {str(path.relative_to(tmp_path / "committed")) for path in (tmp_path / "committed").rglob("*.*")}
    assert written == {"fake2024/2.json", "fake2024/S21-S22.json"}
    pictures = sorted(path.name for path in (checkout / "docs/gallery").iterdir())
    assert pictures == ["fake2024-2.png", "fake2024-S21-S22.png"]
    assert outcomes("runs") == ["kept", "kept"]


def test_a_newer_run_of_one_effort_replaces_an_older_and_says_so(paper: ModuleType, checkout: Path) -> None:
    done = run_figure()
    dated(done, "2026-01-02 00:00:00 UTC")
    merging.merge("runs")
    paper.STATE["parts"] = False
    done = run_figure()
    dated(done, "2026-01-01 00:00:00 UTC")
    (kept,) = merging.merge("runs")
    assert kept.outcome == "kept"
    assert "one of 2026-01-02 00:00:00 UTC, no older, is committed" in kept.words
    dated(done, "2026-01-03 00:00:00 UTC")
    (replaced,) = merging.merge("runs")
    assert replaced.outcome == "replaced"
    assert "2026-01-03 00:00:00 UTC" in replaced.words
    assert "for one of 2026-01-02" in replaced.words
    assert "no longer measured: parts" in replaced.words
    assert status()[2]["verdict"] == "not run"


def test_a_smaller_effort_replaces_neither_the_greater_nor_its_picture(paper: ModuleType, checkout: Path) -> None:
    run_figure(effort="laptop", folder="first")
    merging.merge("first")
    picture = checkout / "docs/gallery/fake2024-2.png"
    picture.write_bytes(b"of laptop effort")
    run_figure(effort="smoke", folder="second")
    assert outcomes("second") == ["new"]
    assert picture.read_bytes() == b"of laptop effort"
    records = verdicts.committed(papers.figure("fake2024", "2"))
    assert list(records) == ["smoke", "laptop"]
    assert status()[0]["effort"] == "laptop"
    run_figure(effort="paper", folder="third")
    assert outcomes("third") == ["new"]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("own", "changes", "decides"),
    [
        ([7, 8], {}, "laptop"),
        ([2, 7], {}, "paper"),  # a seed of the earlier run
        ([], {}, "paper"),  # nobody knows its seeds
        ([7, 8], {"tolerance": 3.0}, "paper"),  # the bound is newer than this run too
        ([7, 8], {"minimum_effort": "paper"}, "paper"),
    ],
)
def test_a_claim_with_a_late_bound_is_tested_by_new_seeds_of_less_effort(
    paper: ModuleType, checkout: Path, monkeypatch: pytest.MonkeyPatch, own: list[int], changes: Any, decides: str
) -> None:
    first = run_figure(effort="paper", folder="first")
    rewrite_claim(first, 0, tolerance=3.0)
    dated(first, "2026-01-01 00:00:00 UTC")
    merging.merge("first")
    (late, *_) = verdicts.standings()
    assert late.fitted
    second = run_figure(effort="laptop", folder="second")
    rewrite(second, settings={"seeds": own}, date="2026-01-02 00:00:00 UTC")
    if "tolerance" in changes:
        rewrite_claim(second, 0, **changes)
    merging.merge("second")
    figure = papers.figure("fake2024", "2")
    records = verdicts.committed(figure)
    if "minimum_effort" in changes:
        claims = (dataclasses.replace(figure.claims[0], **changes), *figure.claims[1:])
        figure = dataclasses.replace(figure, claims=claims)
    (half, *_) = verdicts.judged(figure, records.values())
    assert half.record == records[decides]
    assert half.fitted is (decides == "paper")
    seen = "Seen before the claim or its bound was written, paper effort with other seeds: 50 ± 1.0 % (95 % CI 48.0 to 52.0)."
    assert half.earlier == ("" if half.fitted else seen)
    assert records["laptop"].settings.get(verdicts.SEEN) == ([0, 1, 2] if own == [7, 8] else None)


def test_new_seeds_free_a_claim_of_its_mark_until_it_changes_again(paper: ModuleType, checkout: Path) -> None:
    figure = papers.figure("fake2024", "2")
    first, *others = figure.claims
    marked = dataclasses.replace(figure, claims=(first, *(dataclasses.replace(each, post_hoc=True) for each in others)))

    def merged(effort: str, own: list[int], day: int, **changes: Any) -> list[bool]:
        """Whether claims that the sheet marks, the last two of them, are fitted, after a run."""
        done = run_figure(effort=effort, folder=f"day {day}")
        for place in (1, 2):
            rewrite_claim(done, place, post_hoc=True)
        rewrite_claim(done, 0, **changes)
        rewrite(done, settings={"seeds": own}, date=f"2026-01-0{day} 00:00:00 UTC")
        assert outcomes(f"day {day}") == ["replaced" if day > 1 else "new"]
        return [each.fitted for each in verdicts.judged(marked, verdicts.committed(figure).values())]

    assert merged("paper", [0], 1, tolerance=3.0) == [True, True, True]
    assert merged("paper", [5], 2) == [False, False, False], "replaced by a run with new seeds"
    assert merged("paper", [5], 3, tolerance=3.0) == [True, False, False], "its bound is not the one of today"
    assert merged("paper", [5], 4) == [True, False, False], "which had been seen when it changed"
    assert merged("paper", [0], 5) == [True, True, True], "these were seen first of all"
    assert verdicts.SEEN not in verdicts.committed(figure)["paper"].settings


@pytest.mark.parametrize("root", [".", "runs"])
def test_merge_reads_an_archive_without_unpacking_it(
    paper: ModuleType, checkout: Path, tmp_path: Path, root: str
) -> None:
    run_figure()
    with tarfile.open("runs.tar.gz", "w:gz") as archive:
        archive.add("runs", arcname=root)
    before = set(tmp_path.rglob("*"))
    assert outcomes("runs.tar.gz") == ["new"]
    assert (checkout / "docs/gallery/fake2024-2.png").exists()
    added = {path.name for path in set(tmp_path.rglob("*")) - before}
    assert added == {"committed", "fake2024", "2.json", "gallery", "fake2024-2.png"}


def test_damaged_and_foreign_files_are_named_and_the_others_merged(paper: ModuleType, checkout: Path) -> None:
    done = run_figure()
    whole, arrays = (done.folder / DOCUMENT).read_text(), store.read(done.folder, DOCUMENT)["arrays"]
    bad = {
        "a": "{",
        "b": json.dumps({"format": 1}),
        "d": whole,  # without arrays
        "e": whole,
        "f": whole.replace('"tolerance": 5.0', '"tolerance": 50.0'),
    }
    for name, text in bad.items():
        path = Path("runs") / name / DOCUMENT
        path.parent.mkdir()
        path.write_text(text)
    store.write(Path("runs/c"), {"record": record_in(done.folder) | {"paper": "other2020"}}, {}, name=DOCUMENT)
    Path("runs/e", arrays).write_bytes((done.folder / arrays).read_bytes()[:-30])
    told = {each.source: each for each in merging.merge("runs")}
    for name in "abcdef":
        assert told[f"runs/{name}/finding.json"].outcome == "refused"
    assert "runs/a/finding.json must be a saved result" in told["runs/a/finding.json"].words
    assert "other2020" in told["runs/c/finding.json"].words
    for name in "de":
        assert f"runs/{name}/{arrays} must be a complete result file" in told[f"runs/{name}/finding.json"].words
    assert "must match its digest" in told["runs/f/finding.json"].words
    assert told["runs/fake2024/2-laptop/finding.json"].outcome == "new"


def test_a_finding_made_before_0_2_is_merged_under_keys(paper: ModuleType, checkout: Path) -> None:
    done = run_figure()
    record = record_in(done.folder)
    numbers = {"Share": record["statistics"]["share"], "Seeds": record["statistics"]["seeds"]}
    for number in numbers.values():
        del number["label"], number["unit"]
    for claim in record["claims"]:
        claim["statistic"] = claim["statistic"].capitalize()
    old = Path("old")
    old.mkdir()
    (old / "finding.json").write_text(json.dumps(record | {"format": 1, "statistics": numbers}))
    np.savez_compressed(old / "arrays.npz", **done.finding.arrays)
    assert outcomes("old") == ["new"]
    assert (checkout / "docs/gallery/fake2024-2.png").exists()
    share, seeds, parts, _ = verdicts.standings()
    assert (share.verdict, seeds.verdict, parts.verdict) == ("reproduced", "reproduced", "not run")
    assert share.changes() == seeds.changes() == []
    committed = json.loads((verdicts.RESULTS / "fake2024" / "2.json").read_text())["efforts"]["laptop"]
    assert committed["format"] == 2
    assert list(committed["statistics"]) == ["share", "seeds"]
    assert committed["statistics"]["share"]["label"] == "Share"


def test_a_picture_that_cannot_be_drawn_is_refused_with_its_numbers(paper: ModuleType, checkout: Path) -> None:
    run_figure()
    paper.STATE["draw"] = False
    (told,) = merging.merge("runs")
    assert (told.outcome, told.words) == ("refused", "RuntimeError: no ink")
    assert not verdicts.RESULTS.exists()


def test_merge_needs_findings_and_a_place(paper: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Path("empty").mkdir()
    Path("broken.tar.gz").write_bytes(b"\x1f\x8b no archive")
    monkeypatch.setattr(merging, "checkout", lambda: None)
    with pytest.raises(ValueError, match=r"installed without one\. Pass --results FOLDER"):
        merging.merge("empty")
    for source, told in {
        "broken.tar.gz": "must be a folder of findings or a whole",
        "absent": "does not exist. Check the path",
    }.items():
        with pytest.raises(ValueError, match=f"{source} {told}"):
            merging.merge(source, results=tmp_path / "mine")
    with pytest.raises(ValueError, match=r"empty must hold findings, and has no finding\.json"):
        merging.merge("empty", results=tmp_path / "mine")
    run_figure()
    assert [each.outcome for each in merging.merge("runs", results=tmp_path / "mine")] == ["new"]
    assert status(results=tmp_path / "mine")[0]["verdict"] == "reproduced"
    assert status()[0]["verdict"] == "not run"


def test_this_package_knows_its_checkout() -> None:
    assert merging.checkout() == ROOT
    assert ROOT / "src/biascope/papers/results" == verdicts.RESULTS


# Command


def call(*words: object) -> tuple[int, str, str, BaseException | None]:
    app = typer.Typer()
    app.command("reproduce")(reproduce_commands.reproduce)
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.stdout, done.stderr, done.exception


def test_one_figure_from_the_command_line(paper: ModuleType) -> None:
    code, out, _, _ = call("fake2024", 2, "--device", "cpu", "--out", "here")
    assert code == 0
    assert "fake2024, figure 2: Shares" in out
    assert "  reproduced      About fifty." in out
    assert "measured 50 ± 1.0 % (95 % CI 48.0 to 52.0), published 50, tolerance ± 5" in out
    assert "Note: a note" in out
    assert "Report: here/report.html" in out
    assert Path("here/fake2024/2-laptop/finding.json").exists()


def test_all_figures_where_one_fails(paper: ModuleType) -> None:
    paper.STATE["fail_at"] = "b"
    code, out, err, _ = call("fake2024", "--effort", "smoke", "--device", "cpu")
    assert code == 1
    assert "figure S21-S22: Fails at times" in out  # the one after the failure still ran
    assert err.rstrip().endswith("1 of 2 figures of fake2024 failed:\n  figure 2: RuntimeError: the machine stops")
    assert Path("biascope-runs/reproduce/fake2024/S21-S22-smoke/finding.json").exists()
    paper.STATE["fail_at"] = None
    assert call("fake2024", "--effort", "smoke", "--device", "cpu")[0] == 0
    assert [key for _, key in paper.CALLS] == ["a", "b", "c"]


def test_a_single_figure_that_fails_raises_its_own_error(paper: ModuleType) -> None:
    paper.STATE["fail"] = True
    code, _, _, error = call("fake2024", "S21-S22", "--device", "cpu")
    assert code == 1
    assert isinstance(error, RuntimeError)


def test_keep_status_and_list(paper: ModuleType, checkout: Path) -> None:
    code, out, _, _ = call("fake2024", 2, "--device", "cpu", "--keep")
    assert code == 0
    assert "  new      fake2024 2, laptop" in out
    code, out, _, _ = call("--status", "--json")
    assert code == 0
    document = json.loads(out)
    assert document["version"] == 1
    assert document["rows"] == status()
    assert [row["verdict"] for row in document["statements"]] == ["reduced", "inconclusive", "not run"]
    assert document["summary"][0]["judged"] == 2
    assert [row["verdict"] for row in status()] == ["reproduced", "reproduced", "inconclusive", "not run"]
    code, out, _, _ = call("--status")
    assert "2 of 3 statements were judged (67 %)." in out
    assert "About fifty." not in out
    code, out, _, _ = call("--status", "--all")
    assert "Claims: 2 reproduced, 1 inconclusive, 1 not run." in out
    assert "Changed" not in out
    code, out, _, _ = call("--status", "fake2024", "S21-S22")
    assert "Claims: 1 not run." in out
    code, out, _, _ = call()
    assert "fake2024  Nobody (2024). Two figures." in out
    assert "claims: 2 reproduced, 1 inconclusive" in out
    assert "laptop effort took 0." in out


def test_status_shows_what_changed(paper: ModuleType, checkout: Path) -> None:
    rewrite_claim(run_figure(), 0, tolerance=1.0)
    merging.merge("runs")
    assert "Changed: tolerance was 1.0 when it was measured" in call("--status", "--all")[1]


def test_a_run_printed_as_json(paper: ModuleType, checkout: Path) -> None:
    assert "a verdict needs at least laptop effort" in call("fake2024", 2, "--device", "cpu", "--effort", "smoke")[1]
    code, out, _, _ = call("fake2024", 2, "--device", "cpu", "--effort", "smoke", "--json", "--keep")
    assert code == 0
    assert [row["verdict"] for row in json.loads(out)["rows"]] == ["inconclusive", "reproduced", "not run"]


def test_merging_from_the_command_line(paper: ModuleType, checkout: Path) -> None:
    run_figure()
    assert call("--merge", "runs")[:2] == (0, f"  new      fake2024 2, laptop, {run_date()} on {run_device()}\n")
    Path("runs/bad").mkdir()
    Path("runs/bad/finding.json").write_text("{")
    code, out, err, _ = call("--merge", "runs")
    assert code == 1
    assert "kept" in out
    assert "refused  runs/bad/finding.json" in err


def run_date() -> str:
    return str(record_in("runs/fake2024/2-laptop")["date"])


def run_device() -> str:
    return str(record_in("runs/fake2024/2-laptop")["device"])


def test_a_place_or_device_that_is_not_there_is_told_before_any_work(
    paper: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "checkout", lambda: None)
    for words in (("--keep",), ("--device", "abacus"), ("--precision", "float3"), ("--effort", "all")):
        _, _, _, error = call("fake2024", *words)
        assert isinstance(error, ValueError), words
    assert paper.CALLS == []


# Pages


@pytest.fixture(scope="module")
def make_papers() -> ModuleType:
    specification = importlib.util.spec_from_file_location("make_papers", ROOT / "docs" / "make_papers.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_pages_show_what_is_committed(paper: ModuleType, checkout: Path, make_papers: ModuleType) -> None:
    docs = checkout / "docs"
    (docs / "papers").mkdir()
    page = docs / "papers" / "fake2024.md"
    page.write_text("# Two figures\n\n<!-- standing -->\n<!-- end -->\n\nBy hand.\n\n<!-- claims -->\n<!-- end -->\n")
    run_figure()
    merging.merge("runs")
    assert set(make_papers.stale(docs)) == {"statements.md", "README.md", "fake2024.md"}
    for path, text in make_papers.pages(docs):
        path.write_text(text, encoding="utf-8")
    assert make_papers.stale(docs) == []
    text = page.read_text(encoding="utf-8")
    assert "By hand." in text
    assert "**3 statements: 1 reduced, 1 inconclusive and 1 not run.**" in text
    assert (
        "| 2 | About fifty. | 1: “one half” | 50 ± 5 | 50 ± 1.0 % (95 % CI 48.0 to 52.0) | reproduced | reduced; epochs not recorded "
        "| biascope reproduce fake2024 2 --effort laptop, " in text
    )
    assert "| 1 (spread unknown) | inconclusive: the spread is unknown" in text
    assert "| S21-S22 | One. (bound of ours) | — | 1 ± 0 | — | not run | — | — |" in text
    gallery = (docs / "gallery" / "README.md").read_text(encoding="utf-8")
    assert "### Figure 2: Shares" in gallery
    assert "![Shares](fake2024-2.png)" in gallery
    for each in (text, gallery):
        assert "<script" not in each.replace("\\<", "")
    statements = (docs / "statements.md").read_text(encoding="utf-8")
    assert "| fake2024 | 3 | Nothing tests this. | not run | — |" in statements
    assert "| fake2024 | 2 | A claim of the past. | reproduced | The paper does not say it. |" in statements
    run_figure("S21-S22")
    merging.merge("runs")
    assert "fake2024.md" in make_papers.stale(docs)


def test_statements_are_the_denominator(paper: ModuleType, checkout: Path) -> None:
    run_figure()
    merging.merge("runs")
    found = verdicts.standings()
    conclusions = verdicts.conclusions(found)
    told = [(each.statement.key, each.verdict, each.judged) for each in conclusions]
    assert told == [("half", "reduced", True), ("parts", "inconclusive", True), ("silence", "not run", False)]
    (row,) = verdicts.summary(found, conclusions)
    assert (row.statements, row.judged) == (3, 2)
    assert row.apart["ours"] == {"reproduced": 1, "not run": 1}
    lines = "\n".join(verdicts.summary_lines(found, conclusions))
    assert "2 of 3 statements were judged (67 %)." in lines


@pytest.mark.parametrize(
    ("claim", "number", "ends"),
    [
        (Claim("At least.", "n", "at least", None, 2.0), Estimate(3.0, 0.5, 2.5, 6.0), (0.125, 0.25, 1.0)),
        (Claim("At least.", "n", "at least", None, 2.0), Estimate(1.0, 0.5, -2.0, 3.0), (-1.0, -0.25, 0.25)),
        (Claim("At most.", "n", "at most", None, 2.0), Estimate(1.0, 0.5, -math.inf, 1.5), (0.5, 1.0, 1.0)),
        (Claim("About.", "n", "about", 50.0, 5.0), Estimate(51.0, 1.0, 49.0, 53.0), (0.4, 0.8, 1.0)),
        (Claim("About.", "n", "about", 50.0, 5.0), Estimate(60.0, 1.0, 58.0, 62.0), (-1.0, -1.0, -0.6)),
        (Claim("At least.", "n", "at least", None, 2.0), Estimate(3.0), (1.0, 1.0, 1.0)),
    ],
)
def test_the_forest_plot_shows_on_which_side_of_its_bound_a_number_lies(
    make_papers: ModuleType, claim: Claim, number: Estimate, ends: tuple[float, float, float]
) -> None:
    standing = SimpleNamespace(claim=claim, measured=number.named("n"))
    assert make_papers.agreement(standing) == pytest.approx(ends)


def test_networks_that_did_not_train_decide_nothing(paper: ModuleType, checkout: Path) -> None:
    paper.STATE["share"] = 15.0
    run_figure()
    merging.merge("runs")
    (half,) = [each for each in verdicts.standings() if each.claim.of == "half"]
    assert half.verdict == "inconclusive"
    assert half.judgement.reason.startswith("did not train: share of")
    assert not verdicts.conclusions([half])[0].judged


def test_the_committed_pages_are_up_to_date(make_papers: ModuleType) -> None:
    assert make_papers.stale() == [], "run: python docs/make_papers.py"
    for name in papers.names():
        for figure in papers.find(name).figures:
            if verdicts.committed(figure):
                assert (make_papers.DOCS / "gallery" / f"{figure.paper}-{figure.file_name}.png").exists(), figure.number
