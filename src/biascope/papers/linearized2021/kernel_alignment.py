"""Figures 4.7–4.10 and table 4.1: how training rotates the tangent kernel towards what is learned."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from biascope.measures.kernel_rotation import KernelRotation, kernel_rotation
from biascope.papers.linearized2021.shared import (
    HALF,
    PERCENT,
    SMALL,
    TITLES,
    any_start,
    planned,
    planned_images,
    training_run,
)
from biascope.results.estimate import Estimate, over, over_ratios, proportion, spearman
from biascope.results.finding import FigureOfPaper, Tell, figure
from biascope.results.plan import Row
from biascope.results.shows import curves
from biascope.results.wording import snake
from biascope.runs.run import Run
from biascope.tasks.task import Arrays


def _samples(plan: Row, name: str, run: Run, tell: Tell) -> Arrays:
    """Images planned for a network; they are the same for all networks."""
    samples = planned_images(plan, name, run, tell)
    tell.settings["samples"] = samples.name
    return samples


def _energies(plan: Row, name: str, samples: Arrays, run: Run) -> KernelRotation:
    """The energy of the labels on the first 50 eigenfunctions along training."""
    family, kernel = any_start(name, samples.shape), plan["samples of the kernel"][name]
    return kernel_rotation(
        family,
        samples,
        positive=HALF,
        leading=min(50, kernel),
        energy=min(50, kernel),
        kernel_samples=min(kernel, samples.sizes["train"]),
        epochs=plan["epochs"][name],
        repeats=plan["seeds"][name],
        seed=0,
        run=training_run(family, run),
    )


def _tell_curve(tell: Tell, title: str, followed: KernelRotation) -> None:
    """The energy against the epoch, and the training accuracy at the end."""
    tell.array(title, np.stack([followed.epochs.astype(float), 100 * followed.energy.mean(0)]), kind="curve")
    fitted = over(100 * followed.train_accuracy[:, -1], within=PERCENT)
    tell.about(title)("training accuracy", fitted, "%")


def _share_error(shares: np.ndarray, samples: int) -> float:
    """The error of a mean share of energy in points by finitely many samples, which all seeds have in common."""
    mean = float(np.clip(shares.mean(), 0.0, 1.0))
    return 100 * float((mean * (1 - mean) / samples) ** 0.5)


_energy_plan = functools.partial(
    planned,
    ("training samples", "test samples", "epochs", "samples of the kernel", "seeds"),
    smoke={"lenet": (96, 48, 2, 64, 2)},
    laptop=dict.fromkeys(SMALL, (12_000, 2000, 40, 4000, 2)),
    paper={**dict.fromkeys(SMALL, (50_000, 10_000, 200, 12_000, 3)), "resnet18": (50_000, 10_000, 10, 6000, 3)},
    published=dict.fromkeys(TITLES, (50_000, 10_000, 200, 12_000, None)),
    ours={"seed": 0},
)
_drawn_energies = curves("curve", x="epoch", y="energy on the first 50, %")


@figure(
    "table 4.1",
    title="Energy of the labels of CIFAR-2 on the first 50 eigenfunctions, before and after training",
    plan=_energy_plan(alone=True),
    show=_drawn_energies,
)
def table_41(plan: Row, run: Run, tell: Tell) -> None:
    """Energy concentration of the labels, 12,000 training samples."""
    for name in plan.networks:
        samples, of = _samples(plan, name, run, tell), tell.about(TITLES[name])
        followed = _energies(plan, name, samples, run)
        _tell_curve(tell, TITLES[name], followed)
        for when, column in (("start", 0), ("end", -1)):
            energy = followed.energy[:, column]
            error = _share_error(energy, plan["samples of the kernel"][name])
            of(f"energy at the {when}", over(100 * energy, shared=error, within=PERCENT), "%")
            of(f"norm at the {when}", over(100 * energy**0.5, shared=error / (2 * energy.mean() ** 0.5)), "%")
        accuracy = followed.accuracy[:, -1]
        error = 100 * proportion(accuracy.mean(), samples.sizes["test"]).standard_error
        of("test accuracy", over(100 * accuracy, shared=error, within=PERCENT), "%")
    tell.note(
        "Intervals join the spread over seeds and the error of finitely many samples.",
        "The thesis prints one 2 beside each bar of ‖Φy‖/‖y‖. It is read as the name of the norm: squared norms have two of them.",
        "The claims on norms of MLP and LeNet were written after their numbers had been seen, those of ResNet-18 before.",
    )


@figure(
    "4.7",
    title="Energy of the labels on the first 50 eigenfunctions along training, LeNet on CIFAR-2",
    plan=_energy_plan(only="lenet"),
    show=_drawn_energies,
)
def figure_47(plan: Row, run: Run, tell: Tell) -> None:
    """Energy concentration at checkpoints."""
    followed = _energies(plan, "lenet", _samples(plan, "lenet", run, tell), run)
    _tell_curve(tell, "LeNet", followed)
    energy, epochs = 100 * followed.energy, followed.epochs.astype(float)
    error = 2**0.5 * _share_error(followed.energy[:, -1], plan["samples of the kernel"]["lenet"])
    tell("growth of the energy", over(energy[:, -1] - energy[:, 0], shared=error), "points")
    rises = [spearman(of_seed, epochs) for of_seed in energy]
    tell("rank correlation of energy and epoch", over(rises, within=(-1.0, 1.0)))


def rotated(plan: Row, run: Run, tell: Tell) -> None:
    """How the kernel's alignments change when a network learns one eigenfunction of it, for each of the targets."""
    (name,) = plan["epochs"]
    samples, leading = _samples(plan, name, run, tell), plan["eigenfunctions"][name]
    family = any_start(name, samples.shape)
    rotations = []
    for target in plan["targets"]:
        rotation = kernel_rotation(
            family,
            samples,
            target=target,
            leading=leading,
            energy=min(50, leading),
            tolerance=plan["residual of the eigenfunctions"],
            checkpoints=2,
            epochs=plan["epochs"][name],
            repeats=plan["seeds"][name],
            seed=0,
            run=training_run(family, run),
        )
        growth = np.exp(np.log(rotation.growth[:, -1]).mean(0))
        tell.array(f"trained on φ_{target}", np.stack([np.arange(1.0, leading + 1), growth]), kind="curve")
        rotations.append(rotation)
    tell_rotations(tell.about(TITLES[name]), plan["targets"], rotations)
    tell.note(
        "Means over seeds, each with its own initial weights; ratios on a logarithmic scale.",
        "Several targets start from the same weights: each seed counts once, by its mean over targets.",
    )


