"""Merging checkpoints on disk, by any of the merging methods, and how checkpoints differ, slice by slice."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from biascope.editing import methods
from biascope.editing.adapters import Update, Zero, config_of, is_adapter, on_base, require_no_adapter, updates
from biascope.editing.configurations import told_of_folders
from biascope.editing.layer_sums import LayerSums, compared, comparison, dot
from biascope.editing.merge_result import Difference, Merge
from biascope.editing.merged_folder import WholeModels, copy_texts, written_type
from biascope.editing.methods._method import Factors, Method, MovedTensor, Rule, Slice
from biascope.editing.methods._settings import Assigned, Values
from biascope.editing.stream import TaskStream, is_vector, knows_base
from biascope.editing.vocabulary import explained, resized, with_shared_tokens
from biascope.families import weights
from biascope.families.checkpoint import Checkpoint
from biascope.families.checkpoint_writer import SHARD, CheckpointWriter, Planned
from biascope.families.names import Fitted, fitted, told
from biascope.results.planes import distinct
from biascope.results.result import recorded
from biascope.results.wording import listed, percent
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.digest import Fingerprint
from biascope.runs.run import Run

RELATED = (
    0.5  # cosine with the weights of the base, from which a model counts as fine-tuned from it: most have more than 0.9
)
_NO_HASH = "0" * 16  # in the place of a hash until it is known


@under_torch_defaults
def merge(
    base: Checkpoint,
    models: Sequence[tuple[Checkpoint, float | None]],
    out: Path | str,
    *,
    method: str = "task_arithmetic",
    settings: Sequence[Assigned] | Mapping[str, float] = (),
    seed: int = 0,
    keep: Sequence[str] = (),
    unrelated: bool = False,
    shared_tokens: bool = False,
    dtype: torch.dtype | None = None,
    shard_bytes: int = SHARD,
    overwrite: bool = False,
    run: Run = Run(),  # noqa: B008 - frozen
) -> Merge:
    """Write a merge of models, ``θ₀ + Σ α_i (θ_i − θ₀)`` unless told otherwise, computed in float32 (float64 for a base in float64).

    Memory stays at a few slices of a tensor, whatever the size of the models; methods that
    decompose matrices hold one tensor of all models. Integers, booleans and BatchNorm's running statistics are those of the base.
    Task arithmetic with one model of weight 1 restores it bit for bit, where it has the type that is written.

    Args:
        base: θ₀.
        models: Fine-tuned checkpoints, saved task vectors or LoRA adapters, each with its weight α_i; a negative one negates,
            ``None`` stands for the method's usual weight. What an adapter adds is its update ``s · B A``. Names may differ by a
            prefix or a head (:func:`biascope.families.names.fitted`).
        method: A method or dialect, one of :func:`biascope.editing.methods.names`.
        settings: Its settings, for some models or tensors alone if they are ``Assigned``.
        seed: Random seed, for methods that draw. Masks depend on it, on the name of the tensor and on the model, not on the order
            of the models.
        out: A ``.safetensors`` file, or a folder for shards. Models with a head of their own are written beside it, whole.
        keep: Patterns of names, such as ``"classifier.*"``, that are taken from the base and may be absent elsewhere.
        unrelated: Whether to accept models that do not seem to come from this base.
        shared_tokens: Whether to merge a model with another vocabulary by the rows of the tokens that both number alike.
        dtype: Type of all floating-point numbers that are written; by default they have the types of θ₀.
        shard_bytes: Most bytes of a shard.
        overwrite: Whether to replace what is there.
        run: Shows progress.

    Returns:
        What was done, layer by layer.

    Raises:
        ValueError: If names, shapes, types or the base do not fit, weights are not finite, or the output exists already. Nothing is
            written then.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = {name: f"{folder.name}/{name}.safetensors" for name in ("base", "a", "b", "out")}
        >>> for name, values in (("base", [1.0, 4.0]), ("a", [3.0, 4.0]), ("b", [1.0, 6.0])):
        ...     weights.save({"w": torch.tensor(values)}, path[name])
        >>> base, a, b = (Checkpoint.open(path[name]) for name in ("base", "a", "b"))
        >>> _ = merge(base, [(a, 0.5), (b, -1.0)], path["out"])
        >>> weights.load(path["out"])["w"].tolist()
        [2.0, 2.0]
        >>> folder.cleanup()
    """
    clock, given = time.perf_counter(), [weight for _, weight in models]
    if not models or not all(weight is None or math.isfinite(weight) for weight in given):
        raise ValueError(f"A merge needs models with finite weights, got {given or 'none'}. Pass A=0.4.")
    form = methods.method(method)
    _check_base(base)
    require_no_adapter(base, "Pass the model that it was trained on as BASE.")
    adapters = [model for model, _ in models if is_adapter(model)]
    texts = told_of_folders(base, [model for model, _ in models])
    fitting, rows = _with_vocabulary(base, [on_base(model, base) for model, _ in models], shared_tokens)
    models = list(zip(fitting, given, strict=True))
    every = sorted({*base.tensors, *(name for model, _ in models if not knows_base(model) for name in model.tensors)})
    skipped = {name for name in every if any(fnmatch.fnmatchcase(name, pattern) for pattern in keep)}
    if idle := [pattern for pattern in keep if not fnmatch.filter(every, pattern)]:
        raise ValueError(
            f"keep must match names of the models, but {idle[0]!r} matches none of {len(every)}, such as {every[0]}. Fix the pattern."
        )
    fits = fits_of([model for model, _ in models], base, skipped)
    models = [(fit.shared, weight) for fit, (_, weight) in zip(fits, models, strict=True)]
    skipped |= {name for fit in fits for name in fit.absent}
    every = sorted({*base.tensors, *(name for model, _ in models if not knows_base(model) for name in model.tensors)})
    streams = [TaskStream(base, model, skipped) for model, _ in models]
    kept = {name for name in base.tensors if name in skipped or not weights.is_edited(name, base.tensors[name])}
    if not any(math.prod(base.tensors[name].shape) for name in base.tensors.keys() - kept):
        because = "keep matches all of them. Pass a narrower pattern" if skipped else "it has no floating-point weights"
        raise ValueError(f"No number of {base.name} is left to merge, because {because}.")
    names = tuple(distinct(model.label for model, _ in models))
    merged = [name for name in every if name in base.tensors and name not in kept]
    values = Values(method, form.settings, _assigned(form, method, settings, names, given), names, merged)
    chosen = form(values, seed=seed, keys=_keys([model for model, _ in models]))
    weighs = any(setting.name == "weight" for setting in form.settings)
    coefficients = values.each("weight", merged[0]) if weighs else [1.0] * len(models)
    # One model added whole comes back bit for bit.
    sole = method == "task_arithmetic" and given == [1.0] and not settings
    parts_of = {name: _part(base, streams, name) for name in merged}
    widest = max((part.dtype for part in parts_of.values()), key=lambda dtype: dtype.itemsize)
    surveys = chosen.surveys(widest)
    from biascope import __version__

    def described(hashes: Sequence[str]) -> str:
        parts = zip(models, coefficients, hashes, strict=True)
        return json.dumps(
            [{"name": model.name, "hash": hashed, "weight": weight} for (model, _), weight, hashed in parts]
        )

    about = {
        "kind": "merged",
        "biascope": __version__,
        "base": _NO_HASH,
        "sources": described([_NO_HASH] * len(models)),
        **({} if method == "task_arithmetic" else {"method": method, "settings": values.told(), "seed": str(seed)}),
    }
    plan = {name: Planned(tuple(each.shape), written_type(each.dtype, dtype)) for name, each in base.tensors.items()}
    writer = CheckpointWriter(
        out, plan, metadata={**base.metadata, **about}, shard_bytes=shard_bytes, overwrite=overwrite
    )
    wholes = WholeModels(base, fits, Path(out), dtype, shard_bytes, overwrite)
    sums, hashed, same = LayerSums(), Fingerprint(), _Same()
    differing: list[str] = []
    with (
        wholes,
        writer,
        run.tracked("merging", base.numbers + surveys * sum(part.numbers for part in parts_of.values())) as advance,
    ):
        for _ in range(surveys):
            chosen.survey([_counting(part, advance) for part in parts_of.values()])
        for name in every:
            if name in base.tensors:
                hashed.begin(name, base.tensors[name])
            if name in base.tensors and name not in kept:
                rule = None if sole else chosen.rule(parts_of[name])
                parts = _edited(base, streams, rule, name, plan[name].dtype, sums, same)
            else:
                if name not in skipped and _differs(base, streams, name):
                    differing.append(name)
                for stream in streams:
                    stream.pass_over(name)
                parts = ((part, part) for part in (base.slices(name) if name in base.tensors else ()))
            for start, end in parts:
                hashed.add(start)
                writer.write(name, end)
                wholes.write(name, end)
                advance(len(start))
        wholes.write_heads()
        layers, columns = sums.by_layer()
        _check_sizes(columns)
        _check_related(base, [] if unrelated else streams, columns)
        about |= {
            "base": hashed.value,
            "sources": described([hashed.value if stream.is_base else stream.fingerprint for stream in streams]),
        }
        writer.metadata |= about
        # Checked before the file gets its name: what ends in an error leaves nothing behind.
        numbers, norms, edits, errors, changed, lost = columns[:, :6].T
        found = Merge(
            base=base.label,
            models=names,
            coefficients=np.array(coefficients),
            layers=layers,
            numbers=numbers.astype(int),
            base_norms=np.sqrt(norms),
            task_norms=np.sqrt(columns[:, 6 : 6 + len(streams)]),
            edit_norms=np.sqrt(edits),
            error_norms=np.sqrt(errors),
            changed=changed.astype(int),
            lost=lost.astype(int),
            precision=" and ".join(sorted({weights.type_name(plan[name].dtype) for name in plan.keys() - kept})),
            remarks=(
                *values.idle(),
                *chosen.doubts(),
                *same.told(names),
                *_remarks(base, kept, differing),
                *_told_of_adapters(adapters, of_factors=form.of_factors),
                *told(fits),
                *rows,
                *texts,
                *_told_of_types(base, streams, columns[:, 6:].sum(0)),
            ),
            file=str(out),
            method=method,
            settings="" if method == "task_arithmetic" and not settings else values.told(),
            provenance=_recorded("merge_apply", {**about, "keep": list(keep)}, clock),
        ).check()
    copied = copy_texts(base, Path(out), dtype=dtype)
    wholes.copy_texts()
    more = [f"{listed(copied)} {'is' if len(copied) == 1 else 'are'} copied from {base.label}."] if copied else []
    return dataclasses.replace(found, remarks=(*found.remarks, *wholes.told(), *more))


@under_torch_defaults
def differences(base: Checkpoint, models: Sequence[Checkpoint], *, run: Run = Run()) -> Difference:  # noqa: B008 - frozen
    """How checkpoints differ from a first one, layer by layer, and how much their differences agree.

    What is not in all of them in one shape is listed and left out; numbers that are not finite are counted and taken as unchanged.

    Args:
        base: What is compared with: θ₀, or one of two models.
        models: Checkpoints, or task vectors saved for this θ₀, or LoRA adapters. If all are adapters, their updates are compared.
        run: Shows progress.

    Raises:
        ValueError: If there is nothing to compare, or a task vector belongs to another θ₀.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> for name, values in (("base", [0.0, 3.0]), ("a", [3.0, 7.0]), ("b", [4.0, 0.0])):
        ...     weights.save({"w": torch.tensor(values)}, f"{folder.name}/{name}.safetensors")
        >>> base, a, b = (Checkpoint.open(f"{folder.name}/{name}.safetensors") for name in ("base", "a", "b"))
        >>> found = differences(base, [a, b])
        >>> found.task_norms.tolist(), found.cosines.tolist(), found.opposed.tolist()
        ([[5.0, 5.0]], [[0.0]], [[0.5]])
        >>> folder.cleanup()
    """
    clock, count = time.perf_counter(), len(models)
    if not models:
        raise ValueError("A difference needs at least two checkpoints, got one. Pass another.")
    _check_base(base)
    adapters = [model for model in (base, *models) if is_adapter(model)]
    misfits = _told_of_adapters(adapters)
    between = len(adapters) == 1 + count
    if between:
        (base, *models), left_out = updates([base, *models])
        misfits += left_out
    else:
        require_no_adapter(base, "Pass the model that it was trained on first.")
        models = [on_base(model, base) for model in models]
    texts = told_of_folders(base, models)
    texts += [explained(base, model, tables) for model in models if (tables := resized(base, model))]
    fits = [] if between else fits_of(models, base)
    models = [fit.shared for fit in fits] or models
    absent = {name for fit in fits for name in fit.absent}
    misfits += [*told(fits), *texts]
    unfit = {model.name: _misfits(model, base, absent) for model in models if not knows_base(model)}
    misfits += [f"{name} does not fit {base.name}: {problems}" for name, problems in unfit.items() if problems]
    names = [name for name, tensor in base.tensors.items() if weights.is_edited(name, tensor)]
    for model in models:
        names = [name for name in names if _is_comparable(base, model, name)]
    if not any(math.prod(base.tensors[name].shape) for name in names):
        raise ValueError(
            f"The models must share weights with {base.name} by name and shape, but share none: {'. '.join(misfits) or 'it has none'}. "
            "Pass states of one model."
        )
    odd = {name for each in (base, *models) for name in each.tensors if not is_vector(each)} - set(names)
    streams = [
        TaskStream(base, model, () if knows_base(model) else odd | (model.tensors.keys() - base.tensors.keys()))
        for model in models
    ]
    sums, broken = LayerSums(), np.zeros(1 + count, int)
    with run.tracked("comparing", base.numbers) as advance:
        for name in names:
            for _, start, parts, deltas in _moves(base, streams, name):
                finite = [part.isfinite() for part in (start, *parts)]
                broken += [int((~each).sum()) for each in finite]
                start, *deltas = (
                    torch.where(finite[0] & each, part, 0.0)
                    for each, part in zip(finite, (start, *deltas), strict=True)
                )
                sums.add(name, comparison(start, deltas))
                advance(len(start))
    layers, columns = sums.by_layer()
    _check_sizes(columns)
    misfits += _told_of_types(base, streams, columns[:, 2:].sum(0))
    misfits += [
        f"{each.name} has {total:,} numbers that are not finite; they count as unchanged"
        for each, total in zip((base, *models), broken, strict=True)
        if total
    ]
    return Difference(
        base=base.label,
        models=tuple(distinct(model.label for model in models)),
        layers=layers,
        misfits=tuple(misfits),
        between_updates=between,
        provenance=_recorded("merge_diff", {}, clock),
        **compared(columns, count),
    ).check()


def _with_vocabulary(
    base: Checkpoint, models: Sequence[Checkpoint], shared_tokens: bool
) -> tuple[list[Checkpoint], list[str]]:
    """Models with the vocabulary of their base, and what was done for it.

    Raises:
        ValueError: If one has another, and was not asked to be merged by shared tokens.
    """
    found, words = [], []
    for model in models:
        tables = {} if is_vector(model) else resized(base, model)
        if tables and not shared_tokens:
            raise ValueError(
                f"{explained(base, model, tables)}. Pass --shared-tokens to merge the rows of tokens that both number alike, or "
                "resize the vocabulary of one of them and save it."
            )
        whole, more = with_shared_tokens(base, model, tables) if tables else (model, [])
        found.append(whole)
        words += more
    return found, words


def fits_of(models: Sequence[Checkpoint], base: Checkpoint, kept: Collection[str] = ()) -> list[Fitted]:
    """Models under the names of their base; a saved task vector has them already, which its hash proves."""
    found = iter(fitted([model for model in models if not knows_base(model)], base, kept))
    return [
        Fitted(model, base.label, {name: name for name in model.tensors}) if knows_base(model) else next(found)
        for model in models
    ]


def _assigned(
    form: type[Method],
    method: str,
    settings: Sequence[Assigned] | Mapping[str, float],
    names: Sequence[str],
    weights_given: Sequence[float | None],
) -> list[Assigned]:
    """Settings with the weights that models were given with."""
    given = (
        [Assigned(name, (float(value),)) for name, value in settings.items()]
        if isinstance(settings, Mapping)
        else list(settings)
    )
    weighed = [
        Assigned("weight", (weight,), name)
        for name, weight in zip(names, weights_given, strict=True)
        if weight is not None
    ]
    if weighed and not any(setting.name == "weight" for setting in form.settings):
        if all(each.value == (1.0,) for each in weighed):
            return given
        raise ValueError(
            f"{method} has no weights of models, got {weighed[0]}. Leave them out, or pass a dialect that has."
        )
    return given + weighed


def _keys(models: Sequence[Checkpoint]) -> list[str]:
    """What tells models apart whatever their order: their names, with a hash of their values where two are called the same."""
    names = [model.label for model in models]
    return [
        name if names.count(name) == 1 else f"{name} {model.fingerprint()}"
        for name, model in zip(names, models, strict=True)
    ]


def _part(base: Checkpoint, streams: Sequence[TaskStream], name: str) -> MovedTensor:
    """A tensor as methods see it."""
    dtype = weights.working_type(base.tensors[name].dtype)

    def read() -> Iterator[Slice]:
        for begin, start, parts, deltas in _moves(base, streams, name, hashed=False):
            _check_all_finite(base, streams, name, start, parts)
            yield Slice(begin, start.to(dtype), [delta.to(dtype) for delta in deltas])

    def factors() -> list[Factors | None]:
        found: list[Factors | None] = []
        for stream in streams:
            stored = stream.model.tensors[name]
            if isinstance(stored, Update):
                down, up = (stored.model.read(each).to(dtype).flatten(1) for each in (stored.down, stored.up))
                found.append(Factors(down, up, stored.scale, stored.turned))
            elif isinstance(stored, Zero):
                found.append(None)
            else:
                raise ValueError(
                    f"The models must be LoRA adapters that add s·B·A to merge their factors, but {stream.model.name} has more than "
                    f"that, or whole weights, for {name}. Pass a method that merges weights, such as ties."
                )
        return found

    return MovedTensor(name, tuple(base.tensors[name].shape), dtype, read, factors)


def _counting(part: MovedTensor, advance: Callable[[int], None]) -> MovedTensor:
    """A tensor whose numbers count as they are read."""

    def read() -> Iterator[Slice]:
        for each in part.read():
            yield each
            advance(len(each.start))

    return dataclasses.replace(part, read=read)


class _Same:
    """Whether all models moved the base alike."""

    def __init__(self) -> None:
        self._alike = True

    def see(self, deltas: Sequence[Tensor]) -> None:
        """The next changes."""
        self._alike = self._alike and all(torch.equal(deltas[0], delta) for delta in deltas[1:])

    def told(self, names: Sequence[str]) -> list[str]:
        """In words, if they did."""
        return (
            [f"{listed(names)} have the same weights, so there is nothing to merge."]
            if self._alike and len(names) > 1
            else []
        )


def _moves(
    base: Checkpoint, streams: Sequence[TaskStream], name: str, *, hashed: bool = True
) -> Iterator[tuple[int, Tensor, list[Tensor], list[Tensor]]]:
    """Slices of a tensor: where they begin, what they are in the base, in the files of the models, and what these moved."""
    begin = 0
    others = [stream for stream in streams if not stream.is_base]
    read = (stream.slices(name, hashed=hashed) for stream in others)
    for start, *found in zip(base.slices(name), *read, strict=True):
        rest = iter(found)
        parts = [start if stream.is_base else next(rest) for stream in streams]
        pairs = zip(streams, parts, strict=True)
        deltas = [stream.delta(start, part, begin, counted=hashed) for stream, part in pairs]
        yield begin, start, parts, deltas
        begin += len(start)


def _edited(
    base: Checkpoint,
    streams: Sequence[TaskStream],
    rule: Rule | None,
    name: str,
    dtype: torch.dtype,
    sums: LayerSums,
    same: _Same,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Slices of a tensor of the base, and what they become; without a rule those of the only model."""
    count = 3 + len(streams)
    wide_sums = torch.empty(count, 0, dtype=torch.float64)
    most = min(torch.finfo(weights.working_type(base.tensors[name].dtype)).max, 1e150) ** 2 / 2
    for begin, start, parts, deltas in _moves(base, streams, name):
        same.see(deltas)
        wide = start.to(deltas[0].dtype)
        edit = deltas[0] if rule is None else rule(Slice(begin, wide, deltas))
        end = (streams[0].end(start, parts[0], begin) if rule is None else wide + edit).to(dtype)
        read = end.to(wide.dtype)
        if wide_sums.shape[1] != len(start):  # memory that is used again for every slice
            wide_sums = torch.empty(count, len(start), dtype=torch.float64)
        for place, each in zip(wide_sums, (wide, edit, read - wide - edit, *deltas), strict=True):
            place.copy_(each)
        squares = [float(each.dot(each)) for each in wide_sums]
        # Squares show what is not finite, and differences that were cut to what the type can hold.
        if not all(square < most for square in squares):
            _check_all_finite(base, streams, name, start, parts)
            _check_finite(end, name, "the merged model", "Pass smaller weights, or models of a wider type")
        changed = edit != 0
        row = [len(start), *squares[:3], int(changed.count_nonzero()), int((changed & (read == wide)).count_nonzero())]
        sums.add(name, [*row, *squares[3:], *(float(wide_sums[0].dot(each)) for each in wide_sums[3:])])
        yield start, end


