"""``--config``: the options of a command in a TOML file, read, and written beside each result so that a run can be repeated."""

from __future__ import annotations

import difflib
import shlex
import tomllib
import typing
import warnings
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import typer

COMMAND = "command"  # the key that names the command
# How a command prints, or that it does not compute: not what it computes.
_NOT_KEPT = ("config", "as_json", "quiet", "dry_run")
CONTEXT: ContextVar[Any] = ContextVar("the context of the command at hand", default=None)
_EXTRA = "biascope.words_of_the_file"


def apply_file(context: typer.Context, value: Path | None) -> Path | None:
    """Take options that are not on the command line from a file: the callback of ``--config``.

    Raises:
        ValueError: If the file cannot be read, is of another command, or has an unknown key or a value of the wrong type.
    """
    if value is None or context.resilient_parsing:
        return value
    path, words = Path(value), command_words(context)
    content = read_toml(path, words)
    own = content.pop(COMMAND, words)
    if own != words:
        raise ValueError(
            f"{path} holds settings of biascope {own}, got it for biascope {words}. Type biascope {own} --config {path}."
        )
    parameters = {_key(each): each for each in context.command.params if each.name != "config" and _key(each)}
    options: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for key, given in content.items():
        parameter = parameters.get(key.replace("_", "-"))
        if parameter is not None:
            options[parameter.name] = _checked(given, parameter, context.command, key, path)
        elif context.allow_extra_args and not isinstance(given, dict):
            extra[key] = given
        else:
            near = difflib.get_close_matches(key.replace("_", "-"), parameters, n=1)
            remedy = f"Did you mean {near[0]}?" if near else f"It takes: {', '.join(parameters)}."
            raise ValueError(f"{path} has the key {key!r}, which biascope {words} does not know. {remedy}")
    context.default_map = {**(context.default_map or {}), **options}
    context.meta[_EXTRA] = extra
    return value


def extra_settings(context: typer.Context) -> dict[str, str]:
    """Settings of the file that are no options of the command, as text: those of a measurement."""
    return {key: _as_word(value) for key, value in context.meta.get(_EXTRA, {}).items()}


