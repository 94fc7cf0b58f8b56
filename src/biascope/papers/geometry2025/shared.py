"""What the figures of the 2025 paper share: its networks, its data, its settings, and the geometry at initialisation."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from biascope.derivatives.covariance import gaussian_sampler, gradient_covariance
from biascope.families.family import Family
from biascope.networks import builder
from biascope.papers.images import held
from biascope.results.estimate import Estimate, proportion
from biascope.results.plan import Plan
from biascope.runs.run import Run
from biascope.tasks.samples import samples_of
from biascope.tasks.task import Arrays
from biascope.training.evaluation import STACK_LIMIT
from biascope.training.recipe import Recipe

Lines = Mapping[str, Sequence[Any]]  # of a table, by network

TITLES = {"mlp": "MLP", "lenet": "LeNet", "vgg11": "VGG11", "resnet18": "ResNet-18", "vit": "ViT"}
NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": (100, 100)},
    "lenet": {"pooling": "average", "activation": "gelu"},
    "vgg11": {"activation": "gelu"},
    "resnet18": {"activation": "gelu"},
    "vit": {"released": True},
}
PLAIN: dict[str, dict[str, Any]] = {  # on images, and on data of covariance G
    "vgg11": {"batchnorm": False},
    "resnet18": {"batchnorm": False},
    "vit": {"layernorm": False},
}
SPREAD = 1e-3  # σ_P of the authors' scripts; 1 for figures 2 and 8, 1e-4 for circles
ANIMALS = (2, 3, 4, 5, 6, 7)  # of CIFAR-10, which CIFAR-2 sets against the rest
PROBES = 4  # inputs at which the gradient of each network is taken, for G

# The authors' settings, as their code has them; where the text differs, a figure says so.
PUBLISHED_LOOP: dict[str, Any] = {
    "optimiser": "sgd",
    "rate": 0.1,
    "schedule": "linear",
    "momentum": 0.9,
    "batch": 128,
    "clip": 0.5,
}


def family_of(name: str, shape: Sequence[int], *, outputs: int = 2, images: bool = False, **settings: Any) -> Family:
    """One of the paper's networks by its text: the MLP has ReLU, others GELU; on images without normalising layers."""
    chosen = {"channels": shape[0], "image_size": shape[1], "outputs": outputs, **NETWORKS[name]}
    chosen |= PLAIN.get(name, {}) if images else {}
    return Family.initialised(functools.partial(builder(name), **(chosen | settings)), name=TITLES[name])


def released_family(
    name: str, shape: Sequence[int], activation: str, *, plain: bool = False, blocks: str = "relu", **settings: Any
) -> Family:
    """A network as the authors' scripts build it.

    Args:
        name: Of the network.
        shape: Of one input.
        activation: "gelu" or "relu", except in ResNet-18.
        plain: Whether BatchNorm (VGG11, ResNet-18) and LayerNorm (ViT) are left out, as on images (figures 2, 4, 6
            and 8, tables 1 and 2) and in figures 3, 12 and 13.
        blocks: The activation of ResNet-18, which has ReLU in the blocks of all scripts.
        settings: Further ones of the network, and the number of its outputs.
    """
    chosen = blocks if name == "resnet18" else activation
    return family_of(name, shape, images=plain, activation=chosen, **settings)


def probe_scale(name: str) -> float:
    """σ_P: 1 for the MLP's ReLU, 0.001 for GELU."""
    return 1.0 if name == "mlp" else 1e-3


def run_of(family: Family, run: Run, large: str = "tf32") -> Run:
    """The shared run; for large networks on a GPU in a quicker precision."""
    quick = family.num_parameters > STACK_LIMIT and run.torch_device.type == "cuda"
    return dataclasses.replace(run.shared, precision=large if quick else run.precision)


