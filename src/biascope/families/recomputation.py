"""Forward passes without gradient checkpointing, whose recomputation would run with other weights.

A network is called with weights that its module holds during the call only. Gradient checkpointing drops activations and
runs parts of the forward pass again in the backward pass, when the module has its own weights back: the gradient is then
that of another network. Here activations are kept instead. That costs memory, and outputs and gradients are exact.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from torch.utils import checkpoint as checkpointing


class _Here(threading.local):
    """How often this thread has entered and not yet left."""

    depth = 0


_here = _Here()


class WithoutRecomputation:
    """Run ``torch.utils.checkpoint`` as if its functions were called plainly: in this thread and for the duration.

    The switch lies below ``checkpoint`` itself, so it holds however user code has imported or bound that function.

    Example:
        >>> import torch
        >>> x, calls = torch.ones(1, requires_grad=True), []
        >>> def square(number):
        ...     calls.append("called")
        ...     return number * number
        >>> with WithoutRecomputation():
        ...     output = checkpointing.checkpoint(square, x, use_reentrant=False)
        >>> output.backward()
        >>> calls, float(x.grad)
        (['called'], 2.0)
    """

    def __enter__(self) -> None:
        """Keep activations from now on."""
        _here.depth += 1

    def __exit__(self, *error: object) -> None:
        """Let checkpointing be, unless a caller still wants none."""
        _here.depth -= 1


def _install() -> None:
    """Put the switch into torch, for good: outside of a :class:`WithoutRecomputation` torch does what it always did.

    Changing torch for the duration of each call instead would cost more than the call of a small network.
    """
    internals: Any = checkpointing
    drop_activations, recompute_later = (
        internals._checkpoint_without_reentrant_generator,
        internals.CheckpointFunction.apply,
    )

    def around(
        *args: Any, **settings: Any
    ) -> Iterator[None]:  # of use_reentrant=False: runs up to the call, and after it
        if _here.depth:
            yield
        else:
            yield from drop_activations(*args, **settings)

    def apply(function: Any, preserve_rng_state: bool, *args: Any) -> Any:  # of use_reentrant=True
        return function(*args) if _here.depth else recompute_later(function, preserve_rng_state, *args)

    internals._checkpoint_without_reentrant_generator, internals.CheckpointFunction.apply = around, apply


_install()
