"""How much networks can change along the directions of the data before training, and which of them hardly can."""

# n samples · D input size · r principal directions · c classes · a architectures · g groups of draws

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from biascope.derivatives.covariance import gaussian_sampler, gradient_covariance
from biascope.derivatives.gradients import forward_flops
from biascope.derivatives.operators import GradientCovariance
from biascope.families.family import Family
from biascope.kernels.selftest import warnings_of
from biascope.measures.match.result import Match
from biascope.results.estimate import jackknife
from biascope.results.registry import check_samples, measurement
from biascope.runs.progress import phase
from biascope.runs.rehearsal import Expectation, Stage
from biascope.runs.run import Run
from biascope.tasks.probe import Probe
from biascope.tasks.task import Arrays

FLOOR = 0.01  # of an isotropic network's freedom is granted in every direction: training opens closed ones a little
LEAST_DRAWS = 8
_LEAST_SHRINKAGE = 1e-3  # so that the within-class covariance can be inverted
_DUST = 1e-10  # share of the largest variance below which a direction is rounding


@dataclass(frozen=True)
class Directions:
    """Unit vectors of input space and their weights.

    Attributes:
        vectors: ``(k, D)`` unit rows, float64.
        weights: ``(k,)``, of sum 1.
    """

    vectors: Tensor
    weights: Tensor


def data_directions(x: Tensor, y: Tensor | None = None) -> dict[str, Directions]:
    """Where samples vary and, with labels, where their classes differ.

    - ``data``: eigenvectors of the covariance ``S = Σ_μ (x_μ − x̄)(x_μ − x̄)ᵀ/n``, weighted by their share of the variance;
    - ``class means``: eigenvectors of ``S_B = Σ_c p_c (m_c − x̄)(m_c − x̄)ᵀ``, weighted by theirs;
    - ``Fisher``: solutions of ``S_B f = J S_W f``, weighted by ``J/ΣJ``, where the covariance ``S_W`` within classes is
      shrunk to a multiple of the identity as far as so many samples warrant (Ledoit and Wolf).

    Args:
        x: Samples ``(n, …)``.
        y: Classes ``(n,)``, or ``None``.

    Raises:
        ValueError: If the samples, the class means, or the samples of each class do not differ.

    Example:
        >>> x = torch.tensor([[3.0, 1.0], [3.0, -1.0], [-3.0, 1.0], [-3.0, -1.0]])
        >>> found = data_directions(x, torch.tensor([1, 1, 0, 0]))
        >>> found["data"].weights.tolist(), found["class means"].vectors.abs().tolist()
        ([0.9, 0.1], [[1.0, 0.0]])

    Reference:
        Ledoit, Wolf (2004). A well-conditioned estimator for large-dimensional covariance matrices. J. Multivariate Anal. 88.
    """
    flat = x.flatten(1).double()
    flat = flat - flat.mean(0)
    samples, size = flat.shape
    if samples < 2 or not float(flat.square().sum()) > 0:
        raise ValueError(f"Samples must differ from one another, got {samples} without variance. Pass more samples.")
    if samples > size:
        values, vectors = torch.linalg.eigh(flat.T @ flat / samples)
    else:  # the same from the smaller matrix
        values, sides = torch.linalg.eigh(flat @ flat.T / samples)
        vectors = flat.T @ (sides / (samples * values).clamp_min(1e-300).sqrt())
    kept = (values > _DUST * values[-1]).nonzero().flatten().flip(0)
    values, vectors = values[kept], vectors[:, kept].T  # (r,), (r, D)
    found = {"data": Directions(vectors, values / values.sum())}
    if y is None:
        return found
    coordinates = flat @ vectors.T  # (n, r)
    means, place = _class_means(coordinates, y)
    between = means * (torch.bincount(place).to(means) / samples).sqrt()[:, None]  # (c, r), S_B = betweenᵀ between
    _, spread, axes = torch.linalg.svd(between, full_matrices=False)
    real = spread.square() > _DUST * values[0]
    if not bool(real.any()):
        raise ValueError("Class means must differ, but all are equal. Pass labels=False to use the inputs alone.")
    shares = spread[real].square()
    found["class means"] = Directions(axes[real] @ vectors, shares / shares.sum())
    solved = torch.linalg.solve(_shrunk(coordinates - means[place], size), between.T)  # (r, c)
    strength, mixed = torch.linalg.eigh(between @ solved)
    real = strength > _DUST * strength[-1]
    fisher = (solved @ mixed[:, real]).T  # (k, r)
    fisher = fisher / fisher.norm(dim=1, keepdim=True)
    found["Fisher"] = Directions((fisher @ vectors).flip(0), (strength[real] / strength[real].sum()).flip(0))
    return found


