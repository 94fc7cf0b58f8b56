"""HOW: closed forms of the evolution of the average geometry, for small models at initialisation.

The average geometry is ``G = E[∇_x f ∇_x fᵀ]``. Its evolution under gradient flow on ``½ Σ_μ (f(x_μ) − y_μ)²`` is ``Δ = D + Dᵀ``,
``D = −Σ_μ E[(f(x_μ) − y_μ) ∇²_{x,θ}f(x) ∇_θf(x_μ) ∇_xf(x)ᵀ]``. ``E`` averages over the weights and over probes x from N(0, I),
or from any other law without a preferred direction: these models are homogeneous. The models:

    one hidden ReLU layer ``Σ_i ω_i relu(φ_iᵀx)`` · linear convolution with global average pooling ``Σ_i ω_i φ_iᵀAᵀx``, where
    ``A = P/k`` and ``P = Σ_j M_j`` sums the matrices that cut out the k patches

with independent, centred weights: entries of φ from N(0, ``weight_std``²), of ω from N(0, ``readout_std``²). The labels drop
out of Δ wherever the readout is centred and symmetric (proposition A.1): every term with y_μ is odd in ω. So data enter only
through ``S = Σ_μ x_μx_μᵀ``, ``covariance`` below. Arrays are NumPy, float64. Everything here is exact.
The paper prints several other forms; a remark says where, and docs/errata.md how it was checked. The tests have more models.

Reference:
    Movahedi, Orvieto, Moosavi-Dezfooli (2025). Geometric inductive biases of deep networks. ICLR, sections 3, A.5, A.10, A.11.
"""

# D input size · k patch positions · d = taps of a patch · n width or channels

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch

from biascope.derivatives.matrices import correlation


def mean_tap_matrix(shape: Sequence[int], kernel: int, *, channels: int = 1) -> np.ndarray:
    """``A = P/k`` of a convolution without padding and global average pooling: (D, d).

    Entry (q, t) is 1/k where tap t reads input q at one of the k positions, else 0. Inputs of several channels are flattened
    channel by channel, row by row.

    Example:
        >>> mean_tap_matrix((3,), 2)[:, 0]  # the first of two taps reads the first two of three inputs
        array([0.5, 0.5, 0. ])
    """
    positions = [np.arange(length)[:, None] - np.arange(kernel) for length in shape]  # at which a tap reads an input
    last = [length - kernel for length in shape]
    axes = [((at >= 0) & (at <= end)) / (end + 1) for at, end in zip(positions, last, strict=True)]
    return functools.reduce(np.kron, axes, np.eye(channels))


def halfspace_probability_moments(size: int) -> tuple[float, float]:
    """Mean and mean square of ``p = P(gᵀa > 0, gᵀb > 0)`` over the direction of a (lemma A.6): 1/4 and ``1/16 + ψ₁(D/2)/8π²``.

    ``p = 1/4 + s/2π`` with ``s = π/2 − t`` of density ∝ cos(s)^(D−2). ``E cos(us) = Γ(D/2)²/(Γ((D+u)/2) Γ((D−u)/2))`` gives ``E s² =
    ψ₁(D/2)/2``, ψ₁ the trigamma function. Remark: printed are 1/2 and 1/3, for p uniform on [0, 1]; it never exceeds 1/2.

    Example:
        >>> mean, square = halfspace_probability_moments(2)  # uniform on [0, 1/2] in the plane only
        >>> round(12 * square, 12)
        1.0
    """
    from scipy.special import polygamma

    return 1 / 4, 1 / 16 + float(polygamma(1, size / 2)) / (8 * math.pi**2)


