"""SHOW: `biascope scan`: what a network finds easy to learn, with a report."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from biascope.cli._dry_run import check_place, in_time, load_in_words
from biascope.cli._settings_file import keep_settings
from biascope.cli.options import DataOptions, Model, NetworkOptions, SeededWork, with_groups
from biascope.cli.printing import print_json, print_results
from biascope.derivatives.sampling import Sampling

if TYPE_CHECKING:
    from biascope.measures.scan.cost import PredictedCosts

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

    With --data, the report also has the tangent kernel on these samples.
    """
    from biascope.families.source import usual_shape
    from biascope.measures.scan import families_of, scan_of
    from biascope.measures.scan.cost import PredictedCosts
    from biascope.runs.files import folder_name

    sampling = dataclasses.replace(gradients, seed=work.seed)
    found = samples.arrays(work.seed) if samples.data else None
    shape = network.shape or (found.shape if found else None)
    if work.dry_run:
        check_place(work)
        how: dict[str, Any] = {"weights": network.weights, "batchnorm": network.batchnorm}
        costs = PredictedCosts(model, sampling, work.run(None), shape, network.chosen, **how)

        def predict() -> None:
            costs.by_size()
            costs.by_timing()

        in_time(predict, lambda: _print_cost(costs, work.as_json))
        return
    name = folder_name(model, network.chosen, network.weights or checkpoints)
    folder = work.out or Path("biascope-runs") / name
    run = work.run(folder, data_root=samples.data_root)
    families = families_of(model, shape, network.chosen, network.weights, checkpoints, network.batchnorm)
    done = scan_of(families, shape or usual_shape(model, network.chosen), sampling, data=found, run=run)
    keep_settings(folder)
    print_results(done.results, done.report, work.as_json)


def _print_cost(found: PredictedCosts, as_json: bool) -> None:
    """Print the expected time of each measurement, as far as it was found in time."""
    from biascope.results.wording import duration
    from biascope.runs.rehearsal import LIMIT, slowdown

    costs = list(found.costs.values())
    if as_json:
        rows = [
            {
                "measurement": cost.measurement,
                "estimator": cost.estimator,
                "method": cost.method,
                "draws": cost.draws,
                "seconds": cost.seconds,
                "bytes": cost.memory,
            }
            for cost in costs
        ]
        print_json(
            subject=found.name or found.model,
            parameters=found.parameters,
            device=found.run.in_words,
            slowdown=slowdown(),
            whole=found.whole,
            costs=rows,
        )
        return
    size = "not built yet" if found.parameters is None else f"{found.parameters:,} parameters"
    typer.echo(f"{found.name or found.model}: {size}; {found.run.in_words}")
    for cost in costs:
        typer.echo(
            f"  {cost.measurement:22} {cost.draws} draws, {cost.estimator}: about {duration(cost.seconds)} and "
            f"{cost.memory / 2**20:,.0f} MiB ({cost.method})"
        )
    if not found.whole:
        typer.echo(f"Expected time: more than {LIMIT:g} seconds. They did not suffice to predict it.")
    typer.echo(load_in_words(slowdown()))
