"""Checks that a network gives the same output twice, and treats each input of a batch independently.

Derivatives at an input mean something only if the output is a function of that input. Deviations are judged against the
*spread* of the outputs over inputs, since a large constant offset would hide them, and in float64 wherever the network allows.
"""

# n inputs · p outputs

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from biascope.derivatives.gradients import plain_attention
from biascope.families.inputs import cloned, placed, taken
from biascope.families.network import Network
from biascope.runs.randomness import forked_rng, generator_for, seed_of

_COMPANIONS = 3  # inputs made up to fill a batch
_ALONE = 2  # inputs at most that are also passed one at a time
# Of the spread, for equal passes, which repeat to the last bits; and for batches of other sizes, which round differently.
_REPEATED, _REBATCHED = 32, 300  # times the rounding unit
_LEAST = 1e-9  # of the spread: what rounding amounts to behind many layers in float64
_MOST = 3e-2  # of the spread: what 16-bit numbers amount to
_OFFSET = 64  # times the rounding unit: of the largest output, whose last digits no spread can be finer than


@dataclass(frozen=True)
class Separateness:
    """How far the outputs of a network depend on more than their own input.

    Attributes:
        noise: Largest deviation between two equal passes, relative to what rounding explains; up to 1 is none.
        coupling: Largest deviation between batches that hold an input together with other inputs, likewise.
        relative_noise: The first deviation relative to the spread of the outputs over inputs.
        relative_coupling: The second, likewise.
    """

    noise: float
    coupling: float
    relative_noise: float
    relative_coupling: float

    @property
    def random(self) -> bool:
        """Whether the same input gives other outputs the next time."""
        return not self.noise <= 1

    @property
    def coupled(self) -> bool:
        """Whether an input's output depends on the other inputs of its batch."""
        return not self.random and not self.coupling <= 1


def separateness(network: Network, x: Any) -> Separateness:
    """Pass inputs through a network repeatedly and in several batches, in float64 where it allows, and compare the outputs.

    Args:
        network: One network.
        x: Inputs ``(n, …)``, any pytree. A few made-up inputs of the same scale join them in a batch.

    Example:
        >>> found = separateness(Network.of(torch.nn.Linear(3, 1)), torch.ones(2, 3))
        >>> found.random, found.coupled
        (False, False)
    """
    dtype, rounding = exact_type(network, x)
    like = next(iter(network.params.values()))
    network = network.to(like.device, dtype)
    x = placed(x, None, dtype)
    # A random forward pass must not advance the user's generators.
    with torch.no_grad(), plain_attention(), forked_rng(seed_of(0, "separateness")):
        expected = _outputs(network, x)
        again = _outputs(network, x)
        batches = _other_batches(network, x, len(expected))
        company = _in_company(network, x)
    spread = expected
    if company is not None:
        spread = torch.cat([expected, company[:_COMPANIONS]])
        batches.append((torch.arange(len(expected)), company[_COMPANIONS:]))
    noise = deviation(again, expected, spread, rounding, repeated=True)
    couplings = [deviation(found, expected[rows], spread, rounding) for rows, found in batches]
    coupling = max(couplings, default=(0.0, 0.0))
    return Separateness(noise[0], coupling[0], noise[1], coupling[1])


def check_separateness(network: Network, x: Any, name: str) -> None:
    """Refuse a network whose output is not a function of one input.

    Args:
        network: One network.
        x: Inputs ``(n, …)``, any pytree.
        name: Name in error messages.

    Raises:
        ValueError: If its forward pass is random, or the inputs of a batch influence one another.
    """
    found = separateness(network, x)
    if found.random:
        raise ValueError(
            f"{name} must give the same output for the same input, but its forward pass is random "
            f"(outputs change by {found.relative_noise:.1g} of their spread). Remove the noise."
        )
    if found.coupled:
        raise ValueError(
            f"{name} must treat the inputs of a batch independently, but its outputs depend on the other inputs "
            f"(by {found.relative_coupling:.1g} of their spread). Remove that dependence."
        )


