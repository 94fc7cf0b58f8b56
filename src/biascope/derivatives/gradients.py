"""Derivatives of a Network with respect to its input (exact or by differences) and to its weights."""

# m members · n inputs · D input size · p parameters · k directions

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from biascope.derivatives.fast_layers import PoolingBySlices
from biascope.families.inputs import is_real
from biascope.families.network import Network
from biascope.families.weights import Params
from biascope.runs.ambient import ATTENTION, PLAIN_ATTENTION, under_torch_defaults


@under_torch_defaults
def input_gradient(network: Network, x: Any, *, paired: bool = False) -> Tensor:
    """The exact gradient ``∇_x f(x)`` of a scalar network by reverse-mode differentiation.

    Args:
        network: One network or a stack, with a readout.
        x: Inputs ``(n, …)``, any pytree; the gradient is taken with respect to all floating-point leaves.
        paired: For a stack: whether each member has its own inputs ``(m, n, …)``.

    Returns:
        ``(n, D)``, or ``(m, n, D)`` for a stack; leaves flattened and joined.

    Raises:
        ValueError: If there is nothing to differentiate with respect to, or one network's output is constant.

    Example:
        >>> network = Network.of(torch.nn.Linear(2, 1)).read("first").with_params(
        ...     {"weight": torch.tensor([[3.0, 4.0]]), "bias": torch.zeros(1)})
        >>> input_gradient(network, torch.zeros(1, 2))
        tensor([[3., 4.]])
    """
    if network.members is None:
        return _gradient_of_one(network, x)

    def gradient(params: Params, buffers: Params, inputs: Any) -> Tensor:
        active, scalar = _scalar(network, buffers, inputs)
        gradients = torch.func.grad(scalar, argnums=1)(params, active)
        return torch.cat([part.flatten(1) for part in gradients], dim=1)

    return vmap(gradient, in_dims=(0, 0, 0 if paired else None))(network.params, network.buffers, x)


def _require_real(moving: list[bool]) -> None:
    if not any(moving):
        raise ValueError(
            "Inputs must hold floating-point numbers to have a gradient, got none. Pass embeddings instead of ids."
        )


def _gradient_of_one(network: Network, x: Any) -> Tensor:
    leaves, structure = tree_flatten(x)
    moving = [is_real(leaf) for leaf in leaves]
    _require_real(moving)
    leaves = [leaf.detach().requires_grad_() if moves else leaf for leaf, moves in zip(leaves, moving, strict=True)]
    with torch.enable_grad():
        # Copies go in, so that a network that works in place on its input changes nothing of ours.
        copies = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        output = network(tree_unflatten(copies, structure)).sum()
    if not output.requires_grad:
        raise ValueError(
            "The network's output must depend on its input, but it is constant. Check that forward uses its argument."
        )
    active = [leaf for leaf, moves in zip(leaves, moving, strict=True) if moves]
    gradients = torch.autograd.grad(output, active, allow_unused=True, materialize_grads=True)
    return torch.cat([part.flatten(1) for part in gradients], dim=1)


