"""Mixtures of experts: how many there are, and in which layout an adapter of them was saved."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from biascope.editing.adapters import CONFIG
from biascope.editing.doctor.adapters import layers_of
from biascope.editing.doctor.diagnosis import CLEAN, FAULT, UNSEEN, WARNING, Sign
from biascope.editing.doctor.folder import BASE, MODEL_CONFIG, Folder

_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_ONE = re.compile(r"(?P<layer>.*?)\.experts\.(?P<number>\d+)\.")
_FUSED = re.compile(r"\.experts\.[a-z_]*proj(\.weight)?$")
_CORRECTED = (0, 19, 1)  # version of PEFT from which factors of experts are (out, in) as in a linear layer


def signs_of_experts(folders: Sequence[Folder]) -> Iterator[Sign]:
    """Whether the experts of each folder are as many as its settings say, and adapters of them fit."""
    base = next((each for each in folders if each.role == BASE), None)
    for folder in folders:
        if folder.adapted:
            yield from _of_adapter(folder, base)
        else:
            yield from _of_model(folder, base)


def _of_model(folder: Folder, base: Folder | None) -> Iterator[Sign]:
    counts, fused = _experts_in(folder)
    said, key = _said(folder)
    if not counts and said is None:
        return
    if counts and said is not None and set(counts.values()) != {said}:
        layer, count = next((layer, count) for layer, count in counts.items() if count != said)
        says = f"{folder.name} has {count} experts in {layer}, but config.json says {said}: they do not load, or are left random."
        remedy = "Save the model again with the version of transformers that it was trained with, then merge."
        yield Sign("experts", FAULT, says, folder.file(MODEL_CONFIG), key, remedy)
        return
    if base is not None and base is not folder and base.checkpoint is not None and folder.checkpoint is not None:
        theirs, others = _experts_in(base)
        if theirs and counts and fused != others:
            how = ("in one tensor", "one by one")
            says = (
                f"{folder.name} holds its experts {how[not fused]}, {base.name} {how[not others]}: names do not match."
            )
            remedy = "Load and save both with one version of transformers, then merge."
            yield Sign("experts", FAULT, says, folder.file(), next(iter(counts)), remedy)
            return
        if theirs and counts and theirs != counts:
            says = f"{folder.name} has {sum(counts.values())} experts, {base.name} has {sum(theirs.values())}."
            yield Sign("experts", FAULT, says, folder.file(), next(iter(counts)), "Merge models with the same experts.")
            return
    if counts and said is not None:
        yield Sign("experts", CLEAN, f"{folder.name} has {said} experts in each layer, as config.json says.")


def _of_adapter(folder: Folder, base: Folder | None) -> Iterator[Sign]:
    config, layers = folder.adapter_config, layers_of(folder)
    experts = {name: pair for name, pair in layers.items() if ".experts" in f".{name}" and len(pair) == 2}
    if not experts:
        return
    if not config.get("target_parameters"):
        counts = {match["number"] for name in experts if (match := _ONE.match(f"{name}."))}
        if base is not None and base.checkpoint is not None and _experts_in(base)[1] and counts:
            says = f"{folder.name} adapts experts one by one, and {base.name} holds them in one tensor: the adapter does not apply."
            remedy = "Use the version of transformers that the adapter was trained with."
            yield Sign("experts", FAULT, says, folder.file(), next(iter(experts)), remedy)
        return
    rank, version = config.get("r"), str(config.get("peft_version") or "")
    sizes = _sizes(base) if base is not None else None
    remedy = (
        f"Convert the factors, or merge with the version of PEFT that wrote them{f' ({version})' if version else ''}."
    )
    if sizes is None:
        if older := _is_older(version):
            says = f"PEFT {version} wrote {folder.name}: before 0.19.1, factors of experts had inputs and outputs exchanged."
            yield Sign("experts", WARNING, says, folder.file(CONFIG), "peft_version", remedy)
        else:
            why = f"For {folder.name}, config.json of its base has the sizes of experts: pass --base."
            yield Sign(
                "experts",
                UNSEEN if older is None else CLEAN,
                why if older is None else f"PEFT {version} wrote {folder.name}.",
            )
        return
    hidden, inner, count = sizes
    right, exchanged = {(hidden, 2 * inner), (inner, hidden)}, {(2 * inner, hidden), (hidden, inner)}
    turned = [
        name for name, pair in experts.items() if (size := _size(folder, pair)) in exchanged and size not in right
    ]
    unclear = [name for name, pair in experts.items() if _size(folder, pair) in exchanged & right]
    for name, pair in experts.items():
        rows = folder.tensors[pair["down"]].shape[0]
        if isinstance(rank, int) and rank and rows != rank * count and not config.get("rank_pattern"):
            says = f"{folder.name} has factors of {rows / rank:g} experts in {name}, but {base.name if base else ''} has {count}."
            yield Sign("experts", FAULT, says, folder.file(), pair["down"], "Pass the base that it was trained on.")
            return
    if turned or (unclear and _is_older(version)):
        name = (turned or unclear)[0]
        down, up = (tuple(folder.tensors[experts[name][side]].shape) for side in ("down", "up"))
        says = (
            f"The factors of {name} in {folder.name} have inputs and outputs exchanged ({down} and {up}), as PEFT before 0.19.1 wrote "
            "them: later versions fail, or add something else."
        )
        place = (folder.file(), experts[name]["down"]) if turned else (folder.file(CONFIG), "peft_version")
        yield Sign("experts", FAULT, says, *place, remedy)
    elif all(_size(folder, pair) in right for pair in experts.values()) and not (
        unclear and _is_older(version) is None
    ):
        yield Sign("experts", CLEAN, f"The factors of {folder.name} fit {count} experts with {hidden} features.")
    else:
        yield Sign(
            "experts", UNSEEN, f"The factors of experts in {folder.name} have sizes that config.json does not explain."
        )


def _size(folder: Folder, pair: dict[str, str]) -> tuple[int, int]:
    """Inputs and outputs of an expert, as an adapter has them."""
    return folder.tensors[pair["down"]].shape[1], folder.tensors[pair["up"]].shape[0]


def _experts_in(folder: Folder) -> tuple[dict[str, int], bool]:
    """The number of experts of each layer, and whether one tensor holds all of a layer."""
    numbers: dict[str, set[int]] = {}
    fused: dict[str, int] = {}
    for name, tensor in folder.tensors.items():
        if match := _ONE.match(name):
            numbers.setdefault(match["layer"], set()).add(int(match["number"]))
        elif _FUSED.search(name) and len(tensor.shape) == 3:
            fused[name.partition(".experts.")[0]] = tensor.shape[0]
    return ({layer: len(each) for layer, each in numbers.items()}, False) if numbers else (fused, True)


def _said(folder: Folder) -> tuple[int | None, str]:
    for key in _COUNTS:
        if isinstance(count := folder.model_setting(key), int):
            return count, key
    return None, ""


def _sizes(base: Folder) -> tuple[int, int, int] | None:
    """Features, inner units of an expert, and number of experts."""
    inner = base.model_setting("moe_intermediate_size") or base.model_setting("intermediate_size")
    hidden, count = base.model_setting("hidden_size"), _said(base)[0]
    return (hidden, inner, count) if isinstance(hidden, int) and isinstance(inner, int) and count is not None else None


def _is_older(version: str) -> bool | None:
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return None if numbers is None else tuple(map(int, numbers.groups())) < _CORRECTED
