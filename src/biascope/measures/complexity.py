"""Complexity: along a line between two inputs, the output of a network looks like a wave of how many cycles."""

# T draws · S scales of the weights · L lines per draw · n points on a line · k half cycles

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from biascope.derivatives.draw_statistics import Drawn, NotFiniteError, draw_statistics
from biascope.derivatives.waves import cosine_coefficients, line_power
from biascope.families.family import Family
from biascope.families.inputs import is_real
from biascope.families.network import Network
from biascope.families.weights import layer_of
from biascope.kernels.selftest import derivative_checks
from biascope.results import draw
from biascope.results.atlas import Placement
from biascope.results.axes import InputAxes
from biascope.results.draw import PALETTE, captioned
from biascope.results.estimate import Estimate, Number, jackknife
from biascope.results.figures import lines_figure
from biascope.results.registry import measurement
from biascope.results.result import Result
from biascope.results.story import Compared, Sentence, Step, Story, model_word
from biascope.results.wording import listed, percent, significant
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Of a linear function, in cycles: 7·ζ(3) / (15·ζ(4)), since its coefficients are in proportion to 1/k² at odd k.
LINEAR = 0.5182923831522024
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
UNIT = "cycles"

_EXAMPLES = 5  # curves that a picture shows
_BETWEEN = 8  # places off the grid at which each draw is checked
_MOVED = 0.02  # of the number: what rounding, or what lies between the points, may change
_ROUNDINGS = 4.0  # of the largest output: root mean square of what a pass of a deep network adds
_FLAT = 0.05  # a change whose interval lies within so much is told as a bound
_FEW = 8.0  # draws whose power counts


