"""What chapter 6 of the thesis is tried on: encoders that can be had, their tasks, heads and task vectors."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from biascope import data
from biascope.editing.encoder_source import VIT as VIT_SETTINGS
from biascope.editing.encoder_source import VIT_FILE, encoder_of, has_weights
from biascope.editing.encoders.bert import bert
from biascope.editing.encoders.encoder import Encoder
from biascope.editing.heads import Head
from biascope.editing.outputs import edited_outputs, sampled
from biascope.editing.study import Study as Study
from biascope.editing.study import study_of
from biascope.editing.tasks import TEXT_TASKS, tasks_of
from biascope.editing.tuning import TUNINGS, tuning_recipe
from biascope.editing.vectors import TaskVector
from biascope.families.checkpoint import Checkpoint
from biascope.families.family import Network
from biascope.papers.selection import chosen as selected
from biascope.results.estimate import Estimate, Number, over, proportion
from biascope.results.result import Result
from biascope.results.wording import snake
from biascope.runs.identity import content_of
from biascope.runs.randomness import forked_rng, generator_for
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.task import Arrays
from biascope.training.recipe import Recipe

CNN, VIT, TEXT = "EfficientNet-Lite0", "small ViT", "MiniLM-L6"
LARGER = {CNN: "EfficientNet-Lite2"}  # of one architecture, for the effect of size
TEXTS = ("MiniLM-L3", TEXT)  # encoders of texts, from small to large
WAYS = ("non-linear", "post-hoc", "linearised")
CONTROL = "cifar10"  # of negation: the task furthest from digits, signs, letters and textures
SHOTS = 4  # samples of each class that a head is fitted on
TOKENS = 32  # of a text: most sentences of SST-2 and all questions of TREC are shorter
LOGIT_SCALE = 100.0  # of CLIP: the length of each row of its zero-shot heads
#: Encoders that a figure can be run for one by one, by effort: of images and texts, and of images alone.
ENCODERS = {"smoke": (CNN,), "laptop": (CNN,), "paper": (CNN, VIT, TEXT)}
IMAGES = {effort: tuple(name for name in names if name not in TEXTS) for effort, names in ENCODERS.items()}
MAPPED = ENCODERS | {"laptop": (CNN, TEXT)}  # of figure D.2: a laptop too can map one way to edit texts
_NAMES = {
    CNN: "efficientnet_lite0",
    LARGER[CNN]: "efficientnet_lite2",
    VIT: "vit",
    TEXT: "minilm",
    TEXTS[0]: "minilm_l3",
}


@dataclass(frozen=True)
class Plan:
    """How much of everything.

    Attributes:
        encoders: Which of them.
        pixels: Side of the images of an EfficientNet.
        sizes: Training, validation and test samples of a task at most.
        tasks: Image tasks; the first few where not all are needed.
        texts: Text tasks.
        steps: Iterations of a fine-tuning.
        batch: Samples of an iteration.
        rate: The learning rate of every fine-tuning, whatever the encoder and the method.
        rates: Other rates, to compare with.
        balanced: Other rates, to compare with at the same product of rate and iterations.
        seeds: Repeats, each with its own order of samples.
        coefficients: Of a search, apart from those near 0.
        few: Tasks of comparisons that need not all.
        targets: Tasks that are negated.
        counts: Numbers of tasks that are added.
        points: Samples of a task for maps of ξ.
        grid: Coefficients along a side of them.
        random: Tasks for networks at random weights.
        ways: Ways to edit that are mapped.
    """

    encoders: tuple[str, ...]
    pixels: int
    sizes: tuple[int, int, int]
    tasks: tuple[str, ...]
    texts: tuple[str, ...]
    steps: int
    batch: int
    rate: float
    rates: tuple[float, ...]
    balanced: tuple[float, ...]
    seeds: int
    coefficients: int
    few: int
    targets: int
    counts: tuple[int, ...]
    points: int
    grid: int
    random: tuple[str, ...]
    ways: tuple[str, ...] = WAYS


_ORDER = ("mnist", "gtsrb", "fashion-mnist", "dtd10", "kmnist", "cars20", "usps", "cifar10")

PLANS = {
    "smoke": Plan(
        encoders=(CNN,),
        pixels=8,
        sizes=(40, 20, 20),
        tasks=("mnist", "gtsrb", CONTROL),
        texts=(),
        steps=2,
        batch=16,
        rate=1e-2,
        rates=(1e-1,),
        balanced=(5e-3,),
        seeds=2,
        coefficients=3,
        few=2,
        targets=2,
        counts=(2, 3),
        points=12,
        grid=5,
        random=("mnist", "gtsrb"),
    ),
    "laptop": Plan(
        encoders=(CNN,),
        pixels=64,
        sizes=(1600, 150, 300),
        tasks=_ORDER,
        texts=(),
        steps=50,
        batch=32,
        rate=1e-4,
        rates=(3e-5, 1e-3),
        balanced=(3e-5, 1e-3),
        seeds=3,
        coefficients=11,
        few=3,
        targets=3,
        counts=(2, 4, 8),
        points=150,
        grid=13,  # steps of a half: with steps of 1 only the origin is below ξ = 0.1
        random=("mnist", "gtsrb"),
    ),
    "paper": Plan(
        encoders=(CNN, VIT, TEXT),
        pixels=64,
        sizes=(2000, 400, 1000),
        tasks=_ORDER,
        texts=TEXT_TASKS,
        steps=200,  # rate times steps is 0.02, as published
        batch=128,
        rate=1e-4,
        rates=(1e-5, 3e-5, 3e-4, 1e-3),
        balanced=(3e-5, 1e-3),
        seeds=3,
        coefficients=21,
        few=4,
        targets=8,
        counts=(2, 3, 4, 5, 6, 7, 8),
        points=256,
        grid=20,
        random=("mnist", "gtsrb", "fashion-mnist"),
    ),
}


#: Of texts, where it is another than that of images.
_TEXT_PLANS = {
    "laptop": dataclasses.replace(PLANS["laptop"], encoders=(TEXT,), texts=TEXT_TASKS[:2], points=32, ways=WAYS[:1])
}


def plan_of(name: str, effort: str) -> Plan:
    """The plan of an encoder."""
    return _TEXT_PLANS.get(effort, PLANS[effort]) if name in TEXTS else PLANS[effort]


def encoders(effort: str, run: Run, *, texts: bool = True, also: Sequence[str] = ()) -> tuple[str, ...]:
    """The encoders of a plan that are asked for and whose weights are there; what a figure runs on is recorded by :func:`how`.

    Args:
        effort: Whose plan.
        run: With the data folder.
        texts: Whether encoders of texts count too.
        also: Others than those of the plan.

    Raises:
        ValueError: If there are weights of none.
    """
    wanted = list(selected(dict.fromkeys((*PLANS[effort].encoders, *also))))
    wanted = [name for name in wanted if texts or name not in TEXTS]
    found = with_weights(wanted, effort, run)
    if not found:
        encoder_of(_NAMES[wanted[0]], root=run.data_root)  # says what is missing
    return found


def with_weights(names: Sequence[str], effort: str, run: Run) -> tuple[str, ...]:
    """Those encoders whose weights are there; at smoke effort all, because none is needed."""
    return tuple(name for name in names if effort == "smoke" or has_weights(_NAMES[name], root=run.data_root))


def study(
    name: str,
    effort: str,
    run: Run,
    *,
    random: bool = False,
    only: Sequence[str] | None = None,
    rate: float | None = None,
    tunings: Sequence[str] = TUNINGS,
    normalise: bool = True,
    shots: int | None = SHOTS,
    seeds: Sequence[int] | None = None,
    steps: int | None = None,
    chance: bool = False,
) -> Study:
    """Fine-tune an encoder on its tasks, or read what was kept.

    Args:
        name: Of the encoder.
        effort: How much.
        run: Fine-tunings are kept in the folder that figures share.
        random: Whether the encoder starts from random weights; then on few tasks.
        only: Tasks to keep, where not all are needed.
        rate: Another learning rate than the plan's.
        tunings: Which fine-tunings; none for heads alone.
        normalise: Whether features are divided by their length before the head.
        shots: Samples of each class that heads are fitted on; ``None`` for all.
        seeds: Some of the plan's seeds; all by default.
        steps: Another number of iterations than the plan's.
        chance: Whether heads have random directions, so that accuracy starts at chance; see :func:`heads_at_chance`.

    Raises:
        ValueError: If weights or data are missing.
    """
    plan = plan_of(name, effort)
    names = plan.random if random else plan.texts if name in TEXTS else plan.tasks
    names = tuple(task for task in names if only is None or task in only)
    chosen = tuple(range(plan.seeds) if seeds is None else seeds)
    recipe = tuning_recipe(steps=steps or plan.steps, rate=rate or plan.rate, batch=plan.batch)
    how_much = (recipe, tuple(tunings), normalise, shots, chosen, chance)
    return _study(name, effort, run.shared, random, names, *how_much)


@functools.lru_cache(maxsize=2)  # figures of one process share what takes half a minute to read
def _study(
    name: str,
    effort: str,
    run: Run,
    random: bool,
    names: tuple[str, ...],
    recipe: Recipe,
    tunings: tuple[str, ...],
    normalise: bool,
    shots: int | None,
    seeds: tuple[int, ...],
    chance: bool,
) -> Study:
    encoder, tasks = _encoder_and_tasks(name, effort, names, run.data_root, random)
    return study_of(
        encoder,
        tasks,
        recipes=dict.fromkeys(tunings, recipe),
        seeds=seeds,
        normalise=normalise,
        shots=shots,
        heads=heads_at_chance(encoder, tasks, normalise=normalise) if chance else None,
        name=name,
        run=run,
    )


def heads_at_chance(encoder: Network, tasks: Mapping[str, Arrays], *, normalise: bool = True) -> dict[str, Head]:
    """Heads that know nothing of the encoder, as CLIP's zero-shot heads know nothing of one with random weights.

    Each class has a random direction, drawn once for each task, of the length that CLIP's heads have.

    Args:
        encoder: Whose features they take.
        tasks: By name; the classes are those of the training samples.
        normalise: Whether features are divided by their length first.
    """
    heads = {}
    for name, task in tasks.items():
        x, y = task.splits["train"]
        with torch.no_grad():
            features = encoder(x[:2]).shape[1]
        rows = torch.randn(1 + int(y.max()), features, generator=generator_for(torch.device("cpu"), 0, "head", name))
        heads[name] = Head(LOGIT_SCALE * nn.functional.normalize(rows), torch.zeros(len(rows)), normalise)
    return heads


Kept = TypeVar("Kept", bound=Result)


def kept(kind: type[Kept], measure: Callable[..., Kept], *inputs: Any, at: Any, run: Run, **settings: Any) -> Kept:
    """What a measurement finds, kept as one piece of work: its many parts need not be identified one by one.

    Args:
        kind: The class of what it finds.
        measure: The measurement.
        inputs: An encoder, then what else it takes.
        at: A task on which the encoder's outputs are compared.
        run: The folder; the measurement itself keeps nothing in it.
        settings: Of the measurement.
    """
    encoder, *others = inputs
    trials = Trials(measure.__name__, run, code=measure, at=at, encoder=encoder, inputs=others, settings=settings)
    alone = dataclasses.replace(run, folder=None)
    found = next(trials.outcomes(["result"], lambda key: _packed(measure(*inputs, **settings, run=alone))))
    words = json.loads(bytes(found.pop("words").tolist()))
    fields: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in words.items()}
    fields |= {name: tensor.numpy() for name, tensor in found.items()}
    return kind(**fields)


def _packed(result: Result) -> Outcome:
    """A result as tensors: its arrays, and everything else as JSON in bytes."""
    fields = {each.name: getattr(result, each.name) for each in dataclasses.fields(result)}
    arrays = {name: each for name, each in fields.items() if isinstance(each, np.ndarray)}
    words = {name: each for name, each in fields.items() if name not in arrays and name != "provenance"}
    text = torch.tensor(list(json.dumps(words).encode()), dtype=torch.uint8)
    return {"words": text} | {name: torch.from_numpy(np.ascontiguousarray(each)) for name, each in arrays.items()}


def untrained(name: str, effort: str, run: Run, seed: int = 0) -> Network:
    """The same architecture at random weights."""
    return _encoder_and_tasks(name, effort, (), run.data_root, True, seed)[0]


def untrained_on_samples(name: str, effort: str, run: Run, count: int) -> tuple[Network, Tensor]:
    """An architecture at random weights, and random inputs for it: images, or texts of 32 tokens."""
    stream = generator_for(torch.device("cpu"), 0, "inputs", name)
    if effort == "smoke":
        network, x = _small(name, True, 0), torch.randn(count, 1, 8, 8, generator=stream)
    elif name == TEXT:
        with forked_rng(0):
            network = Network.of(bert())
        x = torch.randint(1000, 20_000, (count, 32), generator=stream)
    else:
        network = untrained(name, effort, run)
        side = VIT_SETTINGS["image_size"] if name == VIT else PLANS[effort].pixels
        x = torch.randn(count, 3, side, side, generator=stream).contiguous(memory_format=torch.channels_last)
    device = run.torch_device
    return network.to(device, torch.float32), x.to(device)


@functools.lru_cache(maxsize=2)  # preparing the images of eight tasks takes seconds
def _encoder_and_tasks(
    name: str, effort: str, names: tuple[str, ...], root: Path | None, random: bool, seed: int = 0
) -> tuple[Network, dict[str, Arrays]]:
    plan = plan_of(name, effort)
    if effort == "smoke":
        return _small(name, random, seed), {task: _clouds(task, plan.sizes) for task in names}
    size = None if name in (VIT, *TEXTS) else plan.pixels
    encoder: Encoder = encoder_of(
        _NAMES[name], image_size=size, length=TOKENS, random=random, seed=seed, root=root
    )  # images have no tokens
    return encoder.network, tasks_of(names, encoder, sizes=plan.sizes, root=root)


def _small(name: str, random: bool, seed: int) -> Network:
    """A perceptron that takes no time, in place of an encoder."""
    with forked_rng(list(_NAMES).index(name) + 10 * random + 100 * seed):
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 12))
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


def searched(chosen: np.ndarray, alphas: np.ndarray) -> Estimate:
    """The coefficient that searches of all seeds choose. A search tells nothing finer than a step of its grid, even if seeds agree.

    The interval ends where the search does.

    Args:
        chosen: The coefficient of each seed.
        alphas: The coefficients that are searched, in rising order.
    """
    steps = np.diff(alphas)
    beside = np.concatenate([steps[:1], steps, steps[-1:]])  # (before each coefficient, and after the last)
    places = np.abs(alphas[:, None] - chosen).argmin(0)
    step = float(np.maximum(beside[places], beside[places + 1]).max())
    return over(chosen, shared=step / 1.96, within=(float(alphas[0]), float(alphas[-1])))


def share_of(share: float, samples: int, seeds: int) -> Estimate:
    """A share of tasks or searches in percent, its interval by their number: seeds may well agree. One seed tells no spread."""
    return proportion(share, samples).in_percent() if seeds > 1 else Estimate(100 * share)


_LOOKED_AT = 300  # training samples of a task, at most, on which fine-tuning is checked


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
    samples = {task: sampled(each, "train", _LOOKED_AT, seed=0) for task, each in found.tasks.items()}
    for tuning in found.vectors[0]:
        rows = [_progress_of(found, samples, vectors[tuning], tuning == "linearised", run) for vectors in found.vectors]
        shares = np.array([share for share, _ in rows])
        spread = [proportion(share / 100, round(count)).in_percent().standard_error for share, count in rows]
        words = f"{found.name}: share of the training errors that {tuning} fine-tuning removes"
        origin = f"{words}, from random weights" if start == "random" else f"{words}, {start}"
        numbers[_progress_key(found.name, tuning, start)] = over(
            shares, shared=float(np.mean(spread)), within=(-math.inf, 100.0)
        ).named(origin if start else words, "%")
    return numbers


def _progress_of(
    found: Study, samples: Mapping[str, Arrays], vectors: Mapping[str, TaskVector], linearised: bool, run: Run
) -> tuple[float, float]:
    """The share of one seed, in percent, and the number of errors at the start; one piece of work."""
    looked = {task: (samples[task].splits["train"], found.heads[task], vectors[task].deltas) for task in vectors}
    trials = Trials(
        "progress of fine-tuning",
        run.shared,
        code=edited_outputs,
        at=next(iter(samples.values())),
        encoder=found.encoder,
        looked=looked,
        linearised=linearised,
    )
    rows, alone = torch.tensor([[0.0], [1.0]], dtype=torch.float64), dataclasses.replace(run, folder=None)

    def accuracies(key: str) -> Outcome:
        rights = []
        for task, vector in vectors.items():
            classes = edited_outputs(
                found.encoder, found.heads[task], [vector], rows, samples[task], linearised=linearised, run=alone
            )
            rights.append((classes == samples[task].splits["train"][1].cpu()).double().mean(1))
        return {"accuracies": torch.stack(rights)}

    before, after = next(trials.outcomes(["accuracies"], accuracies))["accuracies"].mean(0).tolist()
    wrong = max(1 - before, 1 / _LOOKED_AT)
    return 100 * (after - before) / wrong, wrong * sum(len(samples[task].splits["train"][1]) for task in vectors)


def _progress_key(name: str, tuning: str, start: str) -> str:
    return snake(" ".join(filter(None, (name, start, tuning, "progress"))))


def how(effort: str, run: Run | None = None, names: Sequence[str] | None = None) -> dict[str, object]:
    """Settings to be recorded.

    Args:
        effort: Whose plan.
        run: With the data folder: where it is given, the hash of each encoder's weights is recorded.
        names: The encoders that were looked at; those of the plan by default.
    """
    plan = PLANS[effort]
    names = list(plan.encoders if names is None else names)
    recipe = tuning_recipe(steps=plan.steps, rate=plan.rate, batch=plan.batch)
    settings: dict[str, object] = {
        "encoders": names,
        "pixels": plan.pixels,
        "tasks": list(plan.tasks),
        "text tasks": list(plan_of(TEXT, effort).texts) if set(names) & set(TEXTS) else [],
        **({"tokens of a text": TOKENS} if set(names) & set(TEXTS) else {}),
        "samples": list(plan.sizes),
        "steps": plan.steps,
        "seeds": plan.seeds,
        "batch": recipe.batch,
        "optimiser": recipe.optimiser,
        "learning rate": recipe.rate,
        "schedule": recipe.schedule,
        "warm-up steps": recipe.warmup,
        "weight decay": recipe.weight_decay,
        "weight decay pulls to": "pre-trained weights" if recipe.decay_to == "start" else "zero",
        "gradient norm clipped at": recipe.clip,
        "heads": f"linear probes on {SHOTS} samples of each class",
        "features normalised": True,
        "coefficients": plan.coefficients + 4,
    }
    if run is not None:
        settings["hash of the weights"] = {name: _hash_of(name, effort, run.data_root) for name in names}
        if VIT in names and effort != "smoke":
            file = data.data_root(run.data_root) / VIT_FILE
            settings["pre-training of the small ViT"] = Checkpoint.open(file).metadata.get("trained_on", "unknown")
    return settings


@functools.cache
def _hash_of(name: str, effort: str, root: Path | None) -> str:
    """Digest of the pre-trained weights: which network it was that was fine-tuned."""
    return content_of(_encoder_and_tasks(name, effort, (), root, False)[0].params)


#: The settings of the thesis, appendix D.1, and of the released code where the text is silent.
PUBLISHED = {
    "encoders": ["CLIP ViT-B/32", "CLIP ViT-B/16", "CLIP ViT-L/14"],
    "pixels": 224,
    "tasks": ["Cars", "DTD", "EuroSAT", "GTSRB", "MNIST", "RESISC45", "SUN397", "SVHN"],
    "samples": "whole data sets",
    "steps": 2000,
    "batch": 128,
    "optimiser": "adamw",
    "learning rate": 1e-5,
    "schedule": "cosine",
    "warm-up steps": 200,
    "weight decay": 0.1,
    "weight decay pulls to": "zero",
    "gradient norm clipped at": 1.0,
    "heads": "zero-shot heads of the text encoder",
    "features normalised": True,
    "coefficients": 21,
}


NOTES = (
    "No CLIP weights are to be had here. In place of CLIP: encoders pre-trained on ImageNet (EfficientNet), on characters, faces and "
    "photographs (small ViT; see vit_pretraining beside this figure) and on sentences (MiniLM). In place of zero-shot heads: linear "
    "probes on four samples of each class, which start near the accuracy of CLIP's heads.",
    "One learning rate serves all encoders, tasks and methods; section 6.4 tries others. At paper effort, rate times steps is 0.02, as "
    "published. An encoder whose weights were not there is left out; the settings name those that ran and the hash of their weights.",
    "Heads are one draw of four samples of each class. All seeds share the heads, the training samples and the test samples; a seed "
    "changes the order of training alone. Intervals do not contain what other heads or training samples would change.",
)
ONE_DRAW = "Fine-tuning from random weights starts at one draw of them (seed 0). Intervals do not include other draws."
