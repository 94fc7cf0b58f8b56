"""Equivariance: how much the output of a network changes when its input is shifted, rotated or scaled a little."""

# T draws · m moves · n inputs · p outputs

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from biascope.derivatives.draw_statistics import Drawn, draw_statistics
from biascope.derivatives.waves import slope_along
from biascope.families.family import Family
from biascope.kernels.selftest import derivative_checks
from biascope.results.atlas import Placement
from biascope.results.axes import InputAxes
from biascope.results.draw import captioned
from biascope.results.estimate import Estimate, Number, jackknife
from biascope.results.registry import measurement
from biascope.results.result import Result
from biascope.results.story import Compared, Sentence, Step, Story, model_word
from biascope.results.wording import significant
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHORTEST = 8  # pixels or steps along which a shift by one is a small one
WHITE = 0.85  # of the change of white noise under a shift: inputs that change more are called white noise
_UNSEEN = 5e-4  # of a standard deviation: what is told as no change
_JUMP = 4.0  # squared difference of opposite edges, relative to neighbours, from which inputs are not periodic
_ROUNDED = 100  # units of rounding of the outputs, below which their standard deviation is noise


class Move(NamedTuple):
    """A transformation of inputs.

    Attributes:
        key: Of its numbers.
        words: What it is called, with its size.
        names: Its entries along the axis ``move``, over which it averages.
    """

    key: str
    words: str
    names: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Equivariance(Result):
    """Squared changes of outputs under small moves of the inputs, and variances of the outputs.

    Attributes:
        moves: Names of the moves: ``"shift down"``, ``"shift across"``, ``"rotation"``, ``"scaling"``; ``"shift in time"``.
        changes: Mean squared change of the outputs, over inputs and summed over outputs, per pixel of each move.
        variances: Variance of the outputs over the inputs of each move, summed over outputs.
        input_changes: Mean squared change of one number of an input.
        input_variances: Its variance.
        invariance: Whether outputs should not change; else they have the places of the inputs, and should move with them.
        white_change: Change of white noise under a shift by one, in its standard deviations.
        radius: Root mean square distance of a windowed image's pixels from its centre, in pixels; 0 of sequences.
    """

    moves: tuple[str, ...]
    changes: np.ndarray
    variances: np.ndarray
    input_changes: np.ndarray
    input_variances: np.ndarray
    invariance: bool
    white_change: float
    radius: float

    row_of_card: ClassVar[bool] = True
    axes: ClassVar[Mapping[str, tuple[str, ...]]] = dict.fromkeys(
        ("changes", "variances", "input_changes", "input_variances"), ("draw", "move")
    )

    @property
    def of_images(self) -> bool:
        """Whether inputs are images."""
        return len(self.moves) > 1

    @property
    def kinds(self) -> tuple[Move, ...]:
        """The moves that have a number: shifts in both directions are one."""
        shifts = tuple(name for name in self.moves if name.startswith("shift"))
        found = [Move("shift", f"a shift by one {self._place}", shifts)]
        if self.of_images:
            turned, scaled = math.degrees(1 / self.radius), 100 / self.radius
            found.append(
                Move("rotation", f"a rotation by {significant(turned)}° (one pixel on average)", ("rotation",))
            )
            found.append(Move("scaling", f"a scaling by {significant(scaled)} % (one pixel on average)", ("scaling",)))
        return tuple(found)

    @property
    def _place(self) -> str:
        return "pixel" if self.of_images else "step"

    @property
    def _error(self) -> str:
        return "invariance error" if self.invariance else "equivariance error"

    def error(self, names: tuple[str, ...]) -> Estimate:
        """Root mean square change of the outputs under some moves, in standard deviations of the outputs."""
        return self._relative(self.changes, self.variances, names)

    @property
    def input_change(self) -> Estimate:
        """The same of the inputs under shifts: what a random linear function of the inputs has, whatever its length."""
        return self._relative(self.input_changes, self.input_variances, self.kinds[0].names)

    def _relative(self, changes: np.ndarray, variances: np.ndarray, names: tuple[str, ...]) -> Estimate:
        """The root of a ratio of means over draws, without its bias of order 1/draws, and its interval over draws."""
        which = [self.moves.index(name) for name in names]
        above, below = changes[:, which].sum(1), variances[:, which].sum(1)
        scale = below.max()
        above, below = above / scale, below / scale
        total = above.sum(), below.sum()
        without = [part - each for part, each in zip(total, (above, below), strict=True)]
        left_out = np.sqrt(np.maximum(without[0], 0.0) / np.where(without[1] > 0, without[1], np.nan))
        if not np.isfinite(left_out).all():  # one draw alone has an output that varies
            return Estimate(math.sqrt(total[0] / total[1]))
        return jackknife(math.sqrt(total[0] / total[1]), left_out.tolist(), positive=True)

    @override
    def headline(self) -> dict[str, Number]:
        found = {
            f"{move.key}_error": self.error(move.names).named(
                f"local {self._error} of {move.words}, in standard deviations of the output"
            )
            for move in self.kinds
        }
        change = self.input_change.named(
            f"change of the inputs under a shift by one {self._place}, in their standard deviations"
        )
        return {**found, "input_change": change}

    @property
    def _inputs(self) -> str:
        change = significant(self.input_change.value, 2)
        if self.input_change.value > WHITE * self.white_change:
            return f"white noise that changes by {change} of its own"
        return f"smooth inputs that change by {change} of their own"

    @override
    def placements(self) -> list[Placement]:
        error = self.error(self.kinds[0].names)
        return [Placement("shift_error", error, self.input_axes)] if self.invariance else []

    @override
    def sentence(self) -> str:
        return " ".join(text for text, _ in self._sentences())

    def _sentences(self) -> list[Sentence]:
        error, picture = self.error(self.kinds[0].names), "errors"
        words = self.kinds[0].words
        if not self.invariance:
            return [
                Sentence(
                    f"Under {words}, the output of {self.subject} follows the input up to {_told(error)} of its standard deviation, on "
                    f"{self._inputs}.",
                    picture,
                )
            ]
        if error.value + 2 * np.nan_to_num(error.standard_error) < _UNSEEN:
            return [
                Sentence(
                    f"{words.capitalize()} does not change the output of {self.subject}, on {self._inputs}.", picture
                ),
                Sentence("Shifted copies of an input are the same input to it."),
            ]
        return [
            Sentence(
                f"{words.capitalize()} changes the output of {self.subject} by {_told(error)} of its standard deviation, on "
                f"{self._inputs}.",
                picture,
            ),
            Sentence(self._beside_linear(error), picture),
        ]

    def _beside_linear(self, error: Estimate) -> str:
        """Where it stands relative to a random linear function, and what that says of shifted inputs."""
        linear = self.input_change
        if math.isnan(error.low):
            return "More draws tell how that compares with a random linear function."
        if error.high < linear.low:
            return "So shifted copies of an input are more alike to it than to a random linear function."
        if error.low > linear.high:
            return "So shifted copies of an input are less alike to it than to a random linear function."
        return "So shifted copies of an input are about as alike to it as to a random linear function."

    @override
    def story(self) -> Story:
        probe = self.provenance.get("probe", "given inputs")
        drawn = "sets of inputs" if self.at_given_weights else "draws of the weights"
        held = "nearly holds for slightly shifted copies of it" if self.invariance else "moves with its content"
        turned = (
            " For rotation and scaling, images fade to 0 towards a circle, and pixels move by one on average."
            if self.of_images
            else ""
        )
        return Story(
            sentences=self._sentences(),
            meaning=(
                f"Measured on {probe}. Intervals are over {drawn}. A small error means that what the network outputs for an input "
                f"{held}.{turned} The error is local: it does not tell how far an input may move. It depends on the inputs: rough "
                "inputs change more under a shift, and so do outputs. It does not tell whether a data set needs invariance."
            ),
            next_steps=[
                Step(
                    "See which patterns the network prefers.",
                    f"biascope scan {model_word(self.subject, self.provenance.get('command', ''))}",
                ),
            ],
            compared=Compared.first_number(
                self,
                f"the {self._error} of a shift by one {self._place}",
                f"outputs {'change' if self.invariance else 'deviate'} more when inputs are shifted",
                unit="standard deviations of the output",
            ),
        )

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        from biascope.results import draw

        reading = f"Dots are root mean square changes of the output per {self._place}, bars 95 % intervals. The line is the change of "
        figure = draw.blank(1.3 + 0.4 * len(self.moves), f"{reading}the inputs, which a random linear function has.")
        axes, at = draw.panel(figure, dark), np.arange(len(self.moves))[::-1]
        found = [self.error((name,)) for name in self.moves]
        values = np.array([each.value for each in found])
        lower, upper = (np.array([getattr(each, end) for each in found]) for end in ("low", "high"))
        reach = np.nan_to_num([values - lower, np.minimum(upper, 10 * values) - values])
        colours = draw.PALETTE[dark]
        axes.errorbar(
            values, at, xerr=reach, fmt="o", capsize=3, color=colours.lines[0], label=draw.plain(self.subject)
        )
        axes.axvline(self.input_change.value, color=colours.muted, linestyle="--", linewidth=1, label="the inputs")
        axes.set_yticks(at, self.moves)
        end = 1.08 * max(self.input_change.value, *(values + reach[1]))
        unit = f"change per {self._place} / standard deviation"
        axes.set(xlabel=unit, xlim=(0, end), ylim=(-0.6, len(self.moves) - 0.4))
        draw.legend_below(figure, axes, dark)
        return {"errors": captioned(f"Local {self._error} of each move", figure)}


