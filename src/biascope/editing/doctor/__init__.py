"""The doctor of merges: what is wrong with models, adapters and merged outputs, seen in their files without loading a model."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from biascope.editing.adapters import CONFIG, AdaptedWeight, Update, on_base, updates
from biascope.editing.doctor import adapters, experts, vocabulary
from biascope.editing.doctor.changes import Broken, changes_of, count_broken
from biascope.editing.doctor.diagnosis import CLEAN, FAULT, UNSEEN, WARNING, Diagnosis, Sign
from biascope.editing.doctor.folder import BASE, MERGED, MODEL_CONFIG, Folder
from biascope.editing.doctor.scales import LoraScale, fit_of, signs_of_output
from biascope.editing.doctor.vectors import facts_of, signs_of_vectors
from biascope.families import weights
from biascope.families.checkpoint import Checkpoint
from biascope.families.names import fitted
from biascope.results.planes import distinct
from biascope.runs.ambient import under_torch_defaults
from biascope.runs.run import Run

__all__ = ["Diagnosis", "diagnosis_of"]
_ODD = (
    ValueError,
    OSError,
    TypeError,
    AttributeError,
    KeyError,
    re.error,
)  # what settings of another kind than expected raise


@under_torch_defaults
def diagnosis_of(
    sources: Sequence[Path | str],
    *,
    base: Path | str | None = None,
    merged: Path | str | None = None,
    coefficients: Mapping[Path | str, float] | None = None,
    numbers: bool = True,
    run: Run = Run(),  # noqa: B008 - frozen
) -> Diagnosis:
    """What is wrong with the folders of a merge, as far as their files show it.

    Definition: each case of :data:`biascope.editing.doctor.diagnosis.CASES` is a fault, a warning, clean, or cannot be seen from
    these files. The scale of a merge is decided by numbers: with M the change of the output and T the weighted sum of its sources,
    ``⟨M, T⟩ / ‖T‖²`` of each layer is compared with 1 and with the factors of known faults. An output that is an adapter may be cut
    to a rank, so that ``‖M‖² / ⟨M, T⟩`` takes its place. Weights are read slice by slice, and no code in a file is ever run.

    Args:
        sources: Adapters and fine-tuned models.
        base: The model that they were trained from. If it is not given, it is the source or the folder on this machine that an
            adapter names as its base.
        merged: The output of the merge: a model, or an adapter that combines others.
        coefficients: The weight of each source in the merge, where it is known. A single source counts with 1.
        numbers: Whether to read weights; else only headers and settings are read.
        run: Shows progress.

    Raises:
        ValueError: If there is no folder, or one does not exist.

    Example:
        >>> import json, tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     factors = {"base_model.model.q.lora_A.weight": torch.ones(2, 4), "base_model.model.q.lora_B.weight": torch.zeros(3, 2)}
        ...     weights.save(factors, f"{folder}/adapter_model.safetensors")
        ...     _ = Path(f"{folder}/adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4}))
        ...     found = diagnosis_of([folder])
        >>> [(sign.case, sign.level, sign.key) for sign in found.findings]
        [('no_change', 'fault', 'base_model.model.q.lora_B.weight')]
    """
    if odd := [weight for weight in (coefficients or {}).values() if not math.isfinite(weight)]:
        raise ValueError(f"The weight of a source must be finite, got {odd[0]}. Pass A=0.4.")
    if not sources and merged is None:
        raise ValueError("The doctor needs at least one folder, got none. Pass a model or an adapter.")
    known = {Path(path): weight for path, weight in (coefficients or {}).items()}
    folders = [Folder.open(Path(path), weight=known.get(Path(path))) for path in sources]
    start = None if base is None else Folder.open(Path(base), BASE)
    if start is None:
        start, folders = _named_base(folders)
    output = None if merged is None else Folder.open(Path(merged), MERGED)
    every = [*([] if start is None else [start]), *folders, *([] if output is None else [output])]
    labels = distinct([folder.name for folder in every])
    every = [folder.called(label) for folder, label in zip(every, labels, strict=True)]
    start = every[0] if start is not None else None
    output = every[-1] if output is not None else None
    folders = [folder for folder in every if folder not in (start, output)]
    signs = list(_signs_of_files(every))
    for folder in every:
        if folder.adapted and folder is not start:
            signs += adapters.signs_of_scale(folder, start)
            signs += adapters.signs_of_fit(folder, start)
            signs += adapters.signs_of_quantised_base(folder, start) if folder is not output else ()
            signs += adapters.signs_of_zeros(folder) if numbers else ()
    signs += adapters.signs_of_variants(output, folders, numbers)
    signs += vocabulary.signs_of_ties(every, numbers)
    signs += vocabulary.signs_of_size(every)
    signs += vocabulary.signs_of_stops(every)
    signs += experts.signs_of_experts(every)
    facts: list[str] = []
    if numbers:
        found, facts = _signs_of_numbers(start, output, folders, run)
        signs += found
    return Diagnosis(
        tuple((folder.role, str(folder.path)) for folder in every), tuple(dict.fromkeys(signs)), tuple(facts)
    )


def _named_base(folders: Sequence[Folder]) -> tuple[Folder | None, list[Folder]]:
    """The base that adapters name, and the other folders: one of the folders, or one that is there under this path."""
    for adapter in (folder for folder in folders if folder.adapted):
        named = str(adapter.adapter_config.get("base_model_name_or_path") or "").rstrip("/")
        if not named:
            continue
        for folder in folders:
            if not folder.adapted and named.rpartition("/")[2] == folder.name:
                return Folder.open(folder.path, BASE), [each for each in folders if each is not folder]
        if Path(named).is_dir() and (Path(named) / "config.json").is_file():
            return Folder.open(Path(named), BASE), list(folders)
    return None, list(folders)


def _signs_of_files(folders: Sequence[Folder]) -> Iterator[Sign]:
    for folder in folders:
        for file, words in folder.problems:
            yield Sign("unreadable", FAULT, words, folder.file(file) if file else str(folder.path))
        if not folder.problems:
            yield Sign("unreadable", CLEAN, f"All files of {folder.name} that matter can be read.")
        file = CONFIG if folder.adapted else MODEL_CONFIG
        if (
            folder.checkpoint is not None
            and not (folder.path.parent / file).exists()
            and not (folder.path / file).exists()
        ):
            says = f"{folder.name} has no {file}, so that much of it cannot be checked."
            remedy = "Pass the folder with its configuration."
            yield Sign("unreadable", WARNING, says, str(folder.path), file, remedy)


def _signs_of_numbers(
    base: Folder | None, output: Folder | None, sources: Sequence[Folder], run: Run
) -> tuple[list[Sign], list[str]]:
    """What the numbers of the weights say, and the size of each change."""
    signs: list[Sign] = []
    broken = Broken()
    read: set[int] = set()  # tensors whose numbers were counted, by their identity, since names differ
    facts: list[str] = []
    models = [*([] if output is None else [output]), *sources]
    if base is not None and base.checkpoint is not None and not base.adapted:
        here, taken = _on_base(base, models, signs)
        if output is not None and output.adapted:
            here, taken = _without(output, here, taken)
        if here:
            facts += _compare(base, here, taken, broken, signs, read, run)
    if output is not None and output.adapted and sources and all(source.adapted for source in sources):
        facts += _compare_updates(output, sources, broken, signs, run)
    for folder in [*([] if base is None else [base]), *models]:
        if folder.checkpoint is None:
            continue
        # Products of factors were not counted: the factors are.
        rest = [name for name, tensor in folder.checkpoint.tensors.items() if id(tensor) not in read]
        count_broken(folder.checkpoint, rest, folder.name, broken, run=run)
        place, count = broken.found.get(folder.name, ("", 0))
        if count:
            says = f"{folder.name} holds numbers that are not finite: {count:,}, first in {place}."
            remedy = "Take an earlier state of the training, from before it diverged."
            signs.append(Sign("not_finite", FAULT, says, folder.file(), place, remedy))
        else:
            signs.append(Sign("not_finite", CLEAN, f"All numbers of {folder.name} are finite."))
    return signs, facts


def _on_base(base: Folder, models: Sequence[Folder], signs: list[Sign]) -> tuple[list[Folder], list[Checkpoint]]:
    """The models that can be compared with the base, and each under its names."""
    start = base.checkpoint
    here, taken = [], []
    for folder in models:
        if start is None or folder.checkpoint is None:
            continue
        try:
            for each in (base, folder):
                if each.quantised:
                    raise ValueError(f"{each.name} is quantised ({each.quantised}).")
            if folder.adapted:
                model = on_base(folder.checkpoint, start)
            else:
                model = fitted([folder.checkpoint], start)[0].shared
                signs += _misfits(base, folder, model)
        except _ODD as error:
            if folder.adapted and any(sign.is_finding and sign.case == "no_module" for sign in signs):
                continue  # said already
            scale = ("scaled_twice", "variant_lost", "alpha_lost") if MERGED in [each.role for each in models] else ()
            more = ("wrong_base", "no_change") if not folder.adapted else ()
            why = f"The numbers of {folder.name} cannot be compared with those of {base.name}: {error}"
            signs += [Sign(case, UNSEEN, why) for case in ("rounding", *scale, *more)]
            continue
        here.append(folder)
        taken.append(model)
    return here, taken


def _without(
    output: Folder, here: Sequence[Folder], taken: Sequence[Checkpoint]
) -> tuple[list[Folder], list[Checkpoint]]:
    """Folders but for an output that is an adapter, which is compared with its sources alone."""
    pairs = [(folder, model) for folder, model in zip(here, taken, strict=True) if folder is not output]
    return [folder for folder, _ in pairs], [model for _, model in pairs]


def _misfits(base: Folder, folder: Folder, model: Checkpoint) -> Iterator[Sign]:
    """Weights of the base that a model lacks or has in another shape, but for heads and vocabularies."""
    tokens = {base.embedding, base.head}
    odd = [
        name
        for name, tensor in base.tensors.items()
        if name not in tokens and (name not in model.tensors or tuple(model.tensors[name].shape) != tuple(tensor.shape))
    ]
    shared = len(base.tensors.keys() & model.tensors.keys())
    if odd and (not shared or len(odd) > len(base.tensors) / 2 or folder.role == MERGED):
        says = (
            f"{folder.name} lacks {len(odd)} of the {len(base.tensors)} tensors of {base.name}, or has them in another shape, such as "
            f"{odd[0]}."
        )
        remedy = "Pass the base that it was fine-tuned from, or merge again without leaving tensors out."
        yield Sign("wrong_base", FAULT, says, folder.file(), odd[0], remedy)


def _compare(
    base: Folder,
    here: Sequence[Folder],
    taken: Sequence[Checkpoint],
    broken: Broken,
    signs: list[Sign],
    read: set[int],
    run: Run,
) -> list[str]:
    sources = [folder for folder in here if folder.role != MERGED]
    output = here[0] if here[0].role == MERGED else None
    shares = _shares(sources)
    renamed = [
        Checkpoint(folder.name, model.tensors, model.metadata, model.path)
        for folder, model in zip(here, taken, strict=True)
    ]
    given = renamed[output is not None :]
    # Beside the change by DoRA, what it would be if the norms of its outputs were ignored.
    plain = [_without_norms(model) for model in given] if output is not None else []
    plain = plain if any(one is not two for one, two in zip(plain, given, strict=False)) else []
    coefficients = [*shares, *([0.0] * len(plain))]
    first = None if output is None else renamed[0]
    whole = changes_of(base.checkpoint, first, [*given, *plain], coefficients, broken, run=run)
    if whole is None:
        says = f"No weight of {here[0].name} has a name and a shape of {base.name}."
        signs.append(Sign("wrong_base", FAULT, says, here[0].file()))
        return []
    whole_models = [model for folder, model in zip(here, taken, strict=True) if not folder.adapted]
    for each in (*([base.checkpoint] if base.checkpoint is not None else ()), *whole_models):
        read |= {id(each.tensors[name]) for name in whole.names}
    if "" in broken.found:
        broken.found[base.name] = broken.found.pop("")
    changes = whole.at(range(len(here)))
    found = list(signs_of_vectors(changes, base, here, shares))
    signs += found
    facts = [
        *facts_of(changes, base, here),
        *(sign.says for sign in found if sign.case == "rounding" and not sign.is_finding),
    ]
    if output is not None and sources and changes.changed[:, 0].any():
        scales = [_scales(folder, model) for folder, model in zip(here, taken, strict=True) if folder is not output]
        ignored = whole.at([0, *range(len(here), len(here) + len(plain))]) if plain else None
        signs += signs_of_output(changes, output, sources, scales, ignored)
        facts += fit_of(changes, output, sources)
    return facts


def _without_norms(model: Checkpoint) -> Checkpoint:
    """An adapter on its base, without the norms that DoRA gives to the outputs of a layer."""
    tensors = {
        name: each.update
        if isinstance(each, AdaptedWeight) and each.norms is not None and each.update is not None
        else each
        for name, each in model.tensors.items()
    }
    return model if tensors == model.tensors else replace(model, tensors=tensors)


def _compare_updates(
    output: Folder, sources: Sequence[Folder], broken: Broken, signs: list[Sign], run: Run
) -> Sequence[str]:
    """An adapter beside those that it combines."""
    given = [folder.checkpoint for folder in (output, *sources)]
    if any(each is None for each in given):
        return ()
    try:
        taken, _ = updates([each for each in given if each is not None])
    except _ODD as error:
        words = f"The updates of {output.name} and its sources cannot be computed: {error}"
        signs += [Sign(case, UNSEEN, words) for case in ("scaled_twice", "alpha_lost")]
        return ()
    changes = changes_of(None, taken[0], taken[1:], _shares(sources), broken, run=run)
    if changes is None or not changes.changed[:, 0].any():
        return ()
    scales = [_scales(folder, model, taken[0]) for folder, model in zip(sources, taken[1:], strict=True)]
    signs += signs_of_output(changes, output, sources, scales)
    return list(fit_of(changes, output, sources))


def _shares(sources: Sequence[Folder]) -> list[float]:
    """The weight of each source; equal ones with the sum 1 where they are not known."""
    return [1 / len(sources) if source.weight is None else source.weight for source in sources]


def _scales(folder: Folder, model: Checkpoint, output: Checkpoint | None = None) -> dict[str, LoraScale]:
    """The scale of each layer of an adapter, by the layer's name in the base."""
    config = folder.adapter_config
    usual, stabilised = config.get("lora_alpha"), bool(config.get("use_rslora"))
    found = {}
    for name, whole in model.tensors.items():
        tensor = whole.update if isinstance(whole, AdaptedWeight) else whole
        if isinstance(tensor, Update):
            rank = tensor.model.tensors[tensor.down].shape[0]
            own = None if output is None else output.tensors[name]
            written = own.model.tensors[own.down].shape[0] if isinstance(own, Update) else rank
            known = (
                float(usual) / (rank**0.5 if stabilised else rank) if isinstance(usual, int | float) else tensor.scale
            )
            found[weights.layer_of(name)] = LoraScale(tensor.scale, rank, written, stabilised, known)
    return found
