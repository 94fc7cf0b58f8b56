"""Observer: records what ``fit`` records, for a user's own training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from biascope.families import weights
from biascope.families.family import Network
from biascope.training.fit import Trajectory


class Observer:
    """Records your own training loop: call it once per iteration, after the optimiser's step.

    It keeps the loss curve, the first iteration below a threshold, divergence and the way the weights have gone, and calls
    hooks with the network at chosen iterations, where any measurement can be made of it.

    Args:
        module: The network in training.
        at: Iterations (counted from 1; 0 is the start) at which hooks are called and weights saved.
        hooks: Functions of (iteration, Network) by name; their return values are stored under that name in :attr:`seen`.
        threshold: Loss threshold.
        keep: Whether the weights at those iterations are saved, for :meth:`Trajectory.at`.
        folder: Where to write them as ``step-N.safetensors``, for ``biascope scan --checkpoints``.

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
        at: Sequence[int] = (),
        hooks: Mapping[str, Callable[[int, Network], Any]] | None = None,
        threshold: float | None = None,
        keep: bool = True,
        folder: Path | str | None = None,
    ) -> None:
        self._module, self._at, self._hooks = module, set(at), dict(hooks or {})
        self._threshold, self._keep = threshold, keep
        self._folder = None if folder is None else Path(folder)
        self._start = Network.of(module)
        self._losses: list[float] = []
        self._kept: dict[int, Network] = {}
        self.seen: dict[str, dict[int, Any]] = {name: {} for name in self._hooks}
        self._look(0)

    def __call__(self, loss: float | Tensor) -> None:
        """Note an iteration that was just made, and its loss."""
        self._losses.append(float(loss.detach() if isinstance(loss, Tensor) else loss))
        self._look(len(self._losses))

    def _look(self, step: int) -> None:
        if step not in self._at:
            return
        network = Network.of(self._module)  # a copy in eval mode: the training is not disturbed
        if self._keep:
            self._kept[step] = network
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            weights.save({**network.params, **network.buffers}, self._folder / f"step-{step}.safetensors")
        for name, hook in self._hooks.items():
            self.seen[name][step] = hook(step, network)

    def trajectory(self) -> Trajectory:
        """Everything recorded so far."""
        now = Network.of(self._module)
        losses = torch.tensor(self._losses, dtype=torch.float64)[:, None]
        below = [
            step for step, loss in enumerate(self._losses, 1) if self._threshold is not None and loss < self._threshold
        ]
        broken = [step for step, loss in enumerate(self._losses, 1) if not math.isfinite(loss)]
        start, end = (torch.cat([p.flatten() for p in network.params.values()]) for network in (self._start, now))
        return Trajectory(
            now,
            losses,
            torch.tensor([below[0] if below else -1]),
            torch.tensor([broken[0] if broken else -1]),
            (end - start).norm()[None].cpu(),
            start.norm()[None].cpu(),
            end.norm()[None].cpu(),
            self._kept,
        )
