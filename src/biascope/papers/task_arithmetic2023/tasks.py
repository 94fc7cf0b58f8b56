"""What chapter 6 of the thesis is tried on: encoders that can be had, their tasks, heads and task vectors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from biascope.editing.encoder_source import encoder_of
from biascope.editing.encoders.encoder import Encoder
from biascope.editing.study import Study as Study
from biascope.editing.study import study_of, usual_rates
from biascope.editing.tasks import IMAGE_TASKS, TEXT_TASKS, tasks_of
from biascope.editing.tuning import tuning_recipe
from biascope.families.family import Network
from biascope.networks import builder
from biascope.results.estimate import Estimate, over_repeats
from biascope.runs.randomness import forked_rng, generator_for
from biascope.runs.run import Run
from biascope.tasks.task import Arrays

CNN, VIT, TEXT = "EfficientNet-Lite0", "small ViT", "MiniLM-L6"
WAYS = ("non-linear", "post-hoc", "linearised")
CONTROL = "cifar10"  # of negation: the task furthest from digits, signs, letters and textures
_NAMES = {CNN: "efficientnet_lite0", VIT: "vit", TEXT: "minilm"}
RATES = {name: usual_rates(each) for name, each in _NAMES.items()}


@dataclass(frozen=True)
class Plan:
    """How much of everything.

    Attributes:
        encoders: Which of them.
        sizes: Training, validation and test samples of a task at most.
        tasks: Image tasks.
        texts: Text tasks.
        steps: Iterations of a fine-tuning.
        seeds: Repeats, each with its own order of samples.
        points: Samples of a task for maps of ξ.
        grid: Coefficients along a side of them.
        random: Tasks for networks at random weights.
    """

    encoders: tuple[str, ...]
    sizes: tuple[int, int, int]
    tasks: tuple[str, ...]
    texts: tuple[str, ...]
    steps: int
    seeds: int
    points: int
    grid: int
    random: tuple[str, ...]


PLANS = {
    "smoke": Plan(
        (CNN, VIT, TEXT), (40, 20, 20), ("mnist", "gtsrb", "cifar10"), ("sst2", "trec"), 4, 2, 20, 5, ("mnist", "gtsrb")
    ),
    "laptop": Plan((CNN,), (400, 100, 300), ("mnist", "gtsrb", "cifar10"), (), 60, 1, 200, 7, ("mnist", "gtsrb")),
    "paper": Plan(
        (CNN, VIT, TEXT),
        (5000, 1000, 2000),
        IMAGE_TASKS,
        TEXT_TASKS,
        500,
        3,
        2048,
        20,
        ("mnist", "gtsrb", "fashion-mnist"),
    ),
}


def study(name: str, effort: str, run: Run, *, random: bool = False, only: Sequence[str] | None = None) -> Study:
    """Fine-tune an encoder on its tasks, or read what was kept.

    Args:
        name: Of the encoder.
        effort: How much.
        run: Fine-tunings are kept in the folder that figures share.
        random: Whether the encoder starts from random weights; then on few tasks and with one seed.
        only: Tasks to keep, where not all are needed.

    Raises:
        ValueError: If weights or data are missing.
    """
    plan = PLANS[effort]
    names = plan.random if random else plan.texts if name == TEXT else plan.tasks
    names = tuple(task for task in names if only is None or task in only)
    encoder, tasks = _encoder_and_tasks(name, effort, names, run, random)
    recipes = {tuning: tuning_recipe(steps=plan.steps, rate=rate) for tuning, rate in RATES[name].items()}
    seeds = range(1 if random else plan.seeds)
    return study_of(encoder, tasks, recipes=recipes, seeds=seeds, name=name, run=run.shared)


def untrained(name: str, effort: str, run: Run) -> Network:
    """The same architecture at random weights."""
    return _encoder_and_tasks(name, effort, (), run, random=True)[0]


def _encoder_and_tasks(
    name: str, effort: str, names: Sequence[str], run: Run, random: bool
) -> tuple[Network, dict[str, Arrays]]:
    if effort == "smoke":
        return _small(name, random), {task: _clouds(task, PLANS[effort].sizes) for task in names}
    encoder: Encoder = encoder_of(_NAMES[name], random=random, seed=0, root=run.data_root)
    return encoder.network, tasks_of(names, encoder, sizes=PLANS[effort].sizes, root=run.data_root)


def _small(name: str, random: bool) -> Network:
    """A ViT that takes no time, in place of an encoder."""
    with forked_rng([CNN, VIT, TEXT].index(name) + 10 * random):
        module = builder("vit")(channels=1, image_size=8, patch=4, depth=1, heads=2, width=16, mlp=32, outputs=12)
    return Network.of(module)


@functools.cache
def _clouds(task: str, sizes: tuple[int, int, int]) -> Arrays:
    """Three clouds of points about centres of their own, as images."""
    stream = generator_for(torch.device("cpu"), 0, "clouds", task)
    centres = torch.randn(3, 1, 8, 8, generator=stream)

    def drawn(num: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(num) % 3
        return centres[labels] + torch.randn(num, 1, 8, 8, generator=stream), labels

    return Arrays(
        {split: drawn(num) for split, num in zip(("train", "validation", "test"), sizes, strict=True)}, name=task
    )


def over_seeds(values: np.ndarray) -> Estimate:
    """A number of each seed: its mean, with an interval over seeds where there are several."""
    flat = np.asarray(values, float).ravel()
    return over_repeats(flat) if len(flat) > 1 else Estimate.exact(float(flat[0]))


def how(effort: str) -> dict[str, object]:
    """Settings to be recorded."""
    plan = PLANS[effort]
    return {
        "encoders": list(plan.encoders),
        "tasks": list(plan.tasks),
        "text tasks": list(plan.texts),
        "samples": list(plan.sizes),
        "steps": plan.steps,
        "seeds": plan.seeds,
        "rates": RATES,
    }


NOTES = (
    "No CLIP weights are to be had here. In place of CLIP and its zero-shot heads: encoders pre-trained on ImageNet "
    "(EfficientNet-Lite0), on characters, faces and photographs (small ViT; see vit_pretraining beside this figure) "
    "and on sentences (MiniLM), "
    "with linear probes as heads. A probe starts far above chance, so that there is less to gain.",
    "Learning rates were chosen by the validation accuracy of single tasks, with one seed, before any two vectors were added.",
)
