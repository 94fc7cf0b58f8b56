"""SHOW: `biascope merge extract`: what fine-tuning changed, as a LoRA adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biascope.cli._dry_run import rehearsed
from biascope.cli.merge.checkpoints import CHECKPOINT, Base
from biascope.cli.merge.results import TABLES, save_and_print
from biascope.cli.options import Lasting, Unrelated, with_groups


@with_groups
@rehearsed(beside="out")
def extract(
    base: Base,
    model: Annotated[Path, typer.Argument(help=f"The fine-tuned model: {CHECKPOINT}.")],
    *,
    out: Annotated[Path, typer.Option("--out", help="Folder of the adapter, as PEFT opens it.")],
    rank: Annotated[int | None, typer.Option(help="Maximum rank of a layer.")] = None,
    energy: Annotated[
        float | None,
        typer.Option(
            help="Share of the squared norm to keep in each layer, such as 0.95. Each layer gets the smallest rank."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite an existing adapter.")] = False,
    unrelated: Unrelated = False,
    report_out: Annotated[
        Path | None, typer.Option("--report-out", help="Folder for results and report; in biascope-runs by default.")
    ] = None,
    output: Lasting,
) -> None:
    """Write the difference of a fine-tuned model from its base as a LoRA adapter of low rank.

    Each linear layer gets the best approximation of its rank (truncated singular values). The output says how much each rank keeps,
    and what an adapter does not cover: norms, biases, embeddings.
    """
    from biascope.editing.extraction import extracted, require_free
    from biascope.families.checkpoint import Checkpoint
    from biascope.results.registry import require_own
    from biascope.runs.files import path_words
    from biascope.runs.rehearsal import placed, rehearsing
    from biascope.runs.run import Run

    folder = report_out or Path("biascope-runs") / f"extract-{path_words(out)}"
    require_own(folder, *TABLES)
    if rehearsing():
        require_free(out, overwrite)
    found = extracted(
        Checkpoint.open(base),
        Checkpoint.open(model),
        placed(out),
        rank=rank,
        energy=energy,
        unrelated=unrelated,
        overwrite=overwrite,
        run=Run(progress=not output.quiet, memory=output.memory),
    )
    save_and_print(found, folder, f"How much of {found.subject} a low rank keeps", output)
