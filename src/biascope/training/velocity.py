"""The velocity of weights and of input gradients at one instant of training."""

# m members · n inputs · D input size

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from biascope.derivatives.gradients import plain_attention
from biascope.families.network import Network
from biascope.families.weights import Params
from biascope.training.recipe import loss_of


def weight_velocity(
    networks: Network, x: Tensor, y: Tensor, *, loss: str | None = "squared", batch: int = 512
) -> Params:
    """``θ̇ = −∇_θ L`` of gradient flow on all samples, one backward pass over them.

    Args:
        networks: One network or a stack, without a readout.
        x: Samples ``(n, …)``.
        y: Their classes, or targets; of two classes 0 and 1 a single output learns −1 and 1.
        loss: ``"squared"`` for ``L = ½ Σ_μ (f(x_μ) − y_μ)²``, else the sum over samples of a loss of :class:`biascope.Recipe`
            (``None``: logistic for one output, cross-entropy for several).
        batch: Samples of one pass.

    Returns:
        By parameter; with a leading axis over members for a stack.

    Example:
        >>> start = Network.of(torch.nn.Linear(1, 1, bias=False)).with_params({"weight": torch.tensor([[2.0]])})
        >>> weight_velocity(start, torch.tensor([[3.0]]), torch.tensor([1]))  # −(2·3 − 1)·3
        {'weight': tensor([[-15.]])}
    """
    half = 0.5 if loss == "squared" else 1.0

    def total(params: Params, buffers: Params, inputs: Tensor, labels: Tensor) -> Tensor:
        return -half * len(inputs) * loss_of(loss, networks.apply(params, buffers, inputs), labels)

    slope = torch.func.grad(total)
    if networks.members is not None:
        slope = vmap(slope, in_dims=(0, 0, None, None))
    found = {name: torch.zeros_like(tensor) for name, tensor in networks.params.items()}
    with plain_attention():
        for inputs, labels in zip(torch.split(x, batch), torch.split(y, batch), strict=True):
            for name, part in slope(networks.params, networks.buffers, inputs, labels).items():
                found[name] += part
    return found


def gradient_velocity(networks: Network, x: Any, velocity: Params, *, paired: bool = False) -> tuple[Tensor, Tensor]:
    """Input gradients ``g = ∇_x f(x)``, and ``ġ = ∇²_{x,θ}f(x) θ̇``: how they change as the weights move.

    One forward derivative of the backward pass; the mixed derivative itself, D × parameters, is never formed.

    Args:
        networks: One network or a stack, with a readout.
        x: Inputs ``(n, …)``.
        velocity: ``θ̇``, as :func:`weight_velocity` gives it.
        paired: For a stack: whether each member has inputs of its own ``(m, n, …)``.

    Returns:
        Both ``(n, D)``, or ``(m, n, D)`` for a stack.

    Example:
        >>> network = Network.of(torch.nn.Linear(2, 1, bias=False)).read("first")
        >>> gradient_velocity(network, torch.zeros(1, 2), {"weight": torch.tensor([[3.0, 4.0]])})[1]
        tensor([[3., 4.]])
    """

    def both(params: Params, buffers: Params, inputs: Any, direction: Params) -> tuple[Tensor, Tensor]:
        def gradient(weights: Params) -> Tensor:
            def scalar(given: Tensor) -> Tensor:
                return networks.apply(weights, buffers, given).sum()

            found: Tensor = torch.func.grad(scalar)(inputs)
            return found.flatten(1)

        slope, moved, *_ = torch.func.jvp(gradient, (params,), (direction,))
        return slope, moved

    # Forward mode on weights that are views of a drawn block would allocate the whole block.
    networks = networks.with_params({name: each.clone() for name, each in networks.params.items()})
    with plain_attention():
        if networks.members is None:
            return both(networks.params, networks.buffers, x, velocity)
        in_dims = (0, 0, 0 if paired else None, 0)
        pair: tuple[Tensor, Tensor] = vmap(both, in_dims=in_dims)(networks.params, networks.buffers, x, velocity)
        return pair
