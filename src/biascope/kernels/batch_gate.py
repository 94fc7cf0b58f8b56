"""The batch gate: in a batch, a sample has the gradient that it has alone in full precision, with padding and without.

A measurement differentiates many samples at once, in the precision of its run. The gate compares a few of these gradients with those
of single samples in float64. Where they differ, it goes on to the next precision (bfloat16, tf32, float32), and then to attention
computed step by step, until they agree.
"""

# n samples · L positions

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map

from biascope.derivatives.gradients import input_gradient, plain_attention, weight_jvp
from biascope.derivatives.separateness import companions, exact_type, separateness
from biascope.families.attention import EAGER, attention_of, use_eager_attention
from biascope.families.family import Family
from biascope.families.inputs import cloned, is_real, placed, taken
from biascope.families.network import Network
from biascope.runs.digest import fingerprint
from biascope.runs.failures import FOREIGN, reason_of
from biascope.runs.memory import is_of_the_device, is_out_of_memory
from biascope.runs.randomness import forked_rng, generator_for, seed_of
from biascope.runs.run import Run

INPUT, WEIGHT = "input", "weight"  # what a measurement differentiates by

# Of a gradient, relative to its length. A unit that rounding puts on the other side of a kink moves it by parts of a percent.
TOLERANCES = {"float64": 1e-6, "float32": 1e-3, "tf32": 3e-2, "float16": 3e-2, "bfloat16": 5e-2}
_ASIDE = 1e-2  # of an input: how far it is moved off the kinks of a network
_SINGLE, _DOUBLE = (
    1e-6,
    1e-12,
)  # rounding units above these are of numbers that are narrower than float32, and than float64


@dataclass(frozen=True)
class Passage:
    """What a measurement may be run with.

    Attributes:
        precision: That of the run, or the next one in which gradients are those of single samples.
        difference: Of these gradients from those of single samples, relative to their length; infinite where there are none.
        allowed: How large it may be.
        told: What the reader of a result must know, in sentences.
        refused: Why the network cannot be measured; empty if it can, or if others say why not.
    """

    precision: str
    difference: float
    allowed: float
    told: tuple[str, ...] = ()
    refused: str = ""


def passage(
    family: Family,
    inputs: Callable[[Run], Any],
    *,
    derivatives: Collection[str],
    readout: str = "first",
    half: bool = True,
    run: Run | None = None,
) -> Passage:
    """A precision and an attention in which samples have the same gradients alone and in a batch.

    What was found is kept, for the other measurements of these networks.

    Args:
        family: The networks that are measured. Their forward pass is given another attention where nothing else helps.
        inputs: Gives a few inputs ``(n, …)``, any pytree, on the device and in the precision of a run.
        derivatives: What the measurement differentiates by: ``"input"``, ``"weight"`` or both.
        readout: How several outputs become one scalar.
        half: Whether derivatives are taken in the precision of the run also where that is less than float32.
        run: Device and precision that were asked for.

    Example:
        >>> family = Family.point(nn.Linear(3, 1))
        >>> found = passage(family, lambda run: torch.ones(2, 3, dtype=run.dtype), derivatives=["input"])
        >>> found.precision, found.difference < found.allowed
        ('float32', True)
    """
    run = run or Run()
    run = dataclasses.replace(run, device="cpu", on=None) if run.on else run
    x = inputs(dataclasses.replace(run, precision="float64"))
    shapes = tuple(tuple(leaf.shape) for leaf in tree_leaves(x) if isinstance(leaf, Tensor))
    mask = _mask_in(x)
    hidden = () if mask is None else tuple(mask.flatten().tolist())
    content = (family.name, fingerprint(family.template.params))
    asked = (*content, shapes, hidden, str(run.torch_device), run.precision, readout, *sorted(derivatives), half)
    known = _KNOWN.setdefault(family.template.module, {})
    if asked not in known:
        with plain_attention(), forked_rng(seed_of(0, "batch gate")):
            try:
                known[asked] = _found(_Comparison(family, x, derivatives, readout, run), half)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                told = f"Gradients of {family.name} in a batch were not compared with those of single samples: memory ran out."
                return Passage(run.precision, math.inf, 0.0, (told,))
    return known[asked]


