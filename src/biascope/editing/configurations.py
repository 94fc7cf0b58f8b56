"""What the folders of base and models say differently: configuration, generation, special tokens, chat template, tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from biascope.editing.vocabulary import told_of_tokens
from biascope.families.checkpoint import Checkpoint, read_settings

_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
# Of the version, of the head, of the type, or compared apart.
_APART = {"_name_or_path", "name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "use_cache"}
_APART |= {"id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "_from_model_config", "_num_labels"}
_APART |= {
    "chat_template",
    "added_tokens_decoder",
    "is_local",
    "local_files_only",
    "auto_map",
    "backend",
    "tokenizer_class",
}
_LONGEST = 40  # characters of a value that is shown
_FEW = 6


def told_of_folders(base: Checkpoint, models: Sequence[Checkpoint]) -> list[str]:
    """By what the texts in the folders of models differ from those of the base; nothing where a folder has none.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     places = [Path(folder) / name for name in ("base", "chat")]
        ...     for number, place in enumerate(places):
        ...         place.mkdir()
        ...         _ = (place / "config.json").write_text('{"eos_token_id": %d, "use_cache": true}' % number)
        ...     base, chat = (Checkpoint(place.name, {}, path=place) for place in places)
        ...     told_of_folders(base, [chat])
        ['config.json of chat differs from that of base in eos_token_id (1 instead of 0).']
    """
    found = []
    for model in models:
        if not model.path.name or model.beside(".").resolve() == base.beside(".").resolve():
            continue
        for file in _FILES:
            here, there = (each.beside(file) for each in (base, model))
            if here.is_file() and there.is_file() and (keys := _differing(read_settings(here), read_settings(there))):
                shown = (
                    f"{', '.join(keys[:_FEW])} and {len(keys) - _FEW} others" if len(keys) > _FEW else ", ".join(keys)
                )
                found.append(f"{file} of {model.label} differs from that of {base.label} in {shown}.")
        first, second = map(chat_template, (base, model))
        if second is not None and first != second:
            how = "has a chat template, and {} has none" if first is None else "has another chat template than {}"
            found.append(f"{model.label} {how.format(base.label)}.")
        found += told_of_tokens(base, model)
    return found


def _differing(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """The settings that two files have differently, with their values where these are short."""
    found = []
    for key in sorted((first.keys() | second.keys()) - _APART):
        here, there = first.get(key), second.get(key)
        if here != there:
            words = f"{_shown(there)} instead of {_shown(here)}"
            found.append(f"{key} ({words})" if len(words) <= _LONGEST else key)
    return found


def _shown(value: Any) -> str:
    value = value.get("content", value) if isinstance(value, dict) else value  # a special token with its flags
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def chat_template(model: Checkpoint) -> str | None:
    """The chat template in the folder of a model, in a file of its own or among the settings of the tokenizer."""
    own, settings = (model.beside(name) for name in ("chat_template.jinja", "tokenizer_config.json"))
    if own.is_file():
        return _text(own)
    found = read_settings(settings).get("chat_template") if settings.is_file() else None
    return None if found is None else str(found)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
