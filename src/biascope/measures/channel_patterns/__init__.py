"""Channel patterns: which patches the channels of a first convolution detect, how strongly, and for which labels."""

# K channels · P patterns · n images

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from biascope.families.draws import Draws
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.measures.channel_patterns.responses import FirstConvolution, combination_of
from biascope.measures.channel_patterns.result import ChannelPatterns
from biascope.results.registry import measurement
from biascope.runs.randomness import generator_for, seed_of
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.patches import Patches, clustered_patches, patch_presence, presence_statistics
from biascope.tasks.task import Arrays


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, 1))

    images = torch.randn(60, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    data = Arrays({"train": (images, torch.arange(60) % 2)})
    return (Family.initialised(build, name="small CNN"), data), {"clusters": 8, "draws": 4, "inputs": 32}


@measurement(title="Channel patterns", paper="patterns2021", result=ChannelPatterns, example=_example)
def channel_patterns(
    family: Family,
    data: Arrays | None = None,
    patches: Patches | None = None,
    control: Family | None = None,
    *,
    clusters: int = 32,
    positive: tuple[int, ...] | None = None,
    balanced: bool = True,
    markers: tuple[str, ...] | None = None,
    draws: int = 20,
    inputs: int = 256,
    shape: tuple[int, ...] | None = None,
    seed: int = 0,
    run: Run | None = None,
) -> ChannelPatterns:
    """Which patterns the channels of a first convolution detect, how strongly, compared with their label statistics.

    Definition:
        Channel k detects pattern i if its response ``r_ki = w_k·p_i + b_k`` is positive and the largest over patterns. The response
        is taken after BatchNorm if that follows. The read-out is the mean output of the positive classes minus that of the others.
        The weight ``a_k`` of a channel is the mean derivative of the read-out with respect to the channel's map, summed over
        places. Its unit is the mean magnitude over channels.

        The masses ``M_±(i) = Σ |a_k| r_ki`` are sums over detectors of i with positive and with negative weight. The vote
        ``Σ_k a_k σ(r_ki)`` is a sum over all channels. The label statistic is ``s_i = Σ_j ω_j y_j 1{p_i ∈ x_j}``. For the network
        ``Σ_k a_k max_j σ(w_k·x[j])`` with ``a_k = ±1``, masses and ratios are the published ones.

    Args:
        family: Networks that begin with a convolution: initialised, or trained weights.
        data: Labelled images with a split ``train``: for statistics, for weights and, without patches, for patterns.
        patches: The patterns; by default the centres of clusters of the data's patches.
        control: Networks to compare with. For trained weights, the default shuffles the entries of every filter.
        clusters: Patterns to find in the data.
        positive: Classes that count as positive. With two classes, the default is the larger one. With more, there are no statistics
            without it.
        balanced: Whether both classes have weight one half in the statistics; else every image has equal weight, as published.
        markers: Names of the two patterns that mark the positive and the negative label, for the detection ratios. By default,
            those with the largest and the smallest statistic.
        draws: Networks to draw, and control networks.
        inputs: Number of images over which the derivative is averaged.
        shape: Shape of one input if there are no data: the derivative is then taken at N(0, 1) inputs.
        seed: Random seed for weights, clusters and the choice of images.
        run: Folder (resumable), device, precision.

    Returns:
        Responses and weights of every draw and control, and the numbers derived from them.

    Raises:
        ValueError: If the network has no convolution that sees the input, or patches, data and outputs do not fit.

    Example:
        >>> module = nn.Sequential(nn.Conv2d(1, 2, (1, 2), stride=(1, 2), bias=False), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
        >>> module.append(nn.Linear(2, 1, bias=False)).load_state_dict(  # channels that detect p_1 and p_2, with weights 1 and −1
        ...     {"0.weight": torch.tensor([[3.0, 1.0], [0.0, 2.0]])[:, None, None], "4.weight": torch.tensor([[1.0, -1.0]])})
        <All keys matched successfully>
        >>> x, y = torch.eye(2)[:, None, None], torch.tensor([1, 0])
        >>> result = channel_patterns(Family.point(module), Arrays({"train": (x, y)}), Patches(x), draws=2)
        >>> result.weights.tolist(), result.detected.tolist(), result.statistics.tolist(), result.votes.tolist()
        ([[1.0, -1.0]], [[0, 1]], [0.5, -0.5], [[3.0, -1.0]])

    Reference:
        On the inductive bias of a CNN for distributions with orthogonal patterns (2021), sections 3 and 4: there for networks
        of one layer and orthonormal patterns.
    """
    run = run or Run()
    if min(draws, inputs) < 1:
        raise ValueError(f"draws and inputs must be at least 1, got {draws} and {inputs}. Pass draws=20, inputs=256.")
    if shape is not None and min(shape, default=0) < 1:
        raise ValueError(f"shape must list lengths of at least 1, got {shape}. Pass shape=(3, 32, 32).")
    if data is None and (patches is None or shape is None):
        raise ValueError(
            "Without data, patches and the shape of an input are needed, got none. Pass data, or both patches and shape."
        )
    x, y, classes = (
        _samples(data, positive, run) if data is not None else (_noise(shape or (), inputs, seed), None, None)
    )
    x = x.to(run.torch_device, run.dtype)
    with run.products():
        own, other = (_layer(each, x, run) for each in (family, control or family))
        if patches is None:
            patches = clustered_patches(x.float(), own.patch_shape[1:], clusters, stride=own.stride, seed=seed)
        for layer, each in ((own, family), (other, control or family)):
            layer.check(tuple(patches.pixels.shape[1:]), each.name)
        statistics, presence = patches.statistics, torch.full((len(patches),), torch.nan, dtype=torch.float64)
        if data is not None:
            contained = patch_presence(x.float(), patches, stride=own.stride).cpu()
            presence = contained.double().mean(0)
            if statistics is None and y is not None:
                statistics = presence_statistics(contained, y.cpu(), balanced=balanced)
    if statistics is None:
        statistics = torch.full_like(presence, torch.nan)
    chosen = torch.randperm(len(x), generator=generator_for(torch.device("cpu"), seed, "inputs"))[:inputs].to(x.device)
    where, pixels = x[chosen], patches.pixels.to(x.device)

    def measured(network: Network, layer: FirstConvolution) -> Outcome:
        with run.products():
            outputs = network(where[:1]).numel()
            responses = layer.responses(network, pixels)
            if outputs > 2 and positive is None:  # no class to speak for
                nothing = torch.full_like(responses[:, 0], torch.nan)
                return {"responses": responses, "weights": nothing, "consistency": nothing.clone()}
            weights, consistency = layer.weights(network, where, combination_of(outputs, positive, classes))
            return {"responses": responses, "weights": weights, "consistency": consistency}

    stream = family.draws(seed=seed, run=run)
    fresh = None if control is None else control.draws(seed=seed_of(seed, "control"), run=run)

    def drawn(key: str) -> Outcome:
        return measured(_member(stream, key), own)

    def controlled(key: str) -> Outcome:
        if fresh is not None:
            return measured(_member(fresh, key), other)
        return measured(own.shuffled(_member(stream, key), seed_of(seed, key)), own)

    trials = Trials(
        "channel patterns",
        run,
        code=(drawn, controlled, measured),
        at=where,
        family=family,
        **({} if control is None else {"control": control}),
        patches=patches,
        inputs=where,
        classes=classes,
        positive=positive,
        seed=seed,
    )
    words = "" if control is None and family.size is None else "with shuffled filters"
    if control is not None:
        words = "at initialisation" if control.size is None else "of the control"
    members = min(draws, family.size or draws)
    found = list(trials.outcomes([f"draw {index}" for index in range(members)], drawn))
    others = list(trials.outcomes([f"control {index}" for index in range(draws if words else 0)], controlled))
    return ChannelPatterns(
        names=patches.names,
        markers=_markers(markers, patches, statistics),
        control=f"networks {words}" if words else "",
        pixels=patches.pixels.float().cpu().numpy(),
        statistics=statistics.double().cpu().numpy(),
        presence=presence.numpy(),
        **{name: _stacked(found, name) for name in ("responses", "weights", "consistency")},
        **{f"control_{name}": _stacked(others, name, found) for name in ("responses", "weights")},
        provenance={"patches": patches.name, "layer": own.name, "batchnorm": own.norm, "draws": members},
    )


def _samples(data: Arrays, positive: tuple[int, ...] | None, run: Run) -> tuple[Tensor, Tensor | None, int]:
    """Images, labels 1 and 0 where there are two classes to tell apart, and the number of classes before that."""
    labels = data.splits["train"][1] if "train" in data.splits else data.whole("train")[1]
    classes = int(labels.max()) + 1
    told = positive is not None or len(torch.unique(labels)) == 2
    x, y = (data.two_classes(positive) if told else data).to(run).whole("train")
    return x, y if told else None, classes


def _markers(asked: tuple[str, ...] | None, patches: Patches, statistics: Tensor) -> tuple[str, ...]:
    if asked is not None:
        if len(set(asked)) != 2 or not set(asked) <= set(patches.names):
            names = ", ".join(patches.names[:8])
            raise ValueError(f"markers must be two of the patterns {names}, …, got {', '.join(asked)}. Pass two names.")
        return asked
    known = bool(statistics.isfinite().all()) and float(statistics.max()) > float(statistics.min())
    return (patches.names[int(statistics.argmax())], patches.names[int(statistics.argmin())]) if known else ()


def _noise(shape: tuple[int, ...], inputs: int, seed: int) -> Tensor:
    return torch.randn(inputs, *shape, generator=generator_for(torch.device("cpu"), seed, "noise"))


def _layer(family: Family, x: Tensor, run: Run) -> FirstConvolution:
    return FirstConvolution.of(family.template.to(run.torch_device, run.dtype), x[:2], family.name)


def _member(stream: Draws, key: str) -> Network:
    """The network that a trial's key ends with the number of."""
    index = int(key.split()[-1])
    return stream[index : index + 1].member(0)


def _stacked(outcomes: list[Outcome], name: str, like: list[Outcome] | None = None) -> np.ndarray:
    """One array of all outcomes, empty where there are none."""
    if not outcomes and like:
        return _stacked(like, name)[:0]
    return np.stack([each[name].double().cpu().numpy() for each in outcomes])
