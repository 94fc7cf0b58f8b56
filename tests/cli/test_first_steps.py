"""What a newcomer types: `biascope` alone, `-h`, a mistyped word, `list`, `info`, help on a measurement, the Tab key."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from asking import Asking
from command_tree import COMMANDS
from typer.testing import CliRunner

from biascope import __version__, networks
from biascope.cli import FIRST, _descriptions, app
from biascope.results import registry


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Asking:
    return Asking(monkeypatch, capsys, tmp_path)


def test_the_command_alone_shows_six_commands_with_examples(asking: Asking) -> None:
    told = asking.answered().out
    assert len(FIRST) == 6
    for words, _, example in FIRST:
        assert words in COMMANDS
        assert example.startswith(f"biascope {words} ")
        assert example in told
    assert "biascope --help" in told


def test_python_runs_the_package() -> None:
    words = [sys.executable, "-m", "biascope"]
    done = subprocess.run([*words, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"biascope {__version__}"
    done = subprocess.run([*words, "scan", "--drawz"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Did you mean --draws?" in done.stderr


@pytest.mark.parametrize("words", ["", "data", "merge", "inr", *COMMANDS])
def test_h_is_help(words: str, asking: Asking) -> None:
    short, whole = (asking.answered(*words.split(), each).out for each in ("-h", "--help"))
    assert short == whole
    assert f"Usage: biascope {words}".strip() in short


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("sacn", "biascope has no command 'sacn'. Did you mean biascope scan? Type biascope --help."),
        ("data lst x", "biascope data has no command 'lst'. Did you mean biascope data list? Type biascope data --help."),
        ("advise a.png", "biascope has no command 'advise'. Did you mean biascope inr advise?"),
        ("xyzzy", "biascope has no command 'xyzzy'. Type biascope --help."),
        ("--verison", "biascope has no option --verison. Did you mean --version? Type biascope --help."),
        ("scan --drawz 3", "biascope scan has no option --drawz. Did you mean --draws? Type biascope scan --help."),
        ("scan --xyzzy", "biascope scan has no option --xyzzy. Type biascope scan --help."),
        ("scan --draws", "--draws needs a value. Type biascope scan --help."),
        ("scan --draws x", "--draws must be a whole number, got 'x'. Type biascope scan --help."),
        ("scan --step=x", "--step must be a number, got 'x'. Type biascope scan --help."),
        ("merge check a b --data c --accuracy x", "--accuracy must be a number, got 'x'."),
        ("kernel lenet extra", "biascope kernel takes no further argument, got extra. Type biascope kernel --help."),
        ("edit vit", "biascope edit needs --tasks, but it is missing. Type biascope edit --help."),
        ("measure", "biascope measure needs NAME [MODEL], but it is missing."),
        ("merge check a", "biascope merge check needs MODELS, but it is missing."),
        ("data", "biascope data needs a command: get, list, check. Type biascope data --help."),
        ("measure average_geometry lenet --drawz 8", "average_geometry has no setting '--drawz'. Did you mean --draws? It takes:"),
    ],
)  # fmt: skip
def test_a_mistyped_word_is_told_in_one_sentence_without_a_box(words: str, sentence: str, asking: Asking) -> None:
    told = asking.refused(*words.split(), naming=sentence).err
    assert told.startswith("biascope: ")
    assert not re.search("[│╭╰]", told)


def test_a_list_has_a_line_for_each(asking: Asking) -> None:
    lines = asking.answered("list").out.splitlines()
    document = json.loads(asking.answered("list", "--json").out)
    for kind, known in (("network", networks.names()), ("measurement", registry.names())):
        assert document[f"{kind}s"] == list(known)
        described = {each["name"]: each["description"] for each in document[f"{kind}_descriptions"]}
        assert list(described) == list(known)
        for name, text in described.items():
            assert re.fullmatch(r"[A-Z].{20,}\.", text), name
            assert any(line.split()[:1] == [name] and text in line for line in lines), name
    commands = {each["name"]: each["command"] for each in document["measurement_descriptions"]}
    assert commands["merge_check"] == "biascope merge check"
    assert commands["dictionary"] == "biascope measure dictionary"


def test_descriptions_that_are_read_are_those_of_the_code() -> None:
    for name in registry.names():
        found = registry.find(name)
        assert _descriptions.measurement_line(name) == (inspect.getdoc(found.function) or "").splitlines()[0]
        assert _descriptions.command_of(name) == found.command


@pytest.mark.parametrize("name", [name for name in registry.names() if not _descriptions.command_of(name)])
def test_help_on_a_measurement_lists_its_settings(name: str, asking: Asking) -> None:
    found = registry.find(name)
    read = _descriptions.settings_of(name)
    assert list(read) == [key for key in found.settings if key != "seed"]
    assert read == _descriptions._imported_settings(name)
    told = asking.answered("measure", name, "--help").out
    assert f"Settings of {name}" in told
    assert asking.answered("measure", "-h", name.replace("_", "-")).out == told
    own = COMMANDS["measure"].own_settings(name)
    assert set(read) - set(own) <= {"batchnorm", "samples"}  # what the user types is the shared option
    for key, setting in own.items():
        assert setting.help, f"{name} {key}"
        line = next(line for line in told.splitlines() if re.search(rf" --{key.replace('_', '-')} ", line))
        assert setting.kind in line
        assert setting.default == "" or f"[default: {setting.default}]" in told
    for option in ("--seed", "--json", "--config"):
        assert option in told
    assert ("--inputs" in told) == ("probe" in _descriptions.data_of(name) or "inputs" in read)


def test_help_on_a_measurement_with_its_own_command_names_that(asking: Asking) -> None:
    asking.refused(
        "measure",
        "merge_check",
        "--help",
        naming="biascope measure cannot run merge_check. Type biascope merge check --help.",
    )
    assert "--estimator" not in asking.answered("measure", "--help").out


def test_help_needs_no_heavy_package() -> None:
    code = (
        "import sys; sys.argv = ['biascope', *{words!r}]\nfrom biascope.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert not {{'torch', 'scipy', 'matplotlib'}} & set(sys.modules), sys.modules.keys()"
    )
    for words in ([], ["-h"], ["measure", "average_geometry", "-h"], ["list"], ["sacn"], ["--show-completion"]):
        done = subprocess.run([sys.executable, "-c", code.format(words=words)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_info_names_versions_devices_data_and_extras(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    (asking.folder / "mine.npz").touch()
    told = asking.answered("info", "--data-root", ".").out
    for words in (
        f"biascope     {__version__}",
        "torch ",
        "numpy ",
        "cpu ",
        "mine.npz",
        "not on disk: cifar10",
        "ray ",
    ):
        assert words in told
    document = json.loads(asking.answered("info", "--data-root", ".", "--json").out)
    assert document["versions"]["biascope"] == __version__
    assert document["devices"][0]["cores"] == os.cpu_count()
    assert document["data"]["sets"] == [{"name": "mine", "path": "mine.npz"}]
    assert {"name", "missing", "install"} == set(document["extras"][0])
    monkeypatch.setattr("biascope.cli.info._version", lambda name: None if name == "ray" else "1")
    assert 'missing: ray. Type pip install "biascope[ray]".' in asking.answered("info", "--data-root", ".").out
    asking.refused("info", "--data-root", "mine.npz", naming="must be a folder")


def completed(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """What the shell would offer for the last word."""
    monkeypatch.setenv("_BIASCOPE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(["biascope", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    return CliRunner().invoke(app, [], prog_name="biascope").stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sc"], ["scan"]),
        (["merge", ""], ["check", "apply", "diff", "extract", "doctor"]),
        (["scan", "le"], ["lenet"]),
        (["compare", "lenet", "vg"], ["vgg11"]),
        (["measure", "average"], ["average_geometry"]),
        (["measure", "average_geometry", "le"], ["lenet"]),
        (["measure", "average_geometry", "--sta"], ["--stable"]),
        (["measure", "merge"], []),
        (["reproduce", "na"], ["nads2020"]),
        (["kernel", "lenet", "--data", "mn"], ["mnist"]),
        (["kernel", "lenet", "--data", "mi"], ["mine"]),
        (["data", "get", "fa"], ["fashion-mnist"]),
        (["scan", "--dr"], ["--draws", "--dry-run"]),
        (["scan", "--precision", "b"], ["bfloat16"]),
    ],
)
def test_the_tab_key_completes(
    words: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BIASCOPE_DATA", str(tmp_path))
    (tmp_path / "mine.npz").touch()
    assert completed(monkeypatch, *words) == expected


def test_completion_of_a_folder_that_cannot_be_read_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BIASCOPE_DATA", str(tmp_path / "file"))
    assert completed(monkeypatch, "kernel", "lenet", "--data", "mn") == ["mnist"]


def test_completion_is_installed_for_the_shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("typer._completion_shared._get_shell_name", lambda: "bash", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    done = CliRunner().invoke(app, ["--install-completion"], prog_name="biascope")
    assert done.exit_code == 0, done.output
    assert "completion installed" in done.stdout
    assert "_biascope_completion" in next(tmp_path.rglob("biascope.sh")).read_text()


@pytest.mark.parametrize("closed", ["2>&-", "2>&- >&- <&-"])
def test_closed_streams_change_no_answer(tmp_path: Path, closed: str) -> None:
    program = f"{shlex.quote(sys.executable)} -m biascope"
    for words, status in (("list", 0), ("scan nosuch", 2)):
        assert (
            subprocess.run(["sh", "-c", f"{program} {words} {closed}"], cwd=tmp_path, timeout=60).returncode == status
        )


def test_streams_that_were_closed_are_opened(tmp_path: Path) -> None:
    """What opens the next file would get the number of a closed stream, and libraries would write their messages into that file."""
    code = "from biascope import cli; cli._open_streams(); import os, sys; sys.stderr.write('x'); print(os.open('file', 64) > 2)"
    words = ["sh", "-c", f'{shlex.quote(sys.executable)} -c "{code}" 2>&- <&-']
    assert subprocess.run(words, cwd=tmp_path, stdout=subprocess.PIPE, timeout=60).stdout == b"True\n"
