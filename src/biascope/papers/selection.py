"""A figure run for some of its networks: the rest of its numbers stay those of an earlier run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TypeVar

#: The setting of a run that names the networks it was restricted to.
KEY = "networks of this run"

Plan = TypeVar("Plan")
_wanted: ContextVar[tuple[str, ...] | None] = ContextVar("networks of a figure", default=None)
_asked: ContextVar[list[str] | None] = ContextVar("networks that a figure could be run for", default=None)


@contextlib.contextmanager
def only(networks: Sequence[str]) -> Iterator[None]:
    """Restrict figures to some networks; of none, to nothing.

    Raises:
        ValueError: If the figure cannot be restricted, or has none of these networks.

    Example:
        >>> with only(["lenet"]):
        ...     chosen({"mlp": 1, "lenet": 2})
        {'lenet': 2}
    """
    if not networks:
        yield
        return
    wanted, asked = _wanted.set(tuple(networks)), _asked.set([])
    try:
        yield
        known = _asked.get() or []
        if not known:
            raise ValueError("This figure compares its networks with one another, so that it is run as a whole only.")
        if missing := [name for name in networks if name not in known]:
            listed = ", ".join(dict.fromkeys(known))
            raise ValueError(f"networks must be among those of the figure, {listed}, got {', '.join(missing)}.")
    finally:
        _wanted.reset(wanted)
        _asked.reset(asked)


def chosen(plans: Mapping[str, Plan], *, always: Sequence[str] = ()) -> dict[str, Plan]:
    """The plans of the networks that a figure is to be run for, all of them unless :func:`only` says otherwise.

    A figure that calls this must have no number that depends on a network which it leaves out.

    Args:
        plans: By name of the network.
        always: Networks that the others are compared with, which are never left out.
    """
    wanted, asked = _wanted.get(), _asked.get()
    if wanted is None:
        return dict(plans)
    if asked is not None:
        asked.extend(plans)
    return {name: plan for name, plan in plans.items() if name in (*wanted, *always)}
