"""Which tensor of a checkpoint stands for which of another: names may differ by a prefix, a spelling, a tie or a head.

A prefix is only assumed where it is proven: without it, the names and shapes of one checkpoint are those of the other, and no other
prefix does the same. What stands on the shared part and differs between models is a head, which is kept apart and named.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from biascope.families import weights
from biascope.families.checkpoint import Checkpoint, Held, StoredTensor, read_settings
from biascope.families.weights import Params
from biascope.results.wording import listed

if TYPE_CHECKING:
    from biascope.families.libraries.spellings import Rules

_POOLER = "pooler"  # what transformers leaves out of a body, where no head reads it
#: First parts of the names of what stands on a shared part, in torchvision, timm and transformers; models of one base may differ there.
HEADS = (
    *("classifier", "classif", "score", "fc", "_fc", "head", "heads", "head_dist", "last_linear"),
    *(
        "cls",
        "lm_head",
        "qa_outputs",
        _POOLER,
        "pre_classifier",
        "vocab_transform",
        "vocab_layer_norm",
        "vocab_projector",
    ),
)
_WHO = "\0"  # stands for models in a sentence, and in no name
_WRAPPERS = {"module", "_orig_mod", "model", ""}  # of parallel training, torch.compile and Lightning
_FEW = 4  # pairs of prefixes that are looked at, the likeliest first
# What transformers and torch.compile write for one tensor in older and newer versions.
_SPELLINGS = (
    (re.compile(r"_orig_mod\."), ""),
    (re.compile(r"\bLayerNorm\.gamma$"), "LayerNorm.weight"),
    (re.compile(r"\bLayerNorm\.beta$"), "LayerNorm.bias"),
    (re.compile(r"\.weight_g$"), ".parametrizations.weight.original0"),
    (re.compile(r"\.weight_v$"), ".parametrizations.weight.original1"),
)
_COMPUTED = re.compile(r"(^|\.)(rotary_emb\.inv_freq|masked_bias)$")  # constants that older versions saved


@dataclass(frozen=True)
class Fitted:
    """A model under the names of a base.

    Attributes:
        model: As it is on disk.
        base: Name of the base.
        names: The model's name of each tensor of the base that it has.
        heads: The model's name of each tensor that is its own, by what the base would call it.
        absent: Tensors of the base that the model does not have, or has with a head of its own.
        constants: Tensors of the model that are no weights, and that the base lacks.
        ties: In the base or in the model, what is the same tensor as another.
        prefixes: What the names of the model begin with, and those of the base instead.
    """

    model: Checkpoint
    base: str
    names: Mapping[str, str]
    heads: Mapping[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    ties: Mapping[str, str] = field(default_factory=dict)
    prefixes: tuple[str, str] = ("", "")

    @property
    def plain(self) -> bool:
        """Whether the model has the names of the base, and no others."""
        return not (self.heads or self.absent or self.constants or self.ties) and all(
            here == there for here, there in self.names.items()
        )

    @property
    def shared(self) -> Checkpoint:
        """The model without its head, under the names of the base."""
        if self.plain:
            return self.model
        return replace(self.model, tensors={name: self.model.tensors[own] for name, own in sorted(self.names.items())})

    @property
    def brief(self) -> str:
        """The same in a few words, for the name of a network with these weights; empty if all names are the same."""
        removed, added = (prefix.rstrip(".") for prefix in self.prefixes)
        words = [f"prefix {removed} removed" * bool(removed), f"prefix {added} added" * bool(added)]
        words += [f"without its {_layers(self.heads.values())}"] if self.heads else []
        words += [f"{_layers(self.absent)} of {self.base}"] if self.absent else []
        words += [f"{alias} tied to {name}" for alias, name in self.ties.items()]
        return ", ".join(filter(None, words))

    def sentences(self, who: str) -> list[str]:
        """What a user should know of a model that is called so."""
        removed, added = (prefix.rstrip(".") for prefix in self.prefixes)
        found = []
        if removed and added:
            found.append(f"The names of {who} begin with {removed} where those of {self.base} begin with {added}.")
        elif removed or added:
            how = f"without their prefix {removed}" if removed else f"with the prefix {added} that {self.base} has"
            found.append(f"The names of {who} are read {how}.")
        if self.heads:
            found.append(f"Kept apart as a head and not merged: {_layers(self.heads)} of {who}.")
        if lacking := [name for name in self.absent if name not in self.heads]:
            found.append(f"Left as in {self.base}, since missing in {who}: {_layers(lacking)}.")
        for alias, name in self.ties.items():
            whose = self.base if alias in self.names else who
            found.append(f"In {whose}, {alias} is tied to {name}: both hold the same numbers.")
        if self.constants:
            found.append(f"Left out, since no weights: {_layers(self.constants)} of {who}.")
        return found


def told(fits: Sequence[Fitted]) -> list[str]:
    """What a user should know of several models; one sentence for all that it is true of.

    Example:
        >>> a, b = (Checkpoint(name, {"bert.w": Held(torch.ones(2))}) for name in "ab")
        >>> told(fitted([a, b], Checkpoint("base", {"w": Held(torch.ones(2))})))
        ['The names of a and b are read without their prefix bert.']
    """
    models: dict[str, list[str]] = {}
    for fit in fits:
        for sentence in fit.sentences(_WHO):
            models.setdefault(sentence, []).append(fit.model.label)
    return [sentence.replace(_WHO, listed(names)) for sentence, names in models.items()]


def fitted(models: Sequence[Checkpoint], base: Checkpoint, kept: Collection[str] = ()) -> list[Fitted]:
    """Models under the names of their base, each with its head apart.

    A layer that is a head in one model is a head in all.

    Args:
        models: Fine-tuned from the base.
        base: Whose names are used.
        kept: Names that need not fit.

    Returns:
        One for each model. Where a model does not fit, it has the names that come nearest, and whoever reads it lists what is wrong.

    Raises:
        ValueError: If names fit in two ways.
    """
    found = [_fit(model, base, kept) for model in models]
    apart = {name for fit in found for name in fit.absent if not _is_constant(base, name)}
    return [_without(fit, apart & fit.names.keys()) for fit in found]


def matched(loaded: Params, wanted: Params, source: str, *, headless: bool = False) -> Params:
    """The loaded weights under the wanted names, or an error that lists what does not fit.

    A prefix (``module.`` of a parallel wrapper) is removed or added if that makes the names fit, and other spellings are understood.

    Args:
        loaded: Weights.
        wanted: Those of the network.
        source: Where they are from.
        headless: Whether a head that the network lacks is left out.

    Raises:
        ValueError: Listing missing, extra and mis-shaped names; or if a weight is quantised or complex.
    """
    given = held(source, loaded)
    require_whole(given)
    fit = fitted([given], held("the network", wanted))[0]
    heads = {} if headless and not fit.absent else fit.heads
    loaded = {name: loaded[own] for name, own in {**fit.names, **heads}.items()}
    if problems := weights.misfits(loaded, wanted, types=False):
        raise ValueError(f"The weights in {source} must fit the network: {problems}. Pass the matching model.")
    for name, tensor in wanted.items():
        # A quantised number means nothing without its scale, and half of a complex one is another number.
        if tensor.is_floating_point() and not (loaded[name].is_floating_point() and loaded[name].dtype.itemsize > 1):
            raise ValueError(
                f"The weights in {source} must be floating-point numbers of 16 bits or more, but {name} is "
                f"{str(loaded[name].dtype).removeprefix('torch.')}. Convert them to float32 first: dequantise integers, and split "
                "complex numbers."
            )
    return {name: loaded[name] for name in wanted}


def unwrapped(model: Checkpoint) -> Checkpoint:
    """A checkpoint without what a wrapper puts before all of its names, for readers that know the names of their network.

    Example:
        >>> sorted(unwrapped(held("a", {"module._orig_mod.w": torch.ones(1), "module._orig_mod.b": torch.ones(1)})).tensors)
        ['b', 'w']
    """
    prefix = next((each for each in reversed(_common(model.tensors)) if set(each.split(".")) <= _WRAPPERS), "")
    return replace(model, tensors={name.removeprefix(prefix): each for name, each in model.tensors.items()})


def require_whole(model: Checkpoint) -> None:
    """Refuse an adapter where the weights of a network are needed.

    Raises:
        ValueError: If there are factors of an adapter.
    """
    if factors := [name for name in model.tensors if ".lora_" in name]:
        raise ValueError(
            f"{model.name} must hold the weights of a model, but holds an adapter ({factors[0]}). Name it as peft:FOLDER, or write the "
            "whole model first: biascope merge apply BASE ADAPTER=1 --out model.safetensors."
        )


def held(name: str, params: Params) -> Checkpoint:
    """Weights in memory, as a checkpoint."""
    return Checkpoint(name, {key: Held(tensor) for key, tensor in params.items()})


def _fit(model: Checkpoint, base: Checkpoint, kept: Collection[str]) -> Fitted:
    nearest = None
    for rules in _rules(model, base):
        found, wanted = (_spelled(each, kept, rules) for each in (model, base))
        ways = [_pair(model, base, found, wanted, prefixes, rules) for prefixes in _prefixes(found, wanted)]
        if (proven := _proven(model, base, [way.fit for way in ways if way.whole])) is not None:
            return proven
        nearest = nearest or next((way.fit for way in ways if 2 * way.alike >= len(wanted)), None)
    # What does not fit is listed by whoever needs it, under the names that come nearest and without what is a head anyway.
    if nearest is None:
        return Fitted(model, base.label, {name: name for name in model.tensors})
    (removed, added), named = nearest.prefixes, {own: name for name, own in nearest.names.items()}
    odd = {
        name
        for name, own in nearest.heads.items()
        if name in base.tensors and _shape(base, name)[1:] != _shape(model, own)[1:]
    }
    heads = {
        name: own
        for name, own in nearest.heads.items()
        if name not in odd and (not own.startswith(removed) or _is_head(name, added))
    }
    left = {own for own in model.tensors if own not in heads.values()}
    moved = {named.get(own) or added + own.removeprefix(removed): own for own in left}
    absent = tuple(name for name in nearest.absent if name not in odd and _is_head(name, added))
    return Fitted(model, base.label, moved, heads, absent, prefixes=nearest.prefixes)


def _proven(model: Checkpoint, base: Checkpoint, fits: Sequence[Fitted]) -> Fitted | None:
    """The one way in which names fit.

    Raises:
        ValueError: If there are several.
    """
    # A part of another way is no way of its own.
    whole = [fit for fit in fits if not any(fit.names.items() < other.names.items() for other in fits)]
    different = list({tuple(sorted(fit.names.items())): fit for fit in reversed(whole)}.values())
    if len(different) > 1:
        begins = {prefix for fit in different for prefix in fit.prefixes} - {""}
        raise ValueError(
            f"The names of {model.name} must fit those of {base.name} in one way, but fit with the prefixes {listed(sorted(begins))}. "
            "Save the part that was fine-tuned alone."
        )
    return different[0] if different else None


def _rules(model: Checkpoint, base: Checkpoint) -> Iterator[Rules | None]:
    """By what else names are read: by nothing, and where that does not suffice, by the library that wrote a configuration."""
    yield None
    from biascope.families.libraries.spellings import rules_of

    for each in (base, model):
        if each.path.name and (rules := rules_of(each.beside("."))) is not None:
            yield rules


def _spelled(model: Checkpoint, kept: Collection[str], rules: Rules | None) -> dict[str, str]:
    """The names of a checkpoint by their newest spelling, where these are different from each other."""
    found: dict[str, str] = {}
    for name in model.tensors:
        spelling = name
        for pattern, newer in _SPELLINGS:
            spelling = pattern.sub(newer, spelling)
        found[spelling if rules is None else rules.newest(spelling)] = name
    names = found if len(found) == len(model.tensors) else {name: name for name in model.tensors}
    return {spelling: name for spelling, name in names.items() if name not in kept}


def _prefixes(found: Mapping[str, str], wanted: Mapping[str, str]) -> list[tuple[str, str]]:
    """Pairs of prefixes without which many names are the same, most first. One of them begins all names of its checkpoint."""
    common = [_common(names) for names in (found, wanted)]
    votes: Counter[tuple[str, str]] = Counter()
    for name in found:
        for cut, prefix in itertools.product(_cuts(name), common[1]):
            votes[name[:cut], prefix] += prefix + name[cut:] in wanted
    for name in wanted:
        for cut, prefix in itertools.product(_cuts(name), common[0]):
            if name[:cut] not in common[1]:  # else counted above
                votes[prefix, name[:cut]] += prefix + name[cut:] in found
    ordered = sorted(votes.items(), key=lambda item: (-item[1], item[0]))
    return [pair for pair, count in ordered if count and not _end_alike(*pair)][:_FEW]


def _end_alike(removed: str, added: str) -> bool:
    """Whether two prefixes have their last part in common, so that it is none that differs."""
    last = removed.rpartition(".")[0].rpartition(".")[2]
    return bool(removed and added) and last == added.rpartition(".")[0].rpartition(".")[2]


def _cuts(name: str) -> Iterator[int]:
    yield 0
    yield from (match.end() for match in re.finditer(r"\.", name))


def _common(names: Collection[str]) -> list[str]:
    """Prefixes of whole parts that all names have.

    Example:
        >>> _common({"module.net.weight": "", "module.net.bias": ""})
        ['', 'module.', 'module.net.']
    """
    first, last = min(names, default=""), max(names, default="")
    shared = "".join(
        one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    )
    return [shared[:cut] for cut in _cuts(shared)]


class _Way(NamedTuple):
    """A way in which names may fit: whether it is proven, and how many names are alike."""

    fit: Fitted
    whole: bool
    alike: int


def _pair(
    model: Checkpoint,
    base: Checkpoint,
    found: Mapping[str, str],
    wanted: Mapping[str, str],
    prefixes: tuple[str, str],
    rules: Rules | None,
) -> _Way:
    """The pairs of two prefixes, proven if all that is left over is a head, a tie or no weight."""
    removed, added = prefixes
    inside = {name.removeprefix(removed): own for name, own in found.items() if name.startswith(removed)}
    parts = {name.removeprefix(added): own for name, own in wanted.items() if name.startswith(added)}
    both = {part: (parts[part], inside[part]) for part in parts if part in inside}
    other = {part for part, (here, there) in both.items() if _shape(base, here) != _shape(model, there)}
    names = {here: there for part, (here, there) in both.items() if part not in other}
    body = f"{rules.body}." if rules is not None and rules.body else ""
    body = body if any(part.startswith(body) for part in both) else ""

    def in_head(part: str) -> bool:
        return _in_head(part) or not part.startswith(body)

    ties: dict[str, str] = {}
    # A layer of which one tensor is another is another layer.
    apart = {weights.layer_of(part) for part in other}
    lacking = {part: own for part, own in parts.items() if part not in inside or part in other}
    extra = {part: own for part, own in inside.items() if part not in parts or part in other}
    for part in set(both) - other:
        if weights.layer_of(part) in apart and in_head(part):
            names.pop(both[part][0])
            lacking[part], extra[part] = both[part]
    outside = {name: own for name, own in found.items() if not name.startswith(removed)}
    beyond = {name: own for name, own in wanted.items() if not name.startswith(added)}
    own_names = set(names.values())
    for left in (lacking, beyond):
        ties |= _without_ties(base, left, names, other)
    names |= {alias: names[twin] for alias, twin in ties.items()}
    for left in (extra, outside):
        ties |= _without_ties(model, left, own_names, other)
    constants = [own for left in (extra, outside) for own in left.values() if _is_constant(model, own)]
    heads = {added + part: own for part, own in extra.items()} | outside
    heads = {name: own for name, own in heads.items() if own not in constants}
    absent = tuple(sorted([*lacking.values(), *beyond.values()]))
    fit = Fitted(model, base.label, names, heads, absent, tuple(constants), ties, prefixes)
    explained = all(
        in_head(part) and _shape(base, parts[part])[1:] == _shape(model, inside[part])[1:] for part in other
    )
    explained &= all(in_head(part) or _is_constant(base, own) for part, own in lacking.items())
    explained &= all(in_head(part) or own in constants for part, own in extra.items())
    apart_sizes = sum(_size(model, own) for own in heads.values()), sum(_size(base, own) for own in absent)
    size = sum(_size(base, own) for own in names)
    return _Way(fit, bool(names) and explained and size >= max(apart_sizes), len(both))


def _without_ties(model: Checkpoint, left: dict[str, str], among: Collection[str], other: set[str]) -> dict[str, str]:
    """Take tensors off those that are left over, where each is the same as one of others; both by name."""
    twins = {part: (own, _twin(model, own, among)) for part, own in left.items() if part not in other}
    found = {part: (own, twin) for part, (own, twin) in twins.items() if twin is not None}
    for part in found:
        del left[part]
    return dict(found.values())


def _without(fit: Fitted, apart: set[str]) -> Fitted:
    """The same with more layers counted among the head."""
    if not apart:
        return fit
    return replace(
        fit,
        names={name: own for name, own in fit.names.items() if name not in apart},
        heads={**fit.heads, **{name: fit.names[name] for name in apart}},
        absent=tuple(sorted({*fit.absent, *apart})),
    )


def _in_head(part: str) -> bool:
    """Whether a tensor is of a head by its name, which a wrapper may begin.

    Example:
        >>> [_in_head(name) for name in ("fc.weight", "model.fc.weight", "bert.pooler.dense.weight", "layer.fc.weight")]
        [True, True, True, False]
    """
    first, _, rest = part.replace("_orig_mod.", "").partition(".")
    second = rest.partition(".")[0]
    return first in HEADS or second == _POOLER or (first in _WRAPPERS and second in HEADS)


def _is_head(name: str, prefix: str) -> bool:
    return not name.startswith(prefix) or _in_head(name.removeprefix(prefix))


def _twin(model: Checkpoint, name: str, among: Collection[str]) -> str | None:
    """The one other matrix of a checkpoint that holds the same numbers, unless its configuration says that none is tied."""
    where = model.tensors[name]
    if len(where.shape) != 2 or not where.dtype.is_floating_point or _says_untied(model):
        return None
    likely = [each for each in among if each != name and _shape(model, each) == tuple(where.shape)]
    twins = [each for each in likely if _same_numbers(where, model.tensors[each])]
    return twins[0] if len(twins) == 1 else None


def _same_numbers(first: StoredTensor, second: StoredTensor) -> bool:
    """Whether two tensors hold the same numbers; constant ones prove nothing."""
    if first.dtype != second.dtype:
        return False
    most, constant = 2**18, True
    for one, two in zip(first.slices(most), second.slices(most), strict=True):
        if not torch.equal(one, two):
            return False
        constant &= bool((one == one[0]).all())
    return not constant


def _says_untied(model: Checkpoint) -> bool:
    path = model.beside("config.json")
    return model.path.name != "" and path.is_file() and read_settings(path).get("tie_word_embeddings") is False


def _is_constant(model: Checkpoint, name: str) -> bool:
    return not model.tensors[name].dtype.is_floating_point or bool(_COMPUTED.search(name))


def _shape(model: Checkpoint, name: str) -> tuple[int, ...]:
    return tuple(model.tensors[name].shape)


def _size(model: Checkpoint, name: str) -> int:
    return math.prod(model.tensors[name].shape)


def _layers(names: Iterable[str]) -> str:
    """The layers of tensors, a few by name."""
    layers = list(dict.fromkeys(map(weights.layer_of, names)))
    return listed(layers) if len(layers) <= _FEW else f"{', '.join(layers[:_FEW])} and {len(layers) - _FEW} others"
