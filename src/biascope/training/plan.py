"""How many networks are trained together, and by which method: timed on this network and device, and saved."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from biascope.families.network import Network
from biascope.runs.autotune import Timings
from biascope.runs.memory import give_back
from biascope.runs.run import Run
from biascope.tasks.task import Task
from biascope.training.evaluation import STACK_LIMIT
from biascope.training.fit import draws_in_training, repeatable
from biascope.training.recipe import Recipe
from biascope.training.steps import stepper

MOST = 130  # members beyond which a stack of even the smallest convolutional networks is no faster
COMPILING_PAYS = 60.0  # seconds of training from which a compilation is tried
WARM, TIMED = 3, 6  # iterations
WORTH_TIMING = 2500  # iterations of all trials below which a CPU does not spend 45 on timing

Sample = Callable[[int], tuple[Network, Task]]


@dataclass(frozen=True)
class TrainingPlan:
    """How trials are trained.

    Attributes:
        way: One of the methods of :func:`biascope.training.fit.fit`.
        members: Networks of one stack.
        seconds: Expected for all trials, without evaluation.
    """

    way: str
    members: int
    seconds: float


def training_plan(sample: Sample, recipe: Recipe, trials: int, run: Run) -> TrainingPlan:
    """The fastest method to train a number of networks of one kind, from timing a few iterations of each.

    On a CPU: one after another on each core, or in a stack where that is faster (networks of plain products). On a GPU:
    small networks in stacks as large as is useful and memory allows, compiled where the whole training is long enough to
    earn the compilation back; large ones one after another as CUDA graphs.

    Args:
        sample: Gives the networks and the task of a stack of so many members.
        recipe: How they are trained.
        trials: How many in all.
        run: Device and precision.

    Returns:
        The plan; members never more than trials.
    """
    network, task = sample(1)
    total = recipe.total_steps(task.sizes["train"])
    parameters = sum(tensor.numel() for tensor in network.params.values())
    timings = Timings[tuple[str, int]](run.torch_device)

    def timed(way: str, members: int) -> float:
        """Seconds of one iteration of one member."""
        if (way, members) not in timings.seconds:
            _time_steps(timings, *sample(members), recipe, run, way)
        return timings.seconds[way, members]

    if run.torch_device.type == "cpu":
        threads = min(torch.get_num_threads(), trials)
        if trials <= threads or trials * total < WORTH_TIMING:
            return TrainingPlan("loop", threads, math.nan)  # nothing to choose, or less to gain than timing takes
        alone = timed("loop", 1) / (1 if draws_in_training(network) else max(1, threads))
        size = min(4, trials)
        if size > 1 and parameters <= STACK_LIMIT and timed("stack", size) < 0.8 * alone:
            return TrainingPlan("stack", _even_size(size, trials), timed("stack", size) * total * trials)
        return TrainingPlan("loop", threads, alone * total * trials)
    alone = timed("captured", 1)
    if parameters > STACK_LIMIT or trials == 1:
        return TrainingPlan("captured", 1, alone * total * trials)
    size = min(MOST, trials)
    while math.isinf(min(timed("stack", size), timed("shifts", size))) and size > 1:
        size //= 2
    size = _even_size(size, trials)
    ways = ["stack", "shifts"]
    if min(timed(way, size) for way in ways) * total * trials > COMPILING_PAYS:
        ways.append("compiled")
    best = min(ways, key=lambda way: timed(way, size))
    if alone < timed(best, size):
        return TrainingPlan("captured", 1, alone * total * trials)
    return TrainingPlan(best, size, timed(best, size) * total * trials)


def _even_size(most: int, trials: int) -> int:
    """Stacks of equal size rather than full ones and a small rest."""
    return math.ceil(trials / math.ceil(trials / most))


def seconds_per_step(networks: Network, task: Task, recipe: Recipe, run: Run, way: str) -> float:
    """Time of one iteration of a stack; infinite if memory does not suffice or the method cannot run this network."""
    timings, members = Timings[tuple[str, int]](run.torch_device), networks.members or 1
    _time_steps(timings, networks, task, recipe, run, way)
    return members * timings.seconds[way, members]


def _time_steps(
    timings: Timings[tuple[str, int]], networks: Network, task: Task, recipe: Recipe, run: Run, way: str
) -> None:
    """Time a few iterations of a stack in a way."""
    device, members = run.torch_device, networks.members or 1
    indices = torch.arange(recipe.batch_size(task.sizes["train"]), device=device)
    first = next(iter(networks.params.values()))
    scalars = torch.tensor(recipe.scalars_at(0, 10), dtype=first.dtype, device=device)

    def work() -> None:
        with run.products(), repeatable():
            if way == "loop" and device.type == "cpu":
                torch.set_num_threads(1)  # as each core will work by itself
            trained = stepper(networks, task, recipe, run, way)

            def iterate(count: int) -> None:
                for _ in range(count):
                    trained.step(indices, scalars)

            iterate(WARM)
            timings.timed((way, members), lambda: iterate(TIMED), units=TIMED * members)

    threads = torch.get_num_threads()
    try:
        # Only the plain ways must work.
        timings.attempted((way, members), work, required=way in ("loop", "captured"))
    finally:
        torch.set_num_threads(threads)
        give_back()
