"""Feature elimination: the cost of removing the directions along which a network can hardly change."""

# n samples · D input size · k directions removed

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from biascope.derivatives.covariance import gaussian_sampler, gradient_covariance
from biascope.derivatives.matrices import data_covariance
from biascope.derivatives.operators import Matrix
from biascope.derivatives.spectrum import eigenpairs
from biascope.families.family import Family
from biascope.kernels.selftest import derivative_checks
from biascope.results.draw import captioned
from biascope.results.estimate import SHARE, Estimate, Number, over, paired_error
from biascope.results.figures import lines_figure
from biascope.results.registry import measurement
from biascope.results.result import Result
from biascope.results.story import Step, Story, model_word
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.identity import DERIVED
from biascope.runs.randomness import seed_of
from biascope.runs.run import Run
from biascope.tasks import bases
from biascope.tasks.task import Arrays, Task
from biascope.training.recipe import Recipe
from biascope.training.sweep import Course, Trial, trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECIPE = Recipe("sgd", 0.1, momentum=0.9, epochs=50, batch=128)  # as published
CONFIDENCE = 0.68  # of intervals over runs, as published
SHARES: dict[str, Any] = {"within": (0.0, 1.0), "confidence": CONFIDENCE}
BLOCKS = 50  # of the test samples


@dataclass(frozen=True, repr=False)
class FeatureElimination(Result):
    """Test accuracy of networks trained on the data without the removed directions.

    Attributes:
        removed: Directions taken away, those with the least geometry per variance first.
        removed_at_random: Random directions that carry as much variance; each run has its own.
        variance: Share of ``Σ‖x‖²`` of the training samples that went with the former.
        accuracy: On the test samples, after removing by geometry.
        accuracy_at_random: After removing at random.
        lead_by_block: On blocks of test samples, the former minus the latter.
    """

    removed: np.ndarray
    removed_at_random: np.ndarray
    variance: np.ndarray
    accuracy: np.ndarray
    accuracy_at_random: np.ndarray
    lead_by_block: np.ndarray

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("removed", "variance"), ("place",)),
        **dict.fromkeys(("removed_at_random", "accuracy", "accuracy_at_random"), ("repeat", "place")),
        "lead_by_block": ("repeat", "place", "block"),
    }

    @property
    def lead(self) -> np.ndarray:
        """By how much the accuracy after removing by geometry is ahead, as a difference of shares, (repeat, place)."""
        return np.asarray(self.accuracy - self.accuracy_at_random)

    @override
    def headline(self) -> dict[str, Number]:
        last, at_random = self.accuracy[:, -1], self.accuracy_at_random[:, -1]
        words = f"accuracy with {self.removed[-1]:,} directions removed"
        return {
            "lead": self._mean_lead().in_percent().named("mean lead over random removal", "points"),
            "accuracy": over(last, **SHARES).named(words, SHARE),
            "accuracy_at_random": over(at_random, **SHARES).named(
                f"accuracy with {self._random_count} random directions removed", SHARE
            ),
        }

    @property
    def _random_count(self) -> str:
        """How many random directions are removed at last, on average over the runs."""
        return f"{round(float(self.removed_at_random[:, -1].mean())):,}"

    def _mean_lead(self) -> Estimate:
        """Over all places where something is removed. Errors of runs and of test samples, which all runs share, are joined."""
        touched = self.removed > 0
        common = paired_error(self.lead_by_block[:, touched].mean(1))
        return over(self.lead[:, touched].mean(1), shared=common, within=(-1.0, 1.0), confidence=CONFIDENCE)

    @override
    def sentence(self) -> str:
        lead = self._mean_lead()
        by, random = (100 * each[:, -1].mean() for each in (self.accuracy, self.accuracy_at_random))
        judged = "costs less than" if lead.low > 0 else "costs more than" if lead.high < 0 else "costs about as much as"
        compared = f"removing features of little geometry {judged} removing random ones of equal variance"
        if math.isnan(lead.low):  # one run, or one test sample
            compared = (
                "it is unknown whether features of little geometry or random ones are missed more: pass repeats=5"
            )
        return (
            f"For {self.subject}, {compared}. Without the "
            f"{self.removed[-1]:,} directions of least geometry ({100 * self.variance[-1]:.0f} % of the variance), test accuracy is "
            f"{by:.1f} %. Without {self._random_count} random directions, it is {random:.1f} %. The mean lead over all "
            f"counts is {100 * lead.value:+.1f} points."
        )

    @override
    def story(self) -> Story:
        return Story(
            meaning=(
                "If removing the directions of least geometry costs less accuracy than removing random ones of equal "
                "variance, the network hardly used them. A small or negative lead means that the geometry at initialisation "
                "does not tell which features matter for these data."
            ),
            next_steps=[
                Step(
                    "Score single samples instead of features.",
                    f"biascope measure sample_score {model_word(self.subject)} --data DATASET",
                )
            ],
        )

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        curves, bands = {}, {}
        for name, each in (("least geometry first", self.accuracy), ("at random", self.accuracy_at_random)):
            found = [over(100 * column, within=(0.0, 100.0), confidence=CONFIDENCE) for column in each.T]
            value, low, high = np.array([(one.value, one.low, one.high) for one in found]).T
            curves[name], bands[name] = (self.removed, value), (low, high)
        reading = (
            "Training on the remaining features. Both curves lose equal variance. Bands are 68 % intervals over runs."
        )
        style: Any = {"x": "directions removed", "y": "test accuracy, %", "bands": bands, "dark": dark}
        return {
            "accuracy_by_removal": captioned(
                "Test accuracy without the removed features", lines_figure(curves, reading=reading, **style)
            )
        }