@dataclass(frozen=True, repr=False)
class Complexity(Result):
    """Mean frequencies along lines, weighted by power, with the weights of a network at several scales.

    Attributes:
        scales: What weights were multiplied by, in rising order; 1 is among them.
        power: Power of the output without its mean, in units of its mean over draws.
        moment: The sum of frequency × power, in cycles and the same units.
        resolved: Whether the points resolve the output; where they do not, the number is a lower bound.
        frequencies: Frequencies of the spectrum, in cycles per line.
        spectrum: Share of the power on each, at scale 1.
        examples: The output along a line of the first draws, without its mean and at variance 1.
        scaled: What the scale multiplies, in words.
    """

    scales: np.ndarray
    power: np.ndarray
    moment: np.ndarray
    resolved: np.ndarray
    frequencies: np.ndarray
    spectrum: np.ndarray
    examples: np.ndarray
    scaled: str

    row_of_card: ClassVar[bool] = True
    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "scales": ("scale",),
        "power": ("draw", "scale"),
        "moment": ("draw", "scale"),
        "resolved": ("scale",),
        "frequencies": ("frequency",),
        "spectrum": ("frequency",),
        "examples": ("scale", "example", "point"),
    }

    @property
    def profile(self) -> list[Number]:
        """The complexity at each scale of the weights."""
        found = []
        for place, scale in enumerate(self.scales):
            label = "complexity" if scale == 1 else f"complexity with weights × {scale:g}"
            own = _told(*self._ratios(place)).within(0.5, float(self.frequencies[-1]))
            found.append((own if self.resolved[place] else own.open_above()).named(label, UNIT))
        return found

    @property
    def complexity(self) -> Number:
        """The complexity of the networks as they are."""
        return self.profile[self._own]

    def relative(self, place: int) -> Estimate:
        """The complexity at a scale over that at scale 1, from the same draws."""
        (full, left_out), (one, one_left_out) = self._ratios(place), self._ratios(self._own)
        found = _told(full / one, left_out / one_left_out)
        return found if self.resolved[place] else found.open_above()

    @override
    def placements(self) -> list[Placement]:
        return [Placement("complexity", self.complexity, self.input_axes)] if self.resolved[self._own] else []

    @property
    def _own(self) -> int:
        return int(np.flatnonzero(self.scales == 1)[0])

    def _ratios(self, place: int) -> tuple[float, np.ndarray]:
        """Mean frequency of the pooled power, and the same without each draw."""
        moment, power = self.moment[:, place], self.power[:, place]
        with np.errstate(invalid="ignore", divide="ignore"):  # one draw may hold all the power
            left_out = (moment.sum() - moment) / (power.sum() - power)
        return float(moment.sum() / power.sum()), left_out

    @override
    def headline(self) -> dict[str, Number]:
        found = {"complexity": self.complexity}
        last = len(self.scales) - 1
        if last > self._own:
            label = f"complexity with weights × {self.scales[last]:g}, relative to × 1"
            found["relative_complexity"] = self.relative(last).named(label)
        return found

    @override
    def sentence(self) -> str:
        return " ".join(filter(None, [self._wave(), self._change(), self._consequence()]))

    def _wave(self) -> str:
        own, least = self.complexity, "" if self.resolved[self._own] else "at least "
        return (
            f"Between two {self._inputs}, the output of {self.subject} bends like a wave of {least}{own.value:.3f} cycles"
            f"{_interval(own)}; a linear function has {LINEAR:.3f}."
        )

    @property
    def _inputs(self) -> str:
        described = str(self.provenance.get("probe", ""))
        return "random inputs" if "N(0" in described else "of its inputs"

    def _change(self) -> str:
        """What larger weights do; nothing where they were not tried, or not resolved."""
        last = len(self.scales) - 1
        if last == self._own:
            return ""
        found, larger, there = self.relative(last), f"Weights {self.scales[last]:g} times as large", self.profile[last]
        bound = max(abs(found.low - 1), abs(found.high - 1))
        if bound < _FLAT:
            return f"{larger} change this by {f'less than {percent(bound)}' if bound > 1e-3 else 'nothing'}."
        if found.low > 1:
            least = "" if self.resolved[last] else "at least "
            return f"{larger} make it more complex: {least}{significant(there.value)} cycles{_interval(there)}."
        if found.high < 1:
            return f"{larger} make it less complex: {there.value:.3f} cycles{_interval(there)}."
        return f"{len(self.power)} draws do not show whether larger weights make it more complex."

    def _consequence(self) -> str:
        own, when = self.complexity, "at these weights" if self.at_given_weights else "before training"
        if not self.resolved[self._own] or not math.isfinite(own.high):
            return ""
        changes = math.ceil(2 * own.high)  # half a cycle is one way up or down
        often = "twice" if changes == 2 else f"{changes} times"
        return f"Labels that change more than {often} between two inputs vary faster than its outputs do on average {when}."

    @override
    def story(self) -> Story:
        probe = self.provenance.get("probe", "given inputs")
        trained = (
            f"biascope measure complexity {model_word(self.subject, self.provenance.get('command', ''))} --weights FILE"
        )
        return Story(
            sentences=[
                Sentence(self._wave(), "lines"),
                *([Sentence(change, "by_scale")] if (change := self._change()) else []),
                *([Sentence(words, "spectrum")] if (words := self._consequence()) else []),
            ],
            meaning=(
                "The output along a straight line from one input to another is a sum of waves. The number is how many cycles they "
                "have per line on average, where each wave counts by its power. Half a cycle is one way up or down. The number is "
                "not a property of the network alone: lines between other inputs, or longer lines, give others. "
                f"{self.scaled} Layers that normalise their inputs undo such a scale. Nothing here shows that a more complex "
                "network learns better or worse. "
                f"Lines join pairs of inputs: {probe}."
            ),
            next_steps=[] if self.at_given_weights else [Step("See how training changes it.", trained)],
            shown_tables={
                "profile": {"scale": "weights times", "complexity": "complexity", "resolved": "points suffice"}
            },
            compared=Compared.first_number(
                self,
                "the complexity",
                "outputs change more often between two inputs",
                unit="cycles per line",
                alike=f"{self.examples.shape[-1]} points on each line",
            ),
        )

    @override
    def tables(self) -> dict[str, list[dict[str, Any]]]:
        rows = zip(self.scales.tolist(), self.profile, self.resolved.tolist(), strict=True)
        return {
            "profile": [
                {"scale": scale, "complexity": number, "resolved": "yes" if resolved else "no: at least this"}
                for scale, number, resolved in rows
            ]
        }

    @override
    def facts(self) -> dict[str, Any]:
        return {"scaled_weights": self.scaled}

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        found = {"lines": captioned("Output along lines between two inputs", self._lines(dark))}
        if len(self.scales) > 1:
            found["by_scale"] = captioned("Complexity by the scale of the weights", self._profile(dark))
        return found | {"spectrum": captioned("Power along the lines by frequency", self._spectrum(dark))}

    def _lines(self, dark: bool) -> Figure:
        last = len(self.scales) - 1
        shown = list(dict.fromkeys([self._own, last]))
        reading = "Each curve is the output of one draw along one line, without its mean and at the same variance."
        figure, axes = draw.blank(2.8, reading), None
        places = (np.arange(self.examples.shape[-1]) + 0.5) / self.examples.shape[-1]
        grid = figure.add_gridspec(1, len(shown))
        for column, place in enumerate(shown):
            axes = draw.panel(figure, dark, grid[0, column], sharey=axes)
            colours = draw.line_colours(self.examples.shape[1], dark)
            for curve, colour in zip(self.examples[place], colours, strict=True):
                axes.plot(places, curve, color=colour, linewidth=1.4)
            axes.set(ylabel="output" if place == shown[0] else "")
            axes.set_title(f"weights × {self.scales[place]:g}", fontsize=10, color=PALETTE[dark].ink)
        figure.supxlabel("from one input (0) to another (1)", fontsize=10, color=PALETTE[dark].ink)
        return figure

    def _profile(self, dark: bool) -> Figure:
        profile = self.profile
        values = np.array([number.value for number in profile])
        ends = [np.array([getattr(number, end) for number in profile]) for end in ("low", "high")]
        band = tuple(np.where(np.isfinite(end), end, values) for end in ends)
        reading = "The band is a 95 % interval; scales share their draws. The dashed line is a linear function."
        reading += (
            "" if self.resolved.all() else " Open circles are lower bounds: the points do not resolve the output."
        )
        drawn = lines_figure(
            {self.subject: (self.scales, values)},
            x="weights times",
            y="complexity, cycles",
            log_x=True,
            bands={self.subject: (band[0], band[1])},
            reading=reading,
            dark=dark,
        )
        axes = drawn.axes[0]
        rough = ~self.resolved
        colours = PALETTE[dark]
        axes.plot(self.scales[rough], values[rough], "o", color=colours.lines[0], markersize=8, fillstyle="none")
        axes.axhline(LINEAR, color=colours.muted, linestyle="--", linewidth=1, zorder=0)
        axes.set_xticks(self.scales, [f"{scale:g}" for scale in self.scales])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        return drawn

    def _spectrum(self, dark: bool) -> Figure:
        odd = np.arange(0, len(self.frequencies), 2)  # a linear function has no power on whole cycles
        line = (2 * self.frequencies[odd]) ** -4.0 / (math.pi**4 / 96)
        return lines_figure(
            {
                self.subject: (self.frequencies, np.where(self.spectrum > 1e-12, self.spectrum, np.nan)),
                "a linear function": (self.frequencies[odd], line),
            },
            x="cycles per line",
            y="share of the power",
            log_x=True,
            log_y=True,
            reading="A curve that falls slowly bends often. A linear function has power only on odd half cycles.",
            dark=dark,
        )


