"""The shape of the code base: thirteen folders, arrows between them, names, and what works without optional packages."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import biascope

SOURCE = Path(biascope.__file__).parent
# A folder imports only from those before it.
ROOMS = [
    "networks",
    "runs",
    "results",
    "families",
    "data",
    "tasks",
    "derivatives",
    "kernels",
    "training",
    "editing",
    "measures",
    "papers",
    "cli",
]
BESIDE = {"__init__", "__main__"}
FORBIDDEN = {"utils", "util", "helpers", "helper", "common", "base", "core", "misc", "manager", "tools"}


def named(path: Path) -> str:
    """A file as a dotted name below biascope; a package by its folder."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {named(path): path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"}


def imported(name: str) -> set[str]:
    """Modules of ours that a file imports, anywhere in it, as dotted names below biascope."""
    path = FILES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
        for node in ast.walk(branch)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typing_only or not isinstance(node, ast.ImportFrom):
            continue
        if node.level:
            above = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
            source = f"{above}.{node.module}" if node.module else above
        elif node.module == "biascope" or (node.module or "").startswith("biascope."):
            source = (node.module or "").removeprefix("biascope").removeprefix(".")
        else:
            continue
        for alias in node.names:
            whole = f"{source}.{alias.name}".removeprefix(".")
            found |= {whole} if whole in FILES else {source} if source in FILES else set()
    return found - {name}


def room(name: str) -> str:
    return name.partition(".")[0]


def test_there_are_thirteen_folders_and_hardly_a_file_beside_them() -> None:
    folders = [path.name for path in SOURCE.iterdir() if path.is_dir() and any(path.rglob("*.py"))]
    assert sorted(folders) == sorted(ROOMS)
    assert {path.stem for path in SOURCE.glob("*.py")} == BESIDE
    for folder in (path for path in SOURCE.rglob("*") if path.is_dir() and path.name not in ("__pycache__", "results")):
        entries = [path for path in folder.iterdir() if path.name != "__pycache__"]
        assert len(entries) <= 36, f"{folder} has {len(entries)} entries"


def test_the_map_in_the_docstring_has_a_line_for_every_folder_in_their_order() -> None:
    lines = [
        line.split()[0] for line in (biascope.__doc__ or "").splitlines() if line.startswith("    ") and line.split()
    ]
    assert [word for word in lines if word in ROOMS] == ROOMS


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_folder_imports_only_from_those_above_it(name: str) -> None:
    order = {folder: place for place, folder in enumerate([*ROOMS, "__main__"])}
    upwards = {other for other in imported(name) if order[room(other)] > order[room(name)]}
    assert not upwards, f"{name} imports {sorted(upwards)} from below"


@pytest.mark.parametrize("folder", ROOMS)
def test_there_are_no_cycles_inside_a_folder(folder: str) -> None:
    waiting = {
        name: {other for other in imported(name) if room(other) == folder} for name in FILES if room(name) == folder
    }
    while free := [name for name, needed in waiting.items() if not needed & waiting.keys()]:
        for name in free:
            del waiting[name]
    assert not waiting, f"a cycle among {sorted(waiting)}"


def test_measures_never_import_one_another() -> None:
    for name in FILES:
        if room(name) == "measures" and name != "measures":
            own = name.split(".")[1]
            others = {other.split(".")[1] for other in imported(name) if room(other) == "measures" and "." in other}
            assert others <= {own, "covariance"}, f"{name} imports {others}"


def test_the_register_and_the_report_know_no_concrete_result() -> None:
    for name in (each for each in FILES if room(each) == "results"):
        assert {room(other) for other in imported(name)} <= {"runs", "results"}, name


@pytest.mark.parametrize("name", sorted(FILES))
def test_files_are_well_named(name: str) -> None:
    assert not set(name.split(".")) & FORBIDDEN


def test_a_class_has_a_name_of_its_own() -> None:
    classes = [
        node.name
        for path in FILES.values()
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert not {name for name in classes if classes.count(name) > 1}


def test_one_screen_of_public_names_that_all_exist() -> None:
    assert len(biascope.__all__) <= 41  # beside them, every measurement
    assert all(getattr(biascope, name) is not None for name in biascope.__all__)


def run_python(code: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_line_and_the_register_do_not_import_torch() -> None:
    run_python(
        "import sys, biascope.cli, biascope.networks, biascope.results.registry as m; m.names(); assert 'torch' not in sys.modules"
    )


def test_measuring_needs_neither_drawing_nor_command_line_packages() -> None:
    run_python(
        """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {'matplotlib', 'jinja2', 'typer', 'rich', 'PIL', 'click'}:
            raise ImportError(name)
sys.meta_path.insert(0, Hide())
import biascope
from biascope.results.registry import find, names
for name in names():
    args, settings = find(name).example()
    result = find(name)(*args, **settings)
    result.sentence(), repr(result), result._repr_html_()
"""
    )
