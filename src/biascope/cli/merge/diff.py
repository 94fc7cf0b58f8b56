"""SHOW: `biascope merge diff`: how checkpoints differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biascope.cli._dry_run import rehearsed
from biascope.cli.merge.checkpoints import CHECKPOINT
from biascope.cli.merge.results import TABLES, save_and_print
from biascope.cli.options import Lasting, Out, with_groups


@with_groups
@rehearsed()
def diff(
    base: Annotated[Path, typer.Argument(help=f"The pre-trained model, or the first of two: {CHECKPOINT}.")],
    models: Annotated[
        list[Path], typer.Argument(help="Models, saved task vectors or LoRA adapters to compare with it.")
    ],
    *,
    out: Out = None,
    output: Lasting,
) -> None:
    """Show how checkpoints differ: names, types, distances by layer, and whether the differences agree.

    Of LoRA adapters, the updates s·B·A are compared, not the factors. Pass their base first for the cosine of two updates.
    """
    from biascope.editing.merge import differences
    from biascope.families.checkpoint import Checkpoint
    from biascope.results.registry import require_own
    from biascope.runs.files import path_words
    from biascope.runs.run import Run

    first, others = Checkpoint.open(base), [Checkpoint.open(model) for model in models]
    folder = out or Path("biascope-runs") / f"diff-{path_words(base, '.safetensors')}"
    require_own(folder, *TABLES)
    difference = differences(first, others, run=Run(progress=not output.quiet))
    save_and_print(difference, folder, f"How {difference.subject} differ", output)
