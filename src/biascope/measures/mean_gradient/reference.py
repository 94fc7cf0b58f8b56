"""WHAT: where a network stands among the papers' networks, measured in the same way, from committed numbers."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass
from pathlib import Path

from biascope.results.estimate import Estimate
from biascope.results.wording import listed
from biascope.runs.ambient import under_torch_defaults


@dataclass(frozen=True)
class Reference:
    """A network of the papers.

    Attributes:
        name: By which it is scanned.
        title: As the papers write it.
        shape: Shape of its inputs.
        rank: The effective rank of its mean gradient.
    """

    name: str
    title: str
    shape: tuple[int, ...]
    rank: Estimate

    @property
    def share(self) -> float:
        """The effective rank as a share of all directions."""
        return self.rank.value / math.prod(self.shape)


@under_torch_defaults
@functools.cache
def references() -> tuple[Reference, ...]:
    """All of them; ``benchmarks/headline.py --reference`` writes the file from the rows of ``--stability``."""
    rows = json.loads(Path(__file__).with_name("reference.json").read_text(encoding="utf-8"))
    return tuple(
        Reference(
            row["network"],
            row["title"],
            tuple(row["shape"]),
            Estimate(row["rank"], (row["high"] - row["low"]) / 3.92, row["low"], row["high"]),
        )
        for row in rows
    )


def placed(rank: Estimate, shape: tuple[int, ...], name: str = "") -> str:
    """Where an effective rank stands among those of the papers' networks, in a sentence.

    Networks whose 95 % intervals overlap count as alike. At an input shape without references shares of all directions are compared
    with the shape that has as many channels, and the sentence says so.

    Args:
        rank: The effective rank.
        shape: Shape of the inputs.
        name: Name of the network, which is not compared with itself.

    Example:
        >>> placed(Estimate(1.9, 0.1, 1.7, 2.1), (1, 32, 32))
        'That is more directions than DenseNet-121 and fewer than ResNet-18.'
    """
    known = [each for each in references() if each.shape == shape]
    caveat, scale = "", 1.0
    if not known:
        channels = shape[0] if len(shape) == 3 else 1
        near = next((s for s in ((1, 32, 32), (3, 32, 32)) if s[0] == channels), (3, 32, 32))
        known = [each for each in references() if each.shape == near]
        scale = math.prod(near) / math.prod(shape)
        caveat = f", as a share of all directions (theirs measured on {'×'.join(map(str, near))} inputs)"
    others = sorted((each for each in known if name not in (each.name, each.title)), key=lambda each: each.rank.value)
    low, high = scale * rank.low, scale * rank.high
    below = [each.title for each in others if each.rank.high < low]
    above = [each.title for each in others if each.rank.low > high]
    alike = [each.title for each in others if each.title not in below and each.title not in above]
    words = []
    if alike:
        words.append(f"about as many directions as {listed(alike)}")
    if below:
        words.append(f"more {'than' if alike else 'directions than'} {below[-1]}")
    if above:
        words.append(f"fewer {'than' if words else 'directions than'} {above[0]}")
    if len(words) == 1 and not alike:
        words = [f"{'more' if below else 'fewer'} directions than any network of the papers"]
    return f"That is {', '.join(words[:-1]) + ' and ' + words[-1] if len(words) > 1 else words[0]}{caveat}."
