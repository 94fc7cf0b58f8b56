"""Weight decay in task vectors: how much of the base itself they contain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from biascope.results.wording import listed, percent

DECAYED = -0.1  # cosine with the base from which weight decay counts as part of a task vector


def cosines_with_base(base_norms: np.ndarray, task_norms: np.ndarray, base_dots: np.ndarray) -> list[float]:
    """Cosine of each task vector with θ₀, from norms ``(layer,)`` and ``(layer, model)`` and inner products; 0 of a vector that is 0.

    Example:
        >>> cosines_with_base(np.array([3.0, 4.0]), np.array([[0.3], [0.4]]), np.array([[-0.9], [-1.6]]))
        [-1.0]
    """
    lengths = np.sqrt(np.square(base_norms).sum()) * np.sqrt(np.square(task_norms).sum(0))
    return [float(dot / length) if length > 0 else 0.0 for dot, length in zip(base_dots.sum(0), lengths, strict=True)]


def doubts_of_decay(
    base_norms: np.ndarray, task_norms: np.ndarray, base_dots: np.ndarray, models: Sequence[str], base: str
) -> list[str]:
    """A warning for models whose task vectors contain the base itself with a negative sign, as weight decay makes it."""
    cosines = cosines_with_base(base_norms, task_norms, base_dots)
    lost = -base_dots.sum(0) / max(float(np.square(base_norms).sum()), 1e-300)
    named = [
        f"{model} (cosine −{-cosine:.2f}; it shrank {base} by {percent(float(share))})"
        for model, cosine, share in zip(models, cosines, lost, strict=True)
        if cosine < DECAYED
    ]
    if not named:
        return []
    return [
        f"Weight decay is part of the task vector of {listed(named)}. All models share this part, so their vectors overlap. "
        "Fine-tune with weight decay towards the base, or without."
    ]
