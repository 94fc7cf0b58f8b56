"""What chapter 6 of the thesis is tried on: encoders with their tasks, heads and task vectors, and how far fine-tuning went."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from biascope import data
from biascope.editing.encoder_source import VIT_FILE, encoder_of, has_weights
from biascope.editing.heads import Head
from biascope.editing.outputs import edited_outputs, sampled
from biascope.editing.study import Study as Study
from biascope.editing.study import study_of
from biascope.editing.tasks import tasks_of
from biascope.editing.tuning import TUNINGS, tuning_recipe
from biascope.editing.vectors import TaskVector
from biascope.families.checkpoint import Checkpoint
from biascope.families.network import Network
from biascope.papers.task_arithmetic2023.plans import CNN, NOTES, SHOTS, SIZES, TEXT, TEXTS, VIT
from biascope.results.estimate import over, proportion
from biascope.results.finding import Tell
from biascope.results.plan import Row
from biascope.results.registry import Measurement
from biascope.results.result import Result
from biascope.results.wording import snake
from biascope.runs.identity import content_of
from biascope.runs.randomness import forked_rng, generator_for
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.task import Arrays
from biascope.training.recipe import Recipe

TOKENS = 32  # of a text: most sentences of SST-2 and all questions of TREC are shorter
LOGIT_SCALE = 100.0  # of CLIP: the length of each row of its zero-shot heads
_FILES = {
    CNN: "efficientnet_lite0",
    SIZES[1]: "efficientnet_lite2",
    VIT: "vit",
    TEXT: "minilm",
    TEXTS[0]: "minilm_l3",
}
_LOOKED_AT = 300  # training samples of a task, at most, on which fine-tuning is checked


def encoders(plan: Row, run: Run, tell: Tell, wanted: Sequence[str] | None = None) -> tuple[str, ...]:
    """The encoders that are asked for and whose weights are there, told as settings; of some in the order that is wanted.

    Raises:
        ValueError: If there are weights of none.
    """
    asked = [name for name in wanted or plan.networks if name in plan.networks]
    found = with_weights(asked, plan, run)
    if asked and not found:
        encoder_of(_FILES[asked[0]], root=run.data_root)  # says what is missing
    tell_encoders(found, plan, run, tell)
    return found


def with_weights(names: Sequence[str], plan: Row, run: Run) -> tuple[str, ...]:
    """Those encoders whose weights are there; stand-ins need none."""
    return tuple(name for name in names if plan["stand-ins"] or has_weights(_FILES[name], root=run.data_root))


def tell_encoders(names: Sequence[str], plan: Row, run: Run, tell: Tell) -> None:
    """Tell which encoders run, and by the hash of their weights which networks these are."""
    texts = bool({*names} & {*TEXTS})
    tell.settings["encoders"] = list(names)
    tell.settings["text tasks"] = list(plan["text tasks"]) if texts else []
    if texts:
        tell.settings["tokens of a text"] = TOKENS
    tell.settings["hash of the weights"] = {name: _hash_of(*_source(name, plan), run.data_root) for name in names}
    if VIT in names and not plan["stand-ins"]:
        file = data.data_root(run.data_root) / VIT_FILE
        tell.settings["pre-training of the small ViT"] = Checkpoint.open(file).metadata.get("trained_on", "unknown")
    tell.note(*NOTES)


def study(
    name: str,
    plan: Row,
    run: Run,
    *,
    only: Collection[str] | None = None,
    rate: float | None = None,
    steps: int | None = None,
    tunings: Sequence[str] = TUNINGS,
    **how: Any,
) -> Study:
    """Fine-tune an encoder on its tasks, or read what was kept in the folder that figures share.

    Args:
        name: Of the encoder.
        plan: Tasks, samples, recipe and seeds.
        run: Folder, device and data.
        only: Tasks to keep, where not all are needed.
        rate: Another learning rate than the plan's.
        steps: Another number of iterations than the plan's.
        tunings: Which fine-tunings; none for heads alone.
        how: ``random=True`` starts from random weights; ``normalise=False`` leaves features at their length before the head;
            ``shots`` are the samples of each class that heads are fitted on, ``None`` for all; ``chance=True`` is for heads of random
            directions, so that accuracy starts at chance (:func:`heads_at_chance`).

    Raises:
        ValueError: If weights or data are missing.
    """
    tasks = plan["text tasks"] if name in TEXTS else plan["tasks"]
    source = _source(name, plan, tuple(task for task in tasks if only is None or task in only))
    recipe = tuning_recipe(steps=steps or plan["steps"], rate=rate or plan["learning rate"], batch=plan["batch"])
    return _study(source, recipe, tuple(tunings), plan["seeds"], run.shared, **how)


@functools.lru_cache(maxsize=2)  # figures of one process share what takes half a minute to read
def _study(
    source: tuple[Any, ...],
    recipe: Recipe,
    tunings: tuple[str, ...],
    seeds: int,
    run: Run,
    *,
    random: bool = False,
    normalise: bool = True,
    shots: int | None = SHOTS,
    chance: bool = False,
) -> Study:
    encoder, tasks = _loaded(*source, run.data_root, random)
    return study_of(
        encoder,
        tasks,
        recipes=dict.fromkeys(tunings, recipe),
        seeds=range(seeds),
        normalise=normalise,
        shots=shots,
        heads=heads_at_chance(encoder, tasks, normalise=normalise) if chance else None,
        name=source[0],
        run=run,
    )


def heads_at_chance(encoder: Network, tasks: Mapping[str, Arrays], *, normalise: bool = True) -> dict[str, Head]:
    """Heads that know nothing of the encoder, as CLIP's zero-shot heads know nothing of one with random weights.

    Each class of the training samples has a random direction, drawn once for each task, of the length that CLIP's heads have.
    """
    heads = {}
    for name, task in tasks.items():
        x, y = task.splits["train"]
        with torch.no_grad():
            features = encoder(x[:2]).shape[1]
        rows = torch.randn(1 + int(y.max()), features, generator=generator_for(torch.device("cpu"), 0, "head", name))
        heads[name] = Head(LOGIT_SCALE * nn.functional.normalize(rows), torch.zeros(len(rows)), normalise)
    return heads


def untrained(name: str, plan: Row, run: Run, seed: int = 0) -> Network:
    """The same architecture at random weights."""
    return _loaded(*_source(name, plan), run.data_root, True, seed)[0]


def _source(name: str, plan: Row, tasks: tuple[str, ...] = ()) -> tuple[Any, ...]:
    """What :func:`_loaded` needs of a plan."""
    return name, tasks, plan["stand-ins"], plan["pixels"], tuple(plan["samples"]) if tasks else ()


@functools.lru_cache(maxsize=2)  # preparing the images of eight tasks takes seconds
def _loaded(
    name: str,
    tasks: tuple[str, ...],
    stand_ins: bool,
    pixels: int,
    samples: tuple[int, int, int],
    root: Path | None,
    random: bool = False,
    seed: int = 0,
) -> tuple[Network, dict[str, Arrays]]:
    """An encoder, and tasks as it sees them."""
    if stand_ins:
        with forked_rng(list(_FILES).index(name) + 10 * random + 100 * seed):
            module = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 12))
        return Network.of(module), {task: _clouds(task, samples) for task in tasks}
    size = None if name in (VIT, *TEXTS) else pixels
    encoder = encoder_of(_FILES[name], image_size=size, length=TOKENS, random=random, seed=seed, root=root)
    return encoder.network, tasks_of(tasks, encoder, sizes=samples, root=root)


def _clouds(task: str, samples: tuple[int, int, int]) -> Arrays:
    """Three clouds of points about centres of their own, as images."""
    stream = generator_for(torch.device("cpu"), 0, "clouds", task)
    centres = torch.randn(3, 1, 8, 8, generator=stream)

    def drawn(num: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(num) % 3
        return centres[labels] + torch.randn(num, 1, 8, 8, generator=stream), labels

    splits = zip(("train", "validation", "test"), samples, strict=True)
    return Arrays({split: drawn(num) for split, num in splits}, name=task)


@functools.cache
def _hash_of(*source: Any) -> str:
    return content_of(_loaded(*source)[0].params)


def with_splits(task: Arrays, *splits: str) -> Arrays:
    """A task with some of its splits: work on it is then found again whatever the others are."""
    return dataclasses.replace(task, splits={split: task.splits[split] for split in splits})


Kept = TypeVar("Kept", bound=Result)


def kept(measure: Measurement[..., Kept], *inputs: Any, at: Any, run: Run, **settings: Any) -> Kept:
    """What a measurement finds, kept as one piece of work: its many parts need not be identified one by one.

    The first input is an encoder, whose outputs are compared on the task ``at``. The measurement itself keeps nothing in the folder.
    """
    encoder, *others = inputs
    trials = Trials(measure.name, run, code=measure, at=at, encoder=encoder, inputs=others, settings=settings)
    alone = dataclasses.replace(run, folder=None)
    found = next(trials.outcomes(["result"], lambda key: _packed(measure(*inputs, **settings, run=alone))))
    words = json.loads(bytes(found.pop("words").tolist()))
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in words.items()}
    fields |= {name: tensor.numpy() for name, tensor in found.items()}
    return measure.result(**fields)


def _packed(result: Result) -> Outcome:
    """A result as tensors: its arrays, and everything else as JSON in bytes."""
    fields = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
    words = {name: value for name, value in fields.items() if name not in arrays and name != "provenance"}
    text = torch.tensor(list(json.dumps(words).encode()), dtype=torch.uint8)
    return {"words": text} | {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def tell_progress(tuned: Study, run: Run, tell: Tell, *, start: str = "") -> None:
    """Tell how far each fine-tuning went: the share of the training errors at its start that it removes, over all tasks.

    A linear probe classifies most samples before any fine-tuning. So an accuracy far above chance does not tell that an encoder was
    fine-tuned; errors that are gone do. ``start`` has words for another start than the pre-trained weights, such as ``"random"``.
    """
    samples = {task: sampled(arrays, "train", _LOOKED_AT, seed=0) for task, arrays in tuned.tasks.items()}
    count = sum(len(arrays.splits["train"][1]) for arrays in samples.values())
    origin = start and (", from random weights" if start == "random" else f", {start}")
    for tuning in tuned.vectors[0]:
        seeds = [_accuracies(tuned, samples, of[tuning], tuning == "linearised", run) for of in tuned.vectors]
        before, after = np.array(seeds).T
        wrong = np.maximum(1 - before, 1 / _LOOKED_AT)
        shares = (after - before) / wrong
        counts = np.round(count * wrong)
        errors = [100 * proportion(*each).standard_error for each in zip(shares, counts, strict=True)]
        tell.about(tuned.name)(
            f"share of the training errors that {tuning} fine-tuning removes{origin}",
            over(100 * shares, shared=float(np.mean(errors)), within=(-math.inf, 100.0)),
            "%",
            key=snake(f"{tuned.name} {start} {tuning} progress"),
        )


def _accuracies(
    tuned: Study, samples: Mapping[str, Arrays], vectors: Mapping[str, TaskVector], linearised: bool, run: Run
) -> list[float]:
    """The mean training accuracy before and after the fine-tunings of one seed; one piece of work."""
    looked = {task: (samples[task].splits["train"], tuned.heads[task], vectors[task].deltas) for task in vectors}
    at = next(iter(samples.values()))
    work = {"encoder": tuned.encoder, "looked": looked, "linearised": linearised}
    trials = Trials("progress of fine-tuning", run.shared, code=edited_outputs, at=at, **work)
    rows, alone = torch.tensor([[0.0], [1.0]], dtype=torch.float64), dataclasses.replace(run, folder=None)

    def accuracies(key: str) -> Outcome:
        rights = []
        for task, vector in vectors.items():
            classes = edited_outputs(
                tuned.encoder, tuned.heads[task], [vector], rows, samples[task], linearised=linearised, run=alone
            )
            rights.append((classes == samples[task].splits["train"][1].cpu()).double().mean(1))
        return {"accuracies": torch.stack(rights)}

    mean: list[float] = next(trials.outcomes(["accuracies"], accuracies))["accuracies"].mean(0).tolist()
    return mean
