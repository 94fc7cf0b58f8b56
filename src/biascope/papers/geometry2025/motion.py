"""Figures 2, 3, 8, 12 and 13: the average geometry of networks in training, on images and on data made of the geometry itself."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from biascope.derivatives.matrices import flip
from biascope.measures.geometry_motion import GeometryMotion, geometry_motion
from biascope.papers.geometry2025.shared import TITLES, cifar_2, family_of, geometry_of, probe_scale, run_of
from biascope.results.claim import Claim, Finding, figure
from biascope.results.estimate import Estimate, Number, over_repeats
from biascope.results.figures import lines_figure
from biascope.results.wording import snake
from biascope.runs.run import Run
from biascope.tasks.directions import random_labels
from biascope.tasks.task import Arrays
from biascope.training.fit import DivergedError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOSSES = {"cross-entropy": None, "squared loss": "squared"}
EARLY = 10  # epochs


@dataclass(frozen=True)
class Plan:
    """Images of each class and test images, runs, epochs, networks that G is estimated from, inputs of each network."""

    each: int
    test: int
    runs: int
    epochs: int
    draws: int
    probes: int = 4


# Figure 2 by effort and network. Full batches must fit on a device: large networks have fewer images.
MOVING: dict[str, dict[str, Plan]] = {
    "smoke": {"lenet": Plan(24, 24, 3, 3, 16, 2)},
    "laptop": {"mlp": Plan(500, 1000, 8, 60, 1000), "lenet": Plan(500, 1000, 8, 60, 1000)},
    "paper": {
        "mlp": Plan(5000, 2000, 25, 100, 10_000, 16),
        "lenet": Plan(5000, 2000, 25, 100, 10_000, 16),
        "resnet18": Plan(750, 1000, 4, 60, 2000),
        "vit": Plan(750, 1000, 4, 60, 2000),
    },
}
RANDOM = {  # figure 8
    effort: {
        **{name: plan for name, plan in plans.items() if name != "vit"},
        **({"vgg11": Plan(750, 1000, 4, 60, 2000)} if effort == "paper" else {}),
    }
    for effort, plans in MOVING.items()
}


def _minimum(name: str) -> str:
    return "laptop" if name in ("mlp", "lenet") else "paper"


def _moving_claims(names: tuple[str, ...], losses: tuple[str, ...]) -> list[Claim]:
    claims = []
    for name in names:
        title = TITLES[name]
        if "cross-entropy" in losses:
            claims.append(
                Claim(
                    f"Early in training the geometry of {title} moves towards GSG: growth of Corr(G^t, GSG) by epoch {EARLY}.",
                    f"{snake(title)}_cross_entropy_early_growth_of_the_correlation_with_gsg",
                    "at least",
                    "an increasing correlation near the initialization",
                    0.0,
                    _minimum(name),
                )
            )
        if "squared loss" in losses:
            claims.append(
                Claim(
                    f"Under squared loss Corr(G^t, GSG) of {title} at first falls, as the sign of Δ says: growth in the first epoch.",
                    f"{snake(title)}_squared_loss_first_growth_of_the_correlation_with_gsg",
                    "at most",
                    "Δ is negative (theorems 3.1 and 3.2)",
                    0.0,
                    _minimum(name),
                )
            )
        lead = f"{snake(title)}_cross_entropy_lead_of_gsg_over_s"
        if name == "mlp":
            claims.append(
                Claim(
                    "For the MLP, GSG and S are the same: difference of the two correlations.", lead, "about", 0.0, 0.05
                )
            )
        else:
            words = f"For {title}, GSG is clearly above S: difference of the two correlations by epoch {EARLY}."
            claims.append(Claim(words, lead, "at least", "significantly larger", 0.05, _minimum(name)))
    return claims


def _moved(
    name: str, plan: Plan, data: Arrays, run: Run, *, rate: float, **settings: Any
) -> tuple[GeometryMotion, float]:
    """Training at the rate, or at the first of its tenths at which it stays finite; and that rate."""
    try:
        return _moved_at(rate, name, plan, data, run, **settings), rate
    except DivergedError:
        if rate < 1e-5:
            raise
        return _moved(name, plan, data, run, rate=rate / 10, **settings)


def _moved_at(rate: float, name: str, plan: Plan, data: Arrays, run: Run, **settings: Any) -> GeometryMotion:
    family = family_of(name, data.shape, outputs=1, images=True)
    return geometry_motion(
        family,
        data,
        runs=plan.runs,
        epochs=plan.epochs,
        checkpoints=10,
        probes=plan.probes,
        scale=1.0,  # as published for this figure
        geometry_draws=plan.draws,
        readout="first",
        seed=0,
        run=run_of(family, run),
        rate=rate,
        **settings,
    )


def _early(motion: GeometryMotion) -> int:
    """The checkpoint nearest to the epoch that counts as early, never the first."""
    return max(1, int(np.abs(motion.epochs - EARLY).argmin()))


def _drawn(finding: Finding, dark: bool) -> Figure:
    curves = {name: each for name, each in finding.curves_of("curve").items() if "squared" not in name}
    return lines_figure(curves, x="epoch", y="correlation", dark=dark)


def _motion_finding(
    plans: dict[str, Plan], run: Run, losses: tuple[str, ...], *, chance: bool, **settings: Any
) -> Finding:
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    words: dict[str, str] = {}
    for name, plan in plans.items():
        data = cifar_2(plan.each, plan.test, run)
        if chance:
            generator = torch.Generator().manual_seed(1)
            x, y = data.splits["train"]
            random = torch.randint(2, (len(y),), generator=generator)
            data = dataclasses.replace(data, splits={**data.splits, "train": (x, random)})
        words[name] = data.name
        for label in losses:
            slow = {"rate": 1e-3} if label == "squared loss" else {}  # at the published rate it diverges
            motion, rate = _moved(name, plan, data, run, loss=LOSSES[label], **(settings | slow))
            title, early = f"{TITLES[name]}, {label}", _early(motion)
            key, growth = snake(title), "growth of the correlation with GSG"
            accuracy = over_repeats(100 * motion.train_accuracy[-1], within=(0, 100))
            statistics |= {
                f"{key}_rate": Estimate.exact(rate).named(f"{title}: rate"),
                f"{key}_first_growth_of_the_correlation_with_gsg": motion.change("GSG", 1).named(
                    f"{title}: first {growth}"
                ),
                f"{key}_early_growth_of_the_correlation_with_gsg": motion.change("GSG", early).named(
                    f"{title}: early {growth}"
                ),
                f"{key}_lead_of_gsg_over_s": motion.lead(early).named(f"{title}: lead of GSG over S"),
                f"{key}_correlation_of_the_identity_with_gsg": Estimate.exact(float(motion.chance[0])).named(
                    f"{title}: correlation of the identity with GSG"
                ),
                f"{key}_training_accuracy_percent": accuracy.named(f"{title}: training accuracy", "%"),
            }
            for place, reference in ((0, "GSG"), (1, "S")):
                rows = np.stack([motion.epochs.astype(float), motion.plain[:, place]])
                arrays[f"curve: {TITLES[name]} with {reference}{'' if label == 'cross-entropy' else ', ' + label}"] = (
                    rows
                )
    plan_words = {name: dataclasses.asdict(plan) for name, plan in plans.items()}
    notes = (
        "Correlations as published, of the mean over runs; errors by leaving out one run at a time.",
        "Positive matrices always correlate: the correlation of the identity with GSG is what chance gives, not 0.02.",
        "G is estimated from so many draws; where these are fewer than the inputs' 3,072 numbers its noise makes GSG differ from S "
        "even for a network whose G is the identity.",
        "Squared loss is trained at a rate of 0.001: at the published 0.1 it diverges.",
        "Where training diverges at a rate, a tenth of it is taken, and so on: the rate stands among the numbers.",
    )
    return Finding(statistics, arrays, {"samples": words, "plan": plan_words, "seed": 0, **settings}, notes)


@figure(
    "2",
    title="Correlation of the geometry in training with GSG and with S (CIFAR-2)",
    claims=_moving_claims(("mlp", "lenet", "resnet18", "vit"), ("cross-entropy", "squared loss")),
    draw=_drawn,
)
def figure_2(effort: str, run: Run) -> Finding:
    """Full-batch gradient descent on true labels, by cross-entropy as published and by squared loss as in theory."""
    plans = MOVING[effort]
    return _motion_finding(plans, run, ("cross-entropy", "squared loss"), chance=False, optimiser="gd", rate=0.1)


@figure(
    "8",
    title="The same with random labels",
    claims=_moving_claims(("mlp", "lenet", "vgg11", "resnet18"), ("cross-entropy",)),
    draw=_drawn,
)
def figure_8(effort: str, run: Run) -> Finding:
    """Adam on random labels."""
    plans = RANDOM[effort]
    return _motion_finding(plans, run, ("cross-entropy",), chance=True, optimiser="adam", rate=1e-3, batch=10_000)


# Training samples, runs, epochs, networks that G is estimated from.
_COVARIANCES: dict[str, dict[str, tuple[int, int, int, int]]] = {
    "smoke": {"lenet": (64, 2, 2, 16)},
    "laptop": {"mlp": (2000, 3, 20, 2000), "lenet": (2000, 3, 30, 4000)},
    "paper": {
        "mlp": (10_000, 5, 50, 10_000),
        "lenet": (10_000, 5, 100, 10_000),
        "resnet18": (10_000, 2, 20, 4000),
        "vit": (10_000, 2, 20, 4000),
    },
}
SHAPE = (1, 32, 32)


def _covariance_claims(names: tuple[str, ...]) -> list[Claim]:
    claims = []
    for name in names:
        title = TITLES[name]
        claims += [
            Claim(
                f"The geometry of {title} moves faster on data of covariance G than of flip(G): ratio of mean velocities.",
                f"{snake(title)}_velocity_on_g_over_flip_g",
                "at least",
                "very little change compared to",
                2.0,
                _minimum(name),
            ),
            Claim(
                f"{title} fits random labels better on data of covariance G than of flip(G): difference of training accuracy.",
                f"{snake(title)}_training_accuracy_on_g_minus_flip_g",
                "at least",
                "much higher",
                10.0,
                _minimum(name),
            ),
        ]
    return claims


def _on_covariances(
    name: str, samples: int, runs: int, epochs: int, draws: int, run: Run, batch: int = 128
) -> dict[str, GeometryMotion]:
    """A network trained on random labels of data made of its own geometry, and of the same turned over."""
    family = family_of(name, SHAPE, outputs=1, images=True)
    scale = probe_scale(name)
    geometry = geometry_of(family, SHAPE, draws, run, scale=scale)
    found = {}
    for kind, covariance in (("G", geometry), ("flip(G)", flip(geometry))):
        data = random_labels(covariance, SHAPE, train=samples, test=16, seed=0, run=run)
        found[kind] = geometry_motion(
            family,
            Arrays({"train": tuple(part.cpu() for part in data.splits["train"])}),  # type: ignore[dict-item]
            runs=runs,
            epochs=epochs,
            checkpoints=8,
            probes=4,
            scale=scale,
            geometry_draws=draws,
            optimiser="sgd",
            rate=0.1,
            batch=batch,
            readout="first",
            seed=0,
            run=run_of(family, run),
        )
    return found


def _drawn_velocity(finding: Finding, dark: bool) -> Figure:
    return lines_figure(finding.curves_of("accuracy", 100), x="epoch", y="training accuracy, %", dark=dark)


@figure(
    "3",
    title="Velocity of the geometry and training accuracy on data of covariance G and of flip(G), random labels",
    claims=[
        *_covariance_claims(("lenet", "resnet18", "vit")),
        Claim(
            "The MLP, whose G is near the identity, does not care: difference of training accuracy.",
            "mlp_training_accuracy_on_g_minus_flip_g",
            "about",
            0.0,
            5.0,
        ),
    ],
    draw=_drawn_velocity,
)
def figure_3(effort: str, run: Run) -> Finding:
    """Random labels on Gaussian data of two covariances."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, plan in _COVARIANCES[effort].items():
        found, title = _on_covariances(name, *plan, run), TITLES[name]
        statistics |= _compared(title, found)
        for kind, motion in found.items():
            arrays[f"accuracy: {title}, {kind}"] = np.stack(
                [motion.epochs.astype(float), motion.train_accuracy.mean(1)]
            )
            arrays[f"velocity: {title}, {kind}"] = np.stack([motion.epochs[1:].astype(float), motion.velocity])
    settings = {"samples, runs, epochs, draws": {k: list(v) for k, v in _COVARIANCES[effort].items()}, "seed": 0}
    return Finding(statistics, arrays, settings, ("Velocity between checkpoints in geometric order, at fixed inputs.",))


