"""Closed forms that the tests hold the library against, each with its derivation.

An oracle that shares code with what it judges proves nothing, so nothing here uses the library, but for one thing: the
models of pooling and of one hidden layer ship in `biascope.pooling_models` with their derivations, and what is left of them
here is how the paper prints them. Every function returns float64 NumPy arrays (or floats), and every one, here or shipped, is
checked against automatic differentiation and Monte Carlo in `test_closed_forms.py` or `test_pooling_models.py`. Where a paper
prints something else, that form is kept under the right one's name with `_as_printed`, and a test shows it failing.

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
import torch

from biascope.pooling_models import (
    aliasing_matrix,
    aliasing_ratio,
    loss_hessian_phi,
    nonlinear_pooling_xi,
    normal_cdf,
)

Array = np.ndarray


def frobenius_cosine(left: Array, right: Array) -> float:
    """Corr(A, B) = tr(A^T B) / (|A| |B|), the similarity that the GIH paper uses."""
    return float(np.sum(left * right) / (np.linalg.norm(left) * np.linalg.norm(right)))


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
# Average geometry at initialisation (GIH, appendix A.5 and example A.10)
# ---------------------------------------------------------------------------------------------------------------------


def tap_matrices(size: int, kernel: int, padding: str = "valid", stride: int = 1) -> Array:
    """The binary matrices M_j of a one-dimensional convolution, stacked: (positions, size, kernel).

    M_j[q, t] = 1 when tap t of the patch at position j reads input q, so that the layer computes w^T M_j^T x.
    """
    offset = (kernel - 1) // 2 if padding == "zero" else 0
    starts = range(-offset, (size if padding == "circular" else size + 2 * offset - kernel + 1) - offset, stride)
    taps = np.zeros((len(starts), size, kernel))
    for position, start in enumerate(starts):
        for tap in range(kernel):
            pixel = (start + tap) % size if padding == "circular" else start + tap
            if 0 <= pixel < size:
                taps[position, pixel, tap] = 1
    return taps


def tap_matrices_2d(rows: Array, columns: Array) -> Array:
    """The M_j of a two-dimensional convolution from those along its rows and its columns (flattened row by row)."""
    return np.stack([np.kron(row, column) for row in rows for column in columns])


def coverage(taps: Array) -> Array:
    """How many patches contain each input."""
    return taps.sum(axis=(0, 2))


def mlp_geometry(size: int, widths: list[int], *, weight_stds: list[float], readout_std: float) -> Array:
    """G of a ReLU MLP of any depth, at any x other than 0 (theorem A.2, exact at finite width).

    Let J be the Jacobian of the last hidden layer: G = readout_std^2 E[J^T J]. The last layer gives J = D W J', D the
    0/1 diagonal of active units. Given the layers below, each row w of W is in the half-space of its input or -w is, so
    E[W^T D W] = width (weight_std^2 / 2) I, and J'^T J' remains: repeat. (Where the input of a layer is exactly zero,
    J' is zero as well.) G = readout_std^2 prod_l (width_l weight_std_l^2 / 2) I.
    """
    scale = math.prod(width * std**2 / 2 for width, std in zip(widths, weight_stds, strict=True))
    return readout_std**2 * scale * np.eye(size)


def mlp_geometry_as_printed(size: int, widths: list[int], *, weight_stds: list[float], readout_std: float) -> Array:
    """GIH equation (40): the variance of the readout has been dropped."""
    return mlp_geometry(size, widths, weight_stds=weight_stds, readout_std=1.0)


def convolution_geometry(
    taps: list[Array], channels: list[int], *, weight_stds: list[float], readout_std: float
) -> Array:
    """G of a ReLU CNN without pooling, read out by one independent weight per last-layer unit (theorem A.2 put right).

    As for the MLP, but a row of W is the kernel laid over one patch: half its second moment is (weight_std^2 / 2) times
    the indicator of that patch, on the diagonal. If the units at position p enter with weight v(p), the layer below
    enters with v'(q) = channels (weight_std^2 / 2) sum of v(p) over the patches p that contain q. G is diagonal: for
    one layer the coverage count, for several the number of paths. It is a multiple of I for circular padding with
    stride 1, where every input lies in d patches, and is not with valid or zero padding.

    Args:
        taps: one stack of tap matrices per layer, first layer first.
        channels: output channels per layer; the input has one channel.
        weight_stds: one per layer.
        readout_std: standard deviation of the readout weights.
    """
    weight = np.ones(len(taps[-1]))
    for layer, count, std in zip(reversed(taps), reversed(channels), reversed(weight_stds), strict=True):
        weight = count * std**2 / 2 * layer.sum(axis=2).T @ weight
    return readout_std**2 * np.diag(weight)


def pooled_convolution_geometry(
    taps: Array, *, weight_std: float, channels: int = 1, readout_std: float = 1.0
) -> Array:
    """G of a linear convolution followed by global average pooling (theorem A.3 put right; exact).

    f(x) = (1/k) sum_i omega_i phi_i^T P^T x with P = sum_j M_j, so the gradient is (1/k) sum_i omega_i P phi_i and
    G = (channels readout_std^2 weight_std^2 / k^2) P P^T. P has d columns: G has rank at most d, far from diagonal. The
    model of theorem A.3 has one channel and a fixed unit readout: the defaults.
    """
    pooled = taps.sum(axis=0)
    return channels * readout_std**2 * weight_std**2 / len(taps) ** 2 * pooled @ pooled.T


def pooled_valid_overlap(size: int, kernel: int) -> Array:
    """P P^T of a valid one-dimensional convolution, entry by entry.

    P[q, t] = 1 when q - t is one of the k = size - kernel + 1 positions, i.e. for the taps t from max(0, q - k + 1) to
    min(q, kernel - 1). (P P^T)[q, r] counts the taps that q and r share: for q <= r,
    max(0, min(q, kernel - 1) - max(0, r - k + 1) + 1). It vanishes for |q - r| >= k, so it is banded only when there
    are few positions; with a small kernel all inputs away from the border share all d taps and form a constant block.
    """
    positions = size - kernel + 1
    first = np.arange(size)[:, None]
    low, high = np.minimum(first, first.T), np.maximum(first, first.T)
    return np.maximum(0, np.minimum(low, kernel - 1) - np.maximum(0, high - positions + 1) + 1).astype(float)


def pooled_convolution_geometry_as_printed(taps: Array, *, weight_std: float) -> Array:
    """GIH theorem A.3: each I_{j1,j2} read as the diagonal indicator of the inputs that patches j1 and j2 share.

    Their sum over j1 and j2 is the diagonal matrix of squared coverage counts.
    """
    return weight_std**2 / len(taps) ** 2 * np.diag(coverage(taps) ** 2)


def example_geometry(*, weight_std: float) -> Array:
    """GIH example A.10, three inputs and a kernel of two: G = (weight_std^2 / 4) [[1,1,0],[1,2,1],[0,1,1]].

    The gradient is (1/2) (t1, t1 + t2, t2); its outer product keeps the factor 1/4 that is printed as 1/2.
    """
    return weight_std**2 / 4 * np.array([[1.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 1.0]])


def example_geometry_as_printed(*, weight_std: float) -> Array:
    """GIH example A.10: with the factor weight_std^2 / 2."""
    return 2 * example_geometry(weight_std=weight_std)


def normalised_patch_bounds(first_covariance: Array, second_covariance: Array) -> tuple[float, float]:
    """Bounds, as multiples of I, on E[theta theta^T / (s_1 s_2)] with s_j^2 = theta^T C_j theta (corollary A.4).

    lambda_min |theta|^2 <= s_j^2 <= lambda_max |theta|^2, and theta theta^T is positive, so the ratio lies between
    multiples of E[theta theta^T / |theta|^2] = I / d (lemma A.7). With standard deviations s_j the scale of theta
    cancels: I / (d sqrt(lmax_1 lmax_2)) below, I / (d sqrt(lmin_1 lmin_2)) above. The order holds for this symmetric
    matrix; M_{j1} E[...] M_{j2}^T is not symmetric for j1 != j2 and has no place in it.
    """
    size = len(first_covariance)
    first, second = np.linalg.eigvalsh(first_covariance), np.linalg.eigvalsh(second_covariance)
    return 1 / (size * math.sqrt(first[-1] * second[-1])), 1 / (size * math.sqrt(first[0] * second[0]))


def normalised_patch_bounds_as_printed(first_covariance: Array, second_covariance: Array) -> tuple[float, float]:
    """GIH corollary A.4: without the 1/d of lemma A.7."""
    lower, upper = normalised_patch_bounds(first_covariance, second_covariance)
    return len(first_covariance) * lower, len(first_covariance) * upper


# ---------------------------------------------------------------------------------------------------------------------
# Two half-spaces (GIH, lemmas A.5 and A.6)
# ---------------------------------------------------------------------------------------------------------------------


def halfspace_second_moment(first: Array, second: Array) -> Array:
    """K = E[1[g.a > 0] 1[g.b > 0] g g^T] for g ~ N(0, I) and vectors a, b at an angle t, exact in every dimension.

    With unit a, b: integrating by parts, K b = E[grad(relu(g.b) 1[g.a > 0])] = p b + E[relu(g.b) delta(g.a)] a, where
    p = (pi - t) / (2 pi) is the probability of both. The last mean is the density of g.a at 0, 1/sqrt(2 pi), times
    E[relu(sin t z)] = sin t / sqrt(2 pi). So K b = p b + (sin t / 2 pi) a, K a = p a + (sin t / 2 pi) b, and K = p I on
    the orthogonal complement. In the orthonormal pair (a, c), b = cos t a + sin t c:
    K = p I + (sin t cos t / 2 pi) (a a^T - c c^T) + (sin^2 t / 2 pi) (a c^T + c a^T).
    """
    a, b = first / np.linalg.norm(first), second / np.linalg.norm(second)
    cosine = float(a @ b)
    sine = math.sqrt(1 - cosine**2)
    c = (b - cosine * a) / sine
    along, across, mixed = halfspace_coefficients(cosine)
    probability = (math.pi - math.acos(cosine)) / (2 * math.pi)
    plane = along * np.outer(a, a) + across * np.outer(c, c) + mixed * (np.outer(a, c) + np.outer(c, a))
    return probability * np.eye(len(a)) + plane


def halfspace_second_moment_as_printed(first: Array, second: Array) -> Array:
    """GIH lemma A.5: p I alone.

    Entry by entry the rest is O(1/D) for spread-out vectors. As an operator it is not small: on b, where the proof of
    theorem 3.1 applies it, the term (sin t / 2 pi) a is as large as p b for every D.
    """
    cosine = float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))
    return (math.pi - math.acos(cosine)) / (2 * math.pi) * np.eye(len(first))


def halfspace_coefficients(cosine: float) -> tuple[float, float, float]:
    """Coefficients of a a^T, c c^T and a c^T + c a^T in K - p I (see `halfspace_second_moment`).

    With cot = cos t / sin t they read cot/(2 pi (1 + cot^2)), its negative, and 1/(2 pi (1 + cot^2)).
    """
    sine = math.sqrt(1 - cosine**2)
    return sine * cosine / (2 * math.pi), -sine * cosine / (2 * math.pi), sine**2 / (2 * math.pi)


def halfspace_coefficients_as_printed(cosine: float) -> tuple[float, float, float]:
    """GIH equations (12), (19) and the line after (23), with the cotangent that c is meant to be.

    (12) is E[alpha exp(-alpha^2 c^2 / sqrt 2)] / pi over alpha > 0; (19) comes with a plus; the third is right.
    """
    cotangent = cosine / math.sqrt(1 - cosine**2)
    first = 1 / (math.pi * math.sqrt(2 * math.pi) * (1 + math.sqrt(2) * cotangent**2))
    second = cotangent / (2 * math.pi * (1 + cotangent**2))
    return first, second, 1 / (2 * math.pi * (1 + cotangent**2))


def halfspace_probability_moments(size: int) -> tuple[float, float]:
    """Mean and mean square over a ~ N(0, I_D) of p = P(g.a > 0 and g.b > 0) for fixed b.

    p = (pi - t)/(2 pi) = 1/4 + s/(2 pi) with s = pi/2 - t, of density proportional to cos(s)^(D-2). That is even, so
    the mean is 1/4. Its characteristic function E cos(u s) = Gamma(D/2)^2 / (Gamma((D+u)/2) Gamma((D-u)/2)) has
    E s^2 = trigamma(D/2) / 2, so E p^2 = 1/16 + trigamma(D/2) / (8 pi^2): 1/12 in the plane, 1/16 for large D.
    """
    return 1 / 4, 1 / 16 + _trigamma(size / 2) / (8 * math.pi**2)


def halfspace_probability_moments_as_printed(size: int) -> tuple[float, float]:
    """GIH lemma A.6: those of a uniform variable on [0, 1], though p never exceeds 1/2."""
    del size
    return 1 / 2, 1 / 3


def _trigamma(value: float) -> float:
    return float(torch.special.polygamma(1, torch.tensor(value, dtype=torch.float64)))


# ---------------------------------------------------------------------------------------------------------------------
# Average geometry evolution (GIH, definition 2.2 and section 3), for the loss (1/2) sum (f(x_mu) - y_mu)^2
# ---------------------------------------------------------------------------------------------------------------------


def linear_evolution(data: Array, *, weight_std: float) -> Array:
    """Delta of f(x) = theta^T x at initialisation, S = sum x x^T over the rows of `data`.

    The gradient is theta, and its velocity -sum (theta^T x - y) x. The mean of velocity theta^T is -weight_std^2 S; the
    labels drop out with E theta = 0. Delta adds the transpose: -2 weight_std^2 S.
    """
    return -2 * weight_std**2 * data.T @ data


def linear_evolution_as_printed(data: Array, *, weight_std: float) -> Array:
    """GIH section 3.1: the transpose of definition 2.2 has been forgotten."""
    return -(weight_std**2) * data.T @ data


def mlp_evolution(data: Array, width: int, *, weight_std: float, readout_std: float) -> Array:
    """Delta of f(x) = sum_i omega_i relu(phi_i^T x), averaged over probes x ~ N(0, I): exact for all n and all D >= 2.

    Write a, b for the directions of x and of a data point x_mu, 1_i(x) for the indicator of unit i. Under the mean over
    the readout, minus one half of Delta is the sum over mu, i, j of

        readout_std^2 E[1_i(x) 1_i(x_mu) (phi_i.x_mu) phi_i  1_j(x) 1_j(x_mu) (phi_j.x_mu) phi_j^T]
        + E[omega_i^2 omega_j^2] E[1_i(x) 1_i(x_mu) 1_j(x) 1_j(x_mu) (phi_j.x_mu) x_mu phi_j^T].

    *n terms with i = j.* A probe halves: E_x 1_i(x) = 1/2; the remaining indicator halves again, by phi -> -phi. With
    E[(phi.x)^2 phi phi^T] = weight_std^4 (2 x x^T + |x|^2 I) and E omega^4 = 3 readout_std^4 this gives
    weight_std^4 readout_std^2 (x x^T / 2 + |x|^2 I / 4) + (3/4) weight_std^2 readout_std^4 x x^T.

    *n^2 - n terms with i != j.* Given x both factors are K(x), and K b = p b + (sin t / 2 pi) a from
    `halfspace_second_moment`. So with c_t = cos t, s_t = sin t the means over the uniform direction a are
    first:  |x|^2 weight_std^4 E[p^2 b b^T + (p s_t / 2 pi)(a b^T + b a^T) + (s_t^2 / 4 pi^2) a a^T],
    second: |x|^2 weight_std^2 E[p^2 b b^T + (p s_t / 2 pi) b a^T].
    a = c_t b + s_t u with u uniform on the sphere orthogonal to b, E[u u^T] = (I - b b^T)/(D - 1), and
    E p^2 as in `halfspace_probability_moments`, E[p s_t c_t] = (D - 1)/(2 pi D^2) (from the same characteristic
    function), E[s_t^2 c_t^2] = (D - 1)/(D (D + 2)), E[s_t^4] = (D - 1)(D + 1)/(D (D + 2)). Collecting,

        first:  weight_std^4 (C1 x x^T + C3 |x|^2 I),  second: weight_std^2 C2 x x^T,
        C1 = E p^2 + (D - 1)/(2 pi^2 D^2) - 1/(2 pi^2 D (D + 2)),  C2 = E p^2 + (D - 1)/(4 pi^2 D^2),
        C3 = (D + 1)/(4 pi^2 D (D + 2)).

    For large D: C1, C2 -> 1/16 and C3 -> 1/(4 pi^2 D), see `mlp_evolution_asymptotic`.
    """
    coefficients = mlp_evolution_coefficients(data.shape[1])
    return _mlp_evolution(data, width, weight_std, readout_std, *coefficients)


def mlp_evolution_coefficients(size: int) -> tuple[float, float, float]:
    """C1, C2, C3 of `mlp_evolution`.

    For b a unit vector and K(x) as in `halfspace_second_moment`: E[K b b^T K] = C1 b b^T + C3 I, E[p b b^T K] = C2 b b^T.
    """
    square = halfspace_probability_moments(size)[1]
    cross = (size - 1) / (4 * math.pi**2 * size**2)
    c1 = square + 2 * cross - 1 / (2 * math.pi**2 * size * (size + 2))
    return c1, square + cross, (size + 1) / (4 * math.pi**2 * size * (size + 2))


def mlp_evolution_asymptotic(data: Array, width: int, *, weight_std: float, readout_std: float) -> Array:
    """`mlp_evolution` to leading order in 1/D (theorem 3.1 put right).

    The identity term has D equal eigenvalues and does not go away: as n -> infinity, Delta is proportional to
    S + (4/pi^2) r (tr S / D) I with r = weight_std^2 / (weight_std^2 + readout_std^2). So |Corr(Delta, S)| tends to 1
    only if the effective rank (tr S)^2 / |S|^2 is small against D, or S is a multiple of I.
    """
    size = data.shape[1]
    return _mlp_evolution(data, width, weight_std, readout_std, 1 / 16, 1 / 16, 1 / (4 * math.pi**2 * size))


def mlp_evolution_as_printed(data: Array, width: int, *, weight_std: float, readout_std: float) -> Array:
    """GIH section A.11.2, its last formula: fourth moments without their factors 2 and 3, and 1/2, 1/3 of lemma A.6."""
    w4r2, w2r4 = weight_std**4 * readout_std**2, weight_std**2 * readout_std**4
    pairs = width**2 - width
    outer = width * (w4r2 / 4 + w2r4 / 2) + pairs * (w4r2 + w2r4) / 3
    return -2 * (outer * data.T @ data + width * w4r2 / 4 * np.sum(data**2) * np.eye(data.shape[1]))


def _mlp_evolution(
    data: Array, width: int, weight_std: float, readout_std: float, c1: float, c2: float, c3: float
) -> Array:
    w4r2, w2r4 = weight_std**4 * readout_std**2, weight_std**2 * readout_std**4
    pairs = width**2 - width
    outer = width * (w4r2 / 2 + 3 * w2r4 / 4) + pairs * (c1 * w4r2 + c2 * w2r4)
    identity = width * w4r2 / 4 + pairs * c3 * w4r2
    return -2 * (outer * data.T @ data + identity * np.sum(data**2) * np.eye(data.shape[1]))


def pooled_convolution_evolution(
    data: Array, taps: Array, channels: int, *, weight_std: float, readout_std: float
) -> Array:
    """Delta of the linear CNN with global pooling, exact at finite width n (theorem 3.2 put right); any probe.

    f(x) = (1/k) sum_i omega_i phi_i^T P^T x, P = sum_j M_j, Q = P P^T. With u = P^T x_mu, minus one half of Delta is
    k^-4 times the sum over mu, i, j of

        readout_std^2 P E[(phi_i.u) phi_i (phi_j.u) phi_j^T] P^T
        + E[omega_i^2 omega_j^2] Q x_mu E[(phi_j.u) phi_j^T] P^T.

    First: weight_std^4 u u^T for i != j and weight_std^4 (2 u u^T + |u|^2 I) for i = j, in all (n^2 + n) u u^T +
    n |u|^2 I. Second: weight_std^2 Q x_mu x_mu^T Q, n^2 - n times readout_std^4 and n times 3 readout_std^4, in all
    n^2 + 2 n. Hence Delta = -(2/k^4) {[(n^2 + n) r^2 w^4 + (n^2 + 2n) r^4 w^2] Q S Q + n r^2 w^4 tr(P^T S P) Q}.
    """
    return _pooled_evolution(data, taps, channels, weight_std, readout_std, channels**2 + channels, 2 * channels)


def pooled_convolution_evolution_as_printed(
    data: Array, taps: Array, channels: int, *, weight_std: float, readout_std: float
) -> Array:
    """GIH section A.11.3: n^2 in both places; the terms of order n that go with Q S Q are missing.

    I_{j1,j2} is read as M_{j1} M_{j2}^T, its definition, and not as the diagonal matrix that the text takes it for.
    """
    return _pooled_evolution(data, taps, channels, weight_std, readout_std, channels**2, 0)


def _pooled_evolution(
    data: Array, taps: Array, channels: int, weight_std: float, readout_std: float, first: int, second_extra: int
) -> Array:
    pooled = taps.sum(axis=0)
    gram, scatter = pooled @ pooled.T, data.T @ data
    w4r2, w2r4 = weight_std**4 * readout_std**2, weight_std**2 * readout_std**4
    projected = (first * w4r2 + (channels**2 + second_extra) * w2r4) * gram @ scatter @ gram
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
