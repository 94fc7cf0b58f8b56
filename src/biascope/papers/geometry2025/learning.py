"""Figures 4, 10, 11 and 14: labels along early and late eigenvectors of a network's average geometry."""

# m networks · g points of a grid · p places in the order of eigenvectors · r repeats · D input size

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from biascope.derivatives.matrices import data_covariance, seen_through
from biascope.families.family import Family
from biascope.papers.geometry2025.pictures import panels_figure
from biascope.papers.geometry2025.shared import TITLES, cifar_name, family_of, geometry_of, probe_scale, run_of
from biascope.results.claim import Claim, Finding, figure
from biascope.results.estimate import Estimate, Number, bootstrapped, over_repeats, proportion, spearman
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
ONE_EACH = "Intervals are those of the test sample where a point is one training; otherwise of independent trainings."


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


def difference(first: np.ndarray, second: np.ndarray, test: int) -> Estimate:
    """Mean difference of accuracies in percent, one of each per repeat."""
    if len(first) > 1:
        return over_repeats(first - second)
    one, two = (proportion(float(each[0]) / 100, test).in_percent() for each in (first, second))
    return one.minus(two, test)


def _falling(title: str, places: Sequence[int], accuracy: np.ndarray, test: int) -> dict[str, Number]:
    """How accuracy ``(r, p)`` falls from early to late directions."""
    lost = difference(accuracy[:, 0], accuracy[:, -1], test)
    found = {f"{snake(title)}_first_minus_last_accuracy": lost.named(f"{title}: first minus last accuracy", "points")}
    if len(places) > 4:
        fall = bootstrapped(spearman, accuracy.mean(0), np.array(places, float))
        found[f"{snake(title)}_rank_correlation_of_accuracy_and_index"] = fall.named(
            f"{title}: rank correlation of accuracy and index"
        )
    return found


