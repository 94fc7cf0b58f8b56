"""Average geometry and its evolution at initialisation: every closed form against automatic differentiation.

Derivatives are those of the networks as they are written down: θ̇ by one vjp of the outputs, the velocity of ∇_x f by one jvp
along it; convolutions slide over padded inputs, with no tap matrix. A closed form passes if the sample mean lies within five of
its own standard errors in every entry (`AGREES`); a misprinted one must miss by twenty or more somewhere (`DISAGREES`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import closed_forms as paper
import closed_forms_geometry as forms
import numpy as np
import pytest
import torch
from scipy.integrate import quad_vec
from torch import Tensor
from torch.func import grad, jvp, vjp, vmap
from torch.nn import functional

from biascope.derivatives.matrices import correlation
from biascope.papers.geometry2025 import models
from biascope.papers.geometry2025.models import halfspace_second_moment
from biascope.results.estimate import jackknife

AGREES, DISAGREES = 5.0, 20.0
STDS = {"weight_std": 0.9, "readout_std": 0.7}

Weights = tuple[Tensor, ...]
Model = Callable[[Weights, Tensor], Tensor]  # (weights of one network, one input) -> scalar

pytestmark = pytest.mark.usefixtures("one_thread")


def normals(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)


def standard_errors_away(samples: Tensor, expected: np.ndarray | Tensor | float) -> float:
    """Largest distance over entries between the sample mean and what is expected, in standard errors of that mean."""
    error = samples.std(dim=0) / math.sqrt(len(samples)) + 1e-12  # entries that are constant by construction
    return float(((samples.mean(dim=0) - torch.as_tensor(expected)).abs() / error).max())


def gradient_outer_products(model: Model, weights: Weights, probes: Tensor) -> Tensor:
    """∇_x f ∇_x fᵀ, one draw of the weights and one probe at a time: (draws, D, D)."""
    gradients = vmap(grad(model, argnums=1))(weights, probes).flatten(1)
    return gradients[:, :, None] * gradients[:, None, :]


def evolutions(model: Model, weights: Weights, probes: Tensor, data: Tensor, labels: Tensor) -> Tensor:
    """Definition 2.2 before its average, for ½ Σ (f − y)², one draw of the weights and one probe at a time: (draws, D, D)."""

    def one(start: Weights, probe: Tensor) -> Tensor:
        outputs, pull_back = vjp(lambda given: vmap(model, in_dims=(None, 0))(given, data), start)
        (velocity,) = pull_back(labels - outputs)
        gradient, change = jvp(lambda given: grad(model, argnums=1)(given, probe), (start,), (velocity,))
        half = torch.outer(change.flatten(), gradient.flatten())
        return half + half.T

    return vmap(one)(weights, probes)


def linear(weights: Weights, x: Tensor) -> Tensor:
    return weights[0] @ x


def relu_network(weights: Weights, x: Tensor) -> Tensor:
    *layers, readout = weights
    for layer in layers:
        x = torch.relu(layer @ x)
    return readout @ x


def patches(image: Tensor, kernel: int, padding: str) -> Tensor:
    """(positions, taps), by padding and sliding."""
    axes = image.ndim
    before, after = (kernel - 1) // 2, kernel // 2
    for axis in range(axes if padding != "valid" else 0):
        length = image.shape[axis]
        sides = image.narrow(axis, length - before, before), image.narrow(axis, 0, after)
        scale = 1.0 if padding == "circular" else 0.0
        image = torch.cat([scale * sides[0], image, scale * sides[1]], axis)
    for axis in range(axes):
        positions = image.shape[axis] - kernel + 1
        image = torch.stack([image.narrow(axis, tap, positions) for tap in range(kernel)], dim=-1)
    return image.flatten(axes).flatten(0, axes - 1)


def channel_patches(images: Tensor, kernel: int, padding: str) -> Tensor:
    """(positions, channels × taps)."""
    return torch.cat([patches(image, kernel, padding) for image in images], dim=1)


def convolutional_network(kernel: int, padding: str) -> Model:
    """ReLU convolutions of images (channels, …), and one readout weight for each unit of the last."""

    def model(weights: Weights, x: Tensor) -> Tensor:
        *layers, readout = weights
        for layer in layers:
            x = torch.relu(layer @ channel_patches(x, kernel, padding).T)  # (channels, positions)
        return (readout * x).sum()

    return model


def pooled_network(kernel: int, padding: str) -> Model:
    """A linear convolution of images (channels, …), averaged over positions, and a readout of its channels."""

    def model(weights: Weights, x: Tensor) -> Tensor:
        phi, readout = weights
        return readout @ (phi @ channel_patches(x, kernel, padding).T).mean(dim=1)

    return model


# Convolutions as matrices


@pytest.mark.parametrize("padding", ["valid", "zero", "circular"])
@pytest.mark.parametrize(("shape", "kernel", "stride"), [((7,), 3, 1), ((6,), 2, 1), ((5, 7), 3, 1), ((7, 5), 3, 2)])
def test_tap_matrices_are_convolutions(shape, kernel, stride, padding):
    normal = normals(1)
    images, weight = normal(1, 2, *shape), normal(1, 2, *(kernel,) * len(shape))
    sides = ((kernel - 1) // 2, kernel // 2) * len(shape) if padding != "valid" else (0, 0) * len(shape)
    padded = functional.pad(images, sides, mode="circular" if padding == "circular" else "constant")
    convolution = functional.conv1d if len(shape) == 1 else functional.conv2d
    wanted = convolution(padded, weight, stride=stride).ravel()
    settings = {"padding": padding, "stride": stride, "channels": 2}
    taps = forms.tap_matrices(shape, kernel, **settings)
    np.testing.assert_allclose(np.einsum("jqt,t,q->j", taps, weight.ravel(), images.ravel()), wanted, atol=1e-12)
    np.testing.assert_allclose(forms.mean_tap_matrix(shape, kernel, **settings), taps.mean(axis=0))
    np.testing.assert_array_equal(forms.patch_incidence(shape, kernel, **settings), taps.sum(axis=2))
    if stride == 1:
        sliding = channel_patches(images[0], kernel, padding) @ weight.ravel()
        np.testing.assert_allclose(sliding, wanted, atol=1e-12)


def test_the_mean_tap_matrix_of_the_figures_is_that_of_a_convolution_without_padding():
    for shape, kernel, channels in [((7,), 3, 1), ((6,), 6, 2), ((5, 7), 3, 2)]:
        found = models.mean_tap_matrix(shape, kernel, channels=channels)
        np.testing.assert_array_equal(found, forms.mean_tap_matrix(shape, kernel, channels=channels))


# G


def test_mlp_geometry():
    normal = normals(2)
    draws, settings = 40_000, {"weight_stds": [0.8, 0.9], "readout_std": 0.6}
    weights = (0.8 * normal(draws, 5, 4), 0.9 * normal(draws, 3, 5), 0.6 * normal(draws, 3))
    samples = gradient_outer_products(relu_network, weights, normal(draws, 4))
    assert standard_errors_away(samples, forms.mlp_geometry(4, [5, 3], **settings)) < AGREES
    assert standard_errors_away(samples, paper.mlp_geometry_as_printed(4, [5, 3], **settings)) > DISAGREES


def test_geometry_needs_no_gaussian_and_does_not_see_biases():
    def model(weights: Weights, x: Tensor) -> Tensor:
        layer, bias, readout = weights
        return readout @ torch.relu(layer @ x + bias)

    generator = torch.Generator().manual_seed(3)
    shapes = [(40_000, 5, 3), (40_000, 5), (40_000, 5)]
    weights = tuple(2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1 for shape in shapes)
    probe = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64).expand(40_000, 3)
    samples = gradient_outer_products(model, weights, probe)
    right = forms.mlp_geometry(3, [5], weight_stds=[3**-0.5], readout_std=3**-0.5)
    assert standard_errors_away(samples, right) < AGREES


@pytest.mark.parametrize(("padding", "positions"), [("valid", (5, 3)), ("zero", (7, 7)), ("circular", (7, 7))])
def test_convolution_geometry_is_the_coverage(padding, positions):
    normal = normals(4)
    draws = 40_000
    weights = (0.8 * normal(draws, 3, 3), 0.9 * normal(draws, 2, 9), 0.6 * normal(draws, 2, positions[1]))
    samples = gradient_outer_products(convolutional_network(3, padding), weights, normal(draws, 1, 7))
    incidences = [forms.patch_incidence((length,), 3, padding=padding) for length in (7, positions[0])]
    right = forms.convolution_geometry(incidences, [3, 2], weight_stds=[0.8, 0.9], readout_std=0.6)
    assert standard_errors_away(samples, right) < AGREES
    best_multiple_of_identity = np.trace(right) / 7 * np.eye(7)
    if padding == "circular":
        np.testing.assert_allclose(right, best_multiple_of_identity)
    else:
        assert standard_errors_away(samples, best_multiple_of_identity) > DISAGREES


def test_one_convolution_counts_the_patches_of_each_input():
    geometry = forms.convolution_geometry([forms.patch_incidence((7,), 3)], [4], weight_stds=[0.5], readout_std=2.0)
    np.testing.assert_allclose(np.diag(geometry), 4 * 0.5**2 / 2 * 4 * np.array([1, 2, 3, 3, 3, 2, 1]))


def test_convolution_geometry_in_the_plane_with_two_channels():
    normal = normals(5)
    draws = 20_000
    weights = (0.8 * normal(draws, 3, 8), 0.6 * normal(draws, 3, 6))
    samples = gradient_outer_products(convolutional_network(2, "valid"), weights, normal(draws, 2, 3, 4))
    incidence = forms.patch_incidence((3, 4), 2, channels=2)
    right = forms.convolution_geometry([incidence], [3], weight_stds=[0.8], readout_std=0.6)
    assert standard_errors_away(samples, right) < AGREES
    assert standard_errors_away(samples, np.trace(right) / 24 * np.eye(24)) > DISAGREES


@pytest.mark.parametrize("padding", ["valid", "zero", "circular"])
@pytest.mark.parametrize(("shape", "kernel"), [((8,), 3), ((3, 4), 2)])
def test_pooled_convolution_geometry_is_not_diagonal(shape, kernel, padding):
    normal = normals(6)
    draws, taps = 20_000, kernel ** len(shape)
    weights = (0.8 * normal(draws, 1, taps), torch.ones(draws, 1, dtype=torch.float64))
    samples = gradient_outer_products(pooled_network(kernel, padding), weights, normal(draws, 1, *shape))
    right = forms.pooled_convolution_geometry(forms.mean_tap_matrix(shape, kernel, padding=padding), weight_std=0.8)
    assert standard_errors_away(samples, right) < AGREES
    matrices = forms.tap_matrices(shape, kernel, padding=padding)
    printed = paper.pooled_convolution_geometry_as_printed(matrices, weight_std=0.8)
    assert standard_errors_away(samples, printed) > DISAGREES
    shifted = matrices[0] @ matrices[1].T
    assert np.trace(shifted) == 0 < shifted.sum()
    assert np.linalg.matrix_rank(right) == (1 if padding == "circular" else taps)


@pytest.mark.parametrize(("length", "kernel"), [(3, 2), (8, 3), (8, 6), (9, 9)])
def test_pooled_geometry_has_low_rank_and_is_banded_only_with_few_positions(length, kernel):
    overlap, positions = forms.tap_overlap(length, kernel), length - kernel + 1
    pooled = positions * forms.mean_tap_matrix((length,), kernel)
    np.testing.assert_allclose(overlap, pooled @ pooled.T)
    assert np.linalg.matrix_rank(overlap) == kernel
    distance = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
    np.testing.assert_array_equal(overlap > 0, distance < positions)
    interior = slice(kernel - 1, length - kernel + 1)
    assert (overlap[interior, interior] == kernel).all()
    if kernel >= positions:  # the set of positions, correlated with itself
        middle = slice(positions - 1, kernel)
        np.testing.assert_array_equal(overlap[middle, middle], np.maximum(0, positions - distance)[middle, middle])
    np.testing.assert_array_equal(np.diag(overlap), forms.patch_incidence((length,), kernel).sum(axis=0))


def test_example_geometry():
    normal = normals(7)
    weights = (0.8 * normal(40_000, 1, 2), torch.ones(40_000, 1, dtype=torch.float64))
    samples = gradient_outer_products(pooled_network(2, "valid"), weights, normal(40_000, 1, 3))
    right = forms.pooled_convolution_geometry(forms.mean_tap_matrix((3,), 2), weight_std=0.8)
    assert standard_errors_away(samples, right) < AGREES
    assert standard_errors_away(samples, paper.example_geometry_as_printed(weight_std=0.8)) > DISAGREES
    vectors = np.array([[1.0, 2.0, 1.0], [-1.0, 0.0, 1.0], [1.0, -1.0, 1.0]]).T
    np.testing.assert_allclose(right @ vectors, 0.8**2 / 4 * vectors * [3.0, 1.0, 0.0], atol=1e-15)


# Batch normalisation


def patch_covariances(seed: int) -> list[np.ndarray]:
    normal, found = normals(seed), []
    for _ in range(2):
        data = normal(60, 5) * torch.linspace(1, 1.6, 5, dtype=torch.float64)
        found.append((data.mT @ data / len(data)).numpy())
    return found


def test_normalised_patch_bounds():
    covariances, normal = patch_covariances(8), normals(9)
    for first, second in ((covariances[0], covariances[0]), tuple(covariances)):
        theta = 0.05 * normal(100_000, 5)  # a small scale, to tell standard deviations from variances
        products = theta[:, :, None] * theta[:, None, :]
        variances = [((theta @ torch.as_tensor(c)) * theta).sum(dim=1) for c in (first, second)]
        moment = (products / (variances[0] * variances[1]).sqrt()[:, None, None]).mean(dim=0)
        eigenvalues = torch.linalg.eigvalsh(moment)
        lower, upper = forms.normalised_patch_bounds(first, second)
        assert lower < float(eigenvalues[0]) <= float(eigenvalues[-1]) < upper
        printed_lower, printed_upper = paper.normalised_patch_bounds_as_printed(first, second)
        assert float(eigenvalues[-1]) < 0.5 * printed_lower
        with_variances = (products / (variances[0] * variances[1])[:, None, None]).mean(dim=0)
        assert float(torch.linalg.eigvalsh(with_variances)[0]) > 2 * printed_upper


def test_normalised_second_moment():
    covariance = np.diag([0.01, 1.0, 30.0]) + 0.05
    theta = 0.3 * normals(10)(100_000, 3)
    variances = ((theta @ torch.as_tensor(covariance)) * theta).sum(dim=1)
    samples = theta[:, :, None] * theta[:, None, :] / variances[:, None, None]
    right = forms.normalised_second_moment(covariance)
    assert standard_errors_away(samples, right) < AGREES
    assert np.trace(right @ covariance) == pytest.approx(1.0)  # as it must be: E[θᵀCθ/θᵀCθ]
    lower, upper = forms.normalised_patch_bounds(covariance, covariance)
    assert lower < np.linalg.eigvalsh(right)[0] <= np.linalg.eigvalsh(right)[-1] < upper
    for size in (1, 2, 7):  # lemma A.7
        np.testing.assert_allclose(forms.normalised_second_moment(3 * np.eye(size)), np.eye(size) / (3 * size))


def test_geometry_after_batch_normalisation_of_channels():
    """torch's batch normalisation, with the statistics of a data set: G has the taps of theorem A.3 and another middle."""
    normal = normals(11)
    draws, data = 20_000, normal(40, 1, 5).cumsum(dim=2)  # neighbours alike: the sum of two taps varies most
    data = data - data.mean(dim=0)
    kernels = normal(draws, 1, 2)
    variances, means = torch.var_mean(functional.conv1d(data, kernels), dim=(0, 2), correction=0)  # a network each

    def model(weights: Weights, x: Tensor) -> Tensor:
        kernel, mean, variance, readout = weights
        response = (patches(x[0], 2, "valid") @ kernel[0])[None, None]
        return readout * functional.batch_norm(response, mean[None], variance[None], eps=0.0).mean()

    weights = (kernels, means, variances, 0.7 * normal(draws))
    samples = gradient_outer_products(model, weights, normal(draws, 1, 5))
    cut = torch.cat([patches(sample[0], 2, "valid") for sample in data])
    middle = forms.normalised_second_moment((cut.T @ cut / len(cut)).numpy())
    taps = forms.mean_tap_matrix((5,), 2)
    assert standard_errors_away(samples, 0.7**2 * taps @ middle @ taps.T) < AGREES
    assert standard_errors_away(samples, 0.7**2 * np.trace(middle) / 2 * taps @ taps.T) > DISAGREES


