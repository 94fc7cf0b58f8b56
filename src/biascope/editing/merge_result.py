"""What a merge did to a checkpoint, and how checkpoints differ, layer by layer."""

# l layers · m models · p pairs of models

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import override

from biascope.results.draw import captioned
from biascope.results.estimate import SHARE, Estimate, Number
from biascope.results.result import Result
from biascope.results.story import Step, Story
from biascope.results.wording import listed, percent, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Merge(Result):
    """What adding task vectors to a checkpoint did to it.

    Attributes:
        base: The checkpoint that was edited.
        models: What was added, by name.
        coefficients: ``(model,)`` the weight of each.
        layers: Parameters are grouped by these.
        numbers: ``(layer,)`` how many numbers were up for editing.
        base_norms: ``(layer,)`` of θ₀.
        task_norms: ``(layer, model)`` of ``τ_i = θ_i − θ₀``.
        edit_norms: ``(layer,)`` of the change, ``Σ α_i τ_i`` for task arithmetic.
        error_norms: ``(layer,)`` by how much what was written misses that, since its type rounds.
        changed: ``(layer,)`` how many numbers the edit is not zero for.
        lost: ``(layer,)`` how many of these were written as they had been: rounded away.
        precision: The type that was written.
        remarks: What else a user should know.
        file: What was written.
        method: How they were merged.
        settings: The settings of the method in words; empty for task arithmetic with weights alone.
    """

    base: str
    models: tuple[str, ...]
    coefficients: np.ndarray
    layers: tuple[str, ...]
    numbers: np.ndarray
    base_norms: np.ndarray
    task_norms: np.ndarray
    edit_norms: np.ndarray
    error_norms: np.ndarray
    changed: np.ndarray
    lost: np.ndarray
    precision: str
    remarks: tuple[str, ...]
    file: str
    method: str = "task_arithmetic"
    settings: str = ""

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "coefficients": ("model",),
        "task_norms": ("layer", "model"),
        **dict.fromkeys(("numbers", "base_norms", "edit_norms", "error_norms", "changed", "lost"), ("layer",)),
    }

    @property
    @override
    def subject(self) -> str:
        return f"{self.base} {self._sum()}"

    @property
    def size(self) -> float:
        """Norm of the edit over that of the weights."""
        return _ratio(_length(self.edit_norms), _length(self.base_norms))

    @property
    def lost_share(self) -> float:
        """Share of the changed numbers that rounding set back to their old value."""
        return _ratio(float(self.lost.sum()), float(self.changed.sum()))

    @property
    def error(self) -> float:
        """Relative deviation of the written edit from the computed edit."""
        return _ratio(_length(self.error_norms), _length(self.edit_norms))

    @override
    def headline(self) -> dict[str, Number]:
        lost, away = Estimate.exact(self.error), Estimate.exact(self.lost_share)
        return {
            "edit_size": Estimate.exact(self.size).named("norm of the edit, relative to the weights"),
            "rounding_loss": lost.named("share of the edit lost to rounding", SHARE),
            "rounded_away": away.named("share of changed numbers rounded away", SHARE),
            **{
                f"task_vector_size:{name}": Estimate.exact(value).named(
                    f"norm of the task vector of {name}, relative to the weights"
                )
                for name, value in zip(
                    self.models, _lengths(self.task_norms) / (_length(self.base_norms) or np.nan), strict=True
                )
                if math.isfinite(value)
            },
        }

    @override
    def sentence(self) -> str:
        words = f"{self.base} {self._sum()} is written to {self.file}. The edit moves {short(float(self.numbers.sum()))} numbers by "
        words += f"{percent(self.size)} of their norm"
        relative = self.edit_norms / np.where(self.base_norms > 0, self.base_norms, np.inf)
        if len(self.layers) > 1 and relative.max(initial=0) > 0:
            most = int(relative.argmax())
            words += f", most in {self.layers[most]} ({percent(float(relative[most]))})"
        words += f". In {self.precision}, {percent(self.lost_share)} of the changed numbers were rounded away, and the "
        words += f"written edit deviates from the computed edit by {percent(self.error)} of its norm."
        return " ".join([words, *self.remarks])

    def _sum(self) -> str:
        if self.method != "task_arithmetic" or self.settings:
            return f"with {listed(self.models)} by {self.method}{f' ({self.settings})' if self.settings else ''}"
        signed = (f"{'−' if weight < 0 else '+'} {abs(weight):g}·({name} − base)" for name, weight in self._weighted())
        return " ".join(signed)

    def _weighted(self) -> list[tuple[str, float]]:
        return list(zip(self.models, map(float, self.coefficients), strict=True))

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Counts and norms of every layer, and the norm of each model's task vector there."""
        layers = [
            {
                "layer": layer,
                "numbers": int(self.numbers[index]),
                "norm": float(self.base_norms[index]),
                "edit": float(self.edit_norms[index]),
                "rounding": float(self.error_norms[index]),
                "changed": int(self.changed[index]),
                "rounded_away": int(self.lost[index]),
            }
            for index, layer in enumerate(self.layers)
        ]
        vectors = [
            {"layer": layer, "model": name, "task_vector": float(self.task_norms[index, k])}
            for index, layer in enumerate(self.layers)
            for k, name in enumerate(self.models)
        ]
        return {"layers": layers, "layers_by_model": vectors}

    @override
    def story(self) -> Story:
        return Story(
            meaning=(
                "The edit was written as computed, up to rounding. Numbers that were rounded away did not change, which "
                "matters if their share is large: then write in float32. Whether the merged model is good cannot be seen "
                "from weights."
            ),
            next_steps=[
                Step(
                    "Test the merged model with labels. Before the next merge, check it without labels.",
                    "biascope merge check BASE MODELS --data DATA",
                )
            ],
        )

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        norms = {name: self.task_norms[:, index] for index, name in enumerate(self.models)}
        curves = {"the edit": self.edit_norms, **norms, "lost to rounding": self.error_norms}
        reading = "Each dot is a layer, in the order of their names: the norm of each task vector, of the edit "
        figure = _dots_figure(
            {name: _above(values, self.base_norms) for name, values in curves.items()},
            self.layers,
            f"{reading}and of the rounding error, relative to the norm of the layer's weights.",
            dark,
            decades=True,
        )
        figure.axes[0].set(ylabel="norm / norm of the weights")
        return {"layer_movement": captioned("How far each layer moved", figure)}


