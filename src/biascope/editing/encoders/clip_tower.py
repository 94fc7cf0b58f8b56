"""The image tower of a CLIP that open_clip describes, and what prepares its images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from biascope.editing.encoders.image_input import ImageInput
from biascope.families.checkpoint import read_settings
from biascope.families.libraries.packages import imported
from biascope.runs.failures import FOREIGN, reason_of

FILE = "open_clip_config.json"
PREFIX = "visual."  # of the tower, in the weights of the whole
_NO_TEXTS = {
    "context_length": 8,
    "vocab_size": 8,
    "width": 8,
    "heads": 1,
    "layers": 1,
}  # the tower of texts is not used


def clip_tower(folder: Path) -> nn.Module:
    """The image tower at the library's initial weights: images ``(n, 3, s, s)`` to embeddings ``(n, p)``, not normalised.

    Raises:
        ValueError: If the library is not installed, or knows no such tower.
    """
    path = folder / FILE
    library, model = imported("open_clip", str(folder)), _model(path)
    embedding, quick = model["embed_dim"], bool(model.get("quick_gelu", False))
    try:
        whole = library.CLIP(embedding, model["vision_cfg"], dict(_NO_TEXTS), quick_gelu=quick)
    except FOREIGN as error:
        raise ValueError(
            f"{path} must describe a CLIP of open_clip, but building its image tower failed with: {reason_of(error)}. Download the "
            "file again."
        ) from error
    tower: nn.Module = whole.visual
    return tower


def clip_input(folder: Path) -> ImageInput:
    """What prepares the images of the tower."""
    path = folder / FILE
    given, side = dict(read_settings(path).get("preprocess_cfg", {})), _model(path)["vision_cfg"].get("image_size", 224)
    if type(side) is not int or side < 1:
        raise ValueError(
            f"image_size in {path} must be a positive whole number, got {side!r}. Pass a CLIP of square images."
        )
    mean = tuple(given.get("mean", (0.48145466, 0.4578275, 0.40821073)))
    spread = tuple(given.get("std", (0.26862954, 0.26130258, 0.27577711)))
    return ImageInput(side, mean, spread, given.get("interpolation", "bicubic"))


def _model(path: Path) -> dict[str, Any]:
    config = read_settings(path)
    model = config.get("model_cfg", config)
    for name in ("embed_dim", "vision_cfg"):
        if not isinstance(model, dict) or not model.get(name):
            raise ValueError(f"{path} must have {name}, as open_clip writes it. Pass a CLIP of open_clip.")
    return dict(model)
