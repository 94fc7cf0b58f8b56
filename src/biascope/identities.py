"""HOW far to trust the derivatives of a user's own network: identities that must hold, each with its error."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from biascope.family import Family, Network
from biascope.gram import tangent_gram
from biascope.probe import Probe
from biascope.randomness import forked_rng, generator_for, seed_of
from biascope.run import Run
from biascope.tangent import input_gradient, plain_attention, weight_jacobian, weight_jvp, weight_vjp
from biascope.weights import Params

_INPUTS = 4
_STEPS = (1e-5, 1e-7, 1e-9)  # one lies between the nearest kink and rounding; a wrong derivative fits none
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Check:
    """One identity on a network.

    Attributes:
        name: What must hold.
        error: Largest relative deviation; infinite where the check could not be run.
        tolerance: What is allowed.
        remark: What a failure means, or why it could not be run.
    """

    name: str
    error: float
    tolerance: float
    remark: str

    @property
    def passed(self) -> bool:
        """Whether the identity holds."""
        return self.error <= self.tolerance


def selftest(family: Family, shape: tuple[int, ...], *, readout: str = "first", seed: int = 0) -> list[Check]:
    """Run every identity on a family's network, in float64 on the CPU.

    Args:
        family: The user's network.
        shape: Of one input.
        readout: Which scalar of several outputs.
        seed: Of weights, inputs and directions.

    Returns:
        One check per identity.

    Example:
        >>> from torch import nn
        >>> family = Family.initialised(lambda: nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 1)))
        >>> all(check.passed for check in selftest(family, (1, 3, 3)))
        True
    """
    run = Run(device="cpu", precision="float64")
    stack = family.draw(3, seed=seed, run=run).read(readout)
    x = Probe.gaussian(shape, num=_INPUTS, seed=seed).inputs(0, 1, run)
    network = stack.member(0)
    kernel = functools.cache(lambda: _kernel_by_products(network, x))
    checks: list[tuple[str, Callable[[], float], str]] = [
        ("members differ in weights alone", lambda: _shared_forward(family, x, run), ""),
        ("the same input gives the same output", lambda: _repeat(network, x), "forward is random or keeps state"),
        ("inputs of a batch do not see one another", lambda: _alone(network, x), "outputs depend on the batch"),
        (
            "input gradient equals differences",
            lambda: _input_gradient(network, x, seed),
            "backward does not fit forward",
        ),
        ("weight jvp equals differences", lambda: _weight_jvp(network, x, seed), "forward mode does not fit forward"),
        (
            "tangent kernel is symmetric",
            lambda: _symmetry(kernel()),
            "jvp and vjp are not adjoint",
        ),
        (
            "tangent kernel is positive",
            lambda: _negativity(kernel()),
            "jvp and vjp are not adjoint",
        ),
        (
            "two routes to the kernel agree",
            lambda: _routes(kernel(), weight_jacobian(network, x)),
            "jvp, vjp and gradients differ",
        ),
        (
            "the kernel by layers agrees",
            lambda: _relative(kernel(), tangent_gram(network, x, run=run).matrix),
            "the rules of its layers do not fit its gradients",
        ),
        ("a stack equals its members", lambda: _stack(stack, x), "the network cannot be batched over weights"),
    ]
    # A random forward pass must not advance the user's generators.
    with plain_attention(), forked_rng(seed_of(seed, "selftest")):
        return [_run_check(name, measure, remark) for name, measure, remark in checks]


def _run_check(name: str, measure: Callable[[], float], remark: str) -> Check:
    try:
        error = measure()
    except Exception as failure:  # a user's forward pass may raise anything
        reason = str(failure).strip().splitlines()[0] if str(failure).strip() else type(failure).__name__
        return Check(name, math.inf, _TOLERANCE, f"could not be run: {reason}")
    return Check(name, error if math.isfinite(error) else math.inf, _TOLERANCE, remark)


def _relative(first: Tensor, second: Tensor) -> float:
    scale = float(torch.maximum(first.abs().max(), second.abs().max()))
    return float((first - second).abs().max()) / scale if scale != 0 else 0.0  # not a number stays not a number


def _shared_forward(family: Family, x: Tensor, run: Run) -> float:
    family.check_forward(x, run)  # the sentence of its error is what a user needs
    return 0.0


def _repeat(network: Network, x: Tensor) -> float:
    with torch.no_grad():
        return _relative(network(x), network(x))


def _alone(network: Network, x: Tensor) -> float:
    with torch.no_grad():
        return _relative(network(x), torch.cat([network(x[index : index + 1]) for index in range(len(x))]))


def _input_gradient(network: Network, x: Tensor, seed: int) -> float:
    direction = torch.randn(x.shape, generator=generator_for(x.device, seed, "selftest input"), dtype=x.dtype)
    slope = (input_gradient(network, x) * direction.flatten(1)).sum(1)
    return _difference_error(lambda step: network(x + step * direction), slope)


def _difference_error(along: Callable[[float], Tensor], slope: Tensor) -> float:
    """Deviation of a derivative from central differences, at the best of several steps."""
    with torch.no_grad():
        return min(_relative(slope, (along(step) - along(-step)) / (2 * step)) for step in _STEPS)


def _direction(params: Params, seed: int) -> Params:
    """A random direction in proportion to the weights, so that a small step stays between the kinks of large networks."""
    generator = generator_for(torch.device("cpu"), seed, "selftest weights")
    return {
        name: torch.randn(part.shape, generator=generator, dtype=part.dtype) * (part.square().mean().sqrt() or 1.0)
        for name, part in params.items()
    }


def _weight_jvp(network: Network, x: Tensor, seed: int) -> float:
    direction = _direction(network.params, seed)

    def along(step: float) -> Tensor:
        return network(x, {name: part + step * direction[name] for name, part in network.params.items()})

    return _difference_error(along, weight_jvp(network, x, direction)[1])


def _kernel_by_products(network: Network, x: Tensor) -> Tensor:
    """``K = J Jᵀ`` column by column: a vjp, then a jvp along it."""
    columns = []
    for index in range(len(x)):
        cotangent = torch.zeros(len(x), dtype=x.dtype)
        cotangent[index] = 1.0
        columns.append(weight_jvp(network, x, weight_vjp(network, x, cotangent))[1])
    return torch.stack(columns, dim=1)


def _symmetry(kernel: Tensor) -> float:
    return _relative(kernel, kernel.T)


def _negativity(kernel: Tensor) -> float:
    values = torch.linalg.eigvalsh((kernel + kernel.T) / 2)
    return max(0.0, -float(values.min())) / float(values.abs().max().clamp_min(1e-300))


def _routes(kernel: Tensor, jacobian: Tensor) -> float:
    return _relative(kernel, jacobian @ jacobian.T)


def _stack(stack: Network, x: Tensor) -> float:
    members = torch.stack([input_gradient(stack.member(index), x) for index in range(stack.members or 0)])
    return _relative(input_gradient(stack, x), members)
