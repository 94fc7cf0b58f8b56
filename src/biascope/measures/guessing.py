"""Guessing: how many inputs a network sends to its favourite class, before it has seen any data."""

# T draws · n inputs of each · K classes

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from biascope.derivatives.draw_statistics import Drawn, draw_statistics
from biascope.families.family import Family
from biascope.families.inputs import taken
from biascope.families.readout import called_layers
from biascope.results.atlas import Placement
from biascope.results.axes import InputAxes
from biascope.results.draw import captioned
from biascope.results.estimate import SHARE, Estimate, Number, jackknife, over, proportion
from biascope.results.registry import measurement
from biascope.results.result import Result
from biascope.results.story import Compared, Sentence, Step, Story, model_word
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SCORES = (nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # what class scores come from
_AFTER_SCORES = (nn.Identity, nn.Dropout, nn.Flatten, nn.Unflatten, nn.Softmax, nn.LogSoftmax, nn.Sigmoid)
_MANY = 100  # classes, from which on it is told how few of them hold half of the guesses
_AT_ONCE = 2**23  # outputs in memory at a time: those of a language model are many
_LEFT = 1e-13  # probability beyond which counts are left out
_RANKS = 20  # classes that a picture shows


@dataclass(frozen=True, repr=False)
class Guessing(Result):
    """The classes to which networks send inputs, and how much their outputs vary with the input.

    Attributes:
        guesses: The class of the largest output at each input.
        tied: Share of each draw's inputs at which several classes have the largest output.
        variances: Mean squared distance of each draw's outputs from their mean over inputs, unbiased.
        squares: Mean squared length of each draw's outputs.
        classes: How many there are.
        by_sign: Whether the classes are the two signs of one output.
        position: Of how many positions the last one is read; 0 where the network gives one row for each input.
    """

    guesses: np.ndarray
    tied: np.ndarray
    variances: np.ndarray
    squares: np.ndarray
    classes: int
    by_sign: bool = False
    position: int = 0

    row_of_card: ClassVar[bool] = True
    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "guesses": ("draw", "input"),
        **dict.fromkeys(("tied", "variances", "squares"), ("draw",)),
    }

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """Guesses of each draw's classes, most first, as many as there can be: ``(draw, rank)``."""
        draws, inputs = self.guesses.shape
        found = np.zeros((draws, min(inputs, self.classes)), np.int64)
        for row, guesses in zip(found, self.guesses, strict=True):
            sizes = np.sort(np.unique(guesses, return_counts=True)[1])[::-1]
            row[: len(sizes)] = sizes
        return found

    @property
    def favourites(self) -> np.ndarray:
        """Share of each draw's inputs that its favourite class gets."""
        return np.asarray(self.counts[:, 0] / self.guesses.shape[1])

    @functools.cached_property
    def unbiased(self) -> np.ndarray:
        """Probability of each number of guesses for the favourite class if there were no bias."""
        return largest_count(self.guesses.shape[1], self.classes)

    @property
    def share_without_bias(self) -> Estimate:
        """The share of inputs that the favourite class is expected to get by chance."""
        inputs = self.guesses.shape[1]
        return Estimate.exact(float(np.arange(inputs + 1) @ self.unbiased) / inputs)

    @property
    def range_without_bias(self) -> tuple[float, float]:
        """Between which shares that of one draw lies by chance, in 95 % of draws or more."""
        below, inputs = np.cumsum(self.unbiased), self.guesses.shape[1]
        low, high = (int(np.searchsorted(below, probability)) for probability in (0.025, 0.975))
        return low / inputs, high / inputs

    @property
    def favourite_share(self) -> Estimate:
        """The mean share of the favourite class."""
        return over(self.favourites, within=(1 / self.classes, 1.0))

    @property
    def draws_beyond_chance(self) -> Estimate:
        """Share of draws whose favourite class gets more than that range."""
        return proportion(float((self.favourites > self.range_without_bias[1] + 1e-9).mean()), len(self.favourites))

    @property
    def effective_classes(self) -> Estimate:
        """Over how many classes guesses spread: one over the probability that two inputs of a draw get the same class."""
        inputs = self.guesses.shape[1]
        same = (self.counts**2).sum(1) - inputs
        alike = over(same / (inputs * (inputs - 1)), within=(1 / self.classes, 1.0))
        ends = (1 / alike.high, 1 / alike.low)
        return Estimate(1 / alike.value, alike.standard_error / alike.value**2, *ends, alike.confidence)

    @property
    def classes_of_half(self) -> Estimate:
        """How few classes hold half of a draw's guesses."""
        below = np.cumsum(self.counts, axis=1)
        return over((2 * below < self.guesses.shape[1]).sum(1) + 1.0, within=(1.0, float(self.classes)))

    @property
    def varying_energy(self) -> Estimate:
        """Share of the outputs' mean square that varies with the input: near 0, all inputs have one and the same output."""
        variance, square = self.variances.sum(), self.squares.sum()
        rest = square - self.squares
        known = len(rest) > 2 and bool((rest > 0).all())
        left_out = (variance - self.variances) / rest if known else np.zeros(0)
        return jackknife(float(variance / square), left_out.tolist()).within(0.0, 1.0)

    @override
    def headline(self) -> dict[str, Number]:
        numbers = {
            "favourite_share": self.favourite_share.named("share of inputs sent to the favourite class", SHARE),
            "share_without_bias": self.share_without_bias.named("the same expected by chance, without bias", SHARE),
            "draws_beyond_chance": self.draws_beyond_chance.named(
                f"{self._draws(2)} with more than chance allows", SHARE
            ),
            "effective_classes": self.effective_classes.named(
                f"effective number of classes guessed, of {self.classes:,}"
            ),
            "varying_energy": self.varying_energy.named(
                "share of the outputs' energy that varies with the input", SHARE
            ),
        }
        if self.classes >= _MANY:
            inputs = self.guesses.shape[1]
            words = f"classes that hold half of the guesses at {inputs} inputs"
            numbers["classes_of_half"] = self.classes_of_half.named(words)
        return numbers

    @property
    def biased(self) -> bool:
        """Whether the favourite class gets more than by chance."""
        share = self.favourite_share
        return share.low > self.share_without_bias.value

    @property
    def _untrained(self) -> bool:
        return bool(self.provenance.get("family", {}).get("law") == "initialised")

    def _draws(self, count: int) -> str:
        one, many = ("set of inputs", "sets of inputs") if self.at_given_weights else ("draw", "draws")
        return one if count == 1 else many

    @override
    def placements(self) -> list[Placement]:
        chance = self.share_without_bias.value
        return [Placement("favourite_share", self.favourite_share, self.input_axes, chance)]

    @override
    def sentence(self) -> str:
        return " ".join(text for text, _ in self._sentences()[:2])

    def _sentences(self) -> list[Sentence]:
        share, chance, (low, high) = self.favourite_share, self.share_without_bias.value, self.range_without_bias
        told = _percent(share.value)
        if math.isfinite(share.low):
            told += f" (95 % CI {_percent(share.low, share.high)})"
        which = "the favourite sign of its one output" if self.by_sign else f"its favourite of {self.classes:,} classes"
        start = "Before training, " if self._untrained else ""
        by_chance = f"By chance it would be {_percent(chance)} ({_percent(low, high)} in 95 % of {self._draws(2)})."
        first = f"{start}{self.subject} sends {told} of inputs to {which}. {by_chance}"
        if not self.biased:
            second = "So it favours no class by more than chance."
        elif self._untrained:
            second = "So on balanced data like these inputs, its first errors fall unequally on the classes."
        else:
            second = "So at inputs like these, it prefers one answer."
        found = [Sentence(first, "favourite_share"), Sentence(second, "favourite_share")]
        varying = self.varying_energy
        if varying.high < 0.5:
            found.append(
                Sentence(f"Only {_percent(varying.value)} of the energy of its outputs varies with the input.")
            )
        return found

    @override
    def story(self) -> Story:
        read = f" Of {self.position} positions, the last one is read." if self.position else ""
        where = f"Measured at {self.provenance.get('probe', 'the inputs')}.{read} A guess is the class of the largest output."
        steps: tuple[Step, ...] = ()
        meaning = (
            "No label is used. At inputs without a signal, a large share says what the network answers where it has nothing to go "
            "by. It does not say how accurate the network is."
        )
        if self._untrained:
            meaning = (
                "A large share comes from the architecture and its initial law, since no network has seen a label. The favourite "
                "class may be another one in each draw. It does not say that training ends with this class."
            )
            command = f"biascope measure guessing {model_word(self.subject, self.provenance.get('command', ''))} --weights FILE"
            steps = (Step("Measure trained weights, to see what training left of it.", command),)
        shown = {"favourites": {"name": "class", "share": "share of guesses"}} if self.tables() else {}
        inputs = f"{self.guesses.shape[1]} inputs, {self.classes:,} classes"
        more = "more inputs get the same answer"
        beside = Compared.first_number(
            self, "the share of the favourite class", more, unit=f"of {inputs}", alike=inputs
        )
        return Story(self._sentences(), f"{where} {meaning}", steps, shown_tables=shown, compared=beside)

    @override
    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """The favourite classes of one network, over all its inputs; those of other draws have nothing to do with one another."""
        if not self.at_given_weights:
            return {}
        classes, counts = np.unique(self.guesses, return_counts=True)
        first = np.argsort(-counts, kind="stable")[:10]
        rows = [(int(classes[at]), float(counts[at]) / self.guesses.size) for at in first]
        return {"favourites": [{"class": at, "name": self._class_name(at), "share": share} for at, share in rows]}

    def _class_name(self, label: int) -> str:
        return ("negative", "positive")[label] if self.by_sign else self.class_name(label)

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        return {
            "favourite_share": captioned("Share of inputs that the favourite class gets", self._histogram(dark)),
            "share_by_rank": captioned("Share of each class, from a draw's first favourite on", self._by_rank(dark)),
        }

    def _histogram(self, dark: bool) -> Figure:
        from biascope.results import draw

        inputs = self.guesses.shape[1]
        reading = f"Each count is a {self._draws(1)}. The line is what {inputs} guesses without bias would give."
        figure, colours = draw.blank(3.1, reading), draw.PALETTE[dark]
        axes = draw.panel(figure, dark)
        width = max(1, math.ceil(inputs * (1 - 1 / self.classes) / 30))
        edges = np.arange(math.ceil(inputs / self.classes), inputs + width + 1, width) - 0.5
        axes.hist(100 * self.favourites, 100 * edges / inputs, color=colours.lines[0], label="measured")
        expected = len(self.favourites) * np.histogram(np.arange(inputs + 1), edges, weights=self.unbiased)[0]
        axes.stairs(expected, 100 * edges / inputs, color=colours.lines[1], linewidth=1.6, label="without bias")
        axes.set(xlabel="share of the favourite class in %", ylabel=self._draws(2), xlim=(None, 100.5))
        draw.legend_below(figure, axes, dark)
        return figure

    def _by_rank(self, dark: bool) -> Figure:
        from biascope.results import draw

        reading = (
            f"Bars are means over {self._draws(2)}, each sorted by its own guesses. The dotted line is an even spread."
        )
        figure, colours = draw.blank(2.7, reading), draw.PALETTE[dark]
        axes = draw.panel(figure, dark)
        shares = 100 * self.counts[:, :_RANKS].mean(0) / self.guesses.shape[1]
        ranks = np.arange(1, len(shares) + 1)
        axes.bar(ranks, shares, color=colours.lines[0])
        axes.axhline(100 / self.classes, linestyle=":", color=colours.muted)
        axes.set_xticks(ranks[:: math.ceil(len(ranks) / 10)])
        axes.set(xlabel="class, by its guesses", ylabel="share in %", ylim=(0, None))
        return figure


