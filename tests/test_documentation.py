"""What people read: README commands run, sentences are short, every public name is in the reference."""

import importlib.util
import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import biascope
from biascope.cli import app
from biascope.results import registry

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Measurements that are described on a page with another name.
PAGES = {"advise": "inr_advise", "channel_patterns": "patterns"}
SECTIONS = ("What it says", "What it does not say", "Formula", "How it is estimated", "Cost")
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.M | re.S)
COMMANDS = [
    line.partition("  #")[0].strip()
    for language, block in BLOCKS
    if language == "bash"
    for line in block.splitlines()
    if line.startswith("biascope ")
]
MODEL = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 3))
"""
# Smaller than a user would take, so that a command takes seconds.
SMALL = {
    "scan": ["--draws", "8"],
    "compare": ["--draws", "8"],
    "explain": ["--draws", "8", "--inputs", "4"],
    "kernel": ["--samples", "60"],
    "merge check": ["--grid", "0"],
    "inr advise": ["--candidates", "siren=10,relu", "--points", "64", "--draws", "1", "--width", "16"],
}


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with every file that the README names."""
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "path/to/model.py"
    model.parent.mkdir(parents=True)
    model.write_text(MODEL)
    torch.manual_seed(0)
    base = module_of(model).build().state_dict()
    for name, change in (("base", 0.0), ("a", 1e-3), ("b", 2e-3), ("trained", 1e-2)):
        save_file({key: value + change * torch.randn_like(value) for key, value in base.items()}, f"{name}.safetensors")
    generator = np.random.default_rng(0)
    for name in ("a.npz", "b.npz", "path/to/data.npz"):
        images, labels = generator.integers(0, 256, (80, 32, 32, 3), dtype=np.uint8), np.arange(80) % 3
        np.savez(name, x_train=images[:60], y_train=labels[:60], x_test=images[60:], y_test=labels[60:])
    Image.fromarray(generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save("photo.png")
    yield tmp_path
    sys.modules.pop("model", None)


def test_the_readme_is_two_screens_long() -> None:
    prose = re.sub(r"^```.*?^```$", "", README, flags=re.M | re.S)
    assert len([word for word in prose.split() if re.search(r"\w", word)]) <= 600
    assert len(COMMANDS) >= 9


# A command line prints warnings, such as what a scan of a large network leaves out.
@pytest.mark.filterwarnings("default::UserWarning:biascope")
@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS))
def test_a_command_of_the_readme_runs(command: str, folder: Path, without_pictures: None) -> None:
    words = shlex.split(command, comments=True)[1:]
    if any(word.startswith("timm:") for word in words):
        pytest.importorskip("timm")
    if words[0] == "reproduce" and "--status" not in words:
        words[words.index("laptop")] = "smoke"
    name = next((each for each in SMALL if words[: len(each.split())] == each.split()), "")
    if "--status" not in words:
        words += [*SMALL.get(name, []), "--device", "cpu"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert done.stdout


def test_the_python_example_of_the_readme_runs(folder: Path) -> None:
    (block,) = (block for language, block in BLOCKS if language == "python")
    small = block.replace("num=64", "num=4").replace("draws=400", "draws=8")
    assert small.count("=4") == 1
    exec(small, {"build": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 1))})
    assert (folder / "spectrum.png").stat().st_size > 1000


def test_few_sentences_are_long() -> None:
    readability = module_of(ROOT / "docs" / "readability.py")
    long, count = readability.share_of_long(readability.pages())
    assert count > 1500
    assert long <= 0.1 * count, "python docs/readability.py lists them"


def test_sentences_are_counted_as_a_reader_would() -> None:
    readability = module_of(ROOT / "docs" / "readability.py")
    code = "```\nno. words. here.\n```\n\n| cell | A cell ends. |\n|---|---|\n\n"
    text = f"# Title\n\nOne sentence, e.g. this. Two `a b c`.\n\n{code}- item\n  goes on.\n"
    assert readability.sentences(text) == ["One sentence, e.g. this.", "Two code.", "A cell ends.", "item goes on."]
    assert readability.words("Two — words $x$.") == 3


