"""What an adapter's own files say: which layers it changes, with which scale, and on which base it was trained."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from biascope.editing.adapters import CONFIG, factors
from biascope.editing.doctor.diagnosis import CLEAN, FAULT, UNSEEN, WARNING, Sign
from biascope.editing.doctor.folder import Folder
from biascope.families.checkpoint import Checkpoint
from biascope.results.wording import listed

_WRAPPER = "base_model.model."
_QUANTISED = re.compile(r"(4[-_]?bit|8[-_]?bit|bnb|gptq|awq|nf4|int[48])", re.IGNORECASE)
_CARD = "quantization config was used during training"  # in README.md, as PEFT writes it
_FEW = 4  # layers that are named


@dataclass(frozen=True)
class LoraVariant:
    """A change of LoRA that a plain sum of factors misses.

    Attributes:
        name: Its name.
        setting: What switches it on in ``adapter_config.json``.
        ends: How the names of its own tensors end.
    """

    name: str
    setting: str
    ends: tuple[str, ...]


VARIANTS = (
    LoraVariant("DoRA", "use_dora", (".lora_magnitude_vector", ".lora_magnitude_vector.weight")),
    LoraVariant("lora_bias", "lora_bias", (".lora_B.bias",)),
    LoraVariant("KaSA", "kasa_config", (".lora_diag",)),
)


def variants_of(folder: Folder) -> list[LoraVariant]:
    """The variants that an adapter uses, by its settings or its tensors."""
    return [
        variant
        for variant in VARIANTS
        if folder.adapter_config.get(variant.setting) or any(name.endswith(variant.ends) for name in folder.tensors)
    ]


def layers_of(folder: Folder) -> dict[str, dict[str, str]]:
    """The factors of each layer, by the layer's name in the model."""
    if folder.checkpoint is None:
        return {}
    return {layer.removeprefix(_WRAPPER): pair for layer, pair in factors(folder.checkpoint).items()}


def signs_of_scale(folder: Folder, base: Folder | None) -> Iterator[Sign]:
    """Whether alpha and all layers that the settings name are there."""
    layers, config = layers_of(folder), folder.adapter_config
    if not layers:
        return
    found = list(_alpha(folder, config))
    found += _targets(folder, list(layers), config)
    if base is not None and base.checkpoint is not None:
        found += _coverage(folder, list(layers), config, base)
    yield from found
    if not found:
        yield Sign("alpha_lost", CLEAN, f"{folder.name} has its alpha, and layers for all of its target_modules.")


def _alpha(folder: Folder, config: Mapping[str, Any]) -> Iterator[Sign]:
    stored = any(name.endswith(".alpha") for name in folder.tensors)
    alpha, file = config.get("lora_alpha"), folder.file(CONFIG)
    if stored or CONFIG in dict(folder.problems):
        return
    if alpha is None:
        says = f"{folder.name} has no lora_alpha: loaders take a default, so the scale of its update is unknown."
        yield Sign("alpha_lost", FAULT, says, file, "lora_alpha", "Write the alpha of the training there.")
    elif alpha == 0:
        says = f"lora_alpha of {folder.name} is 0: its update counts as nothing."
        yield Sign("alpha_lost", FAULT, says, file, "lora_alpha", "Write the alpha of the training there.")


def _targets(folder: Folder, layers: Sequence[str], config: Mapping[str, Any]) -> Iterator[Sign]:
    targets = config.get("target_modules")
    if not isinstance(targets, list):
        return
    absent = sorted(str(target) for target in targets if not any(_is_target(layer, str(target)) for layer in layers))
    if absent:
        says = f"{folder.name} has no factors for {listed(absent)}, which its target_modules name: layers were lost in saving."
        remedy = "Save the adapter again with model.save_pretrained of PEFT."
        yield Sign("alpha_lost", FAULT, says, folder.file(CONFIG), "target_modules", remedy)


