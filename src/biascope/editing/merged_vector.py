"""The task vector that a merging method makes of several, in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from biascope.editing import methods
from biascope.editing.methods._method import MovedTensor
from biascope.editing.methods._settings import Assigned, Values
from biascope.editing.vectors import TaskVector
from biascope.families import weights
from biascope.families.weights import Params
from biascope.runs.ambient import under_torch_defaults


@under_torch_defaults
def merged_vector(
    method: str,
    start: Params,
    vectors: Mapping[str, TaskVector],
    *,
    settings: Sequence[Assigned] = (),
    seed: int = 0,
) -> tuple[TaskVector, list[str]]:
    """What :func:`biascope.editing.merge.merge` would add to a base, and where the method degenerated.

    Args:
        method: One of :func:`biascope.editing.methods.names`.
        start: θ₀.
        vectors: Task vectors of θ₀, by the names of the models.
        settings: Settings of the method.
        seed: Random seed of masks.

    Raises:
        ValueError: If the method and its settings do not fit the models.

    Example:
        >>> start = {"w": torch.zeros(2)}
        >>> moved = {"a": torch.tensor([3.0, 1.0]), "b": torch.tensor([1.0, -2.0])}
        >>> vectors = {name: TaskVector.between(start, {"w": each}) for name, each in moved.items()}
        >>> merged_vector("ties", start, vectors, settings=[Assigned.read("density=1")])[0].deltas["w"].tolist()
        [2.0, -2.0]
    """
    form, models = methods.method(method), list(vectors)
    names = sorted({name for vector in vectors.values() for name in vector.deltas})
    parts = []
    for name in names:
        wide = weights.working_type(start[name].dtype)
        still = torch.zeros_like(start[name], dtype=wide)
        moved = [vector.deltas.get(name, still).to(wide) for vector in vectors.values()]
        parts.append(MovedTensor.held(name, start[name].to(wide), moved))
    chosen = form(Values(method, form.settings, settings, models, names), seed=seed)
    for _ in range(chosen.surveys(max((part.dtype for part in parts), key=lambda dtype: dtype.itemsize))):
        chosen.survey(parts)
    deltas = {}
    for part in parts:
        rule = chosen.rule(part)
        found = [rule(each) for each in part.read()]
        deltas[part.name] = torch.cat(found).view(part.shape) if found else torch.zeros(part.shape, dtype=part.dtype)
    return TaskVector(deltas, next(iter(vectors.values())).base, f"{method} of {', '.join(models)}"), chosen.doubts()
