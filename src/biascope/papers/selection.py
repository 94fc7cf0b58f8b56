"""A figure run for some of its networks: the rest of its numbers stay those of an earlier run."""
# only, chosen and old_figure go when the last figure has a plan

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from biascope.results.claim import EFFORTS
from biascope.results.finding import FigureOfPaper, Finding, Show, Tell, figure
from biascope.results.plan import Plan as NewPlan
from biascope.results.plan import Row
from biascope.results.store import plain
from biascope.runs.run import Run

#: The setting of a run that names the networks it was restricted to.
KEY = "networks of this run"

Plan = TypeVar("Plan")
_wanted: ContextVar[tuple[str, ...]] = ContextVar("networks of a figure", default=())


def require(figure: FigureOfPaper, networks: Sequence[str], effort: str) -> tuple[str, ...]:
    """The networks that a figure is to be run for, each once.

    Raises:
        ValueError: If the figure cannot be run for some of its networks, or has none of these at that effort.
    """
    if networks and not any(map(figure.plan.networks, EFFORTS)):
        raise ValueError(
            f"Figure {figure.number} of {figure.paper} is run for all of its networks together. Leave --network out."
        )
    known = figure.plan.networks(effort)
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


@dataclass(frozen=True)
class _OldPlan(NewPlan):
    alone: Any = None

    def row(self, effort: str, networks: Iterable[str] = ()) -> Row:
        return Row(effort, {}, {}, networks)

    def networks(self, effort: str) -> tuple[str, ...]:
        return tuple((self.alone or {}).get(effort, ()))


def old_figure(
    number: str, *, title: str, show: Show, published: Any = None, networks: Any = None
) -> Callable[[Callable[[str, Run], Finding]], FigureOfPaper]:
    """A figure without a plan."""

    def register(function: Callable[[str, Run], Finding]) -> FigureOfPaper:
        def work(row: Row, run: Run, tell: Tell) -> None:
            with only(row.networks):
                found = function(row.effort, run)
            tell.numbers.update(found.statistics)
            tell.arrays.update(found.arrays)
            tell.settings.update(found.settings)
            tell.note(*found.notes)

        work.__module__ = function.__module__
        plan = _OldPlan({}, {}, {}, plain(dict(published or {})), alone=networks)
        return figure(number, title=title, plan=plan, show=show)(work)

    return register
