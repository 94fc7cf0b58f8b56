"""SHOW: `biascope kernel`: the tangent kernel of a network on a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biascope.cli.measure import DATA_HELP, MODEL_HELP, ON_HELP, SIZES_HELP, whole_numbers


def kernel(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = "lenet",
    data: Annotated[str, typer.Option(help=DATA_HELP)] = "cifar10",
    samples: Annotated[str, typer.Option(help=SIZES_HELP)] = "2000,1000",
    positive: Annotated[str, typer.Option(help="Classes against the rest, such as 5,6,7,8,9; else each class.")] = "",
    leading: Annotated[int, typer.Option(help="Eigenfunctions to find.")] = 50,
    control: Annotated[bool, typer.Option(help="Compare the local energy with that on the test samples.")] = False,
    parameters: Annotated[
        list[str], typer.Option(help="Parameters to differentiate by, names or patterns such as 'conv1.*'.")
    ] = [],  # noqa: B006 - typer copies it
    kind: Annotated[str, typer.Option("--kernel", help="scalar (one readout) or trace (sum over outputs).")] = "scalar",
    readout: Annotated[
        str, typer.Option(help="Scalar of several outputs: first, sum, mean, margin or random.")
    ] = "first",
    draws: Annotated[int, typer.Option(help="Initialisations to average over.")] = 1,
    settings: Annotated[
        list[str], typer.Option("--set", help="A setting of the network, key=value; may be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    weights: Annotated[Path | None, typer.Option(help="Trained weights, safetensors or torch.")] = None,
    matrix: Annotated[Path | None, typer.Option(help="Also write the kernel matrix to this .npy file.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print the rule, operations and memory of each parameter, and stop.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of weights and samples.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[str, typer.Option(help="float64, float32, tf32 or bfloat16.")] = "float32",
    on: Annotated[str | None, typer.Option(help=ON_HELP)] = None,
    data_root: Annotated[Path | None, typer.Option(help="Folder of data sets; BIASCOPE_DATA by default.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results and report; biascope-runs/MODEL by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """The tangent kernel of a network on data: its spectrum, its eigenfunctions, and how much of the labels lies on them."""
    from biascope import scanning
    from biascope.cli.printing import print_results
    from biascope.families import source as model_source
    from biascope.results.registry import check_samples, find
    from biascope.results.report import write_report
    from biascope.runs.run import Run
    from biascope.tasks.samples import samples_of

    if matrix is not None and matrix.suffix != ".npy":
        raise ValueError(f"--matrix must name an .npy file, got {matrix}. Pass --matrix kernel.npy.")
    chosen = model_source.parse_settings(settings)
    found = samples_of(data, sizes=whole_numbers(samples, "--samples"), root=data_root, seed=seed)
    family = model_source.family_of(model, shape=found.shape, settings=chosen, weights_file=weights)
    folder = out or Path("biascope-runs") / scanning.folder_name(model, chosen, weights)
    run = Run(folder=folder, device=device, precision=precision, on=on, data_root=data_root)
    if explain or matrix is not None:
        from biascope.kernels.gram import gram_explanation, tangent_gram

        check_samples(family, found)
        network = family.draw(1, seed=seed, run=run).member(0)
        network = network.read(readout) if kind == "scalar" else network
        x = found.whole("train")[0]
        if explain:
            typer.echo(gram_explanation(network, x, kernel=kind, parameters=parameters or None, run=run))
            return
    result = find("tangent_kernel")(
        family,
        found,
        leading=leading,
        positive=whole_numbers(positive, "--positive") if positive else None,
        control="test" if control else None,
        parameters=tuple(parameters) or None,
        kernel=kind,
        readout=readout,
        draws=draws,
        seed=seed,
        run=run,
    )
    result.save(folder / "tangent_kernel")
    if matrix is not None:
        import numpy as np

        kept = tangent_gram(network, x, kernel=kind, parameters=parameters or None, run=run)  # found in the run folder
        np.save(matrix, kept.matrix.cpu().numpy())
    print_results([result], write_report([result], folder / "report.html"), as_json)
