"""Observer: records what ``fit`` records, for a user's own training loop. hook: a measurement along training."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import numbers
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from biascope.families import weights
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.results.estimate import Estimate
from biascope.results.registry import find
from biascope.results.result import Result
from biascope.runs.ambient import under_torch_defaults
from biascope.training.fit import Trajectory

Hook = Callable[[int, Network], Any]

_WAITING = 1000  # losses that stay on a GPU until they are read together: each read waits for the device


@under_torch_defaults
class Observer:
    """Records your own training loop: call it once per iteration, after the optimiser's step.

    It keeps the loss curve, the first iteration below a threshold, divergence and the distance from the initial weights. At chosen
    iterations it saves the weights and calls hooks with the network, where any measurement can be made of it. The training is not
    disturbed: hooks get a copy in evaluation mode, and losses on a GPU are not waited for.

    Args:
        module: The network in training.
        at: Iterations (counted from 1; 0 is the start) at which hooks are called and weights saved: ``range(0, 10_000, 100)``.
        hooks: Functions of (iteration, Network) by name; their return values are stored under that name in :attr:`seen`.
            :func:`hook` makes one of a measurement.
        log: Function of (name, value, iteration) that receives every number of the hooks: ``SummaryWriter.add_scalar`` of
            TensorBoard, or ``lambda name, value, step: run.log({name: value}, step=step)`` for Weights & Biases.
        threshold: Loss threshold.
        keep: Whether the weights at those iterations stay in the computer's memory, for :meth:`Trajectory.at`.
        folder: Where to write them as ``step-N.safetensors``, for ``biascope scan --checkpoints``.
        start: Iterations made before, where a training is resumed.

    Attributes:
        seen: What the hooks returned, by name and iteration.

    Raises:
        ValueError: If an argument is wrong.

    Example:
        >>> module = nn.Linear(1, 1, bias=False)
        >>> module.weight.data.fill_(1.0)
        tensor([[1.]])
        >>> observer = Observer(module, at=(0, 2), hooks={"weight": lambda step, network: float(network.params["weight"])})
        >>> for _ in range(2):
        ...     module.weight.data += 1.0  # the user's own step
        ...     observer(0.5)
        >>> observer.seen["weight"], float(observer.trajectory().distance)
        ({0: 1.0, 2: 3.0}, 2.0)
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        at: Iterable[int] = (),
        hooks: Mapping[str, Hook] | None = None,
        log: Callable[[str, float, int], object] | None = None,
        threshold: float | None = None,
        keep: bool = True,
        folder: Path | str | None = None,
        start: int = 0,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"module must be a torch.nn.Module, got {type(module).__name__}. Pass the network in training."
            )
        self._module, self._at, self._hooks = module, _iterations(at), _functions(hooks)
        if log is not None and not callable(log):
            raise ValueError(
                f"log must be a function of (name, value, step), got {type(log).__name__}. Pass log=writer.add_scalar."
            )
        if threshold is not None and not math.isfinite(threshold):
            raise ValueError(f"threshold must be a finite number, got {threshold}. Pass threshold=0.01.")
        if not _is_count(start):
            raise ValueError(f"start must be a whole number of iterations, got {start!r}. Pass start=0.")
        self._log, self._threshold, self._keep, self._first = log, threshold, keep, int(start)
        self._folder = None if folder is None else Path(folder)
        self._start = _flat(Network.of(module))
        self._losses: list[float] = []
        self._waiting: list[Tensor] = []
        self._kept: dict[int, Network] = {}
        self.seen: dict[str, dict[int, Any]] = {name: {} for name in self._hooks}
        self._look()

    def __repr__(self) -> str:
        hooks = f", hooks {', '.join(self._hooks)}" if self._hooks else ""
        return f"Observer({type(self._module).__name__}, {self.step:,} iterations{hooks})"

    @property
    def step(self) -> int:
        """Iterations made so far."""
        return self._first + len(self._losses) + len(self._waiting)

    def __call__(self, loss: float | Tensor) -> None:
        """Note an iteration that was just made, and its loss.

        Raises:
            ValueError: If the loss is not one number.
        """
        given: Any = loss
        if not (given.numel() == 1 if isinstance(given, Tensor) else isinstance(given, numbers.Real)):
            shape = f"shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
            raise ValueError(f"loss must be one number, got {shape}. Pass loss.mean().")
        if isinstance(given, Tensor) and given.device.type != "cpu":
            # A copy, because a CUDA graph or `loss /= 2` overwrites the tensor. Reading it here would wait for the GPU.
            self._waiting.append(given.detach().clone().reshape(()))
            if len(self._waiting) >= _WAITING:
                self._read()
        else:
            self._read()
            self._losses.append(float(given.item() if isinstance(given, Tensor) else given))
        self._look()

    def _read(self) -> None:
        """Read the losses that wait on the device."""
        if self._waiting:
            self._losses += torch.stack(self._waiting).double().tolist()
            self._waiting.clear()

    def _look(self) -> None:
        if (step := self.step) not in self._at or not (self._hooks or self._keep or self._folder):
            return
        network = Network.of(self._module)  # a copy in eval mode: the training is not disturbed
        if self._keep:
            self._kept[step] = _on_cpu(network)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            weights.save(network.state, self._folder / f"step-{step}.safetensors")
        for name, function in self._hooks.items():
            self.seen[name][step] = found = function(step, network)
            if self._log is not None:
                for key, value in _numbers(name, found):
                    self._log(key, value, step)

    def trajectory(self) -> Trajectory:
        """Everything recorded so far; the losses of iterations before ``start`` are NaN."""
        self._read()
        now = Network.of(self._module)
        known = list(enumerate(self._losses, self._first + 1))
        below = [step for step, loss in known if self._threshold is not None and loss < self._threshold]
        broken = [step for step, loss in known if not math.isfinite(loss)]
        end = _flat(now)
        return Trajectory(
            now,
            torch.tensor([math.nan] * self._first + self._losses, dtype=torch.float64)[:, None],
            torch.tensor([below[0] if below else -1]),
            torch.tensor([broken[0] if broken else -1]),
            (end - self._start).norm()[None],
            self._start.norm()[None],
            end.norm()[None],
            dict(self._kept),
        )


