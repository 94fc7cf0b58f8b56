"""Against what the authors of the anisotropy directions published: their LeNet and logistic-regression spectra."""

from pathlib import Path

import numpy as np
import pytest
import torch

from biascope.family import Family
from biascope.networks import builder
from biascope.operators import GradientCovariance
from biascope.probe import Probe
from biascope.run import Run
from biascope.sampling import GradientSampler, gradient_covariance


def measured_and_published(
    data_root: Path, network: str, file: str
) -> tuple[GradientCovariance, np.ndarray, torch.Tensor]:
    path = data_root / "published" / file
    if not path.exists():
        pytest.skip(f"{path} is not there: no published directions to compare with")
    with np.load(path) as stored:
        # The files hold singular values of 10,000 centred gradients.
        eigenvalues = stored["singular_values"].astype(np.float64) ** 2 / 9999
        directions = torch.from_numpy(stored["directions"]).double()
    family = Family.initialised(builder(network), name=network)
    sampler = GradientSampler(
        family,
        Probe.gaussian((1, 32, 32), seed=0),
        estimator="difference",
        step=100.0,
        readout="first",
        seed=0,
        run=Run(device="cpu"),
    )
    return gradient_covariance(sampler, draws=400, centred=True, seed=0), eigenvalues, directions


def test_lenet_has_the_published_spectrum_along_the_published_directions(data_root: Path) -> None:
    covariance, eigenvalues, directions = measured_and_published(data_root, "lenet", "nads_lenet.npz")
    assert covariance.trace().value / eigenvalues.sum() == pytest.approx(1.0, abs=0.05)
    along = covariance.along(directions.T)[0].numpy()
    assert np.corrcoef(np.log(along), np.log(eigenvalues))[0, 1] >= 0.99


def test_logistic_regression_has_the_published_trace_and_no_preferred_direction(data_root: Path) -> None:
    covariance, eigenvalues, _ = measured_and_published(data_root, "logistic_regression", "nads_logreg.npz")
    assert covariance.trace().value / eigenvalues.sum() == pytest.approx(1.0, abs=0.05)
    assert covariance.effective_rank().contains(1024)
