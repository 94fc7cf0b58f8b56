"""Statistics of draws: numbers that each network of a family gives at its own inputs, in resumable groups of draws."""

# T draws · n inputs · p outputs

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.backends import cudnn, mkldnn
from torch.utils._pytree import tree_map

from biascope.derivatives.draw_memory import GROUPS
from biascope.derivatives.gradients import forward_only, plain_attention
from biascope.derivatives.measurable import check_variation, checked_outputs
from biascope.derivatives.one_pass import in_passes, pass_tried
from biascope.families.acceptance import differentiated
from biascope.families.draws import Draws
from biascope.families.family import Family
from biascope.families.inputs import taken
from biascope.families.network import Network
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.randomness import forked_rng, generator_for, seed_of
from biascope.runs.run import Run
from biascope.runs.trials import Trials
from biascope.tasks.probe import Probe


class NotFiniteError(ValueError):
    """An output or a derivative of a draw is infinite or NaN."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """One draw of a family, as a function of inputs.

    Attributes:
        network: The network at its weights, with its readout.
        at_once: Inputs that a pass may take.
        generator: Random numbers of this draw, which depend on its number and the seed alone.
        name: Of the family, for errors.
    """

    network: Network
    at_once: int
    generator: torch.Generator
    name: str

    def __call__(self, x: Any) -> Tensor:
        """Outputs ``(n, p)`` in float64, without derivatives.

        Raises:
            NotFiniteError: If an output is not finite.
        """

        def outputs(network: Network, inputs: Any) -> Tensor:
            found = network(inputs)
            return found.reshape(len(found), -1)

        with forward_only(self.generator.device):
            return self._finite(in_passes(outputs, self.at_once)(self.network, x).double())

    def slopes(self, x: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs ``(n, p)`` and their derivatives along a direction for each input, in float64.

        Args:
            x: Inputs ``(n, …)``.
            directions: One for each input, ``(n, …)``.

        Raises:
            NotFiniteError: If an output or a derivative is not finite.
            ValueError: If the network has no forward derivative.
        """

        def both(network: Network, pair: Any) -> Tensor:
            with differentiated(self.name):
                try:
                    found, tangent, *_ = torch.func.jvp(network, (pair[0],), (pair[1],))
                except NotImplementedError:  # fused recurrences have no forward mode
                    with _unfused():
                        found, tangent, *_ = torch.func.jvp(network, (pair[0],), (pair[1],))
            return torch.stack([found.reshape(len(found), -1), tangent.reshape(len(found), -1)], dim=1)

        found = self._finite(in_passes(both, self.at_once)(self.network, (x, directions)).double())
        return found[:, 0], found[:, 1]

    def gradients(self, x: Tensor, scalar: Callable[[Tensor], Tensor]) -> Tensor:
        """Gradients ``(n, …)`` of a scalar of the outputs by each input, in float64.

        Args:
            x: Inputs ``(n, …)``.
            scalar: Of outputs ``(n, …)``, the numbers ``(n,)``.

        Raises:
            ValueError: If a gradient is not finite.
        """

        def gradient(network: Network, inputs: Any) -> Tensor:
            moving = inputs.detach().clone().requires_grad_()
            with torch.enable_grad():
                outputs = scalar(network(moving + 0)).sum()  # a network may work in place on its input
            found: Tensor = torch.autograd.grad(outputs, moving, allow_unused=True, materialize_grads=True)[0]
            return found.detach()

        return self._finite(in_passes(gradient, self.at_once)(self.network, x).double())

    def at(self, network: Network) -> Drawn:
        """The same draw at other weights."""
        return dataclasses.replace(self, network=network)

    def _finite(self, found: Tensor) -> Tensor:
        if not bool(torch.isfinite(found).all()):
            raise NotFiniteError(
                f"{self.name} must give finite outputs and derivatives, but some are infinite or NaN. Check its initialisation, or "
                "try precision='float64'."
            )
        return found


@contextlib.contextmanager
def _unfused() -> Iterator[None]:
    """Without the fused layers of cuDNN and oneDNN."""
    fused: tuple[Any, ...] = cudnn, mkldnn
    before = [library.enabled for library in fused]
    for library in fused:
        library.enabled = False
    try:
        yield
    finally:
        for library, enabled in zip(fused, before, strict=True):
            library.enabled = enabled


Statistic = Callable[[Drawn, Any], Tensor]


