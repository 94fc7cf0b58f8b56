"""What the figures of chapter 4 share: its networks, its data, eigenfunctions of a tangent kernel, and learning them."""

# n samples · k eigenfunctions

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from biascope import data
from biascope.derivatives.linearize import linearize
from biascope.derivatives.operators import Matrix
from biascope.derivatives.spectrum import eigenpairs
from biascope.families.family import Family, Network
from biascope.kernels.gram import tangent_gram
from biascope.kernels.plan import Sizes
from biascope.measures.directional_bias.result import DirectionalBias
from biascope.networks import builder
from biascope.results.claim import Trained
from biascope.results.estimate import Estimate, Number, bootstrapped, over, spearman
from biascope.results.figures import lines_figure
from biascope.results.finding import Finding
from biascope.results.wording import snake
from biascope.runs.randomness import forked_rng, seed_of
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.samples import samples_of
from biascope.tasks.task import Arrays, Relabelled, Task
from biascope.training.evaluation import STACK_LIMIT, evaluation
from biascope.training.fit import Trajectory, batches
from biascope.training.recipe import Recipe
from biascope.training.sweep import Course, Trial, trained, windows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {"mlp": "MLP", "lenet": "LeNet", "resnet18": "ResNet-18"}
# As in the released code: initial weights by the law of Flax, padded convolutions and average-pooling in LeNet, residual branches that
# start at zero.
NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": (100, 100), "law": "flax"},
    "lenet": {"padding": "same", "pooling": "average", "law": "flax"},
    "resnet18": {"zero_residual": True, "law": "flax"},
}
# Also as released: ReLU on images. The directions of figures 4.4 and 4.5 are those of networks with GELU. For ResNet-18 the released
# settings disagree: its kernel is computed with ReLU, its trainings on eigenfunctions have GELU; here both have ReLU.
ON_IMAGES, ALONG_DIRECTIONS = "relu", "gelu"
PUBLISHED_ON_EIGENFUNCTIONS = {"mlp": ON_IMAGES, "lenet": ON_IMAGES, "resnet18": "gelu (kernel: relu)"}
# "A decaying learning rate starting at 0.05 and momentum set to 0.9 … a batch size of 128", logistic loss on one output.
RECIPE = Recipe(
    "sgd", rate=0.05, schedule="linear", momentum=0.9, epochs=100, batch=128, loss="logistic", threshold=0.01
)
PARTS = {"cifar10": "cifar10-part", "mnist": "mnist-part"}  # .npz files for machines that hold no more


HALF = (0, 1, 2, 3, 4)  # the classes of CIFAR-10 that CIFAR-2 sets against the rest
# What `published` and the settings of every figure share.
COMMON: dict[str, Any] = {
    "initial weights": "flax",
    "optimiser": "sgd",
    "rate": 0.05,
    "schedule": "linear",
    "batch": 128,
}
PUBLISHED = {**COMMON, "momentum": 0.9}


def per_network(names: Sequence[str], **values: Any) -> dict[str, Any]:
    """Settings that are the same for some networks, by the words before the network's name."""
    return {f"{what.replace('_', ' ')}: {TITLES[name]}": value for name in names for what, value in values.items()}


def settings_of(recipe: Recipe, names: Sequence[str], activation: str = ON_IMAGES) -> dict[str, Any]:
    """Law and activation of the networks and what their recipe has in common, under the keys of :data:`COMMON`."""
    laws = sorted({NETWORKS[name]["law"] for name in names})
    return {
        "initial weights": ", ".join(laws),
        "optimiser": recipe.optimiser,
        "rate": recipe.rate,
        "schedule": recipe.schedule,
        "batch": recipe.batch,
        "momentum": recipe.momentum,
        **{f"activation: {TITLES[name]}": activation for name in names},
    }


def builder_of(name: str, shape: Sequence[int], activation: str = ON_IMAGES) -> Any:
    """The chapter's network for images of a shape, with one output."""
    return functools.partial(
        builder(name), channels=shape[0], image_size=shape[1], outputs=1, activation=activation, **NETWORKS[name]
    )


def start_of(name: str, shape: Sequence[int], seed: int = 0, activation: str = ON_IMAGES) -> Family:
    """One initialisation θ₀, from which network and linearisation both start."""
    with forked_rng(seed_of(seed, "initialisation of chapter 4", name)):
        module: nn.Module = builder_of(name, shape, activation)()
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
    found = _read(name, sizes, data.data_root(run.data_root))
    if not halves:
        return found
    return dataclasses.replace(found, splits={split: (x, (y < 5).long()) for split, (x, y) in found.splits.items()})


