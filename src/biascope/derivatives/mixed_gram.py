"""The Gram matrix of the mixed derivative averaged over the draws of a family, whole or by its products.

Two averages go by the name. ``E[M_θᵀM_θ]`` converges. ``M̄ᵀM̄`` of the averaged operator ``M̄``, which the published algorithm
computes, keeps only what the draws share: for weights of mean zero nothing, or a part along the input; the rest is noise.
"""

# m members · D input size · p parameters · s sketches of w columns · T draws

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from biascope.derivatives.mixed import MixedDerivative, Span
from biascope.derivatives.moments import DENSE_LIMIT, Dense, Moments
from biascope.derivatives.operators import ROUNDING, EstimatedOperator, GradientCovariance, GramOfMean, cosine
from biascope.results.estimate import Estimate, jackknife
from biascope.runs.randomness import generator_for
from biascope.runs.trials import Trials

AVERAGES = ("gram", "operator")
GROUPS = 32  # blocks of the jackknife, and units of resuming

# The iteration for k directions, of all draws and of their halves, costs about as much as this many times k columns.
_COLUMNS_PER_DIRECTION = 24
_GROUP_NUMBERS = 2**28  # entries of all groups' Gram matrices, 2 GiB
_SUM_NUMBERS = 2**28  # entries of all groups' summed operators, 1 GiB, or of its products with a block of vectors
_SKETCHES, _WIDTH = 8, 8  # independent Gaussian sketches, and the columns of each


