"""Figures 2, 3, 8, 12 and 13: the average geometry of networks in training, on images and on data made of the geometry itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from biascope.derivatives.matrices import flip
from biascope.measures.geometry_motion import GeometryMotion, geometry_motion
from biascope.papers.geometry2025.shared import (
    PROBES,
    PUBLISHED_LOOP,
    TITLES,
    activations,
    cifar_2,
    family_of,
    for_each,
    geometry_of,
    geometry_settings,
    learned,
    probe_scale,
    published_activations,
    published_geometry,
    run_of,
    titles,
)
from biascope.results.claim import Claim, Finding, Trained, figure
from biascope.results.estimate import Estimate, Number, jackknife, over_repeats
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


def _fitted(name: str, loss: str) -> tuple[Trained, ...]:
    return (learned(f"{snake(f'{TITLES[name]}, {loss}')}_training_accuracy_percent"),)


def _rising_claims(names: Sequence[str], of: str) -> list[Claim]:
    return [
        Claim(
            f"Early in training the geometry of {TITLES[name]} moves towards GSG: growth of Corr(G^t, GSG) by epoch {EARLY}.",
            f"{snake(TITLES[name])}_cross_entropy_early_growth_of_the_correlation_with_gsg",
            "at least",
            "an increasing correlation near the initialization",
            0.0,
            _minimum(name),
            of=of,
            kind="paper",
            trained=_fitted(name, "cross-entropy"),
        )
        for name in names
    ]


def _significance_claims(names: Sequence[str]) -> list[Claim]:
    return [
        Claim(
            f"Corr(G^t, GSG) of {TITLES[name]} by epoch {EARLY} is above that of random vectors.",
            f"{snake(TITLES[name])}_cross_entropy_early_correlation_with_gsg",
            "at least",
            "0.02 for random vectors; we consider the correlations significant",
            0.02,
            _minimum(name),
            of="correlations_are_significant",
            kind="paper",
            trained=_fitted(name, "cross-entropy"),
        )
        for name in names
    ]


def _falling_claims(names: Sequence[str]) -> list[Claim]:
    """The sign that theorems 3.1 and 3.2 give; the paper does not look at it."""
    return [
        Claim(
            f"Under squared loss Corr(G^t, GSG) of {TITLES[name]} at first falls, as the sign of Δ says: growth in the first epoch.",
            f"{snake(TITLES[name])}_squared_loss_first_growth_of_the_correlation_with_gsg",
            "at most",
            "Δ is negative (theorems 3.1 and 3.2)",
            0.0,
            _minimum(name),
            trained=_fitted(name, "squared loss"),
        )
        for name in names
    ]


def _lead_claim(name: str, comparator: str, published: float | str, bound: float, effort: str, **terms: Any) -> Claim:
    words = (
        "For the MLP, GSG and S are the same: difference of the two correlations."
        if name == "mlp"
        else f"For {TITLES[name]}, GSG is clearly above S: difference of the two correlations by epoch {EARLY}."
    )
    lead = f"{snake(TITLES[name])}_cross_entropy_lead_of_gsg_over_s"
    return Claim(words, lead, comparator, published, bound, effort, trained=_fitted(name, "cross-entropy"), **terms)


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
    plans: dict[str, Plan], run: Run, losses: tuple[str, ...], *, chance: bool, optimiser: str, rate: float
) -> Finding:
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    words: dict[str, str] = {}
    reached: dict[str, float] = {}
    for name, plan in plans.items():
        data = cifar_2(plan.each, plan.test, run)
        if chance:
            generator = torch.Generator().manual_seed(1)
            x, y = data.splits["train"]
            random = torch.randint(2, (len(y),), generator=generator)
            data = dataclasses.replace(data, splits={**data.splits, "train": (x, random)})
        words[name] = data.name
        for label in losses:
            slow = 1e-3 if label == "squared loss" else rate  # at the published rate it diverges
            motion, taken = _moved(
                name, plan, data, run, loss=LOSSES[label], optimiser=optimiser, rate=slow, batch=10_000
            )
            if label == "cross-entropy":
                reached[name] = taken
            title, early = f"{TITLES[name]}, {label}", _early(motion)
            key, growth = snake(title), "growth of the correlation with GSG"
            accuracy = over_repeats(100 * motion.train_accuracy[-1], within=(0, 100))
            statistics |= {
                f"{key}_rate": Estimate.exact(taken).named(f"{title}: rate"),
                f"{key}_first_growth_of_the_correlation_with_gsg": motion.change("GSG", 1).named(
                    f"{title}: first {growth}"
                ),
                f"{key}_early_growth_of_the_correlation_with_gsg": motion.change("GSG", early).named(
                    f"{title}: early {growth}"
                ),
                f"{key}_early_correlation_with_gsg": motion.level("GSG", early).named(
                    f"{title}: early correlation with GSG"
                ),
                f"{key}_lead_of_gsg_over_s": motion.lead(early).named(f"{title}: lead of GSG over S"),
                # GSG is known from random draws.
                f"{key}_correlation_of_the_identity_with_gsg": Estimate(float(motion.chance[0])).named(
                    f"{title}: correlation of the identity with GSG"
                ),
                f"{key}_training_accuracy_percent": accuracy.named(f"{title}: training accuracy", "%"),
            }
            for place, reference in ((0, "GSG"), (1, "S")):
                rows = np.stack([motion.epochs.astype(float), motion.plain[:, place]])
                arrays[f"curve: {TITLES[name]} with {reference}{'' if label == 'cross-entropy' else ', ' + label}"] = (
                    rows
                )
    notes = (
        "Correlations as published, of the mean over runs; errors by leaving out one run at a time.",
        "Positive matrices always correlate: the correlation of the identity with GSG is what chance gives, not 0.02.",
        "G is estimated from so many draws; where these are fewer than the inputs' 3,072 numbers its noise makes GSG differ from S "
        "even for a network whose G is the identity.",
        "Squared loss is trained at a rate of 0.001: at the published 0.1 it diverges.",
        "Where training diverges at a rate, a tenth of it is taken, and so on: the rate stands among the numbers.",
    )
    settings = moving_settings(plans, optimiser, reached) | for_each("samples", words)
    return Finding(statistics, arrays, settings, notes)


def moving_settings(plans: dict[str, Plan], optimiser: str, rates: dict[str, float]) -> dict[str, Any]:
    """Settings of figures 2 and 8."""
    settings: dict[str, Any] = {"networks": titles(plans), "optimiser": optimiser}
    settings |= {"schedule": "constant"}
    settings |= {"clip": "none", "weight decay": 0.0, "batch": "all samples", "outputs": 1, "seed": 0}
    settings |= {"momentum": 0.9} if optimiser == "gd" else {}
    settings |= for_each("rate", rates)
    for setting, field in (("images of each class", "each"), ("runs", "runs"), ("epochs", "epochs")):
        settings |= for_each(setting, {name: getattr(plan, field) for name, plan in plans.items()})
    settings |= activations(plans) | for_each("draws of G", {name: plan.draws for name, plan in plans.items()})
    settings |= for_each("inputs per draw of G", {name: plan.probes for name, plan in plans.items()})
    settings |= for_each("spread of the inputs for G", dict.fromkeys(plans, 1.0))
    return settings


def _published_motion(names: Sequence[str], settings: dict[str, Any]) -> dict[str, Any]:
    """The authors' settings for figures 2 and 8; the text has no weight decay."""
    return {
        "networks": titles(names),
        "schedule": "linear",
        "clip": 5.0,
        "weight decay": 5e-4,
        "batch": "all samples",
        "outputs": 2,
        **for_each("images of each class", dict.fromkeys(names, 5000)),
        **for_each("runs", dict.fromkeys(names, 25)),
        **published_activations(names, "ReLU"),
        **for_each("draws of G", dict.fromkeys(names, 100_000)),
        **for_each("inputs per draw of G", dict.fromkeys(names, 128)),
        **for_each("spread of the inputs for G", dict.fromkeys(names, 1.0)),
        **settings,
    }


