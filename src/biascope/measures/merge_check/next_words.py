"""Whether fine-tuned language models can be merged: how many next words of the user's texts a merge would change."""

# T models, each with its texts · n texts · t tokens of a text · v tokens of the vocabulary · A coefficients · B resamples

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from biascope.editing.accuracies import require_resamples, resample_counts
from biascope.editing.decay import doubts_of_decay
from biascope.editing.layer_sums import sums_by_layer
from biascope.editing.outputs import moved_along, sampled
from biascope.editing.vectors import TaskVector
from biascope.families import weights
from biascope.families.network import Network
from biascope.families.weights import Params
from biascope.measures.merge_check.result import MergeCheck
from biascope.runs.digest import fingerprint
from biascope.runs.identity import content_of
from biascope.runs.randomness import seed_of
from biascope.runs.rehearsal import at_hand, counted
from biascope.runs.run import Run
from biascope.runs.trials import Trials
from biascope.tasks.task import Arrays, master_dtype

ALPHAS = tuple(step / 20 for step in range(21))
_LOGITS = 2**24  # numbers of the outputs of one batch, of each model that is held
_SAME = 1e-4  # of the size of outputs: how far rounding moves them


@dataclass(frozen=True)
class _Sums:
    """Sums over the next words of each text.

    Attributes:
        words: ``(n,)`` how many.
        changed: ``(n, A)`` those on which merge and fine-tuned model differ.
        divergence: ``(n, A)`` Kullback-Leibler divergence of the merge from the fine-tuned model, nats.
        surprise: ``(n, A)`` −log probability of the words by the merge, nats.
        own_surprise: ``(n,)`` the same by the fine-tuned model.
        gram: ``(T, T)`` inner products of the changes of outputs by each task vector alone.
    """

    words: Tensor
    changed: Tensor
    divergence: Tensor
    surprise: Tensor
    own_surprise: Tensor
    gram: Tensor


def merge_check_texts(
    model: Network,
    vectors: Mapping[str, TaskVector],
    texts: Mapping[str, Arrays],
    *,
    split: str = "samples",
    points: int = 1000,
    alphas: Sequence[float] = ALPHAS,
    resamples: int = 400,
    name: str = "base",
    seed: int = 0,
    run: Run | None = None,
) -> MergeCheck:
    """What merging fine-tuned language models would do to the next words that they predict.

    Definition:
        ``d_t(α)`` is the share of the next words in the texts of model t for which the likeliest word by
        ``θ₀ + α Σ_s τ_s`` is another than that by ``θ₀ + τ_t``. Beside it stand the divergence
        ``KL(p(·; θ₀ + τ_t) ‖ p(·; θ₀ + α Σ_s τ_s))`` in nats for each token, and the perplexity ``exp(−mean log p)`` of the texts
        by the base, each model and each merge. The suggested coefficient minimises the mean of ``d_t`` over models.

    Words of one text depend on each other, so intervals come from resampled texts. Each text is a row of token ids, −1 behind its end.

    Args:
        model: Base model at θ₀: logits ``(n, t, v)`` of token ids ``(n, t)``. A position sees those before it alone.
        vectors: Task vectors by model, at least two.
        texts: Texts for each model; labels are ignored.
        split: Split to take texts from.
        points: Largest number of texts of each.
        alphas: Coefficients to choose from; 0, the base, is always among them.
        resamples: Resamples of the texts, for intervals.
        name: Name of the base.
        seed: Random seed for the choice of texts and for resamples.
        run: Folder (finished work is saved), device, precision.

    Returns:
        The verdict and the numbers behind it, with ``compared = "words"``.

    Raises:
        ValueError: If models, texts and settings do not fit, outputs are not finite, or a position sees those behind it.

    Example:
        >>> model = Network.of(torch.nn.Embedding(3, 3)).with_params({"weight": torch.zeros(3, 3)})
        >>> ends = {"a": torch.eye(3), "b": torch.diag(torch.tensor([2.0, 0.0, 0.0]))}  # each repeats the words that it knows
        >>> vectors = {each: TaskVector.between(model.params, {"weight": end}) for each, end in ends.items()}
        >>> texts = {"a": Arrays({"samples": (torch.tensor([[2, 2, 1], [1, 1, -1]]), torch.zeros(2))}),
        ...          "b": Arrays({"samples": (torch.tensor([[0, 0, 0], [0, 0, 0]]), torch.zeros(2))})}
        >>> found = merge_check_texts(model, vectors, texts, alphas=(0.5,), run=Run(device="cpu"))
        >>> found.apart[:, 1], found.grade
        (array([0., 0.]), 'merge')

    Reference:
        Ilharco et al. (2023). Editing models with task arithmetic. ICLR.
    """
    run = run or Run()
    models = tuple(vectors)
    _check(model, vectors, texts, alphas, resamples)
    chosen = {each: sampled(texts[each], split, points, seed=seed) for each in models}
    for each in models:
        _require_next_words(model, chosen[each], name)
    coefficients = sorted({0.0, *map(float, alphas)})
    look = _Look(model, tuple(vectors.values()), tuple(coefficients), run)
    found: dict[str, _Sums] = {}
    passes = sum(part.sizes[split] for part in chosen.values()) * (len(coefficients) + len(models))
    with counted("texts of edited networks", passes) as advance:
        for place, each in enumerate(models):
            found[each] = look.sums(place, chosen[each], advance)
    rows = {key: [_resampled(getattr(found[each], key), found[each].words, resamples, seed) for each in models]
            for key in ("changed", "divergence", "surprise", "own_surprise")}  # fmt: skip
    whole = {key: np.array([value for value, _ in each]) for key, each in rows.items()}
    draws = {key: np.array([drawn for _, drawn in each]) for key, each in rows.items()}
    grams = np.array([found[each].gram.numpy() for each in models])
    sizes, cosines = _effects(grams)
    by_layer = sums_by_layer(model, vectors)
    doubts = doubts_of_decay(by_layer["base_norms"], by_layer["task_norms"], by_layer["base_dots"], models, name)
    return MergeCheck(
        base=name,
        models=models,
        data=tuple(texts[each].name for each in models),
        points=tuple(chosen[each].sizes[split] for each in models),
        words=tuple(int(found[each].words.sum()) for each in models),
        compared="words",
        alphas=np.array(coefficients),
        apart=whole["changed"],
        resampled=draws["changed"],
        divergence=whole["divergence"],
        divergence_resampled=draws["divergence"],
        surprise=whole["surprise"],
        surprise_resampled=draws["surprise"],
        own_surprise=whole["own_surprise"],
        own_surprise_resampled=draws["own_surprise"],
        map_alphas=np.zeros(0),
        terms=None,
        low=None,
        threshold=0.1,
        effects=sizes,
        effect_cosines=cosines,
        **by_layer,
        provenance={
            "encoder": content_of(model),
            "vectors": {each: fingerprint(vector.deltas) for each, vector in vectors.items()},
            "tasks": {each: texts[each].name for each in models},
            **({"warnings": doubts} if doubts else {}),
        },
    )


