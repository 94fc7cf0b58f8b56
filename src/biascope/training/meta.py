"""Initial weights learned from many signals (MAML, Reptile) or from one, by the same training loop."""

# B signals of a batch · N numbers of a signal, points times channels

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from biascope.families.family import Family
from biascope.families.network import Network
from biascope.families.recomputation import WithoutRecomputation
from biascope.families.weights import Params
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.signals import SignalTask
from biascope.tasks.task import Arrays, master_dtype
from biascope.training.fit import Trajectory, fit
from biascope.training.recipe import Recipe

ALGORITHMS = ("maml", "reptile")
ORDERS = ("second", "first")
META_LEARNING = Recipe("adam", rate=1e-5, schedule="constant", steps=5000, batch=3, loss="squared")
PRE_TRAINING = Recipe("adam", rate=1e-4, schedule="constant", steps=1000, batch=2**20, loss="squared")


class InnerLoop(nn.Module, ABC):
    """A network that adapts itself to each signal it is given, by gradient descent from its own weights θ.

    Definition:
        ``θ₀ = θ``, ``θ_(k+1) = θ_k − α∇L(θ_k)``, with ``L(θ) = mean (f_θ(coordinates) − signal)²``, for ``steps`` steps K.

    Its inputs are signals, its weights are θ, and what it says depends on θ through θ_K, so that the ordinary training loop,
    which differentiates by the weights, is the outer loop of meta-learning.

    Args:
        network: From coordinates to values; its weights are θ.
        coordinates: ``(n, d)``, where signals have their values.
        steps: K.
        rate: α.
        order: ``"second"``: gradients by θ go through the inner steps; ``"first"``: the inner gradients are constants.
    """

    coordinates: Tensor

    def __init__(
        self, network: nn.Module, coordinates: Tensor, *, steps: int = 2, rate: float = 0.01, order: str = "second"
    ) -> None:
        super().__init__()
        if order not in ORDERS:
            raise ValueError(f"order must be 'second' or 'first', got {order!r}. Pass order='second'.")
        if steps < 0 or not rate >= 0:
            raise ValueError(
                f"inner steps and their rate must not be negative, got {steps} and {rate}. Pass 2 steps at 0.01."
            )
        self.network, self.steps, self.rate, self.order = network, steps, rate, order
        self.register_buffer("coordinates", coordinates)

    def forward(self, signals: Tensor) -> Tensor:
        """From signals ``(B, N)`` to the outputs that are compared with their targets."""
        start: Params = dict(self.network.named_parameters())
        # The weights are shared until the first step, so that its forward pass is taken once for the batch.
        return vmap(lambda signal: self.judged(start, self.adapted(start, signal)))(signals)

    def adapted(self, start: Params, signal: Tensor) -> Params:
        """θ_K for one signal ``(N,)``."""

        def error(params: Params) -> Tensor:
            return (self.said(params) - signal).square().mean()

        params = start
        for _ in range(self.steps):
            with torch.no_grad() if self.order == "first" else contextlib.nullcontext():
                slopes = grad(error)(params)
            params = {name: tensor - self.rate * slopes[name] for name, tensor in params.items()}
        return params

    def said(self, params: Params) -> Tensor:
        """Outputs of the network at the coordinates with given weights, ``(N,)``."""
        with WithoutRecomputation():
            outputs: Tensor = functional_call(self.network, params, (self.coordinates,))
        return outputs.flatten()

    @abstractmethod
    def judged(self, start: Params, end: Params) -> Tensor:
        """What the outer loop sees of one adaptation, from θ to θ_K."""

    def extra_repr(self) -> str:
        """The inner loop's settings, for identity."""
        return f"steps={self.steps}, rate={self.rate:g}, order={self.order!r}"


class Adapted(InnerLoop):
    """MAML: outputs of the network after adaptation to each signal, ``(B, N)``.

    Trained with the signals as targets and the squared loss, the network learns weights from which few steps lead to any of
    the signals. In first order that gradient is ``∇L(θ_K)``, as if θ_K were θ plus a constant.

    Example:
        >>> linear = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.ones_(linear.weight)
        >>> model = Adapted(linear, torch.tensor([[1.0], [1.0]]), steps=1, rate=0.25)  # L = (w − s)²: half of the way
        >>> model(torch.tensor([[3.0, 3.0], [5.0, 5.0]])).tolist()
        [[2.0, 2.0], [3.0, 3.0]]

    Reference:
        Finn, Abbeel, Levine, Model-agnostic meta-learning for fast adaptation of deep networks, ICML 2017.
        Tancik et al., Learned initializations for optimizing coordinate-based neural representations, CVPR 2021.
    """

    def judged(self, start: Params, end: Params) -> Tensor:
        """The adapted signal, ``(N,)``."""
        return self.said(end)


