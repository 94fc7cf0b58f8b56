"""Independent parts of work, one on each core."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from biascope.runs.ambient import one_on_each_core
from biascope.runs.run import Run

T = TypeVar("T")


def on_each_core(work: Callable[[int], T], count: int, run: Run) -> list[T]:
    """Independent parts of work, on a CPU one on each core: the layers of one small network are too short to share."""
    threads = torch.get_num_threads()
    if run.torch_device.type != "cpu" or min(threads, count) == 1:
        return [work(index) for index in range(count)]
    with one_on_each_core(threads) as pool:
        return list(pool.map(work, range(count)))
