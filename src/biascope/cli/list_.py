"""SHOW: `biascope list`: networks and measurements, with a line on each."""

from __future__ import annotations

import shutil
import sys
import textwrap

import typer

from biascope.cli._descriptions import command_of, measurement_line, network_line
from biascope.cli.options import Output, with_groups
from biascope.cli.printing import print_json


@with_groups
def list(output: Output) -> None:
    """List the available networks and measurements, with a line on each."""
    from biascope import networks
    from biascope.results import registry

    if output.as_json:
        print_json(
            networks=networks.names(),
            measurements=registry.names(),
            network_descriptions=[{"name": name, "description": network_line(name)} for name in networks.names()],
            measurement_descriptions=[
                {
                    "name": name,
                    "description": measurement_line(name),
                    "command": command_of(name) or f"biascope measure {name}",
                }
                for name in registry.names()
            ],
        )
        return
    typer.echo("networks (biascope scan NAME, settings with --set key=value):")
    for name in networks.names():
        typer.echo(_line(name, network_line(name)))
    typer.echo("\nmeasurements (biascope measure NAME MODEL; biascope measure NAME --help lists the settings):")
    for name in registry.names():
        own = command_of(name)
        typer.echo(_line(name, f"{measurement_line(name)}{f' Use {own}.' if own else ''}"))


def _line(name: str, text: str) -> str:
    if not sys.stdout.isatty():  # one line each, for grep
        return f"  {name:27} {text}"
    width = max(shutil.get_terminal_size().columns, 60)
    return textwrap.fill(text, width, initial_indent=f"  {name:27} ", subsequent_indent=" " * 30)
