"""``torchvision:NAME``: a classifier of torchvision, with initial weights; with ``--download`` its pre-trained ones."""

from __future__ import annotations

import difflib
import functools

from biascope.families.libraries.packages import imported
from biascope.families.named_model import Asked, NamedModel, image_shape, label_of

EXAMPLE = "torchvision:resnet18"
_USUAL = (3, 224, 224)  # where a classifier has no weights that say it


def named(rest: str, asked: Asked) -> NamedModel:
    """A classifier for images of the size that its weights were trained on."""
    source = f"torchvision:{rest}"
    models = imported("torchvision", source).models
    known = models.list_models(module=models)
    if rest not in known:
        near = difflib.get_close_matches(rest, known, n=1, cutoff=0.5) or ["resnet18"]
        raise ValueError(
            f"torchvision must have a classifier {rest!r}, and has none. Did you mean torchvision:{near[0]}?"
        )
    weights = getattr(models.get_model_weights(rest), "DEFAULT", None)
    made_for = weights.transforms() if weights is not None else None
    side = made_for.crop_size[0] if made_for is not None else _USUAL[1]
    shape = image_shape(source, asked.shape, (3, side, side))
    if shape[0] != 3:
        raise ValueError(f"{source} takes images of 3 channels, got {shape[0]}. Pass --input 3x{shape[1]}x{shape[2]}.")
    settings = dict(asked.settings)
    if rest.startswith("vit_") and shape[1] != side:
        settings = {"image_size": shape[1], **settings}
    build = functools.partial(models.get_model, rest, weights=weights if asked.download else None, **settings)
    mean, spread = (tuple(getattr(made_for, name, ())) for name in ("mean", "std"))
    classes = len(weights.meta.get("categories", ())) if weights is not None else 0
    return NamedModel(
        label_of(rest, asked.named),
        build,
        shape,
        asked.download,
        mean,
        spread,
        settings.get("num_classes", classes) or None,
    )
