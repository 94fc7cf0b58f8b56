"""SHOW: several subjects side by side in a report: never across kinds or sizes, as results say themselves."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from biascope.results import embedding
from biascope.results.cards import CardCell, Cards, Column
from biascope.results.embedding import Picture
from biascope.results.planes import View, distinct, joint_views
from biascope.results.registry import title_of
from biascope.results.result import Result
from biascope.results.section import Told
from biascope.results.story import Compared, Story

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        columns: Of the table.
        rows: Each subject, its name and its cells.
        level: What the statements on differences promise.
        warnings: What a reader must know of them.
        pictures: The table as a picture.
        planes: Planes of frequencies of several subjects.
        groups: Pictures of what may be overlaid.
        statements: What follows, with links to what shows it.
        meaning: What it means.
    """

    heading: str
    of: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, str, tuple[CardCell, ...]], ...]
    level: str
    warnings: tuple[str, ...]
    pictures: tuple[Picture, ...]
    planes: tuple[View, ...]
    groups: tuple[Overlay, ...]
    statements: tuple[Told, ...]
    meaning: str

    id: ClassVar[str] = "comparison"

    @property
    def size(self) -> int:
        """Letters of its pictures."""
        parts = (self.pictures, *(view.pictures for view in self.planes), *(group.pictures for group in self.groups))
        return sum(map(embedding.total_size, parts))


def comparison_of(results: Sequence[Result], stories: Sequence[Story], trained: bool) -> Comparison | None:
    """The cards of subjects in one table, pictures of what may be overlaid, and what follows; None if nothing is compared.

    Args:
        results: Of several subjects.
        stories: What is to be told of each.
        trained: Whether they are checkpoints of a training, in its order.
    """
    cards = Cards.of(results, stories, trained)
    planes = joint_views((f"plane-{index}", title_of(result), result) for index, result in enumerate(results))
    if not cards.columns and not planes:
        return None
    groups, statements, meanings = [], list[Told](), list[str]()
    for index, (group, beside) in enumerate(_overlaid_groups(results, stories)):
        pictures = embedding.pictures_of(functools.partial(overlaid, group, beside), f"all-{index}")
        several = sum(column.measurement == group[0].measurement for column in cards.columns) > 1
        title = title_of(group[0]) + (f" ({beside.kind})" if several else "")
        overlay = Overlay(f"all-{index}", title, pictures)
        groups.append(overlay)
        if not group[0].why_detail(results):
            meanings.append(beside.along_training if trained else beside.meaning)
            statements += _concluded(group, beside, trained, overlay)
    names = {subject: checkpoint_name(subject) if trained else subject for subject in cards.subjects}
    several = any(column.pairs for column in cards.columns)
    pictures = embedding.pictures_of(lambda dark: {"card": cards.figure(dark, names)}, "cards") if several else ()
    differences = [Told(text, "comparison-table", "→\u00a0Table") for text in cards.sentences(names)]
    return Comparison(
        heading="Change along training" if trained else "Comparison",
        of="Checkpoint" if trained else "Network",
        columns=cards.columns,
        rows=tuple((subject, names[subject], tuple(cards.cells(subject))) for subject in cards.subjects),
        level=cards.level(),
        warnings=tuple(cards.warnings()),
        pictures=pictures,
        planes=tuple(view.with_pictures(embedding.pictures_of(view.plots, view.id)) for view in planes),
        groups=tuple(groups),
        statements=tuple([*statements, *differences] if trained else [*differences, *statements]),
        meaning=" ".join(dict.fromkeys(filter(None, meanings))),
    )


def _overlaid_groups(results: Sequence[Result], stories: Sequence[Story]) -> list[tuple[list[Result], Compared]]:
    """Results of several subjects that may be laid over one another; what gives the headline comes first."""
    groups: dict[tuple[str, str, tuple[int, ...]], tuple[list[Result], Compared]] = {}
    for result, story in zip(results, stories, strict=True):
        if (own := story.compared) is not None and own.overlaid is not None:
            groups.setdefault((result.measurement, own.kind, own.shape), ([], own))[0].append(result)
    several = [pair for pair in groups.values() if len({result.subject for result in pair[0]}) > 1]
    return sorted(several, key=lambda pair: bool(pair[0][0].why_detail(results)))


def _concluded(group: Sequence[Result], compared: Compared, trained: bool, overlay: Overlay) -> list[Told]:
    captions = {picture.key: picture.caption for picture in overlay.pictures}
    told = []
    for text, shown_by in [] if compared.concluded is None else compared.concluded(group, _labels(group), trained):
        place = f"{overlay.id}-{shown_by}" if shown_by in captions else "comparison-table"
        told.append(Told(text, place, f"→\u00a0{captions.get(shown_by, 'Table')}"))
    return told


def overlaid(group: Sequence[Result], compared: Compared, dark: bool) -> dict[str, Figure]:
    """Pictures of results of one measurement, one kind and one shape, under names that tell them apart."""
    if compared.overlaid is None:
        return {}
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
