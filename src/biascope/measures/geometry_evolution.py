"""Geometry evolution: how the average geometry of a network changes at the start of training on a data set."""

# T draws · n inputs · D input size

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from biascope.derivatives.covariance import gaussian_sampler, gradient_covariance
from biascope.derivatives.matrices import FORMED, DrawnMatrix, GramOfRows, correlation_with_identity, references
from biascope.derivatives.operators import Matrix
from biascope.derivatives.spectrum import eigenpairs
from biascope.families.family import Family
from biascope.families.network import Network
from biascope.kernels.selftest import derivative_checks
from biascope.results.draw import captioned
from biascope.results.estimate import SHARE, Estimate, Number
from biascope.results.figures import lines_figure
from biascope.results.registry import measurement
from biascope.results.result import Result
from biascope.results.story import Step, Story, model_word
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run
from biascope.runs.trials import Outcome, Trials
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays, master_dtype
from biascope.training.evaluation import STACK_LIMIT
from biascope.training.velocity import gradient_velocity, weight_velocity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REFERENCES = ("S", "GSG", "G", "I")  # the data, the data as the network sees them, the network, and neither
MOST_DIRECTIONS = 100  # leading directions that are looked at where matrices are too large to be formed
STACKED, SMALL = 32, 20_000  # members of a stack, and weights of a network up to which stacks pay on a CPU


@dataclass(frozen=True, repr=False)
class GeometryEvolution(Result):
    """The average geometry evolution Δ of a family on a data set, compared with the matrices that theory names.

    Attributes:
        correlation: ``Corr(Δ, ·)`` with S, GSG, G and I, from pairs of distinct draws.
        correlation_error: Standard errors over groups of draws.
        plain: ``Corr(Δ̂, ·)`` of the mean over draws, whose norm few draws inflate.
        chance: ``Corr(I, ·)`` of the same four: what a matrix without structure has in common with them.
        sizes: Numbers of leading directions k.
        overlap: Share of the k leading directions of Δ (by size, whatever the sign) within those of GSG.
        eigenvalues: Eigenvalues of Δ, from the most negative to the most positive, relative to the largest in size; of inputs with
            more than 4,096 numbers the 100 of largest size.
        draws: Networks.
        inputs: Numbers in an input.
    """

    correlation: np.ndarray
    correlation_error: np.ndarray
    plain: np.ndarray
    chance: np.ndarray
    sizes: np.ndarray
    overlap: np.ndarray
    eigenvalues: np.ndarray
    draws: int
    inputs: int

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(("correlation", "correlation_error", "plain", "chance"), ("reference",)),
        **dict.fromkeys(("sizes", "overlap"), ("size",)),
        "eigenvalues": ("eigenvalue",),
    }

    @classmethod
    def from_earlier(cls, values: dict[str, Any]) -> dict[str, Any]:
        """An earlier file has all eigenvalues, as many as there are inputs."""
        return {"inputs": len(values["eigenvalues"]), **values}

    def with_reference(self, name: str) -> Estimate:
        """``Corr(Δ, ·)`` with one of the matrices; of too few draws the plain one, its spread unknown."""
        place = REFERENCES.index(name)
        value, error = float(self.correlation[place]), float(self.correlation_error[place])
        if not np.isfinite([value, error]).all():
            return Estimate(float(self.plain[place]))
        # The correction for noise may overshoot: no correlation lies beyond -1 or 1.
        return Estimate.from_error(value, error, min(32, self.draws)).within(-1.0, 1.0)

    @override
    def headline(self) -> dict[str, Number]:
        place = int(np.abs(self.sizes - 10).argmin())
        within = f"share of the {self.sizes[place]} leading directions within those of GSG"
        return {
            **{
                f"correlation:{name}": self.with_reference(name).named(f"correlation with {name}")
                for name in REFERENCES
            },
            "leading_overlap": Estimate(float(self.overlap[place])).named(within, SHARE),
        }

    @override
    def sentence(self) -> str:
        data, seen = (self.with_reference(name).value for name in ("S", "GSG"))
        whole = "shrinks" if self.with_reference("I").value < 0 else "grows"
        closer = "the data as the network sees them (GSG)" if abs(seen) >= abs(data) else "the plain data (S)"
        return (
            f"At the start of training, the geometry of {self.subject} {whole}. Its change resembles {closer}: the correlation is "
            f"{seen:.2f} with GSG and {data:.2f} with S. For a matrix without structure, it is {self.chance[1]:.2f} and "
            f"{self.chance[0]:.2f} in absolute value."
        )

    @override
    def story(self) -> Story:
        return Story(
            meaning=(
                "A correlation well above that of a matrix without structure means that training first changes the geometry "
                "where the data vary and the network already reacts. It is about the start of training only."
            ),
            next_steps=[
                Step(
                    "Follow the geometry through training.",
                    f"biascope measure geometry_motion {model_word(self.subject)}",
                )
            ],
        )

    @override
    def plots(self, dark: bool = False) -> dict[str, Figure]:
        line = np.arange(1, len(self.eigenvalues) + 1)
        return {
            "overlap_with_gsg": captioned(
                "Leading directions of the evolution within those of GSG",
                lines_figure(
                    {
                        "measured": (self.sizes, self.overlap),
                        "by chance": (self.sizes, self.sizes / self.inputs),
                    },
                    x="number of leading directions",
                    y="share of the directions",
                    log_x=True,
                    dark=dark,
                ),
            ),
            "eigenvalues": captioned(
                "Eigenvalues of the evolution",
                lines_figure(
                    {"eigenvalue": (line, self.eigenvalues)},
                    x="index",
                    y="eigenvalue / largest",
                    dark=dark,
                ),
            ),
        }


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    family = Family.initialised(lambda: nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)), name="small")
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    return (family, Arrays({"train": (x, (x[:, 0] > 0).long())})), {"draws": 24, "probes": 2, "geometry_draws": 64}


