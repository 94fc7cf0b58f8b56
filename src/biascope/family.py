"""WHO is measured. Network: a function of weights and input. Family: an architecture and a law over its weights."""

# m members · n inputs per member · p outputs

from __future__ import annotations

import copy
import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from biascope import weights
from biascope.gradient_hooks import leave_out_gradient_hooks
from biascope.initialisation import Builder, Tape, TapeError, block_size, built
from biascope.randomness import forked_rng, generator_for, seed_of
from biascope.readout import READOUTS, read_out
from biascope.run import Run
from biascope.weights import Params, stacked

BATCHNORM_MODES = ("eval", "train")


@dataclass(frozen=True)
class Network:
    """A function of weights and input, for one network or a stack of networks of the same architecture.

    The module serves as the recipe of the forward pass only: its own weights are never read or changed.

    Attributes:
        module: The forward pass.
        params: Trainable weights by name; with a leading axis over members for a stack.
        buffers: The other state (BatchNorm statistics), likewise.
        members: Number of members of a stack, ``None`` for one network.
        readout: How several outputs become one scalar; ``None`` leaves them as they are.
        couples_inputs: Whether inputs of one batch influence one another (BatchNorm in train mode); they are then
            passed one at a time.

    Example:
        >>> network = Network.of(nn.Linear(2, 1, bias=False))
        >>> network.with_params({"weight": torch.tensor([[1.0, 2.0]])})(torch.tensor([[3.0, 4.0]]))
        tensor([[11.]])
    """

    module: nn.Module
    params: Params
    buffers: Params
    members: int | None = None
    readout: str | None = None
    couples_inputs: bool = False

    @staticmethod
    def of(module: nn.Module, batchnorm: str = "eval") -> Network:
        """A network at the module's present weights, which are copied; dropout is off."""
        recipe, couples = _recipe(module, batchnorm)
        leave_out_gradient_hooks(module, recipe)
        params = {name: tensor.detach().clone() for name, tensor in recipe.named_parameters()}
        buffers = {name: tensor.detach().clone() for name, tensor in recipe.named_buffers()}
        return Network(recipe, params, buffers, couples_inputs=couples)

    def __call__(self, x: Any, params: Params | None = None) -> Tensor:
        """Outputs for inputs ``(n, …)``; a stack answers with a leading axis over its members."""
        given = self.params if params is None else params
        if self.members is None:
            return self.apply(given, self.buffers, x)
        return vmap(self.apply, in_dims=(0, 0, None))(given, self.buffers, x)

    def apply(self, params: Params, buffers: Params, x: Any) -> Tensor:
        """Outputs of one network at given weights: what transformations (grad, vmap, jvp) are taken of."""

        def single(inputs: Any) -> Tensor:
            arguments = inputs if isinstance(inputs, tuple) else (inputs,)
            keywords: dict[str, Any] = {}
            if isinstance(inputs, dict):
                arguments, keywords = (), inputs
            outputs = functional_call(self.module, (params, buffers), arguments, keywords)
            return outputs if self.readout is None else read_out(outputs, self.readout)

        if not self.couples_inputs:
            return single(x)
        alone = torch.utils._pytree.tree_map(lambda tensor: tensor.unsqueeze(1), x)
        return vmap(single)(alone).squeeze(1)

    def with_params(self, params: Params, buffers: Params | None = None) -> Network:
        """The same function at other weights."""
        return dataclasses.replace(self, params=params, buffers=self.buffers if buffers is None else buffers)

    def read(self, readout: str) -> Network:
        """The network with one scalar output per input.

        Raises:
            ValueError: If there is no such readout.
        """
        if readout not in READOUTS:
            known = ", ".join(repr(name) for name in READOUTS)
            raise ValueError(f"readout must be one of {known}, got {readout!r}. Pass readout='first'.")
        return dataclasses.replace(self, readout=readout)

    def member(self, index: int) -> Network:
        """One network of a stack; a ``ValueError`` where this is one already."""
        if self.members is None:
            raise ValueError("member needs a stack and got one network. Leave member out.")
        return self._cut(lambda tensor: tensor[index], None)

    def slice(self, start: int, stop: int) -> Network:
        """A part of a stack."""
        return self._cut(lambda tensor: tensor[start:stop], stop - start)

    def _cut(self, cut: Callable[[Tensor], Tensor], members: int | None) -> Network:
        params, buffers = ({name: cut(tensor) for name, tensor in each.items()} for each in (self.params, self.buffers))
        return dataclasses.replace(self, params=params, buffers=buffers, members=members)

    def to(self, device: torch.device, dtype: torch.dtype) -> Network:
        """The same weights on a device and in a type."""
        return self.with_params(weights.moved(self.params, device, dtype), weights.moved(self.buffers, device, dtype))

    def as_module(self) -> nn.Module:
        """An ordinary module with these weights (one network, without its readout)."""
        if self.members is not None:
            raise ValueError("as_module needs one network and got a stack. Pass network.member(0).")
        module = copy.deepcopy(self.module).requires_grad_()
        for name, tensor in {**self.params, **self.buffers}.items():
            owner = module.get_submodule(name.rpartition(".")[0])
            getattr(owner, name.rpartition(".")[2]).data = tensor.detach().clone()
        return module


