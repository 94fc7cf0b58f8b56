"""HOW: closed forms for small models: what pooling does to a signal and to learning, gradients at initialisation, dipoles.

A linear pooling layer filters a signal and keeps every S-th value. In unitary Fourier coordinates it is ``A diag(m̂)``: ``m̂``
the response of the prefilter, ``A`` the aliasing matrix. The models of learning live there too, in real numbers:

    linear ``θᵀx`` · linear pooling ``θᵀA(m ⊙ φ ⊙ x)`` · one hidden ReLU layer ``θᵀrelu(Φᵀx)`` · non-linear pooling
    ``θᵀA(m ⊙ relu(φ ⊙ x))``

with independent weights, entries of θ from N(0, ``theta_std``²) and of φ or Φ from N(0, ``phi_std``²). ``prefilter`` is the real
``m``, ``response`` the complex ``m̂``, ``stride`` is S, ``epsilon`` and ``sigma`` are the signal and the noise of the data.
Arrays are NumPy, float64. The paper prints several other constants; a remark says where, and docs/errata.md how it was checked.

Reference:
    Ortiz-Jiménez, Modas, Moosavi-Dezfooli, Frossard (2020). Neural anisotropy directions. NeurIPS, sections 2, 3, B and C.
"""

# D input size · S stride · M = D/S bins after pooling · H hidden units

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

_DUST = 1e-12  # what is smaller, relative to the largest, is a rounding error of zero


def normal_cdf(value: float) -> float:
    """Φ, the standard normal distribution function; ``1 − Q`` in the paper."""
    return 0.5 * math.erfc(-value / math.sqrt(2.0))


