"""Neural anisotropy directions: the input directions along which a family of networks moves most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from biascope.covariance_result import CovarianceResult, covariance_fields
from biascope.family import Family
from biascope.measurement import measurement
from biascope.probe import Probe
from biascope.run import Run
from biascope.sampling import GradientSampler, default_estimator, gradient_covariance

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Anisotropy(CovarianceResult):
    """The anisotropy directions of a family at an input, largest variance first."""

    def sentence(self) -> str:  # noqa: D102
        rank, size = self.effective_rank, self.size
        if self.unclear():
            return f"{self.subject} was drawn too few times to tell in how many of {size} directions it moves freely."
        if rank.contains(size):
            return f"{self.subject} moves equally freely in all {size} directions: it has no preferred ones."
        prefers = self.preference()
        words = f"{self.subject} moves freely in about {rank.value:.0f} of {size} directions"
        return words + (f"; it prefers {prefers}." if prefers else ".")

    def plots(self, dark: bool = False) -> dict[str, Figure]:  # noqa: D102
        from biascope import draw

        spectrum = draw.spectrum(
            {self.subject: (self.eigenvalues, self.eigenvalue_errors, self.held_out)},
            draws=self.draws,
            size=self.size,
            traces={self.subject: self.trace.value},
            dark=dark,
        )
        pictures = {"Variance of the gradient along each direction": spectrum}
        if len(self.input_shape) >= 2:
            shown = [index for index in (0, 1, 2, 3, 4, 9, 19, 49, 99) if index < len(self.directions)]
            images = self.directions[shown].reshape(-1, *self.input_shape)
            labels = [str(index + 1) for index in shown]
            pictures["Leading directions in pixels and in frequency"] = draw.directions(images, labels, dark=dark)
        pictures["Agreement of the two halves of the draws"] = draw.similarity(
            self.similarity_sizes, self.similarity, self.size, dark=dark
        )
        return pictures


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    family = Family.initialised(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 1)), name="small MLP"
    )
    return (family, Probe.gaussian((1, 6, 6), seed=0)), {"draws": 64, "estimator": "exact"}


@measurement(title="Anisotropy directions", paper="nads2020", result=Anisotropy, example=_example)
def anisotropy_directions(
    family: Family,
    probe: Probe,
    *,
    estimator: str | None = None,
    step: float = 100.0,
    draws: int = 400,
    centred: bool = True,
    readout: str = "first",
    stable: float | None = None,
    leading: int = 10,
    keep: int | None = None,
    seed: int = 0,
    run: Run | None = None,
) -> Anisotropy:
    """Directions of input space ordered by how much a network's output varies along them at initialisation.

    Definition: the eigenvectors of ``C = E_θ[∇_x f_θ(x) ∇_x f_θ(x)ᵀ]``, largest eigenvalue first, with ``θ`` drawn from
    the family. ``∇_x f`` is exact, or the published central difference ``(f(x + h e_i) − f(x − h e_i))/2h`` with h = 100,
    which sees the coarse geometry of networks with kinks.

    Estimated from independent draws. Effective rank ``(tr C)²/tr C²`` and anisotropy ``1 − rank/D`` are U-statistics,
    unbiased at any number of draws up to the ratio, with 95 % jackknife intervals over 32 groups; the agreement of two
    halves of the draws tells how many directions are resolved.

    Args:
        family: Networks and the law of their weights.
        probe: The input; one fixed N(0, 1) draw in the paper.
        estimator: ``"difference"`` or ``"exact"``; by default differences where their operation count is affordable.
        step: Half width h of the difference.
        draws: Number of networks, at least 2, or 4 if centred.
        centred: Whether the mean gradient is removed first, as in the published results.
        readout: Which scalar of several outputs: ``first``, ``sum``, ``mean``, ``margin``, ``random``.
        stable: Stop before ``draws`` once the leading subspaces of the two halves are this similar (0 to 1).
        leading: Dimension of that subspace.
        keep: Directions to keep; by default all up to D = 4096, else 64.
        seed: Of the weights.
        run: Folder, device, precision.

    Returns:
        Directions, spectrum and their uncertainty.

    Raises:
        ValueError: If the network does not fit the probe, its output is constant or not finite, or a setting is wrong.

    Example:
        >>> family = Family.initialised(lambda: nn.Linear(16, 1, bias=False), name="linear")
        >>> result = anisotropy_directions(family, Probe.gaussian((16,)), estimator="exact", draws=2000)
        >>> result.effective_rank.contains(16)  # a linear model with independent weights is isotropic
        True

    Reference:
        Ortiz-Jiménez, Modas, Moosavi-Dezfooli, Frossard (2020). Neural anisotropy directions. NeurIPS.
    """
    run = run or Run()
    if family.size == 1:
        raise ValueError(
            f"Anisotropy directions need a law over weights, and {family.name} is one network. Use average_geometry."
        )
    chosen = estimator or default_estimator(family, probe, draws, run)
    sampler = GradientSampler(family, probe, estimator=chosen, step=step, readout=readout, seed=seed, run=run)
    covariance = gradient_covariance(
        sampler,
        draws=draws,
        centred=centred,
        seed=seed,
        stable=stable,
        leading=leading,
        label=f"{family.name}: directions",
    )
    settled = {"estimator": chosen, "outputs": sampler.outputs, "method": sampler.method, "draws": covariance.draws}
    return Anisotropy(**covariance_fields(covariance, probe.input_shape, keep), provenance=settled)
