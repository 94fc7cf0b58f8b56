"""Linearised training: a network compared with its own linearisation on the same tasks."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn
from typing_extensions import override

from biascope.derivatives.linearize import linearize
from biascope.derivatives.operators import Matrix
from biascope.derivatives.spectrum import eigenpairs
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.kernels.gram import tangent_gram
from biascope.kernels.selftest import derivative_checks
from biascope.results.draw import captioned
from biascope.results.estimate import SHARE, Number, over
from biascope.results.figures import lines_figure
from biascope.results.registry import measurement
from biascope.results.result import Result
from biascope.results.story import Step, Story, model_word
from biascope.runs.cluster import device_type
from biascope.runs.randomness import generator_for, seed_of
from biascope.runs.run import Run
from biascope.runs.trials import Group, Outcome, Sweep, Trials
from biascope.tasks.task import Arrays, Relabelled, master_dtype
from biascope.training.evaluation import STACK_LIMIT, evaluation
from biascope.training.fit import fit
from biascope.training.recipe import Recipe
from biascope.training.sweep import WINDOWS, windows

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class LinearizedTraining(Result):
    """A network and its linearisations, trained on the same tasks; arrays are by model, target, training size and repeat.

    Attributes:
        models: The network, and its linearisations by where they were made.
        targets: Eigenfunctions of the initial kernel that were learned, counted from 1; empty for the labels.
        sizes: Sizes of the training sets.
        threshold: Threshold of the loss, for the number of iterations.
        accuracy: On the test samples; nan of a training that diverged.
        train_accuracy: On the training samples; likewise.
        iterations: First iteration whose loss was below the threshold; nan for never.
        distance: ``‖θ_T − θ₀‖`` between first and last weights.
        cosine_distance: ``1 − cos(θ_T, θ₀)``.
        diverged: Whether the loss stopped being a number.
        losses: Training loss over windows of iterations; nan where a smaller training set has fewer.
        steps: The iteration that ends each window.
    """

    models: tuple[str, ...]
    targets: tuple[int, ...]
    sizes: tuple[int, ...]
    threshold: float
    accuracy: np.ndarray
    train_accuracy: np.ndarray
    iterations: np.ndarray
    distance: np.ndarray
    cosine_distance: np.ndarray
    diverged: np.ndarray
    losses: np.ndarray
    steps: np.ndarray

    _EACH: ClassVar[tuple[str, ...]] = ("model", "target", "training size", "repeat")
    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("accuracy", "train_accuracy", "iterations", "distance", "cosine_distance", "diverged"), _EACH),
        "losses": (*_EACH, "window"),
        "steps": ("training size", "window"),
    }

    @property
    def advantage(self) -> np.ndarray:
        """Accuracy of the network minus that of each linearisation (linearisation, target, training size, repeat)."""
        return np.asarray(self.accuracy[0] - self.accuracy[1:])

    @override
    def headline(self) -> dict[str, Number]:
        numbers = {}
        for j, size in enumerate(self.sizes):
            words = f" ({size:,} samples)" if len(self.sizes) > 1 else ""
            for i, model in enumerate(self.models):
                reached = over(_mean_by_repeat(self.accuracy[i, :, j]), within=(0.0, 1.0))
                label = f"test accuracy of the {model}{words}"
                numbers[f"test_accuracy:{model}, {size} samples"] = reached.named(label, SHARE)
            for i, model in enumerate(self.models[1:]):
                ahead = over(_mean_by_repeat(self.advantage[i, :, j]))
                label = f"advantage over the {model}{words}"
                numbers[f"advantage:{model}, {size} samples"] = ahead.named(label, SHARE)
        return numbers

    @override
    def sentence(self) -> str:
        first, *reached = 100 * np.nanmean(self.accuracy[:, :, -1], (1, 2))
        names = ", ".join(map(str, self.targets[:4])) + ", …" * (len(self.targets) > 4)
        learned = f"the sign of eigenfunction {names}" if self.targets else "the labels"
        others = " and ".join(f"its {m} has {v:.1f} %" for m, v in zip(self.models[1:], reached, strict=True))
        gained, gone = first - reached[0], int(self.diverged.sum())
        what = f"{'lowers' if gained < 0 else 'raises'} test accuracy by {abs(gained):.1f} points"
        what = what if gained else "does not change test accuracy"
        return (
            f"After training on {learned} with {self.sizes[-1]:,} samples, {self.subject} has a test accuracy of {first:.1f} %; "
            f"{others}. Non-linearity in the weights {what}."
            + (f" {gone} of {self.diverged.size} trainings diverged and are left out." if gone else "")
        )

    @override
    def story(self) -> Story:
        return Story(
            meaning=(
                "The linearisation has the network's tangent kernel and nothing else. If the network is more accurate, it "
                "gains from changing its kernel during training; if it is less accurate, the linear model is enough or "
                "better. Both are trained by the same recipe, which may suit one of them better."
            ),
            next_steps=[
                Step(
                    "See how the kernel itself changes.", f"biascope measure kernel_rotation {model_word(self.subject)}"
                )
            ],
        )

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        pictures, repeats, by_target = {}, self.accuracy.shape[3], len(self.targets) > 1
        if by_target or len(self.sizes) > 1:
            at = self.targets if by_target else self.sizes
            x = "eigenfunction of the initial kernel" if by_target else "training samples"
            values = 100 * (self.accuracy[:, :, -1] if by_target else self.accuracy[:, 0])  # (model, at, repeat)
            errors = values.std(2, ddof=1) / math.sqrt(repeats) if repeats > 1 else ()
            lines = {model: (np.array(at), each.mean(1)) for model, each in zip(self.models, values, strict=True)}
            bands = dict(zip(self.models, errors, strict=False))
            figure = lines_figure(lines, x=x, y="test accuracy, %", log_x=not by_target, bands=bands, dark=dark)
            if not by_target:
                figure.axes[0].set_xticks(at, [f"{size:,}" for size in at])
                figure.axes[0].minorticks_off()
            pictures["accuracy"] = captioned("Test accuracy of the network and its linearisation", figure)
        means = self.losses[:, -1, -1].mean(1)  # (model, window)
        curves = {model: (self.steps[-1], mean) for model, mean in zip(self.models, means, strict=True)}
        task = f"Training loss on {f'eigenfunction {self.targets[-1]}' if self.targets else 'the labels'}"
        low = bool(np.nanmin(means, initial=1.0) < 0.1)
        pictures["training_loss"] = captioned(
            task, lines_figure(curves, x="iteration", y="training loss", log_y=low, dark=dark)
        )
        return pictures


@dataclass(frozen=True)
class _Trainings:
    """Trains the network and its linearisations; a stack holds the targets of one training size and repeat."""

    family: Family
    data: Arrays
    labels: tuple[Outcome, ...]  # of all samples by target, for each repeat
    anchors: tuple[int, ...]  # epochs after which the network is linearised
    recipe: Recipe
    seed: int

    def __call__(self, keys: Sequence[str], run: Run, method: Mapping[str, Any]) -> dict[str, Outcome]:
        stack, task, seed = self._start([[int(word) for word in re.findall(r"\d+", key)] for key in keys], run)
        steps = {epoch: epoch * self.recipe.steps_per_epoch(task.sizes["train"]) for epoch in self.anchors}
        walks = [fit(stack, task, self.recipe, seed=seed, run=run, keep_at=list(steps.values()))]
        for epoch, then in ((epoch, walks[0].at(step)) for epoch, step in steps.items()):
            line = linearize(stack.with_params(stack.params, then.buffers), then.params, biased=epoch == 0)
            walks.append(fit(line, task, self.recipe, seed=seed, run=run))
        found = []
        for walk in walks:
            both = [torch.cat([t.flatten(1).double() for t in n.params.values()], 1) for n in (stack, walk.networks)]
            curve, ends = windows(walk.losses)  # (window, target), (window,)
            padded = [nn.functional.pad(t.double(), (0, WINDOWS - len(ends)), value=math.nan) for t in (curve.T, ends)]
            numbers = {
                "accuracy": evaluation(walk.networks, task, "test", run=run).accuracy,
                "train_accuracy": evaluation(walk.networks, task, "train", run=run).accuracy,
                "iterations": torch.where(walk.first_below < 0, torch.nan, walk.first_below.double()),
                "distance": walk.distance,
                "cosine_distance": 1 - torch.cosine_similarity(both[0], both[1]),
                "diverged": walk.diverged_at >= 0,
                "losses": padded[0],
                "steps": padded[1].expand(len(keys), -1),
            }
            found.append({name: tensor.double().cpu() for name, tensor in numbers.items()})
        each = {name: torch.stack([one[name] for one in found], 1) for name in found[0]}  # (target, model, …)
        return {key: {name: tensor[i] for name, tensor in each.items()} for i, key in enumerate(keys)}

    def _start(self, keys: Sequence[Sequence[int]], run: Run) -> tuple[Network, Relabelled, int]:
        """Where a stack begins, on what, and the seed of its order."""
        (size, repeat, _), device, train = keys[0], run.torch_device, self.data.sizes["train"]
        seed = seed_of(self.seed, "repeat", repeat)
        stack = self.family.draws(seed=seed, run=run).pick([0] * len(keys)).to(device, master_dtype(run))
        part = torch.randperm(train, generator=generator_for(torch.device("cpu"), seed, "part"))[:size]
        (x, y), test = self.data.splits["train"], self.data.splits["test"]
        base = replace(self.data, splits={"train": (x[part], y[part]), "test": test}).to(run)
        labels = torch.stack([self.labels[repeat][str(target)].cpu() for _, _, target in keys])
        learned = {"train": labels[:, :train][:, part].to(device), "test": labels[:, train:].to(device)}
        return stack, Relabelled(base, learned), seed

    def groups(self, keys: Sequence[str], run: Run) -> list[Group]:
        """Targets side by side: what is trained and kept at a time."""
        alone = run.on is not None or self.family.num_parameters > STACK_LIMIT
        most = 1 if alone else 16 if device_type(run) == "cuda" else torch.get_num_threads()
        each = [tuple(some) for _, some in itertools.groupby(keys, lambda key: key.rpartition(", ")[0])]
        return [Group(some[i : i + most]) for some in each for i in range(0, len(some), most)]


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    family = Family.initialised(lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), name="small")
    x = torch.randn(264, 3, generator=torch.Generator().manual_seed(0))
    data = Arrays({"train": (x[:64], x[:64, 0] > 0), "test": (x[64:], x[64:, 0] > 0)})
    return (family, data), {"sizes": (16, 64), "at": ("start", "trained"), "epochs": 3, "batch": 16, "repeats": 2}


@measurement(
    title="Linearised training",
    paper="linearized2021",
    result=LinearizedTraining,
    example=_example,
    checks=derivative_checks(lambda settings: ("weight",)),
)
def linearized_training(
    family: Family,
    data: Arrays,
    *,
    targets: tuple[int, ...] | None = None,
    positive: tuple[int, ...] | None = None,
    sizes: tuple[int, ...] | None = None,
    at: tuple[str, ...] | str = ("start",),
    epochs: int = 100,
    batch: int = 128,
    rate: float = 0.05,
    optimiser: str = "sgd",
    threshold: float = 0.01,
    repeats: int = 1,
    readout: str = "first",
    seed: int = 0,
    run: Run | None = None,
) -> LinearizedTraining:
    """How well and how fast a network learns, compared with its linearisation on the same tasks in the same order.

    Definition:
        The linearisation at θ₀ is ``f(x; θ₀) + (θ − θ₀)ᵀ∇f(x; θ₀)``. It is the network with a tangent kernel that never changes. At
        weights θ* reached by training, it is ``(θ − θ₀)ᵀ∇f(x; θ*)``: the new kernel without what was learned so far.
        The non-linear advantage is the test accuracy of the network minus that of the linearisation.

    Args:
        family: Networks to train, with one output (logistic loss) or two (cross-entropy).
        data: Samples with splits ``train`` and ``test``.
        targets: Learn the signs of these eigenfunctions of the initial kernel on all samples, counted from 1, instead of the labels.
        positive: Classes that count as positive; by default the larger of two.
        sizes: Sizes of the training set, one or several; all samples by default.
        at: Where to linearise: ``"start"``, ``"trained"``, a number of epochs, or several of these.
        epochs: Passes over the training set; this and the next three defaults are the published recipe.
        batch: Samples in an iteration.
        rate: Initial learning rate; it falls linearly to 0.
        optimiser: ``"sgd"`` or ``"gd"`` (momentum 0.9), ``"adam"`` or ``"adamw"``.
        threshold: Threshold of the batch loss, for the number of iterations.
        repeats: Networks to train, each with its own training samples and eigenfunctions.
        readout: Scalar to take of several outputs, for the kernel.
        seed: Random seed for weights, order and choice of samples.
        run: Folder (resumable), device, precision, cluster.

    Returns:
        Accuracies, iterations, distances and loss curves.

    Raises:
        ValueError: If data and settings do not fit.

    Example:
        >>> family, x = Family.initialised(lambda: nn.Linear(1, 1), name="line"), torch.linspace(-1, 1, 40)[:, None]
        >>> data = Arrays({"train": (x, x[:, 0] > 0), "test": (x, x[:, 0] > 0)})
        >>> linearized_training(family, data, epochs=2).advantage.item()  # a linear model is its own linearisation
        0.0

    Reference:
        Ortiz-Jiménez (2023), thesis, sections 4.3.1, 4.4.1 and 4.4.3: figures 4.2, 4.3, 4.6, 4.11 and 4.12.
    """
    run, train, wanted = run or Run(), data.sizes.get("train", 0), (at,) if isinstance(at, str) else tuple(at)
    recipe = Recipe(optimiser, rate, momentum=0.9, epochs=epochs, batch=batch, threshold=threshold)
    if not {"train", "test"} <= data.splits.keys():
        raise ValueError(
            f"data must have the splits 'train' and 'test', got {', '.join(data.splits)}. Rename the splits."
        )
    sizes, places = tuple(sizes or (train,)), tuple(targets or (0,))
    limits = {"sizes": (sizes, train), "targets": (targets or (1,), train + data.sizes["test"])}
    for name, (numbers, most) in {**limits, "repeats": ((repeats,), 1000)}.items():
        if not all(1 <= number <= most for number in numbers):
            raise ValueError(f"{name} must be from 1 to {most}, got {numbers}. Pass numbers in that range.")
    known = {"start": 0, "trained": epochs, **{str(epoch): epoch for epoch in range(1, epochs + 1)}}
    if not wanted or not all(str(word) in known for word in wanted):
        raise ValueError(f"at must be 'start', 'trained' or an epoch up to {epochs}, got {at!r}. Pass at='start'.")
    anchors = tuple(known[str(word)] for word in wanted)
    words = {0: "at the start", epochs: "at the end"}
    models = ("network", *(f"linearisation {words.get(epoch, f'after epoch {epoch}')}" for epoch in anchors))
    parts: dict[str, Any] = {"family": family, "data": data, "seed": seed, "readout": readout, "positive": positive}

    def labels_of(key: str) -> Outcome:
        if not targets:
            return {"0": torch.cat([data.two_classes(positive).splits[split][1].cpu() for split in ("train", "test")])}
        own, given = seed_of(seed, "repeat", int(key.split()[-1])), data.to(run)
        network = family.draw(1, seed=own, run=run).member(0).to(run.torch_device, master_dtype(run))
        x = torch.cat([given.whole(split)[0] for split in ("train", "test")])
        kernel = tangent_gram(network.read(readout), x, run=replace(run, folder=None))  # large: not kept
        pairs = eigenpairs(
            Matrix(kernel.matrix), max(places), tolerance=1e-6, each=True, iterate=len(x) > 8 * max(places)
        )
        kernel.known_targets(pairs, places)
        return {str(place): (pairs.vectors[place - 1] > 0).long() for place in places}

    tasks = Trials("labels", run, code=labels_of, at=data, **parts, targets=targets)
    labels = tuple(tasks.outcomes([f"repeat {repeat}" for repeat in range(repeats)], labels_of))
    work = _Trainings(family, data, labels, anchors, recipe, seed)
    keys = [f"size {s}, repeat {r}, target {t}" for t in places for s in sizes for r in range(repeats)]
    sweep = Sweep("linearised training", run, code=_Trainings, at=data, **parts, anchors=anchors, recipe=recipe)
    found = sweep.outcomes(keys, work, plan=lambda new: work.groups(new, run), label="trainings")
    shape = (len(models), len(places), len(sizes), repeats)
    stacked = {name: torch.stack([found[key][name] for key in keys], 1) for name in LinearizedTraining.axes}
    arrays: Any = {name: each.reshape(*shape, *each.shape[2:]).numpy() for name, each in stacked.items()}
    arrays |= {"steps": arrays["steps"][0, 0, :, 0], "diverged": arrays["diverged"] > 0}
    for name in ("accuracy", "train_accuracy"):
        arrays[name] = np.where(arrays["diverged"], np.nan, arrays[name])
    lost = np.isnan(arrays["accuracy"][:1] - arrays["accuracy"]).all((1, 3))  # (model, size): no pair to compare
    if lost.any():
        model, size = (int(place) for place in np.argwhere(lost)[0])
        raise ValueError(
            f"At least one training of the {models[model]} with {sizes[size]:,} samples, and of its network, must stay finite, but all "
            "diverged. Pass a smaller rate."
        )
    return LinearizedTraining(models, tuple(targets or ()), sizes, threshold, **arrays)


def _mean_by_repeat(values: np.ndarray) -> np.ndarray:
    """Means over targets ``(target, repeat)`` of what is a number, of the repeats that have any."""
    return np.asarray(np.nanmean(values[:, ~np.isnan(values).all(0)], 0))
