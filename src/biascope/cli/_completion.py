"""What a shell may complete: names of networks, measurements, papers and data sets, with a line on each. Nothing heavy is imported."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from biascope.cli import _descriptions

Completions = list[tuple[str, str]]


def networks(incomplete: str) -> Completions:
    """Networks by name."""
    from biascope.networks import names

    return [(name, _descriptions.network_line(name)) for name in names() if name.startswith(incomplete)]


def measurements(incomplete: str) -> Completions:
    """Measurements by name, those that have a command of their own left out."""
    from biascope.results.registry import names

    found = [name for name in names() if name.startswith(incomplete.replace("-", "_"))]
    return [(name, _descriptions.measurement_line(name)) for name in found if not _descriptions.command_of(name)]


def papers(incomplete: str) -> Completions:
    """Papers by id."""
    from biascope.results.registry import PAPERS

    return [(name, title) for name, title in PAPERS.items() if name.startswith(incomplete)]


def published_sets(incomplete: str) -> Completions:
    """Published data sets by name."""
    from biascope.data import names

    return [(name, "published data set") for name in names() if name.startswith(incomplete)]


def data_sets(incomplete: str) -> Completions:
    """Published data sets, and a user's own in the folder of data sets."""
    from biascope.data import data_root, own_sets

    own: Completions = []
    with contextlib.suppress(OSError, ValueError):  # a folder that cannot be read completes nothing
        own = [(name, "your own data set") for name in own_sets(data_root()) if name.startswith(incomplete)]
    return [*published_sets(incomplete), *own]


def words(*known: str) -> Callable[[str], list[str]]:
    """Completion of a few words."""

    def found(incomplete: str) -> list[str]:
        return [word for word in known if word.startswith(incomplete)]

    return found
