"""Every closed form against Monte Carlo, and every misprinted one failing.

Derivatives come from automatic differentiation of the model as it is written down, never from the formulas used in the
derivations. A closed form passes if the sample mean lies within five of its own standard errors in every entry; a
misprinted one must miss by at least twenty somewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import closed_forms as oracle
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap
from torch.nn import functional

from biascope import pooling_models as pooling

AGREES, DISAGREES = 5.0, 20.0

Params = tuple[Tensor, ...]
Model = Callable[[Params, Tensor], Tensor]  # (weights of one network, one input) -> scalar


@pytest.fixture(autouse=True)
def one_thread():
    """Small matrices, often on a busy machine: a second thread would only wait for the first."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


def evolutions(model: Model, params: Params, probes: Tensor, data: Tensor, labels: Tensor) -> Tensor:
    """Time derivative of grad grad^T at each probe under gradient flow on (1/2) sum (f - y)^2, one probe per draw."""

    def loss(weights: Params) -> Tensor:
        return 0.5 * ((vmap(model, in_dims=(None, 0))(weights, data) - labels) ** 2).sum()

    def one(weights: Params, probe: Tensor) -> Tensor:
        velocity = tuple(-part for part in grad(loss)(weights))

        def outer(time: Tensor) -> Tensor:
            moved = tuple(part + time * speed for part, speed in zip(weights, velocity, strict=True))
            gradient = grad(model, argnums=1)(moved, probe)
            return torch.outer(gradient, gradient)

        return jacrev(outer)(torch.zeros((), dtype=torch.float64))

    return vmap(one)(params, probes)


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
    assert standard_errors_away(samples, pooling.linear_gradient_covariance(5, weight_std=0.6)) < AGREES


def test_linear_pooling_gradient_covariance():
    samples = gradient_outer_products(linear_pooling, pooling_weights(50_000, 3), normals(4)(6))
    prefilter = PREFILTER.numpy()
    right = pooling.linear_pooling_gradient_covariance(prefilter, STRIDE, **LAWS)
    printed = oracle.linear_pooling_gradient_covariance_as_printed(prefilter, STRIDE, **LAWS)
    assert standard_errors_away(samples, right) < AGREES
    assert standard_errors_away(samples, printed) > DISAGREES


def test_linear_pooling_mixed_gram():
    samples = mixed_grams(linear_pooling, pooling_weights(20_000, 5), normals(6)(6))
    prefilter = PREFILTER.numpy()
    right = pooling.linear_pooling_mixed_gram(prefilter, STRIDE, **LAWS)
    printed = oracle.linear_pooling_mixed_gram_as_printed(prefilter, STRIDE, **LAWS)
    assert standard_errors_away(samples, right) < AGREES
    assert standard_errors_away(samples, printed) > DISAGREES


def test_average_of_the_mixed_operator_vanishes_where_its_gram_converges():
    right = torch.as_tensor(pooling.linear_pooling_mixed_gram(PREFILTER.numpy(), STRIDE, **LAWS))
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
    right = torch.as_tensor(pooling.linear_pooling_gradient_covariance(PREFILTER.numpy(), STRIDE, **LAWS))
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
    assert standard_errors_away(samples, pooling.relu_layer_gradient_covariance(4, 7, **LAWS)) < AGREES
    printed = oracle.relu_layer_gradient_covariance_as_printed(4, 7, **LAWS)
    in_proof = oracle.relu_layer_gradient_covariance_as_printed_in_proof(4, 7, **LAWS)
    assert standard_errors_away(samples, printed) > DISAGREES
    assert standard_errors_away(samples, in_proof) > DISAGREES


def test_relu_layer_mixed_gram():
    normal = normals(14)
    weights = (THETA_STD * normal(20_000, 7), PHI_STD * normal(20_000, 7, 4))
    samples = mixed_grams(relu_layer, weights, normal(4))
    assert standard_errors_away(samples, pooling.relu_layer_mixed_gram(4, 7, **LAWS)) < AGREES


