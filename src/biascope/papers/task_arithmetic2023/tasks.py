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
from biascope.editing.outputs import edited_outputs, sampled
from biascope.editing.results import over_seeds_and_samples
from biascope.editing.study import Study as Study
from biascope.editing.study import study_of, usual_rates
from biascope.editing.tasks import IMAGE_TASKS, TEXT_TASKS, tasks_of
from biascope.editing.tuning import tuning_recipe
from biascope.families.family import Network
from biascope.networks import builder
from biascope.results.claim import Trained
from biascope.results.estimate import Estimate, Number, over_repeats
from biascope.results.wording import snake
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
        random: Whether the encoder starts from random weights; then on few tasks.
        only: Tasks to keep, where not all are needed.

    Raises:
        ValueError: If weights or data are missing.
    """
    plan = PLANS[effort]
    names = plan.random if random else plan.texts if name == TEXT else plan.tasks
    names = tuple(task for task in names if only is None or task in only)
    encoder, tasks = _encoder_and_tasks(name, effort, names, run, random)
    recipes = {tuning: tuning_recipe(steps=plan.steps, rate=rate) for tuning, rate in RATES[name].items()}
    return study_of(encoder, tasks, recipes=recipes, seeds=range(plan.seeds), name=name, run=run.shared)


def untrained(name: str, effort: str, run: Run, seed: int = 0) -> Network:
    """The same architecture at random weights."""
    return _encoder_and_tasks(name, effort, (), run, random=True, seed=seed)[0]


def _encoder_and_tasks(
    name: str, effort: str, names: Sequence[str], run: Run, random: bool, seed: int = 0
) -> tuple[Network, dict[str, Arrays]]:
    if effort == "smoke":
        return _small(name, random, seed), {task: _clouds(task, PLANS[effort].sizes) for task in names}
    encoder: Encoder = encoder_of(_NAMES[name], random=random, seed=seed, root=run.data_root)
    return encoder.network, tasks_of(names, encoder, sizes=PLANS[effort].sizes, root=run.data_root)


def _small(name: str, random: bool, seed: int) -> Network:
    """A ViT that takes no time, in place of an encoder."""
    with forked_rng([CNN, VIT, TEXT].index(name) + 10 * random + 100 * seed):
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


def over_seeds(values: np.ndarray, draws: np.ndarray | None = None) -> Estimate:
    """A number of each seed: its mean, with an interval where there are several. One seed alone tells no spread.

    Args:
        values: The number of each seed.
        draws: The number of each seed on resampled test samples; their error is joined with that of seeds.
    """
    flat = np.asarray(values, float).ravel()
    if len(flat) < 2:
        return Estimate(float(flat[0]))
    return over_repeats(flat) if draws is None else over_seeds_and_samples(flat, draws)


_LOOKED_AT = 1000  # training samples of a task, at most, on which fine-tuning is checked


def progress(found: Study, run: Run, *, start: str = "") -> dict[str, Number]:
    """How far each fine-tuning went: the share of the training errors at its start that it removes, over all tasks.

    A linear probe classifies most samples before any fine-tuning. So an accuracy far above chance does not tell that an encoder was
    fine-tuned; errors that are gone do.

    Args:
        found: Encoder, tasks, heads and vectors.
        run: Finished work is kept in the folder that figures share.
        start: Words for another start than the pre-trained weights, such as ``"random"``.
    """
    numbers = {}
    rows = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    for tuning in RATES[CNN]:
        shares = []
        for vectors in found.vectors:
            accuracies = []
            for task, vector in vectors[tuning].items():
                there = sampled(found.tasks[task], "train", _LOOKED_AT, seed=0)
                linearised = tuning == "linearised"
                classes = edited_outputs(
                    found.encoder, found.heads[task], [vector], rows, there, linearised=linearised, run=run.shared
                )
                accuracies.append((classes == there.splits["train"][1].cpu()).double().mean(1).tolist())
            before, after = np.mean(accuracies, axis=0)
            shares.append(100 * (after - before) / max(1 - before, 1 / _LOOKED_AT))
        words = f"{found.name}: share of the training errors that {tuning} fine-tuning removes"
        numbers[_progress_key(found.name, tuning, start)] = over_seeds(np.array(shares)).named(
            f"{words}, from {start} weights" if start else words, "%"
        )
    return numbers


def _progress_key(name: str, tuning: str, start: str) -> str:
    return snake(" ".join(filter(None, (name, start, tuning, "progress"))))


def fine_tuned(name: str, *tunings: str, start: str = "") -> tuple[Trained, ...]:
    """The evidence that an encoder was fine-tuned in these ways: see :func:`progress`."""
    return tuple(Trained(_progress_key(name, tuning, start), 0.0, 100.0) for tuning in tunings)


def how(effort: str) -> dict[str, object]:
    """Settings to be recorded."""
    plan, recipe = PLANS[effort], tuning_recipe(steps=PLANS[effort].steps)
    return {
        "encoders": list(plan.encoders),
        "tasks": list(plan.tasks),
        "text tasks": list(plan.texts),
        "samples": list(plan.sizes),
        "steps": plan.steps,
        "seeds": plan.seeds,
        "batch": recipe.batch,
        "optimiser": recipe.optimiser,
        "schedule": recipe.schedule,
        "warm-up steps": recipe.warmup,
        "weight decay": recipe.weight_decay,
        "gradient norm clipped at": recipe.clip,
        "heads": "linear probes",
        "features normalised": False,
        "coefficients": 21,
        **{rate_key(name, tuning): RATES[name][tuning] for name in plan.encoders for tuning in RATES[name]},
    }


def rate_key(name: str, tuning: str) -> str:
    """The name of a learning rate among the settings."""
    return f"rate: {name}, {tuning}"


#: The settings of the thesis, appendix D.1, and of the released code where the text is silent.
PUBLISHED = {
    "encoders": ["CLIP ViT-B/32", "CLIP ViT-B/16", "CLIP ViT-L/14"],
    "tasks": ["Cars", "DTD", "EuroSAT", "GTSRB", "MNIST", "RESISC45", "SUN397", "SVHN"],
    "samples": "whole data sets",
    "steps": 2000,
    "batch": 128,
    "optimiser": "adamw",
    "schedule": "cosine",
    "warm-up steps": 200,
    "weight decay": 0.1,
    "gradient norm clipped at": 1.0,
    "heads": "zero-shot heads of the text encoder",
    "features normalised": True,
    "coefficients": 21,
    **{rate_key(name, tuning): 1e-5 for name in (CNN, VIT) for tuning in RATES[name]},
}


NOTES = (
    "No CLIP weights are to be had here. In place of CLIP and its zero-shot heads: encoders pre-trained on ImageNet "
    "(EfficientNet-Lite0), on characters, faces and photographs (small ViT; see vit_pretraining beside this figure) "
    "and on sentences (MiniLM), "
    "with linear probes as heads. A probe starts far above chance, so that there is less to gain.",
    "Learning rates were chosen by the validation accuracy of single tasks, with one seed, before any two vectors were added.",
)
