"""Checkpoints as arguments of commands, and when two belong together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CHECKPOINT = "a .safetensors or torch file, or a folder with shards and index, as Hugging Face writes it"
Base = Annotated[Path, typer.Argument(help=f"The pre-trained model: {CHECKPOINT}.")]
