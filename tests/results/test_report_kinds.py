"""Every kind of report in a browser: light, dark, on a phone and in print, each from a small case of its measurement."""

import base64
import csv
import dataclasses
import functools
import io
import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chromium import Chromium, running
from command_tree import COMMANDS
from torch import nn

from biascope.families.family import Family
from biascope.measures.average_geometry import average_geometry
from biascope.measures.covariance.compare import side_by_side
from biascope.measures.mean_gradient import mean_gradient
from biascope.results import draw, store
from biascope.results.claim import Claim
from biascope.results.estimate import Estimate
from biascope.results.finding import FigureOfPaper, Finding
from biascope.results.paper_page import picture, write_page
from biascope.results.plan import Plan
from biascope.results.record import DOCUMENT, Record
from biascope.results.registry import find, names
from biascope.results.report import write_report
from biascope.results.result import Result, now, software
from biascope.results.section import MOST_STATEMENTS
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = Run(device="cpu")
IMAGE = (1, 8, 8)
PAPER = 673  # pixels of a sheet between its margins
MODES = {"light": (1280, False), "dark": (1280, True), "phone": (390, False)}


def example(name: str) -> Callable[[], list[Result]]:
    """The small case of a measurement."""

    def measured() -> list[Result]:
        inputs, settings = find(name).example()
        return [find(name)(*inputs, **settings, run=CPU)]

    return measured


def small(outputs: int = 3, hidden: int = 6) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, hidden, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36 * hidden, outputs))


def scanned(family: Family, shape: tuple[int, ...], seed: int = 0) -> list[Result]:
    fresh = Probe.gaussian(shape, num=4, fresh=True, seed=seed)
    measures = (average_geometry,) if family.law == "point" else (mean_gradient, average_geometry)
    return [measure(family, fresh, draws=40, seed=seed, run=CPU) for measure in measures]


def scan() -> list[Result]:
    return scanned(Family.initialised(small, name="small CNN"), IMAGE)


def features() -> list[Result]:
    """Inputs that are no images: twenty features."""
    family = Family.initialised(lambda: nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 3)), name="tabular")
    return scanned(family, (20,))


def compare() -> list[Result]:
    wide = Family.initialised(lambda: small(hidden=9), name="a wide network with quite a long name")
    return [results("scan")[0], scanned(wide, IMAGE, seed=1)[0]]


def checkpoints() -> list[Result]:
    found = []
    for step in (0, 10, 20):
        torch.manual_seed(step)
        found += scanned(Family.point(small(), name=f"small CNN at step-{step}"), IMAGE)
    return found


RESULTS: dict[str, Callable[[], list[Result]]] = {
    "scan": scan,
    "features": features,
    "compare": compare,
    "checkpoints": checkpoints,
    "directional bias": example("directional_bias"),
    "kernel": example("tangent_kernel"),
    "sample score": example("sample_score"),
    "patterns": example("channel_patterns"),
    "advise": example("advise"),
    "merge check": example("merge_check"),
    "explain": example("explain"),
}


def drawn(finding: Finding, dark: bool) -> Any:
    figure = draw.blank(2.0, "A line.")
    draw.panel(figure, dark).plot(finding.arrays["curve"], color=draw.PALETTE[dark].lines[0])
    return figure


def reproduction(folder: Path) -> Path:
    """A page of two figures with every verdict."""
    claims = (
        Claim("Half of them.", "share", "about", 50.0, 5.0),
        Claim("None of them.", "share", "at most", 0.0, 5.0),
        Claim("It takes long.", "seconds", "at least", None, 3.0, reads="long", minimum_effort="paper"),
        Claim("Not run.", "other", "at least", 1.0, 1.0),
    )
    numbers = {
        "share": Estimate(50.0, 1.0, 48.0, 52.0).named("share", "%"),
        "seconds": Estimate(9.0).named("time", "s"),
    }
    how = {"device": "cpu", "precision": "float32", "seconds": 1.0, "date": now(), "versions": software()}
    finding = Finding(numbers, {"curve": np.arange(3.0)}, {"seed": 0}, ("A note.",))
    for number in ("1", "table 2"):
        figure = FigureOfPaper(
            "nads2020", number, "Shares", claims, Plan({}, {}, {}), lambda plan, run, tell: None, drawn
        )
        place = store.write(
            folder / f"figure-{figure.file_name}",
            {"record": Record.of(figure, finding, "laptop", how).as_json()},
            finding.arrays,
            name=DOCUMENT,
        )
        for name, dark in (("picture.png", False), ("picture-dark.png", True)):
            (place / name).write_bytes(picture(figure, finding, dark=dark))
    return write_page(folder)


