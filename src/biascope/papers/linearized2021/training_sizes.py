"""Figure 4.6 and the text of 4.4.1: networks and their linearisations on CIFAR-2, by training size and along training."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from biascope.families.family import Family
from biascope.papers.linearized2021.shared import (
    ON_IMAGES,
    PUBLISHED,
    RECIPE,
    TITLES,
    Targets,
    any_start,
    drawn_curves,
    images,
    learned_by_kernel,
    linearised,
    per_network,
    settings_of,
    start_of,
    training_run,
)
from biascope.papers.selection import chosen, old_figure
from biascope.results.estimate import Number, over, over_ratios, paired_error
from biascope.results.figures import lines_figure
from biascope.results.finding import Finding
from biascope.results.wording import snake
from biascope.runs.randomness import seed_of
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.task import Arrays, Task
from biascope.training.evaluation import evaluation
from biascope.training.fit import fit
from biascope.training.recipe import Recipe
from biascope.training.sweep import Trial, trained

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Growth:
    """How figure 4.6 is run for a network.

    Attributes:
        sizes: Training samples.
        test: Test samples.
        repeats: Trainings of each size.
        steps: Iterations, the same number for every size; or none.
        epochs: Epochs, the same number for every size, as in the authors' trainings; or none. One of the two is given.
        by_kernel: Whether the linearisation is trained by its kernel matrix. The trajectory is that of its weights. For a large network
            this takes seconds instead of minutes; for many samples the matrix is too large.
    """

    sizes: tuple[int, ...]
    test: int
    repeats: int
    steps: int | None = None
    epochs: int | None = None
    by_kernel: bool = False

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(
                f"One of steps and epochs must be given, got steps={self.steps} and epochs={self.epochs}. Pass epochs=100 alone."
            )

    @property
    def recipe(self) -> Recipe:
        """The chapter's recipe for so many iterations or epochs."""
        if self.epochs is None:
            return dataclasses.replace(RECIPE, steps=self.steps)
        return dataclasses.replace(RECIPE, epochs=self.epochs)

    @property
    def length(self) -> dict[str, Any]:
        """Iterations and epochs as settings: one number of iterations for all sizes, or one for each; epochs of the largest size."""
        largest = max(self.sizes)
        if self.epochs is None:
            return {"iterations": self.steps, "epochs": round((self.steps or 0) / RECIPE.steps_per_epoch(largest))}
        return {"iterations": [self.recipe.total_steps(size) for size in self.sizes], "epochs": self.epochs}


_SIZES: dict[str, dict[str, Growth]] = {
    "smoke": {
        "lenet": Growth((32, 64), 320, 2, steps=4),
        "mlp": Growth((32, 160), 320, 2, epochs=2, by_kernel=True),
    },
    "laptop": {name: Growth((250, 4000), 2000, 3, steps=800) for name in ("mlp", "lenet")},
    "paper": {
        "mlp": Growth((500, 2000, 8000, 50_000), 10_000, 20, steps=8000),
        "lenet": Growth((500, 2000, 8000, 50_000), 10_000, 5, steps=8000),
        "resnet18": Growth((500, 8000), 5000, 3, epochs=100, by_kernel=True),  # as in the released code
    },
}

# Parts of the test samples, whose accuracies tell how much a difference of models depends on the test samples.
_BLOCKS = 50


@dataclasses.dataclass(frozen=True)
class Sizes(Targets):
    """CIFAR-2 at several training sizes: a kind of trial is a size, a member a repetition from its own weights."""

    def task(self, kind: str, members: Sequence[int], seed: int, run: Run) -> Task:
        """The first so many training samples, and the test samples as a whole and in blocks."""
        size = int(kind.split()[-1])
        given = self.samples.to(run)
        (x, y), (tested, labels) = given.splits["train"], given.splits["test"]
        parts = zip(*(torch.tensor_split(each, len(self.blocks)) for each in (tested, labels)), strict=True)
        splits = {"train": (x[:size], y[:size]), "test": (tested, labels), **dict(zip(self.blocks, parts, strict=True))}
        return dataclasses.replace(given, splits=splits)

    @property
    def blocks(self) -> tuple[str, ...]:
        """The splits that are blocks of test samples."""
        return tuple(f"block {index}" for index in range(min(_BLOCKS, self.samples.sizes["test"])))

    @property
    def splits(self) -> tuple[str, ...]:
        """The blocks, too."""
        return ("test", "train", *self.blocks)