_KNOWN: weakref.WeakKeyDictionary[nn.Module, dict[object, Passage]] = weakref.WeakKeyDictionary()


def _found(compared: _Comparison, half: bool) -> Passage:
    name, module, run = compared.name, compared.network.module, compared.run
    steps, own, told = _steps(run, half), attention_of(module), [*compared.narrow(), *compared.replaced()]
    tried = compared.climbed(steps)
    if not tried[-1].agrees and own not in ("", EAGER) and use_eager_attention(module):
        why, tried = tried[-1].why, compared.climbed(steps)
        if tried[-1].agrees:
            told.append(f"Attention of {name} is computed step by step (eager). With {own}, its gradients {why}.")
    last, refused = tried[-1], ""
    if not last.agrees:
        doubt, refused = compared.doubted(last)
        told += doubt
    elif len(tried) > 1:
        told.append(f"{name} is measured in {last.precision}. In {run.precision}, its gradients {tried[0].why}.")
    told += compared.padded()
    return Passage(last.precision if half else run.precision, last.difference, last.allowed, tuple(told), refused)


def _steps(run: Run, half: bool) -> list[str]:
    """Precisions in the order in which they are tried. On a CPU, products in tf32 are those in float32."""
    if run.precision in ("float64", "float32") or not half:
        return ["float64" if run.precision == "float64" else "float32"]
    finer = ["tf32", "float32"] if run.torch_device.type == "cuda" else ["float32"]
    return list(dict.fromkeys([run.precision, *finer])) if run.dtype.itemsize < 4 or len(finer) > 1 else [run.precision]


@dataclass(frozen=True)
class _Step:
    """Gradients in one precision: how far they are from those of single samples, and that in words."""

    precision: str
    difference: float
    allowed: float
    why: str = ""

    @property
    def agrees(self) -> bool:
        return self.difference <= self.allowed


