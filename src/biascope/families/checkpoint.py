"""Checkpoints on disk: named tensors read slice by slice, so that a model never has to fit into memory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from biascope.families import weights
from biascope.families.weights import Params
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.digest import Described, Fingerprint
from biascope.runs.files import as_text

SLICE = 2**18  # numbers read at once: a few of these fit into a processor's cache
TYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "BOOL": torch.bool},
    **{f"I{bits}": getattr(torch, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": getattr(torch, f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64},
}
_LARGEST_HEADER = 100_000_000  # bytes, as in the format's definition
INDEX = "model.safetensors.index.json"
# What weights are called in a folder: ours and Hugging Face's, the safe format first.
_FOLDER = (
    *("model.safetensors", INDEX, "pytorch_model.bin", "pytorch_model.bin.index.json"),
    *("adapter_model.safetensors", "adapter_model.bin"),
)


@dataclass(frozen=True)
class Region:
    """A tensor in a safetensors file, read from its position.

    Attributes:
        path: The file.
        offset: Position of its first byte.
        shape: Its shape.
        dtype: Type of its entries.
    """

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def slices(self, most: int) -> Iterator[Tensor]:
        """Its values in order, at most so many at once; each slice has memory of its own."""
        total = math.prod(self.shape)
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.offset)
            for begin in range(0, total, most):
                buffer = bytearray(min(most, total - begin) * self.dtype.itemsize)
                _fill(file, memoryview(buffer), self.path)
                yield torch.frombuffer(buffer, dtype=self.dtype)


@dataclass(frozen=True, eq=False)
class Held:
    """A tensor of a torch file, which torch maps into memory."""

    tensor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Type of its entries."""
        return self.tensor.dtype

    def slices(self, most: int) -> Iterator[Tensor]:
        """Its values in order, at most so many at once."""
        flat = self.tensor.detach().contiguous().flatten()
        yield from (flat[begin : begin + most].clone() for begin in range(0, len(flat), most))


class StoredTensor(Protocol):
    """Where the values of a tensor come from."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of its entries."""

    def slices(self, most: int) -> Iterator[Tensor]:
        """Its values in order, at most so many at once."""


@under_torch_defaults
@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A set of named tensors on disk, opened without reading their values.

    Attributes:
        name: Name of its file, or of its folder if the file has a standard name.
        tensors: Shape, type and place of each tensor, by name.
        metadata: Metadata of the file.
        path: Where it is.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     weights.save({"w": torch.arange(5.0), "n": torch.tensor(3)}, f"{folder}/model.safetensors")
        ...     model = Checkpoint.open(folder)
        ...     [part.tolist() for part in model.slices("w", 3)], model.numbers
        ([[0.0, 1.0, 2.0], [3.0, 4.0]], 6)
    """

    name: str
    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str] = field(default_factory=dict)
    path: Path = field(default_factory=Path)

    @staticmethod
    def open(path: Path | str) -> Checkpoint:
        """A checkpoint in a file or a folder.

        Args:
            path: A ``.safetensors`` file, a torch file of plain tensors (no code in it is run), or a folder with one of these,
                with shards and their index, or as Hugging Face writes it.

        Raises:
            ValueError: If there is none or it is damaged, in one sentence that says how.
        """
        path = Path(path)
        if not path.exists():
            raise ValueError(f"The checkpoint must exist, but {path} does not. Check the path.")
        found = _in_folder(path) if path.is_dir() else path
        tensors, metadata = _opened_index(found) if found.name.endswith(".index.json") else _opened(found)
        if not tensors:
            raise ValueError(f"{path} must hold tensors by name, but holds none. Pass the weights of a model.")
        whole = path.resolve()
        name = whole.parent.name if whole.name in _FOLDER else whole.name
        return Checkpoint(as_text(name), dict(sorted(tensors.items())), metadata, path)

    def beside(self, file: str) -> Path:
        """The path of a file in the folder of the weights."""
        return (self.path if self.path.is_dir() else self.path.parent) / file

    @property
    def label(self) -> str:
        """What to call it in results."""
        return self.name.removesuffix(".safetensors")

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    def slices(self, name: str, most: int = SLICE) -> Iterator[Tensor]:
        """The values of a tensor in order, flat, at most so many at once."""
        return self.tensors[name].slices(most)

    def read(self, name: str) -> Tensor:
        """A whole tensor."""
        where = self.tensors[name]
        parts = list(where.slices(max(1, math.prod(where.shape))))
        return parts[0].view(where.shape) if parts else torch.zeros(where.shape, dtype=where.dtype)

    def params(self) -> Params:
        """All tensors, in memory."""
        return {name: self.read(name) for name in self.tensors}

    def fingerprint(self, names: Iterable[str] | None = None) -> str:
        """The hash that :func:`biascope.families.fingerprint` gives for the same tensors in memory, read slice by slice."""
        hashed = Fingerprint()
        for name in sorted(self.tensors if names is None else names):
            hashed.begin(name, self.tensors[name])
            for part in self.slices(name):
                hashed.add(part)
        return hashed.value


def _fill(file: Any, view: memoryview, path: Path) -> None:
    while view:
        count = file.readinto(view)
        if not count:
            raise ValueError(f"{path} must not change while it is read, but it became shorter. Run the command again.")
        view = view[count:]


def has_weights(folder: Path) -> bool:
    """Whether a folder holds weights under one of their usual names."""
    return any((folder / name).is_file() for name in _FOLDER)


def _in_folder(folder: Path) -> Path:
    """The file of a folder to begin with."""
    for name in _FOLDER:
        if (folder / name).is_file():
            return folder / name
    kinds = (".safetensors", ".pt", ".pth", ".bin")
    files = sorted(path for path in folder.iterdir() if path.suffix in kinds and not path.name.startswith("."))
    if len(files) != 1:
        listed = f"{len(files)} ({', '.join(path.name for path in files[:4])})" if files else "none"
        raise ValueError(
            f"{folder} must hold one file of weights or shards with an index ({INDEX}), but holds {listed}. Name the file."
        )
    return files[0]


def _opened(path: Path) -> tuple[dict[str, Region | Held], dict[str, str]]:
    if path.suffix == ".safetensors":
        regions, metadata = _read_header(path)
        return dict(regions), metadata
    return {name: Held(tensor) for name, tensor in weights.load(path, mapped=True).items()}, {}


def _opened_index(path: Path) -> tuple[dict[str, Region | Held], dict[str, str]]:
    """Shards that an index lists: each there, each tensor in its own, none twice."""
    try:
        places = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)["weight_map"]
        shards = sorted(set(places.values()))
        plain = all(Path(shard).name == shard for shard in shards)  # nothing outside of the folder
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path} must be an index of shards, but could not be read as one. Download it again."
        ) from error
    except _TwiceError as error:
        raise ValueError(f"{path} must list a tensor once, but lists {error} twice. Save the model again.") from error
    if not plain:
        raise ValueError(f"{path} must list files in its own folder, but lists others. Do not trust this checkpoint.")
    if missing := [shard for shard in shards if not (path.parent / shard).is_file()]:
        more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise ValueError(
            f"{path.parent} must hold all {len(shards)} shards of its index, but {missing[0]}{more} is missing. Download it again."
        )
    tensors: dict[str, Region | Held] = {}
    metadata: dict[str, str] = {}
    for shard in shards:
        found, metadata = _opened(path.parent / shard)
        if twice := sorted(tensors.keys() & found.keys()):
            raise ValueError(
                f"{path.parent} must hold a tensor once, but {twice[0]} is in two shards. Save the model again."
            )
        tensors |= found
    strayed = sorted(name for name in tensors.keys() | places.keys() if not _is_at(tensors.get(name), places.get(name)))
    if strayed:
        raise ValueError(
            f"{path} must list every tensor in its shard, but is wrong about {len(strayed)} ({', '.join(strayed[:4])}). "
            "Save the model again."
        )
    return tensors, metadata


def _is_at(tensor: Region | Held | None, shard: str | None) -> bool:
    return tensor is not None and shard is not None and (isinstance(tensor, Held) or tensor.path.name == shard)


class _TwiceError(ValueError):
    """A name that stands twice in a JSON object."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise _TwiceError(repr(name))
        result[name] = value
    return result


