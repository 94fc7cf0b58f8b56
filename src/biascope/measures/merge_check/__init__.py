"""Whether fine-tuned models can be merged, from unlabelled samples, before the merge."""

# T models, each with a task · n samples · c classes · A coefficients · G sets of coefficients · B resamples

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from biascope.derivatives.moments import unit_of
from biascope.editing.accuracies import resample_counts
from biascope.editing.decay import doubts_of_decay
from biascope.editing.examples import SmallEncoder
from biascope.editing.heads import Head
from biascope.editing.layer_sums import sums_by_layer
from biascope.editing.merged_vector import merged_vector
from biascope.editing.outputs import edited_outputs, predicted_classes, require_repeatable, sampled
from biascope.editing.results import places_inside
from biascope.editing.tuning import require_heads
from biascope.editing.vectors import TaskVector
from biascope.families.network import Network
from biascope.measures.merge_check.methods import SCALES, scaled_method
from biascope.measures.merge_check.result import BOX, MergeCheck
from biascope.measures.merge_check.verdict import best_place
from biascope.results.registry import measurement
from biascope.results.wording import percent
from biascope.runs.digest import fingerprint
from biascope.runs.identity import content_of
from biascope.runs.randomness import forked_rng, seed_of
from biascope.runs.rehearsal import at_hand, counted
from biascope.runs.run import Run
from biascope.tasks.task import Arrays

ALPHAS = tuple(step / 20 for step in range(21))
READINGS = {"classes": "classes", "features": "logits"}  # how outputs are read, by what is compared


def _example() -> tuple[tuple[Any, ...], dict[str, Any]]:
    with forked_rng(0):
        small = SmallEncoder.drawn({"left": 1.0, "right": -1.0}, ends=2, samples=60)
    tasks = {name: Arrays({"test": (x, torch.zeros(60))}, name=name) for name, x in small.samples.items()}
    vectors = {name: TaskVector.between(small.encoder.params, end) for name, end in zip(tasks, small.ends, strict=True)}
    return (small.encoder, small.heads, vectors, tasks), {
        "points": 40,
        "grid": 4,
        "control": tasks["left"],
        "methods": ("ties", "sce:mergekit"),
        "resamples": 40,
    }


