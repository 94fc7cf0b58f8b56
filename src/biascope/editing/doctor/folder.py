"""A folder of a merge: its settings, its tokenizer and the headers of its weights, and what of it cannot be read."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from biascope.editing.adapters import CONFIG, is_adapter
from biascope.editing.configurations import chat_template
from biascope.editing.vocabulary import tokens_of
from biascope.families.checkpoint import Checkpoint, StoredTensor, read_settings
from biascope.runs.files import as_text

BASE, MERGED, ADAPTER, MODEL = "base", "merged", "adapter", "model"
MODEL_CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"
VOCABULARY, TEMPLATE = "tokenizer.json", "chat_template.jinja"
_SETTINGS = (MODEL_CONFIG, GENERATION, TOKENIZER, CONFIG, "special_tokens_map.json")
# What settings must be that are looked at.
_KINDS: Mapping[str, tuple[Any, str]] = {
    **dict.fromkeys(
        ("r", "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size"), (int, "a number")
    ),
    "lora_alpha": ((int, float), "a number"),
    **dict.fromkeys(("tie_word_embeddings", "use_rslora", "use_dora", "lora_bias"), (bool, "true or false")),
    **dict.fromkeys(
        ("alpha_pattern", "rank_pattern", "text_config", "quantization_config"), (dict, "settings by name")
    ),
    "target_modules": ((list, str), "a list or a pattern"),
    "target_parameters": (list, "a list"),
    "architectures": (list, "a list"),
    "base_model_name_or_path": (str, "a name"),
}
_EMBEDDINGS = (
    *("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight", "tok_embeddings.weight"),
    "shared.weight",
)
_HEADS = ("lm_head.weight", "embed_out.weight")


@dataclass(frozen=True, eq=False)
class Folder:
    """A folder with a role in a merge, opened without reading weights.

    Attributes:
        role: ``"base"``, ``"merged"``, ``"adapter"`` or ``"model"``.
        path: Where it is.
        weight: The weight that it was merged with, if it is known.
        checkpoint: Its weights; none where they cannot be read.
        settings: Its JSON files, by name.
        problems: The files that cannot be read, and how.
        name: What to call it.
    """

    role: str
    path: Path
    weight: float | None
    checkpoint: Checkpoint | None
    settings: Mapping[str, Mapping[str, Any]]
    problems: tuple[tuple[str, str], ...]
    name: str

    @staticmethod
    def open(path: Path, role: str = "", weight: float | None = None) -> Folder:
        """A folder, or a file of weights with what stands beside it.

        Args:
            path: The folder.
            role: Its role; an adapter or a model by what it holds, if it is empty.
            weight: The weight that it was merged with.

        Raises:
            ValueError: If it does not exist.
        """
        if not path.exists():
            raise ValueError(f"The folder must exist, but {path} does not. Check the path.")
        settings: dict[str, Mapping[str, Any]] = {}
        problems, checkpoint = [], None
        folder = path if path.is_dir() else path.parent
        for file in _SETTINGS:
            if (folder / file).is_file():
                try:
                    found = read_settings(folder / file)
                except ValueError as error:
                    problems.append((file, str(error)))
                    continue
                settings[file], odd = _as_expected(found)
                problems += [
                    (file, f"{folder / file} must have {words}. Correct it, or save the folder again.") for words in odd
                ]
        try:
            checkpoint = Checkpoint.open(path)
        except (ValueError, OSError) as error:
            problems.append(("", str(error)))
        adapted = CONFIG in settings if checkpoint is None else _holds_adapter(checkpoint, settings)
        return Folder(
            role or (ADAPTER if adapted else MODEL),
            path,
            weight,
            checkpoint,
            settings,
            tuple(problems),
            as_text(path.resolve().name),
        )

    def called(self, name: str) -> Folder:
        """The same by another name, where several have one name."""
        return replace(self, name=name)

    @property
    def adapted(self) -> bool:
        """Whether it holds an adapter, whatever its role."""
        return CONFIG in self.settings if self.checkpoint is None else _holds_adapter(self.checkpoint, self.settings)

    def file(self, name: str = "") -> str:
        """The path of one of its files, as a user knows it; of the weights, if no name is given."""
        folder = self.path if self.path.is_dir() else self.path.parent
        if name:
            return str(folder / name)
        if not self.path.is_dir():
            return str(self.path)
        held = "adapter_model.safetensors" if self.adapted else "model.safetensors"
        return str(folder / held) if (folder / held).is_file() else str(folder)

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """Shapes and types of its weights; empty where they cannot be read."""
        return {} if self.checkpoint is None else self.checkpoint.tensors

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings of a model."""
        return self.settings.get(MODEL_CONFIG, {})

    @property
    def adapter_config(self) -> Mapping[str, Any]:
        """The settings of an adapter."""
        return self.settings.get(CONFIG, {})

    def model_setting(self, key: str) -> Any:
        """A setting of the model, or of its text model."""
        inner = self.config.get("text_config")
        return self.config.get(key, inner.get(key) if isinstance(inner, dict) else None)

    @property
    def embedding(self) -> str | None:
        """The name of its token embeddings."""
        return self._ending(_EMBEDDINGS)

    @property
    def head(self) -> str | None:
        """The name of the matrix from features to tokens."""
        return self._ending(_HEADS)

    def _ending(self, ends: tuple[str, ...]) -> str | None:
        found = (name for end in ends for name in self.tensors if name == end or name.endswith(f".{end}"))
        return next((name for name in found if ".lora_" not in name), None)

    @functools.cached_property
    def tokens(self) -> Mapping[str, int]:
        """The number of each token of its tokenizer; empty where it cannot be read."""
        try:
            found = tokens_of(self._place)
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}
        return {token: number for number, token in (found or {}).items()}

    @property
    def _place(self) -> Checkpoint:
        """What reads files beside weights, also where the weights cannot be read."""
        return Checkpoint(self.name, {}, path=self.path.resolve())

    @property
    def end_token(self) -> str | None:
        """The token at which generation stops, by the tokenizer."""
        for file in (TOKENIZER, "special_tokens_map.json"):
            token = self.settings.get(file, {}).get("eos_token")
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                return token
        return None

    @functools.cached_property
    def template(self) -> tuple[str, str]:
        """The chat template and the name of its file; empty where there is none."""
        try:
            written = chat_template(self._place)
        except (ValueError, AttributeError):
            return "", TOKENIZER
        return written or "", TEMPLATE if self._place.beside(TEMPLATE).is_file() else TOKENIZER

    @property
    def quantised(self) -> str:
        """How its weights are quantised, by its settings; empty if they are not."""
        about = self.config.get("quantization_config")
        if not isinstance(about, dict) or not about:
            return ""
        bits = 4 if about.get("load_in_4bit") else 8 if about.get("load_in_8bit") else about.get("bits")
        return f"{about.get('quant_method') or 'quantised'}{f', {bits} bits' if bits else ''}"


def _as_expected(found: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Settings without those of another kind than expected, and these in words."""
    odd = {
        key: value
        for key, value in found.items()
        if value is not None and key in _KINDS and not _is_kind(value, _KINDS[key][0])
    }
    words = [f"{_KINDS[key][1]} as {key}, got {value!r}"[:200] for key, value in odd.items()]
    return {key: value for key, value in found.items() if key not in odd}, words


def _is_kind(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _holds_adapter(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> bool:
    try:
        return is_adapter(checkpoint)
    except ValueError:  # settings that cannot be read
        return CONFIG in settings or any(".lora_" in name for name in checkpoint.tensors)