def tell_rotations(tell: Tell, targets: Sequence[int], rotations: Sequence[KernelRotation]) -> None:
    """Tell how much alignments grew. Targets of a seed start from the same weights, so their mean is one sample.

    Args:
        tell: About the network.
        targets: The eigenfunctions that were learned, counted from 1.
        rotations: The rotation of the kernel towards each of them.
    """
    pairs = list(zip(targets, rotations, strict=True))
    rises = np.stack([rotation.target_growth[:, -1] for rotation in rotations])  # (target, seed)
    others = [np.delete(rotation.growth[:, -1], target - 1, axis=1) for target, rotation in pairs]
    median, largest, smallest = (
        np.stack([take(growth, axis=1) for growth in others]) for take in (np.nanmedian, np.nanmax, np.nanmin)
    )
    grown = [np.nanmean(np.where(np.isnan(growth), np.nan, growth > 1), axis=1) for growth in others]
    kept = [
        [spearman(*np.delete(of_seed[[0, -1]], target - 1, axis=1)) for of_seed in rotation.alignment]
        for target, rotation in pairs
    ]
    fitted = [100 * rotation.train_accuracy[:, -1] for rotation in rotations]

    def ratio(values: np.ndarray) -> Estimate:
        return over_ratios(np.exp(np.log(values).mean(0)))

    label, key = "growth of the target over the largest of the others", "growth_of_the_target_over_the_largest_other"
    tell(label, ratio(rises / largest), key=f"{snake(tell.subject)}_{key}")
    tell("growth of the target over the others", ratio(rises / median))
    tell("smallest growth of the others", over_ratios(smallest.min(0)))
    tell("share of the others that grew", over(np.mean(grown, 0), within=(0.0, 1.0)))
    tell("rank correlation of the others before and after", over(np.mean(kept, 0), within=(-1.0, 1.0)))
    tell("training accuracy", over(np.mean(fitted, 0), within=PERCENT), "%")
    if len(targets) > 1:
        tell("growth of the last over the first target", over_ratios(rises[-1] / rises[0]))


def _figure_on_rotations(number: str, title: str, name: str, targets: Sequence[list[int] | None]) -> FigureOfPaper:
    """The figure on a network that learns some eigenfunctions: those at smoke, laptop and paper effort, and the authors'."""
    plan = planned(
        ("training samples", "test samples", "epochs", "eigenfunctions", "seeds"),
        smoke={name: (96, 48, 2, 24, 2)},
        laptop={name: (3000, 1000, 25, 200, 3)},
        paper={name: (50_000, 10_000, 100, 1000, 3)},
        published={name: (50_000, 10_000, 100, 1000, None)},
        ours={"residual of the eigenfunctions": 1e-4},  # as where networks learn eigenfunctions (figure 4.2)
        also={"targets": targets},
    )
    show = curves("curve", x="index ρ of the eigenfunction", y="growth of the alignment", log_y=True)
    return figure(number, title=title, plan=plan, show=show)(rotated)


_ONE, _SEVERAL = ([16], [100], [500], [500]), ([4, 16], [10, 100], [10, 900], None)
figure_48 = _figure_on_rotations(
    "4.8", "Alignment of the first eigenfunctions before and after training LeNet on one of them", "lenet", _ONE
)
figure_49 = _figure_on_rotations("4.9", "The same for several targets, MLP", "mlp", _SEVERAL)
figure_410 = _figure_on_rotations("4.10", "The same for several targets, LeNet", "lenet", _SEVERAL)
