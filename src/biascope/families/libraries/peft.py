"""``peft:FOLDER``: a base model with the adapter of a folder that peft saved.

The base is the folder that the adapter names, or ``--set base=FOLDER``.
"""

from __future__ import annotations

import functools
import inspect
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from biascope.families.libraries.hf import library, model_of
from biascope.families.libraries.packages import imported, silent
from biascope.families.named_model import Asked, NamedModel
from biascope.runs.failures import FOREIGN, reason_of

EXAMPLE = "peft:path/to/adapter"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")


def named(rest: str, asked: Asked) -> NamedModel:
    """The base with its adapter."""
    source, folder = f"peft:{rest}", Path(rest).expanduser()
    transformers = library(source)
    peft = imported("peft", source)
    file = folder / "adapter_config.json"
    if not file.is_file():
        raise ValueError(
            f"{folder} must hold adapter_config.json, and does not. Pass a folder that peft's save_pretrained wrote."
        )
    settings = dict(asked.settings)
    try:
        given = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} must be JSON, but is not: {error}. Save the adapter again.") from error
    if not isinstance(given, dict):
        raise ValueError(f"{file} must hold settings by name, got a {type(given).__name__}. Save the adapter again.")
    if not any((folder / name).is_file() for name in _WEIGHTS):
        raise ValueError(f"{folder} must hold {_WEIGHTS[0]}, and does not. Save the adapter again.")
    base = str(settings.pop("base", given.get("base_model_name_or_path") or ""))
    if settings:
        raise ValueError(f"{source} takes the setting base alone, got {settings}. Leave the others out.")
    if not asked.download and not (Path(base) / "config.json").is_file():
        raise ValueError(
            f"{source} was made for the base {base or 'that it does not name'}, which is no folder with a model here. Pass "
            "--set base=FOLDER, or --download to fetch it."
        )
    make = functools.partial(_adapted, transformers, peft, folder, base, asked.download)
    return model_of(source, folder.resolve().name, make, Asked(asked.shape, text=asked.text))


def _adapted(transformers: Any, peft: Any, folder: Path, base: str, download: bool) -> nn.Module:
    """The base with the adapter's layers in place.

    Raises:
        ValueError: If the adapter does not fit the base.
    """
    try:
        config = peft.PeftConfig.from_pretrained(str(folder))
    except FOREIGN as error:
        raise ValueError(
            f"{folder} must hold an adapter that peft knows, but reading it failed with: {reason_of(error)}. Check that peft is new "
            "enough for it."
        ) from error
    if config.is_prompt_learning:
        raise ValueError(
            f"{folder} must hold an adapter that changes weights, such as LoRA, got {config.peft_type.value}, which adds virtual "
            "tokens. Build the model in file.py:build."
        )
    kind = _class_for(peft, config.task_type) or transformers.AutoModel
    try:
        with silent(transformers), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            whole = kind.from_pretrained(
                base, attn_implementation="eager", dtype=torch.float32, local_files_only=not download, **_labels(folder)
            )
            adapted = peft.PeftModel.from_pretrained(whole, str(folder))
        if missing := next((str(each.message) for each in told if "adapter keys" in str(each.message)), ""):
            raise ValueError(missing)  # weights of the adapter would stay at their initial values
    except FOREIGN as error:
        raise ValueError(
            f"{folder} must hold an adapter for the base {base}, but it does not fit: {reason_of(error)}. Pass its own base with "
            "--set base=FOLDER."
        ) from error
    model: nn.Module = adapted.base_model.model
    return model.requires_grad_()


def _labels(folder: Path) -> dict[str, int]:
    """The number of classes, where the adapter's file holds a head of its own."""
    from safetensors import safe_open

    file = folder / "adapter_model.safetensors"
    if not file.is_file():
        return {}
    with safe_open(file, framework="pt") as tensors:
        names: list[str] = tensors.keys()
        heads = [name for name in names if name.endswith(("classifier.weight", "score.weight", "out_proj.weight"))]
        return {"num_labels": tensors.get_slice(heads[-1]).get_shape()[0]} if heads else {}


def _class_for(peft: Any, task: str | None) -> Any:
    """The class of transformers that peft loads for a task."""
    wanted = peft.mapping_func.MODEL_TYPE_TO_PEFT_MODEL_MAPPING.get(task)
    kinds: Any = (kind for kind in vars(peft.auto).values() if inspect.isclass(kind))
    return next((kind._target_class for kind in kinds if getattr(kind, "_target_peft_class", object) is wanted), None)
