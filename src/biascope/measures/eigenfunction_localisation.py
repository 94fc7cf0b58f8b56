"""Eigenfunction localisation: whether the eigenfunctions that learn a task in a linearised encoder are localised on that task."""

# n samples of each set · c classes

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from biascope.editing.heads import Head, headed
from biascope.editing.outputs import sampled
from biascope.editing.pictures import local_energy_figure
from biascope.editing.results import EditingResult
from biascope.families.network import Network
from biascope.kernels.gram import tangent_gram
from biascope.results.draw import captioned
from biascope.results.estimate import SHARE, Estimate, Number, bootstrapped
from biascope.results.registry import measurement
from biascope.results.story import Step, Story
from biascope.runs.randomness import forked_rng, seed_of
from biascope.runs.run import Run
from biascope.tasks.task import Arrays

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class EigenfunctionLocalisation(EditingResult):
    """Where the eigenfunctions that learn a task in a linearised encoder are localised.

    Attributes:
        names: Names of the task and of the control task.
        states: The weights that kernels were taken at: pre-trained and, on request, random.
        points: Samples of each of the two; those of the task come first.
        energy: ``E_loc``: sum of squares of the right singular vectors at each sample, for each class.
        weighted: The same, each vector with the square of its singular value, as a share of the sum.
        ranks: Singular vectors above the cut-off.
    """

    names: tuple[str, str]
    states: tuple[str, ...]
    points: int
    energy: np.ndarray
    weighted: np.ndarray
    ranks: np.ndarray

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "energy": ("state", "class", "point"),
        "weighted": ("state", "class", "point"),
        "ranks": ("state", "class"),
    }

    def shares(self, energy: np.ndarray) -> dict[str, Estimate]:
        """Share of an energy that lies on the task's samples, by state, with an interval over samples."""
        means = energy.mean(1)
        return {
            state: bootstrapped(
                lambda inside, outside: float(inside.sum() / (inside.sum() + outside.sum())),
                means[i, : self.points],
                means[i, self.points :],
                resamples=400,
            )
            for i, state in enumerate(self.states)
        }

    @override
    def headline(self) -> dict[str, Number]:
        numbers = {
            f"local_energy_share:{state}": each.named(f"share of the local energy on the task, {state}", SHARE)
            for state, each in self.shares(self.energy).items()
        }
        return numbers | {
            f"weighted_energy_share:{state}": each.named(
                f"share of the local energy on the task, weighted by singular values, {state}", SHARE
            )
            for state, each in self.shares(self.weighted).items()
        }

    @override
    def sentence(self) -> str:
        task, other = self.names
        words = [f"{100 * each.value:.0f} % ({state} weights)" for state, each in self.shares(self.energy).items()]
        return (
            f"{' and '.join(words)} of the local energy of the eigenfunctions with which {self.subject} represents {task} lies on "
            f"samples of {task}. The rest lies on {other}. Without localisation, the share is 50 % or more."
        )

    @override
    def story(self) -> Story:
        return Story(
            meaning=(
                "A share near 100 % means that the functions that represent a task are active on its own samples alone, so that "
                "adding its task vector leaves others untouched. Without localisation the share is 50 % or more, because the "
                "kernel between samples of the task contains each sample with itself. Held-out samples of the task as the "
                "control show that value. The share is a property of the tangent kernel, not of trained accuracy."
            ),
            next_steps=[
                Step("Measure how much task vectors interfere.", "biascope edit ENCODER --what disentanglement")
            ],
        )

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        energies = dict(zip(self.states, self.energy, strict=True))
        return {
            "local_energy": captioned("Local energy", local_energy_figure(energies, self.points, self.names, dark=dark))
        }


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    with forked_rng(0):
        encoder = Network.of(nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 5)))
        untrained = Network.of(nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 5)))
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    y = torch.arange(20) % 2
    task, control = (Arrays({"train": (x[part] + shift, y)}, name=name) for part, shift, name in (
        (slice(0, 20), 1.0, "left"), (slice(20, 40), -1.0, "right")))  # fmt: skip
    head = Head(torch.randn(2, 5, generator=torch.Generator().manual_seed(1)), torch.zeros(2))
    return (encoder, head, task, control), {"random": untrained, "points": 12}


