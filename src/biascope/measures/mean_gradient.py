"""Mean gradient: the directions over which the input gradient of an untrained network spreads, averaged over inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import nn
from typing_extensions import override

from biascope.derivatives.covariance import GradientSampler, gradient_covariance
from biascope.derivatives.sampling import MEAN_INPUTS
from biascope.families.family import Family
from biascope.kernels.selftest import derivative_checks
from biascope.measures.covariance import CovarianceResult, axes_of, covariance_fields, doubts_of_tail
from biascope.measures.covariance.compare import in_full
from biascope.measures.covariance.shares import LOW_BANDS, ImageShares
from biascope.results.atlas import Placement
from biascope.results.estimate import Number
from biascope.results.registry import measurement
from biascope.results.story import Sentence, Story
from biascope.results.wording import percent
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class MeanGradient(CovarianceResult):
    """The covariance of a family's mean gradients, largest variance first."""

    @property
    def estimator(self) -> str:
        """How gradients were taken, in words."""
        return "mean gradient over inputs"

    @override
    def headline(self) -> dict[str, Number]:
        shown = super().headline()
        shown["effective_rank"] = self.effective_rank.named(
            f"directions over which the mean gradient spreads, of {self.size}"
        )
        shown["trace"] = self.trace.named("mean squared length of the mean gradient")
        return shown

    @override
    def sentence(self) -> str:
        words = [self._spread(), *(text for text, _ in self.located())]
        if self._preferring():
            if self.resolved == 0:
                words.append(f"{self.draws} draws do not resolve which directions these are: use more.")
            else:
                words.append("Patterns along these directions tend to be learned first.")
        return " ".join(words)

    def _preferring(self) -> bool:
        """Whether the draws tell that it prefers some directions."""
        rank, size = self.effective_rank, self.size
        return not (self.unclear() or rank.contains(size) or math.isclose(rank.value, size, rel_tol=1e-6))

    def _spread(self) -> str:
        rank, size = self.effective_rank, self.size
        if self._preferring():
            return (
                f"Before training, the mean gradient of {self.subject} spreads over about {self.counted()} of {size:,} directions "
                f"(95 % CI {in_full(rank.low)} to {in_full(rank.high)})."
            )
        if self.unclear():
            return f"{self.subject} needs more draws: it is unclear over how many of {size:,} directions its mean gradient spreads."
        return f"Before training, the mean gradient of {self.subject} {self.evenly()}."

    @override
    def story(self) -> Story:
        return replace(
            super().story(),
            page_kind="bias card",
            sentences=self._sentences(),
            meaning=self._meaning(),
        )

    def _meaning(self) -> str:
        about = "This is about initial weights and random inputs. It does not predict accuracy on a data set."
        if self.unclear():
            return f"The interval is too wide to tell whether the network has a preference. {about}"
        if not self._preferring():
            return (
                "A network without a preference learns patterns along all directions alike: before it sees data, no pattern is easier "
                f"than another of the same strength. {about}"
            )
        return (
            f"A small number of directions means a strong preference, and {self.counted()} of {self.size} are "
            f"{percent(self.effective_rank.value / self.size)}. Before it sees data, the network changes its output mostly along these "
            "patterns. Where labels depend on them alone, it tends to learn quickly. Where labels depend on other "
            "patterns, it learns slowly: of 80 small networks, those with fewer directions learned images later (docs/answers.md). "
            f"{about} The directions beyond the resolved ones are noise."
        )

    @override
    def lead(self) -> str:
        if self.unclear():
            return f"{self.draws} draws do not tell what {self.subject} prefers."
        if found := self.stands_out():
            if not self.input_axes.image:
                return f"{self.subject} looks mostly at {found}."
            # What is learned first was tested for smooth patterns alone (docs/answers.md).
            tested = found == "smooth patterns"
            return f"{self.subject} tends to learn {found} first." if tested else f"{self.subject} prefers {found}."
        if self._preferring():
            return f"{self.subject} prefers about {self.counted()} of {self.size} directions of its inputs."
        return f"{self.subject} prefers no kind of input: all directions are alike to it."

    def _sentences(self) -> list[Sentence]:
        found = [Sentence(self._spread(), "spectrum"), *self.located()]
        return [*found, *self.resolved_sentence()]

    @override
    def placements(self) -> list[Placement]:
        if not self._preferring():
            return []
        found = [Placement("rank_share", self.effective_rank.map_linear(1 / self.size), self.input_axes)]
        for shares in self.shares():
            if isinstance(shares, ImageShares) and shares.name == "spatial frequency":
                found.insert(0, Placement("low_frequencies", shares.share(LOW_BANDS), self.input_axes))
        return found

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        return self.direction_plots("Variance of the mean gradient", dark)


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    family = Family.initialised(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 1)), name="small MLP"
    )
    return (family, Probe.gaussian((1, 6, 6), num=4, fresh=True, seed=0)), {"draws": 64}


