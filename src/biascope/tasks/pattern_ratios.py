"""The patterns that the channels of a network detect, how strongly, and what pattern statistics allow (PSI).

A network ``N(x) = Σ_j v_j max_l σ(w_j·x[l])`` sees inputs made of orthonormal patterns, of which p_1 (place 0) marks the label +1,
p_2 (place 1) marks −1, and the rest are spurious. All that matters of a channel are its responses ``w_j·p_i``.

Reference:
    On the inductive bias of a CNN for distributions with orthogonal patterns (2021), sections 3, 4, 6, D and E.
"""

# … runs · 2k channels · P patterns · m samples · n patterns of an input

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from biascope.runs.ambient import under_torch_defaults


class Labelled(Protocol):
    """Samples reduced to their patterns and labels."""

    @property
    def contains(self) -> Tensor:
        """Whether a sample contains a pattern, ``(…, m, P)``."""

    @property
    def labels(self) -> Tensor:
        """+1 or −1, ``(…, m)``."""


class Sides(NamedTuple):
    """One number for each pattern as a positive input sees it, and as a negative one does.

    Attributes:
        positive: ``(…, P)``, nan at place 1, since no positive input contains p_2.
        negative: ``(…, P)``, nan at place 0.
    """

    positive: Tensor
    negative: Tensor


@dataclass(frozen=True)
class Detection:
    """What every channel detects, and how strongly a network detects every pattern.

    A channel detects p_i among the patterns of positive inputs (p_1 and the spurious ones) if its response to p_i is the largest
    there, and positive; among those of negative inputs (p_2 and the spurious ones) likewise.

    Attributes:
        positive: The pattern that a channel detects in positive inputs, ``(…, 2k)``; −1 if none.
        negative: The same in negative inputs.
        plus_w: ``M⁺_w(i)``, the sum of responses to p_i of its detectors of output weight +1 in positive inputs, ``(…, P)``.
        plus_u: ``M⁺_u(i)``, of those of output weight −1.
        minus_w: ``M⁻_w(i)``, in negative inputs.
        minus_u: ``M⁻_u(i)``.
    """

    positive: Tensor
    negative: Tensor
    plus_w: Tensor
    plus_u: Tensor
    minus_w: Tensor
    minus_u: Tensor


@dataclass(frozen=True)
class Certificate:
    """Lower bounds on the outputs of a network at all inputs of either label, whatever their spurious patterns.

    Attributes:
        positive: ``N(x) ≥`` this at every input with p_1 and without p_2, ``(…)``.
        negative: ``−N(x) ≥`` this at every input with p_2 and without p_1, ``(…)``.
        small: Whether all detection ratios are below 1/P, ``(…)``: the paper's condition, which is stronger.
    """

    positive: Tensor
    negative: Tensor
    small: Tensor

    @property
    def holds(self) -> Tensor:
        """Whether every input is classified correctly for certain, ``(…)``."""
        return (self.positive > 0) & (self.negative > 0)


class SampleSize(NamedTuple):
    """A number of samples that suffices for zero test error, with at least this probability."""

    samples: int
    probability: float


@under_torch_defaults
def label_statistics(samples: Labelled) -> Tensor:
    """``s_i = (1/m) Σ_j y_j 1{p_i ∈ x_j}``: how a pattern correlates with the labels, ``(…, P)`` in float64 (equation 4).

    Example:
        >>> from types import SimpleNamespace
        >>> contains = torch.tensor([[True, False, True], [True, False, False], [False, True, True], [False, True, True]])
        >>> label_statistics(SimpleNamespace(contains=contains, labels=torch.tensor([1, 1, -1, -1]))).tolist()
        [0.5, -0.5, -0.25]
    """
    contains, positive = samples.contains, (samples.labels > 0).unsqueeze(-1)
    sums = 2 * (contains & positive).sum(-2) - contains.sum(-2)  # whole numbers: exact for any number of samples
    return sums.double() / contains.shape[-2]


