"""Compares derivatives with finite differences of the forward pass, and separates kinks from wrong backward passes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from biascope.derivatives.gradients import input_gradient
from biascope.derivatives.separateness import coarsest_rounding
from biascope.families.inputs import cloned, is_real
from biascope.families.network import Network
from biascope.families.weights import Params
from biascope.runs.randomness import generator_for

_ASIDE = (1e-2, -2e-2)  # how far a point is moved off its kinks, relative to its size
_CONSTANT = 0.1  # a bend that changes less than this from step to step is a kink; a curve's shrinks with the step


@dataclass(frozen=True)
class Arithmetic:
    """Accuracy of finite differences, given the lowest precision that a network computes in.

    Attributes:
        steps: Steps of the differences, the most promising first. One lies between the nearest kink and rounding.
        tolerance: Relative deviation of a right derivative at the best step.
        rounding: Relative deviation of two ways to compute the same number.
    """

    steps: tuple[float, ...]
    tolerance: float
    rounding: float


DOUBLE = Arithmetic((1e-7, 1e-5, 1e-9), tolerance=1e-5, rounding=1e-5)
SINGLE = Arithmetic((1e-2, 1e-1, 1e-3, 1e-4, 1e-5), tolerance=1e-2, rounding=1e-3)
HALF = Arithmetic((0.3, 1.0, 0.1), tolerance=0.3, rounding=0.1)


@dataclass(frozen=True)
class Line:
    """A network's outputs along a line in input or weight space.

    Attributes:
        along: Outputs ``(n,)`` at a signed distance from the point.
        slope: Their derivative at the point, as autograd gives it.
    """

    along: Callable[[float], Tensor]
    slope: Tensor


@dataclass(frozen=True)
class Agreement:
    """How a derivative compares with differences.

    Attributes:
        error: Largest relative deviation; beside the point where the point lies on a kink.
        kink: Relative difference of the slopes on the two sides of the point; 0 where the function has one slope.
    """

    error: float
    kink: float = 0.0


def relative(first: Tensor, second: Tensor) -> float:
    """Largest deviation of two tensors, relative to their largest entry."""
    scale = float(torch.maximum(first.abs().max(), second.abs().max()))
    return float((first - second).abs().max()) / scale if scale != 0 else 0.0  # not a number stays not a number


def arithmetic_of(network: Network, x: Any) -> Arithmetic:
    """Accuracy of a network's finite differences; some networks cast to lower precision internally."""
    coarsest = coarsest_rounding(network, cloned(x))
    if coarsest > torch.finfo(torch.float32).eps:
        return HALF
    return SINGLE if coarsest > torch.finfo(torch.float64).eps else DOUBLE


def input_agreement(network: Network, x: Any, arithmetic: Arithmetic, seed: int) -> Agreement:
    """Whether the input gradient is the slope of the forward pass, along a random direction at each input.

    Args:
        network: One network with a readout.
        x: Inputs ``(n, …)``, any pytree.
        arithmetic: The precision of this network.
        seed: Random seed for the direction.
    """
    direction = _random_like(x, seed, "selftest input")

    def line(offset: float) -> Line:
        point = _moved(x, _random_like(x, seed, "selftest aside"), offset)
        parts = [leaf.flatten(1) for leaf in tree_leaves(direction) if is_real(leaf)]
        slope = (input_gradient(network, point) * torch.cat(parts, 1)).sum(1)
        return Line(lambda step: network(_moved(point, direction, step)), slope)

    return _agreement(line, arithmetic)


