"""A base, models fine-tuned from it, how their predictions are read, and samples, as a user names them."""

from __future__ import annotations

import dataclasses
import fnmatch
import inspect
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from biascope.editing.adapters import adapted, is_adapter, on_base, require_no_adapter
from biascope.editing.classifiers import Classifier, classifiers_of, require_one_class
from biascope.editing.encoder_source import NAMES, encoder_of
from biascope.editing.encoders.encoder import Encoder
from biascope.editing.heads import Head, checked_features, fitted_head, identity_head
from biascope.editing.language_models import LanguageModels, language_models_of, texts_as_ids
from biascope.editing.merge import fits_of, require_related, told_of_precision
from biascope.editing.model_heads import ends_with, headless, own_head, require_linear
from biascope.editing.reading import Reading
from biascope.editing.stream import TaskStream, is_vector
from biascope.editing.tasks import task_of
from biascope.editing.unlabelled import SPLIT, prepared_samples, unlabelled_images
from biascope.editing.vectors import TaskVector
from biascope.families import weights
from biascope.families.acceptance import module_built
from biascope.families.checkpoint import Checkpoint, read_settings
from biascope.families.names import Fitted, matched, told, unwrapped
from biascope.families.network import Network
from biascope.families.source import builder_of, parse_shape
from biascope.families.weights import Params
from biascope.results.planes import distinct
from biascope.results.wording import listed
from biascope.runs.failures import forward_pass
from biascope.runs.randomness import forked_rng
from biascope.runs.run import Run
from biascope.tasks.task import Arrays

PROBES = (5000, 1000)  # training and validation samples of a linear probe at most


@dataclass(frozen=True)
class Candidates:
    """The arguments of :func:`biascope.measures.merge_check.merge_check`; samples are in the split ``"samples"``.

    Attributes:
        base: Name of the base.
        network: At its weights; by model where each has a head of its own inside.
        heads: By model.
        vectors: By model.
        tasks: By model.
        control: Other samples, or ``None``.
        compared: ``"classes"``, ``"features"``, or ``"words"`` of language models, which have no heads.
        notes: Notes for the reader.
        head: The layer that is each model's own, and is not merged; empty if there is none.
    """

    base: str
    network: Network | dict[str, Network]
    heads: dict[str, Head]
    vectors: dict[str, TaskVector]
    tasks: dict[str, Arrays]
    control: Arrays | None
    compared: str
    notes: tuple[str, ...] = ()
    head: str = ""


def candidates_of(
    base: Path, models: Sequence[Path], sets: Sequence[str], reading: Reading, *, control: str | None = None, run: Run
) -> Candidates:
    """A base, models and data sets as a user names them, checked to belong together; nothing is written.

    Args:
        base: The pre-trained checkpoint, or a folder that :func:`biascope.editing.encoder_source.encoder_of` reads.
        models: Fine-tuned checkpoints, saved task vectors or LoRA adapters, at least two.
        sets: One data set for each model, or one for all.
        reading: How they are read.
        control: A data set outside all tasks.
        run: Device and data root.

    Returns:
        The models with the chosen samples.

    Raises:
        ValueError: If anything does not fit, in one sentence.
    """
    if len(models) < 2:
        raise ValueError(f"A merge needs at least two models beside the base, got {len(models)}. Pass BASE A B.")
    if len(sets) not in (1, len(models)):
        raise ValueError(
            f"--data must be given once for each of {len(models)} models or once for all, got {len(sets)}. Pass --data for each "
            "model, in their order."
        )
    if reading.samples < 2:
        raise ValueError(f"--samples must be at least 2, got {reading.samples}. Pass --samples 1000.")
    start, ends = Checkpoint.open(base), [Checkpoint.open(path) for path in models]
    require_no_adapter(start, "Pass the model that it was trained on as BASE.")
    if is_vector(start):
        raise ValueError(f"The base must hold weights, but {start.name} holds a task vector. Pass its base first.")
    _expect_memory(start, len(ends), run)
    names = distinct(each.label for each in ends)
    places = dict(zip(names, sets if len(sets) > 1 else list(sets) * len(names), strict=True))
    whole = {name: adapted(end, start) for name, end in zip(names, ends, strict=True)}
    found = _read(start, whole, places, control, reading, run)
    precision = told_of_precision(start, [end for end in ends if not is_adapter(end)])
    return dataclasses.replace(found, notes=(*found.notes, *precision))


