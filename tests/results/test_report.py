import base64
import copy
import dataclasses
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromium import Chromium, running
from matplotlib.figure import Figure

from biascope.measures.covariance import CovarianceResult
from biascope.measures.covariance.compare import overlaid
from biascope.results import embedding, report, section
from biascope.results.estimate import Estimate, Number
from biascope.results.numbers import in_words
from biascope.results.registry import find
from biascope.results.report import write_report
from biascope.results.result import Result

EVIL = '</script><b>x</b><img src=x onerror="window.broken=1">'


def example_of(name: str) -> CovarianceResult:
    measurement = find(name)
    inputs, settings = measurement.example()
    result: CovarianceResult = measurement(*inputs, **settings)
    return result


@pytest.fixture(scope="module")
def anisotropy() -> CovarianceResult:
    return example_of("anisotropy_directions")


@pytest.fixture(scope="module")
def geometry() -> CovarianceResult:
    return example_of("average_geometry")


@pytest.fixture(scope="module")
def mean() -> CovarianceResult:
    return example_of("mean_gradient")


def renamed(result: CovarianceResult, name: str, law: str = "initialised", **settings: Any) -> CovarianceResult:
    """The same result, as if of another network or with other settings."""
    provenance = copy.deepcopy(result.provenance)
    provenance["family"] |= {"name": name, "law": law}
    provenance["settings"] |= settings
    return dataclasses.replace(result, provenance=provenance)


class Page(HTMLParser):
    """What a browser would find in a page: elements with their attributes, the text outside scripts, the scripts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.scripts: list[tuple[dict[str, str], str]] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    handle_startendtag = handle_starttag

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.elements[-1][0] == "script" and data.strip():
            self.scripts.append((self.elements[-1][1], data))
        elif self.lasttag != "style":
            self.words.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag != "a":  # a link inside a sentence does not part its words
            self.words.append(" ")

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def attributes(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.elements if name in attributes]

    def gallery(self, number: int) -> dict[str, Any]:
        (text,) = [text for attributes, text in self.scripts if attributes.get("id") == f"gallery-{number}-data"]
        content: dict[str, Any] = json.loads(text, parse_constant=pytest.fail)  # JSON has no NaN
        return content


@pytest.fixture(scope="module")
def alone(anisotropy: CovarianceResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([anisotropy], tmp_path_factory.mktemp("alone") / "new" / "report.html")


@pytest.fixture(scope="module")
def both(anisotropy: CovarianceResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = [anisotropy, renamed(anisotropy, "second", seed=7)]
    return write_report(results, tmp_path_factory.mktemp("both") / "report.html")


@pytest.fixture(scope="module")
def hostile(anisotropy: CovarianceResult, geometry: CovarianceResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page whose every string tries to break it."""
    results = [anisotropy, renamed(anisotropy, EVIL + 40 * "long", readout=EVIL), geometry]
    return write_report(results, tmp_path_factory.mktemp("hostile") / "report.html", title=f"On {EVIL}")


