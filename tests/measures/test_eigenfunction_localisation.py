import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from networks_under_test import CPU, CPU64, batchnorm_convnet, network_of, normal
from torch import Tensor, nn

from biascope.derivatives.gradients import weight_jacobian
from biascope.editing.heads import Head, headed
from biascope.families.network import Network
from biascope.measures.eigenfunction_localisation import eigenfunction_localisation
from biascope.tasks.task import Arrays

HEAD = Head(normal(3, 2, seed=1), normal(3, seed=2))


def data_of(*shape: int, seed: int, shift: float = 0.0, name: str = "set") -> Arrays:
    return Arrays({"train": (normal(12, *shape, seed=seed) + shift, torch.zeros(12))}, torch.float64, name)


def dense(encoder: Network, head: Head, x: Tensor, inside: int, output: int) -> tuple[np.ndarray, np.ndarray]:
    """Local energies by a whole Jacobian and a whole decomposition."""
    network = headed(encoder, head.first(output + 1))
    last = Head(network.buffers["head_weight"][output:], network.buffers["head_bias"][output:])
    if head.normalised:
        last = dataclasses.replace(last, normalised=True)
    jacobian = weight_jacobian(headed(encoder, last).read("first"), x)
    kernel = (jacobian[:inside] @ jacobian.T).numpy()
    _, values, right = np.linalg.svd(kernel, full_matrices=False)
    kept = values > 1e-5 * values[0]
    weighted = (values[kept, None] ** 2 * right[kept] ** 2).sum(0)
    return (right[kept] ** 2).sum(0), weighted / weighted.sum()


@pytest.mark.parametrize("normalised", [False, True])
def test_it_is_what_a_dense_jacobian_gives(normalised: bool) -> None:
    encoder = network_of(batchnorm_convnet, readout=None)
    head = dataclasses.replace(HEAD, normalised=normalised)
    task, control = data_of(1, 6, 6, seed=3), data_of(1, 6, 6, seed=4, shift=0.5)
    result = eigenfunction_localisation(encoder, head, task, control, run=CPU64)
    x = torch.cat([task.splits["train"][0], control.splits["train"][0]])
    for output in range(3):
        energy, weighted = dense(encoder, head, x, 12, output)
        np.testing.assert_allclose(result.energy[0, output], energy, rtol=1e-6)
        np.testing.assert_allclose(result.weighted[0, output], weighted, rtol=1e-6)
    assert result.energy.shape == (1, 3, 24)
    np.testing.assert_allclose(result.energy.sum(-1), result.ranks, rtol=1e-9)


def test_orthogonal_sets_are_perfectly_localised() -> None:
    encoder = network_of(functools.partial(nn.Linear, 8, 2, bias=False), readout=None)
    x = normal(12, 4)
    task = Arrays({"train": (torch.cat([x, 0 * x], 1), torch.zeros(12))}, torch.float64, "left")
    control = Arrays({"train": (torch.cat([0 * x, x], 1), torch.zeros(12))}, torch.float64, "right")
    result = eigenfunction_localisation(encoder, HEAD, task, control, run=CPU64)
    np.testing.assert_allclose(result.energy[..., 12:], 0, atol=1e-12)
    assert (result.ranks == 4).all()
    for share in (*result.shares(result.energy).values(), *result.shares(result.weighted).values()):
        assert share.value == pytest.approx(1.0)
    assert result.sentence().startswith("100 % (pre-trained weights) of the local energy")
    assert "lies on samples of left. The rest lies on right." in result.sentence()


def test_sets_that_are_one_are_not_localised() -> None:
    encoder = network_of(lambda: nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 2)), readout=None)
    task = data_of(4, seed=3)
    result = eigenfunction_localisation(encoder, HEAD, task, task, run=CPU64)
    np.testing.assert_allclose(result.energy[..., :12], result.energy[..., 12:], rtol=1e-6)
    assert result.shares(result.energy)["pre-trained"].value == pytest.approx(0.5)


def test_sets_further_apart_are_more_localised() -> None:
    encoder = network_of(lambda: nn.Sequential(nn.Linear(4, 60), nn.ReLU(), nn.Linear(60, 2)), readout=None)
    near, far = (
        eigenfunction_localisation(
            encoder, HEAD, data_of(4, seed=3, shift=shift), data_of(4, seed=4, shift=-shift), run=CPU64
        )
        for shift in (0.1, 3.0)
    )
    shares = [result.shares(result.weighted)["pre-trained"].value for result in (near, far)]
    assert shares[1] > shares[0] + 0.1


def test_random_weights_stand_beside() -> None:
    build = lambda: nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 2))  # noqa: E731
    one, two = (network_of(build, seed=seed, readout=None) for seed in (0, 1))
    task, control = data_of(4, seed=3, name="a"), data_of(4, seed=4, name="b")
    both = eigenfunction_localisation(one, HEAD, task, control, random=two, classes=2, run=CPU64)
    alone = eigenfunction_localisation(two, HEAD, task, control, classes=2, run=CPU64)
    assert both.states == ("pre-trained", "random")
    np.testing.assert_allclose(both.energy[1], alone.energy[0])
    assert both.energy.shape == (2, 2, 24)
    assert both.names == ("a", "b")
    assert len(both.plot().axes) == 2


def test_points_are_drawn_by_the_seed_and_kernels_are_kept(tmp_path: Path) -> None:
    encoder = network_of(lambda: nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Linear(20, 2)), readout=None)
    task, control = data_of(4, seed=3), data_of(4, seed=4)
    run = dataclasses.replace(CPU64, folder=tmp_path)
    ask = functools.partial(eigenfunction_localisation, encoder, HEAD, task, control, points=6, run=run)
    one, again, other = ask(), ask(), ask(seed=1)
    np.testing.assert_array_equal(one.energy, again.energy)
    assert not np.array_equal(one.energy, other.energy)
    assert one.points == 6
    assert list(tmp_path.rglob("*.safetensors"))


def test_wrong_settings_are_told_in_one_sentence() -> None:
    encoder = network_of(functools.partial(nn.Linear, 4, 2), readout=None)
    ask = functools.partial(eigenfunction_localisation, encoder, HEAD, data_of(4, seed=3), data_of(4, seed=4), run=CPU)
    with pytest.raises(ValueError, match="classes must be at least 1"):
        ask(classes=0)
    with pytest.raises(ValueError, match="cutoff must be from 0 to 1"):
        ask(cutoff=1.0)
    with pytest.raises(ValueError, match="split must be one of 'train', got 'test'"):
        ask(split="test")
    with pytest.raises(ValueError, match="points must be at least 1"):
        ask(points=0)