@under_torch_defaults
def network_outputs(responses: Tensor, places: Tensor, *, output: Tensor | None = None) -> Tensor:
    """``N(x)`` of equation (1) from the responses of channels to patterns.

    Args:
        responses: ``(…, 2k, P)``.
        places: The patterns of each input, ``(m, n)``.
        output: Output weights ``(2k,)``; by default +1 for the first half of the channels and −1 for the second.

    Returns:
        ``(…, m)``.

    Example:
        >>> ideal = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])  # w = p_1, u = p_2
        >>> network_outputs(ideal, torch.tensor([[0, 2], [2, 1]])).tolist()
        [1.0, -1.0]
    """
    best = torch.zeros_like(responses[..., places[:, 0]])  # (…, 2k, m), after the ReLU
    for column in places.T:
        best = torch.maximum(best, responses[..., column])
    weights = _output_weights(responses, output).to(best)
    return torch.einsum("...cm,c->...m", best, weights)


@under_torch_defaults
def detection(responses: Tensor, *, output: Tensor | None = None) -> Detection:
    """Detectors and their masses (equation 2 and after).

    Of several patterns with the largest response a channel detects the first; the paper chooses arbitrarily, and neither
    its theorems nor the certificate depend on it.

    Args:
        responses: ``(…, 2k, P)``, dot products of channels and patterns.
        output: Output weights ``(2k,)``; by default +1 for the first half of the channels and −1 for the second. Others than
            ±1 are allowed: ``v·max σ(w·x)`` is ``sign(v)·max σ(|v|w·x)``, so that responses are taken times ``|v|``.

    Returns:
        The detectors, and the masses in float64; a response that is nan makes a mass nan.

    Raises:
        ValueError: If there are fewer than three patterns, or output weights do not match the channels.

    Example:
        >>> found = detection(torch.tensor([[3.0, 9.0, 1.0], [1.0, -1.0, 2.0]]))  # one w, one u
        >>> found.positive.tolist(), found.negative.tolist()
        ([0, 2], [1, 2])
        >>> found.plus_w.tolist(), found.plus_u.tolist()
        ([3.0, 0.0, 0.0], [0.0, 0.0, 2.0])
    """
    if responses.ndim < 2 or responses.shape[-1] < 3:
        raise ValueError(
            "responses must be (…, channels, patterns) to at least 3 patterns, the positive, the negative and a spurious one, "
            f"got {tuple(responses.shape)}. Pass the dot products of channels and patterns."
        )
    weights = _output_weights(responses, output)
    spurious = responses[..., 2:].max(-1)  # torch takes the first of equals; both sides share this one pass
    sides = []
    for own in range(2):
        mark = responses[..., own]
        strength = torch.maximum(mark, spurious.values).clamp_min(0)  # both keep what is not a number
        place = torch.where(mark >= spurious.values, own, spurious.indices + 2)
        heavy = strength.double() * weights.abs()
        empty = torch.zeros_like(responses[..., 0, :], dtype=torch.float64)
        masses = [empty.scatter_add(-1, place, heavy * group) for group in (weights > 0, weights < 0)]
        sides.append((torch.where(strength > 0, place, -1), *masses))
    (positive, plus_w, plus_u), (negative, minus_w, minus_u) = sides
    return Detection(positive, negative, plus_w, plus_u, minus_w, minus_u)


@under_torch_defaults
def detection_ratios(found: Detection) -> Sides:
    """Positive ratios ``M⁺_u(i)/M⁺_w(1)`` and negative ones ``M⁻_w(i)/M⁻_u(2)``: undesired over desired response.

    Where nothing detects the label's own pattern, all ratios of that side are infinite, 0/0 included: so the paper reads the
    shattering networks, and only so is theorem 6.1 true (it would otherwise hold of the network that is zero).

    Example:
        >>> ratios = detection_ratios(detection(torch.tensor([[4.0, 0.0, 0.0], [0.0, 2.0, 1.0]])))
        >>> ratios.positive.tolist(), ratios.negative.tolist()
        ([0.0, nan, 0.25], [nan, 0.0, 0.0])
    """
    return Sides(_ratio(found.plus_u, found.plus_w, 0), _ratio(found.minus_w, found.minus_u, 1))


