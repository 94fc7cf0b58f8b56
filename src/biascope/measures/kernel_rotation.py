"""Kernel rotation: how training rotates the tangent kernel of a network towards the target."""

# n samples that the kernel is measured on · L leading eigenfunctions of the initial kernel

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from typing_extensions import override

from biascope.derivatives.operators import Matrix
from biascope.derivatives.spectrum import Spectrum, eigenpairs
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.kernels.gram import Gram, tangent_gram
from biascope.kernels.selftest import derivative_checks
from biascope.results.draw import PALETTE, captioned
from biascope.results.estimate import SHARE, Number, over
from biascope.results.figures import lines_figure
from biascope.results.registry import measurement
from biascope.results.result import Result
from biascope.results.story import Step, Story, model_word
from biascope.runs.randomness import generator_for, seed_of
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.task import Arrays, master_dtype
from biascope.training.evaluation import evaluation
from biascope.training.fit import Trajectory, fit
from biascope.training.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class KernelRotation(Result):
    """How the tangent kernel of a network rotated during training; arrays are by repeat and checkpoint.

    Attributes:
        target: The initial eigenfunction that was learned, counted from 1; ``None`` for the labels.
        first: How many eigenfunctions of each kernel the energy is taken on.
        epochs: Epoch of each checkpoint.
        alignment: ``α_t(φ_ρ)`` of the initial eigenfunctions; at the start their eigenvalues.
        target_alignment: ``α_t`` of the target: of its eigenfunction, or of the labels as ±1.
        jacobian_norm: ``E‖∇_θ f(x)‖²``, the trace of the kernel over n.
        energy: Share of the labels ±1 on the first eigenfunctions of the kernel of that time, on training samples.
        effective_rank: ``(tr K)²/‖K‖²_F``.
        accuracy: On the test samples.
        train_accuracy: On the training samples.
        distance: ``‖θ_t − θ₀‖/‖θ₀‖``.
    """

    target: int | None
    first: int
    epochs: np.ndarray
    alignment: np.ndarray
    target_alignment: np.ndarray
    jacobian_norm: np.ndarray
    energy: np.ndarray
    effective_rank: np.ndarray
    accuracy: np.ndarray
    train_accuracy: np.ndarray
    distance: np.ndarray

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "epochs": ("checkpoint",),
        "alignment": ("repeat", "checkpoint", "eigenfunction"),
        **dict.fromkeys(("target_alignment", "jacobian_norm", "energy", "effective_rank"), ("repeat", "checkpoint")),
        **dict.fromkeys(("accuracy", "train_accuracy", "distance"), ("repeat", "checkpoint")),
    }

    @property
    def growth(self) -> np.ndarray:
        """``α_t(φ_ρ)/α_0(φ_ρ)`` (repeat, checkpoint, eigenfunction); nan where rounding errors of the kernel hide it."""
        start = self.alignment[:, :1]
        return np.asarray(self.alignment / np.where(start > 1e-6 * start[:, :, :1], start, np.nan))

    @property
    def target_growth(self) -> np.ndarray:
        """The same of the target (repeat, checkpoint)."""
        return np.asarray(self.target_alignment / self.target_alignment[:, :1])

    @property
    def others_growth(self) -> np.ndarray:
        """The median of :attr:`growth` over the eigenfunctions that are not the target (repeat, checkpoint)."""
        others = np.delete(self.growth, [] if self.target is None else [self.target - 1], axis=2)
        return np.asarray(np.nanmedian(others, axis=2))

    @property
    def kernel_growth(self) -> np.ndarray:
        """How much the kernel grew as a whole, by its trace (repeat, checkpoint)."""
        return np.asarray(self.jacobian_norm / self.jacobian_norm[:, :1])

    @override
    def headline(self) -> dict[str, Number]:
        target, others = self.target_growth[:, -1], self.others_growth[:, -1]
        first, last = (f"energy on the first {self.first} eigenfunctions at the {when}" for when in ("start", "end"))
        return {
            "target_growth": over(target, within=(0.0, math.inf)).named("growth of the target's alignment"),
            "others_growth": over(others, within=(0.0, math.inf)).named("median growth of the other alignments"),
            "growth_ratio": over(target / others, within=(0.0, math.inf)).named(
                "growth of the target relative to the others"
            ),
            "kernel_growth": over(self.kernel_growth[:, -1], within=(0.0, math.inf)).named("growth of the kernel"),
            "energy_at_start": over(self.energy[:, 0], within=(0.0, 1.0)).named(first, SHARE),
            "energy_at_end": over(self.energy[:, -1], within=(0.0, 1.0)).named(last, SHARE),
            "test_accuracy": over(self.accuracy[:, -1], within=(0.0, 1.0)).named("test accuracy", SHARE),
        }

    @override
    def sentence(self) -> str:
        target, others = self.target_growth[:, -1].mean(), self.others_growth[:, -1].mean()
        by = [f"{number:,.{0 if number > 99 else 2}f}" for number in (target, others)]
        turned = "towards" if target > 1.02 * others else "away from" if target < others / 1.02 else ""
        learned = "the labels" if self.target is None else f"the sign of eigenfunction {self.target}"
        rotated = f"rotated {turned} the target" if turned else "did not rotate relative to the target"
        return (
            f"{self.subject} was trained on {learned} for {self.epochs[-1]} epochs. This multiplied the alignment of the target with "
            f"the kernel by {by[0]}, that of other functions by {by[1]}: the kernel {rotated}. Its first {self.first} "
            f"eigenfunctions hold {100 * self.energy[:, -1].mean():.0f} % of the target after training, "
            f"{100 * self.energy[:, 0].mean():.0f} % before."
        )

    @override
    def story(self) -> Story:
        return Story(
            meaning=(
                "If the alignment of the target grows more than that of other functions, training rotates the kernel "
                "towards the target, so that the target becomes easier than it was at initialisation. It does not show that "
                "this rotation causes better test accuracy."
            ),
            next_steps=[
                Step(
                    "Compare the network with its linearisation, whose kernel cannot rotate.",
                    f"biascope measure linearized_training {model_word(self.subject)}",
                )
            ],
        )

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        growth, target, places = self.growth.mean(0), self.target_growth.mean(0), np.arange(self.alignment.shape[2]) + 1
        curves = lines_figure(
            {f"epoch {self.epochs[i]}": (places, growth[i]) for i in range(1, len(growth))},
            x="eigenfunction of the initial kernel",
            y="growth of the alignment",
            log_y=True,
            reading="Where a line rises, the kernel rotated towards that function. Dots or dashes: target. Dotted line: whole kernel.",
            dark=dark,
        )
        axes, colours = curves.axes[0], PALETTE[dark]
        axes.axhline(self.kernel_growth[:, -1].mean(), color=colours.muted, linestyle=":")
        if self.target is None:
            axes.axhline(target[-1], color=colours.ink, linestyle="--")
        else:
            axes.plot(np.full(len(target) - 1, self.target), target[1:], "o", color=colours.ink)
        held, repeats = f"energy on the first {self.first}", len(self.energy)
        shares = {held: self.energy, "training accuracy": self.train_accuracy, "test accuracy": self.accuracy}
        errors = {name: 100 * each.std(0, ddof=1) / math.sqrt(repeats) for name, each in shares.items() if repeats > 1}
        along = {name: (self.epochs, 100 * each.mean(0)) for name, each in shares.items()}
        shown = lines_figure(along, x="epoch", y="share, %", bands=errors, dark=dark)
        return {
            "growth": captioned("Growth along the first eigenfunctions", curves),
            "energy": captioned("Energy of the target on the first eigenfunctions", shown),
        }


