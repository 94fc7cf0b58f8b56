"""The reference that a tangent kernel must match: gradients of single samples by plain autograd, in float64.

The samples are spread over the data: the first, the last and random ones, in an order of their own. Each passes through
the module alone, as anybody would run it. The rules of the layers must give the same in a batch of these samples, and the
finished matrix, whose panels hold them among all others, must hold the same entries.
"""

# k samples of the proof · n samples · p outputs

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from biascope.derivatives.gradients import plain_attention
from biascope.derivatives.separateness import deviation, exact_type, separateness
from biascope.families.inputs import cloned, placed, sample_count, taken
from biascope.families.network import Network
from biascope.kernels.uses import Uses, layer_uses, scalars
from biascope.runs.memory import is_of_the_device
from biascope.runs.randomness import generator_for

_SAMPLES = 8  # of each set, where their gradients fit
_FEWEST = 3
_IN_CACHE = 2**16  # numbers of a gradient in float64 at a time: all of them would take several times as long
_NUMBERS = 2**25  # of all gradients of the proof together
# Samples looked at for one that a parameter has a gradient on: so many, or a part of all, and as many that are then added.
_FEWEST_LOOKED_AT, _MOST_LOOKED_AT, _PART_LOOKED_AT, _ADDED = 32, 512, 16, 4
_AT_A_TIME = 64
_NOT_FINITE = (
    "A tangent kernel must be finite and not all 0, but this one is not. Check the network's weights and inputs, or pass "
    "precision='float64' if its outputs are very large or very small."
)
# Of a finished kernel, relative to √(K_ii K_jj). A unit that rounding puts on the other side of a kink moves entries by parts
# of a percent; a wrong rule moves them by its whole share.
_TOLERANCES = {"float64": 1e-6, "float32": 1e-2, "tf32": 3e-2, "bfloat16": 5e-2}
_ROUNDINGS = {"float64": 2**-52, "float32": 2**-23, "tf32": 2**-10, "bfloat16": 2**-7}


@dataclass(frozen=True)
class Few:
    """Some samples of a set, with their outputs and gradients by plain autograd.

    Attributes:
        places: In their set, ``(k,)``.
        x: The samples.
        outputs: Outputs of the network on each sample alone, ``(k, p)``.
        gradients: Gradients of one scalar output by every parameter of the proof, ``(k, numbers)`` each.
    """

    places: Tensor
    x: Any
    outputs: Tensor
    gradients: dict[str, Tensor]

    def uses(self, network: Network, output: int | None, differentiated: Sequence[str] = ()) -> Uses:
        """How the parameters enter where these samples are one batch."""
        return layer_uses(network, self.x, output, differentiated)

    @property
    def count(self) -> int:
        """How many."""
        return len(self.places)

    @functools.cached_property
    def norms(self) -> dict[str, Tensor]:
        """Lengths of the gradients by each parameter, ``(k,)``."""
        return {name: torch.linalg.vector_norm(part, dim=1) for name, part in self.gradients.items()}

    @property
    def lengths(self) -> Tensor:
        """Lengths of the gradients by all parameters together, ``(k,)``."""
        each = torch.stack(list(self.norms.values())).double()
        total: Tensor = each.square().sum(0).sqrt()
        return total


