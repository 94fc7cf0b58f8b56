"""Aliasing: whether networks trained on samples of tones put copies of them beyond the Nyquist frequency."""

# n samples in training · f·n samples of the reconstruction · a copies

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn
from typing_extensions import override

from biascope.families.family import Family
from biascope.results.draw import PALETTE, captioned
from biascope.results.estimate import Number, over
from biascope.results.figures import lines_figure
from biascope.results.registry import measurement
from biascope.results.result import Result
from biascope.results.story import Step, Story
from biascope.results.wording import listed, percent
from biascope.runs.randomness import seed_of
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.harmonics import alias_frequencies
from biascope.tasks.signals import Signal, SignalTask, coordinate_grid, outputs_at
from biascope.tasks.task import master_dtype
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Aliasing(Result):
    """Amplitudes in the outputs of networks between their training samples.

    Attributes:
        tones: Frequencies of the signal, Hz.
        copies: Frequencies that the samples cannot distinguish from them, Hz.
        sampling: Sampling rate of the training samples, Hz.
        tone_amplitudes: Amplitudes of the tones in the finer reconstruction; 1 in the signal.
        copy_amplitudes: Amplitudes of the copies there; 0 in the signal.
        frequencies: Frequencies of the finer spectrum, Hz.
        spectrum: Amplitudes on them.
        sampled_frequencies: Frequencies of the spectrum on the training samples, Hz.
        sampled_spectrum: Amplitudes on them.
        error: Root mean square error over that of the signal: on the training samples, and on the finer grid.
    """

    tones: np.ndarray
    copies: np.ndarray
    sampling: float
    tone_amplitudes: np.ndarray
    copy_amplitudes: np.ndarray
    frequencies: np.ndarray
    spectrum: np.ndarray
    sampled_frequencies: np.ndarray
    sampled_spectrum: np.ndarray
    error: np.ndarray

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "tones": ("tone",),
        "copies": ("copy",),
        "tone_amplitudes": ("repeat", "tone"),
        "copy_amplitudes": ("repeat", "copy"),
        "frequencies": ("frequency",),
        "spectrum": ("repeat", "frequency"),
        "sampled_frequencies": ("sampled frequency",),
        "sampled_spectrum": ("repeat", "sampled frequency"),
        "error": ("repeat", "grid"),
    }

    @property
    def ratio(self) -> np.ndarray:
        """Amplitude of the copies over that of the tones, each the root of a sum of squares (repeat)."""
        return np.asarray(np.linalg.norm(self.copy_amplitudes, axis=1) / np.linalg.norm(self.tone_amplitudes, axis=1))

    @property
    def prominence(self) -> np.ndarray:
        """Amplitude of the largest copy over the median beyond Nyquist: of a mere floor about 1 (repeat)."""
        floor = np.median(self.spectrum[:, self.frequencies > self.sampling / 2], axis=1)
        return np.asarray(self.copy_amplitudes.max(1) / np.maximum(floor, 1e-12))

    @override
    def headline(self) -> dict[str, Number]:
        found = {
            "copies_over_tones": (self.ratio, "amplitude of the copies relative to the tones"),
            "prominence": (self.prominence, "largest copy relative to the median beyond Nyquist"),
            "error_on_samples": (self.error[:, 0], "relative error on the training samples"),
            "error_between_samples": (self.error[:, 1], "relative error between the training samples"),
        }
        return {key: over(each, within=(0.0, math.inf)).named(label) for key, (each, label) in found.items()}

    @override
    def sentence(self) -> str:
        ratio, (trained, between) = self.ratio.mean(), self.error.mean(0)
        heard, copies = (listed([f"{number:g}" for number in each]) for each in (self.tones, self.copies))
        return (
            f"{self.subject} was trained on {heard} Hz sampled at {self.sampling:g} Hz. Its copies at {copies} Hz have "
            f"{percent(ratio)} of the amplitude of the tones. Its error is {percent(trained)} on the samples and "
            f"{percent(between)} between them."
        )

    @override
    def story(self) -> Story:
        return Story(
            meaning=(
                "The network was trained on samples. Tones beyond the Nyquist frequency cannot be seen in them, so a copy "
                "there is invented, not learned. Large copies mean that the reconstruction must not be evaluated between "
                "the samples. Small copies are no guarantee for other signals."
            ),
            next_steps=[
                Step("Rank networks for your own signal, with a warning of aliasing.", "biascope inr advise SIGNAL")
            ],
        )

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        curves = {
            f"at {2 * self.frequencies[-1]:g} Hz": (self.frequencies, self.spectrum.mean(0)),
            f"at {self.sampling:g} Hz": (self.sampled_frequencies, self.sampled_spectrum.mean(0)),
        }
        reading = "Dashed lines mark the tones of the signal. Dotted lines mark copies that the samples cannot resolve."
        drawn = lines_figure(curves, x="frequency, Hz", y="amplitude", reading=reading, dark=dark)
        for places, style in ((self.tones, "--"), (self.copies, ":")):
            for place in places:
                drawn.axes[0].axvline(place, color=PALETTE[dark].muted, linestyle=style, linewidth=1, zorder=0)
        return {"spectrum": captioned("Spectrum of the reconstruction", drawn)}


