"""Figures 4.7–4.10 and table 4.1: how training rotates the tangent kernel towards what is learned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from biascope.measures.kernel_rotation import KernelRotation, kernel_rotation
from biascope.papers.linearized2021.shared import (
    HALF,
    ON_IMAGES,
    PUBLISHED,
    RECIPE,
    TITLES,
    any_start,
    drawn_curves,
    images,
    per_network,
    settings_of,
    training_run,
)
from biascope.papers.selection import chosen, old_figure
from biascope.results.estimate import Estimate, Number, over, over_ratios, proportion, spearman
from biascope.results.figures import lines_figure
from biascope.results.finding import Finding
from biascope.results.wording import snake
from biascope.runs.run import Run
from biascope.tasks.task import Arrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure


# Training and test samples, epochs, samples of the kernel, seeds.
_ENERGY: dict[str, dict[str, tuple[tuple[int, int], int, int, int]]] = {
    "smoke": {"lenet": ((96, 48), 2, 64, 2)},
    "laptop": {"mlp": ((12_000, 2000), 40, 4000, 2), "lenet": ((12_000, 2000), 40, 4000, 2)},
    "paper": {
        "mlp": ((50_000, 10_000), 200, 12_000, 3),
        "lenet": ((50_000, 10_000), 200, 12_000, 3),
        "resnet18": ((50_000, 10_000), 10, 6000, 3),
    },
}


def _energies(name: str, effort: str, run: Run) -> tuple[KernelRotation, Arrays]:
    sizes, epochs, kernel, seeds = _ENERGY[effort][name]
    samples = images("cifar10", sizes, run)
    family = any_start(name, samples.shape)
    found = kernel_rotation(
        family,
        samples,
        positive=HALF,
        leading=min(50, kernel),
        energy=min(50, kernel),
        kernel_samples=min(kernel, samples.sizes["train"]),
        epochs=epochs,
        repeats=seeds,
        seed=0,
        run=training_run(family, run),
    )
    return found, samples


def _energy_settings(names: Sequence[str], effort: str, samples: Arrays) -> dict[str, Any]:
    settings = {"samples": samples.name, **settings_of(RECIPE, names), "seed": 0}
    for name in names:
        sizes, epochs, kernel, seeds = _ENERGY[effort][name]
        settings |= per_network(
            (name,),
            training_samples=min(sizes[0], samples.sizes["train"]),
            test_samples=min(sizes[1], samples.sizes["test"]),
            epochs=epochs,
            samples_of_the_kernel=kernel,
            seeds=seeds,
        )
    return settings


def _published_energy(names: Sequence[str]) -> dict[str, Any]:
    each = {"activation": ON_IMAGES, "training_samples": 50_000, "test_samples": 10_000, "epochs": 200}
    return {**PUBLISHED, **per_network(names, **each, samples_of_the_kernel=12_000)}


@old_figure(
    "table 4.1",
    networks=_ENERGY,
    title="Energy of the labels of CIFAR-2 on the first 50 eigenfunctions, before and after training",
    show=lambda finding, dark: drawn_curves(finding, dark, "epoch", "energy on the first 50, %"),
    published=_published_energy(("mlp", "lenet", "resnet18")),
)
def table_41(effort: str, run: Run) -> Finding:
    """Energy concentration of the labels, 12,000 training samples."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    samples: Arrays | None = None
    plans = chosen(_ENERGY[effort])
    for name, (_, _, kernel, _) in plans.items():
        found, samples = _energies(name, effort, run)
        title, key = TITLES[name], snake(TITLES[name])
        for when, column in (("start", 0), ("end", -1)):
            energy = found.energy[:, column]
            shown = _share(100 * energy, kernel)
            statistics[f"{key}_energy_at_the_{when}"] = shown.named(f"{title}: energy at the {when}", "%")
            norm = over(100 * energy**0.5, shared=100 * _share_error(energy, kernel) / (2 * energy.mean() ** 0.5))
            statistics[f"{key}_norm_at_the_{when}"] = norm.named(f"{title}: norm at the {when}", "%")
        accuracy = found.accuracy[:, -1]
        reached = over(
            100 * accuracy,
            shared=100 * proportion(accuracy.mean(), samples.sizes["test"]).standard_error,
            within=(0.0, 100.0),
        )
        statistics[f"{key}_test_accuracy"] = reached.named(f"{title}: test accuracy", "%")
        fitted = over(100 * found.train_accuracy[:, -1], within=(0.0, 100.0))
        statistics[f"{key}_training_accuracy"] = fitted.named(f"{title}: training accuracy", "%")
        arrays[f"curve: {title}"] = np.stack([found.epochs.astype(float), 100 * found.energy.mean(0)])
    assert samples is not None
    notes = (
        "Intervals join the spread over seeds and the error of finitely many samples.",
        "The thesis prints one 2 beside each bar of ‖Φy‖/‖y‖. It is read as the name of the norm: squared norms have two of them.",
        "The claims on norms of MLP and LeNet were written after their numbers had been seen, those of ResNet-18 before.",
    )
    return Finding(statistics, arrays, _energy_settings(list(plans), effort, samples), notes)