def _read(
    start: Checkpoint,
    known: Mapping[str, Checkpoint],
    places: Mapping[str, str],
    control: str | None,
    reading: Reading,
    run: Run,
) -> Candidates:
    """The candidates that fit the kind of the base model."""
    if not _is_encoder(start, reading):
        return _built(start, known, places, control, reading, run)
    if reading.model is None and (language := language_models_of(start, known)) is not None:
        return _predicting_words(start, known, language, places, control, reading, run)
    if reading.model is None and not reading.features and (own := classifiers_of(start, known)):
        return _classified(start, known, own, places, control, reading, run)
    return _encoded(start, known, places, control, reading, run)


def _expect_memory(start: Checkpoint, models: int, run: Run) -> None:
    """Refuse models that do not fit: the base, its network, a task vector of each model, and two models while one is read or edited."""
    numbers = sum(math.prod(tensor.shape) for tensor in start.tensors.values())
    run.expects(
        f"A check of {models} models of {numbers:,} parameters",
        4 * numbers * (models + 4),
        "Pass fewer models",
    )


def kept_by_apply(base: Path, models: Sequence[Path], head: str) -> str | None:
    """What ``merge apply`` must keep from the base to merge what was checked.

    Returns:
        A pattern of names; empty where each model's head is kept apart without being named; none where names do not fit, which the
        reader of an encoder bridges.
    """
    start = Checkpoint.open(base)
    ends = [on_base(Checkpoint.open(model), start) for model in models]
    for pattern in ("", f"{head}.*") if head else ("",):
        kept = {name for each in (start, *ends) for name in each.tensors if fnmatch.fnmatchcase(name, pattern)}
        try:
            fits = fits_of(ends, start, kept)
            left = {name for fit in fits for name in fit.absent}
            for fit in fits:
                TaskStream(start, fit.shared, kept | left)
        except ValueError:
            continue
        if pattern or not head or not any(name.startswith(f"{head}.") for fit in fits for name in fit.names):
            return pattern
    return None


def _is_encoder(start: Checkpoint, reading: Reading) -> bool:
    """Whether the network is an encoder without classes: by its name, or by its folder."""
    if reading.model is None:
        if any(start.beside(file).is_file() for file in ("config.json", "open_clip_config.json")):
            return True
        raise ValueError(
            f"--model must name the network of {start.name}, but is missing. Pass --model lenet, path/to/file.py:build, or an "
            f"encoder: {', '.join(NAMES)}."
        )
    known = reading.model.lower().replace("-", "_") in NAMES
    return known and not reading.settings and "head.weight" not in start.tensors  # a ViT with classes is a network


def _built(
    start: Checkpoint,
    ends: Mapping[str, Checkpoint],
    sets: Mapping[str, str],
    control: str | None,
    reading: Reading,
    run: Run,
) -> Candidates:
    """With a network from a builder, whose outputs are class scores or features."""
    fits = dict(zip(ends, fits_of(list(ends.values()), start, _heads(start, ends.values(), reading)), strict=True))
    reading = _with_head(reading, fits)
    shape = parse_shape(reading.input) if reading.input else None
    whole = {
        each: unlabelled_images(each, shape=shape, pixels=reading.pixels, root=run.data_root, **reading.choice)
        for each in _different(sets, control)
    }
    state = start.params()
    _check_finite(state, start.name)
    with forked_rng(0):
        module = _module(reading, shape or next(iter(whole.values())).shape, state)
        if reading.head:
            _require_last(module, reading.head, next(iter(whole.values())), start.name)
            module = headless(module, reading.head)
    states = {name: _state(start, state, fit, reading) for name, fit in fits.items()}
    module.load_state_dict(matched(_merged(state, reading), module.state_dict(), start.name))
    network = _with_edited_buffers(Network.of(module))
    outputs = _outputs(network, list(whole.values()), start.name)
    vectors = {}
    for name, end in states.items():
        fitting = matched(_merged(end, reading), module.state_dict(), ends[name].name)
        params = {key: fitting[key].to(like.dtype) for key, like in network.params.items()}
        vectors[name] = _vector(network, params, name, reading, known=is_vector(ends[name]))
    heads = {
        name: own_head(states[name], ends[name].name, outputs, reading.head, features=reading.features) for name in ends
    }
    tasks = {name: whole[each] for name, each in sets.items()}
    notes = _notes(state, {name: end for name, end in states.items() if not is_vector(ends[name])}, start)
    notes = (*told(list(fits.values())), *notes)
    return Candidates(
        start.label,
        network,
        heads,
        vectors,
        tasks,
        whole.get(control or ""),
        _compared(reading),
        notes,
        reading.head or "",
    )


