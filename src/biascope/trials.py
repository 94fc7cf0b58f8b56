"""Trials: independent units of work with stable keys, kept on disk as they finish, so that no finished work is lost.

A trial is ``key -> dict of tensors``. With a folder, every finished trial is one safetensors file written under a
temporary name and renamed, so a file that exists is whole; running the same work again does only what is missing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from biascope.run import Run

Outcome = dict[str, torch.Tensor]


def identity_of(settings: dict[str, object]) -> str:
    """A short stable name for a set of settings; work under different settings never shares a folder.

    Example:
        >>> identity_of({"draws": 400, "seed": 0}) == identity_of({"seed": 0, "draws": 400})
        True
    """
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Trials:
    """The done-map of one piece of work.

    Args:
        identity: What is computed, as JSON-able settings: it names the folder and is written there to be read.
        run: Where the folder is; without one, outcomes stay in memory.
    """

    def __init__(self, identity: dict[str, object], run: Run) -> None:
        self.identity = identity
        self._memory: dict[str, Outcome] = {}
        self.folder: Path | None = None
        if run.folder is not None:
            self.folder = run.folder / "trials" / identity_of(identity)
            make_writable(self.folder)
            write_atomically(self.folder / "identity.json", json.dumps(identity, indent=1, default=str).encode())

    def done(self, key: str) -> bool:
        """Whether a trial has finished, here or in an earlier run."""
        return key in self._memory if self.folder is None else self._path(key).exists()

    def read(self, key: str) -> Outcome:
        """The outcome of a finished trial."""
        if self.folder is None:
            return self._memory[key]
        try:
            return safetensors.torch.load_file(self._path(key))
        except safetensors.SafetensorError as error:
            message = (
                f"{self._path(key)} must be a whole trial file and is damaged. Delete it and run the command again."
            )
            raise ValueError(message) from error

    def write(self, key: str, outcome: Outcome) -> None:
        """Keep a finished trial."""
        if self.folder is None:
            self._memory[key] = outcome
        else:
            tensors = {name: tensor.contiguous() for name, tensor in outcome.items()}
            write_atomically(self._path(key), safetensors.torch.save(tensors))

    def outcomes(self, keys: Sequence[str], work: Callable[[str], Outcome]) -> Iterator[Outcome]:
        """Each trial's outcome in order, computed where it is missing."""
        for key in keys:
            if not self.done(key):
                self.write(key, work(key))
            yield self.read(key)

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{key}.safetensors"


def make_writable(folder: Path) -> None:
    """Create a folder and make sure that files can be written there.

    Raises:
        ValueError: If it cannot be created or written, in one sentence.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"The output folder must be writable, and {folder} is not ({reason}). Pass another folder."
        raise ValueError(message) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is either absent or whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    os.replace(temporary, path)
