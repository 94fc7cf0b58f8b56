"""Neural anisotropy directions: the input directions along which the gradient of a family of networks varies most."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from torch import nn
from typing_extensions import override

from biascope.derivatives.covariance import GradientSampler, agreement_of_halves, gradient_covariance
from biascope.derivatives.mixed import MixedDerivative
from biascope.derivatives.mixed_gram import AVERAGES, MixedDerivativeGram, mixed_gram
from biascope.derivatives.operators import EstimatedOperator, GramOfMean
from biascope.families.family import Family
from biascope.kernels.selftest import derivative_checks
from biascope.measures.covariance import CovarianceResult, axes_of, covariance_fields, doubts_of_tail
from biascope.results.estimate import Estimate, Number
from biascope.results.registry import measurement
from biascope.results.story import Sentence, Story
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawn = TypeVar("Drawn")
_ITERATED = 50  # directions kept by default where they are iterated for
_KINKED = {"ReLU", "ReLU6", "LeakyReLU", "PReLU", "Hardtanh", "MaxPool1d", "MaxPool2d", "MaxPool3d"}


@dataclass(frozen=True, repr=False)
class Anisotropy(CovarianceResult):
    """The anisotropy directions of a family at an input, largest variance first.

    Attributes:
        coherence: For an averaged operator the cosine between the averages of the two halves of the draws; about 0 is noise.
        kinks: Layers of the one network of a tangent space whose derivative jumps.
    """

    coherence: float | None = field(default=None, kw_only=True)
    kinks: tuple[str, ...] = field(default=(), kw_only=True)

    details_beside: ClassVar[Mapping[str, str]] = {
        "mean_gradient": "It uses gradients at one input, as published. Differences with a large step order directions almost as the "
        "mean gradient does. Exact gradients at one input do not, if the network has max-pooling."
    }
    _AMONG_SETTINGS: ClassVar[Mapping[str, str]] = {
        **CovarianceResult._AMONG_SETTINGS,
        **{name: name for name in ("coherence", "kinks")},
    }

    @property
    def tangent(self) -> bool:
        """Whether it is about the tangent space of one network."""
        return self.derivative == "tangent"

    @property
    def alignments(self) -> bool:
        """Whether eigenvalues are alignments of linear targets with a tangent kernel: averages over fresh N(0, 1) inputs."""
        return self.tangent and self.coherence is not None

    @property
    def estimator(self) -> str:
        """How derivatives were taken, in words."""
        return "mixed derivative of one network" if self.tangent else super().estimator

    @override
    def headline(self) -> dict[str, Number]:
        shown = super().headline()
        if self.alignments:
            shown["trace"] = self.trace.named("sum of all alignments")
            value, error = float(self.eigenvalues[0]), float(self.eigenvalue_errors[0])
            first = Estimate.from_error(value, error, self.draws).within(0.0, math.inf)
            shown["first_alignment"] = first.named("alignment of the first direction")
        if self.coherence is not None:
            shown["coherence"] = Estimate(self.coherence).named("cosine between the averages of two halves")
        return shown

    @override
    def sentence(self) -> str:
        rank, size = self.effective_rank, self.size
        if self.coherence is not None and self.coherence < 0.5:
            halves = f"(the averages of two halves have cosine {self.coherence:.2f})"
            if self.tangent:
                return f"Noise hides the mean mixed derivative of {self.subject} at {self.draws} inputs {halves}."
            return (
                f"The mixed derivatives of {self.subject} average out over {self.draws} draws {halves}. The remaining "
                "directions are those in which they vary."
            )
        if self.unclear() and not (self.tangent and math.isnan(rank.standard_error)):
            return f"{self.subject} needs more draws: it is unclear over how many of {size:,} directions its gradient spreads."
        what = f"The {'mixed derivative' if self.mixed else 'gradient'} of {self.subject}"
        if rank.contains(size) or math.isclose(rank.value, size, rel_tol=1e-6):
            return f"{what} {self.evenly()}."
        words = " ".join(
            [
                f"{what} spreads over about {self.counted()} of {size:,} directions.",
                *(text for text, _ in self.located()),
            ]
        )
        if self.alignments and self.kinks:
            words += f" The alignments leave out the effect of the kinks of {' and '.join(self.kinks)}."
        return words

    @override
    def story(self) -> Story:
        return replace(
            super().story(),
            sentences=self._sentences(),
            meaning=(
                "The first directions are those along which the gradient of an untrained network varies most from one initialisation "
                "to the "
                "next. The paper found that linear problems along early directions are learned well and along late ones poorly. It was "
                "tested for linearly separable data. It says little about data whose classes are separated in another way."
            ),
        )

    def _sentences(self) -> list[Sentence]:
        words = self.sentence()
        for text, _ in self.located():
            words = words.replace(f" {text}", "")
        return [Sentence(words, "spectrum"), *self.located(), *self.resolved_sentence()]

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        shown_as = "Squared mixed derivative" if self.mixed else "Variance of the gradient"
        return self.direction_plots("Alignment with the tangent kernel" if self.alignments else shown_as, dark)


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    family = Family.initialised(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 1)), name="small MLP"
    )
    return (family, Probe.gaussian((1, 6, 6), seed=0)), {"draws": 64, "estimator": "exact"}


def _derivatives(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Differences of the output see the forward pass alone; a mixed derivative is one by inputs and by weights."""
    return {"difference": (), "exact": ("input",)}.get(settings["estimator"], ("input", "weight"))


