"""SHOW: `biascope data`, the commands that fetch, list and check data sets, and score their samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from biascope.cli import _completion
from biascope.cli._dry_run import rehearsed
from biascope.cli._settings_file import keep_settings
from biascope.cli.options import (
    DataRoot,
    DatasetName,
    Draws,
    ModelOption,
    Output,
    Readout,
    Scale,
    SeededWork,
    Settings,
    Split,
    with_groups,
)
from biascope.cli.printing import print_json, print_results

if TYPE_CHECKING:
    from biascope.data import Dataset
    from biascope.measures.sample_score import SampleScores
    from biascope.tasks.task import Arrays

app = typer.Typer(help="Fetch, list and check real data sets, and score their samples.")

PRUNING_WITHDRAWN = (
    "data score does not take --keep and --per-class: pruning by score is worse than pruning at random (a LeNet on CIFAR-10 "
    "loses 3.3 ± 0.5 points against random subsets with 50 % removed, 6.2 ± 0.6 with 90 %). Leave them out. The numbers are in "
    "docs/sample_score.md."
)


@app.command()
@with_groups
def get(
    names: Annotated[
        list[str],
        typer.Argument(
            help="Published data sets: cifar10, mnist, fashion-mnist.", autocompletion=_completion.published_sets
        ),
    ],
    *,
    data_root: DataRoot = None,
    output: Output,
) -> None:
    """Fetch published data sets; sets that are already on disk are not fetched again."""
    from biascope import data
    from biascope.data.fetching import fetch

    def say(text: str) -> None:
        if not output.quiet:
            typer.echo(text, err=True)

    root = data.data_root(data_root)
    wanted = [data.published_set(name) for name in names]  # a wrong name is told before anything is fetched
    rows, failures = [], []
    for published in wanted:
        try:
            fetched = fetch(published, root, say=say, progress=not output.quiet)
        except ValueError as error:  # the other sets are still fetched
            failures.append(str(error))
            continue
        rows.append({"name": published.name, "path": fetched.folder, "sources": fetched.sources})
        how = f"fetched from {' and '.join(fetched.sources)}" if fetched.sources else "already on disk"
        if not output.as_json:
            typer.echo(f"{published.name}: {how}, {fetched.folder}")
    if output.as_json:
        print_json(root=root, sets=rows, failures=failures)
    if failures:
        raise ValueError(" ".join(failures))


@app.command("list")
@with_groups
def list_(data_root: DataRoot = None, *, output: Output) -> None:
    """List the known data sets, and which of them are on disk."""
    from biascope import data

    root = data.data_root(data_root)
    published = [data.published_set(name) for name in data.names()]
    places = {each.name: place[1] if (place := each.located(root)) else None for each in published}
    own = {name: root / f"{name}.npz" for name in data.own_sets(root)}
    if output.as_json:
        print_json(root=root, sets=[{"name": name, "path": path} for name, path in {**places, **own}.items()])
        return
    typer.echo(f"Data sets under {root}:")
    for each in published:
        where = places[each.name] or f"not on disk: biascope data get {each.name}"
        typer.echo(f"  {each.name:14} {each.content:48} {where}")
    for name, path in own.items():
        typer.echo(f"  {name:14} {'your own':48} {path}")


@app.command()
@with_groups
def check(name: DatasetName, *, data_root: DataRoot = None, output: Output) -> None:
    """Check a data set: the MD5 of every official file, or whether your own can be read."""
    from biascope import data

    root = data.data_root(data_root)
    if not data.is_published(name):  # a user's own set has no official sums: reading it is the check
        own = data.load(name, root=root)
        if output.as_json:
            print_json(name=own.name, identity=own.identity, files=[])
        else:
            typer.echo(f"{own!r}\n  {own.identity}")
        return
    published = data.published_set(name)
    if (place := published.located(root)) is None:
        raise ValueError(published.missing_from(root))
    layout, folder = place
    verdicts = layout.verdicts(folder)
    wrong = [file for file, verdict in verdicts.items() if verdict != "ok"]
    if output.as_json:
        rows = [{"path": folder / file, "verdict": verdict} for file, verdict in verdicts.items()]
        print_json(name=published.name, identity=None, files=rows)
    else:
        for file, verdict in verdicts.items():
            typer.echo(f"{folder / file}: {verdict}")
    if wrong:
        raise ValueError(
            f"{published.name} must consist of its official files, but {', '.join(wrong)} in {folder} "
            f"{'are' if len(wrong) > 1 else 'is'} missing or damaged. Run `biascope data get {published.name} --data-root {root}`."
        )


@app.command()
@with_groups
@rehearsed()
def score(
    name: DatasetName,
    *,
    model: ModelOption = "lenet",
    settings: Settings = [],  # noqa: B006 - typer copies it
    split: Split = "train",
    keep: Annotated[str | None, typer.Option(hidden=True)] = None,
    per_class: Annotated[bool, typer.Option("--per-class", hidden=True)] = False,
    draws: Draws = 1000,
    scale: Scale = 1e-3,
    readout: Readout = "mean",
    side: Annotated[int | None, typer.Option(help="Pad images to this height and width.")] = None,
    data_root: DataRoot = None,
    work: SeededWork,
) -> None:
    """Score every sample of a data set for a network, before any training."""
    from biascope import data, scanning
    from biascope.families import source as model_source
    from biascope.results.registry import find
    from biascope.results.report import write_folder_report
    from biascope.runs.files import require_ours

    if not scale > 0:
        raise ValueError(f"--scale must be a positive number, got {scale}. Pass --scale 0.001 as published.")
    if keep is not None or per_class:
        raise ValueError(PRUNING_WITHDRAWN)
    chosen = model_source.parse_settings(settings)
    whole = data.load(name, root=data_root)
    samples = _in_own_order(whole if side is None else whole.padded(side), split)
    family = model_source.family_of(model, shape=samples.shape, settings=chosen)
    on = f"{scanning.folder_name(model, chosen, None)}-on-{scanning.path_words(name, '.npz')}"
    folder = work.out or Path("biascope-runs") / on
    run = work.run(folder)
    require_ours(*(folder / f"{split}-scores{suffix}" for suffix in (".csv", ".npz")))
    result = find("sample_score")(family, samples, draws=draws, scale=scale, readout=readout, seed=work.seed, run=run)
    result.save(folder / f"sample_score-{split}")
    keep_settings(folder, split)
    files = _write_tables(result, whole.splits[split][1] is not None, folder, split)
    print_results([result], write_folder_report(folder), work.as_json, files=files)
    if not work.as_json:
        if result.agreement.value < 0.9:
            typer.echo("The order of the samples still depends on the drawn networks. Pass more --draws.")
        typer.echo(f"Scores: {files[0]}, {files[1].name}")


def _in_own_order(whole: Dataset, split: str) -> Arrays:
    """All samples of a split as they lie in the set, each channel standardised over the training samples."""
    import numpy as np
    import torch

    from biascope.tasks.task import Arrays

    if split not in whole.splits:
        there = ", ".join(whole.splits)
        raise ValueError(f"--split must be one of {there} for {whole.name!r}, got {split!r}. Pass one of these.")
    images, labels = whole.splits[split]
    measured = whole.splits.get("train", whole.splits[split])[0]
    x = images.astype(np.float32)
    for channel in range(x.shape[1]):  # one by one, and in place: copies of a whole set may not fit
        pixels = measured[:, channel].astype(np.float32)
        x[:, channel] = (x[:, channel] - pixels.mean(dtype=np.float64)) / max(pixels.std(dtype=np.float64), 1e-6)
    y = np.zeros(len(x), np.int64) if labels is None else labels
    return Arrays(
        {split: (torch.from_numpy(x), torch.from_numpy(y))},
        name=f"{whole.identity}, {len(x):,} {split} samples",
        classes=() if labels is None else whole.classes,
    )


def _write_tables(result: SampleScores, labelled: bool, folder: Path, split: str) -> list[Path]:
    """Scores as CSV and npz; each file whole or not at all."""
    import io

    import numpy as np

    from biascope.runs.files import require_ours, write_atomically

    scores, errors = result.scores, result.errors
    labels = result.labels.tolist() if labelled else [""] * len(scores)
    lines = ["index,label,score,standard_error"]
    lines += [f"{i},{labels[i]},{scores[i]:.6g},{errors[i]:.3g}" for i in range(len(scores))]
    arrays = io.BytesIO()
    table: Any = {"index": np.arange(len(scores)), "score": scores, "standard_error": errors}
    np.savez(arrays, **table | ({"label": result.labels} if labelled else {}))
    content = {
        f"{split}-scores.csv": "\n".join([*lines, ""]).encode(errors="backslashreplace"),
        f"{split}-scores.npz": arrays.getvalue(),
    }
    require_ours(*(folder / file for file in content))
    for file, data in content.items():
        write_atomically(folder / file, data)
    return [folder / file for file in content]
