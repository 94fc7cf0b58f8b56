"""Kind: what of the components of a network one replacement knows. FunctionCall: one call of a torch function in a forward pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

IN_PLACE = ("relu_", "add_", "silu_", "hardtanh_", "leaky_relu_", "elu_")


@dataclass(frozen=True, eq=False)
class FunctionCall:
    """One call of a torch function in a forward pass.

    Attributes:
        name: Of the function, as torch has it: ``"conv2d"``.
        args: Its positional arguments.
        keywords: Its named arguments.
        module: The innermost module in which it is made.
        inputs: The tensors that this module was given.
        shortcuts: What this module computed of its inputs without an activation.
        finish: Computes the call with such arguments.
        moments: Mean and standard deviation of its first argument, over the pilot draws.
        detail: What :meth:`Kind.found` noted of it.
    """

    name: str
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]
    module: nn.Module
    inputs: tuple[Tensor, ...]
    shortcuts: tuple[Tensor, ...]
    finish: Callable[[FunctionCall], Any]
    moments: tuple[float, float] = (0.0, 1.0)
    detail: Any = None

    @property
    def x(self) -> Tensor:
        """The first argument."""
        found: Tensor = self.args[0] if self.args else next(iter(self.keywords.values()))
        return found

    def given(self, place: int, name: str, default: Any = None) -> Any:
        """An argument by its place or its name."""
        return self.args[place] if place < len(self.args) else self.keywords.get(name, default)

    def changed(self, place: int, name: str, value: Any) -> FunctionCall:
        """The same call with another argument."""
        if place < len(self.args):
            args = (*self.args[:place], value, *self.args[place + 1 :])
            return dataclasses.replace(self, args=args)
        return dataclasses.replace(self, keywords={**self.keywords, name: value})

    @property
    def in_place(self) -> bool:
        """Whether it changes its first argument."""
        return self.name in IN_PLACE or bool(self.keywords.get("inplace"))

    def result(self) -> Any:
        """What the function gives."""
        return self.finish(self)


@dataclass(frozen=True)
class Found:
    """A component that a kind found in a call.

    Attributes:
        label: What it is: ``"max pooling"``.
        alternatives: What it may be replaced by, by their names.
        detail: Passed on to the alternatives.
        key: Calls of one module with the same key are one component; by default each call is one.
        depends: Whether it must depend on the input to be a component.
        scaled: Whether the second moment of its output is kept.
    """

    label: str
    alternatives: tuple[str, ...]
    detail: Any = None
    key: str = ""
    depends: bool = True
    scaled: bool = True


@dataclass(frozen=True)
class Kind:
    """Components of one kind, and what may stand in their place.

    A file in this folder with a ``KIND`` is one; no list names it.

    Attributes:
        name: In a table: ``"pooling"``.
        find: What component a call is; ``None`` if it is none of this kind.
        alternatives: Of a call, the output with something else in its place.
        neutral: Which alternative a network without preferences has; empty where the component prefers nothing by itself.
        last: Whether only the last such call of a forward pass counts.
    """

    name: str
    find: Callable[[FunctionCall], Found | None]
    alternatives: Mapping[str, Callable[[FunctionCall], Any]]
    neutral: str = ""
    last: bool = False
