"""Draws: the stream of a family's members under a seed, to be sliced into stacks."""

from __future__ import annotations

import dataclasses
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from typing_extensions import override

from biascope.families import weights
from biascope.families.network import Network
from biascope.families.tape import Builder, Tape, block_size, built
from biascope.families.weights import Params, stacked
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.memory import is_out_of_memory, trim
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run


@under_torch_defaults
class Draws(ABC):
    """A stream of members; slices of it are stacks. The last block is cached, so read members in order.

    Args:
        template: One network of the family.
        seed: Random seed of the stream.
        run: Device and precision.
        doubt: Warning about unregistered attributes, said once unless the template is proven to be the user's module.
    """

    def __init__(self, template: Network, seed: int, run: Run, doubt: str = "") -> None:
        self.template, self.seed, self.run = template, seed, run
        self._numbers = weights.count(template.params) + weights.count(template.buffers)
        self.block_size = block_size(self._numbers, run.torch_device)
        self._doubt = doubt

    def __getitem__(self, span: slice) -> Network:
        start, stop = span.start or 0, span.stop
        if stop is None or not 0 <= start < stop:
            raise ValueError(
                f"Members to draw must be a finite range of at least one member, got {start} to {stop}. Pass draws[0:100]."
            )
        origin = self.template.origin
        if self._doubt and (origin is None or not origin.proven):
            warnings.warn(self._doubt, stacklevel=3)
            self._doubt = ""
        return self._members(start, stop)

    def pick(self, indices: Sequence[int]) -> Network:
        """A stack of some members of the stream, in the given order; each equals the member of a slice."""
        if list(indices) == list(range(indices[0], indices[0] + len(indices))):
            return self[indices[0] : indices[0] + len(indices)]
        return _end_to_end([self[index : index + 1] for index in indices])

    def release(self) -> None:
        """Give back the memory of the block that was drawn last."""
        return

    @abstractmethod
    def _members(self, start: int, stop: int) -> Network:
        """Members ``start … stop−1``."""

    def _stack(self, state: Params, members: int) -> Network:
        """Members with the given weights and buffers."""
        template = self.template
        params = {name: state[name] for name in template.params}
        buffers = {name: state[name] for name in template.buffers}
        return dataclasses.replace(template, params=params, buffers=buffers, members=members)


class RepeatedDraws(Draws):
    """One network over and over."""

    def _members(self, start: int, stop: int) -> Network:
        one, size = self.template.to(self.run.torch_device, self.run.dtype), stop - start
        return self._stack({name: tensor.expand(size, *tensor.shape) for name, tensor in one.state.items()}, size)


class GivenDraws(Draws):
    """The members of a stack in order, and round again."""

    def __init__(self, template: Network, seed: int, run: Run, doubt: str, *, stack: Network) -> None:
        super().__init__(template, seed, run, doubt)
        self._given = stack.state
        self._count = stack.members or 1

    def _members(self, start: int, stop: int) -> Network:
        order = torch.arange(start, stop) % self._count
        stack = self._stack({name: tensor[order] for name, tensor in self._given.items()}, stop - start)
        return stack.to(self.run.torch_device, self.run.dtype)


class InitialDraws(Draws):
    """Members at initialisation: replayed in blocks from a tape, or else built one by one."""

    def __init__(
        self, template: Network, seed: int, run: Run, doubt: str, *, build: Builder, tape: Tape | None, name: str
    ) -> None:
        super().__init__(template, seed, run, doubt)
        self._build, self._tape, self._name = build, tape, name
        self._drawn_on = run.torch_device
        self._held: tuple[int, Network] | None = None

    @override
    def release(self) -> None:
        self._held = None

    def _members(self, start: int, stop: int) -> Network:
        device = self.run.torch_device
        try:
            return self._drawn(start, stop).to(device, self.run.dtype)
        except RuntimeError as error:
            if not is_out_of_memory(error) or self._drawn_on.type == "cpu" or start > 0:
                raise
        # The memory of the GPU cannot hold a block: from now on, the members are those of the CPU's stream.
        self._held, self._drawn_on = None, torch.device("cpu")
        self.block_size = block_size(self._numbers, self._drawn_on)
        return self._drawn(start, stop).to(device, self.run.dtype)

    def _drawn(self, start: int, stop: int) -> Network:
        if self._tape is None:
            return self._built(start, stop)
        parts = []
        while start < stop:
            block, first = divmod(start, self.block_size)
            last = min(self.block_size, first + stop - start)
            parts.append(self._block(self._tape, block).slice(first, last))
            start += last - first
        return parts[0] if len(parts) == 1 else _end_to_end(parts)

    def _built(self, start: int, stop: int) -> Network:
        members = built(self._build, self.seed, start, stop)
        for member in members:
            if listed := weights.misfits(member, self.template.state, types=False):
                raise ValueError(
                    f"{self._name} must build the same layers in every draw, but two draws differ: {listed}. Choose the "
                    "layers outside of the builder, and make one family for each architecture."
                )
        return self._stack(stacked(members), stop - start)

    def _block(self, tape: Tape, index: int) -> Network:
        if self._held is None or self._held[0] != index:
            self._held = None  # free the old block before drawing the new one
            trim()
            generator = generator_for(self._drawn_on, self.seed, "weights", index)
            stack = self._stack(tape.draw(self.block_size, generator), self.block_size)
            self._held = (index, stack.to(self._drawn_on, self.run.dtype))
        return self._held[1]


class MappedDraws(Draws):
    """The members of another stream, changed by a function; that stream says what is in doubt."""

    def __init__(
        self, template: Network, seed: int, run: Run, *, before: Draws, transform: Callable[[Network], Network]
    ) -> None:
        super().__init__(template, seed, run)
        self._before, self._transform = before, transform

    @override
    def release(self) -> None:
        self._before.release()

    def _members(self, start: int, stop: int) -> Network:
        return self._transform(self._before[start:stop])


def _end_to_end(parts: Sequence[Network]) -> Network:
    """Several stacks as one."""
    params = {name: torch.cat([part.params[name] for part in parts]) for name in parts[0].params}
    buffers = {name: torch.cat([part.buffers[name] for part in parts]) for name in parts[0].buffers}
    return dataclasses.replace(
        parts[0], params=params, buffers=buffers, members=sum(part.members or 0 for part in parts)
    )
