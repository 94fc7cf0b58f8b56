"""What stands beside merged weights: each model whole with its own head; configuration and tokenizer of their folders."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from torch import Tensor

from biascope.editing.stream import is_vector
from biascope.families.checkpoint import Checkpoint
from biascope.families.checkpoint_writer import CheckpointWriter, Planned
from biascope.families.names import Fitted
from biascope.results.planes import distinct
from biascope.results.wording import listed

_TEXTS = (".json", ".txt", ".model", ".jinja")  # of configurations, vocabularies and chat templates
_OTHERS = ("adapter_config.json", "trainer_state.json", "all_results.json")  # of the training, not of the model
_LARGEST = 100_000_000  # bytes of a file that is copied


class WholeModels:
    """Models with a head of their own, written beside the merged weights: these under the model's names, and its head.

    Leaving the context by an error leaves nothing behind.

    Args:
        base: Whose types are written.
        fits: The models that are merged; those without a head of their own are left out.
        out: Where the merged weights go: the others go into a folder beside it.
        shard_bytes: Most bytes of a shard.
        overwrite: Whether to replace what is there.
    """

    def __init__(self, base: Checkpoint, fits: Sequence[Fitted], out: Path, shard_bytes: int, overwrite: bool) -> None:
        self._own = [fit for fit in fits if fit.heads]
        self._folder = out.with_name(f"{out.name.removesuffix('.safetensors')}-heads")
        names = distinct(_without_kind(fit.model.label) for fit in self._own)
        self._places = [self._folder / f"{name}{out.suffix * (out.suffix == '.safetensors')}" for name in names]
        self._stack = contextlib.ExitStack()
        self._writers = []
        for fit, place in zip(self._own, self._places, strict=True):
            shared = {own: base.tensors[name] for name, own in fit.names.items() if own not in fit.ties}
            plan = {name: shared.get(name, each) for name, each in fit.model.tensors.items() if name not in fit.ties}
            planned = {name: Planned(tuple(each.shape), each.dtype) for name, each in plan.items()}
            about = {} if is_vector(fit.model) else dict(fit.model.metadata)
            about |= {"kind": "merged", "head": fit.model.name}
            self._writers.append(
                CheckpointWriter(place, planned, metadata=about, shard_bytes=shard_bytes, overwrite=overwrite)
            )

    def __enter__(self) -> Self:
        for writer in self._writers:
            self._stack.enter_context(writer)
        return self

    def write(self, name: str, values: Tensor) -> None:
        """Write the next values of a merged tensor to all models that have it."""
        for fit, writer in zip(self._own, self._writers, strict=True):
            if (own := fit.names.get(name)) is not None and name not in fit.ties:
                writer.write(own, values)

    def write_heads(self) -> None:
        """Write what each model has of its own."""
        for fit, writer in zip(self._own, self._writers, strict=True):
            shared = {own for name, own in fit.names.items() if name not in fit.ties}
            for own in fit.model.tensors:
                if own not in shared and own not in fit.ties:
                    for part in fit.model.slices(own):
                        writer.write(own, part)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
        if kind is not None and self._writers:
            with contextlib.suppress(OSError):
                self._folder.rmdir()  # if it is empty

    def told(self) -> list[str]:
        """Where they are."""
        if not self._own:
            return []
        models = listed([fit.model.label for fit in self._own])
        words = [f"The merged weights with the own head of {models} are in {listed(list(map(str, self._places)))}."]
        if others := sorted({path.name for path in self._folder.iterdir()} - {path.name for path in self._places}):
            words.append(f"{listed(others)} in {self._folder} come from an earlier merge.")
        return words

    def copy_texts(self) -> None:
        """Copy configuration and tokenizer of each model to its merged folder."""
        for fit, place in zip(self._own, self._places, strict=True):
            copy_texts(fit.model, place)


def _without_kind(name: str) -> str:
    """The name of a file without what says its format, which will be another.

    Example:
        >>> _without_kind("cars.pt"), _without_kind("bert-2.0")
        ('cars', 'bert-2.0')
    """
    return name[: -len(Path(name).suffix)] if Path(name).suffix in (".pt", ".pth", ".bin", ".ckpt") else name


def copy_texts(source: Checkpoint, target: Path) -> list[str]:
    """Copy configuration, tokenizer and chat template of a checkpoint's folder to another folder.

    Returns:
        The names of the files; none where there is no configuration, or the target is a file.
    """
    folder = source.beside(".")
    if not target.is_dir() or not (folder / "config.json").is_file():
        return []
    files = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file()
        and path.suffix in _TEXTS
        and path.name not in _OTHERS
        and not path.name.endswith(".index.json")
        and path.stat().st_size <= _LARGEST
    ]
    for path in files:
        shutil.copyfile(path, target / path.name)
    return [path.name for path in files]
