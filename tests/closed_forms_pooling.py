"""Closed forms of gradients at initialisation, of dipoles, and of the accuracy after pooling, each with its derivation.

`biascope.measures.pooling_theory.models` has the forms that the measurement needs, and the operators of pooling used here. The
models of learning, in Fourier coordinates and real numbers:

    linear ``θᵀx`` · linear pooling ``θᵀA(m ⊙ φ ⊙ x)`` · one hidden ReLU layer ``θᵀrelu(Φᵀx)`` · non-linear pooling
    ``θᵀA(m ⊙ relu(φ ⊙ x))``

with independent weights, entries of θ from N(0, ``theta_std``²) and of φ or Φ from N(0, ``phi_std``²). ``prefilter`` is the real
``m``, ``response`` the complex ``m̂``, ``stride`` is S, ``epsilon`` and ``sigma`` are the signal and the noise of the data.
`test_closed_forms.py` and `measures/test_pooling_theory_models.py` check every form.

Reference:
    Ortiz-Jiménez, Modas, Moosavi-Dezfooli, Frossard (2020). Neural anisotropy directions. NeurIPS, sections 2, 3, B and C.
"""

# D input size · S stride · M = D/S bins after pooling · H hidden units

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from biascope.measures.pooling_theory.models import aliasing_matrix, aliasing_ratio, normal_cdf


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
        >>> from biascope.measures.pooling_theory import models
        >>> round(bayes_accuracy_after_pooling(models.prefilter_response("box", 128, 4), 4, 9, epsilon=1, sigma=3), 4)
        0.7337
    """
    if 2 * frequency % (len(response) // stride) == 0:
        message = f"frequency must not fold onto one bin with its negative, got {frequency}. "
        raise ValueError(message + "Use bayes_accuracy_after_pooling_any_frequency.")
    return normal_cdf(epsilon / sigma * aliasing_ratio(response, stride, frequency))


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
