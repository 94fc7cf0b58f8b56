"""Accuracy and loss of trained networks on a split of a task."""

# m members

from __future__ import annotations

import copy
import dataclasses
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from biascope.derivatives.fast_layers import PoolingBySlices
from biascope.families.network import Network
from biascope.families.weights import Params
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.run import Run
from biascope.runs.threads import on_each_core
from biascope.tasks.task import Task
from biascope.training.recipe import correct, loss_of
from biascope.training.steps import half_precision

STACK_LIMIT = 2_000_000  # parameters beyond which a GPU is busy enough with one network
EVALUATED = 2**25  # numbers of input that one evaluation pass takes


@dataclass(frozen=True)
class Evaluation:
    """Accuracies between 0 and 1 and mean losses on a split, ``(m,)``; nan for a network whose outputs are NaN."""

    accuracy: Tensor
    loss: Tensor


@under_torch_defaults
def evaluation(
    networks: Network, task: Task, split: str, *, loss: str | None = None, run: Run | None = None
) -> Evaluation:
    """Accuracy and loss of one network or each member of a stack on a split.

    Args:
        networks: The networks.
        task: The data, the same for all or one for each member.
        split: Which part.
        loss: As in the recipe.
        run: Device and precision.
    """
    run = run or Run()
    device, samples = run.torch_device, task.sizes[split]
    if networks.members is not None and (device.type == "cpu" or not _stackable(networks)):
        each = on_each_core(
            lambda i: evaluation(_apart(networks.member(i)), task.of_member(i), split, loss=loss, run=run),
            networks.members,
            run,
        )
        return Evaluation(torch.cat([part.accuracy for part in each]), torch.cat([part.loss for part in each]))
    members = networks.members or 1
    most = 512 if device.type == "cpu" else 2048  # on a CPU what fits its cache
    chunk = max(1, min(most, EVALUATED // (max(1, torch.Size(task.shape).numel()) * members)))
    right = torch.zeros(members, dtype=torch.float64, device=device)
    lost = torch.zeros(members, dtype=torch.float64, device=device)

    def judged(params: Params, buffers: Params, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with half_precision(run):
            outputs = networks.apply(params, buffers, x)
            outputs = outputs.to(x.dtype) if x.is_floating_point() else outputs
        hits = correct(outputs, y).sum()
        # A network that says NaN is neither right nor wrong: an accuracy would be the share of one class.
        return torch.where(outputs.isnan().any(), torch.nan, hits.double()), loss_of(loss, outputs, y)

    layers = PoolingBySlices() if device.type == "cpu" else nullcontext()
    with torch.no_grad(), run.products(), layers:
        for start in range(0, samples, chunk):
            x, y = task.batch(split, torch.arange(start, min(samples, start + chunk), device=device))
            if networks.members is None:
                hits, losses = (value[None] for value in judged(networks.params, networks.buffers, x, y))
            else:
                dims = (0, 0, *task.member_axes(x, y))
                hits, losses = vmap(judged, in_dims=dims)(networks.params, networks.buffers, x, y)
            right += hits
            lost += losses.double() * y.shape[-1]
    return Evaluation((right / samples).cpu(), (lost / samples).cpu())


def _stackable(networks: Network) -> bool:
    """Whether evaluating the whole stack at once pays: many small networks."""
    return sum(tensor.numel() for tensor in networks.params.values()) // (networks.members or 1) <= STACK_LIMIT


def _apart(network: Network) -> Network:
    """The same with a module of its own: a module lends its layers to one call at a time."""
    return dataclasses.replace(network, module=copy.deepcopy(network.module))
