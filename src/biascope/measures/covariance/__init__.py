"""WHAT: an estimated gradient covariance, for every measurement that uses one."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from biascope.derivatives.covariance import rounded_up
from biascope.derivatives.operators import EstimatedOperator, GradientCovariance
from biascope.derivatives.spectrum import eigenpairs, subspace_similarity
from biascope.measures.covariance.compare import concluded, noise_floor, overlaid
from biascope.measures.covariance.shares import Shares, share_fields, shares_of
from biascope.results.axes import Axis, InputAxes
from biascope.results.draw import captioned
from biascope.results.estimate import Estimate, Number
from biascope.results.result import Result
from biascope.results.story import Compared, Directions, Sentence, Step, Story, model_word
from biascope.runs.memory import trim
from biascope.runs.rehearsal import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from biascope.families.family import Family
    from biascope.tasks.probe import Probe

_SIMILARITY_SIZES = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500)
_TRANSFORMED = 64  # directions whose Fourier transforms are held at once
_TOLERANCE = 1e-4  # relative residual of eigenpairs that are iterated for: far below what finitely many draws blur


@dataclass(frozen=True, repr=False)
class CovarianceResult(Result, ABC):
    """The spectrum of a gradient covariance, with its uncertainty.

    Attributes:
        eigenvalues: Eigenvalues of the sample covariance, largest first. Their decay is partly an effect of finitely many draws;
            compare :attr:`held_out`.
        eigenvalue_errors: Standard error of the variance along each direction, from the spread over groups of draws.
        held_out: Variance along directions found on one half of the draws, measured on the other half. The mean of both ways is
            taken. It does not have the bias that inflates leading eigenvalues.
        directions: The eigenvectors, as rows.
        similarity_sizes: Dimensions k of the compared subspaces.
        similarity: For each k, how similar the leading k directions of the two halves are (1 equal, k/D chance).
        input_shape: Shape of one input.
        draws: Number of networks drawn.
        inputs: Number of inputs per network.
        effective_rank: Participation ratio ``(tr C)²/tr C²`` from U-statistics.
        anisotropy: ``1 − rank/D``.
        trace: Mean squared length of the gradient.
        residual: Largest residual of the eigenpairs, relative to the largest eigenvalue.
        derivative: How the network was differentiated: ``"exact"`` or ``"difference"`` for the gradient, ``"mixed"``,
            ``"mixed_difference"`` or ``"tangent"`` for the mixed derivative.
        step: Half width h of the differences, if gradients are differences.
        average: Mean over mixed derivatives: ``"gram"`` or ``"operator"``.
        seed: Random seed for the weights.
        resolved: How many leading directions the draws resolve, see :func:`resolved_directions`; ``None`` in results of versions
            that did not count them.
        parts: Parts into which the input is divided, such as ``"time: 3"`` or ``"colour: brightness"``.
        energies: Energy of the gradient in each part, for each group of draws; its mean over groups is that of all draws.
        isotropic: The share of each part if no direction were preferred.
    """

    eigenvalues: np.ndarray
    eigenvalue_errors: np.ndarray
    held_out: np.ndarray
    directions: np.ndarray
    similarity_sizes: np.ndarray
    similarity: np.ndarray
    input_shape: tuple[int, ...]
    draws: int
    inputs: int
    effective_rank: Estimate
    anisotropy: Estimate
    trace: Estimate
    residual: float
    derivative: str = field(default="", kw_only=True)
    step: float | None = field(default=None, kw_only=True)
    average: str = field(default="", kw_only=True)
    seed: int | None = field(default=None, kw_only=True)
    resolved: int | None = field(default=None, kw_only=True)
    parts: tuple[str, ...] = field(default=(), kw_only=True)
    energies: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)), kw_only=True)
    isotropic: np.ndarray = field(default_factory=lambda: np.zeros(0), kw_only=True)

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "eigenvalues": ("direction",),
        "eigenvalue_errors": ("direction",),
        "held_out": ("direction",),
        "directions": ("direction", "input"),
        "similarity_sizes": ("subspace",),
        "similarity": ("subspace",),
        "energies": ("group", "part"),
        "isotropic": ("part",),
    }
    #: Fields that earlier versions kept among the settings, and their names there.
    _AMONG_SETTINGS: ClassVar[Mapping[str, str]] = {
        "derivative": "estimator",
        **{name: name for name in ("step", "average", "seed")},
    }

    @classmethod
    def from_earlier(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Earlier versions kept estimates that lay outside of where their numbers can lie."""
        most = float(math.prod(values["input_shape"]))
        possible = {"effective_rank": (1.0, most), "anisotropy": (0.0, 1.0), "trace": (0.0, math.inf)}
        return values | {name: values[name].within(*ends) for name, ends in possible.items()}

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read what :meth:`save` wrote, in this version or an earlier one."""
        found = super().load(folder)
        if found.derivative:
            return found
        settings = found.provenance.get("settings", {})
        kept: dict[str, Any] = {}
        for name, key in cls._AMONG_SETTINGS.items():
            if key in settings:
                value = settings[key]
                kept[name] = tuple(value) if isinstance(value, list) else value  # JSON has no tuples
        return replace(found, **kept)

    @property
    def size(self) -> int:
        """Input size D."""
        return math.prod(self.input_shape)

    @property
    def input_axes(self) -> InputAxes:
        """What the axes of an input are."""
        told = self.provenance.get("family", {}).get("axes", [])
        return InputAxes.of([Axis.from_dict(each) for each in told], tuple(self.input_shape))

    def shares(self) -> list[Shares]:
        """How the energy of the gradient is shared among the places of each axis, and among frequencies along time."""
        return shares_of(self.parts, self.energies, self.isotropic, self.input_axes)

    @property
    def estimator(self) -> str:
        """How gradients were taken, in words."""
        if self.derivative.startswith("mixed"):
            width = f" by differences, h = {self.step:g}" if self.derivative == "mixed_difference" else ""
            return f"mixed derivative{width}, {self.average} average"
        return f"central differences, h = {self.step:g}" if self.derivative == "difference" else "exact gradients"

    @property
    def mixed(self) -> bool:
        """Whether it uses the mixed derivative in input and weights instead of the input gradient."""
        return self.estimator.startswith("mixed")

    def direction_plots(self, spectrum: str, dark: bool) -> dict[str, Figure]:
        """The spectrum under this name, leading directions, and how far two halves of the draws agree.

        Only directions that the draws resolve are shown as pictures.
        """
        from biascope.results import draw

        curve = draw.spectrum(
            {self.subject: (self.eigenvalues, self.eigenvalue_errors, self.held_out)},
            draws=self.effective_draws() if self.mixed else self.draws,
            size=self.size,
            traces={self.subject: self.trace.value},
            dark=dark,
        )
        pictures = {**self.share_plots(dark), "spectrum": captioned(f"{spectrum} along each direction", curve)}
        count = len(self.directions) if self.resolved is None else self.resolved
        shown = [index for index in (0, 1, 2, 3, 4, 9, 19, 49, 99) if index < count]
        if len(self.input_shape) >= 2 and shown:
            labels = [str(index + 1) for index in shown]
            axes = self.input_axes
            if axes.image:
                images = self.directions[shown].reshape(-1, *self.input_shape)
                caption, figure = (
                    "Leading directions in pixels and in frequency",
                    draw.directions(images, labels, dark=dark),
                )
            else:
                caption = f"Leading directions, {axes.layout()}"
                figure = draw.planes(axes.laid_out(self.directions[shown]), labels, axes.layout(), dark=dark)
            pictures["leading_directions"] = captioned(caption, figure)
        pictures["agreement_of_halves"] = captioned(
            "Agreement of the two halves of the draws",
            draw.similarity(self.similarity_sizes, self.similarity, self.size, dark=dark),
        )
        return pictures

    def share_plots(self, dark: bool) -> dict[str, Figure]:
        """The share of each part of each division."""
        return {shares.key: captioned(shares.caption, shares.figure(dark)) for shares in self.shares()}

    @override
    def story(self) -> Story:
        mean = self.trace.value / self.directions.shape[1]
        return Story(
            page_title=f"Inductive bias of {self.subject}",
            lead=self.lead(),
            key_picture=self._key_picture(),
            next_steps=self._next_steps(),
            directions=Directions(
                self.directions, self.input_axes, self.eigenvalues, self.eigenvalue_errors, mean, self.resolved
            ),
            compared=Compared(
                kind=self.estimator,
                shape=self.input_axes.varied_shape,
                number=self.effective_rank.named("effective rank"),
                noun=f"the effective rank of the {self.measurement.replace('_', ' ')}",
                unit=f"of {self.size} directions",
                larger="the preference is weaker",
                meaning=(
                    "Differences between networks are those of their architectures at initial weights, on random inputs. A smaller "
                    "effective rank means a stronger preference, which helps where the data lie along the preferred directions and "
                    "hurts where they do not. It does not rank networks by accuracy."
                ),
                along_training=(
                    "Along training, the geometry changes from what the architecture prefers to what the data and labels need. A "
                    "falling effective rank means that the output comes to depend on fewer input directions. It does not say whether "
                    "the network generalises: compare with its test accuracy."
                ),
                overlaid=overlaid,
                concluded=concluded,
            ),
        )

    def lead(self) -> str:
        """What stands out, in plain words; empty if nothing is said."""
        return ""

    def stands_out(self) -> str:
        """What the network reacts to most, in words; empty if nothing stands out."""
        return next(filter(None, (shares.prefers() for shares in self.shares())), "")

    def _key_picture(self) -> str:
        """The picture that shows it: that of what stands out, else of the first division."""
        shares = [each for each in self.shares() if not each.bars] or self.shares()
        telling = [each for each in shares if each.prefers()] or shares
        return telling[0].key if telling else "spectrum"

    def located(self) -> list[Sentence]:
        """On which parts of its input most of the sensitivity lies, for a summary."""
        told = ((each.sentence(), each.key) for each in self.shares())
        return [Sentence(text, shown_by) for text, shown_by in told if text]

    def resolved_sentence(self) -> list[Sentence]:
        """How many directions the draws resolve, for a summary."""
        if self.resolved is None:
            return []
        if not self.resolved and self.effective_rank.contains(self.size):
            words = "No single direction stands out from noise, as is to be expected without a preference."
            return [Sentence(words, "agreement_of_halves")]
        if not self.resolved:
            words = f"{self.draws} draws do not resolve single directions: the pictures of directions are noise. "
            needed = self.draws_to_resolve(1)
            words += "Pass more draws." if needed is None else f"About {needed:,} draws would resolve the first ones."
            return [Sentence(words, "agreement_of_halves")]
        first = "The first direction is" if self.resolved == 1 else f"The first {self.resolved} directions are"
        return [Sentence(f"{first} resolved as a set by {self.draws} draws. Later ones are noise.", "directions")]

    def draws_to_resolve(self, count: int) -> int | None:
        """About how many draws would resolve at least so many leading directions; ``None`` where these draws do not tell.

        A half of n draws has the share q of the leading k directions right, two halves have q² of them in common. Errors of
        directions fall like 1/n, so the odds ``(1 − q)/q`` are c/n, and directions are resolved from ``q = ½`` on, at n = c. For
        spectra without a gap this is right within a factor of 2 (docs/mean_gradient.md).

        Args:
            count: How many directions.
        """
        needed = []
        for k, shared in zip(self.similarity_sizes.tolist(), self.similarity.tolist(), strict=True):
            if k >= min(count, int(self.similarity_sizes.max())) and shared > noise_floor(k, self.size):
                right = math.sqrt((shared - k / self.size) / (1 - k / self.size))
                needed.append(math.ceil(self.draws * (1 - right) / right))
        if self.resolved is not None and self.resolved >= count:
            return self.draws
        return max(self.draws + 1, int(float(rounded_up(min(needed))))) if needed else None

    def _next_steps(self) -> list[Step]:
        shape = "x".join(map(str, self.input_shape))
        axes = self.input_axes
        if len(axes.shape) > 1 and all(axes.names) and not axes.image:
            shape += f" --axes {','.join(axes.names)}"
        shape += "".join(f" --hold {name}=FILE" for name in self.provenance.get("family", {}).get("held", ()))
        model, trained = model_word(self.subject, self.provenance.get("command", "")), self.at_given_weights
        found = []
        preferred = not self.effective_rank.contains(self.size)
        possible = min(10, int(np.count_nonzero(self.eigenvalues)))
        if self.resolved is not None and self.resolved < possible and preferred and not trained:
            more = self.draws_to_resolve(possible) or max(2000, 4 * self.draws)
            words = "Draw more networks, to resolve more directions and narrow the intervals."
            found.append(Step(words, f"biascope scan {model} --input {shape} --draws {more}"))
        if not trained:
            other = "OTHER_MODEL" if not axes.image else "mlp" if self.subject != "mlp" else "lenet"
            words = "Compare it with another network on the same inputs."
            found.append(Step(words, f"biascope compare {model} {other} --input {shape}"))
            if axes.image:
                words = "See what of your data and labels it learns first, before you train it."
                found.append(Step(words, f"biascope kernel {model} --data my_images.npz"))
        else:
            words = "Follow the change along training: scan a folder of checkpoints."
            found.append(Step(words, f"biascope scan {model} --input {shape} --checkpoints FOLDER"))
        return found

    @override
    def headline(self) -> dict[str, Number]:
        squared = "mixed derivative" if self.mixed else "gradient"
        return {
            "effective_rank": self.effective_rank.named(f"effective rank of {self.size} ({self.estimator})"),
            "anisotropy": self.anisotropy.named("anisotropy"),
            "trace": self.trace.named(f"mean squared {squared}"),
            **(
                {}
                if self.resolved is None
                else {"resolved": Estimate(float(self.resolved)).named("leading directions resolved, as a set")}
            ),
        }

    def frequency_energy(self) -> np.ndarray | None:
        """Share of the gradient's energy at each spatial frequency, ``(h, w)`` in the order of ``fft2``; sums to 1.

        It is the diagonal of the covariance in the Fourier basis. It is linear in the covariance, so it is unbiased for any number
        of draws. It is ``None`` for inputs that are not images. Directions that were not kept do not count.
        """
        if not self.input_axes.image or min(self.input_shape[-2:]) < 4:
            return None
        energy = np.zeros(self.input_shape[-2:])
        for first in range(0, len(self.directions), _TRANSFORMED):
            some = slice(first, first + _TRANSFORMED)
            power = np.abs(np.fft.fft2(self.directions[some].reshape(-1, *self.input_shape), norm="ortho")) ** 2
            energy += np.tensordot(self.eigenvalues[some], power, 1).reshape(-1, *energy.shape).sum(0)  # over channels
        return np.asarray(energy / energy.sum())

    def evenly(self) -> str:
        """What a gradient does that prefers no direction."""
        if self.size == 1:
            return "has the one direction of an input of one number"
        return f"spreads evenly over all {self.size:,} directions: no direction is preferred"

    def counted(self) -> str:
        """The effective rank in words, which a sentence may not round to all or to none."""
        rank = self.effective_rank.value
        return f"{rank:,.0f}" if rank >= 10 else f"{rank:.1f}"

    def unclear(self) -> bool:
        """Whether the effective rank is too uncertain for a sentence: by a factor of 3, or of 2 where it may be all directions."""
        rank = self.effective_rank
        if rank.low <= 1 and rank.high >= self.size > 1:
            return True
        return not rank.high <= (2.0 if rank.contains(self.size) else 3.0) * rank.low

    def effective_draws(self) -> int:
        """How many independent gradients would give a sample spectrum as uneven as this one.

        Gradients of one network at several inputs are not independent. The plug-in participation ratio of ``n`` draws
        falls short of the true one roughly as ``1/PR = 1/rank + 1/n``. A mixed derivative holds many gradients.
        """
        most = self.draws * self.inputs * (self.size if self.mixed else 1)
        if self.mixed and len(self.eigenvalues) < self.size:
            return most
        plug_in = self.eigenvalues.sum() ** 2 / (self.eigenvalues**2).sum()
        gap = 1 / plug_in - 1 / self.effective_rank.value
        return int(np.clip(1 / gap if gap > 0 else most, self.draws, most))


def axes_of(family: Family, probe: Probe) -> InputAxes:
    """What the inputs are at which a family is measured."""
    return InputAxes.of(family.axes_at(probe.few()), probe.input_shape)


def covariance_fields(covariance: EstimatedOperator, axes: InputAxes, keep: int | None) -> dict[str, Any]:
    """The fields of a :class:`CovarianceResult` from an estimated covariance.

    Args:
        covariance: The estimate.
        axes: What one input is.
        keep: How many directions to keep; by default all that the draws resolve up to D = 4096, else 64.
    """
    size, rounding = covariance.size, covariance.rounding
    if keep is not None and keep < 1:
        raise ValueError(f"keep must be at least 1 direction, got {keep}. Pass keep=64.")
    keep = 64 if keep is None and size > 4096 else keep
    parts: list[Any] = [covariance, *(covariance.halves() if len(covariance.groups) >= 4 else ())]
    spectra = []
    with counted("eigenvectors of all draws and of both halves", len(parts)) as advance:
        for part in parts:
            spectra.append(eigenpairs(part, keep, tolerance=_TOLERANCE, zeros=part is covariance))
            trim()
            advance(1)
    spectrum = spectra[0]
    kept = spectrum.vectors.shape[0]
    _, errors = covariance.along(spectrum.vectors.T)
    sizes = [k for k in _SIMILARITY_SIZES if k <= min(kept, size // 2 or 1)]
    similarity = np.full(len(sizes), np.nan)
    held_out = np.full(kept, np.nan)
    resolved = 0
    if len(covariance.groups) >= 4:
        first, second = parts[1:]
        # Directions of eigenvalue 0 are arbitrary: two halves would seem to agree on them without having measured them.
        known = min(each.positive(rounding) for each in spectra[1:])
        one, two = (each.vectors[:known] for each in spectra[1:])
        similarity = np.array([subspace_similarity(one[:k], two[:k]) if k <= known else np.nan for k in sizes])
        resolved = min(resolved_directions(one, two), spectrum.positive(rounding))
        # Half of few draws has half of their directions: the others have been measured by no other draws.
        if size <= 4096 and known:
            crossed = second.along(one[:kept].T)[0] + first.along(two[:kept].T)[0]
            held_out[: min(known, kept)] = (crossed / 2).cpu().numpy()
    rank = covariance.effective_rank()
    return {
        "eigenvalues": torch.where(spectrum.values > rounding * spectrum.values[0], spectrum.values, 0).cpu().numpy(),
        "eigenvalue_errors": errors.cpu().numpy(),
        "held_out": held_out,
        "directions": spectrum.vectors.to(torch.float32).cpu().numpy(),
        "similarity_sizes": np.array(sizes, dtype=np.int64),
        "similarity": similarity,
        "input_shape": axes.shape,
        **share_fields(covariance, axes),
        "draws": covariance.draws,
        "inputs": covariance.inputs,
        "effective_rank": rank,
        "anisotropy": covariance.anisotropy(rank),
        "trace": covariance.trace(),
        "residual": float(spectrum.residuals.max()),
        "resolved": resolved,
    }


# Of the draws: fewer would do if all were equally long. Above it, intervals of the mean square cover as often as they say in
# benchmarks/intervals.py; a Gaussian along one direction has a third.
_FEW = 1 / 3.5


def doubts_of_tail(covariance: EstimatedOperator) -> list[str]:
    """A warning if few draws make up most of the mean square of the gradient."""
    if not isinstance(covariance, GradientCovariance) or covariance.draws_that_count() >= _FEW * covariance.draws:
        return []
    if not covariance.trace().low > 0 and any(group.trace < 0 for group in covariance.groups):
        return []  # products of two halves that noise has made, of either sign: it has no tail
    return [
        "The squared length of the gradient has a heavy tail: its mean rests on about "
        f"{max(1.0, covariance.draws_that_count()):.0f} of {covariance.draws} draws. The interval of the mean square may be too "
        "narrow. Pass more draws."
    ]


def narrowed(matrix: Tensor) -> Tensor:
    """A matrix in float32, if that holds numbers of its size."""
    largest, ends = float(matrix.abs().max()), torch.finfo(torch.float32)
    return matrix.to(torch.float32) if ends.tiny / ends.eps < largest < ends.max or not largest else matrix


# Two independent estimates of a subspace that each have half in common with the true one have a quarter in common.
SHARED = 0.25


def resolved_directions(first: Tensor, second: Tensor) -> int:
    """The largest k for which each of two independent estimates has at least half of its leading k directions right.

    Definition: with ``s_k = ‖U_k V_kᵀ‖²/k`` and what random subspaces share, ``k/D``, the largest k with
    ``(s_k − k/D)/(1 − k/D) ≥ ¼`` whose ``s_k`` lies above the noise floor, that of D subspaces at once; 0 if there is none. The
    estimate from both halves of the draws together is better than either.

    Args:
        first: ``(k, D)`` orthonormal rows, in order.
        second: The same of the other estimate.

    Example:
        >>> axes = torch.eye(8, dtype=torch.float64)
        >>> resolved_directions(axes[:3], axes[[1, 0, 7]])  # the first two are a plane in common
        2
    """
    count, size = min(len(first), len(second)), first.shape[1]
    shared = (first[:count] @ second[:count].T).square().cumsum(0).cumsum(1).diagonal()
    order = torch.arange(1, count + 1, dtype=shared.dtype, device=shared.device)
    chance = order / size
    known = ((shared / order - chance) >= SHARED * (1 - chance)) & (order < size)
    for k in (known.nonzero().flatten() + 1).flip(0).tolist():
        if float(shared[k - 1]) / k > noise_floor(k, size, 0.001 / size):
            return int(k)
    return 0