@under_torch_defaults
def leanings(statistics: Tensor) -> Sides:
    """``max(−s_i/s_1, 0)`` and ``max(−s_i/s_2, 0)``: how far a pattern correlates with the other label.

    Without a sample of label +1, s_1 is 0: a pattern that goes with the other label then leans infinitely far (PSI asks nothing of
    it), all others not at all. The same holds of s_2.

    Raises:
        ValueError: If s_1 is negative or s_2 positive: these patterns do not mark their labels.

    Example:
        >>> sides = leanings(torch.tensor([0.5, -0.5, -0.1, 0.2]))
        >>> sides.positive.tolist(), sides.negative.tolist()
        ([0.0, nan, 0.20000000298023224, 0.0], [nan, 0.0, 0.0, 0.4000000059604645])
    """
    if bool((statistics[..., 0] < 0).any() | (statistics[..., 1] > 0).any()):
        worst = float(statistics[..., 0].min()), float(statistics[..., 1].max())
        raise ValueError(
            f"statistics must be at least 0 at place 0, which marks +1, and at most 0 at place 1, which marks −1, got {worst[0]:g} and "
            f"{worst[1]:g}. Number the patterns so that places 0 and 1 mark the labels."
        )
    return Sides(_leaning(statistics, 0), _leaning(-statistics, 1))


@under_torch_defaults
def smallest_constant(ratios: Sides, statistics: Tensor, samples: int, *, slope: float = 2.0) -> Tensor:
    """``c*``, the smallest c ≥ 0 with which PSI holds at slope b (equation 10, there for b = 2).

    ``c* = √m max_i (ratio_i − b·max(−s_i/s, 0))``, both sides together, and 0 if all are below their lines.

    Args:
        ratios: As of :func:`detection_ratios`.
        statistics: As of :func:`label_statistics`, ``(…, P)``.
        samples: m, how many samples the statistics are of.
        slope: b.

    Returns:
        ``(…)``: infinite where a label's own pattern is not detected, nan where a network is not a number.

    Raises:
        ValueError: If there are no samples, or b is not positive.

    Example:
        >>> w, u = [[4.0, 0.0, 0.0], [0.0, 0.0, 0.0]], [[0.0, 1.0, 0.0], [0.0, 0.0, 3.0]]
        >>> ratios = detection_ratios(detection(torch.tensor(w + u)))  # 3/4 for p_3
        >>> float(smallest_constant(ratios, torch.tensor([0.5, -0.5, -0.125]), 16))  # √16 (3/4 − 2·1/4)
        1.0
    """
    if samples < 1 or slope <= 0:
        raise ValueError(
            f"samples must be at least 1 and slope above 0, got {samples} and {slope:g}. Pass the size of the training set and slope=2."
        )
    positive, negative = (
        # An infinite allowance allows anything, an infinite ratio too.
        torch.where(leaning == math.inf, 0.0, ratio - slope * leaning)
        for ratio, leaning in zip(ratios, leanings(statistics), strict=True)
    )
    known = torch.cat([positive[..., :1], negative[..., 1:2], positive[..., 2:], negative[..., 2:]], -1)
    return known.amax(-1).clamp_min(0) * math.sqrt(samples)