def _check(
    model: Network,
    vectors: Mapping[str, TaskVector],
    texts: Mapping[str, Arrays],
    alphas: Sequence[float],
    resamples: int,
) -> None:
    if len(vectors) < 2:
        raise ValueError(f"A merge needs at least two models, got {len(vectors)}. Pass another model.")
    if lacking := [each for each in vectors if each not in texts]:
        raise ValueError(f"Every model must have texts, but {lacking[0]!r} has none. Pass texts[{lacking[0]!r}].")
    if not len(alphas) or not all(np.isfinite(alpha) and alpha >= 0 for alpha in alphas):
        raise ValueError(f"alphas must be finite and not negative, got {list(alphas)}. Pass alphas=(0.3, 0.5, 1.0).")
    require_resamples(resamples)
    edited = {key: tensor for key, tensor in model.params.items() if weights.is_edited(key, tensor)}
    for each, vector in vectors.items():
        if vector.base != fingerprint(edited) or weights.misfits(vector.deltas, edited, types=False):
            raise ValueError(f"The task vector of {each} must start from the weights of the model. Pass its own base.")


@torch.no_grad()
def _require_next_words(model: Network, texts: Arrays, name: str) -> None:
    """Refuse outputs that are not one row for each position, or depend on later positions, chance or other texts."""
    ids = next(iter(texts.splits.values()))[0][:4].clamp_min(0)
    placed = model.to(torch.device("cpu"), torch.float32)
    outputs = placed(ids)
    if outputs.dim() != 3 or outputs.shape[:2] != ids.shape:
        raise ValueError(
            f"{name} must give logits of the next word at each position of {'×'.join(map(str, ids.shape))} ids, got shape "
            f"{'×'.join(map(str, outputs.shape))}. Pass a causal language model."
        )
    if not bool(outputs.isfinite().all()):
        raise ValueError(f"{name} must give finite outputs on {texts.name}, but does not. Check its weights.")
    later = ids.clone()
    later[:, -1] = (later[:, -1] + 1) % outputs.shape[2]
    size = float(outputs.abs().max()) or 1.0
    moved = float((placed(later)[:, :-1] - outputs[:, :-1]).abs().max()) if ids.shape[1] > 1 else 0.0
    alone = float((torch.cat([placed(row[None]) for row in ids]) - outputs).abs().max())
    for how, seen in (("later words of a text", moved), ("the other texts of a batch", alone)):
        if seen > _SAME * size:
            raise ValueError(
                f"{name} must predict a word from those before it alone, but its outputs change with {how}. Pass a causal language "
                "model in evaluation mode."
            )


