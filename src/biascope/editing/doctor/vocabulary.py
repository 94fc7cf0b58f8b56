"""What tokens break in a merge: tied embeddings, vocabularies of other sizes, the end token and the chat template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from biascope.editing.doctor.diagnosis import CLEAN, FAULT, UNSEEN, WARNING, Sign
from biascope.editing.doctor.folder import (
    ADAPTER,
    BASE,
    GENERATION,
    MERGED,
    MODEL_CONFIG,
    TOKENIZER,
    VOCABULARY,
    Folder,
)
from biascope.families.checkpoint import Checkpoint
from biascope.results.wording import listed

_UNTIE = (
    'Set "tie_word_embeddings": false in config.json if the two shall differ, or delete the head from the weights if it was not '
    "meant to be trained."
)


def signs_of_ties(folders: Sequence[Folder], numbers: bool) -> Iterator[Sign]:
    """Whether ``lm_head`` and the token embeddings are what the settings say.

    Args:
        folders: Those of a merge.
        numbers: Whether weights may be read.
    """
    for folder in folders:
        if folder.adapted:
            yield from _ties_of_adapter(folder, folders)
        elif folder.checkpoint is not None and folder.embedding is not None:
            yield _tie_of_model(folder, numbers)


def _tie_of_model(folder: Folder, numbers: bool) -> Sign:
    tied, head, embedding = folder.model_setting("tie_word_embeddings"), folder.head, folder.embedding
    file, key = folder.file(MODEL_CONFIG), "tie_word_embeddings"
    architectures = " ".join(map(str, folder.config.get("architectures") or ()))
    if head is None:
        if tied is False and ("CausalLM" in architectures or "ConditionalGeneration" in architectures):
            says = f"{folder.name} has no lm_head, and config.json says that it is not tied: it would be random after loading."
            return Sign("tied_again", FAULT, says, file, key, 'Set "tie_word_embeddings": true, or save the head.')
        if tied is None and "CausalLM" in architectures:
            return Sign("tied_again", UNSEEN, f"{folder.name} has neither lm_head nor the setting tie_word_embeddings.")
        return Sign("tied_again", CLEAN, f"{folder.name} has no lm_head beside its embeddings, as config.json says.")
    if tied is None:
        return Sign("tied_again", UNSEEN, f"config.json of {folder.name} has no tie_word_embeddings.")
    if tied is False:
        return Sign("tied_again", CLEAN, f"{folder.name} has a head of its own, as config.json says.")
    shapes = [tuple(folder.tensors[name].shape) for name in (head, embedding or head)]
    differ = None if shapes[0] == shapes[1] and not numbers else shapes[0] != shapes[1]
    if differ is False and folder.checkpoint is not None:
        differ = not _equal(folder.checkpoint, head, embedding or head)
    if differ:
        says = (
            f"{folder.name} holds {head}, which differs from {embedding}, but config.json ties them: a loader that ties them "
            "drops the head."
        )
        return Sign("tied_again", FAULT, says, file, key, _UNTIE)
    if differ is None:
        return Sign("tied_again", UNSEEN, f"{head} of {folder.name} was not compared, since weights are not read.")
    says = f"{folder.name} holds {head}, a copy of {embedding}, to which config.json ties it."
    remedy = "It is harmless for most loaders and takes space. Delete it from the weights before the next merge."
    return Sign("tied_again", WARNING, says, folder.file(), head, remedy)


def _ties_of_adapter(folder: Folder, folders: Sequence[Folder]) -> Iterator[Sign]:
    """Whether an adapter trains tied matrices apart from each other."""
    base = next((each for each in folders if each.role == BASE), None)
    if base is None or base.model_setting("tie_word_embeddings") is None:
        yield Sign(
            "tied_again", UNSEEN, f"For {folder.name}, config.json of its base says whether embeddings are tied."
        )
        return
    ends = ("lm_head", "embed_tokens", "wte", "embed_out")
    trained = {end for end in ends for name in folder.tensors if f".{end}." in f".{name}"}
    if not base.model_setting("tie_word_embeddings") or not trained:
        yield Sign("tied_again", CLEAN, f"{folder.name} trains no tied matrix.")
    elif folder.adapter_config.get("ensure_weight_tying"):
        yield Sign("tied_again", CLEAN, f"{folder.name} was trained with ensure_weight_tying.")
    else:
        yield Sign(
            "tied_again",
            FAULT,
            f"{folder.name} changes {listed(sorted(trained))}, and {base.name} ties head and embeddings: merged, they differ, and a "
            "loader that ties them again drops one of the changes.",
            base.file(MODEL_CONFIG),
            "tie_word_embeddings",
            'Write "tie_word_embeddings": false and both matrices into the merged folder, or train with ensure_weight_tying=True.',
        )


def _equal(checkpoint: Checkpoint, first: str, second: str) -> bool:
    pairs = zip(checkpoint.slices(first), checkpoint.slices(second), strict=True)
    return checkpoint.tensors[first].dtype == checkpoint.tensors[second].dtype and all(
        bool((one == two).all()) for one, two in pairs
    )


def signs_of_size(folders: Sequence[Folder]) -> Iterator[Sign]:
    """Whether embeddings have a row for each token, and as many as those of the base."""
    base = next((each for each in folders if each.role == BASE), None)
    for folder in folders:
        if folder.embedding is None:
            continue
        rows = folder.tensors[folder.embedding].shape[0]
        problems = [*_own_size(folder, rows), *(_size_against(folder, rows, base) if base is not None else ())]
        yield from problems
        compared = folder.model_setting("vocab_size") is not None or folder.tokens or base not in (None, folder)
        if not problems and compared:
            yield Sign("vocabulary", CLEAN, f"{folder.name} has {rows:,} rows of embeddings, as its settings say.")


def _own_size(folder: Folder, rows: int) -> Iterator[Sign]:
    said, head = folder.model_setting("vocab_size"), folder.head
    if isinstance(said, int) and said != rows and not folder.adapted:
        says = (
            f"{folder.name} has {rows:,} rows of embeddings, but config.json says {said:,}: it does not load as it is."
        )
        remedy = f'Set "vocab_size": {rows} if the tokenizer has no more tokens, or save the model again.'
        yield Sign("vocabulary", FAULT, says, folder.file(MODEL_CONFIG), "vocab_size", remedy)
    if head is not None and folder.tensors[head].shape[0] != rows:
        says = f"{folder.name} has {rows:,} rows of embeddings, but {folder.tensors[head].shape[0]:,} rows of {head}."
        yield Sign("vocabulary", FAULT, says, folder.file(), head, "Resize both to one size, and merge again.")
    if folder.tokens and (largest := max(folder.tokens.values())) >= rows:
        says = f"The tokenizer of {folder.name} has tokens up to number {largest:,}, but there are {rows:,} rows of embeddings."
        remedy = "Copy the tokenizer that belongs to these weights, or resize the embeddings and train the new rows."
        yield Sign("vocabulary", FAULT, says, folder.file(VOCABULARY), "added_tokens", remedy)


def _size_against(folder: Folder, rows: int, base: Folder) -> Iterator[Sign]:
    both = folder.tokens.keys() & base.tokens.keys() if folder is not base else set()
    if moved := sorted(token for token in both if folder.tokens[token] != base.tokens[token]):
        says = f"{len(moved):,} tokens of {folder.name} have another number in {base.name}, such as {moved[0]!r}."
        remedy = "Merge models of one tokenizer: rows of different tokens must not be added."
        yield Sign("vocabulary", FAULT, says, folder.file(VOCABULARY), moved[0], remedy)
    if folder is base or base.embedding is None or (there := base.tensors[base.embedding].shape[0]) == rows:
        return
    how = "cut" if rows < there else "grown"
    says = f"The vocabulary of {folder.name} is {how}: {rows:,} rows of embeddings, where {base.name} has {there:,}."
    remedy = (
        "Merge again and keep the rows of the base (in mergekit, leave tokenizer_source out), or pad them to "
        f"{there:,}: adapters and models of the base no longer fit."
        if folder.role == MERGED
        else "Cut or pad the embeddings to one size before you merge. Rows of different tokens must not be added."
    )
    yield Sign("vocabulary", FAULT, says, folder.file(), folder.embedding or "", remedy)


def signs_of_stops(folders: Sequence[Folder]) -> Iterator[Sign]:
    """Whether generation still stops where the sources stop, and the chat template is one of theirs."""
    for folder in folders:
        yield from _stop_of(folder)
    merged = [folder for folder in folders if folder.role == MERGED]
    sources = [folder for folder in folders if folder.role not in (MERGED, BASE)]
    for folder in merged or [each for each in sources if each.role != ADAPTER]:
        others = [each for each in (sources if folder.role == MERGED else []) if each.end_token or each.template[0]]
        others = others or [each for each in folders if each.role == BASE and (each.end_token or each.template[0])]
        if others and folder not in others and (folder.role == MERGED or folder.end_token):
            yield from _stop_against(folder, others)


def _stop_of(folder: Folder) -> Iterator[Sign]:
    """Whether the tokenizer's end token is one at which generation stops."""
    token, given = folder.end_token, folder.settings.get(GENERATION, {}).get("eos_token_id")
    number = folder.tokens.get(token) if token is not None else None
    file = GENERATION
    if given is None:
        given, file = folder.model_setting("eos_token_id"), MODEL_CONFIG
    if number is None or given is None:
        return
    stops = given if isinstance(given, list) else [given]
    if number not in stops:
        says = (
            f"Generation with {folder.name} stops at {listed(list(map(str, stops)))}, but its tokenizer ends texts with {token} "
            f"({number}): it may go on without end."
        )
        yield Sign("stop_token", FAULT, says, folder.file(file), "eos_token_id", f"Set eos_token_id to {number} there.")