@pytest.fixture(scope="module")
def folded(
    anisotropy: CovarianceResult,
    geometry: CovarianceResult,
    mean: CovarianceResult,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A page of a scan: a headline, three of whose directions are resolved, and two details."""
    results = [
        dataclasses.replace(anisotropy, resolved=0),
        dataclasses.replace(mean, resolved=3),
        geometry,
    ]
    results = [renamed(result, "net") for result in results]
    return write_report(results, tmp_path_factory.mktemp("folded") / "report.html")


@pytest.fixture
def no_pictures(anisotropy: CovarianceResult, geometry: CovarianceResult, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is not about pictures: they take most of the time."""
    for result in (anisotropy, geometry):
        monkeypatch.setattr(type(result), "plots", lambda self, dark: {})


def test_one_file_below_five_megabytes_and_the_same_every_time(
    anisotropy: CovarianceResult, alone: Path, tmp_path: Path
) -> None:
    assert [entry.name for entry in alone.parent.iterdir()] == ["report.html"]
    assert alone.stat().st_size < 5_000_000
    again = write_report([anisotropy], tmp_path / "again.html")
    assert again == tmp_path / "again.html"
    assert again.read_bytes() == alone.read_bytes()


@pytest.mark.usefixtures("no_pictures")
def test_it_says_what_was_found_with_intervals_and_estimator(
    anisotropy: CovarianceResult, geometry: CovarianceResult, tmp_path: Path
) -> None:
    text = Page(write_report([anisotropy, geometry], tmp_path / "report.html")).text
    for result in (anisotropy, geometry):
        assert all(statement in text for statement, _ in result.story().sentences[:2])
        for number in result.headline().values():
            value, interval = in_words(number)
            shown = "–" if interval == "unknown" else interval
            assert f"{number.label} {value} {shown}" in text
    assert "Anisotropy directions" in text
    assert "exact gradients" in text


def test_it_holds_everything_needed_to_repeat_it(anisotropy: CovarianceResult, alone: Path) -> None:
    text = Page(alone).text
    record = anisotropy.provenance
    for words in (
        f"seed {record['settings']['seed']}",
        f"draws {record['settings']['draws']}",
        "readout first",
        "BatchNorm mode eval",
        f"how networks were drawn {record['family']['drawing']}",
        f"probe {record['probe']}",
        f"version of torch {record['versions']['torch']}",
        f"seconds {record['seconds']}",
        f"date {record['date']}",
        "Neural anisotropy directions. NeurIPS.",
        'biascope.measure("anisotropy_directions", family, probe, estimator="exact"',
    ):
        assert words in text, words


def test_what_results_share_is_said_once(both: Path) -> None:
    shared, _, own = Page(both).text.rpartition("Settings and versions")[2].partition("Anisotropy directions of")
    assert "readout first" in shared
    assert "readout first" not in own
    assert own.count("seed 0") == own.count("seed 7") == 1


def test_strings_are_escaped_everywhere(hostile: Path) -> None:
    page = Page(hostile)
    assert not {"b", "img"} & {tag for tag, _ in page.elements}
    assert len(page.scripts) == 5, "colours, three galleries and the one that runs"
    assert page.text.count(EVIL) > 10
    assert [words for words in page.words if words.startswith("</script><b>x</b>") and words.endswith("…")], (
        "in pictures"
    )


def test_it_loads_nothing(both: Path) -> None:
    page = Page(both)
    for name in ("src", "href", "xlink:href", "srcset", "action", "poster", "data"):
        for reference in page.attributes(name):
            assert reference.startswith(("#", "data:")), reference
    text = both.read_text(encoding="utf-8")
    assert "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\((.*?)\)", text))
    (policy,) = [value for value in page.attributes("content") if "default-src" in value]
    assert "default-src 'none'" in policy


def test_ids_are_unique_and_links_lead_somewhere(both: Path) -> None:
    page = Page(both)
    identifiers = page.attributes("id")
    assert len(set(identifiers)) == len(identifiers)
    for link in page.attributes("href") + page.attributes("xlink:href"):
        assert link.startswith("data:") or link.removeprefix("#") in identifiers
    for element, attributes in page.elements:
        if element in ("canvas", "input") or attributes.get("role") in ("img", "region"):
            assert attributes["aria-label"]


def test_several_subjects_are_compared(anisotropy: CovarianceResult, alone: Path, both: Path) -> None:
    assert "comparison" not in Page(alone).attributes("id")
    page = Page(both)
    assert "comparison" in page.attributes("id")
    assert "Spectra on one scale" in page.text
    assert "Overlap of the 10 leading directions" in page.text
    table = both.read_text(encoding="utf-8").partition('id="comparison-table"')[2].partition("</table>")[0]
    assert table.count(f">{in_words(anisotropy.effective_rank)[1]}<") == 2
    assert f"of {anisotropy.size} directions" in table


@pytest.mark.usefixtures("no_pictures")
def test_estimators_are_never_mixed(anisotropy: CovarianceResult, tmp_path: Path) -> None:
    other = dataclasses.replace(renamed(anisotropy, "second"), derivative="difference", step=100.0)
    page = Page(write_report([anisotropy, other], tmp_path / "report.html"))
    assert "Spectra on one scale" not in page.text
    assert "Anisotropy directions (exact gradients)" in page.text
    assert "Anisotropy directions (central differences, h = 100)" in page.text


@pytest.mark.usefixtures("no_pictures")
def test_input_sizes_are_never_mixed(anisotropy: CovarianceResult, tmp_path: Path) -> None:
    directions = np.eye(36, 20, dtype=np.float32)
    smaller = dataclasses.replace(renamed(anisotropy, "smaller"), input_shape=(20,), directions=directions)
    page = Page(write_report([anisotropy, smaller], tmp_path / "report.html"))
    assert "Spectra on one scale" not in page.text
    assert "of 20" in page.text


