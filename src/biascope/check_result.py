"""WHAT: whether fine-tuned models may be merged: a verdict in plain words, with the coefficient and what it will cost."""

# t tasks, one for each model · a coefficients · b resamples · p pairs of models · l layers

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from biascope import check_pictures, merge_pictures
from biascope.editing_result import places_inside, resampled_interval
from biascope.estimate import Estimate, proportion
from biascope.merge_result import Difference
from biascope.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRADES = ("merge", "merge with a loss", "do not merge", "undecided")
KEPT = 0.05  # a merge changes at most this share of any model's predictions,
LOST = 0.20  # one with a loss at most this;
WAY, HALF_WAY = 0.25, 0.50  # and it goes this share of the way from the base to the models: with a loss, and without
ALIKE = 0.01  # below this share of predictions that differ from the base, there is nothing to judge by
SURE = 0.95  # share of resamples that agree on the verdict, from which it counts as sure
BOX = (0.0, 1.0)  # where coefficients are searched
AGAINST = -0.05  # cosine from which two vectors count as pulling against each other in a layer
_DRAWN = 6  # maps at most


@dataclass(frozen=True, repr=False)
class MergeCheck(Result):
    """What merging fine-tuned models would do, from samples without labels.

    The *distance* of two models on samples is the share of these on which they predict different classes; where features are
    compared, the mean of 1 − cosine. Accuracies can differ by no more than the share of predictions that do.

    Attributes:
        base: The model that the others were tuned from.
        models: These.
        data: What each was looked at on.
        points: How many samples of it.
        compared: ``"classes"`` or ``"features"``.
        alphas: Coefficients of the sum of all task vectors; the first is 0, the base itself.
        apart: ``(task, coefficient)`` distance of the merged model from the fine-tuned one on the latter's own samples.
        resampled: The same on resampled samples.
        map_alphas: Coefficients along a side of the maps.
        terms: ``(pair, side, place, place)`` the two terms of the disentanglement error ξ; ``None`` without maps.
        low: ``(pair, resample)`` share of the search box with ξ below the threshold.
        threshold: Of ξ.
        effects: ``(task, model)`` how much a model's vector changes outputs on a task's samples, relative to the task's own.
        effect_cosines: Between the two changes.
        layers: Parameters are grouped by these.
        numbers: ``(layer,)`` how many numbers.
        base_norms: ``(layer,)`` of θ₀.
        task_norms: ``(layer, model)`` of the task vectors.
        changed: ``(layer, model)`` how many numbers a model changed.
        dots: ``(layer, pair)`` inner products of task vectors.
        shared: ``(layer, pair)`` numbers that both changed.
        conflicts: ``(layer, pair)`` those that they moved in opposite directions.
        control_data: What else was looked at; empty if nothing.
        control_points: How many samples of it.
        control: Distance from the base there of the merged model, then of each model alone.
    """

    base: str
    models: tuple[str, ...]
    data: tuple[str, ...]
    points: tuple[int, ...]
    compared: str
    alphas: np.ndarray
    apart: np.ndarray
    resampled: np.ndarray
    map_alphas: np.ndarray
    terms: np.ndarray | None
    low: np.ndarray | None
    threshold: float
    effects: np.ndarray
    effect_cosines: np.ndarray
    layers: tuple[str, ...]
    numbers: np.ndarray
    base_norms: np.ndarray
    task_norms: np.ndarray
    changed: np.ndarray
    dots: np.ndarray
    shared: np.ndarray
    conflicts: np.ndarray
    control_data: str = ""
    control_points: int = 0
    control: np.ndarray | None = None

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "alphas": ("coefficient",),
        "apart": ("model", "coefficient"),
        "resampled": ("model", "coefficient", "resample"),
        "map_alphas": ("place",),
        "terms": ("pair", "side", "place", "place"),
        "low": ("pair", "resample"),
        **dict.fromkeys(("effects", "effect_cosines"), ("model", "model")),
        **dict.fromkeys(("numbers", "base_norms"), ("layer",)),
        **dict.fromkeys(("task_norms", "changed"), ("layer", "model")),
        **dict.fromkeys(("dots", "shared", "conflicts"), ("layer", "pair")),
        "control": ("subject",),
    }

    @property
    def subject(self) -> str:  # noqa: D102
        return f"{_listed(self.models)} on {self.base}"

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs of models."""
        return list(itertools.combinations(range(len(self.models)), 2))

    @property
    def weights(self) -> Difference:
        """The task vectors against each other, layer by layer."""
        names = (
            "base",
            "models",
            "layers",
            "numbers",
            "base_norms",
            "task_norms",
            "changed",
            "dots",
            "shared",
            "conflicts",
        )
        return Difference(**{name: getattr(self, name) for name in names}, misfits=(), provenance=self.provenance)

    @property
    def alpha(self) -> Estimate:
        """The coefficient at which the merged model is nearest to all fine-tuned ones on average; over resampled samples."""
        draws = self.alphas[[_best(each) for each in self.resampled.mean(0).T]]
        return resampled_interval(float(self.alphas[self._chosen]), draws)

    @property
    def as_good(self) -> tuple[float, float]:
        """The coefficients around it at which the distance is within the noise of the least."""
        mean = self.resampled.mean(0)  # (a, b)
        worse = np.quantile(mean - mean[self._chosen], 0.05, axis=1) > 0
        low = high = self._chosen
        while low > 0 and not worse[low - 1]:
            low -= 1
        while high + 1 < len(self.alphas) and not worse[high + 1]:
            high += 1
        return float(self.alphas[low]), float(self.alphas[high])

    @property
    def losses(self) -> list[Estimate]:
        """For each model, its distance from the merged one at the suggested coefficient: the most accuracy that it can lose."""
        return [self._distance(task, self._chosen) for task in range(len(self.models))]

    @property
    def mean_loss(self) -> Estimate:
        """Their mean."""
        at = self._chosen
        return resampled_interval(float(self.apart[:, at].mean()), self.resampled[:, at].mean(0))

    @property
    def stakes(self) -> list[Estimate]:
        """For each model, its distance from the base: what there is to lose."""
        return [self._distance(task, 0) for task in range(len(self.models))]

    @property
    def way(self) -> Estimate:
        """Share of the distance from the base to the models, on average, that the merge covers."""
        at = self._chosen
        draws = 1 - self.resampled[:, at].mean(0) / np.maximum(self.resampled[:, 0].mean(0), 1e-9)
        return resampled_interval(1 - float(self.apart[:, at].mean() / max(self.apart[:, 0].mean(), 1e-9)), draws)

    @property
    def grade(self) -> str:
        """The verdict in short: one of :data:`GRADES`."""
        return graded(self.apart)

    @property
    def chances(self) -> dict[str, float]:
        """How often each verdict is given on resampled samples."""
        found = [graded(self.resampled[..., draw]) for draw in range(self.resampled.shape[2])]
        return {grade: found.count(grade) / len(found) for grade in GRADES}

    @property
    def xi(self) -> np.ndarray | None:
        """``ξ(α₁, α₂)`` of every pair, from 0 to 2."""
        return None if self.terms is None else np.asarray(self.terms.sum(1))

    @property
    def low_shares(self) -> dict[str, Estimate]:
        """Share of the coefficients in [0, 1]² with ξ below the threshold, by pair."""
        if self.xi is None or self.low is None:
            return {}
        shares = (self.xi[:, places_inside(self.map_alphas, BOX)] < self.threshold).mean(1)
        return {name: resampled_interval(shares[k], self.low[k]) for k, name in enumerate(self.weights.pair_names)}

    @property
    def _chosen(self) -> int:
        return _best(self.apart.mean(0))

    def _distance(self, task: int, at: int) -> Estimate:
        value = float(self.apart[task, at])
        if self.compared == "classes":  # an interval that knows that none of few is not none of all
            return _share(value, self.points[task])
        return resampled_interval(value, self.resampled[task, at])

    def headline(self) -> dict[str, Estimate]:  # noqa: D102
        what = "share of its predictions" if self.compared == "classes" else "cosine distance"
        numbers = {"suggested coefficient α": self.alpha}
        for name, loss, stake in zip(self.models, self.losses, self.stakes, strict=True):
            numbers[f"{name}, {what} that the merge changes"] = loss
            numbers[f"{name}, {what} that differ from the base"] = stake
        if self.apart[:, 0].any():
            numbers["share of the way from the base to the models"] = self.way
        numbers |= {
            f"{name}, share of [0, 1]² with ξ < {self.threshold:g}": each for name, each in self.low_shares.items()
        }
        numbers |= self.weights.headline()
        if self.control is not None:
            for name, share in zip(("the merge", *self.models), self.control, strict=True):
                known = _share(share, self.control_points) if self.compared == "classes" else Estimate(float(share))
                numbers[f"changed on {self.control_data} by {name}"] = known
        return numbers

    def sentence(self) -> str:  # noqa: D102
        return " ".join([self.verdict(), *self._remarks()])

    def verdict(self) -> str:
        """What to do, and what to expect of it."""
        if self.grade == "undecided":
            start = float(self.apart[:, 0].max())
            words = f"Undecided: on these samples {_listed(self.models)} do what {self.base} does (of one, {self._said(start)}), so "
            return f"{words}that they say nothing of a merge. Pass samples of the tasks that the models were tuned on."
        low, high = self.as_good
        alpha = f"α = {self.alpha.value:g}" + (f" ({low:g} to {high:g} does as well)" if low < high else "")
        kept = 1 - float(self.apart[:, self._chosen].mean())
        share = f"{_percent(kept)} of" if self.compared == "classes" else f"a mean cosine of {kept:.3f} with"
        expected = f"{share} what {_listed(self.models)} do on their own samples"
        first = f"{self.grade.capitalize()}: at {alpha} one model is expected to keep {expected}."
        if self.grade == "do not merge":
            first = f"Do not merge these: even the best coefficient, {alpha}, keeps {expected}."
        worst = int(self.apart[:, self._chosen].argmax())
        loss = self.losses[worst]
        cost = ", and it can lose as much accuracy at most" if self.compared == "classes" else ""
        suffers = f"{self.models[worst]} suffers most: {self._said(loss.value, loss.low, loss.high)}{cost}."
        return f"{first} {suffers} The merge goes {_percent(max(self.way.value, 0))} of the way from {self.base} to the models."

    def _said(self, value: float, *interval: float) -> str:
        """A distance in words."""
        if self.compared == "features":
            return f"its features change by a cosine distance of {value:.3f}"
        between = f" ({_percent(interval[0])} to {_percent(interval[1])})" if interval else ""
        return f"{_percent(value)}{between} of its predictions change"

    @property
    def _what(self) -> str:
        return "the predictions" if self.compared == "classes" else "the cosine of features"

    def _remarks(self) -> list[str]:
        """What else a user should know."""
        words, chances = [], self.chances
        other = max((grade for grade in GRADES if grade != self.grade), key=lambda grade: chances[grade])
        if chances[self.grade] < SURE and chances[other] > 0:
            words.append(
                f"So many samples do not settle it: resampled, the verdict is {other!r} in {_percent(chances[other])} of cases."
            )
        if self.grade != "undecided":
            words.append(self._clash())
        if self.control is not None:
            words.append(
                f"On {self.control_data}, outside the tasks, the merge changes {_percent(float(self.control[0]))} of {self._what}."
            )
        return words

    def _clash(self) -> str:
        """Where task vectors pull against each other."""
        found = self.weights
        chance = 3 / np.sqrt(np.maximum(self.numbers, 1))[:, None]  # beyond what so many random numbers would show
        against = np.where(found.cosines < np.minimum(AGAINST, -chance), found.cosines, np.nan)
        if not np.isfinite(against).any():
            return "In no layer do the task vectors point against each other."
        named = []
        for place in np.argsort(against, axis=None)[: min(3, int(np.isfinite(against).sum()))]:
            layer, pair = np.unravel_index(place, against.shape)
            whose = f", {found.pair_names[pair]}" if len(self.pairs) > 1 else ""
            named.append(f"{self.layers[layer]} (cosine −{-against[layer, pair]:.2f}{whose})")
        return f"Task vectors point against each other most in {_listed(named)}."

    def rows(self) -> list[dict[str, Any]]:
        """The layers as plain values."""
        return self.weights.rows()

    def document(self) -> dict[str, Any]:
        """Verdict, coefficient, and what was found of every model and pair, as plain values."""
        low, high = self.as_good
        control = () if self.control is None else zip(("merge", *self.models), map(float, self.control), strict=True)
        return {
            "grade": self.grade,
            "chances": self.chances,
            "alpha": {**self.alpha.as_dict(), "as good from": low, "as good to": high},
            "alphas": self.alphas.tolist(),
            "models": [
                {
                    "model": name,
                    "data": self.data[task],
                    "samples": self.points[task],
                    "predicted loss": self.losses[task].as_dict(),
                    "distance from the base": self.stakes[task].as_dict(),
                    "distances": self.apart[task].tolist(),
                    "changes of outputs by each": [_number(size) for size in self.effects[task]],
                    "cosines with its own": [_number(cosine) for cosine in self.effect_cosines[task]],
                }
                for task, name in enumerate(self.models)
            ],
            "low-ξ shares": {name: each.as_dict() for name, each in self.low_shares.items()},
            "control": dict(control),
        }

    def plots(self, dark: bool = False) -> dict[str, Figure]:  # noqa: D102
        pictures = {
            "The merged model against each fine-tuned one": check_pictures.agreement_figure(
                self.apart,
                self.resampled,
                self.alphas,
                self.models,
                chosen=self.alpha.value,
                as_good=self.as_good,
                unit="same predictions, %" if self.compared == "classes" else "agreement of features, %",
                dark=dark,
            )
        }
        if self.xi is not None:
            order = np.argsort([each.value for each in self.low_shares.values()])[:_DRAWN]
            several = len(self.pairs) > 1
            names = ("first", "second") if several else (self.models[0], self.models[1])
            maps = {self.weights.pair_names[k] if several else "ξ": self.xi[k] for k in order}
            pictures["Where two task vectors leave each other alone"] = merge_pictures.map_figure(
                maps, self.map_alphas, names, threshold=self.threshold, box=BOX, dark=dark
            )
        pictures["What a model does to the others' samples"] = check_pictures.effects_figure(
            self.effects, self.models, dark=dark
        )
        layers = self.weights.plots(dark)
        return pictures | {name: layers[name] for name in ("Cosine of task vectors", "Opposite moves")}


def graded(apart: np.ndarray) -> str:
    """The verdict on distances ``(task, coefficient)`` between merged and fine-tuned models, the first coefficient being 0.

    Example:
        >>> [graded(np.array([[0.6, end], [0.4, 0.01]])) for end in (0.02, 0.1, 0.5)], graded(np.array([[0.0, 0.3]]))
        (['merge', 'merge with a loss', 'do not merge'], 'undecided')
    """
    mean = apart.mean(0)
    at = _best(mean)
    worst, start = float(apart[:, at].max()), float(mean[0])
    if float(apart[:, 0].max()) < ALIKE:
        return "undecided"
    way = 1 - float(mean[at]) / start
    if worst > LOST or way < WAY:
        return "do not merge"
    return "merge" if worst <= KEPT and way >= HALF_WAY else "merge with a loss"


def _best(mean: np.ndarray) -> int:
    """The place of the least distance; of several, the middle one.

    Example:
        >>> _best(np.array([0.5, 0.1, 0.1, 0.1, 0.2]))
        2
    """
    places = np.flatnonzero(mean <= mean.min() + 1e-12)
    return int(places[(len(places) - 1) // 2])


def _share(value: float, samples: int) -> Estimate:
    found = proportion(value, samples).map_linear(0.01)
    return Estimate(found.value, found.standard_error, max(found.low, 0.0), min(found.high, 1.0))


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _percent(share: float) -> str:
    """A share in words.

    Example:
        >>> _percent(0.9731), _percent(0.0012), _percent(0.0)
        ('97.3 %', '0.1 %', '0 %')
    """
    return f"{100 * share:.1f} %".replace(".0 %", " %")


def _listed(words: tuple[str, ...] | list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
