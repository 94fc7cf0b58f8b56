"""What a module holds beside its parameters and buffers.

Members of a family share one forward pass and differ in parameters and buffers alone. A tensor that is a plain attribute
(``self.B = torch.randn(…)``), a list of tensors, a random float or a closure would be the first member's in all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from biascope.families.weights import state_of
from biascope.runs.code import AS_MADE, closure_of, digest_or_shape

# What torch itself keeps in every module, and we in ours; hooks are looked at, since they take part in the forward pass.
_HOOKS = {"_forward_hooks", "_forward_pre_hooks"}
_OF_TORCH = frozenset(vars(nn.Module())) - _HOOKS | {AS_MADE}
_COMPUTING = "torch.nn.utils."
_DEEPEST = 8  # levels of lists, dictionaries and objects inside one another
_MOST = 20_000  # things looked at in one module


def settings_of(module: nn.Module) -> dict[str, object]:
    """Numbers, texts, arrays and functions that a module holds unregistered, by where they lie; tensors as hashes.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> layer.scales = [0.5, torch.ones(2)]
        >>> [name for name in settings_of(layer) if name.startswith("scales")]
        ['scales[0]', 'scales[1]']
    """
    walk = _Walk({id(tensor) for tensor in (*module.parameters(), *module.buffers())})
    for name, part in module.named_modules():
        walk.seen[id(part)] = part
        # The older weight_norm and spectral_norm, and pruning, compute a weight before each call and keep it as an attribute.
        of_torch = [hook for hook in part._forward_pre_hooks.values() if type(hook).__module__.startswith(_COMPUTING)]
        computed = {getattr(hook, "name", getattr(hook, "_tensor_name", "")) for hook in of_torch}
        for key, value in vars(part).items():
            if key not in _OF_TORCH and key not in computed:
                # torch numbers all hooks of a process, so two builds of one network differ in the numbers.
                part = list(value.values()) if key in _HOOKS else value
                walk.visit(f"{name}.{key}" if name else key, part, 0)
    return walk.found


def differences(one: nn.Module, other: nn.Module) -> list[str]:
    """Names of what two modules hold unregistered and differently: tensors and arrays first, then numbers, then the rest.

    Example:
        >>> first, second = nn.Linear(2, 1), nn.Linear(2, 1)
        >>> first.B, second.B = torch.zeros(3), torch.ones(3)
        >>> differences(first, second)
        ['B']
    """
    return changed(settings_of(one), settings_of(other))


def changed(mine: Mapping[str, object], theirs: Mapping[str, object]) -> list[str]:
    """Names of settings that differ, in the order of :func:`differences`."""
    names = [name for name in (*mine, *(name for name in theirs if name not in mine)) if _differ(name, mine, theirs)]
    return sorted(names, key=lambda name: _rank(mine.get(name, theirs.get(name))))


def random_content(one: nn.Module, other: nn.Module) -> list[str]:
    """The differences of two builds that look drawn at random: tensors, arrays and fractions."""
    mine = settings_of(one)
    return [name for name in differences(one, other) if _rank(mine.get(name)) < 2]


def _differ(name: str, mine: Mapping[str, object], theirs: Mapping[str, object]) -> bool:
    return name not in mine or name not in theirs or mine[name] != theirs[name]


def _rank(value: object) -> int:
    if isinstance(value, _Content):
        return 0
    return 1 if isinstance(value, float | complex) else 2


@dataclasses.dataclass(frozen=True)
class _Content:
    """A tensor or an array, as far as needed to compare it."""

    shape: tuple[int, ...]
    kind: str
    digest: str


class _Walk:
    """Looks into what a module holds, each object once.

    Args:
        registered: Addresses of parameters and buffers, which are no settings wherever else they are held.
    """

    def __init__(self, registered: set[int]) -> None:
        self.registered, self.found = registered, dict[str, object]()
        self.seen: dict[int, object] = {}  # alive, so that no address is used twice

    def visit(self, name: str, value: object, depth: int) -> None:
        """Note a value, or what it is made of."""
        if len(self.found) >= _MOST or depth > _DEEPEST or id(value) in self.registered:
            return
        if value is None or isinstance(value, bool | int | float | complex | str | bytes | torch.dtype | torch.device):
            self.found[name] = repr(value) if value != value else value  # not a number equals itself here
        elif isinstance(value, Tensor | np.ndarray | np.generic):
            array = np.asarray(value) if isinstance(value, np.generic) else value
            self.found[name] = _Content(tuple(array.shape), str(array.dtype), digest_or_shape(array))
        elif id(value) not in self.seen:
            self.seen[id(value)] = value
            for key, part in _parts(value):
                self.visit(f"{name}{key}", part, depth + 1)


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """What an object is made of, as far as a forward pass may read it."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, nn.Module):  # held in a list or a closure: its weights are nobody's
        yield from ((f".{name}", part) for name, part in state_of(value).items())
        yield from ((f".{name}", part) for name, part in settings_of(value).items())
    elif isinstance(value, functools.partial):
        yield from (("", value.func), ("", value.args), ("", value.keywords))
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, type | types.ModuleType | types.MethodType | types.BuiltinFunctionType):
        yield " is", f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}"
    else:
        yield " is a", type(value).__qualname__
        yield from ((f".{key}", part) for key, part in getattr(value, "__dict__", {}).items())


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    yield " is", f"{function.__module__}.{function.__qualname__}"
    yield " does", function.__code__.co_code
    yield " with", [constant for constant in function.__code__.co_consts if isinstance(constant, int | float | str)]
    yield from ((f" of {name}", part) for name, part in closure_of(function))
    yield " by default", (function.__defaults__, function.__kwdefaults__)


def structure_of(module: nn.Module) -> list[tuple[str, str]]:
    """The layers of a module by name, and their classes."""
    return [(name, type(part).__qualname__) for name, part in module.named_modules()]
