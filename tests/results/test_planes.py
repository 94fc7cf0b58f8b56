import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromium import Chromium, running
from matplotlib.figure import Figure

from biascope.results import draw
from biascope.results.estimate import Estimate, Number
from biascope.results.figures import lines_figure, plane_figure
from biascope.results.planes import live_data
from biascope.results.report import write_report
from biascope.results.result import Plane, Result

EVIL = '</script><b>x</b><img src=x onerror="window.broken=1">'
DOWN, ACROSS = np.meshgrid(np.arange(8) - 4, np.arange(6) - 3, indexing="ij")
ACCURACY = Plane(75.0 + 5 * np.cos(DOWN) + ACROSS**2, "%", 50.0, 100.0, spread=0.5 + 0.1 * np.abs(DOWN))
SPEED = Plane(np.where(np.abs(DOWN) + np.abs(ACROSS) > 5, np.nan, 100.0 + 10 * np.abs(ACROSS)), "iterations")


@dataclasses.dataclass(frozen=True, repr=False)
class Bias(Result):
    """A result that is nothing but planes."""

    content: dict[str, Plane] = dataclasses.field(default_factory=dict)
    drawn: bool = False

    def headline(self) -> dict[str, Number]:
        return {"answer": Estimate.exact(42.0).named("answer")}

    def sentence(self) -> str:
        return "It is so."

    def plots(self, dark: bool = False) -> dict[str, Figure]:
        line = {"Along": lines_figure({"a": (np.arange(3), np.arange(3))}, x="index", y="value", dark=dark)}
        return {"Over frequencies": plane_figure(self.content, dark=dark)} | line if self.drawn else line

    def planes(self) -> dict[str, Plane]:
        return self.content


def result(subject: str, drawn: bool = False, **planes: Plane) -> Bias:
    return Bias(content=planes, drawn=drawn, provenance={"family": {"name": subject}, "measurement": "bias"})