@functools.cache
def results(kind: str) -> tuple[Result, ...]:
    return tuple(RESULTS[kind]())


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The page of each kind, written once."""

    @functools.cache
    def written(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("page")
        return reproduction(folder) if kind == "reproduce" else write_report(results(kind), folder / "report.html")

    return written


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    yield from running(tmp_path_factory.mktemp("profile"))


# What is wrong with a page as it is laid out, in words; nothing is an empty list. What scrolls does so in its own box.
FAULTS = """(() => {
  const found = [];
  const wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > wide) found.push(`the page is ${document.documentElement.scrollWidth} of ${wide} wide`);
  for (const table of document.querySelectorAll("table")) {
    const box = table.closest(".scroll");
    const words = table.textContent.trim().slice(0, 40);
    if (!box || box.getBoundingClientRect().right > wide + 1) found.push(`a table is cut off: ${words}`);
  }
  const statements = document.querySelectorAll("#summary li");
  if (statements.length < 3 || statements.length > MOST) found.push(`${statements.length} statements in the summary`);
  for (const statement of statements) {
    const target = document.getElementById(decodeURIComponent(statement.querySelector("a.evidence").hash.slice(1)));
    const shows = target && (target.textContent.trim() || target.querySelector("img, svg, canvas"));
    if (!shows) found.push(`nothing shows: ${statement.textContent}`);
  }
  for (const link of document.querySelectorAll("a[href^='#']")) {
    if (!document.getElementById(decodeURIComponent(link.hash.slice(1)))) found.push(`${link.hash} leads nowhere`);
  }
  for (const image of document.querySelectorAll("img")) {
    if (!(image.alt || image.closest("[role=img]")?.getAttribute("aria-label"))) found.push("an image without words");
    if (!image.complete || !image.naturalWidth) found.push("an image that does not load");
  }
  for (const image of document.querySelectorAll("[role=img]:not([aria-label])")) found.push("a picture without words");
  const used = new Set([...document.querySelectorAll("a.term")].map((term) => term.hash.slice(1)));
  const told = [...document.querySelectorAll(".terms dt")].map((term) => term.id);
  if (told.length !== used.size || told.some((term) => !used.has(term))) found.push(`glossary ${told} of ${[...used]}`);
  if (document.querySelector("#settings").open) found.push("settings are not folded");
  return found;
})()""".replace("MOST", str(MOST_STATEMENTS))
DOWNLOADS = "[...document.querySelectorAll('a[download]')].map((link) => [link.download, link.href])"
VISIBLE = "[...document.querySelectorAll('{}')].filter((part) => part.checkVisibility()).map((part) => part.{})"
SHOWN = VISIBLE.format(".on-light, .on-dark", "className")
WIDTHS = VISIBLE.format(".pictures .picture svg", "clientWidth")


@pytest.mark.browser
@pytest.mark.parametrize("kind", [*RESULTS, "reproduce"])
def test_every_kind_in_light_dark_phone_and_print(kind: str, browser: Chromium, page_of: Callable[[str], Path]) -> None:
    page = page_of(kind)
    assert page.stat().st_size < 5_000_000
    browser.errors.clear()
    browser.requests.clear()
    for mode, (width, dark) in MODES.items():
        browser.open(page, width=width, dark=dark)
        assert browser.evaluate(FAULTS) == [], (kind, mode)
        assert set(browser.evaluate(SHOWN)) <= {"on-dark" if dark else "on-light"}, (kind, mode)
        least = 340 if mode == "phone" else 480  # pixels of a picture
        assert min(browser.evaluate(WIDTHS), default=least) >= least, (kind, mode)
    size = browser.evaluate("document.querySelector('footer').textContent")
    assert f"{page.stat().st_size / 1e6:.2f} MB" in size
    for name, address in browser.evaluate(DOWNLOADS):
        text = base64.b64decode(address.partition("base64,")[2]).decode()
        rows = [json.loads(text)] if name.endswith(".json") else list(csv.DictReader(io.StringIO(text)))
        assert rows, name
    browser.open(page, width=PAPER, dark=True)
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert set(browser.evaluate(SHOWN)) <= {"on-light"}, "print is light"
    assert browser.evaluate("document.documentElement.scrollWidth") <= PAPER, (kind, "print")
    browser.call("Emulation.setEmulatedMedia", media="")
    assert browser.printed().startswith(b"%PDF")
    assert browser.errors == []
    assert [each for each in browser.requests if not each.startswith(("file:", "data:"))] == []


def test_kinds_have_titles_of_their_own(page_of: Callable[[str], Path]) -> None:
    titles = set()
    for kind in ("scan", "checkpoints", "kernel", "sample score", "reproduce"):
        text = page_of(kind).read_text(encoding="utf-8")
        titles.add(text.partition("<title>")[2].partition("</title>")[0])
    assert len(titles) == 5
    assert any("3 checkpoints" in title for title in titles)


def test_a_page_on_checkpoints_shows_the_change_and_the_two_ends_alone(page_of: Callable[[str], Path]) -> None:
    text = page_of("checkpoints").read_text(encoding="utf-8")
    assert "Change along training" in text
    assert text.index("Effective rank during training") < text.index("Spectra on one scale")
    assert text.count('<h2 class="subject">') == 2
    assert text.index(">Last checkpoint<") < text.index(">First checkpoint<")
    assert "step-10" not in text.partition("<h1>")[2].partition("</nav>")[0]


@pytest.mark.parametrize("name", names())
def test_every_measurement_says_what_it_means_and_what_to_do_next(name: str) -> None:
    (result,) = example(name)()
    assert result.story().meaning.endswith(".")
    assert result.story().next_steps


@pytest.mark.parametrize("kind", ["scan", "features", "kernel", "sample score", "patterns", "advise", "merge check"])
def test_the_commands_that_come_next_exist(kind: str) -> None:
    for result in results(kind):
        for step in result.story().next_steps:
            assert step.words.endswith(".")
            if step.command:
                check_command(shlex.split(step.command))


def check_command(words: list[str]) -> None:
    """Every option of a command is one that it has."""
    assert words[0] == "biascope"
    name = " ".join(words[1:3]) if " ".join(words[1:3]) in COMMANDS else words[1]
    known = {option for parameter in COMMANDS[name].params for option in (*parameter.opts, *parameter.secondary_opts)}
    if name == "measure":
        known |= {f"--{key}" for key in find(words[2]).settings}
    assert {word for word in words if word.startswith("--")} <= known, words


def test_intervals_that_are_not_known(tmp_path: Path, without_pictures: None) -> None:
    (result,) = results("kernel")
    alone = dataclasses.replace(
        result, **{name: getattr(result, name)[:1] for name, axes in result.axes.items() if axes[0] == "draw"}
    )
    text = write_report([alone], tmp_path / "alone.html").read_text(encoding="utf-8")
    assert "95 % interval</th>" not in text, "a column in which nothing is known"
    assert "unknown" not in text.partition('<section id="numbers">')[2].partition("</section>")[0]
    text = write_report([alone, dataclasses.replace(result)], tmp_path / "both.html").read_text(encoding="utf-8")
    assert "95 % interval</th>" in text
    assert 'title="The spread of this number was not measured' in text


def test_a_command_that_is_recorded_is_shown_in_place_of_the_call(tmp_path: Path, without_pictures: None) -> None:
    (result,) = results("kernel")
    assert "biascope.measure(&#34;tangent_kernel&#34;" in write_report([result], tmp_path / "a.html").read_text()
    command = "biascope kernel lenet --data cifar10 --seed 3"
    told = dataclasses.replace(result, provenance={**result.provenance, "command": command})
    text = write_report([told], tmp_path / "b.html").read_text()
    assert f"<code>{command}</code>" in text
    assert "biascope.measure(" not in text


def test_a_comparison_concludes_which_effective_ranks_differ() -> None:
    one = results("scan")[0]
    family = {**one.provenance["family"], "name": "other"}
    same = dataclasses.replace(one, provenance={**one.provenance, "family": family})
    assert (
        side_by_side([one, same])
        .conclusion()
        .startswith("The effective ranks do not differ significantly: small CNN (")
    )
    rank = Estimate(5.0, 0.1, 4.8, 5.2)
    few = dataclasses.replace(same, effective_rank=rank)
    told = side_by_side([one, few]).conclusion()
    assert told.startswith(
        "All effective ranks differ significantly. From the strongest preference to the weakest: other (5) and"
    )
    near = dataclasses.replace(few, provenance={**one.provenance, "family": {**family, "name": "third"}})
    assert "except between other and third." in side_by_side([one, few, near]).conclusion()
    assert side_by_side([one, few]).as_dict()["differ"].tolist() == [[False, True], [True, False]]


def test_intervals_end_where_a_number_can_lie() -> None:
    for result in results("features"):
        rank = result.headline()["effective_rank"]
        assert 1 <= rank.low <= rank.value <= rank.high <= 20
        assert 0 <= result.headline()["anisotropy"].low <= result.headline()["anisotropy"].value
