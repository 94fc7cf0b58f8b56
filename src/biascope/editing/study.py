"""An editing study: the tasks of an encoder with a head each, and the task vectors of every seed, saved as they finish."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from biascope.editing.heads import Head, fitted_head, require_splits
from biascope.editing.tuning import TUNINGS, require_heads, tuned_vectors
from biascope.editing.vectors import TaskVector
from biascope.families import weights
from biascope.families.network import Network
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.files import make_writable, name_for_file, require_ours, write_atomically
from biascope.runs.identity import content_of
from biascope.runs.rehearsal import at_hand, counted
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.task import Arrays
from biascope.training.recipe import Recipe

_RATE = 1e-4  # of the encoders below, for short fine-tunings; docs/edit.md says why
_TRIED = ("efficientnet_lite0", "efficientnet_lite2", "vit", "minilm", "minilm_l3")
_PUBLISHED = 1e-5  # for CLIP


def usual_rates(encoder: str) -> dict[str, float]:
    """The default learning rates of an encoder, one for all methods; those published for CLIP if none were tried.

    Args:
        encoder: As :func:`biascope.editing.encoder_source.encoder_of` takes it.

    Example:
        >>> usual_rates("EfficientNet-Lite0"), usual_rates("models/clip")["linearised"]
        ({'non-linear': 0.0001, 'linearised': 0.0001}, 1e-05)
    """
    known = encoder.lower().replace("-", "_") in _TRIED
    return dict.fromkeys(TUNINGS, _RATE if known else _PUBLISHED)


@dataclass(frozen=True)
class Study:
    """An encoder with its tasks, their heads, and the task vectors of every seed.

    Attributes:
        name: Name of the encoder.
        encoder: At θ₀.
        tasks: By name, in three splits.
        heads: Linear probes on the features at θ₀.
        vectors: For each seed, by how they were tuned and by task.
    """

    name: str
    encoder: Network
    tasks: dict[str, Arrays]
    heads: dict[str, Head]
    vectors: tuple[dict[str, dict[str, TaskVector]], ...]


@under_torch_defaults
def study_of(
    encoder: Network,
    tasks: Mapping[str, Arrays],
    *,
    recipes: Mapping[str, Recipe],
    seeds: Sequence[int],
    tuned: Collection[str] | None = None,
    normalise: bool = False,
    shots: int | None = None,
    heads: Mapping[str, Head] | None = None,
    name: str = "encoder",
    run: Run | None = None,
) -> Study:
    """Fit the head of every task and fine-tune an encoder on each, for every seed; work saved in the folder is read.

    Args:
        encoder: Pre-trained, at θ₀, from inputs to features.
        tasks: With splits ``train`` and ``validation``, by name.
        recipes: How, by ``"non-linear"`` and ``"linearised"``; see :func:`biascope.editing.tuning.tuning_recipe`.
        seeds: Random seeds for the order of samples; heads do not depend on them.
        tuned: Names of the tasks to fine-tune on; all by default. The others have a head alone, as a control task needs it.
        normalise: Whether features are divided by their length before the head.
        shots: Training samples of each class that heads are fitted on, the first ones; all by default. Fine-tuning uses all samples.
        heads: The head of each task, where none is to be fitted.
        name: Name of the encoder, for results.
        run: Folder (heads and fine-tunings are saved), device, precision.

    Returns:
        Encoder, tasks, heads and vectors.

    Raises:
        ValueError: If a split is missing, there is no such tuning or task, or a training diverges.

    Example:
        >>> from biascope.editing.tuning import tuning_recipe
        >>> x = torch.linspace(-1, 1, 16)[:, None]
        >>> sides = Arrays(dict.fromkeys(("train", "validation"), (x, (x[:, 0] > 0).long())))
        >>> encoder = Network.of(torch.nn.Linear(1, 1, bias=False)).with_params({"weight": torch.ones(1, 1)})
        >>> recipes = {"non-linear": tuning_recipe(steps=3, rate=0.1)}
        >>> study = study_of(encoder, {"sides": sides}, recipes=recipes, seeds=[0], run=Run(device="cpu"))
        >>> bool(study.vectors[0]["non-linear"]["sides"].deltas["weight"] > 0)  # the longer the features, the surer the head
        True
    """
    run = run or Run()
    if unknown := [task for task in tuned or () if task not in tasks]:
        raise ValueError(
            f"tuned must name some of the tasks {', '.join(tasks)}, got {unknown[0]!r}. Pass names of tasks."
        )
    if shots is not None and shots < 1:
        raise ValueError(f"shots must be at least 1, got {shots}. Pass shots=4.")
    if heads is None:
        heads = _kept_heads(encoder, tasks, normalise, shots, run)
    require_heads(tasks, heads)
    chosen = {task: each for task, each in tasks.items() if tuned is None or task in tuned}
    vectors: list[dict[str, dict[str, TaskVector]]] = []
    with counted("fine-tunings", len(seeds) * len(recipes) * len(chosen)) as advance:
        for seed in seeds if chosen else ():
            vectors.append({})
            for tuning, recipe in recipes.items():
                at_hand(len(chosen))
                vectors[-1] |= tuned_vectors(encoder, heads, chosen, recipe, tunings=(tuning,), seed=seed, run=run)
                advance(len(chosen))
    return Study(name, encoder, dict(tasks), dict(heads), tuple(vectors))


def _first_of_each_class(task: Arrays, shots: int) -> Arrays:
    """The task with that many training samples of each class."""
    x, y = task.splits["train"]
    rows = torch.cat([torch.nonzero(y == label)[:shots, 0] for label in torch.unique(y)]).sort().values
    return dataclasses.replace(task, splits={**task.splits, "train": (x[rows], y[rows])})


def _kept_heads(
    encoder: Network, tasks: Mapping[str, Arrays], normalise: bool, shots: int | None, run: Run
) -> dict[str, Head]:
    """The head of each task. Fine-tunings are known by their head, so that it is kept too: fitted again on a GPU it may differ."""
    any_task = next(iter(tasks.values()), None)
    trials = Trials("task head", run, code=_kept_heads, at=any_task, encoder=encoder, normalise=normalise)
    heads = {}

    def fitted(task: Arrays) -> Outcome:
        head = fitted_head(encoder, task, normalise=normalise, run=run)
        facts = torch.tensor([head.penalty, head.accuracy, head.gradient], dtype=torch.float64)
        return {"weight": head.weight, "bias": head.bias, "facts": facts}

    with run.tracked("heads", len(tasks)) as advance:
        for name, task in tasks.items():
            require_splits(task, ("train", "validation"), name)
            task = task if shots is None else _first_of_each_class(task, shots)
            content = content_of({split: task.splits[split] for split in ("train", "validation")})
            found = next(trials.outcomes([content], lambda key, task=task: fitted(task)))  # type: ignore[misc]
            heads[name] = Head(found["weight"], found["bias"], normalise, *found["facts"].tolist())
            advance(1)
    return heads


def save_vectors(
    study: Study,
    folder: Path,
    *,
    coefficients: Mapping[str, Sequence[float]] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write the files for merging on disk: θ₀, every task vector, the heads, and how much of the vectors to add.

    ``base.safetensors``, ``TUNING/seed-N/TASK.safetensors``, ``heads.safetensors`` and ``coefficients.json``. Vectors know the hash
    of θ₀. Those of linearised fine-tuning are for the linearised encoder, not for the weights of the plain one.

    Args:
        study: Encoder, heads and vectors.
        folder: Folder to write to; it is created.
        coefficients: By editing method, the coefficient of the sum of all vectors for each seed.
        metadata: Metadata of the file of θ₀.

    Returns:
        The files of non-linear vectors of the first seed.

    Raises:
        ValueError: If the folder cannot be written, or holds another file of one of these names.
    """
    from biascope import __version__

    for by_tuning in study.vectors[:1]:
        tasks = {task for vectors in by_tuning.values() for task in vectors}
        require_own_vectors(folder, tasks, tunings=by_tuning, seeds=len(study.vectors))
    make_writable(folder)
    state = study.encoder.state
    kept = {name: state[name] for name in study.encoder.module.state_dict() if name in state}
    weights.save(kept, folder / "base.safetensors", {"format": "pt", "encoder": study.name, **(metadata or {})})
    parts = {f"{task}.{part}": getattr(head, part) for task, head in study.heads.items() for part in ("weight", "bias")}
    weights.save(parts, folder / "heads.safetensors", {"format": "pt", "base": content_of(study.encoder)})
    if coefficients is not None:
        document = {"biascope": __version__} | {way: list(map(float, each)) for way, each in coefficients.items()}
        write_atomically(folder / "coefficients.json", json.dumps(document, indent=1).encode())
    first: list[Path] = []
    for number, by_tuning in enumerate(study.vectors):
        for tuning, vectors in by_tuning.items():
            files = {task: _vector_file(folder, tuning, number, task) for task in vectors}
            make_writable(folder / tuning / f"seed-{number}")
            for task, vector in vectors.items():
                vector.save(files[task])
            first += files.values() if (tuning, number) == ("non-linear", 0) else ()
    return first


def require_own_vectors(folder: Path, tasks: Collection[str], *, tunings: Collection[str], seeds: int) -> None:
    """Refuse a folder in which :func:`save_vectors` would replace a file that is not ours: before the work, not after it.

    Args:
        folder: As for :func:`save_vectors`.
        tasks: Names of the tasks that are tuned on.
        tunings: How they are tuned on.
        seeds: How many seeds there are.

    Raises:
        ValueError: If there is such a file.
    """
    vectors = itertools.product(tunings, range(seeds), tasks)
    names = ("base.safetensors", "heads.safetensors", "coefficients.json")
    require_ours(*(folder / name for name in names), *(_vector_file(folder, *each) for each in vectors))


def _vector_file(folder: Path, tuning: str, number: int, task: str) -> Path:
    return folder / tuning / f"seed-{number}" / f"{name_for_file(task)}.safetensors"
