"""What the figures of chapter 4 share: its networks, its data, eigenfunctions of a tangent kernel, and learning them."""

# n samples · k eigenfunctions

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from biascope.derivatives.linearize import linearize
from biascope.derivatives.operators import Matrix
from biascope.derivatives.spectrum import eigenpairs
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.kernels.gram import tangent_gram
from biascope.kernels.plan import Sizes
from biascope.networks import builder
from biascope.papers.images import held
from biascope.results.estimate import Estimate, bootstrapped, over, spearman
from biascope.results.finding import Tell
from biascope.results.plan import Plan, Row
from biascope.runs.randomness import forked_rng, seed_of
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.samples import samples_of
from biascope.tasks.task import Arrays, Relabelled, Task
from biascope.training.evaluation import STACK_LIMIT, evaluation
from biascope.training.fit import Trajectory, batches
from biascope.training.recipe import Recipe
from biascope.training.sweep import Course, Trial, trained, windows

TITLES = {"mlp": "MLP", "lenet": "LeNet", "resnet18": "ResNet-18"}
SMALL = ("mlp", "lenet")
# As in the released code: initial weights by the law of Flax, padded convolutions and average-pooling in LeNet, residual branches that
# start at zero.
LAW = "flax"
NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": (100, 100), "law": LAW},
    "lenet": {"padding": "same", "pooling": "average", "law": LAW},
    "resnet18": {"zero_residual": True, "law": LAW},
}
# Also as released: ReLU on images. The directions of figures 4.4 and 4.5 are those of networks with GELU. For ResNet-18 the released
# settings disagree: its kernel is computed with ReLU, its trainings on eigenfunctions have GELU; here both have ReLU.
ON_IMAGES, ALONG_DIRECTIONS = dict.fromkeys(TITLES, "relu"), dict.fromkeys(TITLES, "gelu")
PUBLISHED_ON_EIGENFUNCTIONS = {**ON_IMAGES, "resnet18": "gelu (kernel: relu)"}
# "A decaying learning rate starting at 0.05 and momentum set to 0.9 … a batch size of 128", logistic loss on one output.
RECIPE = Recipe(
    "sgd", rate=0.05, schedule="linear", momentum=0.9, epochs=100, batch=128, loss="logistic", threshold=0.01
)
_OF_RECIPE = ("optimiser", "rate", "schedule", "batch", "momentum")  # what plans tell of it
#: The authors' training, under the names that :func:`planned` has for ours.
PUBLISHED: dict[str, Any] = {
    "initial weights": "flax",
    "optimiser": "sgd",
    "rate": 0.05,
    "schedule": "linear",
    "batch": 128,
    "momentum": 0.9,
}
HALF = (0, 1, 2, 3, 4)  # the classes of CIFAR-10 that CIFAR-2 sets against the rest
PERCENT = (0.0, 100.0)

#: Settings of networks in the order of some columns.
Networks = Mapping[str, Sequence[Any]]


