import functools
import gc
import importlib.util
import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from clocks import Clock
from markupsafe import Markup

HUB = ("transformers", "tokenizers", "open_clip", "efficientnet_lite_pytorch")

# A script's background job ignores interrupts, and so would the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Two workers with two threads each would fight for two cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


def pytest_xdist_auto_num_workers() -> int:
    """One worker more than there are cores: many tests wait for a process of their own to start, or for a signal."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_finish() -> None:
    """Garbage is looked for among what tests make, not among the thousands of tests themselves."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def small_blocks() -> Iterator[None]:
    """Members of a family are drawn in blocks of 2²² numbers at most in place of 2²⁵: most tests draw a few networks."""
    from biascope.families import draws, tape

    def block_size(numbers: int, device: torch.device) -> int:
        return min(tape.block_size(numbers, device), max(1, 2**22 // max(1, numbers)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "block_size", block_size)
        yield


@pytest.fixture(scope="session", autouse=True)
def operators_of_torchvision() -> None:
    """Tests that import timm or transformers themselves can do so beside a torchvision that does not fit, as Biascope can.

    That its operators do not load is said once for each process; test_packages.py looks at the words.
    """
    from biascope.families.libraries.packages import define_operators_of_torchvision

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        define_operators_of_torchvision()


@pytest.fixture(scope="session", autouse=True)
def one_command_line() -> Iterator[None]:
    """The options of all commands are read once for all tests, in place of once for each command line that is tried."""
    import typer.main
    import typer.testing

    known = functools.cache(typer.main.get_command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", known)
        patch.setattr(typer.testing, "_get_command", known)
        yield


@pytest.fixture
def whole_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks as users have them."""
    from biascope.families import draws, tape

    monkeypatch.setattr(draws, "block_size", tape.block_size)


@pytest.fixture(scope="session")
def libraries() -> Iterator[None]:
    """The libraries of the extra `hub`, without their warnings of what comes in their next versions; tests skip without them."""
    missing = [name for name in HUB if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed: pip install 'biascope[hub]', or make hub")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from biascope.families.libraries.packages import define_operators_of_torchvision

    with warnings.catch_warnings():  # that torchvision's operators do not load is said once for each process
        warnings.simplefilter("ignore")
        define_operators_of_torchvision()
    return


@pytest.fixture
def hub(libraries: None) -> Iterator[None]:
    """The libraries for one test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", module="biascope")
        yield


@pytest.fixture
def data_root() -> Path:
    """The folder of real data; tests that need it skip, saying why, where it is not set."""
    if not os.environ.get("BIASCOPE_DATA"):
        pytest.skip("BIASCOPE_DATA is not set: no real data to test against")
    return Path(os.environ["BIASCOPE_DATA"])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time by which the fastest way is chosen."""
    from biascope.runs import autotune

    clock = Clock()
    monkeypatch.setattr(autotune, "time", clock)
    return clock


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For thousands of small tensors: on a busy machine a second thread is only waited for."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without pictures, which take seconds: for tests of what stands around them."""
    monkeypatch.setattr("biascope.results.embedding.pictures_of", lambda *args, **kwargs: ())


@pytest.fixture
def unrendered_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports whose pictures are put together but not rendered, which takes seconds and is tested in tests/results."""
    monkeypatch.setattr("biascope.results.embedding.embedded", lambda figure, salt: Markup("<svg></svg>"))
