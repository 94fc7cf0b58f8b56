"""WHAT: the tangent kernel of a network on a grid as a dictionary of signals: its atoms, and the energy of signals on them."""

# n points · m signals · T thresholds · R ridges · k atoms

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from typing_extensions import override

from biascope.results import signal_pictures as pictures
from biascope.results.draw import captioned
from biascope.results.estimate import SHARE, Estimate, Number, over, spearman
from biascope.results.result import Result
from biascope.results.story import Step, Story

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RULES = ("predicted", "concentration")


@dataclass(frozen=True, repr=False)
class Dictionary(Result):
    """Eigenfunctions of a tangent kernel on a grid, and signals seen through them.

    Attributes:
        signals: What they are.
        sizes: Sizes of their grid.
        places: Which points of it the kernel of each network was taken on.
        thresholds: λ, as shares of the largest eigenvalue, falling.
        ridges: Ridges of the regression, as shares of the largest eigenvalue.
        ridge: The one whose prediction is quoted; ``None`` for the best of each signal.
        eigenvalues: Eigenvalues of the kernel over n, largest first.
        energy: ``E(λ)`` of each signal without its mean.
        concentration: Area under ``E(λ)`` over the logarithm of λ, of 1 at most; see the measurement.
        predicted: PSNR that regression with the kernel reaches on the points held out, in decibels.
        atom_shape: Grid that atoms are shown on: that of the signals, or every s-th point of it.
        atoms: The first eigenfunctions of the first network, of unit length.
        frequency: Mean frequency of the first eigenfunctions, in cycles over the longest side.
    """

    signals: str
    sizes: tuple[int, ...]
    places: np.ndarray
    thresholds: np.ndarray
    ridges: np.ndarray
    ridge: float | None
    eigenvalues: np.ndarray
    energy: np.ndarray
    concentration: np.ndarray
    predicted: np.ndarray
    atom_shape: tuple[int, ...]
    atoms: np.ndarray
    frequency: np.ndarray

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "places": ("draw", "point"),
        "thresholds": ("threshold",),
        "ridges": ("ridge",),
        "eigenvalues": ("draw", "point"),
        "energy": ("draw", "signal", "threshold"),
        "concentration": ("draw", "signal"),
        "predicted": ("draw", "signal", "ridge"),
        "atoms": ("atom", "cell"),
        "frequency": ("draw", "atom"),
    }

    @property
    def relative(self) -> np.ndarray:
        """Eigenvalues over the largest (draw, point)."""
        return np.asarray(self.eigenvalues / self.eigenvalues[:, :1])

    @property
    def predicted_psnr(self) -> np.ndarray:
        """The prediction at the ridge that is quoted (draw, signal)."""
        if self.ridge is None:
            return np.asarray(self.predicted.max(-1))
        return np.asarray(self.predicted[..., int(np.abs(np.log(self.ridges / self.ridge)).argmin())])

    def energy_above(self, threshold: float) -> np.ndarray:
        """``E(λ)`` at the nearest threshold (draw, signal)."""
        return np.asarray(self.energy[..., int(np.abs(np.log(self.thresholds / threshold)).argmin())])

    def score(self, by: str = "predicted") -> np.ndarray:
        """What networks are ranked by, the larger the better (draw, signal).

        Args:
            by: ``"predicted"``, the PSNR that regression with the kernel reaches, or ``"concentration"`` of the energy.

        Raises:
            ValueError: If there is no such rule.
        """
        if by not in RULES:
            raise ValueError(f"by must be 'predicted' or 'concentration', got {by!r}. Pass by='predicted'.")
        return self.predicted_psnr if by == "predicted" else self.concentration

    @override
    def headline(self) -> dict[str, Number]:
        psnr, frequency = over_signals(self.predicted_psnr), over(self.frequency.mean(1))
        concentration = over_signals(self.concentration, within=(0.0, 1.0))
        energy = over_signals(self.energy_above(0.01), within=(0.0, 1.0))
        count = over((self.relative >= 0.01).sum(1))
        return {
            "predicted_psnr": psnr.named("predicted PSNR on held-out points", "dB"),
            "concentration": concentration.named("concentration of the energy"),
            "leading_energy": energy.named("energy on eigenvalues above 1 % of the largest", SHARE),
            "leading_eigenvalues": count.named("eigenvalues above 1 % of the largest"),
            "mean_frequency": frequency.named("mean frequency of the first atoms", "cycles"),
        }

    @override
    def sentence(self) -> str:
        count, share = (self.relative >= 0.01).sum(1).mean(), 100 * self.energy_above(0.01).mean()
        return (
            f"For {self.subject}, {count:.0f} of {self.places.shape[1]:,} eigenvalues are at least 1 % of the largest. Their atoms "
            f"hold {share:.0f} % of the energy of {self.signals}. Kernel regression predicts the held-out points with "
            f"{self.predicted_psnr.mean():.1f} dB."
        )

    @override
    def story(self) -> Story:
        return Story(
            meaning=(
                "Atoms with large eigenvalues are learned first. If most of the energy of the signals lies on them, "
                "training is quick and needs few points. The prediction is that of the kernel at initial weights: a trained "
                "network can adapt its atoms."
            ),
            next_steps=[Step("Rank several networks for one signal.", "biascope inr advise SIGNAL")],
        )

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        energies = {self.subject: self.energy}
        found = {
            "energy": captioned(
                "Energy of the signals above a threshold", pictures.energy_figure(self.thresholds, energies, dark=dark)
            ),
            "eigenvalues": captioned("Eigenvalues", pictures.spectra_figure({self.subject: self.relative}, dark=dark)),
        }
        atoms = {self.subject: self.atoms.reshape(-1, *self.atom_shape)}
        return {"atoms": captioned("First atoms", pictures.atoms_figure(atoms, dark=dark)), **found}


def over_signals(table: np.ndarray, *, within: tuple[float, float] = (-math.inf, math.inf)) -> Estimate:
    """Mean of a table (draw, signal), with the error that other networks and other signals would bring; of one signal, of networks.

    Example:
        >>> over_signals(np.array([[1.0, 2.0, 3.0], [1.2, 2.3, 3.2]]))
        2.1 ± 0.59 (95 % CI -0.78 to 5.01)
    """
    return over(table.mean(1), shared=over(table.mean(0)) if table.shape[1] > 1 else 0.0, within=within)


def rank_agreement(predicted: np.ndarray, trained: np.ndarray) -> Estimate:
    """Rank correlation of what was predicted of networks and what training gave, ``(networks, signals)`` each: mean over signals.

    Example:
        >>> rank_agreement(np.array([[1.0, 1.0], [2.0, 3.0], [3.0, 2.0]]), np.array([[5.0, 5.0], [6.0, 6.0], [7.0, 7.0]])).value
        0.75
    """
    each = [spearman(one, other) for one, other in zip(predicted.T, trained.T, strict=True)]
    return over(each, within=(-1.0, 1.0))
