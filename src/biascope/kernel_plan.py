"""HOW a tangent kernel will be computed: a proven rule for every parameter, and the sizes of panels, passes and blocks."""

# n samples

from __future__ import annotations

import copy
import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from biascope.family import Network
from biascope.layer_rules import GradientRule, PairRule, Rule, possible_rules
from biascope.layer_uses import layer_uses, scalars
from biascope.run import Run
from biascope.tangent import plain_attention

_PROVED_ON = 2  # samples: enough to mix them up
# Of the proof, by the precision it is made in: a wrong rule is wrong by its whole contribution.
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-2}


@dataclass(frozen=True)
class Part:
    """One parameter's share in a kernel.

    Attributes:
        name: Of the parameter.
        shape: Of the parameter.
        rule: How its share is computed.
        error: Of that rule on a few samples against plain autograd, relative to the share.
        remark: Why the parameter is differentiated by itself, where it is.
    """

    name: str
    shape: tuple[int, ...]
    rule: Rule
    error: float
    remark: str = ""


@dataclass(frozen=True)
class Sizes:
    """How much is done at a time: part of what a kernel's last digits depend on, so it is written down with the work.

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
    network: Network,
    x: Any,
    *,
    parameters: Sequence[str] | None = None,
    output: int | None = None,
    pairs: float,
    samples: int,
    device: str = "cpu",
) -> list[Part]:
    """The parameters that contribute to a kernel, each with the cheapest rule that is proven for it on the given network.

    Every rule is tried on a few samples against gradients by plain autograd of the module itself. One that does not
    hold (a layer whose batch axis is not the first, say) is not used; a parameter for which none holds is
    differentiated by itself, and if that does not hold either, the network is refused.

    Args:
        network: One network, on the device and in the precision that the proof is made in.
        x: Inputs ``(n, …)``.
        parameters: Names or patterns such as ``"stage4.*"``; all by default.
        output: Which of several outputs.
        pairs: How many entries of the matrix there are to compute.
        samples: How many samples there are.
        device: The kind of device that rules are chosen for.

    Raises:
        ValueError: If a name fits no parameter, or a parameter's share cannot be computed rightly.
    """
    names = chosen_parameters(network, parameters)
    like = next(iter(network.params.values()))
    few = tree_map(lambda leaf: placed(leaf[:_PROVED_ON], like) if isinstance(leaf, Tensor) else leaf, x)
    count, tolerance = min(_PROVED_ON, sample_count(x)), _TOLERANCES[like.dtype]
    truth = _gradients_one_by_one(network, few, count, output)
    floor = _noise(truth, like.dtype)
    uses = layer_uses(network, few, output)
    found: dict[str, Part] = {}
    for name in names:
        shape = tuple(network.params[name].shape)
        target = truth[name] @ truth[name].T
        rules = possible_rules(uses, name, count, network.params[name].shape)
        for rule in sorted(rules, key=lambda rule: rule.cost.total(samples, pairs, device)):
            error = _disagreement(share(rule, rule.held(uses.of(name), count)), target, floor)
            if error <= tolerance:
                found[name] = Part(name, shape, rule, error)
                break
    rest = [name for name in names if name not in found]
    if rest:
        found |= _differentiated(network, few, count, output, rest, truth, uses.raw)
    return [found[name] for name in names]


def _differentiated(
    network: Network, few: Any, count: int, output: int | None, names: list[str], truth: dict[str, Tensor], raw: Any
) -> dict[str, Part]:
    uses = layer_uses(network, few, output, differentiated=names)
    found = {}
    for name in names:
        rule = possible_rules(type(uses)(uses.calls, frozenset()), name, count, network.params[name].shape)[0]
        target = truth[name] @ truth[name].T
        error = _disagreement(share(rule, rule.held(uses.of(name), count)), target, _noise(truth, target.dtype))
        if not error <= _TOLERANCES[network.params[name].dtype]:
            module = name.rpartition(".")[0] or type(network.module).__name__
            raise ValueError(
                f"The gradient by {name!r} must be the same in a batch and alone, and it is not (off by {error:.1g}): "
                f"{module} mixes samples, or keeps weights of its own. Exclude it with parameters=[…], or mend it."
            )
        remark = "enters outside of the layers known" if name in raw else "no rule of its layer holds here"
        found[name] = Part(name, tuple(network.params[name].shape), rule, error, remark)
    return found


def share(rule: Rule, held: list[Tensor]) -> Tensor:
    """One parameter's contribution on few samples, ``(n, n)``."""
    if isinstance(rule, PairRule):
        return rule.tile(held, held)
    assert isinstance(rule, GradientRule)
    gradients = rule.columns(held, 0, rule.rows)
    return gradients @ gradients.T


