"""Pooling theory: how a linear pooling layer transmits each frequency, and how fast a model with it learns that frequency."""

# D size · S stride · M = D/S · L = ⌊D/2⌋ + 1 frequencies · K trained ones · T iterations · R repeats · n samples

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from typing_extensions import override

from biascope.measures.pooling_theory import models as pooling
from biascope.measures.pooling_theory.models import bayes_accuracy_after_pooling_any_frequency as best_accuracy
from biascope.measures.pooling_theory.models import bayes_accuracy_after_pooling_complex as best_accuracy_complex
from biascope.measures.pooling_theory.simulation import pooling_trajectory, sampled_accuracy, sampled_accuracy_complex
from biascope.results.draw import captioned
from biascope.results.estimate import SHARE, Estimate, Number, jackknife
from biascope.results.registry import measurement
from biascope.results.result import Result
from biascope.results.story import Step, Story
from biascope.runs.randomness import seed_of
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.training.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIMULATIONS = (sampled_accuracy, sampled_accuracy_complex)


@dataclass(frozen=True, repr=False)
class PoolingTheory(Result):
    """The pooling theory and its check, for the frequencies 0 … ⌊D/2⌋; accuracies are between 0 and 1.

    Attributes:
        frequencies: ℓ, in cycles per signal.
        accuracy: Best accuracy on D(v_ℓ) after pooling, in closed form: of real signals, and of the complex ones of the proof.
        accuracy_as_printed: What theorem 1 prints for both.
        simulated: Share of sampled signals that the best rule gets right, in the same two models.
        errors: Its standard error, a binomial's at the accuracy of the closed form.
        curvature: Curvature of the average loss at the signal (lemma 1, corrected): of φ, of θ, and between the two.
        curvature_ratio: ζ(ℓ).
        trained: The frequencies that were learned.
        losses: Training loss before each iteration; nan once a training has diverged.
        iterations_needed: The first iteration whose loss is below the threshold; nan for never.
        size: D.
        stride: S.
        prefilter: Its name.
    """

    frequencies: np.ndarray
    accuracy: np.ndarray
    accuracy_as_printed: np.ndarray
    simulated: np.ndarray
    errors: np.ndarray
    curvature: np.ndarray
    curvature_ratio: np.ndarray
    trained: np.ndarray
    losses: np.ndarray
    iterations_needed: np.ndarray
    size: int
    stride: int
    prefilter: str

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("frequencies", "accuracy_as_printed", "curvature_ratio"), ("frequency",)),
        **dict.fromkeys(("accuracy", "simulated", "errors"), ("model", "frequency")),
        "curvature": ("block", "frequency"),
        "trained": ("curve",),
        "losses": ("iteration", "curve", "repeat"),
        "iterations_needed": ("curve", "repeat"),
    }

    @property
    @override
    def subject(self) -> str:
        named = {"none": "plain subsampling", "box": "average pooling"}.get(self.prefilter, f"{self.prefilter} pooling")
        return f"{named} by {self.stride} of {self.size} samples"

    def deviations(self) -> np.ndarray:
        """Simulation minus closed form in standard errors, ``(model, frequency)``; 0 where both are certain."""
        # Where the closed form is certain, a rounding error of it is no deviation, and any miss is a large one.
        return np.asarray((self.simulated - self.accuracy) / np.maximum(self.errors, 1e-9))

    def slowdown(self) -> tuple[int, int, Estimate] | None:
        """Of the frequencies always learned the slowest and that of the largest ζ, and the ratio of their iterations."""
        learned = np.flatnonzero(np.isfinite(self.iterations_needed).all(1))
        if not learned.size:
            return None
        slow = learned[np.argmax(self.iterations_needed[learned].mean(1))]
        easy = learned[np.argmax(self.curvature_ratio[self.trained[learned]])]
        if slow == easy:
            return None
        needed = self.iterations_needed[[slow, easy]]  # (2, R)
        rest = needed.sum(1, keepdims=True) - needed  # without one repeat
        ratio = jackknife(
            float(needed[0].sum() / needed[1].sum()), list(rest[0] / np.maximum(rest[1], 1)), positive=True
        )
        return int(self.trained[slow]), int(self.trained[easy]), ratio

    @override
    def headline(self) -> dict[str, Number]:
        largest, best = Estimate.exact(float(np.abs(self.deviations()).max())), self.accuracy[0]
        mean, lost = Estimate.exact(float(best.mean())), Estimate.exact(float((best < 0.6).mean()))
        found = {
            "largest_deviation": largest.named("largest deviation of simulation from closed form", "standard errors"),
            "mean_best_accuracy": mean.named("mean best accuracy after pooling", SHARE),
            "frequencies_below_60_percent": lost.named("share of frequencies below 60 % accuracy", SHARE),
        }
        slow = self.slowdown()
        if slow is not None:
            found["slowdown"] = slow[2].named(f"iterations for frequency {slow[0]} relative to frequency {slow[1]}")
        return found

    @override
    def sentence(self) -> str:
        deviations, best = np.abs(self.deviations()), self.accuracy[0]
        # The largest of so many independent normal deviates is above this once in a hundred times.
        limit = statistics.NormalDist().inv_cdf(0.5 + 0.5 * 0.99 ** (1 / deviations.size))
        agrees = "The simulation agrees" if deviations.max() <= limit else "The simulation does not agree"
        words = f"After {self.subject}, the best accuracy is between {best.min():.0%} and {best.max():.0%}. "
        words += f"{agrees} with the closed form"
        slow, never = self.slowdown(), int(np.isnan(self.iterations_needed).any(1).sum())
        if slow is not None:
            words += f". Frequency {slow[0]} takes {slow[2].value:.1f} times as long to learn as frequency {slow[1]}"
        if never:
            words += f". {never} of {len(self.trained)} frequencies are not always learned"
        return words.replace("%", " %") + "."

    @override
    def story(self) -> Story:
        return Story(
            meaning=(
                "Pooling removes or weakens some frequencies, whatever the weights. Frequencies near 50 % accuracy are lost "
                "for every later layer. Others can be learned, but slowly where the curvature is small. This is a theory of "
                "one linear layer with pooling, not of a deep network."
            ),
            next_steps=[
                Step("Measure the frequencies that a real network learns.", "biascope measure directional_bias lenet")
            ],
        )

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        return {
            "accuracy_by_frequency": captioned(
                "Best accuracy after pooling, by frequency", self._accuracy_picture(dark)
            ),
            "curvature": captioned("Curvature of the loss at the signal's frequency", self._curvature_picture(dark)),
            "training_loss": captioned(
                "Training loss of the linear pooling model by gradient descent", self._training_picture(dark)
            ),
        }

    def _accuracy_picture(self, dark: bool) -> Figure:
        from biascope.results import draw

        reading = (
            "Lines are closed forms, dots are simulations with 95 % bars. At 50 %, pooling has removed the frequency."
        )
        figure, colours = draw.blank(3.7, reading), draw.PALETTE[dark]
        axes = draw.panel(figure, dark)
        for row, (name, colour) in enumerate(zip(("real signals", "complex model"), colours.lines, strict=False)):
            axes.plot(self.frequencies, 100 * self.accuracy[row], color=colour, linewidth=1.4, label=name)
            style: dict[str, Any] = {"fmt": "o", "markersize": 3, "elinewidth": 1, "color": colour, "label": "_"}
            axes.errorbar(self.frequencies, 100 * self.simulated[row], 196 * self.errors[row], **style)
        style = {"color": colours.ink, "linestyle": (0, (4, 3)), "linewidth": 1.1}
        axes.plot(self.frequencies, 100 * self.accuracy_as_printed, label="as printed", **style)
        axes.set(xlabel="frequency, cycles per signal", ylabel="best accuracy, %", ylim=(48, 102))
        draw.legend_below(figure, axes, dark)
        return figure

    def _curvature_picture(self, dark: bool) -> Figure:
        from biascope.results import draw

        reading = "Each point is the task of one frequency. Learning is slow where the curvature of φ with θ is small."
        figure, colours = draw.blank(4.4, reading), draw.PALETTE[dark]
        grid = figure.add_gridspec(2, 1, height_ratios=(1.5, 1))
        above = draw.panel(figure, dark, grid[0])
        below = draw.panel(figure, dark, grid[1], sharex=above)
        names = ("filter φ", "readout θ", "φ with θ")
        for name, colour, values in zip(names, colours.lines, self.curvature, strict=False):
            above.plot(self.frequencies, values, color=colour, linewidth=1.6, label=name)
        below.plot(self.frequencies, self.curvature_ratio, color=colours.lines[3], linewidth=1.6)
        above.tick_params(labelbottom=False)
        top = float(self.curvature.max())  # the floor: at some frequencies all but θ may vanish
        above.set(ylabel="average curvature", yscale="log", ylim=(1e-4 * top, 2 * top))
        below.set(xlabel="frequency, cycles per signal", ylabel="ζ, signal / noise", ylim=(0, None))
        figure.align_ylabels([above, below])
        draw.legend_below(figure, above, dark)
        return figure

    def _training_picture(self, dark: bool) -> Figure:
        from biascope.results.figures import lines_figure

        at, middle = np.arange(len(self.losses)), np.median(self.losses, axis=2)
        ends = np.quantile(self.losses, (0.25, 0.75), axis=2)
        curves = {f"ℓ = {frequency}": (at, middle[:, place]) for place, frequency in enumerate(self.trained)}
        bands = {name: (ends[0, :, place], ends[1, :, place]) for place, name in enumerate(curves)}
        reading = "Each curve is the median of the repeats at one frequency ℓ; the middle half is shaded. "
        reading += (
            "Frequencies that the prefilter weakens are learned late. Frequencies that it removes are never learned."
        )
        figure = lines_figure(curves, x="iterations", y="training loss", bands=bands, reading=reading, dark=dark)
        figure.axes[0].set(ylim=(0, 1.05 * max(1.0, float(np.nanmax(middle[0], initial=0.0)))))
        return figure


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (), {"size": 12, "stride": 3, "samples": 400, "train": 64, "iterations": 60, "repeats": 3, "curves": 3}