_MOVED, _MOVED_AT_RANDOM = ("mlp", "lenet", "resnet18", "vit"), ("mlp", "lenet", "vgg11", "resnet18")


@figure(
    "2",
    title="Correlation of the geometry in training with GSG and with S (CIFAR-2)",
    claims=[
        *_rising_claims(_MOVED, "geometry_approaches_projection"),
        *_significance_claims(_MOVED),
        # Laptop effort has fewer draws than inputs have numbers: the noise of G alone then makes GSG differ from S.
        _lead_claim("mlp", "about", 0.0, 0.05, "paper", of="mlp_projection_equals_covariance", kind="paper"),
        *(
            _lead_claim(
                name,
                "at least",
                "significantly larger",
                0.0,
                "paper",
                of="projection_exceeds_covariance",
                kind="paper",
            )
            for name in ("lenet", "resnet18", "vit")
        ),
        *_falling_claims(_MOVED),
    ],
    draw=_drawn,
    published=_published_motion(
        _MOVED,
        {
            "optimiser": "gd",
            "momentum": 0.9,
            **for_each("rate", {name: 0.01 if name == "mlp" else 0.1 for name in _MOVED}),
            **for_each("epochs", dict.fromkeys(_MOVED, 100)),
        },
    ),
)
def figure_2(effort: str, run: Run) -> Finding:
    """Full-batch gradient descent on true labels, by cross-entropy as published and by squared loss as in theory."""
    return _motion_finding(MOVING[effort], run, tuple(LOSSES), chance=False, optimiser="gd", rate=0.1)


