"""Which scale a merge gave to the updates of adapters: the right one, or one that a known fault gives."""

# l layers · i sources; the change of the output comes first

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from biascope.editing.adapters import CONFIG
from biascope.editing.doctor.changes import Changes
from biascope.editing.doctor.diagnosis import BY_KEY, CLEAN, FAULT, UNSEEN, Sign
from biascope.editing.doctor.folder import Folder
from biascope.results.wording import listed, percent, significant

_NEAR = 0.02  # a scale is the expected one within this share: faults are factors such as 2, 16 or √r
_NOISE = 5  # standard errors by which rounding may move the scale of a layer
_MOST = 0.9  # share of layers that must agree
_ALIKE = 0.3  # cosine of the output's change with the expected one, below which it is no sum of the sources
_LEAST = 0.01  # weight of a source below which it counts as absent
_CLOSE = 1e6  # condition number from which sources count as equal
_PEFT_ALPHA = 8  # lora_alpha where a configuration lacks it


@dataclass(frozen=True)
class LoraScale:
    """How an adapter scales the update of a layer.

    Attributes:
        value: s: α/r, or α/√r.
        rank: r.
        written: r of the output, if that is an adapter.
        stabilised: Whether it is α/√r.
        usual: What it would be without ``alpha_pattern``.
    """

    value: float
    rank: int
    written: int
    stabilised: bool
    usual: float


_SUM = 0.95  # of the change of an output, at least, that sums with weights of their own in each layer explain
# What may have gone wrong: the case, the factor by which an update is then too large, and in words.
_FAULTS = (
    ("scaled_twice", lambda scale: scale.value, "the scale s = {s} applied twice"),
    ("variant_lost", lambda scale: math.sqrt(scale.written), "√r of rsLoRA too much, r = {w}"),
    (
        "variant_lost",
        lambda scale: 1 / math.sqrt(scale.rank) if scale.stabilised else 1.0,
        "α/r in place of α/√r, r = {r}",
    ),
    ("alpha_lost", lambda scale: 1 / scale.value, "the scale s = {s} lost, as if it were 1"),
    ("alpha_lost", lambda scale: _PEFT_ALPHA / scale.rank / scale.value, "alpha lost and taken as 8, where s = {s}"),
    ("alpha_lost", lambda scale: scale.usual / scale.value, "alpha_pattern ignored"),
)
_ADVICE: Mapping[str, str] = {
    "scaled_twice": "Combine the adapters again with a newer PEFT, with combination_type='cat', or divide by s.",
    "variant_lost": "Merge each adapter into the base with merge_and_unload() of PEFT, or set use_rslora to false in the result.",
    "alpha_lost": "Merge again with adapter_config.json beside the adapter: biascope merge apply BASE ADAPTER=1 --out OUT.",
}


def signs_of_output(
    changes: Changes,
    merged: Folder,
    sources: Sequence[Folder],
    scales: Sequence[Mapping[str, LoraScale]],
    plain: Changes | None = None,
) -> Iterator[Sign]:
    """Whether the output is the weighted sum of its sources, in every layer and with the scale of each adapter.

    Args:
        changes: Of the output and its sources.
        merged: The output.
        sources: In the order of the changes.
        scales: Of each adapter by layer; empty for whole models.
        plain: Changes of the output and of sources without the norms of DoRA, if any has them.
    """
    if other := _other_than_a_sum(changes, merged, sources):
        yield from (Sign(case, UNSEEN, other) for case in _ADVICE)
        return
    yield from _lost_layers(changes, merged, sources)
    weights = [source.weight for source in sources]
    known = None not in weights or len(sources) == 1
    chosen = np.array([1.0 if weight is None else weight for weight in weights])
    right = _ratios(changes, chosen, merged.adapted)
    if right is not None and known and plain is not None and not _agree(right[0]):
        ignored = _ratios(plain, chosen, merged.adapted)
        if ignored is not None and _agree(ignored[0]):
            yield from _norms_ignored(merged, sources)
            return
    absent = list(_absent_sources(changes, merged, sources))
    yield from absent
    if right is None or absent or not any(scales):
        return
    if known:
        yield from _signs_of_scale(changes, chosen, *right, merged, sources, scales)
    else:
        named = " ".join(f"{source.path}=0.5" for source in sources)
        yield from (Sign(case, UNSEEN, f"It needs the weights of the merge: {named}.") for case in _ADVICE)


def fit_of(changes: Changes, merged: Folder, sources: Sequence[Folder]) -> Iterator[str]:
    """The weights of the sources in an output by least squares over all layers, and how much of its change they explain."""
    products = changes.products.sum(0)
    if sources and products[0, 0] > 0:
        found = np.linalg.pinv(products[1:, 1:], hermitian=True) @ products[0, 1:]
        share = min(float(found @ products[0, 1:] / products[0, 0]), 1.0)
        parts = zip(np.round(found, 4) + 0.0, sources, strict=True)  # no negative zero
        total = " + ".join(f"{significant(float(weight))}·{source.name}" for weight, source in parts)
        yield f"By least squares, the change of {merged.name} is {total}, which explains {percent(max(share, 0.0))} of ‖τ‖².".replace(
            "+ -", "− "
        )


