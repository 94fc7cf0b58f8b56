"""Extension works as docs/extending.md says: each example, written to its path in a copy of the package, works with no other edit."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = dict(
    re.findall(
        r"```python\n# (src/biascope/\S+\.py)\n(.*?)```", (ROOT / "docs/extending.md").read_text("utf-8"), re.DOTALL
    )
)
SHEET, CLAIMS = re.search(  # added to the sheet of the paper
    r"```toml\n# (src/biascope/\S+\.toml)\n(.*?)```", (ROOT / "docs/extending.md").read_text("utf-8"), re.DOTALL
).groups()  # type: ignore[union-attr]
# What a user types in the copy, all in one process: Python and torch start once.
COMMANDS = {
    "measure": "measure gradient_norm logistic_regression --draws 8 --json",
    "scan": "scan all_convolutional --draws 4 --input 1x8x8 --set width=4 --json",
    "data list": "data list",
    "data check": "data check semeion",
    "reproduce": "reproduce geometry2025 'theorem A.2' --effort smoke",
    "help": "--help",
    "parameters": "parameters mlp --set hidden=10,10 --json",
}
ANSWERING = """
import contextlib, io, json, sys
from biascope.cli import main
answers = {}
for name, words in json.loads(sys.argv[1]).items():
    sys.argv, out, status = ["biascope", *words], io.StringIO(), 0
    with contextlib.redirect_stdout(out):
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
    answers[name] = (status, out.getvalue())
json.dump(answers, sys.stdout)
"""
# A digit of each kind in the official format of the data set: a square of ink, then the mark of the digit.
DIGITS = "".join(
    " ".join(
        ["1.0000"] * (8 + digit) + ["0.0000"] * (248 - digit) + ["1" if mark == digit else "0" for mark in range(10)]
    )
    + " \n"
    for digit in range(10)
)

Python = Callable[..., str]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Python:
    """Runs Python on a copy of the package that has the examples in it, in the folder of the copy."""
    copy = tmp_path_factory.mktemp("checkout")
    unwanted = shutil.ignore_patterns("__pycache__", "biascope-runs")
    shutil.copytree(ROOT / "src", copy / "src", ignore=unwanted)
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=unwanted)
    shutil.copy(ROOT / "pyproject.toml", copy)
    for path, content in EXAMPLES.items():
        assert not (copy / path).exists(), f"{path} is there already"
        (copy / path).write_text(content, "utf-8")
    (copy / SHEET).write_text((copy / SHEET).read_text("utf-8") + CLAIMS, "utf-8")
    (copy / "data" / "semeion").mkdir(parents=True)
    (copy / "data" / "semeion" / "semeion.data").write_text(DIGITS)
    environment = {"PYTHONPATH": str(copy / "src"), "BIASCOPE_DATA": str(copy / "data"), "OMP_NUM_THREADS": "1"}

    def run(*words: str, status: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=copy,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    return run


def test_there_is_an_example_of_each_kind_in_one_file() -> None:
    folders = [Path(path).relative_to("src/biascope").parts[0] for path in EXAMPLES]
    assert folders == ["measures", "networks", "data", "papers", "families", "cli"]


def test_the_examples_pass_the_linter_and_are_formatted(python: Python) -> None:
    python("-m", "ruff", "check", "--no-cache", *EXAMPLES)
    python("-m", "ruff", "format", "--no-cache", "--check", *EXAMPLES)


def test_the_examples_pass_the_type_checker(python: Python) -> None:
    # The copy has the paths and times of the original, so that what `make lint` has found out holds here too.
    python("-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache"), *EXAMPLES)


def test_a_new_measurement_and_a_new_network_pass_the_tests_of_all(python: Python) -> None:
    names = [Path(path).stem for path in EXAMPLES if "/measures/" in path or "/networks/" in path]
    files = [path for path in EXAMPLES if Path(path).stem in names]
    tests = ("tests/test_contract.py", "tests/networks/test_networks.py")
    out = python("-m", "pytest", "-p", "no:cacheprovider", "-q", "-rN", *tests, *files, "-k", " or ".join(names))
    passed = re.search(r"(\d+) passed", out)
    assert passed is not None
    assert int(passed[1]) >= 18  # 9 of the contract, 7 of networks, 2 doctests


@pytest.fixture(scope="module")
def answers(python: Python) -> dict[str, tuple[int, str]]:
    words = {name: shlex.split(text) for name, text in COMMANDS.items()}
    return {name: tuple(answer) for name, answer in json.loads(python("-c", ANSWERING, json.dumps(words))).items()}


def test_a_new_measurement_has_a_command(answers: dict[str, tuple[int, str]]) -> None:
    (result,) = json.loads(answers["measure"][1])["results"]
    assert result["measurement"] == "gradient_norm"
    assert [number["key"] for number in result["numbers"]] == ["gradient_norm"]


def test_a_new_network_is_scanned(answers: dict[str, tuple[int, str]]) -> None:
    results = json.loads(answers["scan"][1])["results"]
    assert {result["subject"] for result in results} == {"all_convolutional width=4"}


def test_a_new_data_set_is_listed_checked_and_read(python: Python, answers: dict[str, tuple[int, str]]) -> None:
    assert re.search(r"semeion +1,593 handwritten digits", answers["data list"][1])
    assert answers["data check"][0] == 2  # a few digits of ours do not have the official md5
    code = (
        "from biascope.tasks.samples import samples_of; found = samples_of('Semeion'); print(found.name, found.shape)"
    )
    assert python("-c", code).strip() == "semeion, 10 train samples (1, 16, 16)"


def test_a_new_figure_is_reproduced(answers: dict[str, tuple[int, str]]) -> None:
    status, out = answers["reproduce"]
    assert status == 0
    assert "The average geometry of a ReLU MLP at initialisation is a multiple of the identity." in out


def test_a_new_command_is_there(answers: dict[str, tuple[int, str]]) -> None:
    assert re.search(r"parameters +Count the parameters of a network", answers["help"][1])
    found = json.loads(answers["parameters"][1])
    assert found["version"] == 1
    assert found["parameters"] == sum(row["parameters"] for row in found["tensors"]) == 10_371
