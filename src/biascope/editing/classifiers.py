"""Classifiers of transformers, each read through its own head beside a body that all share: no probe, and no head is merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from biascope.editing.adapters import CONFIG, config_of
from biascope.editing.encoder_source import stored_weights
from biascope.editing.encoders.encoder import Encoder, Kind
from biascope.editing.encoders.texts import POOLER, take_ids, tokens_of
from biascope.families import weights
from biascope.families.checkpoint import Checkpoint
from biascope.families.libraries.hf import configuration_in, image_processor_in, library, part
from biascope.families.network import Network
from biascope.families.weights import Params
from biascope.results.wording import listed

LENGTH = 64  # tokens of a text
_MAPPINGS: Mapping[Kind, str] = {
    "text": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
}
_HEADS = (
    "classifier.",
    "score.",
    "head.",
)  # of the library's classifiers, in a file that has no configuration of its own
_ONE_CLASS = "single_label_classification"  # the problem_type of a model that predicts one class of each sample


@dataclass(frozen=True)
class Classifier:
    """A model with a head of its own.

    Attributes:
        encoder: Class scores of prepared inputs: the body at the weights of the base, and the model's own head, which is no weight.
        end: The model's own body: weights and statistics, under the same names.
        own: The layers that are the model's own.
    """

    encoder: Encoder
    end: Params
    own: tuple[str, ...]


def classifiers_of(start: Checkpoint, models: Mapping[str, Checkpoint]) -> dict[str, Classifier]:
    """Models that classify texts or images, by name, on the weights of their base; none where they have no heads.

    A base may have another head or none. What it lacks beside a head, such as the pooler of BERT, is each model's own too.

    Args:
        start: The base: a folder that transformers saved, or weights in it.
        models: Likewise; weights alone have the configuration of the base.

    Raises:
        ValueError: If some have heads and others not, or anything does not fit.
    """
    folder = start.beside(".").resolve()
    if not (folder / "config.json").is_file():
        return {}
    transformers = library(str(folder))
    found = {name: _kind_of(model, _folder_of(model, folder), transformers) for name, model in models.items()}
    with_head = [name for name, kind in found.items() if kind is not None]
    for name in with_head:
        _require_whole_samples(models[name])
    if not with_head:
        return {}
    if without := [name for name, kind in found.items() if kind is None]:
        raise ValueError(
            f"All models must have a classifier of their own, or none, but {listed(without)} has none and {listed(with_head)} has. "
            "Pass models that were fine-tuned with a classifier, or --features, which needs no classes."
        )
    return {
        name: _on_base(name, models[name], kind, start, folder, transformers) for name, kind in found.items() if kind
    }


def _require_whole_samples(model: Checkpoint) -> None:
    """Refuse the adapter of a classifier of tokens, whose head has the names and shapes of one of texts."""
    task = config_of(model).get("task_type")
    if task not in (None, "SEQ_CLS", "FEATURE_EXTRACTION"):
        raise ValueError(
            f"{model.name} must classify whole samples, but its {CONFIG} has task_type {task}. Pass --features, which needs no classes."
        )


def has_classes(model: Checkpoint, start: Checkpoint) -> bool:
    """Whether a file holds the head of a classifier beside what its base holds."""
    return any(name.startswith(_HEADS) for name in model.tensors.keys() - start.tensors.keys())


def _folder_of(model: Checkpoint, folder: Path) -> Path:
    """The folder with the configuration of a model: its own, or that of the base."""
    return model.path if (model.path / "config.json").is_file() else folder


def _kind_of(model: Checkpoint, folder: Path, transformers: Any) -> tuple[Kind, Any] | None:
    """What a model classifies, with its class of the library; none where it has no classifier."""
    config = configuration_in(folder, transformers)
    for what, mapping in _MAPPINGS.items():
        known = getattr(transformers, mapping).get(type(config), ())
        for kind in known if isinstance(known, tuple) else (known,):
            if _is_said(model, kind, config) or _classes_in(model):
                return what, kind
    return None


def _is_said(model: Checkpoint, kind: Any, config: Any) -> bool:
    """Whether the configuration of a model says that it is a classifier: weights alone have that of another."""
    return (model.path / "config.json").is_file() and kind.__name__ in (config.architectures or ())


def _classes_in(model: Checkpoint) -> int | None:
    """How many classes the last layer has that a file holds, if it holds one."""
    rows = [
        stored.shape[0]
        for name, stored in sorted(model.tensors.items())
        if len(stored.shape) == 2 and name.startswith(_HEADS) and name.endswith(".weight")
    ]
    return rows[-1] if rows else None


def _on_base(
    name: str, model: Checkpoint, kind: tuple[Kind, Any], start: Checkpoint, folder: Path, transformers: Any
) -> Classifier:
    """A classifier at the weights of the base."""
    what, whole = kind
    own = _folder_of(model, folder)
    config = configuration_in(own, transformers)
    state = None
    if not _is_said(model, whole, config):
        state, config.num_labels = stored_weights(model), _classes_in(model)
    require_one_class(model.name, config.problem_type, config.num_labels)
    module, _ = part(transformers, own, whole, state, config=config)
    prefix = f"{module.base_model_prefix}."
    body = getattr(module, module.base_model_prefix)
    first, absent = part(
        transformers,
        folder,
        type(body),
        None if start.path.is_dir() else stored_weights(start),
        left_out=(POOLER,),
    )
    here, there = body.state_dict(), first.state_dict()
    shared = {key: tensor for key, tensor in there.items() if key in here and key not in absent}
    if lacking := [key for key in here.keys() - shared.keys() if not key.startswith(POOLER)]:
        raise ValueError(
            f"{model.name} must have the layers of {start.name} and a head, but {start.name} lacks {min(lacking)}. Pass its own base."
        )
    if odd := weights.misfits({key: here[key] for key in shared}, shared):
        raise ValueError(f"{model.name} must fit {start.name}: {odd}. Pass models of one base.")
    network = Network.of(_taking_one_tensor(module, what, config).eval())
    edited = {
        prefix + key: tensor
        for key, tensor in shared.items()
        if prefix + key in {**network.params, **network.buffers} and weights.is_edited(key, tensor)
    }
    fixed = {prefix + key: tensor for key, tensor in shared.items() if prefix + key in network.buffers}
    every = {**network.params, **network.buffers}
    on_base = replace(
        network,
        params=edited,
        buffers={key: fixed.get(key, tensor) for key, tensor in every.items() if key not in edited},
    )
    layers = {key.removeprefix(prefix).partition(".")[0] for key in network.params.keys() - edited.keys()}
    prepare = _prepared_by(what, model.beside("."), folder, config, transformers)
    encoder = Encoder(on_base, prepare, name, what, "")
    return Classifier(encoder, {key: every[key] for key in {**edited, **fixed}}, tuple(sorted(layers)))


def require_one_class(name: str, said: str | None, outputs: int) -> None:
    """Refuse a model whose outputs are no scores of classes that exclude one another.

    Args:
        name: Of the model.
        said: The problem_type that its configuration has, if any.
        outputs: How many there are.
    """
    if (kind := said or ("regression" if outputs == 1 else _ONE_CLASS)) != _ONE_CLASS:
        raise ValueError(
            f"{name} must predict one class of each sample, but its config.json makes it a {kind}. "
            "Pass --features, which needs no classes."
        )


def _taking_one_tensor(module: nn.Module, what: Kind, config: Any) -> nn.Module:
    """A classifier of one tensor, which returns class scores."""
    if what == "text":
        take_ids(module, config.get_text_config().pad_token_id)
    else:
        module.register_forward_pre_hook(_as_pixels, with_kwargs=True)
    module.register_forward_hook(_scores)
    return module


def _as_pixels(
    _: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[()], dict[str, Tensor]]:
    return (), {"pixel_values": args[0]}


def _scores(_: nn.Module, args: Any, outputs: Any) -> Tensor:
    return outputs.logits  # type: ignore[no-any-return]


def _prepared_by(what: Kind, own: Path, folder: Path, config: Any, transformers: Any) -> Any:
    """What prepares the samples of a model: its own files where it has them, else those of the base."""
    if what == "text":
        length = min(LENGTH, getattr(config, "max_position_embeddings", None) or LENGTH)
        return _own_or_of_base(lambda place: tokens_of(place, config, transformers, length), own, folder)
    return _own_or_of_base(lambda place: Pictures(image_processor_in(place, transformers)), own, folder)


def _own_or_of_base(read: Any, own: Path, folder: Path) -> Any:
    try:
        return read(own)
    except ValueError:
        if own == folder:
            raise
        return read(folder)


@dataclass(frozen=True)
class Pictures:
    """Turns bytes of images into the input of a model, as its own processor of transformers does.

    Attributes:
        processor: Of transformers.
    """

    processor: Any

    def __call__(self, images: np.ndarray) -> Tensor:
        """Inputs of byte images ``(n, 1 or 3, h, w)``."""
        colour = np.broadcast_to(images, (len(images), 3, *images.shape[2:]))
        found = self.processor(images=list(colour), return_tensors="pt", input_data_format="channels_first")
        return torch.as_tensor(found["pixel_values"])