def test_overlap_has_the_agreement_of_halves_on_its_diagonal(anisotropy: CovarianceResult) -> None:
    pictures = overlaid([anisotropy, renamed(anisotropy, "second")], ["one", "second"], False, False)
    table = np.asarray(pictures["overlap"].axes[0].get_images()[0].get_array())
    halves = anisotropy.similarity[anisotropy.similarity_sizes.tolist().index(10)]
    np.testing.assert_allclose(np.diag(table), halves)
    np.testing.assert_allclose(table[0, 1], 1.0, rtol=1e-5)


def test_overlaps_that_are_not_resolved_stand_in_brackets(anisotropy: CovarianceResult) -> None:
    unclear = dataclasses.replace(
        anisotropy, similarity=np.full(len(anisotropy.similarity), 0.3)
    )  # 10 of 36: chance is 0.28
    figure = overlaid([unclear, renamed(unclear, "second")], ["one", "second"], False, False)["overlap"]
    assert {text.get_text() for text in figure.axes[0].texts} == {"(0.30)", "(1.00)"}
    assert "is not resolved" in figure.get_label()


@pytest.mark.usefixtures("no_pictures")
def test_checkpoints_are_followed_along_training(anisotropy: CovarianceResult, tmp_path: Path) -> None:
    steps = [renamed(anisotropy, f"net at step_{step}", law="point") for step in (0, 10, 20)]
    page = Page(write_report(steps, tmp_path / "report.html"))
    assert "Effective rank during training" in page.text
    assert "step_20" in page.text


def test_the_gallery_holds_all_directions_to_eight_bits(anisotropy: CovarianceResult, alone: Path) -> None:
    gallery = Page(alone).gallery(0)
    assert (gallery["channels"], gallery["height"], gallery["width"]) == (1, 6, 6)
    whole = np.frombuffer(base64.b64decode(gallery["pixels"]), np.int8).reshape(-1, 36)
    restored = whole * np.array(gallery["scales"])[:, None] / 127
    signs = np.sign((restored * anisotropy.directions).sum(1, keepdims=True))
    np.testing.assert_allclose(signs * restored, anisotropy.directions, atol=np.abs(anisotropy.directions).max() / 200)
    np.testing.assert_allclose(gallery["values"], anisotropy.eigenvalues, rtol=1e-3)


