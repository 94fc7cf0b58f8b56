"""A network of several inputs as a function of one of them; the others are held: masks, graphs, lengths, flags, None."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from biascope.families.acceptance import accepted_outputs, shape_of
from biascope.families.readout import single_output
from biascope.results.axes import Axis
from biascope.runs.failures import FOREIGN, reason_of
from biascope.runs.randomness import forked_rng

_FILES = (".npy", ".npz", ".pt", ".csv")
#: How held tensors may go with a batch, in the order in which they are tried.
_WAYS = ("a copy for each sample", "one for the batch", "sample by sample")


class OfOneInput(nn.Module):
    """A module as a function of one of its inputs.

    Args:
        module: Takes several inputs by name, or all of them in one dictionary.
        held: The others, by name.
        measured: The name of the input that moves; empty for the first.
        way: How held tensors go with a batch, one of three.
        as_dictionary: Whether all inputs go in one dictionary.
    """

    def __init__(
        self, module: nn.Module, held: Mapping[str, Any], measured: str, way: str, as_dictionary: bool
    ) -> None:
        super().__init__()
        self.module, self.measured, self.way, self.as_dictionary = module, measured, way, as_dictionary
        self.names = tuple(held)
        self.plain = {name: value for name, value in held.items() if not isinstance(value, Tensor)}
        for name, value in held.items():
            if isinstance(value, Tensor):
                self.register_buffer(f"held_{name}", value)

    def forward(self, x: Tensor) -> Any:
        """Outputs at the held inputs."""
        held = {name: self.plain[name] if name in self.plain else getattr(self, f"held_{name}") for name in self.names}
        if self.way == _WAYS[2]:
            return vmap(lambda one: single_output(self._called(one, held)))(x)
        if self.way == _WAYS[0]:
            held = {name: self._copied(value, len(x)) for name, value in held.items()}
        return self._called(x, held)

    @staticmethod
    def _copied(value: Any, count: int) -> Any:
        return value.expand(count, *value.shape) if isinstance(value, Tensor) and value.dim() else value

    def _called(self, x: Tensor, held: dict[str, Any]) -> Any:
        if self.as_dictionary:
            return self.module({self.measured: x, **held})
        return self.module(**{self.measured: x}, **held) if self.measured else self.module(x, **held)


@dataclass(frozen=True)
class Holding:
    """Which inputs of a network are held, and which one is measured.

    Attributes:
        held: Values by name; a tensor is one sample's, without a batch axis.
        measured: The name of the measured input; empty for the first.
    """

    held: Mapping[str, Any] = field(default_factory=dict)
    measured: str = ""

    @staticmethod
    def of(held: Mapping[str, Any], measured: str = "") -> Holding:
        """The same from values as a user gives them: arrays, tensors, flags, or words such as those of :func:`held_value`."""
        return Holding({name: held_value(name, value) for name, value in held.items()}, measured)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """What the axes of the measured input are, where what is held tells: rows that a graph joins are nodes."""
        graph = any(name.startswith(("adj", "edge")) for name in self.held)
        return (Axis("node"), Axis("feature")) if graph else ()

    def wrapper(self, build: Callable[[], nn.Module], x: Tensor, name: str) -> Callable[[nn.Module], nn.Module]:
        """What makes a module of one input of each that the builder returns, tried on one of them.

        Args:
            build: The builder.
            x: Some measured inputs ``(n, …)``.
            name: Of the network, for errors.

        Raises:
            ValueError: If the network takes these inputs in no way, or in two ways with different outputs.
        """
        with forked_rng(0):
            module = build().eval()
        measured, as_dictionary = self._place(module, name)
        rows: dict[str, Tensor] = {}
        reason = ""
        for way in _WAYS:
            if way == _WAYS[2] and rows:
                continue
            try:
                with torch.no_grad(), forked_rng(0):
                    one_input = OfOneInput(module, self.held, measured, way, as_dictionary)
                    outputs = accepted_outputs(single_output(one_input(x.clone())), x, name)
                    alone = torch.cat([single_output(one_input(each.clone())) for each in torch.split(x, 1)])
            except FOREIGN as error:
                reason = reason or reason_of(error)
                continue
            if not bool(outputs.isfinite().all()):
                reason = reason or "outputs that are not finite numbers"
            elif outputs.shape == alone.shape and torch.allclose(outputs, alone, rtol=1e-3, atol=1e-5):
                rows[way] = outputs
        if not rows:
            raise ValueError(
                f"{name} must take {shape_of(x)} inputs{self._in_words()}, but that failed"
                f"{f' with: {reason}' if reason else ', since samples of a batch change one another'}. Check --input and --hold."
            )
        first, *others = rows.values()
        if any(not torch.allclose(first, other, rtol=1e-3, atol=1e-5) for other in others):
            raise ValueError(
                f"{name} must give the same outputs whether {', '.join(self.held)} is passed once for each sample or once for a batch, "
                "but does not. Wrap it to take one tensor."
            )
        return functools.partial(
            OfOneInput, held=self.held, measured=measured, way=next(iter(rows)), as_dictionary=as_dictionary
        )

    def _in_words(self) -> str:
        named = f" as {self.measured}" if self.measured else ""
        return f"{named} with {', '.join(self.held)} held" if self.held else named

    def _place(self, module: nn.Module, name: str) -> tuple[str, bool]:
        """The name by which the measured input goes, and whether all go in one dictionary."""
        parameters = inspect.signature(module.forward).parameters.values()
        anything = any(each.kind is each.VAR_KEYWORD for each in parameters)
        named = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
        if anything or set(self.held) <= set(named):
            free = [each for each in named if each not in self.held]
            if self.measured and self.measured not in named and not anything:
                raise ValueError(
                    f"{name} must have an input {self.measured!r}, and has {', '.join(named)}. Name one of them."
                )
            if self.measured or free:
                return self.measured or free[0], False
            raise ValueError(
                f"{name} must keep one input to measure, but all are held ({', '.join(named)}). Hold fewer."
            )
        if not named:
            raise ValueError(
                f"{name} must have inputs with names, to hold {', '.join(self.held)}, but has none. Wrap it to take one tensor."
            )
        if len(named) == 1 and self.measured:
            return self.measured, True
        if len(named) == 1:
            raise ValueError(
                f"{name} takes {named[0]} alone, got {', '.join(self.held)} to hold. If it is a dictionary, name the measured entry: "
                "--input NAME=16x4. Else leave --hold out."
            )
        unknown = sorted(set(self.held) - set(named))
        raise ValueError(
            f"{name} must have an input {unknown[0]!r} to hold, and has {', '.join(named)}. Hold one of them."
        )


def held_value(name: str, value: Any) -> Any:
    """A value to hold: a tensor of an array or of a file, a number, a truth value or ``None``.

    Example:
        >>> held_value("mask", "none"), held_value("flag", "true"), held_value("lengths", [3, 4])
        (None, True, tensor([3, 4]))
    """
    if isinstance(value, str):
        if Path(value).suffix in _FILES:
            return _from_file(name, Path(value).expanduser())
        known = {"none": None, "true": True, "false": False}
        if value.lower() in known:
            return known[value.lower()]
        try:
            return int(value) if value.lstrip("-").isdecimal() else float(value)
        except ValueError:
            raise ValueError(
                f"What is held as {name} must be a number, true, false, none, or a file ({', '.join(_FILES)}), got {value!r}. "
                f"Pass such as --hold {name}=mask.npy."
            ) from None
    if isinstance(value, Tensor | np.ndarray | list | tuple):
        try:
            found = torch.as_tensor(value).detach().clone()
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"What is held as {name} must be numbers or truth values, got {np.asarray(value).dtype} entries. Pass an array of "
                "numbers."
            ) from error
        if found.is_floating_point() and found.isnan().any():
            raise ValueError(
                f"What is held as {name} must have no missing values, got {int(found.isnan().sum())} NaN of {found.numel():,}. "
                "Replace them, such as by 0."
            )
        return found.float() if found.dtype == torch.float64 else found
    if value is None or isinstance(value, bool | int | float):
        return value
    raise ValueError(
        f"What is held as {name} must be a tensor, an array, a number or None, got {type(value).__name__}."
    )


def _from_file(name: str, path: Path) -> Tensor:
    if not path.is_file():
        raise ValueError(f"What is held as {name} must be a file, but {path} does not exist. Check --hold {name}=FILE.")
    try:
        if path.suffix == ".pt":
            found = torch.load(path, weights_only=True, map_location="cpu")
        elif path.suffix == ".csv":
            found = np.loadtxt(path, delimiter=",", ndmin=2, dtype=np.float32)
        else:
            found = np.load(path, allow_pickle=False)
            found = found[found.files[0]] if path.suffix == ".npz" and len(found.files) == 1 else found
    except FOREIGN as error:
        raise ValueError(
            f"{path} must be readable as {name}, but is not: {reason_of(error)}. Check the file."
        ) from error
    if not isinstance(found, Tensor | np.ndarray):
        raise ValueError(f"{path} must hold one array for {name}, got several. Save it alone with numpy.save.")
    tensor: Tensor = held_value(name, found)
    return tensor
