"""HOW: closed forms of what pooling does to a signal and to learning.

A linear pooling layer filters a signal and keeps every S-th value. In unitary Fourier coordinates it is ``A diag(m̂)``: ``m̂``
the response of the prefilter, ``A`` the aliasing matrix. The model of learning lives there too, in real numbers:
``θᵀA(m ⊙ φ ⊙ x)`` with independent weights, entries of θ from N(0, ``theta_std``²) and of φ from N(0, ``phi_std``²). ``prefilter``
is the real ``m``, ``response`` the complex ``m̂``, ``stride`` is S, ``epsilon`` and ``sigma`` are the signal and the noise of the
data. Arrays are NumPy, float64. The paper prints several other constants; a remark says where, and docs/errata.md how it was
checked. The tests have more models.

Reference:
    Ortiz-Jiménez, Modas, Moosavi-Dezfooli, Frossard (2020). Neural anisotropy directions. NeurIPS, sections 2, 3, B and C.
"""

# D input size · S stride · M = D/S bins after pooling

from __future__ import annotations

import math

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


def bayes_rule_after_pooling(
    response: np.ndarray, stride: int, frequency: int, part: str = "re"
) -> tuple[np.ndarray, float]:
    """The best linear rule on pooled D(v_ℓ), (M,), and how far apart it sets the classes if ε = σ.

    ``z = Px`` is N(yμ, Σ) with ``μ = εPv`` and ``Σ = σ²P(I − vvᵀ)Pᵀ``. The best rule for two Gaussians of one covariance is
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