@dataclass
class SketchedSums:
    """Sketches of the matrices ``G_t`` of a group of draws by Gaussian columns ``ω``: s sketches of w columns each.

    Attributes:
        draws: Number of draws.
        image: ``Σ G_t Ω``, ``(D, s, w)``.
        trace: ``Σ τ_t`` by each sketch, with ``τ`` the mean of ``ωᵀGω`` over its columns.
        trace_square: ``Σ τ_t²``.
        norm_square: ``Σ ‖G_t Ω‖²/w``.
    """

    draws: int
    image: Tensor
    trace: Tensor
    trace_square: Tensor
    norm_square: Tensor

    def plus(self, other: SketchedSums, sign: int = 1) -> SketchedSums:
        """The sums over both groups; with sign −1, without the other's draws."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return SketchedSums(*(one + sign * two for one, two in pairs))

    def powers(self) -> Tensor:
        """Unbiased ``(tr C)²`` and ``tr C²`` by each sketch, over pairs of distinct draws, ``(2, s)``.

        Two traces seen by the same w Gaussian columns have the covariance ``2 tr(GG')/w``, which is taken away.
        """
        pairs, width = self.draws * (self.draws - 1), self.image.shape[2]
        norm = (self.image.square().sum((0, 2)) / width - self.norm_square) / pairs
        return torch.stack([(self.trace**2 - self.trace_square) / pairs - 2 * norm / width, norm])

    @staticmethod
    def participation(groups: Sequence[SketchedSums]) -> Estimate:
        """The participation ratio, with the error of the draws and that of the sketches together."""
        total = functools.reduce(SketchedSums.plus, groups)
        powers = total.powers()
        over_groups = [total.plus(group, -1) for group in groups]
        draws = [_quotient(rest.powers()) for rest in over_groups if rest.draws > 1] if len(groups) > 2 else []
        sketches = [_quotient(torch.cat([powers[:, :i], powers[:, i + 1 :]], 1)) for i in range(powers.shape[1])]
        both = [jackknife(_quotient(powers), left_out) for left_out in (draws, sketches)]
        error = math.hypot(*(one.standard_error for one in both))
        return Estimate.of_positive(both[0].value, error, min(len(groups), len(sketches)) - 1)

    @staticmethod
    def mean_trace(groups: Sequence[SketchedSums]) -> Estimate:
        """``tr C``, with the error of the draws and that of the sketches together."""
        total = functools.reduce(SketchedSums.plus, groups)
        each = torch.stack([group.trace.mean() / group.draws for group in groups])
        spreads = [part.std() / math.sqrt(len(part)) for part in (each, total.trace / total.draws) if len(part) > 2]
        error = math.hypot(*map(float, spreads)) if len(spreads) == 2 else math.nan
        value, samples = float(total.trace.mean()) / total.draws, min(len(groups), len(total.trace))
        return Estimate.of_positive(value, error, samples - 1)


def _quotient(powers: Tensor) -> float:
    trace_squared, norm_squared = powers.mean(1).tolist()
    return trace_squared / norm_squared if trace_squared > 0 < norm_squared else math.nan


class MixedDerivativeGram(EstimatedOperator):
    """The average over draws of ``M_θᵀM_θ``, or ``M̄ᵀM̄`` of the averaged operator ``M̄``, known by its products.

    Memory does not grow with the number of draws: weights are drawn again for every product. Scalars come from Gaussian
    sketches; for the Gram average their error joins that of the draws (jackknife over groups and over sketches).

    Args:
        derivative: The mixed derivatives that are averaged.
        spans: Groups of draws ``(start, stop)``.
        average: ``"gram"``, the mean of ``MᵀM``, or ``"operator"``, the Gram matrix of the mean ``M̄``.
        formed: Whether to form the matrix from D columns where D allows; else its eigenpairs are iterated for.
        trials: Saves finished products.
        label: Label of the progress bar.

    Example:
        >>> from biascope import Family, Probe, Run
        >>> family = Family.initialised(lambda: torch.nn.Linear(3, 1), name="linear")
        >>> derivative = MixedDerivative(family, Probe.gaussian((3,)), run=Run(device="cpu"))
        >>> MixedDerivativeGram(derivative, [(0, 2)]).dense()  # f = wᵀx + b
        tensor([[1., 0., 0.],
                [0., 1., 0.],
                [0., 0., 1.]], dtype=torch.float64)
    """

    def __init__(
        self,
        derivative: MixedDerivative,
        spans: Sequence[Span],
        *,
        average: str = "gram",
        formed: bool = True,
        trials: Trials | None = None,
        label: str = "mixed derivatives",
    ) -> None:
        if average not in AVERAGES:
            raise ValueError(f"average must be 'gram' or 'operator', got {average!r}. Pass average='gram'.")
        self.derivative, self.average, self.formed = derivative, average, formed
        self.groups = list(spans)
        self.size, self.device, self.inputs = derivative.size, derivative.device, derivative.probe.num
        self.draws = sum(stop - start for start, stop in spans)
        self.rounding = max(derivative.run.rounding, ROUNDING)
        self._trials, self._label = trials, label
        self._matrix: Tensor | None = None
        self._sketches: list[SketchedSums] | None = None

    def dense(self) -> Tensor | None:
        """The matrix, where it is asked for and small enough to form."""
        if self._matrix is None and self.formed:
            self._matrix = super().dense()
        return self._matrix

    @override
    def matmul(self, vectors: Tensor) -> Tensor:
        if self._matrix is not None:
            return self._matrix @ vectors
        return self._kept("product", vectors, lambda: {"product": self._product(vectors)})["product"]

    def _kept(self, name: str, vectors: Tensor, work: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """What was computed of these vectors; they are the same when a run is done again, up to what was never finished."""
        content = repr(self.groups).encode() + vectors.cpu().contiguous().numpy().tobytes()
        kept = _outcome(self._trials, f"{name}-{hashlib.sha256(content).hexdigest()[:16]}", work)
        return {name: part.to(self.device) for name, part in kept.items()}

    def _product(self, vectors: Tensor) -> Tensor:
        run, derivative = self.derivative.run, self.derivative
        if self.average == "gram":
            total = torch.zeros_like(vectors)
            with run.tracked(self._label, self.draws) as advance:
                for start, stop in self.groups:
                    for part in derivative.grams(start, stop, vectors, advance):
                        total += part.sum(0)
            return total / self.draws
        done = []
        with run.tracked(self._label, vectors.shape[1]) as advance:
            if derivative.holds(self.draws) and derivative.are_axes(vectors.T):
                return derivative.gram_of_sum(self.groups, advance) / self.draws**2
            for some in torch.split(vectors, max(1, _SUM_NUMBERS // derivative.parameters), dim=1):
                mean = derivative.sum_along(self.groups, some) / self.draws
                done.append(derivative.sum_against(self.groups, mean) / self.draws)
                advance(some.shape[1])
        return torch.cat(done, dim=1)

    def _sketched(self) -> list[SketchedSums]:
        """What Gaussian columns see of the Gram matrix of each group of draws."""
        if self._sketches is None:
            columns = self._gaussian(_SKETCHES * _WIDTH)
            self._sketches = []
            with self.derivative.run.tracked(f"{self._label}, trace", self.draws) as advance:
                for start, stop in self.groups:
                    kept = _outcome(self._trials, f"sketch-{start}-{stop}", lambda: self._seen((start, stop), columns))  # noqa: B023
                    parts = {name: part.to(self.device) for name, part in kept.items()}
                    self._sketches.append(SketchedSums(stop - start, **parts))
                    advance(stop - start)
        return self._sketches

    def _seen(self, span: Span, columns: Tensor) -> dict[str, Tensor]:
        shape = (self.size, _SKETCHES, _WIDTH)
        image = torch.zeros(shape, dtype=torch.float64, device=self.device)
        sums = torch.zeros(3, _SKETCHES, dtype=torch.float64, device=self.device)
        for part in self.derivative.grams(*span, columns):
            images = part.reshape(-1, *shape)  # (m, D, s, w)
            image += images.sum(0)
            traces = (columns.reshape(shape) * images).sum(1).mean(2)  # (m, s)
            norms = images.square().sum((1, 3)) / _WIDTH
            sums += torch.stack([traces.sum(0), traces.square().sum(0), norms.sum(0)])
        return {"image": image, **dict(zip(("trace", "trace_square", "norm_square"), sums, strict=True))}

    def _gaussian(self, count: int) -> Tensor:
        generator = generator_for(self.device, 0, "mixed derivative")
        return torch.randn(self.size, count, generator=generator, device=self.device, dtype=torch.float64)

    @functools.cached_property
    def _trace_and_norm(self) -> tuple[float, float]:
        """``tr A`` and ``tr A²`` of the operator as it is, whole where it is formed, else seen by Gaussian columns."""
        matrix = self.dense()
        if matrix is not None:
            return float(matrix.trace()), float(matrix.square().sum())
        columns = self._gaussian(_SKETCHES * _WIDTH)
        image = self.matmul(columns)
        return float((columns * image).sum()) / columns.shape[1], float(image.square().sum()) / columns.shape[1]

    def trace(self) -> Estimate:
        """The mean squared mixed derivative ``E‖M‖²_F``; of the averaged operator ``‖M̄‖²_F``, its spread unknown."""
        if self.average == "gram":
            return SketchedSums.mean_trace(self._sketched())
        return Estimate(self._trace_and_norm[0])

    def participation(self) -> Estimate:
        """The participation ratio; its spread is unknown for the averaged operator."""
        if self.average == "gram":
            return SketchedSums.participation(self._sketched())
        trace, norm = self._trace_and_norm
        return Estimate(trace**2 / norm if norm else math.nan)

    def along(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """``vᵀĈv`` for each column, and its standard error, unknown for the averaged operator."""
        vectors = self.columns(vectors)
        if self.average == "operator" or len(self.groups) < 3:
            values = (vectors * self.matmul(vectors)).sum(0)
            return values, torch.full_like(values, math.nan)
        values = self._kept("along", vectors, lambda: {"forms": self._forms(vectors)})["forms"]
        draws = torch.tensor([stop - start for start, stop in self.groups], dtype=values.dtype, device=values.device)
        return draws @ values / self.draws, values.std(0) / math.sqrt(len(values))

    def _forms(self, vectors: Tensor) -> Tensor:
        """``vᵀGv`` of each group, ``(groups, k)``."""
        each = torch.zeros(len(self.groups), vectors.shape[1], dtype=torch.float64, device=self.device)
        for index, (start, stop) in enumerate(self.groups):
            for part in self.derivative.grams(start, stop, vectors):
                each[index] += (part * vectors).sum((0, 1)) / (stop - start)
        return each

    def halves(self) -> tuple[MixedDerivativeGram, MixedDerivativeGram]:
        """The same average over the even and over the odd groups."""
        first, second = (
            MixedDerivativeGram(
                self.derivative,
                self.groups[part::2],
                average=self.average,
                formed=self.formed,
                trials=self._trials,
                label=f"{self._label}, half {part + 1}",
            )
            for part in (0, 1)
        )
        return first, second

    def coherence(self) -> float:
        """Cosine between the averaged operators of the two halves, along a few random directions."""
        columns = self._gaussian(_WIDTH)
        return cosine(*(self.derivative.sum_along(self.groups[part::2], columns) for part in (0, 1)))


def mixed_gram(
    derivative: MixedDerivative,
    *,
    draws: int,
    average: str = "gram",
    keep: int | None = None,
    enough: Callable[[EstimatedOperator], bool] | None = None,
    label: str = "mixed derivatives",
) -> EstimatedOperator:
    """The averaged mixed derivative of a family over a number of draws, in the form its size asks for.

    The Gram matrix of each group of draws while D allows, with U-statistics as for a gradient covariance; for the averaged
    operator the sums of each group while p·D allows; else (or if few of many directions are wanted) products alone.

    Args:
        derivative: The mixed derivatives that are averaged.
        draws: Number of draws, or the most if a stop is asked for.
        average: ``"gram"``, the average of ``MᵀM``, or ``"operator"``, the Gram matrix of the average of ``M``.
        keep: Directions wanted; all by default.
        enough: Asked at a quarter, half and three quarters of the draws, where whole Gram matrices are kept: stop here?
        label: Label of the progress bar.

    Raises:
        ValueError: If a setting is wrong, or the derivative is zero.

    Example:
        >>> from biascope import Family, Probe, Run
        >>> family = Family.initialised(lambda: torch.nn.Linear(3, 1), name="linear")
        >>> gram = mixed_gram(MixedDerivative(family, Probe.gaussian((3,)), run=Run(device="cpu")), draws=4)
        >>> round(gram.effective_rank().value, 6)
        3.0
    """
    if draws < 2:
        raise ValueError(f"draws must be at least 2 to estimate a spread, got {draws}. Pass draws=100 or more.")
    size, run = derivative.size, derivative.run
    formed = size <= DENSE_LIMIT and (keep is None or _COLUMNS_PER_DIRECTION * keep >= size)
    sums = 4 * size * derivative.parameters <= _SUM_NUMBERS and average == "operator"
    numbers = _SUM_NUMBERS // (size * derivative.parameters) if sums else _GROUP_NUMBERS // size**2
    count = min(GROUPS, draws, max(4, numbers) if formed or sums else GROUPS)
    edges = [draws * index // count for index in range(count + 1)]
    spans = list(itertools.pairwise(edges))
    trials = derivative.kept(average=average, draws=draws)
    whole = formed and average == "gram"
    if enough is not None and not whole:
        raise ValueError(
            f"stable needs the whole Gram matrix, which is not formed for {average} averages with D = {size}. Pass stable=None."
        )
    if not sums and not whole:
        return MixedDerivativeGram(derivative, spans, average=average, formed=formed, trials=trials, label=label)
    inputs, device, rounding = (
        derivative.probe.num,
        run.torch_device,
        run.rounding,
    )  # of products in the run's precision
    checks = {count // 4, count // 2, 3 * count // 4} - {0, 1} if enough is not None else set()
    moments: list[Moments] = []
    totals: list[tuple[int, Tensor]] = []
    with run.tracked(label, draws) as advance:
        for start, stop in spans:
            kept = _outcome(trials, f"draws-{start}-{stop}", lambda: _group(derivative, (start, stop), sums))  # noqa: B023
            advance(stop - start)
            if sums:
                totals.append((stop - start, kept["sum"].to(device)))
                continue
            moments.append(Moments.from_tensors(kept, device))
            if (
                len(moments) in checks
                and enough is not None
                and enough(GradientCovariance(moments, False, inputs, rounding))
            ):
                break
    if not any(part.trace for part in moments) and not any(bool(part.any()) for _, part in totals):
        raise ValueError(
            f"{derivative.family.name} must have weights that act on its input, but its mixed derivative is zero. "
            "Check that its output is not a sum of a function of the input and one of the weights."
        )
    if sums:
        return GramOfMean(totals, inputs, rounding)
    return GradientCovariance(moments, False, inputs, rounding)


def _outcome(trials: Trials | None, key: str, work: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Work's outcome, read where it was finished before; without a folder nothing is kept."""
    if trials is None or trials.folder is None:
        return work()
    return next(trials.outcomes([key], lambda _: {name: part.cpu() for name, part in work().items()}))


def _group(derivative: MixedDerivative, span: Span, sums: bool) -> dict[str, Tensor]:
    """What is kept of one group of draws: its summed operator, or the moments of its Gram matrices."""
    size, device = derivative.size, derivative.device
    if sums:
        total = derivative.sum_along([span], torch.eye(size, device=device))
        return {"sum": total if derivative.run.precision == "float64" else total.float()}  # (D, p)
    matrix = torch.zeros(size, size, dtype=torch.float64, device=device)
    scalars = torch.zeros(3, dtype=torch.float64, device=device)
    for grams in derivative.grams(*span):
        matrix += grams.sum(0)
        traces = grams.diagonal(dim1=1, dim2=2).sum(1)
        scalars += torch.stack([traces.sum(), traces.square().sum(), grams.square().sum()])
    zeros = torch.zeros(size, dtype=torch.float64, device=device)
    return Moments(Dense((matrix + matrix.T) / 2), zeros, zeros.clone(), span[1] - span[0], *scalars.tolist()).tensors()