@figure(
    "8",
    title="The same with random labels",
    claims=[
        *_rising_claims(_MOVED_AT_RANDOM, "random_labels_move_geometry_alike"),
        _lead_claim("mlp", "about", 0.0, 0.05, "paper"),
        *(
            _lead_claim(name, "at least", "significantly larger", 0.05, "paper")
            for name in ("lenet", "vgg11", "resnet18")
        ),
    ],
    draw=_drawn,
    published=_published_motion(
        _MOVED_AT_RANDOM,
        {
            "optimiser": "adam",
            **for_each("rate", {name: 1e-4 if name == "resnet18" else 1e-3 for name in _MOVED_AT_RANDOM}),
            **for_each("epochs", {name: 500 if name == "lenet" else 200 for name in _MOVED_AT_RANDOM}),
        },
    ),
)
def figure_8(effort: str, run: Run) -> Finding:
    """Adam on random labels."""
    return _motion_finding(RANDOM[effort], run, ("cross-entropy",), chance=True, optimiser="adam", rate=1e-3)


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


def _covariance_claims(names: Sequence[str]) -> list[Claim]:
    claims = []
    for name in names:
        title, key = TITLES[name], snake(TITLES[name])
        # A low accuracy on flip(G) is what the paper finds. A network that has one answer for all samples has not trained.
        evidence = (
            learned(f"{key}_training_accuracy_on_g_percent"),
            learned(f"{key}_runs_on_flip_g_with_more_than_one_answer_percent", chance=0.0),
        )
        claims += [
            Claim(
                f"The geometry of {title} moves faster on data of covariance G than of flip(G): ratio of mean velocities.",
                f"{key}_velocity_on_g_over_flip_g",
                "at least",
                "very little change compared to",
                1.0,
                _minimum(name),
                of="flipped_covariance_moves_geometry_less",
                kind="paper",
                trained=evidence,
            ),
            Claim(
                f"{title} fits random labels better on data of covariance G than of flip(G): difference of training accuracy.",
                f"{key}_training_accuracy_on_g_minus_flip_g",
                "at least",
                "the effects of GIH on the train accuracy",
                0.0,
                _minimum(name),
                of="flipped_covariance_is_fitted_worse",
                kind="paper",
                trained=evidence,
            ),
        ]
    return claims


def _on_covariances(
    name: str, samples: int, runs: int, epochs: int, draws: int, run: Run, batch: int = 128
) -> tuple[dict[str, GeometryMotion], float]:
    """A network trained on random labels of data made of its own geometry, and of the same turned over; the share of class 1."""
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
    return found, float(data.splits["train"][1].double().mean())


