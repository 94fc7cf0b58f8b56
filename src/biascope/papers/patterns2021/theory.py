"""Theorems 5.1 and 6.1, and remark E.1: what pattern networks could learn, and what gradient descent makes of it."""

# r runs · 2k channels · P patterns · n patterns of an input · m samples · t points to be shattered

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from biascope.measures.pattern_statistics import drawn_samples, pattern_statistics, published_batch, published_rate
from biascope.measures.pattern_statistics.lookup import initial_tables, trained_tables
from biascope.papers.patterns2021 import models as theory
from biascope.papers.selection import old_figure
from biascope.results.draw import PALETTE, blank, heat, legend_below, line_colours, panel, plain
from biascope.results.estimate import Estimate, Number, over, proportion
from biascope.results.finding import Finding
from biascope.results.wording import snake
from biascope.runs.randomness import generator_for, seed_of
from biascope.runs.run import Run
from biascope.tasks.pattern_ratios import (
    certificate,
    detection,
    detection_ratios,
    label_statistics,
    leanings,
    network_outputs,
    sample_size_bound,
    smallest_constant,
)
from biascope.tasks.patterns import PatternDistribution, PatternSamples

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEED = 2021
_VALUES = 2**24  # numbers held at a time


def share(flags: Tensor) -> Estimate:
    """How many are true, in percent, with the interval of so many."""
    return proportion(float(flags.double().mean()), flags.numel()).in_percent()


def signs(seed: int, *shape: int) -> Tensor:
    """Random labels ±1."""
    return 2 * torch.randint(0, 2, shape, generator=generator_for(torch.device("cpu"), seed, "labels")) - 1


# Theorem 5.1

# Sizes n at which every labelling is tried, sizes at which random ones are, and how many.
_LABELLED: dict[str, tuple[tuple[int, ...], tuple[int, ...], int]] = {
    "smoke": ((2, 3), (4, 6), 3),
    "laptop": ((2, 3, 4, 5), (6, 8, 10, 12), 20),
    "paper": ((2, 3, 4, 5), (6, 8, 10, 12, 13), 50),
}
_SHOWN = 4  # size of the network that is drawn


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


