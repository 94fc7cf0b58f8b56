"""Figures 4.11, 4.12 and the text of 4.4.3: linear models with the kernels that a network has before, during and after training."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from biascope.families.family import Family
from biascope.measures.linearized_training import LinearizedTraining, linearized_training
from biascope.papers.linearized2021.shared import (
    HALF,
    ON_IMAGES,
    PUBLISHED,
    PUBLISHED_ON_EIGENFUNCTIONS,
    RECIPE,
    TITLES,
    Learned,
    any_start,
    eigenfunctions,
    images,
    learned_along,
    learned_by_kernel,
    per_network,
    settings_of,
    start_of,
    training_run,
)
from biascope.papers.selection import old_figure
from biascope.results.estimate import Estimate, Number, over, over_ratios
from biascope.results.figures import lines_figure
from biascope.results.finding import Finding
from biascope.results.wording import snake
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.task import Arrays
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure


# Network, samples, epochs, target, epochs whose kernels are taken, seeds.
_ADAPTED: dict[str, tuple[str, tuple[int, int], int, int, tuple[int, ...], int]] = {
    "smoke": ("lenet", (96, 48), 2, 16, (1, 2), 2),
    "laptop": ("lenet", (3000, 1000), 30, 100, (1, 3, 30), 3),
    "paper": ("resnet18", (8000, 4000), 100, 400, (1, 3, 100), 3),
}


@dataclasses.dataclass(frozen=True)
class _Adapted:
    """A network trained on one eigenfunction, and linear models with its kernels at some epochs; one entry per seed."""

    network: list[Learned]
    lines: dict[int, list[Learned]]  # by the epoch of the kernel, 0 for that of initialisation
    settings: dict[str, Any]
    test: int

    def accuracy(self, models: Sequence[Learned]) -> np.ndarray:
        """Test accuracies in percent, by seed."""
        return np.array([100 * float(each.accuracy[0]) for each in models])

    def training_accuracies(self) -> dict[str, Number]:
        """Of the network, and of the linear models with the kernels of initialisation, of the first epochs and of the end."""
        early, late = list(self.lines)[1:3]
        models = {
            "network": self.network,
            "kernel of initialisation": self.lines[0],
            "first kernel taken": self.lines[early],
            "second kernel taken": self.lines[late],
            "kernel of the trained network": self.lines[max(self.lines)],
        }
        return {
            f"{snake(words)}_training_accuracy": over(
                [100 * float(each.train_accuracy[0]) for each in found], within=(0.0, 100.0)
            ).named(f"training accuracy, {words}", "%")
            for words, found in models.items()
        }

    def error(self) -> float:
        """The error of a difference of two accuracies in points that finitely many test samples cause, at most."""
        return float(100 * (0.5 / self.test) ** 0.5)


def _adapted(effort: str, run: Run) -> _Adapted:
    """Network and linear models on the same eigenfunction of the network's first kernel, for several initialisations."""
    name, sizes, epochs, target, taken, seeds = _ADAPTED[effort]
    samples = images("cifar10", sizes, run)
    network: list[Learned] = []
    lines: dict[int, list[Learned]] = {epoch: [] for epoch in (0, *taken)}
    for seed in range(seeds):
        trained_network, linear_models = adapted(effort, run, seed)
        network.append(trained_network)
        for epoch, model in linear_models.items():
            lines[epoch].append(model)
    settings = {
        "samples": samples.name,
        **settings_of(RECIPE, (name,)),
        "network": TITLES[name],
        "training samples": samples.sizes["train"],
        "test samples": samples.sizes["test"],
        "epochs": epochs,
        "target": target,
        "kernels of epochs": list(lines),
        "linear models": "trained by their kernel matrices",
        "seeds": seeds,
    }
    return _Adapted(network, lines, settings, samples.sizes["test"])


