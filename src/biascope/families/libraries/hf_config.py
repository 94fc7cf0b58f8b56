"""``hf-config:TYPE``: an architecture of transformers at initial weights, two layers of width 128 unless sizes are given.

The sizes that a library's configuration has by default are those of published models, up to billions of weights.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from biascope.families.libraries.hf import POSITIONS, initial, library, model_of, with_settings
from biascope.families.libraries.packages import silent
from biascope.families.named_model import Asked, NamedModel, in_words, label_of
from biascope.runs.failures import FOREIGN, reason_of
from biascope.runs.memory import free_memory

EXAMPLE = "hf-config:bert"
WIDTH, LAYERS, HEADS, VOCABULARY = 128, 2, 4, 128


def named(rest: str, asked: Asked) -> NamedModel:
    """The architecture, small by default; ``asked.full`` gives the library's own sizes."""
    source = f"hf-config:{rest}"
    transformers = library(source)
    known = transformers.CONFIG_MAPPING
    if rest not in known:
        near = difflib.get_close_matches(rest, known.keys(), n=1, cutoff=0.5) or ["bert"]
        raise ValueError(
            f"transformers must have an architecture {rest!r}, and has none. Did you mean hf-config:{near[0]}?"
        )
    own = _of_images(known[rest](), asked.shape or ())
    config = _configuration(source, known[rest], {**own, **asked.settings}, asked.full)
    kinds = transformers.MODEL_MAPPING.get(type(config), None)
    if isinstance(kinds, tuple) and not config.architectures:  # the library asks which of several models it is
        config.architectures = [kinds[0].__name__]
    ways = "Change --set" if asked.settings else "Build it in file.py:build"
    remedy = ways if asked.full or asked.settings else "Set sizes with --set, or pass --full for the library's own"
    model = _without_weights(source, config, transformers, remedy)
    make = functools.partial(initial, transformers.AutoModel, config)
    told = "" if asked.full else _sizes_in_words(config, model) or ("" if asked.settings else "sizes of the library")
    return model_of(source, label_of(rest, asked.named), make, asked, trained=False, usual=told)


