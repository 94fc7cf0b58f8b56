"""Run: how work is run (folder, device, precision, place, progress). Recorded with a result, never part of its identity."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from biascope.runs.ambient import PRECISION
from biascope.runs.byte_size import byte_size, enough
from biascope.runs.byte_size import in_words as amount
from biascope.runs.memory import LIBRARIES, piece, used, usual_limit
from biascope.runs.progress import Stage, in_words
from biascope.runs.rehearsal import counted, expect_memory

PRECISIONS = {
    "float64": torch.float64,
    "float32": torch.float32,
    "tf32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
SURE_AFTER = 5.0  # seconds after which the pace of work is taken to be known


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
        memory: Main memory that the process may take at its peak, in bytes or as ``"2GB"``; by default what it takes already and half
            of what is free, at least 1 GB. Work is cut into pieces that fit, and what cannot be is refused. Only the last digits of
            results depend on it.

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
    memory: int | str | None = None

    def __post_init__(self) -> None:
        if self.memory is not None:
            object.__setattr__(self, "memory", byte_size(str(self.memory), "memory", "2GB"))
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

    @property
    def rounding(self) -> float:
        """The relative error that one product may have."""
        if self.precision == "tf32" and self.torch_device.type == "cuda":
            return 2.0**-11
        return float(torch.finfo(self.dtype).eps)

    @property
    def limit(self) -> int:
        """Bytes of main memory that the process may take."""
        return usual_limit() if self.memory is None else int(self.memory)

    def room(self, most: int, parts: int = 8) -> int:
        """Bytes of main memory that a piece of work may take; see :func:`biascope.runs.memory.piece`."""
        return piece(self.limit, most, parts)

    def expects(self, what: str, memory: int, instead: str) -> None:
        """Say before work begins how much main memory it takes. A dry run prints it.

        Args:
            what: The work, as the subject of a sentence.
            memory: Bytes beside those that the process holds.
            instead: What to do where it is too much, as a sentence without its full stop.

        Raises:
            ValueError: If it is more than the limit.

        Example:
            >>> Run(memory="2GB").expects("The matrix", 10**11, "Pass fewer samples")
            Traceback (most recent call last):
            ...
            ValueError: The matrix needs about 10... GB of memory, but ... 2.0 GB. Pass fewer samples, or --memory 10...
        """
        peak = max(used(), LIBRARIES) + memory
        expect_memory(peak)
        limit = self.limit
        if peak > limit:
            allowed = "the limit is half of what is free," if self.memory is None else "--memory allows"
            raise ValueError(
                f"{what} needs about {amount(peak)} of memory, but {allowed} {amount(limit)}. {instead}, or --memory {enough(peak)} "
                f'(in Python, Run(memory="{enough(peak)}")).'
            )

    @contextlib.contextmanager
    def products(self) -> Iterator[None]:
        """Set the precision of float32 products for the duration, and restore the setting after it."""
        with PRECISION.at(self.precision == "tf32"):
            yield

    def tracked(
        self, label: str, total: int, done: int = 0
    ) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        """Progress with the time left: gives ``advance(count)``. A bar on a terminal, elsewhere a line every half minute."""
        return counted(label, total, done, shown=self.progress, watched=self._require_patience)

    def _require_patience(self, stage: Stage) -> None:
        """Refuse work that would take too long.

        Raises:
            ValueError: If what is left would take longer than the patience.
        """
        if self.patience is None or stage.elapsed < SURE_AFTER or (left := stage.seconds_left([])) is None:
            return
        if left > self.patience:
            raise ValueError(
                f"{stage.label} would take about {in_words(left)}, more than the limit of "
                f"{in_words(self.patience)}. Reduce the work, or pass --yes (in Python, patience=None) to run it anyway."
            )

    def describe(self) -> dict[str, str]:
        """The device and precision, as a result records them."""
        if self.on is not None:  # this process need not have the device that the cluster works with
            return {"device": f"{self.device} on {self.on}", "precision": self.precision}
        device = self.torch_device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{os.cpu_count()} CPU cores"
        return {"device": f"{device.type} ({name})", "precision": self.precision}

    @property
    def in_words(self) -> str:
        """The device, the precision and the version of torch."""
        return f"{self.describe()['device']}, {self.precision}, torch {torch.__version__}"
