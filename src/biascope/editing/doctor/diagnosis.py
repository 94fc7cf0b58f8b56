"""What the doctor of merges looks for, and what it answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

FAULT, WARNING, UNSEEN, CLEAN = "fault", "warning", "cannot be seen", "clean"
LEVELS = (FAULT, WARNING, UNSEEN, CLEAN)  # the first of several signs decides a row
UNSEEN_WORDS = "cannot be seen from these files"


@dataclass(frozen=True)
class Case:
    """Something that breaks merges.

    Attributes:
        key: Its name for programs.
        title: Its name for people.
        needs: What makes it visible.
    """

    key: str
    title: str
    needs: str


#: The first eleven were reported by users, in the order of docs/merge_doctor.md.
CASES = (
    Case("scaled_twice", "scale applied twice", "an adapter, and the output with --merged"),
    Case("variant_lost", "rsLoRA, DoRA, bias or KaSA merged wrongly", "an adapter, and the output with --merged"),
    Case("alpha_lost", "alpha or layers of an adapter lost", "an adapter; its base and the output show more"),
    Case("no_module", "adapter fits no module of the base", "an adapter and its --base"),
    Case("tied_again", "tied embeddings, extra lm_head", "config.json with tie_word_embeddings, and the weights"),
    Case("vocabulary", "vocabulary cut or grown", "token embeddings with config.json, a tokenizer or the --base"),
    Case("stop_token", "end token or chat template overwritten", "tokenizers in the output and in a source"),
    Case("quantised_base", "adapter trained on a 4-bit base", "an adapter with its base's name or README.md"),
    Case("experts", "shapes of a mixture of experts", "a mixture of experts, or an adapter of one"),
    Case("rounding", "change lost to rounding", "a model or adapter and its --base"),
    Case("no_change", "output equals the base, or B = 0", "an adapter, or a model and its --base"),
    Case("unreadable", "files that cannot be read", "a folder"),
    Case("not_finite", "numbers that are not finite", "weights"),
    Case("wrong_base", "another base", "a model and its --base"),
    Case("unequal_norms", "task vectors of unequal norm", "two models or adapters and their --base"),
    Case("mostly_decay", "change that is mostly weight decay", "a model and its --base"),
)
BY_KEY: Mapping[str, Case] = {case.key: case for case in CASES}


@dataclass(frozen=True)
class Sign:
    """What files show of a case.

    Attributes:
        case: Key of the case.
        level: ``"fault"``, ``"warning"``, ``"clean"`` or ``"cannot be seen"``.
        says: What is wrong, or how it was seen that nothing is, or why it cannot be seen.
        file: The file that decides it.
        key: The setting or the tensor there.
        remedy: What to do.
    """

    case: str
    level: str
    says: str
    file: str = ""
    key: str = ""
    remedy: str = ""

    @property
    def is_finding(self) -> bool:
        """Whether something is wrong."""
        return self.level in (FAULT, WARNING)

    def line(self) -> str:
        """The sign as one line."""
        number = list(BY_KEY).index(self.case) + 1
        place = f" [{self.file}{': ' if self.file and self.key else ''}{self.key}]" if self.file or self.key else ""
        return f"{self.level.upper()} {number}: {self.says}{place} {self.remedy}".rstrip()


@dataclass(frozen=True)
class Diagnosis:
    """What was found in folders of a merge.

    Attributes:
        folders: Role and path of each.
        signs: All that was seen, and what was not.
        facts: Numbers of each source, in words.

    Example:
        >>> found = Diagnosis((("adapter", "a"),), (Sign("no_change", FAULT, "All B are 0.", "a/adapter_model.safetensors", "lora_B"),))
        >>> found.status("no_change"), found.status("rounding"), found.failed("fault"), found.failed("never")
        ('fault', 'cannot be seen', True, False)
    """

    folders: tuple[tuple[str, str], ...]
    signs: tuple[Sign, ...]
    facts: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[Sign, ...]:
        """Faults, then warnings."""
        return tuple(sign for level in (FAULT, WARNING) for sign in self.signs if sign.level == level)

    def status(self, case: str) -> str:
        """The worst that was seen of a case; ``"cannot be seen"`` also where only some of the folders hold evidence."""
        levels = {sign.level for sign in self.signs if sign.case == case}
        return next((level for level in LEVELS if level in levels), UNSEEN)

    def reasons(self, case: str) -> list[str]:
        """How a case was decided, or what it takes to see it."""
        status = self.status(case)
        said = dict.fromkeys(sign.says for sign in self.signs if sign.case == case and sign.level == status)
        return [words for words in said if words] or ([f"It needs {BY_KEY[case].needs}."] if status == UNSEEN else [])

    def failed(self, fail_on: str) -> bool:
        """Whether something is as bad as ``"fault"`` or ``"warning"``; ``"never"`` is never reached."""
        levels = {FAULT: (FAULT,), WARNING: (FAULT, WARNING)}.get(fail_on, ())
        return any(sign.level in levels for sign in self.signs)

    def rows(self) -> list[dict[str, Any]]:
        """The table: each case with its status, and how it was decided."""
        return [
            {
                "number": number,
                "case": case.key,
                "title": case.title,
                "status": self.status(case.key),
                "reasons": self.reasons(case.key),
            }
            for number, case in enumerate(CASES, 1)
        ]


def as_rows(signs: Iterable[Sign]) -> list[dict[str, Any]]:
    """Signs for programs."""
    return [{**dataclasses.asdict(sign), "number": list(BY_KEY).index(sign.case) + 1} for sign in signs]
