"""Directional bias: how well and how fast a network learns the same separable problem along many directions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from biascope.families.family import Family
from biascope.measures.directional_bias.result import DirectionalBias
from biascope.results.registry import measurement
from biascope.runs.identity import DERIVED
from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.tasks.bases import Basis
from biascope.tasks.task import Imprinted, along_directions
from biascope.training.recipe import Recipe
from biascope.training.sweep import Course, Trial, trained


@dataclass(frozen=True)
class _Directions(Course):
    """D(v) for every direction of a basis; a kind of trial is a noise level, a training size and a repeat."""

    # Directions are named by trials: more of them later continue the same sweep.
    vectors: torch.Tensor = field(metadata=DERIVED)
    shape: tuple[int, ...]
    places: tuple[int, ...] = field(metadata=DERIVED)
    settings: dict[str, Any]
    how: Recipe

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of one."""
        return self.shape

    def trial(self, noise: float, samples: int, repeat: int, row: int) -> Trial:
        """One direction's; it bears a digest of the vector, so that the same place of another basis is another trial."""
        digest = hashlib.sha256(self.vectors[row].double().numpy().tobytes()).hexdigest()[:8]
        return Trial(f"noise {noise!r}, samples {samples}, repeat {repeat}", self.places[row], digest)

    def recipe(self, kind: str) -> Recipe:
        """The same for all."""
        return self.how

    def repeat(self, kind: str) -> int:
        """As said in the kind."""
        return int(kind.split(", ")[2].split()[1])

    def task(self, kind: str, members: Sequence[int], seed: int, run: Run) -> Imprinted:
        """D(v) of the members' directions."""
        noise, samples = (kind.split(", ")[i].split()[1] for i in (0, 1))
        where = {place: row for row, place in enumerate(self.places)}
        vectors = self.vectors[[where[member] for member in members]]
        return along_directions(
            vectors, self.shape, noise=float(noise), train=int(samples), seed=seed, run=run, **self.settings
        )


@dataclass(frozen=True)
class Problem:
    """The problem along a direction v: predict ``s = ±1`` from ``x = ε·s·v + w``.

    Attributes:
        noise: σ of w, one or several.
        samples: Sizes of the training set, one or several.
        test: Test samples.
        epsilon: ε.
        margin: ``"text"`` for ε as defined, ``"released"`` for ε/2, as the authors' code has it.
    """

    noise: tuple[float, ...] = (3.0,)
    samples: tuple[int, ...] = (10_000,)
    test: int = 10_000
    epsilon: float = 1.0
    margin: str = "text"


#: The problem and the training as published.
PROBLEM, RECIPE = Problem(), Recipe("sgd", rate=0.5, epochs=20, batch=128, clip=0.5, threshold=0.01)


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    family = Family.initialised(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), name="linear")
    basis = bases.fourier_half((1, 4, 4)).part(range(4))
    recipe = replace(RECIPE, epochs=2, batch=16)
    return (family, basis), {"problem": Problem((0.5,), (64,), test=512), "recipe": recipe, "repeats": 2}