def _leading_pairs(kernel: Tensor, num: int, tolerance: float = 1e-6) -> Spectrum:
    """Leading eigenpairs, by iteration where the whole decomposition takes longer."""
    return eigenpairs(Matrix(kernel), num, tolerance=tolerance, each=True, iterate=len(kernel) > max(1000, 8 * num))


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    family = Family.initialised(lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), name="small")
    x = torch.randn(36, 3, generator=torch.Generator().manual_seed(0))
    data = Arrays({"train": (x[:24], torch.zeros(24)), "test": (x[24:], torch.zeros(12))})
    return (family, data), {"target": 3, "leading": 6, "energy": 2, "epochs": 6, "batch": 8, "repeats": 2}


@measurement(
    title="Kernel rotation",
    paper="linearized2021",
    result=KernelRotation,
    example=_example,
    checks=derivative_checks(lambda settings: ("weight",)),
)
def kernel_rotation(
    family: Family,
    data: Arrays,
    *,
    target: int | None = None,
    positive: tuple[int, ...] | None = None,
    leading: int = 100,
    energy: int = 50,
    kernel_samples: int | None = 2000,
    tolerance: float = 1e-6,
    checkpoints: int = 6,
    epochs: int = 100,
    batch: int = 128,
    rate: float = 0.05,
    optimiser: str = "sgd",
    repeats: int = 1,
    readout: str = "first",
    seed: int = 0,
    run: Run | None = None,
) -> KernelRotation:
    """How the tangent kernel of a network rotates towards the training target.

    Definition:
        ``K_t`` is the tangent kernel on n samples after t epochs. The alignment of a function is ``α_t(f) = fᵀK_t f/n²``. For an
        eigenfunction of ``K_0`` with ``E φ_ρ² = 1``, it is ``α_0(φ_ρ) = λ_ρ``. A kernel that only grows multiplies all alignments by
        the same factor. A kernel that rotates raises the target above the others. It also raises the energy ``‖Φ_t y‖²/‖y‖²`` of
        labels ±1 on its first eigenvectors.

    Args:
        family: Networks to train, with one output (logistic loss) or two (cross-entropy).
        data: Samples with splits ``train`` and ``test``.
        target: Learn the sign of this eigenfunction of ``K_0`` on all samples, counted from 1, instead of the labels.
        positive: Classes that count as positive; by default the larger of two.
        leading: Eigenfunctions of ``K_0`` to follow.
        energy: Number of eigenfunctions of each ``K_t`` for the energy.
        kernel_samples: Training samples for the energy and, if labels are learned, for the kernel; ``None`` for all.
        tolerance: Residual of an eigenfunction of ``K_0``, relative to its eigenvalue, at which an iteration for it stops.
        checkpoints: Number of kernels: at the start and at epochs in geometric progression.
        epochs: Passes over the training set; this and the next three defaults are the published recipe.
        batch: Samples in an iteration.
        rate: Initial learning rate; it falls linearly to 0.
        optimiser: ``"sgd"`` or ``"gd"`` (momentum 0.9), ``"adam"`` or ``"adamw"``.
        repeats: Networks to train, each with its own eigenfunctions.
        readout: Scalar to take of several outputs, for the kernel.
        seed: Random seed for weights, order and choice of samples.
        run: Folder (resumable), device, precision.

    Returns:
        Alignments, energy and accuracy at each checkpoint; BatchNorm with the running statistics of that time.

    Raises:
        ValueError: If data and settings do not fit, or training diverges.

    Example:
        >>> family = Family.initialised(lambda: nn.Linear(2, 1, bias=False), name="linear")
        >>> x, y = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]), torch.tensor([1, 0, 1, 0])
        >>> result = kernel_rotation(family, Arrays({"train": (x, y), "test": (x, y)}), leading=2, energy=2, epochs=2)
        >>> result.growth[0, -1], result.energy[0]  # a linear model has one kernel for ever, here of two eigenfunctions
        (array([1., 1.]), array([1., 1., 1.]))

    Reference:
        Ortiz-Jiménez (2023), thesis, section 4.4.2: figures 4.7–4.10, table 4.1.
    """
    run, recipe = run or Run(), Recipe(optimiser, rate, momentum=0.9, epochs=epochs, batch=batch)
    if not {"train", "test"} <= data.splits.keys():
        raise ValueError(
            f"data must have the splits 'train' and 'test', got {', '.join(data.splits)}. Rename the splits."
        )
    if target is not None and positive is not None:
        raise ValueError(
            f"positive and target exclude each other, got positive={positive} and target={target}. Leave one out."
        )
    if checkpoints < 2 or (kernel_samples is not None and kernel_samples < 1):
        raise ValueError(
            f"checkpoints and kernel_samples must be at least 2 and 1, got {checkpoints} and {kernel_samples}. "
            "Pass checkpoints=6, kernel_samples=2000."
        )
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be between 0 and 1, got {tolerance}. Pass tolerance=1e-6.")
    data, device = (data.two_classes(positive) if target is None else data).to(run), run.torch_device
    train = data.sizes["train"]
    order = torch.randperm(train, generator=generator_for(torch.device("cpu"), seed, "samples"))
    rows = order[:kernel_samples].to(device)
    x = data.batch("train", rows)[0]
    if target is not None:  # an eigenfunction that is to be learned must be known on every sample
        x = torch.cat([data.whole(split)[0] for split in ("train", "test")])
    limits = {"leading": (leading, len(x)), "energy": (energy, len(rows)), "target": (target, leading)}
    for name, (number, most) in {**limits, "repeats": (repeats, 1000)}.items():
        if number is not None and not 1 <= number <= most:
            raise ValueError(
                f"{name} must be from 1 to {most}, got {number}. Pass a number in that range, or more data."
            )
    at = sorted({0, *np.geomspace(epochs, 1, max(1, checkpoints - 1)).round().astype(int).tolist()})
    steps = {epoch: epoch * recipe.steps_per_epoch(train) for epoch in at}

    def kernel_of(network: Network) -> Gram:  # not kept: it is large, and what is made of it small
        return tangent_gram(network.read(readout), x, run=replace(run, folder=None))

    asked = {
        "target": target,
        "leading": leading,
        "energy": energy,
        "rows": len(rows),
        "readout": readout,
        "tolerance": tolerance,
        "seed": seed,
    }
    trials = Trials(
        "kernel rotation", run, code=kernel_rotation.function, at=data, family=family, data=data, recipe=recipe, **asked
    )

    def along(repeat: int) -> list[Outcome]:
        @functools.cache
        def trained() -> tuple[Tensor, Arrays, Trajectory]:
            own, task = seed_of(seed, "repeat", repeat), data
            start = family.draw(1, seed=own, run=run).member(0).to(device, master_dtype(run))
            kernel = kernel_of(start)
            pairs = _leading_pairs(kernel.matrix, leading, tolerance)
            kernel.known_targets(pairs, () if target is None else (target,))
            functions = math.sqrt(len(x)) * pairs.vectors  # (L, n), E φ² = 1
            functions[kernel.positive(pairs) :] = math.nan  # any directions of eigenvalue 0
            if target is not None:
                y = (functions[target - 1] > 0).long()
                task = replace(data, splits={"train": (x[:train], y[:train]), "test": (x[train:], y[train:])})
            walk = fit(start, task, recipe, seed=own, run=run, keep_at=list(steps.values())).require_finite()
            return functions, task, walk

        def measured(key: str) -> Outcome:
            functions, task, walk = trained()
            start, network = walk.at(0), walk.at(steps[int(key.split()[-1])])
            gram, labels = kernel_of(network), 2 * task.splits["train"][1][rows].double() - 1
            wanted = labels if target is None else functions[target - 1]
            kernel = gram.matrix
            followed = torch.cat([functions, wanted[None]]).T  # (n, L + 1)
            alignment = (followed * Matrix(kernel).matmul(followed)).sum(0) / len(x) ** 2
            trace, norm = kernel.diagonal().double().sum(), torch.linalg.vector_norm(kernel, dtype=torch.float64)
            seen = gram if target is None else replace(gram, matrix=kernel[rows][:, rows])
            pairs = _leading_pairs(seen.matrix, energy)
            held = pairs.vectors[: (count := seen.positive(pairs))] @ labels
            moved = get_total_norm([network.params[name] - tensor for name, tensor in start.params.items()])
            return {
                "alignment": alignment[:-1],
                "target_alignment": alignment[-1],
                "jacobian_norm": trace / len(x),
                "energy": held.square().sum() / len(labels),
                "positive": torch.tensor(count),
                "effective_rank": (trace / norm).square(),
                "accuracy": evaluation(network, task, "test", run=run).accuracy[0],
                "train_accuracy": evaluation(network, task, "train", run=run).accuracy[0],
                "distance": moved / get_total_norm(start.params.values()),
            }

        return list(trials.outcomes([f"repeat {repeat}, epoch {epoch}" for epoch in steps], measured))

    found = [along(repeat) for repeat in range(repeats)]
    arrays: Any = {n: np.stack([[one[n].double().cpu() for one in each] for each in found]) for n in found[0][0]}
    followed = int(np.isfinite(arrays["alignment"]).all((0, 1)).sum())
    doubts = _doubts_of_rank(
        {"the alignments": (followed, leading), "the energy": (int(arrays.pop("positive").min()), energy)}
    )
    return KernelRotation(target, energy, np.array(at), **arrays, provenance={"warnings": doubts} if doubts else {})


def _doubts_of_rank(counts: Mapping[str, tuple[int, int]]) -> list[str]:
    """A warning for each use of eigenfunctions, of which so many have positive eigenvalues and so many were asked for."""
    return [
        f"Only the first {count} of the {asked} eigenfunctions for {use} have a positive eigenvalue. The others are arbitrary and do "
        "not count. Pass more training samples, or ask for fewer."
        for use, (count, asked) in counts.items()
        if count < asked
    ]
