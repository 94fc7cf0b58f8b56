"""Settings without meaning are refused in a sentence, whoever asks: Python, `biascope measure` or another command."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from biascope import cli
from biascope.cli import compare as compare_command
from biascope.cli import explain as explain_command
from biascope.cli import inr as signal_commands
from biascope.cli import kernel as kernel_commands
from biascope.cli import measure as measure_commands
from biascope.cli import patterns as pattern_commands
from biascope.cli import scan as scan_command
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.measures.directional_bias.result import DirectionalBias
from biascope.results.registry import find, names
from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays, along_directions
from biascope.training.evaluation import evaluation
from biascope.training.recipe import Recipe

CPU = Run(device="cpu", progress=False)
FLOATS = (math.nan, math.inf, -1.0, 0.0)
# Of the values tried below, those that mean something.
MEANINGFUL = {
    "step": (-1.0,),  # central differences are the same with −h
    "positive": (0,),  # a class
    "low": (-1.0, 0.0),  # where coordinates begin
    "noise": (0.0,),
    "momentum": (0.0,),
    "betas": (0.0,),
    "warmup": (0,),
    "weight_decay": (0.0,),
    "cutoff": (0.0,),
    "ridge": (0.0,),
    "bias": (0.0,),
    "tolerance": (0.0,),
    "held_out": (0.0,),
    "start": (0.0,),
    "grid": (0,),
    "alphas": (0.0,),  # the base alone
    "box": (-1.0, 0.0),  # one coefficient
}


def values_of(annotation: str) -> tuple[float, ...]:
    """What is tried of a setting: of words and truth values nothing."""
    if "str" in annotation or "bool" in annotation:
        return ()
    return FLOATS if "float" in annotation else (0, -1) if "int" in annotation else ()


def settings_without_meaning() -> list[Any]:
    cases = []
    for name in names():
        for key, setting in find(name).settings.items():
            if key == "seed":
                continue
            annotation = setting.annotation
            for value in values_of(annotation):
                if value in MEANINGFUL.get(key, ()) and not (name == "pooling_theory" and key == "noise"):
                    continue
                several = (value, value) if annotation.startswith("tuple[float, float]") else (value,)
                given = several if annotation.startswith("tuple") else value
                cases.append(pytest.param(name, key, given, id=f"{name}-{key}={value}"))
    return cases


@pytest.mark.parametrize(("name", "key", "value"), settings_without_meaning())
def test_a_measurement_refuses_a_setting_without_meaning(name: str, key: str, value: Any) -> None:
    args, settings = find(name).example()
    with pytest.raises(ValueError, match=r"(?s)\bgot\b.*\. [A-Z]"):
        find(name)(*args, **find(name).grouped({**settings, key: value}))


COMMANDS: dict[tuple[str, ...], tuple[Callable[..., None], tuple[str, ...]]] = {
    ("scan",): (scan_command.scan, ("net.py:build", "--input", "1x8x8", "--draws", "4")),
    ("explain",): (explain_command.explain, ("net.py:build", "--input", "1x8x8", "--draws", "8")),
    ("compare",): (compare_command.compare, ("net.py:build", "net.py:other", "--input", "1x8x8", "--draws", "8")),
    ("kernel",): (kernel_commands.kernel, ("net.py:build", "--data", "s.npz")),
    ("patterns",): (pattern_commands.patterns, ("net.py:convolution", "--data", "s.npz")),
    ("inr", "fit"): (signal_commands.fit, ("a.png", "--steps", "1", "--set", "width=8")),
    ("inr", "advise"): (signal_commands.advise, ("a.png", "--draws", "1", "--width", "8", "--candidates", "siren=30")),
    ("measure",): (measure_commands.measure, ("directional_bias", "net.py:build", "--input", "1x8x8")),
}
NETWORKS = """
from torch import nn

def build(outputs=2):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, outputs))

other = build

def convolution():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
"""


def options_without_meaning() -> list[Any]:
    cases = []
    for words, (function, _) in COMMANDS.items():
        for key, hint in typing.get_type_hints(function).items():
            if key in ("return", "seed", "keep"):
                continue
            for value in values_of(str(hint)):
                if value not in MEANINGFUL.get(key, ()):
                    option = f"--{key.replace('_', '-')}={value}"
                    cases.append(pytest.param(words, option, id=f"{' '.join(words)} {option}"))
    return cases


@pytest.fixture
def things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network, an image and a data set in the working folder."""
    monkeypatch.chdir(tmp_path)
    noise = np.random.default_rng(0)
    Image.fromarray(noise.integers(0, 256, (12, 12), np.uint8)).save("a.png")
    images = noise.integers(0, 256, (60, 8, 8)).astype(np.uint8)
    np.savez("s.npz", x_train=images, y_train=np.arange(60) % 2, x_test=images[:20], y_test=np.arange(20) % 2)
    Path("net.py").write_text(NETWORKS)


