"""The pages that are generated from the code: every command with its options, every public name, every measurement.

Sphinx calls :func:`write` before it reads the pages; nothing that it writes is committed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from sphinx.ext.napoleon import Config, GoogleDocstring

import biascope
from biascope.cli import _descriptions, app
from biascope.results import registry

COMMANDS = "command_line.md"
API = "api.rst"
MEASUREMENTS = "measurement_functions.rst"

# What a reader looks for, in this order; a test keeps the list complete.
NAMES = {
    "The main job": ["scan", "Scan", "measure", "load", "selftest", "write_report"],
    "Networks": ["Family", "Network", "family_of", "network"],
    "Inputs, data and tasks": ["Probe", "Basis", "Arrays", "Task", "samples_of", "along_directions"],
    "Results": ["Result", "Estimate", "CovarianceResult", "common_directions"],
    "Training": ["fit", "Recipe", "Trajectory", "Observer", "hook"],
    "Where work runs": ["Run"],
    "Derivatives with respect to inputs": [
        "input_gradient",
        "input_difference",
        "GradientSampler",
        "gradient_covariance",
        "GradientCovariance",
        "LinearOperator",
        "Matrix",
        "Spectrum",
        "eigenpairs",
        "subspace_similarity",
    ],
    "Derivatives with respect to weights": ["tangent_gram", "TangentKernel", "alignment", "linearize"],
}


def write(folder: Path) -> None:
    """Write all of them into a folder; a page that has not changed is left alone, so that Sphinx does not read it again."""
    for name, lines in ((COMMANDS, commands()), (API, names()), (MEASUREMENTS, measurements())):
        text, path = "\n".join(lines) + "\n", folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def commands() -> Iterator[str]:
    """The command line, a section for each command."""
    yield "# Command line\n"
    yield "This page is generated from the program. `biascope COMMAND --help` and `biascope measure NAME --help` print the same text.\n"
    for words, command in _walked(typer.main.get_command(app)):
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
        yield f"## biascope {words}\n"
        usage = " ".join([*(_usage(each) for each in arguments), "[OPTIONS]"])
        yield f"```text\nbiascope {words} {usage}\n```\n"
        yield _plain(command.help or "") + "\n"
        if arguments:
            yield from _table("argument", [(f"`{each.name.upper()}`", each) for each in arguments])
        named = [(", ".join(f"`{name}`" for name in (*each.opts, *each.secondary_opts)), each) for each in options]
        yield from _table("option", [row for row in named if "`--help`" not in row[0]])
        if words == "measure":
            yield from _settings_of_measurements(command)


def _settings_of_measurements(command: Any) -> Iterator[str]:
    """What `biascope measure NAME --help` lists besides the shared options."""
    for name in registry.names():
        if _descriptions.command_of(name):
            continue
        yield f"### biascope measure {name}\n"
        yield _plain(_descriptions.measurement_line(name)) + "\n"
        yield "| setting | what it does | type | default |\n|---|---|---|---|"
        for key, each in command.own_settings(name).items():
            kind, default = each.kind.replace("|", "\\|"), f"`{each.default}`" if each.default else ""
            shown = _plain(each.help).replace("|", "/")
            yield f"| `--{key.replace('_', '-')}` | {shown} | `{kind}` | {default} |"
        yield ""


def _walked(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, each in sorted(group.commands.items()):
        if hasattr(each, "commands"):
            yield from _walked(each, (*words, name))
        else:
            yield " ".join((*words, name)), each


def _usage(argument: Any) -> str:
    name = argument.name.upper() + ("…" if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _table(kind: str, rows: list[tuple[str, Any]]) -> Iterator[str]:
    yield f"| {kind} | what it does | default |\n|---|---|---|"
    for shown, parameter in rows:
        yield f"| {shown} | {_plain(parameter.help or '').replace('|', '/')} | {_default(parameter)} |"
    yield ""


def _default(parameter: Any) -> str:
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    value = parameter.default
    if value is None or value == "" or value == [] or callable(value) or isinstance(value, bool):
        return ""
    return f"`{value}`"


def _plain(text: str) -> str:
    return inspect.cleandoc(text).replace("<", "\\<").replace("*", "\\*").strip()


def names() -> Iterator[str]:
    """The public names of ``biascope``, in groups."""
    yield "Python API\n==========\n"
    yield "Import these names from ``biascope`` itself: ``biascope.scan``, ``biascope.Family``.\n"
    yield "The functions behind ``biascope.measure(name)`` are listed in :doc:`measurement_functions`.\n"
    yield ".. toctree::\n   :hidden:\n\n   measurement_functions\n"
    for title, group in NAMES.items():
        yield f"{title}\n{'-' * len(title)}\n"
        yield ".. autosummary::\n   :toctree: generated\n   :nosignatures:\n"
        yield from (f"   biascope.{name}" for name in group)
        yield ""


def measurements() -> Iterator[str]:
    """The function of every measurement, with its arguments."""
    title = "Measurement functions"
    yield f"{title}\n{'=' * len(title)}\n"
    yield "``biascope.measure(name, …)`` calls one of these functions. :doc:`measurements` says what each one is for.\n"
    for name in registry.names():
        found = registry.find(name)
        function = inspect.unwrap(found.function)
        yield f"{name}\n{'-' * len(name)}\n"
        yield f".. py:function:: {function.__module__}.{name}{_signature(function)}\n"
        text = GoogleDocstring(_bars_escaped(inspect.getdoc(function) or ""), Config())
        yield from (f"   {line}" if line else "" for line in str(text).splitlines())
        yield f"\n   Returns a :class:`{found.result.__name__} <{found.result.__module__}.{found.result.__qualname__}>`.\n"


def _bars_escaped(text: str) -> str:
    """Absolute values, ``|x|`` outside of code, are no substitutions."""
    parts = text.split("``")
    return "``".join(part if index % 2 else part.replace("|", "\\|") for index, part in enumerate(parts))


def _signature(function: Any) -> str:
    shown = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        default = "" if parameter.default is parameter.empty else f"={_short(parameter.default)}"
        shown.append(f"{parameter.name}{default}")
    return f"({', '.join(shown)})"


def _short(value: Any) -> str:
    if hasattr(value, "__dataclass_fields__"):
        return f"{type(value).__name__}(…)"
    return repr(value)


__all__ = ["API", "COMMANDS", "MEASUREMENTS", "NAMES", "biascope", "write"]
