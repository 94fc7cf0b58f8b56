"""Appendix A.12.1: how the spread of the inputs at which gradients are taken changes the noise of the average geometry."""

# g groups of draws · D input size

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from biascope.papers.geometry2025.shared import SPREAD, TITLES, grey, released_family
from biascope.papers.geometry2025.theory import curves_figure, geometries
from biascope.results.estimate import Estimate, jackknife
from biascope.results.finding import Tell, figure
from biascope.results.plan import Plan, Row
from biascope.results.wording import snake
from biascope.runs.run import Run
from biascope.tasks.probe import Probe


def _row(draws: Mapping[str, int], spreads: Sequence[float], side: int = 32) -> dict[str, Any]:
    """Draws by network, and spreads of the inputs."""
    activations = {f"activation: {TITLES[name]}": "GELU" for name in draws}
    return {
        "draws": draws,
        "spreads": spreads,
        "inputs per draw": 1,
        "side of the images": side,
        **activations,
        "seed": 0,
    }


def noise_of(groups: Tensor, kept: Tensor) -> float:
    """``E‖Ĝ − G‖²/‖G‖²`` of one group, from groups of equal size: what a square has beyond products of different groups.

    Example:
        >>> round(noise_of(torch.tensor([[[3.0]], [[1.0]]]), torch.arange(2)), 6)  # squares 9 and 1, product 3
        0.666667
    """
    flat = groups[kept].flatten(1)
    products = flat @ flat.T
    count = len(kept)
    across = (products.sum() - products.trace()) / (count * (count - 1))
    return float(products.trace() / count / across - 1)


def _noise_ratio(one: Tensor, two: Tensor) -> Estimate:
    """The noise of one estimate over that of another from the same networks; jackknife over groups."""
    every = torch.arange(len(one), device=one.device)

    def ratio(kept: Tensor) -> float:
        return noise_of(one, kept) / noise_of(two, kept)

    return jackknife(ratio(every), [ratio(every[every != group]) for group in every.tolist()])


@figure(
    "A.12.1",
    title="Noise of the average geometry of networks with GELU against the spread of the inputs",
    plan=Plan(
        smoke=_row({"lenet": 64}, (SPREAD, 1.0), side=16),
        laptop=_row({"mlp": 4000, "lenet": 4000}, (1e-5, SPREAD, 1.0)),
        paper=_row({"mlp": 20_000, "lenet": 20_000, "vit": 4000}, (1e-5, 1e-4, SPREAD, 1e-2, 0.1, 1.0)),
    ),
    show=functools.partial(curves_figure, x="spread of the inputs", y="relative variance of one draw", log_y=True),
)
def figure_a12_1(plan: Row, run: Run, tell: Tell) -> None:
    """The same networks at one input each, of several spreads."""
    shape = grey(plan)
    for name, draws in plan["draws"].items():
        title, family = TITLES[name], released_family(name, shape, "gelu")
        groups = {
            spread: geometries(
                family, Probe.gaussian(shape, std=spread, fresh=True, seed=0), draws, run, readout="first"
            )
            for spread in plan["spreads"]
        }
        ratio, key = _noise_ratio(groups[1.0], groups[SPREAD]), f"{snake(title)}_noise_at_1_over_noise_at_0_001"
        tell(f"{title}: variance of G at a spread of 1 over that at 0.001", ratio, key=key)
        each = draws / len(groups[SPREAD])
        noises = [each * noise_of(part, torch.arange(len(part))) for part in groups.values()]
        tell.array(title, np.array([plan["spreads"], noises]))
    tell.note(
        "The variance is that of all entries of G together, relative to the squared norm of G, for one network at one input.",
        "Whether small spreads predict generalisation best, which the paper also says, is not tested.",
    )
