"""``open_clip:NAME``: the image tower of a CLIP model of open_clip; with ``--download`` its pre-trained weights."""

from __future__ import annotations

import difflib
import functools
import logging
from typing import Any

from torch import nn

from biascope.families.libraries.packages import imported
from biascope.families.named_model import Asked, NamedModel, image_shape, label_of

EXAMPLE = "open_clip:ViT-B-32"


def named(rest: str, asked: Asked) -> NamedModel:
    """The image tower; its outputs are the embedding that images and texts share."""
    source = f"open_clip:{rest}"
    library = imported("open_clip", source)
    if rest not in library.list_models():
        near = difflib.get_close_matches(rest, library.list_models(), n=1, cutoff=0.4) or ["ViT-B-32"]
        raise ValueError(f"open_clip must have a model {rest!r}, and has none. Did you mean open_clip:{near[0]}?")
    settings = dict(asked.settings)
    if asked.download and "pretrained" not in settings:
        tags = library.list_pretrained_tags_by_model(rest)
        raise ValueError(f"{source} has several sets of weights: {', '.join(tags)}. Pass --set pretrained={tags[0]}.")
    if not asked.download and "pretrained" in settings:
        raise ValueError(f"{source} must be allowed to fetch its weights. Pass --download.")
    if asked.shape is not None:
        height, width = image_shape(source, asked.shape, (3, 224, 224))[1:]
        settings["force_image_size"] = (
            height if height == width else (height, width)
        )  # some towers take one number alone
    entry = library.get_model_config(rest)["vision_cfg"]
    side = settings.get("force_image_size", entry.get("image_size", 224))
    sides = tuple(side) if isinstance(side, list | tuple) else (side, side)
    mean, spread = library.OPENAI_DATASET_MEAN, library.OPENAI_DATASET_STD
    build = functools.partial(_tower, library, rest, settings)
    name = label_of(f"{rest} image tower", asked.named)
    return NamedModel(name, build, (3, *sides), asked.download, tuple(mean), tuple(spread))


def _tower(library: Any, name: str, settings: dict[str, Any]) -> nn.Module:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # that weights are initial is what was asked for
    try:
        whole = library.create_model(name, **{"pretrained": None, "load_weights": False, **settings})
    finally:
        logging.disable(before)
    tower: nn.Module = whole.visual
    return tower
