"""LoRA adapters as what the model sees: the update ``s · B A`` of each weight, whatever its factors A and B are."""

# r rank · in, out inputs and outputs of a layer

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from biascope.editing.vectors import KIND
from biascope.families import weights
from biascope.families.checkpoint import Checkpoint, StoredTensor, read_settings

CONFIG = "adapter_config.json"
ADAPTER = "adapter"  # in the metadata: the hash of the adapter's file
_FACTOR = re.compile(
    r"(?P<layer>.+?)\.(?:lora_(?P<table>embedding_)?(?P<side>[AB])|lora_(?P<way>down|up))"
    r"(?:\.(?P<adapter>(?!weight$|bias$)[^.]+))?(?:\.weight)?"
)
# Adapters that are no product of two factors added to a weight, and what else such files hold.
_OTHER = re.compile(r"(^|[._])((lora|hada|lokr|ia3|oft|boft|vera|glora|randlora)_|prompt_embeddings$|trainable_tokens)")
_UNCHANGED_BASE = (True, False, None, "gaussian", "eva", "orthogonal")  # other initial factors are taken off the base


def is_adapter(model: Checkpoint) -> bool:
    """Whether a checkpoint holds an adapter instead of weights.

    Example:
        >>> [is_adapter(Checkpoint("", dict.fromkeys([name]))) for name in ("q.weight", "q.lora_A.weight", "q.hada_w1_a")]
        [False, True, True]
    """
    return any(_OTHER.search(name) for name in model.tensors) or "peft_type" in _config(model)


def require_no_adapter(model: Checkpoint, remedy: str) -> None:
    """Refuse an adapter where whole weights are needed."""
    if is_adapter(model):
        held = next((name for name in model.tensors if _OTHER.search(name)), CONFIG)
        layers = {found["layer"] for name in model.tensors if (found := _FACTOR.fullmatch(name))}
        if any(
            _layer_of(name) in layers and name.endswith(".weight") for name in model.tensors if not _OTHER.search(name)
        ):
            raise ValueError(
                f"{model.name} must hold whole weights, but holds factors beside them ({held}). The sum of two factors is not the sum "
                "of two updates. Add the factors to the weights, and save and load the model without them: model.merge_and_unload() "
                "of PEFT."
            )
        raise ValueError(
            f"{model.name} must hold the weights of a model, but holds an adapter ({held}). The sum of two factors is not the sum of "
            f"two updates. {remedy}"
        )


def updates(models: Sequence[Checkpoint]) -> tuple[list[Checkpoint], list[str]]:
    """The updates of adapters, by the name of the weight that each is added to; and in words what is left out.

    Args:
        models: With LoRA factors, as PEFT saves them, and ``adapter_config.json`` beside; or with a tensor ``alpha`` for each layer.
            A layer that only some of them adapt is zero in the others.

    Raises:
        ValueError: If one is another kind of adapter, if factors do not fit, or if the scale is not known.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     factors = {"q.lora_down.weight": torch.ones(1, 2), "q.lora_up.weight": torch.ones(3, 1), "q.alpha": torch.tensor(4.0)}
        ...     weights.save(factors, f"{folder}/a.safetensors")
        ...     (update,), _ = updates([Checkpoint.open(f"{folder}/a.safetensors")])
        ...     update.read("q.weight").tolist()
        [[4.0, 4.0], [4.0, 4.0], [4.0, 4.0]]
    """
    found, words = [], []
    for model in models:
        layers, others = _layers(model)
        found.append({f"{name}.weight": each for name, each in layers.items()})
        if others:
            words.append(
                f"{model.name} holds {', '.join(map(_plain, others))} whole, left out: pass the base first to compare them"
            )
    shapes = {name: each.shape for named in reversed(found) for name, each in named.items()}
    every = [{name: named.get(name) or Zero(shape, torch.float32) for name, shape in shapes.items()} for named in found]
    return [
        Checkpoint(model.name, dict(sorted(named.items())), {}, model.path)
        for model, named in zip(models, every, strict=True)
    ], words


def factors(model: Checkpoint) -> dict[str, dict[str, str]]:
    """The tensors of A (``"down"``) and B (``"up"``) of each layer, by its name in the file, whether or not both are there.

    Example:
        >>> factors(Checkpoint("", dict.fromkeys(["q.lora_A.weight", "q.lora_B.weight", "q.bias"])))
        {'q': {'down': 'q.lora_A.weight', 'up': 'q.lora_B.weight'}}
    """
    pairs: dict[str, dict[str, str]] = {}
    for name in model.tensors:
        if found := _FACTOR.fullmatch(name):
            side = {"A": "down", "B": "up"}.get(found["side"], found["way"])
            pairs.setdefault(found["layer"], {})[side] = name
    return pairs