@under_torch_defaults
def input_difference(
    network: Network,
    x: Tensor,
    *,
    step: float = 100.0,
    paired: bool = False,
    batch: int = 2048,
    channels_last: bool = False,
) -> Tensor:
    """Central differences ``(f(x + h e_i) − f(x − h e_i)) / 2h`` along every input entry.

    A large step sees the coarse geometry of a piecewise linear network; the published estimator takes ``h = 100``.

    Args:
        network: One network or a stack, with a readout.
        x: Inputs ``(n, …)``, one tensor.
        step: The half width ``h``.
        paired: For a stack: whether each member has its own inputs ``(m, n, …)``.
        batch: Most inputs in one forward pass of one network.
        channels_last: Whether to use the channels-last layout, which is faster on tensor cores.

    Returns:
        ``(n, D)``, or ``(m, n, D)`` for a stack.

    Example:
        >>> network = Network.of(torch.nn.Linear(2, 1)).read("first").with_params(
        ...     {"weight": torch.tensor([[3.0, 4.0]]), "bias": torch.zeros(1)})
        >>> input_difference(network, torch.zeros(1, 2), step=100.0)
        tensor([[3., 4.]])
    """
    if not isinstance(x, Tensor):
        raise ValueError(
            "The difference estimator needs inputs that are one tensor. Pass estimator='exact' for others."
        )
    if step == 0 or not math.isfinite(step):
        raise ValueError(
            f"The step h of the difference must be a number other than 0, got {step}. Pass step=100, the published value."
        )
    lead = 2 if network.members is not None and paired else 1
    shape = x.shape[lead:]
    size = shape.numel()
    if channels_last:
        images = {name: part for name, part in network.params.items() if part.dim() == 4}
        laid_out = {name: part.contiguous(memory_format=torch.channels_last) for name, part in images.items()}
        network = network.with_params({**network.params, **laid_out})
    columns = []
    with forward_only(x.device):
        for index in range(x.shape[lead - 1]):
            centre = x.select(lead - 1, index).unsqueeze(lead - 1)  # (1, …) or (m, 1, …)
            parts = []
            for first in range(0, size, max(1, batch // 2)):
                some = _impulses(first, min(size, first + max(1, batch // 2)), shape, x) * step
                moved = torch.cat([centre + some, centre - some], dim=lead - 1)
                values = _outputs(network, moved, paired)
                plus, minus = values.chunk(2, dim=-1)
                parts.append((plus.float() - minus.float() if plus.dtype.itemsize == 2 else plus - minus) / (2 * step))
            columns.append(torch.cat(parts, dim=-1))
    return torch.stack(columns, dim=-2)


def _impulses(first: int, last: int, shape: torch.Size, like: Tensor) -> Tensor:
    """Unit vectors ``first … last−1`` in the shape of an input."""
    rows = torch.arange(last - first, device=like.device)
    impulses = like.new_zeros(last - first, shape.numel())
    impulses[rows, first + rows] = 1
    return impulses.reshape(last - first, *shape)


def plain_attention() -> AbstractContextManager[None]:
    """Attention by its plain formula for the duration: the fused kernels know neither stacks nor forward mode."""
    return ATTENTION.at(PLAIN_ATTENTION)


@contextlib.contextmanager
def forward_only(device: torch.device) -> Iterator[None]:
    """No derivatives; on a CPU also the faster max-pooling that this allows."""
    with torch.no_grad(), PoolingBySlices() if device.type == "cpu" else contextlib.nullcontext():
        yield


def _outputs(network: Network, x: Tensor, paired: bool) -> Tensor:
    if network.members is not None and paired:
        return vmap(network.apply)(network.params, network.buffers, x)
    return network(x)


def weight_jvp(network: Network, x: Any, direction: Params) -> tuple[Tensor, Tensor]:
    """Outputs and their derivative along a direction in weight space, ``d/dt f(x; θ + tδ)``."""

    def forward(params: Params) -> Tensor:
        return network.apply(params, network.buffers, x)

    outputs: Tensor
    outputs, tangent, *_ = torch.func.jvp(forward, (network.params,), (direction,))
    return outputs, tangent


def weight_vjp(network: Network, x: Any, cotangent: Tensor) -> Params:
    """The gradient of ``Σ cᵢ f(xᵢ; θ)`` with respect to the weights."""

    def forward(params: Params) -> Tensor:
        return network.apply(params, network.buffers, x)

    pull = torch.func.vjp(forward, network.params)[1]
    gradient: Params = pull(cotangent)[0]
    return gradient


def weight_jacobian(network: Network, x: Tensor) -> Tensor:
    """``∂f(xᵢ)/∂θ`` of a scalar network for each input, one backward pass per input: ``(n, parameters)``."""

    def scalar(params: Params, one: Tensor) -> Tensor:
        return network.apply(params, network.buffers, one.unsqueeze(0)).squeeze(0)

    rows = []
    for one in x:
        gradient = torch.func.grad(scalar)(network.params, one)
        rows.append(torch.cat([part.flatten() for part in gradient.values()]))
    return torch.stack(rows)


def mixed_jvp(
    network: Network, x: Any, directions: Tensor, *, step: float | None = None, paired: bool = False
) -> Tensor:
    """The mixed derivative along input directions, ``∇²_{x,θ} f(x) v``: how ``∇_θ f`` changes as the input moves along v.

    Exactly, it is ``∇_θ(vᵀ∇_x f)``, so the forward pass and the input gradient are shared by all directions. With a step
    it is the published difference ``(∇_θ f(x + hv) − ∇_θ f(x − hv))/2h``.

    Args:
        network: One network or a stack, with a readout.
        x: One input ``(1, …)``, any pytree.
        directions: ``(k, D)`` rows.
        step: The half width ``h``; exact by default.
        paired: For a stack: whether each member has its own input ``(m, 1, …)``.

    Returns:
        ``(k, p)``, or ``(m, k, p)`` for a stack; parameters flattened and joined in their order.

    Example:
        >>> network = Network.of(torch.nn.Linear(2, 1, bias=False)).read("first")
        >>> mixed_jvp(network, torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]))  # f = wᵀx: the derivative is the identity
        tensor([[3., 4.]])

    Reference:
        Ortiz-Jiménez, Modas, Moosavi-Dezfooli, Frossard (2020). Neural anisotropy directions. NeurIPS, algorithm 2 (DVP).
    """

    def one(params: Params, buffers: Params, inputs: Any, rows: Tensor) -> Tensor:
        active, scalar = _scalar(network, buffers, inputs)
        if step is None:
            pull = torch.func.vjp(lambda given: _joined(torch.func.grad(scalar, argnums=1)(given, active)), params)[1]
            return vmap(lambda row: _joined(pull(row)[0].values()))(rows)

        def weight_gradient(row: Tensor) -> Tensor:
            moved = [leaf + part for leaf, part in zip(active, _cut(row, active), strict=True)]
            return _joined(torch.func.grad(scalar)(params, moved).values())

        return (vmap(weight_gradient)(step * rows) - vmap(weight_gradient)(-step * rows)) / (2 * step)

    return _of_each(one, network, x, directions, paired)


def mixed_vjp(network: Network, x: Any, cotangents: Tensor, *, paired: bool = False) -> Tensor:
    """The adjoint of the mixed derivative, ``∇_x(uᵀ∇_θ f(x))``: the input gradient of f's slope along weights ``u``.

    Args:
        network: One network or a stack, with a readout.
        x: One input ``(1, …)``, any pytree.
        cotangents: ``(k, p)`` rows, or ``(m, k, p)``: each member of a stack its own.
        paired: For a stack: whether each member has its own input ``(m, 1, …)``.

    Returns:
        ``(k, D)``, or ``(m, k, D)`` for a stack.

    Example:
        >>> network = Network.of(torch.nn.Linear(2, 1, bias=False)).read("first")
        >>> mixed_vjp(network, torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]))
        tensor([[3., 4.]])

    Reference:
        As for :func:`mixed_jvp` (ADVP).
    """

    def one(params: Params, buffers: Params, inputs: Any, rows: Tensor) -> Tensor:
        active, scalar = _scalar(network, buffers, inputs)
        pull = torch.func.vjp(lambda given: _joined(torch.func.grad(scalar)(params, given).values()), active)[1]
        return vmap(lambda row: _joined(pull(row)[0]))(rows)

    return _of_each(one, network, x, cotangents, paired)


def _of_each(one: Callable[..., Tensor], network: Network, x: Any, rows: Tensor, paired: bool) -> Tensor:
    if network.members is None:
        return one(network.params, network.buffers, x, rows)
    in_dims = (0, 0, 0 if paired else None, 0 if rows.dim() == 3 else None)
    return vmap(one, in_dims=in_dims)(network.params, network.buffers, x, rows)


def _scalar(network: Network, buffers: Params, x: Any) -> tuple[list[Tensor], Callable[[Params, list[Tensor]], Tensor]]:
    """The floating-point leaves of one input, and the network as a scalar function of weights and those."""
    leaves, structure = tree_flatten(x)
    moving = [is_real(leaf) for leaf in leaves]
    _require_real(moving)

    def scalar(params: Params, active: list[Tensor]) -> Tensor:
        given = iter(active)
        merged = [next(given) if moves else leaf for leaf, moves in zip(leaves, moving, strict=True)]
        return network.apply(params, buffers, tree_unflatten(merged, structure)).sum()

    return [leaf for leaf, moves in zip(leaves, moving, strict=True) if moves], scalar


def _joined(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([part.flatten() for part in parts])


def _cut(row: Tensor, like: list[Tensor]) -> list[Tensor]:
    parts = torch.split(row, [leaf.numel() for leaf in like])
    return [part.reshape(leaf.shape) for part, leaf in zip(parts, like, strict=True)]


def forward_flops(network: Network, x: Any) -> int:
    """Floating-point operations of one forward pass of one network, counted by torch."""
    from torch.utils.flop_counter import FlopCounterMode

    one = network if network.members is None else network.member(0)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        one(x)
    return int(counter.get_total_flops())
