"""Names that transformers writes for one tensor in different versions of its models, by its own rules."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from biascope.families.libraries.packages import imported, silent
from biascope.runs.failures import FOREIGN


class Rules(NamedTuple):
    """How a library names the tensors of a model.

    Attributes:
        newest: The name of a tensor by its newest version.
        body: Prefix of the part that its models share; what stands beside it is a head.
    """

    newest: Callable[[str], str]
    body: str


def rules_of(folder: Path) -> Rules | None:
    """How the installed transformers names the tensors of the model in a folder; none where it cannot tell.

    Args:
        folder: With the configuration of the model.
    """
    if importlib.util.find_spec("transformers") is None or not (folder / "config.json").is_file():
        return None
    try:
        if "auto_map" in json.loads((folder / "config.json").read_text(encoding="utf-8")):
            return None  # code of its own, which is not run
        transformers = imported("transformers", str(folder), least="5.0")
        with silent(transformers):
            config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True)
            kind = getattr(transformers, (config.architectures or ["AutoModel"])[0])
            with torch.device("meta"):
                model = (kind.from_config if hasattr(kind, "from_config") else kind._from_config)(config)
            rules = imported("transformers.conversion_mapping", str(folder)).get_model_conversion_mapping(model)
    except FOREIGN:  # a kind or a version without such rules
        return None
    renamed = [rule for rule in rules if type(rule).__name__ == "WeightRenaming"]

    def spelled(name: str) -> str:
        for rule in renamed:
            name = rule.rename_source_key(name)[0]
        return name

    return Rules(spelled, model.base_model_prefix)