@measurement(
    title="Mean gradient",
    paper="nads2020",
    result=MeanGradient,
    example=_example,
    checks=derivative_checks(lambda settings: ("input",), half=True),
    probe={"num": MEAN_INPUTS, "fresh": True},
)
def mean_gradient(
    family: Family,
    probe: Probe,
    *,
    draws: int = 400,
    readout: str = "first",
    stable: float | None = None,
    leading: int = 10,
    keep: int | None = None,
    seed: int = 0,
    run: Run | None = None,
) -> MeanGradient:
    """The directions over which the mean gradient of an untrained network spreads, and how many there are.

    Definition: the eigenvectors of ``C̄ = E_θ[ḡ_θ ḡ_θᵀ]`` of the mean gradient ``ḡ_θ = E_x ∇_x f_θ(x)``, with ``θ`` drawn from the
    family and ``x ~ N(0, σ²I)``. By Stein's lemma ``ḡ_θ`` is the slope of the linear function that is closest to ``f_θ``. Slopes that
    change from input to input, for example after max-pooling, average out. The rest predicts along which directions the network
    learns. The number of directions is the effective rank ``(tr C̄)²/tr C̄²``.

    Estimated from independent draws of networks, each with its own inputs. Let a and b be the means of a network's gradients over
    two halves of its inputs. Then ``½(a bᵀ + b aᵀ)`` has the expectation ``ḡ ḡᵀ``, for any number of inputs. Scalars are U-statistics
    over pairs of draws with 95 % jackknife intervals over 32 groups. An eigenvalue that noise makes negative is shown as 0.

    Args:
        family: Networks and the distribution of their weights.
        probe: Fresh inputs for each network, an even number of them.
        draws: Number of networks, at least 2.
        readout: Which scalar of several outputs: ``first``, ``sum``, ``mean``, ``margin``, ``random``.
        stable: Stop before ``draws`` once the leading subspaces of the two halves of the draws are this similar (0 to 1).
        leading: Dimension of that subspace.
        keep: Directions to keep; by default all that the draws resolve up to D = 4096, else 64.
        seed: Random seed for the weights.
        run: Folder, device, precision.

    Returns:
        Directions, spectrum and their uncertainty.

    Raises:
        ValueError: If the family is one network, the network does not fit the probe, or a setting is wrong.

    Example:
        >>> family = Family.initialised(lambda: nn.Linear(16, 1, bias=False), name="linear")
        >>> result = mean_gradient(family, Probe.gaussian((16,), num=2, fresh=True), draws=2000)
        >>> result.effective_rank.contains(16)  # a linear model with independent weights is isotropic
        True

    Reference:
        Ortiz-Jiménez, Modas, Moosavi-Dezfooli, Frossard (2020). Neural anisotropy directions. NeurIPS, for gradient covariances over
        initial weights. Their averaging over inputs within each network is ours; docs/mean_gradient.md compares both.
    """
    if family.size == 1:
        raise ValueError(
            f"A mean gradient needs a distribution of weights, but {family.name} is one network. Use average_geometry."
        )
    if not probe.fresh:
        raise ValueError(
            f"A mean gradient needs fresh inputs for each network, got {probe.description}. Pass Probe.gaussian(shape, num=16, "
            "fresh=True), or --fresh."
        )
    run = run or Run()
    sampler = GradientSampler(family, probe, estimator="exact", step=1.0, readout=readout, seed=seed, run=run)
    covariance = gradient_covariance(
        sampler,
        draws=draws,
        of_means=True,
        seed=seed,
        stable=stable,
        leading=leading,
        label=f"{family.name}: mean gradients",
    )
    return MeanGradient(
        **covariance_fields(covariance, axes_of(family, probe), keep),
        derivative="exact",
        seed=seed,
        provenance={
            "outputs": sampler.outputs,
            "draws": covariance.draws,
            "warnings": [*sampler.doubts_of_readout(), *doubts_of_tail(covariance)],
        },
    )
