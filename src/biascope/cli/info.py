"""SHOW: `biascope info`: versions, devices, data sets and extras, as a bug report needs them."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from typing import Any

import typer

from biascope.cli.options import DataRoot, Output, with_groups
from biascope.cli.printing import print_json

PACKAGES = ("torch", "numpy", "scipy", "safetensors", "typer", "rich", "jinja2", "matplotlib", "pillow")


@with_groups
def info(data_root: DataRoot = None, *, output: Output) -> None:
    """Print versions, devices, data sets on disk and missing extras."""
    from biascope import __version__, data

    versions = {"biascope": __version__, "python": platform.python_version(), "system": platform.platform()}
    versions |= {name: _version(name) or "missing" for name in PACKAGES}
    root = data.data_root(data_root)
    on_disk = {name: place[1] for name in data.names() if (place := data.published_set(name).located(root))}
    on_disk |= {name: root / f"{name}.npz" for name in data.own_sets(root)}
    devices, extras = _devices(), _extras()
    if output.as_json:
        sets = [{"name": name, "path": path} for name, path in on_disk.items()]
        rows = [{"name": name, "missing": missing, "install": _install(name)} for name, missing in extras.items()]
        print_json(versions=versions, devices=devices, data={"root": root, "sets": sets}, extras=rows)
        return
    typer.echo("versions:")
    for name, version in versions.items():
        typer.echo(f"  {name:12} {version}")
    typer.echo("devices:")
    for device in devices:
        typer.echo(f"  {device['name']:12} {_device_in_words(device)}")
    typer.echo(f"data sets in {root}:")
    for name, path in on_disk.items():
        typer.echo(f"  {name:14} {path}")
    if absent := [name for name in data.names() if name not in on_disk]:
        typer.echo(f"  not on disk: {', '.join(absent)}. Type biascope data get {absent[0]}.")
    typer.echo("extras:")
    for name, missing in extras.items():
        told = f"missing: {', '.join(missing)}. Type {_install(name)}." if missing else "installed"
        typer.echo(f"  {name:12} {told}")
    if not extras:
        typer.echo("  unknown, because biascope is not installed as a package. Type pip install -e .")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> list[dict[str, Any]]:
    """The CPU and every GPU that torch sees, with their memory in bytes."""
    import torch

    devices: list[dict[str, Any]] = [
        {
            "name": "cpu",
            "model": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "memory": _memory(),
        }
    ]
    for index in range(torch.cuda.device_count()):
        known = torch.cuda.get_device_properties(index)
        devices.append({"name": f"cuda:{index}", "model": known.name, "memory": known.total_memory})
    return devices


def _memory() -> int | None:
    """Bytes of memory of this machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _device_in_words(device: dict[str, Any]) -> str:
    memory = f", {device['memory'] / 2**30:,.0f} GiB of memory" if device["memory"] else ""
    counts = f", {device['cores']} cores, threads in use: {device['threads']}" if "cores" in device else ""
    return f"{device['model']}{counts}{memory}"


def _extras() -> dict[str, list[str]]:
    """Every extra with its packages that are missing; none where the package's data are not there."""
    try:
        needed = metadata.requires("biascope") or []
    except metadata.PackageNotFoundError:
        return {}
    lacking: dict[str, list[str]] = {}
    for words in needed:
        extra, package = re.search(r"extra == ['\"]([\w-]+)['\"]", words), re.match(r"[\w.-]+", words)
        if extra is not None and package is not None:
            missing = lacking.setdefault(extra[1], [])
            missing += [package[0]] if _version(package[0]) is None else []
    return lacking


def _install(extra: str) -> str:
    return f'pip install "biascope[{extra}]"'
