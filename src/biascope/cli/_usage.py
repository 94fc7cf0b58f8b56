"""Sentences for what is wrong on the command line itself: a command, option or value that does not exist or is missing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

from biascope.cli._command import WORDS
from biascope.cli._settings_file import hint_of, kind_of


def usage_sentence(error: Any) -> str:
    """What is wrong, what is nearest, and what to type.

    Args:
        error: As Typer raises it.
    """
    context = error.ctx
    path = context.command_path if context is not None else "biascope"
    told = error.format_message().strip()
    if context is not None:
        told = _own_words(error, context, path) or told
    told = told if told[-1:] in ".?!" else f"{told}."
    return f"{told} Type {path} --help."


def _own_words(error: Any, context: Any, path: str) -> str:
    """The same in our words; empty for what Typer says well enough."""
    told, option = error.format_message(), getattr(error, "option_name", None)
    parameter = getattr(error, "param", None)
    kind = type(error).__name__
    if told.rstrip(".") == "Missing command":
        return f"{path} needs a command: {', '.join(context.command.list_commands(context))}."
    if unknown := re.match(r"No such command ['\"](.*?)['\"]\.", told):
        return f"{path} has no command {unknown[1]!r}.{_did_you_mean(unknown[1], _commands(context), context)}"
    if kind == "NoSuchOption":
        known = [each for parameter in context.command.get_params(context) for each in _spellings(parameter)]
        return f"{path} has no option {option}.{_did_you_mean(str(option), {each: each for each in known})}"
    if kind == "MissingParameter" and parameter is not None:
        name = parameter.opts[0] if parameter.param_type_name == "option" else _argument(parameter)
        return f"{path} needs {name}, but it is missing."
    if kind == "BadParameter" and parameter is not None:
        return _wrong_value(context, parameter)
    if kind == "BadOptionUsage" and option and "requires an argument" in told:
        return f"{option} needs a value."
    if extra := re.match(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", told):
        return f"{path} takes no further argument, got {extra[1]}."
    return ""


def _argument(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name).upper()


def _wrong_value(context: Any, parameter: Any) -> str:
    """A value of the wrong type, with what came."""
    name = parameter.opts[0] if parameter.param_type_name == "option" else _argument(parameter)
    _, wanted, _ = kind_of(hint_of(context.command, parameter))
    came = _given(context.meta.get(WORDS, []), parameter)
    return f"{name} must be {wanted}{f', got {came!r}' if came else ''}."


def _given(words: list[str], parameter: Any) -> str:
    """The first value that an option has on the command line."""
    for place, word in enumerate(words):
        name, sign, attached = word.partition("=")
        if name in parameter.opts:
            return attached if sign else words[place + 1] if place + 1 < len(words) else ""
    return ""


def _spellings(parameter: Any) -> list[str]:
    if parameter.param_type_name != "option" or getattr(parameter, "hidden", False):
        return []
    return [*parameter.opts, *parameter.secondary_opts]


def _commands(context: Any) -> dict[str, str]:
    """Every command by the words that it may be looked for with: its own name, also that of a command within a group."""
    root = context.find_root().command
    within = {name.split()[-1]: name for name in _walked(root)}
    return within | {name: name for name in context.command.list_commands(context)}


def _walked(group: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
    for name, each in group.commands.items():
        if hasattr(each, "commands"):
            yield from _walked(each, (*words, name))
        else:
            yield " ".join((*words, name))


def _did_you_mean(wanted: str, known: dict[str, str], context: Any = None) -> str:
    near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.6)
    if not near:
        return ""
    name = known[near[0]]
    if context is None:
        return f" Did you mean {name}?"
    here = name in context.command.list_commands(context)
    return f" Did you mean {context.command_path if here else context.find_root().command_path} {name}?"
