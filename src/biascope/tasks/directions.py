"""Tasks whose classes depend on a few directions of input space: circles, labels along a direction, Gaussian data.

Reference: Movahedi, Orvieto, Moosavi-Dezfooli (2025). Geometric inductive biases of deep networks. ICLR; and its released code.
"""

# m members · n samples · k directions of a member · D input size · C channels

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Required, TypedDict, Unpack

import torch
from torch import Tensor
from typing_extensions import override

from biascope.runs.ambient import under_torch_defaults
from biascope.runs.randomness import generator_for
from biascope.runs.run import Run
from biascope.tasks.task import Arrays, Relabelled, Task, along_directions

LABELLINGS = ("linear", "quadratic", "sinusoidal")
_BLOCK = 4096  # samples whose label noise is drawn in one go; part of what a seed means


class Draw(TypedDict, total=False):
    """Number of samples, seed, device and precision.

    Attributes:
        train: Training samples, 10,000 by default.
        test: Test samples, 2000 by default.
        seed: Random seed for all draws: noise, labels, angles.
        run: Device and precision.
    """

    train: int
    test: int
    seed: Required[int]
    run: Run | None


class NoisyDraw(Draw, total=False):
    """The same, with noise in the directions that carry no class information.

    Attributes:
        noise: Its standard deviation σ, 1 by default.
    """

    noise: float


