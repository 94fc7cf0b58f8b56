"""The network of equation (1): its outputs, its gradients, its ties, and its law at the start."""

import pytest
import torch
from networks_under_test import normal

from biascope.networks import builder
from biascope.networks.pattern_cnn import pattern_cnn
from biascope.runs.randomness import forked_rng


def built(seed: int = 0, **settings: object) -> torch.nn.Module:
    with forked_rng(seed):
        return pattern_cnn(**settings).double()


def test_outputs_are_those_of_equation_1() -> None:
    network, x = built(channels=2, patch=(2, 3), image_size=(4, 9), k=5, scale=1.0), normal(3, 2, 4, 9)
    w = network.conv.weight.detach().flatten(1)  # (10, 12)
    patches = x.reshape(3, 2, 2, 2, 3, 3).permute(0, 2, 4, 1, 3, 5).reshape(3, 6, 12)
    expected = [sum(max(0, *(w[i] @ p for p in each)) * (1 if i < 5 else -1) for i in range(10)) for each in patches]
    assert torch.allclose(network(x)[:, 0], torch.stack(expected))
    assert [name for name, _ in network.named_parameters()] == ["conv.weight"]


def test_several_outputs_are_networks_side_by_side() -> None:
    network, x = built(outputs=3, patch=2, image_size=4, k=4, scale=1.0), normal(5, 1, 4, 4)
    for output in range(3):
        one = built(patch=2, image_size=4, k=4)
        one.conv.weight.data.copy_(network.conv.weight[8 * output : 8 * (output + 1)])
        assert torch.allclose(network(x)[:, output], one(x)[:, 0])


def test_gradients_are_differences_and_move_the_strongest_patch_alone() -> None:
    network, x = built(patch=2, image_size=6, k=3, scale=1.0), normal(1, 1, 6, 6)
    weight = network.conv.weight
    (gradient,) = torch.autograd.grad(network(x).sum(), [weight])
    direction, step = normal(*weight.shape, seed=1), 1e-6
    with torch.no_grad():
        up, down = ((weight.add_(move * direction), network(x).sum())[1] for move in (step, -2 * step))
    assert float((gradient * direction).sum()) == pytest.approx(float(up - down) / (2 * step), rel=1e-6)


def test_of_equal_patches_the_first_has_the_gradient_and_a_response_of_0_none() -> None:
    network = built(patch=(1, 2), image_size=(3, 2), k=1, scale=1.0)
    network.conv.weight.data.copy_(torch.tensor([[2.0, 2.0], [0.0, -1.0]]).reshape(2, 1, 1, 2))
    x = torch.eye(2, dtype=torch.float64)[[1, 0, 1]].reshape(1, 1, 3, 2)  # patterns 1, 0, 1
    (gradient,) = torch.autograd.grad(network(x).sum(), [network.conv.weight])
    assert gradient.reshape(2, 2).tolist() == [[0.0, 1.0], [0.0, 0.0]]  # w: pattern 1 came first; u: 0 is its strongest


def test_detectors_start_as_small_gaussians() -> None:
    weight = built(channels=3, patch=28, image_size=84).conv.weight.detach()
    assert weight.shape == (40, 3, 28, 28)
    assert float(weight.std()) == pytest.approx(1e-6, rel=0.01)
    assert abs(float(weight.mean())) < 4e-6 / weight.numel() ** 0.5
    assert float((weight.abs() < 1e-6).double().mean()) == pytest.approx(0.6827, abs=0.01)
    assert builder("pattern CNN") is pattern_cnn


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patch": 5}, "patch must divide the image"),
        ({"patch": (1, 0)}, "patch must be a whole number"),
        ({"k": 0}, "k must be a whole number"),
        ({"scale": 0.0}, "scale must be above 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pattern_cnn(**settings)