def _percent(*shares: float) -> str:
    """A share, or a range of two, with as many digits as the smaller one needs.

    Example:
        >>> _percent(0.456), _percent(0.0189, 0.0231), _percent(0.0)
        ('46 %', '1.9 to 2.3 %', 'less than 0.1 %')
    """
    if max(shares) < 0.001:
        return "less than 0.1 %"
    digits = 0 if min(shares) >= 0.1 else 1
    return f"{' to '.join(f'{100 * share:.{digits}f}' for share in shares)} %"


def largest_count(inputs: int, classes: int) -> np.ndarray:
    """The law of the largest number of guesses for one class, if each input gets each class with the same probability.

    A multinomial law is one of independent Poisson numbers, given their sum. So the probability that none of them exceeds m is a
    coefficient of the power of a truncated Poisson law, which a Fourier transform gives.

    Args:
        inputs: How many guesses, n.
        classes: How many classes, K.

    Returns:
        The probability of each largest number from 0 to n.

    Example:
        >>> largest_count(3, 2).tolist() == [0, 0, 0.75, 0.25]  # of eight ways, two are all heads or all tails
        True
    """
    rate, length = inputs / classes, 5 * inputs + 200  # sums beyond that length, which would fold back, do not happen
    logarithms = np.array([math.lgamma(count + 1) for count in range(inputs + 1)])
    of_one = np.exp(np.arange(inputs + 1) * math.log(rate) - rate - logarithms)
    of_sum = math.exp(inputs * math.log(inputs) - inputs - logarithms[inputs])
    below = np.ones(inputs + 1)
    below[: math.ceil(rate)] = 0.0
    for most in range(math.ceil(rate), inputs):
        waves = np.fft.rfft(of_one[: most + 1], length)
        below[most] = np.fft.irfft(waves**classes, length)[inputs] / of_sum
        if 1 - below[most] < _LEFT:
            break
    found = np.diff(np.clip(below, 0.0, 1.0), prepend=0.0).clip(0.0)
    return np.asarray(np.round(found / found.sum(), 12))