def _compared(title: str, found: dict[str, GeometryMotion]) -> dict[str, Number]:
    key, last = snake(title), {kind: 100 * motion.train_accuracy[-1] for kind, motion in found.items()}
    ratio = found["G"].velocity.mean() / max(float(found["flip(G)"].velocity.mean()), 1e-12)
    gap = 100 * (found["G"].train_accuracy[-1] - found["flip(G)"].train_accuracy[-1])
    return {
        f"{key}_velocity_on_g_over_flip_g": Estimate.exact(float(ratio)).named(f"{title}: velocity on G over flip(G)"),
        **{
            f"{key}_training_accuracy_on_{snake(kind)}_percent": over_repeats(accuracy, within=(0, 100)).named(
                f"{title}: training accuracy on {kind}", "%"
            )
            for kind, accuracy in last.items()
        },
        f"{key}_training_accuracy_on_g_minus_flip_g": over_repeats(gap).named(
            f"{title}: training accuracy on G minus flip(G)", "points"
        ),
    }


# Network, training sizes, runs, epochs, networks that G is estimated from.
_GROWING: dict[str, tuple[str, tuple[int, ...], int, int, int]] = {
    "smoke": ("lenet", (32, 64), 2, 2, 16),
    "laptop": ("lenet", (500, 2000, 8000), 2, 20, 4000),
    "paper": ("resnet18", (5000, 20_000, 80_000), 2, 10, 4000),
}


