"""The limit of main memory: how it is written, what it leaves to a piece of work, and what is refused."""

from pathlib import Path

import pytest
import torch
from torch import nn

from biascope.derivatives.covariance import GradientSampler
from biascope.derivatives.draw_memory import draws_at_once, expected_memory
from biascope.derivatives.one_pass import OnePass
from biascope.families.family import Family
from biascope.kernels.gram import matrix_bytes, tangent_gram
from biascope.measures.average_geometry import average_geometry
from biascope.runs import memory
from biascope.runs.byte_size import byte_size, enough, in_words
from biascope.runs.memory import LIBRARIES, piece
from biascope.runs.rehearsal import Rehearsal
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

GB = 10**9


@pytest.mark.parametrize("text", ["", "GB", "2 apples", "-1GB", "0MB", "1.2.3GB", "inf"])
def test_what_is_no_size_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"memory must be a size such as 2GB, got .* Pass 2GB\."):
        Run(memory=text)


def test_a_run_takes_text_or_bytes() -> None:
    assert [Run(memory=given).limit for given in ("2GB", "1.5 GiB", 3 * GB)] == [2 * GB, 3 * 2**29, 3 * GB]
    assert byte_size(enough(3_240_000_000), "--memory") >= 3_240_000_000
    assert in_words(999_600_000) == "1.0 GB"


def test_by_default_it_is_half_of_what_is_free_beside_what_the_process_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 20.0 * GB)
    monkeypatch.setattr(memory, "used", lambda: GB)
    assert Run().limit == 11 * GB
    monkeypatch.setattr(memory, "free_memory", lambda: 1.0)
    assert Run().limit == memory.LEAST


def test_a_container_leaves_what_its_limit_says(tmp_path: Path) -> None:
    group = tmp_path / "outer" / "inner"
    group.mkdir(parents=True)
    own = tmp_path / "own"
    own.write_text("0::/outer/inner\n")
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("5\n")
    assert memory._free_in_container(tmp_path, own) == float("inf")
    (group.parent / "memory.max").write_text("1000\n")
    (group.parent / "memory.current").write_text("700\n")
    (group.parent / "memory.stat").write_text("anon 600\ninactive_file 100\n")
    assert memory._free_in_container(tmp_path, own) == 400
    assert memory._free_in_container(tmp_path, tmp_path / "missing") == float("inf")


def test_a_piece_is_a_power_of_two_below_its_share_and_its_cap() -> None:
    for limit in (GB, 2 * GB, 7 * GB, 10**12):
        found = piece(limit, 2**40)
        assert found <= (limit - LIBRARIES) / 8 < 2 * found
        assert piece(limit, 1000) == 1000
    assert piece(1, 2**30) == 2**20


def test_work_says_what_it_takes_and_is_refused_if_it_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("biascope.runs.run.used", lambda: LIBRARIES)
    run = Run(memory=LIBRARIES + 1000)
    run.expects("The work", 1000, "Do less")
    with pytest.raises(ValueError) as refused:
        run.expects("The work", 10**10, "Do less")
    assert str(refused.value) == (
        "The work needs about 10.4 GB of memory, but --memory allows 400 MB. Do less, or --memory 10.5GB (in Python, "
        'Run(memory="10.5GB")).'
    )
    with Rehearsal() as rehearsal:
        Run(memory=100 * GB).expects("The work", 10 * GB, "Do less")
    assert rehearsal.expectation.memory == 10 * GB + LIBRARIES


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(50, 30), nn.Tanh(), nn.Linear(30, 1))


def test_gradients_are_the_same_under_any_limit() -> None:
    """What is drawn follows from the seed alone; pieces follow from the limit."""
    family, probe = Family.initialised(linear), Probe.gaussian((50,), num=2000, fresh=True)
    found = []
    for limit in ("410MB", "8GB"):
        run = Run(device="cpu", memory=limit)
        sampler = GradientSampler(family, probe, estimator="exact", step=1.0, readout="first", seed=0, run=run)
        found.append(torch.cat([sampler.gradients(start, start + 2) for start in (0, 2)]))
        assert draws_at_once(2000 * 50, run) == (2 if limit == "410MB" else 83)
        assert sampler.stride <= draws_at_once(2000 * 50, run)
    torch.testing.assert_close(*found)


def test_too_many_draws_for_the_limit_are_refused_before_they_are_drawn() -> None:
    family = Family.initialised(lambda: nn.Sequential(nn.Flatten(), nn.Linear(768, 1)), name="linear")
    with pytest.raises(ValueError, match=r"covariance of 5000 draws of linear needs about .* --memory allows 401 MB"):
        average_geometry(family, Probe.gaussian((3, 16, 16)), draws=5000, run=Run(device="cpu", memory="401MB"))


def test_a_kernel_counts_its_matrix() -> None:
    run = Run(device="cpu", memory="8GB")
    assert matrix_bytes(1000, 200, run) == 4 * 200_000
    network = Family.initialised(linear).template
    with pytest.raises(ValueError, match=r"A tangent kernel of 40 samples needs about .* Pass fewer samples"):
        tangent_gram(network, torch.randn(40, 50), run=Run(device="cpu", memory="1MB"))


def expected(draws: int, rows: int, size: int = 3072, kept: int = 0) -> int:
    probe, run = Probe.gaussian((size,), num=rows, fresh=True), Run(device="cpu", memory="8GB")
    return expected_memory(OnePass(0.0, kept), 1000, None, probe, size, draws, rows, run)


def test_expected_memory_is_that_of_the_larger_part() -> None:
    rows = 400 * 2 * 3072
    assert expected(400, 2) == rows * 4 + 5 * 8 * rows  # rows in float32, and five arrays of them in float64
    dense = 5 * 8 * 3072**2
    assert expected(3000, 1) == 3000 * 3072 * 4 + dense  # a whole matrix is smaller than so many rows
    passes = expected(16, 64, kept=2**20) - expected(16, 64)
    assert passes < 2.5 * 2**26  # no more than the room for passes