def adapted(effort: str, run: Run, seed: int) -> tuple[Learned, dict[int, Learned]]:
    """One initialisation of figures 4.11 and 4.12: the network, and the linear models by the epoch of their kernel."""
    name, sizes, epochs, target, taken, _ = _ADAPTED[effort]
    samples = images("cifar10", sizes, run)
    recipe = dataclasses.replace(RECIPE, epochs=epochs)
    family = start_of(name, samples.shape, seed)
    labels = eigenfunctions(family, samples, target, run).labels([target])
    task = dataclasses.replace(
        samples, splits={split: (x, labels[split][0]) for split, (x, _) in samples.splits.items()}
    )
    network, kept = _followed(family, task, recipe, (0, *taken), run)
    # As in the released code the models start at zero, and BatchNorm has its statistics of initialisation: kernels differ by weights.
    return network, {
        epoch: learned_by_kernel(family, samples, labels, recipe, run, at=params, biased=False)
        for epoch, params in kept.items()
    }


_PUBLISHED_ADAPTED = {
    **PUBLISHED,
    "network": "ResNet-18",
    "activation: ResNet-18": PUBLISHED_ON_EIGENFUNCTIONS["resnet18"],
    "training samples": 50_000,
    "test samples": 10_000,
    "epochs": 100,
    "target": 400,
}


def _followed(
    family: Family, task: Arrays, recipe: Recipe, taken: Sequence[int], run: Run
) -> tuple[Learned, dict[int, dict[str, torch.Tensor]]]:
    """A training, and its weights after some epochs, kept in the run folder."""
    chosen = training_run(family, run)
    per_epoch = recipe.steps_per_epoch(task.sizes["train"])

    def work(key: str) -> Outcome:
        start = family.draw(1, seed=0, run=chosen).member(0)
        steps = [epoch * per_epoch for epoch in taken]
        walk = fit(start, task.to(chosen), recipe, seed=0, run=chosen, keep_at=steps)
        numbers = dataclasses.asdict(learned_along(walk, task.to(chosen), recipe, chosen))
        found: Outcome = {f"number/{name}": torch.from_numpy(np.array(values)) for name, values in numbers.items()}
        for epoch, step in zip(taken, steps, strict=True):
            found |= {f"{epoch}/{name}": tensor.cpu() for name, tensor in walk.at(step).params.items()}
        return found

    trials = Trials(
        "checkpoints of a training",
        chosen,
        code=work,
        at=task,
        family=family,
        task=task,
        recipe=recipe,
        epochs=list(taken),
    )
    stored = next(trials.outcomes(["weights"], work))

    def part(prefix: str) -> dict[str, torch.Tensor]:
        return {
            name.removeprefix(f"{prefix}/"): tensor for name, tensor in stored.items() if name.startswith(f"{prefix}/")
        }

    numbers = {name: tensor.numpy() for name, tensor in part("number").items()}
    return Learned(**numbers), {epoch: part(str(epoch)) for epoch in taken}


