"""Closed forms that the tests hold the library against, each with its derivation.

An oracle that shares code with what it judges proves nothing, so nothing here uses the library, but for one thing: what
measurements and figures compute ships in `biascope.measures.pooling_theory.models` and `biascope.papers.geometry2025.models`
with its derivations. The other right forms of pooling and of one hidden layer are in `closed_forms_pooling.py`, those of
average geometry in `closed_forms_geometry.py`; what is left of them here is how the papers print them. Every function
returns float64 NumPy arrays (or floats), and every one, here or shipped, is checked against automatic differentiation and
Monte Carlo in `test_closed_forms.py`, `measures/test_pooling_theory_models.py` or `papers/test_geometry2025_models.py`.
Where a paper prints something else, that form is kept under the right one's name with `_as_printed`, and a test shows it
failing.

Letters: D input size · S pooling stride · M = D/S · H hidden units · n width · k patch positions · d kernel size ·
T draws. `E` is the mean over the law of the weights, which are independent, centred and Gaussian unless said otherwise;
`_std` is a standard deviation. All derivatives of ReLU networks are those that hold almost everywhere.

References:
    Neural anisotropy directions (2020) and chapter 3 of the thesis (2023): "NAD" below.
    Geometric inductive biases of deep networks (2025): "GIH" below.
"""

from __future__ import annotations

import math

import numpy as np
from closed_forms_geometry import mlp_geometry, normalised_patch_bounds
from closed_forms_pooling import nonlinear_pooling_xi

from biascope.measures.pooling_theory.models import aliasing_matrix, aliasing_ratio, loss_hessian_phi, normal_cdf

Array = np.ndarray


# ---------------------------------------------------------------------------------------------------------------------
# As printed: the linear model of pooling f(x) = theta^T A (m . phi . x)      ("." is the entrywise product)
# ---------------------------------------------------------------------------------------------------------------------


def linear_pooling_gradient_covariance_as_printed(
    prefilter: Array, stride: int, *, theta_std: float, phi_std: float
) -> Array:
    """NAD equation (4), thesis (3.9): without the 1/S."""
    del stride
    return theta_std**2 * phi_std**2 * np.diag(prefilter**2)


def linear_pooling_mixed_gram_as_printed(prefilter: Array, stride: int, *, theta_std: float, phi_std: float) -> Array:
    """NAD equation (5), thesis (3.10): the theta_std^2 term has lost its 1/S."""
    return (theta_std**2 + phi_std**2 / stride) * np.diag(prefilter**2)


def loss_hessian_phi_as_printed(
    prefilter: Array, stride: int, index: int, *, epsilon: float, sigma: float, theta_std: float
) -> Array:
    """NAD lemma 1: without the 1/S."""
    return stride * loss_hessian_phi(prefilter, stride, index, epsilon=epsilon, sigma=sigma, theta_std=theta_std)


def loss_hessian_theta_signal_as_printed(
    prefilter: Array, stride: int, index: int, *, epsilon: float, phi_std: float
) -> Array:
    """NAD section B.2: the signal part of H_theta, without the 1/S."""
    bins = len(prefilter) // stride
    return 2 * epsilon**2 * prefilter[index] ** 2 * phi_std**2 * np.diag(np.eye(bins)[index % bins])


def loss_hessian_theta_noise_as_printed(prefilter: Array, stride: int, *, sigma: float, phi_std: float) -> Array:
    """NAD section B.2: the noise part of H_theta, an M x D matrix where a Hessian must be M x M."""
    return 2 * sigma**2 * phi_std**2 * aliasing_matrix(len(prefilter), stride) @ np.diag(prefilter**2)


