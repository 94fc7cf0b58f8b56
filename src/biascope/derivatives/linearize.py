"""The linearisation of a network in its weights, as a network that trains like any other."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import safetensors
import torch
import torch.autograd.forward_ad as forward_mode
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from biascope.derivatives.gradients import plain_attention
from biascope.families import weights
from biascope.families.names import matched
from biascope.families.network import Network
from biascope.families.recomputation import WithoutRecomputation
from biascope.families.weights import Params
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.digest import fingerprint

EXPANSION_POINT, ORIGIN = "linearized_at", "linearized_from"  # prefixes of the buffers that hold θ* and θ₀

# The public function loads formulas that torch keeps in Python. What it and unpack_dual call is several times faster, which
# small networks notice.
_loading_dual: Callable[[Tensor, Tensor], Tensor] = forward_mode.make_dual
_dual: Callable[[Tensor, Tensor], Tensor] = functools.partial(torch._make_dual, level=0)
_parts: Callable[[Tensor], tuple[Tensor, Tensor | None]] = functools.partial(torch._unpack_dual, level=0)


@under_torch_defaults
def linearize(network: Network, at: Params | None = None, *, biased: bool = True) -> Network:
    """The linearisation of a network in its weights: same names, same starting weights, affine in them.

    Definition:
        Biased, the first-order Taylor expansion around θ*: ``f_lin(x; θ) = f(x; θ*) + (θ − θ*)ᵀ∇_θ f(x; θ*)``. Unbiased,
        ``f_lin(x; θ) = (θ − θ₀)ᵀ∇_θ f(x; θ*)``: zero at θ₀, with the tangent kernel of θ*.

    There are two anchors. The *expansion point* θ* is where the derivative is taken (``at``). The *origin* is the point that weights
    are measured from: θ* if biased, θ₀ if not. θ₀ is ``network.params``. The weights of the returned network start there in both
    cases. The anchors are copies and are stored as buffers of the returned network, also in stacks: ``linearized_at.*``, and
    ``linearized_from.*`` if the origin is another point.

    Outputs and derivative take one forward-mode pass. The gradient with respect to θ takes one ordinary backward pass. Dropout is
    off. BatchNorm uses the statistics in ``network.buffers``, also after ``.train()``. For the derivative at trained weights, pass
    their statistics too: ``linearize(start.with_params(start.params, trained.buffers), trained.params)``. A readout is kept and
    applied to the linearised outputs. Attention is computed by its plain formula. Threads take turns in the forward pass, because
    torch has one forward mode for a whole process. Their backward passes overlap.

    Args:
        network: One network or a stack, at θ₀.
        at: The expansion point θ*, by name as in ``network.params``; θ₀ by default.
        biased: Whether the value at the expansion point is part of the output.

    Returns:
        The linearised network. Its :meth:`~biascope.families.network.Network.as_module` is an ordinary module for any optimiser.

    Raises:
        ValueError: If the network is linearised already, or ``at`` does not fit its weights. Calling the network raises it if an
            operation has no forward-mode derivative, or if the output is not a pytree of tensors.

    Example:
        >>> product = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))  # f = b a x
        >>> start, moved = ({"0.weight": torch.full((1, 1), a), "1.weight": torch.full((1, 1), b)} for a, b in ((2.0, 3.0), (3.0, 4.0)))
        >>> network, x = Network.of(product).with_params(start), torch.ones(1, 1)
        >>> [float(f(x, moved)) for f in (network, linearize(network), linearize(network, biased=False))]
        [12.0, 11.0, 5.0]

    Reference:
        Ortiz-Jiménez (2023). On the inductive biases of deep networks and their weight space, equations (4.1) and (4.15).
    """
    if not isinstance(network, Network):
        raise ValueError(f"network must be a Network, got {type(network).__name__}. Pass Network.of(module).")
    if not network.params or any(isinstance(layer, Linearized) for layer in network.module.modules()):
        problem = "has no weights" if not network.params else "is linearised already"
        raise ValueError(f"network must have weights and not be linearised, but it {problem}. Pass the original.")
    point = network.params if at is None else matched(at, network.params, "at")
    anchors = {f"{EXPANSION_POINT}.{name}": _copied(point[name], like) for name, like in network.params.items()}
    if at is not None and not biased:
        anchors |= {f"{ORIGIN}.{name}": _copied(tensor, tensor) for name, tensor in network.params.items()}
    anchored = network.with_params(network.params, {**network.buffers, **anchors})
    return dataclasses.replace(anchored, module=Linearized(anchored, biased=biased))


def _copied(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor.detach().to(like.device, like.dtype, copy=True)


def save_linearized(network: Network, path: Path | str) -> None:
    """Write the weights of a linearised network as safetensors, with hashes of what they are relative to.

    The anchors themselves are not written: they are those of the network that was linearised.

    Args:
        network: A linearised network or stack.
        path: A file name that ends in ``.safetensors``.

    Raises:
        ValueError: If the network is not linearised, or the file is of another kind.
    """
    weights.save(network.params, _checked(path), _identity(network))


@under_torch_defaults
def load_linearized(path: Path | str, network: Network) -> Network:
    """A linearised network at weights written by :func:`save_linearized`.

    Args:
        path: The file.
        network: The network as it was when those weights were made: linearised by :func:`linearize` with the same anchors.

    Returns:
        The same linearised network at the weights of the file.

    Raises:
        ValueError: If the file was made with other anchors, statistics or bias, or holds something else.

    Example:
        >>> import tempfile
        >>> line = linearize(Network.of(nn.Linear(2, 1)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_linearized(line, f"{folder}/line.safetensors")
        ...     bool(torch.equal(load_linearized(f"{folder}/line.safetensors", line).params["weight"], line.params["weight"]))
        True
    """
    wanted, loaded = _identity(network), weights.load(_checked(path))
    with safetensors.safe_open(str(path), "pt") as file:
        found = file.metadata() or {}
    if found.get("kind") != wanted["kind"]:
        raise ValueError(
            f"{path} must hold a linearised network's weights, but its metadata does not say so. Use save_linearized."
        )
    if other := [
        f"{key} {found.get(key)} instead of {hashed}" for key, hashed in wanted.items() if found.get(key) != hashed
    ]:
        raise ValueError(
            f"The weights in {path} must be relative to the anchors of this network, but were made with others: "
            f"{'; '.join(other)}. Linearise the network they were trained from, in the same precision and with the same settings."
        )
    params = matched(loaded, network.params, str(path))
    return network.with_params({name: params[name].to(like) for name, like in network.params.items()})


def _identity(network: Network) -> dict[str, str]:
    """What the weights of a linearised network are relative to, as hashes."""
    if not isinstance(network.module, Linearized):
        raise ValueError("network must be linearised, but it is not. Pass linearize(network).")
    parts: dict[str, Params] = {EXPANSION_POINT: {}, ORIGIN: {}, "": {}}
    for name, tensor in network.buffers.items():
        first, _, rest = name.partition(".")
        parts[first if first in parts else ""][rest if first in parts else name] = tensor
    return {
        "kind": "linearized",
        "biased": str(network.module._biased),
        "expansion_point": fingerprint(parts[EXPANSION_POINT]),
        "origin": fingerprint(parts[ORIGIN] or parts[EXPANSION_POINT]),
        "statistics": fingerprint(parts[""]),
    }


def _checked(path: Path | str) -> Path:
    if Path(path).suffix != ".safetensors":
        raise ValueError(f"path must end in .safetensors, got {path}. Pass 'linearized.safetensors'.")
    return Path(path)


class Linearized(nn.Module):
    """A module's linearisation as a module: the same parameters under the same names, the anchors as buffers.

    The module itself is kept aside, unregistered and without weights, as the recipe of the forward pass: what is done to
    this one (``train``, ``to``, ``requires_grad_``) does not reach it, so that no name is doubled and nothing thaws.

    Args:
        network: The network that is linearised, the anchors among its buffers.
        biased: As in :func:`linearize`.
    """

    _recipe: nn.Module

    def __init__(self, network: Network, *, biased: bool) -> None:
        super().__init__()
        one = network if network.members is None else network.member(0)
        recipe, self._biased = copy.deepcopy(network.module).eval(), biased
        object.__setattr__(self, "_recipe", recipe)  # plain assignment would register it
        aliases, transient = _aliases(recipe), _non_persistent(recipe)
        # Like the module of any network, this one lends names and shapes: as_module and calls bring the numbers.
        for name, tensor in one.params.items():
            parameter = nn.Parameter(tensor.new_zeros(()).expand(tensor.shape), requires_grad=False)
            for alias in aliases[name]:
                owner, key = _owner(self, alias)
                owner.register_parameter(key, parameter)
        for name, tensor in one.buffers.items():
            for alias in aliases.get(name, [name]):
                owner, key = _owner(self, alias)
                blank = tensor.new_zeros(()).expand(tensor.shape)
                owner.register_buffer(key, blank, persistent=alias not in transient)
        fixed = [name for name in one.buffers if name in aliases]
        self._weights, self._fixed = ([_owner(self, name) for name in names] for names in (one.params, fixed))
        self._point, self._origin = (
            [_owner(self, f"{prefix}.{name}") for name in one.params] if prefix in self._modules else []
            for prefix in (EXPANSION_POINT, ORIGIN)
        )
        owners = [[_owner(recipe, alias) for alias in aliases[name]] for name in [*one.params, *fixed]]
        self._slots: list[list[tuple[dict[str, Any], str]]] = [
            [(owner._parameters if key in owner._parameters else owner._buffers, key) for owner, key in each]
            for each in owners
        ]
        self._recurrent = [layer for layer in recipe.modules() if isinstance(layer, nn.RNNBase)]
        self._blank = [torch.empty_like(held, device="meta") for held in _read([*self._weights, *self._fixed])]
        self._fill(self._blank)
        for layer in recipe.modules():
            if type(layer) in _RULES and "forward" not in vars(layer):
                layer.forward = functools.partial(_RULES[type(layer)], layer)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Linearised outputs, in the structure of the module's own; those that no weight influences pass as they are."""
        now, point = _read(self._weights), _read(self._point)
        origin = _read(self._origin) if self._origin else point
        transformed = torch._C._are_functorch_transforms_active()
        # All differences in one kernel, which torch.func's transforms do not know.
        moves = [a - b for a, b in zip(now, origin, strict=True)] if transformed else torch._foreach_sub(now, origin)
        leaves: list[Any] = []
        structure: Any = None

        def ends(duals: Sequence[Tensor]) -> list[Tensor]:
            nonlocal leaves, structure
            leaves, structure = tree_flatten(self._outputs(duals, args, kwargs))
            return [self._end(leaf) for leaf in leaves if _is_tensor(leaf)]

        with _forward_mode(), WithoutRecomputation():
            if transformed:  # jvp insists on an output; ours already have their slope added
                *_, values = torch.func.jvp(lambda duals: (duals[0], ends(duals)), (point,), (moves,), has_aux=True)
            else:
                with forward_mode.dual_level():
                    _loading_dual(point[0], moves[0])
                    values = ends([_dual(a, b) for a, b in zip(point, moves, strict=True)])
        remaining = iter(values)
        return tree_unflatten([next(remaining) if _is_tensor(leaf) else leaf for leaf in leaves], structure)

    def _outputs(self, duals: Sequence[Tensor], args: Any, kwargs: Any) -> Any:
        """The module's own outputs at given weights."""
        self._fill([*duals, *_read(self._fixed)])
        try:
            return self._recipe(*args, **kwargs)
        finally:
            self._fill(self._blank)  # what is left there would keep a graph alive

    def _end(self, leaf: Tensor) -> Tensor:
        value, slope = _parts(leaf)
        if slope is None:
            return value
        return value + slope if self._biased else slope

    def _fill(self, tensors: Sequence[Tensor]) -> None:
        for slots, tensor in zip(self._slots, tensors, strict=True):
            for store, key in slots:
                store[key] = tensor
        for layer in self._recurrent:  # these keep a list of their weights
            layer._init_flat_weights()

    def __repr__(self) -> str:
        return f"Linearized({self._recipe!r}, biased={self._biased})"


def _aliases(module: nn.Module) -> dict[str, list[str]]:
    """For each name of a parameter or buffer, all names of the same tensor: more than one where weights are tied."""
    by_tensor: dict[int, list[str]] = {}
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            by_tensor.setdefault(id(tensor), []).append(name)
    return {name: names for names in by_tensor.values() for name in names}


def _non_persistent(module: nn.Module) -> set[str]:
    """The buffers that are left out of state dicts."""
    return {
        f"{path}.{key}" if path else key
        for path, layer in module.named_modules(remove_duplicate=False)
        for key in layer._non_persistent_buffers_set
    }


def _owner(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module below ``root`` that a dotted name belongs to, made where it does not exist, and the last part."""
    *path, key = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    return root, key


def _read(held: Sequence[tuple[nn.Module, str]]) -> list[Tensor]:
    return [getattr(owner, key) for owner, key in held]


def _is_tensor(leaf: Any) -> bool:
    """Whether an output is a tensor; else it must be a plain value, which could not hide tensors."""
    if isinstance(leaf, Tensor):
        return True
    if leaf is None or isinstance(leaf, bool | int | float | str | torch.Size | torch.dtype | torch.device):
        return False
    raise ValueError(
        f"The network's output must be a tensor, or tensors in tuples, lists, dicts or registered dataclasses, got one of "
        f"type {type(leaf).__name__}. Return its tensors, or register its class with torch.export.register_dataclass."
    )


_turn = threading.RLock()


@contextlib.contextmanager
def _forward_mode() -> Iterator[None]:
    """One thread at a time, with attention by its plain formula, the one that has a derivative: both are global in torch."""
    with _turn, plain_attention():
        try:
            yield
        except NotImplementedError as error:
            if not re.search("forward (mode )?AD", str(error)):
                raise
            raise ValueError(
                "Every operation of the network must have a forward-mode derivative to be linearised, but one has none "
                f"({str(error).splitlines()[0].rstrip('.')}). Replace that layer by one of plain operations."
            ) from error


def _by_product_rule(layer: Any, input: Tensor, value: Callable[..., Tensor], slope: Callable[..., Tensor]) -> Tensor:
    """A layer that is linear in its weights and affine in its input: ``d(W x + b) = (dW x + db) + W dx``.

    Torch's own derivatives multiply by zeros where the input does not move, and take BatchNorm apart into a dozen passes.
    """
    w, dw = (None, None) if layer.weight is None else _parts(layer.weight)
    if w is None or dw is None:
        return cast(Tensor, type(layer).forward(layer, input))
    (x, dx), (b, db) = _parts(input), (None, None) if layer.bias is None else _parts(layer.bias)
    tangent = value(x, dw, db)
    if dx is not None:
        more = slope(dx, w, None)
        # Fresh memory costs as much as the sum; under vmap the two may not have the same batch.
        tangent = tangent + more if torch._C._are_functorch_transforms_active() else tangent.add_(more)
    return _dual(value(x, w, b), tangent)


def _linear(layer: nn.Linear, input: Tensor) -> Tensor:
    return _by_product_rule(layer, input, F.linear, F.linear)


def _convolution(layer: Any, input: Tensor) -> Tensor:
    return _by_product_rule(layer, input, layer._conv_forward, layer._conv_forward)


def _batch_norm(layer: nn.modules.batchnorm._BatchNorm, input: Tensor) -> Tensor:
    mean, variance = layer.running_mean, layer.running_var
    if mean is None or variance is None:  # of each batch: not affine
        return type(layer).forward(layer, input)

    def normalised(x: Tensor, weight: Tensor, bias: Tensor | None, centre: Tensor = mean) -> Tensor:
        return F.batch_norm(x, centre, variance, weight, bias, False, 0.0, layer.eps)

    return _by_product_rule(layer, input, normalised, functools.partial(normalised, centre=torch.zeros_like(mean)))


_RULES: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Linear: _linear,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _convolution),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _batch_norm),
}