@pytest.mark.usefixtures("things")
@pytest.mark.parametrize(("words", "option"), options_without_meaning())
def test_a_command_refuses_an_option_without_meaning(words: tuple[str, ...], option: str) -> None:
    done = CliRunner().invoke(cli.app, [*words, *COMMANDS[words][1], "--device", "cpu", option])
    assert done.exit_code != 0, done.output
    assert isinstance(done.exception, ValueError), repr(done.exception)  # a sentence and exit status 2 in main()
    assert "got" in str(done.exception)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 0.0}, "rate must be a positive number, got 0.0. Pass rate=0.1."),
        ({"rate": math.nan}, "rate must be a positive number, got nan"),
        ({"momentum": 2.0}, "momentum must be at least 0 and below 1, got 2.0. Pass momentum=0.9."),
        ({"betas": (0.9, 1.0)}, "betas must be at least 0 and below 1, got 1.0"),
        ({"clip": -1.0}, "clip must be a positive number, got -1.0. Pass clip=0.5."),
        ({"threshold": math.nan}, "threshold must be a positive number, got nan"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0.0, got -0.1"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
    ],
)
def test_a_recipe_refuses_what_trains_nothing(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        Recipe(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise": math.nan}, "noise must be finite"),
        ({"epsilon": math.nan}, "epsilon must be a positive number, got nan"),
    ],
)
def test_a_task_along_directions_refuses_numbers_that_are_none(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        along_directions(torch.eye(2), (2,), train=4, test=4, seed=0, run=CPU, **settings)


def test_inputs_of_infinite_size_are_refused() -> None:
    with pytest.raises(ValueError, match="std must be a positive number, got inf"):
        Probe.gaussian((2,), std=math.inf)


def test_a_constant_image_is_refused(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 128, np.uint8)).save(tmp_path / "flat.png")
    done = CliRunner().invoke(cli.app, ["inr", "fit", str(tmp_path / "flat.png"), "--out", str(tmp_path / "out")])
    assert str(done.exception).startswith("flat must vary, but has the same value everywhere.")


# -- trainings that diverge


def test_a_network_that_says_nan_has_no_accuracy() -> None:
    linear = Network.of(nn.Linear(2, 2))
    broken = linear.with_params({name: torch.full_like(part, torch.nan) for name, part in linear.params.items()})
    task = Arrays({"test": (torch.randn(6, 2), torch.tensor([0, 0, 0, 0, 1, 1]))})
    assert math.isnan(evaluation(broken, task, "test", run=CPU).accuracy[0])  # 4 of 6, the share of class 0, before


class Breaking(nn.Module):
    """One layer whose outputs are not a number for inputs along the first axis."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        return self.inner(x) / (x[:, :1].abs() < 0.7)  # 1 in 0 is infinite: the loss is not finite


def bias_of(places: range) -> DirectionalBias:
    family = Family.initialised(Breaking, name="breaking")
    own = find("directional_bias").grouped({"noise": (0.1,), "samples": (64,), "test": 64, "epochs": 2})
    found = find("directional_bias")(family, bases.canonical((1, 4, 4)).part(places), run=CPU, **own)
    assert isinstance(found, DirectionalBias)
    return found


def test_trainings_that_diverge_are_left_out_of_accuracies() -> None:
    found = bias_of(range(4))  # the first carries the classes where the network breaks
    assert found.diverged.ravel().tolist() == [True, False, False, False]
    assert np.isnan(found.accuracy.ravel()).tolist() == [True, False, False, False]
    assert found.headline()["mean_test_accuracy:noise 0.1, 64 samples"].value == pytest.approx(
        np.nanmean(found.accuracy)
    )
    assert found.sentence().endswith("1 of 4 trainings diverged and are left out.")
    assert " learns 3 of 4 directions and misses 0" in found.sentence()


def test_accuracies_of_trainings_that_all_diverge_are_refused() -> None:
    with pytest.raises(ValueError, match="but all 1 diverged"):
        bias_of(range(1))