@dataclasses.dataclass(frozen=True)
class Reached:
    """What the trainings of a network or a linear model came to, each ``(size, repeat)``.

    Attributes:
        accuracy: On test samples.
        fitted: On training samples.
        distance: Of the weights from their start.
        end: Training loss of the last iterations.
        blocks: ``(size, repeat, block)`` accuracy on blocks of test samples.
    """

    accuracy: np.ndarray
    fitted: np.ndarray
    distance: np.ndarray
    end: np.ndarray
    blocks: np.ndarray


def _by_weights(family: Family, course: Sizes, plan: Growth, run: Run) -> Reached:
    """Trainings of the weights of a family's members."""
    trials = [[Trial(f"size {size}", repeat) for repeat in range(plan.repeats)] for size in plan.sizes]
    flat = [trial for row in trials for trial in row]
    found = trained(family, course, flat, seed=0, run=training_run(family, run), label=family.name)

    def table(part: str) -> np.ndarray:
        """Of each size and repetition; the last number of a curve."""
        return np.array([[float(found[trial][part].flatten()[-1]) for trial in row] for row in trials])

    blocks = np.stack([table(f"accuracy/{block}") for block in course.blocks], -1)
    return Reached(table("accuracy/test"), table("accuracy/train"), table("distance"), table("curve"), blocks)


def _by_kernel(name: str, family: Family, course: Sizes, plan: Growth, run: Run) -> Reached:
    """Linearisations of the same members, trained on the same batches by their kernel matrices."""
    starts = family.draw(plan.repeats, seed=seed_of(0, "repeat", 0), run=training_run(family, run))
    point, rows = start_of(name, course.samples.shape), []
    for size in plan.sizes:
        task = course.task(f"size {size}", (), 0, Run(device="cpu"))
        assert isinstance(task, Arrays)
        part = dataclasses.replace(task, splits={split: task.splits[split] for split in ("train", "test")})
        labels = {split: y[None] for split, (_, y) in part.splits.items()}
        rows.append(
            [
                learned_by_kernel(point, part, labels, course.how, run, at=starts.member(repeat).params)
                for repeat in range(plan.repeats)
            ]
        )

    def table(part: str) -> np.ndarray:
        return np.array([[getattr(each, part)[0] for each in row] for row in rows])

    right = table("right")  # (size, repeat, sample)
    blocks = np.stack([each.mean(-1) for each in np.array_split(right, len(course.blocks), -1)], -1)
    ends = np.array([[each.curves[0, -1] for each in row] for row in rows])  # short trainings have shorter curves
    return Reached(table("accuracy"), table("train_accuracy"), table("distance"), ends, blocks)


