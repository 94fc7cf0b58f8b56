"""SHOW: the command line. It parses, calls, prints; there is no science here."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from biascope import __version__
from biascope.cli import data as data_commands
from biascope.cli import edit as editing_commands
from biascope.cli import inr as signal_commands
from biascope.cli import kernel as kernel_commands
from biascope.cli import match as match_commands
from biascope.cli import measure as measure_commands
from biascope.cli import merge as merge_commands
from biascope.cli import patterns as pattern_commands
from biascope.cli import reproduce as reproduce_commands
from biascope.cli.measure import DATA_HELP, MODEL_HELP, SIZES_HELP, whole_numbers
from biascope.cli.printing import print_results

if TYPE_CHECKING:
    from biascope.families.family import Family
    from biascope.runs.run import Run
    from biascope.scanning import Sampling

app = typer.Typer(
    name="biascope",
    help="A microscope for inductive bias: what a neural network finds easy to learn, before and during training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

InputOption = Annotated[str, typer.Option("--input", help="Shape of one input, such as 1x32x32 or 3x224x224.")]
SetOption = Annotated[list[str], typer.Option("--set", help="A setting of the network, key=value; may be repeated.")]
EstimatorOption = Annotated[
    str,
    typer.Option(
        help="difference, exact, or auto: differences where affordable, else exact; mixed or mixed_difference for directions."
    ),
]
StepOption = Annotated[float, typer.Option(help="Half width h of the differences.")]
DrawsOption = Annotated[int, typer.Option(help="Networks to draw.")]
ReadoutOption = Annotated[str, typer.Option(help="Scalar of several outputs: first, sum, mean, margin or random.")]
BatchnormOption = Annotated[str, typer.Option(help="eval: initial or stored statistics; train: those of each input.")]
SeedOption = Annotated[int, typer.Option(help="Of weights and inputs.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
PrecisionOption = Annotated[str, typer.Option(help="float64, float32, tf32, float16 or bfloat16.")]
OutOption = Annotated[Path | None, typer.Option(help="Folder for results and report; biascope-runs/MODEL by default.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"biascope {__version__}")
        raise typer.Exit


def _cite(wanted: bool) -> None:
    if wanted:
        from biascope.results.registry import PAPERS

        typer.echo(f"The Biascope developers (2026). Biascope {__version__}: a microscope for inductive bias.\n")
        typer.echo("and the paper whose measurement you use:")
        for key, reference in PAPERS.items():
            typer.echo(f"  {key:13} {reference}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    cite: Annotated[bool, typer.Option("--cite", callback=_cite, is_eager=True, help="Print what to cite.")] = False,
) -> None:
    """What every command shares."""


def _run_in(device: str, precision: str, folder: Path | None) -> Run:
    from biascope.runs.run import Run

    run = Run(folder=folder, device=device, precision=precision)
    _ = run.torch_device  # a device that is not there is told before any work
    return run


def _estimator(text: str) -> str | None:
    return None if text == "auto" else text


@app.command()
def scan(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = "lenet",
    input: InputOption = "",
    settings: SetOption = [],  # noqa: B006 - typer copies it
    estimator: EstimatorOption = "auto",
    step: StepOption = 100.0,
    draws: DrawsOption = 400,
    readout: ReadoutOption = "first",
    batchnorm: BatchnormOption = "eval",
    weights: Annotated[Path | None, typer.Option(help="Trained weights to scan, safetensors or torch.")] = None,
    checkpoints: Annotated[Path | None, typer.Option(help="Folder of weights along training.")] = None,
    data: Annotated[str, typer.Option(help=f"{DATA_HELP} Adds the tangent kernel on them to the report.")] = "",
    samples: Annotated[str, typer.Option(help=SIZES_HELP)] = "1000",
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "float32",
    out: OutOption = None,
    as_json: JsonOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the expected time and memory, and stop.")] = False,
) -> None:
    """Measure what a network finds easy to learn, and write a report."""
    from biascope import scanning
    from biascope.families import source as model_source

    shape = model_source.parse_shape(input) if input else None
    chosen = model_source.parse_settings(settings)
    found = None
    if data:
        from biascope.tasks.samples import samples_of

        found = samples_of(data, sizes=whole_numbers(samples, "--samples"), seed=seed)
        shape = shape or found.shape
    if dry_run:
        family = model_source.family_of(model, shape=shape, settings=chosen, weights_file=weights, batchnorm=batchnorm)
        sampling = scanning.Sampling(_estimator(estimator), step, draws, readout, seed)
        _print_cost(
            family, shape or model_source.usual_shape(model, chosen), sampling, _run_in(device, precision, None)
        )
        return
    folder = out or Path("biascope-runs") / scanning.folder_name(model, chosen, weights or checkpoints)
    done = scanning.scan(
        model,
        input=shape,
        settings=chosen,
        estimator=_estimator(estimator),
        step=step,
        draws=draws,
        readout=readout,
        batchnorm=batchnorm,
        weights=weights,
        checkpoints=checkpoints,
        data=found,
        seed=seed,
        run=_run_in(device, precision, folder),
    )
    print_results(done.results, done.report, as_json)


def _print_cost(family: Family, shape: tuple[int, ...], sampling: Sampling, run: Run) -> None:
    from biascope.scanning import describe_device, expected_cost

    typer.echo(f"{family.name}: {family.num_parameters:,} parameters, {family.drawing}; {describe_device(run)}")
    for cost in expected_cost(family, shape, sampling, run):
        typer.echo(
            f"  {cost.measurement:22} {sampling.draws} draws, {cost.estimator}: about {_duration(cost.seconds)} and "
            f"{cost.memory / 2**20:,.0f} MiB ({cost.method})"
        )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the networks and measurements there are."""
    from biascope import networks
    from biascope.results import registry as measurement

    if as_json:
        typer.echo(json.dumps({"networks": networks.names(), "measurements": measurement.names()}))
        return
    typer.echo("networks (biascope scan NAME, settings with --set key=value):")
    for name in networks.names():
        typer.echo(f"  {name}")
    typer.echo("measurements (biascope measure NAME MODEL):")
    for name in measurement.names():
        typer.echo(f"  {name}")