@under_torch_defaults
def certificate(found: Detection) -> Certificate:
    """Bounds on the outputs at all inputs, unseen ones included, from the masses alone (equation 3).

    Let x be positive. It contains p_1 and otherwise spurious patterns. A channel w that detects p_1 answers ``w·p_1``, any other w
    at least 0: together at least ``M⁺_w(1)``. A channel u answers at most its largest positive response to p_1 and the spurious
    patterns, which is what it contributes to ``Σ_i M⁺_u(i)``. So ``N(x) ≥ M⁺_w(1) − Σ_i M⁺_u(i) = M⁺_w(1)(1 − Σ_i ratio_i)``. There
    are P − 1 ratios; if all are below 1/P, their sum is below 1 and x is right. Negative inputs are the mirror image.

    Example:
        >>> found = certificate(detection(torch.tensor([[4.0, 0.0, 0.0], [0.0, 2.0, 1.0]])))
        >>> float(found.positive), float(found.negative), bool(found.holds), bool(found.small)
        (3.0, 2.0, True, True)
    """
    ratios = detection_ratios(found)
    patterns = found.plus_w.shape[-1]
    bounds = found.plus_w[..., 0] - found.plus_u.sum(-1), found.minus_u[..., 1] - found.minus_w.sum(-1)
    small = [((ratio < 1 / patterns).sum(-1) == patterns - 1) for ratio in ratios]  # nan, at one place, is not below
    return Certificate(*bounds, small[0] & small[1])


def sample_size_bound(patterns: int, *, slope: float, constant: float, failure: float = 0.0) -> SampleSize:
    """The least ``m > 300 b²c²P² log P``: an algorithm with (b, c, δ)-PSI then makes no error (theorem 6.1).

    The spurious patterns must be unbiased, ``E[y 1{p_i ∈ x}] = 0``, and the labels equally likely. Then with probability at least
    ``1 − δ − 4/P³`` every ``b|s_i|/s_1`` is below 1/2cP, every ratio below 1/P, and :func:`certificate` holds.

    Args:
        patterns: P.
        slope: b ≥ 1.
        constant: c ≥ 1; PSI with a smaller one is PSI with 1.
        failure: δ.

    Raises:
        ValueError: If there are fewer than three patterns, b or c is below 1, or δ is not a probability.

    Example:
        >>> sample_size_bound(20, slope=2, constant=1)  # 300·4·400·log 20
        SampleSize(samples=1437952, probability=0.9995)
    """
    if patterns < 3 or not 0 <= failure <= 1:
        raise ValueError(
            f"patterns must be at least 3 and failure from 0 to 1, got {patterns} and {failure:g}. Pass patterns=20, failure=0.1."
        )
    if min(slope, constant) < 1:
        raise ValueError(
            f"slope and constant must be at least 1, got {slope:g} and {constant:g}. Raise each to 1: PSI holds with larger ones too."
        )
    bound = 300 * slope**2 * constant**2 * patterns**2 * math.log(patterns)
    return SampleSize(math.floor(bound) + 1, max(0.0, 1 - failure - 4 / patterns**3))


def _output_weights(responses: Tensor, output: Tensor | None) -> Tensor:
    """Output weights of the channels, ``(2k,)`` in float64."""
    channels = responses.shape[-2]
    if output is None:
        if channels % 2:
            raise ValueError(
                f"responses must be of an even number of channels, half of them of output weight +1 and half of −1, got {channels}. "
                "Pass output= with the weights of the last layer."
            )
        signs = torch.ones(channels, dtype=torch.float64, device=responses.device)
        signs[channels // 2 :] = -1
        return signs
    if output.shape != (channels,):
        raise ValueError(
            f"output must be one weight for each of {channels} channels, got {tuple(output.shape)}. Pass the last layer as a vector."
        )
    return output.to(responses.device, torch.float64)


def _ratio(undesired: Tensor, desired: Tensor, own: int) -> Tensor:
    """Masses over that of the label's own pattern; nan at the place of the other label's pattern."""
    below = desired[..., own, None]
    ratio = torch.where(below == 0, math.inf, undesired / below)
    ratio[..., 1 - own] = math.nan
    return ratio


def _leaning(statistics: Tensor, own: int) -> Tensor:
    """``max(−s_i/s, 0)`` where s ≥ 0 is the statistic of the label's own pattern."""
    against = (-statistics).clamp_min(0)
    leaning = torch.where(against == 0, 0.0, against / statistics[..., own, None].abs())  # not by −0
    leaning[..., 1 - own] = math.nan
    return leaning
