"""SHOW: what a report says of each result."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from biascope.results import embedding
from biascope.results.directions import Gallery
from biascope.results.embedding import Picture
from biascope.results.numbers import NumberRow, ShownTable, tables_of
from biascope.results.planes import View, live_view
from biascope.results.registry import title_of
from biascope.results.result import Result
from biascope.results.story import Sentence, Story
from biascope.runs.rehearsal import counted

LEAST_STATEMENTS, MOST_STATEMENTS = 3, 5  # of a summary
_PICTURES = 3_000_000  # letters of a page, at most, for pictures
_NUMBERS = "→\u00a0Numbers"


@dataclass(frozen=True)
class Told:
    """A sentence of a summary.

    Attributes:
        text: The sentence.
        place: Where on the page it is shown.
        words: What leads there.
        about: Of what it is, on a page of several things.
    """

    text: str
    place: str
    words: str
    about: str = ""


@dataclass(frozen=True, eq=False)
class Section:
    """What a report says of one result, in words, numbers and pictures.

    Attributes:
        id: On the page.
        result: What was found.
        story: What is to be told of it.
        why_detail: Why it is only a detail beside other results, if it is.
        numbers: Its numbers in words.
        tables: Those that it shows.
        pictures: Those that stand still.
        plane: Planes of frequencies.
        gallery: Directions to step through.
        shown: Whether the page has it, or only its numbers.
        place: Where in a training its checkpoint lies, in words.
        left_out: Whether pictures were left out to keep the page small.
        told: Whether it begins with the finding, which the summary has not said.
        warned: Whether it has its caveats, which the summary has too.
        meant: Whether it says what the result means, which no other section has said.
    """

    id: str
    result: Result
    story: Story
    why_detail: str
    numbers: tuple[NumberRow, ...]
    tables: tuple[ShownTable, ...]
    pictures: tuple[Picture, ...]
    plane: View | None
    gallery: Gallery | None
    shown: bool
    place: str
    left_out: bool
    told: bool = True
    warned: bool = True
    meant: bool = True

    @property
    def evidence(self) -> str:
        """The number behind its lead: the first share of the sensitivity that it tells."""
        return next((each.text for each in self.story.sentences if each.shown_by.startswith("sensitivity_by")), "")

    @property
    def key_picture(self) -> Picture | None:
        """The picture that stands beside its lead."""
        return next((item for item in self.pictures if item.key == self.story.key_picture), None)

    @property
    def subject(self) -> str:
        """Who was measured."""
        return self.result.subject

    @property
    def title(self) -> str:
        """What was measured."""
        return title_of(self.result)

    @property
    def sentences(self) -> Sequence[Sentence]:
        """What a summary may say of it; its first sentence is followed by where the network stands in the atlas."""
        first, *others = self.story.sentences or [Sentence(self.result.sentence())]
        return [Sentence(" ".join([first.text, *self.standing[:1]]), first.shown_by), *others]

    @functools.cached_property
    def standing(self) -> list[str]:
        """Where the network stands among those of the atlas."""
        return self.result.standing()

    @property
    def intervals(self) -> bool:
        """Whether any interval is known."""
        return any(row.known for row in self.numbers)

    @property
    def numbered(self) -> bool:
        """Whether its numbers stand with those of the whole page."""
        return self.shown and not self.why_detail

    def summarised(self, several: bool) -> list[Told]:
        """What it says in the summary, linked to its picture, table or numbers."""
        places = {item.key: (f"{self.id}-{item.key}", item.caption) for item in self.pictures}
        if self.plane:
            places["frequency_plane"] = (self.plane.id, "Frequency plane")
        if self.gallery:
            places["directions"] = (self.gallery.id, "Directions")
        places |= {item.key: (item.id, item.title) for item in self.tables}
        about = f"{self.subject}, {self.title.lower()}" if several else ""
        found = []
        for text, shown_by in self.sentences:
            place, words = places.get(shown_by, (f"numbers-{self.id}", "Numbers"))
            found.append(Told(text, place, f"→\u00a0{words}", about))
        return found

    def numbers_told(self, several: bool) -> list[Told]:
        """Its first numbers as sentences, if it says little itself."""
        told = []
        for row in self.numbers[:LEAST_STATEMENTS]:
            text = f"{row.label[:1].upper()}{row.label[1:]}: {row.value}"
            text += f" (95 % CI {row.interval})." if row.known else "."
            told.append(Told(text, f"numbers-{self.id}", _NUMBERS, self.subject if several else ""))
        return told


@dataclass(frozen=True)
class Subject:
    """The sections of one subject, under its name."""

    id: str
    name: str
    sections: tuple[Section, ...]


def sections_of(
    results: Sequence[Result], stories: Sequence[Story], ends: Mapping[int, str] | None, taken: int = 0
) -> list[Section]:
    """What the page says of each result.

    Args:
        results: All of the page.
        stories: What is to be told of each.
        ends: Of checkpoints, those that have pictures, by their places, with words for them.
        taken: Letters that pictures of several results take already.
    """
    room, steppers = _PICTURES - taken, 0
    sections: list[Section] = []
    with counted("results of the report", len(results)) as advance:
        for index, story in enumerate(stories):
            place = None if ends is None else ends.get(index, "")
            section, used = _section(index, story, results, place, fits=room > 0, steppers=steppers)
            room, steppers = room - used, steppers + (section.gallery is not None)
            sections.append(section)
            advance(1)
    return sections


def _section(
    index: int, story: Story, results: Sequence[Result], place: str | None, *, fits: bool, steppers: int
) -> tuple[Section, int]:
    """The section of a result, and how much its pictures take; of checkpoints, the place in the training."""
    result, identity, shown = results[index], f"result-{index}", place != ""
    drawn = fits and shown and place != "First checkpoint"
    pictures = embedding.pictures_of(result.plots, identity) if drawn else ()
    view = live_view(f"plane-{index}", result) if shown else None
    if view:
        still = tuple(picture for picture in pictures if picture.of_planes)
        pictures = tuple(picture for picture in pictures if not picture.of_planes)
        view = view.with_pictures(still or (embedding.pictures_of(view.plots, view.id) if fits else ()))
    section = Section(
        id=identity,
        result=result,
        story=story,
        why_detail=result.why_detail(results),
        numbers=tuple(NumberRow.of(number, number.label) for number in result.headline().values()),
        tables=tables_of(identity, result, story),
        pictures=pictures,
        plane=view,
        gallery=None if story.directions is None or not shown else Gallery(f"gallery-{steppers}", story.directions),
        shown=shown,
        place=place or "",
        left_out=not fits and shown,
        meant=place in (None, "Last checkpoint"),  # else the same words would come again
    )
    return section, embedding.total_size(pictures + (view.pictures if view else ()))


def by_subject(sections: Sequence[Section], trained: bool) -> list[Subject]:
    """Sections under their subjects; of checkpoints, only the first and the last."""
    shown = [section for section in sections if section.shown]
    subjects = list(dict.fromkeys(section.subject for section in shown))
    if trained:
        subjects.reverse()  # the last one is the one in use
    groups = []
    for index, subject in enumerate(subjects, 1):
        own = tuple(section for section in shown if section.subject == subject)
        groups.append(Subject(f"subject-{index}", own[0].place or subject, own))
    return groups


def leading(sections: Sequence[Section]) -> Section | None:
    """The section whose lead a page begins with: of one subject, the first that has one."""
    shown = [section for section in sections if section.numbered]
    if len({section.subject for section in shown}) != 1:
        return None
    return next((section for section in shown if section.story.lead), None)


def summary_of(sections: Sequence[Section], concluded: Sequence[Told], compared: bool) -> list[Told]:
    """Three to five statements with links to what shows them.

    Args:
        sections: All of the page.
        concluded: What a comparison of them concludes, which comes first.
        compared: Whether there is a comparison.
    """
    told = list(concluded)
    shown = [section for section in sections if section.numbered]
    several = len({section.subject for section in shown}) > 1
    if (first := leading(sections)) is not None:
        others = [each for section in shown for each in section.summarised(False)[:1] if section is not first]
        evidence = [
            each
            for each in first.summarised(False)
            if each.place != f"numbers-{first.id}" and each.text != first.evidence
        ]
        told = [*others, *evidence[: max(1, MOST_STATEMENTS - 1 - len(others))]]
        told += first.numbers_told(False) if len(told) < LEAST_STATEMENTS else []
        return told[: MOST_STATEMENTS - 1]
    each = [] if compared and len(told) >= 3 else [section.summarised(several) for section in shown]
    # The first of each result, then the second of each, so that none is drowned by another.
    for turn in range(max(map(len, each), default=0)):
        told += [those[turn] for those in each if turn < len(those)]
    if len(told) < LEAST_STATEMENTS:
        for section in shown:
            told += section.numbers_told(several)
    return told[:MOST_STATEMENTS]