@old_figure(
    "theorem 5.1",
    title="Networks that fit every labelling of 2^(d/2 − 1) inputs, and do not satisfy PSI",
    show=_drawn_shattering,
)
def theorem_51(effort: str, run: Run) -> Finding:
    """The constructed networks, on all labellings of few points and random ones of many."""
    whole, large, count = _LABELLED[effort]
    statistics: dict[str, Number] = {}
    fits: dict[bool, list[float]] = {True: [], False: []}
    distance, mass, networks, infinite = 0.0, 0.0, 0, 0
    for size, every in [(size, True) for size in whole] + [(size, False) for size in large]:
        points, fitted, tried = theory.shattered_points(size), 0, 0
        marks = torch.zeros(2 * size)
        marks[0], marks[1] = 0.5, -0.5  # spurious patterns that do not lean: PSI asks for the smallest ratios
        for labels in labellings(size, every, count):
            responses = theory.shattering_network(points, labels)
            off = (network_outputs(responses, points) - labels).abs().amax(-1)
            found = detection(responses)
            constant = smallest_constant(detection_ratios(found), marks, len(points), slope=1e6)
            distance = max(distance, float(off.max()))
            mass = max(mass, float(found.plus_w[:, 0].max()), float(found.minus_u[:, 1].max()))
            fitted, tried = fitted + int((off < 0.5).sum()), tried + len(labels)
            infinite += int((constant == math.inf).sum())
        fits[every].append(fitted / tried)
        networks += tried
        key = f"n_{size}_points_with_{snake(f'{tried:,}')}_labellings_tried"
        statistics[key] = Estimate.exact(len(points)).named(f"n = {size}: points, with {tried:,} labellings tried")
    least = {every: Estimate.exact(100 * min(values)) for every, values in fits.items()}
    sizes = np.arange(2, max(large) + 1)
    bounds = [theory.vc_dimension_bounds(int(size), int(2 * size)) for size in sizes]
    inputs = [PatternDistribution("uniform", int(size), int(2 * size)).support for size in sizes]
    crowded = max(count / high for count, (_, high) in zip(inputs, bounds, strict=True))
    statistics |= {
        "least_share_of_labellings_fitted_where_every_one_was_tried_percent": least[True].named(
            "least share of labellings fitted where every one was tried", "%"
        ),
        "least_share_of_random_labellings_fitted_percent": least[False].named(
            "least share of random labellings fitted", "%"
        ),
        "largest_distance_of_an_output_from_its_label": Estimate.exact(distance).named(
            "largest distance of an output from its label"
        ),
        "largest_m_w_1_or_m_minus_u_2": Estimate.exact(mass).named("largest M⁺_w(1) or M⁻_u(2)"),
        "networks_with_infinite_c_star_at_b_106_percent": Estimate.exact(100 * infinite / networks).named(
            "networks with infinite c* at b = 10⁶", "%"
        ),
        "largest_number_of_inputs_up_to_order_over_c_d_n": Estimate.exact(crowded).named(
            "largest number of inputs up to order over C(d, n)"
        ),
    }
    points, labels = theory.shattered_points(_SHOWN), signs(SEED, 2 ** (_SHOWN - 1))
    shown = theory.shattering_network(points, labels)
    arrays = {
        "network": torch.sub(*shown.chunk(2)).numpy(),
        "outputs": network_outputs(shown, points).numpy(),
        "bounds": np.array([sizes, *zip(*bounds, strict=True)], float),
        "every labelling": np.array(whole, float),
        "random labellings": np.array(large, float),
    }
    settings = {"every labelling at n": whole, "random ones at n": large, "random ones": count, "seed": SEED}
    notes = (
        "An input has one of p_1 and p_2, so that there are 2·C(d − 2, n − 1) inputs up to order, at d = 2n about half of C(d, n): the "
        "argument of section A gives this smaller bound.",
    )
    return Finding(statistics, arrays, settings, notes)


# Remark E.1

# Patterns of an input, training sizes, runs, k, rate; None is the paper's.
_LEARNED: dict[str, tuple[int, tuple[int, ...], int, int, float | None]] = {
    "smoke": (20, (4, 20), 3, 10, 1e-2),
    "laptop": (25, (4, 6, 10, 20, 50, 100, 200, 500, 1000), 10, 50, 1e-3),
    "paper": (25, (4, 6, 10, 20, 50, 100, 200, 500, 1000, 2000), 10, 1000, None),
}
_FEW = 100  # training samples of the paper's smallest experiment


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


