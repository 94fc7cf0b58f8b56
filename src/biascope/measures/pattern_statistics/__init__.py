"""Pattern statistics: patterns that the channels of a trained pattern network detect, against label statistics (PSI)."""

# r runs · P patterns · m samples · k half the channels

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from biascope.measures.pattern_statistics.lookup import initial_tables, lookup_outputs, trained_tables
from biascope.measures.pattern_statistics.result import PatternStatistics
from biascope.results.registry import measurement
from biascope.runs.randomness import seed_of
from biascope.runs.run import Run
from biascope.runs.trials import Group, Outcome, Sweep
from biascope.tasks.pattern_ratios import certificate, detection, detection_ratios, label_statistics
from biascope.tasks.patterns import PatternDistribution, PatternSamples

SLOPE = 2.0  # b, at which the paper gives c*


def published_rate(k: int) -> float:
    """The learning rate of the paper as best read: ``max(0.001/k, 1e-7)``; the printed formula is damaged."""
    return max(1e-3 / k, 1e-7)


def published_batch(k: int) -> int:
    """20 for 10,000 channels of either sign and more, 100 for fewer: the paper says 20 and 100 for 10,000 and 1,000."""
    return 20 if k >= 10_000 else 100


def drawn_samples(
    law: PatternDistribution, numbers: Sequence[int], *, samples: int, test: int, seed: int
) -> tuple[PatternSamples, PatternSamples]:
    """Training and fresh samples ``(r, m, n)`` of the runs of these numbers, as :func:`pattern_statistics` takes them."""
    given = law.draw(samples, seed=seed_of(seed, "train"), runs=numbers)
    return given, law.draw(test, seed=seed_of(seed, "test"), runs=numbers)


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    settings = {"per_input": 3, "patterns": 6, "samples": 20, "k": 20, "runs": 3, "batch": 10, "rate": 1e-3, "test": 40}
    return (), settings


@measurement(title="Pattern statistics", paper="patterns2021", result=PatternStatistics, example=_example)
def pattern_statistics(
    *,
    law: str = "uniform",
    per_input: int = 10,
    patterns: int = 20,
    bias: float = 0.5,
    samples: int = 1000,
    k: int = 1000,
    runs: int = 10,
    slope: float = SLOPE,
    rate: float | None = None,
    batch: int | None = None,
    epochs: int = 50_000,
    tolerance: float = 1e-5,
    scale: float = 1e-6,
    test: int = 1000,
    seed: int = 0,
    run: Run | None = None,
) -> PatternStatistics:
    """Train pattern networks and compare the patterns that their channels detect with the label statistics.

    Definition:
        Networks ``N(x) = Σ_{i≤k} [max_j σ(w_i·x[j]) − max_j σ(u_i·x[j])]`` are trained by SGD on the hinge loss. Each network has
        its own samples and initial weights. PSI with constants b and c is an upper bound: every detection ratio is at most
        ``b·max(−s_i/s_1, 0) + c/√m``. c* is the smallest such c at the slope b.

    Args:
        law: Distribution of the inputs: ``"uniform"`` (D_u), ``"paired"`` (D_vc) or ``"biased"`` (D_p).
        per_input: Number n of patterns in an input.
        patterns: Number P of orthonormal patterns; the look-up form works for any of them.
        bias: Parameter p of the biased distribution.
        samples: Number m of training samples.
        k: Half the number of channels.
        runs: Number of independent trainings.
        slope: Slope b of PSI.
        rate: Learning rate; by default ``max(0.001/k, 1e-7)``.
        batch: Samples of a batch; by default 100, and 20 from k = 10,000 on.
        epochs: Largest number of passes over the samples.
        tolerance: Training loss at which a run ends.
        scale: σ_g, standard deviation of the initial weights.
        test: Number of fresh test inputs.
        seed: Random seed for samples, weights and the order of samples; run i does not depend on the number of runs.
        run: Device, precision, progress, and the folder for finished runs.

    Returns:
        Statistics, ratios and constants, with a certificate for every run.

    Raises:
        ValueError: If a setting is out of its range.

    Example:
        >>> found = pattern_statistics(per_input=3, patterns=6, samples=50, k=50, runs=2, rate=1e-3, run=Run(device="cpu"))
        >>> found.test_errors.tolist(), bool((found.constants() < 1).all())
        ([0.0, 0.0], True)

    Reference:
        On the inductive bias of a CNN for distributions with orthogonal patterns (2021), sections 4, 6, 7 and E.
    """
    if min(samples, runs, k, test) < 1:
        raise ValueError(
            f"samples, runs, k and test must be at least 1, got {samples}, {runs}, {k} and {test}. "
            "Pass samples=1000, runs=10, k=1000, test=1000."
        )
    if min(slope, scale) <= 0:
        raise ValueError(f"slope and scale must be above 0, got {slope:g} and {scale:g}. Pass slope=2, scale=1e-6.")
    run, source = run or Run(), PatternDistribution(law, per_input, patterns, bias)
    chosen = {
        "rate": published_rate(k) if rate is None else rate,
        "batch": published_batch(k) if batch is None else batch,
        "epochs": epochs,
        "tolerance": tolerance,
    }
    how: dict[str, Any] = {"law": source, "samples": samples, "k": k, "scale": scale, "test": test, "seed": seed}
    how["how"] = chosen
    # On a CPU runs are trained one by one, a few at a time so that little is lost by an interrupt; on a GPU all at once.
    size = runs if run.torch_device.type == "cuda" else 2 * max(1, torch.get_num_threads())

    def plan(new: Sequence[str]) -> list[Group]:
        ordered = sorted(new, key=int)
        return [Group(tuple(ordered[at : at + size]), {}) for at in range(0, len(ordered), size)]

    keys = [str(number) for number in range(runs)]
    sweep = Sweep("pattern statistics", run, code=_trained, **how)
    found = sweep.outcomes(keys, functools.partial(_trained, **how), plan=plan, label="pattern networks")
    gathered = {name: np.stack([found[key][name].numpy() for key in keys]) for name in found[keys[0]]}
    return PatternStatistics(
        **gathered,
        law=law,
        per_input=per_input,
        samples=samples,
        k=k,
        slope=slope,
        bias=bias,
        provenance={key: chosen[key] for key in ("rate", "batch")},
    )


