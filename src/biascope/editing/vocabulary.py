"""Vocabularies of base and model: which numbers stand for the same tokens, and tables of tokens that were resized."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from biascope.families.checkpoint import Checkpoint, StoredTensor, read_settings
from biascope.results.wording import listed

# Tables with a row for each token, and layers with an output for each; not those with a row for each position.
_TABLE = re.compile(r"(^|[._])(word_)?(embed\w*|wte|lm_head|shared|decoder|predictions)\.(weight|bias)$")
_NO_TABLE = re.compile(r"position|token_type|patch|wpe")
_FEW = 4


@dataclass(frozen=True, eq=False)
class SharedRows:
    """A model's rows of the tokens that it shares with its base, and the base's rows of the others, in the shape of the base.

    Attributes:
        base: Table of the base.
        own: Table of the model.
        taken: ``(row,)`` whether a row of the base's table is that of the model.
    """

    base: StoredTensor
    own: StoredTensor
    taken: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.base.shape)

    @property
    def dtype(self) -> torch.dtype:
        """A type that holds the values of both."""
        return torch.promote_types(self.base.dtype, self.own.dtype)

    def slices(self, most: int) -> Iterator[Tensor]:
        """Its values in order, at most so many at once."""
        columns, begin, own = math.prod(self.shape[1:]), 0, self.own.slices(most)
        for start in self.base.slices(most):
            found, mine = start.to(self.dtype), next(own, start[:0])[: len(start)]
            taken = self.taken[torch.arange(begin, begin + len(mine)) // columns]
            found[: len(mine)][taken] = mine[taken].to(self.dtype)
            yield found
            begin += len(start)


def tokens_of(model: Checkpoint) -> dict[int, str] | None:
    r"""The token of each number, as the tokenizer in the folder of a model has it; ``None`` if it has none that can be read.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "vocab.txt").write_text("[PAD]\ncat\n")
        ...     tokens_of(Checkpoint("a", {}, path=Path(folder)))
        {0: '[PAD]', 1: 'cat'}
    """
    if not model.path.name:
        return None
    whole, plain, lines, added = map(model.beside, ("tokenizer.json", "vocab.json", "vocab.txt", "added_tokens.json"))
    if whole.is_file():
        settings = read_settings(whole)
        kept = (settings.get("model") or {}).get("vocab")
        pairs = kept.items() if isinstance(kept, dict) else ((row[0], number) for number, row in enumerate(kept or []))
        found = {number: token for token, number in pairs}
        return found | {each["id"]: each["content"] for each in settings.get("added_tokens") or []}
    if lines.is_file():
        found = dict(enumerate(lines.read_text(encoding="utf-8").splitlines()))
    elif plain.is_file():
        found = {number: token for token, number in read_settings(plain).items()}
    else:
        return None
    return found | ({number: token for token, number in read_settings(added).items()} if added.is_file() else {})


def told_of_tokens(base: Checkpoint, model: Checkpoint) -> list[str]:
    """By what the tokenizer of a model differs from that of its base, number by number; nothing where one has none."""
    files = [each.beside("tokenizer.json") for each in (base, model)]
    if all(file.is_file() for file in files) and files[0].read_bytes() == files[1].read_bytes():
        return []
    first, second = tokens_of(base), tokens_of(model)
    if first is None or second is None or first == second:
        return []
    other = [number for number in sorted(first.keys() & second.keys()) if first[number] != second[number]]
    words = []
    if other:
        shown = [f"{number} is {first[number]!r} and {second[number]!r}" for number in other[:_FEW]]
        words.append(f"{len(other)} numbers stand for other tokens ({listed(shown)})")
    for here, there, name in ((first, second, base.label), (second, first, model.label)):
        if alone := sorted(here.keys() - there.keys()):
            words.append(f"{len(alone)} tokens are only in {name} ({_few([here[number] for number in alone])})")
    return [f"The tokenizers of {base.label} and {model.label} differ: {'; '.join(words)}."]


def is_table(name: str) -> bool:
    """Whether a tensor has a row for each token, position or segment, by its name.

    Example:
        >>> [is_table(name) for name in ("model.embed_tokens.weight", "wpe.weight", "q_proj.weight", "lm_head.weight")]
        [True, True, False, False]
    """
    return bool(_NO_TABLE.search(name)) or ("lm_head" not in name and bool(_TABLE.search(name)))


def resized(base: Checkpoint, model: Checkpoint) -> dict[str, str]:
    """Tables of tokens of a model that have more or fewer rows than those of its base: the name of each there."""
    found = {}
    for name, tensor in model.tensors.items():
        if not _TABLE.search(name) or _NO_TABLE.search(name):
            continue
        likely = [
            each for each in base.tensors if each == name or each.endswith(f".{name}") or name.endswith(f".{each}")
        ]
        where = base.tensors[likely[0]] if len(likely) == 1 else tensor
        if (
            len(where.shape) == len(tensor.shape) <= 2
            and where.shape[0] != tensor.shape[0]
            and where.shape[1:] == tensor.shape[1:]
        ):
            found[name] = likely[0]
    return found


def explained(base: Checkpoint, model: Checkpoint, tables: Mapping[str, str]) -> str:
    """What a resized vocabulary is, in a sentence."""
    own, there = next(iter(tables.items()))
    mine, theirs = (each.tensors[name].shape[0] for each, name in ((model, own), (base, there)))
    longer, count = (model, mine) if mine > theirs else (base, theirs)
    tokens = tokens_of(longer) or {}
    named = [tokens[number] for number in range(min(mine, theirs), count) if number in tokens]
    beyond = f"{_few(named)}, as its tokenizer says" if named else "no tokenizer names their tokens"
    return (
        f"{model.name} has another vocabulary than {base.name}: {own} has {mine} rows instead of {theirs}. "
        f"Only {longer.label} has rows {min(mine, theirs)} to {count - 1} ({beyond})"
    )


def with_shared_tokens(base: Checkpoint, model: Checkpoint, tables: Mapping[str, str]) -> tuple[Checkpoint, list[str]]:
    """A model whose tables of tokens have the rows of its base: its own for tokens that both number alike, else those of the base.

    Raises:
        ValueError: If a tokenizer is missing, so that nothing says what rows stand for; or if they share nothing.
    """
    tokens = {each.label: tokens_of(each) for each in (base, model)}
    if lacking := [name for name, found in tokens.items() if found is None]:
        raise ValueError(
            f"{explained(base, model, tables)}. Only tokenizers tell which rows are shared, but no tokenizer.json, "
            f"vocab.json or vocab.txt is in {listed(lacking)}. Save the tokenizer beside the weights."
        )
    first, second = ({**each} for each in tokens.values() if each is not None)
    alike = {number for number, token in first.items() if second.get(number) == token}
    changed, told = dict(model.tensors), []
    for own, there in tables.items():
        start, end = base.tensors[there], model.tensors[own]
        taken = torch.tensor([number in alike for number in range(start.shape[0])])
        taken[end.shape[0] :] = False
        if not bool(taken.any()):
            raise ValueError(
                f"{explained(base, model, tables)}. The tokenizers give no number to the same token. Pass models of one tokenizer."
            )
        changed[own] = SharedRows(start, end, taken)
        rows = int(taken.sum())
        told.append(
            f"Of {own} of {model.label}, the {rows} rows whose tokens have the same number in {base.label} count. The other "
            f"{start.shape[0] - rows} rows are those of {base.label}; {end.shape[0] - rows} rows of {model.label} are left out."
        )
    return replace(model, tensors=changed), told


def _few(names: list[str]) -> str:
    return (
        listed([repr(name) for name in names])
        if len(names) <= _FEW
        else (f"{', '.join(map(repr, names[:_FEW]))} and {len(names) - _FEW} others")
    )
