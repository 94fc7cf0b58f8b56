"""SHOW: `biascope data`, the commands that fetch, list and check data sets."""

from __future__ import annotations

from typing import Annotated

import typer

from biascope.cli import _completion
from biascope.cli.options import DataRoot, DatasetName, Label, Length, Output, Tokenizer, with_groups
from biascope.cli.printing import print_json

app = typer.Typer(help="Fetch, list and check real data sets.")


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
def check(
    name: DatasetName,
    *,
    label: Label = None,
    tokenizer: Tokenizer = None,
    length: Length = None,
    data_root: DataRoot = None,
    output: Output,
) -> None:
    """Check a data set: the MD5 of every official file, or whether your own can be read."""
    from biascope import data

    root = data.data_root(data_root)
    # A user's own set has no official sums: reading it is the check. Of a published one, load refuses these options.
    if {label, tokenizer, length} != {None} or not data.is_published(name):
        own = data.load(name, root=root, label=label, tokenizer=tokenizer, length=length)
        if output.as_json:
            print_json(name=own.name, identity=own.identity, files=[])
        else:
            typer.echo("\n  ".join(filter(None, [repr(own), own.told, own.identity])))
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
