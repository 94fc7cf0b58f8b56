"""Pickles that hold nothing but numbers, text and NumPy arrays, read without running any code of theirs.

A pickle is a program: it may name any function and have it called. This reader answers only to the few names that
Python 2 and 3 use to write an array, and stands its own harmless functions in for them.
"""

from __future__ import annotations

import io
import pickle
import re
from typing import Any

import numpy as np


class RefusedCodeError(ValueError):
    """A pickle asked for something that is not needed to read an array."""


def read_array_pickle(content: bytes | bytearray) -> Any:
    """The object in a pickle of numbers, text, lists, dicts and numeric arrays; text of Python 2 comes as bytes.

    Raises:
        RefusedCodeError: If the pickle names anything else; nothing has been run then.
        ValueError: If it is not a whole pickle.

    Example:
        >>> read_array_pickle(pickle.dumps({"labels": [1, 2]}, protocol=2))
        {'labels': [1, 2]}
        >>> read_array_pickle(pickle.dumps(eval, protocol=2))
        Traceback (most recent call last):
            ...
        biascope.data.array_pickle.RefusedCodeError: __builtin__.eval
    """
    try:
        return _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
    except RefusedCodeError:
        raise
    except Exception as error:  # a damaged pickle raises nearly every type there is
        raise ValueError(str(error) or type(error).__name__) from error


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STANDS_FOR[f"{module}.{name}"]
        except KeyError:
            raise RefusedCodeError(f"{module}.{name}") from None


def _empty_array(*_: object) -> np.ndarray[Any, Any]:
    """An array that the pickle then fills with shape, type and bytes."""
    return np.empty(0, np.uint8)


def _numeric_type(code: bytes | str, *_: object) -> np.dtype[Any]:
    text = code.decode() if isinstance(code, bytes) else code
    if not re.fullmatch(r"[<>|=]?[biuf][1248]", text):
        raise RefusedCodeError(f"an array of type {text!r}")
    return np.dtype(text)


def _latin_bytes(text: str, encoding: str | bytes = "latin1") -> bytes:
    """How Python 3 writes bytes for Python 2; other encodings could be decompressors."""
    if encoding not in ("latin1", b"latin1"):
        raise RefusedCodeError(f"the encoding {encoding!r}")
    return text.encode("latin1")


# The class itself is only ever an argument of _reconstruct, so a word serves, and cannot be called.
_STANDS_FOR: dict[str, Any] = {
    "numpy.core.multiarray._reconstruct": _empty_array,
    "numpy._core.multiarray._reconstruct": _empty_array,
    "numpy.ndarray": "ndarray",
    "numpy.dtype": _numeric_type,
    "_codecs.encode": _latin_bytes,
}
