"""Section 6.5 of the thesis: what a linearised network costs, in time and memory, beside the network itself."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from biascope.derivatives.linearize import linearize
from biascope.families.family import Network
from biascope.papers.selection import old_figure
from biascope.papers.task_arithmetic2023.tasks import CNN, TEXT, VIT, untrained_on_samples
from biascope.results.draw import PALETTE, blank, legend_below, panel
from biascope.results.estimate import Estimate, Number, over
from biascope.results.finding import Finding
from biascope.results.wording import snake
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_REPEATS = {"smoke": 2, "laptop": 8, "paper": 30}
_BATCH = {"smoke": 4, "laptop": 32, "paper": 128}
_STEP = 1e-3  # size of a task vector's entries: the cost does not depend on it


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most bytes that tensors made inside occupied at one time, on any device.

    Example:
        >>> with PeakMemory() as memory:
        ...     for _ in range(3):
        ...         made = torch.zeros(256)  # the next is made before the last is dropped
        >>> memory.peak
        2048
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes: dict[int, int] = {}
        self._now, self.peak = 0, 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Carry out an operation and count the memory of its outputs, until it is freed."""
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            if storage._cdata not in self._sizes:
                self._sizes[storage._cdata] = storage.nbytes()
                self._now += storage.nbytes()
                self.peak = max(self.peak, self._now)
                weakref.finalize(storage, self._freed, storage._cdata)
        return made

    def _freed(self, storage: int) -> None:
        self._now -= self._sizes.pop(storage)


class _Costs:
    """Inference and gradients of one network, linearised or not."""

    def __init__(self, network: Network, x: Tensor, run: Run) -> None:
        stream = generator_for(run.torch_device, 0, "task vector")
        self._network, self._x, self._run = network, x, run
        self._params = {
            name: tensor.detach() + _STEP * torch.randn(tensor.shape, generator=stream, device=tensor.device)
            for name, tensor in network.params.items()
        }

    def infer(self) -> None:
        with torch.no_grad():
            self._network(self._x, self._params)

    def differentiate(self) -> None:
        params = {name: tensor.detach().requires_grad_() for name, tensor in self._params.items()}
        torch.autograd.grad(self._network(self._x, params).square().mean(), list(params.values()))

    def seconds(self, work: Callable[[], None]) -> float:
        """On a CPU the time of this process alone, which other processes do not lengthen."""
        if self._run.torch_device.type == "cpu":
            start = time.process_time()
            work()
            return time.process_time() - start
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def memory(self) -> int:
        memory = PeakMemory()
        with memory:
            self.differentiate()
        return memory.peak


def cost_ratios(network: Network, x: Tensor, *, repeats: int, run: Run) -> dict[str, Estimate]:
    """Costs of the linearised network divided by those of the network: inference, gradient, memory.

    Time is measured by turns, after one pass that warms up. Memory is the peak of all tensors made for one gradient; it has no spread.
    """
    both = [_Costs(each, x, run) for each in (network, linearize(network))]
    found = {}
    for name in ("infer", "differentiate"):
        for each in both:
            getattr(each, name)()
        seconds = [[each.seconds(getattr(each, name)) for each in both] for _ in range(repeats)]
        plain, linear = np.array(seconds).T
        found[name] = over(linear / plain)
    plain_memory, linear_memory = (each.memory() for each in both)
    return {
        "inference time": found["infer"],
        "gradient time": found["differentiate"],
        "memory of a gradient": Estimate.exact(linear_memory / plain_memory),
    }


_SAID = {
    "inference time": ("linearised_inference_takes_two_to_three_times", 2.5, "around two or three times more"),
    "gradient time": ("linearised_gradient_takes_twice", 2.0, "roughly twice the cost"),
    "memory of a gradient": ("linearised_training_needs_twice_the_memory", 2.0, "double"),
}


def _key(name: str, cost: str) -> str:
    return snake(f"{name} {cost} linearised over plain")


def _drawn(finding: Finding, dark: bool) -> Figure:
    picture = blank(
        2.8, "Cost of the linearised network in units of the network's. Dotted: once, twice and three times."
    )
    axes, colours = panel(picture, dark), PALETTE[dark]
    names = list(finding.settings["encoders"])
    for place, name in enumerate(names):
        numbers = [finding.statistics[_key(name, cost)] for cost in _SAID]
        at = np.arange(len(numbers)) + 0.25 * (place - (len(names) - 1) / 2)
        reach = [np.nan_to_num(number.high - number.value) for number in numbers]
        axes.bar(
            at,
            [number.value for number in numbers],
            0.22,
            yerr=reach,
            ecolor=colours.ink,
            color=colours.lines[place],
            label=name,
        )
    for level in (1, 2, 3):
        axes.axhline(level, linestyle=":", linewidth=0.8, color=colours.ink)
    axes.set(xticks=range(len(_SAID)), ylim=(0, None), ylabel="linearised / plain")
    axes.set_xticklabels(list(_SAID))
    legend_below(picture, axes, dark)
    return picture


@old_figure(
    "section 6.5",
    title="Cost of linearised networks",
    show=_drawn,
    published={"words": {cost: words for cost, (_, _, words) in _SAID.items()}},
)
def section_65(effort: str, run: Run) -> Finding:
    """Time of inference and of a gradient, and the memory of a gradient; costs do not depend on weights, so that these are random."""
    statistics: dict[str, Number] = {}
    names = (CNN, VIT, TEXT)
    for name in names:
        network, x = untrained_on_samples(name, effort, run, _BATCH[effort])
        for cost, each in cost_ratios(network, x, repeats=_REPEATS[effort], run=run).items():
            statistics[_key(name, cost)] = each.named(f"{name}: {cost}, linearised / plain")
    settings = {
        "encoders": list(names),
        "batch": _BATCH[effort],
        "repeats": _REPEATS[effort],
        "words": {cost: words for cost, (_, _, words) in _SAID.items()},
    }
    ratios = np.array([[statistics[_key(name, cost)].value for cost in _SAID] for name in names])
    return Finding(statistics, {"ratios": ratios}, settings)
