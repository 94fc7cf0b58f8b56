"""WHAT: the verdict on a merge, from how far the merged model is from the fine-tuned ones: in short, and in plain words."""

# t tasks, one for each model · a coefficients · l layers · p pairs of models

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from biascope.results.wording import listed, percent

if TYPE_CHECKING:
    from biascope.measures.merge_check.result import MergeCheck

GRADES = ("merge", "merge with a loss", "do not merge", "undecided")
KEPT = 0.05  # a merge changes at most this share of any model's predictions,
LOST = 0.20  # one with a loss at most this;
WAY, HALF_WAY = 0.25, 0.50  # and it goes this share of the way from the base to the models: with a loss, and without
ALIKE = 0.01  # below this share of predictions that differ from the base, there is nothing to judge by
SURE = 0.95  # share of resamples that agree on the verdict, from which it counts as sure
AGAINST = -0.05  # cosine from which two vectors count as pulling against each other in a layer


def best_place(mean: np.ndarray) -> int:
    """The place of the least distance; of several, the middle one.

    Example:
        >>> best_place(np.array([0.5, 0.1, 0.1, 0.1, 0.2]))
        2
    """
    places = np.flatnonzero(mean <= mean.min() + 1e-12)
    return int(places[(len(places) - 1) // 2])


def graded(apart: np.ndarray) -> str:
    """The verdict on distances ``(task, coefficient)`` between merged and fine-tuned models, the first coefficient being 0.

    Example:
        >>> [graded(np.array([[0.6, end], [0.4, 0.01]])) for end in (0.02, 0.1, 0.5)], graded(np.array([[0.0, 0.3]]))
        (['merge', 'merge with a loss', 'do not merge'], 'undecided')
    """
    mean = apart.mean(0)
    at = best_place(mean)
    worst, start = float(apart[:, at].max()), float(mean[0])
    if float(apart[:, 0].max()) < ALIKE:
        return "undecided"
    way = 1 - float(mean[at]) / start
    if worst > LOST or way < WAY:
        return "do not merge"
    return "merge" if worst <= KEPT and way >= HALF_WAY else "merge with a loss"


def verdict_of(check: MergeCheck) -> str:
    """What to do, and what to expect of it."""
    models, grade = listed(check.models), check.grade
    if grade == "undecided":
        start = float(check.apart[:, 0].max())
        words = (
            f"Undecided: on these samples {models} do what {check.base} does (of one, {_distance(check, start)}), so "
        )
        return f"{words}that they say nothing of a merge. Pass samples of the tasks that the models were tuned on."
    low, high = check.as_good
    alpha = f"α = {check.alpha.value:g}" + (f" ({low:g} to {high:g} does as well)" if low < high else "")
    kept = 1 - check.mean_loss.value
    share = f"{percent(kept)} of" if check.compared == "classes" else f"a mean cosine of {kept:.3f} with"
    expected = f"{share} what {models} do on their own samples"
    first = f"{grade.capitalize()}: at {alpha} one model is expected to keep {expected}."
    if grade == "do not merge":
        first = f"Do not merge these: even the best coefficient, {alpha}, keeps {expected}."
    worst = int(np.argmax([loss.value for loss in check.losses]))
    loss, likely = check.losses[worst], check.expected_losses
    cost = ""
    if likely:
        cost = f". It can lose at most that much accuracy; the expected loss is {percent(likely[worst].value)}"
        if check.models[worst] not in check.tempered:
            cost += " if it is right as often as it is sure (pass its accuracy for a better forecast)"
    suffers = f"{check.models[worst]} suffers most: {_distance(check, loss.value, loss.low, loss.high)}{cost}."
    if not loss.value:
        suffers = f"None of the predictions change (at most {percent(loss.high)} of any model's)."
    return f"{first} {suffers} The merge goes {percent(max(check.way.value, 0))} of the way from {check.base} to the models."


def _distance(check: MergeCheck, value: float, *interval: float) -> str:
    """A distance in words."""
    if check.compared == "features":
        return f"its features change by a cosine distance of {value:.3f}"
    between = f" ({percent(interval[0])} to {percent(interval[1])})" if interval else ""
    return f"{percent(value)}{between} of its predictions change"


def remarks_on(check: MergeCheck) -> list[str]:
    """What else a user should know."""
    words, chances = [], check.chances
    other = max((grade for grade in GRADES if grade != check.grade), key=lambda grade: chances[grade])
    if chances[check.grade] < SURE and chances[other] > 0:
        words.append(
            f"So many samples do not settle it: resampled, the verdict is {other!r} in {percent(chances[other])} of cases."
        )
    if check.grade != "undecided":
        words.append(_clash(check))
    if check.control is not None:
        what = "the predictions" if check.compared == "classes" else "the cosine of features"
        share = percent(float(check.control[0]))
        words.append(f"On {check.control_data}, outside the tasks, the merge changes {share} of {what}.")
    return [*words, *check.notes]


def _clash(check: MergeCheck) -> str:
    """Where task vectors pull against each other."""
    found = check.weights
    chance = 3 / np.sqrt(np.maximum(check.numbers, 1))[:, None]  # beyond what so many random numbers would show
    against = np.where(found.cosines < np.minimum(AGAINST, -chance), found.cosines, np.nan)
    if not np.isfinite(against).any():
        return "In no layer do the task vectors point against each other."
    named = []
    for place in np.argsort(against, axis=None)[: min(3, int(np.isfinite(against).sum()))]:
        layer, pair = np.unravel_index(place, against.shape)
        whose = f", {found.pair_names[pair]}" if len(check.pairs) > 1 else ""
        named.append(f"{check.layers[layer]} (cosine −{-against[layer, pair]:.2f}{whose})")
    return f"Task vectors point against each other most in {listed(named)}."
