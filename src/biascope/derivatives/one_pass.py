"""What one pass of a network takes, counted at one input and not timed: operations, and bytes that its backward pass keeps.

From these counts follow how many inputs a pass may take and how many a check looks at. So a repeated command does the same.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from biascope.derivatives.gradients import plain_attention
from biascope.families.inputs import is_real, taken
from biascope.families.network import Network
from biascope.runs.failures import FOREIGN
from biascope.runs.run import Run

_ROOM = 2**25  # bytes that backward passes may keep at a time for each core of a CPU, at least two: more is no faster …
_SHARE = 8  # … and on a GPU one part in so many of its memory
_MOVED = 20.0  # operations in the time in which a byte that a layer leaves behind goes through memory
_CHECKED = 2e10  # operations of a forward pass of all the inputs that a check looks at


@dataclass(frozen=True)
class OnePass:
    """What one pass at one input takes.

    Attributes:
        operations: Floating-point operations of the forward pass, in layers that torch counts.
        kept: Bytes that the backward pass by the input keeps, beside the weights.
    """

    operations: float
    kept: int

    @property
    def work(self) -> float:
        """Operations, and what moving numbers through memory costs, which is most of what a scan of a state space model does.

        Example:
            >>> OnePass(1e9, 10**6).work
            1020000000.0
        """
        return self.operations + _MOVED * self.kept

    def inputs_at_once(self, run: Run) -> int:
        """How many inputs backward passes may take at a time.

        Example:
            >>> run = Run(device="cpu", memory="8GB")
            >>> [OnePass(0.0, kept).inputs_at_once(run) for kept in (2**20, 2**40)] == [32 * max(2, torch.get_num_threads()), 1]
            True
        """
        device = run.torch_device
        if device.type == "cuda":
            room = torch.cuda.get_device_properties(device).total_memory // _SHARE
        else:
            room = run.room(_ROOM * max(2, torch.get_num_threads()))
        return max(1, room // max(1, self.kept))

    def inputs_checked(self, inputs: int) -> int:
        """At how many of so many inputs a check looks: two where a pass is dear.

        A check that a network is a function of one input compares outputs of equal passes, alone and in company. What it finds does not
        depend on the number of inputs, unless a network counts them; two suffice to be alone, in company and in another order.

        Example:
            >>> OnePass(1e6, 0).inputs_checked(64), OnePass(4e9, 0).inputs_checked(64), OnePass(4e9, 0).inputs_checked(1)
            (64, 5, 1)
        """
        return min(inputs, max(2, int(_CHECKED / max(1.0, self.operations))))


def one_pass(network: Network, x: Any) -> OnePass:
    """What one pass takes, at the first of some inputs.

    Args:
        network: One network.
        x: Inputs ``(n, …)``, any pytree.

    Example:
        >>> network = Network.of(torch.nn.Sequential(torch.nn.Linear(3, 1000), torch.nn.Tanh(), torch.nn.Linear(1000, 1)))
        >>> one_pass(network, torch.zeros(2, 3))  # kept is what Tanh gives, in float32
        OnePass(operations=8000, kept=4000)
    """
    from torch.utils.flop_counter import FlopCounterMode

    network = network.with_params({name: tensor.detach() for name, tensor in network.params.items()})
    own = {tensor.untyped_storage()._cdata for tensor in network.state.values()}
    kept: dict[int, Tensor] = {}  # alive, so that no storage address is used twice

    def keep(tensor: Tensor) -> Tensor:
        if (place := tensor.untyped_storage()._cdata) not in own:
            kept[place] = tensor
        return tensor

    # A copy goes in, since a network may work in place on its input.
    one = tree_map(lambda leaf: leaf.clone().requires_grad_() + 0 if is_real(leaf) else leaf, taken(x, slice(1)))
    with (
        warnings.catch_warnings(action="ignore"),  # of compiled modules, on the hooks of the counter
        torch.enable_grad(),
        plain_attention(),
        FlopCounterMode(display=False) as counter,
        torch.autograd.graph.saved_tensors_hooks(keep, lambda each: each),
    ):
        network(one)
    return OnePass(counter.get_total_flops(), sum(tensor.untyped_storage().nbytes() for tensor in kept.values()))


def pass_tried(network: Network, x: Any) -> OnePass:
    """The same; nothing is known of it where it fails, which the checks of a measurement tell."""
    try:
        return one_pass(network, x)
    except FOREIGN:
        return OnePass(0.0, 0)


def in_passes(gradient: Callable[[Network, Any], Tensor], most: int) -> Callable[[Network, Any], Tensor]:
    """The same gradients of one network with at most so many inputs a pass, in passes of nearly equal size."""

    def of_inputs(network: Network, x: Any) -> Tensor:
        count = next(len(leaf) for leaf in tree_leaves(x) if isinstance(leaf, Tensor) and leaf.dim())
        size = math.ceil(count / math.ceil(count / most))
        parts = [gradient(network, taken(x, slice(first, first + size))) for first in range(0, count, size)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    return of_inputs
