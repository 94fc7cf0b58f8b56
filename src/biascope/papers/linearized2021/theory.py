"""Theorems 4.1 and 4.2 and equation 4.14: what alignment, kernel norm and weights have to do with one another."""

# n inputs · p parameters · k targets

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from biascope.families.family import Family
from biascope.families.network import Network
from biascope.kernels.gram import tangent_gram
from biascope.kernels.products import TangentKernel, alignment
from biascope.measures.anisotropy_directions import anisotropy_directions
from biascope.networks import builder
from biascope.results import draw
from biascope.results.estimate import over
from biascope.results.finding import Finding, Tell, figure
from biascope.results.plan import Plan, Row
from biascope.runs.randomness import forked_rng, generator_for, seed_of
from biascope.runs.run import Run
from biascope.tasks.probe import Probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHAPE = (1, 4, 4)
EXACT = Run(device="cpu", precision="float64")  # small problems, in which rounding must not matter


def _planned(hidden: tuple[int, ...], activation: str, inputs: tuple[int, int, int]) -> Plan:
    """The plan of a theorem: inputs at each effort; more seeds with more effort."""
    network = "MLP " + "-".join(map(str, (math.prod(SHAPE), *hidden, 1)))
    smoke, laptop, paper = (
        {"network": network, "hidden": hidden, "activation": activation, "inputs": count, "seeds": seeds}
        for count, seeds in zip(inputs, (2, 5, 10), strict=True)
    )
    return Plan(smoke, laptop, paper)


def _network(plan: Row, seed: int) -> Family:
    settings = {"hidden": plan["hidden"], "activation": plan["activation"], "law": "flax"}
    build = functools.partial(builder("mlp"), image_size=SHAPE[1], outputs=1, **settings)
    with forked_rng(seed_of(seed, "theory of chapter 4")):
        return Family.point(build().double(), name="MLP")


def _inputs(count: int, seed: int) -> torch.Tensor:
    generator = generator_for(torch.device("cpu"), seed, "inputs of chapter 4")
    return torch.randn(count, *SHAPE, generator=generator, dtype=torch.float64)


def _drawn_values(finding: Finding, dark: bool) -> Figure:
    (name,) = finding.arrays
    picture = draw.blank(3.1, "One point per network.")
    axes = draw.panel(picture, dark)
    axes.plot(finding.arrays[name], "o", color=draw.PALETTE[dark].lines[0])
    axes.set(xlabel="network", ylabel=name)
    return picture


@figure(
    "theorem 4.1",
    title="Alignment bounds the norm of a target in the kernel's space",
    plan=_planned((30, 30), "gelu", (200, 200, 200)),
    show=_drawn_values,
)
def theorem_41(plan: Row, run: Run, tell: Tell) -> None:
    """The three numbers on the kernels of small networks in float64, each with random targets of several smoothnesses."""
    products, gradients, values = [], [], []
    for seed in range(plan["seeds"]):
        network = _network(plan, seed).draw(1, seed=0, run=EXACT).member(0)
        x = _inputs(plan["inputs"], seed)
        n = len(x)
        spectrum, vectors = torch.linalg.eigh(tangent_gram(network, x, run=EXACT).matrix.double() / n)
        kept = spectrum > 1e-9 * spectrum[-1]
        spectrum, functions = spectrum[kept], n**0.5 * vectors[:, kept].T  # (k,), (k, n), E φ² = 1
        generator = generator_for(torch.device("cpu"), seed, "targets of chapter 4")
        weights = torch.randn(90, len(spectrum), generator=generator, dtype=torch.float64)
        weights *= spectrum ** torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64).repeat(30)[:, None]
        targets = weights @ functions
        found = alignment(network, x, torch.cat([targets, functions]), errors=False, run=EXACT).values
        aligned, of_functions = found[: len(targets)], found[len(targets) :]
        norms = (weights.square() / spectrum).sum(1)
        products.append(float((norms * aligned / targets.square().mean(1).square()).min()))
        by_kernel = (weights.square() * spectrum).sum(1)
        gradients.append(float((aligned / by_kernel - 1).abs().max()))
        values.append(float((of_functions / spectrum - 1).abs().max()))
    tell("smallest product of norm and alignment", over(products), key="smallest_norm_times_alignment")
    tell("deviation of the mean gradient", over(gradients))
    tell("deviation of the eigenvalues", over(values))
    tell.array("smallest product", np.array(products))


@figure(
    "theorem 4.2",
    title="Alignment of linear targets by the mixed derivative",
    plan=_planned((30, 30), "gelu", (2000, 20_000, 100_000)),
    show=_drawn_values,
)
def theorem_42(plan: Row, run: Run, tell: Tell) -> None:
    """Sampled alignments along the first direction of small smooth networks; the errors of both sides are those over networks."""
    ratios = []
    for seed in range(plan["seeds"]):
        family = _network(plan, seed)
        probe = Probe.gaussian(SHAPE, fresh=True)
        found = anisotropy_directions(
            family, probe, estimator="tangent", draws=plan["inputs"] // 10, keep=1, seed=seed, run=EXACT
        )
        x = _inputs(plan["inputs"], seed)
        targets = x.flatten(1) @ torch.as_tensor(found.directions[0]).flatten().double()
        sampled = alignment(family.draw(1, seed=0, run=EXACT).member(0), x, targets, run=EXACT).population()
        ratios.append(sampled.value / float(found.eigenvalues[0]))
    tell("sampled alignment over that of the theorem", over(ratios), key="sampled_alignment_over_the_theorem")
    tell.array("sampled over theorem", np.array(ratios))
    tell.note("With ReLU the theorem misses what happens at the kinks: see the errata.")


@figure(
    "equation 4.14",
    title="Kernel norm of a linearised network and the distance of its weights",
    plan=_planned((8,), "relu", (1000, 1000, 1000)),
    show=_drawn_values,
)
def equation_414(plan: Row, run: Run, tell: Tell) -> None:
    """The norm of Jδ in the kernel's space over ‖δ‖, for random changes δ of the weights; more inputs than weights."""
    ratios = []
    for seed in range(plan["seeds"]):
        network = _network(plan, seed).draw(1, seed=0, run=EXACT).member(0)
        jacobian = _jacobian(network, _inputs(plan["inputs"], seed))
        generator = generator_for(torch.device("cpu"), seed, "weights of chapter 4")
        change = torch.randn(jacobian.shape[1], generator=generator, dtype=torch.float64)
        _, values, rows = torch.linalg.svd(jacobian, full_matrices=False)
        within = rows[values > 1e-9 * values[0]]  # the functions that the kernel's space contains
        ratios.append(float((within @ change).norm() / change.norm()))
    tell("norm over distance", over(ratios))
    tell.array("norm over distance", np.array(ratios))
    tell.note(
        "Scaling the weights into a ReLU unit and dividing those out of it changes no output: gradients do not span all weights."
    )


def _jacobian(network: Network, x: torch.Tensor) -> torch.Tensor:
    """Gradients of the output with respect to all weights, ``(n, p)``."""
    kernel = TangentKernel(network, x, run=EXACT)
    return kernel.pullback(torch.eye(len(x), dtype=torch.float64)).double()