def _stop_against(folder: Folder, others: Sequence[Folder]) -> Iterator[Sign]:
    names = listed([each.name for each in others])
    level = FAULT if folder.role == MERGED else WARNING
    remedy = f"Copy the tokenizer files of {others[0].name} into {folder.name}, unless the change was meant."
    problems = []
    tokens = {each.end_token for each in others if each.end_token}
    if tokens and folder.end_token not in tokens:
        said = f"is {folder.end_token}" if folder.end_token else "is missing"
        says = f"The end token of {folder.name} {said}, but {listed(sorted(filter(None, tokens)))} in {names}: chats may not stop."
        problems.append(Sign("stop_token", level, says, folder.file(TOKENIZER), "eos_token", remedy))
    templates = {each.template[0] for each in others if each.template[0]}
    if templates and folder.template[0] not in templates:
        how = "differs from that of" if folder.template[0] else "is missing, but there is one in"
        says = f"The chat template of {folder.name} {how} {names}."
        problems.append(Sign("stop_token", level, says, folder.file(folder.template[1]), "chat_template", remedy))
    if not problems and (folder.end_token or folder.template[0]):
        problems = [
            Sign("stop_token", CLEAN, f"{folder.name} ends texts as {names} {'does' if len(others) == 1 else 'do'}.")
        ]
    yield from problems
