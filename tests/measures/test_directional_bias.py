"""Directional bias and the sweep of trainings behind it."""

import functools
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from networks_under_test import CPU
from torch import nn

from biascope import measure
from biascope.families.family import Family
from biascope.networks import builder
from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.training.sweep import Trial, windows

directional_bias = functools.partial(measure, "directional_bias")
SMALL = {"noise": (0.5,), "samples": (200,), "test": 400, "epochs": 4, "batch": 20}


def linear(outputs: int = 2) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, outputs))


def blind_to_high_frequencies() -> nn.Module:
    """Averages pairs of pixels: frequency 3 of 6 is lost, and the mean is not."""
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(9, 2))


FAMILY = Family.initialised(linear, name="linear")
BASIS = bases.fourier_half((1, 6, 6))


def test_a_linear_model_learns_every_direction_and_a_pooled_one_does_not() -> None:
    whole = directional_bias(FAMILY, BASIS, run=CPU, **{**SMALL, "epochs": 20})
    assert whole.accuracy.min() > 0.99
    pooled = directional_bias(
        Family.initialised(blind_to_high_frequencies, name="pooled"), BASIS, run=CPU, **{**SMALL, "epochs": 20}
    )
    at = {label[-2:]: float(value) for label, value in zip(pooled.labels, pooled.accuracy[0, 0, 0], strict=True)}
    assert at[0, 0] > 0.99
    assert at[3, 3] < 0.6
    assert "misses" in pooled.sentence()


def test_its_planes_are_symmetric_and_hold_every_frequency() -> None:
    result = directional_bias(FAMILY, BASIS, run=CPU, repeats=2, **SMALL)
    planes = result.planes()
    values = planes["test accuracy"].values
    assert values.shape == (6, 6)
    assert not np.isnan(values).any()
    mirrored = np.roll(values[::-1, ::-1], (1, 1), (0, 1))
    assert np.array_equal(values, mirrored)
    assert values[3, 3] == pytest.approx(100 * result.accuracy[0, 0, :, 0].mean())
    assert planes["test accuracy"].spread is not None


def test_noise_levels_and_training_sizes_are_axes() -> None:
    result = directional_bias(
        FAMILY, BASIS.part([0, 5]), run=CPU, **{**SMALL, "noise": (0.1, 4.0), "samples": (40, 400)}
    )
    assert result.accuracy.shape == (2, 2, 1, 2)
    few, many = result.accuracy[1].mean((1, 2))
    assert many > few
    assert np.isnan(result.losses[:, 0, :, :, -1]).all()  # fewer samples, fewer iterations
    assert np.isfinite(result.losses[:, 1]).all()
    number = result.headline()["mean_test_accuracy:noise 4, 400 samples"]
    assert number.label == "mean test accuracy (σ = 4, 400 samples)"
    assert number.unit == "share"


def test_iterations_are_counted_to_the_threshold_and_stopping_does_not_change_them() -> None:
    own = {**SMALL, "noise": (0.1,), "epochs": 30, "threshold": 0.2}
    whole = directional_bias(FAMILY, BASIS.part([0, 7]), run=CPU, **own)
    early = directional_bias(FAMILY, BASIS.part([0, 7]), run=CPU, stop=True, **own)
    assert np.isfinite(whole.iterations).all()
    assert np.array_equal(whole.iterations, early.iterations)


def test_a_direction_gives_the_same_whoever_is_beside_it() -> None:
    alone = directional_bias(FAMILY, BASIS.part([4]), run=CPU, **SMALL)
    among = directional_bias(FAMILY, BASIS, run=CPU, **SMALL)
    assert alone.accuracy[0, 0, 0, 0] == pytest.approx(among.accuracy[0, 0, 0, 4], abs=0.01)
    assert alone.losses[0, 0, 0, 0] == pytest.approx(among.losses[0, 0, 0, 4], abs=1e-4)


