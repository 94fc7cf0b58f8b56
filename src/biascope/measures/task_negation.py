"""Task negation: how much an encoder forgets a task after its task vector is subtracted, while a control task is kept."""

# A coefficients · n test samples · B resamples · T targets

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from biascope.editing import pictures
from biascope.editing.accuracies import SPLITS, EditedEncoder, require_resamples, resampled_accuracies
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
class TaskNegation(AccuraciesAfterEdits):
    """How much of each task is forgotten while a control task is kept; accuracies are between 0 and 1.

    Attributes:
        tasks: The targets.
        methods: The editing methods.
        control_task: The task that must be kept.
        kept: Share of the pre-trained control accuracy that must be kept on validation samples.
        alphas: Coefficients that were tried; they are subtracted.
        chosen: The one with the least target accuracy among those that keep the control task.
        target_curves: Target accuracy on validation samples.
        control_curves: Control accuracy on validation samples.
        pretrained: Target accuracy on test samples without any edit.
        pretrained_control: Control accuracy likewise.
        target: Target accuracy on test samples at the chosen coefficient.
        control: Control accuracy likewise.
        draws: On resampled test samples, means over tasks of ``pretrained``, ``target``, ``pretrained_control`` and ``control``.
    """

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    control_task: str
    kept: float
    alphas: np.ndarray
    chosen: np.ndarray
    target_curves: np.ndarray
    control_curves: np.ndarray
    pretrained: np.ndarray
    pretrained_control: np.ndarray
    target: np.ndarray
    control: np.ndarray
    draws: np.ndarray

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "alphas": ("coefficient",),
        "pretrained": ("repeat", "task"),
        "pretrained_control": ("repeat",),
        **dict.fromkeys(("target_curves", "control_curves"), ("repeat", "method", "coefficient", "task")),
        **dict.fromkeys(("chosen", "target", "control"), ("repeat", "method", "task")),
        "draws": ("repeat", "method", "statistic", "resample"),
    }
    shown: ClassVar[tuple[str, ...]] = ("target", "control")

    def table(self) -> dict[str, dict[str, Estimate]]:
        """Shares, by editing method: mean target and control accuracy, with intervals as in :meth:`TaskAddition.table`."""
        start = (self.pretrained.mean(1), self.pretrained_control)
        table = {
            PRETRAINED: {row: before_any_edit(start[i], self.draws[:, 0, 2 * i]) for i, row in enumerate(self.shown)}
        }
        for place, name in enumerate(self.methods):
            means = (self.target[:, place].mean(-1), self.control[:, place].mean(-1))
            table[name] = {
                row: over(means[i], shared=error_of_samples(self.draws[:, place, 2 * i + 1]), within=(0.0, 1.0))
                for i, row in enumerate(self.shown)
            }
        return table

    @override
    def sentence(self) -> str:
        table = self.table()
        words = [f"{100 * table[name]['target'].value:.1f} % ({name})" for name in self.methods]
        start = 100 * table[PRETRAINED]["target"].value
        return (
            f"Subtracting task vectors from {self.subject} lowers the mean accuracy on {len(self.tasks)} "
            f"{'task' if len(self.tasks) == 1 else 'tasks'} from {start:.1f} % to {', '.join(words)}. "
            f"At least {100 * self.kept:.0f} % of the validation accuracy on {self.control_task} is kept."
        )

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Accuracies of every seed, editing method and target."""
        return {"accuracies": self.accuracies(target=self.target, control=self.control)}

    @override
    def story(self) -> Story:
        return Story(
            meaning=(
                "A task is forgotten if its accuracy falls while that of the control task stays. Low accuracy does not mean "
                "that the knowledge is gone: a new linear probe may still find it."
            ),
            next_steps=[
                Step(
                    "Subtract a task vector of your own models.",
                    "biascope merge apply BASE MODEL=-0.5 --out forgotten.safetensors",
                )
            ],
        )

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        curves, control = self.mean_curves(self.target_curves), self.mean_curves(self.control_curves)
        reading = "Validation accuracy after task vectors are subtracted, averaged over targets. Dashed lines show the control task. "
        reading += "Rings mark the mean chosen coefficient."
        return {
            "accuracy_by_coefficient": captioned(
                "Accuracy against the coefficient",
                pictures.coefficient_figure(
                    curves,
                    self.alphas,
                    self.mean_chosen(),
                    dashed=control,
                    y="mean validation accuracy, %",
                    reading=reading,
                    dark=dark,
                ),
            ),
            "accuracy_by_task": captioned(
                "Accuracy of each target after negation", self.task_picture(self.target, dark)
            ),
        }


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    with forked_rng(0):
        small = SmallEncoder.drawn({"left": 1.0, "right": -1.0, "control": 0.0}, ends=3, samples=120)
        tasks = {}
        for name, each in small.samples.items():
            y = small.heads[name](small.encoder(each)).argmax(1)
            tasks[name] = Arrays({"validation": (each[:60], y[:60]), "test": (each[60:], y[60:])})
    vectors = small.vectors(("left", "right"))
    return (small.encoder, small.heads, vectors, tasks), {
        "control": "control",
        "points": 40,
        "resamples": 40,
        "kept": 0.5,
    }


@measurement(
    title="Task negation",
    paper="task_arithmetic2023",
    result=TaskNegation,
    example=_example,
    command="biascope edit --what negation",
)
def task_negation(
    encoder: Network,
    heads: Mapping[str, Head],
    vectors: Vectors,
    tasks: Mapping[str, Arrays],
    *,
    control: str,
    kept: float = 0.95,
    methods: tuple[str, ...] | None = None,
    coefficients: int = 21,
    points: int | None = None,
    resamples: int = 400,
    name: str = "encoder",
    seed: int = 0,
    run: Run | None = None,
) -> TaskNegation:
    """How much an encoder forgets each task after its task vector is subtracted, while a control task is kept.

    Definition:
        ``f(x; θ₀ − α τ_t)`` for each target t separately. α is one of ``0, 0.05, …, 1``. The accuracy on the control task's
        validation samples must stay at least 95 % of the pre-trained one. Among these α, the one with the lowest target accuracy on
        validation samples is chosen, and the smallest of equals. Target and control accuracy are then measured on test samples and
        averaged over targets.

    Args:
        encoder: Pre-trained encoder at θ₀, from inputs to features.
        heads: Heads of the tasks and of the control task, by name.
        vectors: ``{"non-linear": {task: τ}, "linearised": {task: τ}}``, one of the two or both.
        tasks: Tasks with splits ``validation`` and ``test``, by name, including the control task. All others are targets.
        control: Name of the control task; it needs no vector.
        kept: Share of the pre-trained control accuracy to keep.
        methods: Editing methods out of ``"non-linear"``, ``"post-hoc"``, ``"linearised"``; by default all that the vectors allow.
        coefficients: Number of coefficients to try, equidistant from 0 to 1.
        points: Largest number of samples of each split; all by default.
        resamples: Resamples of the test samples, for intervals.
        name: Name of the encoder in results.
        seed: Random seed for the choice of samples.
        run: Folder (finished work is saved), device, precision.

    Returns:
        Target and control accuracies by method and target; several of them, for vectors of several seeds, are joined by
        :func:`biascope.editing.results.repeated`.

    Raises:
        ValueError: If tasks, heads and vectors do not fit.

    Example:
        >>> from biascope.editing.vectors import TaskVector
        >>> encoder = Network.of(torch.nn.Linear(2, 1, bias=False)).with_params({"weight": torch.ones(1, 2)})
        >>> vector = TaskVector.between(encoder.params, {"weight": torch.tensor([[5.0, 1.0]])})  # the target is on the first input
        >>> samples = {"target": torch.tensor([[1.0, 0.0]]), "control": torch.tensor([[0.0, 1.0]])}
        >>> tasks = {task: Arrays(dict.fromkeys(("validation", "test"), (x, torch.tensor([1])))) for task, x in samples.items()}
        >>> heads = dict.fromkeys(tasks, Head(torch.tensor([[-1.0], [1.0]]), torch.zeros(2)))
        >>> result = task_negation(encoder, heads, {"non-linear": {"target": vector}}, tasks, control="control", run=Run(device="cpu"))
        >>> result.target.ravel(), result.control.ravel(), result.chosen.ravel()  # 1 − 4α changes sign after α = 0.25
        (array([0., 0.]), array([1., 1.]), array([0.25, 0.25]))

    Reference:
        Ortiz-Jiménez (2023), thesis, section 6.3, table 6.2; appendix D.1.
    """
    run, ways = run or Run(), methods_of(vectors, methods)
    targets = tuple(task for task in tasks if task != control)
    _check(heads, vectors, tasks, targets, control, ways, kept, coefficients)
    require_resamples(resamples)
    alphas = torch.linspace(0, 1, coefficients, dtype=torch.float64)
    edited = EditedEncoder.on(tasks, encoder, heads, points=points, seed=seed, run=run)

    def right(way: str, task: str, split: str, edits: list[str], rows: Tensor) -> np.ndarray:
        """Which samples of a task are classified rightly, ``(G, n)``, with vectors of some targets."""
        return edited.right(way, task, split, [vectors[METHODS[way][1]][each] for each in edits], rows)

    # On the control task all targets' vectors are looked at in one go: T forward-mode passes for a linearised encoder.
    each_alone = -(torch.eye(len(targets), dtype=torch.float64)[:, None] * alphas[:, None]).flatten(0, 1)  # (T·A, T)
    parts: dict[str, list[Any]] = {key: [] for key in ("curve", "control_curve", "chosen", "target", "control")}
    for way in ways:
        curve = np.stack([right(way, task, "validation", [task], -alphas[:, None]).mean(1) for task in targets], 1)
        whole = right(way, control, "validation", list(targets), each_alone).mean(1)
        control_curve = whole.reshape(len(targets), -1).T  # (A, T)
        allowed = control_curve >= kept * control_curve[0] - 1e-12
        best = np.where(allowed, curve, np.inf).argmin(0)  # (T,)
        chosen = alphas.numpy()[best]
        at = torch.from_numpy(chosen)
        rows = [torch.stack([at.new_zeros(1), -alpha[None]]) for alpha in at]
        tested = [right(way, task, "test", [task], row) for task, row in zip(targets, rows, strict=True)]
        kept_rows = torch.cat([torch.zeros(1, len(targets), dtype=at.dtype), -torch.diag(at)])
        found = (curve, control_curve, chosen, tested, right(way, control, "test", list(targets), kept_rows))
        for key, each in zip(parts, found, strict=True):
            parts[key].append(each)
    target = np.array([[each.mean(1) for each in way] for way in parts["target"]])  # (method, task, edit)
    retained = np.array([each.mean(1) for each in parts["control"]])  # (method, 1 + task)
    resampled = functools.partial(_resampled, resamples=resamples, seed=seed)
    draws = [
        [
            resampled([task[:1] for task in own]),
            resampled([task[1:] for task in own]),
            resampled([both[:1]]),
            resampled([both[1:]]),
        ]
        for own, both in zip(parts["target"], parts["control"], strict=True)
    ]
    return TaskNegation(
        targets,
        ways,
        control,
        kept,
        alphas.numpy(),
        np.array([parts["chosen"]]),
        np.array([parts["curve"]]),
        np.array([parts["control_curve"]]),
        target[:1, :, 0],
        retained[:1, 0],
        target[None, :, :, 1],
        retained[None, :, 1:],
        np.array([draws]),
        encoder=name,
        provenance={"encoder": content_of(encoder), "tasks": list(targets), "methods": list(ways)},
    )


def _check(
    heads: Mapping[str, Head],
    vectors: Vectors,
    tasks: Mapping[str, Arrays],
    targets: tuple[str, ...],
    control: str,
    ways: tuple[str, ...],
    kept: float,
    coefficients: int,
) -> None:
    if control not in tasks or not targets:
        raise ValueError(
            f"control must be one of the tasks, and another must remain as target, got {control!r} of {', '.join(tasks)}. "
            "Pass the name of a task."
        )
    require_heads(tasks, heads)
    for task, data in tasks.items():
        require_splits(data, SPLITS, task)
    require_vectors(vectors, ways, targets, who="Every target")
    if not 0 < kept <= 1 or coefficients < 2:
        raise ValueError(
            f"kept must be from 0 to 1, and coefficients must be at least 2, got {kept} and {coefficients}. "
            "Pass kept=0.95, coefficients=21."
        )


def _resampled(right: list[np.ndarray], resamples: int, seed: int) -> np.ndarray:
    """Mean accuracy over edits and tasks on resampled test samples, ``(B,)``."""
    total = np.zeros(resamples)
    for place, each in enumerate(right):
        total += resampled_accuracies(each, place, resamples, seed).mean(0) / len(right)
    return total
