"""The networks that are measured. Network: a function of weights and input. Family: an architecture and a distribution of weights."""

# m members · n inputs per member · p outputs

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_leaves, tree_map

from biascope.families import weights
from biascope.families.acceptance import accepted_outputs, copied, module_built, require_measurable, shape_of
from biascope.families.gradient_hooks import leave_out_gradient_hooks
from biascope.families.origin import Origin, UnlikeError
from biascope.families.readout import READOUTS, read_out
from biascope.families.recomputation import WithoutRecomputation
from biascope.families.tape import Builder, Tape, TapeError, block_size, built
from biascope.families.unregistered import differences, random_content, structure_of
from biascope.families.weights import Params, stacked
from biascope.runs.ambient import OneAtATime, under_torch_defaults
from biascope.runs.code import code_as_made, code_of, forget_as_made
from biascope.runs.digest import fingerprint
from biascope.runs.failures import forward_pass
from biascope.runs.memory import is_out_of_memory
from biascope.runs.randomness import forked_rng, generator_for, seed_of
from biascope.runs.run import Run


@dataclass(frozen=True)
class Network:
    """A function of weights and input, for one network or a stack of networks of the same architecture.

    The module only defines the forward pass. Its own weights are never read or changed.

    Attributes:
        module: The forward pass.
        params: Trainable weights by name; with a leading axis over members for a stack.
        buffers: The other state (BatchNorm statistics), likewise.
        members: Number of members of a stack, ``None`` for one network.
        readout: How several outputs become one scalar; ``None`` leaves them as they are.
        couples_inputs: Whether inputs of one batch influence one another (BatchNorm in train mode); they are then
            passed one at a time.
        origin: The user's module that the forward pass was copied from; ``None`` where it is proven, or not the user's.

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
    origin: Origin | None = field(default=None, repr=False, compare=False)

    @staticmethod
    @under_torch_defaults
    def of(
        module: nn.Module, batchnorm: str = "eval", name: str = "", *, build: Callable[[], nn.Module] | None = None
    ) -> Network:
        """A network at a copy of the module's current weights; dropout is off.

        Args:
            module: Any module. It is left as it is.
            batchnorm: ``"eval"`` or ``"train"``; see :meth:`Family.initialised`.
            name: What to call it in errors.
            build: Makes the module anew, which :meth:`require_proven` then does instead of copying it.
        """
        origin = Origin(module, name or type(module).__name__, batchnorm, build)
        leave_out_gradient_hooks(module, origin.recipe)
        return Network(
            origin.recipe, origin.params, origin.buffers, couples_inputs=origin.couples_inputs, origin=origin
        )

    @under_torch_defaults
    def require_proven(self, x: Any) -> None:
        """Check that this is the user's module also at other weights than its own, where inputs are known for the first time.

        Args:
            x: Inputs ``(n, …)``, any pytree; the first few are used.

        Raises:
            ValueError: If it is another function, with the cause.
        """
        if self.origin is None or not self.params:
            return
        like = next(iter(self.params.values()))
        try:
            self.origin.prove(self, _few_placed(x, like.device, like.dtype))
        except UnlikeError as error:
            if str(error):
                raise
            raise ValueError(
                f"{self.origin.name} must be a function of its weights and inputs alone, but a copy with the same weights gives "
                "other outputs. Keep all that it needs in parameters and buffers."
            ) from None

    def __call__(self, x: Any, params: Params | None = None) -> Tensor:
        """Outputs for inputs ``(n, …)``; a stack answers with a leading axis over its members."""
        given = self.params if params is None else params
        if self.members is None:
            return self.apply(given, self.buffers, x)
        return vmap(self.apply, in_dims=(0, 0, None))(given, self.buffers, x)

    def apply(self, params: Params, buffers: Params, x: Any) -> Tensor:
        """Outputs of one network at given weights: the function for transformations (grad, vmap, jvp)."""

        def single(inputs: Any) -> Tensor:
            arguments = inputs if isinstance(inputs, tuple) else (inputs,)
            keywords: dict[str, Any] = {}
            if isinstance(inputs, dict):
                arguments, keywords = (), inputs
            with OneAtATime(), WithoutRecomputation():
                outputs = functional_call(self.module, (params, buffers), arguments, keywords)
            return outputs if self.readout is None else read_out(outputs, self.readout)

        if not self.couples_inputs:
            return single(x)
        alone = torch.utils._pytree.tree_map(lambda tensor: tensor.unsqueeze(1), x)
        return vmap(single)(alone).squeeze(1)

    def __repr__(self) -> str:
        like = next(iter(self.params.values()), None)
        count = weights.count(self.params) // (self.members or 1)
        parts = [type(self.module).__name__, f"{count:,} parameters{' each' if self.members else ''}"]
        parts += [] if self.members is None else [f"{self.members} member{'s' if self.members > 1 else ''}"]
        parts += [] if self.readout is None else [f"readout {self.readout!r}"]
        parts += [] if like is None else [f"{str(like.dtype).removeprefix('torch.')} on {like.device}"]
        return f"Network({', '.join(parts)})"

    @property
    def identity(self) -> dict[str, object]:
        """The identity of this network: the code of its forward pass, its settings, weights and buffers."""
        return {
            "forward": code_of(self.module),
            "readout": self.readout,
            "apart": self.couples_inputs,
            "members": self.members,
            "weights": fingerprint({**self.params, **self.buffers}),
        }

    @under_torch_defaults
    def witness(self, x: Any, device: torch.device) -> list[tuple[Tensor, float]] | None:
        """Outputs on a few inputs with their rounding tolerance; ``None`` if the forward pass fails.

        Each group has one scale. There is one for each output at the inputs, and one far from them, where differences with a large
        step are taken. There is one for the gradient with respect to the inputs, and one for each parameter.
        """
        like = next(iter(self.params.values()))
        if any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in self.module.modules()):
            # Made-up inputs may be no ids: an error on a CPU, but on a GPU the end of the process.
            device = torch.device("cpu")
        # In float64 a change shows that rounding would hide; some forward passes are written for one precision.
        for dtype, rounding in ((torch.float64, 1e-7), (like.dtype, 1e-3 if like.dtype.itemsize > 2 else 5e-2)):
            with contextlib.suppress(Exception), forked_rng(seed_of(0, "witness")):
                inputs = _placed_leaves(x, device, dtype)
                return _behaviour(self.to(device, dtype), inputs, rounding)
        return None

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

    @under_torch_defaults
    def member(self, index: int) -> Network:
        """One network of a stack; raises ``ValueError`` if this is a single network."""
        if self.members is None:
            raise ValueError("member needs a stack, got one network. Leave member out.")
        return self._cut(lambda tensor: tensor[index], None)

    @under_torch_defaults
    def slice(self, start: int, stop: int) -> Network:
        """A part of a stack."""
        return self._cut(lambda tensor: tensor[start:stop], stop - start)

    def _cut(self, cut: Callable[[Tensor], Tensor], members: int | None) -> Network:
        params, buffers = ({name: cut(tensor) for name, tensor in each.items()} for each in (self.params, self.buffers))
        return dataclasses.replace(self, params=params, buffers=buffers, members=members)

    @under_torch_defaults
    def to(self, device: torch.device, dtype: torch.dtype) -> Network:
        """The same weights on a device and in a type."""
        return self.with_params(weights.moved(self.params, device, dtype), weights.moved(self.buffers, device, dtype))

    @under_torch_defaults
    def as_module(self) -> nn.Module:
        """An ordinary module with these weights (one network, without its readout)."""
        if self.members is not None:
            raise ValueError("as_module needs one network, got a stack. Pass network.member(0).")
        module = copied(self.module, type(self.module).__name__).requires_grad_()
        forget_as_made(module)
        for name, tensor in {**self.params, **self.buffers}.items():
            owner = module.get_submodule(name.rpartition(".")[0])
            getattr(owner, name.rpartition(".")[2]).data = tensor.detach().clone()
        return module


def _placed_leaves(x: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Inputs copied to a device, real ones in a type."""

    def placed(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.detach().to(device, dtype if leaf.is_floating_point() else leaf.dtype, copy=True)

    return tree_map(placed, x)


def _few_placed(x: Any, device: torch.device, dtype: torch.dtype) -> Any:
    few = tree_map(lambda leaf: leaf[:_FEW] if isinstance(leaf, Tensor) and leaf.dim() else leaf, x)
    return _placed_leaves(few, device, dtype)


_FEW = 4  # inputs that a proof looks at
_REPEATS = 2  # builds under one seed that must agree, where a builder cannot be recorded
_BUILDS = 8  # builds by which the law of a builder is known that cannot be recorded
_FAR = 100.0  # where differences look by default
_BENT = 1e-2  # of a gradient: units on a kink go one way or the other by rounding
_COLUMNS = 16  # outputs that have a group of their own


def _behaviour(network: Network, x: Any, rounding: float) -> list[tuple[Tensor, float]]:
    """Outputs at inputs and far from them, each by itself, and gradients by inputs and weights, with their tolerances."""
    generator = torch.Generator().manual_seed(0)

    def far(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            return leaf
        return leaf + _FAR * torch.randn(leaf.shape, generator=generator, dtype=torch.float64).to(leaf)

    groups: list[tuple[Tensor, float]] = []
    with torch.no_grad():
        for inputs in (x, tree_map(far, x)):
            outputs = network(tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, inputs))
            rows = outputs.detach().reshape(outputs.shape[0], -1).double().cpu()
            groups += [(part.clone(), rounding) for part in rows.T[:: max(1, rows.shape[1] // _COLUMNS)]]
    with contextlib.suppress(Exception), torch.enable_grad():  # not every network can be differentiated by everything
        groups += [(slope, max(rounding, _BENT)) for slope in _slopes(network, x, generator)]
    return groups


def _slopes(network: Network, x: Any, generator: torch.Generator) -> list[Tensor]:
    """Gradients of a random combination of the outputs: by each input, and by each parameter in short."""
    moving = {name: part.detach().clone().requires_grad_() for name, part in network.params.items()}
    places = tree_map(lambda leaf: leaf.clone().requires_grad_() if _is_real(leaf) else leaf, x)
    outputs = network(tree_map(lambda leaf: leaf + 0 if _is_real(leaf) else leaf, places), moving)
    mixture = torch.randn(outputs.shape, generator=generator, dtype=torch.float64).to(outputs)
    wanted = [*(leaf for leaf in tree_leaves(places) if _is_real(leaf)), *moving.values()]
    found = torch.autograd.grad((outputs * mixture).sum(), wanted, allow_unused=True, materialize_grads=True)
    inputs = len(wanted) - len(moving)
    short = []
    for gradient in found[inputs:]:
        flat = gradient.detach().flatten().double().cpu()
        along = torch.randn(flat.shape, generator=generator, dtype=torch.float64)
        short.append(torch.stack([flat.norm(), flat @ along]))
    return [gradient.detach().double().cpu() for gradient in found[:inputs]] + short


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _recorded(build: Builder) -> tuple[Tape | None, str]:
    """The tape of a builder if it has one, and how members are made."""
    try:
        return Tape.record(build), "replayed in stacks from recorded initialisers"
    except (TapeError, RuntimeError, NotImplementedError) as error:
        return None, f"built one by one, since {error}"


def _require_repeatable(build: Builder, template: Network, name: str) -> None:
    """A builder must be a function of the random state: else no draw can be repeated, and none resumed."""
    state = {**template.params, **template.buffers}
    for _ in range(_REPEATS):  # one may agree by chance, as addresses and turns of a cycle do
        with forked_rng(seed_of(0, "template")):
            again = build()
        for key, tensor in (*again.named_parameters(), *again.named_buffers()):
            held = state.get(key)
            if (
                held is None
                or held.shape != tensor.shape
                or not torch.allclose(held, tensor, 1e-5, 1e-7, equal_nan=True)
            ):
                raise ValueError(
                    f"{name} must build the same weights under the same seed, but two builds differ at {key}. Draw with torch, "
                    "NumPy or Python's random, and take no seed from the time, the system or a counter."
                )


@under_torch_defaults
@dataclass(frozen=True)
class Family:
    """An architecture and a distribution of its weights.

    Made by :meth:`initialised`, :meth:`point` or :meth:`empirical`.

    Attributes:
        name: What to call it in results.
        law: ``"initialised"``, ``"point"`` or ``"empirical"``.
        template: One network of the family: the forward pass, names and shapes.
        batchnorm: The mode of BatchNorm: ``"eval"`` (running statistics) or ``"train"`` (statistics of each input alone).
        drawing: How members are made, in words: replayed in stacks, or built one by one and why.
        unregistered: Names of module attributes outside parameters and buffers that differ between members.
    """

    name: str
    law: str
    template: Network
    batchnorm: str
    drawing: str
    unregistered: tuple[str, ...] = ()
    _build: Builder | None = field(default=None, repr=False)
    _tape: Tape | None = field(default=None, repr=False)
    _build_as_made: str = field(default="", repr=False)  # its code and data, from before its first call
    _stack: Network | None = field(default=None, repr=False)
    _mapped: tuple[Family, Callable[[Network], Network]] | None = field(default=None, repr=False)
    _others: tuple[Origin, ...] = field(default=(), repr=False, compare=False)  # the modules of members but the first

    @staticmethod
    def initialised(build: Builder, name: str | None = None, batchnorm: str = "eval") -> Family:
        """The distribution of a builder's initial weights.

        Args:
            build: A function without arguments that returns a freshly initialised module.
            name: What to call the family; the function's name by default.
            batchnorm: ``"eval"``: BatchNorm uses its initial statistics, mean 0 and variance 1; ``"train"``: those of
                each input alone.

        Raises:
            ValueError: If the builder does not return a module, the module has no parameters, or two builds under one
                seed differ.

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
        as_made = code_as_made(build)
        with forked_rng(seed_of(0, "template")):
            module = module_built(name, build)
        require_measurable(module, name)
        if not any(parameter.numel() for parameter in module.parameters()):
            raise ValueError(f"{name} must have parameters to draw, but has none. Pass a network with weights.")
        template = Network.of(module, batchnorm, name, build=build)
        tape, drawing = _recorded(build)
        if tape is None:  # a tape is proven to equal the builder under a seed; without one that is still open
            _require_repeatable(build, template, name)
        with forked_rng(seed_of(0, "proof")):
            another = build()
        if another is module:
            raise ValueError(
                f"{name} must build a new network at each call, but gave the same object twice. Create it inside of the builder, or "
                "measure its weights with Family.point."
            )
        unregistered = tuple(random_content(module, another))
        return Family(name, "initialised", template, batchnorm, drawing, unregistered, build, tape, as_made)

    @staticmethod
    def point(
        module: nn.Module | Network,
        name: str | None = None,
        batchnorm: str = "eval",
        *,
        build: Callable[[], nn.Module] | None = None,
    ) -> Family:
        """One network at its current weights, for example a trained network.

        Args:
            module: A module, or a network that was made of one.
            name: What to call it; its class by default.
            batchnorm: The mode of BatchNorm of a module; see :meth:`initialised`.
            build: Makes the module anew with the same weights, to find what these do not determine.

        Raises:
            ValueError: If it has no weights, or a second build has other buffers, which the weights do not hold then.

        Example:
            >>> family = Family.point(nn.Linear(4, 1))
            >>> family.draw(2, seed=0, run=Run(device="cpu")).members
            2
        """
        name = name or type(module.module if isinstance(module, Network) else module).__name__
        if not isinstance(module, nn.Module | Network):
            raise ValueError(
                f"A point family needs a torch.nn.Module, got {name}. Use Family.initialised for a builder."
            )
        network = module if isinstance(module, Network) else Network.of(module, batchnorm, name, build=build)
        if not weights.count(network.params):
            raise ValueError(f"{name} must have parameters, but has none. Pass a network with weights.")
        unregistered: tuple[str, ...] = ()
        if build is not None:
            with forked_rng(seed_of(0, "proof")):
                another = build()
            for key, buffer in another.named_buffers():
                if not torch.equal(buffer, network.buffers[key].to(buffer)):
                    raise ValueError(
                        f"The weights of {name} must hold all that its builder draws, but the buffer {key} is not among them. "
                        "Register it with persistent=True and save the weights again."
                    )
            unregistered = tuple(random_content(module, another)) if isinstance(module, nn.Module) else ()
        return Family(name, "point", network, batchnorm, "one set of weights", unregistered)

    @staticmethod
    def empirical(members: Sequence[nn.Module], name: str | None = None, batchnorm: str = "eval") -> Family:
        """Several networks of one architecture with equal weight, in their order, for example trained runs.

        Example:
            >>> Family.empirical([nn.Linear(4, 1), nn.Linear(4, 1)]).size
            2
        """
        if not members:
            raise ValueError("members must hold at least one network, got none. Pass a list of modules.")
        networks = [Network.of(member, batchnorm) for member in members]
        first = networks[0]
        for index, network in enumerate(networks):
            for mine, wanted in ((network.params, first.params), (network.buffers, first.buffers)):
                weights.matched(mine, wanted, f"member {index}")
            if structure_of(network.module) != structure_of(first.module):
                raise ValueError(
                    f"All members must have the same layers, but member {index} has others than member 0. "
                    "Make one family for each architecture."
                )
        params = weights.stacked([network.params for network in networks])
        buffers = weights.stacked([network.buffers for network in networks])
        stack = dataclasses.replace(networks[0], params=params, buffers=buffers, members=len(networks))
        name = name or type(members[0]).__name__
        rest = networks[1:]
        unregistered = tuple(dict.fromkeys(name for other in rest for name in differences(first.module, other.module)))
        others = tuple(other.origin for other in rest if other.origin is not None)
        for other in others:
            other.leave_weights()
        return Family(name, "empirical", first, batchnorm, "given members", unregistered, _stack=stack, _others=others)

    def mapped(self, transform: Callable[[Network], Network], name: str) -> Family:
        """This family with every network changed by a function; the function must also accept stacks.

        Example:
            >>> family = Family.initialised(lambda: nn.Linear(4, 2), name="linear").mapped(lambda one: one.read("sum"), "sum")
            >>> family.draw(3, seed=0, run=Run(device="cpu"))(torch.ones(5, 4)).shape
            torch.Size([3, 5])
        """
        template = transform(self.template)
        return dataclasses.replace(self, name=name, template=template, _mapped=(self, transform))

    def __repr__(self) -> str:
        members = f"{self.size} members, " if self.law == "empirical" else ""
        layer = f", batchnorm {self.batchnorm!r}" if self.batchnorm != "eval" else ""
        return f"Family({self.name!r}, {self.law}, {members}{self.num_parameters:,} parameters{layer})"

    @property
    def size(self) -> int | None:
        """Number of distinct members, ``None`` for a continuous distribution."""
        return {"initialised": None, "point": 1}.get(self.law, self._stack.members if self._stack else None)

    @property
    def num_parameters(self) -> int:
        """Number of trainable parameters of one network."""
        return weights.count(self.template.params)

    @property
    def num_layers(self) -> int:
        """Number of layers of one network: modules that own weights of two or more axes."""
        modules = self.template.module.modules()
        return sum(any(own.dim() > 1 for own in each.parameters(recurse=False)) for each in modules)

    @property
    def identity(self) -> dict[str, object]:
        """The identity of this family; it changes when its code or its weights change."""
        return {"name": self.name, "law": self.law, "batchnorm": self.batchnorm, "content": self._content}

    @property
    def _content(self) -> str:
        if self._mapped is not None:
            before, transform = self._mapped
            parts: list[object] = [before._content, code_of(transform), self.template.identity]
        else:
            # The template's weights are built under a fixed seed: they tell what a builder reads from files.
            parts = [self.template.identity, self._build_as_made]
            parts += [] if self._build is None else [code_of(self._build, data=False)]
            if self._build is not None and self._tape is None:  # the law may depend on what no code shows
                parts.append([fingerprint(member) for member in built(self._build, seed_of(0, "law"), 0, _BUILDS)])
            parts += [] if self._stack is None else [self._stack.identity]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def witness(self, x: Any, device: torch.device) -> list[tuple[Tensor, float]] | None:
        """Outputs of the template; see :meth:`Network.witness`."""
        return self.template.witness(x, device)

    def first_outputs(
        self,
        x: Any,
        run: Run | None = None,
        *,
        must: str = "",
        remedy: str = "Pass the input shape it was made for (--input CxHxW).",
    ) -> Tensor:
        """Outputs of the template at inputs, checked to be measurable.

        Args:
            x: Inputs ``(n, …)``, any pytree.
            run: Device and precision; float32 on the CPU by default.
            must: What the network must do, as in ``"take 2 coordinates"``; by default, accept inputs of that shape.
            remedy: What to do if its forward pass fails, as a sentence.

        Raises:
            ValueError: If the forward pass fails, or gives no row of real numbers for each input.
        """
        device, dtype = (torch.device("cpu"), torch.float32) if run is None else (run.torch_device, run.dtype)
        if (origin := self.template.origin) is not None and origin.rearranged:
            self.check_forward(x, run)  # settles how it is put into evaluation mode
        placed = _placed_leaves(x, device, dtype)
        must = must or f"accept inputs of shape {shape_of(x)}"
        with forward_pass(f"{self.name} must {must}", remedy), torch.no_grad():
            outputs = self.template.to(device, dtype)(placed)
        return accepted_outputs(outputs, x, self.name)

    def tried(self, x: Tensor, must: str, remedy: str) -> Tensor:
        """Outputs on the CPU; also checks that members differ in parameters and buffers only.

        Raises:
            ValueError: If the forward pass fails, or members differ in more.
        """
        outputs = self.first_outputs(x, must=must, remedy=remedy)
        self.check_forward(x.float())
        return outputs

    def check_forward(self, x: Any, run: Run | None = None) -> None:
        """Check that members differ in parameters and buffers only: with equal weights, all give the same outputs.

        Call it where inputs are known and members are about to be drawn. It takes one forward pass of two inputs for each
        given member, or for one other build. The check runs once for each input shape.

        Args:
            x: Inputs ``(n, …)``, any pytree.
            run: Device and precision; float32 on the CPU by default.

        Raises:
            ValueError: If they differ in more. The message names the attribute if it is known.

        Example:
            >>> class Fourier(nn.Linear):
            ...     def __init__(self):
            ...         super().__init__(4, 1)
            ...         self.B = torch.randn(4, 4)
            ...     def forward(self, x):
            ...         return super().forward(torch.sin(x @ self.B))
            >>> Family.initialised(Fourier).check_forward(torch.ones(1, 4))
            Traceback (most recent call last):
            ...
            ValueError: Fourier must register what it draws, but B would stay the same in all draws. Write \
self.register_buffer('B', …) instead of self.B = ….
        """
        device, dtype = (torch.device("cpu"), torch.float32) if run is None else (run.torch_device, run.dtype)
        template = self.template.to(device, dtype)
        if template.origin is None or not template.params:
            return
        try:
            template.origin.prove(template, _few_placed(x, device, dtype), self._others)
        except UnlikeError as error:
            if error.member or not str(error):
                raise ValueError(self._disagreement(error.member)) from None
            raise

    def _disagreement(self, member: int) -> str:
        names = ", ".join(self.unregistered[:3])
        if member:
            how = f" ({names})" if names else ""
            return (
                f"All members of {self.name} must have the same forward pass, but members 0 and {member} give different "
                f"outputs with the same weights{how}. Make one family for each architecture, and register tensors with "
                "register_buffer."
            )
        if not names:
            return (
                f"{self.name} must keep all that it draws in parameters and buffers, but two builds with the same weights "
                "give different outputs. Store what differs with self.register_buffer(name, tensor)."
            )
        if self.law == "point":
            return (
                f"The weights of {self.name} must hold all that its builder draws, but {names} is not among them. Store it "
                "with self.register_buffer(name, tensor) and save the weights again."
            )
        last = self.unregistered[0].rpartition(".")[2].partition("[")[0]
        return (
            f"{self.name} must register what it draws, but {names} would stay the same in all draws. "
            f"Write self.register_buffer({last!r}, …) instead of self.{last} = …."
        )

    def draw(self, num: int, *, seed: int, run: Run | None = None) -> Network:
        """A stack of the first ``num`` members of the stream under a seed.

        Args:
            num: How many.
            seed: Random seed of the stream; an empirical family ignores it and gives its members in order.
            run: Device and precision.
        """
        return self.draws(seed=seed, run=run or Run())[0:num]

    def draws(self, *, seed: int, run: Run) -> Draws:
        """The stream of members under a seed, to be sliced: ``family.draws(seed=0, run=run)[100:200]``."""
        return Draws(self, seed, run)


@under_torch_defaults
class Draws:
    """A stream of members; slices of it are stacks. The last block is cached, so read members in order."""

    def __init__(self, family: Family, seed: int, run: Run) -> None:
        self.family, self.seed, self.run = family, seed, run
        self._before = Draws(family._mapped[0], seed, run) if family._mapped is not None else None
        template = family.template
        numbers = weights.count(template.params) + weights.count(template.buffers)
        self._numbers, self._drawn_on = numbers, run.torch_device
        self.block_size = block_size(numbers, self._drawn_on)
        self._held: tuple[int, Network] | None = None
        self._warned = family._mapped is not None  # the stream that is mapped says it

    def __getitem__(self, span: slice) -> Network:
        start, stop = span.start or 0, span.stop
        if stop is None or not 0 <= start < stop:
            raise ValueError(
                f"Members to draw must be a finite range of at least one member, got {start} to {stop}. Pass draws[0:100]."
            )
        self._warn_of_unregistered()
        if self._before is not None and self.family._mapped is not None:
            return self.family._mapped[1](self._before[start:stop])
        if self.family.law != "initialised":
            return self._given(start, stop)
        device = self.run.torch_device
        try:
            return self._drawn(start, stop).to(device, self.run.dtype)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if self._drawn_on.type == "cpu" or start > 0:
                raise
            self.draw_on_cpu()
            return self._drawn(start, stop).to(device, self.run.dtype)

    def _warn_of_unregistered(self) -> None:
        """Say once per stream what cannot be told without inputs: whether such attributes matter to the outputs."""
        family = self.family
        origin = family.template.origin
        if not family.unregistered or self._warned or (origin is not None and origin.proven):
            return
        self._warned = True
        names = ", ".join(family.unregistered[:3])
        if family.law == "empirical":
            words = f"Members of {family.name} differ in {names}, and all are run with the forward pass of member 0. "
            remedy = "Make one family for each architecture."
        else:
            words = f"{family.name} draws {names} at random and keeps it outside of parameters and buffers. "
            remedy = "It stays the same in all draws. Store it with self.register_buffer(name, tensor)."
        warnings.warn(words + remedy, stacklevel=4)

    def pick(self, indices: Sequence[int]) -> Network:
        """A stack of some members of the stream, in the given order; each equals the member of a slice."""
        if list(indices) == list(range(indices[0], indices[0] + len(indices))):
            return self[indices[0] : indices[0] + len(indices)]
        return _end_to_end([self[index : index + 1] for index in indices])

    def _drawn(self, start: int, stop: int) -> Network:
        if self.family._tape is None:
            assert self.family._build is not None
            members, template = built(self.family._build, self.seed, start, stop), self.family.template
            for member in members:
                if listed := weights.misfits(member, {**template.params, **template.buffers}, types=False):
                    raise ValueError(
                        f"{self.family.name} must build the same layers in every draw, but two draws differ: {listed}. Choose the "
                        "layers outside of the builder, and make one family for each architecture."
                    )
            return self._stack(stacked(members), stop - start)
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
        """Use the CPU's stream from now on, for a GPU whose memory cannot hold a block."""
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
