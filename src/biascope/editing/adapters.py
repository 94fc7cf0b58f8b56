"""LoRA adapters as what the model sees: the update ``s · B A`` of each weight, whatever its factors A and B are."""

# r rank · in, out inputs and outputs of a layer

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from biascope.editing.vectors import KIND
from biascope.families import weights
from biascope.families.checkpoint import Checkpoint, StoredTensor, read_settings

CONFIG = "adapter_config.json"
_FILE = "adapter_model.safetensors"
ADAPTER = "adapter"  # in the metadata: the hash of the adapter's file
PREFIX = "prefix"  # in the metadata: what the names of the adapted model begin with, and those of the base do not
_ADAPTER = r"(?:\.(?P<adapter>(?!weight$|bias$)[^.]+))?"
_FACTOR = re.compile(
    rf"(?P<layer>.+?)\.(?:lora_(?P<table>embedding_)?(?P<side>[AB])|lora_(?P<way>down|up)){_ADAPTER}(?:\.weight)?"
)
# What may stand beside the two factors of a layer: what they add to its bias, and the norms that DoRA gives to its outputs.
_BESIDE = re.compile(
    rf"(?P<layer>.+?)\.(?:(?P<bias>lora_B){_ADAPTER}\.bias|(?P<norms>lora_magnitude_vector)(?:\.[^.]+)*)"
)
# Adapters that are no product of two factors added to a weight, and what else such files hold.
_OTHER = re.compile(r"(^|[._])((lora|hada|lokr|ia3|oft|boft|vera|glora|randlora)_|prompt_embeddings$|trainable_tokens)")
_UNCHANGED_BASE = (True, False, None, "gaussian", "eva", "orthogonal")  # other initial factors are taken off the base
# Settings that leave the change as it is, or that are understood; another that switches something on may change it.
_HARMLESS = {"use_rslora", "use_dora", "eva_config", "megatron_config", "runtime_config", "velora_config"}
_HARMLESS |= {"loftq_config", "corda_config", "lora_ga_config"}  # decided by the initial factors
_SWITCHES = re.compile(r"use_\w+|\w+_config|layer_replication|alora_invocation_tokens|target_parameters")


def is_adapter(model: Checkpoint) -> bool:
    """Whether a checkpoint holds an adapter instead of weights.

    Example:
        >>> [is_adapter(Checkpoint("", dict.fromkeys([name]))) for name in ("q.weight", "q.lora_A.weight", "q.hada_w1_a")]
        [False, True, True]
    """
    return any(_OTHER.search(name) for name in model.tensors) or "peft_type" in config_of(model)


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
        if dora := [name for name, layer in layers.items() if layer.norms]:
            raise ValueError(
                f"{model.name} must add its update to its base, but has use_dora: it also scales each output of {dora[0]} to a norm of "
                "its own, so its change depends on the base. Pass the base first: biascope merge diff BASE A B."
            )
        found.append({place: each for name, layer in layers.items() for place, each in layer.changes(name).items()})
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
    rename, prefix = _names_in(base, model, [f"{name}.weight" for name in layers])
    changes: dict[str, StoredTensor] = {}
    whole = {_plain(name): model.tensors[name] for name in others}
    for name, layer in layers.items():
        for own, change in layer.changes(name).items():
            place, mine = rename(own), whole.pop(own, None)
            if (start := base.tensors.get(place)) is None:
                raise ValueError(
                    f"{base.name} must have every bias that {model.name} adds to, but its layer {weights.layer_of(place)} has none. "
                    "Its weights cannot hold this change: use the adapter beside the base."
                )
            if mine is not None and tuple(mine.shape) != tuple(start.shape):
                raise ValueError(
                    f"{own} of {model.name} must have the shape of its base, {tuple(start.shape)}, got {tuple(mine.shape)}. Resize the "
                    "vocabulary of the base as it was for training, and save it."
                )
            if isinstance(change, Scaled):
                change = replace(change, dtype=weights.working_type(start.dtype))
            else:
                change = change.fitting(start, f"{name} of {model.name}", stores_inputs_first(base, place))
            norms = model.read(layer.norms).flatten() if layer.norms and isinstance(change, Update) else None
            if norms is not None or mine is not None:
                changes[place] = AdaptedWeight(start, start if mine is None else mine, change, norms)
            else:
                changes[place] = change
    for own, tensor in whole.items():
        place = place if (place := rename(own)) in base.tensors else own
        start = base.tensors.get(place)
        if start is None or tuple(start.shape) != tuple(tensor.shape):
            changes[place] = tensor  # told by what compares it with the base
        elif weights.is_edited(place, start):
            changes[place] = AdaptedWeight(start, tensor)
    for name, tensor in base.tensors.items():
        if name not in changes and weights.is_edited(name, tensor):
            changes[name] = Zero(tuple(tensor.shape), weights.working_type(tensor.dtype))
    about = {"kind": KIND, ADAPTER: model.fingerprint(), PREFIX: prefix}
    return Checkpoint(model.name, dict(sorted(changes.items())), about, model.path)