def _told(estimate: Estimate) -> str:
    """A change with its interval, without exponents."""
    if math.isnan(estimate.low):
        return f"{_plain(estimate.value)} (spread unknown)"
    high = "more" if math.isinf(estimate.high) else _plain(estimate.high)
    ends = f"{_plain(estimate.low)} {'or' if high == 'more' else 'to'} {high}"
    return f"{_plain(estimate.value)} (95 % CI {ends})"


def _plain(number: float) -> str:
    return f"{number:.3f}" if number < 0.0995 else f"{number:.2f}" if number < 9.95 else f"{number:,.0f}"


def suits(axes: InputAxes) -> bool:
    """Whether inputs have content that can be shifted: images and sequences in time, long enough for a shift by one to be small.

    Example:
        >>> from biascope.results.axes import named_axes
        >>> [suits(InputAxes.of(named_axes(names), shape)) for names, shape in (("", (1, 28, 28)), ("time,feature", (7, 3)))]
        [True, False]
    """
    return bool(axes.shifted) and min(axes.shape[place] for place in axes.shifted) >= SHORTEST


class Disc(NamedTuple):
    """A window that keeps the middle of an image and falls to 0 at the circle in it, and its pixels' places.

    Attributes:
        rows: Places from the centre, ``(h, 1)``.
        columns: The same, ``(1, w)``.
        window: ``(h, w)``: 1 up to half the radius of the circle, then half a cosine.
        radius: Root mean square distance of a windowed pixel from the centre.
    """

    rows: Tensor
    columns: Tensor
    window: Tensor
    radius: float

    @staticmethod
    def of(height: int, width: int, device: torch.device | str = "cpu") -> Disc:
        """The window of images of this size."""
        rows, columns = (
            torch.arange(size, dtype=torch.float64, device=device) - (size - 1) / 2 for size in (height, width)
        )
        rows, columns, edge = rows[:, None], columns[None, :], min(height, width) / 2
        distance = (rows.square() + columns.square()).sqrt()
        beyond = (2 * distance / edge - 1).clamp(0, 1)  # 0 to 1 over the outer half
        window = (1 + torch.cos(torch.pi * beyond)) / 2
        power = window.square()
        radius = float(((power * distance.square()).sum() / power.sum()).sqrt())
        return Disc(rows, columns, window, radius)

    def rotated(self, x: Tensor) -> Tensor:
        """The derivative of a field under a rotation about the centre, per pixel of displacement."""
        return (self.rows * slope_along(x, -1) - self.columns * slope_along(x, -2)) / self.radius

    def scaled(self, x: Tensor) -> Tensor:
        """The same under scaling."""
        return (self.rows * slope_along(x, -2) + self.columns * slope_along(x, -1)) / self.radius


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    family = Family.initialised(
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)), name="small CNN"
    )
    return (family, Probe.smooth((1, 8, 8), num=4, seed=0)), {"draws": 32}


