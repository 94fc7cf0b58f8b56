"""Weights: the vector space of named parameters, in memory and on disk."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from biascope.runs.digest import Described
from biascope.runs.files import written

Params = dict[str, Tensor]
EDITABLE = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # of BatchNorm


def state_of(module: nn.Module) -> Params:
    """The parameters and buffers of a module by name, shared ones once, also those that it does not save."""
    return dict((*module.named_parameters(), *module.named_buffers()))


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


def layer_of(name: str) -> str:
    """The layer that a parameter belongs to: its name without the last part.

    Example:
        >>> layer_of("encoder.2.weight"), layer_of("class_token")
        ('encoder.2', 'class_token')
    """
    return name.rpartition(".")[0] or name


def is_edited(name: str, tensor: Described) -> bool:
    """Whether arithmetic applies to a tensor: floating-point numbers, except the running statistics of BatchNorm.

    Raises:
        ValueError: If it holds complex or 8-bit numbers, which can be neither edited nor left as they are.

    Example:
        >>> [is_edited(name, torch.zeros(1)) for name in ("weight", "bn.running_var")], is_edited("steps", torch.tensor(3))
        ([True, False], False)
    """
    if tensor.dtype in EDITABLE:
        return name.rpartition(".")[2] not in _STATISTICS
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        raise ValueError(
            f"The weights must be float32, float64, float16 or bfloat16 to be edited, but {name} is {type_name(tensor.dtype)}. "
            "Convert the model first."
        )
    return False


def working_type(dtype: torch.dtype) -> torch.dtype:
    """The type that weights of a type are edited in: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def type_name(dtype: torch.dtype) -> str:
    """What a type is called, without its library."""
    return str(dtype).removeprefix("torch.")


def load(path: Path | str, *, mapped: bool = False) -> Params:
    """Read weights from a safetensors file, or from a torch file without unpickling any code.

    Args:
        path: ``.safetensors``, or a file written by ``torch.save`` that holds tensors by name; a training checkpoint
            that keeps them under ``state_dict``, ``model`` or ``model_state_dict`` is understood.
        mapped: Leave the values of a torch file on disk until they are used, where its format allows.

    Raises:
        ValueError: If the file is missing, damaged, or holds anything other than named tensors.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"The weights must be one file, but {path} is a folder. Pass a folder as checkpoints.")
    if not path.is_file():
        raise ValueError(f"The weights file must exist, but {path} does not. Check the path.")
    try:
        if path.suffix == ".safetensors":
            return (
                safetensors.torch.load_file(path)
                if str(path).isprintable()
                else safetensors.torch.load(path.read_bytes())
            )
        content = _unpickled(path, mapped)
    except Exception as error:  # pickle, zip and safetensors each raise their own kinds
        wants = re.search(r"unsupported (?:global: )?GLOBAL ([\w.]+)", str(error), re.IGNORECASE)
        reason = f"it asks to run {wants[1]}, and code is never run" if wants else type(error).__name__
        raise ValueError(
            f"{path} must be a safetensors file or a torch file of plain tensors, but could not be read as one "
            f"({reason}). Save the weights with safetensors.torch.save_file(model.state_dict(), …)."
        ) from error
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} must hold tensors by name, but holds something else. Save model.state_dict().")
    return dict(content)


def _unpickled(path: Path, mapped: bool) -> object:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except (
        RuntimeError,
        UnicodeEncodeError,
    ):  # the format before torch 1.6 cannot be mapped, nor a path that is not UTF-8
        if not mapped:
            raise
        return torch.load(path, map_location="cpu", weights_only=True)


def save(params: Params, path: Path | str, metadata: dict[str, str] | None = None) -> None:
    """Write weights as safetensors, whole or not at all."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in params.items()}
    from biascope import __version__

    with written(Path(path)) as temporary:
        safetensors.torch.save_file(tensors, temporary, metadata={"biascope": __version__, **(metadata or {})})


def editable_type(name: str, whose: str) -> torch.dtype:
    """The type of a name, among those that weights can be edited in.

    Raises:
        ValueError: If it is none of them.

    Example:
        >>> editable_type("bfloat16", "--dtype")
        torch.bfloat16
    """
    known = {type_name(dtype): dtype for dtype in EDITABLE}
    if name not in known:
        raise ValueError(f"{whose} must be one of {', '.join(known)}, got {name!r}. Pass one of these.")
    return known[name]


def misfits(
    found: Mapping[str, Described], wanted: Mapping[str, Described], *, types: bool = True, converted: bool = False
) -> str:
    """The differences between two sets of tensors, matched by name, in words; empty if they fit.

    Args:
        found: The tensors in question.
        wanted: What they should be.
        types: Whether they must also have the same types.
        converted: Whether types that can be edited may differ from each other.

    Example:
        >>> misfits({"a": torch.zeros(2), "c": torch.zeros(1)}, {"a": torch.zeros(3), "b": torch.zeros(1)})
        '1 missing (b); 1 extra (c); 1 of another shape (a (2,) instead of (3,))'
    """
    both = sorted(found.keys() & wanted.keys())
    problems = {
        "missing": sorted(wanted.keys() - found.keys()),
        "extra": sorted(found.keys() - wanted.keys()),
        "of another shape": [
            f"{name} {tuple(found[name].shape)} instead of {tuple(wanted[name].shape)}"
            for name in both
            if tuple(found[name].shape) != tuple(wanted[name].shape)
        ],
        "of another type": [
            f"{name} {type_name(found[name].dtype)} instead of {type_name(wanted[name].dtype)}"
            for name in both
            if types
            and found[name].dtype != wanted[name].dtype
            and not (converted and {found[name].dtype, wanted[name].dtype} <= set(EDITABLE))
        ],
    }
    return "; ".join(
        f"{len(names)} {kind} ({', '.join(names[:4])}{' …' if len(names) > 4 else ''})"
        for kind, names in problems.items()
        if names
    )
