"""Figures 7, 8, thesis 3.13 and section E: what directions mean for real images (CIFAR-10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.optimize import linprog

from biascope.papers.nads2020.accuracies import in_percent, points_between
from biascope.papers.nads2020.directions import DRAWS, EXACT, directions
from biascope.papers.nads2020.image_courses import CARRIED, Flipped, Images, Poisoned, Underspecified, cifar
from biascope.papers.nads2020.networks import CNNS, TITLES, family_of, in_float32, keyed, training_run
from biascope.results.draw import PALETTE, blank, panel
from biascope.results.estimate import Estimate
from biascope.results.finding import Finding, Tell, figure
from biascope.results.plan import Plan, Row
from biascope.results.shows import curves
from biascope.runs.run import Run
from biascope.tasks.images import poisoned
from biascope.tasks.task import Arrays
from biascope.training.recipe import Recipe
from biascope.training.sweep import Trial, trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IMAGES = {
    "smoke": {"training images": 64, "test images": 64},
    "laptop": {"training images": 4000, "test images": 2000},
    "paper": {"training images": 50_000, "test images": 10_000},
}


def published_for(*names: str) -> dict[str, Any]:
    """The authors' training of each network. Clipping and pixels are those of the released code, of figure 7."""
    return {
        **IMAGES["paper"],
        "optimiser": "sgd",
        "schedule": "linear",
        "momentum": 0.9,
        "weight decay": 5e-4,
        "batch": 128,
        "initial weights": "PyTorch",
        "epochs": dict.fromkeys(names, 50),
        "rate": dict.fromkeys(names, 0.21),
        "clip": dict.fromkeys(names, 0.5),
        "pixels": dict.fromkeys(names, "standardised, no augmentation"),
    }


def trained_by(effort: str, epochs: Mapping[str, int], **others: Any) -> dict[str, Any]:
    """The settings of networks that are trained as published, but for their epochs and what else the figure has.

    There are several seeds, each with its own initial weights and order of the images, and draws for each network's directions.
    """
    return {
        **published_for(*epochs),
        **IMAGES[effort],
        "seed": 0,
        "epochs": epochs,
        "seeds": dict.fromkeys(epochs, 1 if effort == "smoke" else 3),
        "draws": {name: DRAWS[effort][_whose(name)] for name in epochs},
        **others,
    }


def _whose(name: str) -> str:
    """The network whose directions are taken: an MLP has no order of directions, it is shown along LeNet's."""
    return name if name in CNNS else "lenet"


def own_directions(name: str, plan: Row, run: Run) -> torch.Tensor:
    """The directions along which a network's images are changed."""
    return directions(_whose(name), plan["draws"][name], run).vectors


def images_of(plan: Row, run: Run, tell: Tell) -> Arrays:
    """The images of a plan; how many there are, and in which precision networks are trained on them, is told."""
    images = cifar(plan["training images"], plan["test images"], run)
    tell.settings.update({"training images": images.sizes["train"], "test images": images.sizes["test"]})
    for name in plan.networks:
        tell.settings[f"precision: {TITLES[name]}"] = training_run(family_of(name), run).precision
    return images


def recipe_of(name: str, plan: Row) -> Recipe:
    """How a network is trained."""
    whole = {setting: plan[setting] for setting in ("optimiser", "schedule", "momentum", "batch")}
    own = {setting: plan[setting][name] for setting in ("epochs", "rate", "clip")}
    return Recipe(**whole, **own, weight_decay=plan["weight decay"])


Shares = dict[str, np.ndarray]  # accuracies by split


def accuracies_of(
    course: Images, name: str, trials: Sequence[Sequence[Trial]], run: Run, label: str = "", **network: int
) -> list[Shares]:
    """The accuracies of one network after training on images, by rows of trials."""
    family = family_of(name, **network)
    flat = [trial for row in trials for trial in row]
    label = label or TITLES[name]
    outcomes = trained(family, course, flat, seed=0, run=training_run(family, run), label=label)
    return [
        {split: np.array([float(outcomes[trial][f"accuracy/{split}"]) for trial in row]) for split in course.splits}
        for row in trials
    ]