def adapted(model: Checkpoint, base: Checkpoint) -> Checkpoint:
    """An adapter as the model that it makes of its base: the base with its updates, under the names of the base.

    Another checkpoint comes back as it is. Sums are in float32, float64 for a base in float64.

    Raises:
        ValueError: If the adapter does not fit the base.

    Example:
        >>> import tempfile
        >>> from biascope.families.names import held
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     factors = {"q.lora_down.weight": torch.ones(1, 2), "q.lora_up.weight": torch.ones(3, 1), "q.alpha": torch.tensor(4.0)}
        ...     weights.save(factors, f"{folder}/a.safetensors")
        ...     adapter = Checkpoint.open(f"{folder}/a.safetensors")
        ...     adapted(adapter, held("base", {"q.weight": torch.ones(3, 2)})).read("q.weight").tolist()
        [[5.0, 5.0], [5.0, 5.0], [5.0, 5.0]]
    """
    if not is_adapter(model):
        return model
    tensors = dict(base.tensors)
    for name, change in on_base(model, base).tensors.items():
        if isinstance(change, AdaptedWeight) and change.update is None and change.norms is None:
            tensors[name] = change.own
        elif not isinstance(change, Update | Scaled | AdaptedWeight | Zero):
            tensors[name] = change  # whole, with a shape that the base does not have
        elif not isinstance(change, Zero):
            tensors[name] = Sum(base.tensors[name], change)
    # A folder with an adapter is none with a model, so it is named by its file.
    path = model.path / _FILE if model.path.is_dir() else model.path
    return Checkpoint(model.name, dict(sorted(tensors.items())), {}, path)


@dataclass(frozen=True, eq=False)
class Sum:
    """The weight of an adapted layer: that of the base and what the adapter adds."""

    base: StoredTensor
    change: StoredTensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.base.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the sum."""
        return weights.working_type(self.base.dtype)

    def slices(self, most: int) -> Iterator[Tensor]:
        """Its values in order, at most so many at once."""
        for start, more in zip(self.base.slices(most), self.change.slices(most), strict=True):
            yield start.to(self.dtype) + more.to(self.dtype)


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

    def fitting(self, start: StoredTensor, whose: str, turned: bool | None = None) -> Update:
        """The same for a weight of the base.

        Args:
            start: The weight.
            whose: Whose update it is, in words.
            turned: Whether the base stores a square weight as ``(in, out)``; ``None`` to believe the adapter's settings.

        Raises:
            ValueError: If the update has another shape.
        """
        shape, way = tuple(start.shape), self.turned
        if shape != self.shape:
            if len(shape) != 2 or shape != self.shape[::-1]:
                raise ValueError(
                    f"The update of {whose} must have the shape of its weight, {shape}, got {self.shape}. Pass the base that "
                    "the adapter was trained on."
                )
            way = not way
        elif turned is not None and shape[0] == shape[-1]:
            way = turned
        return replace(self, shape=shape, turned=way, dtype=weights.working_type(start.dtype))


@dataclass(frozen=True, eq=False)
class Scaled:
    """``s · b``: what an adapter adds to a bias."""

    bias: StoredTensor
    scale: float
    dtype: torch.dtype = torch.float32

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.bias.shape)

    def slices(self, most: int) -> Iterator[Tensor]:
        """Its values in order, at most so many at once."""
        for part in self.bias.slices(most):
            yield self.scale * part.to(self.dtype)


@dataclass(frozen=True, eq=False)
class AdaptedWeight:
    """By what the weight of an adapted layer differs from the base's, where the adapter does more than to add an update.

    With DoRA, the weights of output i are ``m_i (W + s B A)_i / ‖(W + s B A)_i‖``.

    Attributes:
        base: W₀, the weight of the base.
        own: W: the base's, or one that the adapter holds whole.
        update: ``s · B A``, if there is one.
        norms: m, one number for each output, if there are any.
    """

    base: StoredTensor
    own: StoredTensor
    update: Update | Scaled | None = None
    norms: Tensor | None = None

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
        growth = None if self.norms is None else (self.norms.double() / self._lengths(most)) - 1
        begin = 0
        for start, (own, update) in zip(self.base.slices(most), self._parts(most), strict=True):
            found = update if self.own is self.base else update + (own - start.to(self.dtype))
            if growth is not None:
                found = found + growth[self._outputs(begin, len(own))].to(self.dtype) * (own + update)
            yield found
            begin += len(own)

    def _parts(self, most: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Slices of W and of the update."""
        update = Zero(self.shape, self.dtype) if self.update is None else self.update
        for own, more in zip(self.own.slices(most), update.slices(most), strict=True):
            yield own.to(self.dtype), more.to(self.dtype)

    def _outputs(self, begin: int, count: int) -> Tensor:
        """To which output each of so many numbers of the flat weight belongs."""
        places = torch.arange(begin, begin + count)
        if isinstance(self.update, Update) and self.update.turned:
            return places % self.shape[-1]
        return places // math.prod(self.shape[1:])

    def _lengths(self, most: int) -> Tensor:
        """``‖(W + s B A)_i‖`` of each output, summed in float64 slice by slice."""
        assert self.norms is not None
        squares, begin = torch.zeros(len(self.norms), dtype=torch.float64), 0
        for own, update in self._parts(most):
            squares.index_add_(0, self._outputs(begin, len(own)), (own + update).double().square())
            begin += len(own)
        return squares.sqrt()


