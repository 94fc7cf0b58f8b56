"""The papers: one folder per paper, named by its id, each figure or table one function with its claims.

A folder in here whose name ends in a year is a paper, and every figure in its files is a figure of it. `names` reads the names of the
folders, and `find` imports a paper only when it is asked for, so that importing this package does not import torch. `results/` holds
the committed numbers.

>>> "papers" in names()
False
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from biascope.results.claim import Dropped, Statement
from biascope.results.finding import FigureOfPaper
from biascope.results.sheet import FILE, sheet
from biascope.results.wording import natural_order

__all__ = ["Paper", "figure", "find", "names"]


@dataclass(frozen=True)
class Paper:
    """A paper and its figures.

    Attributes:
        name: Its id.
        title: Its reference, the constant ``PAPER`` of its ``__init__.py``.
        figures: By number; tables, theorems and other words behind the figures.
        statements: What the paper says that can be tested, from its sheet.
        dropped: Claims that were withdrawn, from the same.
    """

    name: str
    title: str
    figures: tuple[FigureOfPaper, ...]
    statements: tuple[Statement, ...] = ()
    dropped: tuple[Dropped, ...] = ()


def __dir__() -> list[str]:
    return __all__


def names() -> tuple[str, ...]:
    """The ids of the papers in alphabetical order, read from the file names of this folder."""
    known = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in known if re.fullmatch(r"[a-z]\w*\d{4}", name)))


def find(paper: str) -> Paper:
    """A paper by its id.

    Raises:
        ValueError: If there is none, with the nearest names, or if two of its figures have one name.
    """
    name = _nearest("paper", paper, names())
    module = importlib.import_module(f"{__name__}.{name}")
    files = pkgutil.iter_modules(getattr(module, "__path__", ()), f"{module.__name__}.")
    modules = [module, *(importlib.import_module(file.name) for file in files)]
    found = (value for each in modules for value in vars(each).values() if isinstance(value, FigureOfPaper))
    figures = tuple(sorted(dict.fromkeys(found), key=_place))  # one that another file imports counts once
    numbers = [each.file_name.lower() for each in figures]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"The figures of {name} must have different numbers, got {numbers}. Rename one in its file.")
    title = getattr(module, "PAPER", None) or (module.__doc__ or name).strip().splitlines()[0]
    whole = sheet(Path(module.__file__ or "").parent)
    for each in figures:
        if not each.claims:
            raise ValueError(
                f"Figure {each.number} of {name} must have a claim, and {FILE} has none. Add a [[figure]] with its number."
            )
    if unknown := whole.claims.keys() - {each.number for each in figures}:
        raise ValueError(
            f"{FILE} of {name} has claims on figures that are not there: {sorted(unknown)}. Correct the numbers."
        )
    return Paper(name, str(title), figures, whole.statements, whole.dropped)


def figure(paper: str, number: str) -> FigureOfPaper:
    """A figure of a paper by its number; case and signs between letters and digits do not matter.

    Raises:
        ValueError: If there is none, with the nearest names.
    """
    found = find(paper)
    by_number = {each.number: each for each in found.figures}
    wanted = re.sub(r"^\s*(figure|fig)\b\.?\s*", "", number, flags=re.IGNORECASE)
    return by_number[_nearest(f"figure of {found.name}", wanted, by_number)]


def _place(figure: FigureOfPaper) -> tuple[bool, list[tuple[int, str]]]:
    """Figures before what begins with a word, 9 before 10 before A.1."""
    return re.match("[A-Za-z]{2}", figure.number) is not None, natural_order(figure.number)


def _nearest(what: str, wanted: str, known: Iterable[str]) -> str:
    by_letters = {_letters(each): each for each in known}
    if (found := by_letters.get(_letters(wanted))) is not None:
        return found
    near = [by_letters[each] for each in difflib.get_close_matches(_letters(wanted), by_letters, n=3, cutoff=0.4)]
    remedy = f"Did you mean {' or '.join(map(repr, near))}?" if near else "Run biascope reproduce to list them."
    raise ValueError(f"{what} must be one of {', '.join(map(repr, by_letters.values()))}, got {wanted!r}. {remedy}")


def _letters(name: str) -> str:
    """The letters and digits in lower case: what two spellings of one name share."""
    return "".join(filter(str.isalnum, name)).lower()
