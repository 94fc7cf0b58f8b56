"""Shared options: one name for one thing, one help text for one name, in every command."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import typing
from typing import Any

import pytest
import typer
from command_tree import COMMANDS
from typer.testing import CliRunner

from biascope import cli
from biascope.cli import app, options
from biascope.cli.options import Output, SeededWork, with_groups

# What a command calls by a shared name and means otherwise: the file that it is there to write.
OWN_MEANING = {
    ("report", "--out"),
    ("merge apply", "--out"),
    ("merge apply", "--seed"),
    ("merge apply", "--set"),
    ("merge extract", "--out"),
}
# Names that options of one concept had before there was one name for it.
FORMER = {
    "--data-sizes",
    "--sizes",
    "--report",
    "--std",
    "--probe-scale",
    "--n",
    "--num-samples",
    "--output",
    "--silent",
}


def named(command: Any) -> dict[str, str]:
    """The options of a command and what its help says of them."""
    return {
        option: " ".join((each.help or "").split())
        for each in command.params
        if each.param_type_name == "option" and not each.hidden
        for option in each.opts
    }


def shared() -> dict[str, str]:
    """Every option of options.py and its help."""
    found: dict[str, str] = {}
    for kind in vars(options).values():
        for info in (*getattr(kind, "__metadata__", ()), *_of_group(kind)):
            if isinstance(info, typer.models.OptionInfo):
                option = str(info.default).split("/")[0]
                assert found.setdefault(option, str(info.help)) == info.help, f"{option} has two texts"
    return found


def _of_group(kind: Any) -> list[Any]:
    if not (isinstance(kind, type) and issubclass(kind, options.OptionGroup) and kind is not options.OptionGroup):
        return []
    hints = typing.get_type_hints(kind, include_extras=True).values()
    return [info for hint in hints for info in getattr(hint, "__metadata__", ())]


SHARED = shared()


def test_a_file_is_a_command() -> None:
    files = {found.name.removesuffix("_") for found in pkgutil.iter_modules(cli.__path__) if found.name[0] != "_"}
    assert {words.split()[0] for words in COMMANDS} == files - {"options", "printing"}
    group = typer.main.get_command(app)
    listed = group.list_commands(typer.Context(group))
    assert listed == sorted(listed)


def test_the_command_line_begins_without_heavy_packages() -> None:
    code = "import sys, biascope.cli; print({'torch', 'numpy', 'scipy', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_there_are_shared_options() -> None:
    assert {"--samples", "--out", "--data", "--seed", "--device", "--json", "--quiet", "--set"} <= set(SHARED)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_shared_option_says_the_same_everywhere(words: str) -> None:
    for option, help in named(COMMANDS[words]).items():
        if option in SHARED and (words, option) not in OWN_MEANING:
            assert help == SHARED[option], f"{words} {option}"


@pytest.mark.parametrize("words", COMMANDS)
def test_no_command_has_a_name_of_its_own_for_something_shared(words: str) -> None:
    own = {option: help for option, help in named(COMMANDS[words]).items() if option not in SHARED}
    assert not FORMER & set(own)
    assert not set(own.values()) & (set(SHARED.values()) - {SHARED["--out"]}), "another name for a shared option"
    assert SHARED["--out"] not in own.values() or words in ("merge apply", "merge extract")  # where --out is the model


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_prints_json_and_can_be_quiet(words: str) -> None:
    assert {"--json", "--quiet"} <= set(named(COMMANDS[words]))


@pytest.mark.parametrize("words", COMMANDS)
def test_help_texts_are_whole_sentences(words: str) -> None:
    assert COMMANDS[words].help
    for option, help in named(COMMANDS[words]).items():
        assert help, f"{words} {option}"
        assert re.fullmatch(r"[A-Z].*\.", help), f"{words} {option}: {help}"


def test_no_command_takes_many_parameters() -> None:
    """What belongs together is a group."""
    for words in COMMANDS:
        file, *rest = words.split()
        module = importlib.import_module(f"biascope.cli.{file if file != 'list' else 'list_'}")
        function = getattr(module, "list_" if rest == ["list"] else rest[0] if rest else file)
        assert len(inspect.signature(function.__wrapped__).parameters) <= 18, words


def test_a_group_becomes_options_with_the_defaults_of_the_command() -> None:
    given = []

    def command(name: str, *, work: SeededWork = SeededWork(device="cpu", seed=7), output: Output) -> None:  # noqa: B008
        given.append((name, work, output))

    with pytest.raises(ValueError, match="duplicate parameter name"):  # two groups with the same option
        with_groups(command)

    def alone(name: str, *, work: SeededWork = SeededWork(device="cpu", seed=7)) -> None:  # noqa: B008
        given.append((name, work))

    small = typer.Typer()
    small.command()(with_groups(alone))
    assert CliRunner().invoke(small, ["x", "--precision", "float64", "--quiet"]).exit_code == 0
    assert given == [("x", SeededWork(device="cpu", seed=7, precision="float64", quiet=True))]


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["kernel", "--data-sizes", "10"], "--data"),
        (["merge", "diff", "a", "b", "--report", "x"], "--report"),
        (["edit", "vit", "--tasks", "a", "--sizes", "1,1,1"], "--seeds"),
        (["merge", "check", "a", "b", "--data", "c", "--points", "3"], "--input"),
    ],
)
def test_a_former_name_is_told_in_a_sentence(words: list[str], near: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    told = " ".join(re.sub("[│╭╮╰╯─]", " ", done.output).split())
    assert "No such option" in told
    assert near in told
    assert "Traceback" not in told


def test_a_former_name_of_measure_is_told_with_the_settings_there_are() -> None:
    done = CliRunner().invoke(app, ["measure", "tangent_kernel", "lenet", "--data-sizes", "10"])
    assert isinstance(done.exception, ValueError)
    assert str(done.exception).startswith("tangent_kernel has no setting '--data-sizes'. It takes: --split, ")
