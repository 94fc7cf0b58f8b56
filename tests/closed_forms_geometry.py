"""Closed forms of the average geometry of small models at initialisation, and of its evolution, each with its derivation.

`biascope.papers.geometry2025.models` says what is averaged, and has the forms that figures of the paper need. The others are
here: geometries, the evolution of linear ``θᵀx``, ReLU networks of any depth, and what the derivations rest on. Nothing here
uses the library, and `papers/test_geometry2025_models.py` checks every form against automatic differentiation.
"""

# D input size · k patch positions · d = taps of a patch · n width or channels

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy.integrate import quad_vec

# A convolution as matrices: M_j is D x d, and M_j[q, t] = 1 where tap t of the patch at position j reads input q


def tap_matrices(
    shape: Sequence[int], kernel: int, *, padding: str = "valid", stride: int = 1, channels: int = 1
) -> np.ndarray:
    """The binary matrices M_j of a convolution, with which it computes ``wᵀM_jᵀx`` at position j: (k, D, d).

    Args:
        shape: Lengths of the axes of one channel: ``(32,)``, ``(28, 28)``.
        kernel: Taps along each axis.
        padding: ``"valid"``, or as many positions as inputs: ``"zero"``, ``"circular"``.
        stride: Between positions, along each axis.
        channels: Of the input; it is flattened channel by channel, row by row.

    Example:
        >>> tap_matrices((3,), 2).sum(axis=0).tolist()  # P: the middle of three inputs is read by both taps
        [[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]
    """
    axes = [_axis_taps(length, kernel, padding, stride) for length in shape]
    return np.stack([_kron(np.eye(channels), *taps) for taps in itertools.product(*axes)])


def mean_tap_matrix(
    shape: Sequence[int], kernel: int, *, padding: str = "valid", stride: int = 1, channels: int = 1
) -> np.ndarray:
    """``A = P/k = (1/k) Σ_j M_j``, what global average pooling makes of :func:`tap_matrices`: (D, d).

    Example:
        >>> mean_tap_matrix((3,), 2)[:, 0]  # the first of two taps reads the first two of three inputs
        array([0.5, 0.5, 0. ])
    """
    return _kron(np.eye(channels), *(_axis_taps(length, kernel, padding, stride).mean(axis=0) for length in shape))


def patch_incidence(
    shape: Sequence[int], kernel: int, *, padding: str = "valid", stride: int = 1, channels: int = 1
) -> np.ndarray:
    """1 where the patch at position j contains input q, else 0: (k, D). Its columns sum to the coverage counts.

    Example:
        >>> patch_incidence((5,), 3).sum(axis=0)
        array([1., 2., 3., 2., 1.])
    """
    return _kron(np.ones((1, channels)), *(_axis_taps(length, kernel, padding, stride).sum(axis=2) for length in shape))


def _kron(*matrices: np.ndarray) -> np.ndarray:
    return functools.reduce(np.kron, matrices)


def _axis_taps(length: int, kernel: int, padding: str, stride: int) -> np.ndarray:
    offset = 0 if padding == "valid" else (kernel - 1) // 2
    starts = np.arange(0, length - kernel + 1 if padding == "valid" else length, stride) - offset
    read = starts[:, None] + np.arange(kernel)  # (k, d): the input that each tap reads
    read = read % length if padding == "circular" else read
    return np.asarray(np.arange(length)[None, :, None] == read[:, None, :], dtype=np.float64)


# G. Only the symmetry and the second moments of the weights matter, so that it is the same for uniform laws of these variances


def mlp_geometry(size: int, widths: Sequence[int], *, weight_stds: Sequence[float], readout_std: float) -> np.ndarray:
    """Of a ReLU MLP of any depth, at any x other than 0: ``σ_ω² Π_l (n_l σ_l²/2) I`` (theorem A.2).

    With J the Jacobian of the last hidden layer, ``G = σ_ω² E[JᵀJ]``. The layer gives ``J = B W J'``, B the 0/1 diagonal of
    active units. Given the layers below, a row w of W is in the half-space of its input or −w is: ``E[WᵀBW] = (n σ²/2) I``, and
    ``J'ᵀJ'`` remains: repeat. Remark: (40) has lost σ_ω².

    Example:
        >>> mlp_geometry(3, [8, 4], weight_stds=[0.5, 1.0], readout_std=3.0).diagonal()
        array([18., 18., 18.])
    """
    scale = math.prod(width * std**2 / 2 for width, std in zip(widths, weight_stds, strict=True))
    return readout_std**2 * scale * np.eye(size)