def _with_edited_buffers(network: Network) -> Network:
    """Buffers that a merge edits, all but BatchNorm's statistics and whole numbers, counted among the weights."""
    moved = {name: tensor for name, tensor in network.buffers.items() if weights.is_edited(name, tensor)}
    saved = moved.keys() & network.module.state_dict().keys()
    params = network.params | {name: moved[name] for name in saved}
    return dataclasses.replace(
        network, params=params, buffers={name: each for name, each in network.buffers.items() if name not in saved}
    )


def _notes(state: Params, ends: Mapping[str, Params], stored: Checkpoint) -> tuple[str, ...]:
    """Notes on the models for the reader: weights of the base, of the others, and the file of the base."""
    found = []
    statistics = [
        name for name, tensor in state.items() if tensor.is_floating_point() and not weights.is_edited(name, tensor)
    ]
    own = [
        model
        for model, end in ends.items()
        if any(not torch.equal(end[name], state[name]) for name in statistics if name in end)
    ]
    if own:
        found.append(
            f"The BatchNorm statistics of {listed(own)} differ from the base's. The check and the merge use the base's statistics, so "
            "the original models may predict differently."
        )
    if any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in stored.tensors.values()):
        found.append(
            "The checkpoints are in half precision and were checked in float32. Writing a merge adds rounding errors."
        )
    return tuple(found)


def _encoded(
    start: Checkpoint,
    ends: Mapping[str, Checkpoint],
    sets: Mapping[str, str],
    control: str | None,
    reading: Reading,
    run: Run,
) -> Candidates:
    """With an encoder: classes come from each model's own last layer, or from a linear probe where it has none."""
    prefixes = told([fit for fit in fits_of([*ends.values()], start) if any(fit.prefixes)])
    start, folder = unwrapped(start), start.beside(".")
    ends = {name: model if is_vector(model) else unwrapped(model) for name, model in ends.items()}
    files = {name: model for name, model in ends.items() if not is_vector(model)}

    def opened(model: Checkpoint) -> Encoder:
        how: dict[str, Any] = {"image_size": parse_shape(reading.input)[-1]} if reading.input else {}
        how |= {"root": run.data_root, "head": reading.head}
        if reading.model is None and model.path.is_dir():
            return encoder_of(model.path, **how)
        return encoder_of(reading.model or folder, weights_file=model, **how)

    encoder = opened(start)
    network, vectors = encoder.network, {}
    _check_finite(network.params, start.name)
    states = {}
    for name, model in ends.items():
        if is_vector(model):
            vectors[name] = TaskVector.load(model.path)
            vectors[name].applied(network.params)  # of this base, or an error that says so
            continue
        last = {key for key in model.tensors if encoder.head and key.startswith(f"{encoder.head}.")}
        shared = {key: model.tensors[key] for key in (model.tensors.keys() & start.tensors.keys()) - last}
        alike = {key: start.tensors[key] for key in shared if start.tensors[key].shape == shared[key].shape}
        if odd := weights.misfits({key: shared[key] for key in alike}, alike, converted=True):
            raise ValueError(f"{model.name} must fit {start.name}: {odd}. Pass states of one model in one type.")
        tuned = opened(model).network
        _check_finite(tuned.params, model.name)
        vectors[name] = _vector(network, tuned.params, name, reading)
        states[name] = tuned.state
    layer = f"{encoder.head}.weight"
    own = (
        []
        if reading.features
        else [name for name in ends if reading.head or (name in files and layer in files[name].tensors)]
    )
    probed = [] if reading.features else [name for name in ends if name not in own]
    probes, whole = {}, {}
    for each in _different(sets, control):
        if not any(sets[name] == each for name in probed):
            whole[each] = prepared_samples(each, encoder, **reading.choice, root=run.data_root)
            continue
        try:
            task = task_of(each, encoder, sizes=(*PROBES, reading.samples), root=run.data_root, seed=reading.seed)
        except ValueError as error:
            hint = " Or pass --features, which needs no classes." if "must have labels" in str(error) else ""
            raise ValueError(f"{error}{hint}") from error
        split = reading.split or "test"
        whole[each] = Arrays({SPLIT: task.splits[task._checked(split)]}, name=task.name)
        probes[each] = fitted_head(network, task, run=run)
    outputs = _outputs(network, list(whole.values()), start.name)
    heads = {name: probes.get(each) or identity_head(outputs) for name, each in sets.items()}
    heads |= {name: _last_layer(ends[name], encoder.head, outputs) for name in own}
    return Candidates(
        start.label,
        network,
        heads,
        vectors,
        {name: whole[each] for name, each in sets.items()},
        whole.get(control or ""),
        _compared(reading),
        (*_notes_on_heads(own, probed, encoder.head), *prefixes, *_notes(network.state, states, start)),
        encoder.head if own else "",
    )