@pytest.mark.usefixtures("no_pictures")
def test_galleries_shrink_to_keep_the_file_small(
    anisotropy: CovarianceResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [anisotropy, renamed(anisotropy, anisotropy.subject)]
    size = write_report(results, tmp_path / "report.html").stat().st_size
    monkeypatch.setattr(report, "LIMIT", size - 2000)
    path = write_report(results, tmp_path / "report.html")
    assert path.stat().st_size <= size - 2000
    page = Page(path)
    counts = [len(page.gallery(number)["scales"]) for number in (0, 1)]
    assert 0 < min(counts) < 36
    assert f"the first {counts[0]} of 36 directions" in page.text
    assert str(counts[0]) in page.attributes("max")


def test_pictures_that_do_not_fit_are_named_not_dropped(
    anisotropy: CovarianceResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(section, "_PICTURES", 1)
    again = renamed(anisotropy, anisotropy.subject)
    path = write_report([anisotropy, again], tmp_path / "report.html")
    assert Page(path).text.count("Pictures are omitted") == 1
    assert path.read_text(encoding="utf-8").count("<figcaption>Agreement of the two halves") == 1


def test_heavy_pictures_are_embedded_as_pixels(anisotropy: CovarianceResult, monkeypatch: pytest.MonkeyPatch) -> None:
    assert embedding.embedded(anisotropy.plot(), "salt").startswith("<svg")
    monkeypatch.setattr(embedding, "_HEAVY", 0)
    assert embedding.embedded(anisotropy.plot(), "salt").startswith('<img alt="" src="data:image/png;base64,')


def test_a_picture_that_fails_raises_and_leaves_no_file(
    anisotropy: CovarianceResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Result, dark: bool = False) -> dict[str, Figure]:
        raise RuntimeError("no picture")

    monkeypatch.setattr(type(anisotropy), "plots", broken)
    with pytest.raises(RuntimeError, match="no picture"):
        write_report([anisotropy], tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_no_results_no_report(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one result"):
        write_report([], tmp_path / "report.html")


@dataclasses.dataclass(frozen=True, repr=False)
class Plain(Result):
    """A result with nothing but a number."""

    def headline(self) -> dict[str, Number]:
        return {"answer": Estimate.exact(42.0).named("answer")}

    def sentence(self) -> str:
        return "It is so."

    def plots(self, dark: bool = False) -> dict[str, Figure]:
        return {}


@pytest.mark.usefixtures("no_pictures")
def test_any_result_can_be_reported(anisotropy: CovarianceResult, tmp_path: Path) -> None:
    page = Page(write_report([Plain(), anisotropy], tmp_path / "report.html", title="Mine"))
    assert page.text.count("It is so.") == 1, "in the summary alone"
    assert "answer 42 exact" in page.text
    assert page.gallery(0)["height"] == 6, "galleries are counted, not results"
    assert "left out" not in page.text


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    yield from running(tmp_path_factory.mktemp("profile"))


def picture(browser: Chromium, name: str) -> str:
    return str(browser.evaluate(f"document.getElementById('{name}').toDataURL()"))


@pytest.mark.browser
def test_the_slider_steps_through_directions(browser: Chromium, hostile: Path) -> None:
    browser.errors.clear()
    browser.open(hostile, width=1280)
    for number in (0, 2):  # images and signals
        before = [picture(browser, f"gallery-{number}-{part}") for part in ("pixels", "fourier")]
        label = browser.evaluate(f"document.getElementById('gallery-{number}-label').textContent")
        assert label.startswith("Direction 1 of")
        assert "±" in label
        move = "slider.value = 5; slider.dispatchEvent(new Event('input'))"
        browser.evaluate(f"(() => {{ const slider = document.getElementById('gallery-{number}-slider'); {move} }})()")
        browser.settle()
        after = [picture(browser, f"gallery-{number}-{part}") for part in ("pixels", "fourier")]
        assert not set(before) & set(after)
        assert browser.evaluate(f"document.getElementById('gallery-{number}-label').textContent").startswith(
            "Direction 5"
        )
    assert browser.errors == []
    assert not [address for address in browser.requests if not address.startswith(("file:", "data:"))]
    assert browser.evaluate("window.broken === undefined")


@pytest.mark.browser
def test_keys_and_buttons_step_by_one(browser: Chromium, hostile: Path) -> None:
    browser.open(hostile, width=1280)
    slider = "document.getElementById('gallery-0-slider')"
    browser.evaluate(f"{slider}.focus()")
    browser.press("ArrowRight")
    assert browser.evaluate(f"{slider}.value") == "2"
    browser.evaluate("document.getElementById('gallery-0-next').click()")
    browser.evaluate("document.getElementById('gallery-0-next').focus()")
    browser.press("ArrowRight")
    assert browser.evaluate(f"{slider}.value") == "4"
    browser.press("ArrowLeft")
    browser.evaluate("document.getElementById('gallery-0-previous').click()")
    browser.settle()
    assert browser.evaluate("document.getElementById('gallery-0-label').textContent").startswith("Direction 2")
    assert browser.evaluate("document.getElementById('gallery-1-slider').value") == "1", "the other gallery stays"


@pytest.mark.browser
def test_the_page_computes_the_fourier_transform_that_numpy_does(browser: Chromium, hostile: Path) -> None:
    browser.open(hostile, width=1280)
    pixels = np.random.default_rng(0).integers(-127, 128, (2, 5, 6))
    call = f"fourier(Int8Array.from({pixels.ravel().tolist()}), {{ channels: 2, height: 5, width: 6 }})"
    found = browser.evaluate(f"Array.from({call})")
    expected = np.sqrt((np.abs(np.fft.fft2(pixels)) ** 2).sum(0))
    np.testing.assert_allclose(np.reshape(found, (5, 6)), expected, rtol=1e-9)
    # The brightest pixel of a wave along rows lies beside the centre, as fftshift puts it.
    wave = np.rint(127 * np.cos(2 * np.pi * np.arange(8) / 8))[None].repeat(8, 0).astype(int).ravel().tolist()
    shape = "{ channels: 1, height: 8, width: 8 }"
    draw = f"const spot = document.createElement('canvas'); paintFourier(spot, fourier(Int8Array.from({wave}), {shape}), {shape})"
    pick = "[3, 4, 5].map((x) => spot.getContext('2d').getImageData((x + 0.5) * 80, 4.5 * 80, 1, 1).data[0])"
    left, centre, right = browser.evaluate(f"(() => {{ {draw}; return {pick}; }})()")
    assert left == right < centre


@pytest.mark.browser
@pytest.mark.parametrize("width", [320, 390, 800])
def test_nothing_sticks_out_of_a_narrow_window(browser: Chromium, hostile: Path, width: int) -> None:
    browser.open(hostile, width=width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.browser
def test_dark_and_light_can_be_chosen(browser: Chromium, hostile: Path) -> None:
    shown = (
        "[...document.querySelectorAll('.on-light, .on-dark')].filter((e) => e.offsetParent).map((e) => e.className)"
    )
    paper = "getComputedStyle(document.body).backgroundColor"
    browser.open(hostile, width=1280, dark=True)
    assert set(browser.evaluate(shown)) == {"on-dark"}
    night = browser.evaluate(paper), picture(browser, "gallery-0-pixels")
    browser.evaluate("document.getElementById('theme').click()")
    browser.settle()
    assert set(browser.evaluate(shown)) == {"on-light"}
    day = browser.evaluate(paper), picture(browser, "gallery-0-pixels")
    assert night[0] != day[0]
    assert night[1] != day[1]
    browser.open(hostile, width=1280, dark=False)
    assert (browser.evaluate(paper), picture(browser, "gallery-0-pixels")) == day


@pytest.mark.browser
def test_print_is_light_with_the_current_direction(browser: Chromium, hostile: Path) -> None:
    browser.errors.clear()
    browser.open(hostile, width=1280, dark=True)
    browser.evaluate("document.getElementById('theme').click(); document.getElementById('theme').click()")
    dark = picture(browser, "gallery-0-pixels")
    browser.evaluate(
        "addEventListener('beforeprint', () => { window.seen = document.getElementById('gallery-0-pixels').toDataURL() })"
    )
    assert browser.printed().startswith(b"%PDF")
    assert browser.evaluate("window.seen") not in (None, dark)
    assert picture(browser, "gallery-0-pixels") == dark
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"
    assert browser.evaluate("getComputedStyle(document.querySelector('.on-dark')).display") == "none"
    assert browser.evaluate("getComputedStyle(document.querySelector('.controls')).display") == "none"
    browser.call("Emulation.setEmulatedMedia", media="")
    assert browser.errors == []


@pytest.mark.browser
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)], ids=["light", "dark", "phone"])
def test_details_are_folded_and_directions_that_are_not_resolved_are_grey(
    browser: Chromium, folded: Path, width: int, dark: bool
) -> None:
    browser.errors.clear()
    browser.open(folded, width=width, dark=dark)
    canvas = "document.getElementById('gallery-0-pixels')"
    is_grey = f"{canvas}.closest('.canvases').classList.contains('unresolved')"
    label = "document.getElementById('gallery-0-label').textContent"
    for direction in (1, 3, 4, 20, 3):
        move = f"slider.value = {direction}; slider.dispatchEvent(new Event('input'))"
        browser.evaluate(f"(() => {{ const slider = document.getElementById('gallery-0-slider'); {move} }})()")
        browser.settle()
        assert browser.evaluate(is_grey) == (direction > 3)
        assert ("not resolved by these draws" in browser.evaluate(label)) == (direction > 3)
        assert ("grayscale" in browser.evaluate(f"getComputedStyle({canvas}).filter")) == (direction > 3)
    shown = "document.getElementById('gallery-1-pixels').checkVisibility()"
    assert browser.evaluate(f"document.querySelector('details').open || {shown}") is False
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    browser.evaluate("document.querySelector('details > summary').click()")
    browser.settle()
    assert browser.evaluate(shown) is True
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.errors == []


@pytest.mark.browser
def test_details_are_printed_and_folded_again(browser: Chromium, folded: Path) -> None:
    browser.open(folded, width=1280)
    opened = "document.querySelector('details').open"
    browser.evaluate(f"addEventListener('beforeprint', () => {{ window.seen = {opened} }})")
    assert browser.evaluate(opened) is False
    assert browser.printed().startswith(b"%PDF")
    assert browser.evaluate("window.seen") is True
    assert browser.evaluate(opened) is False


def test_the_headline_is_told_once_and_details_are_folded(
    anisotropy: CovarianceResult, geometry: CovarianceResult, mean: CovarianceResult, folded: Path
) -> None:
    page = Page(folded)
    folded_parts = [attributes for tag, attributes in page.elements if tag == "details"]
    assert [part.get("id") for part in folded_parts] == [None, "settings"]
    assert not [part for part in folded_parts if "open" in part]
    whole = re.sub(r"</?a\b[^>]*>", "", folded.read_text(encoding="utf-8"))  # without links to the glossary
    before, _, after = whole.partition("<details")
    inside, _, behind = after.partition("</details>")
    headline = renamed(dataclasses.replace(mean, resolved=3), "net")
    assert before.count(headline.story().lead) == 1
    assert headline.sentence() not in inside
    assert '<p class="finding">' not in before, "the first screen says it"
    for result in (anisotropy, geometry):
        why = type(result).details_beside["mean_gradient"]
        sentence = renamed(result, "net").sentence()
        assert sentence not in before + behind
        assert f'<p class="finding">{sentence}</p>' in inside
        assert f"Why it differs: {why}" in inside
        assert why not in before + behind
    assert "Directions up to 3 are resolved. The others are greyed out" in before
    assert "No single direction is resolved" in inside
    assert [page.gallery(number)["resolved"] for number in (0, 1)] == [3, 0]  # what leads comes first


@pytest.mark.usefixtures("no_pictures")
def test_details_of_another_network_or_without_a_headline_are_not_folded(
    anisotropy: CovarianceResult, geometry: CovarianceResult, mean: CovarianceResult, tmp_path: Path
) -> None:
    for results in ([anisotropy, geometry], [mean, renamed(geometry, "other")]):
        page = Page(write_report(results, tmp_path / "report.html"))
        assert [attributes["id"] for tag, attributes in page.elements if tag == "details"] == ["settings"]
        for result in results:
            assert result.story().sentences[0].text in page.text


@pytest.mark.usefixtures("no_pictures")
def test_results_of_earlier_versions_say_nothing_of_resolved_directions(
    anisotropy: CovarianceResult, tmp_path: Path
) -> None:
    page = Page(write_report([dataclasses.replace(anisotropy, resolved=None)], tmp_path / "report.html"))
    assert "esolved" not in page.text
    assert page.gallery(0)["resolved"] == len(anisotropy.directions)


@pytest.mark.usefixtures("no_pictures")
def test_a_folder_has_one_report_of_all_that_was_found_there(
    anisotropy: CovarianceResult, geometry: CovarianceResult, tmp_path: Path
) -> None:
    geometry.save(tmp_path / "average_geometry")
    alone = Page(report.write_folder_report(tmp_path, title="Geometry alone"))
    assert "Geometry alone" in alone.text
    anisotropy.save(tmp_path / "anisotropy_directions")
    both = Page(report.write_folder_report(tmp_path)).text
    assert both.index(anisotropy.sentence()) < both.index(geometry.sentence())  # the order of names, not of time
    first = (tmp_path / "report.html").read_bytes()
    geometry.save(tmp_path / "average_geometry")
    report.write_folder_report(tmp_path)
    assert (tmp_path / "report.html").read_bytes() == first


@pytest.mark.usefixtures("no_pictures")
def test_a_result_at_hand_is_not_read_again_and_gives_the_same_page(
    anisotropy: CovarianceResult, geometry: CovarianceResult, tmp_path: Path
) -> None:
    geometry.save(tmp_path / "average_geometry")
    place = anisotropy.save(tmp_path / "anisotropy_directions")
    whole = report.write_folder_report(tmp_path).read_bytes()
    (place / "result.json").write_text("{}")
    with pytest.warns(UserWarning, match="omits a result"):
        assert report.write_folder_report(tmp_path).read_bytes() != whole
    assert report.write_folder_report(tmp_path, at_hand={place: anisotropy}).read_bytes() == whole


@pytest.mark.usefixtures("no_pictures")
def test_a_damaged_neighbour_is_left_out_of_the_report_and_told(anisotropy: CovarianceResult, tmp_path: Path) -> None:
    anisotropy.save(tmp_path / "anisotropy_directions")
    damaged = anisotropy.save(tmp_path / "old") / "result.json"
    damaged.write_text(damaged.read_text()[:-40])
    with pytest.warns(UserWarning, match="omits a result: .*old/result.json"):
        page = Page(report.write_folder_report(tmp_path))
    assert page.text.count(anisotropy.sentence()) == 1


@pytest.mark.usefixtures("no_pictures")
def test_results_from_before_a_network_changed_are_told_apart(
    anisotropy: CovarianceResult, geometry: CovarianceResult, tmp_path: Path
) -> None:
    family = anisotropy.provenance["family"]
    older = dataclasses.replace(
        geometry, provenance={**geometry.provenance, "family": {**family, "content": "0123456789abcdef"}}
    )
    anisotropy.save(tmp_path / "anisotropy_directions")
    older.save(tmp_path / "average_geometry")
    with pytest.warns(UserWarning, match="mixes results of small MLP from before and after a change of its code"):
        report.write_folder_report(tmp_path)
