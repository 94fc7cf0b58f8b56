"""WHAT: the saved record of a figure that was run: its numbers, settings, notes, and its claims with their verdicts then."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from biascope.results import store
from biascope.results.claim import Claim, Place, Trained, effort_rank
from biascope.results.estimate import Number
from biascope.results.finding import FigureOfPaper, Finding
from biascope.results.store import plain
from biascope.results.wording import snake

DOCUMENT = "finding.json"
FORMAT = 2  # of a record; raised when an old reader could misread a new file


@dataclass(frozen=True)
class Record:
    """The saved record of a figure that was run, without its arrays.

    Attributes:
        paper: Id of the paper.
        figure: Its number.
        title: What it shows.
        effort: At which it was run.
        device: On which.
        precision: Of the arithmetic.
        seconds: That it took, interrupted attempts included.
        date: When it was finished, in an order that sorts.
        versions: Of the software.
        statistics: As in :class:`Finding`.
        settings: As in :class:`Finding`.
        notes: As in :class:`Finding`.
        claims: The claims as they stood, each with its verdict then.
    """

    paper: str
    figure: str
    title: str
    effort: str
    device: str
    precision: str
    seconds: float
    date: str
    versions: dict[str, str]
    statistics: dict[str, Number]
    settings: dict[str, Any]
    notes: tuple[str, ...]
    claims: tuple[tuple[Claim, str], ...]

    @staticmethod
    def of(figure: FigureOfPaper, finding: Finding, effort: str, circumstances: Mapping[str, Any]) -> Record:
        """The record of a finding; circumstances are device, precision, seconds, date and versions."""
        numbers = finding.statistics
        judged = [(claim, claim.judge(numbers, effort).verdict) for claim in figure.claims]
        return Record(
            paper=figure.paper,
            figure=figure.number,
            title=figure.title,
            effort=effort,
            statistics=numbers,
            settings=plain(finding.settings),
            notes=finding.notes,
            claims=tuple(judged),
            **circumstances,
        )

    def finding(self, arrays: dict[str, np.ndarray]) -> Finding:
        """The finding it records, given its arrays."""
        return Finding(self.statistics, arrays, self.settings, self.notes)

    def as_json(self) -> dict[str, Any]:
        """As plain JSON; nan is null, an infinite number is a string."""
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        values["statistics"] = {key: number.as_dict() for key, number in self.statistics.items()}
        values["claims"] = [{**dataclasses.asdict(claim), "verdict": verdict} for claim, verdict in self.claims]
        document: dict[str, Any] = plain({"format": FORMAT, **values})
        return document

    @staticmethod
    def parsed(data: bytes, source: Path | str) -> tuple[dict[str, Any], Record]:
        """The document in the bytes of a ``finding.json``, and the record in it.

        Raises:
            ValueError: If it is damaged, foreign or of a newer version, naming the source.
        """
        document = store.parsed(data, source)
        try:
            return document, Record.from_json(document.get("record", document))  # before 0.2 it was the document itself
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
            raise ValueError(
                f"{source} must be a finding of biascope, but is not: {reason}. Run the figure again."
            ) from error

    @staticmethod
    def from_json(document: Any) -> Record:
        """The record in a JSON document; any of several errors if it is none."""
        if document["format"] > FORMAT:
            raise ValueError(f"its format {document['format']} needs a newer biascope")
        content = {entry.name: document[entry.name] for entry in dataclasses.fields(Record)}
        for name in ("paper", "figure", "title", "effort", "device", "precision", "date"):
            if not isinstance(content[name], str):
                raise ValueError(f"its {name} is not text")
        effort_rank(content["effort"])
        content["seconds"] = float(content["seconds"])
        content["versions"], content["settings"] = dict(content["versions"]), dict(content["settings"])
        content["notes"] = tuple(map(str, content["notes"]))
        if document["format"] == 1:  # before 0.2, numbers were known by their words
            content["statistics"] = {snake(name): _named(name, each) for name, each in content["statistics"].items()}
        content["statistics"] = {key: Number.from_dict(each) for key, each in content["statistics"].items()}
        content["claims"] = tuple((_claim(claim), str(claim["verdict"])) for claim in content["claims"])
        return Record(**content)


_LATER_TERMS = ("of", "kind", "post_hoc", "trained", "place", "reads")  # which older records do not have


def _claim(content: Mapping[str, Any]) -> Claim:
    """The claim in a record; any of several errors if it is none."""
    terms = {entry.name: content[entry.name] for entry in dataclasses.fields(Claim) if entry.name not in _LATER_TERMS}
    terms |= {name: content[name] for name in _LATER_TERMS if name in content}
    terms["trained"] = tuple(Trained(**each) for each in terms.get("trained", ()))
    terms["place"] = Place(**terms.get("place", {}))
    if isinstance(terms["published"], str):  # before 0.2 the place in the paper stood there, in words
        terms["published"] = None
    return Claim(**terms | {"statistic": snake(terms["statistic"])})


_UNITS = ("%", "dB", "points")


def _named(name: str, number: Mapping[str, Any]) -> dict[str, Any]:
    """A number with the words and the unit that its name had."""
    words, comma, unit = name.rpartition(", ")
    return {**number, "label": words if comma and unit in _UNITS else name, "unit": unit if unit in _UNITS else ""}
