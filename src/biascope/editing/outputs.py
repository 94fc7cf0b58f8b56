"""Outputs of an edited encoder, ``f(x; θ₀ + Σ_t α_t τ_t)``, for many coefficients at once."""

# n samples · p features · c classes · T task vectors · G sets of coefficients

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from biascope.derivatives.linearize import linearize
from biascope.editing.heads import Head, checked_features, image_layout, in_passes
from biascope.editing.tuning import Vectors
from biascope.editing.vectors import TaskVector
from biascope.families import weights
from biascope.families.network import Network
from biascope.families.weights import Params
from biascope.runs.digest import fingerprint
from biascope.runs.randomness import forked_rng, generator_for
from biascope.runs.run import Run
from biascope.runs.trials import Trials
from biascope.tasks.task import Arrays, master_dtype
from biascope.training.steps import half_precision

# How an encoder may be edited: whether it is linearised, and which task vectors are added.
METHODS = {
    "non-linear": (False, "non-linear"),
    "post-hoc": (True, "non-linear"),
    "linearised": (True, "linearised"),
}
READINGS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "logits": lambda outputs: outputs,
    "classes": lambda outputs: predicted_classes(outputs).to(torch.int16),
    "probabilities": lambda outputs: outputs.softmax(-1),
}
TRIED = 48  # samples on which a network shows that it gives the same outputs again
# Rounding, in units of the last place of the largest output: of a pass repeated, and of one in other batches.
_AGAIN, _REGROUPED = 2**6, 2**10
_DUAL = 0.4  # inputs of a forward-mode pass, as a share of those of a plain one


def predicted_classes(outputs: Tensor) -> Tensor:
    """The class of the largest output, ``(…, c)`` to ``(…)``; −1 (no class) if outputs are not numbers.

    Example:
        >>> predicted_classes(torch.tensor([[0.0, 2.0], [torch.nan, 1.0]]))
        tensor([ 1, -1])
    """
    return torch.where(outputs.isnan().any(-1), -1, outputs.argmax(-1))


def methods_of(vectors: Vectors, asked: Sequence[str] | None = None) -> tuple[str, ...]:
    """The editing methods that a set of task vectors allows, in their usual order, or those asked for.

    Raises:
        ValueError: If there is no such way, or no vectors for it.

    Example:
        >>> methods_of({"non-linear": {}})
        ('non-linear', 'post-hoc')
    """
    there = tuple(name for name, (_, tuning) in METHODS.items() if tuning in vectors)
    wanted = tuple(asked) if asked else there
    if missing := [name for name in wanted if name not in there]:
        raise ValueError(
            f"methods must be among {', '.join(map(repr, there)) or 'none'} for vectors tuned {', '.join(vectors) or 'none'}, "
            f"got {missing[0]!r}. Also pass vectors of that tuning."
        )
    if not wanted:
        raise ValueError(
            "vectors must hold task vectors under 'non-linear' or 'linearised', got neither. Pass {'non-linear': {task: vector}}."
        )
    return wanted


def require_vectors(vectors: Vectors, methods: Sequence[str], tasks: Sequence[str], *, who: str = "Every task") -> None:
    """Raise a ``ValueError`` where an editing method lacks the task vector of a task."""
    for method in methods:
        if lacking := [task for task in tasks if task not in vectors[METHODS[method][1]]]:
            raise ValueError(
                f"{who} must have a task vector for {method}, but {lacking[0]!r} has none. Fine-tune the encoder on it."
            )


def sampled(task: Arrays, split: str, points: int | None, *, seed: int) -> Arrays:
    """A random part of one split, at most so many samples; all of it for ``None``.

    Example:
        >>> task = Arrays({"test": (torch.arange(9.0)[:, None], torch.zeros(9))}, name="nine")
        >>> sampled(task, "test", 4, seed=0).sizes
        {'test': 4}
    """
    x, y = task.splits[task._checked(split)]
    if points is not None and points < 1:
        raise ValueError(f"points must be at least 1, got {points}. Pass points=2048.")
    if points is None or points >= len(y):
        return dataclasses.replace(task, splits={split: (x, y)})
    order = torch.randperm(len(y), generator=generator_for(torch.device("cpu"), seed, "points", split, len(y)))
    rows = order[:points].sort().values.to(y.device)
    return dataclasses.replace(task, splits={split: (x[rows.to(x.device)], y[rows])})