@old_figure(
    "4.6",
    networks=_SIZES,
    title="The advantage of non-linear networks on CIFAR-2 against the number of training samples",
    published={
        **PUBLISHED,
        **per_network(("mlp", "lenet", "resnet18"), activation=ON_IMAGES, largest_size=50_000, seeds=5, epochs=200),
    },
    show=lambda finding, dark: drawn_curves(finding, dark, "training samples", "test accuracy, %"),
)
def figure_46(effort: str, run: Run) -> Finding:
    """Test accuracy and weight distance of networks and linearisations over training sizes."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    words: dict[str, str] = {}
    plans = chosen(_SIZES[effort])
    for name, plan in plans.items():
        title, key, places = TITLES[name], snake(TITLES[name]), np.array(plan.sizes, float)
        samples = images("cifar10", (max(plan.sizes), plan.test), run, halves=True)
        words[name] = samples.name
        family = any_start(name, samples.shape)
        course = Sizes(samples, {}, plan.recipe)
        network = _by_weights(family, course, plan, run)
        line = (
            _by_kernel(name, family, course, plan, run)
            if plan.by_kernel
            else _by_weights(linearised(family), course, plan, run)
        )
        for subject, found in ((title, network), (f"linearised {title}", line)):
            statistics[f"{snake(subject)}_training_accuracy"] = over(100 * found.fitted[-1], within=(0.0, 100.0)).named(
                f"{subject}: training accuracy at the largest size", "%"
            )
            arrays[f"curve: {subject}"] = np.stack([places, 100 * found.accuracy.mean(1)])
            arrays[f"distance: {subject}"] = np.stack([places, found.distance.mean(1)])
        lead = 100 * (network.accuracy - line.accuracy)  # (size, repeat)
        parts = 100 * (network.blocks - line.blocks)  # (size, repeat, block)
        growth = over(lead[-1] - lead[0], shared=paired_error(parts[-1] - parts[0]))
        largest = over(lead[-1], shared=paired_error(parts[-1]))
        further = over_ratios(network.distance[-1] / network.distance[0])
        slower = over_ratios(line.end[-1] / np.maximum(network.end[-1], 1e-12))
        statistics |= {
            f"{key}_final_loss_of_the_linearisation_over_its_own": slower.named(
                f"{title}: final loss of the linearisation over its own"
            ),
            f"{key}_growth_of_the_advantage": growth.named(f"{title}: growth of the advantage", "points"),
            f"{key}_advantage_at_the_largest_size": largest.named(f"{title}: advantage at the largest size", "points"),
            f"{key}_distance_at_the_largest_over_the_smallest_size": further.named(
                f"{title}: distance at the largest over the smallest size"
            ),
        }
    settings: dict[str, Any] = {**settings_of(RECIPE, list(plans)), "seed": 0}
    for name, plan in plans.items():
        settings |= per_network(
            (name,),
            samples=words[name],
            sizes=list(plan.sizes),
            largest_size=max(plan.sizes),
            seeds=plan.repeats,
            **plan.length,
        )
    notes = (
        *_lengths(plans),
        "Intervals join the spread over seeds and the error of finitely many test samples.",
        f"The latter is the spread of a difference over {_BLOCKS} blocks of test samples; in runs before 18 November 2026, a bound.",
        "All seeds of a size have the same training samples. How much the numbers depend on these is not in the intervals.",
    )
    return Finding(statistics, arrays, settings, notes)


def _lengths(plans: dict[str, Growth]) -> list[str]:
    """Which networks have equal iterations at every size, and which equal epochs, in words."""
    by_steps, by_epochs = (
        ", ".join(TITLES[name] for name, plan in plans.items() if (plan.epochs is None) is equal)
        for equal in (True, False)
    )
    notes = []
    if by_steps:
        notes.append(
            f"Equal iterations at every size, so that small sets are trained as long: {by_steps}. Epochs are those of the largest size."
        )
    if by_epochs:
        notes.append(
            f"Equal epochs at every size, as in the authors' trainings: {by_epochs}. Small sets have fewer iterations."
        )
    return notes


# Training sizes, test samples, epochs, seeds.
_PEAKS: dict[str, dict[str, tuple[tuple[int, ...], int, int, int]]] = {
    "smoke": {"lenet": ((32, 64), 48, 4, 2)},
    "laptop": {"mlp": ((500, 4000), 4000, 40, 3), "lenet": ((500, 4000), 4000, 40, 3)},
    "paper": {"mlp": ((1000, 4000, 16_000), 10_000, 50, 8), "lenet": ((1000, 4000, 16_000), 10_000, 50, 8)},
}
_MARKS = 50  # times at which test accuracy is taken, evenly spread over a training


@dataclasses.dataclass(frozen=True)
class Course441:
    """One training of section 4.4.1: test accuracy and mean training loss by mark, and the training accuracy at its end."""

    accuracy: np.ndarray
    loss: np.ndarray
    fitted: float

    def peak(self, test: int) -> int:
        """The first mark, from 1, whose test accuracy is the best but for one standard error of the test sample."""
        best = float(self.accuracy.max())
        error = (best * (1 - best) / test) ** 0.5
        return int(np.argmax(self.accuracy >= best - error)) + 1

    def reaches(self, loss: float) -> int:
        """The first mark, from 1, up to which the training loss has fallen to a value; the last if it never has."""
        below = np.flatnonzero(self.loss <= loss)
        return int(below[0]) + 1 if len(below) else len(self.loss)


def course_441(name: str, size: int, repeat: int, line: bool, effort: str, run: Run) -> Course441:
    """A network or its linearisation on CIFAR-2, followed through its training; kept in the run folder."""
    _, test, epochs, _ = _PEAKS[effort][name]
    samples = images("cifar10", (size, test), run, halves=True)
    family = start_of(name, samples.shape, repeat)
    family = linearised(family) if line else family
    chosen_run = training_run(family, run)
    recipe = dataclasses.replace(RECIPE, epochs=epochs)

    def work(key: str) -> Outcome:
        task = samples.to(chosen_run)
        total = recipe.total_steps(size)
        marks = sorted({max(1, total * (index + 1) // _MARKS) for index in range(_MARKS)})
        accuracies = []

        def observe(step: int, network: Any) -> None:
            accuracies.append(float(evaluation(network, task, "test", loss=recipe.loss, run=chosen_run).accuracy[0]))

        start = family.draw(1, seed=0, run=chosen_run).member(0)
        walk = fit(start, task, recipe, seed=repeat, run=chosen_run, observe=observe, observe_at=marks)
        edges = [0, *marks]
        losses = [walk.losses[a:b].mean() for a, b in itertools.pairwise(edges)]
        fitted = evaluation(walk.networks, task, "train", loss=recipe.loss, run=chosen_run).accuracy[0]
        return {"accuracy": torch.tensor(accuracies), "loss": torch.stack(losses), "fitted": fitted.cpu()}

    trials = Trials(
        "course of a training",
        chosen_run,
        code=work,
        at=samples,
        family=family,
        samples=samples,
        recipe=recipe,
        repeat=repeat,
        marks=_MARKS,
    )
    found = next(trials.outcomes(["course"], work))
    return Course441(found["accuracy"].double().numpy(), found["loss"].double().numpy(), float(found["fitted"]))


@old_figure(
    "4.4.1 text",
    networks=_PEAKS,
    title="Epochs of the best test accuracy and of one training loss on CIFAR-2",
    show=lambda finding, dark: _drawn_courses(finding, dark),
    published={
        **PUBLISHED,
        **per_network(("mlp", "lenet", "resnet18"), activation=ON_IMAGES, largest_size=50_000, epochs=200, seeds=5),
    },
)
def peaks(effort: str, run: Run) -> Finding:
    """When networks and linearisations have their best test accuracy, and when they reach the loss that both of them reach."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    plans = chosen(_PEAKS[effort])
    settings: dict[str, Any] = {**settings_of(RECIPE, list(plans)), "marks": _MARKS}
    for name, (sizes, test, epochs, seeds) in plans.items():
        title, key = TITLES[name], snake(TITLES[name])
        ratios: dict[str, list[list[float]]] = {"peaks": [], "losses": []}  # by size, of each seed
        fitted: dict[str, list[float]] = {}
        for size in sizes:
            rows: dict[str, list[float]] = {"peaks": [], "losses": []}
            curves = []
            for repeat in range(seeds):
                network, line = (course_441(name, size, repeat, each, effort, run) for each in (False, True))
                both = max(float(network.loss[-1]), float(line.loss[-1]))
                rows["peaks"].append(float(np.log2(line.peak(test) / network.peak(test))))
                rows["losses"].append(float(np.log2(line.reaches(both) / network.reaches(both))))
                curves.append((network.accuracy, line.accuracy))
                if size == max(sizes):
                    fitted.setdefault(title, []).append(100 * network.fitted)
                    fitted.setdefault(f"linearised {title}", []).append(100 * line.fitted)
            for what, row in rows.items():
                ratios[what].append(row)
            marks = np.arange(1, len(curves[0][0]) + 1) / len(curves[0][0])
            for place, subject in enumerate((title, f"linearised {title}")):
                mean = np.mean([pair[place] for pair in curves], 0)
                arrays[f"curve: {subject}, {size:,} samples"] = np.stack([marks, 100 * mean])
        peak, loss = (np.array(ratios[what]) for what in ("peaks", "losses"))  # (size, seed)
        statistics |= {
            f"{key}_peaks_nearer_than_losses": over((loss - np.abs(peak)).mean(0)).named(
                f"{title}: how much nearer the best test accuracies are than the losses, in powers of 2"
            ),
            f"{key}_logarithm_of_the_ratio_of_peaks": over(peak.mean(0)).named(
                f"{title}: epochs to the best test accuracy, linearisation over network, logarithm to base 2"
            ),
            f"{key}_logarithm_of_the_ratio_of_losses": over(loss.mean(0)).named(
                f"{title}: epochs to one training loss, linearisation over network, logarithm to base 2"
            ),
            **{
                f"{snake(subject)}_training_accuracy": over(values, within=(0.0, 100.0)).named(
                    f"{subject}: training accuracy at the largest size", "%"
                )
                for subject, values in fitted.items()
            },
        }
        settings |= per_network(
            (name,), sizes=list(sizes), largest_size=max(sizes), test_samples=test, epochs=epochs, seeds=seeds
        )
    notes = (
        "The best test accuracy is reached at the first of 50 times at which it is the largest but for one standard error of the test "
        "sample. The training loss is the larger of the two final ones, which both models reach.",
        "Means over training sizes.",
    )
    return Finding(statistics, arrays, settings, notes)


def _drawn_courses(finding: Finding, dark: bool) -> Figure:
    """The largest training set alone: eight curves on one plot are unreadable."""
    sizes = {name: name.removesuffix(" samples").rsplit(", ", 1) for name in finding.curves_of("curve")}
    largest = max((size for _, size in sizes.values()), key=lambda size: int(size.replace(",", "")))
    curves = {sizes[name][0]: each for name, each in finding.curves_of("curve").items() if sizes[name][1] == largest}
    return lines_figure(curves, x=f"share of the epochs, {largest} training samples", y="test accuracy, %", dark=dark)
