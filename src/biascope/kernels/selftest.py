"""Checks of the derivatives of a user's own network: identities that must hold, each with its error."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from biascope.derivatives import slopes
from biascope.derivatives.gradients import input_gradient, plain_attention, weight_jacobian, weight_jvp, weight_vjp
from biascope.derivatives.initial_zeros import doubts_of_zeros
from biascope.derivatives.separateness import separateness
from biascope.derivatives.slopes import Agreement, arithmetic_of, input_agreement, relative, weight_agreement
from biascope.families.family import Family
from biascope.families.inputs import cloned
from biascope.families.network import Network
from biascope.families.weights import Params
from biascope.kernels.batch_gate import INPUT, WEIGHT, Passage, padding_difference, passage
from biascope.kernels.gram import tangent_gram
from biascope.kernels.plan import chosen_parameters
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.failures import FOREIGN
from biascope.runs.identity import content_of
from biascope.runs.latest import Latest
from biascope.runs.randomness import forked_rng, generator_for, seed_of
from biascope.runs.rehearsal import counted
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

_INPUTS = 4
_TOLERANCE = 1e-5
_PADDING = 2  # positions that are put behind a text, and masked
_ROUNDING = 1.0  # the tolerance of errors in units of what rounding explains
_FAR = 100.0  # times the inputs: where differences look by default
_ROUNDINGS = 64  # of the largest output: what a constant output may move by
_IN_PLACE = "forward changes its input in place. Write x = x * 2 instead of x.mul_(2), and leave out inplace=True in the first layer"
_WRITES = "forward changes its input or a buffer in place. Write x = x * 2 instead of x.mul_(2), and count calls outside of forward"
CONSTANT = "the output is constant at all inputs tried, which proves nothing"
_WORTH_TELLING = 1e-2  # of a slope: a few units of many on their kinks move no measurement
_BENT = {
    INPUT: "some units sit exactly on the kink of their activation at these inputs. Input gradients take PyTorch's choice "
    "between the two sides",
    WEIGHT: "some units sit exactly on the kink of their activation at these weights, as zero-initialised scales and depthwise "
    "convolutions after ReLU place them. The tangent kernel and linearised training take PyTorch's choice between the two "
    "sides. Input gradients are not affected",
}


@dataclass(frozen=True)
class Check:
    """One identity on a network.

    Attributes:
        name: What must hold.
        error: Largest relative deviation; infinite where the check could not be run.
        tolerance: What is allowed.
        remark: What a failure means, why it could not be run, or what a kink means.
        kink: Relative difference of the slopes on the two sides of the point; 0 where there is one slope. On a kink, the
            identity is checked beside it.
        needed: Whether a network that fails it cannot be trusted. Forward mode and stacks are not needed: where PyTorch has
            none for an operation, what needs forward mode refuses the network, and members of a stack are computed one by one.
    """

    name: str
    error: float
    tolerance: float
    remark: str
    kink: float = 0.0
    needed: bool = True

    @property
    def passed(self) -> bool:
        """Whether the identity holds."""
        return self.error <= self.tolerance

    @property
    def failed(self) -> bool:
        """Whether results of the network cannot be trusted."""
        return self.needed and not self.passed


@under_torch_defaults
def selftest(family: Family, shape: tuple[int, ...], *, readout: str = "first", seed: int = 0) -> list[Check]:
    """Check every identity on a family's network, in float64 on the CPU if possible.

    A network that casts to float32 inside, or runs only in float32, is checked to the precision of float32. A network whose
    output is constant passes no check: any derivative would do.

    Args:
        family: The user's network.
        shape: Shape of one input.
        readout: How several outputs become one scalar.
        seed: Random seed for weights, inputs and directions.

    Returns:
        One check per identity.

    Example:
        >>> from torch import nn
        >>> family = Family.initialised(lambda: nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 1)))
        >>> all(check.passed for check in selftest(family, (1, 3, 3)))
        True
    """
    # A random forward pass must not advance the user's generators.
    with plain_attention(), forked_rng(seed_of(seed, "selftest")):
        run = selftest_run(family, shape, seed=seed)
        x = Probe.gaussian(shape, num=_INPUTS, seed=seed).inputs(0, 1, run)
        family.first_outputs(x, run)
        family.axes_at(x, run)  # a wrong number of axes is refused here as elsewhere
        shared = _Identity("members differ in weights alone", 0.0, lambda: _shared_forward(family, x, run), "")
        proof = _run_check(shared)  # first, since draws warn of what is not proven to do no harm
        gate = passage(family, lambda _: x, derivatives=(INPUT, WEIGHT), readout=readout, run=run)
        for sentence in gate.told:
            warnings.warn(sentence, stacklevel=2)
        stack = family.draw(3, seed=seed, run=run).read(readout)
        moving = [index for index in range(3) if not _is_constant(stack.member(index), x)]
        network = stack.member(moving[0] if moving else 0)  # one dead draw does not make a network constant
        identities = itertools.chain(
            _identities(stack, network, x, _arithmetic(network, x), seed, run), _of_samples(network, x, gate)
        )
        # Where nothing moves, whatever is compared is equal.
        every, checks = list(identities), [proof if moving else _unproven(shared)]
        with counted("checks", len(every)) as advance:
            for identity in every:
                checks.append(_run_check(identity) if moving else _unproven(identity))
                advance(1)
        return checks


def selftest_run(family: Family, shape: tuple[int, ...], *, seed: int = 0) -> Run:
    """Device and precision of a selftest: float64 on the CPU, unless the network runs in float32 only."""
    return _usable_run(family, lambda run: Probe.gaussian(shape, num=_INPUTS, seed=seed).inputs(0, 1, run), "cpu")


@dataclass(frozen=True)
class _Identity:
    """What must hold, how far it may be off, how to measure it and what a failure means."""

    name: str
    tolerance: float
    measure: Callable[[], float | Agreement]
    remark: str | Callable[[], str]  # looked for where it does not hold
    bent: str = ""
    needed: bool = True  # also where it cannot be run


def _identities(
    stack: Network, network: Network, x: Tensor, arithmetic: slopes.Arithmetic, seed: int, run: Run
) -> Iterator[_Identity]:
    slope, rounding = arithmetic.tolerance, arithmetic.rounding
    kernel = functools.cache(lambda: _kernel_by_products(network, x))
    yield from _function_of_one_input(network, x)
    yield _Identity(
        "input gradient equals differences",
        slope,
        lambda: input_agreement(network, x, arithmetic, seed),
        "backward does not match forward",
        _BENT[INPUT],
    )
    yield _Identity(
        "weight jvp equals differences",
        slope,
        lambda: weight_agreement(network, x, lambda *at: weight_jvp(*at)[1], arithmetic, seed),
        "forward mode does not match forward, or forward detaches a part of its weights, as DoRA does: kernels then follow the "
        "gradients that training takes, which are not those of the outputs",
        _BENT[WEIGHT],
        needed=False,
    )
    yield _Identity(
        "tangent kernel is symmetric",
        rounding,
        lambda: _symmetry(kernel()),
        "jvp and vjp are not adjoint",
        needed=False,
    )
    yield _Identity(
        "tangent kernel is positive",
        rounding,
        lambda: _negativity(kernel()),
        "jvp and vjp are not adjoint",
        needed=False,
    )
    yield _Identity(
        "two routes to the kernel agree",
        rounding,
        lambda: _routes(kernel(), weight_jacobian(network, x)),
        "jvp, vjp and gradients differ",
        needed=False,
    )
    yield _Identity(
        "the kernel by layers agrees",
        rounding,
        lambda: _routes(tangent_gram(network, x, run=run).matrix, _plain_jacobian(network, x)),
        "the rules of its layers do not match its gradients",
    )
    yield _Identity(
        "a stack equals its members",
        rounding,
        lambda: _stack(stack, x),
        "the network cannot be batched over weights",
        needed=False,
    )


def _of_samples(network: Network, x: Tensor, gate: Passage) -> Iterator[_Identity]:
    """A sample is the same alone, in a batch, and beside padding where the network takes a mask."""
    yield _Identity(
        "a sample has the same gradients in a batch",
        gate.allowed,
        lambda: gate.difference,
        gate.refused or "gradients depend on the batch",
    )
    taken = [name for name in inspect.signature(network.module.forward).parameters if name != "self"]
    if "attention_mask" in taken and x.dim() > 2:
        longer = torch.cat([x, x[:, :_PADDING]], 1)
        mask = torch.ones(longer.shape[:2], dtype=torch.long)
        mask[:, x.shape[1] :] = 0
        yield _Identity(
            "padding changes nothing",
            gate.allowed,
            lambda: padding_difference(network, {taken[0]: longer, "attention_mask": mask}),
            "masked positions have an influence on the others",
        )


def warnings_of(
    family: Family,
    inputs: Callable[[Run], Any],
    *,
    derivatives: Collection[str],
    readout: str = "first",
    parameters: Collection[str] | None = None,
    seed: int = 0,
    run: Run | None = None,
) -> list[str]:
    """The cheap checks, on one network of a family; returns a sentence for each check that fails.

    Args:
        family: The networks that are measured.
        inputs: Gives a few inputs ``(n, …)``, any pytree, on the device and in the precision of a run.
        derivatives: What the measurement differentiates by: ``"input"``, ``"weight"``, both or nothing.
        readout: How several outputs become one scalar.
        parameters: Names of the weights to differentiate by; all by default.
        seed: Random seed for the directions along which derivatives are compared.
        run: Device and precision.

    Returns:
        Sentences for the reader of the result; none where every check passes.

    Example:
        >>> from torch import nn
        >>> class Cut(nn.Linear):
        ...     def forward(self, x):
        ...         return super().forward(x) + super().forward(x).detach()
        >>> found = warnings_of(Family.point(Cut(3, 1)), lambda run: torch.ones(2, 3, dtype=run.dtype), derivatives=["input"])
        >>> found[0].startswith("The input gradients of Cut differ by 50 % from the slope of its forward pass.")
        True
    """
    run = run or Run()
    if not derivatives:
        return []
    with plain_attention(), forked_rng(seed_of(seed, "selftest")):
        precise = _usable_run(family, inputs, "cpu" if run.on else run.device)
        network = family.template.to(precise.torch_device, precise.dtype).read(readout)
        x = inputs(precise)
        identities = _cheap_identities(network, x, _arithmetic(network, x), derivatives, parameters, seed)
        checks = [_run_check(identity) for identity in identities]
    return [_sentence(check, family.name) for check in checks if not check.passed or check.kink > _WORTH_TELLING]


def derivative_checks(
    derivatives: Callable[[Mapping[str, Any]], Collection[str]], *, half: bool = False
) -> DerivativeChecks:
    """Checks for a measurement, as the register takes them.

    Args:
        derivatives: What the measurement differentiates by under its settings: ``"input"``, ``"weight"``, both or nothing.
        half: Whether it takes derivatives in the precision of the run also where that is less than float32.
    """
    return DerivativeChecks(derivatives, half)


@dataclass(frozen=True)
class DerivativeChecks:
    """The checks before and after a measurement that differentiates; see :func:`derivative_checks`."""

    derivatives: Callable[[Mapping[str, Any]], Collection[str]]
    half: bool

    def before(
        self, family: Family, inputs: Callable[[Run], Any], settings: Mapping[str, Any], run: Run | None
    ) -> tuple[str, list[str]]:
        """The precision to measure in, and what to tell of it; see :mod:`biascope.kernels.batch_gate`.

        Raises:
            ValueError: If samples have other gradients in a batch than alone, whatever the precision.
        """
        run = run or Run()
        if not (wanted := self.derivatives(settings)):
            return run.precision, []
        found = passage(family, inputs, derivatives=wanted, readout=_read_by(settings), half=self.half, run=run)
        if found.refused:
            raise ValueError(found.refused)
        return found.precision, list(found.told)

    def after(
        self, family: Family, inputs: Callable[[Run], Any], settings: Mapping[str, Any], run: Run | None
    ) -> list[str]:
        """Sentences on derivatives that do not fit the forward pass."""
        run = run or Run()
        names = tuple(chosen_parameters(family.template, settings.get("parameters")))
        wanted = tuple(self.derivatives(settings))
        how = family.name, _read_by(settings), wanted, names, settings.get("seed", 0), run.device, run.on, run.precision

        def found() -> list[str]:
            precise = _usable_run(family, inputs, "cpu" if run.on else run.device)
            zeros = doubts_of_zeros(family, inputs(precise), _read_by(settings))
            if not wanted:
                return zeros
            return zeros + warnings_of(
                family, inputs, derivatives=wanted, readout=how[1], parameters=names, seed=how[4], run=run
            )

        # The measurements of a scan look at the same network and inputs, and passes of a large one are dear.
        return list(_FOUND.get(family.template, (*how, content_of(inputs(run))), found))


_FOUND = Latest[list[str]]()  # of a network


def _read_by(settings: Mapping[str, Any]) -> str:
    return "random" if settings.get("kernel") == "trace" else str(settings.get("readout", "first"))


_INPUT_SLOPE, _WEIGHT_SLOPE = "its input gradients are the slope", "its weight gradients are the slope"
_FAULTS = "A detach(), a no_grad block, a straight-through estimator or a custom backward pass causes this. "
_FAILURES = {
    _INPUT_SLOPE: "The input gradients of {name} differ by {error} from the slope of its forward pass. "
    + _FAULTS
    + "Exact gradients are affected. Differences (estimator 'difference') see the forward pass and are not.",
    _WEIGHT_SLOPE: "The weight gradients of {name} differ by {error} from the slope of its forward pass. "
    + _FAULTS
    + "The tangent kernel and linearised training describe the backward pass, not the function.",
}


def _cheap_identities(
    network: Network,
    x: Any,
    arithmetic: slopes.Arithmetic,
    derivatives: Collection[str],
    parameters: Collection[str] | None,
    seed: int,
) -> Iterator[_Identity]:
    yield from _function_of_one_input(network, x)
    if INPUT in derivatives:
        yield _Identity(
            _INPUT_SLOPE,
            arithmetic.tolerance,
            lambda: input_agreement(network, x, arithmetic, seed),
            _FAILURES[_INPUT_SLOPE],
            _BENT[INPUT],
        )
        yield _Identity(
            "a stack of networks equals its members",
            arithmetic.rounding,
            lambda: _small_stack(network, x, seed),
            "A stack of networks like {name} gives other gradients than each alone: they differ by {error}. Remove what the "
            "forward pass reads besides its weights and inputs.",
        )
    if WEIGHT in derivatives:
        yield _Identity(
            _WEIGHT_SLOPE,
            arithmetic.tolerance,
            lambda: weight_agreement(network, x, _weight_slope, arithmetic, seed, parameters),
            _FAILURES[_WEIGHT_SLOPE],
            _BENT[WEIGHT],
        )


def _function_of_one_input(network: Network, x: Any) -> Iterator[_Identity]:
    """Deviations in units of what rounding explains."""
    found = functools.cache(lambda: separateness(network, x))
    yield _Identity(
        "the same input gives the same output",
        _ROUNDING,
        lambda: max(found().noise, _repeat(network, x)),
        lambda: _why_not_repeated(network, x),
    )
    yield _Identity(
        "inputs of a batch do not see one another",
        _ROUNDING,
        lambda: found().coupling if math.isfinite(_repeat(network, x)) else math.inf,
        "outputs depend on the batch",
    )


def _repeat(network: Network, x: Any) -> float:
    """Two passes of one tensor, which a network may overwrite; infinite where an output is no number."""
    own = cloned(x)
    with torch.no_grad():
        first, second = network(own), network(own)
    return relative(first, second) / _TOLERANCE if bool(torch.isfinite(first).all()) else math.inf


def _why_not_repeated(network: Network, x: Any) -> str:
    """Why the same input gives another output."""
    own = cloned(x)
    with torch.no_grad():
        finite = bool(torch.isfinite(network(own)).all())
    if not finite:
        return "its outputs are NaN or infinity. Check its layers"
    if any(not torch.equal(*pair) for pair in zip(tree_leaves(own), tree_leaves(x), strict=True) if _are_tensors(pair)):
        return _IN_PLACE
    return "forward is random or keeps state. Remove the noise, and keep nothing from one call to the next"


def _are_tensors(leaves: tuple[Any, ...]) -> bool:
    return all(isinstance(leaf, Tensor) for leaf in leaves)


def _is_constant(network: Network, x: Tensor) -> bool:
    """Whether the output is the same at all inputs, near and far, but for rounding."""
    try:
        with torch.no_grad():
            outputs = torch.cat([network(factor * x) for factor in (1.0, _FAR)])
    except Exception:  # a user's forward pass may raise anything; the checks say what
        return False
    return bool(outputs.max() - outputs.min() <= _ROUNDINGS * torch.finfo(outputs.dtype).eps * outputs.abs().max())


def _unproven(identity: _Identity) -> Check:
    return Check(identity.name, math.inf, identity.tolerance, CONSTANT)


def _sentence(check: Check, name: str) -> str:
    """A failed check, or one beside a kink, for the reader of a result."""
    if check.passed:
        return f"{name} has two slopes at this point, which differ by {_percent(check.kink)}: {check.remark}."
    if "{name}" in check.remark:
        error = _percent(check.error) if math.isfinite(check.error) else "a number that is not finite"
        return check.remark.format(name=name, error=error)
    if math.isinf(check.error):
        return f"The check that {check.name} failed on {name}: {check.remark}. Run biascope selftest on it."
    if check.tolerance == _ROUNDING:  # its error has no unit that a reader knows
        return f"The check that {check.name} failed on {name}: {check.remark}."
    return f"The check that {check.name} failed on {name} by {_percent(check.error)}: {check.remark}."


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _usable_run(family: Family, inputs: Callable[[Run], Any], device: str) -> Run:
    """float64, unless the network runs in float32 only."""
    runs = [Run(device=device, precision=precision) for precision in ("float64", "float32")]
    for run in runs:
        try:
            with torch.no_grad():
                family.template.to(run.torch_device, run.dtype)(inputs(run))
        except FOREIGN:  # a user's forward pass may raise anything; the checks say what
            continue
        return run
    return runs[0]


def _arithmetic(network: Network, x: Any) -> slopes.Arithmetic:
    try:
        return arithmetic_of(network, x)
    except Exception:  # a user's forward pass may raise anything; the checks say what
        return slopes.DOUBLE


def _run_check(identity: _Identity) -> Check:
    try:
        found = identity.measure()
    except Exception as failure:  # a user's forward pass may raise anything
        reason = str(failure).strip().splitlines()[0] if str(failure).strip() else type(failure).__name__
        if "would mutate a captured Tensor" in reason or "leaf Variable that requires grad is being used" in reason:
            reason = _WRITES
        return Check(identity.name, math.inf, identity.tolerance, f"could not be run: {reason}", needed=identity.needed)
    agreement = found if isinstance(found, Agreement) else Agreement(found)
    error = agreement.error if math.isfinite(agreement.error) else math.inf
    remark = identity.bent if agreement.kink else identity.remark
    if not isinstance(remark, str):
        remark = "" if error <= identity.tolerance else remark()
    return Check(identity.name, error, identity.tolerance, remark, agreement.kink)


def _shared_forward(family: Family, x: Tensor, run: Run) -> float:
    family.check_forward(x, run)  # the sentence of its error is what a user needs
    return 0.0


def _weight_slope(network: Network, x: Any, direction: Params) -> Tensor:
    """The derivative of each output along a direction by backward passes, as kernels take it."""
    return _plain_jacobian(network, x) @ torch.cat([direction[name].flatten() for name in network.params])


def _plain_jacobian(network: Network, x: Any) -> Tensor:
    """``∂f(xᵢ)/∂θ`` by plain autograd, which also follows what transformations do not: buffers changed in place, packed sequences."""
    params = {name: tensor.detach().requires_grad_() for name, tensor in network.params.items()}
    with torch.enable_grad():
        outputs = network.apply(params, network.buffers, x)
        rows = [
            torch.autograd.grad(each, list(params.values()), retain_graph=True, materialize_grads=True)
            for each in outputs
        ]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


def _small_stack(network: Network, x: Any, seed: int) -> float:
    """Gradients of two networks with different weights, together and apart; 0 where they cannot be stacked at all."""
    generator = generator_for(torch.device("cpu"), seed, "selftest stack")
    factor = 1 + 0.1 * float(torch.rand((), generator=generator))
    pair = {name: torch.stack([part, factor * part]) for name, part in network.params.items()}
    buffers = {name: torch.stack([part, part]) for name, part in network.buffers.items()}
    stack = dataclasses.replace(network, params=pair, buffers=buffers, members=2)
    try:
        together = input_gradient(stack, x)
    except Exception:  # a network that does not batch over weights is measured one by one
        return 0.0
    return relative(together, torch.stack([input_gradient(stack.member(index), x) for index in range(2)]))


def _kernel_by_products(network: Network, x: Tensor) -> Tensor:
    """``K = J Jᵀ`` column by column: a vjp, then a jvp along it."""
    columns = []
    for index in range(len(x)):
        cotangent = torch.zeros(len(x), dtype=x.dtype)
        cotangent[index] = 1.0
        columns.append(weight_jvp(network, x, weight_vjp(network, x, cotangent))[1])
    return torch.stack(columns, dim=1)


def _symmetry(kernel: Tensor) -> float:
    return relative(kernel, kernel.T)


def _negativity(kernel: Tensor) -> float:
    values = torch.linalg.eigvalsh((kernel + kernel.T) / 2)
    return max(0.0, -float(values.min())) / float(values.abs().max().clamp_min(1e-300))


def _routes(kernel: Tensor, jacobian: Tensor) -> float:
    """How far a kernel is from the products of gradients."""
    return relative(kernel, jacobian @ jacobian.T)


def _stack(stack: Network, x: Tensor) -> float:
    members = torch.stack([input_gradient(stack.member(index), x) for index in range(stack.members or 0)])
    return relative(input_gradient(stack, x), members)
