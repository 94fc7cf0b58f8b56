"""Merging methods side by side: how many predictions each changes, and which to take."""

# t tasks · m methods · b resamples

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from biascope.editing import methods
from biascope.editing.methods._settings import Assigned
from biascope.results.estimate import Estimate, proportion
from biascope.results.wording import listed, percent

if TYPE_CHECKING:
    from biascope.measures.merge_check.result import MergeCheck


SCALES = (*(step / 5 for step in range(1, 11)), 2.5, 3.0)  # of a method's change, where it has a setting for it


def scaled_method(words: str) -> tuple[str, list[Assigned], str]:
    """A method, its settings with a scale of 1, and the setting that scales its change; empty if that is given or there is none.

    Example:
        >>> [scaled_method(words)[2] for words in ("ties", "dare density=0.4", "ties lambda=0.7", "linear")]
        ['lambda', 'weight', '', '']
    """
    name, settings = method_of(words)
    scale = methods.method(name).scaled_by
    if not scale or any(each.name == scale for each in settings):
        return name, settings, ""
    return name, [*settings, Assigned(scale, (1.0,))], scale


def method_of(words: str) -> tuple[str, list[Assigned]]:
    """A method and its settings, as they are spelled on the command line.

    Example:
        >>> method_of("ties density=0.4")[0], str(method_of("ties density=0.4")[1][0])
        ('ties', 'density=0.4')
    """
    name, *settings = words.split()
    if name.endswith(":peft"):
        raise ValueError(
            f"Methods that are compared must merge weights, but {name} merges the factors of adapters. Pass ties, or leave it out."
        )
    return name, [Assigned.read(each) for each in settings]


def compared_methods(check: MergeCheck) -> list[dict[str, Any]]:
    """A row for each method, the suggested coefficient first: changes on average and at worst, and the share of the way."""
    rows, (apart, drawn) = [], _distances(check)
    start, drawn_start = check.apart[:, 0].mean(), check.resampled[:, 0].mean(0)
    classes = check.compared == "classes"
    for place, name in enumerate(_names(check)):
        mean, worst = float(apart[:, place].mean()), int(apart[:, place].argmax())
        # Resamples of samples that all agree have no spread; Wilson's interval of a share has.
        changed = proportion(mean, sum(check.points)) if classes else Estimate.from_draws(mean, drawn[:, place].mean(0))
        way = None
        if start:
            way = Estimate.from_draws(
                1 - mean / float(start), 1 - drawn[:, place].mean(0) / np.maximum(drawn_start, 1e-9)
            )
            if classes and not way.low < way.high:
                way = Estimate(
                    way.value, changed.standard_error / start, 1 - changed.high / start, 1 - changed.low / start
                )
        most = float(apart[worst, place])
        rows.append(
            {
                "method": name,
                "mean_change": changed,
                "worst_change": proportion(most, check.points[worst])
                if classes
                else Estimate.from_draws(most, drawn[:, place].max(0)),
                "way": way,
            }
        )
    return rows


def recommended(check: MergeCheck) -> tuple[str, Estimate] | None:
    """The method that changes least on average, and by how much more the second changes, on the same resamples."""
    if not check.methods:
        return None
    apart, drawn = _distances(check)
    first, second = np.argsort(apart.mean(0), kind="stable")[:2]
    gap = (drawn[:, second] - drawn[:, first]).mean(0)
    value = float((apart[:, second] - apart[:, first]).mean())
    return _names(check)[first], Estimate.from_draws(value, gap)


def is_better(check: MergeCheck) -> bool:
    """Whether the recommended method differs significantly from the second."""
    found = recommended(check)
    return found is not None and found[1].low > 0


def recommendation_of(check: MergeCheck) -> str:
    """In words; empty if no methods were compared."""
    found = recommended(check)
    if found is None:
        return ""
    name, gap = found
    rows = {row["method"]: row["mean_change"] for row in compared_methods(check)}
    ordered = sorted(rows, key=lambda each: rows[each].value)
    if check.compared == "classes":
        least, of = percent(rows[name].value), "of predictions on average"
        more = f"{100 * gap.value:.3g} points"
        interval = f"95 % CI {100 * gap.low:.3g} to {100 * gap.high:.3g}"
    else:
        least, of = f"{rows[name].value:.3g}", "in cosine distance of features on average"
        more, interval = f"{gap.value:.3g}", f"95 % CI {gap.low:.3g} to {gap.high:.3g}"
    start, interval = f"Of {len(rows)} merging methods,", interval.replace("-", "−")
    if gap.low > 0:
        return f"{start} {name} changes least: {least} {of}, {more} less than {ordered[1]} ({interval})."
    near = [each for each in ordered if each == name or not _differs(check, name, each)]
    return f"{start} {listed(near)} do not differ significantly: {name} changes {least} {of}, {ordered[1]} {more} more ({interval})."


def _differs(check: MergeCheck, best: str, other: str) -> bool:
    names = list(_names(check))
    _, drawn = _distances(check)
    gap = (drawn[:, names.index(other)] - drawn[:, names.index(best)]).mean(0)
    return float(np.quantile(gap, 0.025)) > 0


def _names(check: MergeCheck) -> Sequence[str]:
    own = (f"{words} {scale}".rstrip() for words, scale in zip(check.methods, check.scales, strict=True))
    return (f"task_arithmetic weight={check.alpha.value:g}", *own)


def _distances(check: MergeCheck) -> tuple[np.ndarray, np.ndarray]:
    """``(t, 1 + m)`` and ``(t, 1 + m, b)``, the suggested coefficient first."""
    assert check.methods_apart is not None
    assert check.methods_resampled is not None
    at = int(np.flatnonzero(check.alphas == check.alpha.value)[0])
    return (
        np.concatenate([check.apart[:, at, None], check.methods_apart], 1),
        np.concatenate([check.resampled[:, at, None], check.methods_resampled], 1),
    )
