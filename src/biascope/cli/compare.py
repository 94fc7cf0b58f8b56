"""SHOW: `biascope compare`: a comparison of networks."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from biascope.cli import _completion
from biascope.cli._dry_run import check_place, in_time, print_expectation
from biascope.cli._settings_file import keep_settings
from biascope.cli.options import Batchnorm, InputOptions, SeededWork, with_groups
from biascope.cli.printing import print_json, report_line
from biascope.derivatives.sampling import Sampling


@with_groups
def compare(
    subjects: Annotated[
        list[str],
        typer.Argument(
            help="Two or more run folders or networks, in any combination.", autocompletion=_completion.networks
        ),
    ],
    *,
    inputs: InputOptions,
    batchnorm: Batchnorm = "eval",
    gradients: Sampling,
    leading: Annotated[int, typer.Option(help="Number of leading directions in the compared subspaces.")] = 10,
    work: SeededWork,
) -> None:
    """Compare networks: the rows of their cards in one table, what differs, and the overlap of their leading directions."""
    from biascope.measures.covariance import compare as comparison
    from biascope.measures.scan.compared import results_of
    from biascope.results.cards import Cards
    from biascope.results.registry import require_own
    from biascope.results.report import write_report
    from biascope.runs.files import comparison_folder, make_writable

    if len(subjects) < 2:
        raise ValueError(
            f"compare needs at least two subjects, got {len(subjects)}. Pass run folders or network names."
        )
    if len(set(subjects)) < len(subjects):
        raise ValueError(f"compare needs different subjects, got {', '.join(subjects)}. Leave out the duplicates.")
    sampling = dataclasses.replace(gradients, seed=work.seed)
    if work.dry_run:
        check_place(work)
        _print_expected(subjects, inputs, sampling, batchnorm, work)
        return
    folder = work.out or Path("biascope-runs") / comparison_folder(subjects)
    require_own(folder)
    results = results_of(
        subjects,
        folder,
        input=inputs.shape,
        axes=inputs.named_axes,
        holding=inputs.holding,
        sampling=sampling,
        batchnorm=batchnorm,
        run=work.run(None),
    )
    tables = comparison.compared(results, leading)
    cards = Cards.of(results, [result.story() for result in results])
    make_writable(folder)
    keep_settings(folder)
    page = write_report(results, folder / "report.html")
    warnings = list(dict.fromkeys([*cards.warnings(), *(words for result in results for words in result.warnings)]))
    if work.as_json:
        document = {"card": cards.as_dict(), "comparisons": [table.as_dict() for table in tables]}
        print_json(**document, warnings=warnings, report=str(page))
        return
    typer.echo("\n".join(["", *cards.lines(), *cards.sentences(), cards.level()]))
    for table in tables:
        typer.echo("\n  ".join([f"\n{table!r}", *(each.text for each in table.located())]))
    for warning in warnings:
        typer.echo(f"Warning: {warning}")
    typer.echo(f"\n{report_line(page)}")


def _print_expected(
    subjects: list[str], inputs: InputOptions, sampling: Sampling, batchnorm: str, work: SeededWork
) -> None:
    """Print the time of the scans, as far as it is found in time; run folders are only read."""
    from biascope.measures.scan.cost import in_turns, predicted
    from biascope.results.registry import saved_results
    from biascope.runs.rehearsal import LIMIT, Expectation, StageTime

    networks = [subject for subject in subjects if not Path(subject).is_dir()]
    given: dict[str, Any] = {"shape": inputs.shape, "axes": inputs.named_axes, "holding": inputs.holding}
    predictions = [predicted(each, sampling, work.run(None), batchnorm=batchnorm, **given) for each in networks]
    known = [next(each) for each in predictions]

    def predict(_: Path) -> None:
        for subject in subjects:
            if Path(subject).is_dir():
                saved_results(Path(subject))
        for place, prediction in in_turns(predictions):
            known[place] = prediction

    def answer(_: Expectation) -> None:
        stages: list[StageTime] = []
        for each in known:
            stages += [stage.of(each.subject) for stage in each.stages]
            stages += [] if each.whole else [StageTime(f"{each.subject}: draws", 1, 0, LIMIT, None)]
        seconds = sum(stage.seconds or stage.spent for stage in stages)
        memory = max((each.memory for each in known), default=0)
        print_expectation(Expectation(seconds, tuple(stages), all(each.whole for each in known), memory), work)

    in_time(predict, answer, budget=math.inf)
