"""SHOW: `biascope merge apply`: weighted differences of models added to a base, as a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biascope.cli._dry_run import rehearsed
from biascope.cli.merge.checkpoints import CHECKPOINT, Base
from biascope.cli.merge.results import TABLES, save_and_print
from biascope.cli.options import Lasting, Unrelated, with_groups
from biascope.runs.byte_size import byte_size

MODELS_HELP = (
    f"Fine-tuned models, saved task vectors or LoRA adapters, each with its weight: A=0.4 B=-0.5. Each is {CHECKPOINT}, or a folder "
    "with adapter_config.json."
)
KEEP_HELP = "Parameters to take from the base, which models need not have: 'classifier.*'; may be repeated."

DTYPE_HELP = "Type of the merged weights: float32, float64, float16 or bfloat16. The default is the type of the base."


@with_groups
@rehearsed(beside="out")
def apply(
    base: Base,
    models: Annotated[list[str], typer.Argument(help=MODELS_HELP)],
    *,
    out: Annotated[Path, typer.Option("--out", help="Merged model: a .safetensors file, or a folder for shards.")],
    weight: Annotated[float | None, typer.Option(help="Weight of every model that is given without one.")] = None,
    keep: Annotated[list[str], typer.Option(help=KEEP_HELP)] = [],  # noqa: B006 - typer copies it
    shard_size: Annotated[str, typer.Option(help="Maximum size of a shard, such as 500MB.")] = "5GB",
    dtype: Annotated[str | None, typer.Option(help=DTYPE_HELP)] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite an existing model.")] = False,
    unrelated: Unrelated = False,
    report_out: Annotated[
        Path | None, typer.Option("--report-out", help="Folder for results and report; in biascope-runs by default.")
    ] = None,
    output: Lasting,
) -> None:
    """Add weighted differences of models to a base and write the result, without loading any model whole."""
    from biascope.editing.merge import merge
    from biascope.families.checkpoint import Checkpoint
    from biascope.families.checkpoint_writer import CheckpointWriter
    from biascope.families.weights import editable_type
    from biascope.results.registry import require_own
    from biascope.runs.files import path_words
    from biascope.runs.rehearsal import placed, rehearsing
    from biascope.runs.run import Run

    chosen = [weighted(words, weight) for words in models]
    chosen_type = None if dtype is None else editable_type(dtype, "--dtype")
    size = byte_size(shard_size, "--shard-size")
    folder = report_out or Path("biascope-runs") / f"merge-{path_words(out, '.safetensors')}"
    near = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not near.is_dir():  # told before the merge, not after it
        raise ValueError(f"--report-out must name a folder, but {near} is a file. Pass another.")
    require_own(folder, *TABLES)
    opened, start = [(Checkpoint.open(path), number) for path, number in chosen], Checkpoint.open(base)
    if rehearsing():
        CheckpointWriter(out, start.tensors, shard_bytes=size, overwrite=overwrite)  # refuses what it cannot write
    try:
        merged = merge(
            start,
            opened,
            placed(out),
            keep=keep,
            unrelated=unrelated,
            dtype=chosen_type,
            shard_bytes=size,
            overwrite=overwrite,
            run=Run(progress=not output.quiet, memory=output.memory),
        )
    except KeyboardInterrupt:
        typer.echo("Stopped. Nothing was written. The same command starts again.", err=True)
        raise typer.Exit(1) from None  # 130 would be told that it goes on
    try:
        save_and_print(merged, folder, f"{out.name}: {merged.subject}", output)
    except (ValueError, OSError) as error:  # the model is written, which is what was asked for
        typer.echo(f"biascope: {out} is written, but its report in {folder} is not: {error}", err=True)


def weighted(words: str, usual: float | None) -> tuple[Path, float]:
    """A model and its weight from ``"path=0.4"``; a path may itself contain an equals sign.

    Example:
        >>> weighted("model.safetensors=-0.5", None), weighted("model.safetensors", 0.3)
        ((PosixPath('model.safetensors'), -0.5), (PosixPath('model.safetensors'), 0.3))
    """
    path, sign, number = words.rpartition("=")
    if sign and not Path(words).exists():
        try:
            return Path(path), float(number)
        except ValueError:
            raise ValueError(f"The weight of a model must be a number, got {words!r}. Pass {path}=0.4.") from None
    if usual is None:
        raise ValueError(
            f"Every model needs a weight, but {words} has none. Pass {words}=0.4, or --weight 0.4 for all."
        )
    return Path(words), usual
