"""Plain English: phrases that readers stumbled over stay out of help texts, printed sentences and first lines of docstrings."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_tree import COMMANDS

SOURCE = Path(__file__).parents[1] / "src" / "biascope"
# What not to write, and what to write instead.
PHRASES = {
    r"\bto expect is\b|\bloss to expect\b": "the expected drop is …",
    r"\bis to lose\b|\bcan lose as much\b": "drops by at most …",
    r"\bevery which\b": "every n-th",
    r"\b(is|are|was|were) (not )?looked at\b": "used, measured, inspected",
    r"\btold (apart|from)\b": "differ significantly",
    r"\bsays? (a|the|your|its) signal\b": "reconstructs the signal",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bmoves? (equally |as |more |less |most )?freely\b": "the gradient spreads over …",
    r"\balone and side by side\b": "results, and their comparison",
    r"\btuned to\b": "fine-tuned on",
    r"\bkept work\b|\bwork done and kept\b": "saved results, cache",
    r"\bleans?\b": "the gradient is concentrated on …",
    r"\bforetells?\b|\bforetold\b": "predicts",
    r"\bat odds with\b": "does not fit",
    r"\bgoes on from there\b|\bgo on from there\b": "resumes",
    r"\bwhat is finished is kept\b": "finished work is saved",
    r"^(Of|For|At|In|By) [a-z ]+\.$": "a complete phrase",
}


def help_texts() -> Iterator[tuple[str, str]]:
    for words, command in COMMANDS.items():
        yield f"biascope {words}", command.help or ""
        for parameter in command.params:
            yield f"biascope {words} {'/'.join(parameter.opts)}", getattr(parameter, "help", None) or ""


def printed_texts() -> Iterator[tuple[str, str]]:
    """Strings of the source with a space in them, f-strings as a whole, and first lines of docstrings; claims of papers are apart."""
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE)
        if place.parts[0] == "papers":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        strings = {id(n.body[0].value) for n in ast.walk(tree) if isinstance(n, documented) and ast.get_docstring(n)}  # type: ignore[attr-defined]
        parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, documented) and (text := ast.get_docstring(node)):
                yield f"{place}:{node.body[0].lineno}", text.splitlines()[0]
            elif isinstance(node, ast.JoinedStr):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
                yield f"{place}:{node.lineno}", text
            elif (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and " " in node.value
                and id(node) not in strings | parts
            ):
                yield f"{place}:{node.lineno}", node.value


@pytest.mark.parametrize("texts", [help_texts, printed_texts])
def test_phrases_that_are_hard_to_read_stay_out(texts) -> None:
    found = [
        f"{place}: {text!r}: write {instead!r}"
        for place, text in texts()
        for phrase, instead in PHRASES.items()
        if re.search(phrase, text, re.I if not phrase.startswith("^") else 0)
    ]
    assert not found, "\n".join(found)


def test_the_phrases_are_found() -> None:
    bad = "It can lose as much accuracy at most; to expect is a loss of 0.1 %."
    assert any(re.search(phrase, bad, re.I) for phrase in PHRASES)
    assert re.search(list(PHRASES)[-1], "Of weights and inputs.")
    assert len(list(printed_texts())) > 3000
