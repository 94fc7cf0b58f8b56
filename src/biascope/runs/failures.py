"""What a user's own network raises, told in one sentence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


def reason_of(error: BaseException) -> str:
    r"""The first line of an error, or its kind where it says nothing.

    Example:
        >>> reason_of(RuntimeError("sizes do not match.\n more")), reason_of(KeyError())
        ('sizes do not match', 'KeyError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


@contextlib.contextmanager
def forward_pass(must: str, remedy: str) -> Iterator[None]:
    """A forward pass of a user's network, which may raise anything.

    Args:
        must: What it must do, as the beginning of a sentence.
        remedy: What to do where it does not, as a sentence.

    Raises:
        ValueError: If it fails, with the reason.

    Example:
        >>> with forward_pass("lenet must accept inputs of shape 3×8×8", "Pass 1×32×32."):
        ...     raise RuntimeError("expected 1 channel")
        Traceback (most recent call last):
        ...
        ValueError: lenet must accept inputs of shape 3×8×8, and its forward pass failed with: expected 1 channel. Pass 1×32×32.
    """
    try:
        yield
    except Exception as error:
        raise ValueError(f"{must}, and its forward pass failed with: {reason_of(error)}. {remedy}") from error
