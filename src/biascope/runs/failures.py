"""Errors of a user's own code, in one sentence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from biascope.runs.memory import is_of_the_device

#: What another's code may raise that is a mistake in it; an interrupt is none.
FOREIGN = (Exception, SystemExit)


def reason_of(error: BaseException) -> str:
    r"""The reason of an error in foreign code: the first line of its message, with the next one where it announces that.

    Example:
        >>> reason_of(RuntimeError("shapes differ.\nat line 3")), reason_of(KeyError("x")), reason_of(SystemExit(0))
        ('shapes differ', "KeyError: 'x'", 'sys.exit(0)')
        >>> reason_of(ValueError("Invalid field:\n    size must be a number"))
        'Invalid field: size must be a number'
    """
    if isinstance(error, SystemExit):
        return f"sys.exit({error.code!r})"
    first, *more = [line.strip() for line in str(error).strip().splitlines()] or [""]
    words = " ".join([first, *more[:1]] if first.endswith(":") else [first]).rstrip(".")
    if not words:
        return type(error).__name__
    return words if isinstance(error, RuntimeError | ValueError | TypeError) else f"{type(error).__name__}: {words}"


@contextlib.contextmanager
def forward_pass(must: str, remedy: str) -> Iterator[None]:
    """A forward pass of a user's network, which may raise anything.

    Args:
        must: What it must do, as the beginning of a sentence.
        remedy: What to do where it does not, as a sentence; a better one is given where the reason tells it.

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
    except FOREIGN as error:
        if is_of_the_device(error):  # smaller stacks may still fit
            raise
        reason = reason_of(error)
        raise ValueError(f"{must}, and its forward pass failed with: {reason}. {_better(remedy, reason)}") from error


def _better(remedy: str, reason: str) -> str:
    """A remedy that fits the reason, where it is known."""
    if "indices" in reason and ("Long" in reason or "Int" in reason):
        return (
            "It seems to take token ids, which have no gradient: measure it in the space of its embeddings, such as --input 16x64 "
            "--axes token,channel."
        )
    if "required positional argument" in reason:
        return "Pass the other inputs with --hold NAME=FILE, or wrap it to take one tensor."
    if "Guard failed" in reason and "size()[0]" in reason:
        return (
            "It was exported for one size of a batch: export it with dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)."
        )
    if reason.startswith("sys.exit"):
        return "Leave sys.exit out of forward."
    return remedy
