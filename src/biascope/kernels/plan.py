"""The plan of a tangent kernel: a proven rule for every parameter, and the sizes of panels, passes and blocks."""

# n samples

from __future__ import annotations

import dataclasses
import fnmatch
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from biascope.families.network import Network
from biascope.kernels.proof import Proof
from biascope.kernels.rules import GradientRule, PairRule, Rule, possible_rules
from biascope.kernels.uses import Signature, Uses
from biascope.runs.memory import is_of_the_device
from biascope.runs.run import Run

_OTHERWISE, _NO_RULE = "is used outside of the known layers", "no rule of its layer holds here"
_INFLUENCE = "samples of a batch influence one another"
_LARGER = 32  # samples
_TRIED = (
    2**28
)  # numbers of a tile that a proof forms; rules that need more have so many positions that they are never the cheapest
_COUPLED = (
    "The network's outputs depend on the other samples of a batch, and a tangent kernel compares single samples. "
    "Each sample is therefore passed alone, which is slower. Remove the dependence if this is not what you want."
)


@dataclass(frozen=True)
class Part:
    """One parameter's share in a kernel.

    Attributes:
        name: Name of the parameter.
        shape: Shape of the parameter.
        rule: How its share is computed.
        error: Error of that rule on a few samples against plain autograd, relative to the share.
        remark: Why the parameter is differentiated by itself, where it is.
        signatures: How it entered where the rule was proven, for each set of samples; none where it is differentiated.
    """

    name: str
    shape: tuple[int, ...]
    rule: Rule
    error: float
    remark: str = ""
    signatures: tuple[Signature, ...] = ()

    def fits(self, uses: Uses, samples: int) -> bool:
        """Whether the parameter is used in another batch as in the proof."""
        return not self.signatures or uses.signature(self.name, samples) in self.signatures