class Travelled(InnerLoop):
    """Reptile: how far adaptation to each signal leads, ``‖θ − θ_K‖/√2`` with θ_K held constant, ``(B,)``.

    Trained with targets 0 and the squared loss, the gradient by θ is the mean of ``θ − θ_K`` over the batch: Reptile's.

    Example:
        >>> linear = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.ones_(linear.weight)
        >>> model = Travelled(linear, torch.tensor([[1.0]]), steps=1, rate=0.25)  # from 1 half of the way to 5
        >>> model(torch.tensor([[5.0]])).square().sum().backward()
        >>> linear.weight.grad.item()
        -2.0

    Reference:
        Nichol, Achiam, Schulman, On first-order meta-learning algorithms, 2018.
    """

    def judged(self, start: Params, end: Params) -> Tensor:
        """The distance over √2, so that the squared loss is half the squared distance."""
        ways = [(tensor - end[name].detach()).flatten() for name, tensor in start.items()]
        length: Tensor = torch.linalg.vector_norm(torch.cat(ways))
        return length / 2**0.5


@dataclass(frozen=True)
class _ToAdapt(Arrays):
    """Signals as inputs, and as targets of as many axes: these do not run over members."""

    def member_axes(self, x: Tensor, y: Tensor) -> tuple[int | None, int | None]:
        return None, None


@under_torch_defaults
def meta_learned(
    start: Network | Family,
    signals: SignalTask,
    *,
    algorithm: str = "maml",
    order: str = "second",
    inner_steps: int = 2,
    inner_rate: float = 0.01,
    recipe: Recipe = META_LEARNING,
    split: str = "all",
    keep_at: Sequence[int] = (),
    seed: int,
    run: Run | None = None,
) -> Trajectory:
    """Train initial weights from which few steps of gradient descent lead to any of many signals.

    Args:
        start: Where meta-learning starts: a network, or the family that it is drawn from.
        signals: To learn from, on one set of coordinates; an iteration takes ``recipe.batch`` of them.
        algorithm: ``"maml"`` or ``"reptile"``.
        order: Order of MAML: ``"second"``, or ``"first"``, which treats inner gradients as constants and halves the time.
        inner_steps: Steps of adaptation.
        inner_rate: Their rate, on the mean squared error over a signal's points.
        recipe: The outer loop's, with the squared loss; its gradient is MAML's, or Reptile's mean of ``θ − θ_K``.
        split: Which points of the signals.
        keep_at: Outer iterations after which the weights are saved, for :meth:`Trajectory.at`.
        seed: Random seed for the weights drawn and for the order of signals.
        run: Device, precision, folder. With a folder a finished training is read, not repeated.

    Returns:
        The trajectory of the network itself: ``.networks`` are the meta-learned weights. Losses are MAML's mean squared error
        after adaptation, or Reptile's ``½‖θ − θ_K‖²``, means over the batch.

    Raises:
        ValueError: If settings contradict one another.

    Example:
        >>> from biascope.tasks.signals import Signal
        >>> flat = [Signal(torch.full((2, 1), height)) for height in (1.0, 3.0)]
        >>> run = Run(device="cpu")
        >>> task = SignalTask.of(flat, held_out=0.0, seed=0, run=run)
        >>> line = Network.of(nn.Linear(1, 1)).with_params({"weight": torch.zeros(1, 1), "bias": torch.zeros(1)})
        >>> outer = Recipe("gd", rate=0.2, schedule="constant", steps=400, loss="squared")
        >>> found = meta_learned(line, task, inner_steps=1, recipe=outer, seed=0, run=run).networks
        >>> round(float(found.params["bias"]), 3)  # halfway between the signals: the shortest way to either
        2.0

    Reference:
        As for :class:`Adapted` and :class:`Travelled`.
    """
    run = run or Run()
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be 'maml' or 'reptile', got {algorithm!r}. Pass algorithm='maml'.")
    if recipe.loss != "squared":
        raise ValueError(f"The recipe must have the squared loss, got {recipe.loss!r}. Pass loss='squared'.")
    network = _single(start, seed, run)
    points = signals.points[signals._checked(split)]
    device, dtype = run.torch_device, master_dtype(run)
    grid, values = signals.grid[points].to(device, dtype), signals.values[:, points].to(device, dtype)  # (m, n, c)
    said = network(grid[:1]).shape[-1]
    if said != values.shape[-1]:
        raise ValueError(
            f"The network must output as many values as the signals have channels, got {said} and {values.shape[-1]}. "
            f"Build it with outputs={values.shape[-1]}."
        )
    values = values.flatten(1)  # (m, N)
    kind: type[InnerLoop] = Adapted if algorithm == "maml" else Travelled
    # Reptile takes θ_K for a constant whatever the order: the first saves the graph of the inner steps.
    loop = kind(
        network.as_module(),
        grid,
        steps=inner_steps,
        rate=inner_rate,
        order=order if algorithm == "maml" else "first",
    )
    targets = values if algorithm == "maml" else values.new_zeros(len(values))
    task = _ToAdapt({"train": (values, targets)}, dtype)

    def train() -> Trajectory:
        return fit(Network.of(loop), task, recipe, seed=seed, run=run, keep_at=keep_at)

    how = {"inner_steps": inner_steps, "inner_rate": inner_rate, "order": order, "algorithm": algorithm}
    trials = _trials(
        "meta-learning", network, grid, recipe, keep_at, seed, run, code=meta_learned, task=task, grid=grid, **how
    )
    return _kept(trials, network, keep_at, run, train, prefix="network.")


