"""Theorem 6.1: how many samples make networks with PSI err nowhere, and what its certificate promises."""

# r runs · 2k channels · P patterns · n patterns of an input · m samples

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from biascope.measures.pattern_statistics import pattern_statistics, published_batch, published_rate
from biascope.measures.pattern_statistics.lookup import initial_tables, trained_tables
from biascope.papers.patterns2021.shattering import SEED
from biascope.papers.units import with_unit
from biascope.results.draw import PALETTE, blank, line_colours, panel
from biascope.results.estimate import Estimate, proportion
from biascope.results.finding import Finding, Tell, figure
from biascope.results.plan import Plan, Row
from biascope.runs.randomness import generator_for, seed_of
from biascope.runs.run import Run
from biascope.tasks.pattern_ratios import (
    certificate,
    detection,
    label_statistics,
    leanings,
    network_outputs,
    sample_size_bound,
)
from biascope.tasks.patterns import PatternDistribution, PatternSamples

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_VALUES = 2**24  # numbers held at a time
_PARTS = tuple(2.0**-power for power in range(10, -1, -1))  # of the theorem's number of samples
_REFERENCE = 2 * math.sqrt(2)  # in (8), for the printed 4


def share(flags: Tensor) -> Estimate:
    """How many are true, in percent, with the interval of so many."""
    return proportion(float(flags.double().mean()), flags.numel()).in_percent()


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
    detected, inputs = detection(responses), all_inputs(law)
    bound = certificate(detected)
    margins = network_outputs(responses.double(), inputs.places) * inputs.labels
    unit = torch.maximum(detected.plus_w[:, 0], detected.minus_u[:, 1]).clamp_min(1e-300)
    return torch.stack([torch.minimum(bound.positive, bound.negative), margins.amin(-1)]) / unit


def judged_networks(count: int, run: Run) -> dict[str, Tensor]:
    """Certificates and margins of networks that SGD trained on few to many samples, and of random ones, by kind."""
    law, k = PatternDistribution("uniform", 5, 10), 20
    how: dict[str, Any] = {"rate": 1e-2, "batch": 20, "epochs": 5000, "seed": SEED, "run": run}
    trained = []
    for samples in (4, 8, 16, 64):
        seed = seed_of(SEED, "judged", samples)
        start = initial_tables(count, law.patterns, k, seed=seed, run=run)
        done = trained_tables(start, law.draw(samples, seed=seed, runs=count), **how)
        trained.append(bounds_and_margins(done.tables.mT.cpu(), law))
    # Random channels of which some answer their own label's pattern the more: from hopeless ones to perfect ones.
    generator = generator_for(torch.device("cpu"), SEED, "random networks")
    random = torch.randn(4 * count, 2 * k, law.patterns, generator=generator)
    random[:, :k, 0] += torch.linspace(0, 12, 4 * count)[:, None]
    random[:, k:, 1] += torch.linspace(0, 12, 4 * count)[:, None]
    return {"trained by SGD": torch.cat(trained, 1), "drawn at random": bounds_and_margins(random.double(), law)}


def chance_below_third(samples: int) -> float:
    """``P(s_1 < 1/3)``, exactly: s_1 is the share of the label +1."""
    from scipy.stats import binom

    return float(binom.cdf(math.ceil(samples / 3) - 1, samples, 0.5))


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


def _balanced(sets: dict[int, int], networks: int, *, runs: int, k: int, rate: float | None = None) -> dict[str, Any]:
    """Settings of theorem 6.1: training sets by P, networks of a kind, and SGD on 6 patterns with b = 2 and c = 1."""
    size: dict[str, Any] = {"law": "uniform", "per_input": 3, "patterns": 6, "k": k, "runs": runs, "slope": 2.0}
    samples = sample_size_bound(6, slope=2, constant=1).samples
    how = {"rate": rate or published_rate(k), "batch": published_batch(k), "epochs": 50_000, "tolerance": 1e-5}
    sgd = {**size, **how, "samples": samples, "scale": 1e-6, "test": 1000, "seed": SEED}
    return {"training sets by P": sets, "b": 1, "c": 1, "networks of a kind": networks, "seed": SEED, "SGD": sgd}


