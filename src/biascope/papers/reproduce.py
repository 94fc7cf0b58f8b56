"""A paper's figure run and judged; what was found is kept in a folder."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biascope import papers
from biascope.papers import selection
from biascope.papers.verdicts import Standing, judged
from biascope.results import store
from biascope.results.claim import effort_rank
from biascope.results.finding import Finding
from biascope.results.paper_page import picture, write_page
from biascope.results.record import DOCUMENT, Record
from biascope.results.result import now, software
from biascope.runs.files import make_writable, name_for_file, require_ours, write_atomically
from biascope.runs.run import Run

FOLDER = Path("biascope-runs") / "reproduce"


@dataclass(frozen=True)
class Reproduction:
    """A figure that was run.

    Attributes:
        record: Its numbers, claims and verdicts.
        finding: With the arrays.
        folder: Where ``finding.json``, its arrays and ``picture.png`` lie.
        page: The report of everything reproduced so far; ``None`` where Jinja is not installed.
    """

    record: Record
    finding: Finding
    folder: Path
    page: Path | None

    def standings(self) -> list[Standing]:
        """Where each claim of the figure stands after this run alone."""
        return judged(papers.figure(self.record.paper, self.record.figure), [self.record])


def reproduce(
    paper: str, number: str, *, effort: str = "laptop", run: Run | None = None, networks: Sequence[str] = ()
) -> Reproduction:
    """Run a figure of a paper and judge its claims.

    The figure keeps its trials in ``FOLDER/PAPER/NUMBER-EFFORT``, so that an interrupted run goes on where it was; its
    finding is written there too, numbers first: a picture that cannot be drawn costs no number.

    Args:
        paper: Id of the paper.
        number: Of the figure.
        effort: ``"smoke"``, ``"laptop"`` or ``"paper"``.
        run: Device, precision, and FOLDER, which is ``biascope-runs/reproduce`` if it has none.
        networks: Networks to run the figure for, if not for all. Merging then keeps the committed numbers of the others.

    Returns:
        The finding with its verdicts, and where it lies.

    Raises:
        ValueError: If there is no such paper, figure, effort or network.
    """
    effort_rank(effort)
    figure, run = papers.figure(paper, number), run or Run()
    networks = selection.require(figure, networks, effort)
    root = run.folder or FOLDER
    folder = root / figure.paper / "-".join([figure.file_name, effort, *map(name_for_file, networks)])
    require_ours(*(folder / name for name in (DOCUMENT, "picture.png", "picture-dark.png")))
    make_writable(folder)
    circumstances: dict[str, Any] = run.describe()
    with _timed(folder / "seconds.json", ", ".join(circumstances.values())) as seconds:
        finding = figure(effort, dataclasses.replace(run, folder=folder), networks)
    if networks:
        finding = dataclasses.replace(finding, settings={**finding.settings, selection.KEY: list(networks)})
    circumstances |= {"seconds": round(seconds[0], 1), "versions": software(), "date": now()}
    record = Record.of(figure, finding, effort, circumstances)
    finding = record.finding(finding.arrays)  # as it can be read back, so that a picture never rests on more

    for name in ("picture.png", "picture-dark.png"):  # never of another run
        (folder / name).unlink(missing_ok=True)
    store.write(folder, {"record": record.as_json()}, finding.arrays, name=DOCUMENT)
    if _installed("matplotlib"):
        write_atomically(folder / "picture.png", picture(figure, finding))
        write_atomically(folder / "picture-dark.png", picture(figure, finding, dark=True))
    return Reproduction(record, finding, folder, write_page(root) if _installed("jinja2") else None)


@contextlib.contextmanager
def _timed(path: Path, how: str) -> Iterator[list[float]]:
    """Yields a list that will hold the seconds spent in this way, earlier attempts that were cut short included."""
    spent: list[float] = []
    begin = time.perf_counter()
    try:
        yield spent
    finally:
        try:
            known = dict(json.loads(path.read_text()))
            before = float(known.get(how, 0.0))
        except (OSError, ValueError, TypeError):  # none yet, or damaged: it only tells what a figure costs
            known, before = {}, 0.0
        spent.append(before + time.perf_counter() - begin)
        write_atomically(path, json.dumps(known | {how: spent[0]}).encode())


def _installed(package: str) -> bool:
    try:
        importlib.import_module(package)
    except ImportError:
        return False
    return True
