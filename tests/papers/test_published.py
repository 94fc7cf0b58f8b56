"""Against what the authors of the anisotropy directions published: their spectra, and their accuracies by frequency."""

from pathlib import Path

import numpy as np
import pytest
import torch

from biascope.derivatives.covariance import GradientSampler, gradient_covariance
from biascope.derivatives.operators import GradientCovariance
from biascope.families.family import Family
from biascope.networks import builder
from biascope.papers.nads2020.frequencies import MAPS, frequencies
from biascope.papers.nads2020.released import COLUMNS, against_published, published_accuracies
from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.tasks.probe import Probe


def measured_and_published(
    data_root: Path, network: str, file: str, draws: int
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
    return gradient_covariance(sampler, draws=draws, centred=True, seed=0), eigenvalues, directions


def test_lenet_has_the_published_spectrum_along_the_published_directions(data_root: Path) -> None:
    covariance, eigenvalues, directions = measured_and_published(data_root, "lenet", "nads_lenet.npz", 150)
    assert covariance.trace().value / eigenvalues.sum() == pytest.approx(1.0, abs=0.05)
    along = covariance.along(directions.T)[0].numpy()
    assert np.corrcoef(np.log(along), np.log(eigenvalues))[0, 1] >= 0.99


def test_logistic_regression_has_the_published_trace_and_no_preferred_direction(data_root: Path) -> None:
    covariance, eigenvalues, _ = measured_and_published(data_root, "logistic_regression", "nads_logreg.npz", 400)
    assert covariance.trace().value / eigenvalues.sum() == pytest.approx(1.0, abs=0.05)
    assert covariance.effective_rank().contains(1024)


def test_resnet18_is_at_chance_on_a_quarter_of_the_published_frequencies(data_root: Path) -> None:
    """What docs/papers/nads2020.md says of the authors' map, and that our sample sees all three kinds of frequencies."""
    accuracies = published_accuracies("resnet18", Run(device="cpu", data_root=data_root))
    if accuracies is None:
        pytest.skip(f"{data_root / 'published'} has no dft_accuracies.csv: no published accuracies to read")
    by_odd_components: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for (down, across), accuracy in accuracies.items():
        by_odd_components[(down % 4 == 2) + (across % 4 == 2)].append(accuracy)
    multiples_of_4, one, both = (np.array(by_odd_components[count]) for count in (0, 1, 2))
    assert (len(multiples_of_4), len(one), len(both)) == (64, 128, 64)
    assert multiples_of_4.min() > 99.6
    assert [one.min(), one.max()] == pytest.approx([93.7, 99.9], abs=0.05)
    assert [both.min(), both.max()] == pytest.approx([49.9, 52.6], abs=0.05)
    said = (Path(__file__).parents[2] / "docs" / "papers" / "nads2020.md").read_text(encoding="utf-8")
    assert f"lie at {both.min():.0f} to {both.max():.0f} % (mean {both.mean():.1f} %)" in said
    assert np.mean(list(accuracies.values())) == pytest.approx(86.4, abs=0.05)
    sample = frequencies(MAPS.paper["frequencies"]["resnet18"])
    _, theirs = against_published(sample.labels, np.zeros(len(sample)), accuracies)
    assert len(theirs) == len(sample) >= 72, "every frequency of the sample is in the file"
    shares = [np.mean(theirs < 60), np.mean((theirs > 60) & (theirs < 99.6)), np.mean(theirs > 99.6)]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.05)


def test_one_half_of_the_published_file_mirrors_the_other(data_root: Path) -> None:
    """The file repeats the accuracy of (k, l) at (k, −l), while a real signal has the frequency (−k, −l) there."""
    accuracies = published_accuracies("lenet", Run(device="cpu", data_root=data_root))
    if accuracies is None:
        pytest.skip(f"{data_root / 'published'} has no dft_accuracies.csv: no published accuracies to read")
    inside = [(down, across) for down, across in accuracies if down > -16 and across > 0]
    assert all(accuracies[down, across] == accuracies[down, -across] for down, across in inside)
    assert np.mean([accuracies[down, across] == accuracies[-down, -across] for down, across in inside]) < 0.2
    labels = [("Re", sign * down % 32, sign * across % 32) for sign in (1, -1) for down, across in inside]
    _, theirs = against_published(labels, np.zeros(len(labels)), accuracies)
    trained = [accuracies[place] for place in inside]
    assert theirs.tolist() == trained + trained


def test_what_is_said_of_the_other_published_maps(data_root: Path) -> None:
    """Their LeNet stays below 82 %, VGG11 is near 100 % on some frequencies, and both are at chance on most."""
    if not (data_root / "published" / "dft_accuracies.csv").exists():
        pytest.skip(f"{data_root / 'published'} has no dft_accuracies.csv: no published accuracies to read")
    run = Run(device="cpu", data_root=data_root)
    maps = {name: np.array(list((published_accuracies(name, run) or {}).values())) for name in COLUMNS}
    assert all(len(values) == 256 for values in maps.values())
    assert np.all(maps["logistic_regression"] == 100)
    assert maps["lenet"].max() == pytest.approx(81.6, abs=0.05)
    assert maps["vgg11"].max() == pytest.approx(99.75, abs=0.01)
    for name in ("lenet", "vgg11", "densenet121"):
        assert (maps[name] < 55).mean() > 0.5
    half = bases.fourier_half((1, 32, 32), "Re", 2)
    assert len(half) == 130, "the frequencies of the file, up to symmetry"
