"""Figure 4.6 and the text of 4.4.1: networks and their linearisations on CIFAR-2, by training size and along training."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from biascope.families.family import Family
from biascope.papers.linearized2021.shared import (
    PERCENT,
    SMALL,
    TITLES,
    Targets,
    any_start,
    images,
    learned_by_kernel,
    linearised,
    planned,
    recipe_of,
    start_of,
    training_run,
)
from biascope.results.estimate import over, over_ratios, paired_error
from biascope.results.figures import lines_figure
from biascope.results.finding import Finding, Tell, figure
from biascope.results.plan import Row
from biascope.results.shows import curves
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


def _tell_fitted(tell: Tell, title: str, percents: Sequence[float] | np.ndarray) -> None:
    """The training accuracy of the repetitions at the largest size."""
    label, key = f"{title}: training accuracy at the largest size", f"{snake(title)}_training_accuracy"
    tell(label, over(percents, within=PERCENT), "%", key=key)


def recipe_for(plan: Row, name: str) -> Recipe:
    """The chapter's recipe for the iterations or epochs that are the same at every size."""
    iterations = plan["iterations"][name]
    steps = iterations if isinstance(iterations, int) else None
    return dataclasses.replace(recipe_of(plan, plan["epochs"][name]), steps=steps)


# Parts of the test samples, whose accuracies tell how much a difference of models depends on the test samples.
_BLOCKS = 50


@dataclasses.dataclass(frozen=True)
class TrainingSizes(Targets):
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


def _by_weights(family: Family, course: TrainingSizes, sizes: Sequence[int], repeats: int, run: Run) -> Reached:
    """Trainings of the weights of a family's members."""
    trials = [[Trial(f"size {size}", repeat) for repeat in range(repeats)] for size in sizes]
    flat = [trial for row in trials for trial in row]
    outcomes = trained(family, course, flat, seed=0, run=training_run(family, run), label=family.name)

    def table(part: str) -> np.ndarray:
        """Of each size and repetition; the last number of a curve."""
        return np.array([[float(outcomes[trial][part].flatten()[-1]) for trial in row] for row in trials])

    blocks = np.stack([table(f"accuracy/{block}") for block in course.blocks], -1)
    return Reached(table("accuracy/test"), table("accuracy/train"), table("distance"), table("curve"), blocks)


def _by_kernel(
    name: str, family: Family, course: TrainingSizes, sizes: Sequence[int], repeats: int, run: Run
) -> Reached:
    """Linearisations of the same members, trained on the same batches by their kernel matrices."""
    starts = family.draw(repeats, seed=seed_of(0, "repeat", 0), run=training_run(family, run))
    point, rows = start_of(name, course.samples.shape), []
    for size in sizes:
        task = course.task(f"size {size}", (), 0, Run(device="cpu"))
        assert isinstance(task, Arrays)
        part = dataclasses.replace(task, splits={split: task.splits[split] for split in ("train", "test")})
        labels = {split: y[None] for split, (_, y) in part.splits.items()}
        weights = (starts.member(repeat).params for repeat in range(repeats))
        rows.append([learned_by_kernel(point, part, labels, course.how, run, at=params) for params in weights])

    def table(part: str) -> np.ndarray:
        return np.array([[getattr(model, part)[0] for model in row] for row in rows])

    right = table("right")  # (size, repeat, sample)
    blocks = np.stack([block.mean(-1) for block in np.array_split(right, len(course.blocks), -1)], -1)
    ends = np.array([[model.curves[0, -1] for model in row] for row in rows])  # short trainings have shorter curves
    return Reached(table("accuracy"), table("train_accuracy"), table("distance"), ends, blocks)


_LENGTHS: dict[type, str] = {
    int: "Equal iterations at every size, so that small sets are trained as long: {}. Epochs are those of the largest size.",
    tuple: "Equal epochs at every size, as in the authors' trainings: {}. Small sets have fewer iterations.",
}


def _tell_lengths(plan: Row, tell: Tell) -> None:
    """Which networks have one number of iterations for all sizes, and which have one for each."""
    for kind, sentence in _LENGTHS.items():
        titles = [TITLES[name] for name, iterations in plan["iterations"].items() if isinstance(iterations, kind)]
        if titles:
            tell.note(sentence.format(", ".join(titles)))