def _classified(
    start: Checkpoint,
    ends: Mapping[str, Checkpoint],
    classifiers: Mapping[str, Classifier],
    sets: Mapping[str, str],
    control: str | None,
    reading: Reading,
    run: Run,
) -> Candidates:
    """With classifiers of transformers, each of which has its own head."""
    layers = list(dict.fromkeys(layer for each in classifiers.values() for layer in each.own))
    if reading.head and reading.head not in layers:
        raise ValueError(f"--head must be among {listed(layers)}, got {reading.head!r}. Leave it out: heads are known.")
    tasks, heads, vectors = {}, {}, {}
    for name, each in classifiers.items():
        network = each.encoder.network
        _check_finite(network.params, start.name)
        _check_finite(each.end, ends[name].name)
        vectors[name] = _vector(network, {key: each.end[key] for key in network.params}, name, reading)
        tasks[name] = prepared_samples(sets[name], each.encoder, **reading.choice, root=run.data_root)
        heads[name] = identity_head(_outputs(network, [tasks[name]], ends[name].name))
    first = next(iter(classifiers.values())).encoder
    if first.kind == "text":
        _require_same_tokens(classifiers, sets, tasks, reading, run)
    whole = prepared_samples(control, first, **reading.choice, root=run.data_root) if control else None
    prefixes = told([fit for fit in fits_of([*ends.values()], start) if any(fit.prefixes)])
    states = {name: each.end for name, each in classifiers.items()}
    return Candidates(
        start.label,
        {name: each.encoder.network for name, each in classifiers.items()},
        heads,
        vectors,
        tasks,
        whole,
        _compared(reading),
        (*_notes_on_heads(list(ends), [], listed(layers)), *prefixes, *_notes(first.network.state, states, start)),
        layers[0],
    )


def _predicting_words(
    start: Checkpoint,
    ends: Mapping[str, Checkpoint],
    language: LanguageModels,
    sets: Mapping[str, str],
    control: str | None,
    reading: Reading,
    run: Run,
) -> Candidates:
    """With language models, which predict the next word."""
    for given, option in ((control, "--control"), (reading.head, "--head"), (reading.features, "--features")):
        if given:
            raise ValueError(f"{option} is not for language models, whose next words are compared. Leave it out.")
    network, vectors, notes = language.base, {}, []
    tasks: dict[str, Arrays] = {}
    _check_finite(network.params, start.name)
    for name, model in ends.items():
        if name not in language.models:
            vectors[name] = TaskVector.load(model.path)
            vectors[name].applied(network.params)  # of this base, or an error that says so
            continue
        params = language.models[name].params
        if odd := weights.misfits(params, network.params):
            raise ValueError(f"{model.name} must fit {start.name}: {odd}. Pass models of one base.")
        _check_finite(params, model.name)
        vectors[name] = _vector(network, params, name, reading)
    rows = int(language.base.module.get_input_embeddings().weight.shape[0])  # type: ignore[operator]
    for each in _different(sets, None):
        found, told_of = texts_as_ids(
            each, list(language.tokenizers.values()), rows, root=run.data_root, **reading.choice
        )
        notes += told_of
        tasks |= {name: found for name, chosen in sets.items() if chosen == each}
    states = {name: each.state for name, each in language.models.items()}
    notes += _notes(network.state, states, start)
    return Candidates(
        start.label, network, {}, vectors, {name: tasks[name] for name in ends}, None, "words", tuple(notes)
    )


