"""HOW: what pattern networks could learn, and what gradient descent does with two points.

Networks that fit any labels of inputs made of spurious patterns, and so overfit, exist (theorem 5.1, remark E.1); gradient
descent on two points with the same spurious patterns hardly looks at these (theorem 7.1). Patterns are numbered from 0: places
0 and 1 mark the labels +1 and −1, and in the distribution of pairs, places 2j and 2j + 1 are the j-th pair of spurious patterns.

Reference:
    On the inductive bias of a CNN for distributions with orthogonal patterns (2021), sections 5, 7, A, B, E and F.
"""

# r runs · 2k channels · P patterns · n patterns of an input · t points to be shattered

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from biascope.runs.randomness import generator_for
from biascope.runs.run import Run
from biascope.tasks.pattern_ratios import detection, detection_ratios, network_outputs
from biascope.tasks.patterns import PatternSamples

_SMALL = 1e-6  # initial standard deviation over the step, by default


def vc_dimension_bounds(per_input: int, patterns: int) -> tuple[int, int]:
    """Bounds on the VC dimension of networks of any width on inputs of n out of P patterns: ``2^{min(n, P−n)−1}, C(P, n)``.

    Above, there are no more inputs up to order, and order does not matter (section A). Below, at P = 2n, theorem 5.1 shatters
    ``2^{n−1} = 2^{P/2−1}`` inputs. More patterns change nothing; with fewer, let ``2n − P`` spurious ones be in every input and no
    channel respond to them, which leaves P − n − 1 pairs.

    Raises:
        ValueError: If an input has fewer than 2 patterns, or all.

    Example:
        >>> vc_dimension_bounds(10, 20)
        (512, 184756)
    """
    if not 2 <= per_input < patterns:
        raise ValueError(
            f"per_input must be at least 2 and below the number of patterns, {patterns}, got {per_input}. Pass half as many."
        )
    return 2 ** (min(per_input, patterns - per_input) - 1), math.comb(patterns, per_input)


def shattered_points(per_input: int, *, mark: int = 0) -> Tensor:
    """The set that theorem 5.1 shatters: one of each pair of spurious patterns, and p_1 or p_2, which plays no role.

    Args:
        per_input: n.
        mark: The place 0 or 1 that stands last in all of them.

    Returns:
        Places ``(2^{n−1}, n)``; bit j − 1 of a point's number says whether it has the first of the j-th pair.

    Example:
        >>> shattered_points(3).tolist()
        [[3, 5, 0], [2, 5, 0], [3, 4, 0], [2, 4, 0]]
    """
    pairs = torch.arange(1, per_input)
    bits = torch.arange(2 ** (per_input - 1))[:, None] >> (pairs - 1) & 1
    return torch.cat([2 * pairs + 1 - bits, torch.full((len(bits), 1), mark)], 1)


def shattering_network(places: Tensor, labels: Tensor) -> Tensor:
    """A network with ``N(x_I) = y_I`` for any labels of t points whose spurious patterns differ (theorem 5.1).

    For each point there is a channel ``α_I Σ_j p_{Ī[j]}`` on the patterns that the point does *not* have, one of each pair: w where
    α_I is positive, u with −α_I where it is negative. Any other point has one of these patterns at least, so the channel is
    silent on its own point alone, and ``N(x_I) = S − α_I`` with ``S = Σ α``. Summed over the points, ``(t − 1)S = Σ y``: so
    ``α_I = Σy/(t − 1) − y_I``. With all 2^{n−1} points this is the paper's system ``(J − I)α = y``, there numbered by complements;
    for fewer points 2t channels are enough. The network ignores p_1 and p_2, so ``M⁺_w(1) = M⁻_u(2) = 0``, and PSI fails for all b, c.

    Args:
        places: ``(t, n)``, each with p_1 or p_2 and one of each pair, in any order.
        labels: ``(…, t)``, any numbers.

    Returns:
        Responses ``(…, 2t, 2n)`` in float64, first the w, then the u.

    Raises:
        ValueError: If there are fewer than two points, one is not from the distribution of pairs, or two have the same spurious
            patterns.

    Example:
        >>> points = shattered_points(3)
        >>> labels = torch.tensor([1.0, -1.0, -1.0, 1.0])
        >>> network_outputs(shattering_network(points, labels), points).tolist()
        [1.0, -1.0, -1.0, 1.0]
    """
    parts = _spurious_parts(places)
    count, different = len(parts), len(torch.unique(parts, dim=0))
    if count < 2 or different < count:
        raise ValueError(
            f"places must be of at least 2 points, all with different spurious patterns, got {count} points of which {different} "
            "differ. Leave out those that differ in p_1 and p_2 alone."
        )
    labels = labels.double()
    heights = labels.sum(-1, keepdim=True) / (count - 1) - labels  # (…, t)
    absent = torch.zeros(count, 2 * places.shape[1], dtype=torch.float64, device=places.device)
    absent.scatter_(1, parts ^ 1, 1.0)  # the other one of each pair
    return torch.cat([heights.clamp_min(0), (-heights).clamp_min(0)], -1)[..., None] * absent.repeat(2, 1)


