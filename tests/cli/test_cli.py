"""The commands as a user types them: what they print, what they say of wrong input, and that they answer at once."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from networks_under_test import TINY_FILE

from biascope import __version__, cli

pytestmark = pytest.mark.usefixtures("unrendered_pictures")

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Run a command in an empty folder: exit status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(TINY_FILE)

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["biascope", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        output = capsys.readouterr()
        return int(stopped.value.code or 0), output.out, output.err

    return run


TINY = ("tiny.py:build", "--input", "1x8x8", "--device", "cpu")


def test_scan_prints_findings_and_writes_results_and_report(call: Call, tmp_path: Path) -> None:
    status, out, _ = call("scan", *TINY, "--draws", 40)
    assert status == 0
    headline, details = out.split("\nDetail, ", 1)
    assert headline.count("Before training, the mean gradient of tiny spreads") == 1
    assert headline.index("directions over which the mean gradient spreads, of 64") > headline.index("tiny spreads")
    assert "average geometry: " in details
    numbers = headline.partition("tiny spreads")[2]
    assert (
        "tiny" not in numbers[: numbers.index("\nComplexity: ")]
    )  # one finding, then a sentence for each row of the card
    assert [line.partition(":")[0] for line in numbers.splitlines() if " of tiny " in line] != []
    assert "Why it differs: It squares slopes" in details
    assert (tmp_path / "biascope-runs/tiny/report.html").exists()
    saved = {path.parent.name for path in (tmp_path / "biascope-runs/tiny").glob("*/result.json")}
    assert saved == {"mean_gradient", "average_geometry", "complexity", "sensitivity", "equivariance", "guessing"}


def test_an_estimator_adds_the_published_directions_as_a_detail(call: Call, tmp_path: Path) -> None:
    status, out, _ = call("scan", *TINY, "--draws", 40, "--estimator", "difference")
    assert status == 0
    headline, *details = out.split("\nDetail, ")
    assert [detail.partition(":")[0] for detail in details] == ["anisotropy directions", "average geometry"]
    assert "tiny spreads" in headline
    assert "The gradient of tiny spreads" in details[0]
    assert all("Why it differs: " in detail for detail in details)
    assert (tmp_path / "biascope-runs/tiny/anisotropy_directions/result.json").exists()


def test_the_mean_gradient_alone_is_measured_on_fresh_inputs_unless_others_are_asked_for(call: Call) -> None:
    status, out, _ = call("measure", "mean_gradient", *TINY, "--draws", 8, "--json")
    assert status == 0
    assert json.loads(out)["results"][0]["provenance"]["probe"].startswith("64 fresh ")
    status, out, _ = call("measure", "mean_gradient", *TINY, "--draws", 8, "--inputs", 4, "--json")
    assert json.loads(out)["results"][0]["provenance"]["probe"].startswith("4 fresh ")
    for more, sentence in (
        (("--no-fresh",), "A mean gradient needs fresh inputs for each network"),
        (("--inputs", 3), "A mean gradient needs an even number of inputs"),
        (("--inputs", 1), "A mean gradient needs an even number of inputs"),
    ):
        status, _, err = call("measure", "mean_gradient", *TINY, "--draws", 8, *more)
        assert status == 2
        assert sentence in err
        assert len(err.strip().splitlines()) == 1


def test_scan_prints_json_that_parses(call: Call) -> None:
    status, out, _ = call("scan", *TINY, "--draws", 8, "--estimator", "exact", "--json", "--out", "here")
    assert status == 0
    document = json.loads(out)
    assert document["report"] == "here/report.html"
    results = {result["measurement"]: result for result in document["results"]}
    assert list(results)[:3] == ["mean_gradient", "anisotropy_directions", "average_geometry"]
    assert list(results)[3:] == ["complexity", "sensitivity", "equivariance", "guessing"]
    assert results["anisotropy_directions"]["provenance"]["settings"]["estimator"] == "exact"


def test_a_dry_run_estimates_and_writes_nothing(call: Call, tmp_path: Path) -> None:
    status, out, _ = call("scan", *TINY, "--draws", 1000, "--dry-run")
    assert status == 0
    assert "about" in out
    assert "Expected memory" in out
    assert not (tmp_path / "biascope-runs").exists()


@pytest.mark.usefixtures("without_pictures")
def test_compare_takes_runs_and_networks_and_refuses_to_mix_estimators(call: Call) -> None:
    call("scan", *TINY, "--draws", 8, "--out", "first", "--estimator", "exact")
    call("scan", *TINY, "--draws", 8, "--out", "other", "--estimator", "difference")
    status, out, _ = call("compare", "first", "tiny.py:build", "--input", "1x8x8", "--draws", 8, "--estimator", "exact")
    assert status == 0
    assert "overlap of the leading" in out
    status, _, err = call("compare", "first", "other")
    assert status == 2
    assert "must share one estimator" in err
    assert "exact gradients" in err
    assert "central differences, h = 100" in err


@pytest.mark.usefixtures("without_pictures")
def test_report_is_made_again_from_run_folders(call: Call, tmp_path: Path) -> None:
    call("scan", *TINY, "--draws", 8, "--out", "first")
    status, _, _ = call("report", "first", "--out", "page/again.html")
    assert status == 0
    assert (tmp_path / "page/again.html").exists()


@pytest.mark.usefixtures("without_pictures")
def test_measure_runs_one_measurement_with_its_own_settings(call: Call) -> None:
    status, out, _ = call(
        "measure", "average_geometry", *TINY, "--inputs", 2, "--fresh", "--draws", "8", "--readout", "sum"
    )
    assert status == 0
    assert "effective rank of 64" in out


def test_list_version_and_cite(call: Call) -> None:
    assert "lenet" in call("list")[1]
    assert "average_geometry" in json.loads(call("list", "--json")[1])["measurements"]
    assert call("--version")[1].strip() == f"biascope {__version__}"
    assert "Neural anisotropy directions" in call("--cite")[1]


def test_selftest_passes_on_a_right_network_and_fails_on_broken_ones(call: Call, tmp_path: Path) -> None:
    status, out, _ = call("selftest", "tiny.py:build", "--input", "1x8x8")
    assert status == 0
    assert "All 11 checks passed" in out
    (tmp_path / "broken.py").write_text(BROKEN)
    for name in ("noisy", "coupled", "wrong_backward"):
        status, out, err = call("selftest", f"broken.py:{name}", "--input", "1x8x8")
        assert status == 1, name
        assert "FAILED" in out
        assert "do not trust" in err


def test_selftest_tells_a_kink_from_a_wrong_backward_pass(call: Call, tmp_path: Path) -> None:
    (tmp_path / "kinked.py").write_text(KINKED)
    status, out, err = call("selftest", "kinked.py:build", "--input", "1x8x8")
    assert (status, err) == (0, "")
    assert "kink   weight jvp equals differences" in out
    assert "Input gradients are not affected." in out
    assert "All 11 checks passed" in out


KINKED = """
import torch
from torch import nn

