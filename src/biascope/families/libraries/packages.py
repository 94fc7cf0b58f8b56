"""Importing the field's libraries, of which none is a requirement of this one."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from biascope.runs.ambient import settings_kept
from biascope.runs.failures import FOREIGN, reason_of

INSTALL = "pip install 'biascope[hub]'"
#: Operators that torchvision's Python code names when it is imported; models of images call none of them.
_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_DEFINED: list[torch.library.Library] = []  # a library that is collected takes its operators with it


def imported(name: str, source: str, *, least: str = "") -> ModuleType:
    """A library that a model needs.

    Args:
        name: Of its package.
        source: The model, as the user named it.
        least: The least version that is understood.

    Raises:
        ValueError: If it is not installed, too old, or cannot be imported.
    """
    define_operators_of_torchvision()
    package = name.partition(".")[0]
    try:
        with settings_kept(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise ValueError(f"{source} needs {package}, which itself needs {error.name}. Type {INSTALL}.") from error
        raise ValueError(f"{source} needs the package {package}, which is not installed. Type {INSTALL}.") from error
    except FOREIGN as error:
        raise ValueError(
            f"{source} needs the package {package}, but importing it failed with: {reason_of(error)}. Install it again, with "
            "versions of torch and torchvision that fit each other."
        ) from error
    version = importlib.metadata.version(_DISTRIBUTIONS.get(package, package))
    if least and _numbers(version) < _numbers(least):
        raise ValueError(f"{source} needs {package} {least} or newer, got {version}. Type {INSTALL} --upgrade.")
    return module


@contextlib.contextmanager
def silent(transformers: Any) -> Iterator[None]:
    """Without the remarks and progress bars of transformers."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


_DISTRIBUTIONS = {"open_clip": "open_clip_torch"}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())


@functools.cache
def define_operators_of_torchvision() -> None:
    """Let torchvision be imported where its operators were built for another torch.

    A torchvision for GPUs beside a torch for CPUs cannot load its compiled operators, and then its Python code, and with it timm and
    transformers, ends in "operator torchvision::nms does not exist". The schemas of these operators are all that the import needs.
    """
    if importlib.util.find_spec("torchvision") is None or _operators_load():
        return
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for schema in _OPERATORS:
        library.define(schema)  # type: ignore[no-untyped-call]
    _DEFINED.append(library)
    warnings.warn(
        "The installed torchvision does not fit the installed torch: its compiled operators do not load. Models are measured without "
        "them. Install a torchvision that fits to use detection models.",
        stacklevel=3,
    )


def _operators_load() -> bool:
    """Whether the operators of torchvision are there, now that its compiled part was asked for."""
    if hasattr(torch.ops.torchvision, "nms"):
        return True
    spec = importlib.util.find_spec("torchvision")
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(folder).glob("_C*")):
            with contextlib.suppress(OSError, RuntimeError):
                torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    return hasattr(torch.ops.torchvision, "nms")