def _require_same_tokens(
    classifiers: Mapping[str, Classifier],
    sets: Mapping[str, str],
    tasks: Mapping[str, Arrays],
    reading: Reading,
    run: Run,
) -> None:
    """Refuse models whose tokenizers give other ids: rows of their tables then stand for other tokens."""
    for name, other in itertools.permutations(classifiers, 2):
        here, there = classifiers[name].encoder.prepare, classifiers[other].encoder.prepare
        if getattr(here, "folder", None) == getattr(there, "folder", None):
            continue
        again = prepared_samples(sets[name], classifiers[other].encoder, **reading.choice, root=run.data_root)
        if not torch.equal(again.splits[SPLIT][0], tasks[name].splits[SPLIT][0]):
            raise ValueError(
                f"{name} and {other} must have the same tokens, but their tokenizers give other ids on {tasks[name].name}. Pass models "
                "of one vocabulary."
            )


def _last_layer(model: Checkpoint, head: str, features: int) -> Head:
    """The last layer of a classifier on an encoder.

    Raises:
        ValueError: If the model lacks it, or it does not fit or gives no classes.
    """
    state = {name: model.read(name) for name in model.tensors if name.startswith(f"{head}.")}
    _check_finite(state, model.name)
    found = own_head(state, model.name, features, head, features=False)
    about = model.beside("config.json")
    if about.is_file():  # where Hugging Face says what the outputs are
        require_one_class(model.name, read_settings(about).get("problem_type"), len(state[f"{head}.weight"]))
    return found


def _notes_on_heads(own: Sequence[str], probed: Sequence[str], head: str) -> list[str]:
    """What predictions are of."""
    notes = []
    if own:
        notes.append(
            f"Predictions of {listed(own)} are those of the model's own last layer, {head}, which is not merged."
        )
    if probed:
        notes.append(
            f"Predictions of {listed(probed)} are those of linear probes, not of a last layer that was fine-tuned. "
            "With such a layer, other shares of the predictions change."
        )
    return notes


def _state(start: Checkpoint, state: Params, fit: Fitted, reading: Reading) -> Params:
    """Fine-tuned weights of a checkpoint or of a task vector under the names of the base, where they fit it."""
    model = fit.model
    every = {*start.tensors, *model.tensors}
    TaskStream(start, fit.shared, {*fit.absent} | (every - _merged(dict.fromkeys(every), reading).keys()))
    if is_vector(model):
        end = TaskVector.load(model.path).applied(state, verify=False)
    else:
        end = fit.shared.params() | {name: model.read(own) for name, own in fit.heads.items()}
    _check_finite(end, model.name)
    return end


def _heads(start: Checkpoint, models: Iterable[Checkpoint], reading: Reading) -> set[str]:
    """The tensors of a head that the user names, under the names of each checkpoint."""
    if not reading.head:
        return set()
    return {name for each in (start, *models) for name in each.tensors if name.startswith(f"{reading.head}.")}


def _own_heads(fits: Mapping[str, Fitted]) -> list[str]:
    """The layers that models have of their own, and the base calls so."""
    return list(dict.fromkeys(weights.layer_of(name) for fit in fits.values() for name in fit.heads))


def _with_head(reading: Reading, fits: Mapping[str, Fitted]) -> Reading:
    """With the head that every model has of its own, where the user names none.

    Raises:
        ValueError: If it is no single layer that all have.
    """
    layers = _own_heads(fits)
    if reading.head or not layers:
        return reading
    without = [name for name, fit in fits.items() if f"{layers[0]}.weight" not in fit.heads]
    if len(layers) > 1 or without:
        what = f"{listed(layers)}" if len(layers) > 1 else f"none in {listed(without)}"
        raise ValueError(
            f"The models must have one last linear layer each, to be read through, got {what}. Pass models that end in one layer."
        )
    return dataclasses.replace(reading, head=layers[0])


