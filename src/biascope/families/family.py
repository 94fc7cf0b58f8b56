"""Family: an architecture and a distribution of its weights. Each distribution is a class of its own."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from biascope.families import weights
from biascope.families.acceptance import accepted_outputs, module_built, require_measurable, shape_of
from biascope.families.attention import attention_of
from biascope.families.draws import Draws, GivenDraws, InitialDraws, MappedDraws, RepeatedDraws
from biascope.families.inputs import placed, taken
from biascope.families.layer_axes import axes_by_layers
from biascope.families.names import matched
from biascope.families.network import PROOF, Network
from biascope.families.origin import Origin, UnlikeError
from biascope.families.tape import Builder, Tape, TapeError, built
from biascope.families.unregistered import differences, random_content, structure_of
from biascope.results.axes import Axis
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.code import code_as_made, code_of
from biascope.runs.digest import fingerprint
from biascope.runs.failures import forward_pass
from biascope.runs.randomness import forked_rng, seed_of
from biascope.runs.run import Run

_REPEATS = 2  # builds under one seed that must agree, where a builder cannot be recorded
_BUILDS = 8  # builds by which the weights of a builder are known that cannot be recorded


@under_torch_defaults
@dataclass(frozen=True, repr=False)
class Family(ABC):
    """An architecture and a distribution of its weights.

    Made by :meth:`initialised`, :meth:`point`, :meth:`empirical` or :meth:`mapped`.

    Attributes:
        name: What to call it in results.
        law: What to call the distribution in results.
        template: One network of the family: the forward pass, names and shapes.
        batchnorm: The mode of BatchNorm: ``"eval"`` (running statistics) or ``"train"`` (statistics of each input alone).
        drawing: How members are made, in words: replayed in stacks, or built one by one and why.
        size: Number of distinct members, ``None`` for a continuous distribution.
        unregistered: Names of module attributes outside parameters and buffers that differ between members.
        build: Builds a member; ``None`` where members are given.
        others: The modules of given members but the first.
        axes: What the axes of an input are, where a library or the user says so.
        held: Names of the inputs beside the measured one.
    """

    name: str
    law: str
    template: Network
    batchnorm: str
    drawing: str
    size: int | None
    unregistered: tuple[str, ...] = ()
    build: Builder | None = field(default=None, kw_only=True, repr=False)
    others: tuple[Origin, ...] = field(default=(), kw_only=True, repr=False, compare=False)
    axes: tuple[Axis, ...] = field(default=(), kw_only=True, repr=False, compare=False)
    held: tuple[str, ...] = field(default=(), kw_only=True, repr=False, compare=False)

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
        found = tuple(random_content(module, another))
        return Initialised(
            name, "initialised", template, batchnorm, drawing, None, found, build=build, tape=tape, as_made=as_made
        )

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
        return Point(name, "point", network, batchnorm, "one set of weights", 1, unregistered)

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
        first, *rest = networks
        for index, network in enumerate(networks):
            for mine, wanted in ((network.params, first.params), (network.buffers, first.buffers)):
                matched(mine, wanted, f"member {index}")
            if structure_of(network.module) != structure_of(first.module):
                raise ValueError(
                    f"All members must have the same layers, but member {index} has others than member 0. "
                    "Make one family for each architecture."
                )
        params = weights.stacked([network.params for network in networks])
        buffers = weights.stacked([network.buffers for network in networks])
        size = len(networks)
        stack = dataclasses.replace(first, params=params, buffers=buffers, members=size)
        unregistered = tuple(dict.fromkeys(name for other in rest for name in differences(first.module, other.module)))
        others = tuple(other.origin for other in rest if other.origin is not None)
        for other in others:
            other.leave_weights()
        name = name or type(members[0]).__name__
        return Empirical(
            name, "empirical", first, batchnorm, "given members", size, unregistered, others=others, stack=stack
        )

    def mapped(self, transform: Callable[[Network], Network], name: str) -> Family:
        """This family with every network changed by a function; the function must also accept stacks.

        Example:
            >>> family = Family.initialised(lambda: nn.Linear(4, 2), name="linear").mapped(lambda one: one.read("sum"), "sum")
            >>> family.draw(3, seed=0, run=Run(device="cpu"))(torch.ones(5, 4)).shape
            torch.Size([3, 5])
        """
        kept = {each.name: getattr(self, each.name) for each in dataclasses.fields(Family)}
        changed = {"name": name, "template": transform(self.template)}
        return Mapped(**kept | changed, before=self, transform=transform)

    def __repr__(self) -> str:
        members = "" if self.size in (None, 1) else f"{self.size} members, "
        layer = f", batchnorm {self.batchnorm!r}" if self.batchnorm != "eval" else ""
        return f"Family({self.name!r}, {self.law}, {members}{self.num_parameters:,} parameters{layer})"

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
    def attention(self) -> str:
        """How models of transformers in the network compute attention, ``"eager"`` or ``"sdpa"``; empty without such a model."""
        return attention_of(self.template.module)

    @property
    def came_in(self) -> str:
        """The types of weights that are narrower than float32, as the user's module holds them; empty without such weights."""
        narrow = {tensor.dtype for tensor in self.template.params.values() if tensor.dtype.itemsize < 4}
        return ", ".join(sorted(str(each).removeprefix("torch.") for each in narrow))

    @property
    def identity(self) -> dict[str, object]:
        """The identity of this family; it changes when its code or its weights change."""
        return {"name": self.name, "law": self.law, "batchnorm": self.batchnorm, "content": self._digest}

    def witness(self, x: Any, device: torch.device) -> list[tuple[Tensor, float]] | None:
        """Outputs of the template; see :meth:`Network.witness`."""
        return self.template.witness(x, device)

    def first_outputs(
        self,
        x: Any,
        run: Run | None = None,
        *,
        must: str = "",
        remedy: str = "Pass the input shape it was made for, such as --input 3x32x32, 20x3 or 14.",
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
        inputs = placed(x, device, dtype, copy=True)
        must = must or f"accept inputs of shape {shape_of(x)}"
        with forward_pass(f"{self.name} must {must}", remedy), torch.no_grad():
            outputs = self.template.to(device, dtype)(inputs)
        return accepted_outputs(outputs, x, self.name)

    def tried(self, x: Tensor, must: str, remedy: str) -> Tensor:
        """Outputs on the CPU; also checks that members differ in parameters and buffers only.

        Raises:
            ValueError: If the forward pass fails, or members differ in more.
        """
        outputs = self.first_outputs(x, must=must, remedy=remedy)
        self.check_forward(x.float() if x.is_floating_point() else x)
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
            template.origin.prove(template, placed(taken(x, PROOF), device, dtype, copy=True), self.others)
        except UnlikeError as error:
            if error.member or not str(error):
                raise ValueError(self._disagreement(error.member)) from None
            raise

    def axes_at(self, x: Any, run: Run | None = None) -> tuple[Axis, ...]:
        """What the axes of an input are: as it was said, else as the first layer has them; empty where neither tells.

        Args:
            x: Inputs ``(n, …)``, any pytree.
            run: Device and precision; float32 on the CPU by default.

        Raises:
            ValueError: If other axes were named than inputs have.
        """
        if not isinstance(x, Tensor):
            return self.axes
        if self.axes:
            if len(self.axes) != x.dim() - 1:
                raise ValueError(
                    f"The axes of {self.name} must be as many as those of its inputs ({shape_of(x)}), got "
                    f"{','.join(axis.name for axis in self.axes)}. Name each of them in --axes."
                )
            return self.axes
        device, dtype = (torch.device("cpu"), torch.float32) if run is None else (run.torch_device, run.dtype)
        template = self.template.to(device, dtype)
        return axes_by_layers(template, template.module, placed(taken(x, PROOF), device, dtype, copy=True))

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
        return self._stream(seed, run)

    @abstractmethod
    def _stream(self, seed: int, run: Run) -> Draws: ...

    @property
    @abstractmethod
    def _content(self) -> list[object]:
        """All that members depend on, as plain JSON."""

    @property
    def _digest(self) -> str:
        return hashlib.sha256(json.dumps(self._content).encode()).hexdigest()[:16]

    def _disagreement(self, member: int) -> str:
        """Why it is refused: a member gives other outputs with the same weights."""
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
        return self._must_register(names)

    def _must_register(self, names: str) -> str:
        last = self.unregistered[0].rpartition(".")[2].partition("[")[0]
        return (
            f"{self.name} must register what it draws, but {names} would stay the same in all draws. "
            f"Write self.register_buffer({last!r}, …) instead of self.{last} = …."
        )

    @property
    def _doubt(self) -> str:
        """What cannot be told without inputs: whether unregistered attributes matter to the outputs; empty if there are none."""
        names = ", ".join(self.unregistered[:3])
        return names and (
            f"{self.name} draws {names} at random and keeps it outside of parameters and buffers. "
            "It stays the same in all draws. Store it with self.register_buffer(name, tensor)."
        )


@dataclass(frozen=True, repr=False)
class Initialised(Family):
    """The initial weights of a builder.

    Attributes:
        tape: Its recorded initialisers, where it could be recorded.
        as_made: Digest of its code and data from before its first call.
    """

    build: Builder = field(kw_only=True, repr=False)
    tape: Tape | None = field(kw_only=True, repr=False)
    as_made: str = field(kw_only=True, repr=False)

    @property
    def _content(self) -> list[object]:
        # The template's weights are built under a fixed seed: they tell what a builder reads from files.
        parts: list[object] = [self.template.identity, self.as_made, code_of(self.build, data=False)]
        if self.tape is None:  # the weights may depend on what no code shows
            parts.append([fingerprint(member) for member in built(self.build, seed_of(0, "law"), 0, _BUILDS)])
        return parts

    def _stream(self, seed: int, run: Run) -> Draws:
        return InitialDraws(self.template, seed, run, self._doubt, build=self.build, tape=self.tape, name=self.name)


@dataclass(frozen=True, repr=False)
class Point(Family):
    """One network at given weights."""

    @property
    def _content(self) -> list[object]:
        return [self.template.identity, ""]  # no code as it was made

    def _stream(self, seed: int, run: Run) -> Draws:
        return RepeatedDraws(self.template, seed, run, self._doubt)

    def _must_register(self, names: str) -> str:
        return (
            f"The weights of {self.name} must hold all that its builder draws, but {names} is not among them. Store it "
            "with self.register_buffer(name, tensor) and save the weights again."
        )


@dataclass(frozen=True, repr=False)
class Empirical(Family):
    """Several given networks.

    Attributes:
        stack: The networks.
    """

    stack: Network = field(kw_only=True, repr=False)

    @property
    def _content(self) -> list[object]:
        return [self.template.identity, "", self.stack.identity]  # no code as it was made

    def _stream(self, seed: int, run: Run) -> Draws:
        return GivenDraws(self.template, seed, run, self._doubt, stack=self.stack)

    @property
    def _doubt(self) -> str:
        names = ", ".join(self.unregistered[:3])
        return names and (
            f"Members of {self.name} differ in {names}, and all are run with the forward pass of member 0. "
            "Make one family for each architecture."
        )


@dataclass(frozen=True, repr=False)
class Mapped(Family):
    """The members of another family, each changed by a function.

    Attributes:
        before: That family.
        transform: The function.
    """

    before: Family = field(kw_only=True, repr=False)
    transform: Callable[[Network], Network] = field(kw_only=True, repr=False)

    @property
    def _content(self) -> list[object]:
        return [self.before._digest, code_of(self.transform), self.template.identity]

    def _stream(self, seed: int, run: Run) -> Draws:
        return MappedDraws(
            self.template, seed, run, before=self.before.draws(seed=seed, run=run), transform=self.transform
        )

    def _must_register(self, names: str) -> str:
        return dataclasses.replace(self.before, name=self.name)._must_register(names)


def _recorded(build: Builder) -> tuple[Tape | None, str]:
    """The tape of a builder if it has one, and how members are made."""
    try:
        return Tape.record(build), "replayed in stacks from recorded initialisers"
    except (TapeError, RuntimeError, NotImplementedError) as error:
        return None, f"built one by one, since {error}"


def _require_repeatable(build: Builder, template: Network, name: str) -> None:
    """A builder must be a function of the random state: else no draw can be repeated, and none resumed."""
    state = template.state
    for _ in range(_REPEATS):  # one may agree by chance, as addresses and turns of a cycle do
        with forked_rng(seed_of(0, "template")):
            again = build()
        for key, tensor in weights.state_of(again).items():
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