class Overfit(NamedTuple):
    """A network that learned its training set by heart: its responses, and its share of errors on both sets."""

    responses: Tensor
    train_error: float
    test_error: float


def overfitting_network(train: PatternSamples, test: PatternSamples) -> Overfit:
    """Zero training error and the largest test error that networks blind to p_1 and p_2 can have with it (remark E.1).

    It fits the training labels, and wrong ones on spurious parts that only test points have. A test point is then wrong unless it
    is in the training set itself: one with the spurious part of a training point but the other label is wrong too. Remark: the
    paper says that the support of the distribution of pairs is the shattered set. It is twice as large, each spurious part with
    both labels; where a training set has a part with both, one of them is wrong, and where only the test set has, one is right.

    Args:
        train: From the distribution of pairs, one set of samples.
        test: Likewise.

    Returns:
        The network, with two channels for each spurious part, and its errors, the outputs compared with the labels.

    Example:
        >>> points, ones = shattered_points(4), torch.ones(8, dtype=torch.int64)
        >>> train, test = PatternSamples(points[:5], ones[:5], 8), PatternSamples(points[5:], ones[5:], 8)
        >>> overfitting_network(train, test)[1:]
        (0.0, 1.0)
    """
    parts, index = torch.unique(_spurious_parts(torch.cat([train.places, test.places])), dim=0, return_inverse=True)
    old, new = index.split([len(train.labels), len(test.labels)])
    # A part that was trained on keeps the label it was trained with; of one with both labels, one is wrong.
    votes = torch.cat([train.labels, torch.where(torch.isin(new, old), 0, -test.labels)])
    wanted = torch.zeros(len(parts), device=votes.device).to(votes).index_add(0, index, votes)
    points = torch.cat([torch.zeros_like(parts[:, :1]), parts], 1)
    responses = shattering_network(points, torch.where(wanted < 0, -1, 1))
    wrong = [network_outputs(responses, each.places) * each.labels <= 0 for each in (train, test)]
    return Overfit(responses, *(float(each.double().mean()) for each in wrong))


