"""What stands beside merged weights: each model whole with its own head; configuration and tokenizer of their folders."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from biascope.editing.adapters import CONFIG, PREFIX, config_of
from biascope.editing.stream import is_vector
from biascope.families import weights
from biascope.families.checkpoint import Checkpoint, read_settings
from biascope.families.checkpoint_writer import CheckpointWriter, Planned
from biascope.families.names import Fitted
from biascope.results.planes import distinct
from biascope.results.wording import listed

_TEXTS = (".json", ".txt", ".model", ".jinja")  # of configurations, vocabularies and chat templates
_OTHERS = (CONFIG, "trainer_state.json", "all_results.json")  # of the training, not of the model
_LARGEST = 100_000_000  # bytes of a file that is copied
_SETTINGS = "config.json"
# What the class of a model is called in the library, by the task that an adapter was trained on.
TASKS = {
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
    "CAUSAL_LM": "ForCausalLM",
}
_STEM = re.compile(r"(For[A-Z]\w*|LMHeadModel|Model)$")  # behind the family in the name of a class


class WholeModels:
    """Models with a head of their own, written beside the merged weights: these under the model's names, and its head.

    Leaving the context by an error leaves nothing behind.

    Args:
        base: Whose types are written, and whose configuration an adapter has.
        fits: The models that are merged; those without a head of their own are left out.
        out: Where the merged weights go: the others go into a folder beside it.
        dtype: Type of all floating-point numbers, or ``None``.
        shard_bytes: Most bytes of a shard.
        overwrite: Whether to replace what is there.
    """

    def __init__(
        self,
        base: Checkpoint,
        fits: Sequence[Fitted],
        out: Path,
        dtype: torch.dtype | None,
        shard_bytes: int,
        overwrite: bool,
    ) -> None:
        self._base, self._dtype = base, dtype
        self._own = [fit for fit in fits if fit.heads]
        self._folder = out.with_name(f"{out.name.removesuffix('.safetensors')}-heads")
        names = distinct(_without_kind(fit.model.label) for fit in self._own)
        self._places = [self._folder / f"{name}{out.suffix * (out.suffix == '.safetensors')}" for name in names]
        self._stack = contextlib.ExitStack()
        self._writers = []
        for fit, place in zip(self._own, self._places, strict=True):
            shared = {own: base.tensors[name] for name, own in fit.names.items() if own not in fit.ties}
            plan = {name: shared.get(name, each) for name, each in fit.model.tensors.items() if name not in fit.ties}
            planned = {
                _whole_name(fit, name): Planned(tuple(each.shape), written_type(each.dtype, dtype))
                for name, each in plan.items()
            }
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
                writer.write(_whole_name(fit, own), values)

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
        """Copy configuration and tokenizer of each model to its merged folder; of an adapter, those of the base as it changed it."""
        for fit, place in zip(self._own, self._places, strict=True):
            dtypes = {weights.type_name(self._base.tensors[name].dtype) for name in fit.names}
            dtype = self._dtype or (getattr(torch, dtypes.pop()) if len(dtypes) == 1 else None)
            if PREFIX in fit.model.metadata:
                copy_texts(self._base, place, _settings_with_head(fit, self._base), dtype=dtype)
                copy_texts(fit.model, place, configured=False)
            else:
                copy_texts(fit.model, place, dtype=dtype)


def _whole_name(fit: Fitted, own: str) -> str:
    """The name that a tensor has in a model with its head: an adapter is read under the names of the base, which may lack a prefix."""
    return own if own in fit.heads.values() else fit.model.metadata.get(PREFIX, "") + own


def _settings_with_head(fit: Fitted, base: Checkpoint) -> dict[str, Any]:
    """What the configuration of a base becomes with the head of an adapter; ``None`` for what is taken out."""
    path = base.beside(_SETTINGS)
    classes = list(map(str, (read_settings(path) if path.is_file() else {}).get("architectures") or []))
    found: dict[str, Any] = {}
    task = str(config_of(fit.model).get("task_type"))
    stems = [_STEM.sub("", each) for each in classes]
    found["architectures"] = [stem + TASKS[task] for stem in stems] if task in TASKS and stems else None
    matrices = {name: fit.model.tensors[own] for name, own in fit.heads.items() if name.endswith("weight")}
    if "CLS" in task and len(matrices) == 1:
        labels = [f"LABEL_{number}" for number in range(next(iter(matrices.values())).shape[0])]
        found["id2label"] = {str(number): label for number, label in enumerate(labels)}
        found["label2id"] = {label: number for number, label in enumerate(labels)}
    if any(name.endswith("lm_head.weight") for name in matrices):
        found["tie_word_embeddings"] = False  # else it would be replaced by the table of tokens when it is opened
    return found


def written_type(own: torch.dtype, asked: torch.dtype | None) -> torch.dtype:
    """The type in which a tensor is written: its own, or the one asked for where it holds weights.

    Example:
        >>> written_type(torch.float32, torch.bfloat16), written_type(torch.int64, torch.bfloat16)
        (torch.bfloat16, torch.int64)
    """
    return own if asked is None or own not in weights.EDITABLE else asked


def _without_kind(name: str) -> str:
    """The name of a file without what says its format, which will be another.

    Example:
        >>> _without_kind("cars.pt"), _without_kind("bert-2.0")
        ('cars', 'bert-2.0')
    """
    return name[: -len(Path(name).suffix)] if Path(name).suffix in (".pt", ".pth", ".bin", ".ckpt") else name


def copy_texts(
    source: Checkpoint,
    target: Path,
    settings: Mapping[str, Any] | None = None,
    *,
    dtype: torch.dtype | None = None,
    configured: bool = True,
) -> list[str]:
    """Copy configuration, tokenizer and chat template of a checkpoint's folder to another folder.

    Args:
        source: The checkpoint.
        target: The folder.
        settings: What changes in its ``config.json``; ``None`` takes a setting out.
        dtype: The type of the weights in the new folder, if it may be another.
        configured: Whether nothing is copied from a folder without ``config.json``.

    Returns:
        The names of the files; none where there is no configuration, or the target is a file.
    """
    folder = source.beside(".")
    if not target.is_dir() or (configured and not (folder / _SETTINGS).is_file()):
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
    if configured and (changes := {**(settings or {}), **_typed(folder / _SETTINGS, dtype)}):
        changed = {**read_settings(folder / _SETTINGS), **changes}
        text = json.dumps(
            {key: value for key, value in changed.items() if value is not None or key not in changes}, indent=2
        )
        (target / _SETTINGS).write_text(text + "\n", encoding="utf-8")
    return [path.name for path in files]


def _typed(path: Path, dtype: torch.dtype | None) -> dict[str, str]:
    """The setting that says in which type the library opens weights, where it says another."""
    settings = read_settings(path)
    key = "torch_dtype" if "torch_dtype" in settings else "dtype"
    return (
        {key: weights.type_name(dtype)}
        if dtype and settings.get(key, weights.type_name(dtype)) != weights.type_name(dtype)
        else {}
    )
