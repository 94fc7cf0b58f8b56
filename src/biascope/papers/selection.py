"""A figure run for some of its networks: the rest of its numbers stay those of an earlier run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TypeVar

from biascope.results.claim import FigureOfPaper

#: The setting of a run that names the networks it was restricted to.
KEY = "networks of this run"

Plan = TypeVar("Plan")
_wanted: ContextVar[tuple[str, ...]] = ContextVar("networks of a figure", default=())


def require(figure: FigureOfPaper, networks: Sequence[str], effort: str) -> tuple[str, ...]:
    """The networks that a figure is to be run for, each once.

    Raises:
        ValueError: If the figure cannot be run for some of its networks, or has none of these at that effort.
    """
    if networks and not figure.networks:
        raise ValueError(
            f"Figure {figure.number} of {figure.paper} is run for all of its networks together. Leave --network out."
        )
    known = figure.networks.get(effort, ())
    if missing := [name for name in networks if name not in known]:
        raise ValueError(
            f"Figure {figure.number} of {figure.paper} has {', '.join(known)} at {effort} effort, got {', '.join(missing)}. "
            f"Pass --network {known[-1]}, or another --effort."
        )
    return tuple(dict.fromkeys(networks))


def letters(name: str) -> str:
    """The letters and digits in lower case: what the name of a network and its title share.

    Example:
        >>> letters("ResNet-18")
        'resnet18'
    """
    return "".join(filter(str.isalnum, name)).lower()


@contextlib.contextmanager
def only(networks: Sequence[str]) -> Iterator[None]:
    """Restrict figures to some networks; of none, to nothing.

    Example:
        >>> with only(["lenet"]):
        ...     chosen({"mlp": 1, "lenet": 2})
        {'lenet': 2}
    """
    before = _wanted.set(tuple(networks))
    try:
        yield
    finally:
        _wanted.reset(before)


def chosen(plans: Mapping[str, Plan], *, always: Sequence[str] = ()) -> dict[str, Plan]:
    """The plans of the networks that a figure is to be run for, all of them unless :func:`only` says otherwise.

    A figure that calls this declares its networks (``@figure(networks=)``) and has no number that depends on one it leaves out.

    Args:
        plans: By name of the network.
        always: Networks that the others are compared with, which are never left out.
    """
    wanted = _wanted.get()
    return {name: plan for name, plan in plans.items() if not wanted or name in (*wanted, *always)}