def _read_header(path: Path) -> tuple[dict[str, Region], dict[str, str]]:
    """Where tensors lie in a safetensors file: 8 bytes with the length of a JSON header, the header, the values."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_LARGEST_HEADER, size - 8):
            raise _damaged(path, f"its header claims {length:,} bytes, and the file has {size:,}")
        text = file.read(length)
    try:
        header = json.loads(text.decode(), object_pairs_hook=_once)
        metadata = {str(key): str(value) for key, value in (header.pop("__metadata__", None) or {}).items()}
        regions = {name: _region(path, 8 + length, about) for name, about in header.items()}
    except _TwiceError as error:
        raise _damaged(path, f"its header has {error} twice") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"its header cannot be read ({type(error).__name__}: {error})") from error
    ordered = sorted(regions.items(), key=lambda item: (item[1].offset, bytes_of(item[1])))
    ends = [8 + length, *(region.offset + bytes_of(region) for _, region in ordered)]
    for (name, region), end in zip(ordered, ends[:-1], strict=True):
        if region.offset != end:
            raise _damaged(path, f"{name} {'overlaps another tensor' if region.offset < end else 'follows a gap'}")
    if ends[-1] != size:
        problem = (
            f"is truncated: {ends[-1]:,} bytes were written" if ends[-1] > size else "continues after its last tensor"
        )
        raise _damaged(path, f"the file {problem}; it has {size:,} bytes")
    return regions, metadata


def _region(path: Path, start: int, about: dict[str, Any]) -> Region:
    shape, (begin, end) = tuple(about["shape"]), about["data_offsets"]
    if strange := [
        each for each in (*shape, begin, end) if type(each) is not int or each < 0
    ]:  # JSON has also Infinity, 4.5, true
        raise ValueError(f"{strange[0]!r} is no length")
    if about["dtype"] not in TYPES:
        raise ValueError(f"unknown type {about['dtype']!r}")
    region = Region(path, start + begin, shape, TYPES[about["dtype"]])
    if end - begin != bytes_of(region):
        raise ValueError(f"{end - begin} bytes for the shape {list(shape)}")
    return region


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a JSON file.

    Raises:
        ValueError: If it is not one.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} must be a JSON file, but cannot be read as one ({error}). Save it again.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold settings by name, got {type(found).__name__}. Save it again.")
    return found


def bytes_of(tensor: Described) -> int:
    """Number of bytes of a tensor in a file."""
    return math.prod(tensor.shape) * tensor.dtype.itemsize


def _damaged(path: Path, how: str) -> ValueError:
    return ValueError(f"{path} must be a whole safetensors file, but is damaged: {how}. Download or save it again.")