def _recipe(module: nn.Module, batchnorm: str) -> tuple[nn.Module, bool]:
    """A private copy of a module for forward passes: dropout off, BatchNorm in the mode asked for."""
    if batchnorm not in BATCHNORM_MODES:
        raise ValueError(f"batchnorm must be 'eval' or 'train', got {batchnorm!r}. Pass batchnorm='eval'.")
    recipe = copy.deepcopy(module).eval()
    recipe.requires_grad_(False)
    layers = [layer for layer in recipe.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    if batchnorm == "train":
        # Without running statistics BatchNorm normalises by the batch; each input is then a batch of its own.
        torch.func.replace_all_batch_norm_modules_(recipe)
    couples = any(not layer.track_running_stats for layer in layers)
    return recipe, couples


@dataclass(frozen=True)
class Family:
    """An architecture and a law over its weights.

    Made by :meth:`initialised`, :meth:`point` or :meth:`empirical`.

    Attributes:
        name: What to call it in results.
        law: ``"initialised"``, ``"point"`` or ``"empirical"``.
        template: One network of the family: the forward pass, names and shapes.
        batchnorm: The mode BatchNorm runs in, ``"eval"`` (running statistics) or ``"train"`` (of each input alone).
        drawing: How members are made, in words: replayed in stacks, or built one by one and why.
    """

    name: str
    law: str
    template: Network
    batchnorm: str
    drawing: str
    _build: Builder | None = field(default=None, repr=False)
    _tape: Tape | None = field(default=None, repr=False)
    _stack: Network | None = field(default=None, repr=False)
    _source: str = field(default="", repr=False)
    _mapped: tuple[Family, Callable[[Network], Network]] | None = field(default=None, repr=False)

    @staticmethod
    def initialised(build: Builder, name: str | None = None, batchnorm: str = "eval") -> Family:
        """The law of a builder's initial weights.

        Args:
            build: A function without arguments that returns a freshly initialised module.
            name: What to call the family; the function's name by default.
            batchnorm: ``"eval"``: BatchNorm uses its initial statistics, mean 0 and variance 1; ``"train"``: those of
                each input alone.

        Raises:
            ValueError: If the builder does not return a module, or the module has no parameters.

        Example:
            >>> family = Family.initialised(lambda: nn.Linear(4, 1), name="linear")
            >>> family.draw(3, seed=0, run=Run(device="cpu")).params["weight"].shape
            torch.Size([3, 1, 4])
        """
        name = str(name or getattr(build, "__name__", type(build).__name__))
        if isinstance(build, nn.Module):
            raise ValueError(
                f"{name} must be a function that builds a network, got a network. Use Family.point for one network."
            )
        with forked_rng(seed_of(0, "template")):
            module = build()
        if not isinstance(module, nn.Module):
            raise ValueError(f"{name} must return a torch.nn.Module, got {type(module).__name__}. Return the network.")
        if not any(parameter.numel() for parameter in module.parameters()):
            raise ValueError(f"{name} must have parameters to draw, and has none. Pass a network with weights.")
        template = Network.of(module, batchnorm)
        tape: Tape | None
        try:
            tape, drawing = Tape.record(build), "replayed in stacks from recorded initialisers"
        except (TapeError, RuntimeError, NotImplementedError) as error:
            tape, drawing = None, f"built one by one, since {error}"
        return Family(name, "initialised", template, batchnorm, drawing, build, tape, _source=source_of(build))

    @staticmethod
    def point(module: nn.Module, name: str | None = None, batchnorm: str = "eval") -> Family:
        """A point mass at a module's present weights: a trained network.

        Example:
            >>> family = Family.point(nn.Linear(4, 1))
            >>> family.draw(2, seed=0, run=Run(device="cpu")).members
            2
        """
        name = name or type(module).__name__
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"A point family needs a torch.nn.Module, got {name}. Use Family.initialised for a builder."
            )
        network = Network.of(module, batchnorm)
        if not weights.count(network.params):
            raise ValueError(f"{name} must have parameters, and has none. Pass a network with weights.")
        return Family(name, "point", network, batchnorm, "one set of weights", _source=source_of(type(module)))

    @staticmethod
    def empirical(members: Sequence[nn.Module], name: str | None = None, batchnorm: str = "eval") -> Family:
        """Equal weight on each of several networks of one architecture, in their order: trained runs.

        Example:
            >>> Family.empirical([nn.Linear(4, 1), nn.Linear(4, 1)]).size
            2
        """
        if not members:
            raise ValueError("members must hold at least one network, got none. Pass a list of modules.")
        networks = [Network.of(member, batchnorm) for member in members]
        for index, network in enumerate(networks):
            weights.matched(network.params, networks[0].params, f"member {index}")
        params = weights.stacked([network.params for network in networks])
        buffers = weights.stacked([network.buffers for network in networks])
        stack = dataclasses.replace(networks[0], params=params, buffers=buffers, members=len(networks))
        name = name or type(members[0]).__name__
        source = weights.fingerprint({**params, **buffers}) + source_of(type(members[0]))
        return Family(name, "empirical", networks[0], batchnorm, "given members", _stack=stack, _source=source)

    def mapped(self, transform: Callable[[Network], Network], name: str) -> Family:
        """The law of networks changed by a function from Network to Network, which must work on stacks.

        Example:
            >>> family = Family.initialised(lambda: nn.Linear(4, 2), name="linear").mapped(lambda one: one.read("sum"), "sum")
            >>> family.draw(3, seed=0, run=Run(device="cpu"))(torch.ones(5, 4)).shape
            torch.Size([3, 5])
        """
        source = self._source + source_of(transform)
        return dataclasses.replace(
            self, name=name, template=transform(self.template), _source=source, _mapped=(self, transform)
        )

    @property
    def size(self) -> int | None:
        """How many distinct members the law has, ``None`` for a continuous one."""
        return {"initialised": None, "point": 1}.get(self.law, self._stack.members if self._stack else None)

    @property
    def num_parameters(self) -> int:
        """Trainable numbers of one network."""
        return weights.count(self.template.params)

    @property
    def identity(self) -> dict[str, object]:
        """What tells this family from another: changes whenever the code or the weights behind it do."""
        # The template's weights, built under a fixed seed, tell apart builders that differ in what a closure holds.
        state = weights.fingerprint({**self.template.params, **self.template.buffers})
        text = f"{self.template.module!r}{state}{self._source}"
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return {"name": self.name, "law": self.law, "batchnorm": self.batchnorm, "content": digest}

    def draw(self, num: int, *, seed: int, run: Run | None = None) -> Network:
        """A stack of the first ``num`` members of the stream under a seed.

        Args:
            num: How many.
            seed: The stream; an empirical family ignores it and gives its members in order.
            run: Where and in which precision.
        """
        return self.draws(seed=seed, run=run or Run())[0:num]

    def draws(self, *, seed: int, run: Run) -> Draws:
        """The stream of members under a seed, to be sliced: ``family.draws(seed=0, run=run)[100:200]``."""
        return Draws(self, seed, run)