@dataclass(frozen=True)
class TwoPoints:
    """Gradient descent on ``(x⁺, 1), (x⁻, −1)`` with the same spurious patterns, run r times: lemmas F.1–F.6 and theorem 7.1.

    Pairs are of w and x⁺, and of u and x⁻, in this order. Counts are at initialisation, as shares of the k channels of a group.

    Attributes:
        width: k.
        per_input: n.
        rate: c_η, the rate times k.
        alive: ``|A_w|/k`` and ``|A_u|/k``, channels that answer their own point, ``(r, 2)``; expected is 1 − 2⁻ⁿ (F.1).
        facing: Channels with a positive response to their own label's pattern, ``(r, 2)``; 1/2.
        detectors: ``|W⁺(i)|/k`` of p_1 and the spurious patterns, ``|U⁻(i)|/k`` of p_2 and these, ``(r, 2, n)``; γ (F.2).
        crossed: ``|W⁺(i) ∩ W⁻(2)|/k`` of p_1 and the spurious, ``|U⁻(i) ∩ U⁺(1)|/k`` of p_2 and these, ``(r, 2, n)`` (F.3).
        start: Largest initial response over the step η, ``(r,)`` (F.4).
        followed: Share of channels that have moved as F.5 says when the first point reaches its margin, ``(r,)``.
        reached: Steps until ``N(x⁺) ≥ 1`` and ``−N(x⁻) ≥ 1`` for the first time, t⁺ and t⁻, ``(r, 2)``; −1: not reached.
        steps: Steps until both are so at once, T, and the loss is zero, ``(r,)``; −1: not reached (F.6).
        largest: Largest of all detection ratios in the end, ``(r,)``.
    """

    width: int
    per_input: int
    rate: float
    alive: Tensor
    facing: Tensor
    detectors: Tensor
    crossed: Tensor
    start: Tensor
    followed: Tensor
    reached: Tensor
    steps: Tensor
    largest: Tensor

    @property
    def gamma(self) -> float:
        """``γ = (1 − 2⁻ⁿ)/n``, expected of every entry of ``detectors``."""
        return (1 - 2.0**-self.per_input) / self.per_input

    @property
    def expected_crossed(self) -> tuple[float, float]:
        """What is expected of ``crossed`` summed over all i, ``γ − 2^{−n−1}``, and of each spurious one (F.3, corrected).

        The first is p_2 detected, less the case that it alone is positive. The second, ``(1 − (n + 2)2^{−n−1})/(n(n + 1))``, is p_2
        the largest of n + 1, the spurious one the second, and at least two positive.
        """
        size, half = self.per_input, 2.0 ** (-self.per_input - 1)
        return self.gamma - half, (1 - (size + 2) * half) / (size * (size + 1))

    @property
    def step_bounds(self) -> tuple[float, float]:
        """``1/(c_η γ)`` and ``3/(c_η γ)``, between which T is to be (F.6)."""
        return 1 / (self.rate * self.gamma), 3 / (self.rate * self.gamma)

    @property
    def bound(self) -> float:
        """``c/√m = 3c_η``, what PSI with b = 1, c = √18·c_η allows every ratio: m is 2 and no spurious pattern leans."""
        return 3 * self.rate

    @property
    def limit(self) -> Tensor:
        """What ``largest`` tends to as c_η goes to 0 at a fixed width, ``(r,)``: no longer below 3c_η, but of order ``1/√(nk)``.

        Let ``a = |W⁺(1)|/k > b = |U⁻(2)|/k``. Then x⁺ reaches its margin first, x⁻ being at b/a, and from there on it counts in a share
        θ of the steps only, such that N(x⁺) stays at 1. In the others x⁻ is alone: each w loses its spurious patterns for good, so
        that all with ``w·p_1 > 0``, a share h, now grow with x⁺; and every u that detects one, ``B = Σ_i |U⁻(i)|/k``, grows. With V
        the sum of their responses, in units of c_η/2 a step: N(x⁺) gains ``hθ − B(1 − θ) = 0``, V gains ``v = B(1 − θ) = hB/(h + B)``,
        −N(x⁻) gains b + v until it is 1. In the end ``V = (1 − b/a)v/(b + v)``, shared as |U⁻(i)|/B, and ``M⁺_w(1) = 1 + V``.
        As 1 − b/a is of order √(2n/k), the theorem needs k of order ``1/(n c_η²)`` or more.
        """
        marks = self.detectors[..., 0]
        fast, slow = marks.max(1), marks.min(1)
        rows = torch.arange(len(marks), device=marks.device)
        spurious = self.detectors[rows, slow.indices, 1:]  # of the slower point's group
        total, facing = spurious.sum(1), self.facing[rows, fast.indices]
        speed = facing * total / (facing + total)
        grown = (1 - slow.values / fast.values) * speed / (slow.values + speed)
        return grown * spurious.amax(1) / total / (1 + grown)

    @property
    def converged(self) -> Tensor:
        """Whether the loss became zero, ``(r,)``."""
        return self.steps >= 0

    @property
    def together(self) -> Tensor:
        """Whether ``t⁺ = t⁻``, as the proof of F.6 wants, ``(r,)``."""
        return (self.reached[:, 0] == self.reached[:, 1]) & (self.reached[:, 0] >= 0)

    @property
    def holds(self) -> Tensor:
        """Whether PSI holds with b = 1 and c = √18·c_η, ``(r,)``."""
        return self.largest <= self.bound