class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.branch, self.head = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 1)
        self.scale = nn.Parameter(torch.zeros(32))
    def forward(self, x):
        x = torch.relu(self.stem(x.flatten(1)))
        return self.head(torch.relu(x + self.scale * self.branch(x)))

def build(): return Residual()
"""

BROKEN = """
import torch
from torch import nn

class Twice(torch.autograd.Function):
    generate_vmap_rule = True
    @staticmethod
    def forward(x): return x * 2
    @staticmethod
    def setup_context(ctx, inputs, output): pass
    @staticmethod
    def backward(ctx, gradient): return gradient * 3
    @staticmethod
    def jvp(ctx, tangent): return tangent * 2

class Layer(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.linear, self.change = nn.Linear(64, 1), change
    def forward(self, x): return self.change(self.linear(x.flatten(1)))

def noisy(): return Layer(lambda y: y + torch.randn_like(y))
def coupled(): return Layer(lambda y: y - y.mean(0, keepdim=True) * 0.5)
def wrong_backward(): return Layer(Twice.apply)
def constant(): return Layer(lambda y: y * 0)
def not_a_number(): return Layer(lambda y: y * float('nan'))
def nothing(): return nn.Flatten()
def number(): return 3
"""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["scan", "lenett"], "Did you mean 'lenet'"),
        (["scan", "missing.py:build"], "The model file must exist"),
        (["scan", "tiny.py:make"], "must define a function 'make', but has build"),
        (["scan", "no.such.module:build"], "must be an importable module"),
        (["scan", "tiny.py:build", "--input", "1x9x9"], "must accept inputs of shape 1×9×9"),
        (["scan", "tiny.py:build", "--input", "big"], "must be positive lengths joined by x"),
        (["scan", "broken.py:constant", "--input", "1x8x8"], "must depend on its input"),
        (["scan", "broken.py:not_a_number", "--input", "1x8x8"], "must give finite outputs"),
        (["scan", "broken.py:nothing", "--input", "1x8x8"], "must have parameters to draw"),
        (["scan", "broken.py:number", "--input", "1x8x8"], "must return a torch.nn.Module"),
        (["scan", *TINY, "--draws", "1"], "draws must be at least 2 to estimate a spread, got 1"),
        (["scan", *TINY, "--step", "0", "--estimator", "difference"], "must be a number other than 0"),
        (["scan", *TINY, "--estimator", "guess"], "estimator must be"),
        (["scan", *TINY, "--out", "tiny.py/below"], "must be writable"),
        (["scan", *TINY, "--readout", "last"], "readout must be one of"),
        (["scan", *TINY, "--batchnorm", "both"], "batchnorm must be 'eval' or 'train'"),
        (["scan", *TINY, "--precision", "float8"], "precision must be one of"),
        (["scan", *TINY[:3], "--device", "abacus"], "device must be"),
        (["scan", *TINY, "--weights", "none.pt"], "The weights file must exist"),
        (["scan", *TINY, "--checkpoints", "none"], "The checkpoints folder must exist"),
        (["scan", *TINY, "--checkpoints", "tiny.py"], "Pass one file as weights"),
        (["scan", *TINY, "--weights", "."], "Pass a folder as checkpoints"),
        (["scan", "lenet", "--set", "pooling"], "must be written key=value"),
        (["scan", "lenet", "--set", "pooling=min"], "pooling must be one of"),
        (["scan", "lenet", "--set", "colour=red"], "It takes: channels"),
        (["compare", "lenet"], "at least two subjects"),
        (["report", "nowhere"], "The run folder nowhere does not exist"),
        (["measure", "averagegeometri", "lenet"], "Did you mean average_geometry"),
    ],
)
def test_wrong_input_gets_one_sentence_and_a_non_zero_exit(
    call: Call, tmp_path: Path, words: list[str], sentence: str
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    status, _, err = call(*words)
    assert status == 2
    assert sentence in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


def test_an_interrupt_says_that_nothing_is_lost(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("biascope.derivatives.covariance.GradientSampler.gradients", interrupted)
    status, _, err = call("scan", *TINY, "--draws", 8)
    assert status == 130
    assert "The same command resumes" in err


def test_the_installed_command_answers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from biascope.cli import main; main()", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert "scan" in done.stdout