class _Comparison:
    """Gradients of one network of a family at a few inputs, alone and in batches."""

    def __init__(self, family: Family, x: Any, derivatives: Collection[str], readout: str, run: Run) -> None:
        self.name, self.run, self.derivatives = family.name, run, derivatives
        self.network = family.template.read(readout)
        like = next(iter(self.network.params.values()))
        self.exact, self._rounding = exact_type(self._at(like.dtype), x)
        self.x = placed(x, run.torch_device, self.exact)

    def _at(self, dtype: torch.dtype) -> Network:
        return self.network.to(self.run.torch_device, dtype)

    def narrow(self) -> list[str]:
        """What is to be told of a forward pass that rounds to 16 bits by itself."""
        if self._rounding <= _SINGLE:
            return []
        return [
            f"{self.name} computes in numbers of 16 bits, whatever precision is asked for: each rounds by up to "
            f"{_percent(self._rounding / 2)}. Remove the cast or the autocast from forward."
        ]

    def replaced(self) -> list[str]:
        """What is to be told of attention that was replaced as soon as the network was taken."""
        origin, now = self.network.origin, attention_of(self.network.module)
        if origin is None or origin.attention == now:
            return []
        return [
            f"Attention of {self.name} is computed step by step ({now}), not by {origin.attention}, which torch cannot differentiate "
            "in every way."
        ]

    def climbed(self, steps: list[str]) -> list[_Step]:
        """The steps up to the first one that agrees."""
        tried = []
        for precision in steps:
            tried.append(self._step(precision))
            if tried[-1].agrees:
                break
        return tried

    def _step(self, precision: str) -> _Step:
        run = dataclasses.replace(self.run, precision=precision)
        allowed = max(TOLERANCES[precision], self._least_allowed)
        try:
            with run.products():
                difference = self._difference(run.dtype, self.x)
        except FOREIGN as error:
            if is_of_the_device(error):
                raise
            return _Step(precision, math.inf, allowed, f"could not be computed ({reason_of(error)})")
        words = (
            f"differ by {_percent(difference)} from those of single samples"
            if math.isfinite(difference)
            else ("are not finite")
        )
        return _Step(precision, difference, allowed, words)

    @property
    def _least_allowed(self) -> float:
        """What a network may differ by that rounds by itself, in whatever precision it runs."""
        if self._rounding > _SINGLE:
            return TOLERANCES["bfloat16"]
        return TOLERANCES["float32"] if self._rounding > _DOUBLE else TOLERANCES["float64"]

    def _difference(self, dtype: torch.dtype, x: Any) -> float:
        """How far gradients in a batch in some type are from those of single samples in the finest type."""
        exact, coarse, found = self._at(self.exact), self._at(dtype), []
        batch, first = _in_company(coarse, placed(x, None, dtype))
        singles = [taken(x, slice(index, index + 1)) for index in range(_count(x))]
        if INPUT in self.derivatives:
            alone = torch.cat([input_gradient(exact, one) for one in singles])
            found.append(_relative([input_gradient(coarse, batch)[first:]], [alone]))
        if WEIGHT in self.derivatives:
            row = _weight_gradient(coarse, batch, -1)
            found.append(_relative(row, _weight_gradient(exact, singles[-1], -1)))
            if attention_of(exact.module) not in ("", EAGER):  # fused attention may have no forward mode
                weight_jvp(exact, singles[-1], exact.params)
        return max(found)

    def doubted(self, last: _Step) -> tuple[list[str], str]:
        """What is to be told, or why it is refused, where gradients in the last precision are not those of single samples."""
        try:
            seen = separateness(self._at(self.exact), self.x)
            if seen.random or seen.coupled:
                return [], ""  # which each measurement refuses, or allows for
            moved = tree_map(lambda leaf: leaf + _ASIDE * _noise(leaf) if is_real(leaf) else leaf, self.x)
            apart = self._difference(self.exact, moved)  # beside the kinks that it may lie on
        except FOREIGN as error:
            if is_of_the_device(error):
                raise
            return [], ""  # its derivatives fail in every precision, which the measurement says
        if not math.isfinite(apart):
            return [], ""  # for others to refuse
        if apart <= self._least_allowed:
            return [f"In {last.precision}, gradients of {self.name} {last.why}. Pass --precision float64."], ""
        what = (
            f"{self.name} must give a sample the same gradient alone and in a batch, but in a batch it differs by "
            f"{_percent(apart)}. Remove what backward does with other samples."
        )
        return ([], what) if INPUT in self.derivatives else ([what], "")

    def padded(self) -> list[str]:
        """What is to be told where padding changes a sample."""
        try:
            apart = padding_difference(self._at(self.exact), self.x)
        except FOREIGN as error:
            if is_of_the_device(error):
                raise
            return []
        if apart <= self._least_allowed:
            return []
        return [
            f"Padding changes the gradients of {self.name} by {_percent(apart)}: masked positions are not without influence. "
            "Measure samples of one length, put padding at the end, or let forward apply its mask wherever positions meet."
        ]