def halfspace_second_moment(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """``K = E[1[gᵀa > 0] 1[gᵀb > 0] ggᵀ]`` for g from N(0, I) and vectors a, b at an angle t, exact in every dimension (lemma A.5).

    For unit vectors, by parts: ``Kb = E∇(relu(gᵀb) 1[gᵀa > 0]) = pb + (sin t/2π) a``, where ``p = (π − t)/2π`` is the probability of
    both and ``sin t/2π`` the density of gᵀa at 0 times ``E relu(sin t z)``. Ka is alike, and K = pI on the rest of space. With
    ``b = cos t a + sin t c``: ``K = pI + (sin t cos t/2π)(aaᵀ − ccᵀ) + (sin² t/2π)(acᵀ + caᵀ)``. Remark: the lemma keeps pI. The
    rest is O(1/D) in each entry, but applied to b, as in the proof of theorem 3.1, it is as large as pb for every D.

    Example:
        >>> (4 * math.pi * halfspace_second_moment(np.array([1.0, 0.0]), np.array([0.0, 2.0])))[0]  # p = 1/4
        array([3.14159265, 2.        ])
    """
    a, b = first / np.linalg.norm(first), second / np.linalg.norm(second)
    cosine = float(np.clip(a @ b, -1, 1))
    across = b - cosine * a  # sin t c
    sine = float(np.linalg.norm(across))
    probability = (math.pi - math.atan2(sine, cosine)) / (2 * math.pi)
    c = across / sine if sine > 0 else across
    plane = sine * cosine * (np.outer(a, a) - np.outer(c, c)) + sine**2 * (np.outer(a, c) + np.outer(c, a))
    return probability * np.eye(len(a)) + plane / (2 * math.pi)


# Delta. All are negative along what they follow: under the squared error, G shrinks there


def mlp_evolution(covariance: np.ndarray, width: int, *, weight_std: float, readout_std: float) -> np.ndarray:
    """Of one hidden ReLU layer, exact for every width n and every D ≥ 2 (theorem 3.1 put right).

    ``Δ = −2{[n(α/2 + 3β/4) + (n²−n)(C₁α + C₂β)] S + [n/4 + (n²−n)C₃] α tr(S) I}`` with ``α = σ_φ⁴σ_ω²``, ``β = σ_φ²σ_ω⁴``, and the C of
    :func:`mlp_evolution_coefficients`. Over the readout, −Δ/2 is the sum over μ, i, j of

        ``σ_ω² E[1_i(x) 1_i(x_μ) (φ_iᵀx_μ) φ_i · 1_j(x) 1_j(x_μ) (φ_jᵀx_μ) φ_jᵀ]``
        ``+ E[ω_i²ω_j²] E[1_i(x) 1_i(x_μ) 1_j(x) 1_j(x_μ) (φ_jᵀx_μ) x_μφ_jᵀ]``,

    where 1_i(x) says that unit i is active at x. *i = j*: the probe halves, ``E_x 1_i(x) = 1/2``, and φ → −φ halves again. With
    ``E[(φᵀx)²φφᵀ] = σ_φ⁴(2xxᵀ + ‖x‖²I)`` and ``E ω⁴ = 3σ_ω⁴`` that is ``α(xxᵀ/2 + ‖x‖²I/4) + (3/4)β xxᵀ``. *i ≠ j*: given the probe,
    both factors are ``K = E[1[gᵀa > 0] 1[gᵀb > 0] ggᵀ]`` (lemma A.5), and the coefficients average over its direction. Remark:
    A.11.2 prints n(α/4 + β/2), (n²−n)(α + β)/3 and no C₃.

    To leading order in D, C₁ = C₂ = 1/16 and C₃ = 1/4π²D, with relative errors O(1/D). As n grows, Δ then becomes a
    multiple of ``S + (4/π²) σ_φ²/(σ_φ²+σ_ω²) (tr S/D) I``: the identity does not go away.

    Example:
        >>> mlp_evolution(np.diag([1.0, 0.0]), 1, weight_std=1.0, readout_std=1.0).diagonal()  # −2 (1/2 + 3/4 + 1/4), −2/4
        array([-3. , -0.5])
    """
    size, pairs = len(covariance), width**2 - width
    c1, c2, c3 = mlp_evolution_coefficients(size)
    alpha, beta = weight_std**4 * readout_std**2, weight_std**2 * readout_std**4
    along = width * (alpha / 2 + 3 * beta / 4) + pairs * (c1 * alpha + c2 * beta)
    everywhere = (width / 4 + pairs * c3) * alpha * np.trace(covariance)
    return np.asarray(-2 * (along * covariance + everywhere * np.eye(size)))


def mlp_evolution_coefficients(size: int) -> tuple[float, float, float]:
    """C₁, C₂, C₃ with ``E[Kb bᵀK] = C₁bbᵀ + C₃I`` and ``E[p b bᵀK] = C₂bbᵀ`` over the direction a of the probe, b a unit vector.

    ``Kb = pb + (sin t/2π)a``, and ``a = cos t b + sin t u`` with u uniform on the sphere orthogonal to b, ``E[uuᵀ] = (I − bbᵀ)/(D−1)``.
    With ``E p² = p₂`` of :func:`halfspace_probability_moments`, ``E[p sin t cos t] = (D−1)/2πD²``, ``E[sin²t cos²t] = (D−1)/D(D+2)``
    and ``E[sin⁴t] = (D−1)(D+1)/D(D+2)``: ``C₁ = p₂ + (D−1)/2π²D² − 1/2π²D(D+2)``, ``C₂ = p₂ + (D−1)/4π²D²``, ``C₃ = (D+1)/4π²D(D+2)``.

    Example:
        >>> [round(64 * coefficient, 2) for coefficient in mlp_evolution_coefficients(10**6)]
        [4.0, 4.0, 0.0]
    """
    cross = (size - 1) / (4 * math.pi**2 * size**2)
    square = halfspace_probability_moments(size)[1]
    along = square + 2 * cross - 1 / (2 * math.pi**2 * size * (size + 2))
    return along, square + cross, (size + 1) / (4 * math.pi**2 * size * (size + 2))


def mlp_alignment(covariance: np.ndarray, width: int, *, weight_std: float, readout_std: float) -> float:
    """``|Corr(Δ, S)|`` of one hidden ReLU layer; Corr itself is negative.

    It tends to 1 with the width and D only if the effective rank ``(tr S)²/‖S‖²`` is small against D, or S is a multiple of I.

    Example:
        >>> round(mlp_alignment(np.eye(8), 10, weight_std=1.0, readout_std=1.0), 12)
        1.0
    """
    evolution = mlp_evolution(covariance, width, weight_std=weight_std, readout_std=readout_std)
    return abs(correlation(torch.as_tensor(evolution), torch.as_tensor(covariance)))


def pooled_convolution_evolution(
    covariance: np.ndarray, mean_taps: np.ndarray, channels: int, *, weight_std: float, readout_std: float
) -> np.ndarray:
    """Of a linear convolution with global average pooling, exact at every width n and every probe (theorem 3.2 put right).

    ``Δ = −2{[(n²+n)α + (n²+2n)β] QSQ + nα tr(AᵀSA) Q}`` with ``Q = AAᵀ``, ``α = σ_φ⁴σ_ω²``, ``β = σ_φ²σ_ω⁴``; any fixed A will do. For
    ``u = Aᵀx_μ``, −Δ/2 is the sum over μ, i, j of ``σ_ω² A E[(φ_iᵀu)φ_i (φ_jᵀu)φ_jᵀ] Aᵀ + E[ω_i²ω_j²] Qx_μ E[(φ_jᵀu)φ_jᵀ] Aᵀ``.
    The first mean is ``σ_φ⁴uuᵀ``, or ``σ_φ⁴(2uuᵀ + ‖u‖²I)`` for i = j; the second has 3σ_ω⁴ for i = j. Remark: A.11.3 prints n² for
    n²+n and n²+2n.

    Example:
        >>> pooled_convolution_evolution(np.eye(1), np.eye(1), 1, weight_std=1.0, readout_std=1.0)  # −2 (2 + 3 + 1)
        array([[-12.]])
    """
    alpha, beta = weight_std**4 * readout_std**2, weight_std**2 * readout_std**4
    seen = mean_taps.T @ covariance @ mean_taps  # (d, d)
    along = (channels**2 + channels) * alpha + (channels**2 + 2 * channels) * beta
    spread = channels * alpha * np.trace(seen)
    return np.asarray(-2 * mean_taps @ (along * seen + spread * np.eye(len(seen))) @ mean_taps.T)


def pooled_convolution_alignment(
    covariance: np.ndarray, mean_taps: np.ndarray, channels: int, *, weight_std: float, readout_std: float
) -> float:
    """``|Corr(Δ, GSG)|`` of a linear convolution with global average pooling; Corr itself is negative.

    Example:
        >>> taps = np.full((6, 3), 1 / 6)  # circular padding: G has rank 1, and nothing else to turn to
        >>> round(pooled_convolution_alignment(np.eye(6), taps, 1, weight_std=1.0, readout_std=1.0), 12)
        1.0
    """
    stds = {"weight_std": weight_std, "readout_std": readout_std}
    evolution = pooled_convolution_evolution(covariance, mean_taps, channels, **stds)
    target = mean_taps @ (mean_taps.T @ covariance @ mean_taps) @ mean_taps.T
    return abs(correlation(torch.as_tensor(evolution), torch.as_tensor(target)))