def precisions(families: Iterable[Family], run: Run, large: str = "tf32") -> dict[str, Any]:
    """In which precision large networks are trained, where it is not that of the run, as settings of a finding."""
    chosen = {family.name: run_of(family, run, large).precision for family in families}
    return {f"precision: {title}": precision for title, precision in chosen.items() if precision != run.precision}


def geometry_of(family: Family, shape: Sequence[int], draws: int, run: Run, *, scale: float) -> Tensor:
    """The average geometry ``(D, D)`` at initialisation as published: of the mean of the logits, at N(0, σ_P²) inputs."""
    sampler = gaussian_sampler(
        family, shape, probes=PROBES, scale=scale, readout="mean", seed=0, run=run_of(family, run)
    )
    matrix = gradient_covariance(sampler, draws=draws, seed=0, label=f"{family.name}: geometry").dense()
    assert matrix is not None  # images of the paper have at most 3072 numbers
    return matrix


def titles(names: Iterable[str]) -> list[str]:
    """The titles of networks, always in the same order."""
    given = set(names)
    return [title for name, title in TITLES.items() if name in given]


def loop_of(recipe: Recipe) -> dict[str, Any]:
    """A recipe as settings of a finding, but for its length."""
    return {
        "optimiser": recipe.optimiser,
        "rate": recipe.rate,
        "schedule": recipe.schedule,
        "momentum": recipe.momentum,
        "batch": "all samples" if recipe.optimiser == "gd" else recipe.batch,
        "clip": "none" if recipe.clip is None else recipe.clip,
        "weight decay": recipe.weight_decay,
    }


def grey(plan: Mapping[str, Any]) -> tuple[int, int, int]:
    """The shape of the grey images of a plan."""
    return 1, plan["side of the images"], plan["side of the images"]


def by_setting(settings: Sequence[str], networks: Lines) -> dict[str, dict[str, Any]]:
    """A table with a line for each network, as a plan has it: by setting, then by network.

    Example:
        >>> by_setting(("epochs", "runs"), {"lenet": (50, 5), "vit": (30, 3)})
        {'epochs': {'lenet': 50, 'vit': 30}, 'runs': {'lenet': 5, 'vit': 3}}
    """
    columns = zip(*networks.values(), strict=True)
    return {name: dict(zip(networks, column, strict=True)) for name, column in zip(settings, columns, strict=True)}


def released(names: Iterable[str], activation: str, spread: float, *, plain: bool = False) -> dict[str, Any]:
    """What the authors' code says of its networks and of the inputs for G, as a plan has it; the text has 10,000 draws of G.

    Args:
        names: Networks.
        activation: Of all of them except ResNet-18, whose blocks have ReLU in all of their experiments.
        spread: Of the inputs for G.
        plain: Whether BatchNorm and LayerNorm are left out.
    """
    listed = list(names)
    return {
        "networks": titles(listed),
        "activation": {name: "ReLU" if name == "resnet18" else activation for name in listed},
        "normalising layers": {name: "none" for name in listed if plain and name in PLAIN},
        "draws of G": dict.fromkeys(listed, 100_000),
        "inputs per draw of G": 128,
        "spread of the inputs for G": dict.fromkeys(listed, spread),
    }


def planned(
    columns: Sequence[str],
    activation: str,
    spread: float,
    *,
    smoke: Lines,
    laptop: Lines,
    paper: Lines,
    published: Mapping[str, Any],
    both: Mapping[str, Any],
    ours: Mapping[str, Any],
    small: Mapping[str, Any],
    first: Sequence[str],
    plain: bool = False,
) -> Plan:
    """The plan of a figure that trains networks on data of their geometry.

    Args:
        columns: The settings that a line of a network has; epochs are one of them.
        activation: As in :func:`released`.
        spread: Likewise.
        smoke: Lines by network.
        laptop: Likewise.
        paper: Likewise.
        published: What the authors have beside their networks and the geometry of these.
        both: What is the same at each effort and at the authors'.
        ours: What is the same at each effort, or at laptop and paper alone.
        small: What only smoke has.
        first: Settings whose differences from the authors are told before the others.
        plain: As in :func:`released`.
    """

    def row(table: Lines, more: Mapping[str, Any] = ours) -> dict[str, Any]:
        networks = released(table, activation, spread, plain=plain) | {"inputs per draw of G": PROBES}
        return {**networks, "seed": 0, **both, **more, **by_setting(columns, table)}

    networks = released(published["epochs"], activation, spread, plain=plain)
    theirs = {**dict.fromkeys(("networks", *first)), **networks, **published, **both, **published}
    return Plan(row(smoke, {**ours, **small}), row(laptop), row(paper), theirs, titles=TITLES, by="epochs")