def padding_difference(network: Network, x: Any) -> float:
    """How far the input gradients of samples with padding are from those of the same samples without it; 0 where none is padded.

    Padding is what a mask hides at the beginning or at the end of a sample: a leaf of whole numbers or truth values, positions along
    its second axis, under a name with ``mask``.

    Args:
        network: One network with a readout.
        x: Inputs ``(n, …)``, any pytree.
    """
    mask = _mask_in(x)
    if mask is None or bool(mask.all()):
        return 0.0
    together = _slopes(network, x)
    found = [0.0]
    for index, kept in enumerate(mask.bool()):
        one = taken(x, slice(index, index + 1))
        if bool(kept.all()) or not bool(kept.any()):
            continue
        places = kept.nonzero().flatten()
        own = [leaf[index : index + 1] for leaf in together]
        hidden = [leaf[:, ~kept] for leaf in own if _has_positions(leaf, mask)]
        scale = max(float(leaf.abs().max()) for leaf in own)
        found += [float(leaf.abs().max()) / scale for leaf in hidden if scale]
        if len(places) != int(places[-1] - places[0]) + 1:  # a hole is no padding
            continue
        cut = tree_map(lambda leaf: leaf[:, kept] if _has_positions(leaf, mask) else leaf, one)  # noqa: B023
        try:
            alone = _slopes(network, cut)
        except FOREIGN as error:  # it takes one length alone: then padding is a part of the input
            if is_of_the_device(error):
                raise
            continue
        found.append(_relative([leaf[:, kept] if _has_positions(leaf, mask) else leaf for leaf in own], alone))
    return max(found)


def _mask_in(x: Any) -> Tensor | None:
    """The mask of padding among the inputs, if there is one."""
    for path, leaf in tree_flatten_with_path(x)[0]:
        if isinstance(leaf, Tensor) and leaf.dim() == 2 and not is_real(leaf) and "mask" in keystr(path):
            return leaf if bool(((leaf == 0) | (leaf == 1)).all()) else None
    return None


def _has_positions(leaf: Any, mask: Tensor) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 1 and leaf.shape[1] == mask.shape[1]


def _slopes(network: Network, x: Any) -> list[Tensor]:
    """Gradients of the summed outputs by each leaf of real numbers."""
    leaves = tree_map(lambda leaf: leaf.detach().clone().requires_grad_() if is_real(leaf) else leaf, x)
    moving = [leaf for leaf in tree_leaves(leaves) if is_real(leaf)]
    with torch.enable_grad():
        outputs = network(tree_map(lambda leaf: leaf + 0 if is_real(leaf) else leaf, leaves)).sum()
    return list(torch.autograd.grad(outputs, moving, allow_unused=True, materialize_grads=True))


def _weight_gradient(network: Network, x: Any, index: int) -> list[Tensor]:
    """The gradient of one sample's output by each weight, by plain autograd."""
    params = {name: tensor.detach().requires_grad_() for name, tensor in network.params.items()}
    moving = [tensor for tensor in params.values() if is_real(tensor)]
    with torch.enable_grad():
        output = network.apply(params, network.buffers, cloned(x))[index]
    return list(torch.autograd.grad(output, moving, allow_unused=True, materialize_grads=True))


def _in_company(network: Network, x: Any) -> tuple[Any, int]:
    """The samples behind a few made-up ones, and where they begin; the samples alone where the network refuses made-up ones."""
    joined = companions(x)
    try:
        with torch.no_grad():
            if bool(network(joined).isfinite().all()):
                return joined, _count(joined) - _count(x)
    except FOREIGN as error:
        if is_of_the_device(error):
            raise
    return x, 0


def _count(x: Any) -> int:
    return next(len(leaf) for leaf in tree_leaves(x) if isinstance(leaf, Tensor) and leaf.dim())


def _noise(leaf: Tensor) -> Tensor:
    generator = generator_for(torch.device("cpu"), 0, "beside")
    noise = torch.randn(leaf.shape, generator=generator, dtype=torch.float64).to(leaf)
    return noise * (leaf.square().mean().sqrt() or 1.0)


def _relative(found: list[Tensor], wanted: list[Tensor]) -> float:
    """The length of a difference, relative to what it should be."""
    pairs = [(one.double(), other.double()) for one, other in zip(found, wanted, strict=True)]
    error = math.sqrt(sum(float((one - other).square().sum()) for one, other in pairs))
    length = math.sqrt(sum(float(other.square().sum()) for _, other in pairs))
    if not math.isfinite(error):
        return math.inf
    return error / length if length else math.inf if error else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
