"""How long the gradients of a number of draws take: timed on a few of them where that is quick, else from the operations."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from biascope.derivatives.covariance import GradientSampler
from biascope.derivatives.gradients import input_gradient, plain_attention
from biascope.derivatives.one_pass import OnePass, one_pass
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.families.weights import Params
from biascope.runs.failures import FOREIGN
from biascope.runs.randomness import forked_rng
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

_PASSES = 2.5  # an input gradient takes as long as so many forward passes
_QUICK = 0.05  # seconds of one draw up to which some draws are made
_SHORT = 1.0  # … and of one input up to which its gradient is timed
_LARGE = 2 * 10**7  # weights from which on a network is not built to predict a time
_LONG = 2e9  # … or operations of a forward pass
_WEIGHTS = 1e8  # drawn in a second
_BUILDS = 20  # drawings of one network in whose time a family is built, recorded and proven
_CHECKS = 200  # forward passes that the checks of a network take


@dataclass(frozen=True)
class Outline:
    """A network by its size: it was built on no device, so it has no weights.

    Attributes:
        name: Its name.
        size: As :attr:`biascope.families.family.Family.size`.
        num_parameters: Number of weights.
        one: What a pass of one input takes.
    """

    name: str
    size: int | None
    num_parameters: int
    one: OnePass

    @property
    def large(self) -> bool:
        """Whether building or calling it may take too long for a dry run."""
        return self.num_parameters > _LARGE or self.one.operations > _LONG


def outlined(build: Callable[[], nn.Module], shape: Sequence[int], name: str, size: int | None) -> Outline | None:
    """The outline of a network; ``None`` where it cannot be built or called without a device.

    Args:
        build: Makes the network.
        shape: Shape of one input.
        name: Its name.
        size: Number of distinct members, ``None`` for weights drawn at random.

    Example:
        >>> outlined(lambda: nn.Linear(40_000, 40_000), (40_000,), "wide", None)
        Outline(name='wide', size=None, num_parameters=1600040000, one=OnePass(operations=3200000000, kept=0))
    """
    try:
        with torch.device("meta"), forked_rng(0):
            module = build()
        params: Params = dict(module.named_parameters())
        network = Network(module.eval(), params, dict(module.named_buffers()))
        one = one_pass(network, torch.empty(1, *shape, device="meta"))
    except FOREIGN:
        return None
    return Outline(name, size, sum(tensor.numel() for tensor in params.values()), one)


def pass_of(model: Family | Outline, shape: Sequence[int], run: Run) -> OnePass | None:
    """What a pass of one input takes; ``None`` where it fails, which the sampler will tell."""
    if isinstance(model, Outline):
        return model.one
    device = run.torch_device
    try:
        return one_pass(model.template.to(device, run.dtype), torch.zeros(1, *shape, device=device, dtype=run.dtype))
    except FOREIGN:  # which the sampler will tell
        return None


class DrawTimes:
    """How long the input gradients of draws take.

    Args:
        model: The networks.
        shape: Shape of one input.
        run: Device and precision.
        outline: Their size, where it is known already.

    Attributes:
        one: What a pass of one input takes, ``None`` where it fails.
    """

    def __init__(self, model: Family | Outline, shape: Sequence[int], run: Run, outline: Outline | None = None) -> None:
        self._model, self._shape, self._run = model, tuple(shape), run
        self.one = pass_of(outline or model, shape, run)

    def expected(self, probe: Probe, draws: int, **how: Any) -> tuple[float, str]:
        """Seconds of so many draws, and how they are known.

        Args:
            probe: The inputs of each draw.
            draws: Number of draws.
            how: ``estimator``, ``step``, ``readout`` and ``seed`` of a :class:`GradientSampler`.
        """
        passes = probe.num * (_PASSES if how["estimator"] == "exact" else 2 * math.prod(self._shape))
        if isinstance(self._model, Family) and passes * self._by_operations <= _QUICK:
            sampler = GradientSampler(self._model, probe, run=self._run, **how)
            return sampler.expected_seconds(draws), sampler.method
        pace, told = self._pace
        drawing = 0.0 if self._model.size == 1 else self._model.num_parameters / _WEIGHTS
        return draws * (passes * pace + drawing), told

    def of_passes(self, passes: int, draws: int) -> float:
        """Seconds of so many forward passes of one input, or as much work, for each of some draws."""
        drawing = 0.0 if self._model.size == 1 else self._model.num_parameters / _WEIGHTS
        return draws * (passes * self._pace[0] + drawing)

    @property
    def pace_known(self) -> str:
        """How the seconds of a pass are known."""
        return self._pace[1]

    def before(self) -> float:
        """Seconds until the first draw: the family is built, and checks compare passes of the network."""
        return _BUILDS * self._model.num_parameters / _WEIGHTS + _CHECKS * self._by_operations

    @property
    def _by_operations(self) -> float:
        """Seconds of a forward pass of one input, from its operations."""
        return (0.0 if self.one is None else self.one.operations) / _operations_per_second(
            self._run.torch_device, self._run.dtype
        )

    @functools.cached_property
    def _pace(self) -> tuple[float, str]:
        """Seconds of a forward pass of one input among several, and how they are known."""
        pace = self._by_operations
        if not isinstance(self._model, Family) or _PASSES * pace > _SHORT:
            return pace, "roughly, from its operations"
        few = max(1, min(64, int(_SHORT / 4 / (_PASSES * pace))))
        network = self._model.template.to(self._run.torch_device, self._run.dtype).read("first")
        x = torch.randn(few, *self._shape, device=self._run.torch_device).to(self._run.dtype)
        seconds = math.inf
        with self._run.products(), plain_attention(), forked_rng(0):
            for _ in range(2):  # the first call loads libraries
                begin = time.perf_counter()
                input_gradient(network, x).sum().item()
                seconds = min(seconds, time.perf_counter() - begin)
                if seconds > _SHORT:
                    break
        return seconds / (few * _PASSES), f"from the gradient at {few} input{'s' if few > 1 else ''}"


@functools.cache
def _operations_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """Of a product of two matrices; layers of a network reach about half of it."""
    matrix = torch.randn(768, 768, device=device).to(dtype)
    seconds = math.inf
    for _ in range(3):  # the first call loads libraries
        begin = time.perf_counter()
        (matrix @ matrix).sum().item()
        seconds = min(seconds, time.perf_counter() - begin)
    return 0.5 * 2 * 768**3 / seconds
