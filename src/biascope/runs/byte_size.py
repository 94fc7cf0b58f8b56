"""Amounts of memory: how they are written, and read."""

from __future__ import annotations

import re

_SIZES = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def byte_size(text: str, option: str, example: str = "5GB") -> int:
    """A number of bytes, written as ``5GB``, ``1.5 MiB`` or ``300``.

    Args:
        text: What is written.
        option: Its name, for the error.
        example: What to type.

    Raises:
        ValueError: If it is not such a number, at least 1.

    Example:
        >>> [byte_size(text, "--shard-size") for text in ("5GB", "1.5 MiB", "300")]
        [5000000000, 1572864, 300]
    """
    parts = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([A-Za-z]*)", text.strip())
    size = 0 if parts is None else int(float(parts[1]) * _SIZES.get(parts[2].upper(), 0))
    if size < 1:
        raise ValueError(f"{option} must be a size such as {example}, got {text!r}. Pass {example}.")
    return size


def in_words(size: float) -> str:
    """An amount of memory, for people.

    Example:
        >>> [in_words(size) for size in (3.24e9, 640e6, 2e3)]
        ['3.2 GB', '640 MB', '1 MB']
    """
    return f"{size / 1e9:,.1f} GB" if size >= 999.5e6 else f"{max(1.0, size / 1e6):.0f} MB"


def enough(size: float) -> str:
    """An amount that is not below it, as an option takes it: half gigabytes, and tenths of small ones.

    Example:
        >>> [enough(size) for size in (3.24e9, 640e6, 2e9)]
        ['3.5GB', '0.7GB', '2GB']
    """
    step = 10**8 if size < 10**9 else 5 * 10**8
    return f"{-(-int(size) // step) * step / 1e9:g}GB"