@measurement(
    title="Merge check",
    paper="task_arithmetic2023",
    result=MergeCheck,
    example=_example,
    command="biascope merge check",
)
def merge_check(
    encoder: Network | Mapping[str, Network],
    heads: Mapping[str, Head],
    vectors: Mapping[str, TaskVector],
    tasks: Mapping[str, Arrays],
    *,
    split: str = "test",
    points: int = 1000,
    alphas: tuple[float, ...] = ALPHAS,
    compared: str = "classes",
    accuracies: Mapping[str, float] | None = None,
    control: Arrays | None = None,
    methods: Sequence[str] = (),
    grid: int | None = 10,
    reach: tuple[float, float] = (-1.0, 2.0),
    map_points: int = 256,
    threshold: float = 0.1,
    resamples: int = 400,
    name: str = "base",
    seed: int = 0,
    run: Run | None = None,
) -> MergeCheck:
    """What merging fine-tuned models would do to their predictions; no labels are needed.

    Definition:
        ``d_t(α) = E_{x∼μ_t} dist(f(x; θ₀ + τ_t), f(x; θ₀ + α Σ_s τ_s))``, where dist is 1 if the predicted classes differ. The
        suggested coefficient minimises the mean of ``d_t`` over tasks. ``d_t`` is the predicted loss. On these samples, the accuracy
        of the merged model drops by at most ``d_t``, for any labels. ``d_t(0)`` is the distance from the base. The verdict follows
        from both; see ``docs/merge_check.md``.

        The *expected* loss is ``E [q(ŷ_t) − q(ŷ_α)]``. Here ŷ are the predicted classes, and q are the probabilities of the
        fine-tuned model, from which labels are drawn. If its accuracy is known, q has the temperature at which its mean
        confidence equals that accuracy.

        The result also has, for every pair of models:

        - the disentanglement error ``ξ(α₁, α₂) = Σ_t E dist(f(x; θ₀ + α_tτ_t), f(x; θ₀ + α₁τ₁ + α₂τ₂))``;
        - the size and the cosine of the changes of outputs ``f(x; θ₀ + τ_s) − f(x; θ₀)`` on each task's samples;
        - the cosines of task vectors by layer.

        For every model it has the cosine of its task vector with θ₀. Weight decay to zero makes it negative: it puts ``−s θ₀``, with
        the same θ₀, into all vectors, so that they overlap. A warning is given below −0.1.

        If features are compared, dist is 1 − cosine of the two outputs, after the mean of the first outputs is subtracted.

    Args:
        encoder: Base model at θ₀; with heads it predicts classes. Or one network for each model, at the same θ₀: what a model has of
            its own, such as layers of its head, is among the buffers of its network.
        heads: Heads by model; :func:`biascope.editing.heads.identity_head` for a network whose outputs are class scores or features.
        vectors: Task vectors by model, at least two.
        tasks: Samples for each model; labels are ignored.
        split: Split to take samples from.
        points: Largest number of samples of each task and of the control set.
        alphas: Coefficients to choose from; 0, the base, is always among them.
        compared: ``"classes"``, or ``"features"``: outputs are not class scores.
        accuracies: Known accuracies of the models on their tasks, between 0 and 1. A fine-tuned model is often
            overconfident; without its accuracy, the expected loss is then too large.
        control: Samples outside all tasks.
        methods: Merging methods to compare with the suggested coefficient, each with settings: ``"ties density=0.4"``. Where a
            setting scales the change and is not given, the best of twelve is taken on the same samples, as the coefficient is.
        grid: Coefficients along each side of the maps of ξ; ``None`` for no maps.
        reach: First and last coefficient of the maps.
        map_points: Samples of each task for the maps and for the changes of outputs.
        threshold: ξ below which two vectors count as not interfering.
        resamples: Resamples of the samples, for intervals.
        name: Name of the base.
        seed: Random seed for the choice of samples and for resamples.
        run: Folder (finished work is saved), device, precision.

    Returns:
        The verdict and the numbers behind it.

    Raises:
        ValueError: If models, heads, samples and settings do not fit, or outputs are random, not finite, or depend on the batch.

    Example:
        >>> encoder = Network.of(torch.nn.Linear(2, 2, bias=False)).with_params({"weight": torch.zeros(2, 2)})
        >>> ends = {"a": torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), "b": torch.tensor([[0.0, -1.0], [0.0, 1.0]])}
        >>> vectors = {model: TaskVector.between(encoder.params, {"weight": end}) for model, end in ends.items()}
        >>> tasks = {"a": Arrays({"test": (torch.tensor([[1.0, 0.0]]), torch.zeros(1))}),  # each sees one input alone
        ...          "b": Arrays({"test": (torch.tensor([[0.0, 1.0]]), torch.zeros(1))})}
        >>> heads = dict.fromkeys(tasks, Head(torch.eye(2), torch.zeros(2)))
        >>> found = merge_check(encoder, heads, vectors, tasks, run=Run(device="cpu"))
        >>> found.grade, found.mean_loss.value, found.way.value
        ('merge', 0.0, 1.0)

    Reference:
        Ortiz-Jiménez (2023), thesis, section 6.3; Ilharco et al. (2023). Editing models with task arithmetic. ICLR.
    """
    run = run or Run()
    _check(heads, vectors, tasks, alphas, compared, grid, resamples)
    _check_accuracies(accuracies or {}, vectors)
    if not 0 < threshold < np.inf or not -np.inf < reach[0] < reach[1] < np.inf:
        raise ValueError(
            f"threshold must be positive, and reach must be an interval of finite numbers, got {threshold} and {reach}. "
            "Pass threshold=0.1, reach=(-1.0, 2.0)."
        )
    models = tuple(vectors)
    if not isinstance(encoder, Network) and (alone := [model for model in models if model not in encoder]):
        raise ValueError(f"Every model must have a network, but {alone[0]!r} has none. Pass encoder[{alone[0]!r}].")
    networks = {model: encoder if isinstance(encoder, Network) else encoder[model] for model in models}
    first = networks[models[0]]
    samples = {model: sampled(tasks[model], split, points, seed=seed) for model in models}
    if compared == "features" and (few_of := [model for model in models if samples[model].sizes[split] < 2]):
        raise ValueError(
            f"Comparing features needs at least two samples per model, but {few_of[0]} has one. Pass more samples."
        )
    for model in models:
        require_repeatable(networks[model], samples[model], name=name, run=run)
        require_repeatable(networks[model], samples[model], name=model, vector=vectors[model], run=run)
    few = {model: sampled(tasks[model], split, min(points, map_points), seed=seed) for model in models}
    merged: dict[str, tuple[TaskVector, str]] = {}
    doubts: list[str] = []
    for words in dict.fromkeys(methods):
        method, settings, scale = scaled_method(words)
        vector, told = merged_vector(method, first.params, vectors, settings=settings, seed=seed)
        merged[words] = (vector, scale)
        doubts += [each if each.startswith(words) else f"{words}: {each}" for each in told]
    coefficients = torch.tensor(sorted({0.0, *alphas}), dtype=torch.float64)
    # Each sample of a map is seen with a pair's coefficients, once for each other model.
    on_maps = 0 if grid is None else (len(models) - 1) * (grid + grid**2)
    passes = sum(
        samples[model].sizes[split] * (len(models) + len(coefficients) + _passes_of(merged))
        + few[model].sizes[split] * (on_maps + 1 + len(models))
        for model in models
    )
    along: list[_Along] = []
    by_method: list[np.ndarray] = []
    with counted("samples of edited networks", passes) as advance:
        look = _Look(networks, heads, tuple(vectors.values()), compared, run, advance)
        for place, model in enumerate(models):
            known = (accuracies or {}).get(model)
            along.append(look.along(model, samples[model], coefficients, place, known))
            if (predicted := along[-1].predicted) is not None:
                doubts += _doubts_of_inputs(model, samples[model], split, predicted, known)
            if merged:
                by_method.append(look.by_method(model, samples[model], merged.values(), place))
        maps = look.maps(few, grid, reach, threshold, resamples, seed)
        effects, cosines = look.effects(few)
    by_layer = sums_by_layer(first, vectors)
    doubts += doubts_of_decay(by_layer["base_norms"], by_layer["task_norms"], by_layer["base_dots"], models, name)
    of_classes: dict[str, Any] = {}
    if compared == "classes":
        for key in ("expected", "rivals_expected"):
            of_classes[key] = np.array([getattr(each, key).mean(0) for each in along])
            drawn = [_resampled(getattr(each, key), resamples, seed) for each in along]
            of_classes[f"{key}_resampled"] = np.moveaxis(np.array(drawn), 1, -1)
        of_classes["rivals_apart"] = np.array([each.rivals_apart for each in along])
    found = MergeCheck(
        base=name,
        models=models,
        data=tuple(tasks[model].name for model in models),
        points=tuple(samples[model].sizes[split] for model in models),
        compared=compared,
        alphas=coefficients.numpy(),
        apart=np.array([each.apart.mean(0) for each in along]),
        resampled=np.moveaxis(np.array([_resampled(each.apart, resamples, seed) for each in along]), 1, -1),
        **of_classes,
        tempered=tuple(model for model in models if model in (accuracies or {})),
        probed=tuple(model for model in models if compared == "classes" and heads[model].fitted),
        **_chosen_scales(merged, by_method, resamples, seed),
        threshold=threshold,
        effects=effects,
        effect_cosines=cosines,
        **maps,
        **by_layer,
        provenance={
            "encoder": content_of(encoder if isinstance(encoder, Network) else networks),
            "vectors": {model: fingerprint(each.deltas) for model, each in vectors.items()},
            "tasks": {model: tasks[model].name for model in models},
            "accuracies": dict(accuracies or {}),
            **({"warnings": doubts} if doubts else {}),
        },
    )
    if control is None:
        return found
    outside = sampled(control, split if split in control.splits else next(iter(control.splits)), points, seed=seed)
    return _with_control(found, look, outside)


