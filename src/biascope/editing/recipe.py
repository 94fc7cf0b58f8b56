"""mergekit's recipes: YAML files that say what is merged, read and written for what both programs do alike."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from biascope.editing.methods._settings import Assigned

# What mergekit calls a method, and what it is called here.
_METHODS = {
    **{name: name for name in ("linear", "task_arithmetic")},
    **{
        name: f"{name}:mergekit"
        for name in (
            "slerp",
            "nuslerp",
            "ties",
            "dare_ties",
            "della",
            "della_linear",
            "breadcrumbs",
            "breadcrumbs_ties",
        )
    },
    **{"dare_linear": "dare:mergekit", "sce": "sce:mergekit", "model_stock": "model_stock:mergekit"},
}
_KNOWN = {"models", "merge_method", "base_model", "parameters", "dtype", "tokenizer_source"}
_WITHOUT_EFFECT = {"int8_mask": (True, False), "filter_wise": (False,)}  # on the numbers, for these values
_SLICED = ("slices", "modules")


@dataclass(frozen=True)
class MergeRecipe:
    """What is merged, and how.

    Attributes:
        base: θ₀.
        models: What is merged with it.
        method: The method, by our name.
        shared: Settings of all models.
        own: Settings of each model.
        dtype: Type of the result, in mergekit also of the arithmetic; empty for that of the base.
    """

    base: Path
    models: tuple[Path, ...]
    method: str
    shared: tuple[Assigned, ...] = ()
    own: tuple[tuple[Assigned, ...], ...] = ()
    dtype: str = ""

    def settings(self, names: Sequence[str]) -> list[Assigned]:
        """All settings, those of a model under its name."""
        of_models = (replace(each, model=name) for name, mine in zip(names, self.own, strict=True) for each in mine)
        return [*of_models, *self.shared]

    @staticmethod
    def read(path: Path) -> MergeRecipe:
        """A recipe from a file.

        Raises:
            ValueError: If it is none, or says something that is done otherwise here, in one sentence.
        """
        found = _yaml(path)
        for key in _SLICED:
            if key in found:
                raise ValueError(
                    f"A recipe must merge whole models, but {path} has {key}, which builds a model from layers of others. Use mergekit "
                    "for that."
                )
        if unknown := sorted(set(found) - _KNOWN):
            raise ValueError(
                f"{path} has {unknown[0]}, which Biascope does not read: it knows {', '.join(sorted(_KNOWN))}. Remove it, or use "
                "mergekit."
            )
        name = str(found.get("merge_method"))
        if name not in _METHODS:
            raise ValueError(
                f"merge_method of {path} must be one that both programs have, {', '.join(sorted(_METHODS))}, got {name}. Use mergekit "
                "for it."
            )
        if found.get("tokenizer_source") not in (None, "base"):
            raise ValueError(
                f"tokenizer_source of {path} must be base, because Biascope copies the tokenizer of the base, got "
                f"{found['tokenizer_source']}. Use mergekit to build another."
            )
        entries = found.get("models")
        if (
            not isinstance(entries, list)
            or not entries
            or not all(isinstance(e, dict) and "model" in e for e in entries)
        ):
            raise ValueError(f"{path} must list models, each with a key model. Write models: and - model: PATH.")
        paths = [_local(str(entry["model"]), path) for entry in entries]
        own = [_assigned(entry.get("parameters"), path) for entry in entries]
        if (stated := found.get("base_model")) is None:
            if name != "linear":
                raise ValueError(f"{path} must name a base_model for {name}. Add base_model: PATH.")
            base = paths[0]
        else:
            base = _local(str(stated), path)
            if name == "linear" and base not in paths:
                raise ValueError(
                    f"{path} must list base_model among the models of a linear merge, with its weight, because mergekit counts it. "
                    "Add it, or remove base_model."
                )
        # Elsewhere the base is no model: its task vector is zero, and mergekit asks for no weight.
        chosen = [place for place, each in enumerate(paths) if name == "linear" or each != base]
        if not chosen:
            raise ValueError(f"{path} must list a model besides {base}. Add one.")
        return MergeRecipe(
            base,
            tuple(paths[place] for place in chosen),
            _METHODS[name],
            tuple(_assigned(found.get("parameters"), path)),
            tuple(tuple(own[place]) for place in chosen),
            str(found.get("dtype") or ""),
        )

    def text(self) -> str:
        """The file for mergekit.

        Raises:
            ValueError: If mergekit has no such method or setting, or PyYAML is not installed.
        """
        names = {ours: theirs for theirs, ours in _METHODS.items()}
        if self.method not in names:
            near = f"{self.method.split(':')[0]}:mergekit"
            remedy = f"Pass --method {near}" if near in names else "Leave --write-recipe out"
            raise ValueError(f"A recipe must have a method of mergekit, which has no {self.method}. {remedy}.")
        models: list[dict[str, Any]] = []
        for model, mine in zip(self.models, self.own, strict=True):
            models.append({"model": str(model), **({"parameters": _parameters(mine)} if mine else {})})
        shared = {"parameters": _parameters(self.shared)} if self.shared else {}
        dtype = {"dtype": self.dtype} if self.dtype else {}
        base = {} if self.method == "linear" and self.base not in self.models else {"base_model": str(self.base)}
        document = {"models": models, "merge_method": names[self.method], **base, **shared, **dtype}
        written: str = _library().safe_dump(document, sort_keys=False)
        return written


def _library() -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ValueError("Recipes need PyYAML, which is not installed. Run pip install pyyaml.") from error
    return yaml


def _yaml(path: Path) -> dict[str, Any]:
    library = _library()
    try:
        found = library.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RecursionError, library.YAMLError) as error:
        why = " ".join(str(error).split())
        raise ValueError(
            f"{path} must be a recipe in YAML, but cannot be read as one ({why}). Check the file."
        ) from error
    if not isinstance(found, dict):
        raise ValueError(
            f"{path} must be a recipe in YAML, with merge_method and models, got {type(found).__name__}. Check the file."
        )
    return found


def _local(model: str, path: Path) -> Path:
    if not Path(model).exists():
        adapter = " An adapter is a model of its own here, without the base and a plus sign." if "+" in model else ""
        raise ValueError(
            f"Every model of {path} must be a file or folder on this machine, but {model} is not.{adapter} Download it, and write its "
            "path."
        )
    return Path(model)


def _assigned(parameters: Any, path: Path) -> list[Assigned]:
    """The settings of a mapping: numbers, gradients over layers, and either with a part of the name of a tensor."""
    if parameters is None:
        return []
    if not isinstance(parameters, Mapping):
        raise ValueError(f"parameters in {path} must be settings by name, got {parameters!r}. Write weight: 0.5.")
    found = []
    for name, value in parameters.items():
        if name in _WITHOUT_EFFECT and value in _WITHOUT_EFFECT[name]:
            continue
        conditions = value if isinstance(value, list) and any(isinstance(each, Mapping) for each in value) else [value]
        for each in conditions:
            pattern = None
            if isinstance(each, Mapping):
                if set(each) - {"value", "filter"} or "value" not in each:
                    raise ValueError(f"{name} in {path} must have value and filter, got {dict(each)}. Fix it.")
                if each.get("filter") not in (None, "*"):
                    pattern = f"*{_escaped(str(each['filter']))}*"
                each = each["value"]
            numbers = each if isinstance(each, list) else [each]
            try:
                found.append(Assigned(str(name), tuple(float(number) for number in numbers), None, pattern))
            except (TypeError, ValueError):
                raise ValueError(f"{name} in {path} must be numbers, got {each!r}. Write {name}: 0.5.") from None
            if not numbers:
                raise ValueError(f"{name} in {path} must have a value, got an empty list. Write {name}: 0.5.")
    return found


def _escaped(text: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", text)


def _parameters(settings: Sequence[Assigned]) -> dict[str, Any]:
    """Settings as mergekit spells them."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(each.name for each in settings):
        mine = sorted((each for each in settings if each.name == name), key=lambda each: each.pattern is None)
        values = [each.value[0] if len(each.value) == 1 else list(each.value) for each in mine]
        if len(mine) == 1 and mine[0].pattern is None:
            found[name] = values[0]
            continue
        found[name] = [
            {"value": value} | ({"filter": _filter(each)} if each.pattern else {})
            for each, value in zip(mine, values, strict=True)
        ]
    return found


def _filter(each: Assigned) -> str:
    """The part of a name that a pattern asks for, if it asks for no more."""
    inner = (each.pattern or "").removeprefix("*").removesuffix("*")
    plain = re.sub(r"\[([*?[])\]", r"\1", inner)
    if f"*{_escaped(plain)}*" != each.pattern:
        raise ValueError(
            f"A recipe filters by a part of a name, so patterns must have the form '*part*', got {each.pattern!r}. Change it, or leave "
            "--write-recipe out."
        )
    return plain