def hook(name: str, /, *inputs: Any, number: str | None = None, **settings: Any) -> Hook:
    """A hook for :class:`Observer`: a measurement of the network as it is at an iteration.

    The measurement's checks of derivatives run the first time only; what they find is issued as a warning.

    Args:
        name: The measurement, ``"average_geometry"`` or ``"tangent_kernel"``. It must measure one network.
        inputs: What it takes behind the family: a probe, or data.
        number: Key of the number to return, with its interval; ``None`` for the whole result.
        settings: Settings of the measurement.

    Returns:
        A function of (iteration, Network).

    Raises:
        ValueError: If there is no such measurement, setting or number, or if it does not measure one family of networks.

    Example:
        >>> from biascope.tasks.probe import Probe
        >>> rank = hook("average_geometry", Probe.gaussian((9,), num=4, fresh=True), number="effective_rank", draws=8)
        >>> round(float(rank(0, Network.of(nn.Linear(9, 1)))), 3)  # a linear function has one slope
        1.0
    """
    found = find(name)
    parameters = inspect.signature(found.function).parameters
    if next(iter(parameters)) != "family":
        raise ValueError(f"{found.name} measures {next(iter(parameters))}, not one network. Pass 'average_geometry'.")
    try:
        inspect.signature(found.function).bind(None, *inputs, **found.grouped(settings))
    except TypeError as error:
        raise ValueError(f"The hook of {found.name} has wrong arguments: {error}. It is {found!r}.") from error
    return functools.partial(_measured, _Checked(found), inputs, number, found.grouped(settings))


@dataclasses.dataclass
class _Checked:
    """A measurement whose checks run once: the forward pass stays the same along a training."""

    measurement: Any
    checked: bool = False

    def __call__(self, *arguments: Any, **settings: Any) -> Result:
        result: Result = self.measurement(*arguments, **settings)
        if not self.checked:
            for sentence in result.warnings:
                warnings.warn(sentence, stacklevel=2)
            self.measurement, self.checked = dataclasses.replace(self.measurement, checks=None), True
        return result


def _measured(
    measurement: _Checked,
    inputs: tuple[Any, ...],
    number: str | None,
    settings: dict[str, Any],
    step: int,
    network: Network,
) -> Any:
    module = network.as_module()
    result = measurement(Family.point(module, name=type(module).__name__), *inputs, **settings)
    if number is None:
        return result
    if number not in (known := result.headline()):
        listed = ", ".join(map(repr, known))
        raise ValueError(f"number must be one of {listed}, got {number!r}. Pass number={next(iter(known))!r}.")
    return known[number]


def _is_count(number: Any) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool) and bool(number >= 0)


def _iterations(at: Any) -> range | frozenset[int]:
    if isinstance(at, range):  # may go on for as long as a training does
        return at
    steps = list(at) if isinstance(at, Iterable) else None
    for step in [at] if steps is None else steps:
        if steps is None or not _is_count(step):
            raise ValueError(
                f"at must list iterations, whole numbers from 0 on, got {step!r}. Pass at=(0, 100) or at=range(0, 10_000, 100)."
            )
    return frozenset(map(int, steps or ()))


def _functions(hooks: Mapping[str, Hook] | None) -> dict[str, Hook]:
    if not isinstance(hooks or {}, Mapping):
        raise ValueError(
            f"hooks must be functions by name, got {type(hooks).__name__}. Pass hooks={{'rank': biascope.hook(…)}}."
        )
    for name, function in (hooks or {}).items():
        if not callable(function):
            raise ValueError(
                f"The hook {name!r} must be a function of (step, network), got {type(function).__name__}. Pass biascope.hook(…)."
            )
    return dict(hooks or {})


def _flat(network: Network) -> Tensor:
    return torch.cat([tensor.flatten().cpu() for tensor in network.params.values()])


def _on_cpu(network: Network) -> Network:
    """A network in the computer's memory, where many checkpoints have room."""
    if all(tensor.device.type == "cpu" for tensor in (*network.params.values(), *network.buffers.values())):
        return network
    return Network.of(network.as_module().cpu())


def _numbers(name: str, found: Any) -> Iterable[tuple[str, float]]:
    """What a hook returned as numbers with names: one, those of a headline or those of a dict; nothing else is a number."""
    if isinstance(found, Result):
        found = found.headline()
    if isinstance(found, Mapping):
        for key, value in found.items():
            yield from _numbers(f"{name}/{key}", value)
    elif isinstance(found, Estimate | numbers.Real) or (isinstance(found, Tensor) and found.numel() == 1):
        yield name, float(found)