@dataclass(frozen=True)
class Proof:
    """The reference that a tangent kernel must match.

    Attributes:
        network: In the finest type that it runs in.
        names: The parameters to differentiate by.
        output: Which of several outputs is differentiated.
        sets: Few samples of the rows, and of the columns where these are others.
        rounding: The rounding unit of the coarsest type that the network computes in.
    """

    network: Network
    names: tuple[str, ...]
    output: int | None
    sets: tuple[Few, ...]
    rounding: float

    @staticmethod
    def of(
        network: Network,
        x: Any,
        other: Any = None,
        *,
        parameters: Sequence[str] | None = None,
        output: int | None = None,
    ) -> Proof:
        """Differentiate a network on few samples of its data, one at a time.

        Args:
            network: One network, on the device that the proof is made on.
            x: Samples ``(n, …)``.
            other: Samples of the columns of a rectangular kernel.
            parameters: Names of parameters; all by default.
            output: Which of several outputs.

        Raises:
            ValueError: If the output has no gradient, or the forward pass is random.
        """
        names = tuple(network.params if parameters is None else parameters)
        like = next(iter(network.params.values()))
        dtype, rounding = exact_type(network, placed(taken(x, slice(1)), like.device, like.dtype))
        network = network.to(like.device, dtype)
        sets = [x] if other is None else [x, other]
        numbers = sum(network.params[name].numel() for name in names) * len(sets)
        most = max(_FEWEST, min(_SAMPLES, _NUMBERS // max(1, numbers)))
        places = [_spread(sample_count(each), most, index) for index, each in enumerate(sets)]
        alone = _Alone(network, names)
        found = tuple(alone.few(taken(each, some), some, output) for each, some in zip(sets, places, strict=True))
        return Proof(network, names, output, found, rounding)

    def at(self, output: int | None) -> Proof:
        """The same samples, with the gradients of another output."""
        if output == self.output:
            return self
        alone = _Alone(self.network, self.names)
        sets = tuple(alone.few(few.x, few.places, output) for few in self.sets)
        return dataclasses.replace(self, output=output, sets=sets)

    @functools.cached_property
    def alone(self) -> Uses:
        """How the parameters enter where one sample passes alone."""
        return layer_uses(self.network, taken(self.sets[0].x, slice(1)), self.output, backward=False)

    @property
    def tolerance(self) -> float:
        """Largest error of a correct rule; a wrong rule is off by its whole share."""
        return max(1e-6, min(0.1, 1e5 * self.rounding))

    @functools.cached_property
    def noise(self) -> float:
        """Gradients of this length are rounding alone: some vanish exactly, as by the key bias of an attention."""
        return (
            100
            * self.rounding
            * max((float(part.max()) for few in self.sets for part in few.norms.values()), default=0)
        )

    def without_gradient(self, name: str) -> bool:
        """Whether a parameter has no gradient on any sample here, so that agreement proves nothing."""
        return all(float(few.norms[name].max()) <= self.noise for few in self.sets)

    def disagreement(self, name: str, found: Tensor, rows: Few, columns: Few) -> float:
        """Largest deviation of one parameter's share from the truth, relative to the lengths of its gradients."""
        lengths = [_floored(few.norms[name], math.sqrt(self.rounding), self.noise) for few in (rows, columns)]
        error = (found - rows.gradients[name] @ columns.gradients[name].T).abs()
        scale = lengths[0][:, None] * lengths[1]
        return float((error / scale).max()) if float(scale.min()) > 0 else float(error.max())

    def batches_differ(self, uses: Sequence[Uses]) -> bool:
        """Whether outputs in a batch differ from those of single samples; then the network is checked further.

        Raises:
            ValueError: If the forward pass is random.
        """
        spread = torch.cat([few.outputs for few in self.sets])
        pairs = zip(self.sets, uses, strict=True)
        if all(deviation(each.outputs, few.outputs, spread, self.rounding)[0] <= 1 for few, each in pairs):
            return False
        found = [separateness(self.network, few.x) for few in self.sets]
        if any(each.random for each in found):
            moved = max(each.relative_noise for each in found)
            raise ValueError(
                "A tangent kernel needs the same output for the same input, but the forward pass is random "
                f"(outputs change by {moved:.1g} of their spread). Remove the noise."
            )
        return any(each.coupled for each in found)

    def in_a_larger_batch(self, network: Network, x: Any, size: int) -> tuple[Uses, int, bool]:
        """A batch of these and other samples: how parameters enter it, its size, and whether its outputs fit.

        Args:
            network: In the type that the panels are differentiated in.
            x: The samples of the rows.
            size: Batch size.
        """
        few, like = self.sets[0], next(iter(network.params.values()))
        places = _filled(few.places, sample_count(x), size)
        batch = placed(taken(x, places), like.device, like.dtype)
        uses = layer_uses(network, batch, self.output, backward=False)
        mine = uses.outputs[: few.count]
        spread = torch.cat([few.outputs.double(), uses.outputs.double()])
        rounding = max(self.rounding, torch.finfo(like.dtype).eps)
        fits = deviation(mine, few.outputs, spread, rounding)[0] <= 1
        if not fits and like.dtype != few.outputs.dtype:  # rounding, or the batch: the finer type tells
            return uses, len(places), self.in_a_larger_batch(self.network, x, size)[2]
        return uses, len(places), fits

    def extended(self, x: Any, names: Sequence[str]) -> tuple[Proof, int]:
        """The proof with more samples, on which parameters that had no gradient so far have one; and the number of samples checked."""
        module, count, known = self.network.as_module(), sample_count(x), self.sets[0].count
        size = min(_MOST_LOOKED_AT, max(_FEWEST_LOOKED_AT, count // _PART_LOOKED_AT))
        places = _filled(self.sets[0].places, count, known + size)[known:]
        missing, found = set(names), list[int]()
        for some in torch.split(places, _AT_A_TIME):
            if not missing or not len(some):
                break
            for name in sorted(self._with_gradient(module, x, some, missing)):
                if name in missing and len(found) < _ADDED:
                    found.append(self._sample_with_gradient(module, x, some, name))
                    missing -= self._with_gradient(module, x, torch.tensor(found[-1:]), missing)
                    missing.discard(name)
        if not found:
            return self, len(places)
        together = torch.cat([torch.tensor(found), self.sets[0].places])
        few = _Alone(self.network, self.names).few(taken(x, together), together, self.output)
        return dataclasses.replace(self, sets=(few, *self.sets[1:])), len(places)

    def _with_gradient(self, module: nn.Module, x: Any, places: Tensor, names: set[str]) -> set[str]:
        """Those of the parameters that have a gradient on one of the samples: of a sum with random signs, lest it cancel."""
        like = next(iter(self.network.params.values()))
        batch = placed(taken(x, places), like.device, like.dtype)
        with torch.enable_grad(), plain_attention():
            values = scalars(_applied(self.network, module, batch), self.output)
            signs = torch.randn(len(values), generator=generator_for(values.device, 0, "signs"), device=values.device)
            named = {name: each for name, each in module.named_parameters() if name in names}
            found = torch.autograd.grad(
                values @ signs.to(values), list(named.values()), allow_unused=True, materialize_grads=True
            )
        return {name for name, gradient in zip(named, found, strict=True) if float(gradient.norm()) > self.noise}

    def _sample_with_gradient(self, module: nn.Module, x: Any, places: Tensor, name: str) -> int:
        while len(places) > 1:
            half = places[: len(places) // 2]
            places = half if self._with_gradient(module, x, half, {name}) else places[len(places) // 2 :]
        return int(places[0])

    def error(self, matrix: Tensor, outputs: Sequence[int | None], summed: bool, precision: str) -> float:
        """How far the entries of a finished kernel are from the truth, relative to ``√(K_ii K_jj)``.

        Args:
            matrix: ``(n, m)``, or ``(p, n, m)``.
            outputs: All that were differentiated.
            summed: Whether the matrix is the sum over outputs.
            precision: Precision of the run; gradients below its rounding are not judged by their own length.
        """
        found = [self.at(output)._kernel() for output in outputs]
        truth, *sides = (torch.stack(parts) for parts in zip(*found, strict=True))
        if summed or matrix.dim() == 2:
            truth, sides = truth.sum(0), [side.square().sum(0).sqrt() for side in sides]
        share = math.sqrt(max(self.rounding, _ROUNDINGS[precision]))
        left, right = (_floored(side, share, torch.finfo(torch.float64).tiny) for side in sides)
        rows, columns = (few.places.to(matrix.device) for few in (self.sets[0], self.sets[-1]))
        entries = matrix[..., rows, :][..., columns].to(truth)
        return float(((entries - truth).abs() / (left[..., :, None] * right[..., None, :])).max())

    def _kernel(self) -> tuple[Tensor, Tensor, Tensor]:
        """The kernel of these samples, and the lengths of the gradients of its rows and of its columns."""
        rows, columns = self.sets[0], self.sets[-1]
        total = torch.zeros(rows.count, columns.count, dtype=torch.float64, device=rows.outputs.device)
        for name in self.names:
            sides = (torch.split(few.gradients[name], _IN_CACHE, 1) for few in (rows, columns))
            for left, right in zip(*sides, strict=True):
                total += left.double() @ right.double().T
        return total, rows.lengths, columns.lengths

    def check(self, error: float, precision: str) -> None:
        """Refuse a kernel that is further from the truth than its precision explains.

        Raises:
            ValueError: If it is.
        """
        if math.isnan(error):
            raise ValueError(_NOT_FINITE)
        tolerance = max(_TOLERANCES[precision], self.tolerance)
        if not error <= tolerance:
            finer = "" if precision == "float64" else "Pass precision='float64', or check"
            raise ValueError(
                f"A tangent kernel in {precision} must agree with gradients of single samples up to {tolerance:.0e}, but is "
                f"off by {error:.1g}. {finer or 'Check'} that the network treats the samples of a batch independently."
            )


class _Alone:
    """The module as anybody would run it, one sample at a time, by plain autograd."""

    def __init__(self, network: Network, names: Sequence[str]) -> None:
        self._network, self._names = network, names
        self._module: nn.Module | None = None

    def few(self, some: Any, places: Tensor, output: int | None) -> Few:
        """Differentiate samples, of these places in their set.

        Raises:
            ValueError: If the output has no gradient.
        """
        self._module = self._module or self._network.as_module()
        named = dict(self._module.named_parameters())
        like = next(iter(self._network.params.values()))
        some = placed(some, like.device, like.dtype)
        rows: dict[str, list[Tensor]] = {name: [] for name in self._names}
        outputs = []
        for index in range(len(places)):
            one = cloned(taken(some, slice(index, index + 1)))
            with torch.enable_grad(), plain_attention():
                found = _applied(self._network, self._module, one)
                gradients = _gradients(scalars(found, output).sum(), [named[name] for name in self._names])
            outputs.append(found.detach().reshape(1, -1))
            for name, gradient in zip(self._names, gradients, strict=True):
                rows[name].append(gradient.detach().flatten())
        if not all(bool(torch.isfinite(each).all()) for each in outputs):
            raise ValueError(_NOT_FINITE)
        return Few(places, some, torch.cat(outputs), {name: torch.stack(each) for name, each in rows.items()})


def _gradients(value: Tensor, parameters: list[Tensor]) -> Sequence[Tensor]:
    try:
        return torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)
    except RuntimeError as error:
        if is_of_the_device(error):
            raise
        raise ValueError(
            f"The network's output must have a gradient with respect to its weights, but torch found none ({error}). "
            "Check that forward uses the weights and overwrites nothing that it still needs."
        ) from error


def _applied(network: Network, module: nn.Module, x: Any) -> Tensor:
    """Outputs of an ordinary module, through the network's readout."""
    alone = copy.copy(network)
    object.__setattr__(alone, "module", module)
    return alone.apply({}, {}, x)


def _spread(count: int, most: int, key: int) -> Tensor:
    """The first, the last and random samples, in random order."""
    generator = generator_for(torch.device("cpu"), 0, "kernel proof", key)
    inner = 1 + torch.randperm(max(0, count - 2), generator=generator)[: max(0, most - 2)]
    places = torch.cat([torch.tensor([0, count - 1][: min(2, count)]), inner])
    order = torch.randperm(len(places), generator=generator)
    return places[order if not bool((places[order].diff() > 0).all()) else order.flip(0)]


def _filled(places: Tensor, count: int, size: int) -> Tensor:
    """Places, followed by random others."""
    generator = generator_for(torch.device("cpu"), 0, "kernel proof, other samples")
    others = torch.randperm(count, generator=generator)
    others = others[~torch.isin(others, places)]
    return torch.cat([places, others[: max(0, size - len(places))]])


def _floored(lengths: Tensor, share: float, least: float) -> Tensor:
    """Lengths, at least a share of the longest: what is shorter is known less precisely than by its own length."""
    return lengths.clamp_min(max(share * float(lengths.max()), least))
