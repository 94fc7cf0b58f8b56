"""The head of a task: a linear probe on the features of a pre-trained encoder, and encoder and head as one network."""

# n samples · p features · c classes

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from biascope.families.network import Network
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.digest import fingerprint
from biascope.runs.memory import fitting, halved
from biascope.runs.run import Run
from biascope.tasks.task import Arrays, master_dtype
from biascope.training.evaluation import EVALUATED
from biascope.training.steps import half_precision

PENALTIES = tuple(10.0**power for power in range(0, -7, -1))
ENCODER = "encoder."  # prefix of the encoder's names in a network with a head
_ENOUGH = 1e-5  # of the gradient of a mean cross-entropy: a probe's predictions do not feel less
_MOST = {"cpu": 256, "cuda": 1024}  # inputs of one pass


@dataclass(frozen=True)
class Head:
    """A linear classifier of features, frozen: ``W z + b``, or ``W z/‖z‖ + b`` where features are normalised.

    Attributes:
        weight: ``(c, p)``.
        bias: ``(c,)``.
        normalised: Whether features are divided by their length first.
        penalty: Penalty of the fit that was chosen.
        accuracy: On the validation samples, between 0 and 1.
        gradient: Largest entry of the fit's gradient where it ended: how far it is from the optimum.
    """

    weight: Tensor
    bias: Tensor
    normalised: bool = False
    penalty: float = math.nan
    accuracy: float = math.nan
    gradient: float = math.nan

    def __repr__(self) -> str:
        classes, features = self.weight.shape
        known = "" if math.isnan(self.accuracy) else f", accuracy {self.accuracy:.3g}"
        return f"Head({classes} classes, {features} features{known})"

    def __call__(self, features: Tensor) -> Tensor:
        """Logits ``(…, c)`` of features ``(…, p)``."""
        return logits(features, self.weight.to(features), self.bias.to(features), self.normalised)

    @property
    def identity(self) -> str:
        """Its identity."""
        return fingerprint({"weight": self.weight, "bias": self.bias}) + "n" * self.normalised

    @property
    def fitted(self) -> bool:
        """Whether it is a linear probe, and not the last layer of a model."""
        return not math.isnan(self.penalty)

    def first(self, count: int) -> Head:
        """The head of the first classes alone."""
        return dataclasses.replace(self, weight=self.weight[:count], bias=self.bias[:count])


@under_torch_defaults
def identity_head(outputs: int) -> Head:
    """The head of a network whose outputs are logits already.

    Example:
        >>> identity_head(2)(torch.tensor([[3.0, 4.0]]))
        tensor([[3., 4.]])
    """
    return Head(torch.eye(outputs), torch.zeros(outputs))


def logits(features: Tensor, weight: Tensor, bias: Tensor, normalised: bool) -> Tensor:
    """``W z + b``, with z of unit length on request."""
    return F.linear(unit_length(features) if normalised else features, weight, bias)


def unit_length(features: Tensor) -> Tensor:
    """Features divided by their length, whatever it is: squares of 1e-30 or 1e22 are no float32 numbers.

    Example:
        >>> unit_length(torch.tensor([[3e-30, 4e-30], [3e22, 4e22]])).tolist()[1]
        [0.6000000238418579, 0.800000011920929]
    """
    largest = features.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(features.dtype).tiny)
    return F.normalize(features / largest, dim=-1)


