"""SHOW: several subjects side by side in a report: never across kinds or sizes, as results say themselves."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from biascope.results import embedding
from biascope.results.embedding import Picture
from biascope.results.numbers import NumberRow
from biascope.results.planes import View, distinct, joint_views
from biascope.results.registry import title_of
from biascope.results.result import Result
from biascope.results.section import Told
from biascope.results.story import Compared, Story

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ComparedCell:
    """A number of one subject in the table of a comparison.

    Attributes:
        value: In words.
        interval: Its interval in words, if that is known.
        size: Of what is compared.
        share: The number as a share of it, in percent.
    """

    value: str
    interval: str
    size: int
    share: str

    @classmethod
    def of(cls, compared: Compared) -> ComparedCell:
        """The words of what is compared."""
        row = NumberRow.of(compared.number)
        share = min(max(compared.number.value / compared.size, 0.0), 1.0)
        return cls(row.value, row.interval if row.known else "", compared.size, f"{100 * share:.1f}")


@dataclass(frozen=True)
class Overlay:
    """Pictures in which several results lie over one another."""

    id: str
    title: str
    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class Comparison:
    """Several subjects side by side.

    Attributes:
        heading: Of the section.
        of: What a row is.
        quantities: What the table compares.
        reading: How to read the table.
        columns: Headings of its columns.
        rows: Name of each subject with its cells, of which a column may have several.
        planes: Planes of frequencies of several subjects.
        groups: Pictures of what may be overlaid.
        statements: What follows, with links to what shows it.
        meaning: What it means.
    """

    heading: str
    of: str
    quantities: str
    reading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[ComparedCell, ...], ...]], ...]
    planes: tuple[View, ...]
    groups: tuple[Overlay, ...]
    statements: tuple[Told, ...]
    meaning: str

    id: ClassVar[str] = "comparison"


def comparison_of(results: Sequence[Result], stories: Sequence[Story], trained: bool) -> Comparison | None:
    """A table of one number for each subject, pictures of what may be overlaid, and what follows; None if nothing is compared.

    Args:
        results: Of several subjects.
        stories: What is to be told of each.
        trained: Whether they are checkpoints of a training, in its order.
    """
    both = zip(results, stories, strict=True)
    known = [(result, story.compared) for result, story in both if story.compared is not None]
    known.sort(key=lambda pair: bool(pair[0].why_detail(results)))  # what gives the headline comes first
    titles = {(result.measurement, beside.kind): f"{title_of(result)} ({beside.kind})" for result, beside in known}
    alike: dict[tuple[str, str, tuple[int, ...]], list[tuple[Result, Compared]]] = {}
    for result, beside in known:
        alike.setdefault((result.measurement, beside.kind, beside.shape), []).append((result, beside))
    groups, statements, meanings = [], list[Told](), list[str]()
    for index, (key, members) in enumerate(alike.items()):
        group, beside = [result for result, _ in members], members[0][1]
        if len({result.subject for result in group}) < 2:
            continue
        pictures = embedding.pictures_of(functools.partial(overlaid, group, beside), f"all-{index}")
        overlay = Overlay(f"all-{index}", titles[key[:2]], pictures)
        groups.append(overlay)
        if not group[0].why_detail(results):
            meanings.append(beside.along_training if trained else beside.meaning)
            statements += _concluded(group, beside, trained, overlay)
    planes = joint_views((f"plane-{index}", title_of(result), result) for index, result in enumerate(results))
    if not known and not planes:
        return None
    return Comparison(
        heading="Change along training" if trained else "Comparison",
        of="Checkpoint" if trained else "Network",
        quantities=" and ".join(dict.fromkeys(beside.quantities for _, beside in known)),
        reading=" ".join(dict.fromkeys(beside.reading for _, beside in known)),
        columns=tuple(titles.values()),
        rows=tuple(_rows(known, list(titles), trained)),
        planes=tuple(view.with_pictures(embedding.pictures_of(view.plots, view.id)) for view in planes),
        groups=tuple(groups),
        statements=tuple(statements),
        meaning=" ".join(dict.fromkeys(meanings)),
    )


def _rows(
    known: Sequence[tuple[Result, Compared]], columns: Sequence[tuple[str, str]], trained: bool
) -> list[tuple[str, tuple[tuple[ComparedCell, ...], ...]]]:
    rows = []
    for subject in dict.fromkeys(result.subject for result, _ in known):
        own = [(result.measurement, beside) for result, beside in known if result.subject == subject]
        cells = tuple(
            tuple(ComparedCell.of(beside) for name, beside in own if (name, beside.kind) == column)
            for column in columns
        )
        rows.append((checkpoint_name(subject) if trained else subject, cells))
    return rows


def _concluded(group: Sequence[Result], compared: Compared, trained: bool, overlay: Overlay) -> list[Told]:
    captions = {picture.key: picture.caption for picture in overlay.pictures}
    told = []
    for text, shown_by in compared.concluded(group, _labels(group), trained):
        place = f"{overlay.id}-{shown_by}" if shown_by in captions else "comparison-table"
        told.append(Told(text, place, f"→\u00a0{captions.get(shown_by, 'Table')}"))
    return told


def overlaid(group: Sequence[Result], compared: Compared, dark: bool) -> dict[str, Figure]:
    """Pictures of results of one measurement, one kind and one shape, under names that tell them apart."""
    return compared.overlaid(group, _labels(group), _all_points(group), dark)


def _labels(group: Sequence[Result]) -> list[str]:
    """Names that tell results apart; of trained networks, the step."""
    trained = _all_points(group)
    return distinct(checkpoint_name(result.subject) if trained else result.subject for result in group)


def _all_points(group: Sequence[Result]) -> bool:
    return all(result.at_given_weights for result in group)


def checkpoint_name(subject: str) -> str:
    """The step of a checkpoint, which is called "network at step"."""
    return subject.rpartition(" at ")[2]
