"""SHOW: `biascope scan`: what a network finds easy to learn, with a report."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biascope.cli._dry_run import check_place, in_time, load_in_words, memory_in_words
from biascope.cli._settings_file import keep_settings
from biascope.cli.options import DataOptions, Model, NetworkOptions, SeededWork, with_groups
from biascope.cli.printing import print_json, print_results
from biascope.derivatives.sampling import Sampling

if TYPE_CHECKING:
    from biascope.measures.scan.cost import ScanTime
    from biascope.runs.run import Run

_NO_DATA = DataOptions(data="", samples="1000")


@with_groups
def scan(
    model: Model = "lenet",
    *,
    network: NetworkOptions,
    checkpoints: Annotated[Path | None, typer.Option(help="Folder of checkpoints from a training.")] = None,
    gradients: Sampling,
    samples: DataOptions = _NO_DATA,
    work: SeededWork,
) -> None:
    """Measure what a network finds easy to learn, and write a report.

    With --data, the report also has the tangent kernel on these samples: which classes the network learns first.
    """
    from biascope.families.source import usual_shape
    from biascope.measures.scan import families_of, require_samples, scan_of
    from biascope.measures.scan.cost import predicted
    from biascope.runs.files import folder_name

    sampling = dataclasses.replace(gradients, seed=work.seed)
    found = samples.arrays(work.seed, model, network.chosen) if samples.data else None
    require_samples(found)
    shape = network.shape if found is None else network.shape_on(found)
    if work.dry_run:
        check_place(work)
        run = work.run(None)
        predictions = predicted(
            model,
            sampling,
            run,
            shape,
            network.chosen,
            network.weights,
            network.batchnorm,
            network.named_axes,
            network.holding,
        )
        known = [next(predictions)]
        in_time(
            lambda _: known.extend(predictions), lambda _: _print_time(known[-1], run, work.as_json), budget=math.inf
        )
        return
    name = folder_name(model, network.chosen, network.weights or checkpoints)
    folder = work.out or Path("biascope-runs") / name
    run = work.run(folder, data_root=samples.data_root)
    families = families_of(
        model,
        shape,
        network.chosen,
        network.weights,
        checkpoints,
        network.batchnorm,
        network.named_axes or (found.axes if found else ()),
        network.holding,
    )
    done = scan_of(families, shape or usual_shape(model, network.chosen), sampling, data=found, run=run)
    keep_settings(folder)
    print_results(done.results, done.report, work.as_json)


def _print_time(known: ScanTime, run: Run, as_json: bool) -> None:
    """Print the expected time of each measurement, as far as it was found in time."""
    from biascope.results.wording import duration
    from biascope.runs.byte_size import in_words
    from biascope.runs.rehearsal import LIMIT, slowdown

    if as_json:
        rows = [
            {
                "measurement": stage.name,
                "estimator": stage.estimator,
                "method": stage.method,
                "draws": stage.pieces,
                "seconds": stage.seconds,
                "bytes": stage.memory,
            }
            for stage in known.stages
        ]
        print_json(
            subject=known.subject,
            parameters=known.parameters,
            device=run.in_words,
            slowdown=slowdown(),
            whole=known.whole,
            bytes=known.memory,
            memory_limit=run.limit,
            costs=rows,
        )
        return
    size = "not built yet" if known.parameters is None else f"{known.parameters:,} parameters"
    typer.echo(f"{known.subject}: {size}; {run.in_words}")
    for stage in known.stages:
        typer.echo(
            f"  {stage.name:22} {stage.pieces} draws, {stage.estimator}: about {duration(stage.seconds or 0.0)} and "
            f"{in_words(stage.memory)} ({stage.method})"
        )
    if told := next((stage.told for stage in known.stages if stage.told), ""):
        typer.echo(f"  {told}")
    if not known.whole:
        typer.echo(f"Expected time: more than {LIMIT:g} seconds. They did not suffice to predict it.")
    if known.memory:
        typer.echo(memory_in_words(known.memory, run))
    typer.echo(load_in_words(slowdown()))
