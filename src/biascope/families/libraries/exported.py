"""``FILE.pt2`` or ``exported:FILE``: a graph that torch.export wrote, with its weights.

Such a file is a program, as a Python file is: its operations run on this machine. Load none from people you do not trust.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path

import torch
from torch import nn

from biascope.families.named_model import Asked, NamedModel
from biascope.runs.failures import FOREIGN

EXAMPLE = "network.pt2"


def named(rest: str, asked: Asked) -> NamedModel:
    """The graph; its inputs have the shape that it was exported for."""
    path = Path(rest).expanduser()
    if not path.is_file():
        raise ValueError(f"The exported network must exist, but {path} does not. Check the path.")
    if asked.settings:
        raise ValueError(f"{path} is a graph without settings, got {dict(asked.settings)}. Leave --set out.")
    program = _program(path)
    taken = [
        node.meta["val"]
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in program.graph_signature.user_inputs
    ]
    if len(taken) != 1 or not isinstance(taken[0], torch.Tensor):
        raise ValueError(
            f"{path} must take one tensor, but it takes {len(taken)} inputs. Export a module that takes one tensor."
        )
    shape = asked.shape
    if shape is None:
        sizes = taken[0].shape[1:]
        if not all(isinstance(size, int) for size in sizes):
            raise ValueError(f"{path} takes inputs of several shapes. Say which with --input, such as --input 3x32x32.")
        shape = tuple(int(size) for size in sizes)
    return NamedModel(path.stem, functools.partial(_module, path), shape, trained=True)


def _program(path: Path) -> torch.export.ExportedProgram:
    log = logging.getLogger("torch.export")
    before = log.level
    log.setLevel(logging.CRITICAL)  # it prints the whole stack of what is told here in a sentence
    try:
        return torch.export.load(path)
    except FOREIGN as error:
        raise ValueError(
            f"{path} must be a file that torch.export.save of this version of torch wrote, but torch cannot read it. Export it again."
        ) from error
    finally:
        log.setLevel(before)


def _module(path: Path) -> nn.Module:
    return _program(path).module()
