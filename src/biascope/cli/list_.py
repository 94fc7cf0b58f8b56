"""SHOW: `biascope list`: the names there are."""

from __future__ import annotations

import typer

from biascope.cli.options import Output, with_groups
from biascope.cli.printing import print_json


@with_groups
def list(output: Output) -> None:
    """List the networks and measurements there are."""
    from biascope import networks
    from biascope.results import registry

    if output.as_json:
        print_json(networks=networks.names(), measurements=registry.names())
        return
    typer.echo("networks (biascope scan NAME, settings with --set key=value):")
    for name in networks.names():
        typer.echo(f"  {name}")
    typer.echo("measurements (biascope measure NAME MODEL; it names the command of those that have one of their own):")
    for name in registry.names():
        typer.echo(f"  {name}")
