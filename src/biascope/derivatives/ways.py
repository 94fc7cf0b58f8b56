"""The methods that compute the input gradients of a stack; timing selects the fastest."""

# m members · n inputs per member · D input size

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from biascope.derivatives.fast_layers import ConvolutionAsProduct
from biascope.derivatives.fastest import Way
from biascope.derivatives.gradients import input_difference, input_gradient
from biascope.derivatives.member_threads import MemberThreads, One, of_member
from biascope.derivatives.one_pass import in_passes
from biascope.derivatives.stem import ImpulseDifference, Stem
from biascope.families.network import Network

_STACK = 64  # members at which a stack shows its speed


def exact_ways(
    network: Network, device: torch.device, *, paired: bool, most: int, inputs: int, fitting: int
) -> list[Way]:
    """Methods for the exact gradient.

    Args:
        network: Any member, with its readout.
        device: Where it runs.
        paired: Whether each member has its own inputs.
        most: The largest stack.
        inputs: Of each member.
        fitting: Inputs of all members together that fit into memory at a time.
    """
    if inputs > fitting:
        few = in_passes(input_gradient, fitting)
        return [Way(f"one at a time, {fitting} inputs a pass", 1, _alone(few, paired))]
    most = min(most, fitting // inputs)

    def stacked(stack: Network, x: Any) -> Tensor:
        return input_gradient(stack, x, paired=paired)

    def as_products(stack: Network, x: Any) -> Tensor:
        with ConvolutionAsProduct():
            return input_gradient(stack, x, paired=paired)

    ways = [Way("one at a time", 1, _alone(input_gradient, paired))]
    ways += _for_each_core("", lambda: input_gradient, device, paired, most)
    ways.append(Way("stack", min(_STACK, most), stacked, most))
    if any(isinstance(layer, nn.Conv2d) for layer in network.module.modules()):
        ways.append(Way("stack, convolutions as products,", min(_STACK, most), as_products, most))
    return ways


def difference_ways(network: Network, x: Tensor, *, fresh: bool, step: float, most: int) -> list[Way]:
    """Methods for central differences.

    Args:
        network: Any member, with its readout.
        x: One member's inputs ``(n, …)``.
        fresh: Whether each member has its own inputs; the first layer is split off only where all share one.
        step: Half width of the difference.
        most: The largest stack.
    """
    if not isinstance(x, Tensor):
        raise ValueError(
            "The difference estimator needs inputs that are one tensor. Pass estimator='exact' for others."
        )
    every = 2 * x[0].numel()
    stem = Stem.split(network, x) if not fresh and len(x) == 1 else None

    def plain(batch: int, channels_last: bool = False) -> One:
        return lambda one, inputs: input_difference(one, inputs, step=step, batch=batch, channels_last=channels_last)

    def impulses(batch: int) -> One:
        assert stem is not None
        difference = ImpulseDifference(stem.copied(), x, step, batch)
        return lambda one, _: difference(one)

    def batched(batch: int) -> Callable[[], One]:
        return (lambda: plain(batch)) if stem is None else (lambda: impulses(batch))

    kind = "inputs" if stem is None else "impulses"
    if x.device.type == "cpu":
        # Small batches stay in the cache; a first Linear layer likes large ones.
        alone = [
            Way(f"one at a time, {batch} {kind} a pass", 1, _alone(batched(batch)(), fresh))
            for batch in _sizes(256, every)
        ]
        dealt = [
            _for_each_core(f", {batch} {kind} a pass", batched(batch), x.device, fresh, most)
            for batch in _sizes(128, 512, most=every)
        ]
        return [*alone, *(way for ways in dealt for way in ways)]

    def stacked(stack: Network, inputs: Tensor) -> Tensor:
        return input_difference(stack, inputs, step=step, paired=fresh, batch=every)

    ways = [
        Way(f"one at a time, {batch} inputs a pass", 1, _alone(plain(batch), fresh)) for batch in _sizes(512, every)
    ]
    if stem is not None:
        ways.append(Way(f"one at a time, {every} impulses a pass", 1, _alone(impulses(every), fresh)))
    if x.dim() == 4:
        ways.append(Way(f"one at a time, {every} inputs a pass, channels last", 1, _alone(plain(every, True), fresh)))
    ways.append(Way(f"{every} inputs a pass, stack", min(8, most), stacked, min(_STACK, most)))
    return ways


def _sizes(*batches: int, most: int | None = None) -> list[int]:
    largest = max(batches) if most is None else most
    return sorted({min(batch, largest) for batch in batches})


def _alone(one: One, paired: bool) -> Callable[[Network, Any], Tensor]:
    return lambda stack, inputs: one(stack.member(0), of_member(inputs, 0, paired))[None]


def _for_each_core(name: str, make: Callable[[], One], device: torch.device, paired: bool, most: int) -> list[Way]:
    """Members dealt out to threads, where there are several cores and no GPU."""
    cores = torch.get_num_threads()
    if device.type != "cpu" or not 2 <= cores <= most:
        return []
    return [
        Way(f"one for each core{name}", min(2 * cores, most), MemberThreads([make() for _ in range(cores)], paired))
    ]
