"""Members of a stack shared among threads, one core for each thread.

On a CPU the layers of a small network are too short to be worth splitting over cores: threads wait for one another at the end
of each. Giving every core networks of its own needs no waiting, and keeps its pace when another process takes a core.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from biascope.families.network import Network
from biascope.runs.ambient import one_on_each_core

One = Callable[[Network, Any], Tensor]


class MemberThreads:
    """Gradients of a stack, with its members distributed over threads.

    Args:
        ones: A function ``(network, inputs) -> (n, D)`` for each thread; they must not share state.
        paired: Whether each member has its own inputs.

    Example:
        >>> from biascope.derivatives.gradients import input_gradient
        >>> from biascope.families.family import Family
        >>> from biascope.runs.run import Run
        >>> stack = Family.initialised(lambda: torch.nn.Linear(3, 1)).draw(4, seed=0, run=Run(device="cpu")).read("first")
        >>> threads = MemberThreads([input_gradient, input_gradient], paired=False)
        >>> bool(torch.equal(threads(stack, torch.zeros(1, 3)), input_gradient(stack, torch.zeros(1, 3))))
        True
    """

    def __init__(self, ones: Sequence[One], paired: bool) -> None:
        self._ones, self._paired = list(ones), paired
        self._modules: list[torch.nn.Module] = []

    def __call__(self, stack: Network, inputs: Any) -> Tensor:
        """Gradients ``(m, n, D)``."""
        members, count = stack.members or 0, len(self._ones)
        if not self._modules:  # a module lends its layers to one call at a time, so each thread needs its own
            self._modules = [copy.deepcopy(stack.module) for _ in range(count)]
        edges = [members * part // count for part in range(count + 1)]

        def work(part: int) -> list[Tensor]:
            own = dataclasses.replace(stack, module=self._modules[part])
            chosen = range(edges[part], edges[part + 1])
            return [self._ones[part](own.member(i), of_member(inputs, i, self._paired)) for i in chosen]

        with one_on_each_core(count) as pool:
            parts = list(pool.map(work, range(count)))
        return torch.stack([gradient for part in parts for gradient in part])


def of_member(inputs: Any, member: int, paired: bool) -> Any:
    """One member's inputs, of a stack whose members have their own or share them."""
    return tree_map(lambda leaf: leaf[member], inputs) if paired else inputs