def _merged(state: Mapping[str, Any], reading: Reading) -> dict[str, Any]:
    """What is merged of named tensors: all but the head."""
    return {name: each for name, each in state.items() if not (reading.head and name.startswith(f"{reading.head}."))}


def _vector(network: Network, params: Params, name: str, reading: Reading, *, known: bool = False) -> TaskVector:
    """The task vector to a model's weights, where these can have come from the base."""
    sums = torch.zeros(3, dtype=torch.float64)
    for key, first in network.params.items():
        one, two = first.flatten().double(), params[key].flatten().double()
        sums += torch.stack([one @ two, one @ one, two @ two])
    lengths = math.sqrt(float(sums[1] * sums[2]))
    if not known and not reading.unrelated and lengths:
        require_related(name, "the base", float(sums[0]) / lengths)
    return TaskVector.between(network.params, params, source=name)


def _module(reading: Reading, shape: tuple[int, ...], state: Params) -> nn.Module:
    """The network, with as many outputs as the checkpoint has where its builder asks for them."""
    assert reading.model is not None
    settings = dict(reading.settings or {})
    function = builder_of(reading.model, shape, settings)[1]
    module = module_built(reading.model, function)
    if "outputs" in settings or "outputs" not in inspect.signature(getattr(function, "func", function)).parameters:
        return module
    own = module.state_dict()
    shapes = {name: (own[name].shape, each.shape) for name, each in state.items() if name in own}
    counts = {there[0] for here, there in shapes.values() if here != there and here[1:] == there[1:]}
    if len(counts) != 1:
        return module
    return module_built(reading.model, builder_of(reading.model, shape, {**settings, "outputs": counts.pop()})[1])


def _outputs(network: Network, sets: Sequence[Arrays], name: str) -> int:
    """How many outputs a network gives on samples, where it takes all of them."""
    placed, count = network.to(torch.device("cpu"), torch.float32), 0
    for samples in sets:
        x = samples.batch(SPLIT, torch.arange(min(2, samples.sizes[SPLIT])))[0]
        with forward_pass(_must_take(samples, name), _OF_ITS_SHAPE), torch.no_grad():
            outputs = placed(x.float())
        if not isinstance(outputs, Tensor):
            raise ValueError(
                f"The network of {name} must return a tensor, got {type(outputs).__name__}. Return the class scores alone."
            )
        count = int(checked_features(outputs).shape[1])
    return count


_OF_ITS_SHAPE = "Pass samples of the shape it was made for, or --input."


def _must_take(samples: Arrays, name: str) -> str:
    return f"The network of {name} must take samples of {samples.name}, of shape {'×'.join(map(str, samples.shape))}"


def _require_last(module: nn.Module, head: str, samples: Arrays, name: str) -> None:
    """Refuse a head behind which something follows: read through it, a model would give other predictions than its own."""
    if not isinstance(
        dict(module.named_modules()).get(head), nn.Identity
    ):  # in the place of a head that it was built without
        require_linear(module, head)
    x = samples.batch(SPLIT, torch.arange(min(2, samples.sizes[SPLIT])))[0]
    with forward_pass(_must_take(samples, name), _OF_ITS_SHAPE):
        last = ends_with(module, head, x.float())
    if not last:
        raise ValueError(
            f"--head must name the last layer, but the outputs of the network are not those of {head!r}. Pass the last linear layer, "
            "and leave out what follows it, such as a softmax."
        )


def _check_finite(state: Params, name: str) -> None:
    edited = {key: each for key, each in state.items() if weights.is_edited(key, each)}
    if bad := [key for key, each in edited.items() if not bool(each.isfinite().all())]:
        raise ValueError(
            f"The weights of {name} must be finite, but {', '.join(bad[:4])} are not. Check where training diverged."
        )


def _different(sets: Mapping[str, str], control: str | None) -> list[str]:
    return list(dict.fromkeys([*sets.values(), *([] if control is None else [control])]))


def _compared(reading: Reading) -> str:
    return "features" if reading.features else "classes"