@figure(
    "theorem 6.1",
    title="How many samples make the pattern statistics small enough for the certificate",
    plan=Plan(
        smoke=_balanced({6: 4, 8: 4}, 8, runs=2, k=10, rate=1e-2),
        laptop=_balanced({8: 300, 12: 200, 20: 60}, 40, runs=20, k=50),
        paper=_balanced({8: 600, 12: 300, 20: 100, 50: 5}, 200, runs=40, k=1000),
    ),
    show=_drawn_theorem_61,
)
def theorem_61(plan: Row, run: Run, tell: Tell) -> None:
    """Concentration at the theorem's own number of samples, and certificates against all inputs."""
    roots, lost, low, balanced = [], [], [], []
    for patterns, many in plan["training sets by P"].items():
        of, samples = tell.about(f"P = {patterns}"), least_samples(patterns)
        root = math.sqrt(math.log(patterns) / samples)
        roots.append(6 * patterns * root)
        presences = (patterns // 2 - 1) / (patterns - 2), 1.0  # n = P/2, and the worst case: in every input
        chance = max(chance_above(samples, presence, _REFERENCE * root) for presence in presences)
        lost.append((patterns - 2) * chance / (2 / patterns**3))
        low.append(chance_below_third(samples) * patterns**3)
        leaning = leanings_by_size(patterns, many)
        balanced.append(leaning[-1] <= 1)
        shares = 100 * (leaning <= 1).double().mean(1)
        tell.array(f"P = {patterns}", np.stack([np.array(_PARTS), shares.numpy()]))
        enough = zip(_PARTS, (shares >= 100 * (1 - 4 / patterns**3)).tolist(), strict=True)
        if held := [part for part, is_enough in enough if is_enough]:
            of("least part of the theorem's m with a share of 1 − 4/P³", Estimate.exact(held[0]))
        of(f"largest 2P abs(s_i/s_1) of {many} training sets", Estimate.exact(float(leaning[-1].max())))
    networks = judged_networks(plan["networks of a kind"], run)
    for name, each in networks.items():
        tell.array(name, each.numpy())
    bound, margin = torch.cat(list(networks.values()), 1)
    sure = bound > 0
    for label, number in (
        ("largest 4b√(log d/m) over 1/(6cd) at the theorem's m", 4 * max(roots)),
        ("largest 2√2·b√(log d/m) over 1/(6cd) at the theorem's m", _REFERENCE * max(roots)),
        ("exact chance of failure over 2/d³, spurious", max(lost)),
        ("exact chance of s_1 < 1/3 over 1/d³", max(low)),
        ("networks judged", len(bound)),
        ("networks certified", int(sure.sum())),
        ("certified networks that err on an input", int((margin[sure] <= 0).sum())),
        ("networks that err nowhere and are not certified", int((margin[~sure] > 0).sum())),
        ("least margin minus the certified bound", float((margin - bound).min())),
    ):
        tell(label, Estimate.exact(number))
    with_unit(tell, "training sets as balanced as (9) needs", share(torch.cat(balanced)), "%")
    of, sgd = tell.about("SGD at the theorem's m"), pattern_statistics(**plan["SGD"], run=run)
    with_unit(of, "runs that err nowhere", share(torch.as_tensor(sgd.test_errors == 0)), "%")
    with_unit(of, "runs with all ratios below 1/P", share(torch.as_tensor(sgd.small)), "%")
    of("largest c* at b = 2", Estimate.exact(float(sgd.constants().max())))
    tell.note(
        "Exact chances come from the binomial law; the simulated shares show how much Hoeffding's inequality and the union give away.",
        "SGD at the theorem's m is seen at P = 6 alone, with b = 2 and c = 1; its test inputs are all 12 there are, many times. "
        "Where its c* is above 1, the theorem asks for more samples than these, and promises nothing yet.",
    )


# Zero test error

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
    networks = torch.zeros(len(statistics), 2, 2 * size, size, dtype=torch.float64)
    for side, (lean, own, other) in enumerate(((allowed.positive, 0, 1), (allowed.negative, 1, 0))):
        added, taken = (0, size) if side == 0 else (size, 0)
        ratios = (slope * lean + rest).nan_to_num(0.0)
        # The other label's pattern is detected too, and in no input of this label.
        ratios[:, own], ratios[:, other] = rest, 1.0
        networks[:, side, added + own, own] = 1.0
        networks[:, side, torch.arange(size) + taken, torch.arange(size)] = ratios
    return networks


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


def _worst(sets: dict[int, tuple[int, int]], *, runs: int, k: int) -> dict[str, Any]:
    """Settings of the test error: patterns of an input and training sets by P, and SGD on the fewest patterns."""
    fewest = min(sets)
    size = {"law": "uniform", "per_input": sets[fewest][0], "patterns": fewest, "k": k, "runs": runs, "slope": 1.0}
    how = {"samples": least_samples(fewest), "rate": 0.2 / k, "batch": 100, "epochs": 400, "test": 1000, "seed": SEED}
    return {
        "training sets by P": {patterns: many for patterns, (_, many) in sets.items()},
        "patterns of an input by P": {patterns: n for patterns, (n, _) in sets.items()},
        "exact for P": [min(_EXACT), max(_EXACT)],
        **{"b": 1, "c": 1, "seed": SEED, "SGD": {**size, **how}},
    }


@figure(
    "theorem 6.1 error",
    title="Test error of networks that satisfy PSI, at the theorem's number of samples",
    plan=Plan(
        smoke=_worst({4: (2, 20)}, runs=4, k=10),
        laptop=_worst({4: (2, 200), 5: (3, 250), 6: (3, 400), 8: (4, 800)}, runs=100, k=20),
        paper=_worst({4: (2, 1000), 5: (3, 1000), 6: (3, 1000), 8: (4, 2000)}, runs=400, k=20),
    ),
    show=_drawn_worst,
)
def theorem_61_error(plan: Row, run: Run, tell: Tell) -> None:
    """The worst networks that PSI allows on drawn training sets, and SGD on the fewest patterns."""
    beyond: list[Estimate] = []
    for patterns, many in plan["training sets by P"].items():
        law = PatternDistribution("uniform", plan["patterns of an input by P"][patterns], patterns)
        samples = least_samples(patterns)
        most = max(1, _VALUES // (samples * patterns))
        parts = [
            law.draw(samples, seed=seed_of(SEED, "worst", patterns, done), runs=min(most, many - done))
            for done in range(0, many, most)
        ]
        drawn = torch.cat([label_statistics(part) for part in parts])
        inputs = all_inputs(law)
        outputs = network_outputs(worst_networks(drawn, samples), inputs.places) * inputs.labels
        margins = outputs.flatten(1).amin(1)
        tell.array(f"{patterns}", margins.numpy(), kind="margins")
        right = proportion(float((margins > 0).double().mean()), many)
        beyond.append(right.map_linear(100.0, -100 * (1 - 4 / patterns**3)))
        label = "training sets on which the worst network errs nowhere"
        with_unit(tell.about(f"P = {patterns}"), label, right.in_percent(), "%")
    chances = [exact_chance_of_error(patterns) * patterns**3 / 4 for patterns in _EXACT]
    tell("largest exact chance of an error over 4/P³", Estimate.exact(max(chances)))
    least = min(beyond, key=lambda one: one.low)
    label = "share of training sets without an error, minus 1 − 4/P³, least over P"
    tell(label, least, "points", key="least_share_that_errs_nowhere_minus_1_minus_4_p3_points")
    of, sgd = tell.about("SGD"), pattern_statistics(**plan["SGD"], run=run)
    held = sgd.constants() <= 1
    of("share of runs that converged", Estimate.exact(float(sgd.converged.mean())))
    psi = share(torch.as_tensor(held))
    of("runs with PSI at b = c = 1", psi, "%", key="sgd_runs_with_psi_at_b_1_and_c_1_percent")
    if held.any():
        right = proportion(float((sgd.test_errors[held] == 0).mean()), int(held.sum()))
        more = right.map_linear(100.0, -100 * (1 - 4 / plan["SGD"]["patterns"] ** 3))
        label = "share of runs with PSI that err nowhere, minus 1 − 4/P³"
        of(label, more, "points", key="sgd_share_that_errs_nowhere_minus_1_minus_4_p3_points")
    tell.note(
        "The theorem is about every algorithm with PSI. The worst networks have ratios equal to PSI's bound, so that equation (3) is "
        "an equality: where they are right, every network with PSI is.",
        "All inputs are tried: there are 4 to 40 of them. SGD's 1,000 test inputs hold each of them many times.",
    )
