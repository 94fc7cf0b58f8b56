"""Which network to use for a signal: candidates ranked by their tangent kernels, before any training."""

# N samples of the longest side · n points of a window · d coordinates · c channels · a candidates · D draws · t times

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from biascope.families.family import Family
from biascope.measures.advise.candidates import Candidate, usual_candidates
from biascope.measures.advise.kernels import TIMES, SignalKernels
from biascope.measures.advise.result import Advice
from biascope.results.registry import measurement
from biascope.runs.run import Run
from biascope.runs.threads import on_each_core
from biascope.runs.trials import Group, Outcome, Sweep
from biascope.tasks.harmonics import bins_of, coverage, energy_spectrum, harmonics, mapping_frequencies, uncovered
from biascope.tasks.signals import Signal, SignalTask, psnr_of
from biascope.tasks.task import master_dtype
from biascope.training.fit import fit, joined
from biascope.training.recipe import Recipe
from biascope.training.signals import usual_recipe

LEAST, MOST = 64, 4096  # points of the larger kernel
SMALLER = 4  # how many times as few points the smaller kernel has
PACE = 10.0  # how many times as fast as at its first gradient Adam goes on the whole: gradients fall, and it divides by them
LARGEST_GRID = 2**20  # points up to which harmonics of a fixed mapping are enumerated


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    wave = Signal(torch.sin(40 * torch.arange(96) / 96)[:, None].double(), "a wave")
    chosen = [Candidate("relu"), Candidate("siren", 15.0), Candidate("siren", 40.0)]
    return (wave, chosen), {"points": 64, "draws": 2, "width": 16}


