"""Samples as a user names them, and `biascope kernel`, `measure` and `scan` on them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from biascope.cli import app
from biascope.families.family import Family
from biascope.families.weights import save
from biascope.kernels.gram import tangent_gram
from biascope.runs.run import Run
from biascope.tasks.samples import samples_of

pytestmark = pytest.mark.usefixtures("one_thread", "unrendered_pictures")
MODEL = """
from torch import nn
def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 5), nn.Tanh(), nn.Linear(5, 1))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set of 60 + 20 small images in three classes, and a network."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 255, (80, 3, 4, 4)).astype(np.uint8)
    labels = np.arange(80) % 3
    np.savez(tmp_path / "small.npz", x_train=images[:60], y_train=labels[:60], x_test=images[60:], y_test=labels[60:])
    np.savez(tmp_path / "bare.npz", x_train=images)
    (tmp_path / "own.py").write_text(MODEL)
    monkeypatch.setenv("BIASCOPE_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*words: str):
    return CliRunner().invoke(app, list(words), catch_exceptions=True)


def test_samples_are_standardised_by_the_training_samples_that_are_taken(folder):
    found = samples_of("small", sizes=(40, 10), seed=3)
    x, y = found.splits["train"]
    assert found.sizes == {"train": 40, "test": 10}
    assert found.name == "small, 40 train and 10 test samples"
    assert y.dtype == torch.int64
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-4, rtol=0)
    assert not torch.allclose(found.splits["test"][0].mean((0, 2, 3)), torch.zeros(3), atol=1e-3)
    assert torch.equal(samples_of("small", sizes=(20,), seed=3).splits["train"][1], y[:20])
    assert samples_of("small", sizes=(1000, 1000)).sizes == {"train": 60, "test": 20}
    assert samples_of("small", sizes=(5,), side=6).shape == (3, 6, 6)


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("small", (), r"^sizes must be one or two positive numbers of samples, got \(\)"),
        ("small", (0, 5), r"^sizes must be one or two positive numbers of samples, got \(0, 5\)"),
        ("bare", (5,), r"^The train samples of 'bare' must have labels, but have none"),
        ("nowhere", (5,), r"^data set must be one of"),
    ],
)
def test_samples_that_cannot_be_are_a_sentence(folder, name, sizes, message):
    with pytest.raises(ValueError, match=message):
        samples_of(name, sizes=sizes)


def test_kernel_prints_numbers_and_writes_report_result_and_matrix(folder):
    words = [
        "kernel",
        "own.py:build",
        "--data",
        "small",
        "--samples",
        "50,20",
        "--positive",
        "0",
        "--leading",
        "5",
        "--control",
    ]
    done = invoke(*words, "--matrix", "k.npy", "--out", "run", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "lie on the first 5 of 50 eigenfunctions of the tangent kernel" in done.output
    assert (folder / "run/report.html").stat().st_size > 10_000
    assert (folder / "run/tangent_kernel/result.json").exists()
    kernel = np.load("k.npy")
    assert kernel.shape == (50, 50)
    assert np.array_equal(kernel, kernel.T)
    again = invoke(*words, "--out", "run", "--device", "cpu", "--json")
    assert json.loads(again.stdout)["results"][0]["measurement"] == "tangent_kernel"


def test_kernel_takes_trained_weights(folder):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    save(module.state_dict(), "w.safetensors")
    words = [
        "kernel",
        "own.py:build",
        "--weights",
        "w.safetensors",
        "--data",
        "small",
        "--samples",
        "30",
        "--leading",
        "5",
    ]
    done = invoke(*words, "--matrix", "k.npy", "--device", "cpu", "--precision", "float64")
    assert done.exit_code == 0, done.output
    network = Family.point(module).draw(1, seed=0, run=Run(device="cpu", precision="float64")).member(0).read("first")
    x = samples_of("small", sizes=(30,)).whole("train")[0]
    expected = tangent_gram(network, x, run=Run(device="cpu", precision="float64")).matrix
    np.testing.assert_allclose(np.load("k.npy"), expected.numpy(), rtol=1e-12)


def test_kernel_explains_before_it_computes(folder):
    done = invoke("kernel", "own.py:build", "--data", "small", "--samples", "60", "--plan", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("60 × 60 kernel; 1 pass over the samples")
    assert "3.weight" in done.output
    assert not (folder / "biascope-runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--samples", "many"], "--samples must be whole numbers separated by commas, got 'many'"),
        (["--positive", "7"], "positive must be some of the classes 0, 1, 2"),
        (["--matrix", "k.txt"], "--matrix must name an .npy file, got k.txt"),
        (["--parameters", "conv*"], "parameters must name parameters of the network, but 'conv*' matches none"),
        (["--kernel", "sum"], "kernel must be 'scalar'"),
        (["--precision", "float16"], "A tangent kernel in float16 overflows"),
    ],
)
def test_what_kernel_cannot_do_is_a_sentence(folder, words, message):
    done = invoke(
        "kernel", "own.py:build", "--data", "small", "--samples", "30", "--leading", "5", "--device", "cpu", *words
    )
    assert done.exit_code != 0
    assert message in str(done.exception) + done.output


@pytest.mark.parametrize(
    "words",
    [["kernel"], ["kernel", "--plan"], *(["measure", name] for name in ("kernel_rotation", "linearized_training"))],
)
def test_samples_of_another_shape_are_a_sentence(folder, words):
    (folder / "narrow.py").write_text(MODEL.replace("48", "47"))
    done = invoke(*words, "narrow.py:build", "--data", "small", "--samples", "30,10", "--device", "cpu")
    assert done.exit_code != 0
    assert isinstance(done.exception, ValueError)
    assert "must accept samples of shape" in str(done.exception)


def test_measure_takes_data_and_sizes(folder):
    words = ["measure", "tangent_kernel", "own.py:build", "--data", "small", "--samples", "40,20", "--leading", "4"]
    done = invoke(*words, "--device", "cpu", "--out", "run")
    assert done.exit_code == 0, done.output
    record = json.loads((folder / "run/tangent_kernel/result.json").read_text())["values"]["provenance"]
    assert record["data"] == {
        "name": "small, 40 train and 20 test samples",
        "samples": {"train": 40, "test": 20},
        "shape": [3, 4, 4],
        "preparation": "pixels divided by 255, then each channel standardised over the training samples",
    }
    assert record["settings"]["leading"] == 4


def test_scan_adds_the_kernel_where_there_is_data(folder):
    words = ["scan", "own.py:build", "--data", "small", "--samples", "60", "--draws", "8", "--estimator", "exact"]
    done = invoke(*words, "--device", "cpu", "--out", "run")
    assert done.exit_code == 0, done.output
    assert "eigenfunctions of the tangent kernel" in done.output
    assert "Tangent kernel" in (folder / "run/report.html").read_text()
