"""One training step: of one network by plain autograd or as a replayed CUDA graph, or of a stack in lock-step."""

# m members · n samples of a batch

from __future__ import annotations

import contextlib
import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from typing_extensions import override

from biascope.derivatives.fast_layers import ConvolutionByShifts
from biascope.families.network import Network
from biascope.families.recomputation import WithoutRecomputation
from biascope.families.weights import Params, stacked
from biascope.runs.run import Run
from biascope.tasks.task import Task
from biascope.training.cuda_graph import recorded
from biascope.training.recipe import Optimiser, Recipe, loss_of

WAYS = ("loop", "stack", "shifts", "compiled", "captured")


class Stepper(ABC):
    """Weights that are being trained, in place."""

    @abstractmethod
    def step(self, indices: Tensor, scalars: Tensor) -> Tensor:
        """One update on a batch of the training split; the losses ``(m,)`` before it."""

    @abstractmethod
    def networks(self) -> Network:
        """The present weights, not copied."""

    @abstractmethod
    def keep(self, members: Sequence[int]) -> None:
        """Continue with some members only."""

    @property
    @abstractmethod
    def lets_any_go(self) -> bool:
        """Whether dropping finished members always pays (else only when half of them have finished)."""


def half_precision(run: Run) -> Any:
    """The context of a forward pass: products in bfloat16 where the run asks for it, weights and sums in float32."""
    if run.precision != "bfloat16":
        return contextlib.nullcontext()
    return torch.autocast(run.torch_device.type, dtype=torch.bfloat16, cache_enabled=False)


class _Replay:
    """A step on a GPU, captured once as a graph and replayed: launching its hundreds of kernels one by one takes longer.

    Args:
        step: Changes the state in place, on the device alone.
        state: All that it changes.
    """

    def __init__(self, step: Callable[[Tensor, Tensor], Tensor], state: Sequence[Tensor]) -> None:
        self._step, self._state = step, list(state)
        self._graph: tuple[Callable[[], None], Tensor, Tensor, Tensor] | None = None

    def __call__(self, indices: Tensor, scalars: Tensor) -> Tensor:
        if self._graph is None:
            held = indices.clone(), scalars.clone()
            replay, losses = recorded(lambda: self._step(*held), self._state, indices.device, warmups=2)
            self._graph = replay, *held, losses
        replay, held_indices, held_scalars, losses = self._graph
        held_indices.copy_(indices)
        held_scalars.copy_(scalars)
        replay()
        return losses.clone()


class _Replayable(Stepper):
    """A stepper whose whole batches may be replayed; the smaller rest of an epoch is stepped plainly."""

    _task: Task
    _recipe: Recipe
    _replay: _Replay | None

    def step(self, indices: Tensor, scalars: Tensor) -> Tensor:
        if self._replay is None or not self._is_whole(indices):
            return self._step(indices, scalars)
        return self._replay(indices, scalars)

    def _is_whole(self, indices: Tensor) -> bool:
        return len(indices) == self._recipe.batch_size(self._task.sizes["train"])

    @abstractmethod
    def _step(self, indices: Tensor, scalars: Tensor) -> Tensor: ...


class Single(_Replayable):
    """One network, by plain autograd on an ordinary module.

    On a GPU the step can be captured as a graph; images lie channels last there, the layout its convolutions are fastest in.

    Args:
        network: Where training starts; its weights are copied.
        task: What is learned.
        recipe: How.
        run: Device and precision.
        captured: Whether to replay whole batches as a CUDA graph.
    """

    lets_any_go = True

    def __init__(self, network: Network, task: Task, recipe: Recipe, run: Run, captured: bool = False) -> None:
        self._start, self._task, self._recipe, self._run = network, task, recipe, run
        self._module = network.as_module()
        _set_mode(self._module, recipe)
        device = run.torch_device
        self._last = device.type == "cuda" and len(task.shape) == 3
        if self._last:
            self._module = self._module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._named = dict(self._module.named_parameters())
        self._params = list(self._named.values())
        self._optimiser = Optimiser(recipe, self._params, stacked=False)
        self.state = [*self._params, *self._module.buffers(), *self._optimiser.state]  # all that a step changes
        self._replay = _Replay(self._step, self.state) if captured else None

    def _step(self, indices: Tensor, scalars: Tensor) -> Tensor:
        x, y = self._task.batch("train", indices)
        if self._last:
            x = x.contiguous(memory_format=torch.channels_last)
        with half_precision(self._run):
            outputs = self._module(x)
        loss = loss_of(self._recipe.loss, outputs.to(scalars.dtype), y)
        # A parameter that these samples do not use has the gradient 0.
        self._optimiser.step(torch.autograd.grad(loss, self._params, materialize_grads=True), scalars)
        return loss.detach()[None]

    @override
    def networks(self) -> Network:
        params = {name: self._named[name].detach() for name in self._start.params}
        buffers = {name: self._module.get_buffer(name) for name in self._start.buffers}
        return self._start.with_params(params, buffers)

    @override
    def keep(self, members: Sequence[int]) -> None:
        raise AssertionError("one network has no members to drop")