def planned(
    columns: Sequence[str],
    *,
    smoke: Networks,
    laptop: Networks,
    paper: Networks,
    published: Networks,
    ours: Mapping[str, Any] | None = None,
    also: Mapping[str, Sequence[Any]] | None = None,
    only: str = "",
    alone: bool = False,
    activation: Mapping[str, str] = ON_IMAGES,
    theirs: Mapping[str, str] | None = None,
) -> Plan:
    """The plan of a figure that trains networks.

    Args:
        columns: What the settings of each network are.
        smoke: These settings, ``None`` for none; nothing is planned without a network.
        laptop: Likewise.
        paper: Likewise.
        published: Likewise, of the authors.
        ours: Settings that the networks share, the same at each effort, but not the authors'.
        also: Others that they share: at smoke, laptop and paper effort, and the authors'; ``None`` for none.
        only: The one network to keep; by default all.
        alone: Whether networks can be run one by one.
        activation: Of each network.
        theirs: Likewise, of the authors' networks, if another.

    Example:
        >>> rows = {"smoke": {"mlp": (1, 2)}, "laptop": {"mlp": (9, 2)}, "paper": {"mlp": (50, 3)}}
        >>> plan = planned(["epochs", "seeds"], **rows, published={"mlp": (100, None)}, also={"marks": (5, 5, 50, None)})
        >>> plan.row("paper")["epochs"], plan.row("paper")["marks"], plan.published["seeds"], "marks" in plan.published
        ({'mlp': 50}, 50, {}, False)
    """
    training = {"initial weights": LAW, **{name: getattr(RECIPE, name) for name in _OF_RECIPE}, **(ours or {})}
    rows = []
    for place, every in enumerate((smoke, laptop, paper, published)):
        networks = {
            name: dict(zip(columns, values, strict=True)) for name, values in every.items() if only in ("", name)
        }
        same, kinds = (training, activation) if place < 3 else (PUBLISHED, theirs or activation)
        row = dict(same)
        for column in columns:
            row[column] = {name: sizes[column] for name, sizes in networks.items() if sizes[column] is not None}
        row["activation"] = {name: kinds[name] for name in networks}
        row |= {what: values[place] for what, values in (also or {}).items()}
        rows.append({what: value for what, value in row.items() if value is not None} if networks else {})
    return Plan(rows[0], rows[1], rows[2], rows[3], titles=TITLES, by="activation" if alone else "")


def recipe_of(plan: Mapping[str, Any], epochs: int) -> Recipe:
    """The recipe that a row was planned with, for so many epochs."""
    return dataclasses.replace(RECIPE, **{name: plan[name] for name in _OF_RECIPE}, epochs=epochs)


def builder_of(name: str, shape: Sequence[int], **changes: Any) -> Any:
    """The chapter's network for images of a shape, with one output and ReLU, but for changed settings."""
    settings = {"activation": ON_IMAGES[name], **NETWORKS[name], **changes}
    return functools.partial(builder(name), channels=shape[0], image_size=shape[1], outputs=1, **settings)


def start_of(name: str, shape: Sequence[int], seed: int = 0, **changes: Any) -> Family:
    """One initialisation θ₀, from which network and linearisation both start."""
    with forked_rng(seed_of(seed, "initialisation of chapter 4", name)):
        module: nn.Module = builder_of(name, shape, **changes)()
    return Family.point(module, name=TITLES[name])


def any_start(name: str, shape: Sequence[int]) -> Family:
    """All initialisations, for repetitions that each have their own."""
    return Family.initialised(builder_of(name, shape), name=TITLES[name])


def linearised(family: Family) -> Family:
    """The family's linearisations at its own weights."""
    return family.mapped(linearize, f"linearised {family.name}")


def training_run(family: Family, run: Run) -> Run:
    """Large networks train with tf32 products on a GPU; small ones as the run says."""
    large = family.num_parameters > STACK_LIMIT and run.torch_device.type == "cuda"
    return dataclasses.replace(run.shared, precision="tf32") if large else run.shared


def images(name: str, sizes: tuple[int, int], run: Run, *, halves: bool = False) -> Arrays:
    """Standardised samples of CIFAR-10 or MNIST; with ``halves``, the first five classes against the rest (CIFAR-2)."""
    samples = _read(sizes, *held(name, run))
    if not halves:
        return samples
    return dataclasses.replace(samples, splits={split: (x, (y < 5).long()) for split, (x, y) in samples.splits.items()})


@functools.lru_cache(maxsize=2)
def _read(sizes: tuple[int, int], name: str, root: Path) -> Arrays:
    """Read once for the figures that follow one another."""
    return samples_of(name, sizes=sizes, root=root)


