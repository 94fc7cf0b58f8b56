"""`--config`: a run leaves the options that repeat it; the command line overrides them, and what is wrong in a file is told."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from asking import Asking
from command_cases import CASES, FILES, NET, ON_DATA, printed
from command_tree import COMMANDS
from typer.testing import CliRunner

from biascope.cli import _settings_file, app
from biascope.cli._command import Command
from biascope.cli._settings_file import as_toml, file_name, from_word, keep_settings

# Commands that leave results in a folder, and where: by default or as their words say.
KEPT = {
    "scan": "run-scan.toml",
    "explain": "run-explain.toml",
    "measure": "run-measure-average_geometry.toml",
    "kernel": "run-kernel.toml",
    "patterns": "run-patterns.toml",
    "edit": "run-edit.toml",
    "compare": "run-compare.toml",
    "inr fit": "run-inr-fit.toml",
    "inr advise": "run-inr-advise.toml",
    "merge check": "run-merge-check.toml",
    "merge apply": "run-merge-apply.toml",
    "merge diff": "run-merge-diff.toml",
    "merge extract": "run-merge-extract.toml",
    "reproduce": "run-reproduce.toml",
}
WORDS = {words: list(CASES[words][0]) for words in KEPT}
WORDS["reproduce"] = ["patterns2021", "theorem 5.1", "--effort", "smoke", "--device", "cpu"]


def without_circumstances(document: Any) -> Any:
    """A document without times, the fastest method of the day, and the command, which may be spelled in other ways."""
    if isinstance(document, list):
        return [without_circumstances(each) for each in document]
    if not isinstance(document, dict):
        return document
    return {
        name: without_circumstances(each)
        for name, each in document.items()
        if name not in ("seconds", "date", "command", "timings")
    }


@pytest.mark.parametrize("words", KEPT)
def test_a_run_leaves_a_file_that_repeats_it(words: str, folder: Path) -> None:
    first = printed(*words.split(), *WORDS[words])
    (path,) = Path("biascope-runs").rglob("run-*.toml")
    assert path.name == KEPT[words]
    content = tomllib.loads(path.read_text())
    assert content["command"] == words
    again = printed(*words.split(), "--config", str(path))
    assert without_circumstances(again) == without_circumstances(first)
    assert tomllib.loads(path.read_text()) == content, "the repeated run leaves the same file"


def test_every_command_that_computes_takes_a_file_and_the_others_do_not() -> None:
    have = {words for words, command in COMMANDS.items() if "--config" in {o for p in command.params for o in p.opts}}
    assert have == set(KEPT) | {"selftest", "report", "merge doctor"}


@pytest.mark.parametrize("words", sorted({*KEPT, "selftest", "report"}))
def test_keys_of_a_file_differ(words: str) -> None:
    keys = [_settings_file._key(each) for each in COMMANDS[words].params]
    assert len(set(keys)) == len(keys)
    assert _settings_file.COMMAND not in keys


def test_the_command_line_overrides_the_file(folder: Path) -> None:
    printed("scan", *NET, "--draws", "8", "--seed", "3", "--out", "here")
    assert tomllib.loads(Path("here/run-scan.toml").read_text())["draws"] == 8
    document = printed("scan", "--config", "here/run-scan.toml", "--draws", "12")
    settings = document["results"][0]["provenance"]["settings"]
    assert (settings["draws"], settings["seed"]) == (12, 3)
    assert document["report"] == "here/report.html"
    assert tomllib.loads(Path("here/run-scan.toml").read_text())["draws"] == 12


def test_a_file_of_a_measurement_has_its_network_and_its_own_settings(folder: Path) -> None:
    words = ["measure", "average-geometry", *NET, "--draws=8", "--readout", "sum", "--stable", "none"]
    printed(*words, "--out", "here")
    content = tomllib.loads(Path("here/run-measure-average_geometry.toml").read_text())
    kept = {key: content[key] for key in ("name", "model", "draws", "readout", "stable")}
    assert kept == {
        "name": "average-geometry",
        "model": "net.py:build",
        "draws": 8,
        "readout": "sum",
        "stable": "none",
    }
    more = ["net.py:other", "--readout", "mean"]
    document = printed("measure", "--config", "here/run-measure-average_geometry.toml", *more, "--draws", "9")
    provenance = document["results"][0]["provenance"]
    assert (provenance["settings"]["draws"], provenance["settings"]["readout"]) == (9, "mean")
    assert "net.py:other" in provenance["command"]
    assert "--readout sum" not in provenance["command"]


def test_results_record_the_command_that_repeats_them(folder: Path) -> None:
    first = printed("scan", *NET, "--draws", "8", "--out", "a folder")
    (command,) = {result["provenance"]["command"] for result in first["results"]}
    assert command == "biascope scan net.py:build --input 1x8x8 --draws 8 --device cpu --out 'a folder'"
    again = printed(*shlex.split(command)[1:])
    assert without_circumstances(again) == without_circumstances(first)
    saved = json.loads(Path("a folder/mean_gradient/result.json").read_text())
    assert saved["values"]["provenance"]["command"] == command


def test_the_command_is_no_part_of_an_identity(folder: Path) -> None:
    """Another spelling of one run finds what was computed before."""
    printed("scan", *NET, "--draws", "8", "--out", "here")
    before = {path: path.stat().st_mtime_ns for path in Path("here/trials").rglob("*.safetensors")}
    assert before
    printed("scan", "--config", "here/run-scan.toml", "--quiet", "--yes")
    after = {path: path.stat().st_mtime_ns for path in Path("here/trials").rglob("*.safetensors")}
    assert after == before


def test_python_records_no_command() -> None:
    from biascope.results.result import recorded

    assert "command" not in recorded("m", "p", settings={}, seconds=1.0)


def test_a_dry_run_leaves_no_file(folder: Path) -> None:
    CliRunner().invoke(app, ["kernel", "net.py:build", *ON_DATA, "--dry-run"])
    assert not list(folder.rglob("run-*.toml"))


def test_two_commands_in_one_folder_leave_two_files_and_the_report_names_both(folder: Path) -> None:
    printed("scan", *NET, "--draws", "8", "--out", "here")
    done = CliRunner().invoke(app, ["kernel", "net.py:build", *ON_DATA, "--out", "here"])
    assert {path.name for path in Path("here").glob("run-*.toml")} == {"run-scan.toml", "run-kernel.toml"}
    assert "Report: here/report.html (results of scan and kernel)" in done.stdout
    alone = CliRunner().invoke(app, ["scan", *NET, "--draws", "8", "--out", "other"])
    assert alone.stdout.rstrip().endswith("Report: other/report.html")


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Asking:
    return Asking(monkeypatch, capsys, tmp_path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('command = "kernel"', "run.toml holds settings of biascope kernel, got it for biascope scan. Type biascope kernel --config"),
        ("drawz = 8", "run.toml has the key 'drawz', which biascope scan does not know. Did you mean draws?"),
        ("colour = 8", "does not know. It takes: model, set, weights, batchnorm,"),
        ('config = "other.toml"', "has the key 'config'"),
        ('draws = "many"', "draws in run.toml must be a whole number, got 'many'. Write draws = 8."),
        ("draws = 2.5", "draws in run.toml must be a whole number, got 2.5."),
        ("draws = true", "draws in run.toml must be a whole number, got True."),
        ('step = "big"', "step in run.toml must be a number, got 'big'."),
        ("samples = 2000", "samples in run.toml must be text in quotes, got 2000."),
        ("yes = 1", "yes in run.toml must be true or false, got 1."),
        ('set = "pooling=average"', "set in run.toml must be a list such as"),
        ("set = [1]", "set in run.toml must be a list such as"),
        ("draws = [8]", "draws in run.toml must be a whole number, got [8]."),
        ("[draws]\nnum = 8", "draws in run.toml must be a whole number, got {'num': 8}."),
        ("draws = ", "--config must be a TOML file, but run.toml is not: "),
        ("draws = 8\ndraws = 9", "--config must be a TOML file, but run.toml is not: "),
        ("draws = 1", "draws must be at least 2 to estimate a spread, got 1"),
        ("command = 3", "run.toml holds settings of biascope 3"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_told_in_a_sentence(content: str, sentence: str, asking: Asking) -> None:
    (asking.folder / "run.toml").write_text(content)
    asking.refused("scan", "--config", "run.toml", naming=sentence)


def test_a_file_that_is_none_is_told(asking: Asking) -> None:
    asking.refused("scan", "--config", "none.toml", naming="none.toml does not exist. Check the path.")
    asking.refused("scan", "--config", ".", naming="is a folder. Pass run-scan.toml.")
    (asking.folder / "bytes.toml").write_bytes(b"draws = \xff")
    asking.refused("scan", "--config", "bytes.toml", naming="bytes.toml is not: ")
    (asking.folder / "own.toml").write_text('name = "average_geometry"\nnosuch = 3')
    asking.refused("measure", "--config", "own.toml", naming="average_geometry has no setting '--nosuch'")


def test_a_key_may_have_either_line(folder: Path) -> None:
    Path("run.toml").write_text('data_root = "."\ndata = "s.npz"\nsamples = "30,10"\nmodel = "net.py:build"')
    assert printed("kernel", "--config", "run.toml", "--device", "cpu")["results"]
    Path("run.toml").write_text('base = "base.safetensors"\nmodels = ["a.safetensors", "b.safetensors"]')
    assert printed("merge", "diff", "--config", "run.toml")["results"]
    assert printed("merge", "diff", *FILES)["results"]


ODD = [
    "",
    " ",
    '"',
    "\\",
    "\\n",
    "a\nb\r\n\tc",
    "\x00\x1f\x7f",
    "ü 漢 🙂",
    "'''",
    '"""',
    "#",
    "= [1]",
    "\u2028",
    "C:\\x",
]