class Several(Stepper):
    """Several networks, each stepped by itself: lock-step where stacking does not pay.

    Args:
        singles: One for each member.
        like: A network of the stack, for its recipe.
    """

    lets_any_go = True

    def __init__(self, singles: Sequence[Single], like: Network) -> None:
        self._singles, self._like = list(singles), like

    @override
    def step(self, indices: Tensor, scalars: Tensor) -> Tensor:
        return torch.cat([single.step(indices, scalars) for single in self._singles])

    @override
    def networks(self) -> Network:
        each = [single.networks() for single in self._singles]
        params, buffers = stacked([one.params for one in each]), stacked([one.buffers for one in each])
        return dataclasses.replace(self._like, params=params, buffers=buffers, members=len(each))

    @override
    def keep(self, members: Sequence[int]) -> None:
        self._singles = [self._singles[member] for member in members]


class _StackGradients:
    """Gradients, losses and new BatchNorm statistics of a stack; one object serves all stacks of an architecture.

    Args:
        module: The forward pass.
        recipe: Its loss and modes.
        run: Its precision.
        way: ``"stack"``, ``"shifts"`` (convolutions as one product per member) or ``"compiled"`` (those, compiled).
    """

    def __init__(self, module: nn.Module, recipe: Recipe, run: Run, way: str) -> None:
        self._module = _recording(copy.deepcopy(module))
        _set_mode(self._module, recipe)
        self._recipe, self._run, self._way = recipe, run, way
        # Whole batches have one shape, for which the step is compiled; the last of an epoch is taken as it is.
        self.whole = torch.compile(self.plain, dynamic=False) if way == "compiled" else self.plain

    def plain(
        self, params: Params, buffers: Params, x: Tensor, y: Tensor, axes: tuple[int | None, int | None]
    ) -> tuple[Params, Tensor, Params]:
        """Each member's, on its own inputs or labels where these have an axis over members."""

        def loss(weights: Params, state: Params, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Params]:
            with half_precision(self._run):
                outputs = functional_call(self._module, (weights, state), (inputs,))
            value = loss_of(self._recipe.loss, outputs.to(inputs.dtype), labels)
            return value, _recorded(self._module)

        each = vmap(grad_and_value(loss, has_aux=True), in_dims=(0, 0, *axes), randomness="different")
        layers = contextlib.nullcontext() if self._way == "stack" else ConvolutionByShifts(self._way == "compiled")
        with layers:
            gradients, (losses, statistics) = each(params, buffers, x, y)
        return gradients, losses, statistics


_held: dict[tuple[object, ...], tuple[nn.Module, _StackGradients]] = {}


def _gradients_of(module: nn.Module, recipe: Recipe, run: Run, way: str) -> _StackGradients:
    """The gradients of an architecture, the same object each time: what is compiled for one stack serves the next."""
    key = (id(module), recipe.loss, recipe.batchnorm, run.precision, run.device, way)
    if key not in _held:
        while len(_held) >= 4:  # a few architectures at a time; the module is held so that its id stays its own
            del _held[next(iter(_held))]
        _held[key] = (module, _StackGradients(module, recipe, run, way))
    return _held[key][1]


