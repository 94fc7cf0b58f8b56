"""Initialisation as a tape: run a builder once, record what happens to every storage, replay it for a whole stack.

Building a module thousands of times is the bottleneck of every average over initialisations. The tape sees each
operator that writes into memory (``uniform_``, ``normal_``, ``fill_``, ``mul_``, ``linalg_qr`` …) while the builder
runs, and replays the list on tensors with a leading axis over members. It refuses a builder whose course may depend on
chance: one that looks at a drawn number, with an operator or past them (NumPy, lists, addresses), or that draws
with NumPy or Python. And it proves itself before it is used: under fresh seeds, one unstacked replay must equal
``build()`` bit for bit, and a stack of one member up to rounding.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from biascope.families.weights import Params, state_of
from biascope.runs.randomness import forked_rng, seed_of

Builder = Callable[[], nn.Module]

# Creation operators with random content, and the in-place operator that draws the same numbers.
_RANDOM_FACTORIES: dict[Any, str] = {
    torch.ops.aten.randn.default: "normal_",
    torch.ops.aten.rand.default: "uniform_",
    torch.ops.aten.randn_like.default: "normal_",
    torch.ops.aten.rand_like.default: "uniform_",
}

_CONSTANT_FILLS = (torch.ops.aten.zero_.default, torch.ops.aten.fill_.Scalar)

# What gives Python the numbers of a tensor without an operator …
_COPIES = frozenset(
    (
        Tensor.tolist,
        Tensor.__bool__,
        Tensor.__int__,
        Tensor.__float__,
        Tensor.__complex__,
        Tensor.__index__,
        Tensor.__repr__,
        Tensor.__format__,
    )
)
# … and what gives it their memory, which it may read and change from then on.
_MEMORY = frozenset(
    (
        Tensor.numpy,
        Tensor.__array__,
        Tensor.__dlpack__,
        Tensor.data_ptr,
        Tensor.storage,
        Tensor.untyped_storage,
        Tensor.__reduce_ex__,
        Tensor.apply_,
        Tensor.map_,
        Tensor.map2_,
    )
)


@dataclass(frozen=True)
class _View:
    """A tensor described by where it lies in memory, so that views need no recording of their own."""

    storage: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def on(self, memory: Tensor) -> Tensor:
        """This view of a storage, or of a stack of storages (one row per member)."""
        if memory.dim() == 1:
            return memory.as_strided(self.size, self.stride, self.offset)
        return memory.as_strided((memory.shape[0], *self.size), (memory.stride(0), *self.stride), self.offset)


@dataclass(frozen=True)
class _Entry:
    operator: Callable[..., Any]
    arguments: list[Any]  # flattened; tensors replaced by views
    structure: Any
    outputs: list[_View | None]  # flattened; new storages only
    dtypes: list[torch.dtype]
    in_place_random: bool
    elementwise: bool  # in place on one tensor, number by number


def _storages(entry: _Entry) -> set[int]:
    """The memory that an operator reads or writes."""
    return {each.storage for each in (*entry.arguments, *entry.outputs) if isinstance(each, _View)}


class TapeError(Exception):
    """The tape does not describe this builder; the message says why."""


@dataclass
class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operator that writes memory, by the storages it reads and writes.

    A builder that cannot be recorded runs on to its end and sees nothing of it: it might catch an error of ours.
    """

    entries: list[_Entry] = field(default_factory=list)
    constants: dict[int, Tensor] = field(default_factory=dict)
    kept: list[Tensor] = field(default_factory=list)  # alive, so that no storage address is used twice
    known: dict[int, tuple[torch.dtype, int]] = field(default_factory=dict)
    drawn: set[int] = field(default_factory=set)  # storages that hold random numbers, or what was made of them
    exposed: set[int] = field(default_factory=set)  # storages that Python may change without an operator
    pause: bool = False
    refusal: str = ""  # why this builder cannot be replayed

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def refuse(self, reason: str) -> None:
        self.refusal, self.pause = self.refusal or reason, True

    def meets(self, tensors: list[Tensor]) -> bool:
        """Whether tensors have memory. To ask one without for it ends the process within torch.export, where PyTorch cannot fail."""
        if any(type(tensor).__module__.startswith("torch._subclasses.") for tensor in tensors):
            self.refuse("it works on tensors that hold no numbers, as torch.export does")
        return not self.pause

    def key(self, tensor: Tensor) -> int:
        return tensor.untyped_storage().data_ptr() or id(tensor)

    def view(self, tensor: Tensor) -> _View:
        key = self.key(tensor)
        if key not in self.known:
            # Not created under the tape (torch.from_numpy, a module-level constant): its content is taken as it is,
            # and the proof under another seed shows whether it was random.
            self.remember(tensor)
            flat = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
            self.constants[key] = flat.clone()
        if self.known[key][0] != tensor.dtype:
            self.refuse("it views one piece of memory as two number types")
        return _View(key, tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset()))

    def remember(self, tensor: Tensor) -> None:
        self.kept.append(tensor)
        self.known[self.key(tensor)] = (tensor.dtype, tensor.untyped_storage().nbytes() // tensor.element_size())

    def note(self, operator: Callable[..., Any], args: Any, kwargs: Any, result: Any, in_place_random: bool) -> None:
        flat, structure = tree_flatten((args, kwargs))
        arguments = [self.view(leaf) if isinstance(leaf, Tensor) else leaf for leaf in flat]
        outputs: list[_View | None] = []
        dtypes = []
        for leaf in tree_flatten(result)[0]:
            if isinstance(leaf, Tensor) and self.key(leaf) not in self.known:
                self.remember(leaf)
                outputs.append(self.view(leaf))
                dtypes.append(leaf.dtype)
            else:
                outputs.append(None)
        tensors = sum(isinstance(argument, _View) for argument in arguments)
        pointwise = torch.Tag.pointwise in getattr(operator, "tags", ()) or operator in _CONSTANT_FILLS
        elementwise = pointwise and tensors == 1 and not in_place_random and all(view is None for view in outputs)
        self.entries.append(_Entry(operator, arguments, structure, outputs, dtypes, in_place_random, elementwise))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = _tensors((args, kwargs))
        if self.pause or not self.meets(inputs):
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction():  # what the recorder looks at, the builder does not
            for tensor in inputs:
                self.view(tensor)  # a constant must be copied before the operator changes it
            of_chance = any(self.key(tensor) in self.drawn for tensor in inputs)
            try:
                result = func(*args, **kwargs)
            except Exception:
                if of_chance:  # with other numbers it may succeed, and the builder may catch the error
                    self.refuse("an operator failed on numbers that it drew")
                raise
            if self.meets(_tensors(result)):
                self.follow(func, args, kwargs, result, of_chance)
        return result

    def follow(self, func: Any, args: Any, kwargs: Any, result: Any, of_chance: bool) -> None:
        """Note what an operator has done."""
        inputs, leaves, written = _tensors((args, kwargs)), _tensors(result), _written(func, args, kwargs)
        if any(self.key(tensor) in self.exposed for tensor in inputs):
            self.refuse("it uses memory that NumPy or Python may have changed")
        random = torch.Tag.nondeterministic_seeded in func.tags
        if random or of_chance:
            if not leaves and not written:  # a number, or an assertion
                self.refuse("it reads a number that it drew, and may take another branch with another number")
            elif torch.Tag.dynamic_output_shape in func.tags and func is not torch.ops.aten.index.Tensor:
                self.refuse("it makes a tensor whose shape depends on numbers that it drew")
            self.draw_into(written)
            self.drawn.update(self.key(leaf) for leaf in leaves)
        if not written and all(self.key(leaf) in self.known for leaf in leaves):
            return  # a view, or a look at a value
        if random and (len(inputs) > 1 or (not written and func not in _RANDOM_FACTORIES)):
            self.refuse(f"it draws with {func}, which cannot be replayed for a stack")
        self.note(func, args, kwargs, result, in_place_random=random and bool(written))

    def draw_into(self, tensors: list[Tensor]) -> None:
        """Note that tensors hold random numbers from now on."""
        keys = {self.view(tensor).storage for tensor in tensors}
        if keys & (self.exposed | self.constants.keys()):
            self.refuse("it draws into memory that NumPy or Python may read")
        self.drawn |= keys

    def expose(self, function: Any, tensors: list[Tensor]) -> None:
        """Note that Python has the numbers of tensors, or their memory."""
        keys = {self.view(tensor).storage for tensor in tensors}
        if keys & self.drawn:
            self.refuse("it reads a number that it drew, and may take another branch with another number")
        if function in _MEMORY:
            self.exposed |= keys


@dataclass
class _Onlooker(TorchFunctionMode):
    """Sees what is no operator: how a builder takes the numbers of a tensor, or its memory, into Python."""

    recorder: _Recorder

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorder, before = self.recorder, set(self.recorder.constants)
        result = func(*args, **(kwargs or {}))
        given = _tensors((args, kwargs))
        if not recorder.pause and recorder.meets(given):
            if func in _COPIES or func in _MEMORY:
                recorder.expose(func, given)
            elif recorder.constants.keys() - before:
                # torch.tensor, or an index, that is given a list of tensors makes a constant of their numbers.
                listed = [each for each in (*args, *(kwargs or {}).values()) if not isinstance(each, Tensor)]
                recorder.expose(func, _tensors(listed))
        return result


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that an operator writes into."""
    arguments = func._schema.arguments
    given = dict(zip((argument.name for argument in arguments), args, strict=False)) | kwargs
    targets = [given.get(each.name) for each in arguments if each.alias_info is not None and each.alias_info.is_write]
    return [leaf for leaf in tree_flatten(targets)[0] if isinstance(leaf, Tensor)]


@dataclass(frozen=True)
class Tape:
    """The recorded initialisation of one builder, proved equal to it."""

    entries: tuple[_Entry, ...]
    constants: dict[int, Tensor]
    memory: dict[int, tuple[torch.dtype, int]]
    tensors: dict[str, _View]

    @staticmethod
    def record(build: Builder, seed: int = 0) -> Tape:
        """Record a builder and prove the tape.

        Args:
            build: A zero-argument function that returns a module.
            seed: For the recording and the proof; any will do.

        Raises:
            TapeError: If it cannot be replayed for a stack or the replay does not equal the builder, with the reason.
        """
        recorder = _Recorder()

        def truncated_normal(tensor: Tensor, *args: Any, generator: torch.Generator | None = None) -> Tensor:
            # Its rejection loop takes a random number of turns: replayed as one operator, not step by step.
            if recorder.pause:
                return original(tensor, *args, generator=generator)
            with torch._C.DisableTorchFunction():
                recorder.draw_into([tensor])
                recorder.pause = True
                original(tensor, *args, generator=generator)
                recorder.pause = bool(recorder.refusal)
                recorder.note(original, (tensor, *args), {"generator": None}, tensor, in_place_random=True)
            return tensor

        original: Callable[..., Tensor] = getattr(nn.init, "_no_grad_trunc_normal_", nn.init.trunc_normal_)
        patched = mock.patch.object(nn.init, "_no_grad_trunc_normal_", truncated_normal, create=True)
        with forked_rng(seed_of(seed, "record")), patched, recorder, _Onlooker(recorder):
            before = _other_generators()
            try:
                module = build()
            except Exception as error:  # a builder that works, but not under a dispatch mode
                recorder.refuse(f"it cannot be recorded ({type(error).__name__}: {error})")
            if _other_generators() != before:
                recorder.refuse("it draws with NumPy or Python's random, which the tape does not see")
        if not recorder.refusal:
            tensors = {name: recorder.view(tensor) for name, tensor in _state(module).items()}
            if any(view.storage in recorder.exposed for view in tensors.values()):
                recorder.refuse("it uses memory that NumPy or Python may have changed")
        if recorder.refusal:
            raise TapeError(recorder.refusal)
        tape = Tape(tuple(recorder.entries), recorder.constants, recorder.known, tensors)
        for proof in range(proofs(sum(tensor.numel() for tensor in _state(module).values()))):
            tape._prove(build, seed_of(seed, "proof", proof))
        return tape.without_what_is_dropped()

    def without_what_is_dropped(self) -> Tape:
        """The same tape without tensors that the module does not keep, such as a table of tokens that another layer replaces.

        What has no memory in common with a tensor that is kept, by any number of operators, cannot change it.
        """
        together: dict[int, set[int]] = {}  # the storages that operators have brought together, by each of them
        for entry in self.entries:
            own = _storages(entry)
            joined = own.union(*(together.get(storage, set()) for storage in own))
            together |= dict.fromkeys(joined, joined)
        kept = set[int]().union(*(together.get(view.storage, {view.storage}) for view in self.tensors.values()))
        return Tape(
            tuple(entry for entry in self.entries if _storages(entry) & kept),
            {key: constant for key, constant in self.constants.items() if key in kept},
            self.memory,
            self.tensors,
        )

    def _prove(self, build: Builder, seed: int) -> None:
        with forked_rng(seed):
            wanted = _state(build())
        try:
            with forked_rng(seed):
                alone = self._replay(None, torch.device("cpu"), None)
            stack = self.draw(1, torch.Generator().manual_seed(seed))
        except RuntimeError as error:  # a shape that depends on chance, or an operator that vmap does not know
            reason = str(error).strip().splitlines()[0]
            raise TapeError(f"its initialisers cannot be replayed ({reason})") from error
        for name, tensor in wanted.items():
            if name not in alone or not torch.equal(tensor, alone[name]):
                raise TapeError(f"a replay under another seed does not equal the builder at {name}")
            replayed = stack[name][0]
            # Batched products may round otherwise, which takes longer to compare.
            if not torch.equal(tensor, replayed) and not torch.allclose(tensor, replayed, rtol=1e-4, atol=1e-6):
                raise TapeError(f"a replay for a stack does not equal the builder at {name}")

    def draw(self, members: int, generator: torch.Generator) -> Params:
        """Weights and buffers of a stack of independent members, drawn on the generator's device."""
        return self._replay(members, generator.device, generator)

    def _replay(self, members: int | None, device: torch.device, generator: torch.Generator | None) -> Params:
        memory: dict[int, Tensor] = {}
        for key, constant in self.constants.items():
            copy = constant.to(device).clone()
            memory[key] = copy if members is None else copy.repeat(members, 1)
        with torch.no_grad(), torch.device(device):
            for entry in self.entries:
                self._step(entry, memory, members, device, generator)
        return {name: view.on(memory[view.storage]).contiguous() for name, view in self.tensors.items()}

    def _step(
        self,
        entry: _Entry,
        memory: dict[int, Tensor],
        members: int | None,
        device: torch.device,
        generator: torch.Generator | None,
    ) -> None:
        def real(leaf: Any) -> Any:
            if isinstance(leaf, _View):
                return leaf.on(memory[leaf.storage])
            return device if isinstance(leaf, torch.device) else leaf

        leaves = [real(leaf) for leaf in entry.arguments]
        args, kwargs = tree_unflatten(leaves, entry.structure)
        if entry.in_place_random:
            entry.operator(*args, **{**kwargs, "generator": generator})
            return
        if entry.elementwise:
            entry.operator(*args, **kwargs)  # acts on each number alone: a stack needs no batching rule
            return
        if entry.operator in _RANDOM_FACTORIES:
            view = entry.outputs[0]
            assert view is not None
            self._allocate(view, entry.dtypes[0], memory, members, device)
            getattr(view.on(memory[view.storage]), _RANDOM_FACTORIES[entry.operator])(generator=generator)
            return
        dims = [0 if isinstance(leaf, _View) else None for leaf in entry.arguments]
        if members is None or not any(dim == 0 for dim in dims):
            result = entry.operator(*args, **kwargs)
            batched = False
        else:
            tensors = [leaf for leaf, dim in zip(leaves, dims, strict=True) if dim == 0]

            def apply(*batch: Tensor) -> Any:
                given = iter(batch)
                mixed = [next(given) if dim == 0 else leaf for leaf, dim in zip(leaves, dims, strict=True)]
                inner_args, inner_kwargs = tree_unflatten(mixed, entry.structure)
                return entry.operator(*inner_args, **inner_kwargs)

            result = torch.vmap(apply, in_dims=0)(*tensors)
            batched = True
        fresh = tree_flatten(result)[0]
        kinds = iter(entry.dtypes)
        for view, leaf in zip(entry.outputs, fresh, strict=True):
            if view is not None:
                self._allocate(view, next(kinds), memory, members, device)
                target = view.on(memory[view.storage])
                target.copy_(leaf if batched or members is None else leaf.expand_as(target))

    def _allocate(
        self, view: _View, dtype: torch.dtype, memory: dict[int, Tensor], members: int | None, device: torch.device
    ) -> None:
        length = self.memory[view.storage][1]
        shape = (length,) if members is None else (members, length)
        memory[view.storage] = torch.empty(shape, dtype=dtype, device=device)


def _other_generators() -> tuple[object, ...]:
    """The states of the generators that builders use beside torch's, to be compared."""
    name, numbers, *position = np.random.get_state(legacy=True)
    return random.getstate(), name, np.asarray(numbers).tobytes(), position


def _state(module: nn.Module) -> Params:
    """Parameters and buffers by name, shared ones once."""
    return {name: tensor.detach() for name, tensor in state_of(module).items()}


def built(build: Builder, seed: int, first: int, last: int) -> list[Params]:
    """The slow and exact method: members ``first … last−1`` built one by one, each under its own seed."""
    members = []
    for index in range(first, last):
        with forked_rng(seed_of(seed, "build", index)):
            members.append({name: tensor.clone() for name, tensor in _state(as_copies_are(build())).items()})
    return members


def as_copies_are(module: nn.Module) -> nn.Module:
    """A module with graphs of torch.export or torch.fx in the form that its copies have: constants are buffers there."""
    graphs = any(isinstance(layer, torch.fx.GraphModule) for layer in module.modules())
    return copy.deepcopy(module) if graphs else module


def proofs(numbers: int) -> int:
    """Number of seeds under which a tape is proven: eight, and at least two where a build takes long.

    Example:
        >>> proofs(60_941), proofs(11_000_000)
        (8, 2)
    """
    return min(8, max(2, 2**22 // max(1, numbers)))


def block_size(numbers: int, device: torch.device) -> int:
    """Number of members drawn at once; it depends on the weight count and the device type only.

    Draw ``i`` is member ``i mod B`` of block ``⌊i/B⌋``, and a block is always drawn whole, so results do not depend
    on how the work was cut. The budget is 2²⁵ numbers on a CPU and 2³¹ on a GPU, at most 1024 or 4096 members.

    Example:
        >>> block_size(60_941, torch.device("cpu"))
        550
    """
    budget, most = (2**25, 1024) if device.type == "cpu" else (2**31, 4096)
    return min(most, max(1, budget // max(1, numbers)))
