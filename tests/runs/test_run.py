"""Run: devices, precisions and progress, and the sentences for wrong ones."""

import dataclasses
import sys
from pathlib import Path

import pytest
import torch

from biascope.runs import progress
from biascope.runs.run import PRECISIONS, Run


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("float64", torch.float64),
        ("float32", torch.float32),
        ("tf32", torch.float32),
        ("float16", torch.float16),
        ("bfloat16", torch.bfloat16),
    ],
)
def test_a_precision_names_a_type(precision, dtype):
    assert Run(precision=precision).dtype is dtype
    assert precision in PRECISIONS


def test_an_unknown_precision_is_a_sentence():
    with pytest.raises(ValueError, match=r"^precision must be one of 'float64', .*, got 'double'\. Pass precision="):
        Run(precision="double")


def test_a_folder_may_be_text():
    assert Run(folder="some/where").folder == Path("some/where")
    assert Run().folder is None


def test_a_data_root_may_be_text():
    assert Run(data_root="some/where").data_root == Path("some/where")
    assert Run().data_root is None


@pytest.mark.parametrize("on", [None, "ray", "ray://head:10001", "ray://192.0.2.7:10001"])
def test_sweeps_run_here_or_on_ray(on):
    assert Run(on=on).on == on


@pytest.mark.parametrize(
    "on", ["dask", "", "ray:", "ray://head", "ray://:10001", "ray://head:port", "http://head:10001"]
)
def test_another_place_is_a_sentence(on):
    with pytest.raises(ValueError, match=r"^on must be 'ray' or 'ray://HOST:PORT', got '.*'\. Pass on='ray'\.$"):
        Run(on=on)


def test_auto_takes_the_gpu_only_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Run().torch_device == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert Run().torch_device == torch.device("cuda")
    assert Run(device="cuda:1").torch_device == torch.device("cuda:1")
    assert Run(device="cpu").torch_device == torch.device("cpu")


def test_a_device_that_is_not_there_is_a_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"^device 'cuda' needs a CUDA GPU, but PyTorch sees none\. Pass device='cpu'"):
        _ = Run(device="cuda").torch_device
    with pytest.raises(ValueError, match=r"^device must be 'auto', .*, got 'gpu'\. Pass device='auto'\.$"):
        _ = Run(device="gpu").torch_device


@pytest.mark.parametrize(("precision", "allowed"), [("tf32", True), ("float32", False), ("float64", False)])
def test_products_are_of_the_precision_asked_for_and_the_setting_comes_back(precision, allowed):
    def setting() -> tuple[bool, bool]:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    def work() -> None:
        with Run(precision=precision).products():
            assert setting() == (allowed, allowed)
            raise KeyError

    before = setting()
    with pytest.raises(KeyError):
        work()
    assert setting() == before


def test_progress_is_silent_without_a_terminal(capsys):
    with Run().tracked("work", 3) as advance:
        advance(2)
    assert capsys.readouterr() == ("", "")


def test_progress_shows_on_a_terminal_unless_it_is_unwanted(monkeypatch, capsys):
    monkeypatch.setattr(progress, "APPEARS_AFTER", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with Run().tracked("counting draws", 10, done=4) as advance:
        advance(3)
        progress._DISPLAY.draw()
    shown = capsys.readouterr()
    assert shown.out == ""  # standard output belongs to results
    assert "counting draws" in shown.err
    assert "7/10" in shown.err
    with Run(progress=False).tracked("counting draws", 10) as advance:
        advance(3)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("TERM", "dumb")
    with Run().tracked("counting draws", 10) as advance:
        advance(3)
    assert capsys.readouterr().err == ""


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""
    seconds = [0.0]
    monkeypatch.setattr("biascope.runs.progress.time.monotonic", lambda: seconds[0])
    return seconds


def test_without_a_terminal_a_line_tells_the_time_left_every_half_minute(clock, capsys):
    with Run().tracked("work", 100) as advance:
        for _ in range(4):
            clock[0] += 20.0
            advance(10)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "biascope: work: 20 of 100, about 3 min left",
        "biascope: work: 40 of 100, about 2 min left",
    ]
    with Run(progress=False).tracked("work", 100) as advance:
        clock[0] += 60.0
        advance(10)
    assert capsys.readouterr().err == ""


def test_work_that_would_take_longer_than_the_patience_is_refused_early(clock):
    with Run(patience=3600.0).tracked("draws", 10**12) as advance:
        clock[0] += 1.0
        advance(1000)  # a slow first step says nothing yet
        clock[0] += 5.0
        with pytest.raises(ValueError, match=r"draws would take about \d+ years, more than the limit of 60 min.*--yes"):
            advance(1000)
    with Run().tracked("draws", 10**12) as advance:
        clock[0] += 60.0
        advance(1)


@pytest.mark.parametrize("device", ["mps", "meta", "xpu", "gpu", "", "cuda:-1", "cpu:0", "CPU"])
def test_a_device_that_is_not_supported_is_told(device):
    with pytest.raises(ValueError, match="device must be 'auto', 'cpu', 'cuda' or 'cuda:N'"):
        Run(device=device)


def test_a_gpu_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert Run(device="cuda:1").torch_device == torch.device("cuda:1")
    with pytest.raises(ValueError, match="one of the 2 GPUs here"):
        _ = Run(device="cuda:2").torch_device


def test_a_result_records_device_and_precision_only():
    assert set(Run(device="cpu").describe()) == {"device", "precision"}
    assert Run(device="cpu", precision="tf32").describe()["precision"] == "tf32"
    assert Run(device="cpu").describe()["device"].startswith("cpu (")


def test_on_a_cluster_this_process_needs_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Run(device="cuda", on="ray").describe() == {"device": "cuda on ray", "precision": "float32"}


def test_a_run_is_never_changed_in_place():
    run = Run()
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.device = "cpu"  # type: ignore[misc]
