"""Memory: how much of it work may take, how it is known that work does not fit, and the same work in smaller pieces.

Main memory has one limit, of the process as a whole (:meth:`biascope.runs.run.Run.limit`). Work that is cut into pieces takes
pieces that are a small part of it (:func:`piece`). Work that cannot be cut says before it begins how much it takes
(:meth:`biascope.runs.run.Run.expects`), and is refused where that is more than the limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
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


LIBRARIES = 400 * 10**6  # bytes that Python, torch and what they load take
LEAST = 10**9  # bytes of the smallest limit that is set without being asked for
NO_LIMIT = sys.maxsize  # where the system does not say how much is free
_PARTS = 8  # pieces of work that there may be beside one another


def free_memory() -> float:
    """Bytes of main memory that nobody uses, in this machine or container; infinite where the system does not say."""
    return min(_free_in_machine(), _free_in_container())


def _free_in_machine() -> float:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return math.inf
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), math.inf)


def _free_in_container(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """What the limits of the control groups leave to this process: of its own group, and of those around it."""
    free = math.inf
    with contextlib.suppress(OSError, ValueError):
        for line in own.read_text(encoding="utf-8").splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds not in ("", "memory"):
                continue
            most, used, folder = (
                ("memory.limit_in_bytes", "memory.usage_in_bytes", root / "memory")
                if kinds
                else ("memory.max", "memory.current", root)
            )
            group = folder / path.lstrip("/")
            for place in (group, *group.parents):
                if not place.is_relative_to(folder):
                    break
                free = min(free, _left_in_group(place / most, place / used, place / "memory.stat"))
    return free


def _left_in_group(most: Path, used: Path, parts: Path) -> float:
    """Bytes below the limit of a control group; of what it uses, the cache of files can be taken back."""
    try:
        limit = int(most.read_text(encoding="ascii"))
        held = int(used.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such group, or no limit
        return math.inf
    cached = 0
    with contextlib.suppress(OSError, ValueError):
        lines = (line.split() for line in parts.read_text(encoding="ascii").splitlines())
        cached = next(int(number) for name, number in lines if name in ("inactive_file", "total_inactive_file"))
    return float(max(0, limit - held + cached))


def usual_limit() -> int:
    """Bytes of main memory that the process may take where nobody says: what it takes already, and half of what is free."""
    free = free_memory()
    return NO_LIMIT if math.isinf(free) else max(LEAST, used() + int(free / 2))


def piece(limit: int, most: int, parts: int = _PARTS) -> int:
    """Bytes that a piece of work may take under a limit: no more than are useful, and a power of two.

    Small pieces are as fast on a CPU, whose caches are small. So the limit matters only where it is low, and a repeated command does
    the same.

    Args:
        limit: Bytes that the process may take.
        most: Bytes beyond which a larger piece is no use.
        parts: How many such pieces there may be.

    Example:
        >>> [piece(limit, 2**27) // 2**20 for limit in (16 * 10**9, 10**9, 10**6)]
        [128, 64, 1]
    """
    left = max(2**20, (limit - LIBRARIES) // parts)
    return int(min(most, 2 ** int(math.log2(left))))


def used() -> int:
    """Bytes of main memory that this process holds now."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return most_used()
    return pages * os.sysconf("SC_PAGE_SIZE")


def most_used() -> int:
    """Bytes of main memory that this process has held at most so far: libraries take most of them before work begins."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def trim() -> None:
    """Give back what is free in the heap of this process, where it is scattered over pages that the C library keeps."""
    with contextlib.suppress(OSError, AttributeError):  # no such function outside of glibc
        ctypes.CDLL(None).malloc_trim(0)


def give_back() -> None:
    """Free what nobody uses any more: call it after an error is handled, since an error holds what its functions held."""
    gc.collect()
    trim()
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
