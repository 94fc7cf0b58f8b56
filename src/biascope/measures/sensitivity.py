"""Sensitivity: how much of a network's output depends on each place of its input, and how many places act together."""

# T draws · n inputs · d places · p outputs

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from biascope.derivatives.covariance import why_constant
from biascope.derivatives.draw_statistics import Drawn, draw_statistics
from biascope.derivatives.initial_zeros import doubts_of_zeros
from biascope.derivatives.separateness import coarsest_rounding
from biascope.families.family import Family
from biascope.measures.covariance import axes_of
from biascope.measures.covariance.shares import PlaceShares
from biascope.results.atlas import Placement
from biascope.results.axes import Axis, InputAxes
from biascope.results.draw import captioned
from biascope.results.estimate import SHARE, Estimate, Number, jackknife
from biascope.results.registry import measurement
from biascope.results.result import Result
from biascope.results.story import Compared, Sentence, Step, Story, model_word
from biascope.results.wording import significant
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FIRST = ("token", "time", "node", "position", "band")  # axes whose places are what a reader asks about
_ROUNDED = 0.01  # of the sum of indices: what rounding of the outputs may add to it
_REPLACEMENTS, _FEWEST = 256, 4  # of places in a draw, and inputs at which each is replaced
_UNCLEAR = 2.0  # ends of an interval that are further apart, as a ratio, leave the number open


@dataclass(frozen=True, eq=False)
class Places:
    """The places of an input, each of which is replaced as a whole.

    Attributes:
        axis: What they are called.
        labels: One for each.
        part_of: To which place each number of an input belongs, in the shape of the input.
        together: What a place holds, ``"4×4 pixels"``; empty where it is one place of an axis.
        grid: Rows and columns of the patches of an image.
    """

    axis: Axis
    labels: tuple[str, ...]
    part_of: Tensor
    together: str = ""
    grid: tuple[int, int] | None = None

    @staticmethod
    def of(axes: InputAxes, most: int) -> Places:
        """Square patches of an image, else the places of one axis, as blocks of neighbours where there are more than ``most``.

        Example:
            >>> image = Places.of(InputAxes.of([], (3, 32, 32)), 64)
            >>> image.in_words, image.part_of.shape, Places.of(InputAxes.of([], (200,)), 64).in_words
            ('64 patches of 4×4 pixels', torch.Size([3, 32, 32]), '50 groups of 4 features')
        """
        if axes.image and max(axes.shape[-2:]) > 1:
            return _patches(axes.shape, most)
        varied = axes.varied()
        known = [axes.names.index(name) for name in _FIRST if name in axes.names]
        place = next((each for each in [*known, *varied] if each in varied), 0)
        return _along(axes, place, most)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.labels)

    @property
    def sizes(self) -> np.ndarray:
        """The share of an input's numbers in each."""
        return np.bincount(self.part_of.flatten().numpy(), minlength=self.count) / self.part_of.numel()

    @property
    def in_words(self) -> str:
        """How many of what."""
        return f"{self.count} {self.axis.noun(self.count)}" + (f" of {self.together}" if self.together else "")