def edited_outputs(
    encoder: Network,
    head: Head,
    vectors: Sequence[TaskVector],
    coefficients: Tensor,
    samples: Arrays,
    *,
    linearised: bool = False,
    reading: str = "classes",
    run: Run | None = None,
) -> Tensor:
    """Predictions of an encoder with a head, for every set of coefficients of its task vectors.

    Definition:
        ``h(f(x; θ₀ + Σ_t α_t τ_t))`` with the head h; or with the linearisation
        ``f_lin(x; θ₀ + Σ_t α_t τ_t) = f(x; θ₀) + Σ_t α_t J(x) τ_t`` in place of f. That is affine in α: T
        forward-mode passes over the samples serve any number of coefficients, exactly. The non-linear network takes one pass
        for every different set of them.

    Args:
        encoder: At θ₀, from inputs to features.
        head: Applied to the features, after the linearisation.
        vectors: T task vectors from this θ₀.
        coefficients: ``(G, T)``.
        samples: With one split; see :func:`sampled`.
        linearised: Whether the encoder is replaced by its linearisation at θ₀.
        reading: ``"classes"``, ``"probabilities"`` or ``"logits"``.
        run: Folder (finished work is saved), device, precision (``"bfloat16"``: products of the non-linear network alone).

    Returns:
        ``(G, n)`` classes, or ``(G, n, c)``, on the CPU.

    Raises:
        ValueError: If the vectors belong to another θ₀, or coefficients and vectors do not fit.

    Example:
        >>> encoder = Network.of(torch.nn.Linear(1, 1, bias=False)).with_params({"weight": torch.ones(1, 1)})
        >>> vector = TaskVector.between(encoder.params, {"weight": torch.full((1, 1), 3.0)})
        >>> x = Arrays({"test": (torch.tensor([[5.0]]), torch.zeros(1))})
        >>> grid, head = torch.tensor([[0.0], [0.5], [2.0]]), Head(torch.ones(1, 1), torch.zeros(1))
        >>> edited_outputs(encoder, head, [vector], grid, x, reading="logits", run=Run(device="cpu")).flatten()
        tensor([ 5., 10., 25.])

    Reference:
        Ortiz-Jiménez, Favero, Frossard (2023). Task arithmetic in the tangent space. NeurIPS; equations (6.1), (6.2).
    """
    run = run or Run()
    _check(encoder, vectors, coefficients, samples, reading)
    work = _Edited(encoder, head, tuple(vectors), coefficients.double().cpu(), samples, linearised, reading)
    if run.folder is None:
        return work.outputs(run)
    # Outputs do not depend on labels, so labels are not part of the work.
    trials = Trials(
        "edited outputs",
        run,
        code=_Edited,
        at=samples,
        encoder=encoder,
        head=head,
        vectors=[vector.deltas for vector in vectors],
        coefficients=work.coefficients,
        samples=next(iter(samples.splits.values()))[0],
        linearised=linearised,
        reading=reading,
    )
    return next(trials.outcomes(["outputs"], lambda key: {"outputs": work.outputs(run)}))["outputs"]


