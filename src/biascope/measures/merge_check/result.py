"""WHAT: whether fine-tuned models can be merged: a verdict in plain words, with the coefficient and the expected loss."""

# t tasks, one for each model · a coefficients · b resamples · p pairs of models · l layers

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import override

from biascope.editing import pictures as merge_pictures
from biascope.editing.decay import cosines_with_base
from biascope.editing.merge_result import WEIGHT_AXES, Difference, finite_or_none
from biascope.editing.results import places_inside
from biascope.measures.merge_check import pictures as check_pictures
from biascope.measures.merge_check.forecast import forecast
from biascope.measures.merge_check.methods import compared_methods, recommendation_of, recommended
from biascope.measures.merge_check.verdict import (
    GRADES,
    best_place,
    comparison_of,
    graded,
    remarks_on,
    verdict_of,
)
from biascope.results.draw import captioned
from biascope.results.estimate import SHARE, Estimate, Number, proportion
from biascope.results.result import Result
from biascope.results.story import Badge, Sentence, Step, Story
from biascope.results.wording import listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BOX = (0.0, 1.0)  # where coefficients are searched
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
        compared: ``"classes"``, ``"features"``, or ``"words"``: the likeliest next word at each position of texts.
        alphas: Coefficients of the sum of all task vectors; the first is 0, the base itself.
        apart: ``(task, coefficient)`` distance of the merged model from the fine-tuned one on the latter's own samples.
        resampled: The same on resampled samples.
        map_alphas: Coefficients along a side of the maps.
        terms: ``(pair, side, place, place)`` the two terms of the disentanglement error ξ; ``None`` without maps.
        low: ``(pair, resample)`` share of the search box with ξ below the threshold.
        threshold: Threshold of ξ.
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
        base_dots: ``(layer, model)`` inner products of θ₀ and the task vectors; ``None`` in results of versions before 0.2.
        control_data: What else was looked at; empty if nothing.
        control_points: How many samples of it.
        control: Distance from the base there of the merged model, then of each model alone.
        expected: ``(task, coefficient)`` loss of accuracy to expect, if labels follow the fine-tuned model's own probabilities, or
            these tempered to its known accuracy; ``None`` where features are compared.
        expected_resampled: The same on resampled samples.
        rivals_expected: ``(task, rival)`` the same loss for what a merge replaces: the base, then each model alone.
        rivals_expected_resampled: The same on resampled samples.
        rivals_apart: ``(task, rival, coefficient)`` share of predictions on which merged model and rival differ.
        words: How many next words there are in the texts of each model; empty where no words are compared.
        divergence: ``(task, coefficient)`` Kullback-Leibler divergence of the merged model from the fine-tuned one, nats per token.
        divergence_resampled: The same on resampled texts.
        surprise: ``(task, coefficient)`` mean −log probability of the next word by the merged model, nats.
        surprise_resampled: The same on resampled texts.
        own_surprise: ``(task,)`` the same by the fine-tuned model.
        own_surprise_resampled: The same on resampled texts.
        tempered: The models whose accuracy was known for that.
        probed: The models whose predictions are those of a linear probe.
        notes: What else to tell of the models.
        methods: Merging methods that were compared, with the settings that were given.
        scales: For each, the setting that was chosen: ``"lambda=1.4"``, or nothing.
        methods_apart: ``(task, method)`` distance of the models that they make, as in ``apart``.
        methods_resampled: The same on resampled samples.
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
    base_dots: np.ndarray | None = None
    control_data: str = ""
    control_points: int = 0
    control: np.ndarray | None = None
    expected: np.ndarray | None = None
    expected_resampled: np.ndarray | None = None
    rivals_expected: np.ndarray | None = None
    rivals_expected_resampled: np.ndarray | None = None
    rivals_apart: np.ndarray | None = None
    words: tuple[int, ...] = ()
    divergence: np.ndarray | None = None
    divergence_resampled: np.ndarray | None = None
    surprise: np.ndarray | None = None
    surprise_resampled: np.ndarray | None = None
    own_surprise: np.ndarray | None = None
    own_surprise_resampled: np.ndarray | None = None
    tempered: tuple[str, ...] = ()
    probed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()
    methods_apart: np.ndarray | None = None
    methods_resampled: np.ndarray | None = None

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "alphas": ("coefficient",),
        "apart": ("model", "coefficient"),
        "expected": ("model", "coefficient"),
        "rivals_expected": ("model", "rival"),
        "rivals_expected_resampled": ("model", "rival", "resample"),
        "rivals_apart": ("model", "rival", "coefficient"),
        **dict.fromkeys(("resampled", "expected_resampled"), ("model", "coefficient", "resample")),
        "methods_apart": ("model", "method"),
        "methods_resampled": ("model", "method", "resample"),
        **dict.fromkeys(("divergence", "surprise"), ("model", "coefficient")),
        **dict.fromkeys(("divergence_resampled", "surprise_resampled"), ("model", "coefficient", "resample")),
        "own_surprise": ("model",),
        "own_surprise_resampled": ("model", "resample"),
        "map_alphas": ("place",),
        "terms": ("pair", "side", "place", "place"),
        "low": ("pair", "resample"),
        **dict.fromkeys(("effects", "effect_cosines"), ("model", "model")),
        **WEIGHT_AXES,
        "base_dots": ("layer", "model"),
        "control": ("subject",),
    }

    @property
    @override
    def subject(self) -> str:
        return f"{listed(self.models)} on {self.base}"

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs of models."""
        return self.weights.pairs

    @property
    def weights(self) -> Difference:
        """The task vectors against each other, layer by layer."""
        names = ("base", "models", "layers", *WEIGHT_AXES)
        return Difference(**{name: getattr(self, name) for name in names}, misfits=(), provenance=self.provenance)

    @property
    def base_cosines(self) -> dict[str, float]:
        """Cosine of each task vector with θ₀, over all layers; far below 0 where weight decay shrank the base."""
        if self.base_dots is None:
            return {}
        return dict(zip(self.models, cosines_with_base(self.base_norms, self.task_norms, self.base_dots), strict=True))

    @property
    def alpha(self) -> Estimate:
        """The coefficient at which the merged model is nearest to all fine-tuned ones on average; over resampled samples."""
        draws = self.alphas[[best_place(each) for each in self.resampled.mean(0).T]]
        return Estimate.from_draws(float(self.alphas[self._chosen]), draws)

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
        return Estimate.from_draws(float(self.apart[:, at].mean()), self.resampled[:, at].mean(0))

    @property
    def expected_losses(self) -> list[Estimate]:
        """For each model, the expected drop in accuracy at the suggested coefficient; empty if features are compared.

        Intervals hold the error of the samples and that of the forecast itself.
        """
        if self.expected is None or self.expected_resampled is None:
            return []
        at = self._chosen
        return [
            forecast(float(self.expected[task, at]), self.expected_resampled[task, at], most,
                     known=name in self.tempered, models=1)
            for task, (name, most) in enumerate(zip(self.models, self.losses, strict=True))
        ]  # fmt: skip

    @property
    def best_single(self) -> str | None:
        """The model that is expected to be the most accurate on average, if it alone is used for all tasks."""
        if self.rivals_expected is None:
            return None
        return self.models[int(self.rivals_expected[:, 1:].mean(0).argmin())]

    @property
    def gains(self) -> dict[str, Estimate]:
        """Expected accuracy of the merge minus that of the base, and minus that of the best single model used for all tasks.

        Each is a mean over the tasks, which count alike: ``"base"`` and ``"single"``. Empty if features are compared.
        Intervals are those of :func:`~biascope.measures.merge_check.forecast.forecast`.
        """
        losses, rivals, apart = self.expected, self.rivals_expected, self.rivals_apart
        if losses is None or rivals is None or apart is None:
            return {}
        draws, rival_draws = self.expected_resampled, self.rivals_expected_resampled
        assert draws is not None and rival_draws is not None  # noqa: PT018 - they come together
        at, single = self._chosen, 1 + self.models.index(str(self.best_single))
        return {
            role: forecast(
                float((rivals[:, place] - losses[:, at]).mean()),
                (rival_draws[:, place] - draws[:, at]).mean(0),
                proportion(float(apart[:, place, at].mean()), sum(self.points)),
                known=set(self.tempered) == set(self.models),
                models=len(self.models),
            )
            for role, place in (("base", 0), ("single", single))
        }

    @property
    def stakes(self) -> list[Estimate]:
        """For each model, its distance from the base."""
        return [self._distance(task, 0) for task in range(len(self.models))]

    @property
    def way(self) -> Estimate:
        """Share of the distance from the base to the models, on average, that the merge covers."""
        at = self._chosen
        draws = 1 - self.resampled[:, at].mean(0) / np.maximum(self.resampled[:, 0].mean(0), 1e-9)
        return Estimate.from_draws(1 - float(self.apart[:, at].mean() / max(self.apart[:, 0].mean(), 1e-9)), draws)

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
    def divergences(self) -> list[Estimate]:
        """For each language model, the divergence of the merge at the suggested coefficient from it, nats per token."""
        values, draws, at = self.divergence, self.divergence_resampled, self._chosen
        if values is None or draws is None:
            return []
        return [Estimate.from_draws(float(each[at]), drawn[at]) for each, drawn in zip(values, draws, strict=True)]

    @property
    def perplexities(self) -> list[tuple[Estimate, Estimate, Estimate]]:
        """For each language model, the perplexity of its texts by the base, by itself and by the merge."""
        by_merge, own = self.surprise, self.own_surprise
        if by_merge is None or own is None:
            return []
        draws, own_draws = self.surprise_resampled, self.own_surprise_resampled
        assert draws is not None and own_draws is not None  # noqa: PT018 - they come together
        return [
            (
                Estimate.from_draws(float(np.exp(by_merge[task, 0])), np.exp(draws[task, 0])),
                Estimate.from_draws(float(np.exp(own[task])), np.exp(own_draws[task])),
                Estimate.from_draws(float(np.exp(by_merge[task, self._chosen])), np.exp(draws[task, self._chosen])),
            )
            for task in range(len(self.models))
        ]

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
        return {name: Estimate.from_draws(shares[k], self.low[k]) for k, name in enumerate(self.weights.pair_names)}

    @property
    def _chosen(self) -> int:
        return best_place(self.apart.mean(0))

    def _distance(self, task: int, at: int) -> Estimate:
        value = float(self.apart[task, at])
        # An interval that knows that none of few is not none of all; for words, which come in texts, where resamples have none.
        if self.compared == "classes" or (self.compared == "words" and value in (0.0, 1.0)):
            return proportion(value, self.points[task])
        return Estimate.from_draws(value, self.resampled[task, at])

    def whose(self, model: str) -> str:
        """Whose predictions were compared: the model's, or those of its linear probe."""
        return "its linear probe's" if model in self.probed else "its"

    @override
    def headline(self) -> dict[str, Number]:
        classes, words = self.compared == "classes", self.compared == "words"
        unit = SHARE if classes or words else ""
        numbers = {"coefficient": self.alpha.named("suggested coefficient α")}
        likely = self.expected_losses
        for task, name in enumerate(self.models):
            what = f"share of {self.whose(name)} predictions" if classes else "cosine distance"
            what = "share of its next words" if words else what
            changed, differs = f"{name}, {what} that the merge changes", f"{name}, {what} that differ from the base"
            numbers[f"predicted_loss:{name}"] = self.losses[task].named(changed, unit)
            if likely:
                drop = (
                    f"{name}, expected drop in {self.whose(name)} accuracy"
                    if name in self.probed
                    else f"{name}, expected drop in accuracy"
                )
                numbers[f"expected_loss:{name}"] = likely[task].named(drop, SHARE)
            numbers[f"distance_from_base:{name}"] = self.stakes[task].named(differs, unit)
            if words:
                by_base, own, merge = self.perplexities[task]
                numbers[f"divergence:{name}"] = self.divergences[task].named(
                    f"divergence of the merge from {name} on its texts", "nats"
                )
                numbers[f"perplexity_of_base:{name}"] = by_base.named(
                    f"perplexity of the texts of {name} by {self.base}"
                )
                numbers[f"perplexity:{name}"] = own.named(f"perplexity of the texts of {name} by {name}")
                numbers[f"perplexity_of_merge:{name}"] = merge.named(f"perplexity of the texts of {name} by the merge")
        if self.apart[:, 0].any():
            numbers["way"] = self.way.named(
                "share of the distance from the base to the models that the merge covers", SHARE
            )
        rows = compared_methods(self) if self.methods else []
        for key, row in zip(("task_arithmetic", *self.methods), rows, strict=False):
            what = f"share of predictions that {row['method']} changes, mean over models"
            what = what if classes else f"cosine distance by {row['method']}, mean over models"
            numbers[f"method_change:{key}"] = row["mean_change"].named(what, unit)
        if (best := recommended(self)) is not None:
            numbers["method_lead"] = best[1].named("change by the second method minus that by the first", unit)
        for role, gain in self.gains.items():
            of = self.base if role == "base" else f"{self.best_single}, the best single model"
            read = " of linear probes" * bool(self.probed)
            what = f"expected accuracy{read} of the merge minus that of {of}, mean over tasks"
            numbers[f"gain_over_{role}"] = gain.named(what, SHARE)
        for name, each in self.low_shares.items():
            numbers[f"low_xi_share:{name}"] = each.named(f"{name}, share of [0, 1]² with ξ < {self.threshold:g}", SHARE)
        numbers |= self.weights.headline()
        for name, cosine in self.base_cosines.items():
            numbers[f"base_cosine:{name}"] = Estimate.exact(cosine).named(
                f"cosine of the task vector of {name} with {self.base}"
            )
        if self.control is not None:
            merge, *alone = (
                proportion(share, self.control_points) if classes else Estimate(float(share)) for share in self.control
            )
            on = f"change {'of linear probes ' if self.probed else ''}on {self.control_data} by"
            numbers["control_change"] = merge.named(f"{on} the merge", unit)
            for name, each in zip(self.models, alone, strict=True):
                numbers[f"control_change_alone:{name}"] = each.named(f"{on} {name}", unit)
        return numbers

    @override
    def sentence(self) -> str:
        return " ".join(
            filter(None, [verdict_of(self), comparison_of(self), recommendation_of(self), *remarks_on(self)])
        )

    def facts(self) -> dict[str, Any]:
        """The verdict, how often resampled samples give each, the coefficients that do as well, and what else to know."""
        return {
            "grade": self.grade,
            "chances": self.chances,
            "compared": self.compared,
            "as_good": list(self.as_good),
            "best_single": self.best_single,
            "tempered": list(self.tempered),
            "probed": list(self.probed),
            "remarks": remarks_on(self),
        }

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Models; distances at every coefficient; what each task vector does to the samples of each model; layers."""
        names, numbers = self.models, self.headline()
        models = [
            {
                "model": name,
                "data": self.data[task],
                "samples": self.points[task],
                "read_by": "linear probe" if name in self.probed else "model",
                "predicted_loss": numbers[f"predicted_loss:{name}"],
                "expected_loss": numbers.get(f"expected_loss:{name}"),
                "distance_from_base": numbers[f"distance_from_base:{name}"],
                **(
                    {
                        "next_words": self.words[task],
                        **{
                            key: numbers[f"{key}:{name}"]
                            for key in ("divergence", "perplexity_of_base", "perplexity", "perplexity_of_merge")
                        },
                    }
                    if self.compared == "words"
                    else {}
                ),
                "base_cosine": numbers.get(f"base_cosine:{name}"),
            }
            for task, name in enumerate(names)
        ]
        coefficients = [
            {"coefficient": float(alpha), "model": name, "distance": float(self.apart[task, place])}
            for place, alpha in enumerate(self.alphas)
            for task, name in enumerate(names)
        ]
        outputs = [
            {
                "samples_of": name,
                "task_vector_of": other,
                "change": finite_or_none(self.effects[task, place]),
                "cosine": finite_or_none(self.effect_cosines[task, place]),
            }
            for task, name in enumerate(names)
            for place, other in enumerate(names)
        ]
        rows = {"methods": compared_methods(self)} if self.methods else {}
        return {"models": models, **rows, "coefficients": coefficients, "outputs": outputs, **self.weights.tables()}

    @override
    def story(self) -> Story:
        return Story(
            shown_tables={
                "models": {
                    "model": "Model",
                    "data": "Samples of",
                    "samples": "Samples",
                    "read_by": "Predictions of",
                    "predicted_loss": "Changed by the merge, at most lost (95 % interval)",
                    "expected_loss": "Expected drop in accuracy",
                    "distance_from_base": "Different from the base",
                    **(
                        {
                            "divergence": "Divergence of the merge, nats a token",
                            "perplexity_of_base": "Perplexity by the base",
                            "perplexity": "Perplexity by the model",
                            "perplexity_of_merge": "Perplexity by the merge",
                        }
                        if self.compared == "words"
                        else {}
                    ),
                    "base_cosine": "Cosine of the task vector with the base",
                },
                **self._shown_methods(),
            },
            page_title=f"Can {self.subject} be merged?",
            badge=Badge(
                self.grade,
                {"merge": "good", "merge with a loss": "fair", "do not merge": "bad"}.get(self.grade, "open"),
            ),
            sentences=self._sentences(),
            meaning=self._meaning(),
            next_steps=self._next_steps(),
        )

    def _shown_methods(self) -> dict[str, dict[str, str]]:
        if not self.methods:
            return {}
        return {
            "methods": {
                "method": "Merging method",
                "mean_change": "Changed on average (95 % interval)",
                "worst_change": "Changed of the model that changes most",
                "way": "Share of the way from the base to the models",
            }
        }

    def _sentences(self) -> list[Sentence]:
        verdict, remarks = verdict_of(self), remarks_on(self)
        if self.grade == "undecided":
            return [Sentence(verdict, "agreement_by_coefficient"), *(Sentence(each, "models") for each in remarks)]
        # The verdict comes in sentences of their own: what to do, who changes most, how far the merge goes.
        parts = [f"{each.rstrip('.')}." for each in verdict.split(". ")]
        covered = [each for each in parts if each.startswith("The merge covers")]
        head, rest = parts[0], [each for each in parts[1:] if each not in covered]
        found = [Sentence(head, "agreement_by_coefficient")]
        found += [Sentence(" ".join(rest), "models")] if rest else []
        found += [Sentence(covered[0], "agreement_by_coefficient")] if covered else []
        found += [Sentence(comparison_of(self), "models")]
        found += [Sentence(recommendation_of(self), "methods")] if self.methods else []
        return found + [Sentence(each, "cosines" if "task vectors" in each else "models") for each in remarks]

    def _meaning(self) -> str:
        if self.compared == "words":
            return (
                "The verdict compares the likeliest next word by the merged model with that by each fine-tuned model, on the latter's "
                "own texts. The share of correct next words cannot drop by more than the share that changes. The verdict does not say "
                "whether the fine-tuned models were good, nor what whole texts the merged model would write."
            )
        words = (
            "The verdict compares the merged model with each fine-tuned model on that model's own samples, without labels. "
            "Accuracy cannot "
            "drop by more than the share of predictions that change, so this share is the worst case. It does not say whether the "
            "fine-tuned models were good, nor what the merged model does on data that were not passed."
        )
        if self.probed:
            words += (
                f" The predictions of {listed(self.probed)} are those of linear probes. The bound holds for the accuracy of these "
                "probes, not for a model with another last layer."
            )
        return words

    def _next_steps(self) -> list[Step]:
        if self.grade == "undecided":
            return [
                Step(
                    "Check again with samples of the tasks that the models were fine-tuned on.",
                    "biascope merge check BASE MODELS --data TASK",
                )
            ]
        if self.grade == "do not merge":
            return [
                Step("Look for the layers in which the models disagree.", "biascope merge diff BASE MODELS"),
                Step(
                    "Fine-tune in the tangent space instead: task vectors then interfere less.",
                    "biascope edit ENCODER --tunings linearised",
                ),
            ]
        words = "Write the merged model. Then test it with labels before you use it."
        return [Step(words, f"biascope merge apply BASE MODELS --weight {self.alpha.value:g} --out merged.safetensors")]

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        pictures = {
            "agreement_by_coefficient": captioned(
                "The merged model against each fine-tuned one",
                check_pictures.agreement_figure(
                    self.apart,
                    self.resampled,
                    self.alphas,
                    self.models,
                    chosen=self.alpha.value,
                    as_good=self.as_good,
                    unit="same next words, %"
                    if self.compared == "words"
                    else "agreement of features, %"
                    if self.compared == "features"
                    else f"same predictions{' of linear probes' * bool(self.probed)}, %",
                    dark=dark,
                ),
            )
        }
        if self.xi is not None:
            order = np.argsort([each.value for each in self.low_shares.values()])[:_DRAWN]
            several = len(self.pairs) > 1
            names = ("first", "second") if several else (self.models[0], self.models[1])
            maps = {self.weights.pair_names[k] if several else "ξ": self.xi[k] for k in order}
            pictures["interference"] = captioned(
                "Where two task vectors do not interfere",
                merge_pictures.map_figure(maps, self.map_alphas, names, threshold=self.threshold, box=BOX, dark=dark),
            )
        pictures["cross_effects"] = captioned(
            "Effect of each task vector on the other models' samples",
            check_pictures.effects_figure(self.effects, self.models, dark=dark),
        )
        layers = self.weights.plots(dark)
        return pictures | {name: layers[name] for name in ("cosines", "opposite_moves")}
