"""Figures 4.6–4.12 and table 4.1: where networks leave their linearisations, and how training turns the tangent kernel."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from biascope.derivatives.linearize import linearize
from biascope.families.family import Family, Network
from biascope.measures.kernel_rotation import KernelRotation, kernel_rotation
from biascope.papers.linearized2021.shared import (
    RECIPE,
    TITLES,
    Targets,
    builder_of,
    eigenfunctions,
    images,
    learned,
    linearised,
    start_of,
    training_run,
)
from biascope.results.claim import Claim, Finding, figure
from biascope.results.estimate import Estimate, Number, over_repeats, proportion, spearman
from biascope.results.figures import lines_figure
from biascope.results.wording import snake
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.task import Arrays, Task
from biascope.training.fit import fit
from biascope.training.recipe import Recipe
from biascope.training.sweep import Trial, trained

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

HALF = (0, 1, 2, 3, 4)  # the classes of CIFAR-10 that CIFAR-2 sets against the rest


def _curves(finding: Finding, dark: bool, x: str, y: str) -> Figure:
    return lines_figure(finding.curves_of("curve"), x=x, y=y, dark=dark)


# Training sizes, repeats, iterations; the same number of iterations for every size.
_SIZES: dict[str, dict[str, tuple[tuple[int, ...], int, int]]] = {
    "smoke": {"lenet": ((32, 64), 2, 4)},
    "laptop": {"mlp": ((250, 1000, 4000), 3, 1200), "lenet": ((250, 1000, 4000), 3, 1200)},
    "paper": {
        "mlp": ((500, 2000, 8000, 50_000), 5, 8000),
        "lenet": ((500, 2000, 8000, 50_000), 5, 8000),
        "resnet18": ((500, 2000, 8000), 2, 1200),
    },
}


@dataclasses.dataclass(frozen=True)
class _Sizes(Targets):
    """CIFAR-2 at several training sizes: a kind of trial is a size, a member a repetition from its own weights."""

    def task(self, kind: str, members: Sequence[int], seed: int, run: Run) -> Task:
        """The first so many training samples."""
        size = int(kind.split()[-1])
        x, y = self.samples.splits["train"]
        cut = dataclasses.replace(self.samples, splits={**self.samples.splits, "train": (x[:size], y[:size])})
        return cut.to(run)


@figure(
    "4.6",
    title="The advantage of non-linear networks on CIFAR-2 against the number of training samples",
    claims=[
        claim
        for name in ("mlp", "lenet", "resnet18")
        for claim in (
            Claim(
                f"The advantage of {TITLES[name]} over its linearisation grows with the training set: "
                "largest minus smallest size, in points.",
                f"{snake(TITLES[name])}_growth_of_the_advantage",
                "at least",
                "mostly appears when training on larger datasets",
                0.0,
                "paper" if name == "resnet18" else "laptop",
            ),
            Claim(
                f"{TITLES[name]} travels further in weight space for larger training sets: largest over smallest.",
                f"{snake(TITLES[name])}_distance_at_the_largest_over_the_smallest_size",
                "at least",
                "closer to their initialization for smaller training set sizes",
                1.1,
                "paper" if name == "resnet18" else "laptop",
            ),
        )
    ],
    draw=lambda finding, dark: _curves(finding, dark, "training samples", "test accuracy, %"),
)
def figure_46(effort: str, run: Run) -> Finding:
    """Test accuracy and weight distance of networks and linearisations over training sizes."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    words = ""
    for name, (sizes, repeats, steps) in _SIZES[effort].items():
        title, key = TITLES[name], snake(TITLES[name])
        samples = images(
            "cifar10", (max(sizes), 2000 if effort == "laptop" else min(10_000, 5 * max(sizes))), run, halves=True
        )
        words = samples.name
        family = Family.initialised(builder_of(name, samples.shape), name=title)
        recipe = dataclasses.replace(RECIPE, steps=steps)
        course = _Sizes(samples, {}, recipe)
        trials = {size: [Trial(f"size {size}", repeat) for repeat in range(repeats)] for size in sizes}
        flat = [trial for row in trials.values() for trial in row]
        accuracy: dict[str, np.ndarray] = {}
        distance: dict[str, np.ndarray] = {}
        for subject, each in ((title, family), (f"linearised {title}", linearised(family))):
            found = trained(each, course, flat, seed=0, run=training_run(each, run), label=subject)
            for table, part in ((accuracy, "accuracy/test"), (distance, "distance")):
                table[subject] = np.array([[float(found[trial][part]) for trial in row] for row in trials.values()])
            arrays[f"curve: {subject}"] = np.stack([np.array(sizes, float), 100 * accuracy[subject].mean(1)])
        lead = 100 * (accuracy[title] - accuracy[f"linearised {title}"])  # (size, repeat)
        growth, largest = over_repeats(list(lead[-1] - lead[0])), over_repeats(list(lead[-1]))
        further = over_repeats(list(distance[title][-1] / distance[title][0]))
        statistics |= {
            f"{key}_growth_of_the_advantage": growth.named(f"{title}: growth of the advantage", "points"),
            f"{key}_advantage_at_the_largest_size": largest.named(f"{title}: advantage at the largest size", "points"),
            f"{key}_distance_at_the_largest_over_the_smallest_size": further.named(
                f"{title}: distance at the largest over the smallest size"
            ),
        }
    settings = {"samples": words, "plan": {k: [list(v[0]), *v[1:]] for k, v in _SIZES[effort].items()}, "seed": 0}
    notes = ("Every size has the same number of iterations, so that small sets are not trained less.",)
    return Finding(statistics, arrays, settings, notes)