def convolution_geometry(
    incidences: Sequence[np.ndarray], widths: Sequence[int], *, weight_stds: Sequence[float], readout_std: float
) -> np.ndarray:
    """Of a ReLU CNN without pooling, read out by one weight per unit of its last layer, at any x other than 0: diagonal.

    As for the MLP, but a row of W is a kernel laid over one patch, and half its second moment is ``σ²/2`` on that patch. If
    the units at position p count v(p), the inputs of the layer count ``v'(q) = n (σ²/2) Σ_p v(p)`` over the patches p that
    contain q: the coverage for one layer, the number of paths for several. Remark: theorem A.2 prints a multiple of I, which
    needs circular padding and stride 1.

    Args:
        incidences: :func:`patch_incidence` of each layer, first layer first; of all but the first for one channel.
        widths: Channels after each layer.
        weight_stds: One for each layer.
        readout_std: Of the readout.

    Example:
        >>> convolution_geometry([patch_incidence((4,), 3)], [2], weight_stds=[1.0], readout_std=1.0).diagonal()
        array([1., 2., 2., 1.])
    """
    counts = np.ones(len(incidences[-1]))
    for incidence, width, std in zip(reversed(incidences), reversed(widths), reversed(weight_stds), strict=True):
        counts = width * std**2 / 2 * incidence.T @ counts
    return readout_std**2 * np.diag(counts)


def pooled_convolution_geometry(
    mean_taps: np.ndarray, channels: int = 1, *, weight_std: float, readout_std: float = 1.0
) -> np.ndarray:
    """Of a linear convolution with global average pooling: ``n σ_φ²σ_ω² AAᵀ``, of rank at most d.

    The gradient is ``Σ_i ω_i Aφ_i``. Theorem A.3 has one channel and a fixed readout of 1: the defaults. Entry (q, r) of PPᵀ
    counts the taps that read q at one position and r at another or the same, see :func:`tap_overlap`. Remark: theorem A.3 takes
    M_iM_jᵀ for diagonal, but for i ≠ j it is a shifted identity. Example A.10, below for σ = 2, prints σ²/2 for its factor σ²/4.

    Example:
        >>> pooled_convolution_geometry(mean_tap_matrix((3,), 2), weight_std=2.0)  # eigenvalues 3, 1, 0
        array([[1., 1., 0.],
               [1., 2., 1.],
               [0., 1., 1.]])
    """
    return np.asarray(channels * readout_std**2 * weight_std**2 * mean_taps @ mean_taps.T)


def tap_overlap(length: int, kernel: int) -> np.ndarray:
    """``PPᵀ`` of a valid convolution along one axis: for q ≤ r, ``max(0, min(q, d−1) − max(0, r−k+1) + 1)``.

    Tap t reads q where q − t is one of the k positions. It is the autocorrelation of the set of positions, cut to d taps:
    the triangle ``k − |q − r|`` where d ≥ k and the cut does not bite, and zero for |q − r| ≥ k. So it is banded where there are
    few positions; where the kernel is small, all inputs away from the border form one constant block instead. With circular
    padding each of the d taps reads each input once, and PPᵀ is d in every entry.

    Example:
        >>> tap_overlap(5, 4)[1]
        array([1., 2., 1., 0., 0.])
    """
    index = np.arange(length)
    low, high = np.minimum(index[:, None], index), np.maximum(index[:, None], index)
    first = np.maximum(0, high - (length - kernel))
    return np.asarray(np.maximum(0, np.minimum(low, kernel - 1) - first + 1), dtype=np.float64)


