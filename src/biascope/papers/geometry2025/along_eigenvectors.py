"""Figures 4, 10, 11 and 14: labels along early and late eigenvectors, of images and of Gaussian data."""

# m networks · p places in the order of eigenvectors · r repeats · D input size

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from biascope.derivatives.matrices import data_covariance, seen_through
from biascope.families.family import Family
from biascope.papers.geometry2025.learning import (
    ONE_EACH,
    RECIPE,
    THREE,
    Along,
    accuracies,
    basis_of,
    difference,
    drawn_along,
    eigenvectors,
    places_of,
)
from biascope.papers.geometry2025.shared import (
    PUBLISHED_LOOP,
    SPREAD,
    TITLES,
    by_setting,
    error_of_a_difference,
    error_of_test_samples,
    geometry_of,
    grey,
    halved,
    inputs_of,
    least,
    loop_of,
    planned,
    precisions,
    released_family,
    titles,
)
from biascope.papers.images import held
from biascope.results.estimate import Estimate, bootstrapped, over, spearman
from biascope.results.finding import Tell, figure
from biascope.results.plan import Row
from biascope.results.wording import snake
from biascope.runs.run import Run
from biascope.tasks.directions import NoisyDraw, isotropic, label_rule, labelled_along
from biascope.tasks.samples import samples_of
from biascope.tasks.task import Arrays, Task


