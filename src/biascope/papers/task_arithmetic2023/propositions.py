"""Propositions 6.1 and 6.2 of the thesis, the remark between them, and Fourier kernels: which kernels allow task arithmetic."""

# r eigenfunctions · n points · T tasks

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from biascope.papers.task_arithmetic2023.kernel_tasks import (
    KernelTasks,
    bump_on_ring,
    cancelling_tasks,
    fourier_functions,
    ring,
)
from biascope.papers.units import with_unit
from biascope.results import draw
from biascope.results.estimate import Estimate
from biascope.results.finding import Finding, Tell, figure
from biascope.results.plan import Plan, Row
from biascope.runs.randomness import seed_of
from biascope.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROUNDING = 1e-9  # interference below this is zero up to rounding
_POINTS, _SUPPORT, _FUNCTIONS = 48, 12, 5  # on the ring, of a task, and eigenfunctions of a task
_RIDGE = 1e-6  # of the largest eigenvalue, so that interpolation is well-posed
_RING = {"points": _POINTS, "support": _SUPPORT, "seed": 0}
_WAVES = (8, 16, 32, 64, 128, 256)
_PLAN = Plan(
    smoke={"cases": 8, "frequencies": (8, 32), **_RING},
    laptop={"cases": 400, "frequencies": _WAVES, **_RING},
    paper={"cases": 4000, "frequencies": _WAVES, **_RING},
)


def _supports(tasks: int) -> np.ndarray:
    """Arcs of the ring that do not intersect, ``(T, n)``."""
    places = np.arange(_POINTS) * tasks // _POINTS
    return np.stack(
        [(places == task) & (np.arange(_POINTS) * tasks % _POINTS < _SUPPORT * tasks) for task in range(tasks)]
    )


def _orthonormal(generator: np.random.Generator, rows: int, points: int) -> np.ndarray:
    return np.linalg.qr(generator.standard_normal((points, rows)))[0].T


def _local_functions(generator: np.random.Generator, supports: np.ndarray) -> np.ndarray:
    """Orthonormal functions, :data:`_FUNCTIONS` for each support and zero outside it, ``(r, n)``."""
    functions = np.zeros((len(supports), _FUNCTIONS, _POINTS))
    for task, support in enumerate(supports):
        functions[task][:, support] = _orthonormal(generator, _FUNCTIONS, int(support.sum()))
    return functions.reshape(-1, _POINTS)


def localised_case(seed: int) -> KernelTasks:
    """Tasks learned by a kernel whose eigenfunctions are localised: regression on the points of each support alone."""
    generator = np.random.default_rng(seed)
    supports = _supports(int(generator.integers(2, 4)))
    functions = _local_functions(generator, supports)
    values = generator.uniform(0.1, 1.0, len(functions))
    kernel = (functions.T * values) @ functions
    return _learned(kernel, functions, supports, generator)


def finite_case(seed: int) -> KernelTasks:
    """Tasks in finitely many eigenfunctions that are zero or independent on every support: half of them are localised.

    Eigenfunctions are localised ones and a few Fourier waves. A task uses localised ones alone, or one that is not.
    """
    generator = np.random.default_rng(seed)
    supports = _supports(2)
    waves = fourier_functions(1, _POINTS)
    functions = np.concatenate([_local_functions(generator, supports), waves])
    own = np.repeat(np.arange(2), _FUNCTIONS)
    coefficients = np.zeros((2, len(functions)))
    for task in range(2):
        coefficients[task, : len(own)] = generator.standard_normal(len(own)) * (own == task)
    if generator.random() < 0.5:  # then one task uses what another one feels
        task, beyond = int(generator.integers(2)), int(generator.integers(len(own) + len(waves)))
        elsewhere = len(own) + beyond % len(waves) if beyond < len(own) and own[beyond] == task else beyond
        coefficients[task, elsewhere] = generator.choice([-1, 1]) * generator.uniform(0.1, 1.0)
    return KernelTasks(functions, coefficients, supports)


def mixed_case(seed: int) -> KernelTasks:
    """Tasks that are zero outside their supports, in eigenfunctions that are not: a random rotation of localised functions."""
    generator = np.random.default_rng(seed)
    supports = _supports(2)
    local = _local_functions(generator, supports)
    rotation = _orthonormal(generator, len(local), len(local))
    wanted = np.kron(np.eye(2), np.ones(_FUNCTIONS)) * generator.standard_normal((2, len(local)))
    return KernelTasks(rotation @ local, wanted @ rotation.T, supports)


