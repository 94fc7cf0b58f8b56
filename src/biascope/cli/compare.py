"""SHOW: `biascope compare`: networks side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biascope.cli.options import Batchnorm, GradientOptions, Input, SeededWork, parsed_shape, with_groups
from biascope.cli.printing import print_json


@with_groups
def compare(
    subjects: Annotated[list[str], typer.Argument(help="Two or more run folders or networks, in any mixture.")],
    *,
    input: Input = "",
    batchnorm: Batchnorm = "eval",
    gradients: GradientOptions,
    leading: Annotated[int, typer.Option(help="Directions in the compared subspaces.")] = 10,
    work: SeededWork,
) -> None:
    """Put networks side by side: spectra, effective rank and overlap of their leading directions."""
    from biascope import scanning
    from biascope.measures.covariance import compare as comparison
    from biascope.results.report import write_report
    from biascope.runs.files import make_writable

    if len(subjects) < 2:
        raise ValueError(
            f"compare needs at least two subjects, got {len(subjects)}. Pass run folders or network names."
        )
    if len(set(subjects)) < len(subjects):
        raise ValueError(f"compare needs different subjects, got {', '.join(subjects)}. Leave out those that repeat.")
    folder = work.out or Path("biascope-runs") / scanning.comparison_folder(subjects)
    results = scanning.results_of(
        subjects,
        folder,
        input=parsed_shape(input),
        sampling=gradients.sampling(work.seed),
        batchnorm=batchnorm,
        run=work.run(None),
    )
    tables = comparison.compared(results, leading)
    make_writable(folder)
    page = write_report(results, folder / "report.html")
    warnings = list(dict.fromkeys(warning for result in results for warning in result.warnings))
    if work.as_json:
        print_json(comparisons=[table.as_dict() for table in tables], warnings=warnings, report=str(page))
        return
    for table in tables:
        typer.echo(f"\n{table!r}")
    for warning in warnings:
        typer.echo(f"Warning: {warning}")
    typer.echo(f"\nReport: {page}")
