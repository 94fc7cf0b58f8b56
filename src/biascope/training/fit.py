"""The only training loop. ``fit`` trains one network or a stack of networks, each on its own task, in lock-step."""

# m members · T iterations

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from biascope.families.network import Network
from biascope.families.weights import Params
from biascope.runs.ambient import CONVOLUTIONS, under_torch_defaults
from biascope.runs.identity import identity_of
from biascope.runs.randomness import forked_rng, generator_for, seed_of
from biascope.runs.run import Run
from biascope.runs.threads import on_each_core
from biascope.tasks.task import Task
from biascope.training.evaluation import STACK_LIMIT
from biascope.training.pause import Pause
from biascope.training.recipe import Recipe
from biascope.training.steps import WAYS, Single, Stepper, stepper

Observe = Callable[[int, Network], None]

CHECK_EVERY = 25  # iterations between looks at who is done: a look waits for the device


class DivergedError(ValueError):
    """Training diverged: a loss is not finite."""


@under_torch_defaults
@dataclass(frozen=True)
class Trajectory:
    """The record of a training. Arrays have an axis over members, also for one network.

    Attributes:
        networks: The trained weights.
        losses: ``(T, m)`` loss of each iteration's batch before its update; NaN after a member stopped.
        first_below: ``(m,)`` the first iteration (counted from 1) whose loss was below the recipe's threshold, −1 for never.
        diverged_at: ``(m,)`` the first iteration whose loss was not finite, −1 for never.
        distance: ``(m,)`` ‖θ_T − θ₀‖, the distance between first and last weights.
        start_norm: ``(m,)`` ‖θ₀‖.
        end_norm: ``(m,)`` ‖θ_T‖.
        checkpoints: Weights after the iterations of ``keep_at``.
    """

    networks: Network
    losses: Tensor
    first_below: Tensor
    diverged_at: Tensor
    distance: Tensor
    start_norm: Tensor
    end_norm: Tensor
    checkpoints: Mapping[int, Network]

    def __repr__(self) -> str:
        steps, members = self.losses.shape
        parts = [f"{members} network{'s' if members > 1 else ''}", f"{steps:,} iterations"]
        if len(known := self.losses[-1][self.losses[-1].isfinite()] if steps else self.losses.flatten()):
            low, high = float(known.min()), float(known.max())
            parts.append(f"last loss {low:.3g}" + (f" to {high:.3g}" if members > 1 else ""))
        diverged = int((self.diverged_at >= 0).sum())
        parts += [f"{diverged} diverged"] if diverged else []
        kept = sorted(self.checkpoints)
        parts += [f"{len(kept)} checkpoint{'s' if len(kept) > 1 else ''}"] if kept else []
        return f"Trajectory({', '.join(parts)})"

    @property
    def turn(self) -> Tensor:
        """``(m,)`` cosine distance ``1 − cos(θ₀, θ_T)``: the change of direction of the weights."""
        start, end, way = self.start_norm.double(), self.end_norm.double(), self.distance.double()
        return (way**2 - (end - start) ** 2) / (2 * start * end).clamp_min(1e-300)

    def require_finite(self) -> Trajectory:
        """This trajectory, if no member diverged; else raises :class:`DivergedError`.

        Raises:
            DivergedError: If a member diverged.
        """
        if (broken := int(self.diverged_at.max())) >= 0:
            raise DivergedError(f"Training diverged at iteration {broken}. Pass a smaller learning rate.")
        return self

    def at(self, step: int) -> Network:
        """The networks after an iteration of ``keep_at``.

        Raises:
            ValueError: If the weights after this iteration were not saved.
        """
        if step not in self.checkpoints:
            kept = ", ".join(map(str, self.checkpoints)) or "none"
            raise ValueError(f"Iteration {step} must be among the saved iterations: {kept}. Pass keep_at=({step},).")
        return self.checkpoints[step]