# Half-spaces


def test_halfspace_second_moment():
    normal = normals(12)
    first, second, points = normal(4), normal(4), normal(200_000, 4)
    inside = ((points @ first > 0) & (points @ second > 0)).double()
    samples = inside[:, None, None] * points[:, :, None] * points[:, None, :]
    right = halfspace_second_moment(first.numpy(), second.numpy())
    printed = paper.halfspace_second_moment_as_printed(first.numpy(), second.numpy())
    assert standard_errors_away(samples, right) < AGREES
    assert standard_errors_away(samples, printed) > DISAGREES
    np.testing.assert_allclose(halfspace_second_moment(right[0], 2 * right[0]), np.eye(4) / 2, atol=1e-7)
    np.testing.assert_allclose(halfspace_second_moment(right[0], -right[0]), np.zeros((4, 4)), atol=1e-7)


def test_halfspace_coefficients():
    """Of aaᵀ, ccᵀ and acᵀ + caᵀ in K − pI: (12), (19) and the line after (23)."""
    cosine = -0.6
    other = torch.tensor([cosine, 0.8], dtype=torch.float64)
    points = normals(13)(400_000, 2)
    inside = (points[:, 0] > 0) & (points @ other > 0)
    alpha, beta = points.unbind(dim=1)
    samples = torch.stack([alpha**2 - 1, beta**2 - 1, alpha * beta], dim=1) * inside[:, None]
    moment = halfspace_second_moment(np.array([1.0, 0.0]), other.numpy())
    rest = moment - (math.pi - math.acos(cosine)) / (2 * math.pi) * np.eye(2)
    assert standard_errors_away(samples, np.array([rest[0, 0], rest[1, 1], rest[0, 1]])) < AGREES
    printed = paper.halfspace_coefficients_as_printed(cosine)
    assert standard_errors_away(samples[:, :1], np.array(printed[:1])) > DISAGREES
    assert standard_errors_away(samples[:, 1:2], np.array(printed[1:2])) > DISAGREES
    assert printed[1] == pytest.approx(-rest[1, 1])
    assert printed[2] == pytest.approx(rest[0, 1])


