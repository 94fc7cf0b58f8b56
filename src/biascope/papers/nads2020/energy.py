"""Where the energy of an image lies in the Fourier plane: on a comb, at how many frequencies, and where networks learn well."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from biascope.papers.nads2020.networks import SHAPE
from biascope.papers.nads2020.released import against_published
from biascope.tasks.bases import fourier_half


def comb_share(vector: np.ndarray, spacing: int = 4) -> float:
    """Largest share of an image's energy on frequencies ±(a, b) + multiples of ``spacing``: 1 for a comb, and for a single wave.

    White noise has about 2/spacing². :func:`frequencies_with_energy` tells a comb from a wave.
    """
    energy = np.abs(np.fft.fft2(vector.reshape(32, 32))) ** 2
    shares = []
    for a in range(spacing):
        for b in range(spacing):
            on_comb = np.zeros_like(energy, dtype=bool)
            for row, column in ((a, b), (-a % spacing, -b % spacing)):
                on_comb[row::spacing, column::spacing] = True
            shares.append(float(energy[on_comb].sum() / energy.sum()))
    return max(shares)


def frequencies_with_energy(vector: np.ndarray) -> float:
    """How many frequencies hold an image's energy: the participation ratio ``(Σe)² / Σe²``, with k and −k as one frequency.

    A single wave has 1, a comb of n equal waves has n.

    Example:
        >>> wave = np.cos(2 * np.pi * 2 * np.arange(32) / 32)[:, None] * np.ones(32)
        >>> round(frequencies_with_energy(wave), 6)
        1.0
    """
    energy = np.abs(np.fft.fft2(vector.reshape(32, 32))) ** 2
    at = np.array([[int(str(part)) for part in label[-2:]] for label in fourier_half(SHAPE, "Re").labels])
    alone = (2 * at % 32 == 0).all(1)  # k = −k
    half = np.where(alone, 1.0, 2.0) * energy[at[:, 0], at[:, 1]]
    return float(half.sum() ** 2 / (half**2).sum())


def accuracy_where_energy_is(vectors: np.ndarray, accuracies: Mapping[tuple[int, int], float]) -> np.ndarray:
    """Mean published accuracy at even frequencies, weighted by each image's Fourier energy there, minus the plain mean, in points.

    Example:
        >>> plane = {(k, l): 100.0 if (k, l) == (2, 0) else 50.0 for k in range(-16, 16, 2) for l in range(0, 16, 2)}
        >>> wave = np.cos(2 * np.pi * 2 * np.arange(32) / 32)[:, None] * np.ones(32)
        >>> accuracy_where_energy_is(wave.reshape(1, -1), plane) > 45
        array([ True])
    """
    energy = np.abs(np.fft.fft2(vectors.reshape(-1, 32, 32))) ** 2
    cosines = fourier_half(SHAPE, "Re", 2)
    known = [label for label in cosines.labels if len(against_published([label], np.ones(1), dict(accuracies))[1])]
    _, accuracy = against_published(known, np.ones(len(known)), dict(accuracies))
    at = np.array([[int(str(part)) for part in label[-2:]] for label in known])
    weights = energy[:, at[:, 0], at[:, 1]]
    return np.asarray((weights * accuracy).sum(1) / weights.sum(1) - accuracy.mean())
