"""SHOW: `biascope data`, the commands that fetch, list and check data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Fetch, list and check real data sets.", no_args_is_help=True)

RootOption = Annotated[
    Path | None,
    typer.Option("--data-root", help="Folder of data sets; else BIASCOPE_DATA, else ~/.cache/biascope."),
]
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