def planned_images(plan: Row, name: str, run: Run, tell: Tell, data: str = "cifar10") -> Arrays:
    """The samples planned for a network. A folder with a part of a data set has fewer, so what there was is told."""
    samples = images(data, (plan["training samples"][name], plan["test samples"][name]), run)
    tell.settings[f"samples: {TITLES[name]}"] = samples.name
    tell.settings[f"training samples: {TITLES[name]}"] = samples.sizes["train"]
    tell.settings[f"test samples: {TITLES[name]}"] = samples.sizes["test"]
    return samples


@dataclass(frozen=True)
class Eigenfunctions:
    """The first eigenfunctions φ_ρ of a tangent kernel at initialisation, over training and test samples together.

    Attributes:
        functions: ``(k, n)`` φ_ρ = √n × eigenvector, training samples first.
        train: How many samples are training samples.
    """

    functions: Tensor
    train: int

    def labels(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """``sign(φ_ρ)`` as 0 and 1, by split; the first eigenfunction has index 1."""
        signs = (self.functions[[index - 1 for index in indices]] > 0).long()
        return {"train": signs[:, : self.train], "test": signs[:, self.train :]}


def kernel_of(network: Network, x: Tensor, run: Run) -> Tensor:
    """The tangent kernel of a network on samples, in memory that leaves room for other processes on the same GPU."""
    sizes = None
    if run.torch_device.type == "cuda" and sum(each.numel() for each in network.params.values()) > STACK_LIMIT:
        numbers = torch.cuda.get_device_properties(run.torch_device).total_memory // run.dtype.itemsize
        sizes = Sizes(128, int(0.12 * numbers), int(0.04 * numbers))
    return tangent_gram(network, x, sizes=sizes, run=dataclasses.replace(run, folder=None)).matrix


def eigenfunctions(family: Family, samples: Arrays, count: int, run: Run) -> Eigenfunctions:
    """Of the kernel of a point family; kept in the run folder."""
    chosen = training_run(family, run)
    network = family.draw(1, seed=0, run=chosen).member(0)

    def work(key: str) -> Outcome:
        x = torch.cat([samples.whole("train")[0], samples.whole("test")[0]])
        kernel = Matrix(kernel_of(network, x, chosen))
        pairs = eigenpairs(kernel, count, tolerance=1e-4, each=True, iterate=len(x) > 2000)
        return {"functions": (pairs.vectors * len(x) ** 0.5).float().cpu()}

    trials = Trials("eigenfunctions", chosen, code=work, at=samples, family=family, samples=samples, count=count)
    return Eigenfunctions(next(trials.outcomes(["pairs"], work))["functions"], samples.sizes["train"])


@dataclass(frozen=True)
class Targets(Course):
    """Trainings on one set of samples, each trial's member a row of labels."""

    samples: Arrays
    labels: dict[str, Tensor]
    how: Recipe

    @property
    def inputs(self) -> Arrays:
        """The samples."""
        return self.samples

    def task(self, kind: str, members: Sequence[int], seed: int, run: Run) -> Task:
        """The samples with the labels of some members."""
        rows = {split: labels[list(members)].to(run.torch_device) for split, labels in self.labels.items()}
        return Relabelled(self.samples.to(run), rows)

    def recipe(self, kind: str) -> Recipe:
        """The same for all."""
        return self.how


@dataclass(frozen=True)
class Learned:
    """How well targets were learned: one entry per target; accuracies of trainings that diverged are nan.

    Models that were trained by their kernel also tell which test samples they answer right, ``(k, n)`` with entries 0 and 1.
    """

    accuracy: np.ndarray
    train_accuracy: np.ndarray
    iterations: np.ndarray
    distance: np.ndarray
    turn: np.ndarray
    curves: np.ndarray
    steps: np.ndarray
    right: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))


