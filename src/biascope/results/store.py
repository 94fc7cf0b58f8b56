"""Results on disk: a JSON document and its arrays, written atomically and sealed by digests."""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from biascope.results.estimate import Estimate, Number
from biascope.runs.files import require_ours, write_atomically

FORMAT = 2  # of the files; raised when an old reader could misread a new file
DOCUMENT = "result.json"
_ARRAYS_BEFORE = "arrays.npz"  # in format 1, which had no digests


def plain(value: Any) -> Any:
    """Only what JSON knows: nan is null, an infinite number is a string that ``float`` reads, what it does not know is its text.

    Example:
        >>> plain({"a": (1, math.nan), 2: np.float32(0.5), "c": math.inf})
        {'a': [1, None], '2': 0.5, 'c': 'inf'}
    """
    if isinstance(value, Estimate):
        return {"number" if isinstance(value, Number) else "estimate": plain(value.as_dict())}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | range):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def restored(value: Any) -> Any:
    """The same with its estimates: what :func:`plain` wrote, as far as JSON tells it."""
    if isinstance(value, dict):
        if set(value) == {"estimate"}:
            return Estimate.from_dict(value["estimate"])
        if set(value) == {"number"}:
            return Number.from_dict(value["number"])
        return {key: restored(item) for key, item in value.items()}
    return [restored(item) for item in value] if isinstance(value, list) else value


def write(folder: Path, document: Mapping[str, Any], arrays: Mapping[str, np.ndarray], *, name: str = DOCUMENT) -> Path:
    """Write a document and its arrays to a folder; return the folder.

    Arrays lie in ``arrays-DIGEST.npz``, everything else in the document, which names that file. So the last write decides: a
    process that is killed in between leaves what was there before.
    """
    require_ours(folder / name)
    folder.mkdir(parents=True, exist_ok=True)
    data, before = _packed(arrays), _arrays_file(folder, name)
    stored = f"arrays-{_digest(data)}.npz"
    write_atomically(folder / stored, data)
    content = {**plain(document), "arrays": stored}
    sealed = {"format": FORMAT, **content, "digest": _digest(json.dumps(content, sort_keys=True).encode())}
    write_atomically(folder / name, json.dumps(sealed, indent=1, allow_nan=False).encode())
    if before is not None and before.name != stored:
        before.unlink(missing_ok=True)
    return folder


def _packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of an npz file, compressed where that saves a tenth: digits of directions are noise, and take seconds."""
    buffer = io.BytesIO()
    sample = b"".join(np.asarray(array).ravel()[:8192].tobytes() for array in arrays.values())
    save = np.savez_compressed if len(zlib.compress(sample, 1)) < 0.9 * len(sample) else np.savez
    save(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def read(folder: Path, name: str = DOCUMENT) -> dict[str, Any]:
    """The document of a folder.

    Raises:
        ValueError: If there is none, it is damaged, or it was written by a newer version.
    """
    path = folder / name
    try:
        return parsed(path.read_bytes(), path)
    except FileNotFoundError as error:
        raise ValueError(
            f"{folder} must hold a saved result, but has no {name}. Pass a run folder of biascope."
        ) from error
    except OSError as error:
        raise ValueError(f"{path} must be a saved result, but could not be read. Run the measurement again.") from error


def parsed(data: bytes, source: Path | str) -> dict[str, Any]:
    """The document in the bytes of a file.

    Raises:
        ValueError: If it is damaged or was written by a newer version, naming the source.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        message = f"{source} must be a saved result, but could not be read. Run the measurement again."
        raise ValueError(message) from error
    if not isinstance(document, dict) or not isinstance(document.get("format"), int) or document["format"] > FORMAT:
        raise ValueError(f"{source} must be of format {FORMAT} or older. Install a newer biascope.")
    if document["format"] > 1:
        digest, content = document.pop("digest", None), {key: document[key] for key in document if key != "format"}
        if digest != _digest(json.dumps(content, sort_keys=True).encode()):
            raise ValueError(f"{source} must match its digest, but does not. Run the measurement again.")
    return document


def arrays_name(document: Mapping[str, Any]) -> str:
    """The name of the file with a document's arrays."""
    return str(document.get("arrays", _ARRAYS_BEFORE))


def read_arrays(folder: Path, document: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a document.

    Raises:
        ValueError: If the file is missing or damaged.
    """
    path = folder / arrays_name(document)
    try:
        data = path.read_bytes()
    except OSError:
        data = b""
    return parsed_arrays(data, path)


def parsed_arrays(data: bytes, source: Path | str) -> dict[str, np.ndarray]:
    """The arrays in the bytes of a file that is named by their digest.

    Raises:
        ValueError: If they are missing or damaged, naming the source.
    """
    try:
        if Path(source).name not in (_ARRAYS_BEFORE, f"arrays-{_digest(data)}.npz"):
            raise ValueError("another content")
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        message = f"{source} must be a complete result file, but is missing or damaged. Run the measurement again."
        raise ValueError(message) from error


def _arrays_file(folder: Path, name: str) -> Path | None:
    """The arrays of what lies in a folder."""
    try:
        return folder / arrays_name(read(folder, name))
    except ValueError:
        return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
