"""Figures 2, 3, 8, 12 and 13: the average geometry of networks in training, on images and on data made of the geometry itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from biascope.derivatives.matrices import flip
from biascope.families.family import Family
from biascope.measures.geometry_motion import GeometryMotion, geometry_motion
from biascope.papers.geometry2025.shared import (
    SPREAD,
    TITLES,
    Lines,
    by_setting,
    cifar_2,
    error_of_a_difference,
    geometry_of,
    grey,
    halved,
    loop_of,
    planned,
    precisions,
    released_family,
    run_of,
    titles,
)
from biascope.papers.units import with_unit
from biascope.results.estimate import Estimate, jackknife, over
from biascope.results.figures import lines_figure
from biascope.results.finding import Finding, Tell, figure
from biascope.results.plan import Plan, Row
from biascope.results.shows import curves
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.directions import random_labels
from biascope.tasks.task import Arrays
from biascope.training.fit import DivergedError
from biascope.training.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOSSES = {"cross-entropy": None, "squared loss": "squared"}
EARLY = 10  # epochs
# Of the authors' code; their text has no weight decay.
DESCENT = Recipe("gd", rate=0.1, schedule="linear", momentum=0.9, clip=5.0, weight_decay=5e-4)
ADAM = Recipe("adam", rate=1e-3, schedule="constant", clip=5.0, batch=20_000)  # all samples

# Full batches must fit on a device: large networks have fewer images.
_COLUMNS = ("images of each class", "test images", "runs", "epochs", "rate", "draws of G", "inputs per draw of G")
_PUBLISHED = ("images of each class", "runs", "epochs", "rate", "inputs per draw of G")
MOVING = planned(
    _COLUMNS,
    "ReLU",
    1.0,
    plain=True,
    smoke={"lenet": (12, 12, 2, 3, 0.1, 16, 2)},
    laptop={"mlp": (1000, 1000, 8, 100, 0.01, 10_000, 4), "lenet": (1000, 1000, 5, 100, 0.1, 10_000, 4)},
    paper={
        "mlp": (5000, 2000, 25, 100, 0.01, 10_000, 16),
        "lenet": (5000, 2000, 25, 100, 0.1, 10_000, 16),
        "resnet18": (1000, 1000, 10, 100, 0.1, 8000, 4),
        "vit": (1000, 1000, 4, 100, 0.1, 8000, 4),
    },
    published=by_setting(
        _PUBLISHED,
        {"mlp": (5000, 25, 100, 0.01, 128), **dict.fromkeys(("lenet", "resnet18", "vit"), (5000, 25, 100, 0.1, 128))},
    ),
    both={**loop_of(DESCENT), "outputs": 2},
    ours={"labels": "true", "losses": tuple(LOSSES), "side of the images": 32},
    small={"losses": ("cross-entropy",), "side of the images": 16},
    first=("images of each class", "runs"),
)
RANDOM = planned(
    _COLUMNS,
    "ReLU",
    1.0,
    plain=True,
    smoke={"lenet": (12, 12, 2, 3, 1e-3, 16, 2)},
    laptop={"mlp": (1000, 1000, 8, 200, 1e-3, 10_000, 4), "lenet": (250, 1000, 5, 300, 1e-3, 10_000, 4)},
    paper={
        "mlp": (5000, 2000, 25, 200, 1e-3, 10_000, 16),
        # 500 steps on all of 10,000 images, 25 times, would be a minute of a whole H200: two fifths of the published number.
        "lenet": (2000, 2000, 25, 500, 1e-3, 10_000, 16),
        "vgg11": (1000, 1000, 4, 200, 1e-3, 8000, 4),
        "resnet18": (1000, 1000, 4, 200, 1e-4, 8000, 4),
    },
    published=by_setting(
        _PUBLISHED,
        {
            "mlp": (5000, 25, 200, 1e-3, 128),
            "lenet": (5000, 25, 500, 1e-3, 128),
            "vgg11": (5000, 25, 200, 1e-3, 128),
            "resnet18": (5000, 25, 200, 1e-4, 128),
        },
    ),
    both={"batch": "all samples", "outputs": 2}
    | {key: loop_of(ADAM)[key] for key in ("optimiser", "schedule", "clip", "weight decay")},
    ours={"labels": "random", "losses": ("cross-entropy",), "side of the images": 32},
    small={"side of the images": 16},
    first=("images of each class", "runs"),
)


def _images(name: str, plan: Row, run: Run) -> Arrays:
    """CIFAR-2, with labels shuffled for figure 8."""
    data = cifar_2(plan["images of each class"][name], plan["test images"][name], run)
    data = halved(data) if plan["side of the images"] < data.shape[-1] else data
    if plan["labels"] == "true":
        return data
    x, y = data.splits["train"]
    random = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))]  # as many of each class
    return dataclasses.replace(data, splits={**data.splits, "train": (x, random)})


def _recipe(name: str, plan: Row, loss: str) -> Recipe:
    """That of the plan; the squared loss is that of theory, without decay of weights, and diverges at the published rate."""
    base = {each.optimiser: each for each in (DESCENT, ADAM)}[plan["optimiser"]]
    if loss == "squared loss":
        base, rate = dataclasses.replace(base, weight_decay=0.0), 1e-3
    else:
        rate = plan["rate"][name]
    return dataclasses.replace(base, epochs=plan["epochs"][name], loss=LOSSES[loss], rate=rate)


def _moved(name: str, plan: Row, data: Arrays, run: Run, recipe: Recipe) -> tuple[GeometryMotion, float]:
    """Training at the rate, or at the first of its tenths at which it stays finite; and that rate."""
    family = released_family(name, data.shape, "relu", plain=True)
    try:
        motion = geometry_motion(
            family,
            data,
            runs=plan["runs"][name],
            recipe=recipe,
            checkpoints=10,
            probes=plan["inputs per draw of G"][name],
            scale=plan["spread of the inputs for G"][name],
            geometry_draws=plan["draws of G"][name],
            readout="first",
            seed=0,
            run=run_of(family, run),
        )
    except DivergedError:
        if recipe.rate < 1e-5:
            raise
        return _moved(name, plan, data, run, dataclasses.replace(recipe, rate=recipe.rate / 10))
    return motion, recipe.rate


def _drawn(finding: Finding, dark: bool) -> Figure:
    published = {name: curve for name, curve in finding.curves_of("curve").items() if "squared" not in name}
    return lines_figure(published, x="epoch", y="correlation", dark=dark)


def images_move(plan: Row, run: Run, tell: Tell) -> None:
    """Full-batch training, with true labels by cross-entropy as published and by squared loss as in theory."""
    tell.settings["networks"] = titles(plan.networks)
    for name in plan.networks:
        data = _images(name, plan, run)
        tell.settings[f"samples: {TITLES[name]}"] = data.name
        tell.settings.update(precisions([released_family(name, data.shape, "relu", plain=True)], run))
        for loss in plan["losses"]:
            motion, rate = _moved(name, plan, data, run, _recipe(name, plan, loss))
            published = loss == "cross-entropy"
            if published:
                tell.settings[f"rate: {TITLES[name]}"] = rate
            of = tell.about(f"{TITLES[name]}, {loss}")
            early = max(1, int(np.abs(motion.epochs - EARLY).argmin()))  # the nearest checkpoint, never the first
            of("rate", Estimate.exact(rate))
            of("first growth of the correlation with GSG", motion.change("GSG", 1))
            of("early growth of the correlation with GSG", motion.change("GSG", early))
            of("early correlation with GSG", motion.level("GSG", early))
            of("lead of GSG over S", motion.lead(early))
            of("correlation of the identity with GSG", Estimate(float(motion.chance[0])))  # GSG is of random draws
            with_unit(of, "training accuracy", over(100 * motion.train_accuracy[-1], within=(0, 100)), "%")
            for place, reference in enumerate(("GSG", "S")):
                curve = np.stack([motion.epochs.astype(float), motion.plain[:, place]])
                tell.array(f"{TITLES[name]} with {reference}{'' if published else f', {loss}'}", curve, kind="curve")
    tell.note(
        "Correlations as published, of the mean over runs; errors by leaving out one run at a time.",
        "Positive matrices always correlate: the correlation of the identity with GSG is what chance gives, not 0.02.",
        "G is estimated from so many draws. Fewer than the inputs' 3,072 numbers would make GSG differ from S by noise alone.",
        "Squared loss is trained at a rate of 0.001: at the published 0.1 it diverges.",
        "Where training diverges at a rate, a tenth of it is taken, and so on: the rate stands among the numbers.",
        f"About epoch {EARLY} is the checkpoint nearest to it: epoch 7 of 200, epoch 10 of 100 and of 500.",
    )


figure_2 = figure(
    "2", title="Correlation of the geometry in training with GSG and with S (CIFAR-2)", plan=MOVING, show=_drawn
)(images_move)
figure_8 = figure("8", title="The same with random labels", plan=RANDOM, show=_drawn)(images_move)

ALIVE = 1e-3  # size of the geometry after training, relative to the start, below which units have died
PROBED = 16  # inputs from N(0, I) of each network for G^t; the authors' code has 128
COMMON = Recipe("sgd", rate=0.1, schedule="linear", momentum=0.9, clip=0.5, batch=128)


def gaussian_data(family: Family, shape: tuple[int, int, int], kind: str, draws: int, samples: int, run: Run) -> Arrays:
    """Data of covariance G or flip(G) with random labels; kept, since the rounding of eigenvectors is not the same in all processes.

    Trainings are stored under the content of their data, so that data computed afresh might not find them again.
    """

    def work(key: str) -> Outcome:
        geometry = geometry_of(family, shape, draws, run, scale=SPREAD)
        covariance = geometry if key == "G" else flip(geometry)
        data = random_labels(covariance, shape, train=samples, test=16, seed=0, run=run)
        return dict(zip(("x", "y"), (part.cpu() for part in data.splits["train"]), strict=True))

    parts = {"family": family, "draws": draws, "samples": samples, "scale": SPREAD}
    trials = Trials("Gaussian data", run.shared, code=(work, geometry_of), at=shape, **parts)
    found = next(trials.outcomes([kind], work))
    return Arrays({"train": (found["x"], found["y"])})


_TRAINED = ("samples", "runs", "epochs", "draws of G", "checkpoints")  # checkpoints after the start


def _velocity(epochs: int) -> str:
    """Between which checkpoints it is taken, in words."""
    return "between consecutive epochs" if epochs == 1 else f"over about {epochs} epochs"


def _on_gaussian_data(names: Sequence[str], columns: Sequence[str], published: dict[str, Any], **rows: Lines) -> Plan:
    """The plan of a figure of random labels on Gaussian data: the authors' networks, and what not all of these figures share."""
    settings = {
        "runs": dict.fromkeys(names, 25),
        "epochs": {name: 100 if name == "lenet" else 50 for name in names},
        "velocity": dict.fromkeys(names, _velocity(1)),
    }
    return planned(
        columns,
        "ReLU",
        SPREAD,
        plain=True,
        **rows,
        published=settings | published,
        both={**loop_of(COMMON), "outputs": 2, "labels": "half 0, half 1"},
        ours={"data": "the same for all runs", "side of the images": 32},
        small={"side of the images": 16},
        first=("epochs", "runs", "velocity"),
    )