# Training and test samples, epochs, samples of the kernel.
_ENERGY: dict[str, dict[str, tuple[tuple[int, int], int, int]]] = {
    "smoke": {"lenet": ((96, 48), 2, 64)},
    "laptop": {"mlp": ((12_000, 2000), 40, 4000), "lenet": ((12_000, 2000), 40, 4000)},
    "paper": {
        "mlp": ((50_000, 10_000), 200, 12_000),
        "lenet": ((50_000, 10_000), 200, 12_000),
        "resnet18": ((50_000, 10_000), 80, 12_000),
    },
}
_TABLE = {"mlp": (26.0, 63.6, 67.6), "lenet": (25.8, 83.0, 75.0), "resnet18": (22.7, 96.7, 81.4)}


def _energies(name: str, effort: str, run: Run) -> tuple[KernelRotation, str]:
    sizes, epochs, kernel = _ENERGY[effort][name]
    samples = images("cifar10", sizes, run)
    found = kernel_rotation(
        start_of(name, samples.shape),
        samples,
        positive=HALF,
        leading=min(50, kernel),
        energy=min(50, kernel),
        kernel_samples=min(kernel, samples.sizes["train"]),
        epochs=epochs,
        seed=0,
        run=training_run(start_of(name, samples.shape), run),
    )
    return found, samples.name


