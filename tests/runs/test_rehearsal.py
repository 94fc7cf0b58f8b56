"""A rehearsal stops work when its pace is known, and says how long all of it would take."""

import signal
import time
from pathlib import Path

import pytest

from biascope.runs import rehearsal as module
from biascope.runs.rehearsal import Rehearsal, at_hand, counted, placed, rehearsing
from biascope.runs.run import Run
from biascope.runs.trials import Group, Sweep, Trials


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)

    def work(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_what_ends_within_the_budget_is_told_as_it_was(clock: Clock) -> None:
    with Rehearsal(budget=10, limit=30) as rehearsal:
        for name, pieces in (("heads", 2), ("training", 3)):
            with counted(name, pieces) as advance:
                for _ in range(pieces):
                    clock.work(1.0)
                    advance(1)
        clock.work(0.5)
    known = rehearsal.expectation
    assert known.whole
    assert known.seconds == 5.5
    assert [(stage.name, stage.done, stage.seconds) for stage in known.stages] == [("heads", 2, 2), ("training", 3, 3)]
    assert not rehearsing()


def test_the_pace_is_that_of_the_later_pieces(clock: Clock) -> None:
    with Rehearsal(budget=10, limit=30) as rehearsal, Run(patience=1.0).tracked("draws", 1000) as advance:
        clock.work(4.0)  # several ways are tried
        for _ in range(1000):
            clock.work(0.5)
            advance(1)
    known = rehearsal.expectation
    assert not known.whole
    assert known.stages[0].done == 12
    assert known.seconds == pytest.approx(4 + 1000 * 0.5)


def test_the_pieces_of_a_stage_are_known_by_the_stages_within(clock: Clock) -> None:
    with Rehearsal(budget=10, limit=30) as rehearsal, counted("sweep", 60):
        at_hand(20)
        with counted("training", 100) as advance:
            for _ in range(100):
                clock.work(2.0)
                advance(1)
    assert rehearsal.expectation.seconds == pytest.approx(3 * 200)  # three stacks of twenty
    assert [stage.name for stage in rehearsal.expectation.stages] == ["sweep"]


def test_a_piece_that_ends_soon_is_waited_for(clock: Clock) -> None:
    with Rehearsal(budget=10, limit=30) as rehearsal, counted("panels", 8) as outer:
        for _ in range(8):
            with counted("products", 6) as advance:
                for _ in range(6):
                    clock.work(2.0 if rehearsal._open[0].expected([]) is None else 1.0)
                    advance(1)
            outer(1)
    assert rehearsal.expectation.stages[0].done == 1
    assert rehearsal.expectation.seconds == pytest.approx(8 * 12)


def test_what_is_refused_is_refused_in_a_rehearsal_too() -> None:
    with pytest.raises(ValueError, match="no such thing"), Rehearsal():
        raise ValueError("no such thing")


@pytest.mark.parametrize("stage", [True, False])
def test_work_that_does_not_advance_is_interrupted(stage: bool) -> None:
    def endless() -> None:
        while True:
            time.sleep(0.01)

    with Rehearsal(limit=0.05) as rehearsal:
        if stage:
            with counted("clusters", 7):
                endless()
        endless()
    known = rehearsal.expectation
    assert not known.whole
    assert [(each.name, each.pieces, each.seconds) for each in known.stages] == ([("clusters", 7, None)] * stage)


def test_it_ends_where_interrupts_are_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a script's background job
    try:
        with Rehearsal(limit=0.05) as rehearsal:
            while True:
                time.sleep(0.01)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert not rehearsal.expectation.whole


def test_one_long_operation_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GRACE", 0.05)
    given_up = []
    with Rehearsal(limit=0.05, too_long=given_up.append) as rehearsal:
        for _ in range(2):  # it holds out against the interrupt
            try:
                time.sleep(0.5)
            except KeyboardInterrupt:
                time.sleep(0.5)
    assert given_up == [rehearsal.expectation]


def test_sweeps_and_trials_count_themselves(clock: Clock) -> None:
    def groups(keys: list[str], run: Run, method: object) -> dict[str, dict]:
        with run.tracked("training", 10) as advance:
            for _ in range(10):
                clock.work(3.0)
                advance(1)
        return {key: {} for key in keys}

    keys = [f"trial {number}" for number in range(12)]
    with Rehearsal(budget=10, limit=30) as rehearsal:
        sweep = Sweep("squares", Run(device="cpu"), code=groups)
        sweep.outcomes(keys, groups, plan=lambda new: [Group(tuple(new[:4])), Group(tuple(new[4:]))])
    assert rehearsal.expectation.seconds == pytest.approx(3 * 30)

    with Rehearsal(budget=10, limit=30) as rehearsal:
        list(Trials("cubes", Run(device="cpu"), code=groups).outcomes(keys, lambda key: clock.work(5.0) or {}))
    assert rehearsal.expectation.seconds == pytest.approx(12 * 5)
    assert rehearsal.expectation.stages[0].name == "cubes"


def test_files_go_elsewhere(tmp_path: Path) -> None:
    asked = Path("models") / "a.safetensors"
    assert placed(asked) == asked
    with Rehearsal(tmp_path):
        one, other = placed(asked), placed(Path("a.safetensors"))
        assert one != other
        assert one.is_relative_to(tmp_path)
        assert one.parent.is_dir()
        assert placed(one) == one
