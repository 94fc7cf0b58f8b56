"""Whether a family can be measured at some inputs at all: checks that come before any derivative."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from biascope.derivatives.separateness import check_separateness
from biascope.families.draws import Draws
from biascope.families.family import Family
from biascope.runs.run import Run
from biascope.tasks.probe import Probe


def checked_outputs(family: Family, x: Any, probe: Probe, run: Run) -> Tensor:
    """Outputs at a few inputs, after checking that each is a finite function of its own input and of the weights.

    Args:
        family: The networks.
        x: A few inputs ``(n, …)``, any pytree.
        probe: Where they come from, for errors.
        run: Device and precision.

    Raises:
        ValueError: If outputs are not finite, random, depend on other inputs of their batch, or members differ in more than weights.
    """
    outputs = family.first_outputs(x, run)
    if not bool(torch.isfinite(outputs).all()):
        raise ValueError(
            f"{family.name} must give finite outputs, got NaN or infinity at {probe.description}. Check its layers."
        )
    check_separateness(family.template.to(run.torch_device, run.dtype), x, family.name)
    family.check_forward(x, run)
    return outputs


def check_variation(family: Family, draws: Draws) -> None:
    """Refuse a builder that seeds itself, which gives one network over and over.

    Raises:
        ValueError: If two draws are equal.
    """
    if family.size is not None:
        return
    pair = draws[0:2]
    if all(torch.equal(part[0], part[1]) for part in pair.params.values()):
        raise ValueError(
            f"{family.name} must draw its weights at random, but two draws are equal. Remove the seed from the "
            "builder, or measure one network with --weights."
        )
