"""SHOW: planes of frequencies that answer to a pointer; the page's part for them is ``templates/planes.html``.

A view is what the page lays out: the planes of one result, or those of several side by side. Its ``plots`` are the
pictures that stand for it in print and where no script runs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from biascope.results.draw import captioned
from biascope.results.embedding import Picture
from biascope.results.figures import lattice, plane_figure, shared_limits, ticks
from biascope.results.numbers import rounded
from biascope.results.result import Plane, Result
from biascope.results.wording import snake

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Planes = Mapping[str, Plane]


class Member(NamedTuple):
    """Planes of one subject in a view.

    Attributes:
        source: Identity of the view that holds the data.
        name: Of the subject.
    """

    source: str
    name: str


@dataclass(frozen=True, eq=False)
class View:
    """Planes as a page lays them out: those of one result, or of several side by side.

    Attributes:
        id: On the page.
        members: Whose planes.
        names: Of the planes, which the page switches between.
        down: Frequencies named along the first axis, and where they stand in per cent of it.
        across: The same along the second.
        ratio: Width over height.
        plots: Draws what stands for it in print and where no script runs.
        data: What the page's script needs; None where other views have it.
        title: Of a view of several.
        pictures: What was drawn.
    """

    id: str
    members: tuple[Member, ...]
    names: tuple[str, ...]
    down: list[tuple[str, float]]
    across: list[tuple[str, float]]
    ratio: float
    plots: Callable[[bool], dict[str, Figure]]
    data: dict[str, Any] | None = None
    title: str = ""
    pictures: tuple[Picture, ...] = ()

    def with_pictures(self, pictures: tuple[Picture, ...]) -> View:
        """The same with what was drawn."""
        return dataclasses.replace(self, pictures=pictures)


def live_view(identity: str, result: Result) -> View | None:
    """The view of one result and its data, if it has planes."""
    planes = result.planes()
    return _view(identity, {identity: (result.subject, planes)}, data=live_data(planes)) if planes else None


def joint_views(results: Iterable[tuple[str, str, Result]]) -> list[View]:
    """For each title and shape with planes of several subjects, one view of them side by side.

    Args:
        results: With the identity of a result's own view, which holds the data, and the title of its measurement.
    """
    alike: dict[tuple[str, tuple[int, int]], list[tuple[str, Result]]] = {}
    for identity, title, result in results:
        if planes := result.planes():
            alike.setdefault((title, _shape(planes)), []).append((identity, result))
    views: list[View] = []
    for (title, _), group in alike.items():
        labels = distinct(result.subject for _, result in group)
        members = {key: (label, result.planes()) for (key, result), label in zip(group, labels, strict=True)}
        if len({result.subject for _, result in group}) > 1:
            views.append(_view(f"planes-{len(views)}", members, title=title))
    return views


def distinct(words: Iterable[str]) -> list[str]:
    """Names made different by counting those that repeat.

    Example:
        >>> distinct(["a", "b", "a"])
        ['a', 'b', 'a (2)']
    """
    seen: dict[str, int] = {}
    result = []
    for word in words:
        seen[word] = seen.get(word, 0) + 1
        result.append(word if seen[word] == 1 else f"{word} ({seen[word]})")
    return result


def live_data(planes: Planes) -> dict[str, Any]:
    """What the page's script needs of planes: plain JSON, numbers to four digits.

    Example:
        >>> content = live_data({"accuracy": Plane(np.array([[51.23456, np.nan, 100.0]]), "%", low=50.0)})
        >>> content["rows"], content["columns"], content["planes"][0]["values"]
        ([0], [-1, 0, 1], [51.23, None, 100])
    """
    height, width = _shape(planes)
    known = np.any([np.isfinite(plane.values) for plane in planes.values()], axis=0)
    rows, columns = lattice(known)
    # It starts at a wave that the eye can count, where one is known.
    down, across = np.nonzero(known) if known.any() else ([height // 2], [width // 2])
    far = np.hypot(np.array(down) / height - 5 / 8, np.array(across) / width - 5 / 8)
    return {
        "height": height,
        "width": width,
        "rows": rows.tolist(),
        "columns": columns.tolist(),
        "start": [int(down[far.argmin()]) - height // 2, int(across[far.argmin()]) - width // 2],
        "planes": [{"name": name} | _numbers(plane) for name, plane in planes.items()],
    }


def _numbers(plane: Plane) -> dict[str, Any]:
    """A plane on the lattice where it is known."""
    rows, columns = lattice(np.isfinite(plane.values))
    inside = np.ix_(*(known + length // 2 for known, length in zip((rows, columns), plane.values.shape, strict=True)))
    return {
        "unit": plane.unit,
        "limits": plane.limits,
        "rows": rows.tolist(),
        "columns": columns.tolist(),
        "values": _rounded(plane.values[inside]),
        "spread": None if plane.spread is None else _rounded(plane.spread[inside]),
    }


def _view(
    identity: str, members: Mapping[str, tuple[str, Planes]], *, data: dict[str, Any] | None = None, title: str = ""
) -> View:
    height, width = _shape(next(iter(members.values()))[1])
    return View(
        id=identity,
        members=tuple(Member(source, subject) for source, (subject, _) in members.items()),
        names=tuple(dict.fromkeys(name for _, planes in members.values() for name in planes)),
        down=_marks(height),
        across=_marks(width),
        ratio=round(width / height, 3),
        plots=functools.partial(_plots, list(members.values())),
        data=data,
        title=title,
    )


def _plots(members: Sequence[tuple[str, Planes]], dark: bool) -> dict[str, Figure]:
    """Planes of one subject in one picture; those of several in a picture for each name, all on one scale."""
    if len(members) == 1:
        return {"frequency_plane": captioned("Frequency plane", plane_figure(members[0][1], dark=dark))}
    scales = shared_limits(plane for _, planes in members for plane in planes.values())
    pictures: dict[str, dict[str, Plane]] = {}
    for subject, planes in members:
        for name, plane in planes.items():
            low, high = scales[plane.unit]
            pictures.setdefault(name, {})[subject] = dataclasses.replace(plane, low=low, high=high)
    return {
        snake(name): captioned(name[:1].upper() + name[1:], plane_figure(planes, dark=dark))
        for name, planes in pictures.items()
    }


def _shape(planes: Planes) -> tuple[int, int]:
    height, width = next(iter(planes.values())).values.shape
    return height, width


def _marks(length: int) -> list[tuple[str, float]]:
    """Frequencies named along an axis, and where they stand in per cent of it."""
    return [(f"{at}".replace("-", "−"), round(100 * (at + length // 2 + 0.5) / length, 2)) for at in ticks(length)]


def _rounded(values: np.ndarray) -> list[float | None]:
    """Four digits, whole numbers as such; JSON has no nan."""
    short = [rounded(value) for value in values.ravel().tolist()]
    return [int(value) if value is not None and value.is_integer() else value for value in short]
