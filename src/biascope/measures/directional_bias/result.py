"""WHAT: what a network learned along each direction of a basis, and how fast."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import override

from biascope.results.draw import captioned
from biascope.results.estimate import SHARE, Number, over
from biascope.results.result import Plane, Result
from biascope.results.story import Sentence, Step, Story, model_word

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEARNED, MISSED = 0.9, 0.6  # accuracies from which a direction counts as learned, and up to which as missed


@dataclass(frozen=True, repr=False)
class DirectionalBias(Result):
    """What a network learns along each direction of a basis.

    Attributes:
        noise: Standard deviations σ of the noise.
        samples: Sizes of the training set.
        input_shape: Shape of one input.
        basis: Name of the basis.
        labels: What each direction is.
        places: Index of each direction in the whole basis.
        threshold: Threshold of the loss, for the number of iterations.
        accuracy: Test accuracy, from 0 to 1; nan of a training that diverged.
        train_accuracy: Accuracy on the training set.
        iterations: First iteration whose loss was below the threshold; nan for never.
        losses: Training loss over windows of iterations; nan where a smaller training set has fewer.
        steps: The iteration that ends each window.
        distance: How far the weights moved, relative to their first norm.
        diverged: Whether the loss stopped being a number.
        spectrum: What the directions are ordered by, of these directions; empty if nothing.
    """

    noise: tuple[float, ...]
    samples: tuple[int, ...]
    input_shape: tuple[int, ...]
    basis: str
    labels: tuple[Any, ...]
    places: np.ndarray
    threshold: float
    accuracy: np.ndarray
    train_accuracy: np.ndarray
    iterations: np.ndarray
    losses: np.ndarray
    steps: np.ndarray
    distance: np.ndarray
    diverged: np.ndarray
    spectrum: np.ndarray

    _SWEPT: ClassVar[tuple[str, ...]] = ("noise level", "training size", "repeat", "direction")
    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "places": ("direction",),
        "accuracy": _SWEPT,
        "train_accuracy": _SWEPT,
        "iterations": _SWEPT,
        "losses": (*_SWEPT, "window"),
        "steps": ("training size", "window"),
        "distance": _SWEPT,
        "diverged": _SWEPT,
    }

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(tuple(label) for label in self.labels))  # JSON has lists

    @property
    def is_fourier(self) -> bool:
        """Whether every direction is a frequency (of one channel)."""
        return all(len(label) >= 3 and label[-3] in ("Re", "Im") for label in self.labels)

    @override
    def headline(self) -> dict[str, Number]:
        numbers = {}
        for i, j, words in self._settings():
            each = self._accuracy[i, j]  # (repeat, direction)
            each = each[~np.isnan(each).all(1)]
            if not len(each):
                continue
            case = f"noise {self.noise[i]:g}, {self.samples[j]} samples"
            known = ~np.isnan(each)
            mean = over(np.nanmean(each, 1), within=(0.0, 1.0))
            numbers[f"mean_test_accuracy:{case}"] = mean.named(f"mean test accuracy{words}", SHARE)
            for name, judged in (("learned", each >= LEARNED), ("missed", each <= MISSED)):
                share = over(judged.sum(1) / known.sum(1), within=(0.0, 1.0))
                numbers[f"directions_{name}:{case}"] = share.named(f"share of directions {name}{words}", SHARE)
        return numbers

    @property
    def _accuracy(self) -> np.ndarray:
        """Without the trainings that diverged: results saved by earlier versions have a number there."""
        return np.where(self.diverged, np.nan, self.accuracy)

    def _settings(self) -> list[tuple[int, int, str]]:
        """Every pair of noise and training size, and its description where there are several."""
        several = len(self.noise) > 1, len(self.samples) > 1
        found = []
        for i, noise in enumerate(self.noise):
            for j, samples in enumerate(self.samples):
                parts = [f"σ = {noise:g}"] if several[0] else []
                parts += [f"{samples:,} samples"] if several[1] else []
                found.append((i, j, f" ({', '.join(parts)})" if parts else ""))
        return found

    @override
    def sentence(self) -> str:
        each = _mean_over_repeats(self._accuracy[-1, -1])
        gone, total = int(self.diverged.sum()), self.diverged.size
        left_out = f" {gone} of {total} trainings diverged and are left out." if gone else ""
        where = f"(σ = {self.noise[-1]:g}, {self.samples[-1]:,} samples)"
        count, each = len(each), each[~np.isnan(each)]
        if not len(each):
            return f"No training of {self.subject} stayed finite {where}.{left_out}"
        low, high = 100 * each.min(), 100 * each.max()
        spread = f"ranges from {low:.0f} to {high:.0f} %" if high - low >= 1 else f"is {high:.0f} %"
        learned, missed = int((each >= LEARNED).sum()), int((each <= MISSED).sum())
        return (
            f"{self.subject} learns {learned} of {count} directions and misses {missed}. Test accuracy {spread} "
            f"{where}.{left_out}"
        )

    @override
    def planes(self) -> dict[str, Plane]:
        if not self.is_fourier or len(self.input_shape) < 2:
            return {}
        from biascope.results.figures import completed

        side = (int(self.input_shape[-2]), int(self.input_shape[-1]))

        def plane(values: np.ndarray, unit: str, low: float | None, high: float | None) -> Plane:
            repeats = len(values)
            known = ~np.isnan(values).any(0)  # never below the threshold in one repeat: no number
            mean = np.where(known, values.mean(0), np.nan)
            error = values.std(0, ddof=1) / math.sqrt(repeats) if repeats > 1 else None
            spread = None if error is None else completed(self.labels, error, side)
            return Plane(completed(self.labels, mean, side), unit, low, high, spread)

        found = {}
        for i, j, words in self._settings():
            found[f"test accuracy{words}"] = plane(100 * self._accuracy[i, j], "%", 50.0, 100.0)
            if not np.isnan(self.iterations[i, j]).all():
                name = f"iterations to a loss of {self.threshold:g}{words}"
                found[name] = plane(self.iterations[i, j], "iterations", None, None)
        return found

    @override
    def story(self) -> Story:
        return Story(
            page_title=self._page_title(),
            sentences=self._sentences(),
            meaning=self._meaning(),
            next_steps=self._next_steps(),
        )

    def _page_title(self) -> str:
        what = "frequencies" if self.is_fourier else "directions"
        return f"Directional bias of {self.subject}: which {what} it learns"

    def _sentences(self) -> list[Sentence]:
        shown_by = "frequency_plane" if self.planes() else "accuracy_by_direction"
        found = [Sentence(self.sentence(), shown_by)]
        each = _mean_over_repeats(self._accuracy[-1, -1])
        known = np.flatnonzero(~np.isnan(each))
        if len(known) > 1 and each[known].max() > each[known].min():
            best, worst = known[each[known].argmax()], known[each[known].argmin()]
            found.append(
                Sentence(
                    f"It learns {self._direction(best)} best ({100 * each[best]:.0f} % test accuracy) and {self._direction(worst)} "
                    f"worst "
                    f"({100 * each[worst]:.0f} %; guessing gives 50 %).",
                    shown_by,
                )
            )
        speed = _mean_over_repeats(self.iterations[-1, -1])
        reached = ~np.isnan(speed)
        if reached.any():
            found.append(
                Sentence(
                    f"{int(reached.sum())} of {len(speed)} directions reach a training loss of {self.threshold:g}, the fastest after "
                    f"{speed[reached].min():.0f} iterations and the slowest after {speed[reached].max():.0f}.",
                    "training_loss",
                )
            )
        return found

    def _meaning(self) -> str:
        words = (
            "Every direction is the same problem, rotated: a linear classifier along it solves it perfectly. So differences in "
            "accuracy "
            "are the network's preference alone. A direction counts as learned from 90 % test accuracy and as missed up to 60 %. "
            "Directions near 50 % are as good as invisible to it at this noise and sample size. "
            "With more samples or less noise, more directions are learned."
        )
        return words if self.repeats > 1 else f"{words} One repeat shows no spread over initial weights."

    def _next_steps(self) -> list[Step]:
        model = model_word(self.subject)
        found = (
            []
            if self.repeats > 1
            else [
                Step(
                    "Repeat the trainings, to see the spread over initial weights.",
                    f"biascope measure directional_bias {model} --repeats 3",
                )
            ]
        )
        found.append(
            Step(
                "Compare with the directions that the untrained network prefers. They should agree.",
                f"biascope scan {model}",
            )
        )
        return found

    def _direction(self, place: int) -> str:
        """A direction in words."""
        if not self.is_fourier:
            return f"direction {self.places[place]}"
        sides = (int(side) for side in self.input_shape[-2:])
        label = self.labels[place][-2:]
        down, across = ((int(part) + side // 2) % side - side // 2 for part, side in zip(label, sides, strict=True))
        if not down and not across:
            return "the constant direction (frequency 0)"
        return f"the wave of {abs(down)} cycles down and {abs(across)} across"

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        from biascope.results import figures as frequency_plane

        pictures: dict[str, Figure] = {}
        planes = self.planes()
        if planes:
            pictures["frequency_plane"] = captioned(
                "Learning at each frequency", frequency_plane.plane_figure(planes, dark=dark)
            )
        else:
            spectra = {"eigenvalues": self.spectrum} if self.spectrum.size > 1 and len(self.places) > 1 else None
            curves = {}
            for i, j, words in self._settings():
                error = self._accuracy[i, j].std(0, ddof=1) / math.sqrt(self.repeats) if self.repeats > 1 else None
                curves[words.strip(" ()") or "test accuracy"] = (
                    self.places,
                    100 * _mean_over_repeats(self._accuracy[i, j]),
                    None if error is None else 100 * error,
                )
            # Eigenvalues are drawn by place: those of directions that were left out are not known here.
            shown = spectra if spectra and list(self.places) == list(range(len(self.places))) else None
            pictures["accuracy_by_direction"] = captioned(
                "Test accuracy along each direction",
                frequency_plane.against_index_figure(
                    curves, shown, index=f"index in the {self.basis} basis", dark=dark
                ),
            )
        pictures["training_loss"] = captioned("Training loss along early and late directions", self._loss_curves(dark))
        return pictures

    def _loss_curves(self, dark: bool) -> Figure:
        from biascope.results.figures import lines_figure

        order = (
            np.argsort(-_mean_over_repeats(self._accuracy[-1, -1]), kind="stable")
            if self.is_fourier
            else np.arange(len(self.places))
        )
        chosen = sorted({round(float(k)) for k in np.linspace(0, len(order) - 1, min(5, len(order)))})
        curves = {}
        for k in chosen:
            direction = int(order[k])
            label = self.labels[direction]
            name = f"direction {self.places[direction]}"
            if self.is_fourier:
                sides = (int(side) for side in self.input_shape[-2:])
                cycles = [(part + side // 2) % side - side // 2 for part, side in zip(label[-2:], sides, strict=True)]
                name = f"frequency ({cycles[0]}, {cycles[1]})".replace("-", "−")
            curves[name] = (self.steps[-1], self.losses[-1, -1, :, direction].mean(0))
        reading = "Each curve is the training loss along one direction, the best learned first. Near 0.69, nothing is learned."
        low = bool(np.nanmin([np.nanmin(values, initial=1.0) for _, values in curves.values()]) < 0.1)
        return lines_figure(curves, x="iteration", y="training loss", log_y=low, reading=reading, dark=dark)

    @property
    def repeats(self) -> int:
        """How many networks were trained along each direction."""
        return int(self.accuracy.shape[2])


def _mean_over_repeats(values: np.ndarray) -> np.ndarray:
    """Mean over the first axis of what is a number; nan where nothing is."""
    known = ~np.isnan(values)
    return np.asarray(np.where(known.any(0), np.where(known, values, 0).sum(0) / np.maximum(known.sum(0), 1), np.nan))
