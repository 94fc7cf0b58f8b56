"""What a person meets in Python: names and their types, what objects print, what results become in a notebook and in other tools."""

import builtins
import dataclasses
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import biascope
import biascope.networks
from biascope.editing.heads import Head
from biascope.results.estimate import Estimate
from biascope.results.registry import Measurement, find, names
from biascope.results.result import THUMBNAIL_BYTES, Result
from biascope.tasks import bases
from biascope.tasks.images import SideBySide
from biascope.tasks.signals import Signal, SignalTask
from biascope.tasks.task import Relabelled

ROOT = Path(__file__).parents[1]
CPU = biascope.Run(device="cpu", progress=False)


def build() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 2))


FAMILY = biascope.Family.initialised(build, name="small")


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_dir_shows_the_public_names_and_nothing_else() -> None:
    assert dir(biascope) == sorted({*biascope.__all__, *names()})
    assert dir(biascope.networks) == sorted(biascope.networks.__all__)
    fresh = run_python("import biascope, sys; print(*dir(biascope)); assert 'torch' not in sys.modules")
    assert fresh.split() == dir(biascope)


def test_importing_the_package_is_instant_and_leaves_nothing_behind() -> None:
    out = run_python("import sys, biascope; print('numpy' in sys.modules, *vars(biascope))")
    loaded, *found = out.split()
    assert loaded == "False"
    own = {name for name in found if not name.startswith("_")}
    assert own <= {*biascope.__all__, "annotations", "TYPE_CHECKING"}


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(AttributeError, match="module 'biascope' has no attribute 'mean_gradien'"):
        _ = biascope.mean_gradien  # type: ignore[attr-defined]
    assert not hasattr(biascope, "covariance")  # what measures share is no measurement


@pytest.mark.parametrize("name", names())
def test_every_measurement_is_a_function_that_editors_know(name: str) -> None:
    function = getattr(biascope, name)
    assert isinstance(function, Measurement)
    assert function is find(name)
    line = f"    from biascope.measures.{name} import {name} as {name}\n"
    assert line in (ROOT / "src/biascope/__init__.py").read_text(encoding="utf-8"), f"Add to __init__.py: {line}"
    assert (function.__doc__ or "").splitlines()[0] in pydoc.render_doc(function, renderer=pydoc.plaintext)


def test_a_type_checker_knows_arguments_and_results(tmp_path: Path) -> None:
    """Checked as by a user with a strict configuration."""
    code = tmp_path / "typed.py"
    code.write_text(
        """
from typing import assert_type

import biascope
from biascope.measures.average_geometry import Geometry
from biascope.measures.mean_gradient import MeanGradient
from biascope.measures.tangent_kernel import TangentSpectrum


def look(family: biascope.Family, probe: biascope.Probe, data: biascope.Arrays) -> float:
    assert_type(biascope.mean_gradient(family, probe, draws=8), MeanGradient)
    assert_type(biascope.average_geometry(family, probe, readout="mean"), Geometry)
    assert_type(biascope.tangent_kernel(family, data, leading=4), TangentSpectrum)
    assert_type(biascope.load("run"), biascope.Result)
    assert_type(biascope.scan("lenet"), biascope.Scan)
    return float(biascope.mean_gradient(family, probe).effective_rank)


def wrong(family: biascope.Family, probe: biascope.Probe) -> None:
    biascope.mean_gradient(family, probe, draws="many")
    biascope.mean_gradient(family)
    biascope.mean_gradient(family, probe, drawz=3)
    biascope.no_such_name
"""
    )
    words = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache"), "--strict"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words, "--no-error-summary", str(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    errors = [line.split("typed.py:")[1] for line in done.stdout.splitlines() if "error:" in line]
    assert [int(line.split(":")[0]) for line in errors] == [20, 21, 22, 23], done.stdout + done.stderr
    assert [re.search(r"\[([\w-]+)\]$", line)[1] for line in errors] == [  # type: ignore[index]
        "arg-type",
        "call-arg",
        "call-arg",
        "attr-defined",
    ]


def test_help_begins_with_what_one_does_first() -> None:
    page = pydoc.render_doc(biascope, renderer=pydoc.plaintext)
    first, code, map_of_folders = (
        page.index(word) for word in ("What to do first", 'biascope.scan("lenet"', "networks  ")
    )
    assert first < code < map_of_folders < 2500
    assert code - first < 200