@figure(
    "table 4.1",
    title="Energy of the labels of CIFAR-2 on the first 50 eigenfunctions, before and after training",
    claims=[
        Claim(
            f"{TITLES[name]}: {words}, in percent.",
            f"{snake(TITLES[name])}_{key}",
            "about",
            published,
            tolerance,
            "paper",
        )
        for name, row in _TABLE.items()
        for key, words, tolerance, published in (
            ("energy_at_the_start", "energy ‖Φy‖²/‖y‖² on the first 50 at initialisation", 5.0, row[0]),
            ("energy_at_the_end", "energy ‖Φy‖²/‖y‖² on the first 50 after training", 10.0, row[1]),
            ("norm_at_the_start", "the same numbers read as ‖Φy‖/‖y‖, at initialisation", 5.0, row[0]),
            ("norm_at_the_end", "the same numbers read as ‖Φy‖/‖y‖, after training", 10.0, row[1]),
            ("test_accuracy", "test accuracy on CIFAR-2", 4.0, row[2]),
        )
    ],
    draw=lambda finding, dark: _curves(finding, dark, "epoch", "energy on the first 50, %"),
)
def table_41(effort: str, run: Run) -> Finding:
    """Energy concentration of the labels, 12,000 training samples."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    words = ""
    for name, ((_, test), _, kernel) in _ENERGY[effort].items():
        found, words = _energies(name, effort, run)
        title, key = TITLES[name], snake(TITLES[name])
        energies = {"start": _share(100 * found.energy[0, 0], kernel), "end": _share(100 * found.energy[0, -1], kernel)}
        for when, energy in energies.items():
            statistics[f"{key}_energy_at_the_{when}"] = energy.named(f"{title}: energy at the {when}", "%")
        for when, energy in energies.items():
            root = 10 * energy.value**0.5  # in percent, of a share in percent
            error = 5 * energy.standard_error / energy.value**0.5
            norm = Estimate.from_error(root, error, kernel)
            statistics[f"{key}_norm_at_the_{when}"] = norm.named(f"{title}: norm at the {when}", "%")
        accuracy = proportion(found.accuracy[0, -1], test).in_percent()
        statistics[f"{key}_test_accuracy"] = accuracy.named(f"{title}: test accuracy", "%")
        arrays[f"curve: {title}"] = np.stack([found.epochs.astype(float), 100 * found.energy[0]])
    settings = {"samples": words, "plan": {k: [list(v[0]), *v[1:]] for k, v in _ENERGY[effort].items()}, "seed": 0}
    notes = (
        "One training each; intervals are those of so many samples, not of other initialisations.",
        "The claims that read the table as norms were added after energies at initialisation had been seen to be near the squares "
        "of the printed numbers.",
    )
    return Finding(statistics, arrays, settings, notes)


def _share(percent: float, samples: int) -> Estimate:
    """A share of energy with the error of as many samples."""
    error = 100 * ((percent / 100) * (1 - percent / 100) / samples) ** 0.5
    return Estimate.from_error(float(percent), error, samples)


@figure(
    "4.7",
    title="Energy of the labels on the first 50 eigenfunctions along training, LeNet on CIFAR-2",
    claims=[
        Claim(
            "The energy grows over the epochs: end minus start, in points.",
            "growth_of_the_energy",
            "at least",
            "significantly grows during training",
            10.0,
        ),
        Claim(
            "It grows all along: rank correlation of energy and epoch.",
            "rank_correlation_of_energy_and_epoch",
            "at least",
            "grows",
            0.8,
        ),
    ],
    draw=lambda finding, dark: _curves(finding, dark, "epoch", "energy on the first 50, %"),
)
def figure_47(effort: str, run: Run) -> Finding:
    """Energy concentration at checkpoints."""
    found, words = _energies("lenet", effort, run)
    energy, epochs = 100 * found.energy[0], found.epochs.astype(float)
    kernel = _ENERGY[effort]["lenet"][2]
    first, last = _share(float(energy[0]), kernel), _share(float(energy[-1]), kernel)
    error = (first.standard_error**2 + last.standard_error**2) ** 0.5
    growth = Estimate.from_error(last.value - first.value, error, kernel)
    statistics = {
        "growth_of_the_energy": growth.named("growth of the energy", "points"),
        "rank_correlation_of_energy_and_epoch": Estimate.exact(spearman(energy, epochs)).named(
            "rank correlation of energy and epoch"
        ),
    }
    return Finding(statistics, {"curve: LeNet": np.stack([epochs, energy])}, {"samples": words, "seed": 0})


# Samples, epochs, eigenfunctions followed, targets learned.
_ROTATION: dict[str, tuple[tuple[int, int], int, int, tuple[int, ...]]] = {
    "smoke": ((96, 48), 2, 24, (4, 16)),
    "laptop": ((3000, 1000), 25, 200, (10, 100)),
    "paper": ((50_000, 10_000), 100, 1000, (10, 100, 500, 900)),
}


def _rotation_claims(name: str, single: bool) -> list[Claim]:
    title = TITLES[name]
    claims = [
        Claim(
            f"After training {title} on an eigenfunction its alignment has grown far more than any other: "
            "its growth over the median of the others.",
            f"{snake(title)}_growth_of_the_target_over_the_others",
            "at least",
            "much more than for any other eigenfunction",
            3.0,
        ),
        Claim(
            f"All alignments of {title} grow: share of the other eigenfunctions whose alignment grew.",
            f"{snake(title)}_share_of_the_others_that_grew",
            "at least",
            "the absolute values of all alignments have also grown",
            0.9,
        ),
    ]
    if not single:
        claims.append(
            Claim(
                f"The rise is larger for late eigenfunctions of {title}: growth of the last target over that of the first.",
                f"{snake(title)}_growth_of_the_last_over_the_first_target",
                "at least",
                "more pronounced for the eigenfunctions corresponding to the lowest eigenvalues",
                1.0,
            )
        )
    return claims


def _rotated(name: str, effort: str, run: Run, *, single: bool) -> Finding:
    sizes, epochs, leading, targets = _ROTATION[effort]
    chosen = targets[-2:-1] if single and len(targets) > 2 else targets[-1:] if single else targets
    samples, title = images("cifar10", sizes, run), TITLES[name]
    family = start_of(name, samples.shape)
    arrays: dict[str, np.ndarray] = {}
    against, grown, rises = [], [], []
    for target in chosen:
        found = kernel_rotation(
            family,
            samples,
            target=target,
            leading=leading,
            energy=min(50, leading),
            checkpoints=3,
            epochs=epochs,
            seed=0,
            run=training_run(family, run),
        )
        growth = found.growth[0, -1]
        others = np.delete(growth, target - 1)
        rises.append(float(found.target_growth[0, -1]))
        against.append(rises[-1] / float(np.nanmedian(others)))
        grown.append(float((others[np.isfinite(others)] > 1).mean()))
        arrays[f"curve: trained on φ_{target}"] = np.stack([np.arange(1, leading + 1, dtype=float), growth])
    key = snake(title)
    statistics = {
        f"{key}_growth_of_the_target_over_the_others": Estimate.exact(min(against)).named(
            f"{title}: growth of the target over the others"
        ),
        f"{key}_share_of_the_others_that_grew": Estimate.exact(min(grown)).named(
            f"{title}: share of the others that grew"
        ),
        f"{key}_growth_of_the_last_over_the_first_target": Estimate.exact(rises[-1] / rises[0]).named(
            f"{title}: growth of the last over the first target"
        ),
    }
    settings = {
        "samples": samples.name,
        "epochs": epochs,
        "targets": list(chosen),
        "eigenfunctions": leading,
        "seed": 0,
    }
    notes = ("The smallest over the targets. One training each: no spread is known.",)
    return Finding(statistics, arrays, settings, notes)


def _drawn_growth(finding: Finding, dark: bool) -> Figure:
    curves = finding.curves_of("curve")
    label = "alignment after over before training"
    return lines_figure(curves, x="index ρ of the eigenfunction", y=label, log_y=True, dark=dark)


@figure(
    "4.8",
    title="Alignment of the first eigenfunctions before and after training LeNet on one of them",
    claims=_rotation_claims("lenet", single=True),
    draw=_drawn_growth,
)
def figure_48(effort: str, run: Run) -> Finding:
    """One target (the 500th in the thesis)."""
    return _rotated("lenet", effort, run, single=True)


@figure(
    "4.9", title="The same for several targets, MLP", claims=_rotation_claims("mlp", single=False), draw=_drawn_growth
)
def figure_49(effort: str, run: Run) -> Finding:
    """Several targets, MLP."""
    return _rotated("mlp", effort, run, single=False)


@figure(
    "4.10",
    title="The same for several targets, LeNet",
    claims=_rotation_claims("lenet", single=False),
    draw=_drawn_growth,
)
def figure_410(effort: str, run: Run) -> Finding:
    """Several targets, LeNet."""
    return _rotated("lenet", effort, run, single=False)


# Network, samples, epochs, target, epochs whose kernels are taken.
_ADAPTED: dict[str, tuple[str, tuple[int, int], int, int, tuple[int, ...]]] = {
    "smoke": ("lenet", (96, 48), 2, 16, (1, 2)),
    "laptop": ("lenet", (3000, 1000), 40, 100, (1, 2, 5, 10, 40)),
    "paper": ("resnet18", (12_000, 3000), 20, 400, (1, 2, 5, 20)),
}


def _adapted(effort: str, run: Run) -> dict[str, Any]:
    """A network trained on one eigenfunction, and linear models with its kernels at some epochs trained on the same."""
    name, sizes, epochs, target, taken = _ADAPTED[effort]
    samples = images("cifar10", sizes, run)
    family = start_of(name, samples.shape)
    labels = eigenfunctions(family, samples, target, run).labels([target])
    recipe = dataclasses.replace(RECIPE, epochs=epochs)
    task = dataclasses.replace(
        samples, splits={split: (x, labels[split][0]) for split, (x, _) in samples.splits.items()}
    )
    kept = _checkpoints(family, task, recipe, taken, run)
    network = learned(family, samples, labels, recipe, run)
    line = learned(linearised(family), samples, labels, recipe, run)
    models = {epoch: learned(_unbiased(family, *kept[epoch], epoch), samples, labels, recipe, run) for epoch in taken}
    words = {"network": TITLES[name], "samples": samples.name, "target": target, "recipe": recipe.settings, "seed": 0}
    return {"network": network, "line": line, "models": models, "settings": words, "test": samples.sizes["test"]}


def _checkpoints(
    family: Family, task: Arrays, recipe: Recipe, taken: Sequence[int], run: Run
) -> dict[int, tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]:
    """Weights and buffers of a training after some epochs, kept in the run folder."""
    chosen = training_run(family, run)
    per_epoch = recipe.steps_per_epoch(task.sizes["train"])

    def work(key: str) -> Outcome:
        start = family.draw(1, seed=0, run=chosen).member(0)
        steps = [epoch * per_epoch for epoch in taken]
        walk = fit(start, task.to(chosen), recipe, seed=0, run=chosen, keep_at=steps)
        found: Outcome = {}
        for epoch, step in zip(taken, steps, strict=True):
            for kind, tensors in (("params", walk.at(step).params), ("buffers", walk.at(step).buffers)):
                found |= {f"{epoch}/{kind}/{name}": tensor.cpu() for name, tensor in tensors.items()}
        return found

    kept = dataclasses.replace(run.shared, precision=chosen.precision)
    trials = Trials(
        "checkpoints of a training",
        kept,
        code=work,
        at=task,
        family=family,
        task=task,
        recipe=recipe,
        epochs=list(taken),
    )
    stored = next(trials.outcomes(["weights"], work))

    def part(epoch: int, kind: str) -> dict[str, torch.Tensor]:
        prefix = f"{epoch}/{kind}/"
        return {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}

    return {epoch: (part(epoch, "params"), part(epoch, "buffers")) for epoch in taken}


def _unbiased(family: Family, params: Any, buffers: Any, epoch: int) -> Family:
    """``(θ − θ₀)ᵀ∇_θ f(x; θ*)`` with the weights of an epoch as θ*."""
    return family.mapped(
        functools.partial(_with_kernel_of, params=params, buffers=buffers),
        f"{family.name} with the kernel of epoch {epoch}",
    )


def _with_kernel_of(network: Network, params: Any, buffers: Any) -> Network:
    def fitted(tensors: Any, like: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensors[name].to(each).expand_as(each) for name, each in like.items()}

    start = network.with_params(network.params, fitted(buffers, network.buffers))
    return linearize(start, fitted(params, network.params), biased=False)


@figure(
    "4.11",
    title="A network, its linearisation at initialisation, and one with the kernel of the trained network",
    claims=[
        Claim(
            "The kernel of the trained network converges faster than that of initialisation: final loss of the latter over the "
            "former.",
            "final_training_loss_kernel_of_initialisation_over_that_of_the_trained_network",
            "at least",
            "also a faster convergence",
            1.5,
        ),
        Claim(
            "It generalises worse: test accuracy with the kernel of initialisation minus that of the trained network, points.",
            "test_accuracy_kernel_of_initialisation_minus_that_of_the_trained_network",
            "at least",
            "a much lower test accuracy",
            2.0,
        ),
    ],
    draw=lambda finding, dark: lines_figure(
        finding.curves_of("loss"),
        x="iteration",
        y="training loss",
        log_y=True,
        dark=dark,
    ),
)
def figure_411(effort: str, run: Run) -> Finding:
    """Training losses and test accuracies of the three."""
    found = _adapted(effort, run)
    last = found["models"][max(found["models"])]
    three = {
        "network": found["network"],
        "kernel of initialisation": found["line"],
        "kernel of the trained network": last,
    }
    ends = {key: float(each.curves[0, -5:].mean()) for key, each in three.items()}
    accuracy = {key: proportion(float(each.accuracy[0]), found["test"]).in_percent() for key, each in three.items()}
    quicker = Estimate.exact(ends["kernel of initialisation"] / max(ends["kernel of the trained network"], 1e-12))
    first, second = accuracy["kernel of initialisation"], accuracy["kernel of the trained network"]
    error = (first.standard_error**2 + second.standard_error**2) ** 0.5
    worse = Estimate.from_error(first.value - second.value, error, found["test"])
    statistics = {
        "final_training_loss_kernel_of_initialisation_over_that_of_the_trained_network": quicker.named(
            "final training loss, kernel of initialisation over that of the trained network"
        ),
        "test_accuracy_kernel_of_initialisation_minus_that_of_the_trained_network": worse.named(
            "test accuracy, kernel of initialisation minus that of the trained network", "points"
        ),
        **{f"test_accuracy_{snake(key)}": one.named(f"test accuracy, {key}", "%") for key, one in accuracy.items()},
    }
    arrays = {f"loss: {key}": np.stack([each.steps, each.curves[0]]) for key, each in three.items()}
    return Finding(
        statistics, arrays, found["settings"], ("Final loss: mean of the last twentieth of the iterations.",)
    )


@figure(
    "4.12",
    title="Linear models with the kernels of the first epochs",
    claims=[
        Claim(
            "The kernel rotates within the first epochs: share of the whole loss of accuracy that is reached by the third "
            "kernel taken (epoch 5 of 40 or 50).",
            "share_of_the_loss_of_accuracy_reached_early",
            "at least",
            "decays very rapidly",
            0.5,
        )
    ],
    draw=lambda finding, dark: _curves(finding, dark, "epoch that the kernel is taken from", "test accuracy, %"),
)
def figure_412(effort: str, run: Run) -> Finding:
    """Test accuracy of linear models against the epoch of their kernel."""
    found = _adapted(effort, run)
    epochs = [0, *found["models"]]
    accuracy = [float(found["line"].accuracy[0]), *(float(each.accuracy[0]) for each in found["models"].values())]
    fall = accuracy[0] - accuracy[-1]
    early = accuracy[0] - accuracy[min(3, len(accuracy) - 1)]
    reached = proportion(float(found["network"].accuracy[0]), found["test"]).in_percent()
    share = early / fall if fall > 0 else 0.0  # where nothing is lost, nothing is lost early
    statistics = {
        "loss_of_accuracy_from_the_first_to_the_last_kernel_points": Estimate.exact(100 * fall).named(
            "loss of accuracy from the first to the last kernel", "points"
        ),
        "test_accuracy_of_the_network": reached.named("test accuracy of the network", "%"),
        "share_of_the_loss_of_accuracy_reached_early": Estimate.exact(share).named(
            "share of the loss of accuracy reached early"
        ),
    }
    network = 100 * float(found["network"].accuracy[0])
    arrays = {
        "curve: linear models": np.stack([np.array(epochs, float), 100 * np.array(accuracy)]),
        "curve: the network": np.array([[0.0, float(max(epochs))], [network, network]]),
    }
    return Finding(statistics, arrays, found["settings"])