def error_of_test_samples(accuracy: float, samples: int) -> float:
    """Standard error, in points, of an accuracy in percent on so many test samples.

    Example:
        >>> error_of_test_samples(50.0, 2500)
        1.0
    """
    return 100 * proportion(accuracy / 100, samples).standard_error


def error_of_a_difference(one: float, two: float, samples: int) -> float:
    """The same of a difference of two accuracies on the same test samples, at most: their errors are taken as independent."""
    return math.hypot(error_of_test_samples(one, samples), error_of_test_samples(two, samples))


def inputs_of(direction: Tensor) -> Estimate:
    """Over how many inputs a direction is spread: ``1/Σu⁴`` for a unit vector, 1 for a single pixel, D for equal entries.

    Example:
        >>> inputs_of(torch.tensor([0.6, 0.8, 0.0]))
        1.855
    """
    unit = direction.double() / direction.double().norm()
    return Estimate.exact(float(1 / unit.pow(4).sum()))


def least(numbers: Iterable[Estimate]) -> Estimate:
    """The smallest of several numbers, for a claim about all of them.

    The ends of its interval are the smallest ends. Each number whose interval reaches down to the smallest could be the smallest,
    and the largest of their standard errors is that of the result. It is unknown if that of the lowest end is, as of trainings that
    agree (:func:`biascope.results.estimate.over`).

    Example:
        >>> least([Estimate(5.0, 1.0, 3.0, 7.0), Estimate(4.0, 0.1, 3.8, 4.2)])
        4 ± 1.0 (95 % CI 3.0 to 4.2)
    """
    given = list(numbers)
    smallest = min(given, key=lambda each: each.value)
    if any(math.isnan(each.low) for each in given):  # one of unknown spread could be the smallest
        return Estimate(smallest.value)
    ends = min(each.low for each in given), min(each.high for each in given)
    if math.isnan(min(given, key=lambda each: each.low).standard_error):
        return Estimate(smallest.value, math.nan, *ends, smallest.confidence)
    error = max(
        each.standard_error for each in given if each.low <= smallest.value and not math.isnan(each.standard_error)
    )
    return Estimate(smallest.value, error, *ends, smallest.confidence)


def halved(images: Arrays) -> Arrays:
    """Images of half their side, for smoke: matrices of 3,072 numbers take seconds to decompose."""
    splits = {split: (torch.nn.functional.avg_pool2d(x, 2), y) for split, (x, y) in images.splits.items()}
    return dataclasses.replace(images, splits=splits, name=f"{images.name}, at half their size")


def cifar_2(each: int, test: int, run: Run) -> Arrays:
    """CIFAR-2: as many animals (1) as others (0) to train on, standardised, and test images as they come."""
    name, root = held("cifar10", run)
    whole = samples_of(name, sizes=(min(50_000, 4 * each + 200), test), root=root).two_classes(ANIMALS)
    x, y = whole.splits["train"]
    rows = torch.cat([(y == label).nonzero()[:each, 0] for label in (0, 1)])
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    splits = {**whole.splits, "train": (x[rows], y[rows])}
    return Arrays(splits, whole.dtype, f"CIFAR-2, {len(rows):,} train and {whole.sizes['test']:,} test samples")
