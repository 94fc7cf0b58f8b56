"""Timings: what the clock says of each way, and what happens to a way that cannot do the work."""

import math

import pytest
import torch

from biascope.runs.autotune import Timings


@pytest.fixture
def timings() -> Timings[str]:
    return Timings(torch.device("cpu"))


def test_the_first_call_counts_until_there_is_a_second_and_the_fastest_of_the_later_ones(clock, timings):
    for spent, known in ((8.0, 4.0), (6.0, 3.0), (7.0, 3.0), (2.0, 1.0)):
        assert timings.timed("way", lambda spent=spent: clock.work(spent), units=2) == "done"
        assert timings.seconds["way"] == known
    assert timings.calls["way"] == 4


def test_the_fastest_is_the_first_of_equals(clock, timings):
    for way, spent in (("slow", 3.0), ("one", 1.0), ("other", 1.0)):
        timings.timed(way, lambda spent=spent: clock.work(spent), units=1)
    assert timings.fastest(["slow", "other", "one"]) == "other"


def failing(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("none left"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_a_lack_of_memory_is_no_error_of_the_work(timings, error):
    assert timings.attempted("way", lambda: failing(error), required=True) is None
    assert timings.seconds["way"] == math.inf


def test_another_error_is_one_where_the_way_is_required(timings):
    assert timings.attempted("compiled", lambda: failing(AssertionError()), required=False) is None
    with pytest.raises(AssertionError):
        timings.attempted("plain", lambda: failing(AssertionError()), required=True)
    assert timings.seconds == {"compiled": math.inf}


def test_what_is_known_of_a_way_stays_known_when_it_fails_later(clock, timings):
    timings.timed("way", lambda: clock.work(1.0), units=1)
    assert timings.attempted("way", lambda: failing(torch.OutOfMemoryError()), required=True) is None
    assert timings.seconds["way"] == 1.0
