"""How near a run came to the published experiment: its level, computed from the plan's published row and the settings of the run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from biascope.results.claim import Claim
from biascope.results.finding import FigureOfPaper
from biascope.results.record import Record
from biascope.results.wording import snake

#: From the strongest to the weakest: the released recipe at published size; a theorem, a formula or an exact count, which has no
#: published experiment behind it; a part of the published sizes, or another setting; another model or data.
LEVELS = ("reproduced", "derived", "reduced", "transferred")
_MODELS = ("networks", "encoders", "data", "tasks", "texts", "control task")  # settings that name models and data
_LONG = 60  # letters of two values that are told side by side
_REPEATS = ("runs", "seeds", "draws")  # settings that begin so: more than published is no difference


def level(figure: FigureOfPaper, claim: Claim, record: Record) -> tuple[str, tuple[str, ...]]:
    """The level of the run that decided a claim, and in words what differs from the published experiment.

    Settings of networks that the claim does not name are left out. A setting that the run did not record counts as a difference.

    Returns:
        One of :data:`LEVELS`, and a phrase for each difference: ``"72 of 514 frequencies"``.
    """
    if not figure.published:
        return ("reduced", ("the published settings are not listed",)) if claim.trained else ("derived", ())
    found = dict(_differences(figure, claim, record))
    transferred = any(setting in _MODELS and setting in record.settings for setting in found)
    return "transferred" if transferred else "reduced" if found else "reproduced", tuple(found.values())


def _differences(figure: FigureOfPaper, claim: Claim, record: Record) -> Iterator[tuple[str, str]]:
    """Settings that differ, by name, each with a phrase."""
    named = "_".join((claim.statistic, *(each.statistic for each in claim.trained)))
    titles = {setting.partition(": ")[2] for setting in (*figure.published, *record.settings)} - {""}
    about = {title for title in titles if _names(title, named)}
    for setting, published in figure.published.items():
        what, _, title = setting.partition(": ")
        if title and title not in (about or _that_ran(titles, record)):
            continue
        if setting not in record.settings:
            yield setting, f"{what} not recorded"
            continue
        ours = record.settings[setting]
        if what in _MODELS and isinstance(ours, list) and isinstance(published, list):
            ours = [each for each in ours if _names(str(each), named)] or ours
            published = [each for each in published if each in ours] or published
        if ours != published and not (what.startswith(_REPEATS) and _is_more(ours, published)):
            yield setting, _phrase(what, ours, published)


def _names(title: str, keys: str) -> bool:
    """Whether keys are about a network or a task."""
    return re.search(rf"(?<![a-z0-9]){re.escape(snake(title))}(?![a-z0-9])", keys) is not None


def _that_ran(titles: set[str], record: Record) -> set[str]:
    """Networks of which the run has a number or a setting."""
    keys = "_".join((*record.statistics, *map(snake, record.settings)))
    return {title for title in titles if _names(title, keys)}


def _is_more(ours: Any, published: Any) -> bool:
    """Whether a number, or each number under a name, is at least the published one."""
    if isinstance(ours, dict) and isinstance(published, dict):
        return all(name in ours and _is_more(ours[name], value) for name, value in published.items())
    return isinstance(ours, int) and isinstance(published, int) and ours >= published


def _phrase(setting: str, ours: Any, published: Any) -> str:
    if isinstance(ours, int) and isinstance(published, int) and ours < published:
        return f"{_in_words(ours)} of {_in_words(published)} {setting}"
    told, theirs = _in_words(ours), _in_words(published)
    return f"{setting} {told} instead of {theirs}" if len(told + theirs) < _LONG else f"other {setting}"


def _in_words(value: Any) -> str:
    """A setting as it is printed."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(_in_words, value))
    return str(value)