@dataclass(frozen=True, eq=False)
class DrawStream:
    """The draws of a family, each with its own inputs, one after another.

    Attributes:
        family: The networks.
        probe: The inputs of each draw.
        readout: How several outputs become one scalar; ``None`` leaves them as they are.
        seed: Random seed for the weights and for :attr:`Drawn.generator`.
        run: Device and precision.
        few: Inputs of the first draw, as many as checks look at.
        at_once: Inputs that a pass may take.
    """

    family: Family
    probe: Probe
    readout: str | None
    seed: int
    run: Run
    few: Any
    at_once: int

    @staticmethod
    def of(family: Family, probe: Probe, *, readout: str | None, seed: int, run: Run) -> DrawStream:
        """The draws under a seed, after a check that the networks can be measured at these inputs.

        Raises:
            ValueError: If they cannot.
        """
        own = probe.inputs(0, 1, run)
        first = tree_map(lambda leaf: leaf[0], own) if probe.fresh else own
        with plain_attention(), forked_rng(seed_of(seed, "forward", 0)):
            one = pass_tried(family.template.to(run.torch_device, run.dtype), first)
            few = taken(first, slice(one.inputs_checked(probe.num)))
            checked_outputs(family, few, probe, run)
            check_variation(family, family.draws(seed=seed, run=run))
        return DrawStream(family, probe, readout, seed, run, few, one.inputs_at_once(run))

    def map(self, statistic: Statistic, start: int, stop: int, advance: Callable[[int], None]) -> Tensor:
        """What a statistic gives for draws ``start … stop−1``, ``(T, …)`` in float64, on the CPU."""
        device, run, fresh = self.run.torch_device, self.run, self.probe.fresh
        members, found = self._members, []
        template = self.family.template.to(device, run.dtype)
        while start < stop:
            last = min(stop, start + min(members.block_size, 64))
            inputs = self.probe.inputs(start, last, run)
            stack = members[start:last] if self.family.size != 1 else None
            for index in range(start, last):
                network = template if stack is None else stack.member(index - start)
                network = network if self.readout is None else network.read(self.readout)
                x = tree_map(lambda leaf: leaf[index - start], inputs) if fresh else inputs  # noqa: B023
                drawn = Drawn(
                    network, self.at_once, generator_for(device, self.seed, "statistic", index), self.family.name
                )
                with run.products(), plain_attention(), forked_rng(seed_of(self.seed, "forward", index)):
                    found.append(statistic(drawn, x).double().cpu())
                advance(1)
            start = last
        return torch.stack(found)

    @functools.cached_property
    def _members(self) -> Draws:
        return self.family.draws(seed=self.seed, run=self.run)


@under_torch_defaults
def draw_statistics(
    family: Family,
    probe: Probe,
    statistic: Statistic,
    *,
    draws: int,
    readout: str | None,
    seed: int,
    run: Run,
    label: str,
    **settings: Any,
) -> Tensor:
    """What a statistic gives for each draw, at the draw's own inputs.

    A draw is a network with its inputs; where the family is one network, it is a set of inputs. Draws are independent, so the spread
    over them is the error of their mean.

    Args:
        family: The networks.
        probe: The inputs of each draw.
        statistic: ``(drawn, inputs) -> numbers`` of one shape. Its code and what it closes over belong to the identity of the work.
        draws: How many, at least 2.
        readout: How several outputs become one scalar; ``None`` leaves them as they are.
        seed: Random seed for the weights and for :attr:`Drawn.generator`.
        run: Folder, device, precision.
        label: Of the progress bar, and name of the work.
        settings: All that the numbers depend on besides.

    Returns:
        ``(T, …)`` in float64, on the CPU.

    Raises:
        ValueError: If the network cannot be measured at these inputs, or there are too few draws.

    Example:
        >>> family = Family.initialised(lambda: torch.nn.Linear(9, 1, bias=False), name="linear")
        >>> def squared(drawn, x):
        ...     return drawn(x).square().mean()[None]
        >>> found = draw_statistics(family, Probe.gaussian((9,), num=50, fresh=True), squared, draws=200, readout="first", seed=0,
        ...     run=Run(device="cpu"), label="squared outputs")
        >>> found.shape, bool(abs(found.mean() - 9 / 27) < 0.03)  # nine weights of variance 1/27
        (torch.Size([200, 1]), True)
    """
    if draws < 2:
        raise ValueError(f"draws must be at least 2 to estimate a spread, got {draws}. Pass draws=100 or more.")
    if family.size == 1 and not probe.fresh:
        raise ValueError(
            f"One network needs fresh inputs for each draw, got {probe.description}. Pass Probe.gaussian(shape, num=16, fresh=True), "
            "or --fresh."
        )
    stream = DrawStream.of(family, probe, readout=readout, seed=seed, run=run)
    trials = Trials(
        label,
        run,
        code=(DrawStream, Drawn, statistic),
        at=stream.few,
        family=family,
        probe=probe,
        readout=readout,
        draws=draws,
        seed=seed,
        **settings,
    )
    count = min(GROUPS, draws)
    edges = [draws * index // count for index in range(count + 1)]
    keys = [f"draws-{edges[index]}-{edges[index + 1]}" for index in range(count)]
    parts = []
    with trials.alone():
        done = sum(edges[index + 1] - edges[index] for index in range(count) if trials.done(keys[index]))
        with run.tracked(label, draws, done) as advance:
            for index, key in enumerate(keys):
                if not trials.done(key):
                    found = stream.map(statistic, edges[index], edges[index + 1], advance)
                    trials.write(key, {"statistics": found})
                parts.append(trials.read(key)["statistics"])
    return torch.cat(parts)
