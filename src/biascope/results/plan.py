"""WHAT: the plan of a figure, one table: what it runs at each effort, and what the authors ran, under the same names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from biascope.results.claim import effort_rank
from biascope.results.store import plain


class Row(Mapping[str, Any]):
    """What a figure runs at one effort, by the names under which it is recorded.

    Attributes:
        effort: The effort.
        networks: Networks that it runs for, if they can be run one by one.
    """

    def __init__(
        self, effort: str, values: Mapping[str, Any], titles: Mapping[str, str], networks: Iterable[str] = ()
    ) -> None:
        self.effort, self.networks = effort, tuple(networks)
        self._values, self._titles = dict(values), titles

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def settings(self) -> dict[str, Any]:
        """All of them as they are recorded: one that has an entry for each network becomes one setting per network."""
        named: dict[str, Any] = {}
        for name, value in self.items():
            if isinstance(value, Mapping) and value.keys() <= self._titles.keys():
                named |= {f"{name}: {self._titles[network]}": each for network, each in value.items()}
            else:
                named[name] = value
        recorded: dict[str, Any] = plain(named)
        return recorded


@dataclass(frozen=True)
class Plan:
    """What a figure runs at each effort, and what the authors ran.

    Attributes:
        smoke: Settings that only show that everything runs.
        laptop: Settings for a computer without a GPU.
        paper: The published sizes, or what comes nearest to them.
        published: The authors' settings under the same names; empty if they are not listed yet.
        titles: Networks by the names that settings by network use, as they are printed.
        by: The setting whose networks can be run one by one; empty if the figure compares them with one another.
        always: Networks with which the others are compared; they always run.

    Example:
        >>> titles = {"lenet": "LeNet", "vgg11": "VGG11"}
        >>> plan = Plan({"epochs": {"lenet": 1}}, {"epochs": {"lenet": 2, "vgg11": 3}}, {}, titles=titles, by="epochs")
        >>> plan.row("laptop", ["vgg11"]).settings, plan.networks("laptop")
        ({'epochs: VGG11': 3}, ('lenet', 'vgg11'))
    """

    smoke: Mapping[str, Any]
    laptop: Mapping[str, Any]
    paper: Mapping[str, Any]
    published: Mapping[str, Any] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict, repr=False)
    by: str = ""
    always: tuple[str, ...] = ()

    def row(self, effort: str, networks: Iterable[str] = ()) -> Row:
        """The settings of an effort, those of some networks alone if they are named.

        Raises:
            ValueError: If there is no such effort.
        """
        values = (self.smoke, self.laptop, self.paper)[effort_rank(effort)]
        known = tuple(values[self.by]) if self.by else ()
        wanted = {*networks, *self.always}
        kept = tuple(name for name in known if name in wanted) if networks else known
        if kept != known:
            values = {
                name: {each: value[each] for each in kept if each in value}
                if isinstance(value, Mapping) and value.keys() <= set(known)
                else value
                for name, value in values.items()
            }
        return Row(effort, values, self.titles, kept)

    def networks(self, effort: str) -> tuple[str, ...]:
        """The networks that can be run one by one at an effort."""
        return self.row(effort).networks
