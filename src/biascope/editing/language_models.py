"""Causal language models of transformers: logits of the next word for token ids, and texts as such ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from biascope.data.text import plain_texts
from biascope.editing.classifiers import has_classes
from biascope.editing.encoder_source import stored_weights
from biascope.editing.stream import is_vector
from biascope.editing.unlabelled import SPLIT, split_of
from biascope.families.checkpoint import Checkpoint
from biascope.families.libraries.hf import configuration_in, library, tokenizer_in, trained
from biascope.families.network import Network
from biascope.results.wording import listed, percent
from biascope.runs.randomness import seed_of
from biascope.tasks.task import Arrays

LENGTH = 128  # tokens of a text at most


@dataclass(frozen=True)
class LanguageModels:
    """A base and models fine-tuned from it, as they predict the next word.

    Attributes:
        base: Logits ``(n, t, v)`` of token ids ``(n, t)``, at the weights of the base.
        models: The same at each model's own weights; none for saved task vectors.
        tokenizers: By model.
    """

    base: Network
    models: dict[str, Network]
    tokenizers: dict[str, Any]


def language_models_of(start: Checkpoint, models: Mapping[str, Checkpoint]) -> LanguageModels | None:
    """Causal language models in folders of transformers; none where they are something else.

    Args:
        start: The base: a folder that transformers saved, or weights in it.
        models: Likewise, or saved task vectors; weights alone have the configuration of the base.

    Raises:
        ValueError: If some are and others not, or weights are missing.
    """
    folder = start.beside(".").resolve()
    if not (folder / "config.json").is_file():
        return None
    transformers = library(str(folder))
    own = {name: _folder_of(model, folder) for name, model in {"": start, **models}.items()}
    # Weights without a configuration have that of the base, unless they hold the head of a classifier.
    classify = {name for name, model in models.items() if own[name] == folder and has_classes(model, start)}
    causal = {name: _is_causal(place, transformers) and name not in classify for name, place in own.items()}
    files = [name for name, model in models.items() if (model.path / "config.json").is_file()]
    if not any(causal[name] for name in files or models):  # classifiers may have a language model as their base
        return None
    if others := [name or start.name for name, known in causal.items() if not known]:
        raise ValueError(
            f"All must be causal language models, or none, but {listed(others)} is not. Pass models of one kind and their base."
        )
    networks = {
        name: _network(transformers, own[name], None if model.path.is_dir() else stored_weights(model))
        for name, model in {"": start, **models}.items()
        if not is_vector(model)
    }
    tokenizers = {name: _tokenizer(model.beside("."), folder, transformers) for name, model in models.items()}
    return LanguageModels(networks.pop(""), networks, tokenizers)


def _folder_of(model: Checkpoint, folder: Path) -> Path:
    return model.path if (model.path / "config.json").is_file() else folder


def _is_causal(folder: Path, transformers: Any) -> bool:
    config = configuration_in(folder, transformers)
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return kind is not None and kind.__name__ in (config.architectures or ())


def _network(transformers: Any, folder: Path, state: Any) -> Network:
    module = trained(transformers, str(folder), None, False, state).eval()
    module.register_forward_pre_hook(_as_ids, with_kwargs=True)
    module.register_forward_hook(_logits)
    return Network.of(module)


def _as_ids(_: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
    return (), {"input_ids": args[0].long().clamp_min(0), "use_cache": False}


def _logits(_: nn.Module, args: Any, outputs: Any) -> Tensor:
    return outputs.logits  # type: ignore[no-any-return]


def _tokenizer(own: Path, folder: Path, transformers: Any) -> Any:
    """The tokenizer of a model: its own, else that of the base."""
    try:
        return tokenizer_in(own, transformers)
    except ValueError:
        if own == folder:
            raise
        return tokenizer_in(folder, transformers)


def texts_as_ids(
    name: str, tokenizers: Sequence[Any], rows: int, *, points: int, split: str | None, seed: int, root: Path | None
) -> tuple[Arrays, list[str]]:
    """Texts of a set as rows of token ids, −1 behind their end, in the split ``"samples"``; and what to tell of them.

    Args:
        name: As :func:`biascope.data.text.plain_texts` takes it.
        tokenizers: Which must agree; the first is used.
        rows: Tokens that the model has.
        points: How many texts at most.
        split: Where they are taken from; by default test, validation, or the first that there is.
        seed: Random seed for the choice.
        root: Folder of data sets.

    Raises:
        ValueError: If there are no such texts, none has two tokens, or tokenizers give other ids.
    """
    whole, splits = plain_texts(name, root=root)
    chosen = split_of(tuple(splits), name, split)
    texts = splits[chosen]
    order = np.random.default_rng(seed_of(seed, "samples", chosen)).permutation(len(texts))
    first, cut, taken = tokenizers[0], 0, []
    for place in order:
        ids = list(first(texts[place])["input_ids"])
        if any(list(other(texts[place])["input_ids"]) != ids for other in tokenizers[1:]):
            raise ValueError(
                f"All models must have the same tokens, but their tokenizers give other ids for {texts[place][:40]!r}. "
                "Pass models of one vocabulary."
            )
        if ids and max(ids) >= rows:
            raise ValueError(
                f"Every token must be one of the {rows:,} that the model has, but {texts[place][:40]!r} has token {max(ids)}. Pass the "
                "tokenizer of this model."
            )
        if len(ids) < 2:
            continue
        cut += len(ids) > LENGTH
        taken.append(ids[:LENGTH])
        if len(taken) == points:
            break
    if len(taken) < 2:
        raise ValueError(f"{name} must have two texts with at least two tokens, got {len(taken)}. Pass longer texts.")
    found = torch.full((len(taken), max(map(len, taken))), -1)
    for row, ids in zip(found, taken, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    told = [f"{percent(cut / len(taken))} of the texts of {whole} were cut after {LENGTH} tokens."] if cut else []
    return Arrays({SPLIT: (found, torch.full((len(taken),), -1))}, name=f"{whole} ({chosen})"), told