@under_torch_defaults
def elimination_order(geometry: Tensor, covariance: Tensor, *, ridge: float = 1e-6) -> Tensor:
    """Orthonormal columns ``(D, D)`` that span the generalised eigenvectors ``Gv = λSv``, smallest λ first.

    The first k columns span the first k eigenvectors. Both matrices get ``ridge`` times their mean eigenvalue on the diagonal:
    directions without geometry then come in the order of their variance, largest first, and directions without variance last.

    Example:
        >>> G, S = torch.diag(torch.tensor([4.0, 1.0, 0.0, 0.0])), torch.diag(torch.tensor([1.0, 1.0, 1.0, 2.0]))
        >>> elimination_order(G, S).abs().round(decimals=3).argmax(0).tolist()
        [3, 2, 1, 0]
    """

    def lifted(matrix: Tensor) -> Matrix:
        unit = torch.eye(len(matrix), dtype=torch.float64, device=matrix.device)
        return Matrix(matrix.double() + ridge * float(matrix.diagonal().double().mean()) * unit)

    found = eigenpairs(lifted(geometry), metric=lifted(covariance))
    basis: Tensor = torch.linalg.qr(found.vectors.flip(0).T).Q
    return basis


@dataclass(frozen=True)
class _Left(Course):
    """Trainings on projected data: a kind of trial is a basis and how many of its directions are removed."""

    data: Arrays
    columns: dict[str, Tensor] = dataclasses.field(metadata=DERIVED)  # rounded by the number of threads
    how: Recipe
    chosen_by: tuple[object, ...]

    @property
    def inputs(self) -> Arrays:
        return self.data

    def task(self, kind: str, members: Sequence[int], seed: int, run: Run) -> Task:
        basis, count = kind.split()
        left = without(self.data.to(run), self.columns[basis][:, : int(count)])
        x, y = left.splits["test"]
        parts = zip(torch.tensor_split(x, len(self.blocks)), torch.tensor_split(y, len(self.blocks)), strict=True)
        return dataclasses.replace(left, splits={**left.splits, **dict(zip(self.blocks, parts, strict=True))})

    @property
    def blocks(self) -> tuple[str, ...]:
        """Parts of the test samples, which tell how much a difference of accuracies depends on them."""
        return tuple(f"block {index}" for index in range(min(BLOCKS, self.data.sizes["test"])))

    def recipe(self, kind: str) -> Recipe:
        return self.how

    @property
    def splits(self) -> tuple[str, ...]:
        return ("test", *self.blocks)


