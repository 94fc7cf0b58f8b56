"""Weight disentanglement: whether two task vectors, added to one encoder, interfere with each other's task."""

# A coefficients along a side · n samples of a task · B resamples

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from biascope.editing import pictures
from biascope.editing.accuracies import resample_counts
from biascope.editing.examples import SmallEncoder
from biascope.editing.heads import Head
from biascope.editing.outputs import METHODS, edited_outputs, methods_of, require_repeatable, require_vectors, sampled
from biascope.editing.results import EditingResult, places_inside
from biascope.editing.tuning import Vectors, require_heads
from biascope.editing.vectors import TaskVector
from biascope.families.network import Network
from biascope.results.draw import captioned
from biascope.results.estimate import SHARE, Estimate, Number
from biascope.results.registry import measurement
from biascope.results.story import Step, Story
from biascope.runs.identity import content_of
from biascope.runs.randomness import forked_rng, seed_of
from biascope.runs.run import Run
from biascope.tasks.task import Arrays

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DISTANCES = {"disagreement": "classes", "total variation": "probabilities"}


@dataclass(frozen=True, repr=False)
class Disentanglement(EditingResult):
    """The disentanglement error of two task vectors over a grid of coefficients; arrays are by editing method.

    Attributes:
        tasks: The two.
        methods: Editing methods: non-linear, post-hoc, linearised.
        points: Samples of each task.
        alphas: Coefficients along each side of the grid.
        box: Where coefficients are searched.
        threshold: Error below which a place of the grid counts as disentangled.
        distance: Between outputs.
        terms: The two terms of ξ: what one vector does to the other's task.
        terms_error: Their standard errors over points.
        area: On resampled points, the share of the grid with ξ below the threshold.
        box_error: On resampled points, the mean ξ in the box.
        control: Distance to the pre-trained outputs on samples outside both tasks; ``None`` if there were none.
        control_box: On resampled points, its mean in the box.
    """

    tasks: tuple[str, str]
    methods: tuple[str, ...]
    points: tuple[int, int]
    alphas: np.ndarray
    box: tuple[float, float]
    threshold: float
    distance: str
    terms: np.ndarray
    terms_error: np.ndarray
    area: np.ndarray
    box_error: np.ndarray
    control: np.ndarray | None = None
    control_box: np.ndarray | None = None

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "alphas": ("coefficient",),
        "terms": ("method", "task", "coefficient", "coefficient"),
        "terms_error": ("method", "task", "coefficient", "coefficient"),
        "area": ("method", "resample"),
        "box_error": ("method", "resample"),
        "control": ("method", "coefficient", "coefficient"),
        "control_box": ("method", "resample"),
    }

    @property
    def xi(self) -> np.ndarray:
        """``ξ(α₁, α₂)`` (method, coefficient of the first task, of the second), from 0 to 2."""
        return np.asarray(self.terms.sum(1))

    @property
    def inside(self) -> np.ndarray:
        """Which places of the grid lie in the search box."""
        return places_inside(self.alphas, self.box)

    @property
    def areas(self) -> dict[str, Estimate]:
        """Share of the grid with ξ below the threshold, by editing method."""
        low = (self.xi < self.threshold).mean((1, 2))
        return {name: Estimate.from_draws(low[i], self.area[i]) for i, name in enumerate(self.methods)}

    @property
    def box_errors(self) -> dict[str, Estimate]:
        """Mean ξ in the search box, by editing method."""
        mean = self.xi[:, self.inside].mean(1)
        return {name: Estimate.from_draws(mean[i], self.box_error[i]) for i, name in enumerate(self.methods)}

    @property
    def control_changes(self) -> dict[str, Estimate]:
        """Mean distance to the pre-trained outputs in the search box, outside both tasks, by editing method; empty without control."""
        if self.control is None or self.control_box is None:
            return {}
        moved = self.control[:, self.inside].mean(1)
        return {name: Estimate.from_draws(moved[i], self.control_box[i]) for i, name in enumerate(self.methods)}

    @override
    def headline(self) -> dict[str, Number]:
        low, high = self.box
        grid = f"share of the grid with ξ < {self.threshold:g}"
        unit = SHARE if self.distance == "disagreement" else ""  # of predictions
        numbers = {
            f"mean_xi:{name}": each.named(f"mean ξ for α in [{low:g}, {high:g}]², {name}")
            for name, each in self.box_errors.items()
        }
        numbers |= {f"low_xi_share:{name}": each.named(f"{grid}, {name}", SHARE) for name, each in self.areas.items()}
        return numbers | {
            f"control_change:{name}": each.named(f"change outside both tasks for these α, {name}", unit)
            for name, each in self.control_changes.items()
        }

    @override
    def sentence(self) -> str:
        first, second = self.tasks
        shares = [f"{100 * each.value:.0f} % ({name})" for name, each in self.areas.items()]
        # Not by the areas: far from the pre-trained weights a network may answer one class for everything, and ξ is low there too.
        means = [each.value for each in self.box_errors.values()]
        best, worst = int(np.argmin(means)), int(np.argmax(means))
        # All methods saw the same samples, resampled alike: differences are certain where single means are not.
        verdict = "The methods do not differ significantly."
        if float((self.box_error[best] < self.box_error[worst]).mean()) >= 0.975:
            low, high = self.box
            name = self.methods[best]
            verdict = (
                f"For coefficients from {low:g} to {high:g}, {name} editing interferes less than {self.methods[worst]} editing "
                f"(mean ξ {means[best]:.2f} and {means[worst]:.2f})."
            )
        ending = "" if len(self.methods) == 1 else f" {verdict}"
        return (
            f"Task vectors of {first} and {second} on {self.subject} do not interfere (ξ < {self.threshold:g}) on "
            f"{', '.join(shares)} of the coefficients in [{self.alphas[0]:g}, {self.alphas[-1]:g}]².{ending}"
        )

    @override
    def story(self) -> Story:
        return Story(
            meaning=(
                "Where ξ is small, adding both task vectors changes each task as its own vector alone would. A large area "
                "means that coefficients can be chosen freely. It is measured on the outputs for these samples, not on "
                "accuracy. Far from the pre-trained weights, a network can give one answer to all samples: ξ is low there, "
                "and the edit is useless."
            ),
            next_steps=[Step("Check models of your own for merging.", "biascope merge check BASE MODELS --data DATA")],
        )

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        maps = dict(zip(self.methods, self.xi, strict=True))
        found = {
            "disentanglement_error": captioned(
                "Disentanglement error",
                pictures.map_figure(maps, self.alphas, self.tasks, threshold=self.threshold, box=self.box, dark=dark),
            )
        }
        if self.control is not None:
            maps = dict(zip(self.methods, self.control, strict=True))
            unit = "change in outputs outside both tasks"
            found["control_change"] = captioned(
                "Samples outside both tasks",
                pictures.map_figure(maps, self.alphas, self.tasks, box=self.box, unit=unit, dark=dark),
            )
        return found


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    with forked_rng(0):
        small = SmallEncoder.drawn({"left": 1.0, "right": -1.0}, ends=3, samples=60)
    y = torch.zeros(60, dtype=torch.long)
    tasks = {name: Arrays({"test": (x, y)}, name=name) for name, x in small.samples.items()}
    return (small.encoder, small.heads, small.vectors(tasks), tasks), {
        "points": 40,
        "grid": 7,
        "control": tasks["left"],
        "resamples": 40,
    }


