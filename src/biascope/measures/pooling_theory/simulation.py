"""HOW: the pooling theory by experiment: sampled signals classified after pooling, and the linear pooling model trained."""

# D size · S stride · M = D/S · L frequencies · n samples

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from biascope.families.family import Family
from biascope.measures.pooling_theory.models import bayes_rule_after_pooling, real_fourier_vector
from biascope.runs.randomness import generator_for, seed_of
from biascope.runs.run import Run
from biascope.tasks.task import along_directions
from biascope.training.fit import Trajectory, fit
from biascope.training.recipe import Recipe

_CPU = torch.device("cpu")  # what is drawn here is small, and the same for every device


def pooled(signals: np.ndarray, response: np.ndarray, stride: int) -> np.ndarray:
    """Signals ``(n, D)`` filtered in Fourier space, every S-th value kept: ``(n, M)``.

    Example:
        >>> pooled(np.array([[1.0, 3.0, 5.0, 5.0]]), np.array([1, 0.5 + 0.5j, 0, 0.5 - 0.5j]), 2)  # means of neighbours
        array([[2., 5.]])
    """
    return np.asarray(np.fft.ifft(response * np.fft.fft(signals), axis=1).real[:, ::stride])


class SignalDraw(TypedDict):
    """What is drawn.

    Attributes:
        sigma: Standard deviation σ of the noise.
        samples: n.
        seed: Random seed for noise and labels.
    """

    sigma: float
    samples: int
    seed: int


def _noise_and_labels(draw: SignalDraw, size: int, what: str, dtype: torch.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Noise ``(n, D)`` and labels −1 and 1 ``(n,)``."""
    samples, generator = draw["samples"], generator_for(_CPU, draw["seed"], what)
    noise = draw["sigma"] * torch.randn(samples, size, generator=generator, dtype=dtype).numpy()
    return noise, 2.0 * torch.randint(2, (samples,), generator=generator).numpy() - 1


def sampled_accuracy(
    response: np.ndarray, stride: int, frequencies: Sequence[int], *, epsilon: float, **draw: Unpack[SignalDraw]
) -> np.ndarray:
    """Share of signals of D(v_ℓ), pooled, that the best rule gets right, for each ℓ: ``(L,)``.

    All frequencies share one draw of noise and labels. ``x = w + v(εy − vᵀw)`` and pooling is linear, so that the pooled
    ``z = Pw + Pv(εy − vᵀw)`` are had for all frequencies from one ``Pw``. A rule that cannot tell is right half of the time.

    Args:
        response: m̂ of the prefilter, ``(D,)``.
        stride: S.
        frequencies: The ℓ, each with its cosine v_ℓ.
        epsilon: ε.
        draw: See :class:`SignalDraw`.

    Returns:
        The shares; their standard error is that of a binomial.
    """
    noise, labels = _noise_and_labels(draw, len(response), "real signals", torch.float64)
    vectors = np.stack([real_fourier_vector(len(response), frequency) for frequency in frequencies])  # (L, D)
    rules = np.stack([bayes_rule_after_pooling(response, stride, frequency)[0] for frequency in frequencies])  # (L, M)
    along = (pooled(vectors, response, stride) * rules).sum(1)  # (L,)
    scores = pooled(noise, response, stride) @ rules.T + (epsilon * labels[:, None] - noise @ vectors.T) * along
    return _share_right(scores, labels)


def sampled_accuracy_complex(
    response: np.ndarray, stride: int, frequencies: Sequence[int], *, epsilon: float, **draw: Unpack[SignalDraw]
) -> np.ndarray:
    """The same in the model of the proof of theorem 1: spectra with εy at ℓ and circular noise of power σ² elsewhere.

    The best rule is the sign of ``Re(m̂[ℓ]* ẑ[ℓ mod M])``: no other bin knows of the label.
    """
    size, bins = len(response), len(response) // stride
    noise, labels = _noise_and_labels(draw, size, "complex signals", torch.complex128)
    folded = (response * noise).reshape(len(noise), stride, bins).sum(1) / math.sqrt(stride)  # (n, M)
    at = np.asarray(frequencies)
    own = np.where(np.abs(response[at]) > 1e-12 * np.abs(response).max(), response[at], 0)  # (L,)
    spectra = folded[:, at % bins] + own / math.sqrt(stride) * (epsilon * labels[:, None] - noise[:, at])
    return _share_right((own.conj() * spectra).real, labels)


def _share_right(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.asarray((0.5 + 0.5 * np.sign(scores) * labels[:, None]).mean(0))


class LinearPooling(nn.Module):
    """``f(x) = θᵀA(m ⊙ φ ⊙ x)`` on spectra: φ a stack of convolutions, m the prefilter, A the aliasing, θ the readout."""

    def __init__(self, prefilter: np.ndarray, stride: int, *, weight_std: float, seed: int) -> None:
        super().__init__()
        self.stride, size = stride, len(prefilter)
        drawn = weight_std * torch.randn(size // stride + size, generator=generator_for(_CPU, seed, "weights"))
        self.theta, self.phi = nn.Parameter(drawn[: size // stride]), nn.Parameter(drawn[size // stride :])
        self.prefilter: Tensor
        self.register_buffer("prefilter", torch.tensor(prefilter, dtype=drawn.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """One number for each input ``(n, D)``."""
        return x @ (self.prefilter * self.phi * self.theta.repeat(self.stride)) / math.sqrt(self.stride)


def pooling_trajectory(
    prefilter: np.ndarray,
    stride: int,
    frequencies: Sequence[int],
    *,
    epsilon: float,
    sigma: float,
    weight_std: float,
    train: int,
    recipe: Recipe,
    seed: int,
    run: Run,
) -> Trajectory:
    """The linear pooling model trained on D(e_ℓ) in Fourier coordinates, one member for each ℓ.

    All members start from the same weights and share noise and labels: they differ by ℓ alone. Lemma 1 takes noise also
    along e_ℓ; D(e_ℓ) has none there, so that the loss can reach zero. Half precision is taken as float32.

    Args:
        prefilter: m, ``(D,)``.
        stride: S.
        frequencies: The ℓ.
        epsilon: ε.
        sigma: σ.
        weight_std: Standard deviation of the initial θ and φ.
        train: Training samples.
        recipe: How to train, with one output and the squared error.
        seed: Random seed for weights and data.
        run: Device and precision.

    Returns:
        The trajectory, members in the order of the frequencies.
    """
    run = dataclasses.replace(run, precision="float64" if run.precision == "float64" else "float32")
    units = torch.eye(len(prefilter), dtype=torch.float64)[list(frequencies)]
    data = {"noise": sigma, "epsilon": epsilon, "train": train, "test": 1, "seed": seed_of(seed, "data"), "run": run}
    task = along_directions(units, (len(prefilter),), **data)  # type: ignore[arg-type]
    start = Family.point(LinearPooling(prefilter, stride, weight_std=weight_std, seed=seed), name="linear pooling")
    return fit(start.draw(len(frequencies), seed=0, run=run), task, recipe, seed=seed, run=run)