def _published_covariances(names: Sequence[str], settings: dict[str, Any]) -> dict[str, Any]:
    """The authors' settings for random labels on Gaussian data."""
    return {
        "networks": titles(names),
        **for_each("epochs", {name: 100 if name == "lenet" else 50 for name in names}),
        **for_each("runs", dict.fromkeys(names, 25)),
        **{name: value for name, value in PUBLISHED_LOOP.items() if name != "batch"},
        "weight decay": 0.0,
        "outputs": 2,
        "labels": "half 0, half 1",
        "velocity": "between consecutive epochs",
        **published_activations(names, "ReLU"),
        **published_geometry(names, 1e-3),
        **settings,
    }


def _settings_on_covariances(
    runs: dict[str, int], epochs: dict[str, int], draws: dict[str, int], settings: dict[str, Any]
) -> dict[str, Any]:
    """The same of a run."""
    return {
        "networks": titles(runs),
        **for_each("epochs", epochs),
        **for_each("runs", runs),
        "optimiser": "sgd",
        "rate": 0.1,
        "schedule": "constant",
        "momentum": 0.9,
        "clip": "none",
        "weight decay": 0.0,
        "outputs": 1,
        "labels": "by chance",
        "velocity": "between 8 checkpoints in geometric order",
        **activations(runs),
        **geometry_settings(draws, PROBES, {name: probe_scale(name) for name in runs}),
        **settings,
        "seed": 0,
    }


def _drawn_velocity(finding: Finding, dark: bool) -> Figure:
    return lines_figure(finding.curves_of("accuracy", 100), x="epoch", y="training accuracy, %", dark=dark)


def settings_3(effort: str) -> dict[str, Any]:
    """Settings of figure 3 at an effort."""
    plans = _COVARIANCES[effort]
    runs, epochs, draws = ({name: plan[place] for name, plan in plans.items()} for place in (1, 2, 3))
    samples = for_each("samples", {name: plan[0] for name, plan in plans.items()})
    return _settings_on_covariances(runs, epochs, draws, {**samples, "batch": 128})


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
            trained=tuple(learned(f"mlp_training_accuracy_on_{kind}_percent") for kind in ("g", "flip_g")),
        ),
    ],
    draw=_drawn_velocity,
    published=_published_covariances(_MOVED, {**for_each("samples", dict.fromkeys(_MOVED, 10_000)), "batch": 128}),
)
def figure_3(effort: str, run: Run) -> Finding:
    """Random labels on Gaussian data of two covariances."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, plan in _COVARIANCES[effort].items():
        (found, share), title = _on_covariances(name, *plan, run), TITLES[name]
        statistics |= _compared(title, found, share)
        for kind, motion in found.items():
            arrays[f"accuracy: {title}, {kind}"] = np.stack(
                [motion.epochs.astype(float), motion.train_accuracy.mean(1)]
            )
            arrays[f"velocity: {title}, {kind}"] = np.stack([motion.epochs[1:].astype(float), motion.velocity])
    notes = ("Velocity between checkpoints in geometric order, at fixed inputs.",)
    return Finding(statistics, arrays, settings_3(effort), notes)


def _velocity_ratio(found: dict[str, GeometryMotion]) -> Estimate:
    """The mean velocity on G over that on flip(G), with the jackknife's error over runs, which start from the same weights."""

    def ratio(one: np.ndarray, two: np.ndarray) -> np.ndarray:
        return np.asarray(one.mean(0) / np.maximum(two.mean(0), 1e-12))

    one, two = found["G"], found["flip(G)"]
    value = float(ratio(one.velocity, two.velocity))
    error = jackknife(value, ratio(one.velocity_left_out, two.velocity_left_out).tolist()).standard_error
    return Estimate.from_error(value, error, one.runs)