@measurement(
    title="Anisotropy directions",
    paper="nads2020",
    result=Anisotropy,
    example=_example,
    checks=derivative_checks(_derivatives, half=True),
)
def anisotropy_directions(
    family: Family,
    probe: Probe,
    *,
    estimator: str = "difference",
    average: str = "gram",
    step: float = 100.0,
    draws: int = 400,
    centred: bool | None = None,
    readout: str = "first",
    stable: float | None = None,
    leading: int = 10,
    keep: int | None = None,
    seed: int = 0,
    run: Run | None = None,
) -> Anisotropy:
    """Directions of input space ordered by how much a network's output varies along them at initialisation.

    Definition: the eigenvectors of ``C = E_θ[∇_x f_θ(x) ∇_x f_θ(x)ᵀ]``, largest eigenvalue first, with ``θ`` drawn from
    the family. There are three published estimators:

    1. The gradient ``∇_x f``: exact, or the central difference ``(f(x + h e_i) − f(x − h e_i))/2h`` with h = 100. The difference
       measures the coarse geometry of networks with kinks.
    2. The mixed derivative ``M_θ = ∇²_{x,θ} f_θ(x)``: its right singular vectors are the eigenvectors of ``E_θ[M_θᵀM_θ]``.
    3. The tangent space of **one** network: the right singular vectors of ``M̄ = E_x[∇²_{x,θ} f(x)]``.

    For the third, let ``x ~ N(0, I)`` and ``∇_θ f`` be continuous in ``x``. Then, by Stein's lemma, ``‖M̄u‖²`` is the alignment
    ``‖E_x[uᵀx ∇_θ f(x)]‖²`` of the target ``x ↦ uᵀx`` with the tangent kernel. With ReLU or max-pooling, ``∇_θ f`` jumps. The
    derivative misses these jumps, which make up almost half of LeNet's first alignment. The published code has GELU networks.

    Estimated from independent draws. Effective rank ``(tr C)²/tr C²`` and anisotropy ``1 − rank/D`` are computed from
    U-statistics, which are unbiased for any number of draws. Their ratio is not exactly unbiased. Intervals are 95 % jackknife
    intervals over 32 groups. The agreement of two halves of the draws shows how many directions are resolved.

    Args:
        family: Networks and the distribution of their weights; for the tangent space one network, or the first draw.
        probe: The input; one fixed N(0, 1) draw in the paper. For the tangent space: ``draws`` fresh N(0, 1) inputs, or fixed
            inputs, over which the mean is exact. The published code uses one input, 0.
        estimator: ``"difference"`` or ``"exact"`` for the gradient; ``"mixed"`` or ``"mixed_difference"`` for the mixed derivative;
            ``"tangent"`` for the mean over inputs of one network's mixed derivative. Differences cost two forward passes for each
            number of an input and each draw.
        average: For the mixed derivative: ``"gram"``, the mean of ``MᵀM``, or ``"operator"``, the published ``M̄ᵀM̄`` of the
            mean ``M̄``. For weights of mean zero, ``M̄`` is mostly noise. The tangent space always uses its own mean.
        step: Half width h of the difference.
        draws: Number of networks, at least 2, or 4 if centred; of inputs for the tangent space.
        centred: Whether the mean gradient is removed first, as in the published results. The default is true for the gradient.
            The mixed derivative does not have this setting.
        readout: Which scalar of several outputs: ``first``, ``sum``, ``mean``, ``margin``, ``random``.
        stable: Stop before ``draws`` once the leading subspaces of the two halves are this similar (0 to 1).
        leading: Dimension of that subspace.
        keep: Directions to keep; by default all that the draws resolve up to D = 4096, else 64; 50 if they are found by iteration.
        seed: Random seed for the weights.
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
        Ortiz-Jiménez, Moosavi-Dezfooli, Frossard (2021). What can linearized neural networks actually say about
        generalization? NeurIPS. (The tangent space.)
    """
    if estimator not in ESTIMATORS:
        known = ", ".join(repr(name) for name in ESTIMATORS)
        raise ValueError(f"estimator must be one of {known}, got {estimator!r}. Pass estimator='difference'.")
    if family.size == 1 and estimator != "tangent":
        raise ValueError(
            f"Anisotropy directions need a distribution of weights, but {family.name} is one network. Use average_geometry, or "
            "pass estimator='tangent'."
        )
    if leading < 1:
        raise ValueError(f"leading must be at least 1 direction, got {leading}. Pass leading=10.")
    run = run or Run()
    asked = _Asked(family, probe, estimator, average, step, draws, centred, readout, stable, leading, keep, seed, run)
    return ESTIMATORS[estimator](asked)