def _differs(base: Checkpoint, streams: Sequence[TaskStream], name: str) -> bool:
    """Whether a tensor that is not edited differs between base and models.

    Raises:
        ValueError: If it is an integer matrix: weights in disguise, which would be lost without a word.
    """
    pairs = (
        zip(base.slices(name), stream.model.slices(name), strict=True) for stream in streams if name in stream.names
    )
    differs = any(not torch.equal(start, part) for pair in pairs for start, part in pair)
    where = base.tensors[name]
    if differs and len(where.shape) > 1 and not where.dtype.is_floating_point:
        raise ValueError(
            f"Weights must be floating-point numbers to be merged, but {name} is a matrix of integers that differs between the models: "
            "they seem to be quantised. Pass models that are not, or keep it from the base with --keep."
        )
    return differs


def _misfits(model: Checkpoint, base: Checkpoint, absent: Collection[str]) -> str:
    """How a checkpoint differs from the base in names, shapes and types; of an adapter, what the base has not or in another shape."""
    if not is_vector(model):
        wanted = {name: tensor for name, tensor in base.tensors.items() if name not in absent}
        return weights.misfits(model.tensors, wanted, converted=True)
    odd = {name: tensor for name, tensor in model.tensors.items() if not _is_comparable(base, model, name)}
    return weights.misfits(odd, {name: base.tensors[name] for name in odd if name in base.tensors})