def _class_means(coordinates: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of every class and, for each sample, which of them is its own."""
    classes, place = torch.unique(y.to(coordinates.device), return_inverse=True)
    if len(classes) < 2 or len(classes) > len(y) // 2 or y.is_floating_point():
        raise ValueError(
            f"Labels must have at least two classes with two samples each on average, got {len(classes)} classes for {len(y)} "
            "samples. Pass more samples, or labels=False to use the inputs alone."
        )
    sums = torch.zeros(len(classes), coordinates.shape[1], dtype=coordinates.dtype, device=coordinates.device)
    counts = torch.bincount(place).to(coordinates)
    return sums.index_add_(0, place, coordinates) / counts[:, None], place


def _shrunk(rows: Tensor, size: int) -> Tensor:
    """The covariance of centred rows, known to lie in D dimensions, shrunk to a multiple of the identity."""
    samples = len(rows)
    covariance = rows.T @ rows / samples
    trace, norm = float(covariance.trace()), float(covariance.square().sum())
    if not trace > 0:
        raise ValueError("Samples within a class must differ, but do not. Pass labels=False to use the inputs alone.")
    distance = norm - trace**2 / size
    noise = (float(rows.square().sum(1).square().mean()) - norm) / samples
    share = 1.0 if noise >= distance else max(noise / distance, _LEAST_SHRINKAGE)
    identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    return (1 - share) * covariance + share * trace / size * identity


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    def pooled() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))

    def dense() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.Tanh(), nn.Linear(6, 2))

    images, classes = torch.randn(40, 1, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    data = Arrays({"train": (images + classes[:, None, None, None], classes)}, name="noise, brighter or not")
    return ([Family.initialised(pooled, name="pooled"), Family.initialised(dense, name="dense")], data), {"draws": 32}


@measurement(
    title="Match of networks and data",
    paper="geometry2025",
    result=Match,
    example=_example,
    command="biascope match",
)
def match(
    families: Sequence[Family],
    data: Arrays,
    *,
    labels: bool = True,
    draws: int = 256,
    inputs: int = 4,
    scale: float = 1e-3,
    readout: str = "mean",
    seed: int = 0,
    run: Run | None = None,
) -> Match:
    """How much networks can change along the directions of the data before training. It warns, but does not predict accuracy.

    Definition:
        ``G = E_{x∼N(0, σ²I)} E_θ[∇_x f ∇_x fᵀ]`` is the average geometry at initialisation. Let ``u_k`` be unit directions of the data
        with weights ``w_k`` of sum 1 (see :func:`data_directions`). The overlap is the weighted geometric mean of the geometry along
        them,

            log₂ overlap = Σ_k w_k log₂[(1 − ε)·D·u_kᵀG u_k/tr G + ε],   ε = 0.01.

        It does not depend on the scale of the weights or of the data. It is 1 for an isotropic network and any data. For the
        principal directions of the data, it is largest if G has the shape of their covariance (Gibbs' inequality). Geometry in
        directions where the data do not vary is lost. Missing geometry where the data vary costs more than is gained elsewhere.

        Estimated from independent groups of draws. Values are corrected for bias, and intervals are jackknife intervals over the
        groups. The result warns if the whole interval is more than two bits below neutral. It uses the interval along
        ``class means`` with labels, and along ``data`` without.

    Args:
        families: Architectures with different names, with the distribution of their initial weights.
        data: Samples; the split ``train`` is used.
        labels: Whether to use the classes.
        draws: Networks to draw of each architecture, at least 8.
        inputs: Fresh Gaussian inputs for each network.
        scale: Standard deviation σ of the inputs.
        readout: Scalar to take of several outputs.
        seed: Random seed for weights and inputs.
        run: Folder (resumable), device, precision.

    Returns:
        Gains in the given order, warnings, and the size of each network.

    Raises:
        ValueError: If architectures and data do not fit, or there are too few draws or samples.

    Example:
        >>> from torch import nn
        >>> even = Family.initialised(lambda: nn.Linear(2, 1, bias=False), name="linear")
        >>> data = Arrays({"train": (torch.tensor([[3.0, 1.0], [-3.0, 1.0], [0.0, -2.0]]), torch.zeros(3))})
        >>> result = match([even], data, labels=False, draws=4000)
        >>> abs(result.gain(0).value - 1) < 0.05  # all directions count alike to a linear network
        True

    Reference:
        Movahedi, Orvieto, Moosavi-Dezfooli (2025). Geometric inductive biases of deep networks. ICLR, definition 2.1.
    """
    run = run or Run()
    _check(families, data, draws)
    names = [family.name for family in families]
    x, y = data.to(run).whole("train")
    with phase("directions of the data"):
        found = data_directions(x, y if labels else None)
    estimates, facts, warnings = [], [], []
    probe = Probe.gaussian(data.shape, num=2, std=scale, seed=seed)
    for family in families:
        warnings += warnings_of(
            family,
            lambda precise: probe.inputs(0, 1, precise),
            derivatives=("input",),
            readout=readout,
            seed=seed,
            run=run,
        )
        sampler = gaussian_sampler(family, data.shape, probes=inputs, scale=scale, readout=readout, seed=seed, run=run)
        covariance = gradient_covariance(sampler, draws=draws, seed=seed, label=f"{family.name}: geometry")
        each = {kind: _overlaps(covariance, directions) for kind, directions in found.items()}
        estimates.append([jackknife(full, left.tolist()) for full, left in each.values()])
        size = family.num_parameters, _flops(family, data, run), family.num_layers
        facts.append((*size, covariance.effective_rank().value))
    numbers = {
        name: np.array([[getattr(each[row], of) for each in estimates] for row in range(len(found))])
        for name, of in (("overlap", "value"), ("errors", "standard_error"), ("low", "low"), ("high", "high"))
    }
    parameters, flops, layers, ranks = (np.array([fact[part] for fact in facts]) for part in range(4))
    return Match(
        names=tuple(names),
        kinds=tuple(found),
        along="class means" if labels else "data",
        **numbers,
        parameters=parameters,
        flops=flops,
        layers=layers,
        effective_ranks=ranks,
        draws=draws,
        data=data.name,
        provenance={"warnings": warnings},
    )


def _check(families: Sequence[Family], data: Arrays, draws: int) -> None:
    """Refuse what cannot be measured, before any work."""
    names = [family.name for family in families]
    if not families or len(set(names)) < len(names):
        raise ValueError(f"Networks must be one or more with different names, got {names}. Rename or remove some.")
    if draws < LEAST_DRAWS:
        raise ValueError(f"draws must be at least {LEAST_DRAWS} for an interval, got {draws}. Pass draws=256.")
    for family in families:
        check_samples(family, data)


def expected_time(
    families: Sequence[Family],
    data: Arrays,
    *,
    labels: bool = True,
    draws: int = 256,
    inputs: int = 4,
    scale: float = 1e-3,
    readout: str = "mean",
    seed: int = 0,
    run: Run | None = None,
) -> Expectation:
    """How long :func:`match` takes with these arguments, from timing a few draws of every architecture."""
    run, begin = run or Run(), time.perf_counter()
    _check(families, data, draws)
    x, y = data.to(run).whole("train")
    data_directions(x, y if labels else None)
    stages = [Stage("directions of the data", 1, 1, (spent := time.perf_counter() - begin), spent)]
    for family in families:
        sampler = gaussian_sampler(family, data.shape, probes=inputs, scale=scale, readout=readout, seed=seed, run=run)
        stages.append(Stage(f"{family.name}: geometry", draws, 0, 0.0, sampler.expected_seconds(draws)))
    return Expectation(sum(stage.seconds or 0.0 for stage in stages), tuple(stages), whole=False)


def _overlaps(covariance: GradientCovariance, directions: Directions) -> tuple[float, np.ndarray]:
    """The binary logarithm of the overlap from all groups of draws, and without each of them ``(g,)``."""
    columns, weights = directions.vectors.T.contiguous(), directions.weights.cpu().numpy()
    forms = torch.stack([group.second.quadratic(columns) for group in covariance.groups]).cpu().numpy()  # (g, k)
    traces = np.array([group.trace for group in covariance.groups])

    def overlap(form: np.ndarray, trace: float) -> float:
        freedom = covariance.size * np.maximum(form, 0.0) / trace
        return float(weights @ np.log2((1 - FLOOR) * freedom + FLOOR))

    form, trace = forms.sum(0), float(traces.sum())
    left = [overlap(form - part, trace - float(own)) for part, own in zip(forms, traces, strict=True)]
    return overlap(form, trace), np.array(left)


def _flops(family: Family, data: Arrays, run: Run) -> int:
    """Operations of one forward pass of one sample."""
    device, dtype = run.torch_device, run.dtype
    return forward_flops(family.template.to(device, dtype), torch.zeros(1, *data.shape, device=device, dtype=dtype))