INPUTS = torch.tensor([0.3, -1.2, 0.8, 2.0, -0.1, 0.4], dtype=torch.float64)


def test_nonlinear_pooling_xi():
    phi = PHI_STD * normals(15)(50_000, 6)
    active = torch.where(phi * INPUTS > 0, phi, 0.0)
    samples = active[:, :, None] * active[:, None, :]
    right = pooling.nonlinear_pooling_xi(INPUTS.numpy(), phi_std=PHI_STD)
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
    right = pooling.nonlinear_pooling_mean_xi(correlation, phi_std=PHI_STD)
    assert standard_errors_away(samples, right) < AGREES
    assert standard_errors_away(samples, pooling.nonlinear_pooling_mean_xi(np.eye(4), phi_std=PHI_STD)) > DISAGREES
    printed = oracle.nonlinear_pooling_mean_xi_as_printed(correlation, phi_std=1.0)
    assert standard_errors_away(samples / PHI_STD**2, printed) > DISAGREES


def test_nonlinear_pooling_gradient_covariance():
    samples = gradient_outer_products(nonlinear_pooling, pooling_weights(50_000, 17), INPUTS)
    arguments = (INPUTS.numpy(), PREFILTER.numpy(), STRIDE)
    right = pooling.nonlinear_pooling_gradient_covariance(*arguments, **LAWS)
    printed = oracle.nonlinear_pooling_gradient_covariance_as_printed(*arguments, **LAWS)
    assert standard_errors_away(samples, right) < AGREES
    assert standard_errors_away(samples, printed) > DISAGREES


def test_nonlinear_pooling_mixed_gram():
    samples = mixed_grams(nonlinear_pooling, pooling_weights(20_000, 18), INPUTS)
    right = pooling.nonlinear_pooling_mixed_gram(INPUTS.numpy(), PREFILTER.numpy(), STRIDE, **LAWS)
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
        assert float(speeds.mean()) < pooling.dipole_speed_bound(1.0, 1.0, 1.0, alpha=0.1, beta=beta) + margin
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
    assert (
        standard_errors_away(hits, pooling.bayes_accuracy_after_pooling(response, stride, frequency, **arguments)) < 5
    )
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
        pooling.bayes_accuracy_after_pooling(response, 4, 4, epsilon=1.0, sigma=2.0)
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
                short = pooling.bayes_accuracy_after_pooling(response, stride, frequency, epsilon=1.0, sigma=3.0)
                assert general == pytest.approx(short, abs=1e-11)


def test_bayes_accuracy_at_the_setting_of_figure_4a():
    arguments = (box_response(128, 4), 4, 9)
    assert pooling.bayes_accuracy_after_pooling(*arguments, epsilon=1.0, sigma=3.0) == pytest.approx(0.7337, abs=5e-5)
    complex_model = pooling.bayes_accuracy_after_pooling_complex(*arguments, epsilon=1.0, sigma=3.0)
    assert complex_model == pytest.approx(0.8112, abs=5e-5)


# ---------------------------------------------------------------------------------------------------------------------
# Average geometry
# ---------------------------------------------------------------------------------------------------------------------