def weight_agreement(
    network: Network,
    x: Any,
    derivative: Callable[[Network, Any, Params], Tensor],
    arithmetic: Arithmetic,
    seed: int,
    parameters: Collection[str] | None = None,
) -> Agreement:
    """Whether a derivative by the weights is the slope of the forward pass, along a random direction.

    Args:
        network: One network with a readout.
        x: Inputs ``(n, …)``, any pytree.
        derivative: Gives the derivative of the outputs along a direction, at a network's weights.
        arithmetic: The precision of this network.
        seed: Random seed for the direction.
        parameters: Names of the weights to move; all by default.
    """
    names = network.params if parameters is None else parameters
    direction = _weight_direction(network.params, names, seed, "selftest weights")

    def line(offset: float) -> Line:
        point = network.params
        if offset:
            aside = _weight_direction(point, names, seed, "selftest aside")
            point = {name: part + offset * aside[name] for name, part in point.items()}

        def along(step: float) -> Tensor:
            return network(cloned(x), {name: part + step * direction[name] for name, part in point.items()})

        return Line(along, derivative(network.with_params(point), cloned(x), direction))

    return _agreement(line, arithmetic)


def _agreement(line: Callable[[float], Line], arithmetic: Arithmetic) -> Agreement:
    """Compares at a point; where that fails, beside it.

    On a kink the function has two slopes, and autograd's choice for each unit need not lie between those of the sum. A
    backward pass that fits at a point moved off the kinks by chance is right; one that is wrong fits nowhere. The bend itself
    is no criterion: sums that are 0 up to rounding put kinks at many distances from the point.
    """
    here = line(0.0)
    error = _deviation(here, arithmetic)
    if error <= arithmetic.tolerance:
        return Agreement(error)
    for offset in _ASIDE:
        beside = _deviation(line(offset), arithmetic)
        if beside <= arithmetic.tolerance:
            return Agreement(beside, max(error, _kink(here, arithmetic)))
    return Agreement(error)


def _deviation(line: Line, arithmetic: Arithmetic) -> float:
    """Deviation of a derivative from central differences, at the first step that fits or else the best."""
    best = math.inf
    with torch.no_grad():
        for step in arithmetic.steps:
            error = relative(line.slope, (line.along(step) - line.along(-step)) / (2 * step))
            best = error if error < best else best  # not a number never fits
            if best <= arithmetic.tolerance:
                break
    return best


def _kink(line: Line, arithmetic: Arithmetic) -> float:
    """Relative difference of the slopes on the two sides, 0 where it shrinks or grows with the step."""
    with torch.no_grad():
        middle = line.along(0.0)
        bends = [
            (line.along(step) - 2 * middle + line.along(-step)) / step
            for step in sorted(arithmetic.steps, reverse=True)
        ]
    scale = float(line.slope.abs().max())
    for wide, narrow in itertools.pairwise(bends):
        size = float(narrow.abs().max())
        if size > 0 and relative(wide, narrow) <= _CONSTANT:
            return size / max(scale, size)
    return 0.0


def _random_like(x: Any, seed: int, name: str) -> Any:
    """A random direction in proportion to the inputs."""
    generator = generator_for(torch.device("cpu"), seed, name)
    return tree_map(lambda leaf: _noise(leaf, generator) if is_real(leaf) else leaf, x)


def _noise(part: Tensor, generator: torch.Generator, usual: float = 1.0) -> Tensor:
    """Noise as large as a tensor; where that is 0, of the usual size."""
    size = float(part.square().mean().sqrt()) if part.numel() else 0.0
    return (torch.randn(part.shape, generator=generator, dtype=torch.float64) * (size or usual)).to(part)


def _weight_direction(params: Params, moving: Collection[str], seed: int, name: str) -> Params:
    """A random direction in proportion to the weights, so that a small step stays between the kinks of large networks."""
    generator = generator_for(torch.device("cpu"), seed, name)
    # Biases that start at 0 move as far as weights do: a step of their own would leave the line that differences see.
    squares = sum(float(part.double().square().sum()) for part in params.values())
    usual = math.sqrt(squares / sum(part.numel() for part in params.values())) or 1.0
    noise = {key: _noise(part, generator, usual) for key, part in params.items()}
    return {key: part if key in moving else torch.zeros_like(part) for key, part in noise.items()}


def _moved(x: Any, direction: Any, step: float) -> Any:
    """Inputs moved along a direction; always a copy, since a network may work in place on its input."""
    return tree_map(lambda leaf, way: leaf + step * way if is_real(leaf) else leaf, x, direction)
