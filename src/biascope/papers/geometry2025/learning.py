"""Figures 4, 10, 11 and 14: labels along early and late eigenvectors of a network's average geometry."""

# m networks · g points of a grid · p places in the order of eigenvectors · r repeats · D input size

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from biascope.derivatives.matrices import data_covariance, seen_through
from biascope.families.family import Family
from biascope.papers.geometry2025.pictures import panels_figure
from biascope.papers.geometry2025.shared import (
    PROBES,
    PUBLISHED_LOOP,
    TITLES,
    activations,
    cifar_name,
    error_of_a_difference,
    error_of_test_samples,
    family_of,
    for_each,
    geometry_of,
    geometry_settings,
    learned,
    least,
    loop_of,
    over_trainings,
    probe_scale,
    published_activations,
    published_geometry,
    run_of,
    titles,
)
from biascope.results.claim import Claim, Finding, Trained, figure
from biascope.results.estimate import Estimate, Number, bootstrapped, spearman
from biascope.results.wording import snake
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.directions import isotropic, labelled_along
from biascope.tasks.samples import samples_of
from biascope.tasks.task import Arrays, Task
from biascope.training.recipe import Recipe
from biascope.training.sweep import Course, Trial, trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHAPE = (1, 32, 32)
THREE = ("linear", "quadratic", "sinusoidal")
RELEASED = ("linear", "quadratic", "released sinusoidal")  # as in the authors' code
# The protocol of the 2020 paper with the authors' rate and momentum; the length is that of each figure.
RECIPE = Recipe("sgd", rate=0.1, schedule="linear", momentum=0.9, clip=0.5, batch=128)
PROTOCOL: dict[str, dict[str, Any]] = {
    "smoke": {"train": 128, "test": 64, "epochs": 1, "longer": 1},
    "laptop": {"train": 10_000, "test": 2000, "epochs": 20, "longer": 20},
    "paper": {
        "train": 10_000,
        "test": 2000,
        "epochs": 20,
        "longer": 50,
    },  # longer: of sinusoidal labels, as in the text
}
DRAWS: dict[str, dict[str, int]] = {
    "smoke": {"mlp": 8, "lenet": 8},
    "laptop": {"mlp": 2000, "lenet": 4000},
    "paper": {"mlp": 10_000, "lenet": 10_000, "resnet18": 4000, "vit": 4000},
}
ONE_EACH = "Intervals are over independent trainings. Where a point is one training, its spread is unknown."
ENOUGH_DIRECTIONS = 8  # for the spread of a rank correlation: of fewer directions in order, resampling never changes it


def basis_of(name: str, draws: int, run: Run, **settings: Any) -> Tensor:
    """Eigenvectors of a network's average geometry on the images of ``SHAPE``."""
    family = family_of(name, SHAPE, **settings)
    scale = probe_scale(name)
    return eigenvectors(
        lambda: geometry_of(family, SHAPE, draws, run, scale=scale),
        run,
        family,
        SHAPE,
        of="G",
        draws=draws,
        scale=scale,
    )


def eigenvectors(matrix: Callable[[], Tensor], run: Run, family: Family, at: Any, **parts: Any) -> Tensor:
    """Of a symmetric matrix, as rows ``(D, D)`` by falling eigenvalue; kept, since their rounding depends on the number of threads.

    Trainings along them are told apart by their content: computed afresh, they would not be found again.
    """

    def work(key: str) -> Outcome:
        vectors: Tensor = torch.linalg.eigh(matrix().double())[1]
        return {"vectors": vectors.T.flip(0).float().cpu().contiguous()}

    trials = Trials("eigenvectors", run.shared, code=(work, geometry_of), at=at, family=family, **parts)
    return next(trials.outcomes(["by falling eigenvalue"], work))["vectors"]


@dataclass(frozen=True)
class Along(Course):
    """Trainings along the rows of a basis: a kind of trial is a labelling, a learning rate and a repeat, a member a row."""

    vectors: Tensor
    train: int
    test: int
    epochs: int
    longer: int

    @property
    def inputs(self) -> Any:
        """The shape of one, unless there are images."""
        return SHAPE

    def recipe(self, kind: str) -> Recipe:
        """Of the rate that the kind says."""
        labelling, rate, _ = kind.split(", ")
        epochs = self.longer if "sinusoidal" in labelling else self.epochs
        return dataclasses.replace(RECIPE, rate=float(rate.split()[1]), epochs=epochs)

    def repeat(self, kind: str) -> int:
        """As said in the kind."""
        return int(kind.split(", ")[2].split()[1])


