"""What the figures of the 2025 paper share: its networks, its data, and the geometry of a network at initialisation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from biascope.data import data_root
from biascope.derivatives.covariance import gaussian_sampler, gradient_covariance
from biascope.families.family import Family
from biascope.networks import builder
from biascope.runs.run import Run
from biascope.tasks.samples import samples_of
from biascope.tasks.task import Arrays
from biascope.training.evaluation import STACK_LIMIT

TITLES = {"mlp": "MLP", "lenet": "LeNet", "vgg11": "VGG11", "resnet18": "ResNet-18", "vit": "ViT"}
NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": (100, 100)},
    "lenet": {"pooling": "average", "activation": "gelu"},
    "vgg11": {"activation": "gelu"},
    "resnet18": {"activation": "gelu"},
    "vit": {},
}
PLAIN: dict[str, dict[str, Any]] = {"resnet18": {"batchnorm": False}, "vit": {"layernorm": False}}  # on real data
ANIMALS = (2, 3, 4, 5, 6, 7)  # of CIFAR-10, which CIFAR-2 sets against the rest
PART = "cifar10-part"  # an .npz for machines that hold no more


def family_of(name: str, shape: Sequence[int], *, outputs: int = 2, images: bool = False, **settings: Any) -> Family:
    """One of the paper's networks; for ``images`` without normalising layers, as the paper has them on real data."""
    chosen = {"channels": shape[0], "image_size": shape[1], "outputs": outputs, **NETWORKS[name]}
    chosen |= PLAIN.get(name, {}) if images else {}
    return Family.initialised(functools.partial(builder(name), **(chosen | settings)), name=TITLES[name])


def probe_scale(name: str) -> float:
    """σ_P: 1 for the MLP's ReLU, 0.001 for GELU."""
    return 1.0 if name == "mlp" else 1e-3


def run_of(family: Family, run: Run, large: str = "tf32") -> Run:
    """The shared run; for large networks on a GPU in a quicker precision."""
    quick = family.num_parameters > STACK_LIMIT and run.torch_device.type == "cuda"
    return dataclasses.replace(run.shared, precision=large if quick else run.precision)


def geometry_of(family: Family, shape: Sequence[int], draws: int, run: Run, *, scale: float, probes: int = 4) -> Tensor:
    """The average geometry ``(D, D)`` at initialisation as published: of the mean of the logits, at N(0, σ_P²) inputs."""
    sampler = gaussian_sampler(
        family, shape, probes=probes, scale=scale, readout="mean", seed=0, run=run_of(family, run)
    )
    matrix = gradient_covariance(sampler, draws=draws, seed=0, label=f"{family.name}: geometry").dense()
    assert matrix is not None  # images of the paper have at most 3072 numbers
    return matrix


def cifar_name(run: Run) -> tuple[str, Path]:
    """CIFAR-10, or the part of it that a machine holds, and its folder."""
    root = data_root(run.data_root)
    return (PART if (root / f"{PART}.npz").exists() else "cifar10"), root


def cifar_2(each: int, test: int, run: Run) -> Arrays:
    """CIFAR-2: as many animals (1) as others (0) to train on, standardised, and test images as they come."""
    name, root = cifar_name(run)
    whole = samples_of(name, sizes=(min(50_000, 4 * each + 200), test), root=root).two_classes(ANIMALS)
    x, y = whole.splits["train"]
    rows = torch.cat([(y == label).nonzero()[:each, 0] for label in (0, 1)])
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    splits = {**whole.splits, "train": (x[rows], y[rows])}
    return Arrays(splits, whole.dtype, f"CIFAR-2, {len(rows):,} train and {whole.sizes['test']:,} test samples")