def on_original_images(images: Arrays, name: str, plan: Row, run: Run) -> Shares:
    """Accuracies by seed after training on the images as they are, which figures 7 and 8 share."""
    trials = [Trial(f"original, repeat {repeat}", 0) for repeat in range(plan["seeds"][name])]
    course, label = Images(images, recipe_of(name, plan)), f"{TITLES[name]}, original"
    return accuracies_of(course, name, [trials], run, label, channels=3, outputs=10)[0]


CARRIERS = Plan(
    smoke=trained_by("smoke", {"lenet": 1}, epsilon=CARRIED, directions={"lenet": (0, 1000)}),
    laptop=trained_by("laptop", {"lenet": 40}, epsilon=CARRIED, directions={"lenet": (0, 30, 300, 1000)}),
    paper=trained_by(
        "paper",
        {"lenet": 50, "resnet18": 30},
        epsilon=CARRIED,
        directions={"lenet": (0, 20, 200, 1000), "resnet18": (0, 200, 1000)},
    ),
    published={**published_for("resnet18"), "epsilon": 0.05, **in_float32("resnet18")},
    titles=TITLES,
    by="epochs",
)


@figure(
    "7",
    title="CIFAR-10 with a carrier of the class along different directions (ε = 0.05)",
    plan=CARRIERS,
    show=curves("accuracy", x="index of the anisotropy direction", y="test accuracy, %", scale=100),
)
def figure_7(plan: Row, run: Run, tell: Tell) -> None:
    """Test accuracy on clean images after training on poisoned ones."""
    images = images_of(plan, run, tell)
    for name in plan.networks:
        of, places = tell.about(TITLES[name]), plan["directions"][name]
        # Between the ends one network shows the course of the curve.
        seeds = {place: plan["seeds"][name] if place in (places[0], places[-1]) else 1 for place in places}
        trials = [[Trial(f"poisoned, repeat {seed}", place) for seed in range(seeds[place])] for place in places]
        course = Poisoned(images, recipe_of(name, plan), own_directions(name, plan, run))
        along = accuracies_of(course, name, trials, run, channels=3, outputs=10)
        clean = on_original_images(images, name, plan, run)
        cases = {
            "on clean images": clean,
            "with the carrier on the first direction": along[0],
            "with the carrier on the last direction": along[-1],
        }
        for case, shares in cases.items():
            of(f"accuracy {case}", in_percent(shares["test"], images.sizes["test"]), "%")
            of(f"training accuracy {case}", in_percent(shares["train"], images.sizes["train"]), "%")
            if shares is not clean:
                of(f"loss {case}", points_between(clean["test"], shares["test"], images.sizes["test"]), "points")
        curve = [shares["test"].mean() for shares in along]
        tell.array(f"{TITLES[name]}, poisoned", np.array([places, curve], float), kind="accuracy")
        level = [[places[0], places[-1]], [clean["test"].mean()] * 2]
        tell.array(f"{TITLES[name]}, clean", np.array(level, float), kind="accuracy")
    tell.note(
        "Intervals are those of seeds and of the test sample. Points between the first and the last direction are one training.",
        "Classes are assigned to carriers as in the released code.",
    )


REVERSED = Plan(
    smoke=trained_by("smoke", {"lenet": 1}),
    laptop=trained_by("laptop", {"lenet": 40}),
    paper=trained_by(
        "paper",
        {"lenet": 50, "vgg11": 30, "resnet18": 30, "densenet121": 10},
        seeds={"lenet": 3, "vgg11": 3, "resnet18": 3, "densenet121": 2},
    ),
    published={**published_for(*CNNS), **in_float32(*CNNS)},
    titles=TITLES,
    by="epochs",
)


def _original_and_flipped(finding: Finding, dark: bool) -> Figure:
    drawn = curves("accuracy", x="images of CIFAR-10", y="test accuracy, %", scale=100)(finding, dark)
    drawn.axes[0].set_xticks([0, 1], ["original", "flipped"])
    return drawn