@measurement(
    title="Eigenfunction localisation",
    paper="task_arithmetic2023",
    result=EigenfunctionLocalisation,
    example=_example,
    command="biascope edit --what localisation",
)
def eigenfunction_localisation(
    encoder: Network,
    head: Head,
    data: Arrays,
    control: Arrays,
    *,
    random: Network | None = None,
    points: int = 200,
    classes: int | None = 10,
    split: str = "train",
    cutoff: float = 1e-5,
    name: str = "encoder",
    seed: int = 0,
    run: Run | None = None,
) -> EigenfunctionLocalisation:
    """Whether the eigenfunctions that learn a task in a linearised encoder are localised on that task.

    Definition:
        Linearised fine-tuning on a task changes output k by ``Σ_ν β_ν k(x_ν, x)``, a sum over the training points of the task. Let
        ``K_ij = ∇_θ f_k(x_i)ᵀ∇_θ f_k(x_j)`` with ``x_i`` from the task and ``x_j`` from the task and the control task. With
        ``K = U S Vᵀ``, the columns of V are the eigenfunctions φ_ρ at all points. Their local energy is
        ``E_loc(x_j) = Σ_ρ φ_ρ(x_j)²``. If the kernel between the two sets is zero, it is 1 at points of the task and 0 at the
        others. If both sets have one distribution, it is still larger on the task, because ``K`` contains each of its points with
        itself. Held-out samples of the task, passed as the control, show how much larger.

    The published sum gives all eigenfunctions the same weight. A second sum has the weights ``σ_ρ²``, so that eigenfunctions that
    are learned first count most.

    Args:
        encoder: Pre-trained encoder, from inputs to features.
        head: Head of the task; each output has its own kernel.
        data: The task.
        control: The control task.
        random: The same architecture at random weights, for comparison.
        points: Largest number of samples of each task.
        classes: Number of outputs to use, from the first; ``None`` for all.
        split: Split to take samples from.
        cutoff: Singular values below this share of the largest are rounding errors and left out.
        name: Name of the encoder in results.
        seed: Random seed for the choice of samples.
        run: Folder (kernels are saved), device, precision.

    Returns:
        The local energy at every sample, for each output.

    Raises:
        ValueError: If data and settings do not fit.

    Example:
        >>> encoder = Network.of(nn.Linear(4, 1, bias=False))  # f = wᵀx: K = X Xᵀ, and the two sets are orthogonal
        >>> one, other = (Arrays({"train": (3 * axis, torch.zeros(2))}) for axis in torch.eye(4).reshape(2, 2, 4))
        >>> head = Head(torch.ones(1, 1), torch.zeros(1))
        >>> eigenfunction_localisation(encoder, head, one, other, run=Run(device="cpu")).energy
        array([[[1., 1., 0., 0.]]])

    Reference:
        Ortiz-Jiménez (2023), thesis, section 6.6.1, equation (6.10), figures 6.9 and 6.11, appendix D.1.
    """
    run = run or Run()
    if classes is not None and classes < 1:
        raise ValueError(f"classes must be at least 1, got {classes}. Pass classes=10.")
    if not 0 <= cutoff < 1:
        raise ValueError(f"cutoff must be from 0 to 1, got {cutoff}. Pass cutoff=1e-5.")
    count = min(points, *(each.sizes[each._checked(split)] for each in (data, control)))
    few = head if classes is None else head.first(classes)
    samples = [
        sampled(each, split, count, seed=seed_of(seed, which)).to(run).whole(split)[0]
        for which, each in (("task", data), ("control", control))
    ]
    states = {"pre-trained": encoder} | ({} if random is None else {"random": random})
    found: list[list[tuple[np.ndarray, np.ndarray, int]]] = []
    for network in states.values():
        kernel = tangent_gram(
            headed(network, few), samples[0], torch.cat(samples), kernel="each", run=run, label="kernel of a task"
        ).matrix  # (c, n, 2n)
        found.append([_energies(each.double(), cutoff) for each in kernel])
    energy, weighted, ranks = (np.array([[each[part] for each in state] for state in found]) for part in range(3))
    return EigenfunctionLocalisation(
        (data.name, control.name), tuple(states), count, energy, weighted, ranks, encoder=name,
        provenance={"control": control.name, "points": count},
    )  # fmt: skip


def _energies(kernel: Tensor, cutoff: float) -> tuple[np.ndarray, np.ndarray, int]:
    """Local energy at each column, the same by squares of singular values, and how many of these count."""
    _, values, right = torch.linalg.svd(kernel, full_matrices=False)
    kept = values > cutoff * values[0]
    squares = right[kept].square()
    weighted = values[kept].square() @ squares
    return squares.sum(0).cpu().numpy(), (weighted / weighted.sum()).cpu().numpy(), int(kept.sum())