def _sharper(title: str, tables: dict[str, np.ndarray], test: int) -> dict[str, Number]:
    """How much more of its best accuracy (above 50 %) linear labelling keeps on average over the directions than another."""
    kept: dict[str, Estimate] = {}
    for labelling, accuracy in tables.items():
        mean = accuracy.mean(0) - 50
        best = float(mean.max())
        if best > 5:  # else nothing was learned anywhere, and there is nothing to keep
            each = [proportion(value / 100, test * len(accuracy)).in_percent() for value in accuracy.mean(0)]
            error = math.sqrt(sum(one.standard_error**2 for one in each)) / len(each) / best
            kept[labelling] = Estimate.from_error(float(mean.mean()) / best, error, test)
    return {
        f"{snake(title)}_share_kept_linear_minus_{other}": kept["linear"]
        .minus(kept[other], test)
        .named(f"{title}: share kept, linear minus {other}")
        for other in ("quadratic", "sinusoidal")
        if "linear" in kept and other in kept
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


def _claims_of_falling(
    networks: dict[str, str], labellings: Sequence[str], published: str, part: str = ""
) -> list[Claim]:
    """Accuracy falls from the first to the last direction, for networks with the least effort of each."""
    return [
        Claim(
            f"{TITLES[name]}{part}, {labelling} labels: accuracy falls from the first to the last direction, in points.",
            f"{snake(TITLES[name] + part)}_{labelling}_first_minus_last_accuracy",
            "at least",
            published,
            10.0,
            effort,
        )
        for name, effort in networks.items()
        for labelling in labellings
    ]


def _claims_of_order(name: str) -> list[Claim]:
    title = TITLES[name]
    falling = [
        Claim(
            f"{title}, {labelling} labels: accuracy falls with the index, by rank correlation.",
            f"{snake(title)}_{labelling}_rank_correlation_of_accuracy_and_index",
            "at most",
            "a clear correlation between the eigenvalues and the test accuracy",
            -0.6,
            "paper",
        )
        for labelling in THREE
    ]
    return falling + [
        Claim(
            f"{title}: the fall is sharper for {other} than for linear labels: share of the best accuracy above chance that is "
            "kept on average, linear minus the other.",
            f"{snake(title)}_share_kept_linear_minus_{other}",
            "at least",
            "a 'sharper' impact on generalization for more complex decision boundaries",
            0.0,
        )
        for other in ("quadratic", "sinusoidal")
    ]


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
        statistics |= _falling(f"{title}, {labelling}", places, table, sizes[1])
        arrays[f"{title}, {labelling}"] = np.stack([np.array(places, float), table.mean(0)])
    lowest = min(float(found[labelling, RECIPE.rate, "train"].min()) for labelling in labellings)
    statistics[f"{snake(title)}_lowest_train_accuracy"] = (
        proportion(lowest / 100, sizes[0]).in_percent().named(f"{title}: lowest train accuracy", "%")
    )
    return statistics, arrays, images.name


@figure(
    "4",
    title="Test accuracy on CIFAR-10 images labelled along eigenvectors of G S G",
    claims=[
        *_claims_of_falling(
            {"lenet": "laptop", "resnet18": "paper", "vit": "paper"},
            THREE,
            "a larger generalization gap at small eigenvalues",
        ),
        *_claims_of_order("lenet"),
        *(
            Claim(
                f"{TITLES[name]} reaches 100 % train accuracy on all labellings: the lowest, in percent.",
                f"{snake(TITLES[name])}_lowest_train_accuracy",
                "at least",
                "all models will reach 100 % train accuracy",
                99.0,
                "paper",
            )
            for name in ("lenet", "resnet18", "vit")
        ),
    ],
    draw=drawn_along,
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
    settings = {"samples": words, "plan": {key: list(value) for key, value in _IMAGES[effort].items()}, "seed": 0}
    settings |= {"draws": DRAWS[effort], "label noise": 0.2, "recipe": RECIPE.settings}
    notes = (
        ONE_EACH,
        "The text standardises every channel before the sine, which gives many waves along early eigenvectors and none along late "
        "ones; the authors' code standardises xᵀu, with as many waves along any: 'released sinusoidal'.",
        "The least eigenvalues of G S G are below the rounding of its entries: the last eigenvectors are some basis of what is left.",
    )
    return Finding(statistics, arrays, settings, notes)


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


@figure(
    "10",
    title="Test accuracy on isotropic data labelled along eigenvectors of G",
    claims=[
        *_claims_of_falling(
            {"lenet": "laptop", "resnet18": "paper", "vit": "paper"},
            THREE,
            "correlated with the eigenvalue in all tasks",
        ),
        *_claims_of_order("lenet"),
        *(
            Claim(
                f"The MLP is flat for {labelling} labels: highest minus lowest accuracy over the directions, in points.",
                f"mlp_{labelling}_highest_minus_lowest_accuracy",
                "at most",
                "generalization in all directions with similar quality",
                10.0,
            )
            for labelling in THREE
        ),
    ],
    draw=drawn_along,
)
def figure_10(effort: str, run: Run) -> Finding:
    """Linear, quadratic and sinusoidal labels along the directions of each network's own geometry."""
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    test = PROTOCOL[effort]["test"]
    for name, (count, repeats) in _ISOTROPIC[effort].items():
        title, (family, course) = TITLES[name], _isotropic(name, effort, run)
        places = places_of(count)
        labellings = (*THREE, "released sinusoidal") if repeats > 1 else THREE
        found = accuracies(family, course, places, run, labellings=labellings, repeats=repeats)
        tables = {labelling: found[labelling, RECIPE.rate, "test"] for labelling in labellings}
        statistics |= _sharper(title, tables, test)
        for labelling, table in tables.items():
            subject = f"{title}, {labelling}"
            statistics |= _falling(subject, places, table, test)
            high, low = int(table.mean(0).argmax()), int(table.mean(0).argmin())
            spread = difference(table[:, high], table[:, low], test)
            statistics[f"{snake(subject)}_highest_minus_lowest_accuracy"] = spread.named(
                f"{subject}: highest minus lowest accuracy", "points"
            )
            arrays[subject] = np.stack([np.array(places, float), table.mean(0)])
    settings = {"plan": {key: list(value) for key, value in _ISOTROPIC[effort].items()}, "draws": DRAWS[effort]}
    settings |= {**PROTOCOL[effort], "noise": 1.0, "recipe": RECIPE.settings, "seed": 0}
    notes = (
        ONE_EACH,
        "Sinusoidal labels are sgn(sin(xᵀu) + b), with ε as printed; the authors' code has sgn(sin(π·xᵀu/ε) + b).",
    )
    return Finding(statistics, arrays, settings, notes)


SMALL = {"hidden": (100, 68)}  # 49,978 parameters for three channels, 49,678 for one; the paper prints no widths
# Figure 11: training and test samples, places, epochs, epochs of sinusoidal labels, repeats, draws; for images and for noise.
_LARGE: dict[str, tuple[int, int, int, int, int, int, int]] = {
    "smoke": (128, 64, 2, 1, 1, 1, 8),
    "laptop": (50_000, 2000, 3, 4, 4, 1, 4000),
    "paper": (50_000, 10_000, 8, 20, 50, 1, 10_000),
}


@figure(
    "11",
    title="LeNet with as many training samples as parameters: (a) images along eigenvectors of G S G, (b) isotropic data along those "
    "of G",
    claims=[
        claim
        for part in (" on images", " on isotropic data")
        for claim in _claims_of_falling(
            {"lenet": "laptop"}, THREE, "still a preference to learn the features more aligned with the geometry", part
        )
    ],
    draw=drawn_along,
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
        statistics |= _falling(title, places, table, test)
        arrays[title] = np.stack([np.array(places, float), table.mean(0)])
    statistics["parameters"] = Estimate.exact(float(family.num_parameters)).named("parameters")
    settings = {"samples": words, "plan": list(_LARGE[effort]), "hidden": list(SMALL["hidden"]), "seed": 0}
    return Finding(statistics, arrays, {**settings, "recipe": RECIPE.settings}, (ONE_EACH,))


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


@figure(
    "14",
    title="Test accuracy on isotropic data along an early and a late eigenvector of G, by learning rate",
    claims=[
        claim
        for labelling in THREE
        for claim in (
            Claim(
                f"A very small rate is harmful for {labelling} labels: mean accuracy at 0.1 minus that at 0.001, in points.",
                f"{labelling}_accuracy_at_0_1_minus_at_0_001",
                "at least",
                "a very small learning rate has a detrimental effect",
                2.0,
                "paper" if labelling == "sinusoidal" else "laptop",
            ),
            Claim(
                f"The early direction is preferred at every rate for {labelling} labels: its least lead, in points.",
                f"{labelling}_least_lead_of_the_early_direction",
                "at least",
                "in all these cases the model is following the predictions",
                0.0,
                "paper" if labelling == "sinusoidal" else "laptop",
            ),
        )
    ],
    draw=_drawn_rates,
)
def figure_14(effort: str, run: Run) -> Finding:
    """Rates 1, 0.1, 0.01 and 0.001 on the first and the last direction."""
    name, labellings, epochs = _RATES[effort]
    family, course = _isotropic(name, effort, run, epochs=epochs, longer=epochs)
    places, test = places_of(2), PROTOCOL[effort]["test"]
    found = accuracies(family, course, places, run, labellings=labellings, rates=RATES)
    statistics: dict[str, Number] = {}
    arrays: dict[str, np.ndarray] = {}
    for labelling in labellings:
        tables = {rate: found[labelling, rate, "test"] for rate in RATES}
        gains = [difference(tables[0.1][:, each], tables[0.001][:, each], test) for each in range(len(places))]
        error = math.hypot(*(gain.standard_error for gain in gains)) / len(gains)
        gain = Estimate.from_error(sum(each.value for each in gains) / len(gains), error, test)
        leads = {rate: difference(table[:, 0], table[:, -1], test) for rate, table in tables.items()}
        least = min(leads.values(), key=lambda lead: lead.value)
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
            f"{labelling}_least_lead_of_the_early_direction": least.named(
                f"{labelling}: least lead of the early direction", "points"
            ),
            f"{labelling}_lowest_train_accuracy": proportion(lowest / 100, course.train)
            .in_percent()
            .named(f"{labelling}: lowest train accuracy", "%"),
        }
        for index, word in enumerate(("early", "late")):
            accuracy = np.array([tables[rate][0, index] for rate in RATES])
            arrays[f"{labelling}, {word}"] = np.stack([np.array(RATES), accuracy])
    settings = {
        "network": name,
        "places": places,
        "rates": list(RATES),
        **PROTOCOL[effort],
        "epochs": epochs,
        "seed": 0,
    }
    notes = (ONE_EACH, "The paper shows ResNet-18, which is what runs at paper effort; LeNet stands in below.")
    return Finding(statistics, arrays, settings, notes)