@measurement(
    title="Geometry evolution",
    paper="geometry2025",
    result=GeometryEvolution,
    example=_example,
    checks=derivative_checks(lambda settings: ("input", "weight")),
)
def geometry_evolution(
    family: Family,
    data: Arrays,
    *,
    positive: tuple[int, ...] | None = None,
    loss: str | None = "squared",
    labels: bool = True,
    draws: int = 200,
    batch: int | None = None,
    probes: int = 8,
    scale: float = 1e-3,
    geometry_draws: int = 1000,
    readout: str = "mean",
    seed: int = 0,
    run: Run | None = None,
) -> GeometryEvolution:
    """How the average geometry of a network begins to change when it is trained on a data set.

    Definition:
        ``Δ = d/dt E_{x∼P} E_θ[∇_x f ∇_x fᵀ] = E[ġ gᵀ + g ġᵀ]`` under gradient flow on the training samples, with ``g = ∇_x f(x)``
        at a probe x and ``ġ = ∇²_{x,θ}f(x) θ̇``. For squared loss ``L = ½Σ(f − y)²``, theory gives the leading order: ``Δ ∝ −S`` for
        networks without a preferred direction, and ``Δ ∝ −GSG`` for a wide linear CNN with pooling.

    Estimated with one backward pass over the data for ``θ̇`` and one forward derivative of the input gradient for ``ġ``.
    Correlations are ratios of U-statistics: ``‖Δ‖²`` comes from pairs of distinct draws. So it does not contain the noise of each
    draw's own square, and a correlation shows with few draws.

    Args:
        family: Networks and the distribution of their weights.
        data: Samples; the split ``train`` is used.
        positive: Classes that count as positive; needed if the network has one output and there are more than two classes.
        loss: ``"squared"``, or a loss of the training recipe (``None``: logistic or cross-entropy).
        labels: Whether to train on the labels; else, with squared loss, every target is 0. At initialisation, labels add a part to
            each draw. Its mean is zero if the last layer is symmetric about 0, and it is most of the noise.
        draws: Networks to draw, at least 3; hundreds to thousands for large inputs.
        batch: Training samples per network, chosen anew for each; all by default. In the same time, many networks on few samples are
            more informative than few networks on many samples.
        probes: Inputs per network, drawn afresh.
        scale: Standard deviation of these inputs; 0.001 is published for smooth activations, 1 for ReLU.
        geometry_draws: Networks to estimate the initial geometry G from.
        readout: Scalar to take of several outputs, for the geometry.
        seed: Random seed for weights and probes.
        run: Folder (resumable), device, precision.

    Returns:
        Correlations of Δ with S, GSG, G and the identity, and its directions.

    Raises:
        ValueError: If data and settings do not fit.

    Example:
        >>> family = Family.initialised(lambda: nn.Linear(4, 1, bias=False), name="linear")
        >>> x = torch.tensor([[2.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
        >>> result = geometry_evolution(family, Arrays({"train": (x, torch.tensor([0, 1]))}), draws=400)
        >>> round(result.with_reference("S").value, 1)  # Δ = −2σ²S exactly
        -1.0

    Reference:
        Movahedi, Orvieto, Moosavi-Dezfooli (2025). Geometric inductive biases of deep networks. ICLR, definition 2.2.
    """
    run = run or Run()
    size = int(np.prod(data.shape))
    least_of = {"draws": 3, "batch": 1, "probes": 1, "geometry_draws": 2}
    for name, number in (
        ("draws", draws),
        ("batch", batch),
        ("probes", probes),
        ("geometry_draws", geometry_draws),
    ):
        if number is not None and number < (least := least_of[name]):
            raise ValueError(f"{name} must be at least {least}, got {number}. Pass {name}={8 * least}.")
    if not labels and loss != "squared":
        raise ValueError(f"labels=False needs loss='squared', got {loss!r}. Pass labels=True.")
    sampler = gaussian_sampler(family, data.shape, probes=probes, scale=scale, readout=readout, seed=seed, run=run)
    outputs = sampler.outputs
    if outputs == 1:
        data = data.two_classes(positive)
    x, y = data.to(run).whole("train")
    if not labels:
        y = x.new_zeros(len(x)) if outputs == 1 else x.new_zeros(len(x), outputs)
    geometry = gradient_covariance(sampler, draws=geometry_draws, seed=seed, label=f"{family.name}: geometry")
    how = {"loss": loss, "labels": labels, "batch": batch, "readout": readout}
    drawn = _drawn(family, x, y, sampler.probe, draws=draws, seed=seed, run=run, **how)
    known = references(geometry, x)
    matrices = {name: known[name] for name in REFERENCES}
    found = drawn.correlations(matrices)
    most = size if size <= FORMED else MOST_DIRECTIONS
    sizes = [k for k in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if k < size and k <= most] or [1]
    values, leading = drawn.leading(most, seed=seed)
    towards = _directions(matrices["GSG"], sizes[-1]).to(leading)
    sizes = [k for k in sizes if k <= len(towards)]
    return GeometryEvolution(
        np.array([found[name][0].value for name in REFERENCES]),
        np.array([found[name][0].standard_error for name in REFERENCES]),
        np.array([found[name][1] for name in REFERENCES]),
        np.array([1.0 if each is None else correlation_with_identity(each) for each in matrices.values()]),
        np.array(sizes),
        np.array([float((towards[:k] @ leading[:, :k]).square().sum() / k) for k in sizes]),
        (values.sort().values / values.abs().max()).cpu().numpy(),
        draws,
        size,
        provenance={"outputs": outputs},
    )