def _trained(
    keys: Sequence[str],
    run: Run,
    method: dict[str, Any],
    *,
    law: PatternDistribution,
    samples: int,
    k: int,
    scale: float,
    test: int,
    seed: int,
    how: dict[str, Any],
) -> dict[str, Outcome]:
    """Train the runs of these numbers together, and look at each."""
    numbers = [int(key) for key in keys]
    given, fresh = drawn_samples(law, numbers, samples=samples, test=test, seed=seed)
    start = initial_tables(numbers, law.patterns, k, scale=scale, seed=seed_of(seed, "weights"), run=run)
    done = trained_tables(start, given, **how, seed=seed_of(seed, "order"), numbers=numbers, run=run)
    train_errors, test_errors = (_errors(done.tables, part) for part in (given, fresh))
    seen = detection(done.tables.mT)
    ratios, bound = detection_ratios(seen), certificate(seen)
    groups = _detectors(seen.positive, law.patterns), _detectors(seen.negative, law.patterns)
    outcome = {
        "statistics": label_statistics(given),
        "positive": ratios.positive,
        "negative": ratios.negative,
        "detectors": torch.cat(groups, 1),
        "masses": torch.stack([seen.plus_w, seen.plus_u, seen.minus_w, seen.minus_u], 1),
        "margins": torch.stack([bound.positive, bound.negative], 1),
        "small": bound.small,
        "epochs": done.epochs,
        "losses": done.losses,
        "converged": done.converged,
        "train_errors": train_errors,
        "test_errors": test_errors,
    }
    return {key: {name: value[row].cpu() for name, value in outcome.items()} for row, key in enumerate(keys)}


def _errors(tables: Tensor, samples: PatternSamples) -> Tensor:
    """Share of samples on the wrong side, 0 being wrong, ``(r,)``."""
    outputs = lookup_outputs(tables, samples.places)
    return (outputs * samples.labels.to(outputs) <= 0).double().mean(1)


def _detectors(places: Tensor, patterns: int) -> Tensor:
    """How many channels of either sign detect each pattern, ``(r, 2, P)``, from the pattern of each channel (−1: none)."""
    halves = torch.stack(places.chunk(2, 1), 1)
    counts = torch.zeros(*halves.shape[:2], patterns + 1, dtype=torch.long, device=places.device)
    return counts.scatter_add_(2, halves + 1, torch.ones_like(halves))[..., 1:]
