"""Digests of code: what a function computes, with everything it reaches, without comments and line numbers.

:func:`code_of` walks the user's own code, in whatever file, notebook cell or closure it is defined. Installed packages count by their
version. :func:`engine_code` covers the functions of Biascope behind a piece of work.
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
import sys
import sysconfig
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from biascope.runs.digest import digest

_LARGEST_WALK = 200_000  # objects: of what holds more, the outputs alone count


# ---- code of the user's own ---------------------------------------------------------------------------------------


def code_of(*roots: Any, data: bool = True) -> str:
    """A digest of all code and settings that functions, classes or objects reach outside installed packages.

    Functions count by what they compute: compiled code, constants, defaults, closures, and the globals they name, wherever those are
    defined. Comments, docstrings, line numbers and file names do not count.

    Args:
        roots: What to look at.
        data: Whether data in globals, closures, defaults and classes count; a call may have changed them.

    Example:
        >>> slope = 2
        >>> code_of(lambda x: 2 * x) == code_of(lambda x: 2 * x), code_of(lambda x: 2 * x) == code_of(lambda x: 3 * x)
        (True, False)
        >>> code_of(nn.ReLU()) == code_of(nn.ReLU()), code_of(nn.ReLU()) == code_of(nn.GELU())
        (True, False)
    """
    return _Walk(data=data).over(roots)


def code_as_made(root: Any) -> str:
    """The digest of something that was never called: without what is imported at a call, and before a call leaves anything behind."""
    return _Walk(imports=False).over((root,))


AS_MADE = "_biascope_code_as_made"
"""Attribute of a module with its digest from before its first call: calls may leave behind counters, caches, last activations."""

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


def forget_as_made(module: nn.Module) -> None:
    """Remove the digest of before the first call from a module that somebody else may change."""
    for layer in module.modules():
        vars(layer).pop(AS_MADE, None)


class _Walk:
    """Visits what a function, class or object is made of, each thing once, and digests it."""

    def __init__(self, data: bool = True, imports: bool = True) -> None:
        self._digest = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # an address may be used again once its owner is gone
        self._stateless: set[int] = set()  # layers of the network itself: their weights are no part of its code
        self._data, self._imports = data, imports

    def over(self, roots: Sequence[Any]) -> str:
        """The digest of all that some things are made of."""
        try:
            for root in roots:
                self._root(root)
        except RecursionError:  # of what lies deeper, the outputs alone count
            pass
        return self._digest.hexdigest()[:16]

    def _root(self, value: Any) -> None:
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
            self._say("array", digest_or_shape(value))
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
        self._held("default", function.__defaults__)
        self._held("default", function.__kwdefaults__)
        held = dict(closure_of(function))
        for name in function.__code__.co_freevars:
            if name in held:
                self._held("closure", name, held[name])
            else:
                self._say("closure", name, "empty")
        for name, value in sorted(vars(function).items()):
            if name != "__wrapped__" or not function.__closure__:
                self._held("attribute", name, value)
        if origin:  # a wrapper of somebody else's: what it wraps was in its closure
            return
        # Its globals may be caches: all code of its file and of what that imports stands for them.
        if engine is not None:
            self._say(_modules_code(frozenset({engine})))
            return
        for name, value in _named_globals(function, self._imports):
            self._held("global", name, value)

    def _held(self, *words_and_value: Any) -> None:
        """Visit what a function or a class holds under a name; only code where data do not count."""
        *words, value = words_and_value
        code = callable(value) or isinstance(value, types.ModuleType | staticmethod | classmethod | property)
        if self._data or (code and not isinstance(value, nn.Module)):
            self._say(*words)
            self.visit(value)

    def _code(self, code: types.CodeType) -> None:
        for part in _compiled(code):
            self._say(part)

    def _class(self, kind: type) -> None:
        origin = _origin(kind.__module__)
        self._say("class", origin, kind.__qualname__)
        if origin:
            return
        if (engine := module_of(kind)) is not None:
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
                self._held(name, value)

    def _mapping(self, value: Mapping[Any, Any]) -> None:
        self._say("mapping", len(value))
        for key, item in list(value.items()):
            self.visit(key)
            self.visit(item)

    def _module(self, module: nn.Module) -> None:
        """A layer's settings, hooks and children; the weights of the network itself by their shapes, since values are its state."""
        if as_made := vars(module).get(AS_MADE):
            self._say(as_made)
            before, self._data = self._data, False
            for layer in module.modules():  # whose code may have been imported, or edited, since then
                self.visit(type(layer))
            self._data = before
            return
        self.visit(type(module))
        for kind in (module._parameters, module._buffers):
            for name, tensor in kind.items():
                self._say(name, "none" if tensor is None else (tuple(tensor.shape), tensor.dtype))
                if tensor is not None and id(module) not in self._stateless:
                    self._say(digest_or_shape(tensor))
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


