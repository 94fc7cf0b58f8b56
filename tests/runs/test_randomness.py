"""Keyed streams: the same for the same key, independent otherwise, and the global state untouched."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from networks_under_test import global_states

from biascope.runs.randomness import forked_rng, generator_for, seed_of


def test_a_key_gives_this_seed_for_ever():
    # Published numbers are functions of these: a change here changes every draw ever recorded.
    assert seed_of(0, "weights", 0) == 6722819759536949612
    assert seed_of(7, "probe") == 2158391161096669674


def test_seeds_lie_where_every_generator_takes_them():
    seeds = [seed_of(seed, "key", index) for seed in (-1, 0, 2**70) for index in range(200)]
    assert min(seeds) >= 0
    assert max(seeds) < 2**63
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((0, "ab", "c"), (0, "a", "bc")),
        ((0, 1), (0, "1")),
        ((0, 1, 2), (0, 12)),
        ((0, 1), (1, 0)),
        ((0,), (0, 0)),
        ((0, "weights", 1), (1, "weights", 0)),
    ],
)
def test_different_keys_give_different_seeds(first, second):
    assert seed_of(*first) != seed_of(*second)


def test_equal_seeds_of_any_integer_type_are_one_seed():
    assert seed_of(np.int64(3), "x") == seed_of(3, "x")


def test_a_generator_repeats_its_stream_and_keys_are_uncorrelated():
    cpu = torch.device("cpu")
    first, again, other = (
        torch.randn(100_000, generator=generator_for(cpu, 0, "weights", block)) for block in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert abs(float(first @ other) / 100_000) < 5 / 100_000**0.5  # five standard errors of a zero correlation


def draws_of_all_three() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()


def test_foreign_code_gets_its_own_seed_and_nothing_is_left_of_it():
    before = global_states()
    with forked_rng(11):
        first = draws_of_all_three()
    with forked_rng(11):
        again = draws_of_all_three()
    with forked_rng(12):
        other = draws_of_all_three()
    assert first == again
    assert all(mine != theirs for mine, theirs in zip(first, other, strict=True))
    assert global_states() == before


def test_the_states_come_back_after_an_error():
    def fail() -> None:
        with forked_rng(1):
            draws_of_all_three()
            raise KeyError

    before = global_states()
    with pytest.raises(KeyError):
        fail()
    assert global_states() == before


def test_a_fork_within_a_fork_leaves_no_trace_in_it():
    with forked_rng(1):
        undisturbed = draws_of_all_three()
    with forked_rng(1):
        with forked_rng(2):
            draws_of_all_three()
        assert draws_of_all_three() == undisturbed


def test_a_fork_under_a_seed_draws_what_torch_draws_under_it():
    with forked_rng(5):
        forked = torch.randn(4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        assert torch.equal(torch.randn(4), forked)


def test_gpus_that_are_not_restored_are_not_seeded(monkeypatch):
    def refuse(seed: int) -> None:
        raise AssertionError("seeded every GPU")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", refuse)
    with forked_rng(5):
        torch.rand(())


def test_threads_fork_one_after_another() -> None:
    """Global states are those of the process: threads that overlap would take each other's numbers and restore each other's states."""
    before = torch.get_rng_state()
    barrier = threading.Barrier(4)

    def drawn(seed: int) -> list[float]:
        barrier.wait()  # all of them at once
        with forked_rng(seed):
            return [float(torch.rand(())) for _ in range(200) if not time.sleep(0)]

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(drawn, range(4)))
    barrier = threading.Barrier(1)
    assert together == [drawn(seed) for seed in range(4)]
    assert torch.equal(before, torch.get_rng_state())