def suits(axes: InputAxes) -> bool:
    """Every kind of input has lines."""
    return True


def _between(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """What the cosines through n values say at other places of the line, as multiples of its length."""
    count = len(values)
    weights = np.full(count, math.sqrt(2 / count))
    weights[0] = math.sqrt(1 / count)
    return np.asarray(np.cos(math.pi * np.outer(places, np.arange(count))) @ (weights * cosine_coefficients(values)))


def scaled_weights(network: Network) -> list[str]:
    """Parameters that a scale of the weights multiplies: matrices and kernels of linear, convolution, attention and recurrent layers.

    These are parameters of two or more axes with ``weight`` in their name, as all layers of PyTorch have them. Tables of embeddings,
    scales of normalisation layers, biases and free parameters, such as positions, are not among them.

    Example:
        >>> layers = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.LayerNorm([2, 4]), nn.LSTM(4, 1))
        >>> scaled_weights(Network.of(layers))
        ['1.weight', '3.weight_ih_l0', '3.weight_hh_l0']
    """
    found = []
    for name, tensor in network.params.items():
        layer, _, own = name.rpartition(".")
        named = "weight" in own or layer.endswith("parametrizations.weight")
        module = network.module.get_submodule(layer)
        table = isinstance(module, nn.Embedding | nn.EmbeddingBag) or "norm" in type(module).__name__.lower()
        if tensor.dim() > 1 and named and not table:
            found.append(name)
    return found


def _scaled_in_words(network: Network, names: Sequence[str]) -> str:
    """What a scale of the weights multiplies, and what it leaves as it is."""
    params = network.params
    count, total = sum(params[name].numel() for name in names), sum(each.numel() for each in params.values())
    others = [name for name, each in params.items() if each.dim() > 1 and name not in names]
    layers = len({layer_of(name) for name in names})
    shown = listed(others[:4] if len(others) < 5 else [*others[:3], f"{len(others) - 3} more"]) if others else ""
    return (
        f"The scale multiplies the weights of {layers} layer{'s' if layers != 1 else ''} ({count:,} of {total:,} parameters), and "
        f"leaves biases and normalisation layers as they are{f', and {shown} too' if shown else ''}."
    )


def _told(full: float, left_out: np.ndarray) -> Estimate:
    """A ratio with its interval; without a spread where all draws agree up to rounding, as those of a linear function do."""
    if not np.isfinite(left_out).all():
        return Estimate(full)
    if len(left_out) > 2 and float(np.ptp(left_out)) * len(left_out) < 1e-4 * full:
        return Estimate(full, 0.0, full, full)
    return jackknife(full, left_out.tolist(), positive=True)


def _interval(number: Estimate) -> str:
    if math.isnan(number.low):
        return ""
    upper = f"{number.low:.3f} or more" if math.isinf(number.high) else f"{number.low:.3f} to {number.high:.3f}"
    return f" (95 % CI {upper})"


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    family = Family.initialised(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), name="small MLP")
    return (family, Probe.gaussian((6,), num=4, fresh=True, seed=0)), {"draws": 24}


