"""Kernel rotation: alignments and energies along a training, against dense Jacobians."""

import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from networks_under_test import CPU64, normal, normalised_network, tanh_network
from torch import Tensor, nn

from biascope.derivatives.gradients import weight_jacobian
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.kernels.products import alignment
from biascope.measures.kernel_rotation import KernelRotation, kernel_rotation
from biascope.runs.randomness import seed_of
from biascope.tasks.task import Arrays
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

TRAIN, TEST = 30, 18


def data_of(*shape: int, classes: int = 2) -> Arrays:
    x = normal(TRAIN + TEST, *shape)
    y = (x.flatten(1)[:, :2].prod(1) > 0).long() if classes == 2 else torch.arange(len(x)) % classes
    return Arrays({"train": (x[:TRAIN], y[:TRAIN]), "test": (x[TRAIN:], y[TRAIN:])}, torch.float64)


FAMILY = Family.initialised(tanh_network, name="tanh")
LINEAR = Family.initialised(functools.partial(nn.Linear, 4, 1), name="linear")
DATA = data_of(4)
SMALL = {"leading": 8, "energy": 3, "epochs": 8, "batch": 10, "rate": 0.3, "run": CPU64}


def walked(family: Family, task: Arrays, epochs: int, rate: float, seed: int = 0) -> tuple[Network, Network]:
    """First and last weights of the training that the measurement should have made."""
    own = seed_of(seed, "repeat", 0)
    start = family.draw(1, seed=own, run=CPU64).member(0)
    recipe = Recipe("sgd", rate, momentum=0.9, epochs=epochs, batch=10)
    return start, fit(start, task, recipe, seed=own, run=CPU64).networks


def kernel(network: Network, x: Tensor) -> Tensor:
    jacobian = weight_jacobian(network.read("first"), x)
    return jacobian @ jacobian.T


def test_a_linear_model_keeps_its_kernel() -> None:
    result = kernel_rotation(LINEAR, DATA, **{**SMALL, "leading": 5})
    assert np.array_equal(result.growth, np.ones_like(result.growth))
    assert np.array_equal(result.kernel_growth, np.ones_like(result.kernel_growth))
    assert np.ptp(result.energy) == 0
    assert np.ptp(result.effective_rank) == 0
    assert result.distance[0, -1] > 0.1
    assert "did not rotate relative to the target" in result.sentence()


def test_at_the_start_alignments_are_eigenvalues_over_the_number_of_samples() -> None:
    result = kernel_rotation(FAMILY, DATA, target=2, **SMALL)
    start, _ = walked(FAMILY, DATA, 1, 0.3)
    x = torch.cat([DATA.splits["train"][0], DATA.splits["test"][0]])
    values = torch.linalg.eigvalsh(kernel(start, x)).flip(0)[:8] / len(x)
    np.testing.assert_allclose(result.alignment[0, 0], values.numpy(), rtol=1e-9)
    np.testing.assert_allclose(result.target_alignment, result.alignment[:, :, 1], rtol=1e-12)


def test_the_last_checkpoint_of_labels_is_that_of_a_dense_jacobian() -> None:
    result = kernel_rotation(FAMILY, DATA, kernel_samples=None, **SMALL)
    start, end = walked(FAMILY, DATA, 8, 0.3)
    x, y = DATA.splits["train"]
    signs, first, last = 2 * y.double() - 1, kernel(start, x), kernel(end, x)
    functions = TRAIN**0.5 * torch.linalg.eigh(first).eigenvectors.flip(1).T[:8]
    by_passes = alignment(end.read("first"), x, torch.cat([functions, signs[None]]), errors=False, run=CPU64).values
    np.testing.assert_allclose(result.alignment[0, -1], by_passes[:-1].numpy(), rtol=1e-7)
    np.testing.assert_allclose(result.target_alignment[0, -1], by_passes[-1], rtol=1e-9)
    np.testing.assert_allclose(result.jacobian_norm[0, -1], last.diagonal().mean(), rtol=1e-9)
    np.testing.assert_allclose(result.effective_rank[0, -1], last.trace() ** 2 / last.square().sum(), rtol=1e-9)
    top = torch.linalg.eigh(last).eigenvectors[:, -3:]
    np.testing.assert_allclose(result.energy[0, -1], (top.T @ signs).square().sum() / TRAIN, rtol=1e-9)
    moved, length = (
        torch.cat([(end.params[name] * share - tensor).flatten() for name, tensor in start.params.items()]).norm()
        for share in (1, 0)
    )
    np.testing.assert_allclose(result.distance[0, -1], moved / length, rtol=1e-9)
    right = (end(x)[:, 0] > 0) == (y == 1)
    assert result.train_accuracy[0, -1] == right.double().mean()


