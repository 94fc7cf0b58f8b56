"""Initial zeros: weights that start at or near zero and so switch off parts of a network, which the numbers then leave out.

The last scale of a residual branch (zero-initialised BatchNorm, ReZero, LayerScale), its last layer, or the second factor of
a low-rank adapter may start at 0. Weights before them then have no influence on the output. A zero bias switches nothing off.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from biascope.families.family import Family
from biascope.families.network import Network
from biascope.families.weights import Params
from biascope.runs.randomness import forked_rng, seed_of

_NEAR = 0.01  # of the size that is usual, a scale of 1 or a layer of variance 1/fan_in
_LOW = 0.05  # of the largest influence: weights without one may be switched off
_REVIVED = 30.0  # times the influence, where what switches off is switched on …
_SEEN = 1e-2  # … and at least this
_LATER = "measure weights after a few training steps (--weights FILE)"


def doubts_of_zeros(family: Family, x: Any, readout: str = "first") -> list[str]:
    """A sentence where weights that start at or near zero switch off parts of a network; else none.

    Definition: let ``Δ = f(x) − f(x′)`` be how the output changes between two inputs. The influence of a layer ``q`` on it is
    ``‖∂Δ/∂q‖·‖q‖/|Δ|``, near 1 if every path from input to output leads through it. Weights near zero are a switch if the influence of
    others is proportional to them, and grows at least 30-fold where they have their usual size.

    Args:
        family: Networks at initialisation.
        x: A few inputs ``(n, …)``, any pytree.
        readout: Which scalar of several outputs.

    Example:
        >>> class Branch(torch.nn.Linear):
        ...     def forward(self, x):
        ...         return x.sum(1, keepdim=True) + self.scale * super().forward(x)
        >>> def build(scale=0.0):
        ...     layer = Branch(3, 2)
        ...     layer.scale = torch.nn.Parameter(torch.full((1,), scale))
        ...     return layer
        >>> doubts_of_zeros(Family.initialised(build), torch.ones(2, 3))[0].split(".")[0]
        'Weights of build that start at or near 0 (scale) switch off 1 of its 1 layers (weight)'
    """
    if family.size is not None:
        return []
    like = next((leaf for leaf in tree_leaves(x) if leaf.is_floating_point()), None)
    network = family.template.read(readout)
    network = network if like is None else network.to(like.device, like.dtype)
    try:
        switches, off = _switches(network, _apart(x))
    except Exception:  # what the forward or backward pass cannot do is told by the checks of derivatives
        return []
    if not switches:
        return []
    words = (
        f"Weights of {family.name} that start at or near 0 ({_named(switches)}) switch off {len(off)} of its {len(_layers(network))} "
        f"layers ({_named(off)}). The numbers are about the rest of the network. "
    )
    options = _options(family)
    if not options:
        return [f"{words}If its builder has an option for this, try it, or {_LATER}."]
    return [f"{words}Try another value of {' or '.join(options)} (--set {options[0]}=…), or {_LATER}."]


def zero_layers(network: Network) -> list[str]:
    """Names of the weights of layers that are all zero."""
    return [name for name in _layers(network) if not bool(network.params[name].any())]


def _layers(network: Network) -> list[str]:
    """Names of weights of two or more axes: scales and biases belong to a layer."""
    return [name for name, tensor in network.params.items() if not _is_vector(tensor) and tensor.is_floating_point()]


def _is_vector(tensor: Tensor) -> bool:
    return sum(length > 1 for length in tensor.shape) <= 1


def _switches(network: Network, x: Any) -> tuple[list[str], list[str]]:
    """Weights near zero by which others are switched off, and these others."""
    groups: dict[tuple[str, ...], Params] = {}
    for name, tensor in network.params.items():
        if (usual := _usual(name, tensor)) is not None:
            groups.setdefault(_kind(network, name), {})[name] = usual
    near = {name for group in groups.values() for name in group}
    rest = [name for name in _layers(network) if name not in near]
    if not groups or not rest:
        return [], []
    before = _influences(network, x, {})
    low = [name for name in rest if before[name] <= _LOW * max(before[other] for other in rest)]
    if not low:
        return [], []

    def revived(on: Params) -> set[str]:
        after = _influences(network, x, on)
        return {name for name in low if after[name] >= max(_REVIVED * before[name], _SEEN)}

    def proportional(names: Iterable[str], group: Params, others: Params) -> set[str]:
        more, less = (
            _influences(network, x, others | {name: size * tensor for name, tensor in group.items()}, relative=False)
            for size in (1e-2, 1e-4)
        )
        return {name for name in names if more[name] >= _REVIVED * less[name]}

    every = {name: tensor for group in groups.values() for name, tensor in group.items()}
    switches: list[str] = []
    off: set[str] = set()
    for group in groups.values():
        found = revived(group)
        if found := found and proportional(found, group, {}):
            switches += group
            off |= found
    if not switches and (together := revived(every)):  # two switches in a row: each needs the other
        for group in groups.values():
            others = {name: tensor for name, tensor in every.items() if name not in group}
            if found := proportional(together, group, others):
                switches += group
                off |= found
    return switches, [name for name in low if name in off]


def _usual(name: str, tensor: Tensor) -> Tensor | None:
    """Values of a usual size for a weight near zero: 1 for a scale, noise of variance 1/fan_in for a layer; ``None`` for others."""
    if not tensor.is_floating_point() or not tensor.numel():
        return None
    if _is_vector(tensor):
        return torch.ones_like(tensor) if float(tensor.abs().max()) <= _NEAR else None
    fan_in = tensor.numel() / len(tensor) if len(tensor) > 1 else max(tensor.shape)
    if float(tensor.double().square().mean().sqrt()) * math.sqrt(fan_in) > _NEAR:
        return None
    with forked_rng(seed_of(0, "usual", name)):
        return torch.randn_like(tensor) / math.sqrt(fan_in)


def _kind(network: Network, name: str) -> tuple[str, ...]:
    """Weights of one role in layers of one class."""
    place, _, own = name.rpartition(".")
    return type(network.module.get_submodule(place)).__qualname__, own


def _influences(network: Network, x: Any, changed: Params, relative: bool = True) -> dict[str, float]:
    """``‖∂Δ/∂q‖·‖q‖`` of every weight, some of which are changed, for the difference Δ of two outputs; relative to Δ."""
    params = {name: changed.get(name, tensor).detach().requires_grad_() for name, tensor in network.params.items()}
    with torch.enable_grad(), forked_rng(seed_of(0, "influence")):
        outputs = network(tree_map(torch.clone, x), params)
        difference = outputs[0] - outputs[-1]
        gradients = torch.autograd.grad(difference, list(params.values()), allow_unused=True, materialize_grads=True)
    scale = abs(float(difference.detach())) if relative else 1.0
    return {
        name: float(gradient.double().norm() * params[name].detach().double().norm()) / scale if scale else 0.0
        for name, gradient in zip(params, gradients, strict=True)
    }


def _apart(x: Any) -> Any:
    """Two inputs that differ: where there are numbers, a given one and another at some distance."""
    real = [leaf for leaf in tree_leaves(x) if leaf.is_floating_point()]

    def pair(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf if not real else leaf[:1].expand(2, *leaf.shape[1:])
        one = leaf[:1]
        size = float(one.double().square().mean().sqrt()) or 1.0
        with forked_rng(seed_of(0, "apart")):
            return torch.cat([one, one + size * torch.randn_like(one)])

    return tree_map(pair, x)


def _named(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"


def _options(family: Family) -> list[str]:
    """Settings of the builder that seem to be about initial values, by their names."""
    try:
        settings = inspect.signature(family.build).parameters if family.build is not None else {}
    except (TypeError, ValueError):  # a builder without a signature
        return []
    return [
        name for name in settings if re.search(r"zero|layer_?scale|init_(value|std|scale)|(^|_)(gamma|alpha)", name)
    ]