def objects() -> dict[str, Any]:
    """One of everything that a user can hold."""
    probe = biascope.Probe.gaussian((1, 32, 32), num=2, fresh=True)
    data = biascope.Arrays({"train": (torch.randn(40, 1, 32, 32), torch.arange(40) % 2)}, name="noise")
    stack = FAMILY.draw(3, seed=0, run=CPU)
    recipe = biascope.Recipe("adam", rate=0.01, steps=4, threshold=0.1)
    trajectory = biascope.fit(stack, data, recipe, seed=0, run=CPU, keep_at=(0, 2))
    sampler = biascope.GradientSampler(FAMILY, probe, estimator="exact", step=1.0, readout="first", seed=0, run=CPU)
    covariance = biascope.gradient_covariance(sampler, draws=8, seed=0)
    network = stack.member(0).read("first")
    x = torch.randn(40, 1, 32, 32)
    signal = Signal(torch.rand(64, 64, 3), "photograph")
    tasks = [data, Relabelled(data, {"train": torch.zeros(2, 40)}), SideBySide(data, data)]
    tasks += [biascope.along_directions(torch.eye(1024)[:3], (1, 32, 32), train=8, test=8, seed=0, run=CPU)]
    tasks += [tasks[-1].of_member(0), SignalTask.of(signal, seed=0, run=CPU)]
    found = {
        "run": CPU,
        "run with all": biascope.Run(Path("run"), "cpu", "float64", False, "ray", Path("data"), 3.0),
        "recipe": recipe,
        "default recipe": biascope.Recipe(),
        "family": FAMILY,
        "point": biascope.Family.point(build()),
        "members": biascope.Family.empirical([build(), build()], batchnorm="train"),
        "network": network,
        "stack": stack,
        "linearised": biascope.linearize(stack.member(0)),
        "fresh probe": probe,
        "given inputs": biascope.Probe.fixed(x),
        "basis": bases.fourier((1, 8, 8)),
        "signal": signal,
        "trajectory": trajectory,
        "sampler": sampler,
        "covariance": covariance,
        "matrix": biascope.Matrix(torch.eye(300)),
        "spectrum": biascope.eigenpairs(covariance, 5),
        "kernel": biascope.TangentKernel(network, x, run=CPU),
        "alignment": biascope.alignment(network, x, torch.randn(2, 40), run=CPU),
        "observer": biascope.Observer(build(), hooks={"rank": lambda step, net: 1.0}),
        "head": Head(torch.randn(10, 300), torch.zeros(10)),
        "estimate": Estimate(3.0, 0.1, 2.8, 3.2),
    }
    return found | {f"task {type(task).__name__}": task for task in tasks}


def test_what_objects_print_is_short_and_holds_no_weights() -> None:
    for name, thing in objects().items():
        text = repr(thing)
        assert len(text) < 400, f"{name}: {text}"
        assert "\n" not in text, f"{name}: {text}"
        assert "tensor(" not in text, f"{name}: {text}"
        assert " object at 0x" not in text, f"{name}: {text}"
    for name in names():
        assert len(repr(find(name))) < 400
    assert repr(FAMILY) == "Family('small', initialised, 65,730 parameters)"
    assert (
        repr(FAMILY.draw(3, seed=0, run=CPU))
        == "Network(Sequential, 65,730 parameters each, 3 members, float32 on cpu)"
    )
    assert repr(biascope.Run(device="cpu")) == "Run(device='cpu')"
    assert repr(biascope.Recipe()) == "Recipe('sgd', rate=0.1, schedule='linear', epochs=20, batch=128)"


def test_a_repr_of_settings_makes_the_same_settings_again() -> None:
    for settings in (
        biascope.Recipe("adamw", rate=0.3, steps=7, betas=(0.8, 0.9), threshold=0.1, stop=True),
        biascope.Recipe(epochs=3, clip=1.0),
        biascope.Run(device="cpu", precision="float64"),
    ):
        assert eval(repr(settings), {"Recipe": biascope.Recipe, "Run": biascope.Run}) == settings


def test_an_estimate_is_a_number() -> None:
    estimate = Estimate(40, 1.0, 38.0, 42.0)
    assert float(estimate) == 40.0
    assert float(estimate.named("rank", "share")) == 40.0  # as it is, not as it is printed in percent
    assert np.isnan(float(Estimate(float("nan"))))


@pytest.fixture(scope="module")
def result() -> Result:
    args, settings = find("mean_gradient").example()
    return biascope.mean_gradient(*args, **settings)


