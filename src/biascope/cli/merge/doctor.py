"""SHOW: `biascope merge doctor`: what is wrong with the folders of a merge."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biascope.cli._dry_run import rehearsed
from biascope.cli.merge.apply import weighted
from biascope.cli.options import Lasting, with_groups
from biascope.cli.printing import print_json

if TYPE_CHECKING:
    from biascope.editing.doctor.diagnosis import Diagnosis

FOLDERS_HELP = (
    "Adapters and fine-tuned models: folders as PEFT and Hugging Face write them, or files of weights. Each may have the weight "
    "that it was merged with: A=0.4."
)
BASE_HELP = (
    "The model that they were trained from. By default, the base that an adapter names, if it is on this machine."
)
MERGED_HELP = (
    "Output of the merge, a model or an adapter. Its numbers are compared with the weighted sum of the folders."
)
FAIL_ON = ("fault", "warning", "never")
_WIDEST = 120


@with_groups
@rehearsed()
def doctor(
    folders: Annotated[list[str] | None, typer.Argument(help=FOLDERS_HELP)] = None,
    *,
    base: Annotated[Path | None, typer.Option(help=BASE_HELP)] = None,
    merged: Annotated[Path | None, typer.Option(help=MERGED_HELP)] = None,
    headers: Annotated[bool, typer.Option("--headers", help="Read only settings and headers, no weights.")] = False,
    fail_on: Annotated[
        str,
        typer.Option(help="Exit with status 1 on a fault, or already on a warning, or never: fault, warning, never."),
    ] = "fault",
    output: Lasting,
) -> None:
    """Look for known faults in models, adapters and merged outputs, without loading a model.

    Each case is a fault, a warning, clean, or cannot be seen from these files. docs/merge_doctor.md explains the cases.
    """
    from biascope.editing.doctor import diagnosis_of
    from biascope.runs.run import Run

    if fail_on not in FAIL_ON:
        raise ValueError(f"--fail-on must be fault, warning or never, got {fail_on!r}. Pass --fail-on warning.")
    given = [weighted(words, None, needed=False) for words in folders or ()]
    found = diagnosis_of(
        [path for path, _ in given],
        base=base,
        merged=merged,
        coefficients={path: weight for path, weight in given if weight is not None},
        numbers=not headers,
        run=Run(progress=not output.quiet),
    )
    if output.as_json:
        from biascope.editing.doctor.diagnosis import as_rows

        print_json(
            folders=[{"role": role, "path": path} for role, path in found.folders],
            cases=found.rows(),
            findings=as_rows(found.findings),
            facts=found.facts,
            failed=found.failed(fail_on),
        )
    else:
        for line in _lines(found, min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST)):
            typer.echo(line)
    if found.failed(fail_on):
        raise typer.Exit(1)


def _lines(found: Diagnosis, width: int) -> Iterator[str]:
    """The folders, the table of cases, and what was found."""
    from biascope.editing.doctor.diagnosis import UNSEEN, UNSEEN_WORDS

    for role, path in found.folders:
        yield f"{role:8} {path}"
    yield ""
    rows = found.rows()
    for row in rows:
        status = UNSEEN_WORDS if row["status"] == UNSEEN else row["status"]
        yield f"{row['number']:>3}  {row['title']:43} {status.upper() if status in ('fault', 'warning') else status}"
    if found.facts:
        yield ""
        for fact in found.facts:
            yield from textwrap.wrap(fact, width)
    for sign in found.findings:
        yield ""
        yield from textwrap.wrap(sign.line(), width, break_long_words=False, break_on_hyphens=False)
    if unseen := [row for row in rows if row["status"] == UNSEEN]:
        yield ""
        yield "What it takes to see more:"
        for row in unseen:
            words = f"{row['number']:>3}  {' '.join(row['reasons'][:2])}"
            yield from textwrap.wrap(
                words, width, subsequent_indent="     ", break_long_words=False, break_on_hyphens=False
            )
    faults = sum(sign.level == "fault" for sign in found.findings)
    clean = sum(row["status"] == "clean" for row in rows)
    yield ""
    yield (
        f"{faults} fault{'s' * (faults != 1)} and {len(found.findings) - faults} warning{'s' * (len(found.findings) - faults != 1)}. "
        f"{clean} of {len(rows)} cases are clean, {len(unseen)} cannot be seen."
    )