def _share_error(shares: np.ndarray, samples: int) -> float:
    """The error of a mean share of energy by finitely many samples, which all seeds have in common."""
    mean = float(np.clip(shares.mean(), 0.0, 1.0))
    return float((mean * (1 - mean) / samples) ** 0.5)


def _share(percent: np.ndarray, samples: int) -> Estimate:
    """A share of energy in percent by seed, with the spread over seeds and the error of as many samples."""
    return over(percent, shared=100 * _share_error(percent / 100, samples), within=(0.0, 100.0))


@old_figure(
    "4.7",
    title="Energy of the labels on the first 50 eigenfunctions along training, LeNet on CIFAR-2",
    show=lambda finding, dark: drawn_curves(finding, dark, "epoch", "energy on the first 50, %"),
    published=_published_energy(("lenet",)),
)
def figure_47(effort: str, run: Run) -> Finding:
    """Energy concentration at checkpoints."""
    found, samples = _energies("lenet", effort, run)
    energy, epochs = 100 * found.energy, found.epochs.astype(float)
    kernel = _ENERGY[effort]["lenet"][2]
    growth = over(energy[:, -1] - energy[:, 0], shared=2**0.5 * 100 * _share_error(found.energy[:, -1], kernel))
    rise = over([spearman(each, epochs) for each in energy], within=(-1.0, 1.0))
    fitted = over(100 * found.train_accuracy[:, -1], within=(0.0, 100.0))
    statistics = {
        "growth_of_the_energy": growth.named("growth of the energy", "points"),
        "rank_correlation_of_energy_and_epoch": rise.named("rank correlation of energy and epoch"),
        "lenet_training_accuracy": fitted.named("LeNet: training accuracy", "%"),
    }
    curves = {"curve: LeNet": np.stack([epochs, energy.mean(0)])}
    return Finding(statistics, curves, _energy_settings(("lenet",), effort, samples))


# Samples, epochs, eigenfunctions followed, targets learned (the last but one in figure 4.8), seeds.
_ROTATION: dict[str, tuple[tuple[int, int], int, int, tuple[int, ...], int]] = {
    "smoke": ((96, 48), 2, 24, (4, 16), 2),
    "laptop": ((3000, 1000), 25, 200, (10, 100), 3),
    "paper": ((50_000, 10_000), 100, 1000, (10, 500, 900), 3),
}
# Residuals of the eigenfunctions, relative to their eigenvalues: as where networks learn eigenfunctions (figure 4.2).
_RESIDUAL = 1e-4


def _published_rotation(name: str, single: bool) -> dict[str, Any]:
    each = {"activation": ON_IMAGES, "training_samples": 50_000, "test_samples": 10_000, "epochs": 100}
    return {
        **PUBLISHED,
        **per_network((name,), **each, eigenfunctions=1000),
        **({"targets": [500]} if single else {}),
    }


def rotation_targets(effort: str, *, single: bool) -> tuple[int, ...]:
    """The eigenfunction that a network learns in figure 4.8, or the first and the last of them in figures 4.9 and 4.10."""
    targets = _ROTATION[effort][3]
    if single:
        return targets[-2:-1] if len(targets) > 2 else targets[-1:]
    return targets[0], targets[-1]


def rotation(name: str, effort: str, run: Run, target: int, repeats: int | None = None) -> KernelRotation:
    """The rotation of a network's kernel towards one eigenfunction, for all seeds or the first of them."""
    sizes, epochs, leading, _, seeds = _ROTATION[effort]
    samples = images("cifar10", sizes, run)
    family = any_start(name, samples.shape)
    return kernel_rotation(
        family,
        samples,
        target=target,
        leading=leading,
        energy=min(50, leading),
        tolerance=_RESIDUAL,
        checkpoints=2,
        epochs=epochs,
        repeats=repeats or seeds,
        seed=0,
        run=training_run(family, run),
    )