def closure_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function holds in its closure, by name; a name that is not bound yet is left out."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            yield name, cell.cell_contents


def digest_or_shape(value: Tensor | np.ndarray) -> str:
    """A digest of an array's content; its shape and type where the content cannot be read.

    Example:
        >>> digest_or_shape(torch.zeros(2)) == digest_or_shape(torch.ones(2)), digest_or_shape(torch.zeros(2, device="meta"))
        (False, '(2,) torch.float32')
    """
    if isinstance(value, np.ndarray) and value.dtype.kind in "OVUSMm":  # objects, records, words, dates
        return code_of(value.tolist()) + str(value.dtype)
    if isinstance(value, Tensor) and value.layout == torch.sparse_coo:
        whole = value.detach().coalesce()
        return digest(whole.indices()) + digest(whole.values()) + str(tuple(value.shape))
    try:
        tensor = torch.as_tensor(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value
        return digest(tensor.detach())
    except (
        RuntimeError,
        TypeError,
        NotImplementedError,
        ValueError,
    ):  # sparse, quantised, on no device, of a type torch lacks
        known = code_of(value.tolist()) if isinstance(value, np.ndarray) else tuple(value.shape)
        return f"{known} {value.dtype}"


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


def _named_globals(function: types.FunctionType, imports: bool) -> Iterator[tuple[str, Any]]:
    """The globals that a function names, in their order, with what it takes from modules of the user's own.

    Args:
        function: The function.
        imports: Whether modules that it imports in its body count.
    """
    scope = function.__globals__
    globals_named, attributes, imported = _names(function.__code__)
    modules: list[types.ModuleType] = []
    for name in globals_named:
        if name in scope:
            value = scope[name]
            if isinstance(value, types.ModuleType):
                modules.append(value)
            yield name, value
    if imports:
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


# ---- code of Biascope ---------------------------------------------------------------------------------------------


def engine_code(roots: tuple[Callable[..., Any], ...]) -> str:
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
    home = {module_of(root) for root in roots}
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
                where = module_of(value)
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
    yield from ((name, value) for name, value in closure_of(function) if callable(value))


def _is_constant(name: str) -> bool:
    """Whether a global is written as a constant; others may change while a process runs."""
    return name.strip("_").isupper()


def module_of(thing: Any) -> str | None:
    """The module of Biascope that a function, a class or a wrapped function comes from."""
    if isinstance(thing, functools.partial):
        return module_of(thing.func)
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
            if module_of(value) in (None, module_of(thing)):
                yield from _functions_of(value)
    elif callable(wrapped := getattr(thing, "__wrapped__", None)):  # a cache, a registered measurement
        yield from _functions_of(wrapped)
    elif module_of(type(thing)) is not None and callable(thing):
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
        waiting += [where for value in _held_by(name) if (where := module_of(value)) in sys.modules]
    return hashlib.sha256("".join(_module_code(name) for name in sorted(every)).encode()).hexdigest()


def _held_by(name: str) -> Iterator[Any]:
    """What a module holds, without the files of its own folder: Python adds each as soon as anybody imports it."""
    for key, value in vars(sys.modules[name]).items():
        if not (isinstance(value, types.ModuleType) and value.__name__ == f"{name}.{key}"):
            yield value


@functools.cache
def _module_code(name: str) -> str:
    digest = hashlib.sha256(name.encode())
    for key, value in sorted(vars(sys.modules[name]).items()):
        if key.startswith("__") or isinstance(value, types.ModuleType):
            continue
        if module_of(value) == name:
            for function in _functions_of(value):
                for part in _compiled(function.__code__):
                    digest.update(part.encode())
                digest.update(_plain((function.__defaults__, function.__kwdefaults__)).encode())
        elif module_of(value) is None and _is_constant(key):
            digest.update(f"{key}{_plain(value)}".encode())
    return digest.hexdigest()