@old_figure(
    "remark E.1",
    title="Two networks without training errors: one that overfits by construction, one trained by SGD on the same samples of D_vc",
    show=_drawn_remark,
)
def remark_e1(effort: str, run: Run) -> Finding:
    """The network of theorem 5.1 beside SGD, on the same training and test samples."""
    size, samples, runs, k, rate = _LEARNED[effort]
    law, test = PatternDistribution("paired", size, 2 * size), 1000
    wrong: dict[str, list[np.ndarray]] = {"constructed to overfit": [], "trained by SGD": []}
    trained: dict[str, list[np.ndarray]] = {name: [] for name in wrong}
    constants: dict[int, np.ndarray] = {}
    for many in samples:
        settings: dict[str, Any] = {"samples": many, "test": test, "seed": SEED}
        found = pattern_statistics(
            law="paired", per_input=size, patterns=2 * size, k=k, runs=runs, rate=rate, **settings, run=run
        )
        constants[many] = found.constants()
        drawn = drawn_samples(law, range(runs), **settings)
        made = [
            theory.overfitting_network(*(PatternSamples(each.places[at], each.labels[at], 2 * size) for each in drawn))
            for at in range(runs)
        ]
        for name, train, fresh in (
            ("constructed to overfit", [one.train_error for one in made], [one.test_error for one in made]),
            ("trained by SGD", found.train_errors, found.test_errors),
        ):
            trained[name].append(100 * np.asarray(train))
            wrong[name].append(100 * np.asarray(fresh))
    late = [at for at, many in enumerate(samples) if many >= _FEW]
    held = np.concatenate([constants[samples[at]] < 1 for at in late]) if late else np.zeros(0)
    statistics = {
        "constructed_largest_training_error_percent": Estimate.exact(
            float(np.max(trained["constructed to overfit"]))
        ).named("constructed: largest training error", "%"),
        "constructed_least_test_error_percent": Estimate.exact(float(np.min(wrong["constructed to overfit"]))).named(
            "constructed: least test error", "%"
        ),
        "sgd_largest_training_error_percent": Estimate.exact(float(np.max(trained["trained by SGD"]))).named(
            "SGD: largest training error", "%"
        ),
        "inputs_of_d_vc_over_shattered_points": Estimate.exact(law.support / 2 ** (size - 1)).named(
            "inputs of D_vc over shattered points"
        ),
    }
    if late:
        every = np.concatenate([wrong["trained by SGD"][at] for at in late])
        statistics[f"sgd_test_error_from_m_{_FEW}_on_percent"] = over(every, within=(0, 100)).named(
            f"SGD: test error from m = {_FEW} on", "%"
        )
        statistics[f"sgd_runs_with_c_star_below_1_from_m_{_FEW}_on_percent"] = (
            proportion(float(held.mean()), held.size)
            .in_percent()
            .named(f"SGD: runs with c* below 1 from m = {_FEW} on", "%")
        )
    for at, many in enumerate(samples):
        statistics[f"sgd_test_error_at_m_{many}_percent"] = over(wrong["trained by SGD"][at], within=(0, 100)).named(
            f"SGD: test error at m = {many}", "%"
        )
    arrays = {name: np.concatenate([np.array([samples], float), np.stack(each, 1)]) for name, each in wrong.items()}
    plan = {"n": size, "d": 2 * size, "m": samples, "runs": runs, "k": k, "rate": rate or "as published", "seed": SEED}
    notes: tuple[str, ...] = (
        "The constructed network answers spurious patterns alone. D_vc has each spurious part with either label, so that its support "
        "is twice the shattered set: where a training set holds a part with both labels, this network cannot fit it. At n = 25 none "
        "does.",
        "Its test errors are chosen with the test set in hand: it shows what zero training error allows, not what a learner would do.",
    )
    if rate is not None:
        notes += (
            f"SGD takes steps of {rate:g}, {rate * k / 1e-3:g} times the paper's, and {2 * k} channels, to be quick.",
        )
    return Finding(statistics, arrays, plan, notes)


# Theorem 6.1

_PARTS = tuple(2.0**-power for power in range(10, -1, -1))  # of the theorem's number of samples
_REFERENCE = 2 * math.sqrt(2)  # in (8), for the printed 4
# Training sets by the number of patterns; networks of each kind; runs of SGD at the theorem's m, and their k.
_DRAWN: dict[str, tuple[dict[int, int], int, int, int]] = {
    "smoke": ({6: 4, 8: 4}, 8, 2, 10),
    "laptop": ({8: 300, 12: 200, 20: 60}, 40, 20, 50),
    "paper": ({8: 600, 12: 300, 20: 100, 50: 5}, 200, 40, 1000),
}
_FEWEST = 6  # patterns, three to an input, of which SGD sees the theorem's number of samples at b = 2 and c = 1


def least_samples(patterns: int) -> int:
    """The theorem's m at b = c = 1."""
    return sample_size_bound(patterns, slope=1, constant=1).samples