@measurement(
    title="Equivariance",
    paper="lie2022",
    result=Equivariance,
    example=_example,
    network={"outputs": 10},
    checks=derivative_checks(lambda settings: ("input",)),
    probe={"num": 8, "smooth": True},
)
def equivariance(
    family: Family, probe: Probe, *, draws: int = 100, seed: int = 0, run: Run | None = None
) -> Equivariance:
    """How much the outputs of a network change when its input is shifted, rotated or scaled a little.

    Definition: ``√(E‖L f‖² / E Var_x f)``, with ``L f`` the derivative of ``f(T_t x)`` by t at 0 for a move ``T_t``, per pixel of
    displacement, and the variance over inputs at fixed weights, so that no constant hides it. Both are summed over outputs and averaged
    over weights. For outputs that have the places of the inputs (an image for an image), ``L f`` is the derivative of
    ``T_{−t} f(T_t x)``: the local equivariance error. For all others it is the local invariance error. The error of shifts is the root
    mean square over directions.

    Estimated from draws of networks, each with its own inputs, by one forward derivative for each move. Inputs are moved as periodic
    band-limited fields: exactly so if they are (:meth:`~biascope.tasks.probe.Probe.smooth`). For rotation and scaling they are
    first multiplied by a window that falls to 0 at the circle in the image. The ratio is that of means over draws, with 95 % jackknife
    intervals over draws.

    Args:
        family: Networks and the distribution of their weights.
        probe: Inputs, at least 2 for each network, best smooth ones.
        draws: Number of networks (of input sets, for one network), at least 2.
        seed: Random seed for the weights.
        run: Folder, device, precision.

    Returns:
        The errors of shifts, rotation and scaling, beside the change of the inputs.

    Raises:
        ValueError: If content cannot be shifted in the inputs, the output is constant or not finite, or a setting is wrong.

    Example:
        >>> family = Family.initialised(lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 1)), name="linear")
        >>> result = equivariance(family, Probe.smooth((1, 16, 16), num=8), draws=200)
        >>> result.error(("shift down", "shift across")).contains(result.input_change.value)  # as of any random linear function
        True

    Reference:
        Gruver, Finzi, Goldblum, Wilson (2023). The Lie derivative for measuring learned equivariance. ICLR. Their outputs are
        probabilities, their error is a mean over given images, and is not divided by the variance.
    """
    run = run or Run()
    axes = _axes_of(family, probe)
    if probe.num < 2:
        raise ValueError(
            f"equivariance needs the variance over at least 2 inputs of each network, got {probe.num}. Pass num=8, or --inputs 8."
        )
    shape, places = axes.shape, axes.shifted
    sizes = [shape[place] for place in places]
    outputs = tuple(family.first_outputs(probe.few(run), run).shape[1:])
    ahead = _shared_places(shape, places, outputs)

    def moved(drawn: Drawn, x: Tensor) -> Tensor:
        """Of each move: five numbers; then the differences of opposite edges and of neighbours."""

        def numbers(inputs: Tensor, direction: Tensor, along: tuple[int, ...], turn: str) -> list[Tensor]:
            found, change = drawn.slopes(inputs.to(x), direction.to(x))
            if along:  # the outputs should have moved too
                field = found.reshape(-1, *outputs)
                own = getattr(disc, turn)(field) if disc is not None and turn else slope_along(field, along[0])
                change = change - own.reshape(change.shape)
            varies = found.var(0).sum()
            of_inputs = direction.square().mean(), inputs.var(0).mean()
            return [change.square().sum(1).mean(), varies, *of_inputs, found.square().mean(0).sum()]

        exact = x.double()
        disc = Disc.of(sizes[0], sizes[1], x.device) if len(places) == 2 else None
        rows = [
            numbers(exact, slope_along(exact, place + 1), ahead[index : index + 1], "")
            for index, place in enumerate(places)
        ]
        if disc is not None:
            framed = disc.window * exact
            rows += [
                numbers(framed, disc.rotated(framed), ahead, "rotated"),
                numbers(framed, disc.scaled(framed), ahead, "scaled"),
            ]
        edges = [exact.roll(1, place + 1) - exact for place in places]
        jump = torch.stack(
            [each.select(place + 1, 0).square().mean() for place, each in zip(places, edges, strict=True)]
        ).sum()
        step = torch.stack([each.square().mean() for each in edges]).sum()
        return torch.cat([torch.stack([torch.stack(row) for row in rows]).flatten(), torch.stack([jump, step])])

    found = draw_statistics(
        family,
        probe,
        moved,
        draws=draws,
        readout=None,
        seed=seed,
        run=run,
        label=f"{family.name}: small moves of inputs",
    ).numpy()
    edges, rows = found[:, -2:].sum(0), found[:, :-2].reshape(len(found), -1, 5)
    changes, variances, input_changes, input_variances, squares = (np.ascontiguousarray(rows[..., i]) for i in range(5))
    rounding = torch.finfo(run.dtype).eps
    _require_varied(family, variances, squares, rounding)
    names = ("shift down", "shift across", "rotation", "scaling") if len(places) == 2 else ("shift in time",)
    white = math.sqrt(np.mean([_white_change(size) for size in sizes]))
    result = Equivariance(
        names,
        changes,
        variances,
        input_changes,
        input_variances,
        invariance=not ahead,
        white_change=white,
        radius=Disc.of(sizes[0], sizes[1]).radius if len(places) == 2 else 0.0,
    )
    dead = int((variances[:, 0] <= rounding**2 * squares[:, 0]).sum())
    for doubt in _doubts(result, dead, edges):
        result = result.warned(doubt)
    return result


