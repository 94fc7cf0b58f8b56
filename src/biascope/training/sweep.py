"""Many trainings as one resumable sweep. Course: what is trained; ``trained``: the numbers of every trial, saved as they finish."""

# T iterations · W windows of a curve

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from biascope.families.draws import Draws
from biascope.families.family import Family
from biascope.runs.cluster import device_type
from biascope.runs.randomness import seed_of
from biascope.runs.run import Run
from biascope.runs.trials import Group, Outcome, Sweep
from biascope.tasks.task import Task
from biascope.training.evaluation import STACK_LIMIT, evaluation
from biascope.training.fit import fit
from biascope.training.plan import MOST, TrainingPlan, training_plan
from biascope.training.recipe import Recipe

WINDOWS = 100  # points that a kept loss curve has at most


@dataclass(frozen=True, order=True)
class Trial:
    """One training of a sweep.

    Attributes:
        kind: Trials of one kind can be trained in one stack: same data size, recipe and repeat.
        member: Which network of the family's stream, and which member of the kind's task.
        content: A digest of the task's content, if kind and member do not determine it.
    """

    kind: str
    member: int
    content: str = ""

    @property
    def key(self) -> str:
        """Its stable name."""
        return f"{self.kind} #{self.member:05d} {self.content}"

    @staticmethod
    def of(key: str) -> Trial:
        """The trial of a key."""
        kind, _, rest = key.rpartition(" #")
        member, _, content = rest.partition(" ")
        return Trial(kind, int(member), content)


class Course(ABC):
    """What the trainings of a sweep are: for each kind of trial a task, a recipe and a repeat.

    A concrete one is a dataclass: its fields tell it from another, except those marked :data:`biascope.runs.identity.DERIVED`.
    """

    @property
    @abstractmethod
    def inputs(self) -> Any:
        """Some training inputs, or the shape of one input, to check that the networks have not changed."""

    @abstractmethod
    def task(self, kind: str, members: Sequence[int], seed: int, run: Run) -> Task:
        """What the given members learn."""

    @abstractmethod
    def recipe(self, kind: str) -> Recipe:
        """How."""

    def repeat(self, kind: str) -> int:
        """The repetition; each has its own weights, data and order."""
        return 0

    @property
    def splits(self) -> tuple[str, ...]:
        """Where trained networks are evaluated."""
        return ("test", "train")


def trained(
    family: Family, course: Course, trials: Sequence[Trial], *, seed: int, run: Run, label: str = "trainings"
) -> dict[Trial, Outcome]:
    """Train a network for every trial, in stacks by a saved plan; a sweep resumes where it stopped.

    Args:
        family: Whose members are trained; trial ``member`` starts from that member of the family's stream.
        course: The tasks and recipes.
        trials: The trials to train.
        seed: Random seed for weights, data, order and dropout.
        run: Folder, device, precision, cluster.
        label: Label of the progress bar.

    Returns:
        For each trial ``accuracy/SPLIT``, ``loss/SPLIT``, ``curve`` (W,) and ``steps`` (W,) (mean loss of consecutive windows
        of iterations, and where each ends), ``first_below``, ``diverged_at``, ``distance``, ``start_norm``, ``turn``.
    """
    work = _Stack(family, course, seed)
    keys = [trial.key for trial in trials]
    sweep = Sweep(
        "training", run, code=(_Stack, type(course)), at=course.inputs, family=family, course=course, seed=seed
    )
    found = sweep.outcomes(keys, work, plan=lambda new: _groups(work, new, run), label=label)
    return {trial: found[trial.key] for trial in trials}