@measurement(
    title="Which network to use for this signal",
    paper="dictionaries2022",
    result=Advice,
    example=_example,
    command="biascope inr advise",
)
def advise(
    signal: Signal,
    candidates: Sequence[Candidate] | None = None,
    *,
    steps: int = 100,
    rate: float = 1e-4,
    points: int = 1024,
    draws: int = 3,
    peak: float = 1.0,
    width: int = 256,
    check: bool = False,
    batch: int = 16_384,
    seed: int = 0,
    run: Run | None = None,
) -> Advice:
    """Rank networks for a signal by the tangent kernels of their initial weights.

    Definition:
        Gradient flow minimises the squared error over all N points. It starts at outputs f₀ and moves towards the signal f along
        the atoms of the kernel K. After a time t, atoms with eigenvalues above N/t are learned, as in ridge regression with
        ``ε = N/t``. The score is the PSNR of ``f̂ = f₀ + K_hk(K_kk + εI)⁻¹(f − f₀)_k``. Half of the points of a window (k)
        predict the other half (h). The points are neighbours at their true coordinates, so one absolute ε serves windows of all
        sizes.

        With rate η, Adam moves every weight at a similar speed, for any size of the first gradient g₀. So T iterations correspond
        to ``t = 10·Tη√P/‖g₀‖`` with P weights. The factor 10 accounts for gradients that fall. It was chosen on eight faces and
        five synthetic sounds. The score is the best PSNR up to that time: networks overfit later than their first kernels.

        A signal of at most ``points`` points is used as a whole. Scores are means over networks, and each network has its own
        window. They are also computed with a quarter of the points. Do not rely on an order that depends on the number of points.
        The mean of every channel is subtracted, as in training. Channels share the kernel, and their squared errors are averaged.

        The result warns of three kinds of energy:

        - energy on atoms that are not learned in T iterations;
        - energy on frequencies that the harmonics of a fixed mapping do not reach;
        - energy beyond the Nyquist frequency in the kernel's prediction between the samples.

    Args:
        signal: An image, a sound, a volume.
        candidates: Networks to rank; by default :func:`usual_candidates`.
        steps: Iterations of Adam that the ranking is for.
        rate: Learning rate of Adam.
        points: Most points of a kernel, 64 to 4,096.
        draws: Networks to draw for each candidate.
        peak: Range of the values, for the PSNR.
        width: Units of each layer.
        check: Whether to train one network of each candidate on half of the points.
        batch: Points in a training iteration of the check, at most.
        seed: Random seed for weights, windows and held-out points.
        run: Folder (finished work is saved), device, progress; kernels are always computed in float64.

    Returns:
        The candidates, best first.

    Raises:
        ValueError: If the signal is constant or too small, or a setting is out of its range.

    Example:
        >>> wave = Signal(torch.sin(40 * torch.arange(256) / 256)[:, None].double(), "wave")
        >>> chosen = [Candidate("relu"), Candidate("siren", 40.0)]
        >>> found = advise(wave, chosen, points=64, draws=2, width=32, run=Run(device="cpu"))
        >>> found.names  # a ReLU network is too slow for six periods
        ('SIREN ω₀=40', 'ReLU MLP')

    Reference:
        Yüce, Ortiz-Jiménez, Besbinar, Frossard (2022). A structured dictionary perspective on implicit neural
        representations. CVPR. Thesis, sections 5.3 and 5.4.
    """
    run = run or Run()
    chosen = list(candidates) if candidates is not None else usual_candidates(signal.shape)
    _check(signal, chosen, {"points": points, "draws": draws, "steps": steps, "batch": batch}, rate, peak)
    large = min(points, signal.flat.shape[0])
    look = SignalKernels(_varied(signal), (large // SMALLER, large), points, seed)
    with run.tracked("kernels", len(chosen) * draws) as advance:
        families = [candidate.family(len(signal.shape), width=width) for candidate in chosen]
        inner = replace(run, progress=False)
        # Candidates share no module, so that every core can take its own.
        seen = on_each_core(lambda i: look.outcomes(families[i], draws, inner, advance), len(families), run)
    # (a, s, D, t): squared errors become decibels
    course = np.stack([np.stack([one["errors"].numpy() for one in each], 1) for each in seen])
    course = np.maximum.accumulate(20 * math.log10(peak) - 10 * np.log10(np.maximum(course, 1e-300)), -1)
    pace = PACE * rate * np.array([[float(one["pace"]) for one in each] for each in seen])  # (a, D)
    found = Advice(
        signal=signal.name,
        sizes=signal.shape,
        channels=signal.channels,
        names=tuple(candidate.name for candidate in chosen),
        kinds=tuple(candidate.kind for candidate in chosen),
        values=np.array([candidate.value for candidate in chosen]),
        models=tuple(candidate.model for candidate in chosen),
        points=look.sizes,
        iterations=tuple(sorted({max(1, round(steps / part)) for part in (30, 10, 3, 1)})),
        times=TIMES.numpy(),
        course=course.transpose(1, 0, 2, 3),
        pace=pace,
        learned=np.stack([np.stack([one["learned"].numpy() for one in each]) for each in seen]),
        covered=np.ones(len(chosen)),
        missed=("",) * len(chosen),
        frequencies=seen[0][0]["frequencies"].numpy(),
        between=np.stack([each[0]["spectrum"].numpy() for each in seen]),
        beyond=np.array([float(each[0]["beyond"]) for each in seen]),
        nyquist=max(signal.shape) / 2,
        trained=None,
        preview=_preview(signal),
    )
    shares = [_coverage(candidate, signal) for candidate in chosen]
    found = replace(found, covered=np.array([share for share, _ in shares]), missed=tuple(words for _, words in shares))
    if check:
        recipe = usual_recipe(batch, steps=steps, rate=rate, batch=batch)
        named = [each.family(len(signal.shape), outputs=signal.channels, width=width) for each in chosen]
        keyed = {f"{family.name} {family.identity['content']}": family for family in named}
        found = replace(found, trained=_Training(keyed, signal, found.iterations, recipe, peak, seed).psnr(run))
    return found.ranked()


def _preview(signal: Signal, most: int = 192) -> np.ndarray:
    """An image as bytes (row, column, colour), thinned out to at most so many pixels along a side; empty for other signals."""
    if len(signal.shape) != 2 or signal.channels not in (1, 3):
        return np.zeros((0, 0, 0), np.uint8)
    values = signal.values.detach().cpu().double().numpy()
    every = math.ceil(max(signal.shape) / most)
    low, high = (0.0, 1.0) if values.min() >= 0 and values.max() <= 1 else (float(values.min()), float(values.max()))
    return np.rint(255 * (values[::every, ::every] - low) / (high - low)).astype(np.uint8)


def _check(
    signal: Signal, candidates: Sequence[Candidate], numbers: Mapping[str, int], rate: float, peak: float
) -> None:
    total = signal.flat.shape[0]
    if total < LEAST:
        raise ValueError(
            f"{signal.name} must have at least {LEAST} samples to rank networks, got {total}. Pass a larger signal."
        )
    if not LEAST <= numbers["points"] <= MOST:
        raise ValueError(f"points must be from {LEAST} to {MOST:,}, got {numbers['points']}. Pass points=1024.")
    for name, usual in (("draws", 3), ("steps", 100), ("batch", 16_384)):
        if numbers[name] < 1:
            raise ValueError(f"{name} must be at least 1, got {numbers[name]}. Pass {name}={usual}.")
    if not 0 < rate < math.inf:
        raise ValueError(f"rate must be a positive number, got {rate}. Pass rate=1e-4.")
    if not 0 < peak < math.inf:
        raise ValueError(f"peak must be a positive number, got {peak}. Pass peak=1.0 for images from 0 to 1.")
    names = [candidate.name for candidate in candidates]
    if not names or len(set(names)) < len(names):
        raise ValueError(
            f"candidates must be one or more different networks, got {names}. Remove duplicates or add one."
        )


def _varied(signal: Signal) -> Signal:
    """The channels that are not constant, without their means.

    Raises:
        ValueError: If all are.
    """
    flat = signal.flat.double().cpu()
    spread = flat.std(0) > 1e-9 * flat.abs().amax(0)
    if not bool(spread.any()):
        raise ValueError(f"{signal.name} must vary, got one value everywhere. Pass a signal that is not constant.")
    return replace(signal, values=(flat - flat.mean(0))[:, spread].reshape(*signal.shape, -1))


def _coverage(candidate: Candidate, signal: Signal) -> tuple[float, str]:
    """Share of the signal's energy that the harmonics of a fixed mapping reach, and the strongest frequency that they miss.

    Those of random frequencies reach everything: they have no common divisor.
    """
    if candidate.kind not in ("positional", "single") or signal.flat.shape[0] > LARGEST_GRID:
        return 1.0, ""
    frequencies = mapping_frequencies(candidate.family(len(signal.shape)).template, len(signal.shape))
    assert frequencies is not None
    extent = [size / max(signal.shape) for size in signal.shape]
    reached = harmonics(bins_of(frequencies, extent), signal.shape).reached
    energy = energy_spectrum(signal.values.cpu())
    missing, _ = uncovered(energy, reached)
    words = " × ".join(str(abs(int(each))) for each in missing[0]) + " cycles" if len(missing) else ""
    return coverage(energy, reached), words


@dataclass(frozen=True)
class _Training:
    """Trainings of candidates, each on half of the points, those of one shape as a stack.

    Attributes:
        families: By the key of the trial.
        signal: What is learned.
        iterations: When networks are looked at.
        recipe: How they are trained.
        peak: Range of the values, for the PSNR.
        seed: Random seed for weights, points held out and their order.
    """

    families: Mapping[str, Family]
    signal: Signal
    iterations: tuple[int, ...]
    recipe: Recipe
    peak: float
    seed: int

    def psnr(self, run: Run) -> np.ndarray:
        """On the points held out (iteration, candidate)."""
        # Trials name their candidate, so that a new one costs its own training alone.
        sweep = Sweep(
            "advice check",
            run,
            code=_Training,
            signal=self.signal,
            recipe=self.recipe,
            iterations=self.iterations,
            peak=self.peak,
            seed=self.seed,
        )
        found = sweep.outcomes(list(self.families), self, plan=self.planned, label="trainings")
        return np.stack([outcome["psnr"].numpy() for outcome in found.values()], 1)

    def planned(self, keys: Sequence[str]) -> list[Group]:
        """Networks that differ in their numbers alone make one stack: those of one encoding, whatever its frequencies."""
        alike: dict[str, list[str]] = {}
        for key in keys:
            template = self.families[key].template
            shapes = [tuple(tensor.shape) for tensor in (*template.params.values(), *template.buffers.values())]
            alike.setdefault(f"{template.module!r}{shapes}", []).append(key)
        return [Group(tuple(each)) for each in alike.values()]

    def __call__(self, keys: Sequence[str], run: Run, method: Mapping[str, Any]) -> dict[str, Outcome]:
        """Train the candidates of one group."""
        exact, seed = replace(run, precision="float64"), self.seed
        whole = SignalTask.of(self.signal, held_out=0.5, seed=seed, run=run)
        task = replace(whole, values=whole.values - whole.values[:, whole.points["train"]].mean(1, keepdim=True))
        members = [self.families[key].draw(1, seed=seed, run=exact).member(0) for key in keys]
        start = joined(members, members[0]).to(run.torch_device, master_dtype(run))
        walk = fit(start, task, self.recipe, seed=seed, run=run, keep_at=self.iterations)
        looked = [psnr_of(walk.at(step), task, "test", peak=self.peak, run=run) for step in self.iterations]
        return {key: {"psnr": each} for key, each in zip(keys, torch.stack(looked, 1), strict=True)}