@dataclass(frozen=True)
class Sizes:
    """Batch and block sizes; the last digits of a kernel depend on them, so they are saved with it.

    Attributes:
        chunk: Samples in one forward and backward pass.
        kept: Numbers that all parameters of one pass may keep.
        block: Numbers of one block of gradients, or of one tile of pairs.
    """

    chunk: int
    kept: int
    block: int

    def halved(self) -> Sizes:
        """Half as much at a time."""
        return Sizes(max(1, self.chunk // 2), max(1, self.kept // 2), max(1, self.block // 2))


def kernel_parts(
    proof: Proof, x: Any, *, outputs: Sequence[int | None] = (None,), pairs: float, samples: int, device: str = "cpu"
) -> tuple[list[Part], Proof]:
    """The parameters that contribute to a kernel, each with the cheapest rule that is proven for it on the given network.

    Every rule is tried against gradients of single samples by plain autograd of the module itself. One that does not
    hold (a layer whose batch axis is not the first, say) is not used; a parameter for which none holds is
    differentiated by itself, one sample at a time, and if that does not hold either, the network is refused. Where samples of
    a batch influence one another, no rule is used. Where a parameter has no gradient on the samples of the proof, others
    are looked for on which it has one.

    Args:
        proof: The network, and the gradients of few samples.
        x: Inputs ``(n, …)``, for more samples.
        outputs: All outputs that are to be differentiated, the proof's first.
        pairs: How many entries of the matrix there are to compute.
        samples: How many samples there are.
        device: The kind of device that rules are chosen for.

    Returns:
        The parts, and the proof, with the samples that had to be added to it.

    Raises:
        ValueError: If a parameter's share cannot be computed rightly, or the forward pass is random.
    """
    uses = [few.uses(proof.network, proof.output) for few in proof.sets]
    if proof.batches_differ(uses):
        warnings.warn(_COUPLED, UserWarning, stacklevel=4)
        return _differentiated(proof, list(proof.names), _INFLUENCE), proof

    def cost(rule: Rule) -> float:
        return rule.cost.total(samples, pairs, device)

    found = {name: part for name in proof.names if (part := _proven(proof, uses, name, cost)) is not None}
    elsewhere, more = _proven_elsewhere(proof, x, found, outputs, cost)
    found |= elsewhere
    for remark, names in _left(proof, uses[0], found).items():
        found |= {part.name: part for part in _differentiated(proof, names, remark)}
    return [found[name] for name in proof.names], more


def _proven(proof: Proof, uses: Sequence[Uses], name: str, cost: Callable[[Rule], float]) -> Part | None:
    """The cheapest rule that agrees with the truth, if one does."""
    few, shape = proof.sets[0], proof.network.params[name].shape
    signatures = tuple(each.signature(name, some.count) for each, some in zip(uses, proof.sets, strict=True))
    # A batch whose axis is not the first may agree by chance: rows of its positions are then taken for samples.
    if not all(signatures) or signatures[0] != proof.alone.signature(name, 1):
        return None
    for rule in sorted(possible_rules(uses[0], name, few.count, shape), key=cost):
        if isinstance(rule, PairRule) and rule.pair_size * few.count**2 > _TRIED:
            continue
        try:
            error = _rule_error(proof, rule, uses, name)
        except RuntimeError as failure:  # a layer that is called on some of the samples may not fit into it
            if is_of_the_device(failure):
                raise
            continue
        if error <= proof.tolerance:
            return Part(name, tuple(shape), rule, error, signatures=signatures)
    return None


def _rule_error(proof: Proof, rule: Rule, uses: Sequence[Uses], name: str) -> float:
    """Of the share within the rows' samples, and between these and the columns'."""
    held = [rule.held(each.of(name), few.count) for each, few in zip(uses, proof.sets, strict=True)]
    rows = proof.sets[0]
    return max(
        proof.disagreement(name, share(rule, held[0], columns), rows, few)
        for columns, few in zip(held, proof.sets, strict=True)
    )


def _proven_elsewhere(
    proof: Proof, x: Any, found: dict[str, Part], outputs: Sequence[int | None], cost: Callable[[Rule], float]
) -> tuple[dict[str, Part], Proof]:
    """Agreement of zeros proves nothing: parameters without a gradient, on other outputs and samples where they have one."""
    idle, parts = [name for name in found if proof.without_gradient(name)], dict[str, Part]()

    def try_again(other: Proof) -> None:
        telling = [name for name in idle if not other.without_gradient(name)]
        uses = [few.uses(other.network, other.output) for few in other.sets] if telling else []
        for name in telling:
            parts[name] = _proven(other, uses, name, cost) or _differentiated(other, [name], _NO_RULE)[0]
            idle.remove(name)

    for output in outputs[1:]:
        if idle:
            try_again(proof.at(output))
    more = proof
    if idle:
        more, looked_at = proof.extended(x, idle)
        try_again(more)
        remark = f"no gradient on the {looked_at + proof.sets[0].count} samples checked, so its rule is not proven"
        parts |= {name: dataclasses.replace(found[name], remark=remark) for name in idle}
    return parts, more


def _left(proof: Proof, uses: Uses, found: Mapping[str, Part]) -> dict[str, list[str]]:
    """Parameters without a rule, by the reason."""
    reasons: dict[str, list[str]] = {}
    for name in proof.names:
        if name not in found:
            reasons.setdefault(_OTHERWISE if name in uses.raw else _NO_RULE, []).append(name)
    return reasons


def parts_in_larger_batches(proof: Proof, parts: Sequence[Part], network: Network, x: Any, size: int) -> list[Part]:
    """Parts that also hold in a larger batch, as panels have them: a network may depend on how many samples it is given.

    The batch is smaller than those of most panels, to cost little. What depends on more samples than it holds is found in the
    finished kernel, and refused.

    Args:
        proof: What the kernel must agree with.
        parts: Proven on few samples.
        network: In the type that the panels are differentiated in.
        x: Samples of the rows.
        size: Batch size of the panels.
    """
    size = min(size, _LARGER)
    if all(not part.signatures for part in parts) or size <= 1:
        return list(parts)
    uses, count, fits = proof.in_a_larger_batch(network, x, size)
    if not fits:
        warnings.warn(_COUPLED, UserWarning, stacklevel=4)
        return _differentiated(proof, [part.name for part in parts], _INFLUENCE)
    changed = [part.name for part in parts if part.signatures and not part.fits(uses, count)]
    instead = {part.name: part for part in _differentiated(proof, changed, "is used differently in larger batches")}
    return [instead.get(part.name, part) for part in parts]


def _differentiated(proof: Proof, names: list[str], remark: str) -> list[Part]:
    """Parameters whose gradients are found by differentiation of each sample alone."""
    if not names:
        return []
    network = proof.network
    uses = [few.uses(network, proof.output, names) for few in proof.sets]
    parts = []
    for name in names:
        own = Uses(uses[0].calls, frozenset(), uses[0].outputs)
        rule = possible_rules(own, name, proof.sets[0].count, network.params[name].shape)[0]
        error = _rule_error(proof, rule, uses, name)
        if not error <= proof.tolerance:
            module = name.rpartition(".")[0] or type(network.module).__name__
            raise ValueError(
                f"The gradient by {name!r} must be the same in a batch and alone, but it is not (off by {error:.1g}): "
                f"{module} mixes samples, or has weights of its own. Exclude it with parameters=[…], or fix it."
            )
        parts.append(Part(name, tuple(network.params[name].shape), rule, error, remark))
    return parts


def share(rule: Rule, held: list[Tensor], columns: list[Tensor] | None = None) -> Tensor:
    """One parameter's contribution on few samples, ``(k, k)``, or ``(k, l)`` with those of the columns."""
    columns = held if columns is None else columns
    if isinstance(rule, PairRule):
        return rule.tile(held, columns)
    assert isinstance(rule, GradientRule)
    return rule.columns(held, 0, rule.rows) @ rule.columns(columns, 0, rule.rows).T


def chosen_parameters(network: Network, patterns: Sequence[str] | None) -> list[str]:
    """The names that fit, in the network's order, of parameters with numbers.

    Raises:
        ValueError: If a pattern fits none.
    """
    names = [name for name, tensor in network.params.items() if tensor.numel()]
    if patterns is None:
        return names
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ValueError(
                f"parameters must name parameters of the network, but {pattern!r} matches none of its {len(names)} "
                f"({', '.join(names[:3])} …). Pass names or patterns such as '{names[0].partition('.')[0]}.*'."
            )
    return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


def usual_sizes(parts: Sequence[Part], run: Run) -> Sizes:
    """Sizes that suit a device, by its total memory alone or by what a run may take, so that a repeated command finds the same."""
    each = max(1, sum(part.rule.cost.kept for part in parts))
    if run.on is None and run.torch_device.type == "cuda":
        device = run.torch_device
        numbers = torch.cuda.get_device_properties(device).total_memory // run.dtype.itemsize
        chunk = max(1, min(1024, int(0.04 * numbers) // (3 * each)))
        return Sizes(chunk, int(0.55 * numbers), int(0.08 * numbers))
    # On a CPU small pieces stay in its caches, and more than a gigabyte is not asked for without need.
    here = run.on is None
    kept, rows = (run.room(2**30, 2), run.room(2**27)) if here else (2**30, 2**27)
    return Sizes(max(1, min(128, rows // 4 // (3 * each))), kept // 4, run.room(2**24) // 4 if here else 2**22)


def passes(parts: Sequence[Part], samples: int, sizes: Sizes) -> list[list[Part]]:
    """Parameters in consecutive groups whose kept numbers fit at a time; each group takes a pass over the samples."""
    groups: list[list[Part]] = [[]]
    room = sizes.kept
    for part in parts:
        need = part.rule.cost.kept * samples
        if groups[-1] and need > room:
            groups.append([])
            room = sizes.kept
        groups[-1].append(part)
        room -= need
    return groups


def plan_in_words(parts: Sequence[Part], samples: int, other: int | None, sizes: Sizes, itemsize: int) -> str:
    """A table of the rule, operations and memory of every parameter, for people."""
    pairs = samples * (samples + 1) / 2 if other is None else samples * other
    count = samples + (other or 0)
    rows = [("parameter", "shape", "rule", "multiply-adds", "kept", "proof")]
    total_work = total_kept = 0.0
    for part in parts:
        work = part.rule.cost.per_sample * count + part.rule.cost.per_pair * pairs
        kept = part.rule.cost.kept * count * itemsize
        total_work, total_kept = total_work + work, total_kept + kept
        shape = "×".join(map(str, part.shape)) or "1"
        rule = part.rule.name + (f" ({part.remark})" if part.remark else "")
        rows.append((part.name, shape, rule, _amount(work, ""), _amount(kept, "B"), f"{part.error:.0e}"))
    rows.append(("all", "", "", _amount(total_work, ""), _amount(total_kept, "B"), ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    number = len(passes(parts, count, sizes))
    size = f"{samples:,} × {samples if other is None else other:,}"
    head = f"{size} kernel; {number} pass{'es' if number > 1 else ''} over the samples, {sizes.chunk} at a time."
    return "\n".join([head, *lines])


def _amount(number: float, unit: str) -> str:
    if number < 1:
        return f"0 {unit}".strip()
    power = min(5, int(math.log10(number) // 3))
    return f"{number / 1000**power:.3g} {['', 'k', 'M', 'G', 'T', 'P'][power]}{unit}".strip()