@dataclass(frozen=True)
class _Stack:
    """Trains one group of trials: what a plan, and a worker elsewhere, calls."""

    family: Family
    course: Course
    seed: int
    _streams: dict[tuple[int, Run], Draws] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Stack, (self.family, self.course, self.seed)  # weights already drawn do not travel to workers

    def __call__(self, keys: Sequence[str], run: Run, method: Mapping[str, Any]) -> dict[str, Outcome]:
        trials = [Trial.of(key) for key in keys]
        kind, members = trials[0].kind, [trial.member for trial in trials]
        way, size = str(method["way"]), int(method["members"])
        # A compiled step is for one size of stack: the last stack of a sweep is filled up, and the filling forgotten.
        filled = members + members[-1:] * (size - len(members)) if way == "compiled" else members
        seed = seed_of(self.seed, "repeat", self.course.repeat(kind))
        networks = self._drawn(seed, run).pick(filled)
        task, recipe = self.course.task(kind, filled, seed, run), self.course.recipe(kind)
        trajectory = fit(networks, task, recipe, seed=seed, run=run, way=way)
        curve, steps = windows(trajectory.losses)
        each: dict[str, Tensor] = {
            "curve": curve.T,
            "first_below": trajectory.first_below,
            "diverged_at": trajectory.diverged_at,
            "distance": trajectory.distance,
            "start_norm": trajectory.start_norm,
            "turn": trajectory.turn,
        }
        for split in self.course.splits:
            found = evaluation(trajectory.networks, task, split, loss=recipe.loss, run=run)
            each |= {f"accuracy/{split}": found.accuracy, f"loss/{split}": found.loss}
        return {
            key: {name: tensor[i] for name, tensor in each.items()} | {"steps": steps} for i, key in enumerate(keys)
        }

    def _drawn(self, seed: int, run: Run) -> Draws:
        """The stream of networks: groups take single members of a block that is drawn as a whole, so the last is kept."""
        key = (seed, _whole(run))
        if key not in self._streams:
            self._streams.clear()
            self._streams[key] = self.family.draws(seed=seed, run=key[1])
        return self._streams[key]

    def planned(self, kind: str, trials: Sequence[Trial], run: Run) -> TrainingPlan:
        """How trials of a kind are best trained, by timing a few iterations."""
        if run.on is not None:  # workers have other devices than this process, and one slot each
            large = self.family.num_parameters > STACK_LIMIT
            if device_type(run) == "cpu":
                return TrainingPlan("loop", 1, math.nan)
            return TrainingPlan("captured", 1, math.nan) if large else TrainingPlan("stack", MOST, math.nan)
        seed = seed_of(self.seed, "repeat", self.course.repeat(kind))
        draws = self._drawn(seed, run)

        def sample(members: int) -> Any:
            places = [trial.member for trial in trials[:members]]
            places += places[-1:] * (members - len(places))
            return draws.pick(places), self.course.task(kind, places, seed, run)

        return training_plan(sample, self.course.recipe(kind), len(trials), run)


def _groups(work: _Stack, keys: Sequence[str], run: Run) -> list[Group]:
    """Trials of each kind in stacks of nearly equal size; the way is timed once, on the kind with most trials."""
    kinds: dict[str, list[Trial]] = {}
    for key in keys:
        kinds.setdefault(Trial.of(key).kind, []).append(Trial.of(key))
    largest = max(kinds, key=lambda kind: len(kinds[kind]))
    plan = work.planned(largest, sorted(kinds[largest]), run)
    groups = []
    for trials in kinds.values():
        ordered = sorted(trials)
        stacks = math.ceil(len(ordered) / plan.members)
        size = math.ceil(len(ordered) / stacks)
        method = {"way": plan.way, "members": plan.members if plan.way == "compiled" else size}
        groups += [
            Group(tuple(trial.key for trial in ordered[start : start + size]), method)
            for start in range(0, len(ordered), size)
        ]
    return groups


def windows(losses: Tensor, most: int = WINDOWS) -> tuple[Tensor, Tensor]:
    """Mean losses ``(W, m)`` of consecutive windows of iterations, and the iteration (from 1) that ends each.

    Example:
        >>> windows(torch.tensor([[4.0], [2.0], [1.0], [1.0]]), most=2)
        (tensor([[3.],
                [1.]]), tensor([2, 4]))
    """
    total = len(losses)
    count = min(most, total)
    ends = torch.tensor([total * (index + 1) // count for index in range(count)])
    starts = torch.cat([torch.zeros(1, dtype=ends.dtype), ends[:-1]])
    means = [losses[a:b].nanmean(0) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    return torch.stack(means), ends


def _whole(run: Run) -> Run:
    """Weights are kept in float32 where products are taken in half precision."""
    half = run.precision in ("bfloat16", "float16")
    return dataclasses.replace(run, precision="float32") if half else run