@under_torch_defaults
def fit(
    networks: Network,
    task: Task,
    recipe: Recipe,
    *,
    seed: int,
    run: Run | None = None,
    observe: Observe | None = None,
    observe_at: Sequence[int] | None = None,
    keep_at: Sequence[int] = (),
    way: str | None = None,
    until: int | None = None,
    unfinished: Path | None = None,
) -> Trajectory:
    """Train one network, or a stack of networks in lock-step.

    All members see the samples in the same order, with a new permutation in each epoch. A member that diverges is recorded, and its
    training ends. With ``stop`` in the recipe, training also ends for a member whose loss is below the threshold. Both are checked
    every ``CHECK_EVERY`` iterations, and the weights are those at the check.

    Args:
        networks: Where training starts; left unchanged.
        task: The task, the same for all networks or one for each member.
        recipe: Optimiser, schedule, loss and length.
        seed: Random seed for the order of samples and for dropout.
        run: Device, precision (``"bfloat16"``: products in half precision, weights in float32), progress.
        observe: Function called with the number of finished iterations and the networks.
        observe_at: Iterations at which it is called; by default 0, 1, 2, 4, 8, … and the last.
        keep_at: Iterations after which the weights are saved, for :meth:`Trajectory.at`.
        way: Training method: ``"loop"``, ``"stack"``, ``"shifts"`` (convolutions as products), ``"compiled"`` (the same with
            ``torch.compile``) or ``"captured"`` (one network after another as CUDA graphs). The default on a CPU is a loop. On a
            GPU, small networks are stacked and large ones captured.
        until: Iterations after which to stop; by default all of the recipe, whose schedule stays that of the whole training.
        unfinished: A file for the state of one network's training, written every twenty seconds. After an interruption, the same
            call resumes from there and reaches the same weights. At the end, or after ``until`` iterations, the file holds the
            training so far, and a later call resumes from it. Delete the file once the weights are saved.

    Returns:
        The trajectory.

    Raises:
        ValueError: If settings contradict one another.

    Example:
        >>> from biascope.tasks.task import Arrays
        >>> task = Arrays({"train": (torch.tensor([[1.0], [-1.0]]), torch.tensor([1, 0]))})
        >>> start = Network.of(torch.nn.Linear(1, 1)).with_params({"weight": torch.zeros(1, 1), "bias": torch.zeros(1)})
        >>> recipe = Recipe("gd", rate=1.0, schedule="constant", steps=1, loss="logistic")
        >>> fit(start, task, recipe, seed=0, run=Run(device="cpu")).networks.params["weight"]
        tensor([[0.5000]])
    """
    run = run or Run()
    if run.precision == "float16":
        raise ValueError("Training in float16 loses small gradients. Pass precision='bfloat16', 'tf32' or 'float32'.")
    if task.members is not None and task.members != networks.members:
        raise ValueError(
            f"The task must be for as many members as there are networks, got {task.members} and {networks.members}. "
            "Select members of the task, or draw as many networks."
        )
    way = way or default_way(networks, run)
    if way not in WAYS:
        listed = ", ".join(repr(known) for known in WAYS)
        raise ValueError(f"way must be one of {listed}, got {way!r}. Leave it out for the default.")
    if unfinished is not None and (networks.members is not None or observe is not None or keep_at):
        raise ValueError(
            "unfinished needs one network without observe and keep_at, got a stack, observe or keep_at. Leave it out."
        )
    some = torch.arange(min(2, task.sizes["train"]), device=run.torch_device)
    networks.require_proven(task.of_member(0).batch("train", some)[0])
    total = recipe.total_steps(task.sizes["train"])
    if until is not None and not 1 <= until <= total:
        raise ValueError(f"until must be an iteration from 1 to {total:,}, the last, got {until}. Pass until={total}.")
    steps = until or total
    watched = set(observe_at if observe_at is not None else _doublings(steps)) if observe is not None else set()
    with run.products(), repeatable(), run.tracked("training", steps * (networks.members or 1)) as advance:
        if way in ("loop", "captured") and networks.members is not None and observe is None:
            return _one_after_another(networks, task, recipe, seed, run, keep_at, way, steps, advance)
        with forked_rng(seed_of(seed, "dropout")):
            walk = _Walk(networks, task, recipe, seed, run, way)
            if unfinished is not None:
                walk.pause = Pause(
                    unfinished,
                    identity_of(
                        "training", run, code=_Walk, at=task, network=networks, task=task, recipe=recipe, seed=seed
                    ),
                )
            return walk.trajectory(steps, set(keep_at), advance, observe, watched)


def default_way(networks: Network, run: Run) -> str:
    """How a training is carried out where nothing was timed."""
    if run.torch_device.type == "cpu":
        return "loop"
    parameters = sum(tensor.numel() for tensor in networks.params.values()) // (networks.members or 1)
    return "captured" if networks.members is None or parameters > STACK_LIMIT else "stack"


