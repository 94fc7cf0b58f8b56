"""Checkpoints written slice by slice: to temporary names, renamed when they are complete."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import torch
from torch import Tensor

from biascope.families.checkpoint import INDEX, TYPES, bytes_of
from biascope.runs.digest import Described
from biascope.runs.files import make_writable, partial_name, put_in_place, write_atomically

SHARD = 5_000_000_000  # bytes of a shard, unless told otherwise
_WORDS = {dtype: word for word, dtype in TYPES.items()}


class Planned(NamedTuple):
    """A tensor that will be written."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class CheckpointWriter:
    """Write a checkpoint slice by slice; its file appears only when it is complete.

    Everything goes to temporary names beside the target. Leaving the context renames them; leaving it by an error or by
    Ctrl-C removes them.

    Args:
        path: A ``.safetensors`` file, or a folder for shards with their index.
        plan: Shape and type of every tensor, by name, in the order in which they will be written.
        metadata: Metadata of the file; values may change until the end, but must not become longer.
        shard_bytes: Largest size of a shard in bytes; a larger tensor gets a shard of its own.
        overwrite: Whether to replace what is there.

    Raises:
        ValueError: If the target exists, its folder cannot be written, or the disk is too small: all before anything is written.

    Example:
        >>> import tempfile
        >>> from safetensors.torch import load_file
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with CheckpointWriter(f"{folder}/model.safetensors", {"w": torch.empty(4)}) as writer:
        ...         writer.write("w", torch.ones(3))
        ...         writer.write("w", torch.zeros(1))
        ...     load_file(f"{folder}/model.safetensors")["w"].tolist()
        [1.0, 1.0, 1.0, 0.0]
    """

    def __init__(
        self,
        path: Path | str,
        plan: Mapping[str, Described],
        *,
        metadata: Mapping[str, str] | None = None,
        shard_bytes: int = SHARD,
        overwrite: bool = False,
    ) -> None:
        self.path, self.metadata = Path(path), {"format": "pt", **(metadata or {})}
        self._plan = {name: Planned(tuple(tensor.shape), tensor.dtype) for name, tensor in plan.items()}
        self._one = self.path.suffix == ".safetensors"
        if shard_bytes < 1:
            raise ValueError(f"The size of a shard must be positive, got {shard_bytes} bytes. Pass 5GB.")
        if self.path.exists() and self._one == self.path.is_dir():
            kind = "a folder" if self._one else "a file"
            raise ValueError(
                f"The output must be {'a file' if self._one else 'a folder'}, but {self.path} is {kind}. Pass another name."
            )
        existing = self.path.exists() if self._one else self.path.is_dir() and any(self.path.iterdir())
        if existing and not overwrite:
            raise ValueError(f"The output must not exist yet, but {self.path} does. Pass another name, or --overwrite.")
        shards = _shards(self._plan, math.inf if self._one else shard_bytes)
        self._shards = [_Shard({name: self._plan[name] for name in names}, self.metadata) for names in shards]
        _check_room(self.path.parent, sum(shard.size for shard in self._shards))
        make_writable(self.path.parent)
        self._temporary = partial_name(self.path)
        self._owners = {name: number for number, shard in enumerate(self._shards) for name in shard.names}
        self._left = {name: math.prod(shape) for name, (shape, _) in self._plan.items()}
        self._file: FileIO | None = None
        self._open = ("", -1)  # the tensor and the shard that are being written

    def __enter__(self) -> Self:
        self._temporary.mkdir()
        return self

    def write(self, name: str, values: Tensor) -> None:
        """Write the next values of a tensor; tensors come in the order of the plan."""
        number = self._owners[name]
        if self._open[1] != number:
            self._close()
            self._file = self._opened(number)
        assert self._file is not None
        if self._open[0] != name:
            self._file.seek(self._shards[number].offsets[name])
        self._open = (name, number)
        flat = values.detach().cpu().to(self._plan[name][1]).contiguous().flatten()
        self._left[name] -= len(flat)
        _put(self._file, flat.view(torch.uint8).numpy().data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._close()
            if kind is None:
                self._finish()
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _finish(self) -> None:
        if odd := [name for name, left in self._left.items() if left]:
            raise ValueError(f"Every tensor must be written completely, but {odd[0]} was not. Report this as a bug.")
        for number, shard in enumerate(self._shards):
            with self._opened(number) as file:
                _put(file, memoryview(shard.header(self.metadata)))
                os.fsync(file.fileno())  # of all shards, before the first of them replaces another
        if self._one:
            put_in_place(self._part(0), self.path)
            return
        index = self._index() if len(self._shards) > 1 else None
        if not self.path.exists() or not any(self.path.iterdir()):
            # All at once: killed, it leaves a whole folder or none, and the same command begins again.
            if index is not None:
                write_atomically(self._temporary / INDEX, index)
            if self.path.exists():
                self.path.rmdir()
            os.replace(self._temporary, self.path)
            return
        stale = {path.name for path in self.path.glob("model-*-of-*.safetensors")} | {"model.safetensors"}
        # Without an index, a folder that is half replaced cannot be taken for a model.
        (self.path / INDEX).unlink(missing_ok=True)
        for number in range(len(self._shards)):
            put_in_place(self._part(number), self.path / self._part(number).name)
        for name in stale - {self._part(number).name for number in range(len(self._shards))}:
            (self.path / name).unlink(missing_ok=True)
        if index is not None:
            write_atomically(self.path / INDEX, index)

    def _index(self) -> bytes:
        """Which shard holds which tensor."""
        places = {name: self._part(number).name for name, number in self._owners.items()}
        total = sum(map(bytes_of, self._plan.values()))
        document = {"metadata": {"total_size": total, **self.metadata}, "weight_map": places}
        return json.dumps(document, indent=1).encode()

    def _part(self, number: int) -> Path:
        count = len(self._shards)
        suffix = f"-{number + 1:05}-of-{count:05}" if count > 1 else ""
        return self._temporary / f"model{suffix}.safetensors"

    def _opened(self, number: int) -> FileIO:
        path = self._part(number)
        return FileIO(path, "r+" if path.exists() else "w")

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Shard:
    """The layout of one file: widest types first, as other readers want it, so that every tensor is aligned."""

    def __init__(self, plan: Mapping[str, Planned], metadata: Mapping[str, str]) -> None:
        self.names = list(plan)
        if odd := [name for name, each in plan.items() if each.dtype not in _WORDS]:
            raise ValueError(
                f"A safetensors file cannot hold {odd[0]}, which is {str(plan[odd[0]].dtype).removeprefix('torch.')}. Convert it first."
            )
        self._plan = dict(sorted(plan.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])))
        ends = list(itertools.accumulate(map(bytes_of, self._plan.values()), initial=0))
        self._places = dict(zip(self._plan, itertools.pairwise(ends), strict=True))
        self._length = 0
        self._length = len(self.header(metadata)) - 8
        self.offsets = {name: 8 + self._length + begin for name, (begin, _) in self._places.items()}
        self.size = 8 + self._length + ends[-1]

    def header(self, metadata: Mapping[str, str]) -> bytes:
        """The first bytes of the file; their number does not depend on the metadata."""
        about = {
            name: {"dtype": _WORDS[dtype], "shape": list(shape), "data_offsets": list(self._places[name])}
            for name, (shape, dtype) in self._plan.items()
        }
        text = json.dumps({"__metadata__": dict(metadata), **about}).encode()
        length = self._length or len(text) + -len(text) % 8
        if len(text) > length:
            raise ValueError("The metadata of a checkpoint must not grow while it is written. Report this as a bug.")
        return length.to_bytes(8, "little") + text.ljust(length)


def _shards(plan: Mapping[str, Planned], most: float) -> list[list[str]]:
    """Names in order, put into files until they are full."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, tensor in plan.items():
        if shards[-1] and filled + bytes_of(tensor) > most:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += bytes_of(tensor)
    return shards


def _put(file: FileIO, view: memoryview) -> None:
    while view:
        view = view[file.write(view) :]


def _check_room(folder: Path, needed: int) -> None:
    there = next(each for each in (folder, *folder.absolute().parents) if each.is_dir())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise ValueError(
            f"The disk must have room for {needed / 1e9:,.2f} GB, but {folder} has {free / 1e9:,.2f} GB left. "
            "Free some space, or write to another disk."
        )