@old_figure(
    "4.11",
    title="A network, its linearisation at initialisation, and one with the kernel of the trained network",
    show=lambda finding, dark: lines_figure(
        {
            name.replace("of the trained network", "after training"): each
            for name, each in finding.curves_of("loss").items()
        },
        x="iteration",
        y="training loss",
        log_y=True,
        dark=dark,
    ),
    published=_PUBLISHED_ADAPTED,
)
def figure_411(effort: str, run: Run) -> Finding:
    """Training losses and test accuracies of the three."""
    found = _adapted(effort, run)
    three = {
        "network": found.network,
        "kernel of initialisation": found.lines[0],
        "kernel of the trained network": found.lines[max(found.lines)],
    }
    # The mean loss over the last twentieth of the iterations, by seed.
    ends = {key: np.array([each.curves[0, -5:].mean() for each in models]) for key, models in three.items()}
    accuracy = {key: found.accuracy(models) for key, models in three.items()}
    first, network, last = (
        accuracy[key] for key in ("kernel of initialisation", "network", "kernel of the trained network")
    )
    slower = over_ratios(ends["kernel of initialisation"] / np.maximum(ends["network"], 1e-12))
    quicker = over_ratios(ends["kernel of initialisation"] / np.maximum(ends["kernel of the trained network"], 1e-12))
    statistics = {
        "final_training_loss_kernel_of_initialisation_over_that_of_the_network": slower.named(
            "final training loss, kernel of initialisation over that of the network"
        ),
        "final_training_loss_kernel_of_initialisation_over_that_of_the_trained_network": quicker.named(
            "final training loss, kernel of initialisation over that of the trained network"
        ),
        "test_accuracy_kernel_of_initialisation_minus_that_of_the_trained_network": over(
            first - last, shared=found.error()
        ).named("test accuracy, kernel of initialisation minus that of the trained network", "points"),
        "test_accuracy_kernel_of_the_trained_network_minus_that_of_the_network": over(
            last - network, shared=found.error()
        ).named("test accuracy, kernel of the trained network minus that of the network", "points"),
        "how_much_nearer_the_kernel_of_the_trained_network_comes": over(
            np.abs(first - network) - np.abs(last - network), shared=found.error()
        ).named("how much nearer the kernel of the trained network comes to the network's test accuracy", "points"),
        **{
            f"test_accuracy_{snake(key)}": over(values, shared=found.error() / 2**0.5, within=(0.0, 100.0)).named(
                f"test accuracy, {key}", "%"
            )
            for key, values in accuracy.items()
        },
        **found.training_accuracies(),
    }
    arrays = {
        f"loss: {key}": np.stack([models[0].steps, np.mean([each.curves[0] for each in models], 0)])
        for key, models in three.items()
    }
    notes = (
        "Final loss: mean of the last twentieth of the iterations.",
        "The linear models start at zero, and their BatchNorm has the statistics of initialisation: as in the released code.",
        "Linear models are trained by their kernel matrices, which gives the outputs of training their weights up to rounding.",
    )
    return Finding(statistics, arrays, found.settings, notes)


@old_figure(
    "4.12",
    title="Linear models with the kernels of the first epochs",
    show=lambda finding, dark: _drawn_kernels(finding, dark),
    published=_PUBLISHED_ADAPTED,
)
def figure_412(effort: str, run: Run) -> Finding:
    """Test accuracy of linear models against the epoch of their kernel."""
    found = _adapted(effort, run)
    accuracy = np.stack([found.accuracy(models) for models in found.lines.values()])  # (kernel, seed)
    network = found.accuracy(found.network)
    fall, early, at_once = (
        accuracy[0] - accuracy[-1],
        accuracy[0] - accuracy[min(2, len(accuracy) - 1)],
        accuracy[0] - accuracy[1],
    )
    statistics = {
        "loss_of_accuracy_from_the_first_to_the_last_kernel_points": over(fall, shared=found.error()).named(
            "loss of accuracy from the first to the last kernel", "points"
        ),
        "fall_of_accuracy_after_the_first_epoch": over(at_once, shared=found.error()).named(
            "fall of accuracy after the first epoch", "points"
        ),
        "test_accuracy_of_the_network": over(network, shared=found.error() / 2**0.5, within=(0.0, 100.0)).named(
            "test accuracy of the network", "%"
        ),
        **found.training_accuracies(),
    }
    if float(fall.mean()) > found.error():  # else there is no fall whose share could be taken
        statistics["share_of_the_loss_of_accuracy_reached_early"] = over(early / fall).named(
            "share of the loss of accuracy reached early"
        )
    arrays = {
        "curve: linear models": np.stack([np.array(list(found.lines), float), accuracy.mean(1)]),
        "curve: the network": np.array([[0.0, float(max(found.lines))], [network.mean()] * 2]),
    }
    notes = (
        "Training accuracies of the linear models are among the numbers: the kernels of the first epochs fit fewer samples than that "
        "of initialisation.",
    )
    return Finding(statistics, arrays, found.settings, notes)


def _drawn_kernels(finding: Finding, dark: bool) -> Figure:
    """Kernels side by side: the first epochs lie too close together on a common axis."""
    from biascope.results import draw

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


# Training and test samples, epochs, seeds.
_ON_CLASSES: dict[str, dict[str, tuple[tuple[int, int], int, int]]] = {
    "smoke": {"lenet": ((96, 48), 2, 2)},
    "laptop": {"mlp": ((4000, 2000), 20, 3), "lenet": ((4000, 2000), 20, 3)},
    "paper": {"mlp": ((50_000, 10_000), 20, 5), "lenet": ((50_000, 10_000), 20, 5)},
}