class Stacked(_Replayable):
    """A stack of networks in lock-step, their weights batched with ``vmap``; on a GPU captured as a graph.

    Args:
        networks: Where training starts; weights are copied.
        task: What each member learns.
        recipe: How.
        run: Device and precision.
        way: ``"stack"``, ``"shifts"`` or ``"compiled"``.
    """

    def __init__(self, networks: Network, task: Task, recipe: Recipe, run: Run, way: str) -> None:
        self._start, self._task, self._recipe, self._run, self._way = networks, task, recipe, run, way
        self._gradients = _gradients_of(networks.module, recipe, run, way)
        self.params = {name: tensor.clone() for name, tensor in networks.params.items()}
        self.buffers = {name: tensor.clone() for name, tensor in networks.buffers.items()}
        self._optimiser = Optimiser(recipe, list(self.params.values()), stacked=True)
        self._replay = self._replayed()

    def _replayed(self) -> _Replay | None:
        if self._run.torch_device.type != "cuda":
            return None
        return _Replay(self._step, [*self.params.values(), *self.buffers.values(), *self._optimiser.state])

    @property
    @override
    def lets_any_go(self) -> bool:
        return self._way != "compiled"

    def _step(self, indices: Tensor, scalars: Tensor) -> Tensor:
        x, y = self._task.batch("train", indices)
        function = self._gradients.whole if self._is_whole(indices) else self._gradients.plain
        with WithoutRecomputation():
            gradients, losses, statistics = function(self.params, self.buffers, x, y, self._task.member_axes(x, y))
        self._optimiser.step([gradients[name] for name in self.params], scalars)
        for name, tensor in statistics.items():
            self.buffers[name].copy_(tensor)
        return losses

    @override
    def networks(self) -> Network:
        return self._start.with_params(self.params, self.buffers)

    @override
    def keep(self, members: Sequence[int]) -> None:
        order = list(members)
        old = self._optimiser
        self.params = {name: tensor[order].clone() for name, tensor in self.params.items()}
        self.buffers = {name: tensor[order].clone() for name, tensor in self.buffers.items()}
        self._start = dataclasses.replace(self._start, members=len(order))
        self._task = self._task.select(order)
        if self._way == "compiled":  # for another number of members it would have to be compiled again
            self._way, self._gradients = "shifts", _gradients_of(self._start.module, self._recipe, self._run, "shifts")
        self._optimiser = Optimiser(self._recipe, list(self.params.values()), stacked=True)
        for new, state in zip(self._optimiser.state, old.state, strict=True):
            new.copy_(state[order])
        self._replay = self._replayed()


def stepper(networks: Network, task: Task, recipe: Recipe, run: Run, way: str) -> Stepper:
    """The stepper for one network or a stack, in one of the ``WAYS``."""
    if networks.members is None:
        return Single(networks, task, recipe, run, captured=way == "captured")
    if way in ("stack", "shifts", "compiled"):
        return Stacked(networks, task, recipe, run, way)
    singles = [
        Single(networks.member(i), task.of_member(i), recipe, run, captured=way == "captured")
        for i in range(networks.members)
    ]
    return Several(singles, networks)


def _set_mode(module: nn.Module, recipe: Recipe) -> None:
    """Dropout on; BatchNorm as the recipe says."""
    module.train()
    if recipe.batchnorm == "eval":
        for layer in module.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm | _RecordedBatchNorm):
                layer.eval()


class _RecordedBatchNorm(nn.Module):
    """BatchNorm whose new running statistics are kept aside: under ``grad`` a buffer cannot be changed in place."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, layer: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        for name, buffer in layer.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        self.eps, self.momentum, self.tracks = layer.eps, layer.momentum, layer.track_running_stats
        self.seen: Params = {}

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the batch in training, by the running statistics otherwise."""
        by_batch = self.training or not self.tracks
        whole = x.float() if x.dtype == torch.bfloat16 else x  # sums over a batch need more than eight bits
        if by_batch and self.training and self.tracks:
            variance, mean = torch.var_mean(whole.detach(), [0, *range(2, x.dim())])
            count = self.num_batches_tracked + 1
            share = self.momentum if self.momentum is not None else 1.0 / count
            self.seen = {
                "running_mean": self.running_mean + share * (mean - self.running_mean),
                "running_var": self.running_var + share * (variance - self.running_var),
                "num_batches_tracked": count,
            }
        mean_used, variance_used = (None, None) if by_batch else (self.running_mean, self.running_var)
        normalised = torch.nn.functional.batch_norm(
            whole, mean_used, variance_used, self.weight, self.bias, by_batch, 0.0, self.eps
        )
        return normalised.to(x.dtype)


def _recording(module: nn.Module) -> nn.Module:
    """The module with its BatchNorm layers replaced by recording ones of the same names."""
    for name, layer in list(module.named_modules()):
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and name:
            parent, _, own = name.rpartition(".")
            setattr(module.get_submodule(parent), own, _RecordedBatchNorm(layer))
    return module


def _recorded(module: nn.Module) -> Params:
    """The statistics that the last forward pass would have left in the buffers."""
    found: Params = {}
    for name, layer in module.named_modules():
        if isinstance(layer, _RecordedBatchNorm) and layer.seen:
            found |= {f"{name}.{key}": value for key, value in layer.seen.items()}
            layer.seen = {}
    return found
