"""SHOW: `biascope data`, the commands that fetch, list and check data sets, and score their samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from biascope.data import Dataset
    from biascope.measures.sample_score import SampleScores
    from biascope.tasks.task import Arrays

app = typer.Typer(help="Fetch, list and check real data sets, and score their samples.", no_args_is_help=True)

RootOption = Annotated[
    Path | None,
    typer.Option("--data-root", help="Folder of data sets; else BIASCOPE_DATA, else ~/.cache/biascope."),
]
PRUNING_WITHDRAWN = (
    "data score must be called without --keep and --per-class: pruning by score is worse than pruning at random (a LeNet on CIFAR-10 "
    "loses 3.3 ± 0.5 points against random subsets with 50 % removed, 6.2 ± 0.6 with 90 %). Leave them out; docs/sample_score.md has "
    "the numbers."
)
JsonOption = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@app.command()
def get(
    names: Annotated[list[str], typer.Argument(help="Published sets: cifar10, mnist, fashion-mnist.")],
    data_root: RootOption = None,
) -> None:
    """Fetch published data sets; what is already there is not fetched again."""
    from biascope import data
    from biascope.data.fetching import fetch

    root = data.data_root(data_root)
    wanted = [data.published_set(name) for name in names]  # a wrong name is told before anything is fetched
    failures = []
    for published in wanted:
        try:
            fetched = fetch(published, root, say=lambda text: typer.echo(text, err=True))
        except ValueError as error:  # the other sets are still fetched
            failures.append(str(error))
            continue
        how = f"fetched from {' and '.join(fetched.sources)}" if fetched.sources else "already there"
        typer.echo(f"{published.name}: {how}, {fetched.folder}")
    if failures:
        raise ValueError(" ".join(failures))


@app.command("list")
def list_(data_root: RootOption = None, as_json: JsonOption = False) -> None:
    """List the data sets that are known, and which of them are there."""
    from biascope import data

    root = data.data_root(data_root)
    published = [data.published_set(name) for name in data.names()]
    places = {each.name: place[1] if (place := each.located(root)) else None for each in published}
    own = {name: root / f"{name}.npz" for name in data.own_sets(root)}
    if as_json:
        rows = [{"name": name, "path": str(path) if path else None} for name, path in {**places, **own}.items()]
        typer.echo(json.dumps({"root": str(root), "sets": rows}, indent=1))
        return
    typer.echo(f"Data sets under {root}:")
    for each in published:
        where = places[each.name] or f"not there: biascope data get {each.name}"
        typer.echo(f"  {each.name:14} {each.content:48} {where}")
    for name, path in own.items():
        typer.echo(f"  {name:14} {'your own':48} {path}")


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="A published set, or your own by name or path.")],
    data_root: RootOption = None,
) -> None:
    """Check a data set: the md5 of every official file, or that your own can be read."""
    from biascope import data

    root = data.data_root(data_root)
    if not data.is_published(name):  # a user's own set has no official sums: reading it is the check
        own = data.load(name, root=root)
        typer.echo(f"{own!r}\n  {own.identity}")
        return
    published = data.published_set(name)
    if (place := published.located(root)) is None:
        raise ValueError(published.missing_from(root))
    layout, folder = place
    verdicts = layout.verdicts(folder)
    for file, verdict in verdicts.items():
        typer.echo(f"{folder / file}: {verdict}")
    wrong = [file for file, verdict in verdicts.items() if verdict != "ok"]
    if wrong:
        raise ValueError(
            f"{published.name} must have its official files, and {', '.join(wrong)} in {folder} {'are' if len(wrong) > 1 else 'is'} "
            f"not. Run `biascope data get {published.name} --data-root {root}`."
        )


@app.command()
def score(
    name: Annotated[str, typer.Argument(help="A published set, or your own by name or path.")],
    model: Annotated[
        str, typer.Option(help="A network's name (biascope list), path/to/file.py:build or package.module:build.")
    ] = "lenet",
    split: Annotated[str, typer.Option(help="Which samples: train, test, or as your own set calls them.")] = "train",
    keep: Annotated[str | None, typer.Option(hidden=True)] = None,
    per_class: Annotated[bool, typer.Option("--per-class", hidden=True)] = False,
    draws: Annotated[int, typer.Option(help="Initialisations that the geometry is taken over.")] = 1000,
    scale: Annotated[float, typer.Option(help="σ of the Gaussian inputs at which gradients are taken.")] = 1e-3,
    readout: Annotated[
        str, typer.Option(help="Scalar of several outputs: first, sum, mean, margin or random.")
    ] = "mean",
    side: Annotated[int | None, typer.Option(help="Pad images to this height and width.")] = None,
    settings: Annotated[
        list[str], typer.Option("--set", help="A setting of the network, key=value; may be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    seed: Annotated[int, typer.Option(help="Of weights and inputs.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[str, typer.Option(help="float64, float32 or tf32.")] = "float32",
    data_root: RootOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for tables and report; biascope-runs/MODEL-on-DATA by default.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Score every sample of a data set for a network, before any training."""
    from biascope import data, scanning
    from biascope.cli.printing import print_results
    from biascope.families import source as model_source
    from biascope.results.registry import find
    from biascope.results.report import write_report
    from biascope.runs.run import Run

    if not scale > 0:
        raise ValueError(f"--scale must be a positive number, got {scale}. Pass --scale 0.001 as published.")
    if keep is not None or per_class:
        raise ValueError(PRUNING_WITHDRAWN)
    chosen = model_source.parse_settings(settings)
    whole = data.load(name, root=data_root)
    samples = _in_own_order(whole if side is None else whole.padded(side), split)
    family = model_source.family_of(model, shape=samples.shape, settings=chosen)
    folder = (
        out
        or Path("biascope-runs") / f"{scanning.folder_name(model, chosen, None)}-on-{scanning.path_words(name, '.npz')}"
    )
    run = Run(folder=folder, device=device, precision=precision)
    result = find("sample_score")(family, samples, draws=draws, scale=scale, readout=readout, seed=seed, run=run)
    result.save(folder / f"sample_score-{split}")
    files = _write_tables(result, whole.splits[split][1] is not None, folder, split)
    print_results([result], write_report([result], folder / "report.html"), as_json)
    if not as_json:
        if result.agreement.value < 0.9:
            typer.echo("The order of the samples still depends on which networks were drawn: pass more --draws.")
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
        {split: (torch.from_numpy(x), torch.from_numpy(y))}, name=f"{whole.identity}, {len(x):,} {split} samples"
    )


def _write_tables(result: SampleScores, labelled: bool, folder: Path, split: str) -> list[Path]:
    """Scores as CSV and npz; each file whole or not at all."""
    import io

    import numpy as np

    from biascope.runs.files import write_atomically

    scores, errors = result.scores, result.errors
    labels = result.labels.tolist() if labelled else [""] * len(scores)
    lines = ["index,label,score,standard_error"]
    lines += [f"{i},{labels[i]},{scores[i]:.6g},{errors[i]:.3g}" for i in range(len(scores))]
    arrays = io.BytesIO()
    table: Any = {"index": np.arange(len(scores)), "score": scores, "standard_error": errors}
    np.savez(arrays, **table | ({"label": result.labels} if labelled else {}))
    content = {
        f"{split}-scores.csv": "\n".join([*lines, ""]).encode(),
        f"{split}-scores.npz": arrays.getvalue(),
    }
    for file, data in content.items():
        write_atomically(folder / file, data)
    return [folder / file for file in content]