def _is_comparable(base: Checkpoint, model: Checkpoint, name: str) -> bool:
    here, there = base.tensors.get(name), model.tensors.get(name)
    return here is not None and there is not None and there.shape == here.shape and there.dtype in weights.EDITABLE


def _check_base(base: Checkpoint) -> None:
    if is_vector(base):
        raise ValueError(
            f"The first checkpoint must hold weights, but {base.name} holds a task vector. Pass its base first."
        )


def _check_all_finite(
    base: Checkpoint, streams: Sequence[TaskStream], name: str, start: Tensor, parts: Sequence[Tensor]
) -> None:
    for each, part in zip((base, *(stream.model for stream in streams)), (start, *parts), strict=True):
        _check_finite(part, name, each.name, "Check where training diverged")


def _check_finite(values: Tensor, name: str, whose: str, advice: str) -> None:
    # A sum is quicker than a look at each number, and not finite if one of them is not.
    quick = math.isfinite(float(values.sum(dtype=weights.working_type(values.dtype))))
    if not quick and not bool(values.isfinite().all()):
        raise ValueError(f"The weights of {whose} must be finite, but {name} is not. {advice}.")


def _check_sizes(columns: np.ndarray) -> None:
    if not np.isfinite(columns).all():
        raise ValueError("The weights must be small enough for float64 to hold their squares, but are not. Scale them.")


