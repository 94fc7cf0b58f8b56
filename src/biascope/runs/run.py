"""Run: how work is carried out (folder, device, precision, place, progress). Recorded with a result, never part of its identity."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

PRECISIONS = {
    "float64": torch.float64,
    "float32": torch.float32,
    "tf32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True)
class Run:
    """How work is carried out.

    Attributes:
        folder: Where trials and results are kept; ``None`` keeps them in memory and cannot be resumed.
        device: ``"auto"`` (CUDA if there is one), ``"cpu"``, ``"cuda"``, ``"cuda:1"`` …
        precision: ``"float64"``, ``"float32"`` (true float32 products), ``"tf32"``, ``"float16"`` or
            ``"bfloat16"`` (weights and activations; sums over draws are always kept in float64). In training
            ``"bfloat16"`` means products alone: weights stay in float32.
        progress: Whether to show a progress bar; it is silent anyway where standard error is not a terminal.
        on: Where sweeps of trials run: ``None`` for this process; ``"ray"`` for the Ray cluster that ``RAY_ADDRESS``
            names or that runs on this machine, or a fresh local one; ``"ray://head:10001"`` for a cluster elsewhere.
        data_root: Folder of the real data sets; on a cluster, the same path on every node.

    Example:
        >>> Run(device="cpu").torch_device
        device(type='cpu')
    """

    folder: Path | None = None
    device: str = "auto"
    precision: str = "float32"
    progress: bool = True
    on: str | None = None
    data_root: Path | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            known = ", ".join(repr(name) for name in PRECISIONS)
            raise ValueError(f"precision must be one of {known}, got {self.precision!r}. Pass precision='float32'.")
        if self.folder is not None:
            object.__setattr__(self, "folder", Path(self.folder))
        if self.data_root is not None:
            object.__setattr__(self, "data_root", Path(self.data_root))
        if self.on is not None and self.on != "ray" and not re.fullmatch(r"ray://[^/\s]+:\d+", self.on):
            raise ValueError(f"on must be 'ray' or 'ray://HOST:PORT', got {self.on!r}. Pass on='ray'.")
        if self.device != "auto":
            try:
                torch.device(self.device)
            except RuntimeError as error:
                message = f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {self.device!r}. Pass device='auto'."
                raise ValueError(message) from error

    @property
    def torch_device(self) -> torch.device:
        """The device that work in this process runs on."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        device = torch.device(self.device)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                "device 'cuda' needs a CUDA GPU that this PyTorch can see, and there is none. Pass device='cpu'."
            )
        return device

    @property
    def shared(self) -> Run:
        """The same run with the folder ``shared`` beside its own, for what figures of one paper have in common."""
        return self if self.folder is None else dataclasses.replace(self, folder=self.folder.parent / "shared")

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of weights and activations."""
        return PRECISIONS[self.precision]

    @contextlib.contextmanager
    def products(self) -> Iterator[None]:
        """Set the precision of float32 products on CUDA for the duration, and restore the setting after it."""
        allowed = self.precision == "tf32"
        before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before

    @contextlib.contextmanager
    def tracked(self, label: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
        """A progress bar with rate and time left: yields ``advance(count)``; silent when not on a terminal."""
        if not self.progress or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            yield lambda count: None
            return
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError:  # the library works without the command line's packages
            yield lambda count: None
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=total, completed=done, rate="")

            def advance(count: int) -> None:
                bar.advance(task, count)
                speed = bar.tasks[0].speed
                bar.update(task, rate=f"{speed:,.1f}/s" if speed else "")

            yield advance

    def describe(self) -> dict[str, str]:
        """What a result records of how it was made."""
        if self.on is not None:  # this process need not have the device that the cluster works with
            return {"device": f"{self.device} on {self.on}", "precision": self.precision}
        device = self.torch_device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{os.cpu_count()} CPU cores"
        return {"device": f"{device.type} ({name})", "precision": self.precision}
