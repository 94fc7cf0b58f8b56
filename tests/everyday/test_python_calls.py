"""Wrong calls from Python: a ValueError in one sentence that says what to pass, or Python's own TypeError for a wrong signature."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import biascope
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.results.registry import find, load
from biascope.results.result import Result
from biascope.runs.run import Run
from biascope.tasks.bases import fourier_half
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays
from biascope.training.recipe import Recipe

LINEAR = Family.initialised(lambda: nn.Linear(4, 2), name="linear")
PROBE = Probe.gaussian((4,))
SAMPLES = Arrays({"train": (torch.randn(12, 4), torch.arange(12) % 2)})
geometry, kernel, bias = find("average_geometry"), find("tangent_kernel"), find("directional_bias")

WRONG: dict[str, Callable[[], object]] = {
    "a name for a family": lambda: geometry("lenet", PROBE),
    "a module for a family": lambda: geometry(nn.Linear(4, 2), PROBE),
    "a class for a family": lambda: geometry(nn.Linear, PROBE),
    "a shape for a probe": lambda: geometry(LINEAR, (4,)),
    "a tensor for a probe": lambda: geometry(LINEAR, torch.randn(2, 4)),
    "an array for data": lambda: kernel(LINEAR, np.zeros((4, 4))),
    "a tensor for data": lambda: kernel(LINEAR, torch.zeros(4, 4)),
    "a name for data": lambda: kernel(LINEAR, "cifar10"),
    "a name for a basis": lambda: bias(LINEAR, "fourier"),
    "a device for a run": lambda: geometry(LINEAR, PROBE, run="cuda"),
    "a folder for a run": lambda: geometry(LINEAR, PROBE, run=Path("runs")),
    "draws in words": lambda: geometry(LINEAR, PROBE, draws="many"),
    "half a draw": lambda: geometry(LINEAR, PROBE, draws=2.5),
    "no draws": lambda: geometry(LINEAR, PROBE, draws=0),
    "draws of None": lambda: geometry(LINEAR, PROBE, draws=None),
    "a seed in words": lambda: geometry(LINEAR, PROBE, draws=4, seed="x"),
    "a seed that is no whole number": lambda: geometry(LINEAR, PROBE, draws=4, seed=0.5),
    "a readout that is none": lambda: geometry(LINEAR, PROBE, draws=4, readout="last"),
    "a readout by number": lambda: geometry(LINEAR, PROBE, draws=4, readout=0),
    "an estimator that is none": lambda: geometry(LINEAR, PROBE, draws=4, estimator="exactly"),
    "a step of nan": lambda: find("anisotropy_directions")(LINEAR, PROBE, draws=4, step=float("nan")),
    "leading in words": lambda: kernel(LINEAR, SAMPLES, leading="all"),
    "leading beyond the samples": lambda: kernel(LINEAR, SAMPLES, leading=99),
    "a split that is none": lambda: kernel(LINEAR, SAMPLES, split="validation"),
    "inputs of another shape": lambda: geometry(LINEAR, Probe.gaussian((5,)), draws=4),
    "samples of another shape": lambda: kernel(LINEAR, Arrays({"train": (torch.randn(12, 5), torch.arange(12) % 2)})),
    "images for a basis of another shape": lambda: bias(LINEAR, fourier_half((1, 8, 8), "Re", 4)),
    "a builder that needs arguments": lambda: Family.initialised(nn.Linear),
    "a builder that returns nothing": lambda: Family.initialised(lambda: None),
    "a builder that raises": lambda: Family.initialised(lambda: 1 / 0),
    "a module for a builder": lambda: Family.initialised(nn.Linear(4, 2)),
    "a function for a module": lambda: Family.point(lambda: nn.Linear(4, 2)),  # type: ignore[arg-type]
    "no members": lambda: Family.empirical([]),
    "members of two shapes": lambda: Family.empirical([nn.Linear(4, 2), nn.Linear(4, 3)]),
    "a mode of BatchNorm that is none": lambda: Family.initialised(lambda: nn.Linear(4, 2), batchnorm="test"),
    "a member of one network": lambda: Network.of(nn.Linear(4, 2)).member(0),
    "a readout of a network that is none": lambda: Network.of(nn.Linear(4, 2)).read("last"),
    "a network that is none": lambda: biascope.scan("lenett", draws=4),
    "a file that is none": lambda: biascope.scan("nosuch.py:build", draws=4),
    "a scan without draws": lambda: biascope.scan("lenet", draws=0),
    "a scan of a shape in words": lambda: biascope.scan("lenet", input="large", draws=4),
    "a scan with weights that are none": lambda: biascope.scan("lenet", weights="nosuch.safetensors", draws=4),
    "a measurement that is none": lambda: find("geometry"),
    "a folder without a result": lambda: load("/nonexistent"),
    "a device that is none": lambda: Run(device="tpu"),
    "a precision that is none": lambda: Run(precision="float8"),
    "a place that is none": lambda: Run(on="slurm"),
    "a probe without a shape": lambda: Probe.gaussian(()),
    "a probe of nothing": lambda: Probe.gaussian((0, 4)),
    "a recipe that goes nowhere": lambda: Recipe(rate=float("nan")),
}  # fmt: skip


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_call_is_one_sentence(
    call: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as told:
        call()
    sentence = str(told.value)
    assert "\n" not in sentence.strip()
    assert sentence.rstrip().endswith((".", "?")), sentence
    assert sentence[0].isupper() or sentence.split(" ")[0].islower(), sentence
    assert not list(tmp_path.iterdir())


def test_a_right_call_is_none_of_them() -> None:
    found = geometry(LINEAR, PROBE, draws=8, run=Run(device="cpu"))
    assert isinstance(found, Result)
    assert geometry(LINEAR, PROBE, draws=np.int64(8), run=Run(device="cpu")).draws == 8