def _check_related(base: Checkpoint, streams: Sequence[TaskStream], columns: np.ndarray) -> None:
    """Tell models that did not start from the base by the angle between their weights and its own."""
    own = columns[:, 1].sum()
    for index, stream in enumerate(streams):
        square, along = columns[:, 6 + index].sum(), columns[:, 6 + len(streams) + index].sum()
        lengths = math.sqrt(own * max(own + 2 * along + square, 0.0))
        cosine = (own + along) / lengths if lengths else 1.0
        if not stream.is_vector:
            require_related(stream.model.name, base.name, cosine)


def require_related(model: str, base: str, cosine: float) -> None:
    """Refuse a model whose weights have too small a cosine with those of the base.

    Raises:
        ValueError: If it does not seem to be fine-tuned from it.
    """
    if cosine < RELATED:
        raise ValueError(
            f"{model} must be fine-tuned from {base}, but its weights have a cosine of {cosine:.2f} with it, as if it had another "
            "base. Pass the base that it was fine-tuned from, or --unrelated."
        )


def _told_of_adapters(models: Sequence[Checkpoint], *, of_factors: bool = False) -> list[str]:
    if not models:
        return []
    names, one = [model.label for model in models], len(models) == 1
    if of_factors:
        return [f"The factors A and B of {listed(names)} are merged separately, as PEFT does, not their updates s·B·A."]
    dora = [model.label for model in models if config_of(model).get("use_dora")]
    kind, whose = (
        ("is a LoRA adapter", "Its update s·B·A counts") if one else ("are LoRA adapters", "Their updates s·B·A count")
    )
    return [f"{listed(names)} {kind}. {whose}, not the factors A and B."] + (
        [f"The outputs of {listed(dora)} get the norms that DoRA stores."] if dora else []
    )