@measurement(
    title="Weight disentanglement",
    paper="task_arithmetic2023",
    result=Disentanglement,
    example=_example,
    command="biascope edit --what disentanglement",
)
def disentanglement(
    encoder: Network,
    heads: Mapping[str, Head],
    vectors: Vectors,
    tasks: Mapping[str, Arrays],
    *,
    pair: tuple[str, str] | None = None,
    control: Arrays | None = None,
    methods: tuple[str, ...] | None = None,
    split: str = "test",
    points: int = 2048,
    control_points: int = 512,
    grid: int = 20,
    reach: float = 3.0,
    box: tuple[float, float] = (0.0, 1.0),
    distance: str = "disagreement",
    threshold: float = 0.1,
    resamples: int = 400,
    name: str = "encoder",
    seed: int = 0,
    run: Run | None = None,
) -> Disentanglement:
    """How far two task vectors interfere, for a grid of coefficients; no labels are needed.

    Definition:
        ``ξ(α₁, α₂) = Σ_t E_{x∼μ_t} dist(f(x; θ₀ + α_tτ_t), f(x; θ₀ + α₁τ₁ + α₂τ₂))``, where dist is 1 if the predicted classes
        differ. It measures how adding the other vector changes the predictions on a task's own samples. It is 0 for a *weight
        disentangled* network, and at most 2. With a control set, the other part of property 6.1 is measured too:
        ``E dist(f(x; θ₀), f(x; θ₀ + α₁τ₁ + α₂τ₂))`` on samples outside both tasks, averaged over the two heads.

    A linearised network is affine in α, so two forward-mode passes are enough for its whole grid.

    Args:
        encoder: Pre-trained encoder at θ₀, from inputs to features.
        heads: Heads of the tasks, by name.
        vectors: ``{"non-linear": {task: τ}, "linearised": {task: τ}}``, one of the two or both. Post-hoc linearisation uses the
            non-linear ones.
        tasks: Samples of each task, by name; labels are not used.
        pair: Names of the two tasks; may be omitted if there are two.
        control: Samples outside both tasks.
        methods: Editing methods out of ``"non-linear"``, ``"post-hoc"``, ``"linearised"``; by default all that the vectors allow.
        split: Split to take samples from.
        points: Largest number of samples of each task.
        control_points: Largest number of control samples.
        grid: Coefficients along each side of the grid.
        reach: Coefficients are equidistant from −reach to reach.
        box: Interval in which merging searches for coefficients.
        distance: ``"disagreement"`` of classes, or ``"total variation"`` of their probabilities.
        threshold: ξ below which a place of the grid counts as disentangled.
        resamples: Resamples of the samples, for intervals.
        name: Name of the encoder in results.
        seed: Random seed for the choice of samples.
        run: Folder (finished work is saved), device, precision.

    Returns:
        ξ on the grid for each method, the share of it below the threshold, with intervals over samples.

    Raises:
        ValueError: If tasks, heads, vectors and settings do not fit.

    Example:
        >>> encoder = Network.of(torch.nn.Linear(2, 2, bias=False)).with_params({"weight": torch.zeros(2, 2)})
        >>> ends = {"a": torch.tensor([[1.0, 0.0], [0.0, 0.0]]), "b": torch.tensor([[0.0, 1.0], [0.0, 0.0]])}
        >>> vectors = {task: TaskVector.between(encoder.params, {"weight": end}) for task, end in ends.items()}
        >>> tasks = {"a": Arrays({"test": (torch.tensor([[1.0, 0.0]]), torch.zeros(1))}),  # each sees one input alone
        ...          "b": Arrays({"test": (torch.tensor([[0.0, 1.0]]), torch.zeros(1))})}
        >>> heads = dict.fromkeys(tasks, Head(torch.eye(2), torch.zeros(2)))
        >>> float(disentanglement(encoder, heads, {"non-linear": vectors}, tasks, run=Run(device="cpu")).xi.max())
        0.0

    Reference:
        Ortiz-Jiménez (2023), thesis, property 6.3, equation (6.6), figures 6.4, 6.5, 6.8, 6.10; appendix D.1.
    """
    run, ways = run or Run(), methods_of(vectors, methods)
    chosen = _checked(heads, vectors, tasks, pair, ways, grid, distance, resamples)
    _check_places(reach, box, threshold)
    alphas = torch.linspace(-reach, reach, grid, dtype=torch.float64)
    both = torch.cartesian_prod(alphas, alphas)  # the first task's coefficient is the slower one
    samples = {task: sampled(tasks[task], split, points, seed=seed_of(seed, task)) for task in chosen}
    for each in samples.values():
        require_repeatable(encoder, each, name="The encoder", run=run)
    outside = None if control is None else sampled(control, split, control_points, seed=seed_of(seed, "control"))
    shape, inside = (grid, grid), places_inside(alphas.numpy(), box)
    names = ("terms", "terms_error", "area", "box_error", "control", "control_box")
    parts: dict[str, list[Any]] = {key: [] for key in names}
    for way in ways:
        linearised, tuning = METHODS[way]
        own = [vectors[tuning][task] for task in chosen]
        apart: list[np.ndarray] = []  # (n, A, A) for each task
        for place, task in enumerate(chosen):
            alone = torch.zeros(grid, 2, dtype=torch.float64)
            alone[:, place] = alphas
            found = edited_outputs(
                encoder, heads[task], own, torch.cat([alone, both]), samples[task],
                linearised=linearised, reading=DISTANCES[distance], run=run,
            )  # fmt: skip
            single = found[:grid].unsqueeze(1 - place).expand(*shape, *found.shape[1:])
            apart.append(_distances(single, found[grid:].reshape(*shape, *found.shape[1:])))
        draws = _resampled(apart, resamples, seed)
        parts["terms"].append([each.mean(0) for each in apart])
        parts["terms_error"].append([each.std(0) / np.sqrt(len(each)) for each in apart])
        parts["area"].append((draws < threshold).mean((1, 2)))
        parts["box_error"].append(draws[:, inside].mean(1))
        if outside is not None:
            moved = _changes(encoder, [heads[task] for task in chosen], own, both, outside, linearised, distance, run)
            parts["control"].append(moved.mean(0))
            parts["control_box"].append(_resampled([moved], resamples, seed)[:, inside].mean(1))
    arrays: Any = {key: np.array(each) if each else None for key, each in parts.items()}
    return Disentanglement(
        chosen,
        ways,
        (samples[chosen[0]].sizes[split], samples[chosen[1]].sizes[split]),
        alphas.numpy(),
        box,
        threshold,
        distance,
        **arrays,
        encoder=name,
        provenance={"encoder": content_of(encoder), "tasks": list(chosen), "methods": list(ways)},
    )


