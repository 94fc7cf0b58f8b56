"""WHAT kept work is: everything its numbers depend on, so that it is reused where nothing changed and never where something did.

An identity has three components:

- *Parts* (family, data, settings) count by their content.
- *Code* counts by its compiled functions. A walk finds everything of the user's own that a function reaches, in whatever file,
  notebook cell or closure it is defined. Comments and line numbers do not count. Installed packages count by their version.
- *Outputs* and gradients of the networks on fixed inputs, near and far, are compared as well, with a tolerance. A forward
  pass may depend on what no walk can see: files, environment variables, patched functions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import enum
import functools
import hashlib
import importlib.metadata
import inspect
import json
import math
import sys
import sysconfig
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from biascope.runs.cluster import device_type
from biascope.runs.digest import digest
from biascope.runs.run import Run

#: For a field that follows from the other fields: it is not part of what tells one object from another.
DERIVED: Mapping[str, bool] = {"derived": True}
_WITNESSED = 4  # inputs that outputs are compared on
_MOST = 64  # numbers of a group that are written down
_LARGEST_WALK = 200_000  # objects: whoever holds more than that is told apart by outputs alone


@runtime_checkable
class Witnessed(Protocol):
    """What gives outputs on inputs: a network, or a family by its template."""

    def witness(self, x: Any, device: torch.device) -> list[tuple[Tensor, float]] | None:
        """Outputs and gradients on a few inputs, in groups of one scale each with their relative tolerance.

        Nothing where the forward pass fails.
        """


@runtime_checkable
class Served(Protocol):
    """What serves inputs in batches: a task."""

    @property
    def sizes(self) -> dict[str, int]:
        """Number of samples of each split."""

    def batch(self, split: str, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels."""