@figure("8", title="CIFAR-10 and its flipped version, by network", plan=REVERSED, show=_original_and_flipped)
def figure_8(plan: Row, run: Run, tell: Tell) -> None:
    """Test accuracy on images and on the same images with their coordinates in reverse order."""
    images = images_of(plan, run, tell)
    test, train = images.sizes["test"], images.sizes["train"]
    for name in plan.networks:
        of = tell.about(TITLES[name])
        course = Flipped(images, recipe_of(name, plan), own_directions(name, plan, run))
        trials = [Trial(f"flipped, repeat {repeat}", 0) for repeat in range(plan["seeds"][name])]
        (turned,) = accuracies_of(course, name, [trials], run, channels=3, outputs=10)
        original = on_original_images(images, name, plan, run)
        for kind, shares in {"original": original, "flipped": turned}.items():
            of(f"accuracy on {kind} images", in_percent(shares["test"], test), "%")
            of(f"training accuracy on {kind} images", in_percent(shares["train"], train), "%")
        of("loss by flipping", points_between(original["test"], turned["test"], test), "points")
        means = [shares["test"].mean() for shares in (original, turned)]
        tell.array(TITLES[name], np.array([[0.0, 1.0], means]), kind="accuracy")
    tell.note("Intervals are those of seeds and of the test sample.", EXACT)


_CHANNEL = {"noise": 1.0, "epsilon": 1.0}
MIXTURE = Plan(
    smoke=trained_by("smoke", {"lenet": 1}, directions={"lenet": (0, 1000)}, **_CHANNEL),
    laptop=trained_by(
        "laptop", {"mlp": 10, "lenet": 40}, directions={"mlp": (0, 1000), "lenet": (0, 1000)}, **_CHANNEL
    ),
    paper=trained_by(
        "paper",
        {"mlp": 20, "lenet": 30, "resnet18": 20},
        directions={"mlp": (0, 30, 300, 1000), "lenet": (0, 30, 300, 1000), "resnet18": (0, 1000)},
        **_CHANNEL,
    ),
    published={
        **published_for("mlp", "lenet", "resnet18"),
        "seeds": {"mlp": 3, "lenet": 3, "resnet18": 3},
        **in_float32("resnet18"),
    },
    titles=TITLES,
    by="epochs",
)


@figure(
    "3.13",
    title="Which of two sources each network learns: images, or a linearly separable channel",
    plan=MIXTURE,
    show=curves("accuracy", x="index of the anisotropy direction", y="test accuracy, %", scale=100),
)
def figure_313(plan: Row, run: Run, tell: Tell) -> None:
    """Accuracy with one of the two sources set to zero."""
    images = images_of(plan, run, tell)
    test, train = images.sizes["test"], images.sizes["train"]
    for name in plan.networks:
        of, key, places = tell.about(TITLES[name]), keyed(name), plan["directions"][name]
        trials = [[Trial(f"both, repeat {seed}", place) for place in places] for seed in range(plan["seeds"][name])]
        course = Underspecified(images, recipe_of(name, plan), own_directions(name, plan, run))
        seeds = accuracies_of(course, name, trials, run, channels=4, outputs=2)
        fitted, of_images, of_channel = (  # (seed, direction)
            np.stack([shares[split] for shares in seeds])
            for split in ("train", "test, first only", "test, second only")
        )
        for where, column in (("first", 0), ("last", -1)):
            of(f"training accuracy, {where} direction", in_percent(fitted[:, column], train), "%")
        for source, table in (("images", of_images), ("the linear channel", of_channel)):
            for where, column in (("first", 0), ("last", -1)):
                of(f"accuracy on {source} alone, {where} direction", in_percent(table[:, column], test), "%")
            lowest = in_percent(table[:, table.mean(0).argmin()], test).open_below()
            of(f"lowest accuracy on {source} alone", lowest, "%")
            curve = np.stack([np.array(places, float), table.mean(0)])
            tell.array(f"{TITLES[name]}, {source.removeprefix('the ')}", curve, kind="accuracy")
        lead = points_between(of_channel[:, 0], of_images[:, 0], test)
        label = "accuracy on the linear channel minus that on images, first direction"
        of(label, lead, "points", key=f"{key}_linear_channel_minus_images_first_direction")
        lead = points_between(of_images[:, -1], of_channel[:, -1], test)
        label = "accuracy on images minus that on the linear channel, last direction"
        of(label, lead, "points", key=f"{key}_images_minus_linear_channel_last_direction")
        least = (of_channel - of_images).mean(0).argmin()
        smallest = points_between(of_channel[:, least], of_images[:, least], test).open_below()
        label = "smallest accuracy on the linear channel minus that on images"
        of(label, smallest, "points", key=f"{key}_smallest_linear_channel_minus_images")
        both = np.minimum(of_images.mean(0), of_channel.mean(0)).argmax()
        lesser = min(of_channel[:, both], of_images[:, both], key=np.mean)
        largest = in_percent(lesser, test).open_above()
        of(
            "largest accuracy on the source it uses less",
            largest,
            "%",
            key=f"{key}_largest_accuracy_on_the_lesser_source",
        )
    tell.note(
        "The thesis does not give σ of the linear channel; 1 was chosen, with ε = 1.",
        "Classes 0–4 form one class, 5–9 the other. Images set to zero are the mean image of CIFAR-10.",
        "Numbers of the lowest or largest accuracy are over the directions that were run: others may have less or more.",
    )


