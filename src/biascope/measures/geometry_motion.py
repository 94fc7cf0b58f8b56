"""Geometry in motion: how the average geometry of a network changes while networks are trained on a data set."""

# R runs · n inputs · D input size

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from biascope.derivatives.covariance import gaussian_sampler, gradient_covariance
from biascope.derivatives.gradients import input_gradient, plain_attention
from biascope.derivatives.matrices import DrawnMatrix, correlation_with_identity, references
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.kernels.selftest import derivative_checks
from biascope.results.draw import captioned
from biascope.results.estimate import SHARE, Estimate, Number, jackknife
from biascope.results.figures import lines_figure
from biascope.results.registry import measurement
from biascope.results.result import Result
from biascope.results.story import Step, Story, model_word
from biascope.runs.randomness import seed_of
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays
from biascope.training.evaluation import STACK_LIMIT, evaluation
from biascope.training.fit import Trajectory, fit
from biascope.training.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECIPE = Recipe("gd", 0.1, schedule="constant", momentum=0.9, epochs=100, batch=128)  # full batches, as published
REFERENCES = ("GSG", "S", "G", "I")  # the data as the network sees them, the data, the network at first, and neither


@dataclass(frozen=True, repr=False)
class GeometryMotion(Result):
    """The average geometry ``G^t`` of networks in training, compared with the matrices that theory names.

    Attributes:
        epochs: Epoch of each checkpoint.
        correlation: ``Corr(G^t, ·)`` with GSG, S, G and I, from pairs of distinct runs; nan where these are too few.
        correlation_error: Standard errors over runs.
        plain: ``Corr(Ĝ^t, ·)`` of the mean over runs, as it is published; a few runs make it smaller.
        left_out: The same without each of the runs in turn, from which errors of differences follow.
        chance: ``Corr(I, ·)`` of the same four.
        velocity: ``1 − Corr(Ĝ^t, Ĝ^{t−1})`` of consecutive checkpoints, at the same inputs.
        velocity_left_out: The same without each of the runs in turn.
        size: ``tr G^t``, relative to the start.
        accuracy: Accuracy of each run on the test samples (without test samples: on the training samples).
        train_accuracy: On the training samples.
        runs: Networks trained.
    """

    epochs: np.ndarray
    correlation: np.ndarray
    correlation_error: np.ndarray
    plain: np.ndarray
    left_out: np.ndarray
    chance: np.ndarray
    velocity: np.ndarray
    velocity_left_out: np.ndarray
    size: np.ndarray
    accuracy: np.ndarray
    train_accuracy: np.ndarray
    runs: int

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "epochs": ("checkpoint",),
        **dict.fromkeys(("correlation", "correlation_error", "plain"), ("checkpoint", "reference")),
        "left_out": ("checkpoint", "reference", "run"),
        "chance": ("reference",),
        "velocity": ("interval",),
        "velocity_left_out": ("interval", "run"),
        "size": ("checkpoint",),
        **dict.fromkeys(("accuracy", "train_accuracy"), ("checkpoint", "run")),
    }

    @classmethod
    def from_earlier(cls, values: dict[str, Any]) -> dict[str, Any]:
        """An earlier file does not have the velocity without single runs: its spread is then unknown."""
        unknown = np.full((len(values["velocity"]), values["runs"]), np.nan)
        return {"velocity_left_out": unknown, **values}

    def level(self, name: str, at: int = -1) -> Estimate:
        """``Corr(Ĝ^t, ·)`` at a checkpoint; error over runs."""
        place = REFERENCES.index(name)
        return self._over_runs(self.plain[at, place], self.left_out[at, place])

    def change(self, name: str, until: int = -1) -> Estimate:
        """How much ``Corr(Ĝ^t, ·)`` has grown from the start to a checkpoint (negative: fallen); error over runs."""
        place = REFERENCES.index(name)
        return self._over_runs(
            self.plain[until, place] - self.plain[0, place], self.left_out[until, place] - self.left_out[0, place]
        )

    def lead(self, until: int = -1) -> Estimate:
        """``Corr(Ĝ^t, GSG) − Corr(Ĝ^t, S)`` at a checkpoint; error over runs."""
        return self._over_runs(
            self.plain[until, 0] - self.plain[until, 1], self.left_out[until, 0] - self.left_out[until, 1]
        )

    def _over_runs(self, value: float, left_out: np.ndarray) -> Estimate:
        """A number as published, with the jackknife's error but not its correction of bias."""
        return Estimate.from_error(float(value), jackknife(float(value), left_out.tolist()).standard_error, self.runs)

    @override
    def headline(self) -> dict[str, Number]:
        numbers: dict[str, Number] = {}
        for name in REFERENCES[:2]:
            for when, index in (("start", 0), ("end", -1)):
                found = self.level(name, index)
                numbers[f"correlation_at_{when}:{name}"] = found.named(f"correlation with {name} at the {when}")
        numbers["first_change"] = self.change("GSG", 1).named("first change towards GSG")
        velocity = self._over_runs(self.velocity.mean(), self.velocity_left_out.mean(0))
        numbers["mean_velocity"] = velocity.named("mean velocity")
        spread = self.train_accuracy[-1]
        error = float(spread.std(ddof=1) / len(spread) ** 0.5) if len(spread) > 1 else float("nan")
        reached = Estimate.from_error(float(spread.mean()), error, len(spread)).within(0.0, 1.0)
        numbers["training_accuracy"] = reached.named("training accuracy", SHARE)
        return numbers

    @override
    def sentence(self) -> str:
        first, last = self.change("GSG", 1).value, self.change("GSG").value
        begin = "moves towards" if first > 0 else "moves away from"
        return (
            f"During {self.epochs[-1]} epochs of training, the geometry of {self.subject} at first {begin} the data as the network "
            f"sees them (GSG). The correlation with GSG changes by {first:+.3f} by epoch {self.epochs[1]} and by {last:+.3f} in total. "
            f"The final correlation is {self.plain[-1, 0]:.2f} with GSG and {self.plain[-1, 1]:.2f} with the plain data (S). "
            f"For a matrix without structure, it is {self.chance[0]:.2f} and {self.chance[1]:.2f}."
        )

    @override
    def story(self) -> Story:
        return Story(
            meaning=(
                "A rising correlation with GSG means that training makes the network react more along directions in which "
                "the data vary and to which it reacted from the start. The curves are means over runs. They do not say "
                "which of the directions are useful for the labels."
            ),
            next_steps=[
                Step(
                    "Look at single checkpoints of your own training.",
                    f"biascope scan {model_word(self.subject)} --checkpoints FOLDER",
                )
            ],
        )

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        places = self.epochs.astype(float)
        curves = {f"with {name}": (places, self.plain[:, i]) for i, name in enumerate(REFERENCES)}
        spread = self.left_out.std(2) * (self.runs - 1) ** 0.5  # the jackknife's standard error
        bands = {f"with {name}": spread[:, i] for i, name in enumerate(REFERENCES)}
        shares = {"training": self.train_accuracy, "test": self.accuracy}
        return {
            "correlation": captioned(
                "Correlation of the geometry during training",
                lines_figure(
                    curves,
                    x="epoch",
                    y="correlation",
                    bands=bands,
                    dark=dark,
                ),
            ),
            "velocity": captioned(
                "Velocity of the geometry",
                lines_figure({"velocity": (places[1:], self.velocity)}, x="epoch", y="1 − Corr(Gᵗ, Gᵗ⁻¹)", dark=dark),
            ),
            "accuracy": captioned(
                "Accuracy",
                lines_figure(
                    {name: (places, 100 * each.mean(1)) for name, each in shares.items()},
                    x="epoch",
                    y="accuracy, %",
                    dark=dark,
                ),
            ),
        }


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    family = Family.initialised(lambda: nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)), name="small")
    x = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    data = Arrays({"train": (x[:20], y[:20]), "test": (x[20:], y[20:])})
    recipe = Recipe("gd", 0.1, schedule="constant", momentum=0.9, epochs=4)
    return (family, data), {"recipe": recipe, "runs": 4, "checkpoints": 3, "probes": 2, "geometry_draws": 32}


