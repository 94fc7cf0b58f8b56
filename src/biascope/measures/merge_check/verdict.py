"""WHAT: the verdict on a merge, from the distances between the merged model and the fine-tuned ones."""

# t tasks, one for each model · a coefficients · l layers · p pairs of models

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from biascope.measures.merge_check.forecast import SIGNS_RIGHT, TESTED
from biascope.results.wording import listed, percent

if TYPE_CHECKING:
    from biascope.measures.merge_check.result import MergeCheck
    from biascope.results.estimate import Estimate

GRADES = ("merge", "merge with a loss", "do not merge", "undecided")
KEPT = 0.05  # a merge changes at most this share of any model's predictions,
LOST = 0.20  # one with a loss at most this;
WAY, HALF_WAY = 0.25, 0.50  # and it goes this share of the way from the base to the models: with a loss, and without
ALIKE = 0.01  # below this share of predictions that differ from the base, there is nothing to judge by
FIXED = (
    0.55  # one coefficient for all merges did as well as the suggested ones for one of three encoders of the validation
)
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
    """Whether to merge, and the expected effect."""
    models, grade = listed(check.models), check.grade
    if grade == "undecided":
        most = int(check.apart[:, 0].argmax())
        return (
            f"Undecided: on these samples, {models} hardly differ from {check.base} "
            f"(for the one that differs most, {_distance(check, float(check.apart[most, 0]), check.models[most])}). "
            "Such samples cannot show the effect of a merge. Pass samples of the tasks that the models were fine-tuned on."
        )
    low, high = check.as_good
    alpha = f"α = {check.alpha.value:g}" + (f" ({low:g} to {high:g} is as good)" if low < high else "")
    kept = 1 - check.mean_loss.value
    keeps = f"keeps {percent(kept)} of the {'next words' if check.compared == 'words' else 'predictions'}"
    if check.compared == "features":
        keeps = f"has a mean cosine of {kept:.3f} with the features"
    whose = listed([f"{name} (linear probe)" if name in check.probed else name for name in check.models])
    if set(check.probed) == set(check.models):
        whose = f"linear probes on {models}"
    keeps = f"the merged model {keeps} of {whose} on their own {'texts' if check.compared == 'words' else 'samples'}."
    first = f"{grade.capitalize()}: at {alpha}, {keeps}"
    if grade == "do not merge":
        first = f"Do not merge these models if each can be used on its own task: even at the best coefficient, {alpha}, {keeps}"
    worst = int(np.argmax([loss.value for loss in check.losses]))
    loss, likely = check.losses[worst], check.expected_losses
    changes = f"{check.models[worst]} changes most: {_distance(check, loss.value, check.models[worst])}."
    if likely:
        ends = [percent(end).removesuffix(" %") for end in (loss.low, loss.high)]
        whose = "The accuracy of this probe" if check.models[worst] in check.probed else "Its accuracy"
        changes += f" {whose} drops by at most {_points(loss.value)} (95 % CI {ends[0]} to {ends[1]}). "
        changes += f"The forecast is a drop of {_tenths(likely[worst].value)} points ({_interval(likely[worst])})."
        if check.models[worst] not in check.tempered:
            changes += " Pass its accuracy for a better forecast."
    if check.compared == "words":
        changes = (
            f"{changes[:-1]} (95 % CI {percent(loss.low).removesuffix(' %')} to {percent(loss.high)}, over texts)."
        )
    elif not loss.value:
        of = "probe" if check.probed else "model"
        changes = f"No prediction changes (95 % CI: at most {percent(loss.high)} of any {of}'s predictions)."
    covered = f"The merge covers {percent(max(check.way.value, 0))} of the distance from {check.base} to the models."
    return f"{first} {changes} {covered}"


def comparison_of(check: MergeCheck) -> str:
    """What the merge gives over what it replaces: the base, and the best single model for all tasks; on average over the tasks."""
    if check.grade == "undecided" or (check.compared == "classes" and not check.gains):
        return ""
    if check.compared == "words":
        return " ".join(words_of(check))
    if check.compared == "features":
        return (
            f"Whether the merge is more accurate than {check.base}, or than one model for all tasks, cannot be seen from features. "
            "Compare them with labels."
        )
    versus = []
    for role, gain in check.gains.items():
        of = check.base if role == "base" else f"{check.best_single}, the best single model for all tasks"
        does, than = ("gain", "over") if gain.value >= 0 else ("lose", "against")
        size = gain if gain.value >= 0 else gain.map_linear(-1)
        versus.append(f"{does} {_tenths(size.value)} points {than} {of} ({_interval(size)})")
    known = set(check.tempered) == set(check.models)
    rests = "the probabilities of linear probes" if check.probed else "the models' own probabilities"
    rests += " and their accuracies" * known
    of_probes = " of linear probes" * bool(check.probed)
    right = SIGNS_RIGHT[known]
    return (
        f"As one model for all tasks, the merge is forecast to {versus[0]}, and to {versus[1]}, in mean accuracy{of_probes}. "
        f"These forecasts rest on {rests}, not on labels. "
        f"In a test on {TESTED} merges of two LeNets, the sign was right for {right['base']} and for {right['single']} of them."
    )


