"""Recipe: how a network is trained (optimiser, schedule, loss, length), as plain settings and as tensor operations."""

# m members of a stack, or nothing in its place for one network

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

OPTIMISERS = ("sgd", "adam", "adamw", "gd")
SCHEDULES = ("linear", "cosine", "constant")
LOSSES = ("cross_entropy", "logistic", "hinge", "squared")


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Attributes:
        optimiser: ``"sgd"`` (with ``momentum``), ``"adam"``, ``"adamw"``, or ``"gd"``: all samples at every step.
        rate: The learning rate at the start.
        schedule: Learning rate schedule: ``"linear"`` or ``"cosine"`` to 0 over all iterations, or ``"constant"``.
        warmup: Iterations of linear warm-up.
        momentum: Momentum of SGD and GD.
        betas: Betas of Adam and AdamW.
        weight_decay: Weight decay. It is added to the gradient; AdamW subtracts it from the weights.
        decay_to: The point that weight decay pulls to: ``"zero"``, or ``"start"`` for the weights that training starts from.
        epochs: Passes over the training data.
        steps: Number of iterations, instead of epochs.
        batch: Samples of an iteration; the last of an epoch may be smaller.
        clip: Largest norm of a network's gradient, ``None`` for no limit.
        loss: ``"cross_entropy"``, ``"logistic"``, ``"hinge"``, ``"squared"``; ``None``: cross-entropy for several outputs,
            logistic for one.
        threshold: Loss threshold; the first batch below it is recorded.
        stop: Whether training stops below the threshold.
        batchnorm: ``"train"``: batch statistics, and running statistics are updated; ``"eval"``: frozen.

    Example:
        >>> Recipe(rate=0.5, epochs=2).rate_at(50, 100)
        0.25
    """

    optimiser: str = "sgd"
    rate: float = 0.1
    schedule: str = "linear"
    warmup: int = 0
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    decay_to: str = "zero"
    epochs: int = 20
    steps: int | None = None
    batch: int = 128
    clip: float | None = None
    loss: str | None = None
    threshold: float | None = None
    stop: bool = False
    batchnorm: str = "train"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("optimiser", self.optimiser, OPTIMISERS),
            ("schedule", self.schedule, SCHEDULES),
            ("loss", self.loss or "logistic", LOSSES),
            ("batchnorm", self.batchnorm, ("train", "eval")),
            ("decay_to", self.decay_to, ("zero", "start")),
        ):
            if value not in known:
                listed = ", ".join(repr(word) for word in known)
                raise ValueError(f"{name} must be one of {listed}, got {value!r}. Pass {name}={known[0]!r}.")
        self._check_numbers()
        if self.stop and self.threshold is None:
            raise ValueError("stop=True needs a threshold to stop at, got none. Pass threshold=0.01.")

    def _check_numbers(self) -> None:
        for name, number, low in (
            ("epochs", self.epochs, 1),
            ("batch", self.batch, 1),
            ("steps", 1 if self.steps is None else self.steps, 1),
            ("warmup", self.warmup, 0),
            ("weight_decay", self.weight_decay, 0.0),
        ):
            if not number >= low or not math.isfinite(number):
                raise ValueError(f"{name} must be at least {low}, got {number}. Pass a larger {name}.")
        for name, positive, usual in (
            ("rate", self.rate, 0.1),
            ("clip", self.clip, 0.5),
            ("threshold", self.threshold, 0.01),
        ):
            if positive is not None and not 0 < positive < math.inf:
                raise ValueError(f"{name} must be a positive number, got {positive}. Pass {name}={usual}.")
        for name, share in (("momentum", self.momentum), ("betas", min(self.betas)), ("betas", max(self.betas))):
            if not 0 <= share < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, got {share}. Pass {name}=0.9.")

    def __repr__(self) -> str:
        length = "epochs" if self.steps is None else "steps"
        always = ("rate", "schedule", length, "batch")
        shown = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)
            if each.name in always
            or (each.name not in ("optimiser", "epochs") and getattr(self, each.name) != each.default)
        ]
        return f"Recipe({', '.join([repr(self.optimiser), *shown])})"

    @property
    def settings(self) -> dict[str, object]:
        """The settings as plain values, for provenance and identity."""
        return asdict(self)

    def batch_size(self, samples: int) -> int:
        """Samples of one iteration."""
        return samples if self.optimiser == "gd" else min(self.batch, samples)

    def steps_per_epoch(self, samples: int) -> int:
        """Iterations that pass once over the training data."""
        return math.ceil(samples / self.batch_size(samples))

    def total_steps(self, samples: int) -> int:
        """Iterations in all."""
        return self.steps if self.steps is not None else self.epochs * self.steps_per_epoch(samples)

    def rate_at(self, step: int, total: int) -> float:
        """The learning rate of iteration ``step`` of ``total``, counted from 0."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        share = (step - self.warmup) / max(1, total - self.warmup)
        if self.schedule == "linear":
            return self.rate * (1 - share)
        return self.rate * (1 + math.cos(math.pi * share)) / 2 if self.schedule == "cosine" else self.rate

    def scalars_at(self, step: int, total: int) -> tuple[float, float, float]:
        """The learning rate and Adam's two bias corrections at an iteration."""
        first, second = (1 - beta ** (step + 1) for beta in self.betas)
        return self.rate_at(step, total), first, math.sqrt(second)