def _gradients_one_by_one(network: Network, x: Any, count: int, output: int | None) -> dict[str, Tensor]:
    """What every rule must agree with: the module as anybody would run it, one sample at a time, by plain autograd."""
    module = network.as_module()
    alone = copy.copy(network)
    object.__setattr__(alone, "module", module)
    named = dict(module.named_parameters())
    rows: dict[str, list[Tensor]] = {name: [] for name in named}
    for index in range(count):
        one = tree_map(lambda leaf: leaf[index : index + 1].clone() if isinstance(leaf, Tensor) else leaf, x)  # noqa: B023
        with torch.enable_grad(), plain_attention():
            value = scalars(alone.apply({}, {}, one), output).sum()
            try:
                gradients = torch.autograd.grad(value, list(named.values()), allow_unused=True, materialize_grads=True)
            except RuntimeError as error:
                raise ValueError(
                    f"The network's output must have a gradient by its weights, and torch found none ({error}). "
                    "Check that forward uses the weights and overwrites nothing that it still needs."
                ) from error
        for name, gradient in zip(named, gradients, strict=True):
            rows[name].append(gradient.detach().flatten())
    return {name: torch.stack(gradients) for name, gradients in rows.items()}


def _noise(truth: dict[str, Tensor], dtype: torch.dtype) -> float:
    """Below this a share is rounding alone: some gradients vanish exactly, as by the key bias of an attention."""
    largest = max((float(each.square().sum(1).max()) for each in truth.values()), default=0.0)
    return (100 * torch.finfo(dtype).eps) ** 2 * largest


def _disagreement(found: Tensor, target: Tensor, floor: float) -> float:
    scale = max(float(target.abs().max()), floor)
    error = float((found - target).abs().max())
    return error / scale if scale > 0 else error


def placed(leaf: Any, like: Tensor) -> Any:
    """A tensor on the device of another, real numbers in its type; anything else as it is."""
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.to(like.device, like.dtype if leaf.is_floating_point() else leaf.dtype)


def chosen_parameters(network: Network, patterns: Sequence[str] | None) -> list[str]:
    """The names that fit, in the network's order.

    Raises:
        ValueError: If a pattern fits none.
    """
    names = list(network.params)
    if patterns is None:
        return names
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ValueError(
                f"parameters must name parameters of the network, and {pattern!r} fits none of its {len(names)} "
                f"({', '.join(names[:3])} …). Pass names or patterns such as '{names[0].partition('.')[0]}.*'."
            )
    return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


def usual_sizes(parts: Sequence[Part], run: Run) -> Sizes:
    """Sizes that suit a device, by its total memory alone, so that a repeated command finds the same."""
    each = max(1, sum(part.rule.cost.kept for part in parts))
    if run.on is None and run.torch_device.type == "cuda":
        device = run.torch_device
        numbers = torch.cuda.get_device_properties(device).total_memory // run.dtype.itemsize
        chunk = max(1, min(1024, int(0.04 * numbers) // (3 * each)))
        return Sizes(chunk, int(0.55 * numbers), int(0.08 * numbers))
    # On a CPU small pieces stay in its caches, and more than a gigabyte is not asked for without need.
    chunk = max(1, min(128, 2**25 // (3 * each)))
    return Sizes(chunk, 2**28, 2**22)


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


def explanation(parts: Sequence[Part], samples: int, other: int | None, sizes: Sizes, itemsize: int) -> str:
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


def sample_count(x: Any) -> int:
    """How many samples a batch holds.

    Raises:
        ValueError: If its tensors disagree.
    """
    sizes = {leaf.shape[0] for leaf in tree_leaves(x) if isinstance(leaf, Tensor) and leaf.dim()}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            f"Inputs must share one leading axis over at least one sample, got {sorted(sizes)}. Pass x[None] for one."
        )
    return int(sizes.pop())