@under_torch_defaults
@dataclass(frozen=True, repr=False)
class Embedded(Task):
    """Data with given coordinates along a few directions; each member has its own directions.

    Member i sees ``x − UᵢᵀUᵢ x + Uᵢᵀc`` with its own orthonormal rows ``Uᵢ``; x, c and the label are shared, so that
    members differ by their directions alone. The data are kept once, whatever the number of members.

    Attributes:
        base: The data that all members share, and the labels.
        frames: ``(m, k, D)``, orthonormal rows.
        coordinates: c, ``(n, k)`` by split. A split ``"test, …"`` has the samples of ``test`` and coordinates of its own.

    Example:
        >>> base = Arrays({"train": (torch.tensor([[5.0, 7.0, 9.0]]), torch.tensor([1]))})
        >>> task = Embedded(base, torch.eye(3)[None, :2], {"train": torch.tensor([[1.0, 2.0]])})
        >>> task.batch("train", torch.tensor([0]))[0]
        tensor([[[1., 2., 9.]]])
    """

    base: Arrays
    frames: Tensor
    coordinates: Mapping[str, Tensor]

    @property
    def members(self) -> int:
        """Number of members."""
        return len(self.frames)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of samples of each split."""
        return {split: len(coordinates) for split, coordinates in self.coordinates.items()}

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.base.shape

    @override
    def batch(self, split: str, indices: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.base.batch(self._checked(split).partition(", ")[0], indices)
        flat = x.flatten(1)  # (n, D)
        change = self.coordinates[split][indices] - flat @ self.frames.mT  # (m, n, k)
        return (flat + change @ self.frames).reshape(self.members, *x.shape), y

    @override
    def select(self, members: Sequence[int]) -> Embedded:
        return Embedded(self.base, self.frames[list(members)], self.coordinates)


@under_torch_defaults
def circles(
    planes: Tensor,
    shape: Sequence[int],
    *,
    radii: tuple[float, float] = (1.5, 0.25),
    **draw: Unpack[NoisyDraw],
) -> Embedded:
    """Two concentric circles in a plane, one for each class, with noise in all other directions (figure 1).

    Definition:
        ``x = r_y·(αu₁ + βu₂)/‖αu₁ + βu₂‖ + ω`` with α, β standard normal, ``ω ~ N(0, σ²(I − u₁u₁ᵀ − u₂u₂ᵀ))`` and classes
        0 and 1 of equal probability. All planes use the same angles, noise and labels.

    Args:
        planes: ``(m, 2, D)``: u₁ and u₂ of every member.
        shape: Shape of one input.
        radii: r₀ and r₁; the authors' code has (3, 0.25) for ResNet-18 and (1.5, 0.25) for others.
        draw: See :class:`NoisyDraw`.

    Returns:
        The task, one member per plane.

    Raises:
        ValueError: If the planes are not orthonormal or a setting is out of its range.

    Example:
        >>> task = circles(torch.eye(4)[None, :2], (4,), train=3, test=1, seed=0, run=Run(device="cpu"))
        >>> x, y = task.batch("train", torch.arange(3))
        >>> torch.allclose(x[0, :, :2].norm(dim=1), torch.tensor([1.5, 0.25])[y])
        True
    """
    base = _shared_noise(planes, 2, shape, draw)
    return Embedded(base, planes.to(base.splits["train"][0]), _on_circles(base, radii, draw["seed"]))


@under_torch_defaults
def two_components(
    frames: Tensor,
    shape: Sequence[int],
    *,
    epsilon: float = 1.0,
    radii: tuple[float, float] = (1.5, 0.25),
    **draw: Unpack[NoisyDraw],
) -> Embedded:
    """A linear and a circular class feature together; either can be removed at test time (section 4.3).

    Definition:
        ``x = ε·s·u₁ + r_y·(αu₂ + βu₃)/‖αu₂ + βu₃‖ + ω`` with ``s = −1, 1`` for classes 0, 1 and noise in the directions
        orthogonal to the three. Splits: ``train``, ``test``, and ``test, linear only`` and ``test, circles only``, where
        the content along the other component is set to zero: what a network then still classifies tells what it relies on.

    Args:
        frames: ``(m, 3, D)``: u₁, u₂ and u₃ of every member.
        shape: Shape of one input.
        epsilon: ε, half the distance between the classes along u₁ (the authors' code: 0.5).
        radii: r₀ and r₁.
        draw: See :class:`NoisyDraw`.

    Returns:
        The task, one member per frame.

    Raises:
        ValueError: If the frames are not orthonormal or a setting is out of its range.

    Example:
        >>> task = two_components(torch.eye(4)[None, :3], (4,), noise=0.0, train=1, test=2, seed=0, run=Run(device="cpu"))
        >>> x, y = task.batch("test, linear only", torch.arange(2))
        >>> torch.equal(x[0, :, 0], 2.0 * y - 1), float(x[0, :, 1:].abs().max())
        (True, 0.0)
    """
    base = _shared_noise(frames, 3, shape, draw)
    whole = {}
    for split, plane in _on_circles(base, radii, draw["seed"]).items():
        signs = epsilon * (2 * base.splits[split][1] - 1).to(plane)
        whole[split] = torch.cat([signs[:, None], plane], 1)  # (n, 3)
    for name, kept in (("linear", [1, 0, 0]), ("circles", [0, 1, 1])):
        whole[f"test, {name} only"] = whole["test"] * whole["test"].new_tensor(kept)
    return Embedded(base, frames.to(base.splits["train"][0]), whole)


@under_torch_defaults
def isotropic(
    vectors: Tensor,
    shape: Sequence[int],
    *,
    labelling: str = "linear",
    epsilon: float = 0.9,
    **draw: Unpack[NoisyDraw],
) -> Embedded:
    """Gaussian data, nearly the same in all directions, labelled along one of them (appendix A.7).

    Definition:
        ``x = εαu + ω`` with ``α ~ N(0, 1)``, ``ω ~ N(0, σ²(I − uuᵀ))`` and the class told by xᵀu = εα through
        :func:`label_rule`. All directions use the same α, noise and labels.

    Args:
        vectors: ``(m, D)`` unit vectors.
        shape: Shape of one input.
        labelling: One of ``LABELLINGS``.
        epsilon: ε, the spread along u and so the margin. The authors' code has 0.9 for linear, 2 for quadratic, and for sinusoidal
            labels 2.2 (LeNet, ViT) or 5 (MLP, ResNet-18).
        draw: See :class:`NoisyDraw`.

    Returns:
        The task, one member per direction.

    Raises:
        ValueError: If the vectors do not fit or a setting is out of its range.

    Example:
        >>> task = isotropic(torch.eye(3)[1:2], (3,), epsilon=2.0, train=100, test=1, seed=0, run=Run(device="cpu"))
        >>> x, y = task.batch("train", torch.arange(100))
        >>> int(y.sum()), bool(x[0, y == 1, 1].min() > x[0, y == 0, 1].max())
        (50, True)
    """
    frames = vectors[:, None]
    base = _shared_noise(frames, 1, shape, draw)
    splits, coordinates = {}, {}
    for split, (x, y) in base.splits.items():
        generator = generator_for(x.device, draw["seed"], "isotropic", split)
        along = epsilon * torch.randn(len(y), generator=generator, device=x.device, dtype=torch.float64)
        coordinates[split] = along
        splits[split] = x, label_rule(labelling, coordinates["train"])(along)
    own = {split: along[:, None].to(base.dtype) for split, along in coordinates.items()}
    return Embedded(dataclasses.replace(base, splits=splits), frames.to(base.splits["train"][0]), own)


@under_torch_defaults
def labelled_along(
    inputs: Arrays, vectors: Tensor, *, labelling: str = "linear", label_noise: float = 0.2, seed: int
) -> Relabelled:
    """Given inputs with labels along directions: one member per direction, all on the same inputs (section 4.2).

    Definition:
        The class is told by ``(x + η)ᵀu`` through :func:`label_rule`, η being Gaussian noise with a share of each channel's
        variance: it makes labels noisy, and the inputs are served without it. Variances and the threshold are those of the
        training split; all directions use the same η.

    Args:
        inputs: Inputs ``(n, C, …)`` with a split ``train``; their labels are not used.
        vectors: ``(m, D)`` unit vectors.
        labelling: One of ``LABELLINGS``.
        label_noise: Variance of η over that of the channel; 0 for labels without noise.
        seed: Random seed for η.

    Returns:
        The task, one member per direction.

    Raises:
        ValueError: If the vectors do not fit, the labelling is unknown or the noise is negative.

    Example:
        >>> inputs = Arrays({"train": (torch.tensor([[[-3.0, 5.0]], [[4.0, 2.0]]]), torch.zeros(2))})
        >>> labelled_along(inputs, torch.eye(2), label_noise=0.0, seed=0).labels["train"].tolist()
        [[0, 1], [1, 0]]
    """
    size = math.prod(inputs.shape)
    if vectors.dim() != 2 or vectors.shape[1] != size or "train" not in inputs.splits or label_noise < 0:
        raise ValueError(
            f"labels along directions need inputs with a split 'train', vectors of {size} numbers each and label_noise of 0 or "
            f"more, got splits {list(inputs.splits)}, {tuple(vectors.shape)} and {label_noise}. Pass label_noise=0.2."
        )
    device = inputs.splits["train"][1].device
    directions = vectors.to(device, torch.float64).reshape(-1, *inputs.shape)  # (m, C, …)
    x = inputs.whole("train")[0]
    axes = [axis for axis in range(x.dim()) if axis != 1]
    spread = x.std(axes, correction=0, keepdim=True).double()
    seen = {}
    for split, count in inputs.sizes.items():
        parts = []
        for block, start in enumerate(range(0, count, _BLOCK)):
            rows = inputs.batch(split, torch.arange(start, min(count, start + _BLOCK), device=device))[0].double()
            if label_noise:
                generator = generator_for(device, seed, "label noise", split, block)
                noise = torch.randn(rows.shape, generator=generator, device=device, dtype=rows.dtype)
                rows = rows + math.sqrt(label_noise) * spread * noise
            parts.append(directions.flatten(1) @ rows.flatten(1).T)
        seen[split] = torch.cat(parts, 1)  # (m, n)
    rule = label_rule(labelling, seen["train"])
    return Relabelled(inputs, {split: rule(along) for split, along in seen.items()})


def label_rule(labelling: str, sample: Tensor) -> Callable[[Tensor], Tensor]:
    """The class, 0 or 1, of numbers z = xᵀu, with a threshold b that balances the classes of a training sample.

    ``linear``: sgn(z + b) · ``quadratic``: sgn(z² + b) · ``sinusoidal``: sgn(sin(π·(z − mean)/std) + b), as the authors' code has
    it. So there are as many waves along any direction, and the spread of z is the width of a wave.

    Args:
        labelling: Which.
        sample: z of the training samples, ``(…, n)``; mean, std and b are taken along the last axis.

    Raises:
        ValueError: If there is no such labelling.

    Example:
        >>> z = torch.tensor([-2.0, -1.0, 1.0, 3.0])
        >>> label_rule("linear", z)(z).tolist(), label_rule("quadratic", z)(z).tolist()
        ([0, 0, 1, 1], [1, 0, 0, 1])
    """
    if labelling not in LABELLINGS:
        known = ", ".join(map(repr, LABELLINGS))
        raise ValueError(f"labelling must be one of {known}, got {labelling!r}. Pass labelling='linear'.")
    mean, spread = sample.mean(-1, keepdim=True), sample.std(-1, keepdim=True, correction=0)
    inner: Callable[[Tensor], Tensor] = {
        "linear": lambda z: z,
        "quadratic": torch.square,
        "sinusoidal": lambda z: torch.sin(math.pi * (z - mean) / spread),
    }[labelling]
    # Between the two middle ones, so that exactly half of an even sample lies above; of an odd one, all but the middle.
    ordered = inner(sample).sort(-1).values
    middle = ordered.shape[-1] // 2
    threshold = ordered[..., max(0, middle - 1) : middle + 1].mean(-1, keepdim=True)
    return lambda z: (inner(z) > threshold).long()


@under_torch_defaults
def random_labels(covariance: Tensor, shape: Sequence[int], **draw: Unpack[Draw]) -> Arrays:
    """Gaussian data of a given covariance with random labels, which can only be memorised (figure 3).

    Definition:
        ``x ~ N(0, C/‖C‖₂)``. Half of the samples have class 0 and half class 1, independent of the data. With one seed, data of
        two covariances are the same noise seen through two matrices.

    Args:
        covariance: C, ``(D, D)``, symmetric and positive semi-definite.
        shape: Shape of one input.
        draw: See :class:`Draw`.

    Returns:
        The task, the same for every network.

    Raises:
        ValueError: If the matrix is not a covariance of such inputs.

    Example:
        >>> task = random_labels(torch.diag(torch.tensor([4.0, 0.0])), (2,), train=500, test=1, seed=0, run=Run(device="cpu"))
        >>> [round(float(value), 1) for value in task.splits["train"][0].var(0)]
        [1.0, 0.0]
    """
    run, size = draw.get("run") or Run(), math.prod(shape)
    if tuple(covariance.shape) != (size, size) or not bool(torch.isfinite(covariance).all()):
        raise ValueError(
            f"covariance must be a finite matrix of {size} × {size} numbers for inputs of shape {tuple(shape)}, got "
            f"{tuple(covariance.shape)}. Pass a covariance of such inputs."
        )
    values, vectors = torch.linalg.eigh(covariance.to(run.torch_device, torch.float64))
    largest, least = float(values[-1]), float(values[0])
    if not largest > 0 or least < -1e-4 * largest:
        raise ValueError(
            f"covariance must have eigenvalues of 0 or more, and one above 0, got {least:.3g} to {largest:.3g}. "
            "Pass a matrix like G or flip(G)."
        )
    root = (vectors * (values.clamp(min=0) / largest).sqrt()) @ vectors.T
    # The first direction is not used: of the directional task only the noise is taken.
    base = _noise_and_labels(vectors.T[:1], shape, draw)
    splits = {}
    for split, (w, y) in base.splits.items():
        halves = torch.arange(len(y), device=y.device) % 2  # independent of the data, whatever their order
        splits[split] = (w.flatten(1).double() @ root).to(w).reshape(w.shape), halves.to(y.dtype)
    return Arrays(splits, base.dtype, "random labels")


def _noise_and_labels(vectors: Tensor, shape: Sequence[int], draw: Draw | NoisyDraw) -> Arrays:
    """Those of the directional task."""
    return along_directions(vectors, shape, **{"noise": 1.0, "train": 10_000, "test": 2000, **draw}).base  # type: ignore[arg-type]


def _shared_noise(frames: Tensor, count: int, shape: Sequence[int], draw: NoisyDraw) -> Arrays:
    """Noise and labels of the directional task, for frames of so many orthonormal rows each."""
    if frames.dim() != 3 or frames.shape[1] != count:
        came = tuple(frames.shape)
        raise ValueError(f"directions must be {count} for every member, got {came}. Pass (members, {count}, size).")
    base = _noise_and_labels(frames[:, 0], shape, draw)
    products = frames.double() @ frames.double().mT  # (m, k, k)
    apart = float((products - torch.eye(count, dtype=products.dtype, device=products.device)).abs().max())
    if apart > 1e-3:
        raise ValueError(
            f"directions must be orthonormal, got inner products that are off by {apart:.2g}. Pass rows of one basis."
        )
    return base


def _on_circles(base: Arrays, radii: tuple[float, float], seed: int) -> dict[str, Tensor]:
    """Points at random angles on the circle of each sample's class, ``(n, 2)`` by split."""
    if not all(radius >= 0 for radius in radii) or radii[0] == radii[1]:
        raise ValueError(f"radii must be two different numbers of 0 or more, got {radii}. Pass radii=(1.5, 0.25).")
    found = {}
    for split, (x, y) in base.splits.items():
        generator = generator_for(x.device, seed, "circles", split)
        points = torch.randn(len(y), 2, generator=generator, device=x.device).to(x.dtype)
        radius = torch.tensor(radii, device=x.device, dtype=x.dtype)[y]
        found[split] = radius[:, None] * points / points.norm(dim=1, keepdim=True)
    return found