@functools.lru_cache(maxsize=2)
def _read(name: str, sizes: tuple[int, int], root: Path) -> Arrays:
    """Read once for the figures that follow one another."""
    part = PARTS[name] if (root / f"{PARTS[name]}.npz").exists() else name
    return samples_of(part, sizes=sizes, root=root)


@dataclass(frozen=True)
class Eigenfunctions:
    """The first eigenfunctions of a tangent kernel at initialisation, over training and test samples together.

    Attributes:
        values: ``(k,)`` eigenvalues λ_ρ of the kernel's operator: those of the Gram matrix over n.
        functions: ``(k, n)`` φ_ρ = √n × eigenvector, training samples first.
        train: How many samples are training samples.
    """

    values: Tensor
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
        kernel = kernel_of(network, x, chosen)
        pairs = eigenpairs(Matrix(kernel), count, tolerance=1e-4, each=True, iterate=len(x) > 2000)
        return {
            "values": (pairs.values / len(x)).cpu(),
            "functions": (pairs.vectors * len(x) ** 0.5).float().cpu(),
            "residuals": (pairs.residuals * pairs.values[0] / pairs.values).cpu(),
        }

    trials = Trials("eigenfunctions", chosen, code=work, at=samples, family=family, samples=samples, count=count)
    found = next(trials.outcomes(["pairs"], work))
    return Eigenfunctions(found["values"], found["functions"], samples.sizes["train"])


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
    count = len(labels["train"])
    trials = [Trial("target", row) for row in range(count)]
    course = Targets(samples, labels, recipe)
    found = trained(family, course, trials, seed=0, run=training_run(family, run), label=family.name)

    def gathered(name: str) -> np.ndarray:
        return torch.stack([found[trial][name].double() for trial in trials]).numpy()

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
    found = next(trials.outcomes(["models"], work))
    numbers = {name: tensor.double().numpy() for name, tensor in found.items()}
    missing = np.full(len(labels["train"]), np.nan)
    return Learned(
        iterations=iterations_to(recipe.threshold, numbers["curves"], numbers["steps"]), turn=missing, **numbers
    )


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
    a = torch.zeros_like(signs["train"])
    velocity = torch.zeros_like(a)
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


BINARY = Trained("training_accuracy", chance=50.0, best=100.0)


def best_and_median(title: str, fitted: np.ndarray) -> dict[str, Number]:
    """The best and the median training accuracy over targets in percent; trainings that diverged do not count."""
    return {
        f"{snake(title)}_{which}_training_accuracy": Estimate(100 * float(take(fitted))).named(
            f"{title}: {which} training accuracy", "%"
        )
        for which, take in (("best", np.nanmax), ("median", np.nanmedian))
    }


FEW = 15  # points from which resampling is trusted with their mean


def mean_of(values: np.ndarray) -> Estimate:
    """The mean over targets or directions. Few of them have Student's interval: resampling understates their spread.

    Example:
        >>> mean_of(np.array([1.0, 2.0, 3.0]))
        2.0 ± 0.58 (95 % CI -0.48 to 4.48)
    """
    return over(values) if len(values) < FEW else bootstrapped(np.mean, values)


def fall_and_mean(title: str, found: Learned | DirectionalBias, index: np.ndarray) -> dict[str, Number]:
    """How accuracies fall with the index of what is learned, their mean in percent, and the best and median training accuracy."""
    accuracy, fitted = accuracies_of(found)
    fall, mean = bootstrapped(spearman, accuracy, index), mean_of(100 * accuracy).within(0.0, 100.0)
    return {
        **best_and_median(title, fitted),
        f"{snake(title)}_rank_correlation_of_accuracy_and_index": fall.named(
            f"{title}: rank correlation of accuracy and index"
        ),
        f"{snake(title)}_mean_accuracy": mean.named(f"{title}: mean accuracy", "%"),
    }


def drawn_curves(finding: Finding, dark: bool, x: str, y: str) -> Figure:
    """The curves of a figure on one plot."""
    return lines_figure(finding.curves_of("curve"), x=x, y=y, dark=dark)


def accuracies_of(found: Learned | DirectionalBias) -> tuple[np.ndarray, np.ndarray]:
    """Test and training accuracies by target or direction."""
    if isinstance(found, Learned):
        return found.accuracy, found.train_accuracy
    return found.accuracy[0, 0, 0], found.train_accuracy[0, 0, 0]
