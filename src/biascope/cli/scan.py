"""SHOW: `biascope scan`: what a network finds easy to learn, with a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biascope.cli._dry_run import check_place, load_in_words
from biascope.cli._settings_file import keep_settings
from biascope.cli.options import DataOptions, GradientOptions, Model, NetworkOptions, SeededWork, with_groups
from biascope.cli.printing import print_json, print_results

if TYPE_CHECKING:
    from biascope.families.family import Family
    from biascope.runs.run import Run
    from biascope.scanning import Sampling

_NO_DATA = DataOptions(data="", samples="1000")


@with_groups
def scan(
    model: Model = "lenet",
    *,
    network: NetworkOptions,
    checkpoints: Annotated[Path | None, typer.Option(help="Folder of checkpoints from a training.")] = None,
    gradients: GradientOptions,
    samples: DataOptions = _NO_DATA,
    work: SeededWork,
) -> None:
    """Measure what a network finds easy to learn, and write a report.

    With --data, the report also has the tangent kernel on these samples.
    """
    from biascope import scanning
    from biascope.families.source import usual_shape

    sampling = gradients.sampling(work.seed)
    found = samples.arrays(work.seed) if samples.data else None
    shape = network.shape or (found.shape if found else None)
    if work.dry_run:
        check_place(work)
        family = network.family(model, shape)
        cost_at = shape or usual_shape(model, network.chosen)
        _print_cost(family, cost_at, sampling, work.run(None), work.as_json)
        return
    name = scanning.folder_name(model, network.chosen, network.weights or checkpoints)
    folder = work.out or Path("biascope-runs") / name
    done = scanning.scan(
        model,
        input=shape,
        settings=network.chosen,
        estimator=sampling.estimator,
        step=sampling.step,
        draws=sampling.draws,
        readout=sampling.readout,
        batchnorm=network.batchnorm,
        weights=network.weights,
        checkpoints=checkpoints,
        data=found,
        seed=work.seed,
        run=work.run(folder, data_root=samples.data_root),
    )
    keep_settings(folder)
    print_results(done.results, done.report, work.as_json)


def _print_cost(family: Family, shape: tuple[int, ...], sampling: Sampling, run: Run, as_json: bool) -> None:
    from biascope.results.wording import duration
    from biascope.runs.rehearsal import slowdown
    from biascope.scanning import describe_device, expected_cost

    costs = expected_cost(family, shape, sampling, run)
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
            subject=family.name,
            parameters=family.num_parameters,
            device=describe_device(run),
            slowdown=slowdown(),
            costs=rows,
        )
        return
    typer.echo(f"{family.name}: {family.num_parameters:,} parameters, {family.drawing}; {describe_device(run)}")
    for cost in costs:
        typer.echo(
            f"  {cost.measurement:22} {cost.draws} draws, {cost.estimator}: about {duration(cost.seconds)} and "
            f"{cost.memory / 2**20:,.0f} MiB ({cost.method})"
        )
    typer.echo(load_in_words(slowdown()))
