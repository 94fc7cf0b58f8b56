"""Every closed form against Monte Carlo, and every misprinted one failing.

Derivatives come from automatic differentiation of the model as it is written down, never from the formulas used in the
derivations. A closed form passes if the sample mean lies within five of its own standard errors in every entry; a
misprinted one must miss by at least twenty somewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import closed_forms as oracle
import closed_forms_pooling as forms
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap
from torch.nn import functional

from biascope.measures.pooling_theory import models as pooling

AGREES, DISAGREES = 5.0, 20.0

pytestmark = pytest.mark.usefixtures("one_thread")
Params = tuple[Tensor, ...]
Model = Callable[[Params, Tensor], Tensor]  # (weights of one network, one input) -> scalar


def normals(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)


def standard_errors_away(samples: Tensor | np.ndarray, expected: Tensor | np.ndarray | float) -> float:
    """Largest distance over entries between the sample mean and what is expected, in standard errors of that mean."""
    values = torch.as_tensor(samples)
    error = values.std(dim=0) / math.sqrt(len(values)) + 1e-12  # entries that are constant by construction
    return float(((values.mean(dim=0) - torch.as_tensor(expected)).abs() / error).max())


def gradient_outer_products(model: Model, params: Params, inputs: Tensor) -> Tensor:
    """grad grad^T for each draw of the weights, at one input for all or at one for each; (draws, D, D)."""
    gradients = vmap(grad(model, argnums=1), in_dims=(0, None if inputs.ndim == 1 else 0))(params, inputs)
    return gradients[:, :, None] * gradients[:, None, :]


def mixed_derivatives(model: Model, params: Params, inputs: Tensor) -> Tensor:
    """d^2 f / dx dtheta for each draw; (draws, D, p)."""
    blocks = vmap(jacrev(grad(model, argnums=1), argnums=0), in_dims=(0, None))(params, inputs)
    return torch.cat([block.flatten(start_dim=2) for block in blocks], dim=2)


def mixed_grams(model: Model, params: Params, inputs: Tensor) -> Tensor:
    mixed = mixed_derivatives(model, params, inputs)
    return mixed @ mixed.mT


def linear(params: Params, x: Tensor) -> Tensor:
    return params[0] @ x


def relu_layer(params: Params, x: Tensor) -> Tensor:
    theta, phi = params
    return theta @ torch.relu(phi @ x)


# ---------------------------------------------------------------------------------------------------------------------
# Models of pooling
# ---------------------------------------------------------------------------------------------------------------------

PREFILTER = torch.tensor([1.0, 0.8, -0.5, 0.3, 0.9, -0.2], dtype=torch.float64)
STRIDE, THETA_STD, PHI_STD = 3, 0.7, 1.4
FOLDING = torch.eye(2, dtype=torch.float64).repeat(1, STRIDE) / math.sqrt(STRIDE)  # A, written down again
LAWS = {"theta_std": THETA_STD, "phi_std": PHI_STD}


def linear_pooling(params: Params, x: Tensor) -> Tensor:
    theta, phi = params
    return theta @ FOLDING @ (PREFILTER * phi * x)


def nonlinear_pooling(params: Params, x: Tensor) -> Tensor:
    theta, phi = params
    return theta @ FOLDING @ (PREFILTER * torch.relu(phi * x))


def pooling_weights(draws: int, seed: int) -> Params:
    normal = normals(seed)
    return THETA_STD * normal(draws, 2), PHI_STD * normal(draws, 6)


def test_linear_model_is_isotropic():
    weights = (0.6 * normals(1)(20_000, 5),)
    samples = gradient_outer_products(linear, weights, normals(2)(5))
    assert standard_errors_away(samples, forms.linear_gradient_covariance(5, weight_std=0.6)) < AGREES


def test_linear_pooling_gradient_covariance():
    samples = gradient_outer_products(linear_pooling, pooling_weights(50_000, 3), normals(4)(6))
    prefilter = PREFILTER.numpy()
    right = forms.linear_pooling_gradient_covariance(prefilter, STRIDE, **LAWS)
    printed = oracle.linear_pooling_gradient_covariance_as_printed(prefilter, STRIDE, **LAWS)
    assert standard_errors_away(samples, right) < AGREES
    assert standard_errors_away(samples, printed) > DISAGREES


def test_linear_pooling_mixed_gram():
    samples = mixed_grams(linear_pooling, pooling_weights(20_000, 5), normals(6)(6))
    prefilter = PREFILTER.numpy()
    right = forms.linear_pooling_mixed_gram(prefilter, STRIDE, **LAWS)
    printed = oracle.linear_pooling_mixed_gram_as_printed(prefilter, STRIDE, **LAWS)
    assert standard_errors_away(samples, right) < AGREES
    assert standard_errors_away(samples, printed) > DISAGREES


def test_average_of_the_mixed_operator_vanishes_where_its_gram_converges():
    right = torch.as_tensor(forms.linear_pooling_mixed_gram(PREFILTER.numpy(), STRIDE, **LAWS))
    mixed = mixed_derivatives(linear_pooling, pooling_weights(10_000, 7), normals(8)(6))
    operator_errors, gram_errors = [], []
    for draws in (10, 100, 10_000):
        average = mixed[:draws].mean(dim=0)
        gram = (mixed[:draws] @ mixed[:draws].mT).mean(dim=0)
        operator_errors.append(float((average @ average.mT - right).norm() / right.norm()))
        gram_errors.append(float((gram - right).norm() / right.norm()))
    assert min(operator_errors[1:]) > 0.95
    assert gram_errors[-1] < 0.03 < gram_errors[0]


def test_monte_carlo_error_falls_like_one_over_root_n():
    right = torch.as_tensor(forms.linear_pooling_gradient_covariance(PREFILTER.numpy(), STRIDE, **LAWS))
    sizes, repeats = (100, 400, 1600), 40
    samples = gradient_outer_products(linear_pooling, pooling_weights(sizes[-1] * repeats, 9), normals(10)(6))
    errors = []
    for size in sizes:
        means = samples[: size * repeats].reshape(repeats, size, 6, 6).mean(dim=1)
        errors.append(float(((means - right) ** 2).sum(dim=(1, 2)).mean().sqrt()))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.1)


@pytest.fixture(scope="module")
def loss_hessians() -> dict[str, Tensor]:
    """Blocks of the Hessian of (y - f)^2 over weights and data x = epsilon y e_1 + w; epsilon 1.3, sigma 0.7."""
    draws = 50_000
    normal = normals(11)
    labels = torch.sign(normal(draws))
    inputs = 0.7 * normal(draws, 6)
    inputs[:, 1] += 1.3 * labels

    def loss(theta: Tensor, phi: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return (y - linear_pooling((theta, phi), x)) ** 2

    blocks = vmap(jacrev(jacrev(loss, argnums=(0, 1)), argnums=(0, 1)))(*pooling_weights(draws, 12), inputs, labels)
    return {"theta": blocks[0][0], "cross": blocks[0][1], "phi": blocks[1][1]}


def test_loss_hessian_phi(loss_hessians):
    settings = {"epsilon": 1.3, "sigma": 0.7, "theta_std": THETA_STD}
    right = pooling.loss_hessian_phi(PREFILTER.numpy(), STRIDE, 1, **settings)
    printed = oracle.loss_hessian_phi_as_printed(PREFILTER.numpy(), STRIDE, 1, **settings)
    assert standard_errors_away(loss_hessians["phi"], right) < AGREES
    assert standard_errors_away(loss_hessians["phi"], printed) > DISAGREES


def test_loss_hessian_theta(loss_hessians):
    prefilter = PREFILTER.numpy()
    right = pooling.loss_hessian_theta(prefilter, STRIDE, 1, epsilon=1.3, sigma=0.7, phi_std=PHI_STD)
    assert standard_errors_away(loss_hessians["theta"], right) < AGREES
    noise = pooling.loss_hessian_theta(prefilter, STRIDE, 1, epsilon=0.0, sigma=0.7, phi_std=PHI_STD)
    signal = oracle.loss_hessian_theta_signal_as_printed(prefilter, STRIDE, 1, epsilon=1.3, phi_std=PHI_STD)
    assert standard_errors_away(loss_hessians["theta"], noise + signal) > DISAGREES
    printed_noise = oracle.loss_hessian_theta_noise_as_printed(prefilter, STRIDE, sigma=0.7, phi_std=PHI_STD)
    assert noise.shape == loss_hessians["theta"].shape[1:] != printed_noise.shape


def test_loss_hessian_is_not_block_diagonal(loss_hessians):
    right = pooling.loss_hessian_cross(PREFILTER.numpy(), STRIDE, 1, epsilon=1.3)
    printed = oracle.loss_hessian_cross_as_printed(PREFILTER.numpy(), STRIDE, 1, epsilon=1.3)
    assert standard_errors_away(loss_hessians["cross"], right) < AGREES
    assert standard_errors_away(loss_hessians["cross"], printed) > DISAGREES


# ---------------------------------------------------------------------------------------------------------------------
# ReLU
# ---------------------------------------------------------------------------------------------------------------------


def test_relu_layer_gradient_covariance():
    normal = normals(13)
    weights = (THETA_STD * normal(40_000, 7), PHI_STD * normal(40_000, 7, 4))
    samples = gradient_outer_products(relu_layer, weights, normal(4))
    assert standard_errors_away(samples, forms.relu_layer_gradient_covariance(4, 7, **LAWS)) < AGREES
    printed = oracle.relu_layer_gradient_covariance_as_printed(4, 7, **LAWS)
    in_proof = oracle.relu_layer_gradient_covariance_as_printed_in_proof(4, 7, **LAWS)
    assert standard_errors_away(samples, printed) > DISAGREES
    assert standard_errors_away(samples, in_proof) > DISAGREES


def test_relu_layer_mixed_gram():
    normal = normals(14)
    weights = (THETA_STD * normal(20_000, 7), PHI_STD * normal(20_000, 7, 4))
    samples = mixed_grams(relu_layer, weights, normal(4))
    assert standard_errors_away(samples, forms.relu_layer_mixed_gram(4, 7, **LAWS)) < AGREES


INPUTS = torch.tensor([0.3, -1.2, 0.8, 2.0, -0.1, 0.4], dtype=torch.float64)


def test_nonlinear_pooling_xi():
    phi = PHI_STD * normals(15)(50_000, 6)
    active = torch.where(phi * INPUTS > 0, phi, 0.0)
    samples = active[:, :, None] * active[:, None, :]
    right = forms.nonlinear_pooling_xi(INPUTS.numpy(), phi_std=PHI_STD)
    printed = oracle.nonlinear_pooling_xi_as_printed(INPUTS.numpy(), phi_std=PHI_STD)
    assert standard_errors_away(samples, right) < AGREES
    assert standard_errors_away(samples, printed) > DISAGREES


def test_nonlinear_pooling_mean_xi_needs_uncorrelated_signs():
    """Inputs symmetric around 0 with sign correlation (2/pi) asin(0.8) between neighbours, 0 otherwise."""
    draws = 50_000
    normal = normals(16)
    shared, fresh = normal(draws, 2), normal(draws, 4)
    inputs = torch.stack(
        [shared[:, 0], 0.8 * shared[:, 0] + 0.6 * fresh[:, 0], shared[:, 1], 0.8 * shared[:, 1] + 0.6 * fresh[:, 1]], 1
    )
    phi = PHI_STD * normal(draws, 4)
    active = torch.where(phi * inputs > 0, phi, 0.0)
    samples = active[:, :, None] * active[:, None, :]
    correlation = np.kron(np.eye(2), np.array([[1.0, 2 / math.pi * math.asin(0.8)]] * 2))
    correlation[[1, 3], [0, 2]] = correlation[[0, 2], [1, 3]]
    np.fill_diagonal(correlation, 1.0)
    right = forms.nonlinear_pooling_mean_xi(correlation, phi_std=PHI_STD)
    assert standard_errors_away(samples, right) < AGREES
    assert standard_errors_away(samples, forms.nonlinear_pooling_mean_xi(np.eye(4), phi_std=PHI_STD)) > DISAGREES
    printed = oracle.nonlinear_pooling_mean_xi_as_printed(correlation, phi_std=1.0)
    assert standard_errors_away(samples / PHI_STD**2, printed) > DISAGREES


def test_nonlinear_pooling_gradient_covariance():
    samples = gradient_outer_products(nonlinear_pooling, pooling_weights(50_000, 17), INPUTS)
    arguments = (INPUTS.numpy(), PREFILTER.numpy(), STRIDE)
    right = forms.nonlinear_pooling_gradient_covariance(*arguments, **LAWS)
    printed = oracle.nonlinear_pooling_gradient_covariance_as_printed(*arguments, **LAWS)
    assert standard_errors_away(samples, right) < AGREES
    assert standard_errors_away(samples, printed) > DISAGREES


def test_nonlinear_pooling_mixed_gram():
    samples = mixed_grams(nonlinear_pooling, pooling_weights(20_000, 18), INPUTS)
    right = forms.nonlinear_pooling_mixed_gram(INPUTS.numpy(), PREFILTER.numpy(), STRIDE, **LAWS)
    assert standard_errors_away(samples, right) < AGREES


def test_dipole_speed_bound():
    """f = theta^T x and g(t) = 0.05 t^2, so alpha = 0.1 and beta = 0; and g(t) = 0.05 t^2 + 0.2 t with beta = 0.2."""
    weights = (normals(19)(20_000, 3),)
    direction = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    for beta in (0.0, 0.2):

        def metric(params: Params, beta: float = beta) -> Tensor:
            distance = (direction @ grad(linear, argnums=1)(params, direction)).abs()
            return 0.05 * distance**2 + beta * distance

        speeds = vmap(grad(metric))(weights)[0].norm(dim=1)
        margin = AGREES * float(speeds.std()) / math.sqrt(len(speeds))
        assert float(speeds.mean()) < forms.dipole_speed_bound(1.0, 1.0, 1.0, alpha=0.1, beta=beta) + margin
        printed = oracle.dipole_speed_bound_as_printed(1.0, 1.0, 1.0, alpha=0.1, beta=beta)
        assert float(speeds.mean()) > printed + 4 * margin


# ---------------------------------------------------------------------------------------------------------------------
# Fourier basis and Bayes accuracy after pooling
# ---------------------------------------------------------------------------------------------------------------------


def fourier_matrix(*shape: int) -> np.ndarray:
    matrix = np.ones((1, 1))
    for length in shape:
        matrix = np.kron(matrix, np.fft.fft(np.eye(length), norm="ortho"))
    return matrix


@pytest.mark.parametrize("shape", [(8,), (7,), (8, 8), (5, 6)])
def test_real_fourier_counts(shape):
    fourier = fourier_matrix(*shape)
    ranks = tuple(int(np.linalg.matrix_rank(part, tol=1e-9)) for part in (fourier.real, fourier.imag))
    assert ranks == oracle.real_fourier_counts(*shape)
    assert sum(ranks) == math.prod(shape)


def test_real_fourier_counts_of_the_images_in_the_papers():
    # F^2 is the reflection f -> -f, so (Re F)^2 and (Im F)^2 are projections, and a projection's trace is its rank
    fourier = fourier_matrix(32, 32)
    counts = round(np.sum(fourier.real**2)), round(np.sum(fourier.imag**2))
    assert counts == oracle.real_fourier_counts(32, 32) == (514, 510)


def test_real_fourier_basis_as_printed_is_not_orthonormal():
    assert sum(oracle.real_fourier_counts_as_printed(8)) == 9
    printed = [oracle.real_fourier_vector_as_printed(8, f, "re") for f in range(5)]
    printed += [oracle.real_fourier_vector_as_printed(8, f, "im") for f in range(1, 5)]
    norms = np.linalg.norm(printed, axis=1)
    np.testing.assert_allclose(norms, [math.sqrt(2), 1, 1, 1, math.sqrt(2), 1, 1, 1, 0], atol=1e-12)
    right = [pooling.real_fourier_vector(8, f, "re") for f in range(5)]
    right += [pooling.real_fourier_vector(8, f, "im") for f in range(1, 4)]
    np.testing.assert_allclose(np.array(right) @ np.array(right).T, np.eye(8), atol=1e-12)


def box_response(size: int, width: int) -> np.ndarray:
    """Response of z[n] = mean of x[n], ..., x[n + width - 1]."""
    taps = np.zeros(size)
    taps[:width] = 1 / width
    return np.fft.ifft(taps) * size


def test_pooling_operator_is_average_pooling():
    signals = normals(20)(3, 24)
    pooled = functional.avg_pool1d(signals[:, None], kernel_size=4)[:, 0]
    np.testing.assert_allclose(signals.numpy() @ pooling.pooling_operator(box_response(24, 4), 4).T, pooled, atol=1e-12)


def accuracies_of_fitted_rule(features: Tensor, labels: Tensor) -> Tensor:
    """Hits of the linear discriminant fitted on the first half, on the second half."""
    half = len(labels) // 2
    mean = (labels[:half, None] * features[:half]).mean(dim=0)
    noise = features[:half] - labels[:half, None] * mean
    rule = torch.linalg.solve(noise.mT @ noise / half, mean)
    return (torch.sign(features[half:] @ rule) == labels[half:]).double()


def pooled_real_samples(size: int, stride: int, frequency: int, sigma: float, seed: int) -> tuple[Tensor, Tensor]:
    """D(v) with epsilon = 1, drawn as it is defined, after `avg_pool1d`."""
    normal = normals(seed)
    direction = torch.as_tensor(pooling.real_fourier_vector(size, frequency, "re"))
    labels = torch.sign(normal(200_000))
    noise = sigma * normal(200_000, size)
    signals = noise + torch.outer(labels - noise @ direction, direction)
    return functional.avg_pool1d(signals[:, None], kernel_size=stride)[:, 0], labels


@pytest.mark.parametrize(("stride", "frequency"), [(2, 5), (4, 3), (8, 1)])
def test_bayes_accuracy_after_pooling(stride, frequency):
    features, labels = pooled_real_samples(32, stride, frequency, 2.0, seed=21)
    hits = accuracies_of_fitted_rule(features, labels)
    arguments = {"epsilon": 1.0, "sigma": 2.0}
    response = box_response(32, stride)
    assert standard_errors_away(hits, forms.bayes_accuracy_after_pooling(response, stride, frequency, **arguments)) < 5
    printed = oracle.bayes_accuracy_after_pooling_as_printed(response, stride, frequency, **arguments)
    restated = oracle.bayes_accuracy_after_pooling_as_restated(response, stride, frequency, **arguments)
    assert (standard_errors_away(hits, printed) < AGREES) == (stride == 2)
    assert (standard_errors_away(hits, restated) < AGREES) == (stride == 4)
    assert max(standard_errors_away(hits, printed), standard_errors_away(hits, restated)) > DISAGREES


@pytest.mark.parametrize(("stride", "frequency"), [(2, 5), (4, 3), (8, 1)])
def test_bayes_accuracy_after_pooling_complex(stride, frequency):
    """The model of the proof: a complex spectrum with epsilon y at one frequency and circular noise at all others."""
    size, sigma = 32, 2.0
    normal = normals(22)
    labels = torch.sign(normal(200_000))
    spectrum = torch.complex(normal(200_000, size), normal(200_000, size)) * (sigma / math.sqrt(2))
    spectrum[:, frequency] = labels.to(spectrum.dtype)
    weighted = spectrum * torch.as_tensor(box_response(size, stride))
    folded = weighted.reshape(-1, stride, size // stride).sum(dim=1) / math.sqrt(stride)
    hits = accuracies_of_fitted_rule(torch.cat([folded.real, folded.imag], dim=1), labels)
    arguments = {"epsilon": 1.0, "sigma": sigma}
    response = box_response(size, stride)
    right = pooling.bayes_accuracy_after_pooling_complex(response, stride, frequency, **arguments)
    printed = oracle.bayes_accuracy_after_pooling_as_printed(response, stride, frequency, **arguments)
    assert standard_errors_away(hits, right) < AGREES
    assert (standard_errors_away(hits, printed) < AGREES) == (stride == 4)
    assert stride == 4 or standard_errors_away(hits, printed) > DISAGREES


def test_bayes_accuracy_where_a_frequency_folds_onto_its_negative():
    """2 l is a multiple of M: the short formula does not hold, the quadratic form does."""
    response = box_response(32, 4)
    features, labels = pooled_real_samples(32, 4, 4, 2.0, seed=23)
    hits = accuracies_of_fitted_rule(features, labels)
    right = pooling.bayes_accuracy_after_pooling_any_frequency(response, 4, 4, epsilon=1.0, sigma=2.0)
    assert standard_errors_away(hits, right) < AGREES
    short = pooling.normal_cdf(0.5 * abs(response[4]) / np.linalg.norm(response[[12, 20, 28]]))
    assert standard_errors_away(hits, short) > DISAGREES
    with pytest.raises(ValueError, match="fold"):
        forms.bayes_accuracy_after_pooling(response, 4, 4, epsilon=1.0, sigma=2.0)
    # the constant signal passes an average untouched, and its aliases are the zeros of the box filter
    assert pooling.bayes_accuracy_after_pooling_any_frequency(response, 4, 0, epsilon=1.0, sigma=2.0) == 1.0


def test_both_forms_of_the_bayes_accuracy_agree_on_all_other_frequencies():
    for size, stride in ((32, 4), (128, 4), (30, 3), (48, 6)):
        response = box_response(size, stride)
        for frequency in range(1, size // 2):
            if 2 * frequency % (size // stride) == 0:
                continue
            for part in ("re", "im"):
                general = pooling.bayes_accuracy_after_pooling_any_frequency(
                    response, stride, frequency, epsilon=1.0, sigma=3.0, part=part
                )
                short = forms.bayes_accuracy_after_pooling(response, stride, frequency, epsilon=1.0, sigma=3.0)
                assert general == pytest.approx(short, abs=1e-11)


def test_bayes_accuracy_at_the_setting_of_figure_4a():
    arguments = (box_response(128, 4), 4, 9)
    assert forms.bayes_accuracy_after_pooling(*arguments, epsilon=1.0, sigma=3.0) == pytest.approx(0.7337, abs=5e-5)
    complex_model = pooling.bayes_accuracy_after_pooling_complex(*arguments, epsilon=1.0, sigma=3.0)
    assert complex_model == pytest.approx(0.8112, abs=5e-5)


# ---------------------------------------------------------------------------------------------------------------------
# Finitely many draws
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "draws"), [(400, 1200), (600, 300)])
def test_marchenko_pastur(size, draws):
    sample = math.sqrt(1.7) * normals(43)(draws, size)
    eigenvalues = torch.linalg.eigvalsh(sample.mT @ sample / draws).numpy()
    low, high = oracle.marchenko_pastur_edges(size, draws, variance=1.7)
    non_zero = eigenvalues[max(0, size - draws) :]
    assert non_zero[0] == pytest.approx(low, rel=0.1)
    assert non_zero[-1] == pytest.approx(high, rel=0.05)
    grid = np.linspace(low, high, 20_001)
    density = oracle.marchenko_pastur_density(grid, size, draws, variance=1.7)
    cumulative = np.cumsum(density) * (grid[1] - grid[0])
    assert cumulative[-1] == pytest.approx(min(1, draws / size), abs=1e-3)
    zeros = max(0.0, 1 - draws / size)
    expected = zeros + np.interp(non_zero, grid, cumulative)
    observed = np.arange(max(0, size - draws) + 1, size + 1) / size
    assert np.abs(expected - observed).max() < 0.02


@pytest.mark.parametrize(("law", "kurtosis"), [("gaussian", 3.0), ("uniform", 1.8)])
def test_plug_in_participation_ratio(law, kurtosis):
    size, draws, repeats = 12, 9, 20_000
    if law == "gaussian":
        gradients = normals(44)(repeats, draws, size)
    else:
        generator = torch.Generator().manual_seed(44)
        gradients = math.sqrt(3) * (2 * torch.rand(repeats, draws, size, generator=generator, dtype=torch.float64) - 1)
    covariances = gradients.mT @ gradients / draws
    trace = covariances.diagonal(dim1=1, dim2=2).sum(dim=1)
    samples = torch.stack([trace**2, (covariances**2).sum(dim=(1, 2))], dim=1)
    right = oracle.sampled_trace_moments(size, draws, kurtosis=kurtosis)
    assert standard_errors_away(samples, np.array(right)) < AGREES
    ratios = samples[:, 0] / samples[:, 1]
    approximate = oracle.plug_in_participation_ratio(size, draws, kurtosis=kurtosis)
    assert float(ratios.mean()) == pytest.approx(approximate, rel=2 / (size * draws))


@pytest.mark.parametrize(("draws", "expected"), [(400, 288), (10_000, 929)])
def test_participation_ratio_of_isotropic_gradients_is_far_below_the_dimension(draws, expected):
    """The input gradients of freshly initialised linear layers of 1,024 inputs, whose law is uniform."""
    generator = torch.Generator().manual_seed(45)
    gradients = 2 * torch.rand(draws, 1024, generator=generator, dtype=torch.float32) - 1
    gram = (gradients.mT @ gradients if draws > 1024 else gradients @ gradients.mT).double()
    measured = float(gram.trace() ** 2 / (gram**2).sum())
    assert oracle.plug_in_participation_ratio(1024, draws, kurtosis=1.8) == pytest.approx(expected, abs=0.5)
    assert measured == pytest.approx(oracle.plug_in_participation_ratio(1024, draws, kurtosis=1.8), rel=2e-3)


def test_independent_positive_matrices_are_far_from_orthogonal():
    size = draws = 60
    normal = normals(46)
    first, second = normal(40, draws, size), normal(40, draws, size)
    first, second = first.mT @ first, second.mT @ second
    cosines = (first * second).sum(dim=(1, 2)) / (first.norm(dim=(1, 2)) * second.norm(dim=(1, 2)))
    assert float(cosines.mean()) == pytest.approx(oracle.independent_wishart_cosine(size, draws), abs=0.01)
    assert float(cosines.min()) > 3 / math.sqrt(size)