def suits(axes: InputAxes) -> bool:
    """Whether it is a row of the card for such inputs: for all. What it needs are outputs that are classes, see :func:`classes_of`."""
    return bool(axes.shape)


def gives_features(family: Family, x: Any, run: Run | None = None) -> bool:
    """Whether a network ends in a layer whose outputs are features, not class scores, such as a norm, an activation or a pooling.

    Args:
        family: The networks.
        x: A few inputs.
        run: Device and precision; float32 on the CPU by default.
    """
    called = called_layers(family.template.module, lambda: family.first_outputs(x, run))
    last = next((layer for layer in reversed(called) if not isinstance(layer, _AFTER_SCORES)), None)
    if last is None or isinstance(last, _SCORES):
        return False
    return type(last).__module__.startswith("torch.nn.") or "norm" in type(last).__name__.lower()


@dataclass(frozen=True)
class Classes:
    """The outputs of a network as classes.

    Attributes:
        count: How many, at least 2.
        outputs: How many numbers tell them: one does by its sign.
        positions: Of how many positions the last one is read; 0 where there are none.
    """

    count: int
    outputs: int
    positions: int


def classes_of(shape: tuple[int, ...], axes: InputAxes) -> Classes | None:
    """The outputs for one input as classes; ``None`` where they are no vector of logits.

    Of a row for each step or token of the input, the last one counts, so that guesses at different inputs are independent.

    Args:
        shape: Of the outputs for one input.
        axes: Of the inputs.

    Example:
        >>> from biascope.results.axes import Axis
        >>> steps = InputAxes.of([Axis("time"), Axis("feature")], (20, 3))
        >>> classes_of((10,), steps), classes_of((20, 10), steps).positions, classes_of((10, 20), steps)
        (Classes(count=10, outputs=10, positions=0), 20, None)
        >>> classes_of((), steps)
        Classes(count=2, outputs=1, positions=0)
    """
    if rows := axes.rows_in(shape):
        return Classes(max(2, shape[1]), shape[1], rows)
    longer = [length for length in shape if length > 1]
    if len(longer) > 1:
        return None
    outputs = longer[0] if longer else 1
    return Classes(max(2, outputs), outputs, 0)


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    family = Family.initialised(lambda: nn.Sequential(nn.Linear(8, 30), nn.ReLU(), nn.Linear(30, 4)), name="small MLP")
    return (family, Probe.gaussian((8,), num=20, fresh=True)), {"draws": 12}