def two_points(
    *,
    width: int,
    per_input: int,
    rate: float,
    patterns: int | None = None,
    std: float | None = None,
    runs: int = 20,
    most_steps: int | None = None,
    seed: int,
    run: Run | None = None,
) -> TwoPoints:
    """Theorem 7.1, simulated: full-batch gradient descent on the hinge loss of two points, with rate η = c_η/k.

    Each step adds η/2 of a pattern to a channel or takes it away: a w gains the pattern it detects in x⁺ and loses the one in x⁻, a
    point counting while its margin is below 1; for u the points change roles. While both points count and every channel gains
    p_1 (w), p_2 (u) or nothing, all is linear in time, and the steps up to the next margin are taken at once.

    Args:
        width: k, half the number of channels.
        per_input: n ≥ 2; the points have n − 1 spurious patterns.
        rate: c_η.
        patterns: P > n, of which n + 1 occur; 2n by default.
        std: σ_g, of the initial weights; by default a millionth of the step η, which the theorem wants much smaller.
        runs: r, independent initialisations.
        most_steps: When to give up; by default at 10 times the theorem's bound.
        seed: For the initialisations.
        run: Where.

    Raises:
        ValueError: If a setting is out of its range.

    Example:
        >>> found = two_points(width=4000, per_input=3, rate=0.05, runs=4, seed=0, run=Run(device="cpu"))
        >>> bool(found.converged.all()), bool(found.holds.all()), round(float(found.detectors.mean() / found.gamma), 1)
        (True, True, 1.0)
    """
    patterns = 2 * per_input if patterns is None else patterns
    if width < 1 or runs < 1 or rate <= 0 or not 2 <= per_input < patterns:
        raise ValueError(
            f"width and runs must be at least 1, rate above 0 and per_input from 2 to below patterns, got {width}, {runs}, {rate:g}, "
            f"{per_input} and {patterns}. Pass width=1000, runs=20, rate=0.01, per_input=5, patterns=10."
        )
    half = rate / width / 2
    std = 2 * half * _SMALL if std is None else std
    device = (run or Run()).torch_device
    shape, generator = (patterns, runs, 2, width), generator_for(device, seed, "two points")
    table = std * torch.randn(shape, generator=generator, dtype=torch.float64, device=device)
    # Of u the first two patterns have changed places, so that both groups begin with their own label's and are treated alike.
    start, first = table[: per_input + 1].clone(), _answers(table[: per_input + 1])
    last, reached, steps, followed = _descended(start, half, most_steps or math.ceil(30 * per_input / rate))
    table[: per_input + 1] = last
    table[:2, :, 1] = table[:2, :, 1].flip(0)
    ratios = detection_ratios(detection(table.permute(1, 2, 3, 0).flatten(1, 2)))
    places = torch.arange(per_input + 1, device=table.device)
    own = torch.where(first.own > 0, first.own_place, -1)[..., None] == places  # (r, 2, k, n + 1)
    crossed = own & ((first.other_place == 1) & (first.other > 0))[..., None]
    return TwoPoints(
        width=width,
        per_input=per_input,
        rate=rate,
        alive=(first.own > 0).double().mean(-1),
        facing=(start[0] > 0).double().mean(-1),
        detectors=own.double().mean(-2)[..., places != 1],
        crossed=crossed.double().mean(-2)[..., places != 1],
        start=start.abs().amax((0, 2, 3)) / (2 * half),
        followed=followed,
        reached=reached,
        steps=steps,
        largest=torch.stack([side.nan_to_num(0.0, math.inf).amax(-1) for side in ratios]).amax(0),
    )


