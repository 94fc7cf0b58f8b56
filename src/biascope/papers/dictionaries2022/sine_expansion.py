"""HOW: three-layer sine networks ``f(r) = w sin(W sin(Ωr + φ) + b)`` as sums of sinusoids at harmonics of Ω, in closed form."""

# T mapping frequencies · d coordinates · F hidden units · c outputs · n points

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_TERMS = 2**22  # numbers of a block of an expansion


def bessel_order(argument: float, tolerance: float) -> tuple[int, float]:
    """The least S whose tail is small, ``Σ_{|s|>S} |J_s(β)| ≤ tolerance``, and the bound on that tail.

    From ``|J_s(β)| ≤ (|β|/2)^s/s!``, a geometric series beyond ``s > |β|/2``.

    Example:
        >>> bessel_order(0.0, 1e-9), bessel_order(1.0, 1e-9)[0]
        ((0, 0.0), 9)
    """
    half = abs(argument) / 2
    if half == 0:
        return 0, 0.0
    for order in itertools.count(max(0, math.ceil(half) - 1)):
        ratio = half / (order + 2)
        tail = 2 * math.exp((order + 1) * math.log(half) - math.lgamma(order + 2)) / (1 - ratio) if ratio < 1 else 1.0
        if tail <= tolerance and ratio < 1:
            return order, tail
    raise AssertionError("a factorial outgrows every power")