@measurement(
    title="Guessing bias",
    paper="guessing2024",
    result=Guessing,
    example=_example,
    network={"outputs": 10},
    probe={"num": 50, "fresh": True},
)
def guessing(
    family: Family,
    probe: Probe,
    *,
    draws: int = 100,
    seed: int = 0,
    run: Run | None = None,
) -> Guessing:
    """How many inputs a network sends to its favourite class, over draws of its weights, beside what chance would give.

    Definition:
        ``E_θ max_c #{i : argmax f_θ(xᵢ) = c} / n`` for n inputs, all outputs being logits; the classes of a single output are its
        signs. Without bias, the largest number is that of a multinomial law with n trials and even probabilities. The effective
        number of classes is ``1 / E_θ Σ_c p_c²``. The share of energy that varies is ``E ‖f − E_x f‖² / E ‖f‖²``; by intent it
        depends on an offset.

    Estimated by means over draws with Student's intervals. ``Σ p²`` and the variance are unbiased at any number of inputs. The
    ratio has a jackknife interval. Draws are the independent samples; for one network, they are sets of inputs. Where several
    classes have the largest output, one of them is drawn.

    Args:
        family: Networks and the law of their weights.
        probe: Inputs of each draw, at least 2, best sampled afresh.
        draws: Number of networks (of input sets, for one network), at least 2.
        seed: Random seed for the weights, and for ties.
        run: Folder, device, precision.

    Returns:
        The guesses, and how much outputs vary.

    Raises:
        ValueError: If outputs are no vector of logits, all of them tie, or there are too few inputs or draws.

    Example:
        >>> family = Family.initialised(lambda: nn.Linear(9, 2, bias=False), name="linear")  # a plane through 0: even halves
        >>> result = guessing(family, Probe.gaussian((9,), num=50, fresh=True), draws=200)
        >>> result.favourite_share.contains(result.share_without_bias.value), round(result.share_without_bias.value, 3)
        (True, 0.556)

    Reference:
        Francazi, Lucchi, Baity-Jesi (2024). Initial guessing bias: how untrained networks favor some classes. ICML.
    """
    run = run or Run()
    if probe.num < 2:
        raise ValueError(
            f"The probe must have at least 2 inputs per network, got {probe.num}. Pass --inputs 50 --fresh."
        )
    few = probe.few(run)
    shape = tuple(family.first_outputs(few, run).shape[1:])
    axes = InputAxes.of(family.axes_at(few, run), probe.input_shape)
    found = classes_of(shape, axes)
    if found is None:
        raise ValueError(
            f"{family.name} must give a vector of logits for each input, or one for each of its steps, got outputs of shape "
            f"{'×'.join(map(str, shape))}. Wrap it to return the logits of one answer."
        )
    statistic = functools.partial(_statistic, classes=found, inputs=probe.num)
    numbers = draw_statistics(
        family, probe, statistic, draws=draws, readout=None, seed=seed, run=run, label=f"{family.name}: guesses"
    ).numpy()
    guesses, (tied, variances, squares, least) = numbers[:, 4:].astype(np.int32), numbers[:, :4].T
    if not (tied < 1).any():
        raise ValueError(
            f"{family.name} must favour a class somewhere, but at every input several classes have the largest output, as with a "
            "last layer of zeros. Initialise that layer."
        )
    result = Guessing(guesses, tied, variances, squares, found.count, found.outputs == 1, found.positions)
    if gives_features(family, few, run):
        result = result.warned(
            "The network ends in no linear layer. If its outputs are features, these are no guesses of classes."
        )
    return _warned(result, least)


