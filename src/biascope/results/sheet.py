"""WHAT: the sheet of a paper, ``claims.toml`` in its folder: what the paper says, how it is tested, and what was withdrawn.

::

    [statement.accuracy_falls]                  # by its key: what the paper says that can be tested
    says = "Accuracy falls with the index of the direction."       # in our words
    where = "4.1, figure 6: 'decreases with the index'"            # place, and at most eight of the paper's words or its number
    # shown_in = "figure 6"                     # instead of the paper's words, where it is read off a picture
    # untested, ruled_out, undecided            # see Statement

    [[figure]]                                  # what would count as agreement, figure by figure
    number = "6"
    of = "accuracy_falls"                       # any column here is that of all claims below that have none of their own
    gate = ["{net}_train_accuracy"]
    for = [{ net = "LeNet" }, { net = "VGG11", effort = "paper" }]
    [[figure.claim]]
    says = "{net}'s accuracy falls: rank correlation with the index."
    number = "{net}_rank_correlation"           # key of the deciding number
    paper = { at_most = 0.0 }                   # whose bound, paper, ours or check: at_least, at_most, or about with within
    # effort = "laptop"                         # the least that a verdict needs
    # trained = [50, 100]                       # of the gate: values at chance and at best
    # printed = 0.5                             # the paper's number, where the bound does not have it
    # reads = "half of them"                    # our words for what is printed, where the place does not tell it
    # where, shown_in                           # if not those of the statement

    [[withdrawn]]
    figure = "6"
    says, verdict, reason                       # see Dropped

A claim with words in braces stands for one claim per row of ``for``. A row fills the words, in keys as keys, and may replace columns.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from biascope.results.claim import KINDS, Claim, Dropped, Place, Statement, Trained
from biascope.results.wording import snake

FILE = "claims.toml"
_BRACES = re.compile(r"\{([a-z]\w*)\}")
_QUOTED = re.compile(r": '(.+)'$")
_PLACE = ("where", "shown_in")
_SHARED = ("of", "gate", "trained", "effort", "for", *_PLACE)  # columns that a figure may give for its claims
_CLAIM = ("says", "number", "printed", "reads", "post_hoc", *KINDS, *_SHARED)
_COLUMNS = {
    "statement": {"says", "untested", "ruled_out", "undecided", *_PLACE},
    "figure": {"number", "claim", *_SHARED},
    "claim": set(_CLAIM),
    "withdrawn": {"figure", "says", "verdict", "reason"},
}


@dataclass(frozen=True)
class Sheet:
    """The statements of a paper and the claims that test them.

    Attributes:
        statements: What the paper says that can be tested.
        claims: By number of the figure.
        dropped: Claims that were withdrawn.
    """

    statements: tuple[Statement, ...] = ()
    claims: Mapping[str, tuple[Claim, ...]] = field(default_factory=dict)
    dropped: tuple[Dropped, ...] = ()


@functools.cache
def sheet(folder: Path) -> Sheet:
    """The sheet in a paper's folder; an empty one if there is none.

    Raises:
        ValueError: If the file is no such sheet, naming the block.
    """
    path = folder / FILE
    if not path.is_file():
        return Sheet()
    try:
        return parsed(path.read_text(encoding="utf-8"))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} must be a sheet of claims, but is not: {error}") from error


def parsed(text: str) -> Sheet:
    """The sheet in a text.

    Example:
        >>> found = parsed('''
        ... [statement.half]
        ... says = "Half of them."
        ... where = "2: 'one in two'"
        ... [[figure]]
        ... number = "1"
        ... [[figure.claim]]
        ... of = "half"
        ... says = "Half of {net}'s."
        ... number = "{net}_share"
        ... paper = { about = 50, within = 5 }
        ... for = [{ net = "VGG11" }, { net = "ResNet-18", effort = "paper" }]
        ... ''')
        >>> [(claim.statistic, claim.minimum_effort, str(claim.place)) for claim in found.claims["1"]]
        [('vgg11_share', 'laptop', '2: “one in two”'), ('resnet_18_share', 'paper', '2: “one in two”')]
    """
    tables = _known("sheet", tomllib.loads(text), {"statement", "figure", "withdrawn"})
    statements = {key: _statement(key, block) for key, block in tables.get("statement", {}).items()}
    claims: dict[str, tuple[Claim, ...]] = {}
    for figure in tables.get("figure", ()):
        _known("figure", figure)
        shared = {name: value for name, value in figure.items() if name in _SHARED}
        for block in figure.get("claim", ()):
            _known("claim", block)
            for claim in _claims({**shared, **block}, statements):
                before = claims.get(figure["number"], ())
                if any(claim.statement == each.statement for each in before):
                    raise ValueError(
                        f"claims of a figure must be different, got {claim.statement!r} twice. Reword one."
                    )
                claims[figure["number"]] = (*before, claim)
    withdrawn = (_known("withdrawn", block) for block in tables.get("withdrawn", ()))
    dropped = tuple(Dropped(each["figure"], each["says"], each["verdict"], each["reason"]) for each in withdrawn)
    return Sheet(tuple(statements.values()), claims, dropped)


def _known(kind: str, block: dict[str, Any], columns: Iterable[str] = ()) -> dict[str, Any]:
    """The block itself, if it has no unknown column."""
    if unknown := block.keys() - set(columns or _COLUMNS[kind]):
        named = block.get("says") or block.get("number") or "as a whole"
        raise ValueError(f"the {kind} {named!r} has an unknown column {sorted(unknown)}. Rename or delete it.")
    return block


def _place(block: Mapping[str, Any]) -> Place:
    """Section and quoted words of ``where``, and the picture it is read off."""
    section, words = block.get("where", ""), ""
    if found := _QUOTED.search(section):
        section, words = section[: found.start()], found[1]
    return Place(section, words, block.get("shown_in", ""))


def _statement(key: str, block: dict[str, Any]) -> Statement:
    remarks = {name: block[name] for name in ("untested", "ruled_out", "undecided") if name in block}
    return Statement(key, _place(_known("statement", block)), block["says"], **remarks)


def _claims(block: Mapping[str, Any], statements: Mapping[str, Statement]) -> Iterator[Claim]:
    """One claim, or one for each row."""
    rows = block.get("for", ({},)) if _BRACES.search(block["says"]) else ({},)
    return (_claim(_filled(block, row), statements) for row in rows)


def _filled(block: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """A block with its braces filled by a row, whose columns replace those of the block."""
    replaced = {name for name in block if name == "for" or (name in KINDS and row.keys() & set(KINDS))}
    whole = {name: value for name, value in block.items() if name not in replaced}
    whole |= {name: value for name, value in row.items() if name in _CLAIM}
    words = {name: str(value) for name, value in row.items() if name not in _CLAIM}
    keys = {name: snake(word) for name, word in words.items()}

    def fill(value: Any, among: Mapping[str, str]) -> Any:
        if isinstance(value, list):
            return [fill(each, among) for each in value]
        if isinstance(value, str) and (unknown := {*_BRACES.findall(value)} - among.keys()):
            raise ValueError(
                f"the claim {block['says']!r} has no word for {sorted(unknown)} in a row of 'for'. Add it."
            )
        return _BRACES.sub(lambda found: among[found[1]], value) if isinstance(value, str) else value

    return {name: fill(value, keys if name in ("number", "gate") else words) for name, value in whole.items()}


def _claim(block: Mapping[str, Any], statements: Mapping[str, Statement]) -> Claim:
    says, of = block["says"], block.get("of", "")
    if of and of not in statements:
        raise ValueError(f"the claim {says!r} must name a statement, got {of!r}. Correct it.")
    kinds = [kind for kind in KINDS if kind in block]
    bound = dict(block[kinds[0]]) if len(kinds) == 1 else {}
    within = bound.pop("within", None)
    (name, value), *more = bound.items() or [("", 0.0)]
    if not name or more or (name == "about") != (within is not None):
        raise ValueError(
            f"the claim {says!r} must have one bound, such as paper = {{ at_least = 1.0 }} or ours = {{ about = 1.0, within = 0.1 }}. "
            "Write it so."
        )
    chance, best = map(float, block.get("trained", (50.0, 100.0)))
    own = any(column in block for column in _PLACE) or not of
    return Claim(
        statement=says,
        statistic=block["number"],
        comparator=name.replace("_", " "),
        published=float(value) if name == "about" else block.get("printed"),
        tolerance=float(value if within is None else within),
        minimum_effort=block.get("effort", "laptop"),
        of=of,
        kind=kinds[0],
        post_hoc=block.get("post_hoc", False),
        trained=tuple(_evidence(each, chance, best) for each in block.get("gate", ())),
        place=_place(block) if own else statements[of].place,
        reads=block.get("reads", ""),
    )


def _evidence(gate: str | list[Any], chance: float, best: float) -> Trained:
    """A key, or a list of a key and its own values at chance and at best."""
    return Trained(gate, chance, best) if isinstance(gate, str) else Trained(gate[0], *map(float, gate[1:]))