@figure(
    "4.6",
    title="The advantage of non-linear networks on CIFAR-2 against the number of training samples",
    plan=planned(
        ("sizes", "largest size", "test samples", "seeds", "iterations", "epochs", "linearisation trained by"),
        # With its kernel matrix a linearisation has the trajectory of its weights. For a large network this takes seconds instead of
        # minutes; for many samples the matrix is too large.
        smoke={
            "lenet": ((32, 64), 64, 320, 2, 4, 4, "weights"),
            "mlp": ((32, 160), 160, 320, 2, (2, 4), 2, "kernel matrix"),
        },
        laptop=dict.fromkeys(SMALL, ((250, 4000), 4000, 2000, 3, 800, 25, "weights")),
        paper={
            "mlp": ((500, 2000, 8000, 50_000), 50_000, 10_000, 20, 8000, 20, "weights"),
            "lenet": ((500, 2000, 8000, 50_000), 50_000, 10_000, 5, 8000, 20, "weights"),
            "resnet18": ((500, 8000), 8000, 5000, 3, (400, 6300), 100, "kernel matrix"),  # length as released
        },
        published=dict.fromkeys(TITLES, (None, 50_000, None, 5, None, 200, None)),
        ours={"seed": 0},
        alone=True,
    ),
    show=curves("curve", x="training samples", y="test accuracy, %"),
)
def figure_46(plan: Row, run: Run, tell: Tell) -> None:
    """Test accuracy and weight distance of networks and linearisations over training sizes."""
    for name in plan.networks:
        title, sizes, repeats = TITLES[name], plan["sizes"][name], plan["seeds"][name]
        samples = images("cifar10", (plan["largest size"][name], plan["test samples"][name]), run, halves=True)
        tell.settings[f"samples: {title}"] = samples.name
        family = any_start(name, samples.shape)
        course = TrainingSizes(samples, {}, recipe_for(plan, name))
        network = _by_weights(family, course, sizes, repeats, run)
        if plan["linearisation trained by"][name] == "kernel matrix":
            line = _by_kernel(name, family, course, sizes, repeats, run)
        else:
            line = _by_weights(linearised(family), course, sizes, repeats, run)
        for subject, model in ((title, network), (f"linearised {title}", line)):
            _tell_fitted(tell, subject, 100 * model.fitted[-1])
            tell.array(subject, np.stack([sizes, 100 * model.accuracy.mean(1)]), kind="curve")
            tell.array(subject, np.stack([sizes, model.distance.mean(1)]), kind="distance")
        of = tell.about(title)
        lead = 100 * (network.accuracy - line.accuracy)  # (size, repeat)
        parts = 100 * (network.blocks - line.blocks)  # (size, repeat, block)
        growth = over(lead[-1] - lead[0], shared=paired_error(parts[-1] - parts[0]))
        of("growth of the advantage", growth, "points")
        of("advantage at the largest size", over(lead[-1], shared=paired_error(parts[-1])), "points")
        slower = over_ratios(line.end[-1] / np.maximum(network.end[-1], 1e-12))
        of("final loss of the linearisation over its own", slower)
        of("distance at the largest over the smallest size", over_ratios(network.distance[-1] / network.distance[0]))
    _tell_lengths(plan, tell)
    tell.note(
        "Intervals join the spread over seeds and the error of finitely many test samples.",
        f"The latter is the spread of a difference over {_BLOCKS} blocks of test samples; in runs before 18 November 2026, a bound.",
        "All seeds of a size have the same training samples. How much the numbers depend on these is not in the intervals.",
    )


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