def test_all_eigenvectors_hold_all_of_the_target() -> None:
    for target in (None, 3):
        result = kernel_rotation(FAMILY, DATA, target=target, **{**SMALL, "energy": 12, "kernel_samples": 12})
        np.testing.assert_allclose(result.energy, 1.0, rtol=1e-12)


def test_a_larger_tolerance_gives_nearly_the_same_alignments() -> None:
    x = normal(1100, 4)  # so many that eigenfunctions are iterated for
    data = Arrays({"train": (x[:1000], torch.zeros(1000)), "test": (x[1000:], torch.zeros(100))}, torch.float64)
    settings = {**SMALL, "epochs": 1, "batch": 250, "checkpoints": 2, "target": 3}
    exact, rough = (kernel_rotation(FAMILY, data, tolerance=tolerance, **settings) for tolerance in (1e-9, 1e-3))
    assert rough.alignment == pytest.approx(exact.alignment, rel=1e-3)
    assert rough.train_accuracy == pytest.approx(exact.train_accuracy, abs=0.01)


def test_the_kernel_turns_to_the_eigenfunction_that_is_learned() -> None:
    result = kernel_rotation(FAMILY, DATA, target=6, **{**SMALL, "epochs": 80})
    assert result.target_growth[0, -1] > 1.3 * result.others_growth[0, -1]
    assert result.energy[0, -1] > result.energy[0, 0] + 0.05
    assert result.train_accuracy[0, -1] > 0.9
    assert "rotated towards the target" in result.sentence()
    assert "eigenfunction 6" in result.sentence()


def test_batchnorm_has_the_statistics_of_its_time() -> None:
    data = data_of(1, 4, 4)
    family = Family.initialised(normalised_network, name="normalised")
    result = kernel_rotation(family, data, kernel_samples=None, **{**SMALL, "epochs": 3})
    start, end = walked(family, data, 3, 0.3)
    x = data.splits["train"][0]
    frozen = end.with_params(end.params, start.buffers)
    norms = [float(kernel(network, x).diagonal().mean()) for network in (start, end, frozen)]
    np.testing.assert_allclose(result.jacobian_norm[0, [0, -1]], norms[:2], rtol=1e-9)
    assert abs(norms[2] / norms[1] - 1) > 0.01  # and the test can tell


def test_a_readout_of_two_outputs_and_classes_set_apart() -> None:
    family = Family.initialised(functools.partial(tanh_network, 2), name="two outputs")
    several = data_of(4, classes=5)
    result = kernel_rotation(family, several, positive=(1, 3), readout="sum", kernel_samples=None, **SMALL)
    x, y = several.splits["train"]
    start = family.draw(1, seed=seed_of(0, "repeat", 0), run=CPU64).member(0)
    signs = 2.0 * ((y == 1) | (y == 3)) - 1
    expected = alignment(start.read("sum"), x, signs, errors=False, run=CPU64).values[0]
    np.testing.assert_allclose(result.target_alignment[0, 0], expected, rtol=1e-9)


def test_checkpoints_are_in_geometric_order_and_epochs_come_once() -> None:
    result = kernel_rotation(FAMILY, DATA, **{**SMALL, "epochs": 16, "checkpoints": 6})
    assert result.epochs.tolist() == [0, 1, 2, 4, 8, 16]
    assert kernel_rotation(FAMILY, DATA, **{**SMALL, "epochs": 2, "checkpoints": 6}).epochs.tolist() == [0, 1, 2]
    assert kernel_rotation(FAMILY, DATA, **{**SMALL, "epochs": 2, "checkpoints": 2}).epochs.tolist() == [0, 2]


def test_repeats_are_other_networks_and_give_a_spread() -> None:
    result = kernel_rotation(FAMILY, DATA, repeats=3, **SMALL)
    assert result.alignment.shape == (3, 6, 8)
    assert all(np.isfinite(number.standard_error) for number in result.headline().values())
    alone = kernel_rotation(FAMILY, DATA, **SMALL)
    np.testing.assert_array_equal(alone.alignment[0], result.alignment[0])