def _check_places(reach: float, box: tuple[float, float], threshold: float) -> None:
    if not reach > 0 or not threshold > 0:
        raise ValueError(
            f"reach and threshold must be positive numbers, got {reach} and {threshold}. Pass reach=3.0, threshold=0.1."
        )
    if not -reach <= box[0] <= box[1] <= reach:
        raise ValueError(
            f"box must be an interval within {-reach:g} and {reach:g}, got {box[0]:g} to {box[1]:g}. Pass box=(0.0, 1.0)."
        )


def _checked(
    heads: Mapping[str, Head],
    vectors: Vectors,
    tasks: Mapping[str, Arrays],
    pair: tuple[str, str] | None,
    ways: Sequence[str],
    grid: int,
    distance: str,
    resamples: int,
) -> tuple[str, str]:
    """The two tasks, where all that is needed of them is there."""
    names = tuple(pair or tasks)
    if len(names) != 2 or names[0] == names[1] or not set(names) <= set(tasks):
        raise ValueError(
            f"pair must name two of the tasks {', '.join(tasks)}, got {', '.join(names)}. Pass pair=(…, …)."
        )
    require_heads(names, heads)
    require_vectors(vectors, ways, names, who="Both tasks")
    if distance not in DISTANCES:
        raise ValueError(
            f"distance must be one of {', '.join(map(repr, DISTANCES))}, got {distance!r}. Pass distance='disagreement'."
        )
    if grid < 2 or resamples < 2:
        raise ValueError(
            f"grid and resamples must be at least 2, got {grid} and {resamples}. Pass grid=20, resamples=400."
        )
    return names[0], names[1]