# Of what is known of the task vectors of several models, layer by layer.
WEIGHT_AXES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("numbers", "base_norms"), ("layer",)),
    **dict.fromkeys(("task_norms", "changed"), ("layer", "model")),
    **dict.fromkeys(("dots", "shared", "conflicts"), ("layer", "pair")),
}


@dataclass(frozen=True, repr=False)
class Difference(Result):
    """How checkpoints differ from one of them, and how their differences agree.

    Attributes:
        base: The checkpoint that the others are compared with.
        models: The others.
        layers: Parameters are grouped by these; only what all checkpoints have in one shape.
        numbers: ``(layer,)`` how many numbers were compared.
        base_norms: ``(layer,)`` of θ₀.
        task_norms: ``(layer, model)`` of ``τ_i = θ_i − θ₀``.
        changed: ``(layer, model)`` how many numbers differ.
        dots: ``(layer, pair)`` inner products of task vectors, for the pairs of models in order.
        shared: ``(layer, pair)`` how many numbers both models changed.
        conflicts: ``(layer, pair)`` how many of these they moved in opposite directions.
        misfits: What could not be compared, and what else a user should know.
        between_updates: Whether all are adapters: "weights" are then the updates of the first.
    """

    base: str
    models: tuple[str, ...]
    layers: tuple[str, ...]
    numbers: np.ndarray
    base_norms: np.ndarray
    task_norms: np.ndarray
    changed: np.ndarray
    dots: np.ndarray
    shared: np.ndarray
    conflicts: np.ndarray
    misfits: tuple[str, ...]
    between_updates: bool = False

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = WEIGHT_AXES

    @property
    @override
    def subject(self) -> str:
        return f"{', '.join(self.models)} against {self.base}"

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs of models."""
        return list(itertools.combinations(range(len(self.models)), 2))

    @property
    def pair_names(self) -> list[str]:
        """Their names."""
        return [f"{self.models[one]} and {self.models[two]}" for one, two in self.pairs]

    @property
    def distances(self) -> np.ndarray:
        """``(model,)`` norm of each task vector over that of the weights."""
        return _lengths(self.task_norms) / (_length(self.base_norms) or np.nan)

    @property
    def cosines(self) -> np.ndarray:
        """``(layer, pair)`` between task vectors; nan where one is zero."""
        lengths = [self.task_norms[:, one] * self.task_norms[:, two] for one, two in self.pairs]
        cosines = self.dots / _known(np.array(lengths).reshape(len(self.pairs), len(self.layers)).T)
        return np.asarray(np.clip(cosines, -1.0, 1.0))

    @property
    def opposed(self) -> np.ndarray:
        """``(layer, pair)`` share of opposite changes among the numbers that both models changed."""
        return np.asarray(self.conflicts / _known(self.shared.astype(float)))

    def totals(self) -> dict[str, tuple[float, float]]:
        """For each pair, over all layers: the cosine and the share of opposite changes."""
        lengths = _lengths(self.task_norms)
        return {
            name: (
                _ratio(float(self.dots[:, k].sum()), float(lengths[one] * lengths[two]), math.nan),
                _ratio(float(self.conflicts[:, k].sum()), float(self.shared[:, k].sum()), math.nan),
            )
            for k, (name, (one, two)) in enumerate(zip(self.pair_names, self.pairs, strict=True))
        }

    @override
    def headline(self) -> dict[str, Number]:
        numbers = {
            f"task_vector_size:{name}": Estimate.exact(float(value)).named(
                f"norm of the update of {name} minus that of {self.base}, relative to the latter"
                if self.between_updates
                else f"norm of the task vector of {name}, relative to the weights"
            )
            for name, value in zip(self.models, self.distances, strict=True)
        }
        for name, (cosine, opposed) in self.totals().items():
            numbers[f"cosine:{name}"] = Estimate.exact(cosine).named(f"cosine of the task vectors of {name}")
            numbers[f"opposite_moves:{name}"] = Estimate.exact(opposed).named(
                f"share of opposite changes in {name}", SHARE
            )
        return {key: number for key, number in numbers.items() if math.isfinite(number.value)}

    @override
    def sentence(self) -> str:
        total = float(self.numbers.sum())
        parts = []
        for name, changed, distance in zip(self.models, self.changed.sum(0), self.distances, strict=True):
            how = f"differs from {self.base} in {percent(changed / total)} of {short(total)} numbers, by {percent(distance)}"
            same = f"has the same {short(total)} weights as {self.base}"
            if self.between_updates:
                how = f"has another update than {self.base}: the norm of their difference is {percent(distance)} of the latter's"
                same = f"has the same update as {self.base}, {short(total)} numbers"
            parts.append(f"{name} {(how if self.between_updates else f'{how} of their norm') if changed else same}")
        parts += [
            f"The task vectors of {name} have a cosine of {cosine:.2f} and opposite signs in {percent(opposed)} of the numbers that "
            "both changed (50 % by chance)"
            for name, (cosine, opposed) in self.totals().items()
            if math.isfinite(cosine)
        ]
        return ". ".join([*parts, *(misfit.rstrip(".") for misfit in self.misfits)]) + "."

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Counts and norms of every layer; of each model there; cosines and shares of each pair of models there."""
        cosines, opposed = self.cosines, self.opposed
        layers = [
            {"layer": layer, "numbers": int(self.numbers[index]), "norm": float(self.base_norms[index])}
            for index, layer in enumerate(self.layers)
        ]
        models = [
            {
                "layer": layer,
                "model": name,
                "task_vector": float(self.task_norms[index, k]),
                "changed": int(self.changed[index, k]),
            }
            for index, layer in enumerate(self.layers)
            for k, name in enumerate(self.models)
        ]
        pairs = [
            {
                "layer": layer,
                "first": self.models[one],
                "second": self.models[two],
                "cosine": finite_or_none(cosines[index, k]),
                "opposite_moves": finite_or_none(opposed[index, k]),
            }
            for index, layer in enumerate(self.layers)
            for k, (one, two) in enumerate(self.pairs)
        ]
        return {"layers": layers, "layers_by_model": models} | ({"layers_by_pair": pairs} if pairs else {})

    @override
    def story(self) -> Story:
        return Story(
            meaning=(
                "Large distances show which layers fine-tuning changed. Cosines below 0 and more than 50 % opposite changes "
                "show where two models pull against each other. Weights alone do not show whether predictions change: that "
                "needs samples."
            ),
            next_steps=[
                Step("Measure what a merge does to predictions.", "biascope merge check BASE MODELS --data DATA")
            ],
        )

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        distances = {name: _above(self.task_norms[:, k], self.base_norms) for k, name in enumerate(self.models)}
        reading = "Each dot is a layer, in the order of their names: the norm of the difference, relative to the norm of the layer."
        figure = _dots_figure(distances, self.layers, reading, dark, decades=True)
        figure.axes[0].set(ylabel="distance / norm of the weights")
        pictures = {"layer_distance": captioned("How far each layer is from the base", figure)}
        if self.pairs:
            pictures["cosines"] = captioned(
                "Cosine of task vectors",
                self._by_layer(
                    self.cosines,
                    (-1.0, 1.0),
                    "1: two models changed a layer in the same direction; −1: in opposite directions.",
                    dark,
                ),
            )
            reading = "Of the numbers that both models changed, the share with opposite signs; 0.5 by chance."
            pictures["opposite_moves"] = captioned(
                "Opposite moves", self._by_layer(self.opposed, (0.0, 1.0), reading, dark)
            )
        return pictures

    def _by_layer(self, values: np.ndarray, limits: tuple[float, float], reading: str, dark: bool) -> Figure:
        """Numbers for every layer and pair: dots while they are few, else a heat map."""
        from biascope.results import draw

        if len(self.pairs) <= len(draw.PALETTE[dark].lines):
            figure = _dots_figure(
                {name: values[:, k] for k, name in enumerate(self.pair_names)}, self.layers, reading, dark
            )
            low, high = np.nanmin(values, initial=sum(limits) / 2), np.nanmax(values, initial=sum(limits) / 2)
            figure.axes[0].set(
                ylim=(low - 0.05, high + 0.05), ylabel="cosine" if limits[0] < 0 else "share of opposite changes"
            )
            figure.axes[0].axhline(sum(limits) / 2, color=draw.PALETTE[dark].muted, linestyle=":", linewidth=1.2)
            return figure
        figure = draw.blank(1.2 + 0.18 * len(self.pairs), reading)
        axes = draw.panel(figure, dark)
        draw.heat(axes, values.T, dark, limits, bar=3, aspect="auto")
        axes.set_yticks(range(len(self.pairs)), [draw.plain(name, 24) for name in self.pair_names], fontsize=7)
        axes.set(xlabel="layer, in the order of their names")
        return figure