def _on_both(name: str, plan: Row, samples: int, batch: int, run: Run, tell: Tell) -> dict[str, GeometryMotion]:
    """A network trained on random labels of data made of its own geometry, and of the same turned over."""
    epochs, checkpoints = plan["epochs"][name], plan["checkpoints"][name]
    tell.settings[f"velocity: {TITLES[name]}"] = _velocity(epochs // checkpoints)
    shape = grey(plan)
    family = released_family(name, shape, "relu", plain=True)
    tell.settings.update(precisions([family], run))
    return {
        kind: geometry_motion(
            family,
            gaussian_data(family, shape, kind, plan["draws of G"][name], samples, run),
            runs=plan["runs"][name],
            recipe=dataclasses.replace(COMMON, epochs=epochs, batch=batch),
            checkpoints=checkpoints + 1,
            even=True,
            probes=PROBED,
            scale=1.0,
            geometry_draws=2,  # G^t is compared with itself alone
            readout="first",
            seed=0,
            run=run_of(family, run),
        )
        for kind in ("G", "flip(G)")
    }


def _velocity_ratio(on: dict[str, GeometryMotion]) -> Estimate:
    """The mean velocity on G over that on flip(G), with the jackknife's error over runs, which start from the same weights."""

    def ratio(one: np.ndarray, two: np.ndarray) -> np.ndarray:
        return np.asarray(one.mean(0) / np.maximum(two.mean(0), 1e-12))

    one, two = on["G"], on["flip(G)"]
    value = float(ratio(one.velocity, two.velocity))
    error = jackknife(value, ratio(one.velocity_left_out, two.velocity_left_out).tolist()).standard_error
    return Estimate.from_error(value, error, one.runs)


def _gap(on: dict[str, GeometryMotion]) -> np.ndarray:
    """How much higher training accuracy is on G than on flip(G), in points, by run."""
    return np.asarray(100 * (on["G"].train_accuracy[-1] - on["flip(G)"].train_accuracy[-1]))


def _tell_both(of: Tell, on: dict[str, GeometryMotion], samples: int) -> None:
    """The two kinds of data side by side, each of so many samples."""
    last = {kind: 100 * motion.train_accuracy[-1] for kind, motion in on.items()}
    of("velocity on G over flip(G)", _velocity_ratio(on))
    # With one answer for all samples, accuracy is the share of a class: a half.
    answers = 100.0 * ~np.isclose(last["flip(G)"], 50.0, rtol=0, atol=1e-4)
    with_unit(of, "runs on flip(G) with more than one answer", Estimate(float(answers.mean())), "%")
    responds = Estimate(float(100.0 * (on["flip(G)"].size[-1] > ALIVE)))
    with_unit(of, "networks on flip(G) respond to inputs", responds, "%")
    for kind, accuracy in last.items():
        with_unit(of, f"training accuracy on {kind}", over(accuracy, within=(0, 100)), "%")
    own = error_of_a_difference(float(last["G"].mean()), float(last["flip(G)"].mean()), samples)
    of("training accuracy on G minus flip(G)", over(_gap(on), samples=own, within=(-100.0, 100.0)), "points")


@figure(
    "3",
    title="Velocity of the geometry and training accuracy on data of covariance G and of flip(G), random labels",
    plan=_on_gaussian_data(
        ("mlp", "lenet", "resnet18", "vit"),
        _TRAINED,
        {"samples": dict.fromkeys(("mlp", "lenet", "resnet18", "vit"), 10_000)},
        smoke={"lenet": (64, 2, 2, 16, 2)},
        laptop={"mlp": (10_000, 3, 50, 4000, 5), "lenet": (10_000, 3, 50, 4000, 5)},
        paper={
            "mlp": (10_000, 5, 50, 10_000, 50),
            "lenet": (10_000, 25, 100, 10_000, 100),
            "resnet18": (10_000, 2, 50, 4000, 10),
            "vit": (10_000, 2, 50, 4000, 10),
        },
    ),
    show=curves("accuracy", x="epoch", y="training accuracy, %", scale=100),
)
def figure_3(plan: Row, run: Run, tell: Tell) -> None:
    """Random labels on Gaussian data of two covariances."""
    tell.settings["networks"] = titles(plan.networks)
    for name in plan.networks:
        samples = plan["samples"][name]
        on = _on_both(name, plan, samples, plan["batch"], run, tell)
        _tell_both(tell.about(TITLES[name]), on, samples)
        for kind, motion in on.items():
            epochs, subject = motion.epochs.astype(float), f"{TITLES[name]}, {kind}"
            tell.array(subject, np.stack([epochs, motion.train_accuracy.mean(1)]), kind="accuracy")
            tell.array(subject, np.stack([epochs[1:], motion.velocity]), kind="velocity")
    tell.note(
        "Gᵗ is averaged over runs before velocities are taken, at fixed inputs from N(0, I). The authors' code has new inputs in "
        "every epoch, whose noise adds to the velocity.",
    )


def _by_size(batches: Callable[[list[int]], list[int]]) -> Plan:
    """The plan of figure 12 or 13. Those of 10,000 samples are the trainings of figure 3, LeNet's with fewer runs."""

    def row(sizes: list[int], **networks: Sequence[int]) -> Lines:
        return {name: (sizes, batches(sizes), *line) for name, line in networks.items()}

    published = [10_000, 20_000, 40_000, 60_000, 80_000, 100_000]
    return _on_gaussian_data(
        ("resnet18",),
        ("samples", "batch", "runs", "epochs", "draws of G", "checkpoints"),
        {"samples": {"resnet18": published}, "batch": {"resnet18": batches(published)}},
        smoke=row([32, 64], lenet=(2, 1, 16, 1)),
        laptop=row([2500, 10_000], lenet=(3, 50, 10_000, 1)),
        paper=row([10_000, 20_000], lenet=(5, 100, 10_000, 1), resnet18=(2, 50, 4000, 1)),
    )


def gap_by_size(plan: Row, run: Run, tell: Tell) -> None:
    """Random labels on more and more samples: with fixed batches more iterations, with growing ones as many for every size."""
    tell.settings["networks"] = titles(plan.networks)
    for name in plan.networks:
        title, sizes = TITLES[name], plan["samples"][name]
        trained = []
        for size, batch in zip(sizes, plan["batch"][name], strict=True):
            trained.append(_on_both(name, plan, size, batch, run, tell))
            _tell_both(tell.about(f"{title}, {size:,} samples"), trained[-1], size)
        of, gaps = tell.about(title), [_gap(on) for on in trained]
        growth = over(gaps[-1] - gaps[0], within=(-200.0, 200.0))
        of("gap at the largest size minus gap at the smallest", growth, "points")
        of("gap at the largest size", over(gaps[-1], within=(-100.0, 100.0)), "points")
        for word, on in (("smallest", trained[0]), ("largest", trained[-1])):
            accuracy = over(100 * on["G"].train_accuracy[-1], within=(0, 100))
            of(f"training accuracy on G at the {word} size", accuracy, "%")
        for kind in ("G", "flip(G)"):
            means = [on[kind].train_accuracy[-1].mean() for on in trained]
            tell.array(f"{title}, {kind}", np.array([sizes, means], float), kind="accuracy")
    tell.note(
        "The paper shows ResNet-18. LeNet is ours: it has 60,000 weights, so that more samples are harder to fit on G too."
    )


_SIZES = curves("accuracy", x="training samples", y="training accuracy, %", scale=100, log_x=True)
figure_12 = figure(
    "12",
    title="Training accuracy on covariances G and flip(G) for more and more samples, fixed batches",
    plan=_by_size(lambda sizes: [COMMON.batch for _ in sizes]),
    show=_SIZES,
)(gap_by_size)
figure_13 = figure(
    "13",
    title="The same with batches that grow with the data",
    plan=_by_size(lambda sizes: [COMMON.batch * size // sizes[0] for size in sizes]),
    show=_SIZES,
)(gap_by_size)