def separability(effort: str) -> dict[str, Any]:
    """The settings of the linear programmes at an effort."""
    draws = {"lenet": DRAWS[effort]["lenet"]}
    return {**IMAGES[effort], "epsilon": CARRIED, "draws": draws, "places": (0, 100, 1000), "seed": 0}


SEPARABLE = Plan(
    smoke=separability("smoke"),
    laptop=separability("laptop"),
    paper=separability("paper"),
    published={"training images": 50_000, "epsilon": 0.05, "draws": {"lenet": 10_000}},
    titles=TITLES,
)


def _counts(finding: Finding, dark: bool) -> Figure:
    picture = blank(3.1, "Below 10, the carriers alone do not separate all classes.")
    axes = panel(picture, dark)
    places, counts = finding.arrays["separable"]
    axes.bar([f"{place:.0f}" for place in places], counts, color=PALETTE[dark].lines[0])
    axes.set(xlabel="index of the first carrier", ylabel="classes of 10", ylim=(0, 10))
    return picture


@figure(
    "E", title="Classes of poisoned CIFAR-10 that the carriers alone separate (ε = 0.05)", plan=SEPARABLE, show=_counts
)
def section_e(plan: Row, run: Run, tell: Tell) -> None:
    """A linear programme for each class: does a hyperplane in the coordinates along the carriers separate it from the rest?"""
    images, places = images_of(plan, run, tell), plan["places"]
    basis = directions("lenet", plan["draws"]["lenet"], run).vectors
    counts = []
    for place in places:
        task = poisoned(images, basis, [place], epsilon=plan["epsilon"])
        pair = [basis[place + step].float()[None] for step in (0, 1)]
        carriers = torch.cat([torch.kron(torch.eye(3), direction) for direction in pair])  # (6, 3D)
        batches = [task.batch("train", indices) for indices in torch.split(torch.arange(images.sizes["train"]), 1000)]
        coordinates = torch.cat([x[0].flatten(1).float() @ carriers.T for x, _ in batches]).double().numpy()
        labels = torch.cat([y for _, y in batches]).numpy()
        counts.append(sum(separable(coordinates, labels == label) for label in range(10)))
    # Other directions would give other images: how much the number varies is not known.
    tell("fewest classes separable by the carriers", Estimate(float(min(counts))))
    tell.array("separable", np.array([places, counts], float))
    tell.note(
        "Only the carrier of an image's own class is set to ±ε; along the other carriers the image keeps its content."
    )


def separable(points: np.ndarray, chosen: np.ndarray) -> bool:
    """Whether a hyperplane separates the chosen points from the others, by the largest margin of a bounded one."""
    scaled = points / np.abs(points).max(0)
    sign = np.where(chosen, -1.0, 1.0)[:, None]
    # Maximise t subject to sign·(w·x + b) + t ≤ 0 with |w| ≤ 1: separable if t > 0.
    table = np.hstack([sign * scaled, sign, np.ones_like(sign)])
    cost = np.zeros(table.shape[1])
    cost[-1] = -1.0
    bounds = [(-1.0, 1.0)] * points.shape[1] + [(None, None), (None, 1.0)]
    solution = linprog(cost, A_ub=table, b_ub=np.zeros(len(table)), bounds=bounds, method="highs")
    return bool(solution.status == 0 and -solution.fun > 1e-9)