def _dots_figure(
    values: Mapping[str, np.ndarray], layers: Sequence[str], reading: str, dark: bool, decades: bool = False
) -> Figure:
    """Numbers by layer; lines would join layers of different kinds, which alternate in most networks."""
    from biascope.results import draw

    figure = draw.blank(3.4 + 0.15 * max(0, len(values) - 3), reading)
    axes = draw.panel(figure, dark)
    for (name, each), colour in zip(values.items(), draw.line_colours(len(values), dark), strict=True):
        axes.plot(np.arange(len(each)), each, "o", markersize=3, color=colour, label=draw.plain(name, 40))
    shown = np.unique(np.linspace(0, len(layers) - 1, 6).round().astype(int))
    words = [draw.plain(layers[index], 24) for index in shown]
    axes.set_xticks(shown, words, rotation=30, ha="right", rotation_mode="anchor", fontsize=8)
    if decades and any(
        np.nanmax(each, initial=0.0) > 0 for each in values.values()
    ):  # of equal checkpoints all are zero
        axes.set_yscale("log")
    if len(values) > 1:
        draw.legend_below(figure, axes, dark)
    return figure


def _length(norms: np.ndarray) -> float:
    """The norm of all layers from those of each."""
    return float(np.sqrt(np.square(norms).sum()))


def _lengths(norms: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(np.square(norms).sum(0)))


def _ratio(part: float, whole: float, otherwise: float = 0.0) -> float:
    return part / whole if whole else otherwise


def _known(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values, np.nan)


def _above(values: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Ratios for a logarithmic axis: nan where there are none."""
    return np.asarray(_known(values) / _known(base))


def finite_or_none(value: float) -> float | None:
    """A number for JSON: null if it is not finite."""
    return float(value) if math.isfinite(value) else None
