"""Progress: which stages are shown, with which time left, and that results are printed as they are."""

import contextlib
import io
import sys
from collections.abc import Iterator

import pytest

from biascope.runs import progress
from biascope.runs.progress import Stage, phase, shown, shown_stage, tell_if_due
from biascope.runs.rehearsal import at_hand, counted, slowdown
from biascope.runs.run import Run


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @contextlib.contextmanager
    def watched(self, out: io.StringIO | None = None) -> Iterator[None]:
        """Both streams write to it; standard output perhaps elsewhere."""
        with contextlib.redirect_stdout(out or self), contextlib.redirect_stderr(self):
            yield


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal that both streams write to; frames are drawn where a test says so."""
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(progress, "APPEARS_AFTER", 0.0)
    monkeypatch.setattr(progress, "_FRAME", 1e6)
    return screen


def drawn(terminal: Terminal) -> str:
    """The last frame."""
    progress._DISPLAY.draw()
    return terminal.getvalue().split(progress._ERASE)[-1]


def test_a_stage_shows_its_pieces_and_the_time_left(terminal: Terminal, clock: Clock) -> None:
    with terminal.watched(), shown("scan"), Run().tracked("draws", 100, done=20) as advance:
        assert drawn(terminal) == f"draws {'─' * 24} 20/100, 0 s so far"
        clock.now = 10.0
        advance(40)
        assert drawn(terminal) == f"draws {'━' * 12}{'─' * 12} 60/100, about 10 s left"
    assert terminal.getvalue().endswith(progress._ERASE), "nothing stays"


def test_in_a_narrow_window_the_bar_gives_way(
    terminal: Terminal, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "41")
    with terminal.watched(), shown("scan"), Run().tracked("draws", 100) as advance:
        clock.now = 10.0
        advance(50)
        assert drawn(terminal) == f"draws {'━' * 5}{'─' * 5} 50/100, about 10 s left"
    monkeypatch.setenv("COLUMNS", "12")
    with terminal.watched(), shown("scan"):
        assert drawn(terminal) == "scan, 0 s s"


def test_stages_within_a_piece_count_as_part_of_it(terminal: Terminal, clock: Clock) -> None:
    with terminal.watched(), shown("edit"), counted("fine-tunings", 4) as outer, contextlib.ExitStack() as inner:
        advance = inner.enter_context(counted("training", 100))
        clock.now = 5.0
        advance(50)
        assert "fine-tunings ━━━" in drawn(terminal)
        assert "0/4, about 35 s left; training: 50 of 100" in drawn(terminal)
        inner.close()
        clock.now = 6.0
        assert "0/4, about 42 s left" in drawn(terminal), "what was done within it is not forgotten"
        outer(1)
        clock.now = 10.0
        assert drawn(terminal).endswith("1/4, about 30 s left")


def test_pieces_that_are_worked_on_together(terminal: Terminal, clock: Clock) -> None:
    with terminal.watched(), shown("sweep"), counted("directions", 60):
        at_hand(20)
        with counted("training", 100) as advance:
            clock.now = 10.0
            advance(50)
            assert "about 50 s left" in drawn(terminal)


def test_work_that_nobody_counts_shows_the_time_so_far(terminal: Terminal, clock: Clock) -> None:
    with terminal.watched(), shown("scan"):
        clock.now = 3.0
        assert drawn(terminal) == "scan, 3 s so far"
        with phase("reading cifar10"):
            assert drawn(terminal) == "reading cifar10, 3 s so far"


def test_a_short_command_shows_nothing(terminal: Terminal, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "APPEARS_AFTER", 0.5)
    with terminal.watched(), shown("list"):
        clock.now = 0.4
        assert drawn(terminal) == ""
    assert terminal.getvalue() == ""


def test_what_is_printed_takes_the_bar_away_first(terminal: Terminal) -> None:
    with terminal.watched(), shown("scan"):
        drawn(terminal)
        print("a result")
        assert terminal.getvalue().endswith(f"{progress._ERASE}a result\n")
        print("half a line", end="", file=sys.stderr)
        assert drawn(terminal).endswith("half a line"), "no bar within a line"
        print(".", file=sys.stderr)
        assert drawn(terminal).endswith("so far")
        assert isinstance(sys.stdout, progress._Guard)
    assert not isinstance(sys.stdout, progress._Guard)


def test_a_result_that_goes_to_a_file_is_left_alone(terminal: Terminal) -> None:
    file = io.StringIO()
    with terminal.watched(file), shown("scan"):
        drawn(terminal)
        print('{"version": 1}')
    assert file.getvalue() == '{"version": 1}\n'
    assert "version" not in terminal.getvalue()


def test_a_thread_draws_while_one_piece_takes_long(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr(progress, "_FRAME", 0.001)
    written = threading.Event()
    plain = terminal.write
    monkeypatch.setattr(terminal, "write", lambda text: (written.set() if "so far" in text else None, plain(text))[1])
    with terminal.watched(), shown("one long operation"):
        assert written.wait(30)


def test_only_a_command_shows_stages_that_have_no_run(terminal: Terminal) -> None:
    with terminal.watched(), counted("checks", 3) as advance, phase("reading"):
        advance(1)
        assert drawn(terminal) == ""


def test_lines_elsewhere(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with shown("reproduce"):
        clock.now = 31.0
        progress.tell_if_due()
        with shown_stage(Stage("numbers", 10**9)) as stage:
            clock.now = 62.0
            stage.advance(25 * 10**7)
            progress.tell_if_due()
            progress.tell_if_due()
    assert capsys.readouterr().err.splitlines() == [
        "biascope: reproduce, 31 s so far",
        "biascope: numbers: 25 %, about 2 min left",
    ]


def test_a_busy_machine_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slowdown() >= 1.0
    begin = slowdown.__globals__["time"].perf_counter()
    monkeypatch.setattr(
        slowdown.__globals__["time"], "thread_time", lambda: (slowdown.__globals__["time"].perf_counter() - begin) / 4
    )
    assert slowdown() == pytest.approx(4.0, rel=0.05)


class Sink:
    """What a program may put in the place of a stream: it takes words and knows nothing else."""

    def write(self, text: str) -> int:
        return len(text)


@pytest.mark.parametrize("stream", [None, Sink(), "closed"])
def test_a_program_without_a_console(stream: object, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python without standard error has None there, as under ``2>&-``."""
    if stream == "closed":
        stream = io.StringIO()
        stream.close()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, stream)
    with shown("scan"):
        clock.now += 100
        tell_if_due()
    assert not progress.on_terminal()
    assert sys.stderr is stream