def _passes_of(merged: Mapping[str, tuple[TaskVector, str]]) -> int:
    """How many networks each sample is seen with to compare methods."""
    return sum(len(SCALES) if scale else 1 for _, scale in merged.values()) + bool(merged)


def _chosen_scales(
    merged: Mapping[str, tuple[TaskVector, str]], by_method: Sequence[np.ndarray], resamples: int, seed: int
) -> dict[str, Any]:
    """Methods with the scale at which each changes least on average, as the suggested coefficient is chosen; and their distances."""
    if not merged:
        return {}
    apart = np.array([each.mean(0) for each in by_method])  # (T, places)
    chosen, places, begin = [], [], 0
    for _, scale in merged.values():
        factors = SCALES if scale else (1.0,)
        best = best_place(apart[:, begin : begin + len(factors)].mean(0))
        chosen.append(f"{scale}={factors[best]:g}" if scale else "")
        places.append(begin + best)
        begin += len(factors)
    drawn = np.array([_resampled(each[:, places], resamples, seed) for each in by_method])  # (T, B, m)
    return {
        "methods": tuple(merged),
        "scales": tuple(chosen),
        "methods_apart": apart[:, places],
        "methods_resampled": np.moveaxis(drawn, 1, -1),
    }


def _check(
    heads: Mapping[str, Head],
    vectors: Mapping[str, TaskVector],
    tasks: Mapping[str, Arrays],
    alphas: Sequence[float],
    compared: str,
    grid: int | None,
    resamples: int,
) -> None:
    if len(vectors) < 2:
        raise ValueError(f"A merge needs at least two models, got {len(vectors)}. Pass another model.")
    if compared not in READINGS:
        raise ValueError(f"compared must be 'classes' or 'features', got {compared!r}. Pass compared='classes'.")
    require_heads(vectors, heads)
    if lacking := [model for model in vectors if model not in tasks]:
        raise ValueError(f"Every model must have samples, but {lacking[0]!r} has none. Pass tasks[{lacking[0]!r}].")
    if not len(alphas) or not all(np.isfinite(alpha) and alpha >= 0 for alpha in alphas):
        raise ValueError(f"alphas must be finite and not negative, got {list(alphas)}. Pass alphas=(0.3, 0.5, 1.0).")
    if resamples < 2 or (grid is not None and grid < 3):
        raise ValueError(
            f"grid and resamples must be at least 3 and 2, got {grid} and {resamples}. Pass grid=10, resamples=400."
        )
    if compared == "classes" and (one := [model for model in vectors if len(heads[model].weight) < 2]):
        raise ValueError(
            f"The head of {one[0]} must have at least two outputs to predict classes, got one. Pass a head with a row for each class."
        )