def on_base(model: Checkpoint, base: Checkpoint) -> Checkpoint:
    """An adapter as a task vector of its base: its updates, zero for all other weights; another checkpoint as it is.

    Weights that the adapter has whole (``modules_to_save``, trained biases) count by their difference from the base's.

    Raises:
        ValueError: If the adapter does not fit the base.
    """
    if not is_adapter(model):
        return model
    layers, others = _layers(model)
    rename = _names_in(base, model, [f"{name}.weight" for name in layers])
    changes: dict[str, StoredTensor] = {}
    for name, layer in layers.items():
        place = rename(f"{name}.weight")
        changes[place] = layer.fitting(base.tensors[place].shape, base.tensors[place].dtype, f"{name} of {model.name}")
    for name in others:
        place, whole = rename(_plain(name)), model.tensors[name]
        place = place if place in base.tensors else _plain(name)
        start = base.tensors.get(place)
        if start is None or tuple(start.shape) != tuple(whole.shape):
            changes[place] = whole  # told by what compares it with the base
        elif weights.is_edited(place, start):
            changes[place] = Replaced(whole, start)
    for name, tensor in base.tensors.items():
        if name not in changes and weights.is_edited(name, tensor):
            changes[name] = Zero(tuple(tensor.shape), weights.working_type(tensor.dtype))
    about = {"kind": KIND, ADAPTER: model.fingerprint()}
    return Checkpoint(model.name, dict(sorted(changes.items())), about, model.path)