def rotation_numbers(title: str, targets: Sequence[int], turned: Sequence[KernelRotation]) -> dict[str, Number]:
    """How much the alignments grew. Targets of a seed start from the same weights, so their mean is one sample.

    Args:
        title: Of the network.
        targets: The eigenfunctions that were learned, counted from 1.
        turned: The rotation of the kernel towards each of them.
    """
    rises = np.stack([found.target_growth[:, -1] for found in turned])  # (target, seed)
    others = [np.delete(found.growth[:, -1], target - 1, axis=1) for target, found in zip(targets, turned, strict=True)]
    median, largest, smallest = (
        np.stack([take(each, axis=1) for each in others]) for take in (np.nanmedian, np.nanmax, np.nanmin)
    )
    grown = np.stack([np.nanmean(np.where(np.isnan(each), np.nan, each > 1), axis=1) for each in others])
    kept = np.array(
        [
            [spearman(*np.delete(of_seed[[0, -1]], target - 1, axis=1)) for of_seed in found.alignment]
            for target, found in zip(targets, turned, strict=True)
        ]
    )
    fitted = np.stack([100 * found.train_accuracy[:, -1] for found in turned])

    def ratio(values: np.ndarray) -> Estimate:
        return over_ratios(np.exp(np.log(values).mean(0)))

    key = snake(title)
    statistics = {
        f"{key}_growth_of_the_target_over_the_largest_other": ratio(rises / largest).named(
            f"{title}: growth of the target over the largest of the others"
        ),
        f"{key}_growth_of_the_target_over_the_others": ratio(rises / median).named(
            f"{title}: growth of the target over the others"
        ),
        f"{key}_smallest_growth_of_the_others": over_ratios(smallest.min(0)).named(
            f"{title}: smallest growth of the others"
        ),
        f"{key}_share_of_the_others_that_grew": over(grown.mean(0), within=(0.0, 1.0)).named(
            f"{title}: share of the others that grew"
        ),
        f"{key}_rank_correlation_of_the_others_before_and_after": over(kept.mean(0), within=(-1.0, 1.0)).named(
            f"{title}: rank correlation of the others before and after"
        ),
        f"{key}_training_accuracy": over(fitted.mean(0), within=(0.0, 100.0)).named(f"{title}: training accuracy", "%"),
    }
    if len(targets) > 1:
        statistics[f"{key}_growth_of_the_last_over_the_first_target"] = over_ratios(rises[-1] / rises[0]).named(
            f"{title}: growth of the last over the first target"
        )
    return statistics


def _rotated(name: str, effort: str, run: Run, *, single: bool) -> Finding:
    sizes, epochs, leading, _, seeds = _ROTATION[effort]
    targets = rotation_targets(effort, single=single)
    samples, title = images("cifar10", sizes, run), TITLES[name]
    arrays: dict[str, np.ndarray] = {}
    turned = [rotation(name, effort, run, target) for target in targets]
    for target, found in zip(targets, turned, strict=True):
        arrays[f"curve: trained on φ_{target}"] = np.stack(
            [np.arange(1, leading + 1, dtype=float), np.exp(np.log(found.growth[:, -1]).mean(0))]
        )
    statistics = rotation_numbers(title, targets, turned)
    settings = {
        "samples": samples.name,
        **settings_of(RECIPE, (name,)),
        **per_network(
            (name,),
            training_samples=samples.sizes["train"],
            test_samples=samples.sizes["test"],
            epochs=epochs,
            eigenfunctions=leading,
            seeds=seeds,
        ),
        "targets": list(targets),
        "residual of the eigenfunctions": _RESIDUAL,
    }
    notes = (
        "Means over seeds, each with its own initial weights; ratios on a logarithmic scale.",
        "Several targets start from the same weights: each seed counts once, by its mean over targets.",
    )
    return Finding(statistics, arrays, settings, notes)


def _drawn_growth(finding: Finding, dark: bool) -> Figure:
    curves = finding.curves_of("curve")
    label = "growth of the alignment"
    return lines_figure(curves, x="index ρ of the eigenfunction", y=label, log_y=True, dark=dark)


@old_figure(
    "4.8",
    title="Alignment of the first eigenfunctions before and after training LeNet on one of them",
    show=_drawn_growth,
    published=_published_rotation("lenet", single=True),
)
def figure_48(effort: str, run: Run) -> Finding:
    """One target (the 500th in the thesis)."""
    return _rotated("lenet", effort, run, single=True)


@old_figure(
    "4.9",
    title="The same for several targets, MLP",
    show=_drawn_growth,
    published=_published_rotation("mlp", single=False),
)
def figure_49(effort: str, run: Run) -> Finding:
    """Several targets, MLP."""
    return _rotated("mlp", effort, run, single=False)


@old_figure(
    "4.10",
    title="The same for several targets, LeNet",
    show=_drawn_growth,
    published=_published_rotation("lenet", single=False),
)
def figure_410(effort: str, run: Run) -> Finding:
    """Several targets, LeNet."""
    return _rotated("lenet", effort, run, single=False)