def words_of(check: MergeCheck) -> list[str]:
    """Divergence and perplexities in words, for each model."""
    assert check.divergence is not None
    found = []
    for name, (base, own, merge), apart in zip(check.models, check.perplexities, check.divergences, strict=True):
        found.append(
            f"On the texts of {name}, perplexity is {base.value:.4g} for {check.base}, {own.value:.4g} for {name} and "
            f"{merge.value:.4g} for the merge (95 % CI {merge.low:.4g} to {merge.high:.4g}). The merge is {apart.value:.3g} nats a "
            f"token from {name} (95 % CI {apart.low:.3g} to {apart.high:.3g})."
        )
    few = [name for name, count in zip(check.models, check.points, strict=True) if count < 30]
    if few:
        found.append(f"The texts of {listed(few)} are few: with fewer than 30, intervals are too narrow.")
    return found


def _interval(share: Estimate) -> str:
    """The 95 % interval of a difference of accuracies in points."""
    return f"95 % CI {_tenths(share.low)} to {_tenths(share.high)}"


def _tenths(share: float) -> str:
    """A difference of accuracies in points, to a tenth.

    Example:
        >>> _tenths(-0.0123), _tenths(0.2), _tenths(-0.0001)
        ('−1.2', '20.0', '0.0')
    """
    words = f"{100 * share:.1f}"
    return "0.0" if words == "-0.0" else words.replace("-", "−")


def _points(share: float) -> str:
    """A difference of accuracies in percentage points."""
    return percent(share).replace(" %", " points")


def _distance(check: MergeCheck, value: float, model: str) -> str:
    """A distance of a model in words."""
    if check.compared == "features":
        return f"its features change by a cosine distance of {value:.3f}"
    what = "next words" if check.compared == "words" else "predictions"
    return f"{percent(value)} of {check.whose(model)} {what} change"


def remarks_on(check: MergeCheck) -> list[str]:
    """What else a user should know."""
    words, chances = [], check.chances
    other = max((grade for grade in GRADES if grade != check.grade), key=lambda grade: chances[grade])
    if chances[check.grade] < SURE and chances[other] > 0:
        words.append(
            f"The samples are too few for a certain verdict: {percent(chances[other])} of the resamples give {other!r}."
        )
    if check.grade != "undecided":
        words += [*_fixed(check), _clash(check)]
    if check.control is not None:
        predictions = "the predictions of linear probes" if check.probed else "the predictions"
        what = predictions if check.compared == "classes" else "the cosine of features"
        share = percent(float(check.control[0]))
        words.append(f"On {check.control_data}, outside the tasks, the merge changes {share} of {what}.")
    return [*words, *check.notes]


def _fixed(check: MergeCheck) -> list[str]:
    """Whether the suggested coefficient does more than one fixed coefficient for all merges would."""
    places = np.flatnonzero(np.isclose(check.alphas, FIXED))
    if check.compared != "classes" or not len(places):
        return []
    low, high = check.as_good
    if low <= FIXED <= high:
        return [f"The fixed coefficient α = {FIXED} does as well here."]
    share, least = percent(float(check.apart[:, places[0]].mean())), percent(check.mean_loss.value)
    return [f"The fixed coefficient α = {FIXED} changes {share} of the predictions, the suggested one {least}."]


def _clash(check: MergeCheck) -> str:
    """Where task vectors pull against each other."""
    found = check.weights
    chance = 3 / np.sqrt(np.maximum(check.numbers, 1))[:, None]  # beyond what so many random numbers would show
    against = np.where(found.cosines < np.minimum(AGAINST, -chance), found.cosines, np.nan)
    if not np.isfinite(against).any():
        return "The task vectors point against each other in no layer."
    named = []
    for place in np.argsort(against, axis=None)[: min(3, int(np.isfinite(against).sum()))]:
        layer, pair = np.unravel_index(place, against.shape)
        whose = f", {found.pair_names[pair]}" if len(check.pairs) > 1 else ""
        named.append(f"{check.layers[layer]} (cosine −{-against[layer, pair]:.2f}{whose})")
    return f"The task vectors point against each other most in {listed(named)}."