def loss_hessian_cross_as_printed(prefilter: Array, stride: int, index: int, *, epsilon: float) -> Array:
    """NAD section B.2, thesis (3.4): zero, argued from E[z] = E[y] = 0."""
    del index, epsilon
    return np.zeros((len(prefilter) // stride, len(prefilter)))


# ---------------------------------------------------------------------------------------------------------------------
# As printed: one hidden ReLU layer, the non-linear model of pooling, dipoles
# ---------------------------------------------------------------------------------------------------------------------


def relu_layer_gradient_covariance_as_printed(size: int, hidden: int, *, theta_std: float, phi_std: float) -> Array:
    """NAD example 3, thesis (3.12): without the number of hidden units."""
    del hidden
    return theta_std**2 * phi_std**2 / 2 * np.eye(size)


def relu_layer_gradient_covariance_as_printed_in_proof(
    size: int, hidden: int, *, theta_std: float, phi_std: float
) -> Array:
    """NAD example 3, last line of its proof: the input size stands where the number of hidden units belongs."""
    del hidden
    return size / 2 * theta_std**2 * phi_std**2 * np.eye(size)


def nonlinear_pooling_xi_as_printed(inputs: Array, *, phi_std: float) -> Array:
    """NAD example 4: the diagonal is a variance, (phi_std^2 / 2) (1 - 2/pi), where a second moment is meant."""
    xi = nonlinear_pooling_xi(inputs, phi_std=phi_std)
    np.fill_diagonal(xi, phi_std**2 / 2 * (1 - 2 / math.pi))
    return xi


def nonlinear_pooling_mean_xi_as_printed(sign_correlation: Array, *, phi_std: float) -> Array:
    """NAD example 4: the identity, whenever the law of x is symmetric around 0."""
    del phi_std
    return np.eye(len(sign_correlation))


def nonlinear_pooling_gradient_covariance_as_printed(
    inputs: Array, prefilter: Array, stride: int, *, theta_std: float, phi_std: float
) -> Array:
    """NAD example 4: a second phi_std^2 in front, and the printed Xi."""
    folding = aliasing_matrix(len(prefilter), stride)
    xi = nonlinear_pooling_xi_as_printed(inputs, phi_std=phi_std)
    return phi_std**2 * theta_std**2 * (folding.T @ folding) * np.outer(prefilter, prefilter) * xi


def dipole_speed_bound_as_printed(
    gradient_power: float, mixed_power: float, mixed_norm: float, *, alpha: float, beta: float
) -> float:
    """NAD equation (3), thesis (3.7): alpha squared, which is no bound once alpha < 1."""
    return alpha**2 * math.sqrt(gradient_power * mixed_power) + beta * mixed_norm


# ---------------------------------------------------------------------------------------------------------------------
# The real Fourier basis, and the Bayes accuracy after pooling as printed
# ---------------------------------------------------------------------------------------------------------------------


def real_fourier_counts(*shape: int) -> tuple[int, int]:
    """How many Re and Im vectors the real DFT basis of signals of this shape has.

    Frequencies f and -f give the same cosine and opposite sines. A frequency with f = -f modulo the shape has a cosine
    and no sine; each even axis has two such values (0 and the half), each odd axis one. With s of them among the N
    frequencies: (N + s)/2 cosines and (N - s)/2 sines, N in all.
    """
    total = math.prod(shape)
    self_conjugate = math.prod(1 if length % 2 else 2 for length in shape)
    return (total + self_conjugate) // 2, (total - self_conjugate) // 2


def real_fourier_counts_as_printed(length: int) -> tuple[int, int]:
    """NAD section A.2.1, thesis (A.2) and (A.3): one vector too many for every even length."""
    return length // 2 + 1, length // 2


def real_fourier_vector_as_printed(length: int, frequency: int, part: str) -> Array:
    """NAD section A.2.1: every vector with 1/sqrt(2), also where the two unit vectors it adds are one and the same."""
    spectrum = np.zeros(length, dtype=complex)
    unit, opposite = {"re": (1, 1), "im": (1j, -1j)}[part]
    spectrum[frequency % length] += unit / math.sqrt(2)
    spectrum[-frequency % length] += opposite / math.sqrt(2)
    return np.fft.ifft(spectrum, norm="ortho").real


def bayes_accuracy_after_pooling_as_printed(
    response: Array, stride: int, frequency: int, *, epsilon: float, sigma: float
) -> float:
    """NAD equation (2), thesis (3.3): sqrt(2) epsilon / (2 sigma) and an S inside gamma^2.

    The proof halves the argument (the step from N(+-epsilon, sigma^2/2) to its error rate) and forgets that the signal,
    too, is divided by sqrt(S). The two slips cancel at S = 4 in the complex model, and at S = 2 in the real one.
    """
    gamma = math.sqrt(stride) * aliasing_ratio(response, stride, frequency)
    return normal_cdf(math.sqrt(2) * epsilon / (2 * sigma) * gamma)


def bayes_accuracy_after_pooling_as_restated(
    response: Array, stride: int, frequency: int, *, epsilon: float, sigma: float
) -> float:
    """NAD section B.1, thesis (A.4): the theorem as restated before its proof, without the sqrt(2)."""
    return normal_cdf(epsilon / (2 * sigma) * math.sqrt(stride) * aliasing_ratio(response, stride, frequency))


# ---------------------------------------------------------------------------------------------------------------------
# As printed: average geometry at initialisation (GIH, appendix A.5 and example A.10)
# ---------------------------------------------------------------------------------------------------------------------


def mlp_geometry_as_printed(size: int, widths: list[int], *, weight_stds: list[float], readout_std: float) -> Array:
    """GIH equation (40): the variance of the readout has been dropped."""
    return mlp_geometry(size, widths, weight_stds=weight_stds, readout_std=1.0)


def pooled_convolution_geometry_as_printed(taps: Array, *, weight_std: float) -> Array:
    """GIH theorem A.3: each I_{j1,j2} read as the diagonal indicator of the inputs that patches j1 and j2 share.

    Their sum over j1 and j2 is the diagonal matrix of squared coverage counts.
    """
    return weight_std**2 / len(taps) ** 2 * np.diag(taps.sum(axis=(0, 2)) ** 2)


def example_geometry_as_printed(*, weight_std: float) -> Array:
    """GIH example A.10: with the factor weight_std^2 / 2."""
    return weight_std**2 / 2 * np.array([[1.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 1.0]])


def normalised_patch_bounds_as_printed(first_covariance: Array, second_covariance: Array) -> tuple[float, float]:
    """GIH corollary A.4: without the 1/d of lemma A.7."""
    lower, upper = normalised_patch_bounds(first_covariance, second_covariance)
    return len(first_covariance) * lower, len(first_covariance) * upper


# ---------------------------------------------------------------------------------------------------------------------
# As printed: two half-spaces (GIH, lemmas A.5 and A.6)
# ---------------------------------------------------------------------------------------------------------------------


def halfspace_second_moment_as_printed(first: Array, second: Array) -> Array:
    """GIH lemma A.5: p I alone.

    Entry by entry the rest is O(1/D) for spread-out vectors. As an operator it is not small: on b, where the proof of
    theorem 3.1 applies it, the term (sin t / 2 pi) a is as large as p b for every D.
    """
    cosine = float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))
    return (math.pi - math.acos(cosine)) / (2 * math.pi) * np.eye(len(first))