@dataclass(frozen=True)
class Zero:
    """The change of a weight that an adapter leaves as it is."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def slices(self, most: int) -> Iterator[Tensor]:
        """Its values in order, at most so many at once."""
        total = math.prod(self.shape)
        yield from (torch.zeros(min(most, total - begin), dtype=self.dtype) for begin in range(0, total, most))


def config_of(model: Checkpoint) -> dict[str, Any]:
    """The settings of an adapter; empty where there are none."""
    path = model.beside(CONFIG)
    return read_settings(path) if path.is_file() else {}


class _Layer(NamedTuple):
    """What an adapter does to a layer: its update, and the names of the norms of its outputs and of what its bias gains."""

    update: Update
    norms: str | None
    bias: str | None

    def changes(self, name: str) -> dict[str, Update | Scaled]:
        """What it adds, by the names of parameters."""
        found: dict[str, Update | Scaled] = {f"{name}.weight": self.update}
        if self.bias is not None:
            found[f"{name}.bias"] = Scaled(self.update.model.tensors[self.bias], self.update.scale)
        return found


def _layers(model: Checkpoint) -> tuple[dict[str, _Layer], list[str]]:
    """What it does to each layer, and the names of what else the file holds, where all of it is understood."""
    config = config_of(model)
    _require_plain(model, config)
    matches = {name: found for name in model.tensors if (found := _FACTOR.fullmatch(name))}
    alphas = {name.removesuffix(".alpha"): name for name in model.tensors if name.endswith(".alpha")}
    beside = {name: found for name in model.tensors if (found := _BESIDE.fullmatch(name))}
    others = [name for name in model.tensors if name not in {*matches, *beside, *alphas.values()}]
    if strange := [name for name in others if _OTHER.search(name)] or ([model.name] if not matches else []):
        raise ValueError(
            f"{model.name} must be a LoRA adapter whose update is a product of two factors, but holds {strange[0]}. Merge it into its "
            "base first: model.merge_and_unload() of PEFT."
        )
    if len(kinds := sorted({str(found["adapter"]) for found in matches.values()})) > 1:
        raise ValueError(f"{model.name} must hold one adapter, got {', '.join(kinds)}. Save one of them.")
    pairs = factors(model)
    # PEFT saves the table of tokens and the layer tied to it beside their factors, since the vocabulary may have grown.
    tables = {found["layer"] for found in matches.values() if found["table"] or found["layer"].endswith(".lm_head")}
    if whole := [name for name in others if _layer_of(name) in pairs.keys() - tables and name.endswith(".weight")]:
        raise ValueError(
            f"{model.name} must hold an adapter or a model, but {whole[0]} has factors beside it, so the model sees a sum. Merge the "
            "factors into the weights first: model.merge_and_unload() of PEFT."
        )
    norms = {found["layer"]: name for name, found in beside.items() if found["norms"]}
    biases = {found["layer"]: name for name, found in beside.items() if found["bias"]}
    _require_complete(model, config, set(pairs), norms, biases)
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
        update = Update(model, pair["down"], pair["up"], scale, shape[::-1] if turned else shape, turned)
        if layer in norms and math.prod(model.tensors[norms[layer]].shape) != up[0]:
            raise ValueError(
                f"{norms[layer]} of {model.name} must have a number for each of {up[0]} outputs, got "
                f"{tuple(model.tensors[norms[layer]].shape)}. Save the adapter again."
            )
        layers[name] = _Layer(update, norms.get(layer), biases.get(layer))
    return layers, others


def _require_complete(
    model: Checkpoint, config: Mapping[str, Any], layers: set[str], norms: Mapping[str, str], biases: Mapping[str, str]
) -> None:
    """Refuse norms of outputs and biases that the settings do not announce, or that lack."""
    for setting, what, found in (("use_dora", "a magnitude vector", norms), ("lora_bias", "a bias of lora_B", biases)):
        announced = bool(config.get(setting))
        if odd := sorted(set(found) ^ (layers if announced else set())):
            raise ValueError(
                f"{model.name} must hold {what} for {'each of its layers' if announced else 'no layer'}, as {setting} in {CONFIG} "
                f"says, but holds {'none' if announced else 'one'} for {odd[0]}. Save the adapter again."
            )
    if norms and biases:
        raise ValueError(
            f"{model.name} must have use_dora or lora_bias, got both, for which libraries differ. Train it with one of them."
        )


def _require_plain(model: Checkpoint, config: Mapping[str, Any]) -> None:
    """Refuse an adapter whose settings make its change another than ``s · B A``."""
    kind = config.get("peft_type", "LORA")
    unusual = {
        f"peft_type {kind}": kind != "LORA",
        f"init_lora_weights {config.get('init_lora_weights')}": config.get("init_lora_weights") not in _UNCHANGED_BASE,
        **{name: bool(on) for name, on in config.items() if _SWITCHES.fullmatch(name) and name not in _HARMLESS},
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


def _names_in(base: Checkpoint, model: Checkpoint, names: list[str]) -> tuple[Callable[[str], str], str]:
    """From the names of an adapter to those of the base, which may have more or fewer parts in front; and what these lack there."""
    parts = min(name.count(".") for name in names)
    for cut in range(parts):
        prefix = ".".join(names[0].split(".")[:cut]) + "." * bool(cut)
        if all(name.startswith(prefix) and name.removeprefix(prefix) in base.tensors for name in names):
            return partial(_shortened, prefix), prefix
    longer = [each.removesuffix(names[0]) for each in base.tensors if each.endswith(f".{names[0]}")]
    for prefix in longer:
        if all(prefix + name in base.tensors for name in names):
            return prefix.__add__, ""
    absent = next((name for name in names if name not in base.tensors), names[0])
    others = [name for name in names if name != absent]
    if others and absent.endswith("lm_head.weight"):
        with contextlib.suppress(ValueError):
            _names_in(base, model, others)
            absent += ", which is tied to the table of tokens there, so that a change of one would change both"
    raise ValueError(
        f"{base.name} must have every weight that {model.name} adapts, but lacks {absent}. Pass the base that it was trained on."
    )


def _shortened(prefix: str, name: str) -> str:
    return name.removeprefix(prefix)


def stores_inputs_first(base: Checkpoint, place: str) -> bool | None:
    """Whether the base stores layers of a name as ``(in, out)``, by the bias of one that is not square; ``None`` if none is known.

    Example:
        >>> from biascope.families.names import held
        >>> tensors = {"a.c_proj.weight": torch.ones(2, 2), "b.c_proj.weight": torch.ones(8, 2), "b.c_proj.bias": torch.ones(2)}
        >>> base = held("base", tensors)
        >>> stores_inputs_first(base, "a.c_proj.weight"), stores_inputs_first(base, "a.other.weight")
        (True, None)
    """
    last = weights.layer_of(place).rpartition(".")[2]
    for name, tensor in base.tensors.items():
        layer, shape = weights.layer_of(name), tuple(tensor.shape)
        bias = base.tensors.get(f"{layer}.bias")
        if bias is None or layer.rpartition(".")[2] != last or len(shape) != 2 or not name.endswith(".weight"):
            continue
        if shape[0] != shape[1] and tuple(bias.shape) in ((shape[0],), (shape[1],)):
            return tuple(bias.shape) == (shape[1],)
    return None
