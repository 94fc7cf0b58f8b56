"""Results say themselves where a network's derivatives are not those of its forward pass, and only there."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from kernels.test_selftest import (
    LARGE,
    SMALL,
    AlwaysDropsOut,
    Broken,
    CastsToFloat32,
    CutsAWeight,
    CutsHalfTheGradient,
    CutsWithNoGrad,
    KeepsState,
    OffByAFactor,
    OnlyFloat32,
    ResidualBlock,
    ResidualWithDetach,
    ResidualWithWrongSign,
    Rounds,
    SeesItsBatch,
    SignsStraightThrough,
    WrongSign,
    depthwise_after_relu,
)
from networks_under_test import CPU, AttentionNetwork, batchnorm_convnet, input_shape, relu_convnet, smooth_mlp
from torch import Tensor, nn
from typer.testing import CliRunner

from biascope import networks
from biascope.cli import app
from biascope.families.family import Family
from biascope.kernels.selftest import warnings_of
from biascope.results.registry import find
from biascope.results.report import write_report
from biascope.results.result import Result
from biascope.runs.run import Run
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays

pytestmark = pytest.mark.usefixtures("one_thread", "unrendered_pictures")


def doubts(build, shape: tuple[int, ...], *derivatives: str, seed: int = 0, **settings) -> list[str]:
    probe = Probe.gaussian(shape, num=2, seed=seed)
    return warnings_of(
        Family.initialised(build, name="it"),
        lambda run: probe.inputs(0, 1, run),
        derivatives=derivatives,
        seed=seed,
        run=CPU,
        **settings,
    )


def geometry(build, **settings) -> Result:
    family = Family.initialised(build, name="it")
    return find("average_geometry")(family, Probe.gaussian((6,)), draws=40, run=CPU, **settings)


def kernel(build, shape: tuple[int, ...] = (6,), **settings) -> Result:
    x = torch.randn(12, *shape, generator=torch.Generator().manual_seed(0))
    data = Arrays({"train": (x, torch.arange(12) % 2)})
    return find("tangent_kernel")(Family.initialised(build, name="it"), data, leading=3, run=CPU, **settings)


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (CutsHalfTheGradient, "50 %"),
        (CutsWithNoGrad, "9.09 %"),  # 0.1 of 1.1
        (OffByAFactor, "0.99 %"),  # 0.01 of 1.01
        (WrongSign, "200 %"),
        (Rounds, "100 %"),  # the slope between jumps is 0
        (SignsStraightThrough, "100 %"),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_backward_pass_that_does_not_fit_is_named_with_its_error(build, error, seed):
    (warning,) = doubts(build, (6,), "input", seed=seed)
    assert warning.startswith(f"The input gradients of it differ by {error} from the slope of its forward pass.")
    assert "Exact gradients are affected" in warning
    assert "estimator 'difference'" in warning


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in networks.names()]
)
def test_published_networks_raise_no_alarm(name):
    settings = SMALL.get(name, {})
    shape = input_shape(name, settings)
    for seed in range(3):
        assert doubts(lambda: networks.builder(name)(**settings), shape, "input", "weight", seed=seed) == []


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (smooth_mlp, (2, 3)),
        (relu_convnet, (1, 8, 8)),
        (batchnorm_convnet, (1, 6, 6)),
        (AttentionNetwork, (5, 4)),
        (CastsToFloat32, (6,)),
        (OnlyFloat32, (6,)),
    ],
)
@pytest.mark.parametrize("seed", range(8))
def test_sound_networks_raise_no_alarm(build, shape, seed):
    assert doubts(build, shape, "input", "weight", seed=seed) == []


@pytest.mark.parametrize("build", [ResidualBlock, depthwise_after_relu])
@pytest.mark.parametrize("seed", range(3))
def test_kinks_concern_weights_and_not_inputs(build, seed):
    assert doubts(build, (1, 8, 8), "input", seed=seed) == []
    (warning,) = doubts(build, (1, 8, 8), "weight", seed=seed)
    assert "sit exactly on the kink" in warning
    assert "tangent kernel and linearised training" in warning


@pytest.mark.parametrize("build", [ResidualWithDetach, ResidualWithWrongSign])
def test_a_kink_hides_no_wrong_weight_gradient(build):
    (warning,) = doubts(build, (1, 8, 8), "weight")
    assert warning.startswith("The weight gradients of it differ by ")


@pytest.mark.parametrize(
    ("build", "words"),
    [(AlwaysDropsOut, "forward is random"), (KeepsState, "keeps state"), (SeesItsBatch, "outputs depend on the batch")],
)
def test_outputs_that_depend_on_more_than_the_input_are_named(build, words):
    assert any(words in warning for warning in doubts(build, (6,), "weight"))


def test_measurements_warn_of_the_derivatives_they_take():
    exact, difference = geometry(CutsHalfTheGradient), geometry(CutsHalfTheGradient, estimator="difference")
    assert len(exact.warnings) == 1
    assert exact.warnings[0].startswith("The input gradients of it differ by 50 %")
    assert exact.trace.value == pytest.approx(
        geometry(Sound).trace.value / 4, rel=1e-4
    )  # the number warned of is wrong
    assert difference.warnings == []
    assert "warnings" not in exact.provenance["settings"]
    assert f"Warning: {exact.warnings[0]}" in repr(exact)


class Sound(Broken):
    def fault(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize(
    ("estimator", "subjects"),
    [("exact", {"input"}), ("difference", set()), ("mixed", {"input", "weight"})],
)
def test_directions_warn_by_their_estimator(estimator, subjects):
    family = Family.initialised(CutsHalfTheGradient, name="it")
    result = find("anisotropy_directions")(family, Probe.gaussian((6,)), estimator=estimator, draws=8, run=CPU)
    assert {warning.split()[1] for warning in result.warnings} == subjects


def test_the_kernel_warns_of_weight_gradients_and_of_kinks():
    assert kernel(smooth_mlp).warnings == []
    (cut,) = kernel(CutsHalfTheGradient).warnings
    assert cut.startswith("The weight gradients of it differ by ")
    zeros, kink = kernel(ResidualBlock, (1, 8, 8)).warnings
    assert "start at or near 0" in zeros
    assert "sit exactly on the kink" in kink


def test_the_kernel_is_checked_by_the_parameters_it_is_taken_of():
    assert len(kernel(CutsAWeight, parameters=("second.bias",)).warnings) == 1
    assert kernel(CutsAWeight, parameters=("first.*",)).warnings == []


def test_a_warning_stands_in_the_report_above_its_numbers_and_is_escaped(tmp_path):
    result = geometry(CutsHalfTheGradient)
    evil = "<b>cut</b>"
    result = dataclasses.replace(result, provenance={**result.provenance, "warnings": [evil]})
    text = write_report([result], tmp_path / "report.html").read_text()
    warning = "<strong>Warning.</strong> &lt;b&gt;cut&lt;/b&gt;"
    assert text.count(warning) == 1  # said once, where a reader begins
    assert text.index(warning) < text.index("What this means")
    assert evil not in text
    assert text.index("Warning.") < text.index('id="numbers"')
    sound = write_report([geometry(Sound)], tmp_path / "sound.html").read_text()
    assert "Warning." not in sound


MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 8), nn.Linear(8, 1)
    def forward(self, x):
        x = torch.tanh(self.first(x.flatten(1)))
        return self.second(x CUT)

def build(): return Net()
"""


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize("cut", [True, False])
def test_a_scan_says_it_in_output_json_and_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: bool) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL.replace("CUT", "+ x.detach()" if cut else ""))
    words = ["scan", "net.py:build", "--input", "1x4x4", "--draws", "8", "--out", "run"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0
    assert said.stdout.count("Warning: The input gradients of net differ by 50 %") == cut  # of both, told once
    leaning, average, *rows = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)["results"]
    assert [row["measurement"] for row in rows] == [
        "complexity",
        "sensitivity",
        "guessing",
    ]  # 4 × 4 pixels are too few to shift
    assert (len(leaning["warnings"]), len(average["warnings"])) == (cut, cut)
    again = CliRunner().invoke(app, ["report", "run", "--out", "again.html"])
    assert again.exit_code == 0
    for page in ("run/report.html", "again.html"):
        assert ("The input gradients of net differ by 50 %" in (tmp_path / page).read_text()) == cut
    sound = [*words[:-1], "sound"]
    (tmp_path / "net.py").write_text(MODEL.replace("CUT", ""))
    assert CliRunner().invoke(app, sound).exit_code == 0
    compared = CliRunner().invoke(app, ["compare", "run", "sound"])
    assert ("Warning: The input gradients" in compared.stdout) == cut


def test_the_checks_leave_no_trace_on_random_numbers_or_weights():
    family = Family.point(nn.Linear(3, 1))
    before, state = family.template.params["weight"].clone(), torch.get_rng_state()
    warnings_of(
        family, lambda run: torch.ones(2, 3, dtype=run.dtype), derivatives=("input", "weight"), run=Run(device="cpu")
    )
    assert torch.equal(before, family.template.params["weight"])
    assert torch.equal(state, torch.get_rng_state())
