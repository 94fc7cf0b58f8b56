"""Task addition: accuracy of one encoder on several tasks after their task vectors are added to it."""

# A coefficients · n test samples · B resamples

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from biascope.editing import pictures
from biascope.editing.accuracies import (
    SPLITS,
    EditedEncoder,
    require_resamples,
    resampled_accuracies,
    searched_coefficients,
)
from biascope.editing.examples import SmallEncoder
from biascope.editing.heads import Head, require_splits
from biascope.editing.outputs import METHODS, methods_of, require_vectors
from biascope.editing.results import PRETRAINED, AccuraciesAfterEdits, before_any_edit, error_of_samples
from biascope.editing.tuning import Vectors, require_heads
from biascope.families.network import Network
from biascope.results.draw import captioned
from biascope.results.estimate import Estimate, over
from biascope.results.registry import measurement
from biascope.results.story import Step, Story
from biascope.runs.identity import content_of
from biascope.runs.randomness import forked_rng
from biascope.runs.run import Run
from biascope.tasks.task import Arrays

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class TaskAddition(AccuraciesAfterEdits):
    """Accuracy of one encoder on all tasks whose vectors were added to it, between 0 and 1.

    Attributes:
        tasks: Their names.
        methods: The editing methods.
        samples: Test samples of each task.
        alphas: Coefficients that were tried.
        chosen: The one with the best normalised accuracy on validation samples.
        curves: Accuracy on validation samples at each coefficient.
        pretrained: Accuracy on test samples without any edit.
        single: With the task's own vector alone, at coefficient 1.
        merged: With the sum of all vectors, at the chosen coefficient.
        draws: On resampled test samples, means over tasks of ``pretrained``, ``single``, ``merged`` and ``merged/single``.
    """

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    samples: tuple[int, ...]
    alphas: np.ndarray
    chosen: np.ndarray
    curves: np.ndarray
    pretrained: np.ndarray
    single: np.ndarray
    merged: np.ndarray
    draws: np.ndarray

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "alphas": ("coefficient",),
        "chosen": ("repeat", "method"),
        "curves": ("repeat", "method", "coefficient", "task"),
        "pretrained": ("repeat", "task"),
        **dict.fromkeys(("single", "merged"), ("repeat", "method", "task")),
        "draws": ("repeat", "method", "statistic", "resample"),
    }
    shown: ClassVar[tuple[str, ...]] = ("absolute", "normalised", "single")

    @property
    def absolute(self) -> np.ndarray:
        """Mean accuracy of the merged encoder over tasks (repeat, method)."""
        return np.asarray(self.merged.mean(-1))

    @property
    def normalised(self) -> np.ndarray:
        """Mean over tasks of merged over single-task accuracy (repeat, method)."""
        return np.asarray((self.merged / np.maximum(self.single, 1e-12)).mean(-1))

    def table(self) -> dict[str, dict[str, Estimate]]:
        """Shares, by editing method: absolute and normalised accuracy, and that of single tasks.

        Intervals join the spread over repeats with that over test samples. Of one repeat, the spread is unknown; that of the
        pre-trained encoder, which no repeat changes, is over test samples alone.
        """
        rows = {"single": self.single.mean(-1), "absolute": self.absolute, "normalised": self.normalised}
        table = {PRETRAINED: {"absolute": before_any_edit(self.pretrained.mean(1), self.draws[:, 0, 0])}}
        for place, name in enumerate(self.methods):
            table[name] = {
                row: over(
                    each[:, place],
                    shared=error_of_samples(self.draws[:, place, 1 + number]),
                    within=(0.0, math.inf if row == "normalised" else 1.0),
                )
                for number, (row, each) in enumerate(rows.items())
            }
        return table

    @override
    def sentence(self) -> str:
        table = self.table()
        words = [
            f"{100 * table[name]['absolute'].value:.1f} % ({name}, {100 * table[name]['normalised'].value:.1f} % of single tasks)"
            for name in self.methods
        ]
        return (
            f"Adding the vectors of {len(self.tasks)} tasks to {self.subject} gives a mean accuracy of {', '.join(words)}. "
            f"Before, it was {100 * table[PRETRAINED]['absolute'].value:.1f} %. One coefficient was chosen on validation samples."
        )

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Accuracies of every seed, editing method and task."""
        return {"accuracies": self.accuracies(single=self.single, merged=self.merged)}

    @override
    def story(self) -> Story:
        return Story(
            meaning=(
                "The accuracy after addition shows how well several tasks fit into one model. Compare it with the "
                "single-task accuracy: the gap is the price of sharing one set of weights. The coefficient was chosen on "
                "validation samples, so other data may need another one."
            ),
            next_steps=[
                Step(
                    "Check models of your own for merging, without labels.",
                    "biascope merge check BASE MODELS --data DATA",
                )
            ],
        )

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        curves, chosen = self.mean_curves(self.curves), self.mean_chosen()
        return {
            "accuracy_by_coefficient": captioned(
                "Mean accuracy against the coefficient",
                pictures.coefficient_figure(curves, self.alphas, chosen, y="mean validation accuracy, %", dark=dark),
            ),
            "accuracy_by_task": captioned("Accuracy of each task after addition", self.task_picture(self.merged, dark)),
        }


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    with forked_rng(0):
        small = SmallEncoder.drawn({"left": 1.0, "middle": 0.0, "right": -1.0}, ends=4, samples=120)
        tasks = {
            name: Arrays(
                {"validation": (each[:60], torch.randint(3, (60,))), "test": (each[60:], torch.randint(3, (60,)))}
            )
            for name, each in small.samples.items()
        }
    return (small.encoder, small.heads, small.vectors(tasks), tasks), {"points": 40, "resamples": 40}


@measurement(
    title="Task addition",
    paper="task_arithmetic2023",
    result=TaskAddition,
    example=_example,
    command="biascope edit --what addition",
)
def task_addition(
    encoder: Network,
    heads: Mapping[str, Head],
    vectors: Vectors,
    tasks: Mapping[str, Arrays],
    *,
    methods: tuple[str, ...] | None = None,
    coefficients: int = 21,
    points: int | None = None,
    resamples: int = 400,
    name: str = "encoder",
    seed: int = 0,
    run: Run | None = None,
) -> TaskAddition:
    """Accuracy of one encoder on several tasks after their task vectors are added, with one coefficient for all.

    Definition:
        ``f(x; θ₀ + α Σ_t τ_t)`` with the head of each task. α is the value of ``0, 0.05, …, 1`` or of ``0.01, …, 0.04`` with the best
        normalised accuracy on validation samples. On test samples, *absolute accuracy* is the mean over tasks. *Normalised accuracy*
        is the mean of ``acc(merged)/acc(θ₀ + τ_t)``. The linearised encoder is measured in the same way, with the vectors of
        non-linear fine-tuning (*post-hoc*) or with those of linearised fine-tuning.

    Test samples are evaluated only with the chosen coefficient. A linearised encoder takes two forward-mode passes over each task's
    samples: along the sum and along the task's own vector. This holds for any number of tasks and coefficients.

    Args:
        encoder: Pre-trained encoder at θ₀, from inputs to features.
        heads: Heads of the tasks, by name.
        vectors: ``{"non-linear": {task: τ}, "linearised": {task: τ}}``, one of the two or both.
        tasks: Tasks with splits ``validation`` and ``test``, by name.
        methods: Editing methods out of ``"non-linear"``, ``"post-hoc"``, ``"linearised"``; by default all that the vectors allow.
        coefficients: Number of coefficients to try, equidistant from 0 to 1. Four more lie between 0 and the next one.
        points: Largest number of samples of each split; all by default.
        resamples: Resamples of the test samples, for intervals.
        name: Name of the encoder in results.
        seed: Random seed for the choice of samples.
        run: Folder (finished work is saved), device, precision.

    Returns:
        Accuracies by method and task; several of them, for vectors of several seeds, are joined by
        :func:`biascope.editing.results.repeated`.

    Raises:
        ValueError: If tasks, heads and vectors do not fit.

    Example:
        >>> from biascope.editing.vectors import TaskVector
        >>> encoder = Network.of(torch.nn.Linear(2, 2, bias=False)).with_params({"weight": torch.zeros(2, 2)})
        >>> ends = {"a": torch.tensor([[0.0, 0.0], [1.0, 0.0]]), "b": torch.tensor([[0.0, 0.0], [0.0, 1.0]])}
        >>> vectors = {task: TaskVector.between(encoder.params, {"weight": end}) for task, end in ends.items()}
        >>> samples = {"a": torch.tensor([[1.0, 0.0]]), "b": torch.tensor([[0.0, 1.0]])}
        >>> tasks = {task: Arrays(dict.fromkeys(("validation", "test"), (x, torch.tensor([1])))) for task, x in samples.items()}
        >>> heads = dict.fromkeys(tasks, Head(torch.eye(2), torch.zeros(2)))
        >>> result = task_addition(encoder, heads, {"non-linear": vectors}, tasks, run=Run(device="cpu"))
        >>> result.pretrained, result.absolute, result.chosen  # tasks on separate weights add up, and the first α > 0 will do
        (array([[0., 0.]]), array([[1., 1.]]), array([[0.01, 0.01]]))

    Reference:
        Ortiz-Jiménez (2023), thesis, section 6.3, equation (6.3), table 6.1, figure 6.3; appendix D.1.
    """
    run, ways = run or Run(), methods_of(vectors, methods)
    require_heads(tasks, heads)
    for task, data in tasks.items():
        require_splits(data, SPLITS, task)
    require_vectors(vectors, ways, tuple(tasks))
    if not tasks or coefficients < 2:
        raise ValueError(
            f"tasks and coefficients must be at least 1 and 2, got {len(tasks)} and {coefficients}. Pass coefficients=21."
        )
    require_resamples(resamples)
    alphas = searched_coefficients(coefficients)
    edited = EditedEncoder.on(tasks, encoder, heads, points=points, seed=seed, run=run)

    sums = {
        tuning: functools.reduce(lambda one, other: one + other, (vectors[tuning][task] for task in tasks))
        for tuning in {METHODS[way][1] for way in ways}
    }

    def right(way: str, task: str, split: str, rows: Tensor) -> np.ndarray:
        """Which samples are classified rightly, ``(G, n)``, by coefficients of the sum and of the task's own vector."""
        tuning = METHODS[way][1]
        return edited.right(way, task, split, [sums[tuning], vectors[tuning][task]], rows)

    zero = torch.zeros_like(alphas)
    tried = torch.cat([torch.stack([alphas, zero], 1), torch.tensor([[0.0, 1.0]], dtype=torch.float64)])
    curves, chosen, tested = [], [], []
    for way in ways:
        found = np.stack([right(way, task, "validation", tried).mean(1) for task in tasks], 1)  # (A + 1, T)
        best = float(alphas[int((found[:-1] / np.maximum(found[-1], 1e-12)).mean(1).argmax())])
        rows = torch.tensor([[0.0, 0.0], [best, 0.0], [0.0, 1.0]], dtype=torch.float64)
        tested.append([right(way, task, "test", rows) for task in tasks])
        curves.append(found[:-1])
        chosen.append(best)
    accuracy = np.array([[each.mean(1) for each in way] for way in tested])  # (method, task, edit)
    draws = np.array([_resampled(way, resamples, seed) for way in tested])  # (method, 4, B)
    return TaskAddition(
        tuple(tasks),
        ways,
        tuple(edited.samples[task, "test"].sizes["test"] for task in tasks),
        alphas.numpy(),
        np.array([chosen]),
        np.array([curves]),
        accuracy[:1, :, 0],
        accuracy[None, :, :, 2],
        accuracy[None, :, :, 1],
        draws[None],
        encoder=name,
        provenance={"encoder": content_of(encoder), "tasks": list(tasks), "methods": list(ways)},
    )


def _resampled(right: list[np.ndarray], resamples: int, seed: int) -> np.ndarray:
    """Pre-trained, single, merged and normalised accuracy on resampled test samples, ``(4, B)``."""
    total = np.zeros((4, resamples))
    for place, each in enumerate(right):
        start, merged, single = resampled_accuracies(each, place, resamples, seed)  # (B,) each
        total += np.stack([start, single, merged, merged / np.maximum(single, 1e-12)]) / len(right)
    return total