@dataclass(frozen=True)
class _Asked:
    """What is measured, and how. An estimator takes the settings that are its own, and refuses those that are another's."""

    family: Family
    probe: Probe
    estimator: str
    average: str
    step: float
    draws: int
    centred: bool | None
    readout: str
    stable: float | None
    leading: int
    keep: int | None
    seed: int
    run: Run

    @property
    def label(self) -> str:
        """What its progress is called."""
        return f"{self.family.name}: directions"

    def drawn(self, kind: Callable[..., Drawn], estimator: str) -> Drawn:
        """What draws derivatives; making it checks that the network fits the probe."""
        how = {name: getattr(self, name) for name in ("step", "readout", "seed", "run")}
        return kind(self.family, self.probe, estimator=estimator, **how)


def _of_gradients(asked: _Asked) -> Anisotropy:
    """The first published estimator: the covariance of the gradient, exact or by differences of the output."""
    _check_average(asked, ("gram",))
    sampler, centred = asked.drawn(GradientSampler, asked.estimator), asked.centred is not False
    covariance = gradient_covariance(
        sampler,
        draws=asked.draws,
        centred=centred,
        seed=asked.seed,
        stable=asked.stable,
        leading=asked.leading,
        label=asked.label,
    )
    settled = {"estimator": asked.estimator, "outputs": sampler.outputs, "centred": centred}
    return Anisotropy(
        **covariance_fields(covariance, axes_of(asked.family, asked.probe), asked.keep),
        derivative=asked.estimator,
        step=asked.step if asked.estimator == "difference" else None,
        seed=asked.seed,
        provenance={
            **settled,
            "draws": covariance.draws,
            "warnings": [*sampler.doubts_of_readout(), *doubts_of_tail(covariance)],
        },
    )


def _of_mixed_derivatives(asked: _Asked) -> Anisotropy:
    """The second published estimator: the mixed derivatives of drawn networks, exact or by differences of weight gradients."""
    _check_average(asked, AVERAGES)
    differences = asked.estimator == "mixed_difference"
    covariance, settled = _mixed_covariance(asked, "difference" if differences else "exact")
    return Anisotropy(
        **covariance_fields(covariance, axes_of(asked.family, asked.probe), _kept(covariance, asked.keep)),
        derivative=asked.estimator,
        step=asked.step if differences else None,
        average=asked.average,
        seed=asked.seed,
        coherence=_coherence(covariance) if asked.average == "operator" else None,
        provenance=settled,
    )