def normalised_patch_bounds(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Corollary A.4: ``E[θθᵀ/(s_1s_2)]`` for ``s_j² = θᵀC_jθ`` lies between these two multiples of I, in d dimensions.

    ``λ_min‖θ‖² ≤ s_j² ≤ λ_max‖θ‖²`` and ``E[θθᵀ/‖θ‖²] = I/d`` (lemma A.7) give ``1/(d√(λ_max λ'_max))`` and ``1/(d√(λ_min λ'_min))``,
    whatever the scale of θ. C_j is the covariance of patch j, divided by the number m of samples. Remark: printed with a variance
    for the standard deviation s_j, D for m, and no 1/d; the order is stated between M_i and M_jᵀ, where i ≠ j is not symmetric.

    Example:
        >>> normalised_patch_bounds(np.diag([1.0, 4.0]), np.diag([1.0, 4.0]))
        (0.125, 0.5)
    """
    one, two = np.linalg.eigvalsh(first), np.linalg.eigvalsh(second)
    return 1 / (len(one) * math.sqrt(one[-1] * two[-1])), 1 / (len(one) * math.sqrt(one[0] * two[0]))


def normalised_second_moment(covariance: np.ndarray) -> np.ndarray:
    """``E[θθᵀ/θᵀCθ]`` for centred isotropic Gaussian θ of any scale: the second moment of a kernel after batch normalisation.

    It has the eigenvectors of C and, since ``1/s = ∫_0^∞ e^(−ts) dt``, the eigenvalues ``∫_0^∞ (1+2λ_it)⁻¹ Π_l(1+2λ_lt)^(−1/2) dt``.
    For two taps that is ``1/(√λ_i(√λ_1+√λ_2))``, for C = I it is 1/d (lemma A.7). Batch normalisation of a convolution has one
    deviation for each channel, over samples and positions, C being the mean covariance of the patches: then ``G = n σ_ω² A
    E[θθᵀ/θᵀCθ] Aᵀ`` exactly, between the bounds of corollary A.4 times AAᵀ. The corollary has one deviation for each position.

    Example:
        >>> normalised_second_moment(np.diag([1.0, 4.0])).diagonal().round(6)  # 1/3 and 1/6
        array([0.333333, 0.166667])
    """
    values, vectors = np.linalg.eigh(covariance)
    ratios = values / math.exp(float(np.log(values).mean()))  # of about 1, so that the integral is one of order 1

    def integrand(root: float) -> np.ndarray:
        # t ∝ (1 − v²)/v²: a finite range, where the tail t^(−1−d/2) is a power of v and no end is singular
        stretched = root**2 + ratios * (1 - root**2)
        return np.asarray(root ** (len(values) - 1) / (stretched * np.sqrt(np.prod(stretched))))

    moments = quad_vec(integrand, 0.0, 1.0, epsabs=1e-12, epsrel=1e-12)[0] * ratios / values
    return np.asarray((vectors * moments) @ vectors.T)


# Delta


def linear_evolution(covariance: np.ndarray, *, weight_std: float) -> np.ndarray:
    """Of ``f(x) = θᵀx``: ``−2σ_θ² S``. Remark: section 3.1 forgets the transpose of its definition, and the 2.

    The gradient θ moves by ``−Σ_μ (θᵀx_μ − y_μ) x_μ``; the mean of that times θᵀ is ``−σ_θ² S``.

    Example:
        >>> linear_evolution(np.diag([1.0, 2.0]), weight_std=1.0).diagonal()
        array([-2., -4.])
    """
    return np.asarray(-2 * weight_std**2 * covariance)


def pooled_convolution_misalignment_rate(
    covariance: np.ndarray, mean_taps: np.ndarray, *, weight_std: float, readout_std: float
) -> float:
    """The limit of ``n² (1 − |Corr(Δ, GSG)|)`` as the width n grows and the variances stay: ``ρ² (1 − c²)/2``.

    Δ is a multiple of ``U + (ρ/n)V + O(n⁻²)`` for the unit vectors U along QSQ and V along Q, ``c = ⟨U, V⟩`` and
    ``ρ = σ_φ²/(σ_φ²+σ_ω²) tr(AᵀSA) ‖Q‖/‖QSQ‖``: the angle falls like 1/n, the rate of theorem 3.2, and its cosine like n⁻².

    Example:
        >>> data = np.diag([1.0, 0.0])  # A = I: c² = 1/2, ρ = √2/2
        >>> round(pooled_convolution_misalignment_rate(data, np.eye(2), weight_std=1.0, readout_std=1.0), 12)
        0.125
    """
    overlap, seen = mean_taps @ mean_taps.T, mean_taps.T @ covariance @ mean_taps
    target = mean_taps @ seen @ mean_taps.T
    share = weight_std**2 / (weight_std**2 + readout_std**2)
    ratio = share * np.trace(seen) * np.linalg.norm(overlap) / np.linalg.norm(target)
    cosine = np.vdot(overlap, target) / (np.linalg.norm(overlap) * np.linalg.norm(target))
    return float(ratio**2 * (1 - cosine**2) / 2)
