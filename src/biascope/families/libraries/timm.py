"""``timm:NAME``: a network of timm, with initial weights; with ``--download`` its pre-trained ones."""

from __future__ import annotations

import difflib
import functools

from biascope.families.libraries.packages import imported
from biascope.families.named_model import Asked, NamedModel, image_shape, label_of

EXAMPLE = "timm:resnet18"


def named(rest: str, asked: Asked) -> NamedModel:
    """A network as timm builds it for images of the shape that was asked for."""
    source = f"timm:{rest}"
    timm = imported("timm", source, least="1.0")
    if not timm.is_model(rest.partition(".")[0]):
        near = difflib.get_close_matches(rest, timm.list_models(), n=3, cutoff=0.6)
        raise ValueError(
            f"timm must have a network {rest!r}, and has none. "
            + (f"Did you mean timm:{near[0]}?" if near else "Type python -c 'import timm; print(timm.list_models())'.")
        )
    name, _, tag = rest.partition(".")
    tags = [each for each in timm.list_pretrained(f"{name}.*") if each != rest] if tag else []
    if tag and not timm.is_model_pretrained(rest):
        raise ValueError(
            f"timm must have weights {tag!r} of {name}, and has none. Did you mean timm:{(tags or [name])[0]}?"
        )
    entry = timm.get_pretrained_cfg(rest)
    usual = tuple(entry.input_size) if entry is not None else (3, 224, 224)
    shape = image_shape(source, asked.shape, usual)
    settings = {**({} if shape[0] == 3 else {"in_chans": shape[0]}), **asked.settings}
    if shape[1:] != usual[1:] and entry is not None and entry.fixed_input_size:
        settings = {"img_size": shape[1:], **settings}
    build = functools.partial(timm.create_model, rest, pretrained=asked.download, **settings)
    mean, spread = (tuple(getattr(entry, name)) if entry is not None else () for name in ("mean", "std"))
    classes = settings.get("num_classes", entry.num_classes if entry is not None else None)
    return NamedModel(label_of(rest, asked.named), build, shape, asked.download, mean, spread, classes or None)