def _other_than_a_sum(changes: Changes, merged: Folder, sources: Sequence[Folder]) -> str:
    """Why an output cannot be judged as a weighted sum; empty where it can.

    TIES and others drop changes on purpose, so what a sum would have is missing without a fault.
    """
    method = merged.checkpoint.metadata.get("method", "") if merged.checkpoint is not None else ""
    if method and method != "linear":
        return f"{merged.name} was merged by {method}, which makes no weighted sum."
    moved = changes.products[changes.changed[:, 0] > 0]
    total = float(moved[:, 0, 0].sum())
    if merged.adapted or len(sources) < 2 or not total > 0:
        return ""
    explained = sum(float(each[0, 1:] @ np.linalg.pinv(each[1:, 1:], hermitian=True) @ each[0, 1:]) for each in moved)
    if explained >= _SUM * total:
        return ""
    return (
        f"Weighted sums of the sources explain {percent(explained / total)} of the change of {merged.name}, with weights of their own "
        "in each layer. So it is no such sum, or mostly rounding."
    )


def _norms_ignored(merged: Folder, sources: Sequence[Folder]) -> Iterator[Sign]:
    says = f"The change of {merged.name} is that of LoRA alone: the norms that DoRA gives to outputs were ignored."
    remedy = "Merge again with merge_and_unload() of PEFT, or with biascope merge apply BASE ADAPTER=1 --out OUT."
    place = next(source for source in sources if source.adapter_config.get("use_dora"))
    yield Sign("variant_lost", FAULT, says, place.file(CONFIG), "use_dora", remedy)
    others = [case for case in _ADVICE if case != "variant_lost"]
    yield from (Sign(case, CLEAN, f"Case 2 explains the change of {merged.name}.") for case in others)


def _signs_of_scale(
    changes: Changes,
    chosen: np.ndarray,
    ratio: np.ndarray,
    cosine: float,
    merged: Folder,
    sources: Sequence[Folder],
    scales: Sequence[Mapping[str, LoraScale]],
) -> Iterator[Sign]:
    """What the ratio of the output's change to the expected one says of its scale."""
    middle = float(np.nanmedian(ratio))
    times = significant(middle)
    explained = [] if _agree(ratio) else _explained(changes, chosen, merged, scales)
    if cosine < _ALIKE or not (_agree(ratio) or _agree(ratio / middle) or explained):
        says = f"The change of {merged.name} is no sum of the updates with these weights, so its scale cannot be told."
        yield from (Sign(case, UNSEEN, says) for case in _ADVICE)
    elif odd := _odd_layers(changes, chosen, ratio) if _agree(ratio) else []:
        (layer, other), *_ = sorted(odd, key=lambda each: -abs(each[1] - 1))
        says = (
            f"In {len(odd)} of {len(ratio)} layers, the change of {merged.name} is not the expected one, such as "
            f"{significant(other)} times it in {layer}."
        )
        yield Sign("alpha_lost", FAULT, says, merged.file(), layer, _ADVICE["alpha_lost"])
    elif _agree(ratio):
        says = f"The change of {merged.name} is {times} times the expected one, in {len(ratio)} layers."
        yield from (Sign(case, CLEAN, says) for case in _ADVICE)
    elif explained:
        yield from _faults(explained, ratio, merged, sources, scales)
    elif sources[0].weight is None:
        says = f"{merged.name} has {times} times the update of {sources[0].name}. If that is its weight, pass {sources[0].path}={times}"
        yield from (Sign(case, UNSEEN, says) for case in _ADVICE)
    else:
        says = f"The change of {merged.name} is {times} times the weighted sum of its sources."
        yield Sign("alpha_lost", FAULT, says, merged.file(), "", _ADVICE["alpha_lost"])
        others = [case for case in _ADVICE if case != "alpha_lost"]
        yield from (Sign(case, CLEAN, f"This case would give {merged.name} another scale.") for case in others)


def _explained(
    changes: Changes, chosen: np.ndarray, merged: Folder, scales: Sequence[Mapping[str, LoraScale]]
) -> list[tuple[str, str]]:
    """The known faults that give the scale of the output: their cases, each in words."""
    stabilised = any(each.stabilised for scale in scales for each in scale.values())
    stabilised |= bool(merged.adapter_config.get("use_rslora"))
    found = []
    for case, factor_of, words in _FAULTS:
        factors = np.array([[_factor(factor_of, scale.get(layer)) for scale in scales] for layer in changes.layers])
        if (case == "variant_lost" and not stabilised) or np.allclose(factors, 1, rtol=3 * _NEAR):
            continue
        tried = _ratios(changes, chosen * factors, merged.adapted)
        if tried is not None and _agree(tried[0]):
            found.append((case, words))
    return found