def _of_images(config: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    """The entries by which an architecture takes images of a shape, or videos with an axis of frames before it."""
    if len(shape) not in (3, 4):
        return {}
    *frames, channels, height, width = shape
    sides = [height, width] if isinstance(getattr(config, "image_size", None), list | tuple) else height
    asked = {"num_frames": frames[0] if frames else None, "num_channels": channels, "image_size": sides}
    return {key: value for key, value in asked.items() if value is not None and hasattr(config, key)}


#: The names of sizes that every configuration of transformers understands.
_USUAL = ("hidden_size", "num_hidden_layers", "num_attention_heads")


def small(
    config: Any, *, hidden_size: int = WIDTH, num_hidden_layers: int = LAYERS, num_attention_heads: int = HEADS
) -> dict[str, Any]:
    """The entries that make an architecture small, by the words that their names are made of; nested configurations likewise."""
    sizes = {
        r"(num_hidden_layers|n_layers?|num_layers|(encoder|decoder)_layers)$": num_hidden_layers,
        r"(heads|n_head)$": num_attention_heads,
        r"^(head_dim|d_kv)$": hidden_size // max(1, num_attention_heads),
        r"(intermediate_size|ffn_dim|d_ff)$": 4 * hidden_size,
        r"^rotary_dim$": hidden_size // max(1, num_attention_heads),
    }
    if any("heads" in key or key == "n_head" for key in config.to_dict()):  # of convolution nets it is another width
        sizes[r"^hidden_dim$"] = 4 * hidden_size
    how = dict(zip(_USUAL, (hidden_size, num_hidden_layers, num_attention_heads), strict=True))
    entries: dict[str, Any] = {}
    # Inputs are embeddings: the table of tokens is never read.
    if isinstance(getattr(config, "vocab_size", ()), int | None):
        entries["vocab_size"] = max(VOCABULARY, 1 + (getattr(config, "pad_token_id", None) or 0))
    if isinstance(getattr(config, "attention_window", None), int):  # texts are padded to a multiple of it
        entries["attention_window"] = POSITIONS
    width = getattr(config, "hidden_size", None)
    for key, value in config.to_dict().items():
        nested: Any = getattr(config, key, None)
        if hasattr(nested, "to_dict"):
            entries[key] = {**nested.to_dict(), **small(nested, **how)}
        elif isinstance(value, int) and not isinstance(value, bool):
            size = next((size for words, size in sizes.items() if re.search(words, key)), None)
            is_width = value == width and re.search(
                r"(hidden_size|dim|d_model|n_embd|output_size|embedding_size)$", key
            )
            # Of some heads a part alone is rotated, and a second entry has its name.
            rotated = key == "head_dim" and value == getattr(config, "qk_rope_head_dim", None)
            if (is_width or size is not None) and not rotated:
                entries[key] = hidden_size if is_width else size
    return entries


def _configuration(source: str, kind: Any, settings: Mapping[str, Any], full: bool) -> Any:
    """A configuration of a kind with the settings that were asked for, small unless the library's own sizes were.

    Raises:
        ValueError: If these sizes do not fit one another.
    """
    if full:
        return with_settings(kind(), settings, source)
    for name in _USUAL:
        if not isinstance(settings.get(name, 1), int) or settings.get(name, 1) < 1:
            raise ValueError(f"{name} of {source} must be a whole number from 1, got {settings[name]}. Change --set.")
    sizes = small(kind(), **{name: settings[name] for name in _USUAL if name in settings})
    try:
        return with_settings(kind(), {**sizes, **settings}, source)
    except ValueError as error:
        with contextlib.suppress(ValueError):
            return with_settings(kind(), {**sizes, **_more_heads(kind(), sizes), **settings}, source)
        if settings:
            raise
        raise ValueError(
            f"{source} cannot be built with {LAYERS} layers of width {WIDTH}: {reason_of(error.__cause__ or error)}. Pass sizes "
            "that fit one another with --set, or --full for the library's own."
        ) from error


def _more_heads(config: Any, sizes: Mapping[str, Any]) -> dict[str, int]:
    """Heads that are together as wide, relative to the layers, as the library's: some architectures widen their layers first."""
    keys = {"num_heads", "head_dim", "hidden_size"}
    if not keys <= sizes.keys():
        return {}
    factor = config.num_heads * config.head_dim // config.hidden_size
    return {"num_heads": factor * int(sizes["hidden_size"]) // int(sizes["head_dim"])}


def _sizes_in_words(config: Any, model: nn.Module) -> str:
    """Layers and width, where they are what the model is made of: stages of images have several of both."""
    layers, width = getattr(config, "num_hidden_layers", None), getattr(config, "hidden_size", None)
    if not layers or not width or not any(width in weight.shape for weight in model.parameters()):
        return ""
    return f"{layers} layers of width {width}"


def _without_weights(source: str, config: Any, transformers: Any, remedy: str) -> nn.Module:
    """The architecture without numbers, if it would fit into memory.

    Args:
        source: As the user named it.
        config: Its configuration.
        transformers: The library.
        remedy: What to do where the library cannot make it.

    Raises:
        ValueError: If it does not fit, or the library cannot make it.
    """
    try:
        with silent(transformers), torch.device("meta"):
            model: nn.Module = transformers.AutoModel.from_config(config)
    except FOREIGN as error:
        raise ValueError(
            f"{source} must be an architecture that transformers builds alone, but that failed with: {reason_of(error)}. {remedy}."
        ) from error
    count = sum(weight.numel() for weight in model.parameters())
    if 8 * count > free_memory():
        raise ValueError(
            f"{source} has {in_words(count)}, which do not fit twice into the free memory of {free_memory() / 2**30:.0f} GiB. "
            "Pass smaller sizes with --set, or leave --full out."
        )
    return model