def _coverage(folder: Folder, layers: Sequence[str], config: Mapping[str, Any], base: Folder) -> Iterator[Sign]:
    """Layers of the base that the settings name and the adapter lacks."""
    targets = config.get("target_modules")
    narrowed = any(config.get(key) for key in ("layers_to_transform", "exclude_modules", "rank_pattern"))
    if not isinstance(targets, list) or narrowed:
        return
    named = {
        name.removesuffix(".weight")
        for name, tensor in base.tensors.items()
        if name.endswith(".weight") and len(tensor.shape) >= 2
        if any(_is_target(name.removesuffix(".weight"), str(target)) for target in targets)
    }
    lacking = sorted(layer for layer in named if not any(_same(layer, own) for own in layers))
    if lacking and len(lacking) < len(named):
        says = (
            f"{folder.name} covers {len(named) - len(lacking)} of the {len(named)} layers that its target_modules name in "
            f"{base.name}; {_few(lacking)} {'is' if len(lacking) == 1 else 'are'} missing."
        )
        remedy = "If it was trained on all of them, save it again with model.save_pretrained of PEFT."
        yield Sign("alpha_lost", FAULT, says, folder.file(), lacking[0], remedy)


def signs_of_fit(folder: Folder, base: Folder | None) -> Iterator[Sign]:
    """Whether the base has the layers of an adapter, under their names."""
    layers = list(layers_of(folder))
    if not layers:
        return
    if base is None or base.checkpoint is None:
        yield Sign("no_module", UNSEEN, f"{folder.name} is compared with its base: pass --base.")
        return
    if folder.adapter_config.get("target_parameters"):
        yield Sign(
            "no_module", UNSEEN, f"{folder.name} adapts parameters of experts, whose names differ between versions."
        )
        return
    own = {name.rpartition(".")[0] for name in base.tensors}
    exact = [layer for layer in layers if layer in own]
    if odd := _other_sizes(folder, base, exact):
        name, wanted, came = odd[0]
        says = f"{name} of {folder.name} is an update of the shape {came}, but the weight of {base.name} has {wanted}."
        remedy = "Pass the base that the adapter was trained on."
        yield Sign("no_module", FAULT, says, folder.file(), layers_of(folder)[name]["up"], remedy)
        return
    if len(exact) == len(layers):
        yield Sign("no_module", CLEAN, f"{base.name} has all {len(layers)} layers that {folder.name} adapts.")
        return
    ends = _by_last_part(own)
    near = {layer: _nearest(layer, ends) for layer in layers if layer not in own}
    prefixes = {prefix for pair in near.values() if pair is not None for prefix in (pair,)}
    file, remedy = folder.file(), "Pass the base that the adapter was trained on."
    absent = sorted(layer for layer, pair in near.items() if pair is None)
    if len(absent) == len(layers):
        says = f"{folder.name} fits none of its {len(layers)} layers in {base.name}, such as {absent[0]}: it would change nothing."
        yield Sign("no_module", FAULT, says, file, absent[0], remedy)
    elif absent:
        says = f"{base.name} lacks {len(absent)} of the {len(layers)} layers that {folder.name} adapts, such as {absent[0]}."
        yield Sign("no_module", FAULT, says, file, absent[0], remedy)
    elif not exact and len(prefixes) == 1 and _is_body(next(iter(prefixes))):
        words = f"{base.name} has all {len(layers)} layers that {folder.name} adapts, but for the prefix of its class."
        yield Sign("no_module", CLEAN, words)
    else:
        removed, added = next(iter(sorted(prefixes)))
        says = (
            f"{folder.name} names its layers {removed or 'without prefix'}…, but {base.name} names them {added or 'without prefix'}…: "
            f"a loader that compares names applies {'none' if not exact else f'only {len(exact)}'} of {len(layers)} and says nothing."
        )
        remedy = "Rename the layers in the adapter, or load it with the class that it was trained on, and merge there."
        yield Sign("no_module", FAULT, says, file, layers[0], remedy)


