"""Run: how work is run (folder, device, precision, place, progress). Recorded with a result, never part of its identity."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from biascope.runs.rehearsal import counted, rehearsing

PRECISIONS = {
    "float64": torch.float64,
    "float32": torch.float32,
    "tf32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True)
class Run:
    """How work is run: folder, device, precision and place.

    Attributes:
        folder: Where trials and results are saved; with ``None`` they stay in memory, and the run cannot be resumed.
        device: ``"auto"`` (CUDA if there is one), ``"cpu"``, ``"cuda"``, ``"cuda:1"`` …
        precision: Type of weights and activations: ``"float64"``, ``"float32"`` (true float32 products), ``"tf32"``, ``"float16"``
            or ``"bfloat16"``. Sums over draws are always in float64. In training, ``"bfloat16"`` applies to products only: weights
            stay in float32.
        progress: Whether to show progress: a bar on a terminal, elsewhere a line every half minute, on standard error.
        on: Where sweeps of trials run. ``None``: this process. ``"ray"``: the Ray cluster of ``RAY_ADDRESS`` or of this machine,
            else a new local one. ``"ray://head:10001"``: a cluster elsewhere.
        data_root: Folder of data sets. Only this process reads it: on a cluster, samples are sent with the work.
        patience: Seconds that one piece of work may take; longer work is refused soon after it starts.

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
    patience: float | None = None

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
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", str(self.device)):
            raise ValueError(
                f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {self.device!r}. Pass device='auto'."
            )

    def __repr__(self) -> str:
        given = [
            f"{each.name}={value!r}"
            for each in dataclasses.fields(self)
            if (value := getattr(self, each.name)) != each.default
        ]
        return f"Run({', '.join(given)})"

    @property
    def torch_device(self) -> torch.device:
        """The device that work in this process runs on."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        device = torch.device(self.device)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError("device 'cuda' needs a CUDA GPU, but PyTorch sees none. Pass device='cpu'.")
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise ValueError(
                f"device must be one of the {torch.cuda.device_count()} GPUs here, got {self.device!r}. Pass device='cuda:0'."
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
        """Progress with the time left: yields ``advance(count)``. A bar on a terminal, elsewhere a line every half minute."""
        if rehearsing():
            with counted(label, total, done) as count_pieces:
                yield count_pieces
            return
        pace = _Pace(label, total, done, self.patience)
        if not self.progress:
            yield pace.advance
            return
        if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            yield pace.advance_and_tell
            return
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError:  # the library works without the command line's packages
            yield pace.advance_and_tell
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
                pace.advance(count)
                bar.advance(task, count)
                speed = bar.tasks[0].speed
                bar.update(task, rate=f"{speed:,.1f}/s" if speed else "")

            yield advance

    def describe(self) -> dict[str, str]:
        """The device and precision, as a result records them."""
        if self.on is not None:  # this process need not have the device that the cluster works with
            return {"device": f"{self.device} on {self.on}", "precision": self.precision}
        device = self.torch_device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{os.cpu_count()} CPU cores"
        return {"device": f"{device.type} ({name})", "precision": self.precision}


class _Pace:
    """How fast a piece of work goes: tells it in lines on standard error, and refuses what would take too long."""

    LINE_EVERY = 30.0  # seconds
    SURE_AFTER = 5.0  # seconds from which on the pace is taken to be known

    def __init__(self, label: str, total: int, done: int, patience: float | None) -> None:
        self._label, self._total, self._done, self._first, self._patience = label, total, done, done, patience
        self._begin = self._told = time.monotonic()

    def advance(self, count: int) -> None:
        """Count what is done.

        Raises:
            ValueError: If what is left would take longer than the patience.
        """
        self._done += count
        if self._patience is None or time.monotonic() - self._begin < self.SURE_AFTER or self._left() <= self._patience:
            return
        raise ValueError(
            f"{self._label} would take about {_in_words(self._left())}, more than the limit of {_in_words(self._patience)}. "
            "Reduce the work, or pass --yes (in Python, patience=None) to run it anyway."
        )

    def advance_and_tell(self, count: int) -> None:
        """The same, with a line every half minute."""
        self.advance(count)
        now = time.monotonic()
        if now - self._told >= self.LINE_EVERY and self._done < self._total:
            self._told = now
            words = f"{self._done:,} of {self._total:,}, about {_in_words(self._left())} left"
            print(f"biascope: {self._label}: {words}", file=sys.stderr, flush=True)

    def _left(self) -> float:
        spent = time.monotonic() - self._begin
        return spent * (self._total - self._done) / max(self._done - self._first, 1)


def _in_words(seconds: float) -> str:
    for unit, length in (("years", 365 * 86400), ("days", 86400), ("hours", 3600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.0f} s"
