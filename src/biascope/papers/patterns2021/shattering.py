"""Theorem 5.1 and remark E.1: what pattern networks could learn, and that gradient descent does not."""

# r runs · 2k channels · P patterns · n patterns of an input · m samples · t points to be shattered

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from biascope.measures.pattern_statistics import drawn_samples, pattern_statistics
from biascope.papers.patterns2021 import models as theory
from biascope.papers.units import with_unit
from biascope.results.draw import PALETTE, blank, heat, legend_below, line_colours, panel, plain
from biascope.results.estimate import Estimate, over, proportion
from biascope.results.finding import Finding, Tell, figure
from biascope.results.plan import Plan, Row
from biascope.runs.randomness import generator_for, seed_of
from biascope.runs.run import Run
from biascope.tasks.pattern_ratios import detection, detection_ratios, network_outputs, smallest_constant
from biascope.tasks.patterns import PatternDistribution, PatternSamples

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 2021
_VALUES = 2**24  # numbers held at a time
_SHOWN = 4  # size of the network that is drawn


def signs(seed: int, *shape: int) -> Tensor:
    """Random labels ±1."""
    return 2 * torch.randint(0, 2, shape, generator=generator_for(torch.device("cpu"), seed, "labels")) - 1


def labellings(size: int, every: bool, count: int) -> Iterator[Tensor]:
    """Labels ``(…, t)`` of the t = 2^{n−1} points, in parts that fit into memory: all 2^t of them, or some at random."""
    points = 2 ** (size - 1)
    most = max(1, _VALUES // (2 * points * points))
    total = 2**points if every else count
    for start in range(0, total, most):
        numbers = torch.arange(start, min(start + most, total))
        if every:
            yield 2 * (numbers[:, None] >> torch.arange(points) & 1) - 1
        else:
            yield torch.stack([signs(seed_of(SEED, size, int(number)), points) for number in numbers])


def _drawn_shattering(finding: Finding, dark: bool) -> Figure:
    reading = (
        "Above, a network that fits random labels of eight points: one channel for each (orange is added, blue subtracted), no answer "
        "to p₁ and p₂, and its outputs. Below, bounds on the VC dimension; dots: points for which labellings were fitted."
    )
    picture, colours = blank(5.0, reading), PALETTE[dark]
    grid = picture.add_gridspec(2, 2, width_ratios=(2.2, 1), height_ratios=(1.1, 1))
    responses, outputs = finding.arrays["network"], finding.arrays["outputs"]
    view, beside = panel(picture, dark, grid[0, 0]), panel(picture, dark, grid[0, 1])
    reach = float(np.abs(responses).max())
    heat(view, responses, dark, (-reach, reach), bar=3, aspect="auto")
    names = [f"p{'₁₂₃₄₅₆₇₈₉'[place]}" for place in range(responses.shape[1])]
    view.set(xticks=range(len(names)), yticks=[], ylabel="channel of point")
    view.set_xticklabels(names)
    places = np.arange(len(outputs))
    beside.barh(
        places, outputs, color=[colours.lines[1] if each > 0 else colours.lines[0] for each in outputs], height=0.7
    )
    beside.set(yticks=[], xlim=(-1.15, 1.15), ylim=(len(outputs) - 0.5, -0.5), xticks=[-1, 0, 1], xlabel="N(x)")
    below = panel(picture, dark, grid[1, :], yscale="log")
    size, low, high = finding.arrays["bounds"]
    for values, name, colour in (
        (high, "at most C(2n, n)", colours.lines[0]),
        (low, "at least 2ⁿ⁻¹", colours.lines[1]),
    ):
        below.plot(size, values, color=colour, linewidth=1.6, label=name)
    for key, filled in (("every labelling", True), ("random labellings", False)):
        at = finding.arrays[key]
        style: dict[str, Any] = {"facecolors": colours.lines[1] if filled else "none", "edgecolors": colours.lines[1]}
        below.scatter(at, 2.0 ** (at - 1), s=26, label=f"{key} fitted", zorder=3, **style)
    below.set(xlabel="n patterns of an input, of 2n", ylabel="points")
    legend_below(picture, below, dark)
    return picture


_WHOLE, _RANDOM = "every labelling at n", "random ones at n"
LABELLED = Plan(
    smoke={_WHOLE: (2, 3), _RANDOM: (4, 6), "random ones": 3, "seed": SEED},
    laptop={_WHOLE: (2, 3, 4, 5), _RANDOM: (6, 8, 10, 12), "random ones": 20, "seed": SEED},
    paper={_WHOLE: (2, 3, 4, 5), _RANDOM: (6, 8, 10, 12, 13), "random ones": 50, "seed": SEED},
)


@figure(
    "theorem 5.1",
    title="Networks that fit every labelling of 2^(d/2 − 1) inputs, and do not satisfy PSI",
    plan=LABELLED,
    show=_drawn_shattering,
)
def theorem_51(plan: Row, run: Run, tell: Tell) -> None:
    """The constructed networks, on all labellings of few points and random ones of many."""
    whole, large = plan[_WHOLE], plan[_RANDOM]
    shares: dict[bool, list[float]] = {True: [], False: []}
    distance, mass, networks, infinite = 0.0, 0.0, 0, 0
    for size in (*whole, *large):
        points, fitted, tried = theory.shattered_points(size), 0, 0
        marks = torch.zeros(2 * size)
        marks[0], marks[1] = 0.5, -0.5  # spurious patterns that do not lean: PSI asks for the smallest ratios
        for labels in labellings(size, size in whole, plan["random ones"]):
            responses = theory.shattering_network(points, labels)
            off = (network_outputs(responses, points) - labels).abs().amax(-1)
            detected = detection(responses)
            constant = smallest_constant(detection_ratios(detected), marks, len(points), slope=1e6)
            distance = max(distance, float(off.max()))
            mass = max(mass, float(detected.plus_w[:, 0].max()), float(detected.minus_u[:, 1].max()))
            fitted, tried = fitted + int((off < 0.5).sum()), tried + len(labels)
            infinite += int((constant == math.inf).sum())
        shares[size in whole].append(fitted / tried)
        networks += tried
        tell.about(f"n = {size}")(f"points, with {tried:,} labellings tried", Estimate.exact(len(points)))
    sizes = np.arange(2, max(large) + 1)
    bounds = [theory.vc_dimension_bounds(int(size), int(2 * size)) for size in sizes]
    inputs = [PatternDistribution("uniform", int(size), int(2 * size)).support for size in sizes]
    crowded = max(count / high for count, (_, high) in zip(inputs, bounds, strict=True))
    least, of_random = (Estimate.exact(100 * min(shares[every])) for every in (True, False))
    with_unit(tell, "least share of labellings fitted where every one was tried", least, "%")
    with_unit(tell, "least share of random labellings fitted", of_random, "%")
    tell("largest distance of an output from its label", Estimate.exact(distance))
    tell("largest M⁺_w(1) or M⁻_u(2)", Estimate.exact(mass))
    with_unit(tell, "networks with infinite c* at b = 10⁶", Estimate.exact(100 * infinite / networks), "%")
    tell("largest number of inputs up to order over C(d, n)", Estimate.exact(crowded))
    points, labels = theory.shattered_points(_SHOWN), signs(SEED, 2 ** (_SHOWN - 1))
    shown = theory.shattering_network(points, labels)
    tell.array("network", torch.sub(*shown.chunk(2)).numpy())
    tell.array("outputs", network_outputs(shown, points).numpy())
    tell.array("bounds", np.array([sizes, *zip(*bounds, strict=True)], float))
    tell.array("every labelling", np.array(whole, float))
    tell.array("random labellings", np.array(large, float))
    tell.note(
        "An input has one of p_1 and p_2, so that there are 2·C(d − 2, n − 1) inputs up to order, at d = 2n about half of C(d, n): the "
        "argument of section A gives this smaller bound."
    )


_FEW = 100  # training samples of the paper's smallest experiment
_MADE, _BY_SGD = "constructed to overfit", "trained by SGD"
_SIZES = (4, 6, 10, 20, 50, 100, 200, 500, 1000, 2000)
_FRESH = {"seed": 20261120}  # runs from seed 2021 had been seen when bounds got their values
LEARNED = Plan(
    smoke={"n": 20, "d": 40, "m": (4, 20), "runs": 3, "k": 10, "rate": 1e-2, **_FRESH},
    laptop={"n": 25, "d": 50, "m": _SIZES[:-1], "runs": 10, "k": 50, "rate": 1e-3, **_FRESH},
    paper={"n": 25, "d": 50, "m": _SIZES, "runs": 10, "k": 1000, "rate": "as published", **_FRESH},
)


def _drawn_remark(finding: Finding, dark: bool) -> Figure:
    reading = (
        "Both networks make no error on the same training sets. Bands run from the least to the largest of the runs."
    )
    picture = blank(3.2, reading)
    axes = panel(picture, dark, xscale="log", xlabel="training samples, m", ylabel="errors on fresh inputs, %")
    for (name, curve), colour in zip(finding.arrays.items(), line_colours(len(finding.arrays), dark), strict=True):
        sizes, *errors = curve
        axes.plot(
            sizes,
            np.mean(errors, 0),
            "o-",
            color=colour,
            markersize=4,
            linewidth=1.6,
            label=plain(name, 40),
            clip_on=False,
        )
        axes.fill_between(sizes, np.min(errors, 0), np.max(errors, 0), color=colour, alpha=0.2, linewidth=0)
    axes.set_ylim(0, 100)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    legend_below(picture, axes, dark)
    return picture


@figure(
    "remark E.1",
    title="Two networks without training errors: one that overfits by construction, one trained by SGD on the same samples of D_vc",
    plan=LEARNED,
    show=_drawn_remark,
)
def remark_e1(plan: Row, run: Run, tell: Tell) -> None:
    """The network of theorem 5.1 beside SGD, on the same training and test samples."""
    size, patterns, runs, k = plan["n"], plan["d"], plan["runs"], plan["k"]
    rate = None if plan["rate"] == "as published" else plan["rate"]
    law = PatternDistribution("paired", size, patterns)
    wrong: dict[str, list[np.ndarray]] = {_MADE: [], _BY_SGD: []}  # by m, percent
    trained: dict[str, list[np.ndarray]] = {_MADE: [], _BY_SGD: []}
    below: list[np.ndarray] = []  # whether c* is below 1, in runs with more than few samples
    for many in plan["m"]:
        samples: dict[str, Any] = {"samples": many, "test": 1000, "seed": plan["seed"]}
        sgd = pattern_statistics(
            law="paired", per_input=size, patterns=patterns, k=k, runs=runs, rate=rate, **samples, run=run
        )
        drawn = drawn_samples(law, range(runs), **samples)
        made = [
            theory.overfitting_network(*(PatternSamples(each.places[at], each.labels[at], patterns) for each in drawn))
            for at in range(runs)
        ]
        trained[_MADE].append(100 * np.array([one.train_error for one in made]))
        wrong[_MADE].append(100 * np.array([one.test_error for one in made]))
        trained[_BY_SGD].append(100 * np.asarray(sgd.train_errors))
        wrong[_BY_SGD].append(100 * np.asarray(sgd.test_errors))
        with_unit(tell, f"SGD: test error at m = {many}", over(wrong[_BY_SGD][-1], within=(0, 100)), "%")
        if many >= _FEW:
            below.append(sgd.constants() < 1)
    with_unit(tell, "constructed: largest training error", Estimate.exact(float(np.max(trained[_MADE]))), "%")
    with_unit(tell, "constructed: least test error", Estimate.exact(float(np.min(wrong[_MADE]))), "%")
    with_unit(tell, "SGD: largest training error", Estimate.exact(float(np.max(trained[_BY_SGD]))), "%")
    tell("inputs of D_vc over shattered points", Estimate.exact(law.support / 2 ** (size - 1)))
    if below:
        late, held = np.concatenate(wrong[_BY_SGD][-len(below) :]), np.concatenate(below)
        with_unit(tell, f"SGD: test error from m = {_FEW} on", over(late, within=(0, 100)), "%")
        share = proportion(float(held.mean()), held.size).in_percent()
        with_unit(tell, f"SGD: runs with c* below 1 from m = {_FEW} on", share, "%")
    for name, errors in wrong.items():
        tell.array(name, np.concatenate([np.array([plan["m"]], float), np.stack(errors, 1)]))
    tell.note(
        "The constructed network answers spurious patterns alone. D_vc has each spurious part with either label, so that its support "
        "is twice the shattered set: where a training set holds a part with both labels, this network cannot fit it. At n = 25 none "
        "does.",
        "Its test errors are chosen with the test set in hand: it shows what zero training error allows, not what a learner would do.",
    )
    if rate is not None:
        steps = f"SGD takes steps of {rate:g}, {rate * k / 1e-3:g} times the paper's"
        tell.note(f"{steps}, and {2 * k} channels, to be quick.")