def test_dropping_the_plane_of_the_halfspaces_is_wrong_in_every_dimension():
    """Entry by entry the difference vanishes with D; applied to the data vector it does not."""
    for size in (10, 1000):
        first, second = np.ones(size), np.tile([1.0, -1.0], size // 2)
        right = halfspace_second_moment(first, second)
        printed = paper.halfspace_second_moment_as_printed(first, second)
        assert np.abs(right - printed).max() < 1 / size
        missing = np.linalg.norm((right - printed) @ second) / np.linalg.norm(printed @ second)
        assert missing == pytest.approx(2 / math.pi)


@pytest.mark.parametrize("size", [2, 3, 20])
def test_halfspace_probability_moments(size):
    """p is counted: a point in the plane of a and b lies in both half-spaces for a share of all its directions."""
    normal = normals(14)
    first, second = normal(20_000, size), normal(size)
    cosines = (first @ second / first.norm(dim=1) / second.norm()).clamp(-1, 1)
    turn = (torch.arange(2000, dtype=torch.float64) + 0.5) * math.pi / 1000
    both = (turn.cos() > 0) & ((turn - torch.arccos(cosines)[:, None]).cos() > 0)
    probabilities = both.double().mean(dim=1)
    samples = torch.stack([probabilities, probabilities**2], dim=1)
    assert standard_errors_away(samples, np.array(models.halfspace_probability_moments(size))) < AGREES
    assert standard_errors_away(samples, np.array(paper.halfspace_probability_moments_as_printed(size))) > DISAGREES


# Delta


def scatter(data: Tensor) -> np.ndarray:
    flat = data.flatten(1)
    return (flat.mT @ flat).numpy()


def test_linear_evolution():
    normal = normals(15)
    data, labels = normal(5, 3), normal(5)
    samples = evolutions(linear, (0.7 * normal(20_000, 3),), normal(20_000, 3), data, labels)
    assert standard_errors_away(samples, forms.linear_evolution(scatter(data), weight_std=0.7)) < AGREES
    assert standard_errors_away(samples, paper.linear_evolution_as_printed(data.numpy(), weight_std=0.7)) > DISAGREES


def mlp_weights(normal: Callable[..., Tensor], draws: int, width: int, size: int) -> Weights:
    return (STDS["weight_std"] * normal(draws, width, size), STDS["readout_std"] * normal(draws, width))


@pytest.mark.parametrize(("size", "width"), [(2, 4), (3, 6), (8, 8)])
def test_mlp_evolution(size, width):
    normal = normals(16)
    draws = 100_000
    data, labels = normal(2, size), normal(2)
    samples = evolutions(relu_network, mlp_weights(normal, draws, width, size), normal(draws, size), data, labels)
    assert standard_errors_away(samples, models.mlp_evolution(scatter(data), width, **STDS)) < AGREES
    assert standard_errors_away(samples, paper.mlp_evolution_as_printed(data.numpy(), width, **STDS)) > DISAGREES


@pytest.mark.parametrize("size", [2, 3, 10, 101])
def test_mlp_evolution_coefficients(size):
    """The average over the direction of the probe, as an integral over its angle t with the data."""
    data, other = np.eye(size)[0], np.eye(size)[1]

    def averaged(angle: float) -> np.ndarray:
        probe = math.cos(angle) * data + math.sin(angle) * other
        image = halfspace_second_moment(probe, data) @ data  # in the plane of both; the rest by symmetry
        across = image[1] ** 2 / (size - 1)
        probability = (math.pi - angle) / (2 * math.pi)
        return math.sin(angle) ** (size - 2) * np.array([1.0, image[0] ** 2 - across, probability * image[0], across])

    total, *moments = quad_vec(averaged, 0.0, math.pi, epsabs=1e-13, epsrel=1e-12, limit=1000)[0]
    np.testing.assert_allclose(models.mlp_evolution_coefficients(size), np.array(moments) / total, rtol=1e-8)


def test_mlp_evolution_approaches_its_leading_order(monkeypatch):
    errors, sizes = [], (16, 64, 256)
    for size in sizes:
        data = normals(17)(3, size)
        exact = models.mlp_evolution(scatter(data), 50, weight_std=1.0, readout_std=0.8)
        with monkeypatch.context() as patch:
            limits = (1 / 16, 1 / 16, 1 / (4 * math.pi**2 * size))
            patch.setattr(models, "mlp_evolution_coefficients", lambda _, limits=limits: limits)
            leading = models.mlp_evolution(scatter(data), 50, weight_std=1.0, readout_std=0.8)
        printed = paper.mlp_evolution_as_printed(data.numpy(), 50, weight_std=1.0, readout_std=0.8)
        errors.append(np.linalg.norm(exact - leading) / np.linalg.norm(exact))
        assert np.linalg.norm(exact - printed) > 2 * np.linalg.norm(exact)
    assert np.polyfit(np.log(sizes), np.log(errors), 1)[0] == pytest.approx(-1, abs=0.15)


def test_mlp_evolution_tends_to_the_data_covariance_only_for_low_rank_or_isotropic_data():
    def alignment(eigenvalues: np.ndarray, width: int) -> float:
        return models.mlp_alignment(np.diag(eigenvalues), width, weight_std=1.0, readout_std=1.0)

    infinite = 10**9
    for size in (64, 256):
        assert alignment(np.ones(size), 100) == pytest.approx(1.0)
        half = np.repeat([1.0, 0.0], size // 2)
        # S + (2/π²)(tr S/D) I has eigenvalues 1 + 1/π² and 1/π² here: the limit is not 1
        limit = (1 + math.pi**-2) / math.hypot(1 + math.pi**-2, math.pi**-2)
        assert alignment(half, infinite) == pytest.approx(limit, abs=0.1 / size)
    # one data direction: 1 − Corr falls like 1/D at infinite width, and grows with D at a fixed one
    one = [1 - alignment(np.eye(size)[0], infinite) for size in (64, 256)]
    assert one[0] / one[1] == pytest.approx(4, rel=0.1)
    assert alignment(np.eye(512)[0], 8) < alignment(np.eye(16)[0], 8) < 1


@pytest.mark.parametrize("padding", ["valid", "circular"])
@pytest.mark.parametrize(("shape", "kernel"), [((1, 5), 3), ((2, 4), 2), ((1, 3, 3), 2)])
def test_pooled_convolution_evolution(shape, kernel, padding):
    normal = normals(18)
    draws, channels, (inputs, *lengths) = 60_000, 2, shape
    data, labels = normal(2, *shape), normal(2)
    weights = mlp_weights(normal, draws, channels, inputs * kernel ** len(lengths))
    samples = evolutions(pooled_network(kernel, padding), weights, normal(draws, *shape), data, labels)
    taps = forms.mean_tap_matrix(lengths, kernel, padding=padding, channels=inputs)
    assert (
        standard_errors_away(samples, models.pooled_convolution_evolution(scatter(data), taps, channels, **STDS))
        < AGREES
    )
    matrices = forms.tap_matrices(lengths, kernel, padding=padding, channels=inputs)
    printed = paper.pooled_convolution_evolution_as_printed(data.flatten(1).numpy(), matrices, channels, **STDS)
    assert standard_errors_away(samples, printed) > DISAGREES


def test_pooled_convolution_evolution_aligns_like_one_over_width_squared():
    covariance, taps = scatter(normals(19)(4, 8)), forms.mean_tap_matrix((8,), 3)
    widths = np.array([32, 128, 512, 2048])
    gaps = np.array([1 - models.pooled_convolution_alignment(covariance, taps, int(n), **STDS) for n in widths])
    assert np.polyfit(np.log(widths), np.log(gaps), 1)[0] == pytest.approx(-2, abs=0.1)
    rate = forms.pooled_convolution_misalignment_rate(covariance, taps, **STDS)
    np.testing.assert_allclose(widths[-1] ** 2 * gaps[-1], rate, rtol=0.01)
    errors = np.abs(widths**2 * gaps / rate - 1)
    assert np.polyfit(np.log(widths), np.log(errors), 1)[0] == pytest.approx(-1, abs=0.1)


def test_a_readout_scaled_by_its_width_postpones_the_law():
    """Variances 1/d and 1/n, as common initialisations have them: the gap first grows, and falls like n⁻² only for n ≫ d."""
    covariance, taps = scatter(normals(19)(4, 40)), forms.mean_tap_matrix((40,), 30)
    stds = [{"weight_std": 30**-0.5, "readout_std": n**-0.5} for n in (1, 4, 10**5)]
    one, four, many = (
        1 - models.pooled_convolution_alignment(covariance, taps, n, **pair)
        for n, pair in zip((1, 4, 10**5), stds, strict=True)
    )
    assert many < one < four
    rate = forms.pooled_convolution_misalignment_rate(covariance, taps, weight_std=1.0, readout_std=0.0)
    assert 10**10 * many == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize("channels", [1, 4])
def test_sampled_correlations_are_the_closed_form_and_negative(channels):
    """Corr(Δ, GSG) of networks, with the jackknife's standard error over 20 groups of draws."""
    normal = normals(20)
    draws, data, labels = 60_000, normal(3, 1, 6), normal(3)
    weights = mlp_weights(normal, draws, channels, 3)
    samples = evolutions(pooled_network(3, "valid"), weights, normal(draws, 1, 6), data, labels)
    taps = forms.mean_tap_matrix((6,), 3)
    geometry = forms.pooled_convolution_geometry(taps, channels, **STDS)
    target = torch.as_tensor(geometry @ scatter(data) @ geometry)
    sums = samples.reshape(20, -1, 6, 6).sum(dim=1)
    left_out = [correlation(sums.sum(dim=0) - group, target) for group in sums]
    measured = jackknife(correlation(sums.sum(dim=0), target), left_out)
    expected = -models.pooled_convolution_alignment(scatter(data), taps, channels, **STDS)
    assert abs(measured.value - expected) < AGREES * measured.standard_error
    assert 1 + expected > AGREES * measured.standard_error  # narrow widths are not aligned, and the sample can tell


# Proposition A.1, and the sign


def uniform_readout_network(normal: Callable[..., Tensor], draws: int) -> Weights:
    first, second = 0.9 * normal(draws, 4, 3), 0.8 * normal(draws, 3, 4)
    return first, second, 2 * torch.special.ndtr(normal(draws, 3)) - 1


@pytest.mark.parametrize(
    ("model", "draw", "shape"),
    [
        (linear, lambda normal, draws: (0.7 * normal(draws, 3),), (3,)),
        (relu_network, lambda normal, draws: mlp_weights(normal, draws, 4, 3), (3,)),
        (relu_network, uniform_readout_network, (3,)),
        (pooled_network(2, "valid"), lambda normal, draws: mlp_weights(normal, draws, 3, 2), (1, 4)),
    ],
    ids=["linear", "MLP", "deep MLP, uniform readout", "pooled convolution"],
)
def test_labels_drop_out_of_the_evolution(model, draw, shape):
    """The same networks and probes with two sets of labels: each moves otherwise, their average does not.

    Weights that are not centred tell the labels apart.
    """
    normal = normals(21)
    draws = 20_000
    data, probes, weights = normal(3, *shape), normal(draws, *shape), draw(normal, draws)
    labels = torch.tensor([[1.0, -1.0, 2.0], [-3.0, 0.0, 1.0]], dtype=torch.float64)

    def difference(weights: Weights) -> Tensor:
        first, second = (evolutions(model, weights, probes, data, given) for given in labels)
        return first - second

    changes = difference(weights)
    assert float(changes.std(dim=0).min()) > 0.01
    assert standard_errors_away(changes, 0.0) < AGREES
    assert standard_errors_away(difference(tuple(part + 0.5 for part in weights)), 0.0) > DISAGREES


@pytest.mark.parametrize("name", ["linear CNN", "MLP"])
def test_geometry_turns_away_from_the_data_under_squared_error(name):
    """Ten small steps of gradient descent on 20 groups of 500 networks: Corr(G_t, G S G) falls in the mean.

    Delta is negative along G S G (CNN) or S (MLP) and otherwise a multiple of G, so the cosine must fall at first.
    """
    normal = normals(22)
    shape, width, model = ((6,), 8, relu_network) if name == "MLP" else ((1, 6), 4, pooled_network(3, "valid"))
    data, labels, probes = normal(4, *shape), normal(4), normal(10_000, *shape)
    weights = (normal(10_000, width, 6 if name == "MLP" else 3), normal(10_000, width))
    target = torch.as_tensor(scatter(data))
    if name != "MLP":
        geometry = torch.as_tensor(forms.pooled_convolution_geometry(forms.mean_tap_matrix((6,), 3), weight_std=1.0))
        target = geometry @ target @ geometry

    def loss(weights: Weights) -> Tensor:
        return 0.5 * ((vmap(model, in_dims=(None, 0))(weights, data) - labels) ** 2).sum()

    def alignments(weights: Weights) -> Tensor:
        outer = gradient_outer_products(model, weights, probes).reshape(20, 500, 6, 6).mean(dim=1)
        return (outer * target).sum(dim=(1, 2)) / (outer.norm(dim=(1, 2)) * target.norm())

    before = alignments(weights)
    for _ in range(10):
        slopes = vmap(grad(loss))(weights)
        weights = tuple(part - 1e-3 * slope for part, slope in zip(weights, slopes, strict=True))
    change = alignments(weights) - before
    assert float(change.mean()) < -AGREES * float(change.std()) / math.sqrt(20)
