"""Variants: a network with a part of its components replaced, and the fully neutral network with one part as it is."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from biascope.families.replaced import Component, Replacements, Structure, neutral
from biascope.families.replacements import kinds

#: How a variant differs from what it is compared with.
REMOVED, ADDED = "removed", "added"


@dataclass(frozen=True)
class ComponentGroup:
    """Components of one kind that are replaced together.

    Attributes:
        name: With its place: ``"max pooling (pool1)"``.
        members: In the order of their calls.
        neutral: What the neutral network has in their place; empty where it keeps them.
        alternatives: What may stand in their place.
    """

    name: str
    members: tuple[Component, ...]
    neutral: str
    alternatives: tuple[str, ...]


@dataclass(frozen=True)
class EditedNetwork:
    """A network that is measured.

    Attributes:
        way: :data:`REMOVED` from the network, :data:`ADDED` to the neutral one; empty for these two themselves.
        part: The name of what differs.
        alternative: What stands in its place; what stood there, of a part that is added.
        replacements: All of its replacements.
    """

    way: str
    part: str
    alternative: str
    replacements: Replacements

    @property
    def words(self) -> str:
        """What it is, for warnings."""
        if not self.way:
            return "the neutral network" if self.replacements else "the network itself"
        return f"{self.part} {self.way}" + (f" ({self.alternative})" if self.way == REMOVED else "")

    @property
    def key(self) -> str:
        """The name under which its readings are kept."""
        content = sorted(f"{each.places} {each.kind} {name}" for each, name in self.replacements.items())
        return hashlib.sha256("\n".join(content).encode()).hexdigest()[:16]


def parts_of(structure: Structure, most: int) -> list[ComponentGroup]:
    """The components of a network in at most so many parts of each kind.

    Args:
        structure: Of the network.
        most: Parts of components with one label; neighbours in the forward pass are in one part.
    """
    by_label: dict[tuple[str, str, tuple[str, ...]], list[Component]] = {}
    for each in structure.components:
        by_label.setdefault((each.kind, each.label, each.alternatives), []).append(each)
    found = []
    for (kind, label, alternatives), members in by_label.items():
        count = min(most, len(members))
        edges = [len(members) * place // count for place in range(count + 1)]
        usual = kinds()[kind].neutral
        for start, stop in itertools.pairwise(edges):
            own = tuple(members[start:stop])
            name = _name(label, own, start, len(members))
            found.append(ComponentGroup(name, own, usual if usual in alternatives else "", alternatives))
    return found


def _name(label: str, members: Sequence[Component], start: int, count: int) -> str:
    first, last = (each.where or "the network itself" for each in (members[0], members[-1]))
    if len(members) == 1:
        number = "" if count == 1 or members[0].where else f" {start + 1} of {count}"
        return f"{label}{number} ({first})"
    where = first if first == last else f"{first} to {last}"
    return f"{label} {start + 1}–{start + len(members)} of {count} ({where})"


def variants_of(structure: Structure, parts: Sequence[ComponentGroup]) -> list[EditedNetwork]:
    """The network, the neutral network, and each part removed from the first and added to the second."""
    bare = neutral(structure)
    found = [EditedNetwork("", "", "", {}), EditedNetwork("", "", "neutral", bare)]
    for part in parts:
        for alternative in part.alternatives:
            found.append(EditedNetwork(REMOVED, part.name, alternative, dict.fromkeys(part.members, alternative)))
    if len([part for part in parts if part.neutral]) > 1:  # of a single one, both ways are the same
        for part in parts:
            if part.neutral:
                left = {each: name for each, name in bare.items() if each not in part.members}
                found.append(EditedNetwork(ADDED, part.name, part.neutral, left))
    return found