def _warned(result: Guessing, least: np.ndarray) -> Guessing:
    """The result with what a reader must know of its outputs."""
    if (some := float(result.tied.mean())) > 0:
        words = f"At {_percent(some)} of inputs, several classes have the largest output."
        result = result.warned(f"{words} One of them is drawn.")
    if dead := int((result.squares == 0).sum()):
        result = result.warned(
            f"{dead} of {len(result.squares)} draws give zero at every input. Their guesses are drawn."
        )
    if result.by_sign and bool((least > 0).all()):
        result = result.warned(
            "The one output is positive at every input. If it is a probability, its classes meet at one half and not at zero. "
            "Leave the last sigmoid out."
        )
    return result


def _statistic(drawn: Drawn, x: Any, *, classes: Classes, inputs: int) -> Tensor:
    """Ties, variance, mean square and least output of a draw, and the class of each of its inputs."""
    rows, width = max(1, _AT_ONCE // (classes.outputs * max(1, classes.positions))), classes.outputs
    guesses, tied, least = [], 0, math.inf
    first = None
    # Sums about the first output: those of squares would lose a variance that is small beside the mean.
    total = torch.zeros((), dtype=torch.float64)
    length, square = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for start in range(0, inputs, rows):
        outputs = drawn(taken(x, slice(start, start + rows)))[:, -width:]  # of several positions the last
        first = outputs[:1] if first is None else first
        apart = outputs - first
        total, length, square = total + apart.sum(0), length + apart.square().sum(), square + outputs.square().sum()
        least = min(least, float(outputs.min()))
        logits = torch.cat([torch.zeros_like(outputs), outputs], 1) if width == 1 else outputs
        largest = logits == logits.amax(1, keepdim=True)
        several = largest.sum(1) > 1
        chosen = logits.argmax(1)
        if bool(several.any()):
            among = largest[several].double()
            chosen[several] = torch.multinomial(among, 1, generator=drawn.generator).squeeze(1)
        tied += int(several.sum())
        guesses.append(chosen)
    variance = (length - total.square().sum() / inputs) / (inputs - 1)
    told = [tied / inputs, float(variance), float(square) / inputs, least]
    return torch.cat([torch.tensor(told, dtype=torch.float64), torch.cat(guesses).double().cpu()])