@dataclass(frozen=True)
class BesselExpansion:
    """A three-layer sine network as a sum of sinusoids, ``f(r) = Im Σ_s c_s exp(j⟨Σ_t s_t Ω_t, r⟩)``.

    Attributes:
        orders: ``(terms, T)`` s.
        frequencies: ``(terms, d)`` in radians per unit.
        coefficients: ``(terms, c)`` complex: with no phases and biases real, ``Σ_m w_m Π_t J_{s_t}(W_mt)``.
        error: What the terms left out can amount to at most.
    """

    orders: Tensor
    frequencies: Tensor
    coefficients: Tensor
    error: float

    def __call__(self, r: Tensor) -> Tensor:
        """What it says at points ``(n, d)``: ``(n, c)``."""
        result = torch.zeros(len(r), self.coefficients.shape[1], dtype=torch.float64, device=r.device)
        size = max(1, _TERMS // max(1, len(r)))
        for start in range(0, len(self.orders), size):
            part = slice(start, start + size)
            angle = r.double() @ self.frequencies[part].T  # (n, terms)
            result += (torch.polar(torch.ones_like(angle), angle) @ self.coefficients[part]).imag
        return result


def bessel_expansion(
    omega: Tensor,
    inner: Tensor,
    outer: Tensor,
    *,
    phase: Tensor | None = None,
    bias: Tensor | None = None,
    tolerance: float = 1e-9,
) -> BesselExpansion:
    """The network ``f(r) = w sin(W sin(Ωr + φ) + b)`` as a sum of sinusoids at harmonics of Ω.

    Definition:
        From ``exp(jβ sin x) = Σ_n J_n(β) exp(jnx)``,
        ``f(r) = Σ_m w_m Σ_s (Π_t J_{s_t}(W_mt)) sin(Σ_t s_t(⟨Ω_t, r⟩ + φ_t) + b_m)``. Orders are cut where the tail of J is below
        what the tolerance leaves to each; the number of terms is exponential in T.

    Args:
        omega: Ω ``(T, d)``, radians per unit.
        inner: W ``(F, T)``, with every factor in front of it (30 in a SIREN) multiplied in.
        outer: w ``(c, F)``.
        phase: φ ``(T,)``.
        bias: b ``(F,)``, factors multiplied in.
        tolerance: The largest error of an output.

    Returns:
        The expansion, in float64.

    Raises:
        ValueError: If it has too many terms.

    Example:
        >>> r = torch.linspace(0, 1, 5)[:, None]
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> found = bessel_expansion(7 * one, 2 * one, one)(r)
        >>> torch.allclose(found, torch.sin(2 * torch.sin(7 * r.double())), atol=1e-9)
        True

    Reference:
        Yüce, Ortiz-Jiménez, Besbinar, Frossard (2022). A structured dictionary perspective on implicit neural
        representations. CVPR. Thesis, equations (5.6)–(5.8).
    """
    omega, inner, outer, phase, bias = _doubles(omega, inner, outer, phase, bias)
    (units, mapping), total = inner.shape, float(outer.abs().sum(1).max())
    share = tolerance / (2 * mapping * max(total, 1e-300))
    cuts = [bessel_order(float(inner[:, t].abs().max()), share) for t in range(mapping)]
    terms = math.prod(2 * order + 1 for order, _ in cuts)
    if terms * units > 16 * _TERMS:
        raise ValueError(
            f"The expansion must have at most {16 * _TERMS // units:,} terms, got {terms:,} for {mapping} frequencies. "
            "Pass fewer frequencies or smaller weights, or use sine_network_spectrum on a grid."
        )
    product, orders = torch.polar(torch.ones_like(bias), bias)[:, None], inner.new_zeros(1, 0)
    for t, (most, _) in enumerate(cuts):
        steps = torch.arange(-most, most + 1, dtype=torch.float64, device=inner.device)
        factor = _bessel(steps, inner[:, t]) * torch.polar(torch.ones_like(steps), steps * phase[t])  # (F, 2S + 1)
        product = (product[:, :, None] * factor[:, None, :]).flatten(1)
        orders = torch.cat([orders.repeat_interleave(len(steps), 0), steps.repeat(len(orders))[:, None]], 1)
    error = total * (math.prod(1 + tail for _, tail in cuts) - 1)
    return BesselExpansion(orders.long(), orders @ omega, (outer.to(product) @ product).T, error)


def sine_network_spectrum(
    bins: Tensor,
    inner: Tensor,
    outer: Tensor,
    sizes: Sequence[int],
    *,
    phase: Tensor | None = None,
    bias: Tensor | None = None,
    tolerance: float = 1e-9,
) -> Tensor:
    """The DFT of ``w sin(W sin(Ωr + φ) + b)`` on a grid, by convolving the spectra of its modulations.

    ``exp(jβ sin 2πkn/N)`` has the spectrum ``Σ_s J_s(β) δ_{sk mod N}``, and the product over t convolves them: T sparse circular
    convolutions for each hidden unit, so that the mapping may be wide. Harmonics beyond Nyquist wrap around, as they do in samples.

    Args:
        bins: ``(T, d)`` whole numbers: cycles over the grid.
        inner: W ``(F, T)``, factors multiplied in.
        outer: w ``(c, F)``.
        sizes: Of the grid.
        phase: φ ``(T,)``; a grid that starts at ``r₀`` adds ``⟨Ω_t, r₀⟩``.
        bias: b ``(F,)``, factors multiplied in.
        tolerance: The largest error of an output on the grid.

    Returns:
        ``(c, N₁, …, N_d)`` complex, the DFT over the number of samples.

    Raises:
        ValueError: If bins are not whole.

    Example:
        >>> one = torch.ones(1, 1)
        >>> found = sine_network_spectrum(one, 2 * one, one, (32,))[0]
        >>> round(float((2j * found[3]).real / 2), 6)  # J₃(2), half of the amplitude of sin 3x
        0.128943
    """
    if not bool((bins.double() - bins.double().round()).abs().max() < 1e-6):
        raise ValueError(
            "bins must be whole cycles over the grid, got fractions. Use bessel_expansion for any frequency."
        )
    shifts = bins.double().round().long().tolist()
    _, inner, outer, phase, bias = _doubles(bins, inner, outer, phase, bias)
    (units, mapping), axes = inner.shape, tuple(range(1, len(sizes) + 1))
    share = tolerance / (2 * mapping * max(float(outer.abs().sum(1).max()), 1e-300))
    result = torch.zeros(len(outer), *sizes, dtype=torch.complex128, device=inner.device)
    size = max(1, _TERMS // math.prod(sizes))
    for start in range(0, units, size):
        part = slice(start, start + size)
        spectrum = torch.zeros(len(inner[part]), *sizes, dtype=torch.complex128, device=inner.device)
        spectrum.flatten(1)[:, 0] = torch.polar(torch.ones_like(bias[part]), bias[part])
        for t in range(mapping):
            most = bessel_order(float(inner[part, t].abs().max()), share)[0]
            steps = torch.arange(-most, most + 1, dtype=torch.float64, device=inner.device)
            factor = _bessel(steps, inner[part, t]) * torch.polar(torch.ones_like(steps), steps * phase[t])
            moved = torch.zeros_like(spectrum)
            for place, step in enumerate(range(-most, most + 1)):
                rolled = torch.roll(spectrum, [step * shift for shift in shifts[t]], axes)
                moved += factor[:, place].reshape(-1, *[1] * len(sizes)) * rolled
            spectrum = moved
        mirrored = torch.roll(spectrum.flip(axes), [1] * len(sizes), axes).conj()  # Im z = (z − z̄)/2j
        result += torch.tensordot(outer[:, part].to(spectrum), (spectrum - mirrored) / 2j, 1)
    return result


def _doubles(
    omega: Tensor, inner: Tensor, outer: Tensor, phase: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Weights of a three-layer network that fit together, in float64; phases and biases are 0 unless given."""
    (units, mapping), d = inner.shape, inner.double()
    if omega.shape[0] != mapping or outer.dim() != 2 or outer.shape[1] != units:
        raise ValueError(
            f"Weights must be (T, d), (F, T) and (c, F), got {tuple(omega.shape)}, {tuple(inner.shape)} and "
            f"{tuple(outer.shape)}. Pass those of three layers in a row."
        )
    phase = d.new_zeros(mapping) if phase is None else phase.double()
    return omega.double(), d, outer.double(), phase, d.new_zeros(units) if bias is None else bias.double()


def _bessel(orders: Tensor, arguments: Tensor) -> Tensor:
    """``J_s(β)`` ``(F, S)``; torch knows the orders 0 and 1 alone."""
    from scipy.special import jv

    found = jv(orders.cpu().numpy()[None, :], arguments.detach().cpu().numpy()[:, None])
    return torch.as_tensor(found, dtype=torch.float64, device=arguments.device)