@dataclass(frozen=True)
class _Isotropic(Along):
    """Gaussian data labelled along a direction."""

    epsilon: dict[str, float] = field(default_factory=dict)

    def task(self, kind: str, members: Sequence[int], seed: int, run: Run) -> Task:
        """One member per direction."""
        labelling = kind.split(", ")[0]
        return isotropic(
            self.vectors[list(members)],
            SHAPE,
            labelling=labelling,
            epsilon=self.epsilon[labelling],
            train=self.train,
            test=self.test,
            seed=seed,
            run=run,
        )


@dataclass(frozen=True)
class _Images(Along):
    """Images labelled along a direction."""

    images: Arrays = dataclasses.field(default_factory=lambda: Arrays({}))

    @property
    def inputs(self) -> Arrays:
        """The images."""
        return self.images

    def task(self, kind: str, members: Sequence[int], seed: int, run: Run) -> Task:
        """One member per direction."""
        return labelled_along(
            self.images.to(run), self.vectors[list(members)], labelling=kind.split(", ")[0], seed=seed
        )


def accuracies(
    family: Family,
    course: Along,
    places: Sequence[int],
    run: Run,
    *,
    labellings: Sequence[str] = THREE,
    rates: Sequence[float] = (RECIPE.rate,),
    repeats: int = 1,
) -> dict[tuple[str, float, str], np.ndarray]:
    """Accuracies in percent, ``(r, p)`` by labelling, rate and split."""
    trials = {
        (labelling, rate): [
            [Trial(f"{labelling}, rate {rate!r}, repeat {repeat}", place) for place in places]
            for repeat in range(repeats)
        ]
        for labelling in labellings
        for rate in rates
    }
    flat = [trial for table in trials.values() for row in table for trial in row]
    found = trained(family, course, flat, seed=0, run=run_of(family, run, "bfloat16"), label=family.name)
    return {
        (*key, split): np.array([[100 * float(found[each][f"accuracy/{split}"]) for each in row] for row in table])
        for key, table in trials.items()
        for split in course.splits
    }


def difference(first: np.ndarray, second: np.ndarray, shared: int | None = None) -> Estimate:
    """Mean difference of accuracies in percent, one of each per repeat.

    Args:
        first: By repeat.
        second: By repeat.
        shared: Number of test samples, if all repeats have the same.
    """
    common = 0.0 if shared is None else error_of_a_difference(float(first.mean()), float(second.mean()), shared)
    return over_trainings(first - second, common=common)


def _falling(
    title: str, places: Sequence[int], accuracy: np.ndarray, fitted: np.ndarray, shared: int | None = None
) -> dict[str, Number]:
    """How test accuracy ``(r, p)`` falls from early to late directions, and the training accuracy along the best one."""
    lost = difference(accuracy[:, 0], accuracy[:, -1], shared)
    best = over_trainings(fitted[:, fitted.mean(0).argmax()], within=(0.0, 100.0))
    found = {
        f"{snake(title)}_first_minus_last_accuracy": lost.named(f"{title}: first minus last accuracy", "points"),
        _best_fit(title): best.named(f"{title}: training accuracy along the best direction", "%"),
    }
    if len(places) > 4:
        order = accuracy.mean(0), np.array(places, float)
        fall = bootstrapped(spearman, *order) if len(places) >= ENOUGH_DIRECTIONS else Estimate(spearman(*order))
        found[f"{snake(title)}_rank_correlation_of_accuracy_and_index"] = fall.named(
            f"{title}: rank correlation of accuracy and index"
        )
    return found


def _best_fit(title: str) -> str:
    """The key of the training accuracy along the best direction."""
    return f"{snake(title)}_training_accuracy_along_the_best_direction"


def _sharper(title: str, tables: dict[str, np.ndarray], shared: int | None = None) -> dict[str, Number]:
    """How much more of its best accuracy (above 50 %) linear labelling keeps on average over the directions than another."""
    kept: dict[str, np.ndarray] = {}
    errors: dict[str, float] = {}
    for labelling, accuracy in tables.items():
        mean = accuracy.mean(0) - 50
        best = float(mean.max())
        if best > 5:  # else nothing was learned anywhere, and there is nothing to keep
            kept[labelling] = (accuracy.mean(1) - 50) / best  # (r,)
            each = [0.0 if shared is None else error_of_test_samples(value, shared) for value in accuracy.mean(0)]
            errors[labelling] = math.hypot(*each) / len(each) / best
    return {
        f"{snake(title)}_share_kept_linear_minus_{snake(other)}": over_trainings(
            kept["linear"] - kept[other], common=math.hypot(errors["linear"], errors[other])
        ).named(f"{title}: share kept, linear minus {other}")
        for other in kept
        if "linear" in kept and other != "linear"
    }