class _Walk:
    """One training, from its first weights to its last."""

    def __init__(self, networks: Network, task: Task, recipe: Recipe, seed: int, run: Run, way: str) -> None:
        self._start, self._task, self._recipe, self._seed, self._run = networks, task, recipe, seed, run
        self._stepper: Stepper = stepper(networks, task, recipe, run, way)
        self._members = list(range(networks.members or 1))  # those still training
        self._final: dict[int, Network] = {}
        self._trained: dict[int, int] = {}  # iterations of those that left
        self.pause: Pause | None = None

    def trajectory(
        self,
        steps: int,
        kept: set[int],
        advance: Callable[[int], None],
        observe: Observe | None = None,
        watched: Set[int] = frozenset(),
    ) -> Trajectory:
        recipe, device = self._recipe, self._run.torch_device
        total = recipe.total_steps(self._task.sizes["train"])
        size = self._start.members or 1
        first = next(iter(self._start.params.values()))
        losses = torch.full((steps, size), torch.nan, dtype=first.dtype, device=device)
        checkpoints: dict[int, Network] = {}

        def look(step: int) -> None:
            if step in kept:
                checkpoints[step] = _copied(self._all())
            if observe is not None and step in watched:
                observe(step, self._all())

        look(0)
        done = self._restored(losses, advance)
        drawn = batches(self._task.sizes["train"], recipe, steps, self._seed, device)
        for step, (indices, scalars) in enumerate(zip(drawn, _scalars(recipe, total, steps, first), strict=True)):
            if not self._members:
                break
            if step < done:
                continue
            if self.pause is not None and isinstance(self._stepper, Single) and step > done:
                self.pause.note(step, self._stepper.state, losses)
            loss = self._stepper.step(indices, scalars)
            if len(self._members) == size:
                losses[step] = loss
            else:
                losses[step, self._members] = loss.to(losses.dtype)
            advance(len(self._members))
            if (step + 1) % CHECK_EVERY == 0 and step + 1 < steps:
                self._leave(losses[: step + 1])
            look(step + 1)
        if self.pause is not None and isinstance(self._stepper, Single) and done < steps:
            if self._members and bool(losses.isfinite().all()):
                self.pause.write(steps, self._stepper.state, losses)
            else:  # it diverged or stopped early: there is nothing to go on with
                self.pause.finished()
        for step in kept - checkpoints.keys():  # all members left before: their weights stay as they are
            checkpoints[step] = _copied(self._all())
        return self._summary(losses, checkpoints)

    def _restored(self, losses: Tensor, advance: Callable[[int], None]) -> int:
        """Iterations that were done before, their losses and the state after them put in place."""
        if self.pause is None or not isinstance(self._stepper, Single):
            return 0
        done, before = self.pause.restored(self._stepper.state, len(losses))
        losses[:done] = before[:done].to(losses)
        advance(done)
        return done

    def _leave(self, losses: Tensor) -> None:
        """Let members go that diverged or, where the recipe says so, are below the threshold."""
        recent = losses[-CHECK_EVERY:, self._members]
        done = ~torch.isfinite(recent[-1])
        if self._recipe.stop and self._recipe.threshold is not None:
            done |= (recent < self._recipe.threshold).any(0)
        if not bool(done.any()):
            return
        staying = [place for place, gone in enumerate(done.tolist()) if not gone]
        if not self._stepper.lets_any_go and len(staying) > len(self._members) // 2:
            return
        networks = self._stepper.networks()
        for place in set(range(len(self._members))) - set(staying):
            one = networks if networks.members is None else networks.member(place)
            self._final[self._members[place]] = _copied(one)
            self._trained[self._members[place]] = len(losses)
        self._members = [self._members[place] for place in staying]
        if staying:
            self._stepper.keep(staying)

    def _all(self) -> Network:
        """All members' weights, of those done as they left."""
        networks = self._stepper.networks()
        if not self._final:
            return networks
        if self._start.members is None:
            return self._final[0]
        staying = (
            {member: networks.member(place) for place, member in enumerate(self._members)} if self._members else {}
        )
        each = [self._final[i] if i in self._final else staying[i] for i in range(self._start.members)]
        return joined(each, self._start)

    def _summary(self, losses: Tensor, checkpoints: dict[int, Network]) -> Trajectory:
        networks = _copied(self._all())
        limit = self._recipe.threshold
        below = losses < limit if limit is not None else torch.zeros_like(losses, dtype=torch.bool)
        broken = ~torch.isfinite(losses)
        for member, trained in self._trained.items():
            broken[trained:, member] = False  # not trained is not diverged
        start, end = (_by_member(network.params, network.members) for network in (self._start, networks))
        return Trajectory(
            networks,
            losses.cpu(),
            _first(below),
            _first(broken),
            (end - start).norm(dim=1).cpu(),
            start.norm(dim=1).cpu(),
            end.norm(dim=1).cpu(),
            checkpoints,
        )


