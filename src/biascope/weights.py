"""Weights: the vector space of named parameters, in memory and on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

Params = dict[str, Tensor]


def count(params: Params) -> int:
    """How many numbers a set of weights holds.

    Example:
        >>> count({"weight": torch.zeros(3, 4), "bias": torch.zeros(3)})
        15
    """
    return sum(tensor.numel() for tensor in params.values())


def stacked(members: Sequence[Params]) -> Params:
    """Several sets of weights of the same network as one, with a leading axis over the members."""
    return {name: torch.stack([member[name] for member in members]) for name in members[0]}


def moved(params: Params, device: torch.device, dtype: torch.dtype) -> Params:
    """The weights on a device; floating-point ones in a type, the others (counters) in their own."""
    return {
        name: tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in params.items()
    }


def fingerprint(params: Params) -> str:
    """A short hash of names, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(params):
        tensor = params[name].detach().cpu().contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def load(path: Path | str) -> Params:
    """Read weights from a safetensors file, or from a torch file without unpickling any code.

    Args:
        path: ``.safetensors``, or a file written by ``torch.save`` that holds tensors by name; a training checkpoint
            that keeps them under ``state_dict``, ``model`` or ``model_state_dict`` is understood.

    Raises:
        ValueError: If the file is missing, damaged, or holds something else than named tensors.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"The weights must be one file, and {path} is a folder. Pass a folder as checkpoints.")
    if not path.is_file():
        raise ValueError(f"The weights file must exist, and {path} does not. Check the path.")
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip and safetensors each raise their own kinds
        raise ValueError(
            f"{path} must be a safetensors file or a torch file of plain tensors, and could not be read as one "
            f"({type(error).__name__}). Save the weights with safetensors.torch.save_file(model.state_dict(), …)."
        ) from error
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} must hold tensors by name, and holds something else. Save model.state_dict().")
    return dict(content)


def save(params: Params, path: Path | str, metadata: dict[str, str] | None = None) -> None:
    """Write weights as safetensors."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in params.items()}
    safetensors.torch.save_file(tensors, path, metadata=metadata)


def matched(loaded: Params, wanted: Params, source: str) -> Params:
    """The loaded weights under the wanted names, or an error that lists what does not fit.

    A prefix that all loaded names share (``module.`` of a parallel wrapper) is removed if that makes the names fit.

    Raises:
        ValueError: Listing missing, extra and mis-shaped names.
    """
    if not loaded.keys() & wanted.keys():
        for prefix in ("module.", "model.", "_orig_mod."):
            if all(name.startswith(prefix) for name in loaded):
                loaded = {name.removeprefix(prefix): tensor for name, tensor in loaded.items()}
    problems = {
        "missing": sorted(wanted.keys() - loaded.keys()),
        "extra": sorted(loaded.keys() - wanted.keys()),
        "of another shape": sorted(
            f"{name} {tuple(loaded[name].shape)} instead of {tuple(wanted[name].shape)}"
            for name in loaded.keys() & wanted.keys()
            if loaded[name].shape != wanted[name].shape
        ),
    }
    listed = [
        f"{len(names)} {kind} ({', '.join(names[:4])}{' …' if len(names) > 4 else ''})"
        for kind, names in problems.items()
        if names
    ]
    if listed:
        raise ValueError(f"The weights in {source} must fit the network: {'; '.join(listed)}. Pass the matching model.")
    return {name: loaded[name] for name in wanted}