@under_torch_defaults
def without(data: Arrays, directions: Tensor) -> Arrays:
    """The data projected off orthonormal columns ``(D, k)``, in every split.

    Example:
        >>> data = Arrays({"train": (torch.tensor([[3.0, 4.0]]), torch.tensor([0]))})
        >>> without(data, torch.tensor([[0.0], [1.0]])).splits["train"][0]
        tensor([[3., 0.]])
    """
    splits = {}
    for split in data.splits:
        x, y = data.whole(split)
        flat, columns = x.flatten(1), directions.to(x)
        splits[split] = ((flat - flat @ columns @ columns.T).reshape(x.shape), y)
    return dataclasses.replace(data, splits=splits)


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    family = Family.initialised(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)), name="small")
    x = torch.randn(90, 6, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    data = Arrays({"train": (x[:60], y[:60]), "test": (x[60:], y[60:])})
    return (family, data), {
        "shares": (0.0, 0.5),
        "recipe": dataclasses.replace(RECIPE, epochs=4),
        "repeats": 2,
        "draws": 64,
    }


@measurement(
    title="Feature elimination",
    paper="geometry2025",
    result=FeatureElimination,
    example=_example,
    network={"outputs": 10},
    checks=derivative_checks(lambda settings: ("input",)),
)
def feature_elimination(
    family: Family,
    data: Arrays,
    *,
    shares: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 0.9),
    positive: tuple[int, ...] | None = None,
    draws: int | None = None,
    scale: float = 1e-3,
    readout: str = "mean",
    ridge: float = 1e-6,
    recipe: Recipe = RECIPE,
    repeats: int = 5,
    seed: int = 0,
    run: Run | None = None,
) -> FeatureElimination:
    """Test accuracy without the input directions of least geometry per variance, compared with random ones.

    Definition:
        ``G = E ∇f ∇fᵀ`` is the average geometry at initialisation, for inputs N(0, σ²I). ``S = Σ x xᵀ`` is a sum over the training
        samples. The eigenvectors of ``Gv = λSv`` have ``λ = vᵀGv/vᵀSv``, the geometry per variance. They are orthonormalised,
        smallest λ first, and projected out of training and test samples, ``x ↦ x − Σ_{i≤k} v_i v_iᵀx``. A network is trained on
        the rest. For comparison, a network is trained without random orthonormal directions, which each run draws anew. Their number
        is chosen so that the same share of ``Σ‖x‖²`` is removed.

    Args:
        family: Networks to train, at initial weights, with an output for each class.
        data: Samples with splits ``train`` and ``test``.
        shares: Shares of all D directions to remove; 0 for the original data.
        positive: Classes that count as positive, against the rest; by default all classes are kept.
        draws: Networks over which G is averaged; by default 4·D. Fewer than D leave directions in which G is zero. These come in
            the order of their variance, largest first, which needs a ridge.
        scale: σ of the input, one for each network, at which gradients are taken.
        readout: Scalar to take of several outputs, for G.
        ridge: Added to the diagonals of G and S, in units of their mean eigenvalue: either may be singular.
        recipe: Training recipe; by default 50 epochs of SGD in batches of 128 with momentum 0.9, as published.
        repeats: Runs, each with its own weights.
        seed: Random seed.
        run: Folder (draws and trainings are saved), device, precision.

    Returns:
        Accuracies by run and share, and the order of directions.

    Raises:
        ValueError: If data and settings do not fit.

    Example:
        >>> family = Family.initialised(lambda: nn.Linear(2, 2, bias=False), name="linear")
        >>> x = torch.tensor([[1.0, 3.0], [-1.0, 3.0], [1.0, -3.0], [-1.0, -3.0]])  # the first entry tells the class
        >>> data = Arrays({split: (x, (x[:, 0] > 0).long()) for split in ("train", "test")})
        >>> recipe = dataclasses.replace(RECIPE, epochs=20)
        >>> found = feature_elimination(family, data, shares=(0.0, 0.5), draws=2000, recipe=recipe, repeats=2)
        >>> found.accuracy.mean(0), found.variance.round(1)  # the second holds 0.9 of the variance, and is not missed
        (array([1., 1.]), array([0. , 0.9]))

    Reference:
        Movahedi, Orvieto, Moosavi-Dezfooli (2025). Geometric inductive biases of deep networks. ICLR, section 5, figure 6.
    """
    run, size = run or Run(), math.prod(data.shape)
    draws, device = 4 * size if draws is None else draws, run.torch_device
    for name, number, least in (("draws", draws, 2), ("repeats", repeats, 1)):
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}. Leave it out.")
    if not ridge >= 0 or (ridge == 0 and draws < size):  # of fewer draws than directions, G is zero in some
        needed = "positive with fewer draws than directions" if ridge == 0 else "0 or more"
        raise ValueError(f"ridge must be {needed}, got {ridge}. Pass ridge=1e-6.")
    data = _checked(family, data, positive, shares)
    # Small eigenvalues of G drown in half precision, which is for trainings.
    whole = dataclasses.replace(run, precision="float32") if run.dtype.itemsize < 4 else run
    sampler = gaussian_sampler(family, data.shape, probes=1, scale=scale, readout=readout, seed=seed, run=whole)
    geometry = gradient_covariance(sampler, draws=draws, seed=seed, label=f"{family.name}: geometry").dense()
    if geometry is None:
        raise ValueError(f"Inputs must have at most 8192 numbers to form G, got {size}. Pass smaller inputs.")
    covariance = data_covariance(data.whole("train")[0].to(device))
    order = elimination_order(geometry, covariance, ridge=ridge)
    random = {
        f"random-{r}": bases.random(data.shape, seed=seed_of(seed, "removed", r)).vectors.T.to(order)
        for r in range(repeats)
    }
    counts = np.array([round(share * size) for share in shares])
    gone = _variances(order, covariance)
    alike = np.array(
        [
            [abs(of_one - gone[count]).argmin() for count in counts]
            for of_one in (_variances(each, covariance) for each in random.values())
        ]
    )  # (repeat, place)
    chosen_by = (draws, scale, readout, ridge, seed)
    course = _Left(data, {"geometry": order, **random}, recipe, chosen_by)
    by_geometry = [[Trial(f"geometry {k}", r) for k in counts] for r in range(repeats)]
    by_chance = [[Trial(f"{name} {k}" if k else "geometry 0", r) for k in alike[r]] for r, name in enumerate(random)]
    every = list(dict.fromkeys(trial for row in (*by_geometry, *by_chance) for trial in row))
    found = trained(family, course, every, seed=seed, run=run, label=f"{family.name}: features left")

    def reached(split: str, rows: Sequence[Sequence[Trial]]) -> np.ndarray:
        return np.array([[float(found[trial][f"accuracy/{split}"]) for trial in row] for row in rows])

    blocks = [reached(block, by_geometry) - reached(block, by_chance) for block in course.blocks]
    return FeatureElimination(
        removed=counts,
        removed_at_random=alike,
        variance=gone[counts],
        accuracy=reached("test", by_geometry),
        accuracy_at_random=reached("test", by_chance),
        lead_by_block=np.stack(blocks, -1),
        provenance={"draws": draws},
    )