def _doubts_of_inputs(
    model: str, samples: Arrays, split: str, predicted: np.ndarray, accuracy: float | None
) -> list[str]:
    """Whether a model predicts the labels of its samples, where they are known: if not, it sees other inputs than in training."""
    labels = samples.splits[split][1].cpu().numpy()
    shares = np.bincount(labels[labels >= 0].astype(int)) / len(labels) if labels.min() >= 0 else np.ones(1)
    if shares.max() == 1:  # no labels, or one class
        return []
    right, noise = float((predicted == labels).mean()), 1 / np.sqrt(len(labels))  # two standard errors at most
    remedy = (
        f"Check that {model} was trained on this scale (--pixels), on these samples (the order of --data) and with this order of "
        "the classes."
    )
    found = f"{model} predicts {percent(right)} of the labels of {samples.name} correctly"
    if accuracy is not None and abs(right - accuracy) > 0.1 + noise:
        return [f"{found}, but its accuracy was given as {percent(accuracy)}. {remedy}"]
    if accuracy is None and right <= shares.max():
        return [f"{found}, not more than the most frequent class. {remedy}"]
    return []


def _check_accuracies(accuracies: Mapping[str, float], models: Mapping[str, TaskVector]) -> None:
    for model, accuracy in accuracies.items():
        if model not in models:
            raise ValueError(
                f"accuracies must name models out of {', '.join(models)}, got {model!r}. Use one of these names."
            )
        if not 0 < accuracy <= 1:
            raise ValueError(
                f"An accuracy must lie between 0 and 1, got {accuracy:g} for {model}. Pass a share, such as 0.93."
            )


def likely_labels(logits: Tensor, accuracy: float | None = None) -> Tensor:
    """Probabilities of labels ``(n, c)`` by what a model says, tempered so that it is as sure on average as it is right.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [0.0, 4.0]])
        >>> [round(float(likely_labels(logits, known)[0, 0]), 3) for known in (None, 0.7)]
        [0.982, 0.7]
    """
    wide = logits.double()
    if accuracy is None:
        return wide.softmax(-1)
    wide = wide / max(float(wide.std(-1).mean()), 1e-300)  # whatever the scale of outputs
    cold, hot = 1e-3, 1e3
    for _ in range(60):  # how sure it is falls with the temperature
        middle = (cold * hot) ** 0.5
        surer = float((wide / middle).softmax(-1).amax(-1).mean()) > accuracy
        cold, hot = (middle, hot) if surer else (cold, middle)
    return (wide / hot).softmax(-1)


