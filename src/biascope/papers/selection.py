"""A figure run for some of its networks: the rest of its numbers stay those of an earlier run."""

from __future__ import annotations

from collections.abc import Sequence

from biascope.results.claim import EFFORTS
from biascope.results.finding import FigureOfPaper

#: The setting of a run that names the networks it was restricted to.
KEY = "networks of this run"


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