@dataclass(frozen=True)
class Identity:
    """What a piece of work is.

    Attributes:
        work: Its name.
        content: Parts, code, versions, device kind and precision, as plain JSON.
        outputs: Outputs and gradients of the networks among its parts on fixed inputs; compared with a tolerance, so not in the name.
        tolerances: How far each group of these may differ by rounding, relative to its largest number.
    """

    work: str
    content: Mapping[str, Any]
    outputs: tuple[tuple[float, ...], ...] = ()
    tolerances: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """A short digest: work with another name never shares a file."""
        text = json.dumps([self.work, self.content], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def agrees(self, outputs: Sequence[Sequence[float]]) -> bool:
        """Whether the networks behave as they did when other outputs were written down."""
        return _alike(self.outputs, outputs, self.tolerances)

    def document(self) -> dict[str, Any]:
        """As JSON, to be read by people and by the next run."""
        return {"work": self.work, **self.content, "outputs": [list(group) for group in self.outputs]}


def identity_of(
    work: str,
    run: Run,
    *,
    code: Callable[..., Any] | Sequence[Callable[..., Any]],
    at: Any = None,
    **parts: Any,
) -> Identity:
    """The identity of a piece of work: the only place where it is put together.

    Args:
        work: What is done, in words.
        run: Its device kind and precision count; folder and progress do not.
        code: Functions or classes that do it, Biascope's or the caller's own.
        at: Inputs, a task that serves some, or the shape of one: where the outputs of networks among the parts are compared.
        parts: What the numbers depend on: families, networks, data, settings, of any kind that :func:`described` knows.

    Raises:
        TypeError: If a part cannot be described, or there is a network and nothing to compare its outputs on.

    Example:
        >>> first = identity_of("a sum", Run(device="cpu"), code=sum, numbers=(1, 2), seed=0)
        >>> first.name == identity_of("a sum", Run(device="cpu"), code=sum, seed=0, numbers=(1, 2)).name
        True
        >>> first.name == identity_of("a sum", Run(device="cpu"), code=sum, numbers=(1, 2.0), seed=0).name
        False
    """
    networks = [part for part in parts.values() if isinstance(part, Witnessed)]
    if networks and at is None:
        raise TypeError(f"Kept work {work!r} rests on a network and must name inputs to compare outputs on. Pass at=….")
    # Outputs come first: a forward pass may import the modules that its code is in.
    here = run.torch_device if run.on is None else torch.device("cpu")
    outputs, tolerances = _outputs(networks, at, here)
    roots = (code,) if callable(code) else tuple(code)
    content = {
        "parts": {name: described(part) for name, part in sorted(parts.items())},
        "code": [code_of(root) if _module_of(root) is None else _engine_code((root,)) for root in roots],
        "versions": _versions(),
        "device": device_type(run),
        "precision": run.precision,
    }
    return Identity(work, content, outputs, tolerances)


def _outputs(
    networks: Sequence[Witnessed], at: Any, device: torch.device
) -> tuple[tuple[tuple[float, ...], ...], tuple[float, ...]]:
    """Some numbers of every group that every network gives on a few inputs, with mean and root mean square of all."""
    kept: list[tuple[float, ...]] = []
    tolerances: list[float] = []
    for network in networks:
        found = network.witness(_few(at), device)
        if found is None:  # the work itself says what is wrong with the network or its inputs
            found = [(torch.tensor([math.nan]), 0.0)]
        for group, tolerance in found:
            flat = group.flatten().double()
            picked = flat[:: max(1, math.ceil(flat.numel() / _MOST))]
            kept.append((*picked.tolist(), float(flat.mean()), float(flat.square().mean().sqrt())))
            tolerances.append(tolerance)
    return tuple(kept), tuple(tolerances)


def _few(at: Any) -> Any:
    """Some inputs of those given, from the first to the last; for a task, or a shape, inputs made up for it.

    A task need not be part of the work (heads of several tasks may be kept together), and the outputs must not depend on it.
    """
    if isinstance(at, Served):
        first = at.batch(next(iter(at.sizes)), torch.zeros(1, dtype=torch.long))[0]
        return tree_map(
            lambda leaf: _made_up(tuple(leaf.shape[1:]), leaf.dtype) if isinstance(leaf, Tensor) else leaf, first
        )
    if isinstance(at, tuple) and all(isinstance(length, int) for length in at):
        return _made_up(at, torch.float32)
    return tree_map(lambda leaf: leaf[_spread(len(leaf))] if isinstance(leaf, Tensor) and leaf.dim() else leaf, at)


def _spread(count: int) -> list[int]:
    """Places from the first to the last of so many."""
    return sorted({round(place * (count - 1) / (_WITNESSED - 1)) for place in range(_WITNESSED)})


def _made_up(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Gaussian numbers; of whole ones, 0 and 1, which every vocabulary has."""
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point:
        return torch.randn(_WITNESSED, *shape, generator=generator)
    return torch.randint(2, (_WITNESSED, *shape), generator=generator).to(dtype)


def _alike(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], tolerances: Sequence[float]) -> bool:
    """Whether numbers agree, each group to a tolerance of its own scale."""
    if [len(group) for group in first] != [len(group) for group in second]:
        return False
    for one, two, tolerance in zip(first, second, tolerances, strict=True):
        values = np.array(one, dtype=np.float64)
        known = np.abs(values[np.isfinite(values)])
        scale = float(known.max(initial=0.0))
        if not np.allclose(values, np.array(two, dtype=np.float64), rtol=0.0, atol=tolerance * scale, equal_nan=True):
            return False
    return True


# ---- parts --------------------------------------------------------------------------------------------------------


def described(value: Any) -> Any:
    """A value as plain JSON that is the same in every process, and another for every other content.

    Numbers and words stand for themselves; tensors, arrays and functions for a digest; dataclasses for their fields, except those
    marked :data:`DERIVED`; an object with a property ``identity`` for that; any other for its class and what it holds.

    Raises:
        TypeError: If its content cannot be told, so that work resting on it must not be kept.

    Example:
        >>> described((1, 1.0, {"b": None, "a": True})), described(torch.zeros(2)) == described(torch.zeros(2, 1))
        ([1, 1.0, {'a': True, 'b': None}], False)
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, Tensor):
        return digest(value)
    if isinstance(value, np.ndarray | np.generic):
        return digest(torch.as_tensor(np.ascontiguousarray(value)))
    if isinstance(value, Mapping):
        return {str(key): described(item) for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, list | tuple):
        return [described(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(described(item)) for item in value)
    if isinstance(value, range | slice | torch.dtype | torch.device | Path):
        return str(value)
    if hasattr(type(value), "identity"):
        return described(value.identity)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field for field in dataclasses.fields(value) if not field.metadata.get("derived")]
        return {"kind": type(value).__qualname__} | {
            field.name: described(getattr(value, field.name)) for field in fields
        }
    if callable(value) or hasattr(value, "__dict__"):
        return code_of(value)
    raise TypeError(f"Kept work cannot rest on a {type(value).__qualname__}: its content cannot be told. Describe it.")


def content_of(value: Any) -> str:
    """A short digest of a value's content, for keys.

    Example:
        >>> content_of({"x": torch.zeros(2)}) == content_of({"x": torch.zeros(2)})
        True
    """
    return hashlib.sha256(json.dumps(described(value), sort_keys=True).encode()).hexdigest()[:16]


# ---- code of the user's own ---------------------------------------------------------------------------------------


def code_of(*roots: Any) -> str:
    """A digest of all code and settings that functions, classes or objects reach outside installed packages.

    Functions count by what they compute: compiled code, constants, defaults, closures, and the globals they name, wherever those are
    defined. Comments, docstrings, line numbers and file names do not count.

    Example:
        >>> slope = 2
        >>> code_of(lambda x: 2 * x) == code_of(lambda x: 2 * x), code_of(lambda x: 2 * x) == code_of(lambda x: 3 * x)
        (True, False)
        >>> code_of(nn.ReLU()) == code_of(nn.ReLU()), code_of(nn.ReLU()) == code_of(nn.GELU())
        (True, False)
    """
    walk = _Walk()
    try:
        for root in roots:
            walk.root(root)
    except RecursionError:  # what lies deeper is told apart by outputs alone
        pass
    return walk.digest()


# What torch keeps in every module; hooks are visited by themselves, weights and buffers belong to the state.
_OF_MODULES = frozenset(vars(nn.Module())) | {"training", "_is_full_backward_hook"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_CLASSES = frozenset(
    [
        "__dict__",
        "__weakref__",
        "__doc__",
        "__module__",
        "__qualname__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__firstlineno__",
        "__static_attributes__",
        "__parameters__",
        "__orig_bases__",
        "__abstractmethods__",
        "_abc_impl",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__match_args__",
        "__classcell__",
    ]
)


class _Walk:
    """Visits what a function, class or object is made of, each thing once, and digests it."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # an address may be used again once its owner is gone
        self._stateless: set[int] = set()  # layers of the network itself, whose weights are told apart from its code

    def digest(self) -> str:
        return self._digest.hexdigest()[:16]

    def root(self, value: Any) -> None:
        if isinstance(value, nn.Module):
            self._stateless |= {id(layer) for layer in value.modules()}
        self.visit(value)

    def _beyond(self, value: Any, plain: tuple[type, ...]) -> None:
        """What a subclass of a plain kind adds to it."""
        if type(value) not in plain:
            self.visit(type(value))
            for name, item in sorted(getattr(value, "__dict__", {}).items()):
                self._say(name)
                self.visit(item)

    def _say(self, *words: object) -> None:
        self._digest.update("\x1f".join(map(str, words)).encode() + b"\x1e")

    def visit(self, value: Any) -> None:
        if value is None or type(value) in (bool, int, float, complex, str, bytes):
            self._say(type(value).__name__, repr(value))
            return
        if len(self._seen) > _LARGEST_WALK:
            return
        if type(value) is tuple:  # whether equal ones are one object depends on how their file was loaded
            self._new(value)
            return
        known = self._seen.setdefault(id(value), len(self._seen))
        if known != len(self._alive):
            self._say("again", known)
            return
        self._alive.append(value)
        self._new(value)

    def _new(self, value: Any) -> None:
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.ModuleType):
            self._say("module", _origin(value.__name__))
        elif isinstance(value, types.MethodType):
            self.visit(value.__func__)
            self.visit(value.__self__)
        elif isinstance(value, functools.partial):
            self._say("partial")
            for part in (value.func, value.args, value.keywords):
                self.visit(part)
        elif isinstance(value, staticmethod | classmethod):
            self.visit(value.__func__)
        elif isinstance(value, property):
            self.visit(value.fget)
            self.visit(value.fset)
        elif isinstance(value, Tensor | np.ndarray):
            self._say("array", _digest_or_shape(value))
        elif isinstance(value, weakref.WeakKeyDictionary | weakref.WeakValueDictionary | weakref.WeakSet):
            self._say("cache")
        elif isinstance(value, Mapping):
            self._mapping(value)
            self._beyond(value, (dict, types.MappingProxyType))
        elif isinstance(value, list | tuple):
            self._say(type(value).__name__, len(value))
            for item in value:
                self.visit(item)
            self._beyond(value, (list, tuple))
        elif isinstance(value, set | frozenset):
            self._say("set", *sorted(code_of(item) for item in value))
            self._beyond(value, (set, frozenset))
        elif isinstance(value, int | float | complex | str | bytes) and not isinstance(value, enum.Enum):
            self._say(value.__reduce_ex__(2)[1:2])  # a number or word of a class of its own
            self._beyond(value, ())
        elif isinstance(value, enum.Enum):
            self._say("member", type(value).__qualname__, value.name)
        elif isinstance(value, nn.Module):
            self._module(value)
        elif inspect.isbuiltin(value) or isinstance(value, types.MethodDescriptorType | types.WrapperDescriptorType):
            self._say("builtin", getattr(value, "__qualname__", value.__name__))
            owner = getattr(value, "__self__", None)
            if owner is not None and not isinstance(owner, types.ModuleType | type):  # a method of a dictionary, say
                self.visit(owner)
        else:
            self._object(value)

    def _reduced(self, value: Any) -> bool:
        """Visit an object of Python's own by what it would be pickled to; whether that was possible."""
        try:
            parts = value.__reduce_ex__(4)
        except Exception:  # a lock, a file: nothing is known of it but its class
            return False
        if isinstance(parts, str):
            self._say(parts)
            return True
        for part in parts[1:]:
            self.visit(list(part) if isinstance(part, Iterator) else part)
        return True

    def _function(self, function: types.FunctionType) -> None:
        # Where it was written, whatever a decorator has made of its name.
        written = function.__globals__.get("__name__")
        origin = _origin(written)
        if origin:
            self._say("installed", origin, function.__code__.co_qualname)
        else:
            self._say("function")
            self._code(function.__code__)
        engine = written if isinstance(written, str) and written.startswith("biascope.") else None
        self.visit(function.__defaults__)
        self.visit(function.__kwdefaults__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._say("closure", name)
            try:
                self.visit(cell.cell_contents)
            except ValueError:  # a name that is not bound yet
                self._say("empty")
        for name, value in sorted(vars(function).items()):
            if name != "__wrapped__" or not function.__closure__:
                self._say("attribute", name)
                self.visit(value)
        if origin:  # a wrapper of somebody else's: what it wraps was in its closure
            return
        # Its globals may be caches: all code of its file and of what that imports stands for them.
        if engine is not None:
            self._say(_modules_code(frozenset({engine})))
            return
        for name, value in _named_globals(function):
            self._say("global", name)
            self.visit(value)

    def _code(self, code: types.CodeType) -> None:
        for part in _compiled(code):
            self._say(part)

    def _class(self, kind: type) -> None:
        origin = _origin(kind.__module__)
        self._say("class", origin, kind.__qualname__)
        if origin:
            return
        if (engine := _module_of(kind)) is not None:
            self._say(_modules_code(frozenset({engine})))
            return
        if type(kind) is not type and not _origin(type(kind).__module__):
            self.visit(type(kind))
        for base in kind.__bases__:
            self.visit(base)
        for name, value in sorted(dict(vars(kind)).items()):
            if name not in _OF_CLASSES and not isinstance(
                value, types.GetSetDescriptorType | types.MemberDescriptorType
            ):
                self._say(name)
                self.visit(value)

    def _mapping(self, value: Mapping[Any, Any]) -> None:
        self._say("mapping", len(value))
        for key, item in list(value.items()):
            self.visit(key)
            self.visit(item)

    def _module(self, module: nn.Module) -> None:
        """A layer's settings, hooks and children; the weights of the network itself by their shapes, since values are its state."""
        self.visit(type(module))
        for kind in (module._parameters, module._buffers):
            for name, tensor in kind.items():
                self._say(name, "none" if tensor is None else (tuple(tensor.shape), tensor.dtype))
                if tensor is not None and id(module) not in self._stateless:
                    self._say(_digest_or_shape(tensor))
        if isinstance(module, torch.jit.ScriptModule):
            self._say(module.code)
            return
        for name, value in sorted(vars(module).items()):
            if name not in _OF_MODULES:
                self._say(name)
                self.visit(value)
        for name in _HOOKS:
            for hook in vars(module).get(name, {}).values():  # by numbers that count all hooks of a process
                self._say(name)
                self.visit(hook)
        for name, child in module._modules.items():
            self._say("child", name)
            self.visit(child)

    def _object(self, value: Any) -> None:
        """Anything else: its class and what it holds; the private state of other people's objects may be a cache and is left out."""
        wrapped = getattr(value, "__wrapped__", None)
        if callable(wrapped):  # a function behind a cache or a decorator
            self.visit(wrapped)
        kind = type(value)
        self.visit(kind)
        if callable(value):  # an operator of torch, say
            self._say(getattr(value, "__qualname__", None) or getattr(value, "__name__", ""))
        if isinstance(value, torch.dtype | torch.device | torch.Size | np.generic | np.dtype | Path | range | slice):
            self._say(repr(value))
            return
        if isinstance(value, torch.Generator):
            return
        if isinstance(value, torch.jit.ScriptFunction):
            self._say(value.code)
            return
        origin = _origin(kind.__module__)
        if origin.startswith("python ") and self._reduced(value):
            return
        foreign = bool(origin)
        held = dict(getattr(value, "__dict__", {}))
        for owner in kind.__mro__:
            slots = vars(owner).get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                private = slot.startswith("__") and not slot.endswith("__")
                name = f"_{owner.__name__.lstrip('_')}{slot}" if private else slot
                if hasattr(value, name):
                    held.setdefault(name, getattr(value, name))
        for name, item in sorted(held.items()):
            if not (foreign and name.startswith("_")) and name not in ("__dict__", "__weakref__"):
                self._say(name)
                self.visit(item)


def _digest_or_shape(value: Tensor | np.ndarray) -> str:
    if isinstance(value, np.ndarray) and value.dtype.kind in "OVUSMm":  # objects, records, words, dates
        return code_of(value.tolist()) + str(value.dtype)
    if isinstance(value, Tensor) and value.layout == torch.sparse_coo:
        whole = value.detach().coalesce()
        return digest(whole.indices()) + digest(whole.values()) + str(tuple(value.shape))
    try:
        tensor = torch.as_tensor(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value
        return digest(tensor.detach())
    except (RuntimeError, TypeError, NotImplementedError, ValueError):  # sparse, quantised, words, on no device
        return f"{tuple(value.shape)} {value.dtype}"


def _compiled(code: types.CodeType) -> Iterator[str]:
    """What a compiled function does, without its docstring, names of files and lines."""
    yield code.co_code.hex()
    yield repr((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & ~_DOCSTRING_FLAG))
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
    yield getattr(code, "co_exceptiontable", b"").hex()
    for place, constant in enumerate(code.co_consts):
        if place == 0 and _is_docstring(code):
            yield "docstring"
        else:
            yield from _constant(constant)


_DOCSTRING_FLAG = getattr(inspect, "CO_HAS_DOCSTRING", 0)
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


def _is_docstring(code: types.CodeType) -> bool:
    """Whether the first constant is a docstring; a function without one has ``None`` there, or says so by a flag."""
    if _DOCSTRING_FLAG:
        return bool(code.co_flags & _DOCSTRING_FLAG)
    first = code.co_consts[0] if code.co_consts else None
    return first is None or (isinstance(first, str) and code.co_name not in _COMPREHENSIONS)


def _constant(constant: Any) -> Iterator[str]:
    if isinstance(constant, types.CodeType):
        yield from _compiled(constant)
    elif isinstance(constant, tuple):
        yield f"tuple {len(constant)}"
        for item in constant:
            yield from _constant(item)
    elif isinstance(constant, frozenset):  # its order changes from process to process
        yield f"frozenset {sorted(map(repr, constant))}"
    else:
        yield f"{type(constant).__name__} {constant!r}"


def _named_globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The globals that a function names, in their order, with what it takes from modules of the user's own."""
    scope = function.__globals__
    globals_named, attributes, imported = _names(function.__code__)
    modules: list[types.ModuleType] = []
    for name in globals_named:
        if name in scope:
            value = scope[name]
            if isinstance(value, types.ModuleType):
                modules.append(value)
            yield name, value
    modules += _imported_inside(imported, str(scope.get("__package__") or ""))
    for module in modules:
        yield from _taken(module, attributes)


def _imported_inside(names: Sequence[str], package: str) -> list[types.ModuleType]:
    """Modules that a function imports in its body, by whole names or relative to its package and those around it."""
    around = [package.rsplit(".", level)[0] for level in range(package.count(".") + 1)] if package else []
    places = [(f"{each}.{name}".rstrip("."), name) for name in names for each in around] + [
        (name, name) for name in names
    ]
    return [sys.modules[place] for place, _ in places if place in sys.modules]


def _taken(module: types.ModuleType, attributes: Sequence[str]) -> Iterator[tuple[str, Any]]:
    if _origin(module.__name__):
        return
    for name in attributes:
        if name in vars(module):
            value = vars(module)[name]
            yield f"{module.__name__}.{name}", value
            if isinstance(value, types.ModuleType) and value is not module:
                yield from _taken(value, [other for other in attributes if other != name])


@functools.cache
def _names(code: types.CodeType) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Globals, attributes and imported modules that compiled code names, functions inside it included."""
    found: dict[str, dict[str, None]] = {"global": {}, "attribute": {}, "import": {}}
    for instruction in dis.get_instructions(code):
        name = str(instruction.argval)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            found["global"][name] = None
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM", "LOAD_SUPER_ATTR"):
            found["attribute"][name] = None
        elif instruction.opname == "IMPORT_NAME":
            found["import"][name] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for kind, names in zip(found, _names(constant), strict=True):
                found[kind] |= dict.fromkeys(names)
    return tuple(found["global"]), tuple(found["attribute"]), tuple(found["import"])


# ---- who wrote it -------------------------------------------------------------------------------------------------


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    return tuple(
        str(Path(sysconfig.get_path(kind)).resolve()) for kind in ("stdlib", "platstdlib", "purelib", "platlib")
    )


def _origin(module: str | None) -> str:
    """Where installed code comes from, as ``package version``; nothing for the user's own (and for Biascope in a checkout)."""
    if module is None or module == "__main__":
        return ""
    found = sys.modules.get(module)
    spec_file = getattr(found, "__file__", None)
    if found is None and module.partition(".")[0] in sys.modules:
        spec_file = getattr(sys.modules[module.partition(".")[0]], "__file__", None)
    if spec_file is None:  # built in; or made by hand, as a model file loaded from text is
        top = module.partition(".")[0]
        return _version(top) if top in sys.stdlib_module_names or top in sys.builtin_module_names else ""
    return _origin_of_file(module.partition(".")[0], str(spec_file))


@functools.cache
def _origin_of_file(package: str, file: str) -> str:
    path = str(Path(file).resolve())
    apart = "/site-packages/", "/dist-packages/"
    if not path.startswith(_installed_folders()) and not any(folder in path for folder in apart):
        return ""
    return _version(package)


@functools.cache
def _version(package: str) -> str:
    if package in sys.stdlib_module_names:
        return f"python {sys.version_info.major}.{sys.version_info.minor}"
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        pass
    for name in importlib.metadata.packages_distributions().get(package, ()):
        return f"{package} {importlib.metadata.version(name)}"
    return f"{package} {getattr(sys.modules.get(package), '__version__', '')}"


@functools.cache
def _versions() -> dict[str, str]:
    from biascope import __version__

    # Torch says more of itself than its package does: the build that it is.
    libraries = {name: importlib.metadata.version(name) for name in ("numpy", "scipy")}
    return {"biascope": __version__, "torch": str(torch.__version__), **libraries}


# ---- code of Biascope ---------------------------------------------------------------------------------------------


def _engine_code(roots: tuple[Callable[..., Any], ...]) -> str:
    """A digest of Biascope's own code behind some functions: what they name in their file, and all that this file's imports hold.

    Inside the file of a root only what it reaches counts, so that the words of a figure's note do not undo its trainings.
    """
    # What a function holds in a closure may be other code at every call.
    fixed = not any(getattr(root, "__closure__", None) for root in roots)
    return _fixed_engine_code(roots) if fixed else _reached_engine_code(roots)


@functools.cache
def _fixed_engine_code(roots: tuple[Callable[..., Any], ...]) -> str:
    return _reached_engine_code(roots)


def _reached_engine_code(roots: tuple[Callable[..., Any], ...]) -> str:
    digest = hashlib.sha256()
    modules: set[str] = set()
    waiting, seen = list(roots), set()
    home = {_module_of(root) for root in roots}
    while waiting:
        thing = waiting.pop(0)
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        for function in _functions_of(thing):
            for part in _compiled(function.__code__):
                digest.update(part.encode())
            digest.update(_plain((function.__defaults__, function.__kwdefaults__)).encode())
            for name, value in _reached(function):
                where = _module_of(value)
                if where in home and not isinstance(value, types.ModuleType):
                    waiting.append(value)
                elif where is not None:
                    modules.add(where)
                elif _is_constant(name):
                    digest.update(_plain(value).encode())
    digest.update(_modules_code(frozenset(modules)).encode())
    return digest.hexdigest()[:16]


def _reached(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Globals that a function names, and functions in its closure; other things there are parts of the work."""
    for name in _names(function.__code__)[0]:
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a name that is not bound yet
            if callable(cell.cell_contents):
                yield name, cell.cell_contents


def _is_constant(name: str) -> bool:
    """Whether a global is written as a constant; others may change while a process runs."""
    return name.strip("_").isupper()


def _module_of(thing: Any) -> str | None:
    """The module of Biascope that a function, a class or a wrapped function comes from."""
    if isinstance(thing, functools.partial):
        return _module_of(thing.func)
    name = None
    if isinstance(thing, types.ModuleType):
        name = thing.__name__
    elif isinstance(thing, types.FunctionType | type) or "__module__" in getattr(thing, "__dict__", {}):
        name = thing.__module__
    return name if isinstance(name, str) and name.startswith("biascope.") else None


def _functions_of(thing: Any) -> Iterator[types.FunctionType]:
    """The functions that something of Biascope's own consists of."""
    if isinstance(thing, types.FunctionType):
        yield thing
    elif isinstance(thing, staticmethod | classmethod | types.MethodType):
        yield from _functions_of(thing.__func__)
    elif isinstance(thing, functools.partial):
        yield from _functions_of(thing.func)
    elif isinstance(thing, property):
        yield from _functions_of(thing.fget)
    elif isinstance(thing, functools.cached_property):
        yield from _functions_of(thing.func)
    elif isinstance(thing, type):
        for value in vars(thing).values():
            if _module_of(value) in (None, _module_of(thing)):
                yield from _functions_of(value)
    elif callable(wrapped := getattr(thing, "__wrapped__", None)):  # a cache, a registered measurement
        yield from _functions_of(wrapped)
    elif _module_of(type(thing)) is not None and callable(thing):
        yield from _functions_of(type(thing))


def _plain(value: Any) -> str:
    """A constant in words; nothing for what has none."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"[{','.join(map(_plain, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{_plain(key)}:{_plain(item)}' for key, item in value.items())}}}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain([getattr(value, field.name) for field in dataclasses.fields(value)])
    return ""


@functools.cache
def _modules_code(modules: frozenset[str]) -> str:
    """A digest of modules of Biascope and of all that they import."""
    every: set[str] = set()
    waiting = [name for name in modules if name in sys.modules]
    while waiting:
        name = waiting.pop()
        if name in every:
            continue
        every.add(name)
        waiting += [where for value in vars(sys.modules[name]).values() if (where := _module_of(value)) in sys.modules]
    return hashlib.sha256("".join(_module_code(name) for name in sorted(every)).encode()).hexdigest()


@functools.cache
def _module_code(name: str) -> str:
    digest = hashlib.sha256(name.encode())
    for key, value in sorted(vars(sys.modules[name]).items()):
        if key.startswith("__") or isinstance(value, types.ModuleType):
            continue
        if _module_of(value) == name:
            for function in _functions_of(value):
                for part in _compiled(function.__code__):
                    digest.update(part.encode())
                digest.update(_plain((function.__defaults__, function.__kwdefaults__)).encode())
        elif _module_of(value) is None and _is_constant(key):
            digest.update(f"{key}{_plain(value)}".encode())
    return digest.hexdigest()