def _spurious_parts(places: Tensor) -> Tensor:
    """The spurious patterns of points from the distribution of pairs, in the order of the pairs, ``(t, n − 1)``."""
    ordered = places.sort(1).values
    if not bool((ordered // 2 == torch.arange(places.shape[1], device=places.device)).all()):
        raise ValueError(
            f"places must hold p_1 or p_2 and one of each of {places.shape[1] - 1} pairs of spurious patterns, got points without. "
            "Draw them from the paired distribution."
        )
    return ordered[:, 1:]


class _Answers(NamedTuple):
    """Of each channel, ``(r, 2, k)``: its answer to the point of its own label, to the other one, and the patterns behind them."""

    own: Tensor
    own_place: Tensor
    other: Tensor
    other_place: Tensor


def _answers(table: Tensor) -> _Answers:
    """What channels answer, from their responses to the own label's pattern, the other one's and the spurious, ``(n + 1, r, 2, k)``."""
    spurious = table[2:].max(0)
    parts: list[Tensor] = []
    for mark in range(2):
        parts.append(torch.maximum(table[mark], spurious.values).clamp_min(0))
        parts.append(torch.where(table[mark] >= spurious.values, mark, spurious.indices + 2))
    return _Answers(*parts)


def _descended(start: Tensor, half: float, most_steps: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradient descent until the loss is zero: the last table, t⁺ and t⁻, T, and the share of channels that followed F.5."""
    table, last, runs = start.clone(), torch.empty_like(start), start.shape[1]
    going = torch.arange(runs, device=start.device)  # runs that still have a loss; table holds these alone
    time = torch.zeros(runs, dtype=torch.int64, device=start.device)
    reached, steps = torch.full((runs, 2), -1).to(time), torch.full((runs,), -1).to(time)
    followed = torch.full((runs,), math.nan, dtype=torch.float64, device=start.device)
    while len(going):
        answers = _answers(table)
        margins = answers.own.sum(-1) - answers.other.sum(-1).flip(1)  # (runs, 2): of x⁺ and of x⁻
        active = margins < 1
        new = ~active & (reached[going] < 0)
        for each in torch.nonzero(new.any(1) & (reached[going] < 0).all(1)).flatten().tolist():
            at = int(going[each])
            followed[at] = _followed(table[:, each], start[:, at], half, int(time[at]))
        reached[going] = torch.where(new, time[going, None], reached[going])
        fitted, late = ~active.any(1), time[going] >= most_steps
        if bool((fitted | late).any()):
            steps[going[fitted]] = time[going[fitted]]
            last[:, going[fitted | late]] = table[:, fitted | late]
            going, table = going[~(fitted | late)], table[:, ~(fitted | late)]
            continue
        gain = (answers.own > 0) & active[..., None]
        loss = (answers.other > 0) & active.flip(1)[..., None]
        idle = gain & loss & (answers.own_place == answers.other_place)  # what both points say cancels
        gain, loss = gain & ~idle, loss & ~idle
        # Nothing but the labels' own patterns grows, and nothing falls: so it will go on until a margin is reached.
        settled = active.all(1) & (~loss & ~(gain & (answers.own_place > 0))).flatten(1).all(1)
        ahead = ((1 - margins) / (half * gain.sum(-1).double())).amin(1).clamp(1, most_steps).long()
        count = torch.where(settled, ahead, 1)  # (runs,)
        size = half * count.double()[:, None, None]
        table.scatter_add_(0, answers.own_place[None], (size * gain)[None])
        table.scatter_add_(0, answers.other_place[None], (-size * loss)[None])
        time[going] += count
    return last, reached, steps, followed


def _followed(table: Tensor, start: Tensor, half: float, time: int) -> float:
    """The share of channels of one run, ``(n + 1, 2, k)``, that have moved as lemma F.5 says, in units of η/2."""
    moved, first = ((table - start) / half).round(), _answers(start[:, None])
    own, place, other = first.own[0] > 0, first.own_place[0], (first.other > 0)[0] & (first.other_place[0] == 1)
    mine, crossed = own & (place == 0), own & (place > 1) & other
    expected = torch.zeros_like(moved)
    expected[0] = time * mine  # part 2: grows in every step
    once = crossed.to(moved)
    expected[1] -= once  # part 4: the other label's pattern is exchanged for a spurious one
    expected.scatter_add_(0, place[None], once[None])
    may_fall = mine.expand_as(moved).clone()  # part 2: any other pattern once
    may_fall[0], may_fall[1] = False, mine | ~own  # part 1: the other label's pattern
    difference = moved - expected  # part 3: nothing else moves
    follows = (difference == 0) | (may_fall & (difference == -1))
    return float(follows.all(0).double().mean())