def payload(page: Path, number: int) -> dict[str, Any]:
    (text,) = re.findall(rf'id="plane-{number}-data">(.*?)</script>', page.read_text(encoding="utf-8"))
    content: dict[str, Any] = json.loads(text, parse_constant=pytest.fail)
    return content


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    planes = {"accuracy": ACCURACY, "speed": SPEED}
    return write_report([result("LeNet", **planes)], tmp_path_factory.mktemp("alone") / "report.html")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three networks, one measured at every second frequency, and strings that try to break the page."""
    sparse = Plane(np.where((DOWN % 2 == 0) & (ACROSS % 2 == 0), 50.0 + DOWN**2, np.nan), "%", 50.0, 100.0)
    results = [
        result("one", **{"accuracy": ACCURACY, EVIL: SPEED}),
        result(EVIL, accuracy=dataclasses.replace(ACCURACY, values=ACCURACY.values + 1)),
        result("three", accuracy=sparse),
        result("larger", accuracy=Plane(np.ones((9, 9)), EVIL)),
    ]
    return write_report(results, tmp_path_factory.mktemp("hostile") / "report.html")


def test_the_page_holds_the_planes_to_four_digits(alone: Path) -> None:
    content = payload(alone, 0)
    assert (content["height"], content["width"]) == (8, 6)
    assert content["rows"] == list(range(-4, 4))
    accuracy, speed = content["planes"]
    assert (accuracy["name"], accuracy["unit"], accuracy["limits"]) == ("accuracy", "%", [50, 100])
    np.testing.assert_allclose(np.reshape(accuracy["values"], (8, 6)), ACCURACY.values, rtol=5e-4)
    np.testing.assert_allclose(np.reshape(accuracy["spread"], (8, 6)), ACCURACY.spread, rtol=5e-4)
    assert speed["spread"] is None
    shown = np.array([np.nan if value is None else value for value in speed["values"]]).reshape(8, 6)
    np.testing.assert_array_equal(shown, SPEED.values)
    assert max(len(str(value)) for value in accuracy["values"]) <= 5


def test_only_known_frequencies_travel(hostile: Path) -> None:
    content = payload(hostile, 2)
    (plane,) = content["planes"]
    assert plane["rows"] == content["rows"] == [-4, -2, 0, 2]
    assert plane["columns"] == [-2, 0, 2]
    assert plane["values"] == [66, 66, 66, 54, 54, 54, 50, 50, 50, 54, 54, 54]


def test_it_starts_at_a_frequency_that_is_known() -> None:
    known = live_data({"speed": SPEED})["start"]
    assert np.isfinite(SPEED.values[known[0] + 4, known[1] + 3])
    assert live_data({"none": Plane(np.full((4, 4), np.nan), "")})["start"] == [0, 0]


def test_the_picture_of_the_planes_stands_where_the_live_one_does(tmp_path: Path) -> None:
    parts = r'<div class="(?:still|plane)\b|<figcaption>(?:Over frequencies|Frequency plane|Along)<'

    def order(drawn: bool) -> list[str]:
        page = write_report([result("net", drawn, accuracy=ACCURACY)], tmp_path / "report.html")
        return [
            re.sub('.*[">]|<', "", part.rstrip("<")) for part in re.findall(parts, page.read_text(encoding="utf-8"))
        ]

    assert order(drawn=True) == ["still", "Over frequencies", "plane", "Along"]
    assert order(drawn=False) == ["still", "Frequency plane", "plane", "Along"], "drawn where the result does not"


def test_a_page_without_planes_has_no_script_for_them(tmp_path: Path) -> None:
    plain = dataclasses.replace(result("net"), content={})
    text = write_report([plain], tmp_path / "report.html").read_text()
    assert "startPlane" not in text
    assert ".pointed" not in text


def test_several_networks_are_shown_side_by_side(alone: Path, hostile: Path) -> None:
    assert 'data-sources="plane-0 plane-1' not in alone.read_text()
    text = hostile.read_text(encoding="utf-8")
    assert text.count('data-sources="plane-0 plane-1 plane-2"') == 1
    assert "plane-2 plane-3" not in text, "planes of another size stay apart"


def test_strings_are_escaped_and_nothing_is_loaded(hostile: Path) -> None:
    text = hostile.read_text(encoding="utf-8")
    assert "<img" not in text
    assert "<b>x" not in text
    assert len(re.findall(r"<script\b", text)) == 6, "colours, four sets of planes and the one that runs"
    assert not re.findall(r'(?:src|href)="(?!#|data:)', text)
    assert all(target.startswith("#") for target in re.findall(r"url\((.*?)\)", text))
    identifiers = re.findall(r'\bid="([^"]*)"', text)
    assert len(set(identifiers)) == len(identifiers)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    yield from running(tmp_path_factory.mktemp("profile"))


def label(browser: Chromium, view: str) -> str:
    """What a view says, with one space between its parts."""
    parts = f"[...document.getElementById('{view}-label').querySelectorAll('b, span, strong')]"
    return str(browser.evaluate(f"{parts}.map((part) => part.textContent).join(' ')")).replace("\u00a0", " ")


def place(
    browser: Chromium, view: str, frequency: tuple[int, int], shape: tuple[int, int] = (8, 6), member: int = 0
) -> Any:
    """Where a frequency lies in the window, once its plane is in sight."""
    canvas = f"document.querySelectorAll('#{view} .map canvas')[{member}]"
    browser.evaluate(f"{canvas}.scrollIntoView({{ block: 'center', behavior: 'instant' }})")
    box = browser.evaluate(
        f"(() => {{ const b = {canvas}.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; }})()"
    )
    down, across = ((at + length // 2 + 0.5) / length for at, length in zip(frequency, shape, strict=True))
    return box[0] + across * box[2], box[1] + down * box[3]


@pytest.mark.browser
def test_pointing_at_a_frequency_shows_its_numbers_and_its_direction(browser: Chromium, alone: Path) -> None:
    browser.errors.clear()
    browser.requests.clear()
    browser.open(alone, width=1280)
    browser.point(*place(browser, "plane-0", (-1, 2)))
    words, length = label(browser, "plane-0"), 1 / np.hypot(1 / 8, 2 / 6)
    assert words.startswith(f"Frequency (−1, 2) −1 cycles down, 2 across; wavelength {length:.3g} pixels")
    value = ACCURACY.values[3, 5]
    assert f"accuracy {value:.2f} ± 0.60 %" in words
    assert "speed 120 iterations" in words
    browser.point(*place(browser, "plane-0", (-4, -3)))
    assert "speed not measured" in label(browser, "plane-0")
    browser.point(*place(browser, "plane-0", (0, 0)))
    assert "constant, no wave" in label(browser, "plane-0")
    assert browser.errors == []
    assert not [address for address in browser.requests if not address.startswith(("file:", "data:"))]


@pytest.mark.browser
def test_the_page_computes_the_wave_that_numpy_does(browser: Chromium, alone: Path) -> None:
    browser.open(alone, width=1280)
    found = browser.evaluate("Array.from(wave([3, -2], 8, 6))")
    angle = 2 * np.pi * (3 * np.arange(8)[:, None] / 8 - 2 * np.arange(6) / 6)
    np.testing.assert_allclose(np.reshape(found, (8, 6)), 127 * np.cos(angle), atol=1e-9)
    pixels = "document.getElementById('plane-0-wave').toDataURL()"
    browser.point(*place(browser, "plane-0", (1, 0)))
    rows = browser.evaluate(pixels)
    browser.point(*place(browser, "plane-0", (0, 1)))
    assert browser.evaluate(pixels) != rows


@pytest.mark.browser
def test_a_click_keeps_a_frequency_and_a_tap_does(browser: Chromium, alone: Path) -> None:
    browser.open(alone, width=1280)
    browser.point(*place(browser, "plane-0", (2, 1)), click=True)
    browser.point(*place(browser, "plane-0", (0, 1)))
    assert label(browser, "plane-0").startswith("Frequency (0, 1)")
    browser.point(2, 2)
    assert label(browser, "plane-0").startswith("Frequency (2, 1)"), "beside the plane, what was kept comes back"
    browser.open(alone, width=390)
    browser.tap(*place(browser, "plane-0", (-2, -1)))
    assert label(browser, "plane-0").startswith("Frequency (−2, −1)")


@pytest.mark.browser
def test_arrow_keys_move_the_cursor_and_stop_at_the_edge(browser: Chromium, alone: Path) -> None:
    browser.open(alone, width=1280)
    browser.evaluate("document.querySelector('#plane-0 .map').focus()")
    browser.press("Home")
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowUp", "ArrowLeft", "ArrowLeft"):
        browser.press(key)
    assert label(browser, "plane-0").startswith("Frequency (1, −1)")
    for _ in range(4):
        browser.press("ArrowLeft")
    assert label(browser, "plane-0").startswith("Frequency (1, −3)")
    shown = browser.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert shown == "solid", "the focus is seen"
    status = browser.evaluate("document.getElementById('plane-0-label').tagName")
    assert status == "OUTPUT", "which is read out as it changes"


@pytest.mark.browser
def test_buttons_switch_the_plane(browser: Chromium, alone: Path) -> None:
    browser.open(alone, width=1280)
    state = """(() => {
      const view = document.getElementById('plane-0');
      const pressed = [...view.querySelectorAll('.switch button')].map((button) => button.getAttribute('aria-pressed'));
      return [pressed, view.querySelector('.scale').textContent, view.querySelector('.map canvas').toDataURL()];
    })()"""
    pressed, scale, picture = browser.evaluate(state)
    assert (pressed, scale) == (["true", "false"], "accuracy50100\u00a0%")
    browser.evaluate("document.querySelectorAll('#plane-0 .switch button')[1].click()")
    pressed, scale, other = browser.evaluate(state)
    assert (pressed, scale) == (["false", "true"], "speed100130 iterations")
    assert other != picture


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
def test_colours_are_those_of_the_pictures_and_gaps_stay_open(browser: Chromium, alone: Path, dark: bool) -> None:
    browser.open(alone, width=1280, dark=dark)
    browser.evaluate("document.querySelectorAll('#plane-0 .switch button')[1].click()")
    pick = """(() => {
      const canvas = document.querySelector('#plane-0 .map canvas');
      const [across, down] = [canvas.width / 6, canvas.height / 8];
      const at = (x, y) => [...canvas.getContext('2d').getImageData((x + 0.5) * across, (y + 0.5) * down, 1, 1).data];
      return [at(3, 4), at(5, 4), at(0, 0)];
    })()"""
    lowest, middle, gap = browser.evaluate(pick)
    shown = plane_figure({"speed": SPEED}, dark=dark).axes[0].get_images()[0]
    for found, value in ((lowest, 100.0), (middle, 120.0)):
        np.testing.assert_allclose(found, 255 * np.array(shown.to_rgba(value)), atol=1)  # type: ignore[arg-type]
    assert gap[3] == 0


@pytest.mark.browser
def test_networks_follow_one_another(browser: Chromium, hostile: Path) -> None:
    browser.errors.clear()
    browser.open(hostile, width=1280)
    unmoved = label(browser, "plane-3")
    browser.point(*place(browser, "plane-0", (2, -1)), click=True)
    for view in ("plane-0", "plane-1", "plane-2", "planes-0"):
        assert label(browser, view).startswith("Frequency (2, −1)"), view
    assert "not measured" in label(browser, "plane-2"), "which knows every second frequency"
    assert label(browser, "plane-3") == unmoved, "of another size"
    value = ACCURACY.values[6, 2]
    words = label(browser, "planes-0")
    assert f"one {value:.2f} ± 0.70 %" in words
    assert f"{EVIL} {value + 1:.2f} ± 0.70 %" in words
    assert "three not measured" in words
    browser.point(*place(browser, "planes-0", (2, 2), member=2), click=True)
    assert "three 54 %" in label(browser, "planes-0")
    assert label(browser, "plane-0").startswith("Frequency (2, 2)")
    browser.evaluate("document.querySelectorAll('#planes-0 .map')[2].focus()")
    browser.press("ArrowUp")
    assert label(browser, "plane-0").startswith("Frequency (0, 2)"), "by what this network knows"
    assert browser.errors == []
    assert browser.evaluate("window.broken === undefined")


@pytest.mark.browser
@pytest.mark.parametrize("width", [320, 390, 800])
def test_nothing_sticks_out_of_a_narrow_window(browser: Chromium, hostile: Path, width: int) -> None:
    browser.open(hostile, width=width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.browser
def test_print_and_a_page_without_script_show_the_pictures(browser: Chromium, alone: Path) -> None:
    seen = "['.still', '.plane'].map((name) => getComputedStyle(document.querySelector(name)).display !== 'none')"
    browser.open(alone, width=1280)
    assert browser.evaluate(seen) == [False, True]
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate(seen) == [True, False]
    browser.call("Emulation.setEmulatedMedia", media="")
    browser.evaluate("document.documentElement.classList.remove('scripted')")
    assert browser.evaluate(seen)[0]
    text = alone.read_text(encoding="utf-8")
    assert re.search(r'<div class="plane[^>]*\bhidden>', text), "shown by the script alone"


def test_planes_of_the_page_are_drawn_as_results_draw_them(alone: Path) -> None:
    figure = plane_figure({"accuracy": ACCURACY, "speed": SPEED})
    assert draw.reading_of(figure) in alone.read_text(encoding="utf-8")
    assert draw.PALETTE[True].sequential[0] in alone.read_text(encoding="utf-8")