def loss_of(name: str | None, outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean loss of a batch, ``outputs`` being ``(n, p)`` or ``(n,)`` and labels classes (or targets for ``squared``).

    Example:
        >>> round(float(loss_of("logistic", torch.zeros(4), torch.tensor([0, 1, 0, 1]))), 4)
        0.6931
    """
    single = outputs.dim() == 1 or outputs.shape[-1] == 1
    if name == "cross_entropy" or (name is None and not single):
        return F.cross_entropy(outputs, labels)
    if name == "squared":
        flat = outputs.flatten() if single else outputs
        if labels.is_floating_point():
            target = labels
        else:
            target = _signs(labels, flat) if single else F.one_hot(labels, flat.shape[-1]).to(flat)
        return (flat - target).square().mean()
    margin = outputs.flatten() * _signs(labels, outputs)
    return F.relu(1 - margin).mean() if name == "hinge" else F.softplus(-margin).mean()


def correct(outputs: Tensor, labels: Tensor) -> Tensor:
    """Which outputs ``(n, p)`` or ``(n,)`` of one network name the right class: the largest, or the sign of a single one."""
    if outputs.dim() == 1 or outputs.shape[-1] == 1:
        return (outputs.flatten() > 0) == (labels == 1)
    return outputs.argmax(-1) == labels


def _signs(labels: Tensor, like: Tensor) -> Tensor:
    return (2 * labels - 1).to(like)


class Optimiser:
    """An update rule on lists of tensors, in place, for one network or for a stack whose members do not mix.

    The numbers that change with time come as a tensor, so that a recorded sequence of operations can be replayed.

    Args:
        recipe: Which rule.
        params: The weights; they are changed in place.
        stacked: Whether the first axis of each runs over members.
    """

    def __init__(self, recipe: Recipe, params: Sequence[Tensor], stacked: bool) -> None:
        self._recipe, self._params, self._stacked = recipe, list(params), stacked
        self._adam = recipe.optimiser in ("adam", "adamw")
        self._first = [torch.zeros_like(p) for p in params] if self._adam or recipe.momentum else []
        self._second = [torch.zeros_like(p) for p in params] if self._adam else []
        anchored = recipe.weight_decay and recipe.decay_to == "start"
        self._anchor = [p.detach().clone() for p in params] if anchored else []

    @property
    def state(self) -> list[Tensor]:
        """What the rule remembers."""
        return [*self._first, *self._second, *self._anchor]

    def _decaying(self) -> list[Tensor]:
        """What weight decay shrinks."""
        return list(torch._foreach_sub(self._params, self._anchor)) if self._anchor else self._params

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], scalars: Tensor) -> None:
        """Move the weights; ``scalars`` as :meth:`Recipe.scalars_at` gives them."""
        recipe, grads = self._recipe, list(gradients)
        if recipe.clip is not None:
            grads = self._clipped(grads, recipe.clip)
        rate, bias_first, bias_second = scalars.unbind()
        if recipe.weight_decay and recipe.optimiser != "adamw":
            grads = list(torch._foreach_add(grads, self._decaying(), alpha=recipe.weight_decay))
        if self._adam:
            first, second = recipe.betas
            torch._foreach_lerp_(self._first, grads, 1 - first)
            torch._foreach_mul_(self._second, second)
            torch._foreach_addcmul_(self._second, grads, grads, 1 - second)
            root = list(torch._foreach_sqrt(self._second))
            torch._foreach_div_(root, bias_second)
            torch._foreach_add_(root, 1e-8)
            grads = list(torch._foreach_div(self._first, root))
            torch._foreach_div_(grads, bias_first)
            if recipe.optimiser == "adamw" and recipe.weight_decay:
                torch._foreach_add_(grads, self._decaying(), alpha=recipe.weight_decay)
        elif recipe.momentum:
            torch._foreach_mul_(self._first, recipe.momentum)
            torch._foreach_add_(self._first, grads)
            grads = self._first
        moves = torch._foreach_mul(grads, rate)
        torch._foreach_sub_(self._params, moves)

    def _clipped(self, grads: list[Tensor], largest: float) -> list[Tensor]:
        """Gradients scaled so that no network's norm is above the limit."""
        if self._stacked:
            norm = sum(grad.flatten(1).square().sum(1) for grad in grads).sqrt()  # type: ignore[union-attr]
        else:
            norm = torch.stack(torch._foreach_norm(grads)).norm()
        scale = (largest / (norm + 1e-6)).clamp(max=1.0)
        if not self._stacked:
            return list(torch._foreach_mul(grads, scale))
        return [grad * scale.reshape(-1, *[1] * (grad.dim() - 1)) for grad in grads]