@dataclass(frozen=True)
class _Look:
    """Looks at merged language models."""

    model: Network
    vectors: tuple[TaskVector, ...]
    alphas: tuple[float, ...]
    run: Run

    def sums(self, place: int, texts: Arrays, advance: Callable[[int], None]) -> _Sums:
        """Over the texts of one model; one piece of work, found again where it is finished."""
        ids = next(iter(texts.splits.values()))[0]
        trials = Trials(
            "next words", self.run, code=_Look, at=texts, network=self.model,
            vectors=[vector.deltas for vector in self.vectors], alphas=list(self.alphas), place=place, texts=ids,
        )  # fmt: skip
        done = len(ids) * (len(self.alphas) + len(self.vectors)) if trials.done("sums") else 0
        found = next(trials.outcomes(["sums"], lambda _: vars(self._summed(place, ids, advance))))
        advance(done)
        return _Sums(**{field.name: found[field.name] for field in fields(_Sums)})

    @torch.no_grad()
    def _summed(self, place: int, ids: Tensor, advance: Callable[[int], None]) -> _Sums:
        device, dtype = self.run.torch_device, master_dtype(self.run)
        placed = self.model.to(device, dtype)
        deltas = [weights.moved(vector.deltas, device, dtype) for vector in self.vectors]
        count, parts = len(deltas), []
        gram = torch.zeros(count, count, dtype=torch.float64)
        with self.run.products():
            width = placed(ids[:1].clamp_min(0).to(device)).shape[-1]
            size = max(1, _LOGITS // (width * ids.shape[1]))
            for begin in range(0, len(ids), size):
                part = ids[begin : begin + size].to(device)
                steps = len(part) * (len(self.alphas) + count)
                at_hand(steps)
                summed, more = self._batch(placed, placed.params, deltas, place, part)
                parts.append(summed)
                gram += more
                advance(steps)
        words, own, *others = (torch.cat(each) for each in zip(*parts, strict=True))
        return _Sums(words, others[0], others[1], others[2], own, gram)

    def _batch(
        self, placed: Network, start: Params, deltas: list[Params], place: int, ids: Tensor
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Sums over the words of some texts, ``(n,)`` or ``(n, A)``, and the inner products of changes."""
        seen, following = ids[:, :-1].clamp_min(0), ids[:, 1:]
        counts = (following >= 0).double()

        def scores(coefficients: Sequence[float]) -> Tensor:
            return placed(seen, moved_along(start, deltas, coefficients)).double().log_softmax(-1)

        def surprise(rows: Tensor) -> Tensor:
            return -(rows.gather(-1, following.clamp_min(0)[..., None])[..., 0] * counts).sum(1)

        count = len(deltas)
        own = scores([float(other == place) for other in range(count)])
        base = scores([0.0] * count)
        changes = []
        for other in range(count):
            rows = own if other == place else scores([float(each == other) for each in range(count)])
            change = rows - base
            changes.append(((change - change.mean(-1, keepdim=True)) * counts[..., None]).flatten())
        gram = torch.stack([torch.stack([one @ two for two in changes]) for one in changes]).cpu()
        found = []
        for alpha in self.alphas:
            rows = base if alpha == 0 else scores([alpha] * count)
            differ = ((rows.argmax(-1) != own.argmax(-1)).double() * counts).sum(1)
            apart = ((own.exp() * (own - rows)).sum(-1) * counts).sum(1)
            found.append((differ, apart, surprise(rows)))
        if not all(bool(each.isfinite().all()) for row in found for each in row):
            raise ValueError(
                "The models must give finite outputs on their texts, but do not. Check their weights, and use float32."
            )
        columns = (torch.stack(each, 1).cpu() for each in zip(*found, strict=True))
        return (counts.sum(1).cpu(), surprise(own).cpu(), *columns), gram


def _resampled(sums: Tensor, words: Tensor, resamples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The mean over words ``(…)`` of sums over texts ``(n, …)``, and that over resampled texts ``(…, B)``."""
    own, count = sums.numpy(), words.numpy()
    counts = resample_counts(len(count), resamples, seed_of(seed, "resamples"))
    totals = np.tensordot(counts, own, 1)  # (B, …)
    sizes = (counts @ count).reshape(-1, *[1] * (own.ndim - 1))
    return own.sum(0) / count.sum(), np.moveaxis(totals / np.maximum(sizes, 1), 0, -1)


def _effects(grams: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sizes of the changes of outputs relative to a model's own on its texts, and cosines, from inner products ``(T, T, T)``."""
    sizes, cosines = np.full(grams.shape[:2], np.nan), np.full(grams.shape[:2], np.nan)
    for task, gram in enumerate(grams):
        norms = np.sqrt(np.maximum(np.diag(gram), 0))
        if norms[task] > 0:
            sizes[task] = norms / norms[task]
            cosines[task] = gram[task] / np.where(norms > 0, norms[task] * norms, np.nan)
    return sizes, cosines