def _gap_by_size(effort: str, run: Run, *, growing_batch: bool) -> Finding:
    name, sizes, runs, epochs, draws = _GROWING[effort]
    statistics: dict[str, Number] = {}
    gaps, accuracies = [], []
    for size in sizes:
        batch = 128 * size // sizes[0] if growing_batch else 128
        found = _on_covariances(name, size, runs, epochs, draws, run, batch=batch)
        statistics |= _compared(f"{TITLES[name]}, {size:,} samples", found)
        gaps.append(100 * (found["G"].train_accuracy[-1] - found["flip(G)"].train_accuracy[-1]))
        accuracies.append([found[kind].train_accuracy[-1].mean() for kind in ("G", "flip(G)")])
    change = over_repeats(gaps[-1] - gaps[0])
    statistics["gap_at_the_largest_size_minus_gap_at_the_smallest"] = change.named(
        "gap at the largest size minus gap at the smallest", "points"
    )
    arrays = {
        f"accuracy: {TITLES[name]}, {kind}": np.stack([np.array(sizes, float), np.array(accuracies)[:, column]])
        for column, kind in enumerate(("G", "flip(G)"))
    }
    settings = {"network": name, "sizes": list(sizes), "runs": runs, "epochs": epochs, "draws": draws, "seed": 0}
    return Finding(statistics, arrays, settings)