@measurement(
    title="Complexity",
    paper="redshift2024",
    result=Complexity,
    example=_example,
    checks=derivative_checks(lambda settings: ()),
    probe={"num": 4, "fresh": True},
)
def complexity(
    family: Family,
    probe: Probe,
    *,
    draws: int = 100,
    readout: str = "first",
    points: int = 64,
    scales: tuple[float, ...] = SCALES,
    seed: int = 0,
    run: Run | None = None,
) -> Complexity:
    """How often the output of a network goes up and down along a line between two inputs.

    Definition: let ``x(t) = (1 − t)·a + t·b`` be a line from one input to another, and ``c_k`` the coefficients of ``f(x(t))`` on
    ``cos(πkt)``. The complexity is ``Σ (k/2)·E c_k² / Σ E c_k²`` over ``k ≥ 1``, in cycles per line. E is over networks and lines.
    The profile is the same with all weight matrices and kernels multiplied by a number; biases, embeddings and normalisation layers
    stay as they are.

    Estimated from the values at the middles of equal parts of the line, by the DCT-II. Power is pooled over lines and draws. Intervals
    are those of a jackknife over draws. Places between the points show whether they resolve the output.

    Args:
        family: Networks and the distribution of their weights; for one network, draws are sets of inputs.
        probe: Inputs, an even number: the first half are joined to the second half.
        draws: Number of networks, at least 2.
        readout: Which scalar of several outputs.
        points: Points on a line, at least 16.
        scales: What to multiply the weights by; 1 must be among them.
        seed: Random seed for the weights.
        run: Folder, device, precision.

    Returns:
        The complexity at each scale, the spectrum and examples of lines.

    Raises:
        ValueError: If the inputs form no lines, the output does not change along them, or a setting is wrong.

    Example:
        >>> family = Family.initialised(lambda: nn.Linear(9, 1), name="linear")
        >>> result = complexity(family, Probe.gaussian((9,), num=2, fresh=True), draws=8, scales=(1.0,))
        >>> round(result.complexity.value, 3)  # 7·ζ(3) / (15·ζ(4))
        0.518

    Reference:
        Teney, Nicolicioiu, Hartmann, Abbasnejad (2024). Neural redshift: random networks are not random functions. CVPR. The lines, the
        weights by power and the unit are ours; docs/complexity.md says why.
    """
    run = run or Run()
    _require(probe, points, scales)
    names, warnings = scaled_weights(family.template), []
    tried = sorted(scales)
    if not names and len(tried) > 1:
        tried = [1.0]
        warnings.append(
            f"No weight matrix of {family.name} is known by its name, so its weights were measured at scale 1 only."
        )

    def of_lines(drawn: Drawn, x: Tensor) -> Tensor:
        return _along_lines(drawn, x, points, tried, names)

    found = draw_statistics(
        family,
        probe,
        of_lines,
        draws=draws,
        readout=readout,
        seed=seed,
        run=run,
        label=f"{family.name}: complexity",
        points=points,
        scales=tuple(tried),
        weights=tuple(names),
    ).numpy()
    spectra, largest, missed, curves = np.split(found, [points - 1, points, points + 1], axis=2)
    frequencies = np.arange(1, points) / 2
    power, moment = spectra.sum(2), spectra @ frequencies
    rounding = (_ROUNDINGS * run.rounding) ** 2 * largest[..., 0]
    own = tried.index(1.0)
    _require_change(family, power[:, own], rounding[:, own], moment[:, own], points, run)
    with np.errstate(invalid="ignore", divide="ignore"):
        added = rounding.sum(0) * points / 4  # white noise lies at a quarter of the points, in cycles
        known = np.isfinite(power).all(0) & (power.sum(0) > 0) & (added <= _MOVED * moment.sum(0))
        # Power between the points lies beyond half of them, in cycles; the cosines fold it to lower frequencies.
        between = points / 2 * missed[..., 0].sum(0) * points * (probe.num // 2) <= _MOVED * moment.sum(0)
    warnings += _doubts(family, power[:, own], rounding[:, own], bool(between[own]), np.array(tried)[~known], points)
    kept = np.flatnonzero(known)
    unit = power[:, kept].mean(0)
    return Complexity(
        np.array(tried)[kept],
        power[:, kept] / unit,
        moment[:, kept] / unit,
        between[kept],
        frequencies,
        spectra[:, own].sum(0) / power[:, own].sum(),
        np.moveaxis(_of_variance_one(curves[:_EXAMPLES, kept]), 0, 1).astype(np.float32),
        _scaled_in_words(family.template, names) if len(tried) > 1 else "Weights were not scaled.",
        provenance={"warnings": warnings},
    )


def _require(probe: Probe, points: int, scales: Sequence[float]) -> None:
    """Refuse settings and inputs that make no lines."""
    few = probe.few()
    if not is_real(few):
        what = str(few.dtype).removeprefix("torch.") if isinstance(few, Tensor) else type(few).__name__
        raise ValueError(
            f"Lines need inputs of real numbers in one tensor, got {what}. Pass embeddings in place of token ids."
        )
    if probe.num % 2:
        raise ValueError(
            f"Lines join pairs of inputs, so their number must be even, got {probe.num}. Pass --inputs {probe.num + 1}."
        )
    if points < 16:
        raise ValueError(f"points must be at least 16, got {points}. Pass points=64.")
    if 1.0 not in scales or min(scales) <= 0 or len(set(scales)) < len(scales):
        raise ValueError(
            f"scales must be different positive numbers with 1 among them, got {listed([f'{each:g}' for each in scales])}. "
            "Pass scales=(1.0, 8.0)."
        )


def _along_lines(drawn: Drawn, x: Tensor, points: int, scales: Sequence[float], names: Sequence[str]) -> Tensor:
    """Of one draw and each scale: power by frequency, size of the output, error between the points, and a curve ``(S, 2n + 1)``.

    Power is a sum over lines and points. The size is the sum of squares if each output were the largest of its line. The error is the
    mean squared one on the first line.
    """
    first, last = x.chunk(2)  # (L, …)
    grid = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    others = torch.rand(_BETWEEN, generator=drawn.generator, device=drawn.generator.device, dtype=torch.float64).cpu()

    def on(lines: slice, places: Tensor) -> Tensor:
        t = places.to(x).reshape(-1, *(1,) * (x.dim() - 1))
        begin, end = (each[lines].unsqueeze(1) for each in (first, last))
        return (begin * (1 - t) + end * t).flatten(0, 1)

    inputs = torch.cat([on(slice(None), grid), on(slice(1), others)])
    rows = []
    for scale in scales:
        params = {name: scale * tensor if name in names else tensor for name, tensor in drawn.network.params.items()}
        try:
            outputs = drawn.at(drawn.network.with_params(params))(inputs)[:, 0].cpu().numpy()
        except NotFiniteError:  # larger weights may leave the range of the precision
            if scale == 1:
                raise
            rows.append(np.full(2 * points + 1, np.nan))
            continue
        values = outputs[:-_BETWEEN].reshape(-1, points)
        centred = values - values.mean(-1, keepdims=True)
        size = points * np.square(np.abs(values).max(-1)).sum()
        error = np.square(outputs[-_BETWEEN:] - values[0].mean() - _between(centred[0], others.numpy())).mean()
        rows.append(np.concatenate([line_power(centred).sum(0), [size, error], centred[0]]))
    return torch.as_tensor(np.stack(rows))


def _require_change(
    family: Family, power: np.ndarray, rounding: np.ndarray, moment: np.ndarray, points: int, run: Run
) -> None:
    """Refuse outputs that do not change along the lines, or by less than rounding lets one see."""
    hidden = (
        rounding.sum() * points / 4 > _MOVED * moment.sum()
    )  # white noise lies at a quarter of the points, in cycles
    if power.sum() == 0 or (hidden and run.dtype == torch.float64):
        raise ValueError(
            f"{family.name} must change its output between two inputs, but it is constant along all lines. Check its last layer, which "
            "may start at zero, or measure trained weights with --weights."
        )
    if hidden:
        raise ValueError(
            f"The output of {family.name} changes too little beside its size to be measured in {run.precision}. Pass "
            "--precision float64."
        )


def _doubts(
    family: Family, power: np.ndarray, rounding: np.ndarray, resolved: bool, lost: np.ndarray, points: int
) -> list[str]:
    """What a reader must know of the numbers."""
    found = []
    if not resolved:
        found.append(
            f"The output of {family.name} changes between the {points} points of a line, so its complexity is a lower bound. Pass "
            f"--points {4 * points}."
        )
    if len(lost):
        found.append(
            f"With weights × {listed([f'{scale:g}' for scale in lost])}, outputs are too large or too small for this precision. These "
            "scales are left out. Pass --precision float64."
        )
    live = power > rounding
    if not live.all():
        found.append(
            f"The output of {(~live).sum()} of {len(live)} draws is constant along their lines, up to rounding. They do not count."
        )
    effective = float(power.sum() ** 2 / np.square(power).sum())
    if effective < min(_FEW, len(power) / 2):
        found.append(
            f"The outputs of few draws vary much more than those of others, so all {len(power)} count like {effective:.0f} equal ones. "
            "The interval may be too narrow. Pass more draws."
        )
    return found


def _of_variance_one(curves: np.ndarray) -> np.ndarray:
    """Curves ``(…, n)`` divided by the root of their mean square; constant ones stay 0."""
    size = np.sqrt(np.square(curves).mean(-1, keepdims=True))
    return np.asarray(np.divide(curves, size, out=np.zeros_like(curves), where=size > 0))