@under_torch_defaults
def pretrained(
    start: Network | Family,
    signal: SignalTask,
    *,
    recipe: Recipe = PRE_TRAINING,
    keep_at: Sequence[int] = (),
    seed: int,
    run: Run | None = None,
) -> Trajectory:
    """Train on one signal, as initial weights for others: the baseline of meta-learning.

    Args:
        start: A network, a stack with a signal for each, or the family that they are drawn from.
        signal: What is learned, from its points in the split ``"train"``; ``held_out=0.0`` for all of them.
        recipe: How it is trained; by default Adam at 1e-4 on all points at once.
        keep_at: Iterations after which the weights are saved, for :meth:`Trajectory.at`.
        seed: Random seed for the weights drawn and for the order of points.
        run: Device, precision, folder. With a folder a finished training is read, not repeated.

    Returns:
        The trajectory.

    Example:
        >>> from biascope.tasks.signals import Signal
        >>> run = Run(device="cpu")
        >>> task = SignalTask.of(Signal(torch.full((4, 1), 2.0)), held_out=0.0, seed=0, run=run)
        >>> line = Network.of(nn.Linear(1, 1)).with_params({"weight": torch.zeros(1, 1), "bias": torch.zeros(1)})
        >>> recipe = Recipe("gd", rate=0.2, schedule="constant", steps=400, loss="squared")
        >>> found = pretrained(line, task, recipe=recipe, keep_at=(1,), seed=0, run=run)
        >>> float(found.at(1).params["bias"]), round(float(found.networks.params["bias"]), 3)
        (0.800000011920929, 2.0)
    """
    run = run or Run()
    network = _several(start, signal.members, seed, run)

    def train() -> Trajectory:
        return fit(network, signal, recipe, seed=seed, run=run, keep_at=keep_at)

    trials = _trials("pre-training", network, signal.grid, recipe, keep_at, seed, run, code=pretrained, signal=signal)
    return _kept(trials, network, keep_at, run, train)


def _several(start: Network | Family, members: int | None, seed: int, run: Run) -> Network:
    """Networks in the type that training keeps weights in: those given, or as many as there are signals."""
    if isinstance(start, Network):
        return start.to(run.torch_device, master_dtype(run))
    whole = run if run.dtype == master_dtype(run) else dataclasses.replace(run, precision="float32")
    stack = start.draw(members or 1, seed=seed, run=whole)
    return stack if members is not None else stack.member(0)


def _single(start: Network | Family, seed: int, run: Run) -> Network:
    network = _several(start, None, seed, run)
    if network.members is not None:
        raise ValueError(
            f"Meta-learning must start from one network, got a stack of {network.members}. Pass networks.member(0)."
        )
    return network


_NUMBERS = ("losses", "first_below", "diverged_at", "distance", "start_norm", "end_norm")


def _trials(
    work: str, start: Network, at: Tensor, recipe: Recipe, keep_at: Sequence[int], seed: int, run: Run, **parts: Any
) -> Trials:
    kept = sorted(set(keep_at))
    return Trials(work, run, at=at, start=start, recipe=recipe, kept=kept, seed=seed, **parts)


def _kept(
    trials: Trials,
    start: Network,
    keep_at: Sequence[int],
    run: Run,
    train: Callable[[], Trajectory],
    prefix: str = "",
) -> Trajectory:
    """A training's trajectory, read where it has been finished before; of the weights under a prefix."""
    kept = sorted(set(keep_at))

    def work(key: str) -> Outcome:
        found = train()
        outcome = {name: getattr(found, name) for name in _NUMBERS}
        places = {"end": found.networks, **{str(step): each for step, each in found.checkpoints.items()}}
        for place, network in places.items():
            for name in start.params:
                outcome[f"{place} {name}"] = network.params[prefix + name].cpu()
            for name in start.buffers:
                outcome[f"{place} {name}"] = network.buffers[prefix + name].cpu()
        return outcome

    outcome = next(trials.outcomes(["training"], work))

    def network_at(place: object) -> Network:
        found = start.with_params(
            {name: outcome[f"{place} {name}"] for name in start.params},
            {name: outcome[f"{place} {name}"] for name in start.buffers},
        )
        return found.to(run.torch_device, master_dtype(run))

    numbers: dict[str, Any] = {name: outcome[name] for name in _NUMBERS}
    return Trajectory(networks=network_at("end"), checkpoints={step: network_at(step) for step in kept}, **numbers)
