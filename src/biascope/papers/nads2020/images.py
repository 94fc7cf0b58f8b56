"""Figures 7, 8 and thesis 3.13: what directions mean for real images (CIFAR-10)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from biascope import data
from biascope.families.family import Family
from biascope.papers.nads2020.directions import CNNS, EXACT, directions
from biascope.papers.nads2020.shared import (
    TITLES,
    family_of,
    in_percent,
    keyed,
    points_between,
    training_run,
)
from biascope.papers.selection import chosen, old_figure
from biascope.results.estimate import Number
from biascope.results.figures import lines_figure
from biascope.results.finding import Finding
from biascope.runs.run import Run
from biascope.tasks.images import SideBySide, flipped, poisoned
from biascope.tasks.task import Arrays, Task, along_directions, master_dtype
from biascope.training.recipe import Recipe
from biascope.training.sweep import Course, Trial, trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The recipe of the released code; epochs are fewer where that is said.
RECIPE = Recipe("sgd", rate=0.21, schedule="linear", momentum=0.9, weight_decay=5e-4, epochs=50, batch=128, clip=0.5)
# Mean and standard deviation of CIFAR-10 by channel, as in the released code, which standardises images before the network.
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)
PIXELS = "standardised, no augmentation"
#: The authors' training on CIFAR-10, under the keys of our settings.
PUBLISHED: dict[str, Any] = {
    "training images": 50_000,
    "test images": 10_000,
    "optimiser": "sgd",
    "schedule": "linear",
    "momentum": 0.9,
    "weight decay": 5e-4,
    "batch": 128,
    "initial weights": "PyTorch",
}
PART = "cifar10-part"  # a part of CIFAR-10 as an .npz, for machines that hold no more


@dataclass(frozen=True)
class Plan:
    """How one network is trained on images.

    Attributes:
        epochs: Passes over the training images.
        repeats: Networks, each with its own initial weights and order of the images.
        places: Indices of directions, if there are several.
    """

    epochs: int
    repeats: int
    places: tuple[int, ...] = ()

    @property
    def recipe(self) -> Recipe:
        """The published recipe with these epochs."""
        return dataclasses.replace(RECIPE, epochs=self.epochs)


def planned(plans: Mapping[str, Plan], images: Arrays, run: Run) -> dict[str, Any]:
    """The settings of trainings on images, under the keys of :data:`PUBLISHED` and of :func:`published_for`."""
    settings: dict[str, Any] = {
        "training images": images.sizes["train"],
        "test images": images.sizes["test"],
        "optimiser": RECIPE.optimiser,
        "schedule": RECIPE.schedule,
        "momentum": RECIPE.momentum,
        "weight decay": RECIPE.weight_decay,
        "batch": RECIPE.batch,
        "initial weights": "PyTorch",
        "seed": 0,
    }
    for name, plan in plans.items():
        title = TITLES[name]
        settings |= {f"epochs: {title}": plan.epochs, f"rate: {title}": RECIPE.rate, f"seeds: {title}": plan.repeats}
        settings |= {f"clip: {title}": RECIPE.clip, f"pixels: {title}": PIXELS}
        settings[f"precision: {title}"] = training_run(family_of(name), run).precision
        if plan.places:
            settings[f"directions: {title}"] = list(plan.places)
    return settings


def published_for(*names: str) -> dict[str, Any]:
    """The authors' training of each network. Clipping and pixels are those of the released code, of figure 7."""
    each = {"epochs": 50, "rate": 0.21, "clip": 0.5, "pixels": PIXELS}
    return {**PUBLISHED, **{f"{key}: {TITLES[name]}": value for name in names for key, value in each.items()}}


