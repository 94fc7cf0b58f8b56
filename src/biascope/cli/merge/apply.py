"""SHOW: `biascope merge apply`: models merged with a base by a merging method, as a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biascope.cli._dry_run import rehearsed
from biascope.cli.merge.checkpoints import CHECKPOINT
from biascope.cli.merge.results import TABLES, save_and_print
from biascope.cli.options import Lasting, Unrelated, with_groups
from biascope.runs.byte_size import byte_size

if TYPE_CHECKING:
    from biascope.editing.methods._settings import Assigned
    from biascope.editing.recipe import MergeRecipe

MODELS_HELP = (
    f"Fine-tuned models, saved task vectors or LoRA adapters, each with its weight: A=0.4 B=-0.5. Each is {CHECKPOINT}, or a folder "
    "with adapter_config.json."
)
METHOD_HELP = (
    "Merging method: task_arithmetic, linear, slerp, ties, dare and others, in the form of its paper, or a dialect such as "
    "ties:mergekit. 'list' prints all of them with their settings."
)
SET_HELP = (
    "A setting of the method, density=0.2; of one model, density:A=0.2; of some tensors, 'density@*.mlp.*=0.2'; from the first layer "
    "to the last, weight=0,0.5,1. May be repeated."
)
RECIPE_HELP = "Read base, models, method and settings from a YAML file of mergekit."
KEEP_HELP = "Parameters to take from the base, which models need not have: 'classifier.*'; may be repeated."

SHARED_TOKENS_HELP = (
    "Merge a model with another vocabulary by the rows of tokens that have the same number in the base. "
    "Other rows stay as in the base."
)
DTYPE_HELP = "Type of the merged weights: float32, float64, float16 or bfloat16. The default is the type of the base."


@with_groups
@rehearsed(beside="out")
def apply(
    base: Annotated[
        Path | None, typer.Argument(help=f"The pre-trained model: {CHECKPOINT}. Not with --recipe.")
    ] = None,
    models: Annotated[list[str], typer.Argument(help=MODELS_HELP)] = [],  # noqa: B006 - typer copies it
    *,
    out: Annotated[
        Path | None, typer.Option("--out", help="Merged model: a .safetensors file, or a folder for shards.")
    ] = None,
    method: Annotated[str, typer.Option("--method", help=METHOD_HELP)] = "task_arithmetic",
    settings: Annotated[list[str], typer.Option("--set", help=SET_HELP)] = [],  # noqa: B006 - typer copies it
    seed: Annotated[int, typer.Option("--seed", help="Random seed for methods that draw masks.")] = 0,
    recipe: Annotated[Path | None, typer.Option("--recipe", help=RECIPE_HELP)] = None,
    write_recipe: Annotated[
        Path | None, typer.Option("--write-recipe", help="Also write the merge as a YAML file of mergekit.")
    ] = None,
    weight: Annotated[float | None, typer.Option(help="Weight of every model that is given without one.")] = None,
    keep: Annotated[list[str], typer.Option(help=KEEP_HELP)] = [],  # noqa: B006 - typer copies it
    shard_size: Annotated[str, typer.Option(help="Maximum size of a shard, such as 500MB.")] = "5GB",
    shared_tokens: Annotated[bool, typer.Option("--shared-tokens", help=SHARED_TOKENS_HELP)] = False,
    dtype: Annotated[str | None, typer.Option(help=DTYPE_HELP)] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite an existing model.")] = False,
    unrelated: Unrelated = False,
    report_out: Annotated[
        Path | None, typer.Option("--report-out", help="Folder for results and report; in biascope-runs by default.")
    ] = None,
    output: Lasting,
) -> None:
    """Merge models with a base and write the result, without loading any model whole.

    Without --method, weighted differences of models are added to the base.
    """
    from biascope.editing.merge import merge
    from biascope.editing.methods._settings import Assigned
    from biascope.editing.recipe import MergeRecipe
    from biascope.families.checkpoint import Checkpoint
    from biascope.families.checkpoint_writer import CheckpointWriter
    from biascope.families.weights import editable_type
    from biascope.results.planes import distinct
    from biascope.results.registry import require_own
    from biascope.runs.files import path_words, write_atomically
    from biascope.runs.rehearsal import placed, rehearsing
    from biascope.runs.run import Run

    if method == "list":
        typer.echo(_listed())
        return
    if out is None:
        raise ValueError("The merged model needs a place. Pass --out merged.safetensors, or --out FOLDER.")
    assigned = [Assigned.read(words) for words in settings]
    planned: MergeRecipe | None = None
    chosen: list[tuple[Path, float | None]]
    if recipe is not None:
        if base is not None or models or settings or weight is not None or method != "task_arithmetic":
            raise ValueError(
                "--recipe says what is merged and how. Leave BASE, models, --method, --weight and --set out."
            )
        planned = MergeRecipe.read(recipe)
        method, base, chosen = planned.method, planned.base, [(path, None) for path in planned.models]
    elif base is None or not models:
        raise ValueError("A merge needs a base and models. Pass BASE A=0.4 B=0.4, or --recipe merge.yaml.")
    else:
        needed = method == "task_arithmetic" and not any(each.name == "weight" for each in assigned)
        chosen = [weighted(words, weight, needed) for words in models]
    dtype = dtype or (planned.dtype if planned else None) or None
    chosen_type = None if dtype is None else editable_type(dtype, "--dtype")
    size = byte_size(shard_size, "--shard-size")
    folder = report_out or Path("biascope-runs") / f"merge-{path_words(out, '.safetensors')}"
    near = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not near.is_dir():  # told before the merge, not after it
        raise ValueError(f"--report-out must name a folder, but {near} is a file. Pass another.")
    require_own(folder, *TABLES)
    opened, start = [(Checkpoint.open(path), number) for path, number in chosen], Checkpoint.open(base)
    names = distinct(model.label for model, _ in opened)
    if planned is not None:
        assigned = planned.settings(names)
    written = _as_recipe(base, chosen, method, assigned, names, dtype or "").text() if write_recipe is not None else ""
    if rehearsing():
        CheckpointWriter(out, start.tensors, shard_bytes=size, overwrite=overwrite)  # refuses what it cannot write
    try:
        merged = merge(
            start,
            opened,
            placed(out),
            method=method,
            settings=assigned,
            seed=seed,
            keep=keep,
            unrelated=unrelated,
            shared_tokens=shared_tokens,
            dtype=chosen_type,
            shard_bytes=size,
            overwrite=overwrite,
            run=Run(progress=not output.quiet, memory=output.memory),
        )
    except KeyboardInterrupt:
        typer.echo("Stopped. Nothing was written. The same command starts again.", err=True)
        raise typer.Exit(1) from None  # 130 would be told that it goes on
    if write_recipe is not None:
        write_atomically(placed(write_recipe), written.encode())
    try:
        save_and_print(merged, folder, f"{out.name}: {merged.subject}", output)
    except (ValueError, OSError) as error:  # the model is written, which is what was asked for
        typer.echo(f"biascope: {out} is written, but its report in {folder} is not: {error}", err=True)


def _as_recipe(
    base: Path,
    models: Sequence[tuple[Path, float | None]],
    method: str,
    assigned: Sequence[Assigned],
    names: Sequence[str],
    dtype: str,
) -> MergeRecipe:
    """What was asked for, as a recipe."""
    from biascope.editing.methods._settings import Assigned
    from biascope.editing.recipe import MergeRecipe

    own = [
        (
            *(dataclasses.replace(each, model=None) for each in assigned if each.model == name),
            *([Assigned("weight", (number,))] if number is not None else []),
        )
        for name, (_, number) in zip(names, models, strict=True)
    ]
    shared = tuple(each for each in assigned if each.model is None)
    return MergeRecipe(base, tuple(path for path, _ in models), method, shared, tuple(own), dtype)


def _listed() -> str:
    """Every method and dialect, with its definition and its settings."""
    from biascope.editing import methods

    lines = []
    for name in methods.names():
        form = methods.method(name)
        held = ". Holds one tensor of all models in memory." if form.matrices else ""
        lines.append(f"{name}: {form.says} ({form.reference}){held}")
        for setting in form.settings:
            usual = "must be given" if setting.default is None else f"{setting.default:g}"
            usual = {"1": "true", "0": "false"}[usual] if setting.flag else usual
            lines.append(f"    {setting.name} ({usual}): {setting.says}")
    return "\n".join(lines)


def weighted(words: str, usual: float | None, needed: bool = True) -> tuple[Path, float | None]:
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
    if usual is None and needed:
        raise ValueError(
            f"Every model needs a weight, but {words} has none. Pass {words}=0.4, or --weight 0.4 for all."
        )
    return Path(words), usual