def require_repeatable(
    encoder: Network, samples: Arrays, *, name: str, vector: TaskVector | None = None, run: Run | None = None
) -> None:
    """Refuse a network whose outputs are not a function of one sample: else its predictions could not be compared.

    Up to 48 samples pass three times: twice in one batch, under different states of the random numbers, and once in another
    order and in three batches. Outputs must agree up to rounding.

    Args:
        encoder: At θ₀.
        samples: With one split.
        name: Name of the network, for the sentence.
        vector: A task vector that is added.
        run: Device and precision; the passes are in single precision at least.

    Raises:
        ValueError: If outputs are random, depend on the other samples of a batch, or are not finite.

    Example:
        >>> samples = Arrays({"test": (torch.arange(6.0)[:, None], torch.zeros(6))}, name="six")
        >>> require_repeatable(Network.of(torch.nn.Softmax(dim=1)), samples, name="softmax", run=Run(device="cpu"))
        >>> try:
        ...     require_repeatable(Network.of(torch.nn.Softmax(dim=0)), samples, name="softmax", run=Run(device="cpu"))
        ... except ValueError as error:
        ...     print(str(error)[:63])
        softmax must give a sample the same outputs in every batch, but
    """
    run = run or Run()
    device, dtype = run.torch_device, master_dtype(run)
    placed, here = encoder.to(device, dtype), sampled(samples, next(iter(samples.splits)), TRIED, seed=0).to(run)
    split, count = next(iter(here.splits)), next(iter(here.sizes.values()))
    if vector is not None:
        _check(encoder, [vector], torch.ones(1, 1), here, "logits")
    deltas = [] if vector is None else [weights.moved(vector.deltas, device, dtype)]
    params = moved_along(placed.params, deltas, [1.0] * len(deltas))

    def outputs(places: Tensor) -> Tensor:
        x = here.batch(split, places.to(device))[0]
        return checked_features(placed(image_layout(x), params)).double().cpu()

    placed.require_proven(image_layout(here.batch(split, torch.arange(min(2, count), device=device))[0]))
    whole, other = torch.arange(count), torch.arange(count).flip(0)
    with torch.inference_mode(), run.products():
        with forked_rng(0):
            first = outputs(whole)
        with forked_rng(1):
            again = outputs(whole)
        with forked_rng(0):
            regrouped = torch.cat([outputs(part) for part in other.tensor_split(3) if len(part)])[other]
    if not bool(first.isfinite().all()):
        raise ValueError(
            f"{name} must give finite outputs on {samples.name}, but does not. Check its weights, and --pixels."
        )
    last_place = torch.finfo(dtype).eps * float(first.abs().max())
    if (moved := float((again - first).abs().max())) > _AGAIN * last_place or math.isnan(moved):
        raise ValueError(
            f"{name} must give the same outputs for the same samples, but two passes differ by {_share(moved, first)} of their size. "
            "Remove the random part of its forward pass; F.dropout needs training=self.training."
        )
    if (moved := float((regrouped - first).abs().max())) > _REGROUPED * last_place or math.isnan(moved):
        raise ValueError(
            f"{name} must give a sample the same outputs in every batch, but they change by {_share(moved, first)} of their size "
            "with the other samples of the batch. Use a network that treats each sample alone."
        )


def _share(moved: float, outputs: Tensor) -> str:
    return f"{moved / max(float(outputs.abs().max()), 1e-300):.1e}"


def _check(
    encoder: Network, vectors: Sequence[TaskVector], coefficients: Tensor, samples: Arrays, reading: str
) -> None:
    if reading not in READINGS:
        raise ValueError(f"reading must be one of {', '.join(map(repr, READINGS))}, got {reading!r}. Pass 'classes'.")
    if coefficients.dim() != 2 or coefficients.shape[1] != len(vectors):
        raise ValueError(
            f"coefficients must have one row per edit and one column for each of {len(vectors)} task vectors, got shape "
            f"{tuple(coefficients.shape)}. Pass a (G, T) tensor."
        )
    if len(samples.splits) != 1:
        raise ValueError(
            f"samples must have one split, got {', '.join(samples.splits)}. Pass sampled(task, 'test', None)."
        )
    edited = {name: tensor for name, tensor in encoder.params.items() if weights.is_edited(name, tensor)}
    base = fingerprint(edited)
    for vector in vectors:
        if listed := weights.misfits(vector.deltas, edited, types=False):
            raise ValueError(
                f"Task vectors must fit the encoder, but {vector} does not: {listed}. Pass vectors of this encoder."
            )
        if vector.base != base:
            raise ValueError(
                f"Task vectors must start from the weights of the encoder (hash {base}), but {vector} starts from others "
                f"(hash {vector.base}). Pass the encoder that was fine-tuned."
            )