def halfspace_coefficients_as_printed(cosine: float) -> tuple[float, float, float]:
    """GIH equations (12), (19) and the line after (23), with the cotangent that c is meant to be.

    (12) is E[alpha exp(-alpha^2 c^2 / sqrt 2)] / pi over alpha > 0; (19) comes with a plus; the third is right.
    """
    cotangent = cosine / math.sqrt(1 - cosine**2)
    first = 1 / (math.pi * math.sqrt(2 * math.pi) * (1 + math.sqrt(2) * cotangent**2))
    second = cotangent / (2 * math.pi * (1 + cotangent**2))
    return first, second, 1 / (2 * math.pi * (1 + cotangent**2))


def halfspace_probability_moments_as_printed(size: int) -> tuple[float, float]:
    """GIH lemma A.6: those of a uniform variable on [0, 1], though p never exceeds 1/2."""
    del size
    return 1 / 2, 1 / 3


# ---------------------------------------------------------------------------------------------------------------------
# As printed: average geometry evolution (GIH, definition 2.2 and section 3), for the loss (1/2) sum (f(x_mu) - y_mu)^2
# ---------------------------------------------------------------------------------------------------------------------


def linear_evolution_as_printed(data: Array, *, weight_std: float) -> Array:
    """GIH section 3.1: the transpose of definition 2.2 has been forgotten."""
    return -(weight_std**2) * data.T @ data


def mlp_evolution_as_printed(data: Array, width: int, *, weight_std: float, readout_std: float) -> Array:
    """GIH section A.11.2, its last formula: fourth moments without their factors 2 and 3, and 1/2, 1/3 of lemma A.6."""
    w4r2, w2r4 = weight_std**4 * readout_std**2, weight_std**2 * readout_std**4
    pairs = width**2 - width
    outer = width * (w4r2 / 4 + w2r4 / 2) + pairs * (w4r2 + w2r4) / 3
    return -2 * (outer * data.T @ data + width * w4r2 / 4 * np.sum(data**2) * np.eye(data.shape[1]))