def _changes(
    encoder: Network,
    heads: Sequence[Head],
    own: Sequence[TaskVector],
    both: Tensor,
    samples: Arrays,
    linearised: bool,
    distance: str,
    run: Run,
) -> np.ndarray:
    """Distance of each sample to its pre-trained outputs, over the grid, ``(n, A, A)``; mean over heads."""
    side, found = round(len(both) ** 0.5), []
    for head in heads:
        outputs = edited_outputs(
            encoder, head, own, torch.cat([torch.zeros(1, 2, dtype=both.dtype), both]), samples,
            linearised=linearised, reading=DISTANCES[distance], run=run,
        )  # fmt: skip
        found.append(_distances(outputs[:1].expand_as(outputs[1:]), outputs[1:]))
    return np.asarray(np.mean(found, 0).reshape(-1, side, side))


def _distances(one: Tensor, other: Tensor) -> np.ndarray:
    """Between outputs ``(…, n)`` or ``(…, n, c)``, as ``(n, …)``."""
    if one.is_floating_point():
        apart = (one - other).abs().sum(-1).double() / 2
    else:
        apart = (one != other).double()
    return np.asarray(apart.movedim(-1, 0).numpy())


def _resampled(apart: Sequence[np.ndarray], resamples: int, seed: int) -> np.ndarray:
    """The sum of mean distances at every place, on resampled samples of each set, ``(B, A, A)``."""
    total = np.zeros((resamples, *apart[0].shape[1:]))
    for place, each in enumerate(apart):
        counts = resample_counts(len(each), resamples, seed_of(seed, "resamples", place))
        total += np.tensordot(counts / len(each), each, 1)
    return total
