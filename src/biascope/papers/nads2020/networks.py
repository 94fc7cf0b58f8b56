"""The networks of the 2020 paper: their names, and how they are run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

from biascope.families.family import Family
from biascope.networks import builder
from biascope.results.wording import snake
from biascope.runs.run import Run
from biascope.training.evaluation import STACK_LIMIT

SHAPE = (1, 32, 32)
TITLES = {
    "logistic_regression": "logistic regression",
    "mlp": "MLP",
    "lenet": "LeNet",
    "vgg11": "VGG11",
    "resnet18": "ResNet-18",
    "densenet121": "DenseNet-121",
}
CNNS = ("lenet", "vgg11", "resnet18", "densenet121")
LARGE = CNNS[1:]


def keyed(name: str) -> str:
    """A network as the beginning of a key."""
    return snake(TITLES[name])


def family_of(name: str, **settings: Any) -> Family:
    """One of the paper's networks at initialisation."""
    return Family.initialised(functools.partial(builder(name), **settings), name=TITLES[name])


def training_run(family: Family, run: Run) -> Run:
    """On a GPU, large networks are trained with products in bfloat16; small ones as the run says."""
    large = family.num_parameters > STACK_LIMIT
    half = large and run.torch_device.type == "cuda" and run.precision in ("float32", "tf32")
    return dataclasses.replace(run.shared, precision="bfloat16" if half else run.precision)


def in_float32(*names: str) -> dict[str, dict[str, str]]:
    """The precision in which the authors trained large networks."""
    return {"precision": dict.fromkeys(names, "float32")}


def precisions(networks: Iterable[str], run: Run) -> dict[str, str]:
    """The settings that say in which precision large networks are trained along directions."""
    large = (name for name in networks if name in LARGE)
    return {f"precision: {TITLES[name]}": training_run(family_of(name, outputs=2), run).precision for name in large}