@measurement(
    title="Geometry in motion",
    paper="geometry2025",
    result=GeometryMotion,
    example=_example,
    checks=derivative_checks(lambda settings: ("input",)),
)
def geometry_motion(
    family: Family,
    data: Arrays,
    *,
    positive: tuple[int, ...] | None = None,
    recipe: Recipe = RECIPE,
    runs: int = 8,
    checkpoints: int = 8,
    even: bool = False,
    probes: int = 16,
    scale: float = 1e-3,
    geometry_draws: int = 1000,
    readout: str = "mean",
    seed: int = 0,
    run: Run | None = None,
) -> GeometryMotion:
    """How the average geometry of a network moves while it is trained.

    Definition:
        ``G^t = E_{x∼P} E_θ[∇_x f ∇_x fᵀ]`` over networks trained for t epochs. ``S = Σ x xᵀ`` is a sum over the training samples, and
        ``G = G⁰``. ``Corr`` is the cosine of two matrices. The *velocity* is ``1 − Corr(G^t, G^{t−1})``.

    The hypothesis is that the geometry changes along GSG only. For squared loss, theory also gives the sign: at first the geometry
    *shrinks* along GSG, so that ``Corr(G^t, GSG)`` falls. Positive matrices always correlate: ``Corr(I, ·)`` is the value for chance.

    Args:
        family: Networks and the distribution of their weights.
        data: With a split ``train``, and ``test`` if there is one.
        positive: Classes that count as positive; needed if the network has one output and there are more than two classes.
        recipe: Training recipe, with a length in epochs; by default full batches at a constant rate.
        runs: Networks to train, each with its own weights, in one stack.
        checkpoints: Number of checkpoints: at the start and at epochs in geometric progression.
        even: Whether checkpoints are evenly spaced instead.
        probes: Inputs per network for the geometry, the same at every checkpoint.
        scale: Standard deviation of these inputs; 0.001 is published for smooth activations, 1 for ReLU.
        geometry_draws: Networks to estimate the initial geometry G from.
        readout: Scalar to take of several outputs, for the geometry.
        seed: Random seed for weights, order of samples and probes.
        run: Folder (resumable), device, precision.

    Returns:
        Correlations, velocity and accuracy by checkpoint.

    Raises:
        ValueError: If data and settings do not fit, or training diverges.

    Example:
        >>> family = Family.initialised(lambda: nn.Linear(2, 1, bias=False), name="linear")
        >>> x, y = torch.tensor([[3.0, 0.0], [-3.0, 0.0]]), torch.tensor([1, 0])
        >>> recipe = Recipe("gd", 0.1, schedule="constant", momentum=0.9, epochs=40)
        >>> result = geometry_motion(
        ...     family, Arrays({"train": (x, y)}), recipe=recipe, runs=6, probes=1, geometry_draws=400
        ... )
        >>> round(float(result.plain[-1, 1]), 1)  # all weights end along the one direction of the data
        1.0

    Reference:
        Movahedi, Orvieto, Moosavi-Dezfooli (2025). Geometric inductive biases of deep networks. ICLR, figures 2, 3 and 8.
    """
    run = run or Run()
    if runs < 2 or checkpoints < 2:
        raise ValueError(
            f"runs and checkpoints must be at least 2, got {runs} and {checkpoints}. Pass runs=8, checkpoints=8."
        )
    split = "test" if "test" in data.sizes else "train"
    sampler = gaussian_sampler(family, data.shape, probes=probes, scale=scale, readout=readout, seed=seed, run=run)
    if sampler.outputs == 1:
        data = data.two_classes(positive)
    given = data.to(run)
    if recipe.steps is not None or recipe.stop:
        raise ValueError("recipe must have a length in epochs, got one in steps or with stop=True. Pass epochs=100.")
    spread = np.linspace if even else np.geomspace
    at = sorted({0, *spread(recipe.epochs, 1, checkpoints - 1).round().astype(int).tolist()})
    steps = {epoch: epoch * recipe.steps_per_epoch(data.sizes["train"]) for epoch in at}
    geometry = gradient_covariance(sampler, draws=geometry_draws, seed=seed, label=f"{family.name}: geometry")
    own = seed_of(seed, "trained")
    walk: list[Trajectory] = []

    def looked_at(key: str) -> Outcome:
        if not walk:  # one training serves all checkpoints that are missing
            start = family.draw(runs, seed=own, run=run)
            trained = fit(start, given, recipe, seed=own, run=run, keep_at=list(steps.values()))
            walk.append(trained.require_finite())
        networks = walk[0].at(steps[int(key.split()[-1])])
        fitted = evaluation(networks, given, "train", run=run).accuracy
        return {
            "gradients": _gradients(networks.read(readout), sampler.probe, run),
            "accuracy": fitted.clone() if split == "train" else evaluation(networks, given, split, run=run).accuracy,
            "train_accuracy": fitted,
        }

    trials = Trials(
        "geometry in motion",
        run,
        code=looked_at,
        at=data,
        family=family,
        data=data,
        recipe=recipe,
        runs=runs,
        readout=readout,
        seed=seed,
        probe=sampler.probe,
    )
    found = list(trials.outcomes([f"epoch {epoch}" for epoch in steps], looked_at))
    known = references(geometry, given.whole("train")[0])
    matrices = {name: known[name] for name in REFERENCES}
    drawn = [DrawnMatrix(part["gradients"].to(geometry.device)) for part in found]
    each = [one.correlations(matrices) for one in drawn]
    without = [one.left_out(matrices) for one in drawn]
    sizes = np.array([float(one.along_identity().mean()) for one in drawn])
    return GeometryMotion(
        np.array(at),
        np.array([[row[name][0].value for name in REFERENCES] for row in each]),
        np.array([[row[name][0].standard_error for name in REFERENCES] for row in each]),
        np.array([[row[name][1] for name in REFERENCES] for row in each]),
        np.array([[row[name].tolist() for name in REFERENCES] for row in without]),
        np.array([1.0 if matrix is None else correlation_with_identity(matrix) for matrix in matrices.values()]),
        np.array([1 - later.correlation(earlier) for earlier, later in itertools.pairwise(drawn)]),
        np.array(
            [1 - later.correlation_left_out(earlier).cpu().numpy() for earlier, later in itertools.pairwise(drawn)]
        ),
        sizes / sizes[0],
        np.stack([part["accuracy"].double().cpu().numpy() for part in found]),
        np.stack([part["train_accuracy"].double().cpu().numpy() for part in found]),
        runs,
    )


def _gradients(networks: Network, probe: Probe, run: Run) -> Tensor:
    """Input gradients ``(R, n, D)`` of every run at inputs of its own."""
    members = networks.members or 1
    inputs = probe.inputs(0, members, run)
    weights = sum(tensor.numel() for tensor in networks.params.values()) // members
    with run.products(), plain_attention():
        if run.torch_device.type == "cuda" and weights <= STACK_LIMIT:
            return input_gradient(networks, inputs, paired=True)
        return torch.stack([input_gradient(networks.member(i), inputs[i]) for i in range(members)])