def linear_probe(
    features: Tensor,
    labels: Tensor,
    validation_features: Tensor,
    validation_labels: Tensor,
    *,
    penalties: Sequence[float] = PENALTIES,
    normalise: bool = False,
    iterations: int = 300,
    tolerance: float = 1e-7,
) -> Head:
    """Multinomial logistic regression on features, with the penalty that is best on the validation samples.

    Definition:
        The minimum of ``mean cross-entropy + (λ/2)‖W‖²`` over ``W, b`` on features that are centred and divided by their
        root mean square, which is then folded into W and b. Among the λ, the one with the least cross-entropy on the
        validation samples: unlike accuracy it also fixes the scale of the logits, on which fine-tuning depends.

    The fit takes L-BFGS on all samples in float64 on the device of the features, from the largest penalty down, each from the
    last one's solution, until the validation samples have been served worse twice in a row; it has no random part.

    Args:
        features: Features of the training samples, ``(n, p)``.
        labels: Their classes from 0, ``(n,)``.
        validation_features: Features of other samples.
        validation_labels: Their classes.
        penalties: Values of λ to choose from.
        normalise: Whether features are divided by their length, here and whenever the head is used.
        iterations: Most iterations of L-BFGS for each penalty.
        tolerance: Largest entry of the gradient at which it ends.

    Returns:
        The head, on the device of the features and in their precision.

    Raises:
        ValueError: If features and labels do not fit, or are not finite.

    Example:
        >>> z, y = torch.tensor([[-1.0], [-3.0], [1.0], [3.0]]), torch.tensor([0, 0, 1, 1])
        >>> linear_probe(z, y, z, y)(torch.tensor([[-2.0], [2.0]])).argmax(1)
        tensor([0, 1])
    """
    _require_samples(features, labels, "training")
    _require_samples(validation_features, validation_labels, "validation")
    if not penalties or min(penalties) <= 0:
        raise ValueError(f"penalties must be positive numbers, got {list(penalties)}. Pass penalties=(1.0, 0.01).")
    z, other = (part.double() for part in (features, validation_features))
    if normalise:
        z, other = unit_length(z), unit_length(other)
    centre = z.mean(0)
    unit = float((z - centre).square().mean().sqrt()) or 1.0
    z, other = (z - centre) / unit, (other - centre) / unit
    y, classes = labels.long(), 1 + int(torch.cat([labels, validation_labels]).max())
    weight = z.new_zeros(classes, z.shape[1], requires_grad=True)
    bias = z.new_zeros(classes, requires_grad=True)
    found: list[tuple[float, Head]] = []
    for penalty in sorted(penalties, reverse=True):
        gradient = _minimised(weight, bias, z, y, penalty, iterations, tolerance)
        with torch.no_grad():
            outputs = F.linear(other, weight, bias)
            loss = float(F.cross_entropy(outputs, validation_labels.long()))
            right = float((outputs.argmax(1) == validation_labels).double().mean())
            plain = weight / unit
            parts = (plain.to(features.dtype), (bias - plain @ centre).to(features.dtype))
        found.append((loss, Head(*parts, normalise, penalty, right, gradient)))
        if len(found) > 2 and found[-3][0] < found[-2][0] < found[-1][0]:
            break
    return min(found, key=lambda pair: pair[0])[1]