def cifar(effort: str, run: Run, seed: int = 0) -> Arrays:
    """CIFAR-10, or as much of it as an effort takes and the data folder has."""
    train, test = {"smoke": (64, 64), "laptop": (4000, 2000), "paper": (50_000, 10_000)}[effort]
    root = data.data_root(run.data_root)
    name = PART if (root / f"{PART}.npz").exists() else "cifar10"
    whole = data.load(name, root=root)
    sizes = {split: min(count, len(whole.splits[split][0])) for split, count in (("train", train), ("test", test))}
    part = whole.subset(sizes, seed=seed)
    splits = {split: (torch.from_numpy(x), torch.from_numpy(_labels(y))) for split, (x, y) in part.splits.items()}
    return Arrays(splits)


def _labels(labels: np.ndarray | None) -> np.ndarray:
    assert labels is not None
    return labels.astype(np.int64)


@dataclass(frozen=True, repr=False)
class Standardised(Task):
    """Images with each channel minus its mean, divided by its standard deviation.

    Attributes:
        pixels: Images from 0 to 1, with what was done to them in pixel space.
        mean: ``(K, 1, 1)``, to subtract.
        deviation: ``(K, 1, 1)``, to divide by.
    """

    pixels: Task
    mean: torch.Tensor
    deviation: torch.Tensor

    @property
    def members(self) -> int | None:
        """Number of members, if the images have members."""
        return self.pixels.members

    @property
    def sizes(self) -> dict[str, int]:
        """Number of samples of each split."""
        return self.pixels.sizes

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.pixels.shape

    def batch(self, split: str, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: D102
        x, y = self.pixels.batch(split, indices)
        return (x - self.mean) / self.deviation, y

    def select(self, members: Sequence[int]) -> Standardised:  # noqa: D102
        return Standardised(self.pixels.select(members), self.mean, self.deviation)


def standardised(pixels: Task, run: Run) -> Standardised:
    """Images of CIFAR-10 standardised as in the released code."""
    mean, deviation = (
        torch.tensor(numbers, device=run.torch_device, dtype=master_dtype(run))[:, None, None]
        for numbers in (MEAN, DEVIATION)
    )
    return Standardised(pixels, mean, deviation)


@dataclass(frozen=True)
class _Images(Course):
    """Trainings on images as they are; a kind of trial is a variant of the data and a repeat."""

    images: Arrays
    how: Recipe

    @property
    def inputs(self) -> Any:
        """The images."""
        return self.images

    def recipe(self, kind: str) -> Recipe:
        """The same for all."""
        return self.how

    def repeat(self, kind: str) -> int:
        """As said in the kind."""
        return int(kind.rpartition(" ")[2])

    def task(self, kind: str, members: Sequence[int], seed: int, run: Run) -> Task:
        """The images, standardised."""
        return standardised(self.images.to(run), run)


@dataclass(frozen=True)
class _InBasis(_Images):
    """Images that are changed along the directions of a basis."""

    basis: torch.Tensor


class _Poisoned(_InBasis):
    """Carriers at a member's place among the directions."""

    def task(self, kind: str, members: Sequence[int], seed: int, run: Run) -> Task:
        """Images that are poisoned in pixel space and then standardised."""
        return standardised(poisoned(self.images.to(run), self.basis, members, epsilon=0.05), run)


class _Flipped(_InBasis):
    """The images flipped in the basis of the directions."""

    def task(self, kind: str, members: Sequence[int], seed: int, run: Run) -> Task:
        """Images that are flipped in pixel space and then standardised."""
        return standardised(flipped(self.images.to(run), self.basis), run)


class _Underspecified(_InBasis):
    """Two classes of images beside a channel that tells the class along a direction."""

    @property
    def inputs(self) -> Any:
        """The shape of an image with the channel."""
        return (self.images.shape[0] + 1, *self.images.shape[1:])

    def task(self, kind: str, members: Sequence[int], seed: int, run: Run) -> Task:
        """Standardised images and D(v) of the same labels; without its images an input is the mean image."""
        binary = {split: (x, (y >= 5).long()) for split, (x, y) in self.images.splits.items()}
        images = Arrays(binary).to(run)
        labels = {split: y for split, (_, y) in binary.items()}
        vectors = self.basis[list(members)]
        line = along_directions(vectors, (1, 32, 32), noise=1.0, epsilon=1.0, labels=labels, seed=seed, run=run)
        return SideBySide(standardised(images, run), line)

    @property
    def splits(self) -> tuple[str, ...]:
        """Both sources, and each alone."""
        return ("train", "test", "test, first only", "test, second only")


def on_original_images(family: Family, images: Arrays, plan: Plan, split: str, run: Run) -> np.ndarray:
    """Accuracies by seed after training on the images as they are, which figures 7 and 8 share."""
    trials = [Trial(f"original, repeat {repeat}", 0) for repeat in range(plan.repeats)]
    course = _Images(images, plan.recipe)
    found = trained(family, course, trials, seed=0, run=training_run(family, run), label=f"{family.name}, original")
    return np.array([float(found[trial][f"accuracy/{split}"]) for trial in trials])


def _drawn(finding: Finding, dark: bool, x: str = "index of the anisotropy direction") -> Figure:
    return lines_figure(finding.curves_of("accuracy", 100), x=x, y="test accuracy, %", dark=dark)


def _drawn_8(finding: Finding, dark: bool) -> Figure:
    drawn = _drawn(finding, dark, "images of CIFAR-10")
    drawn.axes[0].set_xticks([0, 1], ["original", "flipped"])
    return drawn


_CARRIED: dict[str, dict[str, Plan]] = {
    "smoke": {"lenet": Plan(1, 1, (0, 1000))},
    "laptop": {"lenet": Plan(40, 3, (0, 30, 300, 1000))},
    "paper": {"lenet": Plan(50, 3, (0, 20, 200, 1000)), "resnet18": Plan(30, 3, (0, 200, 1000))},
}


@old_figure(
    "7",
    networks=_CARRIED,
    title="CIFAR-10 with a carrier of the class along different directions (ε = 0.05)",
    show=_drawn,
    published={**published_for("resnet18"), "epsilon": 0.05, "precision: ResNet-18": "float32"},
)
def figure_7(effort: str, run: Run) -> Finding:
    """Test accuracy on clean images after training on poisoned ones."""
    images = cifar(effort, run)
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    test, train = images.sizes["test"], images.sizes["train"]
    plans = chosen(_CARRIED[effort])
    for name, plan in plans.items():
        title, key, family = TITLES[name], keyed(name), family_of(name, channels=3, outputs=10)
        course = _Poisoned(images, plan.recipe, directions(name, effort, run).vectors)
        # Between the ends one network shows the course of the curve.
        ends = [[Trial(f"poisoned, repeat {r}", plan.places[i]) for r in range(plan.repeats)] for i in (0, -1)]
        between = [Trial("poisoned, repeat 0", place) for place in plan.places[1:-1]]
        every = [*ends[0], *between, *ends[1]]
        found = trained(family, course, every, seed=0, run=training_run(family, run), label=title)
        shares = {
            split: [
                on_original_images(family, images, plan, split, run),
                *(np.array([float(found[trial][f"accuracy/{split}"]) for trial in trials]) for trials in ends),
            ]
            for split in ("test", "train")
        }
        cases = ("on clean images", "with the carrier on the first direction", "with the carrier on the last direction")
        for case, share, of_training in zip(cases, shares["test"], shares["train"], strict=True):
            words = case.replace(" ", "_")
            statistics |= {
                f"{key}_accuracy_{words}": in_percent(share, test).named(f"{title}: accuracy {case}", "%"),
                f"{key}_training_accuracy_{words}": in_percent(of_training, train).named(
                    f"{title}: training accuracy {case}", "%"
                ),
            }
        for case, share in zip(cases[1:], shares["test"][1:], strict=True):
            lost = points_between(shares["test"][0], share, test)
            statistics[f"{key}_loss_{case.replace(' ', '_')}"] = lost.named(f"{title}: loss {case}", "points")
        middle = [float(found[trial]["accuracy/test"]) for trial in between]
        curve = [shares["test"][1].mean(), *middle, shares["test"][2].mean()]
        arrays[f"accuracy: {title}, poisoned"] = np.array([plan.places, curve], float)
        arrays[f"accuracy: {title}, clean"] = np.array(
            [[plan.places[0], plan.places[-1]], [shares["test"][0].mean()] * 2], float
        )
    settings = {**planned(plans, images, run), "epsilon": 0.05}
    notes = (
        "Intervals are those of seeds and of the test sample. Points between the first and the last direction are one training.",
        "Classes are assigned to carriers as in the released code.",
    )
    return Finding(statistics, arrays, settings, notes)


_FLIPPED: dict[str, dict[str, Plan]] = {
    "smoke": {"lenet": Plan(1, 1)},
    "laptop": {"lenet": Plan(40, 3)},
    "paper": {
        "lenet": Plan(50, 3),
        "vgg11": Plan(30, 3),
        "resnet18": Plan(30, 3),
        "densenet121": Plan(10, 2),
    },
}


@old_figure(
    "8",
    networks=_FLIPPED,
    title="CIFAR-10 and its flipped version, by network",
    show=_drawn_8,
    published={**published_for(*CNNS), **{f"precision: {TITLES[name]}": "float32" for name in CNNS}},
)
def figure_8(effort: str, run: Run) -> Finding:
    """Test accuracy on images and on the same images with their coordinates in reverse order."""
    images = cifar(effort, run)
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    plans = chosen(_FLIPPED[effort])
    for name, plan in plans.items():
        title, key, family = TITLES[name], keyed(name), family_of(name, channels=3, outputs=10)
        course = _Flipped(images, plan.recipe, directions(name, effort, run).vectors)
        trials = [Trial(f"flipped, repeat {repeat}", 0) for repeat in range(plan.repeats)]
        found = trained(family, course, trials, seed=0, run=training_run(family, run), label=title)
        shares: dict[str, np.ndarray] = {}
        for kind in ("original", "flipped"):
            for split, words in (("test", "accuracy"), ("train", "training accuracy")):
                share = (
                    on_original_images(family, images, plan, split, run)
                    if kind == "original"
                    else np.array([float(found[trial][f"accuracy/{split}"]) for trial in trials])
                )
                statistics[f"{key}_{words.replace(' ', '_')}_on_{kind}_images"] = in_percent(
                    share, images.sizes[split]
                ).named(f"{title}: {words} on {kind} images", "%")
                if split == "test":
                    shares[kind] = share
        statistics[f"{key}_loss_by_flipping"] = points_between(
            shares["original"], shares["flipped"], images.sizes["test"]
        ).named(f"{title}: loss by flipping", "points")
        arrays[f"accuracy: {title}"] = np.array([[0.0, 1.0], [share.mean() for share in shares.values()]])
    notes = (
        "Intervals are those of seeds and of the test sample.",
        EXACT,
    )
    return Finding(statistics, arrays, planned(plans, images, run), notes)


_MIXTURE: dict[str, dict[str, Plan]] = {
    "smoke": {"lenet": Plan(1, 1, (0, 1000))},
    "laptop": {"mlp": Plan(10, 3, (0, 1000)), "lenet": Plan(40, 3, (0, 1000))},
    "paper": {
        "mlp": Plan(20, 3, (0, 30, 300, 1000)),
        "lenet": Plan(30, 3, (0, 30, 300, 1000)),
        "resnet18": Plan(20, 3, (0, 1000)),
    },
}


@old_figure(
    "3.13",
    networks=_MIXTURE,
    title="Which of two sources each network learns: images, or a linearly separable channel",
    show=_drawn,
    published={
        **published_for("mlp", "lenet", "resnet18"),
        "seeds: MLP": 3,
        "seeds: LeNet": 3,
        "seeds: ResNet-18": 3,
        "precision: ResNet-18": "float32",
    },
)
def figure_313(effort: str, run: Run) -> Finding:
    """Accuracy with one of the two sources set to zero."""
    images = cifar(effort, run)
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    test, train = images.sizes["test"], images.sizes["train"]
    plans = chosen(_MIXTURE[effort])
    for name, plan in plans.items():
        title, key, family = TITLES[name], keyed(name), family_of(name, channels=4, outputs=2)
        source = name if name in CNNS else "lenet"  # an MLP has no order of directions: it is shown along LeNet's
        course = _Underspecified(images, plan.recipe, directions(source, effort, run).vectors)
        trials = [[Trial(f"both, repeat {repeat}", place) for place in plan.places] for repeat in range(plan.repeats)]
        flat = [trial for row in trials for trial in row]
        found = trained(family, course, flat, seed=0, run=training_run(family, run), label=title)

        def shares(
            split: str, trials: list[list[Trial]] = trials, found: Mapping[Trial, Any] = found
        ) -> np.ndarray:  # (repeat, place)
            return np.array([[float(found[trial][f"accuracy/{split}"]) for trial in row] for row in trials])

        of_images, of_channel, fitted = shares("test, first only"), shares("test, second only"), shares("train")
        for column, where in ((0, "first"), (-1, "last")):
            statistics[f"{key}_training_accuracy_{where}_direction"] = in_percent(fitted[:, column], train).named(
                f"{title}: training accuracy, {where} direction", "%"
            )
        for table, part in ((of_images, "images"), (of_channel, "the linear channel")):
            words = part.replace(" ", "_")
            for column, where in ((0, "first"), (-1, "last")):
                statistics[f"{key}_accuracy_on_{words}_alone_{where}_direction"] = in_percent(
                    table[:, column], test
                ).named(f"{title}: accuracy on {part} alone, {where} direction", "%")
            lowest = in_percent(table[:, int(table.mean(0).argmin())], test).open_below()
            statistics[f"{key}_lowest_accuracy_on_{words}_alone"] = lowest.named(
                f"{title}: lowest accuracy on {part} alone", "%"
            )
            arrays[f"accuracy: {title}, {part.removeprefix('the ')}"] = np.stack(
                [np.array(plan.places, float), table.mean(0)]
            )
        lead = (of_channel - of_images).mean(0)  # by place
        least, lesser = int(lead.argmin()), np.minimum(of_images.mean(0), of_channel.mean(0))
        both = int(lesser.argmax())
        less = of_images if of_images.mean(0)[both] < of_channel.mean(0)[both] else of_channel
        statistics |= {
            f"{key}_linear_channel_minus_images_first_direction": points_between(
                of_channel[:, 0], of_images[:, 0], test
            ).named(f"{title}: accuracy on the linear channel minus that on images, first direction", "points"),
            f"{key}_images_minus_linear_channel_last_direction": points_between(
                of_images[:, -1], of_channel[:, -1], test
            ).named(f"{title}: accuracy on images minus that on the linear channel, last direction", "points"),
            f"{key}_smallest_linear_channel_minus_images": points_between(
                of_channel[:, least], of_images[:, least], test
            )
            .open_below()
            .named(f"{title}: smallest accuracy on the linear channel minus that on images", "points"),
            f"{key}_largest_accuracy_on_the_lesser_source": in_percent(less[:, both], test)
            .open_above()
            .named(f"{title}: largest accuracy on the source it uses less", "%"),
        }
    settings = {**planned(plans, images, run), "noise": 1.0, "epsilon": 1.0}
    notes = (
        "The thesis does not give σ of the linear channel; 1 was chosen, with ε = 1.",
        "Classes 0–4 form one class, 5–9 the other. Images set to zero are the mean image of CIFAR-10.",
        "Numbers of the lowest or largest accuracy are over the directions that were run: others may have less or more.",
    )
    return Finding(statistics, arrays, settings, notes)