def _patches(shape: Sequence[int], most: int) -> Places:
    height, width = shape[-2:]
    side = 1
    while math.ceil(height / side) * math.ceil(width / side) > most:
        side += 1
    rows, columns = math.ceil(height / side), math.ceil(width / side)
    part_of = columns * (torch.arange(height) // side)[:, None] + torch.arange(width) // side
    labels = tuple(f"({row + 1}, {column + 1})" for row in range(rows) for column in range(columns))
    together = f"{side}×{side} pixels" if side > 1 else "one pixel"
    return Places(Axis("patch"), labels, part_of.expand(*shape), together, (rows, columns))


def _along(axes: InputAxes, place: int, most: int) -> Places:
    axis, length = axes.axes[place], axes.shape[place]
    many = math.ceil(length / most)
    shape = [1] * len(axes.shape)
    shape[place] = length
    part_of = (torch.arange(length) // many).reshape(shape).expand(*axes.shape)
    if many == 1:
        return Places(axis, tuple(axis.label(each) for each in range(length)), part_of)
    starts = range(0, length, many)
    labels = tuple(
        f"{axis.label(start)} to {axis.label(min(start + many, length) - 1)}"
        if start + 1 < length
        else axis.label(start)
        for start in starts
    )
    return Places(Axis("block" if axis.ordered else "group"), labels, part_of, f"{many} {axis.noun(many)}")


@dataclass(frozen=True, repr=False)
class Sensitivity(Result):
    """How the output depends on each place of the input, by draws of networks; for one network, by sets of inputs.

    Attributes:
        changes: Half the mean squared change of the output where a place is replaced.
        variances: Variance of the output over the inputs of each draw.
        input_shape: Shape of one input.
        most: Most places into which an input is divided.
        fixed: Numbers of places that keep their values, from 1.
        inputs: Inputs of each draw.
        independent: Whether the numbers of an input are known to be independent.
    """

    changes: np.ndarray
    variances: np.ndarray
    input_shape: tuple[int, ...]
    most: int
    fixed: tuple[int, ...]
    inputs: int
    independent: bool

    row_of_card: ClassVar[bool] = True
    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {"changes": ("draw", "place"), "variances": ("draw",)}

    @property
    def input_axes(self) -> InputAxes:
        """What the axes of an input are."""
        told = self.provenance.get("family", {}).get("axes", [])
        return InputAxes.of([Axis.from_dict(each) for each in told], tuple(self.input_shape))

    @functools.cached_property
    def places(self) -> Places:
        """The places of an input."""
        return Places.of(self.input_axes, self.most)

    @property
    def free(self) -> int:
        """How many places are replaced."""
        return self.places.count - len(self.fixed)

    @property
    def counted(self) -> str:
        """The places that are replaced, in words."""
        return f"{self.free} of {self.places.in_words}" if self.fixed else self.places.in_words

    @property
    def mean_dimension(self) -> Estimate:
        """The sum of total indices; for independent places, it is the mean dimension, between 1 and the number of places."""
        ends = (1.0, float(self.free)) if self.independent else (0.0, math.inf)
        return self._ratio(self.changes.sum(1)).within(*ends)

    def indices(self) -> list[Estimate]:
        """The total index of each place, with its own (pointwise) interval."""
        return [self._ratio(change).within(0.0, 1.0 if self.independent else math.inf) for change in self.changes.T]

    def _ratio(self, change: np.ndarray) -> Estimate:
        """A sum over draws over that of variances, with a jackknife interval over draws."""
        one, other = float(change.sum()), float(self.variances.sum())
        rest = other - self.variances
        if len(change) < 3 or not (rest > 0).all():  # one draw has all of the variance
            return Estimate(one / other)
        return jackknife(one / other, ((one - change) / rest).tolist(), positive=True)

    def shares(self) -> PlaceShares:
        """How the sum of indices is shared among places."""
        places = self.places
        sizes = places.sizes
        sizes[[number - 1 for number in self.fixed]] = 0.0
        return PlaceShares(places.axis.name or "place", places.labels, self.changes, sizes / sizes.sum(), places.axis)

    def unclear(self) -> bool:
        """Whether the draws leave the mean dimension open."""
        found = self.mean_dimension
        return not found.high <= _UNCLEAR * max(found.low, 1e-12)

    @override
    def headline(self) -> dict[str, Number]:
        name = "mean dimension" if self.independent else "sum of total sensitivity indices"
        label = f"{name} over {self.counted}"
        return {
            "mean_dimension": self.mean_dimension.named(label),
            "places": Estimate.exact(float(self.free)).named(
                f"{self.places.axis.noun(2)} that are replaced, one at a time"
            ),
        }

    @override
    def placements(self) -> list[Placement]:
        known = self.independent and not self.fixed and not self.unclear()
        return [Placement(f"mean_dimension_of_{self.free}", self.mean_dimension, self.input_axes)] if known else []

    @override
    def sentence(self) -> str:
        return " ".join(each.text for each in self._sentences())

    def _sentences(self) -> list[Sentence]:
        found = [Sentence(self._size())]
        # Fixed places do not change, which is not worth a sentence.
        if (not self.fixed or self.shares().concentrated() is not None) and (where := self.shares().sentence()):
            found.append(Sentence(where, "profile"))
        if means := self._means():
            found.append(Sentence(means))
        return found

    def _size(self) -> str:
        found = self.mean_dimension
        if self.unclear():
            return f"{self.subject} needs more draws: the sum of its sensitivities to {self.counted} is not clear yet."
        digits = f"{found.value:.2f} (95 % CI {found.low:.2f} to {found.high:.2f})"
        if not self.independent:
            return f"The sensitivities of {self.subject} to {self.counted} sum to {digits}."
        return (
            f"The output of {self.subject} has a mean dimension of {digits} over {self.counted}, where a sum over single "
            f"{self.places.axis.noun(2)} has 1 and a parity has {self.free}."
        )

    def _means(self) -> str:
        """What follows for data: a bound on how much of the variance lies in combinations of how many places."""
        found, many = self.mean_dimension, self.places.axis.noun(2)
        if self.unclear() or not self.independent or self.free < 2:
            return ""
        # A term of the ANOVA decomposition has m places on average. By Markov's inequality for what it has beyond one, terms of
        # more than k have at most (m − 1)/k of the variance.
        beyond = math.ceil(2 * (found.high - 1)) or 1
        when = "" if self.at_given_weights else " before training"
        if beyond < self.free - 1 or beyond == 1:
            larger = "" if beyond == 1 else f"more than {beyond} "
            told = (
                f"At most {_at_most((found.high - 1) / beyond)} of its variance lies in combinations of {larger}{many}."
            )
            return f"{told} Labels that show only in these share no more than that with its output{when}."
        # No term has more than d places, so terms of one have at most (d − m)/(d − 1) of the variance.
        told = f"At most {_at_most((self.free - found.low) / (self.free - 1))} of its variance is a sum over single {many}."
        return f"{told} Labels that are such a sum share no more than that with its output{when}."

    @override
    def story(self) -> Story:
        return Story(
            sentences=self._sentences(),
            meaning=(
                "A large number means that the effect of one place depends on what stands in the others. A small number means that "
                "places add up. It says nothing about how large a change of the output is: outputs may be scaled and shifted. "
                "It holds for the inputs that were drawn, and real data can lie elsewhere."
            ),
            next_steps=self._next_steps(),
            compared=Compared.first_number(
                self,
                "the mean dimension" if self.independent else "the sum of sensitivities",
                "the effect of a place depends more on the others",
                unit=f"over {self.counted}",
                alike=f"over {self.counted}",
            ),
        )

    def _next_steps(self) -> list[Step]:
        axes = self.input_axes
        words = (
            f"{model_word(self.subject, self.provenance.get('command', ''))} --input {'x'.join(map(str, axes.shape))}"
        )
        if len(axes.shape) > 1 and all(axes.names) and not axes.image:
            words += f" --axes {','.join(axes.names)}"
        words += "".join(f" --hold {name}=FILE" for name in self.provenance.get("family", {}).get("held", ()))
        words += " --weights FILE" if self.at_given_weights else ""
        found = [Step("See to which directions of the input the output reacts.", f"biascope scan {words}")]
        if self.unclear():
            more = f"biascope measure sensitivity {words} --draws {4 * len(self.variances)}"
            found.insert(0, Step("Use more draws, to narrow the intervals.", more))
        return found

    @override
    def tables(self) -> dict[str, list[dict[str, Any]]]:
        parts = zip(self.places.labels, self.indices(), self.shares().each(), strict=True)
        rows = [
            {
                "place": label,
                "index": index.named("total index"),
                "share": share.named("share of all total indices", SHARE),
            }
            for label, index, share in parts
        ]
        return {"profile": rows}

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        places = self.places
        caption = f"Sensitivity to each {places.axis.noun(1)}"
        if places.grid is not None and min(places.grid) > 1:
            return {"profile": captioned(f"{caption} of {places.together}", self._map(places.grid, dark))}
        return {"profile": captioned(caption, self._curve(dark))}

    def _map(self, grid: tuple[int, int], dark: bool) -> Figure:
        from biascope.results import draw

        values = np.array([[each.value, each.high - each.low] for each in self.indices()])
        wide = float(np.nanmean(values[:, 1])) / 2 if np.isfinite(values[:, 1]).any() else math.nan
        reading = "Each is the share of the output's variance that depends on this patch, alone or with others."
        if math.isfinite(wide):
            reading += f" Their 95 % intervals reach about ±{significant(100 * wide, 2)} points, each on its own."
        figure = draw.blank(3.4, reading)
        axes = draw.panel(figure, dark)
        edges = (0.5, grid[1] + 0.5, grid[0] + 0.5, 0.5)
        draw.heat(axes, 100 * values[:, 0].reshape(grid), dark, bar=4, extent=edges)
        axes.set(xlabel="patch from left to right", ylabel="patch from top to bottom")
        axes.set_title("total index in %", fontsize=10, color=draw.PALETTE[dark].ink)
        return figure

    def _curve(self, dark: bool) -> Figure:
        from biascope.results import draw

        places, together = self.places, ""
        if places.together:
            together = f" A {places.axis.noun(1)} is {places.together}."
        return draw.shares(
            self.indices(),
            self.shares().isotropic,
            places.labels,
            along=places.axis.noun(2),
            ordered=places.axis.ordered,
            quantity="total index in %",
            reading="Each is the share of the output's variance that depends on this place, alone or with others, with its own 95 % "
            f"interval.{together}",
            beside="a sum that depends on all alike",
            dark=dark,
        )


def _at_most(share: float) -> str:
    return f"{math.ceil(100 * share)} %"


def suits(axes: InputAxes) -> bool:
    """Whether an input has more than one place."""
    return bool(axes.varied())


def _replaced(drawn: Drawn, x: Tensor, *, places: Places, fixed: tuple[int, ...], replaced: int) -> Tensor:
    """Half the mean squared change by each place, the variance, and the mean square of the outputs, summed over outputs."""
    order = torch.randperm(len(x), generator=drawn.generator, device=x.device)
    x, part_of = x[order], places.part_of.to(x.device)
    kept = torch.isin(part_of, torch.tensor(fixed, device=x.device) - 1)
    x = torch.where(kept, x[0], x)
    count = min(replaced, len(x))
    # The place comes from another input: never from the input itself, and from other inputs than these where there are enough.
    others = x.roll(-max(1, min(count, len(x) - count)), 0)[:count]
    outputs = drawn(x)
    changes = torch.zeros(places.count, dtype=outputs.dtype, device=outputs.device)
    free = [place for place in range(places.count) if place + 1 not in fixed]
    at_once = max(1, drawn.at_once // count)
    for start in range(0, len(free), at_once):
        chosen = torch.tensor(free[start : start + at_once], device=x.device)
        masks = part_of == chosen.reshape(-1, *[1] * part_of.dim())
        moved = torch.where(masks[:, None], others, x[:count]).flatten(0, 1)
        after = drawn(moved).reshape(len(chosen), count, -1)
        changes[chosen] = (after - outputs[:count]).square().sum(2).mean(1) / 2
    sizes = torch.stack([outputs.var(0).sum(), outputs.square().mean(0).sum()])
    return torch.cat([changes, sizes])


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    family = Family.initialised(
        lambda: nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(40, 1)), name="small CNN"
    )
    return (family, Probe.gaussian((1, 12), num=16, fresh=True, seed=0)), {"draws": 64}


@measurement(
    title="Sensitivity",
    paper="sensitivity2024",
    result=Sensitivity,
    example=_example,
    probe={"num": 64, "fresh": True},
)
def sensitivity(
    family: Family,
    probe: Probe,
    *,
    draws: int = 100,
    readout: str = "first",
    replaced: int | None = None,
    places: int = 64,
    fixed: tuple[int, ...] = (),
    seed: int = 0,
    run: Run | None = None,
) -> Sensitivity:
    """How much of the output depends on each place of the input, and how many places act together.

    Definition: the total Sobol index of place i is ``Sᵢ = E (f(x) − f(xⁱ))² / (2 Var f)``, where ``xⁱ`` has place i of another input
    and is ``x`` elsewhere. For inputs with independent places, the sum of all ``Sᵢ`` is the mean dimension: the mean number of places
    in a term of the ANOVA decomposition of ``f``, by variance. A sum over places has 1, and the parity of d places has d.

    A place is a token, a step, a node or a feature, with all of its numbers, or a square patch of an image.

    Estimated by the estimator of Jansen. Squared changes and variances, each unbiased, are summed over draws before they are divided.
    So a network counts by its output's variance, and one with a constant output does not count. Intervals are those of a jackknife
    over draws. For one network, a draw is a set of inputs.

    Args:
        family: Networks and the distribution of their weights.
        probe: Inputs, best sampled afresh for each network. A replaced place comes from another input of the same draw.
        draws: Number of networks (of input sets, for a point), at least 2.
        readout: Which scalar of several outputs, or ``"all"`` for the sum of their squared changes over that of their variances.
        replaced: Inputs of each draw at which places are replaced, at most all; by default as many as make 256 replacements, and at
            least 4. All inputs count for the variance.
        places: Most places into which an input is divided; beyond it, neighbours are replaced together.
        fixed: Numbers of places that keep one value in all inputs of a draw, from 1, such as padding and special tokens.
        seed: Random seed for the weights and for which input a place comes from.
        run: Folder, device, precision.

    Returns:
        The mean dimension, and the index of each place.

    Raises:
        ValueError: If inputs have one place, the output is constant or not finite, or a setting is wrong.

    Example:
        >>> family = Family.initialised(lambda: nn.Linear(4, 1, bias=False), name="linear")
        >>> result = sensitivity(family, Probe.gaussian((4,), num=64, fresh=True), draws=400)
        >>> result.mean_dimension.contains(1.0), [each.contains(0.25) for each in result.indices()]
        (True, [True, True, True, True])

    Reference:
        Sobol (2001). Global sensitivity indices for nonlinear mathematical models and their Monte Carlo estimates. Mathematics and
        Computers in Simulation 55. Liu, Owen (2006). Estimating mean dimensionality of analysis of variance decompositions. JASA 101.
    """
    run = run or Run()
    divided = _checked(family, probe, replaced, places, fixed)
    replaced = replaced or max(_FEWEST, _REPLACEMENTS // (divided.count - len(fixed)))
    statistic = functools.partial(_replaced, places=divided, fixed=tuple(fixed), replaced=replaced)
    found = draw_statistics(
        family,
        probe,
        statistic,
        draws=draws,
        readout=None if readout == "all" else readout,
        seed=seed,
        run=run,
        label=f"{family.name}: sensitivity",
        replaced=replaced,
        places=places,
        fixed=fixed,
    ).numpy()
    changes, variances, squares = found[:, :-2], found[:, -2], found[:, -1]
    return Sensitivity(
        changes,
        variances,
        input_shape=probe.input_shape,
        most=places,
        fixed=tuple(fixed),
        inputs=probe.num,
        independent=probe.independent,
        provenance={"warnings": _doubts(family, probe, variances, squares, changes.shape[1], readout, run)},
    )


def _checked(family: Family, probe: Probe, replaced: int | None, most: int, fixed: Sequence[int]) -> Places:
    """The places of the inputs, if their sensitivity can be measured."""
    if not isinstance(probe.few(), Tensor):
        raise ValueError(
            "sensitivity needs inputs of one tensor, got several. Hold the others with --hold, or wrap the network."
        )
    axes = axes_of(family, probe)
    if not suits(axes):
        raise ValueError(
            f"sensitivity needs inputs with more than one place, got {axes.in_words}. Pass such as --input 20x3."
        )
    for name, right, rule, got, remedy in (
        ("probe", probe.num >= 2, "have at least 2 inputs", probe.num, "--inputs 64"),
        ("replaced", replaced is None or replaced >= 1, "be at least 1 input", replaced, "--replaced 4"),
        ("places", most >= 2, "be at least 2", most, "--places 64"),
    ):
        if not right:
            raise ValueError(f"{name} must {rule}, got {got}. Pass {remedy}.")
    found = Places.of(axes, most)
    if wrong := [number for number in fixed if not 1 <= number <= found.count]:
        raise ValueError(
            f"fixed must name places from 1 to {found.count}, got {wrong[0]}. Pass such as --fixed 1,{found.count}."
        )
    if len(set(fixed)) != len(fixed) or len(fixed) >= found.count:
        raise ValueError(
            f"fixed must name different places and leave one of {found.count} free, got {list(fixed)}. Name fewer."
        )
    return found


def _doubts(
    family: Family, probe: Probe, variances: np.ndarray, squares: np.ndarray, count: int, readout: str, run: Run
) -> list[str]:
    """Refuse outputs that do not vary; sentences on what limits the numbers."""
    template = family.template.to(run.torch_device, run.dtype)
    few = probe.few(run)
    # Rounding adds its variance to each squared change, so the sum over places has it as often as there are places.
    noise = count * max(run.rounding, coarsest_rounding(template, few)) ** 2 * squares
    if not variances.sum() > noise.sum():
        raise ValueError(
            f"{family.name} must depend on its input, but its output is constant there. {why_constant(template)}"
        )
    if noise.sum() > _ROUNDED * variances.sum():
        spread, level = math.sqrt(variances.mean()), math.sqrt(squares.mean())
        raise ValueError(
            f"The output of {family.name} must vary by more than its rounding in {run.precision}, got a standard deviation of "
            f"{spread:.2g} around a size of {level:.2g}. Pass precision='float64' (--precision float64)."
        )
    found = doubts_of_zeros(family, few, "first" if readout == "all" else readout)
    if dead := int((variances <= noise).sum()):
        drawn = "sets of inputs" if family.size == 1 else "drawn networks"
        found.append(
            f"The output is constant for {dead} of {len(variances)} {drawn}. They do not count: the numbers are about the others."
        )
    if not probe.independent:
        found.append(
            f"Places of the inputs ({probe.description}) may depend on one another, and a place is replaced by that of another input. "
            "Then the sum of indices is no mean dimension: even a sum over single places need not have 1."
        )
    return found