def test_what_was_measured_is_kept_and_more_checkpoints_continue_it(tmp_path: Path) -> None:
    own = {**SMALL, "epochs": 4, "run": dataclasses.replace(CPU64, folder=tmp_path)}
    coarse = kernel_rotation(FAMILY, DATA, target=2, checkpoints=3, **own)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("repeat*.safetensors")}
    assert len(files) == 3
    fine = kernel_rotation(FAMILY, DATA, target=2, checkpoints=6, **own)
    assert fine.epochs.tolist() == [0, 1, 2, 3, 4]
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in files.items())
    np.testing.assert_array_equal(fine.alignment[:, [0, 1, -1]], coarse.alignment)
    next(path for path in files if "epoch 1" in path.name).unlink()  # as if it had been killed there
    np.testing.assert_array_equal(
        kernel_rotation(FAMILY, DATA, target=2, checkpoints=3, **own).alignment, coarse.alignment
    )


def test_what_rounding_hides_is_not_compared() -> None:
    result = kernel_rotation(LINEAR, DATA, **{**SMALL, "leading": 9})  # the kernel has rank 5
    assert np.isnan(result.growth[:, :, 5:]).all()
    assert np.isfinite(result.headline()["others_growth"].value)


def test_directions_of_eigenvalue_zero_hold_no_energy_and_are_no_target() -> None:
    result = kernel_rotation(LINEAR, DATA, **{**SMALL, "leading": 9, "energy": 20})
    exact = kernel_rotation(LINEAR, DATA, **{**SMALL, "leading": 5, "energy": 5})
    np.testing.assert_allclose(result.energy, exact.energy, rtol=1e-9)  # 20 of any directions would hold nearly all
    np.testing.assert_allclose(result.alignment[:, :, :5], exact.alignment, rtol=1e-9)
    assert np.isnan(result.alignment[:, :, 5:]).all()
    assert [words.split(" have")[0] for words in result.warnings] == [
        "Only the first 5 of the 9 eigenfunctions for the alignments",
        "Only the first 5 of the 20 eigenfunctions for the energy",
    ]
    assert not exact.warnings
    with pytest.raises(ValueError, match=r"has 5 and number 7 was asked for. Pass targets up to 5"):
        kernel_rotation(LINEAR, DATA, **{**SMALL, "leading": 9, "target": 7})
    assert kernel_rotation(LINEAR, DATA, **{**SMALL, "leading": 5, "target": 5, "epochs": 2}).target == 5


def turned(target: float, others: float) -> str:
    example = kernel_rotation(FAMILY, DATA, **{**SMALL, "epochs": 1, "leading": 4, "checkpoints": 2})
    grown = np.ones((1, 2, 4))
    grown[0, 1] = others
    changed = dataclasses.replace(example, alignment=grown, target_alignment=np.array([[1.0, target]]))
    assert isinstance(changed, KernelRotation)
    return changed.sentence()


def test_the_sentence_tells_where_the_kernel_turned() -> None:
    assert "rotated towards the target" in turned(3.0, 1.5)
    assert "rotated away from the target" in turned(1.0, 1.5)
    assert "by 30,000, that of other functions by 1.50" in turned(3e4, 1.5)
    assert "by 3.00, that of other functions by 1.50" in turned(3.0, 1.5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"leading": 31}, "leading must be from 1 to 30, got 31"),
        ({"kernel_samples": 6}, "leading must be from 1 to 6, got 8"),
        ({"energy": 0}, "energy must be from 1 to 30, got 0"),
        ({"target": 9}, "target must be from 1 to 8, got 9"),
        ({"target": 0}, "target must be from 1 to 8, got 0"),
        ({"repeats": 0}, "repeats must be from 1"),
        ({"tolerance": 0.0}, "tolerance must be between 0 and 1, got 0.0"),
        ({"positive": (7,)}, "Labels must be of two classes, got 1"),
        ({"optimiser": "x"}, "optimiser must be one of"),
        ({"readout": "x"}, "readout must be one of"),
        ({"rate": 1e308}, "Training diverged at iteration"),
    ],
)
def test_wrong_settings_are_told_in_one_sentence(change, words) -> None:
    with pytest.raises(ValueError, match=words):
        kernel_rotation(FAMILY, DATA, **{**SMALL, **change})


def test_wrong_data_are_told_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="Labels must be of two classes, got 5"):
        kernel_rotation(FAMILY, data_of(4, classes=5), **SMALL)
    with pytest.raises(ValueError, match="data must have the splits 'train' and 'test', got train"):
        kernel_rotation(FAMILY, Arrays({"train": DATA.splits["train"]}), **SMALL)