@dataclass(frozen=True)
class _Along:
    """One model's samples, seen by the merged models at every coefficient and by their rivals: the base and each model alone.

    Attributes:
        apart: ``(n, A)`` distance of the merged models from the fine-tuned one.
        expected: ``(n, A)`` expected loss of accuracy.
        rivals_expected: ``(n, 1 + T)`` that of the rivals.
        rivals_apart: ``(1 + T, A)`` share of the samples on which merged model and rival predict different classes.
        predicted: ``(n,)`` classes by the fine-tuned model.
    """

    apart: np.ndarray
    expected: np.ndarray | None = None
    rivals_expected: np.ndarray | None = None
    rivals_apart: np.ndarray | None = None
    predicted: np.ndarray | None = None


@dataclass(frozen=True)
class _Look:
    """Looks at edited networks through heads."""

    networks: Mapping[str, Network]
    heads: Mapping[str, Head]
    vectors: tuple[TaskVector, ...]
    compared: str
    run: Run
    advance: Callable[[int], None]

    def outputs(
        self, model: str, samples: Arrays, rows: Tensor, reading: str | None = None, only: Sequence[int] | None = None
    ) -> Tensor:
        """Of every row of coefficients, ``(G, n)`` classes or ``(G, n, c)``, through the head of a model."""
        chosen = self.vectors if only is None else [self.vectors[place] for place in only]
        read = reading or READINGS[self.compared]
        passes = len(rows) * next(iter(samples.sizes.values()))
        at_hand(passes)
        found = edited_outputs(
            self.networks[model], self.heads[model], chosen, rows, samples, reading=read, run=self.run
        )
        self.advance(passes)
        return found

    def along(self, model: str, samples: Arrays, alphas: Tensor, place: int, accuracy: float | None) -> _Along:
        """One fine-tuned model on its own samples against the merged ones; for classes, also against the base and each model alone."""
        count = len(self.vectors)
        single = torch.eye(count, dtype=alphas.dtype)
        outputs = self.outputs(model, samples, torch.cat([single, alphas[:, None].expand(-1, count)]), "logits")
        own = outputs[place]
        if not bool(own.isfinite().all()):
            raise ValueError(
                f"The model of {samples.name} must give finite outputs on its samples, but does not. Check its weights and --pixels."
            )
        if self.compared != "classes":
            return _Along(np.stack([_apart(own, each) for each in outputs[count:]], 1))
        labels = likely_labels(own, accuracy)  # (n, c)
        classes = predicted_classes(outputs).T  # (n, T + A); −1 of a network that is no use any more
        right = labels.gather(1, classes.clamp_min(0)) * (classes >= 0)  # (n, T + A)
        lost = (right[:, place : place + 1] - right).numpy()
        rivals = [count, *range(count)]  # the base, which is the first coefficient, and each model
        merged = classes[:, count:]
        return _Along(
            (merged != classes[:, place : place + 1]).double().numpy(),
            lost[:, count:],
            lost[:, rivals],
            np.stack([(merged != classes[:, rival : rival + 1]).double().mean(0).numpy() for rival in rivals]),
            classes[:, place].numpy(),
        )

    def by_method(
        self, model: str, samples: Arrays, merged: Collection[tuple[TaskVector, str]], place: int
    ) -> np.ndarray:
        """Distances ``(n, places)`` of what other methods make, at each of their scales, from the fine-tuned model on its samples."""
        rows = [[1.0, *[0.0] * len(merged)]]
        for number, (_, scale) in enumerate(merged, 1):
            for factor in SCALES if scale else (1.0,):
                rows.append([factor * (column == number) for column in range(1 + len(merged))])
        passes = len(rows) * next(iter(samples.sizes.values()))
        at_hand(passes)
        vectors, coefficients = (self.vectors[place], *(vector for vector, _ in merged)), torch.tensor(rows).double()
        outputs = edited_outputs(
            self.networks[model],
            self.heads[model],
            vectors,
            coefficients,
            samples,
            reading=READINGS[self.compared],
            run=self.run,
        )
        self.advance(passes)
        return np.stack([_apart(outputs[0], each) for each in outputs[1:]], 1)

    def maps(
        self,
        samples: Mapping[str, Arrays],
        grid: int | None,
        reach: tuple[float, float],
        threshold: float,
        resamples: int,
        seed: int,
    ) -> dict[str, Any]:
        """ξ of every pair on a grid, and the share of the search box where it is low."""
        if grid is None:
            return {"map_alphas": np.zeros(0), "terms": None, "low": None}
        alphas = torch.linspace(*reach, grid, dtype=torch.float64)
        both = torch.cartesian_prod(alphas, alphas)  # the first model's coefficient is the slower one
        inside = places_inside(alphas.numpy(), BOX)
        if not inside.any():
            raise ValueError(
                f"Maps must have a coefficient from {BOX[0]:g} to {BOX[1]:g}, but {grid} from {reach[0]:g} to {reach[1]:g} have none. "
                "Pass reach=(-1.0, 2.0)."
            )
        terms, low = [], []
        for pair in itertools.combinations(range(len(self.vectors)), 2):
            total, pair_terms = np.zeros((resamples, grid, grid)), []
            for place, model in enumerate(list(samples)[which] for which in pair):
                alone = torch.zeros(grid, 2, dtype=alphas.dtype)
                alone[:, place] = alphas
                outputs = self.outputs(model, samples[model], torch.cat([alone, both]), only=pair)
                steps = itertools.product(range(grid), range(grid))
                each = np.stack(
                    [_apart(outputs[step[place]], outputs[grid + k]) for k, step in enumerate(steps)], 1
                ).reshape(-1, grid, grid)
                total += _resampled(each, resamples, seed)
                pair_terms.append(each.mean(0))
            terms.append(pair_terms)
            low.append((total[:, inside] < threshold).mean(1))
        return {"map_alphas": alphas.numpy(), "terms": np.array(terms), "low": np.array(low)}

    def effects(self, samples: Mapping[str, Arrays]) -> tuple[np.ndarray, np.ndarray]:
        """Sizes of the changes of outputs by each vector on each task's samples, relative to its own; and cosines."""
        count = len(self.vectors)
        rows = torch.cat([torch.zeros(1, count), torch.eye(count)]).double()
        sizes, cosines = np.full((count, count), np.nan), np.full((count, count), np.nan)
        for task, (model, part) in enumerate(samples.items()):
            outputs = self.outputs(model, part, rows, "logits").double()
            if self.compared == "classes":
                outputs = outputs - outputs.mean(-1, keepdim=True)  # what all classes gain alike changes no prediction
            changes = (outputs[1:] - outputs[0]).flatten(1)  # (T, n c)
            gram = (changes @ changes.T).numpy()
            norms = np.sqrt(np.diag(gram))
            if norms[task] > 0:
                sizes[task] = norms / norms[task]
                cosines[task] = gram[task] / np.where(norms > 0, norms[task] * norms, np.nan)
        return sizes, cosines


