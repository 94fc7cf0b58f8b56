"""What every registered measurement keeps to, checked on its own small example."""

import dataclasses
import functools
import inspect
import json
import math
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from biascope.results.draw import caption_of, reading_of
from biascope.results.estimate import Estimate, Number
from biascope.results.registry import SOURCES, find, load, names
from biascope.results.result import KEY, Result
from biascope.runs.run import Run

matplotlib.use("Agg")


def measured_anew(name: str, **changes: object) -> Result:
    args, settings = find(name).example()
    return find(name)(*args, **{**settings, "run": Run(device="cpu"), **changes})


@functools.cache
def measured(name: str, seed: int = 0) -> Result:
    """The example's result, measured once: results are frozen."""
    return measured_anew(name, seed=seed)


@pytest.fixture(scope="module", params=names())  # all tests of one measurement follow one another, for the cache
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_docstring_gives_definition_arguments_example_and_reference(name: str) -> None:
    text = find(name).__doc__ or ""
    for part in ("Definition:", "Args:", "Returns:", "Raises:", "Example:", "Reference:", ">>>"):
        assert part in text, f"{name} lacks {part}"
    assert len(text.splitlines()[0]) < 120


def test_it_names_a_known_paper_and_has_a_title(name: str) -> None:
    assert find(name).paper in SOURCES
    assert find(name).title


def assert_same_numbers(one: Result, two: Result, tolerance: float) -> None:
    for key, estimate in one.headline().items():
        other = two.headline()[key]
        assert estimate.value == pytest.approx(other.value, rel=tolerance)
        assert estimate.standard_error == pytest.approx(other.standard_error, rel=50 * tolerance, nan_ok=True)


def test_a_seed_determines_the_result(name: str) -> None:
    assert_same_numbers(measured(name, seed=3), measured_anew(name, seed=3), 1e-5)
    first, second = ([number.value for number in measured(name, seed=seed).headline().values()] for seed in (3, 4))
    assert first != second  # a single number may lie at the end of where it can


def test_its_numbers_have_keys_that_no_setting_changes(name: str) -> None:
    numbers, others = (measured(name, seed=seed).headline() for seed in (0, 4))
    assert list(numbers) == list(others)
    for key, number in numbers.items():
        assert KEY.fullmatch(key), key
        assert isinstance(number, Number)
        assert number.label


def test_every_number_lies_in_its_interval_and_has_one(name: str) -> None:
    result = measured(name)
    for key, number in result.headline().items():
        assert math.isnan(number.low) or number.contains(number.value), (key, number)
        own = getattr(result, key, None)
        if isinstance(own, Estimate):  # the table, the attribute and the file say the same
            assert (own.value, own.low, own.high) == (number.value, number.low, number.high), key


def test_float32_and_float64_agree_to_rounding(name: str) -> None:
    assert_same_numbers(measured(name), measured_anew(name, run=Run(device="cpu", precision="float64")), 1e-3)


def test_saved_and_loaded_it_is_the_same(name: str, tmp_path: Path) -> None:
    result = measured(name)
    again = load(result.save(tmp_path / "saved"))
    assert type(again) is type(result)
    for field in dataclasses.fields(result):
        before, after = getattr(result, field.name), getattr(again, field.name)
        if isinstance(before, np.ndarray):
            np.testing.assert_array_equal(before, after)
            assert before.dtype == after.dtype
        elif field.name == "provenance":
            assert json.dumps(before) == json.dumps(after)
        else:
            assert repr(before) == repr(after)
    assert again.check() is again


def test_it_records_what_is_needed_to_repeat_it(name: str) -> None:
    provenance = measured(name).provenance
    subjects = set(inspect.signature(find(name).function).parameters) & {"family", "probe", "basis"}
    assert {"measurement", "settings", "run", "versions", "date", "seconds"} | subjects <= set(provenance)
    assert provenance["settings"]["seed"] == 0
    if "family" in subjects:
        assert provenance["family"]["batchnorm"] == "eval"
    assert json.dumps(provenance)


def test_it_is_frozen_and_shows_itself(name: str) -> None:
    result = measured(name)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.provenance = {}  # type: ignore[misc]
    assert result.subject in repr(result)
    assert all(number.label in repr(result) for number in result.headline().values())
    hostile = dataclasses.replace(result, provenance={**result.provenance, "family": {"name": "<script>"}})
    assert "<script>" not in hostile._repr_html_()
    assert result.sentence().endswith(".")


def test_its_words_have_no_exponents(name: str) -> None:
    result = measured(name)
    story = result.story()
    texts = [result.sentence(), story.meaning, story.page_title, *(text for text, _ in story.sentences)]
    texts += [words for words, _ in story.next_steps] + result.warnings
    assert not [text for text in texts if re.search(r"\de[+-]?\d", text)]


def test_it_draws_itself_in_light_and_dark(name: str) -> None:
    result = measured(name)
    for dark in (False, True):
        figures = result.plots(dark=dark)
        assert figures
        for key, figure in figures.items():
            assert re.fullmatch(r"[a-z][a-z0-9_]*", key), key
            assert caption_of(figure, key)[0].isupper()
            assert reading_of(figure).endswith("."), key
            assert figure.axes
    assert result.plot().axes


def test_a_global_random_state_is_left_alone(name: str) -> None:
    import random

    import torch

    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    measured_anew(name)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
    assert before[2] == random.getstate()


def test_settings_of_the_caller_change_no_number(name: str) -> None:
    import torch

    args, settings = find(name).example()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode(), torch.device("meta"), torch.autocast("cpu"), np.errstate(all="raise"):
            result = find(name)(*args, **{**settings, "run": Run(device="cpu"), "seed": 3})
            numbers = result.headline()
            result.sentence()
    finally:
        torch.set_default_dtype(before)
    for key, number in measured(name, seed=3).headline().items():
        assert numbers[key].value == pytest.approx(number.value, rel=1e-5)