def places_of(count: int, size: int = math.prod(SHAPE)) -> list[int]:
    """Indices from first to last, denser at the beginning."""
    wanted = np.unique(np.round(np.geomspace(1, size, count)).astype(int) - 1)
    return [int(place) for place in wanted]


def drawn_along(finding: Finding, dark: bool) -> Figure:
    """Accuracy by the number of the eigenvector, from 1, a panel for each network."""
    panels: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for key, (places, accuracy) in finding.arrays.items():
        network, _, curve = key.partition(", ")
        panels.setdefault(network, {})[curve] = (places + 1, accuracy)
    return panels_figure(panels, x="eigenvector number", y="test accuracy, %", dark=dark)


_FOUR = ("mlp", "lenet", "resnet18", "vit")
_LARGER_GAP = "a larger generalization gap at small eigenvalues"
_CORRELATED = "correlated with the eigenvalue in all tasks"
Gate = Callable[[str, str], tuple[Trained, ...]]


def _along_best(subject: str, labelling: str) -> tuple[Trained, ...]:
    """Networks trained along the best direction, by training accuracy."""
    return (learned(_best_fit(f"{subject}, {labelling}")),)


def _told_apart(subject: str, labelling: str) -> tuple[Trained, ...]:
    """Networks trained along some direction, since directions differ: for runs that recorded no training accuracy."""
    statistic = f"{snake(f'{subject}, {labelling}')}_highest_minus_lowest_accuracy"
    return (Trained(statistic, chance=0.0, best=50.0),)


def _all_fitted(subject: str, labelling: str) -> tuple[Trained, ...]:
    """Networks trained along all directions: the paper trains until all labels are fitted."""
    return (learned(f"{snake(subject)}_lowest_train_accuracy"),)


def _claims_of_falling(
    networks: Mapping[str, str],
    labellings: Sequence[str],
    published: str,
    *,
    of: str,
    gate: Gate,
    part: str = "",
    kind: str = "paper",
) -> list[Claim]:
    """Accuracy falls from the first to the last direction, for networks with the least effort of each."""
    return [
        Claim(
            f"{TITLES[name]}{part}, {labelling} labels: accuracy falls from the first to the last direction, in points.",
            f"{snake(f'{TITLES[name]}{part}, {labelling}')}_first_minus_last_accuracy",
            "at least",
            published,
            0.0,
            effort,
            of=of,
            kind=kind,
            trained=gate(f"{TITLES[name]}{part}", labelling),
        )
        for name, effort in networks.items()
        for labelling in labellings
    ]


def _claims_of_order(name: str, labellings: Sequence[str], *, of: str, gate: Gate) -> list[Claim]:
    """Accuracy falls with the number of the eigenvector."""
    title = TITLES[name]
    return [
        Claim(
            f"{title}, {labelling} labels: accuracy falls with the index, by rank correlation.",
            f"{snake(f'{title}, {labelling}')}_rank_correlation_of_accuracy_and_index",
            "at most",
            "a clear correlation between the eigenvalues and the test accuracy",
            0.0,
            "paper",
            of=of,
            kind="paper",
            trained=gate(title, labelling),
        )
        for labelling in labellings
    ]


def _claims_of_sharpness(name: str, others: Sequence[str]) -> list[Claim]:
    """The fall is sharper for more complex labels; that can be asked only where accuracy falls for both."""
    title = TITLES[name]
    return [
        Claim(
            f"{title}: the fall is sharper for {other} than for linear labels: share of the best accuracy above chance that is "
            "kept on average, linear minus the other.",
            f"{snake(title)}_share_kept_linear_minus_{snake(other)}",
            "at least",
            "a 'sharper' impact on generalization for more complex decision boundaries",
            0.0,
            of="complex_labels_fall_earlier",
            kind="paper",
            trained=tuple(
                Trained(f"{snake(f'{title}, {labelling}')}_first_minus_last_accuracy", chance=0.0, best=50.0)
                for labelling in ("linear", other)
            ),
        )
        for other in others
    ]