def on_classes(name: str, effort: str, run: Run) -> LinearizedTraining:
    """A network and linear models with its first and its last kernel, all trained on CIFAR-2."""
    sizes, epochs, seeds = _ON_CLASSES[effort][name]
    samples = images("cifar10", sizes, run)
    family = any_start(name, samples.shape)
    return linearized_training(
        family,
        samples,
        positive=HALF,
        at=("start", "trained"),
        epochs=epochs,
        repeats=seeds,
        seed=0,
        run=training_run(family, run),
    )


@old_figure(
    "4.4.3 text",
    title="Kernels of initialisation and of the trained network on CIFAR-2",
    show=lambda finding, dark: _drawn_gains(finding, dark),
    published={
        **PUBLISHED,
        **per_network(("mlp", "lenet"), activation=ON_IMAGES, training_samples=50_000, test_samples=10_000, epochs=200),
    },
)
def rotation_on_classes(effort: str, run: Run) -> Finding:
    """Linear models with the kernel before and after training on CIFAR-2, both trained on it."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    gains: dict[str, Estimate] = {}
    settings: dict[str, Any] = {**settings_of(RECIPE, list(_ON_CLASSES[effort])), "seed": 0}
    fitted: dict[str, list[Estimate]] = {}
    words = ("network", "kernel of initialisation", "kernel of the trained network")
    for name, (sizes, epochs, seeds) in _ON_CLASSES[effort].items():
        samples, title = images("cifar10", sizes, run), TITLES[name]
        found = on_classes(name, effort, run)
        accuracy = 100 * found.accuracy[:, 0, 0]  # (model, seed)
        error = float(100 * (0.5 / samples.sizes["test"]) ** 0.5)
        gains[title] = over(accuracy[2] - accuracy[1], shared=error)
        statistics[f"{snake(title)}_gain_by_the_trained_kernel"] = gains[title].named(
            f"{title}: gain by the trained kernel", "points"
        )
        for row, model in enumerate(words):
            reached = over(accuracy[row], shared=error / 2**0.5, within=(0.0, 100.0))
            statistics[f"{snake(title)}_test_accuracy_{snake(model)}"] = reached.named(
                f"{title}: test accuracy, {model}", "%"
            )
            fitted.setdefault(model, []).append(over(100 * found.train_accuracy[row, 0, 0], within=(0.0, 100.0)))
        arrays[f"accuracy: {title}"] = accuracy.mean(1)
        settings |= per_network(
            (name,),
            training_samples=samples.sizes["train"],
            test_samples=samples.sizes["test"],
            epochs=epochs,
            seeds=seeds,
        )
    best = max(gains, key=lambda title: gains[title].value)
    place = list(gains).index(best)
    statistics["largest_gain_by_the_trained_kernel"] = gains[best].named(f"largest gain, of {best}", "points")
    for model, numbers in fitted.items():
        statistics[f"{snake(model)}_training_accuracy"] = numbers[place].named(
            f"{best}: training accuracy, {model}", "%"
        )
    notes = (
        "The larger gain of two networks is chosen after both are seen, which favours a gain.",
        "The kernel of initialisation fits fewer training samples in these epochs: part of a gain may be speed.",
    )
    return Finding(statistics, arrays, settings, notes)


def _drawn_gains(finding: Finding, dark: bool) -> Figure:
    from biascope.results import draw

    accuracies = finding.arrays_of("accuracy")
    picture = draw.blank(3.1, "Both linear models are trained on CIFAR-2; they differ by their kernel.")
    axes = draw.panel(picture, dark)
    for place, (title, values) in enumerate(accuracies.items()):
        axes.plot(range(3), values, "o-", color=draw.PALETTE[dark].lines[place], label=title)
    axes.set_xticks(range(3), ["network", "kernel of\ninitialisation", "kernel of the\ntrained network"])
    axes.set(ylabel="test accuracy, %", xlim=(-0.3, 2.3))
    axes.legend(frameon=False, labelcolor=draw.PALETTE[dark].ink)
    return picture