def tone_signal(tones: Sequence[float], at: np.ndarray) -> np.ndarray:
    """``Σ sin(2πft)``."""
    return np.asarray(np.sin(2 * np.pi * np.multiply.outer(at, np.asarray(tones))).sum(-1))


def amplitudes(values: np.ndarray, at: np.ndarray, frequencies: Sequence[float]) -> np.ndarray:
    """Amplitudes of sinusoids of given frequencies in values at times, by least squares beside a constant.

    They need not be whole cycles over the times, as those of a DFT must.

    Example:
        >>> at = np.arange(64) / 64
        >>> amplitudes(1 + 3 * np.sin(2 * np.pi * 5.5 * at) + np.cos(2 * np.pi * 9 * at), at, [5.5, 9.0, 20.0]).round(9)
        array([3., 1., 0.])
    """
    angles = 2 * np.pi * np.multiply.outer(at, np.asarray(frequencies))
    columns = np.concatenate([np.sin(angles), np.cos(angles), np.ones((len(at), 1))], 1)
    found = np.linalg.lstsq(columns, values, rcond=1e-9)[0][:-1].reshape(2, -1)
    return np.asarray(np.linalg.norm(found, axis=0))


def _spectrum(values: np.ndarray, sampling: float) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies in Hz and amplitudes of sinusoids on them, by the DFT."""
    size = len(values)
    return np.fft.rfftfreq(size, 1 / sampling), 2 * np.abs(np.fft.rfft(values)) / size


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    family = Family.initialised(lambda: nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)), name="small")
    return (family,), {"tones": (2.0,), "sampling": 16.0, "steps": 20, "repeats": 2}


@measurement(title="Aliasing", paper="dictionaries2022", result=Aliasing, example=_example, network={"coordinates": 1})
def aliasing(
    family: Family,
    *,
    tones: tuple[float, ...] = (23.0,),
    sampling: float = 128.0,
    factor: int = 2,
    duration: float = 1.0,
    rate: float = 1e-4,
    steps: int = 2000,
    repeats: int = 5,
    seed: int = 0,
    run: Run | None = None,
) -> Aliasing:
    """Whether networks trained on samples of tones put copies of them beyond the Nyquist frequency.

    Definition:
        The signal ``Σ sin(2πft)`` is sampled at ``t = k/f_s`` in ``[0, duration)``, without the endpoint. Tones at ``|m·f_s ± f|``
        have the same samples as a tone at f. A network that fits the samples may contain any of these tones. Evaluating it at
        ``factor`` times the rate shows which. Amplitudes of tones and copies come from one least-squares fit of all of them.

    Args:
        family: Networks from time, in seconds, to one number.
        tones: Frequencies in Hz.
        sampling: f_s in Hz.
        factor: Factor by which the reconstruction is sampled more finely.
        duration: Duration in seconds.
        rate: Learning rate of Adam, constant; every step uses all samples.
        steps: Iterations.
        repeats: Networks to train.
        seed: Random seed for their weights.
        run: Folder (trainings are saved), device, precision.

    Returns:
        Spectra at both rates, and the amplitudes of tones and copies.

    Raises:
        ValueError: If network and settings do not fit, or training diverges.

    Example:
        >>> family = Family.initialised(lambda: nn.Linear(1, 1), name="a line")  # which is no tone at all
        >>> result = aliasing(family, tones=(2.0,), sampling=16.0, steps=2, repeats=2)
        >>> result.copies.tolist(), bool(result.error[0, 0] > 0.5)
        ([14.0], True)

    Reference:
        Yüce, Ortiz-Jiménez, Besbinar, Frossard (2022). A structured dictionary perspective on implicit neural
        representations. CVPR. Thesis, section 5.3.2: figure 5.4.
    """
    run, count = run or Run(), round(sampling * duration)
    whole = abs(count - sampling * duration) < 1e-9 * max(1, count)
    for name, right, got, remedy in (
        ("tones", bool(tones) and min(tones) > 0, tones, "tones=(23.0,)"),
        ("factor", factor >= 2, factor, "factor=2"),
        ("repeats", repeats >= 1, repeats, "repeats=5"),
        ("sampling times duration", whole and count >= 2, sampling * duration, "sampling=128.0, duration=1.0"),
    ):
        if not right:
            rules = {"tones": "positive", "factor": "at least 2", "repeats": "at least 1"}
            rule = rules.get(name, "a whole number of at least 2")
            raise ValueError(f"{name} must be {rule}, got {got}. Pass {remedy}.")
    copies = sorted({copy for each in alias_frequencies(tones, sampling, factor=factor) for copy in each} - set(tones))
    if not copies:
        raise ValueError(
            f"{tones} Hz must have copies below the finer Nyquist frequency, but there are none. Pass a larger factor."
        )
    coarse, fine = (coordinate_grid((many * count,), high=duration) for many in (1, factor))
    signal = Signal(torch.as_tensor(tone_signal(tones, coarse[:, 0].numpy()))[:, None], "tones", sampling)
    task = SignalTask.of(signal, held_out=0.0, high=duration, seed=seed, run=run)
    recipe = Recipe("adam", rate, "constant", steps=steps, batch=count, loss="squared")
    _check(family)

    def trained(key: str) -> Outcome:
        own = seed_of(seed, key)
        start = family.draw(1, seed=own, run=run).member(0).to(run.torch_device, master_dtype(run))
        network = fit(start, task, recipe, seed=own, run=run).require_finite().networks
        return {"said": outputs_at(network, fine, run=replace(run, precision="float64"))[:, 0]}

    trials = Trials(
        "aliasing",
        run,
        code=trained,
        at=fine.float(),
        family=family,
        task=task,
        factor=factor,
        recipe=recipe,
        seed=seed,
    )
    said = np.stack([one["said"].numpy() for one in trials.outcomes([f"repeat {i}" for i in range(repeats)], trained)])
    at, every = fine[:, 0].numpy(), [*tones, *copies]
    found = np.stack([amplitudes(each, at, every) for each in said])
    wanted = tone_signal(tones, at)
    spectra = [[_spectrum(each[::step], sampling * factor / step) for each in said] for step in (1, factor)]
    errors = [[np.std((each - wanted)[::step]) / np.std(wanted[::step]) for step in (factor, 1)] for each in said]
    return Aliasing(
        np.array(tones),
        np.array(copies),
        sampling,
        found[:, : len(tones)],
        found[:, len(tones) :],
        spectra[0][0][0],
        np.stack([each[1] for each in spectra[0]]),
        spectra[1][0][0],
        np.stack([each[1] for each in spectra[1]]),
        np.array(errors),
    )


def _check(family: Family) -> None:
    """A sentence where the network does not lead from one number to one."""
    said = family.tried(torch.zeros(2, 1), "take one coordinate, time", "Build it with coordinates=1.")
    shape = tuple(said.shape)
    if shape != (2, 1):
        raise ValueError(
            f"{family.name} must return one number for each time, got {shape[1:]}. Build it with outputs=1."
        )
