"""Waves: the slope of a periodic field, and the power of values along a line on cosines."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def slope_along(x: Tensor, axis: int) -> Tensor:
    """The derivative along an axis, per pixel, of the periodic band-limited field that has these values.

    It is exact for fields without a Nyquist mode, which has no derivative at the pixels and is dropped.

    Example:
        >>> wave = torch.sin(2 * torch.pi * torch.arange(8).double() / 8)
        >>> round(slope_along(wave, 0)[0].item() / (2 * torch.pi / 8), 12)  # a cosine, which begins with 1
        1.0
    """
    size = x.shape[axis]
    frequencies = 2 * torch.pi * torch.fft.fftfreq(size, dtype=torch.float64, device=x.device)
    if size % 2 == 0:
        frequencies[size // 2] = 0.0
    along = frequencies.reshape([-1 if place == axis % x.dim() else 1 for place in range(x.dim())])
    slope: Tensor = torch.fft.ifft(1j * along * torch.fft.fft(x.double(), dim=axis), dim=axis).real
    return slope


def line_power(values: np.ndarray) -> np.ndarray:
    """Power on 1, 2, … n − 1 half cycles of values ``(…, n)`` at the middles of n parts of a line, by the DCT-II.

    Example:
        >>> middles = (np.arange(8) + 0.5) / 8
        >>> line_power(5 + np.cos(3 * np.pi * middles)).round(9)  # three half cycles
        array([0., 0., 4., 0., 0., 0., 0.])
    """
    return np.asarray(cosine_coefficients(values)[..., 1:] ** 2)


def cosine_coefficients(values: np.ndarray) -> np.ndarray:
    """Coefficients of values ``(…, n)`` on cosines with 0, 1, … n − 1 half cycles, an orthonormal basis."""
    from scipy.fft import dct  # takes a while to import

    return np.asarray(dct(values, type=2, norm="ortho", axis=-1))
