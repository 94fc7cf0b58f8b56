"""Figures 4.11, 4.12 and the text of 4.4.3: linear models with the kernels that a network has before, during and after training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from biascope.families.family import Family
from biascope.measures.linearized_training import linearized_training
from biascope.papers.linearized2021.shared import (
    HALF,
    PERCENT,
    PUBLISHED_ON_EIGENFUNCTIONS,
    SMALL,
    TITLES,
    Learned,
    any_start,
    eigenfunctions,
    images,
    learned_along,
    learned_by_kernel,
    planned,
    planned_images,
    recipe_of,
    start_of,
    training_run,
)
from biascope.results import draw
from biascope.results.estimate import over, over_ratios
from biascope.results.figures import lines_figure
from biascope.results.finding import Finding, Tell, figure
from biascope.results.plan import Row
from biascope.results.wording import snake
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.task import Arrays
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ADAPTED = planned(
    (),
    smoke={"lenet": ()},
    laptop={"lenet": ()},
    paper={"resnet18": ()},
    published={"resnet18": ()},
    theirs=PUBLISHED_ON_EIGENFUNCTIONS,
    ours={"linear models": "trained by their kernel matrices"},
    also={
        "network": ("LeNet", "LeNet", "ResNet-18", "ResNet-18"),
        "training samples": (96, 3000, 8000, 50_000),
        "test samples": (48, 1000, 4000, 10_000),
        "epochs": (2, 30, 100, 100),
        "target": (16, 100, 400, 400),
        "kernels of epochs": ([0, 1, 2], [0, 1, 3, 30], [0, 1, 3, 100], None),
        "seeds": (2, 3, 3, None),
    },
)


def _adapted(plan: Row, run: Run, tell: Tell) -> tuple[list[Learned], dict[int, list[Learned]], float]:
    """Network and linear models on the same eigenfunction of the network's first kernel, for several initialisations.

    Returns:
        The network by seed, linear models by the epoch of their kernel and by seed, and the error of a difference of two accuracies in
        points that finitely many test samples cause, at most.
    """
    (name,) = plan["activation"]
    samples = images("cifar10", (plan["training samples"], plan["test samples"]), run)
    sizes = {"training samples": samples.sizes["train"], "test samples": samples.sizes["test"]}
    tell.settings.update({"samples": samples.name, **sizes})
    recipe = recipe_of(plan, plan["epochs"])
    networks: list[Learned] = []
    lines: dict[int, list[Learned]] = {epoch: [] for epoch in plan["kernels of epochs"]}
    for seed in range(plan["seeds"]):
        family = start_of(name, samples.shape, seed)
        labels = eigenfunctions(family, samples, plan["target"], run).labels([plan["target"]])
        splits = {split: (x, labels[split][0]) for split, (x, _) in samples.splits.items()}
        network, weights = _followed(family, dataclasses.replace(samples, splits=splits), recipe, list(lines), run)
        networks.append(network)
        # As in the released code models start at zero, and BatchNorm has its statistics of initialisation: kernels differ by weights.
        for epoch, params in weights.items():
            lines[epoch].append(learned_by_kernel(family, samples, labels, recipe, run, at=params, biased=False))
    start, early, late = list(lines)[:3]
    for words, models in {
        "network": networks,
        "kernel of initialisation": lines[start],
        "first kernel taken": lines[early],
        "second kernel taken": lines[late],
        "kernel of the trained network": lines[max(lines)],
    }.items():
        fitted = over([100 * float(model.train_accuracy[0]) for model in models], within=PERCENT)
        tell(f"training accuracy, {words}", fitted, "%", key=f"{snake(words)}_training_accuracy")
    return networks, lines, 100 * (0.5 / samples.sizes["test"]) ** 0.5


def _percent(models: Sequence[Learned]) -> np.ndarray:
    """Test accuracies by seed."""
    return np.array([100 * float(model.accuracy[0]) for model in models])


def _followed(
    family: Family, task: Arrays, recipe: Recipe, taken: list[int], run: Run
) -> tuple[Learned, dict[int, dict[str, torch.Tensor]]]:
    """A training, and its weights after some epochs, kept in the run folder."""
    chosen = training_run(family, run)
    steps = [epoch * recipe.steps_per_epoch(task.sizes["train"]) for epoch in taken]

    def work(key: str) -> Outcome:
        start = family.draw(1, seed=0, run=chosen).member(0)
        walk = fit(start, task.to(chosen), recipe, seed=0, run=chosen, keep_at=steps)
        numbers = dataclasses.asdict(learned_along(walk, task.to(chosen), recipe, chosen))
        outcome: Outcome = {f"number/{name}": torch.from_numpy(np.array(values)) for name, values in numbers.items()}
        for epoch, step in zip(taken, steps, strict=True):
            outcome |= {f"{epoch}/{name}": tensor.cpu() for name, tensor in walk.at(step).params.items()}
        return outcome

    trials = Trials(
        "checkpoints of a training", chosen, code=work, at=task, family=family, task=task, recipe=recipe, epochs=taken
    )
    stored = next(trials.outcomes(["weights"], work))

    def part(prefix: str) -> dict[str, torch.Tensor]:
        parts = ((name.partition("/"), tensor) for name, tensor in stored.items())
        return {name: tensor for (kind, _, name), tensor in parts if kind == prefix}

    numbers = {name: tensor.numpy() for name, tensor in part("number").items()}
    return Learned(**numbers), {epoch: part(str(epoch)) for epoch in taken}


def _drawn_losses(finding: Finding, dark: bool) -> Figure:
    losses = finding.curves_of("loss").items()
    short = {name.replace("of the trained network", "after training"): curve for name, curve in losses}
    return lines_figure(short, x="iteration", y="training loss", log_y=True, dark=dark)


@figure(
    "4.11",
    title="A network, its linearisation at initialisation, and one with the kernel of the trained network",
    plan=ADAPTED,
    show=_drawn_losses,
)
def figure_411(plan: Row, run: Run, tell: Tell) -> None:
    """Training losses and test accuracies of the three."""
    networks, lines, error = _adapted(plan, run, tell)
    three = {
        "network": networks,
        "kernel of initialisation": lines[0],
        "kernel of the trained network": lines[max(lines)],
    }
    for words, models in three.items():
        tell(f"test accuracy, {words}", over(_percent(models), shared=error / 2**0.5, within=PERCENT), "%")
        tell.array(words, np.stack([models[0].steps, np.mean([model.curves[0] for model in models], 0)]), kind="loss")
    # The mean loss over the last twentieth of the iterations, by seed.
    network, first, last = (np.array([model.curves[0, -5:].mean() for model in models]) for models in three.values())
    slower, quicker = (over_ratios(first / np.maximum(other, 1e-12)) for other in (network, last))
    tell("final training loss, kernel of initialisation over that of the network", slower)
    tell("final training loss, kernel of initialisation over that of the trained network", quicker)
    network, first, last = map(_percent, three.values())
    loss, gap = over(first - last, shared=error), over(last - network, shared=error)
    tell("test accuracy, kernel of initialisation minus that of the trained network", loss, "points")
    tell("test accuracy, kernel of the trained network minus that of the network", gap, "points")
    tell(
        "how much nearer the kernel of the trained network comes to the network's test accuracy",
        over(np.abs(first - network) - np.abs(last - network), shared=error),
        "points",
        key="how_much_nearer_the_kernel_of_the_trained_network_comes",
    )
    tell.note(
        "Final loss: mean of the last twentieth of the iterations.",
        "The linear models start at zero, and their BatchNorm has the statistics of initialisation: as in the released code.",
        "Linear models are trained by their kernel matrices, which gives the outputs of training their weights up to rounding.",
    )


def _drawn_kernels(finding: Finding, dark: bool) -> Figure:
    """Kernels side by side: the first epochs lie too close together on a common axis."""
    curves = finding.curves_of("curve")
    epochs, accuracy = curves["linear models"]
    picture = draw.blank(
        3.1, "All linear models are trained on the same labels; they differ by the epoch of their kernel."
    )
    axes = draw.panel(picture, dark)
    colours = draw.PALETTE[dark].lines
    axes.plot(range(len(epochs)), accuracy, "o-", color=colours[0], label="linear models")
    axes.axhline(float(curves["the network"][1][0]), color=colours[1], label="the network")
    axes.set_xticks(range(len(epochs)), [f"{epoch:.0f}" for epoch in epochs])
    axes.set(xlabel="epoch that the kernel is taken from", ylabel="test accuracy, %")
    axes.legend(frameon=False, labelcolor=draw.PALETTE[dark].ink)
    return picture


@figure("4.12", title="Linear models with the kernels of the first epochs", plan=ADAPTED, show=_drawn_kernels)
def figure_412(plan: Row, run: Run, tell: Tell) -> None:
    """Test accuracy of linear models against the epoch of their kernel."""
    networks, lines, error = _adapted(plan, run, tell)
    accuracy = np.stack([_percent(models) for models in lines.values()])  # (kernel, seed)
    network = _percent(networks)
    fall = accuracy[0] - accuracy[-1]
    tell(
        "loss of accuracy from the first to the last kernel",
        over(fall, shared=error),
        "points",
        key="loss_of_accuracy_from_the_first_to_the_last_kernel_points",
    )
    tell("fall of accuracy after the first epoch", over(accuracy[0] - accuracy[1], shared=error), "points")
    tell("test accuracy of the network", over(network, shared=error / 2**0.5, within=PERCENT), "%")
    if float(fall.mean()) > error:  # else there is no fall whose share could be taken
        tell("share of the loss of accuracy reached early", over((accuracy[0] - accuracy[2]) / fall))
    epochs = np.array(list(lines), float)
    tell.array("linear models", np.stack([epochs, accuracy.mean(1)]), kind="curve")
    tell.array("the network", np.array([[0.0, epochs.max()], [network.mean()] * 2]), kind="curve")
    tell.note(
        "Training accuracies of the linear models are among the numbers: the kernels of the first epochs fit fewer samples than that "
        "of initialisation."
    )


def _drawn_gains(finding: Finding, dark: bool) -> Figure:
    accuracies = finding.arrays_of("accuracy")
    picture = draw.blank(3.1, "Both linear models are trained on CIFAR-2; they differ by their kernel.")
    axes = draw.panel(picture, dark)
    for place, (title, values) in enumerate(accuracies.items()):
        axes.plot(range(3), values, "o-", color=draw.PALETTE[dark].lines[place], label=title)
    axes.set_xticks(range(3), ["network", "kernel of\ninitialisation", "kernel of the\ntrained network"])
    axes.set(ylabel="test accuracy, %", xlim=(-0.3, 2.3))
    axes.legend(frameon=False, labelcolor=draw.PALETTE[dark].ink)
    return picture


@figure(
    "4.4.3 text",
    title="Kernels of initialisation and of the trained network on CIFAR-2",
    plan=planned(
        ("training samples", "test samples", "epochs", "seeds"),
        smoke={"lenet": (96, 48, 2, 2)},
        laptop=dict.fromkeys(SMALL, (4000, 2000, 20, 3)),
        paper=dict.fromkeys(SMALL, (50_000, 10_000, 20, 5)),
        published=dict.fromkeys(SMALL, (50_000, 10_000, 200, None)),
        ours={"seed": 0},
    ),
    show=_drawn_gains,
)
def rotation_on_classes(plan: Row, run: Run, tell: Tell) -> None:
    """Linear models with the kernel before and after training on CIFAR-2, both trained on it."""
    models = ("network", "kernel of initialisation", "kernel of the trained network")
    gains, fitted = {}, {}
    for name, epochs in plan["epochs"].items():
        title, samples = TITLES[name], planned_images(plan, name, run, tell)
        family = any_start(name, samples.shape)
        trainings = linearized_training(
            family,
            samples,
            positive=HALF,
            at=("start", "trained"),
            epochs=epochs,
            repeats=plan["seeds"][name],
            seed=0,
            run=training_run(family, run),
        )
        accuracy = 100 * trainings.accuracy[:, 0, 0]  # (model, seed)
        fitted[title] = 100 * trainings.train_accuracy[:, 0, 0]
        error = 100 * (0.5 / samples.sizes["test"]) ** 0.5
        gains[title] = over(accuracy[2] - accuracy[1], shared=error)
        tell.about(title)("gain by the trained kernel", gains[title], "points")
        for model, of_seeds in zip(models, accuracy, strict=True):
            reached = over(of_seeds, shared=error / 2**0.5, within=PERCENT)
            tell.about(title)(f"test accuracy, {model}", reached, "%")
        tell.array(title, accuracy.mean(1), kind="accuracy")
    best = max(gains, key=lambda title: gains[title].value)
    tell(f"largest gain, of {best}", gains[best], "points", key="largest_gain_by_the_trained_kernel")
    for model, of_seeds in zip(models, fitted[best], strict=True):
        reached = over(of_seeds, within=PERCENT)
        tell(f"{best}: training accuracy, {model}", reached, "%", key=f"{snake(model)}_training_accuracy")
    tell.note(
        "The larger gain of two networks is chosen after both are seen, which favours a gain.",
        "The kernel of initialisation fits fewer training samples in these epochs: part of a gain may be speed.",
    )