def _directions(seen: Tensor | GramOfRows | None, num: int) -> Tensor:
    """The leading eigenvectors of GSG as rows, no more than its rank: those beyond are arbitrary."""
    assert seen is not None  # only the identity is left out
    found = (
        eigenpairs(seen, min(num, len(seen.rows))) if isinstance(seen, GramOfRows) else eigenpairs(Matrix(seen), num)
    )
    return found.vectors[: max(1, found.positive(1e-12))]


def _drawn(
    family: Family, x: Tensor, y: Tensor, probe: Probe, *, draws: int, seed: int, run: Run, **how: Any
) -> DrawnMatrix:
    """Δ of each draw as rows, a stack at a time; kept in the run folder."""
    most = SMALL if run.torch_device.type == "cpu" else STACK_LIMIT
    large = family.num_parameters > most  # a core, or a GPU, is busy enough with one
    step = 1 if large else STACKED
    whole = replace(run, precision="float64" if run.precision == "float64" else "float32")
    stream = family.draws(seed=seed, run=whole)

    def rows(key: str) -> Outcome:
        start, stop = (int(part) for part in key.split()[1:])
        networks: Network = stream[start:stop].to(run.torch_device, master_dtype(run))
        inputs = probe.inputs(start, stop, whole)
        if large:
            networks, inputs = networks.member(0), inputs[0]
        generator = generator_for(torch.device("cpu"), seed, "samples", start)
        few = slice(None) if how["batch"] is None else torch.randperm(len(x), generator=generator)[: how["batch"]]
        with run.products():
            velocity = weight_velocity(networks, x[few], y[few], loss=how["loss"])
            gradients, moved = gradient_velocity(networks.read(how["readout"]), inputs, velocity, paired=not large)
        shape = (stop - start, probe.num, -1)
        return {"left": 2 * moved.reshape(shape), "right": gradients.reshape(shape)}

    trials = Trials(
        "geometry evolution", run, code=rows, at=x, family=family, probe=probe, samples_seen=(x, y), seed=seed, **how
    )
    keys = [f"draws {start} {min(start + step, draws)}" for start in range(0, draws, step)]
    found = []
    with run.tracked(f"{family.name}: evolution", draws) as advance:
        for part in trials.outcomes(keys, rows):
            found.append(part)
            advance(len(part["left"]))
    device = run.torch_device
    sides = [torch.cat([part[side] for part in found]).to(device) for side in ("left", "right")]
    for each in sides:
        if not bool(each.isfinite().all()) or not bool(each.any()):
            raise ValueError(
                f"The geometry of {family.name} must change at a finite rate in {whole.precision}, but the rate is 0 or infinite. "
                "Check the scale of its outputs, or pass precision='float64'."
            )
    return DrawnMatrix(*sides)