@measurement(title="Pooling theory", paper="nads2020", result=PoolingTheory, example=_example)
def pooling_theory(
    *,
    size: int = 128,
    stride: int = 4,
    prefilter: str = "box",
    noise: float = 3.0,
    epsilon: float = 1.0,
    samples: int = 10_000,
    training_noise: float = 0.5,
    train: int = 500,
    iterations: int = 500,
    rate: float = 0.1,
    weight_std: float = 0.3,
    threshold: float = 0.1,
    curves: int = 6,
    repeats: int = 8,
    seed: int = 0,
    run: Run | None = None,
) -> PoolingTheory:
    """Effect of pooling on each frequency and on learning it: closed forms, checked by simulation, and training curves.

    Definition: signals ``x = εyv_ℓ + w`` of D(v_ℓ) are pooled by a prefilter m̂ with stride S. The best accuracy after pooling is
    ``Φ(√(μᵀΣ⁺μ))``. Unless 2ℓ is a multiple of M, this is ``Φ((ε/σ)γ')`` with ``γ'² = |m̂[ℓ]|² / Σ_{k≥1} |m̂[ℓ+kM]|²``. The
    curvatures are those of lemma 1, with ``ζ(ℓ) = ε²m²[ℓ] / (σ² max m²)`` and ``m = |m̂|``. Printed constants differ, see
    docs/errata.md.

    The accuracy is simulated: the best rule classifies fresh samples, and the number of hits is binomial. The model
    ``θᵀA(m ⊙ φ ⊙ x)`` is trained on D(e_ℓ) in Fourier coordinates, by gradient descent on the squared error. Each repeat has its own
    weights and data.

    Args:
        size: Length D of a signal.
        stride: Stride S, a divisor of D.
        prefilter: ``"box"`` (average pooling), ``"triangle"``, ``"gaussian"``, ``"ideal"``, ``"none"``.
        noise: σ of the signals to be classified.
        epsilon: Signal strength ε.
        samples: Signals to simulate in each repeat.
        training_noise: σ for the curvatures, ζ and the training data; the paper's speed maps use 0.5.
        train: Number of training samples.
        iterations: Iterations of gradient descent.
        rate: Learning rate of gradient descent.
        weight_std: Standard deviation of initial θ and φ; also for the curvatures.
        threshold: Training loss that counts as learned (it starts near 1 and can reach 0).
        curves: Frequencies to train on, evenly spread.
        repeats: Independent repeats, at least 1; errors of training need 3.
        seed: Random seed.
        run: Folder, device, precision of training (half precision is taken as float32).

    Returns:
        Accuracies, curvatures and training curves.

    Raises:
        ValueError: If the stride does not divide the size, or a setting is out of its range.

    Example:
        >>> result = pooling_theory(size=32, stride=4, samples=100, iterations=1, repeats=1, run=Run(device="cpu"))
        >>> result.accuracy[0, [0, 8]].tolist()  # a constant is kept, its alias M = 8 is averaged away
        [1.0, 0.5]

    Reference:
        Ortiz-Jiménez et al. (2020). Neural anisotropy directions. NeurIPS, sections 2.1 and 2.2, figure 4.
    """
    run = run or Run()
    counts = {"size": size, "samples": samples, "train": train, "curves": curves, "repeats": repeats}
    for name, value in {**counts, "iterations": iterations}.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}. Pass {name}=1 or more.")
    for name, number in {"noise": noise, "training_noise": training_noise, "epsilon": epsilon}.items():
        if not number > 0:
            raise ValueError(f"{name} must be above 0, got {number}. Pass {name}=1.0.")
    if not weight_std > 0:
        raise ValueError(f"weight_std must be a positive number, got {weight_std}. Pass weight_std=0.3.")
    recipe = Recipe("gd", rate, "constant", steps=iterations, loss="squared", threshold=threshold)
    pooling.aliasing_matrix(size, stride)  # raises if one does not divide the other
    response = pooling.prefilter_response(prefilter, size, stride)
    frequencies, magnitude = range(size // 2 + 1), np.abs(response)
    trained = [int(place) for place in np.unique(np.round(np.linspace(0, size // 2, curves)))]
    signals, learned = {"epsilon": epsilon, "sigma": noise}, {"epsilon": epsilon, "sigma": training_noise}
    start: dict[str, Any] = {**learned, "weight_std": weight_std, "train": train, "recipe": recipe}

    def repeated(key: str) -> Outcome:
        own = seed_of(seed, "pooling", key)
        drawn = [sample(response, stride, frequencies, **signals, samples=samples, seed=own) for sample in SIMULATIONS]
        trajectory = pooling_trajectory(magnitude, stride, trained, **start, seed=own, run=run)
        needed = trajectory.first_below.double().where(trajectory.first_below > 0, torch.nan)
        losses = trajectory.losses.float()
        losses[~losses.isfinite()] = torch.nan
        return {"shares": torch.from_numpy(np.stack(drawn)), "losses": losses, "needed": needed}

    trials = Trials(
        "pooling theory",
        run,
        code=repeated,
        model=(size, stride, prefilter),
        signals=signals,
        samples=samples,
        start=start,
        trained=trained,
        seed=seed,
    )
    outcomes = list(trials.outcomes([f"repeat-{place}" for place in range(repeats)], repeated))
    forms: tuple[Callable[..., float], ...] = (best_accuracy, best_accuracy_complex)
    accuracy = np.array([[form(response, stride, place, **signals) for place in frequencies] for form in forms])
    gamma = [math.sqrt(stride) * pooling.aliasing_ratio(response, stride, place) for place in frequencies]
    return PoolingTheory(
        frequencies=np.array(frequencies),
        accuracy=accuracy,
        accuracy_as_printed=np.array([pooling.normal_cdf(epsilon / noise / math.sqrt(2) * value) for value in gamma]),
        simulated=torch.stack([outcome["shares"] for outcome in outcomes]).mean(0).numpy(),
        errors=np.sqrt(accuracy * (1 - accuracy) / (samples * repeats)),
        curvature=np.array([_curvature(magnitude, stride, place, weight_std, learned) for place in frequencies]).T,
        curvature_ratio=pooling.signal_curvature_ratio(magnitude, **learned)[: size // 2 + 1],
        trained=np.array(trained),
        losses=torch.stack([outcome["losses"] for outcome in outcomes], 2).numpy(),
        iterations_needed=torch.stack([outcome["needed"] for outcome in outcomes], 1).numpy(),
        size=size,
        stride=stride,
        prefilter=prefilter,
    )


def _curvature(prefilter: np.ndarray, stride: int, place: int, std: float, signals: dict[str, float]) -> list[float]:
    """The three entries of the average Hessian at a frequency: of φ, of θ, and the size of that between them."""
    of_phi = pooling.loss_hessian_phi(prefilter, stride, place, **signals, theta_std=std)[place, place]
    of_theta = pooling.loss_hessian_theta(prefilter, stride, place, **signals, phi_std=std)
    between = pooling.loss_hessian_cross(prefilter, stride, place, epsilon=signals["epsilon"])
    return [of_phi, of_theta.diagonal()[place % len(of_theta)], np.abs(between).max()]