def _one_after_another(
    networks: Network,
    task: Task,
    recipe: Recipe,
    seed: int,
    run: Run,
    keep_at: Sequence[int],
    way: str,
    steps: int,
    advance: Callable[[int], None],
) -> Trajectory:
    """Members trained by themselves."""

    def one(index: int) -> Trajectory:
        walk = _Walk(networks.member(index), task.of_member(index), recipe, seed, run, way)
        return walk.trajectory(steps, set(keep_at), advance)

    members = networks.members or 1
    if draws_in_training(networks):  # dropout draws from the one global stream, whose order threads would not keep
        each = []
        for index in range(members):
            with forked_rng(seed_of(seed, "dropout", index)):
                each.append(one(index))
    else:
        each = on_each_core(one, members, run)
    fields = ("first_below", "diverged_at", "distance", "start_norm", "end_norm")
    return Trajectory(
        networks=joined([part.networks for part in each], networks),
        losses=torch.cat([part.losses for part in each], 1),
        checkpoints={step: joined([part.at(step) for part in each], networks) for step in sorted(set(keep_at))},
        **{name: torch.cat([getattr(part, name) for part in each]) for name in fields},
    )


def batches(samples: int, recipe: Recipe, total: int, seed: int, device: torch.device) -> Iterator[Tensor]:
    """The samples of each iteration: consecutive parts of a new permutation each epoch."""
    size, done, epoch = recipe.batch_size(samples), 0, 0
    while done < total:
        if size == samples:
            order = torch.arange(samples, device=device)
        else:
            # Drawn on the CPU: the order is then the same wherever the training runs.
            generator = generator_for(torch.device("cpu"), seed, "order", epoch)
            order = torch.randperm(samples, generator=generator).to(device)
        for start in range(0, samples, size):
            if done == total:
                return
            yield order[start : start + size]
            done += 1
        epoch += 1


def _scalars(recipe: Recipe, total: int, steps: int, like: Tensor) -> Iterator[Tensor]:
    """Learning rate and bias corrections of each iteration, some at a time: a training may be stopped long before its end."""
    for start in range(0, steps, 1024):
        rows = [recipe.scalars_at(step, total) for step in range(start, min(steps, start + 1024))]
        yield from torch.tensor(rows, dtype=like.dtype, device=like.device)


def joined(networks: Sequence[Network], like: Network) -> Network:
    """Several single networks as one stack."""
    params = {name: torch.stack([one.params[name] for one in networks]) for name in like.params}
    buffers = {name: torch.stack([one.buffers[name] for one in networks]) for name in like.buffers}
    return dataclasses.replace(like, params=params, buffers=buffers, members=len(networks))


def draws_in_training(networks: Network) -> bool:
    """Whether a training step draws random numbers: dropout."""
    return any(isinstance(layer, torch.nn.modules.dropout._DropoutNd) for layer in networks.module.modules())


def repeatable() -> AbstractContextManager[None]:
    """Deterministic results on a GPU, whose convolutions may otherwise add in any order."""
    return CONVOLUTIONS.at((True, False, True))


def _copied(network: Network) -> Network:
    params = {name: tensor.detach().clone() for name, tensor in network.params.items()}
    return network.with_params(params, {name: tensor.detach().clone() for name, tensor in network.buffers.items()})


def _by_member(params: Params, members: int | None) -> Tensor:
    """All weights of each member in one row."""
    if members is None:
        return torch.cat([tensor.flatten() for tensor in params.values()])[None]
    return torch.cat([tensor.flatten(1) for tensor in params.values()], 1)


def _first(happened: Tensor) -> Tensor:
    """Number of the first row (from 1) in which it happened, for each column; −1 for never."""
    place = happened.int().argmax(0) + 1
    return torch.where(happened.any(0), place, torch.full_like(place, -1)).cpu()


def _doublings(total: int) -> list[int]:
    steps = [0]
    while steps[-1] < total:
        steps.append(max(1, 2 * steps[-1]))
    return [*steps[:-1], total]