@dataclass(frozen=True)
class _Edited:
    """One call of :func:`edited_outputs`."""

    encoder: Network
    head: Head
    vectors: tuple[TaskVector, ...]
    coefficients: Tensor
    samples: Arrays
    linearised: bool
    reading: str

    def outputs(self, run: Run) -> Tensor:
        device, dtype = run.torch_device, master_dtype(run)
        encoder = self.encoder.to(device, dtype)
        deltas = [weights.moved(vector.deltas, device, dtype) for vector in self.vectors]
        samples = self.samples.to(run)
        with run.products():
            return (self._affine if self.linearised else self._one_by_one)(encoder, deltas, samples, run)

    def _affine(self, encoder: Network, deltas: list[Params], samples: Arrays, run: Run) -> Tensor:
        """Values and slopes once; every set of coefficients from them."""
        split, device = next(iter(samples.splits)), run.torch_device
        # Measured from 0, the weights of the linearisation are the task vector itself, without rounding.
        both = _with_value(encoder)
        zero = {name: torch.zeros_like(tensor) for name, tensor in both.params.items()}
        line: Callable[..., Any] = linearize(both.with_params(zero), both.params, biased=False)
        moves = [zero, *({**zero, **{_INNER + name: each for name, each in delta.items()}} for delta in deltas)]
        powers = torch.cat([torch.ones(len(self.coefficients), 1), self.coefficients], 1).to(device, samples.dtype)
        weight, bias = self.head.weight.to(device, samples.dtype), self.head.bias.to(device, samples.dtype)

        def work(span: slice) -> Tensor:
            x = samples.batch(split, torch.arange(span.start, span.stop, device=device))[0]
            slopes, values = zip(*(line(x, move) for move in moves[1:] or moves), strict=True)
            parts = torch.stack([checked_features(values[0]), *slopes[: len(deltas)]])  # (1 + T, n, p)
            found = torch.einsum("gt,tnc->gnc", powers, parts @ weight.T)
            if self.head.normalised:  # ‖Σ α_t z_t‖² from the products of the z_t
                wide = parts.double()
                products = torch.einsum("tnp,snp->nts", wide, wide)
                squares = torch.einsum("gt,nts,gs->gn", powers.double(), products, powers.double())
                found = (
                    found / squares.clamp_min(0).sqrt().clamp_min(torch.finfo(found.dtype).tiny).to(found)[..., None]
                )
            return READINGS[self.reading](found + bias).cpu()

        with torch.no_grad():
            return torch.cat(list(in_passes(work, samples.sizes[split], samples.shape, run, _DUAL)), 1)

    def _one_by_one(self, encoder: Network, deltas: list[Params], samples: Arrays, run: Run) -> Tensor:
        """A pass over the samples for every different set of coefficients."""
        split, device = next(iter(samples.splits)), run.torch_device
        different, places = torch.unique(self.coefficients, dim=0, return_inverse=True)
        read = READINGS[self.reading]

        def with_weights(params: Params) -> Callable[[slice], Tensor]:
            def work(span: slice) -> Tensor:
                x = samples.batch(split, torch.arange(span.start, span.stop, device=device))[0]
                with half_precision(run):
                    features = checked_features(encoder(image_layout(x), params))
                return read(self.head(features.to(samples.dtype)))

            return work

        found = []
        with torch.inference_mode(), run.tracked("edited networks", len(different)) as advance:
            for row in different.tolist():
                work = with_weights(moved_along(encoder.params, deltas, row))
                found.append(torch.cat(list(in_passes(work, samples.sizes[split], samples.shape, run))).cpu())
                advance(1)
            return torch.stack(found)[places].clone()


_INNER = "inner."  # prefix of the encoder's names beside its value


class _WithValue(nn.Module):
    """Outputs twice, the second time as constants: a linearisation gives its slope and its value in one pass."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Tensor, **kwargs: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.inner(*args, **kwargs)
        return outputs, outputs.detach()  # detached from forward mode too


def _with_value(encoder: Network) -> Network:
    named = [{_INNER + name: tensor for name, tensor in part.items()} for part in (encoder.params, encoder.buffers)]
    return dataclasses.replace(encoder, module=_WithValue(encoder.module), params=named[0], buffers=named[1])


def moved_along(start: Params, deltas: Sequence[Params], coefficients: Sequence[float]) -> Params:
    """``θ₀ + Σ α_t τ_t``."""
    params = dict(start)
    for name in deltas[0] if deltas else ():
        edit = sum(alpha * delta[name] for alpha, delta in zip(coefficients, deltas, strict=True))
        params[name] = image_layout(start[name] + edit)
    return params