def learned(family: Family, samples: Arrays, labels: dict[str, Tensor], recipe: Recipe, run: Run) -> Learned:
    """A network of a point family trained on each of several targets."""
    trials = [Trial("target", row) for row in range(len(labels["train"]))]
    course = Targets(samples, labels, recipe)
    outcomes = trained(family, course, trials, seed=0, run=training_run(family, run), label=family.name)

    def gathered(name: str) -> np.ndarray:
        return torch.stack([outcomes[trial][name].double() for trial in trials]).numpy()

    steps, curves = gathered("steps")[0], gathered("curve")
    finite = gathered("diverged_at") < 0
    return Learned(
        np.where(finite, gathered("accuracy/test"), np.nan),
        np.where(finite, gathered("accuracy/train"), np.nan),
        iterations_to(recipe.threshold, curves, steps),
        gathered("distance"),
        gathered("turn"),
        curves,
        steps,
    )


def iterations_to(threshold: float | None, curves: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Iterations until the loss was below a threshold: the end of the first window of its curve ``(k, W)`` whose mean is.

    A single batch may be below it long before the others are. A curve that never is counts as long as was waited.

    Example:
        >>> iterations_to(0.5, np.array([[0.9, 0.4, 0.1], [0.9, 0.8, 0.7]]), np.array([10.0, 20.0, 30.0]))
        array([20., 30.])
    """
    below = curves < (threshold or 0.0)
    ends: np.ndarray = np.where(below.any(1), steps[below.argmax(1)], steps[-1])
    return ends


def learned_by_kernel(
    family: Family,
    samples: Arrays,
    labels: dict[str, Tensor],
    recipe: Recipe,
    run: Run,
    *,
    at: dict[str, Tensor] | None = None,
    biased: bool = True,
) -> Learned:
    """The linearisation of a point family trained on each of several targets, by its kernel matrix instead of its weights.

    Stochastic gradient descent with momentum moves the weights of a linear model in the span of the gradients of the training samples:
    ``θ − θ₀ = Jᵀa``. Its outputs are ``f₀ + K a``, and a step changes the coefficients a of past batches alone. So the trajectory is
    that of the weights up to rounding, with the same batches, at the cost of one kernel matrix.

    Args:
        family: A point family at θ₀.
        samples: Training and test samples.
        labels: Rows of 0 and 1, by split.
        recipe: Stochastic gradient descent on the logistic loss.
        run: Folder, device, precision of the kernel.
        at: The weights of the kernel, θ₀ by default.
        biased: Whether the model starts at the network's outputs, or at zero.
    """
    chosen = training_run(family, run)
    if (recipe.optimiser, recipe.loss, recipe.weight_decay, recipe.clip) != ("sgd", "logistic", 0.0, None):
        raise ValueError(f"recipe must be SGD on the logistic loss without decay and clipping, got {recipe!r}.")

    def work(key: str) -> Outcome:
        network = family.draw(1, seed=0, run=chosen).member(0)
        if at is not None:
            network = network.with_params({name: at[name].to(each) for name, each in network.params.items()})
        return _linear_model(network, samples, labels, recipe, chosen, biased)

    trials = Trials(
        "linear models by their kernel",
        chosen,
        code=_linear_model,
        at=samples,
        family=family,
        samples=samples,
        labels=labels,
        recipe=recipe,
        weights=at,
        biased=biased,
    )
    numbers = {name: tensor.double().numpy() for name, tensor in next(trials.outcomes(["models"], work)).items()}
    iterations = iterations_to(recipe.threshold, numbers["curves"], numbers["steps"])
    return Learned(iterations=iterations, turn=np.full(len(labels["train"]), np.nan), **numbers)


def _linear_model(
    network: Network, samples: Arrays, labels: dict[str, Tensor], recipe: Recipe, run: Run, biased: bool
) -> Outcome:
    """Coefficients a ``(n, k)`` of all targets, trained together; numbers by target."""
    device = run.torch_device
    x = torch.cat([samples.whole("train")[0], samples.whole("test")[0]])
    kernel = kernel_of(network, x, run).to(device)
    count = samples.sizes["train"]
    start = torch.zeros(len(x), device=device, dtype=torch.float64)
    if biased:
        with torch.no_grad():
            like = next(iter(network.params.values()))
            start = torch.cat([network(part.to(like)).flatten() for part in torch.split(x, 500)]).double()
    signs = {split: (2.0 * rows.T - 1).to(device, torch.float64) for split, rows in labels.items()}  # (n, k)
    total = recipe.total_steps(count)
    a, velocity = torch.zeros_like(signs["train"]), torch.zeros_like(signs["train"])
    losses = torch.zeros(total, a.shape[1], device=device, dtype=torch.float64)
    order = batches(count, recipe, total, seed_of(0, "repeat", 0), device)  # those of trainings in weights
    for step, batch in enumerate(order):
        margin = signs["train"][batch] * (start[batch, None] + kernel[batch, :count].double() @ a)
        losses[step] = F.softplus(-margin).mean(0)
        velocity *= recipe.momentum
        velocity[batch] -= signs["train"][batch] * torch.sigmoid(-margin) / len(batch)
        a -= recipe.rate_at(step, total) * velocity
    fitted = torch.cat([part.double() @ a for part in torch.split(kernel[:, :count], 500)])
    outputs = start[:, None] + fitted
    curves, steps = windows(losses.cpu())
    right = outputs[count:] * signs["test"] > 0
    return {
        "accuracy": right.double().mean(0).cpu(),
        "right": right.T.contiguous().byte().cpu(),
        "train_accuracy": (outputs[:count] * signs["train"] > 0).double().mean(0).cpu(),
        "distance": (a * fitted[:count]).sum(0).clamp_min(0).sqrt().cpu(),
        "curves": curves.T.contiguous(),
        "steps": steps,
    }


def learned_along(walk: Trajectory, task: Task, recipe: Recipe, run: Run) -> Learned:
    """The numbers of one training that was followed."""
    curve, steps = windows(walk.losses)
    test, train = (evaluation(walk.networks, task, split, loss=recipe.loss, run=run) for split in ("test", "train"))
    curves, ends = curve.T.double().numpy(), steps.double().numpy()
    return Learned(
        test.accuracy.double().cpu().numpy().reshape(-1),
        train.accuracy.double().cpu().numpy().reshape(-1),
        iterations_to(recipe.threshold, curves, ends),
        walk.distance.double().numpy(),
        walk.turn.double().numpy(),
        curves,
        ends,
    )


def tell_training(tell: Tell, fitted: np.ndarray, words: str = "") -> None:
    """The best and the median training accuracy over targets; trainings that diverged do not count."""
    for which, take in (("best", np.nanmax), ("median", np.nanmedian)):
        tell(f"{which} training accuracy{words}", Estimate(100 * float(take(fitted))), "%")


FEW = 15  # points from which resampling is trusted with their mean


def mean_of(values: np.ndarray) -> Estimate:
    """The mean over targets or directions. Few of them have Student's interval: resampling understates their spread.

    Example:
        >>> mean_of(np.array([1.0, 2.0, 3.0]))
        2.0 ± 0.58 (95 % CI -0.48 to 4.48)
    """
    return over(values) if len(values) < FEW else bootstrapped(np.mean, values)


def tell_accuracies(tell: Tell, title: str, index: np.ndarray, accuracy: np.ndarray, fitted: np.ndarray) -> None:
    """Tell how test and training accuracies depend on the index of what is learned."""
    of = tell.about(title)
    tell.array(title, np.stack([index, accuracy]), kind="accuracy")
    tell.array(title, np.stack([index, fitted]), kind="training accuracy")
    tell_training(of, fitted)
    of("rank correlation of accuracy and index", bootstrapped(spearman, accuracy, index))
    of("mean accuracy", mean_of(100 * accuracy).within(*PERCENT), "%")
