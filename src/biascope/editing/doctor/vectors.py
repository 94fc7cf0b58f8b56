"""What the changes of an output and its sources say: nothing changed, another base, rounding, norms and weight decay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from biascope.editing.decay import doubts_of_decay
from biascope.editing.doctor.changes import Changes
from biascope.editing.doctor.diagnosis import CLEAN, FAULT, UNSEEN, WARNING, Sign
from biascope.editing.doctor.folder import MERGED, Folder
from biascope.editing.merge import RELATED
from biascope.families import weights
from biascope.results.wording import percent, significant

ROUNDED, MOSTLY_ROUNDED = 0.1, 0.5  # shares of ‖T‖² lost to rounding: a warning, a fault
UNEQUAL = 4.0  # ratio of the norms of two task vectors, from which the longer one counts as dominating


def signs_of_vectors(
    changes: Changes, base: Folder, models: Sequence[Folder], shares: Sequence[float]
) -> Iterator[Sign]:
    """Signs in the changes of models of a base.

    Args:
        changes: Of these models.
        base: The base.
        models: The output first, if it is at hand, then the sources.
        shares: The weight of each source for which rounding was computed.
    """
    sources = [model for model in models if model.role != MERGED]
    for place, model in enumerate(models):
        yield from _moved(changes, base, model, place, alone=model.role != MERGED or not sources)
    moving = [place for place, model in enumerate(models) if model.role != MERGED and changes.changed[:, place].any()]
    if moving:
        yield _rounding(changes, base, models, sources, shares)
    yield from _norms(changes, models, moving)
    for place in moving:
        norms = np.sqrt(changes.products[:, place, place])[:, None]
        words = doubts_of_decay(
            np.sqrt(changes.base_squares), norms, changes.base_dots[:, [place]], [models[place].name], base.name
        )
        remedy = "Train with decay towards the base, or give this model a small weight."
        for says in words:
            yield Sign("mostly_decay", WARNING, says, models[place].file(), "", remedy)
        if not words:
            yield Sign("mostly_decay", CLEAN, f"The change of {models[place].name} does not shrink {base.name}.")


def facts_of(changes: Changes, base: Folder, models: Sequence[Folder]) -> Iterator[str]:
    """Size of each change, how many layers it covers, and its cosine with θ₀."""
    whole = float(changes.base_squares.sum())
    for place, model in enumerate(models):
        square, along = float(changes.products[:, place, place].sum()), float(changes.base_dots[:, place].sum())
        covered = int((changes.changed[:, place] > 0).sum())
        words = f"{model.name} changes {covered} of {len(changes.layers)} layers of {base.name}"
        if square > 0 and whole > 0:
            words += f", by {percent((square / whole) ** 0.5)} of the norm of its weights"
            cosine = round(along / (square * whole) ** 0.5, 2) + 0.0  # no negative zero
            words += f"; cosine with them {cosine:.2f}".replace("-", "−")
        yield f"{words}."


def _moved(changes: Changes, base: Folder, model: Folder, place: int, *, alone: bool) -> Iterator[Sign]:
    """Whether a model is other than its base, and related to it."""
    if not changes.changed[:, place].any():
        left = [name for name, tensor in base.tensors.items() if weights.is_edited(name, tensor)]
        if not model.adapted and len({weights.layer_of(name) for name in left}) > len(changes.layers):
            says = f"Only {len(changes.layers)} layers of {model.name} and {base.name} can be compared; these are the same."
            yield Sign("no_change", UNSEEN, says)
        elif not model.adapted:
            says = f"{model.name} has the same weights as {base.name}, in all {len(changes.layers)} layers that were compared."
            remedy = (
                "Merge again, and check that the adapter was active and its names fit."
                if model.role == MERGED
                else "Pass the folder of the model after training."
            )
            yield Sign("no_change", FAULT, says, model.file(), changes.layers[0], remedy)
        return
    if model.adapted:
        return
    yield Sign("no_change", CLEAN, f"{model.name} differs from {base.name}.")
    along, whole = changes.base_dots[:, place], changes.base_squares
    lengths = np.sqrt(whole * np.maximum(whole + 2 * along + changes.products[:, place, place], 0))
    # By numbers, not by norms: scales of normalisations, all near 1, would make any two models alike.
    cosines = (whole + along)[lengths > 0] / lengths[lengths > 0]
    cosine = float(np.average(cosines, weights=changes.numbers[lengths > 0])) if len(cosines) else 1.0
    if cosine < RELATED and not alone:
        return  # an output is compared with its sources: a wrong scale is no other base
    if cosine < RELATED:
        says = f"The weights of {model.name} have a cosine of {cosine:.2f} with those of {base.name}, as if it had another base."
        remedy = "Pass the base that it was fine-tuned from."
        yield Sign("wrong_base", FAULT, says.replace("-0.", "−0."), model.file(), "", remedy)
    else:
        yield Sign(
            "wrong_base", CLEAN, f"The weights of {model.name} have a cosine of {cosine:.4f} with those of {base.name}."
        )


def _rounding(
    changes: Changes, base: Folder, models: Sequence[Folder], sources: Sequence[Folder], shares: Sequence[float]
) -> Sign:
    whole = float(changes.sums.sum())
    share = float(changes.lost.sum()) / whole if whole else 0.0
    named = " + ".join(
        source.name if weight == 1 else f"{significant(weight)}·{source.name}"
        for source, weight in zip(sources, shares, strict=True)
    )
    says = f"Rounding to {changes.precision} loses {percent(share)} of ‖τ‖² when {named} is added to {base.name}."
    file = (models[0] if models[0].role == MERGED and not models[0].adapted else base).file()
    if share < ROUNDED:
        return Sign("rounding", CLEAN, says)
    remedy = "Write the merged model in float32, or keep the adapter apart from the base."
    return Sign("rounding", FAULT if share >= MOSTLY_ROUNDED else WARNING, says, file, "dtype", remedy)


def _norms(changes: Changes, models: Sequence[Folder], moving: Sequence[int]) -> Iterator[Sign]:
    if len(moving) < 2:
        return
    norms = {place: float(changes.products[:, place, place].sum()) ** 0.5 for place in moving}
    most, least = max(norms, key=lambda each: norms[each]), min(norms, key=lambda each: norms[each])
    ratio = norms[most] / norms[least] if norms[least] else float("inf")
    says = (
        f"The task vector of {models[most].name} is {significant(ratio)} times as long as that of {models[least].name}."
    )
    if ratio < UNEQUAL:
        yield Sign("unequal_norms", CLEAN, says)
    else:
        remedy = "Scale the vectors to similar norms: the longer one decides nearly alone."
        yield Sign("unequal_norms", WARNING, says, models[most].file(), "", remedy)