def course_441(plan: Row, name: str, size: int, repeat: int, run: Run, *, line: bool) -> Course441:
    """A network or its linearisation on CIFAR-2, followed through its training; kept in the run folder."""
    samples = images("cifar10", (size, plan["test samples"][name]), run, halves=True)
    family = start_of(name, samples.shape, repeat)
    family = linearised(family) if line else family
    chosen_run = training_run(family, run)
    recipe, count = recipe_of(plan, plan["epochs"][name]), plan["marks"]

    def work(key: str) -> Outcome:
        task = samples.to(chosen_run)
        total = recipe.total_steps(size)
        marks = sorted({max(1, total * (index + 1) // count) for index in range(count)})
        accuracies = []

        def observe(step: int, network: Any) -> None:
            accuracies.append(float(evaluation(network, task, "test", loss=recipe.loss, run=chosen_run).accuracy[0]))

        network = family.draw(1, seed=0, run=chosen_run).member(0)
        walk = fit(network, task, recipe, seed=repeat, run=chosen_run, observe=observe, observe_at=marks)
        losses = [walk.losses[start:end].mean() for start, end in itertools.pairwise([0, *marks])]
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
        marks=count,
    )
    course = next(trials.outcomes(["course"], work))
    return Course441(course["accuracy"].double().numpy(), course["loss"].double().numpy(), float(course["fitted"]))


def _drawn_courses(finding: Finding, dark: bool) -> Figure:
    """The largest training set alone: eight curves on one plot are unreadable."""
    sizes = {name: name.removesuffix(" samples").rsplit(", ", 1) for name in finding.curves_of("curve")}
    largest = max((size for _, size in sizes.values()), key=lambda size: int(size.replace(",", "")))
    shown = {sizes[name][0]: curve for name, curve in finding.curves_of("curve").items() if sizes[name][1] == largest}
    return lines_figure(shown, x=f"share of the epochs, {largest} training samples", y="test accuracy, %", dark=dark)


@figure(
    "4.4.1 text",
    title="Epochs of the best test accuracy and of one training loss on CIFAR-2",
    plan=planned(
        ("sizes", "largest size", "test samples", "epochs", "seeds"),
        smoke={"lenet": ((32, 64), 64, 48, 4, 2)},
        laptop=dict.fromkeys(SMALL, ((500, 4000), 4000, 4000, 40, 3)),
        paper=dict.fromkeys(SMALL, ((1000, 4000, 16_000), 16_000, 10_000, 50, 8)),
        published=dict.fromkeys(TITLES, (None, 50_000, None, 200, 5)),
        ours={"marks": 50},  # times at which test accuracy is taken, evenly spread over a training
        alone=True,
    ),
    show=_drawn_courses,
)
def peaks(plan: Row, run: Run, tell: Tell) -> None:
    """When networks and linearisations have their best test accuracy, and when they reach the loss that both of them reach."""
    for name in plan.networks:
        test, titles = plan["test samples"][name], (TITLES[name], f"linearised {TITLES[name]}")
        peak: list[list[float]] = []  # log₂ of the linearisation over the network, by size, of each seed
        loss: list[list[float]] = []
        for size in plan["sizes"][name]:
            pairs = [
                [course_441(plan, name, size, repeat, run, line=line) for line in (False, True)]
                for repeat in range(plan["seeds"][name])
            ]
            peak.append([float(np.log2(line.peak(test) / network.peak(test))) for network, line in pairs])
            both = [max(float(course.loss[-1]) for course in pair) for pair in pairs]  # the loss that both reach
            reached = [[course.reaches(end) for course in pair] for pair, end in zip(pairs, both, strict=True)]
            loss.append([float(np.log2(line / network)) for network, line in reached])
            for title, courses in zip(titles, zip(*pairs, strict=True), strict=True):
                accuracy = np.mean([course.accuracy for course in courses], 0)
                marks = np.arange(1, len(accuracy) + 1) / len(accuracy)
                tell.array(f"{title}, {size:,} samples", np.stack([marks, 100 * accuracy]), kind="curve")
                if size == plan["largest size"][name]:
                    _tell_fitted(tell, title, [100 * course.fitted for course in courses])
        of, key = tell.about(titles[0]), snake(titles[0])
        of(
            "how much nearer the best test accuracies are than the losses, in powers of 2",
            over((np.array(loss) - np.abs(peak)).mean(0)),
            key=f"{key}_peaks_nearer_than_losses",
        )
        for ratios, what, short in ((peak, "the best test accuracy", "peaks"), (loss, "one training loss", "losses")):
            of(
                f"epochs to {what}, linearisation over network, logarithm to base 2",
                over(np.mean(ratios, 0)),
                key=f"{key}_logarithm_of_the_ratio_of_{short}",
            )
    tell.note(
        "The best test accuracy is reached at the first of 50 times at which it is the largest but for one standard error of the test "
        "sample. The training loss is the larger of the two final ones, which both models reach.",
        "Means over training sizes.",
    )
