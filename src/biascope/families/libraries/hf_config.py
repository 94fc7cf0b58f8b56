"""``hf-config:TYPE``: an architecture of transformers at initial weights, two layers of width 128 unless sizes are given.

The sizes that a library's configuration has by default are those of published models, up to billions of weights.
"""

from __future__ import annotations

import difflib
import functools
import re
from typing import Any

import torch

from biascope.families.libraries.hf import _initial, library, model_of, with_settings
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
    kind = known[rest]
    sizes = (
        {} if asked.full else small(kind(), **{name: asked.settings[name] for name in _USUAL if name in asked.settings})
    )
    given = asked.shape or ()
    image = {"num_channels": given[0], "image_size": given[1]} if len(given) == 3 else {}
    own = {key: value for key, value in image.items() if hasattr(kind(), key)}
    try:
        config = with_settings(kind(), {**sizes, **own, **asked.settings}, source)
    except ValueError as error:
        if not sizes or asked.settings:
            raise
        raise ValueError(
            f"{source} cannot be built with {LAYERS} layers of width {WIDTH}. Pass sizes that fit one another with --set, or --full "
            "for the library's own."
        ) from error
    _require_room(source, config, transformers)
    make = functools.partial(_initial, transformers.AutoModel, config)
    told = "" if asked.full else _sizes_in_words(config)
    return model_of(source, label_of(rest, asked.named), make, asked, trained=False, usual=told)


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
    if isinstance(getattr(config, "vocab_size", None), int):  # inputs are embeddings: the table of tokens is never read
        entries["vocab_size"] = max(VOCABULARY, 1 + (getattr(config, "pad_token_id", None) or 0))
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
            if is_width or size is not None:
                entries[key] = hidden_size if is_width else size
    return entries


def _sizes_in_words(config: Any) -> str:
    layers, width = getattr(config, "num_hidden_layers", None), getattr(config, "hidden_size", None)
    return f"{layers} layers of width {width}" if layers and width else ""


def _require_room(source: str, config: Any, transformers: Any) -> None:
    """Refuse an architecture that does not fit into memory, counted without making its weights.

    Raises:
        ValueError: If it does not fit, or the library cannot make it.
    """
    try:
        with silent(transformers), torch.device("meta"):
            model = transformers.AutoModel.from_config(config)
    except FOREIGN as error:
        raise ValueError(
            f"{source} must be an architecture that transformers builds alone, but that failed with: {reason_of(error)}. Build it in "
            "file.py:build."
        ) from error
    count = sum(weight.numel() for weight in model.parameters())
    if 8 * count > free_memory():
        raise ValueError(
            f"{source} has {in_words(count)}, which do not fit twice into the free memory of {free_memory() / 2**30:.0f} GiB. "
            "Pass smaller sizes with --set, or leave --full out."
        )
