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
from biascope.editing.encoder_source import VIT as VIT_SETTINGS
from biascope.editing.encoders.texts import minilm_at_random_weights
from biascope.families.network import Network
from biascope.papers.task_arithmetic2023.plans import CNN, TEXT, VIT
from biascope.papers.task_arithmetic2023.tasks import untrained
from biascope.results.draw import PALETTE, blank, legend_below, panel
from biascope.results.estimate import Estimate, over
from biascope.results.finding import Finding, Tell, figure
from biascope.results.plan import Plan, Row
from biascope.results.wording import snake
from biascope.runs.randomness import forked_rng, generator_for
from biascope.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STEP = 1e-3  # size of a task vector's entries: the cost does not depend on it
_WORDS = {
    "inference time": "around two or three times more",
    "gradient time": "roughly twice the cost",
    "memory of a gradient": "double",
}
_ENCODERS = {"encoders": (CNN, VIT, TEXT), "words": _WORDS}
_PLAN = Plan(
    smoke={**_ENCODERS, "stand-ins": True, "pixels": 8, "batch": 4, "repeats": 2},
    laptop={**_ENCODERS, "stand-ins": False, "pixels": 64, "batch": 32, "repeats": 8},
    paper={**_ENCODERS, "stand-ins": False, "pixels": 64, "batch": 128, "repeats": 30},
    published={"words": _WORDS},
)


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


def network_and_inputs(name: str, plan: Row, run: Run) -> tuple[Network, Tensor]:
    """An architecture at random weights, and random inputs for it: images, or texts of 32 tokens."""
    stream = generator_for(torch.device("cpu"), 0, "inputs", name)
    if name == TEXT and not plan["stand-ins"]:
        with forked_rng(0):
            network = Network.of(minilm_at_random_weights())
        x = torch.randint(1000, 20_000, (plan["batch"], 32), generator=stream)
    else:
        network, channels = untrained(name, plan, run), 1 if plan["stand-ins"] else 3
        side = VIT_SETTINGS["image_size"] if name == VIT and not plan["stand-ins"] else plan["pixels"]
        x = torch.randn(plan["batch"], channels, side, side, generator=stream)
        x = x.contiguous(memory_format=torch.channels_last)
    device = run.torch_device
    return network.to(device, torch.float32), x.to(device)


def _passes(network: Network, x: Tensor, run: Run) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Inference and a gradient of a network with a task vector."""
    stream = generator_for(run.torch_device, 0, "task vector")
    edited = {
        name: tensor.detach() + _STEP * torch.randn(tensor.shape, generator=stream, device=tensor.device)
        for name, tensor in network.params.items()
    }

    def infer() -> None:
        with torch.no_grad():
            network(x, edited)

    def differentiate() -> None:
        params = {name: tensor.detach().requires_grad_() for name, tensor in edited.items()}
        torch.autograd.grad(network(x, params).square().mean(), list(params.values()))

    return infer, differentiate


def _seconds(work: Callable[[], Any], run: Run) -> float:
    """On a CPU the time of this process alone, which other processes do not lengthen."""
    if run.torch_device.type == "cpu":
        start = time.process_time()
        work()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def cost_ratios(network: Network, x: Tensor, *, repeats: int, run: Run) -> tuple[Estimate, Estimate, Estimate]:
    """Costs of the linearised network divided by those of the network: time of inference and of a gradient, memory of a gradient.

    Time is measured by turns, after one pass that warms up. Memory is the peak of all tensors made for one gradient; it has no spread.
    """
    times = []
    for plain, linear in zip(_passes(network, x, run), _passes(linearize(network), x, run), strict=True):
        plain()
        linear()
        seconds = np.array([[_seconds(work, run) for work in (plain, linear)] for _ in range(repeats)])
        times.append(over(seconds[:, 1] / seconds[:, 0]))
    peaks = []
    for gradient in (plain, linear):
        with PeakMemory() as memory:
            gradient()
        peaks.append(memory.peak)
    return times[0], times[1], Estimate.exact(peaks[1] / peaks[0])


def _key(name: str, cost: str) -> str:
    return snake(f"{name} {cost} linearised over plain")


def _drawn(finding: Finding, dark: bool) -> Figure:
    picture = blank(
        2.8, "Cost of the linearised network in units of the network's. Dotted: once, twice and three times."
    )
    axes, colours = panel(picture, dark), PALETTE[dark]
    names = list(finding.settings["encoders"])
    for place, name in enumerate(names):
        numbers = [finding.statistics[_key(name, cost)] for cost in _WORDS]
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
    axes.set(xticks=range(len(_WORDS)), ylim=(0, None), ylabel="linearised / plain")
    axes.set_xticklabels(list(_WORDS))
    legend_below(picture, axes, dark)
    return picture


@figure("section 6.5", title="Cost of linearised networks", plan=_PLAN, show=_drawn)
def section_65(plan: Row, run: Run, tell: Tell) -> None:
    """Time of inference and of a gradient, and the memory of a gradient; costs do not depend on weights, so that these are random."""
    ratios = []
    for name in plan["encoders"]:
        network, x = network_and_inputs(name, plan, run)
        costs = cost_ratios(network, x, repeats=plan["repeats"], run=run)
        for cost, ratio in zip(_WORDS, costs, strict=True):
            tell.about(name)(f"{cost}, linearised / plain", ratio, key=_key(name, cost))
        ratios.append([ratio.value for ratio in costs])
    tell.array("ratios", np.array(ratios))