def _remarks(base: Checkpoint, kept: set[str], differing: Sequence[str]) -> tuple[str, ...]:
    if not kept:
        return ()
    words = f"{len(kept)} tensors are taken from {base.label} (integers, running statistics, names to keep)"
    return (f"{words}; {len(differing)} of them differ in the models." if differing else f"{words}.",)


def told_of_precision(base: Checkpoint, models: Sequence[Checkpoint]) -> list[str]:
    """What a user should know of models in other types than their base, from one pass over the weights that they share."""
    found = []
    for fit in fits_of([model for model in models if not is_vector(model)], base):
        shared = fit.shared
        names = [name for name in shared.tensors if name in base.tensors and _is_comparable(base, shared, name)]
        stream = TaskStream(base, shared, (base.tensors.keys() | shared.tensors.keys()) - set(names))
        if stream.types:
            square = sum(dot(deltas[0], deltas[0]) for name in names for *_, deltas in _moves(base, [stream], name))
            found += _told_of_types(base, [stream], np.array([square]))
    return found


def _told_of_types(base: Checkpoint, streams: Sequence[TaskStream], squares: np.ndarray) -> list[str]:
    """Where models have other types than the base, and what rounding to these may have added to their task vectors."""
    found = []
    for stream, square in zip(streams, squares[: len(streams)], strict=True):
        name = stream.model.label
        for here, there in sorted(stream.types, key=str):
            found.append(
                f"{name} holds {weights.type_name(there)} where {base.label} holds {weights.type_name(here)}. Both are read in "
                f"{weights.type_name(weights.working_type(here))}."
            )
        before, after = (percent(min(1.0, each / square)) if square else "" for each in stream.rounding)
        narrow = [
            " and ".join(sorted({weights.type_name(pair[side]) for pair in stream.types if pair[side].itemsize == 2}))
            for side in (0, 1)
        ]
        if after and narrow[1]:
            found.append(
                f"If {name} was rounded to {narrow[1]} after training, this makes {after} of its ‖τ‖² (expected)."
            )
        if before and narrow[0]:
            found.append(
                f"If {name} was trained from wider weights than the {narrow[0]} of {base.label}, the rounding of {base.label} makes "
                f"{before} of its ‖τ‖² (expected)."
            )
    return found


def _recorded(what: str, settings: dict[str, Any], clock: float) -> dict[str, Any]:
    return recorded(what, "task_arithmetic2023", settings=settings, seconds=time.perf_counter() - clock)