def _compared(title: str, found: dict[str, GeometryMotion], share: float) -> dict[str, Number]:
    key, last = snake(title), {kind: 100 * motion.train_accuracy[-1] for kind, motion in found.items()}
    gap = 100 * (found["G"].train_accuracy[-1] - found["flip(G)"].train_accuracy[-1])
    # With one answer for all samples, accuracy is the share of a class.
    answers = 100.0 * ~np.isclose(np.abs(last["flip(G)"] - 50), abs(100 * share - 50), rtol=0, atol=1e-4)
    return {
        f"{key}_velocity_on_g_over_flip_g": _velocity_ratio(found).named(f"{title}: velocity on G over flip(G)"),
        f"{key}_runs_on_flip_g_with_more_than_one_answer_percent": Estimate(float(answers.mean())).named(
            f"{title}: runs on flip(G) with more than one answer", "%"
        ),
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
    gaps, accuracies, reached = [], [], []
    for size in sizes:
        batch = 128 * size // sizes[0] if growing_batch else 128
        found, share = _on_covariances(name, size, runs, epochs, draws, run, batch=batch)
        statistics |= _compared(f"{TITLES[name]}, {size:,} samples", found, share)
        gaps.append(100 * (found["G"].train_accuracy[-1] - found["flip(G)"].train_accuracy[-1]))
        accuracies.append([found[kind].train_accuracy[-1].mean() for kind in ("G", "flip(G)")])
        reached.append(over_repeats(100 * found["G"].train_accuracy[-1], within=(0, 100)))
    statistics |= {
        "gap_at_the_largest_size_minus_gap_at_the_smallest": over_repeats(gaps[-1] - gaps[0]).named(
            "gap at the largest size minus gap at the smallest", "points"
        ),
        "gap_at_the_largest_size": over_repeats(gaps[-1]).named("gap at the largest size", "points"),
        "training_accuracy_on_g_at_the_smallest_size": reached[0].named(
            "training accuracy on G at the smallest size", "%"
        ),
        "training_accuracy_on_g_at_the_largest_size": reached[-1].named(
            "training accuracy on G at the largest size", "%"
        ),
    }
    arrays = {
        f"accuracy: {TITLES[name]}, {kind}": np.stack([np.array(sizes, float), np.array(accuracies)[:, column]])
        for column, kind in enumerate(("G", "flip(G)"))
    }
    return Finding(statistics, arrays, settings_by_size(effort, growing_batch))


def settings_by_size(effort: str, growing_batch: bool) -> dict[str, Any]:
    """Settings of figures 12 and 13 at an effort."""
    name, sizes, runs, epochs, draws = _GROWING[effort]
    batches = [128 * size // sizes[0] if growing_batch else 128 for size in sizes]
    return _settings_on_covariances(
        {name: runs}, {name: epochs}, {name: draws}, {"samples": list(sizes), "batch": batches}
    )


_SIZES = [10_000, 20_000, 40_000, 60_000, 80_000, 100_000]
_FITTED = tuple(learned(f"training_accuracy_on_g_at_the_{which}_size") for which in ("smallest", "largest"))


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
            0.0,
            "paper",
            of="accuracy_gap_closes_with_samples",
            kind="paper",
            trained=_FITTED,
        )
    ],
    draw=_drawn_sizes,
    published=_published_covariances(("resnet18",), {"samples": _SIZES, "batch": [128] * len(_SIZES)}),
)
def figure_12(effort: str, run: Run) -> Finding:
    """More samples, hence more iterations."""
    return _gap_by_size(effort, run, growing_batch=False)


@figure(
    "13",
    title="The same with batches that grow with the data",
    claims=[
        Claim(
            "With batches that grow with the data there is a gap at the largest size too, in points.",
            "gap_at_the_largest_size",
            "at least",
            "reverting to the behavior predicted",
            0.0,
            "paper",
            of="accuracy_gap_stays_at_fixed_iterations",
            kind="paper",
            trained=_FITTED,
        ),
        Claim(
            "With batches that grow with the data the gap stays: gap at the largest size minus that at the smallest, points.",
            "gap_at_the_largest_size_minus_gap_at_the_smallest",
            "at least",
            "reverting to the behavior predicted",
            -5.0,
            "paper",
            of="accuracy_gap_stays_at_fixed_iterations",
            trained=_FITTED,
        ),
    ],
    draw=_drawn_sizes,
    published=_published_covariances(
        ("resnet18",), {"samples": _SIZES, "batch": [128 * size // 10_000 for size in _SIZES]}
    ),
)
def figure_13(effort: str, run: Run) -> Finding:
    """As many iterations for every size."""
    return _gap_by_size(effort, run, growing_batch=True)