def _minimised(
    weight: Tensor, bias: Tensor, z: Tensor, y: Tensor, penalty: float, iterations: int, tolerance: float
) -> float:
    """Move weight and bias to the minimum; the largest entry of the gradient that is left."""
    optimiser = torch.optim.LBFGS(
        [weight, bias],
        max_iter=iterations,
        history_size=20,
        tolerance_grad=tolerance,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(F.linear(z, weight, bias), y) + penalty / 2 * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimiser.step(objective)  # type: ignore[no-untyped-call]
        objective()
    return max(float(part.grad.abs().max()) for part in (weight, bias) if part.grad is not None)


def _require_samples(features: Tensor, labels: Tensor, which: str) -> None:
    if features.dim() != 2 or labels.shape != features.shape[:1] or not len(labels):
        raise ValueError(
            f"The {which} features must be (samples, features) with one label each, got {tuple(features.shape)} and "
            f"{tuple(labels.shape)}. Pass the encoder's flattened features of the samples."
        )
    if not bool(torch.isfinite(features).all()):
        raise ValueError(f"The {which} features must be finite, but are not. Check the encoder's weights and inputs.")
    if labels.is_floating_point() or int(labels.min()) < 0:
        raise ValueError(f"The {which} labels must be classes from 0, got {labels.dtype}. Pass whole numbers from 0.")


@under_torch_defaults
def fitted_head(
    encoder: Network,
    task: Arrays,
    *,
    penalties: Sequence[float] = PENALTIES,
    normalise: bool = False,
    run: Run | None = None,
) -> Head:
    """The head of a task: :func:`linear_probe` on the features of its splits ``train`` and ``validation``.

    Args:
        encoder: From inputs to features.
        task: With both splits.
        penalties: As in :func:`linear_probe`.
        normalise: As in :func:`linear_probe`.
        run: Device and precision.

    Returns:
        The head, on the CPU.

    Raises:
        ValueError: If a split is missing, or features and labels do not fit.
    """
    run = run or Run()
    require_splits(task, ("train", "validation"))
    parts = [
        part
        for split in ("train", "validation")
        for part in (features_of(encoder, task, split, run=run), task.splits[split][1].to(run.torch_device))
    ]
    head = linear_probe(
        parts[0], parts[1], parts[2], parts[3], penalties=penalties, normalise=normalise, tolerance=_ENOUGH
    )
    return dataclasses.replace(head, weight=head.weight.cpu(), bias=head.bias.cpu())


def require_splits(task: Arrays, wanted: Sequence[str], name: str = "") -> None:
    """Raise a ``ValueError`` where a task lacks splits."""
    if lacking := [split for split in wanted if split not in task.splits]:
        raise ValueError(
            f"Task {name or task.name!r} must have the splits {', '.join(map(repr, wanted))}, but lacks {lacking[0]!r}. "
            "Hold some of its training samples out for validation."
        )


def features_of(encoder: Network, task: Arrays, split: str, *, run: Run | None = None) -> Tensor:
    """Features of the samples of a split, ``(n, p)``, on the run's device."""
    run = run or Run()
    device = run.torch_device
    placed = encoder.to(device, master_dtype(run))
    x, y = task.splits[split]
    served = dataclasses.replace(task, dtype=master_dtype(run), splits={split: (x, y)})

    def work(span: slice) -> Tensor:
        inputs = served.batch(split, torch.arange(span.start, span.stop, device=x.device))[0].to(device)
        with half_precision(run):
            return checked_features(placed(image_layout(inputs))).to(master_dtype(run))

    with torch.inference_mode(), run.products():
        return torch.cat(list(in_passes(work, len(y), task.shape, run))).clone()


def checked_features(features: Tensor) -> Tensor:
    """Features as they are, where they are ``(n, p)``."""
    if features.dim() != 2:
        raise ValueError(
            f"An encoder must give one row of features per input, got shape {tuple(features.shape)}. Flatten or pool them."
        )
    return features


def image_layout(x: Tensor) -> Tensor:
    """Images in the fastest layout for a GPU's convolutions; anything else unchanged."""
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 and x.is_cuda else x


def in_passes(
    work: Callable[[slice], Tensor], samples: int, shape: Sequence[int], run: Run, share: float = 1.0
) -> Iterator[Tensor]:
    """Apply a function to consecutive parts of the samples, in smaller parts if memory does not suffice.

    Args:
        work: From a part to its outcome.
        samples: How many.
        shape: Shape of one input.
        run: The device.
        share: Share of the usual number of inputs, for work that needs more memory than a forward pass.
    """
    device = run.torch_device.type
    size = max(1, int(share * min(_MOST.get(device, 256), 2 * EVALUATED // max(1, math.prod(shape)))))
    start = 0
    while start < samples:
        found, size = fitting(lambda most: work(slice(start, min(samples, start + most))), size, halved)  # noqa: B023
        yield found
        start += size


class Headed(nn.Module):
    """An encoder with a frozen head on its outputs, always in evaluation mode.

    BatchNorm keeps its statistics and dropout is off also in training, so that the non-linear network is tuned under the
    same terms as the linearised one, which knows neither.

    Args:
        encoder: The forward pass to features; linearised or not.
        head: The head, whose numbers become buffers.
    """

    head_weight: Tensor
    head_bias: Tensor

    def __init__(self, encoder: nn.Module, head: Head) -> None:
        super().__init__()
        self.encoder, self._normalised = encoder, head.normalised
        self.register_buffer("head_weight", head.weight.clone())
        self.register_buffer("head_bias", head.bias.clone())
        self.eval()

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> Tensor:
        """Logits."""
        features = checked_features(self.encoder(*args, **kwargs))
        return logits(features, self.head_weight, self.head_bias, self._normalised)

    def train(self, mode: bool = True) -> Headed:
        """Always evaluation mode."""
        return super().train(False)


def headed(encoder: Network, head: Head) -> Network:
    """An encoder and a head as one network, whose weights are those of the encoder.

    Names are the encoder's after ``encoder.``; the head is among the buffers. For a linearised encoder with a head, pass
    ``linearize(encoder)``: its outputs are normalised and multiplied by the head after the linearisation, as published.

    Args:
        encoder: One network from inputs to features.
        head: On these features.

    Returns:
        The network.

    Raises:
        ValueError: If it is a stack, or has a readout.

    Example:
        >>> encoder = Network.of(nn.Identity()).with_params({})
        >>> headed(encoder, Head(torch.tensor([[2.0], [3.0]]), torch.ones(2)))(torch.ones(1, 1))
        tensor([[3., 4.]])
    """
    if encoder.members is not None or encoder.readout is not None:
        problem = "a stack" if encoder.members is not None else f"one with the readout {encoder.readout!r}"
        raise ValueError(f"A head needs one network without a readout, got {problem}. Pass the encoder itself.")
    own = {"head_weight": head.weight, "head_bias": head.bias}
    if (like := next(iter(encoder.params.values()), None)) is not None:
        own = {name: tensor.to(like) for name, tensor in own.items()}
    return dataclasses.replace(
        encoder,
        module=Headed(encoder.module, head),
        params={ENCODER + name: tensor for name, tensor in encoder.params.items()},
        buffers={ENCODER + name: tensor for name, tensor in encoder.buffers.items()} | own,
    )