def _of_tangent_space(asked: _Asked) -> Anisotropy:
    """The third: the mean mixed derivative of one network over inputs."""
    fresh = asked.probe.fresh
    alone = replace(
        asked,
        family=_one_network(asked.family, asked.seed, asked.run),
        average="operator",
        draws=asked.draws if fresh else 2,  # given inputs are the same for every draw: two show that nothing varies
    )
    covariance, settled = _mixed_covariance(alone, "exact")
    fields = covariance_fields(covariance, axes_of(asked.family, asked.probe), _kept(covariance, asked.keep))
    if not fresh and covariance.dense() is not None:
        fields |= {name: Estimate.exact(fields[name].value) for name in ("effective_rank", "anisotropy", "trace")}
        fields["eigenvalue_errors"] = 0 * fields["eigenvalues"]
        fields["resolved"] = int(np.count_nonzero(fields["eigenvalues"]))
    layers = {type(layer).__name__ for layer in alone.family.template.module.modules()}
    return Anisotropy(
        **fields,
        derivative=asked.estimator,
        average=alone.average,
        seed=asked.seed,
        coherence=_coherence(covariance) if fresh else None,
        kinks=tuple(sorted(layers & _KINKED)),
        provenance=settled,
    )


#: Every estimator by its name.
ESTIMATORS: dict[str, Callable[[_Asked], Anisotropy]] = {
    "difference": _of_gradients,
    "exact": _of_gradients,
    "mixed": _of_mixed_derivatives,
    "mixed_difference": _of_mixed_derivatives,
    "tangent": _of_tangent_space,
}


def _check_average(asked: _Asked, known: tuple[str, ...]) -> None:
    if asked.average not in known:
        raise ValueError(
            f"average must be 'gram', or 'operator' for a mixed derivative, got {asked.average!r} with estimator "
            f"{asked.estimator!r}. Pass average='gram'."
        )


def _mixed_covariance(asked: _Asked, by: str) -> tuple[EstimatedOperator, dict[str, Any]]:
    """The average over mixed derivatives, exact or by differences, and what was settled of how it is taken."""
    if asked.centred is not None:
        raise ValueError(f"centred must be left out for a mixed derivative, got {asked.centred}. Pass centred=None.")
    outputs = asked.drawn(GradientSampler, "exact").outputs  # the mixed derivative needs no more of it than its checks
    derivative = asked.drawn(MixedDerivative, by)
    enough = None if asked.stable is None else _stability(asked.stable, asked.leading)
    covariance = mixed_gram(
        derivative, draws=asked.draws, average=asked.average, keep=asked.keep, enough=enough, label=asked.label
    )
    columns = "all" if covariance.dense() is not None else "leading"
    return covariance, {
        "estimator": asked.estimator,
        "outputs": outputs,
        "method": f"{columns} columns of the Gram matrix",
        "average": asked.average,
        "draws": covariance.draws,
        "warnings": doubts_of_tail(covariance),
    }


def _kept(covariance: EstimatedOperator, keep: int | None) -> int | None:
    """How many directions to keep: where they are iterated for, a few by default."""
    return _ITERATED if keep is None and covariance.dense() is None else keep


def _coherence(covariance: EstimatedOperator) -> float | None:
    """The cosine between the averages of the two halves of the draws, of an averaged operator."""
    return covariance.coherence() if isinstance(covariance, GramOfMean | MixedDerivativeGram) else None


def _one_network(family: Family, seed: int, run: Run) -> Family:
    """The one network that a tangent space belongs to: a given one, or the first draw of a law."""
    if family.size == 1:
        return family
    if family.size is not None:
        raise ValueError(
            f"A tangent space belongs to one network, but {family.name} holds {family.size}. Pass Family.point of one."
        )
    drawn = family.draw(1, seed=seed, run=run).member(0).as_module()
    return Family.point(drawn, name=family.name, batchnorm=family.batchnorm)


def _stability(stable: float, leading: int) -> Callable[[EstimatedOperator], bool]:
    """Whether the leading subspaces of the two halves of the draws are as similar as asked for."""
    if not 0 < stable <= 1:
        raise ValueError(f"stable must be a similarity between 0 and 1, got {stable}. Pass stable=0.95.")
    return lambda covariance: agreement_of_halves(covariance, leading) >= stable