class Draws:
    """A stream of members; slices of it are stacks. The block last drawn is kept, so walk it in order."""

    def __init__(self, family: Family, seed: int, run: Run) -> None:
        self.family, self.seed, self.run = family, seed, run
        self._before = Draws(family._mapped[0], seed, run) if family._mapped is not None else None
        template = family.template
        numbers = weights.count(template.params) + weights.count(template.buffers)
        self._numbers, self._drawn_on = numbers, run.torch_device
        self.block_size = block_size(numbers, self._drawn_on)
        self._held: tuple[int, Network] | None = None

    def __getitem__(self, span: slice) -> Network:
        start, stop = span.start or 0, span.stop
        if stop is None or not 0 <= start < stop:
            raise ValueError(
                f"Members to draw must be a range with an end, at least one, got {start} to {stop}. Pass draws[0:100]."
            )
        if self._before is not None and self.family._mapped is not None:
            return self.family._mapped[1](self._before[start:stop])
        if self.family.law != "initialised":
            return self._given(start, stop)
        device = self.run.torch_device
        try:
            return self._drawn(start, stop).to(device, self.run.dtype)
        except torch.OutOfMemoryError:
            if self._drawn_on.type == "cpu" or start > 0:
                raise
            self.draw_on_cpu()
            return self._drawn(start, stop).to(device, self.run.dtype)

    def pick(self, indices: Sequence[int]) -> Network:
        """A stack of some members of the stream, in the order given: each is what a slice would have given."""
        if list(indices) == list(range(indices[0], indices[0] + len(indices))):
            return self[indices[0] : indices[0] + len(indices)]
        return _end_to_end([self[index : index + 1] for index in indices])

    def _drawn(self, start: int, stop: int) -> Network:
        if self.family._tape is None:
            assert self.family._build is not None
            return self._stack(stacked(built(self.family._build, self.seed, start, stop)), stop - start)
        parts = []
        while start < stop:
            block, first = divmod(start, self.block_size)
            last = min(self.block_size, first + stop - start)
            parts.append(self._block(block).slice(first, last))
            start += last - first
        return parts[0] if len(parts) == 1 else _end_to_end(parts)

    def _block(self, index: int) -> Network:
        if self._held is None or self._held[0] != index:
            self._held = None  # free the old block before drawing the new one
            assert self.family._tape is not None
            generator = generator_for(self._drawn_on, self.seed, "weights", index)
            stack = self._stack(self.family._tape.draw(self.block_size, generator), self.block_size)
            self._held = (index, stack.to(self._drawn_on, self.run.dtype))
        return self._held[1]

    def _stack(self, state: Params, members: int) -> Network:
        template = self.family.template
        params = {name: state[name] for name in template.params}
        buffers = {name: state[name] for name in template.buffers}
        return dataclasses.replace(template, params=params, buffers=buffers, members=members)

    def draw_on_cpu(self) -> None:
        """Take the CPU's stream from now on: for a GPU whose memory does not hold a block."""
        if self._before is not None:
            self._before.draw_on_cpu()
        self._held, self._drawn_on = None, torch.device("cpu")
        self.block_size = block_size(self._numbers, self._drawn_on)

    def _given(self, start: int, stop: int) -> Network:
        family, size = self.family, stop - start
        if family._stack is None:
            one = family.template.to(self.run.torch_device, self.run.dtype)
            params = {name: tensor.expand(size, *tensor.shape) for name, tensor in one.params.items()}
            buffers = {name: tensor.expand(size, *tensor.shape) for name, tensor in one.buffers.items()}
            return dataclasses.replace(one, params=params, buffers=buffers, members=size)
        else:
            order = torch.arange(start, stop) % (family.size or 1)
            stack = dataclasses.replace(
                family._stack,
                params={name: tensor[order] for name, tensor in family._stack.params.items()},
                buffers={name: tensor[order] for name, tensor in family._stack.buffers.items()},
                members=size,
            )
        return stack.to(self.run.torch_device, self.run.dtype)


def _end_to_end(parts: Sequence[Network]) -> Network:
    """Several stacks as one."""
    params = {name: torch.cat([part.params[name] for part in parts]) for name in parts[0].params}
    buffers = {name: torch.cat([part.buffers[name] for part in parts]) for name in parts[0].buffers}
    return dataclasses.replace(
        parts[0], params=params, buffers=buffers, members=sum(part.members or 0 for part in parts)
    )


def source_of(build: Any) -> str:
    """The text of a builder's file and its bound settings, so that edited code never continues an old run."""
    function = getattr(build, "func", build)
    settings = repr((getattr(build, "args", ()), sorted(getattr(build, "keywords", {}).items())))
    try:
        text = inspect.getsource(inspect.getmodule(function) or function)
    except (OSError, TypeError):
        text = repr(function)
    return hashlib.sha256((text + settings).encode()).hexdigest()[:16]