@measurement(
    title="Directional bias", paper="nads2020", result=DirectionalBias, example=_example, network={"outputs": 2}
)
def directional_bias(
    family: Family,
    basis: Basis,
    *,
    problem: Problem = PROBLEM,
    recipe: Recipe = RECIPE,
    repeats: int = 1,
    seed: int = 0,
    run: Run | None = None,
) -> DirectionalBias:
    """How well and how fast a family learns D(v) for every direction v of a basis.

    Definition:
        ``x = ε·s·v + w`` with ``w ~ N(0, σ²(I − v vᵀ))`` and ``s = ±1``; predict s from x. Up to a rotation, the problem is the
        same for every unit vector v. So any difference in the outcome is due to the network. For each direction, one network is
        trained from its own initial weights. All networks see the same noise and labels in the same order.

    Estimated by:
        Test accuracy on fresh samples (standard error below 0.5 points at 10,000), and the first iteration whose loss is below a
        threshold. Networks differ by their initial weights: ``repeats`` shows by how much.

    Args:
        family: Networks to train, with two outputs (cross-entropy) or one (logistic loss).
        basis: Directions to learn along.
        problem: Problem to learn: noise levels, training sizes, test samples, ε.
        recipe: Training recipe, with a loss threshold for the number of iterations. Stopping there gives quick speed maps, but
            accuracies of unfinished networks.
        repeats: Networks for each direction.
        seed: Random seed for weights, data and their order.
        run: Folder (resumable), device, precision, cluster.

    Returns:
        Accuracies, iterations and loss curves by noise, training size, repeat and direction.

    Raises:
        ValueError: If the basis does not fit the network or a setting is out of range.

    Example:
        >>> family = Family.initialised(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), name="linear")
        >>> basis = bases.fourier_half((1, 4, 4))
        >>> problem, recipe = Problem(noise=(0.1,), samples=(500,), test=500), replace(RECIPE, epochs=4)
        >>> result = directional_bias(family, basis, problem=problem, recipe=recipe)
        >>> result.sentence()
        'linear learns 10 of 10 directions and misses 0. Test accuracy is 100 % (σ = 0.1, 500 samples).'

    Reference:
        Ortiz-Jiménez et al. (2020), Neural anisotropy directions, section 2, figures 1–3 and 6; released code for the
        gradient clipping and the schedule.
    """
    run = run or Run()
    noise, samples = _several(problem.noise, float, "noise"), _several(problem.samples, int, "samples")
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}. Pass repeats=3 to estimate the spread.")
    if recipe.threshold is None:
        raise ValueError(
            "threshold must be a loss, to count the iterations until it is reached, got none. Pass threshold=0.01."
        )
    settings = {"test": problem.test, "epsilon": problem.epsilon, "margin": problem.margin}
    course = _Directions(basis.vectors, basis.shape, basis.places, settings, recipe)
    _check_fit(family, course, run)
    trials = {
        (i, j, repeat): [course.trial(sigma, size, repeat, row) for row in range(len(basis))]
        for i, sigma in enumerate(noise)
        for j, size in enumerate(samples)
        for repeat in range(repeats)
    }
    found = trained(family, course, [t for row in trials.values() for t in row], seed=seed, run=run, label="directions")

    longest = max(len(outcome["curve"]) for outcome in found.values())  # a small training set has few iterations

    def gathered(name: str) -> np.ndarray:
        each = [torch.stack([_padded(found[trial][name], longest) for trial in row]) for row in trials.values()]
        return torch.stack(each).reshape(len(noise), len(samples), repeats, len(basis), *each[0].shape[1:]).numpy()

    first = gathered("first_below").astype(np.float64)
    diverged = gathered("diverged_at") >= 0
    if diverged.all():
        raise ValueError(
            f"At least one training must stay finite, but all {diverged.size} diverged. Pass a smaller rate."
        )
    steps = [_padded(found[trials[0, j, 0][0]]["steps"].double(), longest) for j in range(len(samples))]
    return DirectionalBias(
        noise,
        samples,
        basis.shape,
        basis.name,
        basis.labels,
        np.array(basis.places),
        recipe.threshold,
        accuracy=np.where(diverged, np.nan, gathered("accuracy/test")),
        train_accuracy=np.where(diverged, np.nan, gathered("accuracy/train")),
        iterations=np.where(first < 0, np.nan, first),
        losses=gathered("curve"),
        steps=torch.stack(steps).numpy(),
        distance=gathered("distance") / gathered("start_norm"),
        diverged=diverged,
        spectrum=np.zeros(0) if basis.values is None else basis.values.numpy(),
    )


def _padded(values: torch.Tensor, length: int) -> torch.Tensor:
    """A curve filled up with nan; a single number stays."""
    if not values.dim():
        return values
    return torch.cat([values, values.new_full((length - len(values),), torch.nan)])


def _several(values: Any, kind: type, name: str) -> tuple[Any, ...]:
    found = tuple(kind(value) for value in (values if isinstance(values, tuple | list) else (values,)))
    if not found:
        raise ValueError(f"{name} must have at least one value, got none. Leave it out for the published value.")
    return found


def _check_fit(family: Family, course: _Directions, run: Run) -> None:
    """Check that basis and network fit, before any training."""
    must = f"accept inputs of shape {'×'.join(map(str, course.shape))}, those of the basis"
    outputs = family.tried(torch.zeros(2, *course.shape), must, "Pass a basis of the network's input shape.")
    if outputs.dim() > 2 or (outputs.dim() == 2 and outputs.shape[1] > 2):
        raise ValueError(
            f"{family.name} must have one or two outputs to distinguish two classes, got outputs of shape "
            f"{tuple(outputs.shape[1:])}. Build it with outputs=2."
        )