def _as_word(value: Any) -> str:
    """A value of a file as a user would type it.

    Example:
        >>> _as_word(True), _as_word([0.5, 3]), _as_word("relu")
        ('true', '0.5,3', 'relu')
    """
    if isinstance(value, list):
        return ",".join(map(_as_word, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def from_word(text: str) -> str | int | float | bool:
    """The value that is typed as this text, of the plainest type.

    Example:
        >>> from_word("8"), from_word("0.5"), from_word("true"), from_word("0,3"), from_word("007")
        (8, 0.5, True, '0,3', '007')
    """
    for kind in (int, float):
        try:
            if str(kind(text)) == text:
                return kind(text)
        except ValueError:
            pass
    return text == "true" if text in ("true", "false") else text


def read_toml(path: Path, words: str) -> dict[str, Any]:
    """The content of a settings file.

    Raises:
        ValueError: If there is no such file, or it is not TOML.
    """
    if path.is_dir():
        raise ValueError(f"--config must be a TOML file, but {path} is a folder. Pass {path / file_name(words)}.")
    if not path.is_file():
        raise ValueError(f"--config must be a TOML file, but {path} does not exist. Check the path.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"--config must be a TOML file, but {path} is not: {error}. Fix that line.") from error


def _key(parameter: Any) -> str:
    """What the file calls a parameter: an option by its long name, an argument by its own."""
    names = [each.removeprefix("--") for each in parameter.opts if each.startswith("--")]
    return names[0] if names else str(parameter.name).replace("_", "-")


def _several(parameter: Any) -> bool:
    return bool(getattr(parameter, "multiple", False)) or parameter.nargs != 1


def _checked(given: Any, parameter: Any, command: Any, key: str, path: Path) -> Any:
    """A value of the file, if it is of the type of its parameter."""
    kinds, name, example = kind_of(hint_of(command, parameter))
    several = _several(parameter)
    if several:
        name, example = f"a list such as [{example}]", f"[{example}]"
    parts = given if several and isinstance(given, list) else [given]
    if isinstance(given, list) != several or any(type(part) not in kinds for part in parts):
        raise ValueError(f"{key} in {path} must be {name}, got {given!r}. Write {key} = {example}.")
    return given


def hint_of(command: Any, parameter: Any) -> Any:
    """The type of a parameter, as the function of its command declares it."""
    return typing.get_type_hints(command.callback, include_extras=True)[parameter.name]


def kind_of(hint: Any) -> tuple[tuple[type, ...], str, str]:
    """The types of TOML that an option of a command takes, in words and with an example."""
    kinds, waiting = set(), [hint]
    while waiting:
        each = waiting.pop()
        if typing.get_origin(each) is typing.Annotated:
            waiting.append(typing.get_args(each)[0])
        elif typing.get_args(each):  # a union, or a list
            waiting += typing.get_args(each)
        else:
            kinds.add(each)
    if bool in kinds:
        return (bool,), "true or false", "true"
    if int in kinds:
        return (int,), "a whole number", "8"
    return ((int, float), "a number", "0.5") if float in kinds else ((str,), "text in quotes", '"…"')


def command_words(context: typer.Context) -> str:
    """The command of a context, such as ``"merge check"``.

    Names of the groups above it come first; that of the program is left out.
    """
    names: list[str] = []
    at: Any = context
    while at is not None and at.parent is not None:
        names.insert(0, str(at.command.name))
        at = at.parent
    return " ".join(names)


def words_of(context: typer.Context) -> list[str]:
    """The words of a command line that does the same: arguments, and the options that differ from their defaults."""
    arguments: list[str] = []
    options: list[str] = []
    for parameter in context.command.params:
        value: Any = context.params.get(str(parameter.name))
        if parameter.name in _NOT_KEPT or value is None:
            continue
        if value == parameter.default and parameter.param_type_name == "option":
            continue
        several: list[Any] = list(value) if _several(parameter) else [value]
        if parameter.param_type_name == "argument":
            arguments += [str(each) for each in several if each not in (None, "")]
        elif isinstance(value, bool):
            options += [parameter.opts[0] if value else parameter.secondary_opts[0]]
        else:
            options += [word for each in several if each is not None for word in (parameter.opts[0], str(each))]
    words = ["biascope", *command_words(context).split()]
    if any(each.startswith("-") for each in arguments):
        return [*words, *options, *context.args, "--", *arguments]
    return [*words, *arguments, *context.args, *options]


def kept_settings(context: typer.Context) -> dict[str, Any]:
    """Everything that decides what a command computes, under the keys of a settings file."""
    settings: dict[str, Any] = {COMMAND: command_words(context)}
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        empty = value is None or (value in ("", [], (), False) and value == parameter.default)
        if parameter.name in _NOT_KEPT or parameter.name not in context.params or empty:
            continue
        settings[_key(parameter)] = _plain(value)
    words_for = getattr(context.command, "settings_of_words", None)
    return settings | (words_for(context.args) if words_for else {})


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, bool | int | float) else str(value)


def file_name(words: str, variant: str = "") -> str:
    """The name of the settings file of a command.

    Example:
        >>> file_name("measure", "dictionary")
        'run-measure-dictionary.toml'
    """
    return f"{'-'.join(['run', *words.split(), *([variant] if variant else [])])}.toml"


def keep_settings(folder: Path, variant: str = "", **changed: Any) -> None:
    """Write the settings of the command at hand into the folder of its results; nothing where Python called it.

    Args:
        folder: Where its results lie.
        variant: What tells results of one command in one folder from one another, such as the name of a measurement.
        changed: Settings that this result has and the command does not.
    """
    from biascope import __version__
    from biascope.runs.files import require_ours, write_atomically
    from biascope.runs.rehearsal import rehearsing

    context = CONTEXT.get()
    if context is None or rehearsing():
        return
    words = command_words(context)
    path = folder / file_name(words, variant)
    repeat = shlex.join(["biascope", *words.split(), "--config", str(path)])
    # A name with a line break in it would end the comment.
    note = f"# biascope {__version__}. To repeat this run: {repeat}\n" if repeat.isprintable() else ""
    require_ours(path)
    try:
        write_atomically(path, (note + as_toml(kept_settings(context) | changed)).encode())
    except UnicodeEncodeError:
        warnings.warn(f"{path} was not written, because a name in the command is not Unicode.", stacklevel=2)


def commands_in(folder: Path) -> list[str]:
    """The commands whose results lie in a folder, by the settings that they left there; the oldest first."""
    commands: dict[str, None] = {}
    for path in sorted(folder.glob("run-*.toml"), key=lambda each: (each.stat().st_mtime, each.name)):
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        words = str(content.get(COMMAND, ""))
        commands[f"measure {content.get('name', '')}" if words == "measure" else words] = None
    return [words for words in commands if words]


def as_toml(content: Mapping[str, Any]) -> str:
    r"""Flat values as TOML: text, numbers, booleans and lists of them.

    Example:
        >>> print(as_toml({"set": ["pooling=average"], "draws": 8, "rate": 1e-05, "note": 'a "b"'}), end="")
        set = ["pooling=average"]
        draws = 8
        rate = 1e-05
        note = "a \"b\""
    """
    return "".join(f"{_toml_key(key)} = {_toml(value)}\n" for key, value in content.items())


def _toml_key(key: str) -> str:
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else _toml(key)


_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)  # TOML writes inf, nan and exponents as Python does
    text = str(value)
    return '"' + "".join(_ESCAPES.get(each) or (_code(each) if _control(each) else each) for each in text) + '"'


def _control(letter: str) -> bool:
    return ord(letter) < 0x20 or ord(letter) == 0x7F


def _code(letter: str) -> str:
    return f"\\u{ord(letter):04x}"
