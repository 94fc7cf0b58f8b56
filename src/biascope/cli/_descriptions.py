"""What networks, measurements and their settings are, from their docstrings: read, not imported, so that the answer comes at once."""

from __future__ import annotations

import ast
import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SOURCE = Path(__file__).parents[1]


@dataclass(frozen=True)
class SettingHelp:
    """One setting of a measurement, in words.

    Attributes:
        kind: Its type, as values are typed: ``FLOAT,…`` for several numbers.
        default: What it is unless given.
        help: What it does.
    """

    kind: str
    default: str
    help: str


def network_line(name: str) -> str:
    """What a network is, in one line.

    Example:
        >>> network_line("lenet")
        'LeNet: two convolutions with pooling, then fully connected layers.'
    """
    return _first_line(ast.get_docstring(_parsed(_SOURCE / "networks" / f"{name}.py")))


def measurement_line(name: str) -> str:
    """What a measurement measures, in one line.

    Example:
        >>> measurement_line("geometry_motion")
        'How the average geometry of a network moves while it is trained.'
    """
    return _first_line(ast.get_docstring(_function(_measure_file(name), name)))


def command_of(name: str) -> str:
    """The command that runs a measurement, where `biascope measure` cannot; else empty.

    Example:
        >>> command_of("merge_check"), command_of("dictionary")
        ('biascope merge check', '')
    """
    for decorator in _function(_measure_file(name), name).decorator_list:
        for keyword in getattr(decorator, "keywords", ()):
            if keyword.arg == "command" and isinstance(keyword.value, ast.Constant):
                return str(keyword.value.value)
    return ""


def data_of(name: str) -> set[str]:
    """What a measurement is made on, by the names of its positional parameters.

    Example:
        >>> sorted(data_of("average_geometry"))
        ['family', 'probe']
    """
    return {each.arg for each in _function(_measure_file(name), name).args.args}


def settings_of(name: str) -> dict[str, SettingHelp]:
    """The settings of a measurement with their types, defaults and help; those of all measurements (seed, run) are left out.

    Example:
        >>> settings_of("geometry_motion")["runs"]
        SettingHelp(kind='INT', default='8', help='Networks to train, each with its own weights, in one stack.')
    """
    path = _measure_file(name)
    tree, function = _parsed(path), _function(path, name)
    helps = _arguments(ast.get_docstring(function) or "")
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    settings: dict[str, SettingHelp] = {}
    for parameter, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if parameter.arg in _SHARED:
            continue
        value = constants.get(default.id, default) if isinstance(default, ast.Name) else default
        try:
            shown = _shown(ast.literal_eval(value)) if value is not None else ""
        except ValueError:  # a default that has to be computed: a recipe, a constant of another file
            return _imported_settings(name)
        kind = ast.unparse(parameter.annotation) if parameter.annotation else ""
        settings[parameter.arg] = SettingHelp(_typed(kind), shown, helps.get(parameter.arg, ""))
    return settings


_SHARED = ("seed", "run")  # options of every command


def _imported_settings(name: str) -> dict[str, SettingHelp]:
    import inspect

    from biascope.results.registry import find

    measurement = find(name)
    parameters = inspect.signature(measurement.function).parameters
    helps = _arguments(inspect.getdoc(measurement.function) or "")
    for setting in measurement.settings.values():
        if setting.group:
            helps = _arguments(inspect.getdoc(type(parameters[setting.group].default)) or "") | helps
    return {
        key: SettingHelp(_typed(setting.annotation), _shown(setting.default), helps.get(key, ""))
        for key, setting in measurement.settings.items()
        if key not in _SHARED
    }


def _typed(annotation: str) -> str:
    """A type as values of it are typed.

    Example:
        >>> _typed("tuple[float, ...] | None"), _typed("tuple[float, float]"), _typed("int | None"), _typed("bool")
        ('FLOAT,…', 'FLOAT,FLOAT', 'INT', 'true|false')
    """
    kind = annotation.partition(" | ")[0]
    if parts := re.fullmatch(r"tuple\[(.*)\]", kind):
        return parts[1].replace(" ", "").replace("...", "…").upper()
    return "true|false" if kind == "bool" else kind.upper()


def _shown(value: Any) -> str:
    """A default as a user would type it.

    Example:
        >>> _shown((0.0, 3.0)), _shown(None), _shown(True)
        ('0.0,3.0', 'none', 'true')
    """
    if isinstance(value, tuple | list):
        return ",".join(map(_shown, value))
    if dataclasses.is_dataclass(value):
        return ""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _arguments(docstring: str) -> dict[str, str]:
    r"""The entries of the sections ``Args`` and ``Attributes``, each as one sentence or more.

    Example:
        >>> _arguments("It counts.\n\nArgs:\n    num: How many\n        there are.\n    by: A step.\n\nReturns:\n    x: No.")
        {'num': 'How many there are.', 'by': 'A step.'}
    """
    found: dict[str, str] = {}
    inside, name = False, ""
    for line in docstring.splitlines():
        if line and not line.startswith(" "):
            inside = line.strip() in ("Args:", "Attributes:")
        elif inside and (entry := re.fullmatch(r" {4}(\w+): (.*)", line)):
            name = entry[1]
            found[name] = entry[2]
        elif inside and name and line.strip():
            found[name] += f" {line.strip()}"
    return {key: text.replace("``", "") for key, text in found.items()}


def _measure_file(name: str) -> Path:
    path = _SOURCE / "measures" / f"{name}.py"
    return path if path.is_file() else _SOURCE / "measures" / name / "__init__.py"


def _function(path: Path, name: str) -> ast.FunctionDef:
    return next(node for node in _parsed(path).body if isinstance(node, ast.FunctionDef) and node.name == name)


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _first_line(docstring: str | None) -> str:
    return (docstring or "").partition("\n")[0]