def chance_above(samples: int, presence: float, bound: float) -> float:
    """``P(|s_i| > bound)``, exactly: a pattern is in an input with this chance, whatever the label.

    Of N inputs that have it, N binomial, those of label +1 are binomial too.

    Example:
        >>> chance_above(2, 1.0, 0.5)  # two samples of one label
        0.5
    """
    from scipy.stats import binom

    most, wide = samples * presence, 40 * math.sqrt(samples * presence * (1 - presence)) + 1
    counts = np.arange(max(0, math.floor(most - wide)), min(samples, math.ceil(most + wide)) + 1)
    over = np.floor((counts + samples * bound) / 2)  # more positive ones than this are too many
    return float(2 * (binom.pmf(counts, samples, presence) * binom.sf(over, counts, 0.5)).sum())


def leanings_by_size(patterns: int, runs: int) -> Tensor:
    """``2P·max_i |s_i|/min(s_1, −s_2)`` for growing parts of the theorem's m, ``(parts, r)``: at most 1 is what the proof needs."""
    whole, law = least_samples(patterns), PatternDistribution("uniform", patterns // 2, patterns)
    most = max(1, _VALUES // (runs * patterns))
    sums, done, rows = torch.zeros(runs, patterns, dtype=torch.float64), 0, []
    for part in _PARTS:
        wanted = math.ceil(part * whole)
        while done < wanted:
            take = min(most, wanted - done)
            drawn = law.draw(take, seed=seed_of(SEED, "theorem 6.1", patterns, done), runs=runs)
            sums += label_statistics(drawn) * take
            done += take
        marks = torch.minimum(sums[:, 0], -sums[:, 1])
        rows.append(2 * patterns * sums[:, 2:].abs().amax(1) / marks)  # without a sample of one label infinite
    return torch.stack(rows)


def all_inputs(law: PatternDistribution) -> PatternSamples:
    """Every input of the uniform law up to order, with its label."""
    spurious = torch.tensor(list(itertools.combinations(range(2, law.patterns), law.per_input - 1)))
    halves = [torch.cat([torch.full_like(spurious[:, :1], mark), spurious], 1) for mark in (0, 1)]
    labels = torch.tensor([1, -1]).repeat_interleave(len(spurious))
    return PatternSamples(torch.cat(halves), labels, law.patterns)


def bounds_and_margins(responses: Tensor, law: PatternDistribution) -> Tensor:
    """What the certificate promises and what is true, ``(2, r)``: lower bound and minimum of y·N(x) over all inputs, over M(1)."""
    found, inputs = detection(responses), all_inputs(law)
    bound = certificate(found)
    margins = network_outputs(responses.double(), inputs.places) * inputs.labels
    unit = torch.maximum(found.plus_w[:, 0], found.minus_u[:, 1]).clamp_min(1e-300)
    return torch.stack([torch.minimum(bound.positive, bound.negative), margins.amin(-1)]) / unit


def judged_networks(count: int, run: Run) -> dict[str, Tensor]:
    """Certificates and margins of networks that SGD trained on few to many samples, and of random ones, by kind."""
    law, k = PatternDistribution("uniform", 5, 10), 20
    how: dict[str, Any] = {"rate": 1e-2, "batch": 20, "epochs": 5000, "seed": SEED, "run": run}
    found = []
    for samples in (4, 8, 16, 64):
        seed = seed_of(SEED, "judged", samples)
        start = initial_tables(count, law.patterns, k, seed=seed, run=run)
        done = trained_tables(start, law.draw(samples, seed=seed, runs=count), **how)
        found.append(bounds_and_margins(done.tables.mT.cpu(), law))
    # Random channels of which some answer their own label's pattern the more: from hopeless ones to perfect ones.
    random = torch.randn(
        4 * count, 2 * k, law.patterns, generator=generator_for(torch.device("cpu"), SEED, "random networks")
    )
    random[:, :k, 0] += torch.linspace(0, 12, 4 * count)[:, None]
    random[:, k:, 1] += torch.linspace(0, 12, 4 * count)[:, None]
    return {"trained by SGD": torch.cat(found, 1), "drawn at random": bounds_and_margins(random.double(), law)}


def _drawn_theorem_61(finding: Finding, dark: bool) -> Figure:
    reading = (
        "Above, how often training sets are as balanced as the proof needs; the dashed line is the theorem's number of samples. Below, "
        "one dot for each network: what its certificate promises for all inputs, and the truth, which is never below the line."
    )
    picture, colours = blank(5.6, reading), PALETTE[dark]
    grid = picture.add_gridspec(2, 1)
    above = panel(
        picture, dark, grid[0], xscale="log", ylim=(0, 103), xlabel="m over 300 b²c²P² log P", ylabel="training sets, %"
    )
    curves = {key: array for key, array in finding.arrays.items() if key.startswith("P = ")}
    for (name, array), colour in zip(curves.items(), line_colours(len(curves), dark), strict=True):
        above.plot(*array, "o-", color=colour, markersize=3.5, linewidth=1.6, label=name, clip_on=False)
    above.axvline(1.0, color=colours.muted, linestyle="--", linewidth=1.2)
    above.legend(frameon=False, fontsize=9, labelcolor=colours.ink)
    below = panel(
        picture, dark, grid[1], xlabel="certificate: y·N(x) is at least", ylabel="least y·N(x) over all inputs"
    )
    low = -3.0
    below.plot([low, 1], [low, 1], color=colours.muted, linewidth=1.2)
    below.axvline(0, color=colours.muted, linestyle=":", linewidth=1)
    below.axhline(0, color=colours.muted, linestyle=":", linewidth=1)
    for name, colour in zip(("drawn at random", "trained by SGD"), (colours.lines[1], colours.lines[0]), strict=True):
        at, truth = finding.arrays[name]
        below.scatter(at, truth, s=11, color=colour, alpha=0.6, linewidths=0, label=f"networks {name}")
    below.set(xlim=(low, 1.05), ylim=(-2, 1.1))
    below.legend(frameon=False, fontsize=9, labelcolor=colours.ink, loc="lower left")
    return picture


@old_figure(
    "theorem 6.1",
    title="How many samples make the pattern statistics small enough for the certificate",
    show=_drawn_theorem_61,
)
def theorem_61(effort: str, run: Run) -> Finding:
    """Concentration at the theorem's own number of samples, and certificates against all inputs."""
    sets, count, runs, k = _DRAWN[effort]
    arrays: dict[str, np.ndarray] = {}
    statistics: dict[str, Number] = {}
    roots, lost, low, balanced = [], [], [], []
    for patterns, many in sets.items():
        samples = least_samples(patterns)
        root = math.sqrt(math.log(patterns) / samples)
        roots.append(6 * patterns * root)
        presences = (patterns // 2 - 1) / (patterns - 2), 1.0  # n = P/2, and the worst case: in every input
        chance = max(chance_above(samples, presence, _REFERENCE * root) for presence in presences)
        lost.append((patterns - 2) * chance / (2 / patterns**3))
        low.append(chance_below_third(samples) * patterns**3)
        leaning = leanings_by_size(patterns, many)
        balanced.append(leaning[-1] <= 1)
        shares = 100 * (leaning <= 1).double().mean(1)
        arrays[f"P = {patterns}"] = np.stack([np.array(_PARTS), shares.numpy()])
        held = [
            part for part, value in zip(_PARTS, shares.tolist(), strict=True) if value >= 100 * (1 - 4 / patterns**3)
        ]
        if held:
            statistics[f"p_{patterns}_least_part_of_the_theorem_s_m_with_a_share_of_1_minus_4_p3"] = Estimate.exact(
                held[0]
            ).named(f"P = {patterns}: least part of the theorem's m with a share of 1 − 4/P³")
        worst = float(leaning[-1].max())
        statistics[f"p_{patterns}_largest_2p_abs_s_i_s_1_of_{many}_training_sets"] = Estimate.exact(worst).named(
            f"P = {patterns}: largest 2P abs(s_i/s_1) of {many} training sets"
        )
    networks = judged_networks(count, run)
    arrays |= {name: each.numpy() for name, each in networks.items()}
    bound, margin = torch.cat(list(networks.values()), 1)
    sure = bound > 0
    training: dict[str, Any] = {
        "law": "uniform",
        "per_input": _FEWEST // 2,
        "patterns": _FEWEST,
        "samples": sample_size_bound(_FEWEST, slope=2, constant=1).samples,
        "k": k,
        "runs": runs,
        "slope": 2.0,
        "rate": 1e-2 if effort == "smoke" else published_rate(k),
        "batch": published_batch(k),
        "epochs": 50_000,
        "tolerance": 1e-5,
        "scale": 1e-6,
        "test": 1000,
        "seed": SEED,
    }
    found = pattern_statistics(**training, run=run)
    statistics |= {
        "largest_4b_root_log_d_m_over_1_6cd_at_the_theorem_s_m": Estimate.exact(4 * max(roots)).named(
            "largest 4b√(log d/m) over 1/(6cd) at the theorem's m"
        ),
        "largest_2_root_2b_root_log_d_m_over_1_6cd_at_the_theorem_s_m": Estimate.exact(_REFERENCE * max(roots)).named(
            "largest 2√2·b√(log d/m) over 1/(6cd) at the theorem's m"
        ),
        "exact_chance_of_failure_over_2_d3_spurious": Estimate.exact(max(lost)).named(
            "exact chance of failure over 2/d³, spurious"
        ),
        "exact_chance_of_s_1_below_1_3_over_1_d3": Estimate.exact(max(low)).named(
            "exact chance of s_1 < 1/3 over 1/d³"
        ),
        "training_sets_as_balanced_as_9_needs_percent": share(torch.cat(balanced)).named(
            "training sets as balanced as (9) needs", "%"
        ),
        "networks_judged": Estimate.exact(len(bound)).named("networks judged"),
        "networks_certified": Estimate.exact(int(sure.sum())).named("networks certified"),
        "certified_networks_that_err_on_an_input": Estimate.exact(int((margin[sure] <= 0).sum())).named(
            "certified networks that err on an input"
        ),
        "networks_that_err_nowhere_and_are_not_certified": Estimate.exact(int((margin[~sure] > 0).sum())).named(
            "networks that err nowhere and are not certified"
        ),
        "least_margin_minus_the_certified_bound": Estimate.exact(float((margin - bound).min())).named(
            "least margin minus the certified bound"
        ),
        "sgd_at_the_theorem_s_m_runs_that_err_nowhere_percent": proportion(float((found.test_errors == 0).mean()), runs)
        .in_percent()
        .named("SGD at the theorem's m: runs that err nowhere", "%"),
        "sgd_at_the_theorem_s_m_runs_with_all_ratios_below_1_p_percent": proportion(float(found.small.mean()), runs)
        .in_percent()
        .named("SGD at the theorem's m: runs with all ratios below 1/P", "%"),
        "sgd_at_the_theorem_s_m_largest_c_star_at_b_2": Estimate.exact(float(found.constants().max())).named(
            "SGD at the theorem's m: largest c* at b = 2"
        ),
    }
    settings = {"training sets by P": sets, "b": 1, "c": 1, "networks of a kind": count, "seed": SEED, "SGD": training}
    notes = (
        "Exact chances come from the binomial law; the simulated shares show how much Hoeffding's inequality and the union give away.",
        "SGD at the theorem's m is seen at P = 6 alone, with b = 2 and c = 1; its test inputs are all 12 there are, many times. "
        "Where its c* is above 1, the theorem asks for more samples than these, and promises nothing yet.",
    )
    return Finding(statistics, arrays, settings, notes)


def chance_below_third(samples: int) -> float:
    """``P(s_1 < 1/3)``, exactly: s_1 is the share of the label +1."""
    from scipy.stats import binom

    return float(binom.cdf(math.ceil(samples / 3) - 1, samples, 0.5))


# Theorem 6.1, zero test error

# Patterns of an input, training sets, by the number of patterns; and runs of SGD on the fewest patterns, with their k.
_WORST: dict[str, tuple[dict[int, tuple[int, int]], int, int]] = {
    "smoke": ({4: (2, 20)}, 4, 10),
    "laptop": ({4: (2, 200), 5: (3, 250), 6: (3, 400), 8: (4, 800)}, 100, 20),
    "paper": ({4: (2, 1000), 5: (3, 1000), 6: (3, 1000), 8: (4, 2000)}, 400, 20),
}
_EXACT = range(4, 51)  # patterns for which the chance of an error is computed


def worst_networks(statistics: Tensor, samples: int, *, slope: float = 1.0, constant: float = 1.0) -> Tensor:
    """Networks whose detection ratios are as large as PSI allows, one that errs on positive inputs if any does, one on negative.

    The first has one channel for p_1 with response 1, and subtracts one channel for each ``i ∈ P_s ∪ P_+`` whose response is the
    bound of PSI, ``b·max(−s_i/s_1, 0) + c/√m``; nothing else is added. Equation (3) is then an equality. The second is its mirror
    image.

    Args:
        statistics: ``(r, P)``.
        samples: m.
        slope: b.
        constant: c.

    Returns:
        Responses ``(r, 2, 2P, P)``: the channels of p_1, …, p_P that are added, then those that are subtracted.
    """
    allowed = leanings(statistics)
    rest = constant / math.sqrt(samples)
    size = statistics.shape[-1]
    found = torch.zeros(len(statistics), 2, 2 * size, size, dtype=torch.float64)
    for side, (lean, own, other) in enumerate(((allowed.positive, 0, 1), (allowed.negative, 1, 0))):
        added, taken = (0, size) if side == 0 else (size, 0)
        ratios = (slope * lean + rest).nan_to_num(0.0)
        ratios[:, own], ratios[:, other] = (
            rest,
            1.0,
        )  # the other label's pattern is detected too, and in no input of this label
        found[:, side, added + own, own] = 1.0
        found[:, side, torch.arange(size) + taken, torch.arange(size)] = ratios
    return found


def exact_chance_of_error(patterns: int) -> float:
    """The chance that a training set of the theorem's m lets a worst network err, with n = P − 1.

    Every spurious pattern is then in every input, and all statistics follow from the number of positive samples, which is binomial.
    """
    from scipy.stats import binom

    samples = least_samples(patterns)
    reach = math.ceil(40 * math.sqrt(samples))
    positive = np.arange(max(1, samples // 2 - reach), min(samples - 1, samples // 2 + reach) + 1)
    share, rest = positive / samples, 1 / math.sqrt(samples)
    sums = [
        rest + (patterns - 2) * (np.maximum(sign * (1 - 2 * share) / own, 0) + rest)
        for sign, own in ((1, share), (-1, 1 - share))
    ]
    wrong = np.maximum(*sums) >= 1
    outside = binom.cdf(positive[0] - 1, samples, 0.5) + binom.sf(positive[-1], samples, 0.5)
    return float(binom.pmf(positive, samples, 0.5)[wrong].sum() + outside)


def _drawn_worst(finding: Finding, dark: bool) -> Figure:
    reading = (
        "Ratios as large as PSI allows with b = c = 1, at the theorem's number of samples. A dot is the least y·N(x) over all inputs "
        "of one training set; the theorem says that it is above 0, but for a share 4/P³."
    )
    picture, colours = blank(3.2, reading), PALETTE[dark]
    axes = panel(picture, dark, xlabel="patterns, P", ylabel="least y·N(x) over all inputs")
    margins = finding.arrays_of("margins")
    for place, values in enumerate(margins.values()):
        spread = place + 0.3 * np.linspace(-1, 1, len(values))
        axes.scatter(spread, values, s=7, color=colours.lines[0], alpha=0.4, linewidths=0)
    axes.axhline(0, color=colours.muted, linestyle="--", linewidth=1.2)
    axes.set_xticks(range(len(margins)), list(margins))
    axes.set_ylim(min(-0.05, *(float(values.min()) for values in margins.values())), 1)
    return picture


@old_figure(
    "theorem 6.1 error",
    title="Test error of networks that satisfy PSI, at the theorem's number of samples",
    show=_drawn_worst,
)
def theorem_61_error(effort: str, run: Run) -> Finding:
    """The worst networks that PSI allows on drawn training sets, and SGD on the fewest patterns."""
    sets, runs, k = _WORST[effort]
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    shares: list[Estimate] = []
    for patterns, (n, many) in sets.items():
        law, samples = PatternDistribution("uniform", n, patterns), least_samples(patterns)
        most = max(1, _VALUES // (samples * patterns))
        drawn = torch.cat(
            [
                label_statistics(
                    law.draw(samples, seed=seed_of(SEED, "worst", patterns, done), runs=min(most, many - done))
                )
                for done in range(0, many, most)
            ]
        )
        inputs = all_inputs(law)
        outputs = network_outputs(worst_networks(drawn, samples), inputs.places) * inputs.labels
        margins = outputs.flatten(1).amin(1)
        arrays[f"margins: {patterns}"] = margins.numpy()
        right = proportion(float((margins > 0).double().mean()), many)
        shares.append(right.map_linear(100.0, -100 * (1 - 4 / patterns**3)))
        statistics[f"p_{patterns}_training_sets_on_which_the_worst_network_errs_nowhere_percent"] = (
            right.in_percent().named(f"P = {patterns}: training sets on which the worst network errs nowhere", "%")
        )
    chances = [exact_chance_of_error(patterns) * patterns**3 / 4 for patterns in _EXACT]
    statistics["largest_exact_chance_of_an_error_over_4_p3"] = Estimate.exact(max(chances)).named(
        "largest exact chance of an error over 4/P³"
    )
    statistics["least_share_that_errs_nowhere_minus_1_minus_4_p3_points"] = min(shares, key=lambda one: one.low).named(
        "share of training sets without an error, minus 1 − 4/P³, least over P", "points"
    )
    fewest = min(sets)
    training: dict[str, Any] = {
        "law": "uniform",
        "per_input": sets[fewest][0],
        "patterns": fewest,
        "samples": least_samples(fewest),
        "k": k,
        "runs": runs,
        "slope": 1.0,
        "rate": 0.2 / k,
        "batch": 100,
        "epochs": 400,
        "test": 1000,
        "seed": SEED,
    }
    found = pattern_statistics(**training, run=run)
    held = found.constants() <= 1
    statistics["sgd_share_of_runs_that_converged"] = Estimate.exact(float(found.converged.mean())).named(
        "SGD: share of runs that converged"
    )
    statistics["sgd_runs_with_psi_at_b_1_and_c_1_percent"] = (
        proportion(float(held.mean()), runs).in_percent().named("SGD: runs with PSI at b = c = 1", "%")
    )
    if held.any():
        right = proportion(float((found.test_errors[held] == 0).mean()), int(held.sum()))
        statistics["sgd_share_that_errs_nowhere_minus_1_minus_4_p3_points"] = right.map_linear(
            100.0, -100 * (1 - 4 / fewest**3)
        ).named("SGD: share of runs with PSI that err nowhere, minus 1 − 4/P³", "points")
    settings = {
        "training sets by P": {patterns: many for patterns, (_, many) in sets.items()},
        "patterns of an input by P": {patterns: n for patterns, (n, _) in sets.items()},
        "exact for P": [min(_EXACT), max(_EXACT)],
        "b": 1,
        "c": 1,
        "seed": SEED,
        "SGD": training,
    }
    notes = (
        "The theorem is about every algorithm with PSI. The worst networks have ratios equal to PSI's bound, so that equation (3) is "
        "an equality: where they are right, every network with PSI is.",
        "All inputs are tried: there are 4 to 40 of them. SGD's 1,000 test inputs hold each of them many times.",
    )
    return Finding(statistics, arrays, settings, notes)