def _variances(basis: Tensor, covariance: Tensor) -> np.ndarray:
    """The share of the variance that the first columns of a basis hold: of none, of one, of two and so on."""
    held = (basis * (covariance @ basis)).sum(0).cumsum(0).cpu().numpy()
    return np.append(0.0, held) / float(covariance.trace())


def _checked(family: Family, data: Arrays, positive: tuple[int, ...] | None, shares: Sequence[float]) -> Arrays:
    """The data with the classes to tell apart, or a sentence on what does not fit."""
    if not {"train", "test"} <= data.splits.keys():
        raise ValueError(
            f"data must have the splits 'train' and 'test', got {', '.join(data.splits)}. Rename the splits."
        )
    if not any(shares) or not all(0 <= share < 1 for share in shares) or list(shares) != sorted(shares):
        raise ValueError(f"shares must rise from 0 or more to less than 1, got {shares}. Pass shares=(0.0, 0.5, 0.9).")
    splits = {split: data.splits[split] for split in ("train", "test")}
    if positive is not None:
        splits = dict(dataclasses.replace(data, splits=splits).two_classes(positive).splits)
    classes = 1 + int(max(y.max() for _, y in splits.values()))
    x = data.batch("train", torch.zeros(1, dtype=torch.long))[0]
    if not x.is_floating_point():
        raise ValueError(
            f"feature_elimination removes features of inputs, and {data.name} holds token ids, which have none. Pass embeddings."
        )
    outputs = family.template.to(x.device, x.dtype)(x).flatten(1).shape[1]
    if outputs < classes and (outputs, classes) != (1, 2):
        raise ValueError(
            f"{family.name} must have an output for each of {classes} classes, got {outputs}. Pass a network with more, or "
            "positive=(0, 1) to set these classes against the rest."
        )
    return dataclasses.replace(data, splits=splits)