def _axes_of(family: Family, probe: Probe) -> InputAxes:
    """What the inputs are, if content can be shifted in them."""
    few = probe.few()
    if not isinstance(few, Tensor):
        raise ValueError(
            f"equivariance needs one tensor as input, got {type(few).__name__}. Hold the other inputs with --hold, or wrap the network."
        )
    axes = InputAxes.of(family.axes_at(few), tuple(few.shape[1:]))
    if not suits(axes):
        larger = "Pass a larger --input." if axes.shifted else "Pass a network for such inputs."
        remedy = larger if all(axes.names) else "Name the axes of sequences, such as --axes time,feature."
        raise ValueError(
            f"equivariance needs images of at least {SHORTEST}×{SHORTEST} pixels or sequences of at least {SHORTEST} steps, got inputs "
            f"of shape {axes.in_words}. {remedy}"
        )
    return axes


def _shared_places(shape: tuple[int, ...], places: tuple[int, ...], outputs: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of a stack of outputs that are those of the inputs along which content is shifted; none for features.

    Example:
        >>> [_shared_places((1, 28, 28), (1, 2), outputs) for outputs in ((10,), (5, 28, 28), (28, 28), (5, 14, 14))]
        [(), (-2, -1), (-2, -1), ()]
        >>> [_shared_places((20, 3), (0,), outputs) for outputs in ((20,), (20, 7))]
        [(), (-2,)]
    """
    found = tuple(place - len(shape) for place in places)
    enough = len(outputs) >= (2 if len(places) == 2 else len(shape))
    same = enough and all(outputs[place] == shape[place] for place in found)
    return found if same else ()


def _white_change(size: int) -> float:
    """The mean square of the derivative of white noise of variance 1, as :func:`slope_along` takes it."""
    frequencies = 2 * np.pi * np.fft.fftfreq(size)
    return float(np.mean(np.where(np.abs(frequencies) < np.pi, frequencies, 0.0) ** 2))


def _require_varied(family: Family, variances: np.ndarray, squares: np.ndarray, rounding: float) -> None:
    """Refuse outputs that do not vary over inputs."""
    if bool((variances.sum(0) <= (_ROUNDED * rounding) ** 2 * squares.sum(0)).any()):
        raise ValueError(
            f"{family.name} must give outputs that vary over inputs, but they are constant up to rounding. Check its weights, or try "
            "precision='float64'."
        )


def _doubts(result: Equivariance, dead: int, edges: np.ndarray) -> list[str]:
    """Warnings: draws with a constant output, inputs that are nearly white noise or do not continue across their edges."""
    found, change, shift = [], result.input_change.value, result.kinds[0].words
    if dead:
        found.append(
            f"The output is constant for {dead} of {len(result.variances)} draws. They count with 0 in both means."
        )
    if change > WHITE * result.white_change:
        found.append(
            f"The inputs are nearly white noise: {shift} changes them by {significant(change, 2)} of their standard deviation. "
            "On smooth inputs, such as photographs, errors are much smaller. Pass Probe.smooth(shape)."
        )
    if edges[0] > _JUMP * edges[1]:
        times = math.sqrt(edges[0] / edges[1])
        found.append(
            f"Opposite edges of an input differ {significant(times, 2)} times as much as neighbours. A shift moves one edge "
            "beside the other, so a part of the error comes from this jump. Pass Probe.smooth(shape)."
        )
    return found