def pooled_convolution_evolution_as_printed(
    data: Array, taps: Array, channels: int, *, weight_std: float, readout_std: float
) -> Array:
    """GIH section A.11.3: n^2 in both places; the terms of order n that go with Q S Q are missing.

    I_{j1,j2} is read as M_{j1} M_{j2}^T, its definition, and not as the diagonal matrix that the text takes it for.
    """
    pooled = taps.sum(axis=0)
    gram, scatter = pooled @ pooled.T, data.T @ data
    w4r2, w2r4 = weight_std**4 * readout_std**2, weight_std**2 * readout_std**4
    projected = channels**2 * (w4r2 + w2r4) * gram @ scatter @ gram
    spread = channels * w4r2 * np.trace(pooled.T @ scatter @ pooled) * gram
    return -2 / len(taps) ** 4 * (projected + spread)


# ---------------------------------------------------------------------------------------------------------------------
# What finitely many draws do to a spectrum
# ---------------------------------------------------------------------------------------------------------------------


def marchenko_pastur_edges(size: int, draws: int, *, variance: float = 1.0) -> tuple[float, float]:
    """Limits of the non-zero eigenvalues of an isotropic sample covariance, variance (1 -+ sqrt(D/T))^2.

    From the Stieltjes transform m(z) of the limit law, ratio z m^2 + (z + ratio - 1) m + 1 = 0 for unit variance: the
    edges are where its discriminant (z + ratio - 1)^2 - 4 ratio z vanishes.
    """
    root = math.sqrt(size / draws)
    return variance * (1 - root) ** 2, variance * (1 + root) ** 2


def marchenko_pastur_density(values: Array, size: int, draws: int, *, variance: float = 1.0) -> Array:
    """Density of those eigenvalues per input dimension, sqrt((hi - v)(v - lo)) / (2 pi variance (D/T) v).

    It is the imaginary part of the Stieltjes transform over pi. For D > T it integrates to T/D: the other D - T
    eigenvalues are zero.
    """
    low, high = marchenko_pastur_edges(size, draws, variance=variance)
    inside = (values > low) & (values < high)
    safe = np.where(inside, values, 1.0)
    density = np.sqrt(np.maximum((high - safe) * (safe - low), 0)) / (2 * math.pi * variance * size / draws * safe)
    return np.where(inside, density, 0.0)


def sampled_trace_moments(size: int, draws: int, *, kurtosis: float = 3.0) -> tuple[float, float]:
    """E[(tr C)^2] and E[tr C^2] for C = (1/T) sum g g^T, g with independent entries of unit variance.

    kurtosis = E[g_i^4]: 3 for a Gaussian, 9/5 for a uniform law. E|g|^2 = D and E|g|^4 = D^2 + D (kurtosis - 1). The
    traces are averages over pairs of draws, T (T-1) of them different: (tr C)^2 of |g|^2 |h|^2, with means D^2 and
    E|g|^4; tr C^2 of (g.h)^2, with means D and E|g|^4. So D^2 + D (kurtosis - 1)/T and D (T + D + kurtosis - 2)/T.
    """
    return size**2 + size * (kurtosis - 1) / draws, size * (draws + size + kurtosis - 2) / draws


def plug_in_participation_ratio(size: int, draws: int, *, kurtosis: float = 3.0) -> float:
    """What (tr C)^2 / tr C^2 comes to on T isotropic draws instead of D: (T D + kurtosis - 1)/(T + D + kurtosis - 2).

    The ratio of the two exact means above; the mean of the ratio differs by a relative O(1/(T D)). For Gaussian draws
    from which the sample mean was removed, put T - 1 for T.
    """
    square_of_trace, trace_of_square = sampled_trace_moments(size, draws, kurtosis=kurtosis)
    return square_of_trace / trace_of_square


def independent_wishart_cosine(size: int, draws: int) -> float:
    """Corr of two independent isotropic sample covariances of T Gaussian draws each: T / (T + D + 1).

    E tr(A B) = tr(I I) = D, and E tr(A^2) = D (T + D + 1)/T. Positive matrices have no "random" cosine near zero: with
    T = D it is one half, not the 1/sqrt(D) of random vectors.
    """
    return draws / (draws + size + 1)
