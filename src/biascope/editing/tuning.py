"""Fine-tuning of an encoder on tasks, non-linear or in its tangent space, as saved task vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from biascope.derivatives.linearize import linearize
from biascope.editing.heads import ENCODER, Head, headed, require_splits
from biascope.editing.vectors import TaskVector
from biascope.families.network import Network
from biascope.families.weights import Params
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.identity import content_of
from biascope.runs.run import Run
from biascope.runs.trials import Group, Outcome, Sweep
from biascope.tasks.task import Arrays, master_dtype
from biascope.training.fit import fit
from biascope.training.recipe import Recipe

TUNINGS = ("non-linear", "linearised")
Vectors = Mapping[str, Mapping[str, TaskVector]]  # by how they were tuned, then by task


def tuning_recipe(*, steps: int = 500, rate: float = 1e-5, batch: int = 128) -> Recipe:
    """The recipe of the published task vectors, with adjustable length and learning rate.

    AdamW with weight decay 0.1, gradients clipped to norm 1, a rate that rises over the first tenth of the iterations and then
    falls along a cosine to 0; BatchNorm frozen. Published: 2,000 iterations at 1e-5. Weight decay pulls to the pre-trained weights
    θ₀. The published one pulls to zero: it puts the same share of −θ₀ into every task vector, which grows with the rate.

    Example:
        >>> recipe = tuning_recipe(steps=100, rate=0.1)
        >>> [round(recipe.rate_at(step, 100), 3) for step in (0, 9, 55, 99)]
        [0.01, 0.1, 0.05, 0.0]
    """
    return Recipe(
        "adamw",
        rate,
        schedule="cosine",
        warmup=steps // 10,
        weight_decay=0.1,
        decay_to="start",
        steps=steps,
        batch=batch,
        clip=1.0,
        loss="cross_entropy",
        batchnorm="eval",
    )


def _tuned_weights(
    encoder: Network, head: Head, task: Arrays, recipe: Recipe, linearised: bool, seed: int, run: Run
) -> Params:
    """θ*, on the CPU and in the types of the encoder."""
    require_splits(task, ("train",))
    placed = encoder.to(run.torch_device, master_dtype(run))
    start = headed(linearize(placed) if linearised else placed, head)
    walk = fit(start, task.to(run), recipe, seed=seed, run=run).require_finite()
    return {
        name: walk.networks.params[ENCODER + name].to("cpu", like.dtype).contiguous()
        for name, like in encoder.params.items()
    }


@under_torch_defaults
def tuned_vectors(
    encoder: Network,
    heads: Mapping[str, Head],
    tasks: Mapping[str, Arrays],
    recipe: Recipe,
    *,
    tunings: Sequence[str] = TUNINGS,
    seed: int = 0,
    run: Run | None = None,
) -> dict[str, dict[str, TaskVector]]:
    """Task vectors of several tasks, by tuning and then by task.

    Every fine-tuning is a trial of its own: with a folder its weights are kept as soon as it is done, under the content of
    encoder, head and data, the recipe and the seed, so that the same call continues what was begun and repeats nothing; on a
    cluster they run side by side.

    Args:
        encoder: Pre-trained.
        heads: Head of each task.
        tasks: With a split ``train`` each; other splits are ignored.
        recipe: The recipe for all tasks.
        tunings: ``"non-linear"``, ``"linearised"`` or both.
        seed: Random seed for the order of samples.
        run: Folder, device, precision, cluster.

    Returns:
        ``{tuning: {task: vector}}``; post-hoc linearisation uses the non-linear ones.

    Raises:
        ValueError: If there is no such tuning, a head or split is missing, or a training diverges.
    """
    run = run or Run()
    if unknown := [tuning for tuning in tunings if tuning not in TUNINGS]:
        raise ValueError(
            f"tunings must be among 'non-linear' and 'linearised', got {unknown[0]!r}. Pass tunings=('non-linear',)."
        )
    require_heads(tasks, heads)
    for name, task in tasks.items():
        require_splits(task, ("train",), name)
    content = {name: content_of((task.splits["train"], heads[name])) for name, task in tasks.items()}
    work = _Tunings(encoder, dict(heads), dict(tasks), recipe)
    keys = {
        (tuning, name): f"{tuning}|{seed}|{content[name]}|{name}" for tuning in tunings for name in tasks
    }  # the name comes last, since it may hold any sign
    at = next(iter(tasks.values()), None)
    sweep = Sweep("task tuning", run, code=(_Tunings, _tuned_weights), at=at, encoder=encoder, recipe=recipe)
    found = sweep.outcomes(
        list(keys.values()), work, plan=lambda new: [Group((key,)) for key in new], label="fine-tuning"
    )
    return {
        tuning: {
            name: TaskVector.between(encoder.params, found[keys[tuning, name]], source=f"{name}, {tuning}, seed {seed}")
            for name in tasks
        }
        for tuning in tunings
    }


@dataclass(frozen=True)
class _Tunings:
    """Fine-tunes by key: what a sweep, and a worker elsewhere, calls."""

    encoder: Network
    heads: dict[str, Head]
    tasks: dict[str, Arrays]
    recipe: Recipe

    def __call__(self, keys: Sequence[str], run: Run, method: Mapping[str, Any]) -> dict[str, Outcome]:
        found: dict[str, Outcome] = {}
        for key in keys:
            tuning, seed, _, name = key.split("|", 3)
            found[key] = _tuned_weights(
                self.encoder, self.heads[name], self.tasks[name], self.recipe, tuning == "linearised", int(seed), run
            )
        return found


def require_heads(tasks: Iterable[str], heads: Mapping[str, Head]) -> None:
    """Raise a ``ValueError`` where a task has no head."""
    if lacking := [name for name in tasks if name not in heads]:
        raise ValueError(f"Every task must have a head, but {lacking[0]!r} has none. Fit one with fitted_head.")
