"""Work that does not fit into memory: how that is known, how memory is given back, and the same work in smaller pieces."""

from __future__ import annotations

import gc
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

Size = TypeVar("Size")
Found = TypeVar("Found")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice, on a GPU or a CPU.

    Libraries below torch have errors of their own, for example where several processes share a GPU.
    """
    words = str(error)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError)
        and any(
            each in words for each in ("can't allocate memory", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED")
        )
    )


def is_of_the_device(error: BaseException) -> bool:
    """Whether the device failed, and not the network that ran on it: its memory, its driver or a library of it."""
    failed = isinstance(error, RuntimeError) and re.match(r"(CUDA|cuDNN|CUBLAS|cuBLAS|HIP|MPS)\b.*error", str(error))
    return is_out_of_memory(error) or isinstance(error, torch.AcceleratorError) or bool(failed)


def free_memory() -> float:
    """Bytes of main memory that nobody uses; infinite where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return math.inf
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), math.inf)


def most_used() -> int:
    """Bytes of main memory that this process has held at most so far: libraries take most of them before work begins."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def give_back() -> None:
    """Free what nobody uses any more: call it after an error is handled, since an error holds what its functions held."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def fitting(work: Callable[[Size], Found], size: Size, smaller: Callable[[Size], Size | None]) -> tuple[Found, Size]:
    """Do some work at a size, or at the largest smaller size that fits into memory; return its outcome and that size.

    Args:
        work: From a size to what is found.
        size: The first to try.
        smaller: The next size to try, or None where there is none; then the error is raised.

    Example:
        >>> def work(size):
        ...     if size > 3:
        ...         raise torch.OutOfMemoryError
        ...     return "done"
        >>> fitting(work, 8, halved)
        ('done', 2)
    """
    while True:
        try:
            return work(size), size
        except RuntimeError as error:
            less = smaller(size) if is_out_of_memory(error) else None
            if less is None:
                raise
        size = less
        give_back()


def halved(size: int) -> int | None:
    """Half of a number of pieces; None where one does not fit."""
    return size // 2 if size > 1 else None