@functools.cache
def invariant_kernel(torus: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tangent kernel of an infinitely wide two-layer ReLU network on a ring or a torus, and two supports.

    With unit inputs at the angle a, it is ``κ₁(cos a) + cos a·κ₀(cos a)``, where ``κ₀ = (π − a)/π`` and
    ``κ₁ = (sin a + (π − a) cos a)/π``. It depends on differences of positions alone, so that its eigenfunctions are Fourier waves.

    Returns:
        Kernel ``(n, n)``, its eigenfunctions ``(n, n)`` and supports ``(2, n)``.
    """
    if torus:
        side = 8
        down, across = (each.ravel() for each in np.meshgrid(ring(side), ring(side), indexing="ij"))
        inputs = np.stack([np.cos(down), np.sin(down), np.cos(across), np.sin(across), np.ones(side**2)], 1) / 3**0.5
        supports = np.stack([down < 1.8, (down > 3) & (down < 4.8)])
    else:
        angles = ring(_POINTS)
        inputs = np.stack([np.cos(angles), np.sin(angles), np.ones(_POINTS)], 1) / 2**0.5
        supports = _supports(2)
    cosines = np.clip(inputs @ inputs.T, -1, 1)
    angle = np.arccos(cosines)
    lower = (np.pi - angle) / np.pi
    kernel = (np.sin(angle) + (np.pi - angle) * cosines) / np.pi + cosines * lower
    return kernel, np.linalg.eigh(kernel)[1].T, supports


def invariant_case(seed: int, torus: bool) -> KernelTasks:
    """Two random tasks learned by :func:`invariant_kernel`, each on the points of its support alone."""
    return _learned(*invariant_kernel(torus), np.random.default_rng(seed))


def _learned(
    kernel: np.ndarray, functions: np.ndarray, supports: np.ndarray, generator: np.random.Generator
) -> KernelTasks:
    """Kernel ridge regression of random labels on each support; outputs are written in the eigenfunctions."""
    coefficients = []
    for support in supports:
        inside = kernel[np.ix_(support, support)]
        labels = inside @ generator.standard_normal(len(inside))  # a function that the kernel can represent
        weights = np.linalg.solve(inside + _RIDGE * np.linalg.norm(inside, 2) * np.eye(len(inside)), labels)
        coefficients.append(functions @ (weights @ kernel[support]))
    return KernelTasks(functions, np.array(coefficients), supports)


def _agrees(case: KernelTasks) -> bool:
    """Whether being localised and the absence of interference go together, as proposition 6.2 says."""
    return case.localised == (case.worst_interference() < _ROUNDING)


def _drawn(finding: Finding, dark: bool) -> Figure:
    picture = draw.blank(
        2.9,
        "Left: a task learned on the first shaded support alone. Right: what two bumps on a ring add to each other, in so many waves.",
    )
    colours = draw.PALETTE[dark]
    grid = picture.add_gridspec(1, 2, wspace=0.3)
    learned, bumps = draw.panel(picture, dark, grid[0, 0]), draw.panel(picture, dark, grid[0, 1])
    for support in finding.arrays["supports"]:
        inside = np.flatnonzero(support)
        learned.axvspan(inside[0], inside[-1], color=colours.lines[2], alpha=0.15, linewidth=0)
    for colour, name in zip(colours.lines, ("localised", "Fourier"), strict=False):
        learned.plot(finding.arrays[f"learned: {name}"], color=colour, linewidth=1.5, label=f"{name} eigenfunctions")
    learned.set(xlabel="point of the ring", ylabel="learned function")
    draw.legend_below(picture, learned, dark)
    waves, felt = finding.arrays["bumps"]
    bumps.plot(waves, felt, color=colours.lines[1], marker="o", markersize=3.5)
    bumps.set(xscale="log", yscale="log", xlabel="frequencies", ylabel="interference")
    bumps.set_xticks(waves, [f"{count:.0f}" for count in waves])
    bumps.minorticks_off()
    return picture


@figure("propositions 6.1 and 6.2", title="Which kernels allow task arithmetic", plan=_PLAN, show=_drawn)
def propositions(plan: Row, run: Run, tell: Tell) -> None:
    """Interference of random tasks, by the eigenfunctions of the kernel."""
    local, finite, mixed = (
        [case(seed_of(plan["seed"], name, number)) for number in range(plan["cases"])]
        for name, case in (("localised", localised_case), ("finite", finite_case), ("mixed", mixed_case))
    )
    fourier = [
        invariant_case(seed_of(plan["seed"], "fourier", number), torus)
        for number in range(plan["cases"])
        for torus in (False, True)
    ]
    if not all(case.locally_independent() for case in finite):
        raise AssertionError("the finite cases must meet the premise of proposition 6.2")
    waves = np.array(plan["frequencies"])
    bumps = np.array([bump_on_ring(count).interference() for count in waves])
    felt = np.array([case.worst_interference() for case in fourier])
    for words, cases in (("localised", local), ("cancelling", mixed)):
        largest = max(case.worst_interference() for case in cases)
        tell(f"largest interference with {words} eigenfunctions", Estimate.exact(largest))
    for words, holds in (
        ("finite cases in which localisation decides", [_agrees(case) for case in finite]),
        ("cancelling cases that are localised", [case.localised for case in mixed]),
    ):
        share = Estimate.exact(100 * float(np.mean(holds)))
        with_unit(tell, f"share of {words}", share, "%")
    tell(
        f"slope of the interference of two bumps on a ring up to {waves[-1]} frequencies, on logarithmic axes",
        Estimate.exact(float(np.diff(np.log(bumps))[-1] / np.diff(np.log(waves))[-1])),
        key="slope_of_the_interference_of_two_bumps_on_a_ring",
    )
    tell("interference of three cancelling tasks", Estimate.exact(cancelling_tasks().interference()))
    tell("least interference with Fourier eigenfunctions", Estimate.exact(float(felt.min())))
    mean = Estimate.from_error(float(felt.mean()), float(felt.std(ddof=1)) / len(felt) ** 0.5, len(felt))
    tell("mean interference with Fourier eigenfunctions", mean)
    example = next(case for case in local if len(case.domains) == 2)
    for name, case in (("localised", example), ("Fourier", fourier[0])):
        tell.array(name, case.tasks[0] / np.abs(case.tasks[0]).max(), kind="learned")
    tell.array("supports", _supports(2))
    tell.array("bumps", np.stack([waves, bumps]))
