"""Average geometry: the mean outer product of input gradients over a probe distribution and a family of networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import nn
from typing_extensions import override

from biascope.derivatives.covariance import GradientSampler, gradient_covariance
from biascope.families.family import Family
from biascope.kernels.selftest import derivative_checks
from biascope.measures.covariance import CovarianceResult, axes_of, covariance_fields, doubts_of_tail, narrowed
from biascope.results.draw import captioned
from biascope.results.registry import measurement
from biascope.results.story import Sentence, Story
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Geometry(CovarianceResult):
    """The average geometry of a family over a probe.

    Attributes:
        matrix: ``G`` itself, ``(input, input)``; empty beyond D = 4096.
    """

    matrix: np.ndarray

    details_beside: ClassVar[Mapping[str, str]] = {
        "mean_gradient": "It squares slopes before it averages them over inputs, so it also counts slopes that change from input "
        "to input and cancel. These do not show which directions are learned."
    }
    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {**CovarianceResult.axes, "matrix": ("row", "column")}

    @override
    def sentence(self) -> str:
        return " ".join([self._spread(), *(text for text, _ in self.located())])

    def _spread(self) -> str:
        rank, size = self.effective_rank, self.size
        if self.unclear():
            return f"{self.subject} needs more draws: it is unclear over how many of {size:,} directions its gradient spreads."
        if rank.contains(size):
            return f"Averaged over inputs, the gradient of {self.subject} {self.evenly()}."
        return f"Averaged over inputs, the gradient of {self.subject} spreads over about {self.counted()} of {size:,} directions."

    @override
    def lead(self) -> str:
        """Of one network; beside draws, the mean gradient leads."""
        if not self.at_given_weights:
            return ""
        found = self.stands_out()
        return (
            f"{self.subject} reacts most to {found}."
            if found
            else f"{self.subject} reacts to no few kinds of inputs alone."
        )

    @override
    def story(self) -> Story:
        return replace(
            super().story(),
            sentences=self._sentences(),
            meaning=(
                "The output changes most along the leading directions, whatever the sign of the slope. A trained network with "
                "few leading directions ignores changes along all others. This is about how strongly the output reacts, not "
                "about whether the reaction is useful: directions that separate classes and directions that fool the network can "
                "both lead."
            ),
        )

    def _sentences(self) -> list[Sentence]:
        return [Sentence(self._spread(), "spectrum"), *self.located(), *self.resolved_sentence()]

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        from biascope.results import draw

        pictures = self.share_plots(dark)
        if self.matrix.size:
            pictures["geometry"] = captioned(
                "Average geometry G, relative to its mean diagonal",
                draw.matrix(self.matrix, self.input_axes, dark=dark),
            )
        pictures["spectrum"] = captioned(
            "Spectrum of the average geometry",
            draw.spectrum(
                {self.subject: (self.eigenvalues, self.eigenvalue_errors, self.held_out)},
                draws=self.effective_draws(),
                size=self.size,
                traces={self.subject: self.trace.value},
                dark=dark,
            ),
        )
        return pictures


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    family = Family.initialised(
        lambda: nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(40, 1)), name="small CNN"
    )
    return (family, Probe.gaussian((1, 12), num=2, fresh=True, seed=0)), {"draws": 64}


@measurement(
    title="Average geometry",
    paper="geometry2025",
    result=Geometry,
    example=_example,
    checks=derivative_checks(lambda settings: ("input",) if settings["estimator"] == "exact" else (), half=True),
)
def average_geometry(
    family: Family,
    probe: Probe,
    *,
    estimator: str = "exact",
    step: float = 100.0,
    draws: int = 400,
    readout: str = "first",
    stable: float | None = None,
    leading: int = 10,
    keep: int | None = None,
    seed: int = 0,
    run: Run | None = None,
) -> Geometry:
    """How much a network's output changes along each input direction, averaged over inputs and weights.

    Definition: ``G = E_{x∼P} E_θ[∇_x f_θ(x) ∇_x f_θ(x)ᵀ]``, uncentred. At one input and at initialisation, its eigenvectors are
    the anisotropy directions. For a trained network ``θ`` is fixed, and the mean is over inputs.

    Estimated from draws of networks, each with its own inputs. Unbiased scalars and intervals are computed as for the
    anisotropy directions. The draws are the independent samples.

    Args:
        family: Networks and the distribution of their weights.
        probe: Inputs, best sampled afresh for each network.
        estimator: ``"exact"`` or ``"difference"``.
        step: Half width h of the difference.
        draws: Number of networks (of input sets, for a point), at least 2.
        readout: Which scalar of several outputs; the published G takes the ``mean``.
        stable: Stop before ``draws`` once the leading subspaces of the two halves are this similar (0 to 1).
        leading: Dimension of that subspace.
        keep: Directions to keep; by default all that the draws resolve up to D = 4096, else 64.
        seed: Random seed for the weights.
        run: Folder, device, precision.

    Returns:
        The matrix, its spectrum and their uncertainty.

    Raises:
        ValueError: If the network does not fit the probe, its output is constant or not finite, or a setting is wrong.

    Example:
        >>> import torch
        >>> family = Family.initialised(lambda: nn.Linear(9, 1, bias=False), name="linear")
        >>> result = average_geometry(family, Probe.fixed(torch.zeros(1, 9)), draws=4000)
        >>> bool(np.allclose(result.matrix, np.eye(9) / 27, atol=4e-3))  # weights uniform on ±1/3 have variance 1/27
        True

    Reference:
        Movahedi, Orvieto, Moosavi-Dezfooli (2025). Geometric inductive biases of deep networks. ICLR, definition 2.1.
    """
    run = run or Run()
    sampler = GradientSampler(family, probe, estimator=estimator, step=step, readout=readout, seed=seed, run=run)
    covariance = gradient_covariance(
        sampler, draws=draws, seed=seed, stable=stable, leading=leading, label=f"{family.name}: geometry"
    )
    matrix = covariance.dense() if covariance.size <= 4096 else None
    dense = np.zeros((0, 0), np.float32) if matrix is None else narrowed(matrix).cpu().numpy()
    warnings = [*sampler.doubts_of_readout(), *doubts_of_tail(covariance)]
    settled = {"outputs": sampler.outputs, "draws": covariance.draws, "warnings": warnings}
    return Geometry(
        **covariance_fields(covariance, axes_of(family, probe), keep),
        matrix=dense,
        derivative=estimator,
        step=step if estimator == "difference" else None,
        seed=seed,
        provenance=settled,
    )
