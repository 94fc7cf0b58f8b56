"""Appendix A.12.1: how the spread of the inputs at which gradients are taken changes the noise of the average geometry."""

# g groups of draws · D input size

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from biascope.papers.geometry2025.learning import shape_of
from biascope.papers.geometry2025.shared import SPREAD, TITLES, released_activations, released_family, run_of
from biascope.papers.geometry2025.small_models import geometry_groups
from biascope.papers.geometry2025.theory import curves_figure
from biascope.papers.selection import old_figure
from biascope.results.estimate import Estimate, Number, jackknife
from biascope.results.finding import Finding
from biascope.results.wording import snake
from biascope.runs.run import Run

SPREADS = (1e-5, 1e-4, SPREAD, 1e-2, 0.1, 1.0)
# Draws by network, and spreads that are looked at.
_PLANS: dict[str, tuple[dict[str, int], tuple[float, ...]]] = {
    "smoke": ({"lenet": 64}, (SPREAD, 1.0)),
    "laptop": ({"mlp": 4000, "lenet": 4000}, (1e-5, SPREAD, 1.0)),
    "paper": ({"mlp": 20_000, "lenet": 20_000, "vit": 4000}, SPREADS),
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


@old_figure(
    "A.12.1",
    title="Noise of the average geometry of networks with GELU against the spread of the inputs",
    show=lambda finding, dark: curves_figure(
        finding, dark, "spread of the inputs", "relative variance of one draw", log_y=True
    ),
)
def figure_a12_1(effort: str, run: Run) -> Finding:
    """The same networks at one input each, of several spreads."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    plans, spreads = _PLANS[effort]
    shape = shape_of(effort)
    for name, draws in plans.items():
        title, key = TITLES[name], snake(TITLES[name])
        family = released_family(name, shape, "gelu")
        groups = {
            spread: geometry_groups(family, shape, draws, run_of(family, run), scale=spread) for spread in spreads
        }
        each = draws / len(groups[SPREAD])
        noises = [each * noise_of(part, torch.arange(len(part))) for part in groups.values()]
        arrays[title] = np.stack([np.array(spreads), np.array(noises)])
        statistics[f"{key}_noise_at_1_over_noise_at_0_001"] = _noise_ratio(groups[1.0], groups[SPREAD]).named(
            f"{title}: variance of G at a spread of 1 over that at 0.001"
        )
    settings = {"draws": plans, "spreads": list(spreads), "inputs per draw": 1, **released_activations(plans, "GELU")}
    notes = (
        "The variance is that of all entries of G together, relative to the squared norm of G, for one network at one input.",
        "Whether small spreads predict generalisation best, which the paper also says, is not tested.",
    )
    return Finding(statistics, arrays, settings | {"seed": 0}, notes)