@pytest.mark.parametrize("text", ODD)
def test_text_survives(text: str) -> None:
    content = {"a": text, "b-c": [text, "x"], text: 1} if text else {"a": text}
    assert tomllib.loads(as_toml(content)) == content


@pytest.mark.parametrize("value", [0, -3, 10**30, 0.1, -2.5, 1e-300, 1e22, 1e16, float("inf"), True, False, [], [1, 2]])
def test_a_value_survives_with_its_type(value: Any) -> None:
    found = tomllib.loads(as_toml({"value": value}))["value"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "text", ["8", "0.5", "1e-4", "0.0001", "true", "True", "none", "0,3", "-1", "+1", "1_000", "inf"]
)
def test_a_word_survives(text: str) -> None:
    assert _settings_file._as_word(tomllib.loads(as_toml({"a": from_word(text)}))["a"]) == text


def test_a_file_name_says_its_command() -> None:
    assert file_name("merge check") == "run-merge-check.toml"


def test_arguments_that_begin_with_a_dash_are_kept_apart() -> None:
    small = typer.Typer()
    told = []

    @small.command(cls=typer.core.TyperCommand)
    def one(context: typer.Context, name: str, size: int = 3) -> None:
        told.append(_settings_file.words_of(context))

    CliRunner().invoke(small, ["--size", "4", "--", "-odd"])
    assert told == [["biascope", "--size", "4", "--", "-odd"]]


def test_a_name_that_is_not_unicode_costs_only_the_file(tmp_path: Path) -> None:
    small = typer.Typer()

    @small.command(cls=Command)
    def one(name: str) -> None:
        keep_settings(tmp_path)
        keep_settings(tmp_path, "odd", name="\udcff")

    with pytest.warns(UserWarning, match="not written, because a name in the command is not Unicode"):
        assert CliRunner().invoke(small, ["plain"]).exit_code == 0
    assert [tomllib.loads(path.read_text())["name"] for path in tmp_path.iterdir()] == ["plain"]
