"""Keyed random streams: every random number is a function of a seed and a key, and the global state is never touched."""

from __future__ import annotations

import contextlib
import hashlib
import random
import threading
from collections.abc import Iterator

import numpy as np
import torch

from biascope.runs.ambient import settings_kept


def seed_of(seed: int, *key: object) -> int:
    """A 63-bit seed for one keyed stream, so that streams with different keys are independent.

    Args:
        seed: The user's seed.
        key: What the stream is for, for example ``("weights", block)``.

    Returns:
        A non-negative integer that any generator accepts.

    Example:
        >>> seed_of(0, "weights", 1) == seed_of(0, "weights", 1) != seed_of(0, "weights", 2)
        True
    """
    digest = hashlib.sha256(repr((int(seed), *key)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator_for(device: torch.device, seed: int, *key: object) -> torch.Generator:
    """A torch generator on a device for one keyed stream."""
    return torch.Generator(device=device).manual_seed(seed_of(seed, *key))


_one_at_a_time = threading.RLock()


@contextlib.contextmanager
def forked_rng(seed: int) -> Iterator[None]:
    """Run foreign code (a user's builder, dropout) under its own seed and restore all global states after it.

    Covers torch, NumPy and Python's ``random``, because builders use all three, and torch's settings, such as the default number type.
    These states are those of the process: a second thread waits until the first has restored them. Code inside must not wait for
    threads that come here too.

    Example:
        >>> before = torch.get_rng_state()
        >>> with forked_rng(1):
        ...     _ = torch.randn(3)
        >>> bool(torch.equal(before, torch.get_rng_state()))
        True
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with _one_at_a_time, settings_kept(), torch.random.fork_rng(devices=devices):
        states = random.getstate(), np.random.get_state()
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed GPUs that are not restored
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