@app.command()
def compare(
    subjects: Annotated[list[str], typer.Argument(help="Two or more run folders or networks, in any mixture.")],
    input: InputOption = "",
    estimator: EstimatorOption = "auto",
    step: StepOption = 100.0,
    draws: DrawsOption = 400,
    readout: ReadoutOption = "first",
    batchnorm: BatchnormOption = "eval",
    leading: Annotated[int, typer.Option(help="Directions in the compared subspaces.")] = 10,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "float32",
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put networks side by side: spectra, effective rank and overlap of their leading directions."""
    from biascope import scanning
    from biascope.families import source as model_source
    from biascope.measures.covariance import compare as comparison

    if len(subjects) < 2:
        raise ValueError(
            f"compare needs at least two subjects, got {len(subjects)}. Pass run folders or network names."
        )
    shape = model_source.parse_shape(input) if input else None
    if len(set(subjects)) < len(subjects):
        raise ValueError(f"compare needs different subjects, got {', '.join(subjects)}. Leave out those that repeat.")
    folder = out or Path("biascope-runs") / scanning.comparison_folder(subjects)
    results = scanning.results_of(
        subjects,
        folder,
        input=shape,
        sampling=scanning.Sampling(_estimator(estimator), step, draws, readout, seed),
        batchnorm=batchnorm,
        run=_run_in(device, precision, None),
    )
    tables = comparison.compared(results, leading)
    from biascope.results.report import write_report
    from biascope.runs.files import make_writable

    make_writable(folder)
    report = write_report(results, folder / "report.html")
    warnings = list(dict.fromkeys(warning for result in results for warning in result.warnings))
    if as_json:
        found = {"comparisons": [table.as_dict() for table in tables], "warnings": warnings, "report": str(report)}
        typer.echo(json.dumps(found, indent=1))
        return
    for table in tables:
        typer.echo(f"\n{table!r}")
    for warning in warnings:
        typer.echo(f"Warning: {warning}")
    typer.echo(f"\nReport: {report}")


@app.command()
def selftest(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = "lenet",
    input: InputOption = "",
    settings: SetOption = [],  # noqa: B006 - typer copies it
    readout: ReadoutOption = "first",
    batchnorm: BatchnormOption = "eval",
    seed: SeedOption = 0,
) -> None:
    """Check on a network that its derivatives are what they claim to be."""
    from biascope.families import source as model_source
    from biascope.kernels import selftest as identities

    shape = model_source.parse_shape(input) if input else None
    chosen = model_source.parse_settings(settings)
    family = model_source.family_of(model, shape=shape, settings=chosen, batchnorm=batchnorm)
    shape = shape or model_source.usual_shape(model, chosen)
    checks = identities.selftest(family, shape, readout=readout, seed=seed)
    typer.echo(f"{family.name}: {family.num_parameters:,} parameters, {family.drawing}")
    for check in checks:
        mark = "FAILED" if not check.passed else "kink  " if check.kink else "ok    "
        remark = "" if check.passed else f": {check.remark}"
        typer.echo(f"  {mark} {check.name} (error {check.error:.1e}, allowed {check.tolerance:.0e}){remark}")
    failed = sum(not check.passed for check in checks)
    if failed:
        typer.echo(f"{failed} of {len(checks)} checks failed: do not trust measurements of this network.", err=True)
        raise typer.Exit(1)
    for check in checks:
        if check.kink:
            typer.echo(f"Slopes on the two sides differ by {100 * check.kink:.2g} %: {check.remark}.")
    typer.echo(f"All {len(checks)} checks passed.")


app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(measure_commands.measure)
app.command()(kernel_commands.kernel)
app.command()(match_commands.match)
app.command()(pattern_commands.patterns)
app.command()(editing_commands.edit)
app.command("reproduce")(reproduce_commands.reproduce)
app.add_typer(data_commands.app, name="data")
app.add_typer(signal_commands.app, name="inr")
app.add_typer(merge_commands.app, name="merge")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Path | None, typer.Option(help="The HTML file; report.html in the first folder by default.")] = None,
) -> None:
    """Make the report of one or several runs again."""
    from biascope.results.report import write_report
    from biascope.runs.files import make_writable
    from biascope.scanning import saved_results

    results = [result for run in runs for result in saved_results(run)]
    path = out or runs[0] / "report.html"
    make_writable(path.parent)
    typer.echo(f"Report: {write_report(results, path)}")


def _told(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: str | None = None,
) -> None:
    """A warning as a sentence; one of other people's code keeps its name."""
    kind = "" if category is UserWarning else f"{category.__name__}: "
    typer.echo(f"biascope: {kind}{' '.join(str(message).split())}", err=True)


def main() -> None:
    """Run the command line: a user's mistake is one sentence and a non-zero exit, never a traceback."""
    warnings.showwarning = _told
    try:
        app()
    except (ValueError, OSError) as error:
        if os.environ.get("BIASCOPE_TRACEBACK"):
            raise
        typer.echo(f"biascope: {' '.join(str(error).split())}", err=True)
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == 130:  # Typer's answer to Ctrl-C
            typer.echo("\nStopped. What is finished is kept: the same command goes on from there.", err=True)
        raise