@dataclass(frozen=True, eq=False)
class Update:
    """``s · B A`` of one layer, computed row by row.

    Attributes:
        model: The file of the factors.
        down: Name of A, ``(r, in, …)``.
        up: Name of B, ``(out, r, …)``.
        scale: s.
        shape: ``(out, in, …)``, or ``(in, out)`` if turned.
        turned: Whether the weight is stored as ``(in, out)``, as embeddings and GPT-2's layers are.
        dtype: Type of the product.
    """

    model: Checkpoint
    down: str
    up: str
    scale: float
    shape: tuple[int, ...]
    turned: bool
    dtype: torch.dtype = torch.float32

    def slices(self, most: int) -> Iterator[Tensor]:
        """Its values in order, at most so many at once."""
        down, up = (self.model.read(name).to(self.dtype).flatten(1) for name in (self.down, self.up))
        first, second = (down.T, up.T) if self.turned else (up, down)
        columns, total = second.shape[1], first.shape[0] * second.shape[1]
        for begin in range(0, total, most):
            end = min(total, begin + most)
            low = begin // columns
            rows = (self.scale * first[low : -(-end // columns)]) @ second
            yield rows.flatten()[begin - low * columns : end - low * columns].clone()

    def fitting(self, shape: tuple[int, ...], dtype: torch.dtype, whose: str) -> Update:
        """The same for a weight of a shape and a type.

        Raises:
            ValueError: If the update has another shape.
        """
        turned = self.turned
        if tuple(shape) != self.shape and len(shape) == 2 and tuple(shape) == self.shape[::-1]:
            turned = not turned
        elif tuple(shape) != self.shape:
            raise ValueError(
                f"The update of {whose} must have the shape of its weight, {tuple(shape)}, got {self.shape}. Pass the base that "
                "the adapter was trained on."
            )
        return Update(self.model, self.down, self.up, self.scale, tuple(shape), turned, weights.working_type(dtype))


@dataclass(frozen=True, eq=False)
class Replaced:
    """What a weight that an adapter has whole differs by from the base's."""

    whole: StoredTensor
    base: StoredTensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.base.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the difference."""
        return weights.working_type(self.base.dtype)

    def slices(self, most: int) -> Iterator[Tensor]:
        """Its values in order, at most so many at once."""
        for whole, start in zip(self.whole.slices(most), self.base.slices(most), strict=True):
            yield whole.to(self.dtype) - start.to(self.dtype)


@dataclass(frozen=True)
class Zero:
    """The change of a weight that an adapter leaves as it is."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def slices(self, most: int) -> Iterator[Tensor]:
        """Its values in order, at most so many at once."""
        total = math.prod(self.shape)
        yield from (torch.zeros(min(most, total - begin), dtype=self.dtype) for begin in range(0, total, most))


def _config(model: Checkpoint) -> dict[str, Any]:
    path = model.beside(CONFIG)
    return read_settings(path) if path.is_file() else {}


def _layers(model: Checkpoint) -> tuple[dict[str, Update], list[str]]:
    """The update of each layer, and the names of what else the file holds, where all of it is understood."""
    config = _config(model)
    _require_plain(model, config)
    matches = {name: found for name in model.tensors if (found := _FACTOR.fullmatch(name))}
    alphas = {name.removesuffix(".alpha"): name for name in model.tensors if name.endswith(".alpha")}
    others = [name for name in model.tensors if name not in matches and name not in alphas.values()]
    if strange := [name for name in others if _OTHER.search(name)] or ([model.name] if not matches else []):
        raise ValueError(
            f"{model.name} must be a LoRA adapter whose update is a product of two factors, but holds {strange[0]}. Merge it into its "
            "base first: model.merge_and_unload() of PEFT."
        )
    if len(kinds := sorted({str(found["adapter"]) for found in matches.values()})) > 1:
        raise ValueError(f"{model.name} must hold one adapter, got {', '.join(kinds)}. Save one of them.")
    pairs = factors(model)
    if whole := [name for name in others if _layer_of(name) in pairs and name.endswith(".weight")]:
        raise ValueError(
            f"{model.name} must hold an adapter or a model, but {whole[0]} has factors beside it, so the model sees a sum. Merge the "
            "factors into the weights first: model.merge_and_unload() of PEFT."
        )
    layers = {}
    for layer, pair in pairs.items():
        if pair.keys() != {"down", "up"}:
            raise ValueError(f"{model.name} must hold both factors of {layer}, got one. Save the adapter again.")
        down, up = (tuple(model.tensors[pair[side]].shape) for side in ("down", "up"))
        if len(down) < 2 or len(up) < 2 or down[0] != up[1] or any(length != 1 for length in up[2:]):
            raise ValueError(
                f"The factors of {layer} in {model.name} must be (r, in) and (out, r), got {down} and {up}. Merge the adapter into its "
                "base first."
            )
        turned = bool(matches[pair["down"]]["table"]) or (bool(config.get("fan_in_fan_out")) and len(down) == 2)
        shape = (up[0], *down[1:])
        name = layer.removeprefix("base_model.model.")
        scale = _scale(model, config, name, down[0], alphas.get(layer))
        layers[name] = Update(model, pair["down"], pair["up"], scale, shape[::-1] if turned else shape, turned)
    return layers, others


def _require_plain(model: Checkpoint, config: Mapping[str, Any]) -> None:
    """Refuse an adapter whose settings make its change another than ``s · B A``."""
    kind = config.get("peft_type", "LORA")
    unusual = {
        f"peft_type {kind}": kind != "LORA",
        "use_dora": bool(config.get("use_dora")),
        "layer_replication": bool(config.get("layer_replication")),
        f"init_lora_weights {config.get('init_lora_weights')}": config.get("init_lora_weights") not in _UNCHANGED_BASE,
    }
    if named := [name for name, present in unusual.items() if present]:
        raise ValueError(
            f"{model.name} must be a LoRA adapter that adds a product of factors to its base, but {CONFIG} has {named[0]}. Merge it "
            "into its base first: model.merge_and_unload() of PEFT."
        )


def _scale(model: Checkpoint, config: Mapping[str, Any], layer: str, rank: int, stored: str | None) -> float:
    """By what the product is multiplied: α/r, or α/√r where the ranks are stabilised."""
    patterns = config.get("alpha_pattern") or {}
    usual = config.get("lora_alpha")
    alpha = next((each for key, each in patterns.items() if re.fullmatch(rf"(.*\.)?({key})", layer)), usual)
    if stored is not None:
        alpha = float(model.read(stored))
    if alpha is None:
        raise ValueError(
            f"The scale of {model.name} must be known, but {CONFIG} with lora_alpha is not beside it. Write {model.beside(CONFIG)}: "
            f'{{"peft_type": "LORA", "lora_alpha": {rank}}} for a scale of 1.'
        )
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise ValueError(f"lora_alpha of {model.name} must be a finite number, got {alpha!r}. Save the adapter again.")
    return float(alpha) / (rank**0.5 if config.get("use_rslora") else rank)


def _plain(name: str) -> str:
    """The name that a weight has in the model, without what PEFT wraps around it.

    Example:
        >>> _plain("base_model.model.head.modules_to_save.default.weight"), _plain("base_model.model.q.base_layer.bias")
        ('head.weight', 'q.bias')
    """
    name = re.sub(r"\.modules_to_save(\.[^.]+(?=\.))?", "", name.removeprefix("base_model.model."))
    return name.replace(".base_layer.", ".")


def _layer_of(name: str) -> str:
    return name.rpartition(".")[0].removesuffix(".base_layer")


def _names_in(base: Checkpoint, model: Checkpoint, names: list[str]) -> Callable[[str], str]:
    """From the names of an adapter to those of the base, which may have more or fewer parts in front."""
    parts = min(name.count(".") for name in names)
    for cut in range(parts):
        if all(_short(name, cut) in base.tensors for name in names):
            return lambda name: _short(name, cut)
    longer = [each.removesuffix(names[0]) for each in base.tensors if each.endswith(f".{names[0]}")]
    for prefix in longer:
        if all(prefix + name in base.tensors for name in names):
            return lambda name: prefix + name
    absent = next((name for name in names if name not in base.tensors), names[0])
    raise ValueError(
        f"{base.name} must have every weight that {model.name} adapts, but lacks {absent}. Pass the base that it was trained on."
    )


def _short(name: str, cut: int) -> str:
    return ".".join(name.split(".")[cut:])