def _drawn_sizes(finding: Finding, dark: bool) -> Figure:
    return lines_figure(
        finding.curves_of("accuracy", 100), x="training samples", y="training accuracy, %", log_x=True, dark=dark
    )


@figure(
    "12",
    title="Training accuracy on covariances G and flip(G) for more and more samples, fixed batches",
    claims=[
        Claim(
            "With more samples the gap between G and flip(G) closes: gap at the largest size minus that at the smallest, points.",
            "gap_at_the_largest_size_minus_gap_at_the_smallest",
            "at most",
            "the effects are vanishing on the train accuracy",
            -5.0,
            "paper",
        )
    ],
    draw=_drawn_sizes,
)
def figure_12(effort: str, run: Run) -> Finding:
    """More samples, hence more iterations."""
    return _gap_by_size(effort, run, growing_batch=False)


@figure(
    "13",
    title="The same with batches that grow with the data",
    claims=[
        Claim(
            "With batches that grow with the data the gap stays: gap at the largest size minus that at the smallest, points.",
            "gap_at_the_largest_size_minus_gap_at_the_smallest",
            "at least",
            "reverting to the behavior predicted",
            -5.0,
            "paper",
        )
    ],
    draw=_drawn_sizes,
)
def figure_13(effort: str, run: Run) -> Finding:
    """As many iterations for every size."""
    return _gap_by_size(effort, run, growing_batch=True)