def _published_along(names: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The authors' settings for labels along directions."""
    epochs = {name: 50 if name == "lenet" else 30 for name in names}
    return {
        "networks": titles(names),
        **for_each("epochs", epochs),
        **for_each("epochs of sinusoidal labels", epochs),
        **for_each("runs", dict.fromkeys(names, 5)),
        **PUBLISHED_LOOP,
        "weight decay": 0.0,
        **published_activations(names, "GELU"),
        **published_geometry(names, 1e-3),
        **settings,
    }


def _settings_along(
    names: Sequence[str], epochs: Mapping[str, tuple[int, int]], runs: Mapping[str, int], draws: Mapping[str, int]
) -> dict[str, Any]:
    """The same of a run: epochs of a network, and those with sinusoidal labels."""
    return {
        "networks": titles(names),
        **for_each("epochs", {name: epochs[name][0] for name in names}),
        **for_each("epochs of sinusoidal labels", {name: epochs[name][1] for name in names}),
        **for_each("runs", runs),
        **loop_of(RECIPE),
        **activations(names),
        **geometry_settings({name: draws[name] for name in names}, PROBES, {name: probe_scale(name) for name in names}),
        "seed": 0,
    }


# Figures 4 and 11a: training samples, test samples, places, epochs, epochs of sinusoidal labels, repeats.
_IMAGES: dict[str, dict[str, tuple[int, int, int, int, int, int]]] = {
    "smoke": {"lenet": (64, 32, 2, 1, 1, 1)},
    "laptop": {"lenet": (5000, 2000, 5, 40, 40, 1)},
    "paper": {
        "lenet": (10_000, 10_000, 12, 50, 50, 3),
        "resnet18": (10_000, 10_000, 2, 30, 30, 1),
        "vit": (10_000, 10_000, 2, 30, 30, 1),
    },
}


def _images(sizes: tuple[int, int], run: Run) -> Arrays:
    """Standardised images of CIFAR-10, or of as much of it as the data folder has."""
    name, root = cifar_name(run)
    found = samples_of(name, sizes=sizes, root=root)
    if sizes[0] > 128:
        return found
    # At smoke, 16 × 16 pixels: all eigenvectors of matrices of side 3072 take half a minute on one core.
    halved = {split: (torch.nn.functional.avg_pool2d(x, 2), y) for split, (x, y) in found.splits.items()}
    return dataclasses.replace(found, splits=halved, name=f"{found.name}, at half their size")


def _on_images(
    name: str, plan: tuple[int, int, int, int, int, int], draws: int, run: Run, part: str = "", **settings: Any
) -> tuple[dict[str, Number], dict[str, np.ndarray], str]:
    """Images labelled along eigenvectors of G S G."""
    train, test, count, epochs, longer, repeats = plan
    images, title = _images((train, test), run), f"{TITLES[name]}{part}"
    family = family_of(name, images.shape, images=True, **settings)

    def product() -> Tensor:
        geometry = geometry_of(family, images.shape, draws, run, scale=probe_scale(name))
        return seen_through(geometry, data_covariance(images.splits["train"][0].to(geometry.device)))

    vectors = eigenvectors(
        product, run, family, images, of="G S G", draws=draws, images=images, scale=probe_scale(name)
    )
    places = places_of(count, len(vectors))
    sizes = (images.sizes["train"], images.sizes["test"])
    course = _Images(vectors, *sizes, epochs, longer, images)
    labellings = (*THREE, "released sinusoidal") if repeats > 1 else THREE
    found = accuracies(family, course, places, run, labellings=labellings, repeats=repeats)
    tables = {labelling: found[labelling, RECIPE.rate, "test"] for labelling in labellings}
    statistics, arrays = _sharper(title, tables, sizes[1]), {}
    for labelling, table in tables.items():
        fitted = found[labelling, RECIPE.rate, "train"]
        statistics |= _falling(f"{title}, {labelling}", places, table, fitted, sizes[1])
        arrays[f"{title}, {labelling}"] = np.stack([np.array(places, float), table.mean(0)])
    lowest = min(float(found[labelling, RECIPE.rate, "train"].min()) for labelling in labellings)
    statistics[f"{snake(title)}_lowest_train_accuracy"] = Estimate(lowest).named(f"{title}: lowest train accuracy", "%")
    return statistics, arrays, images.name


def settings_4(effort: str) -> dict[str, Any]:
    """Settings of figure 4 at an effort."""
    plans = _IMAGES[effort]
    settings = _settings_along(
        list(plans),
        {n: each[3:5] for n, each in plans.items()},
        {n: each[5] for n, each in plans.items()},
        DRAWS[effort],
    )
    (train,) = {each[0] for each in plans.values()}
    settings |= {"training samples": train, "label noise": 0.2}
    settings |= {"sinusoidal labels": "sin(x̄ᵀu), x̄ standardised by channel"}
    settings |= for_each("directions", {name: f"{each[2]}, denser at the beginning" for name, each in plans.items()})
    return settings


@figure(
    "4",
    title="Test accuracy on CIFAR-10 images labelled along eigenvectors of G S G",
    claims=[
        *_claims_of_falling(
            {"lenet": "laptop", "resnet18": "paper", "vit": "paper"},
            ("linear", "quadratic"),
            _LARGER_GAP,
            of="accuracy_falls_along_projection",
            gate=_all_fitted,
        ),
        *_claims_of_falling(
            {"lenet": "paper"},
            ("released sinusoidal",),
            _LARGER_GAP,
            of="accuracy_falls_along_projection",
            gate=_all_fitted,
        ),
        *_claims_of_falling(  # as printed, and not as in the authors' code
            {"lenet": "laptop", "resnet18": "paper", "vit": "paper"},
            ("sinusoidal",),
            _LARGER_GAP,
            of="accuracy_falls_along_projection",
            gate=_all_fitted,
            kind="ours",
        ),
        *_claims_of_order("lenet", RELEASED, of="accuracy_falls_along_projection", gate=_all_fitted),
        *_claims_of_sharpness("lenet", ("quadratic", "released sinusoidal")),
        *(
            Claim(
                f"{TITLES[name]} reaches 100 % train accuracy on all labellings: the lowest, in percent.",
                f"{snake(TITLES[name])}_lowest_train_accuracy",
                "at least",
                "all models will reach 100 % train accuracy",
                99.0,
                "paper",
                of="training_labels_are_fitted",
                kind="paper",
                trained=_all_fitted(TITLES[name], ""),
            )
            for name in ("lenet", "resnet18", "vit")
        ),
    ],
    draw=drawn_along,
    published=_published_along(
        ("lenet", "resnet18", "vit"),
        {
            "training samples": 10_000,
            "label noise": 0.2,
            "sinusoidal labels": "sin(π z), z = xᵀu standardised",
            **for_each("directions", dict.fromkeys(("lenet", "resnet18", "vit"), "every 30th")),
        },
    ),
)
def figure_4(effort: str, run: Run) -> Finding:
    """Linear, quadratic and sinusoidal labels, with label noise."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    words = ""
    for name, plan in _IMAGES[effort].items():
        numbers, pictures, words = _on_images(name, plan, DRAWS[effort][name], run)
        statistics |= numbers
        arrays |= pictures
    notes = (
        ONE_EACH,
        "The text standardises every channel before the sine, which gives many waves along early eigenvectors and none along late "
        "ones; the authors' code standardises xᵀu, with as many waves along any: 'released sinusoidal'.",
        "The least eigenvalues of G S G are below the rounding of its entries: the last eigenvectors are some basis of what is left.",
    )
    return Finding(statistics, arrays, settings_4(effort) | {"samples": words}, notes)


# Figure 10: places, repeats.
_ISOTROPIC: dict[str, dict[str, tuple[int, int]]] = {
    "smoke": {"lenet": (2, 1)},
    "laptop": {"mlp": (4, 1), "lenet": (6, 1)},
    "paper": {"mlp": (12, 3), "lenet": (16, 3), "resnet18": (2, 1), "vit": (2, 1)},
}


def _epsilons(name: str) -> dict[str, float]:
    """ε of the isotropic task, as printed."""
    waves = 5.0 if name in ("resnet18", "vit") else 2.1
    return {"linear": 0.9, "quadratic": 2.0, "sinusoidal": waves, "released sinusoidal": waves}


def _isotropic_settings(names: Sequence[str], train: int, test: int) -> dict[str, Any]:
    """Those of the isotropic task."""
    return {
        "training samples": train,
        "test samples": test,
        "noise": 1.0,
        "sinusoidal labels": "sin(xᵀu)",
        "ε of linear labels": 0.9,
        "ε of quadratic labels": 2.0,
        **for_each("ε of sinusoidal labels", {name: _epsilons(name)["sinusoidal"] for name in names}),
    }


def _isotropic(
    name: str,
    effort: str,
    run: Run,
    *,
    draws: int = 0,
    network: dict[str, Any] | None = None,
    **sizes: Any,
) -> tuple[Family, _Isotropic]:
    """A network, and the course of its trainings along eigenvectors of G."""
    chosen = network or {}
    basis = basis_of(name, draws or DRAWS[effort][name], run, **chosen)
    course = _Isotropic(basis, **{**PROTOCOL[effort], **sizes}, epsilon=_epsilons(name))
    return family_of(name, SHAPE, **chosen), course


def settings_10(effort: str) -> dict[str, Any]:
    """Settings of figure 10 at an effort."""
    plans, protocol = _ISOTROPIC[effort], PROTOCOL[effort]
    epochs = dict.fromkeys(plans, (protocol["epochs"], protocol["longer"]))
    settings = _settings_along(list(plans), epochs, {name: each[1] for name, each in plans.items()}, DRAWS[effort])
    settings |= _isotropic_settings(list(plans), protocol["train"], protocol["test"])
    settings |= for_each("directions", {name: f"{each[0]}, denser at the beginning" for name, each in plans.items()})
    return settings


@figure(
    "10",
    title="Test accuracy on isotropic data labelled along eigenvectors of G",
    claims=[
        *_claims_of_falling(
            {"lenet": "laptop", "vit": "paper"},
            ("linear", "quadratic"),
            _CORRELATED,
            of="accuracy_falls_along_geometry",
            gate=_told_apart,
        ),
        *_claims_of_falling(
            {"lenet": "paper"},
            ("released sinusoidal",),
            _CORRELATED,
            of="accuracy_falls_along_geometry",
            gate=_told_apart,
        ),
        *_claims_of_falling(
            {"resnet18": "paper"},
            ("linear", "quadratic"),
            _CORRELATED,
            of="accuracy_falls_along_geometry",
            gate=_along_best,
        ),
        *(
            claim
            for networks, gate in (
                ({"lenet": "laptop", "vit": "paper"}, _told_apart),
                ({"resnet18": "paper"}, _along_best),
            )
            for claim in _claims_of_falling(  # labels of ours: the printed formula is that of linear ones
                networks, ("sinusoidal",), _CORRELATED, of="accuracy_falls_along_geometry", gate=gate, kind="ours"
            )
        ),
        *_claims_of_order("lenet", RELEASED, of="accuracy_falls_along_geometry", gate=_told_apart),
        *(
            Claim(
                f"The MLP is flat for {labelling} labels: highest minus lowest accuracy over the directions, in points.",
                f"mlp_{snake(labelling)}_highest_minus_lowest_accuracy",
                "at most",
                "generalization in all directions with similar quality",
                10.0,
                of="mlp_learns_every_direction",
                kind="paper",
                trained=_along_best("MLP", labelling),
            )
            for labelling in RELEASED
        ),
    ],
    draw=drawn_along,
    published=_published_along(
        _FOUR,
        {
            "training samples": 10_000,
            "test samples": 2000,
            "noise": 1.0,
            "sinusoidal labels": "sin(π xᵀu/ε)",
            "ε of linear labels": 0.9,
            "ε of quadratic labels": 2.0,
            **for_each("ε of sinusoidal labels", {"mlp": 5.0, "lenet": 2.2, "resnet18": 5.0, "vit": 2.2}),
            **for_each("directions", dict.fromkeys(_FOUR, "every 10th")),
        },
    ),
)
def figure_10(effort: str, run: Run) -> Finding:
    """Linear, quadratic and sinusoidal labels along the directions of each network's own geometry."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, (count, repeats) in _ISOTROPIC[effort].items():
        title, (family, course) = TITLES[name], _isotropic(name, effort, run)
        places = places_of(count)
        labellings = (*THREE, "released sinusoidal") if repeats > 1 else THREE
        found = accuracies(family, course, places, run, labellings=labellings, repeats=repeats)
        tables = {labelling: found[labelling, RECIPE.rate, "test"] for labelling in labellings}
        statistics |= _sharper(title, tables)
        for labelling, table in tables.items():
            subject = f"{title}, {labelling}"
            statistics |= _falling(subject, places, table, found[labelling, RECIPE.rate, "train"])
            high, low = int(table.mean(0).argmax()), int(table.mean(0).argmin())
            spread = difference(table[:, high], table[:, low])
            statistics[f"{snake(subject)}_highest_minus_lowest_accuracy"] = spread.named(
                f"{subject}: highest minus lowest accuracy", "points"
            )
            arrays[subject] = np.stack([np.array(places, float), table.mean(0)])
    notes = (
        ONE_EACH,
        "Sinusoidal labels are sgn(sin(xᵀu) + b), with ε as printed; the authors' code has sgn(sin(π·xᵀu/ε) + b).",
    )
    return Finding(statistics, arrays, settings_10(effort), notes)


SMALL = {"hidden": (100, 68)}  # 49,978 parameters for three channels, 49,678 for one; the paper prints no widths
# Figure 11: training and test samples, places, epochs, epochs of sinusoidal labels, repeats, draws; for images and for noise.
_LARGE: dict[str, tuple[int, int, int, int, int, int, int]] = {
    "smoke": (128, 64, 2, 1, 1, 1, 8),
    "laptop": (50_000, 2000, 3, 4, 4, 1, 4000),
    "paper": (50_000, 10_000, 8, 20, 50, 1, 10_000),
}


def settings_11(effort: str) -> dict[str, Any]:
    """Settings of figure 11 at an effort."""
    train, test, count, epochs, longer, repeats, draws = _LARGE[effort]
    settings = _settings_along(["lenet"], {"lenet": (epochs, longer)}, {"lenet": repeats}, {"lenet": draws})
    settings |= _isotropic_settings(["lenet"], train, test)
    settings |= {"hidden": list(SMALL["hidden"]), "label noise": 0.2}
    settings |= {
        f"directions on {which}": f"{count}, denser at the beginning" for which in ("images", "isotropic data")
    }
    return settings


@figure(
    "11",
    title="LeNet with as many training samples as parameters: (a) images along eigenvectors of G S G, (b) isotropic data along those "
    "of G",
    claims=[
        claim
        for part, gate in ((" on images", _all_fitted), (" on isotropic data", _along_best))
        for labellings, kind in ((("linear", "quadratic"), "paper"), (("sinusoidal",), "ours"))
        for claim in _claims_of_falling(
            {"lenet": "laptop"},
            labellings,
            "still a preference to learn the features more aligned with the geometry",
            of="preference_without_overparameterisation",
            gate=gate,
            part=part,
            kind=kind,
        )
    ],
    draw=drawn_along,
    published=_published_along(
        ("lenet",),
        {
            "training samples": 50_000,
            "noise": 1.0,
            "label noise": 0.2,
            "sinusoidal labels": "sin(π xᵀu/ε)",
            "ε of linear labels": 0.9,
            "ε of quadratic labels": 2.0,
            **for_each("ε of sinusoidal labels", {"lenet": 2.2}),
            "directions on images": "every 30th",
            "directions on isotropic data": "every 10th",
        },
    ),
)
def figure_11(effort: str, run: Run) -> Finding:
    """About 50,000 parameters and 50,000 samples."""
    train, test, count, epochs, longer, repeats, draws = _LARGE[effort]
    statistics, arrays, words = _on_images("lenet", _LARGE[effort][:6], draws, run, " on images", **SMALL)
    sizes = {"train": train, "test": test, "epochs": epochs, "longer": longer}
    family, course = _isotropic("lenet", effort, run, draws=draws, network=SMALL, **sizes)
    places = places_of(count)
    found = accuracies(family, course, places, run, repeats=repeats)
    for labelling in THREE:
        table, title = found[labelling, RECIPE.rate, "test"], f"LeNet on isotropic data, {labelling}"
        statistics |= _falling(title, places, table, found[labelling, RECIPE.rate, "train"])
        arrays[title] = np.stack([np.array(places, float), table.mean(0)])
    statistics["parameters"] = Estimate.exact(float(family.num_parameters)).named("parameters")
    return Finding(statistics, arrays, settings_11(effort) | {"samples": words}, (ONE_EACH,))


RATES = (1.0, 0.1, 0.01, 0.001)
# Figure 14: network, labellings, epochs.
_RATES: dict[str, tuple[str, tuple[str, ...], int]] = {
    "smoke": ("lenet", ("linear",), 1),
    "laptop": ("lenet", ("linear", "quadratic"), 20),
    "paper": ("resnet18", THREE, 15),
}


def _drawn_rates(finding: Finding, dark: bool) -> Figure:
    panels: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for key, (rates, accuracy) in finding.arrays.items():
        labelling, _, where = key.partition(", ")
        panels.setdefault(labelling, {})[where] = (rates, accuracy)
    return panels_figure(panels, x="learning rate", y="test accuracy, %", dark=dark)


def settings_14(effort: str) -> dict[str, Any]:
    """Settings of figure 14 at an effort."""
    name, _, epochs = _RATES[effort]
    settings = _settings_along([name], {name: (epochs, epochs)}, {name: 1}, DRAWS[effort])
    settings |= _isotropic_settings([name], PROTOCOL[effort]["train"], PROTOCOL[effort]["test"])
    settings |= {"rate": list(RATES), **for_each("directions", {name: "first and last"})}
    return settings


@figure(
    "14",
    title="Test accuracy on isotropic data along an early and a late eigenvector of G, by learning rate",
    claims=[
        claim
        for labelling, kind in (("linear", "paper"), ("quadratic", "paper"), ("sinusoidal", "ours"))
        for claim in (
            Claim(
                f"A very small rate is harmful for {labelling} labels: mean accuracy at 0.1 minus that at 0.001, in points.",
                f"{labelling}_accuracy_at_0_1_minus_at_0_001",
                "at least",
                "a very small learning rate has a detrimental effect",
                0.0,
                "paper",
                of="small_learning_rate_generalises_worse",
                kind=kind,
                trained=(learned(f"{labelling}_lowest_train_accuracy"),),
            ),
            Claim(
                f"The early direction is preferred at every rate for {labelling} labels: its least lead, in points.",
                f"{labelling}_least_lead_of_the_early_direction",
                "at least",
                "in all these cases the model is following the predictions",
                0.0,
                "paper",
                of="preference_at_every_learning_rate",
                kind=kind,
                trained=(learned(f"{labelling}_lowest_train_accuracy"),),
            ),
        )
    ],
    draw=_drawn_rates,
    published=_published_along(
        ("resnet18",),
        {
            "rate": list(RATES),
            "training samples": 10_000,
            "test samples": 2000,
            "noise": 1.0,
            "sinusoidal labels": "sin(π xᵀu/ε)",
            "ε of linear labels": 0.9,
            "ε of quadratic labels": 2.0,
            **for_each("ε of sinusoidal labels", {"resnet18": 5.0}),
            **for_each("directions", {"resnet18": "every 10th"}),
        },
    ),
)
def figure_14(effort: str, run: Run) -> Finding:
    """Rates 1, 0.1, 0.01 and 0.001 on the first and the last direction."""
    name, labellings, epochs = _RATES[effort]
    family, course = _isotropic(name, effort, run, epochs=epochs, longer=epochs)
    places = places_of(2)
    found = accuracies(family, course, places, run, labellings=labellings, rates=RATES)
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for labelling in labellings:
        tables = {rate: found[labelling, rate, "test"] for rate in RATES}
        gain = over_trainings((tables[0.1] - tables[0.001]).mean(1))
        leads = {rate: difference(table[:, 0], table[:, -1]) for rate, table in tables.items()}
        lowest = min(float(found[labelling, rate, "train"].min()) for rate in RATES)
        statistics |= {
            f"{labelling}_accuracy_at_0_1_minus_at_0_001": gain.named(
                f"{labelling}: accuracy at 0.1 minus at 0.001", "points"
            ),
            **{
                f"{labelling}_lead_of_the_early_direction_at_{snake(f'{rate:g}')}": lead.named(
                    f"{labelling}: lead of the early direction at {rate:g}", "points"
                )
                for rate, lead in leads.items()
            },
            f"{labelling}_least_lead_of_the_early_direction": least(leads.values()).named(
                f"{labelling}: least lead of the early direction", "points"
            ),
            f"{labelling}_lowest_train_accuracy": Estimate(lowest).named(f"{labelling}: lowest train accuracy", "%"),
        }
        for index, word in enumerate(("early", "late")):
            accuracy = np.array([tables[rate][0, index] for rate in RATES])
            arrays[f"{labelling}, {word}"] = np.stack([np.array(RATES), accuracy])
    notes = (ONE_EACH, "The paper shows ResNet-18, which is what runs at paper effort; LeNet stands in below.")
    return Finding(statistics, arrays, settings_14(effort), notes)