def test_the_reference_has_every_public_name() -> None:
    pytest.importorskip("sphinx", reason="Sphinx is not installed (pip install '.[docs]'): no reference to check")
    reference = module_of(ROOT / "docs" / "make_reference.py")
    listed = [name for group in reference.NAMES.values() for name in group]
    assert sorted([*listed, "__version__"]) == sorted(biascope.__all__)


def test_every_page_is_in_the_contents() -> None:
    found = (path.relative_to(DOCS).with_suffix("") for path in (*DOCS.glob("*.md"), *DOCS.glob("papers/*.md")))
    pages = set(map(str, found)) - {"command_line", "index"}
    contents = "".join((ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in ("index", "measurements"))
    trees = re.findall(r"```\{toctree\}\n(.*?)```", contents, re.S)
    listed = {re.sub(r".*<(.*)>", r"\1", line).strip() for tree in trees for line in tree.splitlines()}
    assert pages <= listed


@pytest.mark.parametrize("name", registry.names())
def test_the_page_of_a_measurement_is_complete(name: str) -> None:
    page = (DOCS / f"{PAGES.get(name, name)}.md").read_text("utf-8")
    headings = re.findall(r"^##+ (.+)$", page, re.M)
    assert [section for section in SECTIONS if section not in headings] == []
    pictures = re.findall(r"!\[([^\]]+)\]\(([^)]+\.png)\)", page)
    assert pictures, "no picture, or a picture without a description"
    assert [file for _, file in pictures if not (DOCS / file).is_file()] == []
    costs = re.findall(r"^##+ Cost$\n(.*?)(?=^##? |\Z)", page, re.M | re.S)
    assert any(re.search(r"\d", cost) for cost in costs), "the cost is not a number"


def test_every_measurement_is_in_the_list() -> None:
    listed = re.findall(r"^\| \[.+?\]\((\w+)\.md\)", (DOCS / "measurements.md").read_text("utf-8"), re.M)
    assert {PAGES.get(name, name) for name in registry.names()} <= set(listed)


def documented() -> Iterator[tuple[str, str]]:
    """Docstrings on the API pages: public names with their methods, and the functions of all measurements."""
    for name in biascope.__all__:
        each = getattr(biascope, name)
        yield name, inspect.getdoc(each) or ""
        for own, value in vars(each).items() if inspect.isclass(each) else ():
            if not own.startswith("_") and (inspect.isroutine(value) or isinstance(value, property | classmethod)):
                yield f"{name}.{own}", inspect.getdoc(value) or ""
    for name in registry.names():
        yield f"measure {name}", inspect.getdoc(registry.find(name).function) or ""


def prose(docstring: str) -> str:
    """A docstring as a page: without example and reference, and with an item for each argument."""
    text = re.split(r"\n\s*(?:Examples?:|References?:|>>>)", docstring)[0]
    lines = [re.sub(r"^    (?=\*{0,2}\w+: )", "- ", line).strip() for line in text.splitlines()]
    return "\n".join("" if re.fullmatch(r"[A-Z]\w+( by)?:", line) else line for line in lines)


def test_few_sentences_of_docstrings_are_long() -> None:
    readability = module_of(ROOT / "docs" / "readability.py")
    found = [(name, each) for name, text in documented() for each in readability.sentences(prose(text))]
    long = [f"{name}: {each}" for name, each in found if readability.words(each) > readability.LONG]
    assert len(found) > 1000
    assert len(long) <= 0.03 * len(found), "\n".join(long)


def test_an_argument_is_described_by_a_phrase() -> None:
    fragment = re.compile(r"^    (\w+: (?:Of|As for) [^.:;,]+\.)$", re.M)
    found = [f"{name}: {each}" for name, text in documented() for each in fragment.findall(text)]
    assert not found, "\n".join(found)
    assert fragment.findall("Args:\n    seed: Of the weights.\n")