def _faults(
    explained: Sequence[tuple[str, str]],
    ratio: np.ndarray,
    merged: Folder,
    sources: Sequence[Folder],
    scales: Sequence[Mapping[str, LoraScale]],
) -> Iterator[Sign]:
    """The likeliest fault that explains a scale. Others that explain it too cannot be seen, and the rest are clean."""
    case, words = explained[0]
    place, scale = next(pair for pair in zip(sources, scales, strict=True) if pair[1])
    some = next(iter(scale.values()))
    why = " or ".join(text.format(s=significant(some.value), r=some.rank, w=some.written) for _, text in explained)
    times = significant(float(np.nanmedian(ratio)))
    says = f"The change of {merged.name} is {times} times the expected one, in {len(ratio)} layers: {why}."
    key = "use_rslora" if case == "variant_lost" else "alpha_pattern" if "pattern" in words else "lora_alpha"
    yield Sign(case, FAULT, says, (merged if merged.adapted else place).file(CONFIG), key, _ADVICE[case])
    number = list(BY_KEY).index(case) + 1
    for other in _ADVICE:
        if other not in [each for each, _ in explained]:
            yield Sign(other, CLEAN, f"Case {number} explains the scale of {merged.name}.")
        elif other != case:
            yield Sign(other, UNSEEN, f"It would give {merged.name} the same scale as case {number}.")


def _factor(factor_of: object, scale: LoraScale | None) -> float:
    return 1.0 if scale is None or not scale.value else float(factor_of(scale))  # type: ignore[operator]


def _ratios(changes: Changes, weights: np.ndarray, adapted: bool) -> tuple[np.ndarray, float] | None:
    """Per layer, how many times the expected change the output has, and the cosine of the two; none if there is nothing to compare.

    An adapter that was cut to a rank is the projection M of the expected T: ⟨M, T⟩ = ‖M‖² then, whatever was cut off. A whole model
    has the noise of rounding beside T: ⟨M, T⟩ = ‖T‖² then.

    Args:
        changes: Inner products.
        weights: ``(i,)`` or ``(l, i)``, of the expected sum T.
        adapted: Whether the output is an adapter.
    """
    weights = np.broadcast_to(weights, changes.products[:, 0, 1:].shape)
    along = np.einsum("li,li->l", changes.products[:, 0, 1:], weights)
    square = np.einsum("li,lij,lj->l", weights, changes.products[:, 1:, 1:], weights)
    own = changes.products[:, 0, 0]
    there = (square > 0) & (own > 0)
    if not there.any():
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (own / along if adapted else along / square)[there]
    cosine = along[there].sum() / math.sqrt(own[there].sum() * square[there].sum())
    return ratio, float(cosine)


def _odd_layers(changes: Changes, weights: np.ndarray, ratio: np.ndarray) -> list[tuple[str, float]]:
    """Layers whose ratio is not 1 although most are, by more than the noise of rounding explains."""
    square = np.einsum("i,lij,j->l", weights, changes.products[:, 1:, 1:], weights)
    there = np.flatnonzero((square > 0) & (changes.products[:, 0, 0] > 0))
    noise = np.sqrt(changes.lost / changes.numbers / np.where(square > 0, square, 1))[there]
    far = ~(np.abs(ratio - 1) <= _NEAR + _NOISE * noise)
    return [(changes.layers[there[place]], float(ratio[place])) for place in np.flatnonzero(far)]


def _agree(ratio: np.ndarray) -> bool:
    return bool((np.abs(ratio - 1) <= _NEAR).mean() >= _MOST)


def _absent_sources(changes: Changes, merged: Folder, sources: Sequence[Folder]) -> Iterator[Sign]:
    """Sources of which the output has nothing, by least squares over all layers."""
    products = changes.products.sum(0)
    norms = np.sqrt(np.diag(products)[1:])
    if not (norms > 0).all():
        return
    scaled = products[1:, 1:] / norms[:, None] / norms
    if np.linalg.cond(scaled) > _CLOSE:
        return  # the same source twice, for example
    found = np.linalg.solve(scaled, products[0, 1:] / norms) / norms
    for source, times in zip(sources, found, strict=True):
        wanted = _LEAST if source.weight is None else 0.05 * abs(source.weight)
        if abs(times) < wanted:
            says = f"{merged.name} has nothing of the change of {source.name}: by least squares, its weight is {abs(times):.3f}."
            remedy = "Pass the output of these sources, or merge again and check that all of them were active."
            yield Sign("no_change", FAULT, says, merged.file(), "", remedy)


def _lost_layers(changes: Changes, merged: Folder, sources: Sequence[Folder]) -> Iterator[Sign]:
    """Layers that the sources change and the output does not, though its type could hold the change."""
    moving = (changes.changed[:, 1:] > 0).any(1) & (changes.stirred > 0)
    lost = moving & (changes.changed[:, 0] == 0)
    if 0 < lost.sum() < moving.sum():
        named = [changes.layers[place] for place in np.flatnonzero(lost)]
        says = (
            f"{listed([source.name for source in sources])} change {moving.sum()} layers, {merged.name} only "
            f"{moving.sum() - lost.sum()}; {named[0]} is as in the base."
        )
        remedy = "Merge again, and look for names that the merger skipped."
        yield Sign("alpha_lost", FAULT, says, merged.file(), named[0], remedy)
