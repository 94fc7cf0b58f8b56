"""Replaced: the components of a network as its forward pass shows them, and the same pass with others in their place.

A component is a call of a torch function at a place of the forward pass: in which module, and the how-manieth of its name. So a
network needs no special form. Modules stay as they are; a call is answered otherwise while :func:`replaced` lasts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from biascope.families.inputs import is_real
from biascope.families.network import Network
from biascope.families.replacements import kinds
from biascope.families.replacements._kind import Found, FunctionCall, Kind

#: Layers that prefer nothing by themselves, or that other components contain.
_PLAIN = (
    "Linear",
    "Identity",
    "Dropout",
    "Flatten",
    "Unflatten",
    "Embedding",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "DropPath",
)


class CallSite(NamedTuple):
    """A place of a forward pass.

    Attributes:
        path: Of the innermost module.
        function: Name of the torch function that is called there.
        number: Which of the calls of that name in this module, from 0.
    """

    path: str
    function: str
    number: int


@dataclass(frozen=True)
class Component:
    """A component that may be replaced.

    Attributes:
        kind: ``"pooling"``.
        label: What it is: ``"max pooling"``.
        places: Its calls.
        alternatives: What may stand there.
        detail: What its kind notes of it.
        scaled: Whether the second moment of its output is kept.
    """

    kind: str
    label: str
    places: tuple[CallSite, ...]
    alternatives: tuple[str, ...]
    detail: Any = None
    scaled: bool = True

    @property
    def where(self) -> str:
        """The module in which it is; empty for the network itself."""
        return self.places[0].path


@dataclass(frozen=True)
class Structure:
    """What a forward pass shows.

    Attributes:
        components: In the order of their calls.
        kept: What could not be replaced, and why, in words.
    """

    components: tuple[Component, ...]
    kept: tuple[str, ...]


class Constants(NamedTuple):
    """Numbers of a replacement that pilot draws determine, so that all draws have the same architecture.

    Attributes:
        scale: What its output is multiplied by, which keeps the second moment.
        mean: Of its input.
        spread: Standard deviation of its input.
    """

    scale: float = 1.0
    mean: float = 0.0
    spread: float = 1.0


Replacements = Mapping[Component, str]


@dataclass
class _Frame:
    """A module whose forward pass is under way."""

    path: str
    module: nn.Module
    inputs: tuple[Tensor, ...]
    shortcuts: list[Tensor] = field(default_factory=list)
    activated: bool = False


class _Passing(TorchFunctionMode):
    """A forward pass whose calls are answered by a function: ``answer(place, call) -> output``."""

    def __init__(
        self, module: nn.Module, answer: Callable[[CallSite, FunctionCall], Any], expected: Collection[CallSite] = ()
    ) -> None:
        super().__init__()
        self._expected = frozenset(expected)
        self._seen: set[CallSite] = set()
        self._answer = answer
        self._frames: list[_Frame] = []
        self._counts: Counter[tuple[str, str]] = Counter()
        self.visited: dict[str, nn.Module] = {}
        self._hooks = contextlib.ExitStack()
        self._module = module

    def __enter__(self) -> Any:
        for path, layer in self._module.named_modules():
            before = layer.register_forward_pre_hook(self._entering(path), with_kwargs=True)
            after = layer.register_forward_hook(self._left, with_kwargs=True, always_call=True)
            self._hooks.callback(before.remove)
            self._hooks.callback(after.remove)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> Any:
        self._hooks.close()
        return super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _entering(self, path: str) -> Callable[..., None]:
        def entering(module: nn.Module, args: Any, keywords: Any) -> None:
            if not self._frames:
                self._counts.clear()
                self._seen.clear()
            given = tuple(leaf for leaf in tree_leaves((args, keywords)) if isinstance(leaf, Tensor))
            self._frames.append(_Frame(path, module, given))
            self.visited[path] = module

        return entering

    def _left(self, module: nn.Module, args: Any, keywords: Any, output: Any) -> None:
        frame = self._frames.pop()
        if not self._frames:
            self._require_all(output)
            return
        above = self._frames[-1]
        above.activated |= frame.activated
        if not frame.activated and any(mine is theirs for mine in frame.inputs for theirs in above.inputs):
            above.shortcuts += [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]

    def _require_all(self, output: Any) -> None:
        """Refuse a pass that went by other calls than the one in which the components were found: it would not be replaced."""
        missing = self._expected - self._seen
        if missing and output is not None:
            place = next(iter(missing))
            raise ValueError(
                f"A network must make the same calls in every forward pass, but {place.function} in {place.path or 'the network'} did "
                "not come again. Make its forward pass independent of the inputs and of gradients."
            )

    def added(self, output: Tensor) -> None:
        """Note that a shortcut of the innermost module goes on in an output."""
        self._frames[-1].shortcuts.append(output)

    def activated(self) -> None:
        """Note that the innermost module has an activation."""
        self._frames[-1].activated = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if not self._frames or name == "__get__":
            return func(*args, **kwargs)
        frame = self._frames[-1]
        place = CallSite(frame.path, name, self._counts[frame.path, name])
        self._counts[frame.path, name] += 1
        self._seen.add(place)
        call = FunctionCall(
            name,
            args,
            kwargs,
            frame.module,
            frame.inputs,
            tuple(frame.shortcuts),
            lambda call: func(*call.args, **call.keywords),
        )
        return self._answer(place, call)


def structure_at(network: Network, x: Any) -> Structure:
    """The components of a network that may be replaced, seen in one forward pass.

    Args:
        network: One network.
        x: Inputs ``(n, …)``, a few.

    Example:
        >>> net = Network.of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 1)))
        >>> [each.label for each in structure_at(net, torch.randn(2, 1, 8, 8)).components]
        ['kernel', 'ReLU', 'max pooling', 'last layer']
    """
    found: list[Component] = []
    kept: list[str] = []

    def answer(place: CallSite, call: FunctionCall) -> Any:
        held = _copied(call)
        seen = [(kind, noted) for kind in kinds().values() if (noted := kind.find(call)) is not None]
        output = call.result()
        for kind, noted in seen:
            if kind.name == "activation":
                passing.activated()
            first = _tensor_of(output)
            if noted.depends and not first.requires_grad:
                continue
            if (known := _joined(found, kind, noted, place)) is not None:
                found[found.index(known)] = _with(known, place)
                continue
            fitting, reasons = _fitting(kind, noted, held, first)
            where = f"{noted.label} ({place.path or 'the network itself'})"
            kept.extend(f"{where}: {reason}" for reason in reasons)
            if kind.name == "skip connection":
                passing.added(first)
            if fitting:
                found.append(Component(kind.name, noted.label, (place,), fitting, noted.detail, noted.scaled))
        return output

    passing = _Passing(network.module, answer)
    fixed = network.with_params({name: tensor.detach() for name, tensor in network.params.items()})
    moving = tree_map(lambda leaf: leaf.detach().clone().requires_grad_() if is_real(leaf) else leaf, x)
    with torch.enable_grad(), passing:
        fixed(moving)
    last = {kind.name for kind in kinds().values() if kind.last}
    ends = {each.kind: each for each in found if each.kind in last}
    components = tuple(each for each in found if each.kind not in last or ends[each.kind] is each)
    return Structure(components, (*dict.fromkeys(kept), *_unseen(passing.visited, components)))


def _copied(call: FunctionCall) -> FunctionCall:
    """A call whose arguments stay as they are, whatever the function does in place."""
    if not (call.in_place and call.args and isinstance(call.args[0], Tensor)):
        return call
    return call.changed(0, "input", call.args[0].clone())


def _joined(found: Sequence[Component], kind: Kind, noted: Found, place: CallSite) -> Component | None:
    """The component to which a call belongs that shares its key with an earlier one of its module."""
    if not noted.key:
        return None
    return next((each for each in found if each.kind == kind.name and each.where == place.path), None)


def _with(component: Component, place: CallSite) -> Component:
    return dataclasses.replace(component, places=(*component.places, place))


def _fitting(kind: Kind, noted: Found, call: FunctionCall, output: Tensor) -> tuple[tuple[str, ...], list[str]]:
    """The alternatives that give an output of the same shape, and why others do not."""
    fitting, reasons = [], []
    for name in noted.alternatives:
        own = dataclasses.replace(_copied(call), detail=noted.detail, moments=_moments(call))
        try:
            other = _tensor_of(kind.alternatives[name](own))
        except Exception as error:  # torch says in many ways that shapes do not fit
            reasons.append(f"{name} does not fit ({str(error).splitlines()[0][:80].rstrip('.')})")
            continue
        if other.shape != output.shape:
            reasons.append(f"{name} gives another shape")
        else:
            fitting.append(name)
    return tuple(fitting), reasons


def _moments(call: FunctionCall) -> tuple[float, float]:
    x = call.x
    if not is_real(x):
        return 0.0, 1.0
    exact = x.detach().double()
    return float(exact.mean()), max(float(exact.std(correction=0)), 1e-30)


def _tensor_of(output: Any) -> Tensor:
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def _unseen(visited: Mapping[str, nn.Module], components: Sequence[Component]) -> list[str]:
    """Modules without others inside, in whose calls no component is known."""
    places = {place.path for each in components for place in each.places}
    found: dict[str, list[str]] = {}
    for path, module in visited.items():
        kind = type(module).__name__
        if any(True for _ in module.children()) or path in places or kind.startswith(_PLAIN):
            continue
        found.setdefault(kind, []).append(path or "the network itself")
    return [
        f"{kind} ({paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}): "
        + ("a fixed map in evaluation mode" if kind.startswith("BatchNorm") else "no replacement is known")
        for kind, paths in found.items()
    ]


@contextlib.contextmanager
def replaced(network: Network, replacements: Replacements, constants: Mapping[Component, Constants]) -> Iterator[None]:
    """Answer the calls of some components otherwise in all forward passes of a network's module meanwhile.

    Args:
        network: Whose module it is; draws of a family share it.
        replacements: The alternative of each component.
        constants: See :func:`constants_of`; those that are missing are neutral.
    """
    chains = _chains(replacements)

    def answer(place: CallSite, call: FunctionCall) -> Any:
        if place not in chains:
            return call.result()
        return _through(chains[place], call, applied)

    def applied(component: Component, own: FunctionCall) -> Any:
        known = constants.get(component, Constants())
        call = dataclasses.replace(own, detail=component.detail, moments=(known.mean, known.spread))
        return _times(known.scale, kinds()[component.kind].alternatives[replacements[component]](call))

    with _Passing(network.module, answer, chains) if replacements else contextlib.nullcontext():
        yield


def _chains(replacements: Replacements) -> dict[CallSite, list[Component]]:
    found: dict[CallSite, list[Component]] = {}
    for component in replacements:
        for place in component.places:
            found.setdefault(place, []).append(component)
    return found


def _through(chain: Sequence[Component], call: FunctionCall, apply: Callable[[Component, FunctionCall], Any]) -> Any:
    """A call answered by several components, each of which may ask the next one."""
    if not chain:
        return call.result()
    first, *rest = chain
    whole = call.finish

    def finish(own: FunctionCall) -> Any:
        return _through(rest, dataclasses.replace(own, finish=whole), apply)

    return apply(first, dataclasses.replace(call, finish=finish))


def _times(scale: float, output: Any) -> Any:
    if scale == 1.0:
        return output
    return (output[0] * scale, *output[1:]) if isinstance(output, tuple) else output * scale


def constants_of(
    network: Network, replacements: Replacements, passes: Iterable[Callable[[], object]]
) -> dict[Component, Constants]:
    """The constants of replacements, from some forward passes.

    Definition: the scale of a component is ``√(Σ‖c(z)‖² / Σ‖r(z)‖²)`` for what it gives and what its replacement gives of its own input
    ``z``, over all passes. In each pass, components before it are replaced already, and keep the second moments of that pass.

    Args:
        network: Whose module makes the passes.
        replacements: The alternative of each component.
        passes: Each makes one forward pass.
    """
    chains = _chains(replacements)
    sums: dict[Component, list[float]] = {component: [0.0] * 5 for component in replacements}

    def answer(place: CallSite, call: FunctionCall) -> Any:
        return _through(chains[place], call, calibrated) if place in chains else call.result()

    def calibrated(component: Component, own: FunctionCall) -> Any:
        held = dataclasses.replace(_copied(own), detail=component.detail, moments=_moments(own))
        reference = _tensor_of(_copied(held).result()).detach().double().square().sum()
        output = kinds()[component.kind].alternatives[replacements[component]](held)
        size = _tensor_of(output).detach().double().square().sum()
        mean, spread = held.moments
        found = sums[component]
        for place, number in enumerate((float(reference), float(size), mean, mean**2 + spread**2, 1.0)):
            found[place] += number
        scale = math.sqrt(float(reference) / float(size)) if component.scaled and size > 0 and reference > 0 else 1.0
        return _times(scale, output)

    with _Passing(network.module, answer, chains), torch.no_grad():
        for each in passes:
            each()
    return {component: _constants(component, found) for component, found in sums.items()}


def _constants(component: Component, sums: Sequence[float]) -> Constants:
    reference, size, mean, square, count = sums
    if not count:
        return Constants()
    mean, square = mean / count, square / count
    scale = math.sqrt(reference / size) if component.scaled and size > 0 and reference > 0 else 1.0
    return Constants(scale, mean, math.sqrt(max(square - mean**2, 1e-30)))


def neutral(structure: Structure) -> dict[Component, str]:
    """The replacements that leave a network without all preferences that components of known kinds have."""
    return {
        each: kinds()[each.kind].neutral
        for each in structure.components
        if kinds()[each.kind].neutral in each.alternatives
    }