def _other_sizes(
    folder: Folder, base: Folder, layers: Sequence[str]
) -> Sequence[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Layers whose matrices have another size in the base than the adapter's updates, with both shapes."""
    pairs, found = layers_of(folder), []
    for name in layers:
        weight = base.tensors.get(f"{name}.weight")
        shapes = [tuple(folder.tensors[each].shape) for each in pairs[name].values()]
        if weight is None or base.quantised or [len(weight.shape), *map(len, shapes)] != [2, 2, 2]:
            continue
        came = folder.tensors[pairs[name]["up"]].shape[0], folder.tensors[pairs[name]["down"]].shape[1]
        if sorted(came) != sorted(weight.shape):  # embeddings and layers of GPT-2 are stored the other way round
            found.append((name, tuple(weight.shape), came))
    return found


def _by_last_part(names: set[str]) -> dict[str, list[str]]:
    ends: dict[str, list[str]] = {}
    for name in names:
        ends.setdefault(name.rpartition(".")[2], []).append(name)
    return ends


def _nearest(layer: str, ends: Mapping[str, Sequence[str]]) -> tuple[str, str] | None:
    """What the name of a layer begins with, and what that of the base's begins with instead, where the rest is the same."""
    parts = layer.split(".")
    found = None
    for other in ends.get(parts[-1], ()):
        theirs = other.split(".")
        same = 0
        while same < min(len(parts), len(theirs)) and parts[-1 - same] == theirs[-1 - same]:
            same += 1
        least = 2 if min(len(parts), len(theirs)) > 1 else 1
        # The number of a block must agree too, so that another block is no match.
        if same < least or any(part.isdigit() for part in (*parts[:-same], *theirs[:-same])):
            continue
        pair = (".".join(parts[: len(parts) - same]), ".".join(theirs[: len(theirs) - same]))
        if found is None or len(pair[0]) + len(pair[1]) < len(found[0]) + len(found[1]):
            found = pair
    return found


def _is_body(prefixes: tuple[str, str]) -> bool:
    """Whether two prefixes differ by the name of a body, which transformers adds and removes when it loads a model."""
    removed, added = prefixes
    return not (removed and added) and "." not in removed + added and "language_model" not in removed + added


def signs_of_quantised_base(folder: Folder, base: Folder | None) -> Iterator[Sign]:
    """Whether an adapter was trained on weights of few bits, which the base at hand does not have."""
    config = folder.adapter_config
    named = str(config.get("base_model_name_or_path") or "")
    remedy = (
        "Quantise and dequantise the base as in training, and add the adapter to that; or test the merged model beside the base "
        "with the adapter."
    )
    plain = base is not None and not base.quantised
    where = f"{base.name} is not" if plain and base is not None else "a base of 16 bits is not"
    card = folder.path / "README.md"
    told = card.read_text(encoding="utf-8", errors="replace") if folder.path.is_dir() and card.is_file() else ""
    bits = re.search(r"load_in_([48])bit: True", told)
    if base is not None and base.quantised:
        says = f"{base.name} is quantised ({base.quantised}): a merge with it rounds the update again."
        yield Sign("quantised_base", WARNING, says, base.file("config.json"), "quantization_config", remedy)
    elif _CARD in told and bits:
        says = f"{folder.name} was trained on a base of {bits[1]} bits, and {where}: merged, the error of quantising remains."
        yield Sign("quantised_base", WARNING, says, str(card), "load_in_4bit", remedy)
    elif match := _QUANTISED.search(named.rpartition("/")[2]):
        says = (
            f"{folder.name} was trained on {named} ({match[0]}), and {where}: merged, the error of quantising remains."
        )
        yield Sign("quantised_base", WARNING, says, folder.file(CONFIG), "base_model_name_or_path", remedy)
    elif config.get("init_lora_weights") == "loftq" or config.get("loftq_config"):
        says = f"{folder.name} was started by LoftQ for a quantised base, and {where}."
        yield Sign("quantised_base", WARNING, says, folder.file(CONFIG), "loftq_config", remedy)
    elif _CARD in told:
        yield Sign(
            "quantised_base", CLEAN, f"README.md of {folder.name} says how its base was loaded: not in few bits."
        )
    elif plain and base is not None and named and named.rstrip("/").rpartition("/")[2] == base.name:
        words = f"{folder.name} names {base.name} as its base, which is not quantised. Quantising while loading leaves no trace."
        yield Sign("quantised_base", CLEAN, words)
    else:
        yield Sign("quantised_base", UNSEEN, f"{folder.name} does not say how its base was loaded.")


def signs_of_zeros(folder: Folder) -> Iterator[Sign]:
    """Whether an adapter changes nothing, because one of its factors is 0."""
    if folder.checkpoint is None:
        return
    pairs = {name: pair for name, pair in layers_of(folder).items() if len(pair) == 2}
    empty = [name for name, pair in pairs.items() if any(_is_zero(folder.checkpoint, each) for each in pair.values())]
    if not pairs:
        return
    if len(empty) == len(pairs):
        says = f"All {len(pairs)} updates of {folder.name} are 0, since B is: it was not trained, or an untrained state was saved."
        remedy = "Save the adapter after training, from the model that was trained."
        yield Sign("no_change", FAULT, says, folder.file(), pairs[empty[0]]["up"], remedy)
    elif empty:
        says = f"{len(empty)} of {len(pairs)} updates of {folder.name} are 0, such as {_few(empty)}."
        remedy = "Check that these layers were trained."
        yield Sign("no_change", WARNING, says, folder.file(), pairs[empty[0]]["up"], remedy)
    else:
        yield Sign("no_change", CLEAN, f"All {len(pairs)} updates of {folder.name} are other than 0.")


def signs_of_variants(merged: Folder | None, sources: Sequence[Folder], numbers: bool) -> Iterator[Sign]:
    """Whether a combined adapter still has what DoRA, a bias or KaSA adds to LoRA."""
    used = {variant.name: variant for source in sources for variant in variants_of(source)}
    if merged is None or not merged.adapted:
        return
    for variant in {**used, **{each.name: each for each in variants_of(merged)}}.values():
        whose = listed([source.name for source in sources if variant in variants_of(source)]) or "a source"
        file = merged.file(CONFIG)
        remedy = "Merge each adapter into the base with merge_and_unload() of PEFT, and merge the whole models."
        single = len(sources) == 1 and sources[0].weight in (None, 1.0)
        if single and numbers and _same_tensors(merged, sources[0], variant.ends):
            yield Sign("variant_lost", CLEAN, f"{merged.name} has the {variant.name} of {whose}.")
            continue
        says = f"{merged.name} combines adapters with {variant.name} ({whose}), which add_weighted_adapter of PEFT does not combine."
        if single and numbers:
            says = f"{merged.name} has not the {variant.name} of {whose}, which add_weighted_adapter of PEFT does not carry over."
        yield Sign("variant_lost", FAULT, says, file, variant.setting, remedy)
    config = merged.adapter_config
    unknown = not numbers or not sources or (len(sources) > 1 and any(source.weight is None for source in sources))
    if unknown and config.get("use_rslora") and config.get("lora_alpha") == config.get("r"):
        says = (
            f"{merged.name} has use_rslora with lora_alpha = r = {config.get('r')}, as add_weighted_adapter of PEFT writes it: its "
            "update is then √r times too large."
        )
        remedy = (
            "Pass the adapters that it was made from with their weights (A=0.5) to be sure, or set use_rslora to false."
        )
        yield Sign("variant_lost", WARNING, says, merged.file(CONFIG), "use_rslora", remedy)


def _same_tensors(first: Folder, second: Folder, ends: tuple[str, ...]) -> bool:
    """Whether two folders have the same tensors under the names with these ends."""
    one, two = ({name for name in each.tensors if name.endswith(ends)} for each in (first, second))
    if one != two or not one or first.checkpoint is None or second.checkpoint is None:
        return False
    return all(torch.equal(first.checkpoint.read(name), second.checkpoint.read(name)) for name in one)


def _is_zero(checkpoint: Checkpoint, name: str) -> bool:
    return all(not bool(part.count_nonzero()) for part in checkpoint.slices(name))


def _is_target(layer: str, target: str) -> bool:
    return layer == target or layer.endswith(f".{target}")


def _same(layer: str, own: str) -> bool:
    return layer == own or layer.endswith(f".{own}") or own.endswith(f".{layer}")


def _few(names: Sequence[str]) -> str:
    return (
        listed(list(names[:_FEW]))
        if len(names) <= _FEW
        else f"{', '.join(names[:_FEW])} and {len(names) - _FEW} others"
    )