def deviation(
    found: Tensor, expected: Tensor, spread_of: Tensor, rounding: float, *, repeated: bool = False
) -> tuple[float, float]:
    """Deviation of outputs from the expected ones, relative to rounding and to their spread.

    Args:
        found: Outputs ``(n, p)``.
        expected: What they should be.
        spread_of: Outputs ``(m, p)`` on several inputs: the spread of each output is what counts, not its offset.
        rounding: The rounding unit of the coarsest type that they were computed in.
        repeated: Whether they come from equal passes, which leaves hardly anything to rounding.
    """
    if found.shape != expected.shape:
        return float("inf"), float("inf")
    found, expected, spread_of = found.double(), expected.double(), spread_of.double()
    same = (found == expected) | (found.isnan() & expected.isnan())  # what is not finite is for others to refuse
    if bool(same.all()):
        return 0.0, 0.0
    spread_of = spread_of[torch.isfinite(spread_of).all(1)]
    if not len(spread_of):
        return float("inf"), float("inf")
    spread = spread_of.amax(0) - spread_of.amin(0)
    share = min(_MOST, (_REPEATED if repeated else _REBATCHED) * rounding)
    allowed = max(_LEAST, share) * spread + _OFFSET * rounding * spread_of.abs().max()
    error = torch.where(same, 0.0, (found - expected).abs())
    tiny = torch.finfo(torch.float64).tiny
    return float((error / allowed.clamp_min(tiny)).max()), float(error.max() / spread.max().clamp_min(tiny))


def exact_type(network: Network, x: Any) -> tuple[torch.dtype, float]:
    """The finest type that a network runs in, and the rounding unit of the coarsest type that it computes in there.

    A network may convert to float32 by itself: it then runs in float64, and rounds like float32.
    """
    like = next(iter(network.params.values()))
    one = taken(x, slice(1))
    for dtype in dict.fromkeys((torch.float64, like.dtype)):
        seen = _Roundings()  # type: ignore[no-untyped-call]
        with contextlib.suppress(Exception), torch.no_grad(), plain_attention():  # any forward pass may raise anything
            inputs = placed(one, None, dtype, copy=True)
            changed = network.to(like.device, dtype)
            with seen:
                outputs = changed(inputs)
            if outputs.is_floating_point():
                return dtype, max(seen.coarsest, torch.finfo(outputs.dtype).eps)
    return like.dtype, torch.finfo(like.dtype).eps


def coarsest_rounding(network: Network, x: Any) -> float:
    """The rounding unit of the coarsest type that a network computes in, as it is: some cast to narrower numbers inside."""
    seen = _Roundings()  # type: ignore[no-untyped-call]
    with torch.no_grad(), plain_attention(), seen:
        network(x)
    return seen.coarsest


class _Roundings(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the types of all that is computed."""

    coarsest = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in tree_leaves(args)):
            found = [each for each in tree_leaves(results) if isinstance(each, Tensor) and each.is_floating_point()]
            self.coarsest = max([self.coarsest, *(torch.finfo(each.dtype).eps for each in found)])
        return results


def companions(x: Any) -> Any:
    """Inputs in front of which a few others stand: numbers of the same mean and spread, ids that occur in the batch."""
    leaves, structure = tree_flatten(x)
    joined = []
    for index, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor) or not leaf.dim():
            joined.append(leaf)
            continue
        generator = generator_for(leaf.device, 0, "companions", index)
        shape = (_COMPANIONS, *leaf.shape[1:])
        if leaf.is_floating_point():
            numbers = leaf.double()
            scale = float(numbers.std(correction=0)) or float(numbers.abs().mean()) or 1.0
            made = torch.randn(shape, generator=generator, dtype=torch.float64, device=leaf.device)
            made = (numbers.mean() + scale * made).to(leaf.dtype)
        else:
            places = torch.randint(leaf.numel(), shape, generator=generator, device=leaf.device)
            made = leaf.flatten()[places]
        joined.append(torch.cat([made, leaf]))
    return tree_unflatten(joined, structure)


def _outputs(network: Network, x: Any) -> Tensor:
    """``(n, p)``, of a copy: a network may work in place on its input."""
    found = network(cloned(x)).detach()
    return found.reshape(len(found), -1) if found.dim() else found.reshape(1, 1)


def _other_batches(network: Network, x: Any, count: int) -> list[tuple[Tensor, Tensor]]:
    """Outputs of some of the inputs in other batches: alone, in a pair, and all in another order."""
    some = sorted({round(index * (count - 1) / (_ALONE - 1)) for index in range(_ALONE)})
    batches = [torch.tensor([index]) for index in some] if count > 1 else []
    if count > 2:
        batches += [torch.tensor([count - 1, 0]), torch.arange(count - 1, -1, -1).roll(1)]
    return [(places, _outputs(network, taken(x, places))) for places in batches]


def _in_company(network: Network, x: Any) -> Tensor | None:
    """Outputs of a few made-up inputs and of the given ones behind them; ``None`` where the network does not take them."""
    try:
        return _outputs(network, companions(x))
    except Exception:  # a network may refuse what is made up
        return None