def prefilter_response(name: str, size: int, stride: int) -> np.ndarray:
    """The response m̂ of a prefilter for pooling by S, on signals of length D: Hermitian with ``m̂[0] = 1``, (D,).

    Names: ``"box"`` is the mean of S neighbours, as in average pooling; ``"triangle"`` the box twice; ``"gaussian"`` has
    standard deviation S/2; ``"ideal"`` is 1 below the frequency M/2, 0 above and 1/2 at it; ``"none"`` is 1.

    Raises:
        ValueError: If there is no prefilter of that name.

    Example:
        >>> np.abs(prefilter_response("box", 8, 2)).round(3)  # |cos(π ℓ / 8)|
        array([1.   , 0.924, 0.707, 0.383, 0.   , 0.383, 0.707, 0.924])
    """
    frequency = (np.arange(size) + size // 2) % size - size // 2  # cycles per signal, negative in the second half
    window = np.exp(2j * math.pi / size * np.outer(np.arange(stride), frequency))  # of x[n], …, x[n + S − 1]
    responses = {
        "box": window.mean(axis=0),
        "triangle": window.mean(axis=0) ** 2,
        "gaussian": np.exp(-0.5 * (math.pi * stride / size * frequency) ** 2),
        "ideal": np.heaviside(size - 2 * stride * np.abs(frequency), 0.5),
        "none": np.ones(size),
    }
    if name in responses:
        return np.asarray(responses[name], dtype=complex)
    known = ", ".join(repr(known) for known in responses)
    raise ValueError(f"prefilter must be one of {known}, got {name!r}. Pass prefilter='box' for average pooling.")


def aliasing_matrix(size: int, stride: int) -> np.ndarray:
    """``A = S^(−1/2) [I_M … I_M]``, which folds a spectrum of length D onto M bins, (M, D).

    ``AᵀA`` holds 1/S where two indices agree modulo M and 0 elsewhere: ``(AᵀA)_ii = 1/S``, the factor that the paper loses
    several times. (It also writes M = ⌈D/S⌉, but S must divide D.)

    Raises:
        ValueError: If S does not divide D.

    Example:
        >>> aliasing_matrix(4, 2) * math.sqrt(2)
        array([[1., 0., 1., 0.],
               [0., 1., 0., 1.]])
    """
    if stride < 1 or size % stride:
        raise ValueError(f"stride must divide the input size {size}, got {stride}. Pass one of its divisors.")
    return np.tile(np.eye(size // stride), stride) / math.sqrt(stride)


def pooling_operator(response: np.ndarray, stride: int) -> np.ndarray:
    """The real matrix of a linear pooling layer, (M, D): filter with this response, keep every S-th value.

    ``F_M^H A diag(m̂) F_D`` with unitary Fourier matrices; real because the response of a real filter is Hermitian.
    """
    fourier = np.fft.fft(np.eye(len(response)), norm="ortho", axis=0)
    folded = aliasing_matrix(len(response), stride) @ (response[:, None] * fourier)
    return np.fft.ifft(folded, norm="ortho", axis=0).real


def real_fourier_vector(size: int, frequency: int, part: str = "re") -> np.ndarray:
    """The unit vector v_ℓ: the cosine (``"re"``) or sine (``"im"``) of this frequency, (D,)."""
    angle = 2 * math.pi * frequency * np.arange(size) / size
    vector = {"re": np.cos(angle), "im": np.sin(angle)}[part]
    return np.asarray(vector / np.linalg.norm(vector))


# The Bayes accuracy on D(v_l) after pooling: x = epsilon y v + w, w ~ N(0, sigma^2 (I - v v^T)), y = +1 or -1


def aliasing_ratio(response: np.ndarray, stride: int, frequency: int) -> float:
    """``γ'(ℓ) = |m̂[ℓ]| / √(Σ_{k≥1} |m̂[ℓ + kM]|²)``: a frequency's response over that of all that fold onto it.

    Remark: the paper's γ is √S times this; the S does not belong there, since pooling divides signal and noise alike.
    """
    size = len(response)
    magnitude = np.abs(response)
    aliases = float(np.linalg.norm(magnitude[(frequency + np.arange(1, stride) * (size // stride)) % size]))
    own, dust = float(magnitude[frequency % size]), _DUST * float(magnitude.max())
    return 0.0 if own <= dust else math.inf if aliases <= dust else own / aliases


def bayes_accuracy_after_pooling(
    response: np.ndarray, stride: int, frequency: int, *, epsilon: float, sigma: float
) -> float:
    """Best accuracy on pooled D(v_ℓ) where 2ℓ is no multiple of M: ``Φ((ε/σ) γ'(ℓ))`` (theorem 1, corrected).

    In unitary Fourier coordinates x has ``εy/√2`` at ℓ and its conjugate at −ℓ, and at ℓ no other noise than in quadrature. All
    other coefficients carry circular noise, σ²/2 in each of their two parts. Pooling adds the S coefficients ℓ + kM, weighted
    by the response and divided by √S; −ℓ is not among them. Turn the bin by the phase of the response at ℓ: its real part is
    ``|m̂[ℓ]| εy/√2`` plus noise of variance ``(σ²/2) Σ_{k≥1} |m̂[ℓ+kM]|²``, all over S; its imaginary part and all other bins
    are independent of y. S and both halves cancel. Remark: printed is ``1 − Q((√2 ε/2σ) √S γ')``, which is this only at S = 2.

    Raises:
        ValueError: If 2ℓ is a multiple of M: ℓ and −ℓ fold onto one bin.

    Example:
        >>> round(bayes_accuracy_after_pooling(prefilter_response("box", 128, 4), 4, 9, epsilon=1, sigma=3), 4)
        0.7337
    """
    if 2 * frequency % (len(response) // stride) == 0:
        message = f"frequency must not fold onto one bin with its negative, got {frequency}. "
        raise ValueError(message + "Use bayes_accuracy_after_pooling_any_frequency.")
    return normal_cdf(epsilon / sigma * aliasing_ratio(response, stride, frequency))


def bayes_rule_after_pooling(
    response: np.ndarray, stride: int, frequency: int, part: str = "re"
) -> tuple[np.ndarray, float]:
    """The best linear rule on pooled D(v_ℓ), (M,), and how far apart it sets the classes if ε = σ.

    ``z = Px`` is N(yμ, Σ) with ``μ = εPv`` and ``Σ = σ²P(I − vvᵀ)Pᵀ``. Two Gaussians of one covariance are best told apart by
    the sign of ``μᵀΣ⁺z``, right with probability ``Φ(√(μᵀΣ⁺μ))``. Where μ leaves the range of Σ, its part outside is a direction
    without noise, and the distance is infinite; where μ vanishes, both are zero.
    """
    pooling = pooling_operator(response, stride)
    direction = real_fourier_vector(len(response), frequency, part)
    scale = float(np.linalg.norm(pooling, 2))
    noise = pooling - np.outer(pooling @ direction, direction)
    values, vectors = np.linalg.eigh(noise @ noise.T)
    signal = vectors.T @ (pooling @ direction)
    noisy = values > _DUST * scale**2
    if float(np.linalg.norm(signal[~noisy])) > 1e-9 * scale:
        return vectors[:, ~noisy] @ signal[~noisy], math.inf
    distance = math.sqrt(float(np.sum(signal[noisy] ** 2 / values[noisy])))
    if distance < 1e-9:
        return np.zeros(len(signal)), 0.0
    return vectors[:, noisy] @ (signal[noisy] / values[noisy]), distance


def bayes_accuracy_after_pooling_any_frequency(
    response: np.ndarray, stride: int, frequency: int, *, epsilon: float, sigma: float, part: str = "re"
) -> float:
    """Best accuracy on pooled D(v_ℓ) for every ℓ: ``Φ(√(μᵀΣ⁺μ))``, see :func:`bayes_rule_after_pooling`.

    Example:
        >>> response = prefilter_response("box", 32, 4)  # a constant passes an average, its aliases do not
        >>> bayes_accuracy_after_pooling_any_frequency(response, 4, 0, epsilon=1, sigma=2)
        1.0
    """
    return normal_cdf(epsilon / sigma * bayes_rule_after_pooling(response, stride, frequency, part)[1])


def bayes_accuracy_after_pooling_complex(
    response: np.ndarray, stride: int, frequency: int, *, epsilon: float, sigma: float
) -> float:
    """The same in the model of the proof, a complex signal: εy at ℓ, circular noise of power σ² at all other frequencies.

    The signal is not shared with −ℓ, so it is √2 larger against the same noise: ``Φ(√2 (ε/σ) γ'(ℓ))``, for every ℓ.
    Remark: printed is ``1 − Q((√2 ε/2σ) √S γ')``, which is this only at S = 4.
    """
    return normal_cdf(math.sqrt(2) * epsilon / sigma * aliasing_ratio(response, stride, frequency))


# Gradient covariances E[grad grad^T], (D, D), and mixed-derivative Grams E[B^T B] with B = d^2 f / d(weights) dx


def linear_gradient_covariance(size: int, *, weight_std: float) -> np.ndarray:
    """Of ``f(x) = θᵀx``: the gradient is θ, its second moment ``weight_std² I`` (example 2)."""
    return weight_std**2 * np.eye(size)


def linear_mixed_gram(size: int) -> np.ndarray:
    """Of ``f(x) = θᵀx``: the mixed derivative is the identity, and so is its Gram."""
    return np.eye(size)


def linear_pooling_gradient_covariance(
    prefilter: np.ndarray, stride: int, *, theta_std: float, phi_std: float
) -> np.ndarray:
    """Of the linear pooling model: ``(σ_θ²σ_φ²/S) diag(m²)``.

    The gradient is ``(Aᵀθ) ⊙ φ ⊙ m``. Its second moment is the entrywise product of ``σ_θ² AᵀA``, ``σ_φ² I`` and ``mmᵀ``; the
    identity keeps the diagonal, where ``(AᵀA)_ii = 1/S``. Remark: equation (4) lacks the 1/S.
    """
    return theta_std**2 * phi_std**2 / stride * np.diag(prefilter**2)


def linear_pooling_mixed_gram(prefilter: np.ndarray, stride: int, *, theta_std: float, phi_std: float) -> np.ndarray:
    """Of the linear pooling model: ``((σ_θ² + σ_φ²)/S) diag(m²)``.

    The rows of B for θ, ``A diag(φ ⊙ m)``, give ``(σ_φ²/S) diag(m²)``; those for φ, ``diag((Aᵀθ) ⊙ m)``, give ``(σ_θ²/S)
    diag(m²)``. Remark: in equation (5) the term of σ_θ² has lost its 1/S.
    """
    return (theta_std**2 + phi_std**2) / stride * np.diag(prefilter**2)


def relu_layer_gradient_covariance(size: int, hidden: int, *, theta_std: float, phi_std: float) -> np.ndarray:
    """Of one hidden ReLU layer with H units, at any x other than 0: ``(H/2) σ_θ²σ_Φ² I``.

    The gradient is ``Σ_h θ_h 1[φ_hᵀx > 0] φ_h``. The θ_h are independent, so only squares survive; of φ and −φ, alike in law,
    exactly one is in the half-space: ``E[1[φᵀx > 0] φφᵀ] = E[φφᵀ]/2``. Remark: example 3 lacks the H, its proof has D for it.
    """
    return hidden / 2 * theta_std**2 * phi_std**2 * np.eye(size)


def relu_layer_mixed_gram(size: int, hidden: int, *, theta_std: float, phi_std: float) -> np.ndarray:
    """Of one hidden ReLU layer: ``(H/2)(σ_Φ² + σ_θ²) I`` (printed nowhere).

    The row of B for θ_h is ``1_h φ_hᵀ`` and contributes ``(σ_Φ²/2) I``; the D rows for φ_h are ``θ_h 1_h I``: ``(σ_θ²/2) I``.
    """
    return hidden / 2 * (theta_std**2 + phi_std**2) * np.eye(size)


def nonlinear_pooling_xi(inputs: np.ndarray, *, phi_std: float) -> np.ndarray:
    """``Ξ(x) = E[uuᵀ]`` with ``u_i = φ_i 1[φ_i x_i > 0]``, for x without zeros, (D, D).

    On the diagonal ``E[φ² 1[φx > 0]] = σ_φ²/2`` by symmetry. Off it the φ_i are independent and ``E[φ 1[φx > 0]] = sign(x)
    σ_φ/√(2π)``, so ``Ξ_ij = sign(x_i x_j) σ_φ²/2π``. Remark: example 4 prints a variance, ``(σ_φ²/2)(1 − 2/π)``, on the diagonal.
    """
    signs = np.sign(inputs)
    xi = phi_std**2 / (2 * math.pi) * np.outer(signs, signs)
    np.fill_diagonal(xi, phi_std**2 / 2)
    return xi


def nonlinear_pooling_mean_xi(sign_correlation: np.ndarray, *, phi_std: float) -> np.ndarray:
    """``E_x[Ξ(x)] = (σ_φ²/2) I + (σ_φ²/2π)(R − I)`` for inputs with ``R_ij = E[sign(x_i) sign(x_j)]``.

    Remark: example 4 prints I for every law symmetric around 0. A multiple of I needs pairwise uncorrelated signs, which
    symmetry alone does not give (take x_1 = x_2).
    """
    identity = np.eye(len(sign_correlation))
    return phi_std**2 / 2 * identity + phi_std**2 / (2 * math.pi) * (sign_correlation - identity)


def nonlinear_pooling_gradient_covariance(
    inputs: np.ndarray, prefilter: np.ndarray, stride: int, *, theta_std: float, phi_std: float
) -> np.ndarray:
    """Of the non-linear pooling model at x: ``σ_θ² (AᵀA ⊙ mmᵀ ⊙ Ξ(x))``.

    The gradient is ``(Aᵀθ) ⊙ m ⊙ u`` with u as in Ξ. Remark: example 4 has another σ_φ² in front, which Ξ already holds.
    """
    return theta_std**2 * _folded_xi(inputs, prefilter, stride, phi_std)


def nonlinear_pooling_mixed_gram(
    inputs: np.ndarray, prefilter: np.ndarray, stride: int, *, theta_std: float, phi_std: float
) -> np.ndarray:
    """Of the non-linear pooling model at x: ``AᵀA ⊙ mmᵀ ⊙ Ξ(x) + (σ_θ²/2S) diag(m²)`` (printed nowhere).

    The rows of B for θ are ``A diag(m ⊙ u)``, those for φ ``diag((Aᵀθ) ⊙ m ⊙ 1[φ ⊙ x > 0])``.
    """
    return _folded_xi(inputs, prefilter, stride, phi_std) + theta_std**2 / (2 * stride) * np.diag(prefilter**2)


def _folded_xi(inputs: np.ndarray, prefilter: np.ndarray, stride: int, phi_std: float) -> np.ndarray:
    folding = aliasing_matrix(len(prefilter), stride)
    xi = nonlinear_pooling_xi(inputs, phi_std=phi_std)
    return np.asarray((folding.T @ folding) * np.outer(prefilter, prefilter) * xi)


# Lemma 1: the Hessian of J = (y - f(x))^2 of the linear pooling model, averaged over the weights and over the data
# x = epsilon y e_l + w, w ~ N(0, sigma^2 I). It is 2 grad f grad f^T plus 2 (f - y) times the second derivative of f,
# which has only a (theta, phi) block, A diag(m . x). Throughout E[x x^T] = epsilon^2 e_l e_l^T + sigma^2 I.


def loss_hessian_phi(
    prefilter: np.ndarray, stride: int, frequency: int, *, epsilon: float, sigma: float, theta_std: float
) -> np.ndarray:
    """``H_φ = E[∂²J/∂φ²] = (2σ_θ²/S)(ε²m²[ℓ] diag(e_ℓ) + σ² diag(m²))``, (D, D).

    ``∂f/∂φ = (Aᵀθ) ⊙ m ⊙ x``, so the mean is ``2σ_θ² AᵀA ⊙ mmᵀ ⊙ E[xxᵀ]``, a diagonal. Remark: printed without the 1/S.
    """
    return 2 * theta_std**2 / stride * np.diag(_power(prefilter, frequency, epsilon, sigma))


def loss_hessian_theta(
    prefilter: np.ndarray, stride: int, frequency: int, *, epsilon: float, sigma: float, phi_std: float
) -> np.ndarray:
    """``H_θ = E[∂²J/∂θ²] = 2σ_φ² A diag(m² ⊙ diag E[xxᵀ]) Aᵀ``, (M, M).

    ``∂f/∂θ = A(m ⊙ φ ⊙ x)``: noise ``2σ²σ_φ² A diag(m²) Aᵀ``, and signal ``2ε²σ_φ²m²[ℓ]/S`` on the bin ℓ mod M. Remark: the
    paper prints the signal without 1/S, and the noise without Aᵀ, an M × D matrix.
    """
    folding = aliasing_matrix(len(prefilter), stride)
    return np.asarray(2 * phi_std**2 * (folding * _power(prefilter, frequency, epsilon, sigma)) @ folding.T)


def loss_hessian_cross(prefilter: np.ndarray, stride: int, frequency: int, *, epsilon: float) -> np.ndarray:
    """``E[∂²J/∂θ∂φ] = −2ε m[ℓ] A e_ℓ e_ℓᵀ``, (M, D): a single entry, of size ``2ε m[ℓ]/√S``.

    ``∂f/∂θ (∂f/∂φ)ᵀ`` is linear in θ and in φ: its mean is zero. What remains is ``2E[(f − y) A diag(m ⊙ x)]``; ``E[f x]``
    vanishes with the weights, but label and input are correlated, ``E[y x] = ε e_ℓ``. Remark: the paper prints zero. For small
    weights the average Hessian is indefinite (the origin is a saddle), and this block is what training escapes along.
    """
    unit = np.eye(len(prefilter))[frequency]
    folded = aliasing_matrix(len(prefilter), stride) @ unit
    return np.asarray(-2 * epsilon * prefilter[frequency] * np.outer(folded, unit))


def signal_curvature_ratio(prefilter: np.ndarray, *, epsilon: float, sigma: float) -> np.ndarray:
    """``ζ(ℓ) = ε²m²[ℓ] / (σ² max m²)`` at every ℓ: curvature of the signal over the largest of the noise in H_φ, (D,).

    Example:
        >>> signal_curvature_ratio(np.array([2.0, 1.0]), epsilon=1.0, sigma=0.5)
        array([4., 1.])
    """
    return np.asarray((epsilon / sigma) ** 2 * prefilter**2 / np.max(prefilter**2))


def _power(prefilter: np.ndarray, frequency: int, epsilon: float, sigma: float) -> np.ndarray:
    signal = np.zeros(len(prefilter))
    signal[frequency] = epsilon**2
    return np.asarray((sigma**2 + signal) * prefilter**2)


# A discriminative dipole: the two samples (x, +1) and (x + v, -1)


def dipole_metric(
    function: Callable[[np.ndarray], np.ndarray],
    point: np.ndarray,
    direction: np.ndarray,
    *,
    growth: Callable[[np.ndarray], np.ndarray] = np.square,
) -> np.ndarray:
    """``q_θ(v) = g(|f_θ(x) − f_θ(x + v)|)``: how far a network tells the two ends of a dipole apart, g increasing on t ≥ 0.

    To first order in v it is ``g(|vᵀ∇_x f|)``, exactly so for linear f; with g(t) = t² its mean over the weights is then
    ``vᵀCv``, C the gradient covariance. ``function`` may return one value or one for each draw of the weights.

    Example:
        >>> float(dipole_metric(lambda x: 3.0 * x[..., 0], np.zeros(2), np.array([2.0, 5.0])))
        36.0
    """
    return growth(np.abs(function(point) - function(point + direction)))


def dipole_speed_bound(
    gradient_power: float, mixed_power: float, mixed_norm: float | None = None, *, alpha: float, beta: float
) -> float:
    """Lemma 2: ``E‖∇_θ q(v)‖ ≤ α √(E t²) √(E‖Bv‖²) + β E‖Bv‖`` for ``t = vᵀ∇_x f`` and ``|g'(t)| ≤ α|t| + β``.

    ``‖∇_θ q‖ = |g'(|t|)| ‖Bv‖``, B the mixed derivative; insert the bound on g' and apply Cauchy–Schwarz to its first term only.
    Remark: equation (3) has α² for α, which is no bound once α < 1.

    Args:
        gradient_power: ``E t² = vᵀCv``, C the gradient covariance.
        mixed_power: ``E‖Bv‖² = vᵀE[BᵀB]v``, from the mixed-derivative Gram.
        mixed_norm: ``E‖Bv‖``; by default the root of its power, which is no smaller.
        alpha: Slope of the bound on g'.
        beta: Its offset.

    Example:
        >>> dipole_speed_bound(4.0, 9.0, alpha=2.0, beta=1.0)
        15.0
    """
    norm = math.sqrt(mixed_power) if mixed_norm is None else mixed_norm
    return alpha * math.sqrt(gradient_power * mixed_power) + beta * norm


def dipole_volume_bound(direction: np.ndarray, gradient_covariance: np.ndarray, *, level: float) -> float:
    """Equation (6): the share of weights with ``(vᵀ∇_x f)² ≥ η`` is at most ``vᵀCv/η`` (Markov's inequality).

    It bounds the share with ``q_θ(v) ≥ η``, for g(t) = t², only as far as the dipole is short enough for first order.

    Raises:
        ValueError: If the level η is not positive.

    Example:
        >>> dipole_volume_bound(np.array([0.0, 1.0]), np.diag([1.0, 0.25]), level=0.5)
        0.5
    """
    if level <= 0:
        raise ValueError(f"level must be above 0, where every network reaches it, got {level}. Pass level=1.0.")
    return min(1.0, float(direction @ gradient_covariance @ direction) / level)