def _with_control(found: MergeCheck, look: _Look, samples: Arrays) -> MergeCheck:
    """The same with what the merge, and each model alone, changes on other samples; mean over different heads."""
    count = len(found.models)
    merged = torch.full((1, count), found.alpha.value, dtype=torch.float64)
    rows = torch.cat([torch.zeros(1, count).double(), merged, torch.eye(count).double()])
    different = {(look.heads[model].identity, id(look.networks[model])): model for model in found.models}.values()
    shares = []
    for model in different:
        start, *others = look.outputs(model, samples, rows)
        shares.append([_apart(start, each).mean() for each in others])
    size = next(iter(samples.sizes.values()))
    return dataclasses.replace(found, control_data=samples.name, control_points=size, control=np.array(shares).mean(0))


def _apart(reference: Tensor, outputs: Tensor) -> np.ndarray:
    """Distances ``(n,)`` between two sets of classes ``(n,)`` or of features ``(n, c)``."""
    if not reference.is_floating_point():
        return np.asarray((reference != outputs).double().numpy())
    centre = reference.mean(0)
    one, two = (reference - centre).double(), (outputs - centre).double()
    unit = unit_of(one)  # lengths below 1e-8 would count as that
    cosine = F.cosine_similarity(one / unit, two / unit)
    return np.asarray((1 - cosine).numpy())


def _resampled(each: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Means over resampled samples ``(B, …)`` of ``(n, …)``.

    Sets of one size are resampled alike: right for models that share their samples, and for others it changes nothing.
    """
    count = len(each)
    counts = resample_counts(count, resamples, seed_of(seed, "resamples"))
    return np.asarray(np.tensordot(counts / count, each, 1))