@dataclass(frozen=True)
class Eigenvectors:
    """Which eigenvectors, by falling eigenvalue; recorded in words.

    Attributes:
        count: Their number, from first to last; 0 for the first and that at three quarters of the spectrum. The last eigenvectors of
            ResNet-18 are nearly single pixels at the border.

    Example:
        >>> str(Eigenvectors(3)), Eigenvectors(3).places(1024), Eigenvectors().places(1024)
        ('3, denser at the beginning', [0, 31, 1023], [0, 768])
    """

    count: int = 0

    def places(self, size: int) -> list[int]:
        """Their indices among so many."""
        return places_of(self.count, size) if self.count else [0, 3 * size // 4]

    def __str__(self) -> str:
        if not self.count:
            return "the first, and that at three quarters of the spectrum"
        return f"{self.count}, denser at the beginning"


_COLUMNS = ("epochs", "runs", "labels", "draws of G", "directions")
_FIRST = ("epochs", "runs", "labels")  # of what differs from the authors' settings
_PUBLISHED = {**PUBLISHED_LOOP, "weight decay": 0.0}
_OURS = {**loop_of(RECIPE), "side of the images": 32}


def _tell_falling(
    of: Tell,
    places: Sequence[int],
    accuracy: np.ndarray,
    fitted: np.ndarray,
    shared: int | None = None,
    own: int | None = None,
) -> None:
    """Tell how test accuracy ``(r, p)`` falls from early to late directions, and the training accuracy along the best one."""
    of("first minus last accuracy", difference(accuracy[:, 0], accuracy[:, -1], shared, own), "points")
    best = over(fitted[:, fitted.mean(0).argmax()], within=(0.0, 100.0))
    of("training accuracy along the best direction", best, "%")
    if len(places) > 4:
        correlation = bootstrapped(spearman, accuracy.mean(0), np.array(places, float))
        of("rank correlation of accuracy and index", correlation)
    of.array(of.subject, np.stack([np.array(places, float), accuracy.mean(0)]))


def _tell_kept(of: Tell, tables: Mapping[str, np.ndarray], shared: int | None = None) -> None:
    """Tell how much more of its best accuracy (above 50 %) linear labelling keeps on average over the directions than another."""
    kept: dict[str, tuple[np.ndarray, float]] = {}  # by repeat, and its error by test samples
    for labelling, accuracy in tables.items():
        mean = accuracy.mean(0)
        best = float((mean - 50).max())
        if best > 5:  # else nothing was learned anywhere, and there is nothing to keep
            errors = [0.0 if shared is None else error_of_test_samples(value, shared) for value in mean]
            kept[labelling] = (accuracy.mean(1) - 50) / best, math.hypot(*errors) / len(errors) / best
    for other in kept:
        if "linear" in kept and other != "linear":
            more, error = kept["linear"][0] - kept[other][0], math.hypot(kept["linear"][1], kept[other][1])
            of(f"share kept, linear minus {other}", over(more, shared=error))


# Figure 4

LABEL_NOISE = 0.2  # of each channel's variance
BY_NOISE = (
    "Along late eigenvectors images vary less than the label noise, so that labels are nearly coin tosses: there accuracy would fall "
    "for any network. The best possible accuracy stands beside each curve."
)
QUANTILES = 400  # of label noise, at which labels are looked at


@dataclass(frozen=True, kw_only=True)
class _Images(Along):
    """Images labelled along a direction."""

    images: Arrays

    @property
    def inputs(self) -> Arrays:
        """The images."""
        return self.images

    def task(self, kind: str, members: Sequence[int], seed: int, run: Run) -> Task:
        """One member per direction."""
        vectors, labelling = self.vectors[list(members)], kind.split(", ")[0]
        return labelled_along(self.images.to(run), vectors, labelling=labelling, label_noise=LABEL_NOISE, seed=seed)


def best_possible(images: Arrays, vectors: Tensor, labelling: str) -> np.ndarray:
    """Test accuracy in percent, by direction, of the classifier that knows xᵀu: all that label noise allows.

    Labels are told by ``xᵀu + ηᵀu`` (:func:`biascope.tasks.directions.labelled_along`). Where the images hardly vary along u, the noise
    η decides, and no classifier does better than chance.

    Example:
        >>> x = torch.tensor([-3.0, -1.0, 1.0, 3.0]).repeat(500).reshape(-1, 1, 1) * torch.tensor([1.0, 1e-6])
        >>> given = Arrays({split: (x, torch.zeros(2000)) for split in ("train", "test")})
        >>> [round(float(each)) for each in best_possible(given, torch.eye(2), "linear")]
        [96, 50]
    """
    x = images.whole("train")[0]
    axes = [axis for axis in range(x.dim()) if axis != 1]
    power = x.double().std(axes, correction=0, keepdim=True)[0].expand(x.shape[1:]).flatten().square()  # (D,)
    directions = vectors.to(x.device, torch.float64)
    spread = (LABEL_NOISE * directions.square() @ power).sqrt()[:, None]  # (p, 1)
    along = {split: directions @ images.whole(split)[0].flatten(1).double().T for split in ("train", "test")}
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(along["train"].shape[1], generator=generator, dtype=torch.float64).to(x.device)
    rule = label_rule(labelling, along["train"] + spread * noise)
    places = (torch.arange(QUANTILES, dtype=torch.float64, device=x.device) + 0.5) / QUANTILES
    ones = torch.zeros_like(along["test"])
    for quantile in torch.special.ndtri(places):
        ones += rule(along["test"] + spread * quantile)
    share = ones / QUANTILES
    return 100 * torch.maximum(share, 1 - share).mean(1).cpu().numpy()


def _tell_images(
    name: str, plan: Row, directions: Eigenvectors, run: Run, tell: Tell, part: str = "", **network: Any
) -> None:
    """Tell how a network learns images labelled along eigenvectors of its G S G."""
    sizes = (plan["training samples"], plan["test samples"])
    cifar, root = held("cifar10", run)
    images = samples_of(cifar, sizes=sizes, root=root)
    if plan["side of the images"] < images.shape[-1]:
        images = halved(images)
    title, draws = f"{TITLES[name]}{part}", plan["draws of G"][name]
    family = released_family(name, images.shape, "gelu", plain=True, **network)

    def product() -> Tensor:
        geometry = geometry_of(family, images.shape, draws, run, scale=SPREAD)
        return seen_through(geometry, data_covariance(images.splits["train"][0].to(geometry.device)))

    vectors = eigenvectors(product, run, family, images, of="G S G", draws=draws, images=images, scale=SPREAD)
    places, labellings = directions.places(len(vectors)), plan["labels"][name]
    train, test = images.sizes["train"], images.sizes["test"]
    course = _Images(vectors, train, test, plan["epochs"][name], images=images)
    found = accuracies(family, course, places, run, labellings=labellings, repeats=plan["runs"][name])
    _tell_kept(tell.about(title), {labelling: found[labelling, RECIPE.rate, "test"] for labelling in labellings}, test)
    lowest: list[Estimate] = []  # along single directions, over repeats
    for labelling in labellings:
        of = tell.about(f"{title}, {labelling}")
        accuracy, fitted = (found[labelling, RECIPE.rate, split] for split in ("test", "train"))
        _tell_falling(of, places, accuracy, fitted, shared=test)
        best = best_possible(images, vectors[places], labelling)
        error = error_of_a_difference(float(accuracy[:, 0].mean()), float(accuracy[:, -1].mean()), test)
        lacking = over((best[-1] - accuracy[:, -1]) - (best[0] - accuracy[:, 0]), shared=error)
        of("last minus first distance from the best possible accuracy", lacking, "points")
        for word, place in (("first", 0), ("last", -1)):
            key = snake(f"{of.subject} best possible accuracy {word}")
            of(f"best possible accuracy, {word} direction", Estimate(float(best[place])), "%", key=key)
        tell.array(f"{of.subject}: best possible", np.stack([np.array(places, float), best]))
        along = [over(column, within=(0.0, 100.0)) for column in fitted.T]
        of("lowest train accuracy", least(along), "%")
        lowest += along
    tell.about(title)("lowest train accuracy", least(lowest), "%")
    tell.settings.update({**precisions([family], run, "bfloat16"), "samples": images.name})


@figure(
    "4",
    title="Test accuracy on CIFAR-10 images labelled along eigenvectors of G S G",
    plan=planned(
        _COLUMNS,
        "GELU",
        SPREAD,
        plain=True,
        smoke={"lenet": (1, 1, THREE[:2], 8, Eigenvectors(2))},
        laptop={"lenet": (30, 3, THREE[:2], 10_000, Eigenvectors(2))},
        paper={
            "lenet": (50, 4, THREE, 10_000, Eigenvectors(8)),
            "resnet18": (30, 2, THREE, 4000, Eigenvectors(2)),
            "vit": (30, 2, THREE, 4000, Eigenvectors(2)),
        },
        published=by_setting(
            _COLUMNS,
            {
                "lenet": (50, 5, THREE, 100_000, "every 30th"),
                **dict.fromkeys(("resnet18", "vit"), (30, 5, THREE, 100_000, "every 30th")),
            },
        ),
        both={
            **_PUBLISHED,
            "training samples": 10_000,
            "label noise": LABEL_NOISE,
            "sinusoidal labels": "sin(π z), z = xᵀu standardised",
        },
        ours={**_OURS, "test samples": 2000},
        small={"training samples": 64, "test samples": 32, "side of the images": 16},
        first=_FIRST,
    ),
    show=drawn_along,
)
def figure_4(plan: Row, run: Run, tell: Tell) -> None:
    """Linear, quadratic and sinusoidal labels, with label noise."""
    for name in plan.networks:
        _tell_images(name, plan, plan["directions"][name], run, tell)
    tell.settings["networks"] = titles(plan.networks)
    tell.note(
        ONE_EACH,
        "The text standardises every channel before the sine, which gives many waves along early eigenvectors and none along late "
        "ones. The authors' code standardises xᵀu, with as many waves along any, and so do we.",
        "The least eigenvalues of G S G are below the rounding of its entries: the last eigenvectors are some basis of what is left.",
        BY_NOISE,
    )


# Figures 10, 11 and 14


@dataclass(frozen=True, kw_only=True)
class _Isotropic(Along):
    """Gaussian data labelled along a direction."""

    epsilon: dict[str, float]

    def task(self, kind: str, members: Sequence[int], seed: int, run: Run) -> Task:
        """One member per direction."""
        vectors, labelling = self.vectors[list(members)], kind.split(", ")[0]
        draw: NoisyDraw = {"train": self.train, "test": self.test, "seed": seed, "run": run}
        return isotropic(vectors, self.shape, labelling=labelling, epsilon=self.epsilon[labelling], **draw)


def _trainings(name: str, plan: Row, run: Run, **network: Any) -> tuple[Family, _Isotropic]:
    """A network, and the course of its trainings along eigenvectors of G."""
    shape = grey(plan)
    epsilon = {labelling: plan[f"ε of {labelling} labels"] for labelling in ("linear", "quadratic")}
    course = _Isotropic(
        basis_of(name, plan["draws of G"][name], run, shape=shape, **network),
        plan["training samples"],
        plan["test samples"],
        plan["epochs"][name],
        shape,
        epsilon=epsilon | {"sinusoidal": plan["ε of sinusoidal labels"][name]},
    )
    return released_family(name, shape, "gelu", **network), course


_GAUSSIAN = (*_COLUMNS, "ε of sinusoidal labels")  # as in the authors' code; printed are 2.1 (MLP, LeNet) and 5
_TASK = {
    **_PUBLISHED,
    "training samples": 10_000,
    "test samples": 2000,
    "noise": 1.0,
    "sinusoidal labels": "sin(π xᵀu/ε)",
    "ε of linear labels": 0.9,
    "ε of quadratic labels": 2.0,
}
_SMALL = {"training samples": 128, "test samples": 64, "side of the images": 16}
_planned = functools.partial(planned, activation="GELU", spread=SPREAD, small=_SMALL, first=_FIRST)


@figure(
    "10",
    title="Test accuracy on isotropic data labelled along eigenvectors of G",
    plan=_planned(
        _GAUSSIAN,
        smoke={"lenet": (1, 1, THREE, 8, Eigenvectors(), 2.2)},
        laptop={"mlp": (30, 3, THREE, 2000, Eigenvectors(6), 5.0)},
        paper={
            "mlp": (30, 3, THREE, 10_000, Eigenvectors(8), 5.0),
            "lenet": (50, 3, THREE, 10_000, Eigenvectors(10), 2.2),
            # ResNet-18's linear labels are those of figure 14 at a rate of 0.1.
            "resnet18": (30, 3, THREE[:2], 4000, Eigenvectors(), 5.0),
            "vit": (30, 3, THREE, 4000, Eigenvectors(), 2.2),
        },
        published=by_setting(
            _GAUSSIAN,
            {
                "mlp": (30, 5, THREE, 100_000, "every 10th", 5.0),
                "lenet": (50, 5, THREE, 100_000, "every 10th", 2.2),
                "resnet18": (30, 5, THREE, 100_000, "every 10th", 5.0),
                "vit": (30, 5, THREE, 100_000, "every 10th", 2.2),
            },
        ),
        both=_TASK,
        ours=_OURS,
    ),
    show=drawn_along,
)
def figure_10(plan: Row, run: Run, tell: Tell) -> None:
    """Linear, quadratic and sinusoidal labels along the directions of each network's own geometry."""
    for name in plan.networks:
        family, course = _trainings(name, plan, run)
        places, labellings = plan["directions"][name].places(len(course.vectors)), plan["labels"][name]
        found = accuracies(family, course, places, run, labellings=labellings, repeats=plan["runs"][name])
        tables = {labelling: found[labelling, RECIPE.rate, "test"] for labelling in labellings}
        _tell_kept(tell.about(TITLES[name]), tables)
        for labelling, table in tables.items():
            of = tell.about(f"{TITLES[name]}, {labelling}")
            _tell_falling(of, places, table, found[labelling, RECIPE.rate, "train"], own=course.test)
            high, low = int(table.mean(0).argmax()), int(table.mean(0).argmin())
            spread = difference(table[:, high], table[:, low], own=course.test, within=(0.0, 100.0))
            of("highest minus lowest accuracy", spread.open_above(), "points")
        tell.settings.update(precisions([family], run, "bfloat16"))
    tell.settings["networks"] = titles(plan.networks)
    tell.note(
        ONE_EACH,
        "Sinusoidal labels are sgn(sin(π xᵀu/ε) + b), as in the authors' code: ε is the width of a wave, and so the margin.",
    )


FEW_PARAMETERS = {"hidden": (96, 67)}  # of the authors' code: 48,003 for three channels
_LARGE = ("epochs", "runs", "labels", "draws of G", "ε of sinusoidal labels")
LARGE = _planned(
    _LARGE,
    smoke={"lenet": (1, 1, ("linear",), 8, 2.2)},
    laptop={"lenet": (15, 3, ("linear",), 10_000, 2.2)},
    paper={"lenet": (50, 3, ("linear",), 10_000, 2.2)},
    published={
        **by_setting(_LARGE, {"lenet": (50, 5, THREE, 100_000, 2.2)}),
        "directions on images": "every 30th",
        "directions on isotropic data": "every 10th",
    },
    both={
        **_TASK,
        "training samples": 50_000,
        "test samples": 10_000,
        **FEW_PARAMETERS,
        "label noise": LABEL_NOISE,
    },
    ours={**_OURS, "directions on images": Eigenvectors(2), "directions on isotropic data": Eigenvectors(2)},
)


@figure(
    "11",
    title="LeNet with as many training samples as parameters: (a) images along eigenvectors of G S G, (b) isotropic data along those "
    "of G",
    plan=dataclasses.replace(LARGE, laptop={**LARGE.laptop, "test samples": 2000}, by=""),
    show=drawn_along,
)
def figure_11(plan: Row, run: Run, tell: Tell) -> None:
    """About 50,000 parameters and 50,000 samples."""
    _tell_images("lenet", plan, plan["directions on images"], run, tell, " on images", **FEW_PARAMETERS)
    family, course = _trainings("lenet", plan, run, **FEW_PARAMETERS)
    places, labellings = plan["directions on isotropic data"].places(len(course.vectors)), plan["labels"]["lenet"]
    found = accuracies(family, course, places, run, labellings=labellings, repeats=plan["runs"]["lenet"])
    for labelling in labellings:
        accuracy, fitted = (found[labelling, RECIPE.rate, split] for split in ("test", "train"))
        _tell_falling(tell.about(f"LeNet on isotropic data, {labelling}"), places, accuracy, fitted, own=course.test)
    tell("parameters", Estimate.exact(float(family.num_parameters)))
    tell.note(ONE_EACH, BY_NOISE)


_RATES = {"rate": (1.0, 0.1, 0.01, 0.001)}
AT_RATES = _planned(
    _GAUSSIAN,
    smoke={"lenet": (1, 1, ("linear",), 8, Eigenvectors(), 2.2)},
    laptop={"lenet": (30, 3, ("linear",), 4000, Eigenvectors(), 2.2)},
    paper={"resnet18": (30, 3, ("linear",), 4000, Eigenvectors(), 5.0)},
    published=by_setting(_GAUSSIAN, {"resnet18": (30, 5, THREE, 100_000, "every 10th", 5.0)}),
    both=_TASK | _RATES,
    ours=_OURS | _RATES,
)


@figure(
    "14",
    title="Test accuracy on isotropic data along an early and a late eigenvector of G, by learning rate",
    plan=dataclasses.replace(AT_RATES, by=""),
    show=lambda finding, dark: drawn_along(finding, dark, "learning rate", 0),
)
def figure_14(plan: Row, run: Run, tell: Tell) -> None:
    """Rates 1, 0.1, 0.01 and 0.001 on the first direction and a late one."""
    ((name, repeats),) = plan["runs"].items()
    rates, labellings = plan["rate"], plan["labels"][name]
    family, course = _trainings(name, plan, run)
    places = plan["directions"][name].places(len(course.vectors))
    found = accuracies(family, course, places, run, labellings=labellings, rates=rates, repeats=repeats)
    for index, word in zip(places, ("early", "late"), strict=True):
        tell(f"inputs that the {word} direction is spread over", inputs_of(course.vectors[index]))
    for labelling in labellings:
        of = tell.about(labelling)
        tables = {rate: found[labelling, rate, "test"] for rate in rates}
        errors = [error_of_test_samples(float(value), course.test) for r in (0.1, 0.001) for value in tables[r].mean(0)]
        gain = over((tables[0.1] - tables[0.001]).mean(1), samples=math.hypot(*errors) / len(places))
        of("accuracy at 0.1 minus at 0.001", gain, "points")
        leads = {rate: difference(table[:, 0], table[:, -1], own=course.test) for rate, table in tables.items()}
        for rate, lead in leads.items():
            of(f"lead of the early direction at {rate:g}", lead, "points")
        of("least lead of the early direction", least(leads.values()), "points")
        # Evidence that networks trained at every rate. The late direction may be out of reach, which is what the paper says.
        fitted = np.array([found[labelling, rate, "train"] for rate in rates])  # (rate, r, p)
        of("lowest train accuracy", Estimate(float(fitted.min())), "%")
        of("lowest train accuracy along the early direction", Estimate(float(fitted[..., 0].min())), "%")
        for index, word in enumerate(("early", "late")):
            accuracy = np.array([tables[rate][:, index].mean() for rate in rates])
            tell.array(f"{labelling}, {word}", np.stack([np.array(rates), accuracy]))
    tell.settings.update(precisions([family], run, "bfloat16"))
    tell.note(
        ONE_EACH,
        "The paper shows ResNet-18, which is what runs at paper effort; LeNet stands in below.",
        "The last eigenvector of ResNet-18 is nearly one pixel, a corner (1,600 draws on a CPU), and none of the authors' directions, "
        "which end at the 1,021st. Until 18 November 2026 it was the late direction here.",
    )