def test_a_finer_sweep_reuses_finished_trials(tmp_path: Path) -> None:
    run = Run(device="cpu", folder=tmp_path)
    coarse = directional_bias(FAMILY, BASIS.part([0, 4]), run=run, **SMALL)
    files = set(tmp_path.rglob("group-*.safetensors"))
    stamps = {path: path.stat().st_mtime_ns for path in files}
    fine = directional_bias(FAMILY, BASIS, run=run, **SMALL)
    assert np.array_equal(fine.accuracy[..., [0, 4]], coarse.accuracy)
    assert stamps == {path: path.stat().st_mtime_ns for path in files}
    other = bases.random((1, 6, 6), seed=0).part([0, 4])  # the same places of another basis are other trials
    assert not np.array_equal(directional_bias(FAMILY, other, run=run, **SMALL).losses, coarse.losses)


KILLED = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from biascope.tasks import bases
from biascope.families.family import Family
from biascope import measure
from biascope.networks import builder
from biascope.runs.run import Run
import functools
family = Family.initialised(functools.partial(builder("lenet"), outputs=2), name="LeNet")
basis = bases.fourier_half((1, 32, 32), stride=16)
result = measure("directional_bias", family, basis, noise=(1.0,), samples=(128,), test=64, epochs=2, batch=64, run=Run(
    device="cpu", folder=Path(sys.argv[1])))
torch.save({"accuracy": torch.tensor(result.accuracy), "losses": torch.tensor(result.losses)}, sys.argv[2])
"""


@pytest.mark.slow  # the command is killed in tests/everyday/test_killed_commands.py
def test_killed_and_started_again_it_equals_an_uninterrupted_run_bit_for_bit(tmp_path: Path) -> None:
    def command(folder: str) -> list[str]:
        return [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path / folder), str(tmp_path / f"{folder}.pt")]

    process = subprocess.Popen(command("killed"))
    while not list((tmp_path / "killed").rglob("group-*.safetensors")) and process.poll() is None:
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finished = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed").rglob("group-*.safetensors")}
    assert finished
    for folder in ("killed", "whole"):
        subprocess.run(command(folder), check=True)
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in finished.items())
    killed, whole = (torch.load(tmp_path / f"{folder}.pt", weights_only=True) for folder in ("killed", "whole"))
    assert torch.equal(killed["accuracy"], whole["accuracy"])
    assert torch.equal(killed["losses"], whole["losses"])


def test_a_trial_is_its_key_again() -> None:
    for trial in (Trial("noise 3.0, repeat 0", 12, "ab12"), Trial("clean #1, repeat 2", 0)):
        assert Trial.of(trial.key) == trial


def test_windows_average_what_was_trained() -> None:
    losses = torch.tensor([[3.0], [1.0], [2.0], [torch.nan]])
    means, ends = windows(losses, most=2)
    assert means.flatten().tolist() == [2.0, 2.0]
    assert ends.tolist() == [2, 4]


def test_one_output_is_trained_by_the_logistic_loss() -> None:
    family = Family.initialised(functools.partial(linear, 1), name="one output")
    assert directional_bias(family, BASIS.part([0]), run=CPU, **{**SMALL, "epochs": 20}).accuracy.min() > 0.95


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"noise": ()}, "noise must have at least one value"),
        ({"margin": "x"}, "margin must be"),
        ({"optimiser": "x"}, "optimiser must be one of"),
    ],
)
def test_wrong_settings_are_told_in_one_sentence(change, words) -> None:
    with pytest.raises(ValueError, match=words):
        directional_bias(FAMILY, BASIS, run=CPU, **{**SMALL, **change})


def test_a_network_that_does_not_fit_is_told_before_any_training() -> None:
    with pytest.raises(ValueError, match="must accept inputs of shape"):
        directional_bias(FAMILY, bases.fourier_half((1, 8, 8)), run=CPU)
    ten = Family.initialised(functools.partial(linear, 10), name="ten classes")
    with pytest.raises(ValueError, match="outputs=2"):
        directional_bias(ten, BASIS, run=CPU)


def test_lenet_prefers_low_frequencies_as_published() -> None:
    """The centre of LeNet's map is far above its corners, already with little training."""
    family = Family.initialised(functools.partial(builder("lenet"), outputs=2), name="LeNet")
    basis = bases.fourier_half((1, 32, 32))
    labels = [label[-2:] for label in basis.labels]
    chosen = basis.part([labels.index(at) for at in ((1, 1), (8, 8))])
    result = directional_bias(family, chosen, noise=(0.5,), samples=(2000,), test=500, epochs=3, run=CPU)
    low, high = result.accuracy[0, 0, 0]
    assert low > high + 0.2