def patches(signal: Tensor, kernel: int, padding: str) -> Tensor:
    """(..., positions, kernel), built by padding and shifting: no tap matrix here."""
    if padding == "circular":
        signal = torch.cat([signal, signal[..., : kernel - 1]], dim=-1)
    elif padding == "zero":
        signal = functional.pad(signal, ((kernel - 1) // 2,) * 2)
    positions = signal.shape[-1] - kernel + 1
    return torch.stack([signal[..., tap : tap + positions] for tap in range(kernel)], dim=-1)


def convolutional_network(padding: str) -> Model:
    """Two ReLU convolutions with kernels of three, and one readout weight per unit."""

    def model(params: Params, x: Tensor) -> Tensor:
        first, second, readout = params
        hidden = torch.relu(torch.einsum("ct,pt->cp", first, patches(x, 3, padding)))
        hidden = torch.relu(torch.einsum("oct,cpt->op", second, patches(hidden, 3, padding)))
        return (readout * hidden).sum()

    return model


def pooled_network(kernel: int, padding: str) -> Model:
    """A linear convolution, averaged over positions, and a readout of its channels."""

    def model(params: Params, x: Tensor) -> Tensor:
        readout, phi = params
        return readout @ (phi @ patches(x, kernel, padding).mT).mean(dim=-1)

    return model


@pytest.mark.parametrize("padding", ["valid", "zero", "circular"])
def test_tap_matrices_are_convolutions(padding):
    signal, kernel = normals(24)(7), normals(25)(3)
    taps = oracle.tap_matrices(7, 3, padding)
    np.testing.assert_allclose(np.einsum("jqt,t,q->j", taps, kernel, signal), patches(signal, 3, padding) @ kernel)


def test_tap_matrices_in_the_plane_are_convolutions():
    image, kernel = normals(26)(5, 6), normals(27)(3, 2)
    taps = oracle.tap_matrices_2d(oracle.tap_matrices(5, 3, "valid", stride=2), oracle.tap_matrices(6, 2))
    right = functional.conv2d(image[None, None], kernel[None, None], stride=(2, 1))
    np.testing.assert_allclose(np.einsum("jqt,t,q->j", taps, kernel.ravel(), image.ravel()), right.ravel(), atol=1e-12)


def test_mlp_geometry():
    def model(params: Params, x: Tensor) -> Tensor:
        first, second, readout = params
        return readout @ torch.relu(second @ torch.relu(first @ x))

    normal = normals(28)
    weights = (0.8 * normal(40_000, 5, 4), 0.9 * normal(40_000, 3, 5), 0.6 * normal(40_000, 3))
    samples = gradient_outer_products(model, weights, normal(4))
    settings = {"weight_stds": [0.8, 0.9], "readout_std": 0.6}
    assert standard_errors_away(samples, oracle.mlp_geometry(4, [5, 3], **settings)) < AGREES
    assert standard_errors_away(samples, oracle.mlp_geometry_as_printed(4, [5, 3], **settings)) > DISAGREES


@pytest.mark.parametrize(("padding", "positions"), [("valid", (5, 3)), ("zero", (7, 7)), ("circular", (7, 7))])
def test_convolution_geometry_is_the_coverage(padding, positions):
    normal = normals(29)
    draws = 40_000
    weights = (0.8 * normal(draws, 3, 3), 0.9 * normal(draws, 2, 3, 3), 0.6 * normal(draws, 2, positions[1]))
    samples = gradient_outer_products(convolutional_network(padding), weights, normal(7))
    taps = [oracle.tap_matrices(7, 3, padding), oracle.tap_matrices(positions[0], 3, padding)]
    right = oracle.convolution_geometry(taps, [3, 2], weight_stds=[0.8, 0.9], readout_std=0.6)
    assert standard_errors_away(samples, right) < AGREES
    best_multiple_of_identity = np.trace(right) / 7 * np.eye(7)
    assert (standard_errors_away(samples, best_multiple_of_identity) < AGREES) == (padding == "circular")
    assert padding == "circular" or standard_errors_away(samples, best_multiple_of_identity) > DISAGREES


def test_one_convolution_counts_the_patches_of_each_input():
    taps = oracle.tap_matrices(7, 3)
    geometry = oracle.convolution_geometry([taps], [4], weight_stds=[0.5], readout_std=2.0)
    np.testing.assert_allclose(np.diag(geometry), 4 * 0.5**2 / 2 * 4 * np.array([1, 2, 3, 3, 3, 2, 1]))
    np.testing.assert_array_equal(oracle.coverage(taps), [1, 2, 3, 3, 3, 2, 1])


@pytest.mark.parametrize("padding", ["valid", "zero", "circular"])
def test_pooled_convolution_geometry_is_not_diagonal(padding):
    normal = normals(30)
    samples = gradient_outer_products(
        pooled_network(3, padding), (torch.ones(40_000, 1, dtype=torch.float64), 0.8 * normal(40_000, 1, 3)), normal(8)
    )
    taps = oracle.tap_matrices(8, 3, padding)
    assert standard_errors_away(samples, oracle.pooled_convolution_geometry(taps, weight_std=0.8)) < AGREES
    printed = oracle.pooled_convolution_geometry_as_printed(taps, weight_std=0.8)
    assert standard_errors_away(samples, printed) > DISAGREES
    shifted = taps[0] @ taps[1].T
    assert np.trace(shifted) == 0 < shifted.sum()


@pytest.mark.parametrize(("size", "kernel"), [(3, 2), (8, 3), (8, 6), (9, 9)])
def test_pooled_geometry_has_low_rank_and_is_banded_only_with_few_positions(size, kernel):
    overlap = oracle.pooled_valid_overlap(size, kernel)
    taps = oracle.tap_matrices(size, kernel)
    np.testing.assert_array_equal(overlap, taps.sum(axis=0) @ taps.sum(axis=0).T)
    assert np.linalg.matrix_rank(overlap) == min(kernel, size)
    rows, columns = np.indices(overlap.shape)
    np.testing.assert_array_equal(overlap > 0, np.abs(rows - columns) < size - kernel + 1)
    interior = slice(kernel - 1, size - kernel + 1)
    assert (overlap[interior, interior] == kernel).all()


def test_example_geometry():
    weights = (torch.ones(40_000, 1, dtype=torch.float64), 0.8 * normals(31)(40_000, 1, 2))
    samples = gradient_outer_products(pooled_network(2, "valid"), weights, normals(32)(3))
    right = oracle.example_geometry(weight_std=0.8)
    assert standard_errors_away(samples, right) < AGREES
    assert standard_errors_away(samples, oracle.example_geometry_as_printed(weight_std=0.8)) > DISAGREES
    np.testing.assert_allclose(right, oracle.pooled_convolution_geometry(oracle.tap_matrices(3, 2), weight_std=0.8))
    np.testing.assert_allclose(np.linalg.eigvalsh(right) / (0.8**2 / 4), [0, 1, 3], atol=1e-12)


def test_normalised_patch_bounds():
    normal = normals(33)
    covariances = []
    for _ in range(2):
        data = normal(60, 5) * torch.linspace(1, 1.6, 5, dtype=torch.float64)
        covariances.append((data.mT @ data / len(data)).numpy())
    for first, second in ((covariances[0], covariances[0]), tuple(covariances)):
        theta = 0.05 * normal(100_000, 5)  # a small scale, to tell standard deviations from variances
        products = theta[:, :, None] * theta[:, None, :]
        variances = [((theta @ torch.as_tensor(c)) * theta).sum(dim=1) for c in (first, second)]
        moment = (products / (variances[0] * variances[1]).sqrt()[:, None, None]).mean(dim=0)
        eigenvalues = torch.linalg.eigvalsh(moment)
        lower, upper = oracle.normalised_patch_bounds(first, second)
        assert lower < float(eigenvalues[0]) <= float(eigenvalues[-1]) < upper
        printed_lower, printed_upper = oracle.normalised_patch_bounds_as_printed(first, second)
        assert float(eigenvalues[-1]) < 0.5 * printed_lower
        with_variances = (products / (variances[0] * variances[1])[:, None, None]).mean(dim=0)
        assert float(torch.linalg.eigvalsh(with_variances)[0]) > 2 * printed_upper


# ---------------------------------------------------------------------------------------------------------------------
# Half-spaces
# ---------------------------------------------------------------------------------------------------------------------


def test_halfspace_second_moment():
    normal = normals(34)
    first, second, points = normal(4), normal(4), normal(200_000, 4)
    inside = ((points @ first > 0) & (points @ second > 0)).double()
    samples = inside[:, None, None] * points[:, :, None] * points[:, None, :]
    right = oracle.halfspace_second_moment(first.numpy(), second.numpy())
    printed = oracle.halfspace_second_moment_as_printed(first.numpy(), second.numpy())
    assert standard_errors_away(samples, right) < AGREES
    assert standard_errors_away(samples, printed) > DISAGREES


def test_halfspace_coefficients():
    cosine = -0.6
    points = normals(35)(400_000, 2)
    inside = (points[:, 0] > 0) & (points @ torch.tensor([cosine, 0.8], dtype=torch.float64) > 0)
    alpha, beta = points.unbind(dim=1)
    samples = torch.stack([alpha**2 - 1, beta**2 - 1, alpha * beta], dim=1) * inside[:, None]
    right = oracle.halfspace_coefficients(cosine)
    printed = oracle.halfspace_coefficients_as_printed(cosine)
    assert standard_errors_away(samples, np.array(right)) < AGREES
    assert standard_errors_away(samples[:, :1], np.array(printed[:1])) > DISAGREES
    assert standard_errors_away(samples[:, 1:2], np.array(printed[1:2])) > DISAGREES
    assert printed[1] == pytest.approx(-right[1])
    assert printed[2] == pytest.approx(right[2])


def test_dropping_the_plane_of_the_halfspaces_is_wrong_in_every_dimension():
    """Entry by entry the difference vanishes with D; applied to the data vector it does not."""
    for size in (10, 1000):
        first, second = np.ones(size), np.tile([1.0, -1.0], size // 2)
        right = oracle.halfspace_second_moment(first, second)
        printed = oracle.halfspace_second_moment_as_printed(first, second)
        assert np.abs(right - printed).max() < 1 / size
        applied, applied_printed = right @ second, printed @ second
        missing = np.linalg.norm(applied - applied_printed) / np.linalg.norm(applied_printed)
        assert missing == pytest.approx(2 / math.pi)


@pytest.mark.parametrize("size", [2, 3, 20])
def test_halfspace_probability_moments(size):
    normal = normals(36)
    first, second = normal(100_000, size), normal(size)
    angles = torch.arccos((first @ second / first.norm(dim=1) / second.norm()).clamp(-1, 1))
    # the share of a full turn that lies within a quarter turn of both directions, in the plane they span
    turn = torch.linspace(-math.pi, math.pi, 2001, dtype=torch.float64)[:-1]
    share = ((turn.cos() > 0) & ((turn[None] - angles[:2000, None]).cos() > 0)).double().mean(dim=1)
    probabilities = (math.pi - angles) / (2 * math.pi)
    assert (share - probabilities[:2000]).abs().max() < 1e-3
    samples = torch.stack([probabilities, probabilities**2], dim=1)
    assert standard_errors_away(samples, np.array(oracle.halfspace_probability_moments(size))) < AGREES
    assert standard_errors_away(samples, np.array(oracle.halfspace_probability_moments_as_printed(size))) > DISAGREES


# ---------------------------------------------------------------------------------------------------------------------
# Average geometry evolution
# ---------------------------------------------------------------------------------------------------------------------


def test_linear_evolution():
    normal = normals(37)
    data, labels = normal(5, 3), normal(5)
    weights = (0.7 * normal(20_000, 3),)
    samples = evolutions(linear, weights, normal(20_000, 3), data, labels)
    assert standard_errors_away(samples, oracle.linear_evolution(data.numpy(), weight_std=0.7)) < AGREES
    assert standard_errors_away(samples, oracle.linear_evolution_as_printed(data.numpy(), weight_std=0.7)) > DISAGREES


@pytest.mark.parametrize(("size", "width", "weight_std", "readout_std"), [(2, 4, 0.9, 0.7), (3, 6, 1.0, 0.4)])
def test_mlp_evolution(size, width, weight_std, readout_std):
    normal = normals(38)
    draws = 200_000
    data, labels = normal(2, size), normal(2)
    weights = (readout_std * normal(draws, width), weight_std * normal(draws, width, size))
    samples = evolutions(relu_layer, weights, normal(draws, size), data, labels)
    arguments = {"weight_std": weight_std, "readout_std": readout_std}
    assert standard_errors_away(samples, oracle.mlp_evolution(data.numpy(), width, **arguments)) < AGREES
    printed = oracle.mlp_evolution_as_printed(data.numpy(), width, **arguments)
    assert standard_errors_away(samples, printed) > DISAGREES


@pytest.mark.parametrize("size", [2, 3, 10])
def test_mlp_evolution_coefficients(size):
    """Each of the three by itself, sharper than through the whole network."""
    normal = normals(47)
    data = normal(size)
    data /= data.norm()
    probes = normal(200_000, size)
    probes /= probes.norm(dim=1, keepdim=True)
    cosines = (probes @ data).clamp(-1, 1)
    both = (math.pi - torch.arccos(cosines)) / (2 * math.pi)
    images = both[:, None] * data + ((1 - cosines**2).sqrt() / (2 * math.pi))[:, None] * probes
    for row in range(3):
        moment = oracle.halfspace_second_moment(probes[row].numpy(), data.numpy())
        np.testing.assert_allclose(images[row], moment @ data.numpy(), atol=1e-12)
    c1, c2, c3 = oracle.mlp_evolution_coefficients(size)
    projection = torch.outer(data, data)
    identity = torch.eye(size, dtype=torch.float64)
    first = images[:, :, None] * images[:, None, :]
    assert standard_errors_away(first, c1 * projection + c3 * identity) < AGREES
    assert standard_errors_away(both[:, None, None] * data[:, None] * images[:, None, :], c2 * projection) < AGREES
    # so few dimensions are far from the limit
    assert standard_errors_away(first, projection / 16 + identity / (4 * math.pi**2 * size)) > DISAGREES


def test_mlp_evolution_approaches_its_asymptotic_form():
    errors = []
    sizes = (16, 64, 256)
    for size in sizes:
        data = normals(39)(3, size).numpy()
        exact = oracle.mlp_evolution(data, 50, weight_std=1.0, readout_std=0.8)
        asymptotic = oracle.mlp_evolution_asymptotic(data, 50, weight_std=1.0, readout_std=0.8)
        printed = oracle.mlp_evolution_as_printed(data, 50, weight_std=1.0, readout_std=0.8)
        errors.append(np.linalg.norm(exact - asymptotic) / np.linalg.norm(exact))
        assert np.linalg.norm(exact - printed) > 2 * np.linalg.norm(exact)
    assert np.polyfit(np.log(sizes), np.log(errors), 1)[0] == pytest.approx(-1, abs=0.15)


def mlp_alignment(singular_values: np.ndarray, width: int) -> float:
    data = np.diag(singular_values)
    evolution = oracle.mlp_evolution(data, width, weight_std=1.0, readout_std=1.0)
    return abs(oracle.frobenius_cosine(evolution, data.T @ data))


def test_mlp_evolution_tends_to_the_data_covariance_only_for_low_rank_or_isotropic_data():
    infinite = 10**9
    for size in (64, 256):
        assert mlp_alignment(np.ones(size), 100) == pytest.approx(1.0)
        half = np.concatenate([np.ones(size // 2), np.zeros(size // 2)])
        # S + (2/pi^2)(tr S / D) I has eigenvalues 1 + 1/pi^2 and 1/pi^2 here: the limit is not 1
        limit = (1 + math.pi**-2) / math.hypot(1 + math.pi**-2, math.pi**-2)
        assert mlp_alignment(half, infinite) == pytest.approx(limit, abs=0.1 / size)
    # one data direction: 1 - Corr falls like 1/D at infinite width, and grows with D at a fixed one
    one = [1 - mlp_alignment(np.eye(size)[0], infinite) for size in (64, 256)]
    assert one[0] / one[1] == pytest.approx(4, rel=0.1)
    assert mlp_alignment(np.eye(512)[0], 8) < mlp_alignment(np.eye(16)[0], 8) < 1


def test_pooled_convolution_evolution():
    normal = normals(40)
    draws, channels = 100_000, 3
    data, labels = normal(2, 5), normal(2)
    weights = (0.7 * normal(draws, channels), 0.9 * normal(draws, channels, 3))
    samples = evolutions(pooled_network(3, "valid"), weights, normal(draws, 5), data, labels)
    arguments = (data.numpy(), oracle.tap_matrices(5, 3), channels)
    stds = {"weight_std": 0.9, "readout_std": 0.7}
    assert standard_errors_away(samples, oracle.pooled_convolution_evolution(*arguments, **stds)) < AGREES
    printed = oracle.pooled_convolution_evolution_as_printed(*arguments, **stds)
    assert standard_errors_away(samples, printed) > DISAGREES


def test_pooled_convolution_evolution_aligns_like_one_over_width_squared():
    data, taps = normals(41)(4, 8).numpy(), oracle.tap_matrices(8, 3)
    widths = (32, 128, 512)
    distances = []
    for width in widths:
        evolution = oracle.pooled_convolution_evolution(data, taps, width, weight_std=1.0, readout_std=1.0)
        geometry = oracle.pooled_convolution_geometry(taps, weight_std=1.0, channels=width)
        target = geometry @ data.T @ data @ geometry
        distances.append(1 - abs(oracle.frobenius_cosine(evolution, target)))
        assert oracle.frobenius_cosine(evolution, target) < 0  # the evolution points away from G S G
    assert np.polyfit(np.log(widths), np.log(distances), 1)[0] == pytest.approx(-2, abs=0.1)


@pytest.mark.parametrize("name", ["linear CNN", "MLP"])
def test_geometry_turns_away_from_the_data_under_squared_error(name):
    """Ten small steps of gradient descent on 20 groups of 500 networks: Corr(G_t, G S G) falls in the mean.

    Delta is negative along G S G (CNN) or S (MLP) and otherwise a multiple of G, so the cosine must fall at first.
    """
    normal = normals(42)
    data, labels, probes = normal(4, 6), normal(4), normal(10_000, 6)
    target = data.mT @ data
    if name == "MLP":
        model, weights = relu_layer, (normal(10_000, 8), normal(10_000, 8, 6))
    else:
        model, weights = pooled_network(3, "valid"), (normal(10_000, 4), normal(10_000, 4, 3))
        geometry = torch.as_tensor(oracle.pooled_convolution_geometry(oracle.tap_matrices(6, 3), weight_std=1.0))
        target = geometry @ target @ geometry

    def loss(weights: Params) -> Tensor:
        return 0.5 * ((vmap(model, in_dims=(None, 0))(weights, data) - labels) ** 2).sum()

    def alignments(weights: Params) -> Tensor:
        outer = gradient_outer_products(model, weights, probes).reshape(20, 500, 6, 6).mean(dim=1)
        return (outer * target).sum(dim=(1, 2)) / (outer.norm(dim=(1, 2)) * target.norm())

    before = alignments(weights)
    for _ in range(10):
        slopes = vmap(grad(loss))(weights)
        weights = tuple(part - 1e-3 * slope for part, slope in zip(weights, slopes, strict=True))
    change = alignments(weights) - before
    assert float(change.mean()) < -AGREES * float(change.std()) / math.sqrt(20)


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
