"""SHOW: `biascope list`: the names of networks and measurements."""

from __future__ import annotations

import typer

from biascope.cli.options import Output, with_groups
from biascope.cli.printing import print_json


@with_groups
def list(output: Output) -> None:
    """List the available networks and measurements."""
    from biascope import networks
    from biascope.results import registry

    if output.as_json:
        print_json(networks=networks.names(), measurements=registry.names())
        return
    typer.echo("networks (biascope scan NAME, settings with --set key=value):")
    for name in networks.names():
        typer.echo(f"  {name}")
    typer.echo("measurements (biascope measure NAME MODEL; if a measurement has its own command, this names it):")
    for name in registry.names():
        typer.echo(f"  {name}")