def test_a_notebook_shows_numbers_and_a_small_picture(result: Result) -> None:
    page = result._repr_html_()
    (source,) = re.findall(r'<img src="(data:image/png;base64,[A-Za-z0-9+/=]+)" alt="[^"<>]+" title="[^"<>]+">', page)
    assert 1000 < len(source) < THUMBNAIL_BYTES * 4 / 3 + 100
    assert "effective" in page or "directions over which" in page


@dataclasses.dataclass(frozen=True, repr=False)
class Trouble(Result):
    """A result whose picture is as given."""

    picture: Any = None

    def headline(self) -> dict[str, Any]:
        return {"number": Estimate(1.0).named("<b>number</b>")}

    def sentence(self) -> str:
        return "<script>alert(1)</script>"

    def plots(self, dark: bool = False) -> dict[str, Any]:
        if isinstance(self.picture, Exception):
            raise self.picture
        return self.picture


def noise(side: float) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(side, side))
    figure.add_axes((0, 0, 1, 1)).imshow(np.random.default_rng(0).random((900, 900, 3)))
    return figure


@pytest.mark.parametrize(
    "picture", [RuntimeError("no"), ImportError("matplotlib"), {}, {"one": None}, {"<i>\"'": noise(4)}]
)
def test_a_notebook_shows_a_result_whatever_its_picture_does(picture: Any) -> None:
    page = Trouble(picture)._repr_html_()
    assert "<script" not in page
    assert "<b>" not in page
    assert "<i>" not in page
    assert "&lt;script&gt;" in page
    assert len(page) < 2 * THUMBNAIL_BYTES


def test_without_pandas_or_xarray_one_sentence_says_what_to_install(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("pandas", "xarray"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ImportError, match=r"^to_dataframe needs pandas, which is not installed\. Run pip install pandas\.$"
    ):
        result.to_dataframe()
    with pytest.raises(
        ImportError, match=r"^to_xarray needs xarray, which is not installed\. Run pip install xarray\.$"
    ):
        result.to_xarray()


def test_a_result_becomes_a_table(result: Result) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("xarray")
    table = result.to_dataframe()
    assert list(table.index) == list(result.headline())
    rank = result.headline()["effective_rank"]
    assert table.loc["effective_rank", "value"] == rank.value
    assert table.loc["effective_rank", "high"] == rank.high
    assert set(table["subject"]) == {"small MLP"}
    assert table["value"].dtype == np.float64
    assert len(pandas.concat([table, table])) == 2 * len(table)
    unknown = Trouble({}).to_dataframe()
    assert unknown["low"].dtype == np.float64  # nan, not an object
    assert Trouble({}).to_xarray().attrs["sentence"].startswith("<script")
    with pytest.raises(ValueError, match=r"^table must be a table of this mean_gradient, got 'models': it has none\."):
        result.to_dataframe("models")


def test_tables_of_a_result_hold_numbers() -> None:
    pytest.importorskip("pandas")
    args, settings = find("merge_check").example()
    found = biascope.merge_check(*args, **settings)
    table = found.to_dataframe("coefficients")
    assert len(table) == len(found.tables()["coefficients"])
    assert table["distance"].dtype == np.float64
    with pytest.raises(ValueError, match=r"it has 'models', 'methods', 'coefficients'.*\.$"):
        found.to_dataframe("coefficient")


@pytest.mark.parametrize("name", names())
def test_every_result_becomes_a_data_set_with_named_axes(name: str) -> None:
    pytest.importorskip("xarray")
    args, settings = find(name).example()
    found = find(name)(*args, **settings)
    content = found.to_xarray()
    for array, axes in found.axes.items():
        if (values := getattr(found, array)) is not None:
            assert content[array].shape == values.shape
            assert [axis.rstrip(" 23") for axis in content[array].dims] == [axis.rstrip(" 23") for axis in axes]
            np.testing.assert_array_equal(content[array].values, values)
    assert content.attrs["measurement"] == name
    assert list(found.to_dataframe().index) == list(found.headline())


def test_a_scan_shows_its_results() -> None:
    found = biascope.scan(FAMILY, draws=4, run=CPU, report=False)
    assert repr(found).startswith("Scan without a report\nMeanGradient of small\n")
    assert found._repr_html_().count("<table>") == len(found.results)
    assert "tensor(" not in repr(found)


def test_nothing_of_this_is_lost_by_a_star_import() -> None:
    space: dict[str, Any] = {}
    exec("from biascope import *", space)
    assert {name for name in space if name not in dir(builtins) and name != "__builtins__"} == set(biascope.__all__)
